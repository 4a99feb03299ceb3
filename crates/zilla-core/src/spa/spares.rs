//! Hot spares: devices that stand ready, step in for one that fails, and step back. Who watches the
//! pool calls them ([`Spa::call_spares`]).
//!
//! Which there are, a list in the MOS says (`spares` in the directory, as in OpenZFS); each has a
//! label that says no more than that it is a spare, and its guid. A spare may be on the lists of
//! several pools: whoever needs it first has it. So one that waits is not held open; it is looked
//! at when it is needed, and what its label says decides whether it can be had.
//!
//! A spare in use stands beside the device it stands in for, in a group of type `spare`, and stays
//! on the list under the same guid. It leaves by a detach, or when what it stands in for is
//! replaced, or back and whole ([`Vdev::to_leave`]); its label then says that it is a spare again.
//! If the device it stands in for is detached, it stays for good and is on no list any more.
//!
//! A dRAID's **distributed spares** are on the list as well, from when it is made. They are no
//! devices (`vdev/distributed.rs`): no other pool can have them, nothing of them is labelled or
//! opened, and they stay on the list whatever becomes of the device that they stand for.
//!
//! **Crash.** The list, and the tree, change in one txg each time. A spare whose label was about to
//! be written over belongs to nobody, and is known by its guid; the list decides.

use super::Spa;
use super::cache::write_list;
use super::config;
use crate::error::{Errno, Error, Result};
use crate::spa::{Attach, Refusal};
use crate::txg::Tx;
use crate::vdev::{Leaf, LeafSpec, Top, Vdev, VdevKind, VdevState, VdevTree};
use crate::vdev::{OPEN_TIMEOUT, probe_path, within};
use crate::zap::Zap;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::NvList;
use zilla_ondisk::dsl::DMU_POOL_SPARES;
use zilla_ondisk::enums::{PoolState, SPA_VERSION_SPARES};

/// A device that is to become a hot spare.
#[derive(Clone, Debug)]
pub struct SpareSpec {
    pub leaf: LeafSpec,
    /// It is another pool's spare already, of this guid, and is to be shared.
    pub shared: Option<u64>,
}

impl Spa {
    /// Reads which spares a pool has that is being opened.
    pub(super) async fn open_spares(&self, directory: &Zap, paths: &BTreeMap<u64, PathBuf>) -> Result<()> {
        let object = directory.try_get_u64(DMU_POOL_SPARES).await?.unwrap_or(0);
        self.spare_object.store(object, Ordering::Release);
        if object == 0 {
            return Ok(());
        }
        let made = async {
            let mut list = config::read_packed(self.ctx.mos(), object).await?;
            super::set_paths(&mut list, paths);
            self.tree().adding_spares(list.lists(DMU_POOL_SPARES).unwrap_or_default())
        };
        match made.await {
            Ok(tree) => {
                self.zio.set_tree(Arc::new(tree));
                self.look_at_spares().await;
            }
            // The pool is whole without them.
            Err(e) => tracing::warn!(pool = %self.name(), "the list of hot spares cannot be used: {e}"),
        }
        Ok(())
    }

    /// Finds out which of the spares that wait are there.
    #[crate::boxed]
    pub async fn look_at_spares(&self) {
        let tree = self.tree();
        let waiting = tree.spares.iter().filter(|v| !tree.is_active_spare(v.guid));
        join_all(waiting.map(|vdev| tree.look_at_spare(vdev))).await;
    }

    /// Adds hot spares.
    #[crate::boxed]
    pub async fn add_spares(self: &Arc<Self>, specs: &[SpareSpec]) -> Result<()> {
        self.check_writable()?;
        self.dsl.needs_version(SPA_VERSION_SPARES)?;
        let _changing = self.changing.lock().await;
        let new = self.label_spares(specs, true).await?;
        self.change_spares(new).await?;
        self.look_at_spares().await;
        Ok(())
    }

    /// Refuses what cannot be added.
    pub(super) async fn check_spares(&self, specs: &[SpareSpec]) -> Result<()> {
        self.check_writable()?;
        self.dsl.needs_version(SPA_VERSION_SPARES)?;
        let _changing = self.changing.lock().await;
        self.label_spares(specs, false).await.map(drop)
    }

