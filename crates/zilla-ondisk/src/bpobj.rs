//! Lists of block pointers: what a snapshot keeps from being freed, what is to be freed later.
//!
//! The object's contents are pointers; its bonus counts them and their space. A bpobj may also own
//! others (its *subobjs*: an object whose contents are object numbers), so that lists are joined
//! without copying. The bonus has grown with pool versions, and its length tells which fields it
//! has.

use crate::blkptr::BlkPtr;
use crate::bytes::{Field, Phys, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// Without accounting of compressed and uncompressed sizes; without subobjs; without a count of
/// frees; with all.
pub const BPOBJ_SIZE_V0: usize = 16;
pub const BPOBJ_SIZE_V1: usize = 32;
pub const BPOBJ_SIZE_V2: usize = 48;
pub const BPOBJ_SIZE_V3: usize = 56;

phys! {
    /// The bonus of a list of block pointers.
    pub struct BpobjPhys("bpobj_phys") {
        num_blkptrs: u64,
        bytes: u64,
        comp: u64,
        uncomp: u64,
        subobjs: u64,
        num_subobjs: u64,
        /// Of the pointers, those that stand for a free (livelists).
        num_freed: u64,
    }
}

impl BpobjPhys {
    /// Reads a bonus of any of the lengths it has had; the fields it lacks are 0.
    pub fn from_bonus(bonus: &[u8], order: ByteOrder) -> Result<BpobjPhys> {
        if bonus.len() < BPOBJ_SIZE_V0 {
            let problem = Problem::Truncated { need: BPOBJ_SIZE_V0, have: bonus.len() };
            return Err(FormatError::new("bpobj_phys", "bpo_num_blkptrs", 0, problem));
        }
        let mut whole = [0; BPOBJ_SIZE_V3];
        let n = bonus.len().min(BPOBJ_SIZE_V3) & !7;
        crate::bytes::put_at(&mut whole, 0, bonus.get(..n).unwrap_or_default());
        let p = BpobjPhys::decode(&whole, order)?;
        FormatError::counters(
            "bpobj_phys",
            &[("bpo_bytes", p.bytes), ("bpo_comp", p.comp), ("bpo_uncomp", p.uncomp)],
        )?;
        Ok(p)
    }

    /// The bonus, in the length it has.
    pub fn to_bonus(&self, len: usize) -> Vec<u8> {
        let mut out = self.encode();
        out.truncate(len.min(Self::SIZE));
        out
    }
}

/// A pointer as it is put into a list: without what is not needed to free the block, so that lists
/// compress well. `freed` marks the entry of a livelist that cancels an earlier one.
pub fn stored(bp: &BlkPtr, freed: bool) -> BlkPtr {
    let mut out = *bp;
    if bp.is_embedded() {
        // The payload goes; what stays accounts for the uncompressed size.
        let birth = bp.birth();
        out = BlkPtr::ZERO;
        let (prop, from) = (out.0.get_mut(6), bp.0.get(6));
        if let (Some(p), Some(f)) = (prop, from) {
            *p = *f;
        }
        out.set_birth(birth);
    } else if !bp.dedup() {
        out.set_cksum([0; 4]);
    }
    if let Some(fill) = out.0.get_mut(11) {
        *fill = 0;
    }
    out.set_free_bit(freed);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_of_bonus() {
        let full = BpobjPhys {
            num_blkptrs: 1,
            bytes: 2,
            comp: 3,
            uncomp: 4,
            subobjs: 5,
            num_subobjs: 6,
            num_freed: 7,
        };
        assert_eq!(BpobjPhys::from_bonus(&full.to_bonus(100), ByteOrder::NATIVE).unwrap(), full);
        let v0 = BpobjPhys::from_bonus(&full.to_bonus(BPOBJ_SIZE_V0), ByteOrder::NATIVE).unwrap();
        assert_eq!(v0, BpobjPhys { num_blkptrs: 1, bytes: 2, ..Default::default() });
        assert!(BpobjPhys::from_bonus(&[0; 8], ByteOrder::NATIVE).is_err());
    }

    #[test]
    fn stored_pointers_lose_their_checksum() {
        let mut bp = BlkPtr::ZERO;
        bp.set_dva(0, crate::Dva { vdev: 1, offset: 512, asize: 512, gang: false });
        bp.set_cksum([1, 2, 3, 4]);
        bp.set_fill(9);
        let s = stored(&bp, true);
        assert_eq!((s.cksum(), s.fill(), s.free_bit(), s.dva(0)), ([0; 4], 1, true, bp.dva(0)));
        let e = BlkPtr::embedded(&[1; 20], 2, 20, 19, 0, 7).unwrap();
        let s = stored(&e, false);
        assert!(s.is_embedded() && s.embedded_data() == [0; 112]);
        assert_eq!((s.embedded_lsize(), s.birth()), (20, 7));
    }
}
