//! Trains that somebody sends who waits for them.
//!
//! He polls the work himself, so that a lone fsync wakes nobody. What he polls holds what others
//! need: the block at the end of the chain, blocks on their way before theirs, a transaction. So it
//! must go on also where he goes away, or keeps his future and does not poll it any more.
//!
//! - Who goes away leaves the work to a task of its own.
//! - Work that waits lies where the sync of a txg finds it: the sync takes over what lies there
//!   before it waits for anybody ([`PoolLog::take_over`]), and until it has what it waits for, work
//!   that comes to wait is left to a task at once ([`Hurry`]). A sync that takes long does so again
//!   and again: what it waits for (a flush, a space map that is being read) may be such work's,
//!   whichever log's that is. Whoever waits behind such work without a sync waits until the next
//!   txg ends.
//!
//! Work that ends without waiting costs nothing of this.

use super::PoolLog;
use super::log::Zilog;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use zilla_env::Env;

type Work = BoxFuture<'static, ()>;

/// Work that waits.
#[derive(Default)]
pub(super) struct Parked(Mutex<Lying>);

#[derive(Default)]
struct Lying {
    /// None: it is being polled, or somebody took it over.
    work: Option<Work>,
    owner: Option<Waker>,
    taken_over: bool,
}

/// The work of one who waits for it.
pub(super) struct Driven {
    log: Arc<Zilog>,
    /// What has not waited yet.
    new: Option<Work>,
    parked: Option<Arc<Parked>>,
}

impl Driven {
    pub(super) fn new(log: &Arc<Zilog>, work: Work) -> Driven {
        Driven { log: log.clone(), new: Some(work), parked: None }
    }

    fn take(&mut self) -> Option<Work> {
        self.new.take().or_else(|| self.parked.as_ref()?.0.lock().work.take())
    }

    /// Leaves work that waits where it is found. None: it lies there; else somebody wants it done.
    fn park(&mut self, work: Work, waker: &Waker) -> Option<Work> {
        if let Some(parked) = &self.parked {
            let mut lying = parked.0.lock();
            if lying.taken_over {
                return Some(work);
            }
            lying.work = Some(work);
            match &mut lying.owner {
                Some(owner) => owner.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            return None;
        }
        let mut all = self.log.ctx.log.parked.lock();
        if self.log.ctx.log.hurry.0.load(Ordering::SeqCst) > 0 {
            return Some(work);
        }
        let lying = Lying { work: Some(work), owner: Some(waker.clone()), taken_over: false };
        let parked = Arc::new(Parked(Mutex::new(lying)));
        all.push(parked.clone());
        self.parked = Some(parked);
        None
    }

    /// It is over.
    fn leave(&mut self) {
        if let Some(parked) = self.parked.take() {
            self.log.ctx.log.parked.lock().retain(|p| !Arc::ptr_eq(p, &parked));
        }
    }
}

impl Future for Driven {
    type Output = ();
    /// Ends when the work is over, or is no matter of his any more.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(mut work) = self.take()
            && work.as_mut().poll(cx).is_pending()
        {
            match self.park(work, cx.waker()) {
                None => return Poll::Pending,
                Some(wanted) => self.log.ctx.env.spawn(wanted),
            }
        }
        self.leave();
        Poll::Ready(())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        if let Some(work) = self.take() {
            self.log.ctx.env.spawn(work);
        }
        self.leave();
    }
}

/// How many syncs wait for what work of commits holds.
#[derive(Default)]
pub(super) struct Hurry(AtomicUsize);

/// As long as it is there, no work of a commit waits for its owner.
pub(crate) struct Hurried<'a>(&'a Hurry);

impl Hurry {
    fn begin(&self) -> Hurried<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Hurried(self)
    }
}

impl Drop for Hurried<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PoolLog {
    /// Gives work that waits for its owner a task of its own, and what comes to wait later.
    pub(crate) fn take_over(&self, env: &Env) -> Hurried<'_> {
        let hurried = self.hurry.begin();
        let all = std::mem::take(&mut *self.parked.lock());
        for parked in all {
            let (work, owner) = {
                let mut lying = parked.0.lock();
                lying.taken_over = true;
                (lying.work.take(), lying.owner.take())
            };
            if let Some(work) = work {
                env.spawn(work);
                // He waits for what the work brings about.
                owner.into_iter().for_each(Waker::wake);
            }
        }
        hurried
    }
}
