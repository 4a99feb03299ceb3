//! Block volumes: what OpenZFS calls zvols.
//!
//! **Floor 13.** It stands on a dataset's objset.
//!
//! A volume is an objset of type ZVOL with two objects. Object 1 (`ZVOL_OBJ`) has the bytes, in
//! blocks of `volblocksize`, which is settled when the volume is made. Object 2 (`ZVOL_ZAP_OBJ`) is
//! a ZAP that says in `size` how many bytes there are; blocks beyond the last written one, and
//! those that were freed, read as zeroes.
//!
//! ```text
//!   objset: [1: DMU_OT_ZVOL, blocks of volblocksize] [2: DMU_OT_ZVOL_PROP, {"size": bytes}]  zil_header -> intent log
//! ```
//!
//! **In memory** an open volume is one [`Zvol`]. A read is a function over what is in memory, run
//! again after what was missing is loaded. A write never reads: it is merged into the records'
//! dbufs ([`crate::dmu`]). Freeing a range (trim, zeroes) costs metadata only.
//!
//! **Intent log.** Writes and freed ranges leave records (TX_WRITE, TX_TRUNCATE) with the changes
//! they tell of; large whole records are written in place. A flush is a commit of object 1.
//! `replay` does what the records of a crashed machine say.
//!
//! **Invariants.** Nothing at or beyond the size is read or written by a request. All changes of a
//! volume are made under one lock (`order`), after asking whether a newer txg has changed the
//! objects already ([`crate::dmu::Dnode::in_order`]), and their records are left under the same
//! lock; so the log has them in the order in which they were made. A size that grows is told to
//! users only when it is on disk, because no record tells of it.
//!
//! **Crash.** A request's changes lie in one txg (a write of more than 4 MiB in several). What was
//! flushed is in the log or in a synced txg; what was not may be there or not, each part as one of
//! the states it had.
//!
//! **Lock order.** `order`, then a dnode. Nothing waits under it.
//!
//! **Deliberately absent.** No byte range locks: overlapping requests that are under way at the
//! same time have no order, as on a disk. No device node: servers (NBD, FUSE) stand on the facade.

mod create;
mod io;
mod replay;
mod resize;
mod volume;

#[cfg(test)]
mod tests;

pub use create::{NewVolume, check_size, create_volume, create_volume_with};
pub use resize::{Resv, volsize_to_reservation};
pub use volume::{VolumeProps, Zvol};

/// The object with a volume's bytes.
pub const ZVOL_OBJ: u64 = 1;
/// The ZAP that says how many they are.
pub const ZVOL_ZAP_OBJ: u64 = 2;
/// `volblocksize` where nobody says another (OpenZFS's `ZVOL_DEFAULT_BLOCKSIZE`), in bytes.
pub const ZVOL_DEFAULT_BLOCKSIZE: u64 = 16 << 10;
/// The entry of the ZAP.
const SIZE: &str = "size";
