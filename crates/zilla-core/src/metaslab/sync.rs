//! What a txg did to the metaslabs, brought to disk: once in every sync pass, and once at its end.

use super::Metaslabs;
use super::range_tree::RangeTree;
use super::slab::{Metaslab, State};
use super::space_map::{Append, MapType, SpaceMap, create_object};
use super::vdev::{SpaceClass, VdevSpace};
use crate::dmu::{Dnode, NewObject, Objset, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{ObjectId, TXG_DEFER_SIZE, Txg};
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

/// How the sync changed the number of users of features; the pool adds this to its feature counts
/// in the same txg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureCounts {
    pub spacemap_histogram: i64,
    pub log_spacemap: i64,
    pub obsolete_counts: i64,
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
        for (vdev, id) in list {
            let (v, ms) = self.metaslab(vdev, id)?;
            ms.state().listed[txg.slot()] = false;
            self.sync_metaslab(mos, &tx, pass, &v, &ms).await?;
            self.synced.lock().insert((vdev, id));
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
        if !logged && self.renew_map(mos, tx, pass, v, ms).await? {
            // All is in use there.
            ms.state().allocating[slot].clear();
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

    /// Before entries are appended to the map of a metaslab that is not used: if what they would
    /// stand behind cannot be read, which would end the sync, another map takes its place. It says
    /// that all is in use but for what the logs know to be free, so nothing is given to two.
    /// Whether that was done.
    pub(super) async fn renew_map(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
    ) -> Result<bool> {
        let (old, at) = {
            let st = ms.state();
            let Some(sm) = st.sm.as_ref().filter(|_| st.broken) else { return Ok(false) };
            (sm.dnode().clone(), sm.length())
        };
        if at.is_multiple_of(u64::from(old.blksz())) {
            return Ok(false);
        }
        match old.read_wait(at.saturating_sub(1), &mut [0]).await {
            Err(Error::Corrupt(c)) => {
                tracing::error!("all of metaslab {} at {:#x} counts as in use: {c}", ms.id, ms.start);
            }
            _ => return Ok(false),
        }
        let dn = self.new_map(mos, tx, self.blksz()).await?;
        self.enter_map(mos, tx, v, ms, dn.id()).await?;
        let how = self.append_how(tx, pass);
        {
            let mut st = ms.state();
            let st = &mut *st;
            let Some(sm) = &mut st.sm else { return Ok(false) };
            let mut whole = RangeTree::new();
            whole.add(ms.start, ms.size).map_err(|e| ms.corrupt(e))?;
            sm.replace_object(dn)?;
            sm.append(how, &whole, MapType::Alloc, None)?;
            self.forget_allocs(st);
            let counted =
                std::mem::replace(&mut st.allocated, ms.size.saturating_sub(st.unflushed_frees.space()));
            v.count_space(st.allocated as i64 - counted as i64, 0);
        }
        // Where not even its pointers can be read it stays behind.
        if old.phys().nlevels == 1 {
            self.count_map(&old, -1);
            mos.free(tx, &old);
        }
        Ok(true)
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

    /// Rewrites a loaded metaslab's map as short as can be: all allocated, then what is free as of
    /// the last txg. The log's entries up to that txg are thereby flushed.
    pub(super) async fn condense(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        pass: u64,
        v: &Arc<VdevSpace>,
        ms: &Arc<Metaslab>,
    ) -> Result<()> {
        let (blksz, histogram) = (self.blksz(), self.features.read().spacemap_histogram);
        let old = {
            let st = ms.state();
            st.sm.as_ref().filter(|sm| !sm.is_current(blksz, histogram)).map(|sm| sm.dnode().clone())
        };
        let new = match &old {
            Some(_) => {
                let dn = self.new_map(mos, tx, blksz).await?;
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
            // Free on disk though not to be given out: what is deferred or lent, and what is not
            // synced yet.
            let mut waiting = RangeTree::new();
            for t in st.defer.iter().chain(&st.allocating).chain([&st.lent.ranges]) {
                waiting.add_all(t).map_err(|e| ms.corrupt(e))?;
            }
            let mut whole = RangeTree::new();
            whole.add(ms.start, ms.size).map_err(|e| ms.corrupt(e))?;
            match new {
                Some(dn) => sm.replace_object(dn)?,
                None => sm.truncate(tx),
            }
            sm.append(how, &whole, MapType::Alloc, None)?;
            sm.append(how, &st.free, MapType::Free, None)?;
            sm.append(how, &waiting, MapType::Free, None)?;
            update_histogram(st, tx, &RangeTree::new());
            self.flushed(tx, v, ms, st);
        }
        if let Some(old) = old {
            self.count_map(&old, -1);
            mos.free(tx, &old);
        }
        Ok(())
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

    fn unload_unused(&self, txg: Txg) {
        for ms in self.vdevs().iter().flat_map(|v| &v.all) {
            let mut st = ms.state();
            if st.loaded && st.selected.0 + UNLOAD_AFTER < txg.0 {
                ms.unload(&mut st);
            }
        }
    }
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
