//! Until when a pool's devices may be written.
//!
//! A pool that other hosts can reach is ours as long as they see that it is in use: until some time
//! after what they saw last. The devices of a pool are opened behind a fence that asks here before
//! each write, so that a process that was stopped for too long writes nothing more, whatever it had
//! in its queues. A lease that has passed is lost, and stays so: only who has made sure that nobody
//! else took the pool meanwhile begins a new one.
//!
//! A pool that only one host can reach has no end to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zilla_env::{Clock, Env, Fence};

/// Writes are allowed for good.
const ENDLESS: u64 = u64::MAX;
/// It has passed. No time is so early.
const LOST: u64 = 0;

pub struct Lease {
    clock: Arc<dyn Clock>,
    /// Nanoseconds of the clock.
    until: AtomicU64,
}

fn nanos(t: Duration) -> u64 {
    u64::try_from(t.as_nanos()).unwrap_or(u64::MAX).clamp(LOST + 1, ENDLESS - 1)
}

/// A world in which devices are written only while the lease lasts.
pub struct Guarded {
    pub env: Env,
    pub lease: Arc<Lease>,
    /// The same without the fence.
    pub world: Env,
}

impl Lease {
    /// An endless one.
    pub fn guard(world: &Env) -> Guarded {
        let lease = Arc::new(Lease { clock: world.clock.clone(), until: AtomicU64::new(ENDLESS) });
        Guarded { env: world.fence_devices(lease.clone()), lease, world: world.clone() }
    }

    /// Writes are allowed until then, whatever was before.
    pub fn begin(&self, until: Duration) {
        self.until.store(nanos(until), Ordering::SeqCst);
    }

    /// Only one host has the pool.
    pub fn endless(&self) {
        self.until.store(ENDLESS, Ordering::SeqCst);
    }

    /// The same, if it lasts still.
    pub fn end_it_never(&self) {
        self.change(|_| ENDLESS);
    }

    /// It lasts until then, if it lasts still and not longer than that. Whether it lasts.
    pub fn renew(&self, until: Duration) -> bool {
        self.change(|old| old.max(nanos(until)))
    }

    /// It ends then at the latest.
    pub fn shorten(&self, until: Duration) -> bool {
        self.change(|old| old.min(nanos(until)))
    }

    /// Whether it lasts.
    pub fn lasts(&self) -> bool {
        self.change(|old| old)
    }

    pub fn is_lost(&self) -> bool {
        !self.lasts()
    }

    fn change(&self, new: impl Fn(u64) -> u64) -> bool {
        loop {
            let old = self.until.load(Ordering::SeqCst);
            if old == LOST {
                return false;
            }
            let over = old != ENDLESS && nanos(self.clock.boottime()) >= old;
            let new = if over { LOST } else { new(old) };
            if new == old || self.until.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                return !over;
            }
        }
    }
}

impl Fence for Lease {
    fn allows(&self) -> bool {
        self.lasts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_env::BoxFuture;

    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::SeqCst))
        }
        fn wall(&self) -> Duration {
            self.now()
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            unreachable!("nobody sleeps")
        }
    }

    #[test]
    fn a_lease_that_has_passed_stays_lost() {
        let clock = Arc::new(Hand::default());
        let lease = Lease { clock: clock.clone(), until: AtomicU64::new(ENDLESS) };
        let at = |s: u64| clock.0.store(s, Ordering::SeqCst);
        let s = Duration::from_secs;
        at(1_000_000);
        assert!(lease.lasts(), "without end");
        assert!(lease.renew(s(1)) && lease.lasts(), "and that stays so");
        lease.begin(s(1_000_010));
        at(1_000_009);
        assert!(lease.renew(s(1_000_019)));
        assert!(lease.renew(s(1_000_012)), "the later one counts");
        at(1_000_018);
        assert!(lease.lasts());
        assert!(lease.shorten(s(1_000_019)));
        at(1_000_019);
        // Nobody has looked before whoever comes too late.
        assert!(!lease.renew(s(1_000_030)));
        assert!(!lease.lasts() && !lease.renew(s(1_000_040)) && !lease.shorten(s(1_000_040)));
        assert!(lease.is_lost());
        at(5);
        assert!(lease.is_lost(), "whatever the clock says");
        lease.begin(s(10));
        assert!(lease.lasts());
        lease.endless();
        at(u64::from(u32::MAX));
        assert!(lease.lasts());
    }
}
