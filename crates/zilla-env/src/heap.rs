//! What the C library's heap has, which the program's small allocations come from.
//!
//! It keeps what was freed for the next request, in an arena for several threads each: whole pages
//! of that are given back now and then ([`age_heap`]), so that a program that was busy is a small
//! one afterwards. Where the C library is another than glibc nothing is known of it, nor done.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How long what was counted is good, and how often free pages are given back at most. Either takes
/// 1 to 5 ms of a core for a heap of 50 to 100 MiB.
const COUNTED: Duration = Duration::from_secs(1);
const AGE: Duration = Duration::from_secs(10);
/// Giving back may take one part in so many of the time: meanwhile nobody else has the arena, and
/// that of a large heap takes long.
const SHARE: u32 = 1000;

/// When it was last done, and what came of it.
static LAST: Mutex<(Option<Instant>, usize)> = Mutex::new((None, 0));
static AGED: Mutex<(Option<Instant>, Duration)> = Mutex::new((None, Duration::ZERO));

fn is_over(since: Option<Instant>, time: Duration) -> bool {
    since.is_none_or(|since| since.elapsed() >= time)
}

/// Bytes of the heap that are in use, as of a second ago at most.
pub fn heap_in_use() -> usize {
    let mut last = LAST.lock();
    if is_over(last.0, COUNTED) {
        *last = (Some(Instant::now()), count());
    }
    last.1
}

/// Gives free pages of the heap back to the kernel, unless that was done just now.
pub fn age_heap() {
    let mut aged = AGED.lock();
    let (last, took) = *aged;
    if is_over(last, AGE.max(took * SHARE)) {
        let begun = Instant::now();
        trim_heap();
        *aged = (Some(begun), begun.elapsed());
    }
}

#[cfg(target_env = "gnu")]
fn count() -> usize {
    // SAFETY: may be called at any time and by any thread.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

#[cfg(not(target_env = "gnu"))]
fn count() -> usize {
    0
}

/// Gives free pages of the heap back to the kernel.
#[cfg(target_env = "gnu")]
pub fn trim_heap() {
    // SAFETY: may be called at any time and by any thread; 0 is how much it leaves at the top of
    // the heap.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
pub fn trim_heap() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_counted() {
        let before = count();
        // Small ones, as of an arena, and one that is mapped by itself.
        let small: Vec<Box<[u8; 1000]>> = (0..4000).map(|_| Box::new([1; 1000])).collect();
        let large = vec![1u8; 64 << 20];
        let held = count();
        assert!(held >= before + (64 << 20) + 3_000_000, "{before} {held}");
        drop((small, large));
        assert!(count() < held - (64 << 20) / 2, "{held} {}", count());
        assert!(heap_in_use() > 0);
    }
}
