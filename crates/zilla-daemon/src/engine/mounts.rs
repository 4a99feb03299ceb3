//! Mounting and unmounting file systems.
//!
//! A mounted dataset is held, so that nobody destroys it. What is mounted is what the kernel says:
//! a mount that someone took away behind our back counts as unmounted and is cleaned up when next
//! looked at.
//!
//! Properties that are set count at once for what is mounted: the engine heeds them, and the kernel
//! is told by changing the mount. Only root may do that; for others a mount is made anew where it
//! matters, and who is told that it could not be knows.

use super::Engine;
use super::attach::attach;
use super::errors::{Answer, of, of_dataset};
use super::mountopts::{Temporary, Words, differ, matters_unprivileged};
use super::mounttable::{InHand, Named, watch};
use super::place::Place;
use super::pool::Pool;
use super::shares::Shared;
use super::taken::{Unused, take_back};
use super::usershares::Usershare;
use super::values::{Mountpoint, Settings, ZONED};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla::Filesystem;
use zilla::FsProps;
use zilla::error::{Error, Result};
use zilla::tree::{DatasetDir, DatasetRef};
use zilla_control::props::naming;
use zilla_control::types::Source;
use zilla_control::{ApiError, ErrorCode};
use zilla_env::strerror;
use zilla_fuse::{Mount, Options};

/// One mounted file system.
pub struct Mounted {
    of: DatasetRef,
    pub fs: Arc<Filesystem>,
    pub mount: Arc<Mount>,
    pub temporary: Temporary,
    /// Where somebody wanted it, whatever its property says.
    pub(super) at: Option<String>,
    /// Something was left out of it when it was mounted, and whoever did that knew.
    pub(super) redacted: bool,
    /// What the kernel was told.
    told: Options,
    /// Its row in the table of shares, if it is shared over NFS.
    pub(super) share: Option<Shared>,
    /// The same over SMB.
    pub(super) usershare: Option<Usershare>,
    /// Somebody is about to unmount it, and takes away what is left of it.
    pub(super) in_hand: bool,
}

impl Named for Mounted {
    fn number(&self) -> u64 {
        self.of.id()
    }
    fn name(&self) -> String {
        self.of.name()
    }
}

/// How long the last threads of an unmounted file system are waited for; access times that wait may
/// have to be written.
const GOING: Duration = Duration::from_secs(10);
/// And so long for the last threads of a file system that was unmounted by force.
pub(super) const LINGERING: Duration = Duration::from_secs(5);

/// Whoever has a copy of a mount may keep it for ever.
pub(super) const ELSEWHERE: &str = "pool or dataset is busy: it is mounted at another place, or another \
                                    mount namespace has it mounted, too";

/// Why something was not unmounted.
pub(super) enum Stays {
    /// Its files are in use.
    Busy(ApiError),
    /// Force would not help, or would take it from somebody for good.
    Other(ApiError),
}

impl Stays {
    pub(super) fn why(self) -> ApiError {
        match self {
            Stays::Busy(why) | Stays::Other(why) => why,
        }
    }
}

impl Mounted {
    pub fn path(&self) -> &Path {
        self.mount.mountpoint()
    }
}

/// How to mount beyond what properties say.
#[derive(Debug, Clone, Default)]
pub struct How {
    /// `-o`
    pub options: Vec<String>,
    /// What an earlier mount was asked for, which this one takes the place of.
    pub temporary: Temporary,
    /// `-O`
    pub overlay: bool,
    /// `-f`: what cannot be replayed of its intent log may go.
    pub force: bool,
    /// Asked for by name: what is not to be mounted by itself is, and what cannot be is an error.
    pub explicit: bool,
    /// Where, whatever the property says.
    pub at: Option<String>,
    /// It was mounted before, redacted as it is now.
    pub again: bool,
}

