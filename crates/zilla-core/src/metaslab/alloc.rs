//! The pool's metaslabs as the allocator: classes, turns among vdevs, copies apart.

use super::log::Log;
use super::range_tree::RangeTree;
use super::removed::AllRemoved;
use super::slab::{Metaslab, State};
use super::space_map::SpaceFeatures;
use super::spare::Spare;
use super::sync::FeatureCounts;
use super::vdev::{CLASSES, Effort, Found, Group, SpaceClass, SpaceStat, VdevSpace, VdevSpec};
use crate::dmu::Objset;
use crate::error::{Errno, Error, Result};
use crate::types::{GANG_HEADER_SIZE, ObjectId, TXG_DEFER_SIZE, TXG_SIZE, Txg};
use crate::zio::{AllocClass, AllocReq, AllocStop, Allocator, At, Dvas, Leave};
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zilla_ondisk::blkptr::Dva;

/// Whose turn it is in a class.
#[derive(Default)]
struct Rotor {
    at: usize,
    used: u64,
}

/// The vdevs of one class.
#[derive(Default)]
pub(super) struct Class {
    /// Vdev, and the number of its group.
    members: Vec<(Arc<VdevSpace>, usize)>,
    rotor: Mutex<Rotor>,
}

impl Class {
    pub(super) fn groups(&self) -> impl Iterator<Item = (&Arc<VdevSpace>, &Group)> {
        (0..self.members.len()).filter_map(|i| self.group(i))
    }

    fn group(&self, i: usize) -> Option<(&Arc<VdevSpace>, &Group)> {
        let (v, g) = self.members.get(i)?;
        Some((v, v.groups.get(*g)?))
    }

    /// The member whose turn it is to take `psize` bytes.
    fn turn(&self, psize: u64) -> usize {
        let mut r = self.rotor.lock();
        let n = self.members.len().max(1);
        r.at %= n;
        let at = r.at;
        r.used += psize;
        if self.group(at).is_none_or(|(_, g)| r.used >= g.aliquot.load(Ordering::Relaxed)) {
            *r = Rotor { at: (at + 1) % n, used: 0 };
        }
        at
    }
}

#[derive(Default)]
struct Pool {
    vdevs: BTreeMap<u32, Arc<VdevSpace>>,
    classes: BTreeMap<SpaceClass, Arc<Class>>,
}

/// All metaslabs of a pool.
pub struct Metaslabs {
    pool: RwLock<Pool>,
    pub(super) features: RwLock<SpaceFeatures>,
    /// Metaslabs that something happened to, by txg.
    pub(super) dirty: [Mutex<Vec<(u32, u64)>>; TXG_SIZE],
    /// Those that the syncing txg has been through and that its end concerns.
    pub(super) synced: Mutex<BTreeSet<(u32, u64)>>,
    pub(super) log: Mutex<Log>,
    pub(super) counts: Mutex<FeatureCounts>,
    pub(super) spare: Spare,
    /// The txg of the pool's checkpoint; 0: there is none.
    pub(super) checkpoint_txg: AtomicU64,
    pub(super) removed: AllRemoved,
    pub(super) autotrim: AtomicBool,
    /// The last txg of which an intent log may have a record that clones blocks.
    pub(super) clones_logged: AtomicU64,
    /// The last txg that is on disk.
    pub(super) last_done: AtomicU64,
}

impl Metaslabs {
    pub fn new(features: SpaceFeatures) -> Arc<Metaslabs> {
        Arc::new(Metaslabs {
            pool: RwLock::default(),
            features: RwLock::new(features),
            dirty: Default::default(),
            synced: Mutex::default(),
            log: Mutex::default(),
            counts: Mutex::default(),
            spare: Spare::default(),
            checkpoint_txg: AtomicU64::new(0),
            removed: AllRemoved::default(),
            autotrim: AtomicBool::new(false),
            clones_logged: AtomicU64::new(0),
            last_done: AtomicU64::new(0),
        })
    }

    pub fn set_features(&self, features: SpaceFeatures) {
        *self.features.write() = features;
    }

    /// Adds a new, empty vdev.
    pub fn add_vdev(&self, spec: VdevSpec) -> Result<()> {
        self.insert(VdevSpace::new(spec, Vec::new())?)
    }

