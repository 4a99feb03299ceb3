//! How many objects a pool keeps in memory that nobody uses.
//!
//! Every objset remembers the dnodes that were looked at, and every file system the files they are
//! of, only to find them again. All of a pool's tables share one limit, since one may have a
//! million files and each of a thousand some hundreds. When there are more, each lets go of what is
//! clean and in nobody's hand; the rest goes when its txg is synced, or its user, is gone.
//!
//! **Lock order.** The list of tables comes before a table's own locks; it is asked for with none
//! of these held.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// What an object takes of memory with its attributes and its file, in bytes. An estimate.
pub(crate) const OBJECT_BYTES: u64 = 3 << 10;
/// How many there may be where nothing is known of memory.
const DEFAULT_LIMIT: usize = 64 << 10;

/// Objects in memory, by number.
pub(crate) trait Table: Send + Sync {
    /// Lets go of what nobody uses.
    fn trim(&self);
}

pub(crate) struct Objects {
    live: AtomicUsize,
    limit: AtomicUsize,
    /// With so many the tables are looked through again.
    next: AtomicUsize,
    tables: Mutex<Vec<Weak<dyn Table>>>,
}

impl Default for Objects {
    fn default() -> Objects {
        Objects {
            live: AtomicUsize::new(0),
            limit: DEFAULT_LIMIT.into(),
            next: DEFAULT_LIMIT.into(),
            tables: Mutex::default(),
        }
    }
}

impl Objects {
    pub(crate) fn set_limit(&self, limit: usize) {
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

    /// What those that there are take of memory, and as many as there may be.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [&self.live, &self.limit].map(|n| n.load(Ordering::Relaxed) as u64 * OBJECT_BYTES)
    }

    #[cfg(test)]
    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Before one more comes.
    pub(super) fn make_room(&self) {
        if self.live.load(Ordering::Relaxed) < self.next.load(Ordering::Relaxed) {
            return;
        }
        // Who comes meanwhile need not do the same.
        let Some(tables) = self.tables.try_lock() else { return };
        // Files hold the objsets' dnodes, and were registered later.
        let all: Vec<Arc<dyn Table>> = tables.iter().rev().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|t| t.trim());
        let limit = self.limit.load(Ordering::Relaxed);
        // What could not go now would be looked at in vain.
        let next = limit.max(self.live.load(Ordering::Relaxed)) + limit / 8;
        self.next.store(next, Ordering::Relaxed);
        drop(tables);
    }
}
