//! What the removal of a top-level vdev leaves: a mapping from its offsets to where the data went.

use crate::bytes::{Field, Phys, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;
use crate::{Dva, SPA_MINBLOCKSHIFT};

phys! {
    /// `com.delphix:removing` in the pool's directory.
    pub struct SpaRemovingPhys("spa_removing_phys") {
        state: u64,
        removing_vdev: u64,
        prev_indirect_vdev: u64,
        start_time: u64,
        end_time: u64,
        to_copy: u64,
        copied: u64,
    }
}

phys! {
    /// `com.delphix:condensing_indirect` in the pool's directory.
    pub struct CondensingIndirectPhys("spa_condensing_indirect_phys") {
        vdev: u64,
        prev_obsolete_sm_object: u64,
        next_mapping_object: u64,
    }
}

/// Bonus of a mapping object without `counts_object`.
pub const VDEV_INDIRECT_MAPPING_SIZE_V0: usize = 24;

phys! {
    /// The bonus of a mapping object.
    pub struct IndirectMappingPhys("vdev_indirect_mapping_phys") {
        max_offset: u64,
        bytes_mapped: u64,
        num_entries: u64,
        counts_object: u64,
    }
}

impl IndirectMappingPhys {
    pub fn from_bonus(bonus: &[u8], order: ByteOrder) -> Result<IndirectMappingPhys> {
        let mut whole = [0; 32];
        let n = if bonus.len() >= Self::SIZE { Self::SIZE } else { VDEV_INDIRECT_MAPPING_SIZE_V0 };
        let problem = Problem::Truncated { need: n, have: bonus.len() };
        let front = bonus.get(..n).ok_or(FormatError::new(Self::NAME, "", 0, problem))?;
        crate::bytes::put_at(&mut whole, 0, front);
        IndirectMappingPhys::decode(&whole, order)
    }
}

phys! {
    /// One run that was moved; entries are sorted by source.
    pub struct IndirectMappingEntryPhys("vdev_indirect_mapping_entry_phys") {
        src: u64,
        dst: [u64; 2],
    }
}

impl IndirectMappingEntryPhys {
    pub fn new(src_offset: u64, dst: Dva) -> IndirectMappingEntryPhys {
        IndirectMappingEntryPhys { src: src_offset >> SPA_MINBLOCKSHIFT, dst: dst.to_words() }
    }

    /// Where the run was, in bytes.
    pub const fn src_offset(&self) -> u64 {
        (self.src & !(1 << 63)) << SPA_MINBLOCKSHIFT
    }

    /// Where it is; the DVA's asize is the run's length.
    pub const fn dst(&self) -> Dva {
        Dva::from_words(self.dst)
    }
}

phys! {
    /// All below `offset` was copied in this txg; entries are sorted.
    pub struct IndirectBirthEntryPhys("vdev_indirect_birth_entry_phys") {
        offset: u64,
        phys_birth_txg: u64,
    }
}

phys! {
    /// The bonus of an object of births.
    pub struct IndirectBirthPhys("vdev_indirect_birth_phys") {
        count: u64,
    }
}

/// In the pool's directory.
pub const DMU_POOL_REMOVING: &str = "com.delphix:removing";
pub const DMU_POOL_CONDENSING_INDIRECT: &str = "com.delphix:condensing_indirect";
/// In a removed vdev's top ZAP: the map of what is obsolete, and whether all of that is known.
pub const VDEV_TOP_ZAP_INDIRECT_OBSOLETE_SM: &str = "com.delphix:indirect_obsolete_sm";
pub const VDEV_TOP_ZAP_OBSOLETE_COUNTS_ARE_PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
/// In a removed vdev's configuration.
pub const ZPOOL_CONFIG_INDIRECT_OBJECT: &str = "com.delphix:indirect_object";
pub const ZPOOL_CONFIG_INDIRECT_BIRTHS: &str = "com.delphix:indirect_births";
pub const ZPOOL_CONFIG_PREV_INDIRECT_VDEV: &str = "com.delphix:prev_indirect_vdev";
