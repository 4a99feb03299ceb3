//! Changing which devices a pool is made of: adding, attaching, detaching, removing.
//!
//! Each change is prepared beside the pool (configuration edited, devices opened and labelled as
//! nobody's), and made in the syncing context of one txg: the MOS's objects, the tree, and with
//! them the configuration and all labels. Until that txg's uberblock is written a crash finds the
//! pool as it was, and devices that were to come belong to no pool; afterwards it finds the change
//! whole. What has left is told so on its labels only when that is stable. New blocks go to a new
//! vdev only from then on, because the intent log's are acknowledged before their txg is.
//!
//! One change at a time: they hold `changing`.
//!
//! **Log devices.** What is on them is needed for a few txgs only, so nothing is ever copied from
//! one: a log that leaves, or a side of a mirror that is behind, waits until the log has been
//! emptied into the pool ([`Spa::empty_log`]); new log blocks go elsewhere meanwhile.

use super::vdev_objects::VdevObjects;
use super::{Spa, SpareSpec, config};
use crate::error::{Errno, Error, Result};
use crate::inject::{self, injections};
use crate::metaslab::metaslab_shift;
use crate::spa::Refusal;
use crate::types::{TXG_DEFER_SIZE, TXG_INITIAL, TXG_SIZE, Txg};
use crate::vdev::{
    LeafSpec, PoolSpec, REBUILD_TXG, RESILVER_TXG, Top, TopSpec, Vdev, VdevKind, VdevTree, change, new_guid,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_ondisk::NvList;
use zilla_ondisk::enums::{
    SPA_VERSION_HOLES, SPA_VERSION_INITIAL, SPA_VERSION_L2CACHE, SPA_VERSION_RAIDZ2, SPA_VERSION_RAIDZ3,
    SPA_VERSION_SLOGS, VdevState,
};

/// Txgs in which a log must become empty: its last blocks are synced, freed, and their frees
/// forgotten.
const EMPTY_WITHIN: usize = TXG_SIZE + 2 * TXG_DEFER_SIZE;
/// How often it is tried to bring a log's devices up to date that could not be at once.
const RENEW_EVERY: Duration = Duration::from_secs(5);

fn no_such(guid: u64) -> Error {
    Refusal::NoDevice(guid).into()
}

/// How a device is put beside another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attach {
    /// It takes the other's place as soon as it has everything.
    pub replace: bool,
    /// log2 of the sector size it is to be used with.
    pub ashift: Option<u32>,
    /// It is the pool's hot spare of this guid, and takes the other's place for a time only.
    pub spare: Option<u64>,
    /// It is given what it lacks by a sequential rebuild, not by a resilver.
    pub sequential: bool,
}

/// Refuses vdevs that pools of a version do not have: OpenZFS would not import such a pool.
pub(super) fn check_version(own: u64, spec: &PoolSpec) -> Result<()> {
    let of_top = |top: &TopSpec| match top.kind.nparity() {
        _ if top.is_log => SPA_VERSION_SLOGS,
        Some(3..) => SPA_VERSION_RAIDZ3,
        Some(2) => SPA_VERSION_RAIDZ2,
        _ => SPA_VERSION_INITIAL,
    };
    let of_cache = spec.cache.first().map(|_| SPA_VERSION_L2CACHE);
    match spec.tops.iter().map(of_top).chain(of_cache).max() {
        Some(least) if own < least => Err(Error::os(
            Errno::NotSup,
            format!("pools of version {own} do not have such vdevs: they came with version {least}"),
        )),
        _ => Ok(()),
    }
}

impl Spa {
    /// What labels of a device say that is no pool's (yet, or any more).
    pub(super) fn nobodys(&self) -> NvList {
        config::pool_part(&self.identity(Txg(0)), &self.ctx.features.for_labels())
    }

