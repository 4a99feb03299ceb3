//! dRAID: RAID-Z whose groups, and whose spares, are spread over more disks than a group has.
//!
//! ```text
//! a row is 16M of every child; the first ndisks columns of it hold groups, the last nspares are spare
//!
//!   column   0   1   2   3   4   5   6 | 7        9 children, 8 of them for groups of 3 (2 data, 1 parity)
//!   row 0  [ group 0 ][ group 1 ][ grou|spare     a group that does not fit goes on in the next row
//!   row 1  p 2 ][ group 3 ] ...
//! ```
//!
//! So many rows as hold whole groups are a *slice*. Which child stands in which column is another
//! permutation for each slice: what a failed child held is then spread over all others, and so is
//! the spare space that takes it. The permutations follow from a seed for each number of children
//! (`draid_seeds.rs`), which is a fact of the format.
//!
//! A block takes whole stripes: it begins where a stripe of its group begins, and sectors that it
//! does not fill hold zeros, which are written, since parity covers them and a sequential rebuild
//! computes what a child lacks without knowing blocks. A block that reaches the end of its group
//! goes on in the next one.
//!
//! 32M at the end of every child are kept free, as OpenZFS keeps them for an expansion.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use smallvec::SmallVec;
use zilla_ondisk::NvList;

use super::draid_seeds::{FEWEST, SEEDS};
use super::raidz::{Col, Map};
use crate::error::{Error, Result};

/// What a child gives to a group: the largest block fits into one data column.
const ROW: u64 = 16 << 20;
/// Kept free at the end of every child.
const RESERVE: u64 = 2 * ROW;
/// The first half of what the permutations' generator begins with. The other is the seed.
const SEED: u64 = 0xd_7a1d_5eed;
const MOST_CHILDREN: usize = 255;
const MOST_SPARES: u64 = 100;

/// How many disks do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub nparity: u64,
    pub ndata: u64,
    pub nspares: u64,
    pub children: u64,
}

impl Shape {
    pub fn width(&self) -> u64 {
        self.ndata + self.nparity
    }

    /// Columns of a row that groups lie in.
    pub fn ndisks(&self) -> u64 {
        self.children.saturating_sub(self.nspares)
    }

    /// How many groups a slice has: the fewest that fill its rows.
    pub fn groups(&self) -> u64 {
        let (width, disks) = (self.width().max(1), self.ndisks().max(1));
        let (mut a, mut b) = (width, disks);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        disks / a
    }

    pub fn check(&self) -> std::result::Result<(), String> {
        let fits = (1..=3).contains(&self.nparity)
            && self.ndata >= 1
            && self.nspares <= MOST_SPARES
            && (FEWEST as u64..=MOST_CHILDREN as u64).contains(&self.children)
            && self.ndata.saturating_add(self.nparity).saturating_add(self.nspares) <= self.children;
        let Shape { nparity, ndata, nspares, children } = self;
        if fits { Ok(()) } else { Err(format!("draid{nparity}:{ndata}d:{children}c:{nspares}s")) }
    }
}

/// The layout of one dRAID.
#[derive(Debug)]
pub struct Draid {
    pub shape: Shape,
    ngroups: u64,
    /// Rows of as many numbers as there are children.
    perms: Vec<u8>,
}

/// Which row of which slice a group begins in.
struct Place {
    slice: u64,
    /// The column of its first child.
    column: u64,
    /// On its children.
    offset: u64,
}

impl Draid {
    pub fn new(shape: Shape, ngroups: u64) -> std::result::Result<Draid, String> {
        shape.check()?;
        let whole = (shape.width() * ngroups.min(1 << 16)).is_multiple_of(shape.ndisks());
        if !(1..=MOST_CHILDREN as u64).contains(&ngroups) || !whole {
            return Err(format!(
                "a dRAID of {} disks with {ngroups} groups of {}",
                shape.ndisks(),
                shape.width()
            ));
        }
        Ok(Draid { shape, ngroups, perms: permutations(shape.children as usize) })
    }

