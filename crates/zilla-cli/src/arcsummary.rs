//! `zilla arcsummary`: what the caches hold and did, in the sections of OpenZFS's `arc_summary`.
//!
//! The sections are those of which there are figures here; one that is not is refused by name.

use crate::arcstat::derive;
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::time;
use std::collections::BTreeMap;
use zilla_control::types::{ArcStat, ArcStatQuery};

const USAGE: &str = "usage:\n\tzilla arcsummary [-gr] [-s section] [pool]\n";
/// A line's columns, and those of its indent.
const WIDTH: usize = 72;
const INDENT: usize = 8;
/// Columns of the graph's bar.
const BAR: usize = 60;

type Counts = BTreeMap<String, u64>;
type Section = (&'static str, fn(&Counts) -> Vec<String>);

const SECTIONS: &[Section] = &[("arc", arc), ("archits", hits), ("dmu", dmu), ("l2arc", l2arc), ("zil", zil)];

/// Runs `zilla arcsummary` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla arcsummary", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[(&str, bool, char)] =
        &[("graph", false, 'g'), ("raw", false, 'r'), ("section", true, 's'), ("help", false, 'h')];
    let (options, mut operands) = args::parse(&args, ":ghrs:", LONG);
    let (mut graph, mut raw, mut wanted) = (false, false, None);
    for option in options {
        match option {
            Opt::Flag('g', _) => graph = true,
            Opt::Flag('r', _) => raw = true,
            Opt::Flag('s', name) => match SECTIONS.iter().find(|(section, _)| *section == name) {
                Some(section) => wanted = Some(section),
                None => {
                    let all: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
                    return cx.bad_usage(format!("no section '{name}': {}", all.join(", ")));
                }
            },
            Opt::Flag('h', _) => {
                (cx.usage)(cx, true);
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    if operands.len() > 1 {
        return cx.bad_usage("too many arguments");
    }
    if u8::from(graph) + u8::from(raw) + u8::from(wanted.is_some()) > 1 {
        return cx.bad_usage("one of -g, -r and -s at a time");
    }
    let query = ArcStatQuery { name: operands.pop() };
    let Some(stats) = cx.ask("cannot read statistics", &query)? else { return Ok(1) };
    let counts = ArcStat::total(stats);
    let lines = match (graph, raw) {
        (true, _) => bar(&counts),
        (_, true) => counts.iter().map(|(name, n)| format!("{name} {n}")).collect(),
        _ => {
            let all = SECTIONS.iter().filter(|s| wanted.is_none_or(|w| w.0 == s.0));
            head().into_iter().chain(all.flat_map(|(_, section)| section(&counts))).collect()
        }
    };
    lines.iter().for_each(|line| cx.out.line(line));
    Ok(0)
}

fn head() -> Vec<String> {
    let name = "ZFS Subsystem Report";
    let now = time::of_day(time::now());
    vec![
        String::new(),
        "-".repeat(WIDTH),
        format!("{name}{now:>w$}", w = WIDTH - name.len()),
        crate::fmt::version(),
        String::new(),
    ]
}

fn of(counts: &Counts, name: &str) -> u64 {
    counts.get(name).copied().unwrap_or(0)
}

fn sum(counts: &Counts, names: &[&str]) -> u64 {
    names.iter().map(|name| of(counts, name)).sum()
}

/// A part in percent, to a tenth; less than that is told as such.
fn percent(part: u64, all: u64) -> String {
    let p = if all > 0 { 100.0 * part as f64 / all as f64 } else { return "n/a".into() };
    if p > 0.0 && p < 0.1 { "< 0.1 %".into() } else { format!("{p:.1} %") }
}

/// In powers of 1024, with one decimal.
fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["Bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    scaled(n, 1024.0, &UNITS, " ")
}

/// In powers of 1000, with one decimal.
fn count(n: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    scaled(n, 1000.0, &UNITS, "")
}

fn scaled(n: u64, base: f64, units: &[&str], space: &str) -> String {
    let (mut value, mut i) = (n as f64, 0);
    while value >= base && i + 1 < units.len() {
        value /= base;
        i += 1;
    }
    let unit = units.get(i).unwrap_or(&"");
    if i == 0 { format!("{n}{space}{unit}") } else { format!("{value:.1}{space}{unit}") }
}

/// A heading, with a value at the right edge.
fn title(text: &str, value: &str) -> String {
    format!("{text}{value:>w$}", w = WIDTH.saturating_sub(text.len()))
}

/// A line below it, perhaps with what part of the whole it is.
fn item(text: &str, part: &str, value: &str) -> String {
    let left = format!("{:INDENT$}{text}", "");
    // The part ends where the values of all lines have room.
    format!("{left}{part:>p$}{value:>14}", p = (WIDTH - 14).saturating_sub(left.len()))
}

fn sized(text: &str, n: u64, all: u64) -> String {
    item(text, &percent(n, all), &bytes(n))
}

fn counted(text: &str, n: u64) -> String {
    item(text, "", &count(n))
}

/// A share of `all` that a counter has, in bytes.
fn part_of(c: &Counts, text: &str, name: &str, all: u64) -> String {
    sized(text, of(c, name), all)
}

/// Bytes of a counter.
fn amount(c: &Counts, text: &str, name: &str) -> String {
    item(text, "", &bytes(of(c, name)))
}

/// A share of `all` in accesses.
fn share(text: &str, n: u64, all: u64) -> String {
    item(text, &percent(n, all), &count(n))
}

fn arc(c: &Counts) -> Vec<String> {
    let mut with_targets = c.clone();
    derive(&mut with_targets);
    let c = &with_targets;
    let (memory, size, max) = (of(c, "memory_all_bytes"), of(c, "size"), of(c, "c_max"));
    let mut out = vec![
        "ARC status:".into(),
        amount(c, "Total memory size:", "memory_all_bytes"),
        part_of(c, "Min target size:", "c_min", memory),
        part_of(c, "Max target size:", "c_max", memory),
        part_of(c, "Target size (adaptive):", "c", max),
        sized("Current size:", size, max),
        amount(c, "Free memory size:", "memory_free_bytes"),
        amount(c, "Available memory size:", "memory_available_bytes"),
        String::new(),
        title("ARC structural breakdown (current size):", &bytes(size)),
    ];
    for (text, name) in [
        ("Compressed size:", "compressed_size"),
        ("Overhead size:", "overhead_size"),
        ("Bonus size:", "bonus_size"),
        ("Dnode size:", "dnode_size"),
        ("Dbuf size:", "dbuf_size"),
        ("Header size:", "hdr_size"),
        ("L2 header size:", "l2_hdr_size"),
        ("ABD chunk waste size:", "abd_chunk_waste_size"),
        ("Free buffers size:", "free_buffers_size"),
        ("Other size:", "other_size"),
    ] {
        out.push(part_of(c, text, name, size));
    }
    let all = of(c, "caches_size");
    out.extend([
        String::new(),
        title("ARC types breakdown (compressed + overhead):", &bytes(all)),
        part_of(c, "Data size:", "data_size", all),
        part_of(c, "Metadata size:", "metadata_size", all),
        String::new(),
        title("ARC states breakdown (compressed + overhead):", &bytes(all)),
        part_of(c, "Anonymous data size:", "anon_data", all),
        part_of(c, "Anonymous metadata size:", "anon_metadata", all),
    ]);
    for (list, key) in [("MFU", "mfu"), ("MRU", "mru")] {
        for kind in ["data", "metadata"] {
            out.push(part_of(c, &format!("{list} {kind} target:"), &format!("{key}_{kind}_target"), all));
            out.push(part_of(c, &format!("{list} {kind} size:"), &format!("{key}_{kind}"), all));
            let evictable = format!("{key}_evictable_{kind}");
            out.push(part_of(c, &format!("{list} evictable {kind} size:"), &evictable, all));
            out.push(amount(c, &format!("{list} ghost {kind} size:"), &format!("{key}_ghost_{kind}")));
        }
    }
    let eligible = of(c, "evict_l2_eligible");
    out.extend([
        part_of(c, "Uncached data size:", "uncached_data", all),
        part_of(c, "Uncached metadata size:", "uncached_metadata", all),
        String::new(),
        "ARC hash breakdown:".into(),
        counted("Elements:", of(c, "hash_elements")),
        counted("Collisions:", of(c, "hash_collisions")),
        counted("Chain max:", of(c, "hash_chain_max")),
        counted("Chains:", of(c, "hash_chains")),
        String::new(),
        "ARC misc:".into(),
        counted("Memory throttles:", of(c, "memory_throttle_count")),
        counted("Memory direct reclaims:", of(c, "memory_direct_count")),
        counted("Memory indirect reclaims:", of(c, "memory_indirect_count")),
        counted("Deleted:", of(c, "deleted")),
        counted("Mutex misses:", of(c, "mutex_miss")),
        counted("Eviction skips:", of(c, "evict_skip")),
        counted("Eviction skips due to L2 writes:", of(c, "evict_l2_skip")),
        amount(c, "L2 cached evictions:", "evict_l2_cached"),
        amount(c, "L2 eligible evictions:", "evict_l2_eligible"),
        part_of(c, "L2 eligible MFU evictions:", "evict_l2_eligible_mfu", eligible),
        part_of(c, "L2 eligible MRU evictions:", "evict_l2_eligible_mru", eligible),
        amount(c, "L2 ineligible evictions:", "evict_l2_ineligible"),
        String::new(),
    ]);
    out
}

fn hits(c: &Counts) -> Vec<String> {
    const WAYS: [(&str, &str); 3] = [("hits", "hits"), ("I/O hits", "iohits"), ("misses", "misses")];
    let all = sum(c, &["hits", "iohits", "misses"]);
    let mut out = vec![title("ARC total accesses:", &count(all))];
    out.extend(WAYS.map(|(text, key)| share(&format!("Total {text}:"), of(c, key), all)));
    out.push(String::new());
    let heading = |text: &str, n: u64, all: u64| {
        title(&format!("ARC {text}:"), &format!("{}{:>14}", percent(n, all), count(n)))
    };
    for (name, key) in [
        ("Demand data", "demand_data"),
        ("Demand metadata", "demand_metadata"),
        ("Prefetch data", "prefetch_data"),
        ("Prefetch metadata", "prefetch_metadata"),
    ] {
        let here = WAYS.iter().map(|(_, way)| of(c, &format!("{key}_{way}"))).sum();
        out.push(heading(&format!("{} accesses", name.to_lowercase()), here, all));
        for (text, way) in WAYS {
            out.push(share(&format!("{name} {text}:"), of(c, &format!("{key}_{way}")), here));
        }
        out.push(String::new());
    }
    let ahead = sum(c, &["predictive_prefetch", "prescient_prefetch"]);
    for kind in ["predictive", "prescient"] {
        let made = of(c, &format!("{kind}_prefetch"));
        let (hit, joined) =
            (of(c, &format!("demand_hit_{kind}_prefetch")), of(c, &format!("demand_iohit_{kind}_prefetch")));
        out.push(heading(&format!("{kind} prefetches"), made, ahead));
        out.push(share(&format!("Demand hits after {kind}:"), hit, made));
        out.push(share(&format!("Demand I/O hits after {kind}:"), joined, made));
        out.push(share(&format!("Never demanded after {kind}:"), made.saturating_sub(hit + joined), made));
        out.push(String::new());
    }
    out.push("ARC states hits of all accesses:".into());
    for (name, key) in [
        ("Most frequently used (MFU):", "mfu_hits"),
        ("Most recently used (MRU):", "mru_hits"),
        ("Most frequently used (MFU) ghost:", "mfu_ghost_hits"),
        ("Most recently used (MRU) ghost:", "mru_ghost_hits"),
        ("Uncached:", "uncached_hits"),
    ] {
        out.push(share(name, of(c, key), all));
    }
    out.push(String::new());
    out
}

fn dmu(c: &Counts) -> Vec<String> {
    let further = ["zfetch_future", "zfetch_stride"];
    let all = sum(c, &["zfetch_hits", "zfetch_past", "zfetch_misses"]) + sum(c, &further);
    vec![
        title("DMU predictive prefetcher calls:", &count(all)),
        share("Stream hits:", of(c, "zfetch_hits"), all),
        share("Hits ahead of stream:", sum(c, &further), all),
        share("Hits behind stream:", of(c, "zfetch_past"), all),
        share("Stream misses:", of(c, "zfetch_misses"), all),
        share("Streams limit reached:", of(c, "zfetch_max_streams"), of(c, "zfetch_misses")),
        counted("Stream strides:", of(c, "zfetch_stride")),
        counted("Prefetches issued:", of(c, "zfetch_io_issued")),
        String::new(),
    ]
}

fn zil(c: &Counts) -> Vec<String> {
    let to = |text: &str, kind: &str| {
        let of = |what: &str| of(c, &format!("zil_itx_metaslab_{kind}_{what}"));
        item(text, &bytes(of("bytes")), &count(of("count")))
    };
    vec![
        title("ZIL committed transactions:", &count(of(c, "zil_itx_count"))),
        counted("Commit requests:", of(c, "zil_commit_count")),
        counted("Flushes to stable storage:", of(c, "zil_commit_writer_count")),
        to("Transactions to SLOG storage pool:", "slog"),
        to("Transactions to non-SLOG storage pool:", "normal"),
        String::new(),
    ]
}

fn l2arc(c: &Counts) -> Vec<String> {
    if of(c, "l2_ndev") == 0 {
        return vec!["L2ARC not detected, skipping section".into(), String::new()];
    }
    let errors = sum(c, &["l2_writes_error", "l2_cksum_bad", "l2_io_error"]);
    let (size, all) = (of(c, "l2_size"), sum(c, &["l2_hits", "l2_misses"]));
    let writes = of(c, "l2_writes_sent");
    let mut out = vec![title("L2ARC status:", if errors == 0 { "HEALTHY" } else { "DEGRADED" })];
    for (name, key) in [
        ("Low memory aborts:", "l2_abort_lowmem"),
        ("Free on write:", "l2_free_on_write"),
        ("R/W clashes:", "l2_rw_clash"),
        ("Bad checksums:", "l2_cksum_bad"),
        ("Read errors:", "l2_io_error"),
        ("Write errors:", "l2_writes_error"),
    ] {
        out.push(counted(name, of(c, key)));
    }
    out.extend([
        String::new(),
        title("L2ARC size (adaptive):", &bytes(size)),
        sized("Compressed:", of(c, "l2_asize"), size),
        sized("Header size:", of(c, "l2_hdr_size"), size),
        sized("MFU allocated size:", of(c, "l2_mfu_asize"), of(c, "l2_asize")),
        sized("MRU allocated size:", of(c, "l2_mru_asize"), of(c, "l2_asize")),
        sized("Prefetch allocated size:", of(c, "l2_prefetch_asize"), of(c, "l2_asize")),
        sized("Data (buffer content) allocated size:", of(c, "l2_bufc_data_asize"), of(c, "l2_asize")),
        sized(
            "Metadata (buffer content) allocated size:",
            of(c, "l2_bufc_metadata_asize"),
            of(c, "l2_asize"),
        ),
        String::new(),
        title("L2ARC breakdown:", &count(all)),
        share("Hit ratio:", of(c, "l2_hits"), all),
        share("Miss ratio:", of(c, "l2_misses"), all),
        String::new(),
        "L2ARC I/O:".into(),
        item("Reads:", &bytes(of(c, "l2_read_bytes")), &count(of(c, "l2_hits"))),
        item("Writes:", &bytes(of(c, "l2_write_bytes")), &count(writes)),
        String::new(),
        "L2ARC evicts:".into(),
        counted("L1 cached:", of(c, "l2_evict_l1cached")),
        counted("While reading:", of(c, "l2_evict_reading")),
        String::new(),
    ]);
    out
}

/// How full the ARC is, and of what: frequent, recent and the rest up to its limit.
fn bar(c: &Counts) -> Vec<String> {
    let limit = of(c, "c_max").max(1);
    let cells = |n: u64| (u128::from(n) * BAR as u128 / u128::from(limit)) as usize;
    let (mfu, mru) = (cells(of(c, "mfu_size")).min(BAR), cells(of(c, "mru_size")));
    let mru = mru.min(BAR - mfu);
    let (size, max) = (of(c, "size"), of(c, "c_max"));
    vec![
        format!(
            "ARC: {} of {} ({})  MFU: {}  MRU: {}",
            bytes(size),
            bytes(max),
            percent(size, max),
            bytes(of(c, "mfu_size")),
            bytes(of(c, "mru_size"))
        ),
        format!("+{}+", "-".repeat(BAR)),
        format!("|{}{}{}|", "F".repeat(mfu), "R".repeat(mru), " ".repeat(BAR - mfu - mru)),
        format!("+{}+", "-".repeat(BAR)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_arc_summary_has_them() {
        assert_eq!(bytes(512), "512 Bytes");
        assert_eq!(bytes(33_554_432), "32.0 MiB");
        assert_eq!((count(999), count(5_100_000)), ("999".to_owned(), "5.1M".to_owned()));
        assert_eq!(
            (percent(1, 3000), percent(99, 100), percent(1, 0)),
            ("< 0.1 %".into(), "99.0 %".into(), "n/a".into())
        );
        assert_eq!(title("a:", "b").len(), WIDTH);
        assert_eq!(sized("Target size (adaptive):", 1 << 20, 1 << 21).len(), WIDTH);
    }

    #[test]
    fn sections_tell_what_there_is() {
        let list =
            [("hits", 90), ("misses", 10), ("size", 1 << 20), ("c_max", 1 << 21), ("mfu_size", 1 << 20)];
        let mut counts: Counts = list.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        assert!(hits(&counts).iter().any(|l| l.contains("Total hits:") && l.contains("90.0 %")));
        assert_eq!(l2arc(&counts)[0], "L2ARC not detected, skipping section");
        counts.extend([("memory_all_bytes".to_owned(), 1 << 30), ("mfu_data".to_owned(), 3 << 19)]);
        let told = arc(&counts);
        let says = |text: &str, value: &str| told.iter().any(|l| l.contains(text) && l.ends_with(value));
        assert!(says("Total memory size:", "1.0 GiB") && says("MFU data size:", "1.5 MiB"), "{told:?}");
        // Nothing is metadata's, and no recent block has a target.
        assert!(says("MFU data target:", "1.5 MiB") && says("MRU data target:", "0 Bytes"), "{told:?}");
        assert!(told.iter().all(|line| line.len() <= WIDTH), "{told:?}");
        counts.insert("l2_ndev".into(), 1);
        assert!(l2arc(&counts)[0].ends_with("HEALTHY"));
        assert_eq!(bar(&counts)[2].matches('F').count(), BAR / 2);
    }

    /// Parts of a whole are no sums, and the machine's memory is one.
    #[test]
    fn two_pools_are_told_together() {
        let of = |data: u64, metadata: u64, p: u64| {
            let counts = [
                ("data_size", data),
                ("metadata_size", metadata),
                ("p", p),
                ("c", 100),
                ("meta", 3 << 30),
                ("pd", 1 << 31),
                ("memory_all_bytes", 1000),
                ("l2_data_to_meta_ratio", data),
            ];
            let counts = counts.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
            ArcStat { counts, ..ArcStat::default() }
        };
        let sum = ArcStat::total([of(10, 30, 20), of(50, 10, 0)]);
        let told = ["data_size", "meta", "pd", "pm", "memory_all_bytes", "l2_data_to_meta_ratio"];
        let part = |of: u64, all: u64| (of << 32) / all;
        let recent = part(20, 200);
        let wanted = [60, part(40, 100), recent, recent, 1000, 50];
        assert_eq!(told.map(|name| sum[name]), wanted);
        assert_eq!(ArcStat::total([of(16384, 8192, 0)])["meta"], (1 << 32) / 3);
    }
}
