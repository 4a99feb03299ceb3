//! `zpool import`.

mod show;

use super::create::add_pool_prop;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::time;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use zilla_control::types::{
    ImportCandidate, ImportReply, ImportSearch, ImportSource, MmpState, PoolHealth, PoolImport, PoolInfo,
    PoolLabelState, PoolQuery, Rewound, VdevNode,
};
use zilla_control::{ApiError, ErrorCode};

pub use show::show;

#[derive(Default)]
struct Options {
    all: bool,
    destroyed: bool,
    rewind: bool,
    dry_run: bool,
    extreme: bool,
    load_keys: bool,
    request: PoolImport,
}

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (mut opts, operands) = options(cx, &args)?;
    let cached = opts.request.source.cachefile.is_some();
    let source = opts.request.source.clone();
    let search = ImportSearch { source, destroyed: opts.destroyed };
    let found = match cx.call(&search)? {
        Ok(found) => Some(found),
        Err(e) if e.code == ErrorCode::BadCache => {
            cx.err(e.description());
            None
        }
        Err(e) => {
            cx.refused("cannot discover pools", &e);
            return Ok(1);
        }
    };
    let taken = match operands.first() {
        None => false,
        Some(wanted) => {
            let pools = cx.ask("cannot list pools", &PoolQuery::default())?.ok_or(Exit(1))?;
            // One whose devices were missing is to be opened.
            let open = pools.iter().filter(|p| p.health != PoolHealth::Unavail);
            open.into_iter().any(|p| p.name == *wanted || p.guid.to_string() == *wanted)
        }
    };
    if let Some(wanted) = operands.first() {
        let same_name = operands.get(1).is_none_or(|new| new == wanted);
        if taken && found.is_some() && same_name {
            cx.err(format!("cannot import '{wanted}': a pool with that name already exists"));
            cx.err("use the form 'zpool import <pool | id> <newpool>' to give it a new name");
            return Ok(1);
        }
        if taken && found.is_none() {
            cx.err(format!("cannot import '{wanted}': a pool with that name is already created/imported,"));
            cx.err("and no additional pools with that name were found");
            return Ok(1);
        }
        if found.is_none() {
            cx.err(format!("cannot import '{wanted}': no such pool available"));
        }
    }
    let Some(found) = found else { return Ok(1) };
    let found: Vec<ImportCandidate> = found
        .into_iter()
        .filter(|c| (c.pool.label_state == PoolLabelState::Destroyed) == opts.destroyed)
        .collect();
    let code = match operands.first() {
        Some(wanted) => one(cx, &opts, &found, wanted, operands.get(1))?,
        None => every(cx, &opts, &found)?,
    };
    if code != 0 && cached {
        // What the cache file says is out of date: look at the devices themselves.
        cx.out.line("cachefile import failed, retrying");
        opts.request.source.scan = true;
        let search = ImportSearch { source: opts.request.source.clone(), destroyed: opts.destroyed };
        let found = cx.ask("cannot discover pools", &search)?.ok_or(Exit(1))?;
        return match operands.first() {
            Some(wanted) => one(cx, &opts, &found, wanted, operands.get(1)),
            None => every(cx, &opts, &found),
        };
    }
    Ok(code)
}

