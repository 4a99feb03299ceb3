//! Block I/O: from a block pointer to verified bytes and back.
//!
//! **Floor 5.** It stands on devices and caches; who gives it space is above (`Allocator`).
//!
//! [`Zio`] is the pool's [`BlockStore`]. A read looks in the cache and among the blocks still on
//! their way to disk, then tries the block's copies in turn, each from whichever leaves can give
//! it; what it finds damaged it repairs. A write takes a batch: its blocks are compressed,
//! checksummed, placed and split into columns by as many tasks as there are cores, a stretch of 256
//! KiB each, so that every byte is touched while it is in the core's cache and neighbours end up as
//! neighbours on disk.
//!
//! ```text
//! BlkPtr -- embedded? decode            WriteReq -- zero? hole
//!        -- cached, in flight?                   -- compress, embed?
//!        -- on a cache device? check             -- checksum; shared, and there? point to it
//!        -- for each DVA: vdev read              -- allocate (gang when no run is left)
//!             gang? header, then children
//!             check, heal                        -- parity, join, submit
//!        -- decompress, byteswap                 -> BlkPtr at once; stable with its txg
//! ```
//!
//! What is kept true:
//! - Bytes are given out only when the pointer's checksum says that they are the block.
//! - A log block ([`log`]), and what it had written before its time ([`early`]), is written by
//!   itself and stable when its writer is told so, not with its txg.
//! - A damaged copy is written again only while the pointer to it is in use ([`repair`]).
//! - A location is never written while an older write to it is on its way: rewriting or freeing a
//!   block born in the txg that is being synced first waits for its write.
//! - When [`Zio::wait_txg`] returns well, every block of the txg is stable on enough leaves to be
//!   read back.
//!
//! A crash loses blocks of txgs that were not finished, and no uberblock names those.

mod alloc;
mod byteswap;
mod dedup;
mod early;
mod evacuate;
mod free;
mod gang;
mod inflight;
mod injected;
mod keyed;
mod log;
mod mend;
mod met;
mod nopwrite;
mod past;
mod pending;
mod raw;
mod read;
mod repair;
mod serve;
mod store;
mod track;
mod verify;
mod write;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use zilla_codec::checksum::Salted;
use zilla_env::Env;
use zilla_ondisk::blkptr::BlkPtr;

use crate::arc::Cache;
use crate::error::{Errno, Error, Result};
use crate::l2arc::L2arc;
use crate::trace::Tracer;
use crate::types::{Bookmark, TXG_SIZE, Txg};
use crate::vdev::VdevTree;

pub use crate::vdev::Priority;
pub use alloc::{
    AllocClass, AllocReq, AllocStop, Allocator, At, DeviceWaiter, Dvas, Leave, Spot, Spots, devices_away,
    is_away,
};
pub(crate) use byteswap::class_swap;
pub use dedup::{Claim, DedupTables};
pub use early::EarlyWrites;
pub use evacuate::Sides;
pub use injected::Unreadable;
pub use keyed::{KeyedStore, SealedStore};
pub use log::{LOG_BLOCK_UNIT, LogWrite};
pub(crate) use met::Met;
pub use raw::RawStore;
pub use read::Scrubbed;
use read::expand;
pub use repair::Pointers;
pub use store::{
    BlockStore, CachePolicy, Dedup, LogStore, LogVdev, LogVdevs, LogWritten, Packed, References, WriteReq,
};
pub(crate) use write::squeeze;

/// What the pool's feature flags allow a writer.
#[derive(Debug, Default)]
pub struct ZioFeatures {
    /// Tiny blocks may live in their pointer (`embedded_data` is enabled).
    pub embedded_data: AtomicBool,
    /// Holes remember when they were made (`hole_birth` is active).
    pub hole_birth: AtomicBool,
}

/// The pool's block I/O. A cheap handle.
#[derive(Clone)]
pub struct Zio(Arc<Inner>);

struct Inner {
    env: Env,
    tree: RwLock<Arc<VdevTree>>,
    cache: Arc<Cache>,
    l2: Arc<L2arc>,
    tracer: Arc<Tracer>,
    /// Which blocks the caches take, where that is not all: by objset.
    caching: RwLock<HashMap<u64, CachePolicy>>,
    /// Not owned: the metaslabs' own objects stand on this store, and a ring of owners would
    /// outlive the pool.
    allocator: OnceLock<Weak<dyn Allocator>>,
    salt: RwLock<Option<Arc<Salted>>>,
    features: ZioFeatures,
    pending: pending::PendingReads,
    past: Mutex<past::Past>,
    inflight: inflight::Inflight,
    track: track::Track,
    repairs: repair::Repairs,
    /// Not owned, for the same reason.
    waiter: OnceLock<Weak<dyn DeviceWaiter>>,
    pointers: OnceLock<Weak<dyn Pointers>>,
    /// Not owned either: they stand on the MOS.
    dedup: OnceLock<Weak<dyn DedupTables>>,
    references: OnceLock<Weak<dyn References>>,
    /// Blocks that could not be read from any copy, for the pool's error log.
    damaged: Mutex<BTreeSet<(Bookmark, Txg)>>,
    /// Whether there is any such block, in that log or not yet in it.
    knows_damage: AtomicBool,
    /// Blocks that could not be read, for who watches.
    unreadable: Mutex<Vec<Unreadable>>,
}

/// More damaged blocks than this are not remembered one by one.
const MAX_DAMAGED: usize = 10_000;

