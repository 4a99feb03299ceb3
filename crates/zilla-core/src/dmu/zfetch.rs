//! What the readers of one object will ask for next (OpenZFS's `dmu_zfetch`).
//!
//! Each read is compared with those before it. It may go on with a *stream*: forwards from where
//! the last read of it ended, backwards from where that began, or in equal strides. The reads that
//! belong to no stream are remembered, the newest [`RECENT`] of them. A read begins a stream if it
//! goes on from one of them, or is as far from one as that is from another.
//!
//! ```text
//!          what was read  |<-------- window ------->|
//!   --------[====][====]--|~~~~~~~~~ unused ~~~~~~~~|-----------> offset
//!                         ^next
//!          less than half of the window is unused: it grows, and the rest is read ahead
//! ```
//!
//! **What a wrong guess costs** is bounded by the first window, which is small, and by what the
//! object's streams were worth: if half of what was read ahead for a stream that has ended was not
//! asked for, the next ones must be longer, twice as long each time, before anything is read ahead
//! for them (`patience`). A stream that was worth it halves that. While there are streams that
//! nobody has gone on with since they were read ahead, new ones must be longer, too. So a database
//! that meets two neighbours by chance soon stops having their neighbours read.
//!
//! **Memory.** All streams of a pool share what may be read ahead ([`Shares`]): one alone has the
//! largest window, many have so much each that they do not push out each other's blocks.
//!
//! **Invariants.** No byte is asked for twice for one stream. A read that comes again at once
//! changes nothing. Reads of one stream that were sent at once come in any order: one that is a
//! little ahead takes the stream with it, one that is behind leaves it.

use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many streams are followed at a time. (`zfetch_max_streams` of OpenZFS is 8: more readers of
/// one file than that get nothing.)
const STREAMS: usize = 32;
/// So many reads are remembered that belong to no stream.
const RECENT: usize = 16;
/// The first window, in bytes.
const FIRST: u64 = 1 << 20;
/// The largest window, in bytes, which keeps some ten disks reading; and the largest that a stream
/// always has, half of which is as much as one request to a device may ask for.
const LARGEST: u64 = 16 << 20;
const LEAST: u64 = 2 << 20;
/// The window grows so many times over when it does.
const GROWTH: u64 = 4;
/// Strides are read ahead by reads: so many at first, and at most.
const STRIDES: Range<u64> = 4..32;
/// Two of as many of them, the newest, and one more read make strides: more would often do so by
/// chance.
const STRIDING: usize = 4;
/// So many reads of one stream may be on their way at once, and come in any order.
const REORDER: u64 = 4;
/// The most that is ever asked of a stream before it is read ahead, in reads.
const PATIENCE: u32 = 16;
/// A stream has ended that no read went on with while so many others came.
const ENDED: u32 = 256;

/// No read begins there: strides have come to an end of all there can be.
const NOWHERE: u64 = u64::MAX;

/// What a read was to the streams, by the names of OpenZFS's `zfetchstats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hit {
    /// It was the next of a stream.
    Next,
    /// It was a little ahead of the next.
    Future,
    /// It was the next of a stream in strides.
    Stride,
    /// The stream was past it.
    Past,
    /// The last read of the stream, or of none, comes again. It is not counted.
    Again,
    /// It is of no stream.
    Miss,
    /// It would be the first of a stream, but there are as many as are followed.
    Full,
}

/// Byte ranges to read ahead.
pub(super) type Wanted = SmallVec<[Range<u64>; 1]>;

/// What became of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub hit: Hit,
    pub wanted: Wanted,
    /// The stream for which that is wanted.
    pub stream: u32,
}

