//! The pool's block store as an encrypted dataset sees it: with its key, or without.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::{BlockStore, EarlyWrites, Leave, LogStore, LogWritten, Priority, Spots, WriteReq, expand};
use crate::arc::Access;
use crate::crypt::{DataKey, Seal};
use crate::error::{Errno, Error, Result};
use crate::types::{Bookmark, Txg};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use zilla_codec::compress::Compress;
use zilla_env::Env;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::{DMU_OT_INTENT_LOG, DMU_OT_OBJSET};

/// Blocks of a dataset whose key is there.
pub struct KeyedStore {
    pool: Arc<dyn BlockStore>,
    key: Arc<DataKey>,
    env: Env,
}

impl KeyedStore {
    pub fn new(pool: Arc<dyn BlockStore>, key: Arc<DataKey>, env: &Env) -> Arc<KeyedStore> {
        Arc::new(KeyedStore { pool, key, env: env.clone() })
    }

    fn seal(&self) -> Result<Seal> {
        if !self.key.may_write() {
            let what = "the dataset's key is of an old version, with which nothing is written any more";
            return Err(Error::os(Errno::ROFs, what));
        }
        Ok(Seal::Key(self.key.clone()))
    }

    /// What the store of the pool gives for a block of this kind is plaintext, but for a check.
    fn is_plain(bp: &BlkPtr) -> bool {
        bp.is_hole() || bp.is_embedded() || bp.level() > 0 || !bp.uses_crypt()
    }

    /// A block of data.
    async fn read_and_open(
        &self,
        bp: BlkPtr,
        bookmark: Bookmark,
        priority: Priority,
        access: Access,
    ) -> Result<Bytes> {
        let stored = self.pool.read_sealed(bp, bookmark, priority, access).await?;
        let opened = self.pool.may_open(&bp, bookmark);
        let opened = opened.and_then(|()| self.open(&bp, &stored, Some(bookmark)));
        if matches!(opened, Err(Error::Corrupt(_))) {
            self.pool.cannot_open(&bp, bookmark);
        }
        opened
    }

    fn open(&self, bp: &BlkPtr, stored: &Bytes, bookmark: Option<Bookmark>) -> Result<Bytes> {
        let named = |e: Error| match &e {
            Error::Corrupt(c) => Error::corrupt(bookmark, c.place.clone(), c.what.clone()),
            _ => e,
        };
        let compress = Compress::from_u8(bp.compress()).unwrap_or(Compress::Off);
        expand(bp, compress, &self.key.open(bp, stored).map_err(named)?, bookmark)
    }
}

impl BlockStore for KeyedStore {
    fn cached(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes> {
        if Self::is_plain(bp) {
            return self.pool.cached(bp, objset);
        }
        if bp.otype() == DMU_OT_OBJSET {
            return self.pool.cached(bp, objset).filter(|data| self.key.check_objset(data).is_ok());
        }
        self.open(bp, &self.pool.cached_stored(bp, objset, Access::Demand)?, None).ok()
    }

    fn read(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        if Self::is_plain(&bp) {
            return self.pool.read(bp, bookmark, priority);
        }
        Box::pin(async move {
            if bp.otype() == DMU_OT_OBJSET {
                let data = self.pool.read(bp, bookmark, priority).await?;
                self.key.check_objset(&data)?;
                return Ok(data);
            }
            self.read_and_open(bp, bookmark, priority, Access::of(priority)).await
        })
    }

    fn cached_ahead(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes> {
        if Self::is_plain(bp) || bp.otype() == DMU_OT_OBJSET {
            return self.pool.cached_ahead(bp, objset);
        }
        self.open(bp, &self.pool.cached_stored(bp, objset, Access::Predictive)?, None).ok()
    }

    fn read_ahead(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        if Self::is_plain(&bp) || bp.otype() == DMU_OT_OBJSET {
            return self.pool.read_ahead(bp, bookmark, priority);
        }
        Box::pin(self.read_and_open(bp, bookmark, priority, Access::Predictive))
    }

    fn demanded(&self, bp: &BlkPtr, waited: bool) {
        self.pool.demanded(bp, waited);
    }

    fn forget_read(&self, bp: &BlkPtr) {
        self.pool.forget_read(bp);
    }

    fn note_past(&self, txg: Txg, block: Bookmark) {
        self.pool.note_past(txg, block);
    }

    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        Box::pin(async move { self.pool.write_sealed(txg, reqs, self.seal()?).await })
    }

    fn write_ahead(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
    ) -> BoxFuture<'_, (Vec<Option<BlkPtr>>, EarlyWrites)> {
        match self.seal() {
            Ok(seal) => self.pool.write_ahead_sealed(txg, reqs, seal),
            Err(_) => Box::pin(std::future::ready((vec![None; reqs.len()], EarlyWrites::default()))),
        }
    }

