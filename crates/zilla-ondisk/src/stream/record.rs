//! The records, one by one.
//!
//! [`Record::decode`] takes a head and says what it is; [`Record::payload_len`] how many bytes
//! follow it. A head that was decoded and encoded again is the same bytes but for pads, and the
//! checksum, which the writer of a stream puts in itself.

use super::{CHECKSUM_OFFSET, DMU_BACKUP_MAGIC, MAX_BEGIN_PAYLOAD, MAX_PAYLOAD, MAXNAMELEN, RECORD_SIZE, S};
use crate::bytes::{Field, Reader, Writer, Zero, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// The start of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Begin {
    /// Which kind of stream it is, and its features.
    pub versioninfo: u64,
    pub creation_time: u64,
    /// `os_type` of what is sent.
    pub objset_type: u32,
    pub flags: u32,
    pub toguid: u64,
    pub fromguid: u64,
    pub toname: String,
    /// Bytes of the nvlist that follows.
    pub payloadlen: u32,
}

impl Begin {
    pub const fn header_type(&self) -> u64 {
        self.versioninfo & 3
    }

    pub const fn features(&self) -> u64 {
        (self.versioninfo >> 2) & ((1 << 30) - 1)
    }

    /// `drr_versioninfo` of a stream.
    pub const fn version(header_type: u64, features: u64) -> u64 {
        header_type | features << 2
    }
}

phys! {
    /// Salt, initialisation vector and MAC of what is sent raw.
    pub struct CryptParams("drr_crypt") {
        salt: [u8; 8],
        iv: [u8; 12],
        mac: [u8; 16],
    }
}

impl Zero for CryptParams {
    const ZERO: Self = CryptParams { salt: [0; 8], iv: [0; 12], mac: [0; 16] };
}

phys! {
    /// What a block was stored as: its checksum, and sizes and compression packed.
    pub struct DedupKey("ddt_key") {
        cksum: [u64; 4],
        prop: u64,
    }
}

impl Zero for DedupKey {
    const ZERO: Self = DedupKey { cksum: [0; 4], prop: 0 };
}

phys! {
    pub struct End("drr_end") {
        /// fletcher4 of everything before this record.
        checksum: [u64; 4],
        toguid: u64,
    }
}

phys! {
    pub struct Object("drr_object") {
        object: u64,
        otype: u32,
        bonustype: u32,
        blksz: u32,
        bonuslen: u32,
        checksumtype: u8,
        compress: u8,
        /// 0 in old streams: one.
        dn_slots: u8,
        flags: u8,
        /// Of raw streams: bytes of bonus that follow.
        raw_bonuslen: u32,
        toguid: u64,
        /// The rest is of raw streams only.
        indblkshift: u8,
        nlevels: u8,
        nblkptr: u8,
        pad: [u8; 5],
        maxblkid: u64,
    }
}

phys! {
    pub struct FreeObjects("drr_freeobjects") {
        firstobj: u64,
        numobjs: u64,
        toguid: u64,
    }
}

phys! {
    pub struct Write("drr_write") {
        object: u64,
        otype: u32,
        pad: u32,
        offset: u64,
        logical_size: u64,
        toguid: u64,
        checksumtype: u8,
        flags: u8,
        /// 0: what follows is not compressed.
        compressiontype: u8,
        pad2: [u8; 5],
        key: DedupKey,
        compressed_size: u64,
        crypt: CryptParams,
    }
}

phys! {
    pub struct Free("drr_free") {
        object: u64,
        offset: u64,
        length: u64,
        toguid: u64,
    }
}

phys! {
    pub struct WriteByref("drr_write_byref") {
        object: u64,
        offset: u64,
        length: u64,
        toguid: u64,
        refguid: u64,
        refobject: u64,
        refoffset: u64,
        checksumtype: u8,
        flags: u8,
        pad2: [u8; 6],
        key: DedupKey,
    }
}

phys! {
    pub struct Spill("drr_spill") {
        object: u64,
        length: u64,
        toguid: u64,
        flags: u8,
        compressiontype: u8,
        pad: [u8; 6],
        compressed_size: u64,
        crypt: CryptParams,
        otype: u32,
    }
}

