//! `zpool create`, `destroy` and `export`.

use super::destroy::TRIES;
use super::errors::{Answer, of_pool};
use super::inuse::Purpose;
use super::keys::Turn;
use super::pool::Pool;
use super::poolprops::{fail_mode, heeded, in_store};
use super::{Engine, Serves};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla::devices;
use zilla::error::Error;
use zilla::features::SUPPORTED;
use zilla::open::{CreateOpts, Outward, RootFs};
use zilla_control::props::{self, PoolPropContext, PropType, TypedValue, naming};
use zilla_control::types::{
    AllocClass, LeafSpec, MountedReply, PoolCreate, PoolDestroy, PoolExport, TopKind, VdevSpec,
};
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_ondisk::enums::PoolState;

/// Bytes of decompressed blocks that a pool keeps beside its ARC.
pub const DBUF_CACHE: usize = 64 << 20;
/// Bytes of a pool's cache where nothing is known about the memory.
const USUAL_ARC: u64 = 1 << 30;
/// Bytes that a pool's cache has in any case.
const LEAST_ARC: u64 = 32 << 20;

impl Serves<PoolCreate> for Engine {
    async fn serve(&self, caller: &Caller, r: PoolCreate) -> Answer<MountedReply> {
        naming::check_pool_name(&r.name, false)?;
        let name = r.temporary_name.clone().unwrap_or_else(|| r.name.clone());
        naming::check_pool_name(&name, false)?;
        let mut typed = Vec::new();
        for (property, text) in &r.properties {
            let (kind, value) = props::parse_pool_prop(property, text, PoolPropContext::Create, 1)?;
            heeded(property)?;
            typed.push((property.clone(), kind, value));
        }
        if let Some(root) = r.altroot.as_ref().filter(|root| !root.starts_with('/')) {
            return Err(ApiError::with(ErrorCode::BadPath, format!("bad alternate root '{root}'")));
        }
        let (mut fs_properties, quotas) = super::accounts::split_quotas(caller, &r.fs_properties).await?;
        let crypt = self.new_crypt(&mut fs_properties, r.key.as_ref(), false, Turn::OWNER).await?;
        let mut root_props = super::datasets::typed(&fs_properties, props::FS, true)?;
        let fixed = |name: &str| zilla::number(&root_props, name);
        let mut root = RootFs {
            crypt,
            version: fixed("version").filter(|v| *v != 0),
            normalization: fixed("normalization").unwrap_or(0),
            // What is to be normalized must be UTF-8.
            utf8only: fixed("utf8only").map_or(fixed("normalization").unwrap_or(0) != 0, |n| n != 0),
            casesensitivity: fixed("casesensitivity").unwrap_or(0),
            settings: Vec::new(),
        };
        root_props.retain(|(name, _)| !zilla::FIXED.contains(&name.as_str()));
        root.settings = root_props;
        let _changes = self.changes.lock().await;
        if self.is_name_taken(&name) {
            return Err(ApiError::with(ErrorCode::Exists, "pool already exists"));
        }
        let ashift = typed.iter().find_map(|(name, _, value)| match value {
            TypedValue::Num(n) if name == "ashift" && *n != 0 => u32::try_from(*n).ok(),
            _ => None,
        });
        if let Some((_, _, value)) = typed.iter().find(|(name, ..)| name == "failmode") {
            fail_mode(value)?;
        }
        let _held = self.check_devices(&r.vdevs, r.force, Purpose::NewPool).await?;
        let special = r.vdevs.tops.iter().any(|t| t.class == AllocClass::Special);
        if !special && r.fs_properties.contains_key("special_small_blocks") {
            let what = "special_small_blocks property requires a special vdev";
            return Err(ApiError::with(ErrorCode::BadProp, what));
        }
        let spec = pool_spec(&r.vdevs, ashift);
        let opts = CreateOpts {
            name: name.clone(),
            host: super::host::host(),
            comment: r.properties.get("comment").cloned(),
            owner: (caller.uid, caller.gid),
            features: features(&r, &typed)?,
            dbuf_cache: DBUF_CACHE,
            arc_max: self.arc_max().await,
        };
        let version = typed.iter().find_map(|(name, _, value)| match value {
            TypedValue::Num(n) if name == "version" => Some(*n),
            _ => None,
        });
        // What the pool keeps of the properties, and what is more than that.
        let (mut properties, mut heeds) = (Vec::new(), Vec::new());
        for (property, kind, value) in typed {
            let stored = matches!(kind, PropType::Native(_) | PropType::User);
            let own = matches!(
                property.as_str(),
                "altroot" | "cachefile" | "comment" | "compatibility" | "version" | "tname"
            );
            // Heartbeats begin with the txg that says so, which needs one before it.
            if !stored || own {
                continue;
            } else if property == "multihost" {
                heeds.push((property, value));
            } else if let Some((proper, stored)) = in_store(&property, &value)? {
                properties.extend(stored.map(|stored| (proper.clone(), stored)));
                heeds.push((proper, value));
            }
        }
        let outward = Outward {
            version,
            properties,
            compatibility: r.properties.get("compatibility").cloned(),
            disk_name: r.temporary_name.is_some().then(|| r.name.clone()),
            spares: self.spare_specs(&r.vdevs).await,
        };
        let refused = |e| match e {
            Error::Refused(_) => super::datasets::unsettable(e),
            e => of_pool(e),
        };
        let zilla = zilla::Pool::create_with(&self.env, &spec, opts, root, outward).await.map_err(refused)?;
        let cachefile = r.properties.get("cachefile").filter(|c| !c.is_empty()).cloned();
        let pool = Pool::new(zilla, r.altroot.clone(), cachefile, self.env.rng.u64());
        self.pools.write().insert(name.clone(), pool.clone());
        let settled = async {
            for (property, value) in heeds {
                match property.as_str() {
                    "multihost" => pool.store_prop(&property, &value).await?,
                    proper => pool.apply_prop(proper, &value).await?,
                }
            }
            self.set_quotas(&pool, &name, &quotas).await
        };
        if let Err(e) = settled.await {
            // It is refused whole.
            self.take_down(&pool, Some(PoolState::Destroyed), true).await?;
            return Err(e);
        }
        self.save_cache().await;
        super::events::notify(&pool, "pool_create");
        let mount_error = pool.mount_one(self, &name, &[], false).await.err();
        Ok(MountedReply { mount_error })
    }
}

