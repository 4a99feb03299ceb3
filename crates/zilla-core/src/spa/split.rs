//! Splitting a pool of mirrors: one side of each becomes a pool of its own, with all that the pool
//! holds.
//!
//! ```text
//!   logs emptied --> [sides leave I/O, are listed] --> new pool's [first txg] --> [sides leave]
//! ```
//!
//! Each step in brackets is a part of one txg's sync, the middle one of the new pool's. In the
//! first the sides are taken out of use before the txg has its uberblock, so each of them holds
//! the pool as of the txg before, whole, with the intent logs up to that moment: what a power cut
//! would have left. It is opened like that, with only these devices, and its first txg makes it a
//! pool of its own: another guid and name, a tree of the sides, no logs, spares or cache devices.
//!
//! A pool with `multihost` that is split off is looked at before it is written: it may have taken
//! so long that another host has found its devices left.
//!
//! **On disk** (OpenZFS's): from the first step to the last the pool's configuration lists the
//! devices (`splitcfg`), and the new pool's labels name the pool it comes from (`split_guid`).
//!
//! **Crash.** Before the new pool's uberblock has arrived anywhere the sides are the pool's; an
//! import finds the list, and gives them what they missed. From then on they are all the new
//! pool's, also those whose uberblocks do not know it yet, and an import of the old one leaves them
//! alone and completes the split. Labels that are on their way without any uberblock of the new
//! pool count for nothing (`discover.rs`).

use super::discover::FoundPool;
use super::open::{DIRECTORY, From, OpenOpts, Opened, trusted_tree};
use super::vdev_objects::VdevObjects;
use super::{Spa, config};
use crate::error::{Errno, Error, Result};
use crate::spa::{Refusal, set_paths};
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::vdev::{
    ConfigFor, Leaf, Lease, OPEN_TIMEOUT, OpenArgs, UpkeepKind, VdevAux, VdevKind, VdevState, VdevTree,
    change, new_guid, probe_path, within,
};
use crate::zap::Zap;
use futures_util::future::{BoxFuture, join};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_env::Env;
use zilla_ondisk::dsl::{DMU_POOL_L2CACHE, DMU_POOL_SPARES};
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::{NvList, Uberblock};

/// A split that is asked for.
pub struct Split {
    /// The side of each mirror that goes, by guid.
    pub sides: Vec<u64>,
    /// How the new pool is opened; its name is there.
    pub opts: OpenOpts,
}

/// What devices that are split off are to become.
pub(super) struct Into {
    sides: Vec<u64>,
    guid: u64,
    /// The name of the pool that they come from.
    from: String,
    /// The newest uberblock that they must have.
    txg: u64,
}

impl Into {
    /// It is the pool's last one, unless a device did not get it.
    pub(super) fn uberblock(&self, found: Uberblock) -> Result<Uberblock> {
        match found.txg == self.txg {
            true => Ok(found),
            false => Err(Error::os(Errno::Io, "the devices to be split off lack the last txg")),
        }
    }
}

/// The devices that a configuration says are being split off.
pub(super) fn listed(config: &NvList) -> Vec<u64> {
    let list = config.list(config::SPLIT).and_then(|s| s.u64s(config::SPLIT_LIST));
    list.unwrap_or_default().iter().copied().filter(|guid| *guid != 0).collect()
}

/// Devices that are being split off are looked at whatever is said of their state, and those that
/// are the new pool's left alone: also one whose uberblock does not know it yet.
pub(super) async fn choose_sides(env: &Env, found: &FoundPool, trusted: &mut NvList) -> Result<()> {
    let listed = listed(trusted);
    if listed.is_empty() {
        return Ok(());
    }
    let whose = whose(env, &*trusted_tree(env, found, trusted)?, &listed, found.guid).await;
    let theirs = matches!(whose, Whose::Theirs | Whose::Unclear);
    if let Some(tree) = trusted.list_mut("vdev_tree") {
        each_leaf(tree, &mut |leaf| {
            if leaf.u64("guid").is_some_and(|guid| listed.contains(&guid)) {
                leaf.remove("offline");
                if theirs {
                    leaf.set("offline", 1u64);
                }
            }
        });
    }
    Ok(())
}

fn each_leaf(nv: &mut NvList, f: &mut dyn FnMut(&mut NvList)) {
    match nv.contains("children") {
        true => nv.lists_mut("children").into_iter().flatten().for_each(|c| each_leaf(c, f)),
        false => f(nv),
    }
}

