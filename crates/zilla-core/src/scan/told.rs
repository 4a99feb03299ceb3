//! What the sync task tells a scan that is under way: what is freed, and what becomes of datasets.

use super::round::Entry;
use super::state::Position;
use super::{Key, Scan, Shared, key};
use crate::error::Result;
use crate::txg::Tx;
use crate::vdev::{Priority, Tickets};
use std::collections::HashSet;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

/// Keys of freed blocks that are kept while a round is gathered (52 MB of them). One that is
/// gathered beside so much freeing is read as it is when there are half as many. If one txg frees
/// more, or the walk waits for a device, they are taken out of what was gathered, and the slice
/// under way is gathered anew.
pub(super) const MOST_FREED: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };

impl Shared {
    /// No round is under way.
    pub(super) fn note_nothing(&mut self) {
        (self.noting, self.freed, self.round) = (false, HashSet::new(), None);
        (self.gathered, self.swept) = (None, false);
    }

    /// Adds a slice to the round, and says how many blocks it has; `most`: as it may have.
    pub(super) fn add_gathered(&mut self, slice: &mut Vec<Entry>, most: usize) -> usize {
        let all = self.gathered.get_or_insert_default();
        // Doubled, as vectors grow, but not beyond what a round may have.
        if all.capacity() - all.len() < slice.len() {
            all.reserve_exact(all.len().min(most.saturating_sub(all.len())).max(slice.len()));
        }
        all.append(slice);
        all.len()
    }

    /// More is freed than is kept. What of it was gathered is not read; what is gathered now may
    /// have any of it.
    fn sweep(&mut self) {
        let Some(gathered) = &mut self.gathered else { return self.throw_away() };
        let freed = std::mem::take(&mut self.freed);
        gathered.retain(|e| !freed.contains(&key(&e.bp)));
        // Of the round before some may be read still.
        self.freed.extend(freed.into_iter().filter(|k| self.reading.contains_key(k)));
        self.swept = true;
        self.generation += 1;
    }

    /// The same of what is not gathered any more, and not read yet: it may be anything by now. Only
    /// what is being read is known of still.
    fn throw_away(&mut self) {
        let reading = &self.reading;
        let kept: HashSet<Key> = self.freed.iter().filter(|k| reading.contains_key(k)).copied().collect();
        (self.noting, self.freed, self.next) = (false, kept, None);
        self.generation += 1;
    }

    /// Whether a block was freed since the round began.
    pub(super) fn is_freed(&self, k: &Key) -> bool {
        self.freed.contains(k) || self.round.as_ref().is_some_and(|r| r.is_dead(k))
    }
}

impl Scan {
    /// A block was freed in the syncing txg.
    pub fn freed(&self, bp: &BlkPtr) {
        let mut st = self.shared.lock();
        // It has outlived some of its references, and not this one.
        st.outlived.forget(bp);
        let k = key(bp);
        if let Some(round) = st.round.clone() {
            round.kill(&k);
        } else if st.noting || st.reading.contains_key(&k) {
            st.freed.insert(k);
            if st.freed.len() >= MOST_FREED {
                st.sweep();
            }
        }
    }

    /// Waits for reads of freed blocks, before a txg's end lets their space be used again.
    #[crate::boxed]
    pub async fn settle(&self) {
        loop {
            let listener = self.changed.listen();
            let waits_for: Vec<Arc<Tickets>> = {
                let st = self.shared.lock();
                let freed = st.reading.iter().filter(|(k, _)| st.is_freed(k));
                freed.flat_map(|(_, reads)| reads.iter().cloned()).collect()
            };
            if waits_for.is_empty() {
                return;
            }
            // A txg does not wait behind the background's small share of a busy device.
            waits_for.iter().for_each(|t| t.promote(Priority::SyncRead));
            listener.await;
        }
    }

    async fn datasets_changed(&self, tx: &Tx, change: impl Fn(&mut Position)) -> Result<()> {
        let position = {
            let mut st = self.shared.lock();
            if !st.stable.is_scanning() {
                return Ok(());
            }
            let before = (st.stable.clone(), st.next.clone());
            change(&mut st.stable);
            st.next.iter_mut().for_each(&change);
            // A walk under way works on neither.
            st.generation += 1;
            if before == (st.stable.clone(), st.next.clone()) {
                return Ok(());
            }
            st.stable.clone()
        };
        position.save(self.ctx.mos(), tx).await
    }

    /// A dataset is being destroyed; `next_snap` is the next one in its chain if it is a snapshot.
    #[crate::boxed]
    pub async fn destroyed(&self, tx: &Tx, ds: u64, next_snap: Option<u64>) -> Result<()> {
        self.datasets_changed(tx, |p| p.destroyed(ds, next_snap)).await
    }

    /// Which datasets follow which was changed in the syncing txg. A slice of the walk that began
    /// meanwhile may have seen some of it as it was before, and some as it is now.
    pub fn rearranged(&self) {
        self.shared.lock().generation += 1;
    }

    /// `snap` was made of `head`.
    #[crate::boxed]
    pub async fn snapshotted(&self, tx: &Tx, head: u64, snap: u64) -> Result<()> {
        self.datasets_changed(tx, |p| p.snapshotted(head, snap)).await
    }

    /// Two heads exchange their contents (a rollback to received data, or of a clone).
    #[crate::boxed]
    pub async fn swapped(&self, tx: &Tx, a: u64, b: u64) -> Result<()> {
        self.datasets_changed(tx, |p| p.swapped(a, b)).await
    }
}
