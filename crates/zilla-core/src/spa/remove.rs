//! Removing a top-level vdev that holds data: what is on it is copied to the others, and a mapping
//! stays in its place.
//!
//! ```text
//!   remove --> nothing new goes there --> [begin] --> [move] [move] ... [move] --> [complete]: an indirect vdev
//!                                                  \-> [cancel]: it takes blocks again
//! ```
//!
//! Each step in brackets is a part of one txg's sync. What is in use on the vdev never changes
//! while it is emptied, it only becomes less; so a batch is read beforehand, and the sync writes
//! what of it is still in use and goes on with the mapping up to the batch's end. Hence no copy is
//! ever in flight when something is freed: a free finds a place copied or not
//! (`metaslab/removed.rs`).
//!
//! **On disk** (OpenZFS's format): `spa/indirect.rs`. **Crash:** the last synced txg says up to
//! where everything was copied, and an import goes on there. Until the vdev has gone, blocks are
//! read from it and not by the mapping, so that a half copied one loses nothing.
//!
//! Copies are made without knowing of blocks and checksums: `zio/evacuate.rs` says what that means
//! for a mirror's sides. A removal that cannot read all is canceled, as OpenZFS does it.

use super::Spa;
use super::indirect::{self, Mapping};
use super::open::DIRECTORY;
use super::vdev_objects::{VdevObjects, top_zap};
use crate::dsl::Space;
use crate::error::{Errno, Error, Result};
use crate::spa::Refusal;
use crate::tunables;
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::vdev::{Run, Top, VdevKind, change, new_guid};
use crate::zap::{Value, Zap};
use crate::zio::{AllocClass, Leave, Sides};
use event_listener::Event;
use futures_util::future::{BoxFuture, join, try_join_all};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_ondisk::enums::ScanState;
use zilla_ondisk::removal::{
    DMU_POOL_REMOVING, IndirectMappingEntryPhys, SpaRemovingPhys, VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM,
    VDEV_TOP_ZAP_OBSOLETE_COUNTS_ARE_PRECISE, ZPOOL_CONFIG_INDIRECT_BIRTHS, ZPOOL_CONFIG_INDIRECT_OBJECT,
    ZPOOL_CONFIG_PREV_INDIRECT_VDEV,
};
use zilla_ondisk::{Field, Phys};

/// Bytes moved in a txg, if nothing else is said.
pub(super) const BATCH: u64 = 32 << 20;
/// No run that is read, and mapped, as one is longer, whatever is set.
const MAX_RUN: u64 = 16 << 20;
/// How often one that is held looks whether it may go on.
const HELD: Duration = Duration::from_millis(50);
/// How long a removal rests that could not be completed.
const REST: Duration = Duration::from_secs(5);
/// So often a removal rests for want of room before it is given up.
const CROWDED: u32 = 60;
/// What the configuration calls a vdev that is being emptied.
const REMOVING: &str = "removing";
/// Bytes of a mapping's entry.
const ENTRY: u64 = IndirectMappingEntryPhys::SIZE as u64;

/// The removal under way.
pub(super) struct Evacuation {
    guid: u64,
    stop: AtomicBool,
    over: AtomicBool,
    changed: Event,
}

/// What is in use, in runs that are read and mapped as one. None lies in two metaslabs, which are
/// as large as is said: OpenZFS goes through them one by one, and its `zdb` relies on that.
fn stretches(used: &[(u64, u64)], metaslab: u64, longest: u64) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    for &(start, end) in used {
        let mut at = start;
        while at < end {
            let boundary = (at / metaslab).saturating_add(1).saturating_mul(metaslab);
            let to = at.saturating_add(longest).min(end).min(boundary);
            runs.push((at, to - at));
            at = to;
        }
    }
    runs
}

/// The runs of a top-level's bytes that are in use, as long as is set.
fn runs(used: &[(u64, u64)], top: &Top) -> Vec<(u64, u64)> {
    let sector = 1 << top.ashift();
    let longest = tunables::REMOVE_MAX_SEGMENT.get().clamp(sector, MAX_RUN).next_multiple_of(sector);
    stretches(used, 1 << top.vdev.metaslab_shift().min(63), longest)
}

impl Evacuation {
    /// Lets it end after the txg that it is at, and waits for that.
    async fn halt(&self) {
        self.stop.store(true, Ordering::SeqCst);
        loop {
            let listener = self.changed.listen();
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            listener.await;
        }
    }

