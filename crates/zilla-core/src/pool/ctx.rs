//! What the layers above the devices share of one pool: its store, its txgs, its MOS, its features,
//! and the two queues that lead into the sync task.
//!
//! *Sync tasks* are how everything changes the MOS: a closure that runs in the syncing context of
//! one txg, after that txg's data is written, alone. What fails before it has changed anything
//! concerns only who asked for it. *Frees* are how space comes back: layers hand in block pointers
//! nobody refers to any more, and the sync task gives them to the metaslabs in the right pass.

use super::features::Features;
use crate::boxed;
use crate::dmu::{DbufCache, Objset};
use crate::error::{Errno, Error, Result};
use crate::scan::Scan;
use crate::txg::{Tx, TxgState};
use crate::types::{TXG_SIZE, Txg};
use crate::zil::PoolLog;
use crate::zio::BlockStore;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use zilla_env::Env;
use zilla_ondisk::NvList;
use zilla_ondisk::blkptr::{BlkPtr, Dva};
use zilla_ondisk::enums::SPA_VERSION_FEATURES;

/// Says how it failed, if it did.
type Task = Box<dyn FnOnce(Tx) -> BoxFuture<'static, Option<Error>> + Send>;

pub struct PoolCtx {
    pub env: Env,
    pub store: Arc<dyn BlockStore>,
    pub cache: Arc<DbufCache>,
    pub txgs: Arc<TxgState>,
    pub features: Features,
    /// Changes with `zpool reguid` only.
    guid: AtomicU64,
    /// What it was before the txg that changes it, until that is on disk; 0: there is no such txg.
    former_guid: AtomicU64,
    /// Rises with `zpool upgrade` only.
    version: AtomicU64,
    pub readonly: bool,
    /// What all datasets' intent logs have in common.
    pub log: PoolLog,
    mos: OnceLock<Arc<Objset>>,
    scan: OnceLock<Weak<Scan>>,
    frees: Mutex<Vec<BlkPtr>>,
    /// Blocks that a txg allocates in vain, which frees them itself.
    in_vain: Mutex<Vec<(Txg, BlkPtr)>>,
    /// Blocks that the txg being synced points to once more.
    clones: Mutex<Vec<BlkPtr>>,
    /// The last txg of which an intent log has, or is to have, a record that clones blocks.
    clones_logged: AtomicU64,
    /// Places on removed vdevs that became obsolete.
    obsolete: Mutex<Vec<Dva>>,
    frozen_after: AtomicU64,
    tasks: [Mutex<Vec<Task>>; TXG_SIZE],
    /// What this txg's tasks did, for the pool's history.
    events: Mutex<Vec<NvList>>,
}

impl PoolCtx {
    pub fn new(
        env: Env,
        store: Arc<dyn BlockStore>,
        cache: Arc<DbufCache>,
        txgs: Arc<TxgState>,
        guid: u64,
        readonly: bool,
    ) -> Arc<PoolCtx> {
        Arc::new(PoolCtx {
            env,
            store,
            cache,
            txgs,
            features: Features::default(),
            guid: AtomicU64::new(guid),
            former_guid: AtomicU64::new(0),
            version: AtomicU64::new(SPA_VERSION_FEATURES),
            readonly,
            log: PoolLog::default(),
            mos: OnceLock::new(),
            scan: OnceLock::new(),
            frees: Mutex::default(),
            in_vain: Mutex::default(),
            clones: Mutex::default(),
            clones_logged: AtomicU64::new(0),
            obsolete: Mutex::default(),
            frozen_after: AtomicU64::new(u64::MAX),
            tasks: Default::default(),
            events: Mutex::default(),
        })
    }

    /// The pool's own objset; set once while a pool is opened or created, before anything asks for
    /// it.
    pub fn set_mos(&self, mos: Arc<Objset>) {
        let fresh = self.mos.set(mos).is_ok();
        debug_assert!(fresh, "a pool has one MOS");
    }

    pub fn mos(&self) -> &Arc<Objset> {
        match self.mos.get() {
            Some(mos) => mos,
            None => unreachable!("the MOS is opened before anything that stands on it"),
        }
    }

    pub fn guid(&self) -> u64 {
        self.guid.load(Ordering::Acquire)
    }

    pub(crate) fn former_guid(&self) -> Option<u64> {
        Some(self.former_guid.load(Ordering::Acquire)).filter(|guid| *guid != 0)
    }

    pub(crate) fn set_former_guid(&self, guid: u64) {
        self.former_guid.store(guid, Ordering::Release);
    }

    /// In the syncing context of the txg that writes it down.
    pub(crate) fn set_guid(&self, guid: u64) {
        self.guid.store(guid, Ordering::Release);
    }

    /// The version of the pool's format.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// While the pool is opened or made, or in the syncing context of the txg that raises it.
    pub(crate) fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    /// The pool's scrub; set once the datasets are open.
    pub fn set_scan(&self, scan: &Arc<Scan>) {
        let fresh = self.scan.set(Arc::downgrade(scan)).is_ok();
        debug_assert!(fresh, "a pool has one scan");
    }

    pub fn scan(&self) -> Option<Arc<Scan>> {
        self.scan.get().and_then(Weak::upgrade)
    }

