//! An objset in memory: its objects by number, and the allocation of new ones.
//!
//! Numbers are handed out in ascending order from a cursor, which goes back to the lowest number
//! freed by each sync. A number is free when its slot on disk is free *and* no object of that
//! number is in memory: an object freed in a txg that is not synced stays in the table until its
//! slot is free on disk, so a number never means two objects at once.

use super::cache::DbufCache;
use super::counts::ObjsetStats;
use super::dnode::{Dnode, Shared, max_bonus};
use super::fault::{Need, Now, Stop};
use super::objects::Table;
use super::slots::{Slot, decode_slot, free_run, taken_slots, used_slots};
pub use super::write_props::WriteProps;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId, Txg};
use crate::zio::{BlockStore, Priority};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::{
    DN_MAX_INDBLKSHIFT, DN_MAX_OBJECT, DNODE_BLOCK_SIZE, DNODE_SHIFT, DNODES_PER_BLOCK, DnodePhys,
};
use zilla_ondisk::objset::{ObjsetPhys, ObjsetSize};
use zilla_ondisk::{ByteOrder, object_type};

/// Whom an object's space is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub uid: u64,
    pub gid: u64,
    pub projid: Option<u64>,
}

/// Reads an object's owner from its bonus type and bonus; None for objects that are nobody's.
pub type OwnerFn = fn(u8, &[u8]) -> Option<Owner>;

/// What a new object is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewObject {
    pub otype: u8,
    pub blksz: u32,
    pub indblkshift: u8,
    pub bonustype: u8,
    pub bonuslen: usize,
    /// Dnode size in bytes, 512 to 16384.
    pub dnodesize: usize,
    /// Block pointers in the dnode; 0 is as many as have room.
    pub nblkptr: u8,
}

impl NewObject {
    pub fn new(otype: u8, blksz: u32) -> NewObject {
        NewObject {
            otype,
            blksz,
            indblkshift: DN_MAX_INDBLKSHIFT,
            bonustype: 0,
            bonuslen: 0,
            dnodesize: 512,
            nblkptr: 0,
        }
    }
    pub fn bonus(self, bonustype: u8, bonuslen: usize) -> NewObject {
        NewObject { bonustype, bonuslen, ..self }
    }
}

/// The dnode of the dnodes, as the sender of a raw stream has it and vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaShape {
    pub nlevels: u8,
    pub indblkshift: u8,
    pub nblkptr: u8,
    pub checksum: u8,
    pub compress: u8,
    pub maxblkid: u64,
}

impl MetaShape {
    /// Whether what cannot be changed of a dnode is the same.
    pub fn has_shape_of(&self, dn: &DnodePhys) -> bool {
        (dn.nlevels, dn.indblkshift, dn.nblkptr) == (self.nlevels, self.indblkshift, self.nblkptr)
    }

    /// Whether the tree is deep enough for a block.
    pub fn reaches(&self, blkid: u64) -> bool {
        super::tree::levels_for(blkid, self.nblkptr, self.indblkshift) <= self.nlevels
    }
}

pub struct Objset {
    pub(crate) shared: Arc<Shared>,
    pub(crate) meta: Arc<Dnode>,
    /// User, group and project accounting objects, where the objset has them.
    pub(crate) special: Mutex<[Option<Arc<Dnode>>; 3]>,
    dnodes: Mutex<HashMap<ObjectId, Arc<Dnode>>>,
    /// Where to look for a free number next.
    cursor: AtomicU64,
    pub(crate) phys: Mutex<ObjsetPhys>,
    props: RwLock<WriteProps>,
    pub(crate) owner: Mutex<Option<OwnerFn>>,
    encrypted: std::sync::atomic::AtomicBool,
    /// What is said to be the last block of dnodes, where a raw stream says it.
    pub(crate) last_dnode_block: Mutex<Option<u64>>,
    /// The intent log, once the objset is used for writing.
    log: OnceLock<Arc<crate::zil::Zilog>>,
    /// What was done through it.
    pub stats: ObjsetStats,
}

