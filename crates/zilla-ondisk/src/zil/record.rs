//! Log records: one per change that a caller was promised.
//!
//! Each begins with type, length, txg and sequence number; what follows depends on the type. Names
//! are bytes up to a NUL. An object number carries the dnode's size in its upper byte
//! ([`LogRecord`] gives them apart).

use super::{ZIL_RECORD_ALIGN, truncated};
use crate::blkptr::BlkPtr;
use crate::bytes::{Field, Reader, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;
use crate::znode::{Ace, decode_aces, decode_oldaces};

/// Set in a type: names are compared without regard to case.
pub(super) const TX_CI: u64 = 1 << 63;
/// In a setattr's mask: extended attributes follow.
pub const ATTR_XVATTR: u64 = 1 << 31;

phys! {
    /// How every record begins.
    pub struct LrHeader("lr") {
        txtype: u64,
        reclen: u64,
        txg: u64,
        seq: u64,
    }
}

/// An object number and how many dnode slots the object takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foid {
    pub object: u64,
    pub slots: u8,
}

impl Foid {
    pub(super) const fn from_value(v: u64) -> Foid {
        Foid { object: v & ((1 << 48) - 1), slots: ((v >> 56) as u8).wrapping_add(1) }
    }
}

/// Extended attributes of a create or setattr.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xvattr {
    /// Which attributes are there.
    pub bitmap: Vec<u32>,
    /// The flags among them.
    pub attrs: u64,
    pub crtime: [u64; 2],
    pub scanstamp: [u8; 32],
}

/// The entries of an ACL, and the identities among them that are of a foreign domain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LrAcl {
    pub flags: u64,
    pub aces: Vec<Ace>,
    pub fuids: Vec<u64>,
}

/// A new file, directory or symbolic link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateBody<'a> {
    pub dir: u64,
    pub file: Foid,
    pub mode: u64,
    pub uid: u64,
    pub gid: u64,
    /// txg of creation.
    pub generation: u64,
    pub crtime: [u64; 2],
    pub rdev: u64,
    pub name: &'a [u8],
    /// Target of a symbolic link.
    pub link: Option<&'a [u8]>,
    pub xvattr: Option<Xvattr>,
    pub acl: Option<LrAcl>,
}

