//! Records, and how a frame packs them.

use super::frame::frame;
use super::{MAX_LATENCY, MAX_MICROS, RECORDS_A_FRAME};
use crate::bytes::{Reader, Writer};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;
use crate::{MAX_COUNTED_BYTES, MAX_TXG, SPA_MAXBLOCKSIZE, SPA_MINBLOCKSHIFT};

const NAME: &str = "trace record";

/// A block's physical identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    pub vdev: u32,
    pub offset: u64,
    pub birth: u64,
}

/// Where a block that was asked for was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In memory.
    Memory,
    /// On its way: somebody else had asked for it.
    OnItsWay,
    /// On a cache device.
    CacheDevice,
    /// On the pool's own disks.
    Pool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was asked for. `lsize` and `psize` are bytes before and after compression.
    Read {
        block: BlockId,
        objset: u64,
        lsize: u32,
        psize: u32,
        metadata: bool,
        prefetch: bool,
        found: Found,
        micros: u64,
    },
    /// Somebody wanted to have what he did on stable storage, and waited so long.
    Commit { objset: u64, micros: u64 },
    /// A block of an intent log: its bytes on disk, and what its write and its flush took.
    LogBlock { objset: u64, bytes: u64, micros: u64 },
    /// A txg was synced: the bytes of its blocks, and how long it took.
    Txg { txg: u64, bytes: u64, micros: u64 },
}

/// Something that happened, at the time when it was over, in microseconds from the trace's
/// beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub at: u64,
    pub event: Event,
}

/// The lowest three bits of a record's first byte.
const READ: u8 = 0;
const COMMIT: u8 = 1;
const LOG_BLOCK: u8 = 2;
const TXG: u8 = 3;
const KIND: u8 = 7;
/// Of a read.
const METADATA: u8 = 1 << 3;
const PREFETCH: u8 = 1 << 4;
const FOUND_SHIFT: u32 = 5;
/// Sizes are counted in sectors where they are whole ones.
const BYTES: u8 = 1 << 7;

/// What a record is told as the difference from: the one before it in the frame.
#[derive(Default)]
struct Before {
    at: u64,
    offset: u64,
    birth: u64,
    objset: u64,
}

fn put(w: &mut Writer, mut n: u64) {
    while n >= 0x80 {
        w.u8(n as u8 | 0x80);
        n >>= 7;
    }
    w.u8(n as u8);
}

/// The difference of two numbers, small where they are close, whichever is the larger.
fn put_from(w: &mut Writer, n: u64, before: &mut u64) {
    let d = n.wrapping_sub(std::mem::replace(before, n)) as i64;
    put(w, ((d << 1) ^ (d >> 63)) as u64);
}

fn get(r: &mut Reader<'_>, field: &'static str) -> Result<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let b = r.u8(field)?;
        n |= u64::from(b & 0x7f) << shift;
        if b & 0x80 == 0 {
            // The tenth byte has one bit.
            return match shift == 63 && b > 1 {
                true => {
                    Err(r.error(field, Problem::Impossible { value: b.into(), why: "more than 64 bits" }))
                }
                false => Ok(n),
            };
        }
    }
    Err(r.error(field, Problem::TooDeep { limit: 10 }))
}

fn up_to(r: &mut Reader<'_>, field: &'static str, max: u64) -> Result<u64> {
    let n = get(r, field)?;
    within(r, field, n, max)
}

pub(super) fn within(r: &Reader<'_>, field: &'static str, n: u64, max: u64) -> Result<u64> {
    if n <= max {
        return Ok(n);
    }
    Err(FormatError::impossible(NAME, field, r.pos(), n, "larger than any pool has"))
}

fn get_from(r: &mut Reader<'_>, field: &'static str, before: &mut u64) -> Result<u64> {
    let n = get(r, field)?;
    let d = (n >> 1) as i64 ^ -((n & 1) as i64);
    *before = before.wrapping_add(d as u64);
    Ok(*before)
}

fn encode(w: &mut Writer, record: &Record, before: &mut Before) {
    match record.event {
        Event::Read { block, objset, lsize, psize, metadata, prefetch, found, micros } => {
            let whole = |n: u32| n.is_multiple_of(1 << SPA_MINBLOCKSHIFT);
            let bytes = !whole(lsize) || !whole(psize);
            let shift = if bytes { 0 } else { SPA_MINBLOCKSHIFT };
            let flag = |on: bool, bit: u8| if on { bit } else { 0 };
            let found = found as u8;
            let flags = flag(metadata, METADATA) | flag(prefetch, PREFETCH) | flag(bytes, BYTES);
            w.u8(flags | (found << FOUND_SHIFT));
            put_from(w, record.at, &mut before.at);
            put(w, block.vdev.into());
            put_from(w, block.offset, &mut before.offset);
            put_from(w, block.birth, &mut before.birth);
            put_from(w, objset, &mut before.objset);
            put(w, u64::from(lsize >> shift));
            put(w, u64::from(psize >> shift));
            put(w, micros.min(MAX_LATENCY));
        }
        Event::Commit { objset, micros } => {
            w.u8(COMMIT);
            put_from(w, record.at, &mut before.at);
            put_from(w, objset, &mut before.objset);
            put(w, micros.min(MAX_LATENCY));
        }
        Event::LogBlock { objset, bytes, micros } => {
            w.u8(LOG_BLOCK);
            put_from(w, record.at, &mut before.at);
            put_from(w, objset, &mut before.objset);
            put(w, bytes.min(MAX_COUNTED_BYTES));
            put(w, micros.min(MAX_LATENCY));
        }
        Event::Txg { txg, bytes, micros } => {
            w.u8(TXG);
            put_from(w, record.at, &mut before.at);
            put(w, txg);
            put(w, bytes.min(MAX_COUNTED_BYTES));
            put(w, micros.min(MAX_LATENCY));
        }
    }
}

