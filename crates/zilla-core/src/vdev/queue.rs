//! A leaf's queue: which of the waiting I/Os the device gets next.
//!
//! Classes in order of urgency (OpenZFS's priorities), each with a least and a most number of I/Os
//! at the device. First every class gets its least, in order of urgency; then, again in that order,
//! up to its most. Within a synchronous class the oldest goes first; the others go in the order of
//! the disk from where the last one was, unless the oldest has waited too long. An I/O that is
//! taken brings its neighbours of the same class along as one larger I/O.
//!
//! What nobody waits for (scrubs and the like: [`BACKGROUND`]) has the device to itself while it is
//! idle, and a small part of its time, one I/O after the other, while it is not: on a disk that
//! turns each such I/O costs the others two seeks. How small that part is can be set for resilvers
//! (`zfs_resilver_min_time_ms`). The one that is due is started by a timer ([`Queue::wake_at`]),
//! for it may be that nothing else happens.
//!
//! A prefetch that someone begins to wait for is moved to the synchronous class, so that it cannot
//! be held up by what is less urgent than its waiter.
//!
//! This is only the data structure; [`super::leaf`] moves I/Os between it and the device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use zilla_env::{IoBuf, IoVec, PAGE};

use crate::tunables::{RESILVER_MIN_TIME_MS, TXG_TIMEOUT};

use super::gather::IoDone;
use super::priority::Priority;
use super::stats::CLASSES;

/// Least and most I/Os of a class at the device.
const LIMITS: [(u32, u32); CLASSES] = [
    (10, 10), // sync read
    (10, 10), // sync write
    (1, 3),   // async read
    (2, 10),  // async write
    (1, 3),   // scrub
    (1, 2),   // removal
    (1, 1),   // initialize
    (1, 2),   // trim
    (1, 3),   // rebuild
];
/// Reads that somebody waits for at a device.
pub const READS_AT_ONCE: u64 = LIMITS[0].1 as u64;
/// This class and those below it work in the background.
const BACKGROUND: usize = Priority::Scrub as usize;
/// One part in so many of a busy device's time is the background's. The promise is that readers
/// keep 80 % of their rate during a scrub; an I/O's time at the device has that of others in it, so
/// this is on the safe side.
const SHARE: u32 = 5;
/// No longer than this is it kept waiting for that.
const HELD: Duration = Duration::from_millis(500);
/// A device that nobody has used for so long is idle: one reader's pause between two reads is
/// shorter.
const LULL: Duration = Duration::from_millis(20);
/// I/Os of all classes at the device.
const MAX_ACTIVE: u32 = 1000;
/// How long the oldest of a class that goes in disk order may be passed over.
const DEADLINE: Duration = Duration::from_millis(500);
/// Bytes that may be read for nothing between two wanted ranges, where seeking costs more than
/// reading.
const READ_GAP: u64 = 32 << 10;
/// How large an I/O may grow by taking neighbours along.
const MERGE_ROTATIONAL: u64 = 1 << 20;
const MERGE_OTHER: u64 = 128 << 10;
/// Where someone waits for a disk that turns: it begins with what it has whole, and a flush waits
/// for the last.
const MERGE_WAITED_FOR: u64 = 256 << 10;

pub enum QOp {
    /// Into this buffer, if there is one; a read that is joined with others, or done again, comes
    /// back in another.
    Read(Option<IoBuf>),
    Write(IoVec),
    Discard,
    WriteZeroes,
}

/// One I/O of a leaf. Offsets are the device's.
pub struct QIo {
    pub op: QOp,
    pub offset: u64,
    pub len: u64,
    pub class: Priority,
    /// When it entered the queue.
    pub at: Duration,
    /// It failed once and is tried for the last time, alone.
    pub retry: bool,
    pub done: Arc<dyn IoDone>,
    pub slot: usize,
}

impl QIo {
    fn mergeable(&self, other: &QIo) -> bool {
        !self.retry
            && !other.retry
            && matches!((&self.op, &other.op), (QOp::Read(_), QOp::Read(_)) | (QOp::Write(_), QOp::Write(_)))
    }

    /// What it has read of what was read together from `start` on. Of several that were joined each
    /// gets a buffer of its own, for a block that is cached would hold the bytes of all else. What
    /// the background reads is let go at once, and what is small the cache copies itself.
    pub fn part(&mut self, whole: &Bytes, start: u64) -> Bytes {
        let at = (self.offset - start) as usize;
        let part = whole.slice(at..at + self.len as usize);
        let own = match &mut self.op {
            QOp::Read(own) => own.take().filter(|buf| buf.len() == part.len()),
            _ => None,
        };
        match own {
            _ if part.len() == whole.len() => part,
            Some(mut buf) => {
                buf.copy_from_slice(&part);
                buf.into_bytes()
            }
            None if (self.class as usize) < BACKGROUND && part.len() >= PAGE => {
                IoBuf::from_slice(&part).into_bytes()
            }
            None => part,
        }
    }
}

