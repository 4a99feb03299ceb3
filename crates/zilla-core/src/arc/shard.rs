//! One shard: four lists over one table of entries.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::stats::Counters;
use super::{Block, Key, Tail, Wanted};

const NIL: u32 = u32::MAX;
/// Bytes of bookkeeping an entry costs; ghosts are bounded by this.
const OVERHEAD: u64 = 128;

/// One part in so many is for recent blocks whatever the ghosts say, for what is read ahead must
/// stay until it is asked for; and where that is little, what is read ahead of two streams, as far
/// as that is no more than a quarter.
const LEAST_RECENT: u64 = 16;
const READ_AHEAD: u64 = 16 << 20;
const MOST_READ_AHEAD: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
enum List {
    Mru = 0,
    Mfu = 1,
    MruGhost = 2,
    MfuGhost = 3,
    Free = 4,
}

struct Entry {
    key: Key,
    block: Option<Block>,
    size: u64,
    prev: u32,
    next: u32,
    list: List,
    /// Came by prefetch and was not asked for since.
    prefetched: bool,
    /// To be let go as soon as it was asked for.
    once: bool,
}

#[derive(Clone, Copy, Default)]
struct Ends {
    head: u32,
    tail: u32,
    size: u64,
    count: u64,
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
    /// Bytes of memory for entries, ghosts among them, and the table.
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

pub struct Shard {
    map: HashMap<Key, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    lists: [Ends; 4],
    /// Target size of the MRU list.
    p: u64,
    pub counters: Counters,
}

impl Default for Shard {
    fn default() -> Self {
        let empty = Ends { head: NIL, tail: NIL, size: 0, count: 0 };
        Shard {
            map: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            lists: [empty; 4],
            p: 0,
            counters: Counters::default(),
        }
    }
}

/// Buffers that were let go, to be freed outside the lock.
pub type Gone = SmallVec<[Block; 4]>;

impl Shard {
    pub fn size(&self) -> u64 {
        self.lists[0].size + self.lists[1].size
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.map.get(key).is_some_and(|&i| self.entries[i as usize].block.is_some())
    }

    pub fn get(&mut self, key: &Key, prefetch: bool) -> Option<Block> {
        let i = *self.map.get(key)?;
        let e = &mut self.entries[i as usize];
        let block = e.block.clone()?;
        let list = e.list;
        self.counters.hits[usize::from(prefetch)][usize::from(block.metadata)] += 1;
        if list == List::Mfu {
            self.counters.mfu_hits += 1;
        } else {
            self.counters.mru_hits += 1;
        }
        if prefetch {
            return Some(block);
        }
        if e.once {
            self.forget(i);
            return Some(block);
        }
        // The first use of what was prefetched is what the prefetch was for, not a second use.
        let first = std::mem::take(&mut e.prefetched);
        let to = if list == List::Mru && first { List::Mru } else { List::Mfu };
        self.unlink(i);
        self.push_front(i, to);
        Some(block)
    }

    pub fn insert(&mut self, key: Key, block: Block, prefetch: bool, limit: u64) -> Gone {
        let size = block.data.len() as u64 + OVERHEAD;
        let mut gone = Gone::new();
        let mut to = List::Mru;
        if let Some(&i) = self.map.get(&key) {
            let was = self.entries[i as usize].list;
            match was {
                List::MruGhost => {
                    self.counters.mru_ghost_hits += 1;
                    let ratio = (self.lists[3].size / self.lists[2].size.max(1)).max(1);
                    self.p = (self.p + size * ratio).min(limit);
                    to = List::Mfu;
                }
                List::MfuGhost => {
                    self.counters.mfu_ghost_hits += 1;
                    let ratio = (self.lists[2].size / self.lists[3].size.max(1)).max(1);
                    self.p = self.p.saturating_sub(size * ratio);
                    to = List::Mfu;
                }
                // New contents of a block that is here already: its place stays.
                other => to = other,
            }
            self.unlink(i);
            let e = &mut self.entries[i as usize];
            gone.extend(e.block.replace(block));
            e.size = size;
            (e.prefetched, e.once) = (prefetch, false);
            self.push_front(i, to);
        } else {
            let entry = Entry {
                key,
                block: Some(block),
                size,
                prev: NIL,
                next: NIL,
                list: List::Free,
                prefetched: prefetch,
                once: false,
            };
            let i = match self.free.pop() {
                Some(i) => {
                    self.entries[i as usize] = entry;
                    i
                }
                None => {
                    self.entries.push(entry);
                    (self.entries.len() - 1) as u32
                }
            };
            self.map.insert(key, i);
            self.push_front(i, to);
        }
        gone.extend(self.trim(limit));
        gone
    }

