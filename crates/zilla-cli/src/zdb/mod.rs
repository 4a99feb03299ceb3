//! `zdb`: looking at pools as they lie on the devices.
//!
//! OpenZFS's debugger, with its options and, where scripts look at it, its output. Unlike the other
//! commands it asks no daemon: it opens the devices itself, read-only, through the engine, so that
//! it shows what is on disk and nothing that only somebody's memory knows. Pools are found as
//! `-e -p DIR` says, or through the daemon's cache file.
//!
//! ```text
//!   options (here) -> open (a pool) -> the reports, in OpenZFS's order, a file each:
//!   labels  config  space  datasets -> object -> indirect, zap, bonus, znode   blocks  dedup  history  intent  iostat  copy  raw
//! ```
//!
//! **Invariants.** Nothing is written, whatever the pool's state. What is damaged is said where it
//! comes up, the rest is shown all the same, and the exit code is 1: 0 means that everything asked
//! for was shown and is right. What it lacks of OpenZFS's zdb it refuses by name, with exit code 2,
//! before it opens anything.
//!
//! **A pool in use** is read while its owner writes. What was freed is overwritten only two txgs
//! later, so short reports are right as of the txg they began with; long ones can run into blocks
//! that are gone. A note says so.
//!
//! **Crash.** There is nothing to lose.
//!
//! **Deliberately absent.** Keys (`-K`): encrypted datasets are shown as far as they are in the
//! clear. Rewinding (`-F`, `-X`, `-t`), which changes what is seen, not how; leaked objects of the
//! MOS, which OpenZFS looks for in passing.

mod blocks;
mod bonus;
mod config;
mod copy;
mod count;
mod datasets;
mod dedup;
mod history;
mod indirect;
mod intent;
mod iostat;
mod labels;
mod object;
mod open;
mod options;
mod ranges;
mod raw;
mod space;
mod text;
mod zap;
mod znode;

use crate::cx::Out;
#[cfg(test)]
pub(crate) use options::USAGE;
use options::{Opts, Parsed};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use zilla_core::error::{Error, Result};
use zilla_core::spa::Spa;
use zilla_env::{Env, real_env};

/// An open pool, what is asked of it, and where it goes.
pub(crate) struct Zdb {
    pub out: Out,
    pub opts: Opts,
    pub env: Env,
    pub spa: Arc<Spa>,
    /// When the pool was opened.
    pub opened: std::time::Duration,
    /// Files of the dataset being shown to which no path leads.
    pub leaked: u64,
    /// Something is damaged, or does not add up.
    pub damaged: bool,
}

/// Prints like `print!`, through the buffer.
macro_rules! put {
    ($z:expr, $($arg:tt)*) => { $z.out.put(format!($($arg)*)) };
}
pub(crate) use put;

pub fn main(args: Vec<String>) -> u8 {
    let opts = match options::parse(&args) {
        Parsed::Run(opts) => *opts,
        Parsed::Refuse(what) => {
            eprintln!("{what}");
            return 2;
        }
    };
    let env = real_env(0);
    wait(start(&env, opts))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs the reports on this thread; the environment's workers do what they start.
fn wait<T>(main: impl Future<Output = T>) -> T {
    let mut main = pin!(main);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    loop {
        match main.as_mut().poll(&mut cx) {
            Poll::Ready(out) => return out,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// What stops a whole report.
fn fatal(what: &str) -> u8 {
    eprintln!("zdb: {what}");
    1
}

async fn start(env: &Env, opts: Opts) -> u8 {
    if opts.on('l') {
        return labels::run(env, &opts).await;
    }
    let Some(target) = opts.operands.first().cloned() else {
        return match config::cache_file(&opts) {
            Ok(text) => {
                print!("{text}");
                0
            }
            Err(e) => fatal(&e),
        };
    };
    let pool = target.split(['/', '@']).next().unwrap_or_default().to_owned();
    let spa = match open::open(env, &opts, &pool).await {
        Ok(spa) => spa,
        Err(e) => return fatal(&format!("can't open '{target}': {e}")),
    };
    let opened = env.now();
    let mut z = Zdb { out: Out::new(), opts, env: env.clone(), spa, opened, leaked: 0, damaged: false };
    let outcome = z.reports(&target).await;
    z.out.flush();
    z.spa.tree().close().await;
    match outcome {
        Ok(()) => u8::from(z.damaged),
        Err(e) => fatal(&format!("can't dump '{target}': {e}")),
    }
}

impl Zdb {
    pub fn on(&self, option: char) -> bool {
        self.opts.on(option)
    }

    pub fn level(&self, option: char) -> u8 {
        self.opts.level(option)
    }

    /// A size or count for the eye, or plain with `-P`.
    pub fn nice(&self, n: u64) -> String {
        text::nice(n, self.on('P'))
    }

    /// Says what is wrong, in its place among the output.
    pub fn complain(&mut self, what: &str, e: &Error) {
        self.damaged = true;
        put!(self, "\t{what}: {e}\n");
    }

    async fn reports(&mut self, target: &str) -> Result<()> {
        if self.on('r') {
            return self.copy_out(target).await;
        }
        if self.on('R') {
            return self.raw_blocks().await;
        }
        if self.on('S') {
            return self.simulated_dedup().await;
        }
        if target.contains(['/', '@']) {
            return self.one_dataset(target).await;
        }
        if self.on('d') && self.opts.operands.len() > 1 {
            return self.mos_objects().await;
        }
        if self.on('C') {
            self.config().await?;
        }
        if self.on('u') {
            self.uberblock();
        }
        if self.on('D') {
            self.dedup_tables().await?;
        }
        if self.level('d') > 2 || self.on('m') {
            self.metaslabs().await?;
            self.log_space_maps().await?;
        }
        if self.on('d') || self.on('i') {
            self.all_datasets().await?;
        }
        if self.on('b') || self.on('c') {
            self.block_stats().await?;
        }
        if self.on('s') {
            self.io_stats();
        }
        if self.on('h') {
            self.history().await?;
        }
        Ok(())
    }
}
