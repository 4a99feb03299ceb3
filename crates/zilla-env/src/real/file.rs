//! A file or block device: what all three ways of doing I/O share, and the blocking way itself.
//!
//! A device opened for direct I/O has a second, buffered descriptor for reads and writes that are
//! not aligned to what the file system demands; the kernel keeps the two coherent. Data in memory
//! that is not aligned is copied into a buffer that is. Direct I/O is only used where the unit is
//! the 512 bytes that every caller's blocks are a multiple of (or the block device's own sector),
//! so the buffered way is never next to a direct one in a sector.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, seek};
use rustix::io::{Errno, pread, pwritev};
use rustix::ioctl::{Setter, ioctl, opcode};
use smallvec::SmallVec;

use super::threads::ThreadPool;
use crate::completion::Completion;
use crate::fence::{self, Fence};
use crate::patience;
use crate::{Device, DeviceInfo, Io, IoBuf, IoOp, IoResult, IoVec, check_bounds};

/// What direct I/O demands of addresses and of offsets and lengths.
#[derive(Debug, Clone, Copy)]
pub(super) struct Align {
    pub memory: usize,
    pub offset: u64,
}

pub(super) struct FileCore {
    /// The descriptor that holds the lock; buffered, unless there is nothing but direct I/O to be
    /// had.
    pub plain: OwnedFd,
    pub direct: Option<(OwnedFd, Align)>,
    pub size: AtomicU64,
    pub info: DeviceInfo,
    /// tmpfs or ramfs: a flush has nothing to do.
    pub in_memory: bool,
    /// Threads of this device's own.
    pub crew: ThreadPool,
}

impl Drop for FileCore {
    fn drop(&mut self) {
        // Not waited for: it may be one of them that drops the last handle.
        self.crew.close();
    }
}

/// Buffers one system call takes (`IOV_MAX`).
const MAX_PIECES: usize = 1024;
const ZEROES: usize = 1 << 20;

impl FileCore {
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn measure(&self) -> io::Result<u64> {
        // Positioned I/O leaves the file position unused, so moving it disturbs nobody.
        Ok(self.resized(end_of(&self.plain)?))
    }

    pub(super) fn resized(&self, size: u64) -> u64 {
        self.size.store(size, Ordering::Release);
        size
    }

    /// Whether there is anything a flush could have to do.
    pub(super) fn flush_matters(&self) -> bool {
        !self.in_memory && self.info.writable
    }

    /// The descriptor for an operation at this range, and whether it is the direct one.
    pub(super) fn route(&self, offset: u64, len: u64) -> (BorrowedFd<'_>, Option<Align>) {
        match &self.direct {
            Some((fd, align)) if (offset | len).is_multiple_of(align.offset) => (fd.as_fd(), Some(*align)),
            _ => (self.plain.as_fd(), None),
        }
    }

    /// Checks an operation and brings its data into a shape the descriptor takes.
    pub(super) fn prepare(&self, op: IoOp) -> io::Result<IoOp> {
        check_bounds(&op, self.size())?;
        if op.modifies() && !self.info.writable {
            return Err(Errno::ROFS.into());
        }
        let (_, len) = op.range();
        match op {
            IoOp::Write { offset, data } => {
                let data = match self.route(offset, len).1 {
                    Some(align) => aligned(data, len as usize, align),
                    None => data,
                };
                Ok(IoOp::Write { offset, data })
            }
            op => Ok(op),
        }
    }

    /// Does a prepared operation on a thread of the device's own, if the fence allows it then.
    pub(super) fn block(self: &Arc<FileCore>, op: IoOp, done: Completion, fence: Option<Arc<dyn Fence>>) {
        let core = self.clone();
        let job = move || {
            let io = Io { op, done };
            // It may have waited for its turn.
            let allowed = match &fence {
                Some(fence) => fence::pass(io, &**fence),
                None => Some(io),
            };
            if let Some(Io { op, done }) = allowed {
                done.complete(core.run(op));
            }
        };
        self.crew.submit(std::iter::once(Box::new(job) as Box<dyn FnOnce() + Send>));
    }

    fn perform(&self, io: Io) {
        io.done.complete(self.prepare(io.op).and_then(|op| self.run(op)));
    }

    /// Does the batch on the calling thread, if that is how it is wanted; else gives it back.
    pub(super) fn here(&self, mut batch: Vec<Io>) -> Option<Vec<Io>> {
        if batch.len() != 1 || !patience::take() {
            return Some(batch);
        }
        if let Some(io) = batch.pop() {
            self.perform(io);
        }
        None
    }

