//! Files that share blocks, as people make them: `cp` on a mount, and `zilla clone-file` between
//! file systems. After a kill right behind an fsync both are what they were, and OpenZFS's zdb
//! accounts for every block.

use rustix::fs::copy_file_range;
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use zilla_e2e::{Kind, Need, Pool, Random, World, can};

const LEN: usize = (4 << 20) + 5000;

fn bclone(world: &World, what: &str) -> u64 {
    let text = world.zpool(&format!("get -Hp -o value {what} tank")).ok();
    text.trim().parse().expect("a number")
}

/// What `cp` does; how many calls it took.
fn copy(from: &Path, to: &Path) -> usize {
    let (from, to) = (File::open(from).expect("open"), File::create(to).expect("create"));
    for calls in 1.. {
        if copy_file_range(&from, None, &to, None, 1 << 30).expect("copy_file_range") == 0 {
            to.sync_all().expect("fsync");
            return calls;
        }
    }
    0
}

/// Longer than a stack is deep.
#[test]
fn a_long_chain_of_clones_is_destroyed_at_once() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create -o canmount=noauto tank/0").ok();
    for i in 1..=210 {
        let from = format!("tank/{}@s", i - 1);
        world.zfs(&format!("snapshot {from}")).ok();
        world.zfs(&format!("clone -o canmount=noauto {from} tank/{i}")).ok();
    }
    let refused = world.zfs("destroy -r tank/0").fails();
    assert!(refused.contains("tank/1"), "{refused}");
    world.zfs("destroy -R tank/0").ok();
    assert_eq!(world.zfs("list -Ho name").ok(), "tank\n");
    pool.judge();
}

#[test]
fn copies_share_blocks_and_outlive_kills() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 512 << 20, &[]);
    world.zfs("create tank/other").ok();
    let root = pool.root();
    let data = Random::new(7).bytes(LEN);
    fs::write(root.join("a"), &data).expect("write");
    pool.sync();
    copy(&root.join("a"), &root.join("b"));
    world.kill();
    pool.again();
    assert!(fs::read(root.join("b")).expect("b") == data, "what was synced before the kill");
    pool.sync();
    copy(&root.join("a"), &root.join("c"));
    pool.sync();
    let (used, saved) = (bclone(&world, "bcloneused"), bclone(&world, "bclonesaved"));
    assert!(used >= 4 << 20 && saved >= used, "{used} used, {saved} saved");
    let path = |p: &Path| p.to_string_lossy().into_owned();
    let far = root.join("other/far");
    world.run("zilla", &["clone-file".to_owned(), path(&root.join("a")), path(&far)]).ok();
    assert!(fs::read(&far).expect("far") == data);
    pool.sync();
    assert!(bclone(&world, "bclonesaved") > saved);
    let refused = world.run("zilla", &["clone-file".to_owned(), path(&root.join("a")), path(&far)]).fails();
    assert!(refused.contains("File exists"), "{refused}");
    // A snapshot's file is another than the live one, also to programs, and is not cloned.
    world.zfs("snapshot tank@s").ok();
    let (live, old) = (root.join("a"), root.join(".zfs/snapshot/s/a"));
    let ino = |p: &Path| fs::metadata(p).expect("stat").ino();
    assert_ne!(ino(&live), ino(&old));
    let listed = fs::read_dir(root.join(".zfs/snapshot/s")).expect("read").map(|e| e.expect("entry"));
    let listed = listed.filter(|e| e.file_name() == "a").map(|e| e.ino()).next();
    assert_eq!(listed, Some(ino(&old)));
    assert!(fs::read(&old).expect("old") == data);
    world.run("zilla", &["clone-file".to_owned(), path(&old), path(&root.join("no"))]).fails();
    assert!(!fs::read(root.join("no")).is_ok_and(|found| found == data));
    let _ = fs::remove_file(root.join("no"));
    world.zfs("destroy tank@s").ok();
    for name in ["a", "b", "c"] {
        fs::remove_file(root.join(name)).expect("remove");
    }
    pool.sync();
    pool.sync();
    assert_eq!(bclone(&world, "bclonesaved"), 0, "one owner is left");
    assert!(fs::read(&far).expect("far") == data);
    pool.judge();
}

/// A frozen pool is what a crash would leave: what is shared since can only come from the log, and
/// only what the last uberblock leads to may be.
#[test]
fn what_is_shared_after_the_last_txg_comes_back_from_the_log() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    let root = pool.root();
    let (data, later) = (Random::new(8).bytes(LEN), Random::new(9).bytes(LEN));
    fs::write(root.join("a"), &data).expect("write");
    File::open(root.join("a")).expect("open").sync_all().expect("fsync");
    pool.sync();
    world.zpool("freeze tank").ok();
    copy(&root.join("a"), &root.join("b"));
    fs::write(root.join("c"), &later).expect("write");
    // It is synced, but not to where the last uberblock leads.
    world.zpool("sync tank").ok();
    copy(&root.join("c"), &root.join("d"));
    world.kill();
    pool.again();
    for (name, wanted) in [("a", &data), ("b", &data), ("d", &later)] {
        assert!(fs::read(root.join(name)).expect(name) == *wanted, "{name}");
    }
    pool.sync();
    let (used, saved) = (bclone(&world, "bcloneused"), bclone(&world, "bclonesaved"));
    assert!(used > 4 << 20 && used < 5 << 20 && saved == used, "{used} used, {saved} saved");
    pool.judge();
}
