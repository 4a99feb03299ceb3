//! Printing, the way OpenZFS prints.
//!
//! Functions here turn typed facts into text and know neither the daemon nor the terminal, so the
//! output of real OpenZFS commands can be held against them in tests.
//!
//! What it keeps true: columns, spaces and words are OpenZFS's, because scripts cut them apart;
//! numbers are printed by the one place that knows how (`zilla_control::props::nicenum`).

pub mod color;
pub mod ddt;
pub mod interval;
pub mod json;
pub mod poolprop;
pub mod proplist;
pub mod time;
pub mod vdev;
mod zone;

/// The first line of `version`.
pub fn version() -> String {
    format!("zilla-{}", env!("CARGO_PKG_VERSION"))
}

/// `text` padded on the right to `width` characters.
pub fn left(text: &str, width: usize) -> String {
    format!("{text:<width$}")
}

/// `text` padded on the left to `width` characters.
pub fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}
