//! One object on its way to disk: a private copy of its synced state, to which frees are applied
//! and new pointers put.
//!
//! A [`Work`] belongs to the sync task alone. Nothing of it can be seen by others until the sync
//! publishes it, so an error half way leaves the object in memory as it was.

use super::super::dbuf::{Base, Fate, Frozen};
use super::super::dnode::{Dnode, Head, Pending};
use super::super::objset::{Owner, WriteProps};
use super::super::range::RangeSet;
use super::super::resolve::{FaultCounts, Place, place_of};
use super::super::tree;
use super::{PREPARE_CONCURRENCY, exchange, metadata_checksum};
use crate::error::{Error, Result};
use crate::types::{Bookmark, ObjectId, Txg};
use crate::zio::{Met, Packed, Priority, WriteReq};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::{DNODE_FLAG_SPILL_BLKPTR, DNODE_FLAG_USED_BYTES, DnodePhys};
use zilla_ondisk::object_type;

/// Indirect blocks that are read ahead of their being freed: 8 MiB of the usual ones.
const FREE_AHEAD: u64 = 64;
/// The objset number of the pool's own objects.
const MOS: u64 = 0;

pub(super) struct Indirect {
    pub(super) bps: Vec<BlkPtr>,
}

/// One object on its way to disk.
pub(super) struct Work {
    pub(super) dn: Arc<Dnode>,
    pub(super) phys: DnodePhys,
    pub(super) before: Option<(Owner, u64)>,
    /// Level-0 blocks that this txg wrote; None where the whole block became empty.
    pub(super) blocks: BTreeMap<u64, Option<Bytes>>,
    /// Those that are written even if they are what is there.
    pub(super) anew: BTreeSet<u64>,
    /// Records of which the old contents must be read, and whether that is a read that their writer
    /// put off.
    pub(super) lacking: BTreeMap<u64, bool>,
    pub(super) faults: FaultCounts,
    /// Where the log had blocks written already, and which of them this object has now.
    pub(super) ahead: BTreeMap<u64, BlkPtr>,
    pub(super) taken: Vec<BlkPtr>,
    /// Blocks that are stored as they came compressed.
    pub(super) packed: BTreeMap<u64, Packed>,
    /// Blocks that another file has too, and which of them have a place of their own.
    pub(super) clones: BTreeMap<u64, BlkPtr>,
    pub(super) shared: Vec<BlkPtr>,
    /// What the dbufs' bases are once this is published.
    pub(super) bases: Vec<(u64, Base)>,
    /// Indirect blocks that change. All ancestors of a changed block are here.
    pub(super) indirects: BTreeMap<(u8, u64), Indirect>,
    /// Encoded indirect blocks, for publication.
    pub(super) written: Vec<(u8, u64, Bytes)>,
    pub(super) spill: Option<Option<Bytes>>,
    pub(super) born: Vec<BlkPtr>,
    pub(super) killed: Vec<BlkPtr>,
    pub(super) used_delta: i64,
    pub(super) freed: bool,
    /// Frees that could not be done.
    pub(super) left: RangeSet,
    /// Indirect blocks that could not be read and are gone with all that they led to.
    pub(super) lost: Vec<(u8, u64)>,
    /// Indirect blocks below which something was freed.
    met: Met,
}

impl Work {
    pub(super) fn new(dn: Arc<Dnode>, phys: DnodePhys) -> Work {
        Work {
            dn,
            phys,
            before: None,
            blocks: BTreeMap::new(),
            anew: BTreeSet::new(),
            lacking: BTreeMap::new(),
            faults: FaultCounts::default(),
            ahead: BTreeMap::new(),
            taken: Vec::new(),
            packed: BTreeMap::new(),
            clones: BTreeMap::new(),
            shared: Vec::new(),
            bases: Vec::new(),
            indirects: BTreeMap::new(),
            written: Vec::new(),
            spill: None,
            born: Vec::new(),
            killed: Vec::new(),
            used_delta: 0,
            freed: false,
            left: RangeSet::default(),
            lost: Vec::new(),
            met: Met::default(),
        }
    }

    pub(super) fn apply_head(&mut self, pending: &Pending) {
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
        while self.phys.nlevels < h.levels.min(tree::MAX_LEVELS) {
            self.grow();
        }
    }

