//! Pools for programs that embed zilla: made, found, imported, scrubbed, exported.
//!
//! What it keeps true: a pool is exported only when nobody has a file system or volume of it open
//! (`in_use.rs`). What needs that nothing is opened meanwhile (a rollback, an export) goes to its
//! end once begun, also where the future that waits for it is dropped.
//!
//! A crash, or a program that ends without [`Pool::export`], leaves the pool as it was at the last
//! txg, and what was synced since in the intent logs; the next import goes on from there.
//!
//! **Deliberately absent**, because they need more than a pool: mounts, shares, the list of pools
//! that come back by themselves.

use crate::datasets::{Dataset, change};
use crate::host::this_host;
use crate::in_use::{InUse, LINGERING, LOOK};
use crate::make::{Maker, VolumeShape};
use crate::new_pool::{ARC, NewPool};
use crate::props::{parsed, refused};
use event_listener::Event;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla_control::props::{FS, VOL, naming};
use zilla_core::dsl::{DslDir, DslPool, NewCrypt};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::spa::{CreateOpts, FoundPool, OpenOpts, Spa, discover};
use zilla_core::txg::Tx;
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;

const DBUF_CACHE: usize = 16 << 20;
/// So often a dir is looked for anew whose children change while they are listed.
const LISTINGS: usize = 20;

/// How a pool is to be imported.
#[derive(Debug, Clone, Default)]
pub struct Import {
    /// Nothing is written, whatever happens.
    pub readonly: bool,
    /// Also if another host had it last and did not export it. That host must not have it any more.
    pub force: bool,
    /// Bytes of blocks that it may keep in memory; 0: 64 MiB.
    pub memory: u64,
}

/// How a scrub ended, or how far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubResult {
    /// Bytes that were read and compared with their checksums.
    pub examined: u64,
    /// Bytes that were mended.
    pub repaired: u64,
    /// Blocks that could not be.
    pub errors: u64,
}

pub(crate) struct Inner {
    pub(crate) env: Env,
    spa: Arc<Spa>,
    owner: (u32, u32),
    pub(crate) in_use: Mutex<InUse>,
    pub(crate) changed: Event,
}

/// An imported pool. Clones of it are the same pool, and each [`Dataset`] and
/// [`Snapshot`](crate::Snapshot) keeps it.
///
/// When the last of them is dropped without [`Pool::export`], the pool is closed in the background
/// as soon as nothing of it is open: who still has [`Files`](crate::Files), a
/// [`File`](crate::File), a [`Filesystem`](crate::Filesystem) or a [`Volume`](crate::Volume) works
/// on. What was opened with [`DatasetRef`](crate::tree::DatasetRef) does not count.
///
/// ```
/// use zilla::{Import, NewPool, NewVdev, Pool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let folder = tempfile::tempdir()?;
/// let disks = [folder.path().join("a.img"), folder.path().join("b.img")];
/// for disk in &disks {
///     std::fs::File::create(disk)?.set_len(128 << 20)?;
/// }
/// let env = zilla_env::real_env(2);
/// let run = env.clone();
/// env.block_on(async move {
///     let pool = Pool::create(&run, NewPool::new("tank").vdev(NewVdev::mirror(&disks))).await?;
///     let photos = pool.create_filesystem("tank/photos", &[("compression", "zstd")]).await?;
///     let files = photos.files().await?;
///     files.write("/first", "hello").await?;
///     drop(files);
///     assert_eq!(pool.scrub().await?.errors, 0);
///     pool.export().await?;
///
///     let pool = Pool::import(&run, &[folder.path()], "tank", Import::default()).await?;
///     assert_eq!(pool.dataset("tank/photos").await?.files().await?.read("/first").await?, b"hello");
///     pool.export().await?;
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<Inner>);

impl Pool {
    /// Makes a pool, and imports it. Devices on which something lies are refused (EEXIST) unless
    /// that is to go.
    pub async fn create(env: &Env, new: NewPool) -> Result<Pool> {
        let spec = new.spec(env).await?;
        let opts = CreateOpts {
            name: new.name,
            host: this_host(env).await.host,
            comment: None,
            owner: new.owner,
            features: None,
            dbuf_cache: DBUF_CACHE,
            arc_max: new.memory,
        };
        Ok(Pool::of(env, Spa::create(env, &spec, opts).await?, new.owner))
    }

