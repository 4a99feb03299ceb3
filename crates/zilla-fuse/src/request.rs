//! Requests, and how they come out of the buffer a thread reads them into.
//!
//! Small ones are copied, so that the buffer is there for the next one. The data of a large write
//! stay where the kernel has put them, and become the engine's.

use crate::abi::{Args, Header, IN_HEADER, Short, WRITE_HEADER, op};
use crate::opens::STABLE;
use bytes::Bytes;
use rustix::io::IoSliceMut;
use smallvec::SmallVec;
use std::iter::once;
use zilla_env::{IoBuf, PAGE};

/// Requests of no more data than this are done in less time than it takes to wake a thread.
const SHORT: usize = 64 << 10;

/// A request, out of the thread's buffer.
pub(crate) struct Request {
    pub(crate) header: Header,
    /// All of it, the header too; of a large write what stands before the data.
    pub(crate) all: Bytes,
    /// A large write's data, in pieces of a record each.
    pub(crate) data: Vec<Bytes>,
}

impl Request {
    /// Whether it keeps a thread for longer than it takes to wake another.
    pub(crate) fn is_long(&self) -> bool {
        let mut a = self.args();
        match self.header.opcode {
            op::READ | op::READDIR | op::READDIRPLUS => {
                a.skip(16).and_then(|()| a.u32()).is_ok_and(|size| size as usize > SHORT)
            }
            op::COPY_FILE_RANGE | op::FALLOCATE | op::SYNCFS => true,
            _ => self.all.len() + self.data.iter().map(Bytes::len).sum::<usize>() > SHORT,
        }
    }
    /// Whether nobody waits for it.
    pub(crate) fn is_farewell(&self) -> bool {
        matches!(self.header.opcode, op::FORGET | op::BATCH_FORGET | op::RELEASE)
    }
    /// Whether it is there to wait for a disk. If that is a quick one its thread may as well do the
    /// I/O itself.
    pub(crate) fn waits(&self) -> bool {
        match self.header.opcode {
            op::FSYNC | op::FSYNCDIR => true,
            op::WRITE => self.args().u64().is_ok_and(|handle| handle == STABLE),
            _ => false,
        }
    }
    pub(crate) fn args(&self) -> Args<'_> {
        Args(self.all.get(IN_HEADER..).unwrap_or_default())
    }
}

/// Where a thread reads requests. A write's data come to lie behind its headers in buffers of a
/// record each: the engine takes them over, and what it keeps of them is no more than what it
/// counts.
pub(crate) struct Buffer {
    headers: [u8; WRITE_HEADER],
    data: Vec<IoBuf>,
    max_write: usize,
    record: usize,
}

/// Where small data lie in a copy of their request, so that they are aligned in it too.
const FRONT: usize = PAGE - WRITE_HEADER;

/// More buffers than this are more work than they spare.
const MOST: usize = 64;

impl Buffer {
    pub(crate) fn new(max_write: usize) -> Buffer {
        Buffer { headers: [0; WRITE_HEADER], data: Vec::new(), max_write, record: 0 }
    }

    /// The next requests are another file system's, whose records are so long.
    pub(crate) fn renew(&mut self, record: usize) {
        if std::mem::replace(&mut self.record, record) != record {
            self.data.clear();
        }
    }

    /// Room for any request. What was taken is replaced by buffers of the length that `record`
    /// gives.
    pub(crate) fn space(&mut self, record: impl FnOnce() -> usize) -> SmallVec<[IoSliceMut<'_>; 12]> {
        let mut room: usize = self.data.iter().map(|b| b.len()).sum();
        if room < self.max_write {
            let len = record().clamp(self.max_write / MOST, self.max_write);
            while room < self.max_write {
                self.data.push(IoBuf::scratch(len));
                room += len;
            }
        }
        let data = self.data.iter_mut().map(|b| IoSliceMut::new(b));
        once(IoSliceMut::new(&mut self.headers)).chain(data).collect()
    }

