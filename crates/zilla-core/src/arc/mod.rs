//! The adaptive replacement cache: blocks by where they are on disk.
//!
//! **Floor 3.** It keeps bytes by their place, and asks nobody for them.
//!
//! A block's key is its physical identity (first DVA and birth), so clones and snapshots that share
//! a block share its one buffer. Blocks are kept as they are on disk, compressed where they are;
//! what is hot stands decompressed in the dbuf cache above. A block that is not compressed is the
//! very buffer that the dbuf holds, or that went to the disk.
//!
//! Two lists, recent (MRU: seen once) and frequent (MFU), each with a list of ghosts, the keys that
//! were evicted from it. A hit on a ghost says which list should have been longer and moves the
//! target `p` (Megiddo and Modha's ARC). The cache is cut into shards by key, each an ARC of its
//! own with its own lock: a hit takes one lock, allocates nothing, and no two cores meet except on
//! the same shard.
//!
//! What is read ahead ([`Access`]) is known as such until somebody asks for it, which is its first
//! use. Until then it is not fed to a cache device (`l2arc_noprefetch`), and while it is young
//! others are evicted first.
//!
//! A use soon after the first ([`shard::ONE_USE`]) belongs to it: a record is read in pieces, or
//! looked for again when another that the same read needs has come. If that counted, whoever reads
//! much once would push out what is used.
//!
//! What is kept true: the sizes of all blocks together, each with what it costs beside its bytes
//! (less than 200: [`shard`]), stay under the limit ([`Cache::set_limit`], moved by `memory/` with
//! the memory that is left); a block that is rewritten in place within a txg replaces its older
//! self.
//!
//! A crash loses nothing: whatever is here is on disk, or on its way there and held by the block
//! I/O until it is.

mod lists;
mod shard;
mod stats;

use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use zilla_codec::compress::Compress;
use zilla_ondisk::blkptr::BlkPtr;

use shard::Shard;

/// A block's physical identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub vdev: u32,
    pub offset: u64,
    pub birth: u64,
}

impl Key {
    /// `None` for holes and embedded blocks, which are nowhere.
    pub fn of(bp: &BlkPtr) -> Option<Key> {
        let dva = bp.dvas().next()?;
        Some(Key { vdev: dva.vdev, offset: dva.offset, birth: bp.phys_birth() })
    }
}

/// For whom a block is looked for, or brought here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Somebody who wants it now.
    Demand,
    /// Whoever reads a stream, if he goes on.
    Predictive,
    /// A walk, such as a scan: it is sure to use the block, and does so itself.
    Prescient,
}

impl Access {
    pub fn is_prefetch(self) -> bool {
        self != Access::Demand
    }
}

/// A block as the cache holds it.
#[derive(Clone, Debug)]
pub struct Block {
    /// As on disk, without the padding to sectors; in the machine's byte order if it is not
    /// compressed.
    pub data: Bytes,
    pub compress: Compress,
    pub lsize: u32,
    pub metadata: bool,
    /// Whether the cache takes it; if not it is only handed to who asked (`primarycache`).
    pub keep: bool,
    pub l2: L2Facts,
}

/// What the second level must know of a block to keep it.
#[derive(Clone, Copy, Debug, Default)]
pub struct L2Facts {
    /// It may be kept there: its dataset says so, its checksum tells it from others, and `data` is
    /// what is on disk.
    pub wanted: bool,
    /// The rest of the first DVA: sectors allocated, and whether it is a gang's.
    pub gang: bool,
    pub asectors: u32,
    /// It was written there, or came from there.
    pub had: bool,
}

/// Which blocks of a dataset a cache takes (`primarycache`, `secondarycache`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Caching {
    None,
    Metadata,
    #[default]
    All,
}

impl Caching {
    /// The property's value; what is unknown is `all`.
    pub fn from_prop(value: u64) -> Caching {
        match value {
            0 => Caching::None,
            1 => Caching::Metadata,
            _ => Caching::All,
        }
    }

    pub fn takes(self, metadata: bool) -> bool {
        match self {
            Caching::None => false,
            Caching::Metadata => metadata,
            Caching::All => true,
        }
    }
}

/// Which of the blocks here [`Cache::tail`] is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub frequent: bool,
    pub metadata: bool,
}

