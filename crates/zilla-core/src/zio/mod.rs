//! Block I/O: from a block pointer to verified bytes and back.

mod alloc;
mod store;

pub use alloc::{AllocClass, AllocReq, AllocStop, Allocator, Dvas};
pub use store::{BlockStore, Priority, WriteReq};
