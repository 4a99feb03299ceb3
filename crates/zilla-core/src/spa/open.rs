//! Opening a pool that exists.
//!
//! Twice: first as the labels describe it, without touching anything, to read the configuration in
//! the MOS; then as that configuration describes it, exclusively where it is to be written. Until
//! the second opening has succeeded nothing was changed.

use super::activity::{self, Rank};
use super::checkpoint;
use super::condense::Condenser;
use super::config::{self, Host};
use super::discover::{FoundPool, set_paths};
use super::multihost::Heart;
use super::split::Into;
use super::vdev_objects::{load_biases, top_zap};
use super::{PoolCtx, Spa, State, indirect};
use crate::arc::Cache;
use crate::ddt::Ddt;
use crate::dmu::{DbufCache, Objset, Prefetch, WriteProps};
use crate::dsl::DslPool;
use crate::dsl::bpobj::Bpobj;
use crate::error::{Errno, Error, Result};
use crate::metaslab::{Metaslabs, SpaceClass, SpaceFeatures, VdevSpec};
use crate::spa::Refusal;
use crate::spa::brt::Brt;
use crate::tunables;
use crate::txg::TxgState;
use crate::types::{ObjectId, TXG_DEFER_SIZE, Txg};
use crate::vdev::{Guarded, Leaf, Lease, OpenArgs, PoolLabels, Top, Vdev, VdevState, VdevTree};
use crate::zap::Zap;
use crate::zio::{DedupTables, References, Zio};
use event_listener::Event;
use futures_util::future::{join, select};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_env::Env;
use zilla_ondisk::dsl::{DMU_POOL_DEFLATE, DMU_POOL_L2CACHE, DMU_POOL_PROPS, DMU_POOL_SPARES};
use zilla_ondisk::enums::{PoolState, SPA_VERSION_DITTO_BLOCKS};
use zilla_ondisk::{BlkPtr, NvList, Uberblock};

/// Object 1 of every MOS.
pub(super) const DIRECTORY: u64 = 1;

/// How to open a pool.
#[derive(Clone, Default)]
pub struct OpenOpts {
    pub readonly: bool,
    /// Open even if another host used it last, or it is not exported.
    pub force: bool,
    /// Open even if it was destroyed.
    pub destroyed: bool,
    pub host: Host,
    /// The host's number is made up: another host may have the same.
    pub unset_hostid: bool,
    /// Look at a pool, maybe while another host has it: it is not looked whether one does.
    pub observe: bool,
    /// The pool was found not to be in use, as of this uberblock ([`Spa::look_for_activity`]).
    pub quiet: Option<Rank>,
    /// Open even if log devices are missing, and with them what was only on them.
    pub missing_log: bool,
    /// A new name; lasting if the pool is writable.
    pub name: Option<String>,
    /// The name is only for as long as the pool is open here.
    pub temporary_name: bool,
    /// Go back to the checkpoint; for good if the pool is writable.
    pub rewind_to_checkpoint: bool,
    /// Go back to an older uberblock where the newest cannot be opened.
    pub rewind: Option<Rewind>,
    /// Bytes of decompressed blocks kept beside the ARC.
    pub dbuf_cache: usize,
    /// Bytes of the ARC.
    pub arc_max: u64,
}

/// How far back an import may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// No txg after this one.
    pub max_txg: u64,
    /// As far as there are uberblocks, rather than to those whose blocks cannot have been given out
    /// again.
    pub extreme: bool,
}

/// How the MOS is written.
pub(super) fn mos_props(lz4: bool, version: u64) -> WriteProps {
    let copies = if version < SPA_VERSION_DITTO_BLOCKS { 1 } else { 3 };
    let compress = CompressSpec::new(if lz4 { Compress::Lz4 } else { Compress::Lzjb });
    WriteProps {
        checksum: Checksum::Fletcher4,
        compress,
        copies,
        metadata_copies: copies,
        metadata_compress: compress,
        hole_birth: false,
        // Nothing would count the use of the feature for the pool's own.
        large_microzap: false,
        embed: true,
        special_upto: 0,
        dedup: None,
        prefetch: Prefetch::default(),
        keep: true,
    }
}

