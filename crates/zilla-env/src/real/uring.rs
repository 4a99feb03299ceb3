//! I/O through io_uring: one ring for all devices.
//!
//! A batch is put into the submission queue under a short lock and handed to the kernel in one
//! system call by the submitting thread, which then takes whatever is already complete. The rest is
//! reaped by one thread. Each operation is one box that owns its buffers, its descriptor and its
//! completion; its address travels through the kernel as the operation's user data, and the box
//! lives until the kernel answers, whatever becomes of the caller.
//!
//! Deliberately absent: registered buffers. They save the pinning of pages, measured at 0.02-0.04
//! CPU seconds per GiB of 128 KiB direct I/O, but count against the locked-memory limit (8 MiB for
//! ordinary users), and a buffer's memory must then never be given back while the ring knows it.
//! SQPOLL: a thread that spins.
//!
//! A fence ([`crate::Fence`]) is asked under the `submit` lock, right before an operation is put
//! into the queue, and again before the device's own threads do what the ring does not, or did by
//! half. What the kernel has no room for stays in the queue until it has: nobody can take it out.
//!
//! Lock order: `submit`, then `reap`. Completions run under neither.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;

use super::file::FileCore;
use crate::completion::Completion;
use crate::fence::{self, Fence, refused};
use crate::{Device, DeviceInfo, Io, IoOp};

/// Submission queue slots; the completion queue has twice as many, and the kernel keeps what
/// exceeds it.
const ENTRIES: u32 = 256;
/// User data of the message that ends the reaper. No box lives at address zero.
const STOP: u64 = 0;

/// The ring's owner. Dropping it ends the reaper once everything in flight is done.
pub(super) struct Ring(Arc<Inner>);

struct Inner {
    ring: IoUring,
    /// Held while writing to the submission queue.
    submit: Mutex<()>,
    /// Held while reading from the completion queue.
    reap: Mutex<Reaped>,
}

#[derive(Default)]
struct Reaped {
    stop: bool,
}

struct Pending {
    op: IoOp,
    done: Completion,
    core: Arc<FileCore>,
    /// Of what modifies the device, where there is one.
    fence: Option<Arc<dyn Fence>>,
    /// Points into `op`; the kernel reads it at submission or later.
    pieces: SmallVec<[IoSlice<'static>; 4]>,
}

impl Pending {
    fn is_allowed(&self) -> bool {
        self.fence.as_ref().is_none_or(|fence| fence.allows())
    }
}

/// A bare ring, if this kernel (and whoever confines us in it) lets us have one with what we need.
fn bare() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_clamp().build(ENTRIES)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Writev::CODE, opcode::Fsync::CODE];
    if !ring.params().is_feature_nodrop() || !needed.iter().all(|&op| probe.is_supported(op)) {
        return Err(Errno::NOSYS.into());
    }
    Ok(ring)
}

/// Whether devices can be read and written through io_uring here; the error says why not.
pub fn io_uring_works() -> io::Result<()> {
    bare().map(drop)
}

impl Ring {
    pub(super) fn new() -> io::Result<Ring> {
        let ring = bare()?;
        let inner = Arc::new(Inner { ring, submit: Mutex::new(()), reap: Mutex::default() });
        let reaper = inner.clone();
        thread::Builder::new().name("zilla-uring".into()).spawn(move || reaper.reap_until_stopped())?;
        Ok(Ring(inner))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Devices keep the ring alive, so nobody submits any more; what is in flight owns all it
        // needs. The message drains the queue before it: the reaper has seen every other completion
        // when it sees this one.
        let stop = opcode::Nop::new().build().user_data(STOP).flags(squeue::Flags::IO_DRAIN);
        let _guard = self.0.submit.lock();
        self.0.make_room();
        self.0.put(&stop);
        self.0.enter();
    }
}

impl Inner {
    /// Queues operations and tells the kernel, in as few calls as the queue's size allows.
    fn push(&self, batch: impl Iterator<Item = Box<Pending>>) {
        let mut stopped: SmallVec<[Box<Pending>; 4]> = SmallVec::new();
        let guard = self.submit.lock();
        for mut pending in batch {
            // Both the lock and the room may have been waited for: the fence is asked after that.
            self.make_room();
            if !pending.is_allowed() {
                stopped.push(pending);
                continue;
            }
            let entry = describe(&mut pending);
            self.put(&entry.user_data(Box::into_raw(pending) as u64));
        }
        self.enter();
        drop(guard);
        for pending in stopped {
            pending.done.complete(Err(refused()));
        }
    }

