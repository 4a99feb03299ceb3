//! `zfs upgrade`: the versions of file systems.

use super::select::Selection;
use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use std::collections::BTreeMap;
use zilla_control::types::{DatasetInfo, DatasetKind, DatasetSet};

/// The newest version of file systems. Source: ZPL_VERSION in sys/fs/zfs.h.
const ZPL_VERSION: u64 = 5;

const VERSIONS: &str = "The following filesystem versions are supported:

VER  DESCRIPTION
---  --------------------------------------------------------
 1   Initial ZFS filesystem version
 2   Enhanced directory entries
 3   Case insensitive and filesystem user identifier (FUID)
 4   userquota, groupquota properties
 5   System attributes

For more information on a particular version, including supported releases,
see the ZFS Administration Guide.

";

const OLDER: &str = "The following filesystems are out of date, and can be upgraded.  After being
upgraded, these filesystems (and any 'zfs send' streams generated from
subsequent snapshots) will no longer be accessible by older software versions.

";

const NEWER: &str = "The following filesystems are formatted using a newer software version and
cannot be accessed on the current system.

";

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "rvV:a", &[]);
    let (mut recursive, mut show, mut all, mut version) = (false, false, false, None);
    for option in options {
        match option {
            Opt::Flag('r', _) => recursive = true,
            Opt::Flag('v', _) => show = true,
            Opt::Flag('a', _) => all = true,
            Opt::Flag('V', text) => match text.parse::<u64>() {
                Ok(n) if (1..=ZPL_VERSION).contains(&n) => version = Some(n),
                _ if text == "current" => version = Some(ZPL_VERSION),
                _ => return cx.bad_usage(format!("invalid version {text}")),
            },
            other => return cx.bad_option(other),
        }
    }
    let some = all || !operands.is_empty();
    let more = recursive || version.is_some();
    let contradictory = if show { more || some } else { more && !some };
    if contradictory || all && !operands.is_empty() {
        return cx.print_usage();
    }
    if show {
        cx.out.put(VERSIONS);
        return Ok(0);
    }
    let selection = Selection {
        operands,
        recursive: recursive || !some || all,
        kinds: vec![DatasetKind::Filesystem],
        paths: true,
        ..Selection::default()
    };
    let (found, failed) = selection.find(cx, vec!["version".to_owned()])?;
    if some {
        return set(cx, &found, version.unwrap_or(ZPL_VERSION), failed);
    }
    cx.out.line(format!("This system is currently running ZFS filesystem version {ZPL_VERSION}.\n"));
    let older = list(cx, &found, OLDER, |v| v < ZPL_VERSION);
    let newer = list(cx, &found, NEWER, |v| v > ZPL_VERSION);
    if !older && !newer {
        cx.out.line("All filesystems are formatted with the current version.");
    }
    Ok(u8::from(failed))
}

fn version_of(fs: &DatasetInfo) -> u64 {
    fs.properties.get("version").and_then(|p| p.value.parse().ok()).unwrap_or(ZPL_VERSION)
}

fn list(cx: &mut Cx, found: &[DatasetInfo], head: &str, wanted: impl Fn(u64) -> bool) -> bool {
    let mut any = false;
    for fs in found.iter().filter(|fs| wanted(version_of(fs))) {
        if !any {
            cx.out.put(head);
            cx.out.put("\nVER  FILESYSTEM\n---  ------------\n");
        }
        any = true;
        cx.out.line(format!("{:2}   {}", version_of(fs), fs.name));
    }
    any
}

fn set(cx: &mut Cx, found: &[DatasetInfo], version: u64, mut failed: bool) -> Result<u8, Exit> {
    let (mut upgraded, mut same) = (0, 0);
    for fs in found {
        let now = version_of(fs);
        if now == version {
            same += 1;
        } else if now > version {
            cx.out.line(format!("{}: can not be downgraded; it is already at version {now}", fs.name));
            failed = true;
        } else {
            let properties = BTreeMap::from([("version".to_owned(), version.to_string())]);
            let request = DatasetSet { name: fs.name.clone(), properties, no_mount: true };
            match cx.ask(&format!("cannot set property for '{}'", fs.name), &request)? {
                Some(_) => upgraded += 1,
                None => failed = true,
            }
        }
    }
    cx.out.line(format!("{upgraded} filesystems upgraded"));
    if same > 0 {
        cx.out.line(format!("{same} filesystems already at this version"));
    }
    Ok(u8::from(failed))
}
