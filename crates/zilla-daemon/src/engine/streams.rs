//! The pipes of send and receive: taking their descriptors from clients, and reading and writing
//! them.
//!
//! A client hands over a descriptor under a key ([`zilla_control::handover`]); the request that
//! names the key takes it from the [`Desk`]. A guest's must be a pipe without a name: what the
//! daemon writes to anything else it would write with root's powers, and one with a name, which is
//! opened anew, may lie in a file system that he serves. A pipe may block for as long as its other
//! end likes, so each has a thread of its own, and a few buffers between that thread and the
//! engine: the engine waits, no worker of it does. What a client hands over may block whoever only
//! closes it (a file of a program of his, a socket that lingers): it is taken in, and closed if it
//! is refused, by a thread that nobody waits for, which has his place meanwhile.
//!
//! **A client that dies** closes its connection, which both threads watch beside the pipe: the
//! stream then ends with an error, and the receive or send with it. So nothing but that watch may
//! wait: neither a read nor a write of a pipe blocks, whatever the client made of its descriptor,
//! and whoever else reads and writes the pipe. Two things are left: a
//! file or device that does not answer, and a terminal that is stopped in the moment between the
//! look and the write. **One that stops reading** is waited for by a send, whose other end may be a
//! tape or another machine's disks. Where nothing is worth that (a trace), the writer has a limit.

use super::errors::Answer;
use crate::Handle;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use zilla::error::{Errno, Error, Result};
use zilla::streams::{Sink, Source};
use zilla_control::handover::{
    KEY_BYTES, TAKEN, TO_STDERR, TO_STDOUT, TO_TITLE, file_type, is_nameless_pipe,
};
use zilla_control::props::nicenum::nicebytes;
use zilla_control::server::{self, Guests, Place};
use zilla_control::wary::{Wary, watched};
use zilla_control::{ApiError, Caller, ErrorCode};

/// Descriptors of the owner's that wait for their request; a client sends it at once.
const WAITING: usize = 64;
/// Streams of those who do not own the daemon, all together, and of one of them: each has some
/// megabytes of buffers.
const GUESTS: usize = 8;
const GUESTS_OF_ONE: usize = 4;
/// A client that does not send its one message is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Buffers between a pipe's thread and the engine.
const BUFFERS: usize = 8;
/// Bytes that are read from a pipe at once: it holds a megabyte at most.
const CHUNK: usize = 1 << 20;

/// A client's connection.
type Conn = Wary<UnixStream>;

struct Waiting {
    key: String,
    fd: OwnedFd,
    conn: Conn,
    uid: u32,
    /// A guest's.
    place: Option<Place>,
    /// Dropped when it is taken.
    _waits: oneshot::Sender<()>,
}

/// Where descriptors wait for the requests that name them.
#[derive(Clone)]
pub struct Desk {
    waiting: Arc<Mutex<VecDeque<Waiting>>>,
    guests: Arc<Guests>,
}

impl Default for Desk {
    fn default() -> Desk {
        Desk { waiting: Arc::default(), guests: Arc::new(Guests::new(GUESTS, GUESTS_OF_ONE)) }
    }
}

