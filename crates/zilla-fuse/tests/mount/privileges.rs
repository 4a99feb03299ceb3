//! What is left of the set-user-id and set-group-id bits and of the capabilities of a file that
//! someone changes. Each operation, by each kind of user, does to a file what it does on tmpfs and
//! ext4 of the same kernel.

use crate::common::Mounted;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use zilla::FsProps;

const CAPABILITIES: &str = "security.capability";
const OWNER: u32 = 3000;
const GROUP: u32 = 4242;
const STRANGER: u32 = 65534;

/// Where the test has no right to make such files there is nothing to compare.
pub fn may_test() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("CI").is_none(), "this test needs root");
    root
}

#[derive(Clone, Copy, Debug)]
enum User {
    Root,
    /// Root without CAP_FSETID.
    Plain,
    Stranger,
    /// In the file's group.
    Member,
    /// Without any right but CAP_FSETID.
    Keeper,
    Owner,
}

const USERS: [User; 6] = [User::Root, User::Plain, User::Stranger, User::Member, User::Keeper, User::Owner];

impl User {
    /// Makes the calling thread one of him.
    fn become_now(self) {
        let (uid, groups) = match self {
            User::Root | User::Plain => (0, vec![]),
            User::Stranger | User::Keeper => (STRANGER, vec![]),
            User::Member => (STRANGER, vec![Gid::from_raw(7), Gid::from_raw(GROUP)]),
            User::Owner => (OWNER, vec![]),
        };
        rustix::thread::set_thread_groups(&groups).unwrap();
        if uid != 0 {
            rustix::thread::set_keep_capabilities(true).unwrap();
            rustix::thread::set_thread_gid(Gid::from_raw(uid)).unwrap();
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).unwrap();
        }
        let set = match self {
            User::Root => return,
            User::Plain => rustix::thread::capabilities(None).unwrap().effective & !CapabilitySet::FSETID,
            User::Keeper => CapabilitySet::FSETID,
            _ => CapabilitySet::empty(),
        };
        let sets = CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() };
        rustix::thread::set_capabilities(None, sets).unwrap();
    }
}

/// Changes the file at a path, which has been opened for writing when it was made.
type Op = fn(&Path, &File) -> Result<(), Errno>;

fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn write_with(path: &Path, flags: OFlags) -> Result<(), Errno> {
    rustix::io::write(open(path, flags)?, b"changed").map(drop)
}

fn fallocate(path: &Path, how: FallocateFlags) -> Result<(), Errno> {
    rustix::fs::fallocate(open(path, OFlags::WRONLY)?, how, 4096, 4096)
}

