//! A leaf: one device, its queue, its state on this machine, and what it has done and failed to do.
//!
//! I/O enters by [`Leaf::submit`] as a list, goes through the queue, and comes back by each I/O's
//! [`IoDone`]. A failed I/O is tried once more, alone; a second failure is counted and reported.
//! Devices that complete inside `submit` (memory) would turn "completion issues the next I/O" into
//! recursion, so a completion that runs inside a submit on the same thread only notes that its leaf
//! has room again, and the outermost submit goes round.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use event_listener::Event;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use zilla_env::{Completion, Device, Env, Io, IoBuf, IoOp, IoVec};
use zilla_ondisk::enums::{VdevAux, VdevState};

use super::distributed::Room;
use super::dtl::Dtl;
use super::flush::{Flushes, Recent};
use super::gather::{Gather, IoDone};
use super::priority::Priority;
use super::queue::{QIo, QOp, Queue, Run, Sent, Ticket};
use super::state::StateCell;
use super::stats::{CLASSES, IoKind, LeafStats};
use super::tickets::Tickets;
use super::trouble::{TroubleKind, Troubles};
use super::upkeep::{Upkeep, UpkeepKind};
use crate::error::Error;
use crate::inject;
use crate::tunables::{DEADMAN_ENABLED, DEADMAN_ZIOTIME_MS, SLOW_IO_MS};

/// One I/O to be put into a leaf's queue. Offsets are the device's.
pub struct LeafIo {
    pub op: QOp,
    pub offset: u64,
    pub len: u64,
    pub class: Priority,
    pub done: Arc<dyn IoDone>,
    pub slot: usize,
}

pub struct Leaf {
    guid: AtomicU64,
    /// Place in [`super::VdevTree::leaves`].
    pub index: usize,
    pub(super) env: Env,
    path: RwLock<String>,
    device: RwLock<Option<Arc<dyn Device>>>,
    /// Why it could not be opened the last time.
    open_error: Mutex<Option<Error>>,
    pub(super) queue: Mutex<Queue>,
    /// A timer runs that looks at the queue.
    wakes: AtomicBool,
    /// Of a distributed spare, which has no device: where what it holds lies.
    pub room: Option<Room>,
    pub(super) state: StateCell,
    /// Usable bytes of the device, labels included.
    psize: AtomicU64,
    /// The administrator took it offline (kept in the configuration).
    pub offline: AtomicBool,
    /// Only until the next import: not kept in the configuration.
    pub offline_until_import: AtomicBool,
    /// Reads or writes are refused because they failed too often.
    pub(super) cant_read: AtomicBool,
    pub(super) cant_write: AtomicBool,
    pub dtl: Dtl,
    /// Takes part in the resilver that is under way.
    pub resilvering: AtomicBool,
    /// It took part in one and went away, which its DTL does not say yet.
    pub(super) dropped_out: AtomicBool,
    /// Could not be given a block in the resilver that is, or was, under way.
    pub refused: AtomicBool,
    /// Bytes that the scan has written to it.
    pub scan_processed: AtomicU64,
    /// Bytes that the sequential rebuild has written to it.
    pub rebuild_processed: AtomicU64,
    pub stats: LeafStats,
    pub read_errors: AtomicU64,
    pub write_errors: AtomicU64,
    pub checksum_errors: AtomicU64,
    /// What went wrong since the pool looked.
    pub troubles: Troubles,
    upkeep: [Upkeep; 2],
    pub(super) flushes: Flushes,
    pub(super) sync_writes: Recent,
    pub(super) flush_times: Recent,
    /// What [`Leaf::can_trim`] said when the device was opened.
    knows_trim: AtomicBool,
    /// Its flushes take as long as a disk's that turns.
    pub(super) slow: AtomicBool,
    /// The flush failures that the sync of txgs has taken into account.
    pub(super) txg_mark: AtomicU64,
    /// See [`Leaf::may_lack`].
    pub(super) may_lack_until: AtomicU64,
    /// It was closed with writes that were not made stable, and no txg was written again since.
    pub(super) was_away: AtomicBool,
    /// I/O failed since the leaf was last looked at.
    pub(super) suspect: AtomicBool,
    /// Held by who looks.
    pub(super) probe: futures_util::lock::Mutex<()>,
    /// It is being opened again.
    pub(super) opening: futures_util::lock::Mutex<()>,
    /// It is being looked whether a device that was missing is back.
    pub(super) is_looked_for: AtomicBool,
    /// It has a newer state of the pool than what is in use: it is taken when somebody asks for it.
    pub(super) is_ahead: AtomicBool,
    /// The administrator declared it faulty, for good (kept in the configuration).
    pub external_fault: AtomicBool,
    /// It is back in use: the spare that stands in for it leaves when it has everything.
    pub unspare: AtomicBool,
    /// Nothing queues or runs any more.
    pub(super) idle: Event,
    /// The device did not answer and was given up ([`super::hung`]).
    pub(super) hung: AtomicBool,
    pub(super) given_up: Event,
}

