//! A cache device in use: its leaf, its ring, and whether it is worth asking at the moment.
//!
//! A device that fails or stalls must cost nothing but a try now and then: a read that is not answered in time is given up, and the device is
//! passed by for a while that doubles each time; one that fails again and again is taken out of use until somebody brings it
//! back. Waiting for it is bounded everywhere, at its removal too.

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
    /// Nanoseconds of the clock until which reads pass by.
    away_until: AtomicU64,
    timeouts: AtomicU32,
    strikes: AtomicU32,
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
            away_until: AtomicU64::new(0),
            timeouts: AtomicU32::new(0),
            strikes: AtomicU32::new(0),
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
        !self.is_stopped() && self.leaf.readable() && self.away_until.load(Ordering::Relaxed) <= nanos(now)
    }

    pub fn writable(&self, now: Duration) -> bool {
        self.readable(now) && self.leaf.writable()
    }

    /// It answered, and well.
    pub fn worked(&self) {
        self.strikes.store(0, Ordering::Relaxed);
        self.timeouts.store(0, Ordering::Relaxed);
    }

    /// It did not answer in time.
    pub fn stalled(&self, now: Duration) {
        let n = self.timeouts.fetch_add(1, Ordering::Relaxed).min(16);
        let away = AWAY_FIRST.saturating_mul(1 << n).min(AWAY_MOST);
        self.away_until.store(nanos(now.saturating_add(away)), Ordering::Relaxed);
        tracing::warn!(path = %self.leaf.path(), seconds = away.as_secs(), "the cache device does not answer: it is passed by");
    }

    /// An I/O failed. Whether the device was taken out of use for it.
    pub fn failed(&self) -> bool {
        let taken_out = self.strikes.fetch_add(1, Ordering::Relaxed) + 1 == MAX_STRIKES;
        if taken_out {
            tracing::error!(path = %self.leaf.path(), "the cache device fails every I/O: it is taken out of use");
            self.leaf.set_unusable(VdevState::Faulted, VdevAux::ErrExceeded);
        }
        taken_out
    }
}
