//! The device: requests in, answers out, one system call each.

use crate::abi::{DEV_IOC_CLONE, OUT_HEADER};
use crate::reply::Reply;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, IoSlice};
use rustix::ioctl::{Opcode, Setter, ioctl};
use std::io;
use zilla_env::{IoBuf, PAGE};

/// The kernel takes at most this many pieces.
const IOV_MAX: usize = 1000;

pub(crate) struct Dev {
    fd: OwnedFd,
}

pub(crate) enum Read {
    Request(usize),
    /// The kernel took the request back, or a signal came: try again.
    Again,
    /// Unmounted.
    Gone,
}

impl Dev {
    pub(crate) fn new(fd: OwnedFd) -> Dev {
        Dev { fd }
    }

    /// Another door to the same session, with a queue of its own.
    pub(crate) fn another(&self) -> io::Result<Dev> {
        let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let session = self.fd.as_raw_fd() as u32;
        // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of a descriptor, which is what the setter passes.
        unsafe { ioctl(&fd, Setter::<{ DEV_IOC_CLONE as Opcode }, u32>::new(session))? };
        Ok(Dev { fd })
    }

    /// The next request, into `buf`.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<Read> {
        match rustix::io::read(&self.fd, buf) {
            Ok(0) => Ok(Read::Gone),
            Ok(n) => Ok(Read::Request(n)),
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => Ok(Read::Again),
            Err(Errno::NODEV) => Ok(Read::Gone),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether a request waits (or the mount is gone).
    pub(crate) fn has_request(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n > 0)
    }

    /// Answers the request `unique`.
    pub(crate) fn reply(&self, unique: u64, reply: &Reply) -> io::Result<()> {
        let mut data = &reply.data[..];
        let joined;
        if data.len() > IOV_MAX {
            // Only files of tiny blocks come in so many pieces.
            joined = [data.concat().into()];
            data = &joined;
        }
        let len = OUT_HEADER + reply.head.len() + data.iter().map(bytes::Bytes::len).sum::<usize>();
        self.send(len, -reply.error, unique, &reply.head, data)
    }

    pub(crate) fn send(
        &self,
        len: usize,
        error: i32,
        unique: u64,
        head: &[u8],
        data: &[bytes::Bytes],
    ) -> io::Result<()> {
        let mut header = [0; OUT_HEADER];
        header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        if data.is_empty() {
            return done(rustix::io::writev(&self.fd, &[IoSlice::new(&header), IoSlice::new(head)]));
        }
        let mut iov = Vec::with_capacity(data.len() + 2);
        iov.push(IoSlice::new(&header));
        iov.push(IoSlice::new(head));
        iov.extend(data.iter().map(|d| IoSlice::new(d)));
        done(rustix::io::writev(&self.fd, &iov))
    }
}

fn done(r: Result<usize, Errno>) -> io::Result<()> {
    match r {
        // The asker was killed, or the mount is gone: no one waits for the answer.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// A thread's buffer. A request begins where a write's data, behind its headers, falls on a page.
pub(crate) struct Buffer {
    buf: IoBuf,
    max_write: usize,
}

const FRONT: usize = PAGE - crate::abi::WRITE_HEADER;

impl Buffer {
    pub(crate) fn new(max_write: usize) -> Buffer {
        Buffer { buf: IoBuf::scratch(PAGE + max_write), max_write }
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.buf[FRONT..]
    }

    /// The request of `len` bytes that was read, taken out. A small one is copied, a large one goes with the buffer.
    pub(crate) fn take(&mut self, len: usize) -> bytes::Bytes {
        let range = FRONT..FRONT + len;
        if len < self.max_write / 2 {
            // Copied to the same place relative to a page, so that a write's data is aligned in the copy too.
            if len > PAGE {
                let mut copy = IoBuf::scratch(FRONT + len);
                copy[range.clone()].copy_from_slice(&self.buf[range.clone()]);
                return copy.into_bytes().slice(range);
            }
            return bytes::Bytes::copy_from_slice(&self.buf[range]);
        }
        std::mem::replace(&mut self.buf, IoBuf::scratch(PAGE + self.max_write)).into_bytes().slice(range)
    }
}
