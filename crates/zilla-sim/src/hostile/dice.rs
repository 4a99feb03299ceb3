//! Where a mutant's choices come from: a seed, or the bytes of a fuzzer.

use crate::SimRng;

/// A stream of choices.
pub enum Dice<'a> {
    Seed(SimRng),
    /// Bytes, two for each choice; zeroes when they have run out.
    Bytes(&'a [u8]),
}

impl Dice<'_> {
    pub fn new(seed: u64) -> Dice<'static> {
        Dice::Seed(SimRng::new(seed, "mutant"))
    }

    pub fn u64(&mut self) -> u64 {
        match self {
            Dice::Seed(rng) => rng.u64(),
            Dice::Bytes(_) => (0..4).fold(0, |n, _| n << 16 | self.word()),
        }
    }

    fn word(&mut self) -> u64 {
        let Dice::Bytes(bytes) = self else { return 0 };
        let (now, later) = bytes.split_at(bytes.len().min(2));
        *bytes = later;
        now.iter().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    /// Below `n`; 0 for an empty range.
    pub fn below(&mut self, n: usize) -> usize {
        match self {
            Dice::Seed(rng) => rng.below(n as u64) as usize,
            Dice::Bytes(_) if n > 1 << 16 => (self.word() << 16 | self.word()) as usize % n,
            Dice::Bytes(_) => (self.word() as usize).checked_rem(n).unwrap_or(0),
        }
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'v, T>(&mut self, all: &'v [T]) -> Option<&'v T> {
        all.get(self.below(all.len()))
    }
}
