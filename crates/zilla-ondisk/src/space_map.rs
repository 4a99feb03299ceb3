//! Space maps: logs of which parts of a device were allocated and freed.
//!
//! The object's bonus is a header ([`SpaceMapPhys`]); its blocks are words of 64 bits, appended to, in three kinds:
//!
//! ```text
//! debug      10 | action:2 | sync pass:10 | txg:50        says when what follows was written; all zero: padding
//! one word   0  | offset:47 | type:1 | run-1:15            in units of the map's shift
//! two words  11 | pad:2 | run-1:36 | vdev:24,  type:1 | offset:63
//! ```
//!
//! A two-word entry never straddles a block, so that every block can be read by itself. Entries of two words exist
//! only where the feature `spacemap_v2` is enabled; only log space maps, which are shared by all vdevs, name a vdev in them.

use crate::bytes::{Reader, Writer};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// Size of the header before the feature `spacemap_histogram`.
pub const SPACE_MAP_SIZE_V0: usize = 24;
/// Size of the header with a histogram.
pub const SPACE_MAP_SIZE: usize = 64 + 8 * SPACE_MAP_HISTOGRAM_SIZE;
pub const SPACE_MAP_HISTOGRAM_SIZE: usize = 32;
/// The longest run of a one-word entry, in units.
pub const SM_RUN_MAX: u64 = 1 << 15;
const SM_OFFSET_BITS: u32 = 47;
/// The longest run of a two-word entry, in units.
pub const SM2_RUN_MAX: u64 = 1 << 36;
/// What stands in the vdev field where no vdev is named: OpenZFS's "none" is 2^24, of which 24 bits leave nothing.
const NO_VDEV_BITS: u64 = 0;

const PREFIX_SHIFT: u32 = 62;
const PREFIX_DEBUG: u64 = 2;
const PREFIX_DOUBLE: u64 = 3;

/// The header of a space map, in the bonus of its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceMapPhys {
    /// The object's own number.
    pub object: u64,
    /// Bytes of entries.
    pub length: u64,
    /// Allocated minus freed bytes. A log space map's may be below zero.
    pub alloc: i64,
    /// Free segments by size, the smallest class being the map's unit. Absent before `spacemap_histogram`.
    pub histogram: Option<[u64; SPACE_MAP_HISTOGRAM_SIZE]>,
}

impl SpaceMapPhys {
    pub const NAME: &'static str = "space_map_phys";

    /// An empty map, with a histogram or without.
    pub const fn empty(histogram: bool) -> SpaceMapPhys {
        let histogram = if histogram { Some([0; SPACE_MAP_HISTOGRAM_SIZE]) } else { None };
        SpaceMapPhys { object: 0, length: 0, alloc: 0, histogram }
    }

    pub fn decode(bonus: &[u8], order: ByteOrder) -> Result<SpaceMapPhys> {
        let mut r = Reader::new(bonus, order, Self::NAME);
        let mut phys = SpaceMapPhys {
            object: r.u64("smp_object")?,
            length: r.u64("smp_length")?,
            alloc: r.u64("smp_alloc")? as i64,
            histogram: None,
        };
        if phys.length % 8 != 0 {
            return Err(FormatError::impossible(Self::NAME, "smp_length", 8, phys.length, "not whole words"));
        }
        if bonus.len() >= SPACE_MAP_SIZE {
            r.skip(40, "smp_pad")?;
            let mut h = [0; SPACE_MAP_HISTOGRAM_SIZE];
            for v in &mut h {
                *v = r.u64("smp_histogram")?;
            }
            phys.histogram = Some(h);
        }
        Ok(phys)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::native(SPACE_MAP_SIZE);
        w.u64(self.object);
        w.u64(self.length);
        w.u64(self.alloc as u64);
        if let Some(h) = &self.histogram {
            w.zeros(40);
            for v in h {
                w.u64(*v);
            }
        }
        w.finish()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum MapType {
    Alloc,
    Free,
}

impl MapType {
    const fn bit(self) -> u64 {
        match self {
            MapType::Alloc => 0,
            MapType::Free => 1,
        }
    }
    const fn from_bit(bit: u64) -> MapType {
        if bit & 1 == 0 { MapType::Alloc } else { MapType::Free }
    }
}

/// One run of units that was allocated or freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceMapEntry {
    pub kind: MapType,
    /// Named by every two-word entry; means something in log space maps only.
    pub vdev: Option<u32>,
    /// In units, from the start of what the map describes.
    pub offset: u64,
    /// In units; at least 1.
    pub run: u64,
    /// From the last debug entry of this block; 0 before the first.
    pub txg: u64,
    pub sync_pass: u16,
}

/// The entries of one block (or of the part of it within `smp_length`).
pub struct Entries<'a> {
    r: Reader<'a>,
    txg: u64,
    sync_pass: u16,
}