    fn is_over(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.changed.notify(usize::MAX);
    }

    /// Whether it may go on after it was over. Who halts it meanwhile finds it over, and it finds
    /// that it was halted; or he waits.
    fn begin_again(&self) -> bool {
        self.over.store(false, Ordering::SeqCst);
        let may = !self.stop.load(Ordering::SeqCst);
        if !may {
            self.is_over();
        }
        may
    }
}

impl Spa {
    /// Why a vdev cannot be removed, if it cannot. In OpenZFS's order. `idle`: it takes no blocks
    /// any more, and what it has free is not counted; so it is with one that is not to allocate.
    fn may_remove(&self, top: &Top, idle: bool) -> Result<()> {
        let tree = self.tree();
        if !top.vdev.is_concrete() || !self.ctx.features.is_enabled("device_removal") {
            return Err(Refusal::CannotRemove.into());
        }
        let removing = self.removing();
        let under_way = removing.state == ScanState::Scanning as u64;
        if under_way && removing.removing_vdev == u64::from(top.id) {
            return Err(Refusal::AlreadyRemoving.into());
        }
        let stat = self.metaslabs.vdev_stat(top.id)?;
        let biased = |t: &Top| t.vdev.bias().is_some();
        let free = match biased(top) {
            // It all goes to the normal class if need be.
            true => {
                let normal = self.metaslabs.class_stat(crate::metaslab::SpaceClass::Normal);
                normal.space.saturating_sub(normal.alloc) >= stat.alloc
            }
            false => {
                self.dsl.available(&self.dsl.root_dir(), false)
                    >= if idle || self.is_retired(top) { stat.dalloc } else { stat.dspace }
            }
        };
        let others = tree.tops_for(false).any(|t| t.id != top.id && !biased(t));
        if !free || !others {
            return Err(Error::os(Errno::NoSpc, "out of space"));
        }
        if !top.leaves().any(|l| l.readable()) {
            return Err(Refusal::NotHealthy.into());
        }
        // Nothing is moved while any vdev is being rebuilt: it may come to lie there. One side that
        // has everything is enough.
        if under_way || self.is_rebuilding() || !top.leaves().any(|l| l.readable() && l.dtl.is_empty()) {
            return Err(Refusal::RemovalBusy.into());
        }
        let nested =
            |t: &Top| t.vdev.kind == VdevKind::Mirror && t.vdev.children.iter().any(|c| !c.is_leaf());
        let raidz = |t: &Top| t.vdev.kind.nparity().is_some();
        let other_sectors = |t: &Top| t.ashift() != top.ashift();
        if tree.tops_for(false).any(|t| nested(t) || raidz(t) || other_sectors(t)) {
            return Err(Refusal::CannotEvacuate.into());
        }
        Ok(())
    }

    /// Bytes that the mapping of a vdev takes, as OpenZFS counts them, or would take if it were
    /// removed.
    pub async fn indirect_size(&self, guid: u64) -> Result<u64> {
        let tree = self.tree();
        let top = tree.tops.iter().find(|t| t.vdev.guid == guid).ok_or(Refusal::CannotRemove)?;
        if let Some(mapping) = top.vdev.indirect() {
            return Ok(mapping.runs().len() as u64 * ENTRY);
        }
        let used = self.metaslabs.in_use(top.id, 0, u64::MAX).await?;
        Ok(runs(&used, top).len() as u64 * ENTRY)
    }

    /// Begins to empty a vdev; it goes when that is done. For one who holds `changing`.
    pub(super) async fn remove_top(self: &Arc<Self>, top: &Top) -> Result<()> {
        self.may_remove(top, false)?;
        self.cancel_upkeep(&top.leaves().cloned().collect::<Vec<_>>()).await?;
        self.metaslabs.set_allocatable(top.id, false)?;
        let begun = self.begin_removal(top).await;
        if begun.is_err() {
            self.metaslabs.set_allocatable(top.id, true)?;
        }
        begun?;
        self.update_space()?;
        self.evacuate(top);
        Ok(())
    }

