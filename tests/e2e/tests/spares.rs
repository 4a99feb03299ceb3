//! Hot spares by the commands: made, shown, called in by hand and by themselves, given back,
//! shared; and OpenZFS agrees.

use std::fs;
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can};

const SIZE: u64 = 96 << 20;

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

/// The lines of the configuration and of the spares, as "name state".
fn config(world: &World, pool: &str) -> Vec<String> {
    let status = world.zpool(&format!("status {pool}")).ok();
    let lines = status.lines().skip_while(|l| !l.starts_with("\tNAME")).skip(2);
    lines
        .take_while(|l| !l.is_empty())
        .map(|l| {
            let mut words = l.split_whitespace();
            let name = words.next().unwrap_or("");
            let name = name.rsplit('/').next().unwrap_or(name).trim_end_matches(".img");
            format!("{name} {}", words.next().unwrap_or("")).trim_end().to_owned()
        })
        .collect()
}

#[track_caller]
fn becomes(world: &World, pool: &str, wanted: &[&str]) {
    let begun = Instant::now();
    while config(world, pool) != wanted {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?} does not become {wanted:?}",
            config(world, pool)
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_spare_stands_in_and_is_given_back() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let s: Vec<String> = world.images("s", 3, SIZE).iter().map(|p| p.display().to_string()).collect();
    let (first, second) = (pool.disks[0].display().to_string(), pool.disks[1].display().to_string());
    world.zpool(&format!("add tank spare {} {}", s[0], s[1])).ok();
    let idle = ["mirror-0 ONLINE", "tank1 ONLINE", "tank2 ONLINE", "spares", "s1 AVAIL", "s2 AVAIL"];
    assert_eq!(config(&world, "tank"), idle);
    assert_eq!(
        world.zpool(&format!("add tank spare {}", s[0])).fails(),
        "cannot add to 'tank': one or more vdevs refer to the same device\n"
    );
    // Nor does force make a spare a device of another pool, or of another vdev of its own.
    let other = world.images("o", 1, SIZE)[0].display().to_string();
    for (line, told) in
        [("create new", "use '-f' to override"), ("create -f new", "must be manually repaired")]
    {
        let done = world.zpool(&format!("{line} {} {other}", s[0]));
        assert!(done.code == 1 && done.stderr.contains(told), "{done}");
        let why = format!("\n{} is reserved as a hot spare for pool tank\n", s[0]);
        assert!(done.stderr.ends_with(&why), "{done}");
    }
    told(&world.zpool(&format!("add -f tank {}", s[1])).fails(), "is reserved as a hot spare for pool tank");
    told(&world.zpool(&format!("detach tank {}", s[0])).fails(), "device is reserved as a hot spare");
    told(&world.zpool(&format!("attach tank {first} {}", s[0])).fails(), "device is reserved as a hot spare");
    fs::write(pool.root().join("f"), vec![5; 4 << 20]).expect("write");

    // By hand.
    world.zpool(&format!("replace -w tank {second} {}", s[0])).ok();
    world.zpool("wait -t resilver tank").ok();
    let used = [
        "mirror-0 ONLINE",
        "tank1 ONLINE",
        "spare-1 ONLINE",
        "tank2 ONLINE",
        "s1 ONLINE",
        "spares",
        "s1 INUSE",
        "s2 AVAIL",
    ];
    assert_eq!(config(&world, "tank"), used);
    told(&world.zpool("status tank").ok(), "currently in use");
    told(&world.zpool(&format!("remove tank {}", s[0])).fails(), "in use");
    pool.judge();
    pool.import();
    assert_eq!(config(&world, "tank"), used);
    world.zpool(&format!("detach tank {}", s[0])).ok();
    assert_eq!(config(&world, "tank"), idle);

    // By itself.
    world.zpool(&format!("offline -f tank {second}")).ok();
    let called = [
        "mirror-0 DEGRADED",
        "tank1 ONLINE",
        "spare-1 DEGRADED",
        "tank2 FAULTED",
        "s1 ONLINE",
        "spares",
        "s1 INUSE",
        "s2 AVAIL",
    ];
    becomes(&world, "tank", &called);
    world.zpool("wait -t resilver tank").ok();
    fs::write(pool.root().join("g"), vec![6; 1 << 20]).expect("write");
    world.zpool(&format!("clear tank {second}")).ok();
    becomes(&world, "tank", &idle);

    // The device is replaced: the spare goes back. The original is taken away: it stays.
    world.zpool(&format!("offline -f tank {second}")).ok();
    becomes(&world, "tank", &called);
    world.zpool("wait -t resilver tank").ok();
    world.zpool(&format!("replace -w tank {second} {}", s[2])).ok();
    becomes(
        &world,
        "tank",
        &["mirror-0 ONLINE", "tank1 ONLINE", "s3 ONLINE", "spares", "s1 AVAIL", "s2 AVAIL"],
    );
    world.zpool(&format!("replace tank {} {}", s[2], s[1])).ok();
    world.zpool("wait -t resilver tank").ok();
    world.zpool(&format!("detach tank {}", s[2])).ok();
    assert_eq!(
        config(&world, "tank"),
        ["mirror-0 ONLINE", "tank1 ONLINE", "s2 ONLINE", "spares", "s1 AVAIL"]
    );
    world.zpool(&format!("remove tank {}", s[0])).ok();
    assert_eq!(config(&world, "tank"), ["mirror-0 ONLINE", "tank1 ONLINE", "s2 ONLINE"]);
    assert!(fs::read(pool.root().join("f")).expect("read") == vec![5; 4 << 20]);
    pool.judge();
    pool.import();
    pool.scrub();
    pool.judge();
}

