//! What all that stands on a pool shares of it: its block store, its txgs, its MOS, its features.
//!
//! **Floor 9.** It stands on objects and ZAPs, below all that belongs to a dataset.
//!
//! Datasets, intent logs, scans and streams are made of objects, but belong to a pool: they ask
//! which txg is open, whether a feature may be used, and have the MOS changed. For that they hold
//! the [`PoolCtx`], which the pool ([`crate::spa`], on the top floor) makes first.
//!
//! What it keeps true: what is called in syncing context runs alone, after its txg's data is
//! written; a feature's count on disk is right with the txg that makes it so.
//!
//! **Crash.** The queues here are in memory and of txgs that are not on disk: what they hold is
//! lost with the txg, whole.
//!
//! **Locks** are leaves, each held for a push or a take.

mod ctx;
pub mod features;

pub use ctx::PoolCtx;
