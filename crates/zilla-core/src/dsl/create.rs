//! New dirs and datasets: file systems and clones.

use super::DslPool;
use super::Refusal;
use super::dataset::DslDataset;
use super::dir::DslDir;
use super::name;
use super::rekey::NewCrypt;
use super::space::SpaceCheck;
use crate::dmu::{NewObject, Objset, resident};
use crate::error::{Errno, Error, Result};
use crate::tunables;
use crate::txg::Tx;
use crate::types::Bookmark;
use crate::zap::{CreateOpts, U8_TEXTPREP_TOUPPER, Zap};
use crate::zio::SealedStore;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{
    DD_FIELD_FILESYSTEM_COUNT, DD_FIELD_SNAPSHOT_COUNT, DD_FLAG_USED_BREAKDOWN, DMU_POOL_ROOT_DATASET,
    DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT, DS_FLAG_UNIQUE_ACCURATE, DslDatasetPhys, DslDirPhys,
};
use zilla_ondisk::enums::{
    ObjsetType, SPA_VERSION_DEADLISTS, SPA_VERSION_ORIGIN, SPA_VERSION_UNIQUE_ACCURATE,
    SPA_VERSION_USED_BREAKDOWN, SPA_VERSION_USERSPACE,
};
use zilla_ondisk::feature;
use zilla_ondisk::object_type::{
    DMU_OT_DSL_CLONES, DMU_OT_DSL_DATASET, DMU_OT_DSL_DIR, DMU_OT_DSL_DIR_CHILD_MAP, DMU_OT_DSL_DS_SNAP_MAP,
    DMU_OT_DSL_PROPS, DMU_OT_NEXT_CLONES,
};
use zilla_ondisk::objset::{
    OBJSET_FLAG_PROJECTQUOTA_COMPLETE, OBJSET_FLAG_USERACCOUNTING_COMPLETE,
    OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE,
};
use zilla_ondisk::{Field, Phys};

/// fsid_guid has 56 bits.
const FSID_MASK: u64 = (1 << 56) - 1;

impl DslPool {
    async fn new_zap(&self, tx: &Tx, otype: u8) -> Result<u64> {
        Ok(Zap::make(self.mos(), tx, otype, &CreateOpts::default()).await?.id())
    }

    /// A new, empty dir; the root dir where there is no parent.
    pub(super) async fn create_dir(
        &self,
        tx: &Tx,
        parent: Option<&Arc<DslDir>>,
        name: &str,
    ) -> Result<Arc<DslDir>> {
        let spec = NewObject::new(DMU_OT_DSL_DIR, 512).bonus(DMU_OT_DSL_DIR, DslDirPhys::SIZE);
        let dn = resident(|| self.mos().alloc(tx, spec)).await?;
        let id = dn.id().0;
        match parent {
            Some(p) => {
                Zap::open(self.mos(), p.phys().child_dir_zapobj).await?.insert_u64(tx, name, id).await?;
                self.count_adjust(tx, p, 1, DD_FIELD_FILESYSTEM_COUNT).await?;
            }
            None => self.directory().await?.insert_u64(tx, DMU_POOL_ROOT_DATASET, id).await?,
        }
        let phys = DslDirPhys {
            creation_time: self.ctx.env.wall().as_secs(),
            parent_obj: parent.map_or(0, |p| p.id),
            props_zapobj: self.new_zap(tx, DMU_OT_DSL_PROPS).await?,
            child_dir_zapobj: self.new_zap(tx, DMU_OT_DSL_DIR_CHILD_MAP).await?,
            flags: if self.ctx.version() >= SPA_VERSION_USED_BREAKDOWN { DD_FLAG_USED_BREAKDOWN } else { 0 },
            ..DslDirPhys::default()
        };
        dn.set_bonus(tx, &phys.encode());
        Ok(self.insert_dir(DslDir::new(dn, phys, parent.cloned(), name.to_owned(), 0)))
    }

