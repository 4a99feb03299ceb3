//! One metaslab: a stretch of a top-level vdev whose space is known, given out and taken back
//! together.
//!
//! ```text
//!             alloc                 sync                       sync_done, TXG_DEFER_SIZE txgs later
//!   free ----------> allocating[txg] ----> (space map: ALLOC)
//!   free <-------------------------------------------- defer[..] <---- freed <---- freeing <---- free()
//!                                                                sync_done    sync: (space map: FREE)
//! ```
//!
//! `free` (OpenZFS's `ms_allocatable`) exists only while the metaslab is loaded; everything else is
//! kept always, because it is what has happened and is not, or not long enough, on disk. With log
//! space maps what is logged but not yet in this metaslab's own map is in the `unflushed` trees.
//!
//! Invariant: space map + unflushed + allocating + freeing describe every byte, and `free` is what
//! they call free less `freed`, `defer` and what is lent ([`super::loan`]). A crash loses the
//! trees; the next import reads them from the maps of the last synced txg.

use super::loan::Lent;
use super::range_tree::{Contradiction, RangeTree};
use super::space_map::{Reader, SpaceMap, Unloadable};
use crate::error::{Error, Result};
use crate::types::{TXG_DEFER_SIZE, TXG_SIZE, Txg};
use crate::zio::At;
use event_listener::Event;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use zilla_ondisk::spacemap::SPACE_MAP_HISTOGRAM_SIZE;

/// Below this much free space a metaslab is filled by best fit instead of going on where it was.
const BEST_FIT_PERCENT: u64 = 4;
/// The same when no range of this size is left.
const BEST_FIT_LARGEST: u64 = 128 << 10;
/// How many ranges are looked at behind the last allocation.
const SEARCH: usize = 128;

/// A place some way behind the last has so much free behind it: what comes next follows it there.
const RUN: u64 = 2 << 20;
/// And where it goes if there is none near. A power of two, so that a metaslab's weight tells
/// whether it has one.
pub(super) const LONG_RUN: u64 = 8 << 20;

/// How fragmented free space in ranges of 512 bytes, 1K, ... is, in percent as OpenZFS 2.3 has it;
/// beyond the table: not at all.
const FRAGMENTATION: [u64; 20] =
    [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1];

#[derive(Default)]
pub(super) struct State {
    pub(super) sm: Option<SpaceMap>,
    pub(super) loaded: bool,
    pub(super) loading: bool,
    /// Its space map contradicts itself, or could not be read: nothing is allocated here any more.
    pub(super) broken: bool,
    /// The map could not be read. It may be later.
    pub(super) unread: Option<Again>,
    pub(super) free: RangeTree,
    /// Free, but nobody is given it now.
    pub(super) lent: Lent,
    /// What was freed since it was last trimmed.
    pub(super) trims: RangeTree,
    pub(super) allocating: [RangeTree; TXG_SIZE],
    pub(super) freeing: RangeTree,
    /// Freed, but the pool's checkpoint has them: they stay allocated.
    pub(super) checkpointing: RangeTree,
    pub(super) freed: RangeTree,
    pub(super) defer: [RangeTree; TXG_DEFER_SIZE],
    pub(super) unflushed_allocs: RangeTree,
    pub(super) unflushed_frees: RangeTree,
    /// Log space maps from this txg on concern this metaslab; 0: none ever did.
    pub(super) unflushed_txg: Txg,
    pub(super) unflushed_dirty: bool,
    /// Bytes allocated as of the last sync pass.
    pub(super) allocated: u64,
    pub(super) allocated_this_txg: u64,
    /// What of the space map was there at the end of the last synced txg.
    pub(super) synced_length: u64,
    /// Where the last allocation ended.
    cursor: u64,
    /// The txg in which it was last allocated from; decides when it is unloaded.
    pub(super) selected: Txg,
    /// In which txgs' dirty lists it is.
    pub(super) listed: [bool; TXG_SIZE],
}

