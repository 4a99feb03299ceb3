//! Disks that leave, return, are attached, detached and replaced by the commands; and OpenZFS
//! agrees each time.

use std::fs;
use std::path::PathBuf;
use zilla_e2e::{Kind, Need, Pool, Random, World, can};

const SIZE: u64 = 96 << 20;

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

fn status(world: &World) -> String {
    world.zpool("status tank").ok()
}

/// The lines of the configuration, as "depth name".
fn config(world: &World) -> Vec<String> {
    let status = status(world);
    let lines = status.lines().skip_while(|l| !l.starts_with("\tNAME")).skip(2);
    lines
        .take_while(|l| !l.is_empty())
        .map(|l| {
            let depth = l.trim_start_matches('\t').chars().take_while(|c| *c == ' ').count() / 2;
            let name = l.split_whitespace().next().unwrap_or("");
            format!("{depth} {}", name.rsplit('/').next().unwrap_or(name).trim_end_matches(".img"))
        })
        .collect()
}

fn write(pool: &Pool<'_>, name: &str, byte: u8) {
    fs::write(pool.root().join(name), vec![byte; 1 << 20]).expect("write");
    pool.sync();
}

fn read(pool: &Pool<'_>, name: &str, byte: u8) {
    assert!(fs::read(pool.root().join(name)).expect("read") == vec![byte; 1 << 20], "{name}");
}

#[test]
fn a_side_that_was_missing_at_an_import_is_resilvered_and_the_other_may_go() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    pool.export();
    let away = world.path().join("away.img");
    fs::rename(&pool.disks[1], &away).expect("rename");
    pool.import();
    told(&status(&world), "state: DEGRADED");
    write(&pool, "f", 5);
    pool.export();
    fs::rename(&away, &pool.disks[1]).expect("rename");
    pool.import();
    world.zpool("wait -t resilver tank").ok();
    told(&status(&world), "scan: resilvered ");
    told(&world.zpool("status -x tank").ok(), "pool 'tank' is healthy");
    pool.judge();
    fs::rename(&pool.disks[0], &away).expect("rename");
    pool.import();
    read(&pool, "f", 5);
}

#[test]
fn disks_are_attached_detached_and_replaced() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let new: Vec<String> = world.images("new", 3, SIZE).iter().map(|p| p.display().to_string()).collect();
    let old = pool.disks[0].display().to_string();
    write(&pool, "f", 3);
    world.zpool(&format!("attach -w tank {old} {}", new[0])).ok();
    assert_eq!(config(&world), ["1 mirror-0", "2 tank1", "2 new1"]);
    told(&status(&world), "scan: resilvered ");
    let taken = world.zpool(&format!("attach tank {old} {}", new[0]));
    told(&taken.fails(), "is part of active pool 'tank'");
    pool.judge();
    pool.import();
    world.zpool(&format!("detach tank {old}")).ok();
    assert_eq!(config(&world), ["1 new1"]);
    told(
        &world.zpool(&format!("detach tank {}", new[0])).fails(),
        "only applicable to mirror and replacing vdevs",
    );
    let small = world.images("small", 1, 70 << 20)[0].display().to_string();
    told(&world.zpool(&format!("attach tank {} {small}", new[0])).fails(), "device is too small");
    let options = format!("attach -o ashift=16 tank {} {}", new[0], new[1]);
    told(&world.zpool(&options).fails(), "The new device cannot have a higher alignment requirement");
    // The pool's property is about new vdevs; a device beside others has their sectors.
    world.zpool("set ashift=16 tank").ok();
    world.zpool(&format!("replace -w tank {} {}", new[0], new[1])).ok();
    assert_eq!(config(&world), ["1 new2"]);
    // In place: the disk was exchanged for an empty one at the same path.
    world.zpool(&format!("attach -w tank {} {}", new[1], new[2])).ok();
    pool.export();
    fs::remove_file(&new[1]).expect("remove");
    pool.import();
    told(&status(&world), "UNAVAIL");
    fs::File::create(PathBuf::from(&new[1])).and_then(|f| f.set_len(SIZE)).expect("image");
    world.zpool(&format!("replace -w tank {}", new[1])).ok();
    assert_eq!(config(&world), ["1 mirror-0", "2 new2", "2 new3"]);
    told(&world.zpool("status -x tank").ok(), "pool 'tank' is healthy");
    world.zpool("resilver tank").ok();
    told(&world.zpool("history tank").ok(), "zpool replace -w tank");
    read(&pool, "f", 3);
    pool.judge();
}

