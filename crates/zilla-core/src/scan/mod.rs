//! Scrub: reading everything the pool refers to, with all redundancy, and repairing what is bad.
//!
//! **Floor 13.** It walks all datasets.
//!
//! A scan goes in rounds. It *gathers* block pointers by walking the MOS and the datasets
//! ([`traverse`]; in OpenZFS's order, so that each block comes up once), until they take the memory
//! or the time that a round may have ([`round`]); it *reads* them in the order of the disks, all
//! vdevs at once, below all other I/O; then the place it has come to is written down ([`state`]). A
//! crash or an export loses at most the round under way, which is done again.
//!
//! A round may take a twentieth of the memory, so that the blocks of a disk lie close in it: a disk
//! that turns then reads them at nearly the rate of reading everything. In time it may take five
//! minutes, or as long as the scan has worked since the pool was opened, up to two hours (OpenZFS's
//! interval): so a machine that is on for an hour a day gets on, and half of the work at most is
//! lost.
//!
//! Gathering goes in slices. What changes datasets disturbs one slice, not the round, so that
//! frequent snapshots do not stop a scan. While a scrub is paused the round stays in memory.
//!
//! Scans run beside the txgs, on the trees of the last synced one. Three things keep that right.
//! Blocks are freed meanwhile: what is freed during a round is noted ([`Scan::freed`]: in a set
//! while it is gathered, then at the blocks themselves), not read, and no error where reading it
//! failed; and its space is given out again only after a read of it that was under way, which is
//! hurried then, is over ([`Scan::settle`]), so that a repair never hits a new owner. Datasets
//! change meanwhile: snapshots, destroys and rollbacks move the place ([`Scan::snapshotted`] and
//! its kin) in the txg that makes them, and a slice that they disturb is done again. Blocks move
//! from heads to snapshots: the place moves with them.
//!
//! **Invariants.** Every block born at or before `max_txg` that is there when the scan ends was
//! read, or is in the error log. What is on disk is a place up to which this is true.
//!
//! **Lock order.** The scan's state is a leaf. No lock is held while waiting.
//!
//! A **resilver** is a scan of what devices lack: it enters only trees that are younger than the
//! first txg that one of them missed, and reads only blocks that one of them has not got. Who takes
//! part, and what its end means, `vdev/resilver.rs` says. Devices that come back while one is under
//! way wait for the next.
//!
//! A scrub of the error log only is [`errors_only`].
//!
//! Logs that were claimed and not replayed are read with their heads. Blocks that lose the place
//! at which they would come up are read at the end ([`outlived`]). A resilver ends when what was
//! destroyed before is freed ([`ending`]).

mod affected;
mod check;
mod datasets;
mod ending;
mod errlog;
mod errors_only;
mod gather;
mod outlived;
mod reading;
mod round;
mod state;
#[cfg(test)]
mod tests;
mod told;
pub(crate) mod traverse;
mod work;

pub use check::SpaceReport;
pub(crate) use check::check_space;
pub use errlog::{ErrLog, LoggedError};
pub use errors_only::ErrorScrubStatus;

use crate::dmu::resident;
use crate::dsl::Waiting;
use crate::error::{Errno, Error, PoolRefusal as Refusal, Result};
use crate::pool::PoolCtx;
use crate::txg::Tx;
use crate::types::{Bookmark, Txg};
use crate::vdev::Tickets;
use crate::zap::{CreateOpts, Zap};
use crate::zio::Met;
use event_listener::Event;
use futures_util::future::BoxFuture;
use outlived::Outlived;
use parking_lot::Mutex;
use round::{Entry, Round};
use smallvec::SmallVec;
use state::Position;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::{
    DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_LAST_SCRUBBED_TXG, DSF_SCRUB_PAUSED, DslScanPhys,
};
use zilla_ondisk::enums::{ScanFunc, ScanState};
use zilla_ondisk::object_type::DMU_OT_SCAN_QUEUE;

/// OpenZFS scrubs dedup blocks of this class and below by the tables; here the datasets have them.
const DDT_CLASS_MAX: u64 = 1;

