//! Writing what one txg changed in one objset: a few large batches, leaves first.
//!
//! Each dirty object becomes a [`Work`]: a private copy of its synced state to which frees are
//! applied and into which new pointers are put. Level 0 of all works is one batch for the store
//! (which compresses, checksums, allocates and submits), then level 1, and so on; the store returns
//! pointers before the data is stable, so no level waits for the one below. Then the dnodes
//! themselves are put into their blocks, the meta-dnode is written the same way, and last the
//! objset's root block. Each work is published to its in-memory dnode in one step under its lock.
//!
//! A crash anywhere here loses nothing but this txg: no block in use was overwritten, and the
//! pointers that were replaced are only reported as `killed`, to be freed by the caller within the
//! same txg.
//!
//! What cannot be read of an object's old state is that object's error: it is held (`held.rs`) and
//! the others go on. Any other error leaves the txg half written in memory; the caller must suspend
//! the pool (the disk still holds the last txg, whole).

mod work;

use self::work::Work;
use super::dbuf::Base;
use super::dnode::Dnode;
use super::objset::{Objset, Owner, WriteProps};
use super::slots::{Slot, used_slots};
use super::tree::BLKPTR_SHIFT;
use crate::error::{Errno, Error, Result};
use crate::types::{Bookmark, ObjectId, Txg};
use crate::zio::{Priority, WriteReq};
use bytes::Bytes;
use futures_util::StreamExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_codec::checksum::Checksum;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::{
    DNODE_FLAG_USED_BYTES, DNODE_FLAG_USEROBJUSED_ACCOUNTED, DNODE_FLAG_USERUSED_ACCOUNTED, DNODE_MIN_SIZE,
    DNODE_SHIFT, DNODES_PER_BLOCK, DnodePhys,
};
use zilla_ondisk::object_type;
use zilla_ondisk::objset::OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE;

/// How many objects may have reads of old blocks under way at once, and how many of an object.
const PREPARE_CONCURRENCY: usize = 64;
/// Records whose old contents had to be read are written when there are so many bytes of them:
/// enough for large I/Os.
const RESOLVED_BATCH: usize = 8 << 20;

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
    /// Of those born the blocks that are another file's as well.
    pub cloned: Vec<BlkPtr>,
    /// Blocks that were written ahead of the sync and are not needed. They were never the objset's.
    pub unused: Vec<BlkPtr>,
    pub usage: Vec<Usage>,
}

impl Objset {
    /// Writes everything `txg` changed. `root` is the pointer that the last sync returned (or the
    /// one the objset was opened from).
    pub async fn sync(self: &Arc<Self>, txg: Txg, root: BlkPtr) -> Result<ObjsetSync> {
        let props = self.props();
        let mut dirty = std::mem::take(&mut *self.shared.dirty[txg].lock());
        let meta = self.prepare_meta(&mut dirty, txg).await?;
        let owner_fn = *self.owner.lock();
        let objects = self.phys().flags & OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE != 0;
        let mut works = Vec::with_capacity(dirty.len());
        let mut prepared = futures_util::stream::iter(dirty)
            .map(|dn| prepare(dn, txg, props, owner_fn))
            .buffer_unordered(PREPARE_CONCURRENCY);
        while let Some(w) = prepared.next().await {
            works.push(w?);
        }
        drop(prepared);
        // The same objects in the same order give the same disk: the simulator relies on it, and
        // neighbours stay together.
        works.sort_by_key(|w| w.dn.id());
        self.write_works(&mut works, txg, props).await?;

        let taken = works.iter_mut().flat_map(|w| std::mem::take(&mut w.taken));
        let unused = self.take_ahead(txg, taken);
        let mut out = ObjsetSync { unused, ..ObjsetSync::default() };
        for w in &mut works {
            out.cloned.append(&mut w.shared);
            account(w, owner_fn, objects, &mut out.usage);
            self.shared.cache.faults.add(&w.faults);
        }
        let mut meta = meta.finish(&works)?;
        if let Some(last) = *self.last_dnode_block.lock() {
            meta.phys.maxblkid = last;
        }
        self.write_works(std::slice::from_mut(&mut meta), txg, props).await?;
        self.write_root(&works, meta, txg, root, props, &mut out).await?;
        for w in works {
            self.publish(w, txg, &mut out);
        }
        self.shared.held.prune();
        Ok(out)
    }

