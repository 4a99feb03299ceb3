//! Datasets that get other names, clones that take over, snapshots that are held.

use std::fs;
use std::path::Path;
use std::time::Duration;
use zilla_e2e::{Kind, Need, Pool, World, can, tree};

fn names(world: &World) -> Vec<String> {
    world.zfs("list -H -o name -t all -r tank").ok().lines().map(str::to_owned).collect()
}

#[track_caller]
fn refused(done: zilla_e2e::Done, text: &str) {
    assert_eq!((done.code, done.stderr.as_str()), (1, format!("{text}\n").as_str()), "{done}");
}

#[test]
fn renamed_trees_keep_their_files_and_are_mounted_where_they_belong() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    for name in ["a", "a/b", "to"] {
        world.zfs(&format!("create tank/{name}")).ok();
    }
    let own = world.mnt().join("own");
    world.zfs(&format!("create -o mountpoint={} tank/a/own", own.display())).ok();
    fs::write(pool.root().join("a/b/file"), "kept").expect("file");
    fs::write(own.join("file"), "kept too").expect("file");
    world.zfs("snapshot -r tank/a@s").ok();

    world.zfs("rename tank/a tank/to/x").ok();
    assert_eq!(fs::read_to_string(pool.root().join("to/x/b/file")).expect("file"), "kept");
    assert_eq!(fs::read_to_string(own.join("file")).expect("file"), "kept too");
    assert!(!pool.root().join("a").exists(), "the directory of the mountpoint goes with it");
    let all =
        ["tank", "tank/to", "tank/to/x", "tank/to/x@s", "tank/to/x/b", "tank/to/x/b@s", "tank/to/x/own"];
    assert_eq!(names(&world)[..7], all.map(str::to_owned));

    world.zfs("rename -r tank/to/x@s t").ok();
    assert!(names(&world).contains(&"tank/to/x/own@t".to_owned()) && !names(&world).join(" ").contains("@s"));
    assert_eq!(fs::read_to_string(pool.root().join("to/x/b/.zfs/snapshot/t/file")).expect("file"), "kept");
    world.zfs("rename -p tank/to/x tank/p/q/x").ok();
    assert_eq!(fs::read_to_string(pool.root().join("p/q/x/b/file")).expect("file"), "kept");
    // Left where it is.
    world.zfs("rename -u tank/p/q/x tank/y").ok();
    assert_eq!(fs::read_to_string(pool.root().join("p/q/x/b/file")).expect("file"), "kept");
    let mounts = world.zfs("mount").ok();
    assert!(
        mounts.contains(&format!("{:<30}  {}", "tank/y/b", pool.root().join("p/q/x/b").display())),
        "{mounts}"
    );
    world.zfs("unmount tank/y").ok();
    world.zfs("mount -R tank/y").ok();
    assert_eq!(fs::read_to_string(pool.root().join("y/b/file")).expect("file"), "kept");

    refused(
        world.zfs("rename tank/y tank/y/z"),
        "cannot rename to 'tank/y/z': New dataset name cannot be a descendant of current dataset name",
    );
    refused(
        world.zfs("rename tank/y other/y"),
        "cannot rename to 'other/y': datasets must be within same pool",
    );
    refused(world.zfs("rename tank/y tank/n/y"), "cannot create 'tank/n/y': parent does not exist");
    world.zfs("create -s -V 8m tank/v").ok();
    refused(world.zfs("rename tank/y tank/v/y"), "cannot create 'tank/v/y': parent is not a filesystem");
    refused(world.zfs("rename tank/y tank/to"), "cannot rename 'tank/y': dataset already exists");
    refused(world.zfs("rename tank/none tank/z"), "cannot open 'tank/none': dataset does not exist");
    refused(
        world.zfs("rename tank/y@t tank/to@t"),
        "cannot rename to 'tank/to@t': snapshots must be part of same dataset",
    );
    assert_eq!(world.zfs("rename -r tank/y tank/z").code, 2);
    // After all that went wrong everything is mounted as before.
    assert_eq!(fs::read_to_string(pool.root().join("y/b/file")).expect("file"), "kept");
    // Somebody is in there.
    let open = fs::File::open(pool.root().join("y/b/file")).expect("file");
    let busy = world.zfs("rename tank/y tank/z");
    assert!(busy.code == 1 && busy.stderr.contains("busy"), "{busy}");
    assert_eq!(fs::read_to_string(pool.root().join("y/b/file")).expect("file"), "kept");
    drop(open);
    world.zfs("rename tank/y tank/z").ok();
    pool.judge();
}

