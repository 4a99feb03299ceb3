//! What intent logs did, counted: of one dataset, and of a pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Latencies are counted by powers of two, from one nanosecond on.
pub const LATENCY_BUCKETS: usize = 37;

#[derive(Debug)]
pub struct Latencies([AtomicU64; LATENCY_BUCKETS]);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Latencies {
    fn count(&self, d: Duration) {
        let ns = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).max(1);
        let bucket = (63 - ns.leading_zeros() as usize).min(LATENCY_BUCKETS - 1);
        self.0[bucket].fetch_add(1, Ordering::Relaxed);
    }
    fn get(&self) -> Vec<u64> {
        self.0.iter().map(|b| b.load(Ordering::Relaxed)).collect()
    }
}

macro_rules! counters {
    ($( $(#[$m:meta])* $name:ident ),* $(,)?) => {
        /// Counters of a log.
        #[derive(Debug, Default)]
        pub struct LogStats {
            $( $(#[$m])* pub $name: AtomicU64, )*
            /// From a commit's beginning to its end; of a log block its write and its flush.
            pub commit_latency: Latencies,
            pub write_latency: Latencies,
            pub flush_latency: Latencies,
        }

        /// The counters at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct LogCounts {
            $( $(#[$m])* pub $name: u64, )*
            pub commit_latency: Vec<u64>,
            pub write_latency: Vec<u64>,
            pub flush_latency: Vec<u64>,
        }

        impl LogStats {
            pub fn get(&self) -> LogCounts {
                LogCounts {
                    $( $name: self.$name.load(Ordering::Relaxed), )*
                    commit_latency: self.commit_latency.get(),
                    write_latency: self.write_latency.get(),
                    flush_latency: self.flush_latency.get(),
                }
            }
        }

        impl LogCounts {
            pub fn add(&mut self, other: &LogCounts) {
                $( self.$name += other.$name; )*
                for (sum, more) in [
                    (&mut self.commit_latency, &other.commit_latency),
                    (&mut self.write_latency, &other.write_latency),
                    (&mut self.flush_latency, &other.flush_latency),
                ] {
                    sum.resize(more.len().max(sum.len()), 0);
                    sum.iter_mut().zip(more).for_each(|(s, m)| *s += m);
                }
            }

            /// Names and values, as they are printed.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$( (stringify!($name), self.$name) ),*]
            }
        }
    };
}

counters! {
    /// Times someone asked for a commit.
    commits,
    /// Commits that found nothing to wait for.
    commits_idle,
    /// Commits that had to wait for a txg instead.
    commits_txg,
    /// Commits answered with an error.
    commits_failed,
    /// Batches of commits that went out together.
    trains,
    /// Times that one had to wait because log devices were nearly full.
    trains_delayed,
    /// Log blocks that could not be allocated or written.
    block_errors,
    records,
    /// Writes whose data stand in the log.
    copied,
    copied_bytes,
    /// Writes whose data were written in place.
    indirect,
    indirect_bytes,
    /// Log blocks in the pool itself: how many, bytes of records, bytes written, bytes allocated.
    normal_blocks,
    normal_bytes,
    normal_written,
    normal_allocated,
    /// The same for log devices.
    slog_blocks,
    slog_bytes,
    slog_written,
    slog_allocated,
}

/// A dataset's counters and its pool's, which are always counted together.
pub(super) struct Both<'a>(pub &'a LogStats, pub &'a LogStats);

impl Both<'_> {
    pub(super) fn add(&self, which: fn(&LogStats) -> &AtomicU64, n: u64) {
        which(self.0).fetch_add(n, Ordering::Relaxed);
        which(self.1).fetch_add(n, Ordering::Relaxed);
    }
    /// A block: 1, and the bytes of its records, written and allocated.
    pub(super) fn block(&self, slog: bool, n: [u64; 4]) {
        for s in [self.0, self.1] {
            let counters = match slog {
                true => [&s.slog_blocks, &s.slog_bytes, &s.slog_written, &s.slog_allocated],
                false => [&s.normal_blocks, &s.normal_bytes, &s.normal_written, &s.normal_allocated],
            };
            for (c, n) in counters.into_iter().zip(n) {
                c.fetch_add(n, Ordering::Relaxed);
            }
        }
    }
    pub(super) fn took(&self, which: fn(&LogStats) -> &Latencies, d: Duration) {
        which(self.0).count(d);
        which(self.1).count(d);
    }
}