    /// Level by level: hand a batch to the store, put the pointers it returns into their parents.
    async fn write_works(&self, works: &mut [Work], txg: Txg, props: WriteProps) -> Result<()> {
        self.write_blocks(works, txg, props).await?;
        self.write_lacking(works, txg, props).await?;
        self.write_indirects(works, txg, props).await
    }

    /// Reads what records written in part lack, in the order of the disks, and writes them, some
    /// at a time. Most of these reads are under way since the txg was closed
    /// ([`super::resolve`]), and go on while others are written. Those that are begun here all
    /// end before anything is written: what is written may wait for the same block, or for who
    /// looks after the devices, and one that nobody polls would keep both.
    async fn write_lacking(&self, works: &mut [Work], txg: Txg, props: WriteProps) -> Result<()> {
        let of = |(i, w): (usize, &Work)| {
            w.lacking.keys().map(|&b| (w.place(b), i, b, w.dn.clone())).collect::<Vec<_>>()
        };
        let mut lacking: Vec<_> = works.iter().enumerate().flat_map(of).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        lacking.sort_unstable_by_key(|(place, i, b, _)| (*place, *i, *b));
        let load = |(_, i, blkid, dn): (_, usize, u64, Arc<Dnode>)| async move {
            (i, blkid, dn.load_for(txg, blkid, Priority::SyncRead).await)
        };
        let mut lacking = lacking.into_iter().peekable();
        while lacking.peek().is_some() {
            let (mut some, mut bytes) = (Vec::new(), 0);
            while bytes < RESOLVED_BATCH
                && let Some(next) = lacking.next()
            {
                bytes += usize::from(nth(works, next.1)?.phys.datablkszsec) << 9;
                some.push(next);
            }
            let loads = futures_util::stream::iter(some).map(load).buffer_unordered(PREPARE_CONCURRENCY);
            for (i, blkid, loaded) in loads.collect::<Vec<_>>().await {
                nth(works, i)?.resolved(blkid, loaded, txg).await?;
            }
            self.write_blocks(works, txg, props).await?;
        }
        Ok(())
    }

    /// Level 0, as far as it is known.
    async fn write_blocks(&self, works: &mut [Work], txg: Txg, props: WriteProps) -> Result<()> {
        let mut at = Vec::new();
        let mut reqs = Vec::new();
        for (i, w) in works.iter_mut().enumerate() {
            for (blkid, data) in std::mem::take(&mut w.blocks) {
                match data {
                    Some(data) if w.take_over(blkid, &data, txg) => w.bases.push((blkid, Base::Data(data))),
                    Some(data) => {
                        let fill = fill_of(&w.phys, &data);
                        w.bases.push((blkid, Base::Data(data.clone())));
                        let packed = w.packed.remove(&blkid);
                        reqs.push(WriteReq { packed, ..w.request(data, 0, blkid, fill, props) });
                        at.push((i, blkid));
                    }
                    None => {
                        w.bases.push((blkid, Base::Hole));
                        w.make_hole(0, blkid, txg, props);
                    }
                }
            }
            w.put_clones(txg);
            match w.spill.take() {
                Some(Some(data)) => {
                    reqs.push(w.spill_request(data, props));
                    at.push((i, Bookmark::SPILL_BLKID));
                }
                Some(None) => w.drop_spill(),
                None => {}
            }
        }
        let bps = self.shared.store.write(txg, reqs).await?;
        for (&(i, blkid), bp) in at.iter().zip(bps) {
            let w = nth(works, i)?;
            if blkid == Bookmark::SPILL_BLKID {
                w.set_spill(bp, txg);
            } else {
                w.set(0, blkid, bp, txg);
            }
        }
        Ok(())
    }

