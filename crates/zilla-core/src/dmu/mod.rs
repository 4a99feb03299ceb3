//! The data management unit: objects in objsets, changed in transactions, synced in batches.
//!
//! **Floor 6.** It stands on a `BlockStore`, whichever that is.
//!
//! An *objset* is an array of objects: a file system, a volume, or the pool's own metadata (the
//! MOS). On disk it is one block (`ObjsetPhys`) whose meta-dnode's data is the array of dnodes;
//! each dnode is the root of a tree of indirect blocks with the object's data as leaves.
//!
//! ```text
//!   ObjsetPhys -> meta-dnode -> indirect ... -> dnode blocks: [dnode 1][dnode 2]...
//!                                                    |
//!                                                    +-> indirect ... -> data
//! ```
//!
//! In memory an object has its latest state for callers and one record a txg of what changed
//! (`dnode`), its blocks carry one layer a txg (`dbuf`), and nothing ever waits to read before it
//! writes. A sync (`sync`) takes everything one txg changed, level by level, as a few large
//! batches: level-0 blocks of all objects, then their parents, up to the one block whose pointer is
//! the result. What it must read for that, the reads that writes put off, begins in disk order when
//! the txg is closed (`resolve`). Code that must look before it changes uses `fault`; files and
//! volumes read and write their objects by `stream`, which reads ahead what `zfetch` expects.
//!
//! **Invariants.** Blocks are never overwritten in place: a sync writes new blocks and hands out
//! the old pointers as *killed*, so that until the uberblock is replaced the old tree is whole, and
//! a crash at any point leaves it. The synced state in memory equals what the last sync returned. A
//! txg's layers are on the bottom when it is synced, because txgs are synced in order.
//!
//! **Lock order.** An objset's dnode table, then a dnode, then the dirty lists and the dbuf cache.
//! No lock is held while waiting.
//!
//! What a sync cannot put on disk because the old state cannot be read is the object's trouble, not
//! the pool's (`held`).
//!
//! Who frees much frees it in parts, a txg each (`parts`).
//!
//! A block that the intent log had written before its txg's sync (`ahead`) is taken over by that
//! sync, or freed by it.
//!
//! **Deliberately absent.** There are no per-block write states, no rewrite records, no holds that
//! make a reader wait for a writer.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

mod ahead;
mod cache;
mod counts;
mod dbuf;
mod dnode;
mod fault;
mod held;
mod listed;
mod load;
mod needs;
pub(crate) mod objects;
mod objset;
mod parts;
mod pieces;
mod range;
mod resolve;
mod slots;
mod stream;
mod sync;
#[cfg(test)]
pub mod testing;
mod tree;
mod write_props;
mod zfetch;

pub use cache::{DbufCache, DbufCounts};
pub(crate) use counts::count;
pub use counts::{ObjsetCounts, ObjsetStats, StreamCounts, StreamStats};
pub use dnode::Dnode;
pub(crate) use dnode::max_bonus;
pub use fault::{Need, Now, Stop, in_tx, resident};
pub(crate) use held::{Kept, KeptPart};
pub use listed::DbufInfo;
pub(crate) use objset::nblkptr_for;
pub use objset::{MetaShape, NewObject, Objset, Owner, OwnerFn, WriteProps};
pub(crate) use parts::PART;
pub use range::RangeSet;
pub use resolve::{FaultCounts, Faults, Resolver};
pub(crate) use stream::Written;
pub use stream::{ReadData, Zfetch};
pub use sync::{ObjsetSync, Usage};
pub use write_props::Prefetch;

#[cfg(test)]
mod tests;