#[test]
fn labels_are_cleared_of_devices_that_no_pool_needs() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let disks: Vec<String> = pool.disks.iter().map(|d| d.display().to_string()).collect();
    let active = world.zpool(&format!("labelclear -f {}", disks[0])).fails();
    told(&active, "is a member (ACTIVE) of pool \"tank\"");
    told(&world.zpool("labelclear /no/such/device").fails(), "failed to find device /no/such/device");
    pool.export();
    told(&world.zpool(&format!("labelclear {}", disks[0])).fails(), "is a member of exported pool \"tank\"");
    world.zpool(&format!("labelclear -f {}", disks[0])).ok();
    let again = world.zpool(&format!("labelclear {}", disks[0])).fails();
    told(&again, "failed to read label from");
    // The other side is whole.
    pool.import();
    told(&status(&world), "state: DEGRADED");
    world.zpool(&format!("replace -w tank {}", disks[0])).ok();
    pool.judge();
}

#[test]
fn iostat_tells_of_queues_sizes_and_latencies() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    fill(&pool, 2);
    pool.scrub();
    // Fields of all rows but the first, which names the bucket.
    let sum = |words: &str, column: usize| -> u64 {
        let text = world.zpool(words).ok();
        let rows = text.lines().filter_map(|l| l.split_whitespace().nth(column)?.parse::<u64>().ok());
        rows.sum()
    };
    let counted = |column: usize| sum("iostat -Hpw tank", column);
    assert!(counted(2) > 50, "writes in all: {}", world.zpool("iostat -Hpw tank").ok());
    assert!(counted(4) > 50, "writes at the disk");
    assert!(counted(9) > 50, "the scrub's reads: {}", world.zpool("iostat -Hpw tank").ok());
    let sizes = |column: usize| sum("iostat -Hpr tank", column);
    assert!(sizes(7) + sizes(8) > 50, "asynchronous writes: {}", world.zpool("iostat -Hpr tank").ok());
    let lines = world.zpool("iostat -Hplqv tank").ok();
    for line in lines.lines().filter(|l| l.contains("tank1") || l.contains("mirror")) {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields.len(), 1 + 6 + 11 + 14, "{line}");
        assert!(fields[8].parse::<u64>().is_ok_and(|ns| ns > 0), "total_wait of writes: {line}");
    }
}

fn grow_files(pool: &Pool<'_>, size: u64) {
    for disk in &pool.disks {
        fs::OpenOptions::new().write(true).open(disk).and_then(|f| f.set_len(size)).expect("grow");
    }
}

fn property(world: &World, name: &str) -> String {
    world.zpool(&format!("get -Hpo value {name} tank")).ok().trim().to_owned()
}

fn pool_size(world: &World) -> u64 {
    property(world, "size").parse().expect("size")
}

/// Files of 8M until the pool holds that much more.
fn fill(pool: &Pool<'_>, files: usize) {
    for i in 0..files {
        let data: Vec<u8> =
            (0..8u32 << 20).map(|x| (x.wrapping_mul(2_654_435_761) >> 13) as u8 ^ i as u8).collect();
        fs::write(pool.root().join(format!("fill{i}")), data).expect("write");
    }
    pool.sync();
}