/// What the metaslabs must know of each top-level vdev.
pub(super) fn vdev_specs(tree: &VdevTree) -> Vec<VdevSpec> {
    let concrete = tree.tops.iter().filter(|t| t.vdev.is_concrete());
    concrete
        .map(|top| {
            let class = match top.vdev.bias().as_deref() {
                _ if top.vdev.is_log => SpaceClass::Log,
                Some("special") => SpaceClass::Special,
                Some("dedup") => SpaceClass::Dedup,
                _ => SpaceClass::Normal,
            };
            let own = top.clone();
            VdevSpec {
                id: top.id,
                class,
                ashift: top.ashift() as u8,
                asize: top.vdev.asize(),
                create_txg: Txg(top.vdev.config_u64("create_txg").unwrap_or(0)),
                ms_shift: top.vdev.metaslab_shift() as u8,
                ms_array: ObjectId(top.vdev.metaslab_array()),
                top_zap: top_zap(&top.vdev),
                data_disks: top.vdev.data_disks(),
                grain: top.grain(),
                usable: top.vdev.allocatable(),
                psize_to_asize: Arc::new(move |psize, txg: Txg| own.psize_to_asize(psize, txg.0)),
            }
        })
        .collect()
}

pub(super) fn space_features(ctx: &PoolCtx) -> SpaceFeatures {
    SpaceFeatures {
        spacemap_histogram: ctx.features.is_enabled("spacemap_histogram"),
        spacemap_v2: ctx.features.is_active("spacemap_v2"),
        log_spacemap: ctx.features.is_enabled("log_spacemap"),
        obsolete_counts: ctx.features.is_enabled("obsolete_counts"),
    }
}

/// Opens the MOS that an uberblock leads to.
async fn open_mos(zio: &Zio, ub: &Uberblock, cache: &Arc<DbufCache>) -> Result<Arc<Objset>> {
    Objset::open(0, &ub.rootbp, Arc::new(zio.clone()), cache.clone(), mos_props(true, ub.version)).await
}

impl Spa {
    #[crate::boxed]
    pub async fn open(env: &Env, found: &FoundPool, opts: OpenOpts) -> Result<Arc<Spa>> {
        let look = async |opts: OpenOpts| -> Result<OpenOpts> {
            let quiet = if opts.observe { None } else { Self::look_for_activity(env, found, &opts).await? };
            Ok(OpenOpts { quiet, ..opts })
        };
        let mut opts = look(opts).await?;
        let Some(rewind) = opts.rewind else { return Self::open_newest(env, found, opts, u64::MAX).await };
        let txgs = Self::uberblock_txgs(env, found).await?;
        let newest = txgs.first().copied().unwrap_or(0);
        let oldest = if rewind.extreme { 0 } else { newest.saturating_sub(TXG_DEFER_SIZE as u64) };
        let mut failed = None;
        for txg in txgs.into_iter().filter(|txg| (oldest..=rewind.max_txg).contains(txg)) {
            match Self::open_newest(env, found, opts.clone(), txg).await {
                // (An older configuration may do without a vdev that is away.)
                Err(e) if matches!(e, Error::Corrupt(_)) || e.is(Errno::NxIo) => {
                    tracing::info!(pool = %found.name, txg, "cannot be opened as of this txg: {e}");
                    failed.get_or_insert(e);
                    opts = look(opts).await?;
                }
                done => return done,
            }
        }
        let what = format!("pool '{}': no uberblock to go back to", found.name);
        Err(failed.unwrap_or_else(|| Error::os(Errno::Io, what)))
    }

    /// The txgs of all uberblocks that there are, the newest first.
    async fn uberblock_txgs(env: &Env, found: &FoundPool) -> Result<Vec<u64>> {
        let mut tree_config = found.config.list("vdev_tree").cloned().unwrap_or_default();
        set_paths(&mut tree_config, &found.paths);
        let tree = Arc::new(VdevTree::from_config(env, &tree_config)?);
        let opened =
            tree.open_labelled(&OpenArgs { pool_guid: Some(found.guid), ..OpenArgs::default() }).await;
        tree.close().await;
        Ok(opened?.uberblocks.iter().map(|u| u.ub.txg).collect())
    }

