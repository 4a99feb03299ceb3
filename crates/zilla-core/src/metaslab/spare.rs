//! What may be given out now for things that can wait, and what must stay for those that cannot.
//!
//! The sync of a txg has to find a place for everything that is dirty; if it does not, the pool is suspended. What datasets use and
//! will use is held against the pool's size when they ask ([`crate::dsl::space`]), but that is not what is free at the moment: blocks of the
//! intent log are nobody's usage, and what was freed comes back only two txgs later. So the log takes nothing, and new writes wait for a
//! txg, when what is left would not do for the dirty data and half of the slop.
//!
//! What is left is counted when a txg is synced, and taken from as blocks are placed in between: looking at every metaslab for each
//! log block would cost more than placing it. What is taken back unused is only seen at the next count.

use super::SpaceClass;
use super::alloc::Metaslabs;
use crate::spa::txg::TxgState;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// All in bytes as users see them, without parity.
#[derive(Default)]
pub(super) struct Spare {
    left: AtomicI64,
    /// What stays whatever is dirty.
    kept: AtomicU64,
    txgs: OnceLock<Arc<TxgState>>,
    /// Of the log devices that take blocks: what is left, and what there is.
    log_left: AtomicI64,
    log_all: AtomicU64,
}

impl Spare {
    /// A block got a place in the normal class.
    pub(super) fn took(&self, bytes: u64) {
        self.left.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// A block got a place on a log device.
    pub(super) fn log_took(&self, bytes: u64) {
        self.log_left.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// How much of the log devices is taken, from 0 to 1. None: there are none.
    pub(super) fn log_fullness(&self) -> Option<f64> {
        let all = self.log_all.load(Ordering::Relaxed);
        let left = self.log_left.load(Ordering::Relaxed).max(0) as f64;
        (all > 0).then(|| (1.0 - left / all as f64).max(0.0))
    }

    pub(super) fn any(&self) -> bool {
        let dirty = self.txgs.get().map_or(0, |t| t.dirty_bytes());
        let needed = self.kept.load(Ordering::Relaxed).saturating_add(dirty);
        u64::try_from(self.left.load(Ordering::Relaxed)).is_ok_and(|left| left > needed)
    }
}

impl Metaslabs {
    /// Whose dirty data the pool must have room for.
    pub fn set_txgs(&self, txgs: &Arc<TxgState>) {
        let _ = self.spare.txgs.set(txgs.clone());
    }

    /// Counts what is left.
    pub(super) fn count_spare(&self) {
        let Some(class) = self.class(SpaceClass::Normal) else { return };
        let left: u64 = class.groups().map(|(v, g)| v.deflated(g.free_now())).sum();
        self.spare.left.store(i64::try_from(left).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.spare.kept.store(self.slop() / 2, Ordering::Relaxed);
        let (left, all) = self.class(SpaceClass::Log).map_or((0, 0), |class| {
            let takes = class.groups().filter(|(v, _)| v.takes_blocks());
            takes.fold((0, 0), |(left, all), (_, g)| (left + g.free_now(), all + g.usage().1))
        });
        self.spare.log_left.store(i64::try_from(left).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.spare.log_all.store(all, Ordering::Relaxed);
    }
}
