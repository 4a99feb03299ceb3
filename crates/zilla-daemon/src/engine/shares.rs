//! File systems shared over NFS: `sharenfs`, `zfs share`, `zfs unshare`.
//!
//! What is shared is a mount: the file system that the kernel sees is the one that clients see, and
//! the share goes when it is unmounted. A mount is shared by itself where the property says so;
//! `zfs unshare` takes that back until it is shared or mounted anew.
//!
//! What it keeps true: the table of shares has only what is mounted ([`Shared`] takes its row out
//! when it is dropped). Clients are let in when the pools of the last run are there, since a file
//! handle that leads nowhere would be an error to their programs; and they are shut out before
//! pools are closed, so that what they ask then is asked of the next daemon.

use super::Engine;
use super::errors::{Answer, of};
use super::mounts::How;
use super::pool::Pool;
use super::values::{Mountpoint, Settings};
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use zilla_control::types::{DatasetShare, DatasetUnshare, ManyReply};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::dsl::DslDataset;
use zilla_fuse::Notifier;
use zilla_nfs::{Changed, Export, ExportId, Exports, Options, Remembers};

/// So long may looking up a host's name take, of those that a share names.
const LOOKUP: Duration = Duration::from_secs(5);

/// All shares, by what their file handles say.
#[derive(Clone, Default)]
pub struct Shares(Arc<RwLock<HashMap<ExportId, Arc<Export>>>>);

impl Exports for Shares {
    fn find(&self, id: ExportId) -> Option<Arc<Export>> {
        self.0.read().get(&id).cloned()
    }
    fn all(&self) -> Vec<Arc<Export>> {
        self.0.read().values().cloned().collect()
    }
}

/// A row in the table of shares, as long as it lives.
pub struct Shared {
    table: Shares,
    export: Arc<Export>,
}

impl Shares {
    fn add(&self, export: Export) -> Shared {
        let export = Arc::new(export);
        self.0.write().insert(export.id, export.clone());
        Shared { table: self.clone(), export }
    }
}

impl Shared {
    /// Takes the row out of the table, for the time that it takes to unmount.
    pub(super) fn hide(&self) {
        let mut table = self.table.0.write();
        // A later one may have taken its place.
        if table.get(&self.export.id).is_some_and(|e| Arc::ptr_eq(e, &self.export)) {
            table.remove(&self.export.id);
        }
    }

    /// Puts the row back into the table.
    pub(super) fn renew(&self) {
        self.table.0.write().insert(self.export.id, self.export.clone());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.hide();
    }
}

/// The kernel, which remembers files of a mount.
struct Kernel(Notifier);

impl Remembers for Kernel {
    fn forget(&self, changed: Vec<Changed>) -> BoxFuture<'_, ()> {
        let notifier = self.0.clone();
        // The kernel may wait for requests that are under way, which other threads serve.
        let told = tokio::task::spawn_blocking(move || {
            changed.iter().try_for_each(|c| match c {
                Changed::File(node) => notifier.inode(*node),
                Changed::Name(dir, name) => notifier.entry(*dir, name),
            })
        });
        Box::pin(async {
            if let Ok(Err(e)) = told.await {
                tracing::debug!("telling the kernel what changed over NFS: {e}");
            }
        })
    }
}

fn failed(what: impl Into<String>) -> ApiError {
    ApiError::with(ErrorCode::ShareFailed, what)
}

/// Where NFS is not served there is nothing to share by.
pub fn not_served() -> ApiError {
    failed(
        "NFS is not served: start the daemon with an address for it (zillad --nfs 127.0.0.1:2049, or ZILLA_NFS)",
    )
}