fn options(cx: &mut Cx, args: &[String]) -> Result<(Options, Vec<String>), Exit> {
    const LONG: &[args::Long] = &[("rewind-to-checkpoint", false, '\u{1}')];
    let (options, operands) = args::parse(args, ":aCc:d:DEfFlmnNo:R:stT:VX", LONG);
    let mut opts = Options::default();
    let mut props = BTreeMap::new();
    for option in options {
        let request = &mut opts.request;
        match option {
            Opt::Flag('a', _) => opts.all = true,
            Opt::Flag('c', file) => request.source.cachefile = Some(absolute(&file)),
            Opt::Flag('d', dir) => request.source.dirs.push(absolute(&dir)),
            Opt::Flag('D', _) => opts.destroyed = true,
            Opt::Flag('f', _) => request.force = true,
            Opt::Flag('F', _) => opts.rewind = true,
            Opt::Flag('l', _) => opts.load_keys = true,
            Opt::Flag('m', _) => request.missing_log = true,
            Opt::Flag('n', _) => opts.dry_run = true,
            Opt::Flag('N', _) => request.no_mount = true,
            Opt::Flag('o', text) => match text.split_once('=') {
                Some((name, value)) => add_pool_prop(cx, &mut props, name, value)?,
                None => request.mount_options.extend(text.split(',').map(str::to_owned)),
            },
            Opt::Flag('R', root) => {
                add_pool_prop(cx, &mut props, "altroot", &root)?;
                props.entry("cachefile".to_owned()).or_insert_with(|| "none".to_owned());
            }
            Opt::Flag('s', _) => request.source.scan = true,
            Opt::Flag('t', _) => {
                request.temporary_name = true;
                props.entry("cachefile".to_owned()).or_insert_with(|| "none".to_owned());
            }
            Opt::Flag('T', text) => match text.parse() {
                Ok(txg) => (opts.rewind, opts.extreme, request.rewind_txg) = (true, true, Some(txg)),
                Err(_) => return cx.bad_usage("invalid txg value"),
            },
            Opt::Flag('X', _) => opts.extreme = true,
            Opt::Flag('\u{1}', _) => request.rewind_to_checkpoint = true,
            Opt::Flag(letter @ ('C' | 'E' | 'V'), _) => {
                cx.err(format!("zpool: 'import -{letter}' is not supported by zilla yet"));
                return Err(Exit(2));
            }
            other => return cx.bad_option(other),
        }
    }
    let source = &opts.request.source;
    if source.cachefile.is_some() && !source.dirs.is_empty() {
        return cx.bad_usage("-c is incompatible with -d");
    }
    if source.cachefile.is_some() && source.scan {
        return cx.bad_usage("-c is incompatible with -s");
    }
    if opts.load_keys && opts.request.no_mount {
        return cx.bad_usage("-l is incompatible with -N");
    }
    if opts.load_keys && !opts.all && operands.is_empty() {
        return cx.bad_usage("-l is only meaningful during an import");
    }
    if (opts.dry_run || opts.extreme) && !opts.rewind {
        return cx.bad_usage("-n or -X only meaningful with -F");
    }
    if (opts.all && !operands.is_empty()) || operands.len() > 2 {
        return cx.bad_usage("too many arguments");
    }
    if source.dirs.is_empty()
        && let Ok(path) = std::env::var("ZPOOL_IMPORT_PATH")
    {
        opts.request.source.dirs = path.split(':').filter(|d| !d.is_empty()).map(absolute).collect();
    }
    let request = &mut opts.request;
    request.altroot = props.remove("altroot");
    request.properties = props;
    request.destroyed = opts.destroyed;
    request.rewind = opts.rewind;
    request.rewind_dry_run = opts.dry_run;
    request.rewind_extreme = opts.extreme;
    Ok((opts, operands))
}

fn absolute(path: impl AsRef<str>) -> String {
    let path = path.as_ref();
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |p| p.to_string_lossy().into_owned())
}

/// Without a name: list, or import all.
fn every(cx: &mut Cx, opts: &Options, found: &[ImportCandidate]) -> Run {
    if found.is_empty() {
        cx.err("no pools available to import");
        return Ok(0);
    }
    if opts.all {
        return all(cx, opts, found);
    }
    for (i, candidate) in found.iter().enumerate() {
        if i > 0 {
            cx.out.line("");
        }
        cx.out.put(show(candidate));
    }
    Ok(0)
}

/// Imports several pools at the same time, since one may have to be watched for minutes. Of those
/// of one name the first is tried first.
fn all(cx: &mut Cx, opts: &Options, found: &[ImportCandidate]) -> Run {
    let mut code = 0;
    let mut left: Vec<&ImportCandidate> = found.iter().collect();
    while !left.is_empty() {
        let mut names = BTreeSet::new();
        let (now, later): (Vec<_>, Vec<_>) = left.into_iter().partition(|c| names.insert(&c.pool.name));
        left = later;
        let (wrong, right): (Vec<_>, Vec<_>) =
            now.into_iter().map(|c| (c, refusal(c, opts))).partition(|(_, why)| why.is_some());
        for why in wrong.into_iter().filter_map(|(_, why)| why) {
            cx.err(why);
            code = 1;
        }
        let requests: Vec<PoolImport> = right.iter().map(|(c, _)| request(c, opts, None)).collect();
        for ((candidate, _), answer) in right.iter().zip(cx.call_all(&requests)?) {
            code |= imported(cx, opts, candidate, None, answer)?;
        }
    }
    Ok(code)
}

