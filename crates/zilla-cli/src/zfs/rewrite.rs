//! `zfs rewrite`: the blocks of files written anew, so that they are stored as properties now say.
//!
//! Files are asked themselves, through the mount they lie in, by OpenZFS's own call for it; a file
//! system that has no such call says so. What a file holds does not change, so the command may be
//! cut off anywhere and given again. Symbolic links are not followed below what is named, and one
//! that fails is named while the others go on.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Setter, ioctl, opcode};
use std::os::unix::fs::MetadataExt;
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

fn complain(cx: &mut Cx, what: &str, path: &Path, e: &std::io::Error) -> bool {
    cx.err(format!("failed to {what} {}: {}", path.display(), zilla_env::strerror(e)));
    false
}

/// What an operand names; whether all went well.
fn tree(cx: &mut Cx, top: &Path, task: Task) -> bool {
    let meta = match std::fs::metadata(top) {
        Ok(meta) => meta,
        Err(e) => return complain(cx, "stat", top, &e),
    };
    if meta.is_file() {
        return file(cx, top, task, false);
    }
    if !meta.is_dir() {
        cx.err(format!("can only rewrite regular files and directories: {}", top.display()));
        return false;
    }
    let mut well = true;
    let mut todo: Vec<PathBuf> = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            // Whoever removes files meanwhile is no error.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => {
                well = complain(cx, "opendir", &dir, &e);
                continue;
            }
        };
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(e) => {
                    well = complain(cx, "readdir", &dir, &e);
                    break;
                }
            };
            let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
            if task.one_file_system && found.dev() != meta.dev() {
                continue;
            }
            if found.is_file() {
                well &= file(cx, &path, task, true);
            } else if found.is_dir() && task.recursive {
                todo.push(path);
            }
        }
    }
    well
}

fn file(cx: &mut Cx, path: &Path, task: Task, may_be_gone: bool) -> bool {
    let mut flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // What is found in a directory may have been changed for a link to somewhere else.
    flags.set(OFlags::NOFOLLOW, may_be_gone);
    let opened = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) if may_be_gone => return true,
        Err(e) => return complain(cx, "open", path, &e.into()),
    };
    // SAFETY: the call reads the structure of this number and size.
    match unsafe { ioctl(&opened, Setter::<REWRITE, Rewrite>::new(task.range)) } {
        Ok(()) => {
            if task.verbose {
                cx.out.line(path.display().to_string());
            }
            true
        }
        Err(e) => complain(cx, "rewrite", path, &e.into()),
    }
}
