//! Making log records: the other way round from [`super::record`].
//!
//! A record is made when its change is made, and is given its sequence number when it is put into a
//! log block ([`set_seq`]). The data of a write stands behind its record and is put there by
//! whoever fills the block.

use super::record::{CreateBody, Foid, LogRecord, LrAcl, LrHeader, RecordBody, TX_CI, Xvattr};
use super::{ZIL_RECORD_ALIGN, ZilChainPhys};
use crate::blkptr::BlkPtr;
use crate::bytes::{Field, Writer};
use crate::order::ByteOrder;
use crate::znode::encode_aces;

/// Bytes of a write's record without its data.
pub const LR_WRITE_SIZE: usize = LrHeader::SIZE + 4 * 8 + BlkPtr::SIZE;
/// How many words of attributes' bits OpenZFS has.
pub const XVA_MAPSIZE: usize = 3;

impl Foid {
    pub const fn value(self) -> u64 {
        self.object & ((1 << 48) - 1) | (self.slots.wrapping_sub(1) as u64) << 56
    }
}

impl RecordBody<'_> {
    /// The number of its type. Which of the forms of a create it is depends on what it has.
    pub const fn txtype(&self) -> u64 {
        match self {
            RecordBody::Commit => 0,
            RecordBody::Create(c) => match (c.acl.is_some(), c.xvattr.is_some()) {
                (false, false) => 1,
                (true, false) => 14,
                (false, true) => 15,
                (true, true) => 16,
            },
            RecordBody::Mkdir(c) => match (c.acl.is_some(), c.xvattr.is_some()) {
                (false, false) => 2,
                (true, false) => 17,
                (false, true) => 18,
                (true, true) => 19,
            },
            RecordBody::Mkxattr(_) => 3,
            RecordBody::Symlink(_) => 4,
            RecordBody::Remove { .. } => 5,
            RecordBody::Rmdir { .. } => 6,
            RecordBody::Link { .. } => 7,
            RecordBody::Rename { .. } => 8,
            RecordBody::Write { .. } => 9,
            RecordBody::Truncate { .. } => 10,
            RecordBody::Setattr { .. } => 11,
            RecordBody::Acl { .. } => 13,
            RecordBody::Write2 { .. } => 20,
            RecordBody::Setsaxattr { .. } => 21,
            RecordBody::RenameExchange { .. } => 22,
            RecordBody::RenameWhiteout { .. } => 23,
            RecordBody::CloneRange { .. } => 24,
        }
    }
}

impl LogRecord<'_> {
    /// The record as it stands in a log block, in this machine's order. Its length is worked out.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::native(256);
        LrHeader::default().write(&mut w);
        body(&self.body, &mut w);
        let len = w.len().next_multiple_of(ZIL_RECORD_ALIGN);
        w.pad_to(len);
        let mut out = w.finish();
        let ci = if self.ignore_case { TX_CI } else { 0 };
        let header = LrHeader { txtype: self.body.txtype() | ci, reclen: len as u64, ..self.header };
        let mut w = Writer::native(LrHeader::SIZE);
        header.write(&mut w);
        if let Some(front) = out.get_mut(..LrHeader::SIZE) {
            front.copy_from_slice(&w.finish());
        }
        out
    }
}

fn word(record: &mut [u8], at: usize, v: u64) {
    if let Some(place) = record.get_mut(at..at + 8) {
        place.copy_from_slice(&v.to_ne_bytes());
    }
}

/// Gives a record its place in the log.
pub fn set_seq(record: &mut [u8], seq: u64) {
    word(record, 24, seq);
}

/// Makes a record as long as it is with the data behind it.
pub fn set_reclen(record: &mut [u8], len: u64) {
    word(record, 8, len);
}

/// Makes a write's record one of a part of it.
pub fn set_write_range(record: &mut [u8], offset: u64, length: u64) {
    word(record, LrHeader::SIZE + 8, offset);
    word(record, LrHeader::SIZE + 16, length);
}

/// Puts the chain structure at the front of a block whose records follow it. The checksum is still
/// to be taken.
pub fn put_chain(block: &mut [u8], chain: &ZilChainPhys) {
    use crate::bytes::Phys;
    if let Some(front) = block.get_mut(..ZilChainPhys::SIZE) {
        front.copy_from_slice(&chain.encode());
    }
}

fn name(w: &mut Writer, n: &[u8]) {
    w.bytes(n);
    w.u8(0);
}

fn words(w: &mut Writer, all: &[u64]) {
    all.iter().for_each(|v| w.u64(*v));
}