#[test]
fn two_pools_share_a_spare() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let s = world.images("s", 1, SIZE)[0].display().to_string();
    let one = Pool::create(&world, "one", Kind::Mirror, SIZE, &[]);
    let two = Pool::create(&world, "two", Kind::Mirror, SIZE, &[]);
    world.zpool(&format!("add one spare {s}")).ok();
    world.zpool(&format!("add two spare {s}")).ok();
    assert_eq!(config(&world, "two").last().map(String::as_str), Some("s1 AVAIL"));
    let disk = one.disks[0].display().to_string();
    world.zpool(&format!("replace one {disk} {s}")).ok();
    assert_eq!(config(&world, "two").last().map(String::as_str), Some("s1 INUSE"));
    told(&world.zpool("status two").ok(), "in use by pool 'one'");
    let other = two.disks[0].display().to_string();
    told(&world.zpool(&format!("replace two {other} {s}")).fails(), "s1.img");
    let told_of = "cannot export 'one': use '-f' to override the following errors:\n'one' has an active shared \
                   spare which could be used by other pools once 'one' is exported.\n";
    assert_eq!(world.zpool("export one").fails(), told_of);
    world.zpool("wait -t resilver one").ok();
    world.zpool(&format!("detach one {disk}")).ok();
    assert_eq!(config(&world, "one"), ["mirror-0 ONLINE", "s1 ONLINE", "one2 ONLINE"]);
    assert_eq!(config(&world, "two"), ["mirror-0 ONLINE", "two1 ONLINE", "two2 ONLINE"]);
    two.judge();
    one.judge();
}

#[test]
fn a_pool_is_created_with_spares_and_import_lists_them() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let s = world.images("s", 2, SIZE).iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
    let disks = world.images("d", 2, SIZE).iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
    let line = format!("create -m none tank mirror {} spare {} cache {}", disks.join(" "), s[0], s[1]);
    world.zpool(&line).ok();
    let idle = ["mirror-0 ONLINE", "d1 ONLINE", "d2 ONLINE", "cache", "s2 ONLINE", "spares", "s1 AVAIL"];
    assert_eq!(config(&world, "tank"), idle);
    let done = world.zpool(&format!("create -m none other {} spare {}", s[0], disks[0]));
    assert_ne!(done.code, 0, "{done}");
    world.zpool("scrub -w tank").ok();
    world.zpool("scrub -C -w tank").ok();
    told(&world.zpool("status tank").ok(), "with 0 errors");
    world.zpool("export tank").ok();
    let listed = world.zpool(&format!("import -d {}", world.disks().display())).ok();
    told(&listed, &format!("\tcache\n\t  {}\n\tspares\n\t  {}\n", s[1], s[0]));
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    assert_eq!(config(&world, "tank"), idle);
    world.zpool("export tank").ok();
    zilla_e2e::zdb_clean(&world.disks(), "tank");
}
