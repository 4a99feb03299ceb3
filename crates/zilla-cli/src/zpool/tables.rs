//! `zpool ddtprune` and `prefetch`: what is done to a pool's tables of shared blocks.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use zilla_control::types::{DedupPrefetch, DedupPrune, PoolQuery};

const DAY: u64 = 24 * 3600;

pub fn prune(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "d:p:", &[]);
    let (mut older, mut percent) = (None, None);
    for option in options {
        match option {
            Opt::Flag('d', _) if percent.is_some() => {
                return cx.bad_usage("-d cannot be combined with -p option");
            }
            Opt::Flag('p', _) if older.is_some() => {
                return cx.bad_usage("-p cannot be combined with -d option");
            }
            Opt::Flag('d', text) => match args::number(text.trim_start()).filter(|n| *n > 0) {
                Some(days) => older = Some(days.saturating_mul(DAY)),
                None => return cx.bad_usage("invalid days value"),
            },
            Opt::Flag('p', text) => match args::number(text.trim_start()).filter(|n| (1..=100).contains(n)) {
                Some(n) => percent = Some(n),
                None => return cx.bad_usage("invalid percentage value"),
            },
            other => return cx.bad_option(other),
        }
    }
    if older.or(percent).is_none() {
        return cx.bad_usage("missing amount option (-d|-p <value>)");
    }
    let name = cx.only(&operands, "missing pool argument")?;
    let (pools, _) = cx.pools(&operands, PoolQuery::default())?;
    if pools.is_empty() {
        return Ok(u8::MAX);
    }
    let request = DedupPrune { name: name.clone(), older, percent };
    if cx.ask(&format!("cannot prune dedup table on '{name}'"), &request)?.is_none() {
        return Ok(u8::MAX);
    }
    cx.log_history(name)?;
    Ok(0)
}

pub fn prefetch(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "t:", &[]);
    let mut kind = None;
    for option in options {
        match option {
            Opt::Flag('t', text) => kind = Some(text),
            other => return cx.bad_option(other),
        }
    }
    let name = cx.only(&operands, "missing pool name argument")?;
    let (pools, _) = cx.pools(&operands, PoolQuery::default())?;
    if pools.is_empty() {
        return Ok(1);
    }
    if kind.is_some_and(|k| k != "ddt") {
        return cx.bad_usage("unsupported prefetch type");
    }
    let request = DedupPrefetch { name: name.clone() };
    if cx.ask(&format!("cannot prefetch ddt in '{name}'"), &request)?.is_none() {
        return Ok(u8::MAX);
    }
    Ok(0)
}
