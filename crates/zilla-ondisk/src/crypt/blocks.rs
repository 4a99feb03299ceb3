//! Blocks of dnodes, of the intent log, and of pointers.

use super::{Parts, bp_auth};
use crate::blkptr::BlkPtr;
use crate::bytes::{Field, u64_at};
use crate::dnode::{DNODE_CORE_SIZE, DNODE_FLAG_SPILL_BLKPTR, DNODE_MIN_SIZE, DNODE_SHIFT};
use crate::error::{FormatError, Problem, Result};
use crate::label::EckPhys;
use crate::object_type::is_encrypted;
use crate::order::ByteOrder;
use crate::zil::ZilChainPhys;
use std::ops::Range;

const BLKPTR_SIZE: usize = BlkPtr::SIZE;

/// Where things are in a dnode's core. Source: dnode_phys_t in sys/dnode.h.
const DN_TYPE: usize = 0;
const DN_NBLKPTR: usize = 3;
const DN_BONUSTYPE: usize = 4;
const DN_FLAGS: usize = 7;
const DN_BONUSLEN: usize = 10;
const DN_EXTRA_SLOTS: usize = 12;
const DN_USED: Range<usize> = 24..32;

/// A record's common head, and where the plain part of two kinds of records is. Source: lr_t,
/// lr_write_t and lr_clone_range_t in sys/zil.h.
const LR_SIZE: usize = 32;
const LR_WRITE_BLKPTR: usize = 64;
const LR_CLONE_NBPS: usize = 64;
const TX_WRITE: u64 = 9;
const TX_CLONE_RANGE: u64 = 24;

/// A dnode's own part of what its code covers: the core without what belongs to this pool, then its
/// pointers. `numbers` swaps the core's numbers to little endian where the code wants them so.
pub(super) fn dnode_auth(
    dn: &[u8],
    order: ByteOrder,
    version: u64,
    little: bool,
    out: &mut Vec<u8>,
) -> Result<()> {
    let truncated = FormatError::new(
        "dnode_phys",
        "dn_nblkptr",
        0,
        Problem::Truncated { need: DNODE_MIN_SIZE, have: dn.len() },
    );
    let mut core = *dn.first_chunk::<DNODE_CORE_SIZE>().ok_or(truncated)?;
    if little && order == ByteOrder::Big {
        for field in [8..10, 10..12, 16..24] {
            if let Some(bytes) = core.get_mut(field) {
                bytes.reverse();
            }
        }
    }
    let flags = core.get(DN_FLAGS).copied().unwrap_or(0);
    if let Some(at) = core.get_mut(DN_FLAGS) {
        *at = flags & DNODE_FLAG_SPILL_BLKPTR;
    }
    if let Some(used) = core.get_mut(DN_USED) {
        used.fill(0);
    }
    out.extend_from_slice(&core);
    let count = usize::from(core.get(DN_NBLKPTR).copied().unwrap_or(0));
    for i in 0..count {
        let at = DNODE_CORE_SIZE + i * BLKPTR_SIZE;
        let bp = BlkPtr::decode(dn.get(at..).unwrap_or_default(), order).map_err(|_| truncated)?;
        bp_auth(&bp, version, out);
    }
    if flags & DNODE_FLAG_SPILL_BLKPTR != 0 {
        let at = dn.len().checked_sub(BLKPTR_SIZE).ok_or(truncated)?;
        bp_auth(&BlkPtr::decode(dn.get(at..).unwrap_or_default(), order)?, version, out);
    }
    Ok(())
}

