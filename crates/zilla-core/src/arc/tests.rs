use super::*;

const NOW: Duration = Duration::ZERO;

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
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    // A working set that is used again and again ...
    for round in 0..3 {
        for n in 0..fits / 4 {
            if arc.get(&key(n), false, Duration::from_secs(round)).is_none() {
                arc.insert(key(n), block(n as usize), false, NOW);
            }
        }
    }
    // ... survives a scan of ten times the cache.
    for n in 0..fits * 10 {
        arc.insert(key(1_000_000 + n), block(1), false, NOW);
        assert!(arc.size() <= MIN_LIMIT);
    }
    let left = (0..fits / 4).filter(|n| arc.get(&key(*n), false, NOW).is_some()).count() as u64;
    assert!(left > fits / 4 * 9 / 10, "{left} of {}", fits / 4);
}

/// However much of the cache went to recent blocks before: what is used takes it back.
#[test]
fn a_scan_leaves_what_is_used_whatever_the_target_was() {
    let arc = Cache::new(MIN_LIMIT);
    let stat = |name: &str| arc.arcstats().into_iter().find(|(n, _)| *n == name).unwrap().1;
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    // Blocks come again when they were just evicted: the target becomes half of what there is.
    for n in 0..20 * fits {
        arc.insert(key(n), block(1), false, NOW);
        if let Some(evicted) = n.checked_sub(fits).filter(|old| !arc.contains(&key(*old))) {
            arc.insert(key(evicted), block(1), false, NOW);
        }
    }
    assert!(stat("p") > MIN_LIMIT * 4 / 10, "{}", stat("p"));
    let set = 1 << 40;
    let using = |n: u64, now: Duration| {
        if arc.get(&key(set + n), false, now).is_none() {
            arc.insert(key(set + n), block(2), false, now);
        }
    };
    (0..3 * fits / 4).for_each(|n| using(n % (fits / 4), Duration::from_secs(n / (fits / 4))));
    let mut x = 1u64;
    for n in 0..fits * 10 {
        arc.insert(key(1_000_000 + n), block(1), false, NOW);
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if n % 4 == 0 {
            using((x >> 33) % (fits / 4), Duration::from_secs(10) + Duration::from_millis(n));
        }
    }
    let left = (0..fits / 4).filter(|n| arc.contains(&key(set + *n))).count() as u64;
    assert!(left > fits / 4 * 9 / 10, "{left} of {}", fits / 4);
}

/// A read that needs several blocks looks for those that are here again when the others have come,
/// and a record may be read in pieces.
#[test]
fn uses_that_follow_one_another_at_once_are_one() {
    let arc = Cache::new(MIN_LIMIT);
    let stat = |name: &str| arc.arcstats().into_iter().find(|(n, _)| *n == name).unwrap().1;
    let ms = Duration::from_millis;
    let get = |n, now| assert!(arc.get(&key(n), false, now).is_some());
    for (n, prefetched) in [(1, false), (2, true)] {
        let first = ms(1000);
        arc.insert(key(n), block(1), prefetched, if prefetched { ms(0) } else { first });
        get(n, first);
        get(n, first + ms(40));
    }
    assert_eq!(stat("mfu_size"), 0, "one use each");
    get(1, ms(1100));
    get(2, ms(1100));
    assert_eq!(stat("mru_size"), 0, "a second use each");
    // A scan that asks for each block twice pushes out nothing that is used.
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    for n in 0..fits * 10 {
        arc.insert(key(100 + n), block(1), true, ms(2000 + n));
        get(100 + n, ms(2000 + n));
        get(100 + n, ms(2001 + n));
    }
    assert!(arc.contains(&key(1)) && arc.contains(&key(2)));
}

#[test]
fn replaces_and_removes() {
    let arc = Cache::new(MIN_LIMIT);
    arc.insert(key(1), block(1), false, NOW);
    arc.insert(key(1), block(2), false, NOW);
    assert_eq!(arc.get(&key(1), false, NOW).unwrap().data[0], 2);
    arc.remove(&key(1));
    assert!(arc.get(&key(1), false, NOW).is_none() && arc.size() == 0);
    arc.insert(key(2), block(1), true, NOW);
    arc.get(&key(2), false, NOW);
    let stats: std::collections::HashMap<_, _> = arc.arcstats().into_iter().collect();
    assert_eq!(
        stats["mru_size"],
        8192 + shard::OVERHEAD,
        "a prefetched block's first use leaves it in the MRU"
    );
    arc.clear();
    assert_eq!(arc.size(), 0);
}

#[test]
fn what_was_used_before_is_frequent_and_the_recent_keep_a_part() {
    let arc = Cache::new(MIN_LIMIT);
    let stat = |name: &str| arc.arcstats().into_iter().find(|(n, _)| *n == name).unwrap().1;
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    for n in 0..2 * fits {
        arc.insert(key(n), block(1), false, NOW);
        arc.used_before(&key(n));
    }
    assert_eq!((stat("mru_size"), stat("p")), (0, 0));
    // What is read ahead of a stream, 8 MiB at most, is still there when it is asked for.
    let ahead = 2 * fits..2 * fits + (7 << 20) / 8192;
    for n in ahead.clone() {
        arc.insert(key(n), block(1), true, NOW);
    }
    assert!(ahead.clone().all(|n| arc.contains(&key(n))));
    for n in 3 * fits..4 * fits {
        arc.insert(key(n), block(1), false, NOW);
    }
    assert!(stat("mfu_size") > MIN_LIMIT * 7 / 10, "what is read once leaves the others alone");
}

