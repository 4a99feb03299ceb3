//! The blocks of a log that are on disk or on their way, in the order of the chain.
//!
//! At the end is always the block that was allocated and is not written yet; at the front the one
//! that the header must point to. In between lie all blocks of the txgs that are not synced, tens
//! of thousands with a fast log device: so each has a number, and those whose waiters were told,
//! which are always the first ones, are not looked at again until they are freed.

use super::states::{Issued, Lwb};
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Blocks {
    blocks: VecDeque<Lwb>,
    /// Blocks there were before the first; so the first one's number.
    gone: u64,
    /// The first block of which the waiters were not told.
    settled: u64,
}

impl Blocks {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn push(&mut self, lwb: Lwb) {
        self.blocks.push_back(lwb);
    }

    pub(super) fn first(&self) -> Option<&Lwb> {
        self.blocks.front()
    }

    pub(super) fn pop_first(&mut self) {
        if self.blocks.pop_front().is_some() {
            self.gone += 1;
            self.settled = self.settled.max(self.gone);
        }
    }

    /// The block to be written next, and its number.
    pub(super) fn last_mut(&mut self) -> Option<(u64, &mut Lwb)> {
        let number = self.gone + (self.blocks.len() as u64).checked_sub(1)?;
        self.blocks.back_mut().map(|l| (number, l))
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Lwb> {
        self.blocks.get_mut(usize::try_from(number.checked_sub(self.gone)?).ok()?)
    }

    /// The blocks whose waiters were not told.
    pub(super) fn unsettled(&mut self) -> impl DoubleEndedIterator<Item = &mut Lwb> {
        let from = (self.settled - self.gone) as usize;
        self.blocks.range_mut(from.min(self.blocks.len())..)
    }

    /// The first block of which they were not, if its write is over. It counts as settled from now
    /// on.
    pub(super) fn settle(&mut self) -> Option<Issued> {
        let issued = self.blocks.get_mut((self.settled - self.gone) as usize)?.settle()?;
        self.settled += 1;
        Some(issued)
    }

    /// Takes all.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Lwb> {
        self.gone += self.blocks.len() as u64;
        self.settled = self.gone;
        self.blocks.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::super::states::Cargo;
    use super::*;
    use crate::types::Txg;
    use zilla_ondisk::blkptr::BlkPtr;

    #[test]
    fn numbers_stay_and_only_the_first_ones_settle() {
        let mut b = Blocks::default();
        for txg in 1..=4 {
            b.push(Lwb::new(BlkPtr::ZERO, Txg(txg)));
        }
        let issue = |b: &mut Blocks, n| b.get_mut(n).unwrap().issue(Txg(9), Txg(n), Cargo::default());
        let settle = |b: &mut Blocks| b.settle().map(|i| i.max_txg);
        issue(&mut b, 0);
        issue(&mut b, 1);
        assert_eq!(settle(&mut b), None);
        b.get_mut(1).unwrap().written();
        assert_eq!(settle(&mut b), None, "the one before it is on its way");
        b.get_mut(0).unwrap().written();
        assert_eq!((settle(&mut b), settle(&mut b)), (Some(Txg(0)), Some(Txg(1))));
        assert!(settle(&mut b).is_none() && b.first().unwrap().is_over(Txg(9), false));
        assert_eq!(b.unsettled().map(|l| l.alloc_txg.0).collect::<Vec<_>>(), [3, 4]);
        b.pop_first();
        b.pop_first();
        assert!(!b.first().unwrap().is_over(Txg(9), false));
        assert_eq!(b.get_mut(3).unwrap().alloc_txg, Txg(4));
        assert!(b.get_mut(1).is_none(), "it is gone");
        // One that goes unsettled, with a chain that is given back.
        b.pop_first();
        assert_eq!(b.last_mut().unwrap().0, 3);
        assert_eq!(b.drain().count(), 1);
        assert!(b.is_empty() && b.get_mut(3).is_none() && b.unsettled().next().is_none());
        b.push(Lwb::new(BlkPtr::ZERO, Txg(9)));
        assert_eq!(b.last_mut().unwrap().0, 4);
    }
}
