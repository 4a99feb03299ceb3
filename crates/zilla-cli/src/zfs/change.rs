//! `zfs set` and `zfs inherit`.

use super::select::Selection;
use super::share;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::poolprop;
use std::collections::BTreeMap;
use zilla_control::props::{self, PropAttr, naming::pool_of, types_of};
use zilla_control::types::{DatasetInherit, DatasetKind, DatasetSet, PoolQuery};

const DATASETS: &[DatasetKind] = &[DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot];

/// Properties after whose change file systems are mounted elsewhere, which may fail.
fn moves(property: &str) -> bool {
    matches!(property, "mountpoint" | "canmount")
}

/// `property=value` of an option or operand.
pub fn parse_prop(cx: &mut Cx, props: &mut BTreeMap<String, String>, text: &str) -> Result<(), Exit> {
    let Some((name, value)) = text.split_once('=') else {
        cx.err("missing '=' for property=value argument");
        return Err(Exit(1));
    };
    if props.insert(name.to_owned(), value.to_owned()).is_some() {
        cx.err(format!("property '{name}' specified multiple times"));
        return Err(Exit(1));
    }
    Ok(())
}

/// Warns of what has an effect only where the pool has special devices.
pub fn warn_special(cx: &mut Cx, pool: &str, set: &BTreeMap<String, String>) -> Result<(), Exit> {
    // Of what is no number nothing else is said than that.
    if set.get("special_small_blocks").is_none_or(|text| props::parse_size(text).is_err()) {
        return Ok(());
    }
    let query = PoolQuery { names: vec![pool.to_owned()], properties: true, ..PoolQuery::default() };
    let Ok(pools) = cx.call(&query)? else { return Ok(()) };
    let has =
        |p| poolprop::get(p, "feature@allocation_classes", true).is_some_and(|state| state.value == "active");
    if pools.iter().any(|p| !has(p)) {
        cx.err("special_small_blocks: property requires a special device in the pool");
    }
    Ok(())
}

pub fn set(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "u", &[]);
    let mut no_mount = false;
    for option in options {
        match option {
            Opt::Flag('u', _) => no_mount = true,
            other => return cx.bad_option(other),
        }
    }
    match operands.as_slice() {
        [] => return cx.bad_usage("missing arguments"),
        [only] if only.contains('=') => return cx.bad_usage("missing dataset name(s)"),
        [_] => return cx.bad_usage("missing property=value argument(s)"),
        _ => {}
    }
    let first = operands.iter().position(|word| !word.contains('='));
    let Some(first) = first else { return cx.bad_usage("missing dataset name(s)") };
    let (assignments, names) = operands.split_at(first);
    if assignments.is_empty() || names.iter().any(|word| word.contains('=')) {
        return cx.bad_usage("invalid argument order");
    }
    let mut properties = BTreeMap::new();
    for assignment in assignments {
        if parse_prop(cx, &mut properties, assignment).is_err() {
            return Ok(255);
        }
    }
    let selection = Selection { operands: names.to_vec(), kinds: DATASETS.to_vec(), ..Selection::default() };
    let (datasets, missing) = selection.find(cx, Vec::new())?;
    let mut code = u8::from(missing);
    let mut changed = Vec::new();
    for dataset in datasets {
        let name = dataset.name;
        if dataset.kind == DatasetKind::Filesystem {
            warn_special(cx, pool_of(&name), &properties)?;
        }
        let request = DatasetSet { name: name.clone(), properties: properties.clone(), no_mount };
        match cx.ask(&format!("cannot set property for '{name}'"), &request)? {
            None => code = 255,
            Some(reply) => {
                if let Some(e) = &reply.mount_error {
                    let (verb, again) = share::verbs(e);
                    cx.refused(&format!("cannot {verb} '{}'", e.subject.as_deref().unwrap_or(&name)), e);
                    // The property is set; OpenZFS counts it as done, though the place is not to be
                    // had.
                    if !properties.keys().any(|name| moves(name)) {
                        cx.err(format!("property may be set but unable to {again} filesystem"));
                        code = 255;
                    }
                }
                changed.push(pool_of(&name).to_owned());
            }
        }
    }
    log(cx, changed, code != 0)?;
    Ok(code)
}

/// One line in the history of every pool that changed, if all went well.
pub fn log(cx: &mut Cx, mut pools: Vec<String>, failed: bool) -> Result<(), Exit> {
    pools.sort();
    pools.dedup();
    if !failed {
        for pool in pools {
            cx.log_history(&pool)?;
        }
    }
    Ok(())
}

pub fn inherit(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "rS", &[]);
    let (mut recursive, mut received) = (false, false);
    for option in options {
        match option {
            Opt::Flag('r', _) => recursive = true,
            Opt::Flag('S', _) => received = true,
            other => return cx.bad_option(other),
        }
    }
    let Some((property, names)) = operands.split_first() else {
        return cx.bad_usage("missing property argument");
    };
    if names.is_empty() {
        return cx.bad_usage("missing dataset argument");
    }
    let desc = props::dataset_prop(property);
    match desc {
        Some(desc) if desc.attr == PropAttr::ReadOnly => {
            cx.err(format!("{property} property is read-only"));
            return Ok(1);
        }
        Some(desc) if !desc.inheritable() && !received => {
            cx.err(format!("'{property}' property cannot be inherited"));
            if matches!(desc.name, "quota" | "reservation" | "refquota" | "refreservation") {
                cx.err(format!("use 'zfs set {property}=none' to clear"));
                cx.err(format!("use 'zfs inherit -S {property}' to revert to received value"));
            }
            return Ok(1);
        }
        Some(desc) if received && matches!(desc.name, "volsize" | "version") => {
            cx.err(format!("'{property}' property cannot be reverted to a received value"));
            return Ok(1);
        }
        None if !props::is_user_prop(property) => {
            return cx.bad_usage(format!("invalid property '{property}'"));
        }
        _ => {}
    }
    let selection =
        Selection { operands: names.to_vec(), recursive, kinds: DATASETS.to_vec(), ..Selection::default() };
    let (datasets, mut failed) = selection.find(cx, Vec::new())?;
    let mut changed = Vec::new();
    for dataset in datasets {
        // Below the one named, what cannot have the property is passed over.
        if recursive && desc.is_some_and(|d| !d.applies_to(types_of(dataset.kind))) {
            continue;
        }
        let name = dataset.name;
        let request = DatasetInherit {
            name: name.clone(),
            property: desc.map_or(property.as_str(), |d| d.name).to_owned(),
            received,
        };
        match cx.ask(&format!("cannot inherit {property} for '{name}'"), &request)? {
            None => failed = true,
            Some(reply) => {
                if let Some(e) = &reply.mount_error {
                    let subject = e.subject.as_deref().unwrap_or(&name);
                    cx.refused(&format!("cannot {} '{subject}'", share::verbs(e).0), e);
                    failed |= !moves(desc.map_or(property.as_str(), |d| d.name));
                }
                changed.push(pool_of(&name).to_owned());
            }
        }
    }
    log(cx, changed, failed)?;
    Ok(u8::from(failed))
}
