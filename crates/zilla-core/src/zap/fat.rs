//! The fat ZAP: an extendible hash table of leaves.
//!
//! The first bits of a hash index the pointer table, which gives the leaf's block. A leaf knows how
//! many of those bits (its prefix) all its entries share; if that is fewer than the table's,
//! several pointers lead to it. A full leaf is split by one more bit; if its prefix is as long as
//! the table's index, the table is doubled first.
//!
//! Splitting and doubling touch several blocks, so they are done on copies in an [`Edit`] and put
//! in place together at the end: if a block turns out not to be in memory, nothing has been
//! changed. (OpenZFS doubles a table over several operations; one that it left half copied is
//! finished here before the next split.)

use super::Value;
use super::key::{HashSpec, Key};
use crate::dmu::{Dnode, Now};
use crate::error::{Errno, Error};
use crate::txg::Tx;
use crate::zio::Leave;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_env::IoBuf;
use zilla_ondisk::object_type::DMU_OT_DIRECTORY_CONTENTS;
use zilla_ondisk::zap::fat::embedded_ptrtbl_shift;
use zilla_ondisk::zap::{Leaf, LeafMut, ZapPhys};
use zilla_ondisk::{ByteOrder, FormatError, Problem};

/// Where the header counts the entries.
pub(super) const NUM_ENTRIES_AT: usize = 8 * 9;
/// A pointer table may have so many bits however few leaves there are: 64K.
const SMALL_TABLE: u32 = 13;
/// Beyond that so many pointers a leaf (as a power of two): of a directory, whose names its users
/// choose, and of what may have leaves that few entries fill. In ordinary leaves hashes without an
/// intent behind them need less than 2^4.
const POINTERS_OF_DIRECTORY: u32 = 6;
const POINTERS: u32 = 13;
/// Who adds an entry has asked for room for so many blocks: the header, a leaf, another that it is
/// split into, parts of the table.
const ASKED_FOR: usize = 8;
/// Blocks of a ZAP have at most 2^20 bytes: more chunks than 16 bits can number cannot be.
const MAX_SHIFT: u32 = 20;

/// The header of a fat ZAP, checked.
#[derive(Clone, Debug)]
pub(crate) struct Fat {
    /// log2 of the block size.
    pub shift: u32,
    pub phys: ZapPhys,
    pub spec: HashSpec,
}

fn bad(field: &'static str, at: usize, value: u64, why: &'static str) -> FormatError {
    FormatError::impossible("zap_phys", field, at, value, why)
}

/// Blocks that an object of 2^`shift` bytes a block has fewer of. One that ended further on could
/// not be written down.
fn most_blocks(shift: u32) -> u64 {
    (i64::MAX as u64 >> shift).min(1 << 47)
}

/// The first `bits` bits of a hash.
fn prefix_of(hash: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { hash >> (64 - bits) }
}

fn word(b: &[u8], at: usize) -> u64 {
    b.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b))
}

fn set_word(b: &mut [u8], at: usize, v: u64) {
    if let Some(to) = b.get_mut(at..at + 8) {
        to.copy_from_slice(&v.to_ne_bytes());
    }
}

fn words(b: &[u8]) -> Vec<u64> {
    b.as_chunks::<8>().0.iter().map(|c| u64::from_ne_bytes(*c)).collect()
}

impl Fat {
    pub fn open(block: &[u8]) -> Result<Fat, FormatError> {
        let phys = ZapPhys::parse(block, ByteOrder::NATIVE)?;
        let shift = block.len().trailing_zeros();
        if shift > MAX_SHIFT {
            return Err(bad("block", 0, block.len() as u64, "no block size for a ZAP"));
        }
        let t = phys.ptrtbl;
        let limit = most_blocks(shift);
        if phys.freeblk >= limit || t.blk >= limit || t.nextblk >= limit || t.numblks >= limit {
            return Err(bad("zap_freeblk", 56, phys.freeblk, "beyond any object"));
        }
        if (t.numblks == 0) != (t.blk == 0) || t.blks_copied > t.numblks || (t.numblks == 0 && t.nextblk != 0)
        {
            return Err(bad("zap_ptrtbl", 16, t.blk, "the table is nowhere"));
        }
        let spec = HashSpec { salt: phys.salt, normflags: phys.normflags, flags: phys.flags };
        // No sum is too large: all are below the limit.
        let grows = t.nextblk != 0;
        if t.shift + u64::from(grows) > u64::from(spec.hashbits() - 2) {
            return Err(bad("zt_shift", 32, t.shift, "more bits than a table may have"));
        }
        if t.blk + t.numblks > phys.freeblk || (grows && t.nextblk + 2 * t.numblks > phys.freeblk) {
            return Err(bad("zap_ptrtbl", 16, t.blk, "beyond the blocks that are in use"));
        }
        Ok(Fat { shift, phys, spec })
    }

