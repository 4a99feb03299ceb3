//! The main job, on every kind of pool: create, copy a tree in, scrub, export, import, compare, and
//! OpenZFS agrees.

use std::fs;
use std::os::unix::fs::FileExt;
use zilla_e2e::{Kind, Need, Pool, World, can, pool, tree};

const SIZE: u64 = 256 << 20;

fn round(kind: Kind) {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let source = world.path().join("source");
    tree::sample(&source, 1);
    let pool = Pool::create(&world, "tank", kind, SIZE, &[]);
    tree::copy(&source, &pool.root().join("copy"));
    tree::same(&source, &pool.root().join("copy"));
    pool.scrub();
    pool.export();
    pool::zdb_clean(&world.disks(), "tank");
    pool.import();
    tree::same(&source, &pool.root().join("copy"));
    // And it goes on living: half of it away, a second copy.
    fs::remove_dir_all(pool.root().join("copy/sub")).expect("remove");
    tree::copy(&source, &pool.root().join("again"));
    pool.sync();
    // The next daemon opens and mounts by itself what the last one had open.
    world.stop();
    pool.again();
    tree::same(&source, &pool.root().join("again"));
    assert!(!pool.root().join("copy/sub").exists());
    pool.judge();
}

#[test]
fn a_pool_that_is_let_go_of_hard_is_still_in_its_cache_file() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let cache = world.path().join("pools.cache");
    let option = format!("cachefile={}", cache.display());
    let _tank = Pool::create(&world, "tank", Kind::Single, 96 << 20, &["-o", &option]);
    let import = format!("import -o {option} -c {} tank", cache.display());
    let has =
        |what: &[u8]| std::fs::read(&cache).expect("a cache file").windows(what.len()).any(|w| w == what);
    assert!(!has(b"legacy"));
    world.zpool("set compatibility=legacy tank").ok();
    assert!(has(b"legacy"), "it says at once how the pool is kept");
    world.zpool("export -F tank").ok();
    world.zpool(&import).ok();
    world.zpool("export tank").ok();
    world.zpool(&import).fails();
    pool::zdb_clean(&world.disks(), "tank");
}

/// `-n` refuses what would be refused without it, in the same words, and touches nothing.
#[test]
fn what_is_only_tried_is_looked_at_as_the_real_thing() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 96 << 20, &[]);
    let used = world.disks().join("tank1.img").display().to_string();
    let images = |prefix: &str, n: usize, size: u64| -> Vec<String> {
        world.images(prefix, n, size).iter().map(|p| p.display().to_string()).collect()
    };
    let (free, small) = (images("free", 2, 96 << 20), images("small", 1, 32 << 20));
    let left = images("left", 1, 96 << 20);
    world.zpool(&format!("create -O canmount=off other {}", left[0])).ok();
    world.zpool("export other").ok();
    let before: Vec<Vec<u8>> = free.iter().map(|path| fs::read(path).expect("image")).collect();
    for (kind, vdevs) in [
        ("active pool", used.clone()),
        ("active pool", format!("mirror {} {used}", free[0])),
        ("active pool", format!("{} cache {used}", free[0])),
        ("exported", left[0].clone()),
        ("minimum size", small[0].clone()),
        ("refer to the same device", format!("{} {}", free[0], free[0])),
        ("cannot resolve path", "/nowhere/at/all".into()),
    ] {
        for command in ["create new", "add tank"] {
            let (verb, name) = command.split_once(' ').expect("two words");
            let tried = world.zpool(&format!("{verb} -n {name} {vdevs}"));
            assert!(tried.code == 1 && tried.stdout.is_empty(), "{command} {vdevs}: {tried}");
            // (Of what is added the replication is judged first.)
            assert!(verb == "add" || tried.stderr.contains(kind), "{command} {vdevs}: {tried}");
            let done = world.zpool(&format!("{verb} {name} {vdevs}"));
            assert_eq!((done.code, done.stderr), (1, tried.stderr), "{command} {vdevs}");
        }
    }
    // Force helps where it would.
    assert_eq!(world.zpool(&format!("create -n -f new {used}")).code, 1);
    let plan = world.zpool(&format!("create -n -f new {}", left[0])).ok();
    assert_eq!(plan, format!("would create 'new' with the following layout:\n\n\tnew\n\t  {}\n", left[0]));
    let plan = world.zpool(&format!("add -n -f tank {}", left[0])).ok();
    assert!(plan.ends_with(&format!("\t  {}\n", left[0])), "{plan}");
    assert!(world.zpool(&format!("create -n tank {}", free[0])).fails().contains("pool already exists"));
    world.zpool(&format!("create -n new mirror {} {}", free[0], free[1])).ok();
    let after: Vec<Vec<u8>> = free.iter().map(|path| fs::read(path).expect("image")).collect();
    assert!(before == after, "nothing is written");
    assert_eq!(world.zpool("list -H -o name").ok(), "tank\n");
    assert!(!world.zpool("history tank").ok().contains("zpool add"));
    // What only a pool that is there refuses.
    let lite = "-O canmount=off -o feature@allocation_classes=disabled -o feature@draid=disabled";
    let own = images("lite", 1, 96 << 20);
    world.zpool(&format!("create {lite} lite {}", own[0])).ok();
    for (kind, words) in [
        ("different physical sector sizes", format!("-o ashift=14 tank {}", free[0])),
        ("different physical sector sizes", format!("-o ashift=13 tank log {} cache {}", free[0], free[1])),
        ("allocation_classes is not enabled", format!("lite special {}", free[0])),
        ("allocation_classes is not enabled", format!("lite dedup {} spare {}", free[0], free[1])),
        ("no such pool", format!("none {}", free[0])),
    ] {
        let bytes = || free.iter().map(|path| fs::read(path).expect("image")).collect::<Vec<_>>();
        let before = bytes();
        let tried = world.zpool(&format!("add -n {words}"));
        assert!(before == bytes(), "{words}: nothing is written");
        let done = world.zpool(&format!("add {words}"));
        assert!(tried.code == 1 && tried.stderr.contains(kind), "{words}: {tried}");
        assert_eq!((done.code, done.stderr), (1, tried.stderr), "{words}");
    }
    let other = format!("-o ashift=14 tank {} cache {}", free[0], free[1]);
    for allowed in ["-f", "--allow-ashift-mismatch"] {
        let plan = world.zpool(&format!("add -n {allowed} {other}")).ok();
        assert!(plan.contains(&free[0]) && plan.contains(&free[1]), "{plan}");
    }
    // What was refused has left nothing in the pool.
    world.zpool("export lite").ok();
    if let Some(mut zdb) = zilla_testkit::zdb() {
        let said = zdb.args(["-e", "-p"]).arg(world.disks()).args(["-d", "lite"]).output().expect("zdb");
        let said = String::from_utf8_lossy(&said.stdout);
        assert!(said.contains("Dataset mos") && !said.contains("leaked"), "{said}");
    }
    pool.judge();
}

