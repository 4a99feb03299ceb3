//! Deferred copy-on-write faults: the reads that writes in part put off, and what becomes of them.
//!
//! A write into a part of a record that is not in memory reads nothing (`dbuf`). What it lacks is
//! needed at the latest when its txg is synced, and that is known when the txg is closed: nothing
//! can complete the record any more. Then a [`Resolver`] takes all such records of all datasets,
//! reads the indirect blocks that lead to what the txg changed, and after them the records, in the
//! order of the disks and many at a time. The sync begins at the same time with what is complete;
//! where it comes to a record that is being read, both share one I/O, which gets the sync's
//! urgency.
//!
//! ```text
//!   txg closed --> gather: [obj 1: 7, 9] [obj 4: 0] --> indirect blocks --> sorted by vdev and offset --> dbufs' bases
//!        \-------> sync: records that are complete are written ............ then those that lacked something
//! ```
//!
//! **Invariants.** It only brings bases into memory, as any reader does: without it a sync comes to
//! the same result. A record is looked at again before its read begins, so that nothing is read
//! that has become known meanwhile; below an older txg's layer nothing is read, because that txg's
//! sync brings the base. Each fault is counted once, by the sync of its txg.
//!
//! **Crash.** Nothing is changed here.
//!
//! **Deliberately absent.** Who meets an error says nothing: the sync meets it again, and knows
//! what to do (`held`). Old contents below ranges that are freed are not read ahead; a free reads
//! its indirect blocks itself.

use super::dbuf::Fate;
use super::dnode::Dnode;
use super::objset::Objset;
use super::tree::{self, Lookup};
use crate::types::Txg;
use crate::zio::Priority;
use futures_util::StreamExt;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zilla_ondisk::blkptr::BlkPtr;

/// Reads under way at once. Each fills a record that is counted as dirty data already.
const AT_ONCE: usize = 512;
/// Records that are looked at while their object is locked.
const LOOKED_AT: usize = 1024;

/// Vdev and offset of a block.
pub(super) type Place = (u32, u64);

pub(super) fn place_of(bp: &BlkPtr) -> Place {
    if bp.is_hole() || bp.is_embedded() {
        return (0, 0);
    }
    let dva = bp.dva(0);
    (dva.vdev, dva.offset)
}

/// How many reads were put off by writes, and what has become of them when their txg was synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// All of them.
    pub deferred: u64,
    /// Those that were never made, since later writes or frees left nothing to be read.
    pub avoided: u64,
    /// Those whose record was in memory when the sync came to it.
    pub resolved_early: u64,
    /// Those that the sync waited for.
    pub resolved_by_sync: u64,
    /// Those that cannot be made: the record is damaged.
    pub failed: u64,
    /// The bytes of the records that were not read.
    pub bytes_not_read: u64,
}

impl FaultCounts {
    /// The sync of a txg comes to a record of so many bytes.
    pub(super) fn met(&mut self, fate: Fate, bytes: u64) {
        self.deferred += 1;
        match fate {
            Fate::Avoided => {
                self.avoided += 1;
                self.bytes_not_read += bytes;
            }
            Fate::Read => self.resolved_early += 1,
            // Told when it has been.
            Fate::Due => {}
        }
    }
}

impl std::iter::Sum for FaultCounts {
    fn sum<I: Iterator<Item = FaultCounts>>(all: I) -> FaultCounts {
        all.fold(FaultCounts::default(), |a, b| FaultCounts {
            deferred: a.deferred + b.deferred,
            avoided: a.avoided + b.avoided,
            resolved_early: a.resolved_early + b.resolved_early,
            resolved_by_sync: a.resolved_by_sync + b.resolved_by_sync,
            failed: a.failed + b.failed,
            bytes_not_read: a.bytes_not_read + b.bytes_not_read,
        })
    }
}

/// The same of all objsets of a pool.
#[derive(Default)]
pub struct Faults {
    counts: [AtomicU64; 6],
}

