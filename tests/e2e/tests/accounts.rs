//! What users, groups and projects use, and their quotas.

use std::fs;
use std::os::unix::fs::chown;
use zilla_e2e::{Kind, Need, Pool, Random, World, can};

fn value(world: &World, what: &str, fs: &str) -> String {
    world.zfs(&format!("get -Hp -o value {what} {fs}")).ok().trim().to_owned()
}

#[test]
fn quotas_of_users_are_set_shown_and_enforced() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o userquota@4711=1M tank/fs").ok();
    let root = pool.root().join("fs");
    let file = root.join("theirs");
    fs::write(&file, Random::new(1).bytes(3 << 20)).expect("file");
    chown(&file, Some(4711), Some(4712)).expect("owner");
    pool.sync();
    assert_eq!(value(&world, "userquota@4711", "tank/fs"), "1048576");
    let used: u64 = value(&world, "userused@4711", "tank/fs").parse().expect("bytes");
    assert!((3 << 20..4 << 20).contains(&used), "{used}");
    assert_eq!(value(&world, "userobjused@4711", "tank/fs"), "1");
    assert_eq!(value(&world, "groupobjused@4712", "tank/fs"), "1");
    assert_eq!(value(&world, "userused@no-such-user", "tank/fs"), "-");
    let more = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=1", "conv=notrunc", "oflag=append", "status=none"])
        .arg(format!("of={}", file.display()))
        .output()
        .expect("dd");
    assert!(String::from_utf8_lossy(&more.stderr).contains("Disk quota exceeded"), "{more:?}");

    // One line each, in the order asked for.
    world.zfs("set userobjquota@4711=9 groupquota@4712=50M tank/fs").ok();
    let lines = world.zfs("userspace -Hp -n -o name,quota,objused,objquota tank/fs").ok();
    assert_eq!(lines, "0\t0\t1\t0\n4711\t1048576\t1\t9\n");
    let lines = world.zfs("groupspace -n -o type,name,quota tank/fs").ok();
    assert_eq!(lines, "TYPE         NAME  QUOTA\nPOSIX Group  0      none\nPOSIX Group  4712    50M\n");
    let lines = world.zfs("userspace -H -n -S used -o name tank/fs").ok();
    assert_eq!(lines, "4711\n0\n");
    let path = root.display();
    assert_eq!(world.zfs(&format!("userspace -H -n -o name {path}")).ok(), "0\n4711\n");

    // Of a file system that is not mounted, and of a snapshot.
    world.zfs("snapshot tank/fs@s").ok();
    world.zfs("unmount tank/fs").ok();
    world.zfs("set userquota@4711=none tank/fs").ok();
    assert_eq!(value(&world, "userquota@4711", "tank/fs"), "0");
    assert_eq!(value(&world, "userquota@4711", "tank/fs@s"), "1048576");
    world.zfs("mount tank/fs").ok();
    fs::OpenOptions::new().append(true).open(&file).expect("file").set_len(5 << 20).expect("may grow");

    let wrong = world.zfs("set userquota@no-such-user=1M tank/fs");
    let text = "cannot set property for 'tank/fs': 'userquota@no-such-user' has an invalid user/group name\n";
    assert_eq!((wrong.code, wrong.stderr.as_str()), (255, text));
    let wrong = world.zfs("set userused@0=1M tank/fs");
    assert_eq!(
        (wrong.code, wrong.stderr.as_str()),
        (255, "cannot set property for 'tank/fs': 'userused@0' is readonly\n")
    );
    world.zfs("create -V 16M tank/vol").ok();
    let wrong = world.zfs("userspace tank/vol");
    assert_eq!(wrong.code, 1, "{wrong}");
    assert_eq!(world.zfs("userspace -n").code, 2);
    pool.judge();
}

#[test]
fn a_dataset_that_cannot_have_its_quotas_is_not_made() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    // Accounting of users came with version 15.
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &["-o", "version=14"]);
    world.zfs("create tank/fs").ok();
    world.zfs("snapshot tank/fs@s").ok();
    assert_ne!(world.zfs("create -o userquota@4711=1M tank/new").code, 0);
    assert_ne!(world.zfs("clone -o userquota@4711=1M tank/fs@s tank/new").code, 0);
    assert_eq!(world.zfs("list -H -o name -r tank").ok(), "tank\ntank/fs\n");
    pool.judge();
}

#[test]
fn projects_are_set_below_a_directory_and_have_quotas() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let dir = pool.root().join("p");
    fs::create_dir_all(dir.join("sub")).expect("folder");
    fs::write(dir.join("sub/file"), "x").expect("file");
    let p = dir.display().to_string();
    let lines = |flag: &str, projid: u32| {
        format!("{projid:5} {flag} {p}\n{projid:5} {flag} {p}/sub\n{projid:5} {flag} {p}/sub/file\n")
    };
    assert_eq!(world.zfs(&format!("project -r {p}")).ok(), lines("-", 0));
    world.zfs(&format!("project -s -p 42 -r {p}")).ok();
    assert_eq!(world.zfs(&format!("project -r {p}")).ok(), lines("P", 42));
    assert_eq!(world.zfs(&format!("project -c -r {p}")).ok(), "");
    let told = world.zfs(&format!("project -c -d -p 43 {p}")).ok();
    assert_eq!(told, format!("{p} - project ID is not set properly (42/43)\n"));
    assert_eq!(world.zfs(&format!("project -c -0 -d -p 43 {p}")).ok(), format!("{p}\0"));
    // What is made there belongs to it.
    fs::write(dir.join("sub/new"), Random::new(2).bytes(2 << 20)).expect("file");
    world.zfs("set projectquota@42=1M tank").ok();
    pool.sync();
    let shown = world.zfs("projectspace -H -o type,name,quota,objused tank").ok();
    assert_eq!(shown, "Project\t0\tnone\t1\nProject\t42\t1M\t4\n");
    let full = fs::write(dir.join("more"), vec![1; 1 << 20]).expect_err("over quota");
    assert_eq!(full.raw_os_error(), Some(122), "{full}");
    world.zfs(&format!("project -C -k -r {p}")).ok();
    assert_eq!(world.zfs(&format!("project -d {p}")).ok(), format!("   42 - {p}\n"));
    world.zfs(&format!("project -C -r {p}")).ok();
    assert_eq!(world.zfs(&format!("project -d {p}")).ok(), format!("    0 - {p}\n"));
    for (words, why) in [
        (format!("project -c -s {p}"), "cannot specify '-C' '-c' '-s' together"),
        (format!("project -k {p}"), "'-k' is only valid together with '-C'"),
        (format!("project -p 4294967295 {p}"), "invalid project ID"),
        ("project -r".to_owned(), "missing file or directory target(s)"),
    ] {
        let wrong = world.zfs(&words);
        assert_eq!((wrong.code, wrong.stderr.lines().next()), (2, Some(why)), "{words}");
    }
    pool.judge();
}
