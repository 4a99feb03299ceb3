//! I/O buffers: page-aligned so that direct I/O takes them as they are, and recycled, because the first touch
//! of fresh memory (a page fault, and in a virtual machine a second one in the host) costs ten times what
//! the I/O's own copy costs.
//!
//! Freed buffers go to a free list per size class (four classes to a power of two, so at most a quarter is
//! wasted), bounded by [`set_pool_limit`] bytes in all. Memory is zeroed once, when it comes from the allocator; a
//! recycled buffer holds stale but initialised bytes, which is why [`IoBuf::scratch`] is safe.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

/// Alignment of every buffer, enough for direct I/O everywhere.
pub const PAGE: usize = 4096;

const CLASSES: usize = 64;

/// An owned, page-aligned buffer of fixed length.
pub struct IoBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// Bytes allocated: a multiple of `PAGE`, the size of a class unless too large for one.
    cap: usize,
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

    /// A buffer whose contents are unspecified (whatever its last user left): for callers that overwrite it.
    pub fn scratch(len: usize) -> IoBuf {
        IoBuf::take(len).0
    }

    pub fn from_slice(data: &[u8]) -> IoBuf {
        let mut buf = IoBuf::scratch(data.len());
        buf.copy_from_slice(data);
        buf
    }

    /// Hands the buffer on as `Bytes` without a copy; the memory is recycled when the last clone goes.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Forgets the bytes after `len`. The capacity stays with the buffer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    fn take(len: usize) -> (IoBuf, bool) {
        let (class, cap) = class_of(len);
        if let Some(list) = class.and_then(|c| POOL.lists.get(c))
            && let Some(ptr) = list.lock().pop()
        {
            POOL.retained.fetch_sub(cap, Ordering::Relaxed);
            return (IoBuf { ptr: ptr.0, len, cap }, false);
        }
        let layout = layout_of(cap);
        // SAFETY: the layout is at least one page, never zero-sized.
        let Some(ptr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        (IoBuf { ptr, len, cap }, true)
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        if let (Some(class), _) = class_of(self.cap)
            && let Some(list) = POOL.lists.get(class)
        {
            // Over the limit by a race of a few buffers is harmless; the next ones are freed.
            let kept = POOL.retained.fetch_add(self.cap, Ordering::Relaxed);
            if kept + self.cap <= POOL.limit.load(Ordering::Relaxed) {
                list.lock().push(Page(self.ptr));
                return;
            }
            POOL.retained.fetch_sub(self.cap, Ordering::Relaxed);
        }
        // SAFETY: allocated by `take` with this very layout and owned by no one else.
        unsafe { dealloc(self.ptr.as_ptr(), layout_of(self.cap)) }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `cap >= len` bytes were allocated, zeroed at first and only ever overwritten since.
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

/// Gives every free buffer back to the allocator (memory pressure, end of a benchmark).
pub fn trim_pool() {
    for (class, list) in POOL.lists.iter().enumerate() {
        let cap = cap_of(class);
        for page in std::mem::take(&mut *list.lock()) {
            POOL.retained.fetch_sub(cap, Ordering::Relaxed);
            // SAFETY: the list of a class holds only buffers of its capacity, owned by the list.
            unsafe { dealloc(page.0.as_ptr(), layout_of(cap)) }
        }
    }
}

struct Page(NonNull<u8>);
// SAFETY: a free page is owned by the list that holds it.
unsafe impl Send for Page {}

struct Pool {
    lists: [Mutex<Vec<Page>>; CLASSES],
    retained: AtomicUsize,
    limit: AtomicUsize,
}

static POOL: Pool = Pool {
    lists: [const { Mutex::new(Vec::new()) }; CLASSES],
    retained: AtomicUsize::new(0),
    limit: AtomicUsize::new(256 << 20),
};

/// The class of a length and that class's capacity. Lengths beyond the last class are allocated to the page.
fn class_of(len: usize) -> (Option<usize>, usize) {
    let pages = len.div_ceil(PAGE).max(1);
    let shift = pages.ilog2().saturating_sub(2) as usize;
    let units = pages.div_ceil(1 << shift);
    let class = shift * 4 + units;
    if class < CLASSES { (Some(class), (units << shift) * PAGE) } else { (None, pages * PAGE) }
}

fn cap_of(class: usize) -> usize {
    let shift = (class / 4).saturating_sub(1);
    ((class - shift * 4) << shift) * PAGE
}

fn layout_of(cap: usize) -> Layout {
    Layout::from_size_align(cap, PAGE).expect("buffer longer than the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_consistent_and_waste_at_most_a_quarter() {
        for pages in 1..5000 {
            let (class, cap) = class_of(pages * PAGE);
            assert!(cap >= pages * PAGE && cap * 4 <= pages * PAGE * 5, "{pages} pages in {cap} bytes");
            if let Some(class) = class {
                assert_eq!(cap_of(class), cap, "{pages} pages");
                assert_eq!(class_of(cap), (Some(class), cap), "a class's own capacity maps to it");
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
}
