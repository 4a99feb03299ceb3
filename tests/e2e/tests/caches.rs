//! Cache devices by the commands: made, added, shown, taken off line, lost, removed; what goes
//! wrong says so; and OpenZFS agrees each time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zilla_e2e::{Done, Kind, Need, Pool, Random, World, can};

const SIZE: u64 = 96 << 20;

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

fn word(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn zilla(world: &World, words: &str) -> Done {
    world.run("zilla", &words.split(' ').collect::<Vec<_>>())
}

/// The lines of `zpool status` between `cache` and the blank line, as "name state".
fn caches(world: &World) -> Vec<String> {
    let status = world.zpool("status tank").ok();
    let lines = status.lines().skip_while(|l| l.trim_end() != "\tcache").skip(1);
    lines
        .take_while(|l| !l.is_empty())
        .map(|l| {
            let mut words = l.split_whitespace();
            let name = words.next().map(|n| n.rsplit('/').next().unwrap_or(n).trim_end_matches(".img"));
            format!("{} {}", name.unwrap_or(""), words.next().unwrap_or(""))
        })
        .collect()
}

/// What `list -v` says that a cache device holds.
fn held(world: &World, name: &str) -> u64 {
    let list = world.zpool("list -Hpv tank").ok();
    let line = list.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{list}"));
    line.split('\t').filter(|w| !w.is_empty()).nth(2).and_then(|w| w.parse().ok()).unwrap_or(0)
}

fn start(world: &World) -> (Pool<'_>, Vec<String>) {
    let pool = Pool::create(world, "tank", Kind::Mirror, SIZE, &[]);
    let images: Vec<PathBuf> = world.images("c", 3, SIZE);
    (pool, images.iter().map(|p| word(p)).collect())
}

#[track_caller]
fn turn(pool: &Pool<'_>) {
    pool.judge();
    pool.import();
}

#[test]
fn cache_devices_come_and_go() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (pool, c) = start(&world);
    let plan = world.zpool(&format!("add -n tank cache {}", c[0])).ok();
    told(&plan, &format!("\tcache\n\t  {}\n", c[0]));
    assert!(caches(&world).is_empty());
    let size = world.zpool("list -Hp -o size tank").ok();
    world.zpool(&format!("add tank cache {} {}", c[0], c[1])).ok();
    assert_eq!(caches(&world), ["c1 ONLINE", "c2 ONLINE"]);
    assert_eq!(world.zpool("list -Hp -o size tank").ok(), size, "caches are no space for data");
    told(&world.zpool("iostat -v tank").ok(), "\ncache");
    let mut x = 1u64;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 40) as u8
    };
    let data: Vec<u8> = (0..20 << 20).map(|_| next()).collect();
    fs::write(pool.root().join("a"), &data).expect("write");
    pool.sync();
    let begun = Instant::now();
    while held(&world, "c1.img") + held(&world, "c2.img") < 16 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is fed");
        std::thread::sleep(Duration::from_millis(200));
    }
    let stats = zilla(&world, "arcstat -p -f l2size,l2wbytes,c tank").ok();
    let numbers: Vec<u64> =
        stats.lines().nth(1).unwrap_or("").split_whitespace().filter_map(|w| w.parse().ok()).collect();
    assert!(numbers.len() == 3 && numbers[0] >= 16 << 20 && numbers[1] >= 16 << 20, "{stats}");

    world.zpool(&format!("offline tank {}", c[0])).ok();
    assert_eq!(caches(&world), ["c1 OFFLINE", "c2 ONLINE"]);
    turn(&pool);
    assert_eq!(caches(&world), ["c1 OFFLINE", "c2 ONLINE"]);
    world.zpool(&format!("online tank {}", c[0])).ok();
    assert_eq!(caches(&world), ["c1 ONLINE", "c2 ONLINE"]);
    assert!(fs::read(pool.root().join("a")).expect("read") == data);
    world.zpool(&format!("remove tank {}", c[0])).ok();
    assert_eq!(caches(&world), ["c2 ONLINE"]);
    told(&world.zpool("history tank").ok(), "zpool remove tank ");

    // One that is lost is shown, and no reason not to import.
    pool.judge();
    fs::rename(&c[1], world.path().join("away")).expect("rename");
    pool.import();
    assert_eq!(caches(&world), ["c2 UNAVAIL"]);
    assert!(fs::read(pool.root().join("a")).expect("read") == data);
    world.zpool(&format!("remove tank {}", c[1])).ok();
    assert!(caches(&world).is_empty());
    assert!(fs::read(pool.root().join("a")).expect("read") == data);
    turn(&pool);
    assert!(caches(&world).is_empty());
    pool.judge();
}

