//! One shard: two lists of blocks and two of ghosts, and a table by which they are found.
//!
//! What a block costs beside its bytes: an entry in the lists, as much of the table as two words
//! take (its own and a ghost's, for there are as many ghosts as blocks when blocks are of a size),
//! a ghost, and what owns its buffer. The words of the table are four bytes; a key is in its entry
//! only.

use std::hash::BuildHasher;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use zilla_codec::compress::Compress;

use super::lists::{Item, List, Lists};
use super::stats::Counters;
use super::{Block, Key, L2Facts, Tail, Wanted};

/// Bytes of memory that a buffer's owner takes: it, a count of who uses it, and malloc's own.
const OWNER: u64 = 48;
/// The same of the table for two words, which are four bytes and one of tags, while it is half full
/// or more.
const WORDS: u64 = 24;
/// Bytes of the limit that a block takes beside its own: what all that costs.
pub const OVERHEAD: u64 = Lists::<Entry>::EACH + Lists::<Ghost>::EACH + WORDS + OWNER;
/// One part in so many of the limit is the most that the ghosts of a list take, if blocks are tiny.
const MOST_GHOSTS: u64 = 32;

/// One part in so many is for recent blocks whatever the ghosts say, for what is read ahead must
/// stay until it is asked for; and where that is little, what is read ahead of two streams, as far
/// as that is no more than a quarter.
const LEAST_RECENT: u64 = 16;
const READ_AHEAD: u64 = 16 << 20;
const MOST_READ_AHEAD: u64 = 4;

/// How long after a block's first use another belongs to that one (OpenZFS's `ARC_MINTIME`).
pub const ONE_USE: Duration = Duration::from_millis(64);
/// In so many milliseconds times are kept, in a number that comes round in 17 minutes: then one use
/// may be taken for the same as the first.
const TICK: u128 = 16;

fn ticks(time: Duration) -> u16 {
    (time.as_millis() / TICK) as u16
}

/// A key, without its padding.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
struct Name {
    offset: u64,
    birth: u64,
    vdev: u32,
}

impl Name {
    fn of(key: &Key) -> Name {
        Name { offset: key.offset, birth: key.birth, vdev: key.vdev }
    }

    fn key(&self) -> Key {
        Key { vdev: self.vdev, offset: self.offset, birth: self.birth }
    }
}

/// A block that is here.
struct Entry {
    name: Name,
    lsize: u32,
    data: Bytes,
    asectors: u32,
    /// When it was used first.
    used: u16,
    compress: Compress,
    flags: u8,
}

const METADATA: u8 = 1;
/// If not, it is let go as soon as it was asked for.
const KEEP: u8 = 2;
const L2_WANTED: u8 = 4;
const GANG: u8 = 8;
/// Came by prefetch and was not asked for since.
const PREFETCHED: u8 = 16;

impl Default for Entry {
    fn default() -> Self {
        let (name, data, compress) = (Name::default(), Bytes::new(), Compress::Off);
        Entry { name, lsize: 0, data, asectors: 0, used: 0, compress, flags: 0 }
    }
}

impl Item for Entry {
    fn size(&self) -> u64 {
        self.data.len() as u64 + OVERHEAD
    }
}

impl Entry {
    fn new(key: &Key, block: Block, prefetched: bool, now: Duration) -> Entry {
        let Block { data, compress, lsize, metadata, keep, l2 } = block;
        let mut flags = 0;
        for (flag, is) in [
            (METADATA, metadata),
            (KEEP, keep),
            (L2_WANTED, l2.wanted),
            (GANG, l2.gang),
            (PREFETCHED, prefetched),
        ] {
            if is {
                flags |= flag;
            }
        }
        let (name, used) = (Name::of(key), ticks(now));
        Entry { name, lsize, data, asectors: l2.asectors, used, compress, flags }
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn block(&self) -> Block {
        Block {
            data: self.data.clone(),
            compress: self.compress,
            lsize: self.lsize,
            metadata: self.is(METADATA),
            keep: self.is(KEEP),
            l2: L2Facts { wanted: self.is(L2_WANTED), gang: self.is(GANG), asectors: self.asectors },
        }
    }
}

/// A block that was evicted.
#[derive(Clone, Copy, Default)]
struct Ghost {
    name: Name,
    size: u32,
}

impl Item for Ghost {
    fn size(&self) -> u64 {
        u64::from(self.size)
    }
}

/// A word of the table: whether it is a ghost, in which list, and its number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(u32);

impl Place {
    const GHOST: u32 = 1 << 31;
    const MFU: u32 = 1 << 30;

