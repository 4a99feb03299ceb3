//! What a pool is to others: guid, version, features, sets of features, names for the time being;
//! and going back.

use zilla_e2e::{Kind, Need, Pool, World, can, pool};

const SIZE: u64 = 128 << 20;

fn value(world: &World, property: &str, pool: &str) -> String {
    world.zpool(&format!("get -Hpo value {property} {pool}")).ok().trim().to_owned()
}

/// Makes a pool on two new images; gives their paths, apart by blanks.
fn create(world: &World, options: &str, name: &str) -> String {
    let images = world.images(name, 2, SIZE);
    let paths: Vec<String> = images.iter().map(|p| p.display().to_string()).collect();
    let mnt = world.mnt();
    let line = format!("create {options} -m {}/{name} {name} mirror {}", mnt.display(), paths.join(" "));
    world.zpool(&line).ok();
    paths.join(" ")
}

/// As OpenZFS 2.3.9 has it: what is the default is told to be that, whoever said it; a text that
/// somebody set is his, also where it is empty.
#[test]
fn a_property_says_who_set_it() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let shown = |what: &str| world.zpool(&format!("get -H -o value,source {what} tank")).ok();
    assert_eq!(shown("comment,compatibility"), "-\tdefault\noff\tdefault\n");
    for (set, told) in [
        ("comment=hello", "hello\tlocal\n"),
        ("comment=", "\tlocal\n"),
        ("autotrim=on", "on\tlocal\n"),
        ("autotrim=off", "off\tdefault\n"),
        ("failmode=wait", "wait\tdefault\n"),
        ("ashift=9", "9\tlocal\n"),
        ("ashift=0", "0\tdefault\n"),
        ("dedup_table_quota=auto", "auto\tdefault\n"),
        ("compatibility=off", "off\tlocal\n"),
    ] {
        world.zpool(&format!("set {set} tank")).ok();
        assert_eq!(shown(set.split('=').next().unwrap()), told, "{set}");
    }
    pool.export();
    pool.import();
    assert_eq!(shown("comment,compatibility"), "\tlocal\noff\tlocal\n");
    for name in ["unsupported@x", "feature@x"] {
        assert_eq!(world.zpool(&format!("get {name} tank")).ok(), "", "{name}");
    }
    pool.judge();
}

#[test]
fn a_pool_gets_another_guid_and_keeps_all_else() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    create(&world, "", "tank");
    std::fs::write(world.mnt().join("tank/file"), "what is kept").unwrap();
    let before = value(&world, "guid", "tank");
    world.zpool("reguid tank").ok();
    let after = value(&world, "guid", "tank");
    assert_ne!(before, after);
    for (given, got) in [("18446744073709551615", "18446744073709551615"), ("0123", "123"), ("314", "314")] {
        world.zpool(&format!("reguid -g {given} tank")).ok();
        assert_eq!(value(&world, "guid", "tank"), got);
    }
    for (wrong, code) in [("18446744073709551616", 2), ("0xA", 2), ("0", 255), ("314", 255)] {
        assert_eq!(world.zpool(&format!("reguid -g {wrong} tank")).code, code, "{wrong}");
    }
    assert_eq!(value(&world, "guid", "tank"), "314");
    // The next daemon finds it by its new guid.
    world.stop();
    assert_eq!(value(&world, "guid", "tank"), "314");
    world.zpool("export tank").ok();
    pool::zdb_clean(&world.disks(), "tank");
    world.zpool(&format!("import -d {} 314", world.disks().display())).ok();
    assert_eq!(std::fs::read_to_string(world.mnt().join("tank/file")).unwrap(), "what is kept");
}

#[test]
fn features_are_chosen_kept_to_and_upgraded() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    create(&world, "-d -o feature@lz4_compress=enabled", "tank");
    assert_eq!(value(&world, "feature@lz4_compress", "tank"), "active");
    assert_eq!(value(&world, "feature@hole_birth", "tank"), "disabled");
    let images = world.images("other", 1, SIZE);
    let none = world.zpool(&format!("create -o compatibility=no-such-set other {}", images[0].display()));
    assert_eq!((none.code, none.stderr.as_str()), (1, "Error: no valid compatibility files specified\n"));
    std::fs::write(world.mnt().join("tank/before"), vec![7; 1 << 20]).unwrap();
    let shown = world.zpool("upgrade").ok();
    assert!(shown.contains("POOL  FEATURE\n---------------\ntank\n      async_destroy\n"), "{shown}");
    let told = world.zpool("upgrade tank").ok();
    assert!(told.contains("Enabled the following features on 'tank':\n  async_destroy\n"), "{told}");
    assert_eq!(value(&world, "feature@hole_birth", "tank"), "active");
    assert_eq!(value(&world, "feature@multi_vdev_crash_dump", "tank"), "enabled");
    let told = world.zpool("upgrade -a").ok();
    assert!(told.ends_with("already has all supported and requested features enabled.\n"), "{told}");
    std::fs::write(world.mnt().join("tank/after"), vec![7; 1 << 20]).unwrap();
    world.zpool("set compatibility=legacy tank").ok();
    world.zpool("export tank").ok();
    pool::zdb_clean(&world.disks(), "tank");
    // What the pool is kept to outlives imports for writing.
    for _ in 0..2 {
        world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
        assert_eq!(value(&world, "compatibility", "tank"), "legacy");
        world.zpool("export tank").ok();
    }
}

