//! What happens to pools, as it happens: the events that `zpool events` prints.
//!
//! One ring a process holds the last of them ([`events`]); who reads slower than they come is told
//! how many were lost.

pub use zilla_core::events::{Event, Events, events};
