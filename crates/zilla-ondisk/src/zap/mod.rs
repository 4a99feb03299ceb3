//! ZAP: the format's hash table from names to arrays of integers. Directories, properties and the
//! pool's own directory are ZAPs.
//!
//! Two shapes, told apart by the first word of the object's first block:
//!
//! - [`micro`]: one block of 64-byte entries, names under 50 bytes, one 64-bit value each.
//! - fat: a header with a pointer table ([`fat`]), indexed by the upper bits of a name's hash, and
//!   leaves ([`leaf`]): blocks that hold the entries whose hashes begin with the leaf's prefix. A
//!   full leaf is split in two; when a leaf's prefix is as long as the table's index, the table
//!   doubles. When it outgrows half of the first block it moves to blocks of its own.
//!
//! Here are the operations on one block; which block, and when to split and grow, is the engine's
//! part. Equal hashes are told apart by a *collision differentiator* (cd), the lowest that is free
//! when a name is added; (hash, cd) is what a cursor remembers.
//!
//! Names are bytes. With normalization flags a name is hashed in its normal form, and chains are
//! sorted by cd so that the lowest match is found first; making the normal form is the caller's
//! part too.

pub mod fat;
pub mod leaf;
mod leaf_mut;
pub mod micro;

mod hash;
mod value;

#[cfg(test)]
mod tests;

pub use fat::{ZapPhys, ZapTablePhys};
pub use hash::crc64;
pub use leaf::{Leaf, LeafEntry, LeafHeader};
pub use leaf_mut::LeafMut;
pub use micro::{MicroEntry, MicroZap};
pub use value::{ZapKey, ZapValue};

use crate::bytes::u64_at;
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

pub const ZBT_LEAF: u64 = 1 << 63;
pub const ZBT_HEADER: u64 = (1 << 63) + 1;
pub const ZBT_MICRO: u64 = (1 << 63) + 3;

/// Hashes have 48 bits, not 28.
pub const ZAP_FLAG_HASH64: u64 = 1;
/// Keys are arrays of 64-bit numbers.
pub const ZAP_FLAG_UINT64_KEY: u64 = 2;
/// The first number of a key is its hash.
pub const ZAP_FLAG_PRE_HASHED_KEY: u64 = 4;
const ZAP_FLAGS_ALL: u64 = ZAP_FLAG_HASH64 | ZAP_FLAG_UINT64_KEY | ZAP_FLAG_PRE_HASHED_KEY;

/// Bits of `normflags`: how names are made comparable before they are hashed and compared.
pub const U8_TEXTPREP_TOUPPER: u64 = 0x2;
pub const U8_TEXTPREP_TOLOWER: u64 = 0x4;
/// Canonical decomposition; composition and compatibility are bits of their own.
pub const U8_TEXTPREP_NFD: u64 = 0x10;
pub const U8_TEXTPREP_NFC: u64 = 0x50;
pub const U8_TEXTPREP_NFKD: u64 = 0x20;
pub const U8_TEXTPREP_NFKC: u64 = 0x60;

/// Longest name, with its NUL; 1024 for directories with the feature `longname`.
pub const ZAP_MAXNAMELEN: usize = 256;
pub const ZAP_MAXNAMELEN_NEW: usize = 1024;
/// Longest value in bytes.
pub const ZAP_MAXVALUELEN: usize = 1024 * 8;

/// Largest micro ZAP without the feature `large_microzap`, and with it.
pub const MZAP_MAX_BLKSZ: u64 = crate::SPA_OLD_MAXBLOCKSIZE;
pub const MZAP_MAX_SIZE: u64 = 1 << 20;
/// Blocks of a new fat ZAP are of 2^14 bytes.
pub const FZAP_DEFAULT_BLOCK_SHIFT: u32 = 14;
/// A table of 2^this entries is the largest there may be; more would not be indexed by a 28-bit
/// hash.
pub const ZAP_MAX_TABLE_SHIFT: u64 = 48;

/// What a block of a ZAP is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    Micro,
    Header,
    Leaf,
    /// Part of a pointer table: any other first word.
    Table,
}

pub fn block_kind(block: &[u8], order: ByteOrder) -> Result<BlockKind> {
    let short = Problem::Truncated { need: 8, have: block.len() };
    let word = u64_at(block, 0, order).ok_or(FormatError::new("zap", "block_type", 0, short))?;
    Ok(match word {
        ZBT_MICRO => BlockKind::Micro,
        ZBT_HEADER => BlockKind::Header,
        ZBT_LEAF => BlockKind::Leaf,
        _ => BlockKind::Table,
    })
}

/// How many upper bits of a hash count.
pub const fn hash_bits(flags: u64) -> u32 {
    if flags & ZAP_FLAG_HASH64 != 0 { 48 } else { 28 }
}

/// The highest collision differentiator there may be.
pub const fn max_cd(flags: u64) -> u32 {
    if flags & ZAP_FLAG_HASH64 != 0 { (1 << 16) - 1 } else { u32::MAX }
}

/// Brings a block of a ZAP, of whatever kind, into the machine's order in place.
pub fn to_native(block: &mut [u8], order: ByteOrder) -> Result<()> {
    if order.is_native() {
        return Ok(());
    }
    match block_kind(block, order)? {
        BlockKind::Micro => micro::swap(block),
        BlockKind::Leaf => leaf_mut::swap(block, order)?,
        // A header is words throughout, and so is a table.
        BlockKind::Header | BlockKind::Table => {
            crate::object_type::byteswap(crate::object_type::ByteswapClass::Uint64, block);
        }
    }
    Ok(())
}

/// log2 of a block's length, when that is a power of two in reach of the format.
pub(crate) fn block_shift(structure: &'static str, len: usize) -> Result<u32> {
    if len.is_power_of_two() && (512..=crate::SPA_MAXBLOCKSIZE as usize).contains(&len) {
        Ok(len.trailing_zeros())
    } else {
        Err(FormatError::impossible(structure, "block size", 0, len as u64, "a power of two from 512 to 16M"))
    }
}
