//! What was read, written and removed, counted: of one objset ([`ObjsetStats`]), and of all of a
//! pool's ([`StreamStats`]).
//!
//! Counters are relaxed atomics beside what they count: they are read for people, who do not mind
//! a number that is one operation old. Nothing of them is on disk; they begin anew when the pool,
//! or the objset, is opened.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($(#[$sm:meta])* $stats:ident, $(#[$cm:meta])* $counts:ident { $( $(#[$m:meta])* $name:ident ),* $(,)? }) => {
        $(#[$sm])*
        #[derive(Debug, Default)]
        pub struct $stats {
            $( $(#[$m])* pub(crate) $name: AtomicU64, )*
        }

        $(#[$cm])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $counts {
            $( $(#[$m])* pub $name: u64, )*
        }

        impl $stats {
            pub fn get(&self) -> $counts {
                $counts { $( $name: self.$name.load(Ordering::Relaxed), )* }
            }
        }

        impl $counts {
            pub fn add(&mut self, other: &$counts) {
                $( self.$name += other.$name; )*
            }
        }
    };
}

counters! {
    /// Counters of an objset.
    ObjsetStats,
    /// The same at one moment.
    ObjsetCounts {
        /// Requests that read from files or a volume, and the bytes they got.
        reads,
        read_bytes,
        /// The same of what was written.
        writes,
        written_bytes,
        /// Files that lost their last name.
        unlinks,
        /// What of them was freed.
        unlinked,
    }
}

counters! {
    /// Counters of a pool: blocks of files and volumes that were read and written, by the bytes
    /// that were asked for, and what was read ahead.
    StreamStats,
    /// The same at one moment.
    StreamCounts {
        read_blocks,
        read_bytes,
        written_blocks,
        written_bytes,
        /// What went past the cache (`O_DIRECT`), which is not among the others.
        direct_read_blocks,
        direct_read_bytes,
        direct_written_blocks,
        direct_written_bytes,
        /// Reads, by what they were to the streams of their objects (`dmu/zfetch.rs`).
        hits,
        future,
        stride,
        past,
        misses,
        max_streams,
        /// Blocks that were read ahead, and those of them that are on their way.
        ahead_blocks,
        ahead_active,
    }
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl ObjsetStats {
    pub(crate) fn read(&self, bytes: usize) {
        count(&self.reads, 1);
        count(&self.read_bytes, bytes as u64);
    }

    pub(crate) fn written(&self, bytes: u64) {
        count(&self.writes, 1);
        count(&self.written_bytes, bytes);
    }
}
