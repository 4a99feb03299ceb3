//! Sequential rebuilds: a device that was attached gets what it lacks in the order of the disks.
//!
//! ```text
//!   attach --> [Active] --> strangers leave --> [begin] --> stretch, stretch, ... [reached so far] ...
//!     --> [Complete]: DTLs emptied, scrub         or [Canceled]: nobody is left who lacks something
//! ```
//!
//! Steps in brackets are part of one txg's sync. A task for each top-level goes through its
//! metaslabs and copies what is in use (`vdev/rebuild.rs`). The allocator goes on meanwhile: who
//! writes where something is being copied waits until it is (`vdev/gate.rs`), and what comes into
//! use later is written to the new device by its owner. Before it begins, whoever writes by a tree
//! without the new device, or without having passed the gate, must have come to an end.
//!
//! A stretch that cannot be read or written is an error, and who was to get it keeps its DTL: the
//! scrub that follows is then a resilver. One that fails because the pool is suspended, or too few
//! devices take writes, is tried again. One more device that is attached to the same top-level
//! makes all begin anew.
//!
//! While one is active no scan begins; a scrub that is under way ends.
//!
//! **On disk** (OpenZFS's format): twelve words in the top-level's ZAP (`zilla_ondisk::vdev_zap`),
//! and the count of the feature `device_rebuild`. What was reached is written down when it has been
//! written, and is stable with the txg that says so. **Crash:** an import goes on from there; if
//! somebody lacks something newer, it begins anew.

use super::Spa;
use super::vdev_objects::top_zap;
use crate::error::Result;
use crate::metaslab::Plot;
use crate::spa::Refusal;
use crate::tunables;
use crate::txg::Tx;
use crate::types::{ObjectId, TXG_INITIAL};
use crate::vdev::{Kept, Top, VdevTree};
use crate::zap::{Value, Zap};
use event_listener::Event;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use zilla_ondisk::NvList;
use zilla_ondisk::dsl::WordsPhys;
use zilla_ondisk::vdev_zap::{VDEV_REBUILD, VdevRebuildPhys};

const FEATURE: &str = "device_rebuild";
/// How often one that waits looks whether it may go on.
const HELD: Duration = Duration::from_millis(50);
/// Progress is written down so often.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// Stretches under way at once, whatever is set.
const MOST_AT_ONCE: u64 = 64;
/// The shortest stretch, in bytes of a device.
const LEAST_SEGMENT: u64 = 4096;
const MOST_SEGMENT: u64 = 16 << 20;

/// As OpenZFS numbers them on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum RebuildState {
    Active = 1,
    Canceled = 2,
    Complete = 3,
}

impl RebuildState {
    pub fn of(number: u64) -> Option<RebuildState> {
        [RebuildState::Active, RebuildState::Canceled, RebuildState::Complete]
            .into_iter()
            .find(|s| *s as u64 == number)
    }
}

/// How it stands with a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildStatus {
    pub phys: VdevRebuildPhys,
    /// Since the pool was opened, or it began.
    pub pass_time: Duration,
    pub pass_scanned: u64,
    pub pass_issued: u64,
}

impl RebuildStatus {
    pub fn state(&self) -> Option<RebuildState> {
        RebuildState::of(self.phys.state)
    }
}

/// The rebuild of one top-level.
#[derive(Default)]
struct One {
    /// The top-level's ZAP: the number may be another's some time.
    zap: ObjectId,
    phys: VdevRebuildPhys,
    pass_began: Duration,
    /// Time of earlier passes.
    before_ms: u64,
    pass_scanned: u64,
    pass_issued: u64,
    running: bool,
    /// It is to begin anew.
    anew: bool,
}

impl One {
    fn is_active(&self) -> bool {
        self.phys.state == RebuildState::Active as u64
    }
}

/// A pool's rebuilds.
#[derive(Default)]
pub(super) struct Rebuilds {
    all: Mutex<BTreeMap<u32, One>>,
    /// Trees without the devices that are rebuilt.
    before: Mutex<Vec<Weak<VdevTree>>>,
    stop: AtomicBool,
    held: AtomicBool,
    changed: Event,
}

/// Why a pass ended.
enum Over {
    Complete,
    Canceled,
    Anew,
    /// It goes on when the pool is opened again.
    Stopped,
}

