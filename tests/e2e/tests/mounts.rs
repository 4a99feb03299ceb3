//! What is mounted heeds what is set, at once; and nothing is mounted where it must not be.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can, needs, tree};

/// The options that the kernel has for a mount.
fn options(at: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let at = at.to_string_lossy();
    let line = table.lines().rev().find(|l| l.split(' ').nth(4) == Some(&at));
    format!(",{},", line.and_then(|l| l.split(' ').nth(5)).unwrap_or("not mounted"))
}

#[track_caller]
fn has(at: &Path, wanted: &[&str], unwanted: &[&str]) {
    let options = options(at);
    let with = |word: &&&str| options.contains(&format!(",{word},"));
    assert!(wanted.iter().all(|w| with(&w)) && !unwanted.iter().any(|w| with(&w)), "{options}");
}

fn source(world: &World, property: &str, dataset: &str) -> String {
    world.zfs(&format!("get -Hp -o value,source {property} {dataset}")).ok().trim().replace('\t', " ")
}

#[test]
fn properties_count_at_once_also_below() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    let below = pool.root().join("a");
    let program = below.join("program");
    fs::copy("/bin/true", &program).expect("copy");
    let runs = || Command::new(&program).status().is_ok_and(|s| s.success());
    assert!(runs());
    world.zfs("set exec=off tank").ok();
    assert!(!runs(), "inherited, without mounting again");
    world.zfs("set exec=on tank/a").ok();
    assert!(runs());
    world.zfs("set readonly=on tank").ok();
    let refused = fs::write(below.join("new"), "x").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30));
    world.zfs("inherit readonly tank").ok();
    fs::write(below.join("new"), "x").expect("writable again");
    // Who has a file open for writing does not keep it writable.
    let mut open = fs::File::create(below.join("open")).expect("file");
    world.zfs("set readonly=on tank/a").ok();
    std::io::Write::write_all(&mut open, b"x").and_then(|()| open.sync_all()).expect_err("read-only");
    drop(open);
    world.zfs("set readonly=off tank/a").ok();
    fs::write(below.join("new"), "y").expect("writable again");
    if needs::is_root() {
        world.zfs("set setuid=off tank").ok();
        world.zfs("set devices=off tank/a").ok();
        world.zfs("set atime=off tank").ok();
        has(&pool.root(), &["rw", "nosuid", "noexec", "noatime"], &["nodev"]);
        has(&below, &["rw", "nosuid", "nodev", "noatime"], &["noexec"]);
        world.zfs("inherit setuid tank").ok();
        world.zfs("inherit devices tank/a").ok();
        has(&below, &["rw"], &["nosuid", "nodev"]);
    }
    pool.judge();
}