#[test]
fn a_promoted_clone_takes_over() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    fs::write(pool.root().join("a/file"), "old").expect("file");
    world.zfs("snapshot tank/a@zero").ok();
    assert_eq!(fs::read_to_string(pool.root().join("a/.zfs/snapshot/zero/file")).expect("file"), "old");
    world.zfs("snapshot tank/a@one").ok();
    world.zfs("clone tank/a@one tank/c").ok();
    fs::write(pool.root().join("c/file"), "new").expect("file");
    refused(world.zfs("promote tank/a"), "cannot promote 'tank/a': not a cloned filesystem");
    world.zfs("snapshot tank/c@one").ok();
    refused(
        world.zfs("promote tank/c"),
        "cannot promote 'tank/c': conflicting snapshot 'one' from parent 'tank/a@one'",
    );
    world.zfs("rename tank/c@one two").ok();
    world.zfs("promote tank/c").ok();
    // It was looked into through the other's `.zfs`, which is no use of it any more.
    world.zfs("destroy tank/c@zero").ok();
    assert_eq!(world.zfs("get -H -o value origin tank/a").ok(), "tank/c@one\n");
    world.zfs("destroy -r tank/a").ok();
    assert_eq!(fs::read_to_string(pool.root().join("c/file")).expect("file"), "new");
    assert_eq!(fs::read_to_string(pool.root().join("c/.zfs/snapshot/one/file")).expect("file"), "old");
    assert_eq!(world.zfs("promote").code, 2);
    pool.judge();
}

#[test]
fn held_snapshots_stay() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &[]);
    world.zfs("create tank/a").ok();
    world.zfs("snapshot -r tank@s").ok();
    world.zfs("hold -r keep tank@s").ok();
    refused(
        world.zfs("hold keep tank@s"),
        "cannot hold snapshot 'tank@s': tag already exists on this dataset",
    );
    refused(world.zfs("hold keep tank@none"), "cannot hold snapshot 'tank@none': dataset does not exist");
    refused(world.zfs("hold keep tank/none@s"), "cannot open 'tank/none': dataset does not exist");
    refused(world.zfs("hold keep tank"), "'tank' is not a snapshot");
    assert_eq!(world.zfs("hold .keep tank@s").code, 2);
    world.zfs("hold other tank@s").ok();
    let list = world.zfs("holds -rHp tank@s").ok();
    let rows: Vec<Vec<&str>> = list.lines().map(|l| l.split('\t').take(2).collect()).collect();
    assert_eq!(rows, [vec!["tank@s", "keep"], vec!["tank@s", "other"], vec!["tank/a@s", "keep"]]);
    let table = world.zfs("holds tank@s").ok();
    assert!(table.starts_with("NAME    TAG    TIMESTAMP\ntank@s  keep   "), "{table}");
    assert_eq!(world.zfs("get -H -o value userrefs tank@s").ok(), "2\n");
    let held = |name: &str| format!("{name}: it's being held. Run 'zfs holds -r {name}' to see holders.");
    refused(world.zfs("destroy tank@s"), &format!("cannot destroy snapshot {}", held("tank@s")));
    assert!(world.zfs("destroy -r tank/a").fails().contains(&held("tank/a@s")));
    // They are kept with the pool.
    pool.export();
    pool.import();
    refused(world.zfs("destroy tank@s"), &format!("cannot destroy snapshot {}", held("tank@s")));
    world.zfs("destroy -d tank@s").ok();
    assert_eq!(world.zfs("get -H -o value defer_destroy tank@s").ok(), "on\n");
    refused(
        world.zfs("release none tank@s"),
        "cannot release hold from snapshot 'tank@s': no such tag on this dataset",
    );
    world.zfs("release keep tank@s").ok();
    assert!(names(&world).contains(&"tank@s".to_owned()));
    world.zfs("release other tank@s").ok();
    assert!(!names(&world).contains(&"tank@s".to_owned()), "the last one lets it go");
    world.zfs("release -r keep tank/a@s").ok();
    world.zfs("destroy tank/a@s").ok();
    pool.judge();
}

