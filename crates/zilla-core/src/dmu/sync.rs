//! Writing what one txg changed in one objset: a few large batches, leaves first.
//!
//! Each dirty object becomes a [`Work`]: a private copy of its synced state to which frees are applied and into which new pointers
//! are put. Level 0 of all works is one batch for the store (which compresses, checksums, allocates and submits), then
//! level 1, and so on; the store returns pointers before the data is stable, so no level waits for the one below. Then the dnodes
//! themselves are put into their blocks, the meta-dnode is written the same way, and last the objset's root block.
//! Each work is published to its in-memory dnode in one step under its lock.
//!
//! A crash anywhere here loses nothing but this txg: no block in use was overwritten, and the pointers that were replaced
//! are only reported as `killed`, to be freed by the caller within the same txg.
//!
//! An error leaves the txg half written in memory; the caller must suspend the pool (the disk still holds the last txg, whole).

use super::dbuf::{Base, Frozen};
use super::dnode::{Dnode, Head, Pending};
use super::objset::{Objset, Owner, Slot, WriteProps, used_slots};
use super::tree::{self, BLKPTR_SHIFT};
use crate::error::{Error, Result};
use crate::types::{Bookmark, ObjectId, Txg};
use crate::zio::{Priority, WriteReq};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::{
    DNODE_FLAG_SPILL_BLKPTR, DNODE_FLAG_USED_BYTES, DNODE_FLAG_USEROBJUSED_ACCOUNTED,
    DNODE_FLAG_USERUSED_ACCOUNTED, DNODE_MIN_SIZE, DNODE_SHIFT, DNODES_PER_BLOCK, DnodePhys,
};
use zilla_ondisk::object_type;

/// How many objects may have reads of old blocks under way at once.
const PREPARE_CONCURRENCY: usize = 64;

/// A change in what an owner has in an objset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub owner: Owner,
    pub bytes: i64,
    pub objects: i64,
}

/// What a sync did.
#[derive(Debug, Default)]
pub struct ObjsetSync {
    /// The objset's new root.
    pub root: BlkPtr,
    /// Blocks that are new in this txg (the root among them).
    pub born: Vec<BlkPtr>,
    /// Blocks the objset no longer refers to (its old root among them).
    pub killed: Vec<BlkPtr>,
    pub usage: Vec<Usage>,
}

struct Indirect {
    bps: Vec<BlkPtr>,
}

/// One object on its way to disk.
struct Work {
    dn: Arc<Dnode>,
    phys: DnodePhys,
    before: Option<(Owner, u64)>,
    /// Level-0 blocks that this txg wrote; None where the whole block became empty.
    blocks: BTreeMap<u64, Option<Bytes>>,
    /// What the dbufs' bases are once this is published.
    bases: Vec<(u64, Base)>,
    /// Indirect blocks that change. All ancestors of a changed block are here.
    indirects: BTreeMap<(u8, u64), Indirect>,
    /// Encoded indirect blocks, for publication.
    written: Vec<(u8, u64, Bytes)>,
    spill: Option<Option<Bytes>>,
    born: Vec<BlkPtr>,
    killed: Vec<BlkPtr>,
    used_delta: i64,
    freed: bool,
}

impl Objset {
    /// Writes everything `txg` changed. `root` is the pointer that the last sync returned (or the one the objset was opened from).
    pub async fn sync(self: &Arc<Self>, txg: Txg, root: BlkPtr) -> Result<ObjsetSync> {
        let props = self.props();
        let dirty = std::mem::take(&mut *self.shared.dirty[txg.slot()].lock());
        let owner_fn = *self.owner.lock();
        let mut works = Vec::with_capacity(dirty.len());
        let mut prepared = futures_util::stream::iter(dirty)
            .map(|dn| prepare(dn, txg, props, owner_fn))
            .buffer_unordered(PREPARE_CONCURRENCY);
        while let Some(w) = prepared.next().await {
            works.push(w?);
        }
        drop(prepared);
        // The same objects in the same order give the same disk: the simulator relies on it, and neighbours stay together.
        works.sort_by_key(|w| w.dn.id());
        self.write_works(&mut works, txg, props).await?;

        let mut out = ObjsetSync::default();
        for w in &mut works {
            account(w, owner_fn, &mut out.usage);
        }
        let mut meta = self.prepare_meta(&works).await?;
        self.write_works(std::slice::from_mut(&mut meta), txg, props).await?;
        self.write_root(&works, meta, txg, root, props, &mut out).await?;
        for w in works {
            self.publish(w, txg, &mut out);
        }
        Ok(out)
    }