#[test]
fn pools_grow_with_their_disks_when_they_are_told_to() {
    if !can(&[Need::Fuse]) {
        return;
    }
    for kind in [Kind::Single, Kind::Mirror, Kind::Raidz1, Kind::Raidz2] {
        let world = World::new();
        let pool = Pool::create(&world, "tank", kind, SIZE, &[]);
        write(&pool, "f", 7);
        let small = pool_size(&world);
        assert_eq!(property(&world, "expandsize"), "-");
        grow_files(&pool, 4 * SIZE);
        world.zpool("reopen tank").ok();
        assert_eq!(pool_size(&world), small, "{kind:?}: not unless it is told to");
        let more: u64 = property(&world, "expandsize").parse().expect("expandsize");
        assert!(more > small, "{kind:?}: {more}");
        let list = world.zpool("list -Hp -o expandsz tank").ok();
        assert_eq!(list.trim(), more.to_string());
        // Nothing happens to those that have no room to grow, and the labels at the new end are
        // whole.
        pool.judge();
        pool.import();
        assert_eq!(pool_size(&world), small);
        let disk = pool.disks[0].display().to_string();
        world.zpool(&format!("online -e tank {disk}")).ok();
        assert_eq!(pool_size(&world), small + more, "{kind:?}");
        assert_eq!(property(&world, "expandsize"), "-");
        fill(&pool, 12);
        read(&pool, "f", 7);
        pool.judge();
        pool.import();
        assert_eq!(pool_size(&world), small + more, "{kind:?}");
        pool.scrub();
    }
}

/// Waits until the pool is larger: nobody waits for a growth that nobody has asked for.
#[track_caller]
fn grows(world: &World, than: u64) {
    let larger = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        pool_size(world) > than
    });
    assert!(larger, "the pool does not grow beyond {than}");
}

#[test]
fn pools_grow_by_themselves_where_autoexpand_says_so() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &["-o", "autoexpand=on"]);
    assert_eq!(property(&world, "autoexpand"), "on");
    write(&pool, "f", 2);
    let first = pool_size(&world);
    // Files that grew are noticed.
    grow_files(&pool, 2 * SIZE);
    grows(&world, first);
    let second = pool_size(&world);
    // Grown while it was exported.
    pool.export();
    grow_files(&pool, 3 * SIZE);
    pool.import();
    let third = pool_size(&world);
    assert!(third > second);
    // Larger disks take the places of the small ones.
    let new: Vec<String> = world.images("new", 2, 6 * SIZE).iter().map(|p| p.display().to_string()).collect();
    world.zpool(&format!("replace -w tank {} {}", pool.disks[0].display(), new[0])).ok();
    assert_eq!(pool_size(&world), third, "a small disk is left");
    world.zpool(&format!("replace -w tank {} {}", pool.disks[1].display(), new[1])).ok();
    grows(&world, third + 2 * SIZE);
    // And without the property only by being told to.
    world.zpool("set autoexpand=off tank").ok();
    let fourth = pool_size(&world);
    for path in &new {
        fs::OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(8 * SIZE)).expect("grow");
    }
    world.zpool("reopen tank").ok();
    assert_eq!(pool_size(&world), fourth);
    world.zpool("set autoexpand=on tank").ok();
    assert!(pool_size(&world) > fourth);
    fill(&pool, 6);
    read(&pool, "f", 2);
    pool.judge();
}

#[test]
fn a_disk_with_data_is_removed_and_openzfs_agrees() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    write(&pool, "f", 7);
    let more = world.disks().join("more.img");
    fs::File::create(&more).expect("create").set_len(4 * SIZE).expect("size");
    world.zpool(&format!("add tank {}", more.display())).ok();
    let old = pool.disks[0].display().to_string();
    told(&world.zpool(&format!("remove -n tank {old}")).ok(), "Memory that will be used after removing ");
    let nothing = world.zpool("remove -s tank");
    assert!(nothing.code == 1, "{nothing}");
    told(&nothing.stderr, "cannot cancel removal: operation is not in progress");
    world.zpool(&format!("remove -w tank {old}")).ok();
    told(&status(&world), "remove: Removal of vdev 0 copied ");
    told(&status(&world), " memory used for removed device mappings");
    assert_eq!(config(&world), ["1 more"]);
    read(&pool, "f", 7);
    pool.export();
    fs::remove_file(&pool.disks[0]).expect("remove");
    pool.import();
    read(&pool, "f", 7);
    pool.judge();
}

