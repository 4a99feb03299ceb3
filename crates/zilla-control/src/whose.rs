//! Whom a guest's place is counted for.
//!
//! The kernel names a user for the other end of a socket. But who may make user namespaces has as
//! many users as subordinate ones were given him (subuid(5)), 65536 where nobody says otherwise:
//! counted by users he would have everybody's places. So what counts is who made the outermost
//! namespace, below this process's own, that the other end lives in. Of a namespace that root made,
//! such as a container's, it is the namespace itself; but where that has one user alone, it is he:
//! a program that is root's for everybody (a setuid bwrap, firejail) makes such for whoever calls
//! it.
//!
//! Outside of such namespaces it is the real user of the process, unless that is root: a thread can
//! be lent another's credentials for a call (io_uring's personalities), and root lends them to whom
//! he likes.
//!
//! Who cannot be looked up, because he lives in a pid namespace that is not below ours, is counted
//! by the user that the kernel names. One person may be many of these, and may have many namespaces
//! of root's (within the one that bwrap makes another hides how many users that has): so they are
//! *vague*, and all such together leave half of the places to others. Who has ended is refused:
//! another holds his socket, who would have places beside his own. Where there is no /proc users
//! are counted.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use std::io;

/// As deep as user namespaces may lie in each other, and more. Source: user_namespaces(7).
const DEEPEST: usize = 64;
// Source: asm-generic/socket.h and linux/nsfs.h.
const SO_PEERPIDFD: libc::c_int = 77;
const NS_GET_PARENT: u64 = 0xb702;
const NS_GET_OWNER_UID: u64 = 0xb704;

/// Whom a place is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Whose {
    User(u32),
    /// A user namespace that root made: device and inode.
    Container(u64, u64),
    /// A user of whom nothing more can be told.
    Unknown(u32),
}

impl Whose {
    /// Whether one person may be several of these.
    pub fn is_vague(self) -> bool {
        !matches!(self, Whose::User(_))
    }

    /// Of the other end of a socket, for which the kernel names this user and process. None: that
    /// has ended.
    pub fn of(socket: &impl AsFd, uid: u32, pid: Option<i32>) -> Option<Whose> {
        let Ok(own) = namespace("self") else { return Some(Whose::User(uid)) };
        let Some(pid) = pid.filter(|pid| *pid > 0) else { return Some(Whose::Unknown(uid)) };
        let peer = peer_process(socket.as_fd()).ok()?;
        let found = match namespace(&pid.to_string()) {
            Ok(at) => in_namespace(at, pid, uid, &own).unwrap_or(Whose::Unknown(uid)),
            Err(Errno::NOENT | Errno::SRCH) => return None,
            // Even root may not look at all processes in a container.
            Err(_) => Whose::Unknown(uid),
        };
        // Its number may have been given to another process before that was looked at.
        peer.is_none_or(|peer| lives(&peer)).then_some(found)
    }
}

/// Of a process that lives in this user namespace. None: it cannot be told.
fn in_namespace(mut at: OwnedFd, pid: i32, uid: u32, own: &OwnedFd) -> Option<Whose> {
    let own = identity(own)?;
    if identity(&at)? == own {
        let real = real_user(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?;
        return Some(Whose::User(if real == 0 { uid } else { real }));
    }
    for depth in 0..DEEPEST {
        let above = parent(&at)?;
        if identity(&above)? == own {
            let (device, inode) = identity(&at)?;
            // (Of one that lies deeper it tells nothing of the outermost.)
            let alone = || {
                let map = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).ok()?;
                // He may have made himself another namespace meanwhile, whose map this is.
                let still = identity(&namespace(&pid.to_string()).ok()?)? == (device, inode);
                only_user(&map).filter(|_| depth == 0 && still)
            };
            return owner(&at).map(|uid| match uid {
                0 => match alone() {
                    Some(uid) => Whose::User(uid),
                    None => Whose::Container(device, inode),
                },
                uid => Whose::User(uid),
            });
        }
        at = above;
    }
    None
}

/// A process's user namespace.
fn namespace(process: &str) -> rustix::io::Result<OwnedFd> {
    openat(CWD, format!("/proc/{process}/ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn identity(namespace: &OwnedFd) -> Option<(u64, u64)> {
    fstat(namespace).ok().map(|found| (found.st_dev, found.st_ino))
}

/// The namespace that another lies in; None where that is not below ours.
fn parent(namespace: &OwnedFd) -> Option<OwnedFd> {
    // SAFETY: the request takes no argument, and gives a descriptor that is nobody's yet.
    unsafe {
        let fd = libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT as _);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Who made a namespace.
fn owner(namespace: &OwnedFd) -> Option<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the kernel writes one uid_t, which `uid` is.
    let rc = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut uid) };
    (rc == 0).then_some(uid)
}

/// The user who is all that a namespace has, by its map (user_namespaces(7)); root is none.
fn only_user(map: &str) -> Option<u32> {
    let mut lines = map.lines().map(|line| line.split_ascii_whitespace().map(str::parse::<u32>));
    let mut line = lines.next().filter(|_| lines.next().is_none())?;
    match (line.next()?.ok()?, line.next()?.ok()?, line.next()?.ok()?) {
        (_, outside, 1) if outside != 0 && outside != u32::MAX => Some(outside),
        _ => None,
    }
}