    /// Level by level: hand a batch to the store, put the pointers it returns into their parents.
    async fn write_works(&self, works: &mut [Work], txg: Txg, props: WriteProps) -> Result<()> {
        let mut at = Vec::new();
        let mut reqs = Vec::new();
        for (i, w) in works.iter_mut().enumerate() {
            for (blkid, data) in std::mem::take(&mut w.blocks) {
                match data {
                    Some(data) => {
                        let fill = fill_of(&w.phys, &data);
                        w.bases.push((blkid, Base::Data(data.clone())));
                        reqs.push(w.request(data, 0, blkid, fill, props));
                        at.push((i, blkid));
                    }
                    None => {
                        w.bases.push((blkid, Base::Hole));
                        w.make_hole(0, blkid, txg, props);
                    }
                }
            }
            if let Some(Some(data)) = w.spill.clone() {
                reqs.push(w.spill_request(data, props));
                at.push((i, Bookmark::SPILL_BLKID));
            } else if let Some(None) = w.spill {
                w.drop_spill();
            }
        }
        let bps = self.shared.store.write(txg, reqs).await?;
        for (&(i, blkid), bp) in at.iter().zip(bps) {
            if blkid == Bookmark::SPILL_BLKID {
                works[i].set_spill(bp, txg);
            } else {
                works[i].set(0, blkid, bp, txg);
            }
        }
        let top = works.iter().map(|w| w.phys.nlevels).max().unwrap_or(0);
        for level in 1..top {
            let mut at = Vec::new();
            let mut reqs = Vec::new();
            for (i, w) in works.iter_mut().enumerate() {
                let ids: Vec<u64> =
                    w.indirects.range((level, 0)..=(level, u64::MAX)).map(|(k, _)| k.1).collect();
                for blkid in ids {
                    let Some(ind) = w.indirects.get(&(level, blkid)) else { continue };
                    if ind.bps.iter().all(BlkPtr::is_hole) {
                        w.written.push((level, blkid, Bytes::new()));
                        w.make_hole(level, blkid, txg, props);
                        continue;
                    }
                    let fill = ind.bps.iter().map(BlkPtr::fill).sum();
                    let data = encode(&ind.bps);
                    w.written.push((level, blkid, data.clone()));
                    reqs.push(w.request(data, level, blkid, fill, props));
                    at.push((i, blkid));
                }
            }
            let bps = self.shared.store.write(txg, reqs).await?;
            for (&(i, blkid), bp) in at.iter().zip(bps) {
                works[i].set(level, blkid, bp, txg);
            }
        }
        for w in works {
            let used = w.phys.used_bytes().saturating_add_signed(w.used_delta);
            if w.phys.flags & DNODE_FLAG_USED_BYTES != 0 || w.phys.otype != 0 {
                w.phys.flags |= DNODE_FLAG_USED_BYTES;
                w.phys.used = used;
            }
            w.used_delta = 0;
        }
        Ok(())
    }