#[test]
fn free_space_is_initialized_and_trimmed() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &["-o", "autotrim=on"]);
    assert_eq!(property(&world, "autotrim"), "on");
    world.zpool("set autotrim=off tank").ok();
    write(&pool, "f", 7);
    let (a, b) = (pool.disks[0].display().to_string(), pool.disks[1].display().to_string());
    let done = world.zpool("initialize -c tank");
    assert_eq!(done.code, 255, "{done}");
    for disk in [&a, &b] {
        told(&done.stderr, &format!("cannot initialize '{disk}': there is no active initialization\n"));
    }
    told(&world.zpool("initialize -c -s tank").fails(), "-s cannot be combined with other options\n");
    told(&world.zpool("initialize -w -u tank").fails(), "-w cannot be used with -c, -s or -u\n");
    told(&world.zpool("trim -c -r 1M tank").fails(), "-r cannot be combined with the -c or -s options\n");
    told(&world.zpool("trim tank nothing").fails(), "cannot trim 'nothing': no such device in pool\n");
    told(&world.zpool("trim -d tank").fails(), "trim operations are not supported by this device\n");
    told(&world.zpool("status -it tank").ok(), "  (uninitialized)  (untrimmed)\n");
    world.zpool(&format!("initialize -w tank {a}")).ok();
    let status = world.zpool("status -i tank").ok();
    told(&status, "  (100% initialized, completed at ");
    told(&status, "  (uninitialized)\n");
    world.zpool("trim -r 100K tank").ok();
    told(&world.zpool("trim tank").fails(), &format!("cannot trim '{b}': currently trimming\n"));
    told(&status_of(&world, "status tank"), "  (trimming)\n");
    world.zpool("trim -s tank").ok();
    told(&status_of(&world, "status -t tank"), "% trimmed, suspended, started at ");
    world.zpool("trim -r 0 -w tank").ok();
    world.zpool("wait -t trim,initialize tank").ok();
    told(&status_of(&world, "status -t tank"), "  (100% trimmed, completed at ");
    told(&world.zpool("history -i tank").ok(), &format!("initialize vdev={a} complete\n"));
    read(&pool, "f", 7);
    world.zpool("initialize -u tank").ok();
    told(&status_of(&world, "status -i tank"), "  (uninitialized)\n");
    pool.judge();
    pool.import();
    told(&status_of(&world, "status -t tank"), "  (100% trimmed, completed at ");
    read(&pool, "f", 7);
}

/// As in OpenZFS: somebody has to ask for it again.
#[test]
fn at_a_device_that_is_declared_faulty_initialize_and_trim_are_canceled() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let disk = pool.disks[0].display().to_string();
    world.zpool(&format!("trim -r 100K tank {disk}")).ok();
    told(&status_of(&world, "status tank"), "  (trimming)\n");
    world.zpool(&format!("offline -f tank {disk}")).ok();
    let shown = || {
        let all = status_of(&world, "status -t tank");
        all.lines().find(|l| l.contains(&disk)).expect("the disk").to_owned()
    };
    assert!(shown().contains("FAULTED") && shown().ends_with("(untrimmed)"), "{}", shown());
    pool.export();
    pool.import();
    // It was not opened, so nothing is known of what it can.
    assert!(shown().contains("FAULTED") && shown().ends_with("(trim unsupported)"), "{}", shown());
    world.zpool(&format!("online tank {disk}")).ok();
    world.zpool(&format!("clear tank {disk}")).ok();
    assert!(shown().contains("ONLINE") && shown().contains("(untrimmed)"), "{}", shown());
    told(&world.zpool("history -i tank").ok(), &format!("trim vdev={disk} canceled\n"));
    pool.judge();
}

