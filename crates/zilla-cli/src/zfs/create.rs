//! `zfs create` and `zfs clone`.

use super::change::{parse_prop, warn_special};
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use std::collections::BTreeMap;
use zilla_control::error::ErrorCode;
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::props::{self, FS, SNAP, VOL, parse_dataset_prop, parse_size};
use zilla_control::types::{
    DatasetClone, DatasetCreate, DatasetKind, DatasetQuery, MountedReply, PoolQuery, VolumePlan, VolumeSpec,
};

/// The size of a volume's blocks where the pool's vdevs ask for no larger ones, bytes.
const USUAL_BLOCKS: u64 = 16 << 10;

pub fn create(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, ":PV:b:nso:puv", &[]);
    let mut request = DatasetCreate::default();
    let (mut size, mut block_size, mut sparse) = (None, None, false);
    let (mut dry_run, mut verbose, mut parsable) = (false, false, false);
    // As they are told with `-v`, in the order in which they were given.
    let mut given: Vec<(String, String)> = Vec::new();
    for option in options {
        match option {
            Opt::Flag('V', text) => match parse_size(&text) {
                Ok(n) => {
                    size = Some(n);
                    tell(&mut given, "volsize", n);
                }
                Err(e) => {
                    cx.err(format!("bad volume size '{text}': {}", e.description()));
                    return Ok(1);
                }
            },
            Opt::Flag('b', text) => match parse_size(&text) {
                Ok(n) => {
                    block_size = Some(n);
                    tell(&mut given, "volblocksize", n);
                }
                Err(e) => {
                    cx.err(format!("bad volume block size '{text}': {}", e.description()));
                    return Ok(1);
                }
            },
            Opt::Flag('P', _) => (verbose, parsable) = (true, true),
            Opt::Flag('p', _) => request.parents = true,
            Opt::Flag('n', _) => dry_run = true,
            Opt::Flag('o', text) => {
                parse_prop(cx, &mut request.properties, &text)?;
                given.extend(text.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())));
            }
            Opt::Flag('s', _) => sparse = true,
            Opt::Flag('u', _) => request.no_mount = true,
            Opt::Flag('v', _) => verbose = true,
            Opt::Missing(_) => return cx.bad_usage("missing size argument"),
            other => return cx.bad_option(other),
        }
    }
    if (block_size.is_some() || sparse) && size.is_none() {
        return cx.bad_usage("'-s' and '-b' can only be used when creating a volume");
    }
    if request.no_mount && size.is_some() {
        return cx.bad_usage("'-u' can only be used when creating a filesystem");
    }
    let name = match operands.as_slice() {
        [name] => name.clone(),
        [] => {
            let kind = if size.is_some() { "volume" } else { "filesystem" };
            return cx.bad_usage(format!("missing {kind} argument"));
        }
        _ => return cx.bad_usage("too many arguments"),
    };
    request.name = name.clone();
    let types = if size.is_some() { VOL } else { FS };
    if dry_run || size.is_some() {
        let pool = pool_of(&name).to_owned();
        let (pools, _) = cx.pools(&[pool], PoolQuery::default())?;
        if pools.is_empty() {
            return Ok(1);
        }
        let action = format!("cannot {} '{name}'", if dry_run { "verify" } else { "create" });
        let block = block_size.map(|n| ("volblocksize".to_owned(), n.to_string()));
        for (property, text) in request.properties.clone().into_iter().chain(block) {
            let (property, text) = (&property, &text);
            if let Err(e) = parse_dataset_prop(property, text, types, true, None) {
                cx.refused(&action, &e);
                return Ok(1);
            }
        }
    }
    for (name, _) in [("volsize", size), ("volblocksize", block_size)].iter().filter(|(_, v)| v.is_some()) {
        if request.properties.contains_key(*name) {
            cx.err(format!("property '{name}' specified multiple times"));
            return Ok(1);
        }
    }
    match size {
        Some(size) => request.volume = Some(plan(cx, &request, size, block_size, sparse, &mut given)?),
        None => warn_special(cx, pool_of(&name), &request.properties)?,
    }
    let size_given = request.volume.is_some();
    if request.parents && check_dataset_name(&name, types, true).is_ok() {
        if exists(cx, &name, size_given)? {
            return Ok(0);
        }
        if verbose {
            cx.out.line(match (parsable, dry_run) {
                (true, _) => format!("create_ancestors\t{name}"),
                (_, true) => format!("would create ancestors of {name}"),
                _ => format!("create ancestors of {name}"),
            });
        }
    }
    if verbose {
        cx.out.line(match (parsable, dry_run) {
            (true, _) => format!("create\t{name}"),
            (_, true) => format!("would create {name}"),
            _ => format!("create {name}"),
        });
        for (property, text) in given {
            cx.out.line(if parsable {
                format!("property\t{property}\t{text}")
            } else {
                format!("\t{property}={text}")
            });
        }
    }
    if dry_run {
        return Ok(0);
    }
    request.key = super::keys::of_new(cx, &request.properties, super::keys::CREATE_ERROR)?;
    let done = match cx.call(&request)? {
        Ok(done) => Some(done),
        Err(e) => {
            let action = super::keys::create_action(e.code, format!("cannot create '{name}'"));
            cx.refused(&action, &e);
            None
        }
    };
    finish(cx, &name, done)
}

/// Puts a value at the end of those that are told, in place of an earlier one.
fn tell(given: &mut Vec<(String, String)>, name: &str, value: impl ToString) {
    given.retain(|(n, _)| n != name);
    given.push((name.to_owned(), value.to_string()));
}