    /// As a configuration says it.
    pub(super) fn parse(nv: &NvList) -> Result<Draid> {
        let number = |name: &str| nv.u64(name);
        let bad = |what: String| Error::corrupt(None, "vdev configuration", what);
        let children = nv.lists("children").map_or(0, |c| c.len() as u64);
        if number("draid_nchildren").is_some_and(|n| n != children) {
            return Err(Error::os(
                crate::error::Errno::NotSup,
                "the pool has a dRAID with failure domains, which this version does not support",
            ));
        }
        let all =
            (number("nparity"), number("draid_ndata"), number("draid_nspares"), number("draid_ngroups"));
        let (Some(nparity), Some(ndata), Some(nspares), Some(ngroups)) = all else {
            return Err(bad("a dRAID that does not say how it is laid out".into()));
        };
        Draid::new(Shape { nparity, ndata, nspares, children }, ngroups).map_err(bad)
    }

    pub fn ngroups(&self) -> u64 {
        self.ngroups
    }

    /// Address space of a group.
    fn group_size(&self) -> u64 {
        self.shape.width() * ROW
    }

    /// What a slice takes of every child.
    fn slice_height(&self) -> u64 {
        self.group_size() * self.ngroups / self.shape.ndisks()
    }

    /// Blocks begin and end at multiples of it.
    pub fn stripe(&self, ashift: u32) -> u64 {
        self.shape.width() << ashift
    }

    /// Space that `psize` bytes take.
    pub fn psize_to_asize(&self, psize: u64, ashift: u32) -> u64 {
        psize.max(1).div_ceil(self.shape.ndata << ashift).saturating_mul(self.stripe(ashift))
    }

    /// Address space where every child gives at least `child` bytes.
    pub fn capacity(&self, child: u64) -> u64 {
        let rows = child.saturating_sub(RESERVE) / ROW;
        (rows * ROW).saturating_mul(self.shape.ndisks()) / self.group_size() * self.group_size()
    }

    /// What every child must give for so much address space.
    pub fn child_size(&self, asize: u64) -> u64 {
        RESERVE + asize.div_ceil(self.shape.ndisks()).next_multiple_of(ROW)
    }

    /// Where the group ends that an offset lies in.
    pub(super) fn group_end(&self, offset: u64) -> u64 {
        (offset / self.group_size() + 1) * self.group_size()
    }

    /// The child in a column of a slice.
    fn child(&self, slice: u64, column: u64) -> usize {
        let n = self.shape.children;
        let rows = (self.perms.len() as u64 / n).max(1);
        let turn = slice % (rows * n);
        let at = turn / n * n + column;
        let base = self.perms.get(at as usize).copied().map_or(0, u64::from);
        ((base + turn % n) % n) as usize
    }

    /// The child on which a distributed spare has what lies at `offset` of its own data area.
    pub fn spare_child(&self, spare: u64, offset: u64) -> Option<usize> {
        let column = self.shape.children.checked_sub(1)?.checked_sub(spare)?;
        (spare < self.shape.nspares).then(|| self.child(offset / self.slice_height(), column))
    }

    /// Where the run ends in which a spare's bytes from `offset` on lie on one child.
    pub fn run_end(&self, offset: u64) -> u64 {
        (offset / self.slice_height() + 1) * self.slice_height()
    }

    fn place(&self, offset: u64, ashift: u32) -> Place {
        let (width, disks) = (self.shape.width(), self.shape.ndisks());
        let group = offset / self.group_size();
        let (slice, within) = (group / self.ngroups, group % self.ngroups);
        let rows = width * self.ngroups / disks;
        let row = slice * rows + within * width / disks;
        let stripe = ((offset % self.group_size()) >> ashift) / width;
        Place { slice, column: within * width % disks, offset: row * ROW + (stripe << ashift) }
    }

    /// Where what lies between two offsets of the address space is on a child, ascending as they
    /// do: a child stands in one column of a slice, and groups fill rows in their order.
    pub fn places_on(&self, child: usize, start: u64, end: u64, ashift: u32) -> Vec<(u64, u64)> {
        let (mut out, mut at, stripe) = (Vec::new(), start, self.stripe(ashift));
        while at < end {
            let (first, last) = (at, end.min(self.group_end(at)));
            let group = first / self.group_size() * self.group_size();
            let place = self.place(group, ashift);
            let mut members = (0..self.shape.width()).map(|i| self.member(&place, i));
            if let Some((_, base)) = members.find(|(member, _)| *member == child) {
                let row = |offset: u64| ((offset - group) / stripe) << ashift;
                let (from, to) = (base + row(first.next_multiple_of(stripe)), base + row(last));
                match out.last_mut() {
                    Some((_, end)) if *end == from && from < to => *end = to,
                    _ if from < to => out.push((from, to)),
                    _ => {}
                }
            }
            at = last;
        }
        out
    }

