//! Whose a damaged block is, beside the dataset in whose tree it was met: the error log has one
//! entry a block, filed under its head, but snapshots and clones share blocks, and a file that was
//! removed may still be damaged in a snapshot. As in OpenZFS a dataset is named if the place in it
//! holds the block that was born in the error's txg.
//!
//! It is looked up when somebody asks, in the datasets as they are then, so nothing has to follow
//! snapshots, promotions and rollbacks. A block of which that cannot be found out, because what
//! leads to it is damaged as well, counts as the dataset's.

use super::errlog::{ErrLog, LoggedError};
use super::{datasets, traverse};
use crate::error::Result;
use crate::types::Bookmark;
use crate::zap::Zap;
use std::collections::{BTreeSet, VecDeque};
use zilla_ondisk::dsl::DslDatasetPhys;

impl ErrLog {
    /// The datasets that have the block of a logged error, at most `most`: heads before their
    /// snapshots, the newest first, and clones behind what they were made from.
    #[crate::boxed]
    pub async fn affected(&self, e: &LoggedError, most: usize) -> Result<Vec<u64>> {
        // Without its birth nothing tells one version of a block from another; so in logs without
        // the feature `head_errlog`.
        if e.birth == 0 {
            return Ok(vec![e.objset]);
        }
        let mos = self.ctx.mos();
        let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
        let mut heads = VecDeque::from([self.first_head(e).await?]);
        while let Some(id) = heads.pop_front() {
            if out.len() >= most || !seen.insert(id) {
                continue;
            }
            let head = datasets::dataset(mos, id).await?;
            let here = self.holds(id, &head, e).await;
            if here != Some(false) {
                out.push(id);
            }
            let mut at = head.prev_snap_obj;
            // A list that leads in circles ends where it began.
            while at != 0 && out.len() < most && seen.insert(at) {
                let snap = datasets::dataset(mos, at).await?;
                if snap.dir_obj != head.dir_obj || snap.creation_txg < e.birth {
                    break;
                }
                // What the head has and was born before the snapshot was made, the snapshot has
                // too.
                if here == Some(true) || self.holds(at, &snap, e).await != Some(false) {
                    out.push(at);
                    if snap.next_clones_obj != 0 {
                        // The list has each clone's first dataset, which may be a snapshot of it.
                        for first in Zap::open(mos, snap.next_clones_obj).await?.ints().await? {
                            heads.push_back(self.head_of(first).await?);
                        }
                    }
                }
                at = snap.prev_snap_obj;
            }
        }
        Ok(out)
    }

    /// The head of the oldest dataset that may have the block: a clone has it from the snapshot
    /// that it was made from, unless that is older than the block.
    async fn first_head(&self, e: &LoggedError) -> Result<u64> {
        let mos = self.ctx.mos();
        let mut seen = BTreeSet::new();
        let mut oldest = datasets::dataset(mos, e.objset).await?;
        while oldest.prev_snap_obj != 0 && seen.insert(oldest.prev_snap_obj) {
            let before = datasets::dataset(mos, oldest.prev_snap_obj).await?;
            if before.creation_txg < e.birth {
                break;
            }
            oldest = before;
        }
        Ok(datasets::dir(mos, oldest.dir_obj).await?.head_dataset_obj)
    }

    /// Whether a dataset has the block of an error; None: it cannot be read.
    async fn holds(&self, objset: u64, ds: &DslDatasetPhys, e: &LoggedError) -> Option<bool> {
        let at = Bookmark { objset, object: e.object, level: e.level, blkid: e.blkid };
        let found = traverse::find(&self.ctx.store, ds.bp, at).await.ok()?;
        Some(found.is_some_and(|bp| bp.birth() == e.birth))
    }
}
