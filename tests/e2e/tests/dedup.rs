//! Blocks that are kept once: what the commands say of them, plain and encrypted, and that every
//! one is given back.

use std::fs;
use std::process::Command;
use std::time::Duration;
use zilla_e2e::{Kind, Need, Pool, World, can};

const RECORD: usize = 16 << 10;
const RECORDS: usize = 128;

/// Records of which no two are the same.
fn bytes(seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut word = || {
        (x, _) = x.overflowing_mul(6_364_136_223_846_793_005);
        x = x.rotate_left(29) ^ seed;
        x.to_le_bytes()
    };
    (0..RECORD * RECORDS / 8).flat_map(|_| word()).collect()
}

fn ratio(world: &World) -> String {
    world.zpool("get -H -o value dedupratio tank").ok().trim().to_owned()
}

fn entries(world: &World) -> usize {
    let said = world.zpool("status -D tank").ok();
    let Some(rest) = said.split("DDT entries ").nth(1) else { return 0 };
    rest.split(',').next().and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

/// What zdb tells of the tables is what OpenZFS's tells, down to the entries.
fn same_tables(pool: &Pool<'_>) {
    let Some(theirs) = zilla_testkit::zdb() else { return };
    pool.export();
    let said = |mut zdb: Command, option: &str| {
        zdb.args(["-e", "-p"]).arg(pool.world.disks()).args([option, "tank"]);
        let done = zdb.output().expect("zdb");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let path = theirs.get_program().to_owned();
    for option in ["-D", "-DD", "-DDD", "-DDDD", "-DDDDD"] {
        let ours = said(pool.world.command("zdb"), option);
        assert!(ours.contains("rootobj="), "{ours}");
        assert_eq!(ours, said(Command::new(&path), option), "{option}");
    }
    pool.import();
}

/// Own zdb, since OpenZFS's of today's distributions does not know `fast_dedup`.
fn zdb(pool: &Pool<'_>) {
    pool.export();
    let mut zdb = pool.world.command("zdb");
    zdb.args(["-e", "-p"]).arg(pool.world.disks()).args(["-bcc", "tank"]);
    let done = zdb.output().expect("zdb");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.to_lowercase().contains("no leaks"), "{said}");
    pool.import();
}

#[test]
fn blocks_that_are_the_same_are_kept_once() {
    if !can(&[Need::Fuse]) {
        return;
    }
    for fast in [false, true] {
        let world = World::new();
        let options: &[&str] = if fast { &[] } else { &["-o", "feature@fast_dedup=disabled"] };
        let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, options);
        let key = world.path().join("key");
        fs::write(&key, [7; 32]).expect("key");
        world.zfs("create -o dedup=on -o recordsize=16k tank/a").ok();
        let crypt = format!("-o encryption=on -o keyformat=raw -o keylocation=file://{}", key.display());
        world.zfs(&format!("create -o dedup=on -o recordsize=16k {crypt} tank/k")).ok();
        for fs in ["a", "k"] {
            for name in ["x", "y"] {
                fs::write(pool.root().join(fs).join(name), bytes(5)).expect("write");
            }
            pool.sync();
            assert_eq!(ratio(&world), "2.00x", "{fs}");
        }
        assert_eq!(entries(&world), 2 * RECORDS, "what is encrypted is told apart from what is not");
        same_tables(&pool);
        world.zpool("prefetch -t ddt tank").ok();
        pool.export();
        pool.import();
        world.zfs("load-key -a").ok();
        world.zfs("mount -a").ok();
        for fs in ["a", "k"] {
            assert!(fs::read(pool.root().join(fs).join("y")).expect("read") == bytes(5), "{fs}");
            fs::remove_file(pool.root().join(fs).join("y")).expect("remove");
        }
        until(&pool, || ratio(&world) == "1.00x" && entries(&world) == 2 * RECORDS);
        if fast {
            prune(&pool);
        }
        pool.scrub();
        for fs in ["a", "k"] {
            fs::remove_file(pool.root().join(fs).join("x")).expect("remove");
        }
        until(&pool, || world.zpool("status -D tank").ok().contains("no DDT entries"));
        if fast { zdb(&pool) } else { pool.judge() }
    }
}

