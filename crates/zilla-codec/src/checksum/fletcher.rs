//! Fletcher's sums over words: fletcher4 (32-bit words, four 64-bit sums) and fletcher2 (64-bit
//! words).
//!
//! fletcher4 keeps a running sum `a` of the words, a running sum `b` of the `a`s, `c` of the `b`s
//! and `d` of the `c`s, all modulo 2^64. Seen from the end of n words, word p is counted in `a`
//! once, in `b` m times, in `c` m(m+1)/2 times and in `d` m(m+1)(m+2)/6 times, where m = n - p. Two
//! facts follow that everything here uses: sums of two neighbouring stretches combine into the sum
//! of both ([`Fletcher4::append`]), and words dealt out to lanes can be summed lane by lane and put
//! together at the end ([`Lanes::combine`]).
//!
//! Bytes after the last whole word are not summed, as in OpenZFS: blocks are multiples of 512.

use super::Cksum;
use crate::cpu::{self, Level};

/// fletcher4 of a block.
pub fn fletcher4(data: &[u8], swap: bool) -> Cksum {
    let mut sum = Fletcher4::new(swap);
    sum.update(data);
    sum.finish()
}

/// fletcher4 with the kernel of a given level, for tests and benchmarks; levels this CPU lacks fall
/// back.
pub fn fletcher4_at(level: Level, data: &[u8], swap: bool) -> Cksum {
    let mut sum = Fletcher4::new(swap);
    sum.update_at(level.min(cpu::level()), data);
    sum.finish()
}

/// fletcher4 of data that comes in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Fletcher4 {
    sums: [u64; 4],
    swap: bool,
}

impl Fletcher4 {
    pub const fn new(swap: bool) -> Self {
        Fletcher4 { sums: [0; 4], swap }
    }

    /// Goes on from the checksum of what came before.
    pub const fn resume(sums: Cksum, swap: bool) -> Self {
        Fletcher4 { sums, swap }
    }

    /// Adds the next piece, whose length is a multiple of 4.
    pub fn update(&mut self, data: &[u8]) {
        // Twice the lanes take twice as long to put together: short stretches are better off with
        // fewer.
        let widest = if data.len() < 64 << 10 { Level::Avx2 } else { Level::Avx512 };
        self.update_at(cpu::level().min(widest), data);
    }

    fn update_at(&mut self, level: Level, data: &[u8]) {
        let done = self.update_wide(level, data);
        self.update_scalar(&data[done..]);
    }