#[test]
fn acls_count_at_once_or_who_sets_them_is_told() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    let file = pool.root().join("a/file");
    fs::write(&file, "x").expect("file");
    // Version 2: the owner may all, user 4711 may read, the group, the mask, others.
    let entry = |tag: u16, may: u16, id: u32| {
        [&tag.to_le_bytes()[..], &may.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    let none = u32::MAX;
    let entries =
        [entry(1, 7, none), entry(2, 4, 4711), entry(4, 0, none), entry(16, 4, none), entry(32, 0, none)];
    let acl = [2u32.to_le_bytes().to_vec(), entries.concat()].concat();
    let set =
        || rustix::fs::setxattr(&file, "system.posix_acl_access", &acl, rustix::fs::XattrFlags::empty());
    assert_eq!(set(), Err(rustix::io::Errno::OPNOTSUPP));
    let reads = || {
        let words = ["--reuid=4711", "--regid=4711", "--clear-groups", "cat"];
        Command::new("setpriv").args(words).arg(&file).output().expect("setpriv").status.success()
    };
    // The world is root's alone: let others pass.
    for dir in [world.path(), &world.mnt()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    world.zfs("set acltype=posix tank").ok();
    set().expect("ACLs count now, also below");
    assert!(reads());
    let open = fs::File::open(&file).expect("file");
    let told = world.zfs("set acltype=off tank");
    assert!(told.code == 255 && told.stderr.contains("counts from the next mount on"), "{told}");
    drop(open);
    world.zfs("unmount tank").ok();
    world.zfs("mount -R tank").ok();
    assert_eq!(set(), Err(rustix::io::Errno::OPNOTSUPP));
    pool.judge();
}

#[test]
fn options_of_one_mount() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &["-O", "relatime=off"]);
    world.zfs("create tank/a").ok();
    let at = pool.root().join("a");
    let file = at.join("file");
    fs::write(&file, "x").expect("file");
    let read = || {
        let before = fs::metadata(&file).expect("file").atime_nsec();
        std::thread::sleep(Duration::from_millis(20));
        // Another open file each time: what the kernel has of it is not read again.
        Command::new("dd")
            .arg(format!("if={}", file.display()))
            .args(["iflag=direct", "of=/dev/null"])
            .output()
            .expect("dd");
        fs::metadata(&file).expect("file").atime_nsec() != before
    };
    world.zfs("unmount tank/a").ok();
    world.zfs("mount -o noatime,nosuid,ro tank/a").ok();
    has(&at, &["ro", "nosuid", "noatime"], &["nodev"]);
    assert!(!read(), "the engine heeds it too");
    assert_eq!(source(&world, "atime", "tank/a"), "off temporary");
    assert_eq!(source(&world, "readonly", "tank/a"), "on temporary");
    assert_eq!(source(&world, "exec", "tank/a"), "on default");
    world.zfs("mount -o remount,rw tank/a").ok();
    has(&at, &["rw", "nosuid", "noatime"], &[]);
    fs::write(&file, "y").expect("writable");
    // What is set counts from then on.
    world.zfs("set atime=on tank/a").ok();
    assert_eq!(source(&world, "atime", "tank/a"), "on local");
    has(&at, &["nosuid"], &["noatime"]);
    assert!(world.zfs("mount -o remount,fast tank/a").fails().contains("invalid mount option 'fast'"));
    world.zfs("unmount tank/a").ok();
    assert!(world.zfs("mount -o remount,ro tank/a").fails().contains("not mounted"));
    world.zfs("mount tank/a").ok();
    has(&at, &["rw"], &["nosuid"]);
    pool.judge();
}

#[test]
fn mounted_again_right_after_it_was_unmounted() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &["-O", "relatime=off"]);
    let place = |i: usize| pool.root().join(format!("f{i}"));
    for i in 0..2000 {
        fs::write(place(i), i.to_string()).expect("file");
    }
    for _ in 0..5 {
        // Times of reading that are still to be written keep the file system's last thread busy for
        // a moment.
        for i in 0..2000 {
            assert_eq!(fs::read_to_string(place(i)).expect("file"), i.to_string());
        }
        let done = Command::new("umount").arg(pool.root()).status().expect("umount");
        assert!(done.success());
        world.zfs("mount tank").ok();
    }
    pool.judge();
}

#[test]
fn an_alternate_root_is_not_left() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let (alt, outside) = (world.path().join("alt"), world.path().join("outside"));
    fs::create_dir(&alt).expect("folder");
    fs::create_dir(&outside).expect("folder");
    fs::write(outside.join("precious"), "").expect("file");
    let image = world.images("d", 1, 128 << 20);
    world.zpool(&format!("create -R {} -m /tank tank {}", alt.display(), image[0].display())).ok();
    // The owner of what is above a mountpoint puts a link in its place.
    world.zfs("create tank/users").ok();
    world.zfs("create -u tank/users/data").ok();
    let users = alt.join("tank/users");
    chown(&users, Some(4711), Some(4711)).expect("chown");
    symlink(&outside, users.join("data")).expect("link");
    let refused = world.zfs("mount tank/users/data").fails();
    assert!(refused.contains("is a symbolic link"), "{refused}");
    assert!(outside.join("precious").exists());
    world.zpool("export tank").ok();
    let import = world.zpool(&format!("import -R {} -d {} tank", alt.display(), world.disks().display()));
    assert!(import.stderr.contains("cannot mount 'tank/users/data'"), "{import}");
    assert!(outside.join("precious").exists());
    assert!(world.mounts().iter().all(|m| m.starts_with(&alt)), "{:?}", world.mounts());
    // Words that lead elsewhere are refused where they are said.
    for word in ["mountpoint=/../etc", "mountpoint=/a/./b", "mountpoint=etc", "mountpoint=/a/.."] {
        let refused = world.zfs(&format!("set {word} tank/users")).fails();
        assert!(refused.contains("'mountpoint' must"), "{refused}");
    }
    assert!(world.zfs("create -o mountpoint=/x/../y tank/b").fails().contains("must not have '..' in it"));
    let free = world.images("e", 1, 128 << 20);
    let create = world.zpool(&format!("create -m /x/../y other {}", free[0].display())).fails();
    assert!(create.contains("must not have '..' in it"), "{create}");
    // Without an alternate root a user's link is not followed either.
    world.zpool("export tank").ok();
    world.zpool(&format!("import -N -d {} tank", world.disks().display())).ok();
    let (mine, theirs) = (world.mnt().join("mine"), world.mnt().join("theirs"));
    symlink(&outside, &mine).expect("link");
    symlink(&outside, &theirs).expect("link");
    std::os::unix::fs::lchown(&theirs, Some(4711), None).expect("chown");
    world.zfs(&format!("set -u mountpoint={}/x tank", theirs.display())).ok();
    assert!(world.zfs("mount tank").fails().contains("symbolic link of user 4711"));
    world.zfs(&format!("set -u mountpoint={}/x tank", mine.display())).ok();
    world.zfs("mount tank").ok();
    assert_eq!(fs::metadata(outside.join("x")).expect("mounted").permissions().mode() & 0o777, 0o755);
    world.zpool("export tank").ok();
}

