//! Which way large data go where there is a log device: through it, or straight to where they will stay.
//!
//! A log device is there to be quicker than the pool. For large data it often is not: a few USB sticks write fewer bytes a second than the disks
//! that they were added to, and what goes through them is written twice. What is quicker depends on both, on how many write and on
//! what else is going on; so it is tried. Large data go the *usual* way, at first the log; now and then they go the other way for a *trial*, and if
//! that is quicker it is the usual way from then on.
//!
//! What went into the log the pool has still to write, and is the slower for it. So a trial counts only when the txg that was open at its
//! beginning is synced. But it ends as soon as it is clearly slower, which costs a quick log a few MiB; and the more it has cost, and the more of
//! them have changed nothing, the later is the next.
//!
//! A way's rate is that of all trains while large data take it: their bytes by the time during which one or more of them were under way. It is
//! kept for a pool, not for a dataset: the devices are the pool's.
//!
//! Nothing here touches what is stable: both ways are, when the commit returns.

use crate::spa::PoolCtx;
use crate::types::Txg;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Bytes before a trial, at least and at most.
const OFTEN: u64 = 32 << 20;
const SELDOM: u64 = 64 << 30;
/// Before a trial so many times what the usual way would have done during the last.
const WORTH: f64 = 16.0;
/// Bytes that a trial is judged by, and those after which it may be given up.
const TRIAL: u64 = 32 << 20;
const CLEAR: u64 = 4 << 20;
/// A trial in place is given up at less than this share of the log's rate: what went into the log holds it up.
const HELD_UP: f64 = 0.25;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
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

struct Trial {
    done: Done,
    /// Until this txg is synced what it does is only preparation.
    counts_after: Option<Txg>,
    /// How long that took.
    prepared: Duration,
}

struct State {
    usual: Route,
    done: Done,
    /// Bytes to the next trial, and how many there were from the last.
    left: u64,
    every: u64,
    trial: Option<Trial>,
}

/// A pool's choice.
pub struct Routes(Mutex<State>);

impl Default for Routes {
    fn default() -> Routes {
        let (usual, done) = (Route::Log, Done::default());
        Routes(Mutex::new(State { usual, done, left: OFTEN, every: OFTEN, trial: None }))
    }
}

impl Routes {
    /// The way of a train's large data, of which there are so many bytes.
    fn choose(&self, large: u64, open: impl Fn() -> Txg) -> Route {
        let mut st = self.0.lock();
        if st.trial.is_some() {
            return st.usual.other();
        }
        st.left = st.left.saturating_sub(large);
        if st.left == 0 {
            let (done, prepared) = (Done::default(), Duration::ZERO);
            st.trial = Some(Trial { done, counts_after: Some(open()), prepared });
        }
        st.usual
    }

    /// A train of so many bytes is stable.
    fn arrived(&self, route: Route, bytes: u64, began: Duration, now: Duration, synced: impl Fn() -> Txg) {
        let mut st = self.0.lock();
        let st = &mut *st;
        if route == st.usual {
            st.done.add(bytes, began, now);
            return;
        }
        // One that set out before the last decision is nobody's.
        let Some(trial) = &mut st.trial else { return };
        trial.done.add(bytes, began, now);
        let (rate, usual) = (trial.done.rate(), st.done.rate());
        let least =
            if route == Route::Place && trial.counts_after.is_some() { HELD_UP * usual } else { usual };
        let hopeless = trial.done.bytes >= CLEAR && rate < least;
        if !hopeless && trial.counts_after.is_some_and(|txg| synced() >= txg) {
            trial.prepared = trial.done.busy;
            trial.done = Done { last: now, ..Done::default() };
            trial.counts_after = None;
        }
        if !hopeless && (trial.counts_after.is_some() || trial.done.bytes < TRIAL) {
            return;
        }
        if !hopeless {
            st.usual = route;
            st.every = OFTEN;
        } else {
            let cost = (trial.prepared + trial.done.busy).as_secs_f64() * usual;
            st.every = (st.every * 2).max((cost * WORTH) as u64).min(SELDOM);
        }
        st.left = st.every;
        st.done = Done { last: now, ..Done::default() };
        st.trial = None;
    }
}

/// A train, for what is learnt of its way. Dropped unless it has [arrived](Trip::arrived), it says nothing.
pub(super) struct Trip {
    ctx: Arc<PoolCtx>,
    route: Route,
    bytes: u64,
    began: Duration,
}

impl Trip {
    /// A train of so many bytes, of which the `large` ones may go either way.
    pub(super) fn new(ctx: &Arc<PoolCtx>, bytes: u64, large: u64) -> Trip {
        let route = ctx.routes.choose(large, || ctx.txgs.open());
        Trip { ctx: ctx.clone(), route, bytes, began: ctx.env.clock.now() }
    }
    pub(super) fn route(&self) -> Route {
        self.route
    }
    /// It is stable.
    pub(super) fn arrived(self) {
        let now = self.ctx.env.clock.now();
        self.ctx.routes.arrived(self.route, self.bytes, self.began, now, || self.ctx.txgs.synced());
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
        /// Sends `n` trains of a MiB one after the other, by ways of so many MiB a second; a txg lasts for 50 of them, and its sync as
        /// long. Returns how many went in place.
        fn send(&mut self, n: u64, rate: impl Fn(Route, u64) -> u32) -> u64 {
            let before = self.placed;
            for _ in 0..n {
                let txg = Txg(self.sent / 50 + 10);
                let (route, began) = (self.routes.choose(MIB, || txg), self.now);
                self.sent += 1;
                self.placed += u64::from(route == Route::Place);
                self.now += Duration::from_secs(1) / rate(route, self.sent);
                self.routes.arrived(route, MIB, began, self.now, || Txg(txg.0 - 2));
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
        assert_eq!(load.send(32, rates(10, 30)), 0, "the log is the usual way");
        // Trials of the log, less and less often.
        let placed = load.send(10_000, rates(10, 30));
        assert!(placed > 9900, "{placed}");
        // The disks get something else to do.
        let placed = load.send(100_000, rates(10, 5));
        assert!(placed < 40_000, "{placed}");
        assert!(load.send(10_000, rates(10, 5)) < 500);
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