#[test]
fn what_cannot_be_a_cache_is_refused() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (pool, c) = start(&world);
    let wrong = |words: &str, code: i32, text: &str| {
        let out = world.zpool(words);
        assert_eq!(out.code, code, "{words}: {}{}", out.stdout, out.stderr);
        told(&out.stderr, text);
    };
    wrong(&format!("add tank cache mirror {} {}", c[0], c[1]), 1, "invalid vdev specification");
    wrong(&format!("add tank cache {} {}", c[0], c[0]), 1, "");
    let small = world.images("small", 1, 32 << 20);
    wrong(&format!("add tank cache {}", word(&small[0])), 1, "less than the minimum size (64M)");
    world.zpool(&format!("add tank cache {}", c[0])).ok();
    wrong(&format!("add tank cache {}", c[0]), 1, &c[0]);
    wrong(&format!("add -f tank cache {}", c[0]), 1, &c[0]);
    wrong(&format!("attach tank {} {}", c[0], c[1]), 255, "device is in use as a cache");
    wrong(&format!("detach tank {}", c[0]), 255, "device is in use as a cache");
    wrong(&format!("trim tank {}", c[0]), 255, "device is in use as a cache");
    assert_eq!(caches(&world), ["c1 ONLINE"]);
    wrong(&format!("remove tank {}", c[1]), 1, "no such device in pool");
    assert_eq!(zilla(&world, "arcstat -f nothing").code, 2);
    assert_eq!(zilla(&world, "arcstat -a -f size").code, 2);
    assert_ne!(zilla(&world, "arcstat nopool").code, 0);
    pool.judge();
}

/// `O_DIRECT`, and what the property `direct` makes of it.
#[test]
fn what_goes_past_the_cache_is_not_kept_in_it() {
    use std::io::{Read, Write};
    use std::os::unix::fs::OpenOptionsExt;
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &["-O", "compression=off"]);
    let kept = || -> u64 {
        let text = zilla(&world, "arcstat -p -f size tank").ok();
        text.lines().last().and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let again = || {
        pool.export();
        pool.import();
        kept()
    };
    // What goes past the caches must be whole pages, in memory too.
    const SIZE: usize = 16 << 20;
    let paged = || {
        let room = vec![0; SIZE + 4096];
        let start = room.as_ptr().align_offset(4096);
        (room, start..start + SIZE)
    };
    let (mut room, at) = paged();
    room[at.clone()].copy_from_slice(&Random::new(3).bytes(SIZE));
    let data = &room[at];
    let open = |name: &str, direct: bool| {
        let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
        options.open(pool.root().join(name)).expect("open")
    };
    for (value, direct, stays) in [
        ("standard", false, true),
        ("standard", true, false),
        ("disabled", true, true),
        ("always", false, false),
    ] {
        world.zfs(&format!("set direct={value} tank")).ok();
        let name = format!("{value}-{direct}");
        let as_wanted = |before: u64, what: &str| {
            let more = kept().saturating_sub(before);
            assert!(if stays { more > 14 << 20 } else { more < 4 << 20 }, "{name}: {more} bytes {what}");
        };
        let before = again();
        open(&name, direct).write_all(data).expect("write");
        pool.sync();
        as_wanted(before, "written");
        let (before, (mut back, at)) = (again(), paged());
        let mut file = open(&name, direct);
        file.read_exact(&mut back[at.clone()]).expect("read");
        assert!(&back[at] == data, "{name}: other bytes");
        as_wanted(before, "read");
        // Less than a page goes through the cache, or is refused to who asks for what cannot be.
        let mut part = [0; 512];
        for less in [file.write(&part).map(drop), open(&name, direct).read_exact(&mut part)] {
            let refused = less.err().and_then(|e| e.raw_os_error());
            assert_eq!(refused, (value == "standard" && direct).then_some(22), "{name}");
        }
    }
    pool.judge();
}
