//! Log space maps: one map a txg for the whole pool, instead of an entry in the map of every
//! metaslab that the txg touched.
//!
//! Each metaslab remembers from which txg on the logs concern it (`unflushed_txg`, on disk in an
//! array beside the vdev's top ZAP); its own map has everything before. *Flushing* appends what it
//! has in its unflushed trees to its own map and moves that txg to the present, which happens
//! before the txg's own changes are logged. Metaslabs are flushed oldest first, so the oldest logs
//! become obsolete and are destroyed; how many a txg is a matter of keeping the logs' blocks, their
//! txgs and the trees' memory bounded. One whose own map cannot be read just then stays in the logs
//! ([`Metaslabs::settle_map`]). An import replays the logs into the trees.
//!
//! A crash is safe at any point: maps, logs, the array and the list of logs all change in the same
//! txg.

use super::Metaslabs;
use super::range_tree::RangeTree;
use super::slab::{Metaslab, State};
use super::space_map::{Append, MapType, SpaceMap};
use super::sync::{ENDS, End};
use super::vdev::VdevSpace;
use crate::dmu::{Dnode, NewObject, Objset, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::zap::{CreateOpts, Zap};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_ondisk::object_type::{DMU_OTN_UINT64_METADATA, DMU_OTN_ZAP_METADATA};

/// The MOS object that names the pool's other objects.
const POOL_DIRECTORY: u64 = 1;
const LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";
const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
/// Log space maps speak of sectors, whatever the vdev's ashift.
const LOG_SHIFT: u8 = 9;

/// Blocks that the logs may have: so many per dirty metaslab, within bounds.
const BLOCKS_PER_METASLAB: u64 = 4;
const MIN_BLOCKS: u64 = 1000;
const MAX_BLOCKS: u64 = 1 << 17;
/// Txgs whose logs may be kept.
const MAX_TXGS: u64 = 1000;
/// Ranges in all unflushed trees beyond which metaslabs are flushed whatever the blocks say (about
/// 16 MiB of memory).
const MAX_RANGES: u64 = 400_000;
/// How many logs tell how fast new ones grow.
const RATE_OVER: usize = 5;

/// One txg's log.
struct TxgLog {
    object: ObjectId,
    blocks: u64,
    /// Metaslabs that were last flushed in this txg, which is why older logs than this do not
    /// concern them.
    metaslabs: u64,
    /// Those of them that have unflushed changes.
    dirty: u64,
}

/// What is known of the logs. Changed by the sync task only.
#[derive(Default)]
pub(super) struct Log {
    zap: Option<Zap>,
    logs: BTreeMap<Txg, TxgLog>,
    /// Metaslabs that logs concern, the one flushed longest ago first.
    flushed: BTreeSet<(Txg, u32, u64)>,
    /// The log of the txg being synced.
    syncing: Option<(Txg, SpaceMap)>,
    /// Ranges in the unflushed trees.
    ranges: u64,
    pub(super) flush_all: bool,
}

impl Log {
    /// Notes that a metaslab is flushed as of `txg`, and whether this txg has already changed it
    /// again.
    fn moved(&mut self, txg: Txg, vdev: u32, ms: &Metaslab, st: &mut State, dirty: bool) {
        if st.unflushed_txg != Txg(0) {
            self.flushed.remove(&(st.unflushed_txg, vdev, ms.id));
            if let Some(l) = self.logs.get_mut(&st.unflushed_txg) {
                l.metaslabs = l.metaslabs.saturating_sub(1);
                l.dirty = l.dirty.saturating_sub(u64::from(st.unflushed_dirty));
            }
        }
        st.unflushed_txg = txg;
        st.unflushed_dirty = dirty;
        self.flushed.insert((txg, vdev, ms.id));
        if let Some(l) = self.logs.get_mut(&txg) {
            l.metaslabs += 1;
            l.dirty += u64::from(dirty);
        }
    }

    /// A metaslab goes, and needs no logs any more.
    pub(super) fn left(&mut self, vdev: u32, ms: &Metaslab, st: &mut State) {
        if st.unflushed_txg != Txg(0) {
            self.flushed.remove(&(st.unflushed_txg, vdev, ms.id));
            if let Some(l) = self.logs.get_mut(&st.unflushed_txg) {
                l.metaslabs = l.metaslabs.saturating_sub(1);
                l.dirty = l.dirty.saturating_sub(u64::from(st.unflushed_dirty));
            }
        }
        let ranges = st.unflushed_allocs.len() + st.unflushed_frees.len();
        self.ranges = self.ranges.saturating_sub(ranges as u64);
    }

    /// How many dirty metaslabs to flush now so that flushing as many in each of the coming txgs
    /// keeps the logs within their limits, if they go on growing as they did.
    fn want(&self, txg: Txg) -> u64 {
        let older: Vec<&TxgLog> = self.logs.range(..txg).map(|(_, l)| l).collect();
        let recent = older.iter().rev().take(RATE_OVER);
        let rate = recent.clone().map(|l| l.blocks).sum::<u64>().div_ceil(recent.count().max(1) as u64);
        let dirty: u64 = self.logs.values().map(|l| l.dirty).sum();
        let limit = (dirty * BLOCKS_PER_METASLAB).clamp(MIN_BLOCKS, MAX_BLOCKS) as i64;
        let mut blocks_left = limit - self.logs.values().map(|l| l.blocks).sum::<u64>() as i64 - rate as i64;
        let mut txgs_left = MAX_TXGS as i64 - self.logs.len() as i64;
        let (mut ahead, mut flushes, mut most) = (1u64, 0u64, 1u64);
        for l in older {
            if blocks_left >= 0 && txgs_left >= 0 {
                let skip = match rate as i64 {
                    0 => txgs_left + 1,
                    r => (txgs_left + 1).min(blocks_left / r + 1),
                };
                blocks_left -= skip * rate as i64;
                txgs_left -= skip;
                ahead += skip as u64;
            }
            blocks_left += l.blocks as i64;
            txgs_left += 1;
            flushes += l.dirty;
            most = most.max(flushes.div_ceil(ahead));
        }
        most
    }
}

impl Metaslabs {
    /// Asks that the next sync flushes every metaslab: before an export, so that the next import
    /// has nothing to replay.
    pub fn request_flush_all(&self) {
        self.log.lock().flush_all = true;
    }

    /// Makes sure that the syncing txg has a log, if the pool uses logs.
    pub(super) async fn open_log(&self, mos: &Arc<Objset>, tx: &Tx) -> Result<bool> {
        if !self.features.read().log_spacemap {
            return Ok(false);
        }
        if self.log.lock().syncing.as_ref().is_some_and(|(t, _)| *t == tx.txg()) {
            return Ok(true);
        }
        let known = self.log.lock().zap.clone();
        let zap = match known {
            Some(z) => z,
            None => self.open_log_list(mos, tx).await?,
        };
        let dn = self.new_log_map(mos, tx).await?;
        zap.insert_u64(tx, &format!("{:x}", tx.txg().0), dn.id().0).await?;
        let object = dn.id();
        let sm = SpaceMap::open(dn, 0, u64::MAX, LOG_SHIFT)?;
        let mut log = self.log.lock();
        log.logs.insert(tx.txg(), TxgLog { object, blocks: 0, metaslabs: 0, dirty: 0 });
        log.syncing = Some((tx.txg(), sm));
        Ok(true)
    }

    async fn open_log_list(&self, mos: &Arc<Objset>, tx: &Tx) -> Result<Zap> {
        let directory = Zap::open(mos, POOL_DIRECTORY).await?;
        let zap = match directory.try_get_u64(LOG_SPACEMAP_ZAP).await? {
            Some(id) => Zap::open(mos, id).await?,
            None => {
                let zap = Zap::make(mos, tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).await?;
                directory.insert_u64(tx, LOG_SPACEMAP_ZAP, zap.id()).await?;
                self.counts.lock().log_spacemap += 1;
                zap
            }
        };
        self.log.lock().zap = Some(zap.clone());
        Ok(zap)
    }

    /// Makes sure that there is an array for a vdev's unflushed txgs.
    pub(super) async fn unflushed_object(
        &self,
        mos: &Arc<Objset>,
        tx: &Tx,
        v: &VdevSpace,
    ) -> Result<Arc<Dnode>> {
        if let Some(dn) = v.unflushed.lock().clone() {
            return Ok(dn);
        }
        if v.top_zap() == ObjectId(0) {
            return Err(Error::inval(format!("vdev {} has no ZAP, which log space maps need", v.spec.id)));
        }
        let top = Zap::open(mos, v.top_zap().0).await?;
        let dn = match top.try_get_u64(UNFLUSHED_TXGS).await? {
            Some(id) => mos.hold_wait(ObjectId(id)).await?,
            None => {
                let dn =
                    resident(|| mos.alloc(tx, NewObject::new(DMU_OTN_UINT64_METADATA, 128 << 10))).await?;
                top.insert_u64(tx, UNFLUSHED_TXGS, dn.id().0).await?;
                dn
            }
        };
        Ok(v.unflushed.lock().insert(dn).clone())
    }

    /// The object of a vdev's unflushed txgs, if it has one.
    pub(super) async fn unflushed_if_there(
        &self,
        mos: &Arc<Objset>,
        v: &Arc<VdevSpace>,
    ) -> Result<Option<Arc<Dnode>>> {
        if let Some(dn) = v.unflushed.lock().clone() {
            return Ok(Some(dn));
        }
        if v.top_zap() == ObjectId(0) {
            return Ok(None);
        }
        match Zap::open(mos, v.top_zap().0).await?.try_get_u64(UNFLUSHED_TXGS).await? {
            Some(id) => Ok(Some(mos.hold_wait(ObjectId(id)).await?)),
            None => Ok(None),
        }
    }

    /// A vdev's object of unflushed txgs was freed.
    pub(super) async fn forget_unflushed(&self, mos: &Arc<Objset>, tx: &Tx, v: &VdevSpace) -> Result<()> {
        if v.top_zap() != ObjectId(0) {
            Zap::open(mos, v.top_zap().0).await?.delete_if_there(tx, UNFLUSHED_TXGS).await?;
        }
        Ok(())
    }

    fn note_unflushed_txg(tx: &Tx, v: &VdevSpace, ms: &Metaslab) {
        if let Some(dn) = &*v.unflushed.lock() {
            dn.write(tx, ms.id * 8, &tx.txg().0.to_ne_bytes());
        }
    }

    /// Logs what a pass did to a metaslab.
    pub(super) fn log_changes(
        &self,
        how: Append<'_>,
        v: &VdevSpace,
        ms: &Metaslab,
        st: &mut State,
        allocs: &RangeTree,
        frees: &RangeTree,
    ) -> Result<()> {
        let mut log = self.log.lock();
        if st.unflushed_txg == Txg(0) || !st.unflushed_dirty {
            log.moved(how.tx.txg(), v.spec.id, ms, st, true);
            Self::note_unflushed_txg(how.tx, v, ms);
        }
        let Some((_, sm)) = &mut log.syncing else {
            return Err(Error::inval("no log space map is open"));
        };
        sm.append(how, allocs, MapType::Alloc, Some(v.spec.id))?;
        sm.append(how, frees, MapType::Free, Some(v.spec.id))?;
        let before = st.unflushed_allocs.len() + st.unflushed_frees.len();
        replay(st, MapType::Alloc, allocs)
            .and_then(|()| replay(st, MapType::Free, frees))
            .map_err(|e| ms.corrupt(e))?;
        let after = st.unflushed_allocs.len() + st.unflushed_frees.len();
        log.ranges = (log.ranges + after as u64).saturating_sub(before as u64);
        Ok(())
    }

    /// Whether what logs have of a metaslab may stay there.
    pub(super) fn may_wait(&self, st: &State) -> bool {
        let few = ((st.unflushed_allocs.len() + st.unflushed_frees.len()) as u64) < MAX_RANGES / 2;
        few && st.unflushed_txg != Txg(0) && (self.log.lock().logs.len() as u64) < MAX_TXGS
    }

    /// A metaslab's own map has everything up to the last txg.
    pub(super) fn flushed(&self, tx: &Tx, v: &VdevSpace, ms: &Metaslab, st: &mut State) {
        let mut log = self.log.lock();
        log.ranges = log.ranges.saturating_sub((st.unflushed_allocs.len() + st.unflushed_frees.len()) as u64);
        st.unflushed_allocs.clear();
        st.unflushed_frees.clear();
        if let Some(sm) = &st.sm {
            st.synced_length = sm.length();
        }
        if st.unflushed_txg != Txg(0) {
            log.moved(tx.txg(), v.spec.id, ms, st, false);
            Self::note_unflushed_txg(tx, v, ms);
        }
    }

    /// Flushes as many metaslabs as keep the logs bounded (or all), the one flushed longest ago
    /// first.
    pub(super) async fn flush_some(&self, mos: &Arc<Objset>, tx: &Tx) -> Result<()> {
        if self.log.lock().flushed.is_empty() || !self.open_log(mos, tx).await? {
            self.log.lock().flush_all = false;
            return Ok(());
        }
        let short = self.spare.is_short();
        let (mut want, candidates) = {
            let mut log = self.log.lock();
            let all = std::mem::take(&mut log.flush_all);
            // Flushing writes maps anew, and gives back the logs only when all that they concern is
            // flushed. It can wait, also at an export: an import reads the logs.
            let want = if all { u64::MAX } else { log.want(tx.txg()) };
            (if short { want.min(1) } else { want }, log.flushed.iter().copied().collect::<Vec<_>>())
        };
        let mut ends = 0;
        for (n, &(since, vdev, id)) in candidates.iter().enumerate() {
            if since >= tx.txg() || (want == 0 && (short || self.log.lock().ranges <= MAX_RANGES)) {
                break;
            }
            if n == ends {
                let some = usize::try_from(want).unwrap_or(ENDS).clamp(1, ENDS);
                let some = candidates.iter().skip(n).take(some);
                ends += some.len();
                self.read_ends(some.map(|(_, vdev, id)| (*vdev, *id)), |st| st.unflushed_dirty).await;
            }
            let (v, ms) = self.metaslab(vdev, id)?;
            self.unflushed_object(mos, tx, &v).await?;
            let condense = {
                let mut st = ms.state();
                if st.loading {
                    // Its map is being read; it must not grow under the reader.
                    continue;
                }
                if st.broken && st.allocating.iter().any(|t| !t.is_empty()) {
                    // What an import has claimed is in this txg's log, and must be new to the map.
                    continue;
                }
                if !st.unflushed_dirty {
                    self.flushed(tx, &v, &ms, &mut st);
                    continue;
                }
                drop(st);
                !short && self.should_condense(&ms)
            };
            let end = self.settle_map(mos, tx, 1, &v, &ms).await?;
            want = want.saturating_sub(u64::from(end != End::Later));
            if end != End::Sound {
                continue;
            }
            if condense {
                self.condense(mos, tx, 1, &v, &ms).await?;
                continue;
            }
            let how = self.append_how(tx, 1);
            let mut st = ms.state();
            let st = &mut *st;
            if let (false, Some(sm)) = (st.loading, &mut st.sm) {
                sm.append(how, &st.unflushed_allocs, MapType::Alloc, None)?;
                sm.append(how, &st.unflushed_frees, MapType::Free, None)?;
                self.flushed(tx, &v, &ms, st);
            }
        }
        Ok(())
    }

    /// Destroys logs that are older than what any metaslab needs.
    pub(super) async fn destroy_obsolete_logs(&self, mos: &Arc<Objset>, tx: &Tx) -> Result<()> {
        let (zap, obsolete) = {
            let log = self.log.lock();
            let Some(&(oldest, ..)) = log.flushed.first() else { return Ok(()) };
            let Some(zap) = log.zap.clone() else { return Ok(()) };
            let gone: Vec<(Txg, ObjectId)> = log.logs.range(..oldest).map(|(t, l)| (*t, l.object)).collect();
            (zap, gone)
        };
        for (txg, object) in obsolete {
            let dn = mos.hold_wait(object).await?;
            zap.delete(tx, &format!("{:x}", txg.0)).await?;
            self.count_map(&dn, -1);
            mos.free(tx, &dn);
            self.log.lock().logs.remove(&txg);
        }
        Ok(())
    }

    /// The txg is on disk; its log gets no more entries.
    pub(super) fn close_log(&self) {
        let mut log = self.log.lock();
        if let Some((txg, sm)) = log.syncing.take()
            && let Some(l) = log.logs.get_mut(&txg)
        {
            l.blocks = sm.blocks();
        }
    }

    /// The log space maps there are, oldest first.
    pub fn log_maps(&self) -> Vec<(Txg, ObjectId)> {
        self.log.lock().logs.iter().map(|(txg, l)| (*txg, l.object)).collect()
    }

    /// At import, after all vdevs were opened: brings the logs' changes into the metaslabs.
    #[crate::boxed]
    pub async fn load_logs(&self, mos: &Arc<Objset>) -> Result<()> {
        let directory = Zap::open(mos, POOL_DIRECTORY).await?;
        let Some(id) = directory.try_get_u64(LOG_SPACEMAP_ZAP).await? else { return Ok(()) };
        let zap = Zap::open(mos, id).await?;
        let mut log = Log::default();
        for e in zap.entries().await? {
            let name = e.name_str();
            let (Ok(txg), Some(object)) = (u64::from_str_radix(&name, 16), e.value.as_u64()) else {
                return Err(Error::corrupt(None, "list of log space maps", format!("entry {name:?}")));
            };
            log.logs.insert(Txg(txg), TxgLog { object: ObjectId(object), blocks: 0, metaslabs: 0, dirty: 0 });
        }
        log.zap = Some(zap);
        for v in self.vdevs() {
            self.load_unflushed_txgs(mos, &v, &mut log).await?;
        }
        let order: Vec<(Txg, ObjectId)> = log.logs.iter().map(|(t, l)| (*t, l.object)).collect();
        for (txg, object) in order {
            let sm = SpaceMap::open(mos.hold_wait(object).await?, 0, u64::MAX, LOG_SHIFT)?;
            let blocks = sm.blocks();
            let apply = |kind, vdev, start, size| self.replay_entry(txg, kind, vdev, start, size);
            sm.reader().for_each(sm.length(), apply).await?;
            if let Some(l) = log.logs.get_mut(&txg) {
                l.blocks = blocks;
            }
        }
        for &(since, vdev, id) in &log.flushed {
            let (v, ms) = self.metaslab(vdev, id)?;
            let mut st = ms.state();
            let (allocs, frees) = (st.unflushed_allocs.space(), st.unflushed_frees.space());
            st.allocated = (st.allocated + allocs).saturating_sub(frees).min(ms.size);
            v.count_space(allocs as i64 - frees as i64, 0);
            log.ranges += (st.unflushed_allocs.len() + st.unflushed_frees.len()) as u64;
            if let Some(l) = log.logs.get_mut(&since) {
                l.dirty += u64::from(st.unflushed_dirty);
            }
            ms.reweigh(&st);
        }
        *self.log.lock() = log;
        self.rebalance();
        Ok(())
    }

    async fn load_unflushed_txgs(&self, mos: &Arc<Objset>, v: &Arc<VdevSpace>, log: &mut Log) -> Result<()> {
        if v.top_zap() == ObjectId(0) {
            return Ok(());
        }
        let top = Zap::open(mos, v.top_zap().0).await?;
        let Some(id) = top.try_get_u64(UNFLUSHED_TXGS).await? else { return Ok(()) };
        let dn = mos.hold_wait(ObjectId(id)).await?;
        let mut buf = vec![0; v.all.len() * 8];
        dn.read_wait(0, &mut buf).await?;
        *v.unflushed.lock() = Some(dn);
        for (ms, txg) in v.all.iter().zip(buf.as_chunks::<8>().0) {
            let txg = Txg(u64::from_ne_bytes(*txg));
            if txg == Txg(0) {
                continue;
            }
            let Some(l) = log.logs.get_mut(&txg) else {
                let what = format!("metaslab {} needs the log of txg {txg}, which does not exist", ms.id);
                return Err(Error::corrupt(None, format!("vdev {}", v.spec.id), what));
            };
            l.metaslabs += 1;
            ms.state().unflushed_txg = txg;
            log.flushed.insert((txg, v.spec.id, ms.id));
        }
        Ok(())
    }

    fn replay_entry(&self, txg: Txg, kind: MapType, vdev: Option<u32>, start: u64, size: u64) -> Result<()> {
        let place = || format!("log space map of txg {txg}");
        let vdev = vdev.ok_or_else(|| Error::corrupt(None, place(), "an entry names no vdev"))?;
        // A vdev that was removed since needs nothing any more.
        let Ok(v) = self.vdev(vdev) else { return Ok(()) };
        // Nor does one whose number another has by now. Whether it is another's is asked only where
        // the entry is none for this one: what this one's metaslabs need is for their own txgs to
        // say.
        let of_former = txg < v.spec.create_txg;
        let ms = match v.metaslab_of(start, size) {
            Err(_) if of_former => return Ok(()),
            found => found?,
        };
        let mut st = ms.state();
        if st.unflushed_txg == Txg(0) && of_former {
            return Ok(());
        }
        if st.unflushed_txg == Txg(0) {
            return Err(Error::corrupt(
                None,
                place(),
                format!("metaslab {} of vdev {vdev} uses no logs", ms.id),
            ));
        }
        if txg < st.unflushed_txg {
            return Ok(());
        }
        st.unflushed_dirty = true;
        let mut range = RangeTree::new();
        range.add(start, size).and_then(|()| replay(&mut st, kind, &range)).map_err(|e| ms.corrupt(e))
    }
}

/// Brings changes into the unflushed trees, in which opposites cancel.
fn replay(st: &mut State, kind: MapType, ranges: &RangeTree) -> Result<(), super::Contradiction> {
    let State { unflushed_allocs, unflushed_frees, .. } = st;
    let (into, opposite) = match kind {
        MapType::Alloc => (unflushed_allocs, unflushed_frees),
        MapType::Free => (unflushed_frees, unflushed_allocs),
    };
    ranges.iter().try_for_each(|(s, e)| into.add_cancelling(opposite, s, e))
}