    fn of_block(list: List, at: u32) -> Place {
        debug_assert!(at < Self::MFU, "a shard of some 70 GB of entries");
        Place(at | if list == List::Mfu { Self::MFU } else { 0 })
    }

    fn of_ghost(list: List, at: u32) -> Place {
        Place(Self::of_block(list, at).0 | Self::GHOST)
    }

    fn is_ghost(self) -> bool {
        self.0 & Self::GHOST != 0
    }

    fn list(self) -> List {
        if self.0 & Self::MFU != 0 { List::Mfu } else { List::Mru }
    }

    fn at(self) -> u32 {
        self.0 & (Self::MFU - 1)
    }
}

#[derive(Default, Clone, Copy, Debug)]
pub struct Sizes {
    pub mru: u64,
    pub mfu: u64,
    pub mru_ghost: u64,
    pub mfu_ghost: u64,
    pub p: u64,
    pub data: u64,
    pub metadata: u64,
    pub uncompressed: u64,
    pub entries: u64,
    /// Bytes of memory beside the blocks: entries, ghosts, the table, and the buffers' owners.
    pub headers: u64,
}

impl Sizes {
    pub fn add(&mut self, o: &Sizes) {
        self.mru += o.mru;
        self.mfu += o.mfu;
        self.mru_ghost += o.mru_ghost;
        self.mfu_ghost += o.mfu_ghost;
        self.p += o.p;
        self.data += o.data;
        self.metadata += o.metadata;
        self.uncompressed += o.uncompressed;
        self.entries += o.entries;
        self.headers += o.headers;
    }
}

/// Bytes of the blocks that are here.
#[derive(Clone, Copy, Default)]
struct Held {
    data: u64,
    metadata: u64,
    uncompressed: u64,
}

impl Held {
    fn change(&mut self, entry: &Entry, f: fn(u64, u64) -> u64) {
        let of_kind = if entry.is(METADATA) { &mut self.metadata } else { &mut self.data };
        *of_kind = f(*of_kind, entry.data.len() as u64);
        self.uncompressed = f(self.uncompressed, u64::from(entry.lsize));
    }
}

pub struct Shard {
    table: HashTable<Place>,
    hasher: DefaultHashBuilder,
    blocks: Lists<Entry>,
    ghosts: Lists<Ghost>,
    /// Target size of the MRU list.
    p: u64,
    held: Held,
    pub counters: Counters,
}

impl Default for Shard {
    fn default() -> Self {
        Shard {
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            blocks: Lists::new(),
            ghosts: Lists::new(),
            p: 0,
            held: Held::default(),
            counters: Counters::default(),
        }
    }
}

/// Buffers that were let go, to be freed outside the lock.
pub type Gone = SmallVec<[Bytes; 4]>;

impl Shard {
    pub fn size(&self) -> u64 {
        self.blocks.size(List::Mru) + self.blocks.size(List::Mfu)
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.find_block(key).is_some()
    }

    pub fn get(&mut self, key: &Key, prefetch: bool, now: Duration) -> Option<Block> {
        let place = self.find_block(key)?;
        let (list, at) = (place.list(), place.at());
        let entry = &mut self.blocks[at];
        let block = entry.block();
        self.counters.hits[usize::from(prefetch)][usize::from(block.metadata)] += 1;
        if list == List::Mfu {
            self.counters.mfu_hits += 1;
        } else {
            self.counters.mru_hits += 1;
        }
        if prefetch {
            return Some(block);
        }
        if !block.keep {
            drop(self.remove(key));
            return Some(block);
        }
        // The first use of what was prefetched is what the prefetch was for, not a second use.
        let first = entry.is(PREFETCHED);
        if first {
            entry.flags &= !PREFETCHED;
            entry.used = ticks(now);
        }
        let again = u128::from(ticks(now).wrapping_sub(entry.used)) * TICK > ONE_USE.as_millis();
        let to = if list == List::Mfu || again { List::Mfu } else { List::Mru };
        self.promote(key, place, to);
        Some(block)
    }

