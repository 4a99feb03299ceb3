//! fletcher4 with AVX2 and AVX-512: a vector of 64-bit lanes, each lane a pair of interleaved sums.
//!
//! A 64-bit lane loads two words at once, v = even + 2^32 * odd. The sums of the odd words are
//! taken from v >> 32. The sums of the even words need no vectors of their own: all sums are linear
//! modulo 2^64, so they are the sums over v less 2^32 times those over the odd words, worked out
//! once at the end. That is nine instructions for two words a lane, where widening each word first
//! takes ten and a shuffle port.

use std::arch::x86_64::*;

use super::fletcher::Lanes;

/// How far ahead of the sums memory is asked for. A block that has left the caches is read in
/// order, but the CPU's own prefetchers end at a page's end: with the next page asked for by then,
/// summing such a block takes two thirds of the time.
const AHEAD: usize = 4096;

#[inline]
#[target_feature(enable = "sse")]
fn ask_ahead(line: &[u8]) {
    _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(AHEAD).cast());
}

/// Turns the sums over v and over the odd words into lanes in the order of the words.
fn split<const HALF: usize, const N: usize>(both: [[u64; HALF]; 4], odd: [[u64; HALF]; 4]) -> Lanes<N> {
    let mut sums = [[0; N]; 4];
    for (out, (both, odd)) in sums.iter_mut().zip(both.iter().zip(&odd)) {
        for (pair, (both, odd)) in out.as_chunks_mut::<2>().0.iter_mut().zip(both.iter().zip(odd)) {
            *pair = [both.wrapping_sub(odd << 32), *odd];
        }
    }
    Lanes { sums }
}

/// Sums `data`, a multiple of 64 bytes, in 16 lanes.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn avx512(data: &[u8], swap: bool) -> Lanes<16> {
    let flip = _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    let mut v = [_mm512_setzero_si512(); 4];
    let mut o = [_mm512_setzero_si512(); 4];
    for block in data.as_chunks::<64>().0 {
        ask_ahead(block);
        // SAFETY: the block is 64 bytes, and the load asks for no alignment.
        let mut x = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        if swap {
            x = _mm512_shuffle_epi8(x, flip);
        }
        v[0] = _mm512_add_epi64(v[0], x);
        v[1] = _mm512_add_epi64(v[1], v[0]);
        v[2] = _mm512_add_epi64(v[2], v[1]);
        v[3] = _mm512_add_epi64(v[3], v[2]);
        o[0] = _mm512_add_epi64(o[0], _mm512_srli_epi64::<32>(x));
        o[1] = _mm512_add_epi64(o[1], o[0]);
        o[2] = _mm512_add_epi64(o[2], o[1]);
        o[3] = _mm512_add_epi64(o[3], o[2]);
    }
    let store = |sums: [__m512i; 4]| {
        sums.map(|sum| {
            let mut lanes = [0u64; 8];
            // SAFETY: the array is 64 bytes, and the store asks for no alignment.
            unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), sum) };
            lanes
        })
    };
    split(store(v), store(o))
}

/// Sums `data`, a multiple of 32 bytes, in 8 lanes.
#[target_feature(enable = "avx2")]
pub(super) fn avx2(data: &[u8], swap: bool) -> Lanes<8> {
    let flip =
        _mm256_broadcastsi128_si256(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    let mut v = [_mm256_setzero_si256(); 4];
    let mut o = [_mm256_setzero_si256(); 4];
    for block in data.as_chunks::<32>().0 {
        ask_ahead(block);
        // SAFETY: the block is 32 bytes, and the load asks for no alignment.
        let mut x = unsafe { _mm256_loadu_si256(block.as_ptr().cast()) };
        if swap {
            x = _mm256_shuffle_epi8(x, flip);
        }
        v[0] = _mm256_add_epi64(v[0], x);
        v[1] = _mm256_add_epi64(v[1], v[0]);
        v[2] = _mm256_add_epi64(v[2], v[1]);
        v[3] = _mm256_add_epi64(v[3], v[2]);
        o[0] = _mm256_add_epi64(o[0], _mm256_srli_epi64::<32>(x));
        o[1] = _mm256_add_epi64(o[1], o[0]);
        o[2] = _mm256_add_epi64(o[2], o[1]);
        o[3] = _mm256_add_epi64(o[3], o[2]);
    }
    let store = |sums: [__m256i; 4]| {
        sums.map(|sum| {
            let mut lanes = [0u64; 4];
            // SAFETY: the array is 32 bytes, and the store asks for no alignment.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
            lanes
        })
    };
    split(store(v), store(o))
}
