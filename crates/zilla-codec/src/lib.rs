//! What turns blocks into other bytes: checksums, compression, encryption, RAID-Z parity.
//!
//! This is the lowest floor of zilla. Every function here takes byte slices and gives byte slices
//! or words back; nothing does I/O, blocks, spawns or keeps state that a caller could see. One file
//! holds one algorithm, and where a SIMD kernel exists its scalar twin stands beside it, with a
//! test that the two agree on every input. The twin is the specification; the kernel is an
//! optimisation that may be deleted.
//!
//! What this crate keeps true:
//! - the results are OpenZFS's, bit for bit: they are on disk, in other people's pools;
//! - decoders get bytes that come from a disk. No input makes them panic, read or write out of
//!   bounds, or allocate: the output slice is the caller's and its length is the exact length that
//!   must come out;
//! - the steady state allocates nothing: tables and library contexts live in thread-locals.
//!
//! The CPU is looked at once, at run time ([`cpu`]); one binary serves every x86-64.

#![deny(clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod checksum;
pub mod compress;
pub mod cpu;
pub mod crypt;
pub mod raidz;
