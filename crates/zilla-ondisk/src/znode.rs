//! Files: the old znode, access control lists, directory entries, persistent flags.
//!
//! Before system attributes (ZPL version 5) a file's bonus was one fixed structure of 264 bytes.
//! Behind it, in the rest of the 320-byte bonus, a short symbolic link has its target; a longer one
//! is the file's contents.

use crate::bytes::{Field, Phys, Reader, Writer, Zero, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// Where a symbolic link's target begins in the bonus of an old znode.
pub const ZFS_OLD_ZNODE_PHYS_SIZE: usize = 264;
/// The master node of every file system.
pub const MASTER_NODE_OBJ: u64 = 1;

/// Names in the master node.
pub const ZFS_UNLINKED_SET: &str = "DELETE_QUEUE";
pub const ZFS_ROOT_OBJ: &str = "ROOT";
pub const ZPL_VERSION_STR: &str = "VERSION";
pub const ZFS_FUID_TABLES: &str = "FUID";
pub const ZFS_SHARES_DIR: &str = "SHARES";
pub const ZFS_SA_ATTRS: &str = "SA_ATTRS";

/// Bits of `z_pflags`, the attribute `ZPL_FLAGS`.
pub const ZFS_XATTR: u64 = 0x1;
pub const ZFS_INHERIT_ACE: u64 = 0x2;
pub const ZFS_ACL_TRIVIAL: u64 = 0x4;
pub const ZFS_ACL_OBJ_ACE: u64 = 0x8;
pub const ZFS_ACL_PROTECTED: u64 = 0x10;
pub const ZFS_ACL_DEFAULTED: u64 = 0x20;
pub const ZFS_ACL_AUTO_INHERIT: u64 = 0x40;
pub const ZFS_BONUS_SCANSTAMP: u64 = 0x80;
pub const ZFS_NO_EXECS_DENIED: u64 = 0x100;
pub const ZFS_READONLY: u64 = 0x1_0000_0000;
pub const ZFS_HIDDEN: u64 = 0x2_0000_0000;
pub const ZFS_SYSTEM: u64 = 0x4_0000_0000;
pub const ZFS_ARCHIVE: u64 = 0x8_0000_0000;
pub const ZFS_IMMUTABLE: u64 = 0x10_0000_0000;
pub const ZFS_NOUNLINK: u64 = 0x20_0000_0000;
pub const ZFS_APPENDONLY: u64 = 0x40_0000_0000;
pub const ZFS_NODUMP: u64 = 0x80_0000_0000;
pub const ZFS_OPAQUE: u64 = 0x100_0000_0000;
pub const ZFS_AV_QUARANTINED: u64 = 0x200_0000_0000;
pub const ZFS_AV_MODIFIED: u64 = 0x400_0000_0000;
pub const ZFS_REPARSE: u64 = 0x800_0000_0000;
pub const ZFS_OFFLINE: u64 = 0x1000_0000_0000;
pub const ZFS_SPARSE: u64 = 0x2000_0000_0000;
pub const ZFS_PROJINHERIT: u64 = 0x4000_0000_0000;
pub const ZFS_PROJID: u64 = 0x8000_0000_0000;

/// A directory entry's value: an object, and the type of file it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirent {
    pub object: u64,
    /// `S_IFMT` bits of the mode, shifted down by 12; 0 in file systems older than ZPL version 2.
    pub dtype: u8,
}

impl Dirent {
    pub const fn from_value(v: u64) -> Dirent {
        Dirent { object: v & ((1 << 48) - 1), dtype: (v >> 60) as u8 }
    }

    pub const fn value(self) -> u64 {
        (self.dtype as u64) << 60 | (self.object & ((1 << 48) - 1))
    }

    pub const fn new(object: u64, mode: u32) -> Dirent {
        Dirent { object, dtype: ((mode & 0o170_000) >> 12) as u8 }
    }
}

/// Bytes of access control entries in an old znode.
pub const ZFS_ACE_SPACE: usize = 72;
/// Fixed entries of 12 bytes.
pub const ZFS_ACL_VERSION_INITIAL: u16 = 0;
/// Entries of 8, 16 or 48 bytes.
pub const ZFS_ACL_VERSION_FUID: u16 = 1;

