//! How much memory all clients of a server may have data in, together.
//!
//! What a connection may have under way is bounded, but thousands of connections may have that
//! each. So the data of a request count here as well, a write's from before they are received, a
//! read's until they are sent; where there is no room, requests wait in their connections.

use crate::proto::PAYLOAD_MAX;
use std::io;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Two requests of the greatest length always find room, one after the other.
const LEAST: u64 = 2 * PAYLOAD_MAX as u64;
/// Of the machine's memory.
const PART: u64 = 16;

/// Memory for the data of requests; clones are the same memory.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Semaphore>);

/// What a request has of it, until it is dropped.
pub(crate) type Share = OwnedSemaphorePermit;

impl Memory {
    /// So many bytes, or 64 MiB where that is more.
    pub fn of(bytes: u64) -> Memory {
        let most = u64::try_from(Semaphore::MAX_PERMITS).unwrap_or(u64::MAX);
        Memory(Arc::new(Semaphore::new(bytes.clamp(LEAST, most) as usize)))
    }

    /// A sixteenth of the machine's.
    pub fn of_machine() -> Memory {
        let info = rustix::system::sysinfo();
        Memory::of((info.totalram as u64).saturating_mul(info.mem_unit.into()) / PART)
    }

    /// Waits for room. Who came first is first.
    pub(crate) async fn take(&self, bytes: u32) -> io::Result<Share> {
        let room = self.0.clone().acquire_many_owned(bytes.min(PAYLOAD_MAX)).await;
        room.map_err(io::Error::other)
    }

    /// Whether somebody may be waiting for room.
    pub(crate) fn is_short(&self) -> bool {
        self.0.available_permits() < PAYLOAD_MAX as usize
    }
}
