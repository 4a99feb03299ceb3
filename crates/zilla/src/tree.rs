//! The datasets of a pool as they lie in its tree.
//!
//! A [`DatasetRef`] is a file system, volume or snapshot that was found; a [`DatasetDir`] is a
//! place in the tree, with what lies there and below it. Both go on meaning the same when it gets
//! another name. Neither keeps a dataset from being destroyed: a [`Hold`] does.
//!
//! [`Dataset`](crate::Dataset) and [`Snapshot`](crate::Snapshot) are the simpler way for programs
//! that know what they look for by its name.
//!
//! ```
//! use zilla::{NewPool, NewVdev, Pool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let folder = tempfile::tempdir()?;
//! # let disk = folder.path().join("a.img");
//! # std::fs::File::create(&disk)?.set_len(128 << 20)?;
//! # let env = zilla_env::real_env(2);
//! # let run = env.clone();
//! # env.block_on(async move {
//! # let pool = Pool::create(&run, NewPool::new("tank").vdev(NewVdev::single(&disk))).await?;
//! pool.create_filesystem("tank/docs", &[]).await?;
//! pool.create_filesystem("tank/docs/ann", &[]).await?;
//! pool.snapshot(&["tank/docs@monday"]).await?;
//! let (mut found, mut todo) = (Vec::new(), vec![pool.dir_by_name("tank").await?]);
//! while let Some(dir) = todo.pop() {
//!     for snapshot in dir.head().await?.snapshots().await? {
//!         found.push((snapshot.name(), snapshot.info().await?.referenced > 0));
//!     }
//!     todo.extend(dir.children().await?);
//! }
//! assert_eq!(found, [("tank/docs@monday".to_owned(), true)]);
//! # pool.export().await?;
//! # Ok(())
//! # })
//! # }
//! ```

use crate::error::{Errno, Error, Result};
use crate::pool::Pool;
use crate::stats::{LogCounts, ObjsetCounts};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_core::dsl::{DslDataset, DslDir, DslPool, LongHold};
use zilla_core::types::ObjectId;
use zilla_core::zap::Zap;
use zilla_core::zpl::MASTER_NODE_OBJ;
use zilla_core::zvol::{ZVOL_OBJ, ZVOL_ZAP_OBJ};
use zilla_ondisk::enums::ObjsetType;

pub use zilla_core::dsl::{DatasetInfo, Encryption};

/// A file system, volume or snapshot that was found.
#[derive(Clone)]
pub struct DatasetRef {
    pub(crate) dsl: Arc<DslPool>,
    pub(crate) ds: Arc<DslDataset>,
}

/// A place in the tree: what lies there, and what is below it.
#[derive(Clone)]
pub struct DatasetDir {
    pub(crate) dsl: Arc<DslPool>,
    pub(crate) dir: Arc<DslDir>,
}

/// Keeps a dataset from being destroyed, until it is dropped.
pub struct Hold {
    _held: LongHold,
}

impl Pool {
    pub(crate) fn reference(&self, ds: Arc<DslDataset>) -> DatasetRef {
        DatasetRef { dsl: self.dsl().clone(), ds }
    }

    /// A file system, volume or snapshot by its whole name. ENOENT: there is none.
    pub async fn by_name(&self, name: &str) -> Result<DatasetRef> {
        Ok(self.reference(self.dsl().by_name(name).await?))
    }

    /// A number that is another one after any dataset or snapshot has got another name. Whoever
    /// keeps names asks for it before he asks for them, and again when he uses them.
    pub fn renames(&self) -> u64 {
        self.dsl().renames()
    }

    /// The dataset of a number ([`DatasetRef::id`]).
    pub async fn by_id(&self, id: u64) -> Result<DatasetRef> {
        Ok(self.reference(self.dsl().dataset(id).await?))
    }

    /// The place of a file system or volume by its whole name.
    pub async fn dir_by_name(&self, name: &str) -> Result<DatasetDir> {
        let dir = self.dsl().dir_by_name(name).await?;
        Ok(DatasetDir { dsl: self.dsl().clone(), dir })
    }

