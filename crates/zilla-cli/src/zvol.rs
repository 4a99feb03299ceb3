//! `zilla zvol`: volumes as block devices and files, where there is no NBD driver.
//!
//! The daemon shows volumes as files; a loop device on such a file is a block device. Only root may
//! set one up, and may then have it linked where OpenZFS's device node would be.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_control::StateDir;
use zilla_control::props::naming::check_dataset_name;
use zilla_control::props::{SNAP, VOL};
use zilla_control::types::VolumeFiles;

const USAGE: &str = "usage:
\tzilla zvol files
\tzilla zvol attach [-r] volume|snapshot
\tzilla zvol detach volume|snapshot
";

/// Where OpenZFS has a volume's device.
const DEV_ZVOL: &str = "/dev/zvol";

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage(USAGE, requested);
}

/// Runs `zilla zvol` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla zvol", args, usage, run)
}

fn run(cx: &mut Cx, mut args: Vec<String>) -> Run {
    if args.is_empty() {
        return cx.bad_usage("missing command");
    }
    let command = args.remove(0);
    let (options, operands) = args::parse(&args, "r", &[]);
    let mut readonly = false;
    for option in options {
        match option {
            Opt::Flag('r', _) if command == "attach" => readonly = true,
            other => return cx.bad_option(other),
        }
    }
    match (command.as_str(), operands.as_slice()) {
        ("files", []) => {
            let Some(dir) = files(cx)? else { return Ok(1) };
            cx.out.line(dir.to_string_lossy());
            Ok(0)
        }
        ("attach", [name]) => attach(cx, name, readonly),
        ("detach", [name]) => detach(cx, name),
        ("attach" | "detach", []) => cx.bad_usage("missing volume argument"),
        ("files" | "attach" | "detach", _) => cx.bad_usage("too many arguments"),
        _ => cx.bad_usage(format!("unrecognized command '{command}'")),
    }
}

/// The directory in which the daemon shows volumes as files.
fn files(cx: &mut Cx) -> Result<Option<PathBuf>, Exit> {
    Ok(cx.ask("cannot show volumes as files", &VolumeFiles {})?.map(PathBuf::from))
}

/// The file of a volume.
fn file(cx: &mut Cx, action: &str, name: &str) -> Result<Option<PathBuf>, Exit> {
    // A name is a path here: it must be nothing else.
    if let Err(e) = check_dataset_name(name, VOL | SNAP, false) {
        cx.refused(action, &e);
        return Ok(None);
    }
    let Some(dir) = files(cx)? else { return Ok(None) };
    let path = dir.join(name);
    if !path.is_file() {
        cx.err(format!("{action}: there is no such volume, or it is not offered ('volmode', 'snapdev')"));
        return Ok(None);
    }
    Ok(Some(path))
}

/// Runs a program of the host and gives what it printed.
fn host(cx: &mut Cx, program: &str, args: &[&str]) -> Option<String> {
    match Command::new(program).args(args).output() {
        Ok(out) if out.status.success() => Some(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
        Ok(out) => {
            cx.err(format!("{program}: {}", String::from_utf8_lossy(&out.stderr).trim()));
            None
        }
        Err(e) => {
            cx.err(format!("cannot run '{program}': {e}"));
            None
        }
    }
}

/// The loop devices on a file.
fn loops(cx: &mut Cx, file: &Path) -> Option<Vec<String>> {
    let out = host(cx, "losetup", &["--list", "--noheadings", "-O", "NAME", "-j", &file.to_string_lossy()])?;
    Some(out.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect())
}

fn attach(cx: &mut Cx, name: &str, readonly: bool) -> Run {
    let action = format!("cannot attach '{name}'");
    // Devices that a killed daemon left are known by its dead mount, which asking for files
    // replaces.
    if let Ok(dir) = StateDir::to_ask() {
        zilla_daemon::keeper::clear_stale(&dir.zvol_dir());
    }
    let Some(file) = file(cx, &action, name)? else { return Ok(1) };
    let device = match loops(cx, &file) {
        Some(known) => known.into_iter().next(),
        None => return Ok(1),
    };
    let device = match device {
        Some(device) => device,
        None => {
            let path = file.to_string_lossy();
            let mut args = vec!["--find", "--show", "--direct-io=on", "--partscan"];
            if readonly || name.contains('@') {
                args.push("--read-only");
            }
            args.push(&path);
            let Some(device) = host(cx, "losetup", &args) else { return Ok(1) };
            device
        }
    };
    if rustix::process::geteuid().is_root() {
        let link = Path::new(DEV_ZVOL).join(name);
        let linked = link.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| {
            // A link of an earlier attachment leads nowhere.
            if link.is_symlink() {
                std::fs::remove_file(&link)?;
            }
            std::os::unix::fs::symlink(&device, &link)
        });
        if let Err(e) = linked {
            cx.err(format!("'{}': {e}", link.display()));
            cx.out.line(device);
            return Ok(1);
        }
    }
    cx.out.line(device);
    Ok(0)
}

fn detach(cx: &mut Cx, name: &str) -> Run {
    let action = format!("cannot detach '{name}'");
    let Some(file) = file(cx, &action, name)? else { return Ok(1) };
    let Some(devices) = loops(cx, &file) else { return Ok(1) };
    if devices.is_empty() {
        cx.err(format!("{action}: not attached"));
        return Ok(1);
    }
    for device in &devices {
        if host(cx, "losetup", &["--detach", device]).is_none() {
            return Ok(1);
        }
    }
    // The kernel lets go of one that is in use when its last user leaves it; the daemon's own comes
    // back then.
    let Some(left) = loops(cx, &file) else { return Ok(1) };
    if let Some(device) = left.first() {
        cx.err(format!("{action}: '{device}' is in use"));
        return Ok(1);
    }
    let link = Path::new(DEV_ZVOL).join(name);
    if std::fs::read_link(&link).is_ok_and(|to| devices.iter().any(|d| Path::new(d) == to)) {
        if let Err(e) = std::fs::remove_file(&link) {
            cx.err(format!("'{}': {e}", link.display()));
            return Ok(1);
        }
        // Directories that were made for it go with the last.
        let above = link.ancestors().skip(1).take_while(|d| *d != Path::new(DEV_ZVOL));
        for dir in above {
            if std::fs::remove_dir(dir).is_err() {
                break;
            }
        }
    }
    Ok(0)
}
