//! What a pool looks like from outside: its vdevs with their counters, its features.

use super::errors::{Answer, of_pool};
use super::pool::Pool;
use super::{Engine, Serves};
use zilla_control::Caller;
use zilla_control::types::*;

impl Serves<PoolQuery> for Engine {
    async fn serve(&self, caller: &Caller, mut r: PoolQuery) -> Answer<Vec<PoolInfo>> {
        // Names of files are for those who may enter their directories.
        r.errors &= caller.owner;
        let mut all = Vec::new();
        for pool in self.all_pools() {
            if r.names.is_empty() || r.names.contains(&pool.name()) {
                let mut info = self.info(&pool, r.extended_stats);
                // A pool whose log of errors is damaged is looked at all the more.
                let damaged = pool.damaged().await.unwrap_or_else(|e| {
                    tracing::error!(pool = %pool.name(), error = %e, "the error log cannot be read");
                    vec![(0, 0)]
                });
                info.error_count = damaged.len() as u64;
                for (objset, why) in pool.zilla.kept_logs() {
                    // It may just have been destroyed.
                    if let Ok(ds) = pool.zilla.by_id(objset).await {
                        info.kept_logs.push(KeptLog { dataset: ds.name(), why });
                    }
                }
                if r.errors {
                    info.errors = pool.errors(damaged).await;
                }
                if r.properties {
                    info.properties = self.pool_props(&pool, &info).await.map_err(of_pool)?;
                }
                if r.vdev_properties {
                    info.vdev_properties = pool.vdev_props(&info).await.map_err(of_pool)?;
                }
                all.push(info);
            }
        }
        all.extend(self.lost_pools(&r.names).await?);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }
}

impl Engine {
    fn info(&self, pool: &Pool, extended: bool) -> PoolInfo {
        let mut info = pool.zilla.status(pool.opened.elapsed(), extended);
        info.system_hostid = super::host::host().id;
        for v in &mut info.spares {
            v.spared_by = self.user_of_spare(v.guid);
            if v.spared_by.is_some() {
                (v.stats.state, v.stats.aux) = (VdevState::CantOpen, VdevAux::Spared);
            }
        }
        info
    }
}
