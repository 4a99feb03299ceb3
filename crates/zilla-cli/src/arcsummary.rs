//! `zilla arcsummary`: what the caches hold and did, in the sections of OpenZFS's `arc_summary`.
//!
//! The sections are those of which there are figures here; one that is not is refused by name.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::time;
use std::collections::BTreeMap;
use zilla_control::types::ArcStatQuery;

const USAGE: &str = "usage:\n\tzilla arcsummary [-gr] [-s section] [pool]\n";
/// A line's columns, and those of its indent.
const WIDTH: usize = 72;
const INDENT: usize = 8;
/// Columns of the graph's bar.
const BAR: usize = 60;

type Counts = BTreeMap<String, u64>;
type Section = (&'static str, fn(&Counts) -> Vec<String>);

const SECTIONS: &[Section] = &[("arc", arc), ("archits", hits), ("l2arc", l2arc)];

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
    let mut counts = Counts::new();
    for (name, n) in stats.into_iter().flat_map(|s| s.counts) {
        *counts.entry(name).or_default() += n;
    }
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

fn arc(c: &Counts) -> Vec<String> {
    let (size, max) = (of(c, "size"), of(c, "c_max"));
    let ghosts = |name: &str| {
        item(
            name,
            "",
            &bytes(of(c, if name.starts_with("MFU") { "mfu_ghost_size" } else { "mru_ghost_size" })),
        )
    };
    vec![
        title("ARC size (current):", &format!("{}{:>14}", percent(size, max), bytes(size))),
        sized("Target size (adaptive):", of(c, "c"), max),
        sized("Min size (hard limit):", of(c, "c_min"), max),
        item("Max size (high water):", "", &bytes(max)),
        sized("Most Frequently Used (MFU) size:", of(c, "mfu_size"), size),
        sized("Most Recently Used (MRU) size:", of(c, "mru_size"), size),
        ghosts("MFU ghost size:"),
        ghosts("MRU ghost size:"),
        sized("Data size:", of(c, "data_size"), size),
        sized("Metadata size:", of(c, "metadata_size"), size),
        item("Uncompressed size:", "", &bytes(of(c, "uncompressed_size"))),
        String::new(),
        "ARC hash breakdown:".into(),
        counted("Elements:", of(c, "hash_elements")),
        String::new(),
        "ARC misc:".into(),
        counted("Deleted:", of(c, "deleted")),
        String::new(),
    ]
}

fn hits(c: &Counts) -> Vec<String> {
    let all = sum(c, &["hits", "misses"]);
    let share = |text: &str, n: u64, all: u64| item(text, &percent(n, all), &count(n));
    let mut out = vec![
        title("ARC total accesses:", &count(all)),
        share("Total hits:", of(c, "hits"), all),
        share("Total misses:", of(c, "misses"), all),
        String::new(),
    ];
    for (name, key) in [
        ("demand data", "demand_data"),
        ("demand metadata", "demand_metadata"),
        ("prefetch data", "prefetch_data"),
        ("prefetch metadata", "prefetch_metadata"),
    ] {
        let (found, missed) = (of(c, &format!("{key}_hits")), of(c, &format!("{key}_misses")));
        let here = found + missed;
        out.push(title(
            &format!("ARC {name} accesses:"),
            &format!("{}{:>14}", percent(here, all), count(here)),
        ));
        out.push(share("Hits:", found, here));
        out.push(share("Misses:", missed, here));
        out.push(String::new());
    }
    let found = of(c, "hits");
    out.push("Cache hits by cache type:".into());
    for (name, key) in [
        ("Most frequently used (MFU):", "mfu_hits"),
        ("Most recently used (MRU):", "mru_hits"),
        ("MFU ghost:", "mfu_ghost_hits"),
        ("MRU ghost:", "mru_ghost_hits"),
    ] {
        out.push(share(name, of(c, key), found));
    }
    out.push(String::new());
    out
}

fn l2arc(c: &Counts) -> Vec<String> {
    if of(c, "l2_ndev") == 0 {
        return vec!["L2ARC not detected, skipping section".into(), String::new()];
    }
    let errors = sum(c, &["l2_writes_error", "l2_cksum_bad", "l2_io_error"]);
    let (size, all) = (of(c, "l2_size"), sum(c, &["l2_hits", "l2_misses"]));
    let share = |text: &str, n: u64| item(text, &percent(n, all), &count(n));
    let writes = of(c, "l2_writes_sent");
    let mut out = vec![title("L2ARC status:", if errors == 0 { "HEALTHY" } else { "DEGRADED" })];
    for (name, key) in [
        ("Low memory aborts:", "l2_abort_lowmem"),
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
        share("Hit ratio:", of(c, "l2_hits")),
        share("Miss ratio:", of(c, "l2_misses")),
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
        counts.insert("l2_ndev".into(), 1);
        assert!(l2arc(&counts)[0].ends_with("HEALTHY"));
        assert_eq!(bar(&counts)[2].matches('F').count(), BAR / 2);
    }
}
