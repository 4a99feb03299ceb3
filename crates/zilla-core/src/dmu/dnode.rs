//! An object in memory: its latest state, what each unsynced txg changed, and its cached blocks.
//!
//! The *open* state (`head`, `bonus`, the dbufs' top layers) is what callers see. The *synced*
//! state (`phys`, the indirect blocks, the dbufs' bases) is what the last synced txg left on disk;
//! only the sync task changes it, and publishes the change in one step under the lock. `pending`
//! says, for each txg between, what has to be carried from one to the other.
//!
//! Lock order: a dnode's lock is a leaf, except that the dbuf cache's and the dirty list's locks
//! may be taken inside it. Nothing waits under it.

use super::cache::{DbufCache, Evicted};
use super::dbuf::{Base, Dbuf};
use super::fault::{Need, Now, Stop};
use super::held::{Held, Holders};
use super::objects::Extra;
use super::range::RangeSet;
use super::tree::{self, Indirects, Lookup};
use crate::error::{Error, Result};
use crate::txg::{COUNTED, Tx};
use crate::types::{Bookmark, ObjectId, PerTxg, Txg};
use crate::zio::{BlockStore, Packed};
use bytes::Bytes;
use event_listener::Event;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use zilla_env::IoBuf;
use zilla_ondisk::SPA_MINBLOCKSHIFT;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::{DNODE_MIN_SIZE, DnodePhys};

mod frees;

/// Memory that a dnode takes of a txg that changes it, with its attributes old and new, and what
/// names it in the sync. An estimate, in bytes.
const DIRTY_DNODE: u64 = size_of::<Dnode>() as u64 + 1024;
/// The same of a range, or a block in memory, that is freed.
const NOTE: u64 = 64;
/// The same of a block that is cloned: a layer, its pointer, and what is pointed to in the sync.
const CLONE: u64 = 512;

/// What all dnodes of an objset share.
pub(crate) struct Shared {
    pub(crate) objset: u64,
    pub(crate) store: Arc<dyn BlockStore>,
    pub(crate) cache: Arc<DbufCache>,
    pub(crate) dirty: PerTxg<Mutex<Vec<Arc<Dnode>>>>,
    /// Blocks written before their txg's sync, by their place ([`super::ahead`]).
    pub(crate) ahead: PerTxg<Mutex<BTreeMap<[u64; 2], BlkPtr>>>,
    /// What syncs could not put on disk ([`super::held`]).
    pub(crate) held: Holders,
    /// How often the sync task itself has changed something.
    pub(crate) changes: AtomicU64,
    /// Of data and of metadata.
    pub(crate) copies: AtomicU8,
    pub(crate) metadata_copies: AtomicU8,
    /// Micro-ZAPs may outgrow 128K.
    pub(crate) large_microzap: AtomicBool,
    /// What readers get ahead, as the property's number ([`super::Prefetch`]).
    pub(crate) prefetch: AtomicU8,
}

/// The fixed part of a dnode, in its open state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) otype: u8,
    pub(crate) bonustype: u8,
    pub(crate) blksz: u32,
    pub(crate) indblkshift: u8,
    pub(crate) nblkptr: u8,
    /// Slots of 512 bytes that the dnode takes.
    pub(crate) slots: u8,
    pub(crate) checksum: u8,
    pub(crate) compress: u8,
    /// Levels that the tree has at least.
    pub(crate) levels: u8,
    pub(crate) maxblkid: u64,
}

/// What one txg changed.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) dirty: bool,
    /// Level-0 blocks with a layer of this txg.
    pub(crate) blocks: BTreeSet<u64>,
    /// Those of them that are written even if they are what is there.
    pub(crate) anew: BTreeSet<u64>,
    /// Those of them that are clones, for which no data will be written.
    pub(crate) clones: BTreeSet<u64>,
    /// Those of them that were only freed: no room is counted for them, nor for what leads to them.
    pub(crate) emptied: BTreeSet<u64>,
    /// Blocks freed as ranges.
    pub(crate) frees: RangeSet,
    pub(crate) head: Option<Head>,
    pub(crate) bonus: Option<Arc<[u8]>>,
    /// With a bonus that is encrypted.
    pub(crate) sealed_bonuslen: Option<u16>,
    pub(crate) spill: Option<Option<Bytes>>,
    /// The object itself is freed.
    pub(crate) free_object: bool,
}

