//! POSIX files on objects: what OpenZFS calls the ZFS POSIX layer.
//!
//! **Floor 12.** It stands on a dataset's objset.
//!
//! A file system is an objset whose object 1, the *master node*, is a ZAP that names the rest:
//! VERSION, ROOT (the root directory), DELETE_QUEUE (files that have no name any more but may still
//! be open), SA_ATTRS (how attributes are packed, see `sa`), and the properties that are fixed at
//! creation. A file is an object; its attributes lie in its bonus (`attrs`). A directory is a ZAP
//! from names to `type << 60 | object number`. Its size is its number of entries plus two, its link
//! count two plus its subdirectories.
//!
//! **In memory** each file that is in use has one [`Znode`]: its attributes, decoded once, behind a
//! lock. Every operation is a plain function over what is in memory (`*_now`). The loop that runs
//! it (`Zfs::change`, on [`crate::dmu::in_tx`], as a volume does) joins a txg, tries, and loads
//! what was missing with neither lock nor txg held. A hit is therefore one function call on the
//! caller's thread.
//!
//! **Invariants.** Every name leads to a file. A file's link count is the number of its names (a
//! directory's: 2 and its subdirectories); a file with none is in the delete queue. What an
//! operation changes, it changes in one txg. A layout is in the tables before a file that has it.
//! Attributes in memory equal those in the bonus, but for access times that wait to be written.
//!
//! **Intent log.** Each operation leaves a record of itself (`log`) where it makes its changes, and
//! `replay` does what records of a crashed machine say.
//!
//! **Order within an operation.** First everything that can find something missing or refuse:
//! lookups, packing of the new attributes (which may add a layout; that is harmless), allocation,
//! and then the changes of ZAPs, each of which takes place whole or reports what it needs. A second
//! ZAP change that finds something missing makes the first be taken back; that always succeeds,
//! since what a held txg has dirtied stays in memory. Attributes are written last and cannot fail.
//!
//! **Crash.** All an operation changes lies in one txg. A file without a name is in the delete
//! queue in the same txg that took its last name away, and is freed when its last user goes or at
//! the next mount ([`Zfs::drain_unlinked`]), so none is lost and none is leaked.
//!
//! **Txgs.** Two are open to changes at once: the open one, and the one before as long as someone
//! is in it. An object that the newer one has changed is not changed in the older one any more
//! ([`crate::dmu::Dnode::in_order`]): the operation leaves its txg and joins the newer.
//!
//! **Lock order.** The rename lock, znodes by ascending object number, the delete queue's, the
//! tables of `sa`, a ZAP's state, a dnode. The list of access times comes behind a znode and before
//! the znode table's shards, which are leaves. Nothing waits under any of them.
//!
//! **Deliberately absent.** No permission checks: servers have their own (FUSE lets the kernel do
//! them from the attributes and ACLs). No byte range locks: the kernel's or the client's are
//! enough. No conversion of old znodes to new ones; they are written as they are.

pub(crate) mod acl;
mod attrs;
pub(crate) mod check;
mod clone;
mod create;
mod diff;
mod dir;
mod file;
mod fs;
mod log;
mod mkfs;
mod parts;
mod path;
mod posix_acl;
mod quota;
mod reap;
mod remove;
mod rename;
mod replay;
mod rewrite;
mod sa;
mod setattr;
mod types;
mod xattr;
mod xattr_dir;
mod znode;

#[cfg(test)]
mod tests;

pub use crate::dmu::ReadData;
pub(crate) use attrs::end_of;
pub use attrs::owner_of;
pub use clone::{Cloned, FilePlace};
pub use diff::{Change, Difference, differences};
pub use fs::{Atime, Direct, FsProps, Space, SyncMode, Unlimited, Zfs};
pub use mkfs::{ZplProps, create_fs};
pub use quota::quota_name;
pub use rename::Judged;
pub use types::*;
pub use znode::{Held, Znode};