    /// As of the newest uberblock that is not after `max`.
    async fn open_newest(env: &Env, found: &FoundPool, opts: OpenOpts, max: u64) -> Result<Arc<Spa>> {
        if found.state == PoolState::Destroyed && !opts.destroyed {
            return Err(Error::no_ent(format!("pool '{}' was destroyed", found.name)));
        }
        let Trusted { config: mut trusted, checkpoint, read } =
            Self::trusted_config(env, found, &opts, max).await?;
        super::split::choose_sides(env, found, &mut trusted).await?;
        if !opts.force && !opts.readonly {
            config::check_host(&trusted, &opts.host)?;
        }
        let guarded = Lease::guard(env);
        let tree = trusted_tree(&guarded.env, found, &trusted)?;
        let args = OpenArgs { write: !opts.readonly, pool_guid: Some(found.guid), ..OpenArgs::default() };
        let opened = tree.open_labelled(&args).await;
        let result = match opened {
            Ok(_) if !opts.missing_log && !missing_logs(&tree).is_empty() => {
                Err(Refusal::MissingLogs(missing_logs(&tree)).into())
            }
            // What it lacks may have a newer txg, whose blocks the first write would go over.
            Ok(_) if tree.lost_tops() > 0 && tree.root.state().0 < VdevState::Degraded => Err(lacking(&tree)),
            Ok(labels) => {
                let from = match checkpoint {
                    Some(kept) => From::Checkpoint(kept),
                    None => From::Newest { max },
                };
                let opened = Opened { tree: tree.clone(), labels, read };
                Self::open_on(&guarded, found, &trusted, opened, opts, from).await
            }
            Err(e) => Err(e),
        };
        if result.is_err() {
            tree.close().await;
        }
        result
    }

    /// For a pool of which labels do not tell all top-level vdevs: its devices as its own
    /// configuration has them, those that are there opened, if all that it lacks is log devices or
    /// what it may lack ([`tunables::MAX_MISSING_TVDS`]); and whether it lacks logs. Nothing is
    /// written. The caller closes the tree.
    #[crate::boxed]
    pub async fn lacks_little(env: &Env, found: &FoundPool) -> Option<(Arc<VdevTree>, bool)> {
        let opts = OpenOpts { readonly: true, arc_max: 16 << 20, ..OpenOpts::default() };
        let trusted = Self::trusted_config(env, found, &opts, u64::MAX).await.ok()?;
        let tree = trusted_tree(env, found, &trusted.config).ok()?;
        let opened = tree.open(&OpenArgs { pool_guid: Some(found.guid), ..OpenArgs::default() }).await;
        let lacks = !missing_logs(&tree).is_empty();
        // Removed vdevs have no labels to be found by.
        let spared = tree.indirect().next().is_some() || tree.lost_tops() > 0;
        if opened.is_ok() && (lacks || spared && tree.root.state().0 >= VdevState::Degraded) {
            return Some((tree, lacks));
        }
        tree.close().await;
        None
    }

