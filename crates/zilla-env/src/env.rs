//! The world as the engine sees it: five small traits, and [`Env`], which bundles them.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::task::{Elapsed, JoinHandle, timeout};
use crate::{BoxFuture, Device};

pub trait Clock: Send + Sync {
    /// Monotonic time from an arbitrary start.
    fn now(&self) -> Duration;
    /// The same, but while the machine sleeps it goes on, where that can be told.
    fn boottime(&self) -> Duration {
        self.now()
    }
    /// Time since 1970, which may jump.
    fn wall(&self) -> Duration;
    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()>;
}

pub trait Spawner: Send + Sync {
    /// Starts a detached task.
    fn spawn(&self, task: BoxFuture<'static, ()>);
    /// How many tasks can run at once.
    fn parallelism(&self) -> usize;
    /// Runs `main` to its end on the calling thread, which must not be inside a task. The thread
    /// helps with other tasks while it waits.
    fn drive(&self, main: BoxFuture<'_, ()>);
    /// Where a simulator lets work that takes long on a real machine take time: see
    /// [`Env::interlude`].
    fn interlude(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

pub trait Rng: Send + Sync {
    fn fill(&self, out: &mut [u8]);
    fn u64(&self) -> u64 {
        let mut b = [0; 8];
        self.fill(&mut b);
        u64::from_le_bytes(b)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenMode {
    pub write: bool,
    /// Take the device for ourselves; fails with `ResourceBusy`, naming the holder, where someone
    /// else has it.
    pub exclusive: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    BlockDevice,
    Other,
}

/// A name in a directory; links are followed for the kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub path: PathBuf,
    pub kind: EntryKind,
}

/// Finds things by path: the devices, and the few small files the engine keeps outside pools (the
/// cache file).
pub trait Opener: Send + Sync {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>>;
    /// Entries of a directory, sorted by path.
    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>>;
    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>>;
    /// Replaces the file in one step: after a crash it holds either the old or the new contents.
    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>>;
    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>>;
    /// Makes a new sparse file of `size` bytes to be used as a device; fails where one exists.
    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>>;
    /// The path with links resolved, so that two names of one device compare equal.
    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>>;
}

#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub rng: Arc<dyn Rng>,
    pub opener: Arc<dyn Opener>,
}

impl Env {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(Box::pin(task));
    }

    /// Starts a task and returns the future of its result. Dropping the handle leaves the task
    /// running.
    pub fn spawn_with_result<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let (task, handle) = JoinHandle::wrap(task);
        self.spawner.spawn(task);
        handle
    }

    /// Stands at the start of work that takes long without waiting. In a simulator, where computing
    /// takes no time, others may get their turn here as they would beside it on another core; in
    /// the real world it does nothing.
    pub async fn interlude(&self) {
        if let Some(others) = self.spawner.interlude() {
            others.await;
        }
    }

    /// Runs a future from a thread that is not a worker.
    pub fn block_on<T: Send>(&self, main: impl Future<Output = T> + Send) -> T {
        let mut out = None;
        self.spawner.drive(Box::pin(async { out = Some(main.await) }));
        out.expect("drive returned before the future was done")
    }

    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    pub fn boottime(&self) -> Duration {
        self.clock.boottime()
    }
    pub fn wall(&self) -> Duration {
        self.clock.wall()
    }

    pub fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(d)
    }

    /// Waits for `work` at most `limit`; the work is dropped when the time is up.
    pub async fn timeout<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
        timeout(self.clock.sleep(limit), work).await
    }

    pub async fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn Device>> {
        self.opener.open(path, mode).await
    }

    /// A uniformly distributed number below `n` (0 for an empty range).
    pub fn random_below(&self, n: u64) -> u64 {
        ((self.rng.u64() as u128 * n as u128) >> 64) as u64
    }
}
