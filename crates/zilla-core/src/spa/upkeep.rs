//! Initializing and trimming: a leaf's free space is gone through once, overwritten or discarded.
//!
//! ```text
//!   start --> [Active] --> window, window, ... [reached so far] ... --> [Complete]
//!                     \-> [Suspended] --> start goes on there        \-> [Canceled]
//! ```
//!
//! Each leaf has a task of its own that goes through the metaslabs of its top-level. A window's
//! free ranges are borrowed ([`crate::metaslab::Loan`]), written, and given back when the last
//! write has completed: so nothing that is in use, freed lately or kept for a checkpoint is ever
//! touched, and nobody is given a place on which a write is still on its way.
//!
//! **On disk** are the state and how far it came, in the leaf's ZAP (steps in brackets, each a part
//! of one txg's sync; names in `zilla_ondisk::vdev_zap`). What was reached is written down when it
//! has been written, and is stable with the txg that says so. **Crash:** an import goes on from
//! there and does a little again, which harms nothing.
//!
//! A task ends by itself when its device is not writable any more; the state stays, and it is taken
//! up again when the device is back ([`Spa::resume_upkeep`]). At a device that was declared faulty
//! it is canceled.
//!
//! **Autotrim**: metaslabs note what they get back; every txg some of them have that trimmed, on
//! all leaves of their vdev, as far as it is still free. Nothing of it is on disk.

use super::Spa;
use super::vdev_objects::leaf_zap;
use crate::error::{Error, Result};
use crate::metaslab::{Loan, Plot};
use crate::spa::Refusal;
use crate::tunables;
use crate::txg::Tx;
use crate::vdev::{Leaf, Priority, Top, UpkeepKind, UpkeepStat, UpkeepState};
use crate::zap::Zap;
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_ondisk::enums::VdevState;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;
use zilla_ondisk::vdev_zap as names;

/// The longest write of an initialize, in bytes.
const LONGEST_CHUNK: u64 = 16 << 20;
/// The longest and the shortest range that is trimmed as one, whatever is set.
const LONGEST_TRIM: u64 = 1 << 40;
const SECTOR: u64 = 512;
/// Progress is written down so often.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// One that is slowed down looks so often whether it must end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it is seen whether txgs were synced, after which there is something to be trimmed.
const AUTOTRIM_LOOK: Duration = Duration::from_secs(1);

const KINDS: [UpkeepKind; 2] = [UpkeepKind::Initialize, UpkeepKind::Trim];

/// What an initialize writes, as much as is written at a time.
fn pattern(ashift: u32) -> Bytes {
    let most = tunables::INITIALIZE_CHUNK_SIZE.get().clamp(SECTOR, LONGEST_CHUNK);
    let most = most.next_multiple_of(1 << ashift);
    Bytes::from(tunables::INITIALIZE_VALUE.get().to_ne_bytes().repeat(most as usize / 8))
}

fn active(kind: UpkeepKind) -> Refusal {
    match kind {
        UpkeepKind::Initialize => Refusal::Initializing,
        UpkeepKind::Trim => Refusal::Trimming,
    }
}

/// What came of writing to some ranges.
#[derive(Default)]
struct Written {
    bytes: u64,
    errors: u64,
    counts: TrimCounts,
}

/// Ranges that were trimmed, that were too short for it, and that failed; and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimCounts {
    pub written: u64,
    pub written_bytes: u64,
    pub skipped: u64,
    pub skipped_bytes: u64,
    pub failed: u64,
    pub failed_bytes: u64,
}

/// The same since the pool was opened.
#[derive(Default)]
pub(crate) struct TrimStats(Mutex<TrimCounts>);

impl TrimStats {
    fn add(&self, more: &TrimCounts) {
        let mut sum = self.0.lock();
        sum.written += more.written;
        sum.written_bytes += more.written_bytes;
        sum.skipped += more.skipped;
        sum.skipped_bytes += more.skipped_bytes;
        sum.failed += more.failed;
        sum.failed_bytes += more.failed_bytes;
    }
}

