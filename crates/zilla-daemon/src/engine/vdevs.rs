//! `zpool add`, `attach`, `replace`, `detach`, `remove`, `offline`, `online`, `clear` and `reopen`.

use super::create::pool_spec;
use super::errors::{Answer, of_pool, of_vdev};
use super::events::notify;
use super::inuse::Purpose;
use super::pool::Pool;
use super::{Engine, Serves};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla::devices::{self, Attach, PoolSpec, SpareSpec, VdevKind, VdevView};
use zilla::error::Error;
use zilla::error::PoolRefusal as Refusal;
use zilla::status::vdev_state;
use zilla_control::props::naming::{self, is_draid_spare};
use zilla_control::types::{
    LeafSpec, PoolAdd, PoolClear, PoolFreeze, PoolReopen, TopKind, TopSpec, VdevAttach, VdevDetach,
    VdevOffline, VdevOnline, VdevOnlineReply, VdevRemove, VdevRemoveReply, VdevSpec, VdevsCheck,
};
use zilla_control::{ApiError, Caller, ErrorCode};

impl Engine {
    pub(super) fn changeable(&self, name: &str) -> Answer<Arc<Pool>> {
        let pool = self.pool(name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        pool.check_running()?;
        Ok(pool)
    }
}

impl Serves<PoolAdd> for Engine {
    async fn serve(&self, _: &Caller, r: PoolAdd) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        let _held = self.check_devices(&r.vdevs, r.force, Purpose::NewVdev).await?;
        let (spec, spares) = self.added(&pool, &r.vdevs, r.ashift).await?;
        pool.zilla.add_vdevs(&spec, r.any_ashift).await.map_err(of_vdev)?;
        if !spares.is_empty() {
            pool.zilla.add_spares(&spares).await.map_err(of_vdev)?;
        }
        self.save_cache().await;
        notify(&pool, "vdev_add");
        Ok(())
    }
}

impl Serves<VdevsCheck> for Engine {
    /// `zpool create -n`, `zpool add -n`
    async fn serve(&self, _: &Caller, r: VdevsCheck) -> Answer<()> {
        let _changes = self.changes.lock().await;
        if r.new {
            naming::check_pool_name(&r.name, false)?;
            if self.is_name_taken(&r.name) {
                return Err(ApiError::with(ErrorCode::Exists, "pool already exists"));
            }
            return self.check_devices(&r.vdevs, r.force, Purpose::NewPool).await.map(drop);
        }
        let pool = self.changeable(&r.name)?;
        let _held = self.check_devices(&r.vdevs, r.force, Purpose::NewVdev).await?;
        let (spec, spares) = self.added(&pool, &r.vdevs, r.ashift).await?;
        pool.zilla.check_added(&spec, r.any_ashift, &spares).await.map_err(of_vdev)
    }
}

impl Engine {
    /// What is to become a pool's.
    async fn added(
        &self,
        pool: &Pool,
        vdevs: &VdevSpec,
        ashift: Option<u64>,
    ) -> Answer<(PoolSpec, Vec<SpareSpec>)> {
        let ashift = match ashift.and_then(|a| u32::try_from(a).ok()).filter(|a| *a != 0) {
            None => pool.ashift().await.map_err(of_pool)?,
            said => said,
        };
        Ok((pool_spec(vdevs, ashift), self.new_spares(pool, vdevs).await?))
    }

    /// Devices that are to become a pool's hot spares, and are not yet.
    async fn new_spares(&self, pool: &Pool, vdevs: &VdevSpec) -> Answer<Vec<SpareSpec>> {
        let spares = self.spare_specs(vdevs).await;
        let has = pool.zilla.vdevs().spares();
        let own = |s: &&SpareSpec| has.iter().any(|v| Some(v.guid) == s.shared);
        if spares.iter().any(|s| own(&s)) {
            return Err(ApiError::with(ErrorCode::BadDev, "one or more vdevs refer to the same device"));
        }
        Ok(spares)
    }

