//! What of a pool is open, and who may open or close it.
//!
//! A file system or volume is open once, however many have asked for it. Who opens one, and who
//! does what nothing may be open for (a rollback, an export), takes a [`Turn`]; there is one at a
//! time.

use crate::ctldir::Snapdir;
use crate::dataset::{filesystem_on, fs_props, open_zfs};
use crate::filesystem::Filesystem;
use crate::pool::Pool;
use crate::volume::{Volume, open_volume};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zpl::Zfs;

/// So long is waited for a file system to end what it does by itself, and so often it is looked.
pub(crate) const LINGERING: Duration = Duration::from_secs(60);
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// What of a pool is in use.
#[derive(Default)]
pub(crate) struct InUse {
    /// By the dataset's number.
    files: BTreeMap<u64, (Weak<Filesystem>, Weak<Zfs>)>,
    volumes: BTreeMap<u64, Weak<Volume>>,
    /// Somebody opens something, or does what nothing may be open for.
    turn: bool,
    /// An export has begun to close the pool. It may have failed: then nothing is opened any more,
    /// and it can be tried again.
    pub(crate) exported: bool,
    /// The engine is closed.
    pub(crate) closed: bool,
}

impl Pool {
    /// Waits until nobody else opens anything.
    pub(crate) async fn turn(&self) -> Result<Turn> {
        self.turn_to(false).await
    }

    /// The same. `export`: to close the pool, which may have failed before.
    pub(crate) async fn turn_to(&self, export: bool) -> Result<Turn> {
        loop {
            let listener = self.0.changed.listen();
            {
                let mut in_use = self.0.in_use.lock();
                if in_use.closed || (in_use.exported && !export) {
                    return Err(Error::os(Errno::NxIo, "the pool was exported"));
                }
                if !std::mem::replace(&mut in_use.turn, true) {
                    return Ok(Turn { pool: self.clone() });
                }
            }
            listener.await;
        }
    }

    /// The files of a file system or snapshot: the same for all who ask.
    pub(crate) async fn open_files(&self, name: &str) -> Result<Arc<Filesystem>> {
        let _turn = self.turn().await?;
        let ds = self.dsl().by_name(name).await?;
        let known = self.0.in_use.lock().files.get(&ds.id()).cloned();
        let (fs, zfs) = known.unwrap_or_default();
        if let Some(fs) = fs.upgrade() {
            return Ok(fs);
        }
        let zfs = match zfs.upgrade() {
            // It is still freeing what was unlinked.
            Some(zfs) => zfs,
            None => open_zfs(&self.0.env, self.dsl(), &ds, false).await?,
        };
        // Known before anything else is waited for: it begins to free files by itself, and goes on
        // with that if whoever waits here is gone.
        self.0.in_use.lock().files.insert(ds.id(), (Weak::new(), Arc::downgrade(&zfs)));
        let fs = filesystem_on(&self.0.env, self.dsl(), &ds, zfs).await?;
        let entry = (Arc::downgrade(&fs), Arc::downgrade(&fs.zfs()));
        let mut in_use = self.0.in_use.lock();
        in_use.files.retain(|_, (fs, zfs)| fs.strong_count() + zfs.strong_count() > 0);
        in_use.files.insert(ds.id(), entry);
        Ok(fs)
    }

    /// A volume's bytes: the same volume for all who ask.
    pub(crate) async fn open_volume(&self, name: &str) -> Result<Arc<Volume>> {
        let _turn = self.turn().await?;
        let ds = self.dsl().by_name(name).await?;
        let id = ds.id();
        let known = self.0.in_use.lock().volumes.get(&id).and_then(Weak::upgrade);
        if let Some(volume) = known {
            return Ok(volume);
        }
        let volume = open_volume(&self.0.env, self.dsl(), ds, false).await?;
        let mut in_use = self.0.in_use.lock();
        in_use.volumes.retain(|_, v| v.strong_count() > 0);
        in_use.volumes.insert(id, Arc::downgrade(&volume));
        Ok(volume)
    }

    /// The engine is closed: nothing is opened any more.
    pub(crate) fn note_closed(&self) {
        let mut in_use = self.0.in_use.lock();
        (in_use.exported, in_use.closed) = (true, true);
    }

    /// Makes what is open feel the properties that its dataset has now.
    pub(crate) async fn heed(&self) -> Result<()> {
        // What is being opened may have read the old ones already: hence the turn. Where none is to
        // be had the pool was exported, and nothing is open.
        let Ok(_turn) = self.turn().await else { return Ok(()) };
        let (files, volumes) = {
            let in_use = self.0.in_use.lock();
            let files: Vec<_> = in_use.files.iter().map(|(id, known)| (*id, known.clone())).collect();
            let volumes: Vec<_> = in_use.volumes.values().filter_map(Weak::upgrade).collect();
            (files, volumes)
        };
        for (id, (fs, zfs)) in files {
            let fs = fs.upgrade();
            // One that only frees files yet may be taken into use again as it is.
            let zfs = fs.as_ref().map(|fs| fs.zfs()).or_else(|| zfs.upgrade());
            let Some(zfs) = zfs else { continue };
            let ds = self.dsl().dataset(id).await?;
            zfs.set_props(fs_props(self.dsl(), &ds, ds.is_snapshot()).await?);
            if let Some(fs) = fs {
                fs.set_snapdir(Snapdir::of(self.dsl().prop_u64(&ds, "snapdir", 0).await?));
            }
        }
        for volume in volumes {
            match volume.refresh().await {
                // It was closed, but somebody still has it.
                Err(e) if !e.is(Errno::NxIo) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// EBUSY where somebody has a dataset open, or any of the pool's. What still frees files that
    /// were unlinked while they were open is waited for. To be called in one's turn.
    pub(crate) async fn unused(&self, id: Option<u64>) -> Result<()> {
        let mut tries = LINGERING.as_millis() / LOOK.as_millis();
        loop {
            let (open, freeing) = self.0.in_use.lock().of(id);
            if !open && !freeing {
                return Ok(());
            }
            if open || tries == 0 {
                let what = format!("'{}': a file system or volume is open", self.name());
                return Err(Error::os(Errno::Busy, what));
            }
            tries -= 1;
            self.0.env.sleep(LOOK).await;
        }
    }
}

impl InUse {
    /// Whether somebody has one open, and whether one is not closed yet although nobody has it.
    pub(crate) fn of(&self, id: Option<u64>) -> (bool, bool) {
        let asked = |of: &u64| id.is_none_or(|id| id == *of);
        let files = || self.files.iter().filter(|(of, _)| asked(of)).map(|(_, known)| known);
        let volumes = self.volumes.iter().filter(|(of, _)| asked(of));
        let open = files().any(|(fs, _)| fs.strong_count() > 0);
        let open = open || volumes.map(|(_, v)| v.strong_count()).any(|n| n > 0);
        (open, files().any(|(_, zfs)| zfs.strong_count() > 0))
    }
}

/// Nobody else opens anything as long as this is there.
pub(crate) struct Turn {
    pool: Pool,
}

impl Turn {
    /// Does something to its end, and only then lets others have their turn: also where whoever
    /// waits for it is gone, because a change that was handed to the engine is made all the same.
    pub(crate) async fn run<T, W, F>(self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(Pool) -> F,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (env, work) = (self.pool.env().clone(), work(self.pool.clone()));
        let done = env.spawn_with_result(async move {
            let _turn = self;
            work.await
        });
        done.await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pool.0.in_use.lock().turn = false;
        self.pool.0.changed.notify(usize::MAX);
    }
}
