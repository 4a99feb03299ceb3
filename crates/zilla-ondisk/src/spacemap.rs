//! Space maps: a log of allocations and frees of one metaslab, or of a whole pool for one txg.
//!
//! ```text
//! debug     1 0 | action:2 | sync pass:10 | txg:50
//! one word  0 | offset:47 | free:1 | run-1:15
//! two words 1 1 | 0:2 | run-1:36 | vdev:24     free:1 | offset:63
//! ```
//!
//! Offsets count from the map's start, both in units of 2^shift. A two-word entry never crosses the
//! end of a block; an empty debug word fills the gap. Appending is all that ever happens, and the
//! length in the bonus is written in the same txg: what lies behind the length is of a txg that
//! never was.
//!
//! With the feature `log_spacemap` the changes of a txg to all metaslabs go into one map, whose
//! entries name their vdev. The ZAP `com.delphix:log_spacemap_zap` in the MOS maps the txg (hex) to
//! the map's object, and each metaslab's [`MetaslabUnflushedPhys`], in an array object of its
//! vdev's ZAP, says which txgs it still needs.

use crate::bytes::{Phys, Writer, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

pub const SPACE_MAP_HISTOGRAM_SIZE: usize = 32;
/// Bonus without histogram.
pub const SPACE_MAP_SIZE_V0: usize = 24;
/// `sm_blksz` of new maps: the data block of their objects.
pub const SPACE_MAP_INITIAL_BLOCKSIZE: u64 = 4 << 10;
const S: &str = "space_map";

phys! {
    /// The bonus of a space map's object.
    pub struct SpaceMapPhys("space_map_phys") {
        object: u64,
        /// Bytes of the log.
        length: u64,
        /// Space allocated, as a signed number of bytes: a map of frees only is negative.
        alloc: u64,
        pad: [u64; 5],
        /// Free segments by size: bucket i counts those of 2^(i+shift) bytes and more.
        histogram: [u64; SPACE_MAP_HISTOGRAM_SIZE],
    }
}

phys! {
    /// The first txg whose log a metaslab has not flushed.
    pub struct MetaslabUnflushedPhys("metaslab_unflushed_phys") {
        unflushed_txg: u64,
    }
}

impl SpaceMapPhys {
    /// Reads a bonus, of either length.
    pub fn from_bonus(bonus: &[u8], order: ByteOrder) -> Result<SpaceMapPhys> {
        let full = <SpaceMapPhys as crate::bytes::Field>::SIZE;
        if bonus.len() >= full || bonus.len() < SPACE_MAP_SIZE_V0 {
            return SpaceMapPhys::decode(bonus, order);
        }
        let mut whole = vec![0; full];
        crate::bytes::put_at(&mut whole, 0, bonus.get(..SPACE_MAP_SIZE_V0).unwrap_or_default());
        SpaceMapPhys::decode(&whole, order)
    }

    /// The bonus, in the length it has: with histogram or without.
    pub fn to_bonus(&self, len: usize) -> Vec<u8> {
        let mut out = self.encode();
        out.truncate(if len < out.len() { SPACE_MAP_SIZE_V0 } else { out.len() });
        out
    }

    pub const fn allocated(&self) -> i64 {
        self.alloc as i64
    }

    /// Adds free segments to the histogram: `counts[i]` of at least 2^i bytes. Those too long for
    /// the last bucket count there as often as they would fit in.
    pub fn histogram_add(&mut self, counts: &[u64], shift: u32) {
        for (i, n) in counts.iter().enumerate().skip(shift as usize) {
            let want = i - shift as usize;
            let idx = want.min(SPACE_MAP_HISTOGRAM_SIZE - 1);
            if let Some(h) = self.histogram.get_mut(idx) {
                *h = h.saturating_add(n.checked_shl((want - idx) as u32).unwrap_or(u64::MAX));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapType {
    Alloc = 0,
    Free = 1,
}

/// One entry, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceMapEntry {
    pub kind: MapType,
    /// Only entries of two words name one; in a metaslab's map it may be [`SM_NO_VDEVID`] cut to 24
    /// bits, 0.
    pub vdev: Option<u32>,
    pub offset: u64,
    pub run: u64,
    /// Of the last debug entry before this one.
    pub txg: u64,
    pub sync_pass: u32,
}

/// What `SM_NO_VDEVID` is in memory: no vdev at all.
pub const SM_NO_VDEVID: u32 = 1 << 24;

const SM_RUN_MAX: u64 = 1 << 15;
const SM_OFFSET_BITS: u32 = 47;
const SM2_RUN_MAX: u64 = 1 << 36;
const DEBUG_PREFIX: u64 = 2;
const TWO_PREFIX: u64 = 3;

const fn bits(v: u64, at: u32, len: u32) -> u64 {
    (v >> at) & ((1 << len) - 1)
}

/// Walks the entries of a map, or of some whole blocks of one.
#[derive(Clone, Debug)]
pub struct SpaceMapReader<'a> {
    words: &'a [[u8; 8]],
    pos: usize,
    order: ByteOrder,
    start: u64,
    shift: u32,
    txg: u64,
    sync_pass: u32,
}

impl<'a> SpaceMapReader<'a> {
    /// `start` and `shift` are the map's: for a metaslab its offset and the vdev's ashift, for a
    /// log 0 and 9.
    pub fn new(bytes: &'a [u8], order: ByteOrder, start: u64, shift: u32) -> SpaceMapReader<'a> {
        let words = bytes.as_chunks().0;
        SpaceMapReader { words, pos: 0, order, start, shift, txg: 0, sync_pass: 0 }
    }

    /// Goes on with the next blocks of the same map, the txg of the last debug entry being
    /// remembered.
    pub fn next_bytes(&mut self, bytes: &'a [u8]) {
        self.words = bytes.as_chunks().0;
        self.pos = 0;
    }

    fn word(&mut self) -> Option<u64> {
        let w = self.words.get(self.pos)?;
        self.pos += 1;
        Some(self.order.u64(*w))
    }

    fn entry(&self, kind: u64, vdev: Option<u32>, offset: u64, run: u64) -> Result<SpaceMapEntry> {
        let at = (self.pos.saturating_sub(1)) * 8;
        let scale = |v: u64| v.checked_mul(1u64.checked_shl(self.shift)?);
        let offset = scale(offset).and_then(|o| o.checked_add(self.start));
        let (Some(offset), Some(run)) = (offset, scale(run)) else {
            return Err(FormatError::impossible(S, "offset", at, run, "beyond 2^64"));
        };
        if offset.checked_add(run).is_none() {
            return Err(FormatError::impossible(S, "run", at, run, "beyond 2^64"));
        }
        let kind = if kind == 0 { MapType::Alloc } else { MapType::Free };
        Ok(SpaceMapEntry { kind, vdev, offset, run, txg: self.txg, sync_pass: self.sync_pass })
    }
}

impl Iterator for SpaceMapReader<'_> {
    type Item = Result<SpaceMapEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let e = self.word()?;
            return Some(match bits(e, 62, 2) {
                DEBUG_PREFIX => {
                    if bits(e, 0, 50) != 0 {
                        self.txg = bits(e, 0, 50);
                        self.sync_pass = bits(e, 50, 10) as u32;
                    }
                    continue;
                }
                TWO_PREFIX => match self.word() {
                    Some(second) => {
                        let vdev = Some(bits(e, 0, 24) as u32);
                        self.entry(second >> 63, vdev, bits(second, 0, 63), bits(e, 24, 36) + 1)
                    }
                    None => {
                        let problem = Problem::Truncated { need: 16, have: 8 };
                        Err(FormatError::new(S, "two-word entry", (self.pos - 1) * 8, problem))
                    }
                },
                _ => self.entry(bits(e, 15, 1), None, bits(e, 16, SM_OFFSET_BITS), bits(e, 0, 15) + 1),
            });
        }
    }
}

/// Makes the words that are appended to a map.
#[derive(Clone, Debug)]
pub struct SpaceMapWriter {
    w: Writer,
    length: u64,
    blksz: u64,
    start: u64,
    shift: u32,
    two_words: bool,
}

impl SpaceMapWriter {
    /// For a map of `length` bytes in blocks of `blksz`; `two_words` if the feature `spacemap_v2`
    /// is active.
    pub fn new(length: u64, blksz: u64, start: u64, shift: u32, two_words: bool) -> SpaceMapWriter {
        SpaceMapWriter { w: Writer::native(4096), length, blksz, start, shift, two_words }
    }

    /// Says which txg and pass the entries that follow are of.
    pub fn debug(&mut self, kind: MapType, sync_pass: u32, txg: u64) {
        let pass = u64::from(sync_pass).min((1 << 10) - 1);
        self.w.u64(DEBUG_PREFIX << 62 | (kind as u64) << 60 | pass << 50 | bits(txg, 0, 50));
    }

    /// Appends a segment, both bounds in bytes. Takes one word where one is enough, as many entries
    /// as the segment is long otherwise. An error when the map cannot express it.
    pub fn push(&mut self, kind: MapType, offset: u64, run: u64, vdev: Option<u32>) -> Result<()> {
        let mask = (1u64 << self.shift) - 1;
        let rel = offset.checked_sub(self.start);
        let bad = |why| FormatError::impossible(S, "segment", 0, offset, why);
        let rel = rel.ok_or(bad("before the map's start"))?;
        if rel & mask != 0 || run & mask != 0 {
            return Err(bad("not in the map's units"));
        }
        let (mut at, mut left) = (rel >> self.shift, run >> self.shift);
        let big = (at + left) >> SM_OFFSET_BITS != 0;
        if !self.two_words && (big || vdev.is_some()) {
            return Err(bad("needs two words"));
        }
        let two = self.two_words && (big || left > SM_RUN_MAX || vdev.is_some());
        while left > 0 {
            let n = left.min(if two { SM2_RUN_MAX } else { SM_RUN_MAX });
            if two {
                if (self.length + self.w.len() as u64) % self.blksz == self.blksz - 8 {
                    self.w.u64(DEBUG_PREFIX << 62);
                }
                // A map of one metaslab names no vdev: 2^24, of which 24 bits are 0.
                let vdev = u64::from(vdev.unwrap_or(0));
                self.w.u64(TWO_PREFIX << 62 | (n - 1) << 24 | bits(vdev, 0, 24));
                self.w.u64((kind as u64) << 63 | at);
            } else {
                self.w.u64(at << 16 | (kind as u64) << 15 | (n - 1));
            }
            at += n;
            left -= n;
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.w.len()
    }

    pub fn is_empty(&self) -> bool {
        self.w.is_empty()
    }

    /// The bytes to append at the map's length.
    pub fn finish(self) -> Vec<u8> {
        self.w.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_openzfs_s() {
        let mut w = SpaceMapWriter::new(0, 4096, 0, 9, true);
        w.debug(MapType::Alloc, 1, 4);
        w.push(MapType::Free, 0x400, 0x600, None).unwrap();
        let words: Vec<u64> = w.finish().as_chunks().0.iter().map(|c| u64::from_ne_bytes(*c)).collect();
        assert_eq!(words, [0x8004_0000_0000_0004, 2 << 16 | 1 << 15 | 2]);
    }

    #[test]
    fn two_words_do_not_cross_a_block() {
        let mut w = SpaceMapWriter::new(504, 512, 0, 9, true);
        w.push(MapType::Alloc, 0, 512, Some(3)).unwrap();
        let out = w.finish();
        assert_eq!(out.len(), 24);
        let e = SpaceMapReader::new(&out, ByteOrder::NATIVE, 0, 9).next().unwrap().unwrap();
        assert_eq!((e.vdev, e.offset, e.run), (Some(3), 0, 512));
        assert!(SpaceMapReader::new(&out[..16], ByteOrder::NATIVE, 0, 9).next().unwrap().is_err());
    }

    proptest! {
        #[test]
        fn round_trip(
            segs in prop::collection::vec((any::<bool>(), 0u64..1 << 50, 1u64..1 << 38, any::<Option<u16>>()), 0..40),
            shift in 9u32..13, v2 in any::<bool>(), length in 0u64..64,
        ) {
            let mut w = SpaceMapWriter::new(length * 8, 512, 0, shift, v2);
            w.debug(MapType::Alloc, 2, 99);
            let mut want = Vec::new();
            for (free, off, run, vdev) in segs {
                let (off, run) = if v2 { (off, run) } else { (off % (1 << 46), run % 100_000 + 1) };
                let vdev = vdev.filter(|_| v2).map(u32::from);
                let kind = if free { MapType::Free } else { MapType::Alloc };
                w.push(kind, off << shift, run << shift, vdev).unwrap();
                want.push((kind, off << shift, run << shift));
            }
            let out = w.finish();
            let mut got: Vec<(MapType, u64, u64)> = Vec::new();
            for e in SpaceMapReader::new(&out, ByteOrder::NATIVE, 0, shift) {
                let e = e.unwrap();
                prop_assert_eq!((e.txg, e.sync_pass), (99, 2));
                let at = got.len().saturating_sub(1);
                match got.last_mut() {
                    // Pieces of one long segment.
                    Some(l) if l.0 == e.kind && l.1 + l.2 == e.offset && want.get(at) != Some(l) => l.2 += e.run,
                    _ => got.push((e.kind, e.offset, e.run)),
                }
            }
            prop_assert_eq!(got, want);
        }

        #[test]
        fn garbage_never_panics(raw in prop::collection::vec(any::<u8>(), 0..200), shift in 0u32..70, start in any::<u64>()) {
            for order in [ByteOrder::Little, ByteOrder::Big] {
                SpaceMapReader::new(&raw, order, start, shift).for_each(drop);
            }
        }
    }
}
