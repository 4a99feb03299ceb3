//! The tree of block pointers under a dnode, as of the last synced txg.
//!
//! A dnode with `nlevels` levels has 1-3 pointers to level `nlevels - 1`; an indirect block of
//! level `n` holds `1 << epbs` pointers to level `n - 1`. The indirect blocks that are in memory
//! are kept as bytes beside the dnode; only the sync task replaces them, as a whole, together with
//! the dnode's own pointers.

use bytes::Bytes;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use zilla_ondisk::ByteOrder;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::DnodePhys;

/// log2 of a block pointer's size.
pub(crate) const BLKPTR_SHIFT: u8 = 7;
/// Levels beyond any that a 64-bit file needs; more is corruption.
pub(crate) use zilla_ondisk::dnode::DN_MAX_LEVELS as MAX_LEVELS;

/// Where the pointer to a block is.
#[derive(Debug, PartialEq)]
pub(crate) enum Lookup {
    Bp(BlkPtr),
    /// The indirect block that holds it is not in memory.
    NeedIndirect {
        level: u8,
        blkid: u64,
    },
    Hole,
}

#[derive(Default)]
pub(crate) struct Indirects {
    blocks: BTreeMap<(u8, u64), Bytes>,
    /// Those of them that were read ahead, and led nobody to his block yet.
    ahead: BTreeSet<(u8, u64)>,
}

impl Indirects {
    pub(crate) fn get(&self, level: u8, blkid: u64) -> Option<&Bytes> {
        self.blocks.get(&(level, blkid))
    }
    /// How many bytes the dbuf cache's clock does not count yet, if the block was not there before,
    /// or as a hole.
    pub(crate) fn insert(&mut self, level: u8, blkid: u64, data: Bytes) -> Option<usize> {
        let len = data.len();
        self.ahead.remove(&(level, blkid));
        match self.blocks.insert((level, blkid), data) {
            None => Some(len),
            Some(old) if old.len() < len => Some(len - old.len()),
            Some(_) => None,
        }
    }
    pub(crate) fn remove(&mut self, level: u8, blkid: u64) {
        self.ahead.remove(&(level, blkid));
        self.blocks.remove(&(level, blkid));
    }
    /// A block that is there was read ahead.
    pub(crate) fn note_ahead(&mut self, level: u8, blkid: u64) {
        self.ahead.insert((level, blkid));
    }
    /// The ancestors of a block that were read ahead, and lead somebody to it now.
    pub(crate) fn take_ahead(&mut self, blkid: u64, epbs: u32) -> SmallVec<[(u8, u64); 1]> {
        if self.ahead.is_empty() {
            return SmallVec::new();
        }
        let all = (1..MAX_LEVELS).map(|level| (level, ancestor(blkid, level, epbs)));
        all.filter(|at| self.ahead.remove(at)).collect()
    }
    /// Forgets a block and all that lies below it.
    pub(crate) fn remove_below(&mut self, level: u8, blkid: u64, epbs: u32) {
        for l in 1..=level {
            let shift = epbs * u32::from(level - l);
            let first = blkid.checked_shl(shift).unwrap_or(u64::MAX);
            let behind = (blkid + 1).checked_shl(shift).unwrap_or(u64::MAX);
            let known: Vec<_> = self.blocks.range((l, first)..(l, behind)).map(|(k, _)| *k).collect();
            for k in known {
                self.ahead.remove(&k);
                self.blocks.remove(&k);
            }
        }
    }
    pub(crate) fn clear(&mut self) {
        self.ahead.clear();
        self.blocks.clear();
    }
}

pub(crate) fn epbs(indblkshift: u8) -> u32 {
    u32::from(indblkshift.saturating_sub(BLKPTR_SHIFT))
}

/// `blkid`'s ancestor at `up` levels above it.
pub(crate) fn ancestor(blkid: u64, up: u8, epbs: u32) -> u64 {
    blkid.checked_shr(epbs * u32::from(up)).unwrap_or(0)
}

/// Levels needed to reach `blkid` from `nblkptr` pointers.
pub(crate) fn levels_for(blkid: u64, nblkptr: u8, indblkshift: u8) -> u8 {
    let e = epbs(indblkshift);
    let mut levels = 1;
    let mut top = blkid;
    while top >= u64::from(nblkptr) && levels < MAX_LEVELS {
        top = ancestor(top, 1, e);
        levels += 1;
    }
    levels
}

/// The pointer at index `i` of an indirect block. Past the end (a shorter block than the dnode
/// promises) is a hole.
pub(crate) fn bp_at(block: &[u8], i: usize) -> BlkPtr {
    block
        .get(i << BLKPTR_SHIFT..(i + 1) << BLKPTR_SHIFT)
        .and_then(|b| BlkPtr::decode(b, ByteOrder::NATIVE).ok())
        .unwrap_or_default()
}

/// Finds the pointer to block `blkid` of `level`.
pub(crate) fn lookup(phys: &DnodePhys, indirects: &Indirects, level: u8, blkid: u64) -> Lookup {
    let e = epbs(phys.indblkshift);
    if phys.nlevels == 0 || level >= phys.nlevels {
        return Lookup::Hole;
    }
    let top = phys.nlevels - 1;
    if level == top {
        return match usize::try_from(blkid).ok().and_then(|i| phys.blkptr.get(i)) {
            Some(bp) => Lookup::Bp(*bp),
            None => Lookup::Hole,
        };
    }
    // Climb to the nearest ancestor in memory; below a hole everything is a hole.
    let parent = ancestor(blkid, 1, e);
    if let Some(block) = indirects.get(level + 1, parent) {
        return Lookup::Bp(bp_at(block, (blkid & ((1 << e) - 1)) as usize));
    }
    match lookup(phys, indirects, level + 1, parent) {
        Lookup::Bp(bp) if bp.is_hole() => Lookup::Hole,
        Lookup::Bp(_) => Lookup::NeedIndirect { level: level + 1, blkid: parent },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_grow_by_a_factor_of_1024() {
        assert_eq!(levels_for(0, 1, 17), 1);
        assert_eq!(levels_for(1, 1, 17), 2);
        assert_eq!(levels_for(1023, 1, 17), 2);
        assert_eq!(levels_for(1024, 1, 17), 3);
        assert_eq!(levels_for(2, 3, 17), 1);
        assert_eq!(levels_for(u64::MAX, 1, 17), 8);
        assert_eq!(levels_for(u64::MAX, 1, 12), 12);
    }
}