    /// Freezes the txg's layers, and brings all that leads to them into this work. Records whose
    /// old contents must be read first are noted in `lacking`.
    pub(super) async fn take_blocks(&mut self, pending: &Pending, txg: Txg) -> Result<()> {
        let blksz = u64::from(self.phys.datablkszsec) << 9;
        for &blkid in &pending.blocks {
            let Some((frozen, fate)) = self.freeze(blkid, txg) else { continue };
            fate.into_iter().for_each(|f| self.faults.met(f, blksz));
            match frozen {
                Frozen::NeedsBase => {
                    self.lacking.insert(blkid, fate == Some(Fate::Due));
                }
                Frozen::Data(data) => {
                    self.blocks.insert(blkid, Some(data));
                }
                Frozen::Cloned(bp, data) => self.cloned(blkid, bp, data),
                // The range that made it a hole is in `frees`, so its pointer has been dealt with.
                Frozen::Hole => self.bases.push((blkid, Base::Hole)),
            }
        }
        self.copy_uncountable(txg).await?;
        let ids: BTreeSet<u64> =
            self.blocks.keys().chain(self.lacking.keys()).chain(self.clones.keys()).copied().collect();
        self.load_paths(&ids).await;
        for blkid in ids {
            if let Err(e) = self.ensure_path(blkid).await {
                self.hold(blkid, txg, e).await?;
            }
        }
        Ok(())
    }

    fn cloned(&mut self, blkid: u64, bp: BlkPtr, data: Option<Bytes>) {
        self.clones.insert(blkid, bp);
        self.bases.push((blkid, data.map_or(Base::Unknown, Base::Data)));
    }

    /// Clones that the pool cannot count, as what it knows of the block is damaged, become copies.
    async fn copy_uncountable(&mut self, txg: Txg) -> Result<()> {
        let store = self.dn.shared.store.clone();
        let mut damaged = Vec::new();
        for (&blkid, bp) in self.clones.iter().filter(|(_, bp)| !bp.is_embedded()) {
            if let Err(e @ Error::Corrupt(_)) = store.check_counts(bp).await {
                damaged.push((blkid, e));
            }
        }
        let mut copied = BTreeSet::new();
        for (blkid, why) in damaged {
            // More would be too much for one txg, and what was acknowledged is not lost for it.
            if !self.dn.may_copy() {
                return Err(why);
            }
            match self.dn.copy_clone(blkid, txg, why).await {
                Ok(()) => drop(copied.insert(blkid)),
                Err(e) => self.hold(blkid, txg, e).await?,
            }
        }
        for &blkid in &copied {
            self.clones.remove(&blkid);
            if let Some((Frozen::Data(data), _)) = self.freeze(blkid, txg) {
                self.blocks.insert(blkid, Some(data));
            }
        }
        self.bases.retain(|(b, _)| !copied.contains(b));
        Ok(())
    }

    /// Points to the blocks that others have too. Their parents are here.
    pub(super) fn put_clones(&mut self, txg: Txg) {
        for (blkid, mut bp) in std::mem::take(&mut self.clones) {
            match bp.is_embedded() {
                true => bp.set_birth(txg.0),
                false => {
                    bp.set_births(txg.0, bp.phys_birth());
                    self.shared.push(bp);
                }
            }
            self.set(0, blkid, bp, txg);
        }
    }

    /// The old contents of a record in `lacking` were read, or cannot be.
    pub(super) async fn resolved(&mut self, blkid: u64, loaded: Result<()>, txg: Txg) -> Result<()> {
        match (self.freeze(blkid, txg), loaded) {
            (Some((Frozen::Data(data), _)), _) => {
                if self.lacking.remove(&blkid) == Some(true) {
                    self.faults.resolved_by_sync += 1;
                }
                self.blocks.insert(blkid, Some(data));
                Ok(())
            }
            #[cfg(feature = "planted")]
            (_, Err(_)) if crate::planted::is(crate::planted::Bug::DamageHidden) => {
                self.dn.inner.lock().dbuf(blkid).set_base(Base::Hole);
                Box::pin(self.resolved(blkid, Ok(()), txg)).await
            }
            (_, Err(e)) => self.hold(blkid, txg, e).await,
            (_, Ok(())) => Err(Error::corrupt(None, "", format!("block {blkid} has no contents to write"))),
        }
    }

    /// Where the old contents of a record lie, for reading in the order of the disks.
    pub(super) fn place(&self, blkid: u64) -> Place {
        place_of(&self.get(0, blkid))
    }

