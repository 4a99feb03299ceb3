//! The protocol's numbers and structures (Linux's `uapi/linux/fuse.h`, version 7.38; all in the
//! machine's byte order).

/// What a cursor over a request's body gives when the body is too short: the kernel never sends
/// that, but nothing here trusts it.
pub(crate) struct Short;

pub(crate) const IN_HEADER: usize = 40;
pub(crate) const OUT_HEADER: usize = 16;
/// Header and arguments in front of a write's data.
pub(crate) const WRITE_HEADER: usize = IN_HEADER + 40;
pub(crate) const ROOT_ID: u64 = 1;
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 38;

pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
}

/// Capabilities, settled at INIT.
pub(crate) mod cap {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// What the kernel does with a file it has opened.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// In the flags of a file.
pub(crate) const O_ACCMODE: u32 = 0o3;
pub(crate) const O_RDONLY: u32 = 0;
pub(crate) const O_WRONLY: u32 = 1;
pub(crate) const O_TRUNC: u32 = 0o1000;
pub(crate) const O_APPEND: u32 = 0o2000;
pub(crate) const O_DSYNC: u32 = 0o10000;
/// Of the machine: it is not the same bit everywhere.
pub(crate) const O_DIRECT: u32 = libc::O_DIRECT as u32;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
}

pub(crate) mod ioc {
    pub(crate) const GETFLAGS: u32 = 0x8008_6601;
    pub(crate) const SETFLAGS: u32 = 0x4008_6602;
    pub(crate) const FSGETXATTR: u32 = 0x801c_581f;
    pub(crate) const FSSETXATTR: u32 = 0x401c_5820;
    /// OpenZFS's: flags, offset, length and an argument, of 8 bytes each.
    pub(crate) const ZFS_REWRITE: u32 = 0x4020_8303;
    pub(crate) const IMMUTABLE_FL: u32 = 0x10;
    pub(crate) const APPEND_FL: u32 = 0x20;
    pub(crate) const NODUMP_FL: u32 = 0x40;
    pub(crate) const PROJINHERIT_FL: u32 = 0x2000_0000;
    pub(crate) const XFLAG_IMMUTABLE: u32 = 0x8;
    pub(crate) const XFLAG_APPEND: u32 = 0x10;
    pub(crate) const XFLAG_NODUMP: u32 = 0x80;
    pub(crate) const XFLAG_PROJINHERIT: u32 = 0x200;
    /// There are attributes: told, not set.
    pub(crate) const XFLAG_HASATTR: u32 = 0x8000_0000;
}

/// Walks over a request's arguments.
pub(crate) struct Args<'a>(pub(crate) &'a [u8]);

impl<'a> Args<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Short)?;
        self.0 = rest;
        Ok(*head)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_ne_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_ne_bytes)
    }
    pub(crate) fn skip(&mut self, n: usize) -> Result<(), Short> {
        self.bytes(n).map(drop)
    }
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], Short> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Short)?;
        self.0 = rest;
        Ok(head)
    }
    /// A string up to its NUL.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Short> {
        let end = self.0.iter().position(|b| *b == 0).ok_or(Short)?;
        let s = self.bytes(end)?;
        self.skip(1)?;
        Ok(s)
    }
}

/// The front of every request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The number of the thread that asks, 0 if it is in no namespace of ours.
    pub(crate) pid: u32,
}

impl Header {
    /// The header of a request of `len` bytes, of which `buf` has the first ones.
    pub(crate) fn decode(buf: &[u8], len: usize) -> Result<Header, Short> {
        let mut a = Args(buf);
        if a.u32()? as usize != len {
            return Err(Short);
        }
        let header = Header {
            opcode: a.u32()?,
            unique: a.u64()?,
            node: a.u64()?,
            uid: a.u32()?,
            gid: a.u32()?,
            pid: a.u32()?,
        };
        a.skip(4)?;
        Ok(header)
    }
}
