//! The objects of the MOS that belong to vdevs: ZAPs of top-levels and leaves, metaslab arrays,
//! DTLs.

use super::PoolCtx;
use super::open::{DIRECTORY, vdev_specs};
use crate::dmu::{Dnode, Objset};
use crate::error::{Error, Result};
use crate::metaslab::Metaslabs;
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::vdev::{Top, Vdev, VdevTree};
use crate::zap::{CreateOpts as ZapOpts, Zap};
use std::sync::Arc;
use zilla_ondisk::object_type::DMU_OTN_ZAP_METADATA;
use zilla_ondisk::spacemap::SPACE_MAP_SIZE_V0;

const ZAP_MAP: &str = "com.delphix:vdev_zap_map";
const ROOT_ZAP: &str = "com.klarasystems:vdev_zap_root";
const TOP_ZAP: &str = "com.delphix:vdev_zap_top";
const LEAF_ZAP: &str = "com.delphix:vdev_zap_leaf";
/// In a top-level's ZAP: `special` or `dedup`.
const ALLOCATION_BIAS: &str = "org.zfsonlinux:allocation_bias";

/// A top-level's ZAP; 0: it has none.
pub(super) fn top_zap(vdev: &Vdev) -> ObjectId {
    ObjectId(vdev.config_u64(TOP_ZAP).unwrap_or(0))
}

/// A leaf's ZAP; 0: it has none.
pub(super) fn leaf_zap(vdev: &Vdev) -> ObjectId {
    ObjectId(vdev.config_u64(LEAF_ZAP).unwrap_or(0))
}

/// Has top-levels know what they were made for, which lies in their ZAPs alone.
pub(super) async fn load_biases(mos: &Arc<Objset>, tree: &VdevTree) -> Result<()> {
    for top in tree.tops.iter().filter(|t| t.vdev.is_concrete()) {
        let zap = top_zap(&top.vdev);
        if zap == ObjectId(0) {
            continue;
        }
        if let Some(bias) = Zap::open(mos, zap.0).await?.try_get_str(ALLOCATION_BIAS).await? {
            top.vdev.set_config_str("alloc_bias", &bias);
        }
    }
    Ok(())
}

/// Makes and destroys vdevs' objects in the syncing txg.
pub(super) struct VdevObjects<'a> {
    ctx: &'a PoolCtx,
    tx: &'a Tx,
    /// Lists all vdevs' ZAPs; pools that are older than them have none.
    all: Option<Zap>,
}

impl<'a> VdevObjects<'a> {
    /// For a new pool.
    pub(super) async fn create(ctx: &'a PoolCtx, tx: &'a Tx, directory: &Zap) -> Result<Self> {
        let all = Zap::make(ctx.mos(), tx, DMU_OTN_ZAP_METADATA, &ZapOpts::default()).await?;
        directory.insert_u64(tx, ZAP_MAP, all.id()).await?;
        Ok(VdevObjects { ctx, tx, all: Some(all) })
    }

    /// For an old pool, whose vdevs have no ZAPs yet.
    pub(super) async fn begin(ctx: &'a PoolCtx, tx: &'a Tx) -> Result<Self> {
        let known = Self::open(ctx, tx).await?;
        match known.all {
            Some(_) => Ok(known),
            None => Self::create(ctx, tx, &Zap::open(ctx.mos(), DIRECTORY).await?).await,
        }
    }

    pub(super) async fn open(ctx: &'a PoolCtx, tx: &'a Tx) -> Result<Self> {
        let directory = Zap::open(ctx.mos(), DIRECTORY).await?;
        let all = match directory.try_get_u64(ZAP_MAP).await? {
            Some(id) => Some(Zap::open(ctx.mos(), id).await?),
            None => None,
        };
        Ok(VdevObjects { ctx, tx, all })
    }

    fn mos(&self) -> &Arc<Objset> {
        self.ctx.mos()
    }

    /// Gives what there is of an old pool the ZAPs that it lacks.
    pub(super) async fn add_zaps(&self, metaslabs: &Metaslabs, tree: &VdevTree) -> Result<()> {
        for top in tree.tops.iter().filter(|t| t.vdev.is_concrete()) {
            for v in top.vdev.walk().iter().filter(|v| v.is_leaf() && leaf_zap(v) == ObjectId(0)) {
                self.leaf(v).await?;
            }
            if top_zap(&top.vdev) == ObjectId(0) {
                self.zap(&top.vdev, TOP_ZAP).await?;
                metaslabs.set_top_zap(top.id, top_zap(&top.vdev))?;
            }
        }
        Ok(())
    }