#[test]
fn an_import_gives_the_pool_properties() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 96 << 20, &["-o", "feature@bookmarks=disabled"]);
    let import = |words: &str| world.zpool(&format!("import {words} -d {} tank", world.disks().display()));
    world.zpool("export tank").ok();
    assert!(import("-o version=28").fails().contains("property 'version' number 28 is invalid."));
    let refused = import("-o readonly=on -o comment=new").fails();
    assert!(refused.contains("property 'comment' cannot be set in a read-only pool"), "{refused}");
    let words = "-o comment=new -o failmode=continue -o feature@bookmarks=enabled";
    import(words).ok();
    let given = || {
        let names = "comment,failmode,feature@bookmarks";
        world.zpool(&format!("get -H -o value {names} tank")).ok()
    };
    assert_eq!(given(), "new\ncontinue\nenabled\n");
    world.zpool("export tank").ok();
    import("-o readonly=on").ok();
    assert_eq!(given(), "new\ncontinue\nenabled\n");
    world.zpool("export tank").ok();
    pool.import();
    pool.judge();
}

#[test]
fn single() {
    round(Kind::Single);
}

#[test]
fn mirror() {
    round(Kind::Mirror);
}

#[test]
fn raidz1() {
    round(Kind::Raidz1);
}

#[test]
fn raidz2() {
    round(Kind::Raidz2);
}

#[test]
fn raidz3() {
    round(Kind::Raidz3);
}

#[test]
fn mixed() {
    round(Kind::Mixed);
}

/// A tree is served whole while as many disks as there is redundancy are damaged from end to end,
/// and a scrub heals them.
fn heals(kind: Kind, damaged: usize) {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let source = world.path().join("source");
    tree::sample(&source, 2);
    let pool = Pool::create(&world, "tank", kind, SIZE, &[]);
    tree::copy(&source, &pool.root().join("copy"));
    pool.export();
    world.stop();
    for disk in &pool.disks[..damaged] {
        // All of the data, none of the labels.
        let file = fs::File::options().write(true).open(disk).expect("disk");
        let noise = zilla_e2e::Random::new(3).bytes(1 << 20);
        for at in (5 << 20..SIZE - (2 << 20)).step_by(1 << 20) {
            file.write_all_at(&noise, at).expect("disk");
        }
    }
    pool.import();
    tree::same(&source, &pool.root().join("copy"));
    world.zpool("scrub -w tank").ok();
    let status = world.zpool("status tank").ok();
    assert!(status.contains("errors: No known data errors"), "{status}");
    world.zpool("clear tank");
    pool.scrub();
    pool.judge();
}

