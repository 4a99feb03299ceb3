//! The kernels for x86-64: AVX2, and AVX-512 with GFNI.
//!
//! A strip of some vectors is carried through all columns in registers, so every data byte is read
//! once and every parity byte written once. Doubling is three operations in AVX2 and one, the
//! affine transformation by a bit matrix, with GFNI. Which parities are wanted is known when a
//! kernel is compiled.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Rows, gf};
use crate::cpu::Level;

/// The most vectors of a strip, and so what a whole strip takes.
const UNROLL: usize = 4;

/// Picks the kernel made for a set of rows.
macro_rules! by_rows {
    ($rows:expr, $kernel:ident($($arg:expr),*)) => {
        match $rows.0 & 7 {
            1 => $kernel::<true, false, false>($($arg),*),
            2 => $kernel::<false, true, false>($($arg),*),
            3 => $kernel::<true, true, false>($($arg),*),
            4 => $kernel::<false, false, true>($($arg),*),
            5 => $kernel::<true, false, true>($($arg),*),
            6 => $kernel::<false, true, true>($($arg),*),
            7 => $kernel::<true, true, true>($($arg),*),
            _ => {}
        }
    };
}

/// The parities `rows` of the first bytes of `range`, as many as make whole vectors; how many that
/// is. Each column is there for the whole of `range` or not at all.
pub(super) fn sums(
    level: Level,
    data: &[&[u8]],
    range: Range<usize>,
    rows: Rows,
    out: &mut [&mut [u8]; 3],
) -> usize {
    let vector = match level {
        Level::Scalar => return 0,
        Level::Avx2 | Level::Avx512 => 32,
        Level::Avx512Gfni => 64,
    };
    let length = (range.end - range.start) / vector * vector;
    for (row, out) in out.iter().enumerate() {
        // The kernels write through pointers: this is the check that they may.
        assert!(!rows.has(row) || out.len() >= length, "parity row {row} is too short");
    }
    let out = out.each_mut().map(|out| out.as_mut_ptr());
    let range = range.start..range.start + length;
    if vector == 64 {
        // SAFETY: the level says that the CPU has the instructions; the rows asked for are long
        // enough.
        unsafe { by_rows!(rows, sums_gfni(data, range, out)) }
    } else {
        // SAFETY: as above.
        unsafe { by_rows!(rows, sums_avx2(data, range, out)) }
    }
    length
}

/// The rows from `n` bytes further on. Not `map`, which the compiler leaves as a call in the middle
/// of a kernel.
#[inline(always)]
fn behind(out: [*mut u8; 3], n: usize) -> [*mut u8; 3] {
    [out[0].wrapping_add(n), out[1].wrapping_add(n), out[2].wrapping_add(n)]
}

/// # Safety
/// The pointers of the rows asked for are valid for writing the length of `range`, a multiple
/// of 64.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn sums_gfni<const P: bool, const Q: bool, const R: bool>(
    data: &[&[u8]],
    range: Range<usize>,
    out: [*mut u8; 3],
) {
    let (mut at, mut done) = (range.start, 0);
    while range.end - at >= 64 * UNROLL {
        // SAFETY: the strip is inside the range, and so inside the rows.
        unsafe { strip_gfni::<UNROLL, P, Q, R>(data, at, behind(out, done)) };
        at += 64 * UNROLL;
        done += 64 * UNROLL;
    }
    while at < range.end {
        // SAFETY: as above.
        unsafe { strip_gfni::<1, P, Q, R>(data, at, behind(out, done)) };
        at += 64;
        done += 64;
    }
}