/// What a scan needs of the pool it reads.
pub trait ScanPool: Send + Sync {
    /// The MOS's root block as of the last synced txg.
    fn mos_root(&self) -> BlkPtr;
    /// The last txg before the pool was opened.
    fn opened_at(&self) -> Txg;
    /// Bytes in use on all top-level vdevs: how much there is to do.
    fn allocated(&self) -> u64;
    /// Bytes of memory that a round may take.
    fn memory(&self) -> BoxFuture<'_, u64>;
    /// Reads all of a block's copies and redundancy and repairs; returns the bytes read and
    /// repaired. An error means that no copy is good. By the tickets the read can be hurried.
    fn scrub(&self, bp: BlkPtr, at: Bookmark, tickets: Arc<Tickets>) -> BoxFuture<'_, Result<(u64, u64)>>;
    /// The first and the last txg that devices lack and can be given.
    fn missing(&self) -> Option<(Txg, Txg)>;
    /// A resilver of all born up to a txg begins; `resumed`: goes on after the pool was closed.
    fn resilver_begins(&self, max_txg: Txg, resumed: bool);
    /// Whether a device lacks a block that the resilver is to give it.
    fn lacks(&self, bp: &BlkPtr) -> bool;
    /// A block could not be read; or, without one, a whole tree could not.
    fn unreadable(&self, bp: Option<&BlkPtr>);
    /// A resilver ends, in the syncing txg. If it is complete, devices that took part have all that
    /// was born up to `max_txg`.
    fn resilver_ends(&self, complete: bool, max_txg: Txg) -> BoxFuture<'_, ()>;
    /// Whether the pool waits for somebody to clear it.
    fn is_suspended(&self) -> bool;
    /// Whether blocks are shared by deduplication or cloning.
    fn shares_blocks(&self) -> bool;
    /// What waits to be freed, and is in no dataset any more.
    fn waiting(&self) -> BoxFuture<'_, Result<Waiting>>;
    /// Whether devices are given what they lack by something else.
    fn is_rebuilding(&self) -> bool;
    /// The txg in which a resilver was completed is synced.
    fn resilvered(&self);
    /// Something to be told to those who watch: `scrub_start` and the like.
    fn notify(&self, what: &str);
}

/// A scan as `zpool status` shows it (`pool_scan_stat`). Times are seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanStatus {
    pub func: u64,
    pub state: u64,
    pub start_time: u64,
    pub end_time: u64,
    pub to_examine: u64,
    pub examined: u64,
    pub skipped: u64,
    pub processed: u64,
    pub errors: u64,
    pub pass_exam: u64,
    pub pass_start: u64,
    /// When it was paused; 0 when it is not.
    pub pass_scrub_pause: u64,
    pub pass_scrub_spent_paused: u64,
    pub pass_issued: u64,
    pub issued: u64,
}

impl ScanStatus {
    /// Bytes a second in this pass, pauses aside.
    pub fn rate(&self, now: u64) -> u64 {
        let until = if self.pass_scrub_pause != 0 { self.pass_scrub_pause } else { now };
        let elapsed =
            until.saturating_sub(self.pass_start).saturating_sub(self.pass_scrub_spent_paused).max(1);
        self.pass_issued / elapsed
    }
    /// Seconds to go at that rate; None when nothing has been read yet.
    pub fn time_left(&self, now: u64) -> Option<u64> {
        self.to_examine.saturating_sub(self.issued).saturating_sub(self.skipped).checked_div(self.rate(now))
    }
}

/// Nothing is under way where its state cannot be made out: what devices lack is in their DTLs.
fn unless_damaged<T: Default>(loaded: Result<T>) -> Result<T> {
    match loaded {
        Err(e) if matches!(e, Error::Corrupt(_)) || e.is(Errno::NoEnt) => {
            tracing::warn!("no scan goes on: {e}");
            Ok(T::default())
        }
        loaded => loaded,
    }
}

/// Where a block is: the words of its first DVA, and its birth.
type Key = (u64, u64, u64);

fn key(bp: &BlkPtr) -> Key {
    (bp.0[0], bp.0[1], bp.phys_birth())
}

