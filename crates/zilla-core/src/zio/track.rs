//! Which writes of a txg are still on their way, which leaves missed some, and what was written.
//!
//! Until a txg is stable all its blocks are kept, by place: if a write or a flush fails everywhere,
//! all are sent again. (They are dirty data until then, and counted as such.) What is freed in the
//! same txg is forgotten, since its place may be given to somebody else. A block whose write failed
//! is served to readers from memory, for its place holds something else.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use event_listener::Event;
use parking_lot::Mutex;

use super::Zio;
use super::write::Placement;
use crate::arc::Key;
use crate::types::{TXG_SIZE, Txg};
use crate::vdev::IoDone;
use zilla_ondisk::Dva;

#[derive(Default)]
struct Slot {
    batches: usize,
    missed: Vec<usize>,
    /// Batches of which readers are still served from memory.
    failed: Vec<Arc<Batch>>,
}

/// Blocks by vdev and offset.
type Kept = BTreeMap<(u32, u64), Bytes>;

/// What one side of a mirror has of its own: moved there from a mirror whose sides differ.
#[derive(Clone)]
pub(super) struct OwnSide {
    /// By index.
    pub leaf: usize,
    /// Of the leaf.
    pub offset: u64,
    pub data: Bytes,
}

/// Outstanding batches by txg.
#[derive(Default)]
pub struct Track {
    slots: Mutex<[Slot; TXG_SIZE]>,
    kept: [Mutex<Kept>; TXG_SIZE],
    own_sides: [Mutex<Vec<OwnSide>>; TXG_SIZE],
    /// Leaves that lack a block of the intent log, which is not kept, by the txg of its birth.
    lack_log: Mutex<BTreeSet<(Txg, usize)>>,
    changed: Event,
}

impl Track {
    pub(super) fn enter(&self, txg: Txg) {
        self.slots.lock()[txg.slot()].batches += 1;
    }

    /// Keeps blocks until their txg is stable.
    pub(super) fn keep(&self, txg: Txg, placements: &[Placement]) {
        let mut kept = self.kept[txg.slot()].lock();
        for p in placements {
            for dva in &p.dvas {
                kept.insert((dva.vdev, dva.offset), p.data.clone());
            }
        }
    }

    /// A block of this txg is freed in it.
    pub(super) fn forget(&self, txg: Txg, dva: &Dva) {
        self.kept[txg.slot()].lock().remove(&(dva.vdev, dva.offset));
    }

    /// All there is of a txg, for sending it again.
    pub(super) fn kept(&self, txg: Txg) -> Kept {
        self.kept[txg.slot()].lock().clone()
    }

    /// Keeps what is written to one side alone until its txg is stable.
    pub(super) fn keep_side(&self, txg: Txg, side: OwnSide) {
        self.own_sides[txg.slot()].lock().push(side);
    }

    pub(super) fn own_sides(&self, txg: Txg) -> Vec<OwnSide> {
        self.own_sides[txg.slot()].lock().clone()
    }

    pub(super) fn lacks_log(&self, txg: Txg, leaf: usize) {
        self.lack_log.lock().insert((txg, leaf));
    }

    /// Whether a leaf lacks a block of the intent log.
    pub(super) fn is_without_log(&self, txg: Txg, leaf: usize) -> bool {
        self.lack_log.lock().contains(&(txg, leaf))
    }

    /// The txg is stable.
    pub(super) fn settled(&self, zio: &Zio, txg: Txg) {
        self.lack_log.lock().retain(|(of, _)| *of > txg);
        self.own_sides[txg.slot()].lock().clear();
        let kept = std::mem::take(&mut *self.kept[txg.slot()].lock());
        let failed = std::mem::take(&mut self.slots.lock()[txg.slot()].failed);
        for batch in failed {
            zio.0.inflight.remove(&batch.keys, Arc::as_ptr(&batch));
        }
        drop(kept);
    }

    pub(super) fn leave(&self, txg: Txg, missed: &[usize]) {
        let mut slots = self.slots.lock();
        let slot = &mut slots[txg.slot()];
        slot.batches -= 1;
        for leaf in missed {
            if !slot.missed.contains(leaf) {
                slot.missed.push(*leaf);
            }
        }
        let over = slot.batches == 0;
        drop(slots);
        if over {
            self.changed.notify(usize::MAX);
        }
    }

    /// Waits for all batches of the txg; the leaves that missed writes.
    pub async fn wait(&self, txg: Txg) -> Vec<usize> {
        loop {
            let listener = self.changed.listen();
            {
                let mut slots = self.slots.lock();
                let slot = &mut slots[txg.slot()];
                if slot.batches == 0 {
                    return std::mem::take(&mut slot.missed);
                }
            }
            listener.await;
        }
    }
}

/// Leaf writes that were submitted together, and the blocks they are.
pub struct Batch {
    /// Not owned: blocks on their way hold their batch, and a ring of owners would outlive the
    /// pool.
    zio: Weak<super::Inner>,
    txg: Txg,
    left: AtomicUsize,
    missed: Mutex<Vec<usize>>,
    pub(super) keys: Vec<Key>,
    /// A write of it failed.
    failed: AtomicBool,
    me: Weak<Batch>,
    over: AtomicBool,
    event: Event,
}

impl Batch {
    /// `writes` completions will follow.
    pub fn new(zio: &Zio, txg: Txg, writes: usize, missed: Vec<usize>, keys: Vec<Key>) -> Arc<Batch> {
        zio.0.track.enter(txg);
        Arc::new_cyclic(|me| Batch {
            me: me.clone(),
            failed: AtomicBool::new(false),
            zio: Arc::downgrade(&zio.0),
            txg,
            // One more, so that it is not over before all were submitted.
            left: AtomicUsize::new(writes + 1),
            missed: Mutex::new(missed),
            keys,
            over: AtomicBool::new(false),
            event: Event::new(),
        })
    }

    /// All writes were submitted.
    pub fn submitted(&self) {
        self.one_less();
    }

    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let zio = self.zio.upgrade();
        if let Some(zio) = &zio {
            match self.me.upgrade().filter(|_| self.failed.load(Ordering::Acquire)) {
                Some(me) => zio.track.slots.lock()[self.txg.slot()].failed.push(me),
                None => zio.inflight.remove(&self.keys, self),
            }
        }
        self.over.store(true, Ordering::Release);
        self.event.notify(usize::MAX);
        let missed = self.missed();
        if let Some(zio) = zio {
            zio.track.leave(self.txg, &missed);
        }
    }

    /// The leaves that do not have what they should.
    pub fn missed(&self) -> Vec<usize> {
        self.missed.lock().clone()
    }

    pub async fn wait(&self) {
        while !self.over.load(Ordering::Acquire) {
            let listener = self.event.listen();
            if self.over.load(Ordering::Acquire) {
                break;
            }
            listener.await;
        }
    }
}

impl IoDone for Batch {
    /// `slot` is the leaf's index.
    fn done(&self, slot: usize, result: io::Result<Bytes>) {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
            // At once, not only when the txg is waited for: whoever rebuilds what lies there may
            // begin as soon as this write has left the gate, and must not take the leaf for whole.
            let zio = self.zio.upgrade().map(Zio);
            if let Some(leaf) = zio.and_then(|zio| zio.tree().leaves.get(slot).cloned()) {
                leaf.dtl.add(self.txg.0, self.txg.0 + 1);
            }
            self.missed.lock().push(slot);
        }
        self.one_less();
    }
}
