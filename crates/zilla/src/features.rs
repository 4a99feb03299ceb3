//! Which features of pools there are in this library.

pub use zilla_core::spa::features::{SUPPORTED, can_serve};
