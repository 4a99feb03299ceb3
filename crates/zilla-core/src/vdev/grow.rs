//! Devices whose size changed while the pool has them, and what a top-level vdev could grow by.
//!
//! Labels 2 and 3 lie at a device's end, so they move with it. At the new end may stand anything,
//! also the labels of another pool; so it is cleared before the device's new size is believed. From
//! then on labels go there; the old ones become free space when the vdev grows. A crash in between
//! is safe: labels 0 and 1 stay where they are and are always whole.
//!
//! What the pool counts on (a top-level's `asize`) changes only in a txg of its own, see
//! `spa/grow.rs`.

use std::io;
use std::sync::Arc;

use zilla_env::IoBuf;
use zilla_ondisk::enums::VdevState;
use zilla_ondisk::label::{VDEV_LABEL_SIZE, VDEV_LABELS, label_offset, usable_size};

use super::leaf::Leaf;
use super::node::Vdev;
use super::open::{LABELS, available, min_asize};
use super::priority::Priority;
use super::tree::{Top, VdevTree};

/// The first of the labels at the end.
const FIRST_BACK_LABEL: usize = VDEV_LABELS / 2;

/// Into so many metaslabs a new vdev is divided at most.
pub const MS_COUNT_LIMIT: u64 = 1 << 17;
/// A vdev may grow to so many. More would only be a way to take memory.
pub const MOST_METASLABS: u64 = 2 * MS_COUNT_LIMIT;

/// The most a vdev with metaslabs of 2^`shift` bytes can grow to.
fn most_asize(shift: u32) -> u64 {
    MOST_METASLABS.saturating_mul(1u64.checked_shl(shift).unwrap_or(u64::MAX))
}

/// What a look at a device's size found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    Same,
    /// Labels belong elsewhere now.
    Changed,
    /// It holds less than the pool counts on.
    TooSmall,
}

impl VdevTree {
    /// Looks how large a leaf's device is now.
    pub async fn look_at_size(&self, leaf: &Arc<Leaf>) -> io::Result<NewSize> {
        let Some(device) = leaf.device() else { return Ok(NewSize::Same) };
        let size = usable_size(device.refresh_size()?);
        if size == leaf.psize() {
            return Ok(NewSize::Same);
        }
        let mut place = self.tops.iter().flat_map(|t| t.vdev.walk().into_iter().map(move |v| (t, v)));
        let found = place.find(|(_, v)| v.leaf.as_ref().is_some_and(|l| Arc::ptr_eq(l, leaf)));
        let needed = found.map_or(0, |(top, v)| min_asize(&top.vdev, &v));
        if size.saturating_sub(LABELS) < needed {
            return Ok(NewSize::TooSmall);
        }
        let mark = leaf.mark();
        for at in (FIRST_BACK_LABEL..VDEV_LABELS).filter_map(|l| label_offset(size, l)) {
            let zeroes = IoBuf::zeroed(VDEV_LABEL_SIZE as usize).into_bytes();
            leaf.write_at(at, zeroes, Priority::SyncWrite).await?;
        }
        leaf.flush(mark).await?;
        tracing::info!(path = %leaf.path(), from = leaf.psize(), to = size, "the device's size changed");
        leaf.set_psize(size);
        Ok(NewSize::Changed)
    }
}

impl Top {
    /// The size it can have, if that is more metaslabs than now. Only a vdev that lacks no device
    /// grows: another one's size is not known.
    pub fn grows_to(&self) -> Option<u64> {
        let (v, shift) = (&self.vdev, self.vdev.metaslab_shift());
        let whole = v.walk().iter().all(|n| n.state().0 == VdevState::Healthy);
        if !v.is_concrete() || shift == 0 || !whole || v.is_expanding() {
            return None;
        }
        let size = v.max_asize().min(most_asize(shift));
        (size >> shift > v.asize() >> shift).then_some(size)
    }

    /// Whole metaslabs' worth that a node of it could have more: the top-level itself, or a leaf.
    pub fn could_grow(&self, node: &Vdev) -> u64 {
        let shift = self.vdev.metaslab_shift();
        if shift == 0 || !self.vdev.is_concrete() || self.vdev.is_expanding() {
            return 0;
        }
        let has = if node.guid == self.vdev.guid { node.asize() } else { min_asize(&self.vdev, node) };
        node.max_asize().saturating_sub(has) >> shift << shift
    }
}

impl Vdev {
    /// Bytes it could give, going by the devices that are open.
    pub fn max_asize(&self) -> u64 {
        available(self).unwrap_or(0)
    }
}
