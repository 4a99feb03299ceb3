//! What other caches and log devices would bring to a pool, computed from a trace of what it is
//! asked for.
//!
//! Pure arithmetic: trace items go in ([`Analysis::item`]), an [`Advice`] comes out; whoever calls
//! reads files and prints. Memory is bounded however long the trace is.
//!
//! ```text
//! items -> gather   counts by time, concurrency; accesses to a part of the blocks (sample)
//!          stack    LRU stack distances of these: hit rate over the size of memory
//!          second   these once more past a ring behind the ARC as it was: what a cache device of a size holds
//!          device   what a kind of device costs: the models of zilla-env, driven without a world
//!          queue    hit rates and costs to rates: a closed network of those who read, the disks and the cache device
//!          advice   all of it for each kind and size, with what could not be known
//! ```
//!
//! What the ARC finds in memory does not change with a cache device behind it, so the trace itself
//! says which reads get there; no model of the ARC is needed for that, and none is off. The first
//! half of a trace warms the models, the second is counted.
#![forbid(unsafe_code)]

mod advice;
mod device;
mod gather;
mod queue;
mod sample;
mod second;
mod stack;
mod svg;

pub use advice::{Advice, CacheAdvice, Confidence, LogAdvice, Options, Point, Reads};
pub use gather::Analysis;
pub use svg::plot;
