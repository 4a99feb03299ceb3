//! What may be given out now for things that can wait, and what must stay for those that cannot.
//!
//! The sync of a txg has to find a place for everything that is dirty; if it does not, the pool is
//! suspended. What datasets use and will use is held against the pool's size when they ask
//! ([`crate::dsl::space`]), but that is not what is free at the moment: blocks of the intent log
//! are nobody's usage, and what was freed comes back only two txgs later. So the log takes nothing,
//! and changes wait for a txg or are refused, when what is left would not do for the worst case of
//! all that is dirty ([`TxgState::needed`]) and a part of the slop. That part is for what is not
//! counted block by block: the pool's own objects.
//!
//! What is left is counted when a txg is synced, and taken from as blocks are placed in between:
//! looking at every metaslab for each log block would cost more than placing it. What is taken back
//! unused is only seen at the next count.

use super::SpaceClass;
use super::alloc::Metaslabs;
use crate::txg::TxgState;
use crate::types::Txg;
use crate::zio::Leave;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The part of the special vdevs that small blocks of files leave to metadata, in percent.
/// Source: `zfs_special_class_metadata_reserve_pct` in zfs(4).
const METADATA_RESERVE_PCT: u64 = 25;

/// All in bytes as users see them, without parity, but for those of the logs and special vdevs.
#[derive(Default)]
pub(super) struct Spare {
    left: AtomicI64,
    /// Something was taken since that was counted.
    taken: AtomicBool,
    slop: AtomicU64,
    txgs: OnceLock<Arc<TxgState>>,
    /// Of the log devices that take blocks: what is left, and what there is.
    log_left: AtomicI64,
    log_all: AtomicU64,
    /// What small blocks of files may still take of the special vdevs.
    special_left: AtomicI64,
}

impl Spare {
    /// A block got a place in the normal class.
    pub(super) fn took(&self, bytes: u64) {
        self.left.fetch_sub(bytes as i64, Ordering::Relaxed);
        if !self.taken.load(Ordering::Relaxed) {
            self.taken.store(true, Ordering::Relaxed);
        }
    }

    /// A block got a place on a log device.
    pub(super) fn log_took(&self, bytes: u64) {
        self.log_left.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// A block got a place on a special vdev.
    pub(super) fn special_took(&self, bytes: u64) {
        self.special_left.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// Whether a small block of a file may go to the special vdevs.
    pub(super) fn special_takes(&self, bytes: u64) -> bool {
        u64::try_from(self.special_left.load(Ordering::Relaxed)).is_ok_and(|left| left >= bytes)
    }

    /// How much of the log devices is taken, from 0 to 1. None: there are none.
    pub(super) fn log_fullness(&self) -> Option<f64> {
        let all = self.log_all.load(Ordering::Relaxed);
        let left = self.log_left.load(Ordering::Relaxed).max(0) as f64;
        (all > 0).then(|| (1.0 - left / all as f64).max(0.0))
    }

    /// Whether there is room for `bytes` beside what is dirty and what is to be left.
    pub(super) fn has_room(&self, bytes: u64, leave: Leave) -> bool {
        let needed = self.txgs.get().map_or(0, |t| match leave {
            Leave::Task | Leave::FreeingTask => t.needed_beside_frees(),
            _ => t.needed(),
        });
        self.left_beside(needed.saturating_add(bytes), leave)
    }

    fn left_beside(&self, bytes: u64, leave: Leave) -> bool {
        let kept = self.slop.load(Ordering::Relaxed)
            / match leave {
                Leave::Half => 2,
                Leave::Quarter | Leave::Task => 4,
                Leave::Eighth | Leave::FreeingTask => 8,
                Leave::Sixteenth => 16,
            };
        u64::try_from(self.left.load(Ordering::Relaxed)).is_ok_and(|left| left > kept.saturating_add(bytes))
    }

    pub(super) fn uncounted(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether so little is left that work which can be put off would take room from what cannot.
    pub(super) fn is_short(&self) -> bool {
        !self.left_beside(0, Leave::Quarter)
    }
}

impl Metaslabs {
    /// Whose dirty data the pool must have room for.
    pub fn set_txgs(&self, txgs: &Arc<TxgState>) {
        let _ = self.spare.txgs.set(txgs.clone());
        self.tell_worst();
    }

    /// Tells the txgs what the smallest piece of a block takes at most.
    pub(super) fn tell_worst(&self) {
        let (Some(txgs), Some(class)) = (self.spare.txgs.get(), self.class(SpaceClass::Normal)) else {
            return;
        };
        if let Some(shift) = class.groups().map(|(v, _)| v.spec.ashift).min() {
            let unit =
                class.groups().map(|(v, _)| v.deflated(v.asize(1 << shift, Txg(0))).max(1 << shift)).max();
            txgs.set_worst(shift, unit.unwrap_or(1 << shift));
        }
    }

    /// Counts what is left.
    pub(super) fn count_spare(&self) {
        let Some(class) = self.class(SpaceClass::Normal) else { return };
        let groups = class.groups().filter(|(v, _)| v.takes_blocks());
        let left: u64 = groups.map(|(v, g)| v.deflated(g.free_now())).sum();
        self.spare.taken.store(false, Ordering::Relaxed);
        self.spare.left.store(i64::try_from(left).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.spare.slop.store(self.slop(), Ordering::Relaxed);
        let (left, all) = self.room_of(SpaceClass::Log);
        self.spare.log_left.store(i64::try_from(left).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.spare.log_all.store(all, Ordering::Relaxed);
        let (left, all) = self.room_of(SpaceClass::Special);
        let for_small = left as i64 - (all / 100 * METADATA_RESERVE_PCT) as i64;
        self.spare.special_left.store(for_small, Ordering::Relaxed);
    }

    /// What is left and what there is of the vdevs of a class that take blocks.
    fn room_of(&self, class: SpaceClass) -> (u64, u64) {
        let Some(class) = self.class(class) else { return (0, 0) };
        let takes = class.groups().filter(|(v, _)| v.takes_blocks());
        takes.fold((0, 0), |(left, all), (_, g)| (left + g.free_now(), all + g.usage().1))
    }
}
