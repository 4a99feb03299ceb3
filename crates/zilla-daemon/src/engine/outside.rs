//! Small files in folders that the daemon was told of, and that may be others' to write: tunables
//! and statistics.
//!
//! A daemon of root's that opened them by their paths would write wherever somebody put a symbolic
//! or hard link, and wait for ever at a pipe. So a folder is opened, and what is in it through that
//! ([`Place`]): only regular files that have no other name are read or written, and nothing is
//! waited for.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, mkdirat, openat, unlinkat};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path};

/// Bytes of a file that are read: more than any tunable has.
const LIMIT: u64 = 4096;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);
/// Of whatever is opened.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A folder that is open.
pub(super) struct Place(OwnedFd);

impl Place {
    /// Makes the folder where there is none.
    pub(super) fn make(path: &Path) -> io::Result<Place> {
        std::fs::create_dir_all(path)?;
        Place::open(path)
    }

    pub(super) fn open(path: &Path) -> io::Result<Place> {
        Ok(Place(openat(CWD, path, DIR | SAFE, Mode::empty())?))
    }

    fn below(&self, name: &OsStr) -> io::Result<Place> {
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(Place(openat(&self.0, name, DIR | SAFE, Mode::empty())?))
    }

    /// Does something in the folder that a file is in, whose path leads from here downwards.
    fn within<T>(&self, file: &Path, act: impl FnOnce(&Place, &OsStr) -> io::Result<T>) -> io::Result<T> {
        let strange = || io::Error::from(io::ErrorKind::InvalidInput);
        let mut parts = Vec::new();
        for part in file.components() {
            let Component::Normal(part) = part else { return Err(strange()) };
            parts.push(part);
        }
        let name = parts.pop().ok_or_else(strange)?;
        let mut inner = None::<Place>;
        for part in parts {
            inner = Some(inner.as_ref().unwrap_or(self).below(part)?);
        }
        act(inner.as_ref().unwrap_or(self), name)
    }

    fn file(&self, name: &OsStr, how: OFlags) -> io::Result<File> {
        let file = openat(&self.0, name, how | SAFE, Mode::from_raw_mode(0o666))?;
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink != 1 {
            let why = "it is not a regular file, or has another name";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(File::from(file))
    }

    /// Gives a file this text.
    pub(super) fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        self.within(file, |place, name| {
            // Emptied when it is known what it is.
            let mut file = place.file(name, OFlags::WRONLY | OFlags::CREATE)?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())
        })
    }

    pub(super) fn read(&self, file: &Path) -> io::Result<String> {
        self.within(file, |place, name| {
            let mut text = String::new();
            place.file(name, OFlags::RDONLY)?.take(LIMIT).read_to_string(&mut text)?;
            Ok(text)
        })
    }

    pub(super) fn remove(&self, file: &Path) -> io::Result<()> {
        self.within(file, |place, name| Ok(unlinkat(&place.0, name, AtFlags::empty())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_are_written_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::make(&dir.path().join("a/b")).unwrap();
        let file = Path::new("tank/x");
        for text in ["much\n", "1\n"] {
            place.write(file, text).unwrap();
            assert_eq!(place.read(file).unwrap(), text);
        }
        place.remove(file).unwrap();
        assert_eq!(place.read(file).unwrap_err().kind(), io::ErrorKind::NotFound);
        for strange in ["../x", "/x", "", "tank/../../x"] {
            assert!(place.write(Path::new(strange), "1").is_err(), "{strange}");
        }
    }

    #[test]
    fn nothing_leads_out_of_the_folder_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (own, theirs) = (dir.path().join("own"), dir.path().join("theirs"));
        std::fs::create_dir(&own).unwrap();
        let kept = own.join("kept");
        std::fs::write(&kept, "kept").unwrap();
        let place = Place::make(&theirs).unwrap();
        symlink(&kept, theirs.join("link")).unwrap();
        symlink(own.join("new"), theirs.join("dangling")).unwrap();
        std::fs::hard_link(&kept, theirs.join("name")).unwrap();
        symlink(&own, theirs.join("tank")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(theirs.join("pipe")).status().unwrap();
        assert!(made.success());
        for file in ["link", "dangling", "name", "tank/kept", "tank/new", "pipe"] {
            assert!(place.write(Path::new(file), "gone").is_err(), "{file}");
            assert!(place.read(Path::new(file)).is_err(), "{file}");
        }
        assert!(place.remove(Path::new("tank/kept")).is_err());
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
        assert_eq!(std::fs::read_dir(&own).unwrap().count(), 1);
        // A folder that is a link is none.
        assert!(Place::make(&theirs.join("tank")).is_err());
    }
}
