//! A deterministic world: the same engine, one thread, virtual time, disks in memory, everything
//! from one seed.
//!
//! A [`Sim`] is an [`Env`](zilla_env::Env) whose scheduler picks the next task at random from the
//! seed, whose clock jumps to the next event when nothing can run, and whose disks complete
//! operations in an order drawn from the seed. What happened is folded into a hash; the same seed
//! and program give the same hash, so any failure can be run again.
//!
//! The power can be cut at the k-th write or flush. What a disk acknowledged before the last flush
//! that completed is then there; of everything later any part may be, sector by sector
//! ([`CrashPolicy`]). A new world boots on what survived.
//!
//! Determinism ends where a program looks at the real world: real time, addresses, the iteration
//! order of a `HashMap` with std's random keys. The hash shows it: two runs of a seed differ.

mod crash;
mod disk;
mod executor;
pub mod hostile;
mod opener;
pub mod pool;
mod rng;
mod world;

pub use crash::{CrashPolicy, SECTOR};
pub use disk::{DiskConfig, DiskFaults, SimDisk};
pub use executor::Stuck;
pub use rng::SimRng;
pub use world::{Counters, Sim, SimConfig, Survivors};
