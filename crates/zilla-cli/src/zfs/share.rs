//! `zfs share` and `zfs unshare`.

use super::mount::{filesystems, load_keys, report};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use zilla_control::types::{DatasetShare, DatasetUnshare, ManyReply, ShareProtocol};
use zilla_control::{ApiError, ErrorCode};

/// What failed after a property was set, and what would be done again for it.
pub fn verbs(e: &ApiError) -> (&'static str, &'static str) {
    match e.code {
        ErrorCode::ShareFailed => ("share", "reshare"),
        _ => ("mount", "remount"),
    }
}

/// The protocol that `-a` may name.
fn protocol(cx: &mut Cx, operands: &[String]) -> Result<Option<ShareProtocol>, crate::cx::Exit> {
    match operands {
        [] => Ok(None),
        [one] if one == "nfs" => Ok(Some(ShareProtocol::Nfs)),
        [one] if one == "smb" => Ok(Some(ShareProtocol::Smb)),
        [other] => {
            cx.err(format!("share type must be one of: nfs, smb (not '{other}')"));
            Err(crate::cx::Exit(1))
        }
        _ => cx.bad_usage("too many arguments"),
    }
}

pub fn share(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "al", &[]);
    let (mut all, mut load) = (false, false);
    for option in options {
        match option {
            Opt::Flag('a', _) => all = true,
            Opt::Flag('l', _) => load = true,
            other => return cx.bad_option(other),
        }
    }
    if all {
        let protocol = protocol(cx, &operands)?;
        let loaded = if load { load_keys(cx, &[], true)? } else { 0 };
        let done = cx.ask("cannot share", &DatasetShare { name: None, protocol })?;
        return Ok(loaded | report(cx, "share", "", done)?);
    }
    let name = match operands.as_slice() {
        [name] => name.clone(),
        [] => return cx.bad_usage("missing filesystem argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    let (_, missing) = filesystems(cx, &operands)?;
    if missing {
        return Ok(1);
    }
    let mut code = 0;
    if load {
        code = load_keys(cx, &operands, false)?;
    }
    match cx.call(&DatasetShare { name: Some(name.clone()), protocol: None })? {
        Ok(ManyReply { .. }) => Ok(code),
        Err(e) => {
            let legacy = e.message.as_deref() == Some("legacy share");
            let verb = if e.code == ErrorCode::MountFailed { "mount" } else { "share" };
            cx.refused(&format!("cannot {verb} '{name}'"), &e);
            if legacy {
                cx.err(
                    "use exports(5) or smb.conf(5) to share this filesystem, or set the sharenfs or sharesmb \
                     property",
                );
            }
            Ok(1)
        }
    }
}

pub fn unshare(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "a", &[]);
    let mut all = false;
    for option in options {
        match option {
            Opt::Flag('a', _) => all = true,
            other => return cx.bad_option(other),
        }
    }
    if all {
        let protocol = protocol(cx, &operands)?;
        let done = cx.ask("cannot unshare", &DatasetUnshare { target: None, protocol })?;
        return report(cx, "unshare", "", done);
    }
    let target = match operands.as_slice() {
        [target] => target.clone(),
        [] => return cx.bad_usage("missing filesystem argument"),
        _ => return cx.bad_usage("too many arguments"),
    };
    if !target.starts_with('/') && filesystems(cx, &operands)?.1 {
        return Ok(1);
    }
    let request = DatasetUnshare { target: Some(target.clone()), protocol: None };
    let done = cx.ask(&format!("cannot unshare '{target}'"), &request)?;
    report(cx, "unshare", &target, done)
}
