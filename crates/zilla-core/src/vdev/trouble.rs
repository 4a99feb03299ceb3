//! What goes wrong at a leaf, kept until the pool looks: the ground of a diagnosis, and of what is reported.
//!
//! The I/O path only notes; who judges is the pool ([`crate::spa`]'s diagnosis), a moment later and in one place. The
//! list is bounded: what is beyond it has been counted all the same.

use std::time::Duration;

use parking_lot::Mutex;

/// Kept between two looks: OpenZFS reports as many events of a kind in a second (`zfs_checksum_events_per_second`).
const KEPT: usize = 20;
/// An I/O that takes longer is slow: OpenZFS's `zio_slow_io_ms`.
pub const SLOW: Duration = Duration::from_millis(30_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// The device said no, with this errno.
    Io { write: bool, errno: i32 },
    /// What it gave is not what was written.
    Checksum,
    /// It took so long.
    Slow(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// On the pool's clock.
    pub at: Duration,
    pub kind: TroubleKind,
    /// Of the device, in bytes.
    pub offset: u64,
    pub len: u64,
}

#[derive(Default)]
pub struct Troubles(Mutex<Vec<Trouble>>);

impl Troubles {
    pub(super) fn note(&self, trouble: Trouble) {
        let mut list = self.0.lock();
        if list.len() < KEPT {
            list.push(trouble);
        }
    }

    /// What was noted since this was last asked.
    pub fn take(&self) -> Vec<Trouble> {
        std::mem::take(&mut self.0.lock())
    }
}
