//! Every structure of the ZFS on-disk format, parsed and serialized, and nothing else.
//!
//! This crate exists so that the bytes of the format have one home: no I/O, no locks, no `unsafe`,
//! no knowledge of pools. A function takes bytes and the byte order they were written in and gives
//! a value, or takes a value and gives bytes.
//!
//! What it keeps true:
//! - Bytes from a disk are hostile. Every read is bounds checked, every count is compared with the
//!   bytes that are really there before memory is taken for it, recursion is bounded. The outcome
//!   of bad bytes is a [`FormatError`] that names the structure, the field and the offset; never a
//!   panic.
//! - Both byte orders are read, since a pool may have been written by a machine of the other kind
//!   ([`ByteOrder`]); only the machine's own is written, as OpenZFS does.
//! - A structure that was decoded and encoded again is the same bytes, save for pads that OpenZFS
//!   also zeroes.
//!
//! Names are OpenZFS's. A type that mirrors an on-disk struct field by field ends in `Phys`, except
//! the few that everything else speaks of (`BlkPtr`, `Uberblock`, `ZilHeader`).
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod bytes;
mod error;
mod order;

pub mod blkptr;
pub mod bpobj;
pub mod bptree;
pub mod brt;
pub mod crypt;
pub mod ddt;
pub mod deadlist;
pub mod dnode;
pub mod dsl;
pub mod enums;
pub mod errlog;
pub mod feature;
pub mod gang;
pub mod history;
pub mod l2arc;
pub mod label;
pub mod nvlist;
pub mod object_type;
pub mod objset;
pub mod removal;
pub mod sa;
pub mod spacemap;

pub mod stream;
pub mod trace;
pub mod uberblock;
pub mod vdev_zap;
pub mod zap;
pub mod zbookmark;
pub mod zil;
pub mod znode;

pub use blkptr::{BlkPtr, BpError, Dva};
pub use bytes::{Field, Phys, Reader, Writer};
pub use dnode::DnodePhys;
pub use error::{FormatError, Problem, Result};
pub use label::EckPhys;
pub use nvlist::{NvList, NvValue};
pub use object_type::ObjectType;
pub use objset::ObjsetPhys;
pub use order::ByteOrder;
pub use uberblock::Uberblock;
pub use zbookmark::ZbookmarkPhys;
pub use zil::ZilHeader;

/// Sizes and offsets in block pointers and labels are stored in units of this.
pub const SPA_MINBLOCKSHIFT: u32 = 9;
/// 512 bytes: the smallest block.
pub const SPA_MINBLOCKSIZE: u64 = 1 << SPA_MINBLOCKSHIFT;
/// 128K: the largest block without the feature `large_blocks`.
pub const SPA_OLD_MAXBLOCKSIZE: u64 = 1 << 17;
/// 16M: the largest block of all.
pub const SPA_MAXBLOCKSIZE: u64 = 1 << 24;
/// An exbibyte: no pool, and no counter of a pool's bytes, is larger. What says so is damaged, and
/// must not be computed with.
pub const MAX_COUNTED_BYTES: u64 = 1 << 60;
/// No pool lives through so many txgs: one each microsecond for 36,000 years.
pub const MAX_TXG: u64 = 1 << 60;
