//! `zpool history -i`: what the pool itself did, with the commands that asked for it.

use zilla_e2e::{Kind, Need, Pool, World, can};

#[test]
fn what_was_done_to_datasets_is_in_the_history() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    for words in [
        "create tank/fs",
        "set quota=64M tank/fs",
        "snapshot tank/fs@a",
        "bookmark tank/fs@a #m",
        "hold keep tank/fs@a",
        "release keep tank/fs@a",
        "rename tank/fs@a b",
        "clone tank/fs@b tank/clone",
        "promote tank/clone",
        "rename tank/clone tank/other",
        "inherit compression tank/other",
        "destroy tank/fs",
        "rollback tank/other@b",
        "destroy tank/other@b",
        "allow -s @all snapshot,mount tank/other",
        "unallow -s @all mount tank/other",
        "unallow -s @all tank/other",
    ] {
        world.zfs(words).ok();
    }
    let wanted = [
        "create tank/fs (",
        "set tank/fs (",
        "snapshot tank/fs@a (",
        "bookmark tank/fs (",
        "hold tank/fs@a (",
        "release tank/fs@a (",
        "rename tank/fs@a (",
        "clone tank/clone (",
        "promote tank/clone (",
        "rename tank/clone (",
        "inherit tank/other (",
        "destroy tank/fs (",
        "clone swap tank/other/%rollback (",
        "destroy tank/other@b (",
        "permission update tank/other (",
        "permission update tank/other (",
        "permission remove tank/other (",
        "permission who remove tank/other (",
    ];
    let told = world.zpool("history -i tank").ok();
    let mut lines = told.lines().filter(|l| l.contains("[txg:"));
    for what in wanted {
        assert!(lines.any(|l| l.contains(&format!("] {what}"))), "{what} in its place of {told}");
    }
    assert!(told.contains(") s-$@all snapshot\n"), "{told}");
    assert!(told.contains("quota=67108864") && told.contains("tag=keep temp=0 refs=1"), "{told}");
    assert!(!world.zpool("history tank").ok().contains("[txg:"), "only who asks for them is told");
    let disk = pool.disks[0].display();
    let side = world.images("side", 1, 128 << 20).remove(0);
    let side = side.display();
    world.zpool("set comment=mine tank").ok();
    world.zpool("set failmode=continue tank").ok();
    world.zpool("scrub -w tank").ok();
    world.zpool(&format!("attach -w tank {disk} {side}")).ok();
    world.zpool(&format!("detach tank {side}")).ok();
    let told = world.zpool("history -i tank").ok();
    let mut lines = told.lines().filter(|l| l.contains("[txg:"));
    for what in [
        "create pool version 5000; software version zilla-".to_owned(),
        "set comment=mine".to_owned(),
        "set failmode=1".to_owned(),
        "scan setup func=1 mintxg=0 maxtxg=".to_owned(),
        "scan done errors=0".to_owned(),
        format!("vdev attach attach vdev={side} to vdev={disk}"),
        "scan setup func=2 mintxg=".to_owned(),
        "scan done errors=0".to_owned(),
        format!("detach vdev={side}"),
    ] {
        assert!(lines.any(|l| l.contains(&format!("] {what}"))), "{what} in its place of {told}");
    }
    pool.export();
    if let Some(text) = zilla_testkit::zdb_of(&world.disks(), "tank", &["-h"]) {
        assert!(text.contains("promote tank/clone ("), "{text}");
    }
    pool.import();
    assert!(world.zpool("history -i tank").ok().contains("] open pool version 5000; "));
    // A stream alone changes nothing.
    world.zfs("snapshot tank/other@c").ok();
    let out = std::fs::File::create(world.path().join("stream")).expect("a file");
    let sent = world.command("zfs").args(["send", "tank/other@c"]).stdout(out).status();
    assert!(sent.expect("zfs").success());
    assert!(!world.zpool("history tank").ok().contains("zfs send"));
    // The end of a pool is told to who imports it all the same.
    world.zpool("destroy tank").ok();
    world.zpool(&format!("import -D -d {} tank", world.disks().display())).ok();
    let told = world.zpool("history tank").ok();
    assert!(told.lines().any(|l| l.ends_with(" zpool destroy tank")), "{told}");
    pool.judge();
}