    /// Adds a vdev of a pool that is being imported. [`Metaslabs::load_logs`] completes the import.
    pub async fn open_vdev(&self, mos: &Arc<Objset>, spec: VdevSpec) -> Result<()> {
        let maps = VdevSpace::maps(mos, &spec).await?;
        self.insert(VdevSpace::new(spec, maps)?)
    }

    fn insert(&self, vdev: VdevSpace) -> Result<()> {
        let mut pool = self.pool.write();
        let id = vdev.spec.id;
        if pool.vdevs.contains_key(&id) {
            return Err(Error::os(Errno::Exist, format!("vdev {id} is there twice")));
        }
        pool.vdevs.insert(id, Arc::new(vdev));
        pool.classes = CLASSES.map(|c| (c, Arc::new(Class::of(c, &pool.vdevs)))).into();
        drop(pool);
        self.tell_worst();
        self.rebalance();
        Ok(())
    }

    /// Puts a vdev in the place of the one of its number.
    pub(super) fn exchange(&self, vdev: VdevSpace) {
        let mut pool = self.pool.write();
        pool.vdevs.insert(vdev.spec.id, Arc::new(vdev));
        pool.classes = CLASSES.map(|c| (c, Arc::new(Class::of(c, &pool.vdevs)))).into();
    }

    pub(super) fn drop_vdev(&self, id: u32) {
        let mut pool = self.pool.write();
        pool.vdevs.remove(&id);
        pool.classes = CLASSES.map(|c| (c, Arc::new(Class::of(c, &pool.vdevs)))).into();
    }

    pub(super) fn vdevs(&self) -> Vec<Arc<VdevSpace>> {
        self.pool.read().vdevs.values().cloned().collect()
    }

    pub(super) fn vdev(&self, id: u32) -> Result<Arc<VdevSpace>> {
        let found = self.pool.read().vdevs.get(&id).cloned();
        found.ok_or_else(|| Error::corrupt(None, format!("vdev {id}"), "there is no such top-level vdev"))
    }

    pub(super) fn class(&self, class: SpaceClass) -> Option<Arc<Class>> {
        self.pool.read().classes.get(&class).cloned()
    }

    /// Whether new blocks may go to a vdev: not while it is missing, faulted or being removed.
    pub fn set_allocatable(&self, vdev: u32, yes: bool) -> Result<()> {
        self.vdev(vdev)?.allocatable.store(yes, Ordering::Relaxed);
        Ok(())
    }

    /// Says whether the administrator wants nothing new on a vdev. A block that a txg cannot do
    /// without goes there all the same if no other of its class has room.
    pub fn retire(&self, vdev: u32, yes: bool) -> Result<()> {
        self.vdev(vdev)?.retired.store(yes, Ordering::Relaxed);
        Ok(())
    }

    pub fn is_retired(&self, vdev: u32) -> Result<bool> {
        Ok(self.vdev(vdev)?.retired.load(Ordering::Relaxed))
    }

    /// A vdev of an old pool has got its ZAP.
    pub fn set_top_zap(&self, vdev: u32, zap: ObjectId) -> Result<()> {
        self.vdev(vdev)?.top_zap.store(zap.0, Ordering::Relaxed);
        Ok(())
    }

    pub fn vdev_stat(&self, vdev: u32) -> Result<SpaceStat> {
        Ok(self.vdev(vdev)?.stat())
    }

