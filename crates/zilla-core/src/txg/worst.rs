//! What the blocks that a txg writes, and frees, can take of the devices at worst.
//!
//! Nothing of it is on disk, so a crash concerns it not.

use super::TxgState;
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
}

impl Default for Worst {
    fn default() -> Worst {
        Worst { shift: 9.into(), unit: 512.into(), tables: 0.into() }
    }
}

/// What the pool writes down about a block that is freed: its pointer, in a deadlist.
const FREED: u64 = 128;
/// What counting a reference changes: a block of the table's ZAP.
pub(crate) const COUNTED: u64 = 4 << 10;
/// How many copies there are of the pool's own objects at most.
const OF_POOL: u8 = 3;
/// What is freed by one caller is not counted any further.
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

    /// Says how many blocks the tables have that count references.
    pub(crate) fn set_tables(&self, blocks: u64) {
        self.worst.tables.store(blocks, Ordering::Relaxed);
    }

    /// What the pool writes down at most when so many blocks are freed.
    pub(crate) fn worst_of_frees(&self, blocks: u64) -> u64 {
        let blocks = blocks.min(MOST_FREED);
        let counted = blocks.min(self.worst.tables.load(Ordering::Relaxed));
        self.worst(blocks * FREED, OF_POOL) + self.worst(COUNTED, OF_POOL) * counted
    }

    pub(crate) fn worst(&self, bytes: u64, copies: u8) -> u64 {
        let units = bytes.div_ceil(1 << self.worst.shift.load(Ordering::Relaxed));
        units * self.worst.unit.load(Ordering::Relaxed) * GANG_FACTOR * u64::from(copies.max(1))
    }
}
