//! Cache devices of a pool: which there are, and their coming and going.
//!
//! A pool's configuration does not name them; they stand in a list of their own in the MOS
//! (`l2cache` in the directory, as in OpenZFS), and each has a label that says no more than that it
//! is a cache device, and its guid. One that is missing, or somebody else's, is a state that is
//! shown, and never a reason not to import.
//!
//! **Crash.** The list is changed in the txg that adds or removes a device. Added and not yet
//! listed, a device is nobody's; removed and still listed, it is found again.

use super::{Spa, config};
use crate::error::{Errno, Error, Result};
use crate::l2arc::CacheSpace;
use crate::txg::Tx;
use crate::vdev::{LeafSpec, Vdev, VdevAux, VdevTree};
use crate::vdev::{SLOW_TIMEOUT, within};
use crate::zap::Zap;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::NvList;
use zilla_ondisk::dsl::DMU_POOL_L2CACHE;
use zilla_ondisk::enums::{SPA_VERSION_L2CACHE, VdevState};

impl Spa {
    /// Opens the cache devices of a pool that is being opened.
    pub(super) async fn open_cache(&self, directory: &Zap, paths: &BTreeMap<u64, PathBuf>) -> Result<()> {
        let object = directory.try_get_u64(DMU_POOL_L2CACHE).await?.unwrap_or(0);
        self.cache_object.store(object, Ordering::Release);
        if object == 0 {
            return Ok(());
        }
        let made = async {
            let mut list = config::read_packed(self.ctx.mos(), object).await?;
            super::set_paths(&mut list, paths);
            let configs = list.lists(DMU_POOL_L2CACHE).unwrap_or_default().to_vec();
            self.tree().adding_cache(&configs)
        };
        match made.await {
            Ok(tree) => {
                let tree = Arc::new(tree);
                self.zio.set_tree(tree.clone());
                join_all(tree.cache.iter().map(|v| tree.open_cache(v, !self.ctx.readonly, false))).await;
                self.use_cache(&tree.cache, false);
            }
            // The pool is whole without them.
            Err(e) => tracing::warn!(pool = %self.name(), "the list of cache devices cannot be used: {e}"),
        }
        Ok(())
    }

    /// Takes devices that are open into use.
    pub(super) fn use_cache(&self, devices: &[Arc<Vdev>], fresh: bool) {
        let readable = |v: &&Arc<Vdev>| v.leaf.as_ref().is_some_and(|l| l.readable());
        for v in devices.iter().filter(readable) {
            if let Err(e) = self.zio.l2().add(v, fresh) {
                tracing::warn!(pool = %self.name(), guid = v.guid, "the cache device is not used: {e}");
                if let Some(leaf) = &v.leaf {
                    leaf.set_unusable(VdevState::CantOpen, VdevAux::TooSmall);
                }
            }
        }
    }

    pub(super) fn cache_vdev(&self, guid: u64) -> Option<Arc<Vdev>> {
        self.tree().cache.iter().find(|v| v.guid == guid).cloned()
    }

    /// What a cache device holds, and could.
    pub fn cache_space(&self, guid: u64) -> Option<CacheSpace> {
        self.zio.l2().space(guid)
    }

    /// Adds cache devices.
    pub async fn add_cache(self: &Arc<Self>, specs: &[LeafSpec]) -> Result<()> {
        self.add_or_try_cache(specs, false).await
    }

    /// Refuses what cannot be added.
    pub(super) async fn check_cache(self: &Arc<Self>, specs: &[LeafSpec]) -> Result<()> {
        self.add_or_try_cache(specs, true).await
    }

    #[crate::boxed]
    async fn add_or_try_cache(self: &Arc<Self>, specs: &[LeafSpec], only_tried: bool) -> Result<()> {
        self.check_writable()?;
        self.dsl.needs_version(SPA_VERSION_L2CACHE)?;
        let _changing = self.changing.lock().await;
        let (old, env) = (self.tree(), &self.ctx.env);
        let configs: Vec<NvList> = specs.iter().map(|s| s.config(0, &*env.rng)).collect();
        let new = Arc::new(old.adding_cache(&configs)?);
        let fresh = new.cache.get(old.cache.len()..).unwrap_or_default().to_vec();
        let mut made = self.open_new_cache(&new, &fresh).await;
        if made.is_ok() && !only_tried {
            made = self.add_cache_made(&new, &fresh).await;
        }
        if made.is_err() || only_tried {
            let leaves = fresh.iter().filter_map(|v| v.leaf.as_ref());
            join_all(leaves.map(|l| within(env, SLOW_TIMEOUT, l.close()))).await;
            return made;
        }
        self.use_cache(&fresh, true);
        Ok(())
    }

    async fn open_new_cache(&self, new: &VdevTree, fresh: &[Arc<Vdev>]) -> Result<()> {
        for v in fresh {
            let Some(leaf) = &v.leaf else { continue };
            new.check_once(&leaf.path(), true)?;
            new.open_cache(v, true, true).await;
            if let Some(e) = leaf.open_error() {
                return Err(e);
            }
            if !leaf.writable() {
                let what = format!("{}: cannot be opened for writing, or is in use", leaf.path());
                return Err(Error::os(Errno::Busy, what));
            }
        }
        Ok(())
    }