/// A removed file's blocks go with a txg that comes when the kernel has let go of it.
#[track_caller]
fn until(pool: &Pool<'_>, done: impl Fn() -> bool) {
    for i in 0..50 {
        // A pool at rest leaves the log of its table as it is.
        fs::write(pool.root().join("turn"), [i]).expect("write");
        pool.sync();
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{}", pool.world.zpool("status -D tank").ok());
}

fn prune(pool: &Pool<'_>) {
    let world = pool.world;
    world.zpool("ddtprune tank").fails();
    world.zpool("ddtprune -p 101 tank").fails();
    world.zpool("ddtprune -d 1 -p 1 tank").fails();
    // The log keeps entries some txgs long, and the age is in seconds.
    for _ in 0..24 {
        pool.sync();
        fs::write(pool.root().join("tick"), "x").expect("write");
    }
    std::thread::sleep(Duration::from_secs(2));
    world.zpool("ddtprune -d 1 tank").ok();
    assert_eq!(entries(world), 2 * RECORDS, "nothing is a day old");
    world.zpool("ddtprune -p 100 tank").ok();
    assert_eq!(entries(world), 0);
    zdb(pool);
    world.zfs("load-key -a").ok();
    world.zfs("mount -a").ok();
    // What is written again is not shared with what is there.
    fs::write(pool.root().join("a/y"), bytes(5)).expect("write");
    pool.sync();
    assert_eq!((ratio(world), entries(world)), ("1.00x".to_owned(), RECORDS));
    fs::remove_file(pool.root().join("a/y")).expect("remove");
    assert!(fs::read(pool.root().join("a/x")).expect("read") == bytes(5));
}

/// A pool in which nothing else happens is synced as often as somebody asks.
#[test]
fn entries_leave_their_log_though_nothing_else_is_written() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o dedup=on -o recordsize=16k tank/a").ok();
    fs::write(pool.root().join("a/x"), bytes(5)).expect("write");
    // Three txgs each; the log is due after eight.
    (0..5).for_each(|_| pool.sync());
    let mut tables = world.command("zdb");
    let done = tables.args(["-e", "-p"]).arg(world.disks()).args(["-D", "tank"]).output().expect("zdb");
    let said = String::from_utf8_lossy(&done.stdout);
    let stored = said.lines().find(|l| l.starts_with("DDT-sha256-zap-unique"));
    assert!(stored.is_some_and(|l| l.contains(&format!("entries={RECORDS}"))), "{said}");
    zdb(&pool);
}

/// `dedup_table_quota=auto`: what is in the logs, and comes to the tables' vdevs some txgs later,
/// counts.
#[test]
fn tables_have_no_new_entries_when_their_vdevs_are_going_to_be_full() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let special = world.images("special", 1, 64 << 20).remove(0);
    world.zpool(&format!("add tank special {}", special.display())).ok();
    // Data has three quarters of them.
    world.zfs("create -o special_small_blocks=1M tank/fill").ok();
    for i in 0..30 {
        fs::write(pool.root().join(format!("fill/{i}")), bytes(1000 + i)).expect("write");
    }
    world.zfs("create -o dedup=on -o recordsize=512 -o compression=off tank/a").ok();
    pool.sync();
    for i in 0..6 {
        fs::write(pool.root().join(format!("a/{i}")), bytes(i)).expect("write");
    }
    pool.sync();
    let before = entries(&world);
    assert!(before > 20_000, "{before}");
    fs::write(pool.root().join("a/more"), bytes(77)).expect("write");
    pool.sync();
    assert_eq!(entries(&world), before);
    world.zpool("set dedup_table_quota=none tank").ok();
    pool.sync();
    fs::write(pool.root().join("a/new"), bytes(78)).expect("write");
    pool.sync();
    assert!(entries(&world) > before);
    zdb(&pool);
}
