//! Devices that do not answer: OpenZFS's deadman.
//!
//! Every `zfs_deadman_checktime_ms` the I/O that is at the leaves is looked at. What has been there
//! for longer than `zfs_deadman_ziotime_ms`, or a write for longer than `zfs_deadman_synctime_ms`
//! (no txg ends before it), is told of as `ereport.fs.zfs.deadman`. A leaf that the pool can do
//! without is given up after `zfs_deadman_ziotime_ms`: its I/O fails, others have what is on it,
//! and it is resilvered when it is back ([`crate::vdev`], `hung`). One that the pool needs is
//! waited for (`zfs_deadman_failmode=wait`), or given up too (`continue`): then the pool suspends
//! itself, or reads fail, as for a device that says no. `panic` does the same: the pools of others
//! live in this process.
//!
//! Who embeds the engine decides whether this is looked at ([`Spa::check_deadman`]). Nothing of it
//! is on disk but the state of the leaf.

use super::Spa;
use super::diagnosis::needs;
use crate::tunables::{
    DEADMAN_CHECKTIME_MS, DEADMAN_ENABLED, DEADMAN_FAILMODE, DEADMAN_SYNCTIME_MS, DEADMAN_ZIOTIME_MS,
};
use crate::vdev::Leaf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Looks are a second apart, whatever time they are to be apart.
const STOOD_STILL: Duration = Duration::from_secs(10);

impl Spa {
    /// Looks for I/O that devices do not answer, if it is time to; whether a device was given up.
    /// To be called now and then by who watches the pool; it waits for nothing.
    pub fn check_deadman(&self) -> bool {
        let ms = |t: &crate::tunables::Tunable| Duration::from_millis(t.get());
        let now = self.ctx.env.clock.now();
        if DEADMAN_ENABLED.get() == 0 || DEADMAN_ZIOTIME_MS.get() == 0 {
            return false;
        }
        {
            let mut last = self.deadman.lock();
            let (since, every) = (last.map(|last| now.saturating_sub(last)), ms(&DEADMAN_CHECKTIME_MS));
            if since.is_some_and(|since| since < every) {
                return false;
            }
            *last = Some(now);
            // Nobody looked for long: this process stood still, and the answers may be there
            // already.
            if since.is_some_and(|since| since > every.saturating_mul(2).saturating_add(STOOD_STILL)) {
                return false;
            }
        }
        let tree = self.tree();
        let (any, write) = (ms(&DEADMAN_ZIOTIME_MS), ms(&DEADMAN_SYNCTIME_MS));
        let mut changed = false;
        for vdev in tree.root.walk() {
            let Some(leaf) = &vdev.leaf else { continue };
            // What came to it while it was given up goes the same way.
            if leaf.is_hung() {
                if leaf.load() > 0 {
                    leaf.give_up();
                }
                continue;
            }
            let Some(took) = leaf.look_for_hung(any, write) else { continue };
            tracing::warn!(pool = %self.name(), path = %leaf.path(), ?took, "the device does not answer");
            // Who is silent too is not counted on: what keeps them all may pass.
            let gone = |l: &Arc<Leaf>| l.index == leaf.index || l.oldest() >= any / 2;
            let waits = DEADMAN_FAILMODE.get() == 0 && needs(&tree, vdev.guid, gone);
            if took >= any && !waits {
                leaf.give_up();
                changed = true;
            }
        }
        if changed {
            tree.propagate();
            self.config_dirty.store(true, Ordering::Release);
        }
        changed
    }
}