    #[cfg(target_arch = "x86_64")]
    fn update_wide(&mut self, level: Level, data: &[u8]) -> usize {
        use super::fletcher_x86 as x86;
        // Below this a lane gets too few words to pay for putting the lanes together.
        if data.len() < 1024 || level < Level::Avx2 {
            return 0;
        }
        let whole = data.len() - data.len() % 64;
        let words = (whole / 4) as u64;
        let block = if level >= Level::Avx512 {
            // SAFETY: the level says that the CPU has AVX-512 F and BW.
            unsafe { x86::avx512(&data[..whole], self.swap) }.combine()
        } else {
            // SAFETY: the level says that the CPU has AVX2.
            unsafe { x86::avx2(&data[..whole], self.swap) }.combine()
        };
        self.append(&block, words);
        whole
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn update_wide(&mut self, _level: Level, _data: &[u8]) -> usize {
        0
    }

    fn update_scalar(&mut self, data: &[u8]) {
        let [mut a, mut b, mut c, mut d] = self.sums;
        let mut add = |word: u32| {
            a = a.wrapping_add(u64::from(word));
            b = b.wrapping_add(a);
            c = c.wrapping_add(b);
            d = d.wrapping_add(c);
        };
        // Two loops: the swap must not be asked for at every word.
        let (words, _) = data.as_chunks::<4>();
        if self.swap {
            words.iter().for_each(|w| add(u32::from_ne_bytes(*w).swap_bytes()));
        } else {
            words.iter().for_each(|w| add(u32::from_ne_bytes(*w)));
        }
        self.sums = [a, b, c, d];
    }

    /// Appends a stretch of `words` words whose own sums are `next`.
    pub fn append(&mut self, next: &Cksum, words: u64) {
        let [a, b, c, d] = self.sums;
        // The binomials are taken in 128 bits: dividing after a wrap would be wrong. A slice has
        // fewer than 2^40 words on any machine to come, so the cube fits.
        let n = u128::from(words);
        let (n1, n2, n3) = (words, (n * (n + 1) / 2) as u64, (n * (n + 1) * (n + 2) / 6) as u64);
        let mul = u64::wrapping_mul;
        let sum = |terms: [u64; 4]| terms.into_iter().fold(0, u64::wrapping_add);
        self.sums = [
            a.wrapping_add(next[0]),
            sum([b, mul(n1, a), next[1], 0]),
            sum([c, mul(n1, b), mul(n2, a), next[2]]),
            sum([d, mul(n1, c), mul(n2, b), mul(n3, a)]).wrapping_add(next[3]),
        ];
    }

    pub const fn finish(self) -> Cksum {
        self.sums
    }
}

/// Sums of `N` lanes, lane s having summed the words s, s + N, s + 2N, ... of a stretch.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Lanes<const N: usize> {
    pub sums: [[u64; N]; 4],
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
impl<const N: usize> Lanes<N> {
    /// For each lane, how its sums count in b (two factors), c (three) and d (four) of the whole.
    ///
    /// A word that lane s counts u steps before the end is m = N*u - s words before the end. The
    /// lane knows the sums over 1, u, u(u+1)/2 and u(u+1)(u+2)/6; the factors write 1, m, m(m+1)/2
    /// and m(m+1)(m+2)/6 in those terms. Negative ones stand as their two's complement: the same
    /// number modulo 2^64.
    const FACTORS: [[u64; 9]; N] = {
        let mut table = [[0; 9]; N];
        let (n, mut s) = (N as i64, 0);
        while s < n {
            let factors = [
                -s,
                n,
                s * (s - 1) / 2,
                -(n * (n + 2 * s - 1)) / 2,
                n * n,
                -(s * (s - 1) * (s - 2)) / 6,
                (n * n * n + 3 * n * n * s + 3 * n * s * s - 3 * n * n - 6 * n * s + 2 * n) / 6,
                n * n - n * n * n - n * n * s,
                n * n * n,
            ];
            let mut i = 0;
            while i < 9 {
                table[s as usize][i] = factors[i] as u64;
                i += 1;
            }
            s += 1;
        }
        table
    };

    /// The sums of the whole stretch.
    pub fn combine(&self) -> Cksum {
        let (mul, add) = (u64::wrapping_mul, u64::wrapping_add);
        let mut out = [0u64; 4];
        let [la, lb, lc, ld] = &self.sums;
        for ((((f, &a), &b), &c), &d) in Self::FACTORS.iter().zip(la).zip(lb).zip(lc).zip(ld) {
            out[0] = add(out[0], a);
            out[1] = add(out[1], add(mul(f[0], a), mul(f[1], b)));
            out[2] = add(out[2], add(add(mul(f[2], a), mul(f[3], b)), mul(f[4], c)));
            let d = add(add(mul(f[5], a), mul(f[6], b)), add(mul(f[7], c), mul(f[8], d)));
            out[3] = add(out[3], d);
        }
        out
    }
}

/// fletcher2 of a block: two interleaved pairs of sums over 64-bit words.
///
/// It has no SIMD twin: two words and four sums fill the machine's adders, and the compiler pairs
/// them.
pub fn fletcher2(data: &[u8], swap: bool) -> Cksum {
    fletcher2_from([0; 4], data, swap)
}

/// Goes on from the fletcher2 of what came before, a multiple of 16 bytes.
pub(super) fn fletcher2_from(sums: Cksum, data: &[u8], swap: bool) -> Cksum {
    let [mut a0, mut a1, mut b0, mut b1] = sums;
    let mut add = |w0: u64, w1: u64| {
        a0 = a0.wrapping_add(w0);
        a1 = a1.wrapping_add(w1);
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    };
    for [w0, w1] in data.as_chunks::<8>().0.as_chunks::<2>().0 {
        let (w0, w1) = (u64::from_ne_bytes(*w0), u64::from_ne_bytes(*w1));
        if swap { add(w0.swap_bytes(), w1.swap_bytes()) } else { add(w0, w1) }
    }
    [a0, a1, b0, b1]
}
