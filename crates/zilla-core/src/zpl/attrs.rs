//! A file's attributes in memory, and how they come from and go to a dnode.
//!
//! Decoded once when the file is first looked at. `order` remembers in which order they lie on
//! disk, attributes this program does not know among them, so that a file written by a newer
//! OpenZFS keeps what it has. Files of old file systems (version below 5) have the fixed
//! `znode_phys` of 264 bytes instead, which is the same as a headerless layout of the first 16
//! attributes.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use super::sa::{self, Kind, Packed, SaTable};
use super::types::{Attr, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, Time};
use super::{PFLAG_PROJID, acl};
use crate::dmu::{Dnode, Now, Owner};
use crate::error::Error;
use crate::txg::Tx;
use std::sync::Arc;
use zilla_ondisk::object_type::{DMU_OT_SA, DMU_OT_ZNODE};

/// Bytes of an old znode; the target of a short symbolic link follows.
pub(crate) const ZNODE_PHYS_SIZE: usize = 264;

const LEGACY_ORDER: [Kind; 16] = [
    Kind::Atime,
    Kind::Mtime,
    Kind::Ctime,
    Kind::Crtime,
    Kind::Gen,
    Kind::Mode,
    Kind::Size,
    Kind::Parent,
    Kind::Links,
    Kind::Xattr,
    Kind::Rdev,
    Kind::Flags,
    Kind::Uid,
    Kind::Gid,
    Kind::Pad,
    Kind::ZnodeAcl,
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Attrs {
    pub(crate) mode: u64,
    pub(crate) size: u64,
    pub(crate) generation: u64,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) parent: u64,
    pub(crate) pflags: u64,
    pub(crate) atime: [u64; 2],
    pub(crate) mtime: [u64; 2],
    pub(crate) ctime: [u64; 2],
    pub(crate) crtime: [u64; 2],
    pub(crate) links: u64,
    pub(crate) xattr_obj: u64,
    pub(crate) rdev: u64,
    pub(crate) projid: u64,
    pub(crate) ace_count: u64,
    pub(crate) aces: Arc<[u8]>,
    pub(crate) symlink: Arc<[u8]>,
    pub(crate) dxattr: Arc<[u8]>,
    /// Attributes that are only carried along.
    pub(crate) rest: Arc<[(u16, Vec<u8>)]>,
    /// Attribute numbers in their order on disk.
    pub(crate) order: Arc<[u16]>,
    /// Old znodes only: the fixed 264 bytes.
    pub(crate) legacy: bool,
}

pub(crate) fn encode_time(t: Time) -> [u64; 2] {
    [t.sec as u64, u64::from(t.nsec)]
}

pub(crate) fn decode_time(t: [u64; 2]) -> Time {
    let [sec, nsec] = t;
    // Nanoseconds beyond a second are damage that a caller must not meet.
    Time { sec: sec as i64, nsec: (nsec % 1_000_000_000) as u32 }
}

fn u64s<const N: usize>(v: &[u8]) -> [u64; N] {
    let mut words = v.as_chunks::<8>().0.iter().map(|c| u64::from_ne_bytes(*c));
    std::array::from_fn(|_| words.next().unwrap_or(0))
}

fn one(v: &[u8]) -> u64 {
    let [x] = u64s(v);
    x
}

