//! The pools behind the control API: what `zpool` and `zfs` ask, done with the library.
//!
//! [`Engine`] holds the imported pools by name. Each [`Pool`](pool::Pool) is an open
//! [`zilla::Pool`] with what only the daemon knows of it: its alternate root, whether the cache
//! file lists it, its mounts. The folder's other files are one subject each: making and importing
//! pools, what they look like, their properties and history; datasets, their properties, snapshots,
//! mounts.
//!
//! What it keeps true: the set of pools changes one operation at a time (`changes`), so two imports
//! of one pool cannot cross; everything within a pool is ordered by the pool's own sync task. A
//! pool leaves the table before it is closed, so nobody finds a pool that is going. The cache file
//! is rewritten after each change of the set, in one step; a crash in between makes the next start
//! look for a pool in vain or not look for one, and nothing is lost. Nothing is locked while
//! waiting except `changes`, which orders these operations.

mod access;
mod accounts;
mod arcstats;
mod attach;
mod autoreplace;
mod bookmarks;
mod cache;
mod clonefile;
mod configured;
mod create;
mod datasets;
mod dbufs;
mod destroy;
mod devices;
mod diff;
mod errors;
mod events;
mod farewell;
mod follow;
mod followkeys;
mod fsversion;
mod grants;
mod handed;
mod heal;
mod history;
mod holds;
mod host;
mod identity;
mod import;
mod info;
mod inject;
mod inuse;
mod keys;
mod kstats;
mod labelclear;
mod leftout;
mod logs;
mod lost;
mod meanwhile;
mod mountings;
mod mountopts;
mod mounts;
mod moved;
mod names;
mod nesting;
mod notify;
mod opening;
mod outside;
mod parameters;
mod place;
mod pool;
mod poolprops;
mod poolstats;
mod program;
mod query;
mod receive;
mod received;
mod redact;
mod rename;
mod resumed;
mod scrub;
mod send;
mod shares;
mod snapshots;
mod split;
mod startkeys;
mod streams;
mod taken;
mod trace;
mod upkeep;
mod usershares;
mod values;
mod vdevprops;
mod vdevs;
mod volumes;
mod wait;
mod watch;
mod zedlets;
mod zvolfiles;

use crate::{Handle, Pools};
use errors::Answer;
use futures_util::future::{Either, join_all, select};
use parking_lot::{Mutex, RwLock};
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla::manage::TXG_DEFER_SIZE;
use zilla::open::Rank;
use zilla_control::types::*;
use zilla_control::{Asked, Backend, Caller, Page};
use zilla_env::Env;

/// Worker threads of the engine; as many as there are cores.
const WORKERS: usize = 0;

pub struct Engine {
    env: Env,
    handle: Handle,
    /// As of which uberblock pools were found not to be in use elsewhere, by guid.
    quiet: Mutex<BTreeMap<u64, Rank>>,
    pools: Arc<RwLock<BTreeMap<String, Arc<Pool>>>>,
    past: arcstats::Past,
    /// Those of the cache file that could not be opened.
    lost: RwLock<BTreeMap<String, lost::Lost>>,
    /// Held while the set of pools changes.
    changes: tokio::sync::Mutex<()>,
    /// The pools that are being imported, by name, with their guids.
    opening: Mutex<BTreeMap<String, u64>>,
    /// No pool is to be opened any more. It changes with `changes` held.
    closing: AtomicBool,
    /// Where devices wait that were looked at and are to become a pool's.
    desk: handed::Desk,
    nbd: Option<volumes::Nbd>,
    /// None: nothing is shared.
    nfs: Option<shares::Nfs>,
    shares: shares::Shares,
    usershares: usershares::Usershares,
    /// Where streams' descriptors wait for their requests.
    streams: streams::Desk,
    /// Held while it is mounted or unmounted.
    zvol_files: tokio::sync::Mutex<Option<zilla_fuse::VolumeMount>>,
    kstats: Option<zilla_fuse::TextMount>,
    lines: access::Lines,
    /// None: volumes have none.
    devices: Option<devices::Devices>,
    parameters: Option<parameters::Parameters>,
    /// Those that pools name, as they were last written.
    cache_files: Mutex<BTreeSet<PathBuf>>,
    /// Those that servers are to be asked for.
    start_keys: Mutex<startkeys::StartKeys>,
}

