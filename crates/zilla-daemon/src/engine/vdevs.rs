//! `zpool add`, `attach`, `replace`, `detach`, `remove`, `offline`, `online`, `clear` and `reopen`.

use super::Engine;
use super::create::pool_spec;
use super::errors::{Answer, of_pool, of_vdev};
use super::info::vdev_state;
use super::pool::Pool;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla_control::types::{
    LeafSpec, PoolAdd, PoolClear, PoolFreeze, PoolReopen, TopKind, TopSpec, VdevAttach, VdevDetach,
    VdevOffline, VdevOnline, VdevOnlineReply, VdevRemove, VdevSpec,
};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::spa::Attach;
use zilla_core::vdev;

/// A spare that is named once and never steps in is worse than none.
pub(super) fn no_spares(vdevs: &VdevSpec) -> Answer<()> {
    match vdevs.spares.is_empty() {
        true => Ok(()),
        false => Err(ApiError::with(ErrorCode::Unsupported, "hot spares are not supported by zilla yet")),
    }
}

impl Engine {
    pub(super) fn changeable(&self, name: &str) -> Answer<Arc<Pool>> {
        let pool = self.pool(name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        pool.check_running()?;
        Ok(pool)
    }

    pub(super) async fn add_vdevs(&self, r: PoolAdd) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        no_spares(&r.vdevs)?;
        let _held = self.check_devices(&r.vdevs, r.force).await?;
        let ashift = r.ashift.and_then(|a| u32::try_from(a).ok()).filter(|a| *a != 0);
        let spec = pool_spec(&r.vdevs, ashift);
        if !spec.cache.is_empty() {
            pool.spa.add_cache(&spec.cache).await.map_err(of_vdev)?;
        }
        if !spec.tops.is_empty() {
            pool.spa.add_vdevs(&spec).await.map_err(of_vdev)?;
        }
        self.save_cache().await;
        Ok(())
    }

    pub(super) async fn attach_vdev(&self, r: VdevAttach) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        let leaf = LeafSpec { path: r.path.clone() };
        let top = TopSpec { kind: TopKind::Single, class: Default::default(), leaves: vec![leaf] };
        let _held = self.check_devices(&VdevSpec { tops: vec![top], ..VdevSpec::default() }, r.force).await?;
        self.check_spare(&pool, &r).await?;
        let path = PathBuf::from(&r.path);
        let disk = super::create::is_disk(&path);
        let ashift = r.ashift.and_then(|a| u32::try_from(a).ok());
        let how = Attach { replace: r.replace, ashift };
        pool.spa.attach(r.guid, &vdev::LeafSpec { path, disk }, how).await.map_err(of_vdev)?;
        self.save_cache().await;
        Ok(())
    }

    /// A spare that some pool has is not a log's to take.
    async fn check_spare(&self, pool: &Pool, r: &VdevAttach) -> Answer<()> {
        let Ok(Some((_, label))) = vdev::probe_path(&self.env, Path::new(&r.path)).await else {
            return Ok(());
        };
        let spare = self.spare_of(label.guid()).is_some();
        let log = pool.spa.tree().top_of(r.guid).is_some_and(|t| t.vdev.is_log);
        match (spare, log && r.replace) {
            (true, true) => Err(ApiError::with(ErrorCode::BadTarget, "cannot replace a log with a spare")),
            (true, false) => Err(ErrorCode::IsSpare.into()),
            (false, _) => Ok(()),
        }
    }

    pub(super) async fn detach_vdev(&self, r: VdevDetach) -> Answer<()> {
        let _changes = self.changes.lock().await;
        self.changeable(&r.name)?.spa.detach(r.guid).await.map_err(of_vdev)?;
        self.save_cache().await;
        Ok(())
    }

    pub(super) async fn remove_vdev(&self, r: VdevRemove) -> Answer<()> {
        let _changes = self.changes.lock().await;
        self.changeable(&r.name)?.spa.remove_vdev(r.guid).await.map_err(of_vdev)?;
        self.save_cache().await;
        Ok(())
    }

    pub(super) async fn offline_vdev(&self, r: VdevOffline) -> Answer<()> {
        let pool = self.changeable(&r.name)?;
        pool.spa.offline(r.guid, r.temporary, r.fault).await.map_err(of_vdev)
    }

    pub(super) async fn online_vdev(&self, r: VdevOnline) -> Answer<VdevOnlineReply> {
        let pool = self.changeable(&r.name)?;
        let (state, _) = pool.spa.online(r.guid, r.expand).await.map_err(of_vdev)?;
        Ok(VdevOnlineReply { state: vdev_state(state) })
    }

    pub(super) async fn clear_pool(&self, r: PoolClear) -> Answer<()> {
        self.pool(&r.name)?.spa.clear(r.guid).await.map_err(of_vdev)
    }

    pub(super) async fn reopen_pool(&self, r: PoolReopen) -> Answer<()> {
        self.pool(&r.name)?.spa.reopen().await.map_err(of_vdev)
    }

    pub(super) async fn freeze_pool(&self, r: PoolFreeze) -> Answer<()> {
        self.changeable(&r.name)?.spa.freeze().await.map_err(of_pool)
    }
}
