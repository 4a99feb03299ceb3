//! Blocks that are written as they are already (OpenZFS's nop-write).
//!
//! Where a file is overwritten by what it holds, a checksum that is strong enough tells so: the old
//! pointer stays, and nothing is allocated, written or freed. A snapshot then does not grow by what
//! a backup or a copy wrote once more.
//!
//! **Invariants.** The pointer that stays is bit by bit the one that would have been made, but for
//! its places and births. It was made in an earlier txg, so its block is stable. Who overwrites a
//! damaged block wants it on disk, and the checksum in its pointer does not say what lies there:
//! while the pool knows of any damage, no block stays.
//!
//! **Deliberately absent.** Metadata, which hardly ever is the same; deduplicated blocks, whose
//! table does as much; encrypted ones, which differ each time; gangs.

use super::write::{Prepared, checksum_of, copies_of, pointer};
use super::{WriteReq, Zio};
use crate::tunables::NOPWRITE_ENABLED;
use crate::types::Txg;
use std::sync::atomic::Ordering;
use zilla_codec::compress::Compress;

impl Zio {
    /// Whether any block may stay where it is.
    pub(super) fn blocks_may_stay(&self) -> bool {
        NOPWRITE_ENABLED.get() != 0 && !self.knows_damage()
    }

    pub(super) fn knows_damage(&self) -> bool {
        self.0.knows_damage.load(Ordering::Acquire)
    }

    pub(super) fn set_knows_damage(&self, damaged: bool) {
        self.0.knows_damage.store(damaged, Ordering::Release);
    }
}

/// Whether the block that is there is what would be written. The pool does not encrypt it.
pub(super) fn stays(txg: Txg, req: &WriteReq, p: &Prepared) -> bool {
    let Prepared::Block { data, compress, cksum, sealed: None } = p else { return false };
    let (old, kind) = (&req.prev, checksum_of(req));
    let asked = req.may_stay && req.level == 0 && req.dedup.is_none();
    if !asked || !kind.is_nopwrite() || req.compress.kind == Compress::Off {
        return false;
    }
    if old.is_hole() || old.is_embedded() || old.is_gang() || old.is_encrypted() || old.birth() >= txg.0 {
        return false;
    }
    let dvas: Vec<_> = old.dvas().collect();
    if dvas.len() != usize::from(copies_of(req, None)) {
        return false;
    }
    let mut new = pointer(txg, req, &dvas, data.len() as u64, *compress, kind, *cksum, None);
    new.set_births(old.birth(), old.phys_birth());
    new == *old
}
