//! Properties of vdevs: what is shown, what is set and found again, what is refused; and that
//! OpenZFS's checker finds nothing wrong with it.

use zilla_e2e::{Kind, Need, Pool, World, can, zdb_clean_with};

#[test]
fn vdevs_have_properties_of_their_own() {
    let world = World::new();
    let images = world.images("d", 2, 128 << 20);
    let (first, second) = (images[0].display().to_string(), images[1].display().to_string());
    world.zpool(&format!("create -O mountpoint=none tank mirror {first} {second}")).ok();
    let get = |property: &str, vdev: &str| {
        world.zpool(&format!("get -Hp -o value {property} tank {vdev}")).ok().trim().to_owned()
    };
    assert_eq!(get("numchildren", "mirror-0"), "2");
    assert_eq!(get("parent", &first), "mirror-0");
    assert_eq!(get("children", "mirror-0"), format!("{first},{second}"));
    assert_eq!((get("path", &first), get("state", &first)), (first.clone(), "7".to_owned()));
    let (size, free) = (get("size", "mirror-0"), get("free", "mirror-0"));
    let allocated: u64 = get("allocated", "mirror-0").parse().expect("a number");
    assert_eq!(size.parse::<u64>().expect("a number") - allocated, free.parse::<u64>().expect("a number"));
    assert_eq!((get("allocating", "mirror-0"), get("allocating", &first)), ("on".to_owned(), "-".to_owned()));
    assert_eq!(get("checksum_n", &first), "-");
    let table = world.zpool(&format!("get state tank {first}")).ok();
    assert!(table.starts_with("NAME") && table.contains("ONLINE"), "{table}");
    // Set, and found again.
    let set = [("root", "of-all"), ("mirror-0", "of-two"), (first.as_str(), "of-one")];
    for (vdev, value) in set {
        world.zpool(&format!("set org.example:x={value} tank {vdev}")).ok();
        world.zpool(&format!("set comment=c-{value} tank {vdev}")).ok();
    }
    world.zpool("export tank").ok();
    world.zpool(&format!("import -d {} tank", world.disks().display())).ok();
    for (vdev, value) in set {
        assert_eq!(get("org.example:x", vdev), value);
        assert_eq!(get("comment", vdev), format!("c-{value}"));
    }
    assert_eq!(get("org.example:x", &second), "-");
    let all = world.zpool("get -H -o name,value org.example:x tank all-vdevs").ok();
    let lines: Vec<&str> = all.lines().collect();
    assert_eq!(lines.len(), 4, "{all}");
    assert_eq!(lines[..2], ["root-0\tof-all", "mirror-0\tof-two"], "{all}");
    let all = world.zpool(&format!("get -H -o property all tank {first}")).ok();
    assert!(all.lines().any(|l| l == "org.example:x") && all.lines().any(|l| l == "trim_support"), "{all}");
    world.zpool(&format!("set org.example:x= tank {first}")).ok();
    assert_eq!(get("org.example:x", &first), "-");
    // Refused.
    let refused = |what: &str, vdev: &str| world.zpool(&format!("set {what} tank {vdev}")).fails();
    assert!(refused("size=1", "mirror-0").contains("'size' is readonly"));
    assert!(refused("bogus=1", "mirror-0").contains("invalid property: 'bogus'"));
    assert!(refused("failfast=off", &first).contains("'failfast' of a vdev cannot be set"));
    assert!(refused("path=/dev/null", &first).contains("'path' of a vdev cannot be set"));
    assert!(refused("checksum_n=many", &first).contains("many"));
    assert!(refused("checksum_n=3", "root").contains("not of the root"));
    assert!(refused("allocating=off", "mirror-0").contains("the last vdev that new blocks can go to"));
    assert!(refused("allocating=off", &first).contains("only a top-level vdev"));
    // Limits are the leaf's, and go with `none`.
    for (name, value) in [("checksum_n", "3"), ("io_t", "77"), ("slow_io_n", "5")] {
        world.zpool(&format!("set {name}={value} tank {first}")).ok();
        assert_eq!(get(name, &first), value);
        assert_eq!(get(name, &second), "-");
    }
    world.zpool(&format!("set io_t=none tank {first}")).ok();
    assert_eq!(get("io_t", &first), "-");
    let done = world.zpool("set comment=x tank nobody");
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (22, "cannot find 'nobody' in 'tank': device not in pool\n")
    );
    world.zpool("get size tank nobody").fails();
    world.zpool("export tank").ok();
    zdb_clean_with(&world.disks(), "tank", &[]);
}

/// A vdev that is to go gets nothing new, over imports too, until it is told otherwise.
#[test]
fn a_vdev_that_is_not_to_allocate_gets_nothing_new() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 512 << 20, &[]);
    let more = world.images("more", 1, 512 << 20)[0].display().to_string();
    world.zpool(&format!("add tank {more}")).ok();
    let get = |property: &str, vdev: &str| {
        world.zpool(&format!("get -Hp -o value {property} tank {vdev}")).ok().trim().to_owned()
    };
    let number = |property: &str, vdev: &str| get(property, vdev).parse::<u64>().expect("a number");
    let free = || world.zfs("get -Hp -o value available tank").ok().trim().parse::<u64>().expect("a number");
    let both = free();
    world.zpool(&format!("set allocating=off tank {more}")).ok();
    assert_eq!(get("allocating", &more), "off");
    assert!(free() < both - (64 << 20), "{} of {both}", free());
    let first = pool.disks[0].display().to_string();
    assert!(
        world.zpool(&format!("set allocating=off tank {first}")).fails().contains("the last vdev"),
        "one has to take what is written"
    );
    let write = |name: &str| {
        std::fs::write(pool.root().join(name), vec![7; 16 << 20]).expect("write");
        world.zpool("sync tank").ok();
        (number("allocated", &first), number("allocated", &more))
    };
    world.zfs("set compression=off tank").ok();
    let before = number("allocated", &more);
    let (here, there) = write("a");
    assert!(here > 16 << 20 && there <= before, "{here} {there} {before}");
    world.zpool("export tank").ok();
    pool.import();
    assert_eq!(get("allocating", &more), "off");
    let (_, there) = write("b");
    assert!(there <= before, "{there} {before}");
    world.zpool(&format!("set allocating=on tank {more}")).ok();
    assert_eq!(get("allocating", &more), "on");
    let (_, there) = write("c");
    assert!(there > before, "{there} {before}");
    // It can go, though what it has free is more than what the other one has.
    world.zpool(&format!("set allocating=off tank {more}")).ok();
    world.zpool(&format!("remove -w tank {more}")).ok();
    let status = world.zpool("status tank").ok();
    assert!(!status.contains(&more), "{status}");
    pool.judge();
}
