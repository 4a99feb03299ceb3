//! Counters: what caches, intent logs, deduplication and heartbeats did, and how much memory there
//! is.

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::pool::Pool;
use zilla_env::Opener;

pub use zilla_core::ddt::DedupStats;
pub use zilla_core::dmu::{DbufCounts, DbufInfo, FaultCounts, ObjsetCounts, StreamCounts};
pub use zilla_core::memory::{Chosen, Memory, chosen, shortages};
pub use zilla_core::spa::{BeatRecord, CheckpointStat, TrimCounts};
pub use zilla_core::txg::{DeviceIo, TxCounts, TxgRecord};
pub use zilla_core::zil::{LATENCY_BUCKETS, LogCounts};

/// How much memory the machine has for this process; None: it cannot be told.
pub async fn memory(opener: &dyn Opener) -> Option<Memory> {
    zilla_core::memory::read(opener).await
}

/// What this process has of memory, by what it asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// I/O buffers that are in use.
    pub buffers: u64,
    /// What of them is lost by rounding.
    pub waste: u64,
    /// Those that are kept for the next who needs one.
    pub free_buffers: u64,
    /// Everything else that was allocated, as far as the C library tells; as of a second ago at
    /// most.
    pub heap: u64,
}

/// What this process has of memory.
pub fn process() -> Process {
    let (buffers, waste) = zilla_env::pool_in_use();
    let (free_buffers, heap) = (zilla_env::pool_retained(), zilla_env::heap_in_use());
    let [buffers, waste, free_buffers, heap] = [buffers, waste, free_buffers, heap].map(|n| n as u64);
    Process { buffers, waste, free_buffers, heap }
}

/// [`Pool::arc_counts`] where no pool is: all of them are 0.
pub fn arc_counts_of_none() -> Vec<(&'static str, u64)> {
    let mut all = zilla_core::arc::Cache::arcstats_of_none();
    all.extend(zilla_core::l2arc::L2arc::arcstats_of_none());
    all.extend(beside(&all, &DbufCounts::default(), 0));
    all
}

/// What memory holds beside the ARC, in the words of OpenZFS's `arcstats`, where all that is one:
/// blocks ready in the dbuf cache are its overhead, what waits for its txg is anonymous.
fn beside(arc: &[(&'static str, u64)], dbufs: &DbufCounts, dirty: u64) -> [(&'static str, u64); 17] {
    let of = |name: &str| arc.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v);
    let metadata = of("metadata_size") + of("hdr_size") + of("l2_hdr_size") + dbufs.described + dbufs.objects;
    [
        ("overhead_size", dbufs.bytes.saturating_sub(dbufs.described)),
        ("dbuf_size", dbufs.described),
        ("dnode_size", dbufs.objects),
        // It is in the object.
        ("bonus_size", 0),
        ("anon_size", dirty),
        ("anon_data", dirty),
        // Metadata are made when the txg is synced, and are written at once.
        ("anon_metadata", 0),
        ("anon_evictable_data", 0),
        ("anon_evictable_metadata", 0),
        ("arc_meta_used", metadata),
        ("arc_dnode_limit", dbufs.objects_limit),
        // Nothing of the kind is here: room that is promised or lent, buffers that keep another
        // alive, blocks that stay encrypted.
        ("arc_tempreserve", 0),
        ("arc_loaned_bytes", 0),
        ("arc_prune", 0),
        ("arc_raw_size", 0),
        ("async_upgrade_sync", 0),
        ("cached_only_in_progress", 0),
    ]
}

impl Pool {
    /// The caches' counters, memory's and then those of the cache devices, under OpenZFS's names.
    pub fn arc_counts(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.spa().zio.cache().arcstats();
        all.extend(self.spa().zio.l2().arcstats());
        all.extend(beside(&all, &self.dbuf_counts(), self.spa().ctx.txgs.dirty_bytes()));
        all
    }

    /// Those of [`Pool::arc_counts`] that only grow.
    pub fn arc_totals(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.spa().zio.cache().counted();
        all.extend(self.spa().zio.l2().counted());
        all
    }

    /// What all its intent logs did since it was opened.
    pub fn log_counts(&self) -> LogCounts {
        self.spa().ctx.log.stats.get()
    }

    /// Its last txgs, the oldest first; as many as `zfs_txg_history` says.
    pub fn txg_history(&self) -> Vec<TxgRecord> {
        self.spa().ctx.txgs.history()
    }

    /// What became of transactions.
    pub fn tx_counts(&self) -> TxCounts {
        self.spa().ctx.txgs.counts()
    }

    /// How many blocks are ready in memory, uncompressed.
    pub fn dbuf_counts(&self) -> DbufCounts {
        self.spa().ctx.cache.counts()
    }

    /// These blocks, at most so many of them, the oldest first.
    pub fn dbufs(&self, most: usize) -> Vec<DbufInfo> {
        self.spa().ctx.cache.list(most)
    }

    /// What was read, read ahead and written of files and volumes.
    pub fn stream_counts(&self) -> StreamCounts {
        self.spa().ctx.cache.streams.get()
    }

    /// What was trimmed because someone asked, and by itself.
    pub fn trim_counts(&self) -> [TrimCounts; 2] {
        self.spa().trim_counts()
    }

    /// What has become of the reads that writes in part put off. It grows when a txg is synced.
    pub fn fault_counts(&self) -> FaultCounts {
        self.spa().ctx.cache.faults.get()
    }

    /// The datasets whose intent log could not be replayed, by their numbers, and why.
    pub fn kept_logs(&self) -> Vec<(u64, String)> {
        self.spa().ctx.log.kept.list()
    }

    /// The last heartbeats of a pool with `multihost`.
    pub fn heartbeats(&self) -> Vec<BeatRecord> {
        self.spa().heartbeats()
    }

    /// What its deduplication tables hold.
    pub fn dedup(&self) -> DedupStats {
        self.spa().dedup()
    }

    /// Bytes of clones of files' blocks: what they take, and what they save.
    pub fn cloned_space(&self) -> (u64, u64) {
        self.spa().cloned_space()
    }

    /// Bytes that are being freed in the background.
    pub async fn freeing(&self) -> Result<u64> {
        Ok(self.dsl().freeing().await?.used)
    }

    /// Bytes that can never be freed, for what leads to them is damaged.
    pub async fn leaked(&self) -> Result<u64> {
        self.dsl().leaked().await
    }

    /// The checkpoint, or one whose space is being given back.
    pub fn checkpoint_stat(&self) -> Option<CheckpointStat> {
        self.spa().checkpoint_stat()
    }
}

impl Filesystem {
    /// The number of its dataset, by which statistics name it.
    pub fn dataset_id(&self) -> u64 {
        self.zfs().objset().id()
    }
}
