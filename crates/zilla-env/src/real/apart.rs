//! Calls that may wait for a file system which this very process serves.
//!
//! A file may lie in a file system that is mounted by FUSE, and the server behind it may be this
//! process: a pool on files of another pool. A thread that reads, writes or only looks at such a
//! file sleeps in the kernel until the server has answered, and no signal wakes it once the server
//! has taken the request. Two things follow.
//!
//! * The server must not need that thread. So such calls are made on threads that do nothing else:
//!   one for each call here, a few for each device ([`super::served`]). Never by a worker of the
//!   executor, by a thread that serves a mount, or by the workers of io_uring, which all devices
//!   share.
//! * When the process is killed, such a thread ends only after its call has failed. The call fails
//!   when the kernel aborts the server's connection, which it does when the last descriptor of
//!   `/dev/fuse` is closed, which is when the last thread that shares the process's descriptor
//!   table has ended. So these threads do not share it: each has a table of its own, with nothing
//!   in it but what it works on. All others end, the connection breaks, the call fails, and the
//!   thread ends.
//!
//! The way to a file is the same trouble as the file: a lookup, a `stat`, a `mount` on a directory
//! may each be a request. Nobody can say beforehand where a path leads, so every call by path of a
//! user's choice is made this way.
//!
//! What is kept true: on such a thread a descriptor's number may mean another file than in the rest
//! of the process. So what runs there uses only the descriptors that it is given or opens itself;
//! it wakes nobody, completes nothing and logs nothing. What it brings is delivered by one thread
//! that shares the process's table, and descriptors are passed on over a socket.
//!
//! A core dump waits for every thread to stop, so for these too, while the server stands still: the
//! process would never end. So once there is a device that waits for a server, there are no core
//! dumps ([`no_core_dump`]).

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;

use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// What is done with a call's result, by a thread that shares the process's table.
pub(super) type Delivery = Box<dyn FnOnce() + Send>;

/// Where deliveries go; made with the first one who needs it.
static DELIVERIES: Mutex<Option<Sender<Delivery>>> = Mutex::new(None);

/// Descriptors below this are the standard ones, which every table has: a panic's last words go
/// there.
const FIRST: RawFd = 3;
/// More descriptors than this are not passed on by one call.
const MOST: usize = 8;

thread_local! {
    /// The calling thread makes such a call already.
    static APART: Cell<bool> = const { Cell::new(false) };
}

/// The way back. Asked for by a thread that shares the process's table, for whom it starts inherits
/// its own.
pub(super) fn deliveries() -> io::Result<Sender<Delivery>> {
    let mut made = DELIVERIES.lock();
    if let Some(to) = &*made {
        return Ok(to.clone());
    }
    let (to, from) = channel();
    thread::Builder::new().name("zilla-deliver".into()).spawn(move || deliver(&from))?;
    Ok(made.insert(to).clone())
}

fn deliver(from: &Receiver<Delivery>) {
    for delivery in from {
        or_abort(delivery);
    }
}

/// A panic on one of these threads leaves somebody waiting for ever, perhaps with descriptors that
/// are not what they seem.
pub(super) fn or_abort<T>(f: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| process::abort())
}

/// From now on a fatal signal ends the process without a core dump.
pub(super) fn no_core_dump() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    // Refused nowhere; and if it were, only a crash while such a device is busy would hang.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// The calling thread's own descriptor table. Dropping it closes all that is in it.
pub(super) struct OwnTable(bool);

impl OwnTable {
    /// Leaves the process's table for one that has only the standard descriptors and `keep`, by the
    /// same numbers. Where the kernel refuses (before Linux 5.9) the thread stays as it is, and
    /// works, only then a kill may wait for it.
    pub(super) fn enter(keep: &[RawFd]) -> OwnTable {
        let mut keep: Vec<RawFd> = keep.iter().copied().filter(|fd| *fd >= FIRST).collect();
        keep.sort_unstable();
        // Whatever lies above is not even copied.
        let above = keep.last().map_or(FIRST, |last| last + 1);
        let own = close_range(above, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE);
        if own {
            let mut from = FIRST;
            for fd in keep {
                if from < fd {
                    close_range(from, fd - 1, 0);
                }
                from = fd + 1;
            }
        }
        OwnTable(own)
    }
}

impl Drop for OwnTable {
    fn drop(&mut self) {
        if self.0 {
            close_range(FIRST, RawFd::MAX, 0);
        }
    }
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) -> bool {
    // SAFETY: takes numbers. What it closes is in a table that only the calling thread has: the
    // first call makes that, the others are made only after it did.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
}

/// Makes a call that may wait for a server, on a thread of its own.
pub async fn apart<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    apart_with(Vec::new(), move |_| Ok((call(), Vec::new()))).await.map(|(value, _)| value)
}