/// When a map that could not be read is tried again.
#[derive(Default)]
pub(super) struct Again {
    tries: u32,
    at: Txg,
}

/// So often: the last time is half a day after the first, as txgs go by in a pool at rest.
const MOST_TRIES: u32 = 13;

pub(super) struct Metaslab {
    pub(super) id: u64,
    pub(super) start: u64,
    pub(super) size: u64,
    /// log2 of the smallest allocation.
    pub(super) shift: u8,
    /// Allocations begin and end at multiples of it.
    pub(super) grain: u64,
    /// How good it is to allocate from: the class of its largest free ranges, then their number.
    /// Readable without the lock.
    weight: AtomicU64,
    state: Mutex<State>,
    load_done: Event,
    /// A loan has come back.
    pub(super) returned: Event,
}

/// The class of sizes that `weight` promises.
fn weight_class(weight: u64) -> u32 {
    (weight >> 56) as u32
}

impl State {
    /// Everything that is freed but may not be given out yet.
    pub(super) fn deferred(&self) -> u64 {
        self.defer.iter().map(RangeTree::space).sum()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.allocating.iter().all(RangeTree::is_empty)
            && self.freeing.is_empty()
            && self.checkpointing.is_empty()
            && self.freed.is_empty()
            && self.defer.iter().all(RangeTree::is_empty)
    }

    fn pick(&self, size: u64, (start, total, unit): (u64, u64, u64), at: At, run: bool) -> Option<u64> {
        let skip = match at {
            At::After(skip) => skip.next_multiple_of(unit),
            At::Lowest => {
                let low = self.free.first_fit(start, size, SEARCH);
                return low.or_else(|| self.free.best_fit(size));
            }
        };
        let from = self.cursor.max(start).saturating_add(skip);
        if run {
            let near = self.free.first_fit(from, RUN, SEARCH);
            return near.or_else(|| self.free.best_fit(self.free.largest().max(LONG_RUN)));
        }
        let largest = self.free.largest();
        if largest < size {
            return None;
        }
        if largest < BEST_FIT_LARGEST || self.free.space() / (total / 100).max(1) < BEST_FIT_PERCENT {
            return self.free.best_fit(size);
        }
        let near = self.free.first_fit(from, size, SEARCH);
        // Behind the cursor nothing fits: go where the next allocations too will be neighbours.
        near.or_else(|| self.free.best_fit(largest))
    }
}

impl Metaslab {
    pub(super) fn new(id: u64, start: u64, size: u64, shift: u8, grain: u64) -> Metaslab {
        let m = Metaslab {
            id,
            start,
            size,
            shift,
            grain: grain.max(1),
            weight: AtomicU64::new(0),
            state: Mutex::default(),
            load_done: Event::new(),
            returned: Event::new(),
        };
        m.reweigh(&m.state());
        m
    }