    /// Makes a changed tree the pool's, in the syncing context.
    pub(super) fn use_tree(&self, new: Arc<VdevTree>) {
        // A leaf may have got its first DTL since the new tree was made, and a vdev have grown.
        new.know_dtls_of(&self.tree());
        new.know_sizes_of(&self.tree());
        new.name_leaves();
        // What became of leaves since it was made is in their states alone.
        new.propagate();
        self.zio.set_tree(new);
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        if self.ctx.readonly {
            return Err(Error::os(Errno::ROFs, "the pool is imported read-only"));
        }
        Ok(())
    }

    /// Refuses vdevs that the pool's features do not have.
    fn check_features(&self, spec: &PoolSpec) -> Result<()> {
        let biased = spec.tops.iter().any(|t| t.bias.is_some()).then_some("allocation_classes");
        let draid = |t: &TopSpec| matches!(t.kind, VdevKind::Draid { .. });
        let draid = spec.tops.iter().any(draid).then_some("draid");
        match biased.into_iter().chain(draid).find(|name| !self.ctx.features.is_enabled(name)) {
            Some(name) => {
                Err(Error::os(Errno::NotSup, format!("feature {name} is not enabled in this pool")))
            }
            None => Ok(()),
        }
    }

    /// Refuses what adding these would refuse, and changes nothing: top-level vdevs, of the pool's
    /// own sectors unless `any_ashift` is said, cache devices and spares.
    pub async fn check_added(
        self: &Arc<Self>,
        spec: &PoolSpec,
        any_ashift: bool,
        spares: &[SpareSpec],
    ) -> Result<()> {
        if !spec.cache.is_empty() {
            self.check_cache(&spec.cache).await?;
        }
        if !spec.tops.is_empty() {
            self.add_tops(spec, !any_ashift, true).await?;
        }
        if !spares.is_empty() {
            self.check_spares(spares).await?;
        }
        Ok(())
    }

    /// Adds top-level vdevs.
    pub async fn add_vdevs(self: &Arc<Self>, spec: &PoolSpec) -> Result<()> {
        self.add_tops(spec, false, false).await
    }

    /// The same, but of other sectors than the pool's they are refused, if the pool has one size of
    /// them: what cannot be removed again should not come in by mistake.
    pub async fn add_like_vdevs(self: &Arc<Self>, spec: &PoolSpec) -> Result<()> {
        self.add_tops(spec, true, false).await
    }

    #[crate::boxed]
    async fn add_tops(self: &Arc<Self>, spec: &PoolSpec, alike: bool, only_tried: bool) -> Result<()> {
        self.check_writable()?;
        check_version(self.version(), spec)?;
        self.check_features(spec)?;
        let _changing = self.changing.lock().await;
        let (old, env) = (self.tree(), &self.ctx.env);
        // A mapping can lead to single disks and mirrors only.
        let raidz = spec.tops.iter().any(|t| t.kind.nparity().is_some());
        if raidz && (self.is_removing() || old.indirect().next().is_some()) {
            return Err(Refusal::RaidzBesideRemoved.into());
        }
        let mut nv = old.to_edit();
        for top in &spec.tops {
            let mut top = top.config(0, &*env.rng)?;
            top.set("create_txg", self.ctx.txgs.open().0);
            change::add_top(&mut nv, top);
        }
        let new = Arc::new(old.changed(env, &nv)?);
        new.open_new(&old, None).await?;
        let fresh: Vec<u32> =
            new.tops.iter().filter(|t| t.vdev.metaslab_shift() == 0).map(|t| t.id).collect();
        let fresh: Vec<u32> =
            fresh.into_iter().filter(|id| new.top(*id).is_ok_and(|t| t.vdev.is_concrete())).collect();
        let other_sectors = |id: &u32| new.top(*id).is_ok_and(|t| t.ashift() != old.max_ashift());
        let of_one_size = old.sector_shift();
        let unlike = |id: &u32| of_one_size.is_some_and(|s| new.top(*id).is_ok_and(|t| t.ashift() != s));
        let made = if self.is_removing() && fresh.iter().any(other_sectors) {
            Err(Refusal::CannotEvacuate.into())
        } else if alike && fresh.iter().any(unlike) {
            Err(Refusal::OtherSectors.into())
        } else if only_tried {
            Ok(())
        } else {
            self.add_made(&old, &new, &fresh).await
        };
        if made.is_err() || only_tried {
            for leaf in new.new_leaves(&old) {
                leaf.retire(VdevState::Closed).await;
            }
            return made;
        }
        for id in fresh {
            self.metaslabs.set_allocatable(id, true)?;
        }
        self.look_at_spares().await;
        self.update_space()
    }

