//! What lies where on the cache devices, in memory.
//!
//! A device is written as a ring, so its blocks are a queue by age: each device has a [`Ring`] of
//! 32-byte entries in the order in which they lie on it, in chunks, so that no entry is ever moved.
//! [`Tables`] find an entry by its block's identity (vdev, offset, birth, as in the ARC); they hold
//! only the entry's device and number. An entry with its share of the tables takes 53 bytes at most
//! while their load is at its lowest.
//!
//! What is kept true: [`Index::bytes`] stays under the limit that [`Index::set_limit`] was given:
//! where a new entry would break it the oldest of the device that has most go, so that one that
//! comes later has its part too. A limit that was lowered is come down to step by step; meanwhile
//! nothing new is taken. The tables lead to entries that are there and alive.
//!
//! Nothing here need be right: who reads a block by an entry checks it against the block pointer. A
//! crash loses the index, and the log on the device has most of it.

use std::collections::VecDeque;

use hashbrown::HashSet;

use super::tables::Tables;
use crate::arc::Key;

/// Entries a chunk of a ring has: 16 KiB.
const CHUNK: u64 = 512;
/// Number of a ring's first entry. A rebuild adds older ones before it.
const ORIGIN: u64 = 1 << 40;
/// A number takes the low bits of a table's word, its device the high ones.
const SEQ_BITS: u32 = 56;
/// More cache devices than this a pool cannot have.
pub const MAX_DEVICES: usize = 255;
const KIND_SHIFT: u32 = 56;
/// Entries that are forgotten at most while the index is locked once: for a new one, which is as
/// many as free a chunk, and for a lower limit.
const FOR_ONE: u64 = CHUNK;
const FOR_LIMIT: u64 = 64 * CHUNK;
/// The same for a device that leaves.
const FOR_DEVICE: u64 = 8 * CHUNK;

/// Kinds of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind(pub u8);

impl Kind {
    pub const METADATA: u8 = 1;
    pub const MFU: u8 = 2;
    pub const PREFETCH: u8 = 4;
    const DEAD: u8 = 8;

    pub fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// A block on a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    pub key: Key,
    /// Where on the device, in bytes.
    pub daddr: u64,
    pub psize: u64,
    pub lsize: u64,
    pub kind: Kind,
}

/// As it is kept: sizes in sectors less one, the kind above the address.
#[derive(Clone, Copy, Default)]
struct Entry {
    offset: u64,
    birth: u64,
    daddr: u64,
    vdev: u32,
    psectors: u16,
    lsectors: u16,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    fn new(c: &Cached) -> Entry {
        let sectors = |bytes: u64| ((bytes >> 9).saturating_sub(1)).min(u64::from(u16::MAX)) as u16;
        Entry {
            offset: c.key.offset,
            birth: c.key.birth,
            daddr: c.daddr & ((1 << KIND_SHIFT) - 1) | u64::from(c.kind.0) << KIND_SHIFT,
            vdev: c.key.vdev,
            psectors: sectors(c.psize),
            lsectors: sectors(c.lsize),
        }
    }

    fn key(&self) -> Key {
        Key { vdev: self.vdev, offset: self.offset, birth: self.birth }
    }

    fn cached(&self) -> Cached {
        Cached {
            key: self.key(),
            daddr: self.daddr & ((1 << KIND_SHIFT) - 1),
            psize: (u64::from(self.psectors) + 1) << 9,
            lsize: (u64::from(self.lsectors) + 1) << 9,
            kind: Kind((self.daddr >> KIND_SHIFT) as u8),
        }
    }

    fn is_dead(&self) -> bool {
        Kind((self.daddr >> KIND_SHIFT) as u8).has(Kind::DEAD)
    }
}

/// A queue whose entries are known by number.
struct Ring {
    chunks: VecDeque<Box<[Entry]>>,
    first: u64,
    next: u64,
}

impl Ring {
    fn new() -> Ring {
        Ring { chunks: VecDeque::new(), first: ORIGIN, next: ORIGIN }
    }

    fn fresh() -> Box<[Entry]> {
        vec![Entry::default(); CHUNK as usize].into_boxed_slice()
    }