thread_local! {
    /// While a device's submit runs on this thread: leaves whose completions ran inside it.
    static INSIDE: RefCell<Option<Vec<Arc<Leaf>>>> = const { RefCell::new(None) };
}

/// Of an error that has no number.
const EIO: i32 = 5;

pub(super) fn no_device() -> io::Error {
    io::Error::from_raw_os_error(6)
}

impl Leaf {
    pub(super) fn new(guid: u64, index: usize, path: String, room: Option<Room>, env: Env) -> Arc<Leaf> {
        Arc::new(Leaf {
            guid: AtomicU64::new(guid),
            index,
            env,
            path: RwLock::new(path),
            device: RwLock::new(None),
            open_error: Mutex::new(None),
            queue: Mutex::new(Queue::new()),
            wakes: AtomicBool::new(false),
            room,
            state: StateCell::new(VdevState::Closed, VdevAux::None),
            psize: AtomicU64::new(0),
            offline: AtomicBool::new(false),
            offline_until_import: AtomicBool::new(false),
            cant_read: AtomicBool::new(false),
            cant_write: AtomicBool::new(false),
            dtl: Dtl::default(),
            resilvering: AtomicBool::new(false),
            dropped_out: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            scan_processed: AtomicU64::new(0),
            rebuild_processed: AtomicU64::new(0),
            stats: LeafStats::default(),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            checksum_errors: AtomicU64::new(0),
            troubles: Troubles::default(),
            upkeep: Default::default(),
            flushes: Flushes::default(),
            sync_writes: Recent::default(),
            flush_times: Recent::default(),
            knows_trim: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            txg_mark: AtomicU64::new(0),
            may_lack_until: AtomicU64::new(0),
            was_away: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            probe: futures_util::lock::Mutex::default(),
            opening: futures_util::lock::Mutex::default(),
            is_looked_for: AtomicBool::new(false),
            is_ahead: AtomicBool::new(false),
            external_fault: AtomicBool::new(false),
            unspare: AtomicBool::new(false),
            idle: Event::new(),
            hung: AtomicBool::new(false),
            given_up: Event::new(),
        })
    }

    pub fn guid(&self) -> u64 {
        self.guid.load(Ordering::Acquire)
    }

    /// A leaf that is left of a mirror gets the mirror's.
    pub(super) fn set_guid(&self, guid: u64) {
        self.guid.store(guid, Ordering::Release);
    }

    pub fn path(&self) -> String {
        self.path.read().clone()
    }

    pub fn set_path(&self, path: String) {
        *self.path.write() = path;
    }

