//! I/O buffers: page-aligned so that direct I/O takes them as they are, and recycled, because the
//! first touch of fresh memory (a page fault, and in a virtual machine a second one in the host)
//! costs ten times what the I/O's own copy costs.
//!
//! Freed buffers go to a free list per size class (four classes to a power of two, so at most a
//! quarter is wasted). Memory comes from the kernel in chunks that grow with their class. A
//! recycled buffer holds stale but initialised bytes, which is why [`IoBuf::scratch`] is safe.
//!
//! **Deliberately absent.** Huge pages. They make one page fault of 512, a gain of a fifth of a
//! second for each GiB that is touched for the first time, and of 5 % where all reads are served
//! from memory. But a virtual machine gives its free memory back to its host in just that size
//! (free page reporting), and its first touch is then answered by the host: 2.3 s/GiB were measured
//! instead of 0.4 with small pages, and writing a file through FUSE took twice the time.
//!
//! Free buffers that hold memory are bounded by [`set_pool_limit`]; beyond it a freed buffer's
//! memory goes back to the kernel and only its address is kept for the next taker, who gets zeroes
//! there. [`trim_pool`] does that for all of them, [`age_pool`] for those that nobody has needed
//! for a while, so that a program that has nothing to do is a small one.
//!
//! A read that arrives in pieces from several devices is read into one buffer: [`Whole`] lends it
//! out in parts.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use smallvec::SmallVec;

/// Alignment of every buffer, enough for direct I/O everywhere.
pub const PAGE: usize = 4096;

const CLASSES: usize = 64;
/// A class's first chunk; each further one is as large as what the class has, up to a limit.
const FIRST_CHUNK: usize = 64 << 10;
const LARGEST_CHUNK: usize = 4 << 20;
/// Fresh buffers of this size and more get their pages together.
const TOGETHER: usize = 32 << 10;

/// An owned, page-aligned buffer of fixed length, or a part of one (then aligned as its place in it
/// is).
pub struct IoBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Bytes taken from the pool: the size of a class. Nothing for a part, whose memory is its
    /// whole's.
    cap: usize,
    whole: Option<Arc<Bytes>>,
}

// SAFETY: the buffer owns its memory alone; `&IoBuf` only gives out shared slices.
unsafe impl Send for IoBuf {}
// SAFETY: as above, there is no interior mutability.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> IoBuf {
        let (mut buf, fresh) = IoBuf::take(len);
        if !fresh {
            buf.fill(0);
        }
        buf
    }

    /// A buffer whose contents are unspecified (whatever its last user left): for callers that
    /// overwrite it.
    pub fn scratch(len: usize) -> IoBuf {
        IoBuf::take(len).0
    }

    pub fn from_slice(data: &[u8]) -> IoBuf {
        let mut buf = IoBuf::scratch(data.len());
        crate::copy::copy_away(&mut buf, data);
        buf
    }

    /// Hands the buffer on as `Bytes` without a copy; the memory is recycled when the last clone
    /// goes.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Forgets the bytes after `len`. The capacity stays with the buffer.
    pub fn truncate(&mut self, len: usize) {
        let before = self.waste();
        self.len = self.len.min(len);
        if self.waste() > before {
            POOL.waste.fetch_add(self.waste() - before, Ordering::Relaxed);
        }
    }

    /// Bytes that it has and nobody asked for.
    fn waste(&self) -> usize {
        self.cap.saturating_sub(self.len)
    }

    fn take(len: usize) -> (IoBuf, bool) {
        let (class, cap) = class_of(len);
        let (page, fresh) = match POOL.lists.get(class) {
            Some(list) => list.lock().take(cap),
            None => (Page(map(cap)), true),
        };
        let buf = IoBuf { ptr: page.0, len, cap, whole: None };
        if class >= CLASSES {
            POOL.beyond.fetch_add(cap, Ordering::Relaxed);
        }
        if buf.waste() > 0 {
            POOL.waste.fetch_add(buf.waste(), Ordering::Relaxed);
        }
        if fresh && cap >= TOGETHER {
            populate(buf.ptr, len);
        }
        (buf, fresh)
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        if self.waste() > 0 {
            POOL.waste.fetch_sub(self.waste(), Ordering::Relaxed);
        }
        let page = Page(self.ptr);
        let Some(list) = POOL.lists.get(class_of(self.cap).0) else {
            unmap(self.ptr, self.cap);
            POOL.beyond.fetch_sub(self.cap, Ordering::Relaxed);
            return;
        };
        // Over the limit by a race of a few buffers is harmless.
        let kept = POOL.retained.fetch_add(self.cap, Ordering::Relaxed);
        if kept + self.cap <= POOL.limit.load(Ordering::Relaxed) {
            list.lock().warm.push(page);
        } else {
            POOL.retained.fetch_sub(self.cap, Ordering::Relaxed);
            forget(self.ptr, self.cap);
            list.lock().cold.push(page);
        }
    }
}

