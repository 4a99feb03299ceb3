//! The pool as the dataset layer sees it: the object directory, the special dirs, and what is open.

use super::bpobj::{Bpobj, Space};
use super::dataset::DslDataset;
use super::dir::DslDir;
use super::name;
use crate::dmu::Objset;
use crate::error::{Errno, Error, Result};
use crate::pool::PoolCtx;
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId, TXG_INITIAL};
use crate::zap::{CreateOpts, Match, Zap};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zilla_ondisk::BlkPtr;
use zilla_ondisk::dsl::{
    DMU_POOL_BPTREE_OBJ, DMU_POOL_DELETED_CLONES, DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_EMPTY_BPOBJ,
    DMU_POOL_FREE_BPOBJ, DMU_POOL_ROOT_DATASET, DMU_POOL_TMP_USERREFS, DS_FLAG_CI_DATASET, DslDatasetPhys,
    DslDirPhys,
};
use zilla_ondisk::enums::{SPA_VERSION_DEADLISTS, SPA_VERSION_ORIGIN};
use zilla_ondisk::feature;
use zilla_ondisk::object_type::{DMU_OT_DSL_DATASET, DMU_OT_DSL_DIR, DMU_OTN_ZAP_METADATA};

pub(super) const MOS_DIR_NAME: &str = "$MOS";
pub(super) const FREE_DIR_NAME: &str = "$FREE";
/// Where OpenZFS counts what it could not free. Source: LEAK_DIR_NAME in sys/dsl_dir.h.
pub(super) const LEAK_DIR_NAME: &str = "$LEAK";
/// A user property of that dir, for us alone: not all of the queue that something was lost from is
/// freed yet.
pub(super) const LEAKING: &str = "zilla:leaking";
pub(super) const ORIGIN_DIR_NAME: &str = "$ORIGIN";

/// What the devices say about space; kept up to date by the pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolSpace {
    /// Deflated size of the normal class.
    pub dspace: u64,
    /// Kept back so that a full pool can still be administered.
    pub slop: u64,
    /// Freed, but not to be used again for the next txgs; deflated, as all of it.
    pub deferred: u64,
    /// On the list of frees put off to the next txg.
    pub deferred_frees: u64,
    /// What only the pool's checkpoint has.
    pub checkpoint: u64,
}

/// The MOS's dirs and lists that are always open.
#[derive(Clone)]
pub(super) struct Special {
    pub root: Arc<DslDir>,
    pub mos: Arc<DslDir>,
    /// Where blocks wait to be freed. A pool older than [`SPA_VERSION_DEADLISTS`] has none: its
    /// blocks are freed in the txg that destroys what had them.
    pub freeing: Option<Freeing>,
    /// The snapshot that every file system is a clone of; 0 while a pool is being made, and in one
    /// older than [`SPA_VERSION_ORIGIN`].
    pub origin_snap: u64,
}

/// The dir that counts what waits to be freed, and the list of it.
#[derive(Clone)]
pub(super) struct Freeing {
    pub dir: Arc<DslDir>,
    pub bpobj: Bpobj,
}

pub struct DslPool {
    pub(super) ctx: Arc<PoolCtx>,
    name: RwLock<String>,
    special: RwLock<Option<Arc<Special>>>,
    pub(super) empty_bpobj: Mutex<u64>,
    pub(super) bptree_obj: AtomicU64,
    /// The set of destroyed clones' livelists; 0: there is none.
    pub(super) deleted_clones: AtomicU64,
    /// See [`super::Waiting`].
    pub(super) lists_emptied: AtomicU64,
    pub(super) async_freed: AtomicU64,
    pub(super) tmp_userrefs: AtomicU64,
    pub(super) destroying: Mutex<super::bptree::Destroying>,
    dirs: Mutex<HashMap<u64, Arc<DslDir>>>,
    datasets: Mutex<HashMap<u64, Arc<DslDataset>>>,
    /// How often datasets have got other names.
    renames: AtomicU64,
    space: RwLock<PoolSpace>,
    pub(super) keys: super::keystore::Keystore,
    pub(super) errata: super::errata::Errata,
    /// What the MOS has come to use since its dir was last told.
    pub(super) mos_delta: Mutex<super::bpobj::Delta>,
}