phys! {
    pub struct WriteEmbedded("drr_write_embedded") {
        object: u64,
        offset: u64,
        /// Of the block.
        length: u64,
        toguid: u64,
        compression: u8,
        etype: u8,
        pad: [u8; 6],
        /// Bytes of the contents, and as they are stored.
        lsize: u32,
        psize: u32,
    }
}

phys! {
    pub struct ObjectRange("drr_object_range") {
        firstobj: u64,
        numslots: u64,
        toguid: u64,
        crypt: CryptParams,
        flags: u8,
        pad: [u8; 3],
    }
}

phys! {
    pub struct Redact("drr_redact") {
        object: u64,
        offset: u64,
        length: u64,
        toguid: u64,
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Begin(Begin),
    Object(Object),
    FreeObjects(FreeObjects),
    Write(Write),
    Free(Free),
    End(End),
    WriteByref(WriteByref),
    Spill(Spill),
    WriteEmbedded(WriteEmbedded),
    ObjectRange(ObjectRange),
    Redact(Redact),
}

impl Record {
    /// `drr_type`.
    pub const fn number(&self) -> u32 {
        match self {
            Record::Begin(_) => 0,
            Record::Object(_) => 1,
            Record::FreeObjects(_) => 2,
            Record::Write(_) => 3,
            Record::Free(_) => 4,
            Record::End(_) => 5,
            Record::WriteByref(_) => 6,
            Record::Spill(_) => 7,
            Record::WriteEmbedded(_) => 8,
            Record::ObjectRange(_) => 9,
            Record::Redact(_) => 10,
        }
    }

    /// Its name, as OpenZFS has it without `DRR_`.
    pub const fn name(&self) -> &'static str {
        match self {
            Record::Begin(_) => "BEGIN",
            Record::Object(_) => "OBJECT",
            Record::FreeObjects(_) => "FREEOBJECTS",
            Record::Write(_) => "WRITE",
            Record::Free(_) => "FREE",
            Record::End(_) => "END",
            Record::WriteByref(_) => "WRITE_BYREF",
            Record::Spill(_) => "SPILL",
            Record::WriteEmbedded(_) => "WRITE_EMBEDDED",
            Record::ObjectRange(_) => "OBJECT_RANGE",
            Record::Redact(_) => "REDACT",
        }
    }

    /// Reads a head.
    pub fn decode(head: &[u8; RECORD_SIZE], order: ByteOrder) -> Result<Record> {
        let mut r = Reader::new(head, order, S);
        let kind = r.u32("drr_type")?;
        let payloadlen = r.u32("drr_payloadlen")?;
        let record = match kind {
            0 => Record::Begin(begin(&mut r, payloadlen)?),
            1 => Record::Object(Field::read(&mut r, "drr_object")?),
            2 => Record::FreeObjects(Field::read(&mut r, "drr_freeobjects")?),
            3 => Record::Write(Field::read(&mut r, "drr_write")?),
            4 => Record::Free(Field::read(&mut r, "drr_free")?),
            5 => Record::End(Field::read(&mut r, "drr_end")?),
            6 => Record::WriteByref(Field::read(&mut r, "drr_write_byref")?),
            7 => Record::Spill(Field::read(&mut r, "drr_spill")?),
            8 => Record::WriteEmbedded(Field::read(&mut r, "drr_write_embedded")?),
            9 => Record::ObjectRange(Field::read(&mut r, "drr_object_range")?),
            10 => Record::Redact(Field::read(&mut r, "drr_redact")?),
            n => return Err(FormatError::impossible(S, "drr_type", 0, n.into(), "0 to 10")),
        };
        let (len, most) = match &record {
            Record::Begin(_) => (record.payload_len(), MAX_BEGIN_PAYLOAD),
            _ => (record.payload_len(), MAX_PAYLOAD),
        };
        if len > most {
            return Err(FormatError::impossible(S, "payload", 8, len, "longer than any block"));
        }
        Ok(record)
    }

    /// Bytes that follow the head.
    pub fn payload_len(&self) -> u64 {
        match self {
            Record::Begin(b) => u64::from(b.payloadlen),
            Record::Object(o) if o.raw_bonuslen != 0 => u64::from(o.raw_bonuslen),
            Record::Object(o) => u64::from(o.bonuslen).next_multiple_of(8),
            Record::Write(w) if w.compressiontype != 0 => w.compressed_size,
            Record::Write(w) => w.logical_size,
            Record::Spill(s) if s.compressiontype != 0 || s.compressed_size != 0 => s.compressed_size,
            Record::Spill(s) => s.length,
            Record::WriteEmbedded(w) => u64::from(w.psize).next_multiple_of(8),
            _ => 0,
        }
    }

    /// The head's bytes in this machine's order; its checksum is left zero.
    pub fn encode(&self) -> [u8; RECORD_SIZE] {
        self.encode_in(ByteOrder::NATIVE)
    }

    pub fn encode_in(&self, order: ByteOrder) -> [u8; RECORD_SIZE] {
        let mut w = Writer::new(order, RECORD_SIZE);
        w.u32(self.number());
        // Only BEGIN says how long its payload is; that of others follows from their fields.
        w.u32(if let Record::Begin(b) = self { b.payloadlen } else { 0 });
        match self {
            Record::Begin(b) => put_begin(&mut w, b),
            Record::Object(b) => b.write(&mut w),
            Record::FreeObjects(b) => b.write(&mut w),
            Record::Write(b) => b.write(&mut w),
            Record::Free(b) => b.write(&mut w),
            Record::End(b) => b.write(&mut w),
            Record::WriteByref(b) => b.write(&mut w),
            Record::Spill(b) => b.write(&mut w),
            Record::WriteEmbedded(b) => b.write(&mut w),
            Record::ObjectRange(b) => b.write(&mut w),
            Record::Redact(b) => b.write(&mut w),
        }
        w.pad_to(RECORD_SIZE);
        let mut out = [0; RECORD_SIZE];
        for (to, from) in out.iter_mut().zip(w.finish()) {
            *to = from;
        }
        out
    }

    /// The guid of the snapshot that all records of a stream name.
    pub const fn toguid(&self) -> u64 {
        match self {
            Record::Begin(b) => b.toguid,
            Record::Object(b) => b.toguid,
            Record::FreeObjects(b) => b.toguid,
            Record::Write(b) => b.toguid,
            Record::Free(b) => b.toguid,
            Record::End(b) => b.toguid,
            Record::WriteByref(b) => b.toguid,
            Record::Spill(b) => b.toguid,
            Record::WriteEmbedded(b) => b.toguid,
            Record::ObjectRange(b) => b.toguid,
            Record::Redact(b) => b.toguid,
        }
    }
}

