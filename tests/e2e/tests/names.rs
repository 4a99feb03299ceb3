//! Many names in one directory, through growth from a micro-ZAP to a fat one, a new import and
//! removal.
//!
//! `ZILLA_NAMES` says how many (100,000 for the proof).

use std::collections::BTreeSet;
use std::fs;
use zilla_e2e::{Kind, Need, Pool, World, can};

#[test]
fn many_names_in_one_directory() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let count: usize = std::env::var("ZILLA_NAMES").ok().and_then(|n| n.parse().ok()).unwrap_or(5_000);
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 1 << 30, &[]);
    let dir = pool.root().join("many");
    fs::create_dir(&dir).expect("folder");
    let name = |i: usize| format!("a name that is not too short, number {i}");
    for i in 0..count {
        fs::write(dir.join(name(i)), "").unwrap_or_else(|e| panic!("{}: {e}", name(i)));
    }
    let list = || -> BTreeSet<String> {
        let entries = fs::read_dir(&dir).expect("list").map(|e| e.expect("entry").file_name());
        let names: Vec<_> = entries.map(|n| n.to_string_lossy().into_owned()).collect();
        let set: BTreeSet<String> = names.iter().cloned().collect();
        assert_eq!(set.len(), names.len(), "a name is listed twice");
        set
    };
    let expected: BTreeSet<String> = (0..count).map(name).collect();
    assert!(list() == expected);
    pool.export();
    pool.import();
    assert!(list() == expected);
    for i in (0..count).filter(|i| i % 10 != 0) {
        fs::remove_file(dir.join(name(i))).expect("remove");
    }
    assert_eq!(list().len(), count.div_ceil(10));
    pool.judge();
}

/// Whoever remembers that there was no `FOO` must not miss the `foo` that came since, and the other
/// way round.
#[test]
fn spelling_matters_as_much_as_was_said_when_the_file_system_was_made() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &["-O", "casesensitivity=insensitive"]);
    let get = |what: &str, fs: &str| world.zfs(&format!("get -Ho value {what} {fs}")).ok().trim().to_owned();
    assert_eq!(get("casesensitivity", "tank"), "insensitive");
    world.zfs("create tank/inherits").ok();
    assert_eq!(get("casesensitivity", "tank/inherits"), "insensitive");
    world.zfs("create -o casesensitivity=mixed tank/mixed").ok();
    world.zfs("create -o casesensitivity=sensitive -o normalization=formD tank/norm").ok();
    assert_eq!(
        (get("utf8only", "tank/norm"), get("normalization", "tank/norm")),
        ("on".into(), "formD".into())
    );
    world.zfs("create -o utf8only=off tank/norm/any").ok();
    assert_eq!(
        (get("utf8only", "tank/norm/any"), get("normalization", "tank/norm/any")),
        ("off".into(), "none".into())
    );
    world.zfs("create -o casesensitivity=sensitive -o utf8only=on tank/utf8").ok();
    assert_eq!(world.zfs("set casesensitivity=mixed tank").code, 255);

    for dir in ["", "inherits"].map(|d| pool.root().join(d)) {
        let at = |name: &str| dir.join(name);
        assert!(!at("FOO").exists() && !at("Foo").exists());
        fs::write(at("foo"), "1").expect("file");
        assert_eq!(fs::read_to_string(at("FOO")).expect("FOO"), "1");
        fs::write(at("Foo"), "2").expect("the same file");
        let mut names: Vec<_> =
            fs::read_dir(&dir).expect("dir").map(|e| e.expect("entry").file_name()).collect();
        names.retain(|n| n.eq_ignore_ascii_case("foo"));
        assert_eq!(names, ["foo"]);
        assert!(fs::create_dir(at("fOO")).is_err());
        fs::remove_file(at("FOO")).expect("removed by another spelling");
        assert!(!at("foo").exists() && !at("FOO").exists());
    }
    world.zfs("snapshot tank/inherits@Monday").ok();
    assert!(pool.root().join("inherits/.zfs/snapshot/mOnDaY").is_dir(), "snapshots' names neither");
    let mixed = pool.root().join("mixed");
    fs::write(mixed.join("a"), "1").expect("a");
    assert!(!mixed.join("A").exists());
    fs::write(mixed.join("A"), "2").expect("A");
    assert_eq!(fs::read_to_string(mixed.join("a")).expect("a"), "1");

    let norm = pool.root().join("norm");
    assert!(!norm.join("u\u{308}").exists());
    fs::write(norm.join("\u{fc}"), "1").expect("composed");
    assert_eq!(fs::read_to_string(norm.join("u\u{308}")).expect("decomposed"), "1");
    assert!(!norm.join("\u{dc}").exists());
    use std::os::unix::ffi::OsStrExt;
    let bad = std::ffi::OsStr::from_bytes(b"\xff");
    for dir in ["norm", "utf8"] {
        let refused = fs::write(pool.root().join(dir).join(bad), "").expect_err("not UTF-8");
        assert_eq!(refused.raw_os_error(), Some(84), "EILSEQ");
    }
    fs::write(pool.root().join(bad), "").expect("any bytes");
    pool.export();
    pool.import();
    assert_eq!(get("casesensitivity", "tank"), "insensitive");
    assert_eq!(fs::read_to_string(norm.join("u\u{308}")).expect("decomposed"), "1");
    pool.judge();
}

