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
fn what_was_used_before_is_frequent_and_the_recent_keep_a_part() {
    let arc = Cache::new(MIN_LIMIT);
    let stat = |name: &str| arc.arcstats().into_iter().find(|(n, _)| *n == name).unwrap().1;
    let fits = MIN_LIMIT / (8192 + 128);
    for n in 0..2 * fits {
        arc.insert(key(n), block(1), false);
        arc.used_before(&key(n));
    }
    assert_eq!((stat("mru_size"), stat("p")), (0, 0));
    // What is read ahead of a stream, 8 MiB at most, is still there when it is asked for.
    let ahead = 2 * fits..2 * fits + (7 << 20) / 8192;
    for n in ahead.clone() {
        arc.insert(key(n), block(1), true);
    }
    assert!(ahead.clone().all(|n| arc.contains(&key(n))));
    for n in 3 * fits..4 * fits {
        arc.insert(key(n), block(1), false);
    }
    assert!(stat("mfu_size") > MIN_LIMIT * 7 / 10, "what is read once leaves the others alone");
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
fn what_was_read_replaces_nothing() {
    let arc = Cache::new(MIN_LIMIT);
    let first = |n| arc.get(&key(n), false).map(|b| b.data[0]);
    arc.insert(key(1), block(2), false);
    arc.insert_read(key(1), block(1), false, || true);
    assert_eq!(first(1), Some(2), "what is here is newer");
    arc.insert_read(key(2), block(1), false, || false);
    assert_eq!(first(2), None, "it lies there no more");
    arc.insert_read(key(2), block(1), false, || true);
    assert_eq!((first(2), first(2)), (Some(1), Some(1)));
    arc.insert_read(key(3), Block { keep: false, ..block(1) }, true, || true);
    assert_eq!((first(3), first(3)), (Some(1), None), "it was read ahead for one who did not want it kept");
}

#[test]
fn what_was_counted_outlives_the_contents() {
    let arc = Cache::new(MIN_LIMIT);
    (0..MIN_LIMIT / 8192 + 10).for_each(|n| arc.insert(key(n), block(1), false));
    assert!(arc.get(&key(MIN_LIMIT / 8192), false).is_some() && !arc.is_cold());
    arc.missed(&key(1), false, false);
    let counted = |arc: &Cache| {
        let of = |name: &str| arc.arcstats().into_iter().find(|(n, _)| *n == name).unwrap().1;
        ["hits", "misses", "deleted"].map(of)
    };
    let before = counted(&arc);
    arc.clear();
    assert_eq!((arc.size(), counted(&arc)), (0, before));
    assert!(before.iter().all(|n| *n > 0) && !arc.is_cold());
}
