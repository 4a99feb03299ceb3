//! What a pool is to others: its guid, its version, its features, the sets of features that it is
//! kept to.
//!
//! Each change is one sync task, so that it and everything that it makes true are in one txg: a
//! guid with the labels and the configuration that carry it, a feature with the count that says it
//! is enabled. What writes blocks is told in the same txg, before the pool's own objects are
//! written: a feature that says "since that txg" would lie otherwise.
//!
//! A crash finds the pool before the change or after it. Of a guid that changes, the power may fail
//! while labels or uberblocks are on their way; then some devices name the new one. Who looks for
//! pools (`discover.rs`) takes it for the pool's if the uberblock of the change has arrived
//! anywhere, and the old one if not.

use super::config::SPA_VERSION;
use super::open::{DIRECTORY, apply_features};
use super::vdev_objects::VdevObjects;
use super::{Refusal, Spa};
use crate::error::{Errno, Error, Result};
use crate::pool::features::SUPPORTED;
use crate::txg::Tx;
use crate::vdev::{VdevState, change, new_guid};
use crate::zap::Zap;
use std::cmp::Ordering as CmpOrdering;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::dsl::DMU_POOL_DEFLATE;
use zilla_ondisk::enums::{SPA_VERSION_RAIDZ_DEFLATE, SPA_VERSION_ZPOOL_HISTORY, is_supported_version};

fn no_way(from: u64, to: u64) -> Error {
    Error::os(Errno::NotSup, format!("a pool of version {from} cannot get version {to}"))
}

impl Spa {
    /// Gives the pool another guid: the one that is named, or a new one.
    #[crate::boxed]
    pub async fn reguid(self: &Arc<Self>, guid: Option<u64>) -> Result<u64> {
        self.check_writable()?;
        let _changing = self.changing.lock().await;
        self.check_no_checkpoint()?;
        let old = self.tree();
        if guid == Some(0) {
            return Err(Error::inval("0 is no guid"));
        }
        let guid = guid.unwrap_or_else(|| new_guid(&*self.ctx.env.rng));
        if old.find(guid).is_some() {
            return Err(Error::os(Errno::Exist, "guid is already in use"));
        }
        // A device that is away would come back as another pool's.
        if old.root.state().0 != VdevState::Healthy {
            return Err(Refusal::NotHealthy.into());
        }
        let mut nv = old.to_edit();
        change::set_pool_guid(&mut nv, guid);
        let new = Arc::new(old.changed(&self.ctx.env, &nv)?);
        new.propagate();
        let (spa, before) = (self.clone(), old.root.guid);
        let done = self
            .ctx
            .sync_task(move |_| {
                Box::pin(async move {
                    // One may have gone since.
                    if spa.tree().root.state().0 != VdevState::Healthy {
                        return Err(Refusal::NotHealthy.into());
                    }
                    spa.ctx.set_former_guid(spa.ctx.guid());
                    spa.use_tree(new);
                    spa.ctx.set_guid(guid);
                    crate::inject::injections().forget_pool(before);
                    spa.zio.l2().set_guid(guid);
                    spa.config_dirty.store(true, Ordering::Release);
                    Ok(guid)
                })
            })
            .await;
        self.ctx.set_former_guid(0);
        done
    }

    /// Whether it has its name only for as long as it is open here.
    pub fn has_temporary_name(&self) -> bool {
        self.state.lock().disk_name.is_some()
    }

    pub fn compatibility(&self) -> Option<String> {
        self.state.lock().compatibility.clone()
    }

    /// Changes which sets of features the pool is kept to; `off`: none. On disk with the txg that
    /// is open.
    pub fn set_compatibility(&self, sets: &str) {
        self.ctx.note_internal(self.ctx.txgs.open(), "set", format!("compatibility={sets}"));
        self.state.lock().compatibility = Some(sets.to_owned()).filter(|s| !s.is_empty());
        self.config_dirty.store(true, Ordering::Release);
    }

