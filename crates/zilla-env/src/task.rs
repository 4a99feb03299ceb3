//! Results of tasks, and timeouts. A task's panic is carried to whoever waits for it: a bug shows
//! where it is awaited and not as a wait without end.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::BoxFuture;

/// Lets other tasks of the same thread have a turn.
pub async fn yield_now() {
    let mut first = true;
    let turn = poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
    });
    turn.await;
}

enum State<T> {
    Running(Option<Waker>),
    Done(Result<T, Box<dyn Any + Send>>),
    /// The executor dropped the task unfinished (it is shutting down).
    Dropped,
}

/// The future of a spawned task's result.
pub struct JoinHandle<T>(Arc<Mutex<State<T>>>);

impl<T: Send + 'static> JoinHandle<T> {
    /// Splits `task` into what a spawner runs and the handle to its result.
    pub fn wrap(task: impl Future<Output = T> + Send + 'static) -> (BoxFuture<'static, ()>, JoinHandle<T>) {
        let state = Arc::new(Mutex::new(State::Running(None)));
        let guard = Guard(state.clone());
        let run = async move {
            let guard = guard;
            let result = AssertUnwindSafe(task).catch_unwind().await;
            guard.set(State::Done(result));
        };
        (Box::pin(run), JoinHandle(state))
    }

    pub fn is_finished(&self) -> bool {
        !matches!(*self.0.lock(), State::Running(_))
    }
}

/// Tells the waiter when the task goes away, whichever way.
struct Guard<T>(Arc<Mutex<State<T>>>);

impl<T> Guard<T> {
    fn set(&self, new: State<T>) {
        let mut state = self.0.lock();
        if let State::Running(waker) = &mut *state {
            let waker = waker.take();
            *state = new;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        self.set(State::Dropped);
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        match &mut *state {
            State::Running(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => match std::mem::replace(&mut *state, State::Dropped) {
                State::Done(Ok(value)) => Poll::Ready(value),
                State::Done(Err(panic)) => {
                    drop(state);
                    resume_unwind(panic)
                }
                // Nothing will ever come; the waiter is being shut down with the executor, or
                // polled too often.
                State::Running(_) | State::Dropped => Poll::Pending,
            },
        }
    }
}

/// The time of [`crate::Env::timeout`] was up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

impl std::error::Error for Elapsed {}

pub(crate) async fn timeout<T>(
    mut sleep: BoxFuture<'static, ()>,
    work: impl Future<Output = T>,
) -> Result<T, Elapsed> {
    let mut work = pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| Err(Elapsed)),
    })
    .await
}