    /// From the txg after this one on, txgs are synced in memory only
    /// ([`crate::spa::Spa::freeze`]).
    pub(crate) fn freeze_after(&self, txg: Txg) {
        self.frozen_after.store(txg.0, Ordering::Release);
    }

    /// The last txg that is or will be on disk: no uberblock leads to what a later one writes.
    pub fn last_on_disk(&self) -> Txg {
        Txg(self.frozen_after.load(Ordering::Acquire))
    }

    /// Whether `txg` will never be on disk, because the pool is frozen: what it does can only come
    /// back from the intent log.
    pub fn is_frozen(&self, txg: Txg) -> bool {
        txg.0 > self.frozen_after.load(Ordering::Acquire)
    }

    /// Hands in a block that nothing refers to any more, as of the txg being synced. Holes and
    /// embedded blocks are ignored.
    pub fn free(&self, bp: &BlkPtr) {
        if !bp.is_hole() && !bp.is_embedded() {
            self.frees.lock().push(*bp);
        }
    }

    /// Hands in a block that was allocated in `txg`, which the caller holds or which cannot be over
    /// yet, and that nothing refers to. It is freed in no earlier one, even in the sync of one: a
    /// space map that has a block freed before it was allocated is taken for damaged.
    pub(crate) fn free_in(&self, txg: Txg, bp: &BlkPtr) {
        if !bp.is_hole() && !bp.is_embedded() {
            self.in_vain.lock().push((txg, *bp));
        }
    }

    /// Hands in a place on a removed vdev that nothing points to any more.
    pub(crate) fn note_obsolete(&self, dva: Dva) {
        self.obsolete.lock().push(dva);
    }

    pub(crate) fn take_obsolete(&self) -> Vec<Dva> {
        std::mem::take(&mut *self.obsolete.lock())
    }

    /// Hands in blocks that the txg being synced points to once more.
    pub(crate) fn cloned(&self, bps: Vec<BlkPtr>) {
        if !bps.is_empty() {
            self.clones.lock().extend(bps);
        }
    }

    pub(crate) fn take_clones(&self) -> Vec<BlkPtr> {
        std::mem::take(&mut *self.clones.lock())
    }

    /// An intent log is given a record of `txg` that clones blocks.
    pub(crate) fn note_clones_logged(&self, txg: Txg) {
        self.clones_logged.fetch_max(txg.0, Ordering::Relaxed);
    }

    pub(crate) fn clones_logged(&self) -> Txg {
        Txg(self.clones_logged.load(Ordering::Relaxed))
    }

    /// Whether the sync of `txg` has something to free.
    pub(crate) fn has_frees(&self, txg: Txg) -> bool {
        !self.frees.lock().is_empty() || self.in_vain.lock().iter().any(|(t, _)| *t <= txg)
    }

    /// What the sync of `txg` has to free.
    pub(crate) fn take_frees(&self, txg: Txg) -> Vec<BlkPtr> {
        let mut frees = std::mem::take(&mut *self.frees.lock());
        frees.extend(self.in_vain.lock().extract_if(.., |(t, _)| *t <= txg).map(|(_, bp)| bp));
        frees
    }

    /// Runs `f` in the syncing context of some txg and waits until that txg is stable.
    pub async fn sync_task<T, F>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Tx) -> BoxFuture<'static, Result<T>> + Send + 'static,
    {
        let slot = Arc::new(Mutex::new(None));
        let out = slot.clone();
        let task = Box::new(move |tx| -> BoxFuture<'static, _> {
            Box::pin(async move {
                let result = f(tx).await;
                let failed = result.as_ref().err().cloned();
                *out.lock() = Some(result);
                failed
            })
        });
        self.have_synced(task).await?;
        let gone = || Error::os(Errno::Canceled, "the pool was closed before the change was made");
        slot.lock().take().ok_or_else(gone)?
    }

    /// Gives a task to some txg and waits until that is stable. Compiled once, unlike what is
    /// around it.
    #[boxed]
    async fn have_synced(&self, task: Task) -> Result<()> {
        if self.readonly {
            return Err(Error::os(Errno::ROFs, "the pool is imported read-only"));
        }
        let txg = {
            let tx = self.txgs.assign().await?;
            self.tasks[tx.txg().slot()].lock().push(task);
            tx.txg()
        };
        self.txgs.wait_synced(txg).await
    }

    /// Notes what a task did; the sync that runs it writes it down.
    pub(crate) fn note_event(&self, event: NvList) {
        self.events.lock().push(event);
    }

    /// Something that the pool itself did, or that was done to it as a whole, for its history.
    pub fn note_internal(&self, txg: Txg, what: &str, text: impl Into<String>) {
        let mut record = NvList::new();
        record.add("history internal str", text.into()).add("internal_name", what);
        record.add("history txg", txg.0).add("history time", self.env.wall().as_secs());
        self.note_event(record);
    }

    pub(crate) fn take_events(&self) -> Vec<NvList> {
        std::mem::take(&mut *self.events.lock())
    }

    pub(crate) fn take_tasks(&self, txg: Txg) -> Vec<Task> {
        std::mem::take(&mut *self.tasks[txg.slot()].lock())
    }

    /// Forgets what no txg will do any more: it holds the pool that holds it.
    pub(crate) fn forget_tasks(&self) {
        self.tasks.iter().for_each(|t| t.lock().clear());
    }
}