    /// Enables features, by short name, with what they depend on: all in one txg.
    #[crate::boxed]
    pub async fn enable_features(self: &Arc<Self>, names: Vec<String>) -> Result<()> {
        self.check_writable()?;
        if self.version() < SPA_VERSION {
            return Err(Error::os(Errno::NotSup, "the pool's version has no feature flags"));
        }
        if let Some(name) = names.iter().find(|name| !SUPPORTED.contains(&name.as_str())) {
            return Err(Error::os(Errno::NotSup, format!("feature {name} is not supported")));
        }
        let spa = self.clone();
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    let directory = Zap::open(spa.ctx.mos(), DIRECTORY).await?;
                    let by_head = spa.ctx.features.is_enabled("head_errlog");
                    for name in &names {
                        spa.ctx.features.enable(spa.ctx.mos(), &directory, &tx, name).await?;
                        spa.ctx.note_internal(tx.txg(), "set", format!("feature@{name}=enabled"));
                    }
                    if !by_head && spa.ctx.features.is_enabled("head_errlog") {
                        spa.errors()?.file_by_head(&tx).await?;
                    }
                    apply_features(&spa.ctx, &spa.zio);
                    // Labels name some of them.
                    spa.config_dirty.store(true, Ordering::Release);
                    Ok(())
                })
            })
            .await
    }

    pub(super) fn has_vdev_zaps(&self) -> bool {
        self.has_vdev_zaps.load(Ordering::Acquire)
    }

    /// Vdevs of pools with feature flags have ZAPs, which log space maps, checkpoints and more of
    /// them need; in those from before 2015 they had none.
    pub(super) async fn complete_vdev_zaps(self: &Arc<Self>) -> Result<()> {
        if self.has_vdev_zaps() || self.version() < SPA_VERSION {
            return Ok(());
        }
        let spa = self.clone();
        self.ctx.sync_task(move |tx| Box::pin(async move { spa.give_vdev_zaps(&tx).await })).await
    }

    /// In the syncing context.
    async fn give_vdev_zaps(&self, tx: &Tx) -> Result<()> {
        if self.has_vdev_zaps() {
            return Ok(());
        }
        VdevObjects::begin(&self.ctx, tx).await?.add_zaps(&self.metaslabs, &self.tree()).await?;
        self.has_vdev_zaps.store(true, Ordering::Release);
        self.config_dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// From now on space is counted without RAID-Z's parity, where that changes nothing of what was
    /// counted. In the syncing context.
    async fn count_deflated(&self, tx: &Tx) -> Result<()> {
        let tree = self.tree();
        if tree.tops.iter().all(|top| !top.vdev.is_concrete() || top.deflate_ratio() == 512) {
            Zap::open(self.ctx.mos(), DIRECTORY).await?.insert_u64(tx, DMU_POOL_DEFLATE, 1).await?;
            tree.count_raw_space(false);
        }
        Ok(())
    }

    /// Raises the pool's version; with feature flags none is enabled yet.
    #[crate::boxed]
    pub async fn upgrade(self: &Arc<Self>, version: u64) -> Result<()> {
        self.check_writable()?;
        // A tree that is being made from the one of now would not have the ZAPs that vdevs are
        // given.
        let _changing = self.changing.lock().await;
        let now = self.version();
        if version < now || !is_supported_version(version) {
            return Err(no_way(now, version));
        }
        if version == now {
            return Ok(());
        }
        let spa = self.clone();
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    // Another upgrade may have come first.
                    let now = spa.version();
                    match version.cmp(&now) {
                        CmpOrdering::Less => return Err(no_way(now, version)),
                        CmpOrdering::Equal => return Ok(()),
                        CmpOrdering::Greater => {}
                    }
                    // What may fail before it has changed anything comes first.
                    spa.dsl.upgrade(&tx, version).await?;
                    if version == SPA_VERSION {
                        let directory = Zap::open(spa.ctx.mos(), DIRECTORY).await?;
                        spa.ctx.features.create(spa.ctx.mos(), &directory, &tx).await?;
                    }
                    if version >= SPA_VERSION_ZPOOL_HISTORY {
                        spa.begin_history(&tx).await?;
                    }
                    if now < SPA_VERSION_RAIDZ_DEFLATE && version >= SPA_VERSION_RAIDZ_DEFLATE {
                        spa.count_deflated(&tx).await?;
                    }
                    spa.ctx.set_version(version);
                    spa.ctx.note_internal(tx.txg(), "set", format!("version={version}"));
                    if version == SPA_VERSION {
                        spa.give_vdev_zaps(&tx).await?;
                    }
                    apply_features(&spa.ctx, &spa.zio);
                    spa.config_dirty.store(true, Ordering::Release);
                    Ok(())
                })
            })
            .await
    }
}
