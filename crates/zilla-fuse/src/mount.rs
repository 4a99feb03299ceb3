//! Attaching the device to a directory: with the mount system call where that is allowed, else through `fusermount3`.

use crate::session::Options;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::Command;

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

/// Mounts; returns the session's device.
pub(crate) fn attach(mountpoint: &Path, opts: &Options) -> io::Result<OwnedFd> {
    if is_root() {
        match mount_directly(mountpoint, opts) {
            // A root without the right to mount (in a container): the helper may have it.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            r => return r,
        }
    }
    mount_by_helper(mountpoint, opts)
}

fn mount_directly(mountpoint: &Path, opts: &Options) -> io::Result<OwnedFd> {
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mode = rustix::fs::stat(mountpoint)?.st_mode & 0o170_000;
    let mut data =
        format!("fd={},rootmode={mode:o},user_id=0,group_id=0,default_permissions", fd.as_raw_fd());
    if opts.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, opts.readonly);
    flags.set(MountFlags::NOSUID, !opts.setuid);
    flags.set(MountFlags::NODEV, !opts.devices);
    flags.set(MountFlags::NOEXEC, !opts.exec);
    flags.set(MountFlags::NOATIME, !opts.atime);
    let data = CString::new(data).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    rustix::mount::mount(opts.source.as_str(), mountpoint, "fuse.zfs", flags, Some(data.as_c_str()))?;
    Ok(fd)
}

/// Without `allow_other` the kernel lets nobody but the mounting user into a file system, not even the helper that runs as root.
const NESTED: &str = "; if that is inside a file system of your own, either put the line 'user_allow_other' into /etc/fuse.conf (as root), \
                      or give this one a mountpoint elsewhere";

/// An option's value as `fusermount3` parses it.
fn escaped(s: &str) -> String {
    s.replace('\\', "\\\\").replace(',', "\\,")
}

fn mount_by_helper(mountpoint: &Path, opts: &Options) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The helper inherits its end.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut o = format!("fsname={},subtype=zfs,default_permissions", escaped(&opts.source));
    let flags = [
        (opts.readonly, "ro"),
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
            let shut = !opts.allow_other && status.contains("Permission denied");
            let hint = if shut { NESTED } else { "" };
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

/// Detaches; with `force` even if files are in use, whose users then lose them when they close them.
pub(crate) fn detach(mountpoint: &Path, force: bool) -> io::Result<()> {
    if is_root() {
        let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match rustix::mount::unmount(mountpoint, flags) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::PERM) => {}
            Err(e) => return Err(e.into()),
        }
    }
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
    let busy = text.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, format!("fusermount3: {}", text.trim())))
}

/// Takes a mount away whose server died. Anything else at that place is left alone; true if there was one.
pub fn clear_stale(mountpoint: &Path) -> io::Result<bool> {
    match rustix::fs::statfs(mountpoint) {
        Err(rustix::io::Errno::NOTCONN) => detach(mountpoint, true).map(|()| true),
        _ => Ok(false),
    }
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
