//! The intent log's structures: the header in the objset, the trailer that chains log blocks, the records.

use crate::blkptr::BlkPtr;
use crate::bytes::phys;

/// The log's blocks may be claimed: set once replay is over, so that a later import leaves them alone.
pub const ZIL_REPLAY_NEEDED: u64 = 0x1;
/// `claim_lr_seq` is valid.
pub const ZIL_CLAIM_LR_SEQ_VALID: u64 = 0x2;

phys! {
    /// Where a dataset's log begins, and how far it was claimed and replayed.
    pub struct ZilHeader("zil_header") {
        /// txg in which the log's blocks were claimed.
        claim_txg: u64,
        /// Highest sequence number of a record that was replayed.
        replay_seq: u64,
        /// The first block of the chain.
        log: BlkPtr,
        /// Highest sequence number of a block that was claimed.
        claim_blk_seq: u64,
        flags: u64,
        /// Highest sequence number of a record that was claimed.
        claim_lr_seq: u64,
        pad: [u64; 3],
    }
}