fn status_of(world: &World, words: &str) -> String {
    world.zpool(words).ok()
}

#[test]
fn a_raidz_is_expanded_by_a_disk_and_openzfs_agrees() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Raidz1, SIZE, &[]);
    write(&pool, "before", 3);
    let (old, disks) = (pool_size(&world), world.images("more", 2, SIZE));
    world.zpool(&format!("attach -w tank raidz1-0 {}", disks[0].display())).ok();
    told(&status(&world), "expand: expanded raidz1-0 copied ");
    // The new room is given out right after that.
    grows(&world, old + (60 << 20));
    assert_eq!(config(&world).len(), 2 + pool.disks.len());
    write(&pool, "after", 4);
    pool.again();
    read(&pool, "before", 3);
    read(&pool, "after", 4);
    world.zpool(&format!("attach tank raidz1-0 {}", disks[1].display())).ok();
    world.zpool("wait -t raidz_expand tank").ok();
    pool.scrub();
    pool.judge();
    // Where the feature is not enabled, OpenZFS's words.
    let three = world.images("old", 4, SIZE);
    let list: Vec<String> = three.iter().map(|p| p.display().to_string()).collect();
    world.zpool(&format!("create -d old raidz {}", list[..3].join(" "))).ok();
    let refused = world.zpool(&format!("attach old raidz1-0 {}", list[3])).fails();
    told(&refused, "raidz_expansion feature must be enabled in order to attach a device to raidz");
}

#[test]
fn a_disk_that_was_overwritten_while_it_was_in_use_is_replaced_by_itself() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    write(&pool, "f", 4);
    let disk = pool.disks[0].display().to_string();
    // As long as it has what it should have there is nothing to be replaced.
    told(&world.zpool(&format!("replace -f tank {disk} {disk}")).fails(), "is part of active pool 'tank'");
    told(&status(&world), "state: ONLINE");
    fs::OpenOptions::new()
        .write(true)
        .open(&disk)
        .and_then(|mut f| std::io::Write::write_all(&mut f, &vec![0; SIZE as usize]))
        .expect("overwrite");
    world.zpool(&format!("replace -w tank {disk} {disk}")).ok();
    assert_eq!(config(&world), ["1 mirror-0", "2 tank1", "2 tank2"]);
    told(&world.zpool("status -x tank").ok(), "pool 'tank' is healthy");
    read(&pool, "f", 4);
    pool.judge();
}

/// Waits until the pool is whole again, and nothing is being replaced; whether it became so.
fn whole_within(world: &World, seconds: usize) -> bool {
    (0..seconds * 4).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(250));
        world.zpool("status -x tank").ok().contains("pool 'tank' is healthy")
            && config(world) == ["1 mirror-0", "2 tank1", "2 tank2"]
    })
}

#[test]
fn a_new_device_in_a_failed_ones_place_replaces_it_with_autoreplace() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &["-o", "autoreplace=on"]);
    assert_eq!(world.zpool("get -Ho value,source autoreplace tank").ok(), "on\tlocal\n");
    write(&pool, "f", 9);
    let away = world.path().join("away.img");
    let lose = |disk: &PathBuf| {
        pool.export();
        fs::rename(disk, &away).expect("rename");
        pool.import();
        told(&status(&world), "state: DEGRADED");
    };
    lose(&pool.disks[1]);
    // What may be somebody's is left alone.
    let mut image = vec![0; SIZE as usize];
    image[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    fs::write(&pool.disks[1], &image).expect("write");
    assert!(!whole_within(&world, 8));
    assert!(fs::read(&pool.disks[1]).expect("read") == image);
    fs::write(&pool.disks[1], vec![0; SIZE as usize]).expect("write");
    assert!(whole_within(&world, 60), "{}", status(&world));
    told(&status(&world), "scan: resilvered ");
    read(&pool, "f", 9);
    pool.judge();
    // Without the property nothing is taken.
    pool.import();
    world.zpool("set autoreplace=off tank").ok();
    fs::remove_file(&away).expect("remove");
    lose(&pool.disks[0]);
    fs::write(&pool.disks[0], vec![0; SIZE as usize]).expect("write");
    assert!(!whole_within(&world, 8));
    read(&pool, "f", 9);
}

