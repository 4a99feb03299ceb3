//! Making a leaf's writes stable when several ask for it at once.
//!
//! The sync of a txg and the intent log flush the same leaves at the same time. A flush covers the
//! writes that had completed when it was sent; whoever asks while one that covers him is under way
//! waits for that one, and whoever finds everything stable waits for nothing.
//!
//! A failed flush is final: what it covered may be lost, and another flush could succeed without
//! it. So everybody who wrote something takes a [`mark`](Flushes::mark) before, and gets an error
//! if any flush failed since.
//!
//! Nobody waits for a repair to be stable. Its block is of another txg than the one whose flush
//! fails, so the births of what was repaired are kept until the next flush of a txg, which enters
//! into the leaf's DTL those that it may have lost ([`Repaired`]). (That of a repair whose write
//! fails is entered at once.) Not the txg's own, nor later ones: all of them is written again then,
//! and of a txg who lacks it is for [`VdevTree::flush_all`](super::VdevTree::flush_all) to say,
//! which sees whether enough others do not.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use event_listener::Event;
use parking_lot::Mutex;

use super::leaf::{Leaf, no_device};
use super::stats::IoKind;
use crate::inject;
use crate::types::{TXG_CONCURRENT, Txg};

/// About the median of recent times: each moves it a little towards itself, however far away it is,
/// so that the few that wait behind a txg's writes do not count for more than they are.
#[derive(Default)]
pub(super) struct Recent(AtomicU64);

impl Recent {
    pub(super) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
    /// Of two at once one may be lost.
    pub(super) fn add(&self, time: Duration) {
        let old = self.0.load(Ordering::Relaxed);
        let (step, time) = (old / 16 + 1000, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.0.store(time.clamp(old.saturating_sub(step), old.saturating_add(step)), Ordering::Relaxed);
    }
}

/// A disk that turns takes longer for a flush, even if its place comes by soon.
const SLOW: Duration = Duration::from_micros(750);

/// Ranges of births that are told apart among repaired blocks of a leaf, 24 bytes each. Beyond, all
/// count as one, so that what was born between them is resilvered too if a flush fails.
const MOST_REPAIRED: usize = 1 << 12;

/// Births of blocks that were written again (from, and up to where), with the oldest mark that was
/// taken before such a write.
#[derive(Default)]
pub(super) struct Repaired(BTreeMap<(u64, u64), u64>);

impl Repaired {
    fn add(&mut self, births: (u64, u64), mark: u64) {
        if self.0.len() >= MOST_REPAIRED {
            let all = std::mem::take(&mut self.0).into_iter();
            let one = all.reduce(|((s, e), m), ((s2, e2), m2)| ((s.min(s2), e.max(e2)), m.min(m2)));
            self.0.extend(one);
        }
        let oldest = self.0.entry(births).or_insert(mark);
        *oldest = mark.min(*oldest);
    }
}

#[derive(Default)]
pub struct Flushes {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Writes that completed, and how many of them are stable (or lost for good).
    written: u64,
    settled: u64,
    failures: u64,
    /// The newest flush under way.
    running: Option<Arc<Flight>>,
    repaired: Repaired,
}

struct Flight {
    covers: u64,
    outcome: Mutex<Outcome>,
    over: Event,
}

enum Outcome {
    Running,
    Done,
    Failed(Option<i32>),
    /// Whoever sent it went away.
    Abandoned,
}

/// What is to be done for one who wants everything stable.
enum Part {
    Nothing,
    Wait(Arc<Flight>),
    Send(Arc<Flight>),
}

impl Flushes {
    /// A write completed.
    pub fn wrote(&self) {
        self.state.lock().written += 1;
    }

    /// The failures so far.
    pub fn mark(&self) -> u64 {
        self.state.lock().failures
    }

    /// Who took this mark has written a block of `birth` again.
    pub(super) fn repaired(&self, birth: u64, mark: u64) {
        self.state.lock().repaired.add((birth, birth.saturating_add(1)), mark);
    }

    fn take_repaired(&self) -> Repaired {
        std::mem::take(&mut self.state.lock().repaired)
    }