/// Kilobytes of the daemon's memory.
fn resident(world: &World) -> u64 {
    let pid = world.pid().expect("a daemon").as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("VmRSS");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("number")
}

#[test]
fn an_exported_pool_leaves_no_memory_behind() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 1 << 30, &["-O", "compression=off"]);
    let before = resident(&world);
    let noise = zilla_e2e::Random::new(7).bytes(1 << 20);
    for i in 0..256 {
        fs::write(pool.root().join(format!("f{i}")), &noise).expect("file");
    }
    pool.sync();
    let used = resident(&world);
    assert!(
        used > before + (128 << 10),
        "{before} to {used} KB: the test must use memory to show that it is given back"
    );
    pool.export();
    let begin = Instant::now();
    let mut left = resident(&world);
    while left > before + (48 << 10) && begin.elapsed() < Duration::from_secs(40) {
        std::thread::sleep(Duration::from_millis(200));
        left = resident(&world);
    }
    assert!(left <= before + (48 << 10), "{before} KB before, {used} with data, {left} after the export");
}

/// As OpenZFS: what had no place is mounted in its first, with what inherits it; what is mounted
/// only when somebody asks for it stays unmounted.
#[test]
fn a_first_place_mounts_what_is_mounted_unasked() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create -o mountpoint=none tank/x").ok();
    world.zfs("create tank/x/in").ok();
    world.zfs("create -o canmount=noauto tank/x/asked").ok();
    world.zfs("create -o mountpoint=none tank/x/own").ok();
    world.zfs("create -sV 8M tank/x/vol").ok();
    let mounted = || {
        let all = world.zfs("list -Ho name,mounted -t filesystem -r tank/x").ok();
        let names = all.lines().filter_map(|l| l.strip_suffix("\tyes")).map(str::to_owned);
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(mounted(), "");
    let (one, two) = (world.mnt().join("one"), world.mnt().join("two"));
    world.zfs(&format!("set mountpoint={} tank/x", one.display())).ok();
    assert_eq!(mounted(), "tank/x tank/x/in");
    let open = fs::File::create(one.join("in/open")).expect("create");
    let busy = world.zfs(&format!("set mountpoint={} tank/x", two.display())).fails();
    assert!(busy.contains("busy"), "{busy}");
    let place = world.zfs("get -Ho value,source mountpoint tank/x").ok();
    assert_eq!(place, format!("{}\tlocal\n", one.display()), "what is in use stays where it is");
    assert_eq!(mounted(), "tank/x tank/x/in");
    drop(open);
    world.zfs(&format!("set mountpoint={} tank/x", two.display())).ok();
    assert_eq!(mounted(), "tank/x tank/x/in");
    has(&two.join("in"), &["rw"], &[]);
    world.zfs("create -o canmount=noauto -o mountpoint=legacy tank/y").ok();
    world.zfs(&format!("set mountpoint={} tank/y", one.display())).ok();
    assert_eq!(world.zfs("get -Ho value mounted tank/y").ok(), "no\n");
    world.zfs("set canmount=on tank/y").ok();
    assert_eq!(world.zfs("get -Ho value mounted tank/y").ok(), "no\n");
    pool.judge();
}