    /// The child, and the offset on it, of a column of a group.
    fn member(&self, place: &Place, i: u64) -> (usize, u64) {
        let column = place.column + i;
        // What does not fit into the row lies in the next.
        let (column, offset) = match column.checked_sub(self.shape.ndisks()) {
            Some(column) => (column, place.offset + ROW),
            None => (column, place.offset),
        };
        (self.child(place.slice, column), offset)
    }

    /// The layout of `size` bytes (whole sectors) at `offset` of the address space.
    pub(super) fn map(&self, offset: u64, size: u64, ashift: u32) -> Map {
        let mut map = Map::empty(true);
        let (mut offset, mut left) = (offset, size >> ashift);
        while left > 0 {
            let end = self.group_end(offset);
            let stripes = ((end - offset) / self.stripe(ashift)).max(1);
            let sectors = left.min(stripes * self.shape.ndata);
            self.map_group(&mut map, offset, sectors, ashift);
            left -= sectors;
            offset = end;
        }
        map
    }

    /// The columns of so many sectors of data in one group.
    fn map_group(&self, map: &mut Map, offset: u64, sectors: u64, ashift: u32) {
        let Shape { nparity, ndata, .. } = self.shape;
        let (full, rest) = (sectors / ndata, sectors % ndata);
        let height = full + u64::from(rest > 0);
        let place = self.place(offset, ashift);
        let mut cols: SmallVec<[Col; 8]> = SmallVec::new();
        for i in 0..self.shape.width() {
            let (child, offset) = self.member(&place, i);
            let held = if i < nparity { height } else { full + u64::from(i - nparity < rest) };
            let data = Col { child, offset, size: held << ashift };
            if held < height {
                let size = (height - held) << ashift;
                map.skips.push(Col { child, offset: offset + data.size, size });
            }
            // One without bytes has a place in the parity too.
            cols.push(data);
        }
        map.add_row(cols, nparity as usize);
    }
}

/// A generator of the xoroshiro family, as the format asks for it.
struct Generator(u64, u64);

impl Generator {
    fn next(&mut self) -> u64 {
        let (a, b) = (self.0, self.1);
        let out = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
        let mixed = a ^ b;
        (self.0, self.1) = (a.rotate_left(49) ^ mixed ^ (mixed << 21), mixed.rotate_left(28));
        out
    }
}

