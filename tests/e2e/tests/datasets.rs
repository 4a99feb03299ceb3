//! Datasets: properties and where they come from, snapshots to look into, rollback, clones,
//! destroy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use zilla_e2e::{Kind, Need, Pool, World, can, tree};

/// Old files stay what they are, beside new ones, as OpenZFS has them.
#[test]
fn file_systems_of_every_version_are_upgraded() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 192 << 20, &[]);
    let at = |v: u32, path: &str| pool.root().join(format!("v{v}")).join(path);
    for v in 1..5 {
        world.zfs(&format!("create -o version={v} tank/v{v}")).ok();
        world.zfs(&format!("create tank/v{v}/below")).ok();
        fs::create_dir(at(v, "dir")).expect("folder");
        fs::write(at(v, "dir/old"), vec![v as u8; 200_000]).expect("written");
    }
    world.zfs("snapshot -r tank@before").ok();
    world.zfs("unmount tank/v2").ok();
    assert_eq!(
        world.zfs("upgrade -V 3 tank/v1").ok(),
        "1 filesystems upgraded\n",
        "in steps, and what is mounted, too"
    );
    // In use.
    let open = fs::File::open(at(4, "dir/old")).expect("open");
    assert!(world.zfs("upgrade tank/v4").stderr.contains("busy"));
    drop(open);
    assert_eq!(
        world.zfs("upgrade -a").ok(),
        "4 filesystems upgraded\n5 filesystems already at this version\n"
    );
    assert!(world.zfs("upgrade").ok().contains("All filesystems are formatted with the current version."));
    assert_eq!(world.zfs("get -H -o value mounted tank/v1 tank/v2 tank/v4/below").ok(), "yes\nno\nyes\n");
    world.zfs("mount tank/v2").ok();
    for v in 1..5 {
        assert_eq!(world.zfs(&format!("get -H -o value version tank/v{v}@before")).ok(), format!("{v}\n"));
        assert!(fs::read(at(v, "dir/old")).expect("read") == vec![v as u8; 200_000], "{v}");
        // Both kinds of files change.
        fs::write(at(v, "dir/new"), vec![v as u8; 70_000]).expect("written");
        fs::rename(at(v, "dir/old"), at(v, "dir/moved")).expect("renamed");
        fs::set_permissions(at(v, "dir/moved"), fs::Permissions::from_mode(0o640)).expect("mode");
        fs::write(at(v, "dir/moved"), vec![9; 300_000]).expect("written");
    }
    pool.judge();
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    for v in 1..5 {
        assert!(fs::read(at(v, "dir/moved")).expect("read") == vec![9; 300_000], "{v}");
        assert!(fs::read(at(v, "dir/new")).expect("read") == vec![v as u8; 70_000], "{v}");
        fs::remove_file(at(v, "dir/moved")).expect("removed");
    }
    pool.judge();
}

#[test]
fn properties_are_inherited_and_survive() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let zstd = || world.zpool("get -Ho value feature@zstd_compress tank").ok();
    assert_eq!(zstd(), "enabled\n");
    world.zfs("create -o compression=zstd tank/a").ok();
    assert_eq!(zstd(), "active\n", "it counts from when it is asked for");
    world.zfs("create -p tank/a/b/c").ok();
    world.zfs("set user:note=hello tank/a/b").ok();
    let get =
        |property: &str, name: &str| world.zfs(&format!("get -H -o value,source {property} {name}")).ok();
    assert_eq!(get("compression", "tank/a/b/c"), "zstd\tinherited from tank/a\n");
    assert_eq!(get("user:note", "tank/a/b/c"), "hello\tinherited from tank/a/b\n");
    world.zfs("inherit compression tank/a").ok();
    world.zfs("set compression=gzip-3 tank/a/b").ok();
    pool.export();
    world.stop();
    pool.import();
    assert_eq!(get("compression", "tank/a/b"), "gzip-3\tlocal\n");
    assert_eq!(get("compression", "tank/a/b/c"), "gzip-3\tinherited from tank/a/b\n");
    let names = world.zfs("list -H -o name -r tank").ok();
    assert_eq!(names, "tank\ntank/a\ntank/a/b\ntank/a/b/c\n");
    pool.judge();
}

