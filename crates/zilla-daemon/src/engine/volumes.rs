//! Volumes in use, and how they are offered over NBD.
//!
//! A volume is open as long as anybody uses it: a client of NBD, a command. All share one
//! [`Volume`], because the changes of one dataset are ordered by it. It is known by its dataset's
//! number, so that a new name changes nothing for who uses it.
//!
//! What it keeps true: a volume that is in use is not destroyed, and its pool not exported, unless
//! that is forced; then its users are told that it is closed, and what they have under way ends
//! first. Each volume and, with `snapdev=visible`, each of its snapshots is offered, unless
//! `volmode=none`; others are not opened by name either.

use super::Engine;
use super::errors::{Answer, of, of_dataset};
use super::pool::Pool;
use super::values::Settings;
use crate::Handle;
use crate::nbd::Tcp;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedMutexGuard, watch};
use zilla::error::{Errno, Result};
use zilla::stored::Setting;
use zilla::tree::{DatasetDir, DatasetRef};
use zilla::tunables::ALLOW_REDACTED_DATASET_MOUNT;
use zilla::{Suspended, Volume};
use zilla_control::paths::NBD_SOCKET;
use zilla_control::{ApiError, ErrorCode};
use zilla_nbd::{Door, Exports, Refused, VolumeExport};

/// OpenZFS's number of `volmode=none`.
const ZFS_VOLMODE_NONE: u64 = 3;
/// And of `snapdev=visible`.
const ZFS_SNAPDEV_VISIBLE: u64 = 1;

/// A volume that is open, and who has it open.
struct Open {
    volume: Arc<Volume>,
    closed: watch::Sender<bool>,
    users: usize,
}

/// A pool's volumes in use, by their datasets' numbers.
#[derive(Default)]
pub struct Volumes {
    open: Mutex<BTreeMap<u64, Open>>,
    /// Held while one is opened or closed, or gets other contents.
    changing: Arc<tokio::sync::Mutex<()>>,
}

/// A volume that nobody uses or begins to use: its users wait.
pub struct Paused {
    suspended: Option<Suspended>,
    id: u64,
    _one: OwnedMutexGuard<()>,
}

/// A use of a volume, which is closed after its last.
pub struct InUse {
    pool: Arc<Pool>,
    id: u64,
    pub volume: Arc<Volume>,
    closed: watch::Receiver<bool>,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut open = self.pool.volumes.open.lock();
        // One that was closed by force may be there again, opened by another.
        let Some(entry) = open.get_mut(&self.id).filter(|e| Arc::ptr_eq(&e.volume, &self.volume)) else {
            return;
        };
        entry.users -= 1;
        if entry.users == 0 {
            open.remove(&self.id);
        }
    }
}

fn busy(name: &str) -> ApiError {
    ApiError::with(ErrorCode::Busy, "dataset is busy").subject(name)
}

impl Pool {
    /// Begins to use a volume or a snapshot of one.
    pub async fn use_volume(self: &Arc<Self>, ds: &DatasetRef) -> Result<InUse> {
        let _one = self.volumes.changing.lock().await;
        let id = ds.id();
        let known = {
            let mut open = self.volumes.open.lock();
            open.get_mut(&id).map(|entry| {
                entry.users += 1;
                (entry.volume.clone(), entry.closed.subscribe())
            })
        };
        let (volume, closed) = match known {
            Some(known) => known,
            None => {
                let volume = ds.open_volume(self.readonly()).await?;
                let (closed, told) = watch::channel(false);
                self.volumes.open.lock().insert(id, Open { volume: volume.clone(), closed, users: 1 });
                let used = InUse { pool: self.clone(), id, volume, closed: told };
                // Replay takes time: properties that were set meanwhile were told to those that
                // were known then.
                used.volume.refresh().await?;
                return Ok(used);
            }
        };
        Ok(InUse { pool: self.clone(), id, volume, closed })
    }

    fn open_volume_of(&self, ds: &DatasetRef) -> Option<Arc<Volume>> {
        self.volumes.open.lock().get(&ds.id()).map(|o| o.volume.clone())
    }

    /// Before a dataset goes: nobody uses it as a volume any more. With `force` who does is told
    /// that it is closed.
    pub async fn release_volume(&self, ds: &DatasetRef, force: bool) -> Answer<()> {
        let _one = self.volumes.changing.lock().await;
        let Some(volume) = self.open_volume_of(ds) else { return Ok(()) };
        if !force {
            return Err(busy(&ds.name()));
        }
        if let Some(open) = self.volumes.open.lock().remove(&ds.id()) {
            open.closed.send_replace(true);
        }
        volume.close().await;
        Ok(())
    }

    /// The same for all, before the pool goes.
    pub async fn release_volumes(&self, force: bool) -> Answer<()> {
        let _one = self.volumes.changing.lock().await;
        let all: Vec<Arc<Volume>> = self.volumes.open.lock().values().map(|o| o.volume.clone()).collect();
        if let Some(volume) = all.first().filter(|_| !force) {
            return Err(busy(&volume.name()));
        }
        for (_, open) in std::mem::take(&mut *self.volumes.open.lock()) {
            open.closed.send_replace(true);
        }
        for volume in all {
            volume.close().await;
        }
        Ok(())
    }