    /// The meta-dnode's work: the blocks that hold the dnodes of `works`.
    async fn prepare_meta(self: &Arc<Self>, works: &[Work]) -> Result<Work> {
        let mut images: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let normal = works.iter().filter(|w| (w.dn.id().0 as i64) > 0);
        let mut wanted: Vec<u64> = normal.clone().map(|w| w.dn.id().0 / DNODES_PER_BLOCK).collect();
        wanted.dedup();
        let loads = wanted.iter().map(|&b| self.meta.load_with(0, b, Priority::SyncRead));
        for r in futures_util::future::join_all(loads).await {
            r?;
        }
        for w in normal {
            let id = w.dn.id().0;
            let (blkid, at) = (id / DNODES_PER_BLOCK, (id % DNODES_PER_BLOCK) as usize);
            let image = match images.entry(blkid) {
                std::collections::btree_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::btree_map::Entry::Vacant(e) => {
                    let old = super::resident(|| self.meta.block(blkid)).await?;
                    e.insert(old.to_vec())
                }
            };
            let slots = usize::from(w.dn.slots().max(1));
            let place = image
                .get_mut(at << DNODE_SHIFT..(at + slots) << DNODE_SHIFT)
                .ok_or_else(|| Error::corrupt(None, "", format!("object {id} crosses its dnode block")))?;
            if w.freed {
                place.fill(0);
            } else {
                w.phys
                    .encode_into(place)
                    .map_err(|e| Error::corrupt(None, "", format!("object {id} cannot be written: {e}")))?;
            }
        }
        let mut meta = Work::new(self.meta.clone(), self.meta.phys());
        if let Some(last) = images.keys().next_back() {
            meta.phys.maxblkid = meta.phys.maxblkid.max(*last);
        }
        for (blkid, image) in images {
            let empty = used_slots(&image).iter().all(|s| *s == Slot::Free);
            meta.ensure_path(blkid).await?;
            meta.blocks.insert(blkid, (!empty).then(|| image.into()));
        }
        Ok(meta)
    }

    async fn write_root(
        self: &Arc<Self>,
        works: &[Work],
        meta: Work,
        txg: Txg,
        prev: BlkPtr,
        props: WriteProps,
        out: &mut ObjsetSync,
    ) -> Result<()> {
        let data = {
            let mut phys = self.phys.lock();
            phys.meta_dnode = meta.phys.clone();
            for w in works {
                match w.dn.id() {
                    ObjectId::USERUSED => phys.userused_dnode = w.phys.clone(),
                    ObjectId::GROUPUSED => phys.groupused_dnode = w.phys.clone(),
                    ObjectId::PROJECTUSED => phys.projectused_dnode = w.phys.clone(),
                    _ => {}
                }
            }
            phys.encode().map_err(|e| Error::corrupt(None, "", format!("objset cannot be written: {e}")))?
        };
        let req = WriteReq {
            data: data.into(),
            bookmark: Bookmark::root(self.id()),
            otype: object_type::DMU_OT_OBJSET,
            level: 0,
            checksum: metadata_checksum(props.checksum),
            compress: props.metadata_compress,
            copies: props.metadata_copies,
            fill: meta.phys.blkptr.iter().map(BlkPtr::fill).sum(),
            prev,
            may_embed: false,
        };
        let Some(bp) = self.shared.store.write(txg, vec![req]).await?.pop() else {
            return Err(Error::corrupt(None, "", "the store returned no pointer"));
        };
        exchange(prev, bp, txg, &mut out.born, &mut out.killed);
        out.root = bp;
        self.publish(meta, txg, out);
        Ok(())
    }

    /// Makes a work's result the object's synced state.
    fn publish(&self, w: Work, txg: Txg, out: &mut ObjsetSync) {
        out.born.extend(w.born);
        out.killed.extend(w.killed);
        let mut cached = Vec::new();
        {
            let mut inner = w.dn.inner.lock();
            inner.generation += 1;
            inner.phys = w.phys;
            inner.pending[txg.slot()].frees = Default::default();
            for (blkid, base) in w.bases {
                let len = if let Base::Data(data) = &base { data.len() } else { 0 };
                let db = inner.dbuf(blkid);
                db.synced(txg, base);
                if !std::mem::replace(&mut db.on_clock, true) {
                    cached.push((0, blkid, len));
                }
            }
            for (level, blkid, data) in w.written {
                let len = data.len();
                if inner.indirects.insert(level, blkid, data) {
                    cached.push((level, blkid, len));
                }
            }
            if w.freed {
                inner.indirects.clear();
                inner.dbufs.clear();
            }
            if w.dn.id() == ObjectId::META_DNODE {
                inner.head.maxblkid = inner.phys.maxblkid;
            }
        }
        for (level, blkid, len) in cached {
            w.dn.shared.cache.added(&w.dn, level, blkid, len);
        }
        if w.freed && w.dn.id() != ObjectId::META_DNODE {
            self.forget(w.dn.id());
        }
    }
}