    async fn new_dataset_object(&self, tx: &Tx) -> Result<Arc<crate::dmu::Dnode>> {
        let spec = NewObject::new(DMU_OT_DSL_DATASET, 512).bonus(DMU_OT_DSL_DATASET, DslDatasetPhys::SIZE);
        resident(|| self.mos().alloc(tx, spec)).await
    }

    /// A new dataset object and what all of them begin with.
    pub(super) async fn new_dataset(
        &self,
        tx: &Tx,
        dir: &DslDir,
    ) -> Result<(Arc<crate::dmu::Dnode>, DslDatasetPhys)> {
        let dn = self.new_dataset_object(tx).await?;
        let phys = DslDatasetPhys {
            dir_obj: dir.id,
            fsid_guid: self.random() & FSID_MASK,
            guid: self.random(),
            ..DslDatasetPhys::default()
        };
        Ok((dn, phys))
    }

    /// The head dataset of a dir that has none: empty, or with the contents of snapshot `origin`.
    pub(super) async fn create_dataset_dd(
        &self,
        tx: &Tx,
        dir: &Arc<DslDir>,
        origin: Option<&Arc<DslDataset>>,
        flags: u64,
    ) -> Result<Arc<DslDataset>> {
        let (dn, mut p) = self.new_dataset(tx, dir).await?;
        let id = dn.id().0;
        let opts = CreateOpts { normflags: U8_TEXTPREP_TOUPPER, ..CreateOpts::default() };
        p.snapnames_zapobj = Zap::make(self.mos(), tx, DMU_OT_DSL_DS_SNAP_MAP, &opts).await?.id();
        p.creation_time = self.ctx.env.wall().as_secs();
        p.creation_txg = DslPool::creation_txg(tx);
        p.flags = flags | self.unique_accurate();
        let origin = match (origin, self.origin_snap()) {
            (Some(o), _) => Some(o.clone()),
            (None, 0) => None,
            (None, id) => Some(self.dataset(id).await?),
        };
        match &origin {
            None => p.deadlist_obj = self.deadlist_alloc(tx).await?,
            Some(o) => self.attach_to_origin(tx, o, dir, id, &mut p).await?,
        }
        dn.set_bonus(tx, &p.encode());
        let ds = self.insert_dataset(dn, p, dir.clone());
        if let Some(o) = &origin {
            self.copy_features(tx, o, &ds).await?;
        }
        dir.change(tx, |d| d.head_dataset_obj = id);
        Ok(ds)
    }

    async fn attach_to_origin(
        &self,
        tx: &Tx,
        o: &Arc<DslDataset>,
        dir: &Arc<DslDir>,
        id: u64,
        p: &mut DslDatasetPhys,
    ) -> Result<()> {
        let op = o.phys();
        p.prev_snap_obj = o.id;
        p.prev_snap_txg = op.creation_txg;
        p.referenced_bytes = op.referenced_bytes;
        p.compressed_bytes = op.compressed_bytes;
        p.uncompressed_bytes = op.uncompressed_bytes;
        p.bp = op.bp;
        p.flags |= op.flags & (DS_FLAG_INCONSISTENT | DS_FLAG_CI_DATASET);
        let origin_dir = o.dir();
        let head = self.head(&origin_dir).await?;
        let dl = self.deadlist_open(head.phys().deadlist_obj).await?;
        p.deadlist_obj = self.deadlist_clone(tx, &dl, p.prev_snap_txg, p.prev_snap_obj).await?;
        o.change(tx, |op| op.num_children = op.num_children.saturating_add(1));
        if self.ctx.version() >= SPA_VERSION_ORIGIN {
            self.add_next_clone(tx, o, id).await?;
        }
        dir.change(tx, |d| d.origin_obj = o.id);
        dir.origin_txg.store(op.creation_txg, Ordering::Relaxed);
        if self.ctx.version() >= SPA_VERSION_DEADLISTS {
            self.add_dir_clone(tx, &origin_dir, id).await?;
        }
        Ok(())
    }

