//! File systems shared over NFS and SMB: `sharenfs`, `sharesmb`, `zfs share`, `zfs unshare`.
//!
//! NFS is served by the daemon itself, SMB by Samba ([`super::usershares`]). What is shared is a
//! mount: the file system that the kernel sees is the one that clients see, and the share goes when
//! it is unmounted. A mount is shared by itself where the property says so; `zfs unshare` takes
//! that back until it is shared or mounted anew.
//!
//! What it keeps true: the table of shares has only what is mounted ([`Shared`] takes its row out
//! when it is dropped). Clients are let in when the pools of the last run are there, since a file
//! handle that leads nowhere would be an error to their programs; and they are shut out before
//! pools are closed, so that what they ask then is asked of the next daemon.

use super::errors::{Answer, of};
use super::mounts::How;
use super::pool::Pool;
use super::usershares::Refusal;
use super::values::{Mountpoint, Settings, ZONED};
use super::{Engine, Serves};
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use zilla::tree::DatasetRef;
use zilla_control::types::{DatasetShare, DatasetUnshare, ManyReply, ShareProtocol};
use zilla_control::{ApiError, Caller, ErrorCode};
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

/// The kernel, which remembers files of a mount; and where that is.
struct Kernel(Notifier, PathBuf);

impl Remembers for Kernel {
    fn mounted_within(&self) -> Vec<PathBuf> {
        let all = zilla_fuse::mountinfo::mounted().unwrap_or_default();
        let within = all.iter().filter_map(|m| m.path.strip_prefix(&self.1).ok());
        within.filter(|way| !way.as_os_str().is_empty()).map(Path::to_owned).collect()
    }

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

/// Why a file system is not shared.
struct NotShared {
    error: ApiError,
    /// Nothing is shared by this protocol here.
    absent: bool,
}

impl From<ApiError> for NotShared {
    fn from(error: ApiError) -> NotShared {
        NotShared { error, absent: false }
    }
}

/// Where NFS is not served there is nothing to share by.
fn not_served() -> ApiError {
    failed(
        "NFS is not served: start the daemon with an address for it (zillad --nfs 127.0.0.1:2049, or ZILLA_NFS)",
    )
}

/// What a property says, if that is to share.
fn wanted(settings: &Settings, protocol: ShareProtocol) -> Option<&str> {
    settings.text(protocol.property()).filter(|text| *text != "off")
}

impl Pool {
    /// Shares a mount as its property says; takes a share back where it says `off`. Tells whether
    /// it is shared then.
    async fn reshare(
        &self,
        engine: &Engine,
        name: &str,
        ds: &DatasetRef,
        protocol: ShareProtocol,
    ) -> Result<bool, NotShared> {
        let settings = Settings::of(ds).await.map_err(of(name))?;
        // A snapshot that is mounted is nobody's to share.
        let Some(text) = wanted(&settings, protocol).filter(|_| !ds.is_snapshot()) else {
            self.unshare(name, protocol).await;
            return Ok(false);
        };
        match protocol {
            ShareProtocol::Nfs => self.reshare_nfs(engine, name, ds, text).await,
            ShareProtocol::Smb => self.reshare_smb(engine, name, ds, text).await,
        }
    }