    /// The request of `len` bytes that was read, taken out. A large write's data go with their
    /// buffers, all else is copied.
    pub(crate) fn take(&mut self, len: usize) -> Result<Request, Short> {
        let headers = &self.headers[..len.min(WRITE_HEADER)];
        let header = Header::decode(headers, len)?;
        let rest = len - headers.len();
        if header.opcode == op::WRITE && self.data.first().is_some_and(|b| worth_taking(rest, b)) {
            let all = Bytes::copy_from_slice(headers);
            return Ok(Request { header, all, data: self.take_data(rest) });
        }
        let mut left = rest;
        let data = self.data.iter().map(|b| {
            let n = left.min(b.len());
            left -= n;
            &b[..n]
        });
        let parts = once(headers).chain(data);
        let all = if len > PAGE {
            let mut copy = IoBuf::scratch(FRONT + len);
            let mut at = FRONT;
            for part in parts {
                copy[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            copy.into_bytes().slice(FRONT..)
        } else {
            let mut copy = Vec::with_capacity(len);
            parts.for_each(|part| copy.extend_from_slice(part));
            copy.into()
        };
        Ok(Request { header, all, data: Vec::new() })
    }

    fn take_data(&mut self, len: usize) -> Vec<Bytes> {
        let (mut left, mut taken) = (len, 0);
        while let Some(buf) = self.data.get_mut(taken).filter(|b| left > 0 && worth_taking(left, b)) {
            buf.truncate(left);
            left -= buf.len();
            taken += 1;
        }
        let mut out: Vec<Bytes> = self.data.drain(..taken).map(IoBuf::into_bytes).collect();
        if let Some(buf) = self.data.first().filter(|_| left > 0) {
            out.push(IoBuf::from_slice(&buf[..left]).into_bytes());
        }
        out
    }
}

/// Whether `len` bytes fill the buffer well enough to be kept in it.
fn worth_taking(len: usize, buf: &IoBuf) -> bool {
    len * 2 >= buf.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a request of so many bytes becomes, and how many buffers are taken for it.
    fn read(buf: &mut Buffer, opcode: u32, len: usize) -> (Request, usize) {
        let mut request: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        request[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        request[4..8].copy_from_slice(&opcode.to_ne_bytes());
        let mut rest = &request[..];
        for space in &mut buf.space(|| 128 << 10) {
            let (now, later) = rest.split_at(rest.len().min(space.len()));
            space[..now.len()].copy_from_slice(now);
            rest = later;
        }
        let before = buf.data.len();
        let Ok(got) = buf.take(len) else { panic!("{len} bytes are no request") };
        let whole = [&got.all[..], &got.data.concat()].concat();
        assert!(whole == request, "{len} bytes of {opcode} are other ones");
        (got, before - buf.data.len())
    }

    #[test]
    fn requests_come_out_as_they_were_read() {
        let mut buf = Buffer::new(1 << 20);
        for round in 0..3 {
            for len in [40, 41, 80, 81, 4096, 4097, 4176, 16 << 10, 100_000, 300_000, (1 << 20) + 80] {
                for opcode in [op::WRITE, op::BATCH_FORGET] {
                    let (got, taken) = read(&mut buf, opcode, len);
                    let data = len.saturating_sub(80);
                    let want = if opcode == op::WRITE { (data + (64 << 10)) / (128 << 10) } else { 0 };
                    assert_eq!(taken, want, "round {round}, {len} bytes");
                    assert_eq!(
                        got.data.iter().map(Bytes::len).sum::<usize>(),
                        if want > 0 { data } else { 0 }
                    );
                    assert!(got.data.iter().all(|d| d.len() <= 128 << 10), "a record keeps another's memory");
                    // The engine writes data that are aligned without another copy.
                    let aligned = |b: &[u8]| (b.as_ptr() as usize).is_multiple_of(PAGE);
                    assert!(got.data.iter().all(|d| aligned(d)));
                    assert!(len <= PAGE || !got.data.is_empty() || aligned(&got.all[80..]));
                }
            }
        }
    }

    #[test]
    fn buffers_follow_the_record_size() {
        let mut buf = Buffer::new(1 << 20);
        for (record, count) in [(128 << 10, 8), (16 << 20, 1), (4096, 64)] {
            assert_eq!(buf.space(|| record).len(), 1 + count);
            buf.data.clear();
        }
    }
}
