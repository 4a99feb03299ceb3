//! Reading a block from a cache device, if that is the better way.
//!
//! A device that does not answer within [`PATIENCE`] may be one that never does, or that was
//! written to at this moment: then the pool's disks are asked as well, and who answers first, and
//! well, is taken. So a slow cache device costs a read that time and no more; one that is slower
//! again and again is passed by for a while, as if it had not answered.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;

use super::device::READ_TIMEOUT;
use super::index::Cached;
use super::stats::add;
use super::{CacheDev, L2arc};
use crate::arc::Key;
use crate::error::Result;
use crate::tunables;
use crate::vdev::{Priority, within};

/// I/Os that may wait for a cache device before it is asked whether the pool's own disk would be
/// sooner.
pub(super) const BUSY: usize = 32;

/// A read waits so long for a cache device alone: several times what a flash device needs while it
/// is written to, and what a disk needs when others are before it.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where a block lies.
pub struct Place {
    device: Arc<CacheDev>,
    cached: Cached,
}

/// What says whether bytes are the block.
pub type Check<'a> = &'a (dyn Fn(&[u8]) -> Result<(), String> + Sync);

impl L2arc {
    /// Where to read a block, if a cache device has it and is worth asking. `pool_takes` is how
    /// long the disk would take that would have to be asked otherwise.
    pub fn find(&self, bp: &BlkPtr, key: &Key, pool_takes: impl FnOnce() -> Duration) -> Option<Place> {
        if !self.has_devices() {
            return None;
        }
        let place = self.choose(bp, key, pool_takes);
        if place.is_none() {
            add(&self.stats.misses, 1);
        }
        place
    }

    /// The block's bytes as they are on disk, from there or by `pool`, and whether they came from
    /// there.
    pub async fn read(
        &self,
        place: Place,
        class: Priority,
        check: Check<'_>,
        pool: impl Future<Output = Result<Bytes>>,
    ) -> (bool, Result<Bytes>) {
        let mut own = std::pin::pin!(self.read_cached(&place, class, check));
        let mut pool = std::pin::pin!(pool);
        let outcome = match select(own.as_mut(), self.env.sleep(PATIENCE)).await {
            Either::Left((Some(bytes), _)) => (true, Ok(bytes)),
            Either::Left((None, _)) => (false, pool.await),
            Either::Right(_) => match select(own.as_mut(), pool.as_mut()).await {
                Either::Left((Some(bytes), _)) => (true, Ok(bytes)),
                Either::Left((None, _)) => (false, pool.await),
                Either::Right((Ok(bytes), _)) => {
                    place.device.outrun(self.env.clock.now());
                    (false, Ok(bytes))
                }
                Either::Right((failed, _)) => match own.await {
                    Some(bytes) => (true, Ok(bytes)),
                    None => (false, failed),
                },
            },
        };
        add(if outcome.0 { &self.stats.hits } else { &self.stats.misses }, 1);
        outcome
    }

    fn choose(&self, bp: &BlkPtr, key: &Key, pool_takes: impl FnOnce() -> Duration) -> Option<Place> {
        let (slot, cached) = self.index.lock().get(key)?;
        let device = self.by_slot(slot)?;
        if cached.psize != bp.psize() || !device.readable(self.env.clock.now()) {
            return None;
        }
        let load = device.leaf.load();
        if load >= BUSY && device.leaf.stats.expected(load) > pool_takes() {
            return None;
        }
        if tunables::L2ARC_NORW.get() != 0 && device.leaf.is_writing() {
            add(&self.stats.rw_clash, 1);
            return None;
        }
        Some(Place { device, cached })
    }

    async fn read_cached(
        &self,
        Place { device, cached }: &Place,
        class: Priority,
        check: Check<'_>,
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
                    self.forget_later(device.slot);
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