    fn at(&self, seq: u64) -> Option<&Entry> {
        if !(self.first..self.next).contains(&seq) {
            return None;
        }
        self.chunks.get((seq / CHUNK - self.first / CHUNK) as usize)?.get((seq % CHUNK) as usize)
    }

    fn at_mut(&mut self, seq: u64) -> Option<&mut Entry> {
        if !(self.first..self.next).contains(&seq) {
            return None;
        }
        let chunk = (seq / CHUNK - self.first / CHUNK) as usize;
        self.chunks.get_mut(chunk)?.get_mut((seq % CHUNK) as usize)
    }

    fn push_back(&mut self, entry: Entry) -> u64 {
        if self.next.is_multiple_of(CHUNK) || self.chunks.is_empty() {
            self.chunks.push_back(Self::fresh());
        }
        let seq = self.next;
        self.next += 1;
        if let Some(place) = self.at_mut(seq) {
            *place = entry;
        }
        seq
    }

    fn push_front(&mut self, entry: Entry) -> u64 {
        if self.first.is_multiple_of(CHUNK) {
            self.chunks.push_front(Self::fresh());
        }
        self.first -= 1;
        let seq = self.first;
        if let Some(place) = self.at_mut(seq) {
            *place = entry;
        }
        seq
    }

    fn front(&self) -> Option<&Entry> {
        self.at(self.first)
    }

    fn pop_front(&mut self) -> Option<(u64, Entry)> {
        let seq = self.first;
        let entry = *self.at(seq)?;
        self.first += 1;
        if self.first.is_multiple_of(CHUNK) {
            self.chunks.pop_front();
        }
        Some((seq, entry))
    }

    fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK * size_of::<Entry>() as u64
    }
}

/// What went, or is there, of each kind, in bytes as allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub blocks: u64,
    pub lsize: u64,
    pub psize: u64,
    pub asize: u64,
    pub prefetch: u64,
    pub mru: u64,
    pub mfu: u64,
    pub data: u64,
    pub metadata: u64,
}

impl Amounts {
    fn change(&mut self, c: &Cached, asize: u64, f: fn(u64, u64) -> u64) {
        let to = |field: &mut u64, n: u64| *field = f(*field, n);
        to(&mut self.blocks, 1);
        to(&mut self.lsize, c.lsize);
        to(&mut self.psize, c.psize);
        to(&mut self.asize, asize);
        let of_list = match (c.kind.has(Kind::PREFETCH), c.kind.has(Kind::MFU)) {
            (true, _) => &mut self.prefetch,
            (false, true) => &mut self.mfu,
            (false, false) => &mut self.mru,
        };
        to(of_list, asize);
        to(if c.kind.has(Kind::METADATA) { &mut self.metadata } else { &mut self.data }, asize);
    }

    pub fn add(&mut self, o: &Amounts) {
        for (a, b) in [
            (&mut self.blocks, o.blocks),
            (&mut self.lsize, o.lsize),
            (&mut self.psize, o.psize),
            (&mut self.asize, o.asize),
            (&mut self.prefetch, o.prefetch),
            (&mut self.mru, o.mru),
            (&mut self.mfu, o.mfu),
            (&mut self.data, o.data),
            (&mut self.metadata, o.metadata),
        ] {
            *a += b;
        }
    }
}

/// One device's.
struct Device {
    ring: Ring,
    ashift: u32,
    amounts: Amounts,
}

impl Device {
    fn asize(&self, psize: u64) -> u64 {
        psize.next_multiple_of(1 << self.ashift)
    }
}

/// The index of a pool's cache devices.
pub struct Index {
    tables: Tables,
    /// By the devices' slots.
    devices: Vec<Option<Device>>,
    /// Blocks that are just being written to some device.
    claims: HashSet<Key>,
    limit: u64,
}

fn hash(key: &Key) -> u64 {
    // Not a random hash: a simulated world must run the same way twice.
    let mixed = (key.offset >> 9) ^ key.birth.rotate_left(40) ^ u64::from(key.vdev).rotate_left(56);
    let hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 32
}

fn word(slot: usize, seq: u64) -> u64 {
    (slot as u64) << SEQ_BITS | seq
}

fn split(word: u64) -> (usize, u64) {
    ((word >> SEQ_BITS) as usize, word & ((1 << SEQ_BITS) - 1))
}