    /// Births of what a flush that failed may have lost: of `before`, which was taken before the
    /// last flush, and of what was repaired meanwhile. What of `before` has the mark as of the last
    /// flush is stable.
    fn lost(&self, before: Repaired, flushed: u64) -> Vec<(u64, u64)> {
        let mut st = self.state.lock();
        let (now, meanwhile) = (st.failures, std::mem::take(&mut st.repaired));
        let (known, later): (BTreeMap<_, _>, _) = meanwhile.0.into_iter().partition(|(_, mark)| *mark != now);
        st.repaired = Repaired(later);
        let old = before.0.into_iter().filter(|(_, mark)| *mark != flushed);
        old.chain(known).map(|(births, _)| births).collect()
    }

    /// The device is not in use any more: what nobody has made stable may be lost. Whether there
    /// was any.
    pub(super) fn let_go(&self) -> bool {
        let mut st = self.state.lock();
        let any = st.written > st.settled;
        if any {
            st.settled = st.written;
            st.failures += 1;
        }
        any
    }

    fn part(&self) -> Part {
        let mut st = self.state.lock();
        if st.settled >= st.written {
            return Part::Nothing;
        }
        match &st.running {
            Some(f) if f.covers >= st.written => Part::Wait(f.clone()),
            _ => {
                let flight = Arc::new(Flight {
                    covers: st.written,
                    outcome: Mutex::new(Outcome::Running),
                    over: Event::new(),
                });
                st.running = Some(flight.clone());
                Part::Send(flight)
            }
        }
    }

    fn ended(&self, flight: &Arc<Flight>, outcome: Outcome) {
        {
            let mut st = self.state.lock();
            match outcome {
                Outcome::Done => st.settled = st.settled.max(flight.covers),
                Outcome::Failed(_) => {
                    st.settled = st.settled.max(flight.covers);
                    st.failures += 1;
                }
                Outcome::Running | Outcome::Abandoned => {}
            }
            if st.running.as_ref().is_some_and(|r| Arc::ptr_eq(r, flight)) {
                st.running = None;
            }
        }
        *flight.outcome.lock() = outcome;
        flight.over.notify(usize::MAX);
    }

    /// Makes everything stable that completed before this was called; `send` flushes the device. An
    /// error if that fails, or if a flush failed since the mark was taken.
    pub async fn flush<F>(&self, mark: u64, send: impl Fn() -> F) -> io::Result<()>
    where
        F: Future<Output = io::Result<()>>,
    {
        loop {
            match self.part() {
                Part::Nothing => break,
                Part::Send(flight) => {
                    let mut guard = Sending { flushes: self, flight, outcome: Outcome::Abandoned };
                    let result = send().await;
                    guard.outcome = match &result {
                        Ok(()) => Outcome::Done,
                        Err(e) => Outcome::Failed(e.raw_os_error()),
                    };
                    drop(guard);
                    result?;
                    break;
                }
                Part::Wait(flight) => match flight.wait().await {
                    Some(result) => {
                        result?;
                        break;
                    }
                    None => continue,
                },
            }
        }
        if self.mark() == mark { Ok(()) } else { Err(io::Error::other("a flush has failed")) }
    }
}

impl Flight {
    /// None: it was never sent.
    async fn wait(&self) -> Option<io::Result<()>> {
        loop {
            let listener = self.over.listen();
            match &*self.outcome.lock() {
                Outcome::Running => {}
                Outcome::Done => return Some(Ok(())),
                Outcome::Failed(Some(code)) => return Some(Err(io::Error::from_raw_os_error(*code))),
                Outcome::Failed(None) => return Some(Err(io::Error::other("a flush has failed"))),
                Outcome::Abandoned => return None,
            }
            listener.await;
        }
    }
}

/// However the sender ends, those who wait for its flush learn of it.
struct Sending<'a> {
    flushes: &'a Flushes,
    flight: Arc<Flight>,
    outcome: Outcome,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Outcome::Abandoned);
        self.flushes.ended(&self.flight, outcome);
    }
}

impl Leaf {
    /// To be taken before writes that [`Leaf::flush`] shall make stable.
    pub fn mark(&self) -> u64 {
        self.flushes.mark()
    }

