//! Bugs planted on purpose, to prove that the simulator finds such bugs. Compiled only with the
//! feature `planted`, which nothing but the simulator's tests asks for.
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
    /// What a sync cannot put on disk stays in memory only. Seen where disks go bad, and hunted by
    /// a test of its own, so not among [`ALL`].
    HeldForgotten,
    /// Of writes only every other one leaves a record for the intent log.
    WriteRecordLost,
    /// A rename leaves no record for the intent log.
    RenameRecordLost,
    /// A replay refuses a record, and the log behind it is given back.
    ReplayStops,
    /// The log's blocks are not claimed at an import, so that replaying gives out their space.
    ClaimForgotten,
    /// What a truncation cuts off inside a record is there again when the file grows.
    TailKept,
    /// A txg takes attributes from the one after it.
    BonusAhead,
    /// Attributes that do not fit into a dnode are not written.
    SpillLost,
    /// Blocks that only a snapshot refers to are freed.
    SnapshotNotHeld,
    /// Some blocks that are freed stay allocated.
    FreedBlocksKept,
    /// What a write lies on is taken for zeroes where it cannot be read.
    DamageHidden,
    /// Replay is judged by file flags, and their changes need not be in the log before what they
    /// allow.
    ReplayRefusesByFlag,
    /// A disk that was away when the pool was opened is taken back as if it had missed nothing.
    NotResilvered,
    /// After an outage only what was seen to fail is taken for lost: nothing is written again.
    NotResent,
    /// A damaged copy is written again without asking whose its place is by now.
    RepairUnchecked,
    /// Log records are not counted against the limit of what may wait for a txg.
    LogNotCounted,
    /// Labels do not say that a pool went on without the newest state that a device may have.
    /// Hunted by a test of its own, so not among [`ALL`].
    WentOnUnsaid,
}

pub const ALL: [Bug; 27] = [
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
    Bug::WriteRecordLost,
    Bug::RenameRecordLost,
    Bug::ReplayStops,
    Bug::ClaimForgotten,
    Bug::TailKept,
    Bug::BonusAhead,
    Bug::SpillLost,
    Bug::SnapshotNotHeld,
    Bug::FreedBlocksKept,
    Bug::DamageHidden,
    Bug::ReplayRefusesByFlag,
    Bug::NotResilvered,
    Bug::NotResent,
    Bug::RepairUnchecked,
    Bug::LogNotCounted,
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
