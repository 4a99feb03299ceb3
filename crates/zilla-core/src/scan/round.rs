//! The blocks of a round: gathered until memory or time is used up, then sorted by place, then
//! read.
//!
//! The larger a round, the less the disks' heads move: blocks that are read in the order of the
//! disk cost a seek where they lie far apart, and no more than the bytes between them where they
//! lie close. So a round takes what memory there is for it. It is bounded in time too, because what
//! is not written down is lost with a crash: [`Cost`] says how long a round will take, before it is
//! read.
//!
//! Blocks are freed while a round waits to be read. [`Round::kill`] marks them, so that what has to
//! be kept of them does not grow with what is freed.
//!
//! Nothing here is on disk; a crash loses the round, which is done again.

use super::{Key, key};
use crate::types::Bookmark;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_ondisk::blkptr::{BlkPtr, Dva};

/// A block to be read.
pub(super) struct Entry {
    pub(super) bp: BlkPtr,
    pub(super) at: Bookmark,
    /// What is below it could not be gathered, which counts as its error.
    pub(super) counted: bool,
}

impl Entry {
    fn place(&self) -> (u32, u64) {
        let dva = self.bp.dva(0);
        (dva.vdev, dva.offset)
    }
}

/// Bytes of a vdev in which each block costs a seek until reading all of it costs less.
const REGION: u64 = 16 << 20;
/// What a disk that turns reads a second near its center (data sheets of 3.5" disks: 60 to 130
/// MB/s), and an average seek with half a turn. An estimate is corrected by what the last one was
/// off ([`Cost::correct`]).
const RATE: u64 = 100_000_000;
const SEEK: Duration = Duration::from_millis(12);
/// By how much an estimate may be off: from memory to a disk with tired heads.
const OFF: Range<f64> = 0.01..20.0;

fn bytes(n: u64) -> Duration {
    Duration::from_nanos(n.saturating_mul(1_000_000_000 / RATE))
}

/// How long it takes to read what was gathered, in the order of the disks.
pub(super) struct Cost {
    /// Of each region of each vdev.
    regions: HashMap<(u32, u64), Duration>,
    /// Vdevs are read at the same time.
    vdevs: HashMap<u32, Duration>,
    /// What an estimate is to be multiplied by.
    factor: f64,
}

impl Cost {
    pub(super) fn new(factor: f64) -> Cost {
        Cost { regions: HashMap::new(), vdevs: HashMap::new(), factor }
    }

    pub(super) fn add(&mut self, bp: &BlkPtr) {
        let dva = bp.dva(0);
        let region = self.regions.entry((dva.vdev, dva.offset / REGION)).or_default();
        let before = *region;
        *region = (before + SEEK + bytes(dva.asize)).min(bytes(REGION));
        *self.vdevs.entry(dva.vdev).or_default() += *region - before;
    }

    fn uncorrected(&self) -> Duration {
        self.vdevs.values().max().copied().unwrap_or_default()
    }

    pub(super) fn time(&self) -> Duration {
        self.uncorrected().mul_f64(self.factor)
    }

    /// What the next estimate is to be multiplied by, now that this one took so long.
    pub(super) fn correct(&self, took: Duration) -> f64 {
        let estimate = self.uncorrected();
        // Of a few blocks it says nothing.
        if estimate < Duration::from_secs(1) {
            return self.factor;
        }
        (took.as_secs_f64() / estimate.as_secs_f64()).clamp(OFF.start, OFF.end)
    }
}

/// What was gathered, in the order in which it is read: that of the disks, unless that is not
/// wanted.
pub(super) struct Round {
    pub(super) entries: Vec<Entry>,
    /// Where they are as they came up: their numbers in the order of the disks.
    sorted: Option<Vec<u32>>,
    /// A bit for each: it is freed.
    dead: Vec<AtomicU64>,
}

impl Round {
    pub(super) fn new(mut entries: Vec<Entry>) -> Round {
        entries.sort_unstable_by_key(Entry::place);
        let dead = alive(entries.len());
        Round { entries, sorted: None, dead }
    }

    /// As they came up.
    pub(super) fn unsorted(entries: Vec<Entry>) -> Round {
        // More than memory holds.
        let Ok(n) = u32::try_from(entries.len()) else { return Round::new(entries) };
        let mut sorted: Vec<u32> = (0..n).collect();
        sorted.sort_unstable_by_key(|i| entries[*i as usize].place());
        let dead = alive(entries.len());
        Round { entries, sorted: Some(sorted), dead }
    }

    /// Entries of a block, of which there may be several: clones share blocks.
    fn of(&self, k: &Key) -> impl Iterator<Item = usize> {
        let dva = Dva::from_words([k.0, k.1]);
        let place = (dva.vdev, dva.offset);
        let at = |n: usize| self.sorted.as_ref().map_or(n, |s| s[n] as usize);
        let from = match &self.sorted {
            None => self.entries.partition_point(|e| e.place() < place),
            Some(sorted) => sorted.partition_point(|i| self.entries[*i as usize].place() < place),
        };
        let there = (from..self.entries.len()).map(at).take_while(move |&i| self.entries[i].place() == place);
        let k = *k;
        there.filter(move |&i| key(&self.entries[i].bp) == k)
    }

