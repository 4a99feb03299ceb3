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
}

impl Spare {
    /// A block got a place in the normal class.
    pub(super) fn took(&self, bytes: u64) {
        self.left.fetch_sub(bytes as i64, Ordering::Relaxed);
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
    }
}
