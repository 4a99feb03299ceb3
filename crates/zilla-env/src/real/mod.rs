//! The real world: threads, the kernel's clock and randomness, files and block devices.
//!
//! Three ways to do a device's I/O, chosen when it is opened (`ZILLA_IO=inline|uring|threads`
//! forces one):
//!
//! * *inline*: the submitting thread makes the system call itself. Only for files in memory (tmpfs,
//!   ramfs), which never wait for anything: the I/O is a copy, and handing it to another thread
//!   would cost more than the copy.
//! * *io_uring*: a batch is one system call; one thread reaps completions.
//! * *threads*: positioned reads and writes on a few threads of the device's own, where io_uring is
//!   refused (most containers).
//!
//! A thread that would only sleep until its I/O is done may do it itself ([`crate::patience`]).
//!
//! What lies in a file system that FUSE serves is always on threads of its own (`served.rs`), and
//! paths are always looked at on such (`apart.rs`): the server may be this process.

mod apart;
mod executor;
mod file;
mod open;
mod random;
mod served;
mod threads;
mod timer;
mod uring;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use crate::Env;

pub use apart::{apart, apart_with};
pub use uring::io_uring_works;

/// How devices do their I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IoBackend {
    /// Inline for files in memory, else io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    Uring,
    Threads,
    /// Blocks the submitting thread: right for files in memory only.
    Inline,
}

impl IoBackend {
    /// What `ZILLA_IO` asks for; anything unknown is `Auto`.
    pub fn from_environment() -> IoBackend {
        match std::env::var("ZILLA_IO").as_deref() {
            Ok("uring") => IoBackend::Uring,
            Ok("threads") => IoBackend::Threads,
            Ok("inline") => IoBackend::Inline,
            _ => IoBackend::Auto,
        }
    }
}

#[derive(Debug, Clone)]
pub struct RealConfig {
    /// Worker threads of the executor.
    pub threads: usize,
    pub io: IoBackend,
    /// Whether to bypass the page cache where the file system can.
    pub direct: bool,
}

impl Default for RealConfig {
    fn default() -> RealConfig {
        let threads = thread::available_parallelism().map_or(2, NonZeroUsize::get);
        RealConfig { threads, io: IoBackend::from_environment(), direct: true }
    }
}

/// The real world with `threads` worker threads (0: as many as there are cores). They end when the
/// last clone of the environment is gone.
pub fn real_env(threads: usize) -> Env {
    let mut config = RealConfig::default();
    if threads > 0 {
        config.threads = threads;
    }
    real_env_with(config)
}

pub fn real_env_with(config: RealConfig) -> Env {
    Env {
        clock: Arc::new(timer::RealClock::new()),
        spawner: Arc::new(executor::Workers::start(config.threads.max(1))),
        rng: Arc::new(random::KernelRng),
        opener: Arc::new(open::RealOpener::new(config)),
    }
}
