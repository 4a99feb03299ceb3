//! Bad input: each case gets the error OpenZFS gives, or a clearer one, and nothing is lost.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use zilla_e2e::{Kind, Need, Pool, World, can, pool, tree};

#[track_caller]
fn told(text: &str, any: &[&str]) {
    assert!(any.iter().any(|words| text.contains(words)), "wanted one of {any:?}, got: {text}");
}

#[test]
fn devices_that_will_not_do() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 128 << 20, &[]);
    let free = world.images("free", 2, 128 << 20);
    let small = world.images("small", 1, 32 << 20);
    let (free, second, small) = (free[0].display(), free[1].display(), small[0].display());
    let taken = pool.disks[0].display();
    let create = |words: String| world.zpool(&format!("create -m none {words}")).fails();

    told(&create(format!("b {taken}")), &["is part of active pool 'tank'"]);
    told(&create(format!("b mirror {free} {taken}")), &["is part of active pool 'tank'"]);
    told(&create(format!("b {small}")), &["one or more devices is less than the minimum size"]);
    told(
        &create(format!("b mirror {free} {free}")),
        &["refer to the same device", "specified more than once"],
    );
    told(&create(format!("b {free}-missing")), &["cannot resolve path"]);
    told(
        &create(format!("b {}", world.mnt().display())),
        &["directory", "must be a block device or regular file"],
    );
    told(&create(format!("b mirror {free}")), &["at least 2 devices"]);
    told(&create(format!("b raidz3 {free} {second}")), &["at least"]);
    told(&create(format!("b {free} spare {small}")), &["one or more devices is less than the minimum size"]);
    told(&create(format!("b {free} spare {free}")), &["refer to the same device"]);
    if !zilla_e2e::needs::is_root() {
        fs::set_permissions(free.to_string(), std::os::unix::fs::PermissionsExt::from_mode(0o444))
            .expect("mode");
        told(&create(format!("b {free}")), &["Permission denied", "permission denied"]);
        fs::set_permissions(free.to_string(), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .expect("mode");
    }
    // A pool that was exported is not overwritten without being asked twice.
    pool.export();
    told(&create(format!("b {taken}")), &["is part of exported pool 'tank'"]);
    pool.import();
    pool.judge();
}

#[test]
fn devices_that_hold_something() {
    let world = World::new();
    let images = world.images("used", 3, 128 << 20);
    let (first, second, third) = (images[0].display(), images[1].display(), images[2].display());
    let put = |image: &std::path::Path, at: u64, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(image).expect("image");
        file.write_all_at(bytes, at).expect("image");
    };
    // An ext4 superblock's mark and one of its features; a swap area's; a LUKS header's.
    put(&images[0], 1080, b"\x53\xef");
    put(&images[0], 1120, b"\x40");
    put(&images[1], 4086, b"SWAPSPACE2");
    put(&images[2], 0, b"LUKS\xba\xbe");
    let refused = world.zpool(&format!("create -m none b {first} {second}")).fails();
    assert_eq!(
        refused,
        format!(
            "invalid vdev specification\nuse '-f' to override the following errors:\n\
             {first} contains a filesystem of type 'ext4'\n{second} contains a filesystem of type 'swap'\n"
        )
    );
    // Nothing was touched, and nothing is held.
    let mut mark = [0; 2];
    let file = fs::File::open(&images[0]).expect("image");
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut mark, 1080).expect("image");
    assert_eq!(&mark, b"\x53\xef");
    drop(file);
    world.zpool(&format!("create -f -m none b {first}")).ok();
    told(
        &world.zpool(&format!("add b {third}")).fails(),
        &["use '-f' to override the following errors:\n", "contains a filesystem of type 'crypto_LUKS'"],
    );
    world.zpool(&format!("add -f b {third}")).ok();
    // What was there is gone for good, so the device can be used again without a word.
    world.zpool("destroy b").ok();
    world.zpool(&format!("create -m none c {first} {third}")).ok();
    world.zpool("destroy c").ok();
}

