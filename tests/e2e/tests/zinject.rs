//! `zinject`: errors that are asked for come as they would from disks, are told, and go when they
//! are told to; OpenZFS finds nothing wrong afterwards.

use std::fs;
use std::time::{Duration, Instant};
use zilla_e2e::{Done, Kind, Need, Pool, World, can};

const SIZE: u64 = 96 << 20;

fn zinject(world: &World, words: &str) -> Done {
    world.run("zinject", &words.split_whitespace().collect::<Vec<_>>())
}

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

/// What `zpool status` says of a device: its state, then its errors.
fn device(world: &World, pool: &str, path: &str) -> Vec<String> {
    let status = world.zpool(&format!("status -p {pool}")).ok();
    let line = status.lines().find(|l| l.split_whitespace().next() == Some(path)).unwrap_or_default();
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[track_caller]
fn becomes(world: &World, pool: &str, path: &str, state: &str) {
    let begun = Instant::now();
    while device(world, pool, path).first().is_none_or(|s| s != state) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}, not {state}", device(world, pool, path));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn handlers_are_listed_and_taken_away() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let disk = pool.disks[0].display().to_string();
    let none = "No handlers registered.\nRun 'zinject -h' for usage information.\n";
    assert_eq!(zinject(&world, "").ok(), none);
    told(&zinject(&world, &format!("-d {disk} -e io -T read -f 50 tank")).ok(), "Added handler 1 with");
    told(&zinject(&world, &format!("-d {disk} -D 25:2 tank")).ok(), "Added handler 2 with");
    assert_eq!(zinject(&world, "-q -t spacemap -e checksum tank").ok(), "3\n");
    told(&zinject(&world, "-P export -s 1 tank").ok(), " time: 1 seconds");
    told(&zinject(&world, "-P export -s 1 tank").fails(), "a handler already exists");
    told(&zinject(&world, "-P import -s 1 tank").fails(), "pool already imported");
    let list = zinject(&world, "").ok();
    told(&list, "read   io           50.0000%");
    told(&list, "  2  tank             25               2  ");
    told(&list, "  3  tank             0       0       spacemap  0    0x00  all");
    told(&list, "  4  tank                 1            export");
    assert_eq!(zinject(&world, "-c 2").ok(), "removed handler 2\n");
    told(&zinject(&world, "-c 2").fails(), "failed to remove handler 2: No such file or directory");
    assert_eq!(zinject(&world, "-c all").ok(), "removed all registered handlers\n");
    assert_eq!(zinject(&world, "").ok(), none);
    // A pool's handlers go with it; what waits for the pool by name stays.
    zinject(&world, &format!("-d {disk} -e io tank")).ok();
    zinject(&world, "-P export -s 1 tank").ok();
    let begun = Instant::now();
    pool.export();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    zinject(&world, "-P import -s 2 tank").ok();
    told(&zinject(&world, "").ok(), "import");
    let begun = Instant::now();
    pool.import();
    assert!(begun.elapsed() >= Duration::from_secs(2));
    assert_eq!(zinject(&world, "").ok(), none);
    told(&world.log(), "errors are injected from now on");
    pool.judge();
}

#[test]
fn pools_are_imported_at_the_same_time() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pools = ["one", "two", "three"].map(|name| Pool::create(&world, name, Kind::Mirror, SIZE, &[]));
    let dir = pools[0].disks[0].parent().expect("a folder").to_owned();
    for pool in &pools {
        pool.export();
        zinject(&world, &format!("-P import -s 12 {}", pool.name)).ok();
    }
    let delayed = || world.log().matches("an import or export is delayed on purpose").count();
    std::thread::scope(|threads| {
        let all = threads.spawn(|| world.zpool(&format!("import -a -d {}", dir.display())).ok());
        let begun = Instant::now();
        while delayed() < pools.len() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", world.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        // The last has begun, and the first has not come to its end.
        assert_eq!(world.zpool("list -H -o name").ok(), "");
        all.join().expect("the import ends");
    });
    assert_eq!(world.zpool("list -H -o name").ok(), "one\nthree\ntwo\n");
    pools.iter().for_each(Pool::judge);
}

