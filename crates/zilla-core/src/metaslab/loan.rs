//! Free space that is lent to who overwrites or discards it where it lies.
//!
//! Initializing and trimming write to places that belong to nobody. While they do, nobody else may
//! be given such a place: so the free ranges of a *window* of a metaslab are taken out of `free`
//! into `lent`, and come back when the [`Loan`] is dropped. Whoever drops it knows that nothing is
//! on its way to the device any more.
//!
//! **What holds.** Only what could be given out is lent: no range that is in use, freed too lately
//! (`freed`, `defer`), or kept for the checkpoint, which stays allocated. To the maps on disk
//! `lent` is free. Two loans never overlap; a second one for the same window waits. A loan is a
//! small part of its metaslab, and of what is free on its vdev ([`PART`]), so that also in a full
//! pool there is something left for the txg that must be written. A metaslab that lends is not
//! unloaded.
//!
//! **Crash.** Nothing of a loan is on disk. After a crash its ranges are free and may hold
//! anything, which free space may.
//!
//! With `autotrim` a metaslab also notes what it gets back (`trims`), so that only that is trimmed.
//! The note may be out of date: what has been given out again since is not free, and so not lent.

use super::alloc::Metaslabs;
use super::range_tree::RangeTree;
use super::slab::{Metaslab, State};
use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The part of a metaslab that is lent at once.
const SHARE: u64 = 8;
/// And no more than this.
const MOST: u64 = 64 << 20;

/// The part of a vdev's free space that one loan may take. Each leaf has two loans at most, to be
/// initialized and to be trimmed, so that those of sixty leaves leave more than a third.
const PART: u64 = 128;

/// What is lent of a metaslab.
#[derive(Default)]
pub(super) struct Lent {
    pub(super) ranges: RangeTree,
    windows: Vec<(u64, u64)>,
}

/// Free ranges that nobody else is given until this is dropped.
pub struct Loan {
    metaslab: Arc<Metaslab>,
    window: (u64, u64),
    ranges: RangeTree,
}

impl Loan {
    /// Start and end of each range, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter()
    }

    /// Where the next window begins.
    pub fn end(&self) -> u64 {
        self.window.1
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut st = self.metaslab.state();
        let st = &mut *st;
        st.lent.windows.retain(|w| *w != self.window);
        for (start, end) in self.ranges.iter() {
            let back =
                st.lent.ranges.remove(start, end - start).and_then(|()| st.free.add(start, end - start));
            if let Err(e) = back {
                // Impossible while the invariant holds; then the space is better lost than given
                // out twice.
                tracing::error!("metaslab {}: a loan does not come back: {e}", self.metaslab.id);
            }
        }
        self.metaslab.reweigh(st);
        self.metaslab.returned.notify(usize::MAX);
    }
}

/// A metaslab as who goes through all of a vdev sees it.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    pub id: u64,
    pub start: u64,
    pub end: u64,
    /// Bytes that are not allocated.
    pub free: u64,
    /// Nothing was ever allocated in it.
    pub unused: bool,
}

impl Metaslab {
    /// How long a window is here. What is free begins and ends where blocks may, also what is left
    /// of it.
    fn window(&self) -> u64 {
        self.whole((self.size / SHARE).min(MOST))
    }

    /// So many bytes in whole grains, and one at least: else a loop over the windows would not come
    /// to its end.
    fn whole(&self, bytes: u64) -> u64 {
        (bytes / self.grain).max(1) * self.grain
    }

    /// Lends what is free from `from` to the window's end, but not more than `most` bytes; of that,
    /// with `only`, what is also there.
    async fn lend(self: &Arc<Self>, from: u64, only: Option<&RangeTree>, most: u64) -> Result<Loan> {
        let end = self.start + self.size;
        let from = from.clamp(self.start, end);
        let grid = self.start + (from - self.start) / self.window() * self.window();
        let window = (from, (grid + self.window()).min(end));
        loop {
            let listener = self.returned.listen();
            self.load().await?;
            {
                let mut st = self.state();
                if st.broken {
                    return Ok(Loan { metaslab: self.clone(), window, ranges: RangeTree::new() });
                }
                let taken = st.lent.windows.iter().any(|w| w.0 < window.1 && window.0 < w.1);
                if st.loaded && !taken {
                    return self.lend_now(&mut st, window, only, most);
                }
                if !st.loaded {
                    continue;
                }
            }
            listener.await;
        }
    }

