//! Following a log's chain, whatever is on the disk.
//!
//! Three go along it: who claims it after a crash, who replays it, and who gives its blocks back.
//! They must agree on where it ends, so there is one walk. It ends at the first block that does not
//! continue the chain: whose checksum does not fit the number the block before gave it, whose own
//! successor has the wrong number, that comes twice, or that lies beyond what was claimed. Of a
//! block's records it ends at the first that is none, or whose number does not rise.

use crate::error::{Error, Result};
use crate::types::Bookmark;
use crate::zio::BlockStore;
use bytes::Bytes;
use std::collections::BTreeSet;
use zilla_codec::checksum::Checksum;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{LogBlock, LogRecord, ZIL_CLAIM_LR_SEQ_VALID, ZIL_ZC_SEQ, ZilHeader};

/// How often a block is read whose devices fail: an end that is none would lose what follows.
const TRIES: usize = 8;

pub(super) async fn read(store: &dyn BlockStore, bp: BlkPtr, bookmark: Bookmark) -> Result<Bytes> {
    let mut result = store.log().read_log(bp, bookmark).await;
    for _ in 1..TRIES {
        if matches!(result, Ok(_) | Err(Error::Corrupt(_))) {
            break;
        }
        result = store.log().read_log(bp, bookmark).await;
    }
    result
}

/// A block that belongs to the chain.
pub(super) struct ChainBlock {
    pub bp: BlkPtr,
    pub seq: u64,
    /// None for the last one: allocated ahead, and not written, or not whole.
    pub data: Option<Bytes>,
}

/// Where a walk along a chain is.
pub(crate) struct Walk<'a> {
    store: &'a dyn BlockStore,
    objset: u64,
    claimed: bool,
    /// Highest numbers of blocks and records that were claimed.
    claim_blk_seq: u64,
    claim_lr_seq: u64,
    next: BlkPtr,
    seen: BTreeSet<[u64; 2]>,
    last_record: u64,
    /// Why it ended, if there was more to see than an end.
    pub(super) ended: Option<String>,
    /// It ended because devices failed: there may be more.
    pub(super) failed: Option<Error>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(store: &'a dyn BlockStore, header: &ZilHeader, objset: u64) -> Walk<'a> {
        let claimed = header.claim_txg != 0;
        let lr_valid = claimed && header.flags & ZIL_CLAIM_LR_SEQ_VALID != 0;
        Walk {
            store,
            objset,
            claimed,
            claim_blk_seq: if claimed { header.claim_blk_seq } else { u64::MAX },
            claim_lr_seq: if lr_valid { header.claim_lr_seq } else { u64::MAX },
            next: header.log,
            seen: BTreeSet::new(),
            last_record: 0,
            ended: None,
            failed: None,
        }
    }

    /// Whether all that was claimed came up.
    pub(super) fn is_complete(&self) -> bool {
        match self.claim_lr_seq {
            // Who claimed it did not say up to which record.
            u64::MAX => self.ended.is_none(),
            last => self.last_record >= last,
        }
    }

    /// Goes no further.
    pub(super) fn stop(&mut self, why: impl Into<String>) {
        self.next = BlkPtr::ZERO;
        self.ended.get_or_insert(why.into());
    }

    /// Where it goes on.
    pub(super) fn leads_to(&self) -> Option<&BlkPtr> {
        Some(&self.next).filter(|bp| !bp.is_hole())
    }

    pub(super) async fn next(&mut self) -> Option<ChainBlock> {
        let bp = std::mem::replace(&mut self.next, BlkPtr::ZERO);
        if bp.is_hole() || bp.is_embedded() {
            return None;
        }
        let seq = bp.cksum()[ZIL_ZC_SEQ];
        if seq > self.claim_blk_seq {
            return None;
        }
        if !self.seen.insert(bp.dva(0).to_words()) {
            self.stop("the chain comes back to a block of its own");
            return None;
        }
        let end = ChainBlock { bp, seq, data: None };
        if self.claimed && seq == self.claim_blk_seq && self.last_record == self.claim_lr_seq {
            return Some(end);
        }
        let bookmark = Bookmark { objset: self.objset, object: 0, level: -2, blkid: seq };
        let data = match read(self.store, bp, bookmark).await {
            Ok(data) => data,
            Err(e) => {
                if self.claimed {
                    self.stop(format!("block {seq}, which was claimed, cannot be read: {e}"));
                }
                self.failed = Some(e).filter(|e| !matches!(e, Error::Corrupt(_)));
                return Some(end);
            }
        };
        let zilog2 = bp.checksum_kind() == Checksum::Zilog2 as u8;
        let next = match LogBlock::parse(&data, bp.byteorder(), zilog2) {
            Ok(block) => block.chain.next_blk,
            Err(e) => {
                self.stop(format!("block {seq}: {e}"));
                return Some(end);
            }
        };
        let (mut continues, cksum) = (bp.cksum(), next.cksum());
        continues[ZIL_ZC_SEQ] = continues[ZIL_ZC_SEQ].wrapping_add(1);
        if continues != cksum || seq == u64::MAX {
            self.stop(format!("block {seq}: what it says comes next has another number"));
            return Some(end);
        }
        self.next = next;
        Some(ChainBlock { data: Some(data), ..end })
    }

    /// The records of a block, up to where the log ends within it.
    pub(super) fn records<'d>(&mut self, bp: &BlkPtr, data: &'d [u8]) -> Vec<LogRecord<'d>> {
        let zilog2 = bp.checksum_kind() == Checksum::Zilog2 as u8;
        let Ok(block) = LogBlock::parse(data, bp.byteorder(), zilog2) else { return Vec::new() };
        let mut out = Vec::new();
        // Without the key only heads and pointers can be read.
        let sealed = bp.uses_crypt() && !self.store.has_key();
        let records: Box<dyn Iterator<Item = _>> =
            if sealed { Box::new(block.sealed_records()) } else { Box::new(block.records()) };
        for record in records {
            let record = match record {
                Ok(r) => r,
                Err(e) => {
                    self.stop(format!("after record {}: {e}", self.last_record));
                    break;
                }
            };
            let seq = record.header.seq;
            if seq > self.claim_lr_seq {
                self.next = BlkPtr::ZERO;
                break;
            }
            if seq <= self.last_record {
                self.stop(format!("record {seq} comes after record {}", self.last_record));
                break;
            }
            self.last_record = seq;
            out.push(record);
        }
        out
    }
}