    /// Sees to it that the submission queue takes one more. The caller holds `submit`.
    fn make_room(&self) {
        // SAFETY: the caller holds the submission queue's lock and has no view of it.
        let full = unsafe { self.ring.submission_shared() }.is_full();
        if full {
            self.enter();
        }
    }

    /// Puts an entry into the submission queue, which has room. The caller holds `submit`.
    fn put(&self, entry: &squeue::Entry) {
        // SAFETY: the lock makes this the only view of the submission queue.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: what the entry points to stays until its completion (see `Pending`).
        if unsafe { queue.push(entry) }.is_err() {
            unreachable!("no room in a submission queue that has just had some");
        }
    }

    /// Hands the whole submission queue to the kernel. The caller holds `submit`.
    fn enter(&self) {
        let mut tries = 0u32;
        loop {
            // SAFETY: the caller holds the submission queue's lock and has no view of it.
            if unsafe { self.ring.submission_shared() }.is_empty() {
                return;
            }
            match self.ring.submit().map_err(|e| Errno::from_io_error(&e)) {
                Ok(_) | Err(Some(Errno::INTR)) => {}
                // Too much in flight, or no memory for more: the reaper makes room.
                Err(Some(Errno::BUSY | Errno::AGAIN | Errno::NOMEM)) => {
                    tries += 1;
                    thread::sleep(Duration::from_micros(50 * tries.min(100) as u64));
                }
                // The ring is broken. I/O that may or may not have happened cannot be answered
                // truthfully.
                Err(e) => {
                    tracing::error!(?e, "io_uring refuses submissions");
                    process::abort();
                }
            }
        }
    }

    /// Takes what is complete now, unless someone else is at it (who then takes it).
    fn reap_some(self: &Arc<Self>) {
        let Some(mut reaped) = self.reap.try_lock() else { return };
        let answers = self.take_answers(&mut reaped);
        drop(reaped);
        answers.into_iter().for_each(|(pending, result)| answer(pending, result));
    }