/// The real user, as a process's status tells it.
fn real_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The process at the other end, where the kernel can say so (Linux 6.5); an error if it is gone.
fn peer_process(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is what `fd` has.
    let rc = unsafe {
        let (value, length) = ((&raw mut fd).cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, length)
    };
    if rc == 0 && fd >= 0 {
        // SAFETY: the kernel has just made it, for us.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        e => Err(e),
    }
}

/// Whether a process has not ended yet.
fn lives(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// A user that no machine has, and one of his subordinate ones.
    const JOE: u32 = 4_294_900_001;
    const SUB: u32 = 4_294_800_000;

    /// A shell in a user namespace of its own, which `user` has made, and which does this when it
    /// is told to. None: there can be none here.
    fn apart(user: u32, script: &str) -> Option<Child> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("read go; {script}")]).stdin(Stdio::piped());
        // SAFETY: only system calls between fork and exec.
        unsafe {
            shell.pre_exec(move || {
                let ok = |rc: libc::c_int| if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
                if libc::geteuid() == 0 {
                    ok(libc::setresuid(user, user, user))?;
                }
                ok(libc::unshare(libc::CLONE_NEWUSER))
            })
        };
        let begun = shell.spawn();
        begun.inspect_err(|e| eprintln!("not run: no user namespace here: {e}")).ok()
    }

    fn told(child: &Child) -> Option<Whose> {
        let pid = child.id();
        in_namespace(namespace(&pid.to_string()).ok()?, pid as i32, SUB, &namespace("self").unwrap())
    }

    fn ended(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_made_a_namespace_has_all_users_in_it() {
        let me = rustix::process::geteuid();
        let Some(mut child) = apart(JOE, "exec setpriv --reuid 7 sleep 60") else { return };
        let maker = Whose::User(if me.is_root() { JOE } else { me.as_raw() });
        assert_eq!(told(&child), Some(maker));
        if me.is_root() {
            let at = format!("/proc/{}", child.id());
            std::fs::write(format!("{at}/uid_map"), format!("0 {JOE} 1\n1 {SUB} 10\n")).unwrap();
            child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            let begun = Instant::now();
            let is_sub = || real_user(&std::fs::read_to_string(format!("{at}/status")).unwrap());
            while is_sub() != Some(SUB + 6) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", is_sub());
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(told(&child), Some(maker), "a subordinate user is his");
        }
        ended(child);
    }

    #[test]
    fn a_container_of_root_s_is_counted_as_it_is() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let Some(one) = apart(0, ":") else { return };
        let Some(two) = apart(0, ":") else { return };
        let (a, b) = (told(&one), told(&two));
        assert!(matches!(a, Some(Whose::Container(..))) && matches!(b, Some(Whose::Container(..))));
        assert_ne!(a, b);
        // As bwrap does where it is setuid root, for whom it was called.
        for (child, map, theirs) in [
            (&one, format!("1000 {JOE} 1\n"), Whose::User(JOE)),
            (&two, format!("0 {JOE} 1\n1 {SUB} 10\n"), b.unwrap()),
        ] {
            std::fs::write(format!("/proc/{}/uid_map", child.id()), &map).unwrap();
            assert_eq!(told(child), Some(theirs), "{map}");
        }
        ended(one);
        ended(two);
    }

    #[test]
    fn one_user_alone_is_told_by_the_map() {
        for (map, only) in [
            ("         0       1000          1\n", Some(1000)),
            ("1000 1000 1", Some(1000)),
            ("0 0 1\n", None),
            ("0 4294967295 1\n", None),
            ("0 1000 2\n", None),
            ("0 1000 1\n1 100000 1\n", None),
            ("0 0 4294967295\n", None),
            ("", None),
            ("0 1000\n", None),
            ("x y z\n", None),
        ] {
            assert_eq!(only_user(map), only, "{map:?}");
        }
    }

    /// A child connects, leaves the socket to its parent, and ends.
    #[test]
    fn who_has_ended_is_let_in_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let kept = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let (socket, address) = (kept.try_clone().unwrap(), SocketAddrUnix::new(&path).unwrap());
        let mut child = Command::new("true");
        // SAFETY: one system call between fork and exec.
        unsafe { child.pre_exec(move || rustix::net::connect(&socket, &address).map_err(io::Error::from)) };
        let mut child = child.spawn().unwrap();
        let pid = child.id() as i32;
        let (theirs, _) = listener.accept().unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(Whose::of(&theirs, 7, Some(pid)), None);
        drop(kept);
    }

    #[test]
    fn who_is_here_is_a_user_and_who_is_gone_nobody() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (me, pid) = (rustix::process::getuid().as_raw(), std::process::id() as i32);
        let lent = if me == 0 { 7 } else { me };
        assert_eq!(Whose::of(&one, 7, Some(pid)), Some(Whose::User(lent)));
        assert_eq!(Whose::of(&one, 7, None), Some(Whose::Unknown(7)));
        assert_eq!(Whose::of(&one, 7, Some(0)), Some(Whose::Unknown(7)));
        assert_eq!(Whose::of(&one, 7, Some(i32::MAX)), None);
        assert_eq!(real_user("Name:\tUid:\nUid:\t1\t2\t3\t4\n"), Some(1));
        assert_eq!(real_user(""), None);
    }
}