/// No operation on datasets makes more objects at once, but for one on many.
const MADE_AT_ONCE: usize = 32;

const SPECIAL: [ObjectId; 3] = [ObjectId::USERUSED, ObjectId::GROUPUSED, ObjectId::PROJECTUSED];

impl Drop for Objset {
    /// What is dirty and will not be synced any more (the pool lost its disks) holds the dnodes,
    /// and those the list they are on.
    fn drop(&mut self) {
        self.shared.dirty.iter().for_each(|d| d.lock().clear());
        self.shared.held.clear();
    }
}

impl Objset {
    fn build(
        id: u64,
        store: Arc<dyn BlockStore>,
        cache: Arc<DbufCache>,
        phys: ObjsetPhys,
        props: WriteProps,
    ) -> Arc<Objset> {
        let encrypted = store.has_key();
        let (dirty, ahead, held) = Default::default();
        let (copies, metadata_copies) = (props.copies.into(), props.metadata_copies.into());
        let large_microzap = props.large_microzap.into();
        let changes = AtomicU64::new(0);
        let shared = Arc::new(Shared {
            objset: id,
            store,
            cache,
            dirty,
            ahead,
            held,
            copies,
            metadata_copies,
            large_microzap,
            changes,
            prefetch: (props.prefetch as u8).into(),
        });
        let meta = Dnode::new(ObjectId::META_DNODE, shared.clone(), phys.meta_dnode.clone());
        let [user, group, project] = SPECIAL;
        let special = [
            (user, &phys.userused_dnode),
            (group, &phys.groupused_dnode),
            (project, &phys.projectused_dnode),
        ];
        let special =
            special.map(|(id, dn)| (dn.otype != 0).then(|| Dnode::new(id, shared.clone(), dn.clone())));
        let os = Arc::new(Objset {
            shared,
            meta,
            special: Mutex::new(special),
            dnodes: Mutex::default(),
            cursor: AtomicU64::new(1),
            phys: Mutex::new(phys),
            props: RwLock::new(props),
            owner: Mutex::new(None),
            encrypted: encrypted.into(),
            last_dnode_block: Mutex::new(None),
            log: OnceLock::new(),
            stats: ObjsetStats::default(),
        });
        let table: Arc<dyn Table> = os.clone();
        os.shared.cache.objects.register(Arc::downgrade(&table));
        os
    }

    /// An empty objset; it comes to be on disk with the first sync.
    pub fn create(
        id: u64,
        os_type: u64,
        store: Arc<dyn BlockStore>,
        cache: Arc<DbufCache>,
        props: WriteProps,
    ) -> Arc<Objset> {
        let mut phys = ObjsetPhys::new(ObjsetSize::V3, os_type);
        phys.meta_dnode = DnodePhys {
            otype: object_type::DMU_OT_DNODE,
            indblkshift: DN_MAX_INDBLKSHIFT,
            // The MOS is synced several times a txg and only by the sync task: its tree grows as it
            // needs.
            nlevels: if id == 0 { 1 } else { meta_levels() },
            nblkptr: 3,
            datablkszsec: (DNODE_BLOCK_SIZE >> 9) as u16,
            flags: zilla_ondisk::dnode::DNODE_FLAG_USED_BYTES,
            blkptr: smallvec::smallvec![BlkPtr::ZERO; 3],
            ..DnodePhys::default()
        };
        Objset::build(id, store, cache, phys, props)
    }

