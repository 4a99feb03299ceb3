//! The medium of a disk: an arm, a platter that turns with time, and a cache of writes that it
//! works off in the order that suits it.
//!
//! Where on the circle an offset lies follows from the disk's rate: a track holds what passes under
//! the head in a turn. An access waits for the arm, if it goes to another track, and then until its
//! sector comes by; what follows at once on the last access waits for neither, and what comes a
//! moment too late waits for nearly a whole turn. Of the cached writes the nearest in time comes
//! next, among the oldest [`CHOICE`]. Reads come before them, but do not break off what has begun.

use std::time::Duration;

use super::Profile;
use super::timing::time;

/// So many of the oldest cached writes a disk chooses from.
const CHOICE: usize = 64;
/// Nobody is late by less than this: it is rounding.
const SLACK: Duration = Duration::from_micros(1);

#[derive(Clone)]
pub(super) struct Platter {
    /// A turn, and the bytes of it.
    turn: Duration,
    track: u64,
    rate: u64,
    seek_min: Duration,
    seek_max: Duration,
    size: u64,
    /// Where the last access ends, and when.
    head: u64,
    free: Duration,
    /// Commands it takes at once, and when those that somebody waits for will be done.
    queue: usize,
    waited_for: Vec<Duration>,
    /// Cached writes that have not begun, in the order they came in: offset, length, when they
    /// came.
    cached: Vec<(u64, u64, Duration)>,
    bytes: u64,
}

impl Platter {
    /// None: this device does not turn.
    pub(super) fn new(profile: &Profile, size: u64) -> Option<Platter> {
        let turn = Duration::from_nanos(60_000_000_000u64.checked_div(profile.rpm)?);
        let track = u128::from(profile.media_write) * turn.as_nanos() / 1_000_000_000;
        Some(Platter {
            turn,
            track: u64::try_from(track).unwrap_or(u64::MAX).max(1),
            rate: profile.media_write,
            seek_min: profile.seek_min,
            seek_max: profile.seek_max,
            size: size.max(1),
            head: 0,
            free: Duration::ZERO,
            queue: profile.queue.max(1),
            waited_for: Vec::new(),
            cached: Vec::new(),
            bytes: 0,
        })
    }

    /// From `start` until `offset` is under the head.
    fn way(&self, start: Duration, offset: u64) -> Duration {
        if offset == self.head && start <= self.free {
            return Duration::ZERO;
        }
        let far = self.head.abs_diff(offset);
        let arm = if far < self.track {
            Duration::ZERO
        } else {
            let share = (far as f64 / self.size as f64).min(1.0).sqrt();
            self.seek_min + self.seek_max.saturating_sub(self.seek_min).mul_f64(share)
        };
        let turn = self.turn.as_nanos();
        let sector = u128::from(offset % self.track) * turn / u128::from(self.track);
        let there = (start + arm).as_nanos() % turn;
        let wait = Duration::from_nanos(((sector + turn - there) % turn) as u64);
        if wait + SLACK > self.turn { arm } else { arm + wait }
    }

    /// An access that somebody waits for: when it is done. What waits in the queue is done in the
    /// order that suits, which shortens the ways: to a half with 32 to choose from, about what NCQ
    /// gains.
    pub(super) fn access(&mut self, arrived: Duration, offset: u64, len: u64) -> Duration {
        self.work_until(arrived);
        self.waited_for.retain(|&done| done > arrived);
        let choice = self.waited_for.len().clamp(1, self.queue);
        let start = self.free.max(arrived);
        let way = self.way(start, offset).div_f64(1.0 + (choice as f64).log2() / 5.0);
        self.free = start + way + time(len, self.rate);
        self.head = offset.saturating_add(len);
        self.waited_for.push(self.free);
        self.free
    }

    /// Takes a write into the cache.
    pub(super) fn keep(&mut self, arrived: Duration, offset: u64, len: u64) {
        self.cached.push((offset, len, arrived));
        self.bytes += len;
    }

    /// The best of the cached writes, as things stand now: its place in the list, and when it
    /// begins and ends.
    fn next(&self) -> Option<(usize, Duration, Duration)> {
        let start = self.free.max(self.cached.first()?.2);
        let ready = self.cached.iter().take(CHOICE).enumerate().filter(|(_, w)| w.2 <= start);
        let (i, way) = ready.map(|(i, w)| (i, self.way(start, w.0))).min_by_key(|(_, way)| *way)?;
        Some((i, start, start + way + time(self.cached.get(i)?.1, self.rate)))
    }

    fn begin(&mut self, i: usize, end: Duration) {
        let (offset, len, _) = self.cached.remove(i);
        self.bytes -= len;
        self.head = offset.saturating_add(len);
        self.free = end;
    }

    /// Works cached writes off, as far as they begin before `now`.
    pub(super) fn work_until(&mut self, now: Duration) {
        while let Some((i, _, end)) = self.next().filter(|(_, start, _)| *start < now) {
            self.begin(i, end);
        }
    }

    /// When no more than `limit` bytes are cached, if nothing else comes.
    pub(super) fn drained(&self, now: Duration, limit: u64) -> Duration {
        if self.bytes <= limit {
            // What has begun is as good as cached until its end.
            return if limit == 0 { self.free.max(now) } else { now };
        }
        let mut ahead = self.clone();
        while ahead.bytes > limit
            && let Some((i, _, end)) = ahead.next()
        {
            ahead.begin(i, end);
        }
        ahead.free.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A turn of 10 ms, 100 KB a millisecond.
    fn disk() -> Platter {
        let text = "rpm = 6000\nmedia_write_mb_s = 100\nmedia_read_mb_s = 100\nseek_min_us = 1000\nseek_max_us = 5000";
        Platter::new(&Profile::parse("test", text).unwrap(), 1 << 30).unwrap()
    }

    #[test]
    fn what_follows_at_once_waits_for_nothing_and_what_is_late_for_a_turn() {
        let mut d = disk();
        assert_eq!(d.access(Duration::ZERO, 0, 100_000), MS);
        assert_eq!(d.access(MS, 100_000, 100_000), 2 * MS);
        // Half a millisecond later the place behind it has passed; one that lies farther on comes
        // by.
        let (late, start) = (&mut d.clone(), 2 * MS + MS / 2);
        assert_eq!(late.access(start, 200_000, 100_000), 13 * MS);
        assert_eq!(d.access(start, 250_000, 100_000), 3 * MS + MS / 2);
        // Another track: first the arm.
        assert!(d.access(4 * MS, 500_000_000, 1000) > 5 * MS);
    }

    #[test]
    fn cached_writes_are_done_in_the_order_that_suits() {
        let mut d = disk();
        for at in [300_000, 100_000, 200_000, 0] {
            d.keep(Duration::ZERO, at, 100_000);
        }
        assert_eq!(d.drained(Duration::ZERO, 0), 4 * MS);
        assert_eq!(d.drained(Duration::ZERO, 300_000), MS);
        d.work_until(MS / 2);
        assert_eq!((d.bytes, d.free), (300_000, MS));
        // Somebody who waits comes before what has not begun.
        assert_eq!(d.access(MS / 2, 500_000, 100_000), 6 * MS);
        d.work_until(20 * MS);
        assert_eq!((d.bytes, d.drained(20 * MS, 0)), (0, 20 * MS));
    }
}
