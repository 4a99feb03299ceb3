//! Which blocks of a tree a walk has come to: each block with pointers has one place.
//!
//! A block that holds pointers (an indirect block, a block of dnodes) is never shared within an
//! objset: neither deduplication nor cloning touches it. An attacker's tree does not keep to that.
//! If all 1024 pointers of each level lead to the same block below, a few kilobytes on disk are
//! 1024^n blocks to whoever walks them, and what is freed is freed as often. So whoever visits
//! whole trees asks here at each block with pointers, and takes one that comes up at a second place
//! for damage. What is left to walk are the blocks that are really there, each once. Nothing in a
//! tree is younger than its root.
//!
//! A block is known by each of its DVAs, since a pointer may name a wrong one beside the right one.
//! A walk that goes on in a later version of its tree may come to a block that has since taken the
//! place of another: it was born after that one was met.
//!
//! What is remembered is bounded ([`MOST`]): beyond it the oldest are forgotten. A loop through
//! more blocks than that is as long as the walk of an image with so many blocks on disk.

use crate::error::{Error, Result};
use crate::types::{Bookmark, Txg};
use std::collections::HashMap;
use zilla_ondisk::blkptr::BlkPtr;

/// Places in each of the two generations, which take some 12 MiB each: the indirect blocks of a
/// file of 16 TiB in records of 128K.
const MOST: usize = 1 << 17;

/// Where a block was met, and in which version of its tree.
#[derive(Clone, Copy)]
struct Place {
    object: u64,
    level: i64,
    blkid: u64,
    txg: Txg,
}

#[derive(Default)]
pub(crate) struct Met {
    now: HashMap<(u32, u64), Place>,
    before: HashMap<(u32, u64), Place>,
    /// Of the tree: an objset and the txg that wrote its root.
    objset: u64,
    root: Txg,
}

impl Met {
    /// Goes on with a version of a tree. What was met of another one means nothing.
    pub fn root(&mut self, objset: u64, written: Txg) {
        if self.objset != objset || written < self.root {
            *self = Met::default();
        }
        (self.objset, self.root) = (objset, written);
    }

    /// Notes a block with pointers; an error if it is none, or has another place as well.
    pub fn enter(&mut self, bp: &BlkPtr, at: Bookmark) -> Result<()> {
        let wrong = |what: String| Err(Error::corrupt(Some(at), "block pointer", what));
        if bp.is_embedded() {
            return wrong("a block with pointers is embedded in one".into());
        }
        if bp.birth() > self.root.0 {
            return wrong(format!("the block is of txg {}, its tree of {}", bp.birth(), self.root));
        }
        let here = Place { object: at.object, level: at.level, blkid: at.blkid, txg: self.root };
        for dva in bp.dvas() {
            let key = (dva.vdev, dva.offset);
            let there = self.now.get(&key).or_else(|| self.before.get(&key));
            if let Some(p) = there
                && (p.object, p.level, p.blkid) != (here.object, here.level, here.blkid)
                && bp.birth() <= p.txg.0
            {
                return wrong(format!(
                    "the block at {}:{:x} is block <{}, {}, {}> of the same tree",
                    dva.vdev, dva.offset, p.object as i64, p.level, p.blkid
                ));
            }
        }
        if self.now.len() >= MOST {
            self.before = std::mem::take(&mut self.now);
        }
        self.now.extend(bp.dvas().map(|dva| ((dva.vdev, dva.offset), here)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_ondisk::Dva;

    fn bp(offsets: &[u64], birth: u64) -> BlkPtr {
        let mut bp = BlkPtr::ZERO;
        for (i, &offset) in offsets.iter().enumerate() {
            bp.set_dva(i, Dva { vdev: 0, offset, asize: 4096, gang: false });
        }
        bp.set_birth(birth);
        bp
    }

    fn at(blkid: u64) -> Bookmark {
        Bookmark { objset: 5, object: 7, level: 1, blkid }
    }

    #[test]
    fn a_block_has_one_place() {
        let mut met = Met::default();
        met.root(5, Txg(9));
        met.enter(&bp(&[4096, 8192], 3), at(0)).unwrap();
        met.enter(&bp(&[16384, 32768], 3), at(1)).unwrap();
        // A walk that goes on comes to the parents of its place again.
        met.enter(&bp(&[4096, 8192], 3), at(0)).unwrap();
        // The copy that is right tells, whatever stands beside it.
        for again in [&[4096, 8192][..], &[8192], &[1 << 30, 8192]] {
            met.enter(&bp(again, 3), at(2)).unwrap_err();
        }
        // In another objset it is another matter (it may be a snapshot's too).
        met.root(6, Txg(9));
        met.enter(&bp(&[4096, 8192], 3), at(2)).unwrap();
    }

    #[test]
    fn what_was_written_since_may_have_an_old_place() {
        let mut met = Met::default();
        met.root(5, Txg(9));
        met.enter(&bp(&[4096], 3), at(0)).unwrap();
        met.root(5, Txg(12));
        met.enter(&bp(&[4096], 11), at(1)).unwrap();
        met.enter(&bp(&[4096], 11), at(2)).unwrap_err();
    }

    #[test]
    fn memory_is_bounded() {
        let mut met = Met::default();
        met.root(5, Txg(9));
        for i in 0..3 * MOST as u64 {
            met.enter(&bp(&[(i + 1) << 12], 0), at(i)).unwrap();
        }
        assert!(met.now.len() + met.before.len() <= 2 * MOST);
    }
}
