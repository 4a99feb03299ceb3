//! How much of a server one client may have, so that there is something left for others.
//!
//! A client is known by its address before it has said who it is, and by the key of its certificate
//! after that: whoever has one certificate may have many addresses.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places of which each client gets as many at most.
#[derive(Debug)]
pub struct Shares<K> {
    each: usize,
    taken: Mutex<HashMap<K, usize>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct Share<K: Eq + Hash>(Arc<Shares<K>>, K);

impl<K: Eq + Hash + Clone> Shares<K> {
    pub fn new(each: usize) -> Arc<Shares<K>> {
        Arc::new(Shares { each, taken: Mutex::default() })
    }

    /// None: this one has all that it gets.
    pub fn take(self: &Arc<Self>, who: K) -> Option<Share<K>> {
        let mut taken = self.taken();
        let own = taken.get(&who).copied().unwrap_or(0);
        if own >= self.each {
            return None;
        }
        taken.insert(who.clone(), own + 1);
        Some(Share(self.clone(), who))
    }
}

impl<K> Shares<K> {
    /// No one leaves it half changed.
    fn taken(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut taken = self.0.taken();
        if let Some(own) = taken.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.1);
            }
        }
    }
}

/// Whose address it is: of IPv6 all addresses of a network of 64 bits are one client's, since
/// whoever has one of them has them all.
pub fn client_at(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_as_many_and_what_is_given_back_is_there_again() {
        let shares = Shares::new(2);
        let first: Vec<_> = (0..2).map(|_| shares.take("one").unwrap()).collect();
        assert!(shares.take("one").is_none());
        let other = shares.take("two").unwrap();
        drop(first);
        let again = shares.take("one").unwrap();
        drop((other, again));
        assert!(shares.taken().is_empty(), "who has nothing is forgotten");
    }

    #[test]
    fn a_client_is_an_address_or_a_network_of_ipv6() {
        let of = |ip: &str| client_at(ip.parse().unwrap());
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }
}
