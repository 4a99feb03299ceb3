//! Space: which bytes of the pool's vdevs are free, who gets them, and how that is remembered on
//! disk.
//!
//! **Floor 8.** Its space maps are objects of the MOS, so it stands on those, and below all that
//! uses space by datasets.
//!
//! Every top-level vdev is divided into equal *metaslabs*. What is allocated in one is written down
//! in its *space map*, a log of allocations and frees ([`space_map`]); the vdev's metaslab array
//! lists the maps' objects. Since a txg frees blocks all over the pool, it does not append to
//! hundreds of maps but to one *log space map* a txg ([`log`]); metaslabs are flushed, a few a txg,
//! from the logs to their own maps, and logs that no metaslab needs any more are destroyed.
//!
//! ```text
//!   MOS  vdev's metaslab array -> [object] -> space map: header (bonus) + entries
//!        vdev's top ZAP, com.delphix:ms_unflushed_phys_txgs -> [txg from which logs count, by metaslab]
//!        vdev's top ZAP, com.delphix:pool_checkpoint_sm -> space map of what only the checkpoint has ([`checkpoint`])
//!        pool directory, com.delphix:log_spacemap_zap -> txg -> log space map
//! ```
//!
//! In memory a metaslab's free ranges exist only while it is loaded ([`slab`], [`range_tree`]).
//! Each *class* (normal, log, the part of normal vdevs that is kept for the intent log, special,
//! dedup) takes turns among its vdevs ([`alloc`]); within a vdev each copy of blocks follows its
//! own metaslab ([`vdev`]), so that what is written together lies together, and copies lie apart.
//!
//! **Invariants.** A byte is given out only when it has been free in every uberblock that an import
//! may go back to: what is freed in a txg is deferred for two more (but where space is short,
//! [`Metaslabs::sync_done`], only until its own is on disk). What [`Metaslabs::sync`] wrote and
//! what is in memory always add up to the same allocation. Damage in a space map makes its metaslab
//! unusable for allocation, never two owners for a byte.
//!
//! **Crash.** Maps, logs and their lists are objects of the MOS, changed only by the sync task, so
//! the last synced txg has all of them as they were at its end.
//!
//! **Lock order.** A group's lanes, a metaslab, then dnodes, dirty lists and counters. No lock is
//! held while waiting.
//!
//! **Deliberately absent.** Allocation that waits (it names the metaslab to be loaded instead);
//! per-CPU allocators.

mod alloc;
mod checkpoint;
mod grow;
mod loan;
mod log;
mod range_tree;
mod remove;
mod removed;
mod report;
mod slab;
mod space_map;
mod spare;
mod sync;
mod vdev;

#[cfg(test)]
mod tests;

pub use alloc::Metaslabs;
pub use loan::{Loan, Plot};
pub use range_tree::{Contradiction, RangeTree};
pub use report::{MetaslabReport, VdevReport};
pub use space_map::{Append, MapType, SpaceFeatures, SpaceMap, create_object};
pub use sync::FeatureCounts;
pub use vdev::{SpaceClass, SpaceStat, VdevSpec, metaslab_shift};