    /// Notes at a snapshot that a dataset's history goes on from it.
    pub(super) async fn add_next_clone(&self, tx: &Tx, snap: &DslDataset, next: u64) -> Result<()> {
        let mut clones = snap.phys().next_clones_obj;
        if clones == 0 {
            clones = self.new_zap(tx, DMU_OT_NEXT_CLONES).await?;
            snap.change(tx, |p| p.next_clones_obj = clones);
        }
        Zap::open(self.mos(), clones).await?.add_int(tx, next).await
    }

    /// Notes at a dir that a head is a clone of one of its snapshots.
    pub(super) async fn add_dir_clone(&self, tx: &Tx, dir: &DslDir, head: u64) -> Result<()> {
        let mut clones = dir.phys().clones;
        if clones == 0 {
            clones = self.new_zap(tx, DMU_OT_DSL_CLONES).await?;
            dir.change(tx, |d| d.clones = clones);
        }
        Zap::open(self.mos(), clones).await?.add_int(tx, head).await
    }

    /// The flag of datasets whose unique bytes are counted right from the beginning.
    pub(super) fn unique_accurate(&self) -> u64 {
        if self.ctx.version() >= SPA_VERSION_UNIQUE_ACCURATE { DS_FLAG_UNIQUE_ACCURATE } else { 0 }
    }

    /// Counts a feature that a dataset's contents need.
    pub(super) async fn activate_feature(&self, tx: &Tx, ds: &DslDataset, name: &'static str) -> Result<()> {
        if ds.feature_is_active(name) {
            return Ok(());
        }
        let Some(f) = feature::by_name(name) else { return Err(Error::inval(format!("no feature {name}"))) };
        self.feature_incr(tx, name).await?;
        self.zapify(tx, &ds.dn).await?.insert_u64(tx, f.guid, 0).await?;
        ds.features.lock().insert(f.name);
        Ok(())
    }

    pub(super) async fn deactivate_feature(
        &self,
        tx: &Tx,
        ds: &DslDataset,
        name: &'static str,
    ) -> Result<()> {
        let (Some(f), Some(zap)) = (feature::by_name(name), ds.zap()) else { return Ok(()) };
        zap.delete(tx, f.guid).await?;
        ds.features.lock().remove(name);
        if name == super::redact::REDACTED {
            *ds.redacted.lock() = None;
        }
        self.feature_decr(tx, name).await
    }

    /// What must hold for a dataset of this name to be made.
    #[crate::boxed]
    pub async fn create_check(&self, name: &str) -> Result<Arc<DslDir>> {
        name::check(name)?;
        if name.contains('@') {
            return Err(Error::inval("snapshot delimiter '@' is not expected here"));
        }
        let Some((up, last)) = name::parent(name) else {
            return Err(Error::os(Errno::Exist, "dataset already exists"));
        };
        let parent = self.dir_by_name(up).await.map_err(|e| match e.is(Errno::NoEnt) {
            true => Refusal::NoParent.into(),
            false => e,
        })?;
        let children = Zap::open(self.mos(), parent.phys().child_dir_zapobj).await?;
        if children.try_get_u64(last).await?.is_some() {
            return Err(Error::os(Errno::Exist, "dataset already exists"));
        }
        if name::depth(name) > tunables::MAX_DATASET_NESTING.get() {
            return Err(Error::os(Errno::NameTooLong, "name is nested too deep"));
        }
        let up = self.head(&parent).await?;
        if self.os_type(&up).await? == ObjsetType::Zvol.number() {
            return Err(Refusal::ParentNotFilesystem.into());
        }
        Ok(parent)
    }

    /// Makes a file system or volume. Its objset is empty; the caller fills it in the same txg.
    #[crate::boxed]
    pub async fn create_fs(
        &self,
        tx: &Tx,
        name: &str,
        os_type: ObjsetType,
        flags: u64,
    ) -> Result<Arc<DslDataset>> {
        self.create_fs_with(tx, name, os_type, flags, &NewCrypt::default()).await
    }

