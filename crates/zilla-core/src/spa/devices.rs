//! Devices that go and come back: offline, online, faults and their clearing, and looking at all of them again.
//!
//! A leaf that is away misses txgs, which its DTL notes as they are written. When it is back, a log's is brought up to date by
//! emptying the log, any other by a resilver. Nothing is taken offline that others are needed for: a log that would
//! lose its last device is emptied first.
//!
//! A crash in between finds what the configuration of the last txg says; a device that it calls online is looked at when the
//! pool is opened.

use super::Spa;
use crate::error::{Errno, Error, Result};
use crate::vdev::{Leaf, OpenArgs, VdevAux};
use futures_util::future::{Either, select};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::enums::VdevState;

impl Spa {
    fn leaf(&self, guid: u64) -> Result<Arc<Leaf>> {
        let tree = self.tree();
        let vdev = tree.find(guid).ok_or_else(|| Error::os(Errno::NoDev, "no such device in the pool"))?;
        if tree.top_of(guid).is_none() {
            return Err(Error::os(Errno::NotSup, "the device belongs to no vdev that holds blocks"));
        }
        vdev.leaf
            .clone()
            .ok_or_else(|| Error::os(Errno::NotSup, "only single devices have a state to be set"))
    }

    /// Takes a device out of use; `temporary` until the next import. With `fault` it counts as broken.
    pub async fn offline(self: &Arc<Self>, guid: u64, temporary: bool, fault: bool) -> Result<()> {
        let changing = self.changing.lock().await;
        let (leaf, tree) = (self.leaf(guid)?, self.tree());
        let top = tree.top_of(guid).ok_or_else(|| Error::os(Errno::NoDev, "no such device in the pool"))?;
        let stays = |l: &Arc<Leaf>| {
            l.index != leaf.index && l.readable() && (l.writable() || self.ctx.readonly) && l.dtl.is_empty()
        };
        let needed = leaf.readable() && !top.survives(stays);
        if needed && !top.vdev.is_log {
            return Err(Error::os(Errno::Busy, "no valid replicas"));
        }
        if needed && !self.ctx.readonly {
            self.empty_log(top.id).await?;
        }
        leaf.offline_until_import.store(temporary, Ordering::Relaxed);
        if fault {
            leaf.external_fault.store(true, Ordering::Relaxed);
            leaf.fault(VdevAux::External).await;
        } else {
            leaf.offline.store(true, Ordering::Relaxed);
            leaf.retire(VdevState::Offline).await;
        }
        tree.propagate();
        if needed {
            // It is the devices' state now that keeps blocks away.
            self.metaslabs.set_allocatable(top.id, true)?;
        }
        drop(changing);
        self.write_down().await
    }

    /// Brings a device back. Its state afterwards says whether that went well.
    pub async fn online(self: &Arc<Self>, guid: u64) -> Result<(VdevState, VdevAux)> {
        let changing = self.changing.lock().await;
        let leaf = self.leaf(guid)?;
        leaf.offline.store(false, Ordering::Relaxed);
        leaf.offline_until_import.store(false, Ordering::Relaxed);
        leaf.external_fault.store(false, Ordering::Relaxed);
        self.bring_back(&leaf).await;
        self.tree().propagate();
        drop(changing);
        self.write_down().await?;
        self.catch_up().await?;
        Ok(leaf.state())
    }

    /// Forgets errors, of one vdev or all, and tries the devices again that failed. A suspended pool goes on where it was.
    pub async fn clear(self: &Arc<Self>, guid: Option<u64>) -> Result<()> {
        let changing = self.changing.lock().await;
        let tree = self.tree();
        let vdev = match guid {
            Some(guid) => {
                tree.find(guid).ok_or_else(|| Error::os(Errno::NoDev, "no such device in the pool"))?
            }
            None => tree.root.clone(),
        };
        vdev.clear_errors();
        for leaf in vdev.walk().iter().filter_map(|v| v.leaf.clone()) {
            leaf.external_fault.store(false, Ordering::Relaxed);
            if !leaf.offline.load(Ordering::Relaxed) && leaf.state().0 < VdevState::Degraded {
                self.bring_back(&leaf).await;
            }
        }
        tree.propagate();
        drop(changing);
        self.resume().await?;
        self.write_down().await?;
        self.catch_up().await
    }

    /// Looks at every device again: whether it is there, and still the pool's.
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
            tree.propagate();
        }
        self.catch_up().await
    }

    async fn bring_back(&self, leaf: &Arc<Leaf>) {
        let args =
            OpenArgs { write: !self.ctx.readonly, pool_guid: Some(self.guid()), ..OpenArgs::default() };
        self.tree().reopen(leaf, &args).await;
    }

    /// Makes the configuration say what changed.
    async fn write_down(&self) -> Result<()> {
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
    async fn catch_up(self: &Arc<Self>) -> Result<()> {
        if self.ctx.readonly || self.suspended().is_some() {
            return Ok(());
        }
        let tree = self.tree();
        let behind = |l: &Arc<Leaf>| l.readable() && l.writable() && !l.dtl.is_empty();
        let mut resilver = false;
        for top in tree.tops.iter().filter(|t| t.leaves().any(behind)) {
            if top.vdev.is_log {
                self.renew(top.id).await;
            } else {
                resilver = true;
            }
        }
        if resilver {
            self.scan()?.resilver().await?;
        }
        Ok(())
    }
}
