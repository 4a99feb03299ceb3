//! The task that does a scan's work: gather, read, write down, again.

use super::Scan;
use super::gather::{Gathered, Slice, Trouble, Visits};
use super::outlived::Outlived;
use super::round::{Cost, Entry};
use super::told::MOST_FREED;
use crate::error::{Errno, Result};
use crate::tunables;
use crate::txg::Tx;
use crate::types::Bookmark;
use crate::zio::is_away;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dsl::DSF_SCRUB_PAUSED;
use zilla_ondisk::enums::ScanState;

/// How long a round may take as long as little has been done: what a crash or an export may cost.
const FIRST_ROUND: Duration = Duration::from_secs(300);
/// Blocks that are gathered between two looks at what has become of the datasets; fewer, where they
/// change faster.
const SLICE: usize = 4096;
pub(super) const LEAST_SLICE: usize = 64;

/// How often one that is to stand still looks whether it may go on.
pub(super) const HELD: Duration = Duration::from_millis(50);
/// Before what was disturbed is tried again.
const DISTURBED: Duration = Duration::from_millis(20);
/// Before what failed is tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

pub(super) fn stands_still() -> bool {
    tunables::SCAN_SUSPEND_PROGRESS.get() != 0
}

/// What becomes of the place that is on disk.
pub(super) enum Step {
    /// It is that behind the round.
    On,
    /// Another walk begins, at these datasets.
    WalkAgain(BTreeMap<u64, u64>),
    /// The scan is over.
    End,
}

impl Scan {
    /// Starts the task unless it is there.
    pub(super) fn launch(self: &Arc<Self>) {
        {
            let mut st = self.shared.lock();
            if st.running || st.stopping || !st.is_active() {
                return;
            }
            st.running = true;
        }
        let me = self.clone();
        self.ctx.env.spawn(async move {
            let guard = Running(me.clone());
            match me.work().await {
                // Another may have begun before this task was known to be over.
                Ok(()) => {
                    drop(guard);
                    me.launch();
                }
                Err(e) => {
                    tracing::error!("scan: stopped: {e}");
                    me.give_up();
                }
            }
        });
    }

    /// A scan that can neither go on nor be ended on disk is over in memory, and nobody waits for
    /// it. On disk it goes on with the next import, as it does here where the pool was only
    /// suspended.
    fn give_up(&self) {
        if self.ctx.txgs.is_stopped() {
            return;
        }
        let mut st = self.shared.lock();
        if st.stable.is_scanning() {
            st.stable.phys.state = ScanState::Canceled as u64;
        }
        if st.errors_only.is_active() {
            st.errors_only.phys.state = ScanState::Canceled as u64;
        }
        st.next = None;
        st.generation += 1;
        st.note_nothing();
        drop(st);
        self.changed.notify(usize::MAX);
    }

    /// Whether the task must leave what it is doing.
    pub(super) fn disturbed(&self, generation: u64) -> bool {
        let st = self.shared.lock();
        st.stopping || st.generation != generation || !st.stable.is_scanning() || st.stable.is_paused()
    }

    /// Not all is read: devices do not get it, and the scan is none of everything.
    pub(super) fn passed_by(&self) {
        self.pool.unreadable(None);
        self.shared.lock().passed_by = true;
    }

    pub(super) fn bad_block(&self, bp: &BlkPtr, at: Bookmark) {
        self.error_count.fetch_add(1, Ordering::Relaxed);
        self.errors.log(at, Some(bp.birth()));
    }