    /// The hot spares and cache devices of a pool that is not open, as its MOS lists them, in a
    /// tree that is closed. Nothing is written.
    #[crate::boxed]
    pub async fn aux_of(env: &Env, found: &FoundPool) -> Result<VdevTree> {
        let mut tree_config = found.config.list("vdev_tree").cloned().unwrap_or_default();
        set_paths(&mut tree_config, &found.paths);
        let tree = Arc::new(VdevTree::from_config(env, &tree_config)?);
        let args = OpenArgs { pool_guid: Some(found.guid), ..OpenArgs::default() };
        let labels = tree.open_labelled(&args).await?;
        let zio = Zio::new(env, tree.clone(), Arc::new(Cache::new(16 << 20)));
        let cache = DbufCache::new(1 << 20);
        let result = async {
            let ub = best_uberblock(&labels, &tree, &found.name, true, u64::MAX)?;
            tree.note_reflow(&ub);
            tree.note_outdated(&labels, ub.txg);
            tree.note_unfinished(ub.txg);
            let mos = open_mos(&zio, &ub, &cache).await?;
            let directory = Zap::open(&mos, DIRECTORY).await?;
            let listed = async |name: &str| -> Result<Vec<NvList>> {
                let Some(id) = directory.try_get_u64(name).await? else { return Ok(Vec::new()) };
                let mut list = config::read_packed(&mos, id).await?;
                set_paths(&mut list, &found.paths);
                Ok(list.lists(name).unwrap_or_default().to_vec())
            };
            let with_spares = tree.adding_spares(&listed(DMU_POOL_SPARES).await?)?;
            with_spares.adding_cache(&listed(DMU_POOL_L2CACHE).await?)
        };
        let result = result.await;
        tree.close().await;
        result
    }

    /// Reads the MOS's configuration through the devices that labels speak of. Where the pool is to
    /// go back to its checkpoint, that one's configuration.
    pub(super) async fn trusted_config(
        env: &Env,
        found: &FoundPool,
        opts: &OpenOpts,
        max: u64,
    ) -> Result<Trusted> {
        let mut tree_config = found.config.list("vdev_tree").cloned().unwrap_or_default();
        set_paths(&mut tree_config, &found.paths);
        let tree = Arc::new(VdevTree::from_config(env, &tree_config)?);
        let args = OpenArgs { pool_guid: Some(found.guid), ..OpenArgs::default() };
        let labels = tree.open_labelled(&args).await?;
        let zio = Zio::new(env, tree.clone(), Arc::new(Cache::new(opts.arc_max)));
        let cache = DbufCache::new(opts.dbuf_cache);
        let result = async {
            // The DTLs are not known yet, but what is behind is not to be read first.
            let ub = best_uberblock(&labels, &tree, &found.name, opts.readonly, max)?;
            tree.note_reflow(&ub);
            tree.note_outdated(&labels, ub.txg);
            tree.note_unfinished(ub.txg);
            let mut mos = open_mos(&zio, &ub, &cache).await?;
            let mut checkpoint = None;
            if opts.rewind_to_checkpoint {
                let directory = Zap::open(&mos, DIRECTORY).await?;
                let mut back = checkpoint::read(&directory).await?.ok_or(Refusal::NoCheckpoint)?;
                // Newer than all there are, so that the next import takes it.
                let txg = labels.newest.max(ub.txg).saturating_add(1);
                (back.txg, back.timestamp) = (txg, env.clock.wall().as_secs());
                let cache = DbufCache::new(opts.dbuf_cache);
                mos = open_mos(&zio, &back, &cache).await?;
                checkpoint = Some(back);
            }
            let id = Zap::open(&mos, DIRECTORY).await?.get_u64("config").await?;
            let config = config::read_packed(&mos, id).await?;
            let sound = |l: &Arc<Leaf>| {
                [&l.read_errors, &l.checksum_errors].iter().all(|n| n.load(Ordering::Relaxed) == 0)
            };
            let read = (checkpoint.is_none() && tree.pool_leaves().all(sound))
                .then(|| (ub.rootbp, zio.cache().clone()));
            Ok(Trusted { config, checkpoint, read })
        };
        let result = result.await;
        tree.close().await;
        result
    }

