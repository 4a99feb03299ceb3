//! Promotion of reads that still queue.
//!
//! A prefetch waits in a class of its own. When someone begins to wait for what it fetches, its
//! I/Os must not stay behind everything less urgent than that someone: [`Tickets`] knows where they
//! wait and moves them.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::leaf::Leaf;
use super::priority::Priority;
use super::queue::Ticket;

/// Remembers where the I/Os of a read wait, so that they can be promoted.
#[derive(Default)]
pub struct Tickets(Mutex<TicketState>);

#[derive(Default)]
struct TicketState {
    promoted: Option<Priority>,
    waiting: SmallVec<[(Arc<Leaf>, Ticket); 2]>,
}

impl Tickets {
    /// Someone waits for the read now: what of it still queues, or will, does so in class `to`.
    pub fn promote(&self, to: Priority) {
        let waiting = {
            let mut state = self.0.lock();
            if state.promoted.is_some_and(|p| p <= to) {
                return;
            }
            state.promoted = Some(to);
            std::mem::take(&mut state.waiting)
        };
        for (leaf, ticket) in waiting {
            leaf.queue.lock().promote(ticket, to);
            leaf.pump();
        }
    }

    pub(super) fn class(&self, class: Priority) -> Priority {
        self.0.lock().promoted.map_or(class, |p| p.min(class))
    }

    /// Notes I/Os that went into a leaf's queue; if the read was promoted meanwhile, they are at
    /// once.
    pub(super) fn wait(&self, leaf: &Arc<Leaf>, waiting: &[Ticket]) {
        let promoted = {
            let mut state = self.0.lock();
            if state.promoted.is_none() {
                state.waiting.extend(waiting.iter().map(|w| (leaf.clone(), *w)));
            }
            state.promoted
        };
        if let Some(to) = promoted {
            let mut queue = leaf.queue.lock();
            waiting.iter().for_each(|w| queue.promote(*w, to));
        }
    }
}