impl Spa {
    /// Begins to initialize or trim a leaf, or goes on where it was suspended. `rate`: bytes a
    /// second.
    #[crate::boxed]
    pub async fn start_upkeep(
        self: &Arc<Self>,
        guid: u64,
        kind: UpkeepKind,
        rate: Option<u64>,
    ) -> Result<()> {
        let _changing = self.changing.lock().await;
        let (leaf, top) = self.upkeep_leaf(guid)?;
        if !leaf.writable() || self.ctx.readonly {
            return Err(Refusal::NoUpkeep.into());
        }
        if kind == UpkeepKind::Trim && !leaf.can_trim() {
            return Err(Refusal::NoTrim.into());
        }
        let leaving = self.is_removing() && self.removing().removing_vdev == u64::from(top.id);
        let upkeep = leaf.upkeep(kind);
        let old = upkeep.stat();
        if old.state == UpkeepState::Active || leaving {
            return Err(active(kind).into());
        }
        let resumed = old.state == UpkeepState::Suspended;
        let now = self.ctx.env.wall().as_secs();
        let fresh = UpkeepStat { action_time: now, ..UpkeepStat::default() };
        let stat = if resumed { old } else { fresh };
        let rate = rate.unwrap_or(stat.rate);
        upkeep.update(|s| *s = UpkeepStat { state: UpkeepState::Active, rate, ..stat });
        if let Err(e) = self.write_upkeep(&leaf, kind, "activated").await {
            upkeep.update(|s| *s = old);
            return Err(e);
        }
        self.tell_upkeep(&leaf, kind, if resumed { "resume" } else { "start" });
        self.run_upkeep(&leaf, kind);
        Ok(())
    }

    /// Ends an initialize or trim: for a time (`Suspended`) or for good (`Canceled`).
    #[crate::boxed]
    pub async fn stop_upkeep(
        self: &Arc<Self>,
        guid: u64,
        kind: UpkeepKind,
        state: UpkeepState,
    ) -> Result<()> {
        self.check_writable()?;
        let _changing = self.changing.lock().await;
        let (leaf, _) = self.upkeep_leaf(guid)?;
        let old = leaf.upkeep(kind).stat().state;
        let to_cancel = old == UpkeepState::Suspended && state == UpkeepState::Canceled;
        if old != UpkeepState::Active && !to_cancel {
            return Err(match kind {
                UpkeepKind::Initialize => Refusal::NoInitialize.into(),
                UpkeepKind::Trim => Refusal::NoActiveTrim.into(),
            });
        }
        self.end_upkeep(&leaf, kind, state).await
    }

    /// Forgets that a leaf was initialized.
    #[crate::boxed]
    pub async fn uninitialize(self: &Arc<Self>, guid: u64) -> Result<()> {
        self.check_writable()?;
        let _changing = self.changing.lock().await;
        let (leaf, _) = self.upkeep_leaf(guid)?;
        let upkeep = leaf.upkeep(UpkeepKind::Initialize);
        if upkeep.stat().state == UpkeepState::Active {
            return Err(Refusal::Initializing.into());
        }
        upkeep.update(|s| *s = UpkeepStat::default());
        self.write_upkeep(&leaf, UpkeepKind::Initialize, "uninitialized").await
    }

    /// What was trimmed because someone asked (`zpool trim`), and by itself (`autotrim`).
    pub fn trim_counts(&self) -> [TrimCounts; 2] {
        self.trims.each_ref().map(|stats| *stats.0.lock())
    }

    /// Whether some leaf is being initialized or trimmed; of those named, if any are.
    pub fn upkeep_left(&self, kind: UpkeepKind, only: &[u64]) -> Option<u64> {
        let tree = self.tree();
        let named = |l: &&Arc<Leaf>| only.is_empty() || only.contains(&l.guid());
        let stats = tree.pool_leaves().filter(named).map(|l| l.upkeep(kind).stat());
        let active = stats.filter(|s| s.state == UpkeepState::Active);
        active.map(|s| s.estimate.saturating_sub(s.done).max(1)).reduce(u64::saturating_add)
    }

    fn upkeep_leaf(&self, guid: u64) -> Result<(Arc<Leaf>, Top)> {
        let tree = self.tree();
        let vdev = tree.find(guid).ok_or(Refusal::NoDevice(guid))?;
        let top = tree.top_of(guid).filter(|t| t.vdev.is_concrete() && t.has_places());
        match (vdev.leaf.clone(), top) {
            // What a distributed spare has lies on devices that are gone through themselves.
            (Some(leaf), Some(top)) if leaf_zap(&vdev).0 != 0 && !leaf.is_room() => Ok((leaf, top.clone())),
            _ => Err(Refusal::NoUpkeep.into()),
        }
    }

