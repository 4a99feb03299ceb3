//! What is refused says why: properties that nobody would heed, pools that another daemon has.

use zilla_e2e::{Kind, Need, Pool, World, can};

#[test]
fn properties_that_would_not_be_heeded_are_refused_by_name() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let done = world.zfs("set context=c tank");
    let text = "cannot set property for 'tank': 'context=c' is not supported by zilla yet\n";
    assert_eq!((done.code, done.stderr.as_str()), (2, text));
    for setting in ["direct=disabled", "direct=standard", "special_small_blocks=64K", "zoned=off"] {
        world.zfs(&format!("set {setting} tank")).ok();
    }
    // A container's file system is not mounted here, nor what is below it.
    for name in ["tank/z", "tank/z/below"] {
        world.zfs(&format!("create {name}")).ok();
    }
    world.zfs("set zoned=on tank/z").ok();
    for name in ["tank/z", "tank/z/below"] {
        assert_eq!(world.zfs(&format!("get -H -o value mounted {name}")).ok(), "no\n");
        let told = world.zfs(&format!("mount {name}")).fails();
        assert_eq!(told, format!("cannot mount '{name}': dataset is exported to a local zone\n"));
    }
    world.zfs("mount -a").ok();
    assert_eq!(world.zfs("get -H -o value mounted tank/z").ok(), "no\n");
    world.zfs("set zoned=off tank/z").ok();
    world.zfs("mount -a").ok();
    assert_eq!(world.zfs("get -H -o value mounted tank/z/below").ok(), "yes\n");
    world.zfs("destroy -r tank/z").ok();
    // OpenZFS takes it, and says that it has no effect.
    let told = world.zpool("set dedupditto=100 tank").ok();
    assert_eq!(told, "Note: property 'dedupditto' no longer has any effect\n");
    // Nothing is printed of what is over at once.
    world.zfs("unmount tank").ok();
    assert_eq!(world.zfs("mount -a -v").ok(), "");
    assert_eq!(world.zfs("get -H -o value mounted tank").ok(), "yes\n");
    assert_eq!(world.zfs("set tank quota=1G").code, 2);
    let told = world.zfs("upgrade").ok();
    let wanted = "This system is currently running ZFS filesystem version 5.\n\n\
                  All filesystems are formatted with the current version.\n";
    assert_eq!(told, wanted);
    assert_eq!(
        world.zfs("upgrade -a").ok(),
        "0 filesystems upgraded\n1 filesystems already at this version\n"
    );
    let done = world.zfs("upgrade -V 3 tank");
    let text = "tank: can not be downgraded; it is already at version 5\n0 filesystems upgraded\n";
    assert_eq!((done.code, done.stdout.as_str()), (1, text));
    assert_eq!((world.zfs("upgrade -V 9 tank").code, world.zfs("upgrade -v -a").code), (2, 2));
    world.zfs("create -o version=4 tank/old").ok();
    let told = world.zfs("upgrade").ok();
    assert!(told.ends_with("VER  FILESYSTEM\n---  ------------\n 4   tank/old\n"), "{told}");
    let text = "cannot set property for 'tank': can not be downgraded; it is already at version 5\n";
    assert_eq!(world.zfs("set version=4 tank").fails(), text);
    pool.judge();
}

#[test]
fn a_pool_that_another_daemon_has_is_told_as_in_use() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let (world, other) = (World::new(), World::new());
    let pool = Pool::create(&world, "tank", Kind::Mirror, 128 << 20, &[]);
    let dir = world.disks();
    let done = other.zpool(&format!("import -d {} tank", dir.display()));
    assert!(done.code == 1 && done.stderr.contains("is in use by process"), "{done}");
    pool.export();
    other.zpool(&format!("import -N -d {} tank", dir.display())).ok();
    other.zpool("export tank").ok();
}
