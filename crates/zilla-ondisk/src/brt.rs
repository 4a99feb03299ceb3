//! The block reference table: blocks that several files share because one was cloned from the
//! other.
//!
//! Each top-level vdev has one. The pool's directory names its object
//! ([`crate::dsl::BRT_OBJECT_VDEV_PREFIX`] and the vdev's number), which holds a 16-bit count of
//! entries for every [`BrtVdevPhys::rangesize`] bytes of the vdev, and a bonus. The entries are a
//! ZAP of one-word keys, the offset in the first DVA, and of eight bytes: how many references there
//! are beside the first one. (Source: OpenZFS 2.3, `include/sys/brt_impl.h`.)

use crate::bytes::phys;

phys! {
    /// The bonus of a vdev's table.
    pub struct BrtVdevPhys("brt_vdev_phys") {
        /// The ZAP.
        mos_entries: u64,
        /// How many counts there are.
        size: u64,
        /// In which order the counts' and entries' bytes are: 0 little-endian, 1 big-endian.
        byteorder: u64,
        /// How many entries there are.
        totalcount: u64,
        /// Bytes of the vdev that share a count.
        rangesize: u64,
        /// Space of the blocks that have an entry, each counted once.
        usedspace: u64,
        /// Space that would be needed beside that if nothing was shared.
        savedspace: u64,
    }
}

/// [`BrtVdevPhys::byteorder`] of this machine.
pub const BRT_NATIVE_BYTEORDER: u64 = cfg!(target_endian = "big") as u64;