/// What a volume is to be: whole blocks of the size that fits the pool, and all of it reserved.
fn plan(
    cx: &mut Cx,
    request: &DatasetCreate,
    size: u64,
    block_size: Option<u64>,
    sparse: bool,
    given: &mut Vec<(String, String)>,
) -> Result<VolumeSpec, Exit> {
    let number = |name: &str| request.properties.get(name).and_then(|text| parse_size(text).ok());
    let of_property = number("volblocksize");
    let asked = VolumePlan {
        pool: pool_of(&request.name).to_owned(),
        size,
        block_size: block_size.or(of_property),
        copies: number("copies").unwrap_or(1),
    };
    let action = format!("cannot create '{}'", request.name);
    let plan = cx.ask(&action, &asked)?.ok_or(Exit(1))?;
    let (blocks, fitting) = (plan.block_size, plan.fitting);
    if blocks < USUAL_BLOCKS {
        cx.err(format!(
            "Warning: volblocksize ({blocks}) is less than the default minimum block size \
             ({USUAL_BLOCKS}).\nTo reduce wasted space a volblocksize of {fitting} is recommended."
        ));
    } else if blocks < fitting {
        let (least, wasted) = (plan.least, 100 * plan.least.saturating_sub(blocks) / plan.least.max(1));
        cx.err(format!(
            "Warning: volblocksize ({blocks}) is much less than the minimum allocation\nunit ({least}), \
             which wastes at least {wasted}% of space. To reduce wasted space,\nuse a larger volblocksize \
             ({fitting} is recommended), fewer dRAID data disks\nper group, or smaller sector size (ashift)."
        ));
    }
    if blocks != USUAL_BLOCKS && of_property.is_none() {
        tell(given, "volblocksize", blocks);
    }
    if plan.size != size {
        tell(given, "volsize", plan.size);
    }
    if !sparse && !request.properties.contains_key(&plan.reserved_by) {
        tell(given, &plan.reserved_by, plan.reservation);
    }
    // Of one that was given as a property there is one word already.
    let block_size = Some(blocks).filter(|_| of_property.is_none());
    Ok(VolumeSpec { size: plan.size, block_size, sparse })
}

/// The history, and what to say where the new filesystem could not be mounted.
fn finish(cx: &mut Cx, name: &str, done: Option<MountedReply>) -> Run {
    let Some(reply) = done else { return Ok(1) };
    cx.log_history(pool_of(name))?;
    match &reply.mount_error {
        None => Ok(0),
        Some(e) if e.code == ErrorCode::Perm && e.message.is_none() => {
            cx.err("filesystem successfully created, but it may only be mounted by root");
            Ok(1)
        }
        Some(e) => {
            let (verb, done) = match e.code {
                ErrorCode::ShareFailed => ("share", "shared"),
                _ => ("mount", "mounted"),
            };
            cx.refused(&format!("cannot {verb} '{name}'"), e);
            cx.err(format!("filesystem successfully created, but not {done}"));
            Ok(1)
        }
    }
}

/// Whether there is one of this name and kind.
fn exists(cx: &mut Cx, name: &str, volume: bool) -> Result<bool, Exit> {
    let request = DatasetQuery {
        roots: vec![name.to_owned()],
        depth: Some(0),
        kinds: vec![if volume { DatasetKind::Volume } else { DatasetKind::Filesystem }],
        ..DatasetQuery::default()
    };
    Ok(cx.call(&request)?.is_ok_and(|reply| reply.datasets.iter().any(|d| d.name == name)))
}

pub fn clone(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "o:p", &[]);
    let mut properties = BTreeMap::new();
    let mut parents = false;
    for option in options {
        match option {
            Opt::Flag('o', text) => parse_prop(cx, &mut properties, &text)?,
            Opt::Flag('p', _) => parents = true,
            other => return cx.bad_option(other),
        }
    }
    let (snapshot, target) = match operands.as_slice() {
        [snapshot, target] => (snapshot.clone(), target.clone()),
        [] => return cx.bad_usage("missing source dataset argument"),
        [_] => return cx.bad_usage("missing target dataset argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    if let Err(e) = check_dataset_name(&snapshot, SNAP, false) {
        cx.refused(&format!("cannot open '{snapshot}'"), &e);
        return Ok(1);
    }
    let query = DatasetQuery {
        roots: vec![snapshot.clone()],
        depth: Some(0),
        kinds: vec![DatasetKind::Snapshot],
        ..DatasetQuery::default()
    };
    if let Some(reply) = cx.ask(&format!("cannot open '{snapshot}'"), &query)? {
        for e in &reply.errors {
            cx.refused(&format!("cannot open '{snapshot}'"), e);
        }
        if !reply.errors.is_empty() {
            return Ok(1);
        }
    } else {
        return Ok(1);
    }
    let action = format!("cannot create '{target}'");
    if let Err(e) = check_dataset_name(&target, props::HEADS, true) {
        cx.refused(&action, &e);
        return Ok(1);
    }
    if parents && (exists(cx, &target, false)? || exists(cx, &target, true)?) {
        return Ok(0);
    }
    warn_special(cx, pool_of(&target), &properties)?;
    let request = DatasetClone { snapshot, target: target.clone(), properties, parents, no_mount: false };
    let done = cx.ask(&action, &request)?;
    finish(cx, &target, done)
}