#[test]
fn what_is_not_there_or_makes_no_sense_is_refused() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let disk = pool.disks[0].display().to_string();
    for (words, code, says) in [
        ("-p spa_vdev_exit tank".to_owned(), 2, "option '-p' is not supported by zilla"),
        ("-I -s 5 tank".to_owned(), 2, "option '-I' is not supported by zilla"),
        ("-u tank".to_owned(), 2, "option '-u' is not supported by zilla"),
        ("-s 5 tank".to_owned(), 2, "-s or -g meaningless without -I (ignore writes)"),
        ("-c all tank".to_owned(), 2, "cancel (-c) incompatible with any other options"),
        ("-c one".to_owned(), 1, "invalid handle id 'one': must be an integer or 'all'"),
        ("-d nowhere -e io tank".to_owned(), 1, "cannot find device 'nowhere' in pool 'tank'"),
        ("-d mirror-0 -e io tank".to_owned(), 1, "the vdev does no I/O of its own"),
        (format!("-d {disk} -e io pond"), 1, "cannot open 'pond': no such pool"),
        (format!("-d {disk} -e io"), 2, "device (-d) injection requires a single pool name"),
        (format!("-d {disk} -e enoent tank"), 1, "invalid error type 'enoent'"),
        (format!("-d {disk} -e corrupt tank"), 2, "device corrupt errors require io type read"),
        (format!("-d {disk} -e io -T free tank"), 1, "no device takes part in freeing and claiming"),
        (format!("-d {disk} -e io -f 0 tank"), 1, "frequency value must be in the range [0.0001, 100.0]"),
        (format!("-d {disk} -D 10 tank"), 1, "invalid i/o delay value: '10'"),
        (format!("-d {disk} -D 10:70000 tank"), 1, "a delay has 65534 lanes at most"),
        (format!("-d {disk} -A break tank"), 1, "invalid action 'break': must be 'degrade' or 'fault'"),
        (format!("-d {disk} -A fault -e io tank"), 2, "device (-d) incompatible with other options"),
        ("-t data file".to_owned(), 1, "invalid object 'file': must be full path"),
        ("-t data /etc/hostname".to_owned(), 1, "invalid path '/etc/hostname': not a ZFS filesystem"),
        (format!("-t data -l 5 {}/f", pool.root().display()), 1, "block level exceeds max level of object"),
        ("-t data -C 0 -e decrypt /f".to_owned(), 2, "the '-C' option may not be used"),
        ("-t mos -e decrypt tank".to_owned(), 2, "decryption errors may only be injected for 'data' types"),
        ("-t mos -l 1 tank".to_owned(), 2, "the pool's own objects fail as a whole"),
        ("-b 1:2 tank".to_owned(), 1, "bad raw spec '1:2'"),
        ("-P import tank".to_owned(), 2, "injection requires a duration (-s)"),
        (
            "tank".to_owned(),
            2,
            "at least one of '-b', '-d', '-t', '-a', '-p', '-I' or '-u' must be specified",
        ),
        ("-z".to_owned(), 2, "invalid option 'z'"),
    ] {
        fs::write(pool.root().join("f"), b"x").expect("write");
        let done = zinject(&world, &words);
        let found = done.code;
        told(&done.fails(), says);
        assert_eq!(found, code, "zinject {words}");
    }
    told(&zinject(&world, "").ok(), "No handlers registered.");
}