    /// The space of a class. That of the embedded log is part of its vdevs'; the normal class here
    /// is without it.
    pub fn class_stat(&self, class: SpaceClass) -> SpaceStat {
        let mut sum = SpaceStat::default();
        let (mut weighted, mut known) = (0u128, true);
        let Some(c) = self.class(class) else { return sum };
        for i in 0..c.members.len() {
            let Some((v, g)) = c.group(i) else { continue };
            let whole = v.stat();
            // Of a vdev that is being emptied nothing is given out.
            let gives = class == SpaceClass::Log || v.is_given_out();
            let (space, alloc, deferred) = if !gives {
                match g.class {
                    SpaceClass::EmbeddedLog => (0, 0, 0),
                    _ => (whole.alloc, whole.alloc, whole.deferred),
                }
            } else if v.groups.len() == 1 {
                (whole.space, whole.alloc, whole.deferred)
            } else {
                let others: Vec<(u64, u64)> = v.groups.iter().map(Group::usage).collect();
                let log = others.get(1).copied().unwrap_or_default();
                match g.class {
                    SpaceClass::EmbeddedLog => (log.1, log.0, 0),
                    _ => (whole.space - log.1, whole.alloc.saturating_sub(log.0), whole.deferred),
                }
            };
            sum.space += space;
            sum.alloc += alloc;
            sum.deferred += deferred;
            sum.dspace += v.deflated(space);
            sum.dalloc += v.deflated(alloc);
            sum.ddeferred += v.deflated(deferred);
            known &= whole.fragmentation.is_some();
            weighted += u128::from(whole.fragmentation.unwrap_or(0)) * u128::from(space);
        }
        if known && sum.space > 0 {
            sum.fragmentation = Some((weighted / u128::from(sum.space)) as u64);
        }
        sum
    }

    /// Space that only the pool itself may use, so that a full pool can still free.
    pub fn slop(&self) -> u64 {
        self.slop_of(self.class_stat(SpaceClass::Normal).dspace)
    }

    /// The same if there were so much space.
    pub fn slop_of(&self, space: u64) -> u64 {
        let slop = (space >> 5).min(128 << 30);
        let embedded = self.class_stat(SpaceClass::EmbeddedLog).dspace;
        (slop - embedded.min(slop >> 1)).max((space >> 1).min(128 << 20))
    }

