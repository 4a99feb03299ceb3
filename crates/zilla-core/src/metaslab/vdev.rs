//! The space of one top-level vdev: its metaslabs, who allocates from which, and what is used.

use super::slab::{LONG_RUN, Metaslab, State};
use super::space_map::SpaceMap;
use crate::dmu::{Dnode, Objset};
use crate::error::{Error, Result};
use crate::tunables;
use crate::types::{ObjectId, Txg};
use crate::vdev::{MOST_METASLABS, MS_COUNT_LIMIT};
use crate::zio::{At, Dvas};
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Space maps that are looked up at the same time.
const AT_ONCE: usize = 32;
const DEFAULT_MS_COUNT: u64 = 200;
const DEFAULT_MS_SHIFT: u8 = 29;
const MAX_MS_SHIFT: u8 = 34;
/// A metaslab holds at least the largest block.
const MIN_MS_SHIFT: u8 = 24;
/// Metaslabs of a new vdev of 64M, the smallest, were of 256K in OpenZFS's first versions; none
/// were ever smaller than this.
const OLD_MIN_MS_SHIFT: u8 = 16;
/// How much is allocated from one vdev before it is the next one's turn, for every disk's worth of
/// bandwidth.
const ALIQUOT: u64 = 2 << 20;
/// A lane leaves its metaslab when another one's largest free range is this many times (log2)
/// larger.
const SWITCH_CLASSES: u64 = 2;

/// The size of a new vdev's metaslabs (log2), for so many bytes: OpenZFS's choice.
pub fn metaslab_shift(asize: u64) -> u8 {
    let highbit = |v: u64| (64 - v.leading_zeros()) as u8;
    let count = asize >> DEFAULT_MS_SHIFT;
    let least = tunables::VDEV_MIN_MS_COUNT.get().clamp(1, DEFAULT_MS_COUNT);
    let shift = if count < least {
        highbit(asize / least)
    } else if count > DEFAULT_MS_COUNT {
        highbit(asize / DEFAULT_MS_COUNT)
    } else {
        DEFAULT_MS_SHIFT
    };
    if shift < MIN_MS_SHIFT {
        MIN_MS_SHIFT
    } else if shift > MAX_MS_SHIFT {
        if asize >> MAX_MS_SHIFT > MS_COUNT_LIMIT { highbit(asize / MS_COUNT_LIMIT) } else { MAX_MS_SHIFT }
    } else {
        shift
    }
}

/// What a top-level vdev is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpaceClass {
    Normal,
    Log,
    /// The metaslabs of normal vdevs that are kept for the intent log.
    EmbeddedLog,
    Special,
    Dedup,
}

pub(super) const CLASSES: [SpaceClass; 5] =
    [SpaceClass::Normal, SpaceClass::Log, SpaceClass::EmbeddedLog, SpaceClass::Special, SpaceClass::Dedup];

/// What the metaslabs need to know of a top-level vdev.
#[derive(Clone)]
pub struct VdevSpec {
    pub id: u32,
    pub class: SpaceClass,
    pub ashift: u8,
    pub asize: u64,
    /// Since when it has this number, which another may have had before; 0 if that is not known.
    pub create_txg: Txg,
    pub ms_shift: u8,
    /// The object that lists the space maps; 0 before there is one.
    pub ms_array: ObjectId,
    /// The vdev's own ZAP; 0 in old pools, for as long as they are.
    pub top_zap: ObjectId,
    /// Disks whose bandwidth adds up (without parity): how much larger its turns are than a single
    /// disk's.
    pub data_disks: u64,
    /// Whether the vdev's devices can take writes now.
    pub usable: Arc<AtomicBool>,
    /// Blocks begin and end at multiples of it.
    pub grain: u64,
    /// What a block of so many bytes takes that is born in a txg, with parity and padding.
    pub psize_to_asize: Arc<dyn Fn(u64, Txg) -> u64 + Send + Sync>,
}

/// Space in use, in bytes of the vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStat {
    /// Allocated, with what is freed but still deferred.
    pub alloc: u64,
    pub deferred: u64,
    pub space: u64,
    /// `space`, `alloc` and `deferred` as users see them: without parity.
    pub dspace: u64,
    pub dalloc: u64,
    pub ddeferred: u64,
    /// Percent; None where some space map has no histogram.
    pub fragmentation: Option<u64>,
}

/// Metaslabs of one vdev that serve one class, and from which of them each copy of blocks is being
/// allocated.
pub(super) struct Group {
    pub(super) class: SpaceClass,
    pub(super) metaslabs: Vec<Arc<Metaslab>>,
    /// One for each copy, so that the copies of neighbours are neighbours too.
    lanes: Mutex<[Option<u64>; 3]>,
    pub(super) aliquot: AtomicU64,
}

