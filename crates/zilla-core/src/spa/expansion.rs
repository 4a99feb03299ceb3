//! Expanding a RAID-Z: one more child, and what is on the others is spread over all of them.
//!
//! ```text
//!   attach --> [one more child] --> first rows: [scratch area] [new places]
//!     --> [move] [move] ... --> [complete]: it grows, scrub
//! ```
//!
//! Each step in brackets is stable with one txg. What is on the vdev is moved sector by sector, in
//! ascending order, by a task beside the txgs (`vdev/reflow.rs` says where a sector is meanwhile,
//! and who may do I/O there). The task moves as much as may be without writing over what the last
//! uberblock needs, then waits for a txg, whose uberblock says up to where all has been moved.
//!
//! Only what is in use is moved. A place that comes into use later is written to by whoever gets
//! it, at both its places if it has been passed, so nothing need be forbidden to the allocator.
//!
//! Sectors are moved without knowing of blocks and checksums. So it goes on only while every child
//! is there and lacks nothing; else it waits, and what was moved and is not on disk yet is moved
//! again. When all is done a scrub begins, as OpenZFS does it.
//!
//! **On disk** (OpenZFS's format): the configuration says `raidz_expanding`, later the txg from
//! which blocks are as wide as the vdev; the uberblock how far it is; the vdev's ZAP the rest.
//! **Crash:** an import goes on where the uberblock says.

use super::Spa;
use super::vdev_objects::{VdevObjects, top_zap};
use crate::error::{Errno, Error, Result};
use crate::spa::{Attach, Refusal};
use crate::tunables;
use crate::txg::Tx;
use crate::types::TXG_SIZE;
use crate::vdev::{
    ExpandState, LeafSpec, Move, Position, Reflow, Stage, Top, UpkeepKind, Vdev, VdevState, VdevTree, change,
};
use crate::zap::Zap;
use event_listener::Event;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zilla_ondisk::enums::ScanState;
use zilla_ondisk::label::VDEV_BOOT_SIZE;

const FEATURE: &str = "raidz_expansion";
const STATE: &str = "org.openzfs:raidz_expand_state";
const START_TIME: &str = "org.openzfs:raidz_expand_start_time";
const END_TIME: &str = "org.openzfs:raidz_expand_end_time";
const BYTES_COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
/// Bytes moved while others are kept out of where they are.
const CHUNK: u64 = 4 << 20;
/// Bytes moved in a txg.
pub(super) const BATCH: u64 = 256 << 20;
/// How often one that waits looks whether it may go on.
const HELD: Duration = Duration::from_millis(50);
/// TXG_CONCURRENT_STATES: blocks of so many txgs may have been given a place by the old width.
const CONCURRENT: u64 = TXG_SIZE as u64 - 1;

/// What a step came to.
enum Step {
    /// There is more that can be moved at once.
    On,
    /// First a txg has to say what was moved.
    Sync,
    Done,
}

impl Spa {
    /// Gives a RAID-Z one more child, and begins to spread over it what is on the others. For one
    /// who holds `changing`.
    pub(super) async fn attach_to_raidz(
        self: &Arc<Self>,
        target: &Arc<Vdev>,
        spec: &LeafSpec,
        how: Attach,
    ) -> Result<()> {
        let (old, env) = (self.tree(), &self.ctx.env);
        if !self.ctx.features.is_enabled(FEATURE) {
            return Err(Refusal::NoExpansion.into());
        }
        if old.expanding().is_some() {
            return Err(Refusal::Expanding.into());
        }
        let top = old.tops.iter().find(|t| t.vdev.guid == target.guid);
        let top = top.ok_or(Refusal::NoDevice(target.guid))?.clone();
        let mut leaf = spec.config(0, &*env.rng);
        leaf.set("create_txg", target.config_u64("create_txg").unwrap_or(self.ctx.txgs.open().0));
        let guid = leaf.u64("guid").unwrap_or(0);
        let mut nv = old.to_edit();
        change::widen(&mut nv, target.guid, leaf)?;
        let new = Arc::new(old.changed(env, &nv)?);
        new.open_new(&old, how.ashift).await?;
        let fits = (target.children.len() as u64 + 1) << top.ashift() <= VDEV_BOOT_SIZE;
        let begun = if !fits {
            let what = "the raidz has too many devices, of too large sectors, to be expanded";
            Err(Error::os(Errno::Inval, what))
        } else if !healthy(&top) {
            Err(Refusal::ExpandNotHealthy.into())
        } else {
            self.begin_expansion(&old, &new, top.id, guid).await
        };
        if begun.is_err() {
            for leaf in new.new_leaves(&old) {
                leaf.retire(VdevState::Closed).await;
            }
            return begun;
        }
        let upkeep: Vec<_> = top.leaves().cloned().collect();
        for leaf in &upkeep {
            for kind in [UpkeepKind::Initialize, UpkeepKind::Trim] {
                leaf.upkeep(kind).halt().await;
            }
        }
        *self.mover.before.lock() = Arc::downgrade(&old);
        drop(old);
        self.expand_on();
        Ok(())
    }

