//! A file's project number and flags, by the kernel's own call for them.
//!
//! It reaches the file system through its mount, whoever serves that, and is judged there like any
//! other change of the file.

use rustix::fd::AsFd;
use rustix::io;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

/// What a directory gives to those made in it: its project.
pub const XFLAG_PROJINHERIT: u32 = 0x200;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Fsx {
    pub xflags: u32,
    extsize: u32,
    nextents: u32,
    pub projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR of linux/fs.h.
const GET: rustix::ioctl::Opcode = opcode::read::<Fsx>(b'X', 31);
const SET: rustix::ioctl::Opcode = opcode::write::<Fsx>(b'X', 32);

pub fn get(file: impl AsFd) -> io::Result<Fsx> {
    // SAFETY: the call fills the structure of this number and size.
    unsafe { ioctl(file, Getter::<GET, Fsx>::new()) }
}

pub fn set(file: impl AsFd, fsx: Fsx) -> io::Result<()> {
    // SAFETY: the call reads the structure of this number and size.
    unsafe { ioctl(file, Setter::<SET, Fsx>::new(fsx)) }
}