impl Faults {
    pub(super) fn add(&self, c: &FaultCounts) {
        let all = [c.deferred, c.avoided, c.resolved_early, c.resolved_by_sync, c.failed, c.bytes_not_read];
        for (sum, n) in self.counts.iter().zip(all).filter(|(_, n)| *n > 0) {
            sum.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub fn get(&self) -> FaultCounts {
        let [deferred, avoided, resolved_early, resolved_by_sync, failed, bytes_not_read] =
            self.counts.each_ref().map(|n| n.load(Ordering::Relaxed));
        FaultCounts { deferred, avoided, resolved_early, resolved_by_sync, failed, bytes_not_read }
    }
}

/// What the sync of a txg has to read.
pub struct Resolver {
    txg: Txg,
    records: Vec<(Arc<Dnode>, u64)>,
    /// Indirect blocks of level 1.
    parents: Vec<(Arc<Dnode>, u64)>,
}

impl Resolver {
    pub fn new(txg: Txg) -> Resolver {
        Resolver { txg, records: Vec::new(), parents: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.parents.is_empty()
    }

    /// Notes what an objset lacks. The txg takes no more changes, and its sync has not begun.
    pub fn gather(&mut self, os: &Objset) {
        let dirty = os.shared.dirty[self.txg].lock().clone();
        for dn in dirty {
            let mut from = Unbounded;
            while let Some(last) = self.gather_some(&dn, from) {
                from = Excluded(last);
            }
        }
    }

    /// Looks at some of an object's records; the last of them, if there may be more.
    fn gather_some(&mut self, dn: &Arc<Dnode>, from: std::ops::Bound<u64>) -> Option<u64> {
        let inner = dn.inner.lock();
        let pending = &inner.pending[self.txg];
        if pending.free_object {
            return None;
        }
        let e = tree::epbs(inner.phys.indblkshift);
        for (n, &blkid) in pending.blocks.range((from, Unbounded)).enumerate() {
            if inner.dbufs.get(&blkid).is_some_and(|db| db.lacks_base(self.txg)) {
                self.records.push((dn.clone(), blkid));
            }
            let parent = tree::ancestor(blkid, 1, e);
            let known = self.parents.last().is_some_and(|(of, p)| *p == parent && Arc::ptr_eq(of, dn));
            if inner.phys.nlevels > 1 && !known && inner.indirects.get(1, parent).is_none() {
                match tree::lookup(&inner.phys, &inner.indirects, 1, parent) {
                    Lookup::Bp(bp) if bp.is_hole() => {}
                    Lookup::Hole => {}
                    Lookup::Bp(_) | Lookup::NeedIndirect { .. } => self.parents.push((dn.clone(), parent)),
                }
            }
            if n + 1 == LOOKED_AT {
                return Some(blkid);
            }
        }
        None
    }

    /// Reads it.
    pub async fn run(self) {
        let Resolver { txg, records, parents } = self;
        let load = |(dn, blkid): (Arc<Dnode>, u64)| async move {
            drop(dn.load_with(1, blkid, Priority::AsyncRead).await);
        };
        futures_util::stream::iter(parents).for_each_concurrent(AT_ONCE, load).await;
        let mut placed: Vec<(Place, Arc<Dnode>, u64)> =
            records.into_iter().filter_map(|(dn, b)| Some((dn.place(b)?, dn, b))).collect();
        placed.sort_by_key(|(place, ..)| *place);
        let load = |(_, dn, blkid): (Place, Arc<Dnode>, u64)| async move {
            let lacks = dn.inner.lock().dbufs.get(&blkid).is_some_and(|db| db.lacks_base(txg));
            if lacks {
                drop(dn.load_for(txg, blkid, Priority::AsyncRead).await);
            }
        };
        futures_util::stream::iter(placed).for_each_concurrent(AT_ONCE, load).await;
    }
}

impl Dnode {
    /// Where a synced block lies; None if what leads to it is not in memory.
    fn place(&self, blkid: u64) -> Option<Place> {
        let inner = self.inner.lock();
        match tree::lookup(&inner.phys, &inner.indirects, 0, blkid) {
            Lookup::Bp(bp) => Some(place_of(&bp)),
            Lookup::Hole => Some((0, 0)),
            Lookup::NeedIndirect { .. } => None,
        }
    }
}
