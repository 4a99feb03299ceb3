//! Gang headers: a block that stands for others, where no run of free space was long enough for it.
//!
//! Up to three pointers, then the embedded checksum in the last 40 bytes. A child may be a gang
//! again.

use crate::blkptr::{BLKPTR_SIZE, BlkPtr};
use crate::bytes::{Field, Phys};
use crate::error::{FormatError, Problem, Result};
use crate::label::{ECK_SIZE, EckPhys};
use crate::order::ByteOrder;

pub const SPA_GANGBLOCKSIZE: usize = 512;
pub const SPA_GBH_NBLKPTRS: usize = 3;

/// A gang header's contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GangHeader {
    pub bps: [BlkPtr; SPA_GBH_NBLKPTRS],
    pub tail: EckPhys,
}

impl GangHeader {
    pub fn decode(block: &[u8], order: ByteOrder) -> Result<GangHeader> {
        let problem = Problem::Truncated { need: SPA_GANGBLOCKSIZE, have: block.len() };
        let short = FormatError::new("zio_gbh_phys", "", 0, problem);
        let tail = block.get(SPA_GANGBLOCKSIZE - ECK_SIZE..).ok_or(short)?;
        let mut bps = [BlkPtr::ZERO; SPA_GBH_NBLKPTRS];
        for (i, bp) in bps.iter_mut().enumerate() {
            *bp = BlkPtr::at(block, i, order)?;
        }
        Ok(GangHeader { bps, tail: EckPhys::decode(tail, order)? })
    }

    /// A header's block of 512 bytes with these children, its checksum still to be sealed.
    pub fn encode(bps: &[BlkPtr]) -> Result<[u8; SPA_GANGBLOCKSIZE]> {
        let (need, have) = (bps.len() * BLKPTR_SIZE, SPA_GBH_NBLKPTRS * BLKPTR_SIZE);
        let full = FormatError::new("zio_gbh_phys", "zg_blkptr", 0, Problem::NoSpace { need, have });
        let mut out = [0; SPA_GANGBLOCKSIZE];
        if need > have {
            return Err(full);
        }
        for (i, bp) in bps.iter().enumerate() {
            crate::bytes::put_at(&mut out, i * BlkPtr::SIZE, &bp.encode()).ok_or(full)?;
        }
        Ok(out)
    }

    /// Children that are there: an unused place is a hole.
    pub fn children(&self) -> impl Iterator<Item = &BlkPtr> {
        self.bps.iter().filter(|bp| !bp.is_hole())
    }
}
