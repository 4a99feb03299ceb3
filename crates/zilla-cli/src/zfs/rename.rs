//! `zfs rename` and `zfs promote`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use zilla_control::error::ErrorCode;
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::props::{self, Types};
use zilla_control::types::{DatasetKind, DatasetPromote, DatasetQuery, DatasetRename};

/// Whether a dataset is there; complains if it is not.
fn open(cx: &mut Cx, name: &str, types: Types) -> Result<bool, Exit> {
    let action = format!("cannot open '{name}'");
    if let Err(e) = check_dataset_name(name, types, false) {
        cx.refused(&action, &e);
        return Ok(false);
    }
    let kinds = vec![DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot];
    let query =
        DatasetQuery { roots: vec![name.to_owned()], depth: Some(0), kinds, ..DatasetQuery::default() };
    let Some(reply) = cx.ask(&action, &query)? else { return Ok(false) };
    for e in &reply.errors {
        cx.refused(&action, e);
    }
    let wrong = reply.datasets.iter().any(|d| props::types_of(d.kind) & types == 0);
    if wrong {
        cx.err(format!("{action}: {}", ErrorCode::BadType.description()));
    }
    Ok(reply.errors.is_empty() && !wrong)
}

pub fn rename(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "pruf", &[]);
    let mut request = DatasetRename::default();
    for option in options {
        match option {
            Opt::Flag('p', _) => request.parents = true,
            Opt::Flag('r', _) => request.recursive = true,
            Opt::Flag('u', _) => request.no_unmount = true,
            Opt::Flag('f', _) => request.force = true,
            other => return cx.bad_option(other),
        }
    }
    let (name, target) = match operands.as_slice() {
        [name, target] => (name.clone(), target.clone()),
        [] => return cx.bad_usage("missing source dataset argument"),
        [_] => return cx.bad_usage("missing target dataset argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    if request.recursive && request.parents {
        return cx.bad_usage("-p and -r options are mutually exclusive");
    }
    if request.no_unmount && request.parents {
        return cx.bad_usage("-u and -p options are mutually exclusive");
    }
    if request.recursive && !name.contains('@') {
        return cx.bad_usage("source dataset for recursive rename must be a snapshot");
    }
    let types = match (request.no_unmount, request.parents) {
        (true, _) => props::FS,
        (_, true) => props::HEADS,
        _ => props::HEADS | props::SNAP,
    };
    if !open(cx, &name, types)? {
        return Ok(1);
    }
    if name == target {
        return Ok(0);
    }
    let to = format!("cannot rename to '{target}'");
    request.name = name.clone();
    request.target = match name.split_once('@') {
        // The dataset may be left out.
        Some((fs, _)) if target.starts_with('@') => format!("{fs}{target}"),
        Some((fs, _)) if !target.contains('@') => format!("{fs}@{target}"),
        _ => target.clone(),
    };
    let kind = if name.contains('@') { props::SNAP } else { props::HEADS };
    if let Err(e) = check_dataset_name(&request.target, kind, true) {
        cx.refused(&to, &e);
        return Ok(1);
    }
    match cx.call(&request)? {
        Ok(reply) => {
            cx.log_history(pool_of(&name))?;
            if let Some(e) = &reply.mount_error {
                let subject = e.subject.clone().unwrap_or(target);
                cx.refused(&format!("cannot mount '{subject}'"), e);
            }
            // It has its new name; so it is done, as with OpenZFS.
            Ok(0)
        }
        Err(e) => {
            let action = match e.code {
                ErrorCode::UmountFailed => {
                    format!("cannot unmount '{}'", e.subject.as_deref().unwrap_or(&name))
                }
                ErrorCode::NoParent | ErrorCode::WrongParent => format!("cannot create '{target}'"),
                // What the target's name alone shows.
                ErrorCode::CrossTarget | ErrorCode::InvalidName => to,
                _ => format!("cannot rename '{}'", e.subject.as_deref().unwrap_or(&name)),
            };
            cx.refused(&action, &e);
            Ok(1)
        }
    }
}

pub fn promote(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "", &[]);
    if let Some(option) = options.into_iter().next() {
        return cx.bad_option(option);
    }
    let name = match operands.as_slice() {
        [name] => name.clone(),
        [] => return cx.bad_usage("missing clone filesystem argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    if !open(cx, &name, props::HEADS)? {
        return Ok(1);
    }
    match cx.ask(&format!("cannot promote '{name}'"), &DatasetPromote { name: name.clone() })? {
        None => Ok(1),
        Some(()) => {
            cx.log_history(pool_of(&name))?;
            Ok(0)
        }
    }
}