#[derive(Default)]
struct Shared {
    /// What is on disk: everything before it was read.
    stable: Position,
    /// A scrub of the error log. It and a scan are never under way at once.
    errors_only: errors_only::ErrorsOnly,
    /// Where the round that is being read ends.
    next: Option<Position>,
    /// Counts changes that a walk under way must not survive.
    generation: u64,
    /// Whether the task that does the work is there.
    running: bool,
    stopping: bool,
    pass_start: u64,
    paused_at: u64,
    spent_paused: u64,
    issued_before_pass: u64,
    /// A round is under way, which wants to know what is freed.
    noting: bool,
    /// Blocks freed while the round is gathered ([`MOST_FREED`] at most); and the round once it is
    /// read, which has those freed since (as many as there are blocks in it at most, also while a
    /// scrub is paused).
    freed: HashSet<Key>,
    /// The round while it is gathered; and whether some of it was taken out since that was looked
    /// at, because more is freed than is kept.
    gathered: Option<Vec<Entry>>,
    swept: bool,
    round: Option<Arc<Round>>,
    outlived: Outlived,
    /// There is what the scan did not read, nor knows to be damaged.
    passed_by: bool,
    /// Since when it has been waited for devices that are away.
    away_since: Option<Duration>,
    /// Blocks that are being read, and by which the reads can be hurried.
    reading: HashMap<Key, SmallVec<[Arc<Tickets>; 1]>>,
}

impl Shared {
    /// Something is under way, paused or not.
    fn is_active(&self) -> bool {
        self.stable.is_scanning() || self.errors_only.is_active()
    }

    fn is_paused(&self) -> bool {
        if self.stable.is_scanning() { self.stable.is_paused() } else { self.errors_only.is_paused() }
    }
}

pub struct Scan {
    ctx: Arc<PoolCtx>,
    pool: Arc<dyn ScanPool>,
    pub errors: Arc<ErrLog>,
    shared: Mutex<Shared>,
    changed: Event,
    /// Counters of the round under way, ahead of what is stable.
    examined: AtomicU64,
    issued: AtomicU64,
    skipped: AtomicU64,
    processed: AtomicU64,
    error_count: AtomicU64,
    /// What the walk of the dataset under way has come to.
    met: Mutex<Met>,
}