#[test]
fn a_sequential_resilver_is_told_of_stopped_by_an_export_and_followed_by_a_scrub() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (mut daemon, folder) = tunable_daemon(&world);
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let new: Vec<String> = world.images("new", 3, SIZE).iter().map(|p| p.display().to_string()).collect();
    let old = pool.disks[0].display().to_string();
    write(&pool, "f", 8);
    let hold = folder.join("zfs_scan_suspend_progress");
    fs::write(&hold, "1\n").expect("tunable");
    world.zpool(&format!("attach -s tank {old} {}", new[0])).ok();
    let shown = status(&world);
    told(&shown, "  scan: resilver (mirror-0) in progress since ");
    told(&shown, "One or more devices is currently being resilvered");
    told(&world.zpool("status -j tank").ok(), "\"rebuild_stats\":{\"mirror-0\":{");
    told(&world.zpool("get -H feature@device_rebuild tank").ok(), "active");
    told(&world.zpool("scrub tank").fails(), "cannot scrub tank: currently resilvering");
    let healing = world.zpool(&format!("attach tank {old} {}", new[1])).fails();
    told(&healing, "currently sequentially resilvering");
    // In the midst of it OpenZFS has nothing to find fault with.
    pool.judge();
    pool.import();
    told(&status(&world), "  scan: resilver (mirror-0) in progress since ");
    fs::write(&hold, "0\n").expect("tunable");
    world.zpool("wait -t resilver,scrub tank").ok();
    let shown = status(&world);
    told(&shown, "  scan: scrub repaired 0B in ");
    told(&shown, "  scan: resilvered (mirror-0) ");
    told(&shown, " with 0 errors on ");
    assert_eq!(config(&world), ["1 mirror-0", "2 tank1", "2 new1"]);
    let events = world.zpool("events -v tank").ok();
    told(&events, "resilver_type = \"sequential\"");
    world.zpool(&format!("replace -s -w tank {old} {}", new[1])).ok();
    world.zpool("wait -t scrub tank").ok();
    assert_eq!(config(&world), ["1 mirror-0", "2 new2", "2 new1"]);
    told(&world.zpool("status -x tank").ok(), "pool 'tank' is healthy");
    pool.judge();
    pool.import();
    read(&pool, "f", 8);
    // A rebuild whose device is taken away is over when the command returns, also if it stands
    // still.
    fs::write(&hold, "1\n").expect("tunable");
    world.zpool(&format!("replace -s tank {} {old}", new[1])).ok();
    world.zpool(&format!("detach tank {old}")).ok();
    let history = world.zpool("history -i tank").ok();
    assert_eq!(history.lines().filter(|l| l.contains("rebuild") && l.contains(" canceled")).count(), 1);
    fs::write(&hold, "0\n").expect("tunable");
    let raidz = Pool::create(&world, "three", Kind::Raidz1, SIZE, &[]);
    let refused = world.zpool(&format!("replace -s three {} {}", raidz.disks[0].display(), new[2])).fails();
    told(&refused, "only mirror and dRAID vdevs support sequential reconstruction");
    world.stop();
    daemon.wait().expect("zillad");
}