#[test]
fn a_mirror_lives_with_a_side_that_fails_and_forgets_it_when_cleared() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let (first, second) = (pool.disks[0].display().to_string(), pool.disks[1].display().to_string());
    let contents: Vec<u8> = (0..4 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(pool.root().join("f"), &contents).expect("write");
    pool.sync();
    zinject(&world, &format!("-a -d {first} -e io -T read tank")).ok();
    assert_eq!(fs::read(pool.root().join("f")).expect("read"), contents);
    world.zpool("scrub -w tank").ok();
    becomes(&world, "tank", &first, "FAULTED");
    assert_ne!(device(&world, "tank", &first)[1], "0");
    assert_eq!(device(&world, "tank", &second), ["ONLINE", "0", "0", "0"]);
    told(&world.zpool("events").ok(), "ereport.fs.zfs.io");
    told(&world.zpool("events -v").ok(), "vdev_read_errors = 0x1\n");
    zinject(&world, "-c all").ok();
    world.zpool("clear tank").ok();
    assert_eq!(device(&world, "tank", &first), ["ONLINE", "0", "0", "0"]);
    // One that has vanished cannot be opened either, until it is back.
    zinject(&world, &format!("-d {first} -e nxio tank")).ok();
    fs::write(pool.root().join("g"), &contents).expect("write");
    pool.sync();
    becomes(&world, "tank", &first, "UNAVAIL");
    world.zpool("clear tank").ok();
    assert_eq!(device(&world, "tank", &first)[0], "UNAVAIL");
    zinject(&world, "-c all").ok();
    world.zpool("clear tank").ok();
    becomes(&world, "tank", &first, "ONLINE");
    world.zpool("wait -t resilver tank").ok();
    // By word of the administrator.
    zinject(&world, &format!("-d {second} -A degrade tank")).ok();
    assert_eq!(device(&world, "tank", &second)[0], "DEGRADED");
    zinject(&world, &format!("-d {second} -A fault tank")).ok();
    assert_eq!(device(&world, "tank", &second)[0], "FAULTED");
    zinject(&world, &format!("-d {first} -A fault tank")).ok();
    assert_eq!(device(&world, "tank", &first)[0], "DEGRADED", "it is the last that has everything");
    world.zpool("clear tank").ok();
    world.zpool("wait -t resilver tank").ok();
    // What the pool cannot do without stays.
    zinject(&world, &format!("-d {first} -e dtl tank")).ok();
    told(&world.zpool(&format!("offline tank {first}")).fails(), "no valid replicas");
    told(&world.zpool(&format!("detach tank {first}")).fails(), "no valid replicas");
    zinject(&world, "-c all").ok();
    world.zpool(&format!("offline tank {first}")).ok();
    world.zpool(&format!("online tank {first}")).ok();
    world.zpool("wait -t resilver tank").ok();
    assert_eq!(fs::read(pool.root().join("g")).expect("read"), contents);
    pool.scrub();
    pool.judge();
}

#[test]
fn blocks_of_a_file_fail_by_copy_level_and_kind() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &["-O", "copies=2", "-O", "compression=lz4"]);
    let file = pool.root().join("f");
    let contents = "what can be made smaller ".repeat(100_000).into_bytes();
    fs::write(&file, &contents).expect("write");
    pool.sync();
    let (path, disk) = (file.display().to_string(), pool.disks[0].display().to_string());
    let again = |words: &str| {
        zinject(&world, "-c all").ok();
        zinject(&world, &format!("-a {words} {path}")).ok();
        fs::read(&file)
    };
    // The other copy has it.
    assert_eq!(again("-t data -e checksum -C 0").expect("read"), contents);
    assert_ne!(device(&world, "tank", &disk)[3], "0", "and the bad one is counted");
    assert_eq!(again("-t data -e io -C 1").expect("read"), contents);
    // A range that is not there, and a level that is not asked for.
    assert_eq!(again("-t data -e io -r 104857600,209715200").expect("read"), contents);
    for words in
        ["-t data -e checksum", "-t data -e io", "-t data -e decompress", "-t data -l 1", "-t data -r 0"]
    {
        let failed = again(words).expect_err(words);
        assert_eq!(failed.raw_os_error(), Some(5), "{words}");
    }
    told(&world.zpool("events").ok(), "ereport.fs.zfs.data");
    told(&world.zpool("status -v tank").ok(), &path);
    // A scrub of what is known to be damaged finds that it still is, and then that it is not.
    zinject(&world, "-c all").ok();
    zinject(&world, &format!("-a -t data -e checksum {path}")).ok();
    world.zpool("scrub -e -w tank").ok();
    let status = world.zpool("status -v tank").ok();
    told(&status, " error blocks in 0 days ");
    told(&status, &path);
    zinject(&world, "-c all").ok();
    world.zpool("scrub -e -w tank").ok();
    told(&world.zpool("status -v tank").ok(), "No known data errors");
    // Then there is nothing to do.
    world.zpool("scrub -e -w tank").ok();
    zinject(&world, "-a").ok();
    assert_eq!(fs::read(&file).expect("read"), contents);
    world.zpool("clear tank").ok();
    // Errors that came quickly enough have faulted a device, which is given what it missed.
    world.zpool("wait -t resilver tank").ok();
    pool.scrub();
    pool.scrub();
    told(&world.zpool("status -v tank").ok(), "No known data errors");
    pool.judge();
}

