//! RAID-Z: how a block lies across the columns of a stripe.
//!
//! Every block is its own stripe of variable width. Its sectors go row by row over the children,
//! beginning at the child that the block's offset says; the first one, two or three columns hold
//! parity. The allocated size is rounded up to a multiple of parity + 1 sectors, so that no free
//! space is left that is too small to hold a sector and its parity; the sectors of this rounding
//! are never read.
//!
//! With single parity the parity column and the first data column change places in every other
//! megabyte: an accident that is part of the format.
//!
//! What an expanded RAID-Z holds from before lies row by row over more children than its rows are
//! wide (`widths.rs`): each row has a parity of its own, and every sector is a column
//! ([`Map::expanded`]).

use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;
use zilla_codec::raidz;
use zilla_env::IoBuf;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

use super::reflow::Position;

/// A column: where on which child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Col {
    pub child: usize,
    /// In the child's data area; what is in the scratch area before it has an offset below zero.
    pub offset: u64,
    pub size: u64,
}

impl Col {
    /// On the child's device.
    pub fn on_device(&self) -> u64 {
        on_device(self.offset)
    }
}

pub(super) fn on_device(offset: u64) -> u64 {
    offset.wrapping_add(VDEV_LABEL_START_SIZE)
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
    scatter: Option<Box<Scatter>>,
}

/// What must be known of columns that are single sectors.
#[derive(Clone, Debug, Default)]
struct Scatter {
    /// Where in the block each column begins.
    starts: Vec<usize>,
    /// Each column's sector of the vdev's space.
    sectors: Vec<u64>,
    /// By how many children sectors were ever divided.
    widths: Vec<usize>,
    /// Where else each column is to be written, while sectors are being moved.
    extra: Vec<SmallVec<[(usize, u64); 1]>>,
}

/// How a RAID-Z that was expanded is divided.
#[derive(Clone, Debug)]
pub struct Expanded {
    /// Of the block.
    pub logical: usize,
    /// Children that sectors are divided among.
    pub children: usize,
    pub nparity: usize,
    /// By how many children they ever were.
    pub widths: Vec<usize>,
    /// Where sectors are while they are being moved to one child more.
    pub at: Option<Position>,
}

/// The columns that one parity covers.
#[derive(Clone, Copy, Debug)]
struct Row {
    first: usize,
    nparity: usize,
    end: usize,
}

