//! Paths of the simulated world: its disks, and small files that are replaced whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use zilla_env::{BoxFuture, Device, DeviceInfo, DirEntry, EntryKind, Io, OpenMode, Opener, SparseImage};

use crate::disk::{DiskConfig, EIO, Power, SimDisk};
use crate::executor::Executor;
use crate::rng::SimRng;

pub(crate) struct SimOpener(Arc<Paths>);

pub(crate) struct Paths {
    pub state: Mutex<PathState>,
    executor: Weak<Executor>,
    power: Arc<Power>,
    seed: u64,
    config: DiskConfig,
}

#[derive(Default)]
pub(crate) struct PathState {
    pub disks: BTreeMap<PathBuf, Arc<SimDisk>>,
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    owned: BTreeSet<PathBuf>,
    created: u64,
}

impl SimOpener {
    pub(crate) fn new(paths: Arc<Paths>) -> SimOpener {
        SimOpener(paths)
    }
}

impl Paths {
    pub(crate) fn new(
        executor: &Arc<Executor>,
        power: Arc<Power>,
        seed: u64,
        config: DiskConfig,
    ) -> Arc<Paths> {
        Arc::new(Paths { state: Mutex::default(), executor: Arc::downgrade(executor), power, seed, config })
    }

    pub(crate) fn add_disk(&self, path: &Path, size: u64, image: SparseImage) -> io::Result<Arc<SimDisk>> {
        let mut state = self.state.lock();
        if state.disks.contains_key(path) || state.files.contains_key(path) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", path.display())));
        }
        state.created += 1;
        let number = state.created;
        let rng = SimRng::new(self.seed ^ number, "disk");
        let how = (self.config.clone(), rng);
        let disk = SimDisk::new(
            path.to_owned(),
            number,
            (size, image),
            how,
            self.executor.clone(),
            self.power.clone(),
        );
        state.disks.insert(path.to_owned(), disk.clone());
        Ok(disk)
    }

    fn open(self: &Arc<Self>, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn Device>> {
        let mut state = self.state.lock();
        let disk = state.disks.get(path).cloned().ok_or_else(|| missing(path))?;
        if mode.exclusive && !state.owned.insert(path.to_owned()) {
            let what = format!("{} is in use by this world", path.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        let owner = mode.exclusive.then(|| Arc::downgrade(self));
        Ok(Arc::new(OpenDisk { disk, write: mode.write, owner }))
    }

    /// A change of a small file is one write to the world's storage, atomic and stable at once.
    fn change<T>(&self, change: impl FnOnce(&mut PathState) -> io::Result<T>) -> io::Result<T> {
        if self.power.is_off() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        let result = change(&mut self.state.lock());
        if let Some(executor) = self.executor.upgrade() {
            self.power.count(false, &executor);
        }
        result
    }
}

fn missing(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

/// A disk as one opener holds it.
struct OpenDisk {
    disk: Arc<SimDisk>,
    write: bool,
    /// Where to give the ownership back.
    owner: Option<Weak<Paths>>,
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        if let Some(paths) = self.owner.as_ref().and_then(Weak::upgrade) {
            paths.state.lock().owned.remove(self.disk.path());
        }
    }
}

impl Device for OpenDisk {
    fn submit(&self, batch: Vec<Io>) {
        let (allowed, refused) = batch.into_iter().partition(|io: &Io| self.write || !io.op.modifies());
        self.disk.submit(allowed);
        for io in refused {
            io.done.complete(Err(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
    }

    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { writable: self.write, ..self.disk.info() }
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.disk.refresh_size()
    }
}

fn ready<T: Send + 'static>(value: io::Result<T>) -> BoxFuture<'static, io::Result<T>> {
    Box::pin(std::future::ready(value))
}

impl Opener for SimOpener {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>> {
        ready(self.0.open(path, mode))
    }

    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>> {
        let state = self.0.state.lock();
        let mut entries: BTreeMap<PathBuf, EntryKind> = BTreeMap::new();
        for path in state.disks.keys().chain(state.files.keys()) {
            let Ok(below) = path.strip_prefix(dir) else { continue };
            let mut parts = below.components();
            if let Some(first) = parts.next() {
                let kind = if parts.next().is_some() { EntryKind::Directory } else { EntryKind::File };
                entries.insert(dir.join(first), kind);
            }
        }
        if entries.is_empty() {
            return ready(Err(missing(dir)));
        }
        ready(Ok(entries.into_iter().map(|(path, kind)| DirEntry { path, kind }).collect()))
    }

    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        ready(self.0.state.lock().files.get(path).cloned().ok_or_else(|| missing(path)))
    }

    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>> {
        ready(self.0.change(|state| {
            state.files.insert(path.to_owned(), data);
            Ok(())
        }))
    }

    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>> {
        ready(self.0.change(|state| {
            let file = state.files.remove(path).map(drop);
            file.or_else(|| state.disks.remove(path).map(drop)).ok_or_else(|| missing(path))
        }))
    }

    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>> {
        ready(self.0.add_disk(path, size, SparseImage::new()).map(drop))
    }

    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>> {
        let state = self.0.state.lock();
        let exists = state.disks.contains_key(path) || state.files.contains_key(path);
        ready(if exists { Ok(path.to_owned()) } else { Err(missing(path)) })
    }
}
