//! Virtual devices: from a top-level vdev's address space to bytes on disks, with the redundancy in
//! between.
//!
//! **Floor 2.** Devices know nothing of blocks.
//!
//! A pool's vdevs form a tree. The root's children, the *top-level* vdevs, each give one linear
//! address space that a block pointer's DVA names by vdev number and offset. Below a top-level
//! stand its leaves: one disk or file, copies of each other (mirror, and replacing and spare, which
//! are mirrors for a time), or the columns of a RAID-Z.
//!
//! - [`Vdev`] is a node: what the configuration says of it, its state, its error counts;
//! - [`VdevTree`] is the whole, with the view that I/O takes: each [`Top`] is one [`Unit`] or a
//!   RAID-Z or dRAID of units, and a unit is a set of leaves that hold the same bytes, however
//!   deeply mirrors are nested in the configuration;
//! - [`Leaf`] is a device with its queue, its statistics and its DTL (the txgs it missed;
//!   `resilver.rs` says how it gets them);
//! - `raidz.rs` and [`draid`] say how a block lies across a top-level's units, `widths.rs` how wide
//!   an expanded RAID-Z's blocks are, `distributed.rs` where what lies on a distributed spare is,
//!   `read_columns.rs` reads such a block;
//! - `reflow.rs` says where the sectors of a RAID-Z are that is being expanded, `moving.rs` moves
//!   them;
//! - `indirect.rs` is a vdev that was removed, `read_split.rs` reads what became of a block there;
//! - [`change`] makes the tree that takes a tree's place when devices come and go;
//! - `spare.rs` says which devices need a hot spare;
//! - `hung.rs` gives devices up that do not answer;
//! - `trouble.rs` keeps what goes wrong at a leaf until the pool judges it;
//! - `upkeep.rs` is how far a leaf is initialized and trimmed;
//! - `injected.rs` is what handlers of [`crate::inject`] do to a leaf's I/O;
//! - `grow.rs` looks at devices whose size has changed;
//! - [`lease`] is until when a pool's devices may be written;
//! - [`label`] and [`label_write`] are what stands at both ends of each leaf, the configuration and
//!   the uberblocks.
//!
//! On disk a leaf is two labels, a boot area, the data, two labels (see `zilla_ondisk::label`). A
//! DVA's offset 0 is 4M into the device.
//!
//! What is kept true:
//! - A read gives bytes that the caller's check accepts, or an error. Copies that fail the check
//!   are counted against their leaf, and written again from the good ones.
//! - A write that reached too few leaves to be read back is an error of its txg; one that reached
//!   enough is recorded in the DTL of the leaves it did not reach, before the txg's uberblock is
//!   written.
//! - A failed flush is never repeated: whoever wrote before it is told that its writes may be lost
//!   ([`flush`]).
//! - Locks are leaves in the lock order: a queue's and a DTL's lock are held for a few
//!   instructions, never one under another (but the list of injected faults under a queue's), and
//!   never while a device is called.
//!
//! A crash needs nothing from here but the order of labels and uberblocks (see [`label_write`]):
//! blocks are never overwritten in place within the txgs an import may go back to.
//!
//! Deliberately absent: failure domains of dRAIDs. What a configuration has of them is refused by
//! name.

pub mod change;
mod config;
mod distributed;
pub mod draid;
mod draid_seeds;
mod dtl;
mod flush;
mod gate;
mod gather;
pub mod gpt;
mod grow;
mod hung;
mod indirect;
mod injected;
pub mod label;
pub mod label_write;
mod leaf;
mod lease;
mod moving;
mod node;
mod open;
mod priority;
mod probe;
mod queue;
pub(crate) mod raidz;
mod read;
mod read_columns;
mod read_split;
mod rebuild;
mod reflow;
mod resilver;
mod spare;
pub mod spec;
mod state;
mod stats;
mod tickets;
mod tree;
mod trouble;
mod upkeep;
mod usable;
mod went_on;
pub(crate) mod widths;
mod within;
pub(crate) mod write;

pub use distributed::{Room, Side};
pub use dtl::Dtl;
pub(crate) use gate::Kept;
pub use gather::IoDone;
pub use grow::{MOST_METASLABS, MS_COUNT_LIMIT, NewSize};
pub use indirect::{Indirect, Piece, Run};
pub use label::{FoundUberblock, LabelInfo, PoolLabels};
pub use label_write::Beat;
pub use leaf::Leaf;
pub use lease::{Guarded, Lease};
pub use moving::Move;
pub use node::{Vdev, VdevKind};
pub use open::{OpenArgs, SPLIT_GUID};
pub use priority::Priority;
pub use probe::{open_device, pool_device, probe, probe_path};
pub use read::{DvaFailure, Fence, Guard, Reader, unfenced};
pub use rebuild::Unrebuilt;
pub use reflow::{Position, Reflow, Stage, limit as reflow_limit};
pub use resilver::{REBUILD_TXG, RESILVER_TXG};
pub use spec::{LeafSpec, PoolSpec, TopSpec, new_guid};
pub use stats::{IoKind, LeafStats, StatSnapshot};
pub use tickets::Tickets;
pub use tree::{ConfigFor, Layout, Top, Unit, VdevTree};
pub use trouble::{Trouble, TroubleKind};
pub use upkeep::{Upkeep, UpkeepKind, UpkeepStat, UpkeepState};
pub use widths::{ExpandState, Widths};
pub use within::{OPEN_TIMEOUT, SLOW_TIMEOUT, within};
pub use zilla_ondisk::enums::{VdevAux, VdevState};

#[cfg(test)]
mod tests;
