//! The pool: what is imported, its transaction groups, its configuration.
//!
//! **Deliberately absent.** Nothing here knows of files or datasets' insides; `dsl` and `zpl` stand on [`PoolCtx`].

mod ctx;
pub mod features;
pub mod txg;

pub use ctx::PoolCtx;
