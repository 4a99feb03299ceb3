//! A set of byte ranges that knows its total, its sizes and, on demand, its ranges by size.
//!
//! Ranges that touch are one: what is free is found as long as it really is. Two maps are kept in
//! step: by start, and (only in trees that are allocated from) by size. A change that contradicts
//! what is there (adding what is in, removing what is not) is refused whole, because in a space map
//! it means that a disk lies.

use std::collections::{BTreeMap, BTreeSet};

/// Ranges by the highest bit of their size.
pub const HISTOGRAM_SIZE: usize = 64;

/// A change that contradicts the tree; it was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("range {start:#x}..{end:#x} is {}", if *.adding { "in the set already" } else { "not in the set" })]
pub struct Contradiction {
    pub start: u64,
    pub end: u64,
    adding: bool,
}

#[derive(Clone, Debug)]
pub struct RangeTree {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
    /// Size and start.
    by_size: Option<BTreeSet<(u64, u64)>>,
    space: u64,
    histogram: [u64; HISTOGRAM_SIZE],
}

impl Default for RangeTree {
    fn default() -> Self {
        RangeTree { ranges: BTreeMap::new(), by_size: None, space: 0, histogram: [0; HISTOGRAM_SIZE] }
    }
}

fn class(size: u64) -> usize {
    (63 - size.max(1).leading_zeros()) as usize
}

impl RangeTree {
    pub fn new() -> RangeTree {
        RangeTree::default()
    }

    /// A tree that can be asked for ranges by size.
    pub fn by_size() -> RangeTree {
        RangeTree { by_size: Some(BTreeSet::new()), ..RangeTree::default() }
    }

    /// From now on the tree can be asked for ranges by size.
    pub fn index_by_size(&mut self) {
        self.by_size = Some(self.ranges.iter().map(|(&s, &e)| (e - s, s)).collect());
    }

    pub fn space(&self) -> u64 {
        self.space
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many separate ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn histogram(&self) -> &[u64; HISTOGRAM_SIZE] {
        &self.histogram
    }

    /// The ranges, ascending, as start and end.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&s, &e)| (s, e))
    }

    pub fn clear(&mut self) {
        self.ranges.clear();
        if let Some(b) = &mut self.by_size {
            b.clear();
        }
        self.space = 0;
        self.histogram = [0; HISTOGRAM_SIZE];
    }

    fn link(&mut self, start: u64, end: u64) {
        let size = end - start;
        self.ranges.insert(start, end);
        if let Some(b) = &mut self.by_size {
            b.insert((size, start));
        }
        self.histogram[class(size)] += 1;
        self.space += size;
    }

    fn unlink(&mut self, start: u64, end: u64) {
        let size = end - start;
        self.ranges.remove(&start);
        if let Some(b) = &mut self.by_size {
            b.remove(&(size, start));
        }
        self.histogram[class(size)] -= 1;
        self.space -= size;
    }

    /// The range that contains `at` or, if none does, the last one before it.
    fn at_or_before(&self, at: u64) -> Option<(u64, u64)> {
        self.ranges.range(..=at).next_back().map(|(&s, &e)| (s, e))
    }

    /// Whether all of the range is in the set.
    pub fn contains(&self, start: u64, size: u64) -> bool {
        self.at_or_before(start).is_some_and(|(_, e)| start.checked_add(size).is_some_and(|end| end <= e))
    }

    /// Whether any of the range is in the set.
    pub fn overlaps(&self, start: u64, size: u64) -> bool {
        self.ranges
            .range(..start.saturating_add(size))
            .next_back()
            .is_some_and(|(_, &e)| size > 0 && e > start)
    }