impl Scan {
    /// The pool's scan as it was left; if it was under way it goes on, unless that is read-only.
    #[crate::boxed]
    pub async fn open(ctx: &Arc<PoolCtx>, pool: Arc<dyn ScanPool>) -> Result<Arc<Scan>> {
        let stable = unless_damaged(Position::load(ctx.mos()).await)?;
        let now = ctx.env.wall().as_secs();
        let directory = Zap::open(ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await?;
        let errors_only = match stable.is_scanning() {
            // Both at once is what nobody writes; the scan of more is the one that goes on.
            true => errors_only::ErrorsOnly::default(),
            false => unless_damaged(errors_only::ErrorsOnly::load(&directory, now).await)?,
        };
        let errors = ErrLog::open(ctx).await?;
        if stable.is_scanning() || errors_only.is_active() {
            // Also where it has met none so far: else its end would forget those to come.
            errors.begin_scrub();
        }
        // What is no longer cloned may have been.
        let may_share = pool.shares_blocks() || ctx.features.is_enabled("block_cloning");
        let may_share = may_share && stable.is_scanning();
        let goes_on = may_share && !stable.is_known(ctx.mos(), pool.opened_at()).await?;
        let shared = Shared {
            outlived: if goes_on { Outlived::unknown() } else { Outlived::default() },
            pass_start: if stable.is_scanning() { now } else { stable.phys.start_time },
            paused_at: if stable.is_scanning() && stable.is_paused() { now } else { 0 },
            issued_before_pass: stable.phys.examined,
            // Errors that are in no log are of what was not read.
            passed_by: stable.is_scanning() && stable.phys.errors > errors.scrubbed().await.unwrap_or(0),
            stable,
            errors_only,
            ..Shared::default()
        };
        let scan = Arc::new(Scan {
            ctx: ctx.clone(),
            pool,
            errors,
            shared: Mutex::new(shared),
            changed: Event::new(),
            examined: AtomicU64::new(0),
            issued: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            processed: AtomicU64::new(0),
            error_count: AtomicU64::new(0),
            met: Mutex::default(),
        });
        scan.reset_counters();
        if !ctx.readonly {
            if scan.is_resilvering() {
                let max_txg = scan.shared.lock().stable.phys.max_txg;
                scan.pool.resilver_begins(Txg(max_txg), true);
            }
            scan.launch();
        }
        Ok(scan)
    }

    fn wall(&self) -> u64 {
        self.ctx.env.wall().as_secs()
    }

    fn reset_counters(&self) {
        let phys = self.shared.lock().stable.phys;
        self.examined.store(phys.examined, Ordering::Relaxed);
        self.issued.store(phys.examined, Ordering::Relaxed);
        self.skipped.store(phys.skipped, Ordering::Relaxed);
        self.processed.store(phys.processed, Ordering::Relaxed);
        self.error_count.store(phys.errors, Ordering::Relaxed);
    }

    pub fn is_scanning(&self) -> bool {
        self.shared.lock().stable.is_scanning()
    }

    /// The object that lists the datasets which a scan under way still has to walk, or 0. Each
    /// snapshot and each destroy may change it.
    pub fn queue_object(&self) -> u64 {
        self.shared.lock().stable.phys.queue_obj
    }

    pub fn is_resilvering(&self) -> bool {
        let st = self.shared.lock();
        st.stable.is_scanning() && st.stable.is_resilver()
    }

    /// The last txg of which a resilver under way gives all to those who lack it.
    pub fn resilvers_up_to(&self) -> Option<u64> {
        let st = self.shared.lock();
        (st.stable.is_scanning() && st.stable.is_resilver()).then_some(st.stable.phys.max_txg)
    }

    pub fn is_paused(&self) -> bool {
        let st = self.shared.lock();
        st.stable.is_scanning() && st.stable.is_paused()
    }

    pub fn status(&self) -> ScanStatus {
        let st = self.shared.lock();
        let p = &st.stable.phys;
        let live = st.stable.is_scanning();
        let counter = |c: &AtomicU64, done: u64| if live { c.load(Ordering::Relaxed) } else { done };
        let issued = counter(&self.issued, p.examined);
        ScanStatus {
            func: p.func,
            state: p.state,
            start_time: p.start_time,
            end_time: p.end_time,
            to_examine: p.to_examine,
            examined: counter(&self.examined, p.examined),
            skipped: counter(&self.skipped, p.skipped),
            processed: counter(&self.processed, p.processed),
            errors: counter(&self.error_count, p.errors),
            pass_exam: counter(&self.examined, p.examined).saturating_sub(st.issued_before_pass),
            pass_start: st.pass_start,
            pass_scrub_pause: if live { st.paused_at } else { 0 },
            pass_scrub_spent_paused: st.spent_paused,
            pass_issued: issued.saturating_sub(st.issued_before_pass),
            issued,
        }
    }

    /// Starts a scrub, or goes on with a paused one.
    #[crate::boxed]
    pub async fn start(self: &Arc<Self>) -> Result<()> {
        self.start_from(false).await
    }

    /// Starts a scrub of what was written since the last one that came to its end.
    pub async fn start_from_last(self: &Arc<Self>) -> Result<()> {
        self.start_from(true).await
    }

    #[crate::boxed]
    async fn start_from(self: &Arc<Self>, last: bool) -> Result<()> {
        let me = self.clone();
        self.ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    let from = if last { me.last_scrubbed().await? } else { Txg(0) };
                    me.start_sync(&tx, ScanFunc::Scrub, from).await
                })
            })
            .await?;
        self.launch();
        Ok(())
    }

    /// Starts a scrub in the syncing context.
    pub async fn start_in(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        self.start_sync(tx, ScanFunc::Scrub, Txg(0)).await?;
        self.launch();
        Ok(())
    }

    /// Starts to give devices what they lack. It takes the place of a scrub that is under way, and
    /// of a resilver if it is to `restart` with all who lack something; else these wait for it.
    /// Returns whether it was started.
    #[crate::boxed]
    pub async fn resilver(self: &Arc<Self>, restart: bool) -> Result<bool> {
        let me = self.clone();
        let started = self
            .ctx
            .sync_task(move |tx| {
                Box::pin(async move {
                    if me.is_resilvering() && !restart {
                        return Ok(false);
                    }
                    if me.is_scanning() {
                        me.finish_sync(&tx, false).await?;
                    }
                    me.start_sync(&tx, ScanFunc::Resilver, Txg(0)).await.map(|()| true)
                })
            })
            .await?;
        self.launch();
        Ok(started)
    }

    /// Whether less than so many percent of a resilver that is under way are done.
    pub fn is_early(&self, percent: u64) -> bool {
        let s = self.status();
        let to_do = u128::from(s.to_examine.saturating_sub(s.skipped));
        self.is_resilvering() && u128::from(s.issued) * 100 < to_do * u128::from(percent)
    }

    /// Up to which txg the pool was scrubbed.
    async fn last_scrubbed(&self) -> Result<Txg> {
        let directory = Zap::open(self.ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await?;
        Ok(Txg(directory.try_get_u64(DMU_POOL_LAST_SCRUBBED_TXG).await?.unwrap_or(0)))
    }

    /// A scrub passes over what was born in txg `from` or before it.
    async fn start_sync(&self, tx: &Tx, func: ScanFunc, from: Txg) -> Result<()> {
        let mos = self.ctx.mos();
        let now = self.wall();
        let mut position = self.shared.lock().stable.clone();
        if position.is_scanning() {
            if !position.is_paused() || position.phys.func != ScanFunc::Scrub as u64 {
                return Err(position.refusal().into());
            }
            position.phys.flags &= !DSF_SCRUB_PAUSED;
            position.save(mos, tx).await?;
            let mut st = self.shared.lock();
            st.stable.phys.flags &= !DSF_SCRUB_PAUSED;
            st.spent_paused += now.saturating_sub(std::mem::take(&mut st.paused_at));
            drop(st);
            self.changed.notify(usize::MAX);
            self.pool.notify("scrub_resume");
            return Ok(());
        }
        if self.pool.is_rebuilding() {
            return Err(Refusal::Resilvering.into());
        }
        // Who asks for a scrub gets what is more urgent.
        let missing = self.pool.missing();
        let func = if missing.is_some() { ScanFunc::Resilver } else { func };
        let of_errors = self.shared.lock().errors_only.refusal();
        match (func, of_errors) {
            (ScanFunc::Resilver, Some(_)) => self.end_errors_sync(tx, false).await?,
            (_, Some(why)) => return Err(why.into()),
            _ => {}
        }
        self.forget_errors_only(tx).await?;
        let min_txg = match (func, missing) {
            (ScanFunc::Resilver, Some((first, _))) => first.0.saturating_sub(1),
            _ => from.0,
        };
        let opts = CreateOpts::default();
        let queue = resident(|| Zap::create(mos, tx, DMU_OT_SCAN_QUEUE, &opts)).await?;
        let position = Position {
            phys: DslScanPhys {
                func: func as u64,
                state: ScanState::Scanning as u64,
                queue_obj: queue.id().0,
                min_txg,
                max_txg: tx.txg().0,
                start_time: now,
                to_examine: self.pool.allocated(),
                ddt_class_max: DDT_CLASS_MAX,
                ..DslScanPhys::default()
            },
            until: tx.txg().0,
            ..Position::default()
        };
        position.save(mos, tx).await?;
        if func == ScanFunc::Resilver {
            self.pool.resilver_begins(tx.txg(), false);
        }
        self.errors.begin_scrub();
        {
            let mut st = self.shared.lock();
            st.stable = position;
            st.next = None;
            st.generation += 1;
            (st.outlived, st.away_since, st.passed_by) = (Outlived::default(), None, false);
            (st.pass_start, st.paused_at, st.spent_paused, st.issued_before_pass) = (now, 0, 0, 0);
        }
        self.reset_counters();
        let told = format!("func={} mintxg={min_txg} maxtxg={}", func as u64, tx.txg().0);
        self.ctx.note_internal(tx.txg(), "scan setup", told);
        self.pool.notify(if func == ScanFunc::Resilver { "resilver_start" } else { "scrub_start" });
        Ok(())
    }

    /// Pauses a scrub, or stops it for good.
    #[crate::boxed]
    pub async fn pause(self: &Arc<Self>) -> Result<()> {
        let me = self.clone();
        self.ctx.sync_task(move |tx| Box::pin(async move { me.pause_sync(&tx).await })).await
    }

    async fn pause_sync(&self, tx: &Tx) -> Result<()> {
        if self.shared.lock().errors_only.is_active() {
            return self.pause_errors_sync(tx).await;
        }
        let mut position = self.shared.lock().stable.clone();
        if !position.is_scanning() {
            return Err(Error::no_ent("there is no active scrub"));
        }
        if position.is_paused() {
            return Err(Refusal::ScrubPaused.into());
        }
        position.phys.flags |= DSF_SCRUB_PAUSED;
        position.save(self.ctx.mos(), tx).await?;
        let mut st = self.shared.lock();
        st.stable.phys.flags |= DSF_SCRUB_PAUSED;
        st.paused_at = self.wall();
        drop(st);
        self.pool.notify("scrub_paused");
        Ok(())
    }

    #[crate::boxed]
    pub async fn cancel(self: &Arc<Self>) -> Result<()> {
        let me = self.clone();
        let task = move |tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let of_errors = me.shared.lock().errors_only.is_active();
                match of_errors {
                    true => me.end_errors_sync(&tx, false).await,
                    false => me.finish_sync(&tx, false).await,
                }
            })
        };
        self.ctx.sync_task(task).await
    }

    /// Ends the scan, complete or not.
    async fn finish_sync(&self, tx: &Tx, complete: bool) -> Result<()> {
        let mut position = self.shared.lock().stable.clone();
        if !position.is_scanning() {
            return Err(Error::no_ent("there is no active scan"));
        }
        let mos = self.ctx.mos();
        let queue = std::mem::take(&mut position.phys.queue_obj);
        position.queue.clear();
        position.set_bookmark(None);
        let p = &mut position.phys;
        p.state = if complete { ScanState::Finished } else { ScanState::Canceled } as u64;
        p.end_time = self.wall();
        p.flags = 0;
        p.examined = self.examined.load(Ordering::Relaxed);
        p.skipped = self.skipped.load(Ordering::Relaxed);
        p.processed = self.processed.load(Ordering::Relaxed);
        p.errors = self.error_count.load(Ordering::Relaxed);
        if queue != 0 {
            let dn = mos.hold_wait(crate::types::ObjectId(queue)).await?;
            mos.free(tx, &dn);
        }
        position.save(mos, tx).await?;
        let told = format!("errors={}", position.phys.errors);
        self.ctx.note_internal(tx.txg(), if complete { "scan done" } else { "scan cancelled" }, told);
        let (max_txg, resilver) = (position.phys.max_txg, position.is_resilver());
        let passed_by = self.shared.lock().passed_by;
        // What it has not looked at is as bad as it was. (OpenZFS forgets it.)
        match complete && !passed_by && !resilver && position.phys.min_txg == 0 {
            true => self.errors.end_scrub(tx).await?,
            false => self.errors.abandon_scrub(tx).await?,
        }
        if complete && !passed_by && position.phys.func == ScanFunc::Scrub as u64 {
            let directory = Zap::open(mos, DMU_POOL_DIRECTORY_OBJECT).await?;
            directory.set_u64(tx, DMU_POOL_LAST_SCRUBBED_TXG, max_txg).await?;
        }
        {
            let mut st = self.shared.lock();
            st.stable = position;
            st.next = None;
            st.outlived = Outlived::default();
            st.generation += 1;
        }
        if resilver {
            self.pool.resilver_ends(complete, Txg(max_txg)).await;
        }
        self.pool.notify(match (complete, resilver) {
            (true, true) => "resilver_finish",
            (true, false) => "scrub_finish",
            (false, _) => "scrub_abort",
        });
        self.changed.notify(usize::MAX);
        Ok(())
    }

    /// Waits until no scan is running (done, stopped or paused).
    #[crate::boxed]
    pub async fn wait(&self) {
        loop {
            let listener = self.changed.listen();
            let (active, paused) = {
                let st = self.shared.lock();
                (st.is_active(), st.is_paused())
            };
            if !active || paused {
                return;
            }
            let nap = self.ctx.env.sleep(Duration::from_millis(200));
            futures_util::future::select(listener, nap).await;
        }
    }

    /// Stops working, for an export; what is on disk says where to go on.
    #[crate::boxed]
    pub async fn shutdown(&self) {
        self.shared.lock().stopping = true;
        self.changed.notify(usize::MAX);
        loop {
            let listener = self.changed.listen();
            if !self.shared.lock().running {
                return;
            }
            listener.await;
        }
    }
}