    pub fn insert(&mut self, key: Key, block: Block, prefetch: bool, now: Duration, limit: u64) -> Gone {
        let mut gone = Gone::new();
        let entry = Entry::new(&key, block, prefetch, now);
        let found = self.find(&key);
        let to = match found {
            None => List::Mru,
            // New contents of a block that is here already: its place stays.
            Some(place) if !place.is_ghost() => {
                gone.push(self.take(place).data);
                place.list()
            }
            Some(place) => {
                self.ghost_hit(place.list(), entry.size(), limit);
                self.ghosts.take(place.list(), place.at());
                List::Mfu
            }
        };
        self.held.change(&entry, |a, b| a + b);
        let place = Place::of_block(to, self.blocks.add(to, entry));
        match found {
            Some(old) => self.replace(&key, old, place),
            None => {
                let Shard { table, hasher, blocks, ghosts, .. } = self;
                let hash_of = |p: &Place| hasher.hash_one(key_of(blocks, ghosts, *p));
                table.insert_unique(hasher.hash_one(key), place, hash_of);
            }
        }
        gone.extend(self.trim(limit));
        gone
    }

    /// What was evicted was wanted: its list should have been longer.
    fn ghost_hit(&mut self, list: List, size: u64, limit: u64) {
        let (mru, mfu) = (self.ghosts.size(List::Mru), self.ghosts.size(List::Mfu));
        match list {
            List::Mru => {
                self.counters.mru_ghost_hits += 1;
                let ratio = (mfu / mru.max(1)).max(1);
                self.p = (self.p + size * ratio).min(limit);
            }
            List::Mfu => {
                self.counters.mfu_ghost_hits += 1;
                let ratio = (mru / mfu.max(1)).max(1);
                self.p = self.p.saturating_sub(size * ratio);
            }
        }
    }

    /// Evicts until the shard is within `limit`; keys become ghosts.
    pub fn trim(&mut self, limit: u64) -> Gone {
        let mut gone = Gone::new();
        while self.size() > limit {
            let recent = (limit / LEAST_RECENT).max(READ_AHEAD.min(limit / MOST_READ_AHEAD));
            let least = self.p.max(recent);
            let too_many = self.blocks.size(List::Mru) > least || self.blocks.count(List::Mfu) == 0;
            let from_mru = self.blocks.count(List::Mru) > 0 && too_many;
            let list = if from_mru { List::Mru } else { List::Mfu };
            let Some(at) = self.blocks.tail(list) else { break };
            let old = Place::of_block(list, at);
            let entry = self.take(old);
            self.counters.deleted += 1;
            let ghost = Ghost { name: entry.name, size: entry.size() as u32 };
            let at = self.ghosts.add(list, ghost);
            self.replace(&entry.name.key(), old, Place::of_ghost(list, at));
            gone.push(entry.data);
        }
        // Ghosts remember as much again as the cache holds, but not more keys than it would be
        // cheap to remember.
        for list in [List::Mru, List::Mfu] {
            while self.ghosts.size(list) > limit / 2
                || self.ghosts.count(list) * Lists::<Ghost>::EACH > limit / MOST_GHOSTS
            {
                let Some(at) = self.ghosts.tail(list) else { break };
                let ghost = self.ghosts.take(list, at);
                self.forget(&ghost.name.key(), Place::of_ghost(list, at));
            }
        }
        self.p = self.p.min(limit);
        gone
    }

    /// Forgets all, and goes on counting.
    pub fn empty(&mut self) -> Shard {
        let counters = self.counters;
        std::mem::replace(self, Shard { counters, ..Shard::default() })
    }