    /// As [`Objset::create`], with the dnode of the dnodes as its sender has it.
    pub(crate) fn create_as(
        id: u64,
        os_type: u64,
        store: Arc<dyn BlockStore>,
        cache: Arc<DbufCache>,
        props: WriteProps,
        shape: MetaShape,
    ) -> Arc<Objset> {
        let mut phys = ObjsetPhys::new(ObjsetSize::V3, os_type);
        phys.meta_dnode = DnodePhys {
            otype: object_type::DMU_OT_DNODE,
            indblkshift: shape.indblkshift,
            nlevels: shape.nlevels,
            nblkptr: shape.nblkptr,
            datablkszsec: (DNODE_BLOCK_SIZE >> 9) as u16,
            flags: zilla_ondisk::dnode::DNODE_FLAG_USED_BYTES,
            blkptr: smallvec::smallvec![BlkPtr::ZERO; usize::from(shape.nblkptr)],
            ..DnodePhys::default()
        };
        let os = Objset::build(id, store, cache, phys, props);
        os.encrypted.store(true, Ordering::Relaxed);
        os
    }

    /// Gives the dnode of the dnodes what else a raw stream says of it.
    pub(crate) fn set_meta(&self, shape: MetaShape) {
        *self.last_dnode_block.lock() = Some(shape.maxblkid);
        let mut inner = self.meta.inner.lock();
        inner.phys.checksum = shape.checksum;
        inner.phys.compress = shape.compress;
        inner.phys.maxblkid = shape.maxblkid;
        inner.head.maxblkid = shape.maxblkid;
    }

    /// Opens the objset whose root block `bp` points to.
    pub async fn open(
        id: u64,
        bp: &BlkPtr,
        store: Arc<dyn BlockStore>,
        cache: Arc<DbufCache>,
        props: WriteProps,
    ) -> Result<Arc<Objset>> {
        let bookmark = Bookmark::root(id);
        let data = store.read(*bp, bookmark, Priority::SyncRead).await?;
        let phys = ObjsetPhys::decode(&data, ByteOrder::NATIVE)
            .map_err(|e| Error::corrupt(Some(bookmark), "", e.to_string()))?;
        if phys.meta_dnode.otype != object_type::DMU_OT_DNODE
            || phys.meta_dnode.datablkszsec as usize != DNODE_BLOCK_SIZE >> 9
        {
            return Err(Error::corrupt(Some(bookmark), "", "the meta-dnode is not one"));
        }
        let os = Objset::build(id, store, cache, phys, props);
        os.encrypted.store(bp.uses_crypt(), Ordering::Relaxed);
        Ok(os)
    }

