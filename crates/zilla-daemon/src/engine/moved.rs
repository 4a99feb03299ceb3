//! Devices that are not where the cache file says: disks whose path has changed, files that were
//! renamed.
//!
//! When a pool of the cache file lacks a device at start, the folders in which its devices lay are
//! searched, as `zpool import -c` does it, and for devices below `/dev` those whose names last,
//! too.
//! A device is taken only for one that is lacking, and only if its label has the guids of the pool
//! and of that device; of several copies of one, the newest. What is where it was is left alone.
//! Nothing is written by this, so a crash leaves all as it was; the cache file gets the new paths
//! when all of its pools have been looked at.

use super::Engine;
use super::cache::{Cached, leaf_paths};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use zilla::open::{FoundPool, discover};
use zilla_ondisk::NvList;
use zilla_ondisk::enums::PoolState;

/// A folder with more entries is not searched: each costs a megabyte of reading, and somebody waits
/// for the pools.
const MOST_ENTRIES: usize = 1024;
/// Where disks have names of their own.
const DEVICES: [&str; 2] = ["/dev/disk/by-id", "/dev"];

impl Engine {
    /// The pool with what was found of it elsewhere; true if anything was.
    pub(super) async fn look_further(
        &self,
        entry: &Cached,
        found: Option<FoundPool>,
    ) -> (Option<FoundPool>, bool) {
        let mut wanted = BTreeSet::new();
        let trees = [Some(&entry.config), found.as_ref().map(|f| &f.config)];
        trees.into_iter().flatten().filter_map(|c| c.list("vdev_tree")).for_each(|t| guids(t, &mut wanted));
        let here = |guid: &u64| found.as_ref().is_some_and(|f| f.paths.contains_key(guid));
        let lacking: Vec<u64> = wanted.into_iter().filter(|guid| !here(guid)).collect();
        if lacking.is_empty() {
            return (found, false);
        }
        let searched = match discover(&self.env, &self.places_of(entry).await).await {
            Ok(all) => all.into_iter().find(|f| f.guid == entry.guid && f.state == PoolState::Active),
            Err(e) => {
                tracing::warn!("pool '{}': its devices are not searched for: {e}", entry.name);
                None
            }
        };
        let Some(searched) = searched else { return (found, false) };
        let moved: Vec<PathBuf> = lacking.iter().filter_map(|g| searched.paths.get(g).cloned()).collect();
        if moved.is_empty() {
            return (found, false);
        }
        for path in &moved {
            tracing::info!("pool '{}': a device is now at '{}'", entry.name, path.display());
        }
        // Together once more: a top-level may have been unknown before.
        let all: Vec<PathBuf> = found.iter().flat_map(|f| f.paths.values().cloned()).chain(moved).collect();
        let again = discover(&self.env, &all).await.unwrap_or_default();
        let again = again.into_iter().find(|f| f.guid == entry.guid && f.state == PoolState::Active);
        match again {
            Some(pool) => (Some(FoundPool { name: entry.name.clone(), ..pool }), true),
            None => (found, false),
        }
    }

    /// Where devices of a pool may be by now.
    async fn places_of(&self, entry: &Cached) -> Vec<PathBuf> {
        let mut places: Vec<PathBuf> = Vec::new();
        let of_entry = entry.paths.iter().filter_map(|p| p.parent());
        let below_dev = entry.paths.iter().any(|p| p.starts_with("/dev"));
        for place in of_entry.chain(DEVICES.iter().map(Path::new).filter(|_| below_dev)) {
            if places.iter().any(|p| p == place) {
                continue;
            }
            match self.env.opener.list(place).await {
                Ok(entries) if entries.len() > MOST_ENTRIES => tracing::warn!(
                    "pool '{}': '{}' is not searched for its devices: there are more than {MOST_ENTRIES} \
                     entries; where they are elsewhere, import the pool by zpool import -d",
                    entry.name,
                    place.display()
                ),
                Ok(_) => places.push(place.to_owned()),
                Err(e) => tracing::debug!("'{}': {e}", place.display()),
            }
        }
        places
    }
}

/// The guids of a configuration's devices.
fn guids(tree: &NvList, out: &mut BTreeSet<u64>) {
    let mut paths = Vec::new();
    let children = tree.lists("children").unwrap_or_default();
    if children.is_empty() {
        leaf_paths(tree, &mut paths);
        // What has no path is no device.
        out.extend(tree.u64("guid").filter(|_| !paths.is_empty()));
    }
    children.iter().for_each(|child| guids(child, out));
}
