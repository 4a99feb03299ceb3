//! The seam between objects and pool: blocks in, block pointers out.
//!
//! The DMU knows nothing of vdevs; it knows a [`BlockStore`]. The pool's implementation is
//! [`super::Zio`]; the DMU's own tests use one in memory.

use super::early::EarlyWrites;
use super::{Leave, RawStore, Spots};
use crate::arc::{Access, Caching};
use crate::crypt::Seal;
use crate::error::{Errno, Error, Result};
use crate::trace::Tracer;
use crate::types::{Bookmark, Txg};
use crate::vdev::Priority;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use smallvec::SmallVec;
use std::time::Duration;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_ondisk::blkptr::BlkPtr;

fn no_log() -> Error {
    Error::os(Errno::NotSup, "there is nowhere to put an intent log")
}

/// A block's contents as somebody else has compressed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    pub data: Bytes,
    pub compress: Compress,
}

/// One block to be put on disk in the txg being synced.
#[derive(Clone, Debug)]
pub struct WriteReq {
    /// The logical contents; its length is the block's lsize. An empty buffer of a level-0 block
    /// asks for a hole.
    pub data: Bytes,
    pub bookmark: Bookmark,
    pub otype: u8,
    pub level: u8,
    pub checksum: Checksum,
    pub compress: CompressSpec,
    pub copies: u8,
    /// Non-hole level-0 blocks (for a dnode block: dnodes) below and including this one.
    pub fill: u64,
    /// What the pointer held before. If it was born in this very txg and the new block has its
    /// size, it is rewritten where it is. Freeing what is not used again is the caller's business.
    pub prev: BlkPtr,
    /// Whether a tiny result may live in the block pointer itself.
    pub may_embed: bool,
    /// A file's block of at most so many bytes on disk is small enough for the special vdevs.
    pub special_upto: u32,
    /// It may be shared with others that are the same, by its checksum.
    pub dedup: Option<Dedup>,
    /// The block that is there may stay if it is what would be written now.
    pub may_stay: bool,
    /// What is stored of `data` instead of what `compress` would make of it.
    pub packed: Option<Packed>,
}

/// How blocks are shared by their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dedup {
    pub checksum: Checksum,
    /// Contents are compared before a block is shared.
    pub verify: bool,
}

/// A top-level vdev that takes log blocks, and what is known of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogVdev {
    pub id: u32,
    /// It is for the log alone, and some say that they are rotational.
    pub rotational: bool,
    /// Some are.
    pub turns: bool,
}

pub type LogVdevs = SmallVec<[LogVdev; 4]>;

/// How the write of a log block went: how much it was, how long the write itself took, and how long
/// the flush.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWritten {
    pub bytes: u64,
    pub write: Duration,
    pub flush: Duration,
}

/// Which of an objset's blocks the two levels of the cache take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachePolicy {
    pub primary: Caching,
    pub secondary: Caching,
}

/// Who counts how many point to a block.
pub trait References: Send + Sync {
    /// As [`BlockStore::check_counts`].
    fn check<'a>(&'a self, bp: &'a BlkPtr) -> BoxFuture<'a, Result<()>>;
}

