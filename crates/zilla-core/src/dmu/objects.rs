//! How many objects a pool keeps in memory that nobody uses.
//!
//! Every objset remembers the dnodes that were looked at, and every file system the files they are
//! of, only to find them again. All of a pool's tables share one limit, since one may have a
//! million files and each of a thousand some hundreds. It is one of bytes: a file may have 64 KiB
//! of extended attributes. When there are more, each lets go of what is clean and in nobody's hand;
//! the rest goes when its txg is synced, or its user, is gone.
//!
//! **Lock order.** The list of tables comes before a table's own locks; it is asked for with none
//! of these held.

use super::cache::DbufCache;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What an object takes of memory with its file and the attributes that every file has, in bytes.
/// An estimate. What it has beside that is counted as it is ([`Extra`]).
pub(crate) const OBJECT_BYTES: u64 = 3 << 10;
/// How many there may be where nothing is known of memory.
const DEFAULT_LIMIT: u64 = 64 << 10;
/// Tables that could not let go of enough are looked through again when one more object in so many
/// of those there are was asked for: some may have been synced since.
const AGAIN: usize = 8;

/// Objects in memory, by number.
pub(crate) trait Table: Send + Sync {
    /// Lets go of what nobody uses.
    fn trim(&self);
}

pub(crate) struct Objects {
    live: AtomicUsize,
    /// What they take beside [`OBJECT_BYTES`] each.
    extra: AtomicU64,
    /// In bytes.
    limit: AtomicU64,
    /// With so many bytes the tables are looked through again.
    next: AtomicU64,
    /// How often room was asked for since.
    asked: AtomicUsize,
    tables: Mutex<Vec<Weak<dyn Table>>>,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects {
            live: AtomicUsize::new(0),
            extra: AtomicU64::new(0),
            limit: (DEFAULT_LIMIT * OBJECT_BYTES).into(),
            next: (DEFAULT_LIMIT * OBJECT_BYTES).into(),
            asked: AtomicUsize::new(0),
            tables: Mutex::default(),
        }
    }
}

impl Objects {
    /// There may be so many if they have no more than most have.
    pub(crate) fn set_limit(&self, objects: usize) {
        let limit = objects as u64 * OBJECT_BYTES;
        self.limit.store(limit, Ordering::Relaxed);
        self.next.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn register(&self, table: Weak<dyn Table>) {
        let mut tables = self.tables.lock();
        tables.retain(|t| t.strong_count() > 0);
        tables.push(table);
    }

    pub(super) fn born(&self) {
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn died(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// What those that there are take of memory, and what they may take.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [self.used(), self.limit.load(Ordering::Relaxed)]
    }

    fn used(&self) -> u64 {
        self.live.load(Ordering::Relaxed) as u64 * OBJECT_BYTES + self.extra.load(Ordering::Relaxed)
    }

    /// Whether they take more than they may.
    pub(crate) fn is_full(&self) -> bool {
        self.used() > self.limit.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Before one more comes, or when one has grown.
    pub(crate) fn make_room(&self) {
        let used = self.used();
        if used < self.limit.load(Ordering::Relaxed) {
            return;
        }
        if used < self.next.load(Ordering::Relaxed)
            && self.asked.fetch_add(1, Ordering::Relaxed) < self.live.load(Ordering::Relaxed) / AGAIN
        {
            return;
        }
        // Who comes meanwhile need not do the same.
        let Some(tables) = self.tables.try_lock() else { return };
        self.asked.store(0, Ordering::Relaxed);
        // Files hold the objsets' dnodes, and were registered later.
        let all: Vec<Arc<dyn Table>> = tables.iter().rev().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|t| t.trim());
        let limit = self.limit.load(Ordering::Relaxed);
        // What could not go now would be looked at in vain.
        let next = limit.max(self.used()) + limit / 8;
        self.next.store(next, Ordering::Relaxed);
        drop(tables);
    }
}

/// What an object, or the file that it is, has in memory beside what every one has.
pub(crate) struct Extra {
    cache: Arc<DbufCache>,
    bytes: u64,
}

impl Extra {
    pub(crate) fn new(cache: Arc<DbufCache>) -> Extra {
        Extra { cache, bytes: 0 }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn set(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes != before {
            // In one step, as what others add must not be lost: adding what is negative wraps.
            self.cache.objects.extra.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        self.set(0);
    }
}