impl Engine {
    /// Brings up the pools of the cache file. One that cannot be opened is told in the log and left
    /// alone.
    pub async fn open(handle: Handle) -> Engine {
        configured::apply(handle.state_dir().path());
        host::from_environment();
        let env = zilla_env::real_env(WORKERS);
        let (opener, desk) = handed::handing(env.opener.clone());
        let devices = handle.devices().map(|links| devices::Devices::new(links.to_owned()));
        let usershares = usershares::Usershares::new(handle.state_dir());
        usershares.sweep().await;
        let mut engine = Engine {
            env: Env { opener: Arc::new(opener), ..env },
            desk,
            handle,
            quiet: Mutex::default(),
            pools: Arc::default(),
            past: arcstats::Past::default(),
            lost: RwLock::default(),
            changes: tokio::sync::Mutex::default(),
            opening: Mutex::default(),
            closing: AtomicBool::new(false),
            nbd: None,
            nfs: None,
            shares: shares::Shares::default(),
            usershares,
            streams: streams::Desk::default(),
            zvol_files: tokio::sync::Mutex::default(),
            kstats: None,
            lines: access::Lines::default(),
            devices,
            parameters: parameters::Parameters::serve(),
            cache_files: Mutex::default(),
            start_keys: Mutex::default(),
        };
        engine.kstats = kstats::serve(engine.pools.clone(), engine.past.clone(), engine.env.clone()).await;
        engine.run_zedlets();
        engine.run_notices();
        let listener = engine.handle.nfs();
        if listener.is_some() {
            match shares::Nfs::new() {
                Ok(nfs) => engine.nfs = Some(nfs),
                Err(e) => tracing::error!("file systems cannot be shared over NFS: {e}"),
            }
        }
        engine.restore().await;
        if engine.handle.is_stopped() {
            return engine;
        }
        let shares = engine.shares.clone();
        if let (Some(listener), Some(nfs)) = (listener, &mut engine.nfs)
            && let Err(e) = nfs.begin(listener, shares)
        {
            tracing::error!("file systems cannot be shared over NFS: {e}");
        }
        match volumes::Nbd::start(&engine.handle, &engine.pools) {
            Ok(nbd) => engine.nbd = Some(nbd),
            Err(e) => tracing::error!("volumes cannot be served over NBD: {e}"),
        }
        if let Err(e) = engine.streams.start(&engine.handle) {
            tracing::error!("streams cannot be sent or received: {e}");
        }
        engine
    }

    fn pool(&self, name: &str) -> Answer<Arc<Pool>> {
        self.pools.read().get(name).cloned().ok_or_else(|| self.absent(name))
    }

    /// The pool that a dataset's name begins with.
    fn pool_of(&self, dataset: &str) -> Answer<Arc<Pool>> {
        let name = zilla_control::props::naming::pool_of(dataset);
        self.pools.read().get(name).cloned().ok_or_else(|| match self.is_lost(name) {
            true => self.absent(name),
            false => errors::no_dataset(dataset),
        })
    }

    /// The pool of a snapshot or bookmark; what is not there is its dataset.
    fn pool_of_head(&self, name: &str) -> Answer<Arc<Pool>> {
        self.pool_of(name.split(['@', '#']).next().unwrap_or(name))
    }

    /// Refuses, as OpenZFS does, what would wait for the disks of a suspended pool; `name` is the
    /// pool's or a dataset's.
    fn check_running(&self, name: &str) -> Answer<()> {
        match self.pool(zilla_control::props::naming::pool_of(name)) {
            Ok(pool) => pool.check_running(),
            // It is refused by whoever looks for it.
            Err(_) => Ok(()),
        }
    }

    /// What comes of something while the daemon starts, unless it is told to end meanwhile. What is
    /// cut off then is cut off as by a crash.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.handle.stopped() => None,
            done = work => Some(done),
        }
    }

    fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    fn all_pools(&self) -> Vec<Arc<Pool>> {
        self.pools.read().values().cloned().collect()
    }
}

/// How long a suspended pool may take to write what it has in memory before the daemon ends without
/// it: longer than an activity test (20 s by default), and shorter than systemd waits (90 s).
const LAST_CHANCE: Duration = Duration::from_secs(45);

impl Engine {
    /// The last chance for what a suspended pool has in memory, unless it was given up already.
    async fn try_once_more(&self, pool: &Pool) {
        if pool.zilla.suspended().is_none() || pool.zilla.is_given_up() {
            return;
        }
        let cleared = std::pin::pin!(pool.zilla.clear(None));
        let late = std::pin::pin!(self.env.sleep(LAST_CHANCE));
        if !matches!(select(cleared, late).await, Either::Left((Ok(()), _))) {
            pool.zilla.abandon();
        }
    }
}

impl Pools for Engine {
    fn attend(self: &Arc<Self>) {
        self.watch_pools();
        self.ask_for_keys();
    }

