//! The second-level cache (L2ARC): blocks that the ARC is about to let go, on fast devices beside
//! the pool.
//!
//! **Floor 4.** It is asked by `zio`, and asks the devices.
//!
//! - [`index`] is what lies where, in memory, and [`tables`] how it is found;
//! - [`rotor`] is a device as a ring with its log, which OpenZFS reads and writes alike;
//! - [`feed`] takes blocks from the tails of the ARC's lists and writes them, ahead of eviction and
//!   never in its way;
//! - [`seen`] says what is worth a place on a device that is full;
//! - [`rebuild`] reads the log of a device that was filled before, in the background;
//! - [`device`] says whether a device is worth asking; [`stats`] counts.
//!
//! A read that misses the ARC looks into the index. If the block is there it is read from the cache
//! device and checked against its own pointer, as any copy is; if that fails, takes too long, or
//! the device has more to do than the pool's disks, the pool's copies are read as if there were no
//! cache. So whatever a cache device holds or says, **it costs time and never data**: a block
//! without a checksum is not cached at all, and an error of a cache device is no error of the pool.
//!
//! What is kept true:
//! - Nothing of the pool waits for a cache device longer than [`device::READ_TIMEOUT`]: no txg, no
//!   flush, no export.
//! - A block is fed only when its txg is synced: what a device holds was once the pool's.
//! - The index takes at most `l2arc_meta_percent` of the most that the ARC may take, or of its even
//!   part where several pools' ARCs have the memory, and the ARC leaves room for it.
//! - One task writes to a device, from one end to the other.
//! - The index is locked for a moment only: a device that leaves is forgotten step by step, and its
//!   slot is given to no other before that.
//!
//! **Crash.** What was fed after the last header is not found again. Nothing else depends on what
//! is here.
//!
//! **Lock order.** The index, what was seen, and a device's ring are leaves, and never held
//! together.
//!
//! **Deliberately absent.** Blocks of encrypted datasets are not fed yet; nothing is trimmed ahead
//! of the hand (`l2arc_trim_ahead`).

mod device;
mod feed;
mod index;
mod read;
mod rebuild;
mod rotor;
mod seen;
mod stats;
mod tables;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use zilla_env::{Env, yield_now};

pub use device::CacheDev;
pub use read::Place;
pub use rotor::Layout;

use crate::arc::{Cache, Key};
use crate::error::{Errno, Error, Result};
use crate::tunables;
use crate::txg::TxgState;
use crate::vdev::{SLOW_TIMEOUT, Vdev, within};
use index::Index;
use seen::Seen;
use stats::{Counters, Gauges};

/// The cache devices of a pool.
pub struct L2arc {
    /// Itself, for tasks.
    me: Weak<L2arc>,
    env: Env,
    arc: Arc<Cache>,
    devices: RwLock<Vec<Arc<CacheDev>>>,
    /// Whether there are any, for reads of pools that have none.
    any: AtomicBool,
    index: Mutex<Index>,
    seen: Mutex<Seen>,
    stats: Counters,
    pool: OnceLock<PoolFacts>,
    /// Shards that are looked at first by the next feeder.
    turn: AtomicU64,
}

/// What of the pool feeding must know.
struct PoolFacts {
    guid: AtomicU64,
    txgs: Arc<TxgState>,
    readonly: bool,
}

/// Space of a cache device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSpace {
    pub alloc: u64,
    pub space: u64,
}

impl L2arc {
    pub fn new(env: &Env, arc: &Arc<Cache>) -> Arc<L2arc> {
        Arc::new_cyclic(|me| L2arc {
            me: me.clone(),
            env: env.clone(),
            arc: arc.clone(),
            devices: RwLock::new(Vec::new()),
            any: AtomicBool::new(false),
            index: Mutex::new(Index::new()),
            seen: Mutex::default(),
            stats: Counters::default(),
            pool: OnceLock::new(),
            turn: AtomicU64::new(0),
        })
    }

