//! Attaching the device to a directory: with the mount system call where that is allowed, else
//! through `fusermount3`.
//!
//! The directory may lie in another file system of this process, so whatever goes by path is done
//! apart ([`zilla_env::apart`]): who waits here for that other file system holds up neither it nor
//! the end of the process.

use crate::mountinfo;
use crate::session::Options;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::FdFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_env::{apart, apart_with, block_on};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether others may be let in: the machine's owner decides that for ordinary users.
pub(crate) fn others_allowed() -> bool {
    is_root() || std::fs::read_to_string("/etc/fuse.conf").is_ok_and(|text| allows_others(&text))
}

fn allows_others(conf: &str) -> bool {
    conf.lines().any(|l| l.trim() == "user_allow_other")
}

/// Makes a call that may wait for another file system of this process, and waits for it.
fn aside<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    block_on(apart(call))?
}

/// The directory at a path.
pub(crate) fn open_dir(path: &Path, how: OFlags) -> io::Result<OwnedFd> {
    let (path, how) = (path.to_owned(), how | OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC);
    let call = move |_: &[BorrowedFd<'_>]| Ok(((), vec![rustix::fs::open(path, how, Mode::empty())?]));
    let ((), fds) = block_on(apart_with(Vec::new(), call))?;
    fds.into_iter().next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// What [`attach`] has mounted: what its directory is called, the number of the file system, and
/// the session's device.
pub(crate) struct Attached {
    pub(crate) path: PathBuf,
    pub(crate) device: u64,
    pub(crate) fd: OwnedFd,
}

/// Mounts on a directory that is open.
pub(crate) fn attach(dir: OwnedFd, opts: &Options) -> io::Result<Attached> {
    let opts = opts.clone();
    let call = move |kept: &[BorrowedFd<'_>]| {
        let dir = *kept.first().ok_or(io::ErrorKind::NotFound)?;
        let (path, fd) = (path_of(dir)?, attach_here(dir, &opts)?);
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // 0 where it cannot be told: then nothing is changed, and nothing unmounted.
        let device = rustix::fs::openat(dir, "..", how, Mode::empty())
            .map_err(io::Error::from)
            .and_then(|parent| Place { parent, name: name_of(&path)? }.device())
            .or_else(|_| device_of(&path, &opts.source))
            .unwrap_or(0);
        Ok(((path, device), vec![fd]))
    };
    let ((path, device), fds) = block_on(apart_with(vec![dir], call))?;
    let fd = fds.into_iter().next().ok_or(io::ErrorKind::NotFound)?;
    Ok(Attached { path, device, fd })
}

/// The number of what was mounted last at a path from a source.
fn device_of(path: &Path, source: &str) -> io::Result<u64> {
    let mut all = mountinfo::mounted()?.into_iter().rev();
    let found = all.find(|m| m.path == path && m.source == source);
    found.map(|m| m.device).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A mountpoint as a name in an open directory: what owners of directories above it rename, or put
/// links in the place of, does not change what it means.
struct Place {
    parent: OwnedFd,
    name: OsString,
}

fn name_of(path: &Path) -> io::Result<OsString> {
    path.file_name().map(OsString::from).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let name = name_of(path)?;
        let above = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Place { parent: rustix::fs::open(above, how, Mode::empty())?, name })
    }

    fn path(&self) -> PathBuf {
        Path::new(&by_descriptor(self.parent.as_fd())).join(&self.name)
    }

    /// The number of the file system that is mounted there. Its server is not asked.
    fn device(&self) -> io::Result<u64> {
        let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&self.parent, &self.name, how, StatxFlags::TYPE)?;
        Ok(rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor))
    }

    /// Unmounts whatever is there.
    fn unmount(&self, force: bool) -> io::Result<()> {
        let how = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        Ok(rustix::mount::unmount(self.path(), how | UnmountFlags::NOFOLLOW)?)
    }
}

fn attach_here(dir: BorrowedFd<'_>, opts: &Options) -> io::Result<OwnedFd> {
    if is_root() {
        match mount_directly(dir, opts) {
            // A root without the right to mount (in a container): the helper may have it.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            r => return r,
        }
    }
    // The helper judges the path itself, as the user who runs it.
    mount_by_helper(&path_of(dir)?, opts)
}

/// What an open directory is called at the moment.
fn path_of(dir: BorrowedFd<'_>) -> io::Result<PathBuf> {
    let path = rustix::fs::readlink(by_descriptor(dir), Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(path.into_bytes())))
}