    async fn work(self: &Arc<Self>) -> Result<()> {
        // What this task has spent on rounds that are on disk, and how long reading takes beside
        // its estimate.
        let (mut worked, mut factor) = (Duration::ZERO, 1.0);
        loop {
            self.stand_still().await;
            loop {
                let listener = self.changed.listen();
                {
                    let mut st = self.shared.lock();
                    if st.stopping || !st.is_active() {
                        return Ok(());
                    }
                    // With the memory it took.
                    st.note_nothing();
                    st.next = None;
                    st.noting = !st.is_paused();
                    if st.noting {
                        break;
                    }
                }
                listener.await;
            }
            // The txg that is being synced may have freed blocks before that was noted, and the
            // trees of the last one still have them. Behind it, all that the trees have is noted
            // when it is freed.
            self.synced().await?;
            if self.shared.lock().errors_only.is_active() {
                self.unless_away(self.scrub_errors().await).await?;
                continue;
            }
            self.reset_counters();
            if self.shared.lock().stable.is_walked() {
                self.unless_away(self.end().await).await?;
                continue;
            }
            let began = self.ctx.env.now();
            let longest = Duration::from_secs(tunables::SCAN_CHECKPOINT_INTVAL.get());
            // An interruption costs no more than was done before it, or than the first round.
            let mut cost = Cost::new(factor);
            let gathered = self.gather_round(worked.max(FIRST_ROUND).min(longest), &mut cost).await?;
            let Some(entries) = gathered else {
                self.ctx.env.sleep(DISTURBED).await;
                continue;
            };
            let reading = self.ctx.env.now();
            let (done, waited) = self.read_round(entries).await;
            if !done {
                continue;
            }
            let ended = self.ctx.env.now();
            factor = cost.correct(ended.saturating_sub(reading).saturating_sub(waited));
            worked += ended.saturating_sub(began).saturating_sub(waited);
            self.step(|| Step::On).await?;
        }
    }

    /// What failed because devices are away is tried again, after a while.
    async fn unless_away(&self, done: Result<()>) -> Result<()> {
        match done {
            Err(e) if is_away(&e) && !self.ctx.txgs.is_stopped() => {
                self.ctx.env.sleep(AGAIN).await;
                Ok(())
            }
            done => done,
        }
    }

