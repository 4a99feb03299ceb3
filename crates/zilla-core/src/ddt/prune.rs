//! Entries of blocks that have one pointer are taken out of the tables, oldest first
//! (`zpool ddtprune`), and the tables are read ahead (`zpool prefetch`).
//!
//! A block that was alone for long will hardly find its equal. Its pointer keeps its bit; when it
//! is freed no entry is found, and the block is given back like any other. What the logs hold is
//! young, and stays.
//!
//! **Crash.** A batch of entries goes in one txg, with the sums.

use super::sync::{Pass, UNIQUE, stat_of};
use super::table::{Key, Table, decode};
use super::{Ddt, KINDS};
use crate::dmu::resident;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zap::{END, Zap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zilla_ondisk::ddt::DdtEntry;

/// Entries that go in one txg at most. Source: zfs_ddt_prunes_per_txg of ddt.c.
const A_TXG: usize = 50_000;
/// Entries that are read at a time.
const BATCH: usize = 1000;
/// Ages are told apart by the power of two of their hours. Source: HIST_BINS of ddt.c.
const BINS: usize = 16;
const HOUR: u64 = 3600;

/// Which entries are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Those that are older, in seconds.
    Older(u64),
    /// So many of a hundred, about, the oldest.
    Percent(u64),
}

/// Ends the prune that is under way, however it ends.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// When an entry of one reference came to be.
fn start(entry: &DdtEntry) -> Option<u64> {
    match entry {
        DdtEntry::Flat(p) if p.refcnt <= 1 => Some(p.class_start),
        _ => None,
    }
}

fn bin(age: u64) -> usize {
    let hours = age / HOUR;
    ((u64::BITS - hours.leading_zeros()) as usize).min(BINS - 1)
}

/// The least age of the oldest that are so many of a hundred.
fn oldest(ages: &[u64; BINS], percent: u64) -> u64 {
    let all = ages.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    let mut target = (u128::from(all) * u128::from(percent) / 100) as u64;
    for (i, n) in ages.iter().enumerate().rev().filter(|(_, n)| **n != 0) {
        if target <= *n {
            return if i == 0 { 0 } else { (1 << (i - 1)) * HOUR };
        }
        target -= n;
    }
    0
}

impl Table {
    /// The ZAP of entries that know their age and have one reference, if there is one.
    fn prunable(&self) -> Option<Zap> {
        let st = self.state.lock();
        st.layout.filter(|l| l.flat).and_then(|_| st.zaps[UNIQUE].clone())
    }

    /// Tells `with` each such entry's key and start.
    async fn ages(&self, mut with: impl FnMut(Key, u64)) -> Result<()> {
        let Some(zap) = self.prunable() else { return Ok(()) };
        let mut at = 0;
        while at != END {
            let batch = resident(|| zap.read_on(&mut at, BATCH)).await?;
            for e in &batch.entries {
                let key = Key::try_from(e.key.as_slice());
                if let (Ok(key), Some(start)) = (key, start(&decode(&e.value, true)?)) {
                    with(key, start);
                }
            }
            // A position that does not move on would never end.
            at = if batch.next > at { batch.next } else { END };
        }
        Ok(())
    }
}

impl Ddt {
    /// Takes entries out; gives how many.
    pub(crate) async fn prune(self: &Arc<Self>, what: Prune) -> Result<u64> {
        if self.pruning.swap(true, Ordering::AcqRel) {
            return Err(Error::os(Errno::Busy, "a prune operation is already in progress"));
        }
        let _running = Running(&self.pruning);
        let now = self.ctx.env.clock.wall().as_secs();
        let cutoff = match what {
            Prune::Older(age) => now.checked_sub(age).filter(|c| *c > 0),
            Prune::Percent(percent) => {
                let mut ages = [0u64; BINS];
                for table in &self.tables {
                    table.ages(|_, start| ages[bin(now.saturating_sub(start))] += 1).await?;
                }
                Some(now.saturating_sub(oldest(&ages, percent)))
            }
        };
        let cutoff = cutoff.ok_or_else(|| Error::inval("no entry can be so old"))?;
        let mut pruned = 0;
        for n in 0..KINDS.len() {
            loop {
                let mut keys = Vec::new();
                let Some(table) = self.tables.get(n) else { break };
                table
                    .ages(|key, start| {
                        if start < cutoff && keys.len() < A_TXG {
                            keys.push(key);
                        }
                    })
                    .await?;
                let fit = self.at_once(keys.len());
                let (ddt, full) = (self.clone(), keys.len() == A_TXG || fit < keys.len());
                keys.truncate(fit);
                if keys.is_empty() {
                    break;
                }
                let task = self.ctx.sync_task(move |tx| {
                    Box::pin(async move { ddt.prune_sync(&tx, n, &keys, cutoff).await })
                });
                let gone = task.await?;
                pruned += gone;
                if !full || gone == 0 {
                    break;
                }
            }
        }
        Ok(pruned)
    }

    async fn prune_sync(&self, tx: &Tx, n: usize, keys: &[Key], cutoff: u64) -> Result<u64> {
        let Some(table) = self.tables.get(n) else { return Ok(0) };
        let (Some(zap), Some(layout)) = (table.prunable(), table.state.lock().layout) else { return Ok(0) };
        let pass = Pass::begin(self, table, tx, layout).await?;
        let mut gone = 0;
        for key in keys {
            // What this txg has looked at, or a log holds, is in use.
            let used = {
                let st = table.state.lock();
                st.live.contains_key(key) || st.logs.find(key).is_some()
            };
            if used {
                continue;
            }
            let Some(value) = resident(|| zap.lookup_key(key)).await? else { continue };
            let entry = decode(&value, true)?;
            if start(&entry).is_none_or(|s| s >= cutoff) {
                continue;
            }
            resident(|| zap.remove_key(tx, key)).await?;
            let stat = stat_of(&self.zio.tree(), key, &entry);
            table.state.lock().histograms[UNIQUE].count(&stat, false);
            gone += 1;
        }
        pass.end().await?;
        Ok(gone)
    }

    /// Reads all blocks of the tables, so that they are in memory when entries are asked for.
    pub(crate) async fn prefetch(&self) -> Result<()> {
        for table in &self.tables {
            let zaps = table.state.lock().zaps.clone();
            for zap in zaps.iter().flatten() {
                let (dn, mut block) = (zap.dnode(), vec![0; zap.dnode().blksz() as usize]);
                for blkid in 0..=dn.maxblkid() {
                    dn.read_wait(blkid.saturating_mul(block.len() as u64), &mut block).await?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_share_is_found_by_age() {
        let mut ages = [0; BINS];
        for hours in [0, 0, 1, 3, 3, 100, 100_000] {
            ages[bin(hours * HOUR)] += 1;
        }
        assert_eq!(oldest(&ages, 100), 0);
        assert_eq!(oldest(&ages, 15), (1 << 14) * HOUR);
        assert_eq!(oldest(&ages, 30), 64 * HOUR);
        assert_eq!(oldest(&ages, 60), 2 * HOUR);
        assert_eq!(oldest(&[0; BINS], 50), 0);
    }
}
