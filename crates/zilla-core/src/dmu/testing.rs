//! Objects on a store in memory, for the unit tests of everything that stands on objects.

use super::{DbufCache, Objset, ObjsetSync};
use crate::txg::Tx;
use crate::types::Txg;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

/// What tests of other crates have from `zilla-testkit`.
#[path = "../../../zilla-testkit/src/memory.rs"]
#[allow(dead_code, reason = "others use the rest")]
mod memory;
pub use memory::{MemStore, props};

/// An objset on a store in memory, with its syncs: `Harness::sync` does what the pool does with the
/// result.
pub struct Harness {
    pub store: Arc<MemStore>,
    pub cache: Arc<DbufCache>,
    pub objset: Arc<Objset>,
    pub root: BlkPtr,
    /// The txg that changes go to.
    pub txg: Txg,
}

impl Harness {
    pub fn new(os_type: u64) -> Harness {
        let store = Arc::new(MemStore::default());
        let cache = DbufCache::new(64 << 20);
        let objset = Objset::create(1, os_type, store.clone(), cache.clone(), props());
        Harness { store, cache, objset, root: BlkPtr::ZERO, txg: Txg(10) }
    }

    pub fn tx(&self) -> Tx {
        Tx::syncing(self.txg)
    }

    /// Opens the next txg without syncing this one.
    pub fn next_txg(&mut self) -> Txg {
        self.txg = self.txg.next();
        self.txg.prev()
    }

    pub async fn sync(&mut self, txg: Txg) -> ObjsetSync {
        let out = match self.objset.sync(txg, self.root).await {
            Ok(out) => out,
            Err(e) => panic!("sync of {txg} failed: {e}"),
        };
        self.store.free(&out.killed);
        self.root = out.root;
        out
    }

    /// Closes and syncs the open txg.
    pub async fn sync_open(&mut self) -> ObjsetSync {
        let txg = self.next_txg();
        self.sync(txg).await
    }

    /// Forgets everything in memory and opens the objset from its root again, as an import after a
    /// crash does.
    pub async fn reopen(&mut self) {
        let opened = Objset::open(1, &self.root, self.store.clone(), self.cache.clone(), props()).await;
        self.objset = match opened {
            Ok(os) => os,
            Err(e) => panic!("reopen failed: {e}"),
        };
    }
}
