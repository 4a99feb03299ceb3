//! A pool's dataset as a [`Filesystem`]: its properties, its space, its snapshots.

use crate::ctldir::{NoSnapshots, Snapdir, Snapshots};
use crate::filesystem::Filesystem;
use crate::in_use::LOOK;
use crate::snapshots::DatasetSnapshots;
use crate::tree::DatasetRef;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::dsl::{DslDataset, DslPool, LongHold, Writer};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::txg::Tx;
use zilla_core::types::{ObjectId, Txg};
use zilla_core::zio::Leave;
use zilla_core::zpl::{Atime, Direct, FsProps, Space, SyncMode, Zfs};
use zilla_env::Env;
use zilla_ondisk::enums::ObjsetType;

const ZFS_XATTR_OFF: u64 = 0;
const ZFS_XATTR_DIR: u64 = 1;
const ZFS_XATTR_SA: u64 = 2;
const ZFS_ACLTYPE_OFF: u64 = 0;
const ZFS_ACLTYPE_POSIX: u64 = 1;
const ZFS_DNSIZE_LEGACY: u64 = 0;
const ZFS_DNSIZE_AUTO: u64 = 1;

/// So long is waited for who has closed a file system and is still at it.
const CLOSING: Duration = Duration::from_secs(5);

/// The dataset's side of [`Space`]. Holds the dataset, so that it cannot be destroyed while it is
/// open.
pub(crate) struct DatasetSpace {
    dsl: Arc<DslPool>,
    ds: Arc<DslDataset>,
    /// Given up in this order.
    kept: Mutex<Option<(Option<Writer>, LongHold)>>,
}

impl DatasetSpace {
    pub(crate) fn new(dsl: &Arc<DslPool>, writer: Option<Writer>, hold: LongHold) -> DatasetSpace {
        DatasetSpace { dsl: dsl.clone(), ds: hold.dataset().clone(), kept: Mutex::new(Some((writer, hold))) }
    }
}

impl Space for DatasetSpace {
    fn usage(&self) -> (u64, u64) {
        let (referenced, available, _) = self.dsl.dataset_space(&self.ds);
        (referenced, available)
    }
    fn admit(&self, tx: &Tx, bytes: u64, frees: bool) -> Result<()> {
        self.dsl.reserve(&self.ds, tx, bytes, frees)
    }
    fn hold_room(&self, tx: &Tx, space: u64, leave: Leave) -> Result<()> {
        self.dsl.hold_room(tx, space, leave)
    }
    fn frees_at_once(&self, most: u64) -> u64 {
        self.dsl.frees_at_once(most)
    }
    fn has_feature(&self, name: &'static str) -> bool {
        self.dsl.feature_enabled(name)
    }

    fn need_feature(&self, name: &'static str) {
        self.ds.will_need_feature(name);
    }
    fn clones(&self) -> Option<Txg> {
        self.dsl.feature_enabled("block_cloning").then(|| self.dsl.ctx().last_on_disk())
    }
    fn let_go(&self) {
        let kept = self.kept.lock().take();
        drop(kept);
    }
}

/// OpenZFS's number of `logbias=throughput`.
const ZFS_LOGBIAS_THROUGHPUT: u64 = 1;
const ZFS_DIRECT_DISABLED: u64 = 0;
const ZFS_DIRECT_STANDARD: u64 = 1;
const ZFS_DIRECT_ALWAYS: u64 = 2;

