//! Reading a leaf of a fat ZAP.
//!
//! ```text
//! 0        48                     48 + 2 * 2^(bs-5)
//! | header | hash table of u16   | chunks of 24 bytes ... |
//! ```
//!
//! A chunk is free, an entry, or 21 bytes of an array. Entries hang in chains from the hash table,
//! arrays (names and values) in chains from their entries, free chunks from the header; 0xffff ends
//! each. Whatever the links say, no walk is longer than there are chunks.

use smallvec::SmallVec;

use super::value::{ZapKey, ZapValue};
use super::{ZAP_MAXVALUELEN, ZBT_LEAF, block_shift};
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

pub const ZAP_LEAF_MAGIC: u32 = 0x02AB_1EAF;
pub const CHUNK_SIZE: usize = 24;
pub const ARRAY_BYTES: usize = CHUNK_SIZE - 3;
pub const CHAIN_END: u16 = 0xffff;
/// Fewer free chunks than this, and the table should grow before the leaf is full.
pub const LOW_WATER: u16 = 20;
/// Chains are sorted by collision differentiator.
pub const ZLF_ENTRIES_CDSORTED: u8 = 1;

pub(super) const CHUNK_FREE: u8 = 253;
pub(super) const CHUNK_ENTRY: u8 = 252;
pub(super) const CHUNK_ARRAY: u8 = 251;
pub(super) const HEADER: usize = 48;
pub(super) const S: &str = "zap_leaf";

/// Entries of the hash table of a leaf of 2^`bs` bytes.
pub const fn hash_entries(bs: u32) -> usize {
    1 << bs.saturating_sub(5)
}

/// Chunks of a leaf of 2^`bs` bytes.
pub const fn num_chunks(bs: u32) -> usize {
    (((1usize << bs) - 2 * hash_entries(bs)) / CHUNK_SIZE).saturating_sub(2)
}

/// Chunks that an array of bytes takes.
pub const fn array_chunks(bytes: usize) -> usize {
    bytes.div_ceil(ARRAY_BYTES)
}

/// Chunks that an entry takes. One that needs more than [`num_chunks`] never fits, however a leaf
/// is split.
pub fn chunks_needed(key: &ZapKey, value: &ZapValue) -> usize {
    1 + array_chunks(key.stored().len()) + array_chunks(value.stored().len())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafHeader {
    /// The upper `prefix_len` bits of every hash in here.
    pub prefix: u64,
    pub nfree: u16,
    pub nentries: u16,
    pub prefix_len: u16,
    pub freelist: u16,
    pub flags: u8,
}

/// One entry, as its chunk has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafEntry {
    /// Which chunk it is.
    pub chunk: u16,
    pub next: u16,
    pub name_chunk: u16,
    pub name_numints: u16,
    pub value_chunk: u16,
    pub value_numints: u16,
    pub value_intlen: u8,
    pub cd: u32,
    pub hash: u64,
}

/// A leaf's block, checked to be one.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    block: &'a [u8],
    order: ByteOrder,
    bs: u32,
}

