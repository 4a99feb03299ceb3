//! Attributes, times and errors as NFS has them.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::xdr::{Garbage, In, Out, Read};
use zilla::zpl::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFSOCK};
use zilla::{Attr, Errno, SetTime, Time};

// Kinds of files (ftype3).
pub(crate) const NF3REG: u32 = 1;
pub(crate) const NF3DIR: u32 = 2;
pub(crate) const NF3BLK: u32 = 3;
pub(crate) const NF3CHR: u32 = 4;
pub(crate) const NF3LNK: u32 = 5;
pub(crate) const NF3SOCK: u32 = 6;
pub(crate) const NF3FIFO: u32 = 7;

/// Answers' first word (nfsstat3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Status {
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Access = 13,
    Exist = 17,
    XDev = 18,
    NoDev = 19,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10001,
    NotSync = 10002,
    NotSupp = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    /// Try again later.
    Jukebox = 10008,
}

impl From<&zilla::Error> for Status {
    fn from(e: &zilla::Error) -> Status {
        match e.errno() {
            Errno::Perm => Status::Perm,
            Errno::NoEnt => Status::NoEnt,
            Errno::NxIo => Status::NxIo,
            Errno::Access => Status::Access,
            Errno::Exist => Status::Exist,
            Errno::XDev => Status::XDev,
            Errno::NoDev => Status::NoDev,
            Errno::NotDir => Status::NotDir,
            Errno::IsDir => Status::IsDir,
            Errno::Inval | Errno::IlSeq | Errno::Loop => Status::Inval,
            Errno::FBig | Errno::Overflow => Status::FBig,
            Errno::NoSpc => Status::NoSpc,
            Errno::ROFs => Status::RoFs,
            Errno::MLink => Status::MLink,
            Errno::NameTooLong => Status::NameTooLong,
            Errno::NotEmpty => Status::NotEmpty,
            Errno::DQuot => Status::DQuot,
            Errno::Stale => Status::Stale,
            Errno::NotSup => Status::NotSupp,
            Errno::Again | Errno::Busy | Errno::NoMem => Status::Jukebox,
            Errno::Io | Errno::Cksum => Status::Io,
            _ => Status::ServerFault,
        }
    }
}

fn put_time(out: &mut Out, t: Time) {
    // Four bytes without a sign: what is before 1970 or after 2106 is told as the nearest there is.
    let sec = t.sec.clamp(0, i64::from(u32::MAX)) as u32;
    out.u32(sec).u32(t.nsec);
}

fn time(input: &mut In) -> Read<Time> {
    let (sec, nsec) = (input.u32()?, input.u32()?);
    if nsec >= 1_000_000_000 { Err(Garbage) } else { Ok(Time { sec: i64::from(sec), nsec }) }
}

fn kind(mode: u32) -> u32 {
    match mode & S_IFMT {
        S_IFDIR => NF3DIR,
        S_IFBLK => NF3BLK,
        S_IFCHR => NF3CHR,
        S_IFLNK => NF3LNK,
        S_IFSOCK => NF3SOCK,
        S_IFIFO => NF3FIFO,
        _ => NF3REG,
    }
}

/// fattr3 takes so many bytes.
pub(crate) const LEN: usize = 84;

pub(crate) fn put_attr(out: &mut Out, attr: &Attr, fsid: u64) {
    out.u32(kind(attr.mode)).u32(attr.mode & 0o7777).u32(attr.nlink).u32(attr.uid).u32(attr.gid);
    out.u64(attr.size).u64(attr.blocks << 9);
    // Linux's packing of device numbers (new_encode_dev).
    out.u32(attr.rdev >> 8 & 0xfff).u32(attr.rdev & 0xff | attr.rdev >> 12 & 0xfff00);
    out.u64(fsid).u64(attr.ino);
    for t in [attr.atime, attr.mtime, attr.ctime] {
        put_time(out, t);
    }
}

/// A device's number as `stat` gives it.
pub(crate) fn device(major: u32, minor: u32) -> Option<u32> {
    let fits = major < 1 << 12 && minor < 1 << 20;
    fits.then_some(minor & 0xff | major << 8 | (minor & 0xfff00) << 12)
}

/// What is to be changed of a file (sattr3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
}

impl Wanted {
    pub(crate) fn read(input: &mut In) -> Read<Wanted> {
        let mode = input.option(|i| i.u32())?.map(|m| m & 0o7777);
        let (uid, gid) = (input.option(|i| i.u32())?, input.option(|i| i.u32())?);
        let size = input.option(|i| i.u64())?;
        let mut set_time = || match input.u32()? {
            0 => Ok(None),
            1 => Ok(Some(SetTime::Now)),
            2 => time(input).map(|t| Some(SetTime::To(t))),
            _ => Err(Garbage),
        };
        Ok(Wanted { mode, uid, gid, size, atime: set_time()?, mtime: set_time()? })
    }
}

/// A time that a change is made on condition of.
pub(crate) fn guard(input: &mut In) -> Read<Option<Time>> {
    input.option(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for (major, minor) in [(8, 1), (259, 0x12345), (4095, 0xfffff)] {
            let rdev = device(major, minor).unwrap();
            assert_eq!((rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xfff00), (major, minor));
        }
        assert_eq!(device(4096, 0), None);
    }

    #[test]
    fn times_without_a_sign_are_told_as_the_nearest() {
        let mut out = Out::default();
        put_time(&mut out, Time { sec: -5, nsec: 7 });
        put_time(&mut out, Time { sec: 1 << 40, nsec: 0 });
        assert_eq!(out.0, [0, 0, 0, 0, 0, 0, 0, 7, 255, 255, 255, 255, 0, 0, 0, 0]);
        assert_eq!(time(&mut In(vec![0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff].into())), Err(Garbage));
    }
}
