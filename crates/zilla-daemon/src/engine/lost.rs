//! Pools of the cache file that could not be opened: their devices are missing, or hold something
//! else.
//!
//! Such a pool is not forgotten. It is shown as unavailable, with the devices that it wants, so
//! that nobody takes a machine for healthy whose pool is away; it stays in the cache file, so that
//! the next start looks for it again; and its name is taken. An import opens it when its devices
//! are there, an export lets it go.

use super::Engine;
use super::errors::Answer;
use zilla::status::wanted_devices;
use zilla_control::types::{PoolHealth, PoolInfo, PropValue, Source, VdevAux, VdevState};
use zilla_control::{ApiError, ErrorCode};
use zilla_ondisk::NvList;

/// What the cache file says of it.
#[derive(Clone)]
pub struct Lost {
    pub guid: u64,
    pub config: NvList,
}

impl Engine {
    pub(super) fn lose(&self, name: &str, lost: Lost) {
        self.lost.write().insert(name.to_owned(), lost);
    }

    pub(super) fn is_lost(&self, name: &str) -> bool {
        self.lost.read().contains_key(name)
    }

    /// The pool of that guid is open.
    pub(super) fn found_again(&self, guid: u64) {
        self.lost.write().retain(|_, lost| lost.guid != guid);
    }

    /// What others say of a pool that is not there: whether it is known.
    pub(super) fn absent(&self, name: &str) -> ApiError {
        match self.is_lost(name) {
            true => ErrorCode::PoolUnavail.into(),
            false => super::errors::no_pool(),
        }
    }

    /// `zpool export` of one; whether there was one. Called with `changes` held.
    pub(super) async fn let_go(&self, name: &str) -> bool {
        let known = self.lost.write().remove(name).is_some();
        if known {
            self.save_cache().await;
        }
        known
    }

    /// As they are to be seen.
    pub(super) async fn lost_pools(&self, names: &[String]) -> Answer<Vec<PoolInfo>> {
        let wanted = |name: &String| names.is_empty() || names.contains(name);
        let all: Vec<(String, Lost)> = self
            .lost
            .read()
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(n, l)| (n.clone(), l.clone()))
            .collect();
        let mut shown = Vec::new();
        for (name, lost) in all {
            let mut pool = PoolInfo {
                name: name.clone(),
                guid: lost.guid,
                txg: lost.config.u64("txg").unwrap_or(0),
                version: lost.config.u64("version").unwrap_or(0),
                health: PoolHealth::Unavail,
                system_hostid: super::host::host().id,
                ..PoolInfo::default()
            };
            let config = lost.config.list("vdev_tree").cloned().unwrap_or_default();
            pool.root = wanted_devices(&self.env, &config, lost.guid).await.unwrap_or_default();
            (pool.root.stats.state, pool.root.stats.aux) = (VdevState::CantOpen, VdevAux::NoReplicas);
            for (property, value) in [("health", "UNAVAIL".to_owned()), ("guid", lost.guid.to_string())] {
                pool.properties.insert(property.to_owned(), PropValue::new(value, Source::None));
            }
            shown.push(pool);
        }
        Ok(shown)
    }
}
