//! When an operation would be done: the arithmetic of a modelled device, free of I/O and of tasks.
//!
//! A command crosses the bus and uses the medium. The medium has channels, which find the place (a disk has one: an
//! arm that moves and a platter that turns with time; flash has as many as it reads pages at once), and one data path,
//! which every byte passes at the medium's rate. Reads wait for that. Writes are acknowledged from the cache as long as
//! it has room; the medium works the cached ones off in the time that reads leave it. A flush waits until all
//! that was cached is written.

use std::collections::VecDeque;
use std::time::Duration;

use super::Profile;

pub(super) struct Timing {
    profile: Profile,
    size: u64,
    bus_free: Duration,
    media_free: Duration,
    /// When each channel has found the last place it was asked for.
    channels: Vec<Duration>,
    /// When the accesses that somebody waits for will be done.
    waited_for: Vec<Duration>,
    /// Cached writes that are not on the medium: what is left of the cost of each, and its bytes.
    backlog: VecDeque<(Duration, u64)>,
    cached: u64,
    /// Until when the backlog has been worked off.
    settled: Duration,
    /// Time the medium owes to other accesses before it gets back to the backlog.
    owed: Duration,
    /// Where the last access of the medium ended.
    head: u64,
    /// Open erase units, the most recently used last.
    units: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Timing {
    pub(super) fn new(profile: Profile, size: u64) -> Timing {
        Timing {
            channels: vec![Duration::ZERO; profile.channels.max(1)],
            profile,
            size,
            bus_free: Duration::ZERO,
            media_free: Duration::ZERO,
            waited_for: Vec::new(),
            backlog: VecDeque::new(),
            cached: 0,
            settled: Duration::ZERO,
            owed: Duration::ZERO,
            head: 0,
            units: Vec::new(),
        }
    }

    /// When a read that is submitted now is done.
    pub(super) fn read(&mut self, now: Duration, offset: u64, len: u64) -> Duration {
        self.settle(now);
        let found = self.access(now + self.profile.command, Access::Read, offset, len);
        // The data crosses the bus while it comes off the medium; the slower of the two counts.
        let transfer = time(len, self.profile.bus);
        let begins = found.saturating_sub(transfer).max(self.bus_free);
        self.bus_free = begins + transfer;
        found.max(self.bus_free)
    }

    pub(super) fn write(&mut self, now: Duration, offset: u64, len: u64) -> Duration {
        self.settle(now);
        let arrived = (now + self.profile.command).max(self.bus_free) + time(len, self.profile.bus);
        self.bus_free = arrived;
        if len > self.profile.cache {
            return self.access(arrived, Access::Write, offset, len);
        }
        // Not acknowledged before the oldest cached writes have made room.
        let mut held = self.cached + len;
        let mut wait = Duration::ZERO;
        for (left, bytes) in &self.backlog {
            if held <= self.profile.cache {
                break;
            }
            wait += *left;
            held -= bytes;
        }
        if !wait.is_zero() {
            wait += self.owed;
        }
        let cost = self.position(arrived, Access::Write, offset, len) + self.occupies(Access::Write, len);
        self.backlog.push_back((cost, len));
        self.cached += len;
        arrived.max(now + wait)
    }

    pub(super) fn flush(&mut self, now: Duration) -> Duration {
        self.settle(now);
        let fixed = self.profile.command + self.profile.flush;
        if self.profile.cache_is_safe || self.backlog.is_empty() {
            return now + fixed;
        }
        let left: Duration = self.backlog.iter().map(|(left, _)| *left).sum();
        now + self.owed + left + fixed
    }

    /// A command without data (discard, write zeroes).
    pub(super) fn command(&mut self, now: Duration) -> Duration {
        now + self.profile.command
    }

    /// An access of the medium that somebody waits for.
    fn access(&mut self, arrived: Duration, access: Access, offset: u64, len: u64) -> Duration {
        let channel = (0..self.channels.len()).min_by_key(|&c| self.channels[c]).unwrap_or_default();
        self.waited_for.retain(|&done| done > arrived);
        let start = self.channels[channel].max(arrived);
        let (latency, rate) = self.costs(access);
        let position = self.position(start, access, offset, len);
        let found = start + position + latency;
        let done = found.max(self.media_free) + time(len, rate);
        // An arm stays where it is until the data has passed; flash senses the next page meanwhile.
        self.channels[channel] = if self.profile.rpm > 0 { done } else { found };
        self.media_free = done;
        self.owed += position + self.occupies(access, len);
        self.waited_for.push(done);
        done
    }

    /// Works the backlog off with the time the medium had to spare.
    fn settle(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.settled);
        self.settled = self.settled.max(now);
        let mut spare = passed.saturating_sub(self.owed);
        self.owed = self.owed.saturating_sub(passed);
        while let Some((left, bytes)) = self.backlog.front_mut() {
            if *left > spare {
                *left -= spare;
                break;
            }
            spare -= *left;
            self.cached -= *bytes;
            self.backlog.pop_front();
        }
    }

    fn costs(&self, access: Access) -> (Duration, u64) {
        match access {
            Access::Read => (self.profile.read, self.profile.media_read),
            Access::Write => (self.profile.write, self.profile.media_write),
        }
    }

    /// How much of the medium's time an access takes when all channels are busy.
    fn occupies(&self, access: Access, len: u64) -> Duration {
        let (latency, rate) = self.costs(access);
        (latency / self.channels.len() as u32).max(time(len, rate))
    }

    /// Moving to where the access begins; remembers where it ends.
    fn position(&mut self, start: Duration, access: Access, offset: u64, len: u64) -> Duration {
        let from = std::mem::replace(&mut self.head, offset.saturating_add(len));
        if self.profile.rpm > 0 {
            return if from == offset { Duration::ZERO } else { self.seek(start, from, offset) };
        }
        if access == Access::Write && self.profile.erase_unit > 0 {
            return self.open_unit(offset / self.profile.erase_unit);
        }
        Duration::ZERO
    }

    /// Arm and platter. What waits in the queue or the cache is done in the order that suits the drive, which shortens
    /// both ways: to a half with 32 to choose from, about what NCQ gains.
    fn seek(&self, start: Duration, from: u64, to: u64) -> Duration {
        let p = &self.profile;
        let far = from.abs_diff(to) as f64 / self.size.max(1) as f64;
        let (near, full) = (p.seek_min.as_secs_f64(), p.seek_max.as_secs_f64());
        let arm = near + (full - near).max(0.0) * far.min(1.0).sqrt();
        let turn = 60.0 / p.rpm as f64;
        let there = (start.as_secs_f64() + arm) / turn;
        let sector = (to % p.track) as f64 / p.track as f64;
        let wait = (sector - there.fract()).rem_euclid(1.0) * turn;
        let choice = self.waited_for.len().min(p.queue) + self.backlog.len().min(32);
        Duration::from_secs_f64((arm + wait) / (1.0 + (choice.max(1) as f64).log2() / 5.0))
    }

    fn open_unit(&mut self, unit: u64) -> Duration {
        let known = self.units.iter().position(|&u| u == unit);
        if let Some(at) = known {
            self.units.remove(at);
        } else if self.units.len() >= self.profile.open_units {
            self.units.remove(0);
        }
        self.units.push(unit);
        if known.is_some() { Duration::ZERO } else { self.profile.switch_unit }
    }
}

fn time(len: u64, rate: u64) -> Duration {
    Duration::from_nanos((len as u128 * 1_000_000_000 / rate.max(1) as u128) as u64)
}
