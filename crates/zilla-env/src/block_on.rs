//! Runs one future on the calling thread, parking it in between. For threads outside the executor.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::own_thread;

struct Unpark {
    thread: Thread,
    /// Spares the system call when the thread has not parked yet.
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

/// Runs it to its end.
pub fn block_on<T>(main: impl Future<Output = T>) -> T {
    let mut main = pin!(main);
    park_on(|cx| own_thread(Duration::MAX, || main.as_mut().poll(cx)))
}

/// Runs it for so long at most, while nothing it does keeps the thread longer; None: it goes on
/// when it is polled again.
pub fn block_for<T>(patience: Duration, main: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    let until = Instant::now() + patience;
    park_until(Some(until), |cx| own_thread(patience, || Pin::new(&mut *main).poll(cx)))
}

/// Polls until it is ready.
pub(crate) fn park_on<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    match park_until(None, poll) {
        Some(value) => value,
        None => unreachable!("nothing ends it but being ready"),
    }
}

fn park_until<T>(until: Option<Instant>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(unpark.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut cx) {
            return Some(value);
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            let Some(until) = until else {
                thread::park();
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            thread::park_timeout(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_has_an_end_and_the_work_none() {
        let (go, went) = std::sync::mpsc::channel::<()>();
        let mut polls = 0;
        let mut work = std::future::poll_fn(|_| {
            polls += 1;
            if went.try_recv().is_ok() { Poll::Ready(7) } else { Poll::Pending }
        });
        assert_eq!(block_for(Duration::from_millis(1), &mut work), None);
        go.send(()).unwrap();
        assert_eq!(block_for(Duration::from_millis(1), &mut work), Some(7));
        assert_eq!(polls, 2, "it sleeps in between");
    }
}