    async fn zap(&self, vdev: &Vdev, name: &str) -> Result<Option<Zap>> {
        let Some(all) = &self.all else { return Ok(None) };
        let zap = Zap::make(self.mos(), self.tx, DMU_OTN_ZAP_METADATA, &ZapOpts::default()).await?;
        all.add_int(self.tx, zap.id()).await?;
        vdev.set_config_u64(name, zap.id());
        Ok(Some(zap))
    }

    pub(super) async fn root(&self, root: &Vdev) -> Result<()> {
        if self.ctx.features.is_enabled("vdev_zaps_v2") {
            self.zap(root, ROOT_ZAP).await?;
            self.ctx.features.add(self.mos(), self.tx, "vdev_zaps_v2", 1).await?;
        }
        Ok(())
    }

    pub(super) async fn leaf(&self, leaf: &Vdev) -> Result<()> {
        self.zap(leaf, LEAF_ZAP).await.map(drop)
    }

    /// Everything of a new top-level. Its space is part of the pool from here on.
    pub(super) async fn top(&self, metaslabs: &Metaslabs, tree: &VdevTree, top: &Top) -> Result<()> {
        for v in top.vdev.walk().iter().filter(|v| v.is_leaf()) {
            self.leaf(v).await?;
        }
        let zap = self.zap(&top.vdev, TOP_ZAP).await?;
        if let (Some(bias), Some(zap)) = (top.vdev.bias(), zap) {
            zap.set_str(self.tx, ALLOCATION_BIAS, &bias).await?;
            self.ctx.features.add(self.mos(), self.tx, "allocation_classes", 1).await?;
        }
        if top.vdev.draid().is_some() {
            self.ctx.features.add(self.mos(), self.tx, "draid", 1).await?;
        }
        if let Some(spec) = vdev_specs(tree).into_iter().find(|s| s.id == top.id) {
            metaslabs.add_vdev(spec)?;
            let array = metaslabs.create_array(self.mos(), self.tx, top.id).await?;
            top.vdev.set_metaslabs(array.0, top.vdev.metaslab_shift());
        }
        Ok(())
    }

    /// Destroys a leaf's objects. Its configuration is of no use afterwards.
    pub(super) async fn free_leaf(&self, leaf: &Vdev) -> Result<()> {
        if let Some(dn) = self.to_free(leaf.config_u64("DTL")).await? {
            if dn.bonus().len() > SPACE_MAP_SIZE_V0 {
                self.ctx.features.add(self.mos(), self.tx, "spacemap_histogram", -1).await?;
            }
            self.mos().free(self.tx, &dn);
        }
        self.free_zap(leaf, LEAF_ZAP).await
    }

    /// Destroys those of a top-level on which nothing is.
    pub(super) async fn free_top(&self, metaslabs: &Metaslabs, top: &Top) -> Result<()> {
        metaslabs.remove_vdev(self.mos(), self.tx, top.id).await?;
        self.free_leaves(top).await?;
        self.free_zap(&top.vdev, TOP_ZAP).await
    }

    /// The leaves' objects of a top-level whose blocks are elsewhere now.
    pub(super) async fn free_leaves(&self, top: &Top) -> Result<()> {
        for v in top.vdev.walk().iter().filter(|v| v.is_leaf()) {
            self.free_leaf(v).await?;
        }
        Ok(())
    }

    async fn free_zap(&self, vdev: &Vdev, name: &str) -> Result<()> {
        let Some(dn) = self.to_free(vdev.config_u64(name)).await? else { return Ok(()) };
        if let Some(all) = &self.all {
            all.remove_int(self.tx, dn.id().0).await?;
        }
        self.mos().free(self.tx, &dn);
        Ok(())
    }

    /// An object that is to go. One that cannot be read stays allocated, and is in nobody's way.
    async fn to_free(&self, object: Option<u64>) -> Result<Option<Arc<Dnode>>> {
        let Some(object) = object.filter(|o| *o != 0) else { return Ok(None) };
        match self.mos().hold_wait(ObjectId(object)).await {
            Err(e @ Error::Corrupt(_)) => {
                tracing::error!(object, error = %e, "an object of a device that leaves stays allocated");
                Ok(None)
            }
            held => held.map(Some),
        }
    }
}
