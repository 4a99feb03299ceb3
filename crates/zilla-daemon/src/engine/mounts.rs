//! Mounting and unmounting file systems.
//!
//! A mounted dataset is held, so that nobody destroys it. What is mounted is what the kernel says: a mount that someone took
//! away behind our back counts as unmounted and is cleaned up when next looked at.

use super::Engine;
use super::errors::{Answer, of, of_dataset};
use super::pool::Pool;
use super::values::{Mountpoint, Settings};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla::Filesystem;
use zilla_control::types::{DatasetMount, DatasetUnmount, ManyReply, MountEntry, Source};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::dsl::DslDir;
use zilla_core::error::{Error, Result};
use zilla_env::Env;
use zilla_fuse::{Mount, Options};
use zilla_ondisk::enums::ObjsetType;

/// One mounted file system.
pub struct Mounted {
    pub fs: Arc<Filesystem>,
    pub mount: Arc<Mount>,
    /// Mounted so, whatever the property says.
    pub readonly: bool,
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
    /// `-O`
    pub overlay: bool,
    /// Asked for by name: what is not to be mounted by itself is, and what cannot be is an error.
    pub explicit: bool,
}

fn failed(message: impl Into<String>) -> ApiError {
    ApiError::with(ErrorCode::MountFailed, message)
}

impl Pool {
    /// Where a dataset is mounted.
    pub fn mounted_at(&self, name: &str) -> Option<PathBuf> {
        let mut mounts = self.mounts.lock();
        let mounted = mounts.get(name)?;
        if mounted.mount.is_gone() {
            mounts.remove(name);
            return None;
        }
        Some(mounted.path().to_owned())
    }

    pub async fn mount_one(
        &self,
        engine: &Engine,
        name: &str,
        options: &[String],
        explicit: bool,
    ) -> Answer<()> {
        self.mount(engine, name, &How { options: options.to_vec(), overlay: false, explicit }).await
    }

    pub async fn mount(&self, engine: &Engine, name: &str, how: &How) -> Answer<()> {
        let _one = self.mounting.lock().await;
        let dsl = self.dsl();
        let ds = dsl.by_name(name).await.map_err(of(name))?;
        let objset = dsl.objset(&ds).await.map_err(of(name))?;
        if ds.is_snapshot() || objset.os_type() != ObjsetType::Zfs.number() {
            if how.explicit {
                return Err(ApiError::new(ErrorCode::BadType).subject(name));
            }
            return Ok(());
        }
        let settings = Settings::of(self, &ds).await.map_err(of(name))?;
        let path = match settings.place(self) {
            Mountpoint::At(path) => path,
            _ if !how.explicit => return Ok(()),
            Mountpoint::Legacy => return Err(failed("legacy mountpoint").subject(name)),
            Mountpoint::None => return Err(failed("no mountpoint set").subject(name)),
        };
        match settings.num("canmount") {
            0 if how.explicit => return Err(failed("'canmount' property is set to 'off'").subject(name)),
            0 => return Ok(()),
            2 if !how.explicit => return Ok(()),
            _ => {}
        }
        if self.mounted_at(name).is_some() {
            if how.explicit {
                return Err(failed("filesystem already mounted").subject(name));
            }
            return Ok(());
        }
        if ds.is_inconsistent() {
            return Err(failed("dataset is inconsistent: a receive into it has not ended").subject(name));
        }
        let mut readonly = self.readonly();
        let mut mount = Options {
            setuid: settings.num("setuid") != 0,
            devices: settings.num("devices") != 0,
            exec: settings.num("exec") != 0,
            atime: settings.num("atime") != 0,
            ..Options::new(name)
        };
        for option in how.options.iter().flat_map(|o| o.split(',')) {
            match option {
                "ro" => readonly = true,
                "rw" => {}
                "setuid" | "suid" => mount.setuid = true,
                "nosetuid" | "nosuid" => mount.setuid = false,
                "devices" | "dev" => mount.devices = true,
                "nodevices" | "nodev" => mount.devices = false,
                "exec" => mount.exec = true,
                "noexec" => mount.exec = false,
                "atime" | "relatime" => mount.atime = true,
                "noatime" => mount.atime = false,
                "defaults" | "" => {}
                other => return Err(failed(format!("invalid mount option '{other}'")).subject(name)),
            }
        }
        mount.readonly = readonly || settings.num("readonly") != 0;
        let fs = zilla::open_filesystem(&engine.env, dsl, name, readonly).await.map_err(of(name))?;
        let overlay = how.overlay || settings.num("overlay") != 0;
        let (fs_for, env) = (fs.clone(), engine.env.clone());
        // The directory may lie in a file system of this very process: wait for it where waiting is harmless.
        let attached =
            tokio::task::spawn_blocking(move || attach(fs_for, env, Path::new(&path), &mount, overlay))
                .await
                .map_err(|e| failed(e.to_string()))?;
        let mount = attached.map_err(|e| e.subject(name))?;
        let mounted = Mounted { fs, mount: Arc::new(mount), readonly };
        self.mounts.lock().insert(name.to_owned(), mounted);
        Ok(())
    }