    pub fn peek(&self, key: &Key) -> Option<Block> {
        Some(self.blocks[self.find_block(key)?.at()].block())
    }

    /// See [`super::Cache::used_before`].
    pub fn used_before(&mut self, key: &Key) {
        if let Some(place) = self.find_block(key)
            && place.list() == List::Mru
        {
            self.promote(key, place, List::Mfu);
        }
    }

    /// See [`super::Cache::tail`].
    pub fn tail(&self, what: Wanted, glance: usize, bytes: u64, tail: &mut Tail) -> bool {
        let list = if what.frequent { List::Mfu } else { List::Mru };
        let mut next = match tail.at {
            None => self.blocks.tail(list),
            // If it has gone elsewhere in between the walk is over: the next one begins at the tail
            // again.
            Some(key) => self.find_block(&key).filter(|p| p.list() == list).map(Place::at),
        };
        for _ in 0..glance {
            let Some(at) = next else { return false };
            if tail.bytes > bytes {
                return false;
            }
            let e = &self.blocks[at];
            tail.bytes += e.size();
            if e.is(L2_WANTED) && e.is(METADATA) == what.metadata && e.is(KEEP) {
                tail.keys.push((e.name.key(), e.is(PREFETCHED)));
            }
            next = self.blocks.later(at);
        }
        tail.at = next.map(|at| self.blocks[at].name.key());
        next.is_some()
    }

    pub fn remove(&mut self, key: &Key) -> Option<Bytes> {
        let place = self.find(key)?;
        self.forget(key, place);
        if place.is_ghost() {
            self.ghosts.take(place.list(), place.at());
            return None;
        }
        Some(self.take(place).data)
    }

    fn find(&self, key: &Key) -> Option<Place> {
        let is = |p: &Place| key_of(&self.blocks, &self.ghosts, *p) == *key;
        self.table.find(self.hasher.hash_one(key), is).copied()
    }

    fn find_block(&self, key: &Key) -> Option<Place> {
        self.find(key).filter(|p| !p.is_ghost())
    }

    /// Says in the table that what was in `old` is in `new`.
    fn replace(&mut self, key: &Key, old: Place, new: Place) {
        if let Some(word) = self.table.find_mut(self.hasher.hash_one(key), |p| *p == old) {
            *word = new;
        }
    }

    /// Takes what was in `place` out of the table.
    fn forget(&mut self, key: &Key, place: Place) {
        if let Ok(word) = self.table.find_entry(self.hasher.hash_one(key), |p| *p == place) {
            word.remove();
        }
    }

    /// Takes a block out of its list.
    fn take(&mut self, place: Place) -> Entry {
        let entry = self.blocks.take(place.list(), place.at());
        self.held.change(&entry, |a, b| a - b);
        entry
    }

    fn promote(&mut self, key: &Key, place: Place, to: List) {
        self.blocks.promote(place.list(), to, place.at());
        if place.list() != to {
            self.replace(key, place, Place::of_block(to, place.at()));
        }
    }

    pub fn sizes(&self) -> Sizes {
        let entries = self.blocks.count(List::Mru) + self.blocks.count(List::Mfu);
        let lists = self.blocks.bytes() + self.ghosts.bytes();
        Sizes {
            mru: self.blocks.size(List::Mru),
            mfu: self.blocks.size(List::Mfu),
            mru_ghost: self.ghosts.size(List::Mru),
            mfu_ghost: self.ghosts.size(List::Mfu),
            p: self.p,
            data: self.held.data,
            metadata: self.held.metadata,
            uncompressed: self.held.uncompressed,
            entries,
            headers: lists + self.table.allocation_size() as u64 + entries * OWNER,
        }
    }
}

fn key_of(blocks: &Lists<Entry>, ghosts: &Lists<Ghost>, place: Place) -> Key {
    let at = place.at();
    if place.is_ghost() { ghosts[at].name.key() } else { blocks[at].name.key() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_ghosts_are_small() {
        assert_eq!((Lists::<Entry>::EACH, Lists::<Ghost>::EACH), (72, 32));
    }
}