/// The kernel keeps what it has read of a folder; a place that was set for the next mount is shown
/// at once.
#[test]
fn what_is_set_of_a_mounted_file_system_is_seen() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let control = || {
        let mut all = fs::read_dir(pool.root()).expect("read");
        all.any(|e| e.expect("entry").file_name() == ".zfs")
    };
    for (value, seen) in [("hidden", false), ("visible", true), ("hidden", false), ("visible", true)] {
        world.zfs(&format!("set snapdir={value} tank")).ok();
        assert_eq!(control(), seen, "{value}");
    }
    world.zfs("create tank/a").ok();
    let place = world.mnt().join("elsewhere");
    world.zfs(&format!("set -u mountpoint={} tank/a", place.display())).ok();
    let shown = world.zfs("get -Ho value,source mountpoint tank/a").ok();
    assert!(shown.trim_end().ends_with("elsewhere\tlocal"), "{shown}");
    assert!(pool.root().join("a").exists(), "it stays where it is");
    pool.judge();
}

/// As OpenZFS: it is a folder of others then, who stay mounted.
#[test]
fn what_is_not_to_be_mounted_any_more_leaves_what_is_mounted_below_it() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create -p tank/us/anna/mail").ok();
    world.zfs("create -o canmount=noauto tank/us/old").ok();
    world.zfs("mount tank/us/old").ok();
    let at = |name: &str| PathBuf::from(world.zfs(&format!("get -Ho value mountpoint {name}")).ok().trim());
    let mounted = || {
        let all = world.zfs("list -Ho name,mounted -t filesystem -r tank/us").ok();
        let names = all.lines().filter_map(|l| l.strip_suffix("\tyes")).map(str::to_owned);
        names.collect::<Vec<_>>().join(" ")
    };
    fs::write(at("tank/us/anna/mail").join("one"), "one").expect("written");
    assert_eq!(mounted(), "tank/us tank/us/anna tank/us/anna/mail tank/us/old");
    world.zfs("set canmount=off tank/us").ok();
    assert_eq!(mounted(), "tank/us/anna tank/us/anna/mail tank/us/old");
    assert_eq!(fs::read(at("tank/us/anna/mail").join("one")).expect("read"), b"one");
    // Where somebody keeps one of them in use all stay as they were.
    let open = fs::File::open(at("tank/us/anna").join(".")).expect("open");
    let said = world.zfs("set canmount=off tank/us/anna").fails();
    assert!(said.contains("busy"), "{said}");
    assert_eq!(mounted(), "tank/us/anna tank/us/anna/mail tank/us/old");
    drop(open);
    pool.judge();
}

/// A container or a service that was started while a file system was mounted has a copy of the
/// mount.
/// A process with a mount namespace of its own, with copies of the world's mounts.
fn namespace(world: &World) -> std::process::Child {
    // The mounts of tests beside this one are let go of again.
    let others = format!(
        "awk -v own={} '$3 ~ /^fuse/ && index($2, own) != 1 {{print $2}}' /proc/self/mounts",
        world.path().display()
    );
    let script = format!("{others} | xargs -r umount -l; echo ready; exec sleep 600");
    let mut holder = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut ready = [0; 6];
    std::io::Read::read_exact(holder.stdout.as_mut().expect("piped"), &mut ready).expect("ready");
    holder
}

/// Whether something is mounted at a place, by the kernel's table.
fn is_mounted(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    table.lines().any(|l| l.split(' ').nth(4) == at.to_str())
}

