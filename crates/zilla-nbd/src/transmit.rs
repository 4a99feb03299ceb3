//! Requests and their replies.
//!
//! One task serves a connection. It does three things at once: it reads the next request, unless
//! too much is under way; it drives the requests that wait for something; and it writes what
//! replies there are. A request that need not wait is answered without another turn.

use crate::export::{Export, Facts};
use crate::handshake::{Agreed, CONTEXT_ID};
use crate::memory::{Memory, Share};
use crate::proto::{self, PAYLOAD_MAX, Request, STATE_HOLE, STATE_ZERO, chunk, command, errno, flag};
use crate::reader::Reader;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};
use zilla::{Errno, Error, Extent, ReadData, Result};

/// As many requests are under way at most.
const UNDER_WAY: usize = 128;
/// And so many bytes of data, in requests under way and in replies not yet sent.
const BYTES_UNDER_WAY: usize = 32 << 20;
/// Who takes none of his replies for so long goes, if others wait for the memory that they are in.
const UNTAKEN: Duration = Duration::from_secs(60);

/// The error on the wire.
fn wire(e: &Error) -> u32 {
    match e.errno() {
        Errno::Perm | Errno::ROFs | Errno::Access => errno::PERM,
        Errno::NoMem => errno::NOMEM,
        Errno::Inval => errno::INVAL,
        Errno::NoSpc | Errno::DQuot => errno::NOSPC,
        Errno::NotSup => errno::NOTSUP,
        Errno::NxIo => errno::SHUTDOWN,
        _ => errno::IO,
    }
}

/// What a request has come to.
enum Outcome {
    Done,
    Data(ReadData),
    Status(Vec<Extent>),
    Failed(u32),
}

/// Replies that are to be sent, as pieces of one stream.
#[derive(Default)]
struct Queue {
    /// The last part of a read's data has its share of the memory.
    parts: VecDeque<(Bytes, Option<Share>)>,
    len: usize,
}

impl Queue {
    fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push_back((part, None));
        }
    }

    /// What was pushed last is in this memory.
    fn keep(&mut self, share: Option<Share>) {
        if let Some(last) = self.parts.back_mut() {
            last.1 = share;
        }
    }
}

impl Buf for Queue {
    fn remaining(&self) -> usize {
        self.len
    }
    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |(p, _)| &p[..])
    }
    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let n = out.len().min(self.parts.len());
        out.iter_mut().zip(&self.parts).for_each(|(slot, (part, _))| *slot = IoSlice::new(part));
        n
    }
    fn advance(&mut self, mut n: usize) {
        self.len -= n;
        while let Some((front, _)) = self.parts.front_mut().filter(|_| n > 0) {
            let step = n.min(front.len());
            front.advance(step);
            n -= step;
            if front.is_empty() {
                self.parts.pop_front();
            }
        }
    }
}

/// A request that waits for something: how many bytes of data are counted for it and its share of
/// the memory, itself, and what it comes to.
type UnderWay = BoxFuture<'static, (usize, Option<Share>, Request, Outcome)>;

struct Connection<X> {
    export: Arc<X>,
    structured: bool,
    status: bool,
    under_way: FuturesUnordered<UnderWay>,
    bytes: usize,
    out: Queue,
}