/// What the DMU needs of a pool.
pub trait BlockStore: Send + Sync {
    /// The block's contents, decompressed, if they are in memory (or in the pointer). Holes are the
    /// caller's business. `objset` is whose it is, if that is known, for who records reads.
    fn cached(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes>;

    /// Reads, verifies, heals and decompresses. Concurrent reads of one block share one I/O. The
    /// bytes of metadata are in the machine's byte order whoever wrote them.
    fn read(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>>;

    /// As [`BlockStore::cached`], for who reads ahead of others.
    fn cached_ahead(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes> {
        self.cached(bp, objset)
    }

    /// As [`BlockStore::read`], for who reads ahead of others: no use of the block, until
    /// [`BlockStore::demanded`] says that there was one.
    fn read_ahead(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.read(bp, bookmark, priority)
    }

    /// What was read ahead is used for the first time. `waited`: its reader came before it did.
    fn demanded(&self, _: &BlkPtr, _waited: bool) {}

    /// Who read the block does not want it again: it need not be kept in memory.
    fn forget_read(&self, _: &BlkPtr) {}

    /// What this txg writes there need not be kept in memory.
    fn note_past(&self, _: Txg, _: Bookmark) {}

    /// Reads and verifies a compressed block, and gives its bytes as they are stored.
    fn read_stored(&self, bp: BlkPtr, bookmark: Bookmark, _: Priority) -> BoxFuture<'_, Result<Bytes>> {
        let what = format!("block {bookmark} is not stored compressed: {bp}");
        Box::pin(std::future::ready(Err(Error::os(Errno::NotSup, what))))
    }

    /// As [`BlockStore::read`], for walking trees of blocks: in an encrypted block of dnodes the
    /// pointers can be read without the key. The dnodes' bonuses cannot.
    fn read_tree(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.read(bp, bookmark, priority)
    }

    /// The block as it is on disk, if that is in memory: what is not an indirect block or an
    /// objset, of an encrypted dataset.
    fn cached_stored(&self, _: &BlkPtr, _objset: u64, _: Access) -> Option<Bytes> {
        None
    }

    /// Who is to be told what the pool is asked for.
    fn tracer(&self) -> Option<&Tracer> {
        None
    }

    /// As [`BlockStore::read`], but the block as it is on disk: encrypted, compressed, in its
    /// writer's order. Its checksum was right.
    fn read_sealed(&self, _: BlkPtr, _: Bookmark, _: Priority, _: Access) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(std::future::ready(Err(Error::os(Errno::NotSup, "the store keeps nothing encrypted"))))
    }

    /// Asked before a block is decrypted: whether it is to be taken for one that cannot be.
    fn may_open(&self, _: &BlkPtr, _: Bookmark) -> Result<()> {
        Ok(())
    }

    /// A block could be read, but not decrypted.
    fn cannot_open(&self, _: &BlkPtr, _: Bookmark) {}

    /// Reads all copies of a block with all redundancy, repairing what that can repair. An error:
    /// no copy is good.
    fn check(&self, bp: BlkPtr, bookmark: Bookmark) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.read(bp, bookmark, Priority::Scrub).await.map(drop) })
    }

    /// Whether the pool can count that a block is pointed to once more. An error: where it would be
    /// counted is damaged.
    fn check_counts<'a>(&'a self, _: &'a BlkPtr) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether blocks of the pool are known to be damaged: then none stays because it is what would
    /// be written.
    fn set_damaged(&self, _: bool) {}

    /// Puts the bytes of a block that is in use, as they should be on disk, where no copy of it is
    /// good.
    fn mend(&self, _: BlkPtr, _: Bookmark, _: Bytes) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Err(Error::os(Errno::NotSup, "the store mends nothing"))))
    }

    /// A block's stored bytes once more as they were encrypted under its pointer's salt and IV,
    /// where the store encrypts.
    fn reseal(&self, _: &BlkPtr, data: Bytes) -> Result<Bytes> {
        Ok(data)
    }

    /// Whether what it gives of log blocks is plaintext though they are encrypted.
    fn has_key(&self) -> bool {
        false
    }

    /// The store itself where blocks come, and go, as they were encrypted elsewhere.
    fn raw(&self) -> Option<&RawStore> {
        None
    }

    /// As [`BlockStore::write`], encrypted.
    fn write_sealed(&self, _: Txg, _: Vec<WriteReq>, _: Seal) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        Box::pin(std::future::ready(Err(Error::os(Errno::NotSup, "the store encrypts nothing"))))
    }

    /// As [`BlockStore::write_ahead`], encrypted.
    fn write_ahead_sealed(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
        _: Seal,
    ) -> BoxFuture<'_, (Vec<Option<BlkPtr>>, EarlyWrites)> {
        let _ = txg;
        Box::pin(std::future::ready((vec![None; reqs.len()], EarlyWrites::default())))
    }

    /// Compresses, checksums, allocates and submits. The pointers come back before the data is
    /// stable; from then on reads of them are served (from memory until the device has them).
    /// Stability is the txg's business: the pool waits for all of a txg's writes before its
    /// uberblock. Pointers come in the order of the requests.
    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>>;

    /// Writes blocks of a txg that the caller holds open, before its sync. For each a pointer with
    /// that birth, whose block the caller must free in that txg's sync unless it is used; None
    /// where there is none (it became a hole, or found no place). The second must be waited for
    /// ([`BlockStore::write_log`]) before anybody relies on them; the txg is not finished before it
    /// was, or was dropped.
    fn write_ahead(&self, _: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, (Vec<Option<BlkPtr>>, EarlyWrites)> {
        Box::pin(std::future::ready((vec![None; reqs.len()], EarlyWrites::default())))
    }

    /// Whether what is dirty would find room with so many bytes more, as users see them.
    fn has_room(&self, _bytes: u64, _leave: Leave) -> bool {
        true
    }

    /// Whether it is not certain that [`BlockStore::has_room`] says no for ever: blocks were given
    /// out, perhaps to the intent log, and may have been given back since what is left was counted.
    fn uncounted(&self) -> bool {
        false
    }

    /// What only the intent log asks for.
    fn log(&self) -> &dyn LogStore {
        &NoLog
    }

    /// From now on the caches take these of an objset's blocks.
    fn set_caching(&self, _objset: u64, _policy: CachePolicy) {}

    /// The space a block takes as users see it (deflated by RAID-Z's overhead), in bytes.
    fn dsize(&self, bp: &BlkPtr) -> u64;
}

/// What the intent log needs of a pool beside. A store without devices has no log.
pub trait LogStore: Send + Sync {
    /// How much of the log devices' space is taken, from 0 to 1; None: there are none that take
    /// blocks.
    fn fullness(&self) -> Option<f64> {
        None
    }

    /// A place for a block, in a txg that the caller holds open. See `zio/log.rs`.
    fn alloc(&self, _: Txg, _size: u64, _: Spots) -> BoxFuture<'_, Result<BlkPtr>> {
        Box::pin(std::future::ready(Err(no_log())))
    }

    /// Writes a block; the future ends when it is stable, and what was written ahead too. The write
    /// is under way when this returns.
    fn write_log(&self, _: &BlkPtr, _: Bytes, _: EarlyWrites) -> BoxFuture<'static, Result<LogWritten>> {
        Box::pin(std::future::ready(Err(no_log())))
    }

    /// Reads what may or may not be a log block.
    fn read_log(&self, _: BlkPtr, _: Bookmark) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(std::future::ready(Err(no_log())))
    }

    /// The vdevs that take blocks: those that are for the log alone, or the pool's.
    fn vdevs(&self, _separate: bool) -> LogVdevs {
        LogVdevs::new()
    }
}

struct NoLog;

impl LogStore for NoLog {}
