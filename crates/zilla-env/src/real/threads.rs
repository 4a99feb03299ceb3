//! Blocking I/O on a pool of threads, for where io_uring is refused or out of place.
//!
//! Each device has its own pool, so that one that does not answer keeps nobody's threads but its
//! own. Threads are started as the queue needs them, up to a bound, and end when they have been
//! idle for a while. A thread takes one operation at a time: operations of one batch may each wait
//! for the disk.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::apart::{OwnTable, or_abort};

/// Of one device. The queues above give it ten of a kind at once (`zfs_vdev_*_max_active`), seldom
/// of two kinds.
const MAX_THREADS: usize = 16;
/// Of all devices together, beyond the first of each: many devices that do not answer may not use
/// up what the process may have. Every device gets on with one.
const MOST_EXTRA: usize = 256;
const IDLE: Duration = Duration::from_secs(5);
/// How long a pool that ends waits for its threads. They have nothing to do but to close what they
/// hold, unless one is kept by a device that does not answer.
const ENDING: Duration = Duration::from_millis(200);

/// How many there are. Taken with the state of a pool held, never the other way round.
static EXTRA: Mutex<usize> = Mutex::new(0);

fn take_extra() -> bool {
    let mut extra = EXTRA.lock();
    let free = *extra < MOST_EXTRA;
    *extra += usize::from(free);
    free
}

fn give_back_extra() {
    *EXTRA.lock() -= 1;
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Clone)]
pub(super) struct ThreadPool(Arc<Shared>);

struct Shared {
    most: usize,
    /// Its threads have descriptor tables of their own, with just these.
    own: Option<Vec<RawFd>>,
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Threads that take no job any more and close what they hold.
    closing: usize,
    stop: bool,
}

impl Default for ThreadPool {
    fn default() -> ThreadPool {
        ThreadPool::with(MAX_THREADS, None)
    }
}

impl ThreadPool {
    fn with(most: usize, own: Option<Vec<RawFd>>) -> ThreadPool {
        let (state, work, ended) = (Mutex::default(), Condvar::new(), Condvar::new());
        ThreadPool(Arc::new(Shared { most, own, state, work, ended }))
    }

    /// A pool whose threads hold no descriptor of the process but these (see [`super::apart`]).
    pub(super) fn apart(most: usize, keep: Vec<RawFd>) -> ThreadPool {
        ThreadPool::with(most, Some(keep))
    }

    pub(super) fn submit(&self, jobs: impl Iterator<Item = Job>) {
        let mut state = self.0.state.lock();
        state.queue.extend(jobs);
        let wanted = state.queue.len();
        let wake = wanted.min(state.idle);
        let start = (wanted - wake).min(self.0.most - state.threads);
        for _ in 0..start {
            let extra = state.threads > 0;
            if extra && !take_extra() {
                break;
            }
            let pool = self.clone();
            match thread::Builder::new().name("zilla-io".into()).spawn(move || pool.run()) {
                Ok(_) => state.threads += 1,
                // Those that run do the work, only later.
                Err(_) if extra => {
                    give_back_extra();
                    break;
                }
                Err(e) if self.0.own.is_some() => panic!("cannot start an I/O thread: {e}"),
                // Without any it would never be done: better slowly, by who wants it.
                Err(_) => {
                    let jobs = std::mem::take(&mut state.queue);
                    drop(state);
                    return jobs.into_iter().for_each(|job| job());
                }
            }
        }
        drop(state);
        for _ in 0..wake {
            self.0.work.notify_one();
        }
    }

    /// Ends its threads once the queue is empty.
    pub(super) fn close(&self) {
        self.0.state.lock().stop = true;
        self.0.work.notify_all();
    }

    /// The same. When this returns they have closed what they held, but for one that is kept.
    pub(super) fn stop(&self) {
        let until = Instant::now() + ENDING;
        self.close();
        let mut state = self.0.state.lock();
        while state.threads + state.closing > 0 {
            if self.0.ended.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    fn run(&self) {
        let table = self.0.own.as_ref().map(|keep| OwnTable::enter(keep));
        self.work(table.is_some());
        drop(table);
        self.0.state.lock().closing -= 1;
        self.0.ended.notify_all();
    }

    fn work(&self, apart: bool) {
        let mut state = self.0.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                if apart {
                    or_abort(job)
                } else {
                    job()
                }
                state = self.0.state.lock();
                continue;
            }
            let mut timed_out = false;
            if !state.stop {
                state.idle += 1;
                timed_out = self.0.work.wait_for(&mut state, IDLE).timed_out();
                state.idle -= 1;
            }
            if (timed_out || state.stop) && state.queue.is_empty() {
                state.threads -= 1;
                // Whichever it was: of those that are left one is the first.
                if state.threads > 0 {
                    give_back_extra();
                }
                state.closing += 1;
                return;
            }
        }
    }
}