    /// Makes stable what was written since the mark was taken. A device that was not written to
    /// since the last time is left alone, and several who ask at once share a flush. A failed one
    /// is final: what it covered may be lost, so everybody whose mark is older gets the error.
    pub async fn flush(self: &Arc<Self>, mark: u64) -> io::Result<()> {
        let send = || async {
            let device = self.device().ok_or_else(no_device)?;
            let sent = self.env.clock.now();
            let flushed = async {
                match inject::any() {
                    true => self.flush_tampered(&device).await,
                    false => device.flush().await,
                }
            };
            let result = self.unless_hung(flushed).await;
            self.flush_times.add(self.env.clock.now().saturating_sub(sent));
            // It goes on as a slow one until it is clearly quicker.
            let least = if self.slow.load(Ordering::Relaxed) { SLOW * 4 / 5 } else { SLOW };
            self.slow.store(self.flush_time() > least, Ordering::Relaxed);
            self.stats.count(IoKind::Flush, 1, 0);
            if let Err(e) = &result {
                self.write_errors.fetch_add(1, Ordering::Relaxed);
                self.suspect.store(true, Ordering::Relaxed);
                tracing::warn!(path = %self.path(), error = %e, "flush failed");
            }
            result
        };
        self.flushes.flush(mark, send).await
    }

    /// How long synchronous writes and flushes took of late.
    pub fn write_time(&self) -> Duration {
        self.sync_writes.get()
    }

    pub fn flush_time(&self) -> Duration {
        self.flush_times.get()
    }