/// Old pointer out, new pointer in, unless the new one uses the old one's space again.
fn exchange(old: BlkPtr, new: BlkPtr, txg: Txg, born: &mut Vec<BlkPtr>, killed: &mut Vec<BlkPtr>) -> bool {
    let reused = !old.is_hole()
        && !new.is_hole()
        && !old.is_embedded()
        && !new.is_embedded()
        && old.birth() == txg.0
        && old.dva(0) == new.dva(0);
    if reused {
        return false;
    }
    if !old.is_hole() {
        killed.push(old);
    }
    if !new.is_hole() {
        born.push(new);
    }
    true
}

fn encode(bps: &[BlkPtr]) -> Bytes {
    let mut out = zilla_env::IoBuf::scratch(bps.len() << BLKPTR_SHIFT);
    for (bp, place) in bps.iter().zip(out.chunks_exact_mut(1 << BLKPTR_SHIFT)) {
        place.copy_from_slice(&bp.encode());
    }
    out.into_bytes()
}

fn fill_of(phys: &DnodePhys, data: &[u8]) -> u64 {
    if phys.otype == object_type::DMU_OT_DNODE {
        used_slots(data).iter().filter(|s| **s == Slot::Head).count() as u64
    } else {
        1
    }
}

/// Metadata is always checksummed, and by something strong enough for it.
fn metadata_checksum(data: Checksum) -> Checksum {
    match data {
        Checksum::Inherit | Checksum::On | Checksum::Off | Checksum::Fletcher2 | Checksum::NoParity => {
            Checksum::Fletcher4
        }
        other => other,
    }
}

/// Takes what `txg` changed in an object, reading what it needs of the old state.
async fn prepare(
    dn: Arc<Dnode>,
    txg: Txg,
    props: WriteProps,
    owner_fn: Option<super::objset::OwnerFn>,
) -> Result<Work> {
    let (pending, phys) = {
        let mut inner = dn.inner.lock();
        let p = std::mem::take(&mut inner.pending[txg.slot()]);
        // Its frees still count for blocks that are first touched while this sync runs.
        inner.pending[txg.slot()].frees = p.frees.clone();
        (p, inner.phys.clone())
    };
    let mut w = Work::new(dn, phys);
    if let Some(f) = owner_fn {
        let counted = DNODE_FLAG_USERUSED_ACCOUNTED;
        if w.phys.otype != 0 && w.phys.flags & counted != 0 {
            w.before = f(w.phys.bonustype, &w.phys.bonus).map(|o| (o, w.phys.used_bytes()));
        }
    }
    if pending.free_object {
        w.freed = true;
        let last = w.phys.maxblkid + 1;
        if w.phys.otype != 0 {
            w.free_blocks(0, last, txg, props).await?;
            w.drop_spill();
        }
        w.phys = DnodePhys { extra_slots: w.phys.extra_slots, ..DnodePhys::default() };
        return Ok(w);
    }
    w.apply_head(&pending);
    for (first, last) in pending.frees.iter() {
        w.free_blocks(first, last, txg, props).await?;
    }
    w.take_blocks(&pending, txg).await?;
    if let Some(bonus) = &pending.bonus {
        w.phys.bonus = bonus.to_vec();
    }
    if let Some(head) = pending.head {
        w.phys.maxblkid = head.maxblkid;
    }
    w.spill = pending.spill;
    Ok(w)
}

/// Charges the object to its owner, and its old owner with what it was.
fn account(w: &mut Work, owner_fn: Option<super::objset::OwnerFn>, usage: &mut Vec<Usage>) {
    let Some(f) = owner_fn else { return };
    if (w.dn.id().0 as i64) <= 0 {
        return;
    }
    if let Some((owner, used)) = w.before {
        let bytes = -((used + DNODE_MIN_SIZE as u64) as i64);
        usage.push(Usage { owner, bytes, objects: -1 });
    }
    if w.freed {
        return;
    }
    if let Some(owner) = f(w.phys.bonustype, &w.phys.bonus) {
        w.phys.flags |= DNODE_FLAG_USERUSED_ACCOUNTED | DNODE_FLAG_USEROBJUSED_ACCOUNTED;
        let bytes = (w.phys.used_bytes() + DNODE_MIN_SIZE as u64) as i64;
        usage.push(Usage { owner, bytes, objects: 1 });
    }
}

