//! `mount.zfs`: what `mount -t zfs` and the lines of /etc/fstab call; `mount.fuse.zfs`: what
//! `mount -o remount` calls, by the type that the kernel has for what is mounted.
//!
//! It is for file systems with `mountpoint=legacy`; another one's place is its property's, and is
//! mounted elsewhere only with the option `zfsutil`, as OpenZFS has it. A snapshot is mounted
//! anywhere, read-only. The exit codes are those of mount(8).

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use zilla_control::types::{DatasetKind, DatasetMount, DatasetQuery};

/// Exit codes. Source: mount(8).
const USAGE: u8 = 1;
const FAILED: u8 = 32;

pub fn main(args: Vec<String>) -> u8 {
    Cx::main("mount.zfs", args, usage, run)
}

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage("Usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>\n", requested);
}

/// What the kernel says of every mount of ours, and mount(8) repeats in a remount.
const TOLD: [&str; 4] = ["default_permissions", "allow_other", "user_id=0", "group_id=0"];

/// Words of fstab that are mount(8)'s own or mean nothing to the kernel.
const NOT_OURS: [&str; 12] = [
    "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "async", "loud",
    "mand",
];

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "sfnvt:o:h?", &[]);
    let (mut fake, mut sloppy, mut words) = (false, false, Vec::new());
    for option in options {
        match option {
            Opt::Flag('s', _) => sloppy = true,
            Opt::Flag('f', _) => fake = true,
            // There is no mtab to be left alone, and nothing to be said.
            Opt::Flag('n' | 'v', _) => {}
            Opt::Flag('t', kind) if kind == "zfs" || kind == "fuse.zfs" => {}
            Opt::Flag('o', text) => {
                words.extend(text.split(',').filter(|w| !w.is_empty()).map(str::to_owned))
            }
            // Also what was asked for by `-h`.
            _ => {
                usage(cx, false);
                return Ok(USAGE);
            }
        }
    }
    let [name, place] = operands.as_slice() else {
        cx.err(if operands.is_empty() { "missing dataset argument" } else { "missing mountpoint argument" });
        cx.err("usage: mount <dataset> <mountpoint>");
        return Ok(USAGE);
    };
    let util = words.iter().any(|w| w == "zfsutil");
    let remount = words.iter().any(|w| w == "remount");
    words.retain(|w| w != "zfsutil" && !w.starts_with("x-") && !NOT_OURS.contains(&w.as_str()));
    words.retain(|w| !remount || !TOLD.contains(&w.as_str()));
    if sloppy {
        words.retain(|w| known(w));
    } else if let Some(word) = words.iter().find(|w| !known(w)) {
        cx.err(format!("filesystem '{name}' cannot be mounted due to invalid option '{word}'."));
        cx.err("Use the '-s' option to ignore the bad mount option.");
        return Ok(USAGE);
    }
    let Some(legacy) = is_legacy(cx, name)? else {
        cx.err(format!("filesystem '{name}' cannot be mounted, unable to open the dataset"));
        return Ok(USAGE);
    };
    if !legacy && !util && !remount {
        cx.err(format!("filesystem '{name}' cannot be mounted using 'mount'."));
        cx.err(format!("Use 'zfs set mountpoint=legacy' or 'zfs mount {name}'."));
        cx.err("See zfs(8) for more information.");
        return Ok(USAGE);
    }
    let place =
        std::path::absolute(place).map_or_else(|_| place.clone(), |p| p.to_string_lossy().into_owned());
    if !std::path::Path::new(&place).is_dir() {
        cx.err(format!("mount point '{place}' does not exist"));
        return Ok(FAILED);
    }
    if fake {
        return Ok(0);
    }
    let request = DatasetMount {
        name: Some(name.clone()),
        at: (!remount).then_some(place),
        options: words,
        overlay: true,
        ..DatasetMount::default()
    };
    match cx.call(&request)? {
        Ok(_) => Ok(0),
        Err(e) if e.description() == "filesystem already mounted" => {
            cx.err(format!("filesystem '{name}' is already mounted"));
            Ok(FAILED)
        }
        Err(e) => {
            cx.refused(&format!("filesystem '{name}' can not be mounted"), &e);
            Ok(FAILED)
        }
    }
}

/// What the daemon takes for an option of a mount.
fn known(word: &str) -> bool {
    matches!(
        word,
        "ro" | "rw"
            | "suid"
            | "nosuid"
            | "setuid"
            | "nosetuid"
            | "dev"
            | "nodev"
            | "devices"
            | "nodevices"
            | "exec"
            | "noexec"
            | "atime"
            | "noatime"
            | "relatime"
            | "norelatime"
            | "strictatime"
            | "diratime"
            | "nodiratime"
            | "xattr"
            | "noxattr"
            | "remount"
            | "defaults"
    )
}

/// None: there is no such file system.
fn is_legacy(cx: &mut Cx, name: &str) -> Result<Option<bool>, Exit> {
    // All places of a snapshot are somebody's choice.
    let is_snapshot = name.contains('@');
    let kind = if is_snapshot { DatasetKind::Snapshot } else { DatasetKind::Filesystem };
    let request = DatasetQuery {
        roots: vec![name.to_owned()],
        depth: Some(0),
        kinds: vec![kind],
        properties: vec!["mountpoint".to_owned()],
        ..DatasetQuery::default()
    };
    let Ok(reply) = cx.call(&request)? else { return Ok(None) };
    let found = reply.datasets.iter().find(|d| d.name == *name);
    Ok(found.map(|d| is_snapshot || d.properties.get("mountpoint").is_some_and(|p| p.value == "legacy")))
}
