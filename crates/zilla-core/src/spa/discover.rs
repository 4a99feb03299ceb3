//! Finding pools: reading labels of everything in some directories, and putting what belongs
//! together together.
//!
//! A label knows the whole of its own top-level vdev and how many there are. The newest label of
//! each decides. What no label speaks of is a hole or missing; whether a pool can do without is
//! decided when it is opened.

use crate::error::{Error, Result};
use crate::vdev::{OPEN_TIMEOUT, probe_path, within};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zilla_env::{EntryKind, Env};
use zilla_ondisk::NvList;
use zilla_ondisk::enums::PoolState;

/// A pool that the labels of some devices speak of.
#[derive(Clone, Debug)]
pub struct FoundPool {
    pub guid: u64,
    pub name: String,
    pub state: PoolState,
    /// The newest label's configuration, with the tree of all top-level vdevs in `vdev_tree`.
    pub config: NvList,
    /// Where each leaf was found, by guid; and every spare and cache device that was found,
    /// whosever it is.
    pub paths: BTreeMap<u64, PathBuf>,
    /// The newest uberblock's txg and time.
    pub txg: u64,
    pub timestamp: u64,
}

/// Devices that are looked at at the same time, each with a megabyte of labels.
const AT_ONCE: usize = 16;

struct Seen {
    path: PathBuf,
    config: NvList,
    uberblock: Option<(u64, u64)>,
}

/// All pools on the devices of `places`: directories are searched (not their subdirectories),
/// anything else is looked at itself. Places that are not there and devices that cannot be read, or
/// do not answer, are passed over; that a place cannot be looked into is an error.
#[crate::boxed]
pub async fn discover(env: &Env, places: &[PathBuf]) -> Result<Vec<FoundPool>> {
    let mut seen: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
    let mut aux: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut changing = Vec::new();
    let probes = candidates(env, places).await?.into_iter().map(|path| async {
        match within(env, OPEN_TIMEOUT, probe_path(env, &path)).await {
            Some(Ok(found)) => Some((path, found?.1)),
            Some(Err(_)) => None,
            None => {
                tracing::warn!(path = %path.display(), "passed over: no answer within {OPEN_TIMEOUT:?}");
                None
            }
        }
    });
    let mut probes = futures_util::stream::iter(probes).buffered(AT_ONCE);
    while let Some(probed) = probes.next().await {
        let Some((path, info)) = probed else { continue };
        let Some(guid) = info.pool_guid() else {
            // Spares and cache devices do not say whose they are: a pool knows them by their guids.
            aux.extend(info.guid().map(|guid| (guid, path)));
            continue;
        };
        // A device that was about to become part of a pool, or has left one.
        if info.txg() == 0 {
            continue;
        }
        let uberblock = info.uberblock.as_ref().map(|u| (u.ub.txg, u.ub.timestamp));
        let seen_here = Seen { path, config: info.config, uberblock };
        match info.before {
            Some(before) => changing.push((seen_here, before)),
            None => seen.entry(guid).or_default().push(seen_here),
        }
    }
    // Of a pool whose guid was being changed: the change counts if its uberblock has arrived
    // anywhere.
    for (device, before) in changing {
        let now = device.config.u64("pool_guid").unwrap_or(0);
        let config = if seen.contains_key(&now) { device.config } else { before };
        let guid = config.u64("pool_guid").unwrap_or(0);
        seen.entry(guid).or_default().push(Seen { config, ..device });
    }
    let mut pools: Vec<FoundPool> =
        seen.into_iter().filter_map(|(guid, devices)| assemble(guid, devices)).collect();
    pools.iter_mut().for_each(|p| {
        aux.iter().for_each(|(guid, path)| {
            p.paths.entry(*guid).or_insert_with(|| path.clone());
        })
    });
    Ok(pools)
}

async fn candidates(env: &Env, places: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for place in places {
        match env.opener.list(place).await {
            Ok(entries) => out.extend(
                entries
                    .into_iter()
                    .filter(|e| matches!(e.kind, EntryKind::File | EntryKind::BlockDevice))
                    .map(|e| e.path),
            ),
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => out.push(place.clone()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => {
                return Err(Error::os(Error::from(e).errno(), format!("cannot open '{}'", place.display())));
            }
        }
    }
    Ok(out)
}

fn assemble(guid: u64, devices: Vec<Seen>) -> Option<FoundPool> {
    let label_txg = |s: &Seen| s.config.u64("txg").unwrap_or(0);
    let best = devices.iter().filter(|s| s.config.contains("vdev_tree")).max_by_key(|s| label_txg(s))?;
    let mut tops: BTreeMap<u64, (u64, NvList)> = BTreeMap::new();
    for s in &devices {
        let Some(tree) = s.config.list("vdev_tree") else { continue };
        let (id, txg) = (tree.u64("id").unwrap_or(0), label_txg(s));
        if tops.get(&id).is_none_or(|(t, _)| *t < txg) {
            tops.insert(id, (txg, tree.clone()));
        }
    }
    let holes = best.config.u64s("hole_array").map(<[u64]>::to_vec).unwrap_or_default();
    // A label that says there are more vdevs than any pool has is damaged.
    // Labels of old versions do not tell; the last device found is then the last there is.
    let last = tops.last_key_value().map_or(1, |(id, _)| id.saturating_add(1));
    let count = best.config.u64("vdev_children").unwrap_or(last).min(4096);
    let children: Vec<NvList> = (0..count)
        .map(|id| match tops.remove(&id) {
            Some((_, tree)) if !holes.contains(&id) => tree,
            _ => {
                let kind = if holes.contains(&id) { "hole" } else { "missing" };
                NvList::new().with("type", kind).with("id", id).with("guid", 0u64)
            }
        })
        .collect();
    let mut config = best.config.clone();
    for own in ["vdev_tree", "top_guid", "guid", "is_log", "hole_array", "create_txg"] {
        config.remove(own);
    }
    let root =
        NvList::new().with("type", "root").with("id", 0u64).with("guid", guid).with("children", children);
    config.set("vdev_tree", root);
    let newest = devices.iter().filter_map(|s| s.uberblock).max().unwrap_or((0, 0));
    // Of several copies of a device the newest is it; of several paths the first.
    let mut newest_of: BTreeMap<u64, &Seen> = BTreeMap::new();
    for s in &devices {
        let Some(guid) = s.config.u64("guid") else { continue };
        match newest_of.get(&guid) {
            Some(other) if other.uberblock >= s.uberblock => {}
            _ => drop(newest_of.insert(guid, s)),
        }
    }
    let paths = newest_of.into_iter().map(|(guid, s)| (guid, s.path.clone())).collect();
    Some(FoundPool {
        guid,
        name: config.str("name")?.to_string(),
        state: config.u64("state").and_then(PoolState::from_number).unwrap_or(PoolState::Active),
        config,
        paths,
        txg: newest.0,
        timestamp: newest.1,
    })
}

/// Gives the leaves of a tree the paths they were found at.
pub fn set_paths(tree: &mut NvList, paths: &BTreeMap<u64, PathBuf>) {
    if let Some(path) = tree.u64("guid").and_then(|g| paths.get(&g)) {
        tree.set("path", path_text(path));
    }
    for name in ["children", "spares", "l2cache"] {
        for child in tree.lists_mut(name).into_iter().flatten() {
            set_paths(child, paths);
        }
    }
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