#[test]
fn a_copy_of_a_mount_in_another_namespace_makes_its_pool_busy_and_nothing_hangs() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    world.zfs("snapshot tank/a@s").ok();
    let mut holder = namespace(&world);
    // The copy could not be given back: nothing is done.
    let refused = world.zfs("rollback tank/a@s").fails();
    assert!(refused.contains("another mount namespace"), "{refused}");
    assert!(is_mounted(&pool.root().join("a")));
    let begun = Instant::now();
    let refused = world.zpool("export tank").fails();
    assert!(refused.contains("another mount namespace"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // What else there is to do is done meanwhile.
    world.zfs("snapshot tank@s").ok();
    holder.kill().and_then(|()| holder.wait()).expect("kill");
    let begun = Instant::now();
    while world.zpool("export tank").code != 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it stays busy");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn who_had_files_open_when_it_was_unmounted_by_force_changes_nothing_any_more() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    use std::io::{Read, Write};
    let world = World::new();
    let pool =
        Pool::create(&world, "tank", Kind::Single, 256 << 20, &["-O", "atime=on", "-O", "relatime=off"]);
    world.zfs("create tank/a").ok();
    let at = |name: &str| pool.root().join("a").join(name);
    fs::write(at("log"), "one\n").expect("file");
    let open =
        |name: &str| fs::File::options().read(true).write(true).create(true).truncate(false).open(at(name));
    let (mut reader, mut writer, nameless) = (
        fs::File::open(at("log")).expect("open"),
        open("mine").expect("open"),
        open("nameless").expect("open"),
    );
    nameless.set_len(1 << 20).expect("set_len");
    fs::remove_file(at("nameless")).expect("rm");
    world.zfs("snapshot tank/a@s").ok();

    world.zfs("unmount -f tank/a").ok();
    world.zfs("mount tank/a").ok();
    let mut text = String::new();
    assert!(reader.read_to_string(&mut text).is_err() || text == "one\n", "the kernel may have it still");
    let mut more = fs::File::options().append(true).open(at("log")).expect("open");
    more.write_all(b"two\n").and_then(|()| more.sync_all()).expect("append");
    writer.write_all(b"x").and_then(|()| writer.sync_all()).expect_err("it was unmounted");
    nameless.set_len(0).expect_err("it was unmounted");
    drop((reader, writer, nameless, more));
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(at("log")).expect("file"), "one\ntwo\n");
        pool.export();
        pool.import();
    }

    // The same for what is rolled back and destroyed under open files.
    let mut left = open("mine").expect("open");
    world.zfs("rollback tank/a@s").ok();
    left.write_all(b"x").and_then(|()| left.sync_all()).expect_err("it was rolled back");
    assert_eq!(fs::read_to_string(at("log")).expect("file"), "one\n");
    fs::write(at("new"), [7; 1 << 16]).expect("file");
    let mut left = (left, open("new").expect("open"));
    world.zfs("destroy -rf tank/a").ok();
    left.1.write_all(b"x").and_then(|()| left.1.sync_all()).expect_err("it is gone");
    pool.judge();
}

#[test]
fn what_a_rollback_takes_away_comes_back_where_it_was() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let place = world.path().join("by-hand");
    fs::create_dir(&place).expect("folder");
    let by_hand = |dataset: &str, words: &[&str]| {
        let place = place.to_str().expect("text");
        // As mount(8) calls it.
        let args = [&["mount.zfs"], words, &[dataset, place]].concat();
        world.run("zilla", &args).ok();
    };
    world.zfs("create -o mountpoint=legacy tank/legacy").ok();
    world.zfs("create tank/own").ok();
    for (dataset, words) in [("tank/legacy", &["-o", "noexec"][..]), ("tank/own", &["-o", "zfsutil"])] {
        world.zfs(&format!("unmount {dataset}"));
        by_hand(dataset, words);
        fs::write(place.join("f"), "before").expect("file");
        world.zfs(&format!("snapshot {dataset}@s")).ok();
        fs::write(place.join("f"), "after").expect("file");
        let open = fs::File::open(place.join("f")).expect("open");
        world.zfs(&format!("rollback {dataset}@s")).ok();
        assert!(is_mounted_as(&place, dataset), "{dataset}");
        assert_eq!(fs::read_to_string(place.join("f")).expect("file"), "before");
        if dataset == "tank/legacy" {
            has(&place, &["noexec"], &[]);
        }
        drop(open);
        // Nor does what is set of others move it.
        world.zfs(&format!("set mountpoint={} tank", pool.root().display())).ok();
        assert!(is_mounted_as(&place, dataset), "{dataset}");
        world.zfs(&format!("unmount {dataset}")).ok();
    }

    // A copy of a mount could not be given back.
    world.zfs("mount tank/own").ok();
    let own = pool.root().join("own");
    tree::host("mount", &["--bind".as_ref(), own.as_os_str(), place.as_os_str()]);
    let refused = world.zfs("rollback tank/own@s").fails();
    assert!(refused.contains("mounted at another place"), "{refused}");
    assert!(is_mounted_as(&own, "tank/own") && is_mounted_as(&place, "tank/own"));
    tree::host("umount", &[place.as_os_str()]);
    world.zfs("rollback tank/own@s").ok();
    assert!(is_mounted_as(&own, "tank/own"));

    // What is held is refused before anything is unmounted.
    world.zfs("snapshot tank/own@t").ok();
    world.zfs("hold mine tank/own@t").ok();
    let open = fs::File::open(own.join("f")).expect("open");
    world.zfs("rollback -r tank/own@s").fails();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &open, &mut text).expect("nobody took it");
    world.zfs("release mine tank/own@t").ok();
    // Also one that was looked into, by a process that stands in it.
    let inside = own.join(".zfs/snapshot/t");
    let mut stands = Command::new("sleep").arg("600").current_dir(&inside).spawn().expect("sleep");
    world.zfs("rollback -r tank/own@s").ok();
    assert!(!inside.exists() && is_mounted_as(&own, "tank/own"));
    stands.kill().and_then(|()| stands.wait()).expect("kill");
    drop(open);
    pool.judge();
}

