//! Blocking I/O on a pool of threads, for where io_uring is refused.
//!
//! Threads are started as the queue needs them, up to a bound, and end when they have been idle for a while. A thread
//! takes one operation at a time: operations of one batch may each wait for the disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Enough to keep a disk's queue (NCQ has 32 slots) busy.
const MAX_THREADS: usize = 32;
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
pub(super) struct ThreadPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl ThreadPool {
    pub(super) fn submit(&self, jobs: impl Iterator<Item = Job>) {
        let mut state = self.0.state.lock();
        state.queue.extend(jobs);
        let wanted = state.queue.len();
        let wake = wanted.min(state.idle);
        let start = (wanted - wake).min(MAX_THREADS - state.threads);
        for _ in 0..start {
            let pool = self.clone();
            match thread::Builder::new().name("zilla-io".into()).spawn(move || pool.work()) {
                Ok(_) => state.threads += 1,
                // Those that run do the work, only later; without any it would never be done.
                Err(e) if state.threads == 0 => panic!("cannot start an I/O thread: {e}"),
                Err(_) => break,
            }
        }
        drop(state);
        for _ in 0..wake {
            self.0.work.notify_one();
        }
    }

    fn work(&self) {
        let mut state = self.0.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.0.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.0.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