/// Names beyond 255 bytes: only where `longname=on` says so, through the log, an import and a
/// stream.
#[test]
fn long_names_are_taken_where_that_is_wanted() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let root = pool.root();
    let name = |c: &str, len: usize| c.repeat(len);
    let too_long = |path: std::path::PathBuf| {
        let e = fs::write(path, "").expect_err("too long a name");
        assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()), "{e}");
    };
    let state = || world.zpool("get -Ho value feature@longname tank").ok().trim().to_owned();
    too_long(root.join(name("a", 256)));
    world.zfs("set longname=on tank").ok();
    assert_eq!(state(), "enabled");
    fs::write(root.join(name("a", 255)), "short").expect("write");
    fs::write(root.join(name("b", 1023)), "long").expect("write");
    too_long(root.join(name("c", 1024)));
    fs::create_dir(root.join(name("d", 700))).expect("folder");
    fs::hard_link(root.join(name("b", 1023)), root.join(name("d", 700)).join(name("e", 256))).expect("link");
    fs::rename(root.join(name("a", 255)), root.join(name("f", 900))).expect("rename");
    // What the log brings back is as long.
    pool.sync();
    assert_eq!(state(), "active");
    let file = fs::File::create(root.join(name("g", 1000))).expect("create");
    file.sync_all().expect("fsync");
    drop(file);
    world.kill();
    world.zpool("list").ok();
    let list = |dir: &std::path::Path| {
        let names = fs::read_dir(dir).expect("list").map(|e| e.expect("entry").file_name().len());
        names.collect::<BTreeSet<_>>()
    };
    assert_eq!(list(&root), BTreeSet::from([700, 900, 1000, 1023]));
    assert_eq!(fs::read(root.join(name("f", 900))).expect("read"), b"short");
    pool.export();
    pool.import();
    assert_eq!(list(&root), BTreeSet::from([700, 900, 1000, 1023]));
    world.zfs("snapshot tank@s").ok();
    let sent = world.path().join("stream");
    let done =
        world.command("zfs").args(["send", "tank@s"]).stdout(fs::File::create(&sent).expect("file")).status();
    assert!(done.expect("send").success());
    let got = world
        .command("zfs")
        .args(["receive", "tank/copy"])
        .stdin(fs::File::open(&sent).expect("file"))
        .status();
    assert!(got.expect("receive").success());
    let copy = root.join("copy");
    assert_eq!(list(&copy), BTreeSet::from([700, 900, 1000, 1023]));
    // Switched off: what is there is listed, and no other is taken.
    world.zfs("set longname=off tank").ok();
    assert_eq!(list(&root), BTreeSet::from([4, 700, 900, 1000, 1023]));
    too_long(root.join(name("h", 256)));
    world.zfs("set longname=on tank").ok();
    fs::remove_file(root.join(name("f", 900))).expect("remove");
    pool.judge();
}

#[test]
fn long_names_need_their_feature() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &["-o", "feature@longname=disabled"]);
    let told = world.zfs("set longname=on tank").fails();
    assert!(told.contains("pool must be upgraded to set this property or value"), "{told}");
    pool.judge();
}
