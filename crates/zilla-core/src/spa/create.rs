//! Making a pool.
//!
//! The first txg is built in memory as OpenZFS builds it, with all properties that were asked for;
//! then the devices get labels of txg 0, which belong to no pool, and it is synced like any other.
//! What is refused is refused before a device is written to. A crash before the first uberblock
//! leaves devices that no import takes for a pool.

use super::config::{self, Host, SPA_VERSION, SPA_VERSION_BEFORE_FEATURES};
use super::features::SUPPORTED;
use super::multihost::Heart;
use super::open::{DIRECTORY, apply_features, mos_props, space_features};
use super::properties::store_property;
use super::spares::SpareSpec;
use super::vdev_objects::VdevObjects;
use super::{PoolCtx, Spa, State, history};
use crate::arc::Cache;
use crate::ddt::Ddt;
use crate::dmu::{DbufCache, Objset};
use crate::dsl::bpobj::Bpobj;
use crate::dsl::{DslPool, NewCrypt, Setting};
use crate::error::{Errno, Error, Result};
use crate::metaslab::{Metaslabs, SpaceClass, SpaceFeatures, metaslab_shift};
use crate::txg::{Tx, TxgState};
use crate::types::{ObjectId, TXG_INITIAL, Txg};
use crate::vdev::spec::{PoolSpec, new_guid};
use crate::vdev::{Guarded, Lease, OpenArgs, VdevTree};
use crate::zap::{CreateOpts as ZapOpts, Value, Zap};
use crate::zio::{DedupTables, References, Zio};
use crate::zpl::{self, Time, ZplProps};
use event_listener::Event;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use zilla_env::Env;
use zilla_ondisk::dsl::{DMU_POOL_DEFLATE, DMU_POOL_L2CACHE};
use zilla_ondisk::enums::{
    PoolState, SPA_VERSION_INITIAL, SPA_VERSION_RAIDZ_DEFLATE, SPA_VERSION_SPARES, SPA_VERSION_ZPOOL_HISTORY,
    is_supported_version,
};
use zilla_ondisk::object_type::DMU_OT_OBJECT_DIRECTORY;
use zilla_ondisk::{BlkPtr, Uberblock};

/// Blocks of the deferred-free list: small ones, as passes rewrite them.
const BPOBJ_BLKSZ: u32 = 1 << 14;
/// Objset type of the MOS.
const DMU_OST_META: u64 = 1;

/// How a pool is to be made.
#[derive(Clone)]
pub struct CreateOpts {
    pub name: String,
    pub host: Host,
    pub comment: Option<String>,
    /// Uid and gid of the root directory.
    pub owner: (u32, u32),
    /// Features to enable, by short name; None for all that zilla has.
    pub features: Option<Vec<String>>,
    pub dbuf_cache: usize,
    pub arc_max: u64,
}

/// What is settled of a pool's own file system when it is made.
#[derive(Default)]
pub struct RootFs {
    pub crypt: NewCrypt,
    /// None: the newest.
    pub version: Option<u64>,
    /// The values of the properties.
    pub normalization: u64,
    pub utf8only: bool,
    pub casesensitivity: u64,
    /// All others that are set.
    pub settings: Vec<(String, Setting)>,
}

/// What other software is to see of a new pool.
#[derive(Clone, Default)]
pub struct Outward {
    /// None: the newest. One before feature flags has none of them.
    pub version: Option<u64>,
    /// The sets of features that it is kept to.
    pub compatibility: Option<String>,
    /// What it is called on disk, where that is not the name that it has while it is open here.
    pub disk_name: Option<String>,
    /// Its hot spares.
    pub spares: Vec<SpareSpec>,
    /// The pool's properties that are kept in it. One that the running pool must heed is switched
    /// on by its caller afterwards.
    pub properties: Vec<(String, Value)>,
}

impl Spa {
    #[crate::boxed]
    pub async fn create(env: &Env, spec: &PoolSpec, opts: CreateOpts) -> Result<Arc<Spa>> {
        Self::create_with(env, spec, opts, RootFs::default(), Outward::default()).await
    }

