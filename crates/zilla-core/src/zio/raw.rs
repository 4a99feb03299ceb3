//! The store of an encrypted dataset that is received as it was encrypted elsewhere: nothing here
//! has a key.
//!
//! ```text
//! WRITE        --> RawBlock, by object and block --\
//! OBJECT_RANGE --> Sealing, by block of dnodes  ----> sync: pointers with the sender's salt, IV and code
//! ```
//!
//! The objset above writes a block of zeroes of the right size for each block that comes
//! ([`RawStore::placeholder`]), so that it counts and orders it as any other; when the txg is
//! synced what is written in its place are the sender's bytes. Blocks of dnodes are put together
//! here, of bonuses as they came, and get the salt, IV and code that the sender's block has: as
//! soon as all its objects are here they are right. The objset's head gets the sender's code.
//! Whoever opens the dataset with its key checks all of it.
//!
//! What is kept true: a block is known from the transaction that dirties it to the sync that writes
//! it, by the txg; later ones of the same block do not touch it. A block of dnodes that no
//! OBJECT_RANGE was seen for keeps what its last pointer says.
//!
//! **Crash.** Until the end of the stream the dataset is marked inconsistent, and nobody reads it
//! with a key.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::{BlockStore, Leave, Priority, WriteReq};
use crate::crypt::{RawBatch, RawBlock, Seal, Sealing};
use crate::error::{Error, Result};
use crate::types::{Bookmark, Txg};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use zilla_env::IoBuf;
use zilla_ondisk::SPA_MAXBLOCKSIZE;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::DMU_OT_DNODE;

/// Blocks of dnodes whose sealing waits to be written. A sender tells one where an object of it
/// follows, which makes it dirty until its txg is synced; so many of them would be 8 GiB of dirty
/// data. In memory 40 MB.
const MOST_DNODES: usize = 1 << 19;

pub struct RawStore {
    pool: Arc<dyn BlockStore>,
    /// By object, block and txg.
    blocks: Mutex<BTreeMap<(u64, u64, u64), RawBlock>>,
    dnodes: Mutex<HashMap<u64, Sealing>>,
    zeroes: Mutex<Bytes>,
}

impl RawStore {
    pub fn new(pool: Arc<dyn BlockStore>) -> Arc<RawStore> {
        let (blocks, dnodes, zeroes) = Default::default();
        Arc::new(RawStore { pool, blocks, dnodes, zeroes })
    }

    /// What the objset is given in a block's stead.
    pub fn placeholder(&self, len: usize) -> Bytes {
        let mut zeroes = self.zeroes.lock();
        if zeroes.len() < len {
            *zeroes = IoBuf::zeroed(len.min(SPA_MAXBLOCKSIZE as usize)).into_bytes();
        }
        zeroes.slice(..len)
    }

    /// What `txg` writes in a block's place.
    pub fn put(&self, object: u64, blkid: u64, txg: Txg, block: RawBlock) {
        self.blocks.lock().insert((object, blkid, txg.0), block);
    }

    /// What `txg` would write of blocks that it frees after all.
    pub fn forget(&self, object: u64, blocks: std::ops::RangeInclusive<u64>, txg: Txg) {
        let mut all = self.blocks.lock();
        let range = (object, *blocks.start(), 0)..=(object, *blocks.end(), u64::MAX);
        let gone: Vec<_> = all.range(range).map(|(k, _)| *k).filter(|k| k.2 == txg.0).collect();
        gone.iter().for_each(|k| drop(all.remove(k)));
    }

    /// How a block of dnodes is encrypted. False where so many have been told and not written that
    /// nobody honest tells more.
    pub fn put_dnodes(&self, blkid: u64, sealing: Sealing) -> bool {
        let mut dnodes = self.dnodes.lock();
        let room = dnodes.len() < MOST_DNODES || dnodes.contains_key(&blkid);
        if room {
            dnodes.insert(blkid, sealing);
        }
        room
    }

    /// What these blocks are written with in `txg`.
    fn batch(&self, txg: Txg, reqs: &[WriteReq]) -> Result<RawBatch> {
        let mut out = RawBatch::default();
        for req in reqs.iter().filter(|r| r.level == 0 && r.bookmark.object != 0) {
            let (object, blkid) = (req.bookmark.object, req.bookmark.blkid);
            // (A sync that had to be put off writes what an earlier txg has left.)
            let blocks = self.blocks.lock();
            let found = blocks.range((object, blkid, 0)..=(object, blkid, txg.0)).next_back();
            let block = found.map(|(_, b)| b.clone());
            drop(blocks);
            let lost = || Error::corrupt(Some(req.bookmark), "", "a block that was received raw is lost");
            out.add(&req.bookmark, block.ok_or_else(lost)?);
        }
        let dnodes = self.dnodes.lock();
        for req in reqs.iter().filter(|r| r.level == 0 && r.otype == DMU_OT_DNODE) {
            if let Some(s) = dnodes.get(&req.bookmark.blkid) {
                out.add_dnodes(req.bookmark.blkid, *s);
            }
        }
        Ok(out)
    }

    /// Forgets what is on disk now. The codes of dnodes are in their pointers from here on, unless
    /// others have come meanwhile.
    fn written(&self, txg: Txg, written: &[Bookmark], batch: &RawBatch) {
        self.dnodes.lock().retain(|blkid, s| batch.dnodes(*blkid) != Some(*s));
        let mut blocks = self.blocks.lock();
        for at in written {
            let old: Vec<_> = blocks
                .range((at.object, at.blkid, 0)..=(at.object, at.blkid, txg.0))
                .map(|(k, _)| *k)
                .collect();
            old.iter().for_each(|k| drop(blocks.remove(k)));
        }
    }
}

impl BlockStore for RawStore {
    fn cached(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes> {
        self.pool.cached(bp, objset)
    }

    fn read(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.pool.read_tree(bp, bookmark, priority)
    }

    fn raw(&self) -> Option<&RawStore> {
        Some(self)
    }

    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        Box::pin(async move {
            let batch = Arc::new(self.batch(txg, &reqs)?);
            let written: Vec<Bookmark> = reqs.iter().filter(|r| r.level == 0).map(|r| r.bookmark).collect();
            let bps = self.pool.write_sealed(txg, reqs, Seal::Raw(batch.clone())).await?;
            self.written(txg, &written, &batch);
            Ok(bps)
        })
    }

    fn has_room(&self, bytes: u64, leave: Leave) -> bool {
        self.pool.has_room(bytes, leave)
    }

    fn uncounted(&self) -> bool {
        self.pool.uncounted()
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        self.pool.dsize(bp)
    }
}
