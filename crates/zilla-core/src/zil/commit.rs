//! Commits: who waits for what, and when the log blocks leave that make it stable, in *trains*.
//!
//! Whoever wants a commit joins those who wait. The first of them is the driver: it takes all who
//! wait, with all records that matter to any of them, packs these into one block (or several;
//! [`super::pack`]), sends it off, waits until it is stable and tells them. Before the last block
//! leaves, another may take over: while one train is on its way the next is filled and sent; only
//! when two are under way does the driver wait, and whoever commits meanwhile joins it. With more
//! than two log vdevs one train for each may be under way, as blocks go to whichever was given
//! least; more would only be smaller ones in a queue. (Trains that wait for data in place do not
//! keep such a device busy, and are not counted.) On a rotational disk one is under way at a time.
//! How many, [`super::policy`] says. So a lone committer waits for one write and one flush, and
//! many share them. Large data go as several blocks, all on their way at once.
//!
//! A driver does its work itself, not by a task: the last block's write and flush may then be
//! system calls of its own thread ([`zilla_env::waiting_here`]), and a lone commit wakes nobody. If
//! it goes away, a task does the rest ([`Driven`]).
//!
//! A train has arrived when its blocks and all blocks before them are stable. If a block cannot be
//! allocated or written, it and everything behind it are worth nothing: who waits for them waits
//! for the txg instead, and so does everybody else until that txg is synced
//! ([`State::lost_txg`](super::log::State)); then a new chain begins. [`super::states`] has the
//! whole table.

use super::driven::Driven;
use super::itx::Itx;
use super::log::{SAXATTR, State, Zilog};
use super::pack::{BlockOnItsWay, MAX_BLOCKS, Train};
use super::policy::Sample;
use super::states::{Outcome, Waiter};
use crate::error::Result;
use crate::types::Txg;
use crate::zio::LogWritten;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, OptionFuture, select};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla_ondisk::enums::SPA_VERSION_SLIM_ZIL;

/// Trains that may be under way at once, however many log vdevs there are.
const MAX_TRAINS: usize = 16;

/// What someone who wants a commit has to do.
enum Joined {
    /// Wait, and be the driver if there is none.
    Waiter(Arc<Waiter>, Option<Driven>),
    /// Nothing.
    Idle,
    Txg(Txg),
}

/// What a driver does next.
enum Step {
    /// Nobody waits.
    Rest,
    /// Enough is under way.
    Room,
    /// Others are about to come.
    Gather(Duration),
    Txg(Txg),
    Send(Train),
}

impl Zilog {
    /// Waits until what was done to `object`, and everything that leads to it, is on stable
    /// storage; without an object, all that was done.
    #[crate::boxed]
    pub async fn commit(self: &Arc<Self>, object: Option<u64>) -> Result<()> {
        if self.is_disabled() {
            return Ok(());
        }
        self.count().add(|s| &s.commits, 1);
        let started = self.ctx.env.now();
        let result = self.commit_once(object).await;
        let took = self.ctx.env.now().saturating_sub(started);
        self.count().took(|s| &s.commit_latency, took);
        if let Some(tracer) = self.ctx.store.tracer() {
            tracer.commit(self.objset, took);
        }
        if result.is_err() {
            self.count().add(|s| &s.commits_failed, 1);
        }
        result
    }

    async fn commit_once(self: &Arc<Self>, object: Option<u64>) -> Result<()> {
        let open = self.ctx.txgs.open();
        let synced = self.synced();
        let waiter = match self.join(object, open, synced) {
            Joined::Waiter(w, driven) => {
                OptionFuture::from(driven).await;
                w
            }
            Joined::Idle => {
                self.count().add(|s| &s.commits_idle, 1);
                return Ok(());
            }
            Joined::Txg(txg) => return self.wait_txg(txg).await,
        };
        match waiter.wait().await {
            Outcome::Stable => Ok(()),
            Outcome::WithTxg(txg) => self.wait_txg(txg).await,
        }
    }

    /// Writes all records there are to the log, for a txg that will never be on disk. Called in its
    /// sync, so it waits for no txg: where something can only be stable with its txg, it is lost.
    pub(crate) async fn push_out(self: &Arc<Self>) {
        let synced = self.synced();
        let able = {
            let st = self.state.lock();
            st.chain.begun().is_some_and(|txg| txg.max(st.chain.given_back_in()) <= synced)
        };
        if !able || self.is_disabled() {
            return;
        }
        let _hurried = self.ctx.log.take_over(&self.ctx.env);
        if let Joined::Waiter(w, driven) = self.join(None, self.ctx.txgs.open(), synced) {
            OptionFuture::from(driven).await;
            w.wait().await;
        }
    }

