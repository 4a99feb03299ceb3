//! What a sync could not put on disk because something it must know of the old state cannot be
//! read.
//!
//! A record written in part needs its old contents, a new record needs the indirect block that will
//! point to it, an object needs the block of dnodes it lies in. If that is damaged beyond its
//! redundancy, the damage is this object's and not the pool's: the sync leaves the old pointer,
//! keeps what it has in memory, and goes on.
//!
//! - A *held block* has its bytes in the held layer of its dbuf. Readers see them; what they do not
//!   cover is an error. Any later sync that finds the rest readable, or all of the block
//!   overwritten, writes it.
//! - A *held free* is a range that reads as zeroes here and whose pointers stand in an indirect
//!   block that cannot be read. Where all of such a block was freed its pointer is taken out
//!   instead, and the space below it stays allocated: what lies there is not known, so nothing can
//!   be freed twice.
//! - A *postponed* object is synced with the next txg.
//!
//! A clone that the pool cannot count, as what it knows of its block is damaged, becomes a copy in
//! the sync that would point to the block. What is copied so of one objset in one sync is at most
//! [`MAX_COPIED`]; beyond it the sync fails, and what was acknowledged stays in the log.
//!
//! A cloned block that is held, or is a postponed object's, is read by the sync that cannot point
//! to it. Later it may be gone: only that sync counts the pointer among those that keep the block,
//! and what the block's owner does is not known here. From then on its bytes are held, as if they
//! had been written. If they cannot be read, or would be too much, the clone is lost.
//!
//! While any of it is there an fsync of the object fails, and a sync of all its objset does; each
//! [`RETRY`] a sync tries again. What is held of one objset is at most [`MAX_HELD`]; beyond it a
//! block is *lost*: its layer is dropped and its object named in the log. Until the block is
//! written anew or freed, or the objset is closed, an fsync fails for it too.
//!
//! In the MOS nothing is held: what stands there must agree with itself, so a sync that cannot read
//! it fails.
//!
//! A crash loses what is in memory; so each txg writes what is held into the intent log again
//! ([`Objset::kept`], `zil/keep.rs`), and the replay finds it there.

use super::dnode::{Dnode, Inner, Pending};
use super::objset::Objset;
use super::range::RangeSet;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::Txg;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zilla_env::IoBuf;
use zilla_ondisk::object_type::{DMU_OT_PLAIN_FILE_CONTENTS, DMU_OT_ZVOL};
use zilla_ondisk::zil::LR_WRITE_SIZE;

/// Bytes of one objset that are held in memory at most.
const MAX_HELD: usize = 8 << 20;
/// Bytes of cloned blocks of one objset that a sync has in memory at most to write copies.
const MAX_COPIED: usize = 64 << 20;
/// Bytes of log records, headers and all, that say what is held of one objset: twice as much, as
/// many small ranges have many headers.
const MAX_KEPT: usize = 2 * MAX_HELD;
/// How often what is held is tried again where nobody changes its object: one read of each damaged
/// block.
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
    /// Bytes of cloned blocks that are postponed with the object. They are counted as held.
    postponed_bytes: usize,
    /// Bytes of all that is postponed with it.
    waiting: usize,
}

impl Held {
    /// Blocks that could not be read when they were to be written.
    pub(super) fn damaged(&self) -> BTreeSet<u64> {
        self.blocks.keys().chain(&self.lost).copied().collect()
    }

    fn is_empty(&self) -> bool {
        !self.can_be_tried() && self.lost.is_empty() && !self.postponed
    }

    /// Whether a sync may put some of it on disk though nobody changes the object.
    fn can_be_tried(&self) -> bool {
        !self.blocks.is_empty() || !self.frees.is_empty()
    }
}

/// A part of what is held, as a log record says it.
pub(crate) struct Kept {
    pub object: u64,
    pub offset: u64,
    pub what: KeptPart,
}

pub(crate) enum KeptPart {
    Data(Bytes),
    /// So many bytes are freed.
    Free(u64),
    /// So many bytes behind the end of the file, which is at the offset, are freed.
    Behind(u64),
}

/// Of an objset: who holds something, has lost something or waits, and how much is held.
#[derive(Default)]
pub(crate) struct Holders {
    /// They get off the list in syncing context only, where they also get on it. Taken under the
    /// dnodes' locks.
    dnodes: Mutex<Vec<Arc<Dnode>>>,
    bytes: AtomicUsize,
    /// Bytes of clones that this sync writes as copies.
    copied: AtomicUsize,
    tried: Mutex<Duration>,
}