    async fn end_upkeep(
        self: &Arc<Self>,
        leaf: &Arc<Leaf>,
        kind: UpkeepKind,
        state: UpkeepState,
    ) -> Result<()> {
        let (upkeep, now) = (leaf.upkeep(kind), self.ctx.env.wall().as_secs());
        upkeep.update(|s| {
            if s.state != UpkeepState::Suspended {
                s.action_time = now;
            }
            s.state = state;
        });
        upkeep.halt().await;
        let (what, event) = match state {
            UpkeepState::Suspended => ("suspended", "suspend"),
            _ => ("canceled", "cancel"),
        };
        self.write_upkeep(leaf, kind, what).await?;
        self.tell_upkeep(leaf, kind, event);
        Ok(())
    }

    /// Reports what became of a trim; of an initialize OpenZFS reports nothing.
    fn tell_upkeep(&self, leaf: &Leaf, kind: UpkeepKind, what: &str) {
        if kind == UpkeepKind::Trim {
            self.notify(&format!("trim_{what}"), Some(leaf.guid()));
        }
    }

    /// Cancels what goes on at leaves that are about to leave the pool. For one who holds
    /// `changing`.
    pub(super) async fn cancel_upkeep(self: &Arc<Self>, leaves: &[Arc<Leaf>]) -> Result<()> {
        for leaf in leaves {
            for kind in KINDS {
                if leaf.upkeep(kind).stat().state == UpkeepState::Active {
                    self.end_upkeep(leaf, kind, UpkeepState::Canceled).await?;
                }
            }
        }
        Ok(())
    }

    /// The pool is closed: nothing more is written, and an import goes on from there.
    pub(super) async fn pause_upkeep(self: &Arc<Self>) {
        let tree = self.tree();
        for leaf in tree.pool_leaves() {
            for kind in KINDS {
                let upkeep = leaf.upkeep(kind);
                upkeep.halt().await;
                if upkeep.stat().state == UpkeepState::Active
                    && !self.ctx.readonly
                    && let Err(e) = self.write_upkeep(leaf, kind, "").await
                {
                    tracing::warn!(pool = %self.name(), path = %leaf.path(), ?kind, "how far it was: {e}");
                }
            }
        }
    }

    // ---- on disk