/// Reads a dataset's properties as files feel them. `readonly` makes it so whatever the property
/// says.
pub(crate) async fn fs_props(dsl: &Arc<DslPool>, ds: &Arc<DslDataset>, readonly: bool) -> Result<FsProps> {
    let get = |name: &'static str, default| dsl.prop_u64(ds, name, default);
    let atime = match (get("atime", 1).await?, get("relatime", 1).await?) {
        (0, _) => Atime::Off,
        (_, 0) => Atime::On,
        _ => Atime::Relative,
    };
    let xattr = get("xattr", ZFS_XATTR_SA).await?;
    let dnodesize = match get("dnodesize", ZFS_DNSIZE_LEGACY).await? {
        _ if !dsl.feature_enabled("large_dnode") => 512,
        ZFS_DNSIZE_LEGACY => 512,
        ZFS_DNSIZE_AUTO => 1024,
        n => n.clamp(512, 16384).next_power_of_two() as usize,
    };
    let large = dsl.feature_enabled("large_blocks");
    let most = if large { dsl.largest_record(ds).await? } else { 128 << 10 };
    let recordsize = get("recordsize", 128 << 10).await?.clamp(512, most);
    let mut default_quotas = [0; 3];
    for (slot, name) in
        default_quotas.iter_mut().zip(["defaultuserquota", "defaultgroupquota", "defaultprojectquota"])
    {
        *slot = get(name, 0).await?;
    }
    let os = dsl.objset(ds).await?;
    let sync = match get("sync", 0).await? {
        1 => SyncMode::Always,
        2 => SyncMode::Disabled,
        _ => SyncMode::Standard,
    };
    Ok(FsProps {
        sync,
        throughput: get("logbias", 0).await? == ZFS_LOGBIAS_THROUGHPUT,
        direct: match get("direct", ZFS_DIRECT_STANDARD).await? {
            ZFS_DIRECT_DISABLED => Direct::Disabled,
            ZFS_DIRECT_ALWAYS => Direct::Always,
            _ => Direct::Standard,
        },
        recordsize: recordsize.next_power_of_two() as u32,
        readonly: readonly || get("readonly", 0).await? != 0,
        atime,
        dir_atime: true,
        xattr: xattr != ZFS_XATTR_OFF,
        xattr_sa: xattr != ZFS_XATTR_DIR,
        posix_acl: get("acltype", ZFS_ACLTYPE_OFF).await? == ZFS_ACLTYPE_POSIX,
        dnodesize,
        long_names: dsl.feature_enabled("longname") && get("longname", 0).await? != 0,
        project_quota: dsl.feature_enabled("project_quota") && os.special(ObjectId::PROJECTUSED).is_some(),
        default_quotas,
    })
}

/// Keeps a dataset from being destroyed, unless it is already: it may have been looked up long ago.
pub(crate) fn held(ds: &Arc<DslDataset>) -> Result<LongHold> {
    let hold = ds.hold();
    match ds.is_gone() {
        true => Err(Error::no_ent("dataset does not exist")),
        false => Ok(hold),
    }
}

/// The right to change a dataset's files, which one has at a time; None where nothing is changed.
/// Who has just closed them may be at it a moment longer.
async fn writer(dsl: &Arc<DslPool>, ds: &Arc<DslDataset>) -> Result<Option<Writer>> {
    let ctx = dsl.ctx();
    if ctx.readonly || ds.is_snapshot() {
        return Ok(None);
    }
    let mut tries = CLOSING.as_millis() / LOOK.as_millis();
    loop {
        if let Some(writer) = ds.writer() {
            return Ok(Some(writer));
        }
        if tries == 0 {
            let what = format!("'{}' is busy: its files are still in use", ds.name());
            return Err(Error::os(Errno::Busy, what));
        }
        tries -= 1;
        ctx.env.sleep(LOOK).await;
    }
}

/// Opens the files of a file system or snapshot, by their numbers alone. Whoever opens them
/// `readonly` beside others changes nothing, and does not replay what a crash has left in the log.
/// EBUSY: somebody else has them open for writing, and this would be to write, too.
pub(crate) async fn open_zfs(
    env: &Env,
    dsl: &Arc<DslPool>,
    ds: &Arc<DslDataset>,
    readonly: bool,
) -> Result<Arc<Zfs>> {
    let writer = if readonly { None } else { writer(dsl, ds).await? };
    open_zfs_as(env, dsl, ds, readonly, writer).await
}

