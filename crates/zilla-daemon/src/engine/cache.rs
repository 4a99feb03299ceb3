//! The cache file: which pools to open at the next start, and where their devices were.
//!
//! OpenZFS's own format, an XDR nvlist of one configuration per pool, so that `zpool import -c` of either reads it. It
//! is replaced in one step; a pool that is imported with `cachefile=none` is not in it.

use super::Engine;
use super::errors::Answer;
use super::pool::Pool;
use std::path::{Path, PathBuf};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::spa::{FoundPool, OpenOpts, discover};
use zilla_core::vdev::ConfigFor;
use zilla_ondisk::NvList;
use zilla_ondisk::enums::PoolState;

impl Engine {
    /// Writes down the pools that are to come back. Called with `changes` held.
    pub(super) async fn save_cache(&self) {
        let mut list = NvList::new();
        for pool in self.all_pools() {
            if pool.cachefile.lock().is_none() {
                list.add(pool.name(), entry(&pool));
            }
        }
        let path = self.handle.state_dir().cache_file();
        let written = if list.is_empty() {
            self.env.opener.remove_file(&path).await
        } else {
            self.env.opener.write_file(&path, list.pack()).await
        };
        match written {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::error!("'{}': {e}", path.display());
            }
            _ => {}
        }
    }

    /// Opens and mounts the pools of the cache file.
    pub(super) async fn restore(&self) {
        let path = self.handle.state_dir().cache_file();
        let found = match self.cached(&path).await {
            Ok(found) => found,
            Err(e) => {
                tracing::error!("cache file: {e}");
                return;
            }
        };
        for pool in found {
            let opts = OpenOpts {
                // What this daemon had open and did not close is its own to open.
                force: false,
                name: Some(pool.name.clone()),
                ..self.open_opts().await
            };
            match self.bring_up(&pool, opts, None, None).await {
                Ok(up) => {
                    tracing::info!("pool '{}' is open", up.name());
                    for e in up.mount_all(self, &[]).await {
                        let name = e.subject.clone().unwrap_or_default();
                        tracing::warn!("cannot mount '{name}': {}", e.description());
                    }
                }
                Err(e) => tracing::error!("cannot open pool '{}': {}", pool.name, e.description()),
            }
        }
    }

    /// The pools that a cache file names, as far as their devices are where it says.
    pub(super) async fn cached(&self, path: &Path) -> Answer<Vec<FoundPool>> {
        let bytes = match self.env.opener.read_file(path).await {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(ApiError::with(ErrorCode::BadCache, format!("'{}': {e}", path.display()))),
        };
        let list = NvList::unpack(&bytes)
            .map_err(|e| ApiError::with(ErrorCode::BadCache, format!("'{}': {e}", path.display())))?;
        let mut all = Vec::new();
        for (name, value) in list.iter() {
            let zilla_ondisk::NvValue::List(config) = value else { continue };
            let guid = config.u64("pool_guid").unwrap_or(0);
            let mut paths = Vec::new();
            if let Some(tree) = config.list("vdev_tree") {
                leaf_paths(tree, &mut paths);
            }
            // A path that is gone is a device that is missing, which the pool may do without.
            paths.retain(|p| p.exists());
            let found = discover(&self.env, &paths).await.map_err(super::errors::of_pool)?;
            let found = found.into_iter().filter(|f| f.guid == guid && f.state == PoolState::Active);
            all.extend(found.map(|f| FoundPool { name: name.to_owned(), ..f }));
        }
        Ok(all)
    }
}

fn entry(pool: &Pool) -> NvList {
    let spa = &pool.spa;
    let mut nv = NvList::new();
    nv.add("version", spa.version()).add("name", pool.name());
    nv.add("state", PoolState::Active.number()).add("txg", spa.uberblock().txg);
    nv.add("pool_guid", spa.guid());
    nv.add("vdev_tree", spa.tree().generate_config(ConfigFor::Mos));
    nv
}

/// Where the devices of a configuration are.
pub fn leaf_paths(tree: &NvList, out: &mut Vec<PathBuf>) {
    if let Some(path) = tree.str("path") {
        out.push(PathBuf::from(path));
    }
    for child in tree.lists("children").into_iter().flatten() {
        leaf_paths(child, out);
    }
}