    /// Writes down how it stands with a leaf; `what` happened goes into the pool's history.
    async fn write_upkeep(
        self: &Arc<Self>,
        leaf: &Arc<Leaf>,
        kind: UpkeepKind,
        what: &'static str,
    ) -> Result<()> {
        let (spa, leaf) = (self.clone(), leaf.clone());
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move { spa.sync_upkeep(&tx, &leaf, kind, what).await })
        };
        self.ctx.sync_task(task).await
    }

    async fn sync_upkeep(&self, tx: &Tx, leaf: &Leaf, kind: UpkeepKind, what: &str) -> Result<()> {
        // It may have left the pool meanwhile.
        let Some(vdev) = self.tree().find(leaf.guid()) else { return Ok(()) };
        let id = leaf_zap(&vdev);
        if id.0 == 0 {
            return Ok(());
        }
        let zap = Zap::open(self.ctx.mos(), id.0).await?;
        let stat = leaf.upkeep(kind).stat();
        let reached = if stat.reached == 0 { 0 } else { stat.reached + VDEV_LABEL_START_SIZE };
        let all: &[(&str, u64)] = match kind {
            UpkeepKind::Initialize => &[
                (names::INITIALIZE_LAST_OFFSET, reached),
                (names::INITIALIZE_STATE, stat.state as u64),
                (names::INITIALIZE_ACTION_TIME, stat.action_time),
            ],
            UpkeepKind::Trim => &[
                (names::TRIM_LAST_OFFSET, reached),
                (names::TRIM_STATE, stat.state as u64),
                (names::TRIM_ACTION_TIME, stat.action_time),
                (names::TRIM_RATE, stat.rate),
                (names::TRIM_PARTIAL, 0),
                (names::TRIM_SECURE, 0),
            ],
        };
        for (name, value) in all {
            if stat.state == UpkeepState::None {
                zap.delete_if_there(tx, name).await?;
            } else {
                zap.set_u64(tx, name, *value).await?;
            }
        }
        if !what.is_empty() {
            let name = if kind == UpkeepKind::Trim { "trim" } else { "initialize" };
            self.ctx.note_internal(tx.txg(), name, format!("vdev={} {what}", leaf.path()));
        }
        Ok(())
    }

    /// At import: how it stood with each leaf when the pool was last open.
    pub(super) async fn load_upkeep(&self) -> Result<()> {
        let tree = self.tree();
        for vdev in tree.root.walk() {
            let (Some(leaf), id) = (&vdev.leaf, leaf_zap(&vdev)) else { continue };
            let top = tree.top_of(vdev.guid).filter(|t| id.0 != 0 && t.has_places());
            let Some(top) = top else { continue };
            let zap = Zap::open(self.ctx.mos(), id.0).await?;
            let get = async |name| Ok::<u64, Error>(zap.try_get_u64(name).await?.unwrap_or(0));
            for kind in KINDS {
                let (state, reached, time) = match kind {
                    UpkeepKind::Initialize => (
                        names::INITIALIZE_STATE,
                        names::INITIALIZE_LAST_OFFSET,
                        names::INITIALIZE_ACTION_TIME,
                    ),
                    UpkeepKind::Trim => (names::TRIM_STATE, names::TRIM_LAST_OFFSET, names::TRIM_ACTION_TIME),
                };
                let state = UpkeepState::of(get(state).await?);
                // A secure trim that OpenZFS began is nothing that an ordinary one goes on with: it
                // stays on disk for OpenZFS, until a new trim begins.
                let secure = kind == UpkeepKind::Trim
                    && matches!(state, UpkeepState::Active | UpkeepState::Suspended)
                    && get(names::TRIM_SECURE).await? != 0;
                if state == UpkeepState::None || secure {
                    continue;
                }
                let stat = UpkeepStat {
                    state,
                    reached: get(reached).await?.saturating_sub(VDEV_LABEL_START_SIZE),
                    action_time: get(time).await?,
                    rate: if kind == UpkeepKind::Trim { get(names::TRIM_RATE).await? } else { 0 },
                    ..UpkeepStat::default()
                };
                leaf.upkeep(kind).update(|s| *s = stat);
                self.count_upkeep(top, leaf, kind).await?;
            }
        }
        Ok(())
    }

    /// Works out how much is done and to be done.
    async fn count_upkeep(&self, top: &Top, leaf: &Leaf, kind: UpkeepKind) -> Result<()> {
        let upkeep = leaf.upkeep(kind);
        let reached = upkeep.stat().reached;
        let (mut done, mut estimate) = (0u64, 0u64);
        for plot in self.metaslabs.plots(top.id)? {
            let free = top.share_of(plot.free);
            estimate += free;
            let places = top.places_on(leaf, plot.start, plot.end);
            let (Some((start, _)), Some((_, end))) = (places.first(), places.last()) else { continue };
            let (start, end) = (*start, *end);
            if end <= reached {
                done += free;
            } else if start < reached {
                // As far into the metaslab as into its part of the leaf.
                let part = u128::from(reached - start) * u128::from(plot.end - plot.start);
                let limit = plot.start + (part / u128::from(end - start)) as u64;
                done += top.share_of(self.metaslabs.free_below(top.id, plot.id, limit).await?);
            }
        }
        upkeep.update(|s| (s.done, s.estimate) = (done.min(estimate), estimate));
        Ok(())
    }

    // ---- the work

    /// Takes up what is to go on, of every leaf that can be written to.
    pub(super) fn resume_upkeep(self: &Arc<Self>) {
        if self.ctx.readonly || self.suspended().is_some() || self.ctx.txgs.is_stopped() {
            return;
        }
        let tree = self.tree();
        for leaf in tree.pool_leaves().filter(|l| l.writable()) {
            KINDS.into_iter().for_each(|kind| self.run_upkeep(leaf, kind));
        }
    }

    fn run_upkeep(self: &Arc<Self>, leaf: &Arc<Leaf>, kind: UpkeepKind) {
        if !leaf.upkeep(kind).take_up() {
            return;
        }
        let (spa, leaf) = (self.clone(), leaf.clone());
        self.ctx.env.spawn(async move {
            let upkeep = leaf.upkeep(kind);
            let result = match spa.go_through(&leaf, kind).await {
                Ok(true) => {
                    let now = spa.ctx.env.wall().as_secs();
                    // First: who waits for the end finds it told.
                    spa.tell_upkeep(&leaf, kind, "finish");
                    upkeep.update(|s| {
                        (s.state, s.action_time, s.done) = (UpkeepState::Complete, now, s.estimate);
                    });
                    spa.write_upkeep(&leaf, kind, "complete").await
                }
                // A device that has failed is not gone on with when it is back: as in OpenZFS
                // somebody has to ask for it.
                Ok(false) if leaf.state().0 == VdevState::Faulted => {
                    upkeep.update(|s| {
                        if s.state == UpkeepState::Active {
                            s.state = UpkeepState::Canceled;
                        }
                    });
                    spa.write_upkeep(&leaf, kind, "canceled").await
                }
                Ok(false) => Ok(()),
                Err(e) => Err(e),
            };
            if let Err(e) = result.as_ref()
                && !spa.ctx.txgs.is_stopped()
            {
                tracing::warn!(pool = %spa.name(), path = %leaf.path(), ?kind, "not gone on with: {e}");
            }
            upkeep.put_down();
        });
    }

    /// Whether all was gone through; false if it had to end before.
    async fn go_through(self: &Arc<Self>, leaf: &Arc<Leaf>, kind: UpkeepKind) -> Result<bool> {
        let mut noted = self.ctx.env.now();
        let mut id = 0;
        let skips = kind == UpkeepKind::Trim && tunables::TRIM_METASLAB_SKIP.get() != 0;
        loop {
            // The tree may have changed, and the vdev grown.
            let Some(top) = self.tree().top_of(leaf.guid()).filter(|t| t.has_places()).cloned() else {
                return Ok(false);
            };
            self.count_upkeep(&top, leaf, kind).await?;
            let plots = self.metaslabs.plots(top.id)?;
            let Some(plot) = plots.get(id).copied() else { return Ok(true) };
            id += 1;
            if skips && plot.unused {
                continue;
            }
            if self.go_through_plot(&top, leaf, kind, plot, &mut noted).await? {
                continue;
            }
            return Ok(false);
        }
    }

    async fn go_through_plot(
        self: &Arc<Self>,
        top: &Top,
        leaf: &Arc<Leaf>,
        kind: UpkeepKind,
        plot: Plot,
        noted: &mut Duration,
    ) -> Result<bool> {
        let upkeep = leaf.upkeep(kind);
        let mut at = plot.start;
        while at < plot.end {
            if upkeep.must_end() || !leaf.writable() || self.ctx.txgs.is_stopped() {
                return Ok(false);
            }
            let reached = upkeep.stat().reached;
            let loan = self.metaslabs.lend(top.id, plot.id, at, None).await?;
            let window = (at, loan.end());
            at = loan.end();
            let places_of_window = top.places_on(leaf, window.0, window.1);
            let Some((_, end)) = places_of_window.last().copied().filter(|p| p.1 > reached) else { continue };
            let ranges = places(top, leaf, &loan).map(|(s, e)| (s.max(reached), e)).filter(|(s, e)| s < e);
            let began = self.ctx.env.now();
            let written = fill(leaf, top.ashift(), kind, &ranges.collect::<Vec<_>>()).await;
            drop(loan);
            self.trims[0].add(&written.counts);
            if !leaf.writable() {
                return Ok(false);
            }
            upkeep.update(|s| {
                s.reached = end;
                s.errors += written.errors;
                s.done = (s.done + written.bytes).min(s.estimate);
            });
            self.slow_down(leaf, kind, written.bytes, began).await;
            if self.ctx.env.now().saturating_sub(*noted) >= NOTE_EVERY && !upkeep.must_end() {
                self.write_upkeep(leaf, kind, "").await?;
                *noted = self.ctx.env.now();
            }
        }
        Ok(true)
    }

    /// Waits until so many bytes may have been done, by the rate that was asked for.
    async fn slow_down(&self, leaf: &Leaf, kind: UpkeepKind, bytes: u64, began: Duration) {
        let upkeep = leaf.upkeep(kind);
        loop {
            let rate = upkeep.stat().rate;
            if rate == 0 || upkeep.must_end() || self.ctx.txgs.is_stopped() {
                return;
            }
            let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
            let until = began.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
            match until.saturating_sub(self.ctx.env.now()) {
                Duration::ZERO => return,
                left => self.ctx.env.sleep(left.min(LOOK_EVERY)).await,
            }
        }
    }

    // ---- autotrim

    /// Heeds the property from now on.
    pub fn set_autotrim(self: &Arc<Self>, on: bool) {
        self.metaslabs.set_autotrim(on);
        if on && !self.ctx.readonly && !self.autotrimming.swap(true, Ordering::AcqRel) {
            let (weak, env) = (Arc::downgrade(self), self.ctx.env.clone());
            self.ctx.env.spawn(async move {
                let mut last = None;
                loop {
                    env.sleep(AUTOTRIM_LOOK).await;
                    let Some(spa) = weak.upgrade().filter(|s| !s.ctx.txgs.is_stopped()) else { return };
                    let now = spa.ctx.txgs.synced().0;
                    let batch = tunables::TRIM_TXG_BATCH.get().max(1);
                    let from = last.replace(now).unwrap_or(now).max(now.saturating_sub(batch));
                    for txg in from + 1..=now {
                        if let Err(e) = spa.autotrim_turn(txg % batch, batch).await {
                            tracing::warn!(pool = %spa.name(), "autotrim: {e}");
                        }
                    }
                }
            });
        }
    }

    /// Trims what the metaslabs whose turn it is got back: each one's comes once in a batch of
    /// txgs.
    async fn autotrim_turn(&self, turn: u64, batch: u64) -> Result<()> {
        // No tree is held for the whole of a round: a rebuild begins when those from before its
        // device was attached have gone.
        let ids: Vec<u32> = {
            let tree = self.tree();
            tree.tops.iter().filter(|t| t.vdev.is_concrete()).map(|t| t.id).collect()
        };
        for id in ids {
            let Ok(plots) = self.metaslabs.plots(id) else { continue };
            for plot in plots.iter().filter(|p| p.id % batch == turn) {
                let trims = self.metaslabs.take_trims(id, plot.id)?;
                let Some((mut at, _)) = trims.iter().next() else { continue };
                while at < plot.end && self.metaslabs.autotrim() && !self.ctx.txgs.is_stopped() {
                    // What cannot be trimmed is forgotten all the same.
                    if !self.tree().top(id).is_ok_and(Top::has_places) {
                        break;
                    }
                    let loan = self.metaslabs.lend(id, plot.id, at, Some(&trims)).await?;
                    let tree = self.tree();
                    let Some(top) = tree.top(id).ok().filter(|t| t.has_places()) else { break };
                    let leaves = top.devices().filter(|l| l.writable() && l.can_trim());
                    join_all(leaves.map(async |leaf| {
                        let ranges: Vec<_> = places(top, leaf, &loan).collect();
                        let done = fill(leaf, top.ashift(), UpkeepKind::Trim, &ranges).await;
                        self.trims[1].add(&done.counts);
                    }))
                    .await;
                    at = loan.end();
                }
            }
        }
        Ok(())
    }
}

