//! Repairing what a read found damaged, without harm to whoever the place belongs to by then.
//!
//! A read may take long (a failing disk tries for seconds), and its block be freed meanwhile and
//! its place given to another. What it then wrote there would be old bytes over new ones. So a
//! repair begins with two steps: it is entered here, and then the pointer is looked up again where
//! it came from ([`Pointers`]). If it is still there, its free comes later than that, and a free
//! waits for the repairs of its block. If it is not, or nobody knows without reading, nothing is
//! repaired: a scrub, which has a fence of its own, will.
//!
//! Repairs run as tasks: a reader who goes away must not leave a write on its way of which nobody
//! knows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;
use parking_lot::Mutex;
use zilla_ondisk::blkptr::BlkPtr;

use super::Zio;
use crate::arc::Key;
use crate::types::Bookmark;
use crate::vdev::Guard;

/// Who knows the pointers.
pub trait Pointers: Send + Sync {
    /// Whether the block at `at` is this one as of the last txg that was synced; false where that
    /// is not in memory.
    fn is_current(&self, at: Bookmark, bp: &BlkPtr) -> bool;
}

#[derive(Default)]
pub struct Repairs {
    /// Places being repaired. Several readers may be at one.
    places: Mutex<HashMap<[u64; 2], usize>>,
    count: AtomicUsize,
    over: Event,
}

/// A repair that is under way.
struct Repairing {
    zio: Zio,
    place: [u64; 2],
}

impl Drop for Repairing {
    fn drop(&mut self) {
        let repairs = &self.zio.0.repairs;
        {
            let mut places = repairs.places.lock();
            if let Some(n) = places.get_mut(&self.place) {
                *n -= 1;
                if *n == 0 {
                    places.remove(&self.place);
                }
            }
        }
        repairs.count.fetch_sub(1, Ordering::SeqCst);
        repairs.over.notify(usize::MAX);
    }
}

impl Zio {
    /// To be held while a block is repaired; None if it must not be.
    pub(super) fn repairing(&self, bp: &BlkPtr, at: Bookmark) -> Option<Guard> {
        Key::of(bp)?;
        let place = bp.dva(0).to_words();
        let repairs = &self.0.repairs;
        repairs.count.fetch_add(1, Ordering::SeqCst);
        *repairs.places.lock().entry(place).or_default() += 1;
        let guard = Repairing { zio: self.clone(), place };
        #[cfg(feature = "planted")]
        if crate::planted::is(crate::planted::Bug::RepairUnchecked) {
            return Some(Box::new(()));
        }
        // Before there is anybody who knows (an import reads before it writes) nothing is freed.
        let current = match self.0.pointers.get() {
            Some(known) => known.upgrade().is_some_and(|p| p.is_current(at, bp)),
            None => true,
        };
        current.then(|| Box::new(guard) as Guard)
    }

    /// Waits for the repairs of a block that is freed.
    pub(super) async fn wait_for_repairs(&self, bp: &BlkPtr) {
        let repairs = &self.0.repairs;
        let place = bp.dva(0).to_words();
        while repairs.count.load(Ordering::SeqCst) > 0 {
            let listener = repairs.over.listen();
            if !repairs.places.lock().contains_key(&place) {
                return;
            }
            listener.await;
        }
    }
}
