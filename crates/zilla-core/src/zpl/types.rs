//! What callers of the file system see: attributes, changes of them, and who asks.

use std::time::Duration;

pub const S_IFMT: u32 = 0o170000;
pub const S_IFSOCK: u32 = 0o140000;
pub const S_IFLNK: u32 = 0o120000;
pub const S_IFREG: u32 = 0o100000;
pub const S_IFBLK: u32 = 0o060000;
pub const S_IFDIR: u32 = 0o040000;
pub const S_IFCHR: u32 = 0o020000;
pub const S_IFIFO: u32 = 0o010000;
pub const S_ISUID: u32 = 0o4000;
pub const S_ISGID: u32 = 0o2000;
pub const S_ISVTX: u32 = 0o1000;

/// Seconds and nanoseconds since 1970, as the format has them: two 64-bit numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
}

impl Time {
    pub(crate) fn from_wall(d: Duration) -> Time {
        Time { sec: d.as_secs() as i64, nsec: d.subsec_nanos() }
    }
}

/// A file's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub ino: u64,
    /// The txg of its creation: tells apart files that had the same number.
    pub generation: u64,
    /// Type and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// As `stat` gives it.
    pub rdev: u32,
    pub projid: u32,
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// The size in which reading and writing is cheapest.
    pub blksize: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub crtime: Time,
    /// OpenZFS's file flags (`ZFS_IMMUTABLE`...).
    pub flags: u64,
    /// All changes are on disk, so that `blocks` will not change by itself.
    pub settled: bool,
}

impl Attr {
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
    pub fn is_file(&self) -> bool {
        self.mode & S_IFMT == S_IFREG
    }
    pub fn is_symlink(&self) -> bool {
        self.mode & S_IFMT == S_IFLNK
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    To(Time),
}

/// What to change of a file's attributes; what is None stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Only for servers whose client keeps times itself.
    pub ctime: Option<Time>,
    /// Take the set-user-id and set-group-id bits away, as a change by an unprivileged user does.
    pub kill_suidgid: bool,
    /// Take the set-group-id bit away even if the group may not execute the file: whoever makes the
    /// change is not in the group.
    pub kill_sgid: bool,
    pub projid: Option<u32>,
    /// File flags to set and to clear, of those in [`super::SETTABLE_FLAGS`].
    pub flags: Option<(u64, u64)>,
    /// Owner and group by which the caller judged that this may be changed: refused with ESTALE if
    /// the file has others by now.
    pub judged: Option<(u32, u32)>,
}

/// Who makes a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cred {
    pub uid: u32,
    pub gid: u32,
}

/// What a new directory entry is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Type and permissions, before the umask.
    pub mode: u32,
    pub umask: u32,
    pub rdev: u32,
    pub cred: Cred,
    /// What a symbolic link points to.
    pub target: &'a [u8],
    /// The group for which the caller judged that `mode` may have the set-group-id bit: a file that
    /// gets another group does not get the bit.
    pub judged: Option<u32>,
}

impl<'a> NewFile<'a> {
    pub fn new(mode: u32, cred: Cred) -> NewFile<'a> {
        NewFile { mode, umask: 0, rdev: 0, cred, target: b"", judged: None }
    }
}

/// An entry as readdir gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub ino: u64,
    /// The file type as in the top bits of a mode (`S_IFREG >> 12`), 0 if the entry does not tell.
    pub dtype: u8,
    /// Where to go on after this entry.
    pub cookie: u64,
}

/// Size of a file system and what is left of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    pub bytes_total: u64,
    pub bytes_free: u64,
    pub files_total: u64,
    pub files_free: u64,
    pub name_max: u32,
    pub fsid: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    Data,
    Hole,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    pub no_replace: bool,
    pub exchange: bool,
    pub whiteout: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    Any,
    Create,
    Replace,
}
