//! A device: something with a size that takes batches of I/O.
//!
//! One required method does all I/O, [`Device::submit`], so that a backend sees as many operations
//! at once as the caller has and can pass them on in one system call. The rest are conveniences on
//! top of it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::IoBuf;
use crate::completion::{BatchFuture, Completion, IoFuture, ReadFuture, UnitFuture};
use crate::fence::{self, Fence};

/// The pieces of a gathering write, written one after another.
pub type IoVec = SmallVec<[Bytes; 4]>;

/// A read yields its buffer back; everything else yields `None`.
pub type IoResult = Result<Option<IoBuf>, io::Error>;

#[derive(Debug)]
pub enum IoOp {
    /// Fills the whole buffer, or fails.
    Read { offset: u64, buf: IoBuf },
    /// Writes all pieces, or fails (some may have been written then).
    Write { offset: u64, data: IoVec },
    /// Makes every write that completed before this was submitted stable.
    Flush,
    /// The contents of the range no longer matter. It may read as anything afterwards until
    /// written.
    Discard { offset: u64, len: u64 },
    /// The range reads as zeroes afterwards, without the zeroes being sent.
    WriteZeroes { offset: u64, len: u64 },
}

impl IoOp {
    /// Offset and length touched; a flush touches nothing.
    pub fn range(&self) -> (u64, u64) {
        match self {
            IoOp::Read { offset, buf } => (*offset, buf.len() as u64),
            IoOp::Write { offset, data } => (*offset, data.iter().map(|d| d.len() as u64).sum()),
            IoOp::Flush => (0, 0),
            IoOp::Discard { offset, len } | IoOp::WriteZeroes { offset, len } => (*offset, *len),
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            IoOp::Read { .. } => "read",
            IoOp::Write { .. } => "write",
            IoOp::Flush => "flush",
            IoOp::Discard { .. } => "discard",
            IoOp::WriteZeroes { .. } => "write-zeroes",
        }
    }

    /// Whether the operation changes the device's contents.
    pub fn modifies(&self) -> bool {
        !matches!(self, IoOp::Read { .. } | IoOp::Flush)
    }
}

/// One operation and whom to tell.
pub struct Io {
    pub op: IoOp,
    pub done: Completion,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    pub path: PathBuf,
    /// Smallest unit the device can read or write.
    pub logical_block: u32,
    /// Smallest unit it writes without reading first.
    pub physical_block: u32,
    pub rotational: Option<bool>,
    pub writable: bool,
    /// Whether I/O bypasses the host's page cache.
    pub direct: bool,
    pub can_discard: bool,
    pub can_write_zeroes: bool,
    pub is_block_dev: bool,
    /// The file system that it lies on, by the kernel's number, if a FUSE server answers for that
    /// (maybe this process).
    pub fuse: Option<u64>,
    /// How I/O is done, for people ("io_uring", "threads", "inline", "memory", ...).
    pub backend: &'static str,
}

pub trait Device: Send + Sync {
    /// Starts every operation of the batch. They may run in any order and at the same time.
    fn submit(&self, batch: Vec<Io>);

    /// The same, except that what modifies the device is done only where the fence allows it right
    /// before ([`crate::is_refused`]).
    fn submit_fenced(&self, batch: Vec<Io>, fence: &Arc<dyn Fence>) {
        let allowed: Vec<Io> = batch.into_iter().filter_map(|io| fence::pass(io, &**fence)).collect();
        if !allowed.is_empty() {
            self.submit(allowed);
        }
    }

    /// Size in bytes, as of the opening or the last [`Device::refresh_size`].
    fn size(&self) -> u64;

    fn info(&self) -> DeviceInfo;

    /// Looks again how large the device is (it may have been grown) and returns it.
    fn refresh_size(&self) -> io::Result<u64>;

    fn io(&self, op: IoOp) -> IoFuture {
        let (done, future) = Completion::oneshot();
        self.submit(vec![Io { op, done }]);
        future
    }

    fn read(&self, offset: u64, len: usize) -> ReadFuture {
        ReadFuture(self.io(IoOp::Read { offset, buf: IoBuf::scratch(len) }))
    }

    fn write(&self, offset: u64, data: Bytes) -> UnitFuture {
        UnitFuture(self.io(IoOp::Write { offset, data: SmallVec::from_iter([data]) }))
    }

    fn flush(&self) -> UnitFuture {
        UnitFuture(self.io(IoOp::Flush))
    }

    fn discard(&self, offset: u64, len: u64) -> UnitFuture {
        UnitFuture(self.io(IoOp::Discard { offset, len }))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> UnitFuture {
        UnitFuture(self.io(IoOp::WriteZeroes { offset, len }))
    }

    /// Submits all operations at once; the results come back together, in the order given.
    fn batch(&self, ops: Vec<IoOp>) -> BatchFuture {
        let (each, future) = Completion::batch(ops.len());
        self.submit(ops.into_iter().zip(each).map(|(op, done)| Io { op, done }).collect());
        future
    }
}

/// Refuses an operation that leaves the device, so that a bad offset can neither grow a file nor
/// read short.
pub fn check_bounds(op: &IoOp, size: u64) -> io::Result<()> {
    let (offset, len) = op.range();
    if offset.checked_add(len).is_some_and(|end| end <= size) {
        return Ok(());
    }
    let kind = if op.modifies() { io::ErrorKind::InvalidInput } else { io::ErrorKind::UnexpectedEof };
    Err(io::Error::new(
        kind,
        format!("{} of {len} bytes at {offset} leaves the device ({size} bytes)", op.name()),
    ))
}