impl Work {
    fn new(dn: Arc<Dnode>, phys: DnodePhys) -> Work {
        Work {
            dn,
            phys,
            before: None,
            blocks: BTreeMap::new(),
            bases: Vec::new(),
            indirects: BTreeMap::new(),
            written: Vec::new(),
            spill: None,
            born: Vec::new(),
            killed: Vec::new(),
            used_delta: 0,
            freed: false,
        }
    }

    fn apply_head(&mut self, pending: &Pending) {
        let Some(h): Option<Head> = pending.head else { return };
        let p = &mut self.phys;
        if p.otype == 0 {
            p.nlevels = 1;
            p.nblkptr = h.nblkptr;
            p.blkptr = smallvec::smallvec![BlkPtr::ZERO; usize::from(h.nblkptr)];
            p.flags = DNODE_FLAG_USED_BYTES;
            p.extra_slots = h.slots - 1;
            p.maxblkid = 0;
        }
        p.otype = h.otype;
        p.bonustype = h.bonustype;
        p.datablkszsec = (h.blksz >> 9) as u16;
        p.indblkshift = h.indblkshift;
        p.checksum = h.checksum;
        p.compress = h.compress;
    }

    /// Freezes the txg's layers; loads the old contents of records that are still partial.
    async fn take_blocks(&mut self, pending: &Pending, txg: Txg) -> Result<()> {
        let mut lacking = Vec::new();
        for &blkid in &pending.blocks {
            match self.freeze(blkid, txg) {
                Some(Frozen::NeedsBase) => lacking.push(blkid),
                Some(Frozen::Data(data)) => {
                    self.blocks.insert(blkid, Some(data));
                }
                // The range that made it a hole is in `frees`, so its pointer has been dealt with.
                Some(Frozen::Hole) => self.bases.push((blkid, Base::Hole)),
                None => {}
            }
        }
        let dn = self.dn.clone();
        for chunk in lacking.chunks(PREPARE_CONCURRENCY) {
            let loads = chunk.iter().map(|&b| dn.load_with(0, b, Priority::SyncRead));
            for r in futures_util::future::join_all(loads).await {
                r?;
            }
            for &blkid in chunk {
                match self.freeze(blkid, txg) {
                    Some(Frozen::Data(data)) => {
                        self.blocks.insert(blkid, Some(data));
                    }
                    _ => {
                        return Err(Error::corrupt(
                            None,
                            "",
                            format!("block {blkid} has no contents to write"),
                        ));
                    }
                }
            }
        }
        let ids: Vec<u64> = self.blocks.keys().copied().collect();
        for blkid in ids {
            self.ensure_path(blkid).await?;
        }
        Ok(())
    }

    fn freeze(&self, blkid: u64, txg: Txg) -> Option<Frozen> {
        let mut inner = self.dn.inner.lock();
        let blksz = (self.phys.datablkszsec as usize) << 9;
        let db = inner.dbuf(blkid);
        let frozen = db.freeze(txg)?;
        match frozen {
            // A block of another size than the object's is the first block of an object that has since grown, in this
            // very txg: it was dirtied again at its new size, so a layer is never short. A longer one is cut.
            Frozen::Data(data) if data.len() > blksz => Some(Frozen::Data(data.slice(..blksz))),
            other => Some(other),
        }
    }

    /// Makes the tree deep enough for `blkid` and loads every indirect block on the way to it.
    async fn ensure_path(&mut self, blkid: u64) -> Result<()> {
        while tree::levels_for(blkid, self.phys.nblkptr, self.phys.indblkshift) > self.phys.nlevels {
            self.grow();
        }
        let e = tree::epbs(self.phys.indblkshift);
        for level in (1..self.phys.nlevels).rev() {
            self.ensure_indirect(level, tree::ancestor(blkid, level, e)).await?;
        }
        Ok(())
    }

    /// One level more: the dnode's pointers move into a new top block.
    fn grow(&mut self) {
        let level = self.phys.nlevels;
        let count = 1usize << tree::epbs(self.phys.indblkshift);
        let mut bps = vec![BlkPtr::ZERO; count];
        for (slot, bp) in bps.iter_mut().zip(&self.phys.blkptr) {
            *slot = *bp;
        }
        self.phys.blkptr.iter_mut().for_each(|bp| *bp = BlkPtr::ZERO);
        self.indirects.insert((level, 0), Indirect { bps });
        self.phys.nlevels += 1;
    }

