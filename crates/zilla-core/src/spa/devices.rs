//! Devices that go and come back: offline, online, faults and their clearing, and looking at all of
//! them again.
//!
//! A leaf that is away misses txgs, which its DTL notes as they are written. Whenever it is opened
//! again (by `online`, `clear`, `reopen`, with the pool, or because it was seen to be back) its DTL
//! decides: what it lacks, a log's gets by emptying the log, any other's by a resilver. Nothing is
//! taken offline that others are needed for: a log that would lose its last device is emptied
//! first.
//!
//! A crash in between finds what the configuration of the last txg says; a device that it calls
//! online is looked at when the pool is opened.

use super::Spa;
use super::diagnosis::in_passing;
use crate::error::{Errno, Error, Result};
use crate::inject::{self, injections};
use crate::spa::Refusal;
use crate::tunables;
use crate::vdev::{Leaf, OpenArgs, VdevAux};
use futures_util::future::{Either, join_all, select};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_ondisk::enums::VdevState;

/// How often it is looked whether a missing device is back.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Spa {
    fn leaf(&self, guid: u64) -> Result<Arc<Leaf>> {
        let tree = self.tree();
        let vdev = tree.find(guid).ok_or(Refusal::NoDevice(guid))?;
        if tree.top_of(guid).is_none() {
            return Err(Error::os(Errno::NotSup, "the device belongs to no vdev that holds blocks"));
        }
        vdev.leaf
            .clone()
            .ok_or_else(|| Error::os(Errno::NotSup, "only single devices have a state to be set"))
    }

    /// Takes a device out of use; `temporary` until the next import. With `fault` it counts as
    /// broken; one that is needed is then degraded and used on, until the next import.
    #[crate::boxed]
    pub async fn offline(self: &Arc<Self>, guid: u64, temporary: bool, fault: bool) -> Result<()> {
        if let Some(vdev) = self.cache_vdev(guid) {
            self.offline_cache(&vdev, temporary, fault).await?;
            self.report_states(&self.tree());
            return Ok(());
        }
        let changing = self.changing.lock().await;
        let (leaf, tree) = (self.leaf(guid)?, self.tree());
        let top = tree.top_of(guid).ok_or(Refusal::NoDevice(guid))?;
        let stays = |l: &Arc<Leaf>| {
            l.index != leaf.index && l.readable() && (l.writable() || self.ctx.readonly) && l.dtl.is_empty()
        };
        let passing = if fault { in_passing(&tree, guid) } else { BTreeSet::new() };
        let needed = leaf.readable() && !top.survives(|l| stays(l) && !passing.contains(&l.index));
        if inject::any() && injections().is_required(guid) {
            return Err(Refusal::NoReplicas.into());
        }
        if needed && !top.vdev.is_log {
            if !fault {
                return Err(Refusal::NoReplicas.into());
            }
            leaf.degrade();
            tree.propagate();
            self.report_states(&tree);
            return Ok(());
        }
        if needed && !self.ctx.readonly {
            self.empty_log(top.id).await?;
        }
        leaf.offline_until_import.store(temporary, Ordering::Relaxed);
        if fault {
            if !self.ctx.readonly && self.suspended().is_none() {
                self.cancel_upkeep(std::slice::from_ref(&leaf)).await?;
            }
            leaf.external_fault.store(true, Ordering::Relaxed);
            leaf.fault(VdevAux::External).await;
        } else {
            leaf.offline.store(true, Ordering::Relaxed);
            // One that counts as broken is told to be that, until it is cleared.
            if leaf.state().0 != VdevState::Faulted {
                leaf.retire(VdevState::Offline).await;
            }
        }
        tree.propagate();
        // At once: it may be back before anybody looks.
        self.report_states(&tree);
        if needed {
            // It is the devices' state now that keeps blocks away.
            self.metaslabs.set_allocatable(top.id, true)?;
        }
        drop(changing);
        self.write_down().await
    }

    /// Brings a device back that is offline or was away. Its state afterwards says whether that
    /// went well: one that counts as broken does so until [`Self::clear`]. With `expand` its
    /// top-level grows if it can.
    #[crate::boxed]
    pub async fn online(self: &Arc<Self>, guid: u64, expand: bool) -> Result<(VdevState, VdevAux)> {
        if let Some(vdev) = self.cache_vdev(guid) {
            if expand {
                return Err(Error::os(Errno::NotSup, "cache devices do not grow"));
            }
            return self.online_cache(&vdev).await;
        }
        let changing = self.changing.lock().await;
        let leaf = self.leaf(guid)?;
        leaf.offline.store(false, Ordering::Relaxed);
        leaf.offline_until_import.store(false, Ordering::Relaxed);
        leaf.unspare.store(false, Ordering::Relaxed);
        // One that is in use stays so: it was perhaps only to be looked at again. What was given up
        // because it did not answer may answer now.
        let faulty = leaf.state().0 == VdevState::Faulted && !leaf.is_hung();
        if !faulty && (!leaf.readable() || !leaf.writable()) {
            self.bring_back(&leaf).await;
        }
        self.look_at_sizes().await;
        let tree = self.tree();
        tree.propagate();
        self.report_states(&tree);
        if (expand || self.autoexpand()) && !self.ctx.readonly && self.suspended().is_none() {
            self.expand(tree.top_of(guid).map(|t| t.vdev.guid)).await?;
        }
        drop(changing);
        self.write_down().await?;
        self.catch_up().await?;
        self.resume_upkeep();
        Ok(leaf.state())
    }

    /// Forgets errors, of one vdev or all, and tries the devices again that failed. A suspended
    /// pool goes on where it was.
    #[crate::boxed]
    pub async fn clear(self: &Arc<Self>, guid: Option<u64>) -> Result<()> {
        let one = self.clearing.lock().await;
        // Who is changing the pool may wait for the very txg that is to be tried again: the devices
        // of a suspended pool are tried beside it.
        let lock = std::pin::pin!(self.changing.lock());
        let changing = match select(lock, std::pin::pin!(self.suspension.happens())).await {
            Either::Left((guard, _)) => Some(guard),
            Either::Right(_) => None,
        };
        let tree = self.tree();
        let vdev = match guid {
            Some(guid) => tree.find(guid).ok_or(Refusal::NoDevice(guid))?,
            None => tree.root.clone(),
        };
        vdev.clear_errors();
        let mut had_failed = Vec::new();
        for vdev in vdev.walk() {
            let Some(leaf) = vdev.leaf.clone().filter(|l| !tree.is_cache(l)) else { continue };
            if leaf.state().0 != VdevState::Healthy {
                had_failed.push(vdev.guid);
            }
            leaf.external_fault.store(false, Ordering::Relaxed);
            leaf.unspare.store(true, Ordering::Relaxed);
            leaf.forgiven();
            self.diagnosis.lock().forget(leaf.guid(), self.ctx.env.now());
            match leaf.offline.load(Ordering::Relaxed) {
                false if leaf.state().0 < VdevState::Degraded => self.bring_back(&leaf).await,
                true if leaf.state().0 == VdevState::Faulted => {
                    leaf.set_unusable(VdevState::Offline, VdevAux::None);
                }
                _ => {}
            }
        }
        if guid.is_none() {
            tree.cache.iter().for_each(|v| v.clear_errors());
        }
        for leaf in
            tree.cache.iter().filter(|v| guid.is_none_or(|g| g == v.guid)).filter_map(|v| v.leaf.as_ref())
        {
            leaf.external_fault.store(false, Ordering::Relaxed);
        }
        self.retry_cache(guid).await;
        tree.propagate();
        // As in OpenZFS only of these is it told.
        had_failed.into_iter().for_each(|guid| self.notify("vdev_clear", Some(guid)));
        drop((changing, one));
        if self.lost_to_others() {
            self.heart.reclaim().await?;
        }
        self.resume().await?;
        let spa = self.clone();
        // Once begun it must end, whoever waits for it: a detach that nobody goes on with would
        // still be carried out, and who changes the tree next would not know of it.
        let settled = self.ctx.env.spawn_with_result(async move {
            spa.write_down().await?;
            spa.catch_up().await?;
            // The spares of those that lack nothing leave.
            spa.finish_replacements().await
        });
        // Devices that fail again at once suspend it again: who cleared it is told, and not kept
        // waiting.
        match select(settled, std::pin::pin!(self.suspension.happens())).await {
            Either::Left((result, _)) => result,
            Either::Right((why, _)) => Err(why),
        }
    }

    /// Looks at every device again: whether it is there, and still the pool's.
    #[crate::boxed]
    pub async fn reopen(self: &Arc<Self>) -> Result<()> {
        {
            let _changing = self.changing.lock().await;
            let tree = self.tree();
            for leaf in tree.pool_leaves() {
                if leaf.readable() {
                    tree.check_label(leaf, self.guid()).await;
                } else if leaf.state().0 == VdevState::CantOpen {
                    self.bring_back(leaf).await;
                }
            }
            self.retry_cache(None).await;
            self.look_at_spares().await;
            self.look_at_sizes().await;
            tree.propagate();
            self.expand_by_itself().await;
        }
        self.catch_up().await
    }

    pub(super) async fn bring_back(&self, leaf: &Arc<Leaf>) {
        let args = OpenArgs {
            write: !self.ctx.readonly,
            pool_guid: Some(self.guid()),
            newest: self.ctx.txgs.open().0,
            ..OpenArgs::default()
        };
        self.tree().reopen(leaf, &args).await;
        // Its labels may say what the pool was before the txg that waits for it.
        if let Some(former) = self.ctx.former_guid()
            && leaf.state() == (VdevState::CantOpen, VdevAux::CorruptData)
        {
            let args = OpenArgs { pool_guid: Some(former), ..args };
            self.tree().reopen(leaf, &args).await;
        }
    }

    /// Makes the configuration say what changed.
    pub(super) async fn write_down(&self) -> Result<()> {
        if self.ctx.readonly {
            return Ok(());
        }
        self.config_dirty.store(true, Ordering::Release);
        let synced = std::pin::pin!(self.sync());
        let suspended = std::pin::pin!(self.suspension.happens());
        match select(synced, suspended).await {
            Either::Left((result, _)) => result,
            Either::Right((why, _)) => Err(why),
        }
    }

    /// Sees to it that devices which missed something get it.
    pub(super) async fn catch_up(self: &Arc<Self>) -> Result<()> {
        if self.ctx.readonly || self.suspended().is_some() {
            return Ok(());
        }
        self.metaslabs.read_soon();
        let tree = self.tree();
        for top in tree.tops.iter().filter(|t| t.vdev.is_log && t.leaves().any(|l| l.is_behind())) {
            self.renew(top.id).await;
        }
        self.resilver(false).await
    }

    /// Starts a resilver if a device lacks something. One that is under way goes on, and who takes
    /// no part in it waits for the next, unless all is to `restart`.
    #[crate::boxed]
    pub async fn resilver(self: &Arc<Self>, restart: bool) -> Result<()> {
        self.check_writable()?;
        // A rebuild comes to its end first.
        let Some((_, last)) = self.tree().missing().filter(|_| !self.is_rebuilding()) else {
            return Ok(());
        };
        // A resilver gives what is born up to the txg in which it begins, and reads when that is
        // synced. What is under way on the tree as it was is of a txg that is open now, or older,
        // which is that one at the latest. So must be the last that a device lacks.
        if last > self.ctx.txgs.open().0 {
            self.sync().await?;
        }
        // Without the feature nobody waits for another one.
        let defer = self.ctx.features.is_enabled("resilver_defer");
        let early = self.scan()?.is_early(tunables::RESILVER_DEFER_PERCENT.get());
        let restart = restart || (!defer || early) && self.tree().wants_resilver();
        match self.scan()?.resilver(restart).await {
            Ok(false) => self.tree().defer_resilver(self.ctx.txgs.open().0),
            // One was ordered this moment.
            Err(e) if e.is(Errno::Busy) && self.is_rebuilding() => {}
            started => drop(started?),
        }
        Ok(())
    }

    /// The pool was just opened: what was replaced leaves, devices get what they missed while they
    /// were away, and vdevs grow whose devices have.
    pub(super) async fn settle_devices(self: &Arc<Self>) {
        if let Err(e) = self.settle_split().await {
            tracing::warn!(pool = %self.name(), "a split that was under way: {e}");
        }
        let finished = self.finish_replacements().await;
        if let Err(e) = finished.and(self.catch_up().await) {
            tracing::warn!(pool = %self.name(), "devices that are behind: {e}");
        }
        // They may have grown while the pool was exported.
        let _changing = self.changing.lock().await;
        self.expand_by_itself().await;
    }

    /// A resilver is complete: what was replaced leaves, and those who waited get theirs.
    pub(super) async fn resilvered(self: Arc<Self>) {
        let finished = self.finish_replacements().await;
        let waiting = if self.tree().wants_resilver() { self.resilver(false).await } else { Ok(()) };
        if let Err(e) = finished.and(waiting) {
            tracing::warn!(pool = %self.name(), "after the resilver: {e}");
        }
    }

    /// Looks now and then whether devices that were missing have come back by themselves.
    pub(super) fn watch_devices(self: &Arc<Self>) {
        let (weak, env) = (Arc::downgrade(self), self.ctx.env.clone());
        self.ctx.env.spawn(async move {
            loop {
                env.sleep(LOOK_EVERY).await;
                let Some(spa) = weak.upgrade().filter(|s| !s.ctx.txgs.is_stopped()) else { return };
                if let Err(e) = spa.look_for_missing().await {
                    tracing::warn!(pool = %spa.name(), "devices that came back: {e}");
                }
            }
        });
    }

    async fn look_for_missing(self: &Arc<Self>) -> Result<()> {
        if self.suspended().is_some() {
            // It goes on when it is told to, and looks at its devices then.
            return Ok(());
        }
        let tree = self.tree();
        let missing = |l: &&Arc<Leaf>| l.state() == (VdevState::CantOpen, VdevAux::OpenFailed);
        let look = async |leaf| tree.is_back(leaf, self.guid()).await.then(|| leaf.clone());
        let looked = join_all(tree.pool_leaves().filter(missing).map(look)).await;
        let back: Vec<Arc<Leaf>> = looked.into_iter().flatten().collect();
        let changing = self.changing.lock().await;
        if self.ctx.txgs.is_stopped() {
            return Ok(());
        }
        self.resume_upkeep();
        self.rebuild_on();
        self.look_at_sizes().await;
        self.expand_by_itself().await;
        if back.is_empty() {
            return Ok(());
        }
        for leaf in back.iter().filter(missing) {
            tracing::info!(pool = %self.name(), path = %leaf.path(), "the device is back");
            leaf.unspare.store(true, Ordering::Relaxed);
            self.bring_back(leaf).await;
        }
        self.tree().propagate();
        drop(changing);
        self.write_down().await?;
        self.catch_up().await?;
        self.finish_replacements().await
    }
}
