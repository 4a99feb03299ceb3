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
            if arc.get(&key(n), Access::Demand, Duration::from_secs(round)).is_none() {
                arc.insert(key(n), block(n as usize), Access::Demand, NOW);
            }
        }
    }
    // ... survives a scan of ten times the cache.
    for n in 0..fits * 10 {
        arc.insert(key(1_000_000 + n), block(1), Access::Demand, NOW);
        assert!(arc.size() <= MIN_LIMIT);
    }
    let left = (0..fits / 4).filter(|n| arc.get(&key(*n), Access::Demand, NOW).is_some()).count() as u64;
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
        arc.insert(key(n), block(1), Access::Demand, NOW);
        if let Some(evicted) = n.checked_sub(fits).filter(|old| !arc.contains(&key(*old))) {
            arc.insert(key(evicted), block(1), Access::Demand, NOW);
        }
    }
    assert!(stat("p") > MIN_LIMIT * 4 / 10, "{}", stat("p"));
    let set = 1 << 40;
    let using = |n: u64, now: Duration| {
        if arc.get(&key(set + n), Access::Demand, now).is_none() {
            arc.insert(key(set + n), block(2), Access::Demand, now);
        }
    };
    (0..3 * fits / 4).for_each(|n| using(n % (fits / 4), Duration::from_secs(n / (fits / 4))));
    let mut x = 1u64;
    for n in 0..fits * 10 {
        arc.insert(key(1_000_000 + n), block(1), Access::Demand, NOW);
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
    let get = |n, now| assert!(arc.get(&key(n), Access::Demand, now).is_some());
    for (n, access) in [(1, Access::Demand), (2, Access::Predictive)] {
        let first = ms(1000);
        arc.insert(key(n), block(1), access, if access.is_prefetch() { ms(0) } else { first });
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
        arc.insert(key(100 + n), block(1), Access::Predictive, ms(2000 + n));
        get(100 + n, ms(2000 + n));
        get(100 + n, ms(2001 + n));
    }
    assert!(arc.contains(&key(1)) && arc.contains(&key(2)));
}

#[test]
fn replaces_and_removes() {
    let arc = Cache::new(MIN_LIMIT);
    arc.insert(key(1), block(1), Access::Demand, NOW);
    arc.insert(key(1), block(2), Access::Demand, NOW);
    assert_eq!(arc.get(&key(1), Access::Demand, NOW).unwrap().data[0], 2);
    arc.remove(&key(1));
    assert!(arc.get(&key(1), Access::Demand, NOW).is_none() && arc.size() == 0);
    arc.insert(key(2), block(1), Access::Predictive, NOW);
    arc.get(&key(2), Access::Demand, NOW);
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
        arc.insert(key(n), block(1), Access::Demand, NOW);
        arc.used_before(&key(n));
    }
    assert_eq!((stat("mru_size"), stat("p")), (0, 0));
    // What is read ahead of a stream, 8 MiB at most, is still there when it is asked for.
    let ahead = 2 * fits..2 * fits + (7 << 20) / 8192;
    for n in ahead.clone() {
        arc.insert(key(n), block(1), Access::Predictive, NOW);
    }
    assert!(ahead.clone().all(|n| arc.contains(&key(n))));
    for n in 3 * fits..4 * fits {
        arc.insert(key(n), block(1), Access::Demand, NOW);
    }
    assert!(stat("mfu_size") > MIN_LIMIT * 7 / 10, "what is read once leaves the others alone");
}

#[test]
fn a_ghost_hit_moves_the_target() {
    let arc = Cache::new(MIN_LIMIT);
    let p = |arc: &Cache| arc.arcstats().into_iter().find(|(n, _)| *n == "p").unwrap().1;
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    for n in 0..fits + fits / 4 {
        arc.insert(key(n), block(1), Access::Demand, NOW);
    }
    assert_eq!(p(&arc), 0);
    for n in 0..fits / 8 {
        if !arc.contains(&key(n)) {
            arc.insert(key(n), block(1), Access::Demand, NOW);
        }
    }
    assert!(p(&arc) > 0, "recent blocks were evicted too early");
}

