//! How wide the stripes of a RAID-Z's blocks are: as wide as the vdev was when they were born.
//!
//! A RAID-Z that was given one more child holds blocks of several widths. An expansion moves
//! sectors and changes none: sector number n of the vdev's space lies on child n % (children), in
//! row n / (children), whatever block it belongs to. So the number of children says where a sector
//! is, and the *logical width*, of the txg a block was born in, which sectors of it are parity and in
//! what order the others come ([`super::raidz::Map::expanded`]).
//!
//! The configuration lists the first txg of each width that came after the original one
//! (`raidz_expand_txgs`, in ascending order), and `raidz_expanding` while sectors are being moved.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use parking_lot::RwLock;
use zilla_ondisk::NvList;

use crate::error::{Error, Result};

const EXPAND_TXGS: &str = "raidz_expand_txgs";
pub(super) const EXPANDING: &str = "raidz_expanding";

/// The widths of one RAID-Z. Shared by all trees the vdev is in.
#[derive(Debug)]
pub struct Widths {
    original: usize,
    /// First txg and width, in ascending order.
    later: RwLock<Vec<(u64, usize)>>,
}

impl Widths {
    /// As a configuration says it.
    pub(super) fn parse(nv: &NvList, children: usize, nparity: usize) -> Result<Widths> {
        let bad = |what: &str| Err(Error::corrupt(None, "vdev configuration", what));
        if nv.contains(EXPAND_TXGS) && nv.u64s(EXPAND_TXGS).is_none() {
            return bad("a raidz whose expansions are no list of txgs");
        }
        let txgs = nv.u64s(EXPAND_TXGS).unwrap_or_default();
        if !txgs.is_sorted_by(|a, b| a < b) {
            return bad("a raidz whose expansions are out of order");
        }
        let whole = children.saturating_sub(usize::from(nv.contains(EXPANDING)));
        let Some(original) = whole.checked_sub(txgs.len()).filter(|w| *w > nparity) else {
            return bad("a raidz that was expanded more often than it has children");
        };
        let later = txgs.iter().enumerate().map(|(i, txg)| (*txg, original + 1 + i)).collect();
        Ok(Widths { original, later: RwLock::new(later) })
    }

    pub(super) fn generate(&self, nv: &mut NvList) {
        let txgs: Vec<u64> = self.later.read().iter().map(|(txg, _)| *txg).collect();
        if !txgs.is_empty() {
            nv.add(EXPAND_TXGS, txgs);
        }
    }

    /// The width of blocks born in a txg.
    pub fn at(&self, birth: u64) -> usize {
        let later = self.later.read();
        later.iter().rev().find(|(txg, _)| *txg <= birth).map_or(self.original, |(_, width)| *width)
    }

    /// All widths that blocks have, or had sectors laid out by: up to the number of children.
    pub(super) fn all(&self, children: usize) -> impl Iterator<Item = usize> + use<> {
        self.original..=children
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn the_txg_of_birth_says_how_wide() {
        let nv = NvList::new().with("raidz_expand_txgs", vec![100u64, 200]);
        let widths = Widths::parse(&nv, 6, 1).unwrap();
        let at = [0, 99, 100, 199, 200, u64::MAX].map(|txg| widths.at(txg));
        assert_eq!(at, [4, 4, 5, 5, 6, 6]);
        let mut back = NvList::new();
        widths.generate(&mut back);
        assert_eq!(back.u64s("raidz_expand_txgs"), Some(&[100u64, 200][..]));
        let mut going_on = nv;
        going_on.add_flag("raidz_expanding");
        let widths = Widths::parse(&going_on, 7, 1).unwrap();
        assert_eq!((widths.at(5), widths.at(300)), (4, 6), "the last child is not counted yet");
    }

    #[test]
    fn impossible_histories_are_refused() {
        let list = |txgs: Vec<u64>| NvList::new().with("raidz_expand_txgs", txgs);
        assert!(Widths::parse(&list(vec![5, 5]), 6, 1).is_err());
        assert!(Widths::parse(&list(vec![6, 5]), 6, 1).is_err());
        assert!(Widths::parse(&list(vec![1, 2, 3]), 5, 2).is_err());
        assert!(Widths::parse(&list(vec![1, 2]), 5, 2).is_ok());
        assert!(Widths::parse(&NvList::new().with("raidz_expand_txgs", 7u64), 5, 2).is_err());
    }
}