/// A device's number as `stat` gives it, from the kernel's inner form (12 bits major, 20 minor)
/// that is on disk.
pub(crate) fn decode_rdev(disk: u64) -> u32 {
    let (major, minor) = ((disk >> 20) as u32 & 0xfff, disk as u32 & 0xf_ffff);
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

pub(crate) fn encode_rdev(rdev: u32) -> u64 {
    let (major, minor) = (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00);
    u64::from(major) << 20 | u64::from(minor)
}

impl Attrs {
    /// Bytes of those that have no fixed length.
    pub(crate) fn len(&self) -> usize {
        let rest: usize = self.rest.iter().map(|(_, v)| v.len()).sum();
        self.aces.len() + self.symlink.len() + self.dxattr.len() + rest
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.mode as u32 & S_IFMT == S_IFDIR
    }
    pub(crate) fn is_symlink(&self) -> bool {
        self.mode as u32 & S_IFMT == S_IFLNK
    }
    pub(crate) fn fmt(&self) -> u32 {
        self.mode as u32 & S_IFMT
    }

    /// Makes sure that an attribute is among those on disk.
    pub(crate) fn add(&mut self, table: &SaTable, kind: Kind) {
        let n = table.number(kind);
        if !self.order.contains(&n) && !self.legacy {
            self.order = self.order.iter().copied().chain([n]).collect();
        }
    }

    /// Gives the attribute a project number the fixed place in which accounting looks for it: right
    /// behind the first 12.
    pub(crate) fn add_projid(&mut self, table: &SaTable) {
        if self.legacy || self.pflags & PFLAG_PROJID != 0 {
            return;
        }
        let n = table.number(Kind::Projid);
        let head = new_file_order(table);
        let rest = self.order.iter().copied().filter(|a| *a != n && !head.contains(a));
        self.order = head.iter().copied().chain([n]).chain(rest).collect();
        self.pflags |= PFLAG_PROJID;
    }

    fn set(&mut self, kind: Kind, v: &[u8]) -> bool {
        match kind {
            Kind::Atime => self.atime = u64s(v),
            Kind::Mtime => self.mtime = u64s(v),
            Kind::Ctime => self.ctime = u64s(v),
            Kind::Crtime => self.crtime = u64s(v),
            Kind::Gen => self.generation = one(v),
            Kind::Mode => self.mode = one(v),
            Kind::Size => self.size = one(v),
            Kind::Parent => self.parent = one(v),
            Kind::Links => self.links = one(v),
            Kind::Xattr => self.xattr_obj = one(v),
            Kind::Rdev => self.rdev = one(v),
            Kind::Flags => self.pflags = one(v),
            Kind::Uid => self.uid = one(v),
            Kind::Gid => self.gid = one(v),
            Kind::DaclCount => self.ace_count = one(v),
            Kind::DaclAces => self.aces = v.into(),
            Kind::Symlink => self.symlink = v.into(),
            Kind::Dxattr => self.dxattr = v.into(),
            Kind::Projid => self.projid = one(v),
            Kind::Pad | Kind::ZnodeAcl | Kind::Scanstamp => return false,
        }
        true
    }

    fn put(&self, kind: Kind, out: &mut Vec<u8>) {
        let mut words = |w: &[u64]| w.iter().for_each(|x| out.extend_from_slice(&x.to_ne_bytes()));
        match kind {
            Kind::Atime => words(&self.atime),
            Kind::Mtime => words(&self.mtime),
            Kind::Ctime => words(&self.ctime),
            Kind::Crtime => words(&self.crtime),
            Kind::Gen => words(&[self.generation]),
            Kind::Mode => words(&[self.mode]),
            Kind::Size => words(&[self.size]),
            Kind::Parent => words(&[self.parent]),
            Kind::Links => words(&[self.links]),
            Kind::Xattr => words(&[self.xattr_obj]),
            Kind::Rdev => words(&[self.rdev]),
            Kind::Flags => words(&[self.pflags]),
            Kind::Uid => words(&[self.uid]),
            Kind::Gid => words(&[self.gid]),
            Kind::DaclCount => words(&[self.ace_count]),
            Kind::Projid => words(&[self.projid]),
            Kind::DaclAces => out.extend_from_slice(&self.aces),
            Kind::Symlink => out.extend_from_slice(&self.symlink),
            Kind::Dxattr => out.extend_from_slice(&self.dxattr),
            Kind::Pad | Kind::ZnodeAcl | Kind::Scanstamp => {}
        }
    }

    fn take(
        &mut self,
        table: &SaTable,
        values: sa::Values,
        rest: &mut Vec<(u16, Vec<u8>)>,
        order: &mut Vec<u16>,
    ) {
        for (n, v) in values {
            order.push(n);
            if !table.kind(n).is_some_and(|k| self.set(k, &v)) {
                rest.push((n, v));
            }
        }
    }

    /// Whether an object is one that has attributes.
    pub(super) fn are_in(dnode: &Dnode) -> bool {
        matches!(dnode.bonus_type(), DMU_OT_SA | DMU_OT_ZNODE)
    }

    /// Reads the attributes of the file that `dnode` is.
    pub(crate) fn load(table: &SaTable, dnode: &Arc<Dnode>) -> Now<Attrs> {
        let what = || format!("object {} of objset {}", dnode.id(), dnode.objset_id());
        let bonus = dnode.bonus();
        let mut attrs = Attrs::default();
        let (mut rest, mut order) = (Vec::new(), Vec::new());
        match dnode.bonus_type() {
            DMU_OT_SA => {
                let spill = dnode.spill()?;
                if !bonus.is_empty() {
                    attrs.take(table, sa::decode(table, &bonus, &what)?, &mut rest, &mut order);
                }
                if let Some(spill) = spill {
                    attrs.take(table, sa::decode(table, &spill, &what)?, &mut rest, &mut order);
                }
            }
            DMU_OT_ZNODE => attrs.load_legacy(&bonus, &mut rest, &mut order).ok_or_else(|| {
                Error::corrupt(None, what(), format!("an old znode of {} bytes", bonus.len()))
            })?,
            other => {
                return Err(Error::corrupt(
                    None,
                    what(),
                    format!("not a file: its bonus is of type {other}"),
                )
                .into());
            }
        }
        attrs.rest = rest.into();
        attrs.order = order.into();
        Ok(attrs)
    }

    fn load_legacy(
        &mut self,
        bonus: &[u8],
        rest: &mut Vec<(u16, Vec<u8>)>,
        order: &mut Vec<u16>,
    ) -> Option<()> {
        self.legacy = true;
        let mut at = 0;
        for (n, kind) in LEGACY_ORDER.iter().enumerate() {
            let len = legacy_len(*kind);
            let v = bonus.get(at..at + len)?;
            order.push(n as u16);
            if !self.set(*kind, v) {
                rest.push((n as u16, v.to_vec()));
            }
            at += len;
        }
        if self.is_symlink() && self.size <= (bonus.len() - ZNODE_PHYS_SIZE) as u64 {
            self.symlink = bonus.get(ZNODE_PHYS_SIZE..ZNODE_PHYS_SIZE + self.size as usize)?.into();
        }
        Some(())
    }

    /// The bytes for the dnode. Changes nothing but, perhaps, the table of layouts.
    pub(crate) fn pack(&self, table: &SaTable, tx: &Tx, room: usize) -> Now<Packed> {
        let find = |n: u16| self.rest.iter().find(|(m, _)| *m == n).map_or(&[][..], |(_, v)| v);
        if self.legacy {
            let mut bonus = Vec::with_capacity(ZNODE_PHYS_SIZE);
            for (n, kind) in LEGACY_ORDER.iter().enumerate() {
                let end = bonus.len() + legacy_len(*kind);
                match kind {
                    Kind::Pad | Kind::ZnodeAcl => bonus.extend_from_slice(find(n as u16)),
                    k => self.put(*k, &mut bonus),
                }
                bonus.resize(end, 0);
            }
            if ZNODE_PHYS_SIZE + self.symlink.len() <= room {
                bonus.extend_from_slice(&self.symlink);
            }
            return Ok(Packed { bonus, spill: None });
        }
        let len = |n: u16| match table.kind(n) {
            Some(Kind::DaclAces) => self.aces.len(),
            Some(Kind::Symlink) => self.symlink.len(),
            Some(Kind::Dxattr) => self.dxattr.len(),
            _ => find(n).len(),
        };
        sa::pack(table, tx, &self.order, room, len, |n, out| match table.kind(n) {
            None | Some(Kind::Pad | Kind::ZnodeAcl | Kind::Scanstamp) => out.extend_from_slice(find(n)),
            Some(k) => self.put(k, out),
        })
    }

    /// Replaces the old-style ACL, for files that have one.
    pub(crate) fn set_legacy_acl(&mut self, bytes: Vec<u8>) {
        self.rest = self
            .rest
            .iter()
            .cloned()
            .map(|(n, v)| if n == Kind::ZnodeAcl as u16 { (n, bytes.clone()) } else { (n, v) })
            .collect();
    }

    /// The old-style ACL's bytes.
    pub(crate) fn legacy_acl(&self) -> Option<&[u8]> {
        self.rest.iter().find(|(n, _)| *n == Kind::ZnodeAcl as u16).map(|(_, v)| v.as_slice())
    }

    /// An old znode's attributes that no caller sees.
    pub(crate) fn legacy_rest(acl: Vec<u8>) -> Arc<[(u16, Vec<u8>)]> {
        [(Kind::Pad as u16, vec![0; 32]), (Kind::ZnodeAcl as u16, acl)].into()
    }

    /// Gives the file the ACL that says the same as its mode.
    pub(crate) fn set_trivial_acl(&mut self, table: &SaTable, fuids: bool) {
        let trivial = acl::trivial(self.mode as u32, self.is_dir());
        if self.legacy {
            self.set_legacy_acl(acl::legacy_phys(&trivial, fuids));
        } else {
            self.aces = acl::encode(&trivial).into();
            self.ace_count = trivial.len() as u64;
            self.add(table, Kind::DaclCount);
            self.add(table, Kind::DaclAces);
        }
        self.pflags = acl::trivial_pflags(self.pflags, self.mode as u32);
    }

    pub(crate) fn attr(&self, ino: u64, dnode: &Dnode, recordsize: u32) -> Attr {
        let blksize = if self.fmt() == S_IFREG { dnode.blksz().max(512) } else { 4096 };
        Attr {
            ino,
            generation: self.generation,
            mode: self.mode as u32,
            nlink: self.links.min(u64::from(u32::MAX)) as u32,
            uid: super::fuid_to_id(self.uid),
            gid: super::fuid_to_id(self.gid),
            rdev: decode_rdev(self.rdev),
            projid: self.projid as u32,
            size: self.size,
            // As OpenZFS counts: the blocks, and the slots of the dnode itself.
            blocks: ((dnode.used() + 256) >> 9) + u64::from(dnode.slots()),
            // A file of one small block will be given larger ones as it grows.
            blksize: if self.size <= u64::from(blksize) { recordsize } else { blksize },
            atime: decode_time(self.atime),
            mtime: decode_time(self.mtime),
            ctime: decode_time(self.ctime),
            crtime: decode_time(self.crtime),
            flags: self.pflags,
            settled: !dnode.is_dirty(),
        }
    }
}

fn legacy_len(kind: Kind) -> usize {
    match kind {
        Kind::Atime | Kind::Mtime | Kind::Ctime | Kind::Crtime => 16,
        Kind::Pad => 32,
        Kind::ZnodeAcl => 88,
        _ => 8,
    }
}

pub(crate) fn legacy_order() -> Arc<[u16]> {
    (0..LEGACY_ORDER.len() as u16).collect()
}

/// The attributes every new file has, in OpenZFS's order. Accounting finds owner and generation by
/// their place in it.
pub(crate) fn new_file_order(table: &SaTable) -> [u16; 12] {
    [
        Kind::Mode,
        Kind::Size,
        Kind::Gen,
        Kind::Uid,
        Kind::Gid,
        Kind::Parent,
        Kind::Flags,
        Kind::Atime,
        Kind::Mtime,
        Kind::Ctime,
        Kind::Crtime,
        Kind::Links,
    ]
    .map(|k| table.number(k))
}

/// Where a regular file ends, read from its bonus alone; None of what is none.
pub(crate) fn end_of(bonustype: u8, bonus: &[u8]) -> Option<u64> {
    const MODE: usize = 0;
    const SIZE: usize = 8;
    let (mode, size) = match bonustype {
        DMU_OT_ZNODE => (one(bonus.get(72..80)?), one(bonus.get(80..88)?)),
        DMU_OT_SA => {
            let word = words(bonus)?;
            (word(MODE)?, word(SIZE)?)
        }
        _ => return None,
    };
    (mode as u32 & S_IFMT == S_IFREG).then_some(size)
}

/// The words of a bonus of system attributes, by their places behind its header.
fn words(bonus: &[u8]) -> Option<impl Fn(usize) -> Option<u64>> {
    let magic = u32::from_ne_bytes(bonus.get(..4)?.try_into().ok()?);
    let foreign = magic == 0x2F_505A_u32.swap_bytes();
    if magic != 0x2F_505A && !foreign {
        return None;
    }
    let info = u16::from_ne_bytes(bonus.get(4..6)?.try_into().ok()?);
    let info = if foreign { info.swap_bytes() } else { info };
    let data = bonus.get(usize::from(info >> 10) * 8..)?;
    Some(move |at: usize| Some(one(data.get(at..at + 8)?)).map(|v| if foreign { v.swap_bytes() } else { v }))
}

/// Whom a file's space is charged to, read from its bonus alone and without the tables: the first
/// attributes of every file lie in the same places.
pub fn owner_of(bonustype: u8, bonus: &[u8]) -> Option<Owner> {
    const UID: usize = 24;
    const GID: usize = 32;
    const FLAGS: usize = 48;
    const PROJID: usize = 128;
    match bonustype {
        DMU_OT_ZNODE => {
            let word = |at: usize| Some(one(bonus.get(at..at + 8)?));
            Some(Owner { uid: word(128)?, gid: word(136)?, projid: Some(0) })
        }
        DMU_OT_SA => {
            let magic = u32::from_ne_bytes(bonus.get(..4)?.try_into().ok()?);
            if magic == 0 {
                return Some(Owner { uid: 0, gid: 0, projid: Some(0) });
            }
            let word = words(bonus)?;
            let projid = if word(FLAGS)? & PFLAG_PROJID != 0 { word(PROJID)? } else { 0 };
            Some(Owner { uid: word(UID)?, gid: word(GID)?, projid: Some(projid) })
        }
        _ => None,
    }
}
