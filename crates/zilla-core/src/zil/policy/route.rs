//! Which way large data go where there is a log device: through it, or straight to where they will
//! stay.
//!
//! A log device is there to be quicker than the pool. For large data it often is not: a few USB
//! sticks write fewer bytes a second than the disks that they were added to, and what goes through
//! them is written twice. What is quicker depends on both, on how many write and on what else is
//! going on; so it is tried. Large data go the *usual* way, at first the log; now and then they go
//! the other way for a *trial*, and if that is quicker it is the usual way from then on.
//!
//! What went into the log the pool has still to write, and is the slower for it. So what a way can
//! do shows only over whole txgs, and not before the txg that was open at its beginning is synced:
//! till then the log seems quicker than it is in the long run, and in place slower. The first trial
//! does not wait until the log is *settled* in this sense, and comes before much has gone into it:
//! one that even at first is slower than in place is not needed, and little holds up what goes in
//! place so early. If the log is neither slower nor far quicker, it has to settle before the next
//! trial decides.
//!
//! A trial ends as soon as it is clearly slower, which costs a quick log a few MiB. The more the
//! slower way lost in it, and the more often that was clear, the later is the next.
//!
//! A way's rate is that of all trains while large data take it: their bytes by the time during
//! which one or more of them were under way. It is kept for a pool, not for a dataset: the devices
//! are the pool's.
//!
//! Nothing here touches what is stable: both ways are, when the commit returns.

use crate::pool::PoolCtx;
use crate::types::Txg;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Bytes before the first trial: so little hardly holds the pool up that has still to write it.
const FIRST: u64 = 8 << 20;
/// Bytes before another, at least and at most.
const OFTEN: u64 = 32 << 20;
const SELDOM: u64 = 16 << 30;
/// Before a trial so many times what the slower way lost in the last.
const WORTH: f64 = 32.0;
/// Bytes that a trial is judged by at least, and those after which it may be given up.
const TRIAL: u64 = 32 << 20;
const CLEAR: u64 = 4 << 20;
/// A trial is given up at less than this share of the usual way's rate. In place, as long as what
/// went into the log holds it up:
const HELD_UP: f64 = 0.15;
/// While the usual way is not settled:
const UNSURE: f64 = 0.5;
/// Else:
const SLOWER: f64 = 0.8;
/// Where one way is clearly quicker the next trial is put off by so much.
const LATER: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::zil) enum Route {
    Log,
    /// Written where they stay, with a pointer in the log.
    Place,
}

impl Route {
    fn other(self) -> Route {
        match self {
            Route::Log => Route::Place,
            Route::Place => Route::Log,
        }
    }
}

/// What one way has done.
#[derive(Default)]
struct Done {
    bytes: u64,
    busy: Duration,
    last: Duration,
}

impl Done {
    fn add(&mut self, bytes: u64, began: Duration, now: Duration) {
        self.bytes += bytes;
        self.busy += now.saturating_sub(began.max(self.last));
        self.last = now;
    }
    /// Bytes a second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.busy.as_secs_f64().max(1e-9)
    }
}

/// How much is known of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The pool's first: the first trial does not wait until it is settled, and ends it.
    First,
    /// The txg that was open at the beginning is not yet synced.
    Prepares(Txg),
    /// Nor is the one after it.
    Measures(Txg),
    Settled,
}

/// The time since large data took a way.
struct Run {
    phase: Phase,
    /// What was done while it prepared, and since.
    before: Done,
    done: Done,
}

impl Run {
    fn begin(phase: Phase, now: Duration) -> Run {
        Run { phase, before: Done::default(), done: Done { last: now, ..Done::default() } }
    }
    fn add(&mut self, bytes: u64, began: Duration, now: Duration, synced: impl Fn() -> Txg) {
        self.done.add(bytes, began, now);
        if let Phase::Prepares(txg) = self.phase
            && synced() >= txg
        {
            self.before = std::mem::replace(&mut self.done, Done { last: now, ..Done::default() });
            self.phase = Phase::Measures(Txg(txg.0 + 1));
        }
        if let Phase::Measures(txg) = self.phase
            && self.done.bytes >= TRIAL
            && synced() >= txg
        {
            self.phase = Phase::Settled;
        }
    }
    fn settled(&self) -> bool {
        self.phase == Phase::Settled
    }
    /// As far as it is known.
    fn rate(&self) -> f64 {
        if self.done.bytes < CLEAR && self.before.bytes > 0 { self.before.rate() } else { self.done.rate() }
    }
    fn time(&self) -> Duration {
        self.before.busy + self.done.busy
    }
}