impl Seen {
    pub(super) fn only(hit: Hit) -> Seen {
        Seen { hit, wanted: Wanted::new(), stream: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Forwards,
    Backwards,
    /// By so many bytes from one read's beginning to the next one's.
    By(i64),
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The clock when it began, which tells it from others of its object.
    id: u32,
    way: Way,
    /// Forwards: where the next read begins. Backwards: where it ends. In strides: where it begins.
    next: u64,
    /// The last read that went on with it.
    off: u64,
    len: u64,
    /// Bytes before `next` that were passed over, and may yet be asked for.
    missing: u64,
    /// Bytes from `next` on that were read ahead; in strides, reads.
    unused: u64,
    /// As much may be unused.
    window: u64,
    /// Reads that went on with it.
    run: u32,
    /// The `run` with which it was last read ahead.
    begun: u32,
    /// What was read ahead for it in all, as the window counts.
    issued: u64,
    /// When it was last read, by [`Streams::clock`].
    last: u32,
}

impl Stream {
    fn new(way: Way, off: u64, len: u64, clock: u32) -> Option<Stream> {
        let next = match way {
            Way::Forwards => off.checked_add(len)?,
            Way::Backwards => off,
            Way::By(step) => off.checked_add_signed(step).unwrap_or(NOWHERE),
        };
        Some(Stream {
            id: clock,
            way,
            next,
            off,
            len,
            missing: 0,
            unused: 0,
            window: 0,
            run: 1,
            begun: 0,
            issued: 0,
            last: clock,
        })
    }

    /// What this read is to the stream, which then stands behind it; None if it is of another.
    fn follow(&mut self, off: u64, len: u64) -> Option<Hit> {
        if (off, len) == (self.off, self.len) {
            return Some(Hit::Again);
        }
        let end = off.checked_add(len)?;
        // How far the read is ahead of the next one, and how far behind.
        let (ahead, behind, next) = match self.way {
            Way::Forwards => (off.checked_sub(self.next), self.next.checked_sub(end), end),
            Way::Backwards => (self.next.checked_sub(end), off.checked_sub(self.next), off),
            Way::By(step) if off == self.next && len == self.len => {
                (Some(0), None, off.checked_add_signed(step).unwrap_or(NOWHERE))
            }
            Way::By(_) => return None,
        };
        let reach = len.saturating_mul(REORDER);
        let hit = match (ahead, behind) {
            (Some(0), _) if matches!(self.way, Way::By(_)) => Hit::Stride,
            (Some(0), _) => Hit::Next,
            (Some(gap), _) if self.missing.saturating_add(gap) <= reach => Hit::Future,
            (_, Some(gap)) if gap <= reach && self.missing >= len => {
                self.missing -= len;
                self.run = self.run.saturating_add(1);
                return Some(Hit::Past);
            }
            _ => return None,
        };
        let passed = match self.way {
            Way::By(_) => 1,
            _ => self.next.abs_diff(next),
        };
        self.unused = self.unused.saturating_sub(passed);
        if hit == Hit::Future {
            self.missing += passed - len;
        } else {
            self.run = self.run.saturating_add(1);
        }
        (self.next, self.off, self.len) = (next, off, len);
        Some(hit)
    }

    /// What to read ahead, if half of the window was read. The object ends at `size`; no window is
    /// larger than `largest`.
    fn advance(&mut self, size: u64, largest: u64) -> Wanted {
        let mut wanted = Wanted::new();
        if self.unused > self.window / 2 {
            return wanted;
        }
        let (next, unused) = (self.next, self.unused);
        if let Way::By(step) = self.way {
            let most = (largest / self.len.max(1)).clamp(1, STRIDES.end);
            self.window = (self.window * 2).max(STRIDES.start).min(most);
            for i in unused..self.window {
                let at = step.checked_mul(i.cast_signed()).and_then(|by| next.checked_add_signed(by));
                let Some(at) = at.filter(|at| *at < size) else { break };
                wanted.push(at..at.saturating_add(self.len).min(size));
                self.unused += 1;
            }
            self.issued += wanted.len() as u64;
            return wanted;
        }
        let window = self.window.saturating_mul(GROWTH).max(FIRST).max(self.len.saturating_mul(2));
        self.window = window.min(largest.max(self.len));
        let range = match self.way {
            Way::Backwards => next.saturating_sub(self.window)..next.saturating_sub(unused).min(size),
            _ => next.saturating_add(unused)..next.saturating_add(self.window).min(size),
        };
        if range.start < range.end {
            self.unused += range.end - range.start;
            self.issued = self.issued.saturating_add(range.end - range.start);
            wanted.push(range);
        }
        wanted
    }
}

/// Which streams of a pool are read ahead: those of the last [`ACTIVE`] times.
#[derive(Debug, Default)]
pub(super) struct Shares {
    last: Mutex<VecDeque<(usize, u32)>>,
    streams: AtomicU64,
}

/// As many of a pool's streams are told from each other.
const ACTIVE: usize = 32;

impl Shares {
    /// How large a window may be if all have `limit` bytes together.
    pub(super) fn largest(&self, limit: u64) -> u64 {
        (limit / self.streams.load(Ordering::Relaxed).max(1)).clamp(LEAST, LARGEST)
    }

    /// A stream of an object, which `of` stands for, was read ahead.
    pub(super) fn note(&self, of: usize, stream: u32) {
        let mut last = self.last.lock();
        if last.len() >= ACTIVE {
            last.pop_front();
        }
        last.push_back((of, stream));
        let is_last_of_its = |(i, one): &(usize, &(usize, u32))| !last.range(i + 1..).any(|o| o == *one);
        let different = last.iter().enumerate().filter(is_last_of_its).count();
        self.streams.store(different as u64, Ordering::Relaxed);
    }
}

/// The streams of one object.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    /// Reads of no stream: where they began, and their lengths. The newest is the last.
    recent: SmallVec<[(u64, u64); 2]>,
    /// Counts the reads.
    clock: u32,
    /// More reads than so many must have gone on with a stream before anything is read ahead.
    patience: u32,
}

impl Streams {
    /// A read of `len` bytes at `off` of an object that ends at `size`: what it was, and what to
    /// read ahead now. No window is larger than `largest`.
    pub(super) fn read(&mut self, off: u64, len: u64, size: u64, largest: u64) -> Seen {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let followed = self.streams.iter_mut().enumerate().find_map(|(i, s)| Some((i, s.follow(off, len)?)));
        let (hit, at) = match followed {
            Some((at, hit)) => (hit, at),
            None if self.recent.contains(&(off, len)) => return Seen::only(Hit::Again),
            None => match self.begin(off, len) {
                Ok(at) => (Hit::Next, at),
                Err(hit) => return Seen::only(hit),
            },
        };
        let unproven = self.streams.iter().filter(|s| s.issued > 0 && s.run <= s.begun).count() as u32;
        let needs = self.patience + unproven;
        let Some(stream) = self.streams.get_mut(at) else { return Seen::only(hit) };
        stream.last = clock;
        if matches!(hit, Hit::Past | Hit::Again) || (stream.issued == 0 && stream.run <= needs) {
            return Seen::only(hit);
        }
        let wanted = stream.advance(size, largest);
        if !wanted.is_empty() {
            stream.begun = stream.run;
        }
        Seen { hit, wanted, stream: stream.id }
    }