#[test]
fn names_that_will_not_do() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let free = world.images("free", 1, 128 << 20);
    let free = free[0].display();
    let create = |name: &str| world.zpool(&format!("create -m none {name} {free}")).fails();
    told(&create("tank"), &["pool already exists"]);
    told(&create("mirror"), &["name is reserved"]);
    told(&create("9lives"), &["name must begin with a letter"]);
    told(&create("a%b"), &["invalid character '%'"]);
    told(&create("a/b"), &["invalid character '/'"]);

    world.zfs("create tank/a").ok();
    world.zfs("create tank/a/b").ok();
    world.zfs("snapshot tank/a@s").ok();
    told(&world.zfs("create tank/a").fails(), &["dataset already exists"]);
    told(&world.zfs("create tank/x/y").fails(), &["parent does not exist"]);
    told(&world.zfs("create nopool/a").fails(), &["no such pool"]);
    told(&world.zfs("create tank/a%b").fails(), &["invalid character"]);
    told(&world.zfs("snapshot tank/a@s").fails(), &["dataset already exists"]);
    // What is not there is the dataset: wrong usage, before anything is made.
    for words in ["tank/nope@t", "-r tank/nope@t", "tank/a@t tank/nope@t"] {
        let absent = world.zfs(&format!("snapshot {words}"));
        assert_eq!(absent.code, 2, "{absent}");
        let said = "cannot open 'tank/nope': dataset does not exist\nusage:";
        assert!(absent.stderr.starts_with(said), "{absent}");
    }
    assert!(!world.zfs("list -H -t snapshot -o name").ok().contains("@t"));
    told(&world.zfs("destroy tank/a").fails(), &["has children"]);
    told(&world.zfs("destroy tank/nothing").fails(), &["dataset does not exist"]);
    told(&world.zfs("set compression=best tank/a").fails(), &["'compression' must be one of"]);
    told(&world.zfs("set nothing=1 tank/a").fails(), &["invalid property"]);
    told(&world.zpool("export nopool").fails(), &["no such pool"]);
    told(&world.zpool("scrub nopool").fails(), &["no such pool"]);
    told(&world.zpool("import nopool").fails(), &["no such pool available"]);

    // What there is none of yet is refused by name, with 2.
    let done = world.zfs("zone /proc/self/ns/user tank/a");
    assert_eq!(done.code, 2, "{done}");
    told(&done.stderr, &["zone"]);
    pool.judge();
}

#[test]
fn a_busy_file_system_stays_mounted() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    let open = fs::File::create(pool.root().join("a/open")).expect("file");
    told(&world.zfs("unmount tank/a").fails(), &["busy"]);
    told(&world.zfs("destroy tank/a").fails(), &["busy"]);
    told(&world.zpool("export tank").fails(), &["busy"]);
    (&open).write_all(b"still there").expect("write");
    drop(open);
    assert_eq!(fs::read_to_string(pool.root().join("a/open")).expect("read"), "still there");
    world.zfs("destroy tank/a").ok();
    pool.judge();
}

/// As OpenZFS: what is in use stays, with what it is in or was made from; all else goes.
#[test]
fn of_a_tree_with_something_in_use_the_rest_is_destroyed() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let names = || world.zfs("list -H -o name -t all -r tank").ok().replace('\n', " ");
    let make = || {
        for name in ["t", "t/a", "t/b", "t/b/c", "t/d"] {
            world.zfs(&format!("create -p tank/{name}")).ok();
        }
        world.zfs("snapshot -r tank/t@s").ok();
    };
    make();
    let open = fs::File::create(pool.root().join("t/b/open")).expect("file");
    let done = world.zfs("destroy -r tank/t");
    assert_eq!(done.code, 1, "{done}");
    told(&done.stderr, &["cannot unmount", "t/b': pool or dataset is busy"]);
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    assert_eq!(names(), "tank tank/t tank/t/b ");
    (&open).write_all(b"still there").expect("write");
    drop(open);
    // A clone elsewhere keeps its origin.
    make();
    world.zfs("clone tank/t/d@s tank/u").ok();
    let open = fs::File::create(pool.root().join("u/open")).expect("file");
    told(&world.zfs("destroy -R tank/t").fails(), &["cannot unmount", "u': pool or dataset is busy"]);
    assert_eq!(names(), "tank tank/t tank/t/d tank/t/d@s tank/u ");
    drop(open);
    world.zfs("destroy -R tank/t").ok();
    assert_eq!(names(), "tank ");
    pool.judge();
}