    /// Whether a txg changed any space that is not in a map or log yet.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        let list = self.dirty[txg.slot()].lock().clone();
        list.iter().any(|&(v, m)| {
            self.metaslab(v, m).is_ok_and(|(_, ms)| {
                let st = ms.state();
                !st.allocating[txg.slot()].is_empty()
                    || !st.freeing.is_empty()
                    || !st.checkpointing.is_empty()
            })
        })
    }

    pub(super) fn metaslab(&self, vdev: u32, id: u64) -> Result<(Arc<VdevSpace>, Arc<Metaslab>)> {
        let v = self.vdev(vdev)?;
        let ms = v.all.get(id as usize).cloned();
        let what = || Error::corrupt(None, format!("vdev {vdev}"), format!("there is no metaslab {id}"));
        ms.map(|ms| (v, ms)).ok_or_else(what)
    }

    /// Puts a metaslab on a txg's list, unless it is there.
    pub(super) fn list(&self, txg: Txg, vdev: u32, ms: &Metaslab, st: &mut State) {
        if !std::mem::replace(&mut st.listed[txg.slot()], true) {
            self.dirty[txg.slot()].lock().push((vdev, ms.id));
        }
    }

    /// Gives turns lengths that even out how full the vdevs of a class are.
    pub(super) fn rebalance(&self) {
        for class in CLASSES.into_iter().filter_map(|c| self.class(c)) {
            let usage: Vec<_> = class.groups().map(|(_, g)| g.usage()).collect();
            let sum = usage.iter().fold((0, 0), |(u, a), (u2, a2)| (u + u2, a + a2));
            for (i, own) in usage.into_iter().enumerate() {
                if let Some((v, g)) = class.group(i) {
                    g.set_aliquot(v.spec.data_disks, own, sum);
                    g.reassess();
                }
            }
        }
        self.count_spare();
    }

    fn place(&self, txg: Txg, req: &AllocReq) -> Result<Dvas, AllocStop> {
        use SpaceClass::*;
        let order: &[SpaceClass] = match req.class {
            // What is kept for the log serves data before a pool is full.
            AllocClass::Normal => &[Normal, EmbeddedLog],
            AllocClass::Log => &[Log, EmbeddedLog, Normal],
            AllocClass::Special => &[Special, Normal, EmbeddedLog],
            AllocClass::SmallBlock if self.spare.special_takes(req.psize) => &[Special, Normal, EmbeddedLog],
            AllocClass::SmallBlock => &[Normal, EmbeddedLog],
            AllocClass::Dedup => &[Dedup, Special, Normal, EmbeddedLog],
        };
        let everywhere = [Normal, EmbeddedLog, Special, Dedup];
        let order = if req.must { &everywhere } else { order };
        for kind in order {
            let Some(class) = self.class(*kind) else { continue };
            // Who waits for a log block can wait for a txg instead; a txg that finds no room for
            // the pool's own objects ends everything.
            if req.class == AllocClass::Log && *kind == Normal && !self.has_room(req.psize, Leave::Half) {
                break;
            }
            match self.place_in(&class, txg, req) {
                Err(AllocStop::NoSpc) => {}
                Ok(dvas) => {
                    if *kind == Log {
                        self.spare.log_took(dvas.iter().map(|d| d.asize).sum());
                    }
                    if *kind == Special {
                        self.spare.special_took(dvas.iter().map(|d| d.asize).sum());
                    }
                    if *kind == Normal {
                        let taken = |d: &Dva| Some(self.vdev(d.vdev).ok()?.deflated(d.asize));
                        self.spare.took(dvas.iter().filter_map(taken).sum());
                    }
                    return Ok(dvas);
                }
                out => return out,
            }
        }
        Err(AllocStop::NoSpc)
    }

    fn place_in(&self, class: &Class, txg: Txg, req: &AllocReq) -> Result<Dvas, AllocStop> {
        let n = class.members.len();
        if n == 0 {
            return Err(AllocStop::NoSpc);
        }
        let mut dvas = Dvas::new();
        let member = |id: u32| class.members.iter().position(|(v, _)| v.spec.id == id);
        let best = req.spots.iter().flatten().find_map(|(id, at)| Some((member(*id)?, *at)));
        let (mut first, at) = best.unwrap_or_else(|| (class.turn(req.psize), At::After(0)));
        for lane in 0..usize::from(req.copies.clamp(1, 3)) {
            match self.place_copy(class, txg, req, lane, (first, at), &dvas) {
                Ok((member, dva)) => {
                    dvas.push(dva);
                    first = (member + 1) % n;
                }
                Err(stop) => {
                    for d in &dvas {
                        self.unalloc(txg, d).map_err(AllocStop::Err)?;
                    }
                    return Err(stop);
                }
            }
        }
        Ok(dvas)
    }

    fn place_copy(
        &self,
        class: &Class,
        txg: Txg,
        req: &AllocReq,
        lane: usize,
        (first, at): (usize, At),
        others: &Dvas,
    ) -> Result<(usize, Dva), AllocStop> {
        let n = class.members.len();
        for how in [Effort::Apart, Effort::Near, Effort::Anywhere] {
            if how == Effort::Anywhere && !req.must {
                break;
            }
            let hard = how != Effort::Apart;
            for member in (0..n).map(|k| (first + k) % n) {
                let Some((v, g)) = class.group(member) else { continue };
                // A block on two places of one vdev is second best while there are others.
                let used = others.iter().any(|d| d.vdev == v.spec.id);
                let takes = v.takes_blocks() || (how == Effort::Anywhere && v.can_take_blocks());
                if !takes || (used && !hard && n > others.len()) {
                    continue;
                }
                let asize = v.asize(req.psize, txg);
                match g.alloc(v, txg, lane, (asize, at), others, how) {
                    Found::At(offset) => {
                        let vdev = v.spec.id;
                        if let Ok(ms) = v.metaslab_of(offset, asize) {
                            self.list(txg, vdev, ms, &mut ms.state());
                        }
                        return Ok((member, Dva { vdev, offset, asize, gang: req.gang_header }));
                    }
                    Found::Load(metaslab) => return Err(AllocStop::Load { vdev: v.spec.id, metaslab }),
                    Found::Nothing => {}
                }
            }
        }
        Err(AllocStop::NoSpc)
    }

    /// The vdev, metaslab and true size of what a DVA points to.
    pub(super) fn locate(&self, dva: &Dva) -> Result<(Arc<VdevSpace>, Arc<Metaslab>, u64)> {
        let v = self.vdev(dva.vdev)?;
        // A gang's DVA has the size of all its members; its own place holds the header only.
        let size = if dva.gang { v.asize(GANG_HEADER_SIZE, Txg(0)) } else { dva.asize };
        let ms = v.metaslab_of(dva.offset, size)?.clone();
        Ok((v, ms, size))
    }

    /// Whether there is such a place, allocated or not.
    pub fn holds(&self, dva: &Dva) -> bool {
        self.locate(dva).is_ok() || self.maps(dva)
    }

    /// Gives out again what waits for that in some of the places for deferred frees; how much that
    /// is.
    fn scrape(&self, which: impl Fn(usize) -> bool) -> Result<u64> {
        let mut found = 0;
        for v in self.vdevs() {
            for ms in &v.all {
                let mut st = ms.state();
                for i in (0..TXG_DEFER_SIZE).filter(|i| which(*i)) {
                    let ranges = std::mem::take(&mut st.defer[i]);
                    ms.release(&mut st, &ranges)?;
                    self.note_trims(ms, &mut st, &ranges)?;
                    found += ranges.space();
                    v.count_space(-(ranges.space() as i64), -(ranges.space() as i64));
                }
                ms.reweigh(&st);
            }
        }
        Ok(found)
    }

    /// An intent log has, or is to have, a record of `txg` that clones blocks.
    ///
    /// An import claims what the records clone, also those of txgs that are synced, by the places
    /// alone. So such a place must not be another's while the record may be there, which is up to
    /// the txg after its own: the log's block may have records of the open txg too. Hence what is
    /// freed in the record's txg, the first in which it can be, is never given out at once.
    pub fn note_clones_logged(&self, txg: Txg) {
        self.clones_logged.fetch_max(txg.0, Ordering::Relaxed);
    }

    /// The last txg of which that was said.
    pub fn clones_logged(&self) -> Txg {
        Txg(self.clones_logged.load(Ordering::Relaxed))
    }

    /// Takes back an allocation of this txg to which nothing was written.
    pub fn unalloc(&self, txg: Txg, dva: &Dva) -> Result<()> {
        let (_, ms, size) = self.locate(dva)?;
        let mut st = ms.state();
        ms.unalloc(&mut st, txg, dva.offset, size)
    }

    /// Frees in the syncing txg; the space is given out again two txgs later (but see
    /// [`Metaslabs::sync_done`]).
    pub fn free_dva(&self, txg: Txg, dva: &Dva) -> Result<()> {
        self.let_go(txg, dva, Metaslab::free)
    }

    /// Gives a place up, or where it went if its vdev was removed.
    pub(super) fn let_go(
        &self,
        txg: Txg,
        dva: &Dva,
        how: fn(&Metaslab, &mut State, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let left = self.leave_removed(dva)?;
        if left.as_ref().is_none_or(|l| l.itself) {
            let (v, ms, size) = self.locate(dva)?;
            let mut st = ms.state();
            how(&ms, &mut st, dva.offset, size)?;
            self.list(txg, v.spec.id, &ms, &mut st);
        }
        let moved = left.map(|l| l.moved).unwrap_or_default();
        moved.iter().try_for_each(|piece| self.let_go(txg, piece, how))
    }

    /// Claims a place (see [`Allocator::claim`]), loading its metaslab where need be. False: the
    /// metaslab's map cannot be read, so nobody knows whether it is free, and nothing was done.
    pub async fn claim_wait(&self, txg: Txg, dva: &Dva) -> Result<bool> {
        let (_, ms, _) = self.locate(dva)?;
        if let Err(e) = ms.load().await {
            tracing::error!("metaslab {} of vdev {} cannot be loaded: {e}", ms.id, dva.vdev);
            return Ok(false);
        }
        if ms.state().broken {
            return Ok(false);
        }
        self.claim(txg, dva).map(|()| true)
    }

    /// Claims a place of which that is so. Its metaslab is not used until the map can be read
    /// ([`Metaslabs::read_again`]).
    pub fn claim_unseen(&self, txg: Txg, dva: &Dva) -> Result<()> {
        let (v, ms, size) = self.locate(dva)?;
        let mut st = ms.state();
        ms.claim_unseen(&mut st, txg, dva.offset, size)?;
        self.list(txg, v.spec.id, &ms, &mut st);
        Ok(())
    }

    /// Everything that is free for allocation now in a metaslab that is loaded; for checks.
    pub fn free_ranges(&self, vdev: u32, metaslab: u64) -> Result<Option<RangeTree>> {
        let (_, ms) = self.metaslab(vdev, metaslab)?;
        let st = ms.state();
        Ok(st.loaded.then(|| st.free.clone()))
    }

    /// What the maps and logs on disk call allocated, of a whole vdev; for checks. Nothing may be
    /// being synced.
    pub async fn allocated_ranges(&self, vdev: u32) -> Result<RangeTree> {
        let v = self.vdev(vdev)?;
        let mut out = RangeTree::new();
        for ms in &v.all {
            let (reader, length, allocs, frees) = {
                let st = ms.state();
                let Some(sm) = &st.sm else { continue };
                (sm.reader(), st.synced_length, st.unflushed_allocs.clone(), st.unflushed_frees.clone())
            };
            let mut free = reader.load_free(length).await?;
            free.remove_all(&allocs).and_then(|()| free.add_all(&frees)).map_err(|e| ms.corrupt(e))?;
            let mut used = RangeTree::new();
            used.add(ms.start, ms.size).and_then(|()| used.remove_all(&free)).map_err(|e| ms.corrupt(e))?;
            out.add_all(&used).map_err(|e| ms.corrupt(e))?;
        }
        Ok(out)
    }
}