#[test]
fn a_counted_version_is_made_written_and_upgraded() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    create(&world, "-o version=28", "tank");
    assert_eq!(value(&world, "version", "tank"), "28");
    std::fs::write(world.mnt().join("tank/file"), vec![1; 1 << 20]).unwrap();
    world.zfs("snapshot tank@old").ok();
    world.zpool("export tank").ok();
    pool::zdb_clean(&world.disks(), "tank");
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    let shown = world.zpool("upgrade").ok();
    assert!(shown.contains("VER  POOL\n---  ------------\n28   tank\n"), "{shown}");
    let told = world.zpool("upgrade tank").ok();
    assert!(told.contains("Successfully upgraded 'tank' from version 28 to feature flags.\n"), "{told}");
    assert_eq!(value(&world, "feature@async_destroy", "tank"), "enabled");
    std::fs::write(world.mnt().join("tank/file"), vec![2; 1 << 20]).unwrap();
    world.zfs("snapshot tank@new").ok();
    world.zfs("destroy tank@old").ok();
    world.zpool("export tank").ok();
    pool::zdb_clean(&world.disks(), "tank");
    let old = world.images("old", 1, SIZE);
    world.zpool(&format!("create -R {} -o version=10 old {}", world.mnt().display(), old[0].display())).ok();
    assert_eq!(value(&world, "version", "old"), "10");
    std::fs::write(world.mnt().join("old/file"), vec![3; 1 << 20]).unwrap();
    world.zpool("export old").ok();
    pool::zdb_clean(&world.disks(), "old");
    // Room for a volume is kept in the older way.
    let older = world.images("older", 1, SIZE);
    world
        .zpool(&format!("create -R {} -o version=8 older {}", world.mnt().display(), older[0].display()))
        .ok();
    world.zfs("create -V 8m older/v").ok();
    let kept = world.zfs("get -Hp -o value reservation older/v").ok();
    assert!(kept.trim().parse::<u64>().is_ok_and(|n| n >= 8 << 20), "{kept}");
    world.zpool("export older").ok();
    pool::zdb_clean(&world.disks(), "older");
}

#[test]
fn a_name_for_the_time_being_is_not_written_down() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    create(&world, "", "tank");
    world.zpool("export tank").ok();
    let dir = world.disks();
    world.zpool(&format!("import -t -d {} tank meanwhile", dir.display())).ok();
    assert_eq!(world.zpool("list -Ho name").ok(), "meanwhile\n");
    std::fs::write(world.mnt().join("tank/file"), "x").unwrap();
    world.zpool("export meanwhile").ok();
    pool::zdb_clean(&dir, "tank");
    world.zpool(&format!("import -d {} tank", dir.display())).ok();
}

/// The txg of the newest uberblock of the pool `tank`, which is not imported.
fn last_txg(world: &World) -> u64 {
    let label = world.run("zdb", &["-u", "-e", "-p", world.disks().to_str().unwrap(), "tank"]).ok();
    let line = label.lines().find(|l| l.trim_start().starts_with("txg = ")).unwrap().to_owned();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The device that was attached since is left behind, and is not the pool again, though it has been
/// newer than what the pool went back to.
#[test]
fn an_import_goes_back_to_before_an_attach() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    std::fs::write(pool.root().join("file"), "before").unwrap();
    pool.export();
    let txg = last_txg(&world);
    pool.import();
    let new = world.images("new", 1, SIZE);
    let first = world.disks().join("tank1.img");
    world.zpool(&format!("attach -w tank {} {}", first.display(), new[0].display())).ok();
    std::fs::write(pool.root().join("file"), "after").unwrap();
    assert!(world.zpool("status tank").ok().contains("mirror-0"));
    pool.export();
    world.zpool(&format!("import -T {txg} -d {} tank", world.disks().display())).ok();
    for _ in 0..2 {
        let status = world.zpool("status tank").ok();
        assert!(!status.contains("mirror") && !status.contains("new1.img"), "{status}");
        assert_eq!(std::fs::read_to_string(pool.root().join("file")).unwrap(), "before");
        pool.export();
        pool::zdb_clean(&world.disks(), "tank");
        pool.import();
    }
    pool.judge();
}

