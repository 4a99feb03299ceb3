//! The pool and the object that is measured: an objset of type volume with its data in object 1, as
//! OpenZFS lays out a volume.

use super::Result;
use super::job::Outcome;
use super::options::Options;
use crate::meter::Mark;
use std::sync::Arc;
use zilla_core::dmu::{Dnode, NewObject, resident};
use zilla_core::dsl::DslDataset;
use zilla_core::metaslab::SpaceClass;
use zilla_core::spa::{CreateOpts, OpenOpts, Spa, discover};
use zilla_core::txg::DirtyLimits;
use zilla_core::types::ObjectId;
use zilla_core::vdev::VdevKind;
use zilla_core::vdev::spec::{LeafSpec, PoolSpec, TopSpec};
use zilla_core::zap::{CreateOpts as ZapOpts, Zap};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::{ObjsetType, PoolState};
use zilla_ondisk::object_type::{DMU_OT_ZVOL, DMU_OT_ZVOL_PROP};

const POOL: &str = "zillabench";
const DATA: ObjectId = ObjectId(1);
const PROPERTIES: ObjectId = ObjectId(2);

pub struct Volume {
    pub env: Env,
    pub spa: Arc<Spa>,
    pub object: Arc<Dnode>,
    /// Keeps the dataset open.
    _dataset: Arc<DslDataset>,
}

/// Dirty data of both engines.
const DIRTY: u64 = 256 << 20;
/// The dbuf cache's share of the ARC, as OpenZFS has it.
const DBUF_CACHE_SHIFT: u32 = 5;

impl Volume {
    /// A fresh pool on the backing files; `workers` threads run the engine (0: as many as there are
    /// cores).
    pub fn pool(o: &Options, workers: usize) -> Result<(Env, Arc<Spa>)> {
        let env = real_env(workers);
        let leaves = o.files.iter().map(|path| LeafSpec { path: path.clone(), disk: false });
        let leaves: Vec<LeafSpec> = leaves.collect();
        let top = |leaves| TopSpec { kind: o.kind, leaves, is_log: false, bias: None, ashift: Some(12) };
        let tops = match o.kind {
            VdevKind::File => leaves.into_iter().map(|l| top(vec![l])).collect(),
            _ => vec![top(leaves)],
        };
        let spec = PoolSpec { tops, ..PoolSpec::default() };
        let opts = CreateOpts {
            name: POOL.into(),
            host: Default::default(),
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: (o.arc_max >> DBUF_CACHE_SHIFT) as usize,
            arc_max: o.arc_max,
        };
        let spa = env.block_on(Spa::create(&env, &spec, opts))?;
        Ok((env, spa))
    }

    pub fn create(o: &Options) -> Result<Volume> {
        let (env, spa) = Volume::pool(o, o.threads)?;
        let (block, size) = (o.block as u32, o.volume);
        env.block_on(async {
            let dsl = spa.dsl.clone();
            let make = move |tx| -> zilla_env::BoxFuture<'static, _> {
                Box::pin(async move {
                    let ds = dsl.create_fs(&tx, &format!("{POOL}/v"), ObjsetType::Zvol, 0).await?;
                    let os = dsl.objset(&ds).await?;
                    let spec = NewObject::new(DMU_OT_ZVOL, block);
                    resident(|| os.claim(&tx, DATA, spec)).await?;
                    let none = ZapOpts::default();
                    let props =
                        resident(|| Zap::create_claim(&os, &tx, PROPERTIES, DMU_OT_ZVOL_PROP, &none)).await?;
                    Zap::new(&props).insert_u64(&tx, "size", size).await
                })
            };
            spa.ctx.sync_task(make).await
        })?;
        Volume::hold(env, spa, o)
    }

    fn hold(env: Env, spa: Arc<Spa>, o: &Options) -> Result<Volume> {
        // As the peer's: with more it would spend the measurement touching fresh memory.
        spa.ctx.txgs.set_limits(DirtyLimits { max: DIRTY, ..DirtyLimits::default() });
        let (dataset, object) = env.block_on(async {
            let dataset = spa.dsl.by_name(&format!("{POOL}/v")).await?;
            let os = spa.dsl.objset(&dataset).await?;
            let mut props = os.props();
            props.compress = o.compress.parse().unwrap_or(props.compress);
            props.checksum =
                zilla_codec::checksum::Checksum::from_name(&o.checksum).unwrap_or(props.checksum);
            os.set_props(props);
            let object = os.hold_wait(DATA).await?;
            Ok::<_, zilla_core::error::Error>((dataset, object))
        })?;
        Ok(Volume { env, spa, object, _dataset: dataset })
    }

    /// Forgets everything that is cached: export, drop the host's cache, import.
    pub fn cycle(self, o: &Options) -> Result<Volume> {
        let Volume { env, spa, .. } = self;
        env.block_on(spa.close(Some(PoolState::Exported)))?;
        drop(spa);
        for path in &o.files {
            let file = std::fs::File::open(path)?;
            file.sync_data()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        let opts = OpenOpts {
            dbuf_cache: (o.arc_max >> DBUF_CACHE_SHIFT) as usize,
            arc_max: o.arc_max,
            ..OpenOpts::default()
        };
        let spa = env.block_on(async {
            let found = discover(&env, &o.files).await?;
            let Some(pool) = found.iter().find(|p| p.name == POOL) else {
                return Err(zilla_core::error::Error::no_ent("the pool is gone"));
            };
            Spa::open(&env, pool, opts).await
        })?;
        Volume::hold(env, spa, o)
    }

    pub fn scrub(&self) -> Result<Outcome> {
        let mark = Mark::now();
        let bytes = self.env.block_on(async {
            let scan = self.spa.scan()?;
            scan.start().await?;
            scan.wait().await;
            Ok::<_, zilla_core::error::Error>(scan.status().examined)
        })?;
        let allocated = self.spa.metaslabs.class_stat(SpaceClass::Normal).alloc;
        let spent = mark.spent();
        Ok(Outcome { bytes, allocated, accepted: spent.seconds, spent, ..Outcome::default() })
    }

    pub fn destroy(self) -> Result<()> {
        Ok(self.env.block_on(self.spa.close(Some(PoolState::Destroyed)))?)
    }
}
