//! Where a daemon's files lie.
//!
//! One folder holds everything a daemon and its clients share. It belongs to the daemon's owner
//! alone, because whoever can write to it can pretend to be the daemon, or have root write to a
//! file of his choice. So it is judged once, on the open folder ([`Folder`]), and its files are
//! opened relative to that, never through a symbolic link: what is put in its place later changes
//! nothing for who has it open.

use crate::owners;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, renameat, unlinkat};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names in the folder.
pub const SOCKET: &str = "zillad.sock";
/// Where streams' descriptors are handed over.
pub const STREAM_SOCKET: &str = "streams.sock";
/// Where volumes are served over NBD.
pub const NBD_SOCKET: &str = "nbd.sock";
/// Where volumes are files.
pub const ZVOL_DIR: &str = "zvol";
pub const PID_FILE: &str = "zillad.pid";
/// Held locked by the daemon as long as it lives.
pub const LOCK_FILE: &str = "zillad.lock";
/// Held locked by a client while it starts a daemon.
pub const START_LOCK: &str = "start.lock";
pub const LOG_FILE: &str = "zillad.log";
/// What the page for browsers lets in.
pub const TOKEN_FILE: &str = "page.tokens";

/// The folder of root's daemon. Not below `/run`: the list of pools in it must outlive a restart of
/// the machine.
const ROOT_DIR: &str = "/var/lib/zilla";
/// The folder of a user's daemon, below his home.
const USER_DIR: &str = ".local/state/zilla";

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

    /// `ZILLA_DIR`; else `/var/lib/zilla` for root and `~/.local/state/zilla` for others.
    ///
    /// It follows from the user alone: not from a session's folders, which end with the session,
    /// nor from other variables, which `sudo`, cron and a desktop set differently. Else one user
    /// would get two daemons.
    pub fn from_env() -> Result<StateDir, String> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let user = rustix::process::geteuid();
        let path = match var("ZILLA_DIR") {
            Some(dir) => dir,
            None if user.is_root() => PathBuf::from(ROOT_DIR),
            // A container may know no such user, or give him no home.
            None => match owners::home_of(user.as_raw()).filter(|home| home.is_dir()).or_else(|| var("HOME"))
            {
                Some(home) => home.join(USER_DIR),
                None => return Err("no state folder: set ZILLA_DIR or HOME".to_owned()),
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

    /// Where a command asks: the user's own folder; if he has none and names none, root's, where
    /// its daemon is shared with him.
    pub fn to_ask() -> Result<StateDir, String> {
        let own = StateDir::from_env()?;
        let named = std::env::var_os("ZILLA_DIR").is_some_and(|v| !v.is_empty());
        if named || rustix::process::geteuid().is_root() || own.path.exists() {
            return Ok(own);
        }
        let shared = StateDir::new(ROOT_DIR);
        match rustix::fs::access(shared.socket(), rustix::fs::Access::WRITE_OK) {
            Ok(()) => Ok(shared),
            Err(_) => Ok(own),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder for its owner alone and opens it; refuses one that others own or could
    /// write to.
    pub fn open(&self) -> Result<Folder, String> {
        use std::os::unix::fs::DirBuilderExt;
        let shown = self.path.display();
        let fail = |e: io::Error| format!("state folder '{shown}': {e}");
        match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail(e)),
            _ => {}
        }
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = openat(CWD, &self.path, how, Mode::empty()).map_err(|e| match e {
            rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP => {
                format!("state folder '{shown}' is a symbolic link or no folder: name the folder itself with ZILLA_DIR")
            }
            e => fail(e.into()),
        })?;
        let found = fstat(&dir).map_err(|e| fail(e.into()))?;
        let me = rustix::process::geteuid().as_raw();
        if found.st_uid != me {
            return Err(format!(
                "state folder '{shown}' belongs to user {}, not to {me}: name another one with ZILLA_DIR",
                found.st_uid
            ));
        }
        if found.st_mode & 0o022 != 0 {
            return Err(format!("state folder '{shown}' can be written by others: chmod go-w '{shown}'"));
        }
        Ok(Folder { dir: Arc::new(dir), path: self.path.clone() })
    }

    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Where volumes are files.
    pub fn zvol_dir(&self) -> PathBuf {
        self.path.join(ZVOL_DIR)
    }

    /// Which pools to open at the next start: `ZILLA_CACHE_FILE`, else in the folder.
    pub fn cache_file(&self) -> PathBuf {
        let named = std::env::var_os("ZILLA_CACHE_FILE").filter(|v| !v.is_empty());
        named.map_or_else(|| self.path.join("zpool.cache"), PathBuf::from)
    }
}

/// How a file of the folder is opened; it is made where it is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Write,
    /// Emptied first.
    Anew,
    /// At its end, and read.
    Append,
}

/// A state folder that is open and was found to be its owner's alone.
#[derive(Debug, Clone)]
pub struct Folder {
    dir: Arc<OwnedFd>,
    path: PathBuf,
}

