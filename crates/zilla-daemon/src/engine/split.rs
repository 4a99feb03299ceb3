//! `zpool split`: a side of each mirror becomes a pool of its own, and is exported or stays open.

use super::errors::{Answer, of_pool, of_vdev};
use super::events::notify;
use super::pool::Pool;
use super::poolprops::given;
use super::{Engine, Serves};
use zilla::open::OpenOpts;
use zilla_control::props::naming;
use zilla_control::types::{PoolSplit, SplitReply};
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_ondisk::enums::PoolState;

impl Serves<PoolSplit> for Engine {
    async fn serve(&self, caller: &Caller, r: PoolSplit) -> Answer<SplitReply> {
        naming::check_pool_name(&r.new_name, false)?;
        if r.properties.contains_key("readonly") {
            let what = "property readonly can only be set at import time";
            return Err(ApiError::with(ErrorCode::BadProp, what));
        }
        let given = given(&r.properties, self.pool(&r.name)?.zilla.version())?;
        if let Some(root) = r.altroot.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(ApiError::with(ErrorCode::BadPath, format!("bad alternate root '{root}'")));
        }
        let _changes = self.changes.lock().await;
        let old = self.changeable(&r.name)?;
        if self.is_name_taken(&r.new_name) {
            return Err(ApiError::with(ErrorCode::Exists, "pool already exists"));
        }
        let opts = OpenOpts { name: Some(r.new_name.clone()), ..self.open_opts().await };
        let zilla = old.zilla.split(r.sides.clone(), opts).await.map_err(of_vdev)?;
        notify(&old, "vdev_remove");
        let cachefile = r.properties.get("cachefile").filter(|c| !c.is_empty()).cloned();
        let pool = Pool::new(zilla, r.altroot.clone(), cachefile, self.env.rng.u64());
        let stored = pool.take_given(&given).await;
        // (One that is suspended can be cleared when it is in the table.)
        if let Some(line) = caller.command.clone() {
            let _ = pool.unless_suspended(self.log(&pool, caller, &line)).await;
        }
        if !r.import {
            let closed = pool.zilla.close(Some(PoolState::Exported)).await;
            pool.zilla.clear_cache();
            self.save_cache().await;
            closed.map_err(of_pool)?;
            return stored.map(|()| SplitReply::default());
        }
        if let Err(e) = pool.unless_suspended(pool.replay_volumes()).await.flatten() {
            tracing::error!("pool '{}': looking for volumes: {e}", pool.name());
        }
        self.pools.write().insert(pool.name(), pool.clone());
        self.show_devices(&pool.name()).await;
        self.save_cache().await;
        notify(&pool, "pool_import");
        stored?;
        let mount_errors = if r.no_mount { Vec::new() } else { pool.mount_all(self, &r.mount_options).await };
        Ok(SplitReply { mount_errors })
    }
}
