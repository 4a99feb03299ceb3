//! The whole tree, and the view of it that I/O takes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use smallvec::SmallVec;
use zilla_env::Env;
use zilla_ondisk::NvList;
use zilla_ondisk::blkptr::{BlkPtr, Dva};
use zilla_ondisk::enums::VdevState;

pub use super::config::ConfigFor;
use super::config::Parser;
use super::distributed;
use super::draid::Draid;
use super::gate::Gates;
use super::leaf::Leaf;
use super::node::{Vdev, VdevKind};
use super::raidz;
use super::state::{self, ChildState};
use super::widths::{Entry, Widths};
use super::within::{SLOW_TIMEOUT, within};
use crate::error::{Errno, Error, Result};
use crate::types::Txg;

/// The leaves of a pool, by index.
type Leaves = Vec<Arc<Leaf>>;

/// Leaves that hold the same bytes.
#[derive(Clone)]
pub struct Unit {
    pub leaves: SmallVec<[Arc<Leaf>; 2]>,
}

impl Unit {
    pub fn readable(&self) -> bool {
        self.leaves.iter().any(|l| l.readable())
    }
}

#[derive(Clone)]
pub enum Layout {
    /// One unit: a lone leaf or a mirror.
    Plain(Unit),
    Raidz {
        nparity: usize,
        units: Vec<Unit>,
        widths: Arc<Widths>,
    },
    Draid {
        draid: Arc<Draid>,
        units: Vec<Unit>,
    },
    /// A removed vdev: what was on it is elsewhere.
    Indirect,
    /// A hole or a missing vdev: nothing can be read from it.
    Nothing,
}

/// A top-level vdev as I/O sees it.
#[derive(Clone)]
pub struct Top {
    pub id: u32,
    pub vdev: Arc<Vdev>,
    pub layout: Layout,
}

impl Top {
    fn new(vdev: &Arc<Vdev>) -> Top {
        let layout = match vdev.kind {
            _ if let Some(draid) = &vdev.draid => {
                Layout::Draid { draid: draid.clone(), units: vdev.children.iter().map(unit).collect() }
            }
            _ if let Some(widths) = &vdev.widths => Layout::Raidz {
                nparity: vdev.kind.nparity().unwrap_or(1),
                units: vdev.children.iter().map(unit).collect(),
                widths: widths.clone(),
            },
            VdevKind::Indirect => Layout::Indirect,
            VdevKind::Hole | VdevKind::Missing => Layout::Nothing,
            _ => Layout::Plain(unit(vdev)),
        };
        Top { id: vdev.id as u32, vdev: vdev.clone(), layout }
    }

    pub fn ashift(&self) -> u32 {
        self.vdev.ashift()
    }

    /// Space that `psize` bytes of a block born in txg `birth` take here.
    pub fn psize_to_asize(&self, psize: u64, birth: u64) -> u64 {
        let ashift = self.ashift();
        match &self.layout {
            Layout::Raidz { nparity, widths, .. } => {
                raidz::psize_to_asize(psize, ashift, widths.at(birth) as u64, *nparity as u64)
            }
            Layout::Draid { draid, .. } => draid.psize_to_asize(psize, ashift),
            _ => psize.next_multiple_of(1 << ashift),
        }
    }

    /// How `size` bytes (whole sectors) at `offset`, born in txg `birth`, lie across the units,
    /// where they share blocks among them.
    pub(super) fn map(&self, offset: u64, size: u64, birth: u64, entry: &Entry) -> Option<raidz::Map> {
        match &self.layout {
            Layout::Raidz { nparity, units, widths } => {
                let (logical, children, nparity) = (widths.at(birth), units.len(), *nparity);
                if logical >= children {
                    return Some(raidz::Map::new(offset, size, self.ashift(), children, nparity));
                }
                // A tree from before knows no new places; nothing is moved while there is one.
                let moving = self.vdev.is_expanding();
                let at = entry.at(self.id).or_else(|| widths.reflow().map(|r| r.now())).filter(|_| moving);
                let widths = widths.all(children).collect();
                let how = raidz::Expanded { logical, children, nparity, widths, at };
                Some(raidz::Map::expanded(offset, size, self.ashift(), how))
            }
            Layout::Draid { draid, .. } => Some(draid.map(offset, size, self.ashift())),
            _ => None,
        }
    }

    /// Blocks begin and end at multiples of it.
    pub fn grain(&self) -> u64 {
        match &self.layout {
            Layout::Draid { draid, .. } => draid.stripe(self.ashift()),
            _ => 1 << self.ashift(),
        }
    }

