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

/// A block's layout: one row of columns, or more where a dRAID's block lies in two groups.
#[derive(Clone, Debug)]
pub struct Map {
    /// Row by row, parity columns first, then data columns in order. A dRAID's may hold nothing.
    pub cols: SmallVec<[Col; 8]>,
    /// Sectors that belong to the block but hold nothing.
    pub skips: SmallVec<[Col; 3]>,
    rows: SmallVec<[Row; 1]>,
    /// What holds nothing has to hold zeros.
    pub zeroed: bool,
}

/// The columns that one parity covers.
#[derive(Clone, Copy, Debug)]
struct Row {
    first: usize,
    nparity: usize,
    end: usize,
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
        let mut map = Map { skips, ..Map::empty(false) };
        map.add_row(all, nparity);
        map
    }

    pub(super) fn empty(zeroed: bool) -> Map {
        Map { cols: SmallVec::new(), skips: SmallVec::new(), rows: SmallVec::new(), zeroed }
    }

    pub(super) fn add_row(&mut self, cols: SmallVec<[Col; 8]>, nparity: usize) {
        let first = self.cols.len();
        self.cols.extend(cols);
        self.rows.push(Row { first, nparity, end: self.cols.len() });
    }

    pub fn is_parity(&self, col: usize) -> bool {
        self.rows.iter().any(|r| (r.first..r.first + r.nparity).contains(&col))
    }

    /// The data columns, by number.
    pub fn data(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().flat_map(|r| r.first + r.nparity..r.end)
    }

    /// Which bytes of the block each data column holds.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        self.data().map(move |i| {
            let start = at;
            at += self.cols[i].size as usize;
            start..at
        })
    }

    /// Parity of one row, of its data columns.
    fn parity(&self, row: &Row, data: &[&[u8]]) -> SmallVec<[Bytes; 3]> {
        let parity = &self.cols[row.first..row.first + row.nparity];
        let mut out: SmallVec<[IoBuf; 3]> = parity.iter().map(|c| IoBuf::scratch(c.size as usize)).collect();
        {
            let mut refs: SmallVec<[&mut [u8]; 3]> = out.iter_mut().map(|b| &mut b[..]).collect();
            let made = raidz::generate(data, &mut refs);
            debug_assert!(made.is_ok(), "a map's columns always suit: {made:?}");
        }
        out.into_iter().map(IoBuf::into_bytes).collect()
    }

    /// What each column holds of a block.
    pub fn columns(&self, block: &Bytes) -> SmallVec<[Bytes; 8]> {
        let mut ranges = self.ranges();
        let mut all = SmallVec::new();
        for row in &self.rows {
            let slices: SmallVec<[Bytes; 8]> =
                ranges.by_ref().take(row.end - row.first - row.nparity).map(|r| block.slice(r)).collect();
            let parity = {
                let data: SmallVec<[&[u8]; 16]> = slices.iter().map(|s| &s[..]).collect();
                self.parity(row, &data)
            };
            all.extend(parity);
            all.extend(slices);
        }
        all
    }

    /// Puts a block together from its columns (`cols[i]` is `None` where column `i` is not to be trusted). `None` when too
    /// few are there.
    pub fn assemble(&self, cols: &[Option<Bytes>]) -> Option<IoBuf> {
        let size: u64 = self.data().map(|i| self.cols[i].size).sum();
        let mut block = IoBuf::scratch(size as usize);
        for (i, range) in self.data().zip(self.ranges()) {
            if let Some(c) = &cols[i] {
                block[range].copy_from_slice(c);
            }
        }
        let mut rest = &mut block[..];
        for row in &self.rows {
            let first = row.first + row.nparity;
            let missing: SmallVec<[usize; 3]> =
                (first..row.end).filter(|&i| cols[i].is_none()).map(|i| i - first).collect();
            let mut data: SmallVec<[&mut [u8]; 16]> = SmallVec::new();
            for i in first..row.end {
                let (a, b) = rest.split_at_mut(self.cols[i].size as usize);
                data.push(a);
                rest = b;
            }
            if !missing.is_empty() {
                let parity: SmallVec<[Option<&[u8]>; 3]> =
                    cols[row.first..first].iter().map(|c| c.as_deref()).collect();
                raidz::reconstruct(&mut data, &parity, &missing).ok()?;
            }
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
