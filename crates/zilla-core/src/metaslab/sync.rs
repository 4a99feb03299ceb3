//! What a txg did to the metaslabs, brought to disk: once in every sync pass, and once at its end.

use super::Metaslabs;
use super::range_tree::RangeTree;
use super::slab::{Again, Metaslab, State};
use super::space_map::{Append, MapType, SpaceMap, create_object};
use super::vdev::{SpaceClass, VdevSpace};
use crate::dmu::{Dnode, NewObject, Objset, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{ObjectId, TXG_DEFER_SIZE, Txg};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::SPA_BLKPTRSHIFT;
use zilla_ondisk::object_type::DMU_OT_OBJECT_ARRAY;

/// Blocks of a metaslab's space map where changes come from the log in bulk, and where they come
/// every txg.
pub(super) const BLKSZ_WITH_LOG: u32 = 128 << 10;
const BLKSZ_WITHOUT_LOG: u32 = 16 << 10;
/// A map is rewritten when it is this many times as long as it need be, and of some length at all.
const CONDENSE_FACTOR: u64 = 2;
const CONDENSE_BLOCKS: u64 = 4;
/// A metaslab that was not allocated from for so many txgs is unloaded.
const UNLOAD_AFTER: u64 = 32;
/// The ends of so many maps are read at once.
pub(super) const ENDS: usize = 32;

/// How the sync changed the number of users of features; the pool adds this to its feature counts
/// in the same txg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureCounts {
    pub spacemap_histogram: i64,
    pub log_spacemap: i64,
    pub obsolete_counts: i64,
}

/// What becomes of entries that are to be appended to a metaslab's map.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// They can be.
    Sound,
    /// They stay in the logs.
    Later,
    /// The map was written anew, and has what the logs know.
    Renewed,
}

impl Metaslabs {
    /// Makes the object that lists a new vdev's space maps; its number belongs into the vdev's
    /// configuration.
    pub async fn create_array(&self, mos: &Arc<Objset>, tx: &Tx, vdev: u32) -> Result<ObjectId> {
        let v = self.vdev(vdev)?;
        let dn = resident(|| mos.alloc(tx, NewObject::new(DMU_OT_OBJECT_ARRAY, 512))).await?;
        v.ms_array.store(dn.id().0, Ordering::Relaxed);
        let id = dn.id();
        *v.array.lock() = Some(dn);
        Ok(id)
    }

    /// Changes of feature counts since the last call; to be applied in the txg being synced.
    pub fn take_feature_counts(&self) -> FeatureCounts {
        std::mem::take(&mut self.counts.lock())
    }

    /// One sync pass. Everything that was allocated and freed since the last is written down, which
    /// dirties the MOS, so that another pass follows; rewriting the same blocks there allocates
    /// nothing, and so the passes come to an end. The first pass also flushes some metaslabs from
    /// the logs.
    pub async fn sync(&self, mos: &Arc<Objset>, txg: Txg, pass: u64) -> Result<()> {
        let tx = Tx::syncing(txg);
        if pass == 1 && (mos.is_dirty(txg) || self.log.lock().flush_all) {
            self.flush_some(mos, &tx).await?;
        }
        let list = std::mem::take(&mut *self.dirty[txg.slot()].lock());
        let logged = self.features.read().log_spacemap;
        for some in list.chunks(ENDS) {
            if !logged {
                let has_entries =
                    |st: &State| !st.allocating[txg.slot()].is_empty() || !st.freeing.is_empty();
                self.read_ends(some.iter().copied(), has_entries).await;
            }
            for &(vdev, id) in some {
                let (v, ms) = self.metaslab(vdev, id)?;
                ms.state().listed[txg.slot()] = false;
                self.sync_metaslab(mos, &tx, pass, &v, &ms).await?;
                self.synced.lock().insert((vdev, id));
            }
        }
        self.destroy_obsolete_logs(mos, &tx).await
    }