impl Desk {
    /// Listens for clients as long as the process lives.
    pub fn start(&self, handle: &Handle) -> std::io::Result<()> {
        let path = handle.state_dir().path().join(zilla_control::paths::STREAM_SOCKET);
        let listener = server::listen(&path)?;
        let share = handle.share();
        server::open_to(&path, share)?;
        let (desk, owner) = (self.clone(), rustix::process::geteuid().as_raw());
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((conn, _)) => match server::admit(&conn, owner, share) {
                        Some(caller) => drop(tokio::spawn(desk.clone().take_in(conn, caller))),
                        None => watched(|| drop(conn)),
                    },
                    Err(e) => {
                        tracing::warn!("accept: {e}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
        Ok(())
    }

    async fn take_in(self, conn: tokio::net::UnixStream, caller: Caller) {
        let guest = !caller.owner;
        let conn = match conn.into_std() {
            Ok(conn) => Wary::new(conn, guest),
            Err(_) => return,
        };
        let place = match caller.owner {
            true => None,
            false => match self.guests.admit(&*conn, &caller) {
                Ok(place) => Some(place),
                Err(why) => {
                    tracing::warn!("refused a stream of uid {}: {why}", caller.uid);
                    return;
                }
            },
        };
        let (taken, handed) = oneshot::channel();
        let take = move || {
            let _ = match message(&conn) {
                Some((_, fd)) if guest && !is_nameless_pipe(&fd) => {
                    tracing::warn!("refused a stream of uid {}: it is no pipe without a name", caller.uid);
                    return;
                }
                Some((key, fd)) => taken.send((key, fd, conn, place)),
                None => return,
            };
        };
        if let Err(e) = std::thread::Builder::new().name("hand-over".into()).spawn(take) {
            tracing::warn!("refused a stream: cannot start a thread: {e}");
        }
        let Ok((key, fd, conn, place)) = handed.await else { return };
        let same = conn.try_clone().and_then(tokio::net::UnixStream::from_std);
        let (waits, taken) = oneshot::channel();
        let Ok(same) = same else { return };
        let same = Wary::new(same, guest);
        {
            let mut waiting = self.waiting.lock();
            // The oldest is of a client that forgot it.
            let owners = |w: &Waiting| w.place.is_none();
            if caller.owner && waiting.iter().filter(|w| owners(w)).count() >= WAITING {
                let oldest = waiting.iter().position(owners);
                oldest.and_then(|at| waiting.remove(at));
            }
            let key = key.clone();
            waiting.push_back(Waiting { key, fd, conn, uid: caller.uid, place, _waits: waits });
        }
        // He may not read the answer, as nothing that he is told later.
        let _ = send(&*same, &[TAKEN], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        // Who is refused what he asks for goes, and his pipe ends with him: he sends no more.
        tokio::select! {
            _ = taken => {}
            _ = same.readable() => self.waiting.lock().retain(|w| w.key != key),
        }
    }

    /// The descriptor of a key, for who handed it over.
    pub fn take(&self, key: &str, caller: &Caller) -> Answer<Stream> {
        let mut waiting = self.waiting.lock();
        let at = waiting
            .iter()
            .position(|w| w.key == key && (w.uid == caller.uid || (caller.owner && w.place.is_none())));
        let found = at.and_then(|at| waiting.remove(at));
        let w = found.ok_or_else(|| {
            ApiError::with(ErrorCode::BadRequest, "the stream's descriptor was not handed over")
        })?;
        Ok(Stream { fd: w.fd, conn: Arc::new(w.conn), place: w.place })
    }
}

/// A client's one message: a key and one descriptor.
fn message(conn: &UnixStream) -> Option<(String, OwnedFd)> {
    let mut raw = [0; KEY_BYTES];
    let patience = Timespec::try_from(PATIENCE).ok()?;
    let mut there = [PollFd::new(conn, PollFlags::IN)];
    poll(&mut there, Some(&patience)).ok().filter(|n| *n > 0)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let how = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = watched(|| recvmsg(conn, &mut [IoSliceMut::new(&mut raw)], &mut control, how)).ok()?;
    let fds = control.drain().filter_map(|m| match m {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fd = fds.flatten().next()?;
    (got.bytes == KEY_BYTES).then(|| (raw.iter().map(|b| format!("{b:02x}")).collect(), fd))
}

/// A client's pipe, and the connection on which it is told what happens.
pub struct Stream {
    fd: OwnedFd,
    conn: Arc<Conn>,
    place: Option<Place>,
}

/// Lines for a client's terminal. A stream's names are whatever its sender says.
fn lines(to: u8, text: &str) -> Vec<u8> {
    let mut out = String::with_capacity(text.len() + 2);
    for line in text.split('\n') {
        out.push(char::from(to));
        for c in line.chars() {
            match c.is_control() && c != '\t' {
                true => out.extend(c.escape_default()),
                false => out.push(c),
            }
        }
        out.push('\n');
    }
    out.into()
}

/// What a client is told while its stream runs.
#[derive(Clone)]
pub struct Told(Arc<Conn>);

impl Told {
    fn line(&self, to: u8, text: &str) {
        // One that does not listen is not told, and keeps nobody waiting.
        let _ = send(&**self.0, &lines(to, text), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    pub fn out(&self, text: impl AsRef<str>) {
        self.line(TO_STDOUT, text.as_ref());
    }

    pub fn err(&self, text: impl AsRef<str>) {
        self.line(TO_STDERR, text.as_ref());
    }

    /// How far it is, for who looks at the processes.
    pub fn title(&self, text: impl AsRef<str>) {
        self.line(TO_TITLE, text.as_ref());
    }

    /// How much was received in how long.
    pub fn received(&self, bytes: u64, took: Duration) {
        let seconds = took.as_secs_f64();
        let rate = (bytes as f64 / seconds.max(0.001)) as u64;
        let (bytes, rate) = (nicebytes(bytes), nicebytes(rate));
        self.out(format!("received {bytes} stream in {seconds:.2} seconds ({rate}/sec)"));
    }
}

fn gone() -> Error {
    Error::os(Errno::Intr, "the command was interrupted")
}

/// Waits until the pipe can be read or written; an error if the client is gone, or if that takes
/// longer than the limit.
fn ready(fd: BorrowedFd<'_>, conn: &UnixStream, what: PollFlags, limit: Option<Duration>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let mut both =
            [PollFd::from_borrowed_fd(fd, what), PollFd::new(conn, PollFlags::RDHUP | PollFlags::HUP)];
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        // What does not fit is longer than anybody lives.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut both, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(std::io::Error::from(e).into()),
            Ok(0) => {
                let seconds = limit.unwrap_or_default().as_secs();
                return Err(Error::os(Errno::Io, format!("nobody has read the stream for {seconds} s")));
            }
            Ok(_) => {}
        }
        let [pipe, client] = &both;
        if !client.revents().is_empty() {
            return Err(gone());
        }
        if !pipe.revents().is_empty() {
            return Ok(());
        }
    }
}

/// A pipe that is opened anew: whether it blocks is then not the client's business, nor ours his.
/// None if it is another user's, or without /proc, or if nobody reads what is to be written.
fn anew(fd: &OwnedFd, how: OFlags) -> Option<File> {
    let same = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let how = how | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(same, how, Mode::empty()).ok().map(File::from)
}

/// Where a client writes.
struct Inlet {
    /// It knows when the last writer has gone.
    given: File,
    /// Where it is a pipe: others may have read what the other one has told of.
    anew: Option<File>,
}

impl Inlet {
    fn of(fd: OwnedFd) -> Inlet {
        let is_pipe = file_type(&fd) == Some(FileType::Fifo);
        let anew = if is_pipe { anew(&fd, OFlags::RDONLY) } else { None };
        Inlet { given: fd.into(), anew }
    }

    fn read(&mut self, data: &mut [u8]) -> std::io::Result<usize> {
        self.anew.as_mut().unwrap_or(&mut self.given).read(data)
    }
}

/// Where a client reads: written to without ever waiting in the call.
enum Outlet {
    /// Opened anew where it is a pipe.
    File(File),
    Socket(OwnedFd),
    /// It may block, and what is written at a time is what a pipe or terminal that can be written
    /// to takes at once.
    Blocking(File),
}

/// What a pipe that is ready takes without blocking. Source: pipe(7).
const PIPE_BUF: usize = 4096;

impl Outlet {
    fn of(fd: OwnedFd) -> Outlet {
        match file_type(&fd) {
            Some(FileType::Socket) => Outlet::Socket(fd),
            _ if rustix::termios::isatty(&fd) => Outlet::Blocking(fd.into()),
            Some(FileType::Fifo) => match anew(&fd, OFlags::WRONLY) {
                Some(anew) => Outlet::File(anew),
                // (That its reader is gone the first write says.)
                None => Outlet::Blocking(fd.into()),
            },
            _ => Outlet::File(fd.into()),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Outlet::File(file) | Outlet::Blocking(file) => file.as_fd(),
            Outlet::Socket(fd) => fd.as_fd(),
        }
    }

    /// As much as it takes at once.
    fn put(&mut self, data: &[u8]) -> std::io::Result<usize> {
        match self {
            Outlet::File(file) => file.write(data),
            Outlet::Blocking(file) => file.write(&data[..data.len().min(PIPE_BUF)]),
            Outlet::Socket(fd) => Ok(send(fd, data, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?),
        }
    }
}

impl Stream {
    pub fn told(&self) -> Told {
        Told(self.conn.clone())
    }

    pub fn reader(self) -> Answer<Reader> {
        let (to, from) = mpsc::channel(BUFFERS);
        let run = move || {
            let _place = self.place;
            let mut inlet = Inlet::of(self.fd);
            loop {
                let chunk = read_chunk(&mut inlet, &self.conn);
                let last = !matches!(&chunk, Ok(data) if !data.is_empty());
                if to.blocking_send(chunk).is_err() || last {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("receive".into()).spawn(run).map_err(no_thread)?;
        Ok(Reader { from, have: Bytes::new(), ended: false })
    }

    /// With a limit: so long may the other end take nothing.
    pub fn writer(self, limit: Option<Duration>) -> Answer<Writer> {
        let (to, mut from) = mpsc::channel::<Vec<Bytes>>(BUFFERS);
        let (done, end) = oneshot::channel();
        let run = move || {
            let _place = self.place;
            let write = || {
                let mut outlet = Outlet::of(self.fd);
                while let Some(data) = from.blocking_recv() {
                    write_all(&mut outlet, &self.conn, &data, limit)?;
                }
                Ok(())
            };
            let result = write();
            drop(from);
            let _ = done.send(result);
        };
        std::thread::Builder::new().name("send".into()).spawn(run).map_err(no_thread)?;
        Ok(Writer { to: Some(to), end: Some(end), sent: Arc::default() })
    }
}

fn no_thread(e: std::io::Error) -> ApiError {
    ApiError::with(ErrorCode::Internal, format!("cannot start a thread: {e}"))
}

fn read_chunk(inlet: &mut Inlet, conn: &UnixStream) -> Result<Bytes> {
    let mut data = BytesMut::zeroed(CHUNK);
    let mut len = 0;
    // Small writes of the sender are gathered as far as they are there.
    loop {
        ready(inlet.given.as_fd(), conn, PollFlags::IN, None)?;
        let n = match inlet.read(&mut data[len..]) {
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock) =>
            {
                continue;
            }
            other => other?,
        };
        len += n;
        let more = || {
            let mut p = [PollFd::new(&inlet.given, PollFlags::IN)];
            poll(&mut p, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
        };
        if n == 0 || len == CHUNK || !more() {
            break;
        }
    }
    data.truncate(len);
    Ok(data.freeze())
}

fn write_all(outlet: &mut Outlet, conn: &UnixStream, data: &[Bytes], limit: Option<Duration>) -> Result<()> {
    for part in data {
        let mut rest = &part[..];
        while !rest.is_empty() {
            ready(outlet.fd(), conn, PollFlags::OUT, limit)?;
            match outlet.put(rest) {
                Ok(0) => return Err(Error::os(Errno::Io, "the stream cannot be written")),
                Ok(n) => rest = &rest[n..],
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock
                    ) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(())
}

/// The stream a client receives.
pub struct Reader {
    from: mpsc::Receiver<Result<Bytes>>,
    have: Bytes,
    ended: bool,
}

impl Source for Reader {
    fn read(&mut self, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let mut parts = BytesMut::new();
            loop {
                let missing = len - parts.len();
                if self.have.len() >= missing && parts.is_empty() {
                    return Ok(self.have.split_to(len));
                }
                let part = self.have.split_to(missing.min(self.have.len()));
                parts.extend_from_slice(&part);
                if parts.len() == len || self.ended {
                    return Ok(parts.freeze());
                }
                match self.from.recv().await {
                    Some(Ok(data)) if !data.is_empty() => self.have = data,
                    Some(Err(e)) => return Err(e),
                    _ => self.ended = true,
                }
            }
        })
    }
}

/// The stream a client sends.
pub struct Writer {
    to: Option<mpsc::Sender<Vec<Bytes>>>,
    end: Option<oneshot::Receiver<Result<()>>>,
    /// Bytes so far, for who shows progress.
    pub sent: Arc<std::sync::atomic::AtomicU64>,
}

impl Writer {
    /// Waits until all is written.
    pub async fn finish(&mut self) -> Result<()> {
        self.to = None;
        match self.end.take() {
            Some(end) => end.await.unwrap_or_else(|_| Err(gone())),
            None => Ok(()),
        }
    }
}

impl Sink for Writer {
    fn write(&mut self, data: Vec<Bytes>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let len = data.iter().map(|d| d.len() as u64).sum();
            let Some(to) = &self.to else { return Err(gone()) };
            if to.send(data).await.is_err() {
                return Err(self.finish().await.err().unwrap_or_else(gone));
            }
            self.sent.fetch_add(len, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