/// What a record says, by type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordBody<'a> {
    /// A marker without contents.
    Commit,
    Create(CreateBody<'a>),
    Mkdir(CreateBody<'a>),
    Mkxattr(CreateBody<'a>),
    Symlink(CreateBody<'a>),
    Remove {
        dir: u64,
        name: &'a [u8],
    },
    Rmdir {
        dir: u64,
        name: &'a [u8],
    },
    Link {
        dir: u64,
        object: u64,
        name: &'a [u8],
    },
    Rename {
        source_dir: u64,
        target_dir: u64,
        source: &'a [u8],
        target: &'a [u8],
    },
    RenameExchange {
        source_dir: u64,
        target_dir: u64,
        source: &'a [u8],
        target: &'a [u8],
    },
    RenameWhiteout {
        source_dir: u64,
        target_dir: u64,
        source: &'a [u8],
        target: &'a [u8],
        whiteout: Foid,
        mode: u64,
        uid: u64,
        gid: u64,
        generation: u64,
        crtime: [u64; 2],
        rdev: u64,
    },
    /// With data: the bytes. Without: the pointer of a block that was written where it stays.
    Write {
        object: u64,
        offset: u64,
        length: u64,
        blkptr: BlkPtr,
        data: &'a [u8],
    },
    /// A write that found its block written already; nothing to replay.
    Write2 {
        object: u64,
        offset: u64,
        length: u64,
        blkptr: BlkPtr,
    },
    Truncate {
        object: u64,
        offset: u64,
        length: u64,
    },
    Setattr {
        object: u64,
        mask: u64,
        mode: u64,
        uid: u64,
        gid: u64,
        size: u64,
        atime: [u64; 2],
        mtime: [u64; 2],
        xvattr: Option<Xvattr>,
    },
    Acl {
        object: u64,
        acl: LrAcl,
    },
    /// An extended attribute; removed when it has no value.
    Setsaxattr {
        object: u64,
        name: &'a [u8],
        value: &'a [u8],
    },
    CloneRange {
        object: u64,
        offset: u64,
        length: u64,
        blksz: u64,
        bps: Vec<BlkPtr>,
    },
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogRecord<'a> {
    /// Its type without the flag that `ignore_case` gives.
    pub header: LrHeader,
    pub ignore_case: bool,
    pub body: RecordBody<'a>,
}

impl<'a> LogRecord<'a> {
    /// Reads the record at the front of `buf`.
    pub fn parse(buf: &'a [u8], order: ByteOrder) -> Result<LogRecord<'a>> {
        let (header, ignore_case, mut r) = head(buf, order)?;
        Ok(LogRecord { header, ignore_case, body: body(header.txtype, &mut r)? })
    }

    /// The same of a record whose contents are encrypted; see [`super::LogBlock::sealed_records`].
    pub fn parse_sealed(buf: &'a [u8], order: ByteOrder) -> Result<LogRecord<'a>> {
        let (header, ignore_case, mut r) = head(buf, order)?;
        // Object, offset, length and one more word are encrypted; the pointers behind them are not.
        let (object, offset, length, blksz) = (0, 0, 0, 0);
        let body = match header.txtype {
            9 => {
                r.skip(32, "encrypted")?;
                let blkptr = BlkPtr::read(&mut r, "lr_blkptr")?;
                RecordBody::Write { object, offset, length, blkptr, data: &[] }
            }
            24 => {
                r.skip(32, "encrypted")?;
                RecordBody::CloneRange { object, offset, length, blksz, bps: pointers(&mut r)? }
            }
            _ => RecordBody::Commit,
        };
        Ok(LogRecord { header, ignore_case, body })
    }
}

/// A record's head, and a reader of what follows it.
fn head(buf: &[u8], order: ByteOrder) -> Result<(LrHeader, bool, Reader<'_>)> {
    let mut header = <LrHeader as crate::bytes::Phys>::decode(buf, order)?;
    let len = usize::try_from(header.reclen).ok();
    let raw = len.filter(|n| *n >= LrHeader::SIZE && n.is_multiple_of(ZIL_RECORD_ALIGN));
    let why = "not a length within the block";
    let raw = raw.and_then(|n| buf.get(..n));
    let raw = raw.ok_or(FormatError::impossible("lr", "lrc_reclen", 8, header.reclen, why))?;
    let ignore_case = header.txtype & TX_CI != 0;
    header.txtype &= !TX_CI;
    let mut r = Reader::new(raw, order, "lr");
    r.skip(LrHeader::SIZE, "header")?;
    Ok((header, ignore_case, r))
}

/// Bytes up to a NUL, which is taken off too.
fn name<'a>(r: &mut Reader<'a>, field: &'static str) -> Result<&'a [u8]> {
    let rest = r.rest();
    let n = rest.iter().position(|b| *b == 0).ok_or(r.error(field, Problem::String))?;
    let out = r.bytes(n, field)?;
    r.skip(1, field)?;
    Ok(out)
}

fn pair(r: &mut Reader<'_>, field: &'static str) -> Result<[u64; 2]> {
    Ok([r.u64(field)?, r.u64(field)?])
}

fn body<'a>(txtype: u64, r: &mut Reader<'a>) -> Result<RecordBody<'a>> {
    Ok(match txtype {
        0 => RecordBody::Commit,
        1 => RecordBody::Create(create(r, false, false, false)?),
        2 => RecordBody::Mkdir(create(r, false, false, false)?),
        3 => RecordBody::Mkxattr(create(r, false, false, false)?),
        4 => RecordBody::Symlink(create(r, false, false, true)?),
        5 => RecordBody::Remove { dir: r.u64("lr_doid")?, name: name(r, "name")? },
        6 => RecordBody::Rmdir { dir: r.u64("lr_doid")?, name: name(r, "name")? },
        7 => {
            RecordBody::Link { dir: r.u64("lr_doid")?, object: r.u64("lr_link_obj")?, name: name(r, "name")? }
        }
        8 | 22 => {
            let (source_dir, target_dir) = (r.u64("lr_sdoid")?, r.u64("lr_tdoid")?);
            let (source, target) = (name(r, "source")?, name(r, "target")?);
            if txtype == 8 {
                RecordBody::Rename { source_dir, target_dir, source, target }
            } else {
                RecordBody::RenameExchange { source_dir, target_dir, source, target }
            }
        }
        23 => RecordBody::RenameWhiteout {
            source_dir: r.u64("lr_sdoid")?,
            target_dir: r.u64("lr_tdoid")?,
            whiteout: Foid::from_value(r.u64("lr_wfoid")?),
            mode: r.u64("lr_wmode")?,
            uid: r.u64("lr_wuid")?,
            gid: r.u64("lr_wgid")?,
            generation: r.u64("lr_wgen")?,
            crtime: pair(r, "lr_wcrtime")?,
            rdev: r.u64("lr_wrdev")?,
            source: name(r, "source")?,
            target: name(r, "target")?,
        },
        9 | 20 => write(txtype, r)?,
        10 => RecordBody::Truncate {
            object: r.u64("lr_foid")?,
            offset: r.u64("lr_offset")?,
            length: r.u64("lr_length")?,
        },
        11 => {
            let (object, mask) = (r.u64("lr_foid")?, r.u64("lr_mask")?);
            RecordBody::Setattr {
                object,
                mask,
                mode: r.u64("lr_mode")?,
                uid: r.u64("lr_uid")?,
                gid: r.u64("lr_gid")?,
                size: r.u64("lr_size")?,
                atime: pair(r, "lr_atime")?,
                mtime: pair(r, "lr_mtime")?,
                xvattr: if mask & ATTR_XVATTR != 0 { Some(xvattr(r)?) } else { None },
            }
        }
        12 => {
            let (object, count) = (r.u64("lr_foid")?, count(r)?);
            let aces = decode_oldaces(r.rest(), count, r.order())?;
            RecordBody::Acl { object, acl: LrAcl { flags: 0, aces, fuids: Vec::new() } }
        }
        13 => {
            let object = r.u64("lr_foid")?;
            let head = AclHead::read(r)?;
            RecordBody::Acl { object, acl: acl(r, &head)? }
        }
        14 => RecordBody::Create(create(r, true, false, false)?),
        15 => RecordBody::Create(create(r, false, true, false)?),
        16 => RecordBody::Create(create(r, true, true, false)?),
        17 => RecordBody::Mkdir(create(r, true, false, false)?),
        18 => RecordBody::Mkdir(create(r, false, true, false)?),
        19 => RecordBody::Mkdir(create(r, true, true, false)?),
        21 => {
            let (object, size) = (r.u64("lr_foid")?, r.u64("lr_size")?);
            let name = name(r, "name")?;
            let n = usize::try_from(size).map_err(|_| truncated("value", usize::MAX, r.remaining()))?;
            RecordBody::Setsaxattr { object, name, value: r.bytes(n, "value")? }
        }
        24 => clone_range(r)?,
        t => return Err(r.error("lrc_txtype", Problem::Impossible { value: t, why: "0 to 24" })),
    })
}

fn write<'a>(txtype: u64, r: &mut Reader<'a>) -> Result<RecordBody<'a>> {
    let (object, offset, length) = (r.u64("lr_foid")?, r.u64("lr_offset")?, r.u64("lr_length")?);
    r.skip(8, "lr_blkoff")?;
    let blkptr = BlkPtr::read(r, "lr_blkptr")?;
    if txtype == 20 {
        return Ok(RecordBody::Write2 { object, offset, length, blkptr });
    }
    // A record as long as the structure has its data in a block; any longer one has it behind
    // itself.
    let data = if r.remaining() == 0 {
        &[][..]
    } else {
        let n = usize::try_from(length).map_err(|_| truncated("data", usize::MAX, r.remaining()))?;
        r.bytes(n, "data")?
    };
    Ok(RecordBody::Write { object, offset, length, blkptr, data })
}

fn clone_range<'a>(r: &mut Reader<'a>) -> Result<RecordBody<'a>> {
    let (object, offset, length) = (r.u64("lr_foid")?, r.u64("lr_offset")?, r.u64("lr_length")?);
    let blksz = r.u64("lr_blksz")?;
    Ok(RecordBody::CloneRange { object, offset, length, blksz, bps: pointers(r)? })
}

