//! The second-level cache's own structures: a header, and chained logs of what the device holds.
//!
//! The header lies behind the front labels, 512 bytes (padded to the device's sector), with an
//! embedded checksum. It points to the two newest log blocks; each log block points to the one two
//! before it, so that there are two chains which a rebuild can read at once. Log blocks are
//! LZ4-compressed and carry 1022 entries at most. Losing any of it loses cached data only.

use crate::bytes::{Field, Phys, Zero, phys};
use crate::error::{FormatError, Problem, Result};
use crate::label::EckPhys;
use crate::order::ByteOrder;
use crate::{Dva, SPA_MINBLOCKSHIFT};

/// "ZFSCACHE"
pub const L2ARC_DEV_HDR_MAGIC: u64 = 0x5a46_5343_4143_4845;
/// "LOGBLKHD"
pub const L2ARC_LOG_BLK_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
pub const L2ARC_PERSISTENT_VERSION: u64 = 1;
pub const L2ARC_LOG_BLK_MAX_ENTRIES: usize = 1022;
pub const L2ARC_LOG_BLK_SIZE: usize = 64 << 10;
pub const L2ARC_DEV_HDR_EVICT_FIRST: u64 = 1;

/// The word of sizes and kinds in log pointers and entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct L2Prop(pub u64);

impl L2Prop {
    const fn bits(self, at: u32, len: u32) -> u64 {
        (self.0 >> at) & ((1 << len) - 1)
    }

    const fn set(self, at: u32, len: u32, v: u64) -> L2Prop {
        let mask = ((1u64 << len) - 1) << at;
        L2Prop((self.0 & !mask) | ((v << at) & mask))
    }

    pub const fn lsize(self) -> u64 {
        (self.bits(0, 16) + 1) << SPA_MINBLOCKSHIFT
    }

    pub const fn psize(self) -> u64 {
        (self.bits(16, 16) + 1) << SPA_MINBLOCKSHIFT
    }

    pub const fn compress(self) -> u8 {
        self.bits(32, 7) as u8
    }

    pub const fn prefetch(self) -> bool {
        self.bits(39, 1) != 0
    }

    pub const fn checksum(self) -> u8 {
        self.bits(40, 8) as u8
    }

    /// Whether it is metadata. 1 is data, 2 metadata; OpenZFS stops the machine at any other value.
    pub const fn metadata(self) -> Option<bool> {
        match self.bits(48, 8) {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        }
    }

    pub const fn protected(self) -> bool {
        self.bits(56, 1) != 0
    }

    /// The ARC list it came from.
    pub const fn state(self) -> u8 {
        self.bits(57, 4) as u8
    }

    /// Sizes are multiples of 512, at least 512.
    #[must_use]
    pub const fn with_sizes(self, lsize: u64, psize: u64) -> L2Prop {
        self.set(0, 16, (lsize >> SPA_MINBLOCKSHIFT).wrapping_sub(1)).set(
            16,
            16,
            (psize >> SPA_MINBLOCKSHIFT).wrapping_sub(1),
        )
    }

    #[must_use]
    pub const fn with_compress(self, v: u8) -> L2Prop {
        self.set(32, 7, v as u64)
    }

    #[must_use]
    pub const fn with_checksum(self, v: u8) -> L2Prop {
        self.set(40, 8, v as u64)
    }

    #[must_use]
    pub const fn with_kind(self, metadata: bool, protected: bool, prefetch: bool, state: u8) -> L2Prop {
        self.set(48, 8, metadata as u64 + 1).set(56, 1, protected as u64).set(39, 1, prefetch as u64).set(
            57,
            4,
            state as u64,
        )
    }
}

impl Zero for L2Prop {
    const ZERO: Self = L2Prop(0);
}

impl Field for L2Prop {
    const SIZE: usize = 8;

    fn read(r: &mut crate::bytes::Reader<'_>, field: &'static str) -> Result<Self> {
        r.u64(field).map(L2Prop)
    }

    fn write(&self, w: &mut crate::bytes::Writer) {
        w.u64(self.0);
    }
}

phys! {
    /// Where a log block is.
    pub struct L2LogBlkptr("l2arc_log_blkptr") {
        daddr: u64,
        /// Device bytes of the buffers that the log lists, and where the first is.
        payload_asize: u64,
        payload_start: u64,
        prop: L2Prop,
        cksum: [u64; 4],
    }
}

impl Zero for L2LogBlkptr {
    const ZERO: Self =
        L2LogBlkptr { daddr: 0, payload_asize: 0, payload_start: 0, prop: L2Prop(0), cksum: [0; 4] };
}

phys! {
    /// The device's header.
    pub struct L2DevHdrPhys("l2arc_dev_hdr_phys") {
        magic: u64,
        version: u64,
        spa_guid: u64,
        vdev_guid: u64,
        /// Entries of each log block.
        log_entries: u64,
        evict: u64,
        flags: u64,
        start: u64,
        end: u64,
        /// Newest log block, and the one before it.
        start_lbps: [L2LogBlkptr; 2],
        lb_asize: u64,
        lb_count: u64,
        trim_action_time: u64,
        trim_state: u64,
        pad: [u64; 30],
        tail: EckPhys,
    }
}