    /// 512 is no overhead. What space users see of allocated space is this share of it. That of a
    /// RAID-Z is its original width's for ever: what was counted must be uncounted by the same
    /// ratio.
    pub fn deflate_ratio(&self) -> u64 {
        (1 << 17) / (self.psize_to_asize(1 << 17, 0) >> 9).max(1)
    }

    pub(super) fn units(&self) -> &[Unit] {
        match &self.layout {
            Layout::Plain(u) => std::slice::from_ref(u),
            Layout::Raidz { units, .. } | Layout::Draid { units, .. } => units,
            Layout::Indirect | Layout::Nothing => &[],
        }
    }

    pub fn leaves(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.units().iter().flat_map(|u| u.leaves.iter())
    }

    /// Whether writes can go here: enough leaves take them to be read back.
    pub fn writable(&self) -> bool {
        self.survives(|l| l.writable())
    }

    /// Whether a block that these leaves have can be read back.
    pub fn survives(&self, has: impl Fn(&Arc<Leaf>) -> bool) -> bool {
        let ok = |u: &Unit| u.leaves.iter().any(&has);
        match &self.layout {
            Layout::Plain(u) => ok(u),
            Layout::Raidz { units, .. } | Layout::Draid { units, .. } => {
                units.iter().filter(|u| !ok(u)).count() <= self.vdev.kind.nparity().unwrap_or(0)
            }
            Layout::Indirect | Layout::Nothing => false,
        }
    }

    /// Whether some block, whenever it was born, can be read with a leaf and not without it. By the
    /// DTLs, which change the answer only where a range of one of them begins or ends.
    pub fn needs(&self, leaf: &Arc<Leaf>) -> bool {
        let ranges = self.leaves().flat_map(|l| l.dtl.ranges());
        let births = ranges.flat_map(|(start, end)| [start, end]).chain([0]);
        births.into_iter().any(|birth| {
            let has = |l: &Arc<Leaf>| l.readable() && l.holds(birth);
            self.survives(has) && !self.survives(|l| l.index != leaf.index && has(l))
        })
    }

    /// Whether devices are away without which a block of this birth cannot be read here.
    pub fn lacks(&self, birth: u64) -> bool {
        self.vdev.is_concrete()
            && self.devices().any(|l| !l.readable())
            && !self.survives(|l| l.readable() && l.holds(birth))
    }
}

fn unit(vdev: &Arc<Vdev>) -> Unit {
    Unit { leaves: vdev.walk().iter().filter_map(|v| v.leaf.clone()).collect() }
}

/// Refuses two vdevs of one guid: labels could not tell their devices apart, and one device would
/// be written as both.
fn different(root: &Arc<Vdev>) -> Result<()> {
    let mut seen = BTreeSet::new();
    // Holes have none.
    match root.walk().iter().find(|v| v.guid != 0 && !seen.insert(v.guid)) {
        Some(v) => Err(Error::corrupt(None, "vdev configuration", format!("two vdevs of guid {}", v.guid))),
        None => Ok(()),
    }
}

pub struct VdevTree {
    pub env: Env,
    pub root: Arc<Vdev>,
    /// By number, holes included.
    pub tops: Vec<Top>,
    /// Of the pool proper, then spares and cache devices, then what came later. What has gone keeps
    /// its place.
    pub leaves: Vec<Arc<Leaf>>,
    pub spares: Vec<Arc<Vdev>>,
    pub cache: Vec<Arc<Vdev>>,
    writable: std::sync::atomic::AtomicBool,
    /// How many top-levels that hold its blocks the pool may lack: some of an import for reading
    /// alone.
    pub(super) spared_tops: std::sync::atomic::AtomicUsize,
    /// Space is counted with RAID-Z's parity in it, as pools of versions 1 and 2 count it.
    raw_space: std::sync::atomic::AtomicBool,
    /// Those of its top-levels that are being rebuilt.
    pub(crate) gates: Arc<Gates>,
}

impl VdevTree {
    /// Makes the tree a root's configuration describes (an `l2cache` array in it included). No
    /// device is touched.
    pub fn from_config(env: &Env, config: &NvList) -> Result<VdevTree> {
        let mut parser = Parser::new(env.clone(), Vec::new());
        let root = parser.vdev(config, config.u64("id").unwrap_or(0), 0)?;
        distributed::check(&root)?;
        different(&root)?;
        let cache = config.lists("l2cache").unwrap_or_default();
        let cache = cache.iter().enumerate().map(|(i, c)| parser.aux(c, i)).collect::<Result<Vec<_>>>()?;
        Ok(VdevTree::assemble(env, root, parser.leaves, Vec::new(), cache))
    }