fn begin(r: &mut Reader<'_>, payloadlen: u32) -> Result<Begin> {
    let at = *r;
    let found = r.u64("drr_magic")?;
    if found != DMU_BACKUP_MAGIC {
        return Err(at.error("drr_magic", Problem::Magic { found, wanted: DMU_BACKUP_MAGIC }));
    }
    let mut out = Begin {
        versioninfo: r.u64("drr_versioninfo")?,
        creation_time: r.u64("drr_creation_time")?,
        objset_type: r.u32("drr_type")?,
        flags: r.u32("drr_flags")?,
        toguid: r.u64("drr_toguid")?,
        fromguid: r.u64("drr_fromguid")?,
        toname: String::new(),
        payloadlen,
    };
    let at = *r;
    let raw = r.bytes(MAXNAMELEN, "drr_toname")?;
    let name = raw.split(|b| *b == 0).next().filter(|n| n.len() < MAXNAMELEN);
    let name = name.and_then(|n| std::str::from_utf8(n).ok());
    out.toname = name.ok_or_else(|| at.error("drr_toname", Problem::String))?.to_owned();
    Ok(out)
}

fn put_begin(w: &mut Writer, b: &Begin) {
    w.u64(DMU_BACKUP_MAGIC);
    w.u64(b.versioninfo);
    w.u64(b.creation_time);
    w.u32(b.objset_type);
    w.u32(b.flags);
    w.u64(b.toguid);
    w.u64(b.fromguid);
    let name = b.toname.as_bytes();
    let name = name.get(..MAXNAMELEN - 1).unwrap_or(name);
    w.bytes(name);
    w.zeros(MAXNAMELEN - name.len());
}

// All bodies but BEGIN's leave room for the checksum.
const _: () = assert!(8 + Write::SIZE <= CHECKSUM_OFFSET && 8 + WriteByref::SIZE <= CHECKSUM_OFFSET);
const _: () = assert!(CHECKSUM_OFFSET + 32 == RECORD_SIZE);
