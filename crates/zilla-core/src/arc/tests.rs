use super::*;

fn block(n: usize) -> Block {
    Block {
        data: Bytes::from(vec![n as u8; 8192]),
        compress: Compress::Off,
        lsize: 8192,
        metadata: false,
        keep: true,
        l2: L2Facts::default(),
    }
}

fn key(n: u64) -> Key {
    Key { vdev: 0, offset: n * 8192, birth: 7 }
}

#[test]
fn stays_within_its_limit_and_keeps_the_frequent() {
    let arc = Cache::new(MIN_LIMIT);
    let fits = MIN_LIMIT / (8192 + 128);
    // A working set that is used again and again ...
    for _ in 0..3 {
        for n in 0..fits / 4 {
            if arc.get(&key(n), false).is_none() {
                arc.insert(key(n), block(n as usize), false);
            }
        }
    }
    // ... survives a scan of ten times the cache.
    for n in 0..fits * 10 {
        arc.insert(key(1_000_000 + n), block(1), false);
        assert!(arc.size() <= MIN_LIMIT);
    }
    let left = (0..fits / 4).filter(|n| arc.get(&key(*n), false).is_some()).count() as u64;
    assert!(left > fits / 4 * 9 / 10, "{left} of {}", fits / 4);
}

#[test]
fn replaces_and_removes() {
    let arc = Cache::new(MIN_LIMIT);
    arc.insert(key(1), block(1), false);
    arc.insert(key(1), block(2), false);
    assert_eq!(arc.get(&key(1), false).unwrap().data[0], 2);
    arc.remove(&key(1));
    assert!(arc.get(&key(1), false).is_none() && arc.size() == 0);
    arc.insert(key(2), block(1), true);
    arc.get(&key(2), false);
    let stats: std::collections::HashMap<_, _> = arc.arcstats().into_iter().collect();
    assert_eq!(stats["mru_size"], 8192 + 128, "a prefetched block's first use leaves it in the MRU");
    arc.clear();
    assert_eq!(arc.size(), 0);
}

#[test]
fn a_ghost_hit_moves_the_target() {
    let arc = Cache::new(MIN_LIMIT);
    let p = |arc: &Cache| arc.arcstats().into_iter().find(|(n, _)| *n == "p").unwrap().1;
    let fits = MIN_LIMIT / (8192 + 128);
    for n in 0..fits + fits / 4 {
        arc.insert(key(n), block(1), false);
    }
    assert_eq!(p(&arc), 0);
    for n in 0..fits / 8 {
        if !arc.contains(&key(n)) {
            arc.insert(key(n), block(1), false);
        }
    }
    assert!(p(&arc) > 0, "recent blocks were evicted too early");
}

#[test]
fn limits_follow_memory() {
    use budget::Used;
    use memory::Memory;
    let m = |available| Memory { total: 16 << 30, available };
    let (max, one) = (8 << 30, |bytes| Used { caches: 1, bytes });
    assert_eq!(one(8 << 30).adjusted(8 << 30, 8 << 30, max, &m(512 << 20)), (8 << 30) - (512 << 20));
    assert_eq!(one(1 << 30).adjusted(1 << 30, 1 << 30, max, &m(3 << 29)), 1 << 30);
    assert!(one(1 << 30).adjusted(1 << 30, 1 << 30, max, &m(8 << 30)) > 1 << 30);
}

/// Two caches have the memory of one: they give way by what is missing together, and what is free is for who needs it.
#[test]
fn two_caches_share_what_one_would_have() {
    use budget::Used;
    use memory::Memory;
    let m = |available| Memory { total: 16 << 30, available };
    let two = |a: u64, b: u64| Used { caches: 2, bytes: a + b };
    let gib = 1u64 << 30;
    // 512 MiB are missing.
    let both = two(6 * gib, 2 * gib);
    let after = [6 * gib, 2 * gib].map(|used| both.adjusted(used, used, 8 * gib, &m(gib / 2)));
    assert_eq!(after, [6 * gib - 384 * (1 << 20), 2 * gib - 128 * (1 << 20)]);
    // A lot is free: together they never go beyond the half, and one alone may come near it.
    let grown = two(3 * gib, gib);
    let after = [3 * gib, gib].map(|used| grown.adjusted(8 * gib, used, 8 * gib, &m(12 * gib)));
    assert_eq!(after, [5 * gib, 3 * gib]);
    let (mut busy, idle) = (gib, 64 << 20);
    for _ in 0..40 {
        busy = two(busy, idle).adjusted(busy, busy, 8 * gib, &m(12 * gib));
    }
    assert!(busy > 7 * gib && busy + idle <= 8 * gib, "{busy}");
}