    fn reap_until_stopped(self: Arc<Self>) {
        loop {
            let mut reaped = self.reap.lock();
            let answers = self.take_answers(&mut reaped);
            let stop = reaped.stop;
            drop(reaped);
            let idle = answers.is_empty();
            answers.into_iter().for_each(|(pending, result)| answer(pending, result));
            if stop {
                return;
            }
            if idle {
                // SAFETY: no arguments besides numbers. Waits without submitting, so the submission
                // queue and its lock are not involved.
                let waited = unsafe { self.ring.submitter().enter::<()>(0, 1, GETEVENTS, None) };
                if let Err(e) = waited
                    && !matches!(Errno::from_io_error(&e), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
                {
                    tracing::error!(%e, "io_uring gives no completions");
                    process::abort();
                }
            }
        }
    }

    fn take_answers(&self, reaped: &mut Reaped) -> SmallVec<[(Box<Pending>, i32); 16]> {
        // SAFETY: the caller holds the lock of which `reaped` is the contents, so this is the only
        // view.
        let queue = unsafe { self.ring.completion_shared() };
        let mut answers = SmallVec::new();
        for entry in queue {
            match entry.user_data() {
                STOP => reaped.stop = true,
                address => {
                    // SAFETY: every other user data is the address of a box given away in
                    // `push`, and the kernel answers each entry exactly once (no multishot
                    // operations are used).
                    let pending = unsafe { Box::from_raw(address as *mut Pending) };
                    answers.push((pending, cqueue::Entry::result(&entry)));
                }
            }
        }
        answers
    }
}

/// Completes an operation. What the ring did by half the device's own threads finish.
fn answer(pending: Box<Pending>, result: i32) {
    let Pending { op, done, core, fence, pieces } = *pending;
    drop(pieces);
    let (_, len) = op.range();
    match (op, u64::try_from(result)) {
        (IoOp::Read { buf, .. }, Ok(n)) if n == len => done.complete(Ok(Some(buf))),
        (IoOp::Read { .. } | IoOp::Write { .. }, Err(_)) if !again(result) => {
            done.complete(Err(failed(result)))
        }
        (IoOp::Write { .. }, Ok(n)) if n == len => done.complete(Ok(None)),
        // Half done, or not just now: the blocking way does it over, which reads and writes may be.
        (op @ (IoOp::Read { .. } | IoOp::Write { .. }), _) => core.block(op, done, fence),
        (_, Ok(_)) => done.complete(Ok(None)),
        // A flush that failed is never repeated: the kernel has dropped what it could not write.
        (_, Err(_)) => done.complete(Err(failed(result))),
    }
}

const GETEVENTS: u32 = 1;

fn again(result: i32) -> bool {
    let errno = Errno::from_raw_os_error(-result);
    errno == Errno::AGAIN || errno == Errno::INTR
}

fn failed(result: i32) -> io::Error {
    io::Error::from_raw_os_error(-result)
}

/// Builds the kernel's description of an operation. The box must not be opened before the kernel's
/// answer.
fn describe(pending: &mut Box<Pending>) -> squeue::Entry {
    let (offset, len) = pending.op.range();
    let (fd, _) = pending.core.route(offset, len);
    let fd = types::Fd(fd.as_raw_fd());
    match &mut pending.op {
        // Lengths of one operation were checked to fit in 32 bits.
        IoOp::Read { buf, .. } => opcode::Read::new(fd, buf.as_mut_ptr(), len as u32).offset(offset).build(),
        IoOp::Write { data, .. } if data.len() == 1 => {
            opcode::Write::new(fd, data[0].as_ptr(), len as u32).offset(offset).build()
        }
        IoOp::Write { data, .. } => {
            let pieces = data.iter().map(|piece| {
                // SAFETY: the memory belongs to `data`, which lives in the same box and is neither
                // changed nor dropped before `pieces` is; `Bytes` never moves its memory.
                let piece: &'static [u8] = unsafe { std::slice::from_raw_parts(piece.as_ptr(), piece.len()) };
                IoSlice::new(piece)
            });
            pending.pieces = pieces.collect();
            // `IoSlice` is documented to have the layout of `iovec`.
            let iovec = pending.pieces.as_ptr().cast();
            opcode::Writev::new(fd, iovec, pending.pieces.len() as u32).offset(offset).build()
        }
        _ => {
            let fd = types::Fd(pending.core.plain.as_raw_fd());
            opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
        }
    }
}

pub(super) struct UringDevice {
    pub core: Arc<FileCore>,
    pub ring: Arc<Ring>,
}

/// Pieces one gathering write takes (`IOV_MAX`).
const MAX_PIECES: usize = 1024;

impl UringDevice {
    fn start(&self, batch: Vec<Io>, fence: Option<&Arc<dyn Fence>>) {
        let Some(batch) = self.core.here(batch) else { return };
        let inner = &self.ring.0;
        let mut ready: SmallVec<[Box<Pending>; 32]> = SmallVec::new();
        for Io { op, done } in batch {
            let op = match self.core.prepare(op) {
                Ok(op) => op,
                Err(e) => {
                    done.complete(Err(e));
                    continue;
                }
            };
            let (_, len) = op.range();
            let fits = match &op {
                IoOp::Read { .. } => len > 0 && len <= i32::MAX as u64,
                IoOp::Write { data, .. } => len > 0 && len <= i32::MAX as u64 && data.len() <= MAX_PIECES,
                IoOp::Flush => self.core.flush_matters(),
                // Rare, and not on every kernel's ring for every kind of device.
                IoOp::Discard { .. } | IoOp::WriteZeroes { .. } => false,
            };
            let fence = fence.filter(|_| op.modifies()).cloned();
            if !fits {
                self.core.block(op, done, fence);
                continue;
            }
            let core = self.core.clone();
            ready.push(Box::new(Pending { op, done, core, fence, pieces: SmallVec::new() }));
        }
        if !ready.is_empty() {
            inner.push(ready.into_iter());
            inner.reap_some();
        }
    }
}

impl Device for UringDevice {
    fn submit(&self, batch: Vec<Io>) {
        self.start(batch, None);
    }

    fn submit_fenced(&self, batch: Vec<Io>, fence: &Arc<dyn Fence>) {
        // Asked here for what this thread does itself; the rest is asked again when it is its turn.
        let allowed = batch.into_iter().filter_map(|io| fence::pass(io, &**fence));
        self.start(allowed.collect(), Some(fence));
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