#[test]
fn a_mirror_heals() {
    heals(Kind::Mirror, 1);
}

#[test]
fn raidz1_heals() {
    heals(Kind::Raidz1, 1);
}

#[test]
fn raidz2_heals() {
    heals(Kind::Raidz2, 2);
}

#[test]
fn raidz3_heals() {
    heals(Kind::Raidz3, 3);
}

#[test]
fn a_missing_disk_leaves_the_pool_degraded_and_working() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let source = world.path().join("source");
    tree::sample(&source, 4);
    let pool = Pool::create(&world, "tank", Kind::Raidz1, SIZE, &[]);
    tree::copy(&source, &pool.root().join("copy"));
    pool.export();
    world.stop();
    let away = world.path().join("away.img");
    fs::rename(&pool.disks[1], &away).expect("rename");
    pool.import();
    assert_eq!(world.zpool("list -H -o health tank").ok().trim(), "DEGRADED");
    tree::same(&source, &pool.root().join("copy"));
    tree::copy(&source, &pool.root().join("written while degraded"));
    pool.export();
    // Two missing are too many: refused, and nothing is lost.
    let second = world.path().join("second.img");
    fs::rename(&pool.disks[2], &second).expect("rename");
    let words = format!("import -d {} tank", world.disks().display());
    world.zpool(&words).fails();
    fs::rename(&second, &pool.disks[2]).expect("rename");
    pool.import();
    tree::same(&source, &pool.root().join("written while degraded"));
    pool.export();
}

#[test]
fn a_special_vdev_is_still_one_after_an_import() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let special = world.images("special", 1, SIZE).remove(0);
    world.zpool(&format!("add tank special {}", special.display())).ok();
    world.zfs("set special_small_blocks=32K tank").ok();
    pool.export();
    pool.import();
    let status = world.zpool("status tank").ok();
    let (before, after) = status.split_once("special\t").expect(&status);
    assert!(!before.contains("special1.img") && after.contains("special1.img"), "{status}");
    // Large blocks stay away from it, small ones go there.
    let taken = || -> i64 {
        let list = world.zpool("list -Hpv tank").ok();
        let row = list.lines().find(|l| l.contains("special1.img")).expect("row");
        row.split('\t').filter(|w| !w.is_empty()).nth(2).and_then(|w| w.parse().ok()).expect("bytes")
    };
    // Bytes that no compression makes smaller.
    let noise = |name: &str, len: usize| {
        let mut x = len as u64 + name.len() as u64;
        let next = |_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        };
        fs::write(pool.root().join(name), (0..len).map(next).collect::<Vec<u8>>()).expect("write");
    };
    let empty = taken();
    noise("large", 40 << 20);
    pool.sync();
    let large = taken() - empty;
    (0..100).for_each(|i| noise(&format!("small{i}"), 30_000));
    pool.sync();
    let small = taken() - empty - large;
    assert!(large < 4 << 20 && small > 2 << 20, "{large} bytes for a large file, {small} for small ones");
    pool.judge();
}

#[test]
fn a_pool_is_written_into_the_cache_file_that_it_names() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (one, two) = (world.path().join("one.cache"), world.path().join("two.cache"));
    let option = format!("cachefile={}", one.display());
    let pool = Pool::create(&world, "tank", Kind::Single, 96 << 20, &["-o", &option]);
    assert!(one.exists() && !world.state().join("zpool.cache").exists());
    world.zpool(&format!("set cachefile={} tank", two.display())).ok();
    assert!(!one.exists() && two.exists());
    assert_eq!(world.zpool("get -H -o value cachefile tank").ok().trim(), two.display().to_string());
    world.zpool("set cachefile=none tank").ok();
    assert!(!two.exists());
    world.zpool(&format!("set cachefile={} tank", two.display())).ok();
    let kept = std::fs::read(&two).expect("cache file");
    pool.export();
    assert!(!two.exists(), "it is no pool's any more");
    std::fs::write(&two, kept).expect("cache file");
    world.zpool(&format!("import -c {} tank", two.display())).ok();
    pool.judge();
}

/// As OpenZFS: where they are not under their old names they are looked for beside these, and pools
/// that the file does not name are nobody's business.
#[test]
fn a_cache_file_leads_to_devices_that_were_renamed() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let file = world.path().join("a.cache");
    let images = world.images("d", 3, 96 << 20);
    let [a, b, other] = [0, 1, 2].map(|i| images[i].display().to_string());
    world.zpool(&format!("create -O mountpoint=none tank {other}")).ok();
    world.zpool("export tank").ok();
    world
        .zpool(&format!("create -O mountpoint=none -o cachefile={} tank mirror {a} {b}", file.display()))
        .ok();
    let guid = world.zpool("get -H -o value guid tank").ok();
    let kept = std::fs::read(&file).expect("cache file");
    world.zpool("export tank").ok();
    std::fs::write(&file, kept).expect("cache file");
    for path in &images[..2] {
        std::fs::rename(path, path.with_extension("new")).expect("renamed");
    }
    let said = world.zpool(&format!("import -c {} tank", file.display())).ok();
    assert!(said.contains("cachefile import failed, retrying"), "{said}");
    assert_eq!(world.zpool("get -H -o value guid tank").ok(), guid);
    assert_eq!(world.zpool("list -H -o health tank").ok().trim(), "ONLINE");
    world.zpool("export tank").ok();
}

