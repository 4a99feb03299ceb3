//! `zilla zilstat`: what intent logs do, in the columns of OpenZFS's `zilstat` and some of ours.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::interval::Interval;
use std::collections::BTreeMap;
use zilla_control::props::nicenum::nicenum;
use zilla_control::types::{LogStat, LogStatQuery};

/// Heading, width, and which counters it is the sum of.
const COLUMNS: &[(&str, usize, &[&str])] = &[
    ("cc", 6, &["commits"]),
    ("cidle", 6, &["commits_idle"]),
    ("ctxg", 6, &["commits_txg"]),
    ("cec", 5, &["commits_failed"]),
    ("trains", 6, &["trains"]),
    ("ic", 6, &["records"]),
    ("idc", 6, &["copied"]),
    ("idb", 6, &["copied_bytes"]),
    ("imnc", 6, &["normal_blocks"]),
    ("imnw", 6, &["normal_written"]),
    ("imsc", 6, &["slog_blocks"]),
    ("imsw", 6, &["slog_written"]),
];

const USAGE: &str = "usage:\n\tzilstat [-dHplv] [pool|dataset] [interval [count]]\n";

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage(USAGE, requested);
}

/// Runs `zilstat` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla zilstat", args, usage, run)
}

struct Options {
    scripted: bool,
    exact: bool,
    latencies: bool,
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, mut operands) = args::parse(&args, "dHplvh", &[]);
    let mut query = LogStatQuery::default();
    let mut opts = Options { scripted: false, exact: false, latencies: false };
    for option in options {
        match option {
            Opt::Flag('d', _) => query.datasets = true,
            Opt::Flag('H', _) => opts.scripted = true,
            Opt::Flag('p', _) => opts.exact = true,
            Opt::Flag('l', _) => opts.latencies = true,
            Opt::Flag('v' | 'h', _) => {
                usage(cx, true);
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    let mut interval = Interval::take(cx, &mut operands)?;
    if operands.len() > 1 {
        return cx.bad_usage("too many arguments");
    }
    query.name = operands.pop();
    let mut before: BTreeMap<String, LogStat> = BTreeMap::new();
    let mut first = true;
    loop {
        let Some(stats) = cx.ask("cannot read statistics", &query)? else { return Ok(1) };
        if first && !opts.scripted {
            let mut line = format!("{:<16}", "name");
            COLUMNS.iter().for_each(|(name, width, _)| line += &format!("  {name:>width$}"));
            cx.out.line(line);
        }
        first = false;
        for now in stats {
            print(cx, &opts, &now, before.get(&now.name));
            before.insert(now.name.clone(), now);
        }
        if !interval.next(cx) {
            return Ok(0);
        }
    }
}

/// Prints what was added since the last time; the first time, everything.
fn print(cx: &mut Cx, opts: &Options, now: &LogStat, before: Option<&LogStat>) {
    let value = |name: &str| {
        let get = |s: &LogStat| s.counts.get(name).copied().unwrap_or(0);
        get(now).saturating_sub(before.map_or(0, get))
    };
    let mut line = if opts.scripted { now.name.clone() } else { format!("{:<16}", now.name) };
    for (_, width, of) in COLUMNS {
        let sum: u64 = of.iter().map(|n| value(n)).sum();
        let text = if opts.exact { sum.to_string() } else { nicenum(sum) };
        line += &if opts.scripted { format!("\t{text}") } else { format!("  {text:>width$}") };
    }
    cx.out.line(line);
    if !opts.latencies {
        return;
    }
    for (stage, buckets) in &now.latencies {
        let old = before.and_then(|b| b.latencies.get(stage));
        for (i, n) in buckets.iter().enumerate() {
            let n = n.saturating_sub(old.and_then(|o| o.get(i)).copied().unwrap_or(0));
            if n > 0 {
                cx.out.line(format!("    {stage:<8} {:>14} ns  {n}", 1u64 << i));
            }
        }
    }
}
