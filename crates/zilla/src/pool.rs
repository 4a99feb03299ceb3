//! Pools for programs that embed zilla: made, found, imported, scrubbed, exported.
//!
//! What it keeps true: a device is looked at before it is written over, and refused where anything
//! of somebody's lies on it, unless that is said to be wanted. A file system or volume is open once,
//! however many have asked for it, and a pool is exported only when nobody has one. What needs that
//! nothing is opened meanwhile (a rollback, an export) goes to its end once begun, also where the
//! future that waits for it is dropped.
//!
//! A crash, or a program that ends without [`Pool::export`], leaves the pool as it was at the last
//! txg, and what was synced since in the intent logs; the next import goes on from there.
//!
//! **Deliberately absent**, because they need more than a pool: mounts, shares, the list of pools
//! that come back by themselves. Encryption and streams are still to come here; the daemon has them.

use crate::ctldir::Snapdir;
use crate::dataset::{filesystem_on, fs_props, open_zfs};
use crate::datasets::{Dataset, change};
use crate::filesystem::Filesystem;
use crate::foreign;
use crate::make::{Maker, VolumeShape, make_filesystem, make_volume};
use crate::props::{parsed, refused};
use crate::volume::{Volume, open_volume};
use event_listener::Event;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zilla_control::props::{FS, VOL, naming};
use zilla_core::dsl::{DslDir, DslPool, NewCrypt};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::spa::{CreateOpts, FoundPool, Host, OpenOpts, Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::vdev::{self, LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::Zfs;
use zilla_env::{Env, OpenMode};
use zilla_ondisk::enums::PoolState;

/// What a program's pool keeps in memory unless it says otherwise, bytes: it is a guest there.
const ARC: u64 = 64 << 20;
const DBUF_CACHE: usize = 16 << 20;
/// So long is waited for a file system to end what it does by itself, and so often it is looked.
const LINGERING: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// So often a dir is looked for anew whose children change while they are listed.
const LISTINGS: usize = 20;

/// A top-level vdev of a new pool.
#[derive(Debug, Clone)]
pub struct NewVdev {
    kind: Kind,
    devices: Vec<PathBuf>,
    is_log: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Mirror,
    Raidz(u8),
}

impl NewVdev {
    /// One device, without redundancy.
    pub fn single(device: impl Into<PathBuf>) -> NewVdev {
        NewVdev { kind: Kind::Single, devices: vec![device.into()], is_log: false }
    }

    /// Devices that all hold the same.
    pub fn mirror<P: Into<PathBuf>>(devices: impl IntoIterator<Item = P>) -> NewVdev {
        let devices = devices.into_iter().map(Into::into).collect();
        NewVdev { kind: Kind::Mirror, devices, is_log: false }
    }

    /// Devices of which so many (1 to 3) may be lost.
    pub fn raidz<P: Into<PathBuf>>(parity: u8, devices: impl IntoIterator<Item = P>) -> NewVdev {
        let devices = devices.into_iter().map(Into::into).collect();
        NewVdev { kind: Kind::Raidz(parity), devices, is_log: false }
    }

    /// It holds the intent log, and nothing else.
    pub fn for_log(self) -> NewVdev {
        NewVdev { is_log: true, ..self }
    }
}

/// How a pool is to be made.
#[derive(Debug, Clone)]
pub struct NewPool {
    name: String,
    vdevs: Vec<NewVdev>,
    cache: Vec<PathBuf>,
    owner: (u32, u32),
    overwrite: bool,
    memory: u64,
}

impl NewPool {
    /// A pool of this name, of nothing yet.
    pub fn new(name: impl Into<String>) -> NewPool {
        NewPool {
            name: name.into(),
            vdevs: Vec::new(),
            cache: Vec::new(),
            owner: (0, 0),
            overwrite: false,
            memory: ARC,
        }
    }

    /// One more top-level vdev.
    pub fn vdev(mut self, vdev: NewVdev) -> NewPool {
        self.vdevs.push(vdev);
        self
    }

    /// One more cache device.
    pub fn cache(mut self, device: impl Into<PathBuf>) -> NewPool {
        self.cache.push(device.into());
        self
    }

    /// Whose the root directory is; root's otherwise.
    pub fn owner(mut self, uid: u32, gid: u32) -> NewPool {
        self.owner = (uid, gid);
        self
    }

    /// Whatever lies on the devices is to go.
    pub fn overwrite(mut self) -> NewPool {
        self.overwrite = true;
        self
    }

    /// Bytes of blocks that it may keep in memory; 64 MiB otherwise.
    pub fn memory(mut self, bytes: u64) -> NewPool {
        self.memory = bytes;
        self
    }
}

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

/// What of a pool is in use.
#[derive(Default)]
struct InUse {
    /// By the dataset's number.
    files: BTreeMap<u64, (Weak<Filesystem>, Weak<Zfs>)>,
    volumes: BTreeMap<u64, Weak<Volume>>,
    /// Somebody opens something, or does what nothing may be open for.
    turn: bool,
    /// An export has begun to close the pool. It may have failed: then nothing is opened any more,
    /// and it can be tried again.
    exported: bool,
    /// The engine is closed.
    closed: bool,
}

struct Inner {
    env: Env,
    spa: Arc<Spa>,
    owner: (u32, u32),
    in_use: Mutex<InUse>,
    changed: Event,
}

/// An imported pool. Clones of it are the same pool, and each [`Dataset`] and
/// [`Snapshot`](crate::Snapshot) keeps it.
///
/// When the last of them is dropped without [`Pool::export`], the pool is closed in the background
/// as soon as nothing of it is open: who still has [`Files`](crate::Files), a
/// [`File`](crate::File), a [`Filesystem`] or a [`Volume`] works on. What was opened with
/// [`Pool::engine`] does not count.
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
pub struct Pool(Arc<Inner>);

impl Pool {
    /// Makes a pool, and imports it. Devices on which something lies are refused (EEXIST) unless
    /// that is to go.
    pub async fn create(env: &Env, new: NewPool) -> Result<Pool> {
        naming::check_pool_name(&new.name, false).map_err(refused)?;
        if new.vdevs.iter().all(|v| v.is_log) {
            return Err(Error::inval(format!("'{}' has no vdev for data", new.name)));
        }
        let mut spec = PoolSpec::default();
        let mut seen = BTreeSet::new();
        let mut look = async |path: &Path| {
            let leaf = look_at(env, path, new.overwrite).await?;
            match seen.insert(env.opener.canonical(path).await?) {
                true => Ok(leaf),
                false => Err(Error::inval(format!("{} is named twice", path.display()))),
            }
        };
        for path in &new.cache {
            spec.cache.push(look(path).await?);
        }
        for vdev in &new.vdevs {
            let mut leaves = Vec::new();
            for path in &vdev.devices {
                leaves.push(look(path).await?);
            }
            let kind = match vdev.kind {
                Kind::Single if leaves.iter().any(|l| l.disk) => VdevKind::Disk,
                Kind::Single => VdevKind::File,
                Kind::Mirror => VdevKind::Mirror,
                Kind::Raidz(parity @ 1..=3) => VdevKind::Raidz { nparity: parity },
                Kind::Raidz(parity) => return Err(Error::inval(format!("there is no raidz{parity}"))),
            };
            spec.tops.push(TopSpec { kind, leaves, is_log: vdev.is_log, bias: None, ashift: None });
        }
        let opts = CreateOpts {
            name: new.name,
            host: this_host(env).await,
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
        let opts = OpenOpts {
            readonly: how.readonly,
            force: how.force,
            host: this_host(env).await,
            dbuf_cache: DBUF_CACHE,
            arc_max: if how.memory == 0 { ARC } else { how.memory },
            ..OpenOpts::default()
        };
        let spa = Spa::open(env, one, opts).await?;
        if !how.readonly
            && let Err(e) = spa.dsl.destroy_inconsistent().await
        {
            // Else the engine would go on, and keep the devices, without anybody to ask it.
            if let Err(e) = spa.close(None).await {
                tracing::warn!("a pool that could not be imported was closed: {e}");
            }
            return Err(e);
        }
        Ok(Pool::of(env, spa, (0, 0)))
    }

    fn of(env: &Env, spa: Arc<Spa>, owner: (u32, u32)) -> Pool {
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

    /// The engine below, for what this crate does not have.
    pub fn engine(&self) -> &Arc<Spa> {
        &self.0.spa
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
        let maker = Maker::owner(self.0.owner.0, self.0.owner.1);
        make_filesystem(&self.0.spa, name, &maker, settings, NewCrypt::default()).await?;
        self.dataset(name).await
    }

    /// Makes a volume of so many bytes with some properties. All that it can take is reserved for
    /// it; `refreservation=none` makes it sparse.
    pub async fn create_volume(&self, name: &str, size: u64, properties: &[(&str, &str)]) -> Result<Dataset> {
        naming::check_dataset_name(name, VOL, true).map_err(refused)?;
        let settings = parsed(properties, VOL, true)?;
        let maker = Maker::owner(self.0.owner.0, self.0.owner.1);
        let shape = VolumeShape { size, block_size: None, sparse: false };
        make_volume(&self.0.spa, name, &maker, shape, settings, NewCrypt::default()).await?;
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

    /// Waits until nobody else opens anything.
    pub(crate) async fn turn(&self) -> Result<Turn> {
        self.turn_to(false).await
    }

    /// The same. `export`: to close the pool, which may have failed before.
    async fn turn_to(&self, export: bool) -> Result<Turn> {
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
        let id = self.dsl().by_name(name).await?.id();
        let known = self.0.in_use.lock().volumes.get(&id).and_then(Weak::upgrade);
        if let Some(volume) = known {
            return Ok(volume);
        }
        let volume = open_volume(&self.0.env, self.dsl(), name, false).await?;
        let mut in_use = self.0.in_use.lock();
        in_use.volumes.retain(|_, v| v.strong_count() > 0);
        in_use.volumes.insert(id, Arc::downgrade(&volume));
        Ok(volume)
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
    fn of(&self, id: Option<u64>) -> (bool, bool) {
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

/// A device that may become part of a new pool.
async fn look_at(env: &Env, path: &Path, overwrite: bool) -> Result<LeafSpec> {
    let device = env.open(path, OpenMode { write: true, exclusive: true }).await?;
    let taken = |what: String| Err(Error::os(Errno::Exist, format!("{} {what}", path.display())));
    if !overwrite {
        let label = vdev::probe(&vdev::pool_device(device.clone()).await).await;
        // One of txg 0 has left its pool, or never became part of one.
        if let Some(label) = label.filter(|l| l.pool_guid().is_none() || l.txg() != 0) {
            return taken(format!("is part of pool '{}'", label.pool_name().unwrap_or("unknown")));
        }
        if let Some(what) = foreign::look(&device).await? {
            return taken(what.to_string());
        }
    }
    Ok(LeafSpec { path: path.to_owned(), disk: device.info().is_block_dev })
}

/// Who this machine is to others, who may see its pools. Source: hostid(1), genhostid(1).
async fn this_host(env: &Env) -> Host {
    let read = async |path: &str| env.opener.read_file(Path::new(path)).await.unwrap_or_default();
    let id = read("/etc/hostid").await.first_chunk::<4>().map(|b| u64::from(u32::from_ne_bytes(*b)));
    let id = match id {
        Some(id) => id,
        None => {
            let machine = read("/etc/machine-id").await;
            let hex = machine.get(..8).and_then(|b| std::str::from_utf8(b).ok());
            hex.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
        }
    };
    let name = String::from_utf8_lossy(&read("/proc/sys/kernel/hostname").await).trim().to_owned();
    Host { id, name }
}
