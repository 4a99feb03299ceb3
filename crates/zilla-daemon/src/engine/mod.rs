//! The pools behind the control API: what `zpool` and `zfs` ask, done with the library.
//!
//! [`Engine`] holds the imported pools by name. Each [`Pool`](pool::Pool) is an open
//! [`zilla::Pool`] with what only the daemon knows of it: its alternate root, whether the cache
//! file lists it, its mounts. The folder's other files are one subject each: making and importing
//! pools, what they look like, their properties and history; datasets, their properties, snapshots,
//! mounts. What an operation of the control API does is `impl Serves<Operation> for Engine` there;
//! the table of operations makes the [`Backend`] of them, and one that nobody serves does not
//! compile.
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
mod mounttable;
mod moved;
mod names;
mod nesting;
mod notify;
mod onto;
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
use zilla::open::Rank;
use zilla_control::types::*;
use zilla_control::{Asked, Backend, Caller, Operation, Page};
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

/// One operation of the control API, done; each lies in the file of its subject.
trait Serves<O: Operation> {
    fn serve(&self, caller: &Caller, request: O) -> impl Future<Output = Answer<O::Reply>> + Send;
}

impl Serves<Hello> for Engine {
    async fn serve(&self, _: &Caller, _: Hello) -> Answer<HelloReply> {
        Ok(self.handle.hello())
    }
}

impl Serves<Shutdown> for Engine {
    async fn serve(&self, _: &Caller, _: Shutdown) -> Answer<()> {
        self.handle.stop();
        Ok(())
    }
}

macro_rules! backend {
    ($($(#[$m:meta])* $method:ident($request:ident) -> $reply:ty;)*) => {
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

            $(async fn $method(&self, caller: &Caller, request: $request) -> Answer<$reply> {
                Serves::serve(self, caller, request).await
            })*
        }
    };
}

zilla_control::each_operation!(backend);
