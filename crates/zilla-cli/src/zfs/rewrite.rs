//! `zfs rewrite`: the blocks of files written anew, so that they are stored as properties now say.
//!
//! Files are asked themselves, through the mount they lie in, by OpenZFS's own call for it; a file
//! system that has no such call says so. What a file holds does not change, so the command may be
//! cut off anywhere and given again. Symbolic links are not followed below what is named
//! ([`super::below`]), and one that fails is named while the others go on.

use super::below::{entries, found_in};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zilla_control::props::parse_size;

/// `zfs_rewrite_args_t` of OpenZFS's zfs_ioctl.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Rewrite {
    flags: u64,
    off: u64,
    len: u64,
    arg: u64,
}

/// ZFS_IOC_REWRITE of the same.
const REWRITE: rustix::ioctl::Opcode = opcode::write::<Rewrite>(0x83, 3);

#[derive(Clone, Copy, Default)]
struct Task {
    recursive: bool,
    verbose: bool,
    /// Only what lies in the same file system.
    one_file_system: bool,
    range: Rewrite,
}

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, operands) = args::parse(&args, "l:o:rvx", &[]);
    let mut task = Task::default();
    for option in options {
        match option {
            Opt::Flag('r', _) => task.recursive = true,
            Opt::Flag('v', _) => task.verbose = true,
            Opt::Flag('x', _) => task.one_file_system = true,
            Opt::Flag(letter @ ('l' | 'o'), text) => match parse_size(&text) {
                Ok(n) if letter == 'l' => task.range.len = n,
                Ok(n) => task.range.off = n,
                Err(_) => return cx.bad_usage(format!("invalid value '{text}' for '-{letter}'")),
            },
            other => return cx.bad_option(other),
        }
    }
    if operands.is_empty() {
        return cx.bad_usage("missing file or directory target(s)");
    }
    let mut failed = false;
    for name in operands {
        failed |= !tree(cx, Path::new(&name), task);
    }
    Ok(u8::from(failed))
}

fn complain(cx: &mut Cx, what: &str, path: &Path, e: Errno) -> bool {
    cx.err(format!("failed to {what} {}: {}", path.display(), zilla_env::strerror(&e.into())));
    false
}

/// What an operand names; whether all went well.
fn tree(cx: &mut Cx, top: &Path, task: Task) -> bool {
    // What is neither may do something when it is opened.
    let stat = match rustix::fs::stat(top) {
        Ok(stat) => stat,
        Err(e) => return complain(cx, "stat", top, e),
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    let how = OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if kind.is_file() {
        return match rustix::fs::open(top, how | OFlags::WRONLY, Mode::empty()) {
            Ok(opened) => file(cx, top, &opened, task),
            Err(e) => complain(cx, "open", top, e),
        };
    }
    if !kind.is_dir() {
        cx.err(format!("can only rewrite regular files and directories: {}", top.display()));
        return false;
    }
    let opened = match rustix::fs::open(top, how | OFlags::DIRECTORY, Mode::empty()) {
        Ok(opened) => opened,
        Err(e) => return complain(cx, "opendir", top, e),
    };
    let device = match rustix::fs::fstat(&opened) {
        Ok(stat) => stat.st_dev,
        Err(e) => return complain(cx, "stat", top, e),
    };
    let mut well = true;
    let mut todo = vec![PathBuf::new()];
    while let Some(way) = todo.pop() {
        well &= directory(cx, (top, &opened, device), &way, task, &mut todo);
    }
    well
}

/// Those in a directory below the one that was named, to which this way leads; its directories are
/// added to those that are to be gone into.
fn directory(
    cx: &mut Cx,
    (named, top, device): (&Path, &OwnedFd, u64),
    way: &Path,
    task: Task,
    todo: &mut Vec<PathBuf>,
) -> bool {
    // (What is joined to an empty way has a slash at its end.)
    let shown = if way.as_os_str().is_empty() { named.to_owned() } else { named.join(way) };
    let (dir, entries) = match entries(top, way) {
        Ok(Some(opened)) => opened,
        // Whoever removes files meanwhile is no error.
        Ok(None) => return true,
        Err(e) => return complain(cx, "opendir", &shown, e),
    };
    let mut well = true;
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => return complain(cx, "readdir", &shown, e),
        };
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if task.one_file_system && stat.st_dev != device {
            continue;
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_dir() && task.recursive {
            todo.push(way.join(name));
        } else if kind.is_file() {
            well &= match found_in(&dir, name, OFlags::WRONLY) {
                Ok(Some(opened)) => file(cx, &shown.join(name), &opened, task),
                Ok(None) => true,
                Err(e) => complain(cx, "open", &shown.join(name), e),
            };
        }
    }
    well
}

fn file(cx: &mut Cx, path: &Path, opened: &OwnedFd, task: Task) -> bool {
    // SAFETY: the call reads the structure of this number and size.
    match unsafe { ioctl(opened, Setter::<REWRITE, Rewrite>::new(task.range)) } {
        Ok(()) => {
            if task.verbose {
                cx.out.line(path.display().to_string());
            }
            true
        }
        Err(e) => complain(cx, "rewrite", path, e),
    }
}
