//! A pool whose devices did not take a txg: it is suspended, and goes on when they take it again.
//!
//! When a sync has made all of a txg and only its writes, flushes or labels failed, nothing is lost
//! yet: the blocks are still in memory ([`crate::zio::Zio::resend_txg`]). The sync task then waits
//! here. [`Spa::clear`] has it send *everything* of the txg again, not only what was seen to fail,
//! since a failed flush may have lost any of it; then flush, labels and uberblock as ever. Whatever
//! fails again suspends the pool again.
//!
//! Meanwhile who wants a transaction waits (`failmode=wait`) or gets EIO (`continue`); who waits
//! for a txg waits on.
//!
//! So does a sync that finds no place for a block, or cannot read one, because all devices of a
//! vdev are away ([`crate::zio::DeviceWaiter`]): it goes on where it was.
//!
//! Not every failure can be tried again: a txg that its sync could not even make (the pool's own
//! metadata is damaged) is lost, and the pool suspended for good. So it is while a pool is being
//! created or imported, where an error is the better answer.
//!
//! So it is, too, where the pool may be another host's by now ([`super::multihost`]): then nothing
//! but a `zpool clear` that has made sure of the contrary goes on.
//!
//! A crash loses the txgs that are not on disk, as ever; what was acknowledged by an fsync
//! meanwhile is in the log, for a log that cannot be written has everybody wait for the txg.

use super::Spa;
use crate::error::{Errno, Error, Result};
use crate::zap::Zap;
use crate::zio::{DeviceWaiter, devices_away};
use event_listener::Event;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use zilla_ondisk::dsl::DMU_POOL_PROPS;

/// What is done with new changes while a pool is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    Wait,
    Continue,
}

#[derive(Default)]
struct State {
    why: Option<Error>,
    /// So many parts of the sync task wait to be told to try again.
    waiting: usize,
    /// Nobody tried to write anything: there is nothing to be tried again.
    idle: bool,
    /// How often it was told to try again.
    tries: u64,
    /// Nobody will try again.
    over: bool,
    /// Counts its changes.
    changes: u64,
}

#[derive(Default)]
pub(super) struct Suspension {
    state: Mutex<State>,
    changed: Event,
    /// The pool is open: failures are waited out.
    patient: AtomicBool,
    go_on: AtomicBool,
    /// It was resumed in the last txg.
    resumed: AtomicBool,
    /// Who waits for devices in the middle of a txg: the others wait for him.
    one: futures_util::lock::Mutex<()>,
}

impl Suspension {
    /// Whether the txg before was held up. What was written ahead of this one meanwhile may have
    /// failed with it: that is no reason to suspend the pool again before it was sent again.
    pub(super) fn take_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::Relaxed)
    }

    fn change<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let out = {
            let mut st = self.state.lock();
            st.changes += 1;
            f(&mut st)
        };
        self.changed.notify(usize::MAX);
        out
    }

    /// Waits until `f` finds something.
    async fn until<T>(&self, mut f: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let listener = self.changed.listen();
            if let Some(found) = f(&mut self.state.lock()) {
                return found;
            }
            listener.await;
        }
    }

    /// Waits until the pool is suspended.
    pub(super) async fn happens(&self) -> Error {
        self.until(|st| st.why.clone()).await
    }
}

/// A part of the sync task that waits, or did when it was dropped.
struct Waits<'a>(&'a Suspension);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

/// Why a pool is suspended that another host may have.
pub(super) fn lost_lease() -> Error {
    Error::os(Errno::Io, "multihost heartbeats failed or were delayed: another host may use the pool")
}

impl Spa {
    /// From now on a txg that the devices do not take is waited for.
    pub(super) fn be_patient(self: &Arc<Self>) {
        let waiter: Weak<Spa> = Arc::downgrade(self);
        self.zio.set_waiter(waiter);
        self.suspension.patient.store(true, Ordering::Release);
    }

    /// Why the pool takes no more changes, if it does not.
    pub fn suspended(&self) -> Option<Error> {
        self.suspension.state.lock().why.clone()
    }

    /// Waits until there is a reason ([`Spa::suspended`]), and tells it.
    pub async fn until_suspended(&self) -> Error {
        self.suspension.happens().await
    }

    pub fn fail_mode(&self) -> FailMode {
        if self.suspension.go_on.load(Ordering::Relaxed) { FailMode::Continue } else { FailMode::Wait }
    }

    /// Says what suspended pools do with changes, also if this one is suspended.
    pub fn set_fail_mode(&self, mode: FailMode) {
        self.suspension.go_on.store(mode == FailMode::Continue, Ordering::Relaxed);
        // Who resumes the pool says so under this lock, and then opens the gate.
        let st = self.suspension.state.lock();
        if st.why.is_some() {
            self.ctx.txgs.close_gate(mode == FailMode::Continue);
        }
    }