    async fn reshare_nfs(
        &self,
        engine: &Engine,
        name: &str,
        ds: &DatasetRef,
        text: &str,
    ) -> Result<bool, NotShared> {
        // The old share lasts until the new one takes its place.
        let options =
            Options::parse(text).map_err(|e| failed(format!("sharenfs={text}: {e}")).subject(name))?;
        let Some(mut options) = options else { return Ok(false) };
        if engine.nfs.is_none() {
            return Err(NotShared { error: not_served().subject(name), absent: true });
        }
        for host in options.names() {
            let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host.as_str(), 0))).await;
            let addresses: Vec<_> = match found {
                Ok(Ok(found)) => found.map(|a| a.ip()).collect(),
                _ => {
                    let what = format!("sharenfs={text}: host '{host}' is not known");
                    return Err(failed(what).subject(name).into());
                }
            };
            options.resolve(&host, &addresses);
        }
        let mut mounts = self.mounts();
        // (By now the name may be another's.)
        let Some(mounted) = mounts.numbered(ds.id()) else { return Ok(false) };
        let export = Export {
            id: ExportId { pool: self.zilla.guid(), dataset: ds.guid() },
            path: mounted.path().to_string_lossy().into_owned(),
            fs: mounted.fs.clone(),
            options,
            verifier: self.load_guid,
            kernel: Some(Arc::new(Kernel(mounted.mount.notifier(), mounted.path().to_owned()))),
        };
        mounted.share = Some(engine.shares.add(export));
        Ok(true)
    }

    async fn reshare_smb(
        &self,
        engine: &Engine,
        name: &str,
        ds: &DatasetRef,
        text: &str,
    ) -> Result<bool, NotShared> {
        // It may come from a pool that another system made.
        if text != "on" {
            let what = format!("sharesmb={text}: it has no options here, only on and off");
            return Err(failed(what).subject(name).into());
        }
        let found = self.mounts().numbered(ds.id()).map(|m| (m.path().to_owned(), m.usershare.take()));
        let Some((path, old)) = found else { return Ok(false) };
        match engine.usershares.share(name, &path, old).await {
            Ok(share) => {
                let mut mounts = self.mounts();
                // Where it is mounted no more the share is dropped, and so taken back.
                Ok(mounts.numbered(ds.id()).map(|m| m.usershare = Some(share)).is_some())
            }
            Err(why) => Err(NotShared {
                absent: matches!(why, Refusal::Absent(_)),
                error: failed(why.text()).subject(name),
            }),
        }
    }

    /// What was just mounted is shared if it is to be. Where nothing is shared by a protocol at
    /// all, only whoever reads the log is told.
    pub(super) async fn share_mounted(&self, engine: &Engine, name: &str, ds: &DatasetRef) -> Answer<()> {
        let mut first = Ok(());
        for protocol in ShareProtocol::ALL {
            match self.reshare(engine, name, ds, protocol).await {
                Ok(_) => {}
                Err(NotShared { error, absent: true }) => {
                    tracing::warn!("'{name}' is not shared: {}", error.description());
                }
                Err(NotShared { error, .. }) => first = first.and(Err(error)),
            }
        }
        first
    }

    /// Why something that was made and mounted, with properties that ask for shares, has none.
    pub(super) async fn share_asked(
        &self,
        engine: &Engine,
        name: &str,
        words: &BTreeMap<String, String>,
    ) -> Option<ApiError> {
        let ds = self.zilla.by_name(name).await.ok()?;
        let _one = self.mounting.lock().await;
        self.mounted_at(name)?;
        for protocol in ShareProtocol::ALL {
            let asked = words.get(protocol.property()).is_some_and(|text| text != "off");
            if asked
                && !self.is_shared(name, protocol)
                && let Err(why) = self.reshare(engine, name, &ds, protocol).await
            {
                return Some(why.error);
            }
        }
        None
    }

    /// Whether there was a share.
    async fn unshare(&self, name: &str, protocol: ShareProtocol) -> bool {
        match protocol {
            ShareProtocol::Nfs => {
                let share = self.mounts().get_mut(name).and_then(|m| m.share.take());
                share.is_some()
            }
            ShareProtocol::Smb => {
                let share = self.mounts().get_mut(name).and_then(|m| m.usershare.take());
                match share {
                    Some(share) => {
                        share.close().await;
                        true
                    }
                    None => false,
                }
            }
        }
    }

    fn is_shared(&self, name: &str, protocol: ShareProtocol) -> bool {
        self.mounts().get(name).is_some_and(|m| match protocol {
            ShareProtocol::Nfs => m.share.is_some(),
            ShareProtocol::Smb => m.usershare.is_some(),
        })
    }

    /// After its property changed: what is mounted there, and below as far as it inherits, is
    /// shared as it now says. The first error.
    pub(super) async fn share_below(
        &self,
        engine: &Engine,
        name: &str,
        protocol: ShareProtocol,
    ) -> Option<ApiError> {
        let mut first = None;
        // One at a time, so that what was taken back meanwhile is not shared by older words.
        let _one = self.mounting.lock().await;
        for below in self.mounted_below(name) {
            let Ok(ds) = self.zilla.by_name(&below).await else { continue };
            let settings = Settings::of(&ds).await;
            if below != name && settings.is_ok_and(|s| s.is_own(protocol.property())) {
                continue;
            }
            if let Err(why) = self.reshare(engine, &below, &ds, protocol).await {
                first.get_or_insert(why.error);
            }
        }
        first
    }

    /// A tree got another name and stayed mounted: over SMB its shares are called by it.
    pub(super) async fn share_renamed(&self, engine: &Engine, name: &str) -> Option<ApiError> {
        let mut first = None;
        let _one = self.mounting.lock().await;
        for below in self.mounted_below(name) {
            if !self.is_shared(&below, ShareProtocol::Smb) {
                continue;
            }
            let Ok(ds) = self.zilla.by_name(&below).await else { continue };
            if let Err(why) = self.reshare(engine, &below, &ds, ShareProtocol::Smb).await {
                first.get_or_insert(why.error);
            }
        }
        first
    }
}

