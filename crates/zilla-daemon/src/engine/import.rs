//! `zpool import`: finding pools, and opening one.

use super::create::DBUF_CACHE;
use super::errors::{Answer, of_pool};
use super::pool::Pool;
use super::poolprops::{check_readonly, given};
use super::{Engine, Serves};
use futures_util::StreamExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zilla::error::Error;
use zilla::error::PoolRefusal as Refusal;
use zilla::open::{FoundPool, OpenOpts, Rewind};
use zilla::status::{aux_devices, look_at};
use zilla_control::props::{self, naming};
use zilla_control::types::{
    Feature, FeatureState, ImportCandidate, ImportReply, ImportSearch, ImportSource, MmpState, PoolImport,
    PoolInfo, PoolLabelState, Rewound, VdevAux, VdevState,
};
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_ondisk::enums::PoolState;

/// Where devices are looked for unless `-d` says otherwise: by lasting names first.
const DEFAULT_DIRS: &[&str] = &[
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];

/// Pools that are looked at together: each has its devices open meanwhile.
const AT_ONCE: usize = 8;

/// A name out of a label, without what a terminal would take for commands.
fn printable(name: &str) -> String {
    if name.chars().any(char::is_control) { name.escape_default().to_string() } else { name.to_owned() }
}

/// What an import left behind, if it is not of the newest txg.
fn rewound(found: &FoundPool, pool: &zilla::Pool) -> Option<Rewound> {
    let (txg, timestamp) = pool.opened_at();
    let lost = found.timestamp.saturating_sub(timestamp);
    (txg < found.txg).then_some(Rewound { timestamp, lost_seconds: lost })
}

/// A listing waits no longer for one pool, whatever its labels say: they may be anybody's.
const LONGEST_LISTING: Duration = Duration::from_secs(60);

impl Engine {
    pub(super) async fn open_opts(&self) -> OpenOpts {
        OpenOpts {
            host: super::host::host(),
            unset_hostid: super::host::set_id().is_none(),
            dbuf_cache: DBUF_CACHE,
            arc_max: self.arc_max().await,
            ..OpenOpts::default()
        }
    }

