//! What guests may send along with what they say.
//!
//! A message on a Unix socket can carry descriptors. Those that nobody takes the kernel closes
//! within the very call that reads the message, or closes the socket that it waits in; and a close
//! may wait, of a TCP socket for as long as SO_LINGER says, which is up to its owner. So a guest
//! could stop every thread that reads what he sends, for years.
//!
//! Where nobody is to hand anything over the kernel refuses such messages ([`refuse_descriptors`]).
//! Where something is, and on kernels that cannot (before Linux 6.16), calls that may wait so are
//! *watched*: a signal ends the waiting after a moment, as it would end a program's.

use rustix::fd::{AsFd, AsRawFd};
use rustix::process::Pid;
use rustix::thread::gettid;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A call that takes longer waits for something.
const MOMENT: Duration = Duration::from_millis(20);

/// Has the kernel refuse descriptors that are sent to a socket, or to what it accepts. Before Linux
/// 6.16 it does not know how.
pub fn refuse_descriptors(socket: &impl AsFd) {
    /// Source: asm-generic/socket.h.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (off, fd): (libc::c_int, _) = (0, socket.as_fd().as_raw_fd());
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `off`.
    let rc =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), length) };
    if rc != 0 {
        tracing::debug!("descriptors are not refused: {}", io::Error::last_os_error());
    }
}

/// Calls that are under way: their threads, and when they began.
#[derive(Default)]
struct Calls {
    all: Mutex<Vec<(Pid, Instant)>>,
    begun: Condvar,
}

static CALLS: LazyLock<Calls> = LazyLock::new(|| {
    let thread = std::thread::Builder::new().name("impatient".into());
    if let Err(e) = prepare().and_then(|()| thread.spawn(|| CALLS.watch()).map(drop)) {
        tracing::error!("what guests send along may stop threads: {e}");
    }
    Calls::default()
});

/// The signal must be one that something is done at, if only nothing: else it ends no waiting.
fn prepare() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an action of zeros is one without flags and mask; the function does nothing.
    let rc = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut())
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Calls {
    /// No one leaves it half changed.
    fn all(&self) -> MutexGuard<'_, Vec<(Pid, Instant)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        loop {
            let some = self.begun.wait_while(self.all(), |all| all.is_empty());
            drop(some.unwrap_or_else(PoisonError::into_inner));
            std::thread::sleep(MOMENT);
            // None of them leaves `watched` while this lock is held.
            for (thread, _) in self.all().iter().filter(|(_, begun)| begun.elapsed() >= MOMENT) {
                let thread = thread.as_raw_nonzero().get();
                // SAFETY: it takes no pointers, and the thread is this process's.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGURG) };
            }
        }
    }
}

/// A thread's call that is under way, until this is dropped.
struct UnderWay(Pid);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut all = CALLS.all();
        let own = all.iter().rposition(|(thread, _)| *thread == self.0);
        own.map(|at| all.remove(at));
    }
}

/// Makes a call that may close what a guest has sent along, and does not let it wait for that.
pub fn watched<T>(call: impl FnOnce() -> T) -> T {
    let thread = gettid();
    CALLS.all().push((thread, Instant::now()));
    let _under_way = UnderWay(thread);
    CALLS.begun.notify_one();
    call()
}

/// A socket of a guest's: it is read and closed without waiting for what he sends along. Of the
/// owner's nothing is changed.
pub struct Wary<S> {
    /// Gone only while it is dropped.
    socket: Option<S>,
    guest: bool,
}

impl<S> Wary<S> {
    pub fn new(socket: S, guest: bool) -> Wary<S> {
        Wary { socket: Some(socket), guest }
    }
}

impl<S> Drop for Wary<S> {
    fn drop(&mut self) {
        let socket = self.socket.take();
        if self.guest { watched(|| drop(socket)) } else { drop(socket) }
    }
}

impl<S> Deref for Wary<S> {
    type Target = S;

    #[expect(clippy::expect_used, reason = "nobody can have one that is being dropped")]
    fn deref(&self) -> &S {
        self.socket.as_ref().expect("it is there until it is dropped")
    }
}

/// As of a socket that is not connected.
fn gone<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
}

impl<S: AsyncRead + Unpin> AsyncRead for Wary<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guest = self.guest;
        let Some(socket) = &mut self.socket else { return gone() };
        let read = || Pin::new(socket).poll_read(cx, buf);
        if guest { watched(read) } else { read() }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wary<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.socket.as_mut().map_or_else(gone, |socket| Pin::new(socket).poll_write(cx, data))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.socket.as_mut().map_or_else(gone, |socket| Pin::new(socket).poll_write_vectored(cx, data))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().map_or_else(gone, |socket| Pin::new(socket).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().map_or_else(gone, |socket| Pin::new(socket).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// Longer than any call may take here.
    const LINGER: Duration = Duration::from_secs(60);

    /// Sends a socket whose close waits: it has sent what its other end does not take, and nobody
    /// else has it. The other end.
    fn send_along(to: &UnixStream) -> rustix::io::Result<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingers = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        set_socket_linger(&lingers, Some(LINGER)).unwrap();
        lingers.set_nonblocking(true).unwrap();
        while lingers.write(&[0; 1 << 16]).is_ok() {}
        let fds = [lingers.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let sent = sendmsg(to, &[IoSlice::new(b"x")], &mut control, SendFlags::empty());
        if sent.is_err() {
            set_socket_linger(&lingers, None).unwrap();
        }
        sent.map(|_| other)
    }

    /// How long it takes, as long as that is less than the socket would linger.
    fn took(call: impl FnOnce() + Send + 'static) -> Duration {
        let begun = Instant::now();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            call();
            let _ = done.send(());
        });
        is_done.recv_timeout(LINGER / 3).expect("it waits for what was sent along");
        begun.elapsed()
    }

    #[test]
    fn nobody_waits_for_what_a_guest_sends_along() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let others: Vec<TcpStream> = (0..3).map(|_| send_along(&theirs).unwrap()).collect();
        let ours = Wary::new(ours, true);
        // The first is closed by a read, and the others with the socket.
        took(move || {
            let mut byte = [0];
            watched(|| std::io::Read::read(&mut &*ours, &mut byte)).unwrap();
            drop(ours);
        });
        drop(others);
    }

    #[test]
    fn a_socket_that_is_not_for_descriptors_gets_none() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        refuse_descriptors(&ours);
        match send_along(&theirs) {
            Err(e) => assert_eq!(e, rustix::io::Errno::PERM),
            Ok(_) => eprintln!("not run: the kernel cannot refuse them"),
        }
    }
}
