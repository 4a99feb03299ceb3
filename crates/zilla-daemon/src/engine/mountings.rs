//! `zfs mount` and `zfs unmount`: what is meant, and in which order.
//!
//! What is below another is mounted after it and unmounted before it, whichever pool's it is: their
//! paths say so, and nothing else.

use super::errors::{Answer, of};
use super::mounts::How;
use super::pool::Pool;
use super::{Engine, Serves};
use std::path::Path;
use std::sync::Arc;
use zilla_control::types::{DatasetMount, DatasetUnmount, KeyUnload, ManyReply, MountEntry, MountList};
use zilla_control::{ApiError, Caller, ErrorCode};

impl Serves<DatasetMount> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetMount) -> Answer<ManyReply> {
        let how = How { options: r.options, overlay: r.overlay, force: r.force, at: r.at, ..How::default() };
        let mut errors = Vec::new();
        match r.name {
            Some(name) => {
                let pool = self.pool_of(&name)?;
                // With all below it, it may be mounted already.
                if !r.recursive || pool.mounted_at(&name).is_none() {
                    pool.mount(self, &name, &How { explicit: true, ..how.clone() }).await?;
                }
                if r.recursive {
                    errors = pool.mount_below(self, &name, &how).await;
                }
            }
            None => errors = self.mount_all(r.pool.as_deref(), &how).await,
        }
        Ok(ManyReply { errors })
    }
}

impl Engine {
    /// Mounts whatever of all pools wants to be, or of one.
    async fn mount_all(&self, only: Option<&str>, how: &How) -> Vec<ApiError> {
        let (mut all, mut errors) = (Vec::new(), Vec::new());
        for pool in self.all_pools().into_iter().filter(|p| only.is_none_or(|only| only == p.name())) {
            // What waits for the disks of one pool would keep the others waiting.
            if let Err(e) = pool.check_running() {
                errors.push(e);
                continue;
            }
            match pool.places_below(&pool.name()).await {
                Ok(places) => all.extend(places.into_iter().map(|(path, name)| (path, name, pool.clone()))),
                Err(e) => errors.push(e),
            }
        }
        all.sort_by(|(a, m, _), (b, n, _)| (a, m).cmp(&(b, n)));
        for (_, name, pool) in all {
            if self.handle.is_stopped() {
                break;
            }
            errors.extend(pool.mount(self, &name, how).await.err());
        }
        errors
    }
}

impl Serves<DatasetUnmount> for Engine {
    async fn serve(&self, _: &Caller, r: DatasetUnmount) -> Answer<ManyReply> {
        let Some(target) = r.target.clone() else {
            let mut all = Vec::new();
            for pool in self.all_pools() {
                let found = pool.mounted_paths().into_iter().filter(|(_, name)| !name.contains('@'));
                all.extend(found.map(|(path, name)| (path, name, pool.clone())));
            }
            all.sort_by(|(a, m, _), (b, n, _)| (b, n).cmp(&(a, m)));
            let mut errors = Vec::new();
            for (_, name, pool) in all {
                errors.extend(self.unmount_asked(&pool, &name, &r).await.err());
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
        pool.zilla.by_name(&name).await.map_err(of(&name))?;
        if pool.mounted_at(&name).is_none() {
            return Err(ApiError::with(ErrorCode::UmountFailed, "not currently mounted").subject(name));
        }
        // What is mounted below it goes first.
        let names = if name.contains('@') { vec![name] } else { pool.mounted_below(&name) };
        let mut errors = Vec::new();
        for name in names {
            errors.extend(self.unmount_asked(&pool, &name, &r).await.err());
        }
        Ok(ManyReply { errors })
    }
}

impl Engine {
    /// Unmounts one, and with `-u` unloads its key if it has one of its own. If that is refused the
    /// file system is mounted again.
    async fn unmount_asked(&self, pool: &Arc<Pool>, name: &str, r: &DatasetUnmount) -> Answer<()> {
        if !r.force {
            // What is to be written first would never be.
            pool.check_running()?;
        }
        let earlier = pool.earlier(name);
        pool.unmount_one(name, r.force).await?;
        if !r.unload_keys || !pool.has_own_loaded_key(name).await {
            return Ok(());
        }
        let Err(e) = self.unload_key(KeyUnload { name: name.to_owned() }).await else { return Ok(()) };
        // What stops that is in the log.
        pool.mount_back(self, &[(name.to_owned(), earlier)]).await;
        Err(e)
    }

    pub(super) fn mounted(&self) -> Vec<MountEntry> {
        let mut all = Vec::new();
        for pool in self.all_pools() {
            let names: Vec<String> = pool.mounts().iter().map(|(name, _)| name).cloned().collect();
            for dataset in names {
                if let Some(path) = pool.mounted_at(&dataset) {
                    all.push(MountEntry { dataset, mountpoint: path.to_string_lossy().into_owned() });
                }
            }
        }
        all
    }
}

impl Serves<MountList> for Engine {
    /// What is mounted, but for snapshots, which OpenZFS's `zfs mount` does not list.
    async fn serve(&self, _: &Caller, _: MountList) -> Answer<Vec<MountEntry>> {
        Ok(self.mounted().into_iter().filter(|m| !m.dataset.contains('@')).collect())
    }
}
