//! The first block of a fat ZAP: header, and in its second half the pointer table while that is
//! small.
//!
//! The table has 2^shift numbers of leaf blocks. The entry for a hash is at its upper `shift` bits;
//! a leaf with a shorter prefix stands in as many neighbouring entries as it covers. A table beyond
//! half a block has blocks of its own, and while it doubles, `nextblk` and `blks_copied` tell how
//! far the copy has come.

use super::{ZAP_FLAGS_ALL, ZAP_MAX_TABLE_SHIFT, ZBT_HEADER, block_shift};
use crate::bytes::{Field, Phys, Zero, phys, put_at, u64_at};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

pub const ZAP_MAGIC: u64 = 0x2_F52A_B2AB;

phys! {
    /// A pointer table outside of the header block; all zeros but `shift` when it is inside.
    pub struct ZapTablePhys("zap_table_phys") {
        blk: u64,
        numblks: u64,
        shift: u64,
        nextblk: u64,
        blks_copied: u64,
    }
}

impl Zero for ZapTablePhys {
    const ZERO: Self = ZapTablePhys { blk: 0, numblks: 0, shift: 0, nextblk: 0, blks_copied: 0 };
}

phys! {
    /// The header of a fat ZAP.
    pub struct ZapPhys("zap_phys") {
        block_type: u64,
        magic: u64,
        ptrtbl: ZapTablePhys,
        /// The next block of the object that was never used.
        freeblk: u64,
        num_leafs: u64,
        num_entries: u64,
        salt: u64,
        normflags: u64,
        flags: u64,
    }
}

/// Bits that index the table inside the header block.
pub const fn embedded_ptrtbl_shift(block_shift: u32) -> u32 {
    block_shift.saturating_sub(4)
}

const S: &str = "zap_phys";

impl ZapPhys {
    /// Reads and checks the header of a block.
    pub fn parse(block: &[u8], order: ByteOrder) -> Result<ZapPhys> {
        let bs = block_shift(S, block.len())?;
        let z = ZapPhys::decode(block, order)?;
        if z.block_type != ZBT_HEADER {
            let problem = Problem::Magic { found: z.block_type, wanted: ZBT_HEADER };
            return Err(FormatError::new(S, "zap_block_type", 0, problem));
        }
        if z.magic != ZAP_MAGIC {
            return Err(FormatError::new(
                S,
                "zap_magic",
                8,
                Problem::Magic { found: z.magic, wanted: ZAP_MAGIC },
            ));
        }
        let t = z.ptrtbl;
        let bad = |v, why| Err(FormatError::impossible(S, "zap_ptrtbl", 16, v, why));
        if t.shift > ZAP_MAX_TABLE_SHIFT {
            return bad(t.shift, "shift over 48");
        }
        if t.numblks == 0 {
            if t.shift != u64::from(embedded_ptrtbl_shift(bs)) {
                return bad(t.shift, "shift of a table in the header");
            }
        } else if t.numblks.checked_mul(block.len() as u64 / 8) != Some(1 << t.shift) {
            return bad(t.numblks, "blocks and shift disagree");
        }
        if z.flags & !ZAP_FLAGS_ALL != 0 {
            return Err(FormatError::impossible(S, "zap_flags", 96, z.flags, "unknown flags"));
        }
        Ok(z)
    }

    /// Makes a block the header of a new fat ZAP whose one leaf is block 1.
    pub fn init(block: &mut [u8], salt: u64, normflags: u64, flags: u64) -> Result<ZapPhys> {
        let bs = block_shift(S, block.len())?;
        let z = ZapPhys {
            block_type: ZBT_HEADER,
            magic: ZAP_MAGIC,
            ptrtbl: ZapTablePhys { shift: u64::from(embedded_ptrtbl_shift(bs)), ..Default::default() },
            freeblk: 2,
            num_leafs: 1,
            num_entries: 0,
            salt,
            normflags,
            flags,
        };
        block.fill(0);
        z.store(block)?;
        for i in 0..1u64 << embedded_ptrtbl_shift(bs) {
            set_embedded_leaf(block, i, 1)?;
        }
        Ok(z)
    }

    /// Writes the header back to the front of its block; the table behind it stays.
    pub fn store(&self, block: &mut [u8]) -> Result<()> {
        let problem = Problem::NoSpace { need: Self::SIZE, have: block.len() };
        put_at(block, 0, &self.encode()).ok_or(FormatError::new(S, "", 0, problem))
    }

    /// The table lies in the header block.
    pub const fn is_embedded(&self) -> bool {
        self.ptrtbl.numblks == 0
    }

    /// The entry of the table that a hash belongs to.
    pub const fn index(&self, hash: u64) -> u64 {
        if self.ptrtbl.shift == 0 { 0 } else { hash >> (64 - self.ptrtbl.shift) }
    }

    /// Block of the object, and entry in that block, where entry `index` of an outside table lies.
    pub const fn table_block(&self, index: u64, block_shift: u32) -> (u64, usize) {
        let per = block_shift.saturating_sub(3);
        (self.ptrtbl.blk.wrapping_add(index >> per), (index & ((1 << per) - 1)) as usize)
    }
}

fn embedded_offset(block: &[u8], index: u64) -> Result<usize> {
    let half = block.len() / 2;
    let at = half.saturating_add((index as usize).saturating_mul(8));
    if at >= block.len() {
        return Err(FormatError::impossible(S, "ptrtbl entry", half, index, "beyond the table"));
    }
    Ok(at)
}

/// Entry `index` of the table in a header block: the number of a leaf's block.
pub fn embedded_leaf(block: &[u8], index: u64, order: ByteOrder) -> Result<u64> {
    let at = embedded_offset(block, index)?;
    u64_at(block, at, order).ok_or(FormatError::new(S, "ptrtbl entry", at, Problem::Missing))
}

pub fn set_embedded_leaf(block: &mut [u8], index: u64, blkid: u64) -> Result<()> {
    let at = embedded_offset(block, index)?;
    put_at(block, at, &blkid.to_ne_bytes()).ok_or(FormatError::new(S, "ptrtbl entry", at, Problem::Missing))
}

/// Entry `index` of a block of an outside table.
pub fn table_leaf(block: &[u8], index: usize, order: ByteOrder) -> Result<u64> {
    let at = index.saturating_mul(8);
    u64_at(block, at, order).ok_or(FormatError::new("zap ptrtbl", "entry", at, Problem::Missing))
}

pub fn set_table_leaf(block: &mut [u8], index: usize, blkid: u64) -> Result<()> {
    let at = index.saturating_mul(8);
    put_at(block, at, &blkid.to_ne_bytes()).ok_or(FormatError::new(
        "zap ptrtbl",
        "entry",
        at,
        Problem::Missing,
    ))
}