impl Pool {
    /// Shares a mount as its property says; takes a share back where it says `off`. Tells whether
    /// it is shared then.
    async fn reshare(&self, engine: &Engine, name: &str, ds: &Arc<DslDataset>) -> Answer<bool> {
        let settings = Settings::of(self, ds).await.map_err(of(name))?;
        let text = settings.text("sharenfs").unwrap_or("off").to_owned();
        // The old share lasts until the new one takes its place.
        let options =
            Options::parse(&text).map_err(|e| failed(format!("sharenfs={text}: {e}")).subject(name))?;
        let Some(mut options) = options else {
            self.unshare(name);
            return Ok(false);
        };
        if engine.nfs.is_none() {
            return Err(not_served().subject(name));
        }
        for host in options.names() {
            let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host.as_str(), 0))).await;
            let addresses: Vec<_> = match found {
                Ok(Ok(found)) => found.map(|a| a.ip()).collect(),
                _ => return Err(failed(format!("sharenfs={text}: host '{host}' is not known")).subject(name)),
            };
            options.resolve(&host, &addresses);
        }
        let mut mounts = self.mounts.lock();
        let Some(mounted) = mounts.get_mut(name) else { return Ok(false) };
        let export = Export {
            id: ExportId { pool: self.spa.guid(), dataset: ds.guid() },
            path: mounted.path().to_string_lossy().into_owned(),
            fs: mounted.fs.clone(),
            options,
            verifier: self.load_guid,
            kernel: Some(Arc::new(Kernel(mounted.mount.notifier()))),
        };
        mounted.share = Some(engine.shares.add(export));
        Ok(true)
    }

    /// What was just mounted is shared if it is to be. Where NFS is not served at all, only whoever
    /// reads the log is told.
    pub(super) async fn share_mounted(
        &self,
        engine: &Engine,
        name: &str,
        ds: &Arc<DslDataset>,
    ) -> Answer<()> {
        match self.reshare(engine, name, ds).await {
            Ok(_) => Ok(()),
            Err(e) if engine.nfs.is_none() => {
                tracing::warn!("'{name}' is not shared: {}", e.description());
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Whether there was a share.
    fn unshare(&self, name: &str) -> bool {
        let share = self.mounts.lock().get_mut(name).and_then(|m| m.share.take());
        share.is_some()
    }

    fn is_shared(&self, name: &str) -> bool {
        self.mounts.lock().get(name).is_some_and(|m| m.share.is_some())
    }

    /// After `sharenfs` changed: what is mounted there, and below as far as it inherits, is shared
    /// as it now says. The first error.
    pub(super) async fn share_below(&self, engine: &Engine, name: &str) -> Option<ApiError> {
        let mut first = None;
        // One at a time, so that what was taken back meanwhile is not shared by older words.
        let _one = self.mounting.lock().await;
        for below in self.mounted_below(name) {
            let Ok(ds) = self.dsl().by_name(&below).await else { continue };
            let settings = Settings::of(self, &ds).await;
            if below != name && settings.is_ok_and(|s| s.is_own("sharenfs")) {
                continue;
            }
            if let Err(e) = self.reshare(engine, &below, &ds).await {
                first.get_or_insert(e);
            }
        }
        first
    }
}

impl Engine {
    /// `zfs share`. By name, what cannot be shared is an error; of all, what is not to be is passed
    /// over.
    pub(super) async fn share(&self, r: DatasetShare) -> Answer<ManyReply> {
        if let Some(name) = r.name {
            let pool = self.pool_of(&name)?;
            self.share_one(&pool, &name).await?;
            return Ok(ManyReply::default());
        }
        let mut errors = Vec::new();
        for pool in self.all_pools() {
            for name in pool.mounted_below(&pool.name()) {
                let Ok(ds) = pool.dsl().by_name(&name).await else { continue };
                let _one = pool.mounting.lock().await;
                if !pool.is_shared(&name)
                    && let Err(e) = pool.reshare(self, &name, &ds).await
                {
                    errors.push(e);
                }
            }
        }
        Ok(ManyReply { errors })
    }

    async fn share_one(&self, pool: &Arc<Pool>, name: &str) -> Answer<()> {
        let ds = pool.dsl().by_name(name).await.map_err(of(name))?;
        let settings = Settings::of(pool, &ds).await.map_err(of(name))?;
        let no = |what: &str| Err(failed(what).subject(name));
        if settings.text("sharenfs").is_none_or(|text| text == "off") {
            return no("legacy share");
        }
        if pool.is_shared(name) {
            return no("filesystem already shared");
        }
        if settings.num("canmount") == 0 {
            return no("'canmount' property is set to 'off'");
        }
        if !matches!(settings.place(pool), Mountpoint::At(_)) {
            return no("no mountpoint set");
        }
        if pool.mounted_at(name).is_none() {
            pool.mount(self, name, &How { explicit: true, ..How::default() }).await?;
        }
        let _one = pool.mounting.lock().await;
        pool.reshare(self, name, &ds).await.map(drop)
    }

    /// `zfs unshare`
    pub(super) async fn unshare(&self, r: DatasetUnshare) -> Answer<ManyReply> {
        let Some(target) = r.target else {
            for pool in self.all_pools() {
                let _one = pool.mounting.lock().await;
                for name in pool.mounted_below(&pool.name()) {
                    pool.unshare(&name);
                }
            }
            return Ok(ManyReply::default());
        };
        let name = match target.starts_with('/') {
            true => {
                let found =
                    self.mounted().into_iter().find(|m| Path::new(&m.mountpoint) == Path::new(&target));
                found.map(|m| m.dataset).ok_or_else(|| failed("not currently shared").subject(&target))?
            }
            false => target,
        };
        let pool = self.pool_of(&name)?;
        pool.dsl().by_name(&name).await.map_err(of(&name))?;
        let _one = pool.mounting.lock().await;
        match pool.unshare(&name) {
            true => Ok(ManyReply::default()),
            false => Err(failed("not currently shared").subject(name)),
        }
    }
}

/// The server for NFS's clients, on threads of its own: a request is done by the thread that takes
/// it.
pub struct Nfs {
    runtime: Option<tokio::runtime::Runtime>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

impl Nfs {
    /// Only threads: clients are answered from `begin` on.
    pub fn new() -> std::io::Result<Nfs> {
        let runtime = tokio::runtime::Builder::new_multi_thread().thread_name("nfs").enable_all().build()?;
        let (_, ended) = watch::channel(true);
        Ok(Nfs { runtime: Some(runtime), stop: watch::channel(false).0, ended })
    }

    /// Answers clients, who may have connected to `listener` before.
    pub fn begin(&mut self, listener: std::net::TcpListener, shares: Shares) -> std::io::Result<()> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        let _in_it = runtime.enter();
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut stopped = self.stop.subscribe();
        let (end, ended) = watch::channel(false);
        self.ended = ended;
        runtime.spawn(async move {
            let shutdown = async {
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            zilla_nfs::serve(listener, Arc::new(shares), shutdown).await;
            end.send_replace(true);
        });
        Ok(())
    }

    /// Takes no more calls, and waits for those under way.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

impl Drop for Nfs {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