    /// All of the txg is about to be written again: flushes that failed so far do not concern it.
    /// What later txgs have written already may be lost by them.
    pub(crate) fn written_again(&self, txg: Txg) {
        self.was_away.store(false, Ordering::Release);
        let mark = self.mark();
        if self.txg_mark.swap(mark, Ordering::AcqRel) != mark {
            self.may_lack_until.fetch_max(txg.0 + TXG_CONCURRENT - 1, Ordering::AcqRel);
            // What a resilver or a rebuild has given it since is not sent again.
            if self.resilvering.load(Ordering::Relaxed) {
                self.refused.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Whether a flush has failed that may have lost something of a txg, though the txg's own flush
    /// finds nothing wrong: it was seen by the sync of a txg before, when blocks of this one were
    /// on their way already (those of the intent log's that are written in place).
    pub(super) fn may_lack(&self, txg: Txg) -> bool {
        txg.0 <= self.may_lack_until.load(Ordering::Acquire) || self.was_away.load(Ordering::Acquire)
    }

    /// To be called when the device was closed and before it is opened again: it may have been
    /// without power, and its cache with it.
    pub(super) fn let_go(&self) {
        if self.flushes.let_go() {
            self.was_away.store(true, Ordering::Release);
        }
    }

    /// Makes stable what `txg` has written. The mark moves on only past failures that this has told
    /// of: one that comes between the flush and here is the next txg's to see.
    pub(super) async fn flush_txg(self: &Arc<Self>, txg: Txg) -> io::Result<()> {
        let repaired = self.flushes.take_repaired();
        let result = self.flush(self.txg_mark.load(Ordering::Acquire)).await;
        if result.is_err() {
            self.written_again(txg);
        }
        // As it is past failures by now.
        let lost = self.flushes.lost(repaired, self.txg_mark.load(Ordering::Acquire));
        self.lacks_again(lost, txg.0);
        result
    }

    /// It cannot be flushed in `txg`.
    pub(super) fn has_no_flush(&self, txg: u64) {
        self.lacks_again(self.flushes.take_repaired().0.into_keys(), txg);
    }

    /// It has not got, or may have lost, what it was given again of these births, if they are
    /// before `end`.
    pub(super) fn lacks_again(&self, births: impl IntoIterator<Item = (u64, u64)>, before: u64) {
        for (start, end) in births.into_iter().filter(|(start, _)| *start < before) {
            self.dtl.add(start, end.min(before));
            // The resilver under way may have passed it.
            if self.resilvering.load(Ordering::Relaxed) {
                self.refused.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Makes everything stable that was written since the txg before.
    pub(super) async fn is_stable(self: &Arc<Self>) -> bool {
        self.flush(self.txg_mark.load(Ordering::Acquire)).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::{join, poll_fn};
    use futures_util::poll;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    /// A flush that ends when `go` is set.
    fn held<'a>(
        go: &'a Mutex<Option<bool>>,
        sent: &'a AtomicUsize,
    ) -> impl Fn() -> futures_util::future::BoxFuture<'a, io::Result<()>> {
        move || {
            sent.fetch_add(1, Ordering::Relaxed);
            Box::pin(poll_fn(move |cx| match *go.lock() {
                Some(true) => Poll::Ready(Ok(())),
                Some(false) => Poll::Ready(Err(io::Error::from_raw_os_error(5))),
                None => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }))
        }
    }

    #[test]
    fn one_flush_serves_all_that_it_covers() {
        let (f, go, sent) = (Flushes::default(), Mutex::new(None), AtomicUsize::new(0));
        let send = held(&go, &sent);
        zilla_env::block_on(async {
            f.flush(f.mark(), &send).await.unwrap();
            assert_eq!(sent.load(Ordering::Relaxed), 0, "nothing was written");
            f.wrote();
            let (mut a, mut b) = (Box::pin(f.flush(0, &send)), Box::pin(f.flush(0, &send)));
            assert!(poll!(&mut a).is_pending() && poll!(&mut b).is_pending());
            assert_eq!(sent.load(Ordering::Relaxed), 1);
            // A write that the flush under way does not cover.
            f.wrote();
            let mut c = Box::pin(f.flush(0, &send));
            assert!(poll!(&mut c).is_pending());
            assert_eq!(sent.load(Ordering::Relaxed), 2);
            *go.lock() = Some(true);
            let ((a, b), c) = join(join(a, b), c).await;
            assert!(a.is_ok() && b.is_ok() && c.is_ok());
            f.flush(0, &send).await.unwrap();
            assert_eq!(sent.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn of_what_was_repaired_it_is_known_what_a_failed_flush_may_have_lost() {
        let f = Flushes::default();
        let failed = || f.state.lock().failures += 1;
        let old = f.mark();
        f.repaired(5, old);
        // A flush that succeeds.
        let lost = |before| f.lost(before, f.mark());
        assert!(lost(f.take_repaired()).is_empty() && lost(f.take_repaired()).is_empty());
        f.repaired(6, f.mark());
        f.repaired(6, f.mark());
        let before = f.take_repaired();
        failed();
        // Written before the failure and told of after it, and written after it.
        f.repaired(9, old);
        f.repaired(7, f.mark());
        assert_eq!(lost(before), [(6, 7), (9, 10)]);
        let before = f.take_repaired();
        assert_eq!(before.0.len(), 1, "the next flush is to see to it");
        let flushed = f.mark();
        failed();
        assert!(f.lost(before, flushed).is_empty(), "it was stable before that failure");
        for birth in 0..MOST_REPAIRED as u64 + 5 {
            f.repaired(2 * birth, f.mark());
        }
        let before = f.take_repaired();
        assert!(before.0.len() <= MOST_REPAIRED);
        failed();
        let lost = lost(before);
        let all =
            (0..MOST_REPAIRED as u64 + 5).all(|b| lost.iter().any(|(s, e)| (*s..*e).contains(&(2 * b))));
        assert!(all, "{lost:?}");
    }

    #[test]
    fn who_wrote_before_a_failure_learns_of_it() {
        let (f, go, sent) = (Flushes::default(), Mutex::new(None), AtomicUsize::new(0));
        let send = held(&go, &sent);
        zilla_env::block_on(async {
            f.wrote();
            // A sender that goes away leaves the flush to the next one.
            {
                let mut a = Box::pin(f.flush(0, &send));
                assert!(poll!(&mut a).is_pending());
            }
            *go.lock() = Some(false);
            let mark = f.mark();
            assert!(f.flush(mark, &send).await.is_err());
            assert!(f.flush(mark, &send).await.is_err(), "it is not tried again");
            assert_eq!(sent.load(Ordering::Relaxed), 2);
            *go.lock() = Some(true);
            f.wrote();
            assert!(f.flush(mark, &send).await.is_err(), "the older writes may be lost");
            f.flush(f.mark(), &send).await.unwrap();
        });
    }
}
