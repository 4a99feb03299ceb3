//! Changing a leaf of a fat ZAP, in place, in the machine's byte order.
//!
//! An operation that fails for want of room leaves the leaf as it was. One that finds damage may
//! leave it half changed: the caller throws the buffer away, as it does for any block that turns
//! out to be damaged.

use super::leaf::{
    CHAIN_END, CHUNK_ARRAY, CHUNK_ENTRY, CHUNK_FREE, CHUNK_SIZE, HEADER, Leaf, LeafEntry, S, ZAP_LEAF_MAGIC,
    ZLF_ENTRIES_CDSORTED, array_chunks, chunks_needed, hash_entries,
};
use super::value::{ZapKey, ZapValue};
use super::{ZBT_LEAF, block_shift};
use crate::bytes::{put_at, u16_at};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

const NFREE: usize = 28;
const NENTRIES: usize = 30;
const FREELIST: usize = 34;
const LINK: usize = CHUNK_SIZE - 2;

/// A leaf's block, to be changed.
#[derive(Debug)]
pub struct LeafMut<'a> {
    block: &'a mut [u8],
    bs: u32,
}

impl<'a> LeafMut<'a> {
    /// The block is in the machine's order; see [`super::to_native`].
    pub fn new(block: &'a mut [u8]) -> Result<LeafMut<'a>> {
        Leaf::new(block, ByteOrder::NATIVE)?;
        let bs = block_shift(S, block.len())?;
        Ok(LeafMut { block, bs })
    }

    /// Makes a block an empty leaf for hashes that begin with `prefix`.
    pub fn init(block: &'a mut [u8], prefix: u64, prefix_len: u16, sorted: bool) -> Result<LeafMut<'a>> {
        let bs = block_shift(S, block.len())?;
        block.fill(0);
        let mut leaf = LeafMut { block, bs };
        let n = super::leaf::num_chunks(bs) as u16;
        leaf.put(0, &ZBT_LEAF.to_ne_bytes())?;
        leaf.put(16, &prefix.to_ne_bytes())?;
        leaf.put(24, &ZAP_LEAF_MAGIC.to_ne_bytes())?;
        leaf.put_u16(NFREE, n)?;
        leaf.put_u16(32, prefix_len)?;
        leaf.put(36, &[if sorted { ZLF_ENTRIES_CDSORTED } else { 0 }])?;
        leaf.clear_chains()?;
        for c in 0..n {
            let at = leaf.view().chunk_offset(c)?;
            leaf.put(at, &[CHUNK_FREE])?;
            leaf.put_u16(at + LINK, if c + 1 == n { CHAIN_END } else { c + 1 })?;
        }
        Ok(leaf)
    }

    pub const fn view(&self) -> Leaf<'_> {
        Leaf::trusted(self.block, self.bs)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        put_at(self.block, at, bytes).ok_or(FormatError::new(S, "block", at, Problem::Missing))
    }

    fn put_u16(&mut self, at: usize, v: u16) -> Result<()> {
        self.put(at, &v.to_ne_bytes())
    }

    fn get_u16(&self, at: usize) -> Result<u16> {
        u16_at(self.block, at, ByteOrder::NATIVE).ok_or(FormatError::new(S, "block", at, Problem::Missing))
    }

    /// Adds to one of the header's two counts.
    fn count(&mut self, at: usize, delta: i32) -> Result<()> {
        let old = self.get_u16(at)?;
        let new = u16::try_from(i32::from(old) + delta).ok();
        let field = if at == NFREE { "lh_nfree" } else { "lh_nentries" };
        let new =
            new.ok_or(FormatError::impossible(S, field, at, old.into(), "does not count its chunks"))?;
        self.put_u16(at, new)
    }

    fn clear_chains(&mut self) -> Result<()> {
        let len = 2 * hash_entries(self.bs);
        let table = self.block.get_mut(HEADER..).and_then(|b| b.get_mut(..len));
        table.ok_or(FormatError::new(S, "l_hash", HEADER, Problem::Missing))?.fill(0xff);
        Ok(())
    }

    // ---- chunks

    fn alloc(&mut self) -> Result<u16> {
        let chunk = self.get_u16(FREELIST)?;
        let (at, _) = self.view().chunk(chunk, CHUNK_FREE)?;
        let next = self.get_u16(at + LINK)?;
        self.put_u16(FREELIST, next)?;
        self.count(NFREE, -1)?;
        Ok(chunk)
    }

    fn free(&mut self, chunk: u16) -> Result<()> {
        let at = self.view().chunk_offset(chunk)?;
        let head = self.get_u16(FREELIST)?;
        // Zeroed, so that leaves compress well.
        let mut raw = [0; CHUNK_SIZE];
        raw[0] = CHUNK_FREE;
        self.put(at, &raw)?;
        self.put_u16(at + LINK, head)?;
        self.put_u16(FREELIST, chunk)?;
        self.count(NFREE, 1)
    }

    /// Frees an array so that its chunks come off the list in the order they had.
    fn free_array(&mut self, head: u16) -> Result<()> {
        let mut chunks = Vec::new();
        let mut chunk = head;
        while chunk != CHAIN_END {
            let (at, _) = self.view().chunk(chunk, CHUNK_ARRAY)?;
            if chunks.len() > self.view().num_chunks() {
                return Err(FormatError::impossible(S, "la_next", at, chunk.into(), "the chain has no end"));
            }
            chunks.push(chunk);
            chunk = self.get_u16(at + LINK)?;
        }
        for c in chunks.into_iter().rev() {
            self.free(c)?;
        }
        Ok(())
    }

    fn put_array(&mut self, bytes: &[u8]) -> Result<u16> {
        let mut head = CHAIN_END;
        let mut last: Option<usize> = None;
        for piece in bytes.chunks(super::leaf::ARRAY_BYTES) {
            let chunk = self.alloc()?;
            let at = self.view().chunk_offset(chunk)?;
            let mut raw = [0; CHUNK_SIZE];
            raw[0] = CHUNK_ARRAY;
            put_at(&mut raw, 1, piece).ok_or(FormatError::new(S, "la_array", at, Problem::Missing))?;
            self.put(at, &raw)?;
            self.put_u16(at + LINK, CHAIN_END)?;
            match last {
                Some(prev) => self.put_u16(prev + LINK, chunk)?,
                None => head = chunk,
            }
            last = Some(at);
        }
        Ok(head)
    }

    // ---- entries

    /// Hangs an entry into its chain, before the first of a higher cd.
    fn link(&mut self, chunk: u16, hash: u64, cd: u32) -> Result<()> {
        let at = self.view().chunk_offset(chunk)?;
        let mut place = Leaf::bucket_offset(self.view().bucket(hash));
        for _ in 0..=self.view().num_chunks() {
            let next = self.get_u16(place)?;
            if next == CHAIN_END || self.view().entry(next)?.cd > cd {
                self.put_u16(at + 2, next)?;
                return self.put_u16(place, chunk);
            }
            place = self.view().chunk_offset(next)? + 2;
        }
        Err(FormatError::impossible(S, "le_next", place, hash, "the chain has no end"))
    }

    /// Takes an entry out of its chain.
    fn unlink(&mut self, e: &LeafEntry) -> Result<()> {
        let mut place = Leaf::bucket_offset(self.view().bucket(e.hash));
        for _ in 0..=self.view().num_chunks() {
            let next = self.get_u16(place)?;
            if next == CHAIN_END {
                break;
            }
            if next == e.chunk {
                return self.put_u16(place, e.next);
            }
            place = self.view().chunk_offset(next)? + 2;
        }
        Err(FormatError::impossible(S, "chunk", place, e.chunk.into(), "not in its chain"))
    }

    fn room(&self, need: usize) -> Result<()> {
        let have = usize::from(self.view().header().nfree);
        if need > have {
            return Err(FormatError::new(S, "chunks", 0, Problem::NoSpace { need, have }));
        }
        Ok(())
    }

    /// Adds an entry. The key must not be there yet, and the leaf must cover the hash. Without a
    /// `cd`, takes the lowest that is free. When there is no room ([`FormatError::is_no_space`])
    /// the caller splits the leaf and tries again.
    pub fn insert(
        &mut self,
        hash: u64,
        key: &ZapKey,
        value: &ZapValue,
        cd: Option<u32>,
    ) -> Result<LeafEntry> {
        let cd = match cd {
            Some(cd) => cd,
            None => self.view().unused_cd(hash)?,
        };
        self.room(chunks_needed(key, value))?;
        let (name_numints, value_numints) = (key.numints() as u16, value.numints() as u16);
        let chunk = self.alloc()?;
        let at = self.view().chunk_offset(chunk)?;
        let name_chunk = self.put_array(key.stored())?;
        let value_chunk = self.put_array(value.stored())?;
        self.put(at, &[CHUNK_ENTRY, value.intlen()])?;
        self.put_u16(at + 4, name_chunk)?;
        self.put_u16(at + 6, name_numints)?;
        self.put_u16(at + 8, value_chunk)?;
        self.put_u16(at + 10, value_numints)?;
        self.put(at + 12, &cd.to_ne_bytes())?;
        self.put(at + 16, &hash.to_ne_bytes())?;
        self.link(chunk, hash, cd)?;
        self.count(NENTRIES, 1)?;
        self.view().entry(chunk)
    }

    /// Gives an entry another value. When there is no room, the caller splits the leaf, or moves
    /// the entry.
    pub fn update(&mut self, e: &LeafEntry, value: &ZapValue) -> Result<()> {
        let old = array_chunks(usize::from(e.value_numints) * usize::from(e.value_intlen));
        self.room(array_chunks(value.stored().len()).saturating_sub(old))?;
        self.free_array(e.value_chunk)?;
        let head = self.put_array(value.stored())?;
        let at = self.view().chunk_offset(e.chunk)?;
        self.put(at + 1, &[value.intlen()])?;
        self.put_u16(at + 8, head)?;
        self.put_u16(at + 10, value.numints() as u16)
    }

    pub fn remove(&mut self, e: &LeafEntry) -> Result<()> {
        self.unlink(e)?;
        self.free_array(e.value_chunk)?;
        self.free_array(e.name_chunk)?;
        self.free(e.chunk)?;
        self.count(NENTRIES, -1)
    }

    /// Splits the leaf: its prefix grows by a bit, and the entries whose next bit is 1 go to
    /// `other`, which is made the sibling leaf. The caller points the upper half of this leaf's
    /// table entries to it.
    pub fn split(&mut self, other: &mut [u8], sorted: bool) -> Result<()> {
        let h = self.view().header();
        if h.prefix_len >= 48 {
            return Err(FormatError::impossible(
                S,
                "lh_prefix_len",
                32,
                h.prefix_len.into(),
                "no bit is left",
            ));
        }
        if other.len() != self.block.len() {
            return Err(FormatError::impossible(S, "block size", 0, other.len() as u64, "not this leaf's"));
        }
        let (prefix, len) = (h.prefix << 1, h.prefix_len + 1);
        let mut other = LeafMut::init(other, prefix | 1, len, sorted)?;
        let entries = self.view().iter().collect::<Result<Vec<_>>>()?;
        self.put(16, &prefix.to_ne_bytes())?;
        self.put_u16(32, len)?;
        self.put(36, &[h.flags | if sorted { ZLF_ENTRIES_CDSORTED } else { 0 }])?;
        self.clear_chains()?;
        for e in entries {
            if e.hash >> (63 - h.prefix_len) & 1 == 0 {
                self.link(e.chunk, e.hash, e.cd)?;
                continue;
            }
            other.adopt(&self.view(), &e)?;
            self.free_array(e.value_chunk)?;
            self.free_array(e.name_chunk)?;
            self.free(e.chunk)?;
            self.count(NENTRIES, -1)?;
        }
        Ok(())
    }

    /// Copies an entry of another leaf, its arrays chunk by chunk.
    fn adopt(&mut self, from: &Leaf<'_>, e: &LeafEntry) -> Result<()> {
        let chunk = self.alloc()?;
        let at = self.view().chunk_offset(chunk)?;
        let name_chunk = self.copy_array(from, e.name_chunk)?;
        let value_chunk = self.copy_array(from, e.value_chunk)?;
        self.put(at, &[CHUNK_ENTRY, e.value_intlen])?;
        self.put_u16(at + 4, name_chunk)?;
        self.put_u16(at + 6, e.name_numints)?;
        self.put_u16(at + 8, value_chunk)?;
        self.put_u16(at + 10, e.value_numints)?;
        self.put(at + 12, &e.cd.to_ne_bytes())?;
        self.put(at + 16, &e.hash.to_ne_bytes())?;
        self.link(chunk, e.hash, e.cd)?;
        self.count(NENTRIES, 1)
    }

    fn copy_array(&mut self, from: &Leaf<'_>, mut chunk: u16) -> Result<u16> {
        let mut head = CHAIN_END;
        let mut last: Option<usize> = None;
        while chunk != CHAIN_END {
            let (_, raw) = from.chunk(chunk, CHUNK_ARRAY)?;
            // A loop of links uses up this leaf's free chunks, and ends there.
            let to = self.alloc()?;
            let at = self.view().chunk_offset(to)?;
            self.put(at, &raw)?;
            self.put_u16(at + LINK, CHAIN_END)?;
            match last {
                Some(prev) => self.put_u16(prev + LINK, to)?,
                None => head = to,
            }
            last = Some(at);
            chunk = u16_at(&raw, LINK, ByteOrder::NATIVE).unwrap_or(CHAIN_END);
        }
        Ok(head)
    }
}

/// Swaps the bytes of a leaf that another machine wrote.
pub(super) fn swap(block: &mut [u8], order: ByteOrder) -> Result<()> {
    let leaf = Leaf::new(block, order)?;
    let (n, first) = (leaf.num_chunks(), leaf.chunk_offset(0)?);
    let fields: &[(usize, usize)] =
        &[(0, 8), (16, 8), (24, 4), (NFREE, 2), (NENTRIES, 2), (32, 2), (FREELIST, 2)];
    let entry: &[(usize, usize)] = &[(2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 8)];
    let reverse = |raw: &mut [u8], fields: &[(usize, usize)]| {
        for (at, len) in fields {
            if let Some(f) = raw.get_mut(*at..at + len) {
                f.reverse();
            }
        }
    };
    let (head, chunks) = block.split_at_mut_checked(first).unwrap_or_default();
    reverse(head, fields);
    let table = head.get_mut(HEADER..).unwrap_or_default();
    table.as_chunks_mut::<2>().0.iter_mut().for_each(|v| v.reverse());
    for (i, raw) in chunks.as_chunks_mut::<CHUNK_SIZE>().0.iter_mut().take(n).enumerate() {
        match raw.first() {
            Some(&CHUNK_ENTRY) => reverse(raw, entry),
            Some(&(CHUNK_FREE | CHUNK_ARRAY)) => reverse(raw, &[(LINK, 2)]),
            kind => {
                let kind = kind.copied().unwrap_or(0).into();
                return Err(FormatError::impossible(
                    S,
                    "chunk type",
                    first + i * CHUNK_SIZE,
                    kind,
                    "251 to 253",
                ));
            }
        }
    }
    Ok(())
}