struct State {
    usual: Route,
    run: Run,
    trial: Option<Run>,
    /// Bytes to the next trial, and how many there were from the last.
    left: u64,
    every: u64,
    /// What the log did when large data last went through it, in bytes a second.
    log_rate: f64,
}

/// A pool's choice.
pub(in crate::zil) struct Routes(Mutex<State>);

impl Default for Routes {
    fn default() -> Routes {
        let run = Run::begin(Phase::First, Duration::ZERO);
        let state = State { usual: Route::Log, run, trial: None, left: FIRST, every: OFTEN, log_rate: 0.0 };
        Routes(Mutex::new(state))
    }
}

impl Routes {
    /// While large data go in place: bytes a second that the log did when they last went through
    /// it, if that is known yet.
    pub(in crate::zil) fn slow_log(&self) -> Option<f64> {
        let st = self.0.lock();
        let way = if st.trial.is_some() { st.usual.other() } else { st.usual };
        (way == Route::Place && st.log_rate > 0.0).then_some(st.log_rate)
    }

    /// The way of a train's large data, of which there are so many bytes.
    fn choose(&self, large: u64, now: Duration, open: impl Fn() -> Txg) -> Route {
        let mut st = self.0.lock();
        if st.trial.is_some() {
            return st.usual.other();
        }
        st.left = st.left.saturating_sub(large);
        if st.left == 0 && matches!(st.run.phase, Phase::First | Phase::Settled) {
            st.trial = Some(Run::begin(Phase::Prepares(open()), now));
        }
        st.usual
    }

    /// A train of so many bytes is stable.
    fn arrived(
        &self,
        route: Route,
        bytes: u64,
        began: Duration,
        now: Duration,
        open: impl Fn() -> Txg,
        synced: impl Fn() -> Txg,
    ) {
        let mut st = self.0.lock();
        let st = &mut *st;
        if route == st.usual {
            st.run.add(bytes, began, now, synced);
            if route == Route::Log {
                st.log_rate = st.run.rate();
            }
            return;
        }
        // One that set out before the last decision is nobody's.
        let Some(trial) = &mut st.trial else { return };
        trial.add(bytes, began, now, synced);
        let (rate, usual) = (trial.rate(), st.run.rate());
        if route == Route::Log {
            st.log_rate = rate;
        }
        let least = match (trial.phase, route) {
            (Phase::Prepares(_), Route::Place) if st.run.phase != Phase::First => HELD_UP,
            _ if !st.run.settled() => UNSURE,
            _ => SLOWER,
        };
        let hopeless = trial.done.bytes >= CLEAR && rate < least * usual;
        if !hopeless && !trial.settled() {
            return;
        }
        // What the slower of the two ways costs in such a trial.
        let cost = trial.time().as_secs_f64() * (usual - rate).abs();
        let later = ((cost * WORTH) as u64).max(OFTEN);
        if rate >= usual {
            st.usual = route;
            st.every = if usual < SLOWER * rate { later * LATER } else { later };
        } else if hopeless {
            st.every = later.max(st.every * LATER);
        } else if st.run.settled() {
            st.every = later;
        }
        st.every = st.every.min(SELDOM);
        st.left = st.every;
        st.run = Run::begin(Phase::Prepares(open()), now);
        st.trial = None;
    }
}

/// A train, for what is learned of its route. Dropped before it is [stable](Sample::stable), it
/// says nothing.
pub(in crate::zil) struct Sample {
    ctx: Arc<PoolCtx>,
    route: Route,
    bytes: u64,
    began: Duration,
}

