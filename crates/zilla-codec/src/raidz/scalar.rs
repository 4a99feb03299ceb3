//! The portable kernels: eight bytes of a column at a time in a machine word.

use std::ops::Range;

use super::{Rows, gf};

const STRIP: usize = 64;

/// Doubles each of the eight bytes of a word.
#[inline(always)]
fn double(x: u64) -> u64 {
    let high = x & 0x8080_8080_8080_8080;
    // 0xff in each byte that overflows.
    let mask = (high << 1).wrapping_sub(high >> 7);
    (x << 1 & 0xfefe_fefe_fefe_fefe) ^ (mask & 0x1d1d_1d1d_1d1d_1d1d)
}

/// The parities `rows` of the bytes `range` of `data`, in which each column is there wholly or not at all.
pub(super) fn sums(data: &[&[u8]], range: Range<usize>, rows: Rows, out: [&mut [u8]; 3]) {
    let [p, q, r] = out;
    for (i, from) in range.clone().step_by(STRIP).enumerate() {
        let length = STRIP.min(range.end - from);
        let (mut ps, mut qs, mut rs) = ([0u64; 8], [0u64; 8], [0u64; 8]);
        for column in data {
            let mut words = [0u64; 8];
            if let Some(bytes) = column.get(from..from + length) {
                load(&mut words, bytes);
            }
            for (((p, q), r), word) in ps.iter_mut().zip(&mut qs).zip(&mut rs).zip(words) {
                *p ^= word;
                *q = double(*q) ^ word;
                *r = double(double(*r)) ^ word;
            }
        }
        for (row, (out, sum)) in [(&mut *p, &ps), (&mut *q, &qs), (&mut *r, &rs)].into_iter().enumerate() {
            if rows.has(row) {
                store(&mut out[i * STRIP..][..length], sum);
            }
        }
    }
}

fn load(words: &mut [u64; 8], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*bytes);
    }
    for (i, byte) in rest.iter().enumerate() {
        words[whole.len()] |= u64::from(*byte) << (8 * i);
    }
}

fn store(bytes: &mut [u8], words: &[u64; 8]) {
    for (bytes, word) in bytes.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}

/// `dst` = `factor` * `src`, or that added to `dst`.
pub(super) fn multiply(factor: u8, src: &[u8], dst: &mut [u8], add: bool) {
    let [low, high] = gf::nibbles(factor);
    for (dst, src) in dst.iter_mut().zip(src) {
        let product = low[usize::from(src & 15)] ^ high[usize::from(src >> 4)];
        *dst = if add { *dst ^ product } else { product };
    }
}
