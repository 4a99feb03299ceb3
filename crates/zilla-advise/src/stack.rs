//! LRU stack distances: how large a cache must be for each access to find its block there.
//!
//! The distance of an access is the sum of the sizes of all blocks used since the same one was
//! last, itself included; a cache that throws out what was unused for the longest finds it if and
//! only if it is at least that large. So one walk gives the hit rates of all sizes (Mattson). The
//! sum comes from a tree of partial sums over the times of last use (Fenwick), so an access costs
//! the logarithm of their number.

use std::collections::HashMap;

/// Sums over positions, of which each may change.
struct Sums(Vec<u64>);

impl Sums {
    fn add(&mut self, at: usize, n: u64) {
        let mut i = at + 1;
        while let Some(sum) = self.0.get_mut(i) {
            *sum = sum.wrapping_add(n);
            i += i & i.wrapping_neg();
        }
    }

    /// Of the positions before `end`.
    fn before(&self, end: usize) -> u64 {
        let (mut i, mut sum) = (end, 0u64);
        while i > 0 {
            sum = sum.wrapping_add(self.0.get(i).copied().unwrap_or(0));
            i &= i - 1;
        }
        sum
    }
}

/// The distance of each access in bytes; None: nobody had used it before.
pub fn distances(accesses: &[(u64, u32)]) -> Vec<Option<u64>> {
    let mut sums = Sums(vec![0; accesses.len() + 1]);
    // Where each was used last, and its size then.
    let mut last: HashMap<u64, (usize, u32)> = HashMap::new();
    let mut out = Vec::with_capacity(accesses.len());
    for (now, &(key, size)) in accesses.iter().enumerate() {
        out.push(last.insert(key, (now, size)).map(|(then, old)| {
            let since = sums.before(now).wrapping_sub(sums.before(then + 1));
            sums.add(then, u64::from(old).wrapping_neg());
            since + u64::from(size)
        }));
        sums.add(now, size.into());
    }
    out
}

/// Hit rates of all sizes.
pub struct Curve {
    /// Distances in the size of the whole, ascending.
    known: Vec<u64>,
    /// Accesses there are in all, as far as the sample stands for them.
    all: f64,
    /// Accesses that the sample should have and has not: a few blocks that everybody uses weigh
    /// more or less than their part.
    missing: f64,
}

impl Curve {
    /// `part` of the blocks were looked at; of all there were `all` accesses.
    pub fn new(distances: impl Iterator<Item = Option<u64>>, part: f64, all: u64) -> Curve {
        let mut sampled = 0u64;
        let counted = distances.inspect(|_| sampled += 1);
        let mut known: Vec<u64> = counted.flatten().map(|d| (d as f64 / part) as u64).collect();
        known.sort_unstable();
        let expected = all as f64 * part;
        Curve { known, all: expected, missing: expected - sampled as f64 }
    }

    /// The part of the accesses that a cache of so many bytes finds.
    pub fn hits(&self, size: u64) -> f64 {
        if self.all <= 0.0 || size == 0 {
            return 0.0;
        }
        let found = self.known.partition_point(|d| *d <= size) as f64;
        // Those everybody uses are found in any cache.
        ((found + self.missing) / self.all).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Access, Sample, hash};
    use proptest::prelude::*;
    use zilla_ondisk::trace::{BlockId, Found};

    /// A cache as one would write it down, without any distance.
    fn lru(accesses: &[(u64, u32)], size: u64) -> usize {
        let (mut held, mut hits) = (Vec::<(u64, u32)>::new(), 0);
        for &(key, bytes) in accesses {
            // What was unused for the longest goes until the rest has room: of a stack the top that
            // fits.
            if let Some(at) = held.iter().position(|(k, _)| *k == key) {
                let above: u64 = held.iter().take(at).map(|(_, n)| u64::from(*n)).sum();
                hits += usize::from(above + u64::from(bytes) <= size);
                held.remove(at);
            }
            held.insert(0, (key, bytes));
        }
        hits
    }

    fn zipf(n: usize, blocks: u64, seed: u64) -> Vec<BlockId> {
        let total: f64 = (1..=blocks).map(|i| 1.0 / (i as f64).powf(0.9)).sum();
        let mut sums = Vec::new();
        let mut sum = 0.0;
        for i in 1..=blocks {
            sum += 1.0 / (i as f64).powf(0.9) / total;
            sums.push(sum);
        }
        let mut x = seed | 1;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let u = (x >> 11) as f64 / (1u64 << 53) as f64;
                let rank = sums.partition_point(|s| *s < u) as u64;
                BlockId { vdev: 0, offset: (rank * 7919 % blocks) << 14, birth: 100 }
            })
            .collect()
    }

    proptest! {
        #[test]
        fn distances_are_those_of_a_stack(
            accesses in prop::collection::vec((0u64..40, 1u32..5), 1..300),
            size in 1u64..120,
        ) {
            // A block has one size as long as it lives.
            let accesses: Vec<(u64, u32)> = accesses.iter().map(|(k, s)| (*k, 1 + (*k as u32 * 7 + 3) % 5 + s / 9)).collect();
            let found = distances(&accesses).iter().filter(|d| d.is_some_and(|d| d <= size)).count();
            prop_assert_eq!(found, lru(&accesses, size));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn a_sample_tells_what_the_whole_does(seed in any::<u64>(), size in 200u64..15_000) {
            let blocks = zipf(60_000, 20_000, seed);
            let all: Vec<(u64, u32)> = blocks.iter().map(|b| (hash(b), 16384)).collect();
            let exact = distances(&all).iter().filter(|d| d.is_some_and(|d| d <= size << 14)).count();
            let exact = exact as f64 / all.len() as f64;
            let mut sample = Sample::new(12_000);
            for b in &blocks {
                let (key, found) = (hash(b), Found::Pool);
                sample.add(Access { key, size: 16384, at: 0, prefetch: false, found });
            }
            prop_assert!(sample.all.len() <= 12_000 && sample.part() < 0.5);
            let sampled: Vec<(u64, u32)> = sample.all.iter().map(|a| (a.key, a.size)).collect();
            let curve = Curve::new(distances(&sampled).into_iter(), sample.part(), all.len() as u64);
            let about = curve.hits(size << 14);
            prop_assert!((about - exact).abs() < 0.04, "sampled {}, exact {}", about, exact);
        }
    }

    #[test]
    fn no_number_of_accesses_takes_more_memory() {
        let mut sample = Sample::new(1000);
        let mut x = 1u64;
        for _ in 0..200_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            sample.add(Access { key: x, size: 512, at: 0, prefetch: false, found: Found::Pool });
        }
        assert!(sample.all.len() <= 1000 && sample.all.capacity() <= 2048);
        // One block that is all there is cannot be halved: it is kept as far as there is room.
        let mut one = Sample::new(10);
        (0..1000).for_each(|_| {
            one.add(Access { key: 0, size: 512, at: 0, prefetch: false, found: Found::Memory })
        });
        assert_eq!(one.all.len(), 10);
    }
}
