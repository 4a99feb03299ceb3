//! Recording what a pool is asked for, for who wants to know what other caches and devices would
//! bring.
//!
//! **Floor 1.** It is told, and asks nobody.
//!
//! Reads tell it which block was wanted and where it was found, intent logs what a commit and a log
//! block took, the sync of a txg what it wrote. While nobody records, each of them looks at one
//! flag and goes on. While somebody does, a record goes into one of several *lanes* of fixed size;
//! who records takes them out several times a second ([`Recording::take`]).
//!
//! What is kept true: the I/O path never waits. A lane whose lock somebody else has is passed by
//! for the next, and where there is no room, or every lane tried is taken, the record is counted as
//! lost. Memory is that of the lanes, while one records; one recording at a time.
//!
//! Reads of what is decompressed in a dbuf are not seen: they are no business of the ARC and would
//! not be of a cache device. A crash loses what nobody has taken out. The file's format is
//! `zilla_ondisk::trace`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use zilla_env::Clock;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::trace::BlockId;
pub use zilla_ondisk::trace::{Event, Found, Record};

/// So many threads can leave records at once without meeting.
const LANES: usize = 16;
/// Records in a lane: at 72 bytes 9 MB in all, and a second of a hundred thousand reads.
const LANE: usize = 8192;
/// Lanes that are tried before a record is lost.
const TRIES: usize = 3;

pub struct Tracer {
    on: AtomicBool,
    clock: Arc<dyn Clock>,
    /// Whether somebody has the recording; it is given back after `on` was taken down.
    taken: AtomicBool,
    /// By the clock, in nanoseconds.
    began: AtomicU64,
    lanes: [Mutex<Vec<Record>>; LANES],
    turn: AtomicUsize,
    lost: AtomicU64,
    /// Bytes of blocks that were written since the last txg was synced.
    written: AtomicU64,
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

impl Tracer {
    pub fn new(clock: &Arc<dyn Clock>) -> Arc<Tracer> {
        Arc::new(Tracer {
            on: AtomicBool::new(false),
            clock: clock.clone(),
            taken: AtomicBool::new(false),
            began: AtomicU64::new(0),
            lanes: std::array::from_fn(|_| Mutex::new(Vec::new())),
            turn: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            written: AtomicU64::new(0),
        })
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The time, if somebody will want to know how long what begins now has taken.
    pub fn begin(&self) -> Option<Duration> {
        self.is_on().then(|| self.clock.now())
    }

    /// A block was asked for. What was found at once took no time.
    #[cold]
    pub fn block(&self, bp: &BlkPtr, objset: u64, prefetch: bool, found: Found, begun: Option<Duration>) {
        let Some(dva) = bp.dvas().next() else { return };
        let now = self.clock.now();
        let event = Event::Read {
            block: BlockId { vdev: dva.vdev, offset: dva.offset, birth: bp.phys_birth() },
            objset,
            lsize: u32::try_from(bp.lsize()).unwrap_or(u32::MAX),
            psize: u32::try_from(bp.psize()).unwrap_or(u32::MAX),
            metadata: bp.is_metadata(),
            prefetch,
            found,
            micros: begun.map_or(0, |begun| micros(now.saturating_sub(begun))),
        };
        self.record(now, event);
    }

    pub fn commit(&self, objset: u64, took: Duration) {
        if self.is_on() {
            self.record(self.clock.now(), Event::Commit { objset, micros: micros(took) });
        }
    }

    pub fn log_block(&self, objset: u64, bytes: u64, took: Duration) {
        if self.is_on() {
            self.record(self.clock.now(), Event::LogBlock { objset, bytes, micros: micros(took) });
        }
    }

    /// So many bytes of blocks are on their way to the devices.
    pub fn wrote(&self, bytes: impl FnOnce() -> u64) {
        if self.is_on() {
            self.written.fetch_add(bytes(), Ordering::Relaxed);
        }
    }

    /// A txg is synced.
    pub fn txg(&self, txg: u64, begun: Option<Duration>) {
        if let Some(begun) = begun.filter(|_| self.is_on()) {
            let bytes = self.written.swap(0, Ordering::Relaxed);
            let now = self.clock.now();
            self.record(now, Event::Txg { txg, bytes, micros: micros(now.saturating_sub(begun)) });
        }
    }

    fn record(&self, now: Duration, event: Event) {
        let began = Duration::from_nanos(self.began.load(Ordering::Relaxed));
        let record = Record { at: micros(now.saturating_sub(began)), event };
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for lane in (first..first + TRIES).filter_map(|i| self.lanes.get(i % LANES)) {
            if let Some(mut lane) = lane.try_lock()
                && lane.len() < lane.capacity()
            {
                lane.push(record);
                return;
            }
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins to record. None: somebody does already.
    pub fn start(self: &Arc<Self>) -> Option<Recording> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        for lane in &self.lanes {
            *lane.lock() = Vec::with_capacity(LANE);
        }
        self.lost.store(0, Ordering::Relaxed);
        self.written.store(0, Ordering::Relaxed);
        let now = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX);
        self.began.store(now, Ordering::Relaxed);
        self.on.store(true, Ordering::Release);
        Some(Recording { tracer: self.clone(), spare: Vec::with_capacity(LANE) })
    }
}

/// Somebody records, as long as he has this.
pub struct Recording {
    tracer: Arc<Tracer>,
    /// What takes the next lane's place while that is emptied.
    spare: Vec<Record>,
}

impl Recording {
    /// Microseconds since it began.
    pub fn elapsed(&self) -> u64 {
        let began = Duration::from_nanos(self.tracer.began.load(Ordering::Relaxed));
        micros(self.tracer.clock.now().saturating_sub(began))
    }

