//! `zpool add`, `attach`, `replace`, `detach` and `remove`: which devices a pool is made of.

use super::create::{in_use_first, print_leaves, print_new, print_refusal, tell};
use super::vdevspec;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::vdev::{self, NameFlags};
use std::collections::BTreeMap;
use zilla_control::error::{ApiError, ErrorCode};
use zilla_control::props;
use zilla_control::props::naming;
use zilla_control::props::nicenum::nicenum;
use zilla_control::types::{
    Activity, AllocClass, DatasetInfo, DatasetKind, DatasetQuery, LeafSpec, PoolAdd, PoolInfo, PoolQuery,
    Source, TopKind, TopSpec, VdevAttach, VdevDetach, VdevKind, VdevNode, VdevRemove, VdevSpec, VdevsCheck,
};

/// One imported pool, or the end of the command.
pub fn one_pool(cx: &mut Cx, name: &str) -> Result<PoolInfo, Exit> {
    let (mut pools, _) =
        cx.pools(&[name.to_owned()], PoolQuery { properties: true, ..PoolQuery::default() })?;
    pools.pop().ok_or(Exit(1))
}

/// The `ashift` of `-o`, the only property these commands take.
fn ashift_option(cx: &mut Cx, props: &mut BTreeMap<String, String>, text: &str) -> Result<(), Exit> {
    let Some((name, value)) = text.split_once('=') else {
        return cx.bad_usage("missing '=' for -o option");
    };
    if name != "ashift" {
        return cx.print_usage();
    }
    match props.insert(name.to_owned(), value.to_owned()) {
        None => Ok(()),
        Some(_) => cx.bad_usage("property 'ashift' specified multiple times"),
    }
}

/// What `-o ashift` says, or else what the pool's property does.
fn ashift_of(
    cx: &mut Cx,
    props: &BTreeMap<String, String>,
    pool: Option<&PoolInfo>,
) -> Result<Option<u64>, Exit> {
    let set = pool.and_then(|p| p.properties.get("ashift")).map(|p| p.value.clone());
    let Some(text) = props.get("ashift").cloned().or(set) else { return Ok(None) };
    match props::parse_size(&text) {
        Ok(0) => Ok(None),
        Ok(n) if (9..=16).contains(&n) => Ok(Some(n)),
        Ok(n) => {
            cx.err(format!("invalid 'ashift={n}' property: only values between 9 and 16 are allowed."));
            Err(Exit(1))
        }
        Err(_) => {
            cx.err("ashift must be a number.");
            Err(Exit(1))
        }
    }
}

pub fn add(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] = &[
        ("allow-in-use", false, '\u{1}'),
        ("allow-replication-mismatch", false, '\u{2}'),
        ("allow-ashift-mismatch", false, '\u{3}'),
    ];
    let (options, operands) = args::parse(&args, "fgLno:P", LONG);
    let (mut force, mut in_use, mut mixed, mut dry_run) = (false, false, false, false);
    let mut any_ashift = false;
    let mut names = NameFlags::default();
    let mut props = BTreeMap::new();
    let mut any_long = false;
    for option in options {
        match option {
            Opt::Flag('f', _) => force = true,
            Opt::Flag('g', _) => names.guid = true,
            Opt::Flag('L', _) => names.follow_links = true,
            Opt::Flag('P', _) => names.path = true,
            Opt::Flag('n', _) => dry_run = true,
            Opt::Flag('o', text) => ashift_option(cx, &mut props, &text)?,
            Opt::Flag(which @ '\u{1}'..='\u{3}', _) => {
                any_long = true;
                in_use |= which == '\u{1}';
                mixed |= which == '\u{2}';
                any_ashift |= which == '\u{3}';
            }
            other => return cx.bad_option(other),
        }
    }
    let Some((name, words)) = operands.split_first() else {
        return cx.bad_usage("missing pool name argument");
    };
    if words.is_empty() {
        return cx.bad_usage("missing vdev specification");
    }
    if force && any_long {
        return cx.bad_usage(
            "'-f' option is not allowed with '--allow-replication-mismatch', '--allow-ashift-mismatch', or \
             '--allow-in-use'",
        );
    }
    let pool = one_pool(cx, name)?;
    let ashift = ashift_of(cx, &props, Some(&pool))?;
    let spec = match vdevspec::parse(words) {
        Ok(spec) => spec,
        Err(why) => return Ok(tell(cx, why, force || in_use)),
    };
    let action = format!("cannot add to '{name}'");
    let check = VdevsCheck {
        name: name.clone(),
        new: false,
        vdevs: spec.clone(),
        ashift,
        force: force || in_use,
        any_ashift: force || any_ashift,
    };
    if !force
        && !mixed
        && let Err(why) = vdevspec::check_added(&pool, &spec)
    {
        in_use_first(cx, &check)?;
        return Ok(tell(cx, why, in_use));
    }
    if dry_run {
        let text = layout(&pool, &spec, names);
        return match cx.call(&check)? {
            Ok(()) => {
                cx.out.put(text);
                Ok(0)
            }
            Err(e) => Ok(refused(cx, &action, &e)),
        };
    }
    let request = PoolAdd {
        name: name.clone(),
        vdevs: spec,
        ashift,
        force: force || in_use,
        any_ashift: force || any_ashift,
    };
    finish(cx, name, &action, &request, 1)
}

