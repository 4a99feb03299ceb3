//! The kernel's clocks, and one thread that wakes sleepers.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, clock_gettime};

use crate::{BoxFuture, Clock};

pub(super) struct RealClock {
    start: Instant,
    timer: Arc<Timer>,
}

#[derive(Default)]
struct Timer {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    /// By deadline and then a serial number, which tells equal deadlines apart.
    sleepers: BTreeMap<(Instant, u64), Waker>,
    serial: u64,
    running: bool,
    stop: bool,
}

impl RealClock {
    pub(super) fn new() -> RealClock {
        RealClock { start: Instant::now(), timer: Arc::default() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn boottime(&self) -> Duration {
        let t = clock_gettime(ClockId::Boottime);
        Duration::new(t.tv_sec.try_into().unwrap_or_default(), t.tv_nsec.try_into().unwrap_or_default())
    }

    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        // Times beyond what an `Instant` holds are cut to a year: nobody waits that long.
        let now = Instant::now();
        let deadline = now.checked_add(d).unwrap_or(now + Duration::from_secs(365 * 86_400));
        Box::pin(Sleep { timer: self.timer.clone(), deadline, key: None })
    }
}

impl Drop for RealClock {
    fn drop(&mut self) {
        self.timer.state.lock().stop = true;
        self.timer.changed.notify_one();
    }
}

struct Sleep {
    timer: Arc<Timer>,
    deadline: Instant,
    key: Option<(Instant, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let timer = self.timer.clone();
        let mut state = timer.state.lock();
        let key = match self.key {
            Some(key) => key,
            None => {
                state.serial += 1;
                let key = (self.deadline, state.serial);
                self.key = Some(key);
                key
            }
        };
        state.sleepers.insert(key, cx.waker().clone());
        if !state.running {
            // The thread starts with the first sleeper: programs that never sleep have none.
            state.running = true;
            let timer = self.timer.clone();
            thread::Builder::new()
                .name("zilla-timer".into())
                .spawn(move || run(&timer))
                .expect("cannot start the timer thread");
        } else if state.sleepers.first_key_value().is_some_and(|(first, _)| *first == key) {
            self.timer.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.timer.state.lock().sleepers.remove(&key);
        }
    }
}

fn run(timer: &Timer) {
    let mut state = timer.state.lock();
    // Sleepers outlive the clock only in tasks that are being dropped; serve them until none is
    // left.
    while !(state.stop && state.sleepers.is_empty()) {
        let now = Instant::now();
        match state.sleepers.first_key_value() {
            None => timer.changed.wait(&mut state),
            Some(((deadline, _), _)) if *deadline > now => {
                let deadline = *deadline;
                timer.changed.wait_until(&mut state, deadline);
            }
            Some(_) => {
                let later = state.sleepers.split_off(&(now, u64::MAX));
                let due = std::mem::replace(&mut state.sleepers, later);
                drop(state);
                due.into_values().for_each(Waker::wake);
                state = timer.state.lock();
            }
        }
    }
    state.running = false;
}
