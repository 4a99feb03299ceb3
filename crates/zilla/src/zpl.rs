//! The smaller parts of POSIX files: bits of modes and attributes, and what differs between two
//! states of a file system.

pub use zilla_core::zpl::{
    Atime, Change, Difference, Direct, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG,
    S_IFSOCK, S_ISGID, S_ISUID, S_ISVTX, ZFS_APPENDONLY, ZFS_IMMUTABLE, differences, version_for,
};
