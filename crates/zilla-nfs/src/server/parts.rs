//! What one client has of what all clients may have: connections, and memory for records and
//! replies.
//!
//! A client is an address; of IPv6 all addresses of a network of 64 bits are one, since whoever has
//! one of them has them all. It has a quarter of everything, as its own part: whoever waits for
//! room waits in his part first, and only then, with all others, for what is left of the whole.
//!
//! A part is there as long as the client has a connection.

use super::{CONNECTIONS, ROOM, UNIT};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many clients can have their parts at the same time.
const SHARE: usize = 4;

/// One client's.
pub(super) struct Part {
    pub(super) connections: Arc<Semaphore>,
    pub(super) room: Arc<Semaphore>,
    pub(super) replies: Arc<Semaphore>,
}

/// Those of the clients that there are.
#[derive(Default)]
pub(super) struct Parts(Mutex<HashMap<IpAddr, Weak<Part>>>);

/// Whose part it is.
fn client(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

impl Parts {
    pub(super) fn of(&self, ip: IpAddr) -> Arc<Part> {
        let mut parts = self.0.lock();
        let known = parts.get(&client(ip)).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            parts.retain(|_, part| part.strong_count() > 0);
            let some = |all: usize| Arc::new(Semaphore::new(all / SHARE));
            let new = Arc::new(Part {
                connections: some(CONNECTIONS),
                room: some(ROOM / UNIT),
                replies: some(ROOM / UNIT),
            });
            parts.insert(client(ip), Arc::downgrade(&new));
            new
        })
    }
}

/// Room that is taken, of a part and of the whole.
pub(super) struct Room(OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Room {
    /// Waits for room for so many bytes. Who came first is first, in his part and then among all.
    pub(super) async fn take(part: &Arc<Semaphore>, all: &Arc<Semaphore>, bytes: usize) -> io::Result<Room> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(io::Error::other)?;
        let own = part.clone().acquire_many_owned(units).await.map_err(io::Error::other)?;
        let of_all = all.clone().acquire_many_owned(units).await.map_err(io::Error::other)?;
        Ok(Room(own, of_all))
    }

    /// Gives back what so many bytes do not need.
    pub(super) fn only_for(mut self, bytes: usize) -> Room {
        for taken in [&mut self.0, &mut self.1] {
            let over = taken.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(taken.split(over));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_address_or_a_network_of_ipv6() {
        let parts = Parts::default();
        let of = |ip: &str| parts.of(ip.parse().unwrap());
        let first = of("192.0.2.1");
        assert!(Arc::ptr_eq(&first, &of("::ffff:192.0.2.1")) && !Arc::ptr_eq(&first, &of("192.0.2.2")));
        let six = of("2001:db8::1");
        assert!(Arc::ptr_eq(&six, &of("2001:db8::ffff:2")) && !Arc::ptr_eq(&six, &of("2001:db8:0:1::1")));
        drop((first, six));
        let _one = of("192.0.2.3");
        assert_eq!(parts.0.lock().len(), 1, "those who are gone are forgotten");
    }
}
