//! From a mountpoint's name to the directory that it means.
//!
//! A mountpoint is a word on a disk, and the directories on the way to it may belong to users: who
//! can plant a symbolic link there must not choose what is mounted over. So the way is walked here,
//! a name at a time, each opened relative to the directory before it and never through a link
//! unseen; the mount then goes onto the directory that was found, not onto its path.
//!
//! * Below an alternate root no link is followed and nothing leads out of it: `..` is refused
//!   wherever it comes from.
//! * Elsewhere the administrator's own links are (a `/home` that lies on another disk), those of
//!   ordinary users not.
//!
//! Missing directories are made on the way, for everyone to pass, whatever the umask.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fchmod, mkdirat, openat, readlinkat, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// As many symbolic links as Linux follows.
const MAX_LINKS: usize = 40;

const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A mountpoint, with the alternate root that it must not leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub root: Option<PathBuf>,
    /// As people see it, the root included.
    pub path: PathBuf,
}

fn refuse(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("'{}' {why}", path.display()))
}

/// A name, or what a link or the root says beside names.
fn steps(path: &Path) -> Vec<Component<'_>> {
    path.components().filter(|c| !matches!(c, Component::CurDir)).collect()
}

/// Where the walk has come.
struct Walk {
    at: OwnedFd,
    /// For messages.
    path: PathBuf,
    confined: bool,
    make: bool,
    links: usize,
}

impl Place {
    /// The directory itself, made if it is missing and `make`.
    pub fn open(&self, make: bool) -> io::Result<OwnedFd> {
        self.walk(&self.path, make)
    }