/// Of a tree only these devices are to be opened.
fn only(tree: &mut NvList, sides: &[u64]) {
    each_leaf(tree, &mut |leaf| {
        if leaf.u64("guid").is_some_and(|guid| sides.contains(&guid)) {
            leaf.remove("offline");
        } else {
            leaf.set("offline", 1u64);
        }
    });
}

/// Whose devices are that were being split off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    Theirs,
    /// Not all of them are to be seen, and none that is the new pool's.
    Unknown,
    /// The same, and one was about to become the new pool's: one that is away may be that already.
    Unclear,
}

async fn whose(env: &Env, tree: &VdevTree, sides: &[u64], pool: u64) -> Whose {
    let (mut seen, mut changing) = (0, false);
    let leaves: Vec<Arc<Leaf>> = sides.iter().filter_map(|g| tree.find(*g)?.leaf.clone()).collect();
    for leaf in &leaves {
        let path = PathBuf::from(leaf.path());
        let found = within(env, OPEN_TIMEOUT, probe_path(env, &path)).await;
        let Some(Ok(Some((_, label)))) = found else { continue };
        // Another device may be at the path by now.
        let own = |nv: &NvList| nv.u64("pool_guid") == Some(pool) && nv.u64("guid") == Some(leaf.guid());
        if own(&label.config) || label.before.as_ref().is_some_and(own) {
            seen += 1;
            changing |= !own(&label.config);
        } else if label.guid() == Some(leaf.guid()) && label.txg() != 0 {
            return Whose::Theirs;
        }
    }
    match seen == leaves.len() {
        true => Whose::Ours,
        false if changing => Whose::Unclear,
        false => Whose::Unknown,
    }
}

impl Spa {
    /// Splits a side off each mirror. The new pool is open then.
    #[crate::boxed]
    pub async fn split(self: &Arc<Self>, what: Split) -> Result<Arc<Spa>> {
        self.check_writable()?;
        let changing = self.changing.lock().await;
        self.check_no_checkpoint()?;
        if self.is_removing() {
            return Err(Refusal::Removing.into());
        }
        let tree = self.tree();
        let leaves = may_split(&tree, &what.sides)?;
        let logs: Vec<u32> = tree.tops_for(true).map(|t| t.id).collect();
        for (i, id) in logs.iter().enumerate() {
            if let Err(e) = self.empty_log(*id).await {
                self.use_logs(logs.get(..i).unwrap_or_default());
                return Err(e);
            }
        }
        for leaf in &leaves {
            for kind in [UpkeepKind::Initialize, UpkeepKind::Trim] {
                leaf.upkeep(kind).halt().await;
            }
        }
        let made = self.take_apart(&tree, &leaves, &logs, what).await;
        self.use_logs(&logs);
        drop(changing);
        self.resume_upkeep();
        if made.is_err() {
            // Sides that are the pool's again get what they missed.
            if let Err(e) = self.catch_up().await {
                tracing::warn!(pool = %self.name(), "devices that are behind after a split: {e}");
            }
        }
        made
    }

    fn use_logs(&self, logs: &[u32]) {
        logs.iter().for_each(|id| drop(self.metaslabs.set_allocatable(*id, true)));
    }