/// Starts a daemon whose tunables are files in a folder, and waits until it answers.
fn tunable_daemon(world: &World) -> (std::process::Child, std::path::PathBuf) {
    let folder = world.path().join("parameters");
    let daemon = world.command("zillad").env("ZILLA_PARAMETERS", &folder).spawn().expect("zillad");
    for _ in 0..200 {
        if world.run("zilla", &["status"]).code == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    (daemon, folder)
}

#[test]
fn a_tunable_counts_for_the_next_command_and_holds_a_resilver() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (mut daemon, folder) = tunable_daemon(&world);
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    write(&pool, "f", 6);
    let new = world.images("new", 1, SIZE)[0].display().to_string();
    let hold = folder.join("zfs_scan_suspend_progress");
    fs::write(&hold, "1\n").expect("tunable");
    world.zpool(&format!("attach tank {} {new}", pool.disks[0].display())).ok();
    for _ in 0..5 {
        told(&status(&world), "resilver in progress since");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    // Who comes now waits for the next one, also across an export.
    told(&world.zpool("get -H feature@resilver_defer tank").ok(), "enabled");
    let late = world.images("late", 1, SIZE)[0].display().to_string();
    world.zpool(&format!("attach tank {} {late}", pool.disks[0].display())).ok();
    world.zpool("sync tank").ok();
    told(&status(&world), "(awaiting resilver)");
    told(&world.zpool("get -H feature@resilver_defer tank").ok(), "active");
    pool.judge();
    pool.import();
    told(&status(&world), "(awaiting resilver)");
    fs::write(&hold, "0\n").expect("tunable");
    while status(&world).contains("resilver in progress") || status(&world).contains("awaiting") {
        world.zpool("wait -t resilver tank").ok();
    }
    told(&status(&world), "scan: resilvered ");
    told(&world.zpool("get -H feature@resilver_defer tank").ok(), "enabled");
    told(&world.zpool("status -x tank").ok(), "pool 'tank' is healthy");
    pool.judge();
    world.stop();
    daemon.wait().expect("zillad");
}

/// What OpenZFS has for those who lost a disk that was added lately: what was there before is still
/// there to be read.
#[test]
fn a_pool_without_one_of_its_vdevs_can_be_read_if_that_is_allowed() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (mut daemon, folder) = tunable_daemon(&world);
    let disks = world.images("tank", 3, 256 << 20);
    let root = world.mnt().join("tank");
    world.zpool(&format!("create -m {} tank {}", root.display(), disks[0].display())).ok();
    let old = Random::new(1).bytes(4 << 20);
    std::fs::write(root.join("old"), &old).expect("write");
    world.zpool(&format!("add tank {} {}", disks[1].display(), disks[2].display())).ok();
    std::fs::write(root.join("new"), Random::new(2).bytes(16 << 20)).expect("write");
    world.zpool("export tank").ok();
    let away = world.path().join("away");
    std::fs::rename(&disks[1], &away).expect("rename");
    let import = |words: &str| world.zpool(&format!("import {words} -d {} tank", world.disks().display()));
    let listed = || world.zpool(&format!("import -d {}", world.disks().display())).ok();
    assert!(listed().contains("The pool cannot be imported. Attach the missing"), "{}", listed());
    let refused = import("-o readonly=on").fails();
    assert!(refused.contains("one or more devices is currently unavailable"), "{refused}");
    std::fs::write(folder.join("zfs_max_missing_tvds"), "1\n").expect("tunable");
    assert!(listed().contains("can be imported despite missing or damaged devices"), "{}", listed());
    // Not to be written: what is missing may come back.
    let refused = import("").fails();
    assert!(refused.contains("one or more devices is currently unavailable"), "{refused}");
    import("-o readonly=on").ok();
    let status = world.zpool("status tank").ok();
    assert!(status.contains("state: DEGRADED") && status.contains("UNAVAIL"), "{status}");
    assert!(std::fs::read(root.join("old")).expect("read") == old);
    std::fs::read(root.join("new")).expect_err("a part of it is missing");
    assert!(std::fs::read(root.join("old")).expect("read") == old, "the pool goes on");
    world.zpool("export tank").ok();
    std::fs::rename(&away, &disks[1]).expect("rename");
    std::fs::write(folder.join("zfs_max_missing_tvds"), "0\n").expect("tunable");
    import("").ok();
    assert!(std::fs::read(root.join("new")).expect("read") == Random::new(2).bytes(16 << 20));
    world.zpool("export tank").ok();
    zilla_e2e::zdb_clean(&world.disks(), "tank");
    world.stop();
    daemon.wait().expect("zillad");
}
