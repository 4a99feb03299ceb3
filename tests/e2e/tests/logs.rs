//! Log devices by the commands: made, added, shown, mirrored, replaced, taken off line, lost,
//! removed; and OpenZFS agrees each time.

use std::fs;
use std::path::{Path, PathBuf};
use zilla_e2e::{Kind, Need, Pool, World, can};

const SIZE: u64 = 96 << 20;

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

/// The lines of `zpool status` between `logs` and the blank line, as "depth name state".
fn logs(world: &World) -> Vec<String> {
    let status = world.zpool("status tank").ok();
    let lines = status.lines().skip_while(|l| l.trim_end() != "\tlogs").skip(1);
    lines
        .take_while(|l| !l.is_empty())
        .map(|l| {
            let depth = l.trim_start_matches('\t').chars().take_while(|c| *c == ' ').count() / 2;
            let mut words = l.split_whitespace();
            let name = words.next().map(|n| n.rsplit('/').next().unwrap_or(n).trim_end_matches(".img"));
            format!("{depth} {} {}", name.unwrap_or(""), words.next().unwrap_or(""))
        })
        .collect()
}

fn word(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A mirror, and images for logs.
fn start(world: &World) -> (Pool<'_>, Vec<String>) {
    let pool = Pool::create(world, "tank", Kind::Mirror, SIZE, &[]);
    let images: Vec<PathBuf> = world.images("log", 5, SIZE);
    (pool, images.iter().map(|p| word(p)).collect())
}

/// Written and made stable, which is what logs are for.
#[track_caller]
fn work(pool: &Pool<'_>, name: &str) {
    let file = fs::File::create(pool.root().join(name)).expect("file");
    std::io::Write::write_all(&mut &file, &[7; 100_000]).expect("write");
    file.sync_all().expect("fsync");
}

/// Exports, has OpenZFS look, imports.
#[track_caller]
fn turn(pool: &Pool<'_>) {
    pool.judge();
    pool.import();
}

#[test]
fn logs_come_and_go() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (pool, l) = start(&world);
    let plan = world.zpool(&format!("add -n tank log mirror {} {}", l[0], l[1])).ok();
    told(&plan, "would update 'tank' to the following configuration:\n\n\ttank\n\t  mirror-0\n");
    told(&plan, &format!("\tlogs\n\t  mirror\n\t    {}\n", l[0]));
    assert!(logs(&world).is_empty());

    let size = world.zpool("list -Hp -o size tank").ok();
    world.zpool(&format!("add tank log {} mirror {} {}", l[0], l[1], l[2])).ok();
    let both = ["1 log1 ONLINE", "1 mirror-2 ONLINE", "2 log2 ONLINE", "2 log3 ONLINE"];
    assert_eq!(logs(&world), both);
    assert_eq!(world.zpool("list -Hp -o size tank").ok(), size, "logs are no space for data");
    let list = world.zpool("list -v tank").ok();
    let at = list.find("\nlogs").unwrap_or_else(|| panic!("{list}"));
    assert!(list[at..].contains("mirror-2"), "{list}");
    told(&world.zpool("iostat -v tank").ok(), "\nlogs");
    work(&pool, "a");
    turn(&pool);
    assert_eq!(logs(&world), both);

    world.zpool(&format!("remove tank {}", l[0])).ok();
    assert_eq!(logs(&world), ["1 mirror-2 ONLINE", "2 log2 ONLINE", "2 log3 ONLINE"]);
    work(&pool, "b");
    turn(&pool);
    world.zfs("create -o canmount=off -o logbias=throughput tank/db").ok();
    let last = world.zpool("remove tank mirror-2");
    told(&last.stderr, "'tank' has no log device any more; 'logbias' is set for tank/db,");
    last.ok();
    assert!(logs(&world).is_empty());
    told(&world.zpool("history tank").ok(), "zpool remove tank mirror-2");
    turn(&pool);
    // What was removed is anybody's.
    world.zpool(&format!("add tank log {}", l[1])).ok();
    assert_eq!(logs(&world), ["1 log2 ONLINE"]);
    work(&pool, "c");
    pool.judge();
}