    pub(super) async fn open_on(
        guarded: &Guarded,
        found: &FoundPool,
        trusted: &NvList,
        Opened { tree, labels, read }: Opened,
        opts: OpenOpts,
        from: From,
    ) -> Result<Arc<Spa>> {
        let env = &guarded.env;
        let newest = labels.uberblocks.first().map(|f| f.ub);
        if opts.quiet.is_some() && newest.map(|ub| ub.rank()) != opts.quiet {
            return Err(activity::elsewhere(&labels));
        }
        // It may have become another's since it was looked at, or could not be looked at then.
        let apart = matches!(&from, From::Split(_));
        if !opts.observe && !apart && newest.is_some_and(|ub| activity::is_unwatched(&labels, &ub, &opts)) {
            return Err(activity::elsewhere(&labels));
        }
        let ub = match &from {
            From::Newest { max } => best_uberblock(&labels, &tree, &found.name, opts.readonly, *max)?,
            From::Checkpoint(kept) => *kept,
            From::Split(into) => {
                into.uberblock(best_uberblock(&labels, &tree, &found.name, false, u64::MAX)?)?
            }
        };
        tree.note_reflow(&ub);
        // What comes next counts more than anything that is left behind, and than what a device
        // that is away may have.
        let last = labels.newest.max(ub.txg);
        let newer = matches!(&from, From::Newest { .. }) && !opts.readonly;
        let newer = newer && (ub.txg < last || !tree.knows_all_uberblocks(&labels));
        #[cfg(feature = "planted")]
        let newer = newer && !crate::planted::is(crate::planted::Bug::WentOnUnsaid);
        let last = if newer { last.saturating_add(1) } else { last };
        // Before anything is read, and again when the DTLs are known, which take its place.
        tree.note_outdated(&labels, ub.txg);
        tree.note_unfinished(ub.txg);
        let read = read.filter(|(root, _)| *root == ub.rootbp).map(|(_, cache)| cache);
        let zio = Zio::new(env, tree.clone(), read.unwrap_or_else(|| Arc::new(Cache::new(opts.arc_max))));
        let txgs = TxgState::new(env.clone(), Txg(last));
        env.spawn(crate::memory::watch(Arc::downgrade(zio.cache()), env.clone()));
        let cache = DbufCache::new(opts.dbuf_cache);
        crate::memory::join(env, zio.cache(), &txgs, &cache).await;
        let store = Arc::new(zio.clone());
        let ctx = PoolCtx::new(env.clone(), store, cache.clone(), txgs, found.guid, opts.readonly);
        ctx.set_version(ub.version);
        let mos = open_mos(&zio, &ub, &cache).await?;
        ctx.set_mos(mos.clone());
        let directory = Zap::open(&mos, DIRECTORY).await?;
        let removing = indirect::load(&mos, &directory, &tree).await?;
        let condenser = Condenser::load(&directory).await?;
        ctx.features.load(&mos, &directory).await?;
        ctx.features.check(&mos, !opts.readonly).await?;
        let multihost = multihost_of(&mos, &directory).await?;
        if multihost && !opts.observe && (opts.host.id == 0 || opts.unset_hostid) {
            return Err(Refusal::NoHostid.into());
        }
        if let Some(salt) = directory.try_get("org.illumos:checksum_salt").await?
            && let Some(Ok(salt)) = salt.as_bytes().map(<&[u8; 32]>::try_from)
        {
            zio.set_salt(salt);
        }
        apply_features(&ctx, &zio);
        tree.load_dtls(&mos, ub.txg).await;
        tree.note_outdated(&labels, ub.txg);
        let metaslabs = Metaslabs::new(space_features(&ctx));
        metaslabs.set_txgs(&ctx.txgs);
        zio.set_allocator(&(metaslabs.clone() as Arc<dyn crate::zio::Allocator>));
        load_biases(&mos, &tree).await?;
        for spec in vdev_specs(&tree) {
            metaslabs.open_vdev(&mos, spec).await?;
        }
        metaslabs.load_logs(&mos).await?;
        metaslabs.load_checkpoints(&mos).await?;
        let checkpoint = checkpoint::Checkpoint::load(&ctx, &directory).await?;
        metaslabs.set_checkpoint(checkpoint.txg());
        tree.count_raw_space(directory.try_get(DMU_POOL_DEFLATE).await?.is_none());
        let name = opts.name.clone().unwrap_or_else(|| found.name.clone());
        let dsl = DslPool::open(&ctx).await?;
        dsl.set_name(&name);
        let deferred = match directory.try_get_u64("sync_bplist").await? {
            Some(id) => Some(Bpobj::open(&mos, id).await?),
            None => None,
        };
        let brt = Arc::new(Brt::load(&ctx, &directory, &tree).await?);
        zio.set_references(Arc::downgrade(&brt) as Weak<dyn References>);
        let ddt = Ddt::load(&ctx, &zio, &directory).await?;
        zio.set_dedup(Arc::downgrade(&ddt) as Weak<dyn DedupTables>);
        indirect::tell_metaslabs(&tree, &metaslabs);
        // Nothing was written so far.
        let newest = newest.unwrap_or(ub);
        let heart = Heart::new(guarded, &zio, &newest, opts.host.id);
        if multihost && !ctx.readonly {
            let seen = match activity::is_claim_needed(&labels, &newest, &opts.host) {
                // They were this host's a moment ago.
                true if apart => return Err(activity::elsewhere(&labels)),
                true => heart.claim(newest.rank()).await?,
                false => heart.look_again(&newest).await?,
            };
            heart.start(opts.host.id, seen);
        }
        let spa = Arc::new(Spa {
            heart,
            removal_pace: AtomicU64::new(super::remove::BATCH),
            evacuation: Mutex::default(),
            condenser,
            expansion_pace: AtomicU64::new(super::expansion::BATCH),
            mover: Arc::default(),
            rebuilds: super::rebuild::Rebuilds::default(),
            removing: Mutex::new(removing),
            brt,
            ddt,
            zio,
            metaslabs,
            dsl,
            state: Mutex::new(State {
                disk_name: opts.temporary_name.then(|| trusted.str("name").unwrap_or(&found.name).to_owned()),
                name,
                state: PoolState::Active,
                host: opts.host,
                comment: trusted.str("comment").map(str::to_string),
                compatibility: trusted.str("compatibility").map(str::to_string),
                splitting: super::split::listed(trusted),
                split_from: None,
            }),
            mos_root: Mutex::new(ub.rootbp),
            uberblock: Mutex::new(ub),
            opened_at: ub,
            config_object: directory.get_u64("config").await?,
            history_object: directory.try_get_u64("history").await?.unwrap_or(0).into(),
            cache_object: AtomicU64::new(0),
            spare_object: AtomicU64::new(0),
            has_vdev_zaps: trusted.flag("com.delphix:has_per_vdev_zaps").into(),
            deferred,
            // The first txg says that the pool is ours now.
            config_dirty: AtomicBool::new(!ctx.readonly),
            autoexpand: AtomicBool::new(false),
            autotrimming: AtomicBool::new(false),
            trims: Default::default(),
            checkpoint: Mutex::new(checkpoint),
            suspension: super::suspend::Suspension::default(),
            leaving: AtomicBool::new(false),
            sync_over: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sync_ended: Event::new(),
            diagnosis: Mutex::default(),
            deadman: Mutex::default(),
            changing: futures_util::lock::Mutex::new(()),
            clearing: futures_util::lock::Mutex::new(()),
            scan: OnceLock::new(),
            ctx: ctx.clone(),
        });
        spa.heart.belong(&spa);
        spa.resume_removal().await?;
        spa.load_expansions().await?;
        if let Err(e) = spa.load_vdev_props().await {
            // Those whose properties were not read take blocks, and the usual limits count for
            // them.
            tracing::warn!(pool = %spa.name(), "the properties of its vdevs cannot be read: {e}");
        }
        spa.update_space()?;
        if tunables::METASLAB_DEBUG_LOAD.get() != 0 {
            spa.metaslabs.load_all().await?;
        }
        if !ctx.readonly {
            if newer {
                // Nothing was written so far.
                let pool = config::pool_part(&spa.identity(Txg(ub.txg)), &spa.ctx.features.for_labels());
                tree.go_on_from(Txg(ub.txg), ctx.txgs.open(), &pool).await?;
            }
            if matches!(&from, From::Checkpoint(_)) {
                spa.make_newest(&ub).await?;
            }
            let kept = Some(Txg(ub.checkpoint_txg)).filter(|txg| txg.0 != 0);
            let (first, open) = (Txg(ub.txg).next(), ctx.txgs.open());
            let claim = crate::zil::Claim { first, open, kept, lost: opts.missing_log };
            crate::zil::claim_all(&spa.dsl, (&spa.metaslabs, &spa.zio), claim).await?;
            match from {
                From::Split(into) => spa.come_apart(into).await?,
                _ => {
                    // The first txg has it, before anything needs them.
                    let (given, ()) = join(spa.complete_vdev_zaps(), async {
                        env.spawn(spa.clone().sync_loop());
                    })
                    .await;
                    given?;
                    spa.note_version(spa.ctx.txgs.open(), "open");
                    spa.sync().await?;
                }
            }
        }
        spa.know_pointers();
        if let Err(e) = spa.load_rebuilds().await {
            // What devices lack is known without it.
            tracing::warn!(pool = %spa.name(), "which vdevs are being rebuilt is not known: {e}");
        }
        spa.open_scan().await?;
        if spa.stored_prop(&directory, "failmode").await? == Some(1) {
            spa.set_fail_mode(super::FailMode::Continue);
        }
        if tree.lost_tops() > 0 {
            tracing::warn!(pool = %spa.name(), "opened without some of its top-level vdevs, whose data is missing");
            spa.set_fail_mode(super::FailMode::Continue);
        }
        spa.autoexpand.store(spa.stored_prop(&directory, "autoexpand").await? == Some(1), Ordering::Relaxed);
        if let Some(quota) = spa.stored_prop(&directory, "dedup_table_quota").await? {
            spa.ddt.set_quota(quota);
        }
        if let Err(e) = spa.load_upkeep().await {
            // The pool is whole without it.
            tracing::warn!(pool = %spa.name(), "how far devices are initialized or trimmed is not known: {e}");
        }
        spa.set_autotrim(spa.stored_prop(&directory, "autotrim").await? == Some(1));
        spa.be_patient();
        spa.zio.l2().set_pool(spa.guid(), &ctx.txgs, ctx.readonly);
        spa.open_cache(&directory, &found.paths).await?;
        spa.open_spares(&directory, &found.paths).await?;
        if !ctx.readonly {
            // If the devices fail now the pool is open, and suspended: it can be cleared or
            // exported.
            let settled = spa.clone();
            let settled =
                std::pin::pin!(env.spawn_with_result(async move { settled.settle_devices().await }));
            select(settled, std::pin::pin!(spa.suspension.happens())).await;
            spa.watch_devices();
            spa.go_on_discarding();
            spa.go_on_removing();
            spa.condense_on();
            spa.resume_upkeep();
            spa.rebuild_on();
            spa.expand_on();
            spa.go_on_after_expansion();
        }
        Ok(spa)
    }
}