/// I/Os that go to the device as one, in the order of their offsets.
pub type Run = SmallVec<[QIo; 1]>;

#[derive(Default)]
struct Class {
    waiting: BTreeMap<(u64, u64), QIo>,
    /// Number of entry to offset: the oldest is first.
    by_age: BTreeMap<u64, u64>,
    active: u32,
}

/// I/Os that the device has been given as one, until it has answered. Whoever gives them up takes
/// the run; the answer finds none then.
pub struct Sent {
    pub at: Duration,
    pub offset: u64,
    pub len: u64,
    pub write: bool,
    pub run: Mutex<Option<Run>>,
}

pub struct Queue {
    classes: [Class; CLASSES],
    /// At the device.
    pub sent: Vec<Arc<Sent>>,
    active: u32,
    waiting: usize,
    next_id: u64,
    /// Of those at the device, the background's; when it may have its next one while the device is
    /// busy; and when somebody else used the device the last time.
    background: u32,
    due: Duration,
    used: Option<Duration>,
    /// A resilver is under way, of which it is set how large its part is.
    pub resilvers: bool,
    /// Where the last I/O ended.
    pub last_offset: u64,
    pub rotational: bool,
}

/// Names a waiting I/O, for promotion.
pub type Ticket = u64;

impl Queue {
    pub fn new() -> Queue {
        Queue {
            classes: Default::default(),
            sent: Vec::new(),
            active: 0,
            waiting: 0,
            next_id: 0,
            background: 0,
            due: Duration::ZERO,
            used: None,
            resilvers: false,
            last_offset: 0,
            rotational: false,
        }
    }

    /// I/Os of each class that wait, and that are at the device.
    pub fn depths(&self) -> [(u64, u64); CLASSES] {
        self.classes.each_ref().map(|c| (c.waiting.len() as u64, u64::from(c.active)))
    }

