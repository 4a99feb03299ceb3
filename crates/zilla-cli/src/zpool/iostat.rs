//! `zpool iostat`.

mod print;

use super::scripts::{self, Columns};
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::interval::{Interval, Stamp};
use crate::fmt::vdev::{self, NameFlags};
use std::collections::HashMap;
use std::io::IsTerminal;
use zilla_control::types::{PoolInfo, PoolQuery, VdevNode};

pub use print::{Kind, Options, Printer};

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, mut operands) = args::parse(&args, "c:gLPT:vyhplqrwnH", &[]);
    let mut opts = Options { names: NameFlags::from_env(), ..Options::default() };
    let (mut latency, mut queues, mut l_histo, mut rq_histo) = (false, false, false, false);
    let (mut skip_first, mut headers_once, mut stamp, mut script_names) = (false, false, None, None);
    for option in options {
        match option {
            Opt::Flag('c', names) => {
                scripts::check(cx, script_names.as_ref())?;
                (script_names, opts.verbose) = (Some(names), true);
            }
            Opt::Unknown('c', _) => {
                scripts::list(cx, "iostat")?;
                return Ok(0);
            }
            Opt::Flag('g', _) => opts.names.guid = true,
            Opt::Flag('L', _) => opts.names.follow_links = true,
            Opt::Flag('P', _) => opts.names.path = true,
            Opt::Flag('T', text) => stamp = Some(Stamp::parse(cx, &text)?),
            Opt::Flag('v', _) => opts.verbose = true,
            Opt::Flag('p', _) => opts.literal = true,
            Opt::Flag('l', _) => latency = true,
            Opt::Flag('q', _) => queues = true,
            Opt::Flag('H', _) => opts.scripted = true,
            Opt::Flag('w', _) => l_histo = true,
            Opt::Flag('r', _) => rq_histo = true,
            Opt::Flag('y', _) => skip_first = true,
            Opt::Flag('n', _) => headers_once = true,
            Opt::Flag('h', _) => return cx.print_usage(),
            other => return cx.bad_option(other),
        }
    }
    let query = || PoolQuery {
        extended_stats: latency || queues || l_histo || rq_histo,
        properties: false,
        ..PoolQuery::default()
    };
    let everything = cx.ask("cannot list pools", &query())?.ok_or(Exit(1))?;
    let mut interval = if opts.names.guid {
        let guids = |word: &String| everything.iter().any(|p| named(p, word, opts.names));
        let numbers = operands.iter().rev().take(2).take_while(|w| !guids(w)).count();
        let mut tail = operands.split_off(operands.len() - numbers);
        let interval = Interval::take(cx, &mut tail)?;
        operands.extend(tail);
        interval
    } else {
        Interval::take(cx, &mut operands)?
    };
    let wanted = choose(cx, &everything, operands, &mut opts)?;
    if everything.is_empty() && interval.every == 0.0 {
        cx.err("no pools available");
        return Ok(1);
    }
    if (l_histo || rq_histo) && (latency || queues || script_names.is_some()) {
        return cx.bad_usage("[-r|-w] isn't allowed with [-c|-l|-q]");
    }
    if l_histo && rq_histo {
        return cx.bad_usage("Only one of [-r|-w] can be passed at a time");
    }
    opts.kinds = match (l_histo, rq_histo) {
        (true, _) => vec![Kind::LatencyHistogram],
        (_, true) => vec![Kind::SizeHistogram],
        _ => {
            let mut kinds = vec![Kind::Default];
            kinds.extend(latency.then_some(Kind::Latency));
            kinds.extend(queues.then_some(Kind::Queues));
            kinds
        }
    };
    let verbose = opts.verbose;
    // Named vdevs are looked for everywhere, which is what verbose means.
    opts.verbose |= !opts.vdevs.is_empty();
    let height = terminal_height();
    headers_once |= height.is_none();
    let height = height.unwrap_or(24).max(1);
    let mut old: HashMap<u64, PoolInfo> = HashMap::new();
    let mut round = 0u64;
    loop {
        let mut pools = cx.ask("cannot list pools", &query())?.ok_or(Exit(1))?;
        pools.retain(|p| wanted.as_ref().is_none_or(|w| w.contains(&p.name)));
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        round += 1;
        let skip = skip_first && round == 1;
        if pools.is_empty() {
            cx.err("no pools available");
        } else {
            let chosen =
                |v: &VdevNode| opts.vdevs.is_empty() || opts.vdevs.contains(&vdev::name(v, opts.names, true));
            let scripts = script_names.as_ref().filter(|_| !skip);
            let scripts = scripts.map(|names| Columns::ask(names, &pools, &chosen)).unwrap_or_default();
            let printer = Printer::new(&opts, &pools, columns(), scripts);
            if let Some(stamp) = stamp {
                cx.out.line(stamp.now());
            }
            let again = !headers_once && round.is_multiple_of(height);
            if ((round == 1 && !skip) || skip != verbose || again) && !opts.histogram() && !opts.scripted {
                cx.out.put(printer.header());
            }
            if !skip {
                for pool in &pools {
                    let before = old.get(&pool.guid).filter(|_| round > 1);
                    cx.out.put(printer.pool(pool, before));
                }
                if printer.closes(pools.len(), verbose) {
                    cx.out.put(printer.separator());
                    cx.out.line("");
                }
            }
        }
        old = pools.into_iter().map(|p| (p.guid, p)).collect();
        if skip && interval.every != 0.0 {
            // A skipped round does not count.
            let mut endless = Interval { count: 0, ..interval };
            endless.next(cx);
            continue;
        }
        if !interval.next(cx) {
            return Ok(0);
        }
    }
}