    /// Begins a stream with this read and one before it: where it is, or what the read was.
    fn begin(&mut self, off: u64, len: u64) -> Result<usize, Hit> {
        let Some((way, of)) = self.begins(off, len) else {
            if self.recent.len() >= RECENT {
                self.recent.remove(0);
            }
            self.recent.push((off, len));
            return Err(Hit::Miss);
        };
        if !self.make_room() {
            return Err(Hit::Full);
        }
        let stream = Stream::new(way, off, len, self.clock).ok_or(Hit::Miss)?;
        // What it goes on from is of this stream now.
        self.recent.remove(of);
        self.streams.push(stream);
        Ok(self.streams.len() - 1)
    }

    /// The way a stream goes that begins with this read and one before, and which that is.
    fn begins(&self, off: u64, len: u64) -> Option<(Way, usize)> {
        let end = off.saturating_add(len);
        let mut reads = self.recent.iter().enumerate();
        let neighbour = reads.find_map(|(i, (o, l))| match () {
            () if o.saturating_add(*l) == off => Some((Way::Forwards, i)),
            () if *o == end => Some((Way::Backwards, i)),
            () => None,
        });
        neighbour.or_else(|| {
            let newest = self.recent.len().saturating_sub(STRIDING);
            let reads = self.recent.get(newest..)?;
            reads.iter().enumerate().find_map(|(i, (o, l))| {
                let step = off.wrapping_sub(*o).cast_signed();
                let first = (o.wrapping_sub(step.cast_unsigned()), len);
                let is_third = *l == len && step.unsigned_abs() > len && reads.contains(&first);
                is_third.then_some((Way::By(step), newest + i))
            })
        })
    }

    /// Drops streams that have ended; if there are still as many as are followed, also the one that
    /// was read longest ago, unless all are in use. Whether there is room for one now.
    fn make_room(&mut self) -> bool {
        let (clock, mut patience) = (self.clock, self.patience);
        let age = |s: &Stream| clock.wrapping_sub(s.last);
        let oldest = self.streams.iter().map(age).max().unwrap_or(0);
        let is_full = self.streams.len() >= STREAMS && oldest > 4 * STREAMS as u32;
        let limit = if is_full { oldest - 1 } else { ENDED };
        self.streams.retain(|s| {
            let stays = age(s) <= limit;
            if !stays && s.issued > 0 {
                let was_waste = s.unused > s.issued / 2;
                patience = if was_waste { (patience * 2).clamp(1, PATIENCE) } else { patience / 2 };
            }
            stays
        });
        self.patience = patience;
        self.streams.len() < STREAMS
    }
}

#[cfg(test)]
mod tests;
