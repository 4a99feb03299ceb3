//! The scheduler: one thread, tasks in random order, time that jumps.
//!
//! A task that is woken joins the ready set; the next one to poll is drawn from it, and now and
//! then made to wait first. When the set is empty, time moves to the earliest event (a sleeper or a
//! disk's completion). When there is no event either, nothing can ever happen again: that is a
//! deadlock and is reported as such.
//!
//! Locks: `state` is never held while a task is polled or dropped, an event runs or a waker is
//! called.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use zilla_env::{BoxFuture, Clock, Spawner};

use crate::rng::{SimRng, mix};

/// Why a world came to rest before its main future was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stuck {
    /// No task can run and no event will come.
    Deadlock { tasks: usize, at: Duration },
    /// More polls than the limit: most likely a loop that never waits, or waits for ever in small
    /// steps.
    PollLimit { polls: u64, at: Duration },
    /// More virtual time than the limit.
    TimeLimit { at: Duration },
    /// The power was cut at this write or flush.
    PowerCut { op: u64 },
    /// The world holds its breath at this write or flush; it can go on.
    Paused { op: u64 },
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Deadlock { tasks, at } => {
                write!(f, "deadlock at {at:?}: {tasks} tasks wait and nothing will wake them")
            }
            Stuck::PollLimit { polls, at } => write!(f, "no end in sight after {polls} polls, at {at:?}"),
            Stuck::TimeLimit { at } => write!(f, "no end in sight at {at:?} of virtual time"),
            Stuck::PowerCut { op } => write!(f, "the power was cut at write or flush {op}"),
            Stuck::Paused { op } => write!(f, "paused at write or flush {op}"),
        }
    }
}

impl std::error::Error for Stuck {}

pub(crate) struct Executor {
    state: Mutex<State>,
    running: AtomicBool,
    parallelism: usize,
    /// What the wall clock shows when virtual time starts.
    epoch: Duration,
}

struct State {
    tasks: BTreeMap<u64, Option<BoxFuture<'static, ()>>>,
    ready: Vec<Arc<TaskWaker>>,
    events: BTreeMap<(Duration, u64), Event>,
    serial: u64,
    now: Duration,
    rng: SimRng,
    /// One of [`LATE`].
    late: u64,
    polls: u64,
    trace: u64,
    stuck: Option<Stuck>,
    max_polls: u64,
    max_time: Duration,
}

impl State {
    /// How late the next turn comes, if it does.
    fn late(&mut self) -> Option<Duration> {
        let late = self.late != u64::MAX && self.rng.one_in(self.late);
        late.then(|| Duration::from_nanos(self.rng.below(LATE_FOR.as_nanos() as u64)))
    }
}

enum Event {
    Wake(Waker),
    Ready(Arc<TaskWaker>),
    Call(Box<dyn FnOnce() + Send>),
}

const MAIN: u64 = 0;

/// Polling takes no virtual time. So that tasks meet in the middle of each other's work all the
/// same, one turn in so many (as the seed chooses) comes late, and so does one piece of long work.
const LATE: [u64; 4] = [2, 10, 40, u64::MAX];
const LATE_FOR: Duration = Duration::from_millis(2);

struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    executor: Weak<Executor>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(executor) = self.executor.upgrade()
            && !self.queued.swap(true, Ordering::AcqRel)
        {
            executor.state.lock().ready.push(self);
        }
    }
}

impl Executor {
    pub(crate) fn new(
        seed: u64,
        parallelism: usize,
        epoch: Duration,
        max_polls: u64,
        max_time: Duration,
        punctual: bool,
    ) -> Arc<Executor> {
        let late = if punctual {
            u64::MAX
        } else {
            LATE[SimRng::new(seed, "late").below(LATE.len() as u64) as usize]
        };
        let state = State {
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            events: BTreeMap::new(),
            serial: MAIN,
            now: Duration::ZERO,
            rng: SimRng::new(seed, "schedule"),
            late,
            polls: 0,
            trace: mix(seed),
            stuck: None,
            max_polls,
            max_time,
        };
        Arc::new(Executor { state: Mutex::new(state), running: AtomicBool::new(false), parallelism, epoch })
    }

