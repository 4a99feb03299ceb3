//! The cache file: which pools to open at the next start, and where their devices were.
//!
//! OpenZFS's own format, an XDR nvlist of one configuration per pool, so that `zpool import -c` of
//! either reads it. It is replaced in one step. A pool whose `cachefile` names another file is in
//! that one instead, which is not looked at by itself, and with `cachefile=none` it is in none.
//!
//! A pool's devices may be files of another pool. Then it is opened after that one is mounted,
//! whatever their order in the file; keys that can be found without a person are loaded before
//! (`startkeys.rs`).

use super::Engine;
use super::errors::Answer;
use super::lost::Lost;
use super::pool::Pool;
use super::startkeys::StartKeys;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zilla::open::{FoundPool, OpenOpts};
use zilla_control::{ApiError, ErrorCode};
use zilla_ondisk::NvList;
use zilla_ondisk::enums::PoolState;

impl Engine {
    /// A file's path by its folder's one name, so that two names of a file are seen to be one.
    async fn resolved(&self, path: &Path) -> PathBuf {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return path.to_owned() };
        match self.env.opener.canonical(dir).await {
            Ok(dir) => dir.join(name),
            Err(_) => path.to_owned(),
        }
    }

    /// Writes down the pools that are to come back. Called with `changes` held.
    pub(super) async fn save_cache(&self) {
        let own = self.resolved(&self.handle.state_dir().cache_file()).await;
        // Those that were written before are written again, or go if no pool is in them any more.
        let before = std::mem::take(&mut *self.cache_files.lock());
        let mut files: BTreeMap<PathBuf, NvList> = before.into_iter().map(|p| (p, NvList::new())).collect();
        files.entry(own.clone()).or_default();
        for pool in self.all_pools() {
            let named = pool.cachefile.lock().clone();
            let file = match named.as_deref() {
                Some("none") => continue,
                Some(named) => self.resolved(Path::new(named)).await,
                // The next start would give it that name for good.
                None if pool.zilla.has_temporary_name() => continue,
                None => own.clone(),
            };
            files.entry(file).or_default().add(pool.name(), pool.zilla.cache_entry());
        }
        if let Some(list) = files.get_mut(&own) {
            for (name, lost) in self.lost.read().iter() {
                if !list.contains(name) {
                    list.add(name.as_str(), lost.config.clone());
                }
            }
        }
        for (path, list) in files {
            let written = if list.is_empty() {
                self.env.opener.remove_file(&path).await
            } else {
                self.env.opener.write_file(&path, list.pack()).await
            };
            match written {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    tracing::error!("'{}': {e}", path.display());
                }
                _ if path != own && !list.is_empty() => drop(self.cache_files.lock().insert(path)),
                _ => {}
            }
        }
    }

    /// A pool's own cache file stays as it is, until it is written for another pool.
    pub(super) async fn leave_cache(&self, pool: &Pool) {
        let named = pool.cachefile.lock().clone().filter(|name| name != "none");
        if let Some(name) = named {
            let path = self.resolved(Path::new(&name)).await;
            self.cache_files.lock().remove(&path);
        }
    }

    /// Opens and mounts the pools of the cache file, until the daemon is told to end.
    pub(super) async fn restore(&self) {
        let path = self.handle.state_dir().cache_file();
        let found = match self.entries(&path).await {
            Ok(found) => found,
            Err(e) => {
                tracing::error!("cache file: {e}");
                return;
            }
        };
        let (mut waiting, mut moved, mut keys) = (found, false, StartKeys::default());
        while !waiting.is_empty() {
            // The cache file stays as it is: nobody has looked at the others.
            let Some(next) = self.unless_stopped(first_whole(&waiting)).await else { return };
            let entry = waiting.remove(next);
            match self.restore_one(&entry, &mut keys).await {
                Some(elsewhere) => moved |= elsewhere,
                None => return,
            }
        }
        keys.give_up_files();
        *self.start_keys.lock() = keys;
        if moved {
            // Not before: it would leave out those that were not looked at yet.
            self.save_cache().await;
        }
    }

    /// Opens and mounts one; whether some of its devices were elsewhere. None: the daemon is to
    /// end.
    async fn restore_one(&self, entry: &Cached, keys: &mut StartKeys) -> Option<bool> {
        let look = async {
            let found = self.look_for(entry, &[PoolState::Active]).await?;
            let (found, elsewhere) = self.look_further(entry, found).await;
            Ok::<_, ApiError>(found.map(|f| (f, elsewhere)))
        };
        let (pool, moved) = match self.unless_stopped(look).await? {
            Ok(Some(pool)) => pool,
            Ok(None) => {
                let lacking = self.unless_stopped(entry.lacking()).await?;
                let names: Vec<String> = lacking.iter().map(|p| format!("'{}'", p.display())).collect();
                let lacks = match names.is_empty() {
                    true => "its devices hold no such pool".to_owned(),
                    false => format!("these are not there: {}", names.join(", ")),
                };
                tracing::error!(
                    "cannot open pool '{}': {lacks}; when its devices are there (if they are files, when what \
                     they lie on is mounted), import it: zpool import -d DIRECTORY {}",
                    entry.name,
                    entry.name
                );
                self.lose(&entry.name, entry.lost());
                return Some(false);
            }
            Err(e) => {
                tracing::error!("cannot open pool '{}': {}", entry.name, e.description());
                self.lose(&entry.name, entry.lost());
                return Some(false);
            }
        };
        let opts = OpenOpts {
            // What this daemon had open and did not close is its own to open.
            force: false,
            name: Some(pool.name.clone()),
            ..self.open_opts().await
        };
        match self.unless_stopped(self.open_pool(&pool, opts, None, None)).await? {
            Ok(up) => {
                self.show_pool(&up).await;
                tracing::info!("pool '{}' is open", up.name());
                keys.note(&up).await;
                // Before anything is mounted: what is below a locked dataset may be mounted in it.
                let opened = keys.load_files(self).await;
                if !opened.iter().any(|pool| Arc::ptr_eq(pool, &up)) {
                    up.mount_by_itself(self).await;
                }
                // What was mounted may hold keys, and so may what these open.
                while !keys.load_files(self).await.is_empty() {}
                (!self.handle.is_stopped()).then_some(moved)
            }
            Err(e) => {
                tracing::error!("cannot open pool '{}': {}", pool.name, e.description());
                self.lose(&entry.name, entry.lost());
                Some(false)
            }
        }
    }

    /// The pools that a cache file names, as far as their devices are where it says.
    pub(super) async fn cached(&self, path: &Path) -> Answer<Vec<FoundPool>> {
        let mut all = Vec::new();
        for entry in self.entries(path).await? {
            // Since it was written they may have been exported.
            all.extend(self.look_for(&entry, &[PoolState::Active, PoolState::Exported]).await?);
        }
        Ok(all)
    }

    /// The same pools, wherever in the folders of their devices these are by now: they may have
    /// been renamed.
    pub(super) async fn near_cached(&self, path: &Path) -> Answer<Vec<FoundPool>> {
        let entries = self.entries(path).await?;
        let paths = entries.iter().flat_map(|e| &e.paths);
        let places: BTreeSet<PathBuf> = paths.filter_map(|p| p.parent().map(Path::to_owned)).collect();
        let places: Vec<PathBuf> = places.into_iter().filter(|d| d.is_dir()).collect();
        let mut found = zilla::Pool::find(&self.env, &places).await.map_err(super::errors::of_pool)?;
        found.retain(|f| entries.iter().any(|e| e.guid == f.guid));
        Ok(found)
    }

    /// What stands in a cache file.
    async fn entries(&self, path: &Path) -> Answer<Vec<Cached>> {
        let bytes = match self.env.opener.read_file(path).await {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(ApiError::with(ErrorCode::BadCache, format!("'{}': {e}", path.display()))),
        };
        let list = NvList::unpack(&bytes).map_err(|e| {
            let what = format!("failed to parse cache file '{}': {e}", path.display());
            ApiError::with(ErrorCode::BadCache, what)
        })?;
        let mut all = Vec::new();
        for (name, value) in list.iter() {
            let zilla_ondisk::NvValue::List(config) = value else { continue };
            let mut paths = Vec::new();
            if let Some(tree) = config.list("vdev_tree") {
                leaf_paths(tree, &mut paths);
            }
            let guid = config.u64("pool_guid").unwrap_or(0);
            all.push(Cached { name: name.to_owned(), guid, paths, config: config.clone() });
        }
        Ok(all)
    }

    async fn look_for(&self, entry: &Cached, states: &[PoolState]) -> Answer<Option<FoundPool>> {
        // A path that is gone is a device that is missing, which the pool may do without.
        let lacking = entry.lacking().await;
        let there = entry.paths.iter().filter(|p| !lacking.contains(p)).cloned().collect::<Vec<_>>();
        let found = zilla::Pool::find(&self.env, &there).await.map_err(super::errors::of_pool)?;
        let found = found.into_iter().find(|f| f.guid == entry.guid && states.contains(&f.state));
        Ok(found.map(|f| FoundPool { name: entry.name.clone(), ..f }))
    }
}