    /// The same, encrypted as is said; by default as the parent is.
    #[crate::boxed]
    pub async fn create_fs_with(
        &self,
        tx: &Tx,
        name: &str,
        os_type: ObjsetType,
        flags: u64,
        crypt: &NewCrypt,
    ) -> Result<Arc<DslDataset>> {
        let parent = self.create_check(name).await?;
        let crypting = self.new_crypt_check(Some(&parent), crypt).await?;
        self.check_space(SpaceCheck::Normal)?;
        self.read_for_new(&parent, None).await?;
        self.read_for_creator(&parent).await?;
        let last = name::parent(name).map_or(name, |p| p.1);
        let ds = self.create_dataset_sync(tx, &parent, last, None, flags).await?;
        if let Some(crypting) = crypting {
            self.create_key(tx, &ds.dir(), &ds, crypting, crypt).await?;
        }
        self.new_objset(tx, &ds, os_type).await?;
        self.note(tx, &ds, "create", " ");
        Ok(ds)
    }

    pub(super) async fn create_dataset_sync(
        &self,
        tx: &Tx,
        parent: &Arc<DslDir>,
        last: &str,
        origin: Option<&Arc<DslDataset>>,
        flags: u64,
    ) -> Result<Arc<DslDataset>> {
        let dir = self.create_dir(tx, Some(parent), last).await?;
        let ds = self.create_dataset_dd(tx, &dir, origin, flags).await?;
        if let Some(origin) = origin {
            self.clone_key(tx, &dir, &origin.dir()).await?;
        }
        if self.feature_active("filesystem_limits") {
            let zap = self.zapify(tx, &dir.dn).await?;
            zap.insert_u64(tx, DD_FIELD_FILESYSTEM_COUNT, 0).await?;
            zap.insert_u64(tx, DD_FIELD_SNAPSHOT_COUNT, 0).await?;
        }
        Ok(ds)
    }

    /// The empty objset of a new dataset.
    #[crate::boxed]
    pub async fn new_objset(
        &self,
        tx: &Tx,
        ds: &Arc<DslDataset>,
        os_type: ObjsetType,
    ) -> Result<Arc<Objset>> {
        debug_assert!(ds.phys().bp.is_hole(), "the dataset has an objset");
        let props = self.write_props(ds).await?;
        let store = self.store_of(ds, self.is_encrypted(&ds.dir()).await?).await?;
        let os = Objset::create(ds.id, os_type.number(), store, self.ctx.cache.clone(), props);
        super::size_for(&os, self.ctx.version());
        if os_type == ObjsetType::Zfs && self.ctx.version() >= SPA_VERSION_USERSPACE {
            let mut flags = OBJSET_FLAG_USERACCOUNTING_COMPLETE;
            for (feature, flag) in [
                ("userobj_accounting", OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE),
                ("project_quota", OBJSET_FLAG_PROJECTQUOTA_COMPLETE),
            ] {
                if self.feature_enabled(feature) {
                    self.activate_feature(tx, ds, feature).await?;
                    flags |= flag;
                }
            }
            os.with_phys(|p| p.flags |= flags);
            os.set_owner_fn(crate::zpl::owner_of);
        }
        ds.set_objset(os.clone());
        // Even an empty objset has a root.
        ds.rewrite_root.store(true, Ordering::Relaxed);
        Ok(os)
    }

    /// The objset of a dataset, opened if need be.
    #[crate::boxed]
    pub async fn objset(&self, ds: &Arc<DslDataset>) -> Result<Arc<Objset>> {
        loop {
            let turn = match ds.objset_or_turn() {
                Ok(os) => return Ok(os),
                Err(turn) => turn,
            };
            let bp = self.root_pointer(ds).await?;
            let props = self.write_props(ds).await?;
            let store = self.store_of(ds, bp.uses_crypt()).await?;
            let os = Objset::open(ds.id, &bp, store, self.ctx.cache.clone(), props).await?;
            let counted = os.phys().flags & OBJSET_FLAG_USERACCOUNTING_COMPLETE != 0;
            if !ds.is_snapshot() && os.os_type() == ObjsetType::Zfs.number() && counted {
                os.set_owner_fn(crate::zpl::owner_of);
            }
            // Its key may have been unloaded meanwhile, or it has other contents.
            if let Some(os) = ds.share_objset(turn, &bp, os) {
                return Ok(os);
            }
        }
    }