    async fn begin_expansion(
        self: &Arc<Self>,
        old: &Arc<VdevTree>,
        new: &Arc<VdevTree>,
        id: u32,
        leaf: u64,
    ) -> Result<()> {
        new.init_new_labels(&self.nobodys(), &self.uberblock(), old).await?;
        let (spa, new) = (self.clone(), new.clone());
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let top = new.top(id)?;
                let vdev = new.find(leaf).ok_or(Refusal::NoDevice(leaf))?;
                let widths = top.vdev.widths().ok_or(Refusal::NoExpansion)?;
                VdevObjects::open(&spa.ctx, &tx).await?.leaf(&vdev).await?;
                spa.ctx.features.add(spa.ctx.mos(), &tx, FEATURE, 1).await?;
                let start_time = spa.ctx.env.clock.wall().as_secs();
                let state =
                    ExpandState { state: ScanState::Scanning as u64, start_time, ..Default::default() };
                widths.begin(state);
                spa.write_expansion(&tx, &top.vdev).await?;
                spa.note_expansion(&tx, "raidz vdev expansion started", &top.vdev);
                spa.use_tree(new.clone());
                spa.config_dirty.store(true, Ordering::Release);
                Ok(())
            })
        };
        self.ctx.sync_task(task).await
    }

    fn note_expansion(&self, tx: &Tx, what: &str, vdev: &Vdev) {
        let (name, width) = (self.name(), vdev.children.len());
        self.ctx.note_internal(tx.txg(), what, format!("{name} vdev {} new width {width}", vdev.id));
    }

    async fn write_expansion(&self, tx: &Tx, vdev: &Vdev) -> Result<()> {
        let (Some(widths), id) = (vdev.widths(), top_zap(vdev)) else { return Ok(()) };
        if id.0 == 0 {
            return Ok(());
        }
        let zap = Zap::open(self.ctx.mos(), id.0).await?;
        let stat = widths.state();
        zap.set_u64(tx, STATE, stat.state).await?;
        zap.set_u64(tx, START_TIME, stat.start_time).await?;
        for (name, value) in [(END_TIME, stat.end_time), (BYTES_COPIED, stat.copied)] {
            match value {
                0 => drop(zap.delete_if_there(tx, name).await?),
                _ => zap.set_u64(tx, name, value).await?,
            }
        }
        Ok(())
    }

    /// At import: what was expanded, or is being.
    pub(super) async fn load_expansions(&self) -> Result<()> {
        for top in &self.tree().tops {
            let (Some(widths), id) = (top.vdev.widths(), top_zap(&top.vdev)) else { continue };
            if id.0 == 0 {
                continue;
            }
            let zap = Zap::open(self.ctx.mos(), id.0).await?;
            let get = async |name| Ok::<u64, Error>(zap.try_get_u64(name).await?.unwrap_or(0));
            widths.set_state(ExpandState {
                state: get(STATE).await?,
                start_time: get(START_TIME).await?,
                end_time: get(END_TIME).await?,
                copied: get(BYTES_COPIED).await?,
                waiting: false,
            });
        }
        Ok(())
    }

    /// The expansion under way, or the last one, with the vdev's number.
    pub fn expansion(&self) -> Option<(u32, ExpandState)> {
        let tree = self.tree();
        let all = tree.tops.iter().filter_map(|t| Some((t.id, t.vdev.widths()?.state())));
        let known = all.filter(|(_, s)| s.state != ScanState::None as u64);
        known.max_by_key(|(_, s)| (s.state == ScanState::Scanning as u64, s.end_time))
    }

    /// Whether a vdev is being expanded.
    pub fn is_expanding(&self) -> bool {
        self.tree().expanding().is_some()
    }

    /// How many bytes an expansion moves in a txg; with 0 it is held where it is.
    pub fn set_expansion_pace(&self, bytes: u64) {
        self.expansion_pace.store(bytes, Ordering::Relaxed);
    }

    /// Goes on with an expansion, if there is one.
    pub(super) fn expand_on(self: &Arc<Self>) {
        let Some(id) = self.tree().expanding().map(|t| t.id) else { return };
        let (spa, mover) = (self.clone(), self.mover.clone());
        mover.running.store(true, Ordering::Release);
        self.ctx.env.spawn(async move {
            let over = || spa.ctx.txgs.is_stopped() || mover.stop.load(Ordering::Acquire);
            let (mut drained, mut done) = (0, false);
            while !over() && !done {
                let step = match spa.expansion_pace.load(Ordering::Relaxed) {
                    0 => None,
                    _ => spa.reflow_step(id, &mut drained).await.unwrap_or_else(|e| {
                        spa.expansion_waits(id, &e);
                        None
                    }),
                };
                match step {
                    Some(Step::Done) => done = true,
                    Some(_) => {}
                    None => spa.ctx.env.sleep(HELD).await,
                }
            }
            mover.running.store(false, Ordering::Release);
            mover.changed.notify(usize::MAX);
            if done && let Err(e) = spa.expanded(id).await {
                tracing::warn!(pool = %spa.name(), "after an expansion: {e}");
            }
        });
    }

    /// It is tried again and again; why it waits is said once.
    fn expansion_waits(&self, id: u32, why: &Error) {
        let tree = self.tree();
        let widths = tree.tops.iter().find(|t| t.id == id).and_then(|t| t.vdev.widths());
        if let Some(widths) = widths.filter(|w| !w.state().waiting) {
            tracing::warn!(pool = %self.name(), "an expansion waits: {why}");
            widths.set_waiting(true);
        }
    }

    /// The pool is closed: nothing more is moved.
    pub(super) async fn pause_expansion(&self) {
        self.mover.stop.store(true, Ordering::Release);
        loop {
            let listener = self.mover.changed.listen();
            if !self.mover.running.load(Ordering::Acquire) {
                return;
            }
            listener.await;
        }
    }

    /// Moves some. None: it must wait for devices.
    async fn reflow_step(self: &Arc<Self>, id: u32, drained: &mut u64) -> Result<Option<Step>> {
        let tree = self.tree();
        let top = tree.top(id)?;
        let Some((widths, reflow)) = top.vdev.widths().and_then(|w| Some((w, w.reflow()?))) else {
            return Ok(None);
        };
        let ready = self.suspended().is_none() && healthy(top);
        if !ready {
            widths.set_waiting(true);
            return Ok(None);
        }
        // Who is there from before may not know of the expansion.
        while widths.has_strangers() || self.mover.before.lock().strong_count() > 0 {
            if self.ctx.txgs.is_stopped() || self.mover.stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            self.ctx.env.sleep(HELD).await;
        }
        let mover = Move::new(top);
        let (at, written) = (reflow.now(), reflow.written());
        let step = match at.stage {
            Stage::Plain if at.next == 0 => {
                self.load_first(top, mover.first()).await?;
                let _alone = reflow.exclude(0, mover.first()).await;
                let Some(used) = self.used_first(top, mover.first()) else { return Ok(Some(Step::On)) };
                let copied = mover.to_scratch(&used).await?;
                widths.count_copied(copied);
                reflow.change(at, Position { next: mover.first(), stage: Stage::Copied, ..at });
                Step::Sync
            }
            Stage::Copied if written.stage != Stage::Copied => Step::Sync,
            Stage::Copied | Stage::Scratch => {
                let first = at.next;
                let _alone = reflow.exclude(0, first).await;
                // Old places are written over from here on, also if that is not finished.
                let scratch = Position { synced: first, next: first, stage: Stage::Scratch };
                if !reflow.change(at, scratch) {
                    return Ok(Some(Step::On));
                }
                mover.from_scratch(first).await?;
                reflow.change(scratch, Position { stage: Stage::Moved, ..scratch });
                Step::Sync
            }
            Stage::Moved if written.stage != Stage::Moved => Step::Sync,
            Stage::Moved => {
                let _alone = reflow.exclude(0, at.synced).await;
                reflow.change(at, Position { stage: Stage::Plain, ..at });
                Step::On
            }
            Stage::Plain => {
                // Whoever came while less was on disk may be where something is written over now.
                if at.synced > *drained {
                    reflow.drain(*drained, at.synced).await;
                    *drained = at.synced;
                }
                let most = tunables::EXPAND_MAX_REFLOW_BYTES.get();
                if most != 0 && widths.state().copied >= most {
                    // What was moved is told before it stands still.
                    if at.next > at.synced {
                        self.sync_expansion(&top.vdev).await?;
                    }
                    return Ok(None);
                }
                self.move_some(top, &mover, &reflow, at).await?
            }
        };
        widths.set_waiting(false);
        match step {
            Step::Sync => self.sync_expansion(&top.vdev).await?,
            Step::Done => {
                // Whoever came while less was on disk looks where new blocks lie soon: in the room
                // of the new child.
                reflow.drain(*drained, u64::MAX).await;
                self.complete_expansion(&top.vdev).await?;
            }
            Step::On => {}
        }
        Ok(Some(step))
    }

    /// The metaslabs of the first rows, and their numbers.
    fn first_metaslabs(top: &Top, first: u64) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
        let (shift, end) = (top.vdev.metaslab_shift(), first.min(whole_metaslabs(&top.vdev)));
        (0..end.div_ceil(1 << shift)).map(move |id| (id, id << shift, ((id + 1) << shift).min(end)))
    }

    async fn load_first(&self, top: &Top, first: u64) -> Result<()> {
        for (id, ..) in Self::first_metaslabs(top, first) {
            self.metaslabs.load_used(top.id, id).await?;
        }
        Ok(())
    }

    /// What of the first rows is in use; None if that has to be loaded again.
    fn used_first(&self, top: &Top, first: u64) -> Option<Vec<(u64, u64)>> {
        let all = Self::first_metaslabs(top, first);
        let used: Option<Vec<_>> =
            all.map(|(id, from, to)| self.metaslabs.used_now(top.id, id, from, to)).collect();
        Some(used?.concat())
    }

    async fn move_some(&self, top: &Top, mover: &Move, reflow: &Reflow, at: Position) -> Result<Step> {
        let (shift, end) = (top.vdev.metaslab_shift(), whole_metaslabs(&top.vdev));
        if at.synced >= end {
            return Ok(Step::Done);
        }
        let pace = self.expansion_pace.load(Ordering::Relaxed).clamp(1 << top.ashift(), 1 << 40);
        let limit = crate::vdev::reflow_limit(at.synced >> top.ashift(), mover.old) << top.ashift();
        let limit = limit.min(at.synced.saturating_add(pace.next_multiple_of(1 << top.ashift()))).min(end);
        if at.next >= limit {
            return Ok(Step::Sync);
        }
        let id = at.next >> shift;
        self.metaslabs.load_used(top.id, id).await?;
        let stretch = |to: u64| self.metaslabs.used_now(top.id, id, at.next, to);
        // As much as is moved in one go, to be looked at again when nobody else is there.
        let Some(used) = stretch(limit.min((id + 1) << shift)) else { return Ok(Step::On) };
        let (mut to, mut left) = (limit.min((id + 1) << shift), CHUNK);
        for (start, stop) in used {
            if stop - start >= left {
                to = (start + left).min(to);
                break;
            }
            left -= stop - start;
        }
        let _alone = reflow.exclude(at.next, to).await;
        let Some(used) = stretch(to) else { return Ok(Step::On) };
        let mut copied = 0;
        for (start, stop) in used {
            for from in (start..stop).step_by(CHUNK as usize) {
                mover.sectors(from, stop.min(from + CHUNK)).await?;
            }
            copied += stop - start;
        }
        if reflow.change(at, Position { next: to, ..at })
            && let Some(widths) = top.vdev.widths()
        {
            widths.count_copied(copied);
        }
        Ok(Step::On)
    }

    async fn sync_expansion(self: &Arc<Self>, vdev: &Arc<Vdev>) -> Result<()> {
        let (spa, vdev) = (self.clone(), vdev.clone());
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                spa.write_expansion(&tx, &vdev).await?;
                // Also where there is no ZAP it is a txg of its own, with an uberblock.
                spa.config_dirty.fetch_or(top_zap(&vdev).0 == 0, Ordering::AcqRel);
                Ok(())
            })
        };
        self.ctx.sync_task(task).await
    }

    async fn complete_expansion(self: &Arc<Self>, vdev: &Arc<Vdev>) -> Result<()> {
        // A tree that is being made from the one of now would bring the flag back.
        let _changing = self.changing.lock().await;
        let (spa, guid) = (self.clone(), vdev.guid);
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let tree = spa.tree();
                let vdev = tree.find(guid).ok_or(Refusal::NoDevice(guid))?;
                let Some(widths) = vdev.widths() else { return Ok(()) };
                // What can fail for want of reading comes first: the txg goes on without it, and
                // its uberblock says how far has been moved.
                let zap = top_zap(&vdev);
                if zap.0 != 0 {
                    Zap::open(spa.ctx.mos(), zap.0).await?.try_get_u64(STATE).await?;
                }
                let now = spa.ctx.env.clock.wall().as_secs();
                widths.finish(tx.txg().0 + CONCURRENT, vdev.children.len(), now);
                vdev.not_expanding();
                spa.write_expansion(&tx, &vdev).await?;
                spa.note_expansion(&tx, "raidz vdev expansion completed", &vdev);
                spa.config_dirty.store(true, Ordering::Release);
                Ok(())
            })
        };
        self.ctx.sync_task(task).await
    }

    /// The vdev gets the room of its new child, and what was moved is looked at.
    async fn expanded(self: &Arc<Self>, id: u32) -> Result<()> {
        {
            let _changing = self.changing.lock().await;
            let guid = self.tree().top(id)?.vdev.guid;
            if let Err(e) = self.expand(Some(guid)).await {
                tracing::warn!(pool = %self.name(), vdev = id, "growing after an expansion: {e}");
            }
        }
        self.resume_upkeep();
        if tunables::SCRUB_AFTER_EXPAND.get() != 0
            && let Err(e) = self.scan()?.start().await
        {
            tracing::info!(pool = %self.name(), "no scrub after an expansion: {e}");
        }
        Ok(())
    }

    /// What follows an expansion, if one ended and was not looked at since.
    pub(super) fn go_on_after_expansion(self: &Arc<Self>) {
        let ended = self.expansion().filter(|(_, s)| s.state == ScanState::Finished as u64);
        let Some((id, state)) = ended else { return };
        if self.scan().is_ok_and(|s| s.status().start_time >= state.end_time) {
            return;
        }
        let spa = self.clone();
        self.ctx.env.spawn(async move {
            if let Err(e) = spa.expanded(id).await {
                tracing::warn!(pool = %spa.name(), "after an expansion: {e}");
            }
        });
    }

    /// What was moved and no uberblock says may be lost: it is moved again.
    pub(super) fn retreat_expansion(&self) {
        let tree = self.tree();
        if let Some(reflow) = tree.expanding().and_then(|t| t.vdev.widths()?.reflow()) {
            reflow.retreat();
        }
    }

    /// How it stands with an expansion.
    pub(super) fn expansion_now(&self) -> Option<Position> {
        Some(self.tree().expanding()?.vdev.widths()?.reflow()?.now())
    }

    /// What the uberblock of a txg says of an expansion that was as far as `at` before the devices
    /// were flushed. If one lacks something, no more than before.
    pub(super) fn expansion_in(
        &self,
        at: Option<Position>,
        ub: &mut zilla_ondisk::Uberblock,
    ) -> Option<(Arc<Reflow>, Position)> {
        let (tree, at) = (self.tree(), at?);
        let top = tree.expanding()?;
        let reflow = top.vdev.widths()?.reflow()?;
        let whole = healthy(top) && top.leaves().all(|l| l.holds(ub.txg));
        let at = if whole { at } else { reflow.retreat() };
        at.write_to(ub);
        Some((reflow, at))
    }
}

/// Bytes of a vdev that blocks can be in.
fn whole_metaslabs(vdev: &Vdev) -> u64 {
    vdev.asize() >> vdev.metaslab_shift() << vdev.metaslab_shift()
}

/// Every child is one device, is there, and lacks nothing.
fn healthy(top: &Top) -> bool {
    top.vdev.children.iter().all(|v| {
        let leaf = v.leaf.as_ref();
        leaf.is_some_and(|l| {
            l.state().0 == VdevState::Healthy && l.readable() && l.writable() && l.dtl.is_empty()
        })
    })
}

/// The task that moves.
#[derive(Default)]
pub(super) struct Mover {
    stop: AtomicBool,
    running: AtomicBool,
    /// The tree without the new child: nothing may be moved while somebody still goes by it.
    before: Mutex<Weak<VdevTree>>,
    changed: Event,
}