    async fn take_apart(
        self: &Arc<Self>,
        tree: &Arc<VdevTree>,
        leaves: &[Arc<Leaf>],
        logs: &[u32],
        what: Split,
    ) -> Result<Arc<Spa>> {
        let sides = what.sides;
        let task = {
            let (spa, leaves, sides, logs) = (self.clone(), leaves.to_vec(), sides.clone(), logs.to_vec());
            move |_| -> BoxFuture<'static, Result<u64>> {
                Box::pin(async move { spa.set_apart(&leaves, &sides, &logs).await })
            }
        };
        let txg = self.ctx.sync_task(task).await?;
        // Whatever is newer from now on is another host's.
        self.heart.settled(&sides).await;
        let guid = new_guid(&*self.ctx.env.rng);
        let into = Into { sides: sides.clone(), guid, from: self.name(), txg };
        let made =
            Spa::open_apart(&self.heart.world, &self.found_apart(tree, leaves, txg), what.opts, into).await;
        // Whatever came of it: the labels say whose the devices are.
        let settled = self.settle_sides(&sides).await;
        if let (Ok(half), Err(_)) = (&made, &settled) {
            // Nobody else knows of it, and its devices would be held for good.
            drop(half.close(Some(PoolState::Exported)).await);
        }
        settled.and(made)
    }

    /// In the syncing context: the sides take nothing of this txg, and are listed. The txg before.
    async fn set_apart(&self, leaves: &[Arc<Leaf>], sides: &[u64], logs: &[u32]) -> Result<u64> {
        let busy = || Error::os(Errno::Busy, "pool is busy");
        for id in logs {
            if !self.metaslabs.is_empty(*id)? {
                return Err(busy());
            }
        }
        if leaves.iter().any(|l| !l.readable() || !l.writable() || !l.dtl.is_empty()) {
            return Err(busy());
        }
        // Emptying the logs took its time: those that stay may have lost something meanwhile.
        may_split(&self.tree(), sides)?;
        for leaf in leaves {
            leaf.offline_until_import.store(true, Ordering::Relaxed);
            leaf.offline.store(true, Ordering::Relaxed);
            leaf.retire(VdevState::Offline).await;
        }
        self.tree().propagate();
        self.state.lock().splitting = sides.to_vec();
        self.config_dirty.store(true, Ordering::Release);
        Ok(self.uberblock().txg)
    }

    /// The pool that the sides alone are.
    fn found_apart(&self, tree: &VdevTree, leaves: &[Arc<Leaf>], txg: u64) -> FoundPool {
        let mut config = config::pool_part(&self.identity(Txg(txg)), &self.ctx.features.for_labels());
        let mut root = tree.generate_config(ConfigFor::Label);
        let sides: Vec<u64> = leaves.iter().map(|l| l.guid()).collect();
        only(&mut root, &sides);
        config.set("vdev_tree", root);
        let paths: BTreeMap<u64, PathBuf> =
            leaves.iter().map(|l| (l.guid(), PathBuf::from(l.path()))).collect();
        let (guid, name) = (self.guid(), self.name());
        FoundPool { guid, name, state: PoolState::Active, config, paths, txg, timestamp: 0 }
    }

    /// Opens the sides of a pool as another one.
    async fn open_apart(env: &Env, found: &FoundPool, opts: OpenOpts, into: Into) -> Result<Arc<Spa>> {
        let mut trusted = Self::trusted_config(env, found, &opts, into.txg).await?.config;
        if let Some(tree) = trusted.list_mut("vdev_tree") {
            set_paths(tree, &found.paths);
            only(tree, &into.sides);
        }
        let guarded = Lease::guard(env);
        let tree = trusted_tree(&guarded.env, found, &trusted)?;
        let args = OpenArgs { write: true, pool_guid: Some(found.guid), ..OpenArgs::default() };
        let result = match tree.open_labelled(&args).await {
            Ok(labels) => {
                let opened = Opened { tree: tree.clone(), labels, read: None };
                Self::open_on(&guarded, found, &trusted, opened, opts, From::Split(into)).await
            }
            Err(e) => Err(e),
        };
        if result.is_err() {
            tree.close().await;
        }
        result
    }

    /// The first txg of a pool that is split off: it becomes one of its own in it, or it is not.
    pub(super) async fn come_apart(self: &Arc<Self>, into: Into) -> Result<()> {
        let spa = self.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let done = spa.apart_sync(&tx, &into).await;
                if done.is_err() {
                    // Nothing of it may reach the labels, under the other pool's guid.
                    spa.ctx.freeze_after(Txg(0));
                }
                done
            })
        };
        // It waits for the first txg before anybody can end that.
        let begun = async { self.ctx.env.spawn(self.clone().sync_loop()) };
        let (done, ()) = join(self.ctx.sync_task(task), begun).await;
        if done.is_err() {
            self.abandon();
            self.ctx.txgs.stop();
        }
        done
    }

    async fn apart_sync(self: &Arc<Self>, tx: &Tx, into: &Into) -> Result<()> {
        let (old, mos) = (self.tree(), self.ctx.mos());
        let mut nv = old.to_edit();
        for side in &into.sides {
            change::keep_only(&mut nv, *side)?;
        }
        for log in old.tops_for(true) {
            change::make_hole(&mut nv, log.vdev.guid)?;
        }
        change::set_pool_guid(&mut nv, into.guid);
        let new = Arc::new(old.changed(&self.ctx.env, &nv)?);
        new.propagate();
        let objects = VdevObjects::open(&self.ctx, tx).await?;
        for top in old.tops.iter().filter(|t| t.vdev.is_concrete()) {
            if top.vdev.is_log {
                objects.free_top(&self.metaslabs, top).await?;
                continue;
            }
            for v in top.vdev.walk().iter().filter(|v| v.is_leaf() && !into.sides.contains(&v.guid)) {
                objects.free_leaf(v).await?;
            }
        }
        let directory = Zap::open(mos, DIRECTORY).await?;
        for name in [DMU_POOL_SPARES, DMU_POOL_L2CACHE] {
            if let Some(list) = directory.try_get_u64(name).await? {
                let dn = mos.hold_wait(ObjectId(list)).await?;
                mos.free(tx, &dn);
                directory.delete(tx, name).await?;
            }
        }
        let from = self.guid();
        self.use_tree(new);
        self.ctx.set_guid(into.guid);
        {
            let mut state = self.state.lock();
            state.splitting.clear();
            state.split_from = Some(from);
        }
        self.config_dirty.store(true, Ordering::Release);
        self.ctx.note_internal(tx.txg(), "split", format!("from pool {}", into.from));
        Ok(())
    }

    /// At import: a split that was under way is completed, or undone.
    pub(super) async fn settle_split(self: &Arc<Self>) -> Result<()> {
        let sides = self.state.lock().splitting.clone();
        if sides.is_empty() || self.ctx.readonly {
            return Ok(());
        }
        let _changing = self.changing.lock().await;
        self.settle_sides(&sides).await
    }

    /// The same for one who holds `changing`.
    async fn settle_sides(self: &Arc<Self>, sides: &[u64]) -> Result<()> {
        let tree = self.tree();
        match whose(&self.ctx.env, &tree, sides, self.guid()).await {
            // They may turn up, and then it is known.
            Whose::Unknown | Whose::Unclear => Ok(()),
            Whose::Theirs => self.let_go(sides).await,
            Whose::Ours => {
                for leaf in sides.iter().filter_map(|g| tree.find(*g)?.leaf.clone()) {
                    leaf.offline.store(false, Ordering::Relaxed);
                    leaf.offline_until_import.store(false, Ordering::Relaxed);
                    if !leaf.readable() || !leaf.writable() {
                        self.bring_back(&leaf).await;
                    }
                }
                tree.propagate();
                self.state.lock().splitting.clear();
                self.write_down().await
            }
        }
    }

    /// Takes sides out of the tree that are another pool's now.
    async fn let_go(self: &Arc<Self>, sides: &[u64]) -> Result<()> {
        let old = self.tree();
        let mut nv = old.to_edit();
        let gone: Vec<_> = sides.iter().filter_map(|guid| old.find(*guid)).collect();
        for side in &gone {
            change::detach(&mut nv, side.guid)?;
        }
        let new = Arc::new(old.changed(&self.ctx.env, &nv)?);
        new.propagate();
        let (spa, left) = (self.clone(), gone.clone());
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let objects = VdevObjects::open(&spa.ctx, &tx).await?;
                for side in &left {
                    objects.free_leaf(side).await?;
                    let path = side.leaf.as_ref().map_or_else(String::new, |l| l.path());
                    spa.ctx.note_internal(tx.txg(), "detach", format!("vdev={path}"));
                }
                spa.use_tree(new);
                spa.state.lock().splitting.clear();
                spa.config_dirty.store(true, Ordering::Release);
                Ok(())
            })
        };
        self.ctx.sync_task(task).await?;
        for leaf in gone.iter().filter_map(|v| v.leaf.as_ref()) {
            leaf.dtl.set([]);
            leaf.retire(VdevState::Closed).await;
        }
        self.expand_by_itself().await;
        Ok(())
    }
}

