//! What a volume would be on a pool as that is now: the blocks that fit its vdevs, and what it can
//! take at most.

use crate::pool::Pool;
use zilla_core::vdev::Top;
use zilla_core::zvol::{Resv, ZVOL_DEFAULT_BLOCKSIZE, volsize_to_reservation};
use zilla_ondisk::{SPA_MAXBLOCKSIZE, SPA_OLD_MAXBLOCKSIZE};

/// From this version of the pool on there is `refreservation`. Source: SPA_VERSION_REFRESERVATION
/// in sys/fs/zfs.h.
const REFRESERVATION: u64 = 9;

impl Pool {
    /// The size that blocks of a volume have where nobody says another, bytes: more than half of
    /// what the least block takes on any vdev of the pool.
    pub fn volume_block_size(&self) -> u64 {
        let most = match self.dsl().feature_enabled("large_blocks") {
            true => SPA_MAXBLOCKSIZE,
            false => SPA_OLD_MAXBLOCKSIZE,
        };
        let least = self.least_allocation().min(most);
        let mut size = ZVOL_DEFAULT_BLOCKSIZE;
        while size * 2 <= least {
            size *= 2;
        }
        size
    }

    /// What the least block takes where that is most, parity left out, bytes: on a dRAID a whole
    /// row of a group.
    pub fn least_allocation(&self) -> u64 {
        let tree = self.spa().tree();
        let least = |t: &Top| t.vdev.draid().map_or(1, |d| d.shape.ndata) << t.ashift();
        tree.tops_for(false).map(least).max().unwrap_or(0)
    }

    /// What a volume can take at most, bytes.
    pub fn volume_reservation(&self, size: u64, block_size: u64, copies: u64) -> u64 {
        // By the width that new blocks have.
        let asize = |t: &Top, size| t.psize_to_asize(size, u64::MAX);
        let asizes =
            |t: &Top| t.vdev.kind.nparity().map(|_| (asize(t, block_size), asize(t, SPA_OLD_MAXBLOCKSIZE)));
        let asizes = self.spa().tree().tops.iter().filter_map(asizes).collect();
        volsize_to_reservation(&Resv { size, block_size, copies, asizes })
    }

    /// The property that reserves it.
    pub fn volume_reserved_by(&self) -> &'static str {
        if self.spa().version() < REFRESERVATION { "reservation" } else { "refreservation" }
    }
}