    async fn sync_metaslab(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
    ) -> Result<()> {
        let slot = tx.txg().slot();
        let kept = !ms.state().checkpointing.is_empty();
        if kept {
            self.sync_checkpoint(mos, tx, pass, v, ms).await?;
        }
        {
            let st = ms.state();
            if st.allocating[slot].is_empty() && st.freeing.is_empty() {
                return Ok(());
            }
        }
        let logged = self.open_log(mos, tx).await?;
        self.ensure_map(mos, tx, v, ms).await?;
        if !logged {
            self.settle_map(mos, tx, pass, v, ms).await?;
        }
        if pass == 1 && !self.spare.is_short() && self.should_condense(ms) {
            self.condense(mos, tx, pass, v, ms).await?;
        }
        if logged {
            self.unflushed_object(mos, tx, v).await?;
        }
        let how = self.append_how(tx, pass);
        let mut st = ms.state();
        let st = &mut *st;
        let allocs = std::mem::take(&mut st.allocating[slot]);
        #[cfg(feature = "planted")]
        let allocs = match allocs.iter().last() {
            Some((start, end)) if crate::planted::is(crate::planted::Bug::SpaceMapEntryLost) => {
                let mut less = allocs.clone();
                less.subtract(start, end);
                less
            }
            _ => allocs,
        };
        let frees = std::mem::take(&mut st.freeing);
        if logged {
            self.log_changes(how, v, ms, st, &allocs, &frees)?;
        } else if let Some(sm) = &mut st.sm {
            sm.append(how, &allocs, MapType::Alloc, None)?;
            sm.append(how, &frees, MapType::Free, None)?;
        }
        st.allocated = (st.allocated + allocs.space()).saturating_sub(frees.space());
        st.allocated_this_txg += allocs.space();
        update_histogram(st, tx, &frees);
        st.freed.add_all(&frees).map_err(|e| ms.corrupt(e))?;
        ms.reweigh(st);
        Ok(())
    }

