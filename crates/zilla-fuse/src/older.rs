//! What older kernels leave to the server: checks that newer ones make for every file system.

use crate::caller::Caller;
use zilla::zpl::{S_IFDIR, S_IFMT, S_ISGID};
use zilla::{Attr, SetAttr, ZFS_APPENDONLY, ZFS_IMMUTABLE};

/// The group may execute the file.
const S_IXGRP: u32 = 0o010;

/// Whether the kernel asks who wants to change file flags and the project. Since Linux 5.13 they
/// come as requests of its own (`fileattr_set`); before that the ioctl was passed on for whoever
/// has the file open.
pub(crate) fn judges_flags(linux: [u32; 3]) -> bool {
    linux >= [5, 13, 0]
}

/// Whether the kernel takes the set-group-id bit from the mode of a file that somebody makes who is
/// not in its group. Since Linux 6.0 it does for all file systems (`mode_strip_sgid`); before that
/// each did it for itself.
pub(crate) fn strips_modes(linux: [u32; 3]) -> bool {
    linux >= [6, 0, 0]
}

/// Whether a user may change these flags and the project: they are the owner's, but for the flags
/// that bind even him.
pub(crate) fn may_set(caller: &Caller, uid: u32, attr: &Attr, set: &SetAttr) -> bool {
    let (on, off) = set.flags.unwrap_or_default();
    let changed = (on & !attr.flags | off & attr.flags) & (ZFS_IMMUTABLE | ZFS_APPENDONLY);
    let owns = uid == 0 || uid == attr.uid;
    owns && (changed == 0 || caller.sets_immutable())
}

/// Whether a file of this mode would run as its group.
pub(crate) fn is_armed(mode: u32) -> bool {
    mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && mode & S_IFMT != S_IFDIR
}

/// The mode of such a file made in a directory. In one whose set-group-id bit is set its group is
/// the directory's; in others it is its maker's.
pub(crate) fn stripped(mode: u32, dir: &Attr, caller: &Caller) -> u32 {
    let given = dir.mode & S_ISGID != 0;
    if given && !caller.is_in_group(dir.gid) && !caller.keeps_ids() { mode & !S_ISGID } else { mode }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Header;
    use zilla::zpl::S_IFREG;
    use zilla::{Time, ZFS_NODUMP};

    fn attr(mode: u32, flags: u64) -> Attr {
        let time = Time::default();
        Attr {
            ino: 1,
            generation: 1,
            mode,
            nlink: 1,
            uid: 3000,
            gid: 4000,
            rdev: 0,
            projid: 0,
            size: 0,
            blocks: 0,
            blksize: 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            flags,
            settled: true,
        }
    }

    /// One who cannot be looked up, and so has no capability and no other group.
    fn caller(uid: u32, gid: u32) -> Caller {
        Caller::of(&Header { opcode: 0, unique: 1, node: 1, uid, gid, pid: 0 })
    }

    #[test]
    fn flags_are_the_owners() {
        let attr = attr(S_IFREG | 0o644, ZFS_APPENDONLY);
        let may = |uid, on, off| {
            let set = SetAttr { flags: Some((on, off)), ..SetAttr::default() };
            may_set(&caller(uid, 1), uid, &attr, &set)
        };
        assert!(may(3000, ZFS_NODUMP | ZFS_APPENDONLY, ZFS_IMMUTABLE), "as it is, but for the dump");
        assert!(!may(5000, ZFS_NODUMP | ZFS_APPENDONLY, ZFS_IMMUTABLE), "another's file");
        assert!(!may(3000, ZFS_APPENDONLY | ZFS_IMMUTABLE, 0));
        assert!(!may(3000, 0, ZFS_APPENDONLY | ZFS_IMMUTABLE));
        assert!(!may_set(&caller(5000, 1), 5000, &attr, &SetAttr { projid: Some(7), ..SetAttr::default() }));
    }

    #[test]
    fn only_who_is_in_the_group_makes_a_file_that_runs_as_it() {
        let dir = |mode| attr(S_IFDIR | mode, 0);
        let armed = S_IFREG | S_ISGID | 0o755;
        assert!(
            is_armed(armed) && !is_armed(S_IFREG | S_ISGID | 0o745) && !is_armed(S_IFDIR | S_ISGID | 0o755)
        );
        assert_eq!(stripped(armed, &dir(0o2777), &caller(5000, 5000)), armed & !S_ISGID);
        assert_eq!(stripped(armed, &dir(0o2777), &caller(5000, 4000)), armed);
        assert_eq!(stripped(armed, &dir(0o777), &caller(5000, 5000)), armed, "it is his own group's");
    }

    #[test]
    fn which_kernels_do_it_themselves() {
        assert!(!judges_flags([5, 12, 19]) && judges_flags([5, 13, 0]));
        assert!(!strips_modes([5, 19, 17]) && strips_modes([6, 0, 0]));
    }
}