    /// Evicts until the shard is within `limit`; keys become ghosts.
    pub fn trim(&mut self, limit: u64) -> Gone {
        let mut gone = Gone::new();
        while self.size() > limit {
            let recent = (limit / LEAST_RECENT).max(READ_AHEAD.min(limit / MOST_READ_AHEAD));
            let least = self.p.max(recent);
            let from_mru =
                self.lists[0].count > 0 && (self.lists[0].size > least || self.lists[1].count == 0);
            let (list, ghost) =
                if from_mru { (List::Mru, List::MruGhost) } else { (List::Mfu, List::MfuGhost) };
            let i = self.lists[list as usize].tail;
            if i == NIL {
                break;
            }
            self.unlink(i);
            let e = &mut self.entries[i as usize];
            gone.extend(e.block.take());
            self.counters.deleted += 1;
            self.push_front(i, ghost);
        }
        // Ghosts remember as much again as the cache holds, but not more keys than it would be
        // cheap to remember.
        for ghost in [List::MruGhost, List::MfuGhost] {
            while self.lists[ghost as usize].size > limit / 2
                || self.lists[ghost as usize].count * OVERHEAD > limit / 8
            {
                let i = self.lists[ghost as usize].tail;
                if i == NIL {
                    break;
                }
                self.forget(i);
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
        self.entries[*self.map.get(key)? as usize].block.clone()
    }

    pub fn once(&mut self, key: &Key) {
        if let Some(&i) = self.map.get(key) {
            self.entries[i as usize].once = true;
        }
    }

    /// See [`super::Cache::used_before`].
    pub fn used_before(&mut self, key: &Key) {
        let Some(&i) = self.map.get(key) else { return };
        if self.entries[i as usize].list == List::Mru {
            self.unlink(i);
            self.push_front(i, List::Mfu);
        }
    }

    /// See [`super::Cache::tail`].
    pub fn tail(&self, what: Wanted, glance: usize, bytes: u64, tail: &mut Tail) -> bool {
        let list = if what.frequent { List::Mfu } else { List::Mru };
        let mut i = match tail.at {
            None => self.lists[list as usize].tail,
            // If it has gone elsewhere in between the walk is over: the next one begins at the tail
            // again.
            Some((i, key)) => match self.entries.get(i as usize) {
                Some(e) if e.key == key && e.list == list => i,
                _ => NIL,
            },
        };
        for _ in 0..glance {
            if i == NIL || tail.bytes > bytes {
                return false;
            }
            let e = &self.entries[i as usize];
            tail.bytes += e.size;
            if e.block.as_ref().is_some_and(|b| b.l2.wanted && b.metadata == what.metadata) && !e.once {
                tail.keys.push((e.key, e.prefetched));
            }
            i = e.prev;
        }
        tail.at = (i != NIL).then(|| (i, self.entries[i as usize].key));
        i != NIL
    }

    pub fn remove(&mut self, key: &Key) -> Option<Block> {
        let i = *self.map.get(key)?;
        let block = self.entries[i as usize].block.take();
        self.forget(i);
        block
    }

    fn forget(&mut self, i: u32) {
        self.unlink(i);
        let e = &mut self.entries[i as usize];
        e.list = List::Free;
        e.block = None;
        let key = e.key;
        self.map.remove(&key);
        self.free.push(i);
    }

    fn unlink(&mut self, i: u32) {
        let Entry { prev, next, list, size, .. } = self.entries[i as usize];
        let Some(ends) = self.lists.get_mut(list as usize) else { return };
        ends.size -= size;
        ends.count -= 1;
        if prev == NIL {
            ends.head = next;
        }
        if next == NIL {
            ends.tail = prev;
        }
        if prev != NIL {
            self.entries[prev as usize].next = next;
        }
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
    }

    fn push_front(&mut self, i: u32, list: List) {
        let ends = &mut self.lists[list as usize];
        let head = ends.head;
        ends.head = i;
        if ends.tail == NIL {
            ends.tail = i;
        }
        ends.size += self.entries[i as usize].size;
        ends.count += 1;
        let e = &mut self.entries[i as usize];
        (e.prev, e.next, e.list) = (NIL, head, list);
        if head != NIL {
            self.entries[head as usize].prev = i;
        }
    }

    fn headers(&self) -> u64 {
        // A table has a byte of tags beside each place, and is filled to seven eighths.
        let places = (self.map.capacity() * 8 / 7).next_power_of_two();
        let table = places * (size_of::<(Key, u32)>() + 1);
        let entries = self.entries.capacity() * size_of::<Entry>();
        (table + entries + self.free.capacity() * size_of::<u32>()) as u64
    }

    pub fn sizes(&self) -> Sizes {
        let mut s = Sizes {
            mru: self.lists[0].size,
            mfu: self.lists[1].size,
            mru_ghost: self.lists[2].size,
            mfu_ghost: self.lists[3].size,
            p: self.p,
            headers: self.headers(),
            ..Sizes::default()
        };
        for b in self.entries.iter().filter_map(|e| e.block.as_ref()) {
            *(if b.metadata { &mut s.metadata } else { &mut s.data }) += b.data.len() as u64;
            s.uncompressed += u64::from(b.lsize);
            s.entries += 1;
        }
        s
    }
}