/// Disks get other paths while a machine is off.
#[test]
fn devices_that_were_renamed_are_found_at_a_start() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 96 << 20, &[]);
    // Others are not looked for, nor taken for what they are not.
    let other = Pool::create(&world, "other", Kind::Mirror, 96 << 20, &[]);
    std::fs::write(pool.root().join("old"), "old").expect("write");
    world.stop();
    std::fs::copy(&pool.disks[0], world.disks().join("copy.img")).expect("copy");
    world.zpool("list").ok();
    std::fs::write(pool.root().join("new"), "new").expect("write");
    world.stop();
    let renamed = [0, 1].map(|i| world.disks().join(format!("z{i}.img")));
    std::fs::rename(&pool.disks[0], &renamed[0]).expect("renamed");
    std::fs::rename(&pool.disks[1], &renamed[1]).expect("renamed");
    assert_eq!(world.zpool("list -Ho name,health").ok(), "other\tONLINE\ntank\tONLINE\n");
    let status = world.zpool("status -P").ok();
    // The newest of what carries the guids, not the copy; and what is where it was stays there.
    for path in renamed.iter().chain(&other.disks) {
        assert!(status.contains(&path.display().to_string()), "{status}");
    }
    assert_eq!(std::fs::read_to_string(pool.root().join("new")).expect("read"), "new");
    // One of them alone; the cache file has learned where they were.
    world.stop();
    std::fs::rename(&renamed[1], &pool.disks[1]).expect("renamed");
    assert_eq!(world.zpool("list -Ho name,health tank").ok(), "tank\tONLINE\n");
    std::fs::remove_file(world.disks().join("copy.img")).expect("removed");
    pool.judge();
    other.judge();
}

#[test]
fn sectors_that_a_pool_was_made_with_are_those_of_what_is_added() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 96 << 20, &["-o", "ashift=13"]);
    assert_eq!(world.zpool("get -H -o value,source ashift tank").ok(), "13\tlocal\n");
    let more = world.images("more", 1, 96 << 20)[0].display().to_string();
    // Others are refused, with all that was to come beside them.
    let cache = world.images("cache", 1, 96 << 20)[0].display().to_string();
    for other in [format!("-o ashift=12 tank {more} cache {cache}"), format!("-o ashift=14 tank log {more}")]
    {
        let refused = world.zpool(&format!("add {other}"));
        assert_eq!(
            (refused.code, refused.stderr.as_str()),
            (1, "cannot add to 'tank': adding devices with different physical sector sizes is not allowed\n")
        );
        assert!(!world.zpool("status tank").ok().contains(&cache), "{other}");
    }
    world.zpool(&format!("add tank {more}")).ok();
    pool.judge();
    let config = zilla_testkit::zdb_of(&world.disks(), "tank", &["-C"]);
    assert!(config.is_none_or(|text| text.matches("ashift: 13").count() == 2));
    pool.import();
    // Unless it is said. Then the pool has no one size, and nothing is refused any more.
    let more = world.images("other", 2, 96 << 20);
    world.zpool(&format!("add --allow-ashift-mismatch -o ashift=12 tank {}", more[0].display())).ok();
    world.zpool(&format!("add -o ashift=9 tank {}", more[1].display())).ok();
    pool.judge();
}

#[test]
fn what_the_pool_has_no_feature_for_cannot_be_set_and_such_a_pool_is_not_made() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let disk = world.images("d", 1, 96 << 20)[0].display().to_string();
    let made = format!("create -m none -o feature@lz4_compress=disabled -O compression=lz4 tank {disk}");
    assert!(world.zpool(&made).fails().contains("pool must be upgraded to set this property or value"));
    assert!(!world.zpool("list -H -o name").ok().contains("tank"));
    world.zpool(&format!("create -d -m none tank {disk}")).ok();
    for word in ["compression=lz4", "compression=zstd-3", "checksum=blake3", "recordsize=1M", "dnodesize=1k"]
    {
        let refused = world.zfs(&format!("set {word} tank")).fails();
        assert!(refused.contains("pool must be upgraded to set this property or value"), "{word}: {refused}");
    }
    world.zfs("set compression=gzip tank").ok();
}