pub(super) struct VdevSpace {
    pub(super) spec: VdevSpec,
    pub(super) all: Vec<Arc<Metaslab>>,
    pub(super) groups: Vec<Group>,
    // What can change is shared with what the vdev was before it grew (see `grow.rs`).
    pub(super) ms_array: Arc<AtomicU64>,
    pub(super) array: Arc<Mutex<Option<Arc<Dnode>>>>,
    /// Where the metaslabs' unflushed txgs are noted.
    pub(super) unflushed: Arc<Mutex<Option<Arc<Dnode>>>>,
    /// What only the pool's checkpoint has.
    pub(super) checkpoint: Arc<Mutex<Option<SpaceMap>>>,
    pub(super) allocatable: Arc<AtomicBool>,
    /// The administrator wants nothing new here (`allocating=off`).
    pub(super) retired: Arc<AtomicBool>,
    alloc: Arc<AtomicI64>,
    deferred: Arc<AtomicI64>,
    /// 512ths of dspace in 512 bytes of space.
    deflate: u64,
    /// See [`VdevSpec::top_zap`].
    pub(super) top_zap: Arc<AtomicU64>,
}

/// How hard to look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Copies apart from each other.
    Apart,
    /// Copies in one metaslab too.
    Near,
    /// In every metaslab that has so much free, though the summary of its map says that no run is
    /// long enough: runs may have grown together since it was unloaded.
    Anywhere,
}

/// Outcome of looking for space in one group.
pub(super) enum Found {
    At(u64),
    Nothing,
    /// This metaslab looks good and must be loaded.
    Load(u64),
}

impl VdevSpec {
    /// Start and size of a metaslab: of its stretch, what holds whole grains.
    fn extent(&self, id: u64) -> (u64, u64) {
        let (from, grain) = (id << self.ms_shift, self.grain.max(1));
        let start = from.next_multiple_of(grain);
        let room = (1u64 << self.ms_shift).saturating_sub(start - from);
        (start, room / grain * grain)
    }
}

impl VdevSpace {
    /// A vdev's metaslabs, with the space maps they have (by metaslab number).
    pub(super) fn new(spec: VdevSpec, mut maps: Vec<Option<Arc<Dnode>>>) -> Result<VdevSpace> {
        let count =
            if spec.ms_shift == 0 { 0 } else { spec.asize.checked_shr(spec.ms_shift.into()).unwrap_or(0) };
        if !(9..=MAX_MS_SHIFT).contains(&spec.ashift)
            || spec.ms_shift >= 56
            || (spec.ms_shift != 0 && spec.ms_shift < OLD_MIN_MS_SHIFT)
            || count > MOST_METASLABS
        {
            let what =
                format!("ashift {}, metaslab shift {} of {} bytes", spec.ashift, spec.ms_shift, spec.asize);
            return Err(Error::corrupt(None, format!("vdev {}", spec.id), what));
        }
        maps.resize(count as usize, None);
        let mut all = Vec::with_capacity(count as usize);
        let mut used = 0u64;
        for (id, map) in maps.into_iter().enumerate() {
            let (start, size) = spec.extent(id as u64);
            let ms = Metaslab::new(id as u64, start, size, spec.ashift, spec.grain);
            if let Some(dnode) = map {
                let sm = SpaceMap::open(dnode, ms.start, ms.size, spec.ashift)?;
                let mut st = ms.state();
                st.allocated = u64::try_from(sm.allocated()).unwrap_or(0).min(ms.size);
                st.synced_length = sm.length();
                st.sm = Some(sm);
                used += st.allocated;
                ms.reweigh(&st);
            }
            all.push(Arc::new(ms));
        }
        let deflate = {
            let asize = (spec.psize_to_asize)(128 << 10, Txg(0));
            (128u64 << 10).checked_div(asize >> 9).unwrap_or(512)
        };
        let groups = Group::divide(spec.class, &all);
        Ok(VdevSpace {
            ms_array: Arc::new(AtomicU64::new(spec.ms_array.0)),
            array: Arc::default(),
            unflushed: Arc::default(),
            checkpoint: Arc::default(),
            all,
            groups,
            top_zap: Arc::new(AtomicU64::new(spec.top_zap.0)),
            allocatable: Arc::new(AtomicBool::new(true)),
            retired: Arc::default(),
            alloc: Arc::new(AtomicI64::new(used as i64)),
            deferred: Arc::default(),
            deflate,
            spec,
        })
    }

