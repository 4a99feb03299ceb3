//! How an I/O says that it is done.
//!
//! Three ways, by cost: a slot of a batch (one allocation for many I/Os, one wake-up for all), a
//! oneshot slot (one allocation), a boxed closure (for layers that act on completion without a
//! task, such as a vdev queue). A completion dropped without being called reports an error: a
//! backend cannot lose an I/O silently.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::{IoBuf, IoResult};

/// Called once with an I/O's result.
pub struct Completion(Inner);

enum Inner {
    Call(Box<dyn FnOnce(IoResult) + Send>),
    One(Arc<Mutex<Slot>>),
    Many(Arc<Batch>, usize),
    Done,
}

enum Slot {
    Empty,
    Waiting(Waker),
    Ready(IoResult),
    Taken,
}

struct Batch {
    left: AtomicUsize,
    results: Mutex<BatchState>,
}

struct BatchState {
    results: Vec<IoResult>,
    waker: Option<Waker>,
}

impl Completion {
    /// Runs `f` on whatever thread completes the I/O, possibly inside `submit`: it must be short
    /// and take no lock that its submitter holds.
    pub fn call(f: impl FnOnce(IoResult) + Send + 'static) -> Completion {
        Completion(Inner::Call(Box::new(f)))
    }

    /// A completion and the future that waits for it.
    pub fn oneshot() -> (Completion, IoFuture) {
        let slot = Arc::new(Mutex::new(Slot::Empty));
        (Completion(Inner::One(slot.clone())), IoFuture(slot))
    }

    /// `n` completions, and one future for all their results in order.
    pub fn batch(n: usize) -> (impl Iterator<Item = Completion>, BatchFuture) {
        let results = (0..n).map(|_| Err(lost())).collect();
        let batch = Arc::new(Batch {
            left: AtomicUsize::new(n),
            results: Mutex::new(BatchState { results, waker: None }),
        });
        let each = batch.clone();
        ((0..n).map(move |i| Completion(Inner::Many(each.clone(), i))), BatchFuture(batch))
    }

    pub fn complete(mut self, result: IoResult) {
        self.finish(result);
    }

    fn finish(&mut self, result: IoResult) {
        match std::mem::replace(&mut self.0, Inner::Done) {
            Inner::Done => {}
            Inner::Call(f) => f(result),
            Inner::One(slot) => {
                let old = std::mem::replace(&mut *slot.lock(), Slot::Ready(result));
                if let Slot::Waiting(waker) = old {
                    waker.wake();
                }
            }
            Inner::Many(batch, i) => {
                if let Some(slot) = batch.results.lock().results.get_mut(i) {
                    *slot = result;
                }
                if batch.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let waker = batch.results.lock().waker.take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !matches!(self.0, Inner::Done) {
            self.finish(Err(lost()));
        }
    }
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the device dropped an I/O without completing it")
}

/// Waits for one I/O. Dropping it abandons the result, not the I/O.
pub struct IoFuture(Arc<Mutex<Slot>>);

impl Future for IoFuture {
    type Output = IoResult;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult> {
        let mut slot = self.0.lock();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Ready(result) => Poll::Ready(result),
            Slot::Taken => panic!("IoFuture polled after it was ready"),
            Slot::Waiting(waker) if waker.will_wake(cx.waker()) => {
                *slot = Slot::Waiting(waker);
                Poll::Pending
            }
            Slot::Empty | Slot::Waiting(_) => {
                *slot = Slot::Waiting(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Waits for a read and yields its buffer.
pub struct ReadFuture(pub(crate) IoFuture);

impl Future for ReadFuture {
    type Output = io::Result<IoBuf>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|r| r?.ok_or_else(lost))
    }
}

/// Waits for an I/O that yields nothing but success.
pub struct UnitFuture(pub(crate) IoFuture);

impl Future for UnitFuture {
    type Output = io::Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|r| r.map(drop))
    }
}

/// Waits for a whole batch; results are in the order of submission.
pub struct BatchFuture(Arc<Batch>);

impl Future for BatchFuture {
    type Output = Vec<IoResult>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The waker is stored under the lock before `left` is read, and the last completion
        // decrements `left` before it takes the lock for the waker: one of the two sees the other.
        let mut state = self.0.results.lock();
        if self.0.left.load(Ordering::Acquire) == 0 {
            return Poll::Ready(std::mem::take(&mut state.results));
        }
        match &mut state.waker {
            Some(w) if w.will_wake(cx.waker()) => {}
            w => *w = Some(cx.waker().clone()),
        }
        if self.0.left.load(Ordering::Acquire) == 0 {
            return Poll::Ready(std::mem::take(&mut state.results));
        }
        Poll::Pending
    }
}
