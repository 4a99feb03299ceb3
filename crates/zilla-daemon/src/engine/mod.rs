//! The pools behind the control API: what `zpool` and `zfs` ask, done with the engine.
//!
//! [`Engine`] holds the imported pools by name. Each [`Pool`](pool::Pool) is an open [`zilla_core::spa::Spa`] with what
//! only the daemon knows of it: its alternate root, whether the cache file lists it, its mounts. The folder's other
//! files are one subject each: making and importing pools, what they look like, their properties and history;
//! datasets, their properties, snapshots, mounts.
//!
//! What it keeps true: the set of pools changes one operation at a time (`changes`), so two imports of one pool cannot
//! cross; everything within a pool is ordered by the pool's own sync task. A pool leaves the table before it is
//! closed, so nobody finds a pool that is going. The cache file is rewritten after each change of the set, in one
//! step; a crash in between makes the next start look for a pool in vain or not look for one, and nothing is lost.
//! Nothing is locked while waiting except `changes`, which orders these operations.

mod cache;
mod create;
mod datasets;
mod destroy;
mod errors;
mod foreign;
mod handed;
mod history;
mod holds;
mod host;
mod import;
mod info;
mod inuse;
mod kstats;
mod logs;
mod mountopts;
mod mounts;
mod parameters;
mod place;
mod pool;
mod poolprops;
mod query;
mod rename;
mod scrub;
mod snapshots;
mod values;
mod vdevs;
mod volumes;
mod wait;
mod zvolfiles;

use crate::{Handle, Pools};
use errors::{Answer, no_pool};
use parking_lot::RwLock;
use pool::Pool;
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_control::types::*;
use zilla_control::{Backend, Caller};
use zilla_core::spa::Host;
use zilla_env::Env;

/// Worker threads of the engine; as many as there are cores.
const WORKERS: usize = 0;

pub struct Engine {
    env: Env,
    handle: Handle,
    host: Host,
    pools: Arc<RwLock<BTreeMap<String, Arc<Pool>>>>,
    /// Held while the set of pools changes.
    changes: tokio::sync::Mutex<()>,
    /// Where devices wait that were looked at and are to become a pool's.
    desk: handed::Desk,
    nbd: Option<volumes::Nbd>,
    /// Held while it is mounted or unmounted.
    zvol_files: tokio::sync::Mutex<Option<zilla_fuse::VolumeMount>>,
}

impl Engine {
    /// Brings up the pools of the cache file. One that cannot be opened is told in the log and left alone.
    pub async fn open(handle: Handle) -> Engine {
        let env = zilla_env::real_env(WORKERS);
        let (opener, desk) = handed::handing(env.opener.clone());
        let mut engine = Engine {
            env: Env { opener: Arc::new(opener), ..env },
            desk,
            handle,
            host: host::host(),
            pools: Arc::default(),
            changes: tokio::sync::Mutex::default(),
            nbd: None,
            zvol_files: tokio::sync::Mutex::default(),
        };
        parameters::serve();
        kstats::serve(engine.pools.clone());
        engine.restore().await;
        match volumes::Nbd::start(engine.handle.state_dir(), &engine.env, &engine.pools) {
            Ok(nbd) => engine.nbd = Some(nbd),
            Err(e) => tracing::error!("volumes cannot be served over NBD: {e}"),
        }
        engine
    }

    fn pool(&self, name: &str) -> Answer<Arc<Pool>> {
        self.pools.read().get(name).cloned().ok_or_else(no_pool)
    }

    /// The pool that a dataset's name begins with.
    fn pool_of(&self, dataset: &str) -> Answer<Arc<Pool>> {
        let name = zilla_control::props::naming::pool_of(dataset);
        self.pools.read().get(name).cloned().ok_or_else(|| errors::no_dataset(dataset))
    }

    fn all_pools(&self) -> Vec<Arc<Pool>> {
        self.pools.read().values().cloned().collect()
    }
}

impl Pools for Engine {
    async fn close(&self) {
        let _changes = self.changes.lock().await;
        if let Some(nbd) = &self.nbd {
            nbd.stop();
        }
        self.close_volume_directory().await;
        let pools = std::mem::take(&mut *self.pools.write());
        for pool in pools.into_values() {
            // The last chance for what a suspended pool has in memory.
            if pool.spa.suspended().is_some() && pool.spa.clear(None).await.is_err() {
                pool.spa.abandon();
            }
            if let Err(e) = pool.release_volumes(true).await {
                tracing::error!("pool '{}': {e}", pool.name());
            }
            pool.unmount_all(true).await;
            if let Err(e) = pool.spa.close(None).await {
                tracing::error!("pool '{}': {e}", pool.name());
            }
        }
        if let Some(nbd) = &self.nbd {
            nbd.ended().await;
        }
    }
}

impl Backend for Engine {
    async fn hello(&self, _: &Caller, _: Hello) -> Answer<HelloReply> {
        Ok(self.handle.hello())
    }

    async fn shutdown(&self, _: &Caller, _: Shutdown) -> Answer<()> {
        self.handle.stop();
        Ok(())
    }

    async fn pool_create(&self, caller: &Caller, r: PoolCreate) -> Answer<MountedReply> {
        self.create_pool(caller, r).await
    }

    async fn pool_destroy(&self, caller: &Caller, r: PoolDestroy) -> Answer<()> {
        self.destroy_pool(caller, r).await
    }

    async fn pool_export(&self, caller: &Caller, r: PoolExport) -> Answer<()> {
        self.export_pool(caller, r).await
    }