phys! {
    /// The ACL in an old znode. In version 0 `size` counts entries, and `count` is unused.
    pub struct AclPhys("zfs_acl_phys") {
        /// Object that holds the entries if they do not fit.
        extern_obj: u64,
        size: u32,
        version: u16,
        count: u16,
        ace_data: [u8; ZFS_ACE_SPACE],
    }
}

impl Zero for AclPhys {
    const ZERO: Self = AclPhys { extern_obj: 0, size: 0, version: 0, count: 0, ace_data: [0; ZFS_ACE_SPACE] };
}

impl AclPhys {
    /// The entries that stand in the znode itself.
    pub fn aces(&self, order: ByteOrder) -> Result<Vec<Ace>> {
        if self.extern_obj != 0 {
            return Err(FormatError::new("zfs_acl_phys", "z_acl_extern_obj", 0, Problem::WrongType));
        }
        if self.version == ZFS_ACL_VERSION_INITIAL {
            return decode_oldaces(&self.ace_data, self.size as usize, order);
        }
        let n = (self.size as usize).min(ZFS_ACE_SPACE);
        decode_aces(self.ace_data.get(..n).unwrap_or_default(), usize::from(self.count), order)
    }
}

phys! {
    /// The bonus of a file before system attributes.
    pub struct ZnodePhys("znode_phys") {
        atime: [u64; 2],
        mtime: [u64; 2],
        ctime: [u64; 2],
        crtime: [u64; 2],
        /// txg of creation.
        generation: u64,
        mode: u64,
        size: u64,
        parent: u64,
        links: u64,
        /// Directory of extended attributes.
        xattr: u64,
        rdev: u64,
        flags: u64,
        uid: u64,
        gid: u64,
        zap: u64,
        pad: [u64; 3],
        acl: AclPhys,
    }
}

/// Does the target of a symbolic link of `len` bytes stand in the bonus of an old znode (of one
/// slot)?
pub const fn symlink_in_bonus(len: usize) -> bool {
    ZFS_OLD_ZNODE_PHYS_SIZE + len <= crate::dnode::DN_OLD_MAX_BONUSLEN
}

// ---- access control entries

/// Who an entry is for, in the upper bits of its flags.
pub const ACE_OWNER: u16 = 0x1000;
pub const ACE_GROUP: u16 = 0x2000;
pub const ACE_EVERYONE: u16 = 0x4000;
pub const ACE_IDENTIFIER_GROUP: u16 = 0x40;
pub const ACE_TYPE_FLAGS: u16 = ACE_OWNER | ACE_GROUP | ACE_EVERYONE | ACE_IDENTIFIER_GROUP;
pub const ACE_OWNING_GROUP: u16 = ACE_GROUP | ACE_IDENTIFIER_GROUP;
pub const ACE_ACCESS_ALLOWED_ACE_TYPE: u16 = 0;
pub const ACE_ACCESS_DENIED_ACE_TYPE: u16 = 1;

/// One access control entry, of any layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ace {
    pub ace_type: u16,
    pub flags: u16,
    pub access_mask: u32,
    /// User or group; 0 for owner, owning group and everyone.
    pub who: u64,
    /// The two object types of an entry that has them.
    pub object: Option<[u8; 32]>,
}

impl Ace {
    const fn is_object(ace_type: u16) -> bool {
        matches!(ace_type, 5..=8)
    }

    /// Owner, owning group and everyone have no identity behind the header.
    const fn is_abstract(ace_type: u16, flags: u16) -> bool {
        matches!(ace_type, ACE_ACCESS_ALLOWED_ACE_TYPE | ACE_ACCESS_DENIED_ACE_TYPE)
            && matches!(flags & ACE_TYPE_FLAGS, ACE_OWNER | ACE_OWNING_GROUP | ACE_EVERYONE)
    }

    /// Bytes of the entry in the newer layout.
    pub const fn size(&self) -> usize {
        if Ace::is_object(self.ace_type) {
            48
        } else if Ace::is_abstract(self.ace_type, self.flags) {
            8
        } else {
            16
        }
    }
}