    /// A worker thread of the engine takes a task and does it.
    async fn lives(&self) {
        let _ = self.env.spawn_with_result(async {}).await;
    }

    async fn close(&self) {
        // Who changes a suspended pool waits for it, and has the lock meanwhile.
        let pools = self.all_pools();
        join_all(pools.iter().map(|pool| self.try_once_more(pool))).await;
        let _changes = self.changes.lock().await;
        if let Some(Err(e)) = self.kstats.as_ref().map(|mount| mount.unmount()) {
            tracing::warn!("unmounting the statistics: {e}");
        }
        // An import that is under way does not bring in its pool any more.
        self.closing.store(true, Ordering::Release);
        if let Some(nfs) = &self.nfs {
            nfs.stop().await;
        }
        let patience = farewell::Patience::begin();
        let volumes = self.zvol_files.lock().await.as_ref().map(|mount| mount.device());
        let (pools, on_volumes) = nesting::inner_first(self.all_pools(), volumes);
        if on_volumes == 0 {
            self.stop_serving_volumes().await;
        }
        for (i, pool) in pools.into_iter().enumerate() {
            self.drop_pool(&pool);
            self.try_once_more(&pool).await;
            if let Err(e) = pool.release_volumes(true).await {
                tracing::error!("pool '{}': {e}", pool.name());
            }
            pool.take_leave(&patience).await;
            if let Err(e) = pool.zilla.close(None).await {
                tracing::error!("pool '{}': {e}", pool.name());
            }
            if i + 1 == on_volumes {
                self.stop_serving_volumes().await;
            }
        }
        if let Some(nbd) = &self.nbd {
            nbd.ended().await;
        }
    }
}

impl Backend for Engine {
    async fn judge(&self, caller: &Caller, asked: &Asked) -> Answer<()> {
        self.judge_guest(caller, asked).await
    }

    async fn prepare(&self) {
        if let Some(parameters) = &self.parameters {
            parameters.follow().await;
        }
    }

    async fn page(&self, caller: &Caller, path: &str) -> Option<Answer<Page>> {
        match path {
            "/metrics" => {
                let text = zilla_web::metrics::collect(self, caller).await;
                Some(text.map(|text| (zilla_web::metrics::CONTENT_TYPE, text)))
            }
            _ => None,
        }
    }

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

    async fn pool_query(&self, caller: &Caller, mut r: PoolQuery) -> Answer<Vec<PoolInfo>> {
        // Names of files are for those who may enter their directories.
        r.errors &= caller.owner;
        self.query_pools(r).await
    }

    async fn pool_set(&self, _: &Caller, r: PoolSet) -> Answer<()> {
        self.set_pool(r).await
    }

    async fn pool_sync(&self, _: &Caller, r: PoolSync) -> Answer<()> {
        self.check_running(&r.name)?;
        // The uberblock says how often heartbeats come; that may have changed and nothing else.
        if r.force || self.pool(&r.name)?.zilla.multihost() {
            self.pool(&r.name)?.zilla.sync_anyway().await.map_err(errors::of_pool)?;
        }
        // As in OpenZFS also what frees wait for: afterwards space is what it will be.
        for _ in 0..=TXG_DEFER_SIZE {
            self.check_running(&r.name)?;
            self.pool(&r.name)?.zilla.sync().await.map_err(errors::of_pool)?;
        }
        Ok(())
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
        self.check_running(&r.name)?;
        self.scrub(r).await
    }

    async fn vdevs_check(&self, _: &Caller, r: VdevsCheck) -> Answer<()> {
        self.check_vdevs(r).await
    }

    async fn pool_add(&self, _: &Caller, r: PoolAdd) -> Answer<()> {
        self.add_vdevs(r).await
    }

    async fn pool_clear(&self, _: &Caller, r: PoolClear) -> Answer<()> {
        self.clear_pool(r).await
    }

    async fn pool_resilver(&self, _: &Caller, r: PoolResilver) -> Answer<()> {
        self.check_running(&r.name)?;
        self.resilver(r).await
    }
    async fn pool_reopen(&self, _: &Caller, r: PoolReopen) -> Answer<()> {
        self.check_running(&r.name)?;
        self.reopen_pool(r).await
    }

    async fn pool_freeze(&self, _: &Caller, r: PoolFreeze) -> Answer<()> {
        self.freeze_pool(r).await
    }

    async fn pool_checkpoint(&self, _: &Caller, r: PoolCheckpoint) -> Answer<()> {
        self.checkpoint_pool(r).await
    }

    async fn pool_reguid(&self, _: &Caller, r: PoolReguid) -> Answer<()> {
        self.reguid_pool(r).await
    }