    /// What of the set lies in a window, ascending.
    pub fn within(&self, (from, to): (u64, u64)) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.at_or_before(from).filter(|&(_, e)| e > from).map_or(from, |(s, _)| s);
        let all = self.ranges.range(first.min(to)..to).map(move |(&s, &e)| (s.max(from), e.min(to)));
        all.filter(|(s, e)| s < e)
    }

    /// Adds a range of which nothing is in the set yet.
    pub fn add(&mut self, start: u64, size: u64) -> Result<(), Contradiction> {
        let refused = Contradiction { start, end: start.saturating_add(size), adding: true };
        let Some(end) = start.checked_add(size) else { return Err(refused) };
        if size == 0 {
            return Ok(());
        }
        if self.overlaps(start, size) {
            return Err(refused);
        }
        let before = self.at_or_before(start).filter(|&(_, e)| e == start);
        let after = self.ranges.get(&end).map(|&e| (end, e));
        let (mut s, mut e) = (start, end);
        if let Some((bs, be)) = before {
            self.unlink(bs, be);
            s = bs;
        }
        if let Some((as_, ae)) = after {
            self.unlink(as_, ae);
            e = ae;
        }
        self.link(s, e);
        Ok(())
    }

    /// Removes a range that is in the set as a whole.
    pub fn remove(&mut self, start: u64, size: u64) -> Result<(), Contradiction> {
        if size == 0 {
            return Ok(());
        }
        let refused = Contradiction { start, end: start.saturating_add(size), adding: false };
        let Some(end) = start.checked_add(size) else { return Err(refused) };
        let Some((s, e)) = self.at_or_before(start).filter(|&(_, e)| e >= end) else { return Err(refused) };
        self.unlink(s, e);
        if s < start {
            self.link(s, start);
        }
        if end < e {
            self.link(end, e);
        }
        Ok(())
    }

    /// Removes whatever of the range is in the set and gives what was not, ascending.
    pub fn subtract(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut at = start;
        while at < end {
            let hit = match self.at_or_before(at).filter(|&(_, e)| e > at) {
                Some(r) => Some(r),
                None => self.ranges.range(at..end).next().map(|(&s, &e)| (s, e)),
            };
            let Some((s, e)) = hit else { break };
            let (cut_s, cut_e) = (s.max(at), e.min(end));
            if at < cut_s {
                missing.push((at, cut_s));
            }
            self.unlink(s, e);
            if s < cut_s {
                self.link(s, cut_s);
            }
            if cut_e < e {
                self.link(cut_e, e);
            }
            at = cut_e;
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    /// For a change and its opposite, of which at most one is pending for any byte: what of the
    /// range is in `opposite` cancels out there, the rest is added to `self`.
    pub fn add_cancelling(
        &mut self,
        opposite: &mut RangeTree,
        start: u64,
        end: u64,
    ) -> Result<(), Contradiction> {
        for (s, e) in opposite.subtract(start, end) {
            self.add(s, e - s)?;
        }
        Ok(())
    }

    /// Adds all ranges of another tree.
    pub fn add_all(&mut self, other: &RangeTree) -> Result<(), Contradiction> {
        other.iter().try_for_each(|(s, e)| self.add(s, e - s))
    }

    /// Removes all ranges of another tree.
    pub fn remove_all(&mut self, other: &RangeTree) -> Result<(), Contradiction> {
        other.iter().try_for_each(|(s, e)| self.remove(s, e - s))
    }

    /// The size of the largest range.
    pub fn largest(&self) -> u64 {
        match &self.by_size {
            Some(b) => b.last().map_or(0, |&(size, _)| size),
            None => self.iter().map(|(s, e)| e - s).max().unwrap_or(0),
        }
    }

    /// The first range from `cursor` on with `size` bytes behind it, looking at `tries` ranges at
    /// most.
    pub fn first_fit(&self, cursor: u64, size: u64, tries: usize) -> Option<u64> {
        if let Some((_, e)) = self.at_or_before(cursor)
            && e.saturating_sub(cursor) >= size
        {
            return Some(cursor);
        }
        self.ranges.range(cursor..).take(tries).find(|(s, e)| **e - **s >= size).map(|(&s, _)| s)
    }

    /// The smallest range that holds `size` bytes; the first of those of equal size. Only in a tree
    /// [`RangeTree::by_size`].
    pub fn best_fit(&self, size: u64) -> Option<u64> {
        self.by_size.as_ref()?.range((size, 0)..).next().map(|&(_, s)| s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const N: usize = 96;

    fn check(t: &RangeTree, model: &[bool; N]) {
        let mut from_model = Vec::new();
        let mut i = 0;
        while i < N {
            if model[i] {
                let s = i;
                while i < N && model[i] {
                    i += 1;
                }
                from_model.push((s as u64, i as u64));
            } else {
                i += 1;
            }
        }
        assert_eq!(t.iter().collect::<Vec<_>>(), from_model);
        assert_eq!(t.space() as usize, model.iter().filter(|b| **b).count());
        let mut h = [0; HISTOGRAM_SIZE];
        from_model.iter().for_each(|(s, e)| h[class(e - s)] += 1);
        assert_eq!(t.histogram(), &h);
        assert_eq!(t.largest(), from_model.iter().map(|(s, e)| e - s).max().unwrap_or(0));
        for size in 1..20 {
            let best = from_model.iter().filter(|(s, e)| e - s >= size).min_by_key(|(s, e)| (e - s, *s));
            assert_eq!(t.best_fit(size), best.map(|b| b.0));
            let first =
                (30..N).find(|&i| i + size as usize <= N && model[i..i + size as usize].iter().all(|b| *b));
            assert_eq!(t.first_fit(30, size, usize::MAX).map(|v| v as usize), first);
        }
    }

    proptest! {
        #[test]
        fn like_a_bitmap(ops in prop::collection::vec((0u8..3, 0usize..N, 0usize..24), 1..60)) {
            let mut t = RangeTree::by_size();
            let mut model = [false; N];
            for (op, start, len) in ops {
                let end = (start + len).min(N);
                let (s, size) = (start as u64, (end - start) as u64);
                let range = &mut model[start..end];
                match op {
                    0 => {
                        let ok = range.iter().all(|b| !*b);
                        prop_assert_eq!(t.add(s, size).is_ok(), ok);
                        if ok { range.fill(true) }
                    }
                    1 => {
                        let ok = range.iter().all(|b| *b);
                        prop_assert_eq!(t.remove(s, size).is_ok(), ok);
                        if ok { range.fill(false) }
                    }
                    _ => {
                        let missing: u64 = t.subtract(s, s + size).iter().map(|(a, b)| b - a).sum();
                        prop_assert_eq!(missing as usize, range.iter().filter(|b| !**b).count());
                        range.fill(false);
                    }
                }
                check(&t, &model);
            }
        }
    }

    #[test]
    fn opposites_cancel() {
        let (mut allocs, mut frees) = (RangeTree::new(), RangeTree::new());
        frees.add(10, 10).unwrap();
        allocs.add_cancelling(&mut frees, 5, 15).unwrap();
        assert_eq!(allocs.iter().collect::<Vec<_>>(), [(5, 10)]);
        assert_eq!(frees.iter().collect::<Vec<_>>(), [(15, 20)]);
    }

    #[test]
    fn numbers_at_the_end_do_not_overflow() {
        let mut t = RangeTree::new();
        assert!(t.add(u64::MAX, 2).is_err());
        assert!(!t.contains(u64::MAX, 1));
        assert!(t.remove(u64::MAX - 1, 9).is_err());
    }
}
