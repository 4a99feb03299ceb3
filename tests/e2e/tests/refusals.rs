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
    let text = "cannot set property for 'tank': Can not downgrade; already at version 5\n";
    let done = world.zfs("set version=4 tank");
    assert_eq!((done.code, done.stderr.as_str()), (255, text));
    pool.judge();
}

/// Lines, exit codes and words as OpenZFS 2.3.9's kernel module and programs have them.
#[test]
fn lines_about_a_pool_that_is_there_are_answered_as_openzfs_answers_them() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "t", Kind::Single, 128 << 20, &[]);
    for line in ["create -s -V 8M t/v", "create -o mountpoint=legacy t/legacy", "snapshot t@s", "hold k t@s"]
    {
        world.zfs(line).ok();
    }
    let answered = |rows: &[(&str, i32, &str)]| {
        for (line, code, words) in rows {
            let (program, rest) = line.split_once(' ').expect("two words");
            let done = world.run(program, &rest.split(' ').collect::<Vec<_>>());
            assert_eq!((done.code, done.stderr.as_str()), (*code, *words), "{line}");
        }
    };
    let not_of_this_type = "property doesn't apply to datasets of this type";
    answered(&[
        (
            "zfs inherit recordsize t/v",
            1,
            &format!("cannot inherit recordsize for 't/v': {not_of_this_type}\n"),
        ),
        ("zfs inherit snapdir t@s", 1, &format!("cannot inherit snapdir for 't@s': {not_of_this_type}\n")),
        ("zfs inherit com.example:x t@s", 0, ""),
        (
            "zfs mount t/legacy",
            1,
            "cannot mount 't/legacy': legacy mountpoint\nuse mount(8) to mount this filesystem\n",
        ),
        ("zfs mount t", 1, "cannot mount 't': filesystem already mounted\n"),
        ("zfs mount -R t", 0, ""),
        ("zfs create -V 8M -o volsize=5M t/w", 1, "property 'volsize' specified multiple times\n"),
        (
            "zfs destroy t@s",
            1,
            "cannot destroy snapshot t@s: it's being held. Run 'zfs holds -r t@s' to see holders.\n",
        ),
        ("zfs destroy none", 1, "cannot open 'none': dataset does not exist\n"),
        (
            "zpool set compatibility=legacy t",
            0,
            "Warning: one or more features already enabled on pool 't'\nare not present in this \
             compatibility set.\n",
        ),
        ("zpool set compatibility=off t", 0, ""),
    ]);
    world.zfs("release k t@s").ok();
    pool.export();
    world.zpool(&format!("import -o readonly=on -d {} t", world.disks().display())).ok();
    let refused = "cannot set property for 't': pool is read-only\n";
    answered(&[
        ("zpool set comment=new t", 1, refused),
        (
            "zpool set compatibility=legacy t",
            1,
            &format!(
                "Warning: one or more features already enabled on pool 't'\nare not present in this compatibility set.\n{refused}"
            ),
        ),
        ("zpool set autotrim=on t", 1, refused),
        ("zpool set com.example:x=1 t", 1, refused),
        ("zpool set cachefile=none t", 0, ""),
    ]);
    assert_eq!(world.zpool("get -H -o value comment t").ok(), "-\n");
    pool.export();
    pool.import();
    pool.judge();
}

