//! A simulated disk: a sparse image in memory with a volatile write cache that forgets.
//!
//! Every operation takes a time drawn from the seed, so operations complete in any order. A write
//! is seen by reads when it completes. It is safe from a power cut when a flush completes that was
//! submitted after the write completed; until then it is in the log of unstable writes, of which a
//! crash keeps any part.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use zilla_env::{Device, DeviceInfo, Io, IoOp, IoResult, IoVec, SparseImage, check_bounds};

use crate::crash::{CrashPolicy, Payload, SECTOR, Unstable, survive};
use crate::executor::{Executor, Stuck};
use crate::rng::{SimRng, mix};
use crate::world::Counters;

/// How long a disk takes.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    pub read: Range<Duration>,
    pub write: Range<Duration>,
    pub flush: Range<Duration>,
}

/// What a disk does wrong: one operation in so many of each kind; 0 for never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Reads that fail with EIO.
    pub read: u64,
    /// Writes that fail with EIO and are not done.
    pub write: u64,
    /// Reads that return a wrong byte.
    pub flip: u64,
}

impl Default for DiskConfig {
    fn default() -> DiskConfig {
        let us = Duration::from_micros;
        DiskConfig { read: us(50)..us(500), write: us(20)..us(500), flush: us(200)..us(2000) }
    }
}

/// The power supply of all disks of a world: counts their writes and flushes, and fails at a chosen
/// one.
pub(crate) struct Power {
    ops: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    /// Number of the write or flush at which the power goes; 0 for never.
    cut_at: AtomicU64,
    /// From which write or flush on the world pauses; 0 for never.
    pause_at: AtomicU64,
    /// Whether the world halts at the cut, or goes on with disks that fail.
    halts: AtomicBool,
    off: AtomicBool,
}

impl Power {
    pub(crate) fn new() -> Power {
        Power {
            ops: 0.into(),
            reads: 0.into(),
            writes: 0.into(),
            flushes: 0.into(),
            cut_at: 0.into(),
            pause_at: 0.into(),
            halts: true.into(),
            off: false.into(),
        }
    }

    pub(crate) fn cut_at(&self, op: u64, halts: bool) {
        self.halts.store(halts, Ordering::Relaxed);
        self.cut_at.store(op, Ordering::Relaxed);
    }

    pub(crate) fn pause_at(&self, op: u64) {
        self.pause_at.store(op, Ordering::Relaxed);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Counts a write or flush; the one at which the power goes still reaches the disk, which may
    /// get to do part of it. Returns its number.
    pub(crate) fn count(&self, flush: bool, executor: &Executor) -> u64 {
        let op = self.ops.fetch_add(1, Ordering::Relaxed) + 1;
        if flush { &self.flushes } else { &self.writes }.fetch_add(1, Ordering::Relaxed);
        if op == self.cut_at.load(Ordering::Relaxed) {
            self.off.store(true, Ordering::Relaxed);
            executor.record(op);
            if self.halts.load(Ordering::Relaxed) {
                executor.halt(Stuck::PowerCut { op });
            }
        }
        let pause = self.pause_at.load(Ordering::Relaxed);
        if pause != 0 && op >= pause {
            executor.halt(Stuck::Paused { op });
        }
        op
    }

    pub(crate) fn counters(&self, polls: u64) -> Counters {
        Counters {
            polls,
            ops: self.ops.load(Ordering::Relaxed),
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            flushes: self.flushes.load(Ordering::Relaxed),
        }
    }
}

pub struct SimDisk {
    me: Weak<SimDisk>,
    path: PathBuf,
    number: u64,
    config: DiskConfig,
    executor: Weak<Executor>,
    power: Arc<Power>,
    size: AtomicU64,
    offline: AtomicBool,
    state: Mutex<State>,
}

struct State {
    rng: SimRng,
    faults: DiskFaults,
    /// What a read sees: every completed write.
    view: SparseImage,
    /// What flushes have made safe.
    stable: SparseImage,
    /// Completed writes that no completed flush covers, by serial number in order of completion.
    log: Vec<(u64, Unstable)>,
    /// Submitted and not completed.
    in_flight: Vec<(u64, Unstable)>,
    serial: u64,
}

impl SimDisk {
    pub(crate) fn new(
        path: PathBuf,
        number: u64,
        (size, image): (u64, SparseImage),
        (config, rng): (DiskConfig, SimRng),
        executor: Weak<Executor>,
        power: Arc<Power>,
    ) -> Arc<SimDisk> {
        let stable = image.clone();
        let state = State {
            rng,
            faults: DiskFaults::default(),
            view: image,
            stable,
            log: Vec::new(),
            in_flight: Vec::new(),
            serial: 0,
        };
        Arc::new_cyclic(|me| SimDisk {
            me: me.clone(),
            path,
            number,
            config,
            executor,
            power,
            size: size.into(),
            offline: false.into(),
            state: Mutex::new(state),
        })
    }

    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Pulls the disk's plug (or puts it back): while offline every I/O fails with ENXIO.
    pub fn set_offline(&self, offline: bool) {
        self.offline.store(offline, Ordering::Relaxed);
    }