/// The first that lacks nothing, for such may bring what others lack; if each lacks something, the
/// first.
async fn first_whole(all: &[Cached]) -> usize {
    for (i, entry) in all.iter().enumerate() {
        if entry.lacking().await.is_empty() {
            return i;
        }
    }
    0
}

/// A pool of a cache file.
pub(super) struct Cached {
    pub name: String,
    pub guid: u64,
    pub paths: Vec<PathBuf>,
    pub config: NvList,
}

impl Cached {
    fn lost(&self) -> Lost {
        Lost { guid: self.guid, config: self.config.clone() }
    }

    /// The devices that are not where they were.
    ///
    /// The kernel may still remember the attributes of files in a mount whose server died, so that
    /// they seem to exist; of their file system it asks each time.
    async fn lacking(&self) -> Vec<PathBuf> {
        let paths = self.paths.clone();
        let look = move || paths.into_iter().filter(|p| rustix::fs::statfs(p).is_err()).collect();
        // Where no thread is to be had the search says what is wrong.
        zilla_env::apart(look).await.unwrap_or_default()
    }
}

/// Where the devices of a configuration are.
pub fn leaf_paths(tree: &NvList, out: &mut Vec<PathBuf>) {
    // A distributed spare is no device.
    if let Some(path) = tree.str("path").filter(|_| tree.str("type") != Some("dspare")) {
        out.push(PathBuf::from(path));
    }
    for child in tree.lists("children").into_iter().flatten() {
        leaf_paths(child, out);
    }
}
