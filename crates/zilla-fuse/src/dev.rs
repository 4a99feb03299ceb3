//! The device: requests in, answers out, one system call each.

use crate::abi::OUT_HEADER;
use crate::crew::timespec;
use crate::reply::Reply;
use crate::request::Buffer;
use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::{Errno, IoSlice};
use std::io;
use std::time::Duration;

/// The kernel takes at most this many pieces.
const IOV_MAX: usize = 1000;

pub(crate) struct Dev {
    fd: OwnedFd,
}

pub(crate) enum Read {
    Request(usize),
    /// The kernel took the request back, or a signal came: try again.
    Again,
    /// There is none, and the device does not wait for one.
    Empty,
    /// Unmounted.
    Gone,
}

impl Dev {
    pub(crate) fn new(fd: OwnedFd) -> Dev {
        Dev { fd }
    }

    /// From now on reading waits for no request.
    pub(crate) fn unblock(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        Ok(rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::NONBLOCK)?)
    }

    /// The next request, into `buf`, where data are to lie in buffers of the length that `record`
    /// gives.
    pub(crate) fn read(&self, buf: &mut Buffer, record: impl FnOnce() -> usize) -> io::Result<Read> {
        match rustix::io::readv(&self.fd, &mut buf.space(record)) {
            Ok(0) => Ok(Read::Gone),
            Ok(n) => Ok(Read::Request(n)),
            Err(Errno::AGAIN) => Ok(Read::Empty),
            Err(Errno::INTR | Errno::NOENT) => Ok(Read::Again),
            Err(Errno::NODEV) => Ok(Read::Gone),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether a request waits (or the mount is gone).
    pub(crate) fn has_request(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits for a request at most so long.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&timespec(limit))).is_ok_and(|n| n > 0)
    }

    /// Whether the kernel has ended the session.
    pub(crate) fn is_cut(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::empty())];
        let polled = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok_and(|n| n > 0) && fds.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
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
        let len = OUT_HEADER + reply.head.len() + data.iter().map(Bytes::len).sum::<usize>();
        self.send(len, -reply.error, unique, &reply.head, data)
    }

    pub(crate) fn send(
        &self,
        len: usize,
        error: i32,
        unique: u64,
        head: &[u8],
        data: &[Bytes],
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

impl AsFd for Dev {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn done(r: Result<usize, Errno>) -> io::Result<()> {
    match r {
        // The asker was killed, or the mount is gone: no one waits for the answer.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