#[test]
fn an_encrypted_file_that_cannot_be_decrypted_is_told_of() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let key = world.path().join("key");
    fs::write(&key, [7; 32]).expect("write the key");
    let how = "-o encryption=on -o keyformat=raw";
    world.zfs(&format!("create {how} -o keylocation=file://{} tank/c", key.display())).ok();
    let file = pool.root().join("c/f");
    fs::write(&file, vec![3; 1 << 20]).expect("write");
    // What no txg has written yet is brought to disk, and then forgotten.
    zinject(&world, &format!("-a -t data -e decrypt {}", file.display())).ok();
    assert_eq!(fs::read(&file).expect_err("decrypted").raw_os_error(), Some(5));
    told(&world.zpool("events").ok(), "ereport.fs.zfs.authentication");
    zinject(&world, "-c all").ok();
    assert_eq!(fs::read(&file).expect("read"), vec![3; 1 << 20]);
    pool.judge();
}

#[test]
fn who_destroys_a_pool_that_cannot_be_written_any_more_keeps_nobody_waiting() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    zinject(&world, &format!("-d {} -e io tank", pool.disks[0].display())).ok();
    // Its line of history is the first that is to be written.
    world.zpool("destroy -f tank");
    let other = Pool::create(&world, "other", Kind::Single, SIZE, &[]);
    assert_eq!(world.zpool("list -H -o name").ok(), "other\n");
    zinject(&world, "-c all").ok();
    other.judge();
}

#[test]
fn a_delay_holds_io_back_until_it_is_taken_away() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let (disk, file) = (pool.disks[0].display().to_string(), pool.root().join("f"));
    fs::write(&file, vec![9; 1 << 20]).expect("write");
    pool.sync();
    zinject(&world, &format!("-a -d {disk} -D 200:1 -T read tank")).ok();
    let begun = Instant::now();
    fs::read(&file).expect("read");
    assert!(begun.elapsed() >= Duration::from_millis(200));
    zinject(&world, "-c all").ok();
    // An hour each; whoever waits is let go.
    zinject(&world, &format!("-a -d {disk} -D 3600000:1 -T read tank")).ok();
    let reader = std::thread::spawn({
        let file = file.clone();
        move || fs::read(file).map(|all| all.len())
    });
    std::thread::sleep(Duration::from_millis(500));
    assert!(!reader.is_finished());
    zinject(&world, "-c all").ok();
    assert_eq!(reader.join().expect("reader").expect("read"), 1 << 20);
    pool.judge();
}

/// Starts a daemon whose tunables are files, and waits until it answers.
fn tunable_daemon(world: &World) -> std::process::Child {
    let mut command = world.command("zillad");
    command.env("ZILLA_PARAMETERS", world.path().join("parameters"));
    command.env("ZILLA_KSTATS", world.path().join("kstats"));
    let log = fs::File::create(world.state().join("zillad.log")).expect("log");
    let child = command.stdout(log.try_clone().expect("log")).stderr(log).spawn().expect("zillad");
    let begun = Instant::now();
    while !world.state().join("zillad.sock").exists() && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    world.zpool("list").ok();
    child
}

fn tune(world: &World, name: &str, value: &str) {
    let path = world.path().join("parameters").join(name);
    assert!(path.exists(), "{name}");
    fs::write(path, value).expect("write a tunable");
    std::thread::sleep(Duration::from_millis(300));
}

