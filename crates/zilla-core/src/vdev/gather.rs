//! Waiting for a few leaf I/Os at once: one allocation and one wake-up for all columns of a read.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;

/// Who is told that a leaf I/O is done. Called on whatever thread completes it: short, and without
/// locks of a submitter.
pub trait IoDone: Send + Sync {
    fn done(&self, slot: usize, result: io::Result<Bytes>);
}

pub type Results = SmallVec<[Option<io::Result<Bytes>>; 4]>;

struct State {
    left: usize,
    results: Results,
    waker: Option<Waker>,
}

/// Collects the results of `n` I/Os.
pub struct Gather(Mutex<State>);

impl Gather {
    pub fn new(n: usize) -> Arc<Gather> {
        let results = std::iter::repeat_with(|| None).take(n).collect();
        Arc::new(Gather(Mutex::new(State { left: n, results, waker: None })))
    }

    /// Waits for all. Slots for which nothing was submitted must be completed by hand.
    pub fn wait(self: &Arc<Self>) -> GatherFuture {
        GatherFuture(self.clone())
    }
}

impl IoDone for Gather {
    fn done(&self, slot: usize, result: io::Result<Bytes>) {
        let mut state = self.0.lock();
        if let Some(r) = state.results.get_mut(slot)
            && r.is_none()
        {
            *r = Some(result);
            state.left -= 1;
            if state.left == 0 {
                let waker = state.waker.take();
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }
}

pub struct GatherFuture(Arc<Gather>);

impl Future for GatherFuture {
    type Output = Results;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Results> {
        let mut state = self.0.0.lock();
        if state.left == 0 {
            return Poll::Ready(std::mem::take(&mut state.results));
        }
        match &mut state.waker {
            Some(w) if w.will_wake(cx.waker()) => {}
            w => *w = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