    /// The metaslab's lock: above the dnodes' locks, below the lists'.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn corrupt(&self, e: Contradiction) -> Error {
        Error::corrupt(None, format!("metaslab {} at {:#x}", self.id, self.start), e.to_string())
    }

    pub(super) fn weight(&self) -> u64 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Whether an allocation of this size is worth a try.
    pub(super) fn may_fit(&self, size: u64) -> bool {
        let w = self.weight();
        w != 0 && size < 2u64.checked_shl(weight_class(w)).unwrap_or(u64::MAX)
    }

    /// Whether it is not loaded and has so much free in sum.
    pub(super) fn has_unseen(&self, size: u64) -> bool {
        let st = self.state();
        !st.loaded && !st.broken && self.size.saturating_sub(st.allocated + st.deferred()) >= size
    }

    pub(super) fn reweigh(&self, st: &State) {
        let last = SPACE_MAP_HISTOGRAM_SIZE + usize::from(self.shift) - 1;
        let best = |histogram: &mut dyn Iterator<Item = (usize, u64)>| {
            histogram.filter(|(_, n)| *n > 0).last().map_or(0, |(class, n)| {
                // Beyond the last class of space maps' histograms large ranges count as several.
                let (class, n) = (class.min(last), n.saturating_mul(1 << class.saturating_sub(last).min(40)));
                (class as u64) << 56 | n.min((1 << 56) - 1)
            })
        };
        let weight = if st.broken {
            0
        } else if st.loaded {
            best(&mut st.free.histogram().iter().copied().enumerate().skip(usize::from(self.shift)))
        } else if st.allocated == 0 && st.is_idle() {
            best(&mut std::iter::once(((63 - self.size.max(1).leading_zeros()) as usize, 1)))
        } else if let Some(h) = st.sm.as_ref().and_then(SpaceMap::histogram) {
            let waiting = |class: usize| -> u64 {
                let trees = st.defer.iter().chain([&st.freed]);
                trees.map(|t| t.histogram().get(class).copied().unwrap_or(0)).sum()
            };
            let classes = h.iter().enumerate().map(|(i, n)| {
                let class = i + usize::from(self.shift);
                (class, n.saturating_sub(waiting(class)))
            });
            best(&mut { classes })
        } else {
            // An old map without a histogram: only free space is known. Loading it will tell.
            let free = self.size.saturating_sub(st.allocated);
            best(&mut std::iter::once(((63 - free.max(1).leading_zeros()) as usize, u64::from(free > 0))))
        };
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Percent by which free space is in small pieces; None where the map has no histogram.
    pub(super) fn fragmentation(&self, st: &State) -> Option<u64> {
        let Some(sm) = &st.sm else { return Some(0) };
        let (mut weighted, mut total) = (0u128, 0u128);
        for (i, n) in sm.histogram()?.iter().enumerate() {
            let space = u128::from(*n) << (i + usize::from(self.shift)).min(63);
            let class = (i + usize::from(self.shift)).saturating_sub(9);
            let factor = FRAGMENTATION.get(class).copied().unwrap_or(0);
            total += space;
            weighted += space * u128::from(factor);
        }
        Some(weighted.checked_div(total).unwrap_or(0).min(100) as u64)
    }

    /// Takes `size` bytes out of the free space, or of a long `run` of it. None: there is no range
    /// of this size, or it is not loaded.
    pub(super) fn alloc(&self, st: &mut State, txg: Txg, size: u64, at: At, run: bool) -> Option<u64> {
        if !st.loaded || st.broken {
            return None;
        }
        let at = st.pick(size, (self.start, self.size, self.grain), at, run)?;
        st.free.remove(at, size).ok()?;
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::DoubleAlloc) && at % (1 << 20) < size {
            st.free.add(at, size).ok()?;
        }
        if st.allocating[txg.slot()].add(at, size).is_err() {
            // Impossible while the invariant holds; then the space is better lost than given out
            // twice.
            return None;
        }
        st.cursor = at + size;
        st.selected = txg;
        self.reweigh(st);
        Some(at)
    }

    /// Takes back what [`Metaslab::alloc`] gave in this txg, before anything was written there.
    pub(super) fn unalloc(&self, st: &mut State, txg: Txg, at: u64, size: u64) -> Result<()> {
        st.allocating[txg.slot()].remove(at, size).map_err(|e| self.corrupt(e))?;
        if st.loaded {
            st.free.add(at, size).map_err(|e| self.corrupt(e))?;
        }
        self.reweigh(st);
        Ok(())
    }

    /// Takes a given place out of the free space.
    pub(super) fn claim(&self, st: &mut State, txg: Txg, at: u64, size: u64) -> Result<()> {
        st.free.remove(at, size).map_err(|e| self.corrupt(e))?;
        st.allocating[txg.slot()].add(at, size).map_err(|e| self.corrupt(e))?;
        st.selected = txg;
        self.reweigh(st);
        Ok(())
    }

    /// Takes a given place of which nobody can say whether it is free, for the map cannot be read.
    /// Nothing is given out here until it can be, and then it says that the place is taken.
    pub(super) fn claim_unseen(&self, st: &mut State, txg: Txg, at: u64, size: u64) -> Result<()> {
        let taken = [&st.unflushed_allocs].into_iter().chain(&st.allocating).any(|t| t.overlaps(at, size));
        if taken {
            let what = format!("{size:#x} bytes at {at:#x} are claimed, but in use");
            return Err(Error::corrupt(None, format!("metaslab {}", self.id), what));
        }
        if !st.broken {
            (st.broken, st.unread) = (true, Some(Again::default()));
        }
        st.allocating[txg.slot()].add(at, size).map_err(|e| self.corrupt(e))?;
        st.selected = txg;
        self.reweigh(st);
        Ok(())
    }

    /// Notes that a place is free from the syncing txg on. What can be known to be free already is
    /// refused.
    pub(super) fn free(&self, st: &mut State, at: u64, size: u64) -> Result<()> {
        self.check_in_use(st, at, size)?;
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::FreedTooEarly) && st.loaded {
            return st.free.add(at, size).map_err(|e| self.corrupt(e));
        }
        st.freeing.add(at, size).map_err(|e| self.corrupt(e))
    }

    /// Notes that only the checkpoint has a place from the syncing txg on.
    pub(super) fn keep(&self, st: &mut State, at: u64, size: u64) -> Result<()> {
        self.check_in_use(st, at, size)?;
        if st.freeing.overlaps(at, size) {
            return Err(self.free_already(at, size));
        }
        st.checkpointing.add(at, size).map_err(|e| self.corrupt(e))
    }

    fn free_already(&self, at: u64, size: u64) -> Error {
        let what = format!("{size:#x} bytes at {at:#x} are freed, but free already");
        Error::corrupt(None, format!("metaslab {}", self.id), what)
    }

    fn check_in_use(&self, st: &State, at: u64, size: u64) -> Result<()> {
        // What the logs alone call free may have been given out again since, in a txg that is not
        // synced.
        let again = st.allocating.iter().any(|t| t.contains(at, size));
        let trees = [&st.freed, &st.free, &st.lent.ranges, &st.checkpointing];
        let known = trees.into_iter().chain(&st.defer).any(|t| t.overlaps(at, size))
            || (!again && st.unflushed_frees.overlaps(at, size));
        if known { Err(self.free_already(at, size)) } else { Ok(()) }
    }

    /// Brings the free space into memory; several callers share one reading.
    pub(super) async fn load(&self) -> Result<()> {
        let (reader, length) = loop {
            let listener = self.load_done.listen();
            {
                let mut st = self.state();
                if st.loaded || st.broken {
                    return Ok(());
                }
                if !st.loading {
                    st.loading = true;
                    break (st.sm.as_ref().map(SpaceMap::reader), st.synced_length);
                }
            }
            listener.await;
        };
        self.read(reader, length).await
    }

    /// Whether it is time to try again to read the map, now that `done` is synced. What was claimed
    /// without knowing must be in the map, or the log, by then.
    pub(super) fn is_to_be_read_again(&self, done: Txg) -> bool {
        let mut st = self.state();
        let at_rest = !st.loading && st.selected <= done && st.allocating.iter().all(RangeTree::is_empty);
        let Some(again) = st.unread.as_mut().filter(|a| at_rest && a.at <= done) else { return false };
        again.at = Txg(done.0 + (2 << again.tries));
        again.tries += 1;
        if again.tries > MOST_TRIES {
            st.unread = None;
            return false;
        }
        true
    }

    /// Devices may be back: a map that could not be read is tried as if for the first time.
    pub(super) fn read_soon(&self) {
        if let Some(again) = &mut self.state().unread {
            *again = Again::default();
        }
    }

    /// Reads the map of a metaslab that is not used because that failed. It is used from then on if
    /// the map can be read and fits what is known.
    pub(super) async fn load_again(&self) {
        let (reader, length) = {
            let mut st = self.state();
            if st.unread.is_none() || st.loading {
                return;
            }
            st.loading = true;
            (st.sm.as_ref().map(SpaceMap::reader), st.synced_length)
        };
        if let Err(e) = self.read(reader, length).await {
            tracing::warn!("metaslab {} at {:#x} still cannot be loaded: {e}", self.id, self.start);
        }
    }

    async fn read(&self, reader: Option<Reader>, length: u64) -> Result<()> {
        // However this ends (the reader may be dropped at any await), the next one may try.
        let _unlock = Loading(self);
        let map = reader.as_ref().map(|r| r.dnode.id());
        let free = match reader {
            Some(r) => r.load_free(length).await,
            None => {
                let mut t = RangeTree::by_size();
                let whole = t.add(self.start, self.size).map(|()| t).map_err(|e| self.corrupt(e));
                whole.map_err(|error| Unloadable { error, contradicts: true })
            }
        };
        let mut st = self.state();
        if st.sm.as_ref().map(|sm| sm.dnode().id()) != map {
            // Another has taken its place since, as of one that cannot be read.
            return Ok(());
        }
        let free = free.and_then(|free| {
            st.broken = false;
            self.loaded(&mut st, free).map_err(|error| Unloadable { error, contradicts: true })
        });
        let Err(Unloadable { error, contradicts }) = free else {
            if st.unread.take().is_some() {
                tracing::info!("metaslab {} at {:#x} is used again", self.id, self.start);
            }
            return Ok(());
        };
        match error {
            // Space that contradicts itself is not used; the rest of the pool goes on.
            Error::Corrupt(c) => {
                tracing::error!("metaslab {} at {:#x} is not used: {c}", self.id, self.start);
                st.broken = true;
                st.unread = if contradicts { None } else { Some(st.unread.take().unwrap_or_default()) };
                self.reweigh(&st);
                Ok(())
            }
            e => Err(e),
        }
    }

    fn loaded(&self, st: &mut State, mut free: RangeTree) -> Result<()> {
        free.remove_all(&st.unflushed_allocs).map_err(|e| self.corrupt(e))?;
        free.add_all(&st.unflushed_frees).map_err(|e| self.corrupt(e))?;
        // Freed, on disk or in the log, but not to be given out yet. (What is freed in this txg is
        // only there with a log.)
        for t in st.defer.iter().chain([&st.freed]) {
            for (s, e) in t.iter() {
                free.subtract(s, e);
            }
        }
        // What was released while this was read waits in `free`; it may be in the map or not.
        for (s, e) in std::mem::take(&mut st.free).iter() {
            free.subtract(s, e);
            free.add(s, e - s).map_err(|e| self.corrupt(e))?;
        }
        st.free = free;
        st.loaded = true;
        st.cursor = self.start;
        self.reweigh(st);
        Ok(())
    }

    /// Forgets the free space, if nothing is happening here.
    pub(super) fn unload(&self, st: &mut State) {
        let idle = st.allocating.iter().all(RangeTree::is_empty) && st.freed.is_empty();
        if st.loaded && idle && st.lent.ranges.is_empty() {
            st.free = RangeTree::new();
            st.loaded = false;
            self.reweigh(st);
        }
    }
}

impl Metaslab {
    /// Ranges whose time has come may be given out again.
    pub(super) fn release(&self, st: &mut State, ranges: &RangeTree) -> Result<()> {
        // While the map is being read they are put aside; a metaslab that is not loaded will find
        // them in its map.
        if st.loaded || st.loading { st.free.add_all(ranges).map_err(|e| self.corrupt(e)) } else { Ok(()) }
    }
}

struct Loading<'a>(&'a Metaslab);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut st = self.0.state();
        st.loading = false;
        if !st.loaded {
            st.free = RangeTree::new();
        }
        drop(st);
        self.0.load_done.notify(usize::MAX);
    }
}
