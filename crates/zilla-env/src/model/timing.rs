//! When an operation would be done: the arithmetic of a modelled device, free of I/O and of tasks.
//!
//! A command crosses the bus and uses the medium. That of a disk is a platter (`platter.rs`). Flash
//! has channels, as many as it reads pages at once, which find the place, and one data path, which
//! every byte passes at the medium's rate. Reads wait for that. Writes are acknowledged from the
//! cache as long as it has room; the medium works the cached ones off in the time that reads leave
//! it. A flush waits until all that was cached is written.

use std::collections::VecDeque;
use std::time::Duration;

use super::Profile;
use super::platter::Platter;

/// When operations of a device are done. Times that are given must not go back.
pub struct Timing {
    profile: Profile,
    platter: Option<Platter>,
    bus_free: Duration,
    media_free: Duration,
    /// When each channel has found the last place it was asked for.
    channels: Vec<Duration>,
    /// Cached writes that are not on the medium: what is left of the cost of each, and its bytes.
    backlog: VecDeque<(Duration, u64)>,
    cached: u64,
    /// Until when the backlog has been worked off.
    settled: Duration,
    /// Time the medium owes to other accesses before it gets back to the backlog.
    owed: Duration,
    /// Open erase units, the most recently used last.
    units: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Timing {
    /// A device of so many bytes that has done nothing yet.
    pub fn new(profile: Profile, size: u64) -> Timing {
        Timing {
            channels: vec![Duration::ZERO; profile.channels.max(1)],
            platter: Platter::new(&profile, size),
            profile,
            bus_free: Duration::ZERO,
            media_free: Duration::ZERO,
            backlog: VecDeque::new(),
            cached: 0,
            settled: Duration::ZERO,
            owed: Duration::ZERO,
            units: Vec::new(),
        }
    }

    /// When a read that is submitted now is done.
    pub fn read(&mut self, now: Duration, offset: u64, len: u64) -> Duration {
        self.settle(now);
        let found = self.access(now + self.profile.command, Access::Read, offset, len);
        // The data crosses the bus while it comes off the medium; the slower of the two counts.
        let transfer = time(len, self.profile.bus);
        let begins = found.saturating_sub(transfer).max(self.bus_free);
        self.bus_free = begins + transfer;
        found.max(self.bus_free)
    }

    /// When a write is acknowledged.
    pub fn write(&mut self, now: Duration, offset: u64, len: u64) -> Duration {
        self.settle(now);
        let arrived = (now + self.profile.command).max(self.bus_free) + time(len, self.profile.bus);
        self.bus_free = arrived;
        if len > self.profile.cache {
            return self.access(arrived, Access::Write, offset, len);
        }
        if let Some(platter) = &mut self.platter {
            // Not acknowledged before earlier ones have made room.
            platter.work_until(now);
            let room = platter.drained(now, self.profile.cache - len);
            platter.keep(arrived, offset, len);
            return arrived.max(room);
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
        let cost = self.position(Access::Write, offset) + self.occupies(Access::Write, len);
        self.backlog.push_back((cost, len));
        self.cached += len;
        arrived.max(now + wait)
    }

    /// When a flush is done.
    pub fn flush(&mut self, now: Duration) -> Duration {
        self.settle(now);
        let fixed = self.profile.command + self.profile.flush;
        let written = match &mut self.platter {
            _ if self.profile.cache_is_safe => now,
            Some(platter) => {
                platter.work_until(now);
                platter.drained(now, 0)
            }
            None if self.backlog.is_empty() => now,
            None => now + self.owed + self.backlog.iter().map(|(left, _)| *left).sum::<Duration>(),
        };
        let done = written + fixed;
        if self.profile.flush_blocks {
            self.bus_free = self.bus_free.max(done);
        }
        done
    }

    /// A command without data (discard, write zeroes).
    pub fn command(&mut self, now: Duration) -> Duration {
        now + self.profile.command
    }

    /// An access of the medium that somebody waits for.
    fn access(&mut self, arrived: Duration, access: Access, offset: u64, len: u64) -> Duration {
        if let Some(platter) = &mut self.platter {
            return platter.access(arrived, offset, len);
        }
        let channel = (0..self.channels.len()).min_by_key(|&c| self.channels[c]).unwrap_or_default();
        let start = self.channels[channel].max(arrived);
        let (latency, rate) = self.costs(access);
        let position = self.position(access, offset);
        let found = start + position + latency;
        let done = found.max(self.media_free) + time(len, rate);
        // The next page is sensed meanwhile.
        self.channels[channel] = found;
        self.media_free = done;
        self.owed += position + self.occupies(access, len);
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

    /// What it costs to begin there.
    fn position(&mut self, access: Access, offset: u64) -> Duration {
        if access == Access::Write && self.profile.erase_unit > 0 {
            return self.open_unit(offset / self.profile.erase_unit);
        }
        Duration::ZERO
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

pub(super) fn time(len: u64, rate: u64) -> Duration {
    Duration::from_nanos((len as u128 * 1_000_000_000 / rate.max(1) as u128) as u64)
}
