//! Blocks that outlive a reference while a scan is under way.
//!
//! The walk comes to a block at one of its places. If blocks are shared by deduplication or
//! cloning, a block may be given another place that the walk has passed, and lose the one that it
//! has not come to yet: it would be read nowhere. So whatever takes a reference off a block that
//! has others tells the scan, and all those blocks are read once more at the end, behind the last
//! slice of the walk.
//!
//! They are kept in memory and bounded. Where some are lost, by the bound, or because the scan goes
//! on after an import, the scan does not say of itself that it has read everything: a resilver
//! leaves devices with what they lacked, and begins again; a scrub does not become what the next
//! incremental one starts from. The same where blocks wait to be freed whose references nobody has
//! taken off for ten minutes.
//!
//! One that is freed after all is forgotten at once: its space may be another's when the scan ends,
//! and a repair would hit that.

use super::round::Entry;
use super::{Key, Scan, key};
use crate::error::Result;
use crate::types::Bookmark;
use std::collections::HashMap;
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;

/// Blocks that are kept: 20 MB of them.
const MOST: usize = 1 << 17;
/// So long, and so often, it is waited for references that are still to be taken off.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSES: u32 = 600;

#[derive(Default)]
pub(super) struct Outlived {
    blocks: HashMap<Key, BlkPtr>,
    /// Some are not known.
    lost: bool,
}

impl Outlived {
    /// Of a scan that goes on after an import.
    pub(super) fn unknown() -> Outlived {
        Outlived { blocks: HashMap::new(), lost: true }
    }

    /// It is freed after all, and its place may be another's soon.
    pub(super) fn forget(&mut self, bp: &BlkPtr) {
        if !self.blocks.is_empty() {
            self.blocks.remove(&key(bp));
        }
    }

    fn add(&mut self, bp: &BlkPtr) {
        if self.blocks.len() < MOST || self.blocks.contains_key(&key(bp)) {
            self.blocks.insert(key(bp), *bp);
        } else {
            self.lost = true;
        }
    }
}

impl Scan {
    /// A reference was taken off a block in the syncing txg, and it has others.
    pub fn outlives(&self, bp: &BlkPtr) {
        let mut st = self.shared.lock();
        if st.stable.is_scanning() && bp.phys_birth() <= st.stable.phys.max_txg {
            st.outlived.add(bp);
        }
    }

    /// Those that are to be read behind the walk's end.
    pub(super) async fn outlived(&self) -> Result<Vec<Entry>> {
        // What was freed in the last txg that the walk has seen is told of in the next.
        self.synced().await?;
        let mut pending = self.pool.shared_frees_pending().await;
        for _ in 0..PAUSES {
            if !pending || self.must_leave() {
                break;
            }
            self.ctx.env.sleep(PAUSE).await;
            pending = self.pool.shared_frees_pending().await;
        }
        let (blocks, resilver) = {
            let mut st = self.shared.lock();
            st.outlived.lost |= pending;
            (std::mem::take(&mut st.outlived.blocks), st.stable.is_resilver())
        };
        let wanted = blocks.into_values().filter(|bp| !resilver || self.pool.lacks(bp));
        Ok(wanted.map(|bp| Entry { bp, at: Bookmark::NOWHERE, counted: false }).collect())
    }

    /// Whether there may be blocks that the scan has not come to.
    pub(super) fn has_lost_some(&self) -> bool {
        self.shared.lock().outlived.lost
    }
}