    /// The same vdev with more metaslabs, from which nothing is given out yet.
    pub(super) fn grown(&self, asize: u64) -> Result<VdevSpace> {
        let spec = VdevSpec { asize, ..self.spec.clone() };
        let mut all = VdevSpace::new(spec.clone(), Vec::new())?.all;
        if all.len() < self.all.len() {
            return Err(Error::inval(format!("vdev {} does not grow to {asize} bytes", spec.id)));
        }
        for (place, known) in all.iter_mut().zip(&self.all) {
            *place = known.clone();
        }
        Ok(VdevSpace {
            ms_array: self.ms_array.clone(),
            array: self.array.clone(),
            unflushed: self.unflushed.clone(),
            checkpoint: self.checkpoint.clone(),
            all,
            groups: self.groups.iter().map(Group::again).collect(),
            top_zap: self.top_zap.clone(),
            allocatable: self.allocatable.clone(),
            retired: self.retired.clone(),
            alloc: self.alloc.clone(),
            deferred: self.deferred.clone(),
            deflate: self.deflate,
            spec,
        })
    }

    /// The same vdev, and new blocks may go to all its metaslabs up to `asize`.
    pub(super) fn opened(&self, asize: u64) -> Result<VdevSpace> {
        let mut v = self.grown(self.spec.asize)?;
        let used: BTreeSet<u64> = v.groups.iter().flat_map(|g| g.metaslabs.iter().map(|m| m.id)).collect();
        let fresh = v.all.iter().filter(|m| m.start + m.size <= asize && !used.contains(&m.id)).cloned();
        if let Some(own) = v.groups.first_mut() {
            own.metaslabs.extend(fresh);
        }
        Ok(v)
    }

    /// The object that lists the space maps, once there is one.
    pub(super) async fn array_object(&self, mos: &Arc<Objset>) -> Result<Option<Arc<Dnode>>> {
        if let Some(known) = self.array.lock().clone() {
            return Ok(Some(known));
        }
        match self.ms_array.load(Ordering::Relaxed) {
            0 => Ok(None),
            id => {
                let dn = mos.hold_wait(ObjectId(id)).await?;
                Ok(Some(self.array.lock().insert(dn).clone()))
            }
        }
    }

    /// The objects of a vdev's space maps, as its metaslab array lists them.
    pub(super) async fn maps(mos: &Arc<Objset>, spec: &VdevSpec) -> Result<Vec<Option<Arc<Dnode>>>> {
        if spec.ms_array.0 == 0 || spec.ms_shift == 0 || spec.ms_shift >= 56 {
            return Ok(Vec::new());
        }
        let array = mos.hold_wait(spec.ms_array).await?;
        let count = (spec.asize >> spec.ms_shift).min(MOST_METASLABS);
        let mut buf = vec![0; count as usize * 8];
        array.read_wait(0, &mut buf).await?;
        let ids: Vec<u64> = buf.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b)).collect();
        let mut seen = BTreeSet::new();
        if let Some(id) = ids.iter().find(|id| **id != 0 && !seen.insert(**id)) {
            let what = format!("object {id} is the space map of two metaslabs");
            return Err(Error::corrupt(None, format!("vdev {}", spec.id), what));
        }
        let held = ids.into_iter().map(async |id| match id {
            0 => Ok(None),
            id => mos.hold_wait(ObjectId(id)).await.map(Some),
        });
        stream::iter(held).buffered(AT_ONCE).try_collect().await
    }

    /// Whether new blocks may go here.
    pub(super) fn takes_blocks(&self) -> bool {
        self.is_given_out() && self.spec.usable.load(Ordering::Relaxed)
    }

    /// Whether blocks that a txg cannot do without may go here, if nobody else has room.
    pub(super) fn can_take_blocks(&self) -> bool {
        self.allocatable.load(Ordering::Relaxed) && self.spec.usable.load(Ordering::Relaxed)
    }

    /// Whether what is free here counts as the pool's.
    pub(super) fn is_given_out(&self) -> bool {
        self.allocatable.load(Ordering::Relaxed) && !self.retired.load(Ordering::Relaxed)
    }

    pub(super) fn asize(&self, psize: u64, txg: Txg) -> u64 {
        (self.spec.psize_to_asize)(psize, txg)
    }

    /// The metaslab that holds this range, if one does.
    pub(super) fn metaslab_of(&self, offset: u64, size: u64) -> Result<&Arc<Metaslab>> {
        let ms = self.all.get((offset >> self.spec.ms_shift) as usize);
        let whole = |n: u64| n.is_multiple_of(self.spec.grain.max(1));
        ms.filter(|m| {
            let end = offset.checked_add(size);
            let inside = offset >= m.start && end.is_some_and(|e| e <= m.start + m.size);
            size > 0 && whole(offset) && whole(size) && inside
        })
        .ok_or_else(|| {
            let what = format!("{size:#x} bytes at {offset:#x} are not a place for a block");
            Error::corrupt(None, format!("vdev {}", self.spec.id), what)
        })
    }

    pub(super) fn count_space(&self, alloc: i64, deferred: i64) {
        self.alloc.fetch_add(alloc, Ordering::Relaxed);
        self.deferred.fetch_add(deferred, Ordering::Relaxed);
    }

    pub(super) fn top_zap(&self) -> ObjectId {
        ObjectId(self.top_zap.load(Ordering::Relaxed))
    }

    pub(super) fn deflated(&self, space: u64) -> u64 {
        (space >> 9).saturating_mul(self.deflate)
    }

    pub(super) fn stat(&self) -> SpaceStat {
        // Metaslabs that the vdev is only about to grow by give no space yet.
        let space = self.groups.iter().flat_map(|g| &g.metaslabs).map(|m| m.size).sum();
        let of = |counted: &AtomicI64| counted.load(Ordering::Relaxed).max(0) as u64;
        let (alloc, deferred) = (of(&self.alloc), of(&self.deferred));
        SpaceStat {
            alloc,
            deferred,
            space,
            dspace: self.deflated(space),
            dalloc: self.deflated(alloc),
            ddeferred: self.deflated(deferred),
            fragmentation: self.groups.first().and_then(Group::fragmentation),
        }
    }
}