    /// Runs the world until `main` is done or nothing moves any more. Other tasks stay for the next
    /// call.
    pub(crate) fn run<T>(self: &Arc<Self>, main: impl Future<Output = T>) -> Result<T, Stuck> {
        assert!(
            !self.running.swap(true, Ordering::AcqRel),
            "the simulator cannot block inside a task: await instead"
        );
        let stop = Running(self);
        let mut main = pin!(main);
        let main_waker = self.waker(MAIN);
        main_waker.clone().wake();
        let result = loop {
            let next = match self.next() {
                Ok(next) => next,
                Err(stuck) => break Err(stuck),
            };
            next.queued.store(false, Ordering::Release);
            if next.id != MAIN {
                self.poll_task(&next);
            } else if Arc::ptr_eq(&next, &main_waker) {
                let waker = Waker::from(next);
                if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                    break Ok(value);
                }
            }
        };
        drop(stop);
        result
    }

    /// Runs the world until `done` is set by some task, or nothing moves any more. Unlike
    /// [`Executor::run`] it adds nothing of its own to the schedule, so that a world which is left
    /// and entered again takes the same course as one that is not.
    pub(crate) fn run_until(self: &Arc<Self>, done: &AtomicBool) -> Result<(), Stuck> {
        assert!(!self.running.swap(true, Ordering::AcqRel), "the simulator cannot block inside a task");
        let _stop = Running(self);
        while !done.load(Ordering::Acquire) {
            let next = self.next()?;
            next.queued.store(false, Ordering::Release);
            self.poll_task(&next);
        }
        Ok(())
    }

    /// The task to poll next, after the events that had to happen first.
    fn next(&self) -> Result<Arc<TaskWaker>, Stuck> {
        loop {
            let mut state = self.state.lock();
            if let Some(stuck) = &state.stuck {
                return Err(stuck.clone());
            }
            let at = state.now;
            if state.polls >= state.max_polls {
                return Err(Stuck::PollLimit { polls: state.polls, at });
            }
            let ready = state.ready.len() as u64;
            if ready > 0 {
                let index = state.rng.below(ready) as usize;
                let task = state.ready.swap_remove(index);
                if let Some(later) = state.late() {
                    // It stays queued, and is ready again then.
                    state.serial += 1;
                    let key = (at.saturating_add(later), state.serial);
                    state.events.insert(key, Event::Ready(task));
                    continue;
                }
                state.polls += 1;
                state.trace = mix(state.trace ^ task.id);
                return Ok(task);
            }
            let Some(((when, serial), event)) = state.events.pop_first() else {
                return Err(Stuck::Deadlock { tasks: state.tasks.len(), at });
            };
            if when > state.max_time {
                return Err(Stuck::TimeLimit { at });
            }
            state.now = state.now.max(when);
            state.trace = mix(state.trace ^ when.as_nanos() as u64 ^ serial.rotate_left(32));
            drop(state);
            match event {
                Event::Wake(waker) => waker.wake(),
                Event::Ready(task) => self.state.lock().ready.push(task),
                Event::Call(f) => f(),
            }
        }
    }

    fn poll_task(&self, task: &Arc<TaskWaker>) {
        // A late wake of a finished task finds nothing.
        let Some(mut future) = self.state.lock().tasks.get_mut(&task.id).and_then(Option::take) else {
            return;
        };
        let waker = Waker::from(task.clone());
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = self.state.lock();
        if done {
            state.tasks.remove(&task.id);
        } else if let Some(slot) = state.tasks.get_mut(&task.id) {
            *slot = Some(future);
            return;
        }
        // Dropped without the lock: a future's destructor may wake or spawn.
        drop(state);
        drop(future);
    }

    fn waker(self: &Arc<Self>, id: u64) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { id, queued: AtomicBool::new(false), executor: Arc::downgrade(self) })
    }

    pub(crate) fn spawn(self: &Arc<Self>, task: BoxFuture<'static, ()>) {
        let mut state = self.state.lock();
        state.serial += 1;
        let id = state.serial;
        state.tasks.insert(id, Some(task));
        drop(state);
        self.waker(id).wake();
    }

    pub(crate) fn at(&self, delay: Duration, f: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.serial += 1;
        let key = (state.now.saturating_add(delay), state.serial);
        state.events.insert(key, Event::Call(Box::new(f)));
    }

    pub(crate) fn now(&self) -> Duration {
        self.state.lock().now
    }

    /// Ends the world: nothing is polled any more. The first reason stands.
    pub(crate) fn halt(&self, why: Stuck) {
        self.state.lock().stuck.get_or_insert(why);
    }

    /// Goes on after a pause.
    pub(crate) fn resume(&self) {
        let stuck = &mut self.state.lock().stuck;
        if matches!(stuck, Some(Stuck::Paused { .. })) {
            *stuck = None;
        }
    }

    /// Folds something that happened into the trace.
    pub(crate) fn record(&self, what: u64) {
        let mut state = self.state.lock();
        state.trace = mix(state.trace ^ what);
    }

    pub(crate) fn trace(&self) -> u64 {
        self.state.lock().trace
    }

    pub(crate) fn polls(&self) -> u64 {
        self.state.lock().polls
    }

    /// Drops all tasks and events, as a machine that loses power does. Destructors may still wake
    /// and spawn; what they start is dropped too.
    pub(crate) fn clear(&self) {
        loop {
            let mut state = self.state.lock();
            let tasks = std::mem::take(&mut state.tasks);
            let events = std::mem::take(&mut state.events);
            let ready = std::mem::take(&mut state.ready);
            drop(state);
            if tasks.is_empty() && events.is_empty() && ready.is_empty() {
                return;
            }
        }
    }
}

