//! A pool that is not open, as far as its labels tell.

use super::vdevs::{aux, root};
use super::{AllocClass, VdevAux, VdevNode, VdevState};
use crate::error::Result;
use crate::open::FoundPool;
use std::sync::Arc;
use zilla_core::spa::{Spa, set_paths};
use zilla_core::vdev::{OpenArgs, VdevKind, VdevTree};
use zilla_env::Env;
use zilla_ondisk::NvList;

/// What the devices of a pool look like.
#[derive(Debug, Clone, Default)]
pub struct Looked {
    /// Its vdevs. The root's state says whether it could be opened.
    pub root: VdevNode,
    /// Only log devices are missing.
    pub missing_log: bool,
}

/// Tries the devices of a pool that was found. Nothing is written.
pub async fn look_at(env: &Env, found: &FoundPool) -> Looked {
    let mut looked = Looked::default();
    let mut tree_config = found.config.list("vdev_tree").cloned().unwrap_or_default();
    set_paths(&mut tree_config, &found.paths);
    match VdevTree::from_config(env, &tree_config) {
        Ok(tree) => {
            let args = OpenArgs { pool_guid: Some(found.guid), ..OpenArgs::default() };
            let opened = tree.open(&args).await;
            looked.root = root(&tree, None, 0);
            tree.close().await;
            if let Err(e) = opened {
                tracing::debug!("pool '{}': {e}", found.name);
                looked.root.stats.state = VdevState::CantOpen;
            }
            if tree.tops.iter().any(|t| t.vdev.kind == VdevKind::Missing) {
                let mut whole = false;
                if let Some((tree, missing_log)) = Spa::lacks_little(env, found).await {
                    looked.root = root(&tree, None, 0);
                    tree.close().await;
                    looked.missing_log = missing_log;
                    whole = !missing_log;
                }
                if !whole {
                    let stats = &mut looked.root.stats;
                    (stats.state, stats.aux) = (VdevState::CantOpen, VdevAux::BadGuidSum);
                }
            }
        }
        Err(e) => {
            tracing::warn!("pool '{}': {e}", found.name);
            (looked.root.stats.state, looked.root.stats.aux) = (VdevState::CantOpen, VdevAux::CorruptData);
        }
    }
    looked
}

/// Its hot spares and its cache devices. Nothing is written.
pub async fn aux_devices(env: &Env, found: &FoundPool) -> Result<(Vec<VdevNode>, Vec<VdevNode>)> {
    let tree = Spa::aux_of(env, found).await?;
    let spares = aux(&tree, &tree.spares, AllocClass::Spare, 0);
    Ok((spares, aux(&tree, &tree.cache, AllocClass::Cache, 0)))
}

/// The vdevs that a configuration wants (`vdev_tree` of a label or a cache file), with what is
/// there of them now; None: it is none.
pub async fn wanted_devices(env: &Env, config: &NvList, pool_guid: u64) -> Option<VdevNode> {
    let tree = Arc::new(VdevTree::from_config(env, config).ok()?);
    let args = OpenArgs { pool_guid: Some(pool_guid), ..OpenArgs::default() };
    if let Err(e) = tree.open(&args).await {
        tracing::debug!("pool {pool_guid}: {e}");
    }
    let root = root(&tree, None, 0);
    tree.close().await;
    Some(root)
}
