//! Frames: what a trace is cut into, and the parser that puts up with any bytes.

use super::record::{self, Record};
use super::{MAGIC, MAX_MICROS, MAX_PAYLOAD, VERSION};
use crate::bytes::{Reader, Writer};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;
use crate::zap::crc64;

const NAME: &str = "trace";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"ZFRM");
/// Bytes before a frame's payload.
pub const FRAME_HEAD: usize = 32;
/// Of those the ones that the checksum covers.
const SUMMED: usize = 24;
const PREAMBLE: usize = 16;
const HEADER: u32 = 1;
pub(super) const RECORDS: u32 = 2;
const END: u32 = 3;
/// A pool's name is at most so long.
const MAX_NAME: usize = 256;

/// What of the pool one must know to make sense of its trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    pub pool: String,
    pub guid: u64,
    /// Seconds since 1970 when it began.
    pub started: u64,
    /// The ARC: its largest size, its limit when it began, and what it held.
    pub arc_max: u64,
    pub arc_limit: u64,
    pub arc_size: u64,
    /// Bytes of all cache devices, and how many there are.
    pub cache_bytes: u64,
    pub cache_devices: u64,
    pub log_devices: u64,
    /// Disks of the pool that data is read from, and whether they turn.
    pub disks: u64,
    pub rotational: bool,
    /// Bytes a second that a cache device may be fed with.
    pub feed_rate: u64,
}

/// How a trace ended that was not cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub records: u64,
    pub lost: u64,
    pub micros: u64,
}

/// What a trace holds, in this order: a header, records, perhaps an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Header(TraceHeader),
    Record(Record),
    /// So many records are missing here: there was no room for them.
    Lost(u64),
    End(End),
}

/// The first bytes of a file.
pub fn preamble() -> Vec<u8> {
    let mut w = Writer::new(ByteOrder::Little, PREAMBLE);
    w.bytes(&MAGIC);
    w.u32(VERSION);
    w.u32(0);
    w.finish()
}

pub(super) fn frame(kind: u32, count: u32, lost: u64, payload: &[u8]) -> Vec<u8> {
    let mut w = Writer::new(ByteOrder::Little, FRAME_HEAD + payload.len());
    w.u32(FRAME_MAGIC);
    w.u32(kind);
    w.u32(payload.len() as u32);
    w.u32(count);
    w.u64(lost);
    let mut out = w.finish();
    let sum = sum(&out, payload);
    out.extend_from_slice(&ByteOrder::Little.put_u64(sum));
    out.extend_from_slice(payload);
    out
}

/// Not zero for zeroes.
fn sum(head: &[u8], payload: &[u8]) -> u64 {
    crc64(u64::MAX, head.iter().chain(payload).copied())
}

pub fn header_frame(h: &TraceHeader) -> Vec<u8> {
    let mut w = Writer::new(ByteOrder::Little, 128);
    let name = h.pool.as_bytes();
    let name = name.get(..MAX_NAME).unwrap_or(name);
    w.u32(name.len() as u32);
    w.bytes(name);
    for n in [h.guid, h.started, h.arc_max, h.arc_limit, h.arc_size, h.cache_bytes, h.cache_devices] {
        w.u64(n);
    }
    for n in [h.log_devices, h.disks, u64::from(h.rotational), h.feed_rate] {
        w.u64(n);
    }
    frame(HEADER, 0, 0, &w.finish())
}

impl TraceHeader {
    fn decode(payload: &[u8]) -> Result<TraceHeader> {
        let mut r = Reader::new(payload, ByteOrder::Little, "trace header");
        let len = r.u32("name length")? as usize;
        if len > MAX_NAME {
            return Err(
                r.error("name length", Problem::Impossible { value: len as u64, why: "no pool's name" })
            );
        }
        let name = std::str::from_utf8(r.bytes(len, "name")?).ok();
        let name = name.filter(|n| !n.chars().any(char::is_control));
        let pool = name.ok_or(r.error("name", Problem::String))?.to_owned();
        let guid = r.u64("guid")?;
        let mut size = |field: &'static str| {
            let n = r.u64(field)?;
            FormatError::counters("trace header", &[(field, n)]).map(|()| n)
        };
        let h = TraceHeader {
            pool,
            guid,
            started: size("started")?,
            arc_max: size("arc_max")?,
            arc_limit: size("arc_limit")?,
            arc_size: size("arc_size")?,
            cache_bytes: size("cache_bytes")?,
            cache_devices: size("cache_devices")?,
            log_devices: size("log_devices")?,
            disks: size("disks")?,
            rotational: size("rotational")? != 0,
            feed_rate: size("feed_rate")?,
        };
        match r.remaining() {
            0 => Ok(h),
            n => Err(r.error("header", Problem::Impossible { value: n as u64, why: "bytes behind it" })),
        }
    }
}

