//! How the kernel is to treat the files it opens: through its page cache, or directly.
//!
//! **Writes that are to be stable.** Through the cache, a write to a file opened with O_DSYNC or
//! O_SYNC comes here as a write and then an fsync, each with the file locked against all other
//! writers: two round trips, and no two writers can share a commit. Directly, it comes as one
//! request, several at once, and each is answered when it is stable. Measured on a mirror on disk,
//! 8K writes of 1, 10 and 32 processes: 2,700, 2,400 and 2,100 a second through the cache, 3,500,
//! 8,800 and 21,500 directly.
//!
//! **New files that are only written**, as cp, tar and shells make them. Through the cache each
//! byte is copied once more, into pages that the kernel has to find first, and that take memory
//! which the ARC has a use for; and before the first write the kernel asks whether there are
//! capabilities to be taken from the file. In return, who is the first to read one gets it from the
//! ARC instead of the kernel. Measured on two virtual cores, in memory: 400 MB that do not compress
//! are written at 310 MB/s instead of 165; files of 4K are made 1.3 times as fast, by one process
//! or four, and read for the first time at 55,000 a second instead of 190,000.
//!
//! Two ways to one file's data need not agree: on older kernels a page read while a direct write is
//! under way may be what was there before, and stays. So who has a file open for stable writes has
//! all who open it meanwhile go the same way. (Programs that write so and map the same file
//! besides, LMDB does, have opened it for the mapping before.) Who reads a new file goes through
//! the cache; new files are written directly where the kernel forgets the pages once more when such
//! a write is done ([`new_directly`]).
//!
//! **Where the property `direct` says `always`** all files go directly, as long as the kernel asks.
//!
//! Being asked for every file costs each open a request, and another when it is closed; reading
//! many small files that the kernel has in its cache takes more than twice as long. So who has not
//! opened one file for stable writes among [`ENOUGH`] is not expected to, and the kernel is told,
//! once and for all until it is mounted anew, that it need not ask. It goes on asking for new
//! files.

use crate::abi::{self, fopen};
use parking_lot::Mutex;
use std::collections::HashMap;
use zilla::NodeId;

/// So many files are opened before the kernel is told not to ask. They cost a fiftieth of a second
/// together.
const ENOUGH: u32 = 1000;

/// Handles say how their file was opened. Through the cache:
pub(crate) const CACHED: u64 = 0;
/// Directly, and its writes are stable when they are answered:
pub(crate) const STABLE: u64 = 1;
/// Directly because another is, or because the file is new and only written:
const DIRECT: u64 = 2;

pub(crate) struct Opens(Mutex<State>);

struct State {
    /// How many more there will be without one for stable writes; None: there was one.
    left: Option<u32>,
    /// New files that are only written go directly.
    new: bool,
    /// What is open, as far as the kernel tells.
    files: HashMap<NodeId, File>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// All go through the cache.
    Cached,
    /// Whoever made it goes directly, and who wants stable writes.
    New,
    /// All go directly.
    Stable,
}

struct File {
    users: u32,
    way: Way,
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

impl Opened {
    fn direct(stable: bool) -> Opened {
        Opened {
            handle: if stable { STABLE } else { DIRECT },
            flags: fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::NOFLUSH,
        }
    }
}

fn is_stable(flags: u32) -> bool {
    flags & abi::O_ACCMODE != abi::O_RDONLY && flags & abi::O_DSYNC != 0
}

/// Whether new files may be written directly: from Linux 6.19 on, 6.18.10 and 6.12.70 of the
/// long-lived ones. That is when "fuse: Invalidate the page cache after FOPEN_DIRECT_IO write" was
/// certainly in; and they all say when a new file is closed, even where they do not ask for others.
pub(crate) fn new_directly(linux: [u32; 3]) -> bool {
    match linux {
        [6, 12, patch] => patch >= 70,
        [6, 18, patch] => patch >= 10,
        _ => linux >= [6, 19, 0],
    }
}

impl Opens {
    pub(crate) fn new(new: bool) -> Opens {
        Opens(Mutex::new(State { left: Some(ENOUGH), new, files: HashMap::new() }))
    }

    /// Everything goes through the cache.
    pub(crate) fn never(&self) {
        let mut st = self.0.lock();
        (st.left, st.new) = (Some(0), false);
    }

    /// Whether new files are of interest.
    pub(crate) fn asked_for_new(&self) -> bool {
        let st = self.0.lock();
        st.new || st.left != Some(0)
    }

    /// Someone opens a file, of a file system that wants all to go `past` the cache or not; None:
    /// the kernel need not ask any more.
    pub(crate) fn open(&self, node: NodeId, flags: u32, past: bool) -> Option<Opened> {
        let mut st = self.0.lock();
        if st.left == Some(0) {
            return None;
        }
        let stable = is_stable(flags);
        let way = if stable || past { Way::Stable } else { Way::Cached };
        let file = st.files.entry(node).or_insert(File { users: 0, way });
        file.users += 1;
        let direct = file.way == Way::Stable || file.way == Way::New && stable;
        st.left = st.left.filter(|_| !direct).map(|n| n - 1);
        if st.left == Some(0) {
            st.files.retain(|_, f| f.way != Way::Cached);
        }
        Some(if direct { Opened::direct(stable) } else { Opened::default() })
    }

    /// Someone has made a file and opens it.
    pub(crate) fn create(&self, node: NodeId, flags: u32, past: bool) -> Opened {
        let mut st = self.0.lock();
        let written = flags & abi::O_ACCMODE == abi::O_WRONLY;
        if !st.new || !written || (past || is_stable(flags)) && st.left != Some(0) {
            drop(st);
            // Should the kernel have been told meanwhile that it need not ask: it did, and this is
            // how it is without.
            return self.open(node, flags, past).unwrap_or_default();
        }
        st.files.insert(node, File { users: 1, way: Way::New });
        Opened::direct(is_stable(flags))
    }

