//! Two lists of items in one slab, the most recent use first: blocks that are here, or ghosts.
//!
//! An item's number stays the same until the item is taken out. Memory comes in chunks, so nothing
//! moves when there is more, and at most a chunk lies idle; what is free is used again.

use std::ops::{Index, IndexMut};

/// Items of a chunk.
const CHUNK: usize = 128;
const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum List {
    /// Used once.
    Mru = 0,
    /// Used more often.
    Mfu = 1,
}

/// What is in the lists; its default is what is in a free place.
pub trait Item: Default {
    /// What the sizes of the lists count it with.
    fn size(&self) -> u64;
}

struct Node<T> {
    item: T,
    /// Towards the head.
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
    size: u64,
    count: u64,
}

pub struct Lists<T> {
    chunks: Vec<Vec<Node<T>>>,
    /// The first free place; `next` leads on.
    free: u32,
    ends: [Ends; 2],
}

impl<T: Item> Lists<T> {
    /// Bytes of memory that an item takes.
    pub const EACH: u64 = size_of::<Node<T>>() as u64;

    pub fn new() -> Lists<T> {
        let empty = Ends { head: NIL, tail: NIL, size: 0, count: 0 };
        Lists { chunks: Vec::new(), free: NIL, ends: [empty; 2] }
    }

    pub fn size(&self, list: List) -> u64 {
        self.ends[list as usize].size
    }

    pub fn count(&self, list: List) -> u64 {
        self.ends[list as usize].count
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK) as u64 * Self::EACH
    }

    /// The one whose last use is longest ago.
    pub fn tail(&self, list: List) -> Option<u32> {
        some(self.ends[list as usize].tail)
    }

    /// The one that was used next after `at`.
    pub fn later(&self, at: u32) -> Option<u32> {
        some(self.node(at).prev)
    }

    /// Puts an item in at the head.
    pub fn add(&mut self, list: List, item: T) -> u32 {
        let at = match some(self.free) {
            Some(at) => {
                self.free = self.node(at).next;
                self.node_mut(at).item = item;
                at
            }
            None => self.append(Node { item, prev: NIL, next: NIL }),
        };
        self.push(list, at);
        at
    }

    /// Takes an item out.
    pub fn take(&mut self, list: List, at: u32) -> T {
        self.unlink(list, at);
        let free = std::mem::replace(&mut self.free, at);
        let node = self.node_mut(at);
        node.next = free;
        std::mem::take(&mut node.item)
    }

    /// Moves an item to the head of a list.
    pub fn promote(&mut self, from: List, to: List, at: u32) {
        self.unlink(from, at);
        self.push(to, at);
    }

    fn append(&mut self, node: Node<T>) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = &mut self.chunks[before / CHUNK];
        chunk.push(node);
        (before + chunk.len() - 1) as u32
    }

    fn unlink(&mut self, list: List, at: u32) {
        let node = self.node(at);
        let (prev, next, size) = (node.prev, node.next, node.item.size());
        let ends = &mut self.ends[list as usize];
        ends.size -= size;
        ends.count -= 1;
        match some(prev) {
            Some(prev) => self.node_mut(prev).next = next,
            None => ends.head = next,
        }
        match some(next) {
            Some(next) => self.node_mut(next).prev = prev,
            None => self.ends[list as usize].tail = prev,
        }
    }

    fn push(&mut self, list: List, at: u32) {
        let head = self.ends[list as usize].head;
        let node = self.node_mut(at);
        (node.prev, node.next) = (NIL, head);
        let size = node.item.size();
        if let Some(head) = some(head) {
            self.node_mut(head).prev = at;
        }
        let ends = &mut self.ends[list as usize];
        ends.head = at;
        if ends.tail == NIL {
            ends.tail = at;
        }
        ends.size += size;
        ends.count += 1;
    }

    fn node(&self, at: u32) -> &Node<T> {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node<T> {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

impl<T: Item> Index<u32> for Lists<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        &self.node(at).item
    }
}

impl<T: Item> IndexMut<u32> for Lists<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.node_mut(at).item
    }
}

fn some(at: u32) -> Option<u32> {
    (at != NIL).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    impl Item for u64 {
        fn size(&self) -> u64 {
            *self
        }
    }

    /// Against two queues, through several chunks.
    #[test]
    fn they_are_two_queues() {
        let mut lists: Lists<u64> = Lists::new();
        let mut model: [VecDeque<(u32, u64)>; 2] = Default::default();
        let mut x = 1u64;
        let mut below = |n: usize| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) as usize % n
        };
        for step in 0..20_000u64 {
            let list = [List::Mru, List::Mfu][below(2)];
            let many = model[list as usize].len();
            match below(5) {
                0 | 1 => {
                    let at = lists.add(list, step);
                    model[list as usize].push_front((at, step));
                }
                2 if many > 0 => {
                    let (at, item) = model[list as usize].remove(below(many)).unwrap();
                    let to = [List::Mru, List::Mfu][below(2)];
                    lists.promote(list, to, at);
                    model[to as usize].push_front((at, item));
                }
                3 if many > 0 => {
                    let (at, item) = model[list as usize].remove(below(many)).unwrap();
                    assert_eq!((lists[at], lists.take(list, at)), (item, item));
                }
                _ => {
                    let oldest = model[list as usize].back();
                    assert_eq!(lists.tail(list), oldest.map(|(at, _)| *at));
                }
            }
            let queue = &model[list as usize];
            assert_eq!(lists.count(list), queue.len() as u64);
            assert_eq!(lists.size(list), queue.iter().map(|(_, item)| item).sum::<u64>());
        }
        assert!(lists.chunks.len() > 2, "{} chunks", lists.chunks.len());
        for list in [List::Mru, List::Mfu] {
            let mut at = lists.tail(list);
            for (expected, item) in model[list as usize].iter().rev() {
                assert_eq!((at, lists[*expected]), (Some(*expected), *item));
                at = lists.later(*expected);
            }
            assert_eq!(at, None);
        }
    }
}