/// What is mounted below another is mounted after it and unmounted before it, whichever pool's it
/// is, and whichever pool comes first by its name.
#[test]
fn pools_that_are_mounted_in_each_other_come_and_go_in_the_order_of_their_paths() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pools = ["aa", "bb"].map(|name| Pool::create(&world, name, Kind::Single, 128 << 20, &[]));
    let top = world.path().join("top");
    let sets = [("bb/one", ""), ("aa/two", "two"), ("bb/three", "two/three"), ("aa/four", "two/three/four")];
    for (dataset, below) in sets {
        world.zfs(&format!("create -o mountpoint={} {dataset}", top.join(below).display())).ok();
    }
    let are_mounted = || sets.map(|(dataset, below)| is_mounted_as(&clean(&top.join(below)), dataset));
    for _ in 0..2 {
        assert_eq!(are_mounted(), [true; 4]);
        let done = world.zfs("unmount -a");
        assert!(done.code == 0 && done.stderr.is_empty(), "{done}");
        assert_eq!(are_mounted(), [false; 4]);
        world.zfs("mount -a").ok();
    }
    // Nothing is under another's mount.
    fs::write(top.join("two/three/four/f"), "f").expect("file");
    world.zfs("unmount bb/three").fails();
    world.zfs("unmount aa/four").ok();
    assert!(!top.join("two/three/four/f").exists());
    world.zfs("mount aa/four").ok();
    world.zfs("unmount -a").ok();
    world.zfs("mount -a").ok();
    assert_eq!(fs::read_to_string(top.join("two/three/four/f")).expect("file"), "f");
    world.zfs("unmount -a").ok();
    pools.iter().for_each(Pool::judge);
}

/// Without a slash at its end, as the kernel has it.
fn clean(path: &Path) -> std::path::PathBuf {
    path.components().collect()
}