impl Spa {
    /// Whether a device can be attached with a rebuild, or without one.
    pub(super) fn check_rebuild(&self, sequential: bool, top: &Top) -> Result<()> {
        if !sequential {
            return if self.is_rebuilding() { Err(Refusal::Rebuilding.into()) } else { Ok(()) };
        }
        if !self.ctx.features.is_enabled(FEATURE) {
            return Err(Refusal::RebuildDisabled.into());
        }
        if self.scan()?.is_resilvering() {
            return Err(Refusal::Resilvering.into());
        }
        if !top.can_be_rebuilt() || top_zap(&top.vdev).0 == 0 {
            return Err(Refusal::NoRebuild.into());
        }
        Ok(())
    }

    /// Whether the pool's rebuilds leave room for one more, of a distributed spare.
    pub(super) fn may_rebuild(&self, top: &Top) -> bool {
        self.check_rebuild(true, top).is_ok()
    }

    /// Whether some top-level is being rebuilt.
    pub fn is_rebuilding(&self) -> bool {
        self.rebuilds.all.lock().values().any(One::is_active)
    }

    /// The rebuild of a top-level that is under way, or the last one.
    pub fn rebuild_status(&self, top: &Top) -> Option<RebuildStatus> {
        let all = self.rebuilds.all.lock();
        let one = all.get(&top.id).filter(|one| one.zap == top_zap(&top.vdev))?;
        let pass_time = match one.is_active() && one.running {
            true => self.ctx.env.now().saturating_sub(one.pass_began),
            false => Duration::ZERO,
        };
        let (pass_scanned, pass_issued) = (one.pass_scanned, one.pass_issued);
        let status = RebuildStatus { phys: one.phys, pass_time, pass_scanned, pass_issued };
        status.state().map(|_| status)
    }

    /// Bytes that are still to be looked at.
    pub fn rebuild_left(&self) -> Option<u64> {
        let all = self.rebuilds.all.lock();
        let active = all.values().filter(|one| one.is_active());
        let left = active.map(|one| one.phys.bytes_est.saturating_sub(one.phys.bytes_scanned).max(1));
        left.reduce(u64::saturating_add)
    }

    // ---- on disk

    /// At import: how it stood with each top-level when the pool was last open. What cannot be
    /// understood is as if it were not there.
    pub(super) async fn load_rebuilds(&self) -> Result<()> {
        if !self.ctx.features.is_enabled(FEATURE) {
            return Ok(());
        }
        for top in self.tree().tops.iter().filter(|t| t.vdev.is_concrete()) {
            let zap = top_zap(&top.vdev);
            if zap.0 == 0 {
                continue;
            }
            let value = Zap::open(self.ctx.mos(), zap.0).await?.try_get(VDEV_REBUILD).await?;
            let words = value.as_ref().and_then(Value::as_u64s);
            let phys = words.and_then(|w| VdevRebuildPhys::from_words(&w, VdevRebuildPhys::WORDS).ok());
            let Some(phys) = phys.filter(|p| RebuildState::of(p.state).is_some()) else { continue };
            let one = One { zap, phys, before_ms: phys.scan_time_ms, ..One::default() };
            self.rebuilds.all.lock().insert(top.id, one);
        }
        Ok(())
    }

    /// A rebuild begins in the txg in which its device is attached; one under way begins anew.
    /// `old`: the tree without that device.
    pub(super) async fn order_rebuild(&self, tx: &Tx, top: &Top, old: &Arc<VdevTree>) -> Result<()> {
        let now = self.ctx.env.clock.wall().as_secs();
        self.rebuilds.before.lock().push(Arc::downgrade(old));
        let zap = top_zap(&top.vdev);
        {
            let mut all = self.rebuilds.all.lock();
            if let Some(one) = all.get_mut(&top.id).filter(|one| one.is_active() && one.zap == zap) {
                one.anew = true;
                return Ok(());
            }
        }
        // Other software that goes on with it takes it by its word.
        let last = top.leaves().filter_map(|l| l.dtl.bounds()).map(|(_, last)| last).max();
        let phys = VdevRebuildPhys {
            state: RebuildState::Active as u64,
            min_txg: TXG_INITIAL.0,
            max_txg: last.unwrap_or(0).max(tx.txg().0),
            start_time: now,
            ..VdevRebuildPhys::default()
        };
        self.write_phys(tx, top, zap, &phys).await?;
        self.ctx.features.add(self.ctx.mos(), tx, FEATURE, 1).await?;
        // Only now, so that none is thought to be under way that could not be written down.
        {
            let mut all = self.rebuilds.all.lock();
            let one = all.entry(top.id).or_default();
            *one = One { zap, phys, running: one.running, ..One::default() };
        }
        self.tell_of_rebuild(tx, top, "started");
        self.notify_rebuild(top, "resilver_start");
        Ok(())
    }

