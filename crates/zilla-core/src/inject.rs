//! Faults that are put in on purpose: what `zinject` asks for.
//!
//! One list a process, as there is one of events. A *handler* says what goes wrong, where and how
//! often; devices ask for theirs when an I/O of theirs is sent and when it is done
//! ([`crate::vdev`]), the reader of blocks when it has one in hand ([`crate::zio`]), an import or
//! export once. Everything above sees what it would see if disks were so.
//!
//! What is kept true:
//! - Where there is no handler the price is one relaxed load of a counter ([`any`]).
//! - Nothing is damaged on disk: a read fails or gives other bytes, a write fails, is swallowed or
//!   is late.
//! - The list is bounded ([`MOST`]), and so is what a handler keeps.
//! - A handler goes with its pool, and what it delays is let go when it is cleared.
//! - Chance comes from the world's randomness, so a simulated run is the same each time.
//!
//! Nothing of it is on disk. Who may ask for it is the server's to judge.

mod handler;

pub use handler::{Copies, DataPlace, Failure, Fault, Frequency, Handler, IoType, MOST_LANES, Place, Region};

use crate::error::{Errno, Error, Result};
use crate::types::Bookmark;
use event_listener::{Event, EventListener};
use handler::Active;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zilla_env::Rng;

/// Handlers there may be at a time.
pub const MOST: usize = 1000;

/// One I/O of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIo {
    pub vdev: u64,
    pub kind: IoType,
    /// On the device.
    pub offset: u64,
    /// Usable bytes of the device, labels included.
    pub psize: u64,
    /// It failed once already.
    pub retry: bool,
}

/// One block that was read.
#[derive(Clone, Copy, Debug)]
pub struct BlockRead {
    pub pool: u64,
    pub at: Bookmark,
    pub object_type: u8,
    /// Which of the pointer's copies; None where it is about the block as such.
    pub copy: Option<usize>,
}

struct List {
    last: u64,
    handlers: BTreeMap<u64, Active>,
}

pub struct Injections {
    count: AtomicUsize,
    list: Mutex<List>,
    cleared: Event,
}

static ALL: Injections = Injections::new();

/// The process's handlers.
pub fn injections() -> &'static Injections {
    &ALL
}

/// Whether there is any handler at all.
#[inline]
pub fn any() -> bool {
    ALL.count.load(Ordering::Relaxed) != 0
}

impl Injections {
    const fn new() -> Injections {
        Injections {
            count: AtomicUsize::new(0),
            list: Mutex::new(List { last: 0, handlers: BTreeMap::new() }),
            cleared: Event::new(),
        }
    }

    /// Adds a handler and gives its number. `pool_guid` is 0 for one that waits for a pool by name.
    pub fn add(&self, pool: &str, pool_guid: u64, fault: Fault, frequency: Frequency) -> Result<u64> {
        fault.check()?;
        let mut list = self.list.lock();
        if list.handlers.len() >= MOST {
            return Err(Error::os(Errno::NoSpc, format!("there are {MOST} handlers already")));
        }
        // An import or an export has one at most.
        if let Fault::Pause { import, .. } = fault {
            let same = |a: &Active| {
                a.handler.pool == pool
                    && matches!(a.handler.fault, Fault::Pause { import: i, .. } if i == import)
            };
            if list.handlers.values().any(same) {
                return Err(Error::os(Errno::Exist, "a handler already exists"));
            }
        }
        list.last += 1;
        let id = list.last;
        let handler = Handler { id, pool: pool.to_owned(), pool_guid, fault, frequency };
        list.handlers.insert(id, Active::new(handler));
        self.count.store(list.handlers.len(), Ordering::Relaxed);
        Ok(id)
    }

    pub fn list(&self) -> Vec<Handler> {
        self.list.lock().handlers.values().map(|a| a.handler.clone()).collect()
    }

    /// Takes away the handler with this number, or all; the numbers of those that were there.
    pub fn clear(&self, id: Option<u64>) -> Vec<u64> {
        self.retain(|h| id.is_some_and(|id| h.id != id))
    }