    fn has_key(&self) -> bool {
        true
    }

    fn reseal(&self, bp: &BlkPtr, data: Bytes) -> Result<Bytes> {
        if bp.is_encrypted() { self.key.reseal(bp, &data) } else { Ok(data) }
    }

    fn has_room(&self, bytes: u64, leave: Leave) -> bool {
        self.pool.has_room(bytes, leave)
    }

    fn uncounted(&self) -> bool {
        self.pool.uncounted()
    }

    fn check_counts<'a>(&'a self, bp: &'a BlkPtr) -> BoxFuture<'a, Result<()>> {
        self.pool.check_counts(bp)
    }

    fn log(&self) -> &dyn LogStore {
        self
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        self.pool.dsize(bp)
    }
}

impl LogStore for KeyedStore {
    fn alloc(&self, txg: Txg, size: u64, spots: Spots) -> BoxFuture<'_, Result<BlkPtr>> {
        Box::pin(async move {
            self.seal()?;
            let (salt, iv) = self.key.for_log(&*self.env.rng)?;
            let mut bp = self.pool.log().alloc(txg, size, spots).await?;
            bp.set_crypt(true);
            bp.set_salt_iv(salt, iv);
            Ok(bp)
        })
    }

    fn write_log(
        &self,
        bp: &BlkPtr,
        data: Bytes,
        ahead: EarlyWrites,
    ) -> BoxFuture<'static, Result<LogWritten>> {
        match self.key.seal_log(bp, &data) {
            Ok(sealed) => self.pool.log().write_log(bp, sealed, ahead),
            Err(e) => Box::pin(std::future::ready(Err(e))),
        }
    }

    fn read_log(&self, bp: BlkPtr, bookmark: Bookmark) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            // Nothing but its own code vouches for a log: the header that leads to it is in none.
            if !bp.uses_crypt() || bp.otype() != DMU_OT_INTENT_LOG {
                let what = "a block of an encrypted dataset's intent log is not encrypted";
                return Err(Error::corrupt(Some(bookmark), "intent log", what));
            }
            let stored = self.pool.log().read_log(bp, bookmark).await?;
            self.key.open_log(&bp, &stored)
        })
    }
}

/// Blocks of a dataset whose key is not there. The tree can be walked; of writing there is only the
/// objset's head, for what concerns its log: an import claims it, a clone begins without it.
pub struct SealedStore(Arc<dyn BlockStore>);

impl SealedStore {
    pub fn new(pool: Arc<dyn BlockStore>) -> Arc<SealedStore> {
        Arc::new(SealedStore(pool))
    }
}

impl BlockStore for SealedStore {
    fn reseal(&self, bp: &BlkPtr, data: Bytes) -> Result<Bytes> {
        match bp.is_encrypted() {
            true => Err(Error::os(Errno::Access, "the block is encrypted")),
            false => Ok(data),
        }
    }

    fn cached(&self, bp: &BlkPtr, objset: u64) -> Option<Bytes> {
        self.0.cached(bp, objset)
    }

    fn read(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.0.read(bp, bookmark, priority)
    }

    fn read_tree(&self, bp: BlkPtr, bookmark: Bookmark, priority: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.0.read_tree(bp, bookmark, priority)
    }

    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        self.0.write_sealed(txg, reqs, Seal::Kept)
    }

    fn has_room(&self, bytes: u64, leave: Leave) -> bool {
        self.0.has_room(bytes, leave)
    }

    fn uncounted(&self) -> bool {
        self.0.uncounted()
    }

    fn log(&self) -> &dyn LogStore {
        self
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        self.0.dsize(bp)
    }
}

impl LogStore for SealedStore {
    fn read_log(&self, bp: BlkPtr, bookmark: Bookmark) -> BoxFuture<'_, Result<Bytes>> {
        self.0.log().read_log(bp, bookmark)
    }
}