    async fn dedup_prune(&self, _: &Caller, r: DedupPrune) -> Answer<()> {
        self.prune_dedup(r).await
    }

    async fn dedup_prefetch(&self, _: &Caller, r: DedupPrefetch) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        pool.check_running()?;
        pool.zilla.prefetch_dedup().await.map_err(errors::of_pool)
    }

    async fn pool_upgrade(&self, _: &Caller, r: PoolUpgrade) -> Answer<()> {
        self.upgrade_pool(r).await
    }

    async fn label_clear(&self, _: &Caller, r: LabelClear) -> Answer<()> {
        self.clear_labels(r).await
    }

    async fn vdev_attach(&self, _: &Caller, r: VdevAttach) -> Answer<()> {
        self.attach_vdev(r).await
    }

    async fn pool_split(&self, caller: &Caller, r: PoolSplit) -> Answer<SplitReply> {
        self.split_pool(caller, r).await
    }

    async fn vdev_detach(&self, _: &Caller, r: VdevDetach) -> Answer<()> {
        self.detach_vdev(r).await
    }

    async fn vdev_upkeep(&self, _: &Caller, r: VdevUpkeep) -> Answer<VdevUpkeepReply> {
        self.upkeep(r).await
    }

    async fn vdev_remove(&self, _: &Caller, r: VdevRemove) -> Answer<VdevRemoveReply> {
        self.remove_vdev(r).await
    }

    async fn vdev_offline(&self, _: &Caller, r: VdevOffline) -> Answer<()> {
        self.offline_vdev(r).await
    }

    async fn vdev_online(&self, _: &Caller, r: VdevOnline) -> Answer<VdevOnlineReply> {
        self.online_vdev(r).await
    }

    async fn dataset_rollback(&self, caller: &Caller, mut r: DatasetRollback) -> Answer<()> {
        r.force &= caller.owner;
        self.check_running(&r.snapshot)?;
        self.roll_back(r).await
    }

    async fn pool_wait(&self, _: &Caller, r: PoolWait) -> Answer<PoolWaitReply> {
        self.wait(r).await
    }

    async fn inject_add(&self, caller: &Caller, r: InjectAdd) -> Answer<InjectHandler> {
        self.add_injection(caller, r).await
    }

    async fn inject_list(&self, _: &Caller, _: InjectList) -> Answer<Vec<InjectHandler>> {
        Ok(inject::list())
    }

    async fn inject_clear(&self, _: &Caller, r: InjectClear) -> Answer<Vec<u64>> {
        Ok(inject::clear(r.id))
    }

    async fn inject_state(&self, _: &Caller, r: InjectState) -> Answer<()> {
        self.declare_state(&r)
    }

    async fn inject_flush(&self, _: &Caller, _: InjectFlush) -> Answer<()> {
        self.forget_blocks().await;
        Ok(())
    }

    async fn event_query(&self, _: &Caller, r: EventQuery) -> Answer<EventReply> {
        self.read_events(r).await
    }

    async fn event_clear(&self, _: &Caller, _: EventClear) -> Answer<u64> {
        Ok(zilla::events::events().clear() as u64)
    }

    async fn log_stats(&self, _: &Caller, r: LogStatQuery) -> Answer<Vec<LogStat>> {
        self.log_statistics(r).await
    }

    async fn arc_stats(&self, _: &Caller, r: ArcStatQuery) -> Answer<Vec<ArcStat>> {
        self.arc_statistics(&r).await
    }

    async fn trace_record(&self, caller: &Caller, r: TraceRecord) -> Answer<TraceReply> {
        self.record_trace(caller, r).await
    }

    async fn dataset_create(&self, caller: &Caller, r: DatasetCreate) -> Answer<MountedReply> {
        self.check_running(&r.name)?;
        self.create_dataset(caller, r).await
    }

    async fn dataset_destroy(&self, caller: &Caller, mut r: DatasetDestroy) -> Answer<DestroyReply> {
        r.force &= caller.owner;
        self.check_running(&r.target)?;
        self.destroy(r).await
    }

    async fn dataset_query(&self, caller: &Caller, r: DatasetQuery) -> Answer<DatasetQueryReply> {
        self.answer_query(caller, r).await
    }

    async fn dataset_by_path(&self, _: &Caller, r: DatasetByPath) -> Answer<String> {
        self.dataset_at(&r.path)
    }

    async fn file_clone(&self, _: &Caller, r: FileClone) -> Answer<u64> {
        self.clone_file(r).await
    }

    async fn dataset_set(&self, caller: &Caller, r: DatasetSet) -> Answer<MountedReply> {
        self.check_running(&r.name)?;
        self.set_properties(caller, r).await
    }

    async fn dataset_inherit(&self, _: &Caller, r: DatasetInherit) -> Answer<MountedReply> {
        self.check_running(&r.name)?;
        self.inherit_property(r).await
    }

    async fn dataset_mount(&self, _: &Caller, r: DatasetMount) -> Answer<ManyReply> {
        self.mount(r).await
    }

    async fn dataset_unmount(&self, _: &Caller, r: DatasetUnmount) -> Answer<ManyReply> {
        self.unmount(r).await
    }

    async fn dataset_share(&self, _: &Caller, r: DatasetShare) -> Answer<ManyReply> {
        self.share(r).await
    }

    async fn dataset_unshare(&self, _: &Caller, r: DatasetUnshare) -> Answer<ManyReply> {
        self.unshare(r).await
    }

    async fn mount_list(&self, _: &Caller, _: MountList) -> Answer<Vec<MountEntry>> {
        Ok(self.mounted_heads())
    }

    async fn dataset_snapshot(&self, caller: &Caller, r: DatasetSnapshot) -> Answer<()> {
        r.names.iter().try_for_each(|name| self.check_running(name))?;
        self.snapshot(caller, r).await
    }

    async fn volume_files(&self, _: &Caller, r: VolumeFiles) -> Answer<String> {
        self.volume_directory(r).await
    }

    async fn dataset_rename(&self, caller: &Caller, mut r: DatasetRename) -> Answer<MountedReply> {
        r.force &= caller.owner;
        self.check_running(&r.name)?;
        self.rename(caller, r).await
    }

    async fn dataset_promote(&self, caller: &Caller, r: DatasetPromote) -> Answer<()> {
        self.check_running(&r.name)?;
        self.promote(caller, r).await
    }

    async fn dataset_redact(&self, _: &Caller, r: DatasetRedact) -> Answer<()> {
        self.redact(r).await
    }

    async fn dataset_bookmark(&self, _: &Caller, r: DatasetBookmark) -> Answer<()> {
        self.bookmark(r).await
    }

    async fn dataset_accounts(&self, _: &Caller, r: DatasetAccounts) -> Answer<Vec<Account>> {
        self.list_accounts(r).await
    }

    async fn dataset_diff(&self, _: &Caller, r: DatasetDiff) -> Answer<DatasetDiffReply> {
        self.diff(r).await
    }

    async fn dataset_wait(&self, _: &Caller, r: DatasetWait) -> Answer<bool> {
        self.wait_for_dataset(r).await
    }

    async fn snapshot_hold(&self, _: &Caller, r: SnapshotHold) -> Answer<()> {
        self.check_running(&r.snapshot)?;
        self.hold(r).await
    }

    async fn snapshot_release(&self, _: &Caller, r: SnapshotRelease) -> Answer<()> {
        self.check_running(&r.snapshot)?;
        self.release(r).await
    }

    async fn snapshot_holds(&self, _: &Caller, r: SnapshotHolds) -> Answer<Vec<HoldInfo>> {
        self.list_holds(r).await
    }

    async fn key_load(&self, caller: &Caller, r: KeyLoad) -> Answer<()> {
        self.load_key(r, keys::Turn::of(caller)).await
    }

    async fn key_unload(&self, _: &Caller, r: KeyUnload) -> Answer<()> {
        self.unload_key(r).await
    }

    async fn key_change(&self, caller: &Caller, r: KeyChange) -> Answer<()> {
        self.change_key(r, keys::Turn::of(caller)).await
    }

    async fn dataset_clone(&self, caller: &Caller, r: DatasetClone) -> Answer<MountedReply> {
        self.check_running(&r.snapshot)?;
        self.clone_dataset(caller, r).await
    }

    async fn grant_query(&self, _: &Caller, r: GrantQuery) -> Answer<Vec<GrantList>> {
        self.list_grants(r).await
    }

    async fn grant_change(&self, _: &Caller, r: GrantChange) -> Answer<()> {
        self.check_running(&r.name)?;
        self.change_grants(r).await
    }

    async fn program_run(&self, caller: &Caller, r: ProgramRun) -> Answer<ProgramReply> {
        self.check_running(&r.pool)?;
        self.run_program(caller, r).await
    }

    async fn stream_send(&self, caller: &Caller, r: StreamSend) -> Answer<()> {
        self.send_stream(caller, r).await
    }

    async fn stream_receive(&self, caller: &Caller, r: StreamReceive) -> Answer<()> {
        self.receive_stream(caller, r).await
    }

    async fn receive_abort(&self, _: &Caller, r: ReceiveAbort) -> Answer<()> {
        self.abort_receive(r).await
    }
}