    /// Mounts whatever wants to be, those above first.
    pub async fn mount_all(&self, engine: &Engine, options: &[String]) -> Vec<ApiError> {
        self.mount_below(engine, &self.name(), &How { options: options.to_vec(), ..How::default() }).await
    }

    /// The same for a dataset and what is below it.
    pub async fn mount_below(&self, engine: &Engine, name: &str, how: &How) -> Vec<ApiError> {
        let found = async {
            let mut all = Vec::new();
            let mut dirs = vec![self.dsl().dir_by_name(name).await?];
            while let Some(dir) = dirs.pop() {
                if dir.phys().head_dataset_obj != 0 {
                    let ds = self.dsl().head(&dir).await?;
                    if let Mountpoint::At(path) = Settings::of(self, &ds).await?.place(self) {
                        all.push((PathBuf::from(path), ds.name()));
                    }
                }
                dirs.extend(self.dsl().child_dirs(&dir).await?);
            }
            Ok::<_, Error>(all)
        };
        let mut all = match found.await {
            Ok(all) => all,
            Err(e) => return vec![of_dataset(e).subject(name)],
        };
        all.sort();
        let mut errors = Vec::new();
        for (_, name) in all {
            if let Err(e) = self.mount(engine, &name, how).await {
                errors.push(e);
            }
        }
        errors
    }

    /// Unmounts one; nothing if it is not mounted.
    pub async fn unmount_one(&self, name: &str, force: bool) -> Answer<()> {
        let _one = self.mounting.lock().await;
        let Some((mount, fs)) = self.mounts.lock().get(name).map(|m| (m.mount.clone(), m.fs.clone())) else {
            return Ok(());
        };
        let path = mount.mountpoint().to_string_lossy().into_owned();
        let detached = {
            let mount = mount.clone();
            tokio::task::spawn_blocking(move || mount.unmount(force))
                .await
                .unwrap_or_else(|e| Err(io::Error::other(e)))
        };
        if let Err(e) = detached {
            let what = match e.kind() {
                io::ErrorKind::ResourceBusy => "pool or dataset is busy".to_owned(),
                _ => e.to_string(),
            };
            return Err(ApiError::with(ErrorCode::UmountFailed, what).subject(path));
        }
        if force {
            // Files still open keep a detached mount alive; it must not keep the pool.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(5), mount.gone()).await;
        } else {
            mount.gone().await;
        }
        if !self.readonly()
            && let Err(e) = fs.zfs().sync().await
        {
            tracing::error!("'{name}': {e}");
        }
        self.mounts.lock().remove(name);
        drop((mount, fs));
        // What the mount began in the background ends now; a destroy that follows must not find the dataset busy.
        if let Ok(ds) = self.dsl().by_name(name).await {
            let _ = tokio::time::timeout(std::time::Duration::from_secs(5), ds.unheld()).await;
        }
        Ok(())
    }

    /// A mountpoint that was made for the dataset goes with it: one that nobody set, if it is empty.
    pub async fn remove_mountpoint(&self, name: &str) {
        let Ok(ds) = self.dsl().by_name(name).await else { return };
        let Ok(settings) = Settings::of(self, &ds).await else { return };
        if matches!(settings.mountpoint().1, Source::Default | Source::Inherited(_))
            && let Mountpoint::At(path) = settings.place(self)
        {
            let _ = std::fs::remove_dir(path);
        }
    }

    /// Names of what is mounted, of a dataset and below, deepest paths first.
    pub fn mounted_below(&self, name: &str) -> Vec<String> {
        let mounts = self.mounts.lock();
        let below = |n: &str| n == name || n.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
        let mut all: Vec<(PathBuf, String)> =
            mounts.iter().filter(|(n, _)| below(n)).map(|(n, m)| (m.path().to_owned(), n.clone())).collect();
        all.sort();
        all.into_iter().rev().map(|(_, n)| n).collect()
    }

    pub async fn unmount_all(&self, force: bool) -> Vec<ApiError> {
        let mut errors = Vec::new();
        for name in self.mounted_below(&self.name()) {
            if let Err(e) = self.unmount_one(&name, force).await {
                errors.push(e);
            }
        }
        errors
    }