    /// The pools on the devices in some places: a directory's files are looked at, not its
    /// directories; anything else is a device itself.
    pub async fn find<P: AsRef<Path>>(env: &Env, places: &[P]) -> Result<Vec<FoundPool>> {
        let places: Vec<PathBuf> = places.iter().map(|p| p.as_ref().to_owned()).collect();
        discover(env, &places).await
    }

    /// Imports the pool of a name, or of a guid in digits, whose devices are in these places.
    /// ENOENT: there is none; EEXIST: there are several of the name.
    pub async fn import<P: AsRef<Path>>(env: &Env, places: &[P], which: &str, how: Import) -> Result<Pool> {
        let guid = which.parse::<u64>().ok();
        let mut found = Pool::find(env, places).await?;
        found.retain(|p| p.state != PoolState::Destroyed && (p.name == which || Some(p.guid) == guid));
        let one = match &found[..] {
            [] => return Err(Error::no_ent(format!("there is no pool '{which}' there"))),
            [one] => one,
            several => {
                let guids: Vec<String> = several.iter().map(|p| p.guid.to_string()).collect();
                let what = format!("there are several pools '{which}': {}", guids.join(", "));
                return Err(Error::os(Errno::Exist, what));
            }
        };
        naming::check_pool_name(&one.name, true).map_err(refused)?;
        let here = this_host(env).await;
        let opts = OpenOpts {
            readonly: how.readonly,
            force: how.force,
            host: here.host,
            unset_hostid: !here.is_set,
            dbuf_cache: DBUF_CACHE,
            arc_max: if how.memory == 0 { ARC } else { how.memory },
            ..OpenOpts::default()
        };
        let spa = Spa::open(env, one, opts).await?;
        let dsl = spa.dsl.clone();
        let settled = async move {
            dsl.destroy_inconsistent().await?;
            dsl.release_temporary_holds().await
        };
        if !how.readonly
            && let Err(e) = settled.await
        {
            // Else the engine would go on, and keep the devices, without anybody to ask it.
            if let Err(e) = spa.close(None).await {
                tracing::warn!("a pool that could not be imported was closed: {e}");
            }
            return Err(e);
        }
        Ok(Pool::of(env, spa, (0, 0)))
    }

    pub(crate) fn of(env: &Env, spa: Arc<Spa>, owner: (u32, u32)) -> Pool {
        let (in_use, changed) = Default::default();
        Pool(Arc::new(Inner { env: env.clone(), spa, owner, in_use, changed }))
    }

    /// The pool's name.
    pub fn name(&self) -> String {
        self.0.spa.name()
    }

    /// The pool's number, which it keeps whatever it is called.
    pub fn guid(&self) -> u64 {
        self.0.spa.guid()
    }

    pub(crate) fn spa(&self) -> &Arc<Spa> {
        &self.0.spa
    }

    /// Whom datasets belong to that are made without saying so.
    pub(crate) fn owner(&self) -> Maker {
        Maker::owner(self.0.owner.0, self.0.owner.1)
    }

    /// The world that it was opened in.
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    pub(crate) fn dsl(&self) -> &Arc<DslPool> {
        &self.0.spa.dsl
    }