    fn tell_of_rebuild(&self, tx: &Tx, top: &Top, what: &str) {
        let text = format!("vdev_id={} vdev_guid={} {what}", top.id, top.vdev.guid);
        self.ctx.note_internal(tx.txg(), "rebuild", text);
    }

    fn notify_rebuild(&self, top: &Top, what: &str) {
        let more = NvList::new().with("resilver_type", "sequential");
        self.post(&format!("sysevent.fs.zfs.{what}"), Some(&top.vdev), &more);
    }

    async fn write_rebuild(&self, tx: &Tx, top: &Top) -> Result<()> {
        match self.with_rebuild(top.id, |one| (one.zap, one.phys)) {
            Some((zap, phys)) => self.write_phys(tx, top, zap, &phys).await,
            None => Ok(()),
        }
    }

    async fn write_phys(&self, tx: &Tx, top: &Top, zap: ObjectId, phys: &VdevRebuildPhys) -> Result<()> {
        // It may have left the pool meanwhile.
        if zap.0 == 0 || zap != top_zap(&top.vdev) {
            return Ok(());
        }
        let zap = Zap::open(self.ctx.mos(), zap.0).await?;
        zap.set(tx, VDEV_REBUILD, &Value::u64s(&phys.to_words())).await
    }

    /// Runs something in the syncing context, on the top-level as it is there.
    async fn rebuild_task<F>(self: &Arc<Self>, id: u32, f: F) -> Result<()>
    where
        F: FnOnce(Arc<Spa>, Tx, Top) -> BoxFuture<'static, Result<()>> + Send + 'static,
    {
        let spa = self.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let top = spa.tree().top(id)?.clone();
                f(spa, tx, top).await
            })
        };
        self.ctx.sync_task(task).await
    }

    /// A device has left a top-level: if nobody is left there who is rebuilt, the rebuild is over
    /// when this returns.
    pub(super) async fn settle_rebuild(&self, id: u32) {
        loop {
            let listener = self.rebuilds.changed.listen();
            let running = self.with_rebuild(id, |one| one.running).unwrap_or(false);
            if !running || self.must_stop() || self.tree().top(id).map_or(true, Top::is_rebuilt) {
                return;
            }
            listener.await;
        }
    }

    // ---- the work

    /// Takes up what is to go on.
    pub(super) fn rebuild_on(self: &Arc<Self>) {
        if self.ctx.readonly || self.ctx.txgs.is_stopped() || self.rebuilds.stop.load(Ordering::Acquire) {
            return;
        }
        for top in &self.tree().tops {
            let id = top.id;
            {
                let mut all = self.rebuilds.all.lock();
                let Some(one) = all.get_mut(&id).filter(|o| o.is_active() && !o.running) else { continue };
                if one.zap != top_zap(&top.vdev) {
                    continue;
                }
                (one.running, one.before_ms) = (true, one.phys.scan_time_ms);
            }
            let spa = self.clone();
            self.ctx.env.spawn(async move {
                let result = spa.rebuild_top(id).await;
                if let Some(one) = spa.rebuilds.all.lock().get_mut(&id) {
                    one.running = false;
                }
                spa.rebuilds.changed.notify(usize::MAX);
                match result {
                    Ok(true) => {
                        spa.rebuilt().await;
                        // One that was ordered meanwhile.
                        spa.rebuild_on();
                    }
                    Ok(false) => {}
                    Err(e) if spa.ctx.txgs.is_stopped() => tracing::debug!("a rebuild ended: {e}"),
                    Err(e) => tracing::warn!(pool = %spa.name(), vdev = id, "not rebuilt further: {e}"),
                }
            });
        }
    }

    /// What was replaced leaves, and who lacks something yet is given it.
    async fn rebuilt(self: &Arc<Self>) {
        self.clone().resilvered().await;
        if let Err(e) = self.catch_up().await {
            tracing::warn!(pool = %self.name(), "after a rebuild: {e}");
        }
    }

    /// The pool is closed: nothing more is copied.
    pub(super) async fn pause_rebuilds(&self) {
        self.rebuilds.stop.store(true, Ordering::Release);
        loop {
            let listener = self.rebuilds.changed.listen();
            if !self.rebuilds.all.lock().values().any(|one| one.running) {
                return;
            }
            listener.await;
        }
    }

    /// Holds rebuilds where they are, or lets them go on.
    pub fn hold_rebuilds(&self, held: bool) {
        self.rebuilds.held.store(held, Ordering::Release);
    }

    fn stands_still(&self) -> bool {
        tunables::SCAN_SUSPEND_PROGRESS.get() != 0 || self.rebuilds.held.load(Ordering::Acquire)
    }

    fn must_stop(&self) -> bool {
        self.ctx.txgs.is_stopped() || self.rebuilds.stop.load(Ordering::Acquire)
    }

    fn with_rebuild<R>(&self, id: u32, f: impl FnOnce(&mut One) -> R) -> Option<R> {
        self.rebuilds.all.lock().get_mut(&id).map(f)
    }

    /// Whether it came to its end; false if it goes on another time.
    async fn rebuild_top(self: &Arc<Self>, id: u32) -> Result<bool> {
        loop {
            let state = match self.rebuild_pass(id).await? {
                Over::Anew => continue,
                Over::Stopped => return Ok(false),
                Over::Canceled => RebuildState::Canceled,
                Over::Complete => RebuildState::Complete,
            };
            if self.end_rebuild(id, state).await? {
                return Ok(true);
            }
        }
    }

    async fn rebuild_pass(self: &Arc<Self>, id: u32) -> Result<Over> {
        let scan = self.scan()?;
        if scan.is_scanning() && !scan.is_resilvering() {
            // It may have come to its end by itself.
            drop(scan.cancel().await);
        }
        let tree = self.tree();
        let gate = Arc::new(tree.gates.keep(id));
        drop(tree);
        loop {
            if self.must_stop() {
                return Ok(Over::Stopped);
            }
            let left = {
                let mut before = self.rebuilds.before.lock();
                before.retain(|tree| tree.strong_count() > 0);
                before.len()
            };
            if left == 0 && !gate.has_strangers() {
                break;
            }
            self.ctx.env.sleep(HELD).await;
        }
        // What has a place by now has one that the metaslabs know of.
        self.sync().await?;
        self.rebuild_task(id, |spa, tx, top| Box::pin(async move { spa.begin_rebuild(&tx, &top).await }))
            .await?;
        let (mut noted, mut next) = (self.ctx.env.now(), 0);
        loop {
            // The vdev may have grown.
            let reached = self.with_rebuild(id, |one| one.phys.last_offset).unwrap_or(0);
            let mut plots = self.metaslabs.plots(id)?;
            plots.retain(|p| p.id >= next && p.end > reached);
            let allocated: u64 = plots.iter().map(|p| (p.end - p.start).saturating_sub(p.free)).sum();
            self.with_rebuild(id, |one| {
                one.phys.bytes_est = one.phys.bytes_scanned.saturating_add(allocated)
            });
            if plots.is_empty() {
                return Ok(Over::Complete);
            }
            for plot in plots {
                next = plot.id + 1;
                if let Some(over) = self.rebuild_plot(id, &gate, plot, &mut noted).await? {
                    if matches!(over, Over::Stopped) {
                        self.note_rebuild(id).await?;
                    }
                    return Ok(over);
                }
            }
        }
    }

    /// All who are to take part are marked, and what was done before counts if it still helps them.
    async fn begin_rebuild(&self, tx: &Tx, top: &Top) -> Result<()> {
        let (now, txg) = (self.ctx.env.now(), tx.txg().0);
        let tree = self.tree();
        let begun = self.with_rebuild(top.id, |one| {
            let first = one.phys.last_offset == 0;
            let later = !first && top.lacks_later(one.phys.max_txg);
            let anew = std::mem::take(&mut one.anew) || later;
            if anew || first {
                one.phys = VdevRebuildPhys {
                    state: one.phys.state,
                    min_txg: one.phys.min_txg,
                    max_txg: txg,
                    start_time: one.phys.start_time,
                    ..VdevRebuildPhys::default()
                };
                one.before_ms = 0;
            }
            (one.pass_began, one.pass_scanned, one.pass_issued) = (now, 0, 0);
            (one.phys, anew, anew || first)
        });
        let Some((phys, anew, first)) = begun else { return Ok(()) };
        match first {
            true => tree.begin_rebuild(top, phys.max_txg),
            false => tree.resume_rebuild(top, phys.max_txg, phys.errors > 0),
        }
        if anew {
            self.tell_of_rebuild(tx, top, "reset");
        }
        self.write_rebuild(tx, top).await
    }

    /// Copies what of a metaslab is in use. None: all of it was.
    async fn rebuild_plot(
        self: &Arc<Self>,
        id: u32,
        gate: &Arc<Kept>,
        plot: Plot,
        noted: &mut Duration,
    ) -> Result<Option<Over>> {
        let tree = self.tree();
        let top = tree.top(id)?.clone();
        drop(tree);
        let used = loop {
            match self.metaslabs.load_used(id, plot.id).await {
                Ok(()) => {}
                Err(_) if self.must_stop() => return Ok(Some(Over::Stopped)),
                // What it is read from may come back.
                Err(_) if self.suspended().is_some() => {
                    self.ctx.env.sleep(HELD).await;
                    continue;
                }
                Err(e) => {
                    let metaslab = plot.id;
                    tracing::warn!(pool = %self.name(), vdev = id, metaslab, "not rebuilt: {e}");
                    self.tree().top(id)?.not_rebuilt();
                    self.with_rebuild(id, |one| {
                        one.phys.errors = one.phys.errors.saturating_add(1);
                        one.phys.last_offset = one.phys.last_offset.max(plot.end);
                    });
                    return Ok(None);
                }
            }
            if let Some(used) = self.metaslabs.used_now(id, plot.id, plot.start, plot.end) {
                break used;
            }
        };
        let reached = self.with_rebuild(id, |one| one.phys.last_offset).unwrap_or(0);
        let segment = tunables::REBUILD_MAX_SEGMENT.get().clamp(LEAST_SEGMENT, MOST_SEGMENT);
        let grain = top.grain();
        let mut stretches = Vec::new();
        for (start, end) in used {
            let mut at = (start / grain * grain).max(reached / grain * grain);
            let end = end.next_multiple_of(grain).min(plot.end);
            while at < end {
                let next = top.rebuild_end(at, end, segment);
                stretches.push((at, next));
                at = next;
            }
        }
        let longest = stretches.iter().map(|(at, next)| next - at).max().unwrap_or(0);
        let at_once = (self.rebuild_bytes(&top) / longest.max(1)).clamp(1, MOST_AT_ONCE) as usize;
        let ended = Arc::new(AtomicBool::new(false));
        let over = ended.clone();
        let stretches = stretches.into_iter().take_while(move |_| !over.load(Ordering::Relaxed));
        let mut results = futures_util::stream::iter(stretches)
            .map(|(start, end)| {
                let (spa, gate) = (self.clone(), gate.clone());
                let task = async move { (start, end, spa.rebuild_stretch(id, &gate, start, end).await) };
                self.ctx.env.spawn_with_result(task)
            })
            .buffered(at_once);
        // Also of one that ends what is under way is waited for: it holds on to this gate.
        let mut over = None;
        while let Some((start, end, result)) = results.next().await {
            if ended.load(Ordering::Relaxed) {
                continue;
            }
            let written = match result {
                Ok(Copied::Bytes(written)) => written,
                Ok(Copied::Not) => {
                    self.with_rebuild(id, |one| one.phys.errors = one.phys.errors.saturating_add(1));
                    0
                }
                Ok(Copied::Over(why)) => {
                    ended.store(true, Ordering::Relaxed);
                    over = Some(Ok(Some(why)));
                    continue;
                }
                Err(e) => {
                    ended.store(true, Ordering::Relaxed);
                    over = Some(Err(e));
                    continue;
                }
            };
            let now = self.ctx.env.now();
            self.with_rebuild(id, |one| one.advance(start, end, written, now));
            if now.saturating_sub(*noted) >= NOTE_EVERY {
                *noted = now;
                if let Err(e) = self.note_rebuild(id).await {
                    ended.store(true, Ordering::Relaxed);
                    over = Some(Err(e));
                }
            }
        }
        if let Some(over) = over {
            return over;
        }
        self.with_rebuild(id, |one| one.phys.last_offset = one.phys.last_offset.max(plot.end));
        Ok(None)
    }

    /// How many bytes of a top-level may be in memory at once while it is rebuilt: no more than
    /// half of the ARC's for all top-levels, as in OpenZFS.
    fn rebuild_bytes(&self, top: &Top) -> u64 {
        let asked = tunables::REBUILD_VDEV_LIMIT.get().saturating_mul(top.devices().count() as u64);
        asked.min(self.zio.cache().max() / 2 / self.tree().tops.len().max(1) as u64)
    }

    async fn note_rebuild(self: &Arc<Self>, id: u32) -> Result<()> {
        self.rebuild_task(id, |spa, tx, top| Box::pin(async move { spa.write_rebuild(&tx, &top).await }))
            .await
    }

    async fn rebuild_stretch(&self, id: u32, gate: &Kept, start: u64, end: u64) -> Result<Copied> {
        loop {
            if self.must_stop() {
                return Ok(Copied::Over(Over::Stopped));
            }
            if self.with_rebuild(id, |one| one.anew).unwrap_or(false) {
                return Ok(Copied::Over(Over::Anew));
            }
            let tree = self.tree();
            let top = tree.top(id)?;
            if !top.is_rebuilt() {
                return Ok(Copied::Over(Over::Canceled));
            }
            // What ends it ends it while it stands still, too.
            if self.stands_still() {
                drop(tree);
                self.ctx.env.sleep(HELD).await;
                continue;
            }
            let copied = {
                let _alone = gate.shut(start, end).await;
                top.rebuild(start, end).await
            };
            match copied {
                Ok(written) => return Ok(Copied::Bytes(written)),
                // Those who have it may come back.
                Err(_) if self.suspended().is_some() || !top.writable() => {}
                Err(unrebuilt) => {
                    unrebuilt.note();
                    return Ok(Copied::Not);
                }
            }
            drop(tree);
            self.ctx.env.sleep(HELD).await;
        }
    }

    /// Writes down that it is over; false if it has to begin anew after all.
    async fn end_rebuild(self: &Arc<Self>, id: u32, state: RebuildState) -> Result<bool> {
        // A tree that is being made from the one of now would bring back what configurations say.
        let _changing = self.changing.lock().await;
        if self.with_rebuild(id, |one| one.anew).unwrap_or(false) {
            return Ok(false);
        }
        self.rebuild_task(id, move |spa, tx, top| {
            Box::pin(async move { spa.end_rebuild_sync(&tx, &top, state).await })
        })
        .await?;
        Ok(true)
    }

    async fn end_rebuild_sync(&self, tx: &Tx, top: &Top, state: RebuildState) -> Result<()> {
        let now = self.ctx.env.clock.wall().as_secs();
        let complete = state == RebuildState::Complete;
        let known = self.with_rebuild(top.id, |one| (one.zap, one.phys));
        let Some((zap, mut phys)) = known else { return Ok(()) };
        (phys.state, phys.end_time) = (state as u64, now);
        self.write_phys(tx, top, zap, &phys).await?;
        if self.ctx.features.is_active(FEATURE) {
            self.ctx.features.add(self.ctx.mos(), tx, FEATURE, -1).await?;
        }
        // Only now: one whose end could not be written down is not over.
        if self.tree().end_rebuild(top, complete, phys.max_txg).await {
            self.config_dirty.store(true, Ordering::Release);
        }
        self.with_rebuild(top.id, |one| one.phys = phys);
        self.tell_of_rebuild(tx, top, if complete { "complete" } else { "canceled" });
        self.notify_rebuild(top, "resilver_finish");
        let scrub = complete && tunables::REBUILD_SCRUB_ENABLED.get() != 0 && !self.is_rebuilding();
        if scrub && let Err(e) = self.scan()?.start_in(tx).await {
            tracing::info!(pool = %self.name(), "no scrub after a rebuild: {e}");
        }
        Ok(())
    }
}

/// What came of a stretch.
enum Copied {
    Bytes(u64),
    Not,
    Over(Over),
}

impl One {
    fn advance(&mut self, start: u64, end: u64, written: u64, now: Duration) {
        let p = &mut self.phys;
        p.last_offset = p.last_offset.max(end);
        // What is on disk may say anything.
        p.bytes_scanned = p.bytes_scanned.saturating_add(end - start);
        self.pass_scanned += end - start;
        if written > 0 {
            p.bytes_issued = p.bytes_issued.saturating_add(end - start);
            self.pass_issued += end - start;
        }
        p.bytes_rebuilt = p.bytes_rebuilt.saturating_add(written);
        let pass = now.saturating_sub(self.pass_began).as_millis();
        p.scan_time_ms = self.before_ms.saturating_add(u64::try_from(pass).unwrap_or(u64::MAX));
    }
}