/// A walk along the tail of one of a shard's lists, which is done a glance at a time.
#[derive(Default)]
pub struct Tail {
    /// What was found at the last glance, and whether it came by a prefetch that nobody has asked
    /// for.
    pub keys: Vec<(Key, bool)>,
    /// Where it goes on, if that is still there.
    at: Option<Key>,
    bytes: u64,
}

/// Blocks smaller than a page are copied into memory of their own size: an I/O buffer is a page at
/// least.
const SMALL: usize = 4096;
/// A shard holds at least a few of the largest blocks.
const MAX_SHARDS: u64 = 64;
const MIN_SHARD: u64 = 64 << 20;
/// The limit never goes below this (OpenZFS: a thirty-second of memory, at least 32M).
pub const MIN_LIMIT: u64 = 32 << 20;

/// The cache.
pub struct Cache {
    shards: Box<[Mutex<Shard>]>,
    limit: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    /// What the second level's index takes of the limit.
    reserved: AtomicU64,
    /// How many caches have the memory together.
    sharers: AtomicU64,
}

impl Cache {
    pub fn new(limit: u64) -> Cache {
        let shards = (limit / MIN_SHARD).clamp(1, MAX_SHARDS);
        Cache {
            shards: (0..shards).map(|_| Mutex::new(Shard::default())).collect(),
            limit: AtomicU64::new(limit.max(MIN_LIMIT)),
            min: AtomicU64::new(MIN_LIMIT),
            max: AtomicU64::new(limit.max(MIN_LIMIT)),
            reserved: AtomicU64::new(0),
            sharers: AtomicU64::new(1),
        }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        // Not a random hash: a simulated world must run the same way twice.
        let mixed = (key.offset >> 9) ^ key.birth.rotate_left(40) ^ u64::from(key.vdev).rotate_left(56);
        let hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[hash as usize % self.shards.len()]
    }

    /// `c`: how much the cache may hold now.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// `c_max`.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// `c_min`: the limit does not go below it.
    pub fn min(&self) -> u64 {
        self.min.load(Ordering::Relaxed)
    }

    /// The least and the most that the limit may be.
    pub fn set_bounds(&self, min: u64, max: u64) {
        let max = max.max(MIN_LIMIT);
        self.max.store(max, Ordering::Relaxed);
        self.min.store(min.clamp(MIN_LIMIT, max), Ordering::Relaxed);
        self.set_limit(self.limit());
    }

    pub fn set_limit(&self, limit: u64) {
        let limit = limit.max(self.min()).min(self.max());
        let old = self.limit.swap(limit, Ordering::Relaxed);
        if limit < old {
            for shard in &self.shards {
                let gone = shard.lock().trim(self.per_shard(), None);
                drop(gone);
            }
        }
    }

    /// With how many others, itself included, this cache has the memory.
    pub fn set_sharers(&self, caches: u64) {
        self.sharers.store(caches.max(1), Ordering::Relaxed);
    }

    /// Its part of what all of them may take, if each had as much.
    pub fn even_part(&self) -> u64 {
        self.max() / self.sharers.load(Ordering::Relaxed)
    }