    pub fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.read().clone()
    }

    /// Whether this is still its device: who waited for that one must not judge another.
    pub(super) fn still_has(&self, device: Option<&Arc<dyn Device>>) -> bool {
        let place = |d: &Arc<dyn Device>| Arc::as_ptr(d).cast::<()>();
        self.device.read().as_ref().map(place) == device.map(place)
    }

    pub(super) fn set_device(&self, device: Option<Arc<dyn Device>>) {
        if let Some(d) = &device {
            self.psize.store(zilla_ondisk::label::usable_size(d.size()), Ordering::Release);
            self.queue.lock().rotational = d.info().rotational.unwrap_or(false);
            self.knows_trim.store(d.info().can_discard, Ordering::Relaxed);
            self.hung.store(false, Ordering::Release);
            self.cant_read.store(false, Ordering::Release);
            self.cant_write.store(!d.info().writable, Ordering::Release);
        }
        *self.device.write() = device;
    }

    /// Why the device could not be opened the last time that was tried.
    pub fn open_error(&self) -> Option<Error> {
        self.open_error.lock().clone()
    }

    pub(super) fn set_open_error(&self, error: Option<Error>) {
        *self.open_error.lock() = error;
    }

    pub fn state(&self) -> (VdevState, VdevAux) {
        self.state.get()
    }

    /// Whole labels' worth of the device's size; 0 when it was never opened.
    pub fn psize(&self) -> u64 {
        self.psize.load(Ordering::Acquire)
    }

    pub(super) fn set_psize(&self, psize: u64) {
        self.psize.store(psize, Ordering::Release);
    }

    /// Open, and worth sending reads to.
    pub fn readable(&self) -> bool {
        self.state.get().0 >= VdevState::Degraded && !self.cant_read.load(Ordering::Acquire)
    }

    pub fn writable(&self) -> bool {
        self.state.get().0 >= VdevState::Degraded && !self.cant_write.load(Ordering::Acquire)
    }

    /// Lacks something, and can be given it.
    pub fn is_behind(&self) -> bool {
        self.readable() && self.writable() && !self.dtl.is_empty()
    }

    /// Whether it is a disk that turns, or as slow as one. What is said of it is not enough.
    pub fn turns(&self) -> bool {
        self.slow.load(Ordering::Relaxed) && self.rotational()
    }

    /// Whether the device is said to turn, which virtual ones are too.
    pub fn rotational(&self) -> bool {
        self.queue.lock().rotational
    }

    pub fn upkeep(&self, kind: UpkeepKind) -> &Upkeep {
        match (kind, &self.upkeep) {
            (UpkeepKind::Initialize, [initialize, _]) => initialize,
            (UpkeepKind::Trim, [_, trim]) => trim,
        }
    }

    /// A resilver is under way, or is not any more.
    pub(super) fn set_resilvers(&self, yes: bool) {
        self.queue.lock().resilvers = yes;
    }

    /// Whether its device, or the last one that it had, can be trimmed.
    pub fn knows_trim(&self) -> bool {
        self.knows_trim.load(Ordering::Relaxed)
    }

    /// Whether its device can be told that bytes do not matter any more.
    pub fn can_trim(&self) -> bool {
        self.device().is_some_and(|d| d.info().can_discard)
    }

    /// Whether the leaf should hold a block of this birth.
    pub fn holds(&self, birth: u64) -> bool {
        !self.dtl.contains(birth)
    }

    /// I/Os of each class that wait in the queue, and that are at the device.
    pub fn queue_depths(&self) -> [(u64, u64); CLASSES] {
        self.queue.lock().depths()
    }

    /// The cost of reading `offset` here next: what comes before it, and whether the head must
    /// move.
    pub(super) fn read_cost(&self, offset: u64, class: Priority) -> usize {
        const NEAR: u64 = 1 << 20;
        let q = self.queue.lock();
        let seek = match (q.rotational, q.last_offset.abs_diff(offset)) {
            (_, 0) => 0,
            (false, _) => 1,
            (true, d) if d < NEAR => 2,
            (true, _) => 5,
        };
        q.before(class) + seek
    }

    /// I/Os that wait or are under way.
    pub fn load(&self) -> usize {
        self.queue.lock().load()
    }

    /// Whether writes are among them.
    pub fn is_writing(&self) -> bool {
        let q = self.queue.lock();
        [Priority::SyncWrite, Priority::AsyncWrite].iter().any(|c| q.has(*c))
    }

    /// Puts I/Os into the queue and starts what the device may have.
    pub fn submit(self: &Arc<Self>, ios: impl IntoIterator<Item = LeafIo>, tickets: Option<&Tickets>) {
        let now = self.env.clock.now();
        let mut refused: SmallVec<[LeafIo; 4]> = SmallVec::new();
        let mut batch: Vec<Io> = Vec::new();
        {
            let mut waiting: SmallVec<[Ticket; 4]> = SmallVec::new();
            let mut queue = self.queue.lock();
            for io in ios {
                let reads = matches!(io.op, QOp::Read(_));
                if !(if reads { self.readable_device() } else { self.writable_device() }) {
                    refused.push(io);
                    continue;
                }
                let class = tickets.map_or(io.class, |t| t.class(io.class));
                let LeafIo { op, offset, len, done, slot, .. } = io;
                match queue.enter(QIo { op, offset, len, class, at: now, retry: false, done, slot }) {
                    Ok(io) => batch.push(self.start(&mut queue, SmallVec::from_iter([io]), now)),
                    Err(ticket) => waiting.push(ticket),
                }
            }
            let wake = queue.wake_at(now);
            drop(queue);
            self.wake(wake, now);
            if let Some(t) = tickets
                && !waiting.is_empty()
            {
                t.wait(self, &waiting);
            }
        }
        for io in refused {
            io.done.done(io.slot, Err(no_device()));
        }
        if !batch.is_empty() {
            self.send(batch);
        }
    }

    /// A device that labels may be read from, whatever the leaf's state is (it is being found out).
    fn readable_device(&self) -> bool {
        !self.cant_read.load(Ordering::Acquire)
    }

    fn writable_device(&self) -> bool {
        !self.cant_write.load(Ordering::Acquire)
    }

    /// Starts what waits and has room.
    pub(super) fn pump(self: &Arc<Self>) {
        let now = self.env.clock.now();
        let mut batch = Vec::new();
        {
            let mut queue = self.queue.lock();
            while let Some(run) = queue.next(now) {
                batch.push(self.start(&mut queue, run, now));
            }
            let wake = queue.wake_at(now);
            drop(queue);
            self.wake(wake, now);
        }
        if !batch.is_empty() {
            self.send(batch);
        }
    }

    /// Looks again at what waits when the time has come, unless that is to happen already.
    fn wake(self: &Arc<Self>, at: Option<Duration>, now: Duration) {
        let Some(at) = at else { return };
        if self.wakes.swap(true, Ordering::AcqRel) {
            return;
        }
        let leaf = self.clone();
        self.env.spawn(async move {
            leaf.env.sleep(at.saturating_sub(now)).await;
            leaf.wakes.store(false, Ordering::Release);
            leaf.pump();
        });
    }

    /// Hands I/Os to the device.
    fn send(self: &Arc<Self>, batch: Vec<Io>) {
        let Some(device) = self.device() else {
            // Dropping a completion reports an error to its I/O.
            return;
        };
        let outermost = INSIDE.with_borrow_mut(|inside| {
            let outermost = inside.is_none();
            inside.get_or_insert_default();
            outermost
        });
        let batch = if inject::any() { self.swallow(batch) } else { batch };
        if !batch.is_empty() {
            device.submit(batch);
        }
        if !outermost {
            return;
        }
        while let Some(leaf) = INSIDE.with_borrow_mut(|inside| inside.as_mut().and_then(Vec::pop)) {
            leaf.pump();
        }
        INSIDE.with_borrow_mut(|inside| *inside = None);
    }

    /// Makes the device's operation of a run.
    fn start(self: &Arc<Self>, queue: &mut Queue, mut run: Run, now: Duration) -> Io {
        let class = run.first().map_or(Priority::SyncRead, |io| io.class);
        let (start, end) = match (run.first(), run.last()) {
            (Some(a), Some(b)) => (a.offset, b.offset + b.len),
            _ => (0, 0),
        };
        let merged = run.len() > 1;
        for io in &run {
            self.stats.queued(class as usize, now.saturating_sub(io.at), io.len, merged);
        }
        let own = match &mut run[..] {
            [QIo { op: QOp::Read(buf), .. }] => buf.take(),
            _ => None,
        };
        let op = match run.first().map(|io| &io.op) {
            Some(QOp::Read(_)) | None => {
                let buf = own.unwrap_or_else(|| IoBuf::scratch((end - start) as usize));
                IoOp::Read { offset: start, buf }
            }
            Some(QOp::Discard) => IoOp::Discard { offset: start, len: end - start },
            Some(QOp::WriteZeroes) => IoOp::WriteZeroes { offset: start, len: end - start },
            Some(QOp::Write(_)) => {
                // The pieces stay with the run as well, in case they must be sent again one by one.
                let mut data = IoVec::new();
                for io in &run {
                    if let QOp::Write(pieces) = &io.op {
                        data.extend(pieces.iter().cloned());
                    }
                }
                IoOp::Write { offset: start, data }
            }
        };
        let held = if inject::any() { self.held_back(&run, now) } else { None };
        let leaf = self.clone();
        // A lone write that was already tried will not be sent again: let its buffers go as soon as
        // they are written.
        if let [QIo { retry: true, op, .. }] = &mut run[..]
            && let QOp::Write(pieces) = op
        {
            pieces.clear();
        }
        let (offset, len, write) = (start, end - start, class_writes(&run));
        let sent = Arc::new(Sent { at: now, offset, len, write, run: Mutex::new(Some(run)) });
        queue.sent.push(sent.clone());
        let done = move |result| match held {
            None => leaf.completed(&sent, class, result),
            Some(held) => leaf.clone().hold(held, move || leaf.completed(&sent, class, result)),
        };
        Io { op, done: Completion::call(done) }
    }

    fn completed(self: Arc<Self>, sent: &Arc<Sent>, class: Priority, result: zilla_env::IoResult) {
        let now = self.env.clock.now();
        let took = now.saturating_sub(sent.at);
        // Nothing, if it was given up.
        let run = sent.run.lock().take();
        self.queue.lock().answered(class, sent, now);
        if sent.write {
            self.flushes.wrote();
            if class == Priority::SyncWrite {
                self.sync_writes.add(took);
            }
        }
        self.note_time(sent.offset, sent.len, took);
        if let Some(run) = run {
            self.settle(run, sent.offset, took, now, result);
        }
        let me = INSIDE.with_borrow_mut(|inside| match inside {
            Some(list) => {
                if !list.iter().any(|l| Arc::ptr_eq(l, &self)) {
                    list.push(self.clone());
                }
                None
            }
            None => Some(()),
        });
        if me.is_some() {
            self.pump();
        }
        if self.queue.lock().load() == 0 {
            self.idle.notify(usize::MAX);
        }
    }

    /// Counts what took far too long.
    fn note_time(&self, offset: u64, len: u64, took: Duration) {
        let over = |ms: u64| ms != 0 && took >= Duration::from_millis(ms);
        if over(SLOW_IO_MS.get()) {
            self.stats.slow.fetch_add(1, Ordering::Relaxed);
            self.note(TroubleKind::Slow(took), offset, len);
        }
        if over(DEADMAN_ZIOTIME_MS.get()) && DEADMAN_ENABLED.get() != 0 {
            self.note(TroubleKind::Hung(took), offset, len);
        }
    }

    /// Tells who waits for them how I/Os went.
    fn settle(
        self: &Arc<Self>,
        mut run: Run,
        start: u64,
        took: Duration,
        now: Duration,
        result: zilla_env::IoResult,
    ) {
        match result {
            Ok(mut buf) => {
                if inject::any() {
                    self.strike(&mut run, start, buf.as_mut(), now);
                }
                let data = buf.map(IoBuf::into_bytes);
                for mut io in run {
                    let write = !matches!(io.op, QOp::Read(_));
                    self.stats.took(write, took, now.saturating_sub(io.at));
                    let (kind, data) = match &data {
                        Some(whole) if !write => (IoKind::Read, io.part(whole, start)),
                        _ if matches!(io.op, QOp::Discard) => (IoKind::Trim, Bytes::new()),
                        _ => (IoKind::Write, Bytes::new()),
                    };
                    self.stats.count(kind, 1, io.len);
                    // The write's buffers go before its waiter is told, who may reuse them.
                    let (done, slot) = (io.done, io.slot);
                    drop(io.op);
                    done.done(slot, Ok(data));
                }
            }
            Err(e) => self.failed(run, now, &e),
        }
    }

    /// First failure: each member once more by itself. Second: it is an error.
    pub(super) fn failed(self: &Arc<Self>, run: Run, now: Duration, e: &io::Error) {
        for mut io in run {
            if zilla_env::is_refused(e) {
                // The device is not to blame.
                io.done.done(io.slot, Err(again(e)));
                continue;
            }
            let gone = e.raw_os_error() == Some(6) || self.is_hung() || self.device.read().is_none();
            if !io.retry && !gone {
                io.retry = true;
                let mut queue = self.queue.lock();
                let entered = queue.enter(io);
                let again = entered.ok().map(|io| self.start(&mut queue, SmallVec::from_iter([io]), now));
                drop(queue);
                if let Some(again) = again {
                    self.send(vec![again]);
                }
                continue;
            }
            if matches!(io.op, QOp::Discard) && !gone {
                // Nothing is lost by it.
                io.done.done(io.slot, Err(again(e)));
                continue;
            }
            let errors = if matches!(io.op, QOp::Read(_)) { &self.read_errors } else { &self.write_errors };
            errors.fetch_add(1, Ordering::Relaxed);
            self.suspect.store(true, Ordering::Relaxed);
            let write = !matches!(io.op, QOp::Read(_));
            let errno = e.raw_os_error().unwrap_or(EIO);
            self.note(TroubleKind::Io { write, errno }, io.offset, io.len);
            tracing::warn!(path = %self.path(), offset = io.offset, len = io.len, error = %e, "I/O failed");
            io.done.done(io.slot, Err(again(e)));
        }
    }

    pub(super) fn note(&self, kind: TroubleKind, offset: u64, len: u64) {
        let errors = [&self.read_errors, &self.write_errors, &self.checksum_errors];
        let errors = errors.map(|n| n.load(Ordering::Relaxed));
        self.troubles.note(self.env.clock.now(), kind, (offset, len), errors);
    }

    /// It gave something else than what was written.
    pub(super) fn lied(&self, offset: u64, len: u64) {
        self.checksum_errors.fetch_add(1, Ordering::Relaxed);
        self.note(TroubleKind::Checksum, offset, len);
    }

    /// A read that did not even come to it is to count as one that failed.
    pub(crate) fn count_failed_read(&self, offset: u64, len: u64) {
        self.read_errors.fetch_add(1, Ordering::Relaxed);
        self.note(TroubleKind::Io { write: false, errno: EIO }, offset, len);
    }

    /// One read, past the block layer: labels, probes.
    pub async fn read_at(self: &Arc<Self>, offset: u64, len: u64, class: Priority) -> io::Result<Bytes> {
        let gather = Gather::new(1);
        self.submit(
            [LeafIo { op: QOp::Read(None), offset, len, class, done: gather.clone(), slot: 0 }],
            None,
        );
        one(gather.wait().await)
    }

    /// One write, past the block layer.
    pub async fn write_at(self: &Arc<Self>, offset: u64, data: Bytes, class: Priority) -> io::Result<()> {
        let gather = Gather::new(1);
        let len = data.len() as u64;
        let op = QOp::Write(SmallVec::from_iter([data]));
        self.submit([LeafIo { op, offset, len, class, done: gather.clone(), slot: 0 }], None);
        one(gather.wait().await).map(drop)
    }

    /// Tells the device that some bytes do not matter any more.
    pub async fn trim_at(self: &Arc<Self>, offset: u64, len: u64) -> io::Result<()> {
        let gather = Gather::new(1);
        let io =
            LeafIo { op: QOp::Discard, offset, len, class: Priority::Trim, done: gather.clone(), slot: 0 };
        self.submit([io], None);
        one(gather.wait().await).map(drop)
    }

    /// Waits for what is under way, then closes the device. One that was given up is closed after a
    /// while in any case.
    pub async fn close(&self) {
        loop {
            let answered = self.answers().await;
            // The device is taken under the queue's lock: what enters after this finds none.
            // Else a late write or discard could be under way when another host has imported
            // the pool.
            let queue = self.queue.lock();
            if queue.load() > 0 && answered {
                continue;
            }
            let (left, device) = (queue.load(), self.device.write().take());
            drop(queue);
            if device.is_some() {
                if left > 0 {
                    tracing::error!(
                        path = %self.path(), left,
                        "closed without an answer: what was sent may still land; detach the device or stop its host \
                         before the pool is opened elsewhere"
                    );
                }
                self.state.set(VdevState::Closed, VdevAux::None);
            }
            return;
        }
    }

    /// Whether I/O failed since somebody last looked at it.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// The same, for who looks at it now.
    pub(super) fn take_suspect(&self) -> bool {
        self.suspect.swap(false, Ordering::Relaxed)
    }
}

/// The same error for another.
fn again(e: &io::Error) -> io::Error {
    e.raw_os_error().map_or_else(|| io::Error::new(e.kind(), e.to_string()), io::Error::from_raw_os_error)
}

/// Whether a run changes the device.
fn class_writes(run: &Run) -> bool {
    run.first().is_some_and(|io| !matches!(io.op, QOp::Read(_)))
}

fn one(mut results: super::gather::Results) -> io::Result<Bytes> {
    results.pop().flatten().unwrap_or_else(|| Err(no_device()))
}