/// Clears the flag also when a task's panic leaves `run`.
struct Running<'a>(&'a Executor);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// The executor as the engine sees it. Weak, since tasks hold it and the executor holds tasks.
#[derive(Clone)]
pub(crate) struct Handle(pub Weak<Executor>);

impl Handle {
    fn executor(&self) -> Arc<Executor> {
        self.0.upgrade().expect("the simulated world has ended")
    }
}

impl Spawner for Handle {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // A destructor that spawns while the world ends has nothing left to run it.
        if let Some(executor) = self.0.upgrade() {
            executor.spawn(task);
        }
    }

    fn parallelism(&self) -> usize {
        self.executor().parallelism
    }

    fn interlude(&self) -> Option<BoxFuture<'static, ()>> {
        let later = self.executor().state.lock().late()?;
        Some(self.sleep_for(later))
    }

    fn drive(&self, main: BoxFuture<'_, ()>) {
        if let Err(stuck) = self.executor().run(main) {
            panic!("{stuck}");
        }
    }
}

impl Handle {
    fn sleep_for(&self, d: Duration) -> BoxFuture<'static, ()> {
        let deadline = self.now().saturating_add(d);
        Box::pin(Sleep { handle: self.clone(), deadline, key: None })
    }
}

impl Clock for Handle {
    fn now(&self) -> Duration {
        self.0.upgrade().map_or(Duration::ZERO, |e| e.now())
    }

    fn wall(&self) -> Duration {
        self.0.upgrade().map_or(Duration::ZERO, |e| e.epoch + e.now())
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.sleep_for(d)
    }
}

struct Sleep {
    handle: Handle,
    deadline: Duration,
    key: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let executor = self.handle.executor();
        let mut state = executor.state.lock();
        if state.now >= self.deadline {
            return Poll::Ready(());
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                state.serial += 1;
                (self.deadline, state.serial)
            }
        };
        state.events.insert(key, Event::Wake(cx.waker().clone()));
        drop(state);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(key), Some(executor)) = (self.key, self.handle.0.upgrade()) {
            let event = executor.state.lock().events.remove(&key);
            drop(event);
        }
    }
}