    /// The snapshot of a guid, wherever it is. Of several, which are of datasets that were received
    /// from the same, the one that has the most of its path in common with `near`.
    pub async fn by_guid(&self, guid: u64, near: &str) -> Result<Option<String>> {
        let in_common = |name: &str| {
            let both = name.split(['/', '@']).zip(near.split(['/', '@']));
            both.take_while(|(a, b)| a == b).count()
        };
        let mut nearest: Option<(usize, String)> = None;
        let dsl = self.dsl();
        let mut todo = vec![dsl.root_dir()];
        while let Some(dir) = todo.pop() {
            if dir.phys().head_dataset_obj != 0 {
                let head = dsl.head(&dir).await?;
                let snaps = dsl.snapshots(&head).await?;
                if let Some(s) = snaps.iter().find(|s| s.guid() == guid) {
                    let common = in_common(&s.name());
                    if nearest.as_ref().is_none_or(|(n, _)| common > *n) {
                        nearest = Some((common, s.name()));
                    }
                }
            }
            todo.extend(dsl.child_dirs(&dir).await?);
        }
        Ok(nearest.map(|(_, name)| name))
    }

    /// The names that a snapshot has in a dataset and in all below it: `tank@now`, `tank/home@now`.
    pub async fn recursive_names(&self, name: &str) -> Result<Vec<String>> {
        self.dsl().recursive_names(name).await
    }
}

impl DatasetDir {
    /// Its number, which it keeps.
    pub fn id(&self) -> u64 {
        self.dir.id()
    }

    /// The whole name.
    pub fn name(&self) -> String {
        self.dir.name()
    }

    /// Itself, the one above it, and so on to the pool's own.
    pub fn ancestry(&self) -> Vec<DatasetDir> {
        let all = self.dir.ancestry().into_iter();
        all.map(|dir| DatasetDir { dsl: self.dsl.clone(), dir }).collect()
    }

    /// Whether a dataset lies there: some places are the pool's own.
    pub fn has_head(&self) -> bool {
        self.dir.phys().head_dataset_obj != 0
    }

    /// The file system or volume that lies there.
    pub async fn head(&self) -> Result<DatasetRef> {
        Ok(DatasetRef { dsl: self.dsl.clone(), ds: self.dsl.head(&self.dir).await? })
    }

    /// The places right below.
    pub async fn children(&self) -> Result<Vec<DatasetDir>> {
        let all = self.dsl.child_dirs(&self.dir).await?.into_iter();
        Ok(all.map(|dir| DatasetDir { dsl: self.dsl.clone(), dir }).collect())
    }

    /// Whether what lies there was made from a snapshot.
    pub fn is_clone(&self) -> bool {
        self.dsl.is_clone(&self.dir)
    }

    /// The snapshot that a clone was made from.
    pub async fn origin(&self) -> Result<DatasetRef> {
        let ds = self.dsl.dataset(self.dir.phys().origin_obj).await?;
        Ok(DatasetRef { dsl: self.dsl.clone(), ds })
    }
}

impl DatasetRef {
    fn other(&self, ds: Arc<DslDataset>) -> DatasetRef {
        DatasetRef { dsl: self.dsl.clone(), ds }
    }

    /// Its number, which it keeps.
    pub fn id(&self) -> u64 {
        self.ds.id()
    }

    /// Its guid: the same in all pools that received the snapshot.
    pub fn guid(&self) -> u64 {
        self.ds.guid()
    }

    /// The whole name.
    pub fn name(&self) -> String {
        self.ds.name()
    }