/// A path that leads to just what is open, whatever its name has come to mean.
fn by_descriptor(dir: BorrowedFd<'_>) -> String {
    // Not `self`: threads may have other descriptors than the process.
    format!("/proc/thread-self/fd/{}", dir.as_raw_fd())
}

fn flags(opts: &Options) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, opts.readonly);
    flags.set(MountFlags::NOSUID, !opts.setuid);
    flags.set(MountFlags::NODEV, !opts.devices);
    flags.set(MountFlags::NOEXEC, !opts.exec);
    flags.set(MountFlags::NOATIME, !opts.atime);
    flags.set(MountFlags::RELATIME, opts.atime && opts.relatime);
    flags.set(MountFlags::STRICTATIME, opts.atime && !opts.relatime);
    flags
}

/// Changes the options of what is mounted. Only root may; `PermissionDenied` says that it has to be
/// mounted anew.
pub(crate) fn change(mountpoint: &Path, device: u64, opts: &Options) -> io::Result<()> {
    if !is_root() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (mountpoint, opts) = (mountpoint.to_owned(), opts.clone());
    aside(move || change_here(&mountpoint, device, &opts))
}

fn change_here(mountpoint: &Path, device: u64, opts: &Options) -> io::Result<()> {
    let root = open_mounted(mountpoint, device)?;
    let target = by_descriptor(root.as_fd());
    match rustix::mount::mount_remount(target.as_str(), flags(opts), "") {
        // Someone writes to an open file. From now on he is refused by the server; no new one gets
        // that far.
        Err(rustix::io::Errno::BUSY) if opts.readonly => {
            let writable = Options { readonly: false, ..opts.clone() };
            Ok(rustix::mount::mount_remount(target.as_str(), flags(&writable), "")?)
        }
        r => Ok(r?),
    }
}

/// The root of a mount, if that is what its path still leads to.
fn open_mounted(mountpoint: &Path, device: u64) -> io::Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(mountpoint, how, Mode::empty())?;
    if rustix::fs::fstat(&root)?.st_dev != device {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is not mounted there any more"));
    }
    Ok(root)
}

/// Has the kernel send what it holds of changed pages that were mapped into memory.
pub(crate) fn write_back(mountpoint: &Path, device: u64) -> io::Result<()> {
    let mountpoint = mountpoint.to_owned();
    aside(move || {
        let root = open_mounted(&mountpoint, device)?;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::syncfs(rustix::fs::open(by_descriptor(root.as_fd()), how, Mode::empty())?)?)
    })
}

fn mount_directly(dir: BorrowedFd<'_>, opts: &Options) -> io::Result<OwnedFd> {
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mode = rustix::fs::fstat(dir)?.st_mode & 0o170_000;
    let mut data =
        format!("fd={},rootmode={mode:o},user_id=0,group_id=0,default_permissions", fd.as_raw_fd());
    if opts.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let target = by_descriptor(dir);
    let kind = format!("fuse.{}", opts.kind);
    rustix::mount::mount(opts.source.as_str(), target, kind, flags(opts), Some(data.as_c_str()))?;
    Ok(fd)
}

/// Without `allow_other` the kernel lets nobody but the mounting user into a file system, not even
/// the helper that runs as root.
const NESTED: &str = "; if that is inside a file system of your own, either put the line 'user_allow_other' into /etc/fuse.conf (as root), \
                      or give this one a mountpoint elsewhere";

/// Whether something that a FUSE server shows is at a place.
fn is_fuse(path: &Path) -> bool {
    /// `f_type` of statfs(2). Source: FUSE_SUPER_MAGIC in linux/magic.h.
    const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;
    rustix::fs::statfs(path).is_ok_and(|s| s.f_type as u64 == FUSE_SUPER_MAGIC)
}

/// An option's value as `fusermount3` parses it.
fn escaped(s: &str) -> String {
    s.replace('\\', "\\\\").replace(',', "\\,")
}

fn mount_by_helper(mountpoint: &Path, opts: &Options) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The helper inherits its end.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut o = format!("fsname={},subtype={},default_permissions", escaped(&opts.source), opts.kind);
    // Not `ro`: an ordinary user could not change it back. The server refuses to write.
    let flags = [
        (!opts.exec, "noexec"),
        (!opts.atime, "noatime"),
        (opts.allow_other, "allow_other"),
        (opts.setuid && is_root(), "suid"),
        (opts.devices && is_root(), "dev"),
    ];
    for (_, name) in flags.iter().filter(|f| f.0) {
        o.push(',');
        o.push_str(name);
    }
    let mut child = helper()?
        .arg("-o")
        .arg(&o)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    drop(theirs);
    let fd = receive_fd(&ours);
    let status = child.wait_with_output_of()?;
    match fd {
        Ok(Some(fd)) => Ok(fd),
        Ok(None) | Err(_) => {
            let parent = mountpoint.parent().map(Path::to_owned);
            let nested = aside(move || Ok(parent.is_some_and(|p| is_fuse(&p)))).unwrap_or(false);
            let hint = if nested && !opts.allow_other { NESTED } else { "" };
            Err(io::Error::other(format!("fusermount3: {}{hint}", status.trim())))
        }
    }
}