    pub(super) fn assemble(
        env: &Env,
        root: Arc<Vdev>,
        leaves: Vec<Arc<Leaf>>,
        spares: Vec<Arc<Vdev>>,
        cache: Vec<Arc<Vdev>>,
    ) -> VdevTree {
        let tops = root.children.iter().map(Top::new).collect();
        VdevTree {
            env: env.clone(),
            root,
            tops,
            leaves,
            spares,
            cache,
            writable: false.into(),
            spared_tops: 0.into(),
            raw_space: false.into(),
            gates: Arc::default(),
        }
    }

    pub fn top(&self, id: u32) -> Result<&Top> {
        let top = self.tops.get(id as usize);
        top.ok_or_else(|| Error::corrupt(None, format!("vdev {id}"), "there is no such vdev"))
    }

    /// Leaves of top-level vdevs.
    pub fn pool_leaves(&self) -> impl Iterator<Item = &Arc<Leaf>> {
        self.tops.iter().flat_map(Top::leaves)
    }

    /// The node with this guid, aux devices included.
    pub fn find(&self, guid: u64) -> Option<Arc<Vdev>> {
        let aux = self.spares.iter().chain(&self.cache).cloned();
        self.root.walk().into_iter().chain(aux).find(|v| v.guid == guid)
    }

    /// Sum of the guids of all vdevs of the pool, which an uberblock repeats.
    pub fn guid_sum(&self) -> u64 {
        self.root.walk().iter().fold(0, |sum, v| sum.wrapping_add(v.guid))
    }

    /// Those that are for the log alone, or all others.
    pub fn tops_for(&self, log: bool) -> impl Iterator<Item = &Top> {
        self.tops.iter().filter(move |t| t.vdev.is_log == log && t.vdev.is_concrete())
    }

    /// The smallest block the pool writes: a sector of its coarsest ordinary vdev is not split.
    pub fn min_ashift(&self) -> u32 {
        self.tops_for(false).map(Top::ashift).filter(|s| *s > 0).min().unwrap_or(9)
    }

    pub fn max_ashift(&self) -> u32 {
        self.tops_for(false).map(Top::ashift).max().unwrap_or(9)
    }

    /// The `ashift` of the ordinary vdevs, if they have one; log devices, special and dedup vdevs
    /// have their own.
    pub fn sector_shift(&self) -> Option<u32> {
        let ordinary = self.tops_for(false).filter(|t| t.vdev.bias().is_none());
        let mut shifts = ordinary.map(Top::ashift).filter(|s| *s > 0);
        let first = shifts.next()?;
        shifts.all(|s| s == first).then_some(first)
    }

    /// Space a copy takes as users see it.
    pub fn dva_dsize(&self, dva: &Dva) -> u64 {
        match self.tops.get(dva.vdev as usize) {
            Some(top) if dva.is_valid() && !matches!(top.layout, Layout::Nothing) => {
                match self.raw_space.load(Ordering::Relaxed) {
                    true => dva.asize,
                    false => (dva.asize >> 9) * top.deflate_ratio(),
                }
            }
            _ => 0,
        }
    }

    pub fn dsize(&self, bp: &BlkPtr) -> u64 {
        bp.dvas().map(|d| self.dva_dsize(&d)).sum()
    }

    /// Refuses a DVA, of a block born in txg `birth`, that does not lie on its vdev.
    pub fn check_dva(&self, dva: &Dva, psize: u64, birth: u64) -> Result<&Top> {
        let top = self.top(dva.vdev)?;
        let asize = top.psize_to_asize(if dva.gang { 512 } else { psize }, birth);
        let place = || format!("vdev {} at {:#x}", dva.vdev, dva.offset);
        if matches!(top.layout, Layout::Nothing) {
            return Err(Error::corrupt(
                None,
                place(),
                format!("the vdev is a {}", top.vdev.kind.type_name()),
            ));
        }
        let end = dva.offset.checked_add(asize);
        if end.is_none_or(|end| end > top.vdev.asize()) {
            return Err(Error::corrupt(None, place(), "the block leaves its vdev"));
        }
        // A repair of it would write over what lies behind it.
        if matches!(top.layout, Layout::Raidz { .. }) && !dva.gang && dva.asize < asize {
            return Err(Error::corrupt(None, place(), "the block takes more than its pointer says"));
        }
        if !dva.offset.is_multiple_of(top.grain()) {
            return Err(Error::corrupt(None, place(), "the block does not begin where one can"));
        }
        Ok(top)
    }

