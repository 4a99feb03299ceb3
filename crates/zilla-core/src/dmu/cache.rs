//! The dbuf cache: how many clean blocks stay decompressed and ready beside their dnodes.
//!
//! A clock: blocks enter at the back; the hand takes from the front, gives a block that was used
//! since a second round, and makes dnodes forget the others. What it forgets is usually still in
//! the ARC. Dirty blocks do not count here; the txg limits them.

use super::counts::StreamStats;
use super::dnode::Dnode;
use super::objects::Objects;
use super::resolve::Faults;
use super::zfetch::Shares;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

struct Entry {
    dnode: Weak<Dnode>,
    level: u8,
    blkid: u64,
    bytes: usize,
}

pub struct DbufCache {
    limit: AtomicUsize,
    bytes: AtomicUsize,
    clock: Mutex<VecDeque<Entry>>,
    /// Blocks by their level.
    levels: [AtomicU64; LEVELS],
    /// Most bytes so far, and how many blocks were forgotten.
    most: AtomicUsize,
    evicted: AtomicU64,
    /// The objects themselves, beside their blocks.
    pub(crate) objects: Objects,
    /// Reads that writes into blocks that are not here put off.
    pub faults: Faults,
    /// What was read and written of all objects.
    pub streams: StreamStats,
    /// What may be read ahead for each of their readers.
    pub(super) shares: Shares,
}

/// The cache at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DbufCounts {
    /// Blocks, and their bytes with what describes them; that alone.
    pub blocks: u64,
    pub bytes: u64,
    pub described: u64,
    /// The most bytes so far, how many there may be, and how many blocks were forgotten.
    pub most_bytes: u64,
    pub limit: u64,
    pub evicted: u64,
    /// Blocks of each level; those of higher ones are with the last.
    pub levels: [u64; LEVELS],
    /// What the objects take beside their blocks, and how much may stay of those nobody uses. An
    /// estimate.
    pub objects: u64,
    pub objects_limit: u64,
}

/// So many levels are told apart.
const LEVELS: usize = 12;

impl DbufCounts {
    pub fn add(&mut self, other: &DbufCounts) {
        self.levels.iter_mut().zip(other.levels).for_each(|(n, more)| *n += more);
        self.blocks += other.blocks;
        self.described += other.described;
        self.objects += other.objects;
        self.objects_limit += other.objects_limit;
        self.bytes += other.bytes;
        self.most_bytes += other.most_bytes;
        self.limit += other.limit;
        self.evicted += other.evicted;
    }
}

/// A block that holds no data still costs its bookkeeping.
const OVERHEAD: usize = 256;
/// So that an operation which needs several huge blocks at once can finish however small the limit
/// is.
const MIN_ENTRIES: usize = 64;

impl DbufCache {
    pub fn new(limit: usize) -> Arc<DbufCache> {
        Arc::new(DbufCache {
            limit: limit.into(),
            bytes: 0.into(),
            clock: Mutex::default(),
            levels: Default::default(),
            most: 0.into(),
            evicted: 0.into(),
            objects: Objects::default(),
            faults: Faults::default(),
            streams: StreamStats::default(),
            shares: Shares::default(),
        })
    }

    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn counts(&self) -> DbufCounts {
        let blocks = self.clock.lock().len() as u64;
        let [objects, objects_limit] = self.objects.bytes();
        DbufCounts {
            blocks,
            described: blocks * OVERHEAD as u64,
            objects,
            objects_limit,
            bytes: self.bytes() as u64,
            most_bytes: self.most.load(Ordering::Relaxed) as u64,
            limit: self.limit() as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            levels: self.levels.each_ref().map(|n| n.load(Ordering::Relaxed)),
        }
    }

    /// The oldest blocks here, at most so many: the object of each, its level and its number.
    pub(super) fn oldest(&self, most: usize) -> Vec<(Arc<Dnode>, u8, u64)> {
        let clock = self.clock.lock();
        let listed = clock.iter().filter_map(|e| Some((e.dnode.upgrade()?, e.level, e.blkid)));
        listed.take(most).collect()
    }

    fn of_level(&self, level: u8) -> &AtomicU64 {
        let [.., last] = &self.levels;
        self.levels.get(usize::from(level)).unwrap_or(last)
    }

    /// A block is not on the clock any more.
    fn left(&self, entry: &Entry) {
        self.bytes.fetch_sub(entry.bytes, Ordering::Relaxed);
        self.of_level(entry.level).fetch_sub(1, Ordering::Relaxed);
    }

    /// Forgets all that is clean, used or not: what is needed next is asked for below.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.clock.lock());
        for entry in all {
            self.left(&entry);
            let Some(dn) = entry.dnode.upgrade() else { continue };
            while let Evicted::Used = dn.evict(entry.level, entry.blkid) {}
        }
    }

    /// A block came into memory. Must be called without the dnode's lock.
    pub(crate) fn added(&self, dnode: &Arc<Dnode>, level: u8, blkid: u64, len: usize) {
        let entry = Entry { dnode: Arc::downgrade(dnode), level, blkid, bytes: len + OVERHEAD };
        let total = self.bytes.fetch_add(entry.bytes, Ordering::Relaxed) + entry.bytes;
        self.of_level(level).fetch_add(1, Ordering::Relaxed);
        self.clock.lock().push_back(entry);
        self.most.fetch_max(total, Ordering::Relaxed);
        if total > self.limit.load(Ordering::Relaxed) {
            self.shrink();
        }
    }

    fn shrink(&self) {
        // Each block is looked at once, and the newest not at all: whoever loaded it is about to
        // use it.
        let mut tries = self.clock.lock().len().saturating_sub(1);
        while tries > 0 && self.bytes() > self.limit.load(Ordering::Relaxed) {
            tries -= 1;
            let entry = {
                let mut clock = self.clock.lock();
                if clock.len() <= MIN_ENTRIES {
                    return;
                }
                clock.pop_front()
            };
            let Some(entry) = entry else { return };
            let fate = entry.dnode.upgrade().map_or(Evicted::Gone, |dn| dn.evict(entry.level, entry.blkid));
            match fate {
                Evicted::Gone => {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                    self.left(&entry);
                }
                Evicted::Used => self.clock.lock().push_back(entry),
            }
        }
    }
}

/// What became of a block that the hand came to.
pub(crate) enum Evicted {
    /// Not on the clock any more: forgotten, or dirty (its sync puts it back).
    Gone,
    /// Used since the hand last passed: it stays for another round.
    Used,
}
