//! What a client sends, as it comes.
//!
//! Each method may be given up at any await and called again: what was read so far stays here. A
//! write's data come to lie in buffers that hold whole blocks of the volume, which are handed to
//! the engine as they are; so what it keeps of them is no more than what it counts.

use crate::proto::{REQUEST_LEN, Request};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};
use zilla_env::IoBuf;

/// Requests are read together up to so many bytes.
const BUFFER: usize = 32 << 10;
/// Data are read into buffers of so many bytes, or of a block where that is more.
const PIECE: u64 = 16 << 10;

pub struct Reader<R> {
    io: R,
    buf: BytesMut,
    data: Option<Data>,
}

/// A write's data on the way.
struct Data {
    request: Request,
    done: Vec<Bytes>,
    piece: IoBuf,
    filled: usize,
    /// Where in the volume the piece goes.
    at: u64,
    end: u64,
    unit: u64,
}

impl Data {
    fn new(request: &Request, unit: u64) -> Data {
        // An offset that cannot be is refused when the data are here: only its place in a block
        // counts.
        let at = request.offset % unit;
        let mut data = Data {
            request: *request,
            done: Vec::new(),
            piece: IoBuf::scratch(0),
            filled: 0,
            at,
            end: at + u64::from(request.length),
            unit,
        };
        data.next_piece();
        data
    }

    /// Pieces end where blocks do.
    fn next_piece(&mut self) {
        let len = (self.unit - self.at % self.unit).min(self.end - self.at);
        self.piece = IoBuf::scratch(len as usize);
        self.filled = 0;
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.piece[self.filled..]
    }

    /// `n` bytes more are there; true if that was all.
    fn filled(&mut self, n: usize) -> bool {
        self.filled += n;
        if self.filled < self.piece.len() {
            return false;
        }
        self.at += self.piece.len() as u64;
        let piece = std::mem::replace(&mut self.piece, IoBuf::scratch(0));
        self.done.push(piece.into_bytes());
        if self.at < self.end {
            self.next_piece();
        }
        self.at == self.end
    }
}

fn ended() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(io: R) -> Reader<R> {
        Reader { io, buf: BytesMut::new(), data: None }
    }

    /// Whether something was read that nobody has taken yet.
    pub fn holds_more(&self) -> bool {
        !self.buf.is_empty()
    }

    /// Has at least `n` bytes in the buffer; false if the client has sent its last byte before the
    /// first of them.
    async fn fill(&mut self, n: usize) -> io::Result<bool> {
        while self.buf.len() < n {
            self.buf.reserve(n.max(BUFFER) - self.buf.len());
            if self.io.read_buf(&mut self.buf).await? == 0 {
                return if self.buf.is_empty() { Ok(false) } else { Err(ended()) };
            }
        }
        Ok(true)
    }

    /// Exactly `n` bytes.
    pub async fn take(&mut self, n: usize) -> io::Result<Bytes> {
        if !self.fill(n).await? && n > 0 {
            return Err(ended());
        }
        Ok(self.buf.split_to(n).freeze())
    }

    /// Reads over `n` bytes.
    pub async fn skip(&mut self, mut n: u64) -> io::Result<()> {
        while n > 0 {
            let part = n.min(BUFFER as u64) as usize;
            self.take(part).await?;
            n -= part as u64;
        }
        Ok(())
    }

    /// The next request's header, which stays until [`Reader::request_done`] or until all of its
    /// data are here; None at the end.
    pub async fn request(&mut self) -> io::Result<Option<Request>> {
        if let Some(data) = &self.data {
            return Ok(Some(data.request));
        }
        if !self.fill(REQUEST_LEN).await? {
            return Ok(None);
        }
        let header = self.buf.first_chunk::<REQUEST_LEN>().and_then(Request::decode);
        let lost = || io::Error::new(io::ErrorKind::InvalidData, "a request without its magic number");
        header.ok_or_else(lost).map(Some)
    }

    pub fn request_done(&mut self) {
        self.buf.advance(REQUEST_LEN.min(self.buf.len()));
    }

    /// The data of the write whose header comes first, for a volume of blocks of `block` bytes.
    pub async fn data(&mut self, request: &Request, block: u64) -> io::Result<Vec<Bytes>> {
        loop {
            if self.data.is_none() {
                self.request_done();
                if request.length == 0 {
                    return Ok(Vec::new());
                }
            }
            let data = self.data.get_or_insert_with(|| Data::new(request, block.max(PIECE)));
            let n = if self.buf.is_empty() {
                match data.room() {
                    room if room.len() >= BUFFER => self.io.read(room).await?,
                    room => {
                        self.buf.reserve(BUFFER);
                        if self.io.read_buf(&mut self.buf).await? == 0 {
                            return Err(ended());
                        }
                        let n = room.len().min(self.buf.len());
                        self.buf.copy_to_slice(&mut room[..n]);
                        n
                    }
                }
            } else {
                let room = data.room();
                let n = room.len().min(self.buf.len());
                self.buf.copy_to_slice(&mut room[..n]);
                n
            };
            if n == 0 {
                return Err(ended());
            }
            if data.filled(n) {
                return Ok(self.data.take().map(|d| d.done).unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// However the bytes come, and however often the reader is given up, data come out as they
        /// were sent and no block is cut.
        #[test]
        fn data_come_out_as_sent(offset in 0..300_000u64, len in 1..200_000u32, shift in 9..18u32,
                                 part in 1..70_000usize) {
            let block = 1u64 << shift;
            let all: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let request = Request { flags: 0, command: 1, cookie: 0, offset, length: len };
            let sent = all.clone();
            let pieces = runtime().block_on(async move {
                let (mut to, from) = tokio::io::duplex(part.max(64));
                let mut reader = Reader::new(from);
                let writer = async move {
                    to.write_all(&[0; REQUEST_LEN]).await.unwrap();
                    for p in sent.chunks(part) {
                        to.write_all(p).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                };
                let reading = async {
                    assert!(reader.fill(REQUEST_LEN).await.unwrap());
                    loop {
                        // Given up again and again, as by a select in which something else came
                        // first.
                        tokio::select! {
                            biased;
                            pieces = reader.data(&request, block) => return pieces.unwrap(),
                            () = tokio::task::yield_now() => {}
                        }
                    }
                };
                futures_util::future::join(writer, reading).await.1
            });
            prop_assert!(pieces.concat() == all);
            let mut at = offset;
            for p in &pieces {
                at += p.len() as u64;
                prop_assert!(at.is_multiple_of(block.max(PIECE)) || at == offset + u64::from(len));
            }
        }
    }
}
