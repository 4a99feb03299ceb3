//! zilla's engine: OpenZFS's on-disk format behind an asynchronous core.
//!
//! One crate with a folder a subsystem, because in ZFS the lower floors need each other: the pool's
//! own metadata lies in objects that stand on the pool. From the top: [`zpl`] (POSIX files),
//! [`zvol`] (block volumes), [`dsl`] (datasets), [`zap`] (names to numbers), [`dmu`] (objects in
//! transactions), [`spa`] (the pool and its txgs), [`scan`] (scrub), [`crypt`] (keys), [`zio`]
//! (block pointers to bytes), [`arc`], [`l2arc`], [`metaslab`], [`vdev`]. ARCHITECTURE.md has the
//! map and follows a write and a read through it.
//!
//! What the whole keeps true:
//! - Nothing blocks a thread: waiting is `await`, and no lock is held across one. Operations on
//!   what is in memory are plain functions that ask for what is missing having changed nothing
//!   ([`dmu::Stop`]).
//! - No block in use is overwritten, and a txg is on disk whole or not at all; so a crash at any
//!   point leaves the last synced txg.
//! - Devices, time, tasks and randomness come from `zilla_env`; the crate knows no runtime.
//! - Errors are corruption, operating errors or bugs, never mixed ([`error`]).

/// `zilla-testkit`'s `memory.rs`, which this crate's unit tests compile as well, calls the engine
/// by its crate's name.
#[cfg(test)]
extern crate self as zilla_core;

pub mod arc;
pub mod check;
pub mod crypt;
pub mod ddt;
pub mod dmu;
pub mod dsl;
pub mod error;
pub mod events;
pub mod inject;
pub mod l2arc;
pub mod memory;
pub mod metaslab;
#[cfg(feature = "planted")]
pub mod planted;
pub mod pool;
pub mod scan;
pub mod send;
pub mod spa;
pub mod trace;
pub mod tunables;
pub mod txg;
pub mod types;
pub mod vdev;
pub mod zap;
pub mod zil;
pub mod zio;
pub mod zpl;
pub mod zvol;

/// For what callers await once a command or a txg; reads, writes and lookups of what is in memory
/// do without its allocation.
pub(crate) use zilla_macros::boxed;
