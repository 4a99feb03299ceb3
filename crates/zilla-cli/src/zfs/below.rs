//! A tree of files that others own, gone through by root.
//!
//! Whoever owns a tree may put a link in a directory's place at any moment, and a path would follow
//! it. So what was named is opened once, and all below it from the directory that it was found in:
//! symbolic links are not followed there, whenever they come to be.

use rustix::fd::OwnedFd;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::{self, Errno};
use std::ffi::OsStr;
use std::path::Path;

/// What is found in a directory, opened: by its name alone, and not what that leads to. None: it is
/// gone, or something else by now.
pub(super) fn found_in(dir: &OwnedFd, name: &OsStr, kind: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = kind | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => {
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            Ok((kind.is_file() || kind.is_dir()).then_some(file))
        }
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A directory below the one that was named, and what is in it. None: it is gone.
pub(super) fn entries(top: &OwnedFd, way: &Path) -> io::Result<Option<(OwnedFd, Dir)>> {
    match walk(top, way)? {
        Some(dir) => Dir::read_from(&dir).map(|entries| Some((dir, entries))),
        None => Ok(None),
    }
}

/// Each step of the way is a directory itself.
fn walk(top: &OwnedFd, way: &Path) -> io::Result<Option<OwnedFd>> {
    let mut at = rustix::fs::openat(top, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for name in way {
        match found_in(&at, name, OFlags::DIRECTORY)? {
            Some(next) => at = next,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_directory_that_became_a_link_is_not_gone_into() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, his) = (dir.path().join("mine"), dir.path().join("his"));
        std::fs::create_dir_all(mine.join("a/b")).unwrap();
        std::fs::create_dir_all(his.join("b/c")).unwrap();
        let top = rustix::fs::open(&mine, OFlags::DIRECTORY, Mode::empty()).unwrap();
        let names = |way: &str| {
            let found = walk(&top, Path::new(way)).unwrap()?;
            let names = Dir::read_from(&found).unwrap().map(|e| e.unwrap().file_name().to_owned());
            let mut names: Vec<_> = names.filter(|n| !n.to_bytes().starts_with(b".")).collect();
            names.sort();
            Some(names.iter().map(|n| n.to_str().unwrap()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!((names("").unwrap(), names("a").unwrap()), ("a".into(), "b".into()));
        assert_eq!(names("a/b").unwrap(), "");
        std::fs::rename(mine.join("a"), mine.join("was")).unwrap();
        symlink(&his, mine.join("a")).unwrap();
        // The last step, and one on the way.
        assert_eq!((names("a"), names("a/b"), names("gone")), (None, None, None));
        assert_eq!(names("was").unwrap(), "b");
        // What was named stays what it is, whatever its name leads to now.
        std::fs::rename(&mine, dir.path().join("elsewhere")).unwrap();
        symlink(&his, &mine).unwrap();
        assert_eq!(names("was/b").unwrap(), "");
        assert_eq!(names("b"), None);
    }

    #[test]
    fn of_what_is_in_a_directory_only_files_and_directories_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let top = rustix::fs::open(dir.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        let opened = |name: &str| found_in(&top, OsStr::new(name), OFlags::RDONLY).unwrap().is_some();
        let all = ["file", "dir", "link", "pipe", "socket", "gone"].map(opened);
        assert_eq!(all, [true, true, false, false, false, false]);
    }
}