    pub fn table_shift(&self) -> u32 {
        self.phys.ptrtbl.shift as u32
    }

    /// Bits that the table may have in the end. What hashes names is no secret, so names can be
    /// made that share what bits one likes; who makes them is not to get a table of gigabytes for
    /// some dozens.
    fn most_bits(&self, otype: u8) -> u32 {
        let leaves = self.phys.num_leafs.clamp(1, self.phys.freeblk.max(1)).ilog2();
        let each = if otype == DMU_OT_DIRECTORY_CONTENTS { POINTERS_OF_DIRECTORY } else { POINTERS };
        (leaves + each).max(SMALL_TABLE).min(self.spec.hashbits() - 2).max(self.table_shift())
    }

    /// Block and byte where the pointer for `idx` is.
    fn pointer_at(&self, idx: u64) -> (u64, usize) {
        if self.phys.is_embedded() {
            return (0, (1 << (self.shift - 1)) + 8 * idx as usize);
        }
        let (blk, entry) = self.phys.table_block(idx, self.shift);
        (blk, 8 * entry)
    }

    /// The block of the leaf that `hash` belongs to.
    pub fn leaf_of(&self, dn: &Arc<Dnode>, hash: u64) -> Now<u64> {
        let (blk, at) = self.pointer_at(self.phys.index(hash));
        let p = dn.with_block(blk, |b| word(b, at))?;
        self.check_leaf(dn, p)
    }

    fn check_leaf(&self, dn: &Arc<Dnode>, p: u64) -> Now<u64> {
        if p == 0 || p >= self.phys.freeblk {
            return Err(super::corrupt(dn, 0, bad("zap_ptrtbl", 16, p, "no block of a leaf")).into());
        }
        Ok(p)
    }
}

/// A change of several blocks, made on copies.
pub(super) struct Edit<'a> {
    dn: &'a Arc<Dnode>,
    fat: Fat,
    blocks: BTreeMap<u64, IoBuf>,
    /// Blocks of tables that were outgrown: first and count.
    freed: Vec<(u64, u64)>,
}

