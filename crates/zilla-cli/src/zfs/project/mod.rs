//! `zfs project`: the project of files and directories, shown, checked, set and cleared.
//!
//! Files are asked themselves, through the mount they lie in, by the kernel's own call for it
//! ([`fsx`]); the daemon has no part in it. So who may change a file's project is judged where all
//! changes of files are, and a file system of another kind answers for itself.
//!
//! What it keeps true: a file that cannot be asked or changed ends the command for the operand it
//! was found below, and is named; others are still handled. Names that vanish while a directory is
//! gone through are no error, as whoever removes files meanwhile is right.
//!
//! A crash in between leaves some files changed and others not: each by itself is one or the other,
//! and the command can be given again. Below what is named, symbolic links are not followed, and
//! only files and directories are looked at ([`super::below`]).

mod fsx;

use super::below::{entries, found_in};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use fsx::{Fsx, XFLAG_PROJINHERIT};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Of files that belong to no project.
const DEFAULT_PROJID: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    List,
    Check,
    Clear,
    Set,
}

#[derive(Debug, Clone)]
struct Task {
    op: Op,
    projid: Option<u32>,
    dir_only: bool,
    recursive: bool,
    keep_projid: bool,
    set_flag: bool,
    newline: bool,
}

/// Something was complained about.
struct Failed;

fn words(e: Errno) -> String {
    zilla_env::strerror(&std::io::Error::from(e))
}

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    if args.is_empty() {
        return cx.print_usage();
    }
    let (options, operands) = args::parse(&args, "0Ccdkp:rs", &[]);
    let mut op = None;
    let mut task = Task {
        op: Op::List,
        projid: None,
        dir_only: false,
        recursive: false,
        keep_projid: false,
        set_flag: false,
        newline: true,
    };
    for option in options {
        match option {
            Opt::Flag('0', _) => task.newline = false,
            Opt::Flag(letter @ ('C' | 'c' | 's'), _) => {
                if op.is_some() {
                    return cx.bad_usage("cannot specify '-C' '-c' '-s' together");
                }
                task.set_flag = letter == 's';
                op = Some(match letter {
                    'C' => Op::Clear,
                    'c' => Op::Check,
                    _ => Op::Set,
                });
            }
            Opt::Flag('d', _) => (task.dir_only, task.recursive) = (true, false),
            Opt::Flag('r', _) => (task.dir_only, task.recursive) = (false, true),
            Opt::Flag('k', _) => task.keep_projid = true,
            Opt::Flag('p', text) => match args::number(&text) {
                None => return cx.bad_usage(format!("project ID must be less than {}", u32::MAX)),
                Some(id) => match u32::try_from(id).ok().filter(|id| *id != u32::MAX) {
                    None => return cx.bad_usage("invalid project ID"),
                    id => task.projid = id,
                },
            },
            other => return cx.bad_option(other),
        }
    }
    let default = if task.projid.is_some() { Op::Set } else { Op::List };
    task.op = op.unwrap_or(default);
    if let Some(why) = contradiction(&task) {
        return cx.bad_usage(why);
    }
    if operands.is_empty() {
        return cx.bad_usage("missing file or directory target(s)");
    }
    let mut failed = false;
    for name in operands {
        failed |= handle(cx, &name, task.clone()).is_err();
    }
    Ok(if failed { 255 } else { 0 })
}

fn contradiction(task: &Task) -> Option<&'static str> {
    const KEEP: &str = "'-k' is only valid together with '-C'";
    const ZERO: &str = "'-0' is only valid together with '-c'";
    match task.op {
        Op::Set if task.dir_only => Some("'-d' is useless for set project ID and/or inherit flag"),
        Op::Clear if task.dir_only => Some("'-d' is useless together with '-C'"),
        Op::List | Op::Check | Op::Set if task.keep_projid => Some(KEEP),
        Op::List | Op::Clear | Op::Set if !task.newline => Some(ZERO),
        Op::Clear if task.projid.is_some() => Some("'-p' is useless together with '-C'"),
        _ => None,
    }
}

