//! The dirty time log: the txgs whose writes a leaf missed.
//!
//! A block whose birth lies in a leaf's DTL is not on that leaf, so reads do not try it there and a
//! resilver rewrites it. In memory it is a set of ranges; on disk (written by the pool's sync) a
//! space map whose "space" is txgs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Half-open ranges of txgs, merged where they touch.
type Ranges = BTreeMap<u64, u64>;

fn has(ranges: &Ranges, txg: u64) -> bool {
    ranges.range(..=txg).next_back().is_some_and(|(_, &e)| e > txg)
}

#[derive(Default)]
pub struct Dtl {
    ranges: Mutex<Ranges>,
    /// What was read from disk or taken to be written last. Locked after the ranges.
    written: Mutex<Ranges>,
    /// Spares every read of a healthy leaf the lock.
    any: AtomicBool,
    /// Changed since it was last written to disk.
    dirty: AtomicBool,
}

impl Dtl {
    /// Adds the txgs `start..end`.
    pub fn add(&self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut ranges = self.ranges.lock();
        if ranges.range(..=start).next_back().is_some_and(|(_, &e)| e >= end) {
            return;
        }
        self.dirty.store(true, Ordering::Release);
        let (mut start, mut end) = (start, end);
        // Every range that overlaps or touches is swallowed.
        while let Some((&s, &e)) = ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        ranges.insert(start, end);
        self.any.store(true, Ordering::Release);
    }

    /// Takes the txgs `start..end` out: they have been resilvered.
    pub fn remove(&self, start: u64, end: u64) {
        let mut ranges = self.ranges.lock();
        let hit: Vec<(u64, u64)> =
            ranges.range(..end).filter(|&(_, &e)| e > start).map(|(&s, &e)| (s, e)).collect();
        if !hit.is_empty() {
            self.dirty.store(true, Ordering::Release);
        }
        for (s, e) in hit {
            ranges.remove(&s);
            if s < start {
                ranges.insert(s, start);
            }
            if e > end {
                ranges.insert(end, e);
            }
        }
        self.any.store(!ranges.is_empty(), Ordering::Release);
    }

    pub fn contains(&self, txg: u64) -> bool {
        self.any.load(Ordering::Acquire) && has(&self.ranges.lock(), txg)
    }

    /// Whether anything of `start..end` is missing.
    pub fn intersects(&self, start: u64, end: u64) -> bool {
        self.any.load(Ordering::Acquire)
            && self.ranges.lock().range(..end).next_back().is_some_and(|(_, &e)| e > start)
    }

    /// The first and the last txg in it.
    pub fn bounds(&self) -> Option<(u64, u64)> {
        let ranges = self.ranges.lock();
        let (first, _) = ranges.first_key_value()?;
        let (_, end) = ranges.last_key_value()?;
        Some((*first, *end - 1))
    }

    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    pub fn ranges(&self) -> Vec<(u64, u64)> {
        self.ranges.lock().iter().map(|(&s, &e)| (s, e)).collect()
    }

    /// Replaces the whole log, as it was loaded from disk.
    pub fn set(&self, new: impl IntoIterator<Item = (u64, u64)>) {
        self.ranges.lock().clear();
        self.any.store(false, Ordering::Release);
        for (start, end) in new {
            self.add(start, end);
        }
        self.write_anew();
        self.take_dirty();
    }

    /// What is on disk is to be written again, changed or not.
    pub fn write_anew(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// What is to be written, if that changed.
    pub fn take_dirty(&self) -> Option<Vec<(u64, u64)>> {
        let ranges = self.ranges.lock();
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.written.lock().clone_from(&ranges);
        Some(ranges.iter().map(|(&s, &e)| (s, e)).collect())
    }

    /// Whether a txg is in it, and what is on disk does not say so.
    pub fn is_untold(&self, txg: u64) -> bool {
        if !self.is_dirty() {
            return false;
        }
        let ranges = self.ranges.lock();
        has(&ranges, txg) && !has(&self.written.lock(), txg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_split() {
        let d = Dtl::default();
        assert!(!d.contains(5) && d.is_empty());
        d.add(5, 6);
        d.add(7, 9);
        d.add(6, 7);
        assert_eq!(d.ranges(), [(5, 9)]);
        d.add(1, 3);
        d.add(2, 12);
        assert_eq!(d.ranges(), [(1, 12)]);
        d.remove(4, 6);
        assert_eq!(d.ranges(), [(1, 4), (6, 12)]);
        assert_eq!(d.bounds(), Some((1, 11)));
        assert!(d.contains(3) && !d.contains(4) && !d.contains(5) && d.contains(6) && !d.contains(12));
        assert!(d.intersects(4, 7) && !d.intersects(4, 6));
        d.remove(0, 100);
        assert!(d.is_empty());
        assert!(d.take_dirty().is_some_and(|r| r.is_empty()) && !d.is_dirty());
        d.set([(1, 5)]);
        d.add(2, 4);
        assert!(!d.is_dirty(), "nothing new");
        d.add(2, 6);
        assert!(d.is_dirty());
    }

    #[test]
    fn what_the_disk_does_not_say_is_known() {
        let d = Dtl::default();
        d.add(5, 7);
        assert!(d.is_untold(6) && !d.is_untold(7));
        assert_eq!(d.take_dirty(), Some(vec![(5, 7)]));
        assert!(!d.is_untold(6) && d.take_dirty().is_none());
        d.add(8, 9);
        assert!(d.is_untold(8) && !d.is_untold(6));
        d.set([(3, 9)]);
        d.remove(8, 9);
        assert!(!d.is_untold(8), "it is not in it");
        d.add(8, 9);
        assert!(!d.is_untold(8), "the disk says so");
        d.set([]);
        d.add(8, 9);
        assert!(d.is_untold(8), "the disk said so once");
    }
}