    /// What stands behind the `@`; empty: it is no snapshot.
    pub fn snapshot_name(&self) -> String {
        self.ds.snapshot_name()
    }

    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.ds.is_snapshot()
    }

    /// Where it lies; of a snapshot, where its dataset lies.
    pub fn dir(&self) -> DatasetDir {
        DatasetDir { dsl: self.dsl.clone(), dir: self.ds.dir() }
    }

    /// The txg in which it was made.
    pub fn created_txg(&self) -> u64 {
        self.ds.phys().creation_txg
    }

    /// A receive into it has not ended.
    pub fn is_inconsistent(&self) -> bool {
        self.ds.is_inconsistent()
    }

    /// The last who lets go of it destroys it.
    pub fn is_defer_destroy(&self) -> bool {
        self.ds.is_defer_destroy()
    }

    /// How many tags hold it.
    pub fn userrefs(&self) -> u64 {
        self.ds.userrefs()
    }

    /// Whether nothing was made from it but what follows it.
    pub fn is_without_clones(&self) -> bool {
        self.ds.phys().num_children <= 1
    }

    /// The guids of the snapshots by which its contents are redacted; None: they are whole.
    pub fn redact_snaps(&self) -> Option<Arc<[u64]>> {
        self.ds.redact_snaps()
    }

    /// Whether its contents make use of a feature of the pool.
    pub fn feature_is_active(&self, name: &str) -> bool {
        self.ds.feature_is_active(name)
    }

    /// Keeps it from being destroyed, until the hold is dropped.
    pub fn hold(&self) -> Hold {
        Hold { _held: self.ds.hold() }
    }

    /// Keeps a head as it is, if nobody holds it: who opens it meanwhile is refused.
    pub fn hold_alone(&self) -> Option<Hold> {
        Some(Hold { _held: self.ds.hold_alone()? })
    }

    /// Somebody has it open, or holds it.
    pub fn is_held(&self) -> bool {
        self.ds.is_long_held()
    }

    /// Waits until nobody holds it.
    pub async fn unheld(&self) {
        self.ds.unheld().await;
    }

    /// Sizes and numbers of it.
    pub async fn info(&self) -> Result<DatasetInfo> {
        self.dsl.info(&self.ds).await
    }

    /// What its contents are, as an [`ObjsetType`]'s number; 0 where there are none yet.
    pub async fn contents_type(&self) -> Result<u64> {
        self.dsl.os_type(&self.ds).await
    }

    /// Whether it is a volume, or a snapshot of one.
    pub async fn is_volume(&self) -> Result<bool> {
        Ok(self.contents_type().await? == ObjsetType::Zvol.number())
    }

    /// Whether it is a file system, or a snapshot of one.
    pub async fn is_filesystem(&self) -> Result<bool> {
        Ok(self.contents_type().await? == ObjsetType::Zfs.number())
    }

    /// Whether its contents are encrypted, and the key is not loaded.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.dsl.objset(&self.ds).await?.is_locked())
    }

    /// Whether a crash left something in its intent log that opening it brings back.
    pub async fn needs_replay(&self) -> Result<bool> {
        Ok(zilla_core::zil::needs_replay(&self.dsl.objset(&self.ds).await?.phys().zil_header))
    }

    /// A head's snapshots, the oldest first.
    pub async fn snapshots(&self) -> Result<Vec<DatasetRef>> {
        let all = self.dsl.snapshots(&self.ds).await?.into_iter();
        Ok(all.map(|ds| self.other(ds)).collect())
    }

    /// A head's snapshot of a name.
    pub async fn snapshot(&self, name: &str) -> Result<Option<DatasetRef>> {
        match self.dsl.snap_lookup(&self.ds, name).await? {
            Some(id) => Ok(Some(self.other(self.dsl.dataset(id).await?))),
            None => Ok(None),
        }
    }

    /// The names of what was made from a snapshot.
    pub async fn clones(&self) -> Result<Vec<String>> {
        self.dsl.clones(&self.ds).await
    }

    /// The snapshot before it: of the same dataset, or its origin.
    pub async fn prev(&self) -> Result<Option<DatasetRef>> {
        Ok(self.dsl.prev(&self.ds).await?.map(|ds| self.other(ds)))
    }

    /// Whether it is a later state of another dataset, or of what that was in a txg (0: as it is).
    pub async fn is_after(&self, earlier: &DatasetRef, txg: u64) -> Result<bool> {
        self.dsl.is_before(&self.ds, &earlier.ds, txg).await
    }

    /// Bytes that would be free if the snapshots from this one to a later one were destroyed.
    pub async fn space_freed_to(&self, last: &DatasetRef) -> Result<u64> {
        self.dsl.space_freed_by(&self.ds, &last.ds).await
    }

    /// Bytes written between a snapshot and this later state of the same dataset; None: it is none.
    pub async fn written_since(&self, since: &DatasetRef) -> Result<Option<u64>> {
        let mut sum = 0u64;
        let mut at = self.ds.clone();
        // Each snapshot is older than the one after it: a chain that is not so was made by somebody
        // else, and might never end.
        let (mut newest, oldest) = (u64::MAX, since.created_txg());
        while at.id() != since.id() {
            sum = sum.saturating_add(self.dsl.written(&at).await?);
            let Some(prev) = self.dsl.prev(&at).await? else { return Ok(None) };
            let made = prev.phys().creation_txg;
            if made >= newest || made < oldest {
                return Ok(None);
            }
            (newest, at) = (made, prev);
        }
        Ok(Some(sum))
    }

    /// What its intent log did since it was opened.
    pub fn log_counts(&self) -> LogCounts {
        self.ds.open_objset().and_then(|os| os.log().map(|l| l.stats().get())).unwrap_or_default()
    }

    /// What was read, written and removed since it was opened.
    pub fn io_counts(&self) -> ObjsetCounts {
        self.ds.open_objset().map(|os| os.stats.get()).unwrap_or_default()
    }

    /// What was settled when it was made, and lies in its contents rather than among the
    /// properties: `volsize` and `volblocksize` of a volume; `version`, `utf8only`, `normalization`
    /// and `casesensitivity` of a file system.
    pub async fn fixed_properties(&self) -> Result<BTreeMap<&'static str, u64>> {
        let os = self.dsl.objset(&self.ds).await?;
        let mut all = BTreeMap::new();
        if os.os_type() == ObjsetType::Zvol.number() {
            let zap = Zap::open(&os, ZVOL_ZAP_OBJ).await?;
            all.insert("volsize", zap.try_get_u64("size").await?.unwrap_or(0));
            let data = os.hold_wait(ObjectId(ZVOL_OBJ)).await?;
            all.insert("volblocksize", u64::from(data.blksz()));
        } else if os.os_type() == ObjsetType::Zfs.number() {
            let master = Zap::open(&os, MASTER_NODE_OBJ).await?;
            all.insert("version", master.try_get_u64("VERSION").await?.unwrap_or(0));
            for name in ["utf8only", "normalization", "casesensitivity"] {
                all.insert(name, master.try_get_u64(name).await?.unwrap_or(0));
            }
        }
        Ok(all)
    }
}

