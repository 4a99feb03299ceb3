//! `zpool split`: what it prints, what it refuses, and both pools afterwards; and OpenZFS agrees
//! with both.

use std::fs;
use zilla_e2e::{Kind, Need, Pool, World, can, zdb_clean};

const SIZE: u64 = 96 << 20;

#[track_caller]
fn says(done: zilla_e2e::Done, words: &str) {
    let text = done.fails();
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

#[test]
fn a_pool_is_split_and_both_halves_are_used() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let more: Vec<String> = world.images("more", 6, SIZE).iter().map(|p| p.display().to_string()).collect();
    let last = pool.disks[1].display().to_string();
    says(world.zpool("split tank"), "Missing new pool name");
    says(world.zpool("split -l tank half"), "loading keys is only valid when importing the pool");
    says(world.zpool("split -o ro tank half"), "setting mntopts is only valid when importing the pool");
    says(world.zpool("split tank mirror"), "Unable to split tank: name is reserved");
    says(world.zpool(&format!("split tank half {}", more[0])), "at most one disk from each mirror");
    says(
        world.zpool("split tank half mirror"),
        "Cannot use 'mirror, raidz or draid' as a device for splitting",
    );
    says(world.zpool("split -o version=28 tank half"), "property 'version' number 28 is invalid.");
    world
        .zpool(&format!("add tank log mirror {} {} special mirror {} {}", more[0], more[1], more[2], more[3]))
        .ok();
    world.zpool(&format!("add tank spare {} cache {}", more[4], more[5])).ok();
    fs::write(pool.root().join("f"), vec![7; 1 << 20]).expect("write");
    world.zfs("create -V 8M tank/v").ok();
    pool.sync();
    let first = pool.disks[0].display();
    let plan = world.zpool(&format!("split -n tank half {first}")).ok();
    let wanted = format!(
        "would create 'half' with the following layout:\n\n\thalf\n\t  {first}\n\tspecial\n\t  {}\n",
        more[3]
    );
    assert_eq!(plan, wanted);
    assert!(world.zpool("status tank").ok().contains(&last));
    world.zpool("split -o comment=apart -o autoexpand=on tank half").ok();
    let status = world.zpool("status -P tank").ok();
    assert!(
        !status.contains(&last) && !status.contains("mirror-0") && status.contains("mirror-1"),
        "{status}"
    );
    assert!(status.contains("No known data errors") && status.contains("state: ONLINE"), "{status}");
    assert!(world.zpool("history -i tank").ok().contains("zpool split"));
    assert!(world.zpool("list -H -o name").ok() == "tank\n", "it is exported");
    fs::write(pool.root().join("later"), "later").expect("write");
    let root = world.path().join("alt");
    world.zpool(&format!("import -R {} -d {} half", root.display(), world.disks().display())).ok();
    assert_eq!(world.zpool("get -H -o value comment,autoexpand half").ok(), "apart\non\n");
    assert_eq!(world.zfs("list -H -o name -r half").ok(), "half\nhalf/v\n");
    let guids = world.zpool("list -H -o guid tank half").ok();
    let guids: Vec<&str> = guids.lines().collect();
    assert!(guids.len() == 2 && guids[0] != guids[1], "{guids:?}");
    let mounted = world.zfs("get -H -o value mountpoint half").ok();
    let file = fs::read(std::path::Path::new(mounted.trim()).join("f")).expect("read");
    assert!(file == vec![7; 1 << 20]);
    assert!(!std::path::Path::new(mounted.trim()).join("later").exists());
    says(world.zpool("split tank half"), "Source pool must be composed only of mirrors");
    world.zpool("export half").ok();
    pool.judge();
    zdb_clean(&world.disks(), "half");
}

#[test]
fn a_half_is_imported_at_once() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    fs::write(pool.root().join("f"), "whole").expect("write");
    pool.sync();
    let root = world.path().join("alt");
    let first = pool.disks[0].display();
    world.zpool(&format!("split -R {} tank half {first}", root.display())).ok();
    assert_eq!(world.zpool("list -H -o name").ok(), "half\ntank\n");
    let mounted = world.zfs("get -H -o value mountpoint half").ok();
    assert_eq!(fs::read(std::path::Path::new(mounted.trim()).join("f")).expect("read"), b"whole");
    assert_eq!(fs::read(pool.root().join("f")).expect("read"), b"whole");
    world.zpool("export half").ok();
    pool.judge();
}
