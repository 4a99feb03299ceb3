//! Worker threads: a work-stealing executor. A task woken by a worker runs next on that worker, so
//! a request that need not wait runs to completion without a thread switch.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process;
use std::sync::Arc;
use std::thread;

use async_executor::Executor;
use parking_lot::Mutex;

use crate::block_on::park_on;
use crate::completion::{Completion, IoFuture};
use crate::{BoxFuture, Spawner};

pub(super) struct Workers {
    executor: Arc<Executor<'static>>,
    threads: usize,
    /// Each completes its worker's main future, which ends the thread.
    stops: Mutex<Vec<Completion>>,
}

impl Workers {
    pub(super) fn start(threads: usize) -> Workers {
        let executor = Arc::new(Executor::new());
        let mut stops = Vec::with_capacity(threads);
        for n in 0..threads {
            let (stop, stopped) = Completion::oneshot();
            let executor = executor.clone();
            thread::Builder::new()
                .name(format!("zilla-{n}"))
                .spawn(move || work(&executor, stopped))
                .expect("cannot start a worker thread");
            stops.push(stop);
        }
        Workers { executor, threads, stops: Mutex::new(stops) }
    }
}

fn work(executor: &Executor<'static>, stopped: IoFuture) {
    // A panic that reaches this point is a bug in a task nobody waits for. State may be half
    // changed, and what is on disk is always a whole transaction group: dying is the safe way out,
    // going on is not.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut main = pin!(executor.run(stopped));
        let _stopped = park_on(|cx| main.as_mut().poll(cx));
    }));
    if ran.is_err() {
        process::abort();
    }
}

impl Spawner for Workers {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.executor.spawn(task).detach();
    }

    fn parallelism(&self) -> usize {
        self.threads
    }

    fn drive(&self, main: BoxFuture<'_, ()>) {
        // Not [`crate::block_on`]: a thread that runs many tasks does no I/O for one of them.
        let mut main = pin!(self.executor.run(main));
        park_on(|cx| main.as_mut().poll(cx));
    }
}

impl Drop for Workers {
    /// The last handle may go on a worker thread, so the threads are told and not waited for.
    fn drop(&mut self) {
        for stop in self.stops.get_mut().drain(..) {
            stop.complete(Ok(None));
        }
    }
}