impl<'a> Edit<'a> {
    pub fn new(dn: &'a Arc<Dnode>, fat: Fat) -> Now<Edit<'a>> {
        let mut edit = Edit { dn, fat, blocks: BTreeMap::new(), freed: Vec::new() };
        // Its counts will change in any case.
        edit.block(0)?;
        Ok(edit)
    }

    /// A new fat ZAP of one empty leaf, whatever the object held before.
    pub fn create(dn: &'a Arc<Dnode>, shift: u32, spec: HashSpec) -> Now<Edit<'a>> {
        let mut header = IoBuf::zeroed(1 << shift);
        let phys = ZapPhys::init(&mut header, spec.salt, spec.normflags, spec.flags)
            .map_err(|e| super::corrupt(dn, 0, e))?;
        debug_assert_eq!(phys.ptrtbl.shift, u64::from(embedded_ptrtbl_shift(shift)));
        let mut leaf = IoBuf::zeroed(1 << shift);
        LeafMut::init(&mut leaf, 0, 0, spec.normflags != 0).map_err(|e| super::corrupt(dn, 1, e))?;
        let fat = Fat { shift, phys, spec };
        Ok(Edit { dn, fat, blocks: BTreeMap::from([(0, header), (1, leaf)]), freed: Vec::new() })
    }

    fn block(&mut self, blk: u64) -> Now<&mut IoBuf> {
        use std::collections::btree_map::Entry;
        match self.blocks.entry(blk) {
            Entry::Occupied(e) => Ok(e.into_mut()),
            Entry::Vacant(v) => Ok(v.insert(self.dn.with_block(blk, IoBuf::from_slice)?)),
        }
    }

    fn pointer(&mut self, idx: u64) -> Now<u64> {
        let (blk, at) = self.fat.pointer_at(idx);
        let p = match self.blocks.get(&blk) {
            Some(b) => word(b, at),
            None => self.dn.with_block(blk, |b| word(b, at))?,
        };
        self.fat.check_leaf(self.dn, p)
    }

    /// Runs `f` on the leaf of `hash`, splitting it as often as `f` finds no room.
    fn in_leaf<R>(&mut self, hash: u64, f: impl Fn(&mut LeafMut<'_>) -> Result<R, FormatError>) -> Now<R> {
        loop {
            let blk = self.pointer(self.fat.phys.index(hash))?;
            let dn = self.dn;
            match LeafMut::new(self.block(blk)?).and_then(|mut l| f(&mut l)) {
                Ok(r) => return Ok(r),
                Err(e) if e.is_no_space() => self.split(hash, blk)?,
                Err(e) => return Err(super::corrupt(dn, blk, e).into()),
            }
        }
    }

    /// Adds an entry that is not there.
    pub fn add(&mut self, key: &Key, cd: Option<u32>, value: &Value) -> Now<()> {
        self.in_leaf(key.hash, |l| l.insert(key.hash, &key.stored, value, cd))?;
        // What a damaged header says may be anything.
        self.fat.phys.num_entries = self.fat.phys.num_entries.saturating_add(1);
        Ok(())
    }

    /// Replaces the value of an entry that is there.
    pub fn update(&mut self, key: &Key, value: &Value) -> Now<()> {
        self.in_leaf(key.hash, |l| match l.view().lookup(key.hash, &key.stored)? {
            Some(e) => l.update(&e, value),
            None => Err(FormatError::new("zap_leaf", "le_name", 0, Problem::Missing)),
        })
    }

    /// So many blocks that were never used.
    fn take_blocks(&mut self, n: u64) -> Now<u64> {
        let first = self.fat.phys.freeblk;
        let end = first.saturating_add(n);
        if end >= most_blocks(self.fat.shift) {
            return Err(Error::os(Errno::NoSpc, "the ZAP has all the blocks that an object can have").into());
        }
        self.fat.phys.freeblk = end;
        Ok(first)
    }

    fn split(&mut self, hash: u64, blk: u64) -> Now<()> {
        let dn = self.dn;
        let fail = |e| super::corrupt(dn, blk, e);
        if self.fat.phys.ptrtbl.nextblk != 0 {
            self.finish_growing()?;
        }
        let leaf = Leaf::new(self.block(blk)?, ByteOrder::NATIVE).map_err(fail)?;
        let (header, covers) = (leaf.header(), leaf.covers(hash));
        let mut differ = 0u64;
        for e in leaf.iter() {
            differ |= e.map_err(fail)?.hash ^ hash;
        }
        let len = u32::from(header.prefix_len);
        if len > self.fat.table_shift() || !covers {
            return Err(fail(bad("lh_prefix", 16, header.prefix, "not what the pointer table says")).into());
        }
        // Nothing is gained before the table has a bit in which the hashes differ.
        if differ.leading_zeros().max(len) >= self.fat.most_bits(dn.otype()) {
            return Err(Error::os(Errno::NoSpc, "too many names of nearly one hash").into());
        }
        while len >= self.fat.table_shift() {
            self.grow_table()?;
        }
        let diff = self.fat.table_shift() - (len + 1);
        let first = (prefix_of(hash, len + 1) | 1) << diff;
        for i in first..first + (1 << diff) {
            if self.pointer(i)? != blk {
                return Err(fail(bad("zap_ptrtbl", 16, i, "a pointer leads to a wrong leaf")).into());
            }
        }
        let new = self.take_blocks(1)?;
        let mut right = IoBuf::zeroed(1 << self.fat.shift);
        let sorted = self.fat.spec.normflags != 0;
        LeafMut::new(self.block(blk)?).and_then(|mut l| l.split(&mut right, sorted)).map_err(fail)?;
        self.blocks.insert(new, right);
        self.fat.phys.num_leafs = self.fat.phys.num_leafs.saturating_add(1);
        for i in first..first + (1 << diff) {
            let (table, at) = self.fat.pointer_at(i);
            set_word(self.block(table)?, at, new);
        }
        Ok(())
    }

    fn grow_table(&mut self) -> Now<()> {
        if self.fat.phys.is_embedded() {
            let header = self.block(0)?;
            let old = words(header.get(header.len() / 2..).unwrap_or_default());
            let new = self.take_blocks(1)?;
            self.put_doubled(&old, new);
            let t = &mut self.fat.phys.ptrtbl;
            (t.blk, t.numblks, t.shift) = (new, 1, t.shift + 1);
            return Ok(());
        }
        let new = self.take_blocks(2 * self.fat.phys.ptrtbl.numblks)?;
        let t = &mut self.fat.phys.ptrtbl;
        (t.nextblk, t.blks_copied) = (new, 0);
        self.finish_growing()
    }

    /// Copies what is left of the old table to the new one, every pointer twice.
    fn finish_growing(&mut self) -> Now<()> {
        let t = self.fat.phys.ptrtbl;
        for b in t.blks_copied..t.numblks {
            let old = words(self.block(t.blk + b)?);
            // A table of holes costs nothing on disk, and twice its size in memory.
            for p in &old {
                self.fat.check_leaf(self.dn, *p)?;
            }
            let (low, high) = old.split_at(old.len() / 2);
            self.put_doubled(low, t.nextblk + 2 * b);
            self.put_doubled(high, t.nextblk + 2 * b + 1);
        }
        self.blocks.retain(|blk, _| !(t.blk..t.blk + t.numblks).contains(blk));
        self.freed.push((t.blk, t.numblks));
        let new = &mut self.fat.phys.ptrtbl;
        (new.blk, new.numblks, new.shift) = (t.nextblk, 2 * t.numblks, t.shift + 1);
        (new.nextblk, new.blks_copied) = (0, 0);
        Ok(())
    }

    fn put_doubled(&mut self, pointers: &[u64], blk: u64) {
        let mut buf = IoBuf::zeroed(1 << self.fat.shift);
        let twice = pointers.iter().flat_map(|p| [*p, *p]);
        for (to, p) in buf.as_chunks_mut::<8>().0.iter_mut().zip(twice) {
            *to = p.to_ne_bytes();
        }
        self.blocks.insert(blk, buf);
    }

    /// Holds room for a much larger table. Refused at once where there is none: what made place for
    /// the entry is dirty already, so that nobody could tell whether waiting for a txg helps.
    pub fn hold_room(&self, tx: &Tx) -> Now<()> {
        if tx.is_syncing() || self.blocks.len() <= ASKED_FOR {
            return Ok(());
        }
        let shared = &self.dn.shared;
        let bytes = (self.blocks.len() as u64) << self.fat.shift;
        tx.promise(tx.worst(bytes, shared.metadata_copies.load(Ordering::Relaxed)));
        match shared.store.has_room(0, Leave::Eighth) {
            true => Ok(()),
            false => Err(Error::os(Errno::NoSpc, "no space left for a larger pointer table").into()),
        }
    }

    /// Puts everything in place.
    pub fn commit(mut self, tx: &Tx) -> Fat {
        if let Some(b) = self.blocks.get_mut(&0) {
            let stored = self.fat.phys.store(b);
            debug_assert!(stored.is_ok(), "a header block is longer than the header");
        }
        for (blk, n) in self.freed {
            self.dn.free_range(tx, blk << self.fat.shift, n << self.fat.shift);
        }
        for (blk, buf) in self.blocks {
            self.dn.write_block(tx, blk, buf.into_bytes());
        }
        self.fat
    }
}