    /// The last who shared an opened file has closed it.
    pub(crate) fn release(&self, node: NodeId) {
        let mut st = self.0.lock();
        if let Some(file) = st.files.get_mut(&node) {
            file.users -= 1;
            if file.users == 0 {
                st.files.remove(&node);
            }
        }
    }

    /// There are files that not everyone who may write may open for writing: the kernel is to go on
    /// asking, if it still does.
    pub(crate) fn always(&self) {
        let mut st = self.0.lock();
        st.left = st.left.filter(|left| *left == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RDWR: u32 = 2;

    fn handle(o: &Opens, node: NodeId, flags: u32) -> Option<u64> {
        o.open(node, flags, false).map(|o| o.handle)
    }

    #[test]
    fn who_opens_first_decides_for_all() {
        let o = Opens::new(true);
        assert_eq!(handle(&o, 7, RDWR | abi::O_DSYNC), Some(STABLE));
        assert_eq!(handle(&o, 7, abi::O_RDONLY), Some(DIRECT));
        assert_eq!(handle(&o, 8, abi::O_RDONLY), Some(CACHED));
        assert_eq!(handle(&o, 8, RDWR | abi::O_DSYNC), Some(CACHED));
        o.release(7);
        assert_eq!(handle(&o, 7, RDWR), Some(DIRECT), "one is left");
        (0..2).for_each(|_| o.release(7));
        assert_eq!(handle(&o, 7, RDWR), Some(CACHED));
        assert_eq!(handle(&o, 9, abi::O_RDONLY | abi::O_DSYNC), Some(CACHED), "it writes nothing");
    }

    #[test]
    fn the_kernel_is_not_asked_for_ever() {
        let o = Opens::new(false);
        for _ in 0..ENOUGH {
            assert!(o.asked_for_new());
            assert_eq!(handle(&o, 7, RDWR), Some(CACHED));
        }
        assert!(!o.asked_for_new());
        assert_eq!(handle(&o, 9, RDWR | abi::O_DSYNC), None);
        o.release(7);
        let o = Opens::new(false);
        assert_eq!(handle(&o, 9, RDWR | abi::O_DSYNC), Some(STABLE));
        (0..=ENOUGH).for_each(|_| assert_eq!(handle(&o, 7, RDWR), Some(CACHED)));
        let o = Opens::new(true);
        o.never();
        assert_eq!(o.open(7, RDWR | abi::O_DSYNC, false), None);
        assert!(!o.asked_for_new());
    }

    #[test]
    fn new_files_that_are_only_written_go_directly() {
        let create = |o: &Opens, node, flags| o.create(node, flags, false).handle;
        let o = Opens::new(true);
        assert_eq!(create(&o, 1, RDWR), CACHED);
        assert_eq!(create(&o, 2, abi::O_WRONLY | abi::O_DSYNC), STABLE);
        assert_eq!(handle(&o, 2, abi::O_RDONLY), Some(DIRECT));
        let o = Opens::new(true);
        assert_eq!(create(&o, 3, abi::O_WRONLY), DIRECT);
        assert_eq!(handle(&o, 3, RDWR), Some(CACHED), "others need not follow");
        assert!((1..ENOUGH).all(|_| o.open(4, RDWR, false).is_some()));
        assert_eq!(handle(&o, 3, RDWR), None);
        assert!(o.asked_for_new());
        assert_eq!(create(&o, 5, abi::O_WRONLY | abi::O_DSYNC), STABLE);
        assert_eq!(create(&o, 6, RDWR), CACHED);
        // Each is known until all have closed it.
        [3, 4, 5, 6].into_iter().for_each(|node| o.release(node));
        assert_eq!(o.0.lock().files.keys().collect::<Vec<_>>(), [&3]);
        o.release(3);
        assert!(o.0.lock().files.is_empty());
        let o = Opens::new(false);
        assert_eq!(create(&o, 3, abi::O_WRONLY), CACHED, "nobody would tell when it is closed");
    }

    #[test]
    fn where_all_are_to_go_past_the_cache_they_do() {
        let o = Opens::new(true);
        let past = |node, flags| o.open(node, flags, true).map(|o| o.handle);
        assert_eq!(past(7, abi::O_RDONLY), Some(DIRECT));
        assert_eq!(handle(&o, 7, RDWR), Some(DIRECT), "the way of who has it open");
        assert_eq!(o.create(8, RDWR, true).handle, DIRECT);
        assert_eq!(o.create(9, abi::O_WRONLY, true).handle, DIRECT);
        assert_eq!(handle(&o, 9, abi::O_RDONLY), Some(DIRECT), "who reads it as well");
    }

    #[test]
    fn kernels_that_keep_old_pages() {
        let old = [[6, 1, 150], [6, 8, 0], [6, 12, 63], [6, 17, 13], [6, 18, 0]];
        assert!(!old.into_iter().any(new_directly));
        assert!([[6, 12, 74], [6, 18, 44], [6, 19, 0], [7, 0, 3]].into_iter().all(new_directly));
    }

    #[test]
    fn who_must_be_asked_always_is() {
        let o = Opens::new(false);
        o.always();
        (0..=ENOUGH).for_each(|_| assert_eq!(handle(&o, 7, RDWR), Some(CACHED)));
        o.never();
        o.always();
        assert_eq!(handle(&o, 7, RDWR), None, "it was told that it need not");
    }
}