/// Of what OpenZFS's library or its kernel refuses: their answer is -1.
const NOT_DONE: u8 = 255;

/// Asks, prints what is wrong in OpenZFS's words, and logs what was done.
/// `not_done` is the exit code where the devices themselves are not at fault.
fn finish<O: zilla_control::Operation>(
    cx: &mut Cx,
    pool: &str,
    action: &str,
    request: &O,
    not_done: u8,
) -> Run {
    match cx.call(request)? {
        Ok(_) => {
            cx.log_history(pool)?;
            Ok(0)
        }
        Err(e) => {
            let early =
                [ErrorCode::VdevOverridable, ErrorCode::VdevInvalid, ErrorCode::OpenFailed, ErrorCode::NoEnt];
            refused(cx, action, &e);
            Ok(if early.contains(&e.code) { 1 } else { not_done })
        }
    }
}

fn refused(cx: &mut Cx, action: &str, e: &ApiError) -> u8 {
    if matches!(e.code, ErrorCode::VdevOverridable | ErrorCode::VdevInvalid) {
        print_refusal(cx, &e.details, e.code == ErrorCode::VdevOverridable);
    } else {
        cx.refused(action, e);
    }
    1
}

/// What `add -n` prints: the pool as it would be.
fn layout(pool: &PoolInfo, spec: &VdevSpec, names: NameFlags) -> String {
    let mut text = format!("would update '{}' to the following configuration:\n\n", pool.name);
    let classes = [
        (pool.name.as_str(), AllocClass::Normal),
        ("dedup", AllocClass::Dedup),
        ("special", AllocClass::Special),
        ("logs", AllocClass::Log),
    ];
    for (title, class) in classes {
        let old: Vec<&VdevNode> = match class {
            AllocClass::Normal => vdev::normal_children(&pool.root).collect(),
            class => vdev::class_children(&pool.root, class).collect(),
        };
        let new: Vec<_> = spec.tops.iter().filter(|t| t.class == class).collect();
        if old.is_empty() && new.is_empty() {
            continue;
        }
        text.push_str(&format!("\t{title}\n"));
        for v in old {
            // Only the pool's own groups are numbered there.
            tree(&mut text, v, 2, names, class == AllocClass::Normal);
        }
        for top in new {
            print_new(&mut text, top);
        }
    }
    for (title, old, new) in [("cache", &pool.l2cache, &spec.l2cache), ("spares", &pool.spares, &spec.spares)]
    {
        if old.is_empty() && new.is_empty() {
            continue;
        }
        text.push_str(&format!("\t{title}\n"));
        old.iter().for_each(|v| text.push_str(&format!("\t  {}\n", vdev::name(v, names, false))));
        print_leaves(&mut text, new, 2);
    }
    text
}

fn tree(text: &mut String, v: &VdevNode, indent: usize, names: NameFlags, type_id: bool) {
    text.push_str(&format!("\t{:indent$}{}\n", "", vdev::name(v, names, type_id)));
    v.children.iter().for_each(|c| tree(text, c, indent + 2, names, type_id));
}

pub fn attach(cx: &mut Cx, args: Vec<String>) -> Run {
    attach_or_replace(cx, &args, false)
}