/// The pool of that name or guid.
fn one(
    cx: &mut Cx,
    opts: &Options,
    found: &[ImportCandidate],
    wanted: &str,
    new_name: Option<&String>,
) -> Run {
    let guid: Option<u64> = wanted.parse().ok();
    let mut matching = found
        .iter()
        .filter(|c| if let Some(guid) = guid { c.pool.guid == guid } else { c.pool.name == wanted });
    let Some(candidate) = matching.next() else {
        cx.err(format!("cannot import '{wanted}': no such pool available"));
        return Ok(1);
    };
    if matching.next().is_some() && guid.is_none() {
        cx.err(format!("cannot import '{wanted}': more than one matching pool"));
        cx.err("import by numeric ID instead");
        return Ok(1);
    }
    import(cx, opts, candidate, new_name)
}

fn import(cx: &mut Cx, opts: &Options, candidate: &ImportCandidate, new_name: Option<&String>) -> Run {
    if let Some(why) = refusal(candidate, opts) {
        cx.err(why);
        return Ok(1);
    }
    let answer = cx.call(&request(candidate, opts, new_name))?;
    imported(cx, opts, candidate, new_name, answer)
}

/// Why a pool is not even tried.
fn refusal(candidate: &ImportCandidate, opts: &Options) -> Option<String> {
    let pool = &candidate.pool;
    if !((1..=28).contains(&pool.version) || pool.version == zilla_control::status::SPA_VERSION) {
        let name = &pool.name;
        return Some(format!("cannot import '{name}': pool is formatted using an unsupported ZFS version"));
    }
    (force_required(candidate) && !opts.request.force).then(|| foreign(candidate))
}

fn request(candidate: &ImportCandidate, opts: &Options, new_name: Option<&String>) -> PoolImport {
    let guid = candidate.pool.guid;
    let mut request = PoolImport { guid, new_name: new_name.cloned(), ..opts.request.clone() };
    // What is encrypted can be mounted when its keys are there.
    request.no_mount |= opts.load_keys;
    request
}

/// Tells how an import went, and does what the daemon leaves to the command.
fn imported(
    cx: &mut Cx,
    opts: &Options,
    candidate: &ImportCandidate,
    new_name: Option<&String>,
    answer: Result<ImportReply, ApiError>,
) -> Run {
    let name = candidate.pool.name.as_str();
    let action = match new_name {
        Some(new) => format!("cannot import '{name}' as '{new}'"),
        None => format!("cannot import '{name}'"),
    };
    let reply = match answer {
        Ok(reply) => reply,
        Err(mut e) => {
            // Log devices that are missing are told before.
            let lines = std::mem::take(&mut e.details);
            if !lines.is_empty() {
                lines.iter().for_each(|line| cx.out.line(line));
                cx.out.line("");
            }
            let of_words =
                matches!(e.code, ErrorCode::BadProp | ErrorCode::PropReadonly | ErrorCode::BadPath);
            match new_name {
                _ if of_words => cx.refused(&format!("cannot import pool '{name}'"), &e),
                Some(new) if e.code == ErrorCode::InvalidName => {
                    cx.refused(&format!("cannot import '{new}'"), &e);
                }
                _ => cx.refused(&action, &e),
            }
            return Ok(1);
        }
    };
    if let Some(rewound) = &reply.rewound {
        tell_rewound(cx, name, rewound, opts.request.rewind_dry_run);
    }
    if opts.request.rewind_dry_run {
        return Ok(0);
    }
    let mut code = 0;
    if opts.load_keys {
        code = crate::zfs::load_and_mount(cx, &reply.name, &opts.request.mount_options)?;
    }
    for error in &reply.mount_errors {
        let subject = error.subject.as_deref().unwrap_or(&reply.name);
        let verb = if error.code == ErrorCode::ShareFailed { "share" } else { "mount" };
        cx.refused(&format!("cannot {verb} '{subject}'"), error);
    }
    if !reply.mount_errors.is_empty() {
        cx.err("Import was successful, but unable to mount some datasets");
    }
    let readonly = opts.request.properties.get("readonly").is_some_and(|v| v == "on");
    if !readonly {
        cx.log_history(&reply.name)?;
    }
    Ok(code)
}

