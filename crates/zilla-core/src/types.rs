//! The engine's newtypes: numbers that must not be mixed up.

use crate::error::{Error, Result};
use std::fmt;
use std::ops::{Index, IndexMut};
use zilla_ondisk::blkptr::BlkPtr;

/// A transaction group's number. Txg 0 means "none"; a pool's first txg is 4, as in OpenZFS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Txg(pub u64);

/// How many txgs can hold changes at once: open, quiescing, syncing.
pub const TXG_CONCURRENT: u64 = 3;
/// The same, rounded up to a power of two.
pub const TXG_SIZE: usize = 4;
/// Frees of the last txgs stay unallocated this long, so that an import can go back to an older
/// uberblock.
pub const TXG_DEFER_SIZE: usize = 2;
/// Bytes of a gang block's header. Source: SPA_GANGBLOCKSIZE of sys/zio.h.
pub const GANG_HEADER_SIZE: u64 = 512;
/// The txg in which a pool is born.
pub const TXG_INITIAL: Txg = Txg(4);

impl Txg {
    /// The slot of this txg in per-txg arrays of [`TXG_SIZE`].
    pub fn slot(self) -> usize {
        (self.0 as usize) & (TXG_SIZE - 1)
    }
    pub fn next(self) -> Txg {
        Txg(self.0 + 1)
    }
    pub fn prev(self) -> Txg {
        Txg(self.0.saturating_sub(1))
    }
}

/// One of something for each txg that can hold changes.
#[derive(Debug, Default)]
pub struct PerTxg<T>([T; TXG_SIZE]);

impl<T> PerTxg<T> {
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }
}

impl<T> Index<Txg> for PerTxg<T> {
    type Output = T;
    fn index(&self, txg: Txg) -> &T {
        let [a, b, c, d] = &self.0;
        match txg.slot() {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }
}

impl<T> IndexMut<Txg> for PerTxg<T> {
    fn index_mut(&mut self, txg: Txg) -> &mut T {
        let [a, b, c, d] = &mut self.0;
        match txg.slot() {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }
}

impl fmt::Display for Txg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// An object's number within its objset. 0 is the meta-dnode; the accounting objects are negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

impl ObjectId {
    pub const META_DNODE: ObjectId = ObjectId(0);
    pub const USERUSED: ObjectId = ObjectId(-1i64 as u64);
    pub const GROUPUSED: ObjectId = ObjectId(-2i64 as u64);
    pub const PROJECTUSED: ObjectId = ObjectId(-3i64 as u64);
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 as i64)
    }
}

/// Where a block belongs: what zdb prints as `<objset, object, level, blkid>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bookmark {
    pub objset: u64,
    pub object: u64,
    pub level: i64,
    pub blkid: u64,
}

impl Bookmark {
    /// Of a block whose place nobody knows. It is not in the error log.
    pub const NOWHERE: Bookmark = Bookmark { objset: u64::MAX, object: 0, level: 0, blkid: 0 };
    /// The objset of the pool's own objects. Source: DMU_META_OBJSET of sys/zio.h.
    pub const MOS: u64 = 0;
    /// The level under which OpenZFS names an objset's root block.
    pub const ROOT_LEVEL: i64 = -1;
    /// The block id under which a spill block is named (at level 0).
    pub const SPILL_BLKID: u64 = u64::MAX - 1;

    pub fn new(objset: u64, object: ObjectId, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset, object: object.0, level: i64::from(level), blkid }
    }
    pub fn root(objset: u64) -> Bookmark {
        Bookmark { objset, object: 0, level: Self::ROOT_LEVEL, blkid: 0 }
    }

    /// Refuses a pointer of another level than the place it stands at. Each level that a walk goes
    /// down it thus comes to other blocks: a block
    /// that points to itself, or to one it was reached through, would be a tree without an end.
    pub(crate) fn check_level(&self, bp: &BlkPtr) -> Result<()> {
        if self.level >= 0 && !bp.is_hole() && i64::from(bp.level()) != self.level {
            let what = format!("the pointer is of level {}, not {}", bp.level(), self.level);
            return Err(Error::corrupt(Some(*self), "block pointer", what));
        }
        Ok(())
    }
}

impl fmt::Display for Bookmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}, {}, {}, {}>", self.objset, self.object as i64, self.level, self.blkid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_of_another_level_is_damage() {
        let mut bp = BlkPtr::ZERO;
        let at = Bookmark::new(1, ObjectId(2), 1, 3);
        assert!(at.check_level(&bp).is_ok(), "a hole has no level");
        bp.set_dva(0, zilla_ondisk::Dva { vdev: 0, offset: 512, asize: 512, gang: false });
        assert!(at.check_level(&bp).is_err());
        bp.set_level(1);
        assert!(at.check_level(&bp).is_ok() && Bookmark::root(1).check_level(&bp).is_ok());
    }
}