/// # Safety
/// The pointers of the rows asked for are valid for writing 64 * N bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn strip_gfni<const N: usize, const P: bool, const Q: bool, const R: bool>(
    data: &[&[u8]],
    at: usize,
    out: [*mut u8; 3],
) {
    let two = _mm512_set1_epi64(const { gf::bit_matrix(2) } as i64);
    let four = _mm512_set1_epi64(const { gf::bit_matrix(4) } as i64);
    let zero = _mm512_setzero_si512();
    let (mut p, mut q, mut r) = ([zero; N], [zero; N], [zero; N]);
    for column in data {
        if Q {
            for q in &mut q {
                *q = _mm512_gf2p8affine_epi64_epi8::<0>(*q, two);
            }
        }
        if R {
            for r in &mut r {
                *r = _mm512_gf2p8affine_epi64_epi8::<0>(*r, four);
            }
        }
        let Some(bytes) = column.get(at..at + 64 * N) else { continue };
        for i in 0..N {
            // SAFETY: `bytes` has 64 * N bytes, and the load asks for no alignment.
            let d = unsafe { _mm512_loadu_si512(bytes.as_ptr().add(64 * i).cast()) };
            if P {
                p[i] = _mm512_xor_si512(p[i], d);
            }
            if Q {
                q[i] = _mm512_xor_si512(q[i], d);
            }
            if R {
                r[i] = _mm512_xor_si512(r[i], d);
            }
        }
    }
    for i in 0..N {
        // SAFETY: the caller answers for the rows asked for.
        unsafe {
            if P {
                _mm512_storeu_si512(out[0].add(64 * i).cast(), p[i]);
            }
            if Q {
                _mm512_storeu_si512(out[1].add(64 * i).cast(), q[i]);
            }
            if R {
                _mm512_storeu_si512(out[2].add(64 * i).cast(), r[i]);
            }
        }
    }
}

/// # Safety
/// The pointers of the rows asked for are valid for writing the length of `range`, a multiple
/// of 32.
#[target_feature(enable = "avx2")]
unsafe fn sums_avx2<const P: bool, const Q: bool, const R: bool>(
    data: &[&[u8]],
    range: Range<usize>,
    out: [*mut u8; 3],
) {
    let (mut at, mut done) = (range.start, 0);
    while range.end - at >= 32 * UNROLL {
        // SAFETY: the strip is inside the range, and so inside the rows.
        unsafe { strip_avx2::<UNROLL, P, Q, R>(data, at, behind(out, done)) };
        at += 32 * UNROLL;
        done += 32 * UNROLL;
    }
    while at < range.end {
        // SAFETY: as above.
        unsafe { strip_avx2::<1, P, Q, R>(data, at, behind(out, done)) };
        at += 32;
        done += 32;
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn double_avx2(x: __m256i) -> __m256i {
    let over = _mm256_cmpgt_epi8(_mm256_setzero_si256(), x);
    _mm256_xor_si256(_mm256_add_epi8(x, x), _mm256_and_si256(over, _mm256_set1_epi8(0x1d)))
}

/// # Safety
/// The pointers of the rows asked for are valid for writing 32 * N bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn strip_avx2<const N: usize, const P: bool, const Q: bool, const R: bool>(
    data: &[&[u8]],
    at: usize,
    out: [*mut u8; 3],
) {
    let zero = _mm256_setzero_si256();
    let (mut p, mut q, mut r) = ([zero; N], [zero; N], [zero; N]);
    for column in data {
        if Q {
            for q in &mut q {
                *q = double_avx2(*q);
            }
        }
        if R {
            for r in &mut r {
                *r = double_avx2(double_avx2(*r));
            }
        }
        let Some(bytes) = column.get(at..at + 32 * N) else { continue };
        for i in 0..N {
            // SAFETY: `bytes` has 32 * N bytes, and the load asks for no alignment.
            let d = unsafe { _mm256_loadu_si256(bytes.as_ptr().add(32 * i).cast()) };
            if P {
                p[i] = _mm256_xor_si256(p[i], d);
            }
            if Q {
                q[i] = _mm256_xor_si256(q[i], d);
            }
            if R {
                r[i] = _mm256_xor_si256(r[i], d);
            }
        }
    }
    for i in 0..N {
        // SAFETY: the caller answers for the rows asked for.
        unsafe {
            if P {
                _mm256_storeu_si256(out[0].add(32 * i).cast(), p[i]);
            }
            if Q {
                _mm256_storeu_si256(out[1].add(32 * i).cast(), q[i]);
            }
            if R {
                _mm256_storeu_si256(out[2].add(32 * i).cast(), r[i]);
            }
        }
    }
}

/// The first bytes of `dst`, as many as make whole vectors, become the sum of the terms; how many
/// that is. Each term is a factor and a string of bytes as long as `dst`.
pub(super) fn combine(level: Level, terms: &[(u8, &[u8])], dst: &mut [u8]) -> usize {
    let vector = match level {
        Level::Scalar => return 0,
        Level::Avx2 | Level::Avx512 => 32,
        Level::Avx512Gfni => 64,
    };
    let length = dst.len() / vector * vector;
    let dst = &mut dst[..length];
    match (vector, terms) {
        // SAFETY: in all of these, the level says that the CPU has the instructions.
        (64, [a]) => unsafe { combine_gfni([*a], dst) },
        // SAFETY: as above.
        (64, [a, b]) => unsafe { combine_gfni([*a, *b], dst) },
        // SAFETY: as above.
        (64, [a, b, c]) => unsafe { combine_gfni([*a, *b, *c], dst) },
        // SAFETY: as above.
        (32, [a]) => unsafe { combine_avx2([*a], dst) },
        // SAFETY: as above.
        (32, [a, b]) => unsafe { combine_avx2([*a, *b], dst) },
        // SAFETY: as above.
        (32, [a, b, c]) => unsafe { combine_avx2([*a, *b, *c], dst) },
        _ => return 0,
    }
    length
}

#[target_feature(enable = "avx512f,avx512bw,gfni")]
fn combine_gfni<const N: usize>(terms: [(u8, &[u8]); N], dst: &mut [u8]) {
    let mut matrices = [_mm512_setzero_si512(); N];
    for (matrix, (factor, _)) in matrices.iter_mut().zip(&terms) {
        *matrix = _mm512_set1_epi64(gf::bit_matrix(*factor) as i64);
    }
    let sources = terms.map(|(_, src)| src[..dst.len()].as_chunks::<64>().0);
    for (i, dst) in dst.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let mut sum = _mm512_setzero_si512();
        for (src, matrix) in sources.iter().zip(&matrices) {
            // SAFETY: the chunk is 64 bytes, and the load asks for no alignment.
            let x = unsafe { _mm512_loadu_si512(src[i].as_ptr().cast()) };
            sum = _mm512_xor_si512(sum, _mm512_gf2p8affine_epi64_epi8::<0>(x, *matrix));
        }
        // SAFETY: the chunk is 64 bytes, and the store asks for no alignment.
        unsafe { _mm512_storeu_si512(dst.as_mut_ptr().cast(), sum) };
    }
}

