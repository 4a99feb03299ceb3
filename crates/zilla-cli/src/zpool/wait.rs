//! `zpool wait`: until what goes on in a pool is over.
//!
//! The daemon holds a request until nothing asked for is in progress or a while has passed, so
//! waiting costs nothing and ends at once; the command asks again, and prints how much is left
//! where an interval is given.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::interval::{Interval, Stamp};
use std::time::{Duration, Instant};
use zilla_control::props::nicenum::nicenum;
use zilla_control::types::{Activity, PoolQuery, PoolWait, PoolWaitReply};

const ACTIVITIES: &[(Activity, &str, &str)] = &[
    (Activity::Discard, "discard", "DISCARD"),
    (Activity::Free, "free", "FREE"),
    (Activity::Initialize, "initialize", "INITIALIZE"),
    (Activity::Replace, "replace", "REPLACE"),
    (Activity::Remove, "remove", "REMOVE"),
    (Activity::Resilver, "resilver", "RESILVER"),
    (Activity::Scrub, "scrub", "SCRUB"),
    (Activity::Trim, "trim", "TRIM"),
    (Activity::RaidzExpand, "raidz_expand", "RAIDZ_EXPAND"),
];

struct Options {
    scripted: bool,
    exact: bool,
    stamp: Option<Stamp>,
    enabled: Vec<Activity>,
}

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, mut operands) = args::parse(&args, "HpT:t:", &[]);
    let mut opts = Options {
        scripted: false,
        exact: false,
        stamp: None,
        enabled: ACTIVITIES.iter().map(|a| a.0).collect(),
    };
    for option in options {
        match option {
            Opt::Flag('H', _) => opts.scripted = true,
            Opt::Flag('p', _) => opts.exact = true,
            Opt::Flag('T', text) => opts.stamp = Some(Stamp::parse(cx, &text)?),
            Opt::Flag('t', list) => {
                opts.enabled.clear();
                for word in list.split(',') {
                    match ACTIVITIES.iter().find(|a| a.1 == word) {
                        Some(activity) => opts.enabled.push(activity.0),
                        None => return cx.bad_usage(format!("invalid activity '{word}'")),
                    }
                }
            }
            other => return cx.bad_option(other),
        }
    }
    let interval = Interval::take(cx, &mut operands)?;
    if interval.count != 0 || operands.len() > 1 {
        return cx.bad_usage("too many arguments");
    }
    let Some(name) = operands.first().cloned() else {
        return cx.bad_usage("missing 'pool' argument");
    };
    let (pools, _) = cx.pools(&operands, PoolQuery::default())?;
    if pools.is_empty() {
        return Err(Exit(1));
    }
    if interval.every == 0.0 {
        until_done(cx, &name, &opts.enabled)?;
        return Ok(0);
    }
    let every = Duration::try_from_secs_f64(interval.every).unwrap_or(Duration::from_secs(1));
    let mut row = 0u64;
    loop {
        let begin = Instant::now();
        let now = ask(cx, &name, &opts.enabled, 0)?;
        print_row(cx, &opts, &now, row == 0);
        if now.done {
            return Ok(0);
        }
        row += 1;
        // The rest of the interval is spent waiting for the end, which so is noticed at once.
        let rest = every.saturating_sub(begin.elapsed());
        let milliseconds = u64::try_from(rest.as_millis()).unwrap_or(u64::MAX);
        if ask(cx, &name, &opts.enabled, milliseconds)?.done {
            return Ok(0);
        }
    }
}

/// Returns when none of the activities is in progress.
pub fn until_done(cx: &mut Cx, name: &str, activities: &[Activity]) -> Result<(), Exit> {
    while !ask(cx, name, activities, 30_000)?.done {}
    Ok(())
}

/// The same of an initialize or trim of some devices.
pub fn until_done_on(cx: &mut Cx, name: &str, activity: Activity, vdevs: &[u64]) -> Result<(), Exit> {
    while !ask_on(cx, name, &[activity], vdevs, 30_000)?.done {}
    Ok(())
}

fn ask(cx: &mut Cx, name: &str, activities: &[Activity], timeout_ms: u64) -> Result<PoolWaitReply, Exit> {
    ask_on(cx, name, activities, &[], timeout_ms)
}

fn ask_on(
    cx: &mut Cx,
    name: &str,
    activities: &[Activity],
    vdevs: &[u64],
    timeout_ms: u64,
) -> Result<PoolWaitReply, Exit> {
    let request = PoolWait {
        name: name.to_owned(),
        activities: activities.to_vec(),
        vdevs: vdevs.to_vec(),
        timeout_ms: timeout_ms.min(30_000),
    };
    cx.ask(&format!("error waiting in pool '{name}'"), &request)?.ok_or(Exit(1))
}

fn print_row(cx: &mut Cx, opts: &Options, reply: &PoolWaitReply, header: bool) {
    let enabled = || ACTIVITIES.iter().filter(|a| opts.enabled.contains(&a.0));
    if let Some(stamp) = opts.stamp {
        cx.out.line(stamp.now());
    }
    if header && !opts.scripted {
        let titles: String = enabled().map(|a| format!("{:>1$}", a.2, width(a.2))).collect();
        cx.out.line(titles);
    }
    let mut line = String::new();
    for (i, activity) in enabled().enumerate() {
        let left = reply.remaining.get(&activity.0).copied().unwrap_or(0);
        let text = if opts.exact { left.to_string() } else { nicenum(left) };
        if opts.scripted {
            line.push_str(if i == 0 { "" } else { "\t" });
            line.push_str(&text);
        } else {
            line.push_str(&format!(" {:>1$}", text, width(activity.2) - 1));
        }
    }
    cx.out.line(line);
    cx.out.flush();
}

fn width(title: &str) -> usize {
    title.len().max(6) + 2
}
