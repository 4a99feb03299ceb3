//! `zfs snapshot` and `zfs rollback`.

use super::change::{log, parse_prop};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::props::{self, SNAP};
use zilla_control::types::{DatasetRollback, DatasetSnapshot};

pub fn snapshot(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "ro:", &[]);
    let mut request = DatasetSnapshot::default();
    for option in options {
        match option {
            Opt::Flag('o', text) => parse_prop(cx, &mut request.properties, &text)?,
            Opt::Flag('r', _) => request.recursive = true,
            other => return cx.bad_option(other),
        }
    }
    if operands.is_empty() {
        return cx.bad_usage("missing snapshot argument");
    }
    let several = request.recursive || operands.len() > 1;
    for name in &operands {
        let Some((head, _)) = name.split_once('@') else { return cx.print_usage() };
        if let Err(e) = check_dataset_name(head, props::HEADS, false) {
            cx.refused(&format!("cannot open '{head}'"), &e);
            return cx.print_usage();
        }
        if let Err(e) = check_dataset_name(name, SNAP, true) {
            cx.refused(&format!("cannot create snapshot '{name}'"), &e);
            if several {
                cx.err("no snapshots were created");
            }
            return Ok(1);
        }
    }
    request.names = operands.clone();
    match cx.call(&request)? {
        Ok(()) => {
            let pools = operands.iter().map(|name| pool_of(name).to_owned()).collect();
            log(cx, pools, false)?;
            Ok(0)
        }
        Err(e) => {
            match &e.subject {
                // A dataset that is not there is wrong usage, as the names come first.
                Some(subject) if !subject.contains('@') => {
                    cx.refused(&format!("cannot open '{subject}'"), &e);
                    return cx.print_usage();
                }
                Some(subject) => cx.refused(&format!("cannot create snapshot '{subject}'"), &e),
                None => cx.refused("cannot create snapshots ", &e),
            }
            if several {
                cx.err("no snapshots were created");
            }
            Ok(1)
        }
    }
}

pub fn rollback(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "rRf", &[]);
    let mut request = DatasetRollback::default();
    for option in options {
        match option {
            Opt::Flag('r', _) => request.destroy_later = true,
            Opt::Flag('R', _) => (request.destroy_later, request.destroy_clones) = (true, true),
            Opt::Flag('f', _) => request.force = true,
            other => return cx.bad_option(other),
        }
    }
    let name = match operands.as_slice() {
        [name] => name.clone(),
        [] => return cx.bad_usage("missing dataset argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    if let Err(e) = check_dataset_name(&name, SNAP, false) {
        cx.refused(&format!("cannot open '{name}'"), &e);
        return Ok(1);
    }
    request.snapshot = name.clone();
    match cx.call(&request)? {
        Ok(()) => {
            cx.log_history(pool_of(&name))?;
            Ok(0)
        }
        Err(e) if e.code == zilla_control::ErrorCode::NoEnt => {
            cx.refused(&format!("cannot open '{name}'"), &e);
            Ok(1)
        }
        Err(e) if e.code == zilla_control::ErrorCode::HasDependents => {
            cx.refused(&format!("cannot rollback to '{name}'"), &e);
            Ok(1)
        }
        Err(e) => {
            let head = name.split('@').next().unwrap_or(&name);
            cx.refused(&format!("cannot rollback '{head}'"), &e);
            Ok(1)
        }
    }
}
