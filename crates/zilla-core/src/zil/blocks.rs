//! The blocks of a log that are on disk or on their way, in the order of the chain.
//!
//! At the end is always the block that was allocated and is not written yet; at the front the one
//! that the header must point to. In between lie all blocks of the txgs that are not synced, tens
//! of thousands with a fast log device: so each has a number, and those whose waiters were told,
//! which are always the first ones, are not looked at again until they are freed.

use super::commit::Waiter;
use super::route::Trip;
use crate::types::Txg;
use std::collections::VecDeque;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

/// A log block, from its allocation until it is freed (the name is OpenZFS's).
pub(super) struct Lwb {
    pub bp: BlkPtr,
    pub alloc_txg: u64,
    /// The txg in which its successor was allocated; 0 as long as it is not written.
    pub issued_txg: u64,
    /// The highest txg of its records.
    pub max_txg: u64,
    /// Its write is over, well or not.
    pub done: bool,
    pub waiters: Vec<Arc<Waiter>>,
    /// Of the train that ends here.
    pub trip: Option<Box<Trip>>,
}

impl Lwb {
    pub(super) fn new(bp: BlkPtr, alloc_txg: Txg) -> Lwb {
        let (waiters, trip) = (Vec::new(), None);
        Lwb { bp, alloc_txg: alloc_txg.0, issued_txg: 0, max_txg: 0, done: false, waiters, trip }
    }
}

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

    /// Whether the first one's waiters were told.
    pub(super) fn first_is_settled(&self) -> bool {
        self.settled > self.gone
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
    pub(super) fn settle(&mut self) -> Option<&mut Lwb> {
        let l = self.blocks.get_mut((self.settled - self.gone) as usize).filter(|l| l.done)?;
        self.settled += 1;
        Some(l)
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
    use super::*;

    #[test]
    fn numbers_stay_and_only_the_first_ones_settle() {
        let mut b = Blocks::default();
        for txg in 1..=4 {
            b.push(Lwb::new(BlkPtr::ZERO, Txg(txg)));
        }
        assert!(b.settle().is_none() && !b.first_is_settled());
        b.get_mut(1).unwrap().done = true;
        assert!(b.settle().is_none(), "the one before it is on its way");
        b.get_mut(0).unwrap().done = true;
        assert_eq!(b.settle().unwrap().alloc_txg, 1);
        assert_eq!(b.settle().unwrap().alloc_txg, 2);
        assert!(b.settle().is_none() && b.first_is_settled());
        assert_eq!(b.unsettled().map(|l| l.alloc_txg).collect::<Vec<_>>(), [3, 4]);
        b.pop_first();
        b.pop_first();
        assert!(!b.first_is_settled());
        assert_eq!(b.get_mut(3).unwrap().alloc_txg, 4);
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