#[test]
fn sides_of_a_log() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (pool, l) = start(&world);
    world.zpool(&format!("add tank log {}", l[0])).ok();
    world.zpool(&format!("attach tank {} {}", l[0], l[1])).ok();
    assert_eq!(logs(&world), ["1 mirror-1 ONLINE", "2 log1 ONLINE", "2 log2 ONLINE"]);
    work(&pool, "a");
    world.zpool(&format!("replace tank {} {}", l[0], l[2])).ok();
    assert_eq!(logs(&world), ["1 mirror-1 ONLINE", "2 log3 ONLINE", "2 log2 ONLINE"]);
    turn(&pool);
    world.zpool(&format!("offline tank {}", l[1])).ok();
    assert_eq!(logs(&world), ["1 mirror-1 DEGRADED", "2 log3 ONLINE", "2 log2 OFFLINE"]);
    work(&pool, "b");
    turn(&pool);
    told(&world.zpool(&format!("detach tank {}", l[2])).fails(), "no valid replicas");
    world.zpool(&format!("online tank {}", l[1])).ok();
    assert_eq!(logs(&world), ["1 mirror-1 ONLINE", "2 log3 ONLINE", "2 log2 ONLINE"]);
    world.zpool(&format!("detach tank {}", l[2])).ok();
    assert_eq!(logs(&world), ["1 log2 ONLINE"]);
    work(&pool, "c");
    // The last device of a log goes offline too: the pool serves instead.
    world.zpool(&format!("offline -t tank {}", l[1])).ok();
    assert_eq!(logs(&world), ["1 log2 OFFLINE"]);
    assert_eq!(world.zpool("list -H -o health tank").ok().trim(), "DEGRADED");
    work(&pool, "d");
    turn(&pool);
    assert_eq!(logs(&world), ["1 log2 ONLINE"], "that was until the next import");
    pool.judge();
}

#[test]
fn a_log_that_is_missing() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (pool, l) = start(&world);
    world.zpool(&format!("add tank log {}", l[0])).ok();
    work(&pool, "a");
    pool.export();
    let away = world.path().join("away");
    fs::rename(&l[0], &away).expect("rename");
    let shown = world.zpool(&format!("import -d {}", world.disks().display())).ok();
    told(&shown, "One or more devices are missing from the system.");
    told(&shown, "the '-m' flag: what only these hold is lost then.");
    let words = format!("import -d {} tank", world.disks().display());
    let refused = world.zpool(&words);
    assert_eq!(refused.code, 1);
    let expected = format!(
        "The devices below are missing or corrupted, use '-m' to import the pool anyway:\n\t    {} [log]\n\n",
        l[0]
    );
    assert_eq!(refused.stdout, expected);
    told(&refused.stderr, "cannot import 'tank': one or more devices is currently unavailable");
    world.zpool(&format!("import -m -d {} tank", world.disks().display())).ok();
    assert_eq!(logs(&world), ["1 log1 UNAVAIL"]);
    work(&pool, "b");
    fs::rename(&away, &l[0]).expect("rename");
    world.zpool(&format!("online tank {}", l[0])).ok();
    assert_eq!(logs(&world), ["1 log1 ONLINE"]);
    work(&pool, "c");
    pool.judge();
}

#[test]
fn what_a_log_cannot_be() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (pool, l) = start(&world);
    let other = Pool::create(&world, "other", Kind::Single, SIZE, &[]);
    let small = word(&world.images("small", 1, 32 << 20)[0]);
    let unequal = word(&world.images("unequal", 1, SIZE * 2)[0]);
    let add = |words: String| world.zpool(&format!("add tank log {words}")).fails();
    told(&add(small.clone()), "cannot add to 'tank': device is less than the minimum size (64M)");
    told(&add(other.disks[0].display().to_string()), "is part of active pool 'other'");
    told(&add(pool.disks[0].display().to_string()), "is part of active pool 'tank'");
    told(&add(format!("raidz {} {}", l[0], l[1])), "unsupported 'log' device: raidz");
    told(&add(format!("{} {}", l[0], l[0])), "refer to the same device");
    world.zpool(&format!("add tank log mirror {} {unequal}", l[0])).ok();
    told(&world.zpool(&format!("attach tank {} {small}", l[0])).fails(), "device is too small");
    let gone = world.zpool(&format!("remove tank {}", l[4])).fails();
    told(&gone, "no such device in pool");
    let side = world.zpool(&format!("remove tank {}", l[0])).fails();
    told(&side, "operation not supported on this type of pool");
    told(&world.zpool("remove tank mirror-0").fails(), "out of space");
    told(&world.zpool(&format!("detach tank {}", l[3])).fails(), "no such device in pool");
    world.zpool("destroy other").ok();
    pool.judge();
}