    async fn write_indirects(&self, works: &mut [Work], txg: Txg, props: WriteProps) -> Result<()> {
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
                    let fill = ind.bps.iter().fold(0, |n: u64, bp| n.saturating_add(bp.fill()));
                    let data = encode(&ind.bps);
                    w.written.push((level, blkid, data.clone()));
                    reqs.push(w.request(data, level, blkid, fill, props));
                    at.push((i, blkid));
                }
            }
            let bps = self.shared.store.write(txg, reqs).await?;
            for (&(i, blkid), bp) in at.iter().zip(bps) {
                nth(works, i)?.set(level, blkid, bp, txg);
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

    /// What the sync needs of the meta-dnode: the blocks that hold the dirty objects' dnodes.
    /// Objects whose block cannot be read are taken off the list, and left to the next txg.
    async fn prepare_meta(self: &Arc<Self>, dirty: &mut Vec<Arc<Dnode>>, txg: Txg) -> Result<Meta> {
        let block_of = |dn: &Dnode| ((dn.id().0 as i64) > 0).then(|| dn.id().0 / DNODES_PER_BLOCK);
        let wanted: BTreeSet<u64> = dirty.iter().filter_map(|dn| block_of(dn)).collect();
        let loads = wanted.iter().map(|&b| self.meta.load_with(0, b, Priority::SyncRead));
        // Who cannot be read is met again below.
        drop(futures_util::future::join_all(loads).await);
        let mut meta = Meta { work: Work::new(self.meta.clone(), self.meta.phys()), images: BTreeMap::new() };
        for blkid in wanted {
            let ready = match super::resident(|| self.meta.block(blkid)).await {
                Ok(old) => meta.work.ensure_path(blkid).await.map(|()| old),
                Err(e) => Err(e),
            };
            match ready {
                Ok(old) => {
                    meta.images.insert(blkid, old.to_vec());
                }
                Err(e) if self.id() == 0 => return Err(e),
                Err(e) => {
                    tracing::error!(objset = self.id(), blkid, error = %e, "objects cannot be written");
                    let (wait, rest) = dirty.drain(..).partition(|dn| block_of(dn) == Some(blkid));
                    *dirty = rest;
                    let wait: Vec<Arc<Dnode>> = wait;
                    for dn in wait {
                        dn.postpone(txg).await;
                    }
                }
            }
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
            fill: meta.phys.blkptr.iter().fold(0, |n: u64, bp| n.saturating_add(bp.fill())),
            prev,
            may_embed: false,
            special_upto: 0,
            dedup: None,
            may_stay: false,
            packed: None,
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
            let frees = std::mem::take(&mut inner.pending[txg].frees);
            let (left, held) = (!w.left.is_empty(), &self.shared.held);
            let keep = self.props().keep || zilla_ondisk::object_type::is_metadata(inner.head.otype);
            inner.freed(&frees, w.left, held);
            if left {
                w.dn.holds_frees();
            }
            for (blkid, base) in w.bases {
                let len = if let Base::Data(data) = &base { data.len() } else { 0 };
                inner.unhold(blkid, held);
                let db = inner.dbuf(blkid);
                db.synced(txg, base);
                if !keep && db.is_clean() {
                    match db.on_clock {
                        Some(_) => db.set_base(Base::Unknown),
                        None => drop(inner.dbufs.remove(&blkid)),
                    }
                    continue;
                }
                if let Some(more) = db.count_as(len) {
                    cached.push((0, blkid, more));
                }
            }
            // What was read below them before they were damaged would still be found.
            let epbs = super::tree::epbs(inner.phys.indblkshift);
            w.lost.iter().for_each(|&(level, blkid)| inner.indirects.remove_below(level, blkid, epbs));
            for (level, blkid, data) in w.written {
                if let Some(more) = inner.indirects.insert(level, blkid, data) {
                    cached.push((level, blkid, more));
                }
            }
            if w.freed {
                inner.indirects.clear();
                inner.unhold_all(held);
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

/// The meta-dnode on its way to disk, and its blocks as they were.
struct Meta {
    work: Work,
    images: BTreeMap<u64, Vec<u8>>,
}

impl Meta {
    /// Puts the dnodes of `works` into their blocks.
    fn finish(self, works: &[Work]) -> Result<Work> {
        let Meta { work: mut meta, mut images } = self;
        for w in works.iter().filter(|w| (w.dn.id().0 as i64) > 0) {
            let id = w.dn.id().0;
            let (blkid, at) = (id / DNODES_PER_BLOCK, (id % DNODES_PER_BLOCK) as usize);
            let slots = usize::from(w.dn.slots().max(1));
            let place = images
                .get_mut(&blkid)
                .and_then(|image| image.get_mut(at << DNODE_SHIFT..(at + slots) << DNODE_SHIFT))
                .ok_or_else(|| Error::corrupt(None, "", format!("object {id} crosses its dnode block")))?;
            if w.freed {
                place.fill(0);
            } else {
                w.phys
                    .encode_into(place)
                    .map_err(|e| Error::corrupt(None, "", format!("object {id} cannot be written: {e}")))?;
            }
        }
        if let Some(last) = images.keys().next_back() {
            meta.phys.maxblkid = meta.phys.maxblkid.max(*last);
        }
        for (blkid, image) in images {
            let empty = used_slots(&image).iter().all(|s| *s == Slot::Free);
            meta.blocks.insert(blkid, (!empty).then(|| image.into()));
        }
        Ok(meta)
    }
}

/// Old pointer out, new pointer in, unless the new one uses the old one's space again.
fn exchange(old: BlkPtr, new: BlkPtr, txg: Txg, born: &mut Vec<BlkPtr>, killed: &mut Vec<BlkPtr>) -> bool {
    // What is there is what would have been written.
    if old == new && new.birth() < txg.0 {
        return false;
    }
    let reused = !old.is_hole()
        && !new.is_hole()
        && !old.is_embedded()
        && !new.is_embedded()
        && old.birth() == txg.0
        && old.phys_birth() == txg.0
        // (Each pointer to a block that is shared by its contents is counted by itself.)
        && !old.dedup()
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

/// One of the objects being written. A pointer for which there is none must not be lost in silence.
fn nth(works: &mut [Work], i: usize) -> Result<&mut Work> {
    works.get_mut(i).ok_or_else(|| Error::os(Errno::Io, "a block was written of no object of the txg"))
}

/// Takes what `txg` changed in an object, reading what it needs of the old state.
async fn prepare(
    dn: Arc<Dnode>,
    txg: Txg,
    props: WriteProps,
    owner_fn: Option<super::objset::OwnerFn>,
) -> Result<Work> {
    let (pending, phys, held, damaged) = {
        let mut inner = dn.inner.lock();
        let p = std::mem::take(&mut inner.pending[txg]);
        // Its frees still count for blocks that are first touched while this sync runs.
        inner.pending[txg].frees = p.frees.clone();
        (p, inner.phys.clone(), inner.held.frees.clone(), inner.held.damaged())
    };
    let mut w = Work::new(dn, phys);
    w.anew = damaged;
    w.anew.extend(&pending.anew);
    if let Some(f) = owner_fn {
        let counted = DNODE_FLAG_USERUSED_ACCOUNTED;
        if w.phys.otype != 0 && w.phys.flags & counted != 0 {
            w.before = f(w.phys.bonustype, &w.phys.bonus).map(|o| (o, w.phys.used_bytes()));
        }
    }
    if pending.free_object {
        w.freed = true;
        if w.phys.otype != 0 {
            w.free_all(txg, props).await?;
            w.drop_spill();
        }
        w.phys = DnodePhys { extra_slots: w.phys.extra_slots, ..DnodePhys::default() };
        return Ok(w);
    }
    w.apply_head(&pending);
    for (first, last) in held.iter().chain(pending.frees.iter()) {
        w.free_blocks(first, last, txg, props).await?;
    }
    w.take_blocks(&pending, txg).await?;
    if let Some(bonus) = &pending.bonus {
        w.phys.bonus = bonus.to_vec();
        w.phys.sealed_bonuslen = pending.sealed_bonuslen;
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::BonusAhead)
            && let Some(newer) = &w.dn.inner.lock().pending[txg.next()].bonus
        {
            w.phys.bonus = newer.to_vec();
        }
    }
    if let Some(head) = pending.head {
        w.phys.maxblkid = head.maxblkid;
    }
    // What was cut off and is still pointed to is not behind the object's end: later frees, and a
    // replay's, end there.
    if let Some((_, end)) = w.left.iter().last() {
        w.phys.maxblkid = w.phys.maxblkid.max(end - 1);
    }
    w.spill = pending.spill;
    #[cfg(feature = "planted")]
    if crate::planted::is(crate::planted::Bug::SpillLost) {
        w.spill = None;
    }
    Ok(w)
}

/// Charges the object to its owner, and its old owner with what it was. `objects`: they are
/// counted, too, as each then says of itself.
fn account(w: &mut Work, owner_fn: Option<super::objset::OwnerFn>, objects: bool, usage: &mut Vec<Usage>) {
    let Some(f) = owner_fn else { return };
    if (w.dn.id().0 as i64) <= 0 {
        return;
    }
    #[cfg(feature = "planted")]
    if w.freed && crate::planted::is(crate::planted::Bug::AccountLost) {
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
        w.phys.flags |= DNODE_FLAG_USERUSED_ACCOUNTED;
        if objects {
            w.phys.flags |= DNODE_FLAG_USEROBJUSED_ACCOUNTED;
        }
        let bytes = (w.phys.used_bytes() + DNODE_MIN_SIZE as u64) as i64;
        usage.push(Usage { owner, bytes, objects: 1 });
    }
}
