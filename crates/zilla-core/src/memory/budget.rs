//! One memory for all pools of a process.
//!
//! Each open pool has caches, dirty data and objects in memory. What they may take together is what one pool alone might: a tenth of the
//! memory for dirty data, divided evenly since a pool's limit says when its writers wait; and half of it for the caches, which
//! goes to whoever reads: each may grow into its part of what none of them uses, and gives way by its part of what is missing.
//!
//! A pool joins when it is opened. It leaves when its cache is dropped; the others notice within a second.
//!
//! **Deliberately absent.** Bytes that are held for damaged records (8 MiB for a file system, `dmu/held.rs`) and the buffers of NBD connections: each has a bound
//! of its own. A simulated world knows of no memory, and nothing is divided there.

use super::{Memory, idle_objects, reserve};
use crate::arc::Cache;
use crate::dmu::DbufCache;
use crate::txg::{DirtyLimits, TxgState};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

struct Member {
    arc: Weak<Cache>,
    txgs: Weak<TxgState>,
    dbufs: Weak<DbufCache>,
}

/// The process's open pools. Taken before any other lock.
static MEMBERS: Mutex<Vec<Member>> = Mutex::new(Vec::new());

/// A pool is opened.
pub(super) fn join(arc: &Arc<Cache>, txgs: &Arc<TxgState>, dbufs: &Arc<DbufCache>, memory: &Memory) {
    let (arc, txgs, dbufs) = (Arc::downgrade(arc), Arc::downgrade(txgs), Arc::downgrade(dbufs));
    let mut members = MEMBERS.lock();
    members.retain(|m| m.arc.strong_count() > 0);
    members.push(Member { arc, txgs, dbufs });
    divide(&members, memory);
    let caches: Vec<Arc<Cache>> = members.iter().filter_map(|m| m.arc.upgrade()).collect();
    drop(members);
    let used = Used::of(&caches);
    for arc in &caches {
        arc.set_limit(arc.limit().min(used.most(arc.size(), arc.max(), memory)));
    }
}

/// Gives each pool its part of what does not go where it is needed.
fn divide(members: &[Member], memory: &Memory) {
    let pools = members.len().max(1) as u64;
    let limits = DirtyLimits::of_memory(memory.total / pools);
    // Free buffers are the process's: what one txg's sync frees the next one's needs.
    zilla_env::set_pool_limit(DirtyLimits::of_memory(memory.total).max as usize);
    for m in members {
        if let Some(txgs) = m.txgs.upgrade() {
            txgs.set_limits(limits);
        }
        if let Some(dbufs) = m.dbufs.upgrade() {
            dbufs.objects.set_limit(idle_objects(memory) / pools as usize);
        }
    }
}

/// Brings a pool's cache to its part of the memory there is now. Called once a second.
pub(super) fn adjust(arc: &Cache, memory: &Memory) {
    let caches: Vec<Arc<Cache>> = {
        let mut members = MEMBERS.lock();
        let before = members.len();
        members.retain(|m| m.arc.strong_count() > 0);
        if members.len() != before {
            divide(&members, memory);
        }
        members.iter().filter_map(|m| m.arc.upgrade()).collect()
    };
    let used = Used::of(&caches);
    arc.set_limit(used.adjusted(arc.limit(), arc.size(), arc.max(), memory));
}

/// What all caches hold together.
#[derive(Clone, Copy, Debug)]
struct Used {
    caches: u64,
    bytes: u64,
}

impl Used {
    fn of(caches: &[Arc<Cache>]) -> Used {
        Used { caches: caches.len().max(1) as u64, bytes: caches.iter().map(|c| c.size()).sum() }
    }

    /// The most that one of them may take: what it has, and its part of what none has of the half of the memory, or of what its user
    /// allows it.
    fn most(&self, used: u64, max: u64, memory: &Memory) -> u64 {
        if self.caches == 1 {
            return max;
        }
        let all = memory.arc_max().max(max);
        used.saturating_add(all.saturating_sub(self.bytes) / self.caches)
    }

    /// What the limit of a cache that holds `used` should become.
    fn adjusted(&self, limit: u64, used: u64, max: u64, memory: &Memory) -> u64 {
        let reserve = reserve(memory);
        let limit = if memory.available < reserve {
            let missing = u128::from(reserve - memory.available) * u128::from(used);
            let part = missing.div_ceil(u128::from(self.bytes.max(1)));
            used.min(limit).saturating_sub(u64::try_from(part).unwrap_or(u64::MAX))
        } else if memory.available > 2 * reserve {
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

    #[test]
    fn limits_follow_memory() {
        let m = |available| Memory { total: 16 << 30, available };
        let (max, one) = (8 << 30, |bytes| Used { caches: 1, bytes });
        assert_eq!(one(8 << 30).adjusted(8 << 30, 8 << 30, max, &m(512 << 20)), (8 << 30) - (512 << 20));
        assert_eq!(one(1 << 30).adjusted(1 << 30, 1 << 30, max, &m(3 << 29)), 1 << 30);
        assert!(one(1 << 30).adjusted(1 << 30, 1 << 30, max, &m(8 << 30)) > 1 << 30);
    }

    /// Two caches have the memory of one: they give way by what is missing together, and what is free is for who needs it.
    #[test]
    fn two_caches_share_what_one_would_have() {
        let m = |available| Memory { total: 16 << 30, available };
        let two = |a: u64, b: u64| Used { caches: 2, bytes: a + b };
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
    }
}
