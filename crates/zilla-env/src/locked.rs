//! Memory for keys: never swapped out where the system lets us, never in a core dump, overwritten
//! when it is given back.
//!
//! Each value has pages of its own, so that locking one does not depend on its neighbours. A
//! process may lock only so much (`RLIMIT_MEMLOCK`, 8 MiB in most systems); beyond that a key is
//! kept unlocked rather than refused.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

use crate::PAGE;

/// Plain bytes of a secret. Not `Clone`, and nothing of it is in its `Debug`.
pub struct Locked<const N: usize> {
    ptr: NonNull<[u8; N]>,
}

// SAFETY: the pages are owned alone; `&Locked` only gives out a shared reference to bytes.
unsafe impl<const N: usize> Send for Locked<N> {}
// SAFETY: as above, there is no interior mutability.
unsafe impl<const N: usize> Sync for Locked<N> {}

impl<const N: usize> Locked<N> {
    const PAGES: usize = N.next_multiple_of(PAGE);

    /// Bytes that `fill` writes where they will stay, so that no copy of them is left elsewhere.
    pub fn new<E>(fill: impl FnOnce(&mut [u8; N]) -> Result<(), E>) -> Result<Locked<N>, E> {
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping of our own, at an address of the kernel's choice.
        let map = unsafe {
            mmap_anonymous(std::ptr::null_mut(), Self::PAGES, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        let ptr = map.ok().and_then(NonNull::new);
        let Some(ptr) = ptr else { panic!("out of memory for a key") };
        // SAFETY: the range is the mapping just made. Both calls only change how the kernel treats
        // it.
        unsafe {
            // (Refused beyond the limit of the process: the key is then as safe as other memory.)
            let _ = mlock(ptr.as_ptr(), Self::PAGES);
            let _ = madvise(ptr.as_ptr(), Self::PAGES, Advice::LinuxDontDump);
        }
        let mut locked = Locked { ptr: ptr.cast() };
        // SAFETY: the mapping is zeroed, at least N bytes long, aligned to a page, and nobody
        // else's.
        fill(unsafe { locked.ptr.as_mut() })?;
        Ok(locked)
    }
}

impl<const N: usize> Deref for Locked<N> {
    type Target = [u8; N];
    fn deref(&self) -> &[u8; N] {
        // SAFETY: mapped and initialised until drop.
        unsafe { self.ptr.as_ref() }
    }
}

impl<const N: usize> fmt::Debug for Locked<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locked(..)")
    }
}

impl<const N: usize> Drop for Locked<N> {
    fn drop(&mut self) {
        for i in 0..N {
            // SAFETY: within the mapping. Volatile, so that the compiler does not leave out what
            // nobody reads again.
            unsafe { self.ptr.cast::<u8>().add(i).write_volatile(0) };
        }
        // SAFETY: the mapping made in `new`, which nothing refers to any more.
        let _ = unsafe { munmap(self.ptr.as_ptr().cast(), Self::PAGES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_kept_and_not_shown() {
        let secret = Locked::<96>::new(|b| {
            b.fill(0xa5);
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!(*secret, [0xa5; 96]);
        assert_eq!(format!("{secret:?}"), "Locked(..)");
        assert_eq!(Locked::<8>::new(|_| Err(7)).unwrap_err(), 7);
    }

    #[test]
    fn its_pages_are_kept_out_of_core_dumps() {
        let secret = Locked::<32>::new(|b| {
            b[0] = 1;
            Ok::<(), ()>(())
        })
        .unwrap();
        let at = format!("{:x}-", secret.ptr.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        // Neighbouring pages of one kind are one line; ours may begin or lie within it.
        let flags = maps.split("VmFlags:").find(|m| m.contains(&at));
        if let Some(after) = flags.and_then(|_| maps.split(&at).nth(1)) {
            let line = after.lines().find(|l| l.starts_with("VmFlags:")).unwrap();
            assert!(line.contains(" dd"), "{line}");
        }
    }
}
