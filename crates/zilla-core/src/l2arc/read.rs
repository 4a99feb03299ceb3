//! Reading a block from a cache device, if that is the better way.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

use super::device::READ_TIMEOUT;
use super::index::Cached;
use super::stats::add;
use super::{CacheDev, L2arc};
use crate::arc::Key;
use crate::tunables;
use crate::vdev::{Priority, within};

/// I/Os that may wait for a cache device before a read passes it by; the pool's own disks are taken then, unless they have more to do.
const BUSY: usize = 32;

impl L2arc {
    /// The block's bytes as they are on disk, if a cache device has them. `check` says whether bytes are the block; `pool_load` is what waits for
    /// the disk that would have to be asked otherwise.
    pub async fn read(
        &self,
        bp: &BlkPtr,
        key: &Key,
        class: Priority,
        check: &(dyn Fn(&[u8]) -> Result<(), String> + Sync),
        pool_load: impl FnOnce() -> usize,
    ) -> Option<Bytes> {
        if !self.has_devices() {
            return None;
        }
        let Some((device, cached)) = self.choose(bp, key, pool_load) else {
            add(&self.stats.misses, 1);
            return None;
        };
        let bytes = self.read_cached(&device, &cached, class, check).await;
        add(if bytes.is_some() { &self.stats.hits } else { &self.stats.misses }, 1);
        bytes
    }

    fn choose(
        &self,
        bp: &BlkPtr,
        key: &Key,
        pool_load: impl FnOnce() -> usize,
    ) -> Option<(Arc<CacheDev>, Cached)> {
        let (slot, cached) = self.index.lock().get(key)?;
        let device = self.by_slot(slot)?;
        if cached.psize != bp.psize() || !device.readable(self.env.clock.now()) {
            return None;
        }
        let load = device.leaf.load();
        if load >= BUSY && load > pool_load() {
            return None;
        }
        if tunables::L2ARC_NORW.get() != 0 && device.leaf.is_writing() {
            add(&self.stats.rw_clash, 1);
            return None;
        }
        Some((device, cached))
    }

    async fn read_cached(
        &self,
        device: &CacheDev,
        cached: &Cached,
        class: Priority,
        check: &(dyn Fn(&[u8]) -> Result<(), String> + Sync),
    ) -> Option<Bytes> {
        let asize = device.layout.asize(cached.psize);
        let read = device.leaf.read_at(cached.daddr, asize, class);
        match within(&self.env, READ_TIMEOUT, read).await {
            Some(Ok(data)) => {
                let psize = usize::try_from(cached.psize).ok()?;
                let data = if data.len() >= psize { data.slice(..psize) } else { return None };
                match check(&data) {
                    Ok(()) => {
                        device.worked();
                        add(&self.stats.read_bytes, cached.psize);
                        return Some(data);
                    }
                    Err(what) => self.not_the_block(device, cached, &what),
                }
            }
            Some(Err(_)) => {
                add(&self.stats.io_error, 1);
                if device.failed() {
                    self.index.lock().clear_device(device.slot);
                }
            }
            None => {
                add(&self.stats.io_error, 1);
                device.stalled(self.env.clock.now());
            }
        }
        None
    }

    /// Other bytes came. If the hand came by in the meantime that was to be expected.
    fn not_the_block(&self, device: &CacheDev, cached: &Cached, what: &str) {
        let mut index = self.index.lock();
        if index.get(&cached.key) == Some((device.slot, *cached)) {
            index.forget(&cached.key);
            drop(index);
            add(&self.stats.cksum_bad, 1);
            tracing::info!(path = %device.leaf.path(), daddr = cached.daddr, what, "not the block that was cached");
        } else {
            drop(index);
            add(&self.stats.evict_reading, 1);
        }
    }
}
