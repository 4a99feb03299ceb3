//! Reads that are under way, so that a second reader of a block waits for the first one's I/O.
//!
//! The first reader does the work in its own task. If it goes away unfinished (its client was dropped), whoever waits for it
//! starts over. A more urgent second reader promotes the I/Os that still queue.

use std::sync::Arc;

use event_listener::Event;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::Priority;
use crate::arc::{Block, Key};
use crate::error::Result;
use crate::vdev::Tickets;

#[derive(Default)]
pub struct PendingReads(Mutex<HashMap<Key, Arc<Pending>>>);

pub struct Pending {
    pub tickets: Tickets,
    outcome: Mutex<Outcome>,
    over: Event,
}

enum Outcome {
    Running,
    Done(Result<Block>),
    /// The leader went away.
    Abandoned,
}

/// Held by whoever does the read.
pub struct Lead<'a> {
    reads: &'a PendingReads,
    key: Key,
    pub pending: Arc<Pending>,
}

pub enum Join<'a> {
    Lead(Lead<'a>),
    Wait(Arc<Pending>),
}

impl PendingReads {
    pub fn join(&self, key: Key, class: Priority) -> Join<'_> {
        let mut map = self.0.lock();
        if let Some(p) = map.get(&key).cloned() {
            drop(map);
            if class == Priority::SyncRead {
                p.tickets.promote(class);
            }
            return Join::Wait(p);
        }
        let pending = Arc::new(Pending {
            tickets: Tickets::default(),
            outcome: Mutex::new(Outcome::Running),
            over: Event::new(),
        });
        map.insert(key, pending.clone());
        Join::Lead(Lead { reads: self, key, pending })
    }
}

impl Pending {
    /// The leader's outcome; `None` if it went away.
    pub async fn wait(self: Arc<Self>) -> Option<Result<Block>> {
        loop {
            let listener = self.over.listen();
            match &*self.outcome.lock() {
                Outcome::Running => {}
                Outcome::Done(r) => return Some(r.clone()),
                Outcome::Abandoned => return None,
            }
            listener.await;
        }
    }
}

impl Lead<'_> {
    pub fn finish(self, outcome: &Result<Block>) {
        *self.pending.outcome.lock() = Outcome::Done(outcome.clone());
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.reads.0.lock().remove(&self.key);
        {
            let mut outcome = self.pending.outcome.lock();
            if matches!(*outcome, Outcome::Running) {
                *outcome = Outcome::Abandoned;
            }
        }
        self.pending.over.notify(usize::MAX);
    }
}
