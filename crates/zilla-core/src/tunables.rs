//! What can be tuned while pools are open: OpenZFS's module parameters, as far as zilla has what they steer.
//!
//! They are the process's, not a pool's, as the module's are the machine's. Each is a number that is read where it matters, every
//! time.

use std::sync::atomic::{AtomicU64, Ordering};

/// A parameter.
pub struct Tunable {
    /// As in `/sys/module/zfs/parameters`.
    pub name: &'static str,
    pub default: u64,
    value: AtomicU64,
}

impl Tunable {
    const fn new(name: &'static str, default: u64) -> Tunable {
        Tunable { name, default, value: AtomicU64::new(default) }
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }
}

/// Whether changes of extended attributes that lie in the file's own metadata go into the intent log.
pub static ZIL_SAXATTR: Tunable = Tunable::new("zfs_zil_saxattr", 1);

/// How long a log block waits for company, in percent of what the last one took to write. A block here is sent at once, and who comes
/// meanwhile is the next one's company, so nothing waits whatever is set.
pub static COMMIT_TIMEOUT_PCT: Tunable = Tunable::new("zfs_commit_timeout_pct", 10);

/// From how many bytes on synchronous writes go to where they will stay instead of into the log.
pub static IMMEDIATE_WRITE_SZ: Tunable = Tunable::new("zfs_immediate_write_sz", 32768);

pub static ALL: &[&Tunable] = &[&ZIL_SAXATTR, &COMMIT_TIMEOUT_PCT, &IMMEDIATE_WRITE_SZ];