/// The pointers of a cloned range.
fn pointers(r: &mut Reader<'_>) -> Result<Vec<BlkPtr>> {
    let n = count(r)?;
    let need = n.saturating_mul(BlkPtr::SIZE);
    if need > r.remaining() {
        return Err(truncated("lr_bps", need, r.remaining()));
    }
    (0..n).map(|_| BlkPtr::read(r, "lr_bps")).collect()
}

fn count(r: &mut Reader<'_>) -> Result<usize> {
    let have = r.remaining();
    usize::try_from(r.u64("count")?).map_err(|_| truncated("count", usize::MAX, have))
}

/// The numbers before an ACL.
struct AclHead {
    aces: usize,
    domains: usize,
    fuids: usize,
    bytes: usize,
    flags: u64,
}

impl AclHead {
    fn read(r: &mut Reader<'_>) -> Result<AclHead> {
        Ok(AclHead {
            aces: count(r)?,
            domains: count(r)?,
            fuids: count(r)?,
            bytes: count(r)?,
            flags: r.u64("lr_acl_flags")?,
        })
    }
}

fn acl(r: &mut Reader<'_>, head: &AclHead) -> Result<LrAcl> {
    let raw = r.bytes(head.bytes, "acl")?;
    r.skip(head.bytes.next_multiple_of(8).min(head.bytes + r.remaining()) - head.bytes, "acl")?;
    let aces = decode_aces(raw, head.aces, r.order())?;
    let need = head.fuids.saturating_mul(8);
    if need > r.remaining() {
        return Err(truncated("fuids", need, r.remaining()));
    }
    let fuids = (0..head.fuids).map(|_| r.u64("fuids")).collect::<Result<_>>()?;
    if head.fuids > 0 {
        skip_domains(r, head.domains)?;
    }
    Ok(LrAcl { flags: head.flags, aces, fuids })
}