    /// Takes the I/O at once if its class has room and nothing as urgent waits; else it waits.
    pub fn enter(&mut self, io: QIo) -> Result<QIo, Ticket> {
        let class = io.class as usize;
        let held = class >= BACKGROUND && self.held_until(io.at).is_some();
        if class < BACKGROUND {
            self.used = Some(io.at);
        }
        let first = self.classes.iter().take(class + 1).all(|c| c.waiting.is_empty());
        if first && !held && self.active < MAX_ACTIVE && self.classes[class].active < LIMITS[class].1 {
            self.entered(class);
            self.last_offset = io.offset + io.len;
            return Ok(io);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.waiting += 1;
        let c = &mut self.classes[class];
        c.by_age.insert(id, io.offset);
        c.waiting.insert((io.offset, id), io);
        Err(id)
    }

    fn entered(&mut self, class: usize) {
        self.classes[class].active += 1;
        self.active += 1;
        self.background += u32::from(class >= BACKGROUND);
    }

    /// Until when the background has to wait for its next I/O, if it has to; without end: until its
    /// last one is back.
    fn held_until(&self, now: Duration) -> Option<Duration> {
        let in_use = self.active > self.background
            || self.classes.iter().take(BACKGROUND).any(|c| !c.waiting.is_empty());
        let idle_at = if in_use { Duration::MAX } else { self.used? + LULL };
        if now >= idle_at {
            return None;
        }
        let due = if self.background > 0 { Duration::MAX } else { self.due };
        Some(due.min(idle_at)).filter(|t| now < *t)
    }

    /// When [`Queue::next`] should be asked again, if nothing happens before.
    pub fn wake_at(&self, now: Duration) -> Option<Duration> {
        let waits = self.classes.iter().skip(BACKGROUND).any(|c| !c.waiting.is_empty());
        self.held_until(now).filter(|t| waits && *t < Duration::MAX)
    }

    /// I/Os that wait or are at the device.
    pub fn load(&self) -> usize {
        self.waiting + self.active as usize
    }

    /// I/Os that one of a class comes after, for the choice between mirror sides. What waits in the
    /// background is passed by the others.
    pub fn before(&self, class: Priority) -> usize {
        let classes = if (class as usize) < BACKGROUND { BACKGROUND } else { CLASSES };
        let waiting: usize = self.classes.iter().take(classes).map(|c| c.waiting.len()).sum();
        waiting + self.active as usize
    }

    /// Whether I/Os of a class wait or are under way.
    pub fn has(&self, class: Priority) -> bool {
        self.classes.get(class as usize).is_some_and(|c| c.active > 0 || !c.waiting.is_empty())
    }

    /// The next I/O for the device, with its neighbours; counted as active until [`Queue::left`].
    pub fn next(&mut self, now: Duration) -> Option<Run> {
        if self.waiting == 0 || self.active >= MAX_ACTIVE {
            return None;
        }
        let classes = if self.held_until(now).is_some() { BACKGROUND } else { CLASSES };
        let below = |limit: fn((u32, u32)) -> u32| {
            let mut all = self.classes.iter().zip(LIMITS).take(classes);
            all.position(|(c, l)| !c.waiting.is_empty() && c.active < limit(l))
        };
        let class = below(|l| l.0).or_else(|| below(|l| l.1))?;
        let fifo = class <= Priority::SyncWrite as usize;
        let from = self.last_offset;
        let c = &mut self.classes[class];
        let (&id, &offset) = c.by_age.first_key_value()?;
        let oldest = (offset, id);
        let late = || c.waiting.get(&oldest).is_some_and(|io| now.saturating_sub(io.at) > DEADLINE);
        let key = if fifo || late() {
            oldest
        } else {
            let next = c.waiting.range((from, 0)..).next().or_else(|| c.waiting.iter().next());
            next.map_or(oldest, |(k, _)| *k)
        };
        let mut run = Run::new();
        run.push(self.take(class, key)?);
        self.grow(class, key, &mut run);
        self.entered(class);
        self.last_offset = run.last().map_or(0, |io| io.offset + io.len);
        Some(run)
    }

    fn take(&mut self, class: usize, key: (u64, u64)) -> Option<QIo> {
        let c = &mut self.classes[class];
        let io = c.waiting.remove(&key)?;
        c.by_age.remove(&key.1);
        self.waiting -= 1;
        Some(io)
    }

    /// Takes neighbours on both sides along.
    fn grow(&mut self, class: usize, key: (u64, u64), run: &mut Run) {
        let limit = match self.rotational {
            true if class == Priority::SyncWrite as usize => MERGE_WAITED_FOR,
            true => MERGE_ROTATIONAL,
            false => MERGE_OTHER,
        };
        let gap = if self.rotational && matches!(run[0].op, QOp::Read(_)) { READ_GAP } else { 0 };
        let mut start = run[0].offset;
        let mut end = start + run[0].len;
        if end - start >= limit {
            return;
        }
        while let Some((&k, io)) = self.classes[class].waiting.range(key..).next() {
            let near = io.offset >= end && io.offset - end <= gap && io.offset + io.len - start <= limit;
            if !near || !io.mergeable(&run[0]) {
                break;
            }
            end = io.offset + io.len;
            if let Some(io) = self.take(class, k) {
                run.push(io);
            }
        }
        while let Some((&k, io)) = self.classes[class].waiting.range(..key).next_back() {
            let tail = io.offset + io.len;
            let near = tail <= start && start - tail <= gap && end - io.offset <= limit;
            if !near || !io.mergeable(&run[0]) {
                break;
            }
            start = io.offset;
            if let Some(io) = self.take(class, k) {
                run.insert(0, io);
            }
        }
    }

    /// Takes out all that waits.
    pub fn empty(&mut self) -> Vec<QIo> {
        self.waiting = 0;
        let all = self.classes.iter_mut().flat_map(|c| {
            c.by_age.clear();
            std::mem::take(&mut c.waiting).into_values()
        });
        all.collect()
    }

    /// The device has answered.
    pub fn answered(&mut self, class: Priority, sent: &Arc<Sent>, now: Duration) {
        self.forget(sent);
        self.left(class);
        if class as usize >= BACKGROUND {
            let took = now.saturating_sub(sent.at);
            self.due = now + self.rest(took).min(HELD);
        } else {
            self.used = Some(now);
        }
    }

    /// How long the device is the others' after the background has had it for so long.
    fn rest(&self, took: Duration) -> Duration {
        if !self.resilvers {
            return took * (SHARE - 1);
        }
        let txg = TXG_TIMEOUT.get().clamp(1, 3600) * 1000;
        let part = RESILVER_MIN_TIME_MS.get().clamp(1, txg);
        took.mul_f64((txg - part) as f64 / part as f64)
    }

    pub fn forget(&mut self, sent: &Arc<Sent>) {
        if let Some(i) = self.sent.iter().position(|s| Arc::ptr_eq(s, sent)) {
            self.sent.swap_remove(i);
        }
    }

    /// An I/O of the class has come back from the device.
    fn left(&mut self, class: Priority) {
        self.classes[class as usize].active -= 1;
        self.active -= 1;
        self.background -= u32::from(class as usize >= BACKGROUND);
    }

    /// Moves a waiting I/O to a more urgent class.
    pub fn promote(&mut self, id: Ticket, to: Priority) {
        let from = self.classes.iter().position(|c| c.by_age.contains_key(&id));
        let Some(from) = from.filter(|&from| from > to as usize) else { return };
        let Some(&offset) = self.classes[from].by_age.get(&id) else { return };
        if let Some(mut io) = self.take(from, (offset, id)) {
            io.class = to;
            self.waiting += 1;
            let c = &mut self.classes[to as usize];
            c.by_age.insert(id, offset);
            c.waiting.insert((offset, id), io);
        }
    }
}

#[cfg(test)]
mod tests;
