//! Letting a thread that would only sleep until its I/O is done do that I/O itself.
//!
//! A device's I/O is handed to the kernel or to another thread and its end told by a third, so that
//! a thread that runs many tasks is never kept. A thread that runs one ([`crate::block_on`]) gains
//! nothing from that: it sleeps meanwhile, and each handing over wakes someone, which on a virtual
//! machine takes as long as a fast disk's write. So two sides can agree. The thread says how long
//! it may be kept ([`own_thread`]); whoever submits says that this I/O is the one that is waited
//! for next, and how long such a one takes ([`waiting_here`]); and then the device does it by a
//! plain system call on the submitting thread. It is for the last of the I/Os that are waited for
//! together: those before it are already on their way.
//!
//! What is kept true: only the first submission under [`waiting_here`] is meant, not what its
//! completion starts on this thread; and a thread of the executor never blocks.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::LocalKey;
use std::time::Duration;

thread_local! {
    /// How long this thread may be kept.
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// The next submission is what it waits for, and takes about so long.
    static WAITS: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Puts a value back to what it was, also when what ran under it panics.
struct Restore<T: Copy + 'static>(&'static LocalKey<Cell<T>>, T);

impl<T: Copy> Restore<T> {
    fn set(key: &'static LocalKey<Cell<T>>, value: T) -> Restore<T> {
        Restore(key, key.replace(value))
    }
}

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs `f` on a thread that for so long has nothing else to do than what `f` waits for.
pub fn own_thread<T>(patience: Duration, f: impl FnOnce() -> T) -> T {
    let _restore = Restore::set(&PATIENCE, patience);
    f()
}

/// Runs `f`, which submits one I/O and then waits for it.
pub fn waiting_here<T>(expected: Duration, f: impl FnOnce() -> T) -> T {
    let _restore = Restore::set(&WAITS, Some(expected));
    f()
}

/// The same for a future that submits its I/O whenever it is polled.
pub struct WaitingHere<F>(pub Duration, pub F);

impl<F: Future + Unpin> Future for WaitingHere<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let expected = self.0;
        waiting_here(expected, || Pin::new(&mut self.1).poll(cx))
    }
}

/// Whether the submission that asks is to be done on this thread. Asked once for each submission.
pub(crate) fn take() -> bool {
    WAITS.take().is_some_and(|expected| PATIENCE.get() > expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_submission_of_a_patient_thread() {
        let (now, ms) = (Duration::ZERO, Duration::from_millis(1));
        assert!(!waiting_here(now, take), "a thread with other things to do");
        own_thread(ms, || {
            assert!(!take(), "nobody waits for it");
            waiting_here(now, || {
                assert!(take());
                assert!(!take(), "what comes after it");
            });
            assert!(!waiting_here(ms, take), "it takes too long");
            assert!(!take());
        });
        assert!(!waiting_here(now, take));
    }
}