    /// Takes away a pool's handlers: it is going. Those that wait for a pool by name stay.
    pub fn forget_pool(&self, guid: u64) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.retain(|h| h.pool_guid == 0 || h.pool_guid != guid);
        }
    }

    fn retain(&self, mut stays: impl FnMut(&Handler) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        {
            let mut list = self.list.lock();
            list.handlers.retain(|id, a| {
                let stays = stays(&a.handler);
                if !stays {
                    gone.push(*id);
                }
                stays
            });
            self.count.store(list.handlers.len(), Ordering::Relaxed);
        }
        if !gone.is_empty() {
            self.cleared.notify(usize::MAX);
        }
        gone
    }

    /// What is to become of an I/O that the device has done well, and whether it may be tried
    /// again.
    pub fn device(&self, io: &DeviceIo, rng: &dyn Rng) -> Option<(Failure, bool)> {
        let mut list = self.list.lock();
        list.handlers.values_mut().find_map(|a| a.strikes(io, rng))
    }

    /// Whether the I/O is not to be done at all, and to be called done.
    pub fn swallows(&self, io: &DeviceIo, rng: &dyn Rng) -> bool {
        let mut list = self.list.lock();
        list.handlers.values_mut().any(|a| a.swallows(io, rng))
    }

    /// When an I/O that is sent now may be done at the earliest, and the handler that says so. Of
    /// all lanes it takes the one that is free first.
    pub fn delay(&self, io: &DeviceIo, now: Duration, rng: &dyn Rng) -> Option<(u64, Duration)> {
        let mut list = self.list.lock();
        let all = list.handlers.values_mut().filter(|a| a.delays(io, rng));
        let best = all.filter_map(|a| Some((a.earliest(now)?, a))).min_by_key(|(at, _)| *at);
        best.map(|(at, a)| {
            a.take_lane(now, at);
            (a.handler.id, at)
        })
    }

    /// Whether the handler is still there.
    pub fn has(&self, id: u64) -> bool {
        self.list.lock().handlers.contains_key(&id)
    }

    /// Wakes when a handler is taken away. To be asked for before [`Injections::has`].
    pub fn listen(&self) -> EventListener {
        self.cleared.listen()
    }

    /// Whether the device is to be taken for one that has vanished.
    pub fn is_gone(&self, vdev: u64) -> bool {
        self.has_failure(vdev, Failure::Gone)
    }

    /// Whether the pool is to believe that it cannot do without the device.
    pub fn is_required(&self, vdev: u64) -> bool {
        self.has_failure(vdev, Failure::Required)
    }

    fn has_failure(&self, vdev: u64, failure: Failure) -> bool {
        let list = self.list.lock();
        list.handlers.values().any(
            |a| matches!(a.handler.fault, Fault::Device { vdev: v, failure: f, .. } if v == vdev && f == failure),
        )
    }

    /// Whether there are blocks that are not to be decompressed or decrypted. Who has one in memory
    /// must ask then, too.
    pub fn spoils_what_is_in_memory(&self) -> bool {
        let list = self.list.lock();
        let opens = |f: Failure| matches!(f, Failure::Decompress | Failure::Decrypt);
        list.handlers
            .values()
            .any(|a| matches!(a.handler.fault, Fault::Data { failure, .. } if opens(failure)))
    }

    /// Whether a block that was read is to fail in this way.
    pub fn block(&self, failure: Failure, read: &BlockRead, rng: &dyn Rng) -> bool {
        let list = self.list.lock();
        list.handlers.values().any(|a| a.spoils(failure, read, rng))
    }

    /// How long the import or export of a pool is to take at least. It happens once.
    pub fn take_pause(&self, pool: &str, import: bool) -> Option<Duration> {
        let mut lasts = None;
        self.retain(|h| match h.fault {
            Fault::Pause { import: i, lasts: l } if i == import && h.pool == pool => {
                lasts = Some(l);
                false
            }
            _ => true,
        });
        lasts
    }
}

#[cfg(test)]
mod tests;
