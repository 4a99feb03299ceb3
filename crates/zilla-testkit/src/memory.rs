//! A block store in memory, for the tests of everything that stands on objects.
//!
//! It keeps every block it was ever given by DVA, refuses what a pool would refuse, and can forget
//! its "cache" so that reads go the slow way. It checks what real pools check late: a block freed
//! twice, or read after it was freed.
//!
//! The engine's own unit tests compile this file as a module of theirs (`dmu/testing.rs`): they see
//! the engine's types, and others its library's.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_core::crypt::Seal;
use zilla_core::dmu::{Objset, Prefetch, WriteProps};
use zilla_core::error::{Error, Result};
use zilla_core::txg::TxgState;
use zilla_core::types::{Bookmark, Txg};
use zilla_core::zio::{BlockStore, EarlyWrites, Leave, Priority, WriteReq, devices_away};
use zilla_ondisk::blkptr::{BlkPtr, Dva};

#[derive(Default)]
pub struct MemStore {
    blocks: Mutex<HashMap<u64, Bytes>>,
    unreadable: Mutex<HashSet<u64>>,
    away: Mutex<HashSet<u64>>,
    uncountable: Mutex<HashSet<u64>>,
    next: AtomicU64,
    /// Whether nothing more is to be dirtied.
    pub full: AtomicBool,
    /// Room for that there is; 0: for anything.
    pub room: AtomicU64,
    pub reads: AtomicU64,
    /// Reads that failed as they were to.
    pub refused: AtomicU64,
    pub writes: AtomicU64,
    /// Pointers say that their blocks are compressed, which they are not.
    pub says_compressed: AtomicBool,
    /// Level and offset of what was read ahead, and of what of it was asked for then; and whether
    /// somebody waited for it.
    pub ahead: Mutex<Vec<(u8, u64)>>,
    pub demanded: Mutex<Vec<(u8, u64, bool)>>,
}

impl MemStore {
    /// Takes blocks away, as the pool does with what a sync killed. A block that is not there was
    /// freed twice.
    pub fn free(&self, killed: &[BlkPtr]) {
        let mut blocks = self.blocks.lock();
        for bp in killed.iter().filter(|b| !b.is_embedded()) {
            assert!(blocks.remove(&bp.dva(0).offset).is_some(), "freed twice: {bp:?}");
        }
    }

    /// Whether reads of a block fail from now on.
    pub fn set_unreadable(&self, offset: u64, yes: bool) {
        let mut all = self.unreadable.lock();
        if yes {
            all.insert(offset)
        } else {
            all.remove(&offset)
        };
    }

    /// That a block is cloned cannot be counted from now on.
    pub fn set_uncountable(&self, offset: u64) {
        self.uncountable.lock().insert(offset);
    }

    /// The devices that have a block go away.
    pub fn set_away(&self, offset: u64) {
        self.away.lock().insert(offset);
    }

    /// All are back.
    pub fn come_back(&self) {
        self.away.lock().clear();
    }

    /// Changes a block where it is, as who forges checksums can.
    pub fn forge(&self, offset: u64, change: impl FnOnce(&mut [u8])) {
        if let Some(block) = self.blocks.lock().get_mut(&offset) {
            let mut data = block.to_vec();
            change(&mut data);
            *block = data.into();
        }
    }

    /// The offsets of all blocks there are.
    pub fn offsets(&self) -> Vec<u64> {
        self.blocks.lock().keys().copied().collect()
    }

    pub fn count(&self) -> usize {
        self.blocks.lock().len()
    }
}

impl BlockStore for MemStore {
    fn cached(&self, _bp: &BlkPtr, _: u64) -> Option<Bytes> {
        None
    }

    fn read(&self, bp: BlkPtr, bookmark: Bookmark, _prio: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let readable = !self.unreadable.lock().contains(&bp.dva(0).offset);
        self.refused.fetch_add(u64::from(!readable), Ordering::Relaxed);
        let away = self.away.lock().contains(&bp.dva(0).offset);
        let found = self.blocks.lock().get(&bp.dva(0).offset).filter(|_| readable).cloned();
        Box::pin(async move {
            // A real read takes a while: let others run in between.
            zilla_env::yield_now().await;
            if away {
                return Err(devices_away());
            }
            found.ok_or_else(|| Error::corrupt(Some(bookmark), "memory", "no such block"))
        })
    }