impl<'a> Entries<'a> {
    pub fn new(block: &'a [u8], order: ByteOrder) -> Entries<'a> {
        Entries { r: Reader::new(block, order, "space map"), txg: 0, sync_pass: 0 }
    }

    fn entry(&mut self) -> Result<Option<SpaceMapEntry>> {
        while self.r.remaining() > 0 {
            let at = self.r.pos();
            let w = self.r.u64("entry")?;
            let (txg, sync_pass) = (self.txg, self.sync_pass);
            match w >> PREFIX_SHIFT {
                PREFIX_DEBUG => {
                    // A debug entry of txg 0 only fills the end of a block.
                    if w & ((1 << 50) - 1) != 0 {
                        self.txg = w & ((1 << 50) - 1);
                        self.sync_pass = ((w >> 50) & 0x3ff) as u16;
                    }
                }
                PREFIX_DOUBLE => {
                    if self.r.remaining() < 8 {
                        let problem = Problem::Truncated { need: 8, have: self.r.remaining() };
                        return Err(FormatError::new("space map", "two-word entry", at, problem));
                    }
                    let w2 = self.r.u64("entry")?;
                    return Ok(Some(SpaceMapEntry {
                        kind: MapType::from_bit(w2 >> 63),
                        vdev: Some((w & 0xff_ffff) as u32),
                        offset: w2 & (u64::MAX >> 1),
                        run: ((w >> 24) & (SM2_RUN_MAX - 1)) + 1,
                        txg,
                        sync_pass,
                    }));
                }
                _ => {
                    return Ok(Some(SpaceMapEntry {
                        kind: MapType::from_bit(w >> 15),
                        vdev: None,
                        offset: (w >> 16) & ((1 << SM_OFFSET_BITS) - 1),
                        run: (w & (SM_RUN_MAX - 1)) + 1,
                        txg,
                        sync_pass,
                    }));
                }
            }
        }
        Ok(None)
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<SpaceMapEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let e = self.entry().transpose();
        if matches!(e, Some(Err(_))) {
            // Nothing behind a torn entry can be trusted.
            self.r = Reader::new(&[], self.r.order(), "space map");
        }
        e
    }
}

/// Collects entries as they will stand from byte `length` of a map on, whose blocks are `blksz` bytes.
pub struct EntryWriter {
    words: Vec<u64>,
    at: u64,
    words_per_block: u64,
    v2: bool,
}

impl EntryWriter {
    pub fn new(length: u64, blksz: u32, v2: bool) -> EntryWriter {
        EntryWriter { words: Vec::new(), at: length / 8, words_per_block: (u64::from(blksz) / 8).max(2), v2 }
    }

    fn put(&mut self, w: u64) {
        self.words.push(w);
        self.at += 1;
    }

    /// Says when and in which sync pass what follows is written.
    pub fn debug(&mut self, kind: MapType, txg: u64, sync_pass: u64) {
        let (txg, pass) = (txg & ((1 << 50) - 1), sync_pass & 0x3ff);
        self.put(PREFIX_DEBUG << PREFIX_SHIFT | kind.bit() << 60 | pass << 50 | txg);
    }