impl DslPool {
    fn build(ctx: Arc<PoolCtx>) -> Arc<DslPool> {
        Arc::new(DslPool {
            ctx,
            name: RwLock::default(),
            special: RwLock::new(None),
            empty_bpobj: Mutex::new(0),
            bptree_obj: AtomicU64::new(0),
            deleted_clones: AtomicU64::new(0),
            lists_emptied: AtomicU64::new(0),
            async_freed: AtomicU64::new(0),
            tmp_userrefs: AtomicU64::new(0),
            destroying: Mutex::default(),
            dirs: Mutex::default(),
            datasets: Mutex::default(),
            renames: AtomicU64::new(0),
            space: RwLock::default(),
            keys: Default::default(),
            errata: Default::default(),
            mos_delta: Mutex::default(),
        })
    }

    /// Makes the datasets of a new pool, with a root file system as `props` has it. The object
    /// directory and the features are there.
    #[crate::boxed]
    pub async fn create(ctx: &Arc<PoolCtx>, tx: &Tx, props: &crate::zpl::ZplProps) -> Result<Arc<DslPool>> {
        DslPool::create_with(ctx, tx, props, &super::NewCrypt::default()).await
    }

    /// The same, the root file system encrypted as is said.
    #[crate::boxed]
    pub async fn create_with(
        ctx: &Arc<PoolCtx>,
        tx: &Tx,
        props: &crate::zpl::ZplProps,
        crypt: &super::NewCrypt,
    ) -> Result<Arc<DslPool>> {
        let pool = DslPool::build(ctx.clone());
        let root = pool.create_dir(tx, None, "").await?;
        let mos = pool.create_dir(tx, Some(&root), MOS_DIR_NAME).await?;
        let special = Special { root: root.clone(), mos, freeing: None, origin_snap: 0 };
        *pool.special.write() = Some(Arc::new(special));
        if ctx.version() >= SPA_VERSION_DEADLISTS {
            pool.make_freeing(tx).await?;
        }
        if ctx.version() >= SPA_VERSION_ORIGIN {
            pool.make_origin(tx).await?;
        }
        let ds = pool.create_dataset_dd(tx, &root, None, 0).await?;
        if let Some(crypting) = pool.new_crypt_check(None, crypt).await? {
            pool.create_key(tx, &root, &ds, crypting, crypt).await?;
        }
        let os = pool.new_objset(tx, &ds, zilla_ondisk::enums::ObjsetType::Zfs).await?;
        crate::zpl::create_fs(&os, tx, props).await?;
        Ok(pool)
    }

    /// The pool's name, which is the root dataset's too; told by whoever opens the pool.
    pub fn set_name(&self, name: &str) {
        *self.name.write() = name.to_owned();
        if let Some(s) = &*self.special.read() {
            s.root.set_short_name(name);
        }
        self.note_renamed();
    }

    /// A number that is another one after any dataset or snapshot has got another name. Whoever
    /// keeps names asks for it before he asks for them, and again when he uses them.
    pub fn renames(&self) -> u64 {
        self.renames.load(Ordering::Acquire)
    }

    /// The new names are told from now on.
    pub(super) fn note_renamed(&self) {
        self.renames.fetch_add(1, Ordering::AcqRel);
    }

    fn change_special(&self, f: impl FnOnce(&mut Special)) {
        if let Some(s) = &mut *self.special.write() {
            let mut new = Special::clone(s);
            f(&mut new);
            *s = Arc::new(new);
        }
    }

    /// The dir and the list of blocks that wait to be freed.
    pub(super) async fn make_freeing(&self, tx: &Tx) -> Result<()> {
        let dir = self.create_dir(tx, Some(&self.root_dir()), FREE_DIR_NAME).await?;
        // With sub-lists, also while the version is only about to have them.
        let id = self.bpobj_make(tx, SPA_VERSION_DEADLISTS).await?;
        self.directory().await?.insert_u64(tx, DMU_POOL_FREE_BPOBJ, id).await?;
        let bpobj = self.bpobj_open(id).await?;
        self.change_special(|s| s.freeing = Some(Freeing { dir, bpobj }));
        Ok(())
    }