/// The same for a call that needs descriptors or brings some (no more than eight). It goes on if
/// nobody waits for it any more. From within such a call another is just made.
pub async fn apart_with<T: Send + 'static>(
    keep: Vec<OwnedFd>,
    call: impl FnOnce(&[BorrowedFd<'_>]) -> io::Result<(T, Vec<OwnedFd>)> + Send + 'static,
) -> io::Result<(T, Vec<OwnedFd>)> {
    if APART.get() {
        let kept: Vec<BorrowedFd<'_>> = keep.iter().map(AsFd::as_fd).collect();
        return call(&kept);
    }
    let answers = deliveries()?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let slot = Arc::new(Slot::default());
    let told = slot.clone();
    let run = move || {
        let wire = theirs.as_raw_fd();
        let mut numbers: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
        numbers.push(wire);
        let table = OwnTable::enter(&numbers);
        APART.set(true);
        // Numbers mean the same in both tables; it is the process's own that are closed, by the
        // delivery.
        let kept = &numbers[..keep.len()];
        let passed = or_abort(|| run_and_pass(call, kept, wire));
        drop(table);
        let delivery = move || {
            let received = passed.and_then(|(value, count)| Ok((value, receive(&ours, count)?)));
            drop((keep, theirs, ours));
            told.set(received);
        };
        // The receiver lives as long as the process.
        let _ = answers.send(Box::new(delivery));
    };
    thread::Builder::new().name("zilla-apart".into()).spawn(run)?;
    Waiting(slot).await
}

/// On the thread apart: makes the call and puts the descriptors it brought on the wire.
fn run_and_pass<T>(
    call: impl FnOnce(&[BorrowedFd<'_>]) -> io::Result<(T, Vec<OwnedFd>)>,
    kept: &[RawFd],
    wire: RawFd,
) -> io::Result<(T, usize)> {
    // SAFETY: each is open in this thread's table, which nobody else changes, until the call is
    // over.
    let kept: Vec<BorrowedFd<'_>> = kept.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
    let (value, brought) = call(&kept)?;
    if brought.is_empty() {
        return Ok((value, 0));
    }
    let fds: Vec<BorrowedFd<'_>> = brought.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("a call brings too many descriptors"));
    }
    // SAFETY: as above.
    let wire = unsafe { BorrowedFd::borrow_raw(wire) };
    sendmsg(wire, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok((value, brought.len()))
}

fn receive(wire: &OwnedFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut fds = Vec::with_capacity(count);
    if count > 0 {
        let mut byte = [0; 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let how = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(wire, &mut [IoSliceMut::new(&mut byte)], &mut control, how)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                fds.extend(passed);
            }
        }
    }
    // The kernel drops those that the process may not have beyond its limit.
    if fds.len() < count {
        return Err(rustix::io::Errno::MFILE.into());
    }
    Ok(fds)
}

/// Where a call's result is put.
struct Slot<T>(Mutex<(Option<T>, Option<Waker>)>);

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot(Mutex::new((None, None)))
    }
}

impl<T> Slot<T> {
    fn set(&self, value: T) {
        let mut slot = self.0.lock();
        slot.0 = Some(value);
        let waker = slot.1.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Waiting<T>(Arc<Slot<T>>);

impl<T> Future for Waiting<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.0.lock();
        match slot.0.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use std::fs::File;
    use std::io::Read;

    /// What the calling thread's table has, beside the directory that is read for it.
    fn table() -> Vec<String> {
        let links = std::fs::read_dir("/proc/thread-self/fd").unwrap().filter_map(|e| {
            let to = std::fs::read_link(e.unwrap().path()).ok()?;
            Some(to.to_string_lossy().into_owned())
        });
        links.filter(|to| !to.starts_with("/proc/")).collect()
    }

    #[test]
    fn a_thread_apart_holds_nothing_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("of the process");
        let _open = File::create(&path).unwrap();
        let path = path.to_string_lossy().into_owned();
        assert!(table().contains(&path));
        let seen = block_on(apart(table)).unwrap();
        assert!(!seen.contains(&path), "{seen:?}");
        // The standard ones and the wire.
        assert!(seen.len() <= 4, "{seen:?}");
    }

    #[test]
    fn descriptors_are_passed_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let given: Vec<OwnedFd> = vec![File::open(dir.path()).unwrap().into()];
        let call = |kept: &[BorrowedFd<'_>]| {
            let open = |name: &str| {
                let how = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
                rustix::fs::openat(kept[0], name, how, rustix::fs::Mode::empty())
            };
            Ok((7, vec![open("b")?, open("a")?]))
        };
        let (value, fds) = block_on(apart_with(given, call)).unwrap();
        let texts = fds.into_iter().map(|fd| {
            let mut text = String::new();
            File::from(fd).read_to_string(&mut text).unwrap();
            text
        });
        assert_eq!((value, texts.collect::<String>().as_str()), (7, "ba"));
        let none: io::Result<((), _)> =
            block_on(apart_with(Vec::new(), |_| Err(rustix::io::Errno::NOENT.into())));
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_call_within_a_call_is_just_made() {
        let outer = block_on(apart(|| {
            let me = thread::current().id();
            block_on(apart(move || thread::current().id() == me)).unwrap()
        }));
        assert!(outer.unwrap());
    }

    #[test]
    fn who_stops_waiting_loses_only_the_answer() {
        let (tell, told) = channel();
        let (go, went) = channel::<()>();
        let mut call = Box::pin(apart(move || {
            went.recv().unwrap();
            tell.send(()).unwrap();
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut cx).is_pending());
        drop(call);
        go.send(()).unwrap();
        told.recv().unwrap();
    }
}
