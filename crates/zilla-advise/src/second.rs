//! What a cache device of a size would have held: a ring behind the ARC as it was.
//!
//! A block gets there some time after somebody had to wait for it, and only if somebody did: what
//! was only prefetched is not fed. The feeder takes what it may in a second, the rest waits in
//! memory's tail as long as that is; what falls off there is not fed. The ring overwrites the
//! oldest, and only for what was used before: when it is full, what is seen for the first time is
//! not fed. So the walk needs the trace's own word of what was in memory, and no model of the ARC.

use crate::sample::Access;
use std::collections::{HashMap, VecDeque};
use zilla_ondisk::trace::Found;

/// A device's sectors.
const SECTOR: u64 = 4096;

/// The device, in the sample's scale.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    pub bytes: f64,
    /// Bytes a second that it is fed with at most.
    pub feed: f64,
    /// Bytes in memory that may wait for that.
    pub tail: f64,
    /// The feeder comes through all of memory, so that what stays there is fed too.
    pub whole: bool,
}

/// What happened from `from` on, of what the sample has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replayed {
    /// Reads that somebody waited for, and those of them that the device had.
    pub waited: u64,
    pub hits: u64,
    /// Of those waited for: seen for the first time.
    pub first: u64,
    /// Bytes written to it, before and after `from`.
    pub filled: u64,
    pub written: u64,
    /// Blocks and bytes that it held at the end.
    pub blocks: u64,
    pub held: u64,
    /// Blocks that were thrown out of memory's tail before they were fed.
    pub missed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Prefetched; nobody has asked yet. `known`: it was seen before that.
    Ahead {
        known: bool,
    },
    Tail,
    Held,
    /// Seen, and not there any more.
    Gone,
}