    /// Does a prepared operation on the calling thread.
    pub(super) fn run(&self, op: IoOp) -> IoResult {
        let (offset, len) = op.range();
        let (fd, _) = self.route(offset, len);
        match op {
            IoOp::Read { offset, mut buf } => {
                read_all(fd, offset, &mut buf)?;
                return Ok(Some(buf));
            }
            IoOp::Write { offset, data } => write_all(fd, offset, &data)?,
            IoOp::Flush if self.flush_matters() => fdatasync(&self.plain)?,
            IoOp::Flush => {}
            IoOp::Discard { .. } | IoOp::WriteZeroes { .. } if len == 0 => {}
            IoOp::Discard { .. } => self.discard(offset, len)?,
            IoOp::WriteZeroes { .. } => self.write_zeroes(offset, len)?,
        }
        Ok(None)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.info.is_block_dev {
            const BLKDISCARD: u32 = opcode::none(0x12, 119);
            // SAFETY: BLKDISCARD takes a pointer to two u64, start and length, and only reads them.
            return Ok(unsafe { ioctl(&self.plain, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }?);
        }
        Ok(fallocate(&self.plain, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        // A hole reads as zeroes and costs the host no space; devices without holes may still have
        // a zeroing command.
        for how in [FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE] {
            match fallocate(&self.plain, how | FallocateFlags::KEEP_SIZE, offset, len) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let zeroes = IoBuf::zeroed(ZEROES.min(len as usize)).into_bytes();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let n = (end - at).min(zeroes.len() as u64);
            let (fd, _) = self.route(at, n);
            write_all(fd, at, &[zeroes.slice(..n as usize)])?;
            at += n;
        }
        Ok(())
    }
}

pub(super) fn end_of(fd: impl AsFd) -> io::Result<u64> {
    Ok(seek(fd, SeekFrom::End(0))?)
}

/// The data as it is where its pieces are aligned, else gathered into one buffer that is.
fn aligned(data: IoVec, len: usize, align: Align) -> IoVec {
    let fits = |piece: &bytes::Bytes| {
        (piece.as_ptr() as usize).is_multiple_of(align.memory)
            && (piece.len() as u64).is_multiple_of(align.offset)
    };
    if data.iter().all(fits) {
        return data;
    }
    let mut whole = IoBuf::scratch(len);
    let mut at = 0;
    for piece in &data {
        whole[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    SmallVec::from_iter([whole.into_bytes()])
}

fn read_all(fd: BorrowedFd<'_>, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match pread(fd, &mut *out, offset) {
            // Shorter than when it was opened: somebody truncated it under us.
            Ok(0) => return Err(short(offset)),
            Ok(n) => {
                offset += n as u64;
                out = &mut out[n..];
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

pub(super) fn short(offset: u64) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the device ends at {offset}, before its size says"))
}

fn write_all(fd: BorrowedFd<'_>, mut offset: u64, data: &[bytes::Bytes]) -> io::Result<()> {
    let mut pieces: SmallVec<[IoSlice<'_>; 8]> = data.iter().map(|d| IoSlice::new(d)).collect();
    let mut rest = &mut pieces[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match pwritev(fd, &rest[..rest.len().min(MAX_PIECES)], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                offset += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// A device whose I/O is done by blocking calls: on its own threads, or by the submitter.
pub(super) struct BlockingDevice {
    pub core: Arc<FileCore>,
    pub inline: bool,
}

impl Device for BlockingDevice {
    fn submit(&self, batch: Vec<Io>) {
        if self.inline {
            return batch.into_iter().for_each(|io| self.core.perform(io));
        }
        let Some(batch) = self.core.here(batch) else { return };
        self.core.crew.submit(batch.into_iter().map(|io| {
            let core = self.core.clone();
            Box::new(move || core.perform(io)) as Box<dyn FnOnce() + Send>
        }));
    }

    fn submit_fenced(&self, batch: Vec<Io>, fence: &Arc<dyn Fence>) {
        let allowed = batch.into_iter().filter_map(|io| fence::pass(io, &**fence));
        if self.inline {
            return allowed.for_each(|io| self.core.perform(io));
        }
        let Some(batch) = self.core.here(allowed.collect()) else { return };
        self.core.crew.submit(batch.into_iter().map(|io| {
            let (core, fence) = (self.core.clone(), fence.clone());
            // It may have waited for its turn.
            let job = move || fence::pass(io, &*fence).into_iter().for_each(|io| core.perform(io));
            Box::new(job) as Box<dyn FnOnce() + Send>
        }));
    }

    fn size(&self) -> u64 {
        self.core.size()
    }

    fn info(&self) -> DeviceInfo {
        self.core.info.clone()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.core.measure()
    }
}
