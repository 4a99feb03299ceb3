//! Whether whoever asked for something still waits for it.
//!
//! The server keeps one end as long as the connection lives; an operation that may take long and
//! can stop between two whole steps looks at the other.

use std::sync::{Arc, Weak};

/// By default somebody waits: what the daemon asks of itself has no connection.
#[derive(Debug, Clone, Default)]
pub struct Presence(Option<Weak<()>>);

impl Presence {
    /// Somebody waits as long as this is kept.
    pub fn of(waits: &Arc<()>) -> Presence {
        Presence(Some(Arc::downgrade(waits)))
    }

    pub fn is_gone(&self) -> bool {
        self.0.as_ref().is_some_and(|waits| waits.strong_count() == 0)
    }
}

/// The same one waits.
impl PartialEq for Presence {
    fn eq(&self, other: &Presence) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => a.ptr_eq(b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl Eq for Presence {}
