//! Sets of half-open ranges: the valid bytes of a partial record, the freed blocks of a txg.
//!
//! Kept sorted, disjoint and merged, so that most sets are one range and a lookup is a look at it.

use smallvec::SmallVec;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Sorted, disjoint, non-adjacent, none empty.
    ranges: SmallVec<[(u64, u64); 2]>,
}

impl RangeSet {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// Index of the first range that ends at or after `pos`.
    fn first_touching(&self, pos: u64) -> usize {
        self.ranges.partition_point(|&(_, end)| end < pos)
    }

    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let from = self.first_touching(start);
        let to = self.ranges.partition_point(|&(s, _)| s <= end);
        let touching = self.ranges.get(from..to).and_then(|t| Some((t.first()?.0, t.last()?.1)));
        let Some((first, last)) = touching else {
            self.ranges.insert(from, (start, end));
            return;
        };
        self.ranges.drain(from + 1..to);
        if let Some(merged) = self.ranges.get_mut(from) {
            *merged = (first.min(start), last.max(end));
        }
    }

    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut kept = SmallVec::new();
        for &(s, e) in &self.ranges {
            if e <= start || s >= end {
                kept.push((s, e));
                continue;
            }
            if s < start {
                kept.push((s, start));
            }
            if e > end {
                kept.push((end, e));
            }
        }
        self.ranges = kept;
    }

    pub fn contains(&self, pos: u64) -> bool {
        self.contains_range(pos, pos + 1)
    }

    pub fn contains_range(&self, start: u64, end: u64) -> bool {
        if start >= end {
            return true;
        }
        // The first range that reaches beyond `start` is the only one that can hold it.
        let i = self.ranges.partition_point(|&(_, e)| e <= start);
        self.ranges.get(i).is_some_and(|&(s, e)| s <= start && end <= e)
    }

    /// The parts of `start..end` that are not in the set.
    pub fn gaps(&self, start: u64, end: u64) -> SmallVec<[(u64, u64); 2]> {
        let mut out = SmallVec::new();
        let mut at = start;
        for &(s, e) in &self.ranges {
            if e <= at {
                continue;
            }
            if s >= end {
                break;
            }
            if s > at {
                out.push((at, s));
            }
            at = e;
        }
        if at < end {
            out.push((at, end));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(ops in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..64), 0..40),
                                       a in 0u64..64, b in 0u64..64) {
            let mut set = RangeSet::default();
            let mut model = [false; 64];
            for (add, x, y) in ops {
                let (s, e) = (x.min(y), x.max(y));
                if add { set.insert(s, e) } else { set.remove(s, e) }
                for slot in &mut model[s as usize..e as usize] { *slot = add; }
            }
            let (s, e) = (a.min(b), a.max(b));
            prop_assert_eq!(set.contains_range(s, e), model[s as usize..e as usize].iter().all(|v| *v));
            let mut holes = [false; 64];
            for (x, y) in set.gaps(s, e) { for h in &mut holes[x as usize..y as usize] { *h = true; } }
            for i in s..e { prop_assert_eq!(holes[i as usize], !model[i as usize]); }
            let mut last = None;
            for (x, y) in set.iter() { prop_assert!(x < y && last.is_none_or(|l| l < x)); last = Some(y); }
        }
    }
}
