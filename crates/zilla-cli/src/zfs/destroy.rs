//! `zfs destroy`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::props::{self, nicenum::nicebytes};
use zilla_control::types::{DatasetDestroy, DatasetQuery, DestroyReply};
use zilla_control::{ApiError, ErrorCode};

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "vpndfrR", &[]);
    let mut request = DatasetDestroy::default();
    let (mut verbose, mut parsable) = (false, false);
    for option in options {
        match option {
            Opt::Flag('v', _) => verbose = true,
            Opt::Flag('p', _) => (verbose, parsable) = (true, true),
            Opt::Flag('n', _) => request.dry_run = true,
            Opt::Flag('d', _) => request.defer = true,
            Opt::Flag('f', _) => request.force = true,
            Opt::Flag('r', _) => request.recursive = true,
            Opt::Flag('R', _) => (request.recursive, request.clones) = (true, true),
            other => return cx.bad_option(other),
        }
    }
    let target = match operands.as_slice() {
        [target] => target.clone(),
        [] => return cx.bad_usage("missing dataset argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    request.target = target.clone();
    let snapshots = target.contains('@');
    if !snapshots && target.contains('#') {
        for (on, what) in
            [(request.dry_run, "dryrun"), (request.defer, "defer destroy"), (request.recursive, "recursive")]
        {
            if on {
                cx.err(format!("{what} is not supported with bookmark"));
                return Ok(255);
            }
        }
        let done = match cx.call(&request)? {
            Ok(_) => true,
            Err(e) if e.code == ErrorCode::NoEnt => {
                cx.err(format!("bookmark '{target}' does not exist."));
                false
            }
            Err(e) => {
                cx.refused("cannot destroy bookmark", &e);
                false
            }
        };
        if done {
            cx.log_history(pool_of(&target))?;
        }
        return Ok(u8::from(!done));
    }
    // Snapshots are named by a list with ranges, which is no name: only the dataset before it is
    // checked.
    let head = target.split('@').next().unwrap_or(&target);
    let types = if !snapshots && request.defer { props::SNAP } else { props::HEADS };
    if let Err(e) = check_dataset_name(head, types, false) {
        cx.refused(&format!("cannot open '{head}'"), &e);
        return Ok(1);
    }
    if !snapshots && !target.contains('/') && !request.recursive {
        // (What is not there is told first.)
        let there = DatasetQuery { roots: vec![target.clone()], depth: Some(0), ..DatasetQuery::default() };
        let Some(reply) = cx.ask(&format!("cannot open '{target}'"), &there)? else { return Ok(1) };
        if let Some(e) = reply.errors.first() {
            cx.refused(&format!("cannot open '{target}'"), e);
            return Ok(1);
        }
        cx.err(format!("cannot destroy '{target}': operation does not apply to pools"));
        cx.err(format!("use 'zfs destroy -r {target}' to destroy all datasets in the pool"));
        cx.err(format!("use 'zpool destroy {target}' to destroy the pool itself"));
        return Ok(1);
    }
    let action = format!("cannot destroy '{target}'");
    if verbose {
        // What will go is told before it goes.
        let preview = DatasetDestroy { dry_run: true, ..request.clone() };
        let Some(reply) = refuse_or(cx, &action, head, &preview)? else { return Ok(1) };
        tell(cx, &reply, snapshots, parsable, request.dry_run);
        if request.dry_run {
            return Ok(0);
        }
    }
    let Some(reply) = refuse_or(cx, &action, head, &request)? else { return Ok(1) };
    reply.errors.iter().for_each(|e| refused(cx, &action, e));
    if !request.dry_run {
        cx.log_history(pool_of(&target))?;
    }
    Ok(u8::from(!reply.errors.is_empty()))
}

/// Asks; a dataset that is not there at all could not be opened, which has words of its own.
fn refuse_or(
    cx: &mut Cx,
    action: &str,
    head: &str,
    request: &DatasetDestroy,
) -> Result<Option<DestroyReply>, crate::cx::Exit> {
    match cx.call(request)? {
        Ok(reply) => Ok(Some(reply)),
        Err(e) if e.code == ErrorCode::NoEnt => {
            if e.subject.as_deref().is_some_and(|s| s.contains('@')) {
                cx.err("could not find any snapshots to destroy; check snapshot names.");
            } else {
                cx.refused(&format!("cannot open '{head}'"), &e);
            }
            Ok(None)
        }
        Err(e) => {
            refused(cx, action, &e);
            Ok(None)
        }
    }
}

fn refused(cx: &mut Cx, action: &str, e: &ApiError) {
    let action = match &e.subject {
        // One that is held or otherwise in use.
        Some(s) if s.contains('@') && e.code == ErrorCode::Busy => format!("cannot destroy snapshot {s}"),
        // By its mountpoint.
        Some(s) if e.code == ErrorCode::UmountFailed => format!("cannot unmount '{s}'"),
        Some(s) => format!("cannot destroy '{s}'"),
        None => action.to_owned(),
    };
    cx.refused(&action, e);
}

fn tell(cx: &mut Cx, reply: &DestroyReply, snapshots: bool, parsable: bool, dry_run: bool) {
    let verb = if dry_run { "would" } else { "will" };
    for name in reply.destroyed.iter().chain(&reply.deferred) {
        cx.out.line(if parsable { format!("destroy\t{name}") } else { format!("{verb} destroy {name}") });
    }
    if snapshots {
        cx.out.line(if parsable {
            format!("reclaim\t{}", reply.reclaimed)
        } else {
            format!("{verb} reclaim {}", nicebytes(reply.reclaimed))
        });
    }
}