impl Group {
    /// All metaslabs for the vdev's own class; of many, the emptiest for the intent log.
    fn divide(class: SpaceClass, all: &[Arc<Metaslab>]) -> Vec<Group> {
        let group = |class, metaslabs| Group {
            class,
            metaslabs,
            lanes: Mutex::default(),
            aliquot: AtomicU64::new(ALIQUOT),
        };
        if class != SpaceClass::Normal || all.len() as u64 <= tunables::EMBEDDED_SLOG_MIN_MS.get().max(1) {
            return vec![group(class, all.to_vec())];
        }
        let log = all.iter().min_by_key(|m| m.state().allocated).cloned();
        let rest = all.iter().filter(|m| log.as_ref().is_none_or(|l| l.id != m.id)).cloned().collect();
        vec![group(class, rest), group(SpaceClass::EmbeddedLog, log.into_iter().collect())]
    }

    fn again(&self) -> Group {
        Group {
            class: self.class,
            metaslabs: self.metaslabs.clone(),
            lanes: Mutex::new(*self.lanes.lock()),
            aliquot: AtomicU64::new(self.aliquot.load(Ordering::Relaxed)),
        }
    }

    /// Used and whole bytes.
    pub(super) fn usage(&self) -> (u64, u64) {
        self.metaslabs.iter().fold((0, 0), |(used, all), m| {
            let st = m.state();
            (used + st.allocated + st.deferred(), all + m.size)
        })
    }

    /// What could be given out now.
    pub(super) fn free_now(&self) -> u64 {
        let free = self.metaslabs.iter().map(|m| {
            let st = m.state();
            match () {
                () if st.broken => 0,
                () if st.loaded => st.free.space(),
                () => m.size.saturating_sub(st.allocated + st.deferred()),
            }
        });
        free.sum()
    }

    fn fragmentation(&self) -> Option<u64> {
        let (mut weighted, mut total, mut valid) = (0u64, 0u64, 0usize);
        for m in &self.metaslabs {
            let st = m.state();
            let Some(f) = m.fragmentation(&st) else { continue };
            let free = m.size.saturating_sub(st.allocated) / 512;
            valid += 1;
            total = total.saturating_add(free);
            weighted = weighted.saturating_add(f.saturating_mul(free));
        }
        if valid < self.metaslabs.len().div_ceil(2) {
            None
        } else {
            weighted.checked_div(total).map(|f| f.min(100))
        }
    }