/// Reads `count` entries of the newer layout.
pub fn decode_aces(buf: &[u8], count: usize, order: ByteOrder) -> Result<Vec<Ace>> {
    let mut r = Reader::new(buf, order, "zfs_ace");
    let mut out = Vec::with_capacity(count.min(buf.len() / 8));
    for _ in 0..count {
        let ace_type = r.u16("z_type")?;
        let flags = r.u16("z_flags")?;
        let access_mask = r.u32("z_access_mask")?;
        let mut ace = Ace { ace_type, flags, access_mask, who: 0, object: None };
        if ace.size() > 8 {
            ace.who = r.u64("z_fuid")?;
        }
        if Ace::is_object(ace_type) {
            ace.object = Some(r.array("z_object_type")?);
        }
        out.push(ace);
    }
    Ok(out)
}

/// Writes entries in the newer layout.
pub fn encode_aces(aces: &[Ace]) -> Vec<u8> {
    let mut w = Writer::native(16 * aces.len());
    for a in aces {
        w.u16(a.ace_type);
        w.u16(a.flags);
        w.u32(a.access_mask);
        if a.size() > 8 {
            w.u64(a.who);
        }
        if Ace::is_object(a.ace_type) {
            w.bytes(&a.object.unwrap_or_default());
        }
    }
    w.finish()
}

/// Reads `count` entries of version 0.
pub fn decode_oldaces(buf: &[u8], count: usize, order: ByteOrder) -> Result<Vec<Ace>> {
    let mut r = Reader::new(buf, order, "zfs_oldace");
    let mut out = Vec::with_capacity(count.min(buf.len() / 12));
    for _ in 0..count {
        let who = u64::from(r.u32("z_fuid")?);
        let access_mask = r.u32("z_access_mask")?;
        let flags = r.u16("z_flags")?;
        let ace_type = r.u16("z_type")?;
        let who = if Ace::is_abstract(ace_type, flags) { 0 } else { who };
        out.push(Ace { ace_type, flags, access_mask, who, object: None });
    }
    Ok(out)
}

impl ZnodePhys {
    /// The target of a symbolic link whose bonus this is the front of, when it stands there.
    pub fn symlink<'a>(&self, bonus: &'a [u8]) -> Option<&'a [u8]> {
        let len = usize::try_from(self.size).ok()?;
        bonus.get(Self::SIZE..)?.get(..len)
    }

    /// Reads the front of a bonus.
    pub fn from_bonus(bonus: &[u8], order: ByteOrder) -> Result<ZnodePhys> {
        ZnodePhys::decode(bonus, order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_openzfs_s() {
        assert_eq!(ZnodePhys::SIZE, ZFS_OLD_ZNODE_PHYS_SIZE);
        assert_eq!(AclPhys::SIZE, 88);
        assert!(symlink_in_bonus(56) && !symlink_in_bonus(57));
        assert_eq!(Dirent::from_value(0x8000_0000_0000_0022), Dirent::new(34, 0o100_644));
    }

    #[test]
    fn aces_round_trip() {
        let ace = |ace_type, flags, who| Ace { ace_type, flags, access_mask: 7, who, object: None };
        let object = Ace { object: Some([3; 32]), ..ace(5, 0, 9) };
        let aces = vec![
            ace(0, ACE_OWNER, 0),
            ace(1, ACE_OWNING_GROUP, 0),
            ace(0, ACE_EVERYONE, 0),
            ace(0, 0, 1000),
            ace(0, ACE_IDENTIFIER_GROUP, 50),
            object,
        ];
        let raw = encode_aces(&aces);
        assert_eq!(raw.len(), 8 * 3 + 16 * 2 + 48);
        assert_eq!(decode_aces(&raw, 6, ByteOrder::NATIVE).unwrap(), aces);
        assert!(decode_aces(&raw, 7, ByteOrder::NATIVE).is_err());
        assert!(decode_aces(&raw, usize::MAX, ByteOrder::NATIVE).is_err());
    }
}