/// As OpenZFS has it: one of the two at a time, each paused, resumed and stopped by its own
/// options.
#[test]
fn a_scrub_of_known_errors_and_one_of_everything_refuse_each_other() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let mut daemon = tunable_daemon(&world);
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &["-o", "feature@head_errlog=enabled"]);
    let file = pool.root().join("f");
    fs::write(&file, vec![7; 1 << 20]).expect("write");
    pool.sync();
    let path = file.display();
    zinject(&world, &format!("-a -t data -e checksum {path}")).ok();
    fs::read(&file).expect_err("it is injected");
    world.zpool("sync tank").ok();
    tune(&world, "zfs_scan_suspend_progress", "1");
    let status = || world.zpool("status tank").ok();
    let refused = |words: &str, why: &str| told(&world.zpool(words).fails(), why);
    world.zpool("scrub -e tank").ok();
    told(&status(), "error scrub in progress since");
    refused("scrub tank", "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub");
    refused("scrub -e tank", "currently error scrubbing");
    world.zpool("scrub -p tank").ok();
    told(&status(), "error scrub paused since");
    refused("scrub -p tank", "error scrub is paused; use 'zpool scrub -e' to resume error scrub");
    // It is still paused after an import.
    world.zpool("export tank").ok();
    pool.import();
    told(&status(), "error scrub paused since");
    world.zpool("scrub -e tank").ok();
    told(&status(), "error scrub in progress since");
    world.zpool("scrub -s tank").ok();
    told(&status(), "error scrub canceled on");
    told(&world.zpool("status -v tank").ok(), &path.to_string());
    world.zpool("scrub tank").ok();
    refused("scrub -e tank", "currently scrubbing; use 'zpool scrub -s' to cancel scrub");
    world.zpool("scrub -p tank").ok();
    refused("scrub -e tank", "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel");
    world.zpool("scrub -s tank").ok();
    world.zpool("scrub -e tank").ok();
    // What was under way at an export goes on, and comes to its end.
    world.zpool("export tank").ok();
    tune(&world, "zfs_scan_suspend_progress", "0");
    zinject(&world, "-c all").ok();
    pool.import();
    world.zpool("wait -t scrub tank").ok();
    told(&status(), "No known data errors");
    let old = Pool::create(&world, "old", Kind::Single, SIZE, &["-o", "feature@head_errlog=disabled"]);
    refused("scrub -e old", "head_errlog");
    old.judge();
    pool.judge();
    world.stop();
    let _ = daemon.wait();
}

#[test]
fn slow_io_is_counted_and_a_side_that_hangs_is_given_up_until_it_answers() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let mut daemon = tunable_daemon(&world);
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let (first, second) = (pool.disks[0].display().to_string(), pool.disks[1].display().to_string());
    let contents = vec![5; 4 << 20];
    let slow = |path: &str| {
        let status = world.zpool("status -sp tank").ok();
        let line = status.lines().find(|l| l.split_whitespace().next() == Some(path)).expect("the device");
        line.split_whitespace().nth(5).and_then(|n| n.parse::<u64>().ok()).expect("a number")
    };
    tune(&world, "zio_slow_io_ms", "100");
    zinject(&world, &format!("-d {first} -D 200:100 tank")).ok();
    fs::write(pool.root().join("slow"), &contents).expect("write");
    pool.sync();
    zinject(&world, "-c all").ok();
    assert!(slow(&first) > 0 && slow(&second) == 0);
    told(&world.zpool("events").ok(), "ereport.fs.zfs.delay");
    tune(&world, "zio_slow_io_ms", "30000");
    // One side does not answer at all.
    tune(&world, "zfs_deadman_ziotime_ms", "1000");
    tune(&world, "zfs_deadman_checktime_ms", "100");
    zinject(&world, &format!("-d {first} -D 3600000:1 tank")).ok();
    fs::write(pool.root().join("f"), &contents).expect("write");
    pool.sync();
    becomes(&world, "tank", &first, "FAULTED");
    assert_eq!(device(&world, "tank", &second), ["ONLINE", "0", "0", "0"]);
    told(&world.zpool("events").ok(), "ereport.fs.zfs.deadman");
    zinject(&world, "-a").ok();
    assert_eq!(fs::read(pool.root().join("f")).expect("read"), contents);
    let kstat = world.path().join("kstats/tank/state");
    let told_degraded = (0..300).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(200));
        fs::read_to_string(&kstat).expect("state").trim() == "DEGRADED"
    });
    assert!(told_degraded, "the state's kstat does not follow");
    // Once it answers, it is taken back and gets what it lacks.
    zinject(&world, "-c all").ok();
    world.zpool("clear tank").ok();
    becomes(&world, "tank", &first, "ONLINE");
    world.zpool("wait -t resilver tank").ok();
    pool.scrub();
    assert_eq!(device(&world, "tank", &first), ["ONLINE", "0", "0", "0"]);
    // The only one is waited for.
    world.zpool(&format!("detach tank {first}")).ok();
    zinject(&world, &format!("-d {second} -D 2000:100 -T write tank")).ok();
    fs::write(pool.root().join("g"), &contents).expect("write");
    pool.sync();
    assert_eq!(device(&world, "tank", &second), ["ONLINE", "0", "0", "0"]);
    zinject(&world, "-c all").ok();
    pool.export();
    world.stop();
    daemon.wait().expect("the daemon");
    zilla_e2e::zdb_clean(&world.disks(), "tank");
}