    /// What of the limit is not for blocks: half of it stays theirs whatever else grows.
    fn not_for_blocks(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed).min(self.limit() / 2)
    }

    fn per_shard(&self) -> u64 {
        self.limit().saturating_sub(self.not_for_blocks()) / self.shards.len() as u64
    }

    /// Bytes of the limit that are not for blocks.
    pub fn set_reserved(&self, bytes: u64) {
        let old = self.reserved.swap(bytes, Ordering::Relaxed);
        if bytes > old {
            for shard in &self.shards {
                let gone = shard.lock().trim(self.per_shard(), None);
                drop(gone);
            }
        }
    }

    /// Looks a block up. A prefetch does not make a block look used. `now` is any clock's time,
    /// here and where blocks come in.
    pub fn get(&self, key: &Key, access: Access, now: Duration) -> Option<Block> {
        self.shard(key).lock().get(key, access, now)
    }

    /// Counts a lookup that had to go to disk.
    pub fn missed(&self, key: &Key, metadata: bool, access: Access) {
        self.shard(key).lock().counters.misses[access as usize][usize::from(metadata)] += 1;
    }

    /// Counts a lookup that found the block on its way from disk, which had begun as `other`; to be
    /// called when it has come.
    pub fn joined(&self, key: &Key, metadata: bool, access: Access, other: Access, now: Duration) {
        self.shard(key).lock().joined(key, metadata, access, other, now);
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.shard(key).lock().contains(key)
    }

    /// Takes what is being written.
    pub fn insert(&self, key: Key, block: Block, access: Access, now: Duration) {
        self.put(key, block, |shard, block, limit| shard.insert(key, block, access, now, limit));
    }

    /// Takes what was read from a device, unless a block is here: that is as new, or newer.
    /// `still`, which is asked when nobody can come in between, says whether it is what lies there
    /// now. A block that is not to be kept is let go as soon as it was asked for: it was read
    /// ahead.
    pub fn insert_read(
        &self,
        key: Key,
        block: Block,
        access: Access,
        now: Duration,
        still: impl FnOnce() -> bool,
    ) {
        self.put(key, block, |shard, block, limit| {
            if shard.contains(&key) || !still() {
                return [block.data].into_iter().collect();
            }
            shard.insert(key, block, access, now, limit)
        });
    }

    fn put(&self, key: Key, mut block: Block, how: impl FnOnce(&mut Shard, Block, u64) -> shard::Gone) {
        if block.data.len() < SMALL {
            // (Other bytes than an owner's allocate when they are cloned first.)
            block.data = Bytes::from_owner(Box::<[u8]>::from(&block.data[..]));
        }
        let limit = self.per_shard();
        if block.data.len() as u64 > limit {
            return;
        }
        let gone = how(&mut self.shard(&key).lock(), block, limit);
        // Buffers are freed here, outside the lock.
        drop(gone);
    }

    /// Says of a block that came just now that it was used before, longer ago than the ghosts know.
    pub fn used_before(&self, key: &Key) {
        self.shard(key).lock().used_before(key);
    }

    /// A cache device has a block.
    pub fn had(&self, key: &Key) {
        self.shard(key).lock().had(key);
    }

    /// A block as it is here, which is no use of it.
    pub fn peek(&self, key: &Key) -> Option<Block> {
        self.shard(key).lock().peek(key)
    }

    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// Whether nothing had to be evicted yet.
    pub fn is_cold(&self) -> bool {
        self.shards.iter().all(|s| s.lock().counters.deleted == 0)
    }

    /// Looks at the next `glance` entries from a list's tail on, for blocks that the second level
    /// may have; as far as `bytes` bytes in all. Whether there is more.
    pub fn tail(&self, shard: usize, what: Wanted, glance: usize, bytes: u64, tail: &mut Tail) -> bool {
        let Some(shard) = self.shards.get(shard) else { return false };
        shard.lock().tail(what, glance, bytes, tail)
    }

    /// Forgets a block: it was freed, or its contents changed.
    pub fn remove(&self, key: &Key) {
        let gone = self.shard(key).lock().remove(key);
        drop(gone);
    }

    /// Empties the cache (export, and `drop_caches`). What was counted stays.
    pub fn clear(&self) {
        for shard in &self.shards {
            let gone = shard.lock().empty();
            drop(gone);
        }
    }

    /// Bytes of the limit that are used: blocks, and the second level's index.
    pub fn footprint(&self) -> u64 {
        self.size() + self.not_for_blocks()
    }

    /// Bytes of blocks.
    pub fn size(&self) -> u64 {
        self.shards.iter().map(|s| s.lock().size()).sum()
    }

    /// Those of [`Cache::arcstats`] that only grow.
    pub fn counted(&self) -> Vec<(&'static str, u64)> {
        let mut counters = stats::Counters::default();
        self.shards.iter().for_each(|shard| counters.add(&shard.lock().counters));
        stats::counted(&counters)
    }

    /// [`Cache::arcstats`] where no pool is.
    pub fn arcstats_of_none() -> Vec<(&'static str, u64)> {
        stats::list(&stats::Counters::default(), &shard::Sizes::default(), [0; 3])
    }

    /// Name and value of everything OpenZFS's `arcstats` would say that exists here.
    pub fn arcstats(&self) -> Vec<(&'static str, u64)> {
        let mut sizes = shard::Sizes::default();
        let mut counters = stats::Counters::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sizes.add(&shard.sizes());
            counters.add(&shard.counters);
        }
        stats::list(&counters, &sizes, [self.limit(), self.min(), self.max()])
    }
}

#[cfg(test)]
mod tests;