/// The pools asked for (None: all); vdevs go to the options.
fn choose(
    cx: &mut Cx,
    pools: &[PoolInfo],
    operands: Vec<String>,
    opts: &mut Options,
) -> Result<Option<Vec<String>>, Exit> {
    let is_pool = |word: &String| pools.iter().any(|p| p.name == *word);
    if operands.is_empty() {
        return Ok(None);
    }
    if operands.iter().all(is_pool) {
        return Ok(Some(operands));
    }
    if operands.iter().all(|w| pools.iter().any(|p| named(p, w, opts.names))) {
        opts.vdevs = operands;
        return Ok(None);
    }
    let (first, rest) = match operands.split_first() {
        Some((first, rest)) if is_pool(first) => (first.clone(), rest.to_vec()),
        _ => {
            cx.err("Unable to parse pools/vdevs list.\n");
            return Err(Exit(1));
        }
    };
    let pool = pools.iter().find(|p| p.name == first);
    let unknown: Vec<&String> =
        rest.iter().filter(|w| !pool.is_some_and(|p| named(p, w, opts.names))).collect();
    if unknown.is_empty() {
        opts.vdevs = rest;
        return Ok(Some(vec![first]));
    }
    cx.err(format!("Expected either a list of pools, or list of vdevs in \"{first}\", but got:"));
    for word in unknown {
        cx.err(format!("\t{word}"));
    }
    cx.err("");
    cx.print_usage()
}

fn named(pool: &PoolInfo, word: &str, flags: NameFlags) -> bool {
    fn below(vdev: &VdevNode, word: &str, flags: NameFlags) -> bool {
        vdev::name(vdev, flags, true) == word || vdev.children.iter().any(|c| below(c, word, flags))
    }
    let lists = pool.root.children.iter().chain(&pool.l2cache).chain(&pool.spares);
    lists.into_iter().any(|v| below(v, word, flags))
}

/// Lines of the terminal, if the output is one.
fn terminal_height() -> Option<u64> {
    let size = terminal_size()?;
    Some(u64::from(size.0))
}

/// Columns of the terminal; a file has room for anything.
fn columns() -> usize {
    terminal_size().map_or(999, |s| usize::from(s.1))
}

fn terminal_size() -> Option<(u16, u16)> {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok()?;
    Some((size.ws_row, size.ws_col))
}