    /// Reads the indirect blocks above so many blocks, a level at a time, those of a level at once.
    /// Which cannot be read is met again.
    async fn load_paths(&mut self, ids: &BTreeSet<u64>) {
        let Some(&last) = ids.last() else { return };
        while tree::levels_for(last, self.phys.nblkptr, self.phys.indblkshift) > self.phys.nlevels {
            self.grow();
        }
        let e = tree::epbs(self.phys.indblkshift);
        let top = self.phys.nlevels.saturating_sub(1);
        for level in (1..=top).rev() {
            let mut wanted: Vec<u64> = ids.iter().map(|&b| tree::ancestor(b, level, e)).collect();
            wanted.dedup();
            // Below one that could not be read nothing is known.
            wanted.retain(|&c| {
                level == top || self.indirects.contains_key(&(level + 1, tree::ancestor(c, 1, e)))
            });
            self.prefetch(level, &wanted, Priority::SyncRead).await;
            for c in wanted {
                if self.is_loaded(level, c) {
                    // It is in memory: nothing is waited for.
                    let _ = self.ensure_indirect(level, c).await;
                }
            }
        }
    }

    fn is_loaded(&self, level: u8, blkid: u64) -> bool {
        self.get(level, blkid).is_hole() || self.dn.inner.lock().indirects.get(level, blkid).is_some()
    }

    /// Leaves a block to a later sync, as what it needs of the old state cannot be read.
    async fn hold(&mut self, blkid: u64, txg: Txg, why: Error) -> Result<()> {
        if self.is_vital() {
            return Err(why);
        }
        self.blocks.remove(&blkid);
        if self.lacking.remove(&blkid) == Some(true) {
            self.faults.failed += 1;
        }
        self.ahead.remove(&blkid);
        self.packed.remove(&blkid);
        if self.clones.remove(&blkid).is_some() {
            self.bases.retain(|(b, _)| *b != blkid);
        }
        self.dn.hold(blkid, txg, &why).await;
        Ok(())
    }

    /// Whether the object is one of those that must agree with each other.
    fn is_vital(&self) -> bool {
        self.dn.objset_id() == MOS || self.dn.id() == ObjectId::META_DNODE
    }

    /// What the txg leaves of a block, and what has become of the read that its first write put
    /// off.
    fn freeze(&mut self, blkid: u64, txg: Txg) -> Option<(Frozen, Option<Fate>)> {
        let mut inner = self.dn.inner.lock();
        let blksz = (self.phys.datablkszsec as usize) << 9;
        let db = inner.dbuf(blkid);
        let fate = db.fate(txg);
        let frozen = db.freeze(txg)?;
        if let Some(bp) = db.written_ahead(txg) {
            self.ahead.insert(blkid, bp);
        }
        let whole = matches!(&frozen, Frozen::Data(data) if data.len() == blksz);
        if let Some(packed) = db.packed(txg).filter(|_| whole) {
            self.packed.insert(blkid, packed.clone());
        }
        let cut = match frozen {
            // A block of another size than the object's is the first block of an object that has
            // since grown, in this very txg: it was dirtied again at its new size, so a layer is
            // never short. A longer one is cut.
            Frozen::Data(data) if data.len() > blksz => Frozen::Data(data.slice(..blksz)),
            other => other,
        };
        Some((cut, fate))
    }

    /// Uses a block that was written ahead, if it is what would be written now. Its parents are
    /// here.
    pub(super) fn take_over(&mut self, blkid: u64, data: &Bytes, txg: Txg) -> bool {
        let fits = |bp: &BlkPtr| bp.lsize() == data.len() as u64 && bp.otype() == self.phys.otype;
        let Some(bp) = self.ahead.remove(&blkid).filter(fits) else { return false };
        debug_assert_eq!(bp.birth(), txg.0);
        self.set(0, blkid, bp, txg);
        self.taken.push(bp);
        true
    }

