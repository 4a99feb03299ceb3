//! Reading a round: all vdevs at once, each in the order of its disks.
//!
//! As much is under way as its devices need to find neighbours in their queues, and less where
//! reads become slow. What is freed meanwhile is not read, or no error; a txg that frees what is
//! being read waits for the read ([`Scan::settle`]).
//!
//! Nothing here is on disk: after a crash the round is gathered and read again.

use super::round::{Entry, Round};
use super::work::{AGAIN, HELD, stands_still};
use super::{Key, Scan, key};
use crate::error::Result;
use crate::tunables;
use crate::types::Bookmark;
use crate::vdev::Tickets;
use crate::zio::{devices_away, is_away};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::hash_map;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;

/// Bytes and blocks of a vdev that are being read or wait in its devices' queues: enough that
/// neighbours meet in each of them (OpenZFS has 16 MiB a disk), as long as reads are quick, within
/// a part of the round's memory.
const WINDOW: u64 = 32 << 20;
const LEAST_WINDOW: u64 = 1 << 20;
/// A read that takes longer makes the window smaller: what waits does so in the way of others.
const SLOW: Duration = Duration::from_millis(500);
const WINDOW_BLOCKS: usize = 4096;

/// So long a scan waits for devices that are away, before it goes on without what only they have.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 600 });

/// Whether a round is read on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    /// The scan is paused, or stands still.
    Wait,
    /// It is over, or the round is not wanted any more.
    Leave,
}

impl Scan {
    /// Reads what was gathered, in the order of the disks; all vdevs at once. Returns false if it
    /// was left off, and how long it was paused.
    pub(super) async fn read_round(self: &Arc<Self>, entries: Vec<Entry>) -> (bool, Duration) {
        let round = match tunables::SCAN_LEGACY.get() {
            0 => Arc::new(Round::new(entries)),
            _ => Arc::new(Round::unsorted(entries)),
        };
        let freed = {
            let mut st = self.shared.lock();
            st.round = Some(round.clone());
            std::mem::take(&mut st.freed)
        };
        freed.iter().for_each(|k| round.kill(k));
        let readers = self.ctx.env.spawner.parallelism().max(1);
        let vdevs = round.vdevs();
        let memory = self.pool.memory().await / (2 * vdevs.len().max(1) as u64);
        let window = memory.clamp(LEAST_WINDOW, WINDOW) / readers as u64;
        let mut tasks = Vec::new();
        for vdev in vdevs {
            let (next, end) = (Arc::new(AtomicUsize::new(vdev.start)), vdev.end);
            for _ in 0..readers {
                let (me, round, next) = (self.clone(), round.clone(), next.clone());
                let work =
                    async move { me.read_some(&round, &next, end, window, WINDOW_BLOCKS / readers).await };
                tasks.push(self.ctx.env.spawn_with_result(work));
            }
        }
        let all = futures_util::future::join_all(tasks).await;
        let waited = all.iter().map(|(_, waited)| *waited).max().unwrap_or_default();
        (all.into_iter().all(|(done, _)| done), waited)
    }

    /// Reads a vdev's blocks up to `end` with those who share `next`; so many bytes and blocks at
    /// once.
    async fn read_some(
        &self,
        round: &Round,
        next: &AtomicUsize,
        end: usize,
        most: u64,
        blocks: usize,
    ) -> (bool, Duration) {
        let env = &self.ctx.env;
        let (mut window, least) = (most, LEAST_WINDOW.min(most));
        let readers = env.spawner.parallelism().max(1) as u64;
        let (mut flying, mut bytes, mut waited) = (FuturesUnordered::new(), 0, Duration::ZERO);
        let mut left = false;
        loop {
            let now = if left { Next::Leave } else { self.what_next() };
            // Something else may begin while the last reads of this round are under way.
            left |= now == Next::Leave;
            let limit = window.min(tunables::SCAN_VDEV_LIMIT.get() / readers);
            while now == Next::Read && (flying.is_empty() || bytes < limit && flying.len() < blocks) {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= end {
                    break;
                }
                let e = &round.entries[i];
                let size = e.bp.asize();
                bytes += size;
                flying.push(async move {
                    let began = env.now();
                    self.read_one(e).await;
                    (size, env.now().saturating_sub(began))
                });
            }
            match (flying.next().await, now) {
                (Some((size, took)), _) => {
                    bytes -= size;
                    // What is late has waited behind the others.
                    window = if took > SLOW { window - size.min(window) } else { window + size };
                    window = window.clamp(least, most);
                }
                (None, Next::Read) => return (true, waited),
                (None, Next::Leave) => return (false, waited),
                (None, Next::Wait) => {
                    env.sleep(HELD).await;
                    waited += HELD;
                }
            }
        }
    }