/// The sides that are to go, or why not: one whole disk of each mirror, and every one of those must
/// be able to do without it.
fn may_split(tree: &VdevTree, sides: &[u64]) -> Result<Vec<Arc<Leaf>>> {
    let wrong = || Error::inval("Invalid argument");
    let busy = || Error::os(Errno::Busy, "pool is busy");
    let mut leaves = Vec::new();
    for top in tree.tops_for(false) {
        if top.vdev.kind != VdevKind::Mirror {
            return Err(Refusal::OnlyMirrors.into());
        }
        let chosen: Vec<_> = top.vdev.children.iter().filter(|c| sides.contains(&c.guid)).collect();
        let [side] = chosen.as_slice() else { return Err(wrong()) };
        let leaf = side.leaf.clone().ok_or_else(wrong)?;
        if leaf.state() != (VdevState::Healthy, VdevAux::None) || side.is_spare() {
            return Err(wrong());
        }
        let stays = |l: &Arc<Leaf>| l.index != leaf.index && l.readable() && l.writable() && l.dtl.is_empty();
        if !leaf.dtl.is_empty() || !top.survives(stays) {
            return Err(busy());
        }
        leaves.push(leaf);
    }
    if leaves.len() == sides.len() { Ok(leaves) } else { Err(wrong()) }
}
