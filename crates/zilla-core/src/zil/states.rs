//! The life of a commit: the states of a train, a block and a chain, and what leads from one to the
//! next. All that changes one of them is a method here; the rest of the log calls these.
//!
//! Who commits is a [`Waiter`]. A *train* is the records and the waiters that leave together. A
//! *block* has a part of a train's records, or all. A *chain* is the blocks from the one that the
//! header on disk leads to, up to the one that is not written yet.
//!
//! | train ([`Trains`]) | | becomes | when |
//! |---|---|---|---|
//! | idle | nobody waits | driven | somebody joins: he drives it |
//! | driven | some wait; one of them or a task drives it | packing | one more may be under way |
//! | | | idle | nobody waits any more |
//! | packing | not all of its records have left | under way | its last block is issued |
//! | | | over | a block finds no place or no chain |
//! | under way | | over | its last block is settled: its waiters are told |
//!
//! While one train is under way another may be driven; of these two states there is one at a time.
//! The waiters and records of a train are taken when it is packing: who comes then takes the next.
//! Where a block of a train finds no place, its waiters wait for a txg. The header on disk leads to
//! a chain when the txg in which its first block was allocated is synced.
//!
//! | block ([`Lwb`]) | | becomes | when |
//! |---|---|---|---|
//! | allocated | at the end of the chain, empty on disk | issued | it is full, its successor allocated |
//! | issued | on its way to the disk | written | its write and flush are over, well or not |
//! | written | one before it is on its way | settled | all before it are settled |
//! | settled | | freed | it is the first, and its txgs are synced |
//! | allocated | of a broken chain: never written | freed | it is the first, and nothing is on its way |
//! | any but issued | | freed | its chain is given back, or abandoned |
//!
//! | chain ([`Chain`]) | | becomes | when |
//! |---|---|---|---|
//! | absent | no block | begun | a first block is allocated |
//! | begun | the header leads to its first block | absent | it is given back, or its last block is freed |
//! | | | broken | a block finds no place or fails |
//! | broken | commits wait for txgs | absent | its blocks are freed |
//! | any | | abandoned | the dataset goes, or its contents are replaced |
//!
//! A chain that is to be given back in a txg ([`GivenBack`]) stays what it is until the sync of
//! that txg; no commit writes to it meanwhile.

use super::blocks::Blocks;
use super::policy::Sample;
use crate::error::{Errno, Error, Result};
use crate::types::Txg;
use event_listener::Event;
use parking_lot::Mutex;
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;

/// How a commit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Stable,
    /// What it waits for will be stable with this txg.
    WithTxg(Txg),
}

/// Someone who waits for a commit.
pub(super) struct Waiter {
    /// Whose waiting records are to be written, too; None: everybody's.
    pub object: Option<u64>,
    /// Everything it waits for was done in this txg or before.
    pub open: Txg,
    outcome: Mutex<Option<Outcome>>,
    event: Event,
}

impl Waiter {
    pub(super) fn new(object: Option<u64>, open: Txg) -> Arc<Waiter> {
        Arc::new(Waiter { object, open, outcome: Mutex::new(None), event: Event::new() })
    }

    pub(super) fn finish(&self, outcome: Outcome) {
        *self.outcome.lock() = Some(outcome);
        self.event.notify(usize::MAX);
    }

    pub(super) async fn wait(&self) -> Outcome {
        loop {
            let listener = self.event.listen();
            if let Some(o) = *self.outcome.lock() {
                return o;
            }
            listener.await;
        }
    }
}

/// Of the train that leaves next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    Driven,
    Packing,
}

/// A log's trains.
#[derive(Default)]
pub(super) struct Trains {
    stage: Stage,
    waiting: Vec<Arc<Waiter>>,
    /// Of those that keep the log's device busy.
    under_way: usize,
}

impl Trains {
    /// Joins the train that leaves next. Whether he is the one to drive it.
    pub(super) fn join(&mut self, waiter: Arc<Waiter>) -> bool {
        self.waiting.push(waiter);
        let first = self.stage == Stage::Idle;
        if first {
            self.stage = Stage::Driven;
        }
        first
    }

    pub(super) fn waiting(&self) -> &[Arc<Waiter>] {
        &self.waiting
    }

