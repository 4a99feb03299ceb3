//! A removed top-level vdev: where its blocks went.
//!
//! Pointers to blocks on a vdev that was removed stay as they are. What is left of the vdev is a
//! *mapping*: runs of its address space, in order, each with the vdev and offset to which it was
//! copied; and the txgs in which that was done. A block that a pointer calls one may so have become
//! several pieces, on several vdevs, and these may have been removed since as well.
//!
//! What is kept true: runs do not overlap, and every piece that [`VdevTree::resolve`] gives lies on
//! a vdev that is there. A mapping is read from the disk (`spa/indirect.rs`), so none of it is
//! believed before.
//!
//! A crash concerns nobody here: a mapping changes in memory when the txg that changes it on disk
//! is being synced.

use smallvec::SmallVec;
use zilla_ondisk::blkptr::Dva;

use super::node::VdevKind;
use super::tree::{Top, VdevTree};
use crate::error::{Error, Result};

/// A run of a removed vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it was.
    pub src: u64,
    pub len: u64,
    /// Where it is.
    pub vdev: u32,
    pub dst: u64,
}

/// A part of a block, where it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub vdev: u32,
    pub offset: u64,
    pub len: u64,
    /// The txg in which it was written there.
    pub birth: u64,
}

pub type Pieces = SmallVec<[Piece; 1]>;

/// Where everything of a removed vdev went.
#[derive(Clone, Debug, Default)]
pub struct Indirect {
    runs: Vec<Run>,
    /// (end, txg): what is below the end, and not below the one before, was copied in this txg.
    births: Vec<(u64, u64)>,
}

impl Indirect {
    /// The error says what is wrong with them.
    pub fn new(runs: Vec<Run>, births: Vec<(u64, u64)>) -> std::result::Result<Indirect, String> {
        let mut end = 0;
        for (i, r) in runs.iter().enumerate() {
            if r.len == 0 || r.src < end || r.dst.checked_add(r.len).is_none() {
                return Err(format!("entry {i} maps {:#x} bytes at {:#x} to {:#x}", r.len, r.src, r.dst));
            }
            end = r.src.checked_add(r.len).ok_or_else(|| format!("entry {i} has no end"))?;
        }
        if !births.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1) {
            return Err("the txgs in which it was copied are out of order".into());
        }
        Ok(Indirect { runs, births })
    }

    /// Goes on with runs that were copied in this txg.
    pub fn push(&mut self, runs: &[Run], txg: u64) {
        self.runs.extend_from_slice(runs);
        self.births.push((self.end(), txg));
    }

    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The same without some of its runs.
    pub fn with_runs(&self, runs: Vec<Run>) -> Indirect {
        Indirect { runs, births: self.births.clone() }
    }

    /// Up to where the vdev has been copied.
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |r| r.src + r.len)
    }

    /// Bytes it takes in memory.
    pub fn memory(&self) -> u64 {
        (size_of_val(&self.runs[..]) + size_of_val(&self.births[..])) as u64
    }

    /// The txg in which what is at `offset` was copied; 0 if nothing says it.
    fn birth(&self, offset: u64) -> u64 {
        let at = self.births.partition_point(|(end, _)| *end <= offset);
        self.births.get(at).map_or(0, |(_, txg)| *txg)
    }

    /// The pieces of a place, in order, with the place of each in the vdev. None if some of it went
    /// nowhere.
    pub fn pieces(&self, offset: u64, len: u64) -> Option<SmallVec<[(u64, Piece); 1]>> {
        let end = offset.checked_add(len)?;
        let mut out = SmallVec::new();
        let mut at = offset;
        let first = self.runs.partition_point(|r| r.src + r.len <= offset);
        for r in self.runs.get(first..).unwrap_or_default() {
            if at >= end {
                break;
            }
            let into = at.checked_sub(r.src)?;
            let len = (r.len - into).min(end - at);
            out.push((at, Piece { vdev: r.vdev, offset: r.dst + into, len, birth: self.birth(at) }));
            at += len;
        }
        (at >= end).then_some(out)
    }
}