#[test]
fn what_a_dataset_cannot_be_made_with_leaves_nothing_behind() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("set compression=off tank").ok();
    fs::write(pool.root().join("f"), vec![7; 1 << 20]).expect("write");
    world.zfs("snapshot tank@s").ok();
    let long = "x".repeat(9000);
    for words in [
        "create -o quota=1 tank/a",
        "create -o refquota=10K tank/a",
        "create -o quota=100K -o refquota=10K tank/a",
        "create -o quota=1M -o reservation=2M tank/a",
        "create -o quota=1M -o refreservation=2M tank/a",
        "create -o refquota=1M -o refreservation=2M tank/a",
        "create -o reservation=1T tank/a",
        "clone -o refquota=100K tank@s tank/a",
        "clone -o refreservation=1T tank@s tank/a",
    ] {
        assert_eq!(world.zfs(words).fails(), "cannot create 'tank/a': out of space\n", "{words}");
        assert_eq!(world.zfs("list -H -o name -r tank").ok(), "tank\n", "{words}");
    }
    world.zfs(&format!("snapshot -o user:x={long} tank@t")).fails();
    assert_eq!(world.zfs("list -H -o name -t snapshot").ok(), "tank@s\n");
    world.zfs("create -o quota=2M -o refquota=4M -o reservation=1M tank/b").ok();
    pool.judge();
}

#[test]
fn a_limit_that_is_taken_away_is_no_default() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let limits = "quota,refquota,reservation,refreservation";
    let shown = || world.zfs(&format!("get -H -o value,source {limits} tank")).ok();
    assert_eq!(shown(), "none\tdefault\n".repeat(4));
    world.zfs("set quota=10M refquota=none refreservation=1M tank").ok();
    assert_eq!(shown(), "10M\tlocal\nnone\tlocal\nnone\tdefault\n1M\tlocal\n");
    world.zfs("set quota=none reservation=none refreservation=none tank").ok();
    assert_eq!(shown(), "none\tlocal\n".repeat(4));
    pool.again();
    assert_eq!(shown(), "none\tlocal\n".repeat(4));
    pool.judge();
}

#[test]
fn small_blocks_have_no_place_of_their_own_without_a_special_device() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let warning = "special_small_blocks: property requires a special device in the pool\n";
    for words in ["set special_small_blocks=32K tank", "create -o special_small_blocks=32K tank/a"] {
        let done = world.zfs(words);
        assert_eq!((done.code, done.stderr.as_str()), (0, warning), "{words}");
    }
    let disks = world.images("special", 2, 128 << 20);
    let create = |more: &str| {
        let on = disks[0].display();
        world.zpool(&format!("create -f -O special_small_blocks=32K -m none new {on} {more}"))
    };
    let refused = "cannot create 'new': special_small_blocks property requires a special vdev\n";
    assert_eq!(create("").fails(), refused);
    create(&format!("special {}", disks[1].display())).ok();
    assert_eq!(world.zfs("set special_small_blocks=64K new").stderr, "");
    world.zpool("destroy new").ok();
    pool.judge();
}

#[test]
fn snapshots_clones_and_rollback() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let source = world.path().join("source");
    tree::sample(&source, 6);
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    let a = pool.root().join("a");
    tree::copy(&source, &a.join("copy"));
    world.zfs("snapshot tank/a@one").ok();
    fs::remove_dir_all(a.join("copy/sub")).expect("remove");
    fs::write(a.join("copy/empty"), "not any more").expect("write");
    world.zfs("snapshot tank/a@two").ok();
    tree::same(&source, &a.join(".zfs/snapshot/one/copy"));
    assert_eq!(fs::read_to_string(a.join(".zfs/snapshot/two/copy/empty")).expect("read"), "not any more");
    assert!(fs::write(a.join(".zfs/snapshot/one/copy/empty"), "x").is_err(), "a snapshot can be written");

    world.zfs("clone tank/a@one tank/clone").ok();
    tree::same(&source, &pool.root().join("clone/copy"));
    fs::write(pool.root().join("clone/only here"), "x").expect("write");
    assert!(!a.join("only here").exists());
    // The origin of a clone stays.
    let told = world.zfs("destroy tank/a@one").fails();
    assert!(told.contains("snapshot has dependent clones"), "{told}");

    // Newer snapshots stand in the way of a rollback, and go with -r.
    let told = world.zfs("rollback tank/a@one").fails();
    assert!(told.contains("more recent snapshots or bookmarks exist"), "{told}");
    world.zfs("rollback -r tank/a@one").ok();
    tree::same(&source, &a.join("copy"));
    pool.export();
    pool.import();
    tree::same(&source, &a.join("copy"));
    tree::same(&source, &pool.root().join("clone/copy"));

    world.zfs("destroy tank/clone").ok();
    world.zfs("destroy tank/a@one").ok();
    world.zfs("destroy -r tank/a").ok();
    assert_eq!(world.zfs("list -H -o name -t all -r tank").ok(), "tank\n");
    world.zpool("wait -t free tank").ok();
    pool.judge();
}