fn key_of(devices: &[Option<Device>], word: u64) -> Option<Key> {
    let (slot, seq) = split(word);
    Some(devices.get(slot)?.as_ref()?.ring.at(seq)?.key())
}

impl Index {
    pub fn new() -> Index {
        Index { tables: Tables::new(), devices: Vec::new(), claims: HashSet::new(), limit: u64::MAX }
    }

    /// Bytes of memory that the index may take. What is beyond that goes, as much as there is time
    /// for: to be called again.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        if self.bytes() <= limit {
            return;
        }
        for n in 0..FOR_LIMIT {
            if n % CHUNK == 0 && self.bytes_at_least() <= limit || self.pop_of_largest().is_none() {
                break;
            }
        }
        if self.bytes_at_least() <= limit {
            self.shrink();
        }
    }

    /// Gives the tables' memory back that they have no use for.
    fn shrink(&mut self) {
        let devices = &self.devices;
        self.tables.shrink(|w| key_of(devices, w).map_or(0, |k| hash(&k)));
    }

    /// Whether one more would break the limit.
    pub fn is_full_for(&self, key: &Key) -> bool {
        self.bytes() + self.tables.growth(hash(key)) >= self.limit
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.tables.bytes() + self.ring_bytes()
    }

    /// Bytes that it would take with tables no larger than they must be.
    fn bytes_at_least(&self) -> u64 {
        self.tables.bytes_at_least() + self.ring_bytes()
    }

    fn ring_bytes(&self) -> u64 {
        self.devices.iter().flatten().map(|d| d.ring.bytes()).sum()
    }

    /// A slot for a device; None if there are as many as there can be.
    pub fn add_device(&mut self, ashift: u32) -> Option<usize> {
        let free = self.devices.iter().position(Option::is_none).unwrap_or(self.devices.len());
        if free >= MAX_DEVICES {
            return None;
        }
        let device = Some(Device { ring: Ring::new(), ashift, amounts: Amounts::default() });
        match self.devices.get_mut(free) {
            Some(place) => *place = device,
            None => self.devices.push(device),
        }
        Some(free)
    }

    /// Forgets some of a device's blocks; whether it has more. Not all at once: it may have
    /// millions, and others wait for the index.
    pub fn forget_some(&mut self, slot: usize) -> bool {
        (0..FOR_DEVICE).all(|_| self.pop(slot).is_some())
    }

    /// Gives the slot of a device back of which all is forgotten.
    pub fn remove_device(&mut self, slot: usize) {
        if let Some(place) = self.devices.get_mut(slot) {
            *place = None;
        }
        // Which takes time by what is left in it.
        if self.tables.bytes_at_least() < self.tables.bytes() / 4 {
            self.shrink();
        }
    }

    pub fn amounts(&self, slot: usize) -> Amounts {
        self.devices.get(slot).and_then(Option::as_ref).map_or_else(Amounts::default, |d| d.amounts)
    }

    pub fn total(&self) -> Amounts {
        let mut sum = Amounts::default();
        self.devices.iter().flatten().for_each(|d| sum.add(&d.amounts));
        sum
    }

    fn find(&self, key: &Key) -> Option<u64> {
        self.tables.find(hash(key), |w| key_of(&self.devices, w).as_ref() == Some(key))
    }

    /// Where a block lies.
    pub fn get(&self, key: &Key) -> Option<(usize, Cached)> {
        let (slot, seq) = split(self.find(key)?);
        Some((slot, self.devices.get(slot)?.as_ref()?.ring.at(seq)?.cached()))
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.find(key).is_some()
    }

    /// Says that a block is about to be written to a device. Not if it is on one, or somebody else
    /// is about to.
    pub fn claim(&mut self, key: &Key) -> bool {
        !self.contains(key) && self.claims.insert(*key)
    }

    /// The writing is over, one way or the other.
    pub fn unclaim(&mut self, key: &Key) {
        self.claims.remove(key);
    }

    /// Adds a device's newest block, if there is room or can be made.
    pub fn push(&mut self, slot: usize, c: &Cached) {
        self.insert(slot, c, true);
    }

    /// Adds one that is older than all that are known of the device.
    pub fn push_older(&mut self, slot: usize, c: &Cached) -> bool {
        self.insert(slot, c, false)
    }

    fn insert(&mut self, slot: usize, c: &Cached, newest: bool) -> bool {
        if self.contains(&c.key) {
            return false;
        }
        for _ in 0..FOR_ONE {
            if !newest || !self.is_full_for(&c.key) || self.pop_of_largest().is_none() {
                break;
            }
        }
        if self.is_full_for(&c.key) {
            return false;
        }
        let Some(device) = self.devices.get_mut(slot).and_then(Option::as_mut) else { return false };
        let entry = Entry::new(c);
        let seq = if newest { device.ring.push_back(entry) } else { device.ring.push_front(entry) };
        let asize = device.asize(c.psize);
        device.amounts.change(c, asize, |a, b| a + b);
        let devices = &self.devices;
        self.tables.insert(hash(&c.key), word(slot, seq), |w| key_of(devices, w).map_or(0, |k| hash(&k)));
        true
    }

    /// Takes a device's oldest block away.
    fn pop(&mut self, slot: usize) -> Option<Cached> {
        let (seq, entry) = self.devices.get_mut(slot)?.as_mut()?.ring.pop_front()?;
        let cached = entry.cached();
        if !entry.is_dead() {
            self.tables.remove(hash(&cached.key), word(slot, seq));
            self.uncount(slot, &cached);
        }
        Some(cached)
    }

    /// Takes the oldest block of the device that has most away.
    fn pop_of_largest(&mut self) -> Option<Cached> {
        let sizes = self.devices.iter().map(|d| d.as_ref().map_or(0, |d| d.ring.bytes()));
        // Of equals always the same one, or none of them would lose a whole chunk.
        let (slot, _) = sizes.enumerate().max_by_key(|(_, bytes)| *bytes)?;
        self.pop(slot)
    }

    fn uncount(&mut self, slot: usize, c: &Cached) {
        if let Some(device) = self.devices.get_mut(slot).and_then(Option::as_mut) {
            let asize = device.asize(c.psize);
            device.amounts.change(c, asize, u64::saturating_sub);
        }
    }

    /// Forgets the oldest blocks of a device as long as they lie in `from..to`, which is about to
    /// be written, and names them.
    pub fn evict(&mut self, slot: usize, from: u64, to: u64, gone: &mut Vec<Key>) {
        loop {
            let device = self.devices.get(slot).and_then(Option::as_ref);
            let front = device.and_then(|d| d.ring.front()).map(|e| e.cached().daddr);
            if !front.is_some_and(|daddr| (from..to).contains(&daddr)) {
                return;
            }
            gone.extend(self.pop(slot).map(|c| c.key));
        }
    }

    /// Forgets a block: it was freed, or is not what it should be.
    pub fn forget(&mut self, key: &Key) {
        let Some(found) = self.find(key) else { return };
        self.tables.remove(hash(key), found);
        let (slot, seq) = split(found);
        let ring = self.devices.get_mut(slot).and_then(Option::as_mut).map(|d| &mut d.ring);
        let Some(entry) = ring.and_then(|r| r.at_mut(seq)) else { return };
        let cached = entry.cached();
        entry.daddr |= u64::from(Kind::DEAD) << KIND_SHIFT;
        self.uncount(slot, &cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(n: u64) -> Cached {
        let key = Key { vdev: 1, offset: n << 12, birth: n + 7 };
        Cached { key, daddr: n << 12, psize: 4096, lsize: 8192, kind: Kind(Kind::MFU) }
    }

    #[test]
    fn blocks_come_and_go_in_order() {
        let mut index = Index::new();
        let slot = index.add_device(12).unwrap();
        for n in 1000..3000 {
            index.push(slot, &cached(n));
        }
        for n in (0..1000).rev() {
            assert!(index.push_older(slot, &cached(n)));
        }
        assert!((0..3000).all(|n| index.get(&cached(n).key) == Some((slot, cached(n)))));
        assert_eq!((index.amounts(slot).blocks, index.total().mfu), (3000, 3000 << 12));
        index.forget(&cached(5).key);
        assert!(!index.contains(&cached(5).key));
        let mut gone = Vec::new();
        for _ in 0..2 {
            index.evict(slot, 0, 700 << 12, &mut gone);
            assert_eq!(gone.len(), 700);
        }
        assert!(!index.contains(&cached(699).key) && index.contains(&cached(700).key));
        assert_eq!(index.total().blocks, 2300);
        while index.forget_some(slot) {}
        index.remove_device(slot);
        assert_eq!((index.total(), index.bytes()), (Amounts::default(), 0));
    }

    #[test]
    fn a_block_takes_at_most_64_bytes_and_all_stay_under_the_limit() {
        let mut index = Index::new();
        let slot = index.add_device(9).unwrap();
        for n in 0..1 << 18 {
            index.push(slot, &cached(n));
            assert!(n < 4096 || index.bytes() <= 64 * (n + 1), "{} bytes for {n} blocks", index.bytes());
        }
        let limit = index.bytes();
        index.set_limit(limit);
        for n in 1 << 18..1 << 19 {
            index.push(slot, &cached(n));
            assert!(index.bytes() <= limit + CHUNK * 32);
        }
        assert!(index.contains(&cached((1 << 19) - 1).key) && !index.contains(&cached(0).key));
        assert!((0..2 * CHUNK).any(|n| !index.push_older(slot, &cached(n))), "older ones push nothing out");
    }

    /// A device that comes when the index is full of another's blocks gets its part of it.
    #[test]
    fn a_full_index_has_room_for_a_new_device() {
        let mut index = Index::new();
        let (old, new) = (index.add_device(9).unwrap(), index.add_device(9).unwrap());
        let all = 1 << 16;
        (0..all).for_each(|n| index.push(old, &cached(n)));
        index.set_limit(index.bytes());
        (all..2 * all).for_each(|n| index.push(new, &cached(n)));
        let blocks = [old, new].map(|slot| index.amounts(slot).blocks);
        assert!(blocks.iter().all(|n| *n > all / 3), "{blocks:?}");
        assert!(index.contains(&cached(2 * all - 1).key) && !index.contains(&cached(0).key));
    }

    /// A limit that is lowered is kept soon, and what is new is taken again then.
    #[test]
    fn a_lower_limit_is_come_down_to() {
        let mut index = Index::new();
        let slot = index.add_device(9).unwrap();
        let all = 1 << 18;
        (0..all).for_each(|n| index.push(slot, &cached(n)));
        let limit = index.bytes() / 5;
        let mut times = 0;
        while index.bytes() > limit {
            let before = index.total().blocks;
            index.set_limit(limit);
            times += 1;
            assert!(before - index.total().blocks <= FOR_LIMIT && times < 100, "{} bytes", index.bytes());
        }
        assert!(times > 1 && index.bytes() > limit / 3, "{} of {limit} bytes", index.bytes());
        (all..all + 1000).for_each(|n| index.push(slot, &cached(n)));
        assert!(index.contains(&cached(all + 999).key) && index.contains(&cached(all - 1).key));
        assert!(index.bytes() <= limit + CHUNK * 32);
    }

    /// Others are served while a device leaves, and nobody finds what it had.
    #[test]
    fn a_device_is_forgotten_step_by_step() {
        let mut index = Index::new();
        let (leaves, stays) = (index.add_device(9).unwrap(), index.add_device(9).unwrap());
        let all = 40_000;
        (0..all).for_each(|n| index.push(leaves, &cached(n)));
        let mut steps = 0;
        while index.forget_some(leaves) {
            steps += 1;
            assert!(!index.contains(&cached(steps * FOR_DEVICE - 1).key));
            index.forget(&cached(all - steps).key);
            index.push(stays, &cached(all + steps));
        }
        assert!(steps == all / FOR_DEVICE && index.amounts(leaves).blocks == 0);
        let before = index.bytes();
        index.remove_device(leaves);
        assert!(index.bytes() < before / 10, "{} of {before} bytes", index.bytes());
        assert!((1..=steps).all(|n| index.get(&cached(all + n).key).is_some_and(|(slot, _)| slot == stays)));
        assert_eq!(index.add_device(9), Some(leaves));
    }

    #[test]
    fn a_block_is_claimed_once() {
        let mut index = Index::new();
        let slot = index.add_device(9).unwrap();
        assert!(index.claim(&cached(1).key) && !index.claim(&cached(1).key));
        index.unclaim(&cached(1).key);
        index.push(slot, &cached(1));
        assert!(!index.claim(&cached(1).key));
    }
}