    fn walk(&self, path: &Path, make: bool) -> io::Result<OwnedFd> {
        let top = |path: &Path| {
            openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        let (mut walk, below) = match &self.root {
            // What the administrator names as a root is meant, whatever leads there.
            Some(root) => {
                if make {
                    std::fs::create_dir_all(root)?;
                }
                let below =
                    path.strip_prefix(root).map_err(|_| refuse(path, "is not below the alternate root"))?;
                let walk = Walk { at: top(root)?, path: root.clone(), confined: true, make, links: 0 };
                (walk, below)
            }
            None => {
                let root = Path::new("/");
                (Walk { at: top(root)?, path: root.to_owned(), confined: false, make, links: 0 }, path)
            }
        };
        walk.follow(below)?;
        Ok(walk.at)
    }

    /// Removes the directory if it is empty; a link on the way leaves it alone.
    pub fn remove(&self) -> io::Result<()> {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else { return Ok(()) };
        if self.root.as_deref() == Some(&*self.path) {
            return Ok(());
        }
        let parent = self.walk(parent, false)?;
        Ok(unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
    }
}

/// Whether a directory has entries.
pub fn is_empty(dir: BorrowedFd<'_>) -> io::Result<bool> {
    let readable = openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for entry in Dir::new(readable)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Walk {
    fn follow(&mut self, path: &Path) -> io::Result<()> {
        for step in steps(path) {
            match step {
                Component::Normal(name) => self.enter(Path::new(name))?,
                Component::RootDir if !self.confined => {
                    self.at = openat(CWD, "/", STEP, Mode::empty())?;
                    self.path = PathBuf::from("/");
                }
                // Only links of the administrator's get here.
                Component::ParentDir if !self.confined && self.links > 0 => {
                    self.at = openat(&self.at, "..", STEP, Mode::empty())?;
                    self.path.push("..");
                }
                Component::CurDir => {}
                _ => return Err(refuse(path, "is no path below a root")),
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: &Path) -> io::Result<()> {
        let path = self.path.join(name);
        let found = match statat(&self.at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if self.make => {
                match mkdirat(&self.at, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) => {
                        // The umask of the daemon keeps all others out.
                        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let made = openat(&self.at, name, how, Mode::empty())?;
                        fchmod(&made, Mode::from_raw_mode(0o755))?;
                    }
                    Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                statat(&self.at, name, AtFlags::SYMLINK_NOFOLLOW)?
            }
            other => other?,
        };
        if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            return self.follow_link(name, &found, &path);
        }
        // If it has become a link meanwhile, it is no directory.
        self.at = openat(&self.at, name, STEP, Mode::empty())?;
        self.path = path;
        Ok(())
    }

    fn follow_link(&mut self, name: &Path, link: &Stat, path: &Path) -> io::Result<()> {
        if self.confined {
            return Err(refuse(path, "is a symbolic link: below an alternate root none is followed"));
        }
        let me = rustix::process::geteuid().as_raw();
        if link.st_uid != 0 && link.st_uid != me {
            let why = format!(
                "is a symbolic link of user {}: mounting follows only the administrator's",
                link.st_uid
            );
            return Err(refuse(path, &why));
        }
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        // By descriptor, so that what is read is what was judged.
        let held = openat(&self.at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let now = rustix::fs::fstat(&held)?;
        if (now.st_dev, now.st_ino) != (link.st_dev, link.st_ino) {
            return Err(refuse(path, "changed while it was looked at"));
        }
        let target = readlinkat(held.as_fd(), "", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.as_os_str().as_bytes().is_empty() {
            return Err(Errno::NOENT.into());
        }
        self.follow(&target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn place(root: Option<&Path>, path: PathBuf) -> Place {
        Place { root: root.map(Path::to_owned), path }
    }

    fn is(fd: &OwnedFd, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        let (a, b) = (rustix::fs::fstat(fd).unwrap(), std::fs::metadata(path).unwrap());
        (a.st_dev, a.st_ino) == (b.dev(), b.ino())
    }

    #[test]
    fn missing_directories_are_made_for_everyone_to_pass() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("alt");
        let at = place(Some(&root), root.join("a/b"));
        assert!(at.open(false).is_err());
        let fd = at.open(true).unwrap();
        assert!(is(&fd, &root.join("a/b")) && is_empty(fd.as_fd()).unwrap());
        assert_eq!(std::fs::metadata(root.join("a")).unwrap().permissions().mode() & 0o777, 0o755);
        std::fs::write(root.join("a/b/c"), "").unwrap();
        assert!(!is_empty(fd.as_fd()).unwrap());
    }

    #[test]
    fn nothing_leads_out_of_an_alternate_root() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("alt"), dir.path().join("outside"));
        std::fs::create_dir_all(root.join("in")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink("in", root.join("within")).unwrap();
        for bad in ["absolute", "absolute/x", "relative", "within", "../outside", "in/../../outside", "in/.."]
        {
            for make in [false, true] {
                let e = place(Some(&root), root.join(bad)).open(make).unwrap_err();
                assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{bad}: {e}");
            }
        }
        assert!(is_empty(std::fs::File::open(&outside).unwrap().as_fd()).unwrap());
        assert!(place(Some(&root), outside.clone()).open(true).is_err());
        // Nor does a removal.
        std::fs::create_dir(outside.join("empty")).unwrap();
        assert!(place(Some(&root), root.join("absolute/empty")).remove().is_err());
        assert!(outside.join("empty").is_dir());
        place(Some(&root), root.join("in")).remove().unwrap();
        assert!(!root.join("in").exists());
    }

    #[test]
    fn links_are_followed_for_the_administrator_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("real/deep")).unwrap();
        symlink("real/../real", dir.join("mine")).unwrap();
        symlink("loop", dir.join("loop")).unwrap();
        let fd = place(None, dir.join("mine/deep")).open(false).unwrap();
        assert!(is(&fd, &dir.join("real/deep")));
        assert!(place(None, dir.join("loop")).open(false).is_err());
        assert!(place(None, dir.join("real/../real")).open(false).is_err());
        if rustix::process::geteuid().is_root() {
            symlink("real", dir.join("theirs")).unwrap();
            std::os::unix::fs::lchown(dir.join("theirs"), Some(4711), None).unwrap();
            let e = place(None, dir.join("theirs/deep")).open(true).unwrap_err();
            assert!(e.to_string().contains("symbolic link of user 4711"), "{e}");
        }
    }
}