    /// Takes out what there is, in the order of time, and says how many records were lost since the
    /// last time.
    pub fn take(&mut self) -> (Vec<Record>, u64) {
        let mut out = Vec::new();
        for lane in &self.tracer.lanes {
            std::mem::swap(&mut *lane.lock(), &mut self.spare);
            out.append(&mut self.spare);
        }
        out.sort_by_key(|r| r.at);
        (out, self.tracer.lost.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.tracer.on.store(false, Ordering::Release);
        for lane in &self.tracer.lanes {
            drop(std::mem::take(&mut *lane.lock()));
        }
        self.tracer.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Duration {
            Duration::from_secs(5)
        }

        fn wall(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> futures_util::future::BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    fn tracer() -> Arc<Tracer> {
        let clock: Arc<dyn Clock> = Arc::new(Still);
        Tracer::new(&clock)
    }

    #[test]
    fn nothing_is_kept_while_nobody_records() {
        let t = tracer();
        t.commit(1, Duration::ZERO);
        assert!(t.begin().is_none() && !t.is_on());
        let mut r = t.start().unwrap();
        assert!(t.start().is_none(), "one at a time");
        assert_eq!(r.take(), (Vec::new(), 0));
        t.commit(1, Duration::from_millis(2));
        assert_eq!(r.take().0, [Record { at: 0, event: Event::Commit { objset: 1, micros: 2000 } }]);
        drop(r);
        t.commit(1, Duration::ZERO);
        assert!(t.lanes.iter().all(|l| l.lock().capacity() == 0), "its memory is given back");
        assert_eq!(t.start().unwrap().take(), (Vec::new(), 0));
    }

    #[test]
    fn what_has_no_room_is_counted_and_nobody_waits() {
        let t = tracer();
        let mut r = t.start().unwrap();
        let many = (LANES * LANE + 1000) as u64;
        (0..many).for_each(|_| t.commit(1, Duration::ZERO));
        let (got, lost) = r.take();
        assert_eq!((got.len() as u64 + lost, got.len()), (many, LANES * LANE));
        // A lane that somebody holds is passed by.
        let held: Vec<_> = t.lanes.iter().take(2).map(|l| l.lock()).collect();
        (0..100).for_each(|_| t.commit(1, Duration::ZERO));
        drop(held);
        assert_eq!((r.take().0.len(), t.lost.load(Ordering::Relaxed)), (100, 0));
    }
}