    /// Before a dataset gets other contents: requests to the volume wait, and so does whoever would
    /// open it. He would have what is discarded, and what he writes to it would reach no disk.
    pub async fn pause_volume(&self, ds: &DatasetRef) -> Answer<Paused> {
        let one = self.volumes.changing.clone().lock_owned().await;
        let suspended = match self.open_volume_of(ds) {
            Some(volume) => Some(volume.suspend().await.map_err(of(&ds.name()))?),
            None => None,
        };
        Ok(Paused { suspended, id: ds.id(), _one: one })
    }

    /// After that its users go on with what is there now, or are told that it is closed.
    pub async fn resume_volume(&self, paused: Paused) {
        let Paused { suspended, id, _one } = paused;
        if let Some(suspended) = suspended
            && let Err(e) = suspended.resume().await
            && let Some(open) = self.volumes.open.lock().remove(&id)
        {
            tracing::error!("'{}': its users cannot go on: {e}", open.volume.name());
            open.closed.send_replace(true);
        }
    }

    /// After properties changed: volumes in use heed them. Gives the first error, after all were
    /// told.
    pub async fn refresh_volumes(&self) -> Result<()> {
        let all: Vec<Arc<Volume>> = self.volumes.open.lock().values().map(|o| o.volume.clone()).collect();
        let mut done = Ok(());
        for volume in all {
            match volume.refresh().await {
                // It was closed meanwhile.
                Err(e) if e.is(Errno::NxIo) => {}
                told => done = done.and(told),
            }
        }
        done
    }

    /// The same after what is done and is no failure of theirs.
    pub async fn refresh_volumes_of_others(&self) {
        if let Err(e) = self.refresh_volumes().await {
            tracing::warn!(pool = %self.name(), "a volume in use does not heed its properties: {e}");
        }
    }

    /// Waits until nobody uses a dataset as a volume any more, or until it has taken long.
    pub async fn wait_until_closed(&self, id: u64, longest: Duration, poll: Duration) {
        let until = Instant::now() + longest;
        while self.volumes.open.lock().contains_key(&id) && Instant::now() < until {
            tokio::time::sleep(poll).await;
        }
    }

    /// Whether a dataset is offered to clients, who ask by its name.
    pub async fn is_offered(&self, ds: &DatasetRef) -> Result<bool> {
        // (One that is still being received is nobody's yet.)
        let lacks = ds.redact_snaps().is_some() && ALLOW_REDACTED_DATASET_MOUNT.get() == 0;
        if ds.is_inconsistent() || lacks || !ds.is_volume().await? {
            return Ok(false);
        }
        let settings = Settings::of(ds).await?;
        let hidden = ds.is_snapshot() && settings.num("snapdev") != ZFS_SNAPDEV_VISIBLE;
        Ok(!hidden && settings.num("volmode") != ZFS_VOLMODE_NONE)
    }

    /// The names of all that are offered. One that is damaged, or goes meanwhile, hides no other.
    pub async fn offered_volumes(&self) -> Result<Vec<String>> {
        let mut out = Vec::new();
        let mut dirs = vec![self.zilla.dir_by_name(&self.name()).await?];
        while let Some(dir) = dirs.pop() {
            match self.offered_of(&dir, &mut out).await {
                Ok(below) => dirs.extend(below),
                Err(e) if e.is(Errno::NoEnt) => {}
                Err(e) => tracing::warn!("volumes of '{}' are not offered: {e}", dir.name()),
            }
        }
        out.sort();
        Ok(out)
    }

    /// Those of one place in the tree, and the places below it.
    async fn offered_of(&self, dir: &DatasetDir, out: &mut Vec<String>) -> Result<Vec<DatasetDir>> {
        let below = dir.children().await?;
        if dir.has_head()
            && let Err(e) = self.offered_at(dir, out).await
            && !e.is(Errno::NoEnt)
        {
            tracing::warn!("'{}' is not offered: {e}", dir.name());
        }
        Ok(below)
    }

    async fn offered_at(&self, dir: &DatasetDir, out: &mut Vec<String>) -> Result<()> {
        let head = dir.head().await?;
        if !self.is_offered(&head).await? {
            return Ok(());
        }
        out.push(head.name());
        for snap in head.snapshots().await? {
            if self.is_offered(&snap).await? {
                out.push(snap.name());
            }
        }
        Ok(())
    }

    /// Does what the intent logs of volumes say that a crash left, as mounting does for file
    /// systems.
    pub async fn replay_volumes(self: &Arc<Self>) -> Result<()> {
        if self.readonly() {
            return Ok(());
        }
        let mut dirs = vec![self.zilla.dir_by_name(&self.name()).await?];
        while let Some(dir) = dirs.pop() {
            dirs.extend(dir.children().await?);
            if dir.has_head()
                && let Err(e) = self.replay_volume(&dir).await
            {
                tracing::error!("'{}': its intent log cannot be replayed: {e}", dir.name());
            }
        }
        Ok(())
    }

