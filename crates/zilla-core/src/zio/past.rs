//! Blocks that go past the cache, because who reads or writes them says so (`O_DIRECT`).
//!
//! What is read so is taken out of the cache again, unless it was there before. What is written so
//! is noted until its txg writes it, and not put in then. Nothing depends on a note: one that is
//! lost, or stays, costs a block in the cache. They are dropped when later txgs make their own.

use super::Zio;
use crate::arc::Key;
use crate::types::{Bookmark, TXG_SIZE, Txg};
use std::collections::{BTreeMap, HashSet};
use zilla_ondisk::blkptr::BlkPtr;

/// By txg, the blocks that it is to write past the cache.
#[derive(Default)]
pub(super) struct Past(BTreeMap<u64, HashSet<Bookmark>>);

impl Past {
    fn note(&mut self, txg: Txg, block: Bookmark) {
        self.0.retain(|of, _| of.saturating_add(TXG_SIZE as u64) > txg.0);
        self.0.entry(txg.0).or_default().insert(block);
    }

    fn take(&mut self, txg: Txg, block: &Bookmark) -> bool {
        self.0.get_mut(&txg.0).is_some_and(|all| all.remove(block))
    }
}

impl Zio {
    pub(super) fn forget_read(&self, bp: &BlkPtr) {
        if let Some(key) = Key::of(bp) {
            self.0.cache.remove(&key);
        }
    }

    pub(super) fn note_past(&self, txg: Txg, block: Bookmark) {
        self.0.past.lock().note(txg, block);
    }

    /// Whether what was written there goes past the cache.
    pub(super) fn goes_past(&self, bp: &BlkPtr, block: &Bookmark) -> bool {
        self.0.past.lock().take(Txg(bp.birth()), block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_of_one_txg_and_is_dropped_with_it() {
        let (mut past, block) =
            (Past::default(), |blkid| Bookmark::new(5, crate::types::ObjectId(7), 0, blkid));
        past.note(Txg(10), block(1));
        past.note(Txg(11), block(2));
        assert!(!past.take(Txg(11), &block(1)) && past.take(Txg(10), &block(1)));
        assert!(!past.take(Txg(10), &block(1)), "it was written");
        past.note(Txg(11 + TXG_SIZE as u64), block(3));
        assert!(!past.take(Txg(11), &block(2)) && past.0.len() == 1);
    }
}