    fn check_counts<'a>(&'a self, bp: &'a BlkPtr) -> BoxFuture<'a, Result<()>> {
        let damaged = self.uncountable.lock().contains(&bp.dva(0).offset);
        let checked = if damaged { Err(Error::corrupt(None, "memory", "no count")) } else { Ok(()) };
        Box::pin(std::future::ready(checked))
    }

    fn read_ahead(&self, bp: BlkPtr, bookmark: Bookmark, prio: Priority) -> BoxFuture<'_, Result<Bytes>> {
        self.ahead.lock().push((bp.level(), bp.dva(0).offset));
        self.read(bp, bookmark, prio)
    }

    fn demanded(&self, bp: &BlkPtr, waited: bool) {
        self.demanded.lock().push((bp.level(), bp.dva(0).offset, waited));
    }

    fn write(&self, txg: Txg, reqs: Vec<WriteReq>) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        let mut out = Vec::with_capacity(reqs.len());
        for r in reqs {
            self.writes.fetch_add(1, Ordering::Relaxed);
            if r.compress.kind != Compress::Off && r.data.iter().all(|b| *b == 0) {
                out.push(BlkPtr::hole(r.data.len() as u64, r.otype, r.level, txg.0));
                continue;
            }
            let offset = (self.next.fetch_add(1, Ordering::Relaxed) + 1) << 20;
            let lsize = r.data.len() as u64;
            self.blocks.lock().insert(offset, r.data);
            let mut bp = BlkPtr::ZERO;
            bp.set_dva(0, Dva { vdev: 0, offset, asize: lsize, ..Dva::default() });
            bp.set_lsize(lsize);
            bp.set_psize(lsize);
            bp.set_otype(r.otype);
            bp.set_level(r.level);
            bp.set_checksum_kind(r.checksum as u8);
            let compressed = self.says_compressed.load(Ordering::Relaxed);
            bp.set_compress(if compressed { Compress::Lz4 } else { Compress::Off } as u8);
            bp.set_birth(txg.0);
            bp.set_fill(r.fill);
            out.push(bp);
        }
        Box::pin(async move {
            zilla_env::yield_now().await;
            Ok(out)
        })
    }

    /// As they are: these tests are about keys, and not about what is written with them.
    fn write_sealed(&self, txg: Txg, reqs: Vec<WriteReq>, _: Seal) -> BoxFuture<'_, Result<Vec<BlkPtr>>> {
        self.write(txg, reqs)
    }

    fn write_ahead(
        &self,
        txg: Txg,
        reqs: Vec<WriteReq>,
    ) -> BoxFuture<'_, (Vec<Option<BlkPtr>>, EarlyWrites)> {
        Box::pin(async move {
            let bps = self.write(txg, reqs).await.unwrap_or_default();
            (bps.into_iter().map(|bp| Some(bp).filter(|b| !b.is_hole())).collect(), EarlyWrites::default())
        })
    }

    fn has_room(&self, bytes: u64, _: Leave) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        !self.full.load(Ordering::Relaxed) && (room == 0 || bytes <= room)
    }

    fn dsize(&self, bp: &BlkPtr) -> u64 {
        if bp.is_hole() || bp.is_embedded() { 0 } else { bp.asize() }
    }
}

/// Properties as a fresh pool's datasets have them, uncompressed so that tests see their bytes.
pub fn props() -> WriteProps {
    WriteProps {
        checksum: Checksum::Fletcher4,
        compress: CompressSpec::new(Compress::Off),
        copies: 1,
        metadata_copies: 2,
        metadata_compress: CompressSpec::new(Compress::Lz4),
        hole_birth: true,
        embed: true,
        large_microzap: false,
        special_upto: 0,
        dedup: None,
        prefetch: Prefetch::default(),
        keep: true,
    }
}

/// Syncs the objset as its txgs ask for it, as a pool's sync task does, until they are stopped or
/// nobody else has them.
pub async fn keep_synced(objset: Arc<Objset>, store: Arc<MemStore>, txgs: Arc<TxgState>) {
    let mut root = BlkPtr::ZERO;
    while !txgs.is_stopped() && Arc::strong_count(&txgs) > 1 {
        txgs.wait_for_work(std::time::Duration::from_secs(1)).await;
        let txg = txgs.quiesce().await;
        let out = match objset.sync(txg, root).await {
            Ok(out) => out,
            Err(e) => panic!("sync of {txg} failed: {e}"),
        };
        store.free(&out.killed);
        root = out.root;
        txgs.done(txg);
    }
}
