//! Blocks that outlive a reference while a scan is under way.
//!
//! The walk comes to a block at one of its places. If blocks are shared by deduplication or
//! cloning, a block may be given another place that the walk has passed, and lose the one that it
//! has not come to yet: it would be read nowhere. So whatever takes a reference off a block that
//! has others tells the scan, and all those blocks are read once more at the end, behind the last
//! slice of the walk.
//!
//! They are kept in memory and bounded. Where some are lost, by the bound, or because the scan goes
//! on after an import, the scan walks once more, through what was given a place since its walk
//! began: a block that has lost the places it had then has one of these, and a pointer that is new
//! says so by its birth, whatever the birth of what it points to. That costs reading the metadata
//! that changed meanwhile and what was cloned; beginning again would cost the pool, and a pool that
//! is exported often would never be done. On disk it needs nothing but the place of the walk and
//! the txg in which it began (`state.rs`); to write down each block that outlives a reference would
//! need an object that OpenZFS takes for leaked, and a bound still.
//!
//! After an import all are known if there was none when the pool was closed ([`Scan::leaves`]).
//!
//! With a later walk the list begins anew. If the walk is cut off or the list full in its turn
//! another follows, through what was given a place since it began: each has less to do than the one
//! before, unless more is cloned than a disk reads.
//!
//! One that is freed after all is forgotten at once: its space may be another's when the scan ends,
//! and a repair would hit that.

use super::{Key, Scan, key};
use crate::error::Result;
use crate::txg::Tx;
use std::collections::BTreeMap;
use zilla_ondisk::blkptr::BlkPtr;

/// Blocks that are kept: 20 MB of them, and while they are read as much again.
const MOST: usize = if cfg!(test) { 1 << 10 } else { 1 << 17 };

#[derive(Default)]
pub(super) struct Outlived {
    blocks: BTreeMap<Key, BlkPtr>,
    /// Some are not known.
    lost: bool,
}

impl Outlived {
    /// Of a scan that goes on after an import.
    pub(super) fn unknown() -> Outlived {
        Outlived { blocks: BTreeMap::new(), lost: true }
    }

    /// It is freed after all, and its place may be another's soon.
    pub(super) fn forget(&mut self, bp: &BlkPtr) {
        if !self.blocks.is_empty() {
            self.blocks.remove(&key(bp));
        }
    }

    /// All of them, unless some are not known. They stay here until the scan has ended: who
    /// leaves it while they are read must not say that there are none.
    pub(super) fn all(&self) -> Option<Vec<BlkPtr>> {
        (!self.lost).then(|| self.blocks.values().copied().collect())
    }

    #[cfg(test)]
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// There is none.
    fn is_empty(&self) -> bool {
        !self.lost && self.blocks.is_empty()
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
    /// In each txg of a pool that is being closed, when all is freed that it frees: whether the
    /// next import must walk again.
    #[crate::boxed]
    pub async fn leaves(&self, tx: &Tx) -> Result<()> {
        let (position, all) = {
            let st = self.shared.lock();
            (st.stable.clone(), st.outlived.is_empty())
        };
        position.save_known(self.ctx.mos(), tx, all).await
    }

    /// A reference was taken off a block in the syncing txg, and it has others.
    pub fn outlives(&self, bp: &BlkPtr) {
        let mut st = self.shared.lock();
        if st.stable.is_scanning() && bp.phys_birth() <= st.stable.phys.max_txg {
            st.outlived.add(bp);
        }
    }
}
