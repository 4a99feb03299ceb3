//! Random numbers from a seed (xoshiro256++, seeded by splitmix64). Each part of the world draws
//! from a stream of its own, so that, say, one more disk operation does not change the schedule's
//! draws.

use parking_lot::Mutex;
use zilla_env::Rng;

#[derive(Debug, Clone)]
pub struct SimRng([u64; 4]);

impl SimRng {
    /// The stream called `stream` of a seed.
    pub fn new(seed: u64, stream: &str) -> SimRng {
        let mut x = stream.bytes().fold(seed, |x, b| mix(x ^ b as u64));
        SimRng(std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(x)
        }))
    }

    pub fn u64(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform below `n`; 0 for an empty range.
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.u64() as u128 * n as u128) >> 64) as u64
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }

    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

/// The finalizer of splitmix64: every input bit changes half of the output's.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What the engine sees as its source of randomness.
pub(crate) struct WorldRng(pub Mutex<SimRng>);

impl Rng for WorldRng {
    fn fill(&self, out: &mut [u8]) {
        self.0.lock().fill(out);
    }
}