impl Pending {
    /// Notes a block that will be written; whether nothing was counted for its data so far.
    fn writes(&mut self, blkid: u64) -> bool {
        self.blocks.insert(blkid) | self.clones.remove(&blkid) | self.emptied.remove(&blkid)
    }
}

#[derive(Clone, Default)]
pub(crate) enum Spill {
    /// On disk, not loaded.
    #[default]
    Unknown,
    None,
    /// As it is on disk: it can be loaded again.
    Loaded(Bytes),
    /// As it was set since the object is in memory.
    Data(Bytes),
}

pub(crate) struct Inner {
    pub(crate) head: Head,
    pub(crate) bonus: Arc<[u8]>,
    pub(crate) spill: Spill,
    extra: Extra,
    pub(crate) freed: bool,
    pub(crate) pending: PerTxg<Pending>,
    pub(crate) held: Held,
    /// Synced state from here on.
    pub(crate) phys: DnodePhys,
    pub(crate) indirects: Indirects,
    pub(crate) dbufs: BTreeMap<u64, Dbuf>,
    /// Blocks that are being read ahead, each with who waits for it (`load`).
    pub(crate) reading_ahead: BTreeMap<u64, Arc<Event>>,
    /// Counts publications of the synced state, so that a slow read cannot install what has since
    /// been replaced.
    pub(crate) generation: u64,
}

pub struct Dnode {
    id: ObjectId,
    pub(crate) shared: Arc<Shared>,
    pub(crate) inner: Mutex<Inner>,
    /// What `zap` keeps in memory of an object that is a ZAP.
    pub(crate) zap: RwLock<crate::zap::State>,
}

impl Drop for Dnode {
    fn drop(&mut self) {
        self.shared.cache.objects.died();
    }
}

impl Inner {
    /// Counts what the object has in memory.
    fn recount(&mut self) {
        let spill = match &self.spill {
            Spill::Loaded(b) | Spill::Data(b) => b.len(),
            Spill::Unknown | Spill::None => 0,
        };
        // (A bonus is there as it is and as it was synced.)
        self.extra.set((spill + 2 * self.bonus.len().saturating_sub(DNODE_MIN_SIZE)) as u64);
    }

    /// Takes the spill block as it was read from the disk.
    pub(super) fn spill_loaded(&mut self, data: Bytes) {
        self.spill = Spill::Loaded(data);
        self.recount();
    }

    pub(crate) fn dbuf(&mut self, blkid: u64) -> &mut Dbuf {
        let (phys, pending, held) = (&self.phys, &self.pending, &self.held);
        self.dbufs.entry(blkid).or_insert_with(|| {
            let hole = begins_as_hole(phys, pending, held, blkid);
            Dbuf::with_base(if hole { Base::Hole } else { Base::Unknown })
        })
    }

    /// Where the newest contents of a block are of which there is nothing here but what the last
    /// sync left on disk. `None` if there is more to it.
    pub(crate) fn on_disk(&self, blkid: u64) -> Option<Lookup> {
        match self.dbufs.get(&blkid) {
            None if begins_as_hole(&self.phys, &self.pending, &self.held, blkid) => Some(Lookup::Hole),
            Some(db) if !db.is_clean() || db.base_known() => None,
            _ => Some(tree::lookup(&self.phys, &self.indirects, 0, blkid)),
        }
    }
}

/// Whether a block that no dbuf knows has no contents.
fn begins_as_hole(phys: &DnodePhys, pending: &PerTxg<Pending>, held: &Held, blkid: u64) -> bool {
    phys.nlevels == 0
        || blkid > phys.maxblkid
        || held.frees.contains(blkid)
        || pending.iter().any(|p| p.free_object || p.frees.contains(blkid))
}