/// The protocols that a request means.
fn meant(protocol: Option<ShareProtocol>) -> impl Iterator<Item = ShareProtocol> {
    ShareProtocol::ALL.into_iter().filter(move |p| protocol.is_none_or(|only| only == *p))
}

impl Serves<DatasetShare> for Engine {
    /// `zfs share`. By name, what cannot be shared is an error; of all, what is not to be is passed
    /// over.
    async fn serve(&self, _: &Caller, r: DatasetShare) -> Answer<ManyReply> {
        if let Some(name) = r.name {
            let pool = self.pool_of(&name)?;
            self.share_one(&pool, &name, r.protocol).await?;
            return Ok(ManyReply::default());
        }
        let mut errors = Vec::new();
        for pool in self.all_pools() {
            for name in pool.mounted_below(&pool.name()) {
                let Ok(ds) = pool.zilla.by_name(&name).await else { continue };
                let _one = pool.mounting.lock().await;
                for protocol in meant(r.protocol) {
                    if !pool.is_shared(&name, protocol)
                        && let Err(why) = pool.reshare(self, &name, &ds, protocol).await
                    {
                        errors.push(why.error);
                    }
                }
            }
        }
        Ok(ManyReply { errors })
    }
}

impl Engine {
    async fn share_one(&self, pool: &Arc<Pool>, name: &str, only: Option<ShareProtocol>) -> Answer<()> {
        let ds = pool.zilla.by_name(name).await.map_err(of(name))?;
        let settings = Settings::of(&ds).await.map_err(of(name))?;
        let no = |what: &str| Err(failed(what).subject(name));
        let asked: Vec<ShareProtocol> = meant(only).filter(|p| wanted(&settings, *p).is_some()).collect();
        if asked.is_empty() {
            return no("legacy share");
        }
        if asked.iter().all(|p| pool.is_shared(name, *p)) {
            return no("filesystem already shared");
        }
        if settings.is_zoned() {
            return no(ZONED);
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
        let mut first = Ok(());
        for protocol in asked {
            if let Err(why) = pool.reshare(self, name, &ds, protocol).await {
                first = first.and(Err(why.error));
            }
        }
        first
    }

    /// `zfs unshare`
    pub(super) async fn unshare(&self, r: DatasetUnshare) -> Answer<ManyReply> {
        let Some(target) = r.target else {
            for pool in self.all_pools() {
                let _one = pool.mounting.lock().await;
                for name in pool.mounted_below(&pool.name()) {
                    for protocol in meant(r.protocol) {
                        pool.unshare(&name, protocol).await;
                    }
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
        pool.zilla.by_name(&name).await.map_err(of(&name))?;
        let _one = pool.mounting.lock().await;
        let mut any = false;
        for protocol in meant(r.protocol) {
            any |= pool.unshare(&name, protocol).await;
        }
        match any {
            true => Ok(ManyReply::default()),
            false => Err(failed("not currently shared").subject(name)),
        }
    }
}

impl Serves<DatasetUnshare> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetUnshare) -> Answer<ManyReply> {
        self.unshare(r).await
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