    /// Gathers blocks until they take the time or the memory that a round may have, slice by slice:
    /// what changes datasets disturbs one slice at most. None if the scan is left, or begins anew.
    async fn gather_round(self: &Arc<Self>, time: Duration, cost: &mut Cost) -> Result<Option<Vec<Entry>>> {
        let began = self.ctx.env.now();
        let most = (self.pool.memory().await / size_of::<Entry>() as u64).max(1) as usize;
        let (mut slice, mut failures) = (SLICE, 0u32);
        let (mut trouble, mut visits, mut visited_as_of) = (Trouble::default(), Visits::new(), 0);
        loop {
            if self.must_leave() || stands_still() {
                return Ok(None);
            }
            let (generation, from, so_far, swept) = {
                let mut st = self.shared.lock();
                if !st.noting {
                    return Ok(None);
                }
                let swept = std::mem::take(&mut st.swept);
                let so_far = st.gathered.get_or_insert_default().len();
                match &st.next {
                    Some(_) if swept || st.freed.len() >= MOST_FREED / 2 => break,
                    Some(next) => (st.generation, next.clone(), so_far, swept),
                    None if so_far == 0 => (st.generation, st.stable.clone(), so_far, swept),
                    // What was gathered is of another scan.
                    None => return Ok(None),
                }
            };
            if swept {
                // The trees of the last txg have what was freed in this one and is forgotten.
                self.synced().await?;
                continue;
            }
            if std::mem::replace(&mut visited_as_of, generation) != generation {
                visits.clear();
            }
            let mut out = Slice { visits: std::mem::take(&mut visits), ..Slice::default() };
            let limit = slice.min(most.saturating_sub(so_far));
            let gathered = match self.gather(from, generation, limit, &mut out).await {
                Ok(g) => g,
                // A tree that changed under the walk; the next one begins at the newest root.
                Err(e) if e.is(Errno::Stale) => Gathered::Disturbed,
                // Nobody knows what is there until they are back.
                Err(e) if is_away(&e) => {
                    self.ctx.env.sleep(AGAIN).await;
                    Gathered::Disturbed
                }
                Err(e) => {
                    failures += 1;
                    if failures > 3 {
                        // What cannot go on is over, and not waited for.
                        let me = self.clone();
                        let end = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
                            Box::pin(async move { me.finish_sync(&tx, false).await })
                        };
                        self.ctx.sync_task(end).await?;
                        return Err(e);
                    }
                    tracing::warn!("scan: {e}");
                    self.ctx.env.sleep(AGAIN).await;
                    Gathered::Disturbed
                }
            };
            let next = match gathered {
                Gathered::Part(p) => Some((p, false)),
                Gathered::All(p) => Some((p, true)),
                Gathered::Disturbed => None,
            };
            let kept = {
                let mut st = self.shared.lock();
                next.filter(|_| st.generation == generation).map(|(p, all)| {
                    (st.next, st.away_since) = (Some(p), None);
                    out.entries.iter().for_each(|e| cost.add(&e.bp));
                    (all, st.add_gathered(&mut out.entries, most))
                })
            };
            let Some((all, so_far)) = kept else {
                // It is done again, and counts then.
                slice = (slice / 2).max(LEAST_SLICE);
                self.ctx.env.sleep(DISTURBED).await;
                continue;
            };
            failures = 0;
            slice = (slice * 2).min(SLICE);
            self.examined.fetch_add(out.examined, Ordering::Relaxed);
            self.skipped.fetch_add(out.skipped, Ordering::Relaxed);
            trouble.add(&mut out.trouble);
            visits = out.visits;
            let spent = self.ctx.env.now().saturating_sub(began);
            let full = so_far + trouble.damaged.len() >= most;
            if all || full || spent.max(cost.time()) >= time {
                break;
            }
        }
        let Some(entries) = self.shared.lock().gathered.take() else { return Ok(None) };
        self.take_note(trouble);
        Ok(Some(entries))
    }

    /// Waits until all that has happened so far is on disk.
    pub(super) async fn synced(&self) -> Result<()> {
        self.ctx.txgs.wait_synced(self.ctx.txgs.open()).await
    }

    /// Takes a step on disk.
    pub(super) async fn step(self: &Arc<Self>, step: impl Fn() -> Step) -> Result<()> {
        while let Err(e) = self.write_down(step()).await {
            // A suspended pool that refuses changes (`failmode=continue`) takes them again when it
            // is cleared.
            if !is_away(&e) || self.ctx.txgs.is_stopped() || self.shared.lock().stopping {
                return Err(e);
            }
            self.ctx.env.sleep(AGAIN).await;
        }
        Ok(())
    }

    async fn write_down(self: &Arc<Self>, step: Step) -> Result<()> {
        let me = self.clone();
        let task = move |tx: Tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let ends = matches!(step, Step::End);
                let position = {
                    let mut st = me.shared.lock();
                    // Stopped meanwhile.
                    let Some(mut p) = st.next.take() else { return Ok(()) };
                    // Whether it is paused is said of it meanwhile; that a dataset is to be visited
                    // again is of the place.
                    let paused = st.stable.phys.flags & DSF_SCRUB_PAUSED;
                    p.phys.flags = p.phys.flags & !DSF_SCRUB_PAUSED | paused;
                    p.phys.examined = me.examined.load(Ordering::Relaxed);
                    p.phys.skipped = me.skipped.load(Ordering::Relaxed);
                    p.phys.processed = me.processed.load(Ordering::Relaxed);
                    p.phys.errors = me.error_count.load(Ordering::Relaxed);
                    if let Step::WalkAgain(first) = step {
                        p.walk_again(first, tx.txg().0);
                        // What lost a place before has one that it comes to.
                        st.outlived = Outlived::default();
                    }
                    st.stable = p.clone();
                    p
                };
                me.errors.sync(&tx).await?;
                match ends {
                    true => me.finish_sync(&tx, true).await,
                    false => position.save(me.ctx.mos(), &tx).await,
                }
            })
        };
        self.ctx.sync_task(task).await
    }

    /// As long as the tunable says so and the scan is to go on at all. What is freed meanwhile need
    /// not be known.
    async fn stand_still(&self) {
        while stands_still() && !self.must_leave() {
            self.shared.lock().note_nothing();
            self.ctx.env.sleep(HELD).await;
        }
    }

    pub(super) fn must_leave(&self) -> bool {
        let st = self.shared.lock();
        st.stopping || !st.is_active() || st.is_paused()
    }
}

/// Says that the task is over, however it ends.
struct Running(Arc<Scan>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut st = self.0.shared.lock();
        st.running = false;
        st.note_nothing();
        drop(st);
        self.0.changed.notify(usize::MAX);
    }
}