#[target_feature(enable = "avx2")]
fn combine_avx2<const N: usize>(terms: [(u8, &[u8]); N], dst: &mut [u8]) {
    let mut tables = [[_mm256_setzero_si256(); 2]; N];
    for (tables, (factor, _)) in tables.iter_mut().zip(&terms) {
        for (table, nibbles) in tables.iter_mut().zip(gf::nibbles(*factor)) {
            // SAFETY: the table is 16 bytes, and the load asks for no alignment.
            *table = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(nibbles.as_ptr().cast())) };
        }
    }
    let nibble = _mm256_set1_epi8(15);
    let sources = terms.map(|(_, src)| src[..dst.len()].as_chunks::<32>().0);
    for (i, dst) in dst.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let mut sum = _mm256_setzero_si256();
        for (src, [low, high]) in sources.iter().zip(&tables) {
            // SAFETY: the chunk is 32 bytes, and the load asks for no alignment.
            let x = unsafe { _mm256_loadu_si256(src[i].as_ptr().cast()) };
            let lows = _mm256_shuffle_epi8(*low, _mm256_and_si256(x, nibble));
            let highs = _mm256_shuffle_epi8(*high, _mm256_and_si256(_mm256_srli_epi16::<4>(x), nibble));
            sum = _mm256_xor_si256(sum, _mm256_xor_si256(lows, highs));
        }
        // SAFETY: the chunk is 32 bytes, and the store asks for no alignment.
        unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), sum) };
    }
}
