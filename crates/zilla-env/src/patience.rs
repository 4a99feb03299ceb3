//! Letting a thread that would only sleep until its I/O is done do that I/O itself.
//!
//! A device's I/O is handed to the kernel or to another thread and its end told by a third, so that a thread that runs many tasks is never
//! kept. A thread that runs one ([`crate::block_on`]) gains nothing from that: it sleeps meanwhile, and each handing over wakes
//! someone, which on a virtual machine takes as long as a fast disk's write. So two sides can agree. The thread says that it has
//! nothing else to do ([`own_thread`]); whoever submits says that this I/O is the one that is waited for next ([`waiting_here`]); and then
//! the device does it by a plain system call on the submitting thread. It is for the last of the I/Os that are waited for together:
//! those before it are already on their way.
//!
//! What is kept true: only the first submission under [`waiting_here`] is meant, not what its completion starts on this thread;
//! and a thread of the executor never blocks.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

thread_local! {
    /// The thread runs nothing but what it waits for.
    static OWN: Cell<bool> = const { Cell::new(false) };
    /// The next submission is what it waits for.
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Puts a flag back to what it was, also when what ran under it panics.
struct Restore(&'static std::thread::LocalKey<Cell<bool>>, bool);

impl Restore {
    fn set(key: &'static std::thread::LocalKey<Cell<bool>>) -> Restore {
        Restore(key, key.replace(true))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs `f` on a thread that has nothing else to do than what `f` waits for.
pub fn own_thread<T>(f: impl FnOnce() -> T) -> T {
    let _restore = Restore::set(&OWN);
    f()
}

/// Runs `f`, which submits one I/O and then waits for it.
pub fn waiting_here<T>(f: impl FnOnce() -> T) -> T {
    let _restore = Restore::set(&WAITS);
    f()
}

/// The same for a future that submits its I/O whenever it is polled.
pub struct WaitingHere<F>(pub F);

impl<F: Future + Unpin> Future for WaitingHere<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        waiting_here(|| Pin::new(&mut self.0).poll(cx))
    }
}

/// Whether the submission that asks is to be done on this thread. Asked once for each submission.
pub(crate) fn take() -> bool {
    WAITS.take() && OWN.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_submission_of_a_thread_of_its_own() {
        assert!(!waiting_here(take), "a thread with other things to do");
        own_thread(|| {
            assert!(!take(), "nobody waits for it");
            waiting_here(|| {
                assert!(take());
                assert!(!take(), "what comes after it");
            });
            assert!(!take());
        });
        assert!(!waiting_here(take));
    }
}