#[test]
fn an_import_goes_back_to_what_is_whole() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    create(&world, "", "tank");
    std::fs::write(world.mnt().join("tank/file"), "x").unwrap();
    world.zpool("sync tank").ok();
    world.zpool("export tank").ok();
    let dir = world.disks();
    // Whole: nothing is left behind, and a try changes nothing.
    assert_eq!(world.zpool(&format!("import -Fn -d {} tank", dir.display())).ok(), "");
    assert_eq!(world.zpool("list -Ho name").ok(), "");
    world.zpool(&format!("import -F -d {} tank", dir.display())).ok();
    assert_eq!(std::fs::read_to_string(world.mnt().join("tank/file")).unwrap(), "x");
    world.zpool("export tank").ok();
    let shown = world.zpool(&format!("import -T nonsense -d {} tank", dir.display()));
    assert_eq!(shown.code, 2);
    let txg = last_txg(&world);
    // Asked to, it goes back by itself; what comes next counts more than what it left behind.
    let told = world.zpool(&format!("import -T {} -d {} tank", txg - 1, dir.display())).ok();
    assert!(told.starts_with("Pool tank returned to its state as of "), "{told}");
    std::fs::write(world.mnt().join("tank/later"), "y").unwrap();
    world.zpool("export tank").ok();
    pool::zdb_clean(&dir, "tank");
    world.zpool(&format!("import -d {} tank", dir.display())).ok();
    assert_eq!(std::fs::read_to_string(world.mnt().join("tank/later")).unwrap(), "y");
}

#[test]
fn a_pool_whose_devices_are_missing_at_a_start_is_not_forgotten() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    create(&world, "", "tank");
    std::fs::write(world.mnt().join("tank/file"), "x").unwrap();
    world.stop();
    let (disks, away) = (world.disks(), world.path().join("away"));
    std::fs::rename(&disks, &away).unwrap();
    let listed = world.zpool("list -Ho name,health").ok();
    assert_eq!(listed, "tank\tUNAVAIL\n");
    let told = world.zpool("status -x").ok();
    assert!(told.contains("pool: tank") && told.contains("state: UNAVAIL"), "{told}");
    let refused = world.zfs("create tank/fs");
    assert!(refused.code == 1 && refused.stderr.contains("pool is unavailable"), "{refused}");
    // What changes meanwhile leaves it in the cache file.
    std::fs::create_dir(&disks).unwrap();
    create(&world, "", "other");
    world.stop();
    assert_eq!(world.zpool("list -Ho name,health").ok(), "other\tONLINE\ntank\tUNAVAIL\n");
    for (words, code, said) in [
        ("clear -n tank", 2, "-n or -X only meaningful with -F\nusage:"),
        ("clear -X other", 2, "-n or -X only meaningful with -F\nusage:"),
        ("clear -Fn tank", 0, ""),
        ("clear -Fn other", 0, ""),
        ("clear -F other", 0, ""),
        ("clear tank", 1, "cannot clear errors for tank: one or more devices is currently unavailable\n"),
        ("clear -F tank", 1, "cannot clear errors for tank: one or more devices is currently unavailable\n"),
    ] {
        let done = world.zpool(words);
        let right = if said.is_empty() { done.stderr.is_empty() } else { done.stderr.starts_with(said) };
        assert!(done.code == code && right && done.stdout.is_empty(), "{done}");
    }
    for entry in std::fs::read_dir(&away).unwrap() {
        let entry = entry.unwrap();
        std::fs::rename(entry.path(), disks.join(entry.file_name())).unwrap();
    }
    // Now that they are back it is opened, with nothing to give up.
    assert_eq!(world.zpool("clear -Fn tank").ok(), "");
    assert_eq!(world.zpool("list -Ho name,health").ok(), "other\tONLINE\ntank\tUNAVAIL\n");
    assert_eq!(world.zpool("clear -F tank").ok(), "");
    assert_eq!(world.zpool("list -Ho name,health").ok(), "other\tONLINE\ntank\tONLINE\n");
    assert_eq!(std::fs::read_to_string(world.mnt().join("tank/file")).unwrap(), "x");
}

