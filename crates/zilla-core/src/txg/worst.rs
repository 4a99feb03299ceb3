//! What the blocks that a txg writes, and frees, can take of the devices at worst.
//!
//! Nothing of it is on disk, so a crash concerns it not.

use super::TxgState;
use crate::types::{TXG_SIZE, Txg};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a block can take at worst. It is divided into sectors where nothing else is free, each with
/// parity of its own, and gang headers then take as much again.
pub(super) struct Worst {
    /// log2 of the smallest allocation there is.
    shift: AtomicU64,
    /// What so few bytes take at most, of any device, in bytes as users see them.
    unit: AtomicU64,
    /// Blocks of the tables that count references: a block that is freed may change one of them.
    tables: AtomicU64,
    /// The same of the deduplication tables, whose blocks are larger.
    dedup: AtomicU64,
    /// Blocks that are freed, by txg slot.
    freed: [AtomicU64; TXG_SIZE],
}

impl Default for Worst {
    fn default() -> Worst {
        Worst {
            shift: 9.into(),
            unit: 512.into(),
            tables: 0.into(),
            dedup: 0.into(),
            freed: Default::default(),
        }
    }
}

/// What the pool writes down about a block that is freed: its pointer, in a deadlist.
const FREED: u64 = 128;
/// What counting a reference changes: a block of the table's ZAP.
pub(crate) const COUNTED: u64 = 4 << 10;
/// The same of a deduplication table's.
const DEDUP_COUNTED: u64 = 32 << 10;
/// How many copies there are of the pool's own objects at most.
const OF_POOL: u8 = 3;
/// What is freed in a txg is not counted any further.
const MOST_FREED: u64 = 1 << 24;

/// A gang's headers take as much as its pieces if these are as small as can be: one of two or three
/// copies for two further pieces.
pub(crate) const GANG_FACTOR: u64 = 2;

impl TxgState {
    /// Says what the smallest allocation is and what it takes at most.
    pub(crate) fn set_worst(&self, shift: u8, unit: u64) {
        self.worst.shift.store(shift.into(), Ordering::Relaxed);
        self.worst.unit.store(unit, Ordering::Relaxed);
    }

    /// Says how many blocks the tables have that count references, those of clones and those of
    /// deduplicated blocks.
    pub(crate) fn set_tables(&self, clones: u64, dedup: u64) {
        self.worst.tables.store(clones, Ordering::Relaxed);
        self.worst.dedup.store(dedup, Ordering::Relaxed);
    }

    /// So many blocks will be freed in a txg's sync.
    pub(super) fn note_freed(&self, txg: Txg, blocks: u64) {
        self.worst.freed[txg.slot()].fetch_add(blocks.min(MOST_FREED), Ordering::Relaxed);
    }

    /// The txg is on disk, with all that it made the pool write down.
    pub(super) fn forget_freed(&self, txg: Txg) {
        self.worst.freed[txg.slot()].store(0, Ordering::Relaxed);
    }

    /// What the pool writes down at most of what all txgs that are not on disk free. Counted by the
    /// txg: what callers free lies together in lists, and a table's block is written once in a txg
    /// however many of its references go.
    pub(super) fn needed_by_frees(&self) -> u64 {
        let freed = self.worst.freed.iter().map(|blocks| blocks.load(Ordering::Relaxed));
        freed.map(|blocks| self.worst_of_frees(blocks)).fold(0, u64::saturating_add)
    }

    /// What the pool writes down at most when so many blocks are freed in a txg.
    pub(crate) fn worst_of_frees(&self, blocks: u64) -> u64 {
        let blocks = blocks.min(MOST_FREED);
        let counted = blocks.min(self.worst.tables.load(Ordering::Relaxed));
        let clones = self.worst(COUNTED, OF_POOL).saturating_mul(counted);
        let counted = self.worst(blocks * FREED, OF_POOL).saturating_add(clones);
        counted.saturating_add(self.worst_of_dedup(blocks))
    }

    /// The same of the deduplication tables alone. Their keys are checksums: each may lie in a
    /// block of its own.
    pub(crate) fn worst_of_dedup(&self, entries: u64) -> u64 {
        let blocks = entries.min(self.worst.dedup.load(Ordering::Relaxed));
        self.worst(DEDUP_COUNTED, OF_POOL).saturating_mul(blocks)
    }

    pub(crate) fn worst(&self, bytes: u64, copies: u8) -> u64 {
        let units = bytes.div_ceil(1 << self.worst.shift.load(Ordering::Relaxed));
        units * self.worst.unit.load(Ordering::Relaxed) * GANG_FACTOR * u64::from(copies.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_env::block_on;

    #[test]
    fn what_a_txg_frees_changes_each_block_of_the_tables_once() {
        let txgs = TxgState::new(zilla_env::real_env(1), Txg(9));
        txgs.set_tables(100, 0);
        let tx = block_on(txgs.assign()).unwrap();
        tx.frees(1000);
        let first = txgs.needed();
        assert_eq!(first, txgs.worst_of_frees(1000));
        for _ in 0..1000 {
            tx.frees(4);
        }
        assert_eq!(txgs.needed() - first, txgs.worst(4000 * FREED, OF_POOL));
        assert_eq!(txgs.needed_beside_frees(), 0);
        let txg = tx.txg();
        drop(tx);
        // The lists and tables are written after the datasets have their places.
        txgs.placed(txg);
        assert_eq!(txgs.needed(), txgs.worst_of_frees(5000));
        txgs.done(txg);
        assert_eq!(txgs.needed(), 0);
    }

    #[test]
    fn each_block_that_is_freed_may_change_another_of_the_dedup_tables() {
        let txgs = TxgState::new(zilla_env::real_env(1), Txg(9));
        let lists = txgs.worst_of_frees(40);
        txgs.set_tables(0, 50);
        assert_eq!(txgs.worst_of_frees(40) - lists, 40 * txgs.worst(32 << 10, 3));
        assert_eq!(txgs.worst_of_dedup(1000), 50 * txgs.worst(32 << 10, 3));
    }
}