/// Whether the property is on. The pool is not open yet.
async fn multihost_of(mos: &Arc<Objset>, directory: &Zap) -> Result<bool> {
    let Some(id) = directory.try_get_u64(DMU_POOL_PROPS).await? else { return Ok(false) };
    Ok(Zap::open(mos, id).await?.try_get_u64("multihost").await? == Some(1))
}

/// What was read of the MOS below a root. What the same root leads to is the same, whatever devices
/// it was read from; there is none where a device gave something wrong, which is to be found again
/// where it can be repaired.
type Read = Option<(BlkPtr, Arc<Cache>)>;

/// What the MOS says, read through the devices that labels speak of.
pub(super) struct Trusted {
    pub(super) config: NvList,
    /// Where the pool is to go back to its checkpoint: that one's uberblock, as it becomes the
    /// newest.
    checkpoint: Option<Uberblock>,
    read: Read,
}

/// The pool's devices, opened.
pub(super) struct Opened {
    pub(super) tree: Arc<VdevTree>,
    pub(super) labels: PoolLabels,
    pub(super) read: Read,
}

/// Where an import begins.
pub(super) enum From {
    /// The newest uberblock that is not after this txg.
    Newest {
        max: u64,
    },
    Checkpoint(Uberblock),
    /// The newest that devices have which are split off from another pool.
    Split(Into),
}

