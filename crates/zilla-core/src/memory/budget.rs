//! One memory for all pools of a process.
//!
//! Each open pool has caches, dirty data and objects in memory. What they may take together is what
//! one pool alone might: a tenth of the memory for dirty data, divided evenly since a pool's limit
//! says when its writers wait; an eighth for blocks that are ready decompressed, divided evenly
//! where that is less than each was given; and half of it for the caches, which goes to whoever
//! reads: each may grow into its part of what none of them uses, and gives way by its part of what
//! is missing.
//!
//! `zfs_arc_max` and `zfs_dirty_data_max` say other numbers for all pools together, `zfs_arc_min` a
//! floor below which the caches do not give way, divided evenly ([`super::chosen`]). They are
//! heeded within a second.
//!
//! A pool joins when it is opened. It leaves when its cache is dropped; the others notice within a
//! second.
//!
//! **Deliberately absent.** Bytes that are held for damaged records (8 MiB for a file system,
//! `dmu/held.rs`) and the buffers of NBD connections: each has a bound of its own. A simulated
//! world knows of no memory, and nothing is divided there.

use super::chosen::{self, Chosen, Set};
use super::{Memory, idle_objects};
use crate::arc::{Cache, MIN_LIMIT};
use crate::dmu::DbufCache;
use crate::txg::{DirtyLimits, TxgState};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// One part in so many of the memory is for blocks that are ready in the dbuf caches.
const READY: u64 = 8;

struct Member {
    arc: Weak<Cache>,
    /// What who opened the pool allows its cache.
    arc_max: u64,
    txgs: Weak<TxgState>,
    dbufs: Weak<DbufCache>,
    /// The same for its blocks that are ready, in bytes.
    dbufs_max: u64,
}

/// The process's open pools, and what was chosen for all of them.
struct Members {
    all: Vec<Member>,
    set: Set,
    chosen: Chosen,
}

/// Taken before any other lock.
static MEMBERS: Mutex<Members> = Mutex::new(Members {
    all: Vec::new(),
    set: [0; 3],
    chosen: Chosen { arc_max: None, arc_min: None, dirty_max: None },
});

/// How often a cache had to give way, since the process began.
static SHORTAGES: AtomicU64 = AtomicU64::new(0);

/// How often there was too little memory, and a cache had to give way.
pub fn shortages() -> u64 {
    SHORTAGES.load(Ordering::Relaxed)
}

/// What counts of what was chosen for the memory of all pools.
pub fn chosen() -> Chosen {
    MEMBERS.lock().chosen
}

/// A pool is opened.
pub(super) fn join(arc: &Arc<Cache>, txgs: &Arc<TxgState>, dbufs: &Arc<DbufCache>, memory: &Memory) {
    let (arc_max, dbufs_max) = (arc.max(), dbufs.counts().limit);
    let (arc, txgs, dbufs) = (Arc::downgrade(arc), Arc::downgrade(txgs), Arc::downgrade(dbufs));
    let mut members = MEMBERS.lock();
    members.all.push(Member { arc, arc_max, txgs, dbufs, dbufs_max });
    members.look(memory, true);
    let (caches, chosen) = (members.caches(), members.chosen);
    drop(members);
    let used = Used::of(&caches, &chosen);
    for arc in &caches {
        arc.set_limit(arc.limit().min(used.most(arc.footprint(), arc.max(), memory)));
    }
}

impl Members {
    /// Sees who has left and what was set, and divides anew if that is needed.
    fn look(&mut self, memory: &Memory, joined: bool) {
        let before = self.all.len();
        self.all.retain(|m| m.arc.strong_count() > 0);
        let set = chosen::set();
        if joined || self.all.len() != before || set != self.set {
            let (chosen, ignored) = Chosen::of(set, memory);
            if set != self.set {
                ignored.iter().for_each(chosen::Ignored::tell);
            }
            (self.set, self.chosen) = (set, chosen);
            self.divide(memory);
        }
    }

    fn caches(&self) -> Vec<Arc<Cache>> {
        self.all.iter().filter_map(|m| m.arc.upgrade()).collect()
    }

