//! Properties of vdevs (`zpool set PROPERTY=VALUE POOL VDEV`), and what heeds them.
//!
//! They lie in the vdev's own ZAP in the MOS: the root's, the top-level's or the leaf's, of which a
//! vdev has the first that there is. Vdevs between these, and those of pools that are older than
//! their ZAPs, have none. A property is written by one txg; what heeds it learns of it when that is
//! synced, and at import.
//!
//! `allocating=off` is a top-level that gives out nothing any more, for one that is to be removed
//! later. The space that it has free is taken from the pool's; where the others then have less left
//! than a pool of their size keeps for itself it is refused, so that no txg runs out of space by
//! it.

use super::Spa;
use super::diagnosis::THRESHOLDS;
use crate::error::{Errno, Error, Result};
use crate::metaslab::SpaceClass;
use crate::spa::Refusal;
use crate::txg::Tx;
use crate::vdev::{Top, Vdev};
use crate::zap::{Value, Zap};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a vdev's ZAP stands in its configuration. Source: spa_impl.h and fs/zfs.h,
/// ZPOOL_CONFIG_VDEV_*_ZAP.
const ZAPS: [&str; 3] =
    ["com.klarasystems:vdev_zap_root", "com.delphix:vdev_zap_top", "com.delphix:vdev_zap_leaf"];
/// Vdevs whose properties are read at a time.
const AT_ONCE: usize = 32;
/// In a top-level's ZAP: 0 where it gives out nothing.
const ALLOCATING: &str = "allocating";

/// The object with a vdev's properties.
fn zap_of(vdev: &Vdev) -> Option<u64> {
    ZAPS.iter().find_map(|name| vdev.config_u64(name).filter(|id| *id != 0))
}

impl Spa {
    /// What lies in a vdev's ZAP: its properties, and what else is kept of it there.
    pub async fn vdev_entries(&self, vdev: &Vdev) -> Result<Vec<(String, Value)>> {
        let Some(id) = zap_of(vdev) else { return Ok(Vec::new()) };
        let entries = Zap::open(self.ctx.mos(), id).await?.entries().await?;
        Ok(entries.into_iter().map(|e| (e.name_str().into_owned(), e.value)).collect())
    }

    /// Sets a property of a vdev, or takes it away. Names and values are the caller's to check.
    /// Fails with [`Errno::Inval`] for a vdev that has no properties.
    pub async fn set_vdev_prop(self: &Arc<Self>, guid: u64, name: &str, value: Option<Value>) -> Result<()> {
        self.check_writable()?;
        let tree = self.tree();
        let vdev = tree.find(guid).ok_or(Refusal::NoDevice(guid))?;
        if THRESHOLDS.contains(&name) && vdev.guid == tree.root.guid {
            let what = format!("'{name}' is a property of devices and of top-level vdevs, not of the root");
            return Err(Error::inval(what));
        }
        if zap_of(&vdev).is_none() {
            return Err(Error::inval(
                "this vdev has no properties: only the root, top-level vdevs and devices have, of pools with the \
                 features for it",
            ));
        }
        let limit = value.as_ref().and_then(Value::as_u64);
        let (spa, prop) = (self.clone(), name.to_owned());
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                // The vdev may have gone before it is this task's turn, and its ZAP's number be
                // another object's.
                let id = spa.tree().find(guid).and_then(|vdev| zap_of(&vdev));
                let id = id.ok_or(Refusal::NoDevice(guid))?;
                let zap = Zap::open(spa.ctx.mos(), id).await?;
                match &value {
                    None => zap.delete_if_there(&tx, &prop).await.map(drop),
                    Some(value) => zap.set(&tx, &prop, value).await,
                }
            })
        };
        self.ctx.sync_task(task).await?;
        self.diagnosis.lock().limit(guid, name, limit);
        Ok(())
    }

    /// Whether a top-level vdev gives out space (`allocating`).
    pub async fn set_allocating(self: &Arc<Self>, guid: u64, yes: bool) -> Result<()> {
        self.check_writable()?;
        let _changing = self.changing.lock().await;
        let tree = self.tree();
        let top = tree.tops.iter().find(|t| t.vdev.guid == guid && t.vdev.is_concrete());
        let top = top.filter(|t| !t.vdev.is_log).ok_or_else(|| {
            Error::os(Errno::NotSup, "only a top-level vdev that holds data is told whether to allocate")
        })?;
        let allocates = !self.metaslabs.is_retired(top.id)?;
        if allocates == yes {
            return Ok(());
        }
        if !yes {
            self.may_retire(top)?;
        }
        self.metaslabs.retire(top.id, !yes)?;
        self.update_space()?;
        let value = (!yes).then(|| Value::u64(0));
        let set = self.set_vdev_prop(guid, ALLOCATING, value).await;
        if set.is_err() {
            self.metaslabs.retire(top.id, !allocates)?;
            self.update_space()?;
        }
        set
    }

    pub(super) fn is_retired(&self, top: &Top) -> bool {
        self.metaslabs.is_retired(top.id).unwrap_or(false)
    }

    fn may_retire(&self, top: &Top) -> Result<()> {
        let normal = |t: &Top| t.vdev.bias().is_none();
        let others = self.tree().tops_for(false).any(|t| {
            let usable = t.vdev.allocatable().load(Ordering::Relaxed);
            t.id != top.id && normal(t) && usable && !self.is_retired(t)
        });
        if normal(top) && !others {
            return Err(Error::inval("it is the last vdev that new blocks can go to"));
        }
        let stat = self.metaslabs.vdev_stat(top.id)?;
        let free = if normal(top) { stat.dspace.saturating_sub(stat.dalloc) } else { 0 };
        // What is left on the others must be what the pool keeps for itself, as in a full pool.
        let space = self.metaslabs.class_stat(SpaceClass::Normal).dspace.saturating_sub(free);
        let rest = self.dsl.available(&self.dsl.root_dir(), false) + self.metaslabs.slop();
        if rest.saturating_sub(free) < self.metaslabs.slop_of(space) {
            return Err(Error::os(Errno::NoSpc, "the other vdevs have too little space left"));
        }
        Ok(())
    }

    /// Reads what heeds them, at import. Nothing is given out before that.
    pub(super) async fn load_vdev_props(&self) -> Result<()> {
        let tree = self.tree();
        let reads = tree.root.walk().into_iter().map(|vdev| async move {
            let entries = self.vdev_entries(&vdev).await;
            (vdev, entries)
        });
        let mut reads = futures_util::stream::iter(reads.collect::<Vec<_>>()).buffered(AT_ONCE);
        while let Some((vdev, entries)) = reads.next().await {
            for (name, value) in entries? {
                let Some(n) = value.as_u64() else { continue };
                if THRESHOLDS.contains(&name.as_str()) {
                    self.diagnosis.lock().limit(vdev.guid, &name, Some(n));
                }
                let top = tree.tops.iter().find(|t| t.vdev.guid == vdev.guid && t.vdev.is_concrete());
                if let (ALLOCATING, 0, Some(top)) = (name.as_str(), n, top)
                    && !top.vdev.is_log
                {
                    self.metaslabs.retire(top.id, true)?;
                }
            }
        }
        let data: Vec<&Top> = tree.tops_for(false).filter(|t| t.vdev.bias().is_none()).collect();
        if data.iter().all(|t| self.is_retired(t)) {
            tracing::warn!(pool = %self.name(), "no vdev is to allocate, so all do");
            data.iter().try_for_each(|t| self.metaslabs.retire(t.id, false))?;
        }
        Ok(())
    }
}