/// Where what is lent lies on a leaf.
fn places<'a>(top: &'a Top, leaf: &'a Leaf, loan: &'a Loan) -> impl Iterator<Item = (u64, u64)> + 'a {
    loan.ranges().flat_map(|(start, end)| top.places_on(leaf, start, end))
}

/// Overwrites or discards ranges of a leaf's data, in pieces of whole sectors of its top-level's:
/// devices take no others. What fails is counted; that is all there is to it.
async fn fill(leaf: &Arc<Leaf>, ashift: u32, kind: UpkeepKind, ranges: &[(u64, u64)]) -> Written {
    let mut out = Written::default();
    let pattern = if kind == UpkeepKind::Initialize { pattern(ashift) } else { Bytes::new() };
    let (longest, shortest) = match kind {
        UpkeepKind::Initialize => (pattern.len() as u64, 0),
        UpkeepKind::Trim => (
            tunables::TRIM_EXTENT_BYTES_MAX.get().clamp(SECTOR, LONGEST_TRIM),
            tunables::TRIM_EXTENT_BYTES_MIN.get(),
        ),
    };
    let sector = 1u64 << ashift;
    let longest = (longest & !(sector - 1)).max(sector);
    for &(start, end) in ranges {
        out.bytes += end - start;
        if end - start < shortest {
            out.counts.skipped += 1;
            out.counts.skipped_bytes += end - start;
            continue;
        }
        let mut at = start;
        while at < end {
            let len = (end - at).min(longest);
            let offset = at + VDEV_LABEL_START_SIZE;
            let result = match kind {
                UpkeepKind::Initialize => {
                    leaf.write_at(offset, pattern.slice(..len as usize), Priority::Initialize).await
                }
                UpkeepKind::Trim => leaf.trim_at(offset, len).await,
            };
            if kind == UpkeepKind::Trim {
                let counts = &mut out.counts;
                let (ranges, bytes) = match result.is_ok() {
                    true => (&mut counts.written, &mut counts.written_bytes),
                    false => (&mut counts.failed, &mut counts.failed_bytes),
                };
                *ranges += 1;
                *bytes += len;
            }
            if result.is_err() {
                out.errors += 1;
                if !leaf.writable() {
                    return out;
                }
            }
            at += len;
        }
    }
    out
}
