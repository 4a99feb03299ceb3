//! What a cached block costs in memory beside its bytes, by what the allocator was asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use zilla_codec::compress::Compress;
use zilla_core::arc::{Access, Block, Cache, Key, L2Facts};
use zilla_env::{IoBuf, Whole};

/// Bytes that are allocated, and calls.
static HELD: AtomicU64 = AtomicU64::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

struct Counting;

/// As glibc's malloc has it: eight bytes of its own, rounded to sixteen.
fn chunk(layout: Layout) -> u64 {
    (layout.size() as u64 + 8).next_multiple_of(16).max(32)
}

// SAFETY: all is the system's; what is counted changes nothing of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(chunk(layout), Ordering::Relaxed);
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(chunk(layout), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: u64 = 4096;
const LIMIT: u64 = 256 << 20;

fn key(n: u64) -> Key {
    Key { vdev: 0, offset: n * BLOCK, birth: 7 }
}

fn fill(cache: &Cache, keys: std::ops::Range<u64>, data: impl Fn() -> Bytes) {
    for n in keys {
        let (lsize, l2) = (BLOCK as u32, L2Facts::default());
        let block = Block { data: data(), compress: Compress::Off, lsize, metadata: false, keep: true, l2 };
        cache.insert(key(n), block, Access::Demand, Duration::ZERO);
    }
}

fn stat(cache: &Cache, name: &str) -> u64 {
    cache.arcstats().into_iter().find(|(n, _)| *n == name).unwrap().1
}

/// Bytes a block beside its own, of a cache that is full, and whose ghosts are as many as they get.
fn each(data: impl Fn() -> Bytes, bytes: u64) -> u64 {
    let cache = Cache::new(LIMIT);
    // Buffers are recycled, and what recycles them is not the cache's: it is as large as it gets.
    fill(&cache, 0..3 * LIMIT / BLOCK, &data);
    cache.clear();
    let before = HELD.load(Ordering::Relaxed);
    fill(&cache, 0..3 * LIMIT / BLOCK, &data);
    let held = HELD.load(Ordering::Relaxed) - before;
    let (blocks, ghosts) = (stat(&cache, "hash_elements"), stat(&cache, "mru_ghost_size"));
    assert!(blocks > LIMIT / BLOCK * 9 / 10 && ghosts > LIMIT * 4 / 10, "{blocks} blocks, {ghosts}");
    let beside = held - blocks * bytes;
    let said = stat(&cache, "hdr_size");
    println!("{} bytes a block; {} are said", beside / blocks, said / blocks);
    assert!(said.abs_diff(beside) < beside / 10, "{said} are said, {beside} measured");

    // What is here is given out without an allocation, the first time as ever.
    let last = 3 * LIMIT / BLOCK;
    let calls = CALLS.load(Ordering::Relaxed);
    for n in last - 1000..last {
        let get = |secs| cache.get(&key(n), Access::Demand, Duration::from_secs(secs)).map(|b| b.data.len());
        let first = get(0);
        assert!(first.is_some() && get(1) == first);
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), calls, "a hit allocates");
    beside / blocks
}

/// One test, for all threads allocate from one allocator.
#[test]
fn a_cached_block_costs_at_most_200_bytes() {
    // The buffers of blocks are not the allocator's.
    let whole = each(|| IoBuf::scratch(BLOCK as usize).into_bytes(), 0);
    let in_parts = || {
        let (whole, parts) = Whole::lend(IoBuf::scratch(BLOCK as usize), [0..1024, 1024..4096]);
        let parts: Vec<Bytes> = parts.into_iter().map(IoBuf::into_bytes).collect();
        whole.join(&parts).unwrap()
    };
    let joined = each(in_parts, 0);
    // What is smaller than a page is copied.
    let small = each(|| IoBuf::scratch(BLOCK as usize - 8).into_bytes(), BLOCK - 8);
    println!("whole {whole}, from parts {joined}, small {small}");
    assert!(whole.max(joined).max(small) <= 200, "{whole}, {joined}, {small}");
}
