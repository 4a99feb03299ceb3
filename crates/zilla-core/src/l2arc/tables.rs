//! The words by which the index finds its entries, in several tables, each of which grows by
//! itself: there may be millions of words, and whoever waits for the index would wait while all of
//! them move.
//!
//! Which table a word is in follows from bits of its hash that the tables do not begin with.
//!
//! What is kept true: [`Tables::bytes`] is what all of them take.

use hashbrown::HashTable;

const TABLES: usize = 64;
/// The lowest bits are a word's place in its table, the highest its tag.
const SHIFT: u32 = 40;

pub struct Tables {
    all: Vec<HashTable<u64>>,
    bytes: u64,
}

fn index(hash: u64) -> usize {
    (hash >> SHIFT) as usize % TABLES
}

impl Tables {
    pub fn new() -> Tables {
        Tables { all: (0..TABLES).map(|_| HashTable::new()).collect(), bytes: 0 }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same if no table were larger than it must be.
    pub fn bytes_at_least(&self) -> u64 {
        let least = |t: &HashTable<u64>| {
            // A byte of tags beside each word, and filled to seven eighths.
            let slots = match t.len() as u64 {
                0 => 0,
                n => (n * 8).div_ceil(7).next_power_of_two(),
            };
            (slots * (size_of::<u64>() as u64 + 1)).min(t.allocation_size() as u64)
        };
        self.all.iter().map(least).sum()
    }

    /// Bytes more that one word more may take: a table that has no room doubles.
    pub fn growth(&self, hash: u64) -> u64 {
        let Some(table) = self.all.get(index(hash)) else { return 0 };
        if table.len() == table.capacity() { table.allocation_size() as u64 } else { 0 }
    }

    pub fn find(&self, hash: u64, is: impl Fn(u64) -> bool) -> Option<u64> {
        self.all.get(index(hash))?.find(hash, |w| is(*w)).copied()
    }

    pub fn insert(&mut self, hash: u64, word: u64, hash_of: impl Fn(u64) -> u64) {
        if let Some(table) = self.all.get_mut(index(hash)) {
            let before = table.allocation_size();
            table.insert_unique(hash, word, |w| hash_of(*w));
            self.bytes += (table.allocation_size() - before) as u64;
        }
    }

    pub fn remove(&mut self, hash: u64, word: u64) {
        let table = self.all.get_mut(index(hash));
        if let Some(Ok(found)) = table.map(|t| t.find_entry(hash, |w| *w == word)) {
            found.remove();
        }
    }

    /// Gives back what is not needed.
    pub fn shrink(&mut self, hash_of: impl Fn(u64) -> u64) {
        self.all.iter_mut().for_each(|t| t.shrink_to_fit(|w| hash_of(*w)));
        self.bytes = self.all.iter().map(|t| t.allocation_size() as u64).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(word: u64) -> u64 {
        let h = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h ^ h >> 32
    }

    /// One word more moves a small part of all at most.
    #[test]
    fn they_grow_one_after_the_other() {
        let (mut tables, all) = (Tables::new(), 1 << 17);
        for word in 0..all {
            let (before, growth) = (tables.bytes(), tables.growth(hash(word)));
            tables.insert(hash(word), word, hash);
            let grown = tables.bytes() - before;
            assert!(grown <= growth.max(256) && (word < 4096 || growth <= before / 16), "{grown} at {word}");
        }
        assert!((0..all).all(|w| tables.find(hash(w), |found| found == w) == Some(w)));
        (1000..all).for_each(|w| tables.remove(hash(w), w));
        let before = tables.bytes();
        tables.shrink(hash);
        assert!(tables.bytes() < before / 50 && tables.bytes() <= tables.bytes_at_least() + 64 * 64);
        assert!((0..1000).all(|w| tables.find(hash(w), |found| found == w) == Some(w)));
        (0..1000).for_each(|w| tables.remove(hash(w), w));
        tables.shrink(hash);
        assert_eq!(tables.bytes(), 0);
    }
}