    /// A property's number, if it was set.
    pub(super) async fn stored_prop(&self, directory: &Zap, name: &str) -> Result<Option<u64>> {
        let Some(id) = directory.try_get_u64(DMU_POOL_PROPS).await? else { return Ok(None) };
        Zap::open(self.ctx.mos(), id).await?.try_get_u64(name).await
    }

    /// For the sync task: the devices did not take the txg. Returns when it is to be tried again;
    /// an error if it never will be.
    pub(super) async fn suspend(&self, why: Error) -> Result<()> {
        let s = &self.suspension;
        if !s.patient.load(Ordering::Acquire) {
            return Err(why);
        }
        self.be_suspended(&why);
        let before = s.change(|st| {
            (st.why, st.idle) = (Some(why.clone()), false);
            st.waiting += 1;
            st.tries
        });
        let again = |st: &mut State| match (st.over, st.tries > before) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        };
        let waits = Waits(s);
        let again = s.until(again).await;
        drop(waits);
        if again { Ok(()) } else { Err(why) }
    }

    fn be_suspended(&self, why: &Error) {
        // It may have been told already that the lease is lost.
        if self.suspended().is_some() && self.lost_to_others() {
            return;
        }
        tracing::error!(pool = %self.name(), error = %why, "the pool is suspended until it is cleared");
        self.post("ereport.fs.zfs.io_failure", None, &zilla_ondisk::NvList::new());
        self.ctx.txgs.close_gate(self.fail_mode() == FailMode::Continue);
    }

    /// No heartbeat has arrived for so long that another host may have the pool: nothing is written
    /// any more until it is cleared. Whether that could be said: not before the pool is open.
    pub(super) fn lost_lease(&self) -> bool {
        if !self.suspension.patient.load(Ordering::Acquire) {
            return false;
        }
        let why = lost_lease();
        self.be_suspended(&why);
        self.suspension.change(|st| {
            // Told again before it was resumed from the last time it still waits for nothing.
            st.idle |= st.why.is_none();
            st.why.get_or_insert(why);
        });
        true
    }

    /// For the sync task: the devices have taken the txg after all. Whether the pool was suspended,
    /// and goes on.
    pub(super) fn resumed(&self) -> bool {
        if self.suspended().is_none() {
            return false;
        }
        if self.lost_to_others() {
            // The txg is on disk, and nothing is to be tried again: a clear only opens the gate.
            self.suspension.change(|st| st.idle = true);
            return false;
        }
        tracing::info!(pool = %self.name(), "the pool is resumed");
        self.suspension.resumed.store(true, Ordering::Relaxed);
        self.suspension.change(|st| st.why = None);
        self.ctx.txgs.open_gate();
        true
    }

    /// An error if the pool is suspended for good.
    pub(super) fn not_given_up(&self) -> Result<()> {
        let st = self.suspension.state.lock();
        match (&st.why, st.over) {
            (Some(why), true) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// For the sync task: it ends, and nothing can be changed any more.
    pub(super) fn suspend_for_good(&self, why: Error) {
        tracing::error!(pool = %self.name(), error = %why, "cannot write; the pool is suspended");
        self.suspension.change(|st| (st.why, st.over) = (Some(why), true));
        self.ctx.txgs.stop();
    }

    /// Has a suspended pool try again, and waits for how that goes.
    pub(super) async fn resume(&self) -> Result<()> {
        let s = &self.suspension;
        let seen = {
            let st = s.state.lock();
            match &st.why {
                None => return Ok(()),
                Some(why) if st.over || self.lost_to_others() => return Err(why.clone()),
                Some(_) if st.idle => None,
                // Another one has it tried already.
                Some(_) if st.waiting == 0 => Some((st.changes, false)),
                Some(_) => Some((st.changes + 1, true)),
            }
        };
        let Some((seen, first)) = seen else {
            // What the log, and whoever writes ahead of a txg, was refused meanwhile is sent again.
            s.resumed.store(true, Ordering::Relaxed);
            s.change(|st| (st.why, st.idle) = (None, false));
            self.ctx.txgs.open_gate();
            return Ok(());
        };
        if first {
            s.change(|st| st.tries += 1);
        }
        match s.until(|st| (st.changes > seen).then(|| st.why.clone())).await {
            None => Ok(()),
            Some(why) => Err(why),
        }
    }

    /// A suspended pool is not to be tried again: whoever waits for it gets an error, and what is
    /// not on disk is lost.
    pub fn abandon(&self) {
        if self.suspended().is_some() {
            self.suspension.change(|st| st.over = true);
            self.ctx.txgs.stop();
        }
    }
}

impl DeviceWaiter for Spa {
    fn wait<'a>(&'a self, lacking: &'a (dyn Fn() -> bool + Sync)) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let _one = self.suspension.one.lock().await;
            if !lacking() {
                return Ok(());
            }
            self.suspend(devices_away()).await?;
            // What was written ahead of the txg meanwhile failed, and is sent again.
            self.suspension.resumed.store(true, Ordering::Relaxed);
            Ok(())
        })
    }
}