/// A block of dnodes, in whichever order it is on disk.
pub fn dnode_block(block: &[u8], order: ByteOrder, version: u64) -> Result<Parts> {
    let mut parts = Parts::default();
    let mut at = 0;
    while at + DNODE_MIN_SIZE <= block.len() {
        let byte = |off: usize| block.get(at + off).copied().unwrap_or(0);
        let slots = usize::from(byte(DN_EXTRA_SLOTS)) + 1;
        let end = at + (slots << DNODE_SHIFT);
        let bad = |field, value, why| FormatError::impossible("dnode_phys", field, at, value, why);
        let dn = block.get(at..end).ok_or(bad("dn_extra_slots", slots as u64, "reaches out of the block"))?;
        let spill = if byte(DN_FLAGS) & DNODE_FLAG_SPILL_BLKPTR != 0 { BLKPTR_SIZE } else { 0 };
        let bonus = DNODE_CORE_SIZE + usize::from(byte(DN_NBLKPTR)) * BLKPTR_SIZE;
        let (from, to) = (at + bonus, end - spill);
        if from > to {
            return Err(bad("dn_nblkptr", byte(DN_NBLKPTR).into(), "leaves no room for a bonus"));
        }
        dnode_auth(dn, order, version, false, &mut parts.aad)?;
        let has_bonus = byte(DN_BONUSLEN) != 0 || byte(DN_BONUSLEN + 1) != 0;
        if byte(DN_TYPE) != 0 && is_encrypted(byte(DN_BONUSTYPE)) && has_bonus {
            parts.secret.push(from..to);
        } else {
            parts.aad.extend_from_slice(block.get(from..to).unwrap_or_default());
        }
        at = end;
    }
    Ok(parts)
}

/// A block of an intent log (of kind `zilog2`, the only one that is ever encrypted).
pub fn log_block(block: &[u8], order: ByteOrder) -> Result<Parts> {
    let bad = |field, off, value, why| FormatError::impossible("zil_chain", field, off, value, why);
    let nused = u64_at(block, 8 + BLKPTR_SIZE, order).unwrap_or(0);
    let used = usize::try_from(nused).ok().filter(|n| (ZilChainPhys::SIZE..=block.len()).contains(n));
    let used = used.ok_or(bad("zc_nused", 8 + BLKPTR_SIZE, nused, "not within the block"))?;
    let plain = |range: Range<usize>| block.get(range).unwrap_or_default();
    let mut parts = Parts { aad: plain(0..ZilChainPhys::SIZE - EckPhys::SIZE).to_vec(), secret: Vec::new() };
    let mut at = ZilChainPhys::SIZE;
    while at < used {
        let (txtype, reclen) =
            (u64_at(block, at, order).unwrap_or(0), u64_at(block, at + 8, order).unwrap_or(0));
        let len = usize::try_from(reclen).ok().filter(|l| *l >= LR_SIZE && *l <= used - at);
        let end = at + len.ok_or(bad("lrc_reclen", at, reclen, "not within the block"))?;
        parts.aad.extend_from_slice(plain(at..at + LR_SIZE));
        let mut secret = |range: Range<usize>| {
            if !range.is_empty() {
                parts.secret.push(range);
            }
        };
        let from = at + LR_SIZE;
        match txtype {
            TX_WRITE => {
                let (bp, data) = (at + LR_WRITE_BLKPTR, at + LR_WRITE_BLKPTR + BLKPTR_SIZE);
                if data > end {
                    return Err(bad("lrc_reclen", at, reclen, "too short for a write"));
                }
                secret(from..bp);
                secret(data..end);
                parts.aad.extend_from_slice(plain(bp..data));
            }
            TX_CLONE_RANGE => {
                let bps = at + LR_CLONE_NBPS;
                if bps > end {
                    return Err(bad("lrc_reclen", at, reclen, "too short for a clone"));
                }
                secret(from..bps);
                parts.aad.extend_from_slice(plain(bps..end));
            }
            _ => secret(from..end),
        }
        at = end;
    }
    Ok(parts)
}

/// What the checksum of an indirect block's codes is taken of.
pub fn indirect_auth(block: &[u8], order: ByteOrder, version: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() / 4);
    for bp in BlkPtr::iter(block, order) {
        bp_auth(&bp, version, &mut out);
    }
    out
}