#[test]
fn a_snapshot_is_mounted_anywhere_and_only_read() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let place = world.path().join("by-hand");
    fs::create_dir(&place).expect("folder");
    let by_hand = |words: &[&str], name: &str| {
        let place = place.to_str().expect("text");
        world.run("zilla", &[&["mount.zfs"], words, &[name, place]].concat())
    };
    world.zfs("create tank/a").ok();
    world.zfs("snapshot tank/a@first").ok();
    fs::write(pool.root().join("a/f"), "then").expect("file");
    world.zfs("snapshot tank/a@s").ok();
    fs::write(pool.root().join("a/f"), "now").expect("file");
    assert_eq!(by_hand(&[], "tank/a@none").code, 1);
    let is_then = || fs::read_to_string(place.join("f")).is_ok_and(|text| text == "then");
    // (mount(8) says `rw` where nobody says otherwise.)
    by_hand(&["-o", "rw,nosuid"], "tank/a@s").ok();
    assert!(is_then() && is_mounted_as(&place, "tank/a@s"));
    has(&place, &["ro", "nosuid"], &["rw"]);
    let refused = fs::write(place.join("g"), "").expect_err("it is a snapshot");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(!place.join(".zfs").exists());
    assert_eq!(by_hand(&["-o", "remount,rw"], "tank/a@s").code, 0);
    has(&place, &["ro"], &["rw"]);
    // What is set of its file system makes it no more than that, nor is it a share.
    world.zfs("set readonly=on tank/a").ok();
    world.zfs("set readonly=off tank/a").ok();
    has(&place, &["ro"], &["rw"]);
    assert!(!world.zfs("mount").ok().contains('@'));
    let busy = world.zfs("destroy tank/a@s").fails();
    assert!(busy.contains("dataset is busy"), "{busy}");
    assert!(world.zfs("rollback tank/a@s").code == 0 && is_then());
    // It keeps its place under other names, and whatever its file system does.
    world.zfs("unmount tank/a").ok();
    world.zfs("unmount -a").ok();
    assert!(is_then());
    world.zfs("mount -a").ok();
    world.zfs("rename tank/a@s tank/a@t").ok();
    world.zfs("rename tank/a tank/b").ok();
    assert!(is_then());
    world.zfs("destroy tank/b@t").fails();
    // Who would take it away is refused before the file system is taken from anybody.
    for words in ["rollback -r tank/b@first", "destroy -r tank/b"] {
        let busy = world.zfs(words).fails();
        assert!(busy.contains("dataset is busy"), "{words}: {busy}");
        assert_eq!(fs::read(pool.root().join("b/f")).expect("still there"), b"then");
    }
    tree::host("umount", &[place.as_os_str()]);
    world.zfs("destroy tank/b@t").ok();
    // An export takes it away, the root file system's as well.
    for name in ["tank@u", "tank/b@u"] {
        world.zfs(&format!("snapshot {name}")).ok();
        by_hand(&[], name).ok();
        pool.export();
        assert!(!is_mounted_as(&place, name));
        pool.import();
        world.zfs(&format!("destroy {name}")).ok();
    }
    pool.judge();
}

fn is_mounted_as(at: &Path, dataset: &str) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = table.lines().rev().find(|l| l.split(' ').nth(4) == at.to_str());
    line.is_some_and(|l| l.contains(&format!(" {dataset} ")))
}

#[test]
fn something_over_a_mount_keeps_it_mounted() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    let at = pool.root().join("a");
    fs::write(at.join("f"), "text").expect("file");
    tree::host("mount", &["-t".as_ref(), "tmpfs".as_ref(), "tmpfs".as_ref(), at.as_os_str()]);
    let refused = world.zfs("unmount -f tank/a").fails();
    assert!(refused.contains("mounted over it"), "{refused}");
    tree::host("umount", &[at.as_os_str()]);
    assert_eq!(fs::read_to_string(at.join("f")).expect("file"), "text");
    world.zfs("unmount -f tank/a").ok();
    assert!(!is_mounted(&at));
    world.zfs("mount tank/a").ok();
    pool.judge();
}

#[test]
fn many_who_mount_and_unmount_and_ask_leave_one_mount() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    fs::write(pool.root().join("a/f"), "text").expect("file");
    world.zfs("snapshot tank/a@s").ok();
    std::thread::scope(|scope| {
        for words in [&["unmount -f tank/a", "mount tank/a"][..], &["rollback tank/a@s"], &["list", "mount"]]
        {
            let world = &world;
            scope.spawn(move || {
                // Whether each is refused is a matter of chance.
                (0..10).for_each(|_| words.iter().for_each(|words| drop(world.zfs(words))));
            });
        }
    });
    world.zfs("mount tank/a");
    assert_eq!(world.zfs("get -H -o value mounted tank/a").ok().trim(), "yes");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let at = pool.root().join("a");
    let here = |l: &&str| l.split(' ').nth(4) == at.to_str();
    assert_eq!(table.lines().filter(here).count(), 1, "{table}");
    assert_eq!(fs::read_to_string(pool.root().join("a/f")).expect("file"), "text");
    pool.judge();
}