    async fn replay_volume(self: &Arc<Self>, dir: &DatasetDir) -> Result<()> {
        let ds = dir.head().await?;
        if ds.is_volume().await? && ds.needs_replay().await? && !ds.is_locked().await? {
            self.use_volume(&ds).await?;
        }
        Ok(())
    }
}

/// The pools' volumes as clients see them.
pub struct Offered {
    pub pools: Arc<RwLock<BTreeMap<String, Arc<Pool>>>>,
}

impl Offered {
    /// Begins to use one, if there is such a one; and whether its requests may be done one beside
    /// the other.
    pub async fn open_volume(&self, name: &str) -> Result<Option<(InUse, bool)>> {
        let pool = self.pools.read().get(zilla_control::props::naming::pool_of(name)).cloned();
        let Some(pool) = pool else { return Ok(None) };
        let ds = pool.zilla.by_name(name).await?;
        if !pool.is_offered(&ds).await? {
            return Ok(None);
        }
        let concurrent = Settings::of(&ds).await?.num("volthreading") != 0;
        Ok(Some((pool.use_volume(&ds).await?, concurrent)))
    }
}

impl Exports for Offered {
    type Export = VolumeExport;

    async fn list(&self) -> Vec<String> {
        let pools: Vec<Arc<Pool>> = self.pools.read().values().cloned().collect();
        let mut out = Vec::new();
        for pool in pools {
            match pool.offered_volumes().await {
                Ok(names) => out.extend(names),
                Err(e) => tracing::warn!("nbd: pool '{}': {e}", pool.name()),
            }
        }
        out
    }

    async fn open(&self, name: &str) -> std::result::Result<VolumeExport, Refused> {
        match self.open_volume(name).await {
            Ok(Some((used, concurrent))) => Ok(VolumeExport {
                volume: used.volume.clone(),
                closed: used.closed.clone(),
                concurrent,
                hold: Box::new(used),
            }),
            Ok(None) => Err(Refused),
            Err(e) => {
                tracing::info!("nbd: '{name}': {e}");
                Err(Refused)
            }
        }
    }
}

/// The server for NBD's clients, on threads of its own: a request is done on the thread that read
/// it.
pub struct Nbd {
    runtime: Option<tokio::runtime::Runtime>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl Nbd {
    /// Listens on `nbd.sock`, and on TCP where that was asked for.
    pub fn start(handle: &Handle, pools: &Arc<RwLock<BTreeMap<String, Arc<Pool>>>>) -> std::io::Result<Nbd> {
        let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("nbd").enable_all().build()?;
        let doors = {
            let _in_it = runtime.enter();
            // In the folder that was looked at; its path is only for people.
            let folder = handle.state_dir().open().map_err(std::io::Error::other)?;
            let socket = zilla_control::server::listen(&folder.by_descriptor(NBD_SOCKET))?;
            let tcp = handle.nbd().map(Tcp::door).transpose()?;
            [Some(Door::Unix(socket)), tcp]
        };
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let offered = Arc::new(Offered { pools: pools.clone() });
        let memory = zilla_nbd::Memory::of_machine();
        let served = doors.into_iter().flatten().map(|door| {
            let mut stopped = stopped.clone();
            let shutdown = async move {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            zilla_nbd::serve(door, offered.clone(), memory.clone(), shutdown)
        });
        let served = futures_util::future::join_all(served.collect::<Vec<_>>());
        runtime.spawn(async move {
            served.await;
            end.send_replace(true);
        });
        Ok(Nbd { runtime: Some(runtime), stop, ended })
    }

    /// Takes no more clients.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for those there are, whose volumes were closed.
    pub async fn ended(&self) {
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Engine {
    /// `zfs set volsize=...`. Where the reservation is the volume's own, it follows; what is to be
    /// reserved is so before the volume grows.
    pub(super) async fn resize_volume(&self, pool: &Arc<Pool>, ds: &DatasetRef, size: u64) -> Answer<()> {
        let name = ds.name();
        let used = pool.use_volume(ds).await.map_err(of(&name))?;
        let (old, block_size) = {
            let v = &used.volume;
            (v.size().map_err(of(&name))?, v.block_size().map_err(of(&name))?)
        };
        let resv = |size| pool.zilla.volume_reservation(size, block_size, 1);
        let follows = ds.info().await.map_err(of(&name))?.refreservation == resv(old);
        let reserve = async |bytes: u64| {
            let value = Setting::Local(zilla::Value::u64(bytes));
            pool.change_props(&name, vec![("refreservation".to_owned(), value)]).await
        };
        if follows && size > old {
            reserve(resv(size)).await?;
        }
        used.volume.set_size(size).await.map_err(of_dataset)?;
        if follows && size < old {
            reserve(resv(size)).await?;
        }
        Ok(())
    }
}