impl Zio {
    pub fn new(env: &Env, tree: Arc<VdevTree>, cache: Arc<Cache>) -> Zio {
        Zio(Arc::new(Inner {
            env: env.clone(),
            tree: RwLock::new(tree),
            l2: L2arc::new(env, &cache),
            tracer: Tracer::new(&env.clock),
            cache,
            caching: RwLock::default(),
            allocator: OnceLock::new(),
            salt: RwLock::new(None),
            features: ZioFeatures::default(),
            pending: pending::PendingReads::default(),
            past: Mutex::default(),
            inflight: inflight::Inflight::default(),
            track: track::Track::default(),
            repairs: repair::Repairs::default(),
            waiter: OnceLock::new(),
            pointers: OnceLock::new(),
            dedup: OnceLock::new(),
            references: OnceLock::new(),
            damaged: Mutex::default(),
            knows_damage: AtomicBool::new(false),
            unreadable: Mutex::default(),
        }))
    }

    pub fn tree(&self) -> Arc<VdevTree> {
        self.0.tree.read().clone()
    }

    /// Puts another tree in the old one's place (the trusted configuration of the MOS instead of
    /// the labels'; later a changed one). I/O that is under way ends on the old one.
    pub fn set_tree(&self, tree: Arc<VdevTree>) {
        *self.0.tree.write() = tree;
    }

    pub fn cache(&self) -> &Arc<Cache> {
        &self.0.cache
    }

    /// The second-level cache.
    pub fn l2(&self) -> &Arc<L2arc> {
        &self.0.l2
    }

    /// Who records what the pool is asked for.
    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.0.tracer
    }

    /// Which of an objset's blocks the caches take.
    fn caching(&self, objset: u64) -> CachePolicy {
        self.0.caching.read().get(&objset).copied().unwrap_or_default()
    }

    pub fn features(&self) -> &ZioFeatures {
        &self.0.features
    }

    pub fn set_hole_birth(&self, on: bool) {
        self.0.features.hole_birth.store(on, Ordering::Release);
    }

    pub fn set_embedded_data(&self, on: bool) {
        self.0.features.embedded_data.store(on, Ordering::Release);
    }

    /// The metaslabs, once they are there. Before, nothing can be written.
    /// The pool owns them.
    pub fn set_allocator(&self, allocator: &Arc<dyn Allocator>) {
        if self.0.allocator.set(Arc::downgrade(allocator)).is_err() {
            tracing::error!("a pool's allocator was set twice");
        }
    }

    /// Who holds syncs up while devices are away. Before that is known they fail.
    pub fn set_waiter(&self, waiter: Weak<dyn DeviceWaiter>) {
        if self.0.waiter.set(waiter).is_err() {
            tracing::error!("who waits for a pool's devices was set twice");
        }
    }

    /// Who says whether a block that was read may still be repaired. Before that is known all may.
    pub fn set_pointers(&self, pointers: Weak<dyn Pointers>) {
        if self.0.pointers.set(pointers).is_err() {
            tracing::error!("a pool's pointers were set twice");
        }
    }

    /// Who counts clones. Before that is known there are none.
    pub fn set_references(&self, references: Weak<dyn References>) {
        if self.0.references.set(references).is_err() {
            tracing::error!("who counts a pool's clones was set twice");
        }
    }

    fn references(&self) -> Option<Arc<dyn References>> {
        self.0.references.get().and_then(Weak::upgrade)
    }

    fn allocator(&self) -> Result<Arc<dyn Allocator>> {
        let allocator = self.0.allocator.get().and_then(Weak::upgrade);
        allocator.ok_or_else(|| Error::os(Errno::ROFs, "the pool is not open for writing"))
    }

    /// The pool's checksum salt, once it was read from the MOS (or made).
    pub fn set_salt(&self, salt: &[u8; 32]) {
        *self.0.salt.write() = Some(Arc::new(Salted::new(salt)));
    }

    fn salt(&self) -> Option<Arc<Salted>> {
        self.0.salt.read().clone()
    }

    /// Takes the list of blocks found unreadable since the last call, each with its birth.
    pub fn take_damaged(&self) -> BTreeSet<(Bookmark, Txg)> {
        std::mem::take(&mut self.0.damaged.lock())
    }

    fn damaged(&self, bookmark: Bookmark, bp: &BlkPtr) {
        self.lost(bookmark, bp, false);
    }

    fn lost(&self, bookmark: Bookmark, bp: &BlkPtr, sealed: bool) {
        self.set_knows_damage(true);
        if bookmark == Bookmark::NOWHERE {
            return;
        }
        self.tell_unreadable(Unreadable { at: bookmark, sealed });
        let mut list = self.0.damaged.lock();
        if list.len() < MAX_DAMAGED {
            list.insert((bookmark, Txg(bp.birth())));
        }
    }

    /// Nothing will be sent again: the pool is closed.
    pub fn forget_writes(&self) {
        (0..TXG_SIZE as u64).for_each(|slot| self.0.track.settled(self, Txg(slot)));
    }

    /// Waits until every block written in `txg` is on its leaves and stable there. An error means
    /// that some block is not, and that the txg must not be finished; after [`Zio::resend_txg`] it
    /// may be waited for again, until it is [settled](Zio::settle_txg).
    pub async fn wait_txg(&self, txg: Txg) -> Result<()> {
        let missed = self.0.track.wait(txg).await;
        let tree = self.tree();
        let readable = tree.missed(txg.0, &missed);
        tree.check_suspects().await;
        readable?;
        tree.flush_all(txg.0).await
    }

    /// The pool's uberblock leads to the txg: it need not be sent again.
    pub fn settle_txg(&self, txg: Txg) {
        self.0.track.settled(self, txg);
    }
}

#[cfg(test)]
mod tests;