fn decode(r: &mut Reader<'_>, before: &mut Before) -> Result<Record> {
    let flags = r.u8("flags")?;
    let at = get_from(r, "time", &mut before.at)?;
    let at = within(r, "time", at, MAX_MICROS)?;
    let impossible =
        |r: &Reader<'_>| r.error("flags", Problem::Impossible { value: flags.into(), why: "no such record" });
    if flags & KIND != READ && flags & !KIND != 0 {
        return Err(impossible(r));
    }
    let event = match flags & KIND {
        READ => {
            let vdev = up_to(r, "vdev", u32::MAX.into())? as u32;
            let offset = get_from(r, "offset", &mut before.offset)?;
            let birth = get_from(r, "birth", &mut before.birth)?;
            let birth = within(r, "birth", birth, MAX_TXG)?;
            let objset = get_from(r, "objset", &mut before.objset)?;
            let shift = if flags & BYTES != 0 { 0 } else { SPA_MINBLOCKSHIFT };
            let lsize = (up_to(r, "lsize", SPA_MAXBLOCKSIZE >> shift)? << shift) as u32;
            let psize = (up_to(r, "psize", SPA_MAXBLOCKSIZE >> shift)? << shift) as u32;
            let found = match (flags >> FOUND_SHIFT) & 3 {
                0 => Found::Memory,
                1 => Found::OnItsWay,
                2 => Found::CacheDevice,
                _ => Found::Pool,
            };
            let (metadata, prefetch) = (flags & METADATA != 0, flags & PREFETCH != 0);
            let micros = up_to(r, "latency", MAX_LATENCY)?;
            let block = BlockId { vdev, offset, birth };
            Event::Read { block, objset, lsize, psize, metadata, prefetch, found, micros }
        }
        COMMIT => {
            let objset = get_from(r, "objset", &mut before.objset)?;
            Event::Commit { objset, micros: up_to(r, "latency", MAX_LATENCY)? }
        }
        LOG_BLOCK => {
            let objset = get_from(r, "objset", &mut before.objset)?;
            let bytes = up_to(r, "bytes", MAX_COUNTED_BYTES)?;
            Event::LogBlock { objset, bytes, micros: up_to(r, "latency", MAX_LATENCY)? }
        }
        TXG => {
            let (txg, bytes) = (up_to(r, "txg", MAX_TXG)?, up_to(r, "bytes", MAX_COUNTED_BYTES)?);
            Event::Txg { txg, bytes, micros: up_to(r, "latency", MAX_LATENCY)? }
        }
        _ => return Err(impossible(r)),
    };
    Ok(Record { at, event })
}

/// Frames of records; so many were lost before the first of them. Without records it is one empty
/// frame.
pub fn records(all: &[Record], mut lost: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = all;
    loop {
        let (part, more) = rest.split_at(rest.len().min(RECORDS_A_FRAME));
        let mut w = Writer::new(ByteOrder::Little, 16 + 16 * part.len());
        let first = part.first().map_or(0, |r| r.at);
        w.u64(first);
        let mut before = Before { at: first, ..Before::default() };
        part.iter().for_each(|r| encode(&mut w, r, &mut before));
        out.extend(frame(super::frame::RECORDS, part.len() as u32, std::mem::take(&mut lost), &w.finish()));
        rest = more;
        if rest.is_empty() {
            return out;
        }
    }
}

/// The records of a frame whose checksum was right.
pub(super) fn read(payload: &[u8], count: u32, each: &mut impl FnMut(Record)) -> Result<()> {
    let mut r = Reader::new(payload, ByteOrder::Little, NAME);
    let first = r.u64("time")?;
    let mut before = Before { at: within(&r, "time", first, MAX_MICROS)?, ..Before::default() };
    for _ in 0..count {
        each(decode(&mut r, &mut before)?);
    }
    match r.remaining() {
        0 => Ok(()),
        n => Err(
            r.error("payload", Problem::Impossible { value: n as u64, why: "bytes behind the last record" })
        ),
    }
}
