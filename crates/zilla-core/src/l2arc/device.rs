//! A cache device in use: its leaf, its ring, and whether it is worth asking at the moment.
//!
//! A device that fails or stalls must cost nothing but a try now and then: a read that is not
//! answered in time is given up, and the device is passed by for a while that doubles each time;
//! one that fails again and again is taken out of use until somebody brings it back. Waiting for it
//! is bounded everywhere, at its removal too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use event_listener::Event;
use parking_lot::Mutex;
use zilla_ondisk::enums::{VdevAux, VdevState};

use super::rotor::{Layout, Rotor};
use crate::vdev::{Leaf, Vdev};

/// A demand read is given up after this: a hundred times what a slow disk needs.
pub const READ_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a device is passed by after the first read that it did not answer, and at most.
const AWAY_FIRST: Duration = Duration::from_secs(2);
const AWAY_MOST: Duration = Duration::from_secs(120);
/// Failures in a row after which a device is taken out of use.
const MAX_STRIKES: u32 = 16;
/// Reads in a row in which the pool's disks catch up with a device after which it is passed by.
const MAX_OUTRUN: u32 = 8;

pub struct CacheDev {
    pub vdev: Arc<Vdev>,
    pub leaf: Arc<Leaf>,
    pub slot: usize,
    pub layout: Layout,
    pub rotor: Mutex<Rotor>,
    /// What the header leads to is being read: nothing is written meanwhile.
    pub rebuilding: AtomicBool,
    stopped: AtomicBool,
    pub(super) stop: Event,
    patience: Patience,
}

/// How often a device has failed us, and until when it is passed by for that.
#[derive(Default)]
struct Patience {
    /// Nanoseconds of the clock.
    away_until: AtomicU64,
    /// Times in a row that it was passed by.
    timeouts: AtomicU32,
    /// Reads in a row that the pool's disks answered first, though they were asked later.
    outrun: AtomicU32,
    /// Failures in a row.
    strikes: AtomicU32,
}

impl Patience {
    fn is_away(&self, now: Duration) -> bool {
        self.away_until.load(Ordering::Relaxed) > nanos(now)
    }

    /// Something was not answered in time. For how long the device is passed by now; None if it was
    /// already: what was sent together fails together.
    fn stalled(&self, now: Duration) -> Option<Duration> {
        let until = self.away_until.load(Ordering::Relaxed);
        if until > nanos(now) {
            return None;
        }
        let n = self.timeouts.load(Ordering::Relaxed).min(16);
        let away = AWAY_FIRST.saturating_mul(1 << n).min(AWAY_MOST);
        let new = nanos(now.saturating_add(away));
        let first = self.away_until.compare_exchange(until, new, Ordering::Relaxed, Ordering::Relaxed);
        first.ok()?;
        self.timeouts.fetch_add(1, Ordering::Relaxed);
        Some(away)
    }

    /// The pool's disks were faster. The same if that was once too often.
    fn outrun(&self, now: Duration) -> Option<Duration> {
        if self.outrun.fetch_add(1, Ordering::Relaxed) + 1 < MAX_OUTRUN {
            return None;
        }
        self.outrun.store(0, Ordering::Relaxed);
        self.stalled(now)
    }

    /// Whether it was one failure in a row too many.
    fn failed(&self) -> bool {
        self.strikes.fetch_add(1, Ordering::Relaxed) + 1 == MAX_STRIKES
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl CacheDev {
    pub fn new(vdev: &Arc<Vdev>, leaf: &Arc<Leaf>, slot: usize, layout: Layout) -> CacheDev {
        CacheDev {
            vdev: vdev.clone(),
            leaf: leaf.clone(),
            slot,
            layout,
            rotor: Mutex::new(Rotor::new(layout)),
            rebuilding: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            stop: Event::new(),
            patience: Patience::default(),
        }
    }

    /// Nothing more is to be read or written: the device leaves.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.stop.notify(usize::MAX);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub fn readable(&self, now: Duration) -> bool {
        !self.is_stopped() && self.leaf.readable() && !self.patience.is_away(now)
    }

    pub fn writable(&self, now: Duration) -> bool {
        self.readable(now) && self.leaf.writable()
    }

    /// A read was answered, and well.
    pub fn worked(&self) {
        for of_a_row in [&self.patience.strikes, &self.patience.timeouts, &self.patience.outrun] {
            of_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// A write was. Whether reads are answered in time is not known by that.
    pub fn wrote(&self) {
        self.patience.strikes.store(0, Ordering::Relaxed);
    }

    /// It did not answer in time.
    pub fn stalled(&self, now: Duration) {
        self.passed_by(self.patience.stalled(now));
    }

    /// It was slower than the pool's disks, which were asked later.
    pub fn outrun(&self, now: Duration) {
        self.passed_by(self.patience.outrun(now));
    }

    fn passed_by(&self, away: Option<Duration>) {
        if let Some(away) = away {
            tracing::warn!(path = %self.leaf.path(), seconds = away.as_secs(), "the cache device does not answer in time: it is passed by");
        }
    }

    /// An I/O failed. Whether the device was taken out of use for it.
    pub fn failed(&self) -> bool {
        let taken_out = self.patience.failed();
        if taken_out {
            tracing::error!(path = %self.leaf.path(), "the cache device fails every I/O: it is taken out of use");
            self.leaf.set_unusable(VdevState::Faulted, VdevAux::ErrExceeded);
        }
        taken_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stalls_together_counts_once() {
        let (p, secs) = (Patience::default(), Duration::from_secs);
        let mut now = secs(100);
        for away in [2, 4, 8, 16, 32, 64, 120, 120] {
            assert_eq!(p.stalled(now), Some(secs(away)));
            for _ in 0..7 {
                assert_eq!(p.stalled(now + secs(1)), None);
            }
            now += secs(away);
            (0..MAX_OUTRUN).for_each(|_| assert_eq!(p.outrun(now - secs(1)), None));
            assert!(p.is_away(now - Duration::from_millis(1)) && !p.is_away(now));
        }
    }
}