    async fn add_cache_made(self: &Arc<Self>, new: &Arc<VdevTree>, fresh: &[Arc<Vdev>]) -> Result<()> {
        let (nobodys, ub) = (self.nobodys(), self.uberblock());
        let label = new.init_cache_labels(&nobodys, &ub, fresh);
        let label = within(&self.ctx.env, SLOW_TIMEOUT, label).await;
        label.unwrap_or_else(|| Err(Error::os(Errno::Io, "the device does not answer")))?;
        self.change_cache(new.clone()).await
    }

    /// Takes a cache device away.
    pub(super) async fn remove_cache(self: &Arc<Self>, vdev: &Arc<Vdev>) -> Result<()> {
        let _changing = self.changing.lock().await;
        let new = Arc::new(self.tree().without_aux(vdev.guid));
        self.change_cache(new).await?;
        self.zio.l2().remove(vdev.guid).await;
        if let Some(leaf) = &vdev.leaf {
            within(&self.ctx.env, SLOW_TIMEOUT, leaf.retire(VdevState::Closed)).await;
            leaf.set_unusable(VdevState::Closed, VdevAux::None);
        }
        Ok(())
    }

    /// Makes a tree with other cache devices the pool's, and writes down which they are.
    async fn change_cache(self: &Arc<Self>, new: Arc<VdevTree>) -> Result<()> {
        let spa = self.clone();
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    spa.write_cache(&tx, &new).await?;
                    spa.use_tree(new);
                    Ok(())
                })
            })
            .await
    }

    /// Writes the list down, in the syncing context.
    async fn write_cache(&self, tx: &Tx, tree: &VdevTree) -> Result<()> {
        let object = self.cache_object.load(Ordering::Acquire);
        let list = tree.generate_aux(&tree.cache);
        let object = write_list(self.ctx.mos(), tx, object, DMU_POOL_L2CACHE, list).await?;
        self.cache_object.store(object, Ordering::Release);
        Ok(())
    }

    /// The same after the state of one changed.
    async fn write_cache_down(self: &Arc<Self>) -> Result<()> {
        if self.ctx.readonly {
            return Ok(());
        }
        let spa = self.clone();
        let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move { spa.write_cache(&tx, &spa.tree()).await })
        };
        self.ctx.sync_task(task).await
    }

    /// Takes a cache device out of use; what it holds is kept for the next time.
    pub(super) async fn offline_cache(
        self: &Arc<Self>,
        vdev: &Arc<Vdev>,
        temporary: bool,
        fault: bool,
    ) -> Result<()> {
        let Some(leaf) = &vdev.leaf else { return Ok(()) };
        {
            let _changing = self.changing.lock().await;
            leaf.offline_until_import.store(temporary, Ordering::Relaxed);
            let (state, aux) = if fault {
                self.zio.l2().remove(vdev.guid).await;
                leaf.external_fault.store(true, Ordering::Relaxed);
                (VdevState::Faulted, VdevAux::External)
            } else {
                self.zio.l2().pause(vdev.guid);
                leaf.offline.store(true, Ordering::Relaxed);
                (VdevState::Offline, VdevAux::None)
            };
            within(&self.ctx.env, SLOW_TIMEOUT, leaf.retire(state)).await;
            leaf.set_unusable(state, aux);
        }
        self.write_cache_down().await
    }

    /// Brings a cache device back, with what it holds if that is still known to be ours.
    pub(super) async fn online_cache(self: &Arc<Self>, vdev: &Arc<Vdev>) -> Result<(VdevState, VdevAux)> {
        let Some(leaf) = &vdev.leaf else { return Ok(vdev.state()) };
        {
            let _changing = self.changing.lock().await;
            leaf.offline.store(false, Ordering::Relaxed);
            leaf.offline_until_import.store(false, Ordering::Relaxed);
            // As with all devices, until it is cleared.
            if leaf.state().0 != VdevState::Faulted {
                self.reopen_cache(vdev).await;
            }
        }
        self.write_cache_down().await?;
        Ok(leaf.state())
    }

    /// Looks at the cache devices that could not be opened, or failed, again. For one who holds
    /// `changing`.
    pub(super) async fn retry_cache(&self, guid: Option<u64>) {
        for vdev in &self.tree().cache {
            let Some(leaf) = &vdev.leaf else { continue };
            if guid.is_some_and(|g| g != vdev.guid) {
                continue;
            }
            let off = leaf.offline.load(Ordering::Relaxed) || leaf.external_fault.load(Ordering::Relaxed);
            if !off && !leaf.readable() {
                self.reopen_cache(vdev).await;
            }
        }
    }

    async fn reopen_cache(&self, vdev: &Arc<Vdev>) {
        let Some(leaf) = &vdev.leaf else { return };
        self.zio.l2().remove(vdev.guid).await;
        within(&self.ctx.env, SLOW_TIMEOUT, leaf.close()).await;
        self.tree().open_cache(vdev, !self.ctx.readonly, false).await;
        self.use_cache(std::slice::from_ref(vdev), false);
    }
}

/// Writes a list of devices to an object of the MOS that the directory knows as `name`, and which
/// is made if there is none.
pub(super) async fn write_list(
    mos: &Arc<crate::dmu::Objset>,
    tx: &Tx,
    object: u64,
    name: &str,
    devices: Vec<NvList>,
) -> Result<u64> {
    let object = match object {
        0 => {
            let object = config::create_packed(mos, tx).await?.0;
            let directory = Zap::open(mos, super::open::DIRECTORY).await?;
            directory.insert_u64(tx, name, object).await?;
            object
        }
        n => n,
    };
    let list = NvList::new().with(name, devices);
    config::write_packed(mos, tx, object, &list).await?;
    Ok(object)
}
