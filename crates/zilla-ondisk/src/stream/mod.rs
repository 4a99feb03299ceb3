//! Send streams: what `zfs send` writes and `zfs receive` reads.
//!
//! A stream is a row of records, each of a head of [`RECORD_SIZE`] bytes and, for some, a payload.
//!
//! ```text
//! simple:    BEGIN [nvlist]  OBJECT FREE WRITE ... FREEOBJECTS ...  END
//! compound:  BEGIN [nvlist of the package]  END   simple stream ...   END
//! ```
//!
//! All heads but that of BEGIN end in the fletcher4 of everything before it. Everything is in the
//! sender's byte order, which the magic number of BEGIN tells; a receiver of the other order swaps.
//!
//! **Bounds.** A payload's length is computed from fields that are checked first, so no head makes
//! a reader take more than [`MAX_PAYLOAD`] bytes ([`MAX_BEGIN_PAYLOAD`] for BEGIN).

mod record;

pub use record::{
    Begin, CryptParams, DedupKey, End, Free, FreeObjects, Object, ObjectRange, Record, Redact, Spill, Write,
    WriteByref, WriteEmbedded,
};

use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// `DMU_BACKUP_MAGIC`, in every BEGIN record.
pub const DMU_BACKUP_MAGIC: u64 = 0x2_f5ba_cbac;
/// Bytes of a record's head.
pub const RECORD_SIZE: usize = 312;
/// Where in it the checksum of what came before is.
pub const CHECKSUM_OFFSET: usize = 280;
/// No block is larger, and nothing but blocks and bonuses follows a head.
pub const MAX_PAYLOAD: u64 = crate::SPA_MAXBLOCKSIZE;
/// `nvlist` of a package at most: OpenZFS's receiver takes as much (`DMU_MAX_ACCESS` is for one
/// that does not).
pub const MAX_BEGIN_PAYLOAD: u64 = 512 << 20;
/// Bytes of the name in BEGIN, with its NUL.
pub const MAXNAMELEN: usize = 256;
/// "To the end of the object", as a length of FREE.
pub const DMU_OBJECT_END: u64 = u64::MAX;

/// What is in a stream, in the low two bits of `drr_versioninfo`.
pub const DMU_SUBSTREAM: u64 = 1;
pub const DMU_COMPOUNDSTREAM: u64 = 2;

/// Feature flags: bits 2 to 31 of `drr_versioninfo`. Source: DMU_BACKUP_FEATURE_* of OpenZFS.
pub mod feature {
    pub const DEDUP: u64 = 1 << 0;
    pub const DEDUPPROPS: u64 = 1 << 1;
    pub const SA_SPILL: u64 = 1 << 2;
    pub const EMBED_DATA: u64 = 1 << 16;
    pub const LZ4: u64 = 1 << 17;
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    pub const RESUMING: u64 = 1 << 20;
    pub const REDACTED: u64 = 1 << 21;
    pub const COMPRESSED: u64 = 1 << 22;
    pub const LARGE_DNODE: u64 = 1 << 23;
    pub const RAW: u64 = 1 << 24;
    pub const ZSTD: u64 = 1 << 25;
    pub const HOLDS: u64 = 1 << 26;
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    pub const LONGNAME: u64 = 1 << 28;
    pub const LARGE_MICROZAP: u64 = 1 << 29;

    /// Their names, for messages.
    pub const NAMES: &[(u64, &str)] = &[
        (DEDUP, "dedup"),
        (DEDUPPROPS, "dedupprops"),
        (SA_SPILL, "sa_spill"),
        (EMBED_DATA, "embed_data"),
        (LZ4, "lz4"),
        (LARGE_BLOCKS, "large_blocks"),
        (RESUMING, "resuming"),
        (REDACTED, "redacted"),
        (COMPRESSED, "compressed"),
        (LARGE_DNODE, "large_dnode"),
        (RAW, "raw"),
        (ZSTD, "zstd"),
        (HOLDS, "holds"),
        (SWITCH_TO_LARGE_BLOCKS, "switch_to_large_blocks"),
        (LONGNAME, "longname"),
        (LARGE_MICROZAP, "large_microzap"),
    ];
}

/// Flags of BEGIN. Source: DRR_FLAG_* of OpenZFS.
pub const DRR_FLAG_CLONE: u32 = 1 << 0;
pub const DRR_FLAG_CI_DATA: u32 = 1 << 1;
/// The stream has FREE records for what the sender has not.
pub const DRR_FLAG_FREERECORDS: u32 = 1 << 2;
/// Spill blocks are sent whenever their dnode is, so their absence means something.
pub const DRR_FLAG_SPILL_BLOCK: u32 = 1 << 3;

/// Flags of WRITE and WRITE_BYREF.
pub const DRR_CHECKSUM_DEDUP: u8 = 1 << 0;
pub const DRR_RAW_BYTESWAP: u8 = 1 << 1;
/// Flags of OBJECT: the object has a spill block.
pub const DRR_OBJECT_SPILL: u8 = 1 << 2;
/// Flags of SPILL: it is sent only because its dnode is.
pub const DRR_SPILL_UNMODIFIED: u8 = 1 << 2;

const S: &str = "dmu_replay_record";

/// The byte order of a stream, by its first record's head.
pub fn order_of(head: &[u8]) -> Result<ByteOrder> {
    let magic = crate::bytes::array_at::<8>(head, 8).ok_or(FormatError::new(
        S,
        "drr_magic",
        8,
        Problem::Truncated { need: 16, have: head.len() },
    ))?;
    let found = ByteOrder::NATIVE.u64(magic);
    match found {
        DMU_BACKUP_MAGIC => Ok(ByteOrder::NATIVE),
        n if n.swap_bytes() == DMU_BACKUP_MAGIC => Ok(ByteOrder::NATIVE.swapped()),
        _ => Err(FormatError::new(S, "drr_magic", 8, Problem::Magic { found, wanted: DMU_BACKUP_MAGIC })),
    }
}

#[cfg(test)]
mod tests;
