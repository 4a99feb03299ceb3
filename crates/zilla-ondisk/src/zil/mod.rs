//! The intent log's structures: the header in the objset, what chains log blocks, the records.
//!
//! A dataset's log is a list of blocks that were allocated ahead: each names the next, whether that
//! has been written yet or not, and the checksum the next must have is known beforehand, being
//! (guid, guid, objset, sequence number). The chain ends at the first block that does not have it.
//! New blocks (checksum `zilog2`) begin with [`ZilChainPhys`] and only its `nused` bytes are
//! written; old ones (`zilog`) end with it.

mod encode;
mod record;

#[cfg(test)]
mod tests;

pub use encode::{
    LR_WRITE_SIZE, XVA_MAPSIZE, chain_checksum, is_native, put_chain, set_reclen, set_seq, set_write_range,
};
pub use record::{ATTR_XVATTR, CreateBody, Foid, LogRecord, LrAcl, LrHeader, RecordBody, Xvattr};

use crate::blkptr::BlkPtr;
use crate::bytes::{Field, Phys, phys};
use crate::error::{FormatError, Problem, Result};
use crate::label::EckPhys;
use crate::order::ByteOrder;

/// Replay has still to be done; set in memory only.
pub const ZIL_REPLAY_NEEDED: u64 = 0x1;
/// `claim_lr_seq` is valid.
pub const ZIL_CLAIM_LR_SEQ_VALID: u64 = 0x2;
pub const ZIL_MIN_BLKSZ: u64 = 4096;
/// Indices of the words of a log block's checksum.
pub const ZIL_ZC_GUID_0: usize = 0;
pub const ZIL_ZC_GUID_1: usize = 1;
pub const ZIL_ZC_OBJSET: usize = 2;
pub const ZIL_ZC_SEQ: usize = 3;
/// Every record's length is a multiple of this.
pub const ZIL_RECORD_ALIGN: usize = 8;

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

phys! {
    /// What chains log blocks.
    pub struct ZilChainPhys("zil_chain") {
        pad: u64,
        next_blk: BlkPtr,
        /// Bytes of the block in use, this structure included where it comes first.
        nused: u64,
        eck: EckPhys,
    }
}

/// A log block's chain structure, and the records in it.
#[derive(Clone, Copy, Debug)]
pub struct LogBlock<'a> {
    pub chain: ZilChainPhys,
    records: &'a [u8],
    order: ByteOrder,
}

impl<'a> LogBlock<'a> {
    /// Reads a log block; `zilog2` says that its chain structure comes first. Its checksum was
    /// verified before.
    pub fn parse(block: &'a [u8], order: ByteOrder, zilog2: bool) -> Result<LogBlock<'a>> {
        let bad = |v, why| FormatError::impossible("zil_chain", "zc_nused", 136, v, why);
        let at = if zilog2 { 0 } else { block.len().saturating_sub(ZilChainPhys::SIZE) };
        let chain = ZilChainPhys::decode(block.get(at..).unwrap_or_default(), order)?;
        let used = usize::try_from(chain.nused).map_err(|_| bad(chain.nused, "longer than the block"))?;
        let (from, most) = if zilog2 { (ZilChainPhys::SIZE, block.len()) } else { (0, at) };
        if used > most || used < from {
            return Err(bad(chain.nused, "not within the block"));
        }
        let records = block.get(from..used).unwrap_or_default();
        Ok(LogBlock { chain, records, order })
    }

    /// The records, in order. Ends at the first that cannot be, with its error.
    pub fn records(&self) -> impl Iterator<Item = Result<LogRecord<'a>>> + use<'a> {
        let (mut rest, order) = (self.records, self.order);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let rec = LogRecord::parse(rest, order);
            let len = rec.as_ref().map_or(rest.len(), |r| r.header.reclen as usize);
            rest = rest.get(len..).unwrap_or_default();
            Some(rec)
        })
    }

    /// The records of an encrypted block as they can be read without the key: their heads, and
    /// pointers of data in place. A record without pointers counts as a marker.
    pub fn sealed_records(&self) -> impl Iterator<Item = Result<LogRecord<'a>>> + use<'a> {
        let (mut rest, order) = (self.records, self.order);
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let rec = LogRecord::parse_sealed(rest, order);
            let len = rec.as_ref().map_or(rest.len(), |r| r.header.reclen as usize);
            rest = rest.get(len..).unwrap_or_default();
            Some(rec)
        })
    }

    /// The raw records, for a log whose contents are encrypted.
    pub const fn raw(&self) -> &'a [u8] {
        self.records
    }
}

pub(crate) const fn truncated(field: &'static str, need: usize, have: usize) -> FormatError {
    FormatError::new("lr", field, 0, Problem::Truncated { need, have })
}