    /// Runs a change in the syncing context: it is stable when this returns.
    pub(crate) async fn task<T, F>(&self, change: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<T>> + Send + 'static,
    {
        let dsl = self.dsl().clone();
        self.0.spa.ctx.sync_task(move |tx| change(dsl, tx)).await
    }

    /// A file system or volume by its whole name.
    pub async fn dataset(&self, name: &str) -> Result<Dataset> {
        Dataset::open(self, name).await
    }

    /// All file systems and volumes, those above before those below. One that is destroyed
    /// meanwhile may be among them or not.
    pub async fn datasets(&self) -> Result<Vec<Dataset>> {
        let mut out = Vec::new();
        let mut todo = vec![self.dsl().root_dir()];
        while let Some(dir) = todo.pop() {
            let mut below = self.below(&dir).await?;
            below.reverse();
            todo.extend(below);
            if dir.phys().head_dataset_obj != 0 {
                match Dataset::open(self, &dir.name()).await {
                    Ok(dataset) => out.push(dataset),
                    Err(e) if e.is(Errno::NoEnt) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(out)
    }

    /// The dirs right below one; none if it has gone meanwhile.
    async fn below(&self, dir: &Arc<DslDir>) -> Result<Vec<Arc<DslDir>>> {
        let mut tries = LISTINGS;
        loop {
            match self.dsl().child_dirs(dir).await {
                // The dir itself has gone, or only one of those below: then the others are listed.
                Err(e) if e.is(Errno::NoEnt) => match self.dsl().dir_by_name(&dir.name()).await {
                    Err(gone) if gone.is(Errno::NoEnt) => return Ok(Vec::new()),
                    _ if tries == 0 => return Err(e),
                    _ => tries -= 1,
                },
                listed => return listed,
            }
            self.0.env.sleep(LOOK).await;
        }
    }

    /// Makes a file system with some properties. The one above it must be there.
    pub async fn create_filesystem(&self, name: &str, properties: &[(&str, &str)]) -> Result<Dataset> {
        naming::check_dataset_name(name, FS, true).map_err(refused)?;
        let settings = parsed(properties, FS, true)?;
        let maker = self.owner();
        self.make_filesystem(name, &maker, settings, NewCrypt::default()).await?;
        self.dataset(name).await
    }

    /// Makes a volume of so many bytes with some properties. All that it can take is reserved for
    /// it; `refreservation=none` makes it sparse.
    pub async fn create_volume(&self, name: &str, size: u64, properties: &[(&str, &str)]) -> Result<Dataset> {
        naming::check_dataset_name(name, VOL, true).map_err(refused)?;
        let settings = parsed(properties, VOL, true)?;
        let maker = self.owner();
        let shape = VolumeShape { size, block_size: None, sparse: false };
        self.make_volume(name, &maker, shape, settings, NewCrypt::default()).await?;
        self.dataset(name).await
    }

    /// Takes snapshots of several datasets at the same moment: `tank@now`, `tank/photos@now`.
    pub async fn snapshot(&self, names: &[&str]) -> Result<()> {
        for name in names {
            naming::check_dataset_name(name, zilla_control::props::SNAP, true).map_err(refused)?;
        }
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        // EAGAIN: there is one of this very txg, and the next has not begun.
        change(self, &[Errno::Again], move |dsl, tx| {
            let names = names.clone();
            Box::pin(async move { dsl.snapshot(&tx, &names).await.map(drop) })
        })
        .await
    }

    /// Waits until all that was changed so far is on disk.
    pub async fn sync(&self) -> Result<()> {
        self.0.spa.sync().await
    }

    /// The same also where nothing was changed: there is a newer uberblock then.
    pub async fn sync_anyway(&self) -> Result<()> {
        self.0.spa.sync_anyway().await
    }

    /// Reads all that is in use and mends what can be mended; returns when it is done. One that is
    /// under way is waited for.
    pub async fn scrub(&self) -> Result<ScrubResult> {
        let scan = self.0.spa.scan()?;
        match scan.start().await {
            Err(e) if !(e.is(Errno::Busy) && scan.is_scanning()) => return Err(e),
            _ => scan.wait().await,
        }
        let status = scan.status();
        Ok(ScrubResult { examined: status.examined, repaired: status.processed, errors: status.errors })
    }

    /// Closes the pool and says so on its devices. EBUSY: a file system or volume is still open,
    /// and the pool goes on as before. After any other error nothing can be opened any more, but
    /// the export can be tried again.
    pub async fn export(&self) -> Result<()> {
        let turn = self.turn_to(true).await?;
        turn.run(|pool| async move { pool.close_unused().await }).await
    }

    /// To be called in one's turn.
    async fn close_unused(&self) -> Result<()> {
        self.unused(None).await?;
        self.0.in_use.lock().exported = true;
        self.0.spa.close(Some(PoolState::Exported)).await?;
        self.0.in_use.lock().closed = true;
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let in_use = std::mem::take(self.in_use.get_mut());
        if in_use.closed {
            return;
        }
        // The engine would go on without anybody to ask it, but for those who have something open.
        let (env, spa) = (self.env.clone(), self.spa.clone());
        self.env.spawn(async move {
            let mut tries = LINGERING.as_millis() / LOOK.as_millis();
            loop {
                match in_use.of(None) {
                    (true, _) => {}
                    // A pool that is suspended never frees what it has to.
                    (false, true) if tries > 0 => tries -= 1,
                    _ => break,
                }
                env.sleep(LOOK).await;
            }
            if let Err(e) = spa.close(None).await {
                tracing::warn!("a pool that was not exported was closed: {e}");
            }
        });
    }
}