impl Sample {
    /// A train of so many bytes, of which the `large` ones may go either way.
    pub(super) fn new(ctx: &Arc<PoolCtx>, bytes: u64, large: u64) -> Sample {
        let began = ctx.env.clock.now();
        let route = ctx.log.routes.choose(large, began, || ctx.txgs.open());
        Sample { ctx: ctx.clone(), route, bytes, began }
    }
    pub(in crate::zil) fn route(&self) -> Route {
        self.route
    }
    /// It is stable.
    pub(in crate::zil) fn stable(self) {
        let (routes, txgs, now) = (&self.ctx.log.routes, &self.ctx.txgs, self.ctx.env.clock.now());
        routes.arrived(self.route, self.bytes, self.began, now, || txgs.open(), || txgs.synced());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    struct Load {
        routes: Routes,
        now: Duration,
        sent: u64,
        placed: u64,
    }

    impl Load {
        fn new() -> Load {
            Load { routes: Routes::default(), now: Duration::ZERO, sent: 0, placed: 0 }
        }
        /// Sends `n` trains of a MiB one after the other, by ways of so many MiB a second; a txg
        /// lasts for 50 of them, and its sync as long. Returns how many went in place.
        fn send(&mut self, n: u64, rate: impl Fn(Route, u64) -> u32) -> u64 {
            let before = self.placed;
            for _ in 0..n {
                let txg = Txg(self.sent / 50 + 10);
                let (route, began) = (self.routes.choose(MIB, self.now, || txg), self.now);
                self.sent += 1;
                self.placed += u64::from(route == Route::Place);
                self.now += Duration::from_secs(1) / rate(route, self.sent);
                self.routes.arrived(route, MIB, began, self.now, || txg, || Txg(txg.0 - 2));
            }
            self.placed - before
        }
    }

    fn rates(log: u32, place: u32) -> impl Fn(Route, u64) -> u32 {
        move |route, _| if route == Route::Log { log } else { place }
    }

    #[test]
    fn the_quicker_way_becomes_the_usual_one() {
        let mut load = Load::new();
        assert_eq!(load.send(FIRST / MIB, rates(10, 30)), 0, "the log is the usual way");
        let unknown = Routes::default();
        assert_eq!(unknown.choose(FIRST, Duration::ZERO, || Txg(1)), Route::Log);
        assert_eq!(
            unknown.slow_log(),
            None,
            "a trial has begun, but nothing that went through the log is stable"
        );
        assert_eq!(load.send(8, rates(10, 30)), 8, "a trial");
        // Trials of the log, less and less often.
        let placed = load.send(10_000, rates(10, 30));
        assert!(placed > 9900, "{placed}");
        assert_eq!(load.routes.slow_log(), Some(10.0 * MIB as f64));
        // The disks get something else to do.
        let placed = load.send(100_000, rates(10, 5));
        assert!(placed < 40_000, "{placed}");
        assert!(load.send(10_000, rates(10, 5)) < 500);
        assert_eq!(load.routes.slow_log(), None, "it is the quicker way");
    }

    #[test]
    fn a_quick_log_is_hardly_left_alone() {
        let mut load = Load::new();
        let placed = load.send(100_000, rates(300, 30));
        assert!(placed <= 4 * 10, "{placed}");
    }

    #[test]
    fn what_the_pool_has_still_to_write_does_not_count() {
        let mut load = Load::new();
        // In place is slow (but not clearly) until the txgs of before are synced.
        let placed = load.send(5000, |route, sent| match route {
            Route::Log => 10,
            Route::Place if sent < 100 => 6,
            Route::Place => 20,
        });
        assert!(placed > 4000, "{placed}");
    }

    #[test]
    fn a_log_that_is_quick_only_at_first_has_to_settle() {
        let mut load = Load::new();
        // As quick as memory until the first of its txgs is synced, then a little slower than in
        // place.
        let placed = load.send(5000, |route, sent| match route {
            Route::Log if sent < 150 => 15,
            Route::Log => 9,
            Route::Place => 10,
        });
        assert!(placed > 3500, "{placed}");
    }

    #[test]
    fn trains_under_way_at_once_share_their_time() {
        let mut done = Done::default();
        let ms = Duration::from_millis(1);
        for n in [0, 20] {
            for _ in 0..4 {
                done.add(1000, n * ms, (n + 40) * ms);
            }
        }
        assert_eq!((done.bytes, done.busy), (8000, 60 * ms));
    }
}
