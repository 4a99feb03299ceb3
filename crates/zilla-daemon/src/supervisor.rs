//! Under a service manager: the socket that it listens on for us, and what it wants to hear.
//!
//! systemd hands over a listening socket as descriptor 3 (`LISTEN_PID`, `LISTEN_FDS`), so that
//! commands find the daemon before it runs; and it waits for words on a datagram socket
//! (`NOTIFY_SOCKET`): that the daemon is ready, what it does, that it ends, and, where it asks for
//! that (`WATCHDOG_USEC`), that it lives. The protocols are sd_listen_fds(3) and sd_notify(3).
//! Without a service manager none of the variables is there and nothing happens. The socket must be
//! the state folder's, because commands ask there; it is the manager's, so it is not removed at the
//! end.

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::FdFlags;
use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;
use std::time::Duration;

/// SD_LISTEN_FDS_START
const FIRST: RawFd = 3;

/// The socket that was handed over, if one was. `path` is where commands look for it.
pub fn listener(path: &Path) -> Result<Option<UnixListener>, String> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => return Ok(None),
        Some(1) => {}
        Some(n) => return Err(format!("{n} sockets are handed over, where the daemon listens on one")),
    }
    // SAFETY: the service manager says that this descriptor is open, and it is this process that is
    // meant. The duplicate is ours; the original stays open, so nothing here or elsewhere is closed
    // behind anybody's back.
    let handed = unsafe { BorrowedFd::borrow_raw(FIRST) };
    let own = taken(handed).map_err(|e| format!("descriptor {FIRST}: {e}"))?;
    checked(own, path).map(Some)
}

/// A duplicate of what was handed over. Neither it nor the original is passed on to programs that
/// the daemon runs: who has it could answer commands in the daemon's place, and they would take him
/// for it.
fn taken(handed: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_setfd(handed, FdFlags::CLOEXEC)?;
    rustix::io::fcntl_dupfd_cloexec(handed, FIRST)
}

/// A stream socket that listens, and where commands look.
fn checked(socket: OwnedFd, path: &Path) -> Result<UnixListener, String> {
    use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
    let is = |what: rustix::io::Result<bool>| what.unwrap_or(false);
    let right = is(socket_domain(&socket).map(|d| d == rustix::net::AddressFamily::UNIX))
        && is(socket_type(&socket).map(|t| t == rustix::net::SocketType::STREAM))
        && is(socket_acceptconn(&socket));
    if !right {
        return Err("what is handed over is not a Unix socket that listens".to_owned());
    }
    let listener = UnixListener::from(socket);
    let at = listener.local_addr().ok().and_then(|a| a.as_pathname().map(Path::to_owned)).unwrap_or_default();
    if at != path {
        let (at, path) = (at.display(), path.display());
        return Err(format!("the socket that is handed over is '{at}', but commands look for '{path}'"));
    }
    listener.set_nonblocking(true).map_err(|e| e.to_string())?;
    Ok(listener)
}

/// Where the service manager listens.
pub struct Manager {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants a sign of life at least.
    watchdog: Option<Duration>,
}

impl Manager {
    pub fn from_environment() -> Manager {
        let var = |name: &str| std::env::var(name).ok();
        let micros = var("WATCHDOG_USEC").and_then(|v| v.parse().ok()).filter(|&n| n > 0);
        let ours = var("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        Manager {
            to: var("NOTIFY_SOCKET").and_then(|at| connect(&at)),
            watchdog: micros.filter(|_| ours).map(Duration::from_micros),
        }
    }

    /// Tells it; whoever does not listen does not matter.
    pub fn tell(&self, words: &str) {
        if let Some((socket, to)) = &self.to
            && let Err(e) = socket.send_to_addr(words.as_bytes(), to)
        {
            tracing::debug!("the service manager does not listen: {e}");
        }
    }

    /// Gives signs of life for ever, each after `lives` has come back. Twice as often as is wanted.
    pub async fn watch<F: Future<Output = ()>>(&self, lives: impl Fn() -> F) {
        let Some(every) = self.watchdog.map(|d| d / 2) else { return std::future::pending().await };
        loop {
            lives().await;
            self.tell("WATCHDOG=1");
            tokio::time::sleep(every).await;
        }
    }
}

fn connect(at: &str) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match at.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(at),
    };
    let socket = UnixDatagram::unbound().and_then(|s| s.set_nonblocking(true).map(|()| s));
    match (socket, address) {
        (Ok(socket), Ok(address)) => Some((socket, address)),
        (Err(e), _) | (_, Err(e)) => {
            tracing::warn!("the service manager at '{at}' cannot be told anything: {e}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_taken_only_if_commands_find_it() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("s"), dir.path().join("t"));
        let socket = || {
            let _ = std::fs::remove_file(&here);
            OwnedFd::from(UnixListener::bind(&here).unwrap())
        };
        checked(socket(), &here).unwrap();
        assert!(checked(socket(), &there).unwrap_err().contains("but commands look for"));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(checked(file.into(), &here).unwrap_err().contains("not a Unix socket"));
        let datagrams = UnixDatagram::unbound().unwrap();
        assert!(checked(datagrams.into(), &here).is_err());
    }

    #[test]
    fn what_is_handed_over_is_passed_on_to_nobody() {
        use rustix::fd::AsFd;
        let (socket, _other) = UnixDatagram::pair().unwrap();
        rustix::io::fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        let own = taken(socket.as_fd()).unwrap();
        for fd in [socket.as_fd(), own.as_fd()] {
            assert_eq!(rustix::io::fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_come_twice_as_often_as_wanted_and_stop_with_life() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager_end = UnixDatagram::bind(&path).unwrap();
        manager_end.set_nonblocking(true).unwrap();
        let manager = Manager { to: connect(path.to_str().unwrap()), watchdog: Some(Duration::from_secs(4)) };
        manager.tell("READY=1");
        let mut buf = [0; 64];
        let mut heard =
            || manager_end.recv(&mut buf).ok().map(|n| String::from_utf8_lossy(&buf[..n]).into_owned());
        assert_eq!(heard().as_deref(), Some("READY=1"));
        let _ = tokio::time::timeout(Duration::from_secs(7), manager.watch(|| async {})).await;
        let signs: Vec<_> = std::iter::from_fn(&mut heard).collect();
        assert_eq!(signs, ["WATCHDOG=1"; 4]);
        let _ = tokio::time::timeout(Duration::from_secs(60), manager.watch(std::future::pending)).await;
        assert_eq!(heard(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_manager_nothing_happens() {
        let manager = Manager { to: None, watchdog: None };
        manager.tell("READY=1");
        assert!(tokio::time::timeout(Duration::from_secs(60), manager.watch(|| async {})).await.is_err());
    }
}