pub(super) fn trusted_tree(env: &Env, found: &FoundPool, trusted: &NvList) -> Result<Arc<VdevTree>> {
    let tree = trusted.list("vdev_tree").cloned();
    let mut tree = tree.ok_or_else(|| Error::corrupt(None, "MOS", "the configuration has no vdev_tree"))?;
    set_paths(&mut tree, &found.paths);
    // It may have got another one in the txg that did not come to its end.
    tree.set("guid", found.guid);
    Ok(Arc::new(VdevTree::from_config(env, &tree)?))
}

/// Log devices that could not be opened. One that is offline or was found faulty is not missed: the
/// log was emptied before the last that could be read was.
fn missing_logs(tree: &VdevTree) -> Vec<String> {
    let told = |l: &Arc<Leaf>| matches!(l.state().0, VdevState::Offline | VdevState::Faulted);
    let missed = |t: &&Top| {
        let cannot = t.vdev.is_log && t.vdev.is_concrete() && t.vdev.state().0 == VdevState::CantOpen;
        cannot && !t.leaves().all(told)
    };
    let mut lines = Vec::new();
    for top in tree.tops.iter().filter(missed) {
        let name = |v: &Vdev| match &v.leaf {
            Some(leaf) => leaf.path(),
            None => format!("{}-{}", v.kind.type_name(), v.id),
        };
        lines.push(format!("\t    {} [log]", name(&top.vdev)));
        lines.extend(top.vdev.children.iter().map(|c| format!("\t      {}", name(c))));
    }
    lines
}