    fn join(self: &Arc<Self>, object: Option<u64>, open: Txg, synced: Txg) -> Joined {
        let mut st = self.state.lock();
        // Blocks as older pools have them are read here and not written.
        let old = self.ctx.version() < SPA_VERSION_SLIM_ZIL;
        if st.suspended > 0 || st.chain.is_abandoned() || !self.is_started() || old {
            return Joined::Txg(open);
        }
        let lost = st.lost_txg;
        let trains = &st.trains;
        let idle = trains.waiting().is_empty() && !trains.is_packing() && st.chain.on_their_way() == 0;
        if idle && !self.itxs.pending(synced, object) {
            return if lost > synced { Joined::Txg(lost) } else { Joined::Idle };
        }
        let waiter = Waiter::new(object, open);
        let first = st.trains.join(waiter.clone());
        if !first && st.pace.delay.complete(st.trains.waiting().len()) {
            self.changed.notify(usize::MAX);
        }
        let driven = first.then(|| Driven::new(self, self.driver()));
        Joined::Waiter(waiter, driven)
    }

    async fn wait_txg(&self, txg: Txg) -> Result<()> {
        self.count().add(|s| &s.commits_txg, 1);
        self.ctx.txgs.wait_synced(txg).await
    }

    fn driver(self: &Arc<Self>) -> BoxFuture<'static, ()> {
        self.clone().drive().boxed()
    }

    /// Sends a train, if anybody waits for one, and waits until it is stable.
    async fn drive(self: Arc<Self>) {
        self.go_easy().await;
        loop {
            let listener = self.changed.listen();
            match self.next_step() {
                Step::Rest => {
                    self.changed.notify(usize::MAX);
                    return;
                }
                Step::Room => listener.await,
                Step::Gather(left) => drop(select(listener, self.ctx.env.sleep(left)).await),
                // What was lost is stable then, and what comes after it is logged again: the log
                // has no gaps.
                Step::Txg(txg) => {
                    if self.ctx.txgs.wait_synced(txg).await.is_err() {
                        let waiting = self.state.lock().trains.dismiss();
                        waiting.iter().for_each(|w| w.finish(Outcome::WithTxg(w.open)));
                    }
                }
                Step::Send(train) => {
                    let last = self.send(train).await;
                    let more = self.state.lock().trains.packed();
                    self.changed.notify(usize::MAX);
                    if more {
                        // They came while this was packed: nobody among them knows that he is to
                        // drive.
                        self.ctx.env.spawn(self.driver());
                    }
                    OptionFuture::from(last).await;
                    return;
                }
            }
        }
    }

    fn next_step(&self) -> Step {
        let mut st = self.state.lock();
        if st.trains.rest() {
            return Step::Rest;
        }
        let site = self.site();
        let most = site.policy.at_once(&site).min(MAX_TRAINS);
        if st.trains.under_way() >= most || st.chain.on_their_way() >= MAX_BLOCKS {
            return Step::Room;
        }
        let waiting = st.trains.waiting().len();
        // Where two may be under way, those who come later have theirs as soon.
        if most == 1
            && let Some(left) = st.pace.delay.wait(self.ctx.env.now(), waiting)
        {
            return Step::Gather(left);
        }
        let synced = self.synced();
        for w in st.trains.waiting() {
            self.itxs.make_ready(synced, w.object);
        }
        // In a frozen pool no txg makes anything stable: what is in no record is lost.
        let frozen = self.ctx.is_frozen(self.ctx.txgs.open());
        if !frozen {
            st.lose(self.itxs.barrier(synced));
            if st.lost_txg > synced {
                return Step::Txg(st.lost_txg);
            }
            let until = st.trains.waiting().iter().map(|w| w.open).min();
            if let Some(txg) = until.and_then(|until| self.near_sync(&site, until, synced)) {
                return Step::Txg(txg);
            }
        }
        let waiters = st.trains.pack();
        let mut itxs = self.itxs.take_ready(synced);
        if frozen {
            itxs.retain(|i| !i.is_barrier());
        }
        // One may have come in between: from there on all must wait for its txg.
        if let Some(at) = itxs.iter().position(Itx::is_barrier) {
            let lost = itxs.split_off(at).iter().map(|i| i.txg).max();
            st.lose(Txg(lost.unwrap_or(0)));
        }
        Step::Send(Train { waiters, itxs, site, syncing: None })
    }

    /// Sends all of a train but its last block, whose write is left to the caller.
    async fn send(self: &Arc<Self>, mut train: Train) -> Option<BlockOnItsWay> {
        if train.itxs.is_empty() {
            self.follow(train.waiters);
            return None;
        }
        self.count().add(|s| &s.trains, 1);
        let ready = self.ensure_chain().await;
        // Making the chain may have taken a txg, and with it care of these.
        let synced = self.synced();
        train.itxs.retain(|i| i.txg > synced.0);
        if train.itxs.is_empty() {
            self.follow(train.waiters);
            return None;
        }
        let max_txg = Txg(train.itxs.iter().map(|i| i.txg).max().unwrap_or(0));
        let sent = match ready {
            Ok(()) => {
                self.fill().await;
                let sent = self.pack(&mut train).await;
                self.filled();
                sent
            }
            Err(e) => Err(e),
        };
        match sent {
            Ok(last) => Some(last),
            Err(e) => {
                tracing::debug!(objset = self.objset, error = %e, "a commit waits for its txg");
                self.state.lock().lose(max_txg);
                for w in train.waiters {
                    w.finish(Outcome::WithTxg(w.open.max(max_txg)));
                }
                None
            }
        }
    }

    /// For those who have nothing to write: what others write for them must still become stable.
    fn follow(&self, mut waiters: Vec<Arc<Waiter>>) {
        let mut st = self.state.lock();
        if st.chain.follow(&mut waiters) {
            return;
        }
        let outcome = self.outcome(&st);
        drop(st);
        waiters.iter().for_each(|w| w.finish(outcome));
    }

    fn outcome(&self, st: &State) -> Outcome {
        if st.lost_txg > self.synced() { Outcome::WithTxg(st.lost_txg) } else { Outcome::Stable }
    }

    /// Makes sure that there is a block to write to, and that the header on disk leads to it.
    async fn ensure_chain(&self) -> Result<()> {
        let given_back = {
            let st = self.state.lock();
            st.chain.not_broken()?;
            st.chain.given_back_in()
        };
        if given_back > self.synced() {
            self.ctx.txgs.wait_synced(given_back).await?;
        }
        self.fill().await;
        let begun = self.begin_if_none().await;
        self.filled();
        let begun = begun?;
        if begun > self.synced() { self.ctx.txgs.wait_synced(begun).await } else { Ok(()) }
    }

    /// The txg in which the chain that there is began.
    async fn begin_if_none(&self) -> Result<Txg> {
        {
            let st = self.state.lock();
            st.chain.not_broken()?;
            if let Some(txg) = st.chain.begun() {
                return Ok(txg);
            }
        }
        let tx = self.ctx.txgs.assign_now()?;
        self.begin_chain(tx.txg()).await?;
        Ok(tx.txg())
    }

    /// A chain that begins in `txg` may come to hold records of extended attributes.
    pub(super) fn need_saxattr(&self, txg: Txg) {
        if let Some(ds) = self.ds.upgrade()
            && self.ctx.features.is_enabled(SAXATTR)
        {
            ds.will_need_feature(SAXATTR);
            self.saxattr_txg.store(txg.0, Ordering::Release);
        }
    }

    /// A block's write is over. `counted`: its train is one of those that keep the log's device
    /// busy. `spilled`: it ends a train, and is on none of the log devices that there are.
    pub(super) fn block_done(
        &self,
        number: u64,
        result: Result<LogWritten>,
        (counted, spilled): (bool, bool),
    ) {
        match &result {
            Ok(w) => {
                self.count().took(|s| &s.write_latency, w.write);
                self.count().took(|s| &s.flush_latency, w.flush);
                if let Some(tracer) = self.ctx.store.tracer() {
                    tracer.log_block(self.objset, w.bytes, w.write + w.flush);
                }
                if spilled {
                    self.ctx.log.throttle.went_to_pool(w.write + w.flush);
                }
            }
            Err(e) => {
                self.count().add(|s| &s.block_errors, 1);
                tracing::warn!(objset = self.objset, error = %e, "a log block cannot be written");
            }
        }
        let (mut told, mut samples) = (Vec::new(), Vec::new());
        {
            let mut st = self.state.lock();
            st.chain.written(number, result.is_ok());
            if counted {
                st.trains.arrive();
            }
            self.settle(&mut st, &mut told, &mut samples);
            if let Ok(w) = &result
                && !told.is_empty()
            {
                let waiting = st.trains.waiting().len();
                st.pace.delay.stable(self.ctx.env.now(), w.write + w.flush, told.len(), waiting);
            }
        }
        // The next train's driver first: it has the most to do.
        self.changed.notify(usize::MAX);
        for (w, outcome) in told {
            w.finish(outcome);
        }
        samples.into_iter().for_each(Sample::stable);
    }

    /// Tells who waits, in the order of the chain, up to the first block that is on its way.
    fn settle(&self, st: &mut State, told: &mut Vec<(Arc<Waiter>, Outcome)>, samples: &mut Vec<Sample>) {
        // While a chain is broken nothing of it counts: the header on disk may still lead to the
        // block that was lost.
        let lost = st.chain.is_broken();
        while let Some(issued) = st.chain.settle() {
            samples.extend(issued.cargo.sample.filter(|_| !lost).map(|sample| *sample));
            if lost {
                st.lose(issued.max_txg);
            }
            let outcome = self.outcome(st);
            told.extend(issued.cargo.waiters.into_iter().map(|w| {
                let outcome = if lost { Outcome::WithTxg(w.open.max(st.lost_txg)) } else { outcome };
                (w, outcome)
            }));
        }
    }
}