    /// Where a dataset's contents begin. An encrypted one's are sealed: a root that is not, which
    /// only somebody else can have put there, would be believed without its code, and what is
    /// written after it would not be encrypted.
    async fn root_pointer(&self, ds: &DslDataset) -> Result<BlkPtr> {
        let bp = ds.phys().bp;
        if bp.is_hole() {
            return Err(Error::inval(format!("{} has no contents", ds.name())));
        }
        if !bp.uses_crypt() && self.is_encrypted(&ds.dir()).await? {
            let what = format!("{} is encrypted, and its root is not", ds.name());
            return Err(Error::corrupt(Some(Bookmark::root(ds.id)), "", what));
        }
        Ok(bp)
    }

    /// A dataset's contents as whoever has no key sees them: they are read only to be sent on as
    /// they are.
    pub(crate) async fn sealed_objset(&self, ds: &DslDataset) -> Result<Arc<Objset>> {
        let bp = self.root_pointer(ds).await?;
        let props = self.write_props(ds).await?;
        let store = SealedStore::new(self.ctx.store.clone());
        Objset::open(ds.id, &bp, store, self.ctx.cache.clone(), props).await
    }

    /// The intent log of a head that is to be written to.
    #[crate::boxed]
    pub async fn open_log(&self, ds: &Arc<DslDataset>) -> Result<Arc<crate::zil::Zilog>> {
        let os = self.objset(ds).await?;
        // Others may have the blocks of a log that was not claimed.
        if ds.log_freed.load(Ordering::Relaxed) && !os.phys().zil_header.log.is_hole() {
            let what = "its intent log could not be read when the pool was imported";
            let what = format!("{}: {what}; export the pool and import it again", ds.name());
            return Err(Error::os(Errno::Io, what));
        }
        Ok(os.log_or(|| crate::zil::Zilog::new(&self.ctx, ds, os.store().clone())))
    }

    /// The objset's own header changed (its intent log's, say): the root is written in the next txg
    /// though no object changed.
    pub fn rewrite_root(&self, ds: &DslDataset) {
        ds.rewrite_root.store(true, Ordering::Relaxed);
    }

    /// Makes a clone of a snapshot.
    #[crate::boxed]
    pub async fn clone_ds(&self, tx: &Tx, name: &str, origin: &str) -> Result<Arc<DslDataset>> {
        let parent = self.create_check(name).await?;
        let o = self.by_name(origin).await?;
        if !o.is_snapshot() {
            return Err(Error::inval("the origin of a clone must be a snapshot"));
        }
        // Its root would be written again in its place, with another log.
        if o.phys().creation_txg >= tx.txg().0 {
            return Err(Error::os(Errno::Again, format!("{origin}: the snapshot is of this txg")));
        }
        if !self.key_loaded(&o.dir()).await? {
            return Err(Error::os(Errno::Access, format!("the key of {origin} is not loaded")));
        }
        self.check_space(SpaceCheck::Normal)?;
        self.read_for_new(&parent, Some(&o)).await?;
        self.read_for_creator(&parent).await?;
        // The clone's root is the snapshot's, and is read for its log's header.
        self.objset(&o).await?;
        let last = name::parent(name).map_or(name, |p| p.1);
        let ds = self.create_dataset_sync(tx, &parent, last, Some(&o), 0).await?;
        self.livelist_begin(tx, &ds.dir()).await?;
        self.zero_zil(&ds).await?;
        self.note(tx, &ds, "clone", &format!("origin={origin} ({})", o.id));
        Ok(ds)
    }

    /// A clone or a rolled back head begins without the intent log of the snapshot.
    pub(super) async fn zero_zil(&self, ds: &Arc<DslDataset>) -> Result<()> {
        let os = self.objset(ds).await?;
        if os.phys().zil_header != Default::default() {
            os.with_phys(|p| p.zil_header = Default::default());
            ds.rewrite_root.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