impl Dnode {
    pub(crate) fn new(id: ObjectId, shared: Arc<Shared>, phys: DnodePhys) -> Arc<Dnode> {
        let head = Head {
            otype: phys.otype,
            bonustype: phys.bonustype,
            blksz: u32::from(phys.datablkszsec) << 9,
            indblkshift: phys.indblkshift,
            nblkptr: phys.nblkptr,
            slots: phys.extra_slots + 1,
            checksum: phys.checksum,
            compress: phys.compress,
            levels: phys.nlevels,
            maxblkid: phys.maxblkid,
        };
        let mut inner = Inner {
            head,
            bonus: phys.bonus.as_slice().into(),
            spill: if phys.spill.is_some() { Spill::Unknown } else { Spill::None },
            extra: Extra::new(shared.cache.clone()),
            freed: false,
            pending: Default::default(),
            held: Held::default(),
            phys,
            indirects: Indirects::default(),
            dbufs: BTreeMap::new(),
            reading_ahead: BTreeMap::new(),
            generation: 0,
        };
        inner.recount();
        shared.cache.objects.born();
        Arc::new(Dnode { id, shared, inner: Mutex::new(inner), zap: RwLock::default() })
    }

    pub fn id(&self) -> ObjectId {
        self.id
    }
    pub fn objset_id(&self) -> u64 {
        self.shared.objset
    }
    pub fn otype(&self) -> u8 {
        self.inner.lock().head.otype
    }
    pub fn bonus_type(&self) -> u8 {
        self.inner.lock().head.bonustype
    }
    /// The size of a data block in bytes; an object of one block may still change it.
    pub fn blksz(&self) -> u32 {
        self.inner.lock().head.blksz
    }
    pub fn indblkshift(&self) -> u8 {
        self.inner.lock().head.indblkshift
    }
    /// The highest block that was ever written and not truncated away; 0 also for an empty object.
    pub fn maxblkid(&self) -> u64 {
        self.inner.lock().head.maxblkid
    }
    pub fn slots(&self) -> u8 {
        self.inner.lock().head.slots
    }
    /// Block pointers in the dnode itself.
    pub fn nblkptr(&self) -> u8 {
        self.inner.lock().head.nblkptr
    }
    /// How many bytes of bonus the dnode can hold.
    pub fn max_bonus_len(&self) -> usize {
        let h = self.inner.lock().head;
        max_bonus(h.slots, h.nblkptr)
    }
    /// Space on disk as of the last synced txg, in bytes.
    pub fn used(&self) -> u64 {
        self.inner.lock().phys.used
    }
    pub fn is_freed(&self) -> bool {
        self.inner.lock().freed
    }
    /// Whether some txg's changes are not on disk yet.
    pub fn is_dirty(&self) -> bool {
        self.inner.lock().pending.iter().any(|p| p.dirty)
    }
    /// The dnode as the last synced txg left it on disk.
    pub fn phys(&self) -> DnodePhys {
        self.inner.lock().phys.clone()
    }

    pub fn bonus(&self) -> Arc<[u8]> {
        self.inner.lock().bonus.clone()
    }

    pub fn set_bonus(self: &Arc<Self>, tx: &Tx, data: &[u8]) {
        let mut inner = self.dirty(tx);
        let bonus: Arc<[u8]> = data.into();
        debug_assert!(data.len() <= max_bonus(inner.head.slots, inner.head.nblkptr));
        inner.pending[tx.txg()].bonus = Some(bonus.clone());
        inner.bonus = bonus;
        inner.recount();
    }

    pub fn set_types(self: &Arc<Self>, tx: &Tx, otype: u8, bonustype: u8) {
        let mut inner = self.dirty(tx);
        inner.head.otype = otype;
        inner.head.bonustype = bonustype;
        inner.pending[tx.txg()].head = Some(inner.head);
    }

    /// Sets how deep the tree is at least, and which block is said to be the last: in a raw receive
    /// both are the sender's, who vouches for them.
    pub(crate) fn set_tree(self: &Arc<Self>, tx: &Tx, levels: u8, maxblkid: u64) {
        let mut inner = self.dirty(tx);
        inner.head.levels = levels;
        inner.head.maxblkid = maxblkid;
        inner.pending[tx.txg()].head = Some(inner.head);
    }