    fn what_next(&self) -> Next {
        let st = self.shared.lock();
        if st.stopping || !st.is_active() || st.stable.is_scanning() && st.next.is_none() {
            Next::Leave
        } else if st.is_paused() || stands_still() {
            Next::Wait
        } else {
            Next::Read
        }
    }

    async fn read_one(&self, e: &Entry) {
        let Some(result) = self.read_block(&e.bp, e.at).await else { return };
        self.issued.fetch_add(e.bp.asize(), Ordering::Relaxed);
        match result {
            Ok(repaired) => drop(self.processed.fetch_add(repaired, Ordering::Relaxed)),
            // It is not damaged, and was not read. (If the scan is left, neither counts.)
            Err(error) if is_away(&error) => {
                self.pool.unreadable(Some(&e.bp));
                self.shared.lock().passed_by = true;
                self.error_count.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                self.pool.unreadable(Some(&e.bp));
                if e.at == Bookmark::NOWHERE {
                    // The next scan finds it at a place that has a name.
                    self.error_count.fetch_add(1, Ordering::Relaxed);
                } else if !e.counted {
                    self.bad_block(&e.bp, e.at);
                }
            }
        }
    }

    /// Reads a block with all redundancy, and returns the bytes that were repaired; None if it was
    /// freed, before or meanwhile: nobody misses it. While devices are away without which it cannot
    /// be read it is waited for them ([`Scan::waits_for_devices`]).
    pub(super) async fn read_block(&self, bp: &BlkPtr, at: Bookmark) -> Option<Result<u64>> {
        let mut waited = false;
        loop {
            match self.try_block(bp, at).await {
                Some(Err(e)) if is_away(&e) && self.waits_for_devices() => {}
                done => {
                    if waited && !matches!(&done, Some(Err(e)) if is_away(e)) {
                        self.shared.lock().away_since = None;
                    }
                    return done;
                }
            }
            waited = true;
            loop {
                self.ctx.env.sleep(AGAIN).await;
                match self.what_next() {
                    Next::Read => break,
                    Next::Wait => {}
                    Next::Leave => return Some(Err(devices_away())),
                }
            }
        }
    }

    /// Whether what failed because devices are away is tried again: as long as the pool is
    /// suspended, and else for a time, for a device that is dead for good does not come back, and
    /// what the others have is to be read.
    pub(super) fn waits_for_devices(&self) -> bool {
        let now = self.ctx.env.now();
        let since = *self.shared.lock().away_since.get_or_insert(now);
        self.pool.is_suspended() || now.saturating_sub(since) < PATIENCE
    }

    async fn try_block(&self, bp: &BlkPtr, at: Bookmark) -> Option<Result<u64>> {
        let (k, tickets) = (key(bp), Arc::new(Tickets::default()));
        {
            let mut st = self.shared.lock();
            // Or it may be, and nobody knows.
            if st.is_freed(&k) || !st.noting {
                return None;
            }
            st.reading.entry(k).or_default().push(tickets.clone());
        }
        let guard = Reading(self, k, tickets.clone());
        let result = self.pool.scrub(*bp, at, tickets).await;
        drop(guard);
        match result {
            Ok((_, repaired)) => Some(Ok(repaired)),
            Err(_) if self.shared.lock().is_freed(&k) => None,
            Err(e) => Some(Err(e)),
        }
    }
}

/// A block that is being read.
struct Reading<'a>(&'a Scan, Key, Arc<Tickets>);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let wanted = {
            let mut st = self.0.shared.lock();
            if let hash_map::Entry::Occupied(mut reads) = st.reading.entry(self.1) {
                reads.get_mut().retain(|t| !Arc::ptr_eq(t, &self.2));
                if reads.get().is_empty() {
                    reads.remove();
                }
            }
            st.is_freed(&self.1)
        };
        if wanted {
            self.0.changed.notify(usize::MAX);
        }
    }
}
