//! The seam between objects and pool: blocks in, block pointers out.
//!
//! The DMU knows nothing of vdevs; it knows a [`BlockStore`]. The pool's implementation is [`super::Zio`]; the DMU's own tests use one in memory.

use crate::error::Result;
use crate::types::{Bookmark, Txg};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::CompressSpec;
use zilla_ondisk::blkptr::BlkPtr;

/// OpenZFS's I/O classes, in falling order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    SyncRead,
    SyncWrite,
    AsyncRead,
    AsyncWrite,
    Scrub,
    Removal,
    Initialize,
    Trim,
}

/// One block to be put on disk in the txg being synced.
#[derive(Clone, Debug)]
pub struct WriteReq {
    /// The logical contents; its length is the block's lsize. An empty buffer of a level-0 block asks for a hole.
    pub data: Bytes,
    pub bookmark: Bookmark,
    pub otype: u8,
    pub level: u8,
    pub checksum: Checksum,
    pub compress: CompressSpec,
    pub copies: u8,
    /// Non-hole level-0 blocks (for a dnode block: dnodes) below and including this one.
    pub fill: u64,
    /// What the pointer held before. If it was born in this very txg and the new block has its size, it is rewritten where it
    /// is. Freeing what is not used again is the caller's business.
    pub prev: BlkPtr,
    /// Whether a tiny result may live in the block pointer itself.
    pub may_embed: bool,
}

/// What the DMU needs of a pool.
pub trait BlockStore: Send + Sync {
    /// The block's contents, decompressed, if they are in memory (or in the pointer). Holes are the caller's business.
    fn cached(&self, bp: &BlkPtr) -> Option<Bytes>;

    /// Reads, verifies, heals and decompresses. Concurrent reads of one block share one I/O. The bytes of metadata
    /// are in the machine's byte order whoever wrote them.
    fn read(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>>;

    /// As [`BlockStore::read`], for walking trees of blocks: in an encrypted block of dnodes the pointers can be read
    /// without the key. The dnodes' bonuses cannot.
    fn read_tree(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.read(bp, bookmark, priority)
    }

    /// Compresses, checksums, allocates and submits. The pointers come back before the data is stable; from then on
    /// reads of them are served (from memory until the device has them). Stability is the txg's business: the pool waits
    /// for all of a txg's writes before its uberblock. Pointers come in the order of the requests.
    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>>;

    /// The space a block takes as users see it (deflated by RAID-Z's overhead), in bytes.
    fn dsize(&self, bp: &BlkPtr) -> u64;
}
