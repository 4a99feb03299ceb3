//! Which writes of a txg are still on their way, and which leaves missed some.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use event_listener::Event;
use parking_lot::Mutex;

use super::Zio;
use crate::arc::Key;
use crate::types::{TXG_SIZE, Txg};
use crate::vdev::IoDone;

#[derive(Default)]
struct Slot {
    batches: usize,
    missed: Vec<usize>,
}

/// Outstanding batches by txg.
#[derive(Default)]
pub struct Track {
    slots: Mutex<[Slot; TXG_SIZE]>,
    changed: Event,
}

impl Track {
    pub(super) fn enter(&self, txg: Txg) {
        self.slots.lock()[txg.slot()].batches += 1;
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
    zio: Zio,
    txg: Txg,
    left: AtomicUsize,
    missed: Mutex<Vec<usize>>,
    keys: Vec<Key>,
    over: AtomicBool,
    event: Event,
}

impl Batch {
    /// `writes` completions will follow.
    pub fn new(zio: &Zio, txg: Txg, writes: usize, missed: Vec<usize>, keys: Vec<Key>) -> Arc<Batch> {
        zio.0.track.enter(txg);
        Arc::new(Batch {
            zio: zio.clone(),
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
        self.zio.0.inflight.remove(&self.keys, self);
        self.over.store(true, Ordering::Release);
        self.event.notify(usize::MAX);
        let missed = self.missed();
        self.zio.0.track.leave(self.txg, &missed);
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
            self.missed.lock().push(slot);
        }
        self.one_less();
    }
}
