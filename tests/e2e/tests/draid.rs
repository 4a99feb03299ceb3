//! dRAIDs by the commands: made, shown, filled, degraded, replaced, added; and OpenZFS agrees each
//! time.

use std::fs;
use zilla_e2e::pool::scrub;
use zilla_e2e::{Need, World, can, zdb_clean};

const SIZE: u64 = 192 << 20;

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

fn names(paths: &[std::path::PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_draid_loses_disks_and_gets_others() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let disks = world.images("d", 7, SIZE);
    let mount = world.mnt().join("tank");
    let made = format!("create -m {} tank draid2:3d:7c {}", mount.display(), names(&disks));
    let shown = world.zpool(&made.replacen("create", "create -n", 1)).ok();
    told(&shown, "\t  draid2:3d:7c:0s\n\t    /");
    world.zpool(&made).ok();
    told(&world.zpool("status tank").ok(), "\t  draid2:3d:7c:0s-0 ");
    told(&world.zpool("get -H -o value feature@draid tank").ok(), "active");
    let contents = |i: u32| vec![(i % 251) as u8; (i as usize * 977) % 400_000];
    for i in 0..200 {
        fs::write(mount.join(format!("f{i}")), contents(i)).expect("write");
    }
    world.zpool("sync tank").ok();
    world.zpool(&format!("offline -f tank {}", disks[1].display())).ok();
    told(&world.zpool("status tank").ok(), "state: DEGRADED");
    for i in 200..300 {
        fs::write(mount.join(format!("f{i}")), contents(i)).expect("write");
    }
    let new = world.images("n", 3, SIZE);
    world.zpool(&format!("replace -w tank {} {}", disks[1].display(), new[0].display())).ok();
    told(&world.zpool("status -x tank").ok(), "pool 'tank' is healthy");
    world.zpool("export tank").ok();
    zdb_clean(&world.disks(), "tank");

    // As many as parity says are lost, the new one stays.
    let away = world.path().join("away");
    fs::create_dir(&away).expect("mkdir");
    for (i, d) in [&disks[0], &disks[4]].into_iter().enumerate() {
        fs::rename(d, away.join(i.to_string())).expect("rename");
    }
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    for i in 0..300 {
        assert!(fs::read(mount.join(format!("f{i}"))).expect("read") == contents(i), "f{i}");
    }
    for (i, d) in [&disks[0], &disks[4]].into_iter().enumerate() {
        fs::rename(away.join(i.to_string()), d).expect("rename");
        world.zpool(&format!("online tank {}", d.display())).ok();
    }
    world.zpool("wait -t resilver tank").ok();
    scrub(&world, "tank");
    told(
        &world.zpool(&format!("add tank draid {} {}", new[1].display(), new[2].display())).fails(),
        "mismatched",
    );
    world.zpool(&format!("add -f tank draid1:1d {} {}", new[1].display(), new[2].display())).ok();
    told(&world.zpool("status tank").ok(), "\t  draid1:1d:2c:0s-1 ");
    world.zpool("export tank").ok();
    zdb_clean(&world.disks(), "tank");
}

#[test]
fn its_distributed_spare_stands_in_for_a_disk() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let disks = world.images("d", 6, SIZE);
    let mount = world.mnt().join("tank");
    world.zpool(&format!("create -m {} tank draid1:2d:1s {}", mount.display(), names(&disks))).ok();
    let status = world.zpool("status tank").ok();
    told(&status, "\t  draid1:2d:6c:1s-0 ");
    told(&status, "\tspares\n\t  draid1-0-0 ");
    told(&status, "AVAIL");
    told(&world.zpool("list -v tank").ok(), "draid1-0-0");
    let contents = |i: u32| vec![(i % 251) as u8; (i as usize * 977) % 200_000];
    for i in 0..100 {
        fs::write(mount.join(format!("f{i}")), contents(i)).expect("write");
    }
    let spare = "draid1-0-0";
    let free = &world.images("free", 1, SIZE)[0];
    for (line, words) in [
        (format!("remove tank {spare}"), "cannot remove draid1-0-0: dRAID spares cannot be removed"),
        (
            format!("add tank spare {spare}"),
            "cannot open 'draid1-0-0': dRAID spares can only be used to replace primary vdevs",
        ),
        (
            format!("attach tank {} {spare}", disks[0].display()),
            "can only attach to mirrors and top-level disks",
        ),
        (format!("replace tank {} draid1-0-1", disks[0].display()), "new device must be a single disk"),
        // What is in use is told before what cannot be replaced.
        (format!("replace tank {spare} {}", disks[0].display()), "is part of active pool 'tank'"),
        (format!("replace tank {spare} {}", free.display()), "device is reserved as a hot spare"),
    ] {
        told(&world.zpool(&line).fails(), words);
    }
    world.zpool(&format!("offline -f tank {}", disks[2].display())).ok();
    // The daemon calls the spare by itself, and may be the first to do so.
    let by_hand = world.zpool(&format!("replace -w tank {} {spare}", disks[2].display()));
    assert!(by_hand.code == 0 || by_hand.stderr.contains("draid1-0-0 is busy"), "{by_hand}");
    world.zpool("wait -t resilver tank").ok();
    let status = world.zpool("status tank").ok();
    told(&status, "\t    spare-2 ");
    told(&status, "INUSE     currently in use");
    told(&world.zpool(&format!("offline -f tank {spare}")).fails(), "device is reserved as a hot spare");
    told(&world.zpool(&format!("offline tank {spare}")).fails(), "operation not supported on this type");
    let busy = world.zpool(&format!("replace tank {} {spare}", disks[3].display())).fails();
    told(&busy, "draid1-0-0 is busy");
    world.zpool("export tank").ok();
    zdb_clean(&world.disks(), "tank");

    // Another disk is lost, and everything is there.
    let away = world.path().join("away");
    fs::rename(&disks[4], &away).expect("rename");
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    for i in 0..100 {
        assert!(fs::read(mount.join(format!("f{i}"))).expect("read") == contents(i), "f{i}");
    }
    fs::rename(&away, &disks[4]).expect("rename");
    world.zpool(&format!("online tank {}", disks[4].display())).ok();
    world.zpool("wait -t resilver tank").ok();
    // The daemon may call it again before it is called by hand.
    let by_hand = (0..5).any(|_| {
        world.zpool(&format!("detach tank {spare}")).ok();
        let replaced = world.zpool(&format!("replace -s -w tank {} {spare}", disks[2].display()));
        assert!(replaced.code == 0 || replaced.stderr.contains("draid1-0-0 is busy"), "{replaced}");
        if replaced.code != 0 {
            world.zpool("wait -t resilver tank").ok();
        }
        replaced.code == 0
    });
    assert!(by_hand, "the daemon was always the first");
    world.zpool("wait -t resilver,scrub tank").ok();
    let status = world.zpool("status tank").ok();
    told(&status, "  scan: scrub repaired 0B in ");
    told(&status, "  scan: resilvered (draid1:2d:6c:1s-0) ");
    world.zpool("export tank").ok();
    zdb_clean(&world.disks(), "tank");
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    let new = world.images("n", 1, SIZE);
    world.zpool(&format!("replace -s -w tank {} {}", disks[2].display(), new[0].display())).ok();
    world.zpool("wait -t resilver,scrub tank").ok();
    told(&world.zpool("status -x tank").ok(), "pool 'tank' is healthy");
    told(&world.zpool("status tank").ok(), "AVAIL");
    world.zpool("export tank").ok();
    zdb_clean(&world.disks(), "tank");
}

#[test]
fn what_cannot_be_is_refused_as_openzfs_words_it() {
    let world = World::new();
    let disks = names(&world.images("d", 3, SIZE));
    for (word, refusal) in [
        (
            "draid2:2d",
            "requested number of dRAID data disks per group 2 is too high,\nat most 1 disks are available for data",
        ),
        ("draid:4c", "invalid number of dRAID children; 4 required but 3 provided"),
        (
            "draid2:1s",
            "request number of distributed spares 1 and parity level 2\nleaves no disks available for data",
        ),
        ("draid3", "invalid vdev specification: draid3 requires at least 4 devices"),
    ] {
        told(&world.zpool(&format!("create tank {word} {disks}")).fails(), refusal);
    }
    let log = world.zpool(&format!("create tank {disks} log draid {disks}")).fails();
    told(&log, "unsupported 'log' device: draid");
}