impl Class {
    fn of(class: SpaceClass, vdevs: &BTreeMap<u32, Arc<VdevSpace>>) -> Class {
        let members = vdevs
            .values()
            .flat_map(|v| {
                v.groups.iter().enumerate().filter(|(_, g)| g.class == class).map(|(i, _)| (v.clone(), i))
            })
            .collect();
        Class { members, rotor: Mutex::default() }
    }
}

impl Allocator for Metaslabs {
    fn has_room(&self, bytes: u64, leave: Leave) -> bool {
        self.spare.has_room(bytes, leave)
    }

    fn uncounted(&self) -> bool {
        self.spare.uncounted()
    }

    fn lacks_vdevs(&self) -> bool {
        self.vdevs().iter().any(|v| {
            let of_log = v.groups.iter().all(|g| g.class == SpaceClass::Log);
            !of_log && v.is_given_out() && !v.takes_blocks()
        })
    }

    fn scrape_together(&self) -> Result<bool> {
        // What a record of the log clones comes last (see [`Metaslabs::note_clones_logged`]).
        let last = self.last_done.load(Ordering::Relaxed);
        let newest = last as usize % TXG_DEFER_SIZE;
        let older = self.scrape(|i| i != newest)?;
        let clones = self.clones_logged.load(Ordering::Relaxed) >= last;
        let newer = if older > 0 && clones { 0 } else { self.scrape(|i| i == newest)? };
        let found = older + newer;
        if found > 0 {
            tracing::warn!(bytes = found, "a txg found no room; what the last two freed is given out again");
            self.count_spare();
        }
        Ok(found > 0)
    }