impl Holders {
    /// The dnodes hold the list they are on.
    pub(crate) fn clear(&self) {
        self.dnodes.lock().clear();
    }

    /// At the end of a sync: whoever holds nothing any more is let go of.
    pub(super) fn prune(&self) {
        self.copied.store(0, Ordering::Relaxed);
        let over = |dn: &Arc<Dnode>| dn.inner.lock().held.is_empty();
        let gone: Vec<_> = self.all().into_iter().filter(over).collect();
        if !gone.is_empty() {
            self.dnodes.lock().retain(|d| !gone.iter().any(|g| Arc::ptr_eq(g, d)));
        }
    }

    fn all(&self) -> Vec<Arc<Dnode>> {
        self.dnodes.lock().clone()
    }

    fn enter(&self, dn: &Arc<Dnode>) {
        let mut list = self.dnodes.lock();
        if !list.iter().any(|d| Arc::ptr_eq(d, dn)) {
            list.push(dn.clone());
        }
    }
}

impl Inner {
    /// Holds what `txg` made of a block; false if that would be too much, or is not known, and it
    /// is lost.
    fn hold(&mut self, blkid: u64, txg: Txg, Holders { bytes, .. }: &Holders) -> bool {
        let before = self.held.blocks.remove(&blkid).unwrap_or(0);
        bytes.fetch_sub(before, Ordering::Relaxed);
        let db = self.dbuf(blkid);
        let known = db.detach(txg);
        db.hold(txg);
        let now = db.held_bytes();
        if known && bytes.load(Ordering::Relaxed) + now <= MAX_HELD {
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
        let bytes = held.blocks.values().sum::<usize>() + held.postponed_bytes;
        holders.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A sync has done these frees, and not those.
    pub(super) fn freed(&mut self, done: &RangeSet, left: RangeSet, holders: &Holders) {
        self.held.lost.retain(|b| !done.contains(*b));
        self.held.frees = left;
        self.held.postponed = false;
        holders.bytes.fetch_sub(std::mem::take(&mut self.held.postponed_bytes), Ordering::Relaxed);
    }
}

impl Dnode {
    /// The bytes of a block that `txg` changed stay here, because of an error that its sync has
    /// met.
    pub(super) async fn hold(self: &Arc<Self>, blkid: u64, txg: Txg, why: &Error) {
        let (objset, object) = (self.shared.objset, self.id());
        self.read_clone(blkid, txg, self.shared.held.bytes.load(Ordering::Relaxed)).await;
        let kept = self.inner.lock().hold(blkid, txg, &self.shared.held);
        self.shared.held.enter(self);
        if kept {
            tracing::warn!(objset, %object, blkid, error = %why, "a changed block is held: it cannot be written");
        } else {
            tracing::error!(objset, %object, blkid, error = %why, "a changed block is lost: it cannot be held");
        }
    }

    /// Whether one more clone may be copied in this sync.
    pub(super) fn may_copy(&self) -> bool {
        let bytes = self.blksz() as usize;
        self.shared.held.copied.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_COPIED
    }

    /// Gives the layer of `txg` the bytes of the cloned block that it is, to be written.
    pub(super) async fn copy_clone(self: &Arc<Self>, blkid: u64, txg: Txg, why: Error) -> Result<()> {
        self.load_clone_of(blkid, txg).await?;
        let (objset, object) = (self.shared.objset, self.id());
        tracing::warn!(objset, %object, blkid, error = %why, "a cloned block is copied: it cannot be counted");
        match self.inner.lock().dbuf(blkid).detach(txg) {
            true => Ok(()),
            false => Err(why),
        }
    }

    /// Reads the cloned block that `txg` has put somewhere, if it has and there is room to hold it
    /// beside so many bytes.
    async fn read_clone(self: &Arc<Self>, blkid: u64, txg: Txg, held: usize) {
        if held + self.blksz() as usize > MAX_HELD {
            return;
        }
        if let Err(e) = self.load_clone_of(blkid, txg).await {
            let (objset, object) = (self.shared.objset, self.id());
            tracing::error!(objset, %object, blkid, error = %e, "a cloned block cannot be read");
        }
    }

    /// Frees that could not be done are to be tried again.
    pub(super) fn holds_frees(self: &Arc<Self>) {
        self.shared.held.enter(self);
    }

    /// All that `txg` changed is left to the next one.
    pub(super) async fn postpone(self: &Arc<Self>, txg: Txg) {
        let held = &self.shared.held;
        let (clones, blksz) = {
            let mut inner = self.inner.lock();
            let blocks = inner.pending[txg].blocks.clone();
            let clones: Vec<u64> = blocks.into_iter().filter(|b| inner.dbuf(*b).is_clone(txg)).collect();
            (clones, inner.head.blksz as usize)
        };
        let mut bytes = held.bytes.load(Ordering::Relaxed);
        for &blkid in &clones {
            self.read_clone(blkid, txg, bytes).await;
            bytes += blksz;
        }
        let mut inner = self.dirty(&Tx::syncing(txg.next()));
        let Pending { mut blocks, anew, mut frees, head, bonus, sealed_bonuslen, spill, free_object, .. } =
            std::mem::take(&mut inner.pending[txg]);
        for blkid in clones {
            let fits = held.bytes.load(Ordering::Relaxed) + blksz <= MAX_HELD;
            if fits && inner.dbuf(blkid).detach(txg) {
                held.bytes.fetch_add(blksz, Ordering::Relaxed);
                inner.held.postponed_bytes += blksz;
                continue;
            }
            let (objset, object) = (self.shared.objset, self.id());
            tracing::error!(objset, %object, blkid, "a cloned block is lost: it cannot be held");
            inner.dbuf(blkid).lose(txg);
            inner.held.lost.insert(blkid);
            blocks.remove(&blkid);
        }
        let mut waiting = 0;
        for &blkid in &blocks {
            let db = inner.dbuf(blkid);
            db.postpone(txg);
            waiting += db.changed_bytes();
        }
        inner.held.waiting = waiting;
        let next = &mut inner.pending[txg.next()];
        // What was written after it was freed is no longer free.
        for &blkid in next.blocks.iter().filter(|b| !next.frees.contains(**b)) {
            frees.remove(blkid, blkid + 1);
        }
        frees.iter().for_each(|(first, last)| next.frees.insert(first, last));
        next.blocks.extend(blocks);
        next.anew.extend(anew);
        next.head = next.head.or(head);
        if next.bonus.is_none() {
            next.bonus = bonus;
            next.sealed_bonuslen = sealed_bonuslen;
        }
        next.spill = next.spill.take().or(spill);
        next.free_object |= free_object;
        inner.held.postponed = true;
        drop(inner);
        held.enter(self);
    }

    /// What is held of the object, as it reads now, up to its `end`. Newer changes of the same
    /// bytes are in it, so that it may be logged behind the records of these. Frees come first,
    /// with what was written over them since. Of an object that is postponed, that is all of its
    /// contents that no txg has put on disk.
    fn kept(&self, end: u64, out: &mut Vec<Kept>, room: &mut usize) {
        let mut inner = self.inner.lock();
        let (object, blksz) = (self.id().0, u64::from(inner.head.blksz));
        let mut left_out = false;
        let mut fits = |data: usize, headers: usize| match room.checked_sub(headers * LR_WRITE_SIZE + data) {
            Some(left) => {
                *room = left;
                true
            }
            None => {
                left_out = true;
                false
            }
        };
        let (mut frees, postponed) = (inner.held.frees.clone(), inner.held.postponed);
        let mut blocks: BTreeSet<u64> = inner.held.blocks.keys().copied().collect();
        if postponed {
            for p in inner.pending.iter() {
                p.frees.iter().for_each(|(first, last)| frees.insert(first, last));
                blocks.extend(&p.blocks);
            }
        }
        // A record that names a byte beyond the largest file there may be could not be replayed.
        let most = end.max(i64::MAX as u64);
        for (first, last) in frees.iter() {
            let (from, to) = (first.saturating_mul(blksz), last.saturating_mul(blksz).min(most));
            if from < to.min(end) && fits(0, 1) {
                out.push(Kept { object, offset: from, what: KeptPart::Free(to.min(end) - from) });
            }
            if to > end && fits(0, 2) {
                out.push(Kept { object, offset: end, what: KeptPart::Behind(to - end) });
            }
            blocks.extend(inner.pending.iter().flat_map(|p| p.blocks.range(first..last)));
        }
        for blkid in blocks {
            let freed = frees.contains(blkid);
            let start = blkid.saturating_mul(blksz);
            let db = inner.dbuf(blkid);
            let ranges = match db.is_held() || !freed {
                true if postponed => db.changed_ranges(),
                true => db.held_ranges(),
                false => smallvec::smallvec![(0, blksz)],
            };
            for (from, to) in ranges {
                let to = to.min(blksz).min(end.saturating_sub(start));
                let len = to.saturating_sub(from) as usize;
                if len == 0 || !fits(len, 1) {
                    continue;
                }
                let mut data = IoBuf::scratch(len);
                if db.read(from as usize, &mut data) {
                    out.push(Kept { object, offset: start + from, what: KeptPart::Data(data.into_bytes()) });
                }
            }
        }
        if left_out {
            tracing::error!(object, "held bytes are too many for the log");
        }
    }

    /// The parts of a range of bytes that lie in blocks that cannot be read.
    pub(crate) async fn unreadable(self: &Arc<Self>, off: u64, len: u64) -> Vec<(u64, u64)> {
        let blksz = u64::from(self.blksz()).max(1);
        let end = off.saturating_add(len).min(self.maxblkid().saturating_add(1).saturating_mul(blksz));
        let mut out = Vec::new();
        for blkid in off / blksz..end.div_ceil(blksz) {
            if self.load(0, blkid).await.is_err() {
                out.push((off.max(blkid * blksz), end.min((blkid + 1) * blksz)));
            }
        }
        out
    }

    /// The parts of a range of bytes that lie in blocks with changes that are not on disk.
    pub(crate) fn unsynced(&self, off: u64, len: u64) -> Vec<(u64, u64)> {
        let inner = self.inner.lock();
        let (blksz, end) = (u64::from(inner.head.blksz).max(1), off.saturating_add(len));
        let dirty = inner.dbufs.range(off / blksz..end.div_ceil(blksz)).filter(|(_, db)| !db.is_clean());
        dirty.map(|(b, _)| (off.max(b * blksz), end.min((b + 1).saturating_mul(blksz)))).collect()
    }

    /// An error if so much waits with the object to be put on disk that no more may be written.
    pub(crate) fn check_waiting(&self) -> Result<()> {
        let inner = self.inner.lock();
        if !inner.held.postponed || inner.held.waiting <= MAX_HELD {
            return Ok(());
        }
        let what = format!("object {} cannot be written: the block that it lies in is damaged", self.id());
        Err(Error::os(Errno::Io, what))
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
    /// Whether anything is held, or waits with its object.
    pub(crate) fn holds(&self) -> bool {
        let holds = |held: &Held| held.can_be_tried() || held.postponed;
        self.shared.held.all().iter().any(|dn| holds(&dn.inner.lock().held))
    }

    /// An error if something that was written to any of the objects could not be put on disk.
    pub(crate) fn check_held(&self) -> Result<()> {
        self.shared.held.all().iter().try_for_each(|dn| dn.check_held())
    }

    /// What a log has to say so that its replay brings back what is held. `end_of` says where an
    /// object ends, by the type of its bonus and its bonus; None: of no interest to a replay.
    pub(crate) fn kept(&self, end_of: impl Fn(u8, &[u8]) -> Option<u64>) -> Vec<Kept> {
        let (mut out, mut room) = (Vec::new(), MAX_KEPT);
        for dn in self.shared.held.all() {
            let end = match dn.otype() {
                DMU_OT_PLAIN_FILE_CONTENTS => end_of(dn.bonus_type(), &dn.bonus()),
                DMU_OT_ZVOL => Some(u64::MAX),
                _ => None,
            };
            if let Some(end) = end {
                dn.kept(end, &mut out, &mut room);
            }
        }
        out
    }

    /// Whether what is held should be tried again.
    pub(crate) fn held_is_due(&self, now: Duration) -> bool {
        let held = &self.shared.held;
        now >= *held.tried.lock() + RETRY && held.all().iter().any(|dn| dn.inner.lock().held.can_be_tried())
    }

    /// Has this txg's sync try again what is held.
    pub(crate) fn retry_held(&self, tx: &Tx, now: Duration) {
        *self.shared.held.tried.lock() = now;
        for dn in self.shared.held.all() {
            if dn.inner.lock().held.can_be_tried() {
                let mut inner = dn.dirty(tx);
                let Inner { held: of, pending, .. } = &mut *inner;
                pending[tx.txg()].blocks.extend(of.blocks.keys());
            }
        }
    }
}

#[cfg(test)]
mod tests;