    /// Whose cache it is; before that no device is taken.
    pub fn set_pool(&self, guid: u64, txgs: &Arc<TxgState>, readonly: bool) {
        let fresh =
            self.pool.set(PoolFacts { guid: AtomicU64::new(guid), txgs: txgs.clone(), readonly }).is_ok();
        debug_assert!(fresh, "a pool has one second-level cache");
    }

    /// The pool has another guid: the devices' headers say so when they are written next.
    pub fn set_guid(&self, guid: u64) {
        if let Some(facts) = self.pool.get() {
            facts.guid.store(guid, Ordering::Release);
        }
    }

    fn pool_facts(&self) -> Result<&PoolFacts> {
        self.pool.get().ok_or_else(|| Error::os(Errno::Inval, "the pool is not open"))
    }

    /// Takes an open device into use: what its log tells is read in the background, then it is fed.
    /// With `fresh` what it holds does not count.
    pub fn add(self: &Arc<Self>, vdev: &Arc<Vdev>, fresh: bool) -> Result<()> {
        let facts = self.pool_facts()?;
        let Some(leaf) = vdev.leaf.as_ref().filter(|l| l.readable()) else {
            return Err(Error::os(Errno::NxIo, "the cache device is not open"));
        };
        let layout = Layout::new(leaf.psize(), vdev.ashift());
        let layout = layout.ok_or_else(|| Error::os(Errno::Overflow, "device is too small"))?;
        let slot = self.index.lock().add_device(layout.ashift);
        let slot = slot.ok_or_else(|| Error::os(Errno::NoSpc, "there are too many cache devices"))?;
        let device = Arc::new(CacheDev::new(vdev, leaf, slot, layout));
        device.rebuilding.store(true, Ordering::Release);
        self.devices.write().push(device.clone());
        self.any.store(true, Ordering::Release);
        self.set_limits();
        let (weak, readonly) = (Arc::downgrade(self), facts.readonly);
        self.env.spawn(async move {
            if let Some(l2) = weak.upgrade() {
                l2.start(&device, fresh).await;
                device.rebuilding.store(false, Ordering::Release);
            }
            if !readonly {
                feed::run(weak, device).await;
            }
        });
        Ok(())
    }

    /// Takes a device out of use. What it holds stays there; somebody may bring it back.
    pub async fn remove(&self, guid: u64) {
        let mut gone = None;
        {
            let mut devices = self.devices.write();
            if let Some(at) = devices.iter().position(|d| d.vdev.guid == guid) {
                gone = Some(devices.remove(at));
            }
            self.any.store(!devices.is_empty(), Ordering::Release);
        }
        let (Some(device), Some(l2)) = (gone, self.me.upgrade()) else { return };
        device.stop();
        // It comes to its end also if nobody waits for it any more.
        let task = async move {
            l2.forget_all(&device, false).await;
            l2.index.lock().remove_device(device.slot);
            if !l2.has_devices() {
                *l2.seen.lock() = Seen::default();
            }
            l2.set_limits();
        };
        self.env.spawn_with_result(task).await;
    }

    /// Neither reads nor feeds a device any more, and still knows what it holds, as OpenZFS does of
    /// one that is offline. [`L2arc::remove`] comes before it is taken into use again.
    pub fn pause(&self, guid: u64) {
        if let Some(device) = self.devices.read().iter().find(|d| d.vdev.guid == guid) {
            device.stop();
        }
    }

    /// Forgets the blocks of a device that was taken out of use, when there is time for it.
    fn forget_later(&self, slot: usize) {
        if let (Some(l2), Some(device)) = (self.me.upgrade(), self.by_slot(slot)) {
            self.env.spawn(async move { l2.forget_all(&device, true).await });
        }
    }

    /// Forgets the blocks of a device, and lets others have the index in between. `in_use`: as long
    /// as its slot is no other's.
    async fn forget_all(&self, device: &CacheDev, in_use: bool) {
        loop {
            {
                let mut index = self.index.lock();
                if in_use && device.is_stopped() || !index.forget_some(device.slot) {
                    return;
                }
            }
            yield_now().await;
        }
    }