impl VdevTree {
    /// Where a place is: itself, or the pieces of one on a removed vdev, in order. `birth` is the
    /// txg in which it was written.
    pub fn resolve(&self, vdev: u32, offset: u64, len: u64, birth: u64) -> Result<Pieces> {
        let mut done = Pieces::new();
        // A vdev is copied to such that are removed later, if at all. So nothing comes by more
        // vdevs than there are.
        let mut todo = vec![(Piece { vdev, offset, len, birth }, 0)];
        while let Some((piece, depth)) = todo.pop() {
            let bad = |what: &str| {
                let place = format!("vdev {} at {:#x}", piece.vdev, piece.offset);
                Err(Error::corrupt(None, place, what))
            };
            let top = self.top(piece.vdev)?;
            if top.vdev.kind != VdevKind::Indirect {
                done.push(piece);
                continue;
            }
            if depth > self.tops.len() {
                return bad("the mappings of removed devices go round in a circle");
            }
            let mapping = top.vdev.indirect();
            let pieces = mapping.as_ref().and_then(|m| m.pieces(piece.offset, piece.len));
            let Some(pieces) = pieces else {
                return bad("the device was removed, and its mapping does not say where this went");
            };
            todo.extend(pieces.into_iter().rev().map(|(_, p)| (p, depth + 1)));
        }
        Ok(done)
    }

    /// The places that a DVA as it was allocated means today.
    pub(crate) fn now_at(&self, dva: &Dva) -> Result<impl Iterator<Item = Dva> + use<>> {
        let (pieces, gang) = (self.resolve(dva.vdev, dva.offset, dva.asize, 0)?, dva.gang);
        Ok(pieces.into_iter().map(move |p| Dva { vdev: p.vdev, offset: p.offset, asize: p.len, gang }))
    }

    /// Top-levels that were removed.
    pub fn indirect(&self) -> impl Iterator<Item = &Top> {
        self.tops.iter().filter(|t| t.vdev.kind == VdevKind::Indirect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(src: u64, len: u64, dst: u64) -> Run {
        Run { src, len, vdev: 1, dst }
    }

    #[test]
    fn damaged_mappings_are_refused() {
        for runs in [
            vec![run(0, 0, 0)],
            vec![run(8, 8, 0), run(0, 8, 64)],
            vec![run(0, 16, 0), run(8, 8, 64)],
            vec![run(u64::MAX - 4, 8, 0)],
            vec![run(0, 8, u64::MAX - 4)],
        ] {
            assert!(Indirect::new(runs.clone(), Vec::new()).is_err(), "{runs:?}");
        }
        assert!(Indirect::new(Vec::new(), vec![(16, 5), (8, 6)]).is_err());
        assert!(Indirect::new(Vec::new(), vec![(8, 6), (16, 5)]).is_err());
    }

    proptest! {
        #[test]
        fn pieces_are_what_a_table_of_bytes_says(
            gaps in proptest::collection::vec((0u64..3, 1u64..5, 0u64..100), 1..20),
            births in proptest::collection::vec(1u64..30, 0..5),
            offset in 0u64..120,
            len in 1u64..40,
        ) {
            let (mut at, mut runs) = (0, Vec::new());
            for (gap, len, dst) in gaps {
                at += gap;
                runs.push(run(at, len, dst));
                at += len;
            }
            let mut ends: Vec<u64> = births.iter().scan(0, |sum, b| { *sum += b; Some(*sum) }).collect();
            ends.dedup();
            let births: Vec<(u64, u64)> = ends.into_iter().enumerate().map(|(i, end)| (end, i as u64 + 7)).collect();
            let mapping = Indirect::new(runs.clone(), births.clone()).unwrap();
            let byte = |b: u64| runs.iter().find(|r| r.src <= b && b < r.src + r.len).map(|r| r.dst + b - r.src);
            let whole: Option<Vec<u64>> = (offset..offset + len).map(byte).collect();
            let pieces = mapping.pieces(offset, len);
            let flat = pieces.map(|p| {
                let mut flat = Vec::new();
                for (at, piece) in p {
                    let birth = births.iter().find(|(end, _)| at < *end).map_or(0, |(_, txg)| *txg);
                    assert_eq!(piece.birth, birth);
                    assert_eq!(at, offset + flat.len() as u64);
                    flat.extend(piece.offset..piece.offset + piece.len);
                }
                flat
            });
            prop_assert_eq!(flat, whole);
        }
    }
}