    /// The empty snapshot $ORIGIN@$ORIGIN, which every dataset is a clone of, so that none is
    /// without an origin.
    pub(super) async fn make_origin(&self, tx: &Tx) -> Result<()> {
        let dir = self.create_dir(tx, Some(&self.root_dir()), ORIGIN_DIR_NAME).await?;
        let origin = self.create_dataset_dd(tx, &dir, None, 0).await?;
        let now = self.ctx.env.wall().as_secs();
        let snap = self.snapshot_sync(tx, &origin, ORIGIN_DIR_NAME, now).await?;
        self.change_special(|s| s.origin_snap = snap.id);
        Ok(())
    }

    /// Opens the dataset layer of an existing pool. The MOS and the features are loaded, and the
    /// version is set, before.
    #[crate::boxed]
    pub async fn open(ctx: &Arc<PoolCtx>) -> Result<Arc<DslPool>> {
        let version = ctx.version();
        let pool = DslPool::build(ctx.clone());
        let directory = pool.directory().await?;
        let root = pool.dir(directory.get_u64(DMU_POOL_ROOT_DATASET).await?).await?;
        let mos = pool.special_dir(&root, MOS_DIR_NAME).await?;
        let mut origin_snap = 0;
        if version >= SPA_VERSION_ORIGIN {
            let origin = pool.special_dir(&root, ORIGIN_DIR_NAME).await?;
            origin_snap = pool.dataset(origin.phys().head_dataset_obj).await?.phys().prev_snap_obj;
        }
        let mut freeing = None;
        if version >= SPA_VERSION_DEADLISTS {
            let bpobj = pool.bpobj_open(directory.get_u64(DMU_POOL_FREE_BPOBJ).await?).await?;
            freeing = Some(Freeing { dir: pool.special_dir(&root, FREE_DIR_NAME).await?, bpobj });
        }
        *pool.special.write() = Some(Arc::new(Special { root, mos, freeing, origin_snap }));
        for (name, to) in [
            (DMU_POOL_BPTREE_OBJ, &pool.bptree_obj),
            (DMU_POOL_DELETED_CLONES, &pool.deleted_clones),
            (DMU_POOL_TMP_USERREFS, &pool.tmp_userrefs),
        ] {
            to.store(directory.try_get_u64(name).await?.unwrap_or(0), Ordering::Relaxed);
        }
        *pool.empty_bpobj.lock() = directory.try_get_u64(DMU_POOL_EMPTY_BPOBJ).await?.unwrap_or(0);
        Ok(pool)
    }

    async fn special_dir(&self, root: &Arc<DslDir>, name: &str) -> Result<Arc<DslDir>> {
        let id = Zap::open(self.mos(), root.phys().child_dir_zapobj).await?.get_u64(name).await?;
        self.dir(id).await
    }

    /// The dir that counts what could not be freed, if there is any such space.
    pub(super) async fn leak_dir(&self) -> Result<Option<Arc<DslDir>>> {
        let children = Zap::open(self.mos(), self.root_dir().phys().child_dir_zapobj).await?;
        match children.try_get_u64(LEAK_DIR_NAME).await? {
            Some(id) => Ok(Some(self.dir(id).await?)),
            None => Ok(None),
        }
    }

    /// Space that nothing refers to and that could not be freed, because what leads to it was
    /// damaged.
    pub async fn leaked(&self) -> Result<u64> {
        Ok(self.leak_dir().await?.map_or(0, |d| d.phys().used_bytes))
    }

    pub fn ctx(&self) -> &Arc<PoolCtx> {
        &self.ctx
    }

    pub fn mos(&self) -> &Arc<Objset> {
        self.ctx.mos()
    }

    pub fn name(&self) -> String {
        self.name.read().clone()
    }

    pub(super) fn special(&self) -> Arc<Special> {
        match &*self.special.read() {
            Some(s) => s.clone(),
            None => unreachable!("set before the pool is handed out"),
        }
    }

    pub(super) fn origin_snap(&self) -> u64 {
        self.special.read().as_ref().map_or(0, |s| s.origin_snap)
    }

    /// The dir in which the space of the pool's own objects is counted.
    pub fn mos_dir(&self) -> Arc<DslDir> {
        self.special().mos.clone()
    }

    pub fn root_dir(&self) -> Arc<DslDir> {
        self.special().root.clone()
    }

