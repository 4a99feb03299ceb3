//! How far behind the last log block the next one goes on a disk that turns.
//!
//! Were it right behind, the disk would have passed its place by the time it comes, and a whole turn would go by. So it goes a little farther on: over
//! what passes under the head while the last block's flush is told, those who waited for it are woken, the next block is filled and its
//! command is sent. Too little costs a turn, too much only the time until its place comes. The part that the disk takes is always about the same. That of
//! the computer depends on who waits: next to nothing for threads of this process, half a millisecond where many processes are woken through
//! the kernel. So the pause from a flush to the next block is watched, and the gap is for one that few exceed.
//!
//! Measured with Perrin's test on the modelled 7200 rpm disk: in virtual time, where computing takes none, 60.9 MB/s with 96 KiB and 37.5 with
//! 192; through FUSE on two cores 20.3 with 96 KiB, 40.5 with 192, 34.8 with 288. Watched: 60.9 and 43.5.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the disk takes: 96 KiB are 0.4 to 0.7 ms of its rate.
const LEAST: u64 = 96 << 10;
/// Bytes that pass under the head in a microsecond.
const RATE: u64 = 150;
/// Gaps are multiples of this.
const STEP: u64 = 32 << 10;
/// Longer pauses say that nobody waited, or are not worth a gap.
const MOST: Duration = Duration::from_millis(3);

/// Pauses between log blocks. Of two at once one may be lost: it is a matter of speed only.
#[derive(Default)]
pub(super) struct Gap {
    /// When the last flush was over, in nanoseconds; 0: a block has come since.
    flushed: AtomicU64,
    /// The pause that few exceed, in nanoseconds.
    usual: AtomicU64,
}

impl Gap {
    /// A block is about to be written.
    pub(super) fn block(&self, now: Duration) {
        let flushed = self.flushed.swap(0, Ordering::Relaxed);
        let pause = (now.as_nanos() as u64).saturating_sub(flushed);
        if flushed == 0 || u128::from(pause) > MOST.as_nanos() {
            return;
        }
        let usual = self.usual.load(Ordering::Relaxed);
        // As far up for each that is longer as down for nine that are shorter.
        let step = usual / 64 + 1000;
        let new =
            if pause > usual { (usual + 9 * step).min(pause) } else { usual.saturating_sub(step).max(pause) };
        self.usual.store(new, Ordering::Relaxed);
    }

    /// It is stable.
    pub(super) fn stable(&self, now: Duration) {
        self.flushed.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// In bytes.
    pub(super) fn get(&self) -> u64 {
        let pause = self.usual.load(Ordering::Relaxed) / 1000 * RATE;
        LEAST + pause.next_multiple_of(STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_a_pause_that_few_exceed() {
        let gap = Gap::default();
        let mut now = Duration::from_secs(1);
        let mut pauses = |micros: &[u64]| {
            for &us in micros {
                gap.stable(now);
                now += Duration::from_micros(us);
                gap.block(now);
                // A second one at once.
                gap.block(now + Duration::from_micros(50));
            }
            gap.get()
        };
        assert_eq!(pauses(&[0; 10]), LEAST);
        assert_eq!(pauses(&[400; 200]), LEAST + 64 * 1024);
        // One in eight is longer: it goes by that one; one in a hundred does not count.
        let mixed: Vec<u64> = (0..2000).map(|i| if i % 8 == 0 { 800 } else { 100 }).collect();
        assert!(pauses(&mixed) >= LEAST + 96 * 1024);
        let rare: Vec<u64> = (0..2000).map(|i| if i % 100 == 0 { 800 } else { 100 }).collect();
        assert!(pauses(&rare) <= LEAST + 32 * 1024);
        assert_eq!(pauses(&[5000; 100]), LEAST + 32 * 1024, "nobody waited");
        assert_eq!(pauses(&[0; 1000]), LEAST);
    }
}