    /// Devices that are to become hot spares; those that are other pools' already are shared.
    pub(super) async fn spare_specs(&self, vdevs: &VdevSpec) -> Vec<SpareSpec> {
        let mut specs = Vec::new();
        for leaf in super::create::leaf_specs(&vdevs.spares) {
            let label = devices::probe_path(&self.env, &leaf.path).await.ok().flatten();
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
            let spec = VdevSpec { tops, ..VdevSpec::default() };
            let _held = self.check_devices(&spec, r.force, Purpose::Side).await?;
            let path = PathBuf::from(&r.path);
            let disk = super::create::is_disk(&path);
            let ashift = r.ashift.and_then(|a| u32::try_from(a).ok());
            let how = Attach { replace: r.replace, ashift, spare, sequential: r.sequential };
            pool.zilla.attach(r.guid, &devices::LeafSpec { path, disk }, how).await.map_err(of_vdev)
        };
        let attached = attached.await;
        if attached.is_err() && let_go {
            // Why it was not replaced matters more.
            if let Err(e) = pool.zilla.online(r.guid, false).await {
                tracing::warn!(pool = %r.name, "a device that was not replaced does not come back: {e}");
            }
        }
        attached?;
        self.save_cache().await;
        notify(&pool, if spare.is_some() { "vdev_spare" } else { "vdev_attach" });
        Ok(())
    }

    /// A device that is to be replaced by what is in its place now may still be open here, though
    /// another was put there, or all of it was overwritten. Then it is let go of, if the others
    /// have what it had; true if so.
    async fn let_go_of_changed(&self, pool: &Pool, r: &VdevAttach) -> bool {
        let leaf = pool.zilla.vdevs().find(r.guid).filter(|l| r.replace && l.is_readable);
        let Some(old) = leaf.and_then(|l| l.path) else { return false };
        let new = Path::new(&r.path);
        let (old, new) =
            (self.env.opener.canonical(Path::new(&old)).await, self.env.opener.canonical(new).await);
        if !matches!((&old, &new), (Ok(old), Ok(new)) if old == new) {
            return false;
        }
        match devices::probe_path(&self.env, Path::new(&r.path)).await {
            Ok(Some((_, label))) if label.guid() == Some(r.guid) => false,
            Ok(_) => pool.zilla.offline(r.guid, true, false).await.is_ok(),
            Err(_) => false,
        }
    }

    /// The guid of the device if it is a hot spare of the pool that waits; a log cannot take one.
    async fn check_spare(&self, pool: &Pool, r: &VdevAttach) -> Answer<Option<u64>> {
        if is_draid_spare(&r.path) {
            return distributed_spare(pool, r).map(Some);
        }
        let Ok(Some((_, label))) = devices::probe_path(&self.env, Path::new(&r.path)).await else {
            return Ok(None);
        };
        let vdevs = pool.zilla.vdevs();
        let own = vdevs.spares().iter().any(|s| Some(s.guid) == label.guid());
        let Some(guid) = label.guid().filter(|guid| own && !vdevs.is_active_spare(*guid)) else {
            return Ok(None);
        };
        match (r.replace, vdevs.top_of(r.guid).is_some_and(|t| t.is_log)) {
            (true, true) => Err(ApiError::with(ErrorCode::BadTarget, "cannot replace a log with a spare")),
            (true, false) => Ok(Some(guid)),
            (false, _) => Err(ErrorCode::IsSpare.into()),
        }
    }
}

impl Serves<VdevDetach> for Engine {
    async fn serve(&self, _: &Caller, r: VdevDetach) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        let permanent = pool.zilla.detach(r.guid).await.map_err(of_vdev)?;
        notify(&pool, "vdev_remove");
        if let Some(guid) = permanent {
            for other in self.all_pools() {
                if let Err(e) = other.zilla.forget_spare(guid).await {
                    tracing::warn!("pool '{}' keeps a spare that another pool has taken: {e}", other.name());
                }
            }
        }
        self.save_cache().await;
        Ok(())
    }
}

