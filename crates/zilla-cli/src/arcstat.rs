//! `zilla arcstat`: what the caches do, in the columns of OpenZFS's `arcstat`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::interval::Interval;
use crate::fmt::time;
use std::collections::BTreeMap;
use zilla_control::types::ArcStatQuery;

type Counts = BTreeMap<String, u64>;
type Names = &'static [&'static str];

/// How a column comes about.
enum Value {
    Time,
    /// What was added a second.
    Rate(Names),
    /// What was added of the first as a part of what was added of the second.
    Percent(Names, Names),
    /// What there is.
    Gauge(&'static str),
    /// What there is of the first as a part of the second.
    Share(&'static str, &'static str),
}

use Value::{Gauge, Percent, Rate, Share, Time};

const ALL: Names = &["hits", "misses"];
const DEMAND: Names =
    &["demand_data_hits", "demand_metadata_hits", "demand_data_misses", "demand_metadata_misses"];
const DEMAND_HITS: Names = &["demand_data_hits", "demand_metadata_hits"];
const DEMAND_MISSES: Names = &["demand_data_misses", "demand_metadata_misses"];
const DEMAND_DATA: Names = &["demand_data_hits", "demand_data_misses"];
const DEMAND_META: Names = &["demand_metadata_hits", "demand_metadata_misses"];
const PREFETCH: Names =
    &["prefetch_data_hits", "prefetch_metadata_hits", "prefetch_data_misses", "prefetch_metadata_misses"];
const PREFETCH_HITS: Names = &["prefetch_data_hits", "prefetch_metadata_hits"];
const PREFETCH_MISSES: Names = &["prefetch_data_misses", "prefetch_metadata_misses"];
const PREFETCH_DATA: Names = &["prefetch_data_hits", "prefetch_data_misses"];
const PREFETCH_META: Names = &["prefetch_metadata_hits", "prefetch_metadata_misses"];
const META: Names =
    &["prefetch_metadata_hits", "demand_metadata_hits", "prefetch_metadata_misses", "demand_metadata_misses"];
const META_HITS: Names = &["prefetch_metadata_hits", "demand_metadata_hits"];
const META_MISSES: Names = &["prefetch_metadata_misses", "demand_metadata_misses"];
const L2: Names = &["l2_hits", "l2_misses"];

/// A column: heading, width, by what it is shortened (0: not, 100: a percentage), what it is.
type Column = (&'static str, usize, u32, Value, &'static str);

/// Those of OpenZFS's columns that have counters here.
const COLUMNS: &[Column] = &[
    ("time", 8, 0, Time, "Time"),
    ("hits", 4, 1000, Rate(&["hits"]), "Hits a second"),
    ("miss", 4, 1000, Rate(&["misses"]), "Misses a second"),
    ("read", 4, 1000, Rate(ALL), "Accesses a second"),
    ("hit%", 4, 100, Percent(&["hits"], ALL), "Hits of all accesses"),
    ("miss%", 5, 100, Percent(&["misses"], ALL), "Misses of all accesses"),
    ("dhit", 4, 1000, Rate(DEMAND_HITS), "Demand hits a second"),
    ("dmis", 4, 1000, Rate(DEMAND_MISSES), "Demand misses a second"),
    ("dh%", 3, 100, Percent(DEMAND_HITS, DEMAND), "Hits of demand accesses"),
    ("dm%", 3, 100, Percent(DEMAND_MISSES, DEMAND), "Misses of demand accesses"),
    ("ddhit", 5, 1000, Rate(&["demand_data_hits"]), "Demand data hits a second"),
    ("ddmis", 5, 1000, Rate(&["demand_data_misses"]), "Demand data misses a second"),
    ("ddh%", 4, 100, Percent(&["demand_data_hits"], DEMAND_DATA), "Hits of demand data accesses"),
    ("ddm%", 4, 100, Percent(&["demand_data_misses"], DEMAND_DATA), "Misses of demand data accesses"),
    ("dmhit", 5, 1000, Rate(&["demand_metadata_hits"]), "Demand metadata hits a second"),
    ("dmmis", 5, 1000, Rate(&["demand_metadata_misses"]), "Demand metadata misses a second"),
    ("dmh%", 4, 100, Percent(&["demand_metadata_hits"], DEMAND_META), "Hits of demand metadata accesses"),
    ("dmm%", 4, 100, Percent(&["demand_metadata_misses"], DEMAND_META), "Misses of demand metadata accesses"),
    ("phit", 4, 1000, Rate(PREFETCH_HITS), "Prefetch hits a second"),
    ("pmis", 4, 1000, Rate(PREFETCH_MISSES), "Prefetch misses a second"),
    ("ph%", 3, 100, Percent(PREFETCH_HITS, PREFETCH), "Hits of prefetches"),
    ("pm%", 3, 100, Percent(PREFETCH_MISSES, PREFETCH), "Misses of prefetches"),
    ("pdhit", 5, 1000, Rate(&["prefetch_data_hits"]), "Prefetch data hits a second"),
    ("pdmis", 5, 1000, Rate(&["prefetch_data_misses"]), "Prefetch data misses a second"),
    ("pdh%", 4, 100, Percent(&["prefetch_data_hits"], PREFETCH_DATA), "Hits of data prefetches"),
    ("pdm%", 4, 100, Percent(&["prefetch_data_misses"], PREFETCH_DATA), "Misses of data prefetches"),
    ("pmhit", 5, 1000, Rate(&["prefetch_metadata_hits"]), "Prefetch metadata hits a second"),
    ("pmmis", 5, 1000, Rate(&["prefetch_metadata_misses"]), "Prefetch metadata misses a second"),
    ("pmh%", 4, 100, Percent(&["prefetch_metadata_hits"], PREFETCH_META), "Hits of metadata prefetches"),
    ("pmm%", 4, 100, Percent(&["prefetch_metadata_misses"], PREFETCH_META), "Misses of metadata prefetches"),
    ("mhit", 4, 1000, Rate(META_HITS), "Metadata hits a second"),
    ("mmis", 4, 1000, Rate(META_MISSES), "Metadata misses a second"),
    ("mread", 5, 1000, Rate(META), "Metadata accesses a second"),
    ("mh%", 3, 100, Percent(META_HITS, META), "Hits of metadata accesses"),
    ("mm%", 3, 100, Percent(META_MISSES, META), "Misses of metadata accesses"),
    ("arcsz", 5, 1024, Gauge("size"), "Size"),
    ("size", 5, 1024, Gauge("size"), "Size"),
    ("c", 5, 1024, Gauge("c"), "Target size"),
    ("mfu", 4, 1000, Rate(&["mfu_hits"]), "Hits on the frequent a second"),
    ("mru", 4, 1000, Rate(&["mru_hits"]), "Hits on the recent a second"),
    ("mfug", 4, 1000, Rate(&["mfu_ghost_hits"]), "Hits on ghosts of the frequent a second"),
    ("mrug", 4, 1000, Rate(&["mru_ghost_hits"]), "Hits on ghosts of the recent a second"),
    ("dread", 5, 1000, Rate(DEMAND), "Demand accesses a second"),
    ("ddread", 6, 1000, Rate(DEMAND_DATA), "Demand data accesses a second"),
    ("dmread", 6, 1000, Rate(DEMAND_META), "Demand metadata accesses a second"),
    ("pread", 5, 1000, Rate(PREFETCH), "Prefetches a second"),
    ("pdread", 6, 1000, Rate(PREFETCH_DATA), "Data prefetches a second"),
    ("pmread", 6, 1000, Rate(PREFETCH_META), "Metadata prefetches a second"),
    ("l2hits", 6, 1000, Rate(&["l2_hits"]), "Hits on cache devices a second"),
    ("l2miss", 6, 1000, Rate(&["l2_misses"]), "Misses of cache devices a second"),
    ("l2read", 6, 1000, Rate(L2), "Accesses to cache devices a second"),
    ("l2hit%", 6, 100, Percent(&["l2_hits"], L2), "Hits of accesses to cache devices"),
    ("l2miss%", 7, 100, Percent(&["l2_misses"], L2), "Misses of accesses to cache devices"),
    ("l2pref", 6, 1024, Gauge("l2_prefetch_asize"), "Prefetched, on cache devices"),
    ("l2mfu", 5, 1024, Gauge("l2_mfu_asize"), "Frequent, on cache devices"),
    ("l2mru", 5, 1024, Gauge("l2_mru_asize"), "Recent, on cache devices"),
    ("l2data", 6, 1024, Gauge("l2_bufc_data_asize"), "Data on cache devices"),
    ("l2meta", 6, 1024, Gauge("l2_bufc_metadata_asize"), "Metadata on cache devices"),
    ("l2pref%", 7, 100, Share("l2_prefetch_asize", "l2_asize"), "Prefetched, of all on cache devices"),
    ("l2mfu%", 6, 100, Share("l2_mfu_asize", "l2_asize"), "Frequent, of all on cache devices"),
    ("l2mru%", 6, 100, Share("l2_mru_asize", "l2_asize"), "Recent, of all on cache devices"),
    ("l2data%", 7, 100, Share("l2_bufc_data_asize", "l2_asize"), "Data, of all on cache devices"),
    ("l2meta%", 7, 100, Share("l2_bufc_metadata_asize", "l2_asize"), "Metadata, of all on cache devices"),
    ("l2asize", 7, 1024, Gauge("l2_asize"), "On cache devices, compressed"),
    ("l2size", 6, 1024, Gauge("l2_size"), "On cache devices"),
    ("l2bytes", 7, 1024, Rate(&["l2_read_bytes"]), "Bytes read from cache devices a second"),
    ("l2wbytes", 8, 1024, Rate(&["l2_write_bytes"]), "Bytes written to cache devices a second"),
];

const DEFAULT: [&str; 10] = ["time", "read", "ddread", "ddh%", "dmread", "dmh%", "pread", "ph%", "size", "c"];
/// A heading is printed again after so many lines.
const HEADING_EVERY: u64 = 20;

const USAGE: &str = "Usage: arcstat [-hpv] [-f fields] [-s separator] [pool] [interval [count]]\n";

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage(USAGE, requested);
}