    /// Sets what a sealed dnode says of its bonus' length; the bonus is set with all its room.
    pub(crate) fn set_sealed_bonus(self: &Arc<Self>, tx: &Tx, bonuslen: u16, data: &[u8]) {
        self.set_bonus(tx, data);
        let mut inner = self.dirty(tx);
        inner.pending[tx.txg()].sealed_bonuslen = (!data.is_empty()).then_some(bonuslen);
    }

    /// Sets how the object's own blocks are checksummed and compressed; 0 is as its dataset's are.
    pub fn set_codecs(self: &Arc<Self>, tx: &Tx, checksum: u8, compress: u8) {
        let mut inner = self.dirty(tx);
        if (inner.head.checksum, inner.head.compress) != (checksum, compress) {
            inner.head.checksum = checksum;
            inner.head.compress = compress;
            inner.pending[tx.txg()].head = Some(inner.head);
        }
    }

    /// Sets the block size (and the indirect blocks', 0 to keep it). Only an object of at most one
    /// block can change.
    pub fn set_blksz(self: &Arc<Self>, tx: &Tx, blksz: u32, indblkshift: u8) -> Result<()> {
        debug_assert!(blksz > 0 && blksz.is_multiple_of(512));
        let mut inner = self.dirty(tx);
        if inner.head.maxblkid > 0 {
            return Err(Error::os(crate::error::Errno::NotSup, "the object has more than one block"));
        }
        if indblkshift != 0 && inner.phys.nlevels <= 1 {
            inner.head.indblkshift = indblkshift;
        }
        if inner.head.blksz != blksz {
            let old = std::mem::replace(&mut inner.head.blksz, blksz);
            // The block must be written anew at its new size, unless there is none.
            let db = inner.dbuf(0);
            if !db.is_hole() {
                db.write(tx.txg(), blksz as usize, 0, &[]);
                let counted = if inner.pending[tx.txg()].writes(0) { 0 } else { old };
                let grown = u64::from(blksz.saturating_sub(counted));
                tx.dirtied(grown);
                self.needs_data(&inner, tx, grown);
            }
        }
        inner.pending[tx.txg()].head = Some(inner.head);
        Ok(())
    }

    pub fn spill(self: &Arc<Self>) -> Now<Option<Bytes>> {
        match &self.inner.lock().spill {
            Spill::None => Ok(None),
            Spill::Loaded(b) | Spill::Data(b) => Ok(Some(b.clone())),
            Spill::Unknown => Err(Stop::Need(Need::Spill { dnode: self.clone() })),
        }
    }

    pub fn set_spill(self: &Arc<Self>, tx: &Tx, data: Option<Bytes>) {
        let mut inner = self.dirty(tx);
        let len = |of: &Option<Bytes>| of.as_ref().map_or(0, |d| d.len() as u64);
        let pending = &mut inner.pending[tx.txg()];
        let grown = len(&data).saturating_sub(pending.spill.as_ref().map_or(0, len));
        tx.dirtied(grown);
        self.needs_metadata(tx, grown);
        pending.spill = Some(data.clone());
        inner.spill = data.map_or(Spill::None, Spill::Data);
        inner.recount();
        drop(inner);
        self.shared.cache.objects.make_room();
    }

    /// Forgets the spill block where it can be read again: its user has made of it what he needs.
    pub(crate) fn spill_used(&self) {
        let mut inner = self.inner.lock();
        if matches!(inner.spill, Spill::Loaded(_)) {
            inner.spill = Spill::Unknown;
            inner.recount();
        }
    }

    fn need(self: &Arc<Self>, blkid: u64) -> Stop {
        Stop::Need(Need::Block { dnode: self.clone(), level: 0, blkid })
    }