    fn log_fullness(&self) -> Option<f64> {
        self.spare.log_fullness()
    }

    fn alloc(&self, txg: Txg, reqs: &[AllocReq], out: &mut Vec<Dvas>) -> Result<(), AllocStop> {
        while let Some(req) = reqs.get(out.len()) {
            out.push(self.place(txg, req)?);
        }
        Ok(())
    }

    fn load(&self, vdev: u32, metaslab: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (_, ms) = self.metaslab(vdev, metaslab)?;
            ms.load().await
        })
    }

    fn unalloc(&self, txg: Txg, dva: &Dva) {
        if let Err(e) = Metaslabs::unalloc(self, txg, dva) {
            tracing::error!("not taken back: {dva:?}: {e}");
        }
    }

    fn free(&self, txg: Txg, dva: &Dva, born: Txg) {
        // Blocks born in this txg are deferred as well: an earlier pass may have a write to that
        // place in flight.
        let kept = self.in_checkpoint(txg, born);
        if let Err(e) = if kept { self.keep_dva(txg, dva) } else { self.free_dva(txg, dva) } {
            // A pointer that lies must not take space from others. At worst the space is lost.
            tracing::error!("not freed: {dva:?}: {e}");
        }
    }

    fn claim(&self, txg: Txg, dva: &Dva) -> Result<()> {
        let (v, ms, size) = self.locate(dva)?;
        let mut st = ms.state();
        if !st.loaded {
            return Err(Error::os(Errno::Again, format!("metaslab {} is not loaded", ms.id)));
        }
        ms.claim(&mut st, txg, dva.offset, size)?;
        self.list(txg, v.spec.id, &ms, &mut st);
        Ok(())
    }
}
