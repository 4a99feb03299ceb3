//! Devices that were looked at stay open until the engine takes them.
//!
//! A command that makes devices part of a pool first looks at what is on them. If the engine then
//! opened them by their paths, another could have put something else there in between. So the
//! daemon's opener keeps what was looked at, open and locked, and gives just that, once, to whoever
//! opens the path for a pool next. What is not taken is closed when the command ends.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla_env::{BoxFuture, Device, DirEntry, OpenMode, Opener};

type Ready = Arc<Mutex<HashMap<PathBuf, Arc<dyn Device>>>>;

/// The real opener, with devices that are open already before it.
pub struct Handing {
    inner: Arc<dyn Opener>,
    ready: Ready,
}

/// The daemon's end of it. Used by one command at a time: whoever changes a pool's devices holds
/// the engine's `changes`.
#[derive(Clone)]
pub struct Desk(Ready);

/// Devices that wait to be taken. Dropping it closes those that were not.
#[must_use = "dropped, it lets go of the devices before the engine has them"]
pub struct Checked {
    ready: Ready,
    mine: Vec<PathBuf>,
}

pub fn handing(inner: Arc<dyn Opener>) -> (Handing, Desk) {
    let ready = Ready::default();
    (Handing { inner, ready: ready.clone() }, Desk(ready))
}

impl Desk {
    pub fn none(&self) -> Checked {
        Checked { ready: self.0.clone(), mine: Vec::new() }
    }
}

impl Checked {
    pub fn add(&mut self, path: &Path, device: Arc<dyn Device>) {
        self.ready.lock().insert(path.to_owned(), device);
        self.mine.push(path.to_owned());
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        let mut ready = self.ready.lock();
        let left: Vec<_> = self.mine.iter().filter_map(|path| ready.remove(path)).collect();
        drop(ready);
        drop(left);
    }
}

impl Opener for Handing {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>> {
        let pools = mode.write && mode.exclusive;
        match pools.then(|| self.ready.lock().remove(path)).flatten() {
            Some(device) => Box::pin(async move { Ok(device) }),
            None => self.inner.open(path, mode),
        }
    }

    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>> {
        self.inner.list(dir)
    }

    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        self.inner.read_file(path)
    }

    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>> {
        self.inner.write_file(path, data)
    }

    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>> {
        self.inner.remove_file(path)
    }

    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.create_file(path, size)
    }

    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>> {
        self.inner.canonical(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_env::block_on;

    #[test]
    fn the_pool_gets_what_was_looked_at_whatever_the_path_names_by_then() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        for (path, first) in [(&path, b'a'), (&other, b'b')] {
            std::fs::write(path, vec![first; 1 << 20]).expect("file");
        }
        let (opener, desk) = handing(zilla_env::real_env(1).opener);
        let mode = OpenMode { write: true, exclusive: true };
        let mut checked = desk.none();
        checked.add(&path, block_on(opener.open(&path, mode)).expect("open"));
        std::fs::rename(&other, &path).expect("exchanged");
        // Whoever only looks sees what the path names.
        let seen = block_on(opener.open(&path, OpenMode::default())).expect("open");
        assert_eq!(block_on(seen.read(0, 4096)).expect("read")[0], b'b');
        let taken = block_on(opener.open(&path, mode)).expect("open");
        assert_eq!(block_on(taken.read(0, 4096)).expect("read")[0], b'a');
        drop((taken, seen, checked));
        let again = block_on(opener.open(&path, mode)).expect("given once");
        assert_eq!(block_on(again.read(0, 4096)).expect("read")[0], b'b');
        // What nobody took is let go of.
        drop(again);
        let mut checked = desk.none();
        checked.add(&path, block_on(opener.open(&path, mode)).expect("open"));
        drop(checked);
        block_on(opener.open(&path, mode)).expect("not locked any more");
    }
}
