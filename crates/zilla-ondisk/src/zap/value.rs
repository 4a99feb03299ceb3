//! Keys and values as a leaf stores them: integers of one size, most significant byte first.

use smallvec::SmallVec;

use super::{ZAP_FLAG_PRE_HASHED_KEY, ZAP_FLAG_UINT64_KEY, crc64, hash_bits};

/// A name, or an array of numbers that stands for one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZapKey {
    /// As stored: with the NUL of a string.
    stored: SmallVec<[u8; 64]>,
    intlen: u8,
}

impl ZapKey {
    /// A string's bytes, without NUL.
    pub fn string(name: &[u8]) -> ZapKey {
        let mut stored = SmallVec::with_capacity(name.len() + 1);
        stored.extend_from_slice(name);
        stored.push(0);
        ZapKey { stored, intlen: 1 }
    }

    pub fn u64s(key: &[u64]) -> ZapKey {
        ZapKey { stored: key.iter().flat_map(|w| w.to_be_bytes()).collect(), intlen: 8 }
    }

    pub fn stored(&self) -> &[u8] {
        &self.stored
    }

    pub const fn intlen(&self) -> u8 {
        self.intlen
    }

    /// Integers in the key, a string's NUL included.
    pub fn numints(&self) -> usize {
        self.stored.len() / usize::from(self.intlen)
    }

    /// The hash of this key in a ZAP of this salt and these flags. For a ZAP that normalizes, make
    /// the key of the normal form to hash it, and store the key of the name itself.
    pub fn hash(&self, salt: u64, flags: u64) -> u64 {
        let first = self.stored.first_chunk().map(|w| u64::from_be_bytes(*w));
        let h = if flags & ZAP_FLAG_PRE_HASHED_KEY != 0 {
            first.unwrap_or(0)
        } else if flags & ZAP_FLAG_UINT64_KEY != 0 {
            // Each word's low byte comes first.
            crc64(salt, self.stored.as_chunks::<8>().0.iter().flat_map(|w| w.iter().rev().copied()))
        } else {
            let name = self.stored.split_last().map_or(&[][..], |(_, name)| name);
            crc64(salt, name.iter().copied())
        };
        h & !((1 << (64 - hash_bits(flags))) - 1)
    }
}

/// A value: integers of 1, 2, 4 or 8 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZapValue {
    /// Big endian, as stored.
    stored: SmallVec<[u8; 16]>,
    intlen: u8,
}

impl ZapValue {
    pub fn u64(v: u64) -> ZapValue {
        ZapValue { stored: SmallVec::from_slice(&v.to_be_bytes()), intlen: 8 }
    }

    pub fn u64s(v: &[u64]) -> ZapValue {
        ZapValue { stored: v.iter().flat_map(|x| x.to_be_bytes()).collect(), intlen: 8 }
    }

    pub fn u32s(v: &[u32]) -> ZapValue {
        ZapValue { stored: v.iter().flat_map(|x| x.to_be_bytes()).collect(), intlen: 4 }
    }

    pub fn u16s(v: &[u16]) -> ZapValue {
        ZapValue { stored: v.iter().flat_map(|x| x.to_be_bytes()).collect(), intlen: 2 }
    }

    /// Bytes; a string is stored with its NUL.
    pub fn bytes(v: &[u8]) -> ZapValue {
        ZapValue { stored: SmallVec::from_slice(v), intlen: 1 }
    }

    /// A string, its NUL added.
    pub fn string(v: &str) -> ZapValue {
        let mut stored = SmallVec::from_slice(v.as_bytes());
        stored.push(0);
        ZapValue { stored, intlen: 1 }
    }

    /// From stored bytes; `None` unless `intlen` is 1, 2, 4 or 8 and divides them.
    pub fn from_stored(stored: &[u8], intlen: u8) -> Option<ZapValue> {
        let ok = matches!(intlen, 1 | 2 | 4 | 8) && stored.len().is_multiple_of(usize::from(intlen));
        ok.then(|| ZapValue { stored: SmallVec::from_slice(stored), intlen })
    }

    pub fn stored(&self) -> &[u8] {
        &self.stored
    }

    pub const fn intlen(&self) -> u8 {
        self.intlen
    }

    pub fn numints(&self) -> usize {
        self.stored.len() / usize::from(self.intlen)
    }

    /// The integers, widened.
    pub fn ints(&self) -> impl Iterator<Item = u64> + '_ {
        self.stored
            .chunks_exact(usize::from(self.intlen))
            .map(|c| c.iter().fold(0, |v, b| (v << 8) | u64::from(*b)))
    }

    /// The value when it is one number of 64 bits.
    pub fn as_u64(&self) -> Option<u64> {
        match (self.intlen, self.stored.as_chunks::<8>()) {
            (8, ([one], [])) => Some(u64::from_be_bytes(*one)),
            _ => None,
        }
    }

    pub fn as_u64s(&self) -> Option<Vec<u64>> {
        (self.intlen == 8).then(|| self.ints().collect())
    }

    pub fn as_bytes(&self) -> Option<&[u8]> {
        (self.intlen == 1).then_some(&self.stored[..])
    }

    /// The text of a string value: up to its first NUL.
    pub fn as_str(&self) -> Option<&str> {
        let raw = self.as_bytes()?;
        let end = raw.iter().position(|b| *b == 0).unwrap_or(raw.len());
        std::str::from_utf8(raw.get(..end)?).ok()
    }
}
