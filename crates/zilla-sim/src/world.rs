//! A world: scheduler, clock, randomness, disks and paths from one seed; and what is left of it
//! after a power cut.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use zilla_env::{BoxFuture, Device, Env, SparseImage};

use crate::crash::CrashPolicy;
use crate::disk::{DiskConfig, DiskFaults, Power, SimDisk};
use crate::executor::{Executor, Handle, Stuck};
use crate::opener::{Paths, SimOpener};
use crate::rng::{SimRng, WorldRng};

#[derive(Debug, Clone)]
pub struct SimConfig {
    /// What the engine believes to be the number of cores. All tasks run on one thread whatever it
    /// is.
    pub parallelism: usize,
    /// Wall clock at the start, since 1970.
    pub epoch: Duration,
    /// Ends a run that never ends by itself.
    pub max_polls: u64,
    pub max_time: Duration,
    pub disk: DiskConfig,
    /// Whether tasks run as soon as they can: for measuring time. Otherwise a turn may come late,
    /// so that tasks meet in more ways.
    pub punctual: bool,
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            parallelism: 4,
            epoch: Duration::from_secs(1_750_000_000),
            max_polls: 200_000_000,
            max_time: Duration::from_secs(86_400 * 30),
            disk: DiskConfig::default(),
            punctual: false,
        }
    }
}

/// What has happened in a world so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub polls: u64,
    /// Writes (of every kind) and flushes, the points at which the power can be cut.
    pub ops: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
}

pub struct Sim {
    seed: u64,
    executor: Arc<Executor>,
    power: Arc<Power>,
    paths: Arc<Paths>,
    env: Env,
}

impl Sim {
    pub fn new(seed: u64) -> Sim {
        Sim::with_config(seed, SimConfig::default())
    }

    pub fn with_config(seed: u64, config: SimConfig) -> Sim {
        let SimConfig { parallelism, epoch, max_polls, max_time, disk, punctual } = config;
        let executor = Executor::new(seed, parallelism, epoch, max_polls, max_time, punctual);
        let power = Arc::new(Power::new());
        let paths = Paths::new(&executor, power.clone(), seed, disk);
        let handle = Arc::new(Handle(Arc::downgrade(&executor)));
        let env = Env {
            clock: handle.clone(),
            spawner: handle,
            rng: Arc::new(WorldRng(Mutex::new(SimRng::new(seed, "engine")))),
            opener: Arc::new(SimOpener::new(paths.clone())),
        };
        Sim { seed, executor, power, paths, env }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// Adds an empty disk, to be opened by its path.
    pub fn add_disk(&self, path: impl AsRef<Path>, size: u64) -> Arc<SimDisk> {
        self.add_image(path, size, SparseImage::new())
    }

    /// Adds a disk with contents.
    pub fn add_image(&self, path: impl AsRef<Path>, size: u64, image: SparseImage) -> Arc<SimDisk> {
        self.paths.add_disk(path.as_ref(), size, image).expect("the simulated disk's path is taken")
    }

    pub fn disk(&self, path: impl AsRef<Path>) -> Option<Arc<SimDisk>> {
        self.paths.state.lock().disks.get(path.as_ref()).cloned()
    }

    /// Disks stop failing.
    pub fn calm(&self) {
        self.paths.state.lock().disks.values().for_each(|d| d.set_faults(DiskFaults::default()));
    }

    /// Runs the world until `main` is done. Panics with a report when it cannot be.
    pub fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        match self.try_block_on(main) {
            Ok(value) => value,
            Err(stuck) => panic!("seed {}: {stuck}", self.seed),
        }
    }

    pub fn try_block_on<T>(&self, main: impl Future<Output = T>) -> Result<T, Stuck> {
        self.executor.run(main)
    }

    /// Runs the world until a task sets `done`. Can be left at a pause and entered again without
    /// changing the course of things.
    pub fn run_until(&self, done: &AtomicBool) -> Result<(), Stuck> {
        self.executor.run_until(done)
    }

    /// Lets everything else run for `d` of virtual time.
    pub fn run_for(&self, d: Duration) -> Result<(), Stuck> {
        let sleep: BoxFuture<'static, ()> = self.env.clock.sleep(d);
        self.try_block_on(sleep)
    }

    /// Cuts the power at the `op`-th write or flush from the world's start (the first is 1): the
    /// world halts.
    pub fn cut_power_at(&self, op: u64) {
        self.power.cut_at(op, true);
    }

    /// From the `op`-th write or flush on every I/O fails, and the world goes on.
    pub fn fail_disks_at(&self, op: u64) {
        self.power.cut_at(op, false);
    }

    /// Pauses the world at the `op`-th write or flush (or the next there is) with
    /// [`Stuck::Paused`]; 0 for never again. What goes on after [`Sim::resume`] is the same as
    /// without the pause, if nothing was run meanwhile.
    pub fn pause_at(&self, op: u64) {
        self.power.pause_at(op);
    }

    pub fn resume(&self) {
        self.executor.resume();
    }

    pub fn counters(&self) -> Counters {
        self.power.counters(self.executor.polls())
    }

    /// A hash of everything that happened: equal for equal seeds and programs.
    pub fn trace_hash(&self) -> u64 {
        self.executor.trace()
    }

    pub fn now(&self) -> Duration {
        self.env.clock.now()
    }

    /// What would be left if the power went now; the world goes on.
    pub fn survivors(&self, policy: CrashPolicy, seed: u64) -> Survivors {
        self.survivors_of(u64::MAX, policy, seed)
    }

    /// What would be left if the power had gone at the `op`-th write or flush, of those that were
    /// submitted together just now.
    pub fn survivors_of(&self, op: u64, policy: CrashPolicy, seed: u64) -> Survivors {
        let state = self.paths.state.lock();
        let disks = state.disks.iter();
        Survivors {
            disks: disks
                .map(|(path, d)| (path.clone(), (d.size(), d.after_crash(policy, seed, op))))
                .collect(),
            files: state.files.clone(),
        }
    }

    /// Ends the world by taking its power away; returns what is left.
    pub fn power_off(self, policy: CrashPolicy, seed: u64) -> Survivors {
        self.survivors(policy, seed)
    }
}

impl Drop for Sim {
    /// Tasks hold the world's parts and those hold tasks: cut the knot.
    fn drop(&mut self) {
        self.executor.clear();
    }
}

/// Disks and files after a power cut. Cloning is cheap, so several worlds can boot from one crash.
#[derive(Clone)]
pub struct Survivors {
    pub disks: BTreeMap<PathBuf, (u64, SparseImage)>,
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Survivors {
    /// Whether both are left of one course of things with nothing written in between: told by their
    /// memory, which clones share.
    pub fn is_same(&self, other: &Survivors) -> bool {
        self.files == other.files
            && self.disks.len() == other.disks.len()
            && self
                .disks
                .iter()
                .zip(&other.disks)
                .all(|((a, (n, x)), (b, (m, y)))| a == b && n == m && x.is_same(y))
    }

    /// A new world on what is left.
    pub fn boot(&self, seed: u64) -> Sim {
        self.boot_with(seed, SimConfig::default())
    }

    pub fn boot_with(&self, seed: u64, config: SimConfig) -> Sim {
        let sim = Sim::with_config(seed, config);
        for (path, (size, image)) in &self.disks {
            sim.add_image(path, *size, image.clone());
        }
        sim.paths.state.lock().files = self.files.clone();
        sim
    }
}
