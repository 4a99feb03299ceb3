//! Blocks on their way to disk: readers get them from here, and whoever wants to write to the same place waits.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use super::track::Batch;
use crate::arc::{Block, Key};

#[derive(Default)]
pub struct Inflight(Mutex<HashMap<Key, (Block, Arc<Batch>)>>);

impl Inflight {
    pub fn get(&self, key: &Key) -> Option<Block> {
        self.0.lock().get(key).map(|(block, _)| block.clone())
    }

    /// The batch that still writes this block.
    pub fn batch(&self, key: &Key) -> Option<Arc<Batch>> {
        self.0.lock().get(key).map(|(_, batch)| batch.clone())
    }

    pub fn insert(&self, blocks: &[(Key, Block)], batch: &Arc<Batch>) {
        let mut map = self.0.lock();
        for (key, block) in blocks {
            map.insert(*key, (block.clone(), batch.clone()));
        }
    }

    /// Forgets what a batch wrote, unless it was written again since.
    pub fn remove(&self, keys: &[Key], batch: *const Batch) {
        let mut gone = Vec::with_capacity(keys.len());
        let mut map = self.0.lock();
        for key in keys {
            if map.get(key).is_some_and(|(_, b)| std::ptr::eq(Arc::as_ptr(b), batch)) {
                gone.extend(map.remove(key));
            }
        }
        drop(map);
        // Buffers are freed outside the lock.
        drop(gone);
    }
}