    /// A run of units. A vdev is named in log space maps only, which exist only where `spacemap_v2` does.
    pub fn run(&mut self, kind: MapType, vdev: Option<u32>, offset: u64, run: u64) {
        let double = self.v2
            && (vdev.is_some() || run > SM_RUN_MAX || offset.saturating_add(run) > 1 << SM_OFFSET_BITS);
        let max = if double { SM2_RUN_MAX } else { SM_RUN_MAX };
        let (mut offset, mut left) = (offset, run);
        while left > 0 {
            let n = left.min(max);
            if double {
                if (self.at + 1).is_multiple_of(self.words_per_block) {
                    self.put(PREFIX_DEBUG << PREFIX_SHIFT);
                }
                let vdev = vdev.map_or(NO_VDEV_BITS, |v| u64::from(v) & 0xff_ffff);
                self.put(PREFIX_DOUBLE << PREFIX_SHIFT | (n - 1) << 24 | vdev);
                self.put(kind.bit() << 63 | offset);
            } else {
                self.put((offset & ((1 << SM_OFFSET_BITS) - 1)) << 16 | kind.bit() << 15 | (n - 1));
            }
            offset += n;
            left -= n;
        }
    }

    /// The words, in the machine's order, to be written at the `length` this began with.
    pub fn finish(self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_do_not_straddle_blocks() {
        let mut w = EntryWriter::new(504, 512, true);
        w.run(MapType::Alloc, Some(3), 7, 9);
        w.debug(MapType::Free, 99, 2);
        w.run(MapType::Free, None, 100, SM_RUN_MAX);
        w.run(MapType::Free, None, 100, SM_RUN_MAX + 1);
        let bytes = w.finish();
        // Pad, two words, debug, one word, two words.
        assert_eq!(bytes.len(), 7 * 8);
        let got: Vec<_> = Entries::new(&bytes, ByteOrder::NATIVE).map(|e| e.unwrap()).collect();
        assert_eq!(got.len(), 3);
        assert_eq!((got[0].vdev, got[0].offset, got[0].run, got[0].txg), (Some(3), 7, 9, 0));
        assert_eq!(
            (got[1].kind, got[1].vdev, got[1].run, got[1].txg, got[1].sync_pass),
            (MapType::Free, None, SM_RUN_MAX, 99, 2)
        );
        assert_eq!((got[2].vdev, got[2].run), (Some(0), SM_RUN_MAX + 1));
    }

    #[test]
    fn without_v2_long_runs_are_split() {
        let mut w = EntryWriter::new(0, 512, false);
        w.run(MapType::Alloc, None, 5, SM_RUN_MAX * 2 + 1);
        let got: Vec<_> = Entries::new(&w.finish(), ByteOrder::NATIVE).map(|e| e.unwrap().run).collect();
        assert_eq!(got, [SM_RUN_MAX, SM_RUN_MAX, 1]);
    }

    #[test]
    fn torn_entries_are_errors_once() {
        let mut w = EntryWriter::new(0, 512, true);
        w.run(MapType::Alloc, Some(0), 1, 1);
        let bytes = w.finish();
        let mut it = Entries::new(&bytes[..8], ByteOrder::NATIVE);
        assert!(it.next().unwrap().is_err());
        assert!(it.next().is_none());
    }

    #[test]
    fn headers_of_both_sizes() {
        let mut p = SpaceMapPhys::empty(true);
        p.alloc = -5;
        p.length = 16;
        assert_eq!(p.encode().len(), SPACE_MAP_SIZE);
        assert_eq!(SpaceMapPhys::decode(&p.encode(), ByteOrder::NATIVE), Ok(p));
        let old = SpaceMapPhys::empty(false);
        assert_eq!(old.encode().len(), SPACE_MAP_SIZE_V0);
        assert_eq!(SpaceMapPhys::decode(&old.encode(), ByteOrder::NATIVE), Ok(old));
        assert!(SpaceMapPhys::decode(&[0; 20], ByteOrder::NATIVE).is_err());
    }
}
