//! A recorded trace of a pool: what was read, committed and synced, when, and what it cost.
//!
//! This is zilla's own file; OpenZFS has no such thing. It is written while the pool runs, so it
//! can end anywhere: it is a row of frames, each complete in itself and under a checksum, and a
//! file that is cut off is worth what its whole frames say.
//!
//! ```text
//! file    "ZILTRACE", version (u32), zero (u32), frame ...
//! frame   "ZFRM" (u32), kind (u32), bytes of payload (u32), records in it (u32),
//!         records lost before it (u64), CRC-64 of those 24 bytes and the payload (u64), payload
//! kind    1 header: facts of the pool ([`TraceHeader`]), the first frame
//!         2 records: microseconds of the first (u64), then each as a byte of flags and numbers of variable
//!           length, most of them as the difference from the record before ([`records`])
//!         3 end: records and lost ones in all, microseconds in all (u64 each)
//! ```
//!
//! All numbers are little-endian. A version that is not [`VERSION`] is refused: what the numbers
//! mean is all there is to such a file.
//!
//! What is kept true: a frame's payload is at most [`MAX_PAYLOAD`] bytes, so that a reader needs no
//! more memory than that; and no value that a reader gives out is larger than what a pool can have.

mod frame;
mod record;

pub use frame::{End, FRAME_HEAD, Item, Parser, TraceHeader, end_frame, header_frame, preamble};
pub use record::{BlockId, Event, Found, Record, records};

pub const MAGIC: [u8; 8] = *b"ZILTRACE";
pub const VERSION: u32 = 1;
/// No frame's payload is larger.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// So many records go into a frame at most.
pub const RECORDS_A_FRAME: usize = 16 << 10;
/// Microseconds: a trace is shorter than 35 years, and an operation than a day and a half.
pub const MAX_MICROS: u64 = 1 << 50;
pub const MAX_LATENCY: u64 = 1 << 37;

#[cfg(test)]
mod tests;