impl Folder {
    /// Its name, for people.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path that leads into just this folder, for calls that take nothing else.
    pub fn by_descriptor(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()))
    }

    /// Lets others reach what in it is meant for them: they may pass through, not look.
    #[cfg(feature = "server")]
    pub fn open_to(&self, share: crate::share::Share) -> io::Result<()> {
        if let Some(gid) = share.group() {
            rustix::fs::fchown(&*self.dir, None, Some(rustix::fs::Gid::from_raw(gid)))?;
        }
        Ok(rustix::fs::fchmod(&*self.dir, Mode::from_raw_mode(share.folder_mode()))?)
    }

    /// Opens a file in it, one of the owner's own.
    pub fn file(&self, name: &str, access: Access) -> io::Result<File> {
        let how = match access {
            Access::Write => OFlags::WRONLY,
            Access::Anew => OFlags::WRONLY | OFlags::TRUNC,
            Access::Append => OFlags::RDWR | OFlags::APPEND,
        };
        // Not to wait for the other end of a pipe that somebody may have put there.
        let safe = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&*self.dir, name, how | safe, Mode::from_raw_mode(0o600))?;
        let found = fstat(&file)?;
        let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return refuse("is not a regular file: remove it");
        }
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return refuse("belongs to another user: remove it");
        }
        Ok(File::from(file))
    }

    /// The text of a small file.
    pub fn read(&self, name: &str) -> io::Result<String> {
        /// More than a number and a line's end.
        const LIMIT: u64 = 4096;
        self.read_up_to(name, LIMIT)
    }

    /// So much of the text of a file.
    pub fn read_up_to(&self, name: &str, limit: u64) -> io::Result<String> {
        use std::io::Read;
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&*self.dir, name, how, Mode::empty())?);
        let mut text = String::new();
        file.take(limit).read_to_string(&mut text)?;
        Ok(text)
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&*self.dir, from, &*self.dir, to)?)
    }

    /// Removes a file; nothing if there is none.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&*self.dir, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder() -> (tempfile::TempDir, StateDir) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path().join("state"));
        (dir, state)
    }

    #[test]
    fn a_folder_of_others_is_refused_with_what_to_do() {
        let (dir, state) = folder();
        state.open().unwrap();
        std::fs::set_permissions(state.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(state.open().unwrap_err().contains("can be written by others: chmod go-w"));
        std::fs::set_permissions(state.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        symlink(state.path(), dir.path().join("link")).unwrap();
        let link = StateDir::new(dir.path().join("link")).open().unwrap_err();
        assert!(link.contains("is a symbolic link"), "{link}");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(state.path(), Some(4711), None).unwrap();
            let theirs = state.open().unwrap_err();
            assert!(
                theirs.contains("belongs to user 4711, not to 0: name another one with ZILLA_DIR"),
                "{theirs}"
            );
        }
    }

    #[test]
    fn files_are_the_owner_s_own_and_no_links() {
        let (dir, state) = folder();
        let folder = state.open().unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, state.path().join(LOG_FILE)).unwrap();
        symlink(&victim, state.path().join(LOCK_FILE)).unwrap();
        for access in [Access::Write, Access::Anew, Access::Append] {
            assert!(folder.file(LOG_FILE, access).is_err(), "{access:?}");
            assert!(folder.file(LOCK_FILE, access).is_err(), "{access:?}");
        }
        assert!(folder.read(LOG_FILE).is_err());
        rustix::fs::mknodat(CWD, state.path().join(PID_FILE), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        let pipe = folder.file(PID_FILE, Access::Append).unwrap_err();
        assert!(pipe.to_string().contains("is not a regular file"), "{pipe}");
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn the_folder_follows_from_the_user_and_not_from_his_session() {
        let found = StateDir::from_env().unwrap();
        let user = rustix::process::geteuid();
        if let Some(named) = std::env::var_os("ZILLA_DIR") {
            assert_eq!(found.path(), Path::new(&named));
        } else if user.is_root() {
            assert_eq!(found.path(), Path::new("/var/lib/zilla"));
        } else {
            assert!(found.path().ends_with(".local/state/zilla"), "{found:?}");
        }
        assert_eq!(owners::home_of(0).as_deref(), Some(Path::new("/root")));
    }

    #[test]
    fn what_takes_the_folder_s_place_gets_nothing() {
        let (dir, state) = folder();
        let folder = state.open().unwrap();
        std::fs::rename(state.path(), dir.path().join("moved")).unwrap();
        std::fs::create_dir(state.path()).unwrap();
        writeln!(folder.file("a", Access::Anew).unwrap(), "1").unwrap();
        folder.rename("a", "b").unwrap();
        assert_eq!(folder.read("b").unwrap(), "1\n");
        assert!(dir.path().join("moved/b").exists() && !state.path().join("b").exists());
        assert!(folder.by_descriptor("b").exists());
        folder.remove("b").unwrap();
        folder.remove("b").unwrap();
        assert!(!dir.path().join("moved/b").exists());
    }
}