fn own(path: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    rustix::fs::chown(path, uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

const OPS: [(&str, Op); 21] = [
    ("write", |p, _| write_with(p, OFlags::WRONLY)),
    ("write, read before", |p, _| {
        fs::read(p).ok();
        write_with(p, OFlags::RDWR)
    }),
    ("append", |p, _| write_with(p, OFlags::WRONLY | OFlags::APPEND)),
    ("write that is to be stable", |p, _| write_with(p, OFlags::WRONLY | OFlags::DSYNC)),
    ("write past the cache", |p, _| {
        let page = Aligned([7; 4096]);
        rustix::io::pwrite(open(p, OFlags::WRONLY | OFlags::DIRECT)?, &page.0, 0).map(drop)
    }),
    ("write to what another opened", |_, f| rustix::io::pwrite(f, b"changed", 0).map(drop)),
    ("write of nothing", |p, _| rustix::io::write(open(p, OFlags::WRONLY)?, b"").map(drop)),
    ("open with O_TRUNC", |p, _| open(p, OFlags::WRONLY | OFlags::TRUNC).map(drop)),
    ("truncate", |p, _| {
        let file = open(p, OFlags::WRONLY)?;
        rustix::fs::ftruncate(file, 100)
    }),
    ("extend", |_, f| rustix::fs::ftruncate(f, 100_000)),
    ("copy_file_range", |p, _| {
        let from = open(&p.with_file_name("source"), OFlags::RDONLY)?;
        let to = open(p, OFlags::WRONLY)?;
        rustix::fs::copy_file_range(from, Some(&mut 0), to, Some(&mut 0), 4096).map(drop)
    }),
    ("fallocate", |p, _| fallocate(p, FallocateFlags::empty())),
    ("fallocate, KEEP_SIZE", |p, _| fallocate(p, FallocateFlags::KEEP_SIZE)),
    ("fallocate, PUNCH_HOLE", |p, _| fallocate(p, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)),
    ("chown", |p, _| own(p, Some(OWNER), Some(GROUP))),
    ("chown to another", |p, _| own(p, Some(STRANGER), None)),
    ("chgrp", |p, _| own(p, None, Some(OWNER))),
    ("chmod", |p, _| rustix::fs::chmod(p, Mode::from_raw_mode(0o6777))),
    ("setxattr", |p, _| rustix::fs::setxattr(p, "security.other", b"x", XattrFlags::empty())),
    ("utimes", |p, _| {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        rustix::fs::utimensat(CWD, p, &times, AtFlags::empty())
    }),
    ("link", |p, _| rustix::fs::link(p, p.with_extension("link"))),
];

#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// Set-user-id, set-group-id, and without execution by the group.
const MODES: [u32; 6] = [0o4777, 0o2777, 0o6777, 0o2767, 0o6767, 0o777];

/// What became of a file.
#[derive(Debug, PartialEq)]
struct After {
    result: Result<(), Errno>,
    mode: u16,
    capable: bool,
}

/// Version 2 of the attribute, with CAP_NET_RAW permitted (linux/capability.h).
fn capabilities() -> [u8; 20] {
    let mut caps = [0; 20];
    caps[..8].copy_from_slice(&[1, 0, 0, 2, 0, 0x20, 0, 0]);
    caps
}

fn after(dir: &Path, op: Op, user: User, mode: u32, capable: bool) -> After {
    let path = dir.join("file");
    for name in ["file", "file.link"] {
        fs::remove_file(dir.join(name)).ok();
    }
    let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    rustix::io::pwrite(&file, &[5; 9000], 0).unwrap();
    own(&path, Some(OWNER), Some(GROUP)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    if capable {
        rustix::fs::setxattr(&path, CAPABILITIES, &capabilities(), XattrFlags::empty()).unwrap();
    }
    let act = || {
        user.become_now();
        op(&path, &file)
    };
    let result = std::thread::scope(|scope| scope.spawn(act).join().unwrap());
    // Only the mode, as who executes the file asks for it: what the kernel remembers of it is good
    // enough.
    let seen = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
    let capable = rustix::fs::getxattr(&path, CAPABILITIES, &mut [0u8; 64]).is_ok();
    After { result, mode: seen.stx_mode & 0o7777, capable }
}

/// A directory in memory, and one on ext4 if that can be had.
struct References {
    memory: tempfile::TempDir,
    disk: Option<(tempfile::TempDir, PathBuf)>,
}

impl References {
    fn new() -> References {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let made = || {
            let dir = tempfile::tempdir().ok()?;
            let (image, at) = (dir.path().join("image"), dir.path().join("ext4"));
            File::create(&image).ok()?.set_len(32 << 20).ok()?;
            fs::create_dir(&at).ok()?;
            let run = |cmd: &mut Command| cmd.output().is_ok_and(|o| o.status.success()).then_some(());
            run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
            run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
            Some((dir, at))
        };
        References { memory, disk: made() }
    }
}

impl Drop for References {
    fn drop(&mut self) {
        if let Some((_, at)) = &self.disk {
            Command::new("umount").arg(at).status().unwrap();
        }
    }
}

/// Lets everyone in, and makes what is copied.
fn prepare(dir: &Path) {
    fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
    fs::write(dir.join("source"), [9; 4096]).unwrap();
    fs::set_permissions(dir.join("source"), Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn bits_and_capabilities_end_as_on_other_file_systems() {
    if !may_test() {
        return;
    }
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let references = References::new();
    let memory = references.memory.path();
    let disk = references.disk.as_ref().map(|d| &d.1);
    [Some(m.path()), Some(memory), disk.map(|d| &**d)].into_iter().flatten().for_each(prepare);
    let mut wrong = Vec::new();
    for ((name, op), user, mode, capable) in cases() {
        let got = after(m.path(), op, user, mode, capable);
        let want = after(memory, op, user, mode, capable);
        let also = disk.map(|d| after(d, op, user, mode, capable));
        // Where the two differ either will do; so far that is where tmpfs cannot do direct I/O or
        // set times as others do.
        if got != want && also.as_ref() != Some(&got) {
            wrong.push(format!(
                "{name} by {user:?}, {mode:o}, {capable}: {got:?}, and not {want:?} or {also:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

fn cases() -> impl Iterator<Item = ((&'static str, Op), User, u32, bool)> {
    let ops = OPS.into_iter();
    ops.flat_map(|op| USERS.into_iter().map(move |user| (op, user)))
        .flat_map(|(op, user)| MODES.into_iter().map(move |mode| (op, user, mode)))
        .flat_map(|(op, user, mode)| [false, true].into_iter().map(move |c| (op, user, mode, c)))
}

#[test]
fn a_program_that_was_overwritten_runs_as_who_starts_it() {
    if !may_test() {
        return;
    }
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    prepare(m.path());
    let program = m.path().join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    let run = || {
        let out = Command::new(&program).arg("-u").uid(STRANGER).gid(STRANGER).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    let changes: [Op; 3] = [
        |p, _| {
            let file = open(p, OFlags::RDWR)?;
            let mut first = [0; 1];
            rustix::io::pread(&file, &mut first, 0)?;
            rustix::io::pwrite(&file, &first, 0).map(drop)
        },
        |p, _| {
            let (from, to) = (open(p, OFlags::RDONLY)?, open(p, OFlags::WRONLY)?);
            let len = from.metadata().map_or(0, |m| m.len());
            rustix::fs::copy_file_range(from, Some(&mut 0), to, Some(&mut len.next_multiple_of(4096)), 64)
                .map(drop)
        },
        |p, _| {
            let file = OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_DSYNC)
                .open(p)
                .map_err(|_| Errno::PERM)?;
            rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, 4096)
        },
    ];
    for (n, change) in changes.into_iter().enumerate() {
        fs::set_permissions(&program, Permissions::from_mode(0o4777)).unwrap();
        assert_eq!(run(), "0", "set-user-id is of use here");
        let act = || {
            User::Stranger.become_now();
            let file = File::open("/dev/null").unwrap();
            change(&program, &file).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(act).join().unwrap());
        assert_eq!(run(), STRANGER.to_string(), "after change {n}");
    }
}

/// `zfs rewrite`'s request takes room and time: not for whoever may only read.
#[test]
fn only_the_owner_has_a_file_written_anew() {
    const REWRITE: u64 = 0x4020_8303;
    if !may_test() {
        return;
    }
    let Some(m) = Mounted::new(FsProps::default()) else { return };
    let path = m.path().join("f");
    fs::write(&path, [7; 10_000]).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    rustix::fs::chown(&path, Some(Uid::from_raw(OWNER)), None).unwrap();
    fs::set_permissions(m.path(), Permissions::from_mode(0o755)).unwrap();
    let as_user = |user: User| {
        let path = path.clone();
        let asked = std::thread::spawn(move || {
            let file = File::open(path).unwrap();
            user.become_now();
            let mut args = [0u64; 4];
            // SAFETY: it reads the 32 bytes of `args`.
            match unsafe { libc::ioctl(file.as_raw_fd(), REWRITE as _, args.as_mut_ptr()) } {
                0 => None,
                _ => std::io::Error::last_os_error().raw_os_error(),
            }
        });
        asked.join().unwrap()
    };
    assert_eq!(as_user(User::Stranger), Some(libc::EPERM));
    assert_eq!((as_user(User::Owner), as_user(User::Root)), (None, None));
    assert_eq!(fs::read(&path).unwrap(), [7; 10_000]);
}