    /// The dataset's object number in the MOS; 0 is the MOS itself.
    pub fn id(&self) -> u64 {
        self.shared.objset
    }
    /// Its objects' contents are encrypted on disk.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted.load(Ordering::Relaxed)
    }
    /// Its objects' contents cannot be understood: it was opened without its key.
    pub fn is_locked(&self) -> bool {
        self.is_encrypted() && !self.shared.store.has_key()
    }
    pub fn os_type(&self) -> u64 {
        self.phys.lock().os_type
    }
    pub fn phys(&self) -> ObjsetPhys {
        self.phys.lock().clone()
    }
    pub(crate) fn cache(&self) -> &Arc<DbufCache> {
        &self.shared.cache
    }
    pub fn store(&self) -> &Arc<dyn BlockStore> {
        &self.shared.store
    }
    pub fn props(&self) -> WriteProps {
        *self.props.read()
    }
    pub fn set_props(&self, props: WriteProps) {
        self.shared.copies.store(props.copies, Ordering::Relaxed);
        self.shared.metadata_copies.store(props.metadata_copies, Ordering::Relaxed);
        self.shared.large_microzap.store(props.large_microzap, Ordering::Relaxed);
        self.shared.prefetch.store(props.prefetch as u8, Ordering::Relaxed);
        *self.props.write() = props;
    }
    /// From now on, syncs report whose space changes (see [`super::ObjsetSync::usage`]).
    pub fn set_owner_fn(&self, f: OwnerFn) {
        *self.owner.lock() = Some(f);
    }

    /// Changes the objset's flags or intent log header; they reach the disk with the next sync that
    /// writes anything.
    pub fn with_phys<R>(&self, f: impl FnOnce(&mut ObjsetPhys) -> R) -> R {
        f(&mut self.phys.lock())
    }

    /// The intent log, if the objset has been opened for writing.
    pub fn log(&self) -> Option<&Arc<crate::zil::Zilog>> {
        self.log.get()
    }

    pub(crate) fn log_or(&self, make: impl FnOnce() -> Arc<crate::zil::Zilog>) -> Arc<crate::zil::Zilog> {
        self.log.get_or_init(make).clone()
    }

    /// An accounting object (user, group, project).
    pub fn special(&self, id: ObjectId) -> Option<Arc<Dnode>> {
        let i = SPECIAL.iter().position(|s| *s == id)?;
        self.special.lock().get(i).cloned().flatten()
    }

    /// Makes the accounting objects, as ZAPs yet to be initialised by the caller.
    pub fn create_special(self: &Arc<Self>, tx: &Tx, id: ObjectId, spec: NewObject) -> Option<Arc<Dnode>> {
        let i = SPECIAL.iter().position(|s| *s == id)?;
        let dn = self.new_dnode(tx, id, spec);
        if let Some(place) = self.special.lock().get_mut(i) {
            *place = Some(dn.clone());
        }
        Some(dn)
    }

    /// Whether `txg` changed anything here.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        !self.shared.dirty[txg].lock().is_empty()
    }

    /// The object of this number.
    pub fn hold(self: &Arc<Self>, id: ObjectId) -> Now<Arc<Dnode>> {
        if let Some(dn) = self.dnodes.lock().get(&id) {
            return self.unless_freed(dn);
        }
        if let Some(dn) = self.special(id) {
            return Ok(dn);
        }
        if id.0 == 0 || id.0 >= DN_MAX_OBJECT {
            return Err(self.no_object(id));
        }
        let (blkid, at) = (id.0 / DNODES_PER_BLOCK, (id.0 % DNODES_PER_BLOCK) as usize);
        let sealed = self.shared.store.raw().is_some();
        // It looks through all tables.
        self.shared.cache.objects.make_room();
        // What the block says of an object holds while the object is not in the table: it must be
        // read and put there in one step.
        let mut table = self.dnodes.lock();
        if let Some(dn) = table.get(&id) {
            return self.unless_freed(dn);
        }
        let phys = match self.meta.with_block(blkid, |b| decode_slot(b, at, sealed)) {
            Ok(found) => found,
            Err(Stop::Need(_)) => return Err(Stop::Need(Need::Object { objset: self.clone(), id })),
            Err(e) => return Err(e),
        };
        match phys {
            Ok(Some(phys)) => {
                let dn = Dnode::new(id, self.shared.clone(), phys);
                table.insert(id, dn.clone());
                Ok(dn)
            }
            Ok(None) => Err(self.no_object(id)),
            Err(what) => {
                let b = Bookmark::new(self.id(), ObjectId::META_DNODE, 0, blkid);
                Err(Error::corrupt(Some(b), "", format!("object {id}: {what}")).into())
            }
        }
    }

    /// Has objects leave memory that nobody uses, if they take too much of it.
    pub(crate) fn make_room(&self) {
        self.shared.cache.objects.make_room();
    }

    fn unless_freed(&self, dn: &Arc<Dnode>) -> Now<Arc<Dnode>> {
        if dn.is_freed() { Err(self.no_object(dn.id())) } else { Ok(dn.clone()) }
    }

    /// The object of this number, if it is in memory.
    pub(crate) fn in_memory(&self, id: ObjectId) -> Option<Arc<Dnode>> {
        self.dnodes.lock().get(&id).cloned()
    }

    /// Whether one of its blocks is the one that `bp` leads to, as of the last sync; false where
    /// that is not in memory.
    pub(crate) fn points_to(&self, at: Bookmark, bp: &BlkPtr) -> bool {
        let Ok(level) = u8::try_from(at.level) else { return false };
        let id = ObjectId(at.object);
        let dn = if id == ObjectId::META_DNODE {
            Some(self.meta.clone())
        } else {
            self.special(id).or_else(|| self.in_memory(id))
        };
        dn.is_some_and(|dn| dn.points_to(level, at.blkid, bp))
    }

    fn no_object(&self, id: ObjectId) -> Stop {
        Stop::Err(Error::no_ent(format!("objset {} has no object {id}", self.id())))
    }

    /// Brings the dnode block of an object into memory.
    pub(crate) async fn load(self: &Arc<Self>, id: ObjectId) -> Result<()> {
        self.meta.load(0, id.0 / DNODES_PER_BLOCK).await
    }

    /// The object of this number, waiting for the disk where need be.
    pub async fn hold_wait(self: &Arc<Self>, id: ObjectId) -> Result<Arc<Dnode>> {
        super::resident(|| self.hold(id)).await
    }

    fn new_dnode(self: &Arc<Self>, tx: &Tx, id: ObjectId, spec: NewObject) -> Arc<Dnode> {
        let slots = (spec.dnodesize >> DNODE_SHIFT).clamp(1, 32) as u8;
        let nblkptr = match spec.nblkptr {
            0 => nblkptr_for(slots, spec.bonustype, spec.bonuslen),
            n => n,
        };
        let dn = Dnode::new(id, self.shared.clone(), DnodePhys::default());
        {
            let mut inner = dn.dirty(tx);
            inner.head.otype = spec.otype;
            inner.head.bonustype = spec.bonustype;
            inner.head.blksz = spec.blksz.max(512).next_multiple_of(512);
            inner.head.indblkshift =
                if spec.indblkshift == 0 { DN_MAX_INDBLKSHIFT } else { spec.indblkshift };
            inner.head.nblkptr = nblkptr;
            inner.head.slots = slots;
            inner.head.maxblkid = 0;
            inner.bonus = vec![0; spec.bonuslen].into();
            let (head, bonus) = (inner.head, inner.bonus.clone());
            let p = &mut inner.pending[tx.txg()];
            p.head = Some(head);
            p.bonus = Some(bonus);
        }
        dn
    }

    /// Makes an object with the next free number.
    pub fn alloc(self: &Arc<Self>, tx: &Tx, spec: NewObject) -> Now<Arc<Dnode>> {
        let slots = (spec.dnodesize >> DNODE_SHIFT).clamp(1, 32) as u64;
        self.shared.cache.objects.make_room();
        loop {
            let from = self.cursor.load(Ordering::Relaxed);
            if from >= DN_MAX_OBJECT {
                return Err(Error::os(Errno::NoSpc, "the objset is full").into());
            }
            let blkid = from / DNODES_PER_BLOCK;
            let block_end = (blkid + 1) * DNODES_PER_BLOCK;
            if self.block_is_full(blkid, from)? {
                self.move_cursor(from, block_end);
                continue;
            }
            // As in `hold`: the table first, so that nothing gets into the block and out of the
            // table in between.
            let mut table = self.dnodes.lock();
            let used = match self.meta.with_block(blkid, used_slots) {
                Ok(used) => used,
                Err(Stop::Need(_)) => {
                    return Err(Stop::Need(Need::Object { objset: self.clone(), id: ObjectId(from) }));
                }
                Err(e) => return Err(e),
            };
            let Some(id) = free_run(used, &table, blkid * DNODES_PER_BLOCK, from, slots) else {
                drop(table);
                self.move_cursor(from, block_end);
                continue;
            };
            let dn = self.new_dnode(tx, ObjectId(id), spec);
            table.insert(ObjectId(id), dn.clone());
            drop(table);
            self.cursor.fetch_max(id + slots, Ordering::Relaxed);
            return Ok(dn);
        }
    }

    /// Brings into memory what [`Objset::alloc`] looks at for as many small objects as one
    /// operation makes.
    pub(crate) async fn read_free_slots(self: &Arc<Self>) -> Result<()> {
        let (mut from, mut free) = (self.cursor.load(Ordering::Relaxed), 0);
        while free < MADE_AT_ONCE && from < DN_MAX_OBJECT {
            free += super::resident(|| self.free_slots(from)).await?;
            from = (from / DNODES_PER_BLOCK + 1) * DNODES_PER_BLOCK;
        }
        Ok(())
    }

    /// How many slots of a block are free from an object on.
    fn free_slots(self: &Arc<Self>, from: u64) -> Now<usize> {
        let blkid = from / DNODES_PER_BLOCK;
        if self.block_is_full(blkid, from)? {
            return Ok(0);
        }
        let table = self.dnodes.lock();
        match self.meta.with_block(blkid, used_slots) {
            Ok(used) => {
                let taken = taken_slots(used, &table, blkid * DNODES_PER_BLOCK);
                Ok(taken.iter().skip((from % DNODES_PER_BLOCK) as usize).filter(|t| !**t).count())
            }
            Err(Stop::Need(_)) => Err(Stop::Need(Need::Object { objset: self.clone(), id: ObjectId(from) })),
            Err(e) => Err(e),
        }
    }

    /// How often the sync task has changed an object so far.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    fn move_cursor(&self, from: u64, to: u64) {
        let _ = self.cursor.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether the pointer to a dnode block says that all its dnodes are in use, so that it need
    /// not be read.
    fn block_is_full(&self, blkid: u64, from: u64) -> Now<bool> {
        // Only worth asking on entering a block.
        if !from.is_multiple_of(DNODES_PER_BLOCK) {
            return Ok(false);
        }
        match self.meta.block_pointer(blkid) {
            Ok(Some(bp)) => Ok(!bp.is_hole() && bp.fill() >= DNODES_PER_BLOCK),
            Ok(None) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes an object of a given number.
    pub fn claim(self: &Arc<Self>, tx: &Tx, id: ObjectId, spec: NewObject) -> Now<Arc<Dnode>> {
        match self.hold(id) {
            Ok(_) => return Err(Error::os(Errno::Exist, format!("object {id} exists")).into()),
            Err(Stop::Err(e)) if e.is(Errno::NoEnt) => {}
            Err(e) => return Err(e),
        }
        let slots = (spec.dnodesize >> DNODE_SHIFT).clamp(1, 32) as u64;
        let (blkid, at) = (id.0 / DNODES_PER_BLOCK, id.0 % DNODES_PER_BLOCK);
        if id.0 == 0 || id.0 >= DN_MAX_OBJECT || at + slots > DNODES_PER_BLOCK {
            return Err(Error::inval(format!("there can be no object {id} of {slots} slots")).into());
        }
        let mut table = self.dnodes.lock();
        let used = match self.meta.with_block(blkid, used_slots) {
            Ok(used) => used,
            Err(Stop::Need(_)) => return Err(Stop::Need(Need::Object { objset: self.clone(), id })),
            Err(e) => return Err(e),
        };
        if table.contains_key(&id) {
            return Err(Error::os(Errno::Busy, format!("object {id} is being freed")).into());
        }
        if free_run(used, &table, blkid * DNODES_PER_BLOCK, id.0, slots) != Some(id.0) {
            return Err(Error::os(Errno::Busy, format!("object {id} would lie over another")).into());
        }
        let dn = self.new_dnode(tx, id, spec);
        table.insert(id, dn.clone());
        Ok(dn)
    }

    /// Frees an object and all its blocks.
    pub fn free(&self, tx: &Tx, dn: &Arc<Dnode>) {
        dn.free_object(tx);
    }

    /// The lowest number of an object after `id` (as of the last synced txg, and those in memory).
    pub fn next_object(self: &Arc<Self>, id: ObjectId) -> Now<Option<ObjectId>> {
        let mut at = id.0 + 1;
        let limit = (self.meta.maxblkid() + 1) * DNODES_PER_BLOCK;
        let in_memory =
            self.dnodes.lock().values().filter(|d| !d.is_freed() && d.id().0 > id.0).map(|d| d.id().0).min();
        while at < limit {
            let blkid = at / DNODES_PER_BLOCK;
            let end = (blkid + 1) * DNODES_PER_BLOCK;
            if in_memory.is_some_and(|m| m <= at) {
                break;
            }
            let hole = matches!(self.meta.block_pointer(blkid)?, None | Some(BlkPtr::ZERO));
            if hole {
                // On to the next block there is: a hole can be as wide as the largest number of an
                // object.
                let Some(next) = self.meta.next_block(blkid, false)? else { break };
                if next > blkid {
                    at = next * DNODES_PER_BLOCK;
                    continue;
                }
            } else {
                let used = match self.meta.with_block(blkid, used_slots) {
                    Ok(u) => u,
                    Err(Stop::Need(_)) => {
                        return Err(Stop::Need(Need::Object { objset: self.clone(), id: ObjectId(at) }));
                    }
                    Err(e) => return Err(e),
                };
                for i in at..end {
                    let first_slot = used.get((i % DNODES_PER_BLOCK) as usize) == Some(&Slot::Head);
                    let freed = self.dnodes.lock().get(&ObjectId(i)).is_some_and(|d| d.is_freed());
                    if first_slot && !freed {
                        return Ok(Some(ObjectId(in_memory.map_or(i, |m| m.min(i)))));
                    }
                }
            }
            at = end;
        }
        Ok(in_memory.map(ObjectId))
    }

    /// The next block of dnodes that there is, from `blkid` on, as of the last synced txg.
    pub fn next_dnode_block(self: &Arc<Self>, blkid: u64) -> Now<Option<u64>> {
        if blkid > self.meta.maxblkid() {
            return Ok(None);
        }
        if !matches!(self.meta.block_pointer(blkid)?, None | Some(BlkPtr::ZERO)) {
            return Ok(Some(blkid));
        }
        Ok(self.meta.next_block(blkid, false)?.filter(|next| *next > blkid))
    }

    /// The txg that wrote a block of dnodes last, as of the last synced one.
    pub fn dnode_block_birth(self: &Arc<Self>, blkid: u64) -> Now<Option<u64>> {
        Ok(self.meta.block_pointer(blkid)?.map(|bp| bp.birth()))
    }

    /// After a sync: `id` is free on disk and may be given out again.
    pub(crate) fn forget(&self, id: ObjectId) {
        self.dnodes.lock().remove(&id);
        self.cursor.fetch_min(id.0.max(1), Ordering::Relaxed);
    }
}

impl Table for Objset {
    /// Drops clean objects that nobody holds. One that is being synced is held by its sync.
    fn trim(&self) {
        self.dnodes.lock().retain(|_, d| Arc::strong_count(d) > 1 || d.is_dirty());
    }
}

/// A meta-dnode is always deep enough for every possible object, so that its shape never changes.
fn meta_levels() -> u8 {
    let mut levels = 1;
    let per_level = u32::from(DN_MAX_INDBLKSHIFT) - 7;
    while (3u64 << (5 + (levels - 1) * per_level)) < DN_MAX_OBJECT {
        levels += 1;
    }
    levels as u8
}

/// Block pointers of a dnode with such a bonus: attributes may grow to all the room there is.
pub(crate) fn nblkptr_for(slots: u8, bonustype: u8, bonuslen: usize) -> u8 {
    if bonustype == object_type::DMU_OT_SA {
        return 1;
    }
    let room = max_bonus(slots, 1).saturating_sub(bonuslen);
    (1 + (room >> 7)).min(3) as u8
}