    fn lend_now(
        self: &Arc<Self>,
        st: &mut State,
        mut window: (u64, u64),
        only: Option<&RangeTree>,
        most: u64,
    ) -> Result<Loan> {
        let mut ranges = RangeTree::new();
        let mut left = self.whole(most);
        let found = st.free.within(window).flat_map(|free| match only {
            None => vec![free],
            Some(only) => only.within(free).collect(),
        });
        for (start, end) in found {
            let taken = (end - start).min(left);
            ranges.add(start, taken).map_err(|e| self.corrupt(e))?;
            left -= taken;
            if left == 0 {
                window.1 = start + taken;
                break;
            }
        }
        st.free.remove_all(&ranges).map_err(|e| self.corrupt(e))?;
        st.lent.ranges.add_all(&ranges).map_err(|e| self.corrupt(e))?;
        st.lent.windows.push(window);
        self.reweigh(st);
        Ok(Loan { metaslab: self.clone(), window, ranges })
    }
}

impl Metaslabs {
    /// The metaslabs of a vdev, in the order of their places.
    pub fn plots(&self, vdev: u32) -> Result<Vec<Plot>> {
        let plot = |m: &Arc<Metaslab>| {
            let st = m.state();
            Plot {
                id: m.id,
                start: m.start,
                end: m.start + m.size,
                free: m.size.saturating_sub(st.allocated),
                unused: st.sm.is_none() && st.allocated == 0,
            }
        };
        Ok(self.vdev(vdev)?.all.iter().map(plot).collect())
    }

    /// Lends what is free in a window of a metaslab that begins at `from`; with `only`, what of it
    /// that names.
    pub async fn lend(&self, vdev: u32, metaslab: u64, from: u64, only: Option<&RangeTree>) -> Result<Loan> {
        let (_, ms) = self.metaslab(vdev, metaslab)?;
        let free = |m: &Arc<Metaslab>| {
            let st = m.state();
            m.size.saturating_sub(st.allocated).saturating_sub(st.lent.ranges.space())
        };
        let all: u64 = self.vdev(vdev)?.all.iter().map(free).sum();
        ms.lend(from, only, all / PART).await
    }

    /// Bytes that are free for good below `limit` in a metaslab, which is loaded for it.
    pub async fn free_below(&self, vdev: u32, metaslab: u64, limit: u64) -> Result<u64> {
        let (_, ms) = self.metaslab(vdev, metaslab)?;
        ms.load().await?;
        let st = ms.state();
        let window = (ms.start, limit);
        let sum = |t: &RangeTree| t.within(window).map(|(start, end)| end - start).sum::<u64>();
        Ok(sum(&st.free) + sum(&st.lent.ranges))
    }

    /// Whether metaslabs note what they get back.
    pub fn set_autotrim(&self, on: bool) {
        self.autotrim.store(on, Ordering::Release);
        if !on {
            self.vdevs().iter().flat_map(|v| &v.all).for_each(|ms| ms.state().trims.clear());
        }
    }

    pub fn autotrim(&self) -> bool {
        self.autotrim.load(Ordering::Acquire)
    }

    /// What a metaslab got back since this was last asked.
    pub fn take_trims(&self, vdev: u32, metaslab: u64) -> Result<RangeTree> {
        let (_, ms) = self.metaslab(vdev, metaslab)?;
        let trims = std::mem::take(&mut ms.state().trims);
        Ok(trims)
    }

    /// Ranges have become free that others held.
    pub(super) fn note_trims(&self, ms: &Metaslab, st: &mut State, ranges: &RangeTree) -> Result<()> {
        if self.autotrim() {
            for (start, end) in ranges.iter() {
                st.trims.subtract(start, end);
                st.trims.add(start, end - start).map_err(|e| ms.corrupt(e))?;
            }
        }
        Ok(())
    }
}