    /// Pools on devices, without those that are open here.
    async fn find(&self, source: &ImportSource) -> Answer<Vec<FoundPool>> {
        if let Some(file) = &source.cachefile
            && let Err(e) = self.env.opener.read_file(Path::new(file)).await
        {
            let what = format!("failed to open cache file: {}", zilla_env::strerror(&e));
            return Err(ApiError::with(ErrorCode::BadCache, what));
        }
        let mut found = match &source.cachefile {
            Some(file) if !source.scan => self.cached(Path::new(file)).await?,
            Some(file) if source.dirs.is_empty() => self.near_cached(Path::new(file)).await?,
            _ => {
                let places: Vec<PathBuf> = if source.dirs.is_empty() {
                    DEFAULT_DIRS.iter().map(PathBuf::from).filter(|d| d.is_dir()).collect()
                } else {
                    source.dirs.iter().map(PathBuf::from).collect()
                };
                zilla::Pool::find(&self.env, &places).await.map_err(of_pool)?
            }
        };
        let open: Vec<u64> = self.all_pools().iter().map(|p| p.zilla.guid()).collect();
        found.retain(|f| !open.contains(&f.guid));
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

impl Serves<ImportSearch> for Engine {
    async fn serve(&self, _: &Caller, r: ImportSearch) -> Answer<Vec<ImportCandidate>> {
        let found = self.find(&r.source).await?;
        let wanted = found.iter().filter(|f| (f.state == PoolState::Destroyed) == r.destroyed);
        // One that another host may have takes a while.
        let all: Vec<_> = wanted.map(|found| self.candidate(found)).collect();
        Ok(futures_util::stream::iter(all).buffered(AT_ONCE).collect().await)
    }
}

impl Engine {
    /// What labels alone say about a pool, with its devices tried.
    async fn candidate(&self, found: &FoundPool) -> ImportCandidate {
        let config = &found.config;
        let mut pool = PoolInfo {
            name: printable(&found.name),
            guid: found.guid,
            txg: found.txg,
            version: config.u64("version").unwrap_or(0),
            hostid: config.u64("hostid").unwrap_or(0),
            hostname: config.str("hostname").unwrap_or_default().to_owned(),
            system_hostid: super::host::host().id,
            timestamp: found.timestamp,
            errata: config.u64("errata").unwrap_or(0),
            label_state: match found.state {
                PoolState::Exported => PoolLabelState::Exported,
                PoolState::Destroyed => PoolLabelState::Destroyed,
                PoolState::Spare => PoolLabelState::Spare,
                PoolState::L2cache => PoolLabelState::L2cache,
                _ => PoolLabelState::Active,
            },
            ..PoolInfo::default()
        };
        let mut candidate = ImportCandidate { can_readonly: true, ..ImportCandidate::default() };
        if let Some(features) = config.list("features_for_read") {
            for (guid, _) in features.iter() {
                let known = props::feature_by_guid(guid);
                let supported = zilla::features::can_serve(guid);
                if !supported {
                    candidate.unsupported_features.insert(guid.to_owned(), String::new());
                    // What stands in labels is needed to read the pool at all.
                    candidate.can_readonly = false;
                }
                pool.features.push(Feature {
                    name: known.map_or(guid, |f| f.name).to_owned(),
                    guid: guid.to_owned(),
                    state: FeatureState::Active,
                    // The list names only some features: it says nothing about those that are
                    // merely enabled.
                    supported: false,
                    readonly_compatible: false,
                });
            }
        }
        let looked = look_at(&self.env, found).await;
        (pool.root, candidate.missing_log) = (looked.root, looked.missing_log);
        if !candidate.unsupported_features.is_empty() {
            (pool.root.stats.state, pool.root.stats.aux) = (VdevState::CantOpen, VdevAux::UnsupFeat);
        }
        if pool.root.stats.state >= VdevState::Degraded {
            self.look_for_activity(found, &mut candidate).await;
            if candidate.mmp != MmpState::Inactive {
                (pool.root.stats.state, pool.root.stats.aux) = (VdevState::CantOpen, VdevAux::Active);
            }
        }
        if pool.root.stats.state >= VdevState::Degraded
            && let Ok((spares, l2cache)) = aux_devices(&self.env, found).await
        {
            (pool.spares, pool.l2cache) = (spares, l2cache);
        }
        candidate.comment = config.str("comment").map(str::to_owned);
        candidate.compatibility = config.str("compatibility").map(str::to_owned);
        candidate.pool = pool;
        candidate
    }

    /// Whether another host has the pool.
    async fn look_for_activity(&self, found: &FoundPool, candidate: &mut ImportCandidate) {
        let quiet = self.quiet.lock().get(&found.guid).copied();
        let opts = OpenOpts { quiet, ..self.open_opts().await };
        let look = zilla::Pool::look_for_activity(&self.env, found, &opts);
        let Ok(looked) = self.env.timeout(LONGEST_LISTING, look).await else {
            // Who imports it by its name waits for as long as it takes.
            tracing::warn!("pool '{}': whether another host has it takes long to see", found.name);
            return;
        };
        let refusal = match looked {
            Ok(Some(rank)) => {
                self.quiet.lock().insert(found.guid, rank);
                return;
            }
            Ok(None) => return,
            Err(Error::Pool(refusal)) => refusal,
            Err(e) => {
                tracing::warn!("pool '{}': {e}", found.name);
                return;
            }
        };
        match &*refusal {
            Refusal::ActiveElsewhere { host, id } => {
                candidate.mmp = MmpState::Active;
                candidate.mmp_hostname = Some(printable(host)).filter(|name| !name.is_empty());
                candidate.mmp_hostid = *id;
            }
            Refusal::NoHostid => candidate.mmp = MmpState::NoHostid,
            _ => {}
        }
    }
}

impl Serves<PoolImport> for Engine {
    async fn serve(&self, _: &Caller, r: PoolImport) -> Answer<ImportReply> {
        let readonly = r.properties.get("readonly").is_some_and(|text| text == "on");
        let rewind = (r.rewind || r.rewind_txg.is_some()).then(|| Rewind {
            max_txg: r.rewind_txg.unwrap_or(u64::MAX),
            extreme: r.rewind_extreme || r.rewind_txg.is_some(),
        });
        if let Some(root) = r.altroot.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(ApiError::with(ErrorCode::BadPath, format!("bad alternate root '{root}'")));
        }
        if let Some(name) = &r.new_name {
            naming::check_pool_name(name, false)?;
        }
        let found = self.find(&r.source).await?;
        let found = found.into_iter().find(|f| f.guid == r.guid);
        let found = found.ok_or_else(|| ApiError::with(ErrorCode::NoEnt, "no such pool available"))?;
        let given = given(&r.properties, found.config.u64("version").unwrap_or(1))?;
        if readonly {
            check_readonly(&given)?;
        }
        let name = r.new_name.clone().unwrap_or_else(|| found.name.clone());
        let opening = {
            let _changes = self.changes.lock().await;
            if self.lost.read().get(&name).is_some_and(|lost| lost.guid != found.guid) {
                return Err(ApiError::with(ErrorCode::Exists, "a pool with that name already exists"));
            }
            self.begin_opening(&name, found.guid)?
        };
        let quiet = self.quiet.lock().get(&found.guid).copied();
        let opts = OpenOpts {
            readonly,
            force: r.force,
            destroyed: r.destroyed,
            missing_log: r.missing_log,
            name: r.new_name.clone(),
            temporary_name: r.temporary_name,
            rewind,
            rewind_to_checkpoint: r.rewind_to_checkpoint,
            quiet,
            ..self.open_opts().await
        };
        if rewind.is_some() && r.rewind_dry_run {
            return self.try_rewind(&found, opts).await;
        }
        let cachefile = r.properties.get("cachefile").filter(|c| !c.is_empty()).cloned();
        let begun = self.env.clock.now();
        let pool = self.open_pool(&found, opts, r.altroot.clone(), cachefile).await?;
        if let Err(e) = pool.take_given(&given).await {
            let closed = pool.zilla.close((!readonly).then_some(PoolState::Exported)).await;
            tracing::info!(pool = %name, "not imported with what it was to be given: {closed:?}");
            return Err(e);
        }
        self.injected_pause(&name, true, begun).await;
        let _changes = self.changes.lock().await;
        if self.closing() {
            pool.zilla.close(None).await.map_err(of_pool)?;
            return Err(ApiError::with(ErrorCode::Busy, "the daemon is being stopped"));
        }
        self.show_pool(&pool).await;
        drop(opening);
        self.found_again(found.guid);
        self.save_cache().await;
        super::events::notify(&pool, "pool_import");
        let mount_errors = if r.no_mount { Vec::new() } else { pool.mount_all(self, &r.mount_options).await };
        let rewound = rewind.and_then(|_| rewound(&found, &pool.zilla));
        Ok(ImportReply { name: pool.name(), mount_errors, rewound })
    }
}

impl Engine {
    /// `-F -n`: how far an import would have to go back.
    async fn try_rewind(&self, found: &FoundPool, opts: OpenOpts) -> Answer<ImportReply> {
        let opts = OpenOpts { readonly: true, ..opts };
        let opened = zilla::Pool::open(&self.env, found, opts).await.map_err(of_pool)?;
        let rewound = rewound(found, &opened);
        opened.close(None).await.map_err(of_pool)?;
        Ok(ImportReply { name: found.name.clone(), rewound, ..ImportReply::default() })
    }