/// The same; with the right to change them its intent log is replayed.
async fn open_zfs_as(
    env: &Env,
    dsl: &Arc<DslPool>,
    ds: &Arc<DslDataset>,
    readonly: bool,
    writer: Option<Writer>,
) -> Result<Arc<Zfs>> {
    let hold = held(ds)?;
    if ds.is_held_alone() {
        return Err(Error::os(Errno::Busy, format!("{}: dataset is busy", ds.name())));
    }
    if ds.is_inconsistent() {
        return Err(Error::os(Errno::Busy, format!("{}: a receive into it is not finished", ds.name())));
    }
    let os = dsl.objset(ds).await?;
    if os.os_type() != ObjsetType::Zfs.number() {
        return Err(Error::inval(format!("{} is not a file system", ds.name())));
    }
    let props = fs_props(dsl, ds, readonly || ds.is_snapshot()).await?;
    let ctx = dsl.ctx();
    if os.is_locked() {
        return Err(Error::os(Errno::Access, "encryption key not loaded"));
    }
    let writes = writer.is_some();
    let read_only_key = writes && dsl.has_old_key(&ds.dir()).await?;
    if read_only_key && !readonly {
        return Err(zilla_core::dsl::old_key(&ds.name()));
    }
    let txgs = (writes && !read_only_key).then(|| ctx.txgs.clone());
    if txgs.is_some() {
        dsl.open_log(ds).await?;
    }
    let space = Arc::new(DatasetSpace::new(dsl, writer, hold));
    Zfs::open(env.clone(), os, txgs, space, props).await
}

impl DatasetRef {
    /// Its properties as files feel them. `readonly` makes it so whatever the property says.
    pub async fn fs_props(&self, readonly: bool) -> Result<FsProps> {
        fs_props(&self.dsl, &self.ds, readonly).await
    }

    /// Opens the files of a file system or snapshot, by their numbers alone. Whoever opens them
    /// `readonly` beside others changes nothing, and does not replay what a crash has left in the
    /// log. EBUSY: somebody else has them open for writing, and this would be to write, too.
    pub async fn open_zfs(&self, readonly: bool) -> Result<Arc<Zfs>> {
        open_zfs(&self.dsl.ctx().env, &self.dsl, &self.ds, readonly).await
    }

    /// Opens a file system or snapshot with all that is below its `.zfs`, and frees in the
    /// background what was unlinked but open when it was last closed. EBUSY: somebody else has it
    /// open, who may write or be allowed to (`readonly` is what the property says, and may change).
    pub async fn open_filesystem(&self, readonly: bool) -> Result<Arc<Filesystem>> {
        let env = &self.dsl.ctx().env;
        let writer = writer(&self.dsl, &self.ds).await?;
        let zfs = open_zfs_as(env, &self.dsl, &self.ds, readonly, writer).await?;
        filesystem_on(env, &self.dsl, &self.ds, zfs).await
    }

    /// Should its intent log not be replayed to its end when it is opened next, the rest of the log
    /// goes. (Else the file system would be read-only, and the log kept.)
    pub async fn give_up_log(&self) -> Result<()> {
        self.dsl.open_log(&self.ds).await?.give_up_the_rest();
        Ok(())
    }
}

/// The same with files that are open already.
pub(crate) async fn filesystem_on(
    env: &Env,
    dsl: &Arc<DslPool>,
    ds: &Arc<DslDataset>,
    zfs: Arc<Zfs>,
) -> Result<Arc<Filesystem>> {
    let snapshots: Arc<dyn Snapshots> = match ds.is_snapshot() {
        true => Arc::new(NoSnapshots),
        false => {
            // A time that cannot be told is no reason not to have the files.
            if let Err(e) = dsl.look_up_snaps_changed(ds).await {
                tracing::warn!(dataset = %ds.name(), "when its snapshots last changed cannot be read: {e}");
            }
            Arc::new(DatasetSnapshots::new(env, dsl, ds))
        }
    };
    if !zfs.is_readonly() {
        let zfs = zfs.clone();
        env.spawn(async move {
            // What cannot be freed now waits for the next time.
            if let Err(e) = zfs.drain_unlinked_behind().await {
                tracing::warn!("freeing unlinked files: {e}");
            }
        });
    }
    let fs = Filesystem::new(zfs, snapshots);
    fs.set_snapdir(Snapdir::of(dsl.prop_u64(ds, "snapdir", 0).await?));
    Ok(fs)
}
