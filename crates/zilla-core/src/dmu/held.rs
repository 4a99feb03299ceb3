//! What a sync could not put on disk because something it must know of the old state cannot be read.
//!
//! A record written in part needs its old contents, a new record needs the indirect block that will point to it, an object needs
//! the block of dnodes it lies in. If that is damaged beyond its redundancy, the damage is this object's and not the pool's: the sync
//! leaves the old pointer, keeps what it has in memory, and goes on.
//!
//! - A *held block* has its bytes in the held layer of its dbuf. Readers see them; what they do not cover is an error. Any later
//!   sync that finds the rest readable, or all of the block overwritten, writes it.
//! - A *held free* is a range that reads as zeroes here and whose pointers stand in an indirect block that cannot be read. Where all of
//!   such a block was freed its pointer is taken out instead, and the space below it stays allocated: what lies there is not known,
//!   so nothing can be freed twice.
//! - A *postponed* object is synced with the next txg.
//!
//! While any of it is there an fsync of the object fails, and each [`RETRY`] a sync tries again. What is held of one objset is at most
//! [`MAX_HELD`]; beyond it a block is *lost*: its layer is dropped and its object named in the log.
//!
//! In the MOS nothing is held: what stands there must agree with itself, so a sync that cannot read it fails.
//!
//! A crash loses what is held, as it loses every txg that was not synced.

use super::dnode::{Dnode, Inner, Pending};
use super::objset::Objset;
use super::range::RangeSet;
use crate::error::{Errno, Error, Result};
use crate::spa::txg::Tx;
use crate::types::Txg;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of one objset that are held in memory at most.
const MAX_HELD: usize = 8 << 20;
/// How often what is held is tried again where nobody changes its object: one read of each damaged block.
const RETRY: Duration = Duration::from_secs(30);

/// Of an object.
#[derive(Default)]
pub(crate) struct Held {
    /// With the bytes that are counted for each.
    pub(crate) blocks: BTreeMap<u64, usize>,
    pub(crate) frees: RangeSet,
    /// Blocks whose bytes were dropped.
    lost: BTreeSet<u64>,
    postponed: bool,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.frees.is_empty() && self.lost.is_empty() && !self.postponed
    }
}

/// Of an objset: who holds something, and how much.
#[derive(Default)]
pub(crate) struct Holders {
    dnodes: Mutex<Vec<Arc<Dnode>>>,
    bytes: AtomicUsize,
    tried: Mutex<Duration>,
}

impl Holders {
    /// The dnodes hold the list they are on.
    pub(crate) fn clear(&self) {
        self.dnodes.lock().clear();
    }

    fn enter(&self, dn: &Arc<Dnode>) {
        let mut list = self.dnodes.lock();
        if !list.iter().any(|d| Arc::ptr_eq(d, dn)) {
            list.push(dn.clone());
        }
    }
}

impl Inner {
    /// Holds what `txg` made of a block; false if that would be too much, and it is lost.
    fn hold(&mut self, blkid: u64, txg: Txg, Holders { bytes, .. }: &Holders) -> bool {
        let before = self.held.blocks.remove(&blkid).unwrap_or(0);
        bytes.fetch_sub(before, Ordering::Relaxed);
        let db = self.dbuf(blkid);
        db.hold(txg);
        let now = db.held_bytes();
        if bytes.load(Ordering::Relaxed) + now <= MAX_HELD {
            bytes.fetch_add(now, Ordering::Relaxed);
            self.held.blocks.insert(blkid, now);
            return true;
        }
        db.give_up();
        self.held.lost.insert(blkid);
        false
    }

    /// A block is about to get what a sync has put on disk: nothing of it is held any more.
    pub(super) fn unhold(&mut self, blkid: u64, holders: &Holders) {
        self.held.lost.remove(&blkid);
        if let Some(bytes) = self.held.blocks.remove(&blkid) {
            holders.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// The object is gone.
    pub(super) fn unhold_all(&mut self, holders: &Holders) {
        let held = std::mem::take(&mut self.held);
        holders.bytes.fetch_sub(held.blocks.values().sum(), Ordering::Relaxed);
    }

    /// A sync has done these frees, and not those.
    pub(super) fn freed(&mut self, done: &RangeSet, left: RangeSet) {
        self.held.lost.retain(|b| !done.contains(*b));
        self.held.frees = left;
        self.held.postponed = false;
    }
}

impl Dnode {
    /// The bytes of a block that `txg` changed stay here, because of an error that its sync has met.
    pub(super) fn hold(self: &Arc<Self>, blkid: u64, txg: Txg, why: &Error) {
        let (objset, object) = (self.shared.objset, self.id());
        let kept = self.inner.lock().hold(blkid, txg, &self.shared.held);
        self.shared.held.enter(self);
        if kept {
            tracing::warn!(objset, %object, blkid, error = %why, "a changed block is held: it cannot be written");
        } else {
            tracing::error!(objset, %object, blkid, error = %why, "a changed block is lost: too much is held");
        }
    }

    /// Frees that could not be done are to be tried again.
    pub(super) fn holds_frees(self: &Arc<Self>) {
        self.shared.held.enter(self);
    }

    /// All that `txg` changed is left to the next one.
    pub(super) fn postpone(self: &Arc<Self>, txg: Txg) {
        let mut inner = self.dirty(&Tx::syncing(txg.next()));
        let Pending { blocks, mut frees, head, bonus, spill, free_object, .. } =
            std::mem::take(&mut inner.pending[txg.slot()]);
        for &blkid in &blocks {
            inner.dbuf(blkid).postpone(txg);
        }
        let next = &mut inner.pending[txg.next().slot()];
        // What was written after it was freed is no longer free.
        for &blkid in next.blocks.iter().filter(|b| !next.frees.contains(**b)) {
            frees.remove(blkid, blkid + 1);
        }
        frees.iter().for_each(|(first, last)| next.frees.insert(first, last));
        next.blocks.extend(blocks);
        next.head = next.head.or(head);
        next.bonus = next.bonus.take().or(bonus);
        next.spill = next.spill.take().or(spill);
        next.free_object |= free_object;
        inner.held.postponed = true;
    }

    /// An error if something that was written to the object could not be put on disk.
    pub fn check_held(&self) -> Result<()> {
        if self.inner.lock().held.is_empty() {
            return Ok(());
        }
        let what = format!("object {} has changes that cannot be written over damaged blocks", self.id());
        Err(Error::os(Errno::Io, what))
    }
}

impl Objset {
    /// Whether what is held should be tried again.
    pub(crate) fn held_is_due(&self, now: Duration) -> bool {
        let held = &self.shared.held;
        !held.dnodes.lock().is_empty() && now >= *held.tried.lock() + RETRY
    }

    /// Has this txg's sync try again what is held.
    pub(crate) fn retry_held(&self, tx: &Tx, now: Duration) {
        let held = &self.shared.held;
        *held.tried.lock() = now;
        let dnodes = std::mem::take(&mut *held.dnodes.lock());
        for dn in dnodes {
            let mut inner = dn.dirty(tx);
            let Inner { held: of, pending, .. } = &mut *inner;
            pending[tx.txg().slot()].blocks.extend(of.blocks.keys());
            let over = of.blocks.is_empty() && of.frees.is_empty();
            drop(inner);
            if !over {
                held.enter(&dn);
            }
        }
    }
}

#[cfg(test)]
mod tests;