impl Engine {
    /// Takes a pool out of the table and closes it. `state`: what its labels shall say.
    async fn take_down(&self, pool: &Arc<Pool>, state: Option<PoolState>, force: bool) -> Answer<()> {
        let shown = self.devices_shown(&pool.name()).await;
        let mounted = pool.mounted_below(&pool.name());
        let mut unmounted = Vec::new();
        let unused = async {
            self.hide_devices(pool, &shown, force).await?;
            pool.release_volumes(force).await?;
            // Somebody may mount something meanwhile.
            for _ in 0..TRIES {
                let (mut some, stopped) = pool.unmount_each(&pool.all_mounted(), force).await;
                unmounted.append(&mut some);
                if let Some(e) = stopped {
                    return Err(e);
                }
                let _one = pool.mounting.lock().await;
                if pool.all_mounted().is_empty() {
                    pool.leaves.store(true, Ordering::Release);
                    return Ok(());
                }
            }
            Err(ApiError::with(ErrorCode::Busy, "pool or dataset is busy"))
        };
        if let Err(e) = unused.await {
            // What is refused is refused whole.
            if let Some(e) = pool.mount_back(self, &unmounted).await {
                let name = e.subject.clone().unwrap_or_default();
                tracing::error!("'{name}' cannot be mounted again: {}", e.description());
            }
            if !shown.is_empty() {
                self.show_devices(&pool.name()).await;
            }
            return Err(e);
        }
        for name in mounted {
            pool.remove_mountpoint(&name).await;
        }
        self.drop_pool(pool);
        // From here on there is no way back: the pool is closed whatever its devices say. A client
        // may have come since.
        pool.release_volumes(true).await?;
        // Nobody else watches it any more.
        let watched = async {
            loop {
                self.env.sleep(std::time::Duration::from_secs(1)).await;
                pool.zilla.check_deadman();
            }
        };
        let closed = tokio::select! {
            closed = pool.zilla.close(state) => closed,
            never = watched => never,
        };
        pool.zilla.clear_cache();
        crate::memory::reclaim(pool.name(), pool.zilla.remains());
        // What goes as if the host had gone down stays in its cache file, as in OpenZFS.
        match state {
            Some(_) => self.save_cache().await,
            None => self.leave_cache(pool).await,
        }
        closed.map_err(of_pool)
    }
}

impl Serves<PoolDestroy> for Engine {
    async fn serve(&self, caller: &Caller, r: PoolDestroy) -> Answer<()> {
        let _changes = self.changes.lock().await;
        let pool = self.pool(&r.name)?;
        // As in OpenZFS one that was imported read-only is only let go of: nothing is written to
        // it.
        let state = if pool.readonly() { PoolState::Exported } else { PoolState::Destroyed };
        // Who imports it again (`zpool import -D`) finds out.
        if let Some(line) = caller.command.as_ref().filter(|_| !pool.readonly()) {
            self.log(&pool, caller, line).await;
        }
        self.take_down(&pool, Some(state), r.force).await?;
        super::events::notify(&pool, "pool_destroy");
        Ok(())
    }
}

