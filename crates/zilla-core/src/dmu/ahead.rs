//! Blocks that are written before their txg is synced, for the intent log (OpenZFS's `dmu_sync`).
//!
//! A large write that must be stable now can be put where it will stay: the block is written like
//! any other of its txg, the log holds only the pointer, and the sync of the txg takes the pointer
//! over instead of writing again.
//!
//! ```text
//!   layer txg 12 [WWWWWWWW] --write_ahead--> block, born in 12 ---> record in the log
//!        |  changed again: forgotten                   |
//!        v                                             v  nobody took it over: freed in 12
//!   sync of 12: pointer into the tree          ObjsetSync::unused
//! ```
//!
//! **Invariants.** What is written ahead is what the log's record is about, all of it and nothing
//! else: a block that a later operation has changed meanwhile is left alone, so that a replay gives
//! no operation's data before its turn. A block is written ahead only by who holds its txg, so that
//! its sync begins after the pointer is known. Every block that was is listed with its txg, and
//! leaves the list by one way only: it is taken over by the sync of that txg, or that sync hands it
//! out as unused; or the objset's contents are given up, so that no sync will come. A layer that
//! changes forgets its pointer, never the list.
//!
//! **Crash.** Before the txg is synced no space map knows of the block; who imports claims what the
//! log leads to. Afterwards it is the tree's, or free, and the log's records of that txg count for
//! nothing.
//!
//! **Deliberately absent.** Blocks that would have to be read first, that become holes or fit into
//! their pointer, that have no checksum (who claims them could not tell whether they were written),
//! that may be there already under another pointer (deduplication), or for which there is no single
//! run of space: for all these the answer is no, and the data go into the log.

use super::dbuf::{Ahead, is_same};
use super::dnode::Dnode;
use super::objset::{Objset, WriteProps};
use crate::txg::Tx;
use crate::types::{Bookmark, Txg};
use crate::zio::{EarlyWrites, WriteReq};
use bytes::Bytes;
use std::sync::Arc;
use zilla_codec::checksum::Checksum;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type;

/// What identifies a block among those of a txg.
pub(super) fn key(bp: &BlkPtr) -> [u64; 2] {
    bp.dva(0).to_words()
}

impl Objset {
    /// Writes blocks that `tx`'s txg has with these contents now. For each its pointer, or None
    /// where it cannot be done; and what to wait for until they are stable.
    pub(crate) async fn write_ahead(
        &self,
        tx: &Tx,
        blocks: &[(Arc<Dnode>, u64, Bytes)],
    ) -> (Vec<Option<BlkPtr>>, EarlyWrites) {
        let (txg, props) = (tx.txg(), self.props());
        let mut out: Vec<Option<BlkPtr>> = vec![None; blocks.len()];
        let (mut at, mut reqs) = (Vec::new(), Vec::new());
        for ((dn, blkid, wanted), out) in blocks.iter().zip(&mut out) {
            let Some(Ahead { data, there }) = dn.ahead(txg, *blkid) else { continue };
            if !is_same(&data, wanted) && data != wanted {
                continue;
            }
            *out = there;
            if there.is_none()
                && let Some(req) = dn.ahead_request(*blkid, data, props)
            {
                at.push((dn, *blkid, out));
                reqs.push(req);
            }
        }
        let data: Vec<Bytes> = reqs.iter().map(|r| r.data.clone()).collect();
        let (bps, writes) = self.shared.store.write_ahead(txg, reqs).await;
        let mut gone = 0;
        for (((dn, blkid, out), data), bp) in at.into_iter().zip(&data).zip(bps) {
            let Some(bp) = bp else { continue };
            gone += data.len() as u64;
            self.shared.ahead[txg].lock().insert(key(&bp), bp);
            dn.inner.lock().dbuf(blkid).set_ahead(txg, data, bp);
            *out = Some(bp);
        }
        tx.written_ahead(gone);
        (out, writes)
    }

    /// What was written ahead in a txg that is being synced, and was not taken over.
    pub(super) fn take_ahead(&self, txg: Txg, taken: impl Iterator<Item = BlkPtr>) -> Vec<BlkPtr> {
        let mut all = std::mem::take(&mut *self.shared.ahead[txg].lock());
        for bp in taken {
            let known = all.remove(&key(&bp));
            debug_assert!(known.is_some(), "a block is taken over once");
        }
        all.into_values().collect()
    }

    /// What was written ahead and nobody will take over: the objset is not synced any more.
    pub(crate) fn forsake_ahead(&self) -> Vec<BlkPtr> {
        let of = |slot: &parking_lot::Mutex<_>| std::mem::take(&mut *slot.lock());
        self.shared.ahead.iter().flat_map(|s| of(s).into_values()).collect()
    }
}

impl Dnode {
    fn ahead(&self, txg: Txg, blkid: u64) -> Option<Ahead> {
        let mut inner = self.inner.lock();
        let blksz = inner.head.blksz as usize;
        if inner.freed || !inner.pending[txg].blocks.contains(&blkid) {
            return None;
        }
        let found = inner.dbuf(blkid).ahead(txg)?;
        // Else the object has grown to larger blocks since.
        Some(found).filter(|f| f.data.len() == blksz)
    }

    fn ahead_request(&self, blkid: u64, data: Bytes, props: WriteProps) -> Option<WriteReq> {
        let head = self.inner.lock().head;
        let checksum = props.checksum_of(head.checksum);
        let unchecked = matches!(checksum, Checksum::Off | Checksum::NoParity);
        if unchecked || props.dedup.is_some() || object_type::is_metadata(head.otype) {
            return None;
        }
        Some(WriteReq {
            data,
            bookmark: Bookmark::new(self.objset_id(), self.id(), 0, blkid),
            otype: head.otype,
            level: 0,
            checksum,
            compress: props.compress_of(head.compress),
            copies: props.copies,
            fill: 1,
            prev: BlkPtr::ZERO,
            may_embed: props.embed,
            special_upto: props.special_upto,
            dedup: None,
            may_stay: false,
            packed: None,
        })
    }
}

#[cfg(test)]
mod tests;