/// The child, and the offset on it, of a sector of a vdev's space.
pub(super) fn place(sector: u64, ashift: u32, children: usize) -> (usize, u64) {
    ((sector % children as u64) as usize, (sector / children as u64) << ashift)
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
        // Full rows, and what is left for a last partial one. Columns before `big` have a sector in
        // it.
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

    /// The layout of a block whose rows are narrower than the vdev is.
    pub fn expanded(offset: u64, size: u64, ashift: u32, how: Expanded) -> Map {
        let Expanded { logical, children, nparity, widths, at } = how;
        let (np, width, sectors) = (nparity as u64, logical as u64, size >> ashift);
        let dcols = width - np;
        let (full, rest) = (sectors / dcols, sectors % dcols);
        // Columns before `big` have a sector in the last row, if that is not full.
        let big = if rest == 0 { 0 } else { rest + np };
        let total = sectors + np * sectors.div_ceil(dcols);
        let rows = full + u64::from(rest > 0);
        let used = total.min(width);
        let swapped = nparity == 1 && used > 1 && offset & (1 << 20) != 0;
        let mut map = Map::empty(false);
        let mut scatter = Scatter { widths, ..Scatter::default() };
        for row in 0..rows {
            let first = (offset >> ashift) + row * width;
            let mut cols: SmallVec<[Col; 8]> = SmallVec::new();
            let is_old = at.is_some_and(|at| first + used > at.synced >> ashift);
            for c in 0..used {
                let sector = first + if swapped && c < 2 { 1 - c } else { c };
                let (place, extra) = match at {
                    Some(at) => at.places(sector, ashift, children, is_old),
                    None => (place(sector, ashift, children), SmallVec::new()),
                };
                let none = row + 1 == rows && big != 0 && c >= big;
                let size = if none { 0 } else { 1 << ashift };
                // The block's bytes go down its columns, as in a vdev that was never expanded.
                let start = match c.checked_sub(np) {
                    Some(c) if !none && (rest == 0 || c < rest) => c * rows + row,
                    Some(c) if !none => rest * rows + (c - rest) * (rows - 1) + row,
                    _ => 0,
                };
                cols.push(Col { child: place.0, offset: place.1, size });
                scatter.extra.push(if none { SmallVec::new() } else { extra });
                scatter.starts.push((start << ashift) as usize);
                scatter.sectors.push(sector);
            }
            map.add_row(cols, nparity);
        }
        map.scatter = Some(Box::new(scatter));
        map
    }

    pub(super) fn empty(zeroed: bool) -> Map {
        let (cols, skips, rows) = (SmallVec::new(), SmallVec::new(), SmallVec::new());
        Map { cols, skips, rows, zeroed, scatter: None }
    }

    /// How many bytes behind each column belong to the block but hold nothing, where these must be
    /// zeros.
    pub(super) fn tails(&self) -> SmallVec<[u64; 8]> {
        let mut skips = self.skips.iter().filter(|_| self.zeroed).peekable();
        let behind = |c: &Col, s: &Col| s.child == c.child && s.offset == c.offset + c.size;
        self.cols.iter().map(|c| skips.next_if(|s| behind(c, s)).map_or(0, |s| s.size)).collect()
    }

    /// Where else a column is to be written.
    pub fn extra(&self, col: usize) -> &[(usize, u64)] {
        self.scatter.as_ref().and_then(|s| s.extra.get(col)).map_or(&[], |e| &e[..])
    }

    /// Whether its columns are single sectors, which do not follow each other in the block.
    pub fn is_scattered(&self) -> bool {
        self.scatter.is_some()
    }

    /// Sets of columns that one device may have spoilt: those it has, and of a block that was moved
    /// those that a device had before.
    pub fn suspects(&self, there: impl Fn(usize) -> bool) -> Vec<SmallVec<[usize; 2]>> {
        let there: Vec<usize> = (0..self.cols.len()).filter(|&i| there(i)).collect();
        let Some(scatter) = &self.scatter else {
            return there.into_iter().map(|i| SmallVec::from_slice(&[i])).collect();
        };
        let mut sets: Vec<SmallVec<[usize; 2]>> = Vec::new();
        let mut add = |had: &dyn Fn(usize) -> bool| {
            let had = |i: &usize| self.cols[*i].size > 0 && had(*i);
            let set: SmallVec<[usize; 2]> = there.iter().copied().filter(had).collect();
            if !set.is_empty() && !sets.contains(&set) {
                sets.push(set);
            }
        };
        // As it lies now: some rows of a block that is being moved at their old place, some at
        // their new.
        let children = self.cols.iter().map(|c| c.child + 1).max().unwrap_or(0);
        (0..children).for_each(|child| add(&|i| self.cols[i].child == child));
        for &width in scatter.widths.iter().rev() {
            (0..width as u64).for_each(|child| add(&|i| scatter.sectors[i] % width as u64 == child));
        }
        sets
    }

    /// Parity columns of a row.
    pub fn nparity(&self) -> usize {
        self.rows.first().map_or(0, |r| r.nparity)
    }

    pub(super) fn add_row(&mut self, cols: SmallVec<[Col; 8]>, nparity: usize) {
        let first = self.cols.len();
        self.cols.extend(cols);
        self.rows.push(Row { first, nparity, end: self.cols.len() });
    }

    pub fn is_parity(&self, col: usize) -> bool {
        self.rows.iter().any(|r| (r.first..r.first + r.nparity).contains(&col))
    }

    /// Whether parity is there beside that from which the missing data is worked out.
    pub fn has_parity_left(&self, cols: &[Option<Bytes>]) -> bool {
        let there = |range: Range<usize>| cols[range].iter().filter(|c| c.is_some()).count();
        self.rows.iter().any(|r| {
            let data = r.first + r.nparity..r.end;
            there(r.first..data.start) > data.len() - there(data)
        })
    }

    /// The data columns, by number.
    pub fn data(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().flat_map(|r| r.first + r.nparity..r.end)
    }

    /// Which bytes of the block each data column holds.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        self.data().map(move |i| {
            let size = self.cols[i].size as usize;
            let start = self.scatter.as_ref().map_or(at, |s| s.starts[i]);
            at += size;
            start..start + size
        })
    }

    /// Parity of one row, of its data columns.
    fn parity(&self, row: &Row, data: &[&[u8]]) -> SmallVec<[Bytes; 3]> {
        #[cfg(test)]
        WORKED_OUT.with(|n| n.set(n.get() + 1));
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

    /// Puts a block together from its columns (`cols[i]` is `None` where column `i` is not to be
    /// trusted). `None` when too few are there.
    pub fn assemble(&self, cols: &[Option<Bytes>]) -> Option<IoBuf> {
        let size: u64 = self.data().map(|i| self.cols[i].size).sum();
        let mut block = IoBuf::scratch(size as usize);
        for (i, range) in self.data().zip(self.ranges()) {
            if let Some(c) = &cols[i] {
                block[range].copy_from_slice(c);
            }
        }
        if self.data().all(|i| cols[i].is_some()) || self.reconstruct(&mut block, cols) {
            return Some(block);
        }
        None
    }

    /// Works out the columns that are not there. False: too few are.
    fn reconstruct(&self, block: &mut [u8], cols: &[Option<Bytes>]) -> bool {
        let mut places: SmallVec<[(Range<usize>, usize); 16]> = self.ranges().zip(self.data()).collect();
        places.sort_unstable_by_key(|(range, i)| (range.start, range.end, *i));
        let mut parts: SmallVec<[Option<&mut [u8]>; 16]> = cols.iter().map(|_| None).collect();
        let mut rest = block;
        for (range, i) in places {
            let (part, behind) = rest.split_at_mut(range.len());
            (parts[i], rest) = (Some(part), behind);
        }
        for row in &self.rows {
            let first = row.first + row.nparity;
            let missing: SmallVec<[usize; 3]> =
                (first..row.end).filter(|&i| cols[i].is_none()).map(|i| i - first).collect();
            if !missing.is_empty() {
                let mut data: SmallVec<[&mut [u8]; 16]> =
                    (first..row.end).map(|i| parts[i].take().unwrap_or_default()).collect();
                let parity: SmallVec<[Option<&[u8]>; 3]> =
                    cols[row.first..first].iter().map(|c| c.as_deref()).collect();
                if raidz::reconstruct(&mut data, &parity, &missing).is_err() {
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
thread_local! {
    /// How often parity was worked out.
    pub(in crate::vdev) static WORKED_OUT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Bytes that no two sectors share.
    fn block(sectors: u64) -> Bytes {
        let bytes = (0..sectors << 9).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8);
        bytes.collect::<Vec<u8>>().into()
    }

    /// What each sector of a vdev's space holds, by what a map over `children` says.
    fn sectors(map: &Map, children: usize, block: &Bytes) -> BTreeMap<u64, Bytes> {
        let mut out = BTreeMap::new();
        for (col, data) in map.cols.iter().zip(map.columns(block)) {
            for i in 0..col.size >> 9 {
                let sector = ((col.offset >> 9) + i) * children as u64 + col.child as u64;
                let part = data.slice((i << 9) as usize..((i + 1) << 9) as usize);
                assert!(out.insert(sector, part).is_none());
            }
        }
        out
    }

    proptest! {
        /// An expansion moves sectors and changes none: those of a block are what they were in the
        /// vdev as it was when the block was born. And they survive the loss of as many children as
        /// before.
        #[test]
        fn expanded_maps_are_the_old_ones_moved(
            nparity in 1usize..=3,
            data in 1usize..=6,
            more in 1usize..=4,
            sectors_of in prop_oneof![1u64..40, Just(256u64)],
            start in prop_oneof![0u64..60, 2040u64..2060],
            lost in proptest::collection::vec(any::<prop::sample::Index>(), 0..=3),
        ) {
            let (logical, children) = (nparity + data, nparity + data + more);
            let (offset, size) = (start << 9, sectors_of << 9);
            let how = Expanded { logical, children, nparity, widths: (logical..=children).collect(), at: None };
            let map = Map::expanded(offset, size, 9, how);
            let block = block(sectors_of);
            let old = Map::new(offset, size, 9, logical, nparity);
            prop_assert_eq!(sectors(&map, children, &block), sectors(&old, logical, &block));
            prop_assert!(map.cols.iter().all(|c| c.child < children));
            let lost: BTreeSet<usize> = lost.iter().take(nparity).map(|i| i.index(children)).collect();
            let mut cols: Vec<Option<Bytes>> = map.columns(&block).into_iter().map(Some).collect();
            for (col, there) in map.cols.iter().zip(&mut cols) {
                if lost.contains(&col.child) && col.size > 0 {
                    *there = None;
                }
            }
            let made = map.assemble(&cols);
            prop_assert_eq!(made.as_deref(), Some(&block[..]));
        }
    }

    /// A block of which the first rows were moved and the last were not: a device has sectors of
    /// both.
    #[test]
    fn suspects_are_devices_also_of_a_block_that_is_being_moved() {
        let at = Position { synced: 12 << 9, next: 12 << 9, stage: super::super::reflow::Stage::Plain };
        let how = Expanded { logical: 4, children: 5, nparity: 1, widths: vec![4, 5], at: Some(at) };
        let map = Map::expanded(0, 18 << 9, 9, how);
        let sets = map.suspects(|_| true);
        for child in 0..5 {
            let of_it = |i: &usize| map.cols[*i].size > 0 && map.cols[*i].child == child;
            let has: SmallVec<[usize; 2]> = (0..map.cols.len()).filter(of_it).collect();
            assert!(sets.contains(&has), "device {child}: {has:?}");
        }
        // Some rows are divided by the old width and some by the new.
        let by = |width: usize| (0..map.cols.len()).all(|i| map.cols[i].child == i % width);
        assert!(!by(4) && !by(5));
    }

    /// What one device of the old vdev spoilt before its sectors were moved is one of the suspects.
    #[test]
    fn suspects_are_devices_of_every_width() {
        let how = Expanded { logical: 4, children: 6, nparity: 1, widths: vec![4, 5, 6], at: None };
        let map = Map::expanded(7 << 9, 30 << 9, 9, how);
        let sets = map.suspects(|_| true);
        for width in 4..=6u64 {
            for child in 0..width {
                let had = |i: &usize| {
                    let col = map.cols[*i];
                    let sector = (col.offset >> 9) * 6 + col.child as u64;
                    col.size > 0 && sector % width == child
                };
                let set: SmallVec<[usize; 2]> = (0..map.cols.len()).filter(had).collect();
                assert!(sets.contains(&set), "{width} {child}");
            }
        }
    }

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
