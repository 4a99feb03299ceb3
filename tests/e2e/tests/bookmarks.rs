//! `zfs bookmark`, and what a bookmark tells when its snapshot is gone.

use std::fs;
use zilla_e2e::{Kind, Need, Pool, World, can};

#[track_caller]
fn says(done: zilla_e2e::Done, code: i32, text: &str) {
    assert_eq!((done.code, done.stderr.lines().next().unwrap_or_default()), (code, text), "{done}");
}

/// OpenZFS counts the uses of each feature itself.
fn counts_agree(pool: &Pool) {
    let Some(text) = zilla_testkit::zdb_of(&pool.world.disks(), &pool.name, &["-d"]) else { return };
    assert!(!text.contains("mismatch"), "{text}");
    assert!(text.contains("Verified bookmark_written feature refcount of 2 is correct"), "{text}");
}

#[test]
fn bookmarks_are_made_shown_and_destroyed_and_outlive_snapshots() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/fs").ok();
    let file = pool.root().join("fs/file");
    fs::write(&file, vec![7; 4 << 20]).expect("file");
    world.zfs("snapshot tank/fs@a").ok();
    world.zfs("bookmark tank/fs@a #a").ok();
    world.zfs("bookmark tank/fs#a tank/fs#copy").ok();
    let listed = world.zfs("list -H -o name,type,guid -t bookmark -r tank").ok();
    let guid = world.zfs("get -H -o value guid tank/fs@a").ok();
    let line = |name: &str| format!("tank/fs#{name}\tbookmark\t{}\n", guid.trim());
    assert_eq!(listed, line("a") + &line("copy"));
    says(world.zfs("bookmark tank/fs@a tank/fs#a"), 1, "cannot create bookmark 'tank/fs#a': bookmark exists");
    says(
        world.zfs("bookmark tank/fs@a tank#a"),
        1,
        "cannot create bookmark 'tank#a': source is not an ancestor of the new bookmark's dataset",
    );
    says(world.zfs("bookmark tank/fs@x tank/fs#x"), 2, "cannot open 'tank/fs@x': dataset does not exist");
    says(
        world.zfs("bookmark tank/fs tank/fs#x"),
        2,
        "invalid source name 'tank/fs': must contain a '@' or '#'",
    );
    says(
        world.zfs("bookmark tank/fs@a tank/fs@b"),
        2,
        "invalid bookmark name 'tank/fs@b': must contain a '#'",
    );
    says(world.zfs("bookmark"), 2, "missing source argument");
    says(world.zfs("destroy -n tank/fs#a"), 255, "dryrun is not supported with bookmark");

    fs::write(pool.root().join("fs/more"), vec![9; 1 << 20]).expect("file");
    pool.sync();
    let written = |what: &str| -> u64 {
        let text = world.zfs(&format!("get -Hp -o value written{what} tank/fs")).ok();
        text.trim().parse().unwrap_or_else(|_| panic!("{text}"))
    };
    let before = written("@a");
    assert_eq!(written("#a"), before);
    world.zfs("destroy tank/fs@a").ok();
    assert_eq!(written("#a"), before);
    world.zfs("snapshot tank/fs@b").ok();
    fs::remove_file(&file).expect("file");
    world.zfs("bookmark tank/fs@b #b").ok();
    says(world.zfs("rollback tank/fs@none"), 1, "cannot open 'tank/fs@none': dataset does not exist");
    world.zfs("snapshot tank/fs@c").ok();
    world.zfs("bookmark tank/fs@c #c").ok();
    world.zfs("destroy tank/fs@c").ok();
    let refused = world.zfs("rollback tank/fs@b");
    assert!(refused.code == 1 && refused.stderr.contains("tank/fs#c"), "{refused}");
    world.zfs("rollback -r tank/fs@b").ok();
    assert!(file.exists());
    world.zfs("destroy tank/fs#copy").ok();
    says(world.zfs("destroy tank/fs#copy"), 1, "bookmark 'tank/fs#copy' does not exist.");
    pool.export();
    counts_agree(&pool);
    pool.import();
    assert_eq!(world.zfs("list -H -o name -t bookmark -r tank").ok(), "tank/fs#a\ntank/fs#b\n");
    pool.judge();
}