    async fn pool_query(&self, _: &Caller, r: PoolQuery) -> Answer<Vec<PoolInfo>> {
        self.query_pools(r).await
    }

    async fn pool_set(&self, _: &Caller, r: PoolSet) -> Answer<()> {
        self.set_pool(r).await
    }

    async fn pool_sync(&self, _: &Caller, r: PoolSync) -> Answer<()> {
        self.pool(&r.name)?.spa.sync().await.map_err(errors::of_pool)
    }

    async fn pool_history(&self, _: &Caller, r: PoolHistory) -> Answer<PoolHistoryReply> {
        self.read_history(r).await
    }

    async fn pool_log(&self, caller: &Caller, r: PoolLog) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        self.log(&pool, caller, &r.line).await;
        Ok(())
    }

    async fn import_search(&self, _: &Caller, r: ImportSearch) -> Answer<Vec<ImportCandidate>> {
        self.search(r).await
    }

    async fn pool_import(&self, _: &Caller, r: PoolImport) -> Answer<ImportReply> {
        self.import_pool(r).await
    }

    async fn pool_scrub(&self, _: &Caller, r: PoolScrub) -> Answer<()> {
        self.scrub(r).await
    }

    async fn pool_add(&self, _: &Caller, r: PoolAdd) -> Answer<()> {
        self.add_vdevs(r).await
    }

    async fn pool_clear(&self, _: &Caller, r: PoolClear) -> Answer<()> {
        self.clear_pool(r).await
    }

    async fn pool_resilver(&self, _: &Caller, r: PoolResilver) -> Answer<()> {
        self.resilver(r).await
    }
    async fn pool_reopen(&self, _: &Caller, r: PoolReopen) -> Answer<()> {
        self.reopen_pool(r).await
    }

    async fn pool_freeze(&self, _: &Caller, r: PoolFreeze) -> Answer<()> {
        self.freeze_pool(r).await
    }

    async fn vdev_attach(&self, _: &Caller, r: VdevAttach) -> Answer<()> {
        self.attach_vdev(r).await
    }

    async fn vdev_detach(&self, _: &Caller, r: VdevDetach) -> Answer<()> {
        self.detach_vdev(r).await
    }

    async fn vdev_remove(&self, _: &Caller, r: VdevRemove) -> Answer<()> {
        self.remove_vdev(r).await
    }

    async fn vdev_offline(&self, _: &Caller, r: VdevOffline) -> Answer<()> {
        self.offline_vdev(r).await
    }

    async fn vdev_online(&self, _: &Caller, r: VdevOnline) -> Answer<VdevOnlineReply> {
        self.online_vdev(r).await
    }

    async fn dataset_rollback(&self, _: &Caller, r: DatasetRollback) -> Answer<()> {
        self.roll_back(r).await
    }

    async fn pool_wait(&self, _: &Caller, r: PoolWait) -> Answer<PoolWaitReply> {
        self.wait(r).await
    }

    async fn log_stats(&self, _: &Caller, r: LogStatQuery) -> Answer<Vec<LogStat>> {
        self.log_statistics(r).await
    }

    async fn dataset_create(&self, caller: &Caller, r: DatasetCreate) -> Answer<MountedReply> {
        self.create_dataset(caller, r).await
    }

    async fn dataset_destroy(&self, _: &Caller, r: DatasetDestroy) -> Answer<DestroyReply> {
        self.destroy(r).await
    }

    async fn dataset_query(&self, _: &Caller, r: DatasetQuery) -> Answer<DatasetQueryReply> {
        self.query_datasets(r).await
    }

    async fn dataset_by_path(&self, _: &Caller, r: DatasetByPath) -> Answer<String> {
        self.dataset_at(&r.path)
    }

    async fn dataset_set(&self, _: &Caller, r: DatasetSet) -> Answer<MountedReply> {
        self.set_properties(r).await
    }

    async fn dataset_inherit(&self, _: &Caller, r: DatasetInherit) -> Answer<MountedReply> {
        self.inherit_property(r).await
    }

    async fn dataset_mount(&self, _: &Caller, r: DatasetMount) -> Answer<ManyReply> {
        self.mount(r).await
    }

    async fn dataset_unmount(&self, _: &Caller, r: DatasetUnmount) -> Answer<ManyReply> {
        self.unmount(r).await
    }

    async fn mount_list(&self, _: &Caller, _: MountList) -> Answer<Vec<MountEntry>> {
        Ok(self.mounted())
    }

    async fn dataset_snapshot(&self, _: &Caller, r: DatasetSnapshot) -> Answer<()> {
        self.snapshot(r).await
    }

    async fn volume_files(&self, _: &Caller, r: VolumeFiles) -> Answer<String> {
        self.volume_directory(r).await
    }

    async fn dataset_rename(&self, caller: &Caller, r: DatasetRename) -> Answer<MountedReply> {
        self.rename(caller, r).await
    }

    async fn dataset_promote(&self, _: &Caller, r: DatasetPromote) -> Answer<()> {
        self.promote(r).await
    }

    async fn snapshot_hold(&self, _: &Caller, r: SnapshotHold) -> Answer<()> {
        self.hold(r).await
    }

    async fn snapshot_release(&self, _: &Caller, r: SnapshotRelease) -> Answer<()> {
        self.release(r).await
    }

    async fn snapshot_holds(&self, _: &Caller, r: SnapshotHolds) -> Answer<Vec<HoldInfo>> {
        self.list_holds(r).await
    }

    async fn dataset_clone(&self, caller: &Caller, r: DatasetClone) -> Answer<MountedReply> {
        self.clone_dataset(caller, r).await
    }
}