    pub(super) fn append_how<'a>(&self, tx: &'a Tx, pass: u64) -> Append<'a> {
        Append { tx, pass, v2: self.features.read().spacemap_v2 }
    }

    fn blksz(&self) -> u32 {
        if self.features.read().log_spacemap { BLKSZ_WITH_LOG } else { BLKSZ_WITHOUT_LOG }
    }

    pub(super) fn count_map(&self, dn: &Dnode, by: i64) {
        if dn.bonus().len() > zilla_ondisk::spacemap::SPACE_MAP_SIZE_V0 {
            self.counts.lock().spacemap_histogram += by;
        }
    }

    pub(super) async fn new_map(&self, mos: &Arc<Objset>, tx: &Tx, blksz: u32) -> Result<Arc<Dnode>> {
        let histogram = self.features.read().spacemap_histogram;
        let dn = create_object(mos, tx, blksz, histogram).await?;
        self.count_map(&dn, 1);
        Ok(dn)
    }

    /// An empty log space map.
    pub(super) async fn new_log_map(&self, mos: &Arc<Objset>, tx: &Tx) -> Result<Arc<Dnode>> {
        self.new_map(mos, tx, BLKSZ_WITH_LOG).await
    }

    /// Writes the object of a metaslab's map into the vdev's array.
    async fn enter_map(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        v: &VdevSpace,
        ms: &Metaslab,
        map: ObjectId,
    ) -> Result<()> {
        let array = v.array_object(mos).await?;
        let array =
            array.ok_or_else(|| Error::inval(format!("vdev {} has no metaslab array yet", v.spec.id)))?;
        array.write(tx, ms.id * 8, &map.0.to_ne_bytes());
        Ok(())
    }

    /// A metaslab gets its map when something is first allocated there.
    async fn ensure_map(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
    ) -> Result<()> {
        if ms.state().sm.is_some() {
            return Ok(());
        }
        let dn = self.new_map(mos, tx, self.blksz()).await?;
        self.enter_map(mos, tx, v, ms, dn.id()).await?;
        ms.state().sm = Some(SpaceMap::open(dn, ms.start, ms.size, ms.shift)?);
        Ok(())
    }

    /// Reads what entries of metaslabs will stand behind, of many at once.
    pub(super) async fn read_ends(
        &self,
        of: impl Iterator<Item = (u32, u64)>,
        has_entries: impl Fn(&State) -> bool,
    ) {
        let end = |(vdev, id)| {
            let (_, ms) = self.metaslab(vdev, id).ok()?;
            let st = ms.state();
            st.sm.as_ref().filter(|_| st.unread.is_none() && has_entries(&st))?.end()
        };
        let read = |(dn, at): (Arc<Dnode>, u64)| async move { drop(dn.read_wait(at, &mut [0]).await) };
        join_all(of.filter_map(end).map(read)).await;
    }

    /// Before entries are appended to the map of a metaslab: if what they would stand behind cannot
    /// be read, which would end the sync, the map is written anew. Nothing is lost if it is loaded.
    /// If not, only the map knows all that is free here, and it may be readable again; so entries
    /// wait in the logs as long as these may be kept, and the metaslab is not used. Nobody reads
    /// the map for them meanwhile but who finds out whether it can be used ([`Again`]). When that
    /// has an end, and where there are no logs, all is in use here but for what memory knows to be
    /// free, so nothing is given to two.
    pub(super) async fn settle_map(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
    ) -> Result<End> {
        let end = {
            let st = ms.state();
            if st.unread.is_some() && self.may_wait(&st) {
                return Ok(End::Later);
            }
            st.sm.as_ref().and_then(SpaceMap::end)
        };
        let Some((map, at)) = end else { return Ok(End::Sound) };
        let Err(Error::Corrupt(why)) = map.read_wait(at, &mut [0]).await else { return Ok(End::Sound) };
        {
            let mut st = ms.state();
            let in_doubt = !st.loaded && (!st.broken || st.unread.is_some());
            if in_doubt && self.may_wait(&st) {
                tracing::error!("metaslab {} at {:#x} is not used: {why}", ms.id, ms.start);
                st.broken = true;
                st.unread.get_or_insert_default();
                ms.reweigh(&st);
                return Ok(End::Later);
            }
            match st.loaded {
                true => tracing::warn!("metaslab {} at {:#x} gets another map: {why}", ms.id, ms.start),
                false => {
                    tracing::error!("all of metaslab {} at {:#x} counts as in use: {why}", ms.id, ms.start)
                }
            }
        }
        self.write_anew(mos, tx, pass, v, ms, true).await?;
        Ok(End::Renewed)
    }

    /// Before ranges of one kind are appended to a list of them: if what they would stand behind
    /// cannot be read, which would end the sync, the list that takes its place, with all that can
    /// be read of the old. What cannot be read stays in use (a checkpoint's list) or mapped (the
    /// list of what became obsolete).
    #[crate::boxed]
    pub(super) async fn renewed(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        old: &SpaceMap,
        kind: MapType,
    ) -> Result<Option<SpaceMap>> {
        let Some((map, at)) = old.end() else { return Ok(None) };
        let Err(Error::Corrupt(why)) = map.read_wait(at, &mut [0]).await else { return Ok(None) };
        tracing::error!("a list of ranges goes on without what cannot be read of it: {why}");
        let blksz = old.blksz();
        let mut new = old.elsewhere(self.new_map(mos, tx, blksz).await?)?;
        let reader = old.reader();
        for from in (0..old.length()).step_by(blksz as usize) {
            let to = old.length().min(from + u64::from(blksz));
            let mut ranges = RangeTree::new();
            let read = reader.for_each_from(from, to, |_, _, start, size| {
                ranges.add(start, size).map_err(|e| Error::corrupt(None, "a list of ranges", e.to_string()))
            });
            match read.await {
                Ok(()) => new.append(self.append_how(tx, pass), &ranges, kind, None)?,
                Err(Error::Corrupt(_)) => {}
                Err(e) => return Err(e),
            }
        }
        self.free_if_readable(mos, tx, &map).await;
        Ok(Some(new))
    }

    pub(super) fn should_condense(&self, ms: &Metaslab) -> bool {
        let features = *self.features.read();
        let st = ms.state();
        let Some(sm) = st.sm.as_ref().filter(|_| st.loaded && !st.broken) else { return false };
        if features.spacemap_histogram && sm.histogram().is_none() {
            return true;
        }
        let block = u64::from(sm.blksz()).max(1 << ms.shift);
        let optimal = sm.optimal_size(&st.free, features.spacemap_v2);
        sm.length() >= optimal.saturating_mul(CONDENSE_FACTOR) && sm.length() > CONDENSE_BLOCKS * block
    }

    /// Rewrites a loaded metaslab's map as short as can be.
    pub(super) async fn condense(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
    ) -> Result<()> {
        let (blksz, histogram) = (self.blksz(), self.features.read().spacemap_histogram);
        let elsewhere = ms.state().sm.as_ref().is_some_and(|sm| !sm.is_current(blksz, histogram));
        self.write_anew(mos, tx, pass, v, ms, elsewhere).await
    }

    /// Writes a metaslab's map anew, in another object or in its own: all allocated, then what is
    /// free as of the last txg; if the metaslab is not loaded, what is known of that. The log's
    /// entries up to that txg are thereby flushed.
    async fn write_anew(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
        elsewhere: bool,
    ) -> Result<()> {
        let old = ms.state().sm.as_ref().filter(|_| elsewhere).map(|sm| sm.dnode().clone());
        let new = match &old {
            Some(_) => {
                let dn = self.new_map(mos, tx, self.blksz()).await?;
                self.enter_map(mos, tx, v, ms, dn.id()).await?;
                Some(dn)
            }
            None => None,
        };
        let how = self.append_how(tx, pass);
        {
            let mut st = ms.state();
            let st = &mut *st;
            let Some(sm) = &mut st.sm else { return Ok(()) };
            let known = if st.loaded { &st.free } else { &st.unflushed_frees };
            // Free on disk though not to be given out: what is deferred or lent, and what is not
            // synced yet.
            let mut waiting = RangeTree::new();
            for t in st.defer.iter().chain(&st.allocating).chain([&st.freed, &st.lent.ranges]) {
                waiting.add_all(t).map_err(|e| ms.corrupt(e))?;
            }
            if !st.loaded {
                // The logs know most of that too.
                known.iter().for_each(|(start, end)| drop(waiting.subtract(start, end)));
            }
            let mut whole = RangeTree::new();
            whole.add(ms.start, ms.size).map_err(|e| ms.corrupt(e))?;
            match new {
                Some(dn) => sm.replace_object(dn)?,
                None => sm.truncate(tx),
            }
            sm.append(how, &whole, MapType::Alloc, None)?;
            sm.append(how, known, MapType::Free, None)?;
            sm.append(how, &waiting, MapType::Free, None)?;
            if !st.loaded {
                let allocated = ms.size.saturating_sub(known.space() + waiting.space());
                let counted = std::mem::replace(&mut st.allocated, allocated);
                v.count_space(allocated as i64 - counted as i64, 0);
                sm.add_to_histogram(tx, known);
                sm.add_to_histogram(tx, &waiting);
                // This one can be read.
                st.unread = st.broken.then(Again::default);
            }
            update_histogram(st, tx, &RangeTree::new());
            self.flushed(tx, v, ms, st);
            ms.reweigh(st);
        }
        if let Some(old) = old {
            self.free_if_readable(mos, tx, &old).await;
        }
        Ok(())
    }

    /// Frees a map's object. One of which not even the pointers can be read stays behind.
    pub(super) async fn free_if_readable(&self, mos: &Arc<Objset>, tx: &Tx, map: &Arc<Dnode>) {
        if can_be_freed(map).await {
            self.count_map(map, -1);
            mos.free(tx, map);
        }
    }

    /// The txg is on disk whole: deferred frees of two txgs ago may be given out again.
    pub fn sync_done(&self, txg: Txg) -> Result<()> {
        let normal = self.class_stat(SpaceClass::Normal);
        let free = normal.space.saturating_sub(normal.alloc);
        // In a pool that is nearly full space must come back at once; and so it must to a log
        // device half of which cannot be given out, for a pool that syncs slowly is no faster than
        // the log has room. Who went back to an older uberblock then would find less of the log.
        // (But not what the log's records clone.)
        let cloned = self.clones_logged.load(Ordering::Relaxed) >= txg.0;
        let defer_allowed = free > self.slop() || cloned;
        self.last_done.store(txg.0, Ordering::Relaxed);
        let short_logs: Vec<u32> = self.class(SpaceClass::Log).map_or_else(Vec::new, |log| {
            let short = log.groups().filter(|(v, g)| g.free_now() < v.stat().space / 2);
            short.map(|(v, _)| v.spec.id).collect()
        });
        let list = std::mem::take(&mut *self.synced.lock());
        for (vdev, id) in list {
            let (v, ms) = self.metaslab(vdev, id)?;
            let mut st = ms.state();
            let st = &mut *st;
            let freed = std::mem::take(&mut st.freed);
            let released = std::mem::take(&mut st.defer[txg.0 as usize % TXG_DEFER_SIZE]);
            let allocated = std::mem::take(&mut st.allocated_this_txg) as i64 - freed.space() as i64;
            ms.release(st, &released)?;
            self.note_trims(&ms, st, &released)?;
            let mut deferred = -(released.space() as i64);
            if defer_allowed && !short_logs.contains(&vdev) {
                deferred += freed.space() as i64;
                st.defer[txg.0 as usize % TXG_DEFER_SIZE] = freed;
            } else {
                ms.release(st, &freed)?;
                self.note_trims(&ms, st, &freed)?;
            }
            v.count_space(allocated + deferred, deferred);
            if let Some(sm) = &st.sm {
                st.synced_length = sm.length();
            }
            if st.deferred() > 0 {
                self.list(txg.next(), vdev, &ms, st);
            }
            ms.reweigh(st);
        }
        self.close_log();
        self.rebalance();
        if txg.0.is_multiple_of(UNLOAD_AFTER / 4) {
            self.unload_unused(txg);
        }
        Ok(())
    }

    /// Tries to read maps that could not be read, and for which it is time again. To be called when
    /// `txg` is synced, and not by the sync, which would wait for devices that are away.
    pub fn read_again(&self, txg: Txg) -> Option<impl Future<Output = ()> + Send + use<>> {
        let vdevs = self.vdevs();
        let all = vdevs.iter().flat_map(|v| &v.all);
        let due: Vec<_> = all.filter(|ms| ms.is_to_be_read_again(txg)).cloned().collect();
        (!due.is_empty()).then_some(async move {
            for ms in due {
                ms.load_again().await;
            }
        })
    }

    /// Devices may be back: the next call of [`Metaslabs::read_again`] has all of them.
    pub fn read_soon(&self) {
        self.vdevs().iter().flat_map(|v| &v.all).for_each(|ms| ms.read_soon());
    }

    fn unload_unused(&self, txg: Txg) {
        for ms in self.vdevs().iter().flat_map(|v| &v.all) {
            let mut st = ms.state();
            if st.loaded && st.selected.0 + UNLOAD_AFTER < txg.0 {
                ms.unload(&mut st);
            }
        }
    }
}

/// Whether what leads to a map's blocks can be read.
async fn can_be_freed(map: &Arc<Dnode>) -> bool {
    let span = 1usize << u32::from(map.indblkshift()).saturating_sub(SPA_BLKPTRSHIFT).min(32);
    for first in (0..=map.maxblkid()).step_by(span) {
        if map.phys().nlevels > 1 && resident(|| map.block_pointer(first)).await.is_err() {
            return false;
        }
    }
    true
}

/// Brings the map's histogram up to date: exactly for a loaded metaslab, else by adding what was
/// freed.
fn update_histogram(st: &mut State, tx: &Tx, frees: &RangeTree) {
    let Some(sm) = &mut st.sm else { return };
    if st.loaded {
        sm.clear_histogram();
        for t in [&st.free, &st.lent.ranges, &st.freed].into_iter().chain(&st.defer) {
            sm.add_to_histogram(tx, t);
        }
    }
    sm.add_to_histogram(tx, frees);
}
