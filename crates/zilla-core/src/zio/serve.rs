//! The pool's block I/O as a [`BlockStore`]: which request goes where.
//!
//! Nothing is done here. Reading is in `read.rs`, writing in `write.rs` and `early.rs`, what only
//! the intent log asks for in `log.rs`; who is asked for space is the
//! [`Allocator`](super::Allocator).

use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::atomic::Ordering;
use zilla_codec::compress::Compress;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::DMU_OT_DNODE;

use super::read::is_sealed;
use super::{
    BlockStore, CachePolicy, EarlyWrites, Leave, LogStore, LogVdev, LogVdevs, LogWritten, Priority, Spots,
    WriteReq, Zio,
};
use crate::arc::Access;
use crate::crypt::Seal;
use crate::error::{Errno, Error, Result};
use crate::inject::{self, Failure, injections};
use crate::trace::Tracer;
use crate::types::{Bookmark, Txg};

impl BlockStore for Zio {
    fn set_damaged(&self, damaged: bool) {
        self.set_knows_damage(damaged);
    }

    fn check_counts<'a>(&'a self, bp: &'a BlkPtr) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self.references() {
                Some(references) => references.check(bp).await,
                None => Ok(()),
            }
        })
    }

    fn cached(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes> {
        self.contents_cached(bp, objset, Access::Demand)
    }

    fn cached_ahead(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes> {
        self.contents_cached(bp, objset, Access::Predictive)
    }

    fn demanded(&self, bp: &BlkPtr, waited: bool) {
        Zio::demanded(self, bp, waited);
    }

    fn forget_read(&self, bp: &BlkPtr) {
        Zio::forget_read(self, bp);
    }

    fn note_past(&self, txg: Txg, block: Bookmark) {
        Zio::note_past(self, txg, block);
    }

    fn read_stored(&self, bp: BlkPtr, bookmark: Bookmark, prio: Priority) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let compressed = !bp.is_embedded() && bp.compress() != Compress::Off as u8;
            if !compressed || bp.is_encrypted() {
                let what = format!("block {bookmark} is not stored compressed: {bp}");
                return Err(Error::os(Errno::NotSup, what));
            }
            Ok(self.read_block(bp, bookmark, prio, Access::of(prio)).await?.data)
        })
    }

    fn read(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(self.read_contents(bp, bookmark, priority, Access::of(priority)))
    }

    fn read_ahead(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(self.read_contents(bp, bookmark, priority, Access::Predictive))
    }

    fn read_tree(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        if !bp.is_encrypted() {
            return self.read(bp, bookmark, priority);
        }
        Box::pin(async move {
            // Blocks of dnodes are encrypted but for what walking the tree takes, and never
            // compressed.
            let plain = bp.otype() == DMU_OT_DNODE && bp.compress() == Compress::Off as u8;
            if !plain {
                return Err(Error::os(Errno::Access, "the block is encrypted"));
            }
            let block = self.read_block(bp, bookmark, priority, Access::of(priority)).await?;
            self.expand(&bp, &block, Some(bookmark))
        })
    }

    fn tracer(&self) -> Option<&Tracer> {
        Some(Zio::tracer(self))
    }

    fn cached_stored(&self, bp: &BlkPtr, objset: u64, access: Access) -> Option<Bytes> {
        if inject::any() && injections().spoils_what_is_in_memory() {
            return None;
        }
        is_sealed(bp).then(|| self.cached_block(bp, objset, access).map(|b| b.data))?
    }

    fn read_sealed(
        &self,
        bp: BlkPtr,
        bookmark: Bookmark,
        priority: Priority,
        access: Access,
    ) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            if !is_sealed(&bp) {
                return Err(Error::inval("the block is not one of an encrypted dataset"));
            }
            Ok(self.read_block(bp, bookmark, priority, access).await?.data)
        })
    }

    fn may_open(&self, bp: &BlkPtr, at: Bookmark) -> Result<()> {
        self.open_block(Failure::Decrypt, bp, at)
    }

    fn cannot_open(&self, bp: &BlkPtr, at: Bookmark) {
        self.lost(at, bp, true);
    }

    fn check(&self, bp: BlkPtr, bookmark: Bookmark) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.look(bp, bookmark))
    }

    fn mend(&self, bp: BlkPtr, bookmark: Bookmark, stored: Bytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.mend_block(&bp, bookmark, stored).await })
    }

    fn write_sealed(&self, txg: Txg, reqs: Vec<WriteReq>, seal: Seal) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        Box::pin(self.write_batch(txg, reqs, Some(seal)))
    }

    fn write_ahead_sealed(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
        seal: Seal,
    ) -> BoxFuture<'_, (Vec<Option<BlkPtr>>, EarlyWrites)> {
        Box::pin(self.write_early(txg, reqs, Some(seal)))
    }

    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        Box::pin(self.write_batch(txg, reqs, None))
    }

    fn write_ahead(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
    ) -> BoxFuture<'_, (Vec<Option<BlkPtr>>, EarlyWrites)> {
        Box::pin(self.write_early(txg, reqs, None))
    }

    fn has_room(&self, bytes: u64, leave: Leave) -> bool {
        self.allocator().is_ok_and(|a| a.has_room(bytes, leave))
    }

    fn uncounted(&self) -> bool {
        self.allocator().is_ok_and(|a| a.uncounted())
    }

    fn log(&self) -> &dyn LogStore {
        self
    }

    fn set_caching(&self, objset: u64, policy: CachePolicy) {
        let mut all = self.0.caching.write();
        if policy == CachePolicy::default() {
            all.remove(&objset);
        } else {
            all.insert(objset, policy);
        }
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        self.0.tree.read().dsize(bp)
    }
}

impl LogStore for Zio {
    fn fullness(&self) -> Option<f64> {
        self.allocator().ok()?.log_fullness()
    }

    fn alloc(&self, txg: Txg, size: u64, spots: Spots) -> BoxFuture<'_, Result<BlkPtr>> {
        Box::pin(self.alloc_log_block(txg, size, spots))
    }

    fn write_log(
        &self,
        bp: &BlkPtr,
        data: Bytes,
        ahead: EarlyWrites,
    ) -> BoxFuture<'static, Result<LogWritten>> {
        self.write_log_block(bp, data, ahead)
    }

    fn read_log(&self, bp: BlkPtr, bookmark: Bookmark) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move { self.read_log_block(&bp, bookmark).await })
    }

    fn vdevs(&self, separate: bool) -> LogVdevs {
        let tree = self.tree();
        let tops = tree.tops_for(separate).filter(|t| {
            // What is for metadata or tables alone takes none.
            t.vdev.allocatable().load(Ordering::Relaxed) && t.vdev.bias().is_none()
        });
        tops.map(|t| LogVdev {
            id: t.id,
            rotational: separate && t.leaves().any(|l| l.rotational()),
            turns: t.leaves().any(|l| l.turns()),
        })
        .collect()
    }
}
