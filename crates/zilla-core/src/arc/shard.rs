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
use super::stats::{Counters, Second};
use super::{Access, Block, Key, L2Facts, Tail, Wanted};

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

/// What was read ahead stays so long, if others can go instead. Source: `arc_min_prefetch_ms` of
/// OpenZFS's `arc.c`. (What is read for sure is read by a walk, which uses it itself: nobody is to
/// come for it.)
const MIN_PREFETCH: Duration = Duration::from_secs(1);
/// So many of them are passed by at a time: the limit holds in any case.
const PASSED_BY: u32 = 16;
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
/// A cache device had it once.
const L2_HAD: u8 = 32;
/// Was used, and read ahead again since.
const AGAIN: u8 = 64;
/// The last prefetch was a walk's ([`Access::Prescient`]).
const PRESCIENT: u8 = 128;

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
    fn new(key: &Key, block: Block, access: Access, now: Duration) -> Entry {
        let Block { data, compress, lsize, metadata, keep, l2 } = block;
        let mut flags = 0;
        for (flag, is) in [
            (METADATA, metadata),
            (KEEP, keep),
            (L2_WANTED, l2.wanted),
            (GANG, l2.gang),
            (L2_HAD, l2.had),
            (PREFETCHED, access.is_prefetch()),
            (PRESCIENT, access == Access::Prescient),
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

    fn kind(&self) -> usize {
        usize::from(self.is(METADATA))
    }

    /// For whom it was read ahead, if nobody has asked for it since.
    fn ahead(&self) -> Option<Access> {
        let kind = if self.is(PRESCIENT) { Access::Prescient } else { Access::Predictive };
        self.is(PREFETCHED | AGAIN).then_some(kind)
    }

    /// Somebody asks for it, or it is read ahead.
    fn note(&mut self, access: Access) {
        match access {
            Access::Demand => self.flags &= !(PREFETCHED | AGAIN | PRESCIENT),
            _ if self.is(PREFETCHED) => {}
            _ => self.flags |= AGAIN,
        }
        if access == Access::Prescient {
            self.flags |= PRESCIENT;
        }
    }

    /// Whether it was read ahead and whoever it is for may still come.
    fn is_awaited(&self, now: Duration) -> bool {
        let ahead = self.is(PREFETCHED) && !self.is(PRESCIENT);
        ahead && u128::from(ticks(now).wrapping_sub(self.used)) * TICK < MIN_PREFETCH.as_millis()
    }

    fn second(&self) -> Second {
        match (self.is(L2_HAD), self.is(L2_WANTED)) {
            (true, _) => Second::Had,
            (_, true) => Second::Wanted,
            _ => Second::Unwanted,
        }
    }

    fn block(&self) -> Block {
        let l2 = L2Facts {
            wanted: self.is(L2_WANTED),
            gang: self.is(GANG),
            asectors: self.asectors,
            had: self.is(L2_HAD),
        };
        Block {
            data: self.data.clone(),
            compress: self.compress,
            lsize: self.lsize,
            metadata: self.is(METADATA),
            keep: self.is(KEEP),
            l2,
        }
    }
}

/// A block that was evicted.
#[derive(Clone, Copy, Default)]
struct Ghost {
    name: Name,
    /// Below [`GHOST_OF_METADATA`], and that if it was such.
    size: u32,
}

/// No block is as large.
const GHOST_OF_METADATA: u32 = 1 << 31;

impl Ghost {
    fn of(entry: &Entry) -> Ghost {
        let kind = if entry.is(METADATA) { GHOST_OF_METADATA } else { 0 };
        Ghost { name: entry.name, size: entry.size() as u32 | kind }
    }

    fn kind(&self) -> usize {
        usize::from(self.size & GHOST_OF_METADATA != 0)
    }
}

impl Item for Ghost {
    fn size(&self) -> u64 {
        u64::from(self.size & !GHOST_OF_METADATA)
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

/// By kind (0 data, 1 metadata), bytes.
pub type Kinds = [u64; 2];

#[derive(Default, Clone, Copy, Debug)]
pub struct Sizes {
    /// What the limit counts of each list, and the ghosts of each.
    pub lists: [u64; 2],
    pub ghosts: [u64; 2],
    pub p: u64,
    /// Bytes of the blocks alone, by list.
    pub held: [Kinds; 2],
    /// What is let go as soon as it was asked for; it is among the others, too.
    pub uncached: Kinds,
    /// As the limit would count them.
    pub ghosts_held: [Kinds; 2],
    pub uncompressed: u64,
    pub entries: u64,
    /// The most entries that there were, and of each shard: all together there were never more.
    pub entries_max: u64,
    /// Bytes of memory beside the blocks: entries, ghosts, the table, and the buffers' owners.
    pub headers: u64,
}

impl Sizes {
    pub fn add(&mut self, o: &Sizes) {
        let add = |to: &mut [u64; 2], more: [u64; 2]| to.iter_mut().zip(more).for_each(|(a, b)| *a += b);
        add(&mut self.lists, o.lists);
        add(&mut self.ghosts, o.ghosts);
        add(&mut self.uncached, o.uncached);
        self.held.iter_mut().zip(o.held).for_each(|(a, b)| add(a, b));
        self.ghosts_held.iter_mut().zip(o.ghosts_held).for_each(|(a, b)| add(a, b));
        self.p += o.p;
        self.uncompressed += o.uncompressed;
        self.entries += o.entries;
        self.entries_max += o.entries_max;
        self.headers += o.headers;
    }
}

/// Bytes of the blocks that are here.
#[derive(Clone, Copy, Default)]
struct Held {
    lists: [Kinds; 2],
    uncached: Kinds,
    uncompressed: u64,
}

impl Held {
    fn change(&mut self, list: List, entry: &Entry, f: fn(u64, u64) -> u64) {
        let (kind, bytes) = (entry.kind(), entry.data.len() as u64);
        let all = &mut self.lists[list as usize][kind];
        *all = f(*all, bytes);
        if !entry.is(KEEP) {
            self.uncached[kind] = f(self.uncached[kind], bytes);
        }
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
    ghosts_held: [Kinds; 2],
    entries_max: u64,
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
            ghosts_held: [[0; 2]; 2],
            entries_max: 0,
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

    pub fn get(&mut self, key: &Key, access: Access, now: Duration) -> Option<Block> {
        let place = self.find_block(key)?;
        let (list, at) = (place.list(), place.at());
        let entry = &mut self.blocks[at];
        let block = entry.block();
        self.counters.hits[access as usize][usize::from(block.metadata)] += 1;
        if list == List::Mfu {
            self.counters.mfu_hits += 1;
        } else {
            self.counters.mru_hits += 1;
        }
        // The first use of what was prefetched is what the prefetch was for, not a second use.
        let (ahead, first) = (entry.ahead(), entry.is(PREFETCHED));
        entry.note(access);
        if access.is_prefetch() {
            return Some(block);
        }
        if let Some(ahead) = ahead {
            self.counters.demanded_hits[ahead as usize] += 1;
        }
        if !block.keep {
            self.counters.uncached_hits += 1;
            drop(self.remove(key));
            return Some(block);
        }
        let entry = &mut self.blocks[at];
        if first {
            entry.used = ticks(now);
        }
        let again = u128::from(ticks(now).wrapping_sub(entry.used)) * TICK > ONE_USE.as_millis();
        let to = if list == List::Mfu || again { List::Mfu } else { List::Mru };
        self.promote(key, place, to);
        Some(block)
    }

    /// See [`super::Cache::joined`].
    pub fn joined(&mut self, key: &Key, metadata: bool, access: Access, other: Access, now: Duration) {
        self.counters.iohits[access as usize][usize::from(metadata)] += 1;
        if access.is_prefetch() {
            return;
        }
        if other.is_prefetch() {
            self.counters.demanded_iohits[other as usize] += 1;
        }
        let Some(place) = self.find_block(key) else { return };
        let entry = &mut self.blocks[place.at()];
        let (first, keep) = (entry.is(PREFETCHED), entry.is(KEEP));
        entry.note(Access::Demand);
        if first {
            entry.used = ticks(now);
        }
        if !keep {
            drop(self.remove(key));
        }
    }

    pub fn insert(&mut self, key: Key, block: Block, access: Access, now: Duration, limit: u64) -> Gone {
        let mut gone = Gone::new();
        let entry = Entry::new(&key, block, access, now);
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
                self.take_ghost(place.list(), place.at());
                List::Mfu
            }
        };
        self.held.change(to, &entry, |a, b| a + b);
        let place = Place::of_block(to, self.blocks.add(to, entry));
        self.entries_max = self.entries_max.max(self.entries());
        match found {
            Some(old) => self.replace(&key, old, place),
            None => {
                let Shard { table, hasher, blocks, ghosts, .. } = self;
                let hash_of = |p: &Place| hasher.hash_one(key_of(blocks, ghosts, *p));
                table.insert_unique(hasher.hash_one(key), place, hash_of);
            }
        }
        gone.extend(self.trim(limit, Some(now)));
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

    /// Evicts until the shard is within `limit`; keys become ghosts. What was read ahead a moment
    /// before `now` goes after others.
    pub fn trim(&mut self, limit: u64, now: Option<Duration>) -> Gone {
        let mut gone = Gone::new();
        let mut passed_by = 0;
        while self.size() > limit {
            let recent = (limit / LEAST_RECENT).max(READ_AHEAD.min(limit / MOST_READ_AHEAD));
            let least = self.p.max(recent);
            let too_many = self.blocks.size(List::Mru) > least || self.blocks.count(List::Mfu) == 0;
            let from_mru = self.blocks.count(List::Mru) > 0 && too_many;
            let list = if from_mru { List::Mru } else { List::Mfu };
            let Some(at) = self.blocks.tail(list) else { break };
            let awaited = now.is_some_and(|now| self.blocks[at].is_awaited(now));
            if awaited && list == List::Mru && passed_by < PASSED_BY {
                passed_by += 1;
                self.counters.evict_skip += 1;
                self.blocks.promote(list, list, at);
                continue;
            }
            let old = Place::of_block(list, at);
            let entry = self.take(old);
            self.counters.evicted(list, u64::from(entry.lsize), entry.second());
            let ghost = Ghost::of(&entry);
            self.ghosts_held[list as usize][ghost.kind()] += ghost.size();
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
                let ghost = self.take_ghost(list, at);
                self.forget(&ghost.name.key(), Place::of_ghost(list, at));
            }
        }
        self.p = self.p.min(limit);
        gone
    }

    /// Forgets all, and goes on counting.
    pub fn empty(&mut self) -> Shard {
        let Shard { counters, entries_max, .. } = *self;
        std::mem::replace(self, Shard { counters, entries_max, ..Shard::default() })
    }

    /// A cache device has it.
    pub fn had(&mut self, key: &Key) {
        if let Some(place) = self.find_block(key) {
            self.blocks[place.at()].flags |= L2_HAD;
        }
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
            self.take_ghost(place.list(), place.at());
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
        self.held.change(place.list(), &entry, |a, b| a - b);
        entry
    }

    fn take_ghost(&mut self, list: List, at: u32) -> Ghost {
        let ghost = self.ghosts.take(list, at);
        self.ghosts_held[list as usize][ghost.kind()] -= ghost.size();
        ghost
    }

    fn promote(&mut self, key: &Key, place: Place, to: List) {
        self.blocks.promote(place.list(), to, place.at());
        if place.list() != to {
            let entry = &self.blocks[place.at()];
            self.held.change(place.list(), entry, |a, b| a - b);
            self.held.change(to, entry, |a, b| a + b);
            self.replace(key, place, Place::of_block(to, place.at()));
        }
    }

    fn entries(&self) -> u64 {
        self.blocks.count(List::Mru) + self.blocks.count(List::Mfu)
    }

    pub fn sizes(&self) -> Sizes {
        let entries = self.entries();
        let lists = self.blocks.bytes() + self.ghosts.bytes();
        let both = |of: &dyn Fn(List) -> u64| [of(List::Mru), of(List::Mfu)];
        Sizes {
            lists: both(&|list| self.blocks.size(list)),
            ghosts: both(&|list| self.ghosts.size(list)),
            p: self.p,
            held: self.held.lists,
            uncached: self.held.uncached,
            ghosts_held: self.ghosts_held,
            uncompressed: self.held.uncompressed,
            entries,
            entries_max: self.entries_max,
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