    pub fn generate_config(&self, what: ConfigFor) -> NvList {
        self.root.generate(what, None)
    }

    /// The configuration of one top-level: the `vdev_tree` of its leaves' labels.
    pub fn generate_top(&self, top: &Top) -> NvList {
        top.vdev.generate(ConfigFor::Label, Some(top.vdev.guid))
    }

    pub fn generate_aux(&self, aux: &[Arc<Vdev>]) -> Vec<NvList> {
        aux.iter().map(|v| v.generate(ConfigFor::Mos, None)).collect()
    }

    /// Numbers of the holes, as labels list them.
    pub fn hole_array(&self) -> Vec<u64> {
        self.tops.iter().filter(|t| t.vdev.kind == VdevKind::Hole).map(|t| t.vdev.id).collect()
    }

    /// In the syncing context, or while the pool is opened.
    pub(crate) fn count_raw_space(&self, raw: bool) {
        self.raw_space.store(raw, Ordering::Relaxed);
    }

    /// What both of a tree and the one that takes its place have.
    pub(super) fn like(mut self, old: &VdevTree) -> VdevTree {
        self.set_writable(old.is_writable());
        self.spared_tops = old.spared_tops.load(Ordering::Relaxed).into();
        self.count_raw_space(old.raw_space.load(Ordering::Relaxed));
        self.gates = old.gates.clone();
        self
    }

    pub(super) fn set_writable(&self, writable: bool) {
        self.writable.store(writable, Ordering::Release);
    }

    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Works out the states of all inner nodes from their leaves'.
    pub fn propagate(&self) {
        self.propagate_node(&self.root);
    }

    /// How many top-levels the pool lacks that are no logs.
    pub fn lost_tops(&self) -> usize {
        let holds = |v: &Vdev| !v.is_log && (v.is_concrete() || v.kind == VdevKind::Missing);
        self.tops.iter().filter(|t| holds(&t.vdev) && t.vdev.state().0 < VdevState::Degraded).count()
    }

    fn propagate_node(&self, v: &Arc<Vdev>) -> ChildState {
        if v.is_leaf() || !v.is_concrete() {
            let hole = matches!(v.kind, VdevKind::Hole | VdevKind::Indirect);
            let (state, aux) = if hole { (VdevState::Healthy, super::VdevAux::None) } else { v.state() };
            let ok = |l: &Arc<Leaf>| l.readable() && (l.writable() || !self.is_writable());
            let usable = hole || v.leaf.as_ref().is_some_and(ok);
            v.set_allocatable(usable && !hole);
            return ChildState { state, aux, usable, is_log: v.is_log };
        }
        let children: Vec<ChildState> = v.children.iter().map(|c| self.propagate_node(c)).collect();
        let (state, aux) = match v.kind {
            VdevKind::Root => {
                let holds = |c: &&Arc<Vdev>| !c.is_log && (c.is_concrete() || c.kind == VdevKind::Missing);
                let needed = v.children.iter().filter(holds).count();
                state::root(&children, needed, self.spared_tops.load(Ordering::Relaxed))
            }
            kind => state::parent(&children, kind.nparity()),
        };
        let was = v.state();
        // A reason found out when the vdev was opened (too small, bad label) is better than
        // "insufficient replicas".
        let keep =
            was.0 == VdevState::CantOpen && state == VdevState::CantOpen && was.1 != super::VdevAux::None;
        if !keep {
            v.set_state(state, aux);
        }
        let usable = state >= VdevState::Degraded;
        v.set_allocatable(usable);
        ChildState { state, aux, usable, is_log: v.is_log }
    }

