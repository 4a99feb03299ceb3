//! `zpool add`, `attach`, `replace`, `detach`, `remove`, `offline`, `online`, `clear` and `reopen`.

use super::Engine;
use super::create::pool_spec;
use super::errors::{Answer, of_pool, of_vdev};
use super::events::notify;
use super::info::vdev_state;
use super::pool::Pool;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla_control::props::naming::is_draid_spare;
use zilla_control::types::{
    LeafSpec, PoolAdd, PoolClear, PoolFreeze, PoolReopen, TopKind, TopSpec, VdevAttach, VdevDetach,
    VdevOffline, VdevOnline, VdevOnlineReply, VdevRemove, VdevRemoveReply, VdevSpec,
};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::error::Error;
use zilla_core::spa::{Attach, Refusal, SpareSpec};
use zilla_core::vdev;

/// What was refused in part leaves nothing of it: the cache devices that came since the pool had
/// this tree leave again.
async fn take_out_new_cache(pool: &Pool, old: &vdev::VdevTree) {
    for new in &pool.spa.tree().cache {
        if old.cache.iter().any(|v| v.guid == new.guid) {
            continue;
        }
        if let Err(e) = pool.spa.remove_vdev(new.guid).await {
            tracing::warn!(pool = %pool.name(), "a cache device that came with refused vdevs stays: {e}");
        }
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
        let _held = self.check_devices(&r.vdevs, r.force).await?;
        let ashift = r.ashift.and_then(|a| u32::try_from(a).ok()).filter(|a| *a != 0);
        let ashift = match ashift {
            None => pool.ashift().await.map_err(of_pool)?,
            said => said,
        };
        let spec = pool_spec(&r.vdevs, ashift);
        let spares = self.spare_specs(&r.vdevs).await;
        let tree = pool.spa.tree();
        let own = |s: &&SpareSpec| tree.spares.iter().any(|v| Some(v.guid) == s.shared);
        if let Some(again) = spares.iter().find(own) {
            let path = again.leaf.path.display();
            let line = format!("{path} is reserved as a hot spare for pool {}", r.name);
            return Err(ApiError::new(ErrorCode::VdevInvalid).details(vec![line]));
        }
        if !spec.cache.is_empty() {
            pool.spa.add_cache(&spec.cache).await.map_err(of_vdev)?;
        }
        if !spec.tops.is_empty() {
            let added = match r.any_ashift {
                true => pool.spa.add_vdevs(&spec).await,
                false => pool.spa.add_like_vdevs(&spec).await,
            };
            if added.is_err() {
                take_out_new_cache(&pool, &tree).await;
            }
            added.map_err(of_vdev)?;
        }
        if !spares.is_empty() {
            pool.spa.add_spares(&spares).await.map_err(of_vdev)?;
        }
        self.save_cache().await;
        notify(&pool, "vdev_add");
        Ok(())
    }

    /// Devices that are to become hot spares; those that are other pools' already are shared.
    pub(super) async fn spare_specs(&self, vdevs: &VdevSpec) -> Vec<SpareSpec> {
        let mut specs = Vec::new();
        for leaf in super::create::leaf_specs(&vdevs.spares) {
            let label = vdev::probe_path(&self.env, &leaf.path).await.ok().flatten();
            let guid = label.and_then(|(_, label)| label.guid());
            let shared = guid.filter(|_| self.spare_of(guid).is_some());
            specs.push(SpareSpec { leaf, shared });
        }
        specs
    }

    pub(super) async fn attach_vdev(&self, r: VdevAttach) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        let spare = self.check_spare(&pool, &r).await?;
        let leaf = LeafSpec { path: r.path.clone() };
        let top = TopSpec { kind: TopKind::Single, class: Default::default(), leaves: vec![leaf] };
        // The pool's own spare is there to be used.
        let tops = if spare.is_some() { Vec::new() } else { vec![top] };
        let let_go = self.let_go_of_changed(&pool, &r).await;
        let attached = async {
            let _held = self.check_devices(&VdevSpec { tops, ..VdevSpec::default() }, r.force).await?;
            let path = PathBuf::from(&r.path);
            let disk = super::create::is_disk(&path);
            let ashift = r.ashift.and_then(|a| u32::try_from(a).ok());
            let how = Attach { replace: r.replace, ashift, spare, sequential: r.sequential };
            pool.spa.attach(r.guid, &vdev::LeafSpec { path, disk }, how).await.map_err(of_vdev)
        };
        let attached = attached.await;
        if attached.is_err() && let_go {
            // Why it was not replaced matters more.
            if let Err(e) = pool.spa.online(r.guid, false).await {
                tracing::warn!(pool = %r.name, "a device that was not replaced does not come back: {e}");
            }
        }
        attached?;
        self.save_cache().await;
        notify(&pool, if spare.is_some() { "vdev_spare" } else { "vdev_attach" });
        Ok(())
    }

    /// A device that is to be replaced by what is in its place now may still be open here, though
    /// another was put there, or all of it was overwritten. Then it is let go of, if the others have
    /// what it had; true if so.
    async fn let_go_of_changed(&self, pool: &Pool, r: &VdevAttach) -> bool {
        let leaf = pool.spa.tree().find(r.guid).and_then(|v| v.leaf.clone());
        let Some(leaf) = leaf.filter(|l| r.replace && l.readable()) else { return false };
        let (old, new) = (leaf.path(), Path::new(&r.path));
        let (old, new) =
            (self.env.opener.canonical(Path::new(&old)).await, self.env.opener.canonical(new).await);
        if !matches!((&old, &new), (Ok(old), Ok(new)) if old == new) {
            return false;
        }
        match vdev::probe_path(&self.env, Path::new(&r.path)).await {
            Ok(Some((_, label))) if label.guid() == Some(r.guid) => false,
            Ok(_) => pool.spa.offline(r.guid, true, false).await.is_ok(),
            Err(_) => false,
        }
    }

    /// The guid of the device if it is a hot spare of the pool that waits; a log cannot take one.
    async fn check_spare(&self, pool: &Pool, r: &VdevAttach) -> Answer<Option<u64>> {
        if is_draid_spare(&r.path) {
            return distributed_spare(pool, r).map(Some);
        }
        let Ok(Some((_, label))) = vdev::probe_path(&self.env, Path::new(&r.path)).await else {
            return Ok(None);
        };
        let tree = pool.spa.tree();
        let own = tree.spares.iter().any(|s| Some(s.guid) == label.guid());
        let Some(guid) = label.guid().filter(|guid| own && !tree.is_active_spare(*guid)) else {
            return Ok(None);
        };
        match (r.replace, tree.top_of(r.guid).is_some_and(|t| t.vdev.is_log)) {
            (true, true) => Err(ApiError::with(ErrorCode::BadTarget, "cannot replace a log with a spare")),
            (true, false) => Ok(Some(guid)),
            (false, _) => Err(ErrorCode::IsSpare.into()),
        }
    }

    pub(super) async fn detach_vdev(&self, r: VdevDetach) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        let permanent = pool.spa.detach(r.guid).await.map_err(of_vdev)?;
        notify(&pool, "vdev_remove");
        if let Some(guid) = permanent {
            for other in self.all_pools() {
                if let Err(e) = other.spa.forget_spare(guid).await {
                    tracing::warn!("pool '{}' keeps a spare that another pool has taken: {e}", other.name());
                }
            }
        }
        self.save_cache().await;
        Ok(())
    }

    pub(super) async fn remove_vdev(&self, r: VdevRemove) -> Answer<VdevRemoveReply> {
        if r.dry_run {
            let spa = &self.pool(&r.name)?.spa;
            return Ok(VdevRemoveReply { memory: spa.indirect_size(r.guid).await.map_err(of_vdev)? });
        }
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        if r.cancel {
            pool.spa.cancel_removal().await.map_err(of_vdev)?;
            self.save_cache().await;
            return Ok(VdevRemoveReply::default());
        }
        let (aux, data) = {
            let tree = pool.spa.tree();
            let aux = tree.spares.iter().chain(&tree.cache).any(|v| v.guid == r.guid);
            (aux, tree.tops.iter().any(|t| t.vdev.guid == r.guid && !t.vdev.is_log))
        };
        pool.spa.remove_vdev(r.guid).await.map_err(of_vdev)?;
        // That a vdev with data has gone is told when it has.
        if !data {
            notify(&pool, if aux { "vdev_remove_aux" } else { "vdev_remove_dev" });
        }
        self.save_cache().await;
        Ok(VdevRemoveReply::default())
    }

    pub(super) async fn offline_vdev(&self, r: VdevOffline) -> Answer<()> {
        let pool = self.changeable(&r.name)?;
        let tree = pool.spa.tree();
        if tree.find(r.guid).is_some_and(|v| v.kind == vdev::VdevKind::Dspare) {
            // It has no state of its own.
            let code = if r.fault { ErrorCode::IsSpare } else { ErrorCode::PoolNotSup };
            return Err(code.into());
        }
        pool.spa.offline(r.guid, r.temporary, r.fault).await.map_err(of_vdev)
    }

    pub(super) async fn online_vdev(&self, r: VdevOnline) -> Answer<VdevOnlineReply> {
        let pool = self.changeable(&r.name)?;
        let (state, _) = pool.spa.online(r.guid, r.expand).await.map_err(of_vdev)?;
        pool.spa.notify("vdev_online", Some(r.guid));
        Ok(VdevOnlineReply { state: vdev_state(state) })
    }

    pub(super) async fn clear_pool(&self, r: PoolClear) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        pool.spa.clear(r.guid).await.map_err(|e| match &e {
            // Which host has it cannot be told while labels name this one.
            Error::Pool(why) if matches!(&**why, Refusal::ActiveElsewhere { .. }) => {
                ErrorCode::ActivePool.into()
            }
            _ => of_vdev(e),
        })?;
        pool.spa.notify("vdev_clear", r.guid);
        Ok(())
    }

    pub(super) async fn reopen_pool(&self, r: PoolReopen) -> Answer<()> {
        self.pool(&r.name)?.spa.reopen().await.map_err(of_vdev)
    }

    pub(super) async fn freeze_pool(&self, r: PoolFreeze) -> Answer<()> {
        self.changeable(&r.name)?.spa.freeze().await.map_err(of_pool)
    }
}

/// The distributed spare that a request names instead of a device. It must wait.
fn distributed_spare(pool: &Pool, r: &VdevAttach) -> Answer<u64> {
    let tree = pool.spa.tree();
    let named = |v: &&Arc<vdev::Vdev>| {
        v.kind == vdev::VdevKind::Dspare && v.leaf.as_ref().is_some_and(|l| l.path() == r.path)
    };
    let Some(spare) = tree.spares.iter().find(named) else {
        return Err(ApiError::with(ErrorCode::InvalConfig, "new device must be a single disk"));
    };
    if tree.is_active_spare(spare.guid) {
        return Err(ApiError::with(ErrorCode::BadDev, format!("{} is busy", r.path)));
    }
    if tree.top_of(r.guid).is_some_and(|t| t.vdev.is_log) {
        return Err(ApiError::with(ErrorCode::BadTarget, "cannot replace a log with a spare"));
    }
    if !r.replace {
        let what = "can only attach to mirrors and top-level disks";
        return Err(ApiError::with(ErrorCode::BadTarget, what));
    }
    Ok(spare.guid)
}
