//! Which blocks were read from the pool's disks before: what is worth a place on a full device.
//!
//! What is written to a full device pushes out what lies there. A scan reads much and each block
//! once; if that is fed, what is used has to be read from the disks again. So when a block is read
//! from the disks it is noted, and one that was noted before counts as frequent, like a hit of one
//! of the ARC's ghosts. These reach back as far as memory does, this as far as the cache devices
//! do. Without `l2arc_feed_recent` a full device is fed nothing that is merely recent.
//!
//! What is noted are bits (a Bloom filter) in two generations: when as many blocks were noted as
//! the devices hold, the older one is forgotten. A block for which bits of others stand, one in
//! some hundreds, counts as seen; nothing depends on it. It takes four bytes of memory for each
//! block that the devices hold.

use crate::arc::Key;

/// Bits of a generation for each of the blocks that the devices hold, and bits that a block sets.
const BITS: u64 = 16;
const HASHES: u64 = 4;
/// Blocks of a generation at least.
const LEAST: u64 = 1 << 13;

#[derive(Default)]
pub struct Seen {
    now: Vec<u64>,
    before: Vec<u64>,
    noted: u64,
}

impl Seen {
    /// Notes a block; whether it was noted before. The devices hold `blocks` blocks.
    pub fn note(&mut self, key: &Key, blocks: u64) -> bool {
        let room = self.now.len() as u64 * 64 / BITS;
        if self.noted >= room {
            let words = blocks.max(LEAST) * BITS / 64;
            self.before = std::mem::replace(&mut self.now, vec![0; words as usize]);
            self.noted = 0;
        }
        let (first, step) = hash(key);
        let places = (0..HASHES).map(|i| first.wrapping_add(i.wrapping_mul(step)));
        let known = |bits: &[u64]| !bits.is_empty() && places.clone().all(|p| get(bits, p));
        if known(&self.now) {
            return true;
        }
        let known = known(&self.before);
        places.for_each(|p| set(&mut self.now, p));
        self.noted += 1;
        known
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        (self.now.len() + self.before.len()) as u64 * 8
    }
}

// Not a random hash: a simulated world must run the same way twice.
fn hash(key: &Key) -> (u64, u64) {
    let mixed = (key.offset >> 9) ^ key.birth.rotate_left(40) ^ u64::from(key.vdev).rotate_left(56);
    let hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (hash ^ hash >> 32, hash.rotate_left(32) | 1)
}

fn place(bits: &[u64], hash: u64) -> (usize, u64) {
    let at = hash as usize % (bits.len() * 64);
    (at / 64, 1 << (at % 64))
}

fn get(bits: &[u64], hash: u64) -> bool {
    let (word, bit) = place(bits, hash);
    bits.get(word).is_some_and(|w| w & bit != 0)
}

fn set(bits: &mut [u64], hash: u64) {
    let (word, bit) = place(bits, hash);
    if let Some(w) = bits.get_mut(word) {
        *w |= bit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key { vdev: 0, offset: n << 14, birth: 100 + n / 1000 }
    }

    #[test]
    fn what_comes_again_is_known_and_what_comes_once_is_not() {
        let (mut seen, blocks) = (Seen::default(), 20_000);
        let again = (0..blocks).filter(|n| seen.note(&key(*n), blocks)).count();
        assert!(again < 100, "{again} of {blocks} were taken for others");
        assert!((0..blocks).all(|n| seen.note(&key(n), blocks)));
        // A scan of ten times as many is not known, and by then the others are forgotten.
        let scanned = (blocks..11 * blocks).filter(|n| seen.note(&key(*n), blocks)).count() as u64;
        assert!(scanned < blocks / 10, "{scanned}");
        let left = (0..blocks).filter(|n| seen.note(&key(*n), blocks)).count() as u64;
        assert!(left < blocks / 10, "{left}");
        assert!(seen.bytes() <= 5 * blocks, "{} bytes", seen.bytes());
    }
}
