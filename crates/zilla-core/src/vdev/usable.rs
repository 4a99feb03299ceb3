//! Taking a leaf into use, and out of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use zilla_ondisk::enums::{VdevAux, VdevState};

use super::leaf::Leaf;

impl Leaf {
    /// It has failed too often: it is used no more, or only where nobody else has what is wanted.
    pub(crate) fn judged(&self, verdict: VdevState) {
        match verdict {
            VdevState::Degraded => self.state.set(verdict, VdevAux::ErrExceeded),
            _ => self.set_unusable(verdict, VdevAux::ErrExceeded),
        }
    }

    /// The administrator calls it faulty, and nobody else has what is on it.
    pub(crate) fn degrade(&self) {
        self.state.set(VdevState::Degraded, VdevAux::External);
    }

    /// What it was degraded for is forgiven.
    pub(crate) fn forgiven(&self) {
        if matches!(self.state.get(), (VdevState::Degraded, VdevAux::ErrExceeded | VdevAux::External)) {
            self.state.set(VdevState::Healthy, VdevAux::None);
        }
    }

    /// Takes the leaf out of use and closes its device.
    pub async fn take_out(self: &Arc<Self>, state: VdevState, aux: VdevAux) {
        self.set_unusable(state, aux);
        self.close().await;
        self.state.set(state, aux);
    }

    /// Takes the leaf out of use because the administrator says so.
    pub async fn fault(self: &Arc<Self>, aux: VdevAux) {
        self.take_out(VdevState::Faulted, aux).await;
    }

    /// Takes the leaf out of use: it has failed too often.
    pub(super) fn set_faulted(&self, aux: VdevAux) {
        self.set_unusable(VdevState::Faulted, aux);
    }

    /// Sends nothing more to the device.
    pub(crate) fn set_unusable(&self, state: VdevState, aux: VdevAux) {
        self.state.set(state, aux);
        self.cant_read.store(true, Ordering::Release);
        self.cant_write.store(true, Ordering::Release);
    }

    /// It takes part in I/O though it has no device of its own.
    pub(crate) fn set_usable(&self, write: bool) {
        self.cant_read.store(false, Ordering::Release);
        self.cant_write.store(!write, Ordering::Release);
        self.state.set(VdevState::Healthy, VdevAux::None);
    }
}