    /// Sets how long its turn is: longer the emptier the vdev is beside the others of its class.
    pub(super) fn set_aliquot(&self, data_disks: u64, own: (u64, u64), class: (u64, u64)) {
        let share = |(used, all): (u64, u64)| (all.saturating_sub(used) >> 20, (all >> 20).max(1));
        let ((of, oa), (cf, ca)) = (share(own), share(class));
        let base = ALIQUOT.saturating_mul(data_disks.max(1));
        let scaled =
            u128::from(base) * u128::from(of) * u128::from(ca) / (u128::from(oa) * u128::from(cf.max(1)));
        let turn = u64::try_from(scaled).unwrap_or(u64::MAX).clamp(base / 8, base.saturating_mul(8));
        self.aliquot.store(turn, Ordering::Relaxed);
    }

    /// Looks for `asize` bytes for copy number `lane` of a block whose other copies are at
    /// `others`.
    pub(super) fn alloc(
        &self,
        vdev: &VdevSpace,
        txg: Txg,
        lane: usize,
        (asize, at): (u64, At),
        others: &Dvas,
        how: Effort,
    ) -> Found {
        if at == At::Lowest {
            return self.lowest(txg, asize);
        }
        let hard = how != Effort::Apart;
        let near: Vec<u64> = others
            .iter()
            .filter(|d| d.vdev == vdev.spec.id)
            .map(|d| d.offset >> vdev.spec.ms_shift)
            .collect();
        let distance = |m: &Metaslab| near.iter().map(|o| o.abs_diff(m.id)).min().unwrap_or(u64::MAX);
        let apart = (vdev.all.len() as u64 / 8).max(1);
        let mut lanes = self.lanes.lock();
        let runs: &[bool] = if at == At::After(0) { &[false] } else { &[true, false] };
        for &run in runs {
            let take = |m: &Metaslab, st: &mut State| m.alloc(st, txg, asize, at, run);
            let current = lanes.get(lane).copied().flatten();
            if let Some(m) = current.and_then(|id| self.get(id)).filter(|m| distance(m) >= apart)
                && let Some(at) = take(m, &mut m.state())
            {
                return Found::At(at);
            }
            let elsewhere =
                |m: &Metaslab| lanes.iter().enumerate().any(|(i, l)| i != lane && *l == Some(m.id));
            let least = if run { LONG_RUN } else { asize };
            let fits = |m: &Metaslab| m.may_fit(least) || (how == Effort::Anywhere && m.has_unseen(asize));
            let mut candidates: Vec<&Arc<Metaslab>> =
                self.metaslabs.iter().filter(|m| fits(m) && (hard || distance(m) > 0)).collect();
            candidates.sort_by_key(|m| {
                let far = distance(m);
                (far < apart, far == 0, elsewhere(m), std::cmp::Reverse(m.weight()), m.id)
            });
            for m in candidates {
                let mut st = m.state();
                if st.broken {
                    continue;
                }
                if !st.loaded {
                    return Found::Load(m.id);
                }
                if let Some(at) = take(m, &mut st) {
                    if let Some(l) = lanes.get_mut(lane) {
                        *l = Some(m.id);
                    }
                    return Found::At(at);
                }
            }
        }
        Found::Nothing
    }

    /// In the first metaslab that has room, as low as there is.
    fn lowest(&self, txg: Txg, asize: u64) -> Found {
        for m in self.metaslabs.iter().filter(|m| m.may_fit(asize)) {
            let mut st = m.state();
            if st.broken {
                continue;
            }
            if !st.loaded {
                return Found::Load(m.id);
            }
            if let Some(at) = m.alloc(&mut st, txg, asize, At::Lowest, false) {
                return Found::At(at);
            }
        }
        Found::Nothing
    }

    fn get(&self, id: u64) -> Option<&Arc<Metaslab>> {
        self.metaslabs.binary_search_by_key(&id, |m| m.id).ok().and_then(|i| self.metaslabs.get(i))
    }

    /// Lets lanes go on elsewhere whose metaslab has become much worse than the best one.
    pub(super) fn reassess(&self) {
        let best = self.metaslabs.iter().map(|m| m.weight() >> 56).max().unwrap_or(0);
        for l in self.lanes.lock().iter_mut() {
            if l.and_then(|id| self.get(id)).is_some_and(|m| (m.weight() >> 56) + SWITCH_CLASSES <= best) {
                *l = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::metaslab_shift;

    #[test]
    fn metaslab_sizes_are_openzfs_s() {
        // 64M, 1G, 8G, 50G, 100G, 1T, 10T, 1P, 4P
        let sizes = [1u64 << 26, 1 << 30, 1 << 33, 50 << 30, 100 << 30, 1 << 40, 10 << 40, 1 << 50, 1 << 52];
        let shifts = sizes.map(metaslab_shift);
        assert_eq!(shifts, [24, 27, 29, 29, 29, 33, 34, 34, 36]);
    }
}
