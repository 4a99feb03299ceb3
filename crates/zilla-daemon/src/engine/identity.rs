//! What a pool is to others: `zpool reguid`, `upgrade`, `checkpoint`, features that are enabled,
//! and `bootfs`.
//!
//! The pool's name and guid are in the cache file, which is written again once the change is on
//! disk; a crash in between leaves a cache file that names a guid no device carries, and the pool
//! is to be imported by hand.

use super::errors::{Answer, of_pool};
use super::pool::Pool;
use super::{Engine, Serves};
use zilla::error::Errno;
use zilla::features::SUPPORTED;
use zilla::manage::Prune;
use zilla_control::props::TypedValue;
use zilla_control::types::{DedupPrefetch, DedupPrune, PoolCheckpoint, PoolReguid, PoolUpgrade};
use zilla_control::{ApiError, Caller, ErrorCode};

impl Serves<PoolReguid> for Engine {
    async fn serve(&self, _: &Caller, r: PoolReguid) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.changeable(&r.name)?;
        if r.guid.is_some_and(|guid| self.is_guid_taken(guid)) {
            return Err(ApiError::with(ErrorCode::Exists, "guid is already in use"));
        }
        pool.zilla.reguid(r.guid).await.map_err(|e| match e.errno() {
            zilla::error::Errno::Exist => ApiError::with(ErrorCode::Exists, "guid is already in use"),
            _ => of_pool(e),
        })?;
        self.save_cache().await;
        pool.zilla.notify("pool_reguid", None);
        Ok(())
    }
}

impl Serves<DedupPrune> for Engine {
    async fn serve(&self, _: &Caller, r: DedupPrune) -> Answer<()> {
        let pool = self.changeable(&r.name)?;
        let what = match (r.older, r.percent) {
            (Some(age), None) => Prune::Older(age),
            (None, Some(percent @ 1..=100)) => Prune::Percent(percent),
            _ => return Err(ErrorCode::PoolInvalArg.into()),
        };
        let gone = pool.zilla.prune_dedup(what).await.map_err(|e| match e.errno() {
            Errno::Busy => ApiError::with(ErrorCode::Busy, e.to_string()),
            _ => of_pool(e),
        })?;
        tracing::info!(pool = %r.name, gone, "entries were taken out of the deduplication tables");
        Ok(())
    }
}

impl Serves<PoolCheckpoint> for Engine {
    async fn serve(&self, _: &Caller, r: PoolCheckpoint) -> Answer<()> {
        let pool = self.changeable(&r.name)?;
        match r.discard {
            false => pool.zilla.take_checkpoint().await.map_err(of_pool),
            true => pool.zilla.discard_checkpoint().await.map_err(of_pool),
        }
    }
}

impl Serves<PoolUpgrade> for Engine {
    async fn serve(&self, _: &Caller, r: PoolUpgrade) -> Answer<()> {
        let pool = self.changeable(&r.name)?;
        supported(&r.features)?;
        if let Some(version) = r.version {
            pool.zilla.upgrade(version).await.map_err(of_pool)?;
        }
        if !r.features.is_empty() {
            pool.enable_features(r.features).await?;
        }
        Ok(())
    }
}

impl Engine {
    /// The file system that a boot loader starts from; empty takes it away.
    pub(super) async fn set_bootfs(&self, pool: &Pool, name: &str) -> Answer<()> {
        if !name.is_empty() {
            let of_this = name == pool.name() || name.starts_with(&format!("{}/", pool.name()));
            if !of_this || name.contains('@') {
                return Err(ApiError::with(ErrorCode::InvalidName, format!("'{name}' is an invalid name")));
            }
        }
        // On disk it is the dataset's object; 0 is none.
        let object = match name {
            "" => 0,
            _ => pool.zilla.by_name(name).await.map_err(super::errors::of_dataset)?.id(),
        };
        pool.store_prop("bootfs", &TypedValue::Num(object)).await
    }
}

impl Serves<DedupPrefetch> for Engine {
    async fn serve(&self, _: &Caller, r: DedupPrefetch) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        pool.check_running()?;
        pool.zilla.prefetch_dedup().await.map_err(of_pool)
    }
}

/// Refuses a feature that there is not, by name.
pub(super) fn supported(names: &[String]) -> Answer<()> {
    match names.iter().find(|name| !SUPPORTED.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let what = format!("feature '{name}' is not supported by zilla yet");
            Err(ApiError::with(ErrorCode::BadProp, what))
        }
    }
}

impl Pool {
    pub(super) async fn enable_features(&self, names: Vec<String>) -> Answer<()> {
        supported(&names)?;
        self.zilla.enable_features(names).await.map_err(of_pool)
    }
}