#[test]
fn what_was_read_replaces_nothing() {
    let arc = Cache::new(MIN_LIMIT);
    let first = |n| arc.get(&key(n), Access::Demand, NOW).map(|b| b.data[0]);
    arc.insert(key(1), block(2), Access::Demand, NOW);
    arc.insert_read(key(1), block(1), Access::Demand, NOW, || true);
    assert_eq!(first(1), Some(2), "what is here is newer");
    arc.insert_read(key(2), block(1), Access::Demand, NOW, || false);
    assert_eq!(first(2), None, "it lies there no more");
    arc.insert_read(key(2), block(1), Access::Demand, NOW, || true);
    assert_eq!((first(2), first(2)), (Some(1), Some(1)));
    arc.insert_read(key(3), Block { keep: false, ..block(1) }, Access::Predictive, NOW, || true);
    assert_eq!((first(3), first(3)), (Some(1), None), "it was read ahead for one who did not want it kept");
}

#[test]
fn what_was_counted_outlives_the_contents() {
    let arc = Cache::new(MIN_LIMIT);
    (0..MIN_LIMIT / 8192 + 10).for_each(|n| arc.insert(key(n), block(1), Access::Demand, NOW));
    assert!(arc.get(&key(MIN_LIMIT / 8192), Access::Demand, NOW).is_some() && !arc.is_cold());
    arc.missed(&key(1), false, Access::Demand);
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
    arc.insert(key(0), of_kind(0, true, false), Access::Demand, NOW);
    arc.insert(key(1), of_kind(1, false, true), Access::Demand, NOW);
    arc.insert(key(2), Block { keep: false, ..block(2) }, Access::Predictive, NOW);
    assert!(arc.get(&key(0), Access::Demand, Duration::from_secs(1)).is_some());
    let s = all();
    assert_eq!([s["mru_data"], s["mru_metadata"], s["mfu_data"], s["mfu_metadata"]], [16384, 0, 0, 8192]);
    assert_eq!((s["uncached_data"], s["uncached_size"]), (8192, 8192));
    assert_eq!((s["data_size"], s["metadata_size"]), (16384, 8192));
    assert!(arc.get(&key(2), Access::Demand, NOW).is_some());
    let s = all();
    assert_eq!((s["uncached_hits"], s["demand_hit_predictive_prefetch"], s["uncached_data"]), (1, 1, 0));
    // All is pushed out, a cache device having had the one that it would want.
    arc.had(&key(1));
    for n in 10..10 + fits * 2 {
        arc.insert(key(n), of_kind(n as usize, n % 2 == 0, n % 4 == 0), Access::Demand, NOW);
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
    arc.insert(key(evicted), of_kind(0, true, false), Access::Demand, NOW);
    let s = all();
    assert_eq!(s["mru_ghost_hits"], 1);
    assert_eq!(s["mru_ghost_data"] + s["mru_ghost_metadata"], s["mru_ghost_size"]);
    arc.clear();
    assert_eq!((all()["mfu_data"], all()["mru_ghost_data"]), (0, 0));
}

/// Counted as OpenZFS counts: by the access, and the first use of what was read ahead once more.
#[test]
fn what_is_read_ahead_is_known_as_such_until_somebody_asks_for_it() {
    let arc = Cache::new(MIN_LIMIT);
    let all = || arc.arcstats().into_iter().collect::<std::collections::HashMap<_, _>>();
    let secs = Duration::from_secs;
    let wanted = |n, metadata| Block {
        metadata,
        l2: L2Facts { wanted: true, ..L2Facts::default() },
        ..block(n as usize)
    };
    // What a cache device may be fed, and whether that is only read ahead.
    let ahead = |frequent| {
        let mut tail = Tail::default();
        arc.tail(0, Wanted { frequent, metadata: false }, 100, u64::MAX, &mut tail);
        let mut keys: Vec<_> = tail.keys.iter().map(|(k, ahead)| (k.offset / 8192, *ahead)).collect();
        keys.sort_unstable();
        keys
    };
    for (n, metadata, access) in [
        (1, false, Access::Predictive),
        (2, true, Access::Prescient),
        (3, false, Access::Demand),
        (4, false, Access::Predictive),
    ] {
        arc.missed(&key(n), metadata, access);
        arc.insert_read(key(n), wanted(n, metadata), access, NOW, || true);
    }
    // Another stream comes to the first; somebody waits for the last.
    assert!(arc.get(&key(1), Access::Predictive, NOW).is_some());
    arc.joined(&key(4), false, Access::Demand, Access::Predictive, secs(1));
    arc.joined(&key(4), false, Access::Predictive, Access::Predictive, secs(1));
    assert_eq!(ahead(false), [(1, true), (3, false), (4, false)]);
    let s = all();
    let of = |s: &std::collections::HashMap<&str, u64>, kind: &str| {
        ["hits", "iohits", "misses"].map(|what| s[format!("{kind}_{what}").as_str()])
    };
    assert_eq!(of(&s, "prefetch_data"), [1, 1, 2]);
    assert_eq!(of(&s, "prefetch_metadata"), [0, 0, 1]);
    assert_eq!((of(&s, "demand_data"), of(&s, "demand_metadata")), ([0, 1, 1], [0, 0, 0]));
    let used = |s: &std::collections::HashMap<&str, u64>| {
        ["predictive", "prescient"].map(|kind| {
            ["demand_hit", "demand_iohit"].map(|what| s[format!("{what}_{kind}_prefetch").as_str()])
        })
    };
    assert_eq!((s["predictive_prefetch"], s["prescient_prefetch"], used(&s)), (4, 1, [[0, 1], [0, 0]]));
    // The first use is what it was read for; the next one is a second use.
    let asked = |n, at| assert!(arc.get(&key(n), Access::Demand, at).is_some());
    asked(1, secs(2));
    asked(2, secs(2));
    let s = all();
    assert_eq!((used(&s), s["mfu_size"]), ([[1, 1], [1, 0]], 0));
    assert_eq!(ahead(false), [(1, false), (3, false), (4, false)]);
    asked(1, secs(3));
    asked(4, secs(3));
    // What was used before and is read ahead again goes on being fed, and is counted once more.
    assert!(arc.get(&key(1), Access::Predictive, secs(4)).is_some());
    assert_eq!((ahead(true), ahead(false)), (vec![(1, false), (4, false)], vec![(3, false)]));
    asked(1, secs(4));
    asked(1, secs(4));
    let s = all();
    assert_eq!((s["predictive_prefetch"], used(&s)), (5, [[2, 1], [1, 0]]));
    assert_eq!((of(&s, "demand_data"), of(&s, "demand_metadata")), ([5, 1, 1], [1, 0, 0]));
    assert_eq!(s["hits"], 8);
}

#[test]
fn what_was_read_ahead_a_moment_ago_goes_after_others() {
    let arc = Cache::new(MIN_LIMIT);
    let stat = |name: &str| arc.arcstats().into_iter().find(|(n, _)| *n == name).unwrap().1;
    let fits = MIN_LIMIT / (8192 + shard::OVERHEAD);
    let ms = Duration::from_millis;
    let left = |keys: std::ops::Range<u64>| keys.filter(|n| arc.contains(&key(*n))).count();
    (0..8).for_each(|n| arc.insert(key(n), block(1), Access::Predictive, ms(100)));
    (8..16).for_each(|n| arc.insert(key(n), block(1), Access::Prescient, ms(100)));
    (16..fits + 100).for_each(|n| arc.insert(key(n), block(1), Access::Demand, ms(900)));
    assert_eq!((left(0..8), left(8..32), stat("evict_skip")), (8, 0, 8));
    // A second later it is as good as others.
    (0..2 * fits).for_each(|n| arc.insert(key(1 << 20 | n), block(1), Access::Demand, ms(1200)));
    assert_eq!(left(0..8), 0);
    // However much is read ahead: the limit holds.
    (0..2 * fits).for_each(|n| {
        arc.insert(key(1 << 22 | n), block(1), Access::Predictive, ms(6300));
        assert!(arc.size() <= MIN_LIMIT);
    });
}