fn xvattr(w: &mut Writer, x: &Xvattr) {
    w.u32(x.bitmap.len() as u32);
    x.bitmap.iter().for_each(|b| w.u32(*b));
    w.u64(x.attrs);
    words(w, &x.crtime);
    w.bytes(&x.scanstamp);
}

fn acl_head(w: &mut Writer, acl: &LrAcl) -> Vec<u8> {
    let raw = encode_aces(&acl.aces);
    words(w, &[acl.aces.len() as u64, 0, acl.fuids.len() as u64, raw.len() as u64, acl.flags]);
    raw
}

fn acl_tail(w: &mut Writer, acl: &LrAcl, raw: &[u8]) {
    w.bytes(raw);
    w.zeros(raw.len().next_multiple_of(8) - raw.len());
    words(w, &acl.fuids);
}

fn create(w: &mut Writer, c: &CreateBody<'_>) {
    words(w, &[c.dir, c.file.value(), c.mode, c.uid, c.gid, c.generation]);
    words(w, &c.crtime);
    w.u64(c.rdev);
    let raw = c.acl.as_ref().map(|acl| acl_head(w, acl));
    if let Some(x) = &c.xvattr {
        xvattr(w, x);
    }
    if let (Some(acl), Some(raw)) = (&c.acl, raw) {
        acl_tail(w, acl, &raw);
    }
    name(w, c.name);
    if let Some(link) = c.link {
        name(w, link);
    }
}

fn body(b: &RecordBody<'_>, w: &mut Writer) {
    match b {
        RecordBody::Commit => {}
        RecordBody::Create(c) | RecordBody::Mkdir(c) | RecordBody::Mkxattr(c) | RecordBody::Symlink(c) => {
            create(w, c);
        }
        RecordBody::Remove { dir, name: n } | RecordBody::Rmdir { dir, name: n } => {
            w.u64(*dir);
            name(w, n);
        }
        RecordBody::Link { dir, object, name: n } => {
            words(w, &[*dir, *object]);
            name(w, n);
        }
        RecordBody::Rename { source_dir, target_dir, source, target }
        | RecordBody::RenameExchange { source_dir, target_dir, source, target } => {
            words(w, &[*source_dir, *target_dir]);
            name(w, source);
            name(w, target);
        }
        RecordBody::RenameWhiteout {
            source_dir,
            target_dir,
            source,
            target,
            whiteout,
            mode,
            uid,
            gid,
            generation,
            crtime: [sec, nsec],
            rdev,
        } => {
            words(w, &[*source_dir, *target_dir, whiteout.value(), *mode, *uid, *gid, *generation]);
            words(w, &[*sec, *nsec, *rdev]);
            name(w, source);
            name(w, target);
        }
        RecordBody::Write { object, offset, length, blkptr, data } => {
            words(w, &[*object, *offset, *length, 0]);
            blkptr.write(w);
            w.bytes(data);
        }
        RecordBody::Write2 { object, offset, length, blkptr } => {
            words(w, &[*object, *offset, *length, 0]);
            blkptr.write(w);
        }
        RecordBody::Truncate { object, offset, length } => words(w, &[*object, *offset, *length]),
        RecordBody::Setattr { object, mask, mode, uid, gid, size, atime, mtime, xvattr: x } => {
            words(w, &[*object, *mask, *mode, *uid, *gid, *size]);
            words(w, atime);
            words(w, mtime);
            if let Some(x) = x {
                xvattr(w, x);
            }
        }
        RecordBody::Acl { object, acl } => {
            w.u64(*object);
            let raw = acl_head(w, acl);
            acl_tail(w, acl, &raw);
        }
        RecordBody::Setsaxattr { object, name: n, value } => {
            words(w, &[*object, value.len() as u64]);
            name(w, n);
            w.bytes(value);
        }
        RecordBody::CloneRange { object, offset, length, blksz, bps } => {
            words(w, &[*object, *offset, *length, *blksz, bps.len() as u64]);
            bps.iter().for_each(|bp| bp.write(w));
        }
    }
}

/// A block's checksum words, which are its place in the chain.
pub const fn chain_checksum(guid: [u64; 2], objset: u64, seq: u64) -> [u64; 4] {
    let [a, b] = guid;
    [a, b, objset, seq]
}

/// Whether blocks written in this order can be written on.
pub fn is_native(bp: &BlkPtr) -> bool {
    bp.byteorder() == ByteOrder::NATIVE
}