impl Serves<PoolExport> for Engine {
    async fn serve(&self, caller: &Caller, r: PoolExport) -> Answer<()> {
        let force = r.force || r.hard_force;
        if force && let Ok(pool) = self.pool(&r.name) {
            // What is not on disk is lost; that is what the force is for. Who is changing the pool
            // waits for it, and has the lock meanwhile.
            pool.zilla.abandon();
        }
        let _changes = self.changes.lock().await;
        if self.let_go(&r.name).await {
            return Ok(());
        }
        let pool = self.pool(&r.name)?;
        if force {
            pool.zilla.abandon();
        } else {
            pool.check_running()?;
        }
        if !force && self.has_active_shared_spare(&pool) {
            let what = "use '-f' to override the following errors:";
            let line = format!(
                "'{0}' has an active shared spare which could be used by other pools once '{0}' is exported.",
                r.name
            );
            return Err(ApiError::with(ErrorCode::ActiveSpare, what).details(vec![line]));
        }
        if let Some(line) = caller.command.clone().filter(|_| !pool.readonly()) {
            self.log(&pool, caller, &line).await;
        }
        let begun = self.env.clock.now();
        // By `-F` its labels go on saying that it is in use, as if this host had gone down.
        let state = (!r.hard_force).then_some(PoolState::Exported);
        self.take_down(&pool, state, force).await?;
        self.injected_pause(&r.name, false, begun).await;
        super::events::notify(&pool, "pool_export");
        Ok(())
    }
}

impl Engine {
    /// A quarter of the memory there is: the host has other work, and pools share it. `zfs_arc_max`
    /// says another number ([`zilla::tunables`]).
    pub(super) async fn arc_max(&self) -> u64 {
        let memory = zilla::stats::memory(&*self.env.opener).await;
        memory.map_or(USUAL_ARC, |m| m.total / 4).max(LEAST_ARC)
    }
}

/// A block device rather than a file. The path may lead into a file system of this process.
pub(super) fn is_disk(path: &Path) -> bool {
    let path = path.to_owned();
    let look = move || std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    zilla_env::block_on(zilla_env::apart(look)).unwrap_or(false)
}

/// The features to enable: what was named, over all or none.
fn features(r: &PoolCreate, typed: &[(String, PropType, TypedValue)]) -> Answer<Option<Vec<String>>> {
    let chosen = typed.iter().filter_map(|(name, kind, value)| match (kind, value) {
        (PropType::Feature, TypedValue::Str(state)) => {
            Some((name.trim_start_matches("feature@").to_owned(), state == "enabled"))
        }
        _ => None,
    });
    let chosen: BTreeMap<String, bool> = chosen.collect();
    let named: Vec<String> = chosen.iter().filter(|(_, on)| **on).map(|(name, _)| name.clone()).collect();
    super::identity::supported(&named)?;
    if chosen.is_empty() && !r.disable_features && r.feature_set.is_none() {
        return Ok(None);
    }
    let asked_for = |f: &str| r.feature_set.as_ref().is_none_or(|set| set.iter().any(|name| name == f));
    let wanted = |f: &str| !r.disable_features && chosen.get(f) != Some(&false) && asked_for(f);
    let mut list: Vec<String> = SUPPORTED.iter().filter(|f| wanted(f)).map(|f| (*f).to_owned()).collect();
    for (name, on) in chosen {
        if on && !list.contains(&name) {
            list.push(name);
        }
    }
    Ok(Some(list))
}

pub(super) fn leaf_specs(leaves: &[LeafSpec]) -> Vec<devices::LeafSpec> {
    let leaf = |l: &LeafSpec| {
        let path = PathBuf::from(&l.path);
        let disk = is_disk(&path);
        devices::LeafSpec { path, disk }
    };
    leaves.iter().map(leaf).collect()
}

pub(super) fn pool_spec(spec: &VdevSpec, ashift: Option<u32>) -> devices::PoolSpec {
    let tops = spec.tops.iter().map(|top| {
        let leaves = leaf_specs(&top.leaves);
        let disk = leaves.first().is_some_and(|l| l.disk);
        let kind = match top.kind {
            TopKind::Single if disk => devices::VdevKind::Disk,
            TopKind::Single => devices::VdevKind::File,
            TopKind::Mirror => devices::VdevKind::Mirror,
            TopKind::Raidz { parity } => devices::VdevKind::Raidz { nparity: parity },
            TopKind::Draid { parity, data, spares } => {
                devices::VdevKind::Draid { nparity: parity, ndata: data, nspares: spares }
            }
        };
        let bias = match top.class {
            AllocClass::Special => Some("special"),
            AllocClass::Dedup => Some("dedup"),
            _ => None,
        };
        devices::TopSpec { kind, leaves, is_log: top.class == AllocClass::Log, bias, ashift }
    });
    devices::PoolSpec { tops: tops.collect(), cache: leaf_specs(&spec.l2cache) }
}