    /// Gives each pool its part of what does not go where it is needed, and its cache its bounds.
    fn divide(&self, memory: &Memory) {
        let pools = self.all.len().max(1) as u64;
        let dirty = |pools| match self.chosen.dirty_max {
            Some(max) => DirtyLimits::of_choice(max / pools),
            None => DirtyLimits::of_memory(memory.total / pools),
        };
        let limits = dirty(pools);
        // Free buffers are the process's: what one txg's sync frees the next one's needs.
        zilla_env::set_pool_limit(dirty(1).max as usize);
        let least = self.chosen.arc_min.map_or(MIN_LIMIT, |min| min / pools);
        for m in &self.all {
            if let Some(arc) = m.arc.upgrade() {
                arc.set_sharers(pools);
                arc.set_bounds(least, self.chosen.arc_max.unwrap_or(m.arc_max));
            }
            if let Some(txgs) = m.txgs.upgrade() {
                txgs.set_limits(limits);
            }
            if let Some(dbufs) = m.dbufs.upgrade() {
                dbufs.objects.set_limit(idle_objects(memory) / pools as usize);
                dbufs.set_limit(m.dbufs_max.min(memory.total / READY / pools) as usize);
            }
        }
    }
}

/// Brings a pool's cache to its part of the memory there is now. Called once a second.
pub(super) fn adjust(arc: &Cache, memory: &Memory) {
    let (caches, chosen) = {
        let mut members = MEMBERS.lock();
        members.look(memory, false);
        (members.caches(), members.chosen)
    };
    let used = Used::of(&caches, &chosen);
    if memory.available < memory.reserve() {
        SHORTAGES.fetch_add(1, Ordering::Relaxed);
    }
    arc.set_limit(used.adjusted(arc.limit(), arc.footprint(), arc.max(), memory));
}

/// What all caches take together: blocks, and the indices of their second levels.
#[derive(Clone, Copy, Debug)]
struct Used {
    caches: u64,
    bytes: u64,
    /// The most that they may, where that was chosen.
    chosen: Option<u64>,
}

impl Used {
    fn of(caches: &[Arc<Cache>], chosen: &Chosen) -> Used {
        let bytes = caches.iter().map(|c| c.footprint()).sum();
        Used { caches: caches.len().max(1) as u64, bytes, chosen: chosen.arc_max }
    }

    /// The most that one of them may take: what it has, and its part of what none has of the half
    /// of the memory, or of what its user allows it.
    fn most(&self, used: u64, max: u64, memory: &Memory) -> u64 {
        if self.caches == 1 {
            return max;
        }
        let all = self.chosen.unwrap_or_else(|| memory.arc_max().max(max));
        used.saturating_add(all.saturating_sub(self.bytes) / self.caches)
    }

