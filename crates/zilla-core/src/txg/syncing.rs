//! Who is the sync of a txg: code that a read's failure would cost the txg.
//!
//! Reading blocks is the same for everybody but for one thing: what a user cannot read is an error,
//! and what a sync cannot read because devices are away is waited for, since the txg, and with it
//! the pool's service, would be lost. Between the sync and the block lie all floors of the engine,
//! none of which knows the difference. So it is kept beside them: whatever runs in [`syncing`], and
//! in the tasks that it begins by [`carried`], is the sync's.
//!
//! It says nothing about what is on disk, so a crash concerns it not.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;

thread_local! {
    /// What this thread polls right now is a sync's.
    static SYNCING: Cell<bool> = const { Cell::new(false) };
}

/// What the thread did before, taken up again when this goes.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        SYNCING.set(self.0);
    }
}

/// Whether the caller is the sync of a txg.
pub fn in_sync() -> bool {
    SYNCING.get()
}

/// Runs the sync of a txg.
pub async fn syncing<F: Future>(sync: F) -> F::Output {
    run(true, sync).await
}

/// Has a task, wherever it runs, be the sync's if its maker is.
pub fn carried<F: Future>(task: F) -> impl Future<Output = F::Output> {
    run(in_sync(), task)
}

async fn run<F: Future>(on: bool, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _before = Before(SYNCING.replace(on));
        future.as_mut().poll(cx)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::ready;

    #[test]
    fn only_what_the_sync_polls_is_its_own() {
        assert!(!in_sync());
        let mut sync = pin!(syncing(async {
            assert!(in_sync());
            let task = carried(async { in_sync() });
            let mut first = true;
            poll_fn(|_| {
                if std::mem::take(&mut first) { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            })
            .await;
            assert!(in_sync());
            (task,)
        }));
        assert!(sync.as_mut().now_or_never().is_none());
        // The thread does something else meanwhile.
        assert!(!in_sync());
        let (task,) = sync.as_mut().now_or_never().expect("it goes on");
        assert!(!in_sync());
        assert_eq!(task.now_or_never(), Some(true));
        assert_eq!(carried(async { in_sync() }).now_or_never(), Some(false));
        assert_eq!(syncing(carried(ready(1))).now_or_never(), Some(1));
    }
}
