//! Which SIMD kernels this CPU can run, found once and kept.
//!
//! `is_x86_feature_detected!` caches too, but asks several bits; kernels are chosen per block, so
//! the answer is folded to one byte here. Levels are cumulative: a CPU of one level runs the
//! kernels of those below.

use std::sync::atomic::{AtomicU8, Ordering};

/// How far the CPU's vector units go, as far as our kernels care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Portable code only.
    Scalar = 1,
    /// AVX2: 32-byte integer vectors and byte shuffles.
    Avx2 = 2,
    /// AVX-512 F, BW and VL: 64-byte vectors. Enough for the checksums.
    Avx512 = 3,
    /// AVX-512 with GFNI: any product in GF(2^8) is one instruction. Enough for parity.
    Avx512Gfni = 4,
}

/// Zero: not looked yet.
static CACHED: AtomicU8 = AtomicU8::new(0);

/// The best level this CPU has.
#[inline]
pub fn level() -> Level {
    match CACHED.load(Ordering::Relaxed) {
        1 => Level::Scalar,
        2 => Level::Avx2,
        3 => Level::Avx512,
        4 => Level::Avx512Gfni,
        _ => {
            let found = detect();
            CACHED.store(found as u8, Ordering::Relaxed);
            found
        }
    }
}

/// Every level this CPU can run, lowest first: tests and benchmarks go through all of them.
pub fn levels() -> impl Iterator<Item = Level> {
    [Level::Scalar, Level::Avx2, Level::Avx512, Level::Avx512Gfni].into_iter().filter(|l| *l <= level())
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    if !is_x86_feature_detected!("avx2") {
        return Level::Scalar;
    }
    let wide = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl");
    match (wide, is_x86_feature_detected!("gfni")) {
        (true, true) => Level::Avx512Gfni,
        (true, false) => Level::Avx512,
        (false, _) => Level::Avx2,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Scalar
}