pub fn replace(cx: &mut Cx, args: Vec<String>) -> Run {
    attach_or_replace(cx, &args, true)
}

fn attach_or_replace(cx: &mut Cx, args: &[String], replace: bool) -> Run {
    let (options, operands) = args::parse(args, "fo:sw", &[]);
    let (mut force, mut wait, mut sequential) = (false, false, false);
    let mut props = BTreeMap::new();
    for option in options {
        match option {
            Opt::Flag('f', _) => force = true,
            Opt::Flag('w', _) => wait = true,
            Opt::Flag('o', text) => ashift_option(cx, &mut props, &text)?,
            Opt::Flag('s', _) => sequential = true,
            other => return cx.bad_option(other),
        }
    }
    let (name, old, new) = match operands.as_slice() {
        [] => return cx.bad_usage("missing pool name argument"),
        [_] => return cx.bad_usage("missing <device> specification"),
        [_, _] if !replace => return cx.bad_usage("missing <new_device> specification"),
        [pool, old] => (pool, old, old),
        [pool, old, new] => (pool, old, new),
        _ => return cx.bad_usage("too many arguments"),
    };
    let pool = one_pool(cx, name)?;
    // The pool's property is about new top-level vdevs; a device beside others has their sectors.
    let ashift = ashift_of(cx, &props, None)?;
    let path = match vdevspec::leaf(new) {
        _ if naming::is_draid_spare(new) => new.clone(),
        Ok(leaf) => leaf.path,
        Err(why) => return Ok(tell(cx, why, force)),
    };
    let action = if replace {
        format!("cannot replace {old} with {new}")
    } else {
        format!("cannot attach {new} to {old}")
    };
    if !matches!(vdev::find(&pool, old), Some((_, AllocClass::Normal)))
        && !pool.spares.iter().any(|s| s.path.as_ref() == Some(&path))
    {
        let leaves = vec![LeafSpec { path: path.clone() }];
        let top = TopSpec { kind: TopKind::Single, class: AllocClass::Normal, leaves };
        let vdevs = VdevSpec { tops: vec![top], ..VdevSpec::default() };
        let name = name.clone();
        in_use_first(cx, &VdevsCheck { name, vdevs, force, any_ashift: true, ..VdevsCheck::default() })?;
    }
    let Some(guid) = lookup(cx, &pool, old, &action)? else { return Ok(NOT_DONE) };
    let request = VdevAttach { name: name.clone(), guid, path, replace, force, ashift, sequential };
    let code = finish(cx, name, &action, &request, NOT_DONE)?;
    if code == 0 && wait {
        let raidz = vdev::find(&pool, old).is_some_and(|(v, _)| v.kind == VdevKind::Raidz);
        let what = match replace {
            true => Activity::Replace,
            false if raidz => Activity::RaidzExpand,
            false => Activity::Resilver,
        };
        super::wait::until_done(cx, name, &[what])?;
    }
    Ok(code)
}

/// The same for what can be done to cache devices and hot spares too.
fn lookup_aux(cx: &mut Cx, pool: &PoolInfo, word: &str, action: &str) -> Result<Option<u64>, Exit> {
    match vdev::find(pool, word) {
        Some((v, AllocClass::Spare)) => Ok(Some(v.guid)),
        _ => lookup_cache(cx, pool, word, action),
    }
}

/// The same for what can be done to cache devices too.
pub fn lookup_cache(cx: &mut Cx, pool: &PoolInfo, word: &str, action: &str) -> Result<Option<u64>, Exit> {
    match vdev::find(pool, word) {
        Some((v, AllocClass::Cache)) => Ok(Some(v.guid)),
        _ => lookup(cx, pool, word, action),
    }
}

/// The guid of a device of the pool's vdevs; None when that was refused.
pub fn lookup(cx: &mut Cx, pool: &PoolInfo, word: &str, action: &str) -> Result<Option<u64>, Exit> {
    let refusal = match vdev::find(pool, word) {
        Some((v, AllocClass::Normal)) => return Ok(Some(v.guid)),
        Some((_, AllocClass::Spare)) => ErrorCode::IsSpare,
        Some(_) => ErrorCode::IsL2cache,
        None => ErrorCode::NoDevice,
    };
    cx.refused(action, &refusal.into());
    Ok(None)
}