#[test]
fn snapshots_are_directories_to_be_made_removed_and_moved() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let names = || {
        let list = world.zfs("list -H -o name -t snapshot").ok();
        list.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (file, snaps) = (pool.root().join("file"), pool.root().join(".zfs/snapshot"));
    fs::write(&file, "old").expect("file");
    fs::create_dir(snaps.join("one")).expect("a snapshot");
    fs::write(&file, "new").expect("file");
    assert_eq!(fs::read_to_string(snaps.join("one/file")).expect("snapshot"), "old");
    assert_eq!(fs::create_dir(snaps.join("one")).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(fs::create_dir(snaps.join("a@b")).unwrap_err().raw_os_error(), Some(22));
    fs::create_dir(snaps.join("two")).expect("a snapshot");
    fs::rename(snaps.join("one"), snaps.join("first")).expect("another name");
    assert_eq!(names(), ["tank@first", "tank@two"]);
    assert_eq!(fs::read_to_string(snaps.join("first/file")).expect("snapshot"), "old");
    assert!(!snaps.join("one").exists());
    // What a clone lives from stays, and can still be looked into.
    world.zfs("clone tank@first tank/clone").ok();
    assert_eq!(fs::remove_dir(snaps.join("first")).unwrap_err().raw_os_error(), Some(16));
    assert_eq!(fs::read_to_string(snaps.join("first/file")).expect("snapshot"), "old");
    fs::remove_dir(snaps.join("two")).expect("destroyed");
    assert_eq!(names(), ["tank@first"]);
    assert!(fs::write(snaps.join("first/file"), "x").is_err());
    world.zfs("set snapdir=disabled tank").ok();
    assert_eq!(fs::read_dir(&snaps).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    world.zfs("set snapdir=visible tank").ok();
    assert!(fs::read_dir(&snaps).is_ok());
    assert!(fs::read_dir(pool.root()).expect("root").any(|e| e.expect("entry").file_name() == ".zfs"));
    pool.judge();
}

#[test]
fn rewritten_files_are_stored_as_properties_say() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &["-O", "compression=off"]);
    let dir = pool.root().join("dir/below");
    fs::create_dir_all(&dir).expect("folder");
    let text = "the same again and again, ".repeat(40_000);
    for file in [dir.join("file"), pool.root().join("top")] {
        fs::write(&file, &text).expect("file");
    }
    std::os::unix::fs::symlink("nowhere", dir.join("link")).expect("link");
    let referenced = || {
        world.zpool("sync tank").ok();
        world.zfs("get -Hp -o value referenced tank").ok().trim().parse::<u64>().expect("a number")
    };
    let before = referenced();
    world.zfs("set compression=lz4 tank").ok();
    let told = world.zfs(&format!("rewrite -v {}", pool.root().display())).ok();
    assert_eq!(told, format!("{}\n", pool.root().join("top").display()));
    let one = referenced();
    world.zfs(&format!("rewrite -r {}", pool.root().join("dir").display())).ok();
    let all = referenced();
    assert!(one < before - 900_000 && all < one - 900_000, "{before}, {one}, {all}");
    assert_eq!(fs::read_to_string(dir.join("file")).expect("file"), text);
    let none = world.zfs("rewrite /nowhere");
    assert!(none.code == 1 && none.stderr.contains("failed to stat /nowhere"), "{none}");
    assert_eq!(world.zfs("rewrite -r").code, 2);
    pool.judge();
}

#[test]
fn a_dataset_that_lives_from_one_below_it_is_not_destroyed() {
    let world = World::new();
    let _pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &["-O", "canmount=off"]);
    world.zfs("create tank/a").ok();
    world.zfs("snapshot tank/a@s").ok();
    world.zfs("clone tank/a@s tank/a/clone").ok();
    world.zfs("promote tank/a/clone").ok();
    let told = world.zfs("destroy tank/a").fails();
    assert!(told.contains("filesystem has children"), "{told}");
    for how in ["-r", "-R"] {
        let told = world.zfs(&format!("destroy {how} tank/a")).fails();
        assert!(told.contains("recursive dependency at 'tank/a'"), "{told}");
    }
    assert_eq!(world.zfs("list -H -o name -r tank").ok(), "tank\ntank/a\ntank/a/clone\n");
    // Two pools are not snapshot at once.
    let _other = Pool::create(&world, "other", Kind::Single, 128 << 20, &["-O", "canmount=off"]);
    let told = world.zfs("snapshot tank@x other@x").fails();
    assert!(told.contains("multiple snapshots of same fs not allowed"), "{told}");
}
