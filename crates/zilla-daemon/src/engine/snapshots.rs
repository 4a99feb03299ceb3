//! `zfs snapshot`.

use super::Engine;
use super::datasets::typed;
use super::errors::{Answer, of, of_dataset};
use std::collections::BTreeMap;
use zilla_control::props::{self, naming};
use zilla_control::types::DatasetSnapshot;
use zilla_control::{ApiError, ErrorCode};
use zilla_core::error::Errno;

/// A snapshot of this very txg is in the way: the next txg's will do.
const TRIES: usize = 8;

impl Engine {
    pub(super) async fn snapshot(&self, r: DatasetSnapshot) -> Answer<()> {
        let settings = typed(&r.properties, props::SNAP, true)?;
        let mut by_pool: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in &r.names {
            naming::check_dataset_name(name, props::SNAP, true).map_err(|e| e.subject(name.as_str()))?;
            let pool = self.pool_of(name)?;
            let all = by_pool.entry(pool.name()).or_default();
            if r.recursive {
                all.extend(pool.dsl().recursive_names(name).await.map_err(of(name))?);
            } else {
                all.push(name.clone());
            }
        }
        for (pool, mut names) in by_pool {
            let pool = self.pool(&pool)?;
            names.sort();
            names.dedup();
            if pool.readonly() {
                return Err(ErrorCode::PoolReadonly.into());
            }
            for name in &names {
                if let Err(e) = pool.dsl().snapshot_check(name, None).await {
                    return Err(refusal(&e).unwrap_or_else(|| of_dataset(e)).subject(name.as_str()));
                }
            }
            let mut tries = TRIES;
            loop {
                let (dsl, names, settings) = (pool.dsl().clone(), names.clone(), settings.clone());
                let task = pool.spa.ctx.sync_task(move |tx| {
                    Box::pin(async move {
                        for snap in dsl.snapshot(&tx, &names).await? {
                            if !settings.is_empty() {
                                dsl.set_props(&tx, &snap, &settings).await?;
                            }
                        }
                        Ok(())
                    })
                });
                match task.await {
                    Err(e) if e.is(Errno::Again) && tries > 0 => tries -= 1,
                    Err(e) => return Err(refusal(&e).unwrap_or_else(|| of_dataset(e))),
                    Ok(()) => break,
                }
            }
        }
        Ok(())
    }
}

fn refusal(e: &zilla_core::error::Error) -> Option<ApiError> {
    e.is(Errno::XDev).then(|| ApiError::with(ErrorCode::Exists, "multiple snapshots of same fs not allowed"))
}
