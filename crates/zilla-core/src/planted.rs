//! Bugs planted on purpose, to prove that the simulator finds such bugs. Compiled only with the feature `planted`, which nothing
//! but the simulator's tests asks for.
//!
//! A bug is planted for the thread that asks for it; a simulated world lives on one thread.

use std::cell::Cell;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Devices are not flushed before the uberblock is written.
    FlushDropped,
    /// The uberblock is written while blocks of its txg are still on their way.
    UberblockEarly,
    /// What is freed may be written again in the same txg.
    FreedTooEarly,
    /// Some space is given out twice.
    DoubleAlloc,
    /// An allocation is not written down.
    SpaceMapEntryLost,
    /// A block that a snapshot holds is not in the deadlist.
    DeadlistEntryLost,
    /// When a txg is synced, changes of a later one are forgotten with it.
    LayerLost,
    /// A block in memory keeps its old contents when new ones were synced.
    StaleBase,
    /// A mirror writes one side only, and does not remember it.
    MirrorOneSide,
    /// A RAID-Z parity column is wrong.
    ParityWrong,
    /// A freed file stays on its owner's account.
    AccountLost,
    /// fsync returns at once.
    FsyncLies,
}

pub const ALL: [Bug; 12] = [
    Bug::FlushDropped,
    Bug::UberblockEarly,
    Bug::FreedTooEarly,
    Bug::DoubleAlloc,
    Bug::SpaceMapEntryLost,
    Bug::DeadlistEntryLost,
    Bug::LayerLost,
    Bug::StaleBase,
    Bug::MirrorOneSide,
    Bug::ParityWrong,
    Bug::AccountLost,
    Bug::FsyncLies,
];

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in this thread's engine, or takes it away.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

pub(crate) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
