//! What can go wrong, and why something is refused.
//!
//! An [`Error`] is damage, an operating error with its number ([`Errno`]), or a refusal: a
//! [`DatasetRefusal`] or [`PoolRefusal`], which callers may tell apart instead of reading words.

pub use zilla_core::error::{DatasetRefusal, Errno, Error, PoolRefusal, Result};
