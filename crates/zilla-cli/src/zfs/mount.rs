//! `zfs mount` and `zfs unmount`.

use super::keys;
use super::mount_progress::Progress;
use super::select::Selection;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::json::{self, Obj};
use crate::fmt::one_line;
use zilla_control::ErrorCode;
use zilla_control::types::{DatasetKind, DatasetMount, DatasetUnmount, ManyReply, MountList};

pub fn mount(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, ":ajRlvo:Of", &[("json", false, 'j')]);
    let mut request = DatasetMount::default();
    let (mut all, mut as_json, mut load, mut verbose) = (false, false, false, false);
    for option in options {
        match option {
            Opt::Flag('a', _) => all = true,
            Opt::Flag('R', _) => request.recursive = true,
            Opt::Flag('v', _) => verbose = true,
            Opt::Flag('l', _) => load = true,
            Opt::Flag('j', _) => as_json = true,
            Opt::Flag('o', text) if text.is_empty() => {
                return cx.bad_usage("empty mount options (-o) specified");
            }
            Opt::Flag('o', text) => request.options.extend(text.split(',').map(str::to_owned)),
            Opt::Flag('O', _) => request.overlay = true,
            Opt::Flag('f', _) => request.force = true,
            other => return cx.bad_option(other),
        }
    }
    if as_json && !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    if all && !operands.is_empty() {
        return cx.bad_usage("too many arguments");
    }
    if request.recursive && operands.is_empty() {
        return cx.bad_usage("no dataset provided");
    }
    if all && load {
        load_keys(cx, &[], true)?;
    }
    if all {
        let progress = if verbose { begin_progress(cx)? } else { None };
        let done = cx.ask("cannot mount", &request);
        if let Some(progress) = progress {
            progress.end();
        }
        let done = done?;
        return report(cx, "mount", "", done);
    }
    if operands.is_empty() {
        if !request.options.is_empty() {
            return cx.bad_usage("missing filesystem argument (specify -a for all)");
        }
        return show(cx, as_json);
    }
    if operands.len() > 1 && !request.recursive {
        return cx.bad_usage("too many arguments");
    }
    let (datasets, missing) = filesystems(cx, &operands)?;
    if missing {
        return if request.recursive { cx.print_usage() } else { Ok(1) };
    }
    let mut code = 0;
    if load {
        code |= load_keys(cx, &datasets, request.recursive)?;
    }
    for name in datasets {
        let request = DatasetMount { name: Some(name.clone()), ..request.clone() };
        let done = cx.ask(&format!("cannot mount '{name}'"), &request)?;
        code |= report(cx, "mount", &name, done)?;
    }
    Ok(code)
}

/// Begins to print how far `-a -v` has come.
fn begin_progress(cx: &mut Cx) -> Result<Option<Progress>, Exit> {
    let wanted = ["mounted", "canmount", "mountpoint", "keystatus"].map(str::to_owned).to_vec();
    let selection = Selection { kinds: vec![DatasetKind::Filesystem], ..Selection::default() };
    let (found, _) = selection.find(cx, wanted)?;
    let to_mount = found.into_iter().filter(|d| {
        let get = |name: &str| d.properties.get(name).map_or("", |v| v.value.as_str());
        let wants = get("canmount") == "on" && get("mountpoint").starts_with('/');
        wants && get("mounted") == "no" && get("keystatus") != "unavailable"
    });
    let to_mount = to_mount.map(|d| d.name).collect();
    let client = cx.client()?.another().ok();
    Ok(client.and_then(|client| Progress::begin(client, to_mount)))
}

/// `-l`: loads the keys that datasets need which are not loaded.
pub(super) fn load_keys(cx: &mut Cx, names: &[String], recursive: bool) -> Run {
    let (found, _) = keys::find(cx, names, recursive || names.is_empty())?;
    let mut roots: Vec<String> = Vec::new();
    for ds in found.iter().filter(|d| d.is_encrypted() && !d.is_loaded()) {
        if !roots.iter().any(|r| r == ds.root()) {
            roots.push(ds.root().to_owned());
        }
    }
    let mut code = 0;
    for root in roots {
        let (found, _) = keys::find(cx, &[root], false)?;
        for ds in found {
            code |= u8::from(!keys::load(cx, &ds, false, None)?);
        }
    }
    Ok(code)
}

/// What `zpool import -l` does at its end: loads the keys of a pool, and mounts what is to be
/// mounted.
pub fn load_and_mount(cx: &mut Cx, pool: &str, options: &[String]) -> Run {
    let code = load_keys(cx, &[pool.to_owned()], true)?;
    let (pool, options) = (Some(pool.to_owned()), options.to_vec());
    let request = DatasetMount { pool, options, ..DatasetMount::default() };
    let done = cx.ask("cannot mount", &request)?;
    Ok(code | report(cx, "mount", "", done)?)
}

/// Names of existing filesystems, or a complaint about each that is none.
pub(super) fn filesystems(cx: &mut Cx, operands: &[String]) -> Result<(Vec<String>, bool), Exit> {
    let selection = Selection {
        operands: operands.to_vec(),
        kinds: vec![DatasetKind::Filesystem],
        ..Selection::default()
    };
    let (datasets, failed) = selection.find(cx, Vec::new())?;
    Ok((datasets.into_iter().map(|d| d.name).collect(), failed))
}

pub(super) fn report(cx: &mut Cx, verb: &str, name: &str, done: Option<ManyReply>) -> Run {
    let Some(reply) = done else { return Ok(1) };
    for e in &reply.errors {
        if verb == "unmount" && e.code == ErrorCode::CryptoFailed {
            cx.refused("Key unload error", e);
            continue;
        }
        let subject = e.subject.as_deref().unwrap_or(name);
        cx.refused(&format!("cannot {verb} '{subject}'"), e);
    }
    Ok(u8::from(!reply.errors.is_empty()))
}

fn show(cx: &mut Cx, as_json: bool) -> Run {
    let Some(mounts) = cx.ask("cannot list mounts", &MountList {})? else { return Ok(1) };
    if as_json {
        let mut members = Obj::new();
        for mount in &mounts {
            let mut item = Obj::new();
            item.str("filesystem", mount.dataset.as_str());
            item.str("mountpoint", mount.mountpoint.as_str());
            members.obj(mount.dataset.as_str(), item);
        }
        if !members.is_empty() {
            let mut root = json::schema("zfs", "mount");
            root.obj("datasets", members);
            cx.out.line(root.render());
        }
        return Ok(0);
    }
    for mount in &mounts {
        cx.out.line(format!("{:<30}  {}", mount.dataset, one_line(&mount.mountpoint)));
    }
    Ok(0)
}

pub fn unmount(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "afu", &[]);
    let mut request = DatasetUnmount::default();
    let mut all = false;
    for option in options {
        match option {
            Opt::Flag('a', _) => all = true,
            Opt::Flag('f', _) => request.force = true,
            Opt::Flag('u', _) => request.unload_keys = true,
            other => return cx.bad_option(other),
        }
    }
    if all {
        if !operands.is_empty() {
            return cx.bad_usage("too many arguments");
        }
        let done = cx.ask("cannot unmount", &request)?;
        return report(cx, "unmount", "", done);
    }
    let target = match operands.as_slice() {
        [target] => target.clone(),
        [] => return cx.bad_usage("missing filesystem argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    if !target.starts_with('/') {
        let (_, missing) = filesystems(cx, &operands)?;
        if missing {
            return Ok(1);
        }
    }
    request.target = Some(target.clone());
    let done = cx.ask(&format!("cannot unmount '{target}'"), &request)?;
    report(cx, "unmount", &target, done)
}
