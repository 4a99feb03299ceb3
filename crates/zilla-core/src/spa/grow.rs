//! Growing: a top-level vdev whose devices have become larger gets the metaslabs that they have
//! room for.
//!
//! When: `zpool online -e`; and with `autoexpand=on` as soon as it is noticed, which is at an
//! import, at `online` and `reopen`, when the last small disk leaves a mirror or RAID-Z, and by a
//! look now and then. Metaslabs keep their size, new ones are appended.
//!
//! One vdev grows in one txg: its size in the configuration and the labels, and its metaslabs. New
//! blocks go there only when that txg is stable. A crash finds the size as it was, and what lies
//! beyond belongs to nobody, or the new one.

use super::Spa;
use crate::error::Result;
use crate::vdev::{Leaf, NewSize, VdevAux, VdevState};
use futures_util::future::{BoxFuture, Either, select};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Spa {
    pub fn autoexpand(&self) -> bool {
        self.autoexpand.load(Ordering::Relaxed)
    }

    /// Heeds the property from now on, and for what has grown already.
    #[crate::boxed]
    pub async fn set_autoexpand(self: &Arc<Self>, on: bool) -> Result<()> {
        self.autoexpand.store(on, Ordering::Relaxed);
        if !on || self.ctx.readonly || self.suspended().is_some() {
            return Ok(());
        }
        let _changing = self.changing.lock().await;
        self.look_at_sizes().await;
        self.expand(None).await
    }

    /// Looks at the sizes of all devices. For one who holds `changing`.
    pub(super) async fn look_at_sizes(&self) {
        if self.ctx.readonly || self.suspended().is_some() {
            return;
        }
        let tree = self.tree();
        let open: Vec<&Arc<Leaf>> =
            tree.pool_leaves().filter(|l| l.state().0 == VdevState::Healthy && l.writable()).collect();
        let mut lost = false;
        for leaf in open {
            match tree.look_at_size(leaf).await {
                Ok(NewSize::Same) => {}
                Ok(NewSize::Changed) => self.config_dirty.store(true, Ordering::Release),
                Ok(NewSize::TooSmall) => {
                    tracing::error!(path = %leaf.path(), "the device has shrunk: it is taken out of use");
                    leaf.take_out(VdevState::CantOpen, VdevAux::BadLabel).await;
                    lost = true;
                }
                Err(e) => tracing::warn!(path = %leaf.path(), error = %e, "its size cannot be found out"),
            }
        }
        if lost {
            tree.propagate();
        }
    }

    /// Lets vdevs grow that can, or one of them. For one who holds `changing`.
    pub(super) async fn expand(self: &Arc<Self>, only: Option<u64>) -> Result<()> {
        let tree = self.tree();
        for top in tree.tops.iter().filter(|t| only.is_none_or(|guid| t.vdev.guid == guid)) {
            let Some(asize) = top.grows_to() else { continue };
            let (spa, id, guid) = (self.clone(), top.id, top.vdev.guid);
            // Once begun it must end, whoever waits for it; and who waits must not, when the pool
            // is suspended.
            let growing = self.ctx.env.spawn_with_result(async move { spa.grow_top(id, guid, asize).await });
            let suspended = std::pin::pin!(self.suspension.happens());
            match select(growing, suspended).await {
                Either::Left((result, _)) => result?,
                Either::Right((why, _)) => return Err(why),
            }
        }
        Ok(())
    }

    async fn grow_top(self: &Arc<Self>, id: u32, guid: u64, asize: u64) -> Result<()> {
        let spa = self.clone();
        let task = move |_| -> BoxFuture<'static, Result<bool>> {
            Box::pin(async move {
                // Who waited may have given up, and another have changed the tree.
                let tree = spa.tree();
                let Some(top) = tree.top(id).ok().filter(|t| t.vdev.guid == guid) else { return Ok(false) };
                if top.vdev.asize() >= asize {
                    return Ok(false);
                }
                spa.metaslabs.grow(id, asize)?;
                top.vdev.set_asize(asize);
                spa.config_dirty.store(true, Ordering::Release);
                Ok(true)
            })
        };
        if !self.ctx.sync_task(task).await? {
            return Ok(());
        }
        self.metaslabs.use_grown(id, asize)?;
        tracing::info!(pool = %self.name(), vdev = id, asize, "the vdev has grown");
        self.update_space()
    }

    /// The same if the property says so; failure is told in the log.
    pub(super) async fn expand_by_itself(self: &Arc<Self>) {
        if !self.autoexpand() || self.ctx.readonly || self.suspended().is_some() {
            return;
        }
        if let Err(e) = self.expand(None).await {
            tracing::warn!(pool = %self.name(), "growing: {e}");
        }
    }
}