phys! {
    /// One cached buffer.
    pub struct L2LogEntPhys("l2arc_log_ent_phys") {
        dva_words: [u64; 2],
        birth: u64,
        prop: L2Prop,
        daddr: u64,
        complevel: u64,
        pad: [u64; 2],
    }
}

impl L2LogEntPhys {
    pub const fn dva(&self) -> Dva {
        Dva::from_words(self.dva_words)
    }
}

phys! {
    /// What stands before the entries of a log block.
    pub struct L2LogBlkHead("l2arc_log_blk_phys") {
        magic: u64,
        /// The log block two before this one.
        prev_lbp: L2LogBlkptr,
        pad: [u64; 7],
    }
}

fn order_of(raw: &[u8], magic: u64, structure: &'static str) -> Result<ByteOrder> {
    let found = crate::bytes::u64_at(raw, 0, ByteOrder::NATIVE).unwrap_or(0);
    if found == magic {
        Ok(ByteOrder::NATIVE)
    } else if found.swap_bytes() == magic {
        Ok(ByteOrder::NATIVE.swapped())
    } else {
        Err(FormatError::new(structure, "magic", 0, Problem::Magic { found, wanted: magic }))
    }
}

impl L2DevHdrPhys {
    /// Reads a header; its magic tells the byte order.
    pub fn parse(raw: &[u8]) -> Result<(L2DevHdrPhys, ByteOrder)> {
        let order = order_of(raw, L2ARC_DEV_HDR_MAGIC, Self::NAME)?;
        Ok((L2DevHdrPhys::decode(raw, order)?, order))
    }
}

/// A decompressed log block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct L2LogBlk {
    pub prev_lbp: L2LogBlkptr,
    pub entries: Vec<L2LogEntPhys>,
}

impl L2LogBlk {
    /// Reads the first `entries` of a log block; how many it has, the header of the device says.
    pub fn parse(raw: &[u8], entries: usize) -> Result<L2LogBlk> {
        let order = order_of(raw, L2ARC_LOG_BLK_MAGIC, L2LogBlkHead::NAME)?;
        let head = L2LogBlkHead::decode(raw, order)?;
        let n = entries.min(L2ARC_LOG_BLK_MAX_ENTRIES);
        let body = raw.get(L2LogBlkHead::SIZE..).unwrap_or_default();
        let need = n * L2LogEntPhys::SIZE;
        let problem = Problem::Truncated { need, have: body.len() };
        let body =
            body.get(..need).ok_or(FormatError::new(L2LogBlkHead::NAME, "lb_entries", 128, problem))?;
        let entries = body.chunks_exact(L2LogEntPhys::SIZE).map(|e| L2LogEntPhys::decode(e, order));
        Ok(L2LogBlk { prev_lbp: head.prev_lbp, entries: entries.collect::<Result<_>>()? })
    }

    /// The 64K of a log block, before compression.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (need, have) = (self.entries.len(), L2ARC_LOG_BLK_MAX_ENTRIES);
        if need > have {
            return Err(FormatError::new(
                L2LogBlkHead::NAME,
                "lb_entries",
                128,
                Problem::NoSpace { need, have },
            ));
        }
        let mut w = crate::bytes::Writer::native(L2ARC_LOG_BLK_SIZE);
        let head = L2LogBlkHead { magic: L2ARC_LOG_BLK_MAGIC, prev_lbp: self.prev_lbp, ..Default::default() };
        head.write(&mut w);
        self.entries.iter().for_each(|e| e.write(&mut w));
        w.pad_to(L2ARC_LOG_BLK_SIZE);
        Ok(w.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_openzfs_s() {
        assert_eq!(L2DevHdrPhys::SIZE, 512);
        assert_eq!(L2LogBlkHead::SIZE + L2ARC_LOG_BLK_MAX_ENTRIES * L2LogEntPhys::SIZE, L2ARC_LOG_BLK_SIZE);
        assert_eq!(L2LogEntPhys::SIZE, 64);
    }

    #[test]
    fn log_blocks_round_trip() {
        let prop =
            L2Prop::default().with_sizes(131072, 512).with_compress(15).with_kind(true, true, false, 3);
        assert_eq!(
            (prop.lsize(), prop.psize(), prop.compress(), prop.metadata()),
            (131072, 512, 15, Some(true))
        );
        // `L2BLK_SET_TYPE` of OpenZFS 2.3.
        assert_eq!(L2Prop::default().with_kind(false, false, false, 0), L2Prop(1 << 48));
        assert_eq!(L2Prop::default().with_kind(true, false, false, 0), L2Prop(2 << 48));
        assert_eq!(L2Prop(0).metadata(), None);
        let e = L2LogEntPhys { birth: 9, prop, daddr: 4 << 20, ..Default::default() };
        let blk = L2LogBlk { prev_lbp: L2LogBlkptr { daddr: 7, ..Zero::ZERO }, entries: vec![e; 3] };
        let raw = blk.encode().unwrap();
        assert_eq!(L2LogBlk::parse(&raw, 3).unwrap(), blk);
        let mut swapped = raw.clone();
        swapped.as_chunks_mut::<8>().0.iter_mut().for_each(|w| w.reverse());
        assert_eq!(L2LogBlk::parse(&swapped, 3).unwrap(), blk);
        assert!(L2LogBlk::parse(&raw[..1024], 1022).is_err());
    }
}
