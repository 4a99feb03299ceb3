//! Who may do what with a file.
//!
//! On a mount the kernel judges, by a file's mode and its POSIX ACL; here nobody does it for us,
//! and the rules are the same: those of acl(5), with root above them. As NFS servers do, a file's
//! owner may read and write it whatever its mode says, because he may have opened it before that
//! was changed; and who may execute a file may read it, because to execute it over NFS is to read
//! it.

use crate::export::Export;
use crate::options::Admission;
use crate::rpc::Claim;
use zilla::zpl::{S_ISVTX, ZFS_APPENDONLY, ZFS_IMMUTABLE};
use zilla::{Asker, Attr, Cred, Errno, Error, NodeId, Result};

/// Bits of a permission, as in a mode.
pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

const ACL: &[u8] = b"system.posix_acl_access";
// Tags of a POSIX ACL's entries. Source: linux/posix_acl_xattr.h
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// In whose name something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    groups: Vec<u32>,
}

impl Who {
    /// Whom a share takes a client for.
    pub(crate) fn of(claim: &Claim, admission: Admission) -> Who {
        let anon = Who { uid: admission.anon.0, gid: admission.anon.1, groups: Vec::new() };
        let Claim::User { uid, gid, groups } = claim else { return anon };
        if admission.all_squash || *uid == 0 && !admission.root {
            return anon;
        }
        // Root's group is squashed like root, whoever says that he is in it.
        let group = |g: u32| if g == 0 && !admission.root { anon.gid } else { g };
        Who { uid: *uid, gid: group(*gid), groups: groups.iter().map(|g| group(*g)).collect() }
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(crate) fn cred(&self) -> Cred {
        Cred { uid: self.uid, gid: self.gid }
    }

    /// The same to those who judge changes of snapshots. Whom a share takes for root is root.
    pub(crate) fn asker(&self) -> Asker {
        let others = self.groups.iter().copied().filter(|g| *g != self.gid);
        Asker { uid: self.uid, gids: std::iter::once(self.gid).chain(others).collect(), is_able: true }
    }

    pub(crate) fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub(crate) fn owns(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }

    /// What of a file's mode or ACL speaks of him: bits of READ, WRITE, EXECUTE. Where several
    /// entries do, one of them has to give all that is wanted (acl(5)).
    fn entries(&self, attr: &Attr, acl: Option<&[u8]>) -> Vec<u32> {
        if self.is_root() {
            let executes = attr.is_dir() || attr.mode & 0o111 != 0;
            return vec![READ | WRITE | if executes { EXECUTE } else { 0 }];
        }
        if self.uid == attr.uid {
            return vec![attr.mode >> 6 & 7];
        }
        if let Some(entries) = acl.and_then(|acl| self.by_acl(attr, acl)) {
            return entries;
        }
        vec![if self.is_in(attr.gid) { attr.mode >> 3 & 7 } else { attr.mode & 7 }]
    }

    /// Each right that he has by itself.
    fn rights(&self, attr: &Attr, acl: Option<&[u8]>) -> u32 {
        self.entries(attr, acl).into_iter().fold(0, |all, entry| all | entry)
    }

    /// Whether he has all these rights at once.
    fn may(&self, attr: &Attr, acl: Option<&[u8]>, want: u32) -> bool {
        self.entries(attr, acl).into_iter().any(|entry| entry & want == want)
    }

    /// The same by an ACL as its attribute holds it; None if that makes no sense, or says no more
    /// than the mode.
    fn by_acl(&self, attr: &Attr, acl: &[u8]) -> Option<Vec<u32>> {
        let entries = acl.get(4..)?.chunks_exact(8).map(|e| {
            let half = |i: usize| u16::from_le_bytes([e[i], e[i + 1]]);
            (half(0), u32::from(half(2)) & 7, u32::from_le_bytes([e[4], e[5], e[6], e[7]]))
        });
        let entries: Vec<(u16, u32, u32)> = entries.collect();
        let of = |tag| entries.iter().find(|e| e.0 == tag).map(|e| e.1);
        of(USER_OBJ)?;
        let mask = of(MASK).unwrap_or(7);
        if let Some(user) = entries.iter().find(|e| e.0 == USER && e.2 == self.uid) {
            return Some(vec![user.1 & mask]);
        }
        let mine = entries
            .iter()
            .filter(|e| e.0 == GROUP_OBJ && self.is_in(attr.gid) || e.0 == GROUP && self.is_in(e.2));
        let mine: Vec<u32> = mine.map(|e| e.1 & mask).collect();
        // No group at all, and he is one of the others.
        if mine.is_empty() { of(OTHER).map(|other| vec![other]) } else { Some(mine) }
    }
}

/// A file's ACL, where the file system has such. One that cannot be read is an error: without it
/// the mode's bits of the group are the ACL's mask, and would give more.
async fn acl(export: &Export, node: NodeId, who: &Who, attr: &Attr) -> Result<Option<Vec<u8>>> {
    if who.is_root() || who.uid == attr.uid || attr.is_symlink() || !export.fs.zfs().props().posix_acl {
        return Ok(None);
    }
    match export.fs.getxattr(node, ACL).await {
        Ok(acl) => Ok(Some(acl)),
        Err(e) if matches!(e.errno(), Errno::NoData | Errno::NotSup) => Ok(None),
        Err(e) => Err(e),
    }
}

/// All rights of a caller to a file.
pub(crate) async fn rights(export: &Export, node: NodeId, who: &Who, attr: &Attr) -> Result<u32> {
    Ok(who.rights(attr, acl(export, node, who, attr).await?.as_deref()))
}

pub(crate) fn denied<T>() -> Result<T> {
    Err(Error::os(Errno::Access, "permission denied"))
}

pub(crate) fn not_permitted<T>() -> Result<T> {
    Err(Error::os(Errno::Perm, "operation not permitted"))
}

/// Refuses what a caller may not.
pub(crate) async fn check(export: &Export, node: NodeId, who: &Who, attr: &Attr, want: u32) -> Result<()> {
    let acl = acl(export, node, who, attr).await?;
    if who.may(attr, acl.as_deref(), want) { Ok(()) } else { denied() }
}

/// Refuses to give a file's contents to who may not have them.
pub(crate) async fn check_read(export: &Export, node: NodeId, who: &Who, attr: &Attr) -> Result<()> {
    let allowed = who.owns(attr) || rights(export, node, who, attr).await? & (READ | EXECUTE) != 0;
    if allowed { Ok(()) } else { denied() }
}

/// Refuses changes of a file's contents. An append-only one is not written to: a client says only
/// at which offset.
pub(crate) async fn check_write(export: &Export, node: NodeId, who: &Who, attr: &Attr) -> Result<()> {
    if attr.flags & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0 {
        return not_permitted();
    }
    if who.owns(attr) { Ok(()) } else { check(export, node, who, attr, WRITE).await }
}

/// In a directory whose sticky bit is set only a file's owner takes its name away, or the
/// directory's.
pub(crate) fn check_sticky(who: &Who, dir: &Attr, file: &Attr) -> Result<()> {
    if dir.mode & S_ISVTX != 0 && !who.owns(file) && !who.owns(dir) { not_permitted() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla::Time;

    fn attr(mode: u32, uid: u32, gid: u32) -> Attr {
        let time = Time::default();
        Attr {
            ino: 1,
            generation: 1,
            mode: zilla::zpl::S_IFREG | mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            projid: 0,
            size: 0,
            blocks: 0,
            blksize: 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            flags: 0,
            settled: true,
        }
    }

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Who {
        Who { uid, gid, groups: groups.to_vec() }
    }

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&perm.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    #[test]
    fn the_mode_says_who_may() {
        let file = attr(0o640, 10, 20);
        assert_eq!(who(10, 1, &[]).rights(&file, None), 6);
        assert_eq!(who(11, 1, &[3, 20]).rights(&file, None), 4);
        assert_eq!(who(11, 1, &[]).rights(&file, None), 0);
        assert_eq!(who(0, 0, &[]).rights(&file, None), READ | WRITE);
        assert_eq!(who(0, 0, &[]).rights(&attr(0o001, 10, 20), None), 7);
        // The owner's bits are his, though those of others would give more.
        assert_eq!(who(10, 20, &[]).rights(&attr(0o077, 10, 20), None), 0);
    }

    #[test]
    fn an_acl_says_more() {
        let file = attr(0o670, 10, 20);
        let acl = list(&[
            (USER_OBJ, 6, 0),
            (USER, 7, 11),
            (GROUP_OBJ, 4, 0),
            (GROUP, 2, 30),
            (MASK, 6, 0),
            (OTHER, 1, 0),
        ]);
        let rights = |w: Who| w.rights(&file, Some(&acl));
        assert_eq!(rights(who(11, 1, &[])), 6, "named, within the mask");
        assert_eq!(rights(who(12, 20, &[])), 4);
        assert_eq!(rights(who(12, 30, &[20])), 6, "of two groups");
        assert!(!who(12, 30, &[20]).may(&file, Some(&acl), 6), "no entry gives both");
        assert!(who(12, 30, &[20]).may(&file, Some(&acl), WRITE));
        assert_eq!(rights(who(12, 1, &[])), 1);
        assert_eq!(who(12, 20, &[]).rights(&file, Some(b"\x02\0\0\0rubbish!")), 7, "unreadable: the mode");
    }

    #[test]
    fn root_is_squashed_with_his_group() {
        let admission = Admission { writes: true, root: false, all_squash: false, anon: (65534, 65533) };
        let claim = |uid, gid| Claim::User { uid, gid, groups: vec![0, 5] };
        assert_eq!(Who::of(&claim(0, 0), admission), who(65534, 65533, &[]));
        assert_eq!(Who::of(&claim(7, 0), admission), who(7, 65533, &[65533, 5]));
        assert_eq!(Who::of(&claim(0, 0), Admission { root: true, ..admission }), who(0, 0, &[0, 5]));
        assert_eq!(
            Who::of(&claim(7, 7), Admission { all_squash: true, ..admission }),
            who(65534, 65533, &[])
        );
        assert_eq!(Who::of(&Claim::Nobody, admission), who(65534, 65533, &[]));
    }

    #[test]
    fn the_sticky_bit_keeps_others_files() {
        let dir = Attr { mode: zilla::zpl::S_IFDIR | 0o1777, ..attr(0, 1, 1) };
        let file = attr(0o600, 10, 10);
        assert!(check_sticky(&who(10, 10, &[]), &dir, &file).is_ok());
        assert!(check_sticky(&who(1, 1, &[]), &dir, &file).is_ok());
        assert!(check_sticky(&who(11, 10, &[]), &dir, &file).is_err());
        assert!(check_sticky(&who(0, 0, &[]), &dir, &file).is_ok());
    }
}