fn handle(cx: &mut Cx, name: &str, mut task: Task) -> Result<(), Failed> {
    let unstated = |cx: &mut Cx, e| {
        cx.err(format!("failed to stat {name}: {}", words(e)));
        Failed
    };
    // What is neither may do something when it is opened.
    let stat = rustix::fs::stat(name).map_err(|e| unstated(cx, e))?;
    kind_of(cx, &stat)?;
    let path = Path::new(name);
    let flags = OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let top = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| unopened(cx, path, e))?;
    let stat = rustix::fs::fstat(&top).map_err(|e| unstated(cx, e))?;
    let kind = kind_of(cx, &stat)?;
    if !kind.is_dir() {
        for (on, letter) in [(task.dir_only, 'd'), (task.recursive, 'r')] {
            if on {
                cx.err(format!("'-{letter}' option on non-dir target {name}"));
                return Err(Failed);
            }
        }
    }
    let fsx = look(cx, path, &top)?;
    if matches!(task.op, Op::Set | Op::Check) && task.projid.is_none() {
        // What is wanted of those below is what the first of them has.
        task.projid = Some(fsx.projid);
    }
    one(cx, path, &top, fsx, &task)?;
    let below = task.recursive || matches!(task.op, Op::List | Op::Check);
    if !kind.is_dir() || task.dir_only || !below {
        return Ok(());
    }
    let mut todo = VecDeque::from([PathBuf::new()]);
    while let Some(way) = todo.pop_front() {
        todo.extend(directory(cx, path, &top, &way, &task)?);
    }
    Ok(())
}

/// Files and directories alone have projects.
fn kind_of(cx: &mut Cx, stat: &Stat) -> Result<FileType, Failed> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind.is_file() || kind.is_dir() {
        return Ok(kind);
    }
    cx.err("only support project quota on regular file or directory");
    Err(Failed)
}

fn unopened(cx: &mut Cx, path: &Path, e: Errno) -> Failed {
    cx.err(format!("failed to open {}: {}", path.display(), words(e)));
    Failed
}

/// Those in a directory, which this way leads to. Gives its directories, if they are to be gone
/// into.
fn directory(
    cx: &mut Cx,
    named: &Path,
    top: &OwnedFd,
    way: &Path,
    task: &Task,
) -> Result<Vec<PathBuf>, Failed> {
    // (What is joined to an empty way has a slash at its end.)
    let shown = if way.as_os_str().is_empty() { named.to_owned() } else { named.join(way) };
    let (dir, entries) = match entries(top, way) {
        Ok(Some(opened)) => opened,
        // Whoever removes files meanwhile is no error.
        Ok(None) => return Ok(Vec::new()),
        Err(e) => {
            cx.err(format!("failed to opendir {}: {}", shown.display(), words(e)));
            return Err(Failed);
        }
    };
    let mut dirs = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| {
            cx.err(format!("failed to readdir {}: {}", shown.display(), words(e)));
            Failed
        })?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(_) => continue,
            },
            kind => kind,
        };
        if !kind.is_file() && !kind.is_dir() {
            continue;
        }
        let path = shown.join(name);
        let file = found_in(&dir, name, OFlags::RDONLY).map_err(|e| unopened(cx, &path, e))?;
        if let Some(file) = file {
            let fsx = look(cx, &path, &file)?;
            one(cx, &path, &file, fsx, task)?;
        }
        if task.recursive && kind.is_dir() {
            dirs.push(way.join(name));
        }
    }
    Ok(dirs)
}

fn look(cx: &mut Cx, path: &Path, file: &OwnedFd) -> Result<Fsx, Failed> {
    fsx::get(file).map_err(|e| {
        cx.err(format!("failed to get xattr for {}: {}", path.display(), words(e)));
        Failed
    })
}

fn one(cx: &mut Cx, path: &Path, file: &OwnedFd, mut fsx: Fsx, task: &Task) -> Result<(), Failed> {
    let inherits = fsx.xflags & XFLAG_PROJINHERIT != 0;
    let wanted = task.projid.unwrap_or(DEFAULT_PROJID);
    let name = path.display();
    match task.op {
        Op::List => {
            let flag = if inherits { 'P' } else { '-' };
            cx.out.line(format!("{:5} {flag} {name}", fsx.projid));
            return Ok(());
        }
        Op::Check => {
            if fsx.projid == wanted && inherits {
                return Ok(());
            }
            if !task.newline {
                cx.out.put(format!("{name}\0"));
                return Ok(());
            }
            if fsx.projid != wanted {
                cx.out.line(format!("{name} - project ID is not set properly ({}/{wanted})", fsx.projid));
            }
            if !inherits {
                cx.out.line(format!("{name} - project inherit flag is not set"));
            }
            return Ok(());
        }
        Op::Clear => {
            if !inherits && (task.keep_projid || fsx.projid == DEFAULT_PROJID) {
                return Ok(());
            }
            fsx.xflags &= !XFLAG_PROJINHERIT;
            if !task.keep_projid {
                fsx.projid = DEFAULT_PROJID;
            }
        }
        Op::Set => {
            if fsx.projid == wanted && (!task.set_flag || inherits) {
                return Ok(());
            }
            fsx.projid = wanted;
            if task.set_flag {
                fsx.xflags |= XFLAG_PROJINHERIT;
            }
        }
    }
    fsx::set(file, fsx).map_err(|e| {
        cx.err(format!("failed to set xattr for {name}: {}", words(e)));
        Failed
    })
}