    /// Makes everything written stable, on every leaf that was written to. A leaf whose flush
    /// fails, or that is not in use any more, is as if it had missed the txg; the error of a
    /// top-level that cannot bear that is returned.
    pub async fn flush_all(&self, txg: u64) -> Result<()> {
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::FlushDropped) {
            return Ok(());
        }
        // Nothing of a txg lies on a cache device.
        let leaves: Vec<Arc<Leaf>> =
            self.leaves.iter().filter(|l| l.writable() && !self.is_cache(l)).cloned().collect();
        let results = join_all(leaves.iter().map(|l| l.flush_txg(Txg(txg)))).await;
        let mut failed: Vec<usize> =
            leaves.iter().zip(&results).filter(|(_, r)| r.is_err()).map(|(l, _)| l.index).collect();
        // One that was taken out of use before it was flushed may have lost what it took.
        let data = self.tops.iter().filter(|t| !t.vdev.is_log).flat_map(Top::leaves);
        for leaf in data.filter(|l| !leaves.iter().any(|f| f.index == l.index)) {
            leaf.has_no_flush(txg);
            failed.push(leaf.index);
        }
        self.missed(txg, &failed)
    }

    /// Whether flushes that failed in the syncs before may have lost some of what is written of a
    /// txg.
    pub(crate) fn may_lack(&self, txg: Txg) -> bool {
        self.pool_leaves().any(|l| l.writable() && l.may_lack(txg))
    }

    /// Records that leaves (by index) missed writes of `txg`. An error if what was written can then
    /// not be read back.
    pub fn missed(&self, txg: u64, failed: &[usize]) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        for l in failed.iter().filter_map(|i| self.leaves.get(*i)) {
            l.dtl.add(txg, txg + 1);
        }
        for top in &self.tops {
            let bad = top.vdev.is_concrete() && !top.survives(|l| l.writable() && l.holds(txg));
            let touched = top.leaves().any(|l| failed.contains(&l.index));
            // Nothing of a txg lies on a log device, and what the intent log needs of it the log
            // itself looks after.
            if bad && touched && !top.vdev.is_log {
                top.vdev.write_errors.fetch_add(1, Ordering::Relaxed);
                let name = top.vdev.kind.type_name();
                return Err(Error::os(
                    Errno::Io,
                    format!("{name}-{}: too few devices took the writes of txg {txg}", top.id),
                ));
            }
        }
        Ok(())
    }

    /// A cache device that does not answer is not waited for.
    pub async fn close(&self) {
        join_all(self.leaves.iter().map(async |l| {
            if self.is_cache(l) {
                within(&self.env, SLOW_TIMEOUT, l.close()).await;
            } else {
                l.close().await;
            }
        }))
        .await;
    }

    pub fn is_cache(&self, leaf: &Arc<Leaf>) -> bool {
        self.cache.iter().any(|v| v.leaf.as_ref().is_some_and(|l| Arc::ptr_eq(l, leaf)))
    }

    /// The same pool with more cache devices, which are not opened yet.
    pub fn adding_cache(&self, configs: &[NvList]) -> Result<VdevTree> {
        let (leaves, cache) = self.adding(&self.cache, configs)?;
        Ok(self.with_aux(leaves, self.spares.clone(), cache))
    }

    /// The same pool with more hot spares.
    pub fn adding_spares(&self, configs: &[NvList]) -> Result<VdevTree> {
        let (leaves, spares) = self.adding(&self.spares, configs)?;
        Ok(self.with_aux(leaves, spares, self.cache.clone()))
    }

    /// All leaves of the pool with those of `configs`, and `old` with their vdevs.
    fn adding(&self, old: &[Arc<Vdev>], configs: &[NvList]) -> Result<(Leaves, Vec<Arc<Vdev>>)> {
        let mut parser = Parser::new(self.env.clone(), self.leaves.clone());
        let mut all = old.to_vec();
        for (i, config) in configs.iter().enumerate() {
            all.push(parser.aux(config, old.len() + i)?);
        }
        let guids: std::collections::BTreeSet<u64> = all.iter().map(|v| v.guid).collect();
        if guids.len() != all.len() {
            let what = "two spares or cache devices with one guid";
            return Err(Error::corrupt(None, "vdev configuration", what));
        }
        Ok((parser.leaves, all))
    }

    /// The same pool without a spare or cache device.
    pub fn without_aux(&self, guid: u64) -> VdevTree {
        let rest = |list: &[Arc<Vdev>]| list.iter().filter(|v| v.guid != guid).cloned().collect();
        self.with_aux(self.leaves.clone(), rest(&self.spares), rest(&self.cache))
    }

    fn with_aux(&self, leaves: Vec<Arc<Leaf>>, spares: Vec<Arc<Vdev>>, cache: Vec<Arc<Vdev>>) -> VdevTree {
        let tree = VdevTree::assemble(&self.env, self.root.clone(), leaves, spares, cache);
        tree.like(self)
    }
}
