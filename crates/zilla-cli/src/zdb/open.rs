//! Finding a pool's devices and opening it read-only.

use super::options::Opts;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use zilla_control::StateDir;
use zilla_core::spa::{FoundPool, OpenOpts, Spa, discover};
use zilla_env::Env;
use zilla_ondisk::NvList;
use zilla_ondisk::enums::PoolState;

const ARC: u64 = 256 << 20;
const DBUFS: usize = 64 << 20;
/// A cache file is small; anything else is none.
const MAX_CACHE_FILE: u64 = 64 << 20;

/// The cache file that was named, or the daemon's.
pub fn cache_path(opts: &Opts) -> Result<PathBuf, String> {
    match &opts.cache_file {
        Some(path) => Ok(path.clone()),
        None => Ok(StateDir::from_env()?.cache_file()),
    }
}

/// The pools of the cache file, by name.
pub fn cached_pools(opts: &Opts) -> Result<NvList, String> {
    let path = cache_path(opts)?;
    let shown = path.display();
    let size = std::fs::metadata(&path).map_err(|e| format!("cannot open '{shown}': {e}"))?.len();
    if size > MAX_CACHE_FILE {
        return Err(format!("'{shown}' is no cache file: {size} bytes"));
    }
    let raw = std::fs::read(&path).map_err(|e| format!("cannot read '{shown}': {e}"))?;
    NvList::unpack(&raw).map_err(|e| format!("'{shown}' is no cache file: {e}"))
}

/// Paths of all leaves in a vdev tree.
fn leaves(tree: &NvList, depth: usize, out: &mut BTreeSet<PathBuf>) {
    if let Some(path) = tree.str("path") {
        out.insert(path.into());
    }
    if depth < 16 {
        for kind in ["children", "spares", "l2cache"] {
            tree.lists(kind).into_iter().flatten().for_each(|c| leaves(c, depth + 1, out));
        }
    }
}

fn is(pool: &FoundPool, name: &str) -> bool {
    pool.name == name || name.parse() == Ok(pool.guid)
}

async fn find(env: &Env, opts: &Opts, name: &str) -> Result<FoundPool, String> {
    let mut found = if opts.on('e') {
        let places = if opts.paths.is_empty() { vec![PathBuf::from("/dev")] } else { opts.paths.clone() };
        discover(env, &places).await.map_err(|e| e.to_string())?
    } else {
        let pools = cached_pools(opts)?;
        let hint = "not in the cache file; an exported pool is opened with -e -p DIRECTORY";
        let config = pools.list(name).ok_or(hint)?;
        let mut places = BTreeSet::new();
        config.list("vdev_tree").into_iter().for_each(|t| leaves(t, 0, &mut places));
        let places: Vec<PathBuf> = places.into_iter().filter(|p| p.exists()).collect();
        let guid = config.u64("pool_guid");
        let mut found = discover(env, &places).await.map_err(|e| e.to_string())?;
        found.retain(|p| Some(p.guid) == guid);
        found
    };
    found.retain(|p| is(p, name));
    let live = found.iter().filter(|p| p.state != PoolState::Destroyed).count();
    if live > 0 {
        found.retain(|p| p.state != PoolState::Destroyed);
    }
    if found.len() > 1 {
        let guids: Vec<String> = found.iter().map(|p| p.guid.to_string()).collect();
        return Err(format!("several pools have this name; name one by its guid: {}", guids.join(", ")));
    }
    found.pop().ok_or_else(|| "no such pool on these devices".to_owned())
}

/// Opens a pool by name or guid.
pub async fn open(env: &Env, opts: &Opts, name: &str) -> Result<Arc<Spa>, String> {
    let found = find(env, opts, name).await?;
    if found.state == PoolState::Active {
        eprintln!(
            "zdb: pool '{}' was not exported: if it is in use, what is shown may change meanwhile",
            found.name
        );
    }
    let how = OpenOpts {
        readonly: true,
        force: true,
        destroyed: true,
        observe: true,
        arc_max: ARC,
        dbuf_cache: DBUFS,
        ..OpenOpts::default()
    };
    Spa::open(env, &found, how).await.map_err(|e| e.to_string())
}
