//! One daemon to a state folder.
//!
//! The claim is a lock on `zillad.lock`, held by an open file: the kernel lets go of it when the process ends, so
//! a daemon that was killed stands in nobody's way. The lock file is never removed, because a lock on a removed
//! file protects nothing. The pid file is for people and scripts only.

use crate::DaemonError;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use zilla_control::StateDir;

/// How long a daemon started by a command waits for one that is just going.
const PREDECESSOR: Duration = Duration::from_secs(60);

/// The claim on a state folder; dropping it removes socket and pid file and lets go.
#[derive(Debug)]
pub struct Instance {
    dir: StateDir,
    _lock: File,
}

impl Instance {
    /// Claims the folder. `wait`: a daemon that is shutting down still holds the lock but answers no more; a
    /// command that needs a new one must not fail for that.
    pub fn claim(dir: &StateDir, wait: bool) -> Result<Instance, DaemonError> {
        dir.create().map_err(DaemonError::StateDir)?;
        let path = dir.lock_file();
        let lock = open(&path)?;
        let begin = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) if wait && begin.elapsed() < PREDECESSOR => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let dir_name = dir.path().display().to_string();
                    return Err(DaemonError::Running { dir: dir_name, pid: read_pid(dir) });
                }
                Err(e) => return Err(failure(&path, e.into())),
            }
        }
        let instance = Instance { dir: dir.clone(), _lock: lock };
        write_pid(dir)?;
        Ok(instance)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        for path in [self.dir.socket(), self.dir.pid_file()] {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    tracing::warn!("cannot remove '{}': {e}", path.display());
                }
                _ => {}
            }
        }
    }
}

fn failure(path: &Path, error: std::io::Error) -> DaemonError {
    DaemonError::Io { what: format!("'{}'", path.display()), error }
}

fn open(path: &Path) -> Result<File, DaemonError> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| failure(path, e))
}

/// Written beside and renamed, so that nobody reads half a number.
fn write_pid(dir: &StateDir) -> Result<(), DaemonError> {
    let path = dir.pid_file();
    let new = path.with_extension("pid.new");
    let write = || {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        writeln!(file, "{}", std::process::id())?;
        std::fs::rename(&new, &path)
    };
    write().map_err(|e| failure(&path, e))
}

fn read_pid(dir: &StateDir) -> Option<u32> {
    std::fs::read_to_string(dir.pid_file()).ok()?.trim().parse().ok()
}
