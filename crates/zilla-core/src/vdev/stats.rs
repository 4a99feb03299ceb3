//! What a leaf has done and how long it took: the numbers behind `zpool iostat`.
//!
//! Counters are relaxed atomics: they are read for people, who do not mind a number that is one I/O
//! old.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::queue::READS_AT_ONCE;

/// Buckets of a latency histogram: powers of two of nanoseconds, as OpenZFS's.
pub const LATENCY_BUCKETS: usize = 37;
/// Buckets of a size histogram: powers of two of bytes.
pub const SIZE_BUCKETS: usize = 25;
/// Classes of the queue ([`crate::vdev::Priority`]).
pub const CLASSES: usize = 9;

/// OpenZFS's I/O types, in the order of `vs_ops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum IoKind {
    Read = 1,
    Write = 2,
    Free = 3,
    Claim = 4,
    Flush = 5,
    Trim = 6,
}
pub const IO_KINDS: usize = 7;

pub struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Histogram([const { AtomicU64::new(0) }; N])
    }
}

impl<const N: usize> Histogram<N> {
    fn add(&self, value: u64) {
        let bucket = (value.max(1).ilog2() as usize).min(N - 1);
        if let Some(b) = self.0.get(bucket) {
            b.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn snapshot(&self) -> [u64; N] {
        std::array::from_fn(|i| self.0.get(i).map_or(0, |b| b.load(Ordering::Relaxed)))
    }
}

#[derive(Default)]
pub struct LeafStats {
    ops: [AtomicU64; IO_KINDS],
    bytes: [AtomicU64; IO_KINDS],
    /// Bytes that were written again because they were found damaged.
    pub self_healed: AtomicU64,
    /// I/Os that took far too long.
    pub slow: AtomicU64,
    /// From entering the queue to completion, reads and writes.
    pub total_latency: [Histogram<LATENCY_BUCKETS>; 2],
    /// At the device alone.
    pub disk_latency: [Histogram<LATENCY_BUCKETS>; 2],
    /// Nanoseconds of a read at the device, of the last ones.
    mean_read: AtomicU64,
    /// Waiting in the queue, by class.
    pub queue_latency: [Histogram<LATENCY_BUCKETS>; CLASSES],
    /// Sizes of I/Os that went alone and of those that were merged, by class.
    pub alone_size: [Histogram<SIZE_BUCKETS>; CLASSES],
    pub merged_size: [Histogram<SIZE_BUCKETS>; CLASSES],
}

/// Totals since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatSnapshot {
    pub ops: [u64; IO_KINDS],
    pub bytes: [u64; IO_KINDS],
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    pub self_healed: u64,
    pub slow: u64,
}

impl StatSnapshot {
    pub fn add(&mut self, other: &StatSnapshot) {
        for (a, b) in self.ops.iter_mut().zip(other.ops) {
            *a += b;
        }
        for (a, b) in self.bytes.iter_mut().zip(other.bytes) {
            *a += b;
        }
        self.self_healed += other.self_healed;
        self.slow += other.slow;
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

impl LeafStats {
    pub fn count(&self, kind: IoKind, ops: u64, bytes: u64) {
        if let (Some(o), Some(b)) = (self.ops.get(kind as usize), self.bytes.get(kind as usize)) {
            o.fetch_add(ops, Ordering::Relaxed);
            b.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn queued(&self, class: usize, waited: Duration, size: u64, merged: bool) {
        if let Some(h) = self.queue_latency.get(class) {
            h.add(nanos(waited));
        }
        let sizes = if merged { &self.merged_size } else { &self.alone_size };
        if let Some(h) = sizes.get(class) {
            h.add(size);
        }
    }

    pub(super) fn took(&self, write: bool, disk: Duration, total: Duration) {
        if !write {
            let (old, new) = (self.mean_read.load(Ordering::Relaxed), nanos(disk));
            let mean = if old == 0 { new } else { old - old / 8 + new / 8 };
            self.mean_read.store(mean, Ordering::Relaxed);
        }
        let i = usize::from(write);
        if let (Some(d), Some(t)) = (self.disk_latency.get(i), self.total_latency.get(i)) {
            d.add(nanos(disk));
            t.add(nanos(total));
        }
    }

    /// How long a read would take that came after `load` others; nothing where nothing was read.
    pub fn expected(&self, load: usize) -> Duration {
        let rounds = 1 + load as u64 / READS_AT_ONCE;
        Duration::from_nanos(self.mean_read.load(Ordering::Relaxed).saturating_mul(rounds))
    }

    pub fn snapshot(&self) -> StatSnapshot {
        let load = |a: &AtomicU64| a.load(Ordering::Relaxed);
        StatSnapshot {
            ops: self.ops.each_ref().map(load),
            bytes: self.bytes.each_ref().map(load),
            self_healed: load(&self.self_healed),
            slow: load(&self.slow),
            ..StatSnapshot::default()
        }
    }
}