/// What `zpool clear` does to a pool that could not be opened: tries it again, on the devices that
/// it is known to have, as an import does.
pub(super) fn open_lost(cx: &mut Cx, action: &str, pool: &PoolInfo, back: PoolImport) -> Run {
    let dry_run = back.rewind_dry_run;
    // Some may be away still, which the pool may do without.
    let dirs: Vec<String> = paths(&pool.root).into_iter().filter(|p| Path::new(p).exists()).collect();
    if dirs.is_empty() {
        if !dry_run {
            cx.err(format!("{action}: one or more devices is currently unavailable"));
        }
        return Ok(u8::from(!dry_run));
    }
    let source = ImportSource { dirs, ..ImportSource::default() };
    let request = PoolImport { guid: pool.guid, source, ..back };
    let reply = match cx.call(&request)? {
        Ok(reply) => reply,
        // OpenZFS says nothing of what would not help.
        Err(e) if dry_run && e.code != ErrorCode::Perm => return Ok(0),
        Err(e) => {
            cx.refused(action, &e);
            return Ok(1);
        }
    };
    if let Some(rewound) = &reply.rewound {
        tell_rewound(cx, &pool.name, rewound, dry_run);
    }
    if dry_run {
        return Ok(0);
    }
    for error in &reply.mount_errors {
        let subject = error.subject.as_deref().unwrap_or(&reply.name);
        cx.refused(&format!("cannot mount '{subject}'"), error);
    }
    cx.log_history(&reply.name)?;
    Ok(0)
}

/// Where a vdev's devices are.
fn paths(vdev: &VdevNode) -> Vec<String> {
    let below = vdev.children.iter().flat_map(paths);
    vdev.path.iter().cloned().chain(below).collect()
}

/// What `-F` gave up, or would.
fn tell_rewound(cx: &mut Cx, name: &str, rewound: &Rewound, dry_run: bool) {
    let time = time::ctime(rewound.timestamp);
    let time = time.trim_end();
    cx.out.line(match dry_run {
        true => format!("Would be able to return {name} to its state as of {time}."),
        false => format!("Pool {name} returned to its state as of {time}."),
    });
    let verb = if dry_run { "Would discard" } else { "Discarded" };
    match rewound.lost_seconds {
        0 => {}
        n if n > 120 => {
            cx.out.line(format!("{verb} approximately {} minutes of transactions.", (n + 30) / 60))
        }
        n => cx.out.line(format!("{verb} approximately {n} seconds of transactions.")),
    }
}

/// The pool was not exported, and not by this host.
fn force_required(candidate: &ImportCandidate) -> bool {
    let pool = &candidate.pool;
    let exported = pool.label_state == PoolLabelState::Exported;
    candidate.mmp != MmpState::Inactive
        || (!exported && pool.hostid != 0 && pool.hostid != pool.system_hostid)
}

fn foreign(candidate: &ImportCandidate) -> String {
    let pool = &candidate.pool;
    let name = &pool.name;
    let unknown = "<unknown>".to_owned();
    match candidate.mmp {
        MmpState::Active => format!(
            "cannot import '{name}': pool is imported on {} (hostid: 0x{:x})\nExport the pool on the other \
             system, then run 'zpool import'.",
            candidate.mmp_hostname.as_ref().unwrap_or(&unknown),
            candidate.mmp_hostid
        ),
        MmpState::NoHostid => format!(
            "Cannot import '{name}': pool has the multihost property on and the\nsystem's hostid is not set. \
             Set a unique hostid with the zgenhostid(8) command."
        ),
        MmpState::Inactive => format!(
            "cannot import '{name}': pool was previously in use from another system.\nLast accessed by {} \
             (hostid={:x}) at {}\nThe pool can be imported, use 'zpool import -f' to import the pool.",
            if pool.hostname.is_empty() { &unknown } else { &pool.hostname },
            pool.hostid,
            time::ctime(pool.timestamp)
        ),
    }
}