#[test]
fn ranges_tell_what_they_give_back_together() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 256 << 20, &["-O", "compression=off"]);
    let noise = zilla_e2e::Random::new(3).bytes(4 << 20);
    world.zfs("snapshot tank@a").ok();
    fs::write(pool.root().join("file"), &noise).expect("file");
    world.zfs("snapshot tank@b").ok();
    world.zfs("snapshot tank@c").ok();
    fs::remove_file(pool.root().join("file")).expect("file");
    world.zfs("snapshot tank@d").ok();
    let reclaim = |list: &str| {
        let told = world.zfs(&format!("destroy -nvp tank@{list}")).ok();
        let last = told.lines().last().and_then(|l| l.strip_prefix("reclaim\t"));
        last.and_then(|n| n.parse::<u64>().ok()).unwrap_or_else(|| panic!("{told}"))
    };
    // Each of the two holds what the other holds too.
    assert!(reclaim("b") < 1 << 20 && reclaim("c") < 1 << 20);
    assert!(reclaim("b%c") >= 4 << 20);
    assert!(reclaim("b,c") >= 4 << 20);
    assert!(reclaim("a%b,d") < 1 << 20);
    let told = world.zfs("destroy -nv tank@b%c").ok();
    assert!(told.starts_with("would destroy tank@b\nwould destroy tank@c\nwould reclaim 4.0"), "{told}");
    world.zfs("destroy tank@b%c").ok();
    assert_eq!(names(&world), ["tank", "tank@a", "tank@d"]);
    pool.judge();
}

fn is_mounted(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    table.lines().any(|l| l.split(' ').nth(4) == at.to_str())
}

/// Whoever gives a mounted snapshot another name, and whichever way: it is the one that is mounted.
#[test]
fn a_snapshot_that_is_mounted_is_known_by_the_name_that_it_has() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let place = world.path().join("by-hand");
    fs::create_dir(&place).expect("folder");
    let by_hand = |name: &str| world.run("zilla", &["mount.zfs", name, place.to_str().expect("text")]);
    let busy = |words: &str| {
        let why = world.zfs(words).fails();
        assert!(why.contains("dataset is busy"), "{words}: {why}");
    };
    world.zfs("create tank/a").ok();
    world.zfs("snapshot tank/a@first").ok();
    fs::write(pool.root().join("a/f"), "then").expect("file");
    world.zfs("snapshot tank/a@s").ok();
    let snaps = pool.root().join("a/.zfs/snapshot");
    by_hand("tank/a@s").ok();
    fs::rename(snaps.join("s"), snaps.join("t")).expect("mv");
    // Another of its old name is not what is mounted.
    world.zfs("snapshot tank/a@s").ok();
    world.zfs("destroy tank/a@s").ok();
    assert_eq!(fs::read_to_string(place.join("f")).expect("file"), "then");
    ["destroy tank/a@t", "rollback -r tank/a@first", "destroy -r tank/a"].into_iter().for_each(busy);
    let refused = fs::remove_dir(snaps.join("t")).expect_err("it is mounted");
    assert_eq!(refused.kind(), std::io::ErrorKind::ResourceBusy);
    world.zfs("clone tank/a@t tank/c").ok();
    world.zfs("promote tank/c").ok();
    world.zfs("rename tank/c@t tank/c@v").ok();
    fs::rename(pool.root().join("c/.zfs/snapshot/v"), pool.root().join("c/.zfs/snapshot/w")).expect("mv");
    world.zfs("rename tank/c tank/d").ok();
    world.zfs(&format!("unmount {}", place.display())).ok();
    assert!(!is_mounted(&place));
    // One that somebody else has unmounted is free at once, for mkdir's kin as well.
    world.zfs("snapshot tank/a@u").ok();
    by_hand("tank/a@u").ok();
    tree::host("umount", &[place.as_os_str()]);
    fs::remove_dir(snaps.join("u")).expect("rmdir");
    pool.judge();
}

/// Whoever unmounts takes it out of the table under whatever name it has by then.
#[test]
fn what_is_renamed_while_it_is_unmounted_is_mounted_again() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/a").ok();
    let at = pool.root().join("a");
    // As long as it is open the mount is not gone.
    let open = fs::File::create(at.join("f")).expect("file");
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| world.zfs("unmount -f tank/a"));
        while is_mounted(&at) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!unmounting.is_finished(), "who has it open is waited for");
        world.zfs("rename -u tank/a tank/b").ok();
        unmounting.join().expect("unmount").ok();
    });
    world.zfs("mount tank/b").ok();
    assert!(is_mounted(&pool.root().join("b")));
    drop(open);
    pool.judge();
}
