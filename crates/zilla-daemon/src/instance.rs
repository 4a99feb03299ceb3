//! One daemon to a state folder.
//!
//! The claim is a lock on `zillad.lock`, held by an open file: the kernel lets go of it when the
//! process ends, so a daemon that was killed stands in nobody's way. The lock file is never
//! removed, because a lock on a removed file protects nothing. The pid file is for people and
//! scripts only.

use crate::DaemonError;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};
use zilla_control::paths::{Access, LOCK_FILE, NBD_SOCKET, PID_FILE, SOCKET};
use zilla_control::{Folder, StateDir};

/// The pid file while it is being written.
const NEW_PID_FILE: &str = "zillad.pid.new";

/// How long a daemon started by a command waits for one that is just going.
const PREDECESSOR: Duration = Duration::from_secs(60);

/// The claim on a state folder; dropping it removes socket and pid file and lets go.
#[derive(Debug)]
pub struct Instance {
    folder: Folder,
    _lock: File,
    /// Somebody else made the socket, and listens on it when we are gone.
    leaves_socket: bool,
}

impl Instance {
    /// Claims the folder. `wait`: a daemon that is shutting down still holds the lock but answers
    /// no more; a command that needs a new one must not fail for that.
    pub fn claim(dir: &StateDir, wait: bool) -> Result<Instance, DaemonError> {
        let folder = dir.open().map_err(DaemonError::StateDir)?;
        let fail = |e| failure(&folder, LOCK_FILE, e);
        let lock = folder.file(LOCK_FILE, Access::Write).map_err(fail)?;
        let begin = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if wait && begin.elapsed() < PREDECESSOR => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let dir_name = dir.path().display().to_string();
                    return Err(DaemonError::Running { dir: dir_name, pid: read_pid(&folder) });
                }
                Err(e) => return Err(fail(e.into())),
            }
        }
        let instance = Instance { folder, _lock: lock, leaves_socket: false };
        write_pid(&instance.folder)?;
        Ok(instance)
    }

    /// The socket is a service manager's.
    pub fn leave_socket(&mut self) {
        self.leaves_socket = true;
    }

    /// The folder that was claimed, whatever its path has come to mean.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        for name in [SOCKET, NBD_SOCKET, PID_FILE].into_iter().skip(usize::from(self.leaves_socket)) {
            if let Err(e) = self.folder.remove(name) {
                tracing::warn!("cannot remove '{}': {e}", self.folder.path().join(name).display());
            }
        }
    }
}

fn failure(folder: &Folder, name: &str, error: std::io::Error) -> DaemonError {
    DaemonError::Io { what: format!("'{}'", folder.path().join(name).display()), error }
}

/// Written beside and renamed, so that nobody reads half a number.
fn write_pid(folder: &Folder) -> Result<(), DaemonError> {
    let write = || {
        let mut file = folder.file(NEW_PID_FILE, Access::Anew)?;
        writeln!(file, "{}", std::process::id())?;
        folder.rename(NEW_PID_FILE, PID_FILE)
    };
    write().map_err(|e| failure(folder, PID_FILE, e))
}

fn read_pid(folder: &Folder) -> Option<u32> {
    folder.read(PID_FILE).ok()?.trim().parse().ok()
}
