//! Devices that do not answer: what they have been given is given up, and nothing more is sent to
//! them.
//!
//! A device's I/O cannot be called back: a write may still land, and what is read still come,
//! whenever the device pleases. So who is given up is out of use at once, and taken back only when
//! it has answered all ([`Leaf::close`] waits for that), or an old write could land on what was
//! written anew meanwhile. Whoever waited for the I/O is told that it failed; the answer, if it
//! comes, is nobody's any more.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use zilla_ondisk::enums::{VdevAux, VdevState};

use super::leaf::Leaf;
use super::queue::{QOp, Sent};
use super::trouble::TroubleKind;
use super::within::{SLOW_TIMEOUT, within};

/// ETIMEDOUT.
const TIMED_OUT: i32 = 110;

fn timed_out() -> io::Error {
    io::Error::from_raw_os_error(TIMED_OUT)
}

impl Leaf {
    /// Looks for I/O that has been at the device for longer than `any`, or a write for longer than
    /// `write`, and notes it; how long the oldest of it has.
    pub fn look_for_hung(&self, any: Duration, write: Duration) -> Option<Duration> {
        let now = self.env.clock.now();
        let late = |s: &Arc<Sent>| {
            let took = now.saturating_sub(s.at);
            (took >= any || s.write && took >= write).then(|| (took, s.offset, s.len))
        };
        let queue = self.queue.lock();
        let oldest = queue.sent.iter().filter_map(late).max_by_key(|(took, ..)| *took);
        drop(queue);
        let (took, offset, len) = oldest?;
        self.note(TroubleKind::Hung(took), offset, len);
        Some(took)
    }

    /// How long the oldest I/O has been at the device.
    pub fn oldest(&self) -> Duration {
        let now = self.env.clock.now();
        let queue = self.queue.lock();
        queue.sent.iter().map(|s| now.saturating_sub(s.at)).max().unwrap_or_default()
    }

    /// Whether the device was given up and has not answered since.
    pub fn is_hung(&self) -> bool {
        self.hung.load(Ordering::Acquire)
    }

    /// Waits no longer for the device: all that it has, or should get, has failed.
    pub fn give_up(&self) {
        // Later it may have been taken out for another reason.
        let first = !self.hung.swap(true, Ordering::AcqRel);
        if first {
            self.set_unusable(VdevState::Faulted, VdevAux::ErrExceeded);
        }
        let (sent, waiting) = {
            let mut queue = self.queue.lock();
            (queue.sent.clone(), queue.empty())
        };
        if first {
            let (sent, waiting) = (sent.len(), waiting.len());
            tracing::error!(path = %self.path(), sent, waiting, "the device does not answer and is given up");
        }
        let runs = sent.iter().filter_map(|s| s.run.lock().take()).flatten();
        for io in runs.chain(waiting) {
            let errors = if matches!(io.op, QOp::Read(_)) { &self.read_errors } else { &self.write_errors };
            errors.fetch_add(1, Ordering::Relaxed);
            io.done.done(io.slot, Err(timed_out()));
        }
        self.given_up.notify(usize::MAX);
    }

    /// Waits for a flush, but not for that of a device that is given up.
    pub(super) async fn unless_hung(&self, flush: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let given_up = self.given_up.listen();
        if self.is_hung() {
            return Err(timed_out());
        }
        let _flight = Flight::begin(self);
        match select(std::pin::pin!(flush), given_up).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(timed_out()),
        }
    }

    /// Waits until the device has answered all, but for one that was given up only a while; false:
    /// it has not.
    pub(super) async fn answers(&self) -> bool {
        let idle = async {
            loop {
                let listener = self.idle.listen();
                if self.load() == 0 {
                    return;
                }
                listener.await;
            }
        };
        let mut idle = std::pin::pin!(idle);
        let given_up = self.given_up.listen();
        if !self.is_hung()
            && let Either::Left(_) = select(idle.as_mut(), given_up).await
        {
            return true;
        }
        within(&self.env, SLOW_TIMEOUT, idle).await.is_some()
    }
}

/// A flush that the device has not answered.
struct Flight<'a> {
    leaf: &'a Leaf,
    sent: Arc<Sent>,
}

impl Flight<'_> {
    fn begin(leaf: &Leaf) -> Flight<'_> {
        let at = leaf.env.clock.now();
        let sent = Arc::new(Sent { at, offset: 0, len: 0, write: true, run: Mutex::new(None) });
        leaf.queue.lock().sent.push(sent.clone());
        Flight { leaf, sent }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.leaf.queue.lock().forget(&self.sent);
    }
}
