//! Trees of blocks waiting to be freed: what `zfs destroy` leaves behind with the feature
//! `async_destroy`.
//!
//! The object's contents are entries from `begin` to `end`; each is the root of a destroyed dataset
//! and how far its freeing has come.

use crate::blkptr::BlkPtr;
use crate::bytes::{Phys, phys};
use crate::error::{FormatError, Result};
use crate::order::ByteOrder;
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

impl BptreePhys {
    /// Reads the bonus; `room` is how many entries the object has room for.
    pub fn from_bonus(bonus: &[u8], order: ByteOrder, room: u64) -> Result<BptreePhys> {
        let p = BptreePhys::decode(bonus, order)?;
        if p.begin > p.end || p.end > room {
            return Err(FormatError::impossible("bptree_phys", "bt_end", 8, p.end, "not in the object"));
        }
        let all = [("bt_bytes", p.bytes), ("bt_comp", p.comp), ("bt_uncomp", p.uncomp)];
        FormatError::counters("bptree_phys", &all)?;
        Ok(p)
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
