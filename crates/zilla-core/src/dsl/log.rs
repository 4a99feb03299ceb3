//! The blocks of a dataset's intent log, when the dataset goes.
//!
//! Log blocks are counted by no dataset, so a destroyed dataset's tree does not lead to them: they are found by following the chain
//! from the objset's header. It ends at a pointer whose block does not verify (it was reserved for what was to come),
//! which is still the log's.

use super::DslPool;
use super::dataset::DslDataset;
use crate::error::Result;
use crate::types::Bookmark;
use crate::zio::Priority;
use std::collections::BTreeSet;
use std::sync::Arc;
use zilla_codec::checksum::Checksum;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{LogBlock, RecordBody, ZIL_ZC_SEQ};

/// A chain that is longer is damaged, or leads to itself.
const MAX_BLOCKS: usize = 1 << 20;

impl DslPool {
    /// Frees a dataset's intent log: the chain's blocks, and data that records refer to and the objset does not.
    pub(super) async fn free_intent_log(&self, ds: &Arc<DslDataset>) -> Result<()> {
        if ds.phys().bp.is_hole() && ds.open_objset().is_none() {
            return Ok(());
        }
        let header = self.objset(ds).await?.phys().zil_header;
        let mut seen = BTreeSet::new();
        let mut at = header.log;
        while !at.is_hole() && seen.len() < MAX_BLOCKS {
            let [.., seq] = at.cksum();
            debug_assert_eq!(ZIL_ZC_SEQ, 3);
            // What lies beyond the claimed part, or was written by txgs that a crash forgot, was never allocated.
            let allocated = match header.claim_txg {
                0 => at.birth() <= self.opened_txg,
                claim => seq <= header.claim_blk_seq || at.birth() < claim,
            };
            if !allocated || !seen.insert(at.dva(0).offset) {
                break;
            }
            self.ctx.free(&at);
            let b = Bookmark { objset: ds.id, object: 0, level: -2, blkid: seq };
            let Ok(data) = self.ctx.store.read(at, b, Priority::SyncRead).await else { break };
            let zilog2 = at.checksum_kind() == Checksum::Zilog2 as u8;
            let Ok(block) = LogBlock::parse(&data, at.byteorder(), zilog2) else { break };
            for r in block.records().map_while(|r| r.ok()) {
                if let RecordBody::Write { blkptr, .. } = &r.body {
                    self.free_logged_write(blkptr, header.claim_txg, &mut seen);
                }
            }
            at = block.chain.next_blk;
        }
        Ok(())
    }

    fn free_logged_write(&self, bp: &BlkPtr, claim_txg: u64, seen: &mut BTreeSet<u64>) {
        let claimed = claim_txg != 0 && bp.birth() >= claim_txg;
        if claimed && !bp.is_hole() && !bp.is_embedded() && seen.insert(bp.dva(0).offset) {
            self.ctx.free(bp);
        }
    }
}
