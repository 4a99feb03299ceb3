//! The portable kernels: eight bytes of a column at a time in a machine word.

use std::ops::Range;

use super::{Rows, gf};

/// Bytes of every column that are carried through at a time, in registers where the compiler finds
/// enough.
const STRIP: usize = 64;

/// Doubles each of the eight bytes of a word.
#[inline(always)]
fn double(x: u64) -> u64 {
    let high = x & 0x8080_8080_8080_8080;
    // 0xff in each byte that overflows.
    let mask = (high << 1).wrapping_sub(high >> 7);
    (x << 1 & 0xfefe_fefe_fefe_fefe) ^ (mask & 0x1d1d_1d1d_1d1d_1d1d)
}

/// The parities `rows` of the bytes `range` of `data`, in which each column is there wholly or not
/// at all.
pub(super) fn sums(data: &[&[u8]], range: Range<usize>, rows: Rows, out: [&mut [u8]; 3]) {
    // What is not asked for is not worked out: three kernels, by the last row wanted.
    match rows.0 {
        0 | 1 => up_to::<1>(data, range, rows, out),
        2 | 3 => up_to::<2>(data, range, rows, out),
        _ => up_to::<3>(data, range, rows, out),
    }
}

fn up_to<const N: usize>(data: &[&[u8]], range: Range<usize>, rows: Rows, out: [&mut [u8]; 3]) {
    for (i, from) in range.clone().step_by(STRIP).enumerate() {
        let length = STRIP.min(range.end - from);
        let mut sums = [[0u64; STRIP / 8]; N];
        for column in data {
            let mut words = [0u64; STRIP / 8];
            if let Some(bytes) = column.get(from..from + length) {
                load(&mut words, bytes);
            }
            for (row, sum) in sums.iter_mut().enumerate() {
                for (sum, word) in sum.iter_mut().zip(&words) {
                    let times = match row {
                        0 => *sum,
                        1 => double(*sum),
                        _ => double(double(*sum)),
                    };
                    *sum = times ^ word;
                }
            }
        }
        for (row, sum) in sums.iter().enumerate() {
            if rows.has(row) {
                store(&mut out[row][i * STRIP..][..length], sum);
            }
        }
    }
}

#[inline(always)]
fn load(words: &mut [u64; STRIP / 8], bytes: &[u8]) {
    // A whole strip, which all but the last are, is loaded without asking at each word.
    let mut padded = [0; STRIP];
    let strip = bytes.first_chunk::<STRIP>().unwrap_or_else(|| {
        padded[..bytes.len()].copy_from_slice(bytes);
        &padded
    });
    for (word, bytes) in words.iter_mut().zip(strip.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

fn store(bytes: &mut [u8], words: &[u64; STRIP / 8]) {
    for (bytes, word) in bytes.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}

/// The bytes of `dst` from `from` on: the sum of the terms, each a factor and a string of bytes.
pub(super) fn combine(terms: &[(u8, &[u8])], from: usize, dst: &mut [u8]) {
    let dst = &mut dst[from..];
    dst.fill(0);
    for (factor, src) in terms {
        let [low, high] = gf::nibbles(*factor);
        for (dst, src) in dst.iter_mut().zip(&src[from..]) {
            *dst ^= low[usize::from(src & 15)] ^ high[usize::from(src >> 4)];
        }
    }
}
