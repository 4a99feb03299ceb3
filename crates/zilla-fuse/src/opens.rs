//! How the kernel is to treat the files it opens: through its page cache, or directly.
//!
//! Through the cache, a write to a file opened with O_DSYNC or O_SYNC comes here as a write and then an fsync, each with the file locked
//! against all other writers: two round trips, and no two writers can share a commit. Directly, it comes as one request, several
//! at once, and each is answered when it is stable. Measured on a mirror on disk, 8K writes of 1, 10 and 32 processes: 2,700, 2,400 and
//! 2,100 a second through the cache, 3,500, 8,800 and 21,500 directly.
//!
//! Two ways to one file's data would not agree: a page read while a direct write is under way may be what was there before, and stays.
//! So all who have a file open at a time go the same way. Who opens it first decides, and only for writes that are to be stable is that the
//! direct way. Programs that write so and map the same file besides (LMDB does) have opened it for the mapping before.
//!
//! Being asked for every file costs each open a request, and another when it is closed; reading many small files that the kernel has in
//! its cache takes more than twice as long. So who has not opened one file in such a way among [`ENOUGH`] is not expected to, and the kernel
//! is told, once and for all until it is mounted anew, that it need not ask.

use crate::abi::{self, fopen};
use parking_lot::Mutex;
use std::collections::HashMap;
use zilla::NodeId;

/// So many files are opened before the kernel is told not to ask. They cost a fiftieth of a second together.
const ENOUGH: u32 = 1000;

/// Handles say how their file was opened. Through the cache:
const CACHED: u64 = 0;
/// Directly, and its writes are stable when they are answered:
pub(crate) const STABLE: u64 = 1;
/// Directly because another is:
const DIRECT: u64 = 2;

pub(crate) struct Opens(Mutex<State>);

struct State {
    /// How many more there will be without one that goes the direct way; None: there was one.
    left: Option<u32>,
    /// What is open, by how many, and whether directly.
    files: HashMap<NodeId, (u32, bool)>,
}

/// What the kernel is told of a file it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
}

/// Through the cache, which is how the kernel goes about it unasked.
impl Default for Opened {
    fn default() -> Opened {
        Opened { handle: CACHED, flags: fopen::KEEP_CACHE | fopen::NOFLUSH }
    }
}

impl Default for Opens {
    fn default() -> Opens {
        Opens(Mutex::new(State { left: Some(ENOUGH), files: HashMap::new() }))
    }
}

impl Opens {
    /// Everything goes through the cache.
    pub(crate) fn never(&self) {
        self.0.lock().left = Some(0);
    }

    /// Whether the kernel still asks.
    pub(crate) fn asked(&self) -> bool {
        self.0.lock().left != Some(0)
    }

    /// Someone opens a file; None: the kernel need not ask any more.
    pub(crate) fn open(&self, node: NodeId, flags: u32) -> Option<Opened> {
        let mut st = self.0.lock();
        if st.left == Some(0) {
            return None;
        }
        let stable = flags & abi::O_ACCMODE != 0 && flags & abi::O_DSYNC != 0;
        let (users, direct) = st.files.entry(node).or_insert((0, stable));
        *users += 1;
        let direct = *direct;
        st.left = if direct { None } else { st.left.map(|n| n - 1) };
        if st.left == Some(0) {
            st.files = HashMap::new();
        }
        Some(match (direct, stable) {
            (false, _) => Opened::default(),
            (true, stable) => Opened {
                handle: if stable { STABLE } else { DIRECT },
                flags: fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH,
            },
        })
    }

    /// The last who shared an opened file has closed it.
    pub(crate) fn release(&self, node: NodeId) {
        let mut st = self.0.lock();
        if let Some((users, _)) = st.files.get_mut(&node) {
            *users -= 1;
            if *users == 0 {
                st.files.remove(&node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RDONLY: u32 = 0;
    const RDWR: u32 = 2;

    fn handle(o: &Opens, node: NodeId, flags: u32) -> Option<u64> {
        o.open(node, flags).map(|o| o.handle)
    }

    #[test]
    fn who_opens_first_decides_for_all() {
        let o = Opens::default();
        assert_eq!(handle(&o, 7, RDWR | abi::O_DSYNC), Some(STABLE));
        assert_eq!(handle(&o, 7, RDONLY), Some(DIRECT));
        assert_eq!(handle(&o, 8, RDONLY), Some(CACHED));
        assert_eq!(handle(&o, 8, RDWR | abi::O_DSYNC), Some(CACHED));
        o.release(7);
        assert_eq!(handle(&o, 7, RDWR), Some(DIRECT), "one is left");
        (0..2).for_each(|_| o.release(7));
        assert_eq!(handle(&o, 7, RDWR), Some(CACHED));
        assert_eq!(handle(&o, 9, RDONLY | abi::O_DSYNC), Some(CACHED), "it writes nothing");
    }

    #[test]
    fn the_kernel_is_not_asked_for_ever() {
        let o = Opens::default();
        for _ in 0..ENOUGH {
            assert!(o.asked());
            assert_eq!(handle(&o, 7, RDWR), Some(CACHED));
        }
        assert!(!o.asked());
        assert_eq!(handle(&o, 9, RDWR | abi::O_DSYNC), None);
        o.release(7);
        let o = Opens::default();
        assert_eq!(handle(&o, 9, RDWR | abi::O_DSYNC), Some(STABLE));
        (0..=ENOUGH).for_each(|_| assert_eq!(handle(&o, 7, RDWR), Some(CACHED)));
        let o = Opens::default();
        o.never();
        assert_eq!(o.open(7, RDWR | abi::O_DSYNC), None);
    }
}