/// Which blocks of an object hold something, at a level of its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// The object; 0: that of the dnodes.
    pub object: u64,
    /// The first block's number.
    pub first: u64,
    /// And the last one's.
    pub last: u64,
}

/// Bytes of a dnode's slot, and of a block pointer, as powers of two.
const DNODE_SHIFT: u32 = 9;
const BLKPTR_SHIFT: u32 = 7;

impl DatasetRef {
    /// Which blocks of a level hold a range of bytes of an object (None: all of it), or with
    /// `dnode` its dnode. EDOM: the object has no such level.
    pub async fn blocks_of(
        &self,
        object: u64,
        dnode: bool,
        level: u32,
        range: Option<(u64, u64)>,
    ) -> Result<BlockRange> {
        let objset = self.dsl.objset(&self.ds).await?;
        // A dnode's block is one of the objset's first object.
        let (within, shape, range) = match dnode {
            true => {
                let at = object.saturating_mul(1 << DNODE_SHIFT);
                (0, objset.phys().meta_dnode, Some((at, at)))
            }
            false => (object, objset.hold_wait(ObjectId(object)).await?.phys(), range),
        };
        if level >= u32::from(shape.nlevels) {
            return Err(Error::os(Errno::Dom, "block level exceeds max level of object"));
        }
        let mut at = BlockRange { object: within, first: 0, last: u64::MAX };
        if let Some((first, last)) = range {
            let size = (shape.datablkszsec.max(1) as u64) << DNODE_SHIFT;
            let fanout = u32::from(shape.indblkshift).saturating_sub(BLKPTR_SHIFT).saturating_mul(level);
            at.first = (first / size).checked_shr(fanout).unwrap_or(0);
            at.last = (last / size).checked_shr(fanout).unwrap_or(0);
        }
        Ok(at)
    }
}