impl Serves<VdevRemove> for Engine {
    async fn serve(&self, _: &Caller, r: VdevRemove) -> Answer<VdevRemoveReply> {
        if r.dry_run {
            let memory = self.pool(&r.name)?.zilla.removal_memory(r.guid).await.map_err(of_vdev)?;
            return Ok(VdevRemoveReply { memory });
        }
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        if r.cancel {
            pool.zilla.cancel_removal().await.map_err(of_vdev)?;
            self.save_cache().await;
            return Ok(VdevRemoveReply::default());
        }
        let (aux, data) = {
            let vdevs = pool.zilla.vdevs();
            let aux = vdevs.spares().iter().chain(&vdevs.caches()).any(|v| v.guid == r.guid);
            (aux, vdevs.tops().iter().any(|t| t.guid == r.guid && !t.is_log))
        };
        pool.zilla.remove_vdev(r.guid).await.map_err(of_vdev)?;
        // That a vdev with data has gone is told when it has.
        if !data {
            notify(&pool, if aux { "vdev_remove_aux" } else { "vdev_remove_dev" });
        }
        self.save_cache().await;
        Ok(VdevRemoveReply::default())
    }
}

impl Serves<VdevOffline> for Engine {
    async fn serve(&self, _: &Caller, r: VdevOffline) -> Answer<()> {
        let pool = self.changeable(&r.name)?;
        if pool.zilla.vdevs().find(r.guid).is_some_and(|v| v.kind == VdevKind::Dspare) {
            // It has no state of its own.
            let code = if r.fault { ErrorCode::IsSpare } else { ErrorCode::PoolNotSup };
            return Err(code.into());
        }
        pool.zilla.offline(r.guid, r.temporary, r.fault).await.map_err(of_vdev)?;
        pool.zilla.notify("config_sync", None);
        Ok(())
    }
}

impl Serves<VdevOnline> for Engine {
    async fn serve(&self, _: &Caller, r: VdevOnline) -> Answer<VdevOnlineReply> {
        let pool = self.changeable(&r.name)?;
        let state = pool.zilla.online(r.guid, r.expand).await.map_err(of_vdev)?;
        pool.zilla.notify("config_sync", None);
        pool.zilla.notify("vdev_online", Some(r.guid));
        Ok(VdevOnlineReply { state: vdev_state(state) })
    }
}

impl Serves<VdevAttach> for Engine {
    async fn serve(&self, _: &Caller, r: VdevAttach) -> Answer<()> {
        self.attach_vdev(r).await
    }
}

impl Serves<PoolClear> for Engine {
    async fn serve(&self, _: &Caller, r: PoolClear) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        // (One that is suspended may be cleared; that is what it waits for.)
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        pool.zilla.clear(r.guid).await.map_err(|e| match &e {
            // Which host has it cannot be told while labels name this one.
            Error::Pool(why) if matches!(&**why, Refusal::ActiveElsewhere { .. }) => {
                ErrorCode::ActivePool.into()
            }
            _ => of_vdev(e),
        })?;
        pool.zilla.notify("config_sync", None);
        self.show_devices(&r.name).await;
        Ok(())
    }
}

impl Serves<PoolReopen> for Engine {
    async fn serve(&self, _: &Caller, r: PoolReopen) -> Answer<()> {
        self.check_running(&r.name)?;
        self.pool(&r.name)?.zilla.reopen().await.map_err(of_vdev)
    }
}

impl Serves<PoolFreeze> for Engine {
    async fn serve(&self, _: &Caller, r: PoolFreeze) -> Answer<()> {
        self.changeable(&r.name)?.zilla.freeze().await.map_err(of_pool)
    }
}

/// The distributed spare that a request names instead of a device. It must wait.
fn distributed_spare(pool: &Pool, r: &VdevAttach) -> Answer<u64> {
    let vdevs = pool.zilla.vdevs();
    let named = |v: &VdevView| v.kind == VdevKind::Dspare && v.path.as_ref() == Some(&r.path);
    let Some(spare) = vdevs.spares().into_iter().find(named) else {
        return Err(ApiError::with(ErrorCode::InvalConfig, "new device must be a single disk"));
    };
    if vdevs.is_active_spare(spare.guid) {
        return Err(ApiError::with(ErrorCode::BadDev, format!("{} is busy", r.path)));
    }
    if vdevs.top_of(r.guid).is_some_and(|t| t.is_log) {
        return Err(ApiError::with(ErrorCode::BadTarget, "cannot replace a log with a spare"));
    }
    if !r.replace {
        let what = "can only attach to mirrors and top-level disks";
        return Err(ApiError::with(ErrorCode::BadTarget, what));
    }
    Ok(spare.guid)
}
