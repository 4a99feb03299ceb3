//! Blocks on their way to disk: readers get them from here, and whoever wants to write to the same
//! place waits.
//!
//! Cut into shards by place, since every look into the cache looks here first.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};

use super::track::Batch;
use crate::arc::{Block, Key};

const SHARDS: usize = 32;

type Map = HashMap<Key, (Block, Arc<Batch>)>;

#[derive(Default)]
pub struct Inflight([Mutex<Map>; SHARDS]);

impl Inflight {
    fn shard(&self, key: &Key) -> MutexGuard<'_, Map> {
        // Neighbouring blocks of any usual size fall into different shards.
        let h = (key.offset >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59;
        self.0[h as usize % SHARDS].lock()
    }

    pub fn get(&self, key: &Key) -> Option<Block> {
        self.shard(key).get(key).map(|(block, _)| block.clone())
    }

    /// The batch that still writes this block.
    pub fn batch(&self, key: &Key) -> Option<Arc<Batch>> {
        self.shard(key).get(key).map(|(_, batch)| batch.clone())
    }

    pub fn insert(&self, blocks: &[(Key, Block)], batch: &Arc<Batch>) {
        for (key, block) in blocks {
            let old = self.shard(key).insert(*key, (block.clone(), batch.clone()));
            drop(old);
        }
    }

    /// Forgets what a batch wrote, unless it was written again since.
    pub fn remove(&self, keys: &[Key], batch: *const Batch) {
        for key in keys {
            let mut map = self.shard(key);
            let ours = map.get(key).is_some_and(|(_, b)| std::ptr::eq(Arc::as_ptr(b), batch));
            let gone = if ours { map.remove(key) } else { None };
            drop(map);
            // Buffers are freed outside the lock.
            drop(gone);
        }
    }
}