    /// Stops all of it (export).
    pub async fn shutdown(&self) {
        let devices = std::mem::take(&mut *self.devices.write());
        self.any.store(false, Ordering::Release);
        devices.iter().for_each(|d| d.stop());
        let all = std::mem::replace(&mut *self.index.lock(), Index::new());
        // Not while somebody waits for the lock.
        drop(all);
        *self.seen.lock() = Seen::default();
        self.set_limits();
        join_all(devices.iter().map(|d| within(&self.env, SLOW_TIMEOUT, d.leaf.close()))).await;
    }

    pub fn has_devices(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn devices(&self) -> Vec<Arc<CacheDev>> {
        self.devices.read().clone()
    }

    fn by_slot(&self, slot: usize) -> Option<Arc<CacheDev>> {
        self.devices.read().iter().find(|d| d.slot == slot).cloned()
    }

    /// What a device holds, and could.
    pub fn space(&self, guid: u64) -> Option<CacheSpace> {
        let device = self.devices.read().iter().find(|d| d.vdev.guid == guid).cloned()?;
        let logs = device.rotor.lock().log_bytes;
        let alloc = self.index.lock().amounts(device.slot).asize + logs;
        Some(CacheSpace { alloc, space: device.layout.size() })
    }

    /// What each device could hold.
    pub fn spaces(&self) -> Vec<u64> {
        self.devices.read().iter().map(|d| d.layout.size()).collect()
    }

    /// Whether a device's log is still being read.
    pub fn is_rebuilding(&self) -> bool {
        self.devices.read().iter().any(|d| d.rebuilding.load(Ordering::Acquire))
    }

    /// The index's share of the ARC, and what it takes of it.
    fn set_limits(&self) {
        let percent = tunables::L2ARC_META_PERCENT.get().min(100);
        let mut index = self.index.lock();
        index.set_limit((u128::from(self.arc.even_part()) * u128::from(percent) / 100) as u64);
        let bytes = index.bytes();
        drop(index);
        self.arc.set_reserved(bytes + self.seen.lock().bytes());
    }

    /// Says that the ARC lacked a block, and whether a cache device had it. Whether it is known to
    /// have been used before: what a device has was, and of the rest only without
    /// `l2arc_feed_recent` a record is kept.
    pub fn used_before(&self, key: &Key, from_device: bool) -> bool {
        if from_device || !self.has_devices() || tunables::L2ARC_FEED_RECENT.get() != 0 {
            return from_device;
        }
        let blocks = self.index.lock().total().blocks;
        self.seen.lock().note(key, blocks)
    }

    /// A block was freed: what lies of it on a cache device is nobody's.
    pub fn forget(&self, key: &Key) {
        if self.has_devices() {
            self.index.lock().forget(key);
        }
    }

    /// Those of [`L2arc::arcstats`] that only grow.
    pub fn counted(&self) -> Vec<(&'static str, u64)> {
        self.stats.counted()
    }

    /// [`L2arc::arcstats`] where no pool is.
    pub fn arcstats_of_none() -> Vec<(&'static str, u64)> {
        stats::list(&Counters::default(), &Gauges::default())
    }

    /// Name and value of what OpenZFS's `arcstats` say of the second level.
    pub fn arcstats(&self) -> Vec<(&'static str, u64)> {
        let devices = self.devices();
        let mut gauges = Gauges { devices: devices.len() as u64, ..Gauges::default() };
        for device in &devices {
            let rotor = device.rotor.lock();
            gauges.log_blocks += rotor.log_blocks.len() as u64;
            gauges.log_bytes += rotor.log_bytes;
        }
        let index = self.index.lock();
        gauges.amounts = index.total();
        gauges.header_bytes = index.bytes();
        drop(index);
        gauges.header_bytes += self.seen.lock().bytes();
        stats::list(&self.stats, &gauges)
    }
}