    async fn add_made(self: &Arc<Self>, old: &VdevTree, new: &Arc<VdevTree>, fresh: &[u32]) -> Result<()> {
        for id in fresh {
            let vdev = &new.top(*id)?.vdev;
            vdev.set_metaslabs(0, u32::from(metaslab_shift(vdev.asize())));
        }
        new.init_new_labels(&self.nobodys(), &self.uberblock(), old).await?;
        let (spa, new, fresh) = (self.clone(), new.clone(), fresh.to_vec());
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    // One that was given up by who waited for it may have come first.
                    if fresh.iter().any(|id| spa.metaslabs.vdev_stat(*id).is_ok()) {
                        return Err(Error::os(Errno::Busy, "the pool's devices have changed meanwhile"));
                    }
                    let objects = VdevObjects::open(&spa.ctx, &tx).await?;
                    for id in &fresh {
                        let made = objects.top(&spa.metaslabs, &new, new.top(*id)?).await;
                        if made.is_err() {
                            fresh.iter().for_each(|id| spa.metaslabs.forget_vdev(*id));
                        }
                        made?;
                        spa.metaslabs.set_allocatable(*id, false)?;
                    }
                    let spares = new.spares.len();
                    let new = spa.with_distributed(new, |t| fresh.contains(&t.id))?;
                    if new.spares.len() > spares {
                        spa.write_spares(&tx, &new).await?;
                    }
                    spa.use_tree(new);
                    spa.config_dirty.store(true, Ordering::Release);
                    Ok(())
                })
            })
            .await
    }

    /// Removes a log device, emptied first, or a cache device or hot spare; begins to remove
    /// another one.
    #[crate::boxed]
    pub async fn remove_vdev(self: &Arc<Self>, guid: u64) -> Result<()> {
        self.check_writable()?;
        self.check_no_checkpoint()?;
        if self.tree().spares.iter().any(|v| v.guid == guid) {
            return self.remove_spare(guid).await;
        }
        if let Some(vdev) = self.cache_vdev(guid) {
            return self.remove_cache(&vdev).await;
        }
        let _changing = self.changing.lock().await;
        self.check_no_checkpoint()?;
        let old = self.tree();
        let vdev = old.find(guid).ok_or_else(|| no_such(guid))?;
        let Some(top) = old.tops.iter().find(|t| t.vdev.guid == guid) else {
            return Err(Refusal::CannotRemove.into());
        };
        if !vdev.is_log {
            return self.remove_top(top).await;
        }
        // Its number may stay free.
        self.dsl.needs_version(SPA_VERSION_HOLES)?;
        self.cancel_upkeep(&top.leaves().cloned().collect::<Vec<_>>()).await?;
        self.empty_log(top.id).await?;
        let removed = self.remove_made(&old, top).await;
        if removed.is_err() && self.metaslabs.vdev_stat(top.id).is_ok() {
            self.metaslabs.set_allocatable(top.id, true)?;
        }
        removed?;
        self.part_with(&old, top, top.leaves().cloned().collect()).await;
        Ok(())
    }

    async fn remove_made(self: &Arc<Self>, old: &Arc<VdevTree>, top: &Top) -> Result<()> {
        let mut nv = old.to_edit();
        change::make_hole(&mut nv, top.vdev.guid)?;
        let new = Arc::new(old.changed(&self.ctx.env, &nv)?);
        new.propagate();
        let (spa, top) = (self.clone(), top.clone());
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    VdevObjects::open(&spa.ctx, &tx).await?.free_top(&spa.metaslabs, &top).await?;
                    spa.use_tree(new);
                    spa.config_dirty.store(true, Ordering::Release);
                    Ok(())
                })
            })
            .await
    }

    /// Leaves that are no longer the pool's get labels that say so, as far as they can be written,
    /// and are closed.
    pub(super) async fn part_with(&self, old: &VdevTree, top: &Top, leaves: Vec<Arc<crate::vdev::Leaf>>) {
        let (pool, ub) = (self.nobodys(), self.uberblock());
        for leaf in leaves {
            leaf.dtl.set([]);
            if leaf.writable()
                && let Err(e) = old.disown(&pool, &ub, top, &leaf).await
            {
                tracing::warn!(path = %leaf.path(), error = %e, "the labels of a removed device could not be cleared");
            }
            leaf.retire(VdevState::Closed).await;
        }
    }

    /// Puts a device beside another, or in its place.
    #[crate::boxed]
    pub async fn attach(self: &Arc<Self>, guid: u64, spec: &LeafSpec, how: Attach) -> Result<()> {
        self.check_writable()?;
        let changing = self.changing.lock().await;
        self.check_no_checkpoint()?;
        if self.is_removing() {
            return Err(Refusal::Removing.into());
        }
        let (old, env) = (self.tree(), &self.ctx.env);
        let target = old.find(guid).ok_or_else(|| no_such(guid))?;
        let parent = old.parent_of(guid).ok_or_else(|| no_such(guid))?;
        let top = old.top_of(guid).ok_or_else(|| no_such(guid))?;
        if !how.replace && matches!(target.kind, VdevKind::Raidz { .. }) {
            self.check_rebuild(how.sequential, top)?;
            return self.attach_to_raidz(&target, spec, how).await;
        }
        Self::may_attach(&target, &parent, how)?;
        // What a log lacks is brought to it by emptying it.
        let sequential = how.sequential && !top.vdev.is_log;
        if !top.vdev.is_log {
            self.check_rebuild(sequential, top)?;
        }
        let mut leaf = match how.spare {
            Some(spare) => {
                let nv = self.take_spare(spare, spec, top).await?;
                target.leaf.iter().for_each(|l| l.unspare.store(false, Ordering::Relaxed));
                nv
            }
            None => spec.config(0, &*env.rng),
        };
        leaf.set("create_txg", target.config_u64("create_txg").unwrap_or(self.ctx.txgs.open().0));
        leaf.set(if sequential { REBUILD_TXG } else { RESILVER_TXG }, self.ctx.txgs.open().0);
        let new_leaf = leaf.u64("guid").unwrap_or(0);
        let kind = match how {
            Attach { spare: Some(_), .. } => VdevKind::Spare,
            Attach { replace: true, .. } => VdevKind::Replacing,
            _ => VdevKind::Mirror,
        };
        let mut nv = old.to_edit();
        if target.config_str("path").as_deref() == leaf.str("path") {
            if !how.replace {
                return Err(Error::os(Errno::Busy, format!("{} is busy", spec.path.display())));
            }
            change::make_old(&mut nv, guid)?;
        }
        change::attach(&mut nv, guid, &leaf, kind, new_guid(&*env.rng))?;
        let new = Arc::new(old.changed(env, &nv)?);
        new.open_new(&old, how.ashift).await?;
        let rebuilt = sequential.then_some(top.id);
        let (how, beside) = match how {
            Attach { spare: Some(_), .. } => ("spare in", "for"),
            Attach { replace: true, .. } => ("replace", "for"),
            _ => ("attach", "to"),
        };
        let other = target.config_str("path").unwrap_or_default();
        let told = format!("{how} vdev={} {beside} vdev={other}", leaf.str("path").unwrap_or_default());
        let made = self.attach_made(&old, &new, new_leaf, rebuilt, told).await;
        if made.is_err() {
            for leaf in new.new_leaves(&old) {
                leaf.retire(VdevState::Closed).await;
            }
            return made;
        }
        // Whoever began to write on the old tree is in a txg that is open now, or older.
        let open = self.ctx.txgs.open().0;
        new.new_leaves(&old).for_each(|l| l.dtl.remove(open + 1, u64::MAX));
        drop(changing);
        if sequential {
            self.rebuild_on();
            return Ok(());
        }
        self.catch_up().await
    }

    fn may_attach(target: &Vdev, parent: &Vdev, how: Attach) -> Result<()> {
        if !target.is_leaf() {
            return Err(Error::os(Errno::NotSup, "can only attach to mirrors and top-level disks"));
        }
        let in_spare = parent.kind == VdevKind::Spare;
        if in_spare && target.is_spare() && how.replace && how.spare.is_none() {
            return Err(Error::os(Errno::NotSup, "can only be replaced by another hot spare"));
        }
        let as_it_is = in_spare && how.replace && how.spare.is_some() == target.is_spare();
        if parent.kind == VdevKind::Replacing || in_spare && !as_it_is {
            let what = "already in replacing/spare config; wait for completion or use 'zpool detach'";
            return Err(Error::os(Errno::NotSup, what));
        }
        if !how.replace && parent.kind.nparity().is_some() {
            return Err(Error::os(Errno::NotSup, "can only attach to mirrors and top-level disks"));
        }
        Ok(())
    }

    /// `rebuilt`: the top-level that is to be rebuilt then; `told`: what the history says of it.
    async fn attach_made(
        self: &Arc<Self>,
        old: &Arc<VdevTree>,
        new: &Arc<VdevTree>,
        leaf: u64,
        rebuilt: Option<u32>,
        told: String,
    ) -> Result<()> {
        new.init_new_labels(&self.nobodys(), &self.uberblock(), old).await?;
        let (spa, new, old) = (self.clone(), new.clone(), old.clone());
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    if rebuilt.is_some() && spa.scan()?.is_resilvering() {
                        return Err(Refusal::Resilvering.into());
                    }
                    // Nothing that was written until the change is stable can be expected there.
                    // Only now it is known when that is: any number of txgs have passed while the
                    // labels were written.
                    let until = tx.txg().0 + 2 * TXG_SIZE as u64;
                    new.new_leaves(&old).for_each(|l| l.dtl.add(TXG_INITIAL.0, until));
                    let vdev = new.find(leaf).ok_or_else(|| no_such(leaf))?;
                    VdevObjects::open(&spa.ctx, &tx).await?.leaf(&vdev).await?;
                    if let Some(id) = rebuilt {
                        spa.order_rebuild(&tx, new.top(id)?, &old).await?;
                    }
                    spa.ctx.note_internal(tx.txg(), "vdev attach", told);
                    spa.use_tree(new);
                    spa.config_dirty.store(true, Ordering::Release);
                    Ok(())
                })
            })
            .await
    }

    /// Takes a side out of a mirror, or one of the two out of a replacement. Where the other was a
    /// hot spare that thereby stays for good, its guid is the result: it is no pool's spare any
    /// more.
    #[crate::boxed]
    pub async fn detach(self: &Arc<Self>, guid: u64) -> Result<Option<u64>> {
        self.check_writable()?;
        self.check_no_checkpoint()?;
        let (id, is_log) = {
            let old = self.tree();
            old.find(guid).ok_or_else(|| no_such(guid))?;
            let top = old.top_of(guid);
            (top.map(|t| t.id), top.is_some_and(|t| t.vdev.is_log))
        };
        // The sides of a log that stay may be behind; emptied, it needs none.
        if let Some(id) = id.filter(|id| is_log && self.is_behind(*id)) {
            self.renew(id).await;
        }
        let permanent = {
            let _changing = self.changing.lock().await;
            self.check_no_checkpoint()?;
            self.detach_leaf(guid).await?
        };
        if let Some(id) = id {
            self.settle_rebuild(id).await;
        }
        Ok(permanent)
    }

    /// The same for one who holds `changing`.
    async fn detach_leaf(self: &Arc<Self>, guid: u64) -> Result<Option<u64>> {
        let old = self.tree();
        let vdev = old.find(guid).ok_or_else(|| no_such(guid))?;
        let parent = old.parent_of(guid).ok_or_else(|| no_such(guid))?;
        let top = old.top_of(guid).ok_or_else(|| no_such(guid))?.clone();
        let Some(leaf) = vdev.leaf.clone().filter(|_| parent.kind.is_mirror()) else {
            return Err(Error::os(Errno::NotSup, "only applicable to mirror and replacing vdevs"));
        };
        let for_a_time = parent.kind == VdevKind::Replacing || vdev.is_spare();
        let needed = {
            let (top, leaf) = (top.clone(), leaf.clone());
            move || {
                let stays = |l: &Arc<crate::vdev::Leaf>| {
                    l.index != leaf.index && l.readable() && l.writable() && l.dtl.is_empty()
                };
                // Who is not whole, and was to stay for a time only, may have nothing that could
                // not be read without it.
                let may_go = for_a_time && !leaf.dtl.is_empty() && !top.needs(&leaf);
                let required = inject::any() && injections().is_required(guid);
                required || !top.survives(stays) && !may_go
            }
        };
        if needed() {
            return Err(Refusal::NoReplicas.into());
        }
        self.cancel_upkeep(std::slice::from_ref(&leaf)).await?;
        let mut nv = old.to_edit();
        let replaced =
            parent.children.first().filter(|c| c.guid != guid && parent.kind == VdevKind::Replacing);
        if let Some(stays) = replaced {
            change::make_young(&mut nv, stays.guid);
        }
        // A new device takes over from the spare that stood in for the one it replaces.
        let beside_spare = parent.kind == VdevKind::Replacing
            && old.parent_of(parent.guid).is_some_and(|p| p.kind == VdevKind::Spare);
        let takes_over = parent.children.last().and_then(|v| v.leaf.clone()).filter(|_| beside_spare);
        let permanent = parent.replaced_by_spare(guid);
        if let Some(spare) = permanent {
            change::make_permanent(&mut nv, spare);
        }
        change::detach(&mut nv, guid)?;
        let mut new = old.changed(&self.ctx.env, &nv)?;
        if let Some(spare) = permanent {
            new = new.without_aux(spare);
        }
        new.propagate();
        let (spa, new, gone) = (self.clone(), Arc::new(new), vdev.clone());
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    // Those that stay may have missed something since they were asked.
                    if needed() {
                        return Err(Refusal::NoReplicas.into());
                    }
                    takes_over.iter().for_each(|l| l.unspare.store(true, Ordering::Relaxed));
                    VdevObjects::open(&spa.ctx, &tx).await?.free_leaf(&gone).await?;
                    let path = gone.config_str("path").unwrap_or_default();
                    spa.ctx.note_internal(tx.txg(), "detach", format!("vdev={path}"));
                    if permanent.is_some() {
                        spa.write_spares(&tx, &new).await?;
                    }
                    spa.use_tree(new);
                    spa.config_dirty.store(true, Ordering::Release);
                    Ok(())
                })
            })
            .await?;
        if vdev.is_spare() {
            self.back_to_spares(&old, &vdev, &leaf).await;
        } else {
            self.part_with(&old, &top, vec![leaf]).await;
        }
        // Perhaps it was the last small one.
        self.expand_by_itself().await;
        Ok(permanent)
    }

    /// Takes out what has been replaced: of a replacement whose new side has everything, the old
    /// side; and spares that nobody needs any more.
    pub(super) async fn finish_replacements(self: &Arc<Self>) -> Result<()> {
        let _changing = self.changing.lock().await;
        loop {
            let done = self.tree().root.walk().into_iter().find_map(|v| v.to_leave());
            let Some(guid) = done else { return Ok(()) };
            match self.detach_leaf(guid).await {
                // It is needed yet, for others have failed meanwhile.
                Err(Error::Pool(why)) if *why == Refusal::NoReplicas => return Ok(()),
                done => drop(done?),
            }
        }
    }

    // ---- logs

    /// Lets nothing new go to a log, and waits until nothing is left on it. When that cannot be, it
    /// is used on as before, and so it is when nobody waits for it any more.
    pub(super) async fn empty_log(&self, vdev: u32) -> Result<()> {
        let mut closed = Closed { spa: self, vdev, stays: false };
        self.metaslabs.set_allocatable(vdev, false)?;
        self.drain(vdev).await?;
        closed.stays = true;
        Ok(())
    }

    async fn drain(&self, vdev: u32) -> Result<()> {
        // Whoever found it open for new blocks is in a txg that was open, and is over when that is
        // synced.
        self.sync().await?;
        if self.metaslabs.is_empty(vdev)? {
            return Ok(());
        }
        crate::zil::reset_all(&self.dsl).await?;
        for _ in 0..EMPTY_WITHIN {
            if self.metaslabs.is_empty(vdev)? {
                return Ok(());
            }
            self.sync().await?;
        }
        Err(Error::os(Errno::Busy, "the log device still holds blocks"))
    }

    /// Whether a device of this log missed something.
    fn is_behind(&self, vdev: u32) -> bool {
        let tree = self.tree();
        let Ok(top) = tree.top(vdev) else { return false };
        let replaced = top.vdev.walk().iter().any(|v| v.kind == VdevKind::Replacing);
        replaced || top.leaves().any(|l| !l.dtl.is_empty())
    }

    /// Brings devices of a log up to date that missed something, and finishes their replacements:
    /// now, or as soon as the log can be emptied.
    pub(super) async fn renew(self: &Arc<Self>, vdev: u32) {
        if let Err(e) = self.renew_now(vdev).await {
            tracing::info!(pool = %self.name(), vdev, "the log's devices are brought up to date later: {e}");
            let (weak, env) = (Arc::downgrade(self), self.ctx.env.clone());
            self.ctx.env.spawn(async move {
                loop {
                    env.sleep(RENEW_EVERY).await;
                    let Some(spa) = weak.upgrade().filter(|s| !s.ctx.txgs.is_stopped()) else { return };
                    if !spa.is_behind(vdev) || spa.renew_now(vdev).await.is_ok() {
                        return;
                    }
                }
            });
        }
    }

    async fn renew_now(self: &Arc<Self>, vdev: u32) -> Result<()> {
        let _changing = self.changing.lock().await;
        self.empty_log(vdev).await?;
        let tree = self.tree();
        let top = tree.top(vdev)?;
        for leaf in top.leaves().filter(|l| l.readable() && l.writable()) {
            leaf.dtl.remove(0, u64::MAX);
        }
        for v in top.vdev.walk() {
            v.remove_config(RESILVER_TXG);
            v.remove_config(REBUILD_TXG);
        }
        self.config_dirty.store(true, Ordering::Release);
        self.metaslabs.set_allocatable(vdev, true)?;
        for v in top.vdev.walk().iter().filter(|v| v.kind == VdevKind::Replacing) {
            if let [first, .., last] = &v.children[..]
                && last.leaf.as_ref().is_some_and(|l| l.readable() && l.writable())
            {
                self.detach_leaf(first.guid).await?;
            }
        }
        // The devices' DTLs are written down.
        self.sync().await
    }
}

/// A log to which nothing new goes. Unless that is to stay so, it is used again when this goes.
struct Closed<'a> {
    spa: &'a Spa,
    vdev: u32,
    stays: bool,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        if !self.stays {
            // One that is not there needs it no more.
            drop(self.spa.metaslabs.set_allocatable(self.vdev, true));
        }
    }
}