/// Domains of foreign identities, which only the sharing of files with Windows makes.
fn skip_domains(r: &mut Reader<'_>, n: usize) -> Result<()> {
    for _ in 0..n {
        name(r, "domain")?;
    }
    Ok(())
}

fn xvattr(r: &mut Reader<'_>) -> Result<Xvattr> {
    let n = r.u32("lr_attr_masksize")? as usize;
    let need = n.saturating_mul(4);
    if n == 0 || need > r.remaining() {
        return Err(truncated("lr_attr_bitmap", need.max(4), r.remaining()));
    }
    let bitmap = (0..n).map(|_| r.u32("lr_attr_bitmap")).collect::<Result<_>>()?;
    Ok(Xvattr {
        bitmap,
        attrs: r.u64("lr_attr_attrs")?,
        crtime: pair(r, "lr_attr_crtime")?,
        scanstamp: r.array("lr_attr_scanstamp")?,
    })
}

fn create<'a>(
    r: &mut Reader<'a>,
    with_acl: bool,
    with_xvattr: bool,
    symlink: bool,
) -> Result<CreateBody<'a>> {
    let mut c = CreateBody {
        dir: r.u64("lr_doid")?,
        file: Foid::from_value(r.u64("lr_foid")?),
        mode: r.u64("lr_mode")?,
        uid: r.u64("lr_uid")?,
        gid: r.u64("lr_gid")?,
        generation: r.u64("lr_gen")?,
        crtime: pair(r, "lr_crtime")?,
        rdev: r.u64("lr_rdev")?,
        name: &[],
        link: None,
        xvattr: None,
        acl: None,
    };
    let head = if with_acl { Some(AclHead::read(r)?) } else { None };
    if with_xvattr {
        c.xvattr = Some(xvattr(r)?);
    }
    match &head {
        Some(head) => c.acl = Some(acl(r, head)?),
        // The domains of owner and group, where these are foreign; one, if it is the same.
        None if !symlink => {
            let (uid, gid) = (c.uid >> 32, c.gid >> 32);
            skip_domains(r, usize::from(uid != 0) + usize::from(gid != 0 && gid != uid))?;
        }
        None => {}
    }
    c.name = name(r, "name")?;
    if symlink {
        c.link = Some(name(r, "link")?);
    }
    Ok(c)
}