    /// A whole block's newest contents, shared where possible.
    pub fn block(self: &Arc<Self>, blkid: u64) -> Now<Bytes> {
        let mut inner = self.inner.lock();
        let blksz = inner.head.blksz as usize;
        let db = inner.dbuf(blkid);
        db.touched = true;
        if let Some(b) = db.shared(blksz) {
            return Ok(b);
        }
        if !db.resident(0, blksz) {
            return Err(self.need(blkid));
        }
        let mut buf = IoBuf::scratch(blksz);
        let whole = db.read(0, &mut buf);
        debug_assert!(whole);
        Ok(buf.into_bytes())
    }

    /// Looks at a whole block's newest contents in place.
    pub fn with_block<R>(self: &Arc<Self>, blkid: u64, f: impl FnOnce(&[u8]) -> R) -> Now<R> {
        let mut inner = self.inner.lock();
        let blksz = inner.head.blksz as usize;
        let db = inner.dbuf(blkid);
        db.touched = true;
        if let Some(s) = db.slice().filter(|s| s.len() == blksz) {
            return Ok(f(s));
        }
        let mut buf = vec![0; blksz];
        if !db.read(0, &mut buf) {
            return Err(self.need(blkid));
        }
        Ok(f(&buf))
    }

    /// Whether a block's newest contents are in memory; the first step of an operation that changes
    /// several blocks.
    pub fn require(self: &Arc<Self>, blkid: u64) -> Now<()> {
        let mut inner = self.inner.lock();
        let blksz = inner.head.blksz as usize;
        if inner.dbuf(blkid).resident(0, blksz) { Ok(()) } else { Err(self.need(blkid)) }
    }

    /// Writes without ever reading: a partly covered record becomes a partial one.
    pub fn write(self: &Arc<Self>, tx: &Tx, off: u64, data: &[u8]) {
        let blksz = u64::from(self.blksz());
        let (mut done, mut rest) = (0, data);
        while !rest.is_empty() {
            let at = off + done as u64;
            let (blkid, within) = (at / blksz, (at % blksz) as usize);
            let n = (blksz as usize - within).min(rest.len());
            let (part, behind) = rest.split_at(n);
            rest = behind;
            if n == blksz as usize {
                // A whole record: copied before the lock is taken, then handed over.
                self.write_block(tx, blkid, IoBuf::from_slice(part).into_bytes());
            } else {
                let mut inner = self.dirty(tx);
                inner.dbuf(blkid).write(tx.txg(), blksz as usize, within, part);
                self.block_dirtied(&mut inner, tx, blkid);
            }
            done += n;
        }
    }

    /// Replaces a whole block by a buffer that is handed over; `data` is exactly one block long.
    /// Whether this txg had not changed the block yet.
    pub fn write_block(self: &Arc<Self>, tx: &Tx, blkid: u64, data: Bytes) -> bool {
        let mut inner = self.dirty(tx);
        debug_assert_eq!(data.len(), inner.head.blksz as usize);
        tx.completed(data.len() as u64);
        inner.dbuf(blkid).write_all(tx.txg(), data);
        self.block_dirtied(&mut inner, tx, blkid)
    }

    /// As [`Dnode::write_block`]; `packed` is what is to be stored of `data`, whatever the object's
    /// compression is.
    pub(crate) fn write_packed(self: &Arc<Self>, tx: &Tx, blkid: u64, data: Bytes, packed: Packed) {
        let mut inner = self.dirty(tx);
        debug_assert_eq!(data.len(), inner.head.blksz as usize);
        tx.completed(data.len() as u64);
        tx.dirtied(packed.data.len() as u64);
        inner.dbuf(blkid).write_packed(tx.txg(), data, packed);
        self.block_dirtied(&mut inner, tx, blkid);
    }

    /// As [`Dnode::write_block`], and the block gets a new place even if it is what is there.
    pub fn write_anew(self: &Arc<Self>, tx: &Tx, blkid: u64, data: Bytes) {
        self.write_block(tx, blkid, data);
        self.inner.lock().pending[tx.txg()].anew.insert(blkid);
    }