    /// The indirect block's pointers, in this work. Its ancestors are there already.
    async fn ensure_indirect(&mut self, level: u8, blkid: u64) -> Result<()> {
        if self.indirects.contains_key(&(level, blkid)) {
            return Ok(());
        }
        let count = 1usize << tree::epbs(self.phys.indblkshift);
        let mut bps = vec![BlkPtr::ZERO; count];
        let parent = self.get(level, blkid);
        if !parent.is_hole() {
            self.dn.load_with(level, blkid, Priority::SyncRead).await?;
            let data = {
                let inner = self.dn.inner.lock();
                inner.indirects.get(level, blkid).cloned()
            };
            let data = match data {
                Some(d) => d,
                // Forgotten again at once by the cache: read it past the cache.
                None => {
                    let b = Bookmark::new(self.dn.objset_id(), self.dn.id(), level, blkid);
                    self.dn.shared.store.read(parent, b, Priority::SyncRead).await?
                }
            };
            for (i, slot) in bps.iter_mut().enumerate() {
                *slot = tree::bp_at(&data, i);
            }
        }
        self.indirects.insert((level, blkid), Indirect { bps });
        Ok(())
    }

    /// The pointer to a block, as this work has it; its parent must be here.
    fn get(&self, level: u8, blkid: u64) -> BlkPtr {
        if level + 1 == self.phys.nlevels {
            return self.phys.blkptr.get(blkid as usize).copied().unwrap_or_default();
        }
        let e = tree::epbs(self.phys.indblkshift);
        self.indirects
            .get(&(level + 1, tree::ancestor(blkid, 1, e)))
            .map_or(BlkPtr::ZERO, |ind| ind.bps[(blkid & ((1 << e) - 1)) as usize])
    }

    fn put(&mut self, level: u8, blkid: u64, bp: BlkPtr) {
        if level + 1 == self.phys.nlevels {
            if let Some(slot) = self.phys.blkptr.get_mut(blkid as usize) {
                *slot = bp;
            }
            return;
        }
        let e = tree::epbs(self.phys.indblkshift);
        let parent = self.indirects.get_mut(&(level + 1, tree::ancestor(blkid, 1, e)));
        debug_assert!(parent.is_some(), "the path to a changed block is in memory");
        if let Some(ind) = parent {
            ind.bps[(blkid & ((1 << e) - 1)) as usize] = bp;
        }
    }

    /// Puts a new pointer in the place of the old one.
    fn set(&mut self, level: u8, blkid: u64, bp: BlkPtr, txg: Txg) {
        let old = self.get(level, blkid);
        self.replaced(old, bp, txg);
        self.put(level, blkid, bp);
    }

    fn replaced(&mut self, old: BlkPtr, new: BlkPtr, txg: Txg) {
        let store = &self.dn.shared.store;
        let delta = store.dsize(&new) as i64 - store.dsize(&old) as i64;
        if exchange(old, new, txg, &mut self.born, &mut self.killed) {
            self.used_delta += delta;
        }
    }

    fn make_hole(&mut self, level: u8, blkid: u64, txg: Txg, props: WriteProps) {
        let old = self.get(level, blkid);
        if old.is_hole() {
            return;
        }
        let lsize =
            if level == 0 { u64::from(self.phys.datablkszsec) << 9 } else { 1u64 << self.phys.indblkshift };
        let hole =
            if props.hole_birth { BlkPtr::hole(lsize, self.phys.otype, level, txg.0) } else { BlkPtr::ZERO };
        self.set(level, blkid, hole, txg);
    }

    /// Frees the level-0 blocks `first..last`, and indirect blocks that become empty.
    async fn free_blocks(&mut self, first: u64, last: u64, txg: Txg, props: WriteProps) -> Result<()> {
        let last = last.min(self.phys.maxblkid + 1);
        if self.phys.nlevels == 0 || first >= last {
            return Ok(());
        }
        let top = self.phys.nlevels - 1;
        let e = tree::epbs(self.phys.indblkshift);
        let (from, to) = (tree::ancestor(first, top, e), tree::ancestor(last - 1, top, e));
        for blkid in from..=to.min(u64::from(self.phys.nblkptr).saturating_sub(1)) {
            self.free_under(top, blkid, first, last, txg, props).await?;
        }
        Ok(())
    }