    /// Puts an open pool into the table.
    pub(super) async fn show_pool(&self, pool: &Arc<Pool>) {
        self.pools.write().insert(pool.name(), pool.clone());
        self.show_devices(&pool.name()).await;
    }

    pub(super) async fn open_pool(
        &self,
        found: &FoundPool,
        opts: OpenOpts,
        altroot: Option<String>,
        cachefile: Option<String>,
    ) -> Answer<Arc<Pool>> {
        // It may be a stranger's label that names it.
        let name = opts.name.as_ref().unwrap_or(&found.name);
        if let Err(e) = naming::check_pool_name(name, true) {
            let what = format!("{}; import it under another name", e.description());
            return Err(ApiError::with(ErrorCode::InvalidName, what));
        }
        let zilla = zilla::Pool::open(&self.env, found, opts).await.map_err(of_pool)?;
        let pool = Pool::new(zilla, altroot, cachefile, self.env.rng.u64());
        let settled = async {
            if let Err(e) = pool.replay_volumes().await {
                tracing::error!("pool '{}': looking for volumes: {e}", pool.name());
            }
            if pool.readonly() {
                return;
            }
            match pool.zilla.destroy_inconsistent().await {
                Ok(gone) if gone.is_empty() => {}
                Ok(gone) => tracing::info!("destroyed what interrupted receives left: {}", gone.join(", ")),
                Err(e) => tracing::error!("pool '{}': looking for interrupted receives: {e}", pool.name()),
            }
            if let Err(e) = pool.zilla.release_temporary_holds().await {
                tracing::error!("pool '{}': looking for temporary holds: {e}", pool.name());
            }
        };
        // One that is suspended can be cleared when it is in the table.
        if let Err(why) = pool.unless_suspended(settled).await {
            tracing::error!("pool '{}' is suspended: {why}", pool.name());
        }
        Ok(pool)
    }
}