    /// Changes a block in place, seeing all of it.
    pub fn modify<R>(self: &Arc<Self>, tx: &Tx, blkid: u64, f: impl FnOnce(&mut [u8]) -> R) -> Now<R> {
        self.require(blkid)?;
        let mut inner = self.dirty(tx);
        let blksz = inner.head.blksz as usize;
        let Some(r) = inner.dbuf(blkid).modify(tx.txg(), blksz, f) else { return Err(self.need(blkid)) };
        self.block_dirtied(&mut inner, tx, blkid);
        Ok(r)
    }

    /// Notes a block that a txg writes; whether it is new to the txg.
    fn block_dirtied(&self, inner: &mut Inner, tx: &Tx, blkid: u64) -> bool {
        let txg = tx.txg();
        let fresh = inner.pending[txg].writes(blkid);
        if fresh {
            // However little of it was written: this is what it takes of memory until it is synced.
            tx.dirtied(inner.head.blksz.into());
            self.needs_block(inner, tx, blkid, inner.head.blksz.into());
        }
        Dnode::reaches(inner, txg, blkid);
        fresh
    }

    /// Notes that a block is there.
    fn reaches(inner: &mut Inner, txg: Txg, blkid: u64) {
        inner.pending[txg].frees.remove(blkid, blkid + 1);
        if blkid > inner.head.maxblkid {
            inner.head.maxblkid = blkid;
            inner.pending[txg].head = Some(inner.head);
        }
    }

    /// Where the blocks of a range are on disk, holes as [`BlkPtr::ZERO`]; None if any of them was
    /// changed and is not on disk. (What `tx`'s own txg cloned or freed is known: a clone of a
    /// clone is counted beside it in that txg's sync, whatever becomes of the first.) The object
    /// counts as changed in `tx`: nobody whose txg comes before it may free them any more.
    pub(crate) fn cloned_from(
        self: &Arc<Self>,
        tx: &Tx,
        blocks: std::ops::Range<u64>,
    ) -> Now<Option<Vec<BlkPtr>>> {
        self.in_order(tx)?;
        let (txg, inner) = (tx.txg(), self.inner.lock());
        let mut out = Vec::with_capacity((blocks.end - blocks.start) as usize);
        for blkid in blocks {
            let (db, own) = (inner.dbufs.get(&blkid), &inner.pending[txg]);
            let known = match own.frees.contains(blkid) && !own.blocks.contains(&blkid) {
                true => Some(BlkPtr::ZERO),
                false => db.and_then(|db| db.only_clone(tx.txg())),
            };
            let changes = |p: &Pending| p.blocks.contains(&blkid) || p.frees.contains(blkid);
            let mut pending = inner.pending.iter().enumerate();
            if inner.freed
                || inner.held.frees.contains(blkid)
                || known.is_none() && db.is_some_and(|db| !db.is_clean())
                || pending.any(|(i, p)| p.free_object || (i != txg.slot() || known.is_none()) && changes(p))
            {
                return Ok(None);
            }
            if let Some(bp) = known {
                out.push(bp);
                continue;
            }
            out.push(match tree::lookup(&inner.phys, &inner.indirects, 0, blkid) {
                _ if blkid > inner.head.maxblkid => BlkPtr::ZERO,
                Lookup::Bp(bp) if !bp.is_hole() => bp,
                Lookup::Bp(_) | Lookup::Hole => BlkPtr::ZERO,
                Lookup::NeedIndirect { level, blkid } => {
                    drop(inner);
                    return Err(Stop::Need(Need::Block { dnode: self.clone(), level, blkid }));
                }
            });
        }
        drop(inner);
        drop(self.dirty(tx));
        Ok(Some(out))
    }

    /// Makes a whole block what is at `bp`, which another object has too.
    pub(crate) fn clone_block(self: &Arc<Self>, tx: &Tx, blkid: u64, bp: BlkPtr) {
        let (txg, mut inner) = (tx.txg(), self.dirty(tx));
        let blksz = inner.head.blksz as usize;
        inner.dbuf(blkid).put_clone(tx.txg(), blksz, bp);
        let pending = &mut inner.pending[txg];
        if pending.blocks.insert(blkid) | pending.emptied.remove(&blkid) {
            pending.clones.insert(blkid);
            tx.holds(CLONE);
            self.needs_block(&inner, tx, blkid, COUNTED);
        }
        Dnode::reaches(&mut inner, txg, blkid);
    }