    fn free_under(
        &mut self,
        level: u8,
        blkid: u64,
        first: u64,
        last: u64,
        txg: Txg,
        props: WriteProps,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if self.get(level, blkid).is_hole() && !self.indirects.contains_key(&(level, blkid)) {
                return Ok(());
            }
            if level == 0 {
                self.make_hole(0, blkid, txg, props);
                return Ok(());
            }
            self.ensure_indirect(level, blkid).await?;
            let e = tree::epbs(self.phys.indblkshift);
            let child = |b: u64| tree::ancestor(b, level - 1, e);
            let (lo, hi) = (blkid << e, ((blkid + 1) << e) - 1);
            let (from, to) = (child(first).max(lo), child(last - 1).min(hi));
            if level > 1 {
                self.prefetch(level - 1, from, to).await?;
            }
            for c in from..=to {
                self.free_under(level - 1, c, first, last, txg, props).await?;
            }
            let empty =
                self.indirects.get(&(level, blkid)).is_some_and(|i| i.bps.iter().all(BlkPtr::is_hole));
            if empty {
                self.indirects.remove(&(level, blkid));
                self.written.push((level, blkid, Bytes::new()));
                self.make_hole(level, blkid, txg, props);
            }
            Ok(())
        })
    }

    /// Reads the indirect blocks `from..=to` of a level, several at a time.
    async fn prefetch(&mut self, level: u8, from: u64, to: u64) -> Result<()> {
        let wanted: Vec<u64> = (from..=to)
            .filter(|&c| !self.get(level, c).is_hole() && !self.indirects.contains_key(&(level, c)))
            .collect();
        for chunk in wanted.chunks(PREPARE_CONCURRENCY) {
            let loads = chunk.iter().map(|&c| self.dn.load_with(level, c, Priority::AsyncRead));
            for r in futures_util::future::join_all(loads).await {
                r?;
            }
        }
        Ok(())
    }

    fn request(&self, data: Bytes, level: u8, blkid: u64, fill: u64, props: WriteProps) -> WriteReq {
        let metadata = level > 0 || object_type::is_metadata(self.phys.otype);
        let compress = if metadata {
            props.metadata_compress
        } else {
            match Compress::from_u8(self.phys.compress) {
                None | Some(Compress::Inherit) => props.compress,
                Some(kind) => CompressSpec::new(kind),
            }
        };
        let checksum = match Checksum::from_u8(self.phys.checksum) {
            None | Some(Checksum::Inherit) => props.checksum,
            Some(kind) => kind,
        };
        WriteReq {
            data,
            bookmark: Bookmark::new(self.dn.objset_id(), self.dn.id(), level, blkid),
            otype: self.phys.otype,
            level,
            checksum: if metadata { metadata_checksum(checksum) } else { checksum },
            compress,
            copies: if metadata { props.metadata_copies } else { props.copies },
            fill,
            prev: self.get(level, blkid),
            may_embed: props.embed && level == 0 && !object_type::has_fill(self.phys.otype),
        }
    }

    fn spill_request(&self, data: Bytes, props: WriteProps) -> WriteReq {
        WriteReq {
            data,
            bookmark: Bookmark {
                blkid: Bookmark::SPILL_BLKID,
                ..Bookmark::new(self.dn.objset_id(), self.dn.id(), 0, 0)
            },
            otype: self.phys.bonustype,
            level: 0,
            checksum: metadata_checksum(props.checksum),
            compress: props.metadata_compress,
            copies: props.metadata_copies,
            fill: 1,
            prev: self.phys.spill.unwrap_or_default(),
            may_embed: props.embed,
        }
    }

    fn set_spill(&mut self, bp: BlkPtr, txg: Txg) {
        let old = self.phys.spill.unwrap_or_default();
        self.replaced(old, bp, txg);
        self.phys.spill = Some(bp);
        self.phys.flags |= DNODE_FLAG_SPILL_BLKPTR;
    }

    fn drop_spill(&mut self) {
        if let Some(old) = self.phys.spill.take() {
            self.used_delta -= self.dn.shared.store.dsize(&old) as i64;
            if !old.is_hole() {
                self.killed.push(old);
            }
        }
        self.phys.flags &= !DNODE_FLAG_SPILL_BLKPTR;
    }
}