    /// Hot spares of a pool that is being created, in its first txg.
    pub(super) async fn first_spares(&self, tx: &Tx, specs: &[SpareSpec]) -> Result<()> {
        let labelled = if specs.is_empty() { self.tree() } else { self.label_spares(specs, true).await? };
        let new = self.with_distributed(labelled, |_| true)?;
        if !new.spares.is_empty() {
            self.write_spares(tx, &new).await?;
            self.use_tree(new);
        }
        Ok(())
    }

    /// The tree with the distributed spares of top-levels that are new in it.
    pub(super) fn with_distributed(
        &self,
        tree: Arc<VdevTree>,
        new: impl Fn(&Top) -> bool,
    ) -> Result<Arc<VdevTree>> {
        let rng = &*self.ctx.env.rng;
        let all: Vec<_> = tree.tops.iter().filter(|t| new(t)).flat_map(|t| t.new_spares(rng)).collect();
        if all.is_empty() { Ok(tree) } else { tree.adding_spares(&all).map(Arc::new) }
    }

    /// Labels devices as spares, or only opens them for that; the tree that has them.
    async fn label_spares(&self, specs: &[SpareSpec], labels: bool) -> Result<Arc<VdevTree>> {
        let (old, env) = (self.tree(), &self.ctx.env);
        let mut configs = Vec::new();
        for spec in specs {
            let mut nv = spec.leaf.config(0, &*env.rng);
            nv.set("is_spare", 1u64);
            if let Some(guid) = spec.shared {
                nv.set("guid", guid);
            }
            configs.push(nv);
        }
        let new = Arc::new(old.adding_spares(&configs)?);
        let fresh = new.spares.get(old.spares.len()..).unwrap_or_default();
        let mine = fresh.iter().zip(specs).filter(|(_, s)| s.shared.is_none());
        for (vdev, _) in mine {
            let Some(leaf) = &vdev.leaf else { continue };
            new.check_once(&leaf.path(), true)?;
            new.open_spare(leaf).await?;
            let labelled = match labels {
                true => new.init_spare_label(&self.nobodys(), &self.uberblock(), vdev).await,
                false => Ok(()),
            };
            leaf.retire(VdevState::Healthy).await;
            labelled?;
        }
        Ok(new)
    }

    /// Takes a spare off the list.
    pub(super) async fn remove_spare(self: &Arc<Self>, guid: u64) -> Result<()> {
        let _changing = self.changing.lock().await;
        let old = self.tree();
        if old.is_active_spare(guid) {
            return Err(Error::os(Errno::Busy, "the hot spare is in use; detach it first"));
        }
        if old.spares.iter().any(|v| v.guid == guid && v.kind == VdevKind::Dspare) {
            return Err(Error::os(Errno::NotSup, "dRAID spares cannot be removed"));
        }
        self.change_spares(Arc::new(old.without_aux(guid))).await
    }

    /// A spare that was shared is another pool's for good.
    #[crate::boxed]
    pub async fn forget_spare(self: &Arc<Self>, guid: u64) -> Result<()> {
        match self.ctx.readonly || !self.tree().spares.iter().any(|v| v.guid == guid) {
            true => Ok(()),
            false => self.remove_spare(guid).await,
        }
    }

