//! Properties as they are stored: of datasets with who set them, of a pool as its directory has
//! them, of vdevs.
//!
//! Values are numbers and texts here; [`crate::settings`] and the table of `zilla-control` turn
//! words into them and back. What a pool's property also changes in the running pool is its
//! caller's to say ([`Pool::set_autotrim`](crate::Pool::set_autotrim) and the like).

use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::tree::DatasetRef;
use std::collections::BTreeMap;
use zilla_core::zap::{CreateOpts, Zap};
use zilla_ondisk::dsl::{DMU_POOL_LAST_SCRUBBED_TXG, DMU_POOL_PROPS};
use zilla_ondisk::object_type::DMU_OT_POOL_PROPS;
use zilla_ondisk::zap::ZapValue as Value;

pub use zilla_core::dsl::{PropSource, PropValue, Setting};

/// Object 1 of every MOS.
const DIRECTORY: u64 = 1;

/// What a pool keeps by itself in a vdev's ZAP is named like a user's property: where its space
/// maps are, how far a trim has come. Whoever set that would break the pool.
const POOLS_OWN: [&str; 6] =
    ["com.delphix:", "com.klarasystems:", "org.openzfs:", "org.zfsonlinux:", "org.illumos:", "org.open-zfs:"];

/// Whether a vdev's property is one that the pool keeps by itself.
pub fn is_pools_own(name: &str) -> bool {
    POOLS_OWN.iter().any(|prefix| name.starts_with(prefix))
}

impl Pool {
    /// Whether the pool has the feature without which a dataset's property cannot have a value.
    pub fn value_check(&self, property: &str, value: u64) -> Result<()> {
        self.dsl().feature_check(property, value)
    }

    /// The properties of the pool that were set.
    pub async fn stored_properties(&self) -> Result<Vec<(String, Value)>> {
        let mos = self.spa().ctx.mos();
        let directory = Zap::open(mos, DIRECTORY).await?;
        let Some(id) = directory.try_get_u64(DMU_POOL_PROPS).await? else { return Ok(Vec::new()) };
        let all = Zap::open(mos, id).await?.entries().await?;
        Ok(all.into_iter().map(|e| (e.name_str().into_owned(), e.value)).collect())
    }

    /// Sets a property of the pool, or with None takes it away.
    pub async fn store_property(&self, name: &str, value: Option<Value>) -> Result<()> {
        let (ctx, name) = (self.spa().ctx.clone(), name.to_owned());
        self.task(move |_, tx| {
            Box::pin(async move {
                let mos = ctx.mos();
                let directory = Zap::open(mos, DIRECTORY).await?;
                let zap = match directory.try_get_u64(DMU_POOL_PROPS).await? {
                    Some(id) => Zap::open(mos, id).await?,
                    None => {
                        let zap = Zap::make(mos, &tx, DMU_OT_POOL_PROPS, &CreateOpts::default()).await?;
                        directory.insert_u64(&tx, DMU_POOL_PROPS, zap.id()).await?;
                        zap
                    }
                };
                let told = value.as_ref().map(|v| match v.as_u64() {
                    Some(n) => n.to_string(),
                    None => v.as_str().unwrap_or_default().to_owned(),
                });
                let told = told.unwrap_or_default();
                match value {
                    None => zap.delete_if_there(&tx, &name).await.map(drop)?,
                    Some(value) => zap.set(&tx, &name, &value).await?,
                }
                ctx.note_internal(tx.txg(), "set", format!("{name}={told}"));
                Ok(())
            })
        })
        .await
    }

    /// The txg up to which all was scrubbed; 0: never.
    pub async fn last_scrubbed_txg(&self) -> Result<u64> {
        let directory = Zap::open(self.spa().ctx.mos(), DIRECTORY).await?;
        Ok(directory.try_get_u64(DMU_POOL_LAST_SCRUBBED_TXG).await?.unwrap_or(0))
    }

    /// What is stored of a vdev: properties, and what the pool itself keeps there.
    pub async fn vdev_entries(&self, guid: u64) -> Result<Vec<(String, Value)>> {
        match self.spa().tree().find(guid) {
            Some(vdev) => self.spa().vdev_entries(&vdev).await,
            None => Ok(Vec::new()),
        }
    }

    /// Sets a property of a vdev, or with None takes it away. EINVAL: the pool keeps it by itself,
    /// or there is another way ([`Pool::set_allocating`]).
    pub async fn set_vdev_property(&self, guid: u64, name: &str, value: Option<Value>) -> Result<()> {
        if is_pools_own(name) || name == "allocating" {
            return Err(Error::inval(format!("'{name}' is not set so")));
        }
        self.spa().set_vdev_prop(guid, name, value).await
    }

    /// Whether new blocks may be put on a top-level vdev.
    pub async fn set_allocating(&self, guid: u64, yes: bool) -> Result<()> {
        self.spa().set_allocating(guid, yes).await
    }
}

impl DatasetRef {
    /// All that was set on it or above it.
    pub async fn properties(&self) -> Result<BTreeMap<String, PropValue>> {
        self.dsl.all_props(&self.ds).await
    }

    /// What it was received with, also where something else was set since.
    pub async fn received_properties(&self) -> Result<Vec<(String, Value)>> {
        self.dsl.received_props(&self.ds).await
    }

    /// The names of these.
    pub async fn received_names(&self) -> Result<Vec<String>> {
        self.dsl.received_names(&self.ds).await
    }

    /// The names of what was set on it.
    pub async fn local_names(&self) -> Result<Vec<String>> {
        self.dsl.local_names(&self.ds).await
    }
}