    /// The object directory: the MOS's table of contents.
    #[crate::boxed]
    pub async fn directory(&self) -> Result<Zap> {
        Zap::open(self.mos(), DMU_POOL_DIRECTORY_OBJECT).await
    }

    pub fn pool_space(&self) -> PoolSpace {
        *self.space.read()
    }

    pub fn set_pool_space(&self, space: PoolSpace) {
        *self.space.write() = space;
    }

    /// Refuses what pools of versions before `version` do not have.
    pub(crate) fn needs_version(&self, version: u64) -> Result<()> {
        match self.ctx.version() {
            own if own < version => Err(Error::os(
                Errno::NotSup,
                format!("pool must be upgraded: it has version {own}, and this takes version {version}"),
            )),
            _ => Ok(()),
        }
    }

    pub fn feature_enabled(&self, name: &str) -> bool {
        self.ctx.features.is_enabled(name)
    }

    pub fn feature_active(&self, name: &str) -> bool {
        self.ctx.features.is_active(name)
    }

    pub(super) async fn feature_incr(&self, tx: &Tx, name: &str) -> Result<()> {
        self.ctx.features.add(self.mos(), tx, name, 1).await
    }

    pub(super) async fn feature_decr(&self, tx: &Tx, name: &str) -> Result<()> {
        self.ctx.features.add(self.mos(), tx, name, -1).await
    }

    pub(super) fn random(&self) -> u64 {
        self.ctx.env.rng.u64()
    }

    pub(super) fn open_dirs(&self) -> Vec<Arc<DslDir>> {
        let mut all: Vec<_> = self.dirs.lock().values().cloned().collect();
        all.sort_by_key(|d| d.id);
        all
    }

    pub(super) fn open_datasets(&self) -> Vec<Arc<DslDataset>> {
        let mut all: Vec<_> = self.datasets.lock().values().cloned().collect();
        all.sort_by_key(|d| d.id);
        all
    }

    pub(super) fn dataset_in_memory(&self, id: u64) -> Option<Arc<DslDataset>> {
        self.datasets.lock().get(&id).cloned()
    }

    pub(super) fn forget_dir(&self, dir: &DslDir) {
        dir.gone.store(true, Ordering::Release);
        self.dirs.lock().remove(&dir.id);
    }

    pub(super) fn forget_dataset(&self, ds: &DslDataset) {
        ds.gone.store(true, Ordering::Release);
        ds.drop_objset();
        self.datasets.lock().remove(&ds.id);
    }

    /// The dir that is object `id`.
    #[crate::boxed]
    pub async fn dir(&self, id: u64) -> Result<Arc<DslDir>> {
        if let Some(d) = self.dirs.lock().get(&id) {
            return Ok(d.clone());
        }
        // Upwards first, without recursion: a chain of parents that never ends is damage.
        let mut chain = Vec::new();
        let mut at = id;
        let mut parent = loop {
            if let Some(d) = self.dirs.lock().get(&at) {
                break Some(d.clone());
            }
            if chain.len() > name::ZFS_MAX_DATASET_NAME_LEN {
                return Err(Error::corrupt(None, "", format!("dir {id} has too many ancestors")));
            }
            let dn = self.mos().hold_wait(ObjectId(at)).await?;
            let phys = DslDir::decode(&dn)?;
            let up = phys.parent_obj;
            chain.push((dn, phys));
            if up == 0 {
                break None;
            }
            at = up;
        };
        for (dn, phys) in chain.into_iter().rev() {
            let dir = self.load_dir(dn, phys, parent.take()).await?;
            parent = Some(self.dirs.lock().entry(dir.id).or_insert(dir).clone());
        }
        parent.ok_or_else(|| Error::no_ent("no such dir"))
    }

    async fn load_dir(
        &self,
        dn: Arc<crate::dmu::Dnode>,
        phys: DslDirPhys,
        parent: Option<Arc<DslDir>>,
    ) -> Result<Arc<DslDir>> {
        let id = dn.id().0;
        let name = match &parent {
            None => self.name(),
            Some(p) => {
                let children = Zap::open(self.mos(), p.phys().child_dir_zapobj).await?;
                children.find_value(id).await?.ok_or_else(|| {
                    Error::corrupt(None, "", format!("dir {id} is not a child of its parent {}", p.id))
                })?
            }
        };
        let mut origin_txg = 0;
        if phys.origin_obj != 0 {
            let origin = self.mos().hold_wait(ObjectId(phys.origin_obj)).await?;
            origin_txg = DslDataset::decode(&origin)?.creation_txg;
        }
        Ok(DslDir::new(dn, phys, parent, name, origin_txg))
    }

