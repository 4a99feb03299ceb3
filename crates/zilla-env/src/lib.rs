//! The seam between the engine and the world.
//!
//! Everything the engine does that is not arithmetic goes through here: device I/O ([`Device`]),
//! time ([`Clock`]), tasks ([`Spawner`]), randomness ([`Rng`]) and opening things by path
//! ([`Opener`]), bundled as an [`Env`]. The same engine therefore runs on io_uring, on a thread
//! pool where io_uring is refused, on modelled or faulty devices, and in a deterministic simulator,
//! without knowing which.
//!
//! What this crate keeps true:
//!
//! * Every submitted [`Io`] completes exactly once. A [`Completion`] that is dropped instead of
//!   called reports an error, so that a bug in a backend becomes a failed I/O and never a hang.
//! * Nothing here blocks the thread that submits, except for files in memory, where the "device" is
//!   a copy by the kernel and handing it to another thread costs more than doing it, and where the
//!   thread asks for it ([`waiting_here`]). What may wait for a file system that this process
//!   serves waits on threads that nothing else needs ([`apart`]).
//! * I/O outside a device's bounds is an error, never a file that grows or a short buffer.
//! * [`IoOp::Flush`] that completed well means: every write that completed before the flush was
//!   submitted is stable. Nothing else orders or persists writes.

mod backoff;
mod block_on;
mod buf;
mod completion;
mod copy;
mod device;
mod env;
pub mod faulty;
mod fence;
mod heap;
mod image;
mod locked;
mod mem;
pub mod model;
mod patience;
pub mod real;
mod task;
mod words;
mod wrap;

pub use backoff::Backoff;
pub use block_on::{block_for, block_on};
pub use buf::{IoBuf, PAGE, Whole, age_pool, pool_in_use, pool_retained, set_pool_limit, trim_pool};
pub use completion::{BatchFuture, Completion, IoFuture, ReadFuture, UnitFuture};
pub use device::{Device, DeviceInfo, Io, IoOp, IoResult, IoVec, check_bounds};
pub use env::{Clock, DirEntry, EntryKind, Env, OpenMode, Opener, Rng, Spawner};
pub use fence::{Fence, is_refused};
pub use futures_util::future::BoxFuture;
pub use heap::{age_heap, heap_in_use, trim_heap};
pub use image::SparseImage;
pub use locked::Locked;
pub use mem::MemDevice;
pub use patience::{WaitingHere, own_thread, waiting_here};
pub use real::{IoBackend, RealConfig, apart, apart_with, real_env, real_env_with};
pub use task::{Elapsed, JoinHandle, yield_now};
pub use words::strerror;