pub fn replay(accesses: &[Access], ring: Ring, from: u32) -> Replayed {
    let mut out = Replayed::default();
    let mut states: HashMap<u64, State> = HashMap::new();
    let (mut tail, mut held) = (VecDeque::<(u64, u64)>::new(), VecDeque::<(u64, u64)>::new());
    let (mut tail_bytes, mut held_bytes) = (0u64, 0u64);
    let (mut allowed, mut last, mut full) = (0.0f64, 0u32, false);
    for a in accesses {
        let size = u64::from(a.size).next_multiple_of(SECTOR);
        // What was fed meanwhile; what it might have written and had not cannot be written later.
        allowed += ring.feed * f64::from(a.at.saturating_sub(last)) / 1000.0;
        last = last.max(a.at);
        while let Some(&(key, size)) = tail.front() {
            if size as f64 > allowed {
                break;
            }
            tail.pop_front();
            tail_bytes -= size;
            allowed -= size as f64;
            if size as f64 > ring.bytes {
                states.insert(key, State::Gone);
                continue;
            }
            held.push_back((key, size));
            held_bytes += size;
            states.insert(key, State::Held);
            *(if a.at >= from { &mut out.written } else { &mut out.filled }) += size;
            while held_bytes as f64 > ring.bytes {
                let Some((key, size)) = held.pop_front() else { break };
                held_bytes -= size;
                states.insert(key, State::Gone);
                full = true;
            }
        }
        if tail.is_empty() {
            allowed = allowed.min(ring.feed);
        }
        let state = states.get(&a.key).copied();
        if a.waited() && a.at >= from {
            out.waited += 1;
            out.hits += u64::from(state == Some(State::Held));
            out.first += u64::from(state.is_none());
        }
        let feed = match (a.prefetch, state) {
            (true, None | Some(State::Gone)) => {
                states.insert(a.key, State::Ahead { known: state.is_some() });
                false
            }
            (true, _) => false,
            // What is found in memory is mostly far from its tail, unless it was read ahead for
            // this.
            (false, None) if a.found == Found::Memory => ring.whole,
            (false, None) => !full,
            (false, Some(State::Gone)) => ring.whole || a.found != Found::Memory,
            (false, Some(State::Ahead { known })) => known || !full,
            (false, Some(State::Tail | State::Held)) => false,
        };
        if feed {
            states.insert(a.key, State::Tail);
            tail.push_back((a.key, size));
            tail_bytes += size;
            while tail_bytes as f64 > ring.tail && tail.len() > 1 {
                let Some((key, size)) = tail.pop_front() else { break };
                tail_bytes -= size;
                states.insert(key, State::Gone);
                out.missed += 1;
            }
        } else if !a.prefetch && matches!(state, None | Some(State::Ahead { .. })) {
            states.insert(a.key, State::Gone);
        }
    }
    (out.blocks, out.held) = (held.len() as u64, held_bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Ring = Ring { bytes: 1e12, feed: 1e12, tail: 1e12, whole: false };

    fn access(key: u64, at: u32, prefetch: bool, found: Found) -> Access {
        Access { key, size: 4096, at, prefetch, found }
    }

    /// So many times round as many blocks, which memory never has.
    fn rounds(n: u32, blocks: u64) -> Vec<Access> {
        let all = (0..n).flat_map(|r| (0..blocks).map(move |b| (u64::from(r) * blocks + b, b)));
        all.map(|(at, b)| access(b, at as u32, false, Found::Pool)).collect()
    }

    #[test]
    fn a_ring_that_has_room_for_all_has_all_and_one_that_has_not_nothing_of_a_round() {
        let all = replay(&rounds(4, 100), WIDE, 100);
        assert_eq!((all.waited, all.hits, all.held), (300, 300, 100 * 4096));
        // Round and round through more than there is room for, the next is always the one that has
        // gone.
        let half = replay(&rounds(4, 100), Ring { bytes: 60.0 * 4096.0, ..WIDE }, 100);
        assert_eq!((half.hits, half.blocks), (0, 60));
        assert!(half.written > all.written);
    }

    #[test]
    fn what_is_read_once_does_not_push_out_what_is_used() {
        let ring = Ring { bytes: 100.0 * 4096.0, ..WIDE };
        // A set of fifty, a scan of a thousand, read ahead in part, and the set again.
        let scanned = (1000..2000).flat_map(|b| {
            let ahead = (b % 2 == 0).then(|| access(b, b as u32, true, Found::Pool));
            let found = if ahead.is_some() { Found::Memory } else { Found::Pool };
            ahead.into_iter().chain([access(b, b as u32, false, found)])
        });
        let set = (0..50).map(|b| access(b, b as u32, false, Found::Pool));
        // (The other way round, or each that comes again would push out the next to be asked for.)
        let again = (0..50).map(|b| access(49 - b, 3000 + b as u32, false, Found::Pool));
        let all: Vec<Access> = set.chain(scanned).chain(again).collect();
        let r = replay(&all, ring, 3000);
        // A block or two of the scan was on its way when the ring became full.
        assert!((47..=50).contains(&r.hits), "{r:?}");
        // What comes a second time is fed.
        let r = replay(&rounds(2, 1000), ring, 1000);
        assert!(r.written > 900 * 4096, "{r:?}");
    }

    #[test]
    fn what_nobody_waits_for_is_not_fed() {
        let ahead = [access(1, 0, true, Found::Pool), access(1, 5, true, Found::Pool)];
        assert_eq!(replay(&ahead, WIDE, 0).blocks, 0);
        let asked = [ahead[0], access(1, 1, false, Found::Memory), access(2, 3, false, Found::Pool)];
        assert_eq!(replay(&asked, WIDE, 0).blocks, 1);
    }

    #[test]
    fn it_is_fed_no_faster_than_it_may_be() {
        // 1000 blocks in a second, of which a hundred may be written, and the tail holds two
        // hundred.
        let slow = Ring { feed: 100.0 * 4096.0, tail: 200.0 * 4096.0, ..WIDE };
        let r = replay(&rounds(1, 1000), slow, 0);
        assert!((95..=100).contains(&r.blocks), "{r:?}");
        assert!((695..=705).contains(&r.missed), "{r:?}");
    }
}
