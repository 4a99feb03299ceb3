//! What is freed of an object.

use super::{Dnode, Inner, NOTE, freed, frees};
use crate::txg::Tx;
use std::sync::Arc;

impl Dnode {
    /// Frees `len` bytes from `off` on (`u64::MAX`: to the end): they read as zeroes, and whole
    /// blocks give their space back.
    pub fn free_range(self: &Arc<Self>, tx: &Tx, off: u64, len: u64) {
        self.free_some(tx, off, len, u64::MAX);
    }

    /// The same where so many blocks at most are in the range.
    pub(crate) fn free_some(self: &Arc<Self>, tx: &Tx, off: u64, len: u64, there: u64) {
        let mut inner = self.dirty(tx);
        let txg = tx.txg();
        let blksz = u64::from(inner.head.blksz);
        let limit = (inner.head.maxblkid + 1).saturating_mul(blksz);
        let to_end = off.saturating_add(len) >= limit;
        let end = off.saturating_add(len).min(limit);
        if off >= end {
            return;
        }
        let first = off.div_ceil(blksz);
        let last = if to_end { inner.head.maxblkid + 1 } else { end / blksz };
        // The ragged ends are overwritten with zeroes; a write never reads.
        let zero = |inner: &mut Inner, from: u64, to: u64| {
            let (blkid, a, b) =
                (from / blksz, (from % blksz) as usize, (from % blksz + (to - from)) as usize);
            if !inner.dbuf(blkid).is_hole() {
                inner.dbuf(blkid).write(txg, blksz as usize, a, &vec![0; b - a]);
                // Like any write in part it takes a whole record when it is synced.
                self.block_dirtied(inner, tx, blkid);
            }
        };
        if first > last {
            zero(&mut inner, off, end);
            return;
        }
        #[cfg(feature = "planted")]
        let off =
            if to_end && crate::planted::is(crate::planted::Bug::TailKept) { first * blksz } else { off };
        if off < first * blksz {
            zero(&mut inner, off, (first * blksz).min(end));
        }
        if last * blksz < end {
            zero(&mut inner, last * blksz, end);
        }
        if first >= last {
            return;
        }
        tx.holds(frees(&inner, (last - first).min(there)));
        tx.frees(freed(&inner, (last - first).min(there)));
        let Inner { dbufs, pending, head, .. } = &mut *inner;
        let p = &mut pending[txg];
        let mut notes = 1;
        for (&blkid, db) in dbufs.range_mut(first..last) {
            db.free(txg);
            if p.blocks.insert(blkid) {
                p.emptied.insert(blkid);
                notes += 1;
            }
        }
        tx.holds(notes * NOTE);
        p.frees.insert(first, last);
        self.needs_edges(head, tx);
        if to_end {
            head.maxblkid = first.saturating_sub(1);
            p.head = Some(*head);
        }
    }

    /// Frees the object with all its blocks.
    pub(crate) fn free_object(self: &Arc<Self>, tx: &Tx) {
        let mut inner = self.dirty(tx);
        inner.freed = true;
        tx.holds(frees(&inner, inner.head.maxblkid + 1));
        tx.frees(freed(&inner, inner.head.maxblkid + 1));
        inner.pending[tx.txg()].free_object = true;
    }
}