/// Words and codes that OpenZFS 2.3.9 has in its source.
#[test]
fn what_is_not_there_and_what_is_in_use_is_told_as_openzfs_tells_it() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "t", Kind::Mirror, 128 << 20, &[]);
    let first = pool.disks[0].display();
    for line in ["snapshot t@a", "snapshot t@b", "hold k t@a", "hold longer t@b"] {
        world.zfs(line).ok();
    }
    let answered = |rows: &[(String, i32, String)]| {
        for (line, code, words) in rows {
            let (program, rest) = line.split_once(' ').expect("two words");
            let done = world.run(program, &rest.split(' ').collect::<Vec<_>>());
            let said = done.stderr.split("usage:").next().unwrap();
            assert_eq!((done.code, said), (*code, words.as_str()), "{line}");
        }
    };
    let row = |line: &str, code, words: &str| (line.to_owned(), code, words.to_owned());
    let no_pool = "cannot open 'none': no such pool\n";
    let nowhere = world.path().join("nowhere").display().to_string();
    let unread = "failed to open cache file: No such file or directory\n";
    let exists = "cannot import 't': a pool with that name already exists\nuse the form 'zpool import <pool | \
                  id> <newpool>' to give it a new name\n";
    answered(&[
        row("zpool initialize none", 255, no_pool),
        row("zpool trim none", 255, no_pool),
        row("zpool trim t x", 255, "cannot trim 'x': no such device in pool\n"),
        row("zpool online none x", 1, &format!("{no_pool}failed to open pool \"none\"")),
        row("zpool offline none x", 1, &format!("{no_pool}failed to open pool \"none\"")),
        row("zpool detach t x", 255, "cannot detach x: no such device in pool\n"),
        row(
            &format!("zpool replace t x {first}"),
            1,
            &format!(
                "invalid vdev specification\nuse '-f' to override the following errors:\n{first} is part of \
                 active pool 't'\n"
            ),
        ),
        row("zpool set a:b=c t x", 22, "cannot find 'x' in 't': device not in pool\n"),
        row(
            &format!("zpool set a=c t {first}"),
            1,
            &format!("cannot set property a for {first} on t: invalid property: 'a'\n"),
        ),
        row("zpool split -o foo=bar t u", 2, "property 'foo' is not a valid pool or vdev property\n"),
        row("zpool split -R /a -R /b t u", 2, "property 'altroot' specified multiple times\n"),
        row(&format!("zpool import -d {nowhere}"), 0, "no pools available to import\n"),
        row(&format!("zpool import -d {nowhere} u"), 1, "cannot import 'u': no such pool available\n"),
        row(&format!("zpool import -d {nowhere} t"), 1, exists),
        row(&format!("zpool import -c {nowhere}"), 1, unread),
        row(&format!("zpool import -c {nowhere} -a"), 1, unread),
        row(
            &format!("zpool import -c {nowhere} u"),
            1,
            &format!("{unread}cannot import 'u': no such pool available\n"),
        ),
        row("zfs send -R -X t t@a", 2, "-X t: not a valid non-root dataset name.\n"),
        row("zfs send -R -X t/a,t/!b t@a", 2, "-X t/!b: not a valid non-root dataset name.\n"),
        row("zfs holds t/none@a", 1, "cannot open 't/none': dataset does not exist\nno datasets available\n"),
        row("zfs set quota=much t", 255, "cannot set property for 't': bad numeric value 'much'\n"),
    ]);
    let done = world.zfs("holds t/none@a t@a t@b t@a");
    let rows: Vec<&str> = done.stdout.lines().map(|line| line.get(..13).unwrap_or("")).collect();
    assert_eq!(
        (done.code, &rows[..]),
        (1, &["NAME  TAG    ", "t@a  k       ", "t@b  longer  "][..]),
        "{done}"
    );
    assert_eq!(world.zfs("holds -r t/none@a").stdout, "NAME  TAG  TIMESTAMP\n");
    for n in 0..33 {
        world.zfs(&format!("snapshot t@{n}")).ok();
    }
    let told = world.zfs("rollback t@a").fails();
    assert!(told.ends_with("\nt@30\nOutput limited to 32 snapshots/bookmarks\n"), "{told}");
    // Who uses a file system of it keeps a pool.
    let open = std::fs::File::open(pool.root()).expect("folder");
    let busy = format!("cannot unmount '{}': pool or dataset is busy\n", pool.root().display());
    answered(&[
        row("zpool export t", 1, &busy),
        row("zpool destroy t", 1, &format!("{busy}could not destroy 't': could not unmount datasets\n")),
    ]);
    drop(open);
    pool.export();
    let import = format!("zpool import -d {}", world.disks().display());
    answered(&[
        row(&format!("{import} t mirror"), 1, "cannot import 'mirror': name is reserved\n"),
        row(
            &format!("{import} -o comment=x -R rel t"),
            1,
            "cannot import pool 't': bad alternate root 'rel'\n",
        ),
    ]);
    pool.import();
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
