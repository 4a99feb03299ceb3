//! What is done before a log device is full.
//!
//! What is in the log leaves it when its txg is synced, and its space comes back two txgs later, or
//! at once when half of it is taken. If more comes in than the pool writes meanwhile, the log runs
//! full, and from one moment to the next commits go to the pool's own disks, ten or a hundred times
//! as slow, and keep those from writing the very txg that would make room.
//!
//! So txgs are hurried as soon as half of the log is taken; and from three quarters on each train
//! waits a little, the longer the fuller the log is: at the end as long as it would have taken in
//! the pool, where it would then go. So waiting is never worse than what it avoids, and where the
//! pool is as quick as the log it is hardly anything. How long a train takes in the pool is what
//! those took that went there; before the first did, none waits.

use super::log::Zilog;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How full a log is when txgs are hurried, and when trains begin to wait.
pub(super) const HURRY: f64 = 0.5;
const WAIT: f64 = 0.75;
/// Shorter waits are left out.
const LEAST: Duration = Duration::from_micros(20);
/// No wait is longer.
const MOST: Duration = Duration::from_millis(100);

/// A pool's trains that went to its own disks although it has a log device: about how long they
/// took, in nanoseconds.
#[derive(Default)]
pub struct Throttle(AtomicU64);

impl Throttle {
    pub(super) fn went_to_pool(&self, took: Duration) {
        let old = self.0.load(Ordering::Relaxed);
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // Of two at once one may be lost.
        let new = if old == 0 { took } else { old - old / 4 + took / 4 };
        self.0.store(new.max(1), Ordering::Relaxed);
    }

    /// How long a train waits when the log is so full.
    fn wait(&self, full: f64) -> Duration {
        if !(WAIT..1.0).contains(&full) {
            return Duration::ZERO;
        }
        let there = Duration::from_nanos(self.0.load(Ordering::Relaxed));
        let wait = there.min(MOST).mul_f64((full - WAIT) / (1.0 - WAIT));
        if wait < LEAST { Duration::ZERO } else { wait }
    }
}

impl Zilog {
    /// Before a train sets out.
    pub(super) async fn go_easy(&self) {
        let Some(full) = self.ctx.store.log().fullness().filter(|f| *f > HURRY) else { return };
        self.ctx.txgs.hurry();
        let wait = self.ctx.log.throttle.wait(full);
        if !wait.is_zero() {
            self.count().add(|s| &s.trains_delayed, 1);
            self.ctx.env.sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_grows_to_what_the_pool_would_take() {
        let (throttle, ms) = (Throttle::default(), Duration::from_millis(1));
        assert_eq!(throttle.wait(0.99), Duration::ZERO, "nothing is known of the pool");
        throttle.went_to_pool(40 * ms);
        assert_eq!(throttle.wait(0.74), Duration::ZERO);
        assert_eq!(throttle.wait(0.875), 20 * ms);
        assert!(throttle.wait(0.999) > 39 * ms);
        assert_eq!(throttle.wait(1.0), Duration::ZERO, "it goes to the pool");
        throttle.went_to_pool(80 * ms);
        assert_eq!(throttle.wait(0.875), 25 * ms);
        (0..60).for_each(|_| throttle.went_to_pool(ms / 10));
        assert_eq!(throttle.wait(0.76), Duration::ZERO, "not worth a sleep");
        (0..60).for_each(|_| throttle.went_to_pool(10_000 * ms));
        assert!(throttle.wait(0.999) <= MOST);
    }
}
