//! RAID-Z: how a block lies across the columns of a stripe.
//!
//! Every block is its own stripe of variable width. Its sectors go row by row over the children, beginning at the child that the
//! block's offset says; the first one, two or three columns hold parity. The allocated size is rounded up to a
//! multiple of parity + 1 sectors, so that no free space is left that is too small to hold a sector and its parity; the sectors
//! of this rounding are never read.
//!
//! With single parity the parity column and the first data column change places in every other megabyte: an accident
//! that is part of the format.

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;
use zilla_codec::raidz;
use zilla_env::IoBuf;

/// A column: where on which child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Col {
    pub child: usize,
    /// In the child's data area.
    pub offset: u64,
    pub size: u64,
}

/// A block's layout.
#[derive(Clone, Debug)]
pub struct Map {
    pub nparity: usize,
    /// Parity columns first, then data columns in order.
    pub cols: SmallVec<[Col; 8]>,
    /// Sectors that belong to the block but hold nothing.
    pub skips: SmallVec<[Col; 3]>,
}

/// Allocated size of a block of `psize` bytes.
pub fn psize_to_asize(psize: u64, ashift: u32, children: u64, nparity: u64) -> u64 {
    let data = ((psize.max(1) - 1) >> ashift) + 1;
    let width = children.saturating_sub(nparity).max(1);
    let total = data + nparity * data.div_ceil(width);
    total.next_multiple_of(nparity + 1) << ashift
}

impl Map {
    /// The layout of `size` bytes (whole sectors) at `offset` of the top-level's address space.
    pub fn new(offset: u64, size: u64, ashift: u32, children: usize, nparity: usize) -> Map {
        let dcols = children as u64;
        let np = nparity as u64;
        let first_sector = offset >> ashift;
        let sectors = size >> ashift;
        let first_child = first_sector % dcols;
        let row_offset = (first_sector / dcols) << ashift;
        // Full rows, and what is left for a last partial one. Columns before `big` have a sector in it.
        let rows = sectors / (dcols - np);
        let rest = sectors - rows * (dcols - np);
        let big = if rest == 0 { 0 } else { rest + np };
        let total = sectors + np * (rows + u64::from(rest > 0));
        let used = if rows == 0 { big } else { dcols };
        let spanned = if rows == 0 { dcols.min(big.next_multiple_of(np + 1)) } else { dcols };
        let mut all: SmallVec<[Col; 8]> = SmallVec::new();
        for c in 0..spanned {
            let (mut child, mut offset) = (first_child + c, row_offset);
            if child >= dcols {
                child -= dcols;
                offset += 1 << ashift;
            }
            let size = if c >= used { 0 } else { rows + u64::from(c < big) } << ashift;
            all.push(Col { child: child as usize, offset, size });
        }
        let mut skip_from = big as usize;
        if nparity == 1 && offset & (1 << 20) != 0 && all.len() >= 2 {
            let (a, b) = (all[0], all[1]);
            all[0] = Col { size: a.size, ..b };
            all[1] = Col { size: b.size, ..a };
            if skip_from == 0 {
                skip_from = 1;
            }
        }
        let nskip = total.next_multiple_of(np + 1) - total;
        let skips = (0..nskip as usize)
            .map(|i| {
                let c = all[(skip_from + i) % all.len()];
                Col { child: c.child, offset: c.offset + c.size, size: 1 << ashift }
            })
            .collect();
        all.truncate(used as usize);
        Map { nparity, cols: all, skips }
    }

    pub fn data_cols(&self) -> &[Col] {
        &self.cols[self.nparity..]
    }

    /// Which bytes of the block each data column holds.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        self.data_cols().iter().map(move |c| {
            let start = at;
            at += c.size as usize;
            start..at
        })
    }

    /// Parity of a block, one buffer a parity column.
    pub fn parity(&self, block: &[u8]) -> SmallVec<[Bytes; 3]> {
        let data: SmallVec<[&[u8]; 16]> = self.ranges().map(|r| &block[r]).collect();
        let mut out: SmallVec<[IoBuf; 3]> =
            self.cols[..self.nparity].iter().map(|c| IoBuf::scratch(c.size as usize)).collect();
        {
            let mut refs: SmallVec<[&mut [u8]; 3]> = out.iter_mut().map(|b| &mut b[..]).collect();
            let made = raidz::generate(&data, &mut refs);
            debug_assert!(made.is_ok(), "a map's columns always suit: {made:?}");
        }
        out.into_iter().map(IoBuf::into_bytes).collect()
    }

    /// Puts a block together from its columns (`cols[i]` is `None` where column `i` is not to be trusted). `None` when too
    /// few are there.
    pub fn assemble(&self, cols: &[Option<Bytes>]) -> Option<IoBuf> {
        let size: u64 = self.data_cols().iter().map(|c| c.size).sum();
        let mut block = IoBuf::scratch(size as usize);
        let mut missing: SmallVec<[usize; 3]> = SmallVec::new();
        for (i, range) in self.ranges().enumerate() {
            match &cols[self.nparity + i] {
                Some(c) => block[range].copy_from_slice(c),
                None => missing.push(i),
            }
        }
        if !missing.is_empty() {
            let parity: SmallVec<[Option<&[u8]>; 3]> =
                cols[..self.nparity].iter().map(|c| c.as_deref()).collect();
            let mut rest = &mut block[..];
            let mut data: SmallVec<[&mut [u8]; 16]> = SmallVec::new();
            for c in self.data_cols() {
                let (a, b) = rest.split_at_mut(c.size as usize);
                data.push(a);
                rest = b;
            }
            raidz::reconstruct(&mut data, &parity, &missing).ok()?;
        }
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout by the book: sectors numbered from the block's start go round the children.
    #[test]
    fn maps_equal_a_sector_by_sector_walk() {
        for nparity in 1..=3usize {
            for children in nparity + 1..=9 {
                for sectors in (1..=40u64).chain([256]) {
                    for start in 0..20u64 {
                        let offset = start << 9;
                        let map = Map::new(offset, sectors << 9, 9, children, nparity);
                        let asize = psize_to_asize(sectors << 9, 9, children as u64, nparity as u64);
                        let used: u64 = map.cols.iter().map(|c| c.size).sum();
                        let skipped: u64 = map.skips.iter().map(|c| c.size).sum();
                        assert_eq!(used + skipped, asize, "p{nparity} c{children} s{sectors}");
                        // Every sector of the allocation is covered exactly once.
                        let mut seen = std::collections::BTreeSet::new();
                        for c in map.cols.iter().chain(&map.skips) {
                            for s in 0..c.size >> 9 {
                                let sector = ((c.offset >> 9) + s) * children as u64 + c.child as u64;
                                assert!(seen.insert(sector));
                            }
                        }
                        let first = *seen.first().unwrap();
                        let last = *seen.last().unwrap();
                        assert_eq!((first, last - first + 1), (start, asize >> 9));
                    }
                }
            }
        }
    }

    #[test]
    fn single_parity_swaps_in_odd_megabytes() {
        let even = Map::new(0, 8192, 12, 3, 1);
        let odd = Map::new(3 << 20, 8192, 12, 3, 1);
        assert_eq!((even.cols[0].child, even.cols[1].child), (0, 1));
        let plain = (3 << 20 >> 12) % 3;
        assert_eq!(odd.cols[1].child, plain);
        let double = Map::new(3 << 20, 8192, 12, 4, 2);
        assert_eq!(double.cols[0].child, (3 << 20 >> 12) % 4);
    }
}