#[test]
fn a_pool_goes_back_to_its_checkpoint_or_gives_it_up() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let world = World::new();
    create(&world, "", "tank");
    let file = world.mnt().join("tank/file");
    std::fs::write(&file, vec![1; 4 << 20]).unwrap();
    assert_eq!(value(&world, "checkpoint", "tank"), "-");
    let none = world.zpool("checkpoint -d tank");
    let words = "cannot discard checkpoint in 'tank': checkpoint does not exist\n";
    assert_eq!((none.code, none.stderr.as_str()), (1, words));
    world.zpool("checkpoint tank").ok();
    assert_eq!(value(&world, "feature@zpool_checkpoint", "tank"), "active");
    let again = world.zpool("checkpoint tank");
    assert_eq!((again.code, again.stderr.as_str()), (1, "cannot checkpoint 'tank': checkpoint exists\n"));
    let guid = world.zpool("reguid tank");
    assert_eq!((guid.code, guid.stderr.as_str()), (255, "cannot reguid 'tank': checkpoint exists\n"));
    let side = world.disks().join("tank1.img");
    let detached = world.zpool(&format!("detach tank {}", side.display()));
    assert!(detached.code == 255 && detached.stderr.ends_with(": checkpoint exists\n"), "{detached}");
    std::fs::write(&file, vec![2; 4 << 20]).unwrap();
    std::fs::write(world.mnt().join("tank/more"), vec![3; 20 << 20]).unwrap();
    world.zfs("create tank/fs").ok();
    world.zpool("sync tank").ok();
    let kept: u64 = value(&world, "checkpoint", "tank").parse().unwrap();
    assert!(kept > 0);
    let status = world.zpool("status tank").ok();
    assert!(status.contains("checkpoint: created ") && status.contains(", consumes "), "{status}");
    let scrub = world.zpool("scrub -w tank").ok();
    assert_eq!(scrub, "warning: will not scrub state that belongs to the checkpoint of pool 'tank'\n");
    world.zpool("export tank").ok();
    pool::zdb_clean(&world.disks(), "tank");
    let import = format!("import -d {} --rewind-to-checkpoint", world.disks().display());
    world.zpool(&format!("{import} -o readonly=on tank")).ok();
    assert_eq!(std::fs::read(&file).unwrap(), vec![1; 4 << 20]);
    assert!(world.zpool("clear tank").fails().contains("read-only"));
    world.zpool("export tank").ok();
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    assert_eq!(std::fs::read(&file).unwrap(), vec![2; 4 << 20]);
    world.zpool("export tank").ok();
    world.zpool(&format!("{import} tank")).ok();
    assert_eq!(std::fs::read(&file).unwrap(), vec![1; 4 << 20]);
    assert!(!world.mnt().join("tank/more").exists() && world.zfs("list tank/fs").code == 1);
    assert_eq!(value(&world, "feature@zpool_checkpoint", "tank"), "enabled");
    world.zpool("export tank").ok();
    pool::zdb_clean(&world.disks(), "tank");
    let none = world.zpool(&format!("{import} tank"));
    let words = "cannot import 'tank': checkpoint does not exist\n";
    assert_eq!((none.code, none.stderr.as_str()), (1, words));
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    world.zpool("checkpoint tank").ok();
    std::fs::write(&file, vec![4; 4 << 20]).unwrap();
    world.zpool("checkpoint -d -w tank").ok();
    assert_eq!(value(&world, "checkpoint", "tank"), "-");
    assert!(!world.zpool("status tank").ok().contains("checkpoint:"));
    let told = world.zpool("history -i tank").ok();
    assert!(
        told.contains("spa checkpoint ") && told.contains("finished discarding checkpointed state"),
        "{told}"
    );
    world.zpool(&format!("detach tank {}", side.display())).ok();
    world.zpool("export tank").ok();
    pool::zdb_clean(&world.disks(), "tank");
}

#[test]
fn a_forced_sync_leaves_a_newer_uberblock_though_nothing_changed() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let dir = world.disks();
    let txg = || -> u64 {
        let said = world.run("zdb", &["-u", "-e", "-p", dir.to_str().expect("path"), "tank"]).ok();
        let line = said.lines().find_map(|l| l.trim().strip_prefix("txg = ").map(str::to_owned));
        line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{said}"))
    };
    world.zpool("sync").ok();
    for words in ["sync -f tank", "sync -f"] {
        let before = txg();
        world.zpool(words).ok();
        assert!(txg() > before, "zpool {words}");
    }
    pool.judge();
}