/// Runs `arcstat` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla arcstat", args, usage, run)
}

struct Options {
    columns: Vec<&'static Column>,
    separator: String,
    exact: bool,
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, mut operands) = args::parse(&args, ":f:hps:v", &[]);
    let mut query = ArcStatQuery::default();
    let mut fields: Vec<String> = DEFAULT.iter().map(|f| (*f).to_owned()).collect();
    let mut opts = Options { columns: Vec::new(), separator: "  ".to_owned(), exact: false };
    for option in options {
        match option {
            Opt::Flag('f', list) => fields = list.split(',').map(str::to_owned).collect(),
            Opt::Flag('s', text) => opts.separator = text,
            Opt::Flag('p', _) => opts.exact = true,
            Opt::Flag('h', _) => {
                usage(cx, true);
                return Ok(0);
            }
            Opt::Flag('v', _) => {
                cx.out.put("Field definitions are as follows:\n");
                COLUMNS.iter().for_each(|(name, .., what)| cx.out.line(format!("{name:>11} : {what}")));
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    for field in &fields {
        match COLUMNS.iter().find(|(name, ..)| name == field) {
            Some(column) => opts.columns.push(column),
            None => {
                cx.err(format!(
                    "zilla arcstat: there is no column '{field}' ('arcstat -v' lists those there are)"
                ));
                return Ok(2);
            }
        }
    }
    let mut interval = Interval::take(cx, &mut operands)?;
    if operands.len() > 1 {
        return cx.bad_usage("too many arguments");
    }
    query.name = operands.pop();
    let seconds = if interval.every > 0.0 { interval.every } else { 1.0 };
    let mut before = Counts::new();
    for line in 0u64.. {
        let Some(stats) = cx.ask("cannot read statistics", &query)? else { return Ok(1) };
        let mut now = Counts::new();
        for (name, n) in stats.into_iter().flat_map(|s| s.counts) {
            *now.entry(name).or_default() += n;
        }
        if line.is_multiple_of(HEADING_EVERY) {
            let heading: Vec<String> =
                opts.columns.iter().map(|(name, width, ..)| format!("{name:>width$}")).collect();
            cx.out.line(heading.join(&opts.separator));
        }
        cx.out.line(print(&opts, &now, &before, seconds));
        before = now;
        if !interval.next(cx) {
            break;
        }
    }
    Ok(0)
}

/// One line: what was added since the last one; in the first, everything.
fn print(opts: &Options, now: &Counts, before: &Counts, seconds: f64) -> String {
    let total =
        |names: Names, of: &Counts| -> u64 { names.iter().map(|n| of.get(*n).copied().unwrap_or(0)).sum() };
    let added = |names: Names| total(names, now).saturating_sub(total(names, before)) as f64;
    let gauge = |name: &str| now.get(name).copied().unwrap_or(0) as f64;
    let part = |a: f64, b: f64| if b > 0.0 { 100.0 * a / b } else { 0.0 };
    let cells = opts.columns.iter().map(|(_, width, scale, value, _)| {
        let n = match value {
            Time => return format!("{:>width$}", time::of_day(time::now())),
            Rate(names) => added(names) / seconds,
            Percent(some, all) => part(added(some), added(all)),
            Gauge(name) => gauge(name),
            Share(some, all) => part(gauge(some), gauge(all)),
        };
        if opts.exact { format!("{n:>width$.0}") } else { short(n, *width, *scale) }
    });
    cells.collect::<Vec<String>>().join(&opts.separator)
}

/// A number in so many characters, with one decimal where there is room.
fn short(mut n: f64, width: usize, scale: u32) -> String {
    const SUFFIXES: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let mut index = 0;
    while scale != 100 && n > f64::from(scale) && index + 1 < SUFFIXES.len() {
        n /= f64::from(scale);
        index += 1;
    }
    let width = width - usize::from(index > 0);
    let whole = format!("{n:.0}").len();
    let decimals = usize::from(n.fract() != 0.0 && width >= whole + 2);
    format!("{n:>width$.decimals$}{}", SUFFIXES.get(index).unwrap_or(&""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_openzfs_s() {
        // As arcstat's own rules give them.
        assert_eq!(short(0.0, 4, 1000), "   0");
        assert_eq!(short(999.0, 4, 1000), " 999");
        assert_eq!(short(1500.0, 4, 1000), "1.5K");
        assert_eq!(short(33.3, 4, 100), "33.3");
        assert_eq!(short(100.0, 3, 100), "100");
        assert_eq!(short(66.6, 3, 100), " 67");
        assert_eq!(short(1.5 * 1024.0 * 1024.0, 5, 1024), " 1.5M");
    }

    #[test]
    fn a_line_says_what_was_added() {
        let columns = ["hits", "hit%", "l2hits", "l2size", "l2data%"];
        let find = |n: &&str| COLUMNS.iter().find(|(name, ..)| name == n).unwrap();
        let opts =
            Options { columns: columns.iter().map(find).collect(), separator: " ".into(), exact: true };
        let counts = |list: &[(&str, u64)]| list.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        let before: Counts = counts(&[("hits", 100), ("misses", 10), ("l2_hits", 1)]);
        let now: Counts = counts(&[
            ("hits", 300),
            ("misses", 210),
            ("l2_hits", 21),
            ("l2_size", 77),
            ("l2_asize", 50),
            ("l2_bufc_data_asize", 25),
        ]);
        let words: Vec<String> =
            print(&opts, &now, &before, 2.0).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["100", "50", "10", "77", "50"]);
    }
}
