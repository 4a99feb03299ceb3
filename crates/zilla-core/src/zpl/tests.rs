//! The file system against a small reference one, over txgs, lost caches and crashes; and the bytes
//! it writes.

mod format;
mod memory;
mod model;
mod names;
mod order;
mod parts;
mod reap;
mod replay;
mod rewrite;
mod threads;
mod world;
