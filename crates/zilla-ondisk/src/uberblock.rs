//! The uberblock: root of a pool, one per slot of the ring in each label.
//!
//! The active uberblock is the one of the highest txg (then timestamp, then multihost sequence)
//! whose slot checksum is right. Because a slot is only overwritten after a whole lap of the ring,
//! a torn write loses one uberblock and the pool opens at the txg before.

use crate::blkptr::BlkPtr;
use crate::bytes::{Field, Phys, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// "oo-ba-bloc!"
pub const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// "all-see-all"
pub const MMP_MAGIC: u64 = 0xa11c_ea11;

const MMP_INTERVAL_VALID: u64 = 1;
const MMP_SEQ_VALID: u64 = 2;
const MMP_FAIL_INT_VALID: u64 = 4;

phys! {
    /// One uberblock, as every version since the first has begun it.
    pub struct Uberblock("uberblock") {
        magic: u64,
        /// Pool version: 1..=28, or 5000 for feature flags.
        version: u64,
        /// The txg this uberblock ended.
        txg: u64,
        /// Sum of the guids of all vdevs: an import with another sum misses a device.
        guid_sum: u64,
        /// Seconds since 1970.
        timestamp: u64,
        /// The MOS.
        rootbp: BlkPtr,
        /// Highest version the writing software knew.
        software_version: u64,
        mmp_magic: u64,
        /// Nanoseconds since the last multihost write; 0 says multihost is off.
        mmp_delay: u64,
        mmp_config: u64,
        /// Not zero in an uberblock that was kept as a checkpoint: the txg it had.
        checkpoint_txg: u64,
        raidz_reflow_info: u64,
    }
}

impl Uberblock {
    /// Reads the uberblock of a slot, in the order its magic number tells.
    pub fn decode_slot(slot: &[u8]) -> Result<(Uberblock, ByteOrder)> {
        let native = Uberblock::decode(slot, ByteOrder::NATIVE)?;
        let order = ByteOrder::NATIVE.swapped();
        let other = Uberblock::decode(slot, order)?;
        for (ub, order) in [(native, ByteOrder::NATIVE), (other, order)] {
            if ub.magic != UBERBLOCK_MAGIC {
                continue;
            }
            if ub.txg > crate::MAX_TXG {
                return Err(FormatError::impossible(
                    "uberblock",
                    "txg",
                    16,
                    ub.txg,
                    "beyond any pool's life",
                ));
            }
            return Ok((ub, order));
        }
        let problem = Problem::Magic { found: native.magic, wanted: UBERBLOCK_MAGIC };
        Err(FormatError::new("uberblock", "magic", 0, problem))
    }

    /// Fills a slot of the ring: the uberblock at its front, zeros to its end. The caller then
    /// seals the embedded checksum, which takes the last 40 bytes.
    pub fn encode_slot(&self, slot: &mut [u8]) -> Result<()> {
        let (need, have) = (Self::SIZE + crate::label::ECK_SIZE, slot.len());
        if have < need {
            return Err(FormatError::new("uberblock", "slot", 0, Problem::NoSpace { need, have }));
        }
        slot.fill(0);
        if let Some(front) = slot.get_mut(..Self::SIZE) {
            front.copy_from_slice(&self.encode());
        }
        Ok(())
    }

    /// Orders uberblocks as an import chooses: the greatest is the active one.
    pub fn rank(&self) -> (u64, u64, u16) {
        (self.txg, self.timestamp, self.mmp_seq().unwrap_or(0))
    }

    pub const fn mmp_valid(&self) -> bool {
        self.magic == UBERBLOCK_MAGIC && self.mmp_magic == MMP_MAGIC
    }

    const fn mmp_bits(&self, valid: u64, shift: u32, mask: u64) -> Option<u64> {
        if self.mmp_valid() && self.mmp_config & valid != 0 {
            Some((self.mmp_config >> shift) & mask)
        } else {
            None
        }
    }

    /// Multihost write interval in milliseconds.
    pub fn mmp_interval(&self) -> Option<u32> {
        self.mmp_bits(MMP_INTERVAL_VALID, 8, 0xff_ffff).map(|v| v as u32)
    }

    /// Counts multihost writes within one second.
    pub fn mmp_seq(&self) -> Option<u16> {
        self.mmp_bits(MMP_SEQ_VALID, 32, 0xffff).map(|v| v as u16)
    }

    pub fn mmp_fail_intervals(&self) -> Option<u16> {
        self.mmp_bits(MMP_FAIL_INT_VALID, 48, 0xffff).map(|v| v as u16)
    }

    /// Written between two txgs, to show that the pool is in use.
    pub fn is_heartbeat(&self) -> bool {
        self.mmp_delay != 0 && self.mmp_seq().is_some_and(|seq| seq > 0)
    }

    /// Writes the three multihost numbers and their valid bits.
    pub fn set_mmp_config(&mut self, interval_ms: u32, seq: u16, fail_intervals: u16) {
        self.mmp_config = (u64::from(interval_ms & 0xff_ffff) << 8)
            | (u64::from(seq) << 32)
            | (u64::from(fail_intervals) << 48)
            | MMP_INTERVAL_VALID
            | MMP_SEQ_VALID
            | MMP_FAIL_INT_VALID;
    }

    /// How far a RAID-Z expansion has moved the data, in bytes.
    pub const fn reflow_offset(&self) -> u64 {
        (self.raidz_reflow_info & ((1 << 55) - 1)) << crate::SPA_MINBLOCKSHIFT
    }

    /// Writes both: the offset, in whole 512s, and the state.
    pub fn set_reflow(&mut self, scratch_state: u16, offset: u64) {
        self.raidz_reflow_info = (u64::from(scratch_state) << 55) | (offset >> crate::SPA_MINBLOCKSHIFT);
    }

    /// State of the scratch area of a RAID-Z expansion.
    pub const fn reflow_scratch_state(&self) -> u16 {
        (self.raidz_reflow_info >> 55) as u16
    }
}