use crate::error::{Errno, Error, Result};
use zilla_ondisk::enums::{SPA_VERSION_FUID, SPA_VERSION_SA, SPA_VERSION_USERSPACE};

/// The object that names all others of a file system.
pub const MASTER_NODE_OBJ: u64 = 1;
/// The version new file systems have, and the highest one known.
pub const ZPL_VERSION: u64 = 5;
/// From this version on directory entries tell the file's type.
const ZPL_VERSION_DIRENT_TYPE: u64 = 2;
/// From this version on ACLs and owners are FUIDs.
const ZPL_VERSION_FUID: u64 = 3;
/// The first version with accounts and quotas of users. Source: ZPL_VERSION_USERSPACE in
/// sys/fs/zfs.h.
const ZPL_VERSION_USERSPACE: u64 = 4;
/// From this version on attributes are system attributes.
pub(crate) const ZPL_VERSION_SA: u64 = 5;
/// The version that new file systems have in pools of a version.
pub fn version_for(pool: u64) -> u64 {
    match pool {
        SPA_VERSION_SA.. => ZPL_VERSION,
        SPA_VERSION_USERSPACE.. => ZPL_VERSION_USERSPACE,
        SPA_VERSION_FUID.. => ZPL_VERSION_FUID,
        _ => ZPL_VERSION_DIRENT_TYPE,
    }
}

/// Project of files that belong to none.
pub const DEFAULT_PROJID: u64 = 0;

// File flags, kept in the attribute ZPL_FLAGS.
const PFLAG_XATTR: u64 = 0x1;
const PFLAG_ACL_TRIVIAL: u64 = 0x4;
const PFLAG_ACL_AUTO_INHERIT: u64 = 0x40;
const PFLAG_NO_EXECS_DENIED: u64 = 0x100;
pub const ZFS_ARCHIVE: u64 = 0x8_0000_0000;
pub const ZFS_READONLY: u64 = 0x1_0000_0000;
pub const ZFS_IMMUTABLE: u64 = 0x10_0000_0000;
pub const ZFS_NOUNLINK: u64 = 0x20_0000_0000;
pub const ZFS_APPENDONLY: u64 = 0x40_0000_0000;
pub const ZFS_NODUMP: u64 = 0x80_0000_0000;
const ZFS_AV_MODIFIED: u64 = 0x400_0000_0000;
const ZFS_SPARSE: u64 = 0x2000_0000_0000;
pub const ZFS_PROJINHERIT: u64 = 0x4000_0000_0000;
const PFLAG_PROJID: u64 = 0x8000_0000_0000;
/// File flags that a caller may change.
pub const SETTABLE_FLAGS: u64 = ZFS_IMMUTABLE | ZFS_NOUNLINK | ZFS_APPENDONLY | ZFS_NODUMP | ZFS_PROJINHERIT;

/// Longest name of a directory entry, in bytes; and with `longname=on`.
pub const NAME_MAX: usize = 255;
pub const LONG_NAME_MAX: usize = 1023;
/// Longest target of a symbolic link.
pub const SYMLINK_MAX: usize = 4095;

const DIRENT_OBJ_MASK: u64 = (1 << 48) - 1;

fn err<T>(errno: Errno, what: &'static str) -> Result<T> {
    Err(Error::os(errno, what))
}

/// A FUID's upper half names a domain of Windows identities; none of those have a number here, so
/// the rid stands for itself.
fn fuid_to_id(fuid: u64) -> u32 {
    fuid as u32
}

/// What a directory entry holds.
fn dirent(version: u64, id: u64, mode: u32) -> u64 {
    if version >= ZPL_VERSION_DIRENT_TYPE { id | u64::from((mode & S_IFMT) >> 12) << 60 } else { id }
}

fn dirent_obj(value: u64) -> u64 {
    value & DIRENT_OBJ_MASK
}
