//! Answers: a few fixed structures, and the engine's own buffers behind them.

use bytes::Bytes;
use zilla::{Attr, Errno, Error, ReadData, StatFs};

/// How long the kernel may keep what only this mount changes: a year, for the protocol has no "for
/// ever".
const LASTING: u64 = 365 * 24 * 3600;

#[derive(Default)]
pub(crate) struct Reply {
    /// 0, or an errno.
    pub(crate) error: i32,
    pub(crate) head: Vec<u8>,
    pub(crate) data: ReadData,
}

impl Reply {
    pub(crate) fn ok() -> Reply {
        Reply::default()
    }
    pub(crate) fn errno(errno: i32) -> Reply {
        Reply { error: errno, ..Reply::default() }
    }
    pub(crate) fn err(e: &Error) -> Reply {
        if let Error::Corrupt(c) = e {
            tracing::error!("{c}");
        }
        Reply::errno(e.errno() as i32)
    }
    pub(crate) fn data(data: ReadData) -> Reply {
        Reply { data, ..Reply::default() }
    }
    pub(crate) fn bytes(data: Bytes) -> Reply {
        Reply { data: smallvec_of(data), ..Reply::default() }
    }
    pub(crate) fn head(head: Vec<u8>) -> Reply {
        Reply { head, ..Reply::default() }
    }

    pub(crate) fn attr(attr: &Attr) -> Reply {
        let mut out = Out::with(104);
        let (sec, _) = validity(attr);
        out.u64(sec).u32(0).u32(0);
        put_attr(&mut out, attr);
        Reply::head(out.0)
    }

    pub(crate) fn entry(node: u64, attr: &Attr, lasting: bool, root: u64) -> Reply {
        let mut out = Out::with(128);
        put_entry(&mut out, node, attr, lasting, root);
        Reply::head(out.0)
    }

    /// There is no such name, and there will not be until it is made here.
    pub(crate) fn negative() -> Reply {
        let mut out = Out::with(128);
        out.u64(0).u64(0).u64(LASTING);
        out.0.resize(128, 0);
        Reply::head(out.0)
    }

    pub(crate) fn statfs(s: &StatFs, bsize: u32) -> Reply {
        let mut out = Out::with(80);
        let b = u64::from(bsize);
        out.u64(s.bytes_total / b)
            .u64(s.bytes_free / b)
            .u64(s.bytes_free / b)
            .u64(s.files_total)
            .u64(s.files_free);
        out.u32(bsize).u32(s.name_max).u32(bsize).u32(0);
        out.0.resize(80, 0);
        Reply::head(out.0)
    }
}

fn smallvec_of(data: Bytes) -> ReadData {
    let mut out = ReadData::new();
    out.push(data);
    out
}

impl From<Error> for Reply {
    fn from(e: Error) -> Reply {
        Reply::err(&e)
    }
}

impl From<Errno> for Reply {
    fn from(e: Errno) -> Reply {
        Reply::errno(e as i32)
    }
}

/// A structure being written.
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn with(capacity: usize) -> Out {
        Out(Vec::with_capacity(capacity))
    }
    pub(crate) fn u16(&mut self, v: u16) -> &mut Out {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }
    pub(crate) fn u32(&mut self, v: u32) -> &mut Out {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }
    pub(crate) fn u64(&mut self, v: u64) -> &mut Out {
        self.0.extend_from_slice(&v.to_ne_bytes());
        self
    }
}

/// How long attributes hold: `blocks` changes by itself when a file's txg is synced, so till then
/// not long.
fn validity(attr: &Attr) -> (u64, u32) {
    if attr.settled { (LASTING, 0) } else { (1, 0) }
}

fn put_attr(out: &mut Out, a: &Attr) {
    out.u64(a.ino).u64(a.size).u64(a.blocks);
    out.u64(a.atime.sec as u64).u64(a.mtime.sec as u64).u64(a.ctime.sec as u64);
    out.u32(a.atime.nsec).u32(a.mtime.nsec).u32(a.ctime.nsec);
    out.u32(a.mode).u32(a.nlink).u32(a.uid).u32(a.gid).u32(a.rdev).u32(a.blksize).u32(0);
}

pub(crate) fn put_entry(out: &mut Out, node: u64, attr: &Attr, lasting: bool, root: u64) {
    let (attr_sec, attr_nsec) = if lasting { validity(attr) } else { (0, 0) };
    out.u64(to_kernel(node, root)).u64(attr.generation).u64(if lasting { LASTING } else { 0 }).u64(attr_sec);
    out.u32(0).u32(attr_nsec);
    put_attr(out, attr);
}

/// An entry of a directory listing. False, and nothing written, if it does not fit in `room`.
pub(crate) fn put_dirent(
    out: &mut Out,
    room: usize,
    entry: &zilla::DirEntry,
    root: u64,
    plus: Option<Option<(u64, &Attr, bool)>>,
) -> bool {
    let front = if plus.is_some() { 128 } else { 0 };
    let len = (front + 24 + entry.name.len()).next_multiple_of(8);
    if out.0.len() + len > room {
        return false;
    }
    let end = out.0.len() + len;
    match plus {
        Some(Some((node, attr, lasting))) => put_entry(out, node, attr, lasting, root),
        // A node of 0: the kernel looks the name up when it is asked for it.
        Some(None) => out.0.resize(out.0.len() + 128, 0),
        None => {}
    }
    out.u64(to_kernel(entry.ino, root))
        .u64(entry.cookie)
        .u32(entry.name.len() as u32)
        .u32(u32::from(entry.dtype));
    out.0.extend_from_slice(&entry.name);
    out.0.resize(end, 0);
    true
}

/// FUSE's root is node 1; the file system's has another number (and object 1 is never a file).
pub(crate) fn to_kernel(node: u64, root: u64) -> u64 {
    if node == root { crate::abi::ROOT_ID } else { node }
}

pub(crate) fn from_kernel(node: u64, root: u64) -> u64 {
    if node == crate::abi::ROOT_ID { root } else { node }
}