/// Why a pool cannot be opened that lacks top-level vdevs: who has their devices is told before.
fn lacking(tree: &VdevTree) -> Error {
    held(tree).unwrap_or_else(|| Error::os(Errno::NxIo, "one or more devices is currently unavailable"))
}

/// Somebody else has the pool's devices.
fn held(tree: &VdevTree) -> Option<Error> {
    tree.leaves.iter().filter_map(|l| l.open_error()).find(|e| e.is(Errno::Busy))
}

/// What the pool's features allow those who write blocks.
pub(super) fn apply_features(ctx: &PoolCtx, zio: &Zio) {
    zio.set_hole_birth(ctx.features.is_active("hole_birth"));
    zio.set_embedded_data(ctx.features.is_enabled("embedded_data"));
    let mos = ctx.mos();
    let mut props = mos_props(ctx.features.is_active("lz4_compress"), ctx.version());
    props.hole_birth = ctx.features.is_active("hole_birth");
    mos.set_props(props);
}

/// Whether an expansion has gone on since an uberblock: where sectors were, others may lie.
fn moved_since(labels: &PoolLabels, ub: &Uberblock) -> bool {
    let at = |u: &Uberblock| (u.reflow_offset(), u.reflow_scratch_state());
    labels.uberblocks.iter().filter(|u| u.ub.txg > ub.txg).any(|u| at(&u.ub) != at(ub))
}

fn best_uberblock(
    labels: &PoolLabels,
    tree: &VdevTree,
    name: &str,
    readonly: bool,
    max: u64,
) -> Result<Uberblock> {
    match labels.uberblocks.iter().find(|u| u.ub.txg <= max) {
        Some(found) if !readonly && max == u64::MAX && labels.away.is_some_and(|txg| txg > found.ub.txg) => {
            Err(Error::os(
                Errno::NxIo,
                "its newest state is on devices that are away, and others were written to after it: \
                 import it with these, or, to go back to what is here, with '-F'",
            ))
        }
        Some(found) if !readonly && moved_since(labels, &found.ub) => Err(Error::os(
            Errno::NotSup,
            "a RAID-Z was being expanded since that txg, and what was moved is not where it was: \
             import it with '-o readonly=on'",
        )),
        Some(found) => Ok(found.ub),
        // Someone else has the devices: that is why nothing could be read of them.
        None => match held(tree) {
            Some(held) => Err(held),
            None => {
                Err(Error::os(Errno::Io, format!("pool '{name}': no valid uberblock on any of its devices")))
            }
        },
    }
}