    async fn begin_removal(self: &Arc<Self>, top: &Top) -> Result<()> {
        // Whoever found it open for new blocks is in a txg that was open, and is over when that is
        // synced.
        self.sync().await?;
        // The intent log's blocks are written whenever somebody waits for them, also while they are
        // being copied.
        crate::zil::reset_all(&self.dsl).await?;
        self.sync().await?;
        self.may_remove(top, true)?;
        // What cannot be found cannot be moved.
        let used = self.metaslabs.in_use(top.id, 0, u64::MAX).await.map_err(|e| match e {
            Error::Corrupt(_) => Refusal::UnknownSpace.into(),
            e => e,
        })?;
        // An import reads the mapping into memory. What finds no place in one piece has more runs.
        let tree = self.tree();
        let others: usize = tree.indirect().filter_map(|t| t.vdev.indirect()).map(|m| m.runs().len()).sum();
        let mapped = others + runs(&used, top).len();
        if mapped > indirect::most_runs(&self.ctx.env).await / 2 {
            let what =
                format!("removed devices would be mapped by {mapped} entries, too many for the memory");
            return Err(Error::os(Errno::NoMem, what));
        }
        let (spa, top) = (self.clone(), top.clone());
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move { spa.begin_sync(&tx, &top).await })
        };
        self.ctx.sync_task(task).await
    }

    async fn begin_sync(&self, tx: &Tx, top: &Top) -> Result<()> {
        let (mos, vdev) = (self.ctx.mos(), &top.vdev);
        let counts = self.ctx.features.is_enabled("obsolete_counts");
        self.ctx.features.add(mos, tx, "device_removal", 1).await?;
        let zap = top_zap(vdev);
        if counts && zap.0 != 0 {
            self.ctx.features.add(mos, tx, "obsolete_counts", 1).await?;
            let zap = Zap::open(mos, zap.0).await?;
            zap.insert_u64(tx, VDEV_TOP_ZAP_OBSOLETE_COUNTS_ARE_PRECISE, 1).await?;
        }
        let made = Mapping::create(mos, tx, counts).await?;
        if counts {
            self.ctx.features.add(mos, tx, "obsolete_counts", 1).await?;
        }
        vdev.set_config_u64(ZPOOL_CONFIG_INDIRECT_OBJECT, made.object().0);
        vdev.set_config_u64(ZPOOL_CONFIG_INDIRECT_BIRTHS, made.births().0);
        vdev.set_config_u64(REMOVING, 1);
        let phys = SpaRemovingPhys {
            state: ScanState::Scanning as u64,
            removing_vdev: u64::from(top.id),
            prev_indirect_vdev: self.removing().prev_indirect_vdev,
            start_time: self.now(),
            end_time: 0,
            to_copy: self.metaslabs.bytes_in_use(top.id)?,
            copied: 0,
        };
        self.write_removing(tx, phys).await?;
        // What an import reads before it knows the mapping must not lie on this vdev.
        let directory = mos.hold_wait(ObjectId(DIRECTORY)).await?;
        let len = directory.maxblkid().saturating_add(1).saturating_mul(directory.blksz().into());
        let mut all = vec![0; len as usize];
        directory.read_wait(0, &mut all).await?;
        directory.write(tx, 0, &all);
        self.metaslabs.set_evacuating(top.id, Default::default(), zap, vdev.asize());
        self.config_dirty.store(true, Ordering::Release);
        self.note_removal(tx, "vdev remove started", top.id, "");
        Ok(())
    }

    fn now(&self) -> u64 {
        self.ctx.env.clock.wall().as_secs()
    }

    fn note_removal(&self, tx: &Tx, what: &str, vdev: u32, more: &str) {
        self.ctx.note_internal(tx.txg(), what, format!("{} vdev {vdev}{more}", self.name()));
    }

    pub(super) async fn write_removing(&self, tx: &Tx, phys: SpaRemovingPhys) -> Result<()> {
        let words: Vec<u64> =
            phys.encode().as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
        let directory = Zap::open(self.ctx.mos(), DIRECTORY).await?;
        directory.set(tx, DMU_POOL_REMOVING, &Value::u64s(&words)).await?;
        *self.removing.lock() = phys;
        Ok(())
    }

    /// Counts what was freed before it was copied: it need not be copied any more.
    pub(super) async fn sync_removing(&self, tx: &Tx) -> Result<()> {
        match self.metaslabs.take_freed_uncopied() {
            0 => Ok(()),
            freed => {
                let phys = self.removing();
                self.write_removing(tx, SpaRemovingPhys { copied: phys.copied + freed, ..phys }).await
            }
        }
    }

    /// A removal that was under way when the pool was last open. To be called before anything is
    /// allocated.
    pub(super) async fn resume_removal(self: &Arc<Self>) -> Result<()> {
        let phys = self.removing();
        if phys.state != ScanState::Scanning as u64 || self.ctx.readonly {
            return Ok(());
        }
        let tree = self.tree();
        let top = u32::try_from(phys.removing_vdev).ok().and_then(|id| tree.top(id).ok());
        let top = top.filter(|t| matches!(t.layout, crate::vdev::Layout::Plain(_)));
        let top =
            top.ok_or_else(|| Error::corrupt(None, "MOS", "a vdev is being removed that is not there"))?;
        let mapping = indirect::read(self.ctx.mos(), top, &tree).await?;
        self.metaslabs.set_evacuating(top.id, mapping, top_zap(&top.vdev), top.vdev.asize());
        self.metaslabs.set_allocatable(top.id, false)
    }

    /// Goes on with it, once the pool is open.
    pub(super) fn go_on_removing(self: &Arc<Self>) {
        let phys = self.removing();
        if phys.state == ScanState::Scanning as u64
            && let Ok(top) = self.tree().top(phys.removing_vdev as u32)
        {
            self.evacuate(top);
        }
    }

    fn evacuate(self: &Arc<Self>, top: &Top) {
        let evacuation = Arc::new(Evacuation {
            guid: top.vdev.guid,
            stop: AtomicBool::new(false),
            over: AtomicBool::new(false),
            changed: Event::new(),
        });
        *self.evacuation.lock() = Some(evacuation.clone());
        let (spa, top) = (self.clone(), top.clone());
        self.ctx.env.spawn(async move {
            while !spa.evacuate_once(&top, &evacuation).await {
                // Something was in the way: perhaps it is gone later, and so is what came into use.
                spa.ctx.env.sleep(REST).await;
                if !evacuation.begin_again() {
                    return;
                }
            }
        });
    }

    /// Moves all there is and completes the removal; whether nothing is left to be done.
    async fn evacuate_once(self: &Arc<Self>, top: &Top, evacuation: &Arc<Evacuation>) -> bool {
        let over = || evacuation.stop.load(Ordering::Acquire) || self.ctx.txgs.is_stopped();
        let mut done = self.move_all(top, evacuation).await;
        // What failed while the pool was suspended is done again when it is resumed.
        while done.is_err() && self.suspended().is_some() && !over() {
            while self.suspended().is_some() && !over() {
                self.ctx.env.sleep(HELD).await;
            }
            done = self.move_all(top, evacuation).await;
        }
        evacuation.is_over();
        match done {
            Ok(true) => self.complete_removal(top, evacuation).await,
            Ok(false) => true,
            Err(e) => {
                self.give_up_removal(top, evacuation, e).await;
                true
            }
        }
    }

    /// It cannot be finished: canceled, unless that is because the pool is not in use any more.
    async fn give_up_removal(self: &Arc<Self>, top: &Top, own: &Arc<Evacuation>, why: Error) {
        if self.ctx.txgs.is_stopped() || self.suspended().is_some() || !self.is_current(own) {
            return;
        }
        tracing::error!(pool = %self.name(), vdev = top.id, "the removal is given up: {why}");
        if let Err(e) = self.cancel_removal().await {
            tracing::error!(pool = %self.name(), vdev = top.id, "the removal cannot be canceled: {e}");
        }
    }

    /// Whether all has been moved; false if it was told to stop.
    async fn move_all(self: &Arc<Self>, top: &Top, e: &Evacuation) -> Result<bool> {
        let mapped = self.metaslabs.mapping(top.id).map_or(0, |m| m.end());
        let (mut batch, mut crowded) = (self.read_batch(top, mapped).await?, 0);
        loop {
            let over = || e.stop.load(Ordering::Acquire) || self.ctx.txgs.is_stopped();
            let held = || {
                self.removal_pace.load(Ordering::Relaxed) == 0
                    || tunables::REMOVAL_SUSPEND_PROGRESS.get() != 0
            };
            while held() && !over() {
                self.ctx.env.sleep(HELD).await;
            }
            if over() {
                return Ok(false);
            }
            let Some(end) = batch.last().map(|s| s.offset + s.len) else { return Ok(true) };
            let (spa, moved) = (self.clone(), top.clone());
            let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
                Box::pin(async move { spa.move_sync(&tx, &moved, &batch).await })
            };
            // The next is read meanwhile.
            let (moved, next) = join(self.ctx.sync_task(task), self.read_batch(top, end)).await;
            match moved {
                // Nothing was moved. What others free makes room.
                Err(e) if e.is(Errno::Again) && crowded < CROWDED => {
                    crowded += 1;
                    self.ctx.env.sleep(REST).await;
                    let mapped = self.metaslabs.mapping(top.id).map_or(0, |m| m.end());
                    batch = self.read_batch(top, mapped).await?;
                }
                moved => {
                    moved?;
                    crowded = 0;
                    batch = next?;
                }
            }
        }
    }

    async fn read_batch(&self, top: &Top, from: u64) -> Result<Vec<Sides>> {
        let most = self.removal_pace.load(Ordering::Relaxed).max(1).next_multiple_of(1 << top.ashift());
        let used = self.metaslabs.in_use(top.id, from, most).await?;
        let runs = runs(&used, top);
        try_join_all(runs.into_iter().map(|(start, len)| self.zio.read_sides(top, start, len))).await
    }

    async fn move_sync(&self, tx: &Tx, top: &Top, batch: &[Sides]) -> Result<()> {
        // The txg itself must find room beside the copies.
        let bytes = batch.iter().fold(0u64, |sum, s| sum.saturating_add(s.len));
        if !self.ctx.store.has_room(bytes, Leave::Task) {
            return Err(Error::os(Errno::Again, "there is no room for what is on the device"));
        }
        let mut runs = Vec::new();
        let written = self.write_batch(tx, top, batch, &mut runs).await;
        if written.is_err() {
            for r in &runs {
                let dva = zilla_ondisk::Dva { vdev: r.vdev, offset: r.dst, asize: r.len, gang: false };
                self.metaslabs.free_dva(tx.txg(), &dva)?;
            }
        }
        written?;
        if runs.is_empty() {
            return Ok(());
        }
        Mapping::open(self.ctx.mos(), &top.vdev).await?.append(tx, &runs)?;
        self.metaslabs.map_more(top.id, &runs, tx.txg());
        let copied: u64 = runs.iter().map(|r| r.len).sum();
        let phys = self.removing();
        self.write_removing(tx, SpaRemovingPhys { copied: phys.copied + copied, ..phys }).await
    }

    /// Writes what of a batch is still in use.
    async fn write_batch(&self, tx: &Tx, top: &Top, batch: &[Sides], runs: &mut Vec<Run>) -> Result<()> {
        let Some(from) = self.metaslabs.mapping(top.id).map(|m| m.end()) else { return Ok(()) };
        let Some(end) = batch.last().map(|s| s.offset + s.len) else { return Ok(()) };
        let class = match top.vdev.bias().as_deref() {
            Some("special") => AllocClass::Special,
            Some("dedup") => AllocClass::Dedup,
            _ => AllocClass::Normal,
        };
        let used = self.metaslabs.in_use(top.id, from, end.saturating_sub(from)).await?;
        for (start, stop) in used.into_iter().filter(|(start, _)| *start < end) {
            let mut at = start;
            while at < stop.min(end) {
                let sides = batch.get(batch.partition_point(|s| s.offset + s.len <= at));
                let sides = sides.filter(|s| s.offset <= at).ok_or_else(|| {
                    Error::corrupt(None, format!("vdev {}", top.id), format!("{at:#x} came into use"))
                })?;
                let to = stop.min(sides.offset + sides.len);
                self.zio.write_sides(tx.txg(), class, sides, (at, to), runs).await?;
                at = to;
            }
        }
        Ok(())
    }

    /// Whether it is the removal under way: it may have been canceled, and another begun.
    fn is_current(&self, own: &Arc<Evacuation>) -> bool {
        self.evacuation.lock().as_ref().is_some_and(|e| Arc::ptr_eq(e, own))
    }

    /// False if it could not be, and is to be tried again.
    async fn complete_removal(self: &Arc<Self>, top: &Top, own: &Arc<Evacuation>) -> bool {
        let changing = self.changing.lock().await;
        let old = self.tree();
        let Ok(top) = old.top(top.id).cloned() else { return true };
        if !self.is_current(own) {
            return true;
        }
        let leaves = top.leaves().cloned().collect();
        let spa = self.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move { spa.complete_sync(&tx, &top).await })
        };
        if let Err(e) = self.ctx.sync_task(task).await {
            tracing::error!(pool = %self.name(), "the removal is not completed: {e}");
            return self.ctx.txgs.is_stopped();
        }
        *self.evacuation.lock() = None;
        if let Ok(top) = old.top(self.removing().removing_vdev as u32) {
            self.part_with(&old, top, leaves).await;
        }
        if let Err(e) = self.update_space() {
            tracing::warn!(pool = %self.name(), "after a removal: {e}");
        }
        self.notify("vdev_remove_dev", None);
        drop(changing);
        // One that is under way has passed what was moved.
        self.resilver_after_removal(true).await;
        true
    }

    /// As long as a vdev is being emptied no resilver gives devices the copies that they lack of
    /// it, nor ends saying that they have everything.
    async fn resilver_after_removal(self: &Arc<Self>, restart: bool) {
        if self.removing().state == ScanState::Scanning as u64 || self.ctx.txgs.is_stopped() {
            return;
        }
        if let Err(e) = self.resilver(restart).await {
            tracing::warn!(pool = %self.name(), "what devices lack after a removal: {e}");
        }
    }

    async fn complete_sync(self: &Arc<Self>, tx: &Tx, top: &Top) -> Result<()> {
        let mos = self.ctx.mos();
        let Some(mapping) = self.metaslabs.mapping(top.id) else { return Ok(()) };
        if !self.metaslabs.in_use(top.id, mapping.end(), 1).await?.is_empty() {
            return Err(Error::os(Errno::Busy, "the vdev is not empty"));
        }
        let mut phys = self.removing();
        let mut nv = self.tree().to_edit();
        let guid = new_guid(&*self.ctx.env.rng);
        change::make_indirect(&mut nv, top.vdev.guid, guid, |nv| {
            if phys.prev_indirect_vdev != indirect::NONE {
                nv.set(ZPOOL_CONFIG_PREV_INDIRECT_VDEV, phys.prev_indirect_vdev);
            }
        })?;
        let new = Arc::new(self.tree().changed(&self.ctx.env, &nv)?);
        new.top(top.id)?.vdev.set_indirect(Some(mapping.clone()));
        let objects = VdevObjects::open(&self.ctx, tx).await?;
        self.metaslabs.remove_copied(mos, tx, top.id).await?;
        objects.free_leaves(top).await?;
        new.propagate();
        self.use_tree(new);
        // What was moved is elsewhere now, where a resilver under way does not look for it any
        // more; nor does it if it goes on after a crash.
        self.tree().not_resilvered(None);
        self.tree().note_dropouts(tx.txg().0);
        self.metaslabs.set_removed(top.id, mapping, top_zap(&top.vdev), top.vdev.asize());
        phys.prev_indirect_vdev = u64::from(top.id);
        phys.state = ScanState::Finished as u64;
        phys.end_time = self.now();
        self.write_removing(tx, phys).await?;
        self.config_dirty.store(true, Ordering::Release);
        self.note_removal(tx, "vdev remove completed", top.id, "");
        Ok(())
    }

    /// Stops a removal and undoes it.
    pub async fn cancel_removal(self: &Arc<Self>) -> Result<()> {
        self.check_writable()?;
        let evacuation = self.evacuation.lock().clone();
        let evacuation = evacuation.ok_or(Refusal::NoRemoval)?;
        evacuation.halt().await;
        let changing = self.changing.lock().await;
        let top = self.tree().tops.iter().find(|t| t.vdev.guid == evacuation.guid).cloned();
        let top = top.filter(|_| self.evacuation.lock().is_some()).ok_or(Refusal::NoRemoval)?;
        let (spa, id) = (self.clone(), top.id);
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move { spa.cancel_sync(&tx, &top).await })
        };
        self.ctx.sync_task(task).await?;
        *self.evacuation.lock() = None;
        self.metaslabs.set_allocatable(id, true)?;
        let updated = self.update_space();
        drop(changing);
        self.resilver_after_removal(false).await;
        updated
    }

    async fn cancel_sync(self: &Arc<Self>, tx: &Tx, top: &Top) -> Result<()> {
        let (mos, vdev) = (self.ctx.mos(), &top.vdev);
        let Some(mapping) = self.metaslabs.mapping(top.id) else { return Ok(()) };
        // All that can fail for want of reading comes first.
        let (used, unknown) = self.metaslabs.known_in_use(top.id).await?;
        let made = Mapping::open(mos, vdev).await?;
        if !unknown.is_empty() {
            self.dsl.leaked().await?;
        }
        self.ctx.features.add(mos, tx, "device_removal", -1).await?;
        self.metaslabs.forget_removed(top.id);
        let end = mapping.end();
        for (start, stop) in used.into_iter().filter(|(start, _)| *start < end) {
            let len = stop.min(end) - start;
            let pieces = mapping.pieces(start, len).unwrap_or_default();
            for (_, p) in pieces {
                let dva = zilla_ondisk::Dva { vdev: p.vdev, offset: p.offset, asize: p.len, gang: false };
                self.metaslabs.free_dva(tx.txg(), &dva)?;
            }
        }
        // Of what is there nobody knows which copies are still in use: they stay.
        let mut lost = 0u64;
        for (start, stop, in_use) in unknown {
            let runs = mapping.runs().iter().filter(|r| (start..stop).contains(&r.src));
            let copied = runs.map(|r| r.len).fold(0, u64::saturating_add);
            let dva =
                zilla_ondisk::Dva { vdev: top.id, offset: start, asize: copied.min(in_use), gang: false };
            lost = lost.saturating_add(self.tree().dva_dsize(&dva));
        }
        if lost > 0 {
            self.dsl.count_lost(tx, Space { used: lost, ..Space::default() }).await?;
        }
        let zap = top_zap(vdev);
        if zap.0 != 0 {
            let zap = Zap::open(mos, zap.0).await?;
            if zap.delete_if_there(tx, VDEV_TOP_ZAP_OBSOLETE_COUNTS_ARE_PRECISE).await? {
                self.ctx.features.add(mos, tx, "obsolete_counts", -1).await?;
            }
            if let Some(map) = zap.try_get_u64(VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM).await? {
                zap.delete(tx, VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM).await?;
                self.metaslabs.free_map(mos, tx, ObjectId(map)).await?;
                self.ctx.features.add(mos, tx, "obsolete_counts", -1).await?;
            }
        }
        if made.free(mos, tx) {
            self.ctx.features.add(mos, tx, "obsolete_counts", -1).await?;
        }
        for name in [ZPOOL_CONFIG_INDIRECT_OBJECT, ZPOOL_CONFIG_INDIRECT_BIRTHS, REMOVING] {
            vdev.remove_config(name);
        }
        let mut phys = self.removing();
        phys.state = ScanState::Canceled as u64;
        phys.end_time = self.now();
        self.write_removing(tx, phys).await?;
        self.config_dirty.store(true, Ordering::Release);
        let path = vdev.config_str("path").unwrap_or_else(|| "-".into());
        let kept = match lost {
            0 => String::new(),
            lost => format!("; {lost} bytes stay allocated, as a space map is damaged"),
        };
        self.note_removal(tx, "vdev remove canceled", top.id, &format!(" {path}{kept}"));
        Ok(())
    }

    /// How many bytes a removal moves in a txg; with 0 it is held where it is.
    pub fn set_removal_pace(&self, bytes: u64) {
        self.removal_pace.store(bytes, Ordering::Relaxed);
    }

    /// Whether a vdev is being emptied.
    pub fn is_removing(&self) -> bool {
        self.evacuation.lock().is_some()
    }

    /// The pool is closed: nothing more is moved.
    pub(super) async fn pause_removal(&self) {
        let evacuation = self.evacuation.lock().clone();
        if let Some(evacuation) = evacuation {
            evacuation.halt().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_RUN, stretches};

    #[test]
    fn no_run_lies_in_two_metaslabs_or_is_longer_than_is_read_at_once() {
        let metaslab = 3 * MAX_RUN;
        let used = [(512, 1024), (2 * MAX_RUN, 5 * MAX_RUN + 512), (6 * MAX_RUN, 6 * MAX_RUN + 4096)];
        let runs = stretches(&used, metaslab, MAX_RUN);
        for (start, len) in &runs {
            assert!(*len > 0 && *len <= MAX_RUN);
            assert_eq!(start / metaslab, (start + len - 1) / metaslab, "{start:#x}+{len:#x}");
        }
        let bytes = |runs: &[(u64, u64)]| runs.iter().map(|(_, len)| len).sum::<u64>();
        assert_eq!(bytes(&runs), used.iter().map(|(start, end)| end - start).sum::<u64>());
        assert_eq!(runs.first(), Some(&(512, 512)));
        assert!(runs.contains(&(2 * MAX_RUN, MAX_RUN)) && runs.contains(&(3 * MAX_RUN, MAX_RUN)));
    }
}