    /// Whether some driver sees to it that a train leaves.
    pub(super) fn is_driven(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// Whether records were taken that are in no block yet.
    pub(super) fn is_packing(&self) -> bool {
        self.stage == Stage::Packing
    }

    /// The driver rests, if nobody waits.
    pub(super) fn rest(&mut self) -> bool {
        let idle = self.waiting.is_empty();
        if idle {
            self.stage = Stage::Idle;
        }
        idle
    }

    /// Takes those who wait out of the next train: it does not leave.
    pub(super) fn dismiss(&mut self) -> Vec<Arc<Waiter>> {
        std::mem::take(&mut self.waiting)
    }

    /// Its waiters are on it, and its records are to be packed.
    pub(super) fn pack(&mut self) -> Vec<Arc<Waiter>> {
        debug_assert_eq!(self.stage, Stage::Driven);
        self.stage = Stage::Packing;
        std::mem::take(&mut self.waiting)
    }

    /// All of it has left, or it is over. Whether others wait already, who need a driver.
    pub(super) fn packed(&mut self) -> bool {
        debug_assert_eq!(self.stage, Stage::Packing);
        self.stage = if self.waiting.is_empty() { Stage::Idle } else { Stage::Driven };
        self.is_driven()
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// One more is under way that keeps the log's device busy.
    pub(super) fn leave(&mut self) {
        self.under_way += 1;
    }

    /// It is not any more.
    pub(super) fn arrive(&mut self) {
        self.under_way -= 1;
    }
}

/// What goes with a train's last block.
#[derive(Default)]
pub(super) struct Cargo {
    pub waiters: Vec<Arc<Waiter>>,
    pub sample: Option<Box<Sample>>,
}

/// What is known of a block from when it is issued until it is settled.
pub(super) struct Issued {
    /// The txg in which its successor was allocated.
    txg: Txg,
    /// The highest txg of its records.
    pub max_txg: Txg,
    pub cargo: Cargo,
}

enum BlockState {
    Allocated,
    Issued(Issued),
    Written(Issued),
    Settled { max_txg: Txg },
}

/// A log block, from its allocation until it is freed (the name is OpenZFS's).
pub(super) struct Lwb {
    pub bp: BlkPtr,
    pub alloc_txg: Txg,
    state: BlockState,
}

impl Lwb {
    pub(super) fn new(bp: BlkPtr, alloc_txg: Txg) -> Lwb {
        Lwb { bp, alloc_txg, state: BlockState::Allocated }
    }

    pub(super) fn issue(&mut self, txg: Txg, max_txg: Txg, cargo: Cargo) {
        debug_assert!(matches!(self.state, BlockState::Allocated), "a block is issued once");
        self.state = BlockState::Issued(Issued { txg, max_txg, cargo });
    }

    pub(super) fn written(&mut self) {
        let state = std::mem::replace(&mut self.state, BlockState::Allocated);
        self.state = match state {
            BlockState::Issued(issued) => BlockState::Written(issued),
            other => other,
        };
    }

    /// What it brings, if its write is over: from now on it counts as settled.
    pub(super) fn settle(&mut self) -> Option<Issued> {
        let BlockState::Written(issued) = &self.state else { return None };
        let settled = BlockState::Settled { max_txg: issued.max_txg };
        match std::mem::replace(&mut self.state, settled) {
            BlockState::Written(issued) => Some(issued),
            _ => None,
        }
    }

    /// What it will bring when it is settled, if it was issued.
    fn cargo(&mut self) -> Option<&mut Cargo> {
        match &mut self.state {
            BlockState::Issued(i) | BlockState::Written(i) => Some(&mut i.cargo),
            BlockState::Allocated | BlockState::Settled { .. } => None,
        }
    }

    /// Whether it was issued in `txg` or before, and its write is not over.
    fn is_on_its_way(&self, txg: Txg) -> bool {
        matches!(&self.state, BlockState::Issued(i) if i.txg <= txg)
    }

    /// Whether the sync of `txg` may free it when it is the first. `ends`: nothing of its chain is
    /// written any more, or on its way.
    pub(super) fn is_over(&self, txg: Txg, ends: bool) -> bool {
        let over = match &self.state {
            BlockState::Settled { max_txg } => *max_txg <= txg,
            BlockState::Allocated => ends,
            BlockState::Issued(_) | BlockState::Written(_) => false,
        };
        over && self.alloc_txg <= txg
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChainState {
    #[default]
    Absent,
    /// In this txg: before it is on disk the header does not lead there.
    Begun(Txg),
    Broken,
    Abandoned,
}

/// When a chain is given back, what goes with it, and whether its first block stays as the
/// beginning of a new one.
#[derive(Default)]
pub(super) struct GivenBack {
    pub txg: Txg,
    pub frees: Vec<BlkPtr>,
    pub keep_first: bool,
}

/// A log's chain of blocks.
#[derive(Default)]
pub(super) struct Chain {
    state: ChainState,
    blocks: Blocks,
    /// Blocks whose write is not over.
    on_their_way: usize,
    given_back: GivenBack,
}

impl Chain {
    /// Whether there is no block.
    pub(super) fn is_absent(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state == ChainState::Broken
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.state == ChainState::Abandoned
    }

    /// An error while it is broken.
    pub(super) fn not_broken(&self) -> Result<()> {
        match self.state {
            ChainState::Broken => Err(Error::os(Errno::Io, "the log is broken until the next txg")),
            _ => Ok(()),
        }
    }

    /// The txg in which it began, if it has, from which on the header leads to it.
    pub(super) fn begun(&self) -> Option<Txg> {
        match self.state {
            ChainState::Begun(txg) => Some(txg),
            _ => None,
        }
    }

    /// Its first block was allocated in `txg`. An error if the dataset is gone by now.
    pub(super) fn begin(&mut self, bp: BlkPtr, txg: Txg) -> Result<()> {
        if self.is_abandoned() {
            return Err(Error::os(Errno::Io, "the log was given back"));
        }
        debug_assert!(self.is_absent());
        self.state = ChainState::Begun(txg);
        self.blocks.push(Lwb::new(bp, txg));
        Ok(())
    }

    /// A block cannot be allocated or written.
    pub(super) fn break_off(&mut self) {
        if matches!(self.state, ChainState::Begun(_)) {
            self.state = ChainState::Broken;
        }
    }

    /// The block to be written next.
    pub(super) fn end(&mut self) -> Option<BlkPtr> {
        self.blocks.last_mut().map(|(_, l)| l.bp)
    }

    /// Issues the block at its end, with records up to `max_txg`; `next`, allocated in `txg`, is
    /// the end now. Its number; None: `bp` is not the end any more, or nothing may follow.
    pub(super) fn issue(
        &mut self,
        bp: &BlkPtr,
        (next, txg): (BlkPtr, Txg),
        max_txg: Txg,
        cargo: Cargo,
    ) -> Option<u64> {
        self.begun()?;
        let (number, lwb) = self.blocks.last_mut().filter(|(_, l)| l.bp == *bp)?;
        lwb.issue(txg, max_txg, cargo);
        self.blocks.push(Lwb::new(next, txg));
        self.on_their_way += 1;
        Some(number)
    }

    /// The write of a block is over, `well` or not.
    pub(super) fn written(&mut self, number: u64, well: bool) {
        self.on_their_way -= 1;
        if !well {
            self.break_off();
        }
        if let Some(lwb) = self.blocks.get_mut(number) {
            lwb.written();
        }
    }

    /// The first block that is written and not settled, if all before it are: it is now.
    pub(super) fn settle(&mut self) -> Option<Issued> {
        self.blocks.settle()
    }

    /// Gives waiters to the last block that was issued and is not settled, if there is one.
    pub(super) fn follow(&mut self, waiters: &mut Vec<Arc<Waiter>>) -> bool {
        let cargo = self.blocks.unsettled().rev().find_map(Lwb::cargo);
        cargo.map(|c| c.waiters.append(waiters)).is_some()
    }

    pub(super) fn on_their_way(&self) -> usize {
        self.on_their_way
    }

    /// Whether a block that was issued in `txg` or before is.
    pub(super) fn is_on_its_way(&mut self, txg: Txg) -> bool {
        self.blocks.unsettled().any(|l| l.is_on_its_way(txg))
    }

    /// Frees in the sync of `txg` from the front what is over, and says what is the front then.
    /// None: there was no chain.
    pub(super) fn advance(&mut self, txg: Txg, packing: bool, frees: &mut Vec<BlkPtr>) -> Option<BlkPtr> {
        self.blocks.first()?;
        let ends = self.is_broken() && self.on_their_way == 0 && !packing;
        while let Some(front) = self.blocks.first() {
            if !front.is_over(txg, ends) {
                return Some(front.bp);
            }
            frees.push(front.bp);
            self.blocks.pop_first();
        }
        self.ended();
        Some(BlkPtr::ZERO)
    }

    fn ended(&mut self) {
        if !self.is_abandoned() {
            self.state = ChainState::Absent;
        }
    }

    /// The sync of a txg will give it back.
    pub(super) fn give_back(&mut self, what: GivenBack) {
        self.given_back = what;
    }

    /// The txg in which it is, or was last.
    pub(super) fn given_back_in(&self) -> Txg {
        self.given_back.txg
    }

    /// It is given back, in the sync of that txg: what is to be freed. With `first`, the pointer
    /// that the header has, a new one begins there if that block is to stay.
    pub(super) fn take_back(&mut self, txg: Txg, first: BlkPtr) -> Vec<BlkPtr> {
        let mut frees = std::mem::take(&mut self.given_back.frees);
        if std::mem::take(&mut self.given_back.keep_first) {
            debug_assert!(self.is_absent());
            self.state = ChainState::Begun(txg);
            self.blocks.push(Lwb::new(first, txg));
            return frees;
        }
        frees.extend(self.blocks.drain().map(|l| l.bp));
        self.ended();
        frees
    }

    /// The dataset is gone, or its contents are others. All blocks, and if it was to be given back
    /// after `synced_in`, what was to go with it.
    pub(super) fn abandon(&mut self, synced_in: Txg) -> (Vec<Lwb>, Option<GivenBack>) {
        self.state = ChainState::Abandoned;
        let pending = self.given_back.txg > synced_in;
        let given_back = pending.then(|| GivenBack {
            txg: self.given_back.txg,
            frees: std::mem::take(&mut self.given_back.frees),
            keep_first: std::mem::take(&mut self.given_back.keep_first),
        });
        (self.blocks.drain().collect(), given_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bp(number: u64) -> BlkPtr {
        let mut bp = BlkPtr::ZERO;
        bp.set_lsize(number * 4096);
        bp
    }

    fn cargo() -> (Arc<Waiter>, Cargo) {
        let waiter = Waiter::new(None, Txg(5));
        (waiter.clone(), Cargo { waiters: vec![waiter], sample: None })
    }

    /// A chain that began in txg 5, with so many blocks that were issued in it.
    fn chain(issued: u64) -> Chain {
        let mut chain = Chain::default();
        chain.begin(bp(1), Txg(5)).unwrap();
        for n in 1..=issued {
            let number = chain.issue(&bp(n), (bp(n + 1), Txg(5)), Txg(5), cargo().1);
            assert_eq!(number, Some(n - 1));
        }
        chain
    }

    fn advance(chain: &mut Chain, txg: u64, packing: bool) -> (Option<BlkPtr>, Vec<BlkPtr>) {
        let mut frees = Vec::new();
        (chain.advance(Txg(txg), packing, &mut frees), frees)
    }

    #[test]
    fn a_train_is_driven_by_who_joins_first_and_packed_once() {
        let mut t = Trains::default();
        assert!(!t.is_driven() && t.rest());
        assert!(t.join(cargo().0), "the first drives");
        assert!(!t.join(cargo().0) && t.is_driven() && !t.is_packing() && !t.rest());
        assert_eq!(t.pack().len(), 2);
        assert!(t.is_packing() && t.waiting().is_empty());
        assert!(!t.join(cargo().0), "who comes now takes the next, which has its driver");
        assert!(t.packed() && t.is_driven() && !t.is_packing());
        assert_eq!(t.dismiss().len(), 1);
        assert!(t.rest() && !t.is_driven());
        assert!(t.join(cargo().0));
        t.pack();
        assert!(!t.packed() && !t.is_driven(), "nobody needs a driver");
        t.leave();
        t.leave();
        t.arrive();
        assert_eq!(t.under_way(), 1);
    }

    #[test]
    fn blocks_settle_in_order_and_are_freed_when_their_txgs_are_synced() {
        let mut c = chain(2);
        assert_eq!((c.begun(), c.on_their_way(), c.end()), (Some(Txg(5)), 2, Some(bp(3))));
        assert!(c.is_on_its_way(Txg(5)) && !c.is_on_its_way(Txg(4)));
        c.written(1, true);
        assert!(c.settle().is_none(), "the one before it is on its way");
        let mut late = vec![cargo().0];
        assert!(c.follow(&mut late) && late.is_empty());
        c.written(0, true);
        assert_eq!(c.settle().unwrap().cargo.waiters.len(), 1);
        assert_eq!(c.settle().unwrap().cargo.waiters.len(), 2, "and who followed");
        assert!(c.settle().is_none() && !c.follow(&mut vec![cargo().0]));
        assert_eq!(advance(&mut c, 4, false), (Some(bp(1)), vec![]));
        assert_eq!(advance(&mut c, 5, false), (Some(bp(3)), vec![bp(1), bp(2)]));
        assert!(c.issue(&bp(2), (bp(9), Txg(6)), Txg(6), Cargo::default()).is_none(), "not the end");
        assert!(c.issue(&bp(3), (bp(4), Txg(6)), Txg(6), Cargo::default()).is_some());
    }

    #[test]
    fn nothing_follows_in_a_broken_chain_and_a_new_one_begins_when_it_is_freed() {
        let mut c = chain(2);
        c.written(0, false);
        assert!(c.is_broken() && c.not_broken().is_err() && c.begun().is_none());
        assert!(c.issue(&bp(3), (bp(4), Txg(6)), Txg(6), Cargo::default()).is_none());
        assert!(c.settle().is_some() && c.settle().is_none());
        assert_eq!(advance(&mut c, 6, false), (Some(bp(2)), vec![bp(1)]), "one is on its way");
        c.written(1, true);
        assert!(c.settle().is_some());
        assert_eq!(advance(&mut c, 6, true), (Some(bp(3)), vec![bp(2)]), "its end is being filled");
        assert_eq!(advance(&mut c, 6, false), (Some(BlkPtr::ZERO), vec![bp(3)]));
        assert!(c.is_absent() && c.not_broken().is_ok());
        assert_eq!(advance(&mut c, 7, false), (None, vec![]), "the header is not the log's to change");
        c.begin(bp(7), Txg(8)).unwrap();
        assert_eq!(c.begun(), Some(Txg(8)));
    }

    #[test]
    fn what_is_given_back_goes_with_its_txg_and_its_first_block_may_stay() {
        let mut c = chain(1);
        c.written(0, true);
        c.give_back(GivenBack { txg: Txg(7), frees: vec![bp(90)], keep_first: false });
        assert_eq!((c.given_back_in(), c.begun()), (Txg(7), Some(Txg(5))));
        assert_eq!(c.take_back(Txg(7), bp(1)), [bp(90), bp(1), bp(2)]);
        assert!(c.is_absent() && c.begun().is_none());
        c.give_back(GivenBack { txg: Txg(8), frees: vec![], keep_first: true });
        assert_eq!(c.take_back(Txg(8), bp(20)), []);
        assert_eq!((c.begun(), c.end()), (Some(Txg(8)), Some(bp(20))));
    }

    #[test]
    fn an_abandoned_chain_begins_no_more_and_gives_up_what_was_to_go_later() {
        let mut c = chain(1);
        c.written(0, true);
        c.give_back(GivenBack { txg: Txg(7), frees: vec![bp(90)], keep_first: false });
        let (blocks, later) = c.abandon(Txg(6));
        assert_eq!(blocks.iter().map(|l| l.bp).collect::<Vec<_>>(), [bp(1), bp(2)]);
        assert_eq!(later.unwrap().frees, [bp(90)]);
        c.break_off();
        assert!(c.is_abandoned() && c.begin(bp(3), Txg(8)).is_err());
        assert!(c.abandon(Txg(7)).1.is_none(), "that txg is synced");
    }
}