pub fn detach(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "", &[]);
    if let Some(option) = options.into_iter().next() {
        return cx.bad_option(option);
    }
    let (name, device) = match operands.as_slice() {
        [] => return cx.bad_usage("missing pool name argument"),
        [_] => return cx.bad_usage("missing <device> specification"),
        [pool, device, ..] => (pool, device),
    };
    let pool = one_pool(cx, name)?;
    let action = format!("cannot detach {device}");
    let Some(guid) = lookup(cx, &pool, device, &action)? else { return Ok(NOT_DONE) };
    finish(cx, name, &action, &VdevDetach { name: name.clone(), guid }, NOT_DONE)
}

pub fn remove(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "npsw", &[]);
    let (mut wait, mut dry_run, mut exact, mut cancel) = (false, false, false, false);
    for option in options {
        match option {
            Opt::Flag('w', _) => wait = true,
            Opt::Flag('n', _) => dry_run = true,
            Opt::Flag('p', _) => exact = true,
            Opt::Flag('s', _) => cancel = true,
            other => return cx.bad_option(other),
        }
    }
    let Some((name, devices)) = operands.split_first() else {
        return cx.bad_usage("missing pool name argument");
    };
    let pool = one_pool(cx, name)?;
    if cancel && dry_run {
        cx.err("stop request ignored");
        return Ok(0);
    }
    if cancel {
        if !devices.is_empty() {
            return cx.bad_usage("too many arguments");
        }
        if wait {
            return cx.bad_usage("invalid option combination: -w cannot be used with -s");
        }
        let request = VdevRemove { name: name.clone(), cancel, ..VdevRemove::default() };
        return finish(cx, name, "cannot cancel removal", &request, 1);
    }
    if devices.is_empty() {
        return cx.bad_usage("missing device");
    }
    let mut code = 0;
    for device in devices {
        let action = format!("cannot remove {device}");
        if naming::is_draid_spare(device) {
            cx.refused(&action, &ApiError::with(ErrorCode::NoDevice, "dRAID spares cannot be removed"));
            code = 1;
            continue;
        }
        let Some(guid) = lookup_aux(cx, &pool, device, &action)? else {
            code = 1;
            continue;
        };
        let request = VdevRemove { name: name.clone(), guid, dry_run, ..VdevRemove::default() };
        match cx.ask(&action, &request)? {
            None => code = 1,
            Some(reply) if dry_run && exact => cx.out.line(format!("{device} {}", reply.memory)),
            Some(reply) if dry_run => {
                let memory = nicenum(reply.memory);
                cx.out.line(format!("Memory that will be used after removing {device}: {memory}"));
            }
            Some(_) => {}
        }
    }
    if code == 0 && !dry_run {
        cx.log_history(name)?;
        if wait {
            super::wait::until_done(cx, name, &[Activity::Remove])?;
        }
    }
    if has_log(&pool) && !has_log(&one_pool(cx, name)?) {
        tell_who_wanted_a_log(cx, name)?;
    }
    Ok(code)
}

fn has_log(pool: &PoolInfo) -> bool {
    pool.root.children.iter().any(|v| v.class == AllocClass::Log && v.kind != VdevKind::Hole)
}

/// `logbias` says what a log device is for; where it was set, someone should know that there is
/// none any more.
fn tell_who_wanted_a_log(cx: &mut Cx, pool: &str) -> Result<(), Exit> {
    let query = DatasetQuery {
        roots: vec![pool.to_owned()],
        kinds: vec![DatasetKind::Filesystem, DatasetKind::Volume],
        properties: vec!["logbias".to_owned()],
        ..DatasetQuery::default()
    };
    let Some(reply) = cx.ask("cannot list datasets", &query)? else { return Ok(()) };
    let set = |d: &DatasetInfo| d.properties.get("logbias").is_some_and(|p| p.source == Source::Local);
    let names: Vec<&str> = reply.datasets.iter().filter(|d| set(d)).map(|d| d.name.as_str()).collect();
    if !names.is_empty() {
        cx.err(format!(
            "warning: '{pool}' has no log device any more; 'logbias' is set for {}, whose synchronous writes now go to the pool's disks",
            names.join(", ")
        ));
    }
    Ok(())
}
