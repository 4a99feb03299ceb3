//! `zpool split`.

use super::create::add_pool_prop;
use super::vdevs::one_pool;
use super::vdevspec::{self, SpecError};
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::vdev::{self, NameFlags};
use std::collections::BTreeMap;
use zilla_control::ErrorCode;
use zilla_control::props::naming;
use zilla_control::types::{AllocClass, PoolInfo, PoolSplit, VdevKind, VdevNode};

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, ":gLR:lno:P", &[]);
    let (mut names, mut props) = (NameFlags::default(), BTreeMap::new());
    let (mut load_keys, mut dry_run) = (false, false);
    let mut request = PoolSplit::default();
    for option in options {
        match option {
            Opt::Flag('g', _) => names.guid = true,
            Opt::Flag('L', _) => names.follow_links = true,
            Opt::Flag('P', _) => names.path = true,
            Opt::Flag('l', _) => load_keys = true,
            Opt::Flag('n', _) => dry_run = true,
            Opt::Flag('R', root) => {
                request.import = true;
                if add_pool_prop(cx, &mut props, "altroot", &root).is_err() {
                    return cx.print_usage();
                }
            }
            Opt::Flag('o', text) => match text.split_once('=') {
                Some((name, value)) => {
                    if add_pool_prop(cx, &mut props, name, value).is_err() {
                        return cx.print_usage();
                    }
                }
                None => request.mount_options = text.split(',').map(str::to_owned).collect(),
            },
            other => return cx.bad_option(other),
        }
    }
    if !request.import && !request.mount_options.is_empty() {
        return cx.bad_usage("setting mntopts is only valid when importing the pool");
    }
    if !request.import && load_keys {
        return cx.bad_usage("loading keys is only valid when importing the pool");
    }
    let (name, new_name, devices) = match operands.as_slice() {
        [] => return cx.bad_usage("Missing pool name"),
        [_] => return cx.bad_usage("Missing new pool name"),
        [name, new_name, devices @ ..] => (name, new_name, devices),
    };
    let pool = one_pool(cx, name)?;
    let action = format!("Unable to split {name}");
    let chosen = named(cx, &pool, devices)?;
    if let Err(e) = naming::check_pool_name(new_name, false) {
        cx.refused(&action, &e);
        return Ok(1);
    }
    let sides = match sides(&pool, &chosen) {
        Ok(sides) => sides,
        Err(why) => {
            cx.err(format!("{action}: {why}"));
            return Ok(1);
        }
    };
    if dry_run {
        cx.out.put(layout(new_name, &sides, names));
        return Ok(0);
    }
    request.name = name.clone();
    request.new_name = new_name.clone();
    request.sides = sides.iter().map(|(_, side)| side.guid).filter(|guid| *guid != 0).collect();
    request.altroot = props.remove("altroot");
    if request.altroot.is_some() {
        props.entry("cachefile".to_owned()).or_insert_with(|| "none".to_owned());
    }
    request.properties = props;
    // What is encrypted can be mounted when its keys are there.
    request.no_mount = load_keys;
    let reply = match cx.call(&request)? {
        Ok(reply) => reply,
        Err(e) => {
            cx.refused(&action, &e);
            return Ok(1);
        }
    };
    cx.log_history(name)?;
    let code = match load_keys {
        true => crate::zfs::load_and_mount(cx, new_name, &request.mount_options)?,
        false => 0,
    };
    for error in &reply.mount_errors {
        let subject = error.subject.as_deref().unwrap_or(new_name);
        let verb = if error.code == ErrorCode::ShareFailed { "share" } else { "mount" };
        cx.refused(&format!("cannot {verb} '{subject}'"), error);
    }
    let share = |e: &zilla_control::ApiError| e.code == ErrorCode::ShareFailed;
    if reply.mount_errors.iter().any(|e| !share(e)) {
        cx.err("Split was successful, but some datasets could not be mounted");
        cx.err("Try doing 'zpool import' with a different altroot");
    } else if !reply.mount_errors.is_empty() {
        cx.err("Split was successful, datasets are mounted but sharing of some datasets has failed");
    }
    Ok(code)
}

/// The guids of the devices that are named; 0 for one that is not of the pool.
fn named(cx: &mut Cx, pool: &PoolInfo, words: &[String]) -> Result<Vec<u64>, Exit> {
    let mut guids = Vec::new();
    for word in words {
        let group = word == "mirror" || word.starts_with("raidz") || word.starts_with("draid");
        if group || ["log", "spare", "cache", "special", "dedup"].contains(&word.as_str()) {
            let what = if group { "mirror, raidz or draid" } else { word.as_str() };
            cx.err(format!("Cannot use '{what}' as a device for splitting"));
            return Err(Exit(1));
        }
        if let Some((v, AllocClass::Normal)) = vdev::find(pool, word) {
            guids.push(v.guid);
            continue;
        }
        match vdevspec::leaf(word) {
            Ok(_) => guids.push(0),
            Err(SpecError::Invalid(lines) | SpecError::Overridable(lines)) => {
                lines.iter().for_each(|line| cx.err(line));
                cx.err("Unable to build a pool from the specified devices");
                return Err(Exit(1));
            }
        }
    }
    Ok(guids)
}

/// What each top-level vdev gives: the side that is named, else its last; removed vdevs have none.
fn sides<'a>(pool: &'a PoolInfo, chosen: &[u64]) -> Result<Vec<(AllocClass, &'a VdevNode)>, &'static str> {
    let (mut sides, mut found) = (Vec::new(), 0);
    for top in &pool.root.children {
        if top.class == AllocClass::Log || matches!(top.kind, VdevKind::Hole | VdevKind::Indirect) {
            continue;
        }
        if top.kind != VdevKind::Mirror {
            return Err("Source pool must be composed only of mirrors\n");
        }
        let named = top.children.iter().find(|c| chosen.contains(&c.guid));
        found += usize::from(named.is_some());
        let Some(side) = named.or_else(|| top.children.last()) else { continue };
        sides.push((top.class, side));
    }
    if found != chosen.len() {
        return Err("Device list must include at most one disk from each mirror");
    }
    Ok(sides)
}

/// What `-n` prints.
fn layout(name: &str, sides: &[(AllocClass, &VdevNode)], names: NameFlags) -> String {
    let mut text = format!("would create '{name}' with the following layout:\n\n");
    let classes =
        [(name, AllocClass::Normal), ("dedup", AllocClass::Dedup), ("special", AllocClass::Special)];
    for (title, class) in classes {
        let of_class: Vec<_> = sides.iter().filter(|(c, _)| *c == class).collect();
        if of_class.is_empty() {
            continue;
        }
        text.push_str(&format!("\t{title}\n"));
        for (_, side) in of_class {
            text.push_str(&format!("\t  {}\n", vdev::name(side, names, true)));
        }
    }
    text
}