/// A buffer that is lent out in parts, to be filled by several reads, and is one again when they
/// have all come back.
pub struct Whole {
    /// Which nobody sees before all parts are back.
    bytes: Arc<Bytes>,
    parts: SmallVec<[Range<usize>; 8]>,
}

impl Whole {
    /// The ranges, which ascend and do not overlap, as buffers of their own.
    pub fn lend(buf: IoBuf, ranges: impl IntoIterator<Item = Range<usize>>) -> (Whole, Vec<IoBuf>) {
        let (start, len) = (buf.ptr, buf.len);
        let bytes = Arc::new(buf.into_bytes());
        let parts: SmallVec<[Range<usize>; 8]> = ranges.into_iter().collect();
        let mut end = 0;
        let part = |r: &Range<usize>| {
            assert!(end <= r.start && r.start <= r.end && r.end <= len, "parts overlap or stand out");
            end = r.end;
            // SAFETY: within the buffer, as was just checked.
            let ptr = unsafe { start.add(r.start) };
            IoBuf { ptr, len: r.len(), cap: 0, whole: Some(bytes.clone()) }
        };
        let lent = parts.iter().map(part).collect();
        (Whole { bytes, parts }, lent)
    }

    /// The whole buffer, if these bytes, in order, are what became of all its parts.
    pub fn join<'a>(self, filled: impl IntoIterator<Item = &'a Bytes>) -> Option<Bytes> {
        let start = self.bytes.as_ptr() as usize;
        let mut filled = filled.into_iter();
        for part in &self.parts {
            let bytes = filled.next()?;
            if bytes.as_ptr() as usize != start + part.start || bytes.len() != part.len() {
                return None;
            }
        }
        // Every part is `Bytes` now, which nobody can write to any more.
        filled.next().is_none().then(|| Bytes::clone(&self.bytes))
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are this buffer's alone (a whole's are its parts' while any can be
        // written to, and nobody can reach them through it then), zeroed at first and only ever
        // overwritten since.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for IoBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<IoBuf> for Bytes {
    fn from(buf: IoBuf) -> Bytes {
        buf.into_bytes()
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

/// Bounds what freed buffers may keep (256 MiB at first).
pub fn set_pool_limit(bytes: usize) {
    POOL.limit.store(bytes, Ordering::Relaxed);
    if pool_retained() > bytes {
        trim_pool();
    }
}

/// Bytes in the free lists now.
pub fn pool_retained() -> usize {
    POOL.retained.load(Ordering::Relaxed)
}

/// Bytes of all buffers that somebody has now, and those of them that nobody asked for: what is
/// lost by rounding up to a class. (What is being given back this moment is among them.)
pub fn pool_in_use() -> (usize, usize) {
    let taken = POOL.lists.iter().enumerate().map(|(class, list)| {
        let list = list.lock();
        list.mapped - (list.warm.len() + list.cold.len()) * cap_of(class)
    });
    let beyond = POOL.beyond.load(Ordering::Relaxed);
    (taken.sum::<usize>() + beyond, POOL.waste.load(Ordering::Relaxed))
}

/// Gives the memory of every free buffer back to the kernel (memory pressure, end of a benchmark).
pub fn trim_pool() {
    give_back(|list| list.warm.len());
}

/// Gives back the memory of those buffers that were free all the time since the last call. To be
/// called every few seconds.
pub fn age_pool() {
    give_back(|list| list.untouched);
}

/// Of each list the first so many free buffers, which are those that have been free for longest.
fn give_back(count: impl Fn(&List) -> usize) {
    for (class, list) in POOL.lists.iter().enumerate() {
        let cap = cap_of(class);
        let mut some: Vec<Page> = {
            let mut list = list.lock();
            let n = count(&list).min(list.warm.len());
            let some = list.warm.drain(..n).collect();
            list.untouched = list.warm.len();
            some
        };
        POOL.retained.fetch_sub(cap * some.len(), Ordering::Relaxed);
        // Neighbours together: a call each.
        some.sort_unstable_by_key(|p| std::cmp::Reverse(p.0));
        for run in some.chunk_by(|a, b| b.0.as_ptr() as usize + cap == a.0.as_ptr() as usize) {
            if let Some(first) = run.last() {
                forget(first.0, cap * run.len());
            }
        }
        list.lock().cold.append(&mut some);
    }
}

/// An address and, in a list, the sole ownership of its class's bytes there.
struct Page(NonNull<u8>);
// SAFETY: a free page is owned by the list that holds it.
unsafe impl Send for Page {}

/// The free buffers of a class.
struct List {
    /// With memory behind them.
    warm: Vec<Page>,
    /// The first so many of these have not been touched since the last aging.
    untouched: usize,
    /// Addresses only: the next touch gets zeroed memory.
    cold: Vec<Page>,
    /// Bytes of address space this class has had in all.
    mapped: usize,
}

impl List {
    /// A buffer, and whether it is all zeroes.
    fn take(&mut self, cap: usize) -> (Page, bool) {
        if let Some(page) = self.warm.pop() {
            self.untouched = self.untouched.min(self.warm.len());
            POOL.retained.fetch_sub(cap, Ordering::Relaxed);
            return (page, false);
        }
        if self.cold.is_empty() {
            self.grow(cap);
        }
        match self.cold.pop() {
            Some(page) => (page, true),
            None => (Page(map(cap)), true),
        }
    }

    fn grow(&mut self, cap: usize) {
        let size = self.mapped.clamp(FIRST_CHUNK, LARGEST_CHUNK);
        let count = (size / cap).max(1);
        let start = map(count * cap);
        self.mapped += count * cap;
        // Taken from the end: in ascending order.
        // SAFETY: within what was just mapped.
        self.cold.extend((0..count).rev().map(|i| Page(unsafe { start.add(i * cap) })));
    }
}

/// Zeroed memory from the kernel.
fn map(size: usize) -> NonNull<u8> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new anonymous mapping, at an address of the kernel's choice, has no other user.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags) };
    match mapped.ok().and_then(|p| NonNull::new(p.cast::<u8>())) {
        Some(start) => start,
        None => out_of_memory(size),
    }
}

fn out_of_memory(size: usize) -> ! {
    match std::alloc::Layout::from_size_align(size, PAGE) {
        Ok(layout) => std::alloc::handle_alloc_error(layout),
        Err(_) => panic!("a buffer longer than the address space"),
    }
}

/// Has the kernel give the pages of memory that is about to be written, all at once. (A fault for
/// each: writing a file of 1 GiB that stays in the cache took the server 1.65 s of CPU instead of
/// 1.51.)
fn populate(ptr: NonNull<u8>, size: usize) {
    // SAFETY: mapped, and the caller's alone. Nothing in it changes; where this fails (before Linux
    // 5.14) the first touch does it.
    let _ = unsafe { madvise(ptr.as_ptr().cast(), size.next_multiple_of(PAGE), Advice::LinuxPopulateWrite) };
}

/// Gives memory back; the address stays ours and reads as zeroes.
fn forget(ptr: NonNull<u8>, size: usize) {
    // SAFETY: the caller owns these bytes, and nobody relies on what is in them.
    let done = unsafe { madvise(ptr.as_ptr().cast(), size, Advice::LinuxDontNeed) };
    if done.is_err() {
        // Locked memory is not given back; whoever takes it next relies on zeroes all the same.
        // SAFETY: as above.
        unsafe { ptr.as_ptr().write_bytes(0, size) };
    }
}

fn unmap(ptr: NonNull<u8>, size: usize) {
    // SAFETY: mapped by `map` with this size; the caller was its only owner.
    let _ = unsafe { munmap(ptr.as_ptr().cast(), size) };
}

struct Pool {
    lists: [Mutex<List>; CLASSES],
    retained: AtomicUsize,
    limit: AtomicUsize,
    /// Of the buffers that somebody has: bytes beyond their length, and of those that no class has.
    waste: AtomicUsize,
    beyond: AtomicUsize,
}

static POOL: Pool = Pool {
    lists: [const { Mutex::new(List { warm: Vec::new(), untouched: 0, cold: Vec::new(), mapped: 0 }) };
        CLASSES],
    retained: AtomicUsize::new(0),
    limit: AtomicUsize::new(256 << 20),
    waste: AtomicUsize::new(0),
    beyond: AtomicUsize::new(0),
};

/// The class of a length and that class's capacity. Lengths beyond the last class have none and are
/// taken to the page.
fn class_of(len: usize) -> (usize, usize) {
    let pages = len.div_ceil(PAGE).max(1);
    let shift = pages.ilog2().saturating_sub(2) as usize;
    let units = pages.div_ceil(1 << shift);
    let class = shift * 4 + units;
    if class < CLASSES { (class, (units << shift) * PAGE) } else { (CLASSES, pages * PAGE) }
}

fn cap_of(class: usize) -> usize {
    let shift = (class / 4).saturating_sub(1);
    ((class - shift * 4) << shift) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_consistent_and_waste_at_most_a_quarter() {
        for pages in 1..5000 {
            let (class, cap) = class_of(pages * PAGE);
            assert!(cap >= pages * PAGE && cap * 4 <= pages * PAGE * 5, "{pages} pages in {cap} bytes");
            if class < CLASSES {
                assert_eq!(cap_of(class), cap, "{pages} pages");
                assert_eq!(class_of(cap), (class, cap), "a class's own capacity maps to it");
            }
        }
    }

    #[test]
    fn zeroed_is_zero_after_recycling() {
        let mut a = IoBuf::scratch(12_345);
        a.fill(0xff);
        drop(a);
        assert!(IoBuf::zeroed(12_345).iter().all(|&b| b == 0));
        assert_eq!(IoBuf::zeroed(0).len(), 0);
    }

    #[test]
    fn aligned_and_shared_without_copy() {
        let buf = IoBuf::from_slice(&[7; 5000]);
        let at = buf.as_ptr();
        assert_eq!(at as usize % PAGE, 0);
        let bytes = buf.into_bytes();
        assert_eq!(bytes.as_ptr(), at);
        assert_eq!(&bytes.slice(4990..)[..], [7; 10]);
    }

    /// All that touches the pool's limit is one test: the pool is the process's.
    #[test]
    fn memory_that_was_given_back_reads_as_zeroes() {
        let full = |len: usize| {
            let mut buf = IoBuf::scratch(len);
            buf.fill(0xff);
            buf
        };
        for len in [4096, 100_000, 3 << 20] {
            let many: Vec<IoBuf> = (0..40).map(|_| full(len)).collect();
            drop(many);
            trim_pool();
            let again: Vec<IoBuf> = (0..40).map(|_| IoBuf::zeroed(len)).collect();
            assert!(again.iter().all(|b| b.iter().all(|&x| x == 0)), "after a trim, {len}");
        }
        // What was not needed between two agings is given back by the second.
        let warm = || POOL.lists[class_of(3 << 20).0].lock().warm.len();
        drop(full(3 << 20));
        assert!(warm() > 0);
        age_pool();
        age_pool();
        assert_eq!(warm(), 0);
        assert!(IoBuf::zeroed(3 << 20).iter().all(|&x| x == 0), "after two agings");
        set_pool_limit(0);
        drop(full(70_000));
        assert!(IoBuf::zeroed(70_000).iter().all(|&x| x == 0), "beyond the limit");
        set_pool_limit(256 << 20);
        // What somebody has is counted with what was rounded up: 40 MiB and a byte in 48.
        const MIB: usize = 1 << 20;
        let before = pool_in_use();
        let mut large = IoBuf::scratch(40 * MIB + 1);
        let (held, waste) = pool_in_use();
        assert!(held >= 48 * MIB && (7 * MIB..9 * MIB).contains(&(waste - before.1)), "{held} {waste}");
        large.truncate(MIB);
        assert!((46 * MIB..48 * MIB).contains(&(pool_in_use().1 - before.1)), "{:?}", pool_in_use());
        let (whole, parts) = Whole::lend(large, std::iter::once(0..4096));
        assert!((46 * MIB..48 * MIB).contains(&(pool_in_use().1 - before.1)), "parts have none");
        drop((whole, parts));
        assert!(pool_in_use().1 < before.1 + MIB, "{before:?} {:?}", pool_in_use());
    }

    #[test]
    fn a_lent_buffer_is_whole_again_when_its_parts_are_back() {
        let lend = || {
            let (whole, mut parts) = Whole::lend(IoBuf::zeroed(10_000), [0..4096, 4096..9000]);
            parts[0].fill(1);
            parts[1].fill(2);
            (whole, parts.into_iter().map(IoBuf::into_bytes).collect::<Vec<_>>())
        };
        let (whole, filled) = lend();
        let joined = whole.join(&filled).unwrap();
        drop(filled);
        assert_eq!((joined.len(), joined[0], joined[4095], joined[4096], joined[8999]), (10_000, 1, 1, 2, 2));
        // Not all of them, in another order, or something else in a part's place.
        let (whole, filled) = lend();
        assert!(whole.join(&filled[..1]).is_none());
        let (whole, filled) = lend();
        assert!(whole.join(filled.iter().rev()).is_none());
        let (whole, filled) = lend();
        assert!(whole.join([&filled[0], &Bytes::from(vec![2; 4904])]).is_none());
    }
}
