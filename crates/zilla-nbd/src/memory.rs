//! How much memory all clients of a server may have data in, together.
//!
//! What a connection may have under way is bounded, but thousands of connections may have that
//! each. So the data of a request count here as well, a write's from before they are received, a
//! read's until they are sent; where there is no room, requests wait in their connections. Of those
//! who come from elsewhere each has a quarter at most, however many connections he has: he waits in
//! his own part first, and only then with all others.

use crate::proto::PAYLOAD_MAX;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Two requests of the greatest length always find room, one after the other.
const LEAST: u64 = 2 * PAYLOAD_MAX as u64;
/// Of the machine's memory.
const PART: u64 = 16;
/// So many clients have as much as each may have.
const CLIENTS: usize = 4;

/// Memory for the data of requests; clones are the same memory.
#[derive(Clone, Debug)]
pub struct Memory {
    all: Arc<Semaphore>,
    /// Bytes of one client.
    each: usize,
    clients: Arc<Mutex<HashMap<Vec<u8>, Weak<Semaphore>>>>,
    /// This client's.
    own: Option<Arc<Semaphore>>,
}

/// What a request has of it, until it is dropped.
pub(crate) struct Share {
    _own: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

impl Memory {
    /// So many bytes, or 64 MiB where that is more.
    pub fn of(bytes: u64) -> Memory {
        let most = u64::try_from(Semaphore::MAX_PERMITS).unwrap_or(u64::MAX);
        let bytes = bytes.clamp(LEAST, most) as usize;
        let each = (bytes / CLIENTS).max(LEAST as usize);
        Memory { all: Arc::new(Semaphore::new(bytes)), each, clients: Arc::default(), own: None }
    }

    /// The same for one of the clients, whom this key tells from others.
    pub fn of_client(&self, key: &[u8]) -> Memory {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let own = clients.get(key).and_then(Weak::upgrade).unwrap_or_else(|| {
            clients.retain(|_, part| part.strong_count() > 0);
            let new = Arc::new(Semaphore::new(self.each));
            clients.insert(key.to_vec(), Arc::downgrade(&new));
            new
        });
        Memory { own: Some(own), ..self.clone() }
    }

    /// A sixteenth of the machine's.
    pub fn of_machine() -> Memory {
        let info = rustix::system::sysinfo();
        Memory::of((info.totalram as u64).saturating_mul(info.mem_unit.into()) / PART)
    }

    /// Waits for room. Who came first is first.
    pub(crate) async fn take(&self, bytes: u32) -> io::Result<Share> {
        let bytes = bytes.min(PAYLOAD_MAX);
        let room =
            async |of: &Arc<Semaphore>| of.clone().acquire_many_owned(bytes).await.map_err(io::Error::other);
        let own = match &self.own {
            Some(own) => Some(room(own).await?),
            None => None,
        };
        Ok(Share { _own: own, _of_all: room(&self.all).await? })
    }

    /// Whether somebody may be waiting for room.
    pub(crate) fn is_short(&self) -> bool {
        let mut both = std::iter::once(&self.all).chain(&self.own);
        both.any(|room| room.available_permits() < PAYLOAD_MAX as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn one_client_waits_in_his_own_part() {
        let memory = Memory::of(LEAST * CLIENTS as u64);
        let of = |key: &[u8]| {
            let memory = memory.of_client(key);
            async move { memory.take(PAYLOAD_MAX).await }.now_or_never().map(Result::unwrap)
        };
        // On several connections.
        let kept: Vec<_> = (0..100).map_while(|_| of(b"one")).collect();
        assert_eq!(kept.len(), 2);
        assert!(memory.of_client(b"one").is_short() && !memory.is_short());
        let others: Vec<_> = [&b"two"[..], b"three", b"four"].iter().flat_map(|key| of(key)).collect();
        assert_eq!(others.len(), 3);
        drop(kept);
        assert!(of(b"one").is_some());
        drop(others);
        let _five = memory.of_client(b"five");
        assert_eq!(memory.clients.lock().unwrap().len(), 1, "those who are gone are forgotten");
    }
}