    async fn change_spares(self: &Arc<Self>, new: Arc<VdevTree>) -> Result<()> {
        let spa = self.clone();
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    spa.write_spares(&tx, &new).await?;
                    spa.use_tree(new);
                    Ok(())
                })
            })
            .await
    }

    /// Writes the list down, in the syncing context.
    pub(super) async fn write_spares(&self, tx: &Tx, tree: &VdevTree) -> Result<()> {
        let object = self.spare_object.load(Ordering::Acquire);
        let list = tree.generate_aux(&tree.spares);
        let object = write_list(self.ctx.mos(), tx, object, DMU_POOL_SPARES, list).await?;
        self.spare_object.store(object, Ordering::Release);
        Ok(())
    }

    /// The configuration of a spare that is to stand in for a device of `top`. Refuses one that is
    /// not to be had: in use here or in another pool, or not at this path.
    pub(super) async fn take_spare(&self, guid: u64, spec: &LeafSpec, top: &Top) -> Result<NvList> {
        let (tree, path) = (self.tree(), &spec.path);
        let busy = |why: &str| Error::os(Errno::Busy, format!("{}: {why}", path.display()));
        let Some(spare) = tree.spares.iter().find(|v| v.guid == guid) else {
            return Err(Error::os(Errno::NoDev, format!("{} is no hot spare of the pool", path.display())));
        };
        if tree.is_active_spare(guid) {
            return Err(busy("the hot spare is in use"));
        }
        if let Some(room) = spare.leaf.as_ref().and_then(|l| l.room) {
            if room.top != top.vdev.guid {
                return Err(Refusal::OtherDraid.into());
            }
            return Ok(spare.as_config());
        }
        self.check_spare(guid, path).await?;
        let mut nv = spec.config(0, &*self.ctx.env.rng);
        nv.set("guid", guid).set("is_spare", 1u64);
        Ok(nv)
    }

    /// Whether what is at a path is the spare, and nobody else's by now.
    async fn check_spare(&self, guid: u64, path: &Path) -> Result<()> {
        let busy = |why: &str| Error::os(Errno::Busy, format!("{}: {why}", path.display()));
        let found = within(&self.ctx.env, OPEN_TIMEOUT, probe_path(&self.ctx.env, path)).await;
        let found = found.ok_or_else(|| busy("the hot spare does not answer"))??;
        let label = found.map(|(_, label)| label).filter(|l| l.guid() == Some(guid));
        let label = label.ok_or_else(|| busy("the device is not the hot spare"))?;
        // What names another pool has begun to be used there; what names this one was used, until a
        // crash came in between.
        let elsewhere = label.pool_guid().is_some_and(|p| p != self.guid()) && label.txg() != 0;
        if elsewhere && label.state() != Some(PoolState::Spare) {
            return Err(busy("the hot spare is in use by another pool"));
        }
        Ok(())
    }

    /// A spare that was in use has left the tree: its label says again what it is. For one who
    /// holds `changing`.
    pub(super) async fn back_to_spares(&self, old: &VdevTree, vdev: &Arc<Vdev>, leaf: &Arc<Leaf>) {
        leaf.dtl.set([]);
        if leaf.writable()
            && !leaf.is_room()
            && let Err(e) = old.init_spare_label(&self.nobodys(), &self.uberblock(), vdev).await
        {
            tracing::warn!(path = %leaf.path(), error = %e, "the label of a hot spare could not be written");
        }
        leaf.retire(VdevState::Closed).await;
        self.look_at_spares().await;
    }

    /// Puts spares in the place of devices that have failed, as far as there are any that fit.
    #[crate::boxed]
    pub async fn call_spares(self: &Arc<Self>) {
        if self.ctx.readonly || self.suspended().is_some() || self.ctx.txgs.is_stopped() {
            return;
        }
        let needs = self.tree().in_need_of_spares();
        if !needs.is_empty() {
            self.look_at_spares().await;
        }
        for (target, path) in needs {
            let mut spares = self.tree().spares.clone();
            // What lies on all disks is given back to them the fastest.
            spares.sort_by_key(|s| s.kind != VdevKind::Dspare);
            for spare in spares {
                let Some(leaf) = spare.leaf.as_ref() else { continue };
                let tree = self.tree();
                let other =
                    leaf.room.is_some_and(|r| tree.top_of(target).is_none_or(|t| t.vdev.guid != r.top));
                if other || tree.is_active_spare(spare.guid) || leaf.state().0 != VdevState::Healthy {
                    continue;
                }
                let disk = spare.kind == VdevKind::Disk;
                let spec = LeafSpec { path: PathBuf::from(leaf.path()), disk };
                let top = tree.top_of(target).filter(|_| leaf.is_room());
                let sequential = top.is_some_and(|t| self.may_rebuild(t));
                let how = Attach { replace: true, spare: Some(spare.guid), sequential, ..Attach::default() };
                match self.attach(target, &spec, how).await {
                    Ok(()) => {
                        tracing::warn!(pool = %self.name(), failed = %path, spare = %leaf.path(), "a hot spare steps in");
                        break;
                    }
                    Err(e) => {
                        tracing::debug!(failed = %path, spare = %leaf.path(), "the spare does not fit: {e}")
                    }
                }
            }
        }
    }
}