/// All permutations of so many children, one after the other. Each is the one before, shuffled.
fn permutations(children: usize) -> Vec<u8> {
    let count = if children < 32 { 256 } else { 512 };
    let seed = children.checked_sub(FEWEST).and_then(|i| SEEDS.get(i)).map_or(1, |(seed, _)| *seed);
    let mut random = Generator(SEED, seed);
    let mut row: Vec<u8> = (0..children as u64).map(|i| i as u8).collect();
    let mut all = Vec::with_capacity(children * count);
    for _ in 0..count {
        for last in (1..children).rev() {
            let other = random.next() % (last as u64 + 1);
            row.swap(last, other as usize);
        }
        all.extend_from_slice(&row);
    }
    all
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn all_permutations_have_the_format_s_checksums() {
        for (i, (_, sum)) in SEEDS.iter().enumerate() {
            let perms = permutations(i + FEWEST);
            assert_eq!(zilla_codec::checksum::fletcher4(&perms, false)[0], *sum, "{}", i + FEWEST);
        }
    }

    fn shapes() -> Vec<Shape> {
        let mut all = Vec::new();
        for (nparity, ndata, nspares, children) in [
            (1, 1, 0, 2),
            (1, 2, 1, 5),
            (1, 8, 1, 11),
            (2, 4, 2, 13),
            (3, 3, 0, 7),
            (3, 8, 4, 40),
            (2, 5, 1, 8),
        ] {
            all.push(Shape { nparity, ndata, nspares, children });
        }
        all
    }

    /// Every sector of every child belongs to one place of the address space, but those of the
    /// spares.
    #[test]
    fn the_address_space_covers_each_child_s_sectors_once() {
        for shape in shapes() {
            let draid = Draid::new(shape, shape.groups()).unwrap();
            let ashift = 20;
            let mut seen = std::collections::BTreeSet::new();
            let slices = 3 * draid.group_size() * draid.ngroups;
            let stripe = draid.stripe(ashift);
            for at in (0..slices).step_by(stripe as usize) {
                let map = draid.map(at, shape.ndata << ashift, ashift);
                assert_eq!(map.cols.len() as u64, shape.width());
                assert!(map.skips.is_empty());
                for c in &map.cols {
                    assert_eq!(c.size, 1 << ashift);
                    assert!(seen.insert((c.child, c.offset)), "{shape:?} {c:?}");
                }
            }
            let rows = (3 * draid.slice_height()) >> ashift;
            assert_eq!(seen.len() as u64, rows * shape.ndisks());
            for spare in 0..shape.nspares {
                for at in (0..3 * draid.slice_height()).step_by(1 << ashift) {
                    assert!(seen.insert((draid.spare_child(spare, at).unwrap(), at)));
                }
            }
            assert_eq!(seen.len() as u64, rows * shape.children);
        }
    }

    /// Each child's places, stretch by stretch, are those of the blocks, and follow each other.
    #[test]
    fn places_on_children_are_those_of_blocks() {
        for shape in shapes() {
            let draid = Draid::new(shape, shape.groups()).unwrap();
            let (ashift, slices) = (20, 3 * draid.group_size() * draid.ngroups);
            let stripe = draid.stripe(ashift);
            let mut sectors = std::collections::BTreeSet::new();
            for at in (0..slices).step_by(stripe as usize) {
                let cols = draid.map(at, shape.ndata << ashift, ashift).cols;
                sectors.extend(cols.iter().map(|c| (c.child, c.offset)));
            }
            let window = 5 * stripe;
            for child in 0..shape.children as usize {
                let windows = (0..slices).step_by(window as usize);
                let all =
                    windows.flat_map(|at| draid.places_on(child, at, (at + window).min(slices), ashift));
                let mut reached = 0;
                for (start, end) in all {
                    assert!(reached <= start && start < end, "{shape:?} {child}");
                    reached = end;
                    for sector in (start..end).step_by(1 << ashift) {
                        assert!(sectors.remove(&(child, sector)), "{shape:?} {child} {sector}");
                    }
                }
            }
            assert!(sectors.is_empty(), "{shape:?}");
        }
    }

    #[test]
    fn a_block_fills_its_stripes_and_goes_on_in_the_next_group() {
        let shape = Shape { nparity: 1, ndata: 2, nspares: 1, children: 5 };
        let draid = Draid::new(shape, shape.groups()).unwrap();
        let of = |offset, sectors: u64| {
            let map = draid.map(offset, sectors << 12, 12);
            let sum = |cols: &[Col]| cols.iter().map(|c| c.size).sum::<u64>() >> 12;
            (sum(&map.cols), sum(&map.skips), map)
        };
        // One sector of data, its parity, and one that holds nothing.
        assert_eq!((of(0, 1).0, of(0, 1).1), (2, 1));
        assert_eq!((of(0, 5).0, of(0, 5).1), (8, 1));
        let end = draid.group_size() - draid.stripe(12);
        let (used, skipped, map) = of(end, 5);
        assert_eq!((used, skipped), (8, 1));
        assert_eq!(map.cols.len(), 6, "three in each of two groups");
        assert_eq!(draid.psize_to_asize(5 << 12, 12), 9 << 12);
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let shape = |nparity, ndata, nspares, children| Shape { nparity, ndata, nspares, children };
        for bad in
            [shape(0, 1, 0, 3), shape(4, 1, 0, 9), shape(1, 0, 0, 3), shape(1, 2, 1, 3), shape(1, 1, 0, 256)]
        {
            assert!(Draid::new(bad, 1).is_err(), "{bad:?}");
        }
        let good = shape(1, 2, 1, 5);
        assert_eq!(good.groups(), 4);
        assert!(Draid::new(good, 3).is_err() && Draid::new(good, 0).is_err() && Draid::new(good, 4).is_ok());
    }

    #[test]
    fn sizes_are_there_and_back() {
        for shape in shapes() {
            let draid = Draid::new(shape, shape.groups()).unwrap();
            for child in [0, 48 << 20, 100 << 20, 1 << 30, 7 << 30] {
                let asize = draid.capacity(child);
                assert!(asize == 0 || draid.child_size(asize) <= child, "{shape:?} {child}");
            }
        }
    }
}
