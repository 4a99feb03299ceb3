//! Runs one future on the calling thread, parking it in between. For threads outside the executor.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

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

pub fn block_on<T>(main: impl Future<Output = T>) -> T {
    let mut main = pin!(main);
    park_on(|cx| own_thread(|| main.as_mut().poll(cx)))
}

/// Polls until it is ready.
pub(crate) fn park_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(unpark.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut cx) {
            return value;
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}