impl<'a> Leaf<'a> {
    pub fn new(block: &'a [u8], order: ByteOrder) -> Result<Leaf<'a>> {
        let bs = block_shift(S, block.len())?;
        let leaf = Leaf { block, order, bs };
        let kind = u64_at(block, 0, order).unwrap_or(0);
        if kind != ZBT_LEAF {
            let problem = Problem::Magic { found: kind, wanted: ZBT_LEAF };
            return Err(FormatError::new(S, "lh_block_type", 0, problem));
        }
        let magic = u32_at(block, 24, order).unwrap_or(0);
        if magic != ZAP_LEAF_MAGIC {
            let problem = Problem::Magic { found: magic.into(), wanted: ZAP_LEAF_MAGIC.into() };
            return Err(FormatError::new(S, "lh_magic", 24, problem));
        }
        let LeafHeader { prefix, prefix_len, .. } = leaf.header();
        if prefix_len > 48 {
            return Err(FormatError::impossible(S, "lh_prefix_len", 32, prefix_len.into(), "over 48"));
        }
        if prefix >> prefix_len != 0 {
            return Err(FormatError::impossible(S, "lh_prefix", 16, prefix, "longer than its length"));
        }
        Ok(leaf)
    }

    /// For a block that was checked before.
    pub(super) const fn trusted(block: &'a [u8], bs: u32) -> Leaf<'a> {
        Leaf { block, order: ByteOrder::NATIVE, bs }
    }

    pub fn header(&self) -> LeafHeader {
        let u16 = |at| u16_at(self.block, at, self.order).unwrap_or(0);
        LeafHeader {
            prefix: u64_at(self.block, 16, self.order).unwrap_or(0),
            nfree: u16(28),
            nentries: u16(30),
            prefix_len: u16(32),
            freelist: u16(34),
            flags: self.block.get(36).copied().unwrap_or(0),
        }
    }

    pub const fn num_chunks(&self) -> usize {
        num_chunks(self.bs)
    }

    /// Refuses a leaf that is not where the pointer table, indexed by `table_shift` bits of a hash,
    /// says that the hash's entries are. Every
    /// leaf that passes is another one, so a walk over them ends.
    pub fn check_place(&self, hash: u64, table_shift: u64) -> Result<()> {
        let h = self.header();
        if u64::from(h.prefix_len) > table_shift || !self.covers(hash) {
            let why = "not what the pointer table says";
            return Err(FormatError::impossible(S, "lh_prefix", 16, h.prefix, why));
        }
        Ok(())
    }

    /// Does a hash belong into this leaf?
    pub fn covers(&self, hash: u64) -> bool {
        let h = self.header();
        h.prefix_len == 0 || hash.checked_shr(64 - u32::from(h.prefix_len)) == Some(h.prefix)
    }

    /// The entry of the hash table that a hash belongs to.
    pub(super) fn bucket(&self, hash: u64) -> usize {
        let bits = self.bs - 5;
        let shift = 64u32.saturating_sub(bits + u32::from(self.header().prefix_len));
        (hash >> shift) as usize & (hash_entries(self.bs) - 1)
    }

    pub(super) const fn bucket_offset(bucket: usize) -> usize {
        HEADER + 2 * bucket
    }

    fn chain_head(&self, bucket: usize) -> u16 {
        u16_at(self.block, Self::bucket_offset(bucket), self.order).unwrap_or(CHAIN_END)
    }

    /// Where a chunk begins in the block, if there is such a chunk.
    pub(super) fn chunk_offset(&self, chunk: u16) -> Result<usize> {
        let at = HEADER + 2 * hash_entries(self.bs) + usize::from(chunk) * CHUNK_SIZE;
        if usize::from(chunk) < self.num_chunks() {
            Ok(at)
        } else {
            Err(FormatError::impossible(S, "chunk", at, chunk.into(), "no such chunk"))
        }
    }

    pub(super) fn chunk(&self, chunk: u16, kind: u8) -> Result<(usize, [u8; CHUNK_SIZE])> {
        let at = self.chunk_offset(chunk)?;
        let raw: [u8; CHUNK_SIZE] =
            array_at(self.block, at).ok_or(FormatError::new(S, "chunk", at, Problem::Missing))?;
        let [found, ..] = raw;
        if found != kind {
            return Err(FormatError::impossible(S, "chunk type", at, found.into(), "another kind was due"));
        }
        Ok((at, raw))
    }

    fn link(&self, raw: &[u8; CHUNK_SIZE]) -> u16 {
        let [.., a, b] = *raw;
        self.order.u16([a, b])
    }

    /// The entry in a chunk.
    pub fn entry(&self, chunk: u16) -> Result<LeafEntry> {
        let (at, raw) = self.chunk(chunk, CHUNK_ENTRY)?;
        let u16 = |off| u16_at(&raw, off, self.order).unwrap_or(0);
        let [_, value_intlen, ..] = raw;
        let e = LeafEntry {
            chunk,
            value_intlen,
            next: u16(2),
            name_chunk: u16(4),
            name_numints: u16(6),
            value_chunk: u16(8),
            value_numints: u16(10),
            cd: u32_at(&raw, 12, self.order).unwrap_or(0),
            hash: u64_at(&raw, 16, self.order).unwrap_or(0),
        };
        if !matches!(value_intlen, 1 | 2 | 4 | 8) {
            return Err(FormatError::impossible(
                S,
                "le_value_intlen",
                at + 1,
                value_intlen.into(),
                "1, 2, 4, 8",
            ));
        }
        if usize::from(e.value_numints) * usize::from(value_intlen) > ZAP_MAXVALUELEN {
            let n = e.value_numints.into();
            return Err(FormatError::impossible(S, "le_value_numints", at + 10, n, "over 8K"));
        }
        Ok(e)
    }

    /// Gives each piece of an array's `len` bytes to `f` until it says `false`; says whether it
    /// never did.
    fn pieces(&self, mut chunk: u16, mut len: usize, mut f: impl FnMut(&[u8]) -> bool) -> Result<bool> {
        // `len` shrinks with every chunk, so a loop of links ends too.
        while len > 0 {
            let (_, raw) = self.chunk(chunk, CHUNK_ARRAY)?;
            let n = len.min(ARRAY_BYTES);
            if !f(raw.get(1..1 + n).unwrap_or_default()) {
                return Ok(false);
            }
            len -= n;
            chunk = self.link(&raw);
        }
        Ok(true)
    }

    fn collect(&self, chunk: u16, len: usize) -> Result<SmallVec<[u8; 64]>> {
        let mut out = SmallVec::new();
        let most = self.num_chunks() * ARRAY_BYTES;
        if len > most {
            let problem = Problem::Truncated { need: len, have: most };
            return Err(FormatError::new(S, "array", 0, problem));
        }
        self.pieces(chunk, len, |p| {
            out.extend_from_slice(p);
            true
        })?;
        Ok(out)
    }

    /// The name of an entry, without its NUL.
    pub fn name(&self, e: &LeafEntry) -> Result<SmallVec<[u8; 64]>> {
        let mut out = self.collect(e.name_chunk, usize::from(e.name_numints))?;
        if out.last() == Some(&0) {
            out.pop();
        }
        Ok(out)
    }

    /// The key of an entry in a ZAP of numbers.
    pub fn name_u64s(&self, e: &LeafEntry) -> Result<Vec<u64>> {
        let raw = self.collect(e.name_chunk, usize::from(e.name_numints) * 8)?;
        Ok(raw.as_chunks::<8>().0.iter().map(|w| u64::from_be_bytes(*w)).collect())
    }

    pub fn value(&self, e: &LeafEntry) -> Result<ZapValue> {
        let raw = self.collect(e.value_chunk, usize::from(e.value_numints) * usize::from(e.value_intlen))?;
        ZapValue::from_stored(&raw, e.value_intlen).ok_or(FormatError::new(
            S,
            "le_value_intlen",
            0,
            Problem::WrongType,
        ))
    }

    /// The value of an entry that is one number of 64 bits, as most are.
    pub fn value_u64(&self, e: &LeafEntry) -> Result<u64> {
        if (e.value_intlen, e.value_numints) != (8, 1) {
            return Err(FormatError::new(S, "le_value_numints", 0, Problem::WrongType));
        }
        let (at, raw) = self.chunk(e.value_chunk, CHUNK_ARRAY)?;
        array_at(&raw, 1).map(u64::from_be_bytes).ok_or(FormatError::new(S, "value", at, Problem::Missing))
    }

    /// The entries of the chain a hash belongs to, in the chain's order.
    pub fn chain(&self, hash: u64) -> impl Iterator<Item = Result<LeafEntry>> + use<'a> {
        self.chain_of(self.bucket(hash))
    }

    fn chain_of(&self, bucket: usize) -> impl Iterator<Item = Result<LeafEntry>> + use<'a> {
        let this = *self;
        let mut next = this.chain_head(bucket);
        let mut left = this.num_chunks();
        std::iter::from_fn(move || {
            if next == CHAIN_END {
                return None;
            }
            if left == 0 {
                next = CHAIN_END;
                let why = "the chain has no end";
                return Some(Err(FormatError::impossible(S, "le_next", 0, bucket as u64, why)));
            }
            left -= 1;
            let e = this.entry(next);
            next = e.as_ref().map_or(CHAIN_END, |e| e.next);
            Some(e)
        })
    }

