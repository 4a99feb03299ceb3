//! Block I/O: from a block pointer to verified bytes and back.

mod store;

pub use store::{BlockStore, Priority, WriteReq};