pub fn end_frame(end: &End) -> Vec<u8> {
    let mut w = Writer::new(ByteOrder::Little, 24);
    [end.records, end.lost, end.micros].into_iter().for_each(|n| w.u64(n));
    frame(END, 0, 0, &w.finish())
}

struct Head {
    kind: u32,
    len: usize,
    count: u32,
    lost: u64,
    sum: u64,
}

/// Takes a trace's bytes as they come and gives out what is in them. After an error it gives out
/// nothing more.
#[derive(Default)]
pub struct Parser {
    buf: Vec<u8>,
    begun: bool,
    headed: bool,
    ended: bool,
    /// Bytes of whole frames so far.
    good: u64,
}

impl Parser {
    /// How much of the file is whole and right.
    pub fn good(&self) -> u64 {
        self.good
    }

    /// Whether the file ended where its writer wanted it to.
    pub fn is_whole(&self) -> bool {
        self.ended && self.buf.is_empty()
    }

    /// More bytes. What they complete is given to `each`.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Item)) -> Result<()> {
        while !bytes.is_empty() {
            let need = self.need()?;
            let missing = need.saturating_sub(self.buf.len());
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.buf.extend_from_slice(now);
            bytes = later;
            if self.buf.len() < need {
                return Ok(());
            }
            // The head alone says how much more there is.
            if self.need()? > self.buf.len() {
                continue;
            }
            self.take(&mut each)?;
            self.good += self.buf.len() as u64;
            self.buf.clear();
        }
        Ok(())
    }

    /// How many bytes must be there to go on.
    fn need(&self) -> Result<usize> {
        if !self.begun {
            return Ok(PREAMBLE);
        }
        match self.buf.len() < FRAME_HEAD {
            true => Ok(FRAME_HEAD),
            false => Ok(FRAME_HEAD + self.head()?.len),
        }
    }

    fn head(&self) -> Result<Head> {
        let mut r = Reader::new(&self.buf, ByteOrder::Little, "trace frame");
        let magic = r.u32("magic")?;
        if magic != FRAME_MAGIC {
            let problem = Problem::Magic { found: magic.into(), wanted: FRAME_MAGIC.into() };
            return Err(r.error("magic", problem));
        }
        let (kind, len) = (r.u32("kind")?, r.u32("length")? as usize);
        if len > MAX_PAYLOAD {
            return Err(
                r.error("length", Problem::Impossible { value: len as u64, why: "no frame is so large" })
            );
        }
        let (count, lost, sum) = (r.u32("count")?, r.u64("lost")?, r.u64("checksum")?);
        FormatError::counters("trace frame", &[("lost", lost)])?;
        Ok(Head { kind, len, count, lost, sum })
    }

    fn take(&mut self, each: &mut impl FnMut(Item)) -> Result<()> {
        if !self.begun {
            let mut r = Reader::new(&self.buf, ByteOrder::Little, NAME);
            if r.array::<8>("magic")? != MAGIC {
                return Err(FormatError::new(NAME, "magic", 0, Problem::WrongType));
            }
            let version = r.u32("version")?;
            if version != VERSION {
                let why = "not the version that this program reads";
                return Err(FormatError::impossible(NAME, "version", 8, version.into(), why));
            }
            self.begun = true;
            return Ok(());
        }
        let head = self.head()?;
        let (summed, payload) = (self.buf.get(..SUMMED), self.buf.get(FRAME_HEAD..));
        let (Some(summed), Some(payload)) = (summed, payload) else { return Ok(()) };
        let found = sum(summed, payload);
        if found != head.sum {
            let why = "not the checksum of the frame";
            return Err(FormatError::impossible("trace frame", "checksum", SUMMED, head.sum, why));
        }
        let out_of_place = |why| FormatError::impossible("trace frame", "kind", 4, head.kind.into(), why);
        if self.ended {
            return Err(out_of_place("a frame behind the end"));
        }
        if self.headed == (head.kind == HEADER) {
            return Err(out_of_place("a trace has one header, which comes first"));
        }
        match head.kind {
            HEADER => {
                each(Item::Header(TraceHeader::decode(payload)?));
                self.headed = true;
            }
            RECORDS => {
                if head.lost > 0 {
                    each(Item::Lost(head.lost));
                }
                record::read(payload, head.count, &mut |r| each(Item::Record(r)))?;
            }
            END => {
                let mut r = Reader::new(payload, ByteOrder::Little, "trace end");
                let end = End { records: r.u64("records")?, lost: r.u64("lost")?, micros: r.u64("time")? };
                FormatError::counters("trace end", &[("records", end.records), ("lost", end.lost)])?;
                record::within(&r, "time", end.micros, MAX_MICROS)?;
                each(Item::End(end));
                self.ended = true;
            }
            _ => return Err(out_of_place("no such frame")),
        }
        Ok(())
    }
}