    /// The same, the root file system and what others see as is said.
    #[crate::boxed]
    pub async fn create_with(
        env: &Env,
        spec: &PoolSpec,
        opts: CreateOpts,
        root: RootFs,
        outward: Outward,
    ) -> Result<Arc<Spa>> {
        let version = outward.version.unwrap_or(SPA_VERSION);
        if !is_supported_version(version) {
            let what = format!(
                "pools have versions {SPA_VERSION_INITIAL} to {SPA_VERSION_BEFORE_FEATURES}, or feature flags"
            );
            return Err(Error::os(Errno::NotSup, what));
        }
        super::vdevs::check_version(version, spec)?;
        if version < SPA_VERSION_SPARES && !outward.spares.is_empty() {
            return Err(Error::os(Errno::NotSup, format!("pools of version {version} have no hot spares")));
        }
        let guarded = Lease::guard(env);
        let env = &guarded.env;
        let guid = new_guid(&*env.rng);
        let mut nv = spec.config(guid, &*env.rng)?;
        nv.set("create_txg", TXG_INITIAL.0);
        for top in nv.lists_mut("children").into_iter().flatten() {
            top.set("create_txg", TXG_INITIAL.0);
        }
        let tree = Arc::new(VdevTree::from_config(env, &nv)?);
        let opened = tree.open(&OpenArgs { write: true, ..OpenArgs::default() }).await;
        let result = match opened {
            Ok(()) => Self::create_on(&guarded, tree.clone(), guid, opts, root, outward).await,
            Err(e) => Err(e),
        };
        if result.is_err() {
            tree.close().await;
        }
        result
    }