    /// The dataset that is object `id`.
    #[crate::boxed]
    pub async fn dataset(&self, id: u64) -> Result<Arc<DslDataset>> {
        if let Some(d) = self.datasets.lock().get(&id) {
            return Ok(d.clone());
        }
        let dn = self.mos().hold_wait(ObjectId(id)).await?;
        let phys = DslDataset::decode(&dn)?;
        let dir = self.dir(phys.dir_obj).await?;
        let ds = DslDataset::new(dn, phys, dir.clone());
        ds.log_freed.store(self.ctx.log.is_passed_over(phys.creation_txg), Ordering::Relaxed);
        if ds.is_snapshot() {
            let head = self.mos().hold_wait(ObjectId(dir.phys().head_dataset_obj)).await?;
            let names = Zap::open(self.mos(), DslDataset::decode(&head)?.snapnames_zapobj).await?;
            *ds.snapname.lock() = names.find_value(id).await?.unwrap_or_default();
            if phys.userrefs_obj != 0 {
                let refs = Zap::open(self.mos(), phys.userrefs_obj).await?.len().await?;
                ds.userrefs.store(refs, Ordering::Relaxed);
            }
            // What cannot be told of it is no reason not to open it.
            if let Err(e) = self.note_ivset(&ds).await {
                tracing::debug!("{}: {e}", ds.name());
            }
        } else {
            self.load_ref_limits(&ds).await?;
            self.load_bookmarks(&ds).await?;
        }
        if let Some(zap) = ds.zap() {
            let mut active = std::collections::BTreeSet::new();
            for e in zap.entries().await? {
                if let Some(f) = feature::by_guid(&e.name_str()).filter(|f| f.per_dataset()) {
                    active.insert(f.name);
                    if f.name == super::redact::REDACTED {
                        *ds.redacted.lock() = Some(e.value.as_u64s().unwrap_or_default().into());
                    }
                }
            }
            *ds.features.lock() = active;
        }
        Ok(self.datasets.lock().entry(id).or_insert(ds).clone())
    }