    /// What the limit of a cache that holds `used` should become.
    fn adjusted(&self, limit: u64, used: u64, max: u64, memory: &Memory) -> u64 {
        let reserve = memory.reserve();
        let limit = if memory.available < reserve {
            let missing = u128::from(reserve - memory.available) * u128::from(used);
            let part = missing.div_ceil(u128::from(self.bytes.max(1)));
            used.min(limit).saturating_sub(u64::try_from(part).unwrap_or(u64::MAX))
        } else if memory.is_ample() {
            limit.saturating_add((memory.available - 2 * reserve) / 16 / self.caches)
        } else {
            limit
        };
        limit.min(self.most(used, max, memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arc::{Access, Block, Key, L2Facts};
    use bytes::Bytes;
    use std::time::Duration;
    use zilla_codec::compress::Compress;

    /// An index of the second level is a part of what a cache takes, and gives way to nothing: the
    /// blocks make room for what is missing, and for no more than that.
    #[test]
    fn an_index_is_counted_once() {
        const MIB: u64 = 1 << 20;
        let arc = Arc::new(Cache::new(256 * MIB));
        let full = |arc: &Cache| {
            for n in 0..400u64 {
                let data = Bytes::from(vec![0; 1 << 20]);
                let (l2, lsize) = (L2Facts::default(), 1 << 20);
                let block = Block { data, compress: Compress::Off, lsize, metadata: false, keep: true, l2 };
                arc.insert(Key { vdev: 0, offset: n << 20, birth: 7 }, block, Access::Demand, Duration::ZERO);
            }
        };
        arc.set_reserved(80 * MIB);
        full(&arc);
        let taken = arc.footprint();
        assert!((240 * MIB..=256 * MIB).contains(&taken) && arc.size() == taken - 80 * MIB, "{taken}");
        // 4 MiB are missing.
        let memory = Memory { total: 1 << 30, available: 60 * MIB };
        let used = Used::of(std::slice::from_ref(&arc), &Chosen::default());
        arc.set_limit(used.adjusted(arc.limit(), taken, arc.max(), &memory));
        assert!(arc.limit() <= taken - 4 * MIB, "it gives way");
        assert!(arc.footprint() >= taken - 16 * MIB, "{} of {taken} are left", arc.footprint());
        // What another cache may take is without it.
        let other = Arc::new(Cache::new(256 * MIB));
        let both = Used::of(&[arc.clone(), other], &Chosen { arc_max: Some(256 * MIB), ..Chosen::default() });
        let most = both.most(0, 256 * MIB, &Memory { total: 1 << 30, available: 1 << 29 });
        assert_eq!(most, (256 * MIB - arc.footprint()) / 2);
        arc.set_sharers(2);
        assert_eq!(arc.even_part(), 128 * MIB);
    }

    #[test]
    fn limits_follow_memory() {
        let m = |available| Memory { total: 16 << 30, available };
        let (max, one) = (8 << 30, |bytes| Used { caches: 1, bytes, chosen: None });
        assert_eq!(one(8 << 30).adjusted(8 << 30, 8 << 30, max, &m(512 << 20)), (8 << 30) - (512 << 20));
        assert_eq!(one(1 << 30).adjusted(1 << 30, 1 << 30, max, &m(3 << 29)), 1 << 30);
        assert!(one(1 << 30).adjusted(1 << 30, 1 << 30, max, &m(8 << 30)) > 1 << 30);
    }

    /// Two caches have the memory of one: they give way by what is missing together, and what is
    /// free is for who needs it.
    #[test]
    fn two_caches_share_what_one_would_have() {
        let m = |available| Memory { total: 16 << 30, available };
        let two = |a: u64, b: u64| Used { caches: 2, bytes: a + b, chosen: None };
        let gib = 1u64 << 30;
        // 512 MiB are missing.
        let both = two(6 * gib, 2 * gib);
        let after = [6 * gib, 2 * gib].map(|used| both.adjusted(used, used, 8 * gib, &m(gib / 2)));
        assert_eq!(after, [6 * gib - 384 * (1 << 20), 2 * gib - 128 * (1 << 20)]);
        // A lot is free: together they never go beyond the half, and one alone may come near it.
        let grown = two(3 * gib, gib);
        let after = [3 * gib, gib].map(|used| grown.adjusted(8 * gib, used, 8 * gib, &m(12 * gib)));
        assert_eq!(after, [5 * gib, 3 * gib]);
        let (mut busy, idle) = (gib, 64 << 20);
        for _ in 0..40 {
            busy = two(busy, idle).adjusted(busy, busy, 8 * gib, &m(12 * gib));
        }
        assert!(busy > 7 * gib && busy + idle <= 8 * gib, "{busy}");
        // What was chosen is theirs together, be it more or less than the half.
        for all in [2 * gib, 12 * gib] {
            let used = Used { caches: 2, bytes: 0, chosen: Some(all) };
            assert_eq!(used.most(0, all, &m(16 * gib)), all / 2);
        }
    }

    #[test]
    fn blocks_that_are_ready_take_an_eighth_of_all_pools_together() {
        const MIB: u64 = 1 << 20;
        let dbufs = [0, 1].map(|_| DbufCache::new(64 << 20));
        let member = |dbufs: &Arc<DbufCache>| Member {
            arc: Weak::new(),
            arc_max: 0,
            txgs: Weak::new(),
            dbufs: Arc::downgrade(dbufs),
            dbufs_max: 64 * MIB,
        };
        let all = dbufs.iter().map(member).collect();
        let members = Members { all, set: [0; 3], chosen: Chosen::default() };
        let limits = |total: u64| {
            members.divide(&Memory { total, available: total });
            dbufs.each_ref().map(|d| d.counts().limit / MIB)
        };
        assert_eq!(limits(256 * MIB), [16, 16]);
        assert_eq!(limits(16 << 30), [64, 64], "what who opened them allows");
    }
}
