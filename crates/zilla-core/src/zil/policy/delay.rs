//! The delay of a group commit, where the log's disk is rotational.
//!
//! Who writes synchronously mostly commits again as soon as he may. The first who does would send a
//! train for himself alone, and all others would wait for the one behind it: two flushes a round,
//! each of which costs a disk a part of a rotation. So where one train is under way at a time, the
//! next is delayed until as many have joined as waited when the last was stable, or were told then:
//! but not longer than a part of what a train takes, and less and less often where they do not
//! join.
//!
//! Measured with Perrin's test, 32 writers, with a modelled 7200 rpm disk as the log device: in
//! virtual time 60.9 MB/s without, 94.6 with; where the pool's own disk has the log 12.0 and 12.1.

use std::time::Duration;
use zilla_env::Backoff;

/// So much of the last train's time is waited at most.
const PART: u32 = 4;
/// After waiting in vain it is left out for twice as many trains each time, up to this power of
/// two.
const LEFT_OUT: u32 = 8;

/// What a driver knows of those who will commit again soon.
pub(in crate::zil) struct GroupDelay {
    /// Whom to wait for, and until when.
    all: usize,
    until: Duration,
    tries: Backoff,
}

impl Default for GroupDelay {
    fn default() -> GroupDelay {
        GroupDelay { all: 0, until: Duration::ZERO, tries: Backoff::new(1, LEFT_OUT) }
    }
}

impl GroupDelay {
    /// A train that took so long is stable and told `told`, while `waiting` waited for the next.
    pub(in crate::zil) fn stable(&mut self, now: Duration, took: Duration, told: usize, waiting: usize) {
        if self.tries.ready() {
            self.all = told + waiting;
            self.until = now + took / PART;
        }
    }

    /// Whether the last of them has just come.
    pub(in crate::zil) fn complete(&self, waiting: usize) -> bool {
        waiting == self.all
    }

    /// How much longer it is better to wait.
    pub(in crate::zil) fn wait(&mut self, now: Duration, waiting: usize) -> Option<Duration> {
        let all = std::mem::take(&mut self.all);
        if waiting < all {
            if now < self.until {
                self.all = all;
                return Some(self.until - now);
            }
            if waiting <= all / 2 {
                self.tries.in_vain();
                return None;
            }
        }
        if all > 0 {
            self.tries.was_of_use();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_all_are_back_or_for_a_part_of_a_trains_time() {
        let ms = Duration::from_millis(1);
        let mut r = GroupDelay::default();
        assert_eq!(r.wait(ms, 1), None, "nothing is known yet");
        r.stable(10 * ms, 4 * ms, 30, 2);
        assert_eq!(r.wait(10 * ms, 2), Some(ms));
        assert_eq!(r.wait(10 * ms + ms / 2, 31), Some(ms / 2));
        assert!(r.complete(32) && !r.complete(31));
        assert_eq!(r.wait(10 * ms + ms / 2, 32), None);
        assert_eq!(r.wait(10 * ms + ms / 2, 1), None, "once a train");
        r.stable(20 * ms, 4 * ms, 32, 0);
        assert_eq!(r.wait(21 * ms, 20), None, "time is up");
        // A lone one is back when it comes.
        r.stable(30 * ms, 4 * ms, 1, 0);
        assert_eq!(r.wait(30 * ms, 1), None);
    }

    #[test]
    fn less_and_less_often_for_those_who_do_not_come() {
        let ms = Duration::from_millis(1);
        let mut r = GroupDelay::default();
        let mut waited = Vec::new();
        let go = |r: &mut GroupDelay, i: u32, back: usize| {
            let at = i * 10 * ms;
            r.stable(at, 4 * ms, 10, 0);
            let waits = r.wait(at, 1).is_some();
            if waits {
                r.wait(at + 2 * ms, back);
            }
            waits
        };
        for i in 1..40 {
            if go(&mut r, i, 1) {
                waited.push(i);
            }
        }
        assert_eq!(waited, [1, 3, 7, 15, 31]);
        for i in 40..100 {
            go(&mut r, i, 10);
        }
        assert!(go(&mut r, 100, 10) && go(&mut r, 101, 10), "they join again");
    }
}