    /// The block is freed. Nothing, if it is not in this round.
    pub(super) fn kill(&self, k: &Key) {
        for i in self.of(k) {
            self.dead[i / 64].fetch_or(1 << (i % 64), Ordering::Relaxed);
        }
    }

    pub(super) fn is_dead(&self, k: &Key) -> bool {
        let first = self.of(k).next();
        first.is_some_and(|i| self.dead[i / 64].load(Ordering::Relaxed) >> (i % 64) & 1 != 0)
    }

    /// The entries of each vdev.
    pub(super) fn vdevs(&self) -> Vec<Range<usize>> {
        if self.sorted.is_some() {
            return std::iter::once(0..self.entries.len()).collect();
        }
        let mut out = Vec::new();
        let mut from = 0;
        while let Some(first) = self.entries.get(from) {
            let vdev = first.place().0;
            let n = self.entries[from..].partition_point(|e| e.place().0 == vdev);
            out.push(from..from + n);
            from += n;
        }
        out
    }
}

fn alive(n: usize) -> Vec<AtomicU64> {
    (0..n.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 4K, with one copy.
    fn block(vdev: u64, offset: u64, birth: u64) -> BlkPtr {
        let mut bp = BlkPtr::ZERO;
        (bp.0[0], bp.0[1], bp.0[10]) = (vdev << 32 | 8, offset / 512, birth);
        bp
    }

    fn entry(vdev: u64, offset: u64, birth: u64, object: u64) -> Entry {
        let at = Bookmark { objset: 5, object, level: 0, blkid: 0 };
        Entry { bp: block(vdev, offset, birth), at, counted: false }
    }

    #[test]
    fn blocks_are_in_the_order_of_the_disks_and_those_freed_are_known() {
        let gathered = vec![
            entry(1, 8192, 3, 1),
            entry(0, 1 << 30, 4, 2),
            entry(1, 4096, 3, 3),
            // The same one, of a clone.
            entry(0, 1 << 30, 4, 9),
        ];
        let round = Round::new(gathered);
        let as_they_came = Round::unsorted(
            [(1, 8192, 3), (0, 1 << 30, 4), (1, 4096, 3), (0, 1 << 30, 4)]
                .map(|(vdev, offset, birth)| entry(vdev, offset, birth, 1))
                .into(),
        );
        as_they_came.kill(&key(&block(0, 1 << 30, 4)));
        let dead = as_they_came.entries.iter().map(|e| as_they_came.is_dead(&key(&e.bp)));
        assert_eq!(dead.collect::<Vec<_>>(), [false, true, false, true]);
        let all = as_they_came.vdevs();
        assert_eq!((all.len(), all[0].clone()), (1, 0..4));
        let places: Vec<(u32, u64)> = round.entries.iter().map(Entry::place).collect();
        assert_eq!(places, [(0, 1 << 30), (0, 1 << 30), (1, 4096), (1, 8192)]);
        assert_eq!(round.vdevs(), [0..2, 2..4]);
        let freed = key(&block(1, 4096, 3));
        // Another that was there before, and one that is not here.
        round.kill(&key(&block(1, 4096, 2)));
        round.kill(&key(&block(2, 4096, 3)));
        assert!(round.entries.iter().all(|e| !round.is_dead(&key(&e.bp))));
        round.kill(&freed);
        assert!(round.is_dead(&freed) && !round.is_dead(&key(&block(1, 8192, 3))));
        round.kill(&key(&block(0, 1 << 30, 4)));
        assert_eq!(round.entries.iter().filter(|e| round.is_dead(&key(&e.bp))).count(), 3);
    }

    #[test]
    fn what_lies_close_costs_its_bytes_and_what_lies_apart_a_seek() {
        let mut close = Cost::new(1.0);
        (0..4096).for_each(|i| close.add(&block(0, i * 8192, 1)));
        // Two regions, read whole.
        assert_eq!(close.time(), bytes(2 * REGION));
        let mut apart = Cost::new(1.0);
        (0..100).for_each(|i| apart.add(&block(0, i << 30, 1)));
        assert_eq!(apart.time(), (SEEK + bytes(4096)) * 100);
        // Another vdev is read meanwhile.
        (0..100).for_each(|i| apart.add(&block(1, i << 30, 1)));
        assert_eq!(apart.time(), (SEEK + bytes(4096)) * 100);
        // The disk was twice as fast; of a moment it says nothing.
        let half = apart.correct(apart.time() / 2);
        assert!((0.49..0.51).contains(&half), "{half}");
        assert_eq!(Cost::new(half).correct(Duration::ZERO), half);
    }
}