/// The kernel keeps the helper that mounts for an ordinary user out of that user's file systems.
#[test]
fn a_file_system_in_another_says_what_it_needs() {
    if !can(&[Need::Fuse]) || can(&[Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    told(&world.zfs("create tank/a").fails(), &["'user_allow_other' into /etc/fuse.conf"]);
    // Elsewhere it can be.
    let elsewhere = world.path().join("elsewhere");
    world.zfs(&format!("set mountpoint={} tank/a", elsewhere.display())).ok();
    world.zfs("mount -a").ok();
    fs::write(elsewhere.join("file"), "there").expect("write");
    pool.judge();
}

#[test]
fn a_mountpoint_that_is_not_empty() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let place = world.mnt().join("full");
    fs::create_dir(&place).expect("folder");
    fs::write(place.join("file"), "mine").expect("file");
    world.zfs("create -o overlay=off -o canmount=noauto tank/a").ok();
    world.run("zfs", &["set", &format!("mountpoint={}", place.display()), "tank/a"]).ok();
    told(&world.zfs("mount tank/a").fails(), &["directory is not empty"]);
    assert_eq!(fs::read_to_string(place.join("file")).expect("read"), "mine");
    // The default is OpenZFS's on Linux: mount over it.
    world.zfs("set overlay=on tank/a").ok();
    world.zfs("mount tank/a").ok();
    world.zfs("unmount tank/a").ok();
    assert_eq!(fs::read_to_string(place.join("file")).expect("read"), "mine");
    pool.judge();
}

#[test]
fn a_full_pool_refuses_and_deleting_still_works() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 96 << 20, &["-O", "compression=off"]);
    let source = world.path().join("source");
    tree::sample(&source, 7);
    tree::copy(&source, &pool.root().join("first"));
    let chunk = zilla_e2e::Random::new(8).bytes(1 << 20);
    let mut full = false;
    for i in 0..200 {
        let name = pool.root().join(format!("fill{i}"));
        let wrote = fs::write(&name, &chunk).and_then(|()| fs::File::open(&name)?.sync_all());
        if let Err(e) = wrote {
            assert_eq!(e.raw_os_error(), Some(28), "{e}");
            full = true;
            break;
        }
    }
    assert!(full, "200 MB went into a pool of 96 MB");
    tree::same(&source, &pool.root().join("first"));
    for i in 0..200 {
        let name = pool.root().join(format!("fill{i}"));
        if name.exists() {
            fs::remove_file(name).expect("deleting from a full pool");
        }
    }
    // What was freed comes back a few txgs later.
    for _ in 0..5 {
        pool.sync();
    }
    fs::write(pool.root().join("again"), &chunk).expect("room again");
    pool.scrub();
    pool.judge();
}

#[test]
fn two_daemons_on_one_folder() {
    let world = World::new();
    world.zpool("list").ok();
    let pid = world.pid().expect("a daemon");
    let mut second = world.daemon();
    let status = second.wait().expect("wait");
    assert!(!status.success(), "a second daemon runs");
    assert_eq!(world.pid(), Some(pid));
    world.zpool("list").ok();
}

#[test]
fn clients_that_die_half_way() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let socket = world.state().join("zillad.sock");
    let begin =
        b"POST /v1/pool_query HTTP/1.1\r\nhost: zilla\r\ncontent-length: 1000000\r\n\r\n{\"protocol\":";
    for cut in [0, 1, 20, begin.len()] {
        let mut client = UnixStream::connect(&socket).expect("socket");
        client.write_all(&begin[..cut]).expect("socket");
    }
    for garbage in [&b"\0\xff\xff\xff"[..], b"GET / HTTP/1.1\r\n\r\n", &[b'a'; 100_000]] {
        let mut client = UnixStream::connect(&socket).expect("socket");
        // The daemon may hang up before it was all sent.
        let _ = client.write_all(garbage);
    }
    // A command that is killed while the daemon works for it.
    for _ in 0..5 {
        let mut command = world.command("zpool");
        let mut child = command.args(["sync", "tank"]).spawn().expect("zpool");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    world.zpool("status tank").ok();
    pool.judge();
}

#[test]
fn the_hosts_disk_full_under_a_pool() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let small = world.path().join("small");
    fs::create_dir(&small).expect("folder");
    let mount = |words: &str| {
        let words = words.split(' ').map(std::ffi::OsStr::new).chain([small.as_os_str()]);
        tree::host("mount", &words.collect::<Vec<_>>())
    };
    mount("-t tmpfs -o size=40m tmpfs");
    let image = small.join("d.img");
    fs::File::create(&image).and_then(|f| f.set_len(256 << 20)).expect("image");
    let root = world.mnt().join("tank");
    world.zpool(&format!("create -O compression=off -m {} tank {}", root.display(), image.display())).ok();
    let kept = zilla_e2e::Random::new(9).bytes(4 << 20);
    fs::write(root.join("kept"), &kept).expect("write");
    world.zpool("sync tank").ok();
    // More than the host has room for: an error, or a suspended pool; never a wrong answer.
    let chunk = zilla_e2e::Random::new(10).bytes(1 << 20);
    let writer = {
        let root = root.clone();
        std::thread::spawn(move || {
            for i in 0..100 {
                if fs::write(root.join(format!("fill{i}")), &chunk).is_err() {
                    return;
                }
            }
        })
    };
    let begin = std::time::Instant::now();
    while !writer.is_finished() && begin.elapsed().as_secs() < 30 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    // The host gets room, the daemon dies, and the pool is whole.
    mount("-o remount,size=400m");
    world.kill();
    let _ = writer.join();
    if world.zpool("list -H -o name tank").code != 0 {
        world.zpool(&format!("import -d {} tank", small.display())).ok();
    }
    assert!(fs::read(root.join("kept")).expect("read") == kept);
    pool::scrub(&world, "tank");
    world.zpool("export tank").ok();
    pool::zdb_clean(&small, "tank");
    world.stop();
}