    /// Makes the tree deep enough for `blkid` and loads every indirect block on the way to it.
    pub(super) async fn ensure_path(&mut self, blkid: u64) -> Result<()> {
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
    pub(super) fn grow(&mut self) {
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
    pub(super) async fn ensure_indirect(&mut self, level: u8, blkid: u64) -> Result<()> {
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
    pub(super) fn get(&self, level: u8, blkid: u64) -> BlkPtr {
        if level + 1 == self.phys.nlevels {
            return self.phys.blkptr.get(blkid as usize).copied().unwrap_or_default();
        }
        let e = tree::epbs(self.phys.indblkshift);
        self.indirects
            .get(&(level + 1, tree::ancestor(blkid, 1, e)))
            .and_then(|ind| ind.bps.get((blkid & ((1 << e) - 1)) as usize).copied())
            .unwrap_or_default()
    }

    pub(super) fn put(&mut self, level: u8, blkid: u64, bp: BlkPtr) {
        if level == 0 {
            // What could not be freed there before is older than this.
            self.left.remove(blkid, blkid + 1);
        }
        if level + 1 == self.phys.nlevels {
            if let Some(slot) = self.phys.blkptr.get_mut(blkid as usize) {
                *slot = bp;
            }
            return;
        }
        let e = tree::epbs(self.phys.indblkshift);
        let parent = self.indirects.get_mut(&(level + 1, tree::ancestor(blkid, 1, e)));
        let place = parent.and_then(|ind| ind.bps.get_mut((blkid & ((1 << e) - 1)) as usize));
        debug_assert!(place.is_some(), "the path to a changed block is in memory");
        if let Some(place) = place {
            *place = bp;
        }
    }

    /// Puts a new pointer in the place of the old one.
    pub(super) fn set(&mut self, level: u8, blkid: u64, bp: BlkPtr, txg: Txg) {
        let old = self.get(level, blkid);
        self.replaced(old, bp, txg);
        self.put(level, blkid, bp);
    }

    pub(super) fn replaced(&mut self, old: BlkPtr, new: BlkPtr, txg: Txg) {
        let store = &self.dn.shared.store;
        let delta = store.dsize(&new) as i64 - store.dsize(&old) as i64;
        if exchange(old, new, txg, &mut self.born, &mut self.killed) {
            self.used_delta += delta;
        }
    }

    pub(super) fn make_hole(&mut self, level: u8, blkid: u64, txg: Txg, props: WriteProps) {
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
    pub(super) async fn free_blocks(
        &mut self,
        first: u64,
        last: u64,
        txg: Txg,
        props: WriteProps,
    ) -> Result<()> {
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

    /// Frees all there is, whatever the dnode says of where it ends.
    pub(super) async fn free_all(&mut self, txg: Txg, props: WriteProps) -> Result<()> {
        let Some(top) = self.phys.nlevels.checked_sub(1) else { return Ok(()) };
        for blkid in 0..u64::from(self.phys.nblkptr) {
            self.free_under(top, blkid, 0, u64::MAX, txg, props).await?;
        }
        // Nothing of it is written any more.
        self.indirects.clear();
        Ok(())
    }

    pub(super) fn free_under(
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
            if let Err(e) = self.enter(level, blkid, txg) {
                return self.leave(level, blkid, (first, last), props, txg, e);
            }
            if let Err(e) = self.ensure_indirect(level, blkid).await {
                return self.leave(level, blkid, (first, last), props, txg, e);
            }
            let e = tree::epbs(self.phys.indblkshift);
            let child = |b: u64| tree::ancestor(b, level - 1, e);
            let (lo, hi) = (blkid << e, ((blkid + 1) << e) - 1);
            let (from, to) = (child(first).max(lo), child(last - 1).min(hi));
            for c in from..=to {
                if level > 1 && (c - from).is_multiple_of(FREE_AHEAD) {
                    let below: Vec<u64> = (c..=to.min(c + FREE_AHEAD - 1)).collect();
                    self.prefetch(level - 1, &below, Priority::AsyncRead).await;
                }
                self.free_under(level - 1, c, first, last, txg, props).await?;
            }
            // Where the tree has just grown by several levels, the new blocks between its top and
            // the old pointers do not point to them yet.
            let leads_on =
                level > 1 && self.indirects.range((level - 1, lo)..=(level - 1, hi)).next().is_some();
            let empty =
                self.indirects.get(&(level, blkid)).is_some_and(|i| i.bps.iter().all(BlkPtr::is_hole));
            if empty && !leads_on {
                self.indirects.remove(&(level, blkid));
                self.written.push((level, blkid, Bytes::new()));
                self.make_hole(level, blkid, txg, props);
            }
            Ok(())
        })
    }

    /// Comes to an indirect block below which something is freed: each has one place in the object.
    fn enter(&mut self, level: u8, blkid: u64, txg: Txg) -> Result<()> {
        let bp = self.get(level, blkid);
        if bp.is_hole() {
            return Ok(());
        }
        self.met.root(self.dn.objset_id(), txg);
        self.met.enter(&bp, Bookmark::new(self.dn.objset_id(), self.dn.id(), level, blkid))
    }

    /// Frees what lies below an indirect block that cannot be read, as far as that can be done. If
    /// all of it is to go its pointer goes, and what it leads to stays allocated and counted as
    /// this dataset's: nobody knows what that is.
    fn leave(
        &mut self,
        level: u8,
        blkid: u64,
        (first, last): (u64, u64),
        props: WriteProps,
        txg: Txg,
        why: Error,
    ) -> Result<()> {
        let shift = tree::epbs(self.phys.indblkshift) * u32::from(level);
        let lo = blkid.checked_shl(shift).unwrap_or(u64::MAX);
        let hi = (blkid + 1).checked_shl(shift).unwrap_or(u64::MAX).min(self.phys.maxblkid + 1);
        let (objset, object) = (self.dn.objset_id(), self.dn.id());
        if first <= lo && last >= hi {
            tracing::error!(objset, %object, level, blkid, error = %why, "space below a damaged block is lost");
            let lsize = 1u64 << self.phys.indblkshift;
            let hole = BlkPtr::hole(lsize, self.phys.otype, level, txg.0);
            self.put(level, blkid, if props.hole_birth { hole } else { BlkPtr::ZERO });
            self.lost.push((level, blkid));
            return Ok(());
        }
        if self.is_vital() {
            return Err(why);
        }
        tracing::warn!(objset, %object, level, blkid, error = %why, "freeing below a damaged block is held");
        self.left.insert(first.max(lo), last.min(hi));
        Ok(())
    }

    /// Reads indirect blocks of a level, several at a time. Who needs one that cannot be read will
    /// see.
    async fn prefetch(&self, level: u8, ids: &[u64], prio: Priority) {
        let missing = |c: &u64| !self.get(level, *c).is_hole() && !self.indirects.contains_key(&(level, *c));
        let wanted: Vec<u64> = ids.iter().copied().filter(missing).collect();
        let dn = &self.dn;
        let load = |c| async move { drop(dn.load_with(level, c, prio).await) };
        futures_util::stream::iter(wanted).for_each_concurrent(PREPARE_CONCURRENCY, load).await;
    }

    pub(super) fn request(
        &self,
        data: Bytes,
        level: u8,
        blkid: u64,
        fill: u64,
        props: WriteProps,
    ) -> WriteReq {
        let metadata = level > 0 || object_type::is_metadata(self.phys.otype);
        let compress = if metadata { props.metadata_compress } else { props.compress_of(self.phys.compress) };
        let checksum = match metadata {
            true => metadata_checksum(props.checksum_of(self.phys.checksum)),
            false => props.data_checksum_of(self.phys.checksum),
        };
        WriteReq {
            data,
            bookmark: Bookmark::new(self.dn.objset_id(), self.dn.id(), level, blkid),
            otype: self.phys.otype,
            level,
            checksum,
            compress,
            copies: if metadata { props.metadata_copies } else { props.copies },
            fill,
            prev: self.get(level, blkid),
            may_embed: props.embed && level == 0 && !object_type::has_fill(self.phys.otype),
            special_upto: props.special_upto,
            dedup: props.dedup.filter(|_| !metadata),
            may_stay: !metadata && self.dn.objset_id() != MOS && !self.anew.contains(&blkid),
            packed: None,
        }
    }

    pub(super) fn spill_request(&self, data: Bytes, props: WriteProps) -> WriteReq {
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
            special_upto: 0,
            dedup: None,
            may_stay: false,
            packed: None,
        }
    }

    pub(super) fn set_spill(&mut self, bp: BlkPtr, txg: Txg) {
        let old = self.phys.spill.unwrap_or_default();
        self.replaced(old, bp, txg);
        self.phys.spill = Some(bp);
        self.phys.flags |= DNODE_FLAG_SPILL_BLKPTR;
    }

    pub(super) fn drop_spill(&mut self) {
        if let Some(old) = self.phys.spill.take() {
            self.used_delta -= self.dn.shared.store.dsize(&old) as i64;
            if !old.is_hole() {
                self.killed.push(old);
            }
        }
        self.phys.flags &= !DNODE_FLAG_SPILL_BLKPTR;
    }
}