    async fn create_on(
        guarded: &Guarded,
        tree: Arc<VdevTree>,
        guid: u64,
        opts: CreateOpts,
        root: RootFs,
        outward: Outward,
    ) -> Result<Arc<Spa>> {
        let env = &guarded.env;
        let version = outward.version.unwrap_or(SPA_VERSION);
        for leaf in &tree.leaves {
            if !leaf.writable() {
                let (_, aux) = leaf.state();
                let why = match aux {
                    zilla_ondisk::enums::VdevAux::TooSmall => "device is too small",
                    _ => "cannot be opened for writing, or is in use",
                };
                return Err(Error::os(Errno::Busy, format!("{}: {why}", leaf.path())));
            }
        }
        for top in &tree.tops {
            top.vdev.set_metaslabs(0, u32::from(metaslab_shift(top.vdev.asize())));
        }
        let txgs = TxgState::new(env.clone(), TXG_INITIAL.prev());
        let zio = Zio::new(env, tree.clone(), Arc::new(Cache::new(opts.arc_max)));
        env.spawn(crate::memory::watch(Arc::downgrade(zio.cache()), env.clone()));
        let cache = DbufCache::new(opts.dbuf_cache);
        crate::memory::join(env, zio.cache(), &txgs, &cache).await;
        let store = Arc::new(zio.clone());
        let ctx = PoolCtx::new(env.clone(), store.clone(), cache.clone(), txgs, guid, false);
        ctx.set_version(version);
        let mos = Objset::create(0, DMU_OST_META, store, cache, mos_props(true, version));
        crate::dsl::size_for(&mos, version);
        ctx.set_mos(mos);
        let metaslabs = Metaslabs::new(SpaceFeatures::default());
        metaslabs.set_txgs(&ctx.txgs);
        zio.set_allocator(&(metaslabs.clone() as Arc<dyn crate::zio::Allocator>));
        let identity = config::Identity {
            name: outward.disk_name.as_ref().unwrap_or(&opts.name).clone(),
            version,
            state: PoolState::Active,
            txg: Txg(0),
            guid,
            errata: 0,
            host: opts.host.clone(),
            comment: opts.comment.clone(),
            compatibility: outward.compatibility.clone(),
            splitting: Vec::new(),
            split_from: None,
        };
        let ub = Uberblock { version, ..Uberblock::default() };
        let tx = Tx::syncing(TXG_INITIAL);
        let made = Self::first_txg(&ctx, &zio, &metaslabs, &tree, (&opts, &root), &tx).await?;
        let ddt = Ddt::new(&ctx, &zio);
        zio.set_dedup(Arc::downgrade(&ddt) as Weak<dyn DedupTables>);
        let brt = Arc::new(super::brt::Brt::default());
        zio.set_references(Arc::downgrade(&brt) as Weak<dyn References>);
        let heart = Heart::new(guarded, &zio, &ub, opts.host.id);
        let spa = Arc::new(Spa {
            heart,
            zio,
            metaslabs,
            dsl: made.dsl,
            state: Mutex::new(State {
                name: opts.name,
                disk_name: outward.disk_name,
                state: PoolState::Active,
                host: opts.host,
                comment: opts.comment,
                compatibility: outward.compatibility,
                splitting: Vec::new(),
                split_from: None,
            }),
            mos_root: Mutex::new(BlkPtr::ZERO),
            uberblock: Mutex::new(ub),
            opened_at: ub,
            config_object: made.config_object,
            history_object: made.history_object.into(),
            cache_object: AtomicU64::new(made.cache_object),
            spare_object: AtomicU64::new(0),
            has_vdev_zaps: true.into(),
            deferred: Some(made.deferred),
            removal_pace: AtomicU64::new(super::remove::BATCH),
            evacuation: Mutex::default(),
            condenser: Default::default(),
            expansion_pace: AtomicU64::new(super::expansion::BATCH),
            mover: Arc::default(),
            rebuilds: super::rebuild::Rebuilds::default(),
            removing: Mutex::new(super::indirect::nothing_removed()),
            brt,
            ddt,
            config_dirty: AtomicBool::new(true),
            autoexpand: AtomicBool::new(false),
            autotrimming: AtomicBool::new(false),
            trims: Default::default(),
            checkpoint: Mutex::default(),
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
        spa.update_space()?;
        for (name, value) in &outward.properties {
            store_property(&ctx, &tx, name, Some(value)).await?;
        }
        if !root.settings.is_empty() {
            spa.dsl.set_props(&tx, &spa.dsl.by_name(&spa.name()).await?, &root.settings).await?;
        }
        // Nothing is written to a device before this: what is refused leaves them as they were.
        tree.init_labels(&config::pool_part(&identity, &[]), &ub).await?;
        spa.first_spares(&tx, &outward.spares).await?;
        spa.note_version(TXG_INITIAL, "create");
        env.spawn(spa.clone().sync_loop());
        spa.ctx.txgs.wait_synced(TXG_INITIAL).await?;
        spa.know_pointers();
        spa.open_scan().await?;
        spa.be_patient();
        spa.zio.l2().set_pool(guid, &spa.ctx.txgs, false);
        spa.use_cache(&tree.cache, true);
        spa.look_at_spares().await;
        spa.watch_devices();
        Ok(spa)
    }

    /// Everything the MOS of a new pool holds.
    async fn first_txg(
        ctx: &Arc<PoolCtx>,
        zio: &Zio,
        metaslabs: &Arc<Metaslabs>,
        tree: &Arc<VdevTree>,
        (opts, root): (&CreateOpts, &RootFs),
        tx: &Tx,
    ) -> Result<Made> {
        let (mos, version) = (ctx.mos(), ctx.version());
        let claim =
            || Zap::create_claim(mos, tx, ObjectId(DIRECTORY), DMU_OT_OBJECT_DIRECTORY, &ZapOpts::default());
        let directory = Zap::new(&crate::dmu::resident(claim).await?);
        if version >= SPA_VERSION {
            ctx.features.create(mos, &directory, tx).await?;
        }
        let wanted: Vec<&str> = match &opts.features {
            _ if version < SPA_VERSION => Vec::new(),
            Some(list) => list.iter().map(String::as_str).collect(),
            None => SUPPORTED.to_vec(),
        };
        for name in wanted {
            ctx.features.enable(mos, &directory, tx, name).await?;
        }
        apply_features(ctx, zio);
        metaslabs.set_features(space_features(ctx));
        let mut salt = [0; 32];
        ctx.env.rng.fill(&mut salt);
        directory.insert(tx, "org.illumos:checksum_salt", &Value::bytes(&salt)).await?;
        zio.set_salt(&salt);
        let mut props = ZplProps::new(opts.owner.0, opts.owner.1, Time::from_wall(ctx.env.clock.wall()));
        props.version = root.version.unwrap_or(zpl::version_for(version));
        props.normalization = root.normalization;
        props.utf8only = root.utf8only;
        props.casesensitivity = root.casesensitivity;
        let dsl = DslPool::create_with(ctx, tx, &props, &root.crypt).await?;
        dsl.set_name(&opts.name);
        let objects = VdevObjects::create(ctx, tx, &directory).await?;
        objects.root(&tree.root).await?;
        for top in &tree.tops {
            objects.top(metaslabs, tree, top).await?;
        }
        let mut history_object = 0;
        if version >= SPA_VERSION_ZPOOL_HISTORY {
            let space = metaslabs.class_stat(SpaceClass::Normal).dspace;
            history_object = history::create(mos, tx, space).await?.0;
            directory.insert_u64(tx, "history", history_object).await?;
        }
        let config_object = config::create_packed(mos, tx).await?.0;
        directory.insert_u64(tx, "config", config_object).await?;
        directory.insert_u64(tx, "creation_version", version).await?;
        match version < SPA_VERSION_RAIDZ_DEFLATE {
            true => tree.count_raw_space(true),
            false => directory.insert_u64(tx, DMU_POOL_DEFLATE, 1).await?,
        }
        let deferred = Bpobj::create_plain(mos, tx, BPOBJ_BLKSZ, version).await?;
        directory.insert_u64(tx, "sync_bplist", deferred.id()).await?;
        let cache_object = match tree.cache.is_empty() {
            true => 0,
            false => {
                let list = tree.generate_aux(&tree.cache);
                super::cache::write_list(mos, tx, 0, DMU_POOL_L2CACHE, list).await?
            }
        };
        Ok(Made { dsl, history_object, cache_object, config_object, deferred })
    }
}

struct Made {
    dsl: Arc<DslPool>,
    history_object: u64,
    cache_object: u64,
    config_object: u64,
    deferred: Bpobj,
}
