//! Which block of which object of which dataset: how scans remember their place and how errors are
//! named.

use crate::bytes::{Zero, phys};

phys! {
    /// A block's place in the tree of blocks. Levels below 0 are special: -1 the objset itself, -2
    /// the intent log.
    pub struct ZbookmarkPhys("zbookmark_phys") {
        objset: u64,
        object: u64,
        /// Signed; see [`ZbookmarkPhys::level`].
        level_bits: u64,
        blkid: u64,
    }
}

impl Zero for ZbookmarkPhys {
    const ZERO: Self = ZbookmarkPhys { objset: 0, object: 0, level_bits: 0, blkid: 0 };
}

pub const ZB_ROOT_OBJECT: u64 = 0;
pub const ZB_ROOT_LEVEL: i64 = -1;
pub const ZB_ROOT_BLKID: u64 = 0;
pub const ZB_ZIL_OBJECT: u64 = 0;
pub const ZB_ZIL_LEVEL: i64 = -2;
/// The dataset is gone.
pub const ZB_DESTROYED_OBJSET: u64 = u64::MAX;

impl ZbookmarkPhys {
    pub const fn new(objset: u64, object: u64, level: i64, blkid: u64) -> ZbookmarkPhys {
        ZbookmarkPhys { objset, object, level_bits: level as u64, blkid }
    }

    pub const fn level(&self) -> i64 {
        self.level_bits as i64
    }

    pub const fn is_zero(&self) -> bool {
        self.objset == 0 && self.object == 0 && self.level_bits == 0 && self.blkid == 0
    }
}