    /// After properties changed: what is mounted below `dir` heeds them.
    pub async fn refresh_mounts(&self, dir: &Arc<DslDir>) -> Result<()> {
        for name in self.mounted_below(&dir.name()) {
            let Ok(ds) = self.dsl().by_name(&name).await else { continue };
            let settings = Settings::of(self, &ds).await?;
            let Some((fs, readonly)) = self.mounts.lock().get(&name).map(|m| (m.fs.clone(), m.readonly))
            else {
                continue;
            };
            fs.zfs().set_props(zilla::fs_props(self.dsl(), &ds, readonly).await?);
            fs.set_snapdir_visible(settings.num("snapdir") == 1);
        }
        Ok(())
    }

    /// A snapshot goes: nobody may look into it through `.zfs` any more.
    pub fn forget_snapshot(&self, full: &str) {
        let Some((fs_name, snap)) = full.split_once('@') else { return };
        let Some((fs, mount)) = self.mounts.lock().get(fs_name).map(|m| (m.fs.clone(), m.mount.clone()))
        else {
            return;
        };
        if fs.snapshot_gone(snap).is_some() {
            let _ = mount.notifier().entry(fs.snapdir_node(), snap.as_bytes());
        }
    }
}

/// Makes the mountpoint and mounts.
fn attach(
    fs: Arc<Filesystem>,
    env: Env,
    path: &Path,
    options: &Options,
    overlay: bool,
) -> std::result::Result<Mount, ApiError> {
    let stale = zilla_fuse::clear_stale(path);
    if let Err(e) = stale {
        tracing::warn!("'{}': {e}", path.display());
    }
    make_directory(path).map_err(|e| failed(format!("failed to create mountpoint: {}", reason(&e))))?;
    if !overlay {
        let mut entries = std::fs::read_dir(path).map_err(|e| failed(reason(&e)))?;
        if entries.next().is_some() {
            return Err(failed("directory is not empty"));
        }
    }
    zilla_fuse::mount(fs, env, path, options).map_err(|e| failed(reason(&e)))
}

/// The text of an error without its number.
fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// A mountpoint is for everyone to pass, whatever this process's umask.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(up) = path.parent() {
        make_directory(up)?;
    }
    match std::fs::create_dir(path) {
        Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(e),
    }
}

impl Engine {
    pub(super) async fn mount(&self, r: DatasetMount) -> Answer<ManyReply> {
        let how = How { options: r.options, overlay: r.overlay, explicit: false };
        let mut errors = Vec::new();
        match r.name {
            Some(name) => {
                let pool = self.pool_of(&name)?;
                pool.mount(self, &name, &How { explicit: true, ..how.clone() }).await?;
                if r.recursive {
                    errors = pool.mount_below(self, &name, &how).await;
                }
            }
            None => {
                for pool in self.all_pools() {
                    errors.extend(pool.mount_below(self, &pool.name(), &how).await);
                }
            }
        }
        Ok(ManyReply { errors })
    }

    pub(super) async fn unmount(&self, r: DatasetUnmount) -> Answer<ManyReply> {
        let Some(target) = r.target else {
            let mut errors = Vec::new();
            for pool in self.all_pools() {
                errors.extend(pool.unmount_all(r.force).await);
            }
            return Ok(ManyReply { errors });
        };
        let name = if target.starts_with('/') {
            let all = self.mounted();
            let found = all.into_iter().find(|m| Path::new(&m.mountpoint) == Path::new(&target));
            found.map(|m| m.dataset).ok_or_else(|| {
                ApiError::with(ErrorCode::UmountFailed, "not currently mounted").subject(target.as_str())
            })?
        } else {
            target
        };
        let pool = self.pool_of(&name)?;
        pool.dsl().by_name(&name).await.map_err(of(&name))?;
        if pool.mounted_at(&name).is_none() {
            return Err(ApiError::with(ErrorCode::UmountFailed, "not currently mounted").subject(name));
        }
        let mut errors = Vec::new();
        // What is mounted below it goes first.
        for name in pool.mounted_below(&name) {
            if let Err(e) = pool.unmount_one(&name, r.force).await {
                errors.push(e);
            }
        }
        Ok(ManyReply { errors })
    }

    pub(super) fn mounted(&self) -> Vec<MountEntry> {
        let mut all = Vec::new();
        for pool in self.all_pools() {
            let names: Vec<String> = pool.mounts.lock().keys().cloned().collect();
            for dataset in names {
                if let Some(path) = pool.mounted_at(&dataset) {
                    all.push(MountEntry { dataset, mountpoint: path.to_string_lossy().into_owned() });
                }
            }
        }
        all
    }
}