    /// It is without power for a moment: completed writes that no flush covers are gone.
    pub fn lose_cache(&self) {
        let mut state = self.state.lock();
        state.view = state.stable.clone();
        state.log.clear();
    }

    pub fn set_faults(&self, faults: DiskFaults) {
        self.state.lock().faults = faults;
    }

    /// Grows the disk.
    pub fn resize(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// Changes bytes under the engine's hands, as bit rot does: at once and for good.
    pub fn damage(&self, offset: u64, data: &[u8]) {
        let mut state = self.state.lock();
        state.view.write(offset, data);
        state.stable.write(offset, data);
    }

    /// What a reader would see now.
    pub fn snapshot(&self) -> SparseImage {
        self.state.lock().view.clone()
    }

    /// How many completed writes no flush covers yet.
    pub fn unflushed(&self) -> usize {
        self.state.lock().log.len()
    }

    /// What is on the disk if the power goes now, or went at the `op`-th write or flush of those
    /// submitted together just now.
    pub fn after_crash(&self, policy: CrashPolicy, seed: u64, op: u64) -> SparseImage {
        let state = self.state.lock();
        let mut image = state.stable.clone();
        let in_flight = state.in_flight.iter().filter(|(_, w)| w.op <= op);
        let writes: Vec<_> = state.log.iter().chain(in_flight).map(|(_, w)| w.clone()).collect();
        survive(&mut image, &writes, policy, &mut SimRng::new(mix(seed ^ self.number), "crash"));
        image
    }

    fn start(&self, io: Io, executor: &Executor) {
        let Io { op, done } = io;
        let (offset, len) = op.range();
        executor.record(mix(self.number << 8 | op.name().len() as u64) ^ mix(offset) ^ len.rotate_left(40));
        if self.power.is_off() {
            return done.complete(Err(io::Error::from_raw_os_error(EIO)));
        }
        if self.offline.load(Ordering::Relaxed) {
            return done.complete(Err(io::Error::from_raw_os_error(ENXIO)));
        }
        if let Err(e) = check_bounds(&op, self.size()) {
            return done.complete(Err(e));
        }
        let number = match &op {
            IoOp::Read { .. } => {
                self.power.reads.fetch_add(1, Ordering::Relaxed);
                0
            }
            op => self.power.count(matches!(op, IoOp::Flush), executor),
        };
        let mut state = self.state.lock();
        let faults = state.faults;
        let mut strikes = |n: u64| n > 0 && state.rng.one_in(n);
        let fails = match &op {
            IoOp::Read { .. } => strikes(faults.read),
            IoOp::Flush => false,
            _ => strikes(faults.write),
        };
        let flips = matches!(op, IoOp::Read { .. }) && strikes(faults.flip);
        if fails {
            drop(state);
            let delay = self.config.write.end;
            return executor.at(delay, move || done.complete(Err(io::Error::from_raw_os_error(EIO))));
        }
        state.serial += 1;
        let serial = state.serial;
        let range = match &op {
            IoOp::Read { .. } => &self.config.read,
            IoOp::Flush => &self.config.flush,
            _ => &self.config.write,
        };
        let spread = range.end.saturating_sub(range.start).as_nanos() as u64;
        let delay = range.start + Duration::from_nanos(state.rng.below(spread));
        let data = match op {
            IoOp::Read { offset, mut buf } => {
                let me = self.me.clone();
                let wrong = flips.then(|| state.rng.u64());
                return executor.at(delay, move || {
                    let Some(disk) = me.upgrade() else { return };
                    disk.state.lock().view.read(offset, &mut buf);
                    if let Some(at) = wrong.and_then(|r| buf.get_mut((r % len.max(1)) as usize)) {
                        *at ^= 0x41;
                    }
                    done.complete(disk.outcome().map(|()| Some(buf)));
                });
            }
            IoOp::Flush => {
                // Covers what has completed by now; later completions get larger places in the log.
                let covered: Vec<u64> = state.log.iter().map(|(serial, _)| *serial).collect();
                let me = self.me.clone();
                return executor.at(delay, move || {
                    let Some(disk) = me.upgrade() else { return };
                    done.complete(disk.finish_flush(&covered));
                });
            }
            IoOp::Write { data, .. } => Payload::Bytes(joined(data)),
            IoOp::Discard { len, .. } | IoOp::WriteZeroes { len, .. } => Payload::Zeroes(len),
        };
        if let Payload::Bytes(data) = &data {
            executor.record(hash(data));
        }
        state.in_flight.push((serial, Unstable { op: number, offset, data }));
        drop(state);
        let me = self.me.clone();
        executor.at(delay, move || {
            let Some(disk) = me.upgrade() else { return };
            done.complete(disk.finish_write(serial));
        });
    }

    /// Success, unless the power or the plug went meanwhile.
    fn outcome(&self) -> io::Result<()> {
        match (self.power.is_off(), self.offline.load(Ordering::Relaxed)) {
            (true, _) => Err(io::Error::from_raw_os_error(EIO)),
            (_, true) => Err(io::Error::from_raw_os_error(ENXIO)),
            _ => Ok(()),
        }
    }

    fn finish_write(&self, serial: u64) -> IoResult {
        // Without power it stays in flight: the crash decides how much of it arrived.
        self.outcome()?;
        let mut state = self.state.lock();
        if let Some(at) = state.in_flight.iter().position(|(s, _)| *s == serial) {
            let (_, write) = state.in_flight.remove(at);
            write.apply(&mut state.view);
            state.log.push((serial, write));
        }
        Ok(None)
    }

    fn finish_flush(&self, covered: &[u64]) -> IoResult {
        self.outcome()?;
        let mut state = self.state.lock();
        // In order of completion, which is the log's. A later write over the same range that no
        // flush covers comes after these in the log, and so wins again if it survives.
        let log = std::mem::take(&mut state.log);
        for (serial, write) in log {
            if covered.contains(&serial) {
                write.apply(&mut state.stable);
            } else {
                state.log.push((serial, write));
            }
        }
        Ok(None)
    }
}

impl Device for SimDisk {
    fn submit(&self, batch: Vec<Io>) {
        // Without a world (it has ended) the completions are dropped, which reports an error.
        let Some(executor) = self.executor.upgrade() else { return };
        batch.into_iter().for_each(|io| self.start(io, &executor));
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            path: self.path.clone(),
            logical_block: SECTOR as u32,
            physical_block: SECTOR as u32,
            rotational: Some(false),
            writable: true,
            direct: true,
            can_discard: true,
            can_write_zeroes: true,
            is_block_dev: false,
            fuse: None,
            backend: "simulated",
        }
    }

    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }
}

pub(crate) const EIO: i32 = 5;
const ENXIO: i32 = 6;

fn joined(data: IoVec) -> Bytes {
    if data.len() == 1 {
        // A copy all the same: the log must not keep a caller's large buffer alive for a small
        // slice of it.
        return Bytes::copy_from_slice(&data[0]);
    }
    let mut whole = BytesMut::with_capacity(data.iter().map(Bytes::len).sum());
    data.iter().for_each(|d| whole.extend_from_slice(d));
    whole.freeze()
}

/// A fast hash of contents for the trace; not against adversaries.
fn hash(data: &[u8]) -> u64 {
    let mut chunks = data.chunks_exact(8);
    let mut h = data.len() as u64;
    for chunk in &mut chunks {
        let word = u64::from_le_bytes([
            chunk[0], chunk[1], chunk[2], chunk[3], chunk[4], chunk[5], chunk[6], chunk[7],
        ]);
        h = (h.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    chunks
        .remainder()
        .iter()
        .fold(h, |h, &b| (h.rotate_left(5) ^ b as u64).wrapping_mul(0x517c_c1b7_2722_0a95))
}