    /// Is this the key of the entry, byte for byte?
    pub fn name_is(&self, e: &LeafEntry, key: &ZapKey) -> Result<bool> {
        if usize::from(e.name_numints) != key.numints() {
            return Ok(false);
        }
        let mut want = key.stored();
        self.pieces(e.name_chunk, want.len(), |p| match want.strip_prefix(p) {
            Some(rest) => {
                want = rest;
                true
            }
            None => false,
        })
    }

    /// Finds the entry of a key, `hash` being the key's.
    pub fn lookup(&self, hash: u64, key: &ZapKey) -> Result<Option<LeafEntry>> {
        for e in self.chain(hash) {
            let e = e?;
            if e.hash == hash && self.name_is(&e, key)? {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// Finds an entry by a test of the caller's, as normalized lookups need; the lowest cd that
    /// passes.
    pub fn lookup_by(&self, hash: u64, mut test: impl FnMut(&[u8]) -> bool) -> Result<Option<LeafEntry>> {
        let mut best: Option<LeafEntry> = None;
        for e in self.chain(hash) {
            let e = e?;
            if e.hash == hash && best.is_none_or(|b| e.cd < b.cd) && test(&self.name(&e)?) {
                best = Some(e);
            }
        }
        Ok(best)
    }

    /// The entry of the least (hash, cd) that is not below the given: where a cursor goes on.
    pub fn at_or_after(&self, hash: u64, cd: u32) -> Result<Option<LeafEntry>> {
        for bucket in self.bucket(hash)..hash_entries(self.bs) {
            let mut best: Option<LeafEntry> = None;
            for e in self.chain_of(bucket) {
                let e = e?;
                if (e.hash, e.cd) >= (hash, cd) && best.is_none_or(|b| (e.hash, e.cd) < (b.hash, b.cd)) {
                    best = Some(e);
                }
            }
            // Buckets are in the order of hashes: nothing in a later one is less.
            if best.is_some() {
                return Ok(best);
            }
        }
        Ok(None)
    }

    /// Every entry, in the order of chunks.
    pub fn iter(&self) -> impl Iterator<Item = Result<LeafEntry>> + use<'a> {
        let this = *self;
        (0..this.num_chunks() as u16).filter_map(move |c| {
            let at = this.chunk_offset(c).ok()?;
            (this.block.get(at) == Some(&CHUNK_ENTRY)).then(|| this.entry(c))
        })
    }

    /// The lowest collision differentiator that no entry of this hash has.
    pub fn unused_cd(&self, hash: u64) -> Result<u32> {
        let mut used: SmallVec<[u32; 8]> = SmallVec::new();
        for e in self.chain(hash) {
            let e = e?;
            if e.hash == hash {
                used.push(e.cd);
            }
        }
        used.sort_unstable();
        used.dedup();
        let gap = used.iter().zip(0u32..).find(|(have, want)| *have != want);
        Ok(gap.map_or(used.len() as u32, |(_, want)| want))
    }

    /// Checks that every chunk is reached exactly once and that the header's counts are right. A
    /// leaf that passes stays in order under every change made through [`super::LeafMut`].
    pub fn verify(&self) -> Result<()> {
        let h = self.header();
        let mut seen = vec![false; self.num_chunks()];
        let mut take = |chunk: u16| match seen.get_mut(usize::from(chunk)) {
            Some(s) if !*s => {
                *s = true;
                Ok(())
            }
            _ => Err(FormatError::impossible(S, "chunk", 0, chunk.into(), "reached twice, or not there")),
        };
        let (mut entries, mut free) = (0u16, 0u16);
        for bucket in 0..hash_entries(self.bs) {
            for e in self.chain_of(bucket) {
                let e = e?;
                take(e.chunk)?;
                if !self.covers(e.hash) || self.bucket(e.hash) != bucket {
                    return Err(FormatError::impossible(S, "le_hash", 0, e.hash, "in another's place"));
                }
                entries = entries.saturating_add(1);
                for mut chunk in [e.name_chunk, e.value_chunk] {
                    while chunk != CHAIN_END {
                        take(chunk)?;
                        let (_, raw) = self.chunk(chunk, CHUNK_ARRAY)?;
                        chunk = self.link(&raw);
                    }
                }
                self.value(&e)?;
                self.name(&e)?;
            }
        }
        let mut chunk = h.freelist;
        while chunk != CHAIN_END {
            take(chunk)?;
            let (_, raw) = self.chunk(chunk, CHUNK_FREE)?;
            chunk = self.link(&raw);
            free = free.saturating_add(1);
        }
        if free != h.nfree {
            return Err(FormatError::impossible(
                S,
                "lh_nfree",
                28,
                h.nfree.into(),
                "the list has another length",
            ));
        }
        if entries != h.nentries {
            return Err(FormatError::impossible(
                S,
                "lh_nentries",
                30,
                h.nentries.into(),
                "the chains have others",
            ));
        }
        match seen.iter().position(|s| !s) {
            Some(lost) => Err(FormatError::impossible(S, "chunk", 0, lost as u64, "lost")),
            None => Ok(()),
        }
    }
}