trait WaitOutput {
    fn wait_with_output_of(&mut self) -> io::Result<String>;
}

impl WaitOutput for std::process::Child {
    /// What the helper complained of. It exits once it has sent the descriptor.
    fn wait_with_output_of(&mut self) -> io::Result<String> {
        use std::io::Read;
        let mut text = String::new();
        if let Some(err) = &mut self.stderr {
            err.take(4096).read_to_string(&mut text)?;
        }
        self.wait()?;
        Ok(text)
    }
}

fn helper() -> io::Result<Command> {
    for name in ["fusermount3", "fusermount"] {
        for dir in ["/usr/bin", "/bin", "/usr/local/bin", "/sbin", "/usr/sbin"] {
            let path = Path::new(dir).join(name);
            if path.exists() {
                return Ok(Command::new(path));
            }
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "fusermount3 is not installed (package fuse3); only root can mount without it",
    ))
}

fn receive_fd(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            return Ok(fds.into_iter().next());
        }
    }
    Ok(None)
}

/// Detaches the file system that has this number; with `force` even if files are in use, whose
/// users then lose them when they close them. False if it is mounted nowhere any more: somebody
/// else has detached it. What has come to be at its path, or lies over it, is left alone, and so is
/// the file system then.
pub(crate) fn detach(mountpoint: &Path, device: u64, force: bool) -> io::Result<bool> {
    let mountpoint = mountpoint.to_owned();
    aside(move || {
        let there = Place::of(&mountpoint).and_then(|place| Ok((place.device()?, place)));
        let unmounted = match there {
            Ok((found, place)) if found == device && device != 0 => place.unmount(force),
            other => return elsewhere(&mountpoint, device, other.err()).map_or(Ok(false), Err),
        };
        match unmounted {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => detach_by_helper(&mountpoint, force)?,
            done => done?,
        }
        Ok(true)
    })
}

/// Why what is not to be found at its path (`failed`: the path cannot be looked at) cannot be
/// detached there; None if it is not mounted.
fn elsewhere(mountpoint: &Path, device: u64, failed: Option<io::Error>) -> Option<io::Error> {
    if device == 0 {
        let what = format!("it cannot be told what is mounted there: umount {}", mountpoint.display());
        return Some(io::Error::other(what));
    }
    let all = match mountinfo::mounted() {
        Ok(all) => all,
        Err(e) => return Some(e),
    };
    let found = all.iter().find(|m| m.device == device)?;
    let what = match found.path == mountpoint {
        true if failed.is_some() => return failed,
        true => "something else is mounted over it: unmount that first".to_owned(),
        false => format!("it is not mounted there any more, but at '{}'", found.path.display()),
    };
    Some(io::Error::other(what))
}

fn detach_by_helper(mountpoint: &Path, force: bool) -> io::Result<()> {
    let mut cmd = helper()?;
    cmd.arg("-u").arg("-q");
    if force {
        cmd.arg("-z");
    }
    let out = cmd.arg("--").arg(mountpoint).output()?;
    if out.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&out.stderr);
    // What is ours and still there is in use: the helper has no other reason to leave it.
    let kind = if is_fuse(mountpoint) { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, format!("fusermount3: {}", text.trim())))
}

/// Takes a mount away whose server died. Anything else at that place is left alone; true if there
/// was one.
pub fn clear_stale(mountpoint: &Path) -> io::Result<bool> {
    let mountpoint = mountpoint.to_owned();
    aside(move || {
        let Ok(place) = Place::of(&mountpoint) else { return Ok(false) };
        match rustix::fs::statfs(place.path()) {
            Err(rustix::io::Errno::NOTCONN) => {}
            _ => return Ok(false),
        }
        match place.unmount(true) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => detach_by_helper(&mountpoint, true)?,
            done => done?,
        }
        Ok(true)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lets_others_in() {
        assert!(allows_others("mount_max = 10\n user_allow_other \n"));
        assert!(!allows_others("#user_allow_other\nmount_max = 10\n"));
    }
}