    pub(super) async fn load_ref_limits(&self, ds: &DslDataset) -> Result<()> {
        let props = Zap::open(self.mos(), ds.dir().phys().props_zapobj).await?;
        for (name, to) in [("refquota", &ds.refquota), ("refreservation", &ds.reserved)] {
            let own = match props.try_get_u64(name).await? {
                Some(v) => Some(v),
                None => props.try_get_u64(&format!("{name}$recvd")).await?,
            };
            to.store(own.unwrap_or(0), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The head of a dir.
    #[crate::boxed]
    pub async fn head(&self, dir: &DslDir) -> Result<Arc<DslDataset>> {
        let id = dir.phys().head_dataset_obj;
        if id == 0 {
            return Err(Error::no_ent(format!("{} has no dataset", dir.name())));
        }
        self.dataset(id).await
    }

    /// The dir of this name.
    #[crate::boxed]
    pub async fn dir_by_name(&self, fs: &str) -> Result<Arc<DslDir>> {
        let mut parts = fs.split('/');
        if parts.next() != Some(&*self.name()) {
            return Err(Error::no_ent("dataset does not exist"));
        }
        let mut at = self.root_dir();
        for part in parts {
            if part.is_empty() || part.starts_with('$') {
                return Err(Error::no_ent("dataset does not exist"));
            }
            let children = Zap::open(self.mos(), at.phys().child_dir_zapobj).await?;
            let Some(id) = children.try_get_u64(part).await? else {
                return Err(Error::no_ent("dataset does not exist"));
            };
            at = self.dir(id).await?;
        }
        Ok(at)
    }

    /// The file system, volume or snapshot of this name.
    #[crate::boxed]
    pub async fn by_name(&self, name: &str) -> Result<Arc<DslDataset>> {
        let parts = name::split(name);
        let head = self.head(&*self.dir_by_name(parts.fs).await?).await?;
        match parts.snap {
            None => Ok(head),
            Some(snap) => match self.snap_lookup(&head, snap).await? {
                Some(id) => self.dataset(id).await,
                None => Err(Error::no_ent("dataset does not exist")),
            },
        }
    }

    fn snap_match(ds: &DslDataset) -> Match {
        if ds.phys().flags & DS_FLAG_CI_DATASET != 0 { Match::Normalized } else { Match::Exact }
    }

    /// The number of a head's snapshot.
    #[crate::boxed]
    pub async fn snap_lookup(&self, head: &DslDataset, snap: &str) -> Result<Option<u64>> {
        let names = Zap::open(self.mos(), head.phys().snapnames_zapobj).await?;
        if Self::snap_match(head) == Match::Exact {
            return names.try_get_u64(snap).await;
        }
        let found = crate::dmu::resident(|| names.lookup_norm(snap.as_bytes(), Match::Normalized)).await?;
        Ok(found.and_then(|f| f.value.as_u64()))
    }

    pub(super) async fn snap_remove(
        &self,
        tx: &Tx,
        head: &DslDataset,
        snap: &str,
        count: bool,
    ) -> Result<()> {
        self.snap_cmtime_update(tx, &head.dir()).await?;
        let names = Zap::open(self.mos(), head.phys().snapnames_zapobj).await?;
        match Self::snap_match(head) {
            Match::Exact => names.delete(tx, snap).await?,
            mt => crate::dmu::resident(|| names.remove_norm(tx, snap.as_bytes(), mt)).await?,
        }
        if count {
            self.count_adjust(tx, &head.dir(), -1, zilla_ondisk::dsl::DD_FIELD_SNAPSHOT_COUNT).await?;
        }
        Ok(())
    }

    /// The snapshot before a dataset, or the origin of a clone. Each is older than the one it is
    /// before, so whoever goes back from one to the next comes to an end.
    #[crate::boxed]
    pub async fn prev(&self, ds: &DslDataset) -> Result<Option<Arc<DslDataset>>> {
        match ds.phys().prev_snap_obj {
            0 => Ok(None),
            id => {
                let prev = self.dataset(id).await?;
                let older = !ds.is_snapshot() || prev.phys().creation_txg < ds.phys().creation_txg;
                if !prev.is_snapshot() || !older {
                    let b = Bookmark::new(0, ObjectId(ds.id), 0, 0);
                    let what = format!("dataset {id}, which is to be before dataset {}, is not", ds.id);
                    return Err(Error::corrupt(Some(b), "", what));
                }
                Ok(Some(prev))
            }
        }
    }

    /// Whether a dir is a clone of a snapshot that users can see.
    pub fn is_clone(&self, dir: &DslDir) -> bool {
        let origin = dir.phys().origin_obj;
        origin != 0 && origin != self.origin_snap()
    }

    /// Makes a dir's or dataset's object a ZAP, for fields that came later.
    pub(super) async fn zapify(&self, tx: &Tx, dn: &Arc<crate::dmu::Dnode>) -> Result<Zap> {
        let t = dn.otype();
        if t == DMU_OTN_ZAP_METADATA {
            return Ok(Zap::new(dn));
        }
        if t != DMU_OT_DSL_DIR && t != DMU_OT_DSL_DATASET {
            let what = format!("object {} is neither a dir nor a dataset", dn.id());
            return Err(Error::corrupt(Some(Bookmark::new(0, dn.id(), 0, 0)), "", what));
        }
        // First what a pool refuses that does not have it: half of the rest would be left.
        self.feature_incr(tx, "extensible_dataset").await?;
        crate::dmu::resident(|| Zap::init(dn, tx, &CreateOpts::default())).await?;
        dn.set_types(tx, DMU_OTN_ZAP_METADATA, dn.bonus_type());
        Ok(Zap::new(dn))
    }

    pub(super) async fn free_zapified(&self, tx: &Tx, dn: &Arc<crate::dmu::Dnode>) -> Result<()> {
        // Pools to which older versions received without the feature have some that do not count.
        if dn.otype() == DMU_OTN_ZAP_METADATA && self.feature_active("extensible_dataset") {
            self.feature_decr(tx, "extensible_dataset").await?;
        }
        self.mos().free(tx, dn);
        Ok(())
    }

    /// Makes known when a head's snapshots last changed. Where no pool has noted that: when the
    /// newest was taken, or else when the dataset was made.
    #[crate::boxed]
    pub async fn look_up_snaps_changed(&self, head: &DslDataset) -> Result<()> {
        let dir = head.dir();
        let noted = match dir.zap() {
            Some(zap) => zap.try_get(zilla_ondisk::dsl::DD_FIELD_SNAPSHOTS_CHANGED).await?,
            None => None,
        };
        let at = match noted.and_then(|v| v.as_u64s()).as_deref() {
            Some([seconds, nanoseconds]) => [*seconds, *nanoseconds],
            _ => {
                let newest = self.prev(head).await?.map_or(0, |snap| snap.phys().creation_time);
                [newest.max(head.phys().creation_time), 0]
            }
        };
        // What was changed meanwhile is known already.
        dir.note_snaps_changed(at);
        Ok(())
    }

    /// When the dir's snapshots last changed.
    pub(super) async fn snap_cmtime_update(&self, tx: &Tx, dir: &DslDir) -> Result<()> {
        let now = self.ctx.env.wall();
        let now = [now.as_secs(), u64::from(now.subsec_nanos())];
        dir.set_snaps_changed(now);
        if !self.feature_enabled("extensible_dataset") {
            return Ok(());
        }
        let value = crate::zap::Value::u64s(&now);
        let zap = self.zapify(tx, &dir.dn).await?;
        zap.set(tx, zilla_ondisk::dsl::DD_FIELD_SNAPSHOTS_CHANGED, &value).await
    }

    /// Counts file systems or snapshots under a dir and its ancestors, where that is done at all.
    pub(super) async fn count_adjust(
        &self,
        tx: &Tx,
        dir: &Arc<DslDir>,
        delta: i64,
        field: &str,
    ) -> Result<()> {
        if dir.short_name().starts_with(['$', '%']) || !self.feature_active("filesystem_limits") {
            return Ok(());
        }
        for d in dir.ancestry() {
            let Some(zap) = d.zap() else { break };
            let Some(n) = zap.try_get_u64(field).await? else { break };
            zap.set_u64(tx, field, n.saturating_add_signed(delta)).await?;
        }
        Ok(())
    }

    /// Blocks waiting to be freed: on the list, and in destroyed datasets.
    #[crate::boxed]
    pub async fn freeing(&self) -> Result<Space> {
        let mut s = match &self.special().freeing {
            Some(freeing) => freeing.bpobj.space()?,
            None => Space::default(),
        };
        let id = self.bptree_obj.load(Ordering::Relaxed);
        if id != 0 {
            s.add(self.bptree_state(id).await?.0);
        }
        s.add(self.livelists_space().await);
        Ok(s)
    }

    /// A snapshot's creation txg as datasets record it: the origin's is 1, before all others.
    pub(super) fn creation_txg(tx: &Tx) -> u64 {
        if tx.txg() == TXG_INITIAL { 1 } else { tx.txg().0 }
    }

    pub(super) fn insert_dataset(
        &self,
        dn: Arc<crate::dmu::Dnode>,
        phys: DslDatasetPhys,
        dir: Arc<DslDir>,
    ) -> Arc<DslDataset> {
        let ds = DslDataset::new(dn, phys, dir);
        self.datasets.lock().insert(ds.id, ds.clone());
        ds
    }

    pub(super) fn insert_dir(&self, dir: Arc<DslDir>) -> Arc<DslDir> {
        self.dirs.lock().insert(dir.id, dir.clone());
        dir
    }
}

impl crate::zio::Pointers for DslPool {
    fn is_current(&self, at: Bookmark, bp: &BlkPtr) -> bool {
        if at.objset == Bookmark::MOS {
            return self.mos().points_to(at, bp);
        }
        let Some(ds) = self.dataset_in_memory(at.objset) else { return false };
        if at == Bookmark::root(at.objset) {
            return ds.phys().bp == *bp;
        }
        ds.open_objset().is_some_and(|os| os.points_to(at, bp))
    }
}
