//! Where a daemon's files lie.
//!
//! One folder holds everything a daemon and its clients share. It belongs to the daemon's owner alone, because
//! whoever can write to it can pretend to be the daemon.

use std::path::{Path, PathBuf};

/// Longest path a Unix socket can have, terminator excluded.
const SOCKET_PATH_MAX: usize = 107;

/// A state folder: its name, and the names of the files in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

impl StateDir {
    pub fn new(path: impl Into<PathBuf>) -> StateDir {
        StateDir { path: path.into() }
    }

    /// `ZILLA_DIR`; else `/run/zilla` for root, `$XDG_RUNTIME_DIR/zilla` for others, `~/.zilla` where a session
    /// has no runtime folder.
    pub fn from_env() -> Result<StateDir, String> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let root = rustix::process::geteuid().is_root();
        let path = match var("ZILLA_DIR") {
            Some(dir) => dir,
            None if root => PathBuf::from("/run/zilla"),
            None => match (var("XDG_RUNTIME_DIR"), var("HOME")) {
                (Some(dir), _) => dir.join("zilla"),
                (None, Some(home)) => home.join(".zilla"),
                (None, None) => {
                    return Err("no state folder: set ZILLA_DIR, XDG_RUNTIME_DIR or HOME".to_owned());
                }
            },
        };
        let path = std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let dir = StateDir::new(path);
        let length = dir.socket().as_os_str().len();
        if length > SOCKET_PATH_MAX {
            return Err(format!(
                "state folder '{}' is too long: a socket's path has at most {SOCKET_PATH_MAX} bytes",
                dir.path.display()
            ));
        }
        Ok(dir)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder for its owner alone, and refuses one that others could write to.
    pub fn create(&self) -> Result<(), String> {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt};
        let fail = |e: std::io::Error| format!("state folder '{}': {e}", self.path.display());
        match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(fail(e)),
            _ => {}
        }
        let meta = std::fs::metadata(&self.path).map_err(fail)?;
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me && me != 0 {
            return Err(format!("state folder '{}' belongs to another user", self.path.display()));
        }
        if meta.mode() & 0o022 != 0 {
            return Err(format!("state folder '{}' can be written by others", self.path.display()));
        }
        Ok(())
    }

    pub fn socket(&self) -> PathBuf {
        self.path.join("zillad.sock")
    }

    pub fn pid_file(&self) -> PathBuf {
        self.path.join("zillad.pid")
    }

    /// Held locked by the daemon as long as it lives.
    pub fn lock_file(&self) -> PathBuf {
        self.path.join("zillad.lock")
    }

    /// Held locked by a client while it starts a daemon.
    pub fn start_lock(&self) -> PathBuf {
        self.path.join("start.lock")
    }

    /// Which pools to open at the next start: `ZILLA_CACHE_FILE`, else in the folder.
    pub fn cache_file(&self) -> PathBuf {
        let named = std::env::var_os("ZILLA_CACHE_FILE").filter(|v| !v.is_empty());
        named.map_or_else(|| self.path.join("zpool.cache"), PathBuf::from)
    }

    pub fn log_file(&self) -> PathBuf {
        self.path.join("zillad.log")
    }
}
