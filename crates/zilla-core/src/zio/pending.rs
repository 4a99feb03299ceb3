//! Reads that are under way, so that a second reader of a block waits for the first one's I/O.
//!
//! The first reader does the work in its own task. If it goes away unfinished (its client was
//! dropped), whoever waits for it starts over. A more urgent second reader promotes the I/Os that
//! still queue.
//!
//! A txg may write a block that it wrote before once more to the same place. Whoever still reads
//! what was there gets it or an error, but nobody joins him any more, and it does not come into the
//! cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event_listener::Event;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::Priority;
use crate::arc::{Access, Block, Key};
use crate::error::Result;
use crate::vdev::Tickets;

#[derive(Default)]
pub struct PendingReads(Mutex<HashMap<Key, Arc<Pending>>>);

pub struct Pending {
    pub tickets: Tickets,
    outcome: Mutex<Outcome>,
    over: Event,
    overwritten: AtomicBool,
    /// For whom it was begun.
    pub access: Access,
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
    pub fn join(&self, key: Key, class: Priority, access: Access) -> Join<'_> {
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
            overwritten: AtomicBool::new(false),
            access,
        });
        map.insert(key, pending.clone());
        Join::Lead(Lead { reads: self, key, pending })
    }

    /// Other contents are about to be written there, and must not be in a cache yet.
    pub fn overwrite(&self, keys: &[Key]) {
        let mut map = self.0.lock();
        if map.is_empty() {
            return;
        }
        for key in keys {
            if let Some(p) = map.remove(key) {
                p.overwritten.store(true, Ordering::Release);
            }
        }
    }
}

impl Pending {
    pub fn is_overwritten(&self) -> bool {
        self.overwritten.load(Ordering::Acquire)
    }

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
        {
            let mut map = self.reads.0.lock();
            // Another's by now, if it was overwritten.
            if map.get(&self.key).is_some_and(|p| Arc::ptr_eq(p, &self.pending)) {
                map.remove(&self.key);
            }
        }
        {
            let mut outcome = self.pending.outcome.lock();
            if matches!(*outcome, Outcome::Running) {
                *outcome = Outcome::Abandoned;
            }
        }
        self.pending.over.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_joins_who_reads_what_is_overwritten() {
        let (reads, key) = (PendingReads::default(), |offset| Key { vdev: 0, offset, birth: 7 });
        let join = |offset| reads.join(key(offset), Priority::SyncRead, Access::Demand);
        let (Join::Lead(old), Join::Lead(other)) = (join(1), join(2)) else { panic!("nobody reads yet") };
        assert!(matches!(join(1), Join::Wait(_)));
        reads.overwrite(&[key(1), key(3)]);
        assert!(old.pending.is_overwritten() && !other.pending.is_overwritten());
        let Join::Lead(new) = join(1) else { panic!("it joined a read of what was there before") };
        drop(old);
        assert!(matches!(join(1), Join::Wait(p) if Arc::ptr_eq(&p, &new.pending)));
        drop(new);
        assert!(matches!(join(1), Join::Lead(_)));
    }
}