    /// Refuses a transaction of a txg that is being closed if the next txg has changed the object
    /// already: what it changes now would be built on that newer state, and would be overwritten
    /// when the newer state, which knows nothing of it, goes to disk. The caller leaves its txg and
    /// joins the open one. To be asked under the lock that all changes of the object are made
    /// under, before the first of them.
    pub fn in_order(&self, tx: &Tx) -> Now<()> {
        if self.inner.lock().pending[tx.txg().next()].dirty {
            return Err(Stop::Need(Need::LaterTxg));
        }
        Ok(())
    }

    /// The lock, with the dnode on the dirty list of `tx`'s txg.
    pub(crate) fn dirty(self: &Arc<Self>, tx: &Tx) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        if tx.is_syncing() {
            self.shared.changes.fetch_add(1, Ordering::Relaxed);
        }
        let p = &mut inner.pending[tx.txg()];
        if !p.dirty {
            p.dirty = true;
            tx.holds(DIRTY_DNODE);
            let mut list = self.shared.dirty[tx.txg()].lock();
            self.needs_dnode(&list, tx);
            list.push(self.clone());
        }
        inner
    }

    /// For the dbuf cache: forgets a clean block that was not used lately.
    pub(crate) fn evict(&self, level: u8, blkid: u64) -> Evicted {
        let mut inner = self.inner.lock();
        if level > 0 {
            inner.indirects.remove(level, blkid);
            return Evicted::Gone;
        }
        let Some(db) = inner.dbufs.get_mut(&blkid) else { return Evicted::Gone };
        if !db.is_clean() && !db.has_spare_clone() {
            db.on_clock = None;
            return Evicted::Gone;
        }
        if std::mem::take(&mut db.touched) {
            return Evicted::Used;
        }
        if !db.is_clean() {
            db.drop_clones();
            db.on_clock = None;
            return Evicted::Gone;
        }
        inner.dbufs.remove(&blkid);
        Evicted::Gone
    }

    /// Whether a synced block is the one that `bp` leads to; false where that is not in memory.
    pub(crate) fn points_to(&self, level: u8, blkid: u64, bp: &BlkPtr) -> bool {
        let inner = self.inner.lock();
        if blkid == Bookmark::SPILL_BLKID {
            return inner.phys.spill.as_ref() == Some(bp);
        }
        tree::lookup(&inner.phys, &inner.indirects, level, blkid) == Lookup::Bp(*bp)
    }

    /// The block pointer of a synced level-0 block, if all that leads to it is in memory.
    pub fn block_pointer(self: &Arc<Self>, blkid: u64) -> Now<Option<BlkPtr>> {
        let inner = self.inner.lock();
        match tree::lookup(&inner.phys, &inner.indirects, 0, blkid) {
            Lookup::Bp(bp) => Ok(Some(bp)),
            Lookup::Hole => Ok(None),
            Lookup::NeedIndirect { level, blkid } => {
                Err(Stop::Need(Need::Block { dnode: self.clone(), level, blkid }))
            }
        }
    }
}

/// What the sync's list of freed blocks takes of memory for so many of an object, of which most may
/// be holes.
fn frees(inner: &Inner, blocks: u64) -> u64 {
    let there = inner.phys.used_bytes() / u64::from(inner.head.blksz.max(512)) + 1;
    blocks.min(there) * (1 << tree::BLKPTR_SHIFT)
}

/// How many blocks there can be among so many of an object: each takes a sector at least.
fn freed(inner: &Inner, blocks: u64) -> u64 {
    blocks.min(inner.phys.used_bytes() >> SPA_MINBLOCKSHIFT)
}

/// Bonus space of a dnode of `slots` slots with `nblkptr` pointers.
pub(crate) fn max_bonus(slots: u8, nblkptr: u8) -> usize {
    (usize::from(slots) << 9) - 64 - (usize::from(nblkptr) << tree::BLKPTR_SHIFT)
}