#[test]
fn a_ghost_hit_moves_the_target() {
    let arc = Cache::new(MIN_LIMIT);
    let p = |arc: &Cache| arc.arcstats().into_iter().find(|(n, _)| *n == "p").unwrap().1;
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    for n in 0..fits + fits / 4 {
        arc.insert(key(n), block(1), false, NOW);
    }
    assert_eq!(p(&arc), 0);
    for n in 0..fits / 8 {
        if !arc.contains(&key(n)) {
            arc.insert(key(n), block(1), false, NOW);
        }
    }
    assert!(p(&arc) > 0, "recent blocks were evicted too early");
}

#[test]
fn what_was_read_replaces_nothing() {
    let arc = Cache::new(MIN_LIMIT);
    let first = |n| arc.get(&key(n), false, NOW).map(|b| b.data[0]);
    arc.insert(key(1), block(2), false, NOW);
    arc.insert_read(key(1), block(1), false, NOW, || true);
    assert_eq!(first(1), Some(2), "what is here is newer");
    arc.insert_read(key(2), block(1), false, NOW, || false);
    assert_eq!(first(2), None, "it lies there no more");
    arc.insert_read(key(2), block(1), false, NOW, || true);
    assert_eq!((first(2), first(2)), (Some(1), Some(1)));
    arc.insert_read(key(3), Block { keep: false, ..block(1) }, true, NOW, || true);
    assert_eq!((first(3), first(3)), (Some(1), None), "it was read ahead for one who did not want it kept");
}

#[test]
fn what_was_counted_outlives_the_contents() {
    let arc = Cache::new(MIN_LIMIT);
    (0..MIN_LIMIT / 8192 + 10).for_each(|n| arc.insert(key(n), block(1), false, NOW));
    assert!(arc.get(&key(MIN_LIMIT / 8192), false, NOW).is_some() && !arc.is_cold());
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

/// Each byte is told once by list and kind, as long as it is here and as a ghost.
#[test]
fn what_is_held_is_told_by_list_and_kind() {
    let arc = Cache::new(MIN_LIMIT);
    let all = || arc.arcstats().into_iter().collect::<std::collections::HashMap<_, _>>();
    let of_kind =
        |n, metadata, wanted| Block { metadata, l2: L2Facts { wanted, ..L2Facts::default() }, ..block(n) };
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    arc.insert(key(0), of_kind(0, true, false), false, NOW);
    arc.insert(key(1), of_kind(1, false, true), false, NOW);
    arc.insert(key(2), Block { keep: false, ..block(2) }, true, NOW);
    assert!(arc.get(&key(0), false, Duration::from_secs(1)).is_some());
    let s = all();
    assert_eq!([s["mru_data"], s["mru_metadata"], s["mfu_data"], s["mfu_metadata"]], [16384, 0, 0, 8192]);
    assert_eq!((s["uncached_data"], s["uncached_size"]), (8192, 8192));
    assert_eq!((s["data_size"], s["metadata_size"]), (16384, 8192));
    assert!(arc.get(&key(2), false, NOW).is_some());
    let s = all();
    assert_eq!((s["uncached_hits"], s["demand_hit_predictive_prefetch"], s["uncached_data"]), (1, 1, 0));
    // All is pushed out, a cache device having had the one that it would want.
    arc.had(&key(1));
    for n in 10..10 + fits * 2 {
        arc.insert(key(n), of_kind(n as usize, n % 2 == 0, n % 4 == 0), false, NOW);
    }
    let s = all();
    let held = ["mru_data", "mru_metadata", "mfu_data", "mfu_metadata"].map(|name| s[name]);
    assert_eq!(held.iter().sum::<u64>(), s["data_size"] + s["metadata_size"]);
    assert_eq!(s["mru_ghost_data"] + s["mru_ghost_metadata"], s["mru_ghost_size"]);
    assert_eq!(s["mfu_ghost_data"] + s["mfu_ghost_metadata"], s["mfu_ghost_size"]);
    assert!(s["mru_ghost_data"] > 0 && s["mru_ghost_metadata"] > 0);
    assert_eq!(s["evict_l2_cached"], 8192);
    let (eligible, not) = (s["evict_l2_eligible"], s["evict_l2_ineligible"]);
    assert_eq!(eligible, s["evict_l2_eligible_mru"] + s["evict_l2_eligible_mfu"]);
    assert!(eligible > 0 && (not / 8192).abs_diff(3 * eligible / 8192) <= 4, "{eligible} {not}");
    assert_eq!((eligible + not) / 8192 + 1, s["deleted"]);
    assert!(s["hash_elements_max"] >= s["hash_elements"]);
    // A ghost's hit takes it from among them.
    let evicted = (10..10 + fits).rev().find(|n| n % 2 == 0 && !arc.contains(&key(*n))).unwrap();
    arc.insert(key(evicted), of_kind(0, true, false), false, NOW);
    let s = all();
    assert_eq!(s["mru_ghost_hits"], 1);
    assert_eq!(s["mru_ghost_data"] + s["mru_ghost_metadata"], s["mru_ghost_size"]);
    arc.clear();
    assert_eq!((all()["mfu_data"], all()["mru_ghost_data"]), (0, 0));
}