/// Whether it is a dataset itself, a snapshot of it, or below it.
fn is_at_or_below(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

fn failed(message: impl Into<String>) -> ApiError {
    ApiError::with(ErrorCode::MountFailed, message)
}

impl Pool {
    /// Where a dataset is mounted.
    pub fn mounted_at(&self, name: &str) -> Option<PathBuf> {
        let mut mounts = self.mounts();
        let number = mounts.get(name)?.number();
        if mounts.let_go_if_gone(number) {
            return None;
        }
        let mounted = mounts.get(name)?;
        (!mounted.mount.is_going()).then(|| mounted.path().to_owned())
    }

    /// Waits for what someone has just unmounted: the kernel is done with it before its threads
    /// are. Called with `mounting` held.
    pub(super) async fn settle(&self, name: &str) -> Answer<()> {
        let going = |m: &&Mounted| m.mount.is_going();
        let going =
            self.mounts().get(name).filter(going).map(|m| (m.number(), m.mount.clone(), m.fs.clone()));
        let Some((number, mount, fs)) = going else { return Ok(()) };
        let hand = InHand::take(self, number, &mount);
        if tokio::time::timeout(GOING, mount.gone()).await.is_err() {
            return Err(failed("it is still being unmounted; try again").subject(name));
        }
        take_back(name, &fs).await;
        hand.forget();
        Ok(())
    }

    /// Refuses what would take a snapshot from whoever has mounted it as a file system.
    pub(super) async fn check_not_mounted(&self, snapshot: &str) -> Answer<()> {
        if !self.mounts().contains(snapshot) {
            return Ok(());
        }
        let _one = self.mounting.lock().await;
        // It may be that somebody has just unmounted it.
        self.settle(snapshot).await?;
        match self.mounted_at(snapshot) {
            Some(_) => Err(ApiError::with(ErrorCode::Busy, "dataset is busy").subject(snapshot)),
            None => Ok(()),
        }
    }

    fn place_of(&self, path: &str, how: &How) -> Place {
        let root = self.altroot.as_ref().filter(|root| *root != "/" && how.at.is_none()).map(PathBuf::from);
        Place { root, path: PathBuf::from(path) }
    }

    pub async fn mount_one(
        &self,
        engine: &Engine,
        name: &str,
        options: &[String],
        explicit: bool,
    ) -> Answer<()> {
        self.mount(engine, name, &How { options: options.to_vec(), explicit, ..How::default() }).await
    }

    pub async fn mount(&self, engine: &Engine, name: &str, how: &How) -> Answer<()> {
        let words = Words::parse(&how.options).map_err(|e| failed(e).subject(name))?;
        let _one = self.mounting.lock().await;
        if self.leaves.load(Ordering::Acquire) {
            return Err(failed("its pool is being exported").subject(name));
        }
        let ds = self.zilla.by_name(name).await.map_err(of(name))?;
        // Half a file system: what a receive has come to so far.
        if ds.is_inconsistent() {
            if how.explicit {
                return Err(failed("dataset contains partially-complete state of a receive").subject(name));
            }
            return Ok(());
        }
        // What was left out of it would read as zeroes: whoever wants that says so each time.
        let redacted = ds.redact_snaps().is_some();
        if redacted && !how.force && !how.again {
            if how.explicit {
                let what = "Dataset is not complete, was created by receiving a redacted zfs send stream.";
                return Err(failed(what).subject(name));
            }
            return Ok(());
        }
        let locked = ds.is_locked().await.map_err(of(name))?;
        // A snapshot has no place of its own.
        let placeless = ds.is_snapshot() && how.at.is_none() && !words.remount;
        if placeless || !ds.is_filesystem().await.map_err(of(name))? {
            if how.explicit {
                return Err(ApiError::new(ErrorCode::BadType).subject(name));
            }
            return Ok(());
        }
        let settings = Settings::of(&ds).await.map_err(of(name))?;
        if words.remount {
            return self.remount(name, &ds, &settings, words.temporary).await;
        }
        if settings.is_zoned() {
            return if how.explicit { Err(failed(ZONED).subject(name)) } else { Ok(()) };
        }
        let path = match settings.place(self) {
            _ if how.at.is_some() => how.at.clone().unwrap_or_default(),
            Mountpoint::At(path) => path,
            _ if !how.explicit => return Ok(()),
            Mountpoint::Legacy => {
                let how = "use mount(8) to mount this filesystem".to_owned();
                return Err(failed("legacy mountpoint").details(vec![how]).subject(name));
            }
            Mountpoint::None => return Err(failed("no mountpoint set").subject(name)),
        };
        match settings.num("canmount") {
            _ if how.at.is_some() => {}
            0 if how.explicit => return Err(failed("'canmount' property is set to 'off'").subject(name)),
            0 => return Ok(()),
            2 if !how.explicit => return Ok(()),
            _ => {}
        }
        if locked {
            // What only wants to be mounted waits for its key in silence.
            return if how.explicit {
                Err(failed("encryption key not loaded").subject(name))
            } else {
                Ok(())
            };
        }
        self.settle(name).await?;
        if self.mounted_at(name).is_some() {
            if how.explicit {
                return Err(failed("filesystem already mounted").subject(name));
            }
            return Ok(());
        }
        if ds.is_inconsistent() {
            return Err(failed("dataset is inconsistent: a receive into it has not ended").subject(name));
        }
        // It may come from a pool that somebody else made.
        if let Mountpoint::At(below) = settings.mountpoint().0 {
            naming::check_mountpoint(&below).map_err(|e| failed(e.description()).subject(name))?;
        }
        let readonly = self.readonly() || ds.is_snapshot();
        let temporary = how.temporary.with(words.temporary);
        let mut told = temporary.options(&settings, name, readonly);
        if !told.readonly && ds.dir().has_old_key().await.map_err(of(name))? {
            let what =
                "its key is of an old version, and it can only be mounted read-only: 'zfs mount -o ro'";
            return Err(failed(what).subject(name));
        }
        if how.force && !readonly {
            ds.give_up_log().await.map_err(of(name))?;
        }
        let fs = ds.open_filesystem(told.readonly).await.map_err(of(name))?;
        // Should it not come to be mounted, the next try must find it free.
        let mut unused = Unused(Some(fs.clone()));
        let kept_log = fs.zfs().kept_log().map(str::to_owned);
        told.readonly |= kept_log.is_some();
        let props = ds.fs_props(readonly).await.map_err(of(name))?;
        fs.zfs().set_props(temporary.heeded(&settings, props, readonly));
        match ds.is_snapshot() {
            true => fs.set_snapdir(zilla::Snapdir::Disabled),
            false => fs.set_snapshot_manager(rustix::process::geteuid().as_raw()),
        }
        let overlay = how.overlay || settings.num("overlay") != 0;
        let place = self.place_of(&path, how);
        let attached = attach(fs.clone(), engine.env.clone(), place, told.clone(), overlay).await;
        let mount = attached.map_err(|why| failed(why).subject(name))?;
        let (mount, at) = (Arc::new(mount), how.at.clone());
        let (share, usershare) = (None, None);
        let gone = watch(self.watched_mounts(), ds.id(), mount.clone());
        let (of, in_hand) = (ds.clone(), false);
        let mounted = Mounted { of, fs, mount, temporary, at, redacted, told, share, usershare, in_hand };
        self.mounts().insert(mounted);
        tokio::spawn(gone);
        unused.0 = None;
        let shared = self.share_mounted(engine, name, &ds).await;
        match kept_log {
            Some(why) => {
                let what = format!("its intent log cannot be replayed, so it is mounted read-only: {why}");
                Err(failed(what).subject(name))
            }
            None => shared,
        }
    }

    /// `zfs mount -o remount,...`
    async fn remount(
        &self,
        name: &str,
        ds: &DatasetRef,
        settings: &Settings,
        newer: Temporary,
    ) -> Answer<()> {
        if self.mounted_at(name).is_none() {
            return Err(failed("it is not mounted, so it cannot be remounted").subject(name));
        }
        let old = self.mounts().get(name).map(|m| m.temporary).unwrap_or_default();
        self.heed(name, ds, settings, old.with(newer)).await
    }

    /// Makes what is mounted heed its properties and options, now.
    async fn heed(
        &self,
        name: &str,
        ds: &DatasetRef,
        settings: &Settings,
        temporary: Temporary,
    ) -> Answer<()> {
        let found = self.mounts().numbered(ds.id()).map(|m| {
            m.temporary = temporary;
            (m.fs.clone(), m.mount.clone(), m.told.clone())
        });
        let Some((fs, mount, told)) = found else { return Ok(()) };
        let readonly = self.readonly() || ds.is_snapshot();
        let props = ds.fs_props(readonly).await.map_err(of(name))?;
        // Whether it shall ask for ACLs the kernel is told once, when the file system is mounted;
        // until then both keep to it.
        let (told_acls, wanted_acls) = (fs.zfs().props().posix_acl, props.posix_acl);
        let props = FsProps { posix_acl: told_acls, ..props };
        fs.zfs().set_props(temporary.heeded(settings, props, readonly));
        if !ds.is_snapshot() {
            fs.set_snapdir(zilla::Snapdir::of(settings.num("snapdir")));
        }
        // The kernel keeps what it has read of the root, with `.zfs` or without.
        let (notifier, root) = (mount.notifier(), fs.root());
        match tokio::task::spawn_blocking(move || notifier.inode(root)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!("'{name}': telling the kernel to forget the root: {e}"),
            Err(e) => tracing::error!("'{name}': telling the kernel to forget the root: {e}"),
        }
        let mut wanted = temporary.options(settings, name, readonly);
        wanted.readonly |= fs.zfs().kept_log().is_some();
        let changed = match differ(&told, &wanted) {
            false => Ok(()),
            true => {
                let options = wanted.clone();
                tokio::task::spawn_blocking(move || mount.change(&options))
                    .await
                    .unwrap_or_else(|e| Err(io::Error::other(e)))
            }
        };
        match changed {
            Err(e) if e.kind() != io::ErrorKind::PermissionDenied || matters_unprivileged(&told, &wanted) => {
                let why = format!("what is mounted cannot be changed ({}): mount it again", strerror(&e));
                return Err(failed(why).subject(name));
            }
            _ => {}
        }
        if let Some(m) = self.mounts().get_mut(name) {
            m.told = wanted;
        }
        if told_acls != wanted_acls {
            return Err(failed("the kernel heeds ACLs only from the next mount on").subject(name));
        }
        Ok(())
    }

    /// Mounts whatever wants to be, those above first.
    pub async fn mount_all(&self, engine: &Engine, options: &[String]) -> Vec<ApiError> {
        self.mount_below(engine, &self.name(), &How { options: options.to_vec(), ..How::default() }).await
    }

    /// Where what is at and below a dataset wants to be.
    pub(super) async fn places_below(&self, name: &str) -> Answer<Vec<(PathBuf, String)>> {
        let found = async {
            let mut all = Vec::new();
            let mut dirs = vec![self.zilla.dir_by_name(name).await?];
            while let Some(dir) = dirs.pop() {
                if dir.has_head() {
                    let ds = dir.head().await?;
                    if let Mountpoint::At(path) = Settings::of(&ds).await?.place(self) {
                        all.push((PathBuf::from(path), ds.name()));
                    }
                }
                dirs.extend(dir.children().await?);
            }
            Ok::<_, Error>(all)
        };
        found.await.map_err(|e| of_dataset(e).subject(name))
    }

    /// Mounts whatever of a dataset and what is below it wants to be.
    pub async fn mount_below(&self, engine: &Engine, name: &str, how: &How) -> Vec<ApiError> {
        let mut all = match self.places_below(name).await {
            Ok(all) => all,
            Err(e) => return vec![e],
        };
        all.sort();
        let mut errors = Vec::new();
        for (_, name) in all {
            if engine.handle.is_stopped() {
                break;
            }
            if let Err(e) = self.mount(engine, &name, how).await {
                errors.push(e);
            }
        }
        errors
    }

    /// Unmounts one; nothing if it is not mounted.
    pub async fn unmount_one(&self, name: &str, force: bool) -> Answer<()> {
        self.unmount_within(name, force, LINGERING).await
    }

    /// The same; `lingering`: so long is waited for who still uses what was taken away by force,
    /// and as long for what the mount had begun.
    pub(super) async fn unmount_within(&self, name: &str, force: bool, lingering: Duration) -> Answer<()> {
        self.try_unmount(name, force, lingering).await.map_err(Stays::why)
    }

    /// The same, and what kind of reason keeps it mounted.
    pub(super) async fn try_unmount(
        &self,
        name: &str,
        force: bool,
        lingering: Duration,
    ) -> std::result::Result<(), Stays> {
        let _one = self.mounting.lock().await;
        let found = self.mounts().get_mut(name).map(|m| {
            let shares = (m.share.take(), m.usershare.take());
            (m.of.clone(), m.mount.clone(), m.fs.clone(), shares)
        });
        let Some((ds, mount, fs, (share, usershare))) = found else { return Ok(()) };
        let hand = InHand::take(self, ds.id(), &mount);
        // Clients of NFS use the file system no more, or it would not be free.
        share.iter().for_each(Shared::hide);
        let usershare = match usershare {
            Some(usershare) => Some(usershare.close().await),
            None => None,
        };
        let path = mount.mountpoint().to_string_lossy().into_owned();
        if force {
            let mount = mount.clone();
            let written = tokio::task::spawn_blocking(move || mount.write_back());
            if !matches!(tokio::time::timeout(lingering, written).await, Ok(Ok(Ok(())))) {
                tracing::warn!("'{name}': what was changed in mapped files may be lost");
            }
        }
        let detached = {
            let mount = mount.clone();
            tokio::task::spawn_blocking(move || mount.unmount(force))
                .await
                .unwrap_or_else(|e| Err(io::Error::other(e)))
        };
        if let Err(e) = detached {
            if let Some(share) = share {
                share.renew();
                hand.with(|m| m.share = Some(share));
            }
            if let Some(closed) = usershare {
                match closed.again().await {
                    Ok(share) => hand.with(|m| m.usershare = Some(share)),
                    Err(why) => tracing::warn!("'{name}' is not shared any more: {}", why.text()),
                }
            }
            let failed = |what: String| ApiError::with(ErrorCode::UmountFailed, what).subject(path);
            return Err(match e.kind() {
                io::ErrorKind::ResourceBusy => Stays::Busy(failed("pool or dataset is busy".to_owned())),
                _ => Stays::Other(failed(e.to_string())),
            });
        }
        if force {
            // Files still open keep a detached mount alive; it must not keep the pool.
            let _ = tokio::time::timeout(lingering, mount.gone()).await;
        } else {
            let gone = tokio::time::timeout(lingering, mount.gone()).await.is_ok();
            if !gone && mount.lives_elsewhere() {
                return Err(Stays::Other(ApiError::with(ErrorCode::UmountFailed, ELSEWHERE).subject(path)));
            }
            mount.gone().await;
        }
        take_back(name, &fs).await;
        hand.forget();
        drop((hand, mount, fs));
        // What the mount began in the background ends now; a destroy that follows must not find the
        // dataset busy.
        let _ = tokio::time::timeout(lingering, ds.unheld()).await;
        Ok(())
    }

    /// A mountpoint that was made for the dataset goes with it: one that nobody set, if it is
    /// empty.
    pub async fn remove_mountpoint(&self, name: &str) {
        let Ok(ds) = self.zilla.by_name(name).await else { return };
        let Ok(settings) = Settings::of(&ds).await else { return };
        if matches!(settings.mountpoint().1, Source::Default | Source::Inherited(_))
            && let Mountpoint::At(path) = settings.place(self)
        {
            let place = self.place_of(&path, &How::default());
            // One that is not empty stays, like one that is not there.
            let _ = zilla_env::apart(move || place.remove()).await;
        }
    }

    /// Names of what is mounted, of a dataset and below, deepest paths first. (A snapshot is
    /// mounted by itself.)
    pub fn mounted_below(&self, name: &str) -> Vec<String> {
        self.mounted_names(|n| is_at_or_below(n, name) && !n.contains('@'))
    }

    /// Names of all that is mounted, deepest paths first.
    pub fn all_mounted(&self) -> Vec<String> {
        self.mounted_names(|_| true)
    }

    fn mounted_names(&self, which: impl Fn(&str) -> bool) -> Vec<String> {
        let mut all = self.mounted_paths();
        all.retain(|(_, name)| which(name));
        all.sort();
        all.into_iter().rev().map(|(_, n)| n).collect()
    }

    /// What is mounted, and where.
    pub(super) fn mounted_paths(&self) -> Vec<(PathBuf, String)> {
        self.mounts().iter().map(|(name, m)| (m.path().to_owned(), name.clone())).collect()
    }

    /// After properties of `dir` changed: what is mounted there and below heeds them. Returns what
    /// does not before it is mounted anew.
    pub async fn refresh_mounts(&self, dir: &DatasetDir, changed: &[String]) -> Result<Vec<String>> {
        let mut left = Vec::new();
        for name in self.mounted_below(&dir.name()) {
            let Ok(ds) = self.zilla.by_name(&name).await else { continue };
            let settings = Settings::of(&ds).await?;
            let Some(mut temporary) = self.mounts().get(&name).map(|m| m.temporary) else { continue };
            let here = ds.dir().id() == dir.id();
            for property in changed.iter().filter(|p| here || !settings.is_own(p)) {
                temporary.forget(property);
            }
            if let Err(e) = self.heed(&name, &ds, &settings, temporary).await {
                tracing::debug!("'{name}': {}", e.description());
                left.push(name);
            }
        }
        Ok(left)
    }

    /// A snapshot goes: nobody may look into it through `.zfs` any more.
    pub fn forget_snapshot(&self, full: &str) {
        // One that somebody has unmounted himself is not in use any more.
        let _ = self.mounted_at(full);
        let Some((fs_name, snap)) = full.split_once('@') else { return };
        let Some((fs, mount)) = self.mounts().get(fs_name).map(|m| (m.fs.clone(), m.mount.clone())) else {
            return;
        };
        if fs.snapshot_gone(snap).is_some() {
            let _ = mount.notifier().entry(fs.snapdir_node(), snap.as_bytes());
        }
    }
}
