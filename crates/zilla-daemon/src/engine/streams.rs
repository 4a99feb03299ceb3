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
use zilla_control::handover::{KEY_BYTES, TAKEN, TO_STDERR, TO_STDOUT, file_type, is_nameless_pipe};
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
            false => match self.guests.place(server::whose(&*conn, &caller)) {
                Some(place) => Some(place),
                None => {
                    tracing::warn!("refused a stream of uid {}: there are too many", caller.uid);
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
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
    use std::io::{ErrorKind, IoSlice};
    use zilla_control::whose::Whose;

    const LIMIT: Duration = Duration::from_secs(1);

    /// A client's end of a pipe or socket, his connection, and what the daemon writes with.
    fn client(socket: bool, limit: Option<Duration>) -> (OwnedFd, UnixStream, Writer) {
        let (theirs, fd) = match socket {
            true => {
                let (a, b) = UnixStream::pair().unwrap();
                (a.into(), b.into())
            }
            false => {
                let (a, b) = std::io::pipe().unwrap();
                (a.into(), b.into())
            }
        };
        let (his, conn) = UnixStream::pair().unwrap();
        let conn = Arc::new(Wary::new(conn, true));
        let writer = Stream { fd, conn, place: None }.writer(limit).unwrap();
        (theirs, his, writer)
    }

    /// Writes more than any pipe holds.
    async fn flood(writer: &mut Writer) -> Result<()> {
        for _ in 0..2 * BUFFERS {
            writer.write(vec![Bytes::from(vec![7; CHUNK])]).await?;
        }
        writer.finish().await
    }

    #[test]
    fn a_pipe_is_taken_by_whom_it_was_handed_over() {
        let desk = Desk::default();
        let joe = Whose::User(7);
        let place = desk.guests.place(joe);
        let (conn, _his) = UnixStream::pair().unwrap();
        let conn = Wary::new(conn, true);
        let fd = std::io::pipe().unwrap().1.into();
        let (waits, _taken) = oneshot::channel();
        desk.waiting.lock().push_back(Waiting { key: "k".into(), fd, conn, uid: 7, place, _waits: waits });
        let caller = |uid, owner| Caller { uid, owner, ..Caller::default() };
        for other in [caller(8, false), caller(0, true)] {
            assert!(desk.take("k", &other).is_err(), "{other:?}");
        }
        assert!(desk.take("other", &caller(7, false)).is_err());
        let of_one: Vec<_> = (1..GUESTS_OF_ONE).map(|_| desk.guests.place(joe).unwrap()).collect();
        assert!(desk.guests.place(joe).is_none());
        drop(desk.take("k", &caller(7, false)).unwrap());
        assert!(desk.guests.place(joe).is_some(), "it was given back");
        drop(of_one);
    }

    /// Whoever serves the file system of one with a name is asked when it is opened anew: a guest
    /// that serves one himself would have a thread wait for as long as he likes.
    #[tokio::test]
    async fn a_guest_hands_over_pipes_without_a_name_and_the_owner_any() {
        let dir = tempfile::tempdir().unwrap();
        let named = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &named, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let opened = || -> OwnedFd { File::options().read(true).write(true).open(&named).unwrap().into() };
        let nameless = || -> OwnedFd { std::io::pipe().unwrap().0.into() };
        for (fd, owner, taken) in [
            (nameless(), false, true),
            (opened(), false, false),
            (nameless(), true, true),
            (opened(), true, true),
        ] {
            let (his, conn) = UnixStream::pair().unwrap();
            conn.set_nonblocking(true).unwrap();
            let fds = [fd.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            sendmsg(&his, &[IoSlice::new(&[7; KEY_BYTES])], &mut control, SendFlags::empty()).unwrap();
            let desk = Desk::default();
            let caller =
                Caller { uid: 7, owner, pid: i32::try_from(std::process::id()).ok(), ..Caller::default() };
            let conn = tokio::net::UnixStream::from_std(conn).unwrap();
            tokio::spawn(desk.clone().take_in(conn, caller));
            his.set_nonblocking(true).unwrap();
            let his = tokio::net::UnixStream::from_std(his).unwrap();
            his.readable().await.unwrap();
            let mut answer = [0];
            let told = his.try_read(&mut answer).is_ok_and(|n| n == 1 && answer == [TAKEN]);
            assert_eq!((told, desk.waiting.lock().len() == 1), (taken, taken), "{owner}");
        }
    }

    #[test]
    fn a_stream_s_names_tell_a_terminal_nothing() {
        let told = lines(TO_STDOUT, "receiving a\u{1b}[2J@b\r into\ttank\nas \u{9b}ü");
        let text = String::from_utf8(told).unwrap();
        assert_eq!(text, "1receiving a\\u{1b}[2J@b\\r into\ttank\n1as \\u{9b}ü\n");
    }

    #[test]
    fn what_another_has_read_of_a_pipe_is_not_waited_for() {
        let (theirs, mut writer) = std::io::pipe().unwrap();
        let mut inlet = Inlet::of(theirs.into());
        let mut data = [0; 8];
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let read = inlet.read(&mut data).map_err(|e| e.kind());
            let _ = tell.send((read, inlet));
        });
        let (read, mut inlet) = told.recv_timeout(LIMIT * 20).expect("it waits in the call");
        assert_eq!(read, Err(ErrorKind::WouldBlock));
        writer.write_all(b"x").unwrap();
        assert_eq!(inlet.read(&mut data).unwrap(), 1);
        // The end is told by what was handed over, also of one that has a name.
        drop(writer);
        let (_his, conn) = UnixStream::pair().unwrap();
        assert!(read_chunk(&mut inlet, &conn).unwrap().is_empty());
    }

    #[tokio::test]
    async fn who_stops_reading_is_waited_for_no_longer_than_the_limit() {
        for socket in [false, true] {
            let (_theirs, _his, mut writer) = client(socket, Some(LIMIT));
            let begun = Instant::now();
            let flooded = tokio::time::timeout(LIMIT * 20, flood(&mut writer)).await;
            let error = flooded.expect("it is waited for").unwrap_err().to_string();
            assert!(error.contains("nobody has read the stream for 1 s"), "{error}");
            assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
        }
    }

    #[tokio::test]
    async fn a_client_that_dies_ends_its_stream_though_its_pipe_is_open_and_full() {
        for socket in [false, true] {
            let (_theirs, his, mut writer) = client(socket, None);
            let dies = async {
                tokio::time::sleep(LIMIT).await;
                drop(his);
                std::future::pending().await
            };
            let flooded = async {
                tokio::select! { f = flood(&mut writer) => f, () = dies => Ok(()) }
            };
            let ended = tokio::time::timeout(LIMIT * 20, flooded).await;
            assert_eq!(ended.expect("it is waited for").unwrap_err().errno(), Errno::Intr);
        }
    }

    #[tokio::test]
    async fn who_reads_slowly_gets_all() {
        for socket in [false, true] {
            let (theirs, _his, mut writer) = client(socket, Some(LIMIT));
            let reader = std::thread::spawn(move || {
                let (mut file, mut len, mut data) = (File::from(theirs), 0, vec![0; CHUNK]);
                loop {
                    std::thread::sleep(Duration::from_millis(1));
                    match file.read(&mut data) {
                        Ok(0) => return len,
                        Ok(n) => len += n,
                        Err(e) if e.kind() == ErrorKind::Interrupted => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            });
            flood(&mut writer).await.unwrap();
            assert_eq!(reader.join().unwrap(), 2 * BUFFERS * CHUNK);
        }
    }
}