/// Serves requests until the client leaves, the export is closed, or the framing is lost.
pub async fn serve<R, W, X>(
    reader: Reader<R>,
    mut writer: W,
    agreed: Agreed<X>,
    memory: &Memory,
    tls: bool,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    X: Export,
{
    let mut reader = reader;
    let export = Arc::new(agreed.export);
    let mut c = Connection {
        export: export.clone(),
        structured: agreed.structured,
        status: agreed.status,
        under_way: FuturesUnordered::new(),
        bytes: 0,
        out: Queue::default(),
    };
    let closed = export.closed();
    tokio::pin!(closed);
    let mut open = true;
    // TLS keeps what it could not send at once, and sends it only when asked to.
    let mut unflushed = false;
    // The memory for the request that is being read, and when replies were last taken.
    let (mut share, mut taken) = (None, Instant::now());
    while open || !c.under_way.is_empty() || c.out.has_remaining() || unflushed {
        let concurrent = export.facts().map_or(true, |f| f.concurrent);
        let room = if concurrent { UNDER_WAY } else { 1 };
        // Others may wait for the memory of replies that are not taken, and of a write that does
        // not come.
        let waits = c.out.has_remaining() || share.is_some();
        let reads = open && c.under_way.len() < room && c.bytes + c.out.len < BYTES_UNDER_WAY;
        tokio::select! {
            biased;
            sent = send(&mut writer, &mut c.out, &mut unflushed), if c.out.has_remaining() || unflushed => {
                sent?;
                unflushed &= tls;
                taken = Instant::now();
            }
            Some((bytes, share, request, outcome)) = c.under_way.next(), if !c.under_way.is_empty() => {
                c.bytes -= bytes;
                c.answer(&request, outcome, share);
            }
            read = next(&mut reader, &*export, memory, &mut share), if reads => match read? {
                Some((request, data)) if request.command != command::DISC => {
                    c.begin(request, data, share.take());
                }
                _ => open = false,
            },
            () = sleep_until(taken + UNTAKEN), if waits => {
                if memory.is_short() {
                    let what = "it takes no replies or sends no data, and others wait for the memory";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
                taken = Instant::now();
            }
            // Whoever closed it has let requests under way end; what they came to is still told.
            () = &mut closed, if open => open = false,
        }
        if !waits {
            taken = Instant::now();
        }
    }
    writer.shutdown().await
}

/// Sends some of what there is, or has what was sent leave at once. May be given up: what was not
/// sent is still there.
async fn send<W: AsyncWrite + Unpin>(
    writer: &mut W,
    out: &mut Queue,
    unflushed: &mut bool,
) -> io::Result<()> {
    if out.has_remaining() {
        if writer.write_buf(out).await? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        *unflushed = true;
    } else {
        writer.flush().await?;
        *unflushed = false;
    }
    Ok(())
}

/// The next request with its data, which may be given up and asked for again: its share of the
/// memory is kept meanwhile.
async fn next<R: AsyncRead + Unpin, X: Export>(
    reader: &mut Reader<R>,
    export: &X,
    memory: &Memory,
    share: &mut Option<Share>,
) -> io::Result<Option<(Request, Vec<Bytes>)>> {
    let Some(request) = reader.request().await? else { return Ok(None) };
    if request.command == command::WRITE && request.length > PAYLOAD_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a write of too many bytes"));
    }
    if matches!(request.command, command::READ | command::WRITE) && share.is_none() {
        *share = Some(memory.take(request.length).await?);
    }
    if request.command != command::WRITE {
        reader.request_done();
        return Ok(Some((request, Vec::new())));
    }
    let block = export.facts().map_or(1, |f| f.block_size);
    let data = reader.data(&request, block).await?;
    Ok(Some((request, data)))
}

impl<X: Export> Connection<X> {
    fn begin(&mut self, request: Request, data: Vec<Bytes>, share: Option<Share>) {
        let refusal = match self.export.facts() {
            Ok(Facts { size, readonly, .. }) => {
                request.check(size, readonly, self.structured, self.status).err()
            }
            Err(e) => Some(wire(&e)),
        };
        if let Some(error) = refusal {
            return self.answer(&request, Outcome::Failed(error), None);
        }
        if request.command == command::READ {
            match self.export.try_read(request.offset, request.length as usize) {
                Ok(Some(data)) => return self.answer(&request, Outcome::Data(data), share),
                Ok(None) => {}
                Err(e) => return self.answer(&request, Outcome::Failed(wire(&e)), None),
            }
        }
        let bytes = match request.command {
            command::READ | command::WRITE => request.length as usize,
            command::CACHE => request.length.min(PAYLOAD_MAX) as usize,
            _ => 0,
        };
        let export = self.export.clone();
        let mut work: UnderWay = Box::pin(async move {
            let outcome = run(&*export, &request, data).await;
            (bytes, share, request, outcome.unwrap_or_else(|e| Outcome::Failed(wire(&e))))
        });
        match (&mut work).now_or_never() {
            Some((_, share, request, outcome)) => self.answer(&request, outcome, share),
            None => {
                self.bytes += bytes;
                self.under_way.push(work);
            }
        }
    }

    fn chunk(
        &mut self,
        request: &Request,
        flags: u16,
        kind: u16,
        len: usize,
        head: impl FnOnce(&mut BytesMut),
    ) {
        let mut out = BytesMut::with_capacity(32);
        out.put_u32(proto::STRUCTURED_REPLY);
        out.put_u16(flags);
        out.put_u16(kind);
        out.put_u64(request.cookie);
        out.put_u32(len as u32);
        head(&mut out);
        self.out.push(out.freeze());
    }

    fn simple(&mut self, request: &Request, error: u32) {
        let mut out = BytesMut::with_capacity(16);
        out.put_u32(proto::SIMPLE_REPLY);
        out.put_u32(error);
        out.put_u64(request.cookie);
        self.out.push(out.freeze());
    }

    fn answer(&mut self, request: &Request, outcome: Outcome, share: Option<Share>) {
        // These are answered in chunks where that was agreed on, even if they fail.
        let chunks = self.structured && matches!(request.command, command::READ | command::BLOCK_STATUS);
        match outcome {
            Outcome::Data(data) => {
                if chunks {
                    let len = data.iter().map(Bytes::len).sum::<usize>() + 8;
                    self.chunk(request, chunk::DONE, chunk::OFFSET_DATA, len, |b| b.put_u64(request.offset));
                } else {
                    self.simple(request, 0);
                }
                data.into_iter().for_each(|part| self.out.push(part));
                self.out.keep(share);
            }
            Outcome::Status(extents) => {
                self.chunk(request, chunk::DONE, chunk::BLOCK_STATUS, 4 + extents.len() * 8, |b| {
                    b.put_u32(CONTEXT_ID);
                    for e in &extents {
                        b.put_u32(e.len.min(u32::MAX.into()) as u32);
                        b.put_u32(if e.hole { STATE_HOLE | STATE_ZERO } else { 0 });
                    }
                });
            }
            Outcome::Failed(error) if chunks => {
                self.chunk(request, chunk::DONE, chunk::ERROR, 6, |b| {
                    b.put_u32(error);
                    b.put_u16(0);
                });
            }
            Outcome::Failed(error) => self.simple(request, error),
            Outcome::Done => self.simple(request, 0),
        }
    }
}

/// Does a request that was found to be in order.
async fn run<X: Export>(x: &X, r: &Request, data: Vec<Bytes>) -> Result<Outcome> {
    let (off, len, fua) = (r.offset, u64::from(r.length), r.has(flag::FUA));
    match r.command {
        command::READ => return Ok(Outcome::Data(x.read(off, r.length as usize).await?)),
        command::WRITE => x.write(off, data, fua).await?,
        command::FLUSH => x.flush().await?,
        command::TRIM => x.trim(off, len, fua).await?,
        command::CACHE => x.cache(off, len).await?,
        command::BLOCK_STATUS => {
            let mut extents = x.extents(off, len).await?;
            if r.has(flag::REQ_ONE) {
                extents.truncate(1);
            }
            return Ok(Outcome::Status(extents));
        }
        _ => {
            let allocated = r.has(flag::NO_HOLE);
            // Zeroes that are stored are no faster than data.
            if allocated && r.has(flag::FAST_ZERO) {
                return Ok(Outcome::Failed(errno::NOTSUP));
            }
            x.write_zeroes(off, len, allocated, fua).await?;
        }
    }
    Ok(Outcome::Done)
}
