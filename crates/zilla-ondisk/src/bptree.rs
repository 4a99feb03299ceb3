//! Trees of blocks waiting to be freed: what `zfs destroy` leaves behind with the feature `async_destroy`.
//!
//! The object's contents are entries from `begin` to `end`; each is the root of a destroyed dataset and how far its
//! freeing has come.

use crate::blkptr::BlkPtr;
use crate::bytes::phys;
use crate::zbookmark::ZbookmarkPhys;

phys! {
    /// The bonus of the object.
    pub struct BptreePhys("bptree_phys") {
        begin: u64,
        end: u64,
        bytes: u64,
        comp: u64,
        uncomp: u64,
    }
}

phys! {
    /// One destroyed dataset.
    pub struct BptreeEntryPhys("bptree_entry_phys") {
        bp: BlkPtr,
        /// Only blocks born after this are freed.
        birth_txg: u64,
        zb: ZbookmarkPhys,
    }
}
