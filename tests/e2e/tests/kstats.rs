//! Statistics as files (`ZILLA_KSTATS`), and what they say of reading ahead.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can};

fn serve(world: &World) -> Child {
    let mut command = world.command("zillad");
    command.env("ZILLA_KSTATS", world.path().join("kstat"));
    let log = fs::File::create(world.state().join("zillad.log")).expect("log");
    let child = command.stdout(log.try_clone().expect("log")).stderr(log).spawn().expect("zillad");
    until("the daemon answers", || world.run("zilla", &["status"]).code == 0);
    child
}

#[track_caller]
fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to be: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn counter(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name));
    line.and_then(|l| l.split_whitespace().last()?.parse().ok()).unwrap_or(0)
}

fn put(path: &Path, data: &[u8]) {
    let mut file = fs::File::create(path).expect("create");
    file.write_all(data).expect("write");
    file.sync_all().expect("fsync");
}

#[test]
fn what_a_pool_and_its_file_systems_do_is_told() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let mut daemon = serve(&world);
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let kstat = world.path().join("kstat");
    let of_pool = |name: &str| kstat.join("tank").join(name);
    let text = |name: &str| fs::read_to_string(of_pool(name)).unwrap_or_default();
    until("the state", || text("state") == "ONLINE\n");
    let guid = world.zpool("get -H -o value guid tank").ok();
    until("the guid", || text("guid") == guid);

    (0..3).for_each(|n| put(&pool.root().join(format!("f{n}")), &[7; 10_000]));
    fs::remove_file(pool.root().join("f0")).expect("remove");
    pool.sync();
    let inode = fs::metadata(pool.root().join("f1")).expect("f1").ino();
    let all = fs::read_to_string(kstat.join("dbufs")).expect("dbufs");
    let lines: Vec<Vec<&str>> = all.lines().map(|l| l.split_whitespace().collect()).collect();
    assert!(lines[2].starts_with(&["pool", "objset", "object", "level", "blkid"]), "{all}");
    let of_file: Vec<_> = lines.iter().filter(|l| l[0] == "tank" && l[2] == inode.to_string()).collect();
    assert!(!of_file.is_empty() && lines[3..].iter().all(|l| l.len() == lines[2].len()), "{all}");
    assert!(fs::write(kstat.join("dbufs"), "").is_err() && fs::remove_file(kstat.join("dbufs")).is_err());
    let header = "txg birth state ndirty nread nwritten reads writes otime qtime wtime stime";
    until("the txgs", || {
        let all = text("txgs");
        let mut lines = all.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
        let head = lines.next().map(|l| l.join(" "));
        let rows: Vec<Vec<&str>> = lines.collect();
        let number = |row: &[&str], i: usize| row.get(i).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let synced = rows.iter().any(|r| r.get(2) == Some(&"C") && number(r, 5) > 0 && number(r, 11) > 0);
        let open = rows.last().is_some_and(|r| r.get(2) == Some(&"O"));
        head.as_deref() == Some(header) && synced && open
    });
    let id = world.zfs("get -H -o value objsetid tank").ok();
    let objset = of_pool(&format!("objset-0x{:x}", id.trim().parse::<u64>().expect("objsetid")));
    until("what was written and removed", || {
        let of = |name: &str| counter(&objset, name);
        of("nwritten") == 30_000 && of("writes") >= 3 && (of("nunlinks"), of("nunlinked")) == (1, 1)
    });
    // They say what is true when they are read.
    assert_eq!(counter(&of_pool("iostats"), "arc_write_bytes"), 30_000);
    // The first write makes the file's record, and the cache keeps it; the others go past it.
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true).custom_flags(flags);
    let mut direct = options.open(pool.root().join("direct")).expect("open");
    (0..4).for_each(|_| direct.write_all(&[9; 128 << 10]).expect("write"));
    drop(direct);
    let of = |name: &str| counter(&of_pool("iostats"), name);
    assert_eq!((of("direct_write_count"), of("arc_write_bytes")), (3, 30_000 + (128 << 10)));
    until("transactions and blocks", || {
        counter(&kstat.join("dmu_tx"), "dmu_tx_assigned") > 0
            && counter(&kstat.join("dbufstats"), "cache_count") > 0
    });
    let arc = kstat.join("arcstats");
    // What is new is in memory; after this it is read.
    pool.export();
    pool.import();
    until("what the cache did", || counter(&arc, "misses") > 0);
    let before = counter(&arc, "misses");
    pool.export();
    let names = || fs::read_dir(&kstat).expect("folder").map(|e| e.expect("entry").file_name());
    assert!(!of_pool("state").exists() && !objset.exists() && names().all(|name| name != "tank"));
    // Names are there without a pool, too, and what was counted until then.
    until("what the cache did stays", || counter(&arc, "size") == 0 && counter(&arc, "misses") >= before);
    let caches = fs::read_to_string(kstat.join("arcstats")).expect("arcstats");
    let of_rebuilding = caches.lines().find(|l| l.starts_with("l2_rebuild_log_blks "));
    assert_eq!(of_rebuilding.and_then(|l| l.split_whitespace().last()), Some("0"), "{caches}");
    world.stop();
    daemon.wait().expect("the daemon");
    zilla_e2e::zdb_clean(&world.disks(), "tank");
}

/// Where OpenZFS's scripts look for statistics.
const OPENZFS: &str = "/proc/spl/kstat/zfs";

/// OpenZFS's own `arc_summary` and `arcstat` (Debian: zfsutils-linux) read ours as they do theirs.
#[test]
fn openzfs_s_scripts_read_them() {
    if !can(&[Need::Fuse, Need::Zdb, Need::Python]) {
        return;
    }
    let world = World::new();
    let mut daemon = serve(&world);
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let file = pool.root().join("file");
    put(&file, &vec![7; 4 << 20]);
    pool.export();
    pool.import();
    assert_eq!(fs::read(&file).expect("file").len(), 4 << 20);
    let kstat = world.path().join("kstat");
    let run = |script: &str, args: &[&str]| {
        let text = fs::read_to_string(Path::new("/usr/sbin").join(script)).expect(script);
        assert!(text.contains(OPENZFS), "{script} looks elsewhere");
        let ours = world.path().join(script);
        fs::write(&ours, text.replace(OPENZFS, kstat.to_str().expect("a name"))).expect("write");
        let out = std::process::Command::new("python3").arg(&ours).args(args).output().expect("python3");
        let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && wrong.is_empty(), "{script} {args:?}: {said}{wrong}");
        said.into_owned()
    };
    let all = ["arc", "archits", "dmu", "l2arc", "zil"].map(|section| run("arc_summary", &["-s", section]));
    assert!(all[0].contains("Total memory size:") && all[1].contains("Total I/O hits:"), "{all:?}");
    assert!(run("arc_summary", &["-g"]).contains("ARC"));
    let misses = all[1].lines().find(|l| l.contains("Total misses:")).expect("misses");
    assert!(!misses.ends_with(" 0"), "{misses}");
    // (Its first line tells what was added since just before.)
    let fields = run("arcstat", &["-p", "-f", "size,free,c,hdrsz%,miss,mfusz,zissued"]);
    let numbers: Vec<f64> =
        fields.lines().nth(1).expect("a line").split_whitespace().map(|n| n.parse().expect(n)).collect();
    assert!(numbers.len() == 7 && numbers[..4].iter().all(|n| *n > 0.0), "{fields}");
    run("arcstat", &["-a"]);
    // Ours say the same, in the same columns.
    let headings =
        |text: String| text.lines().next().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
    for args in [&[][..], &["-x"], &["-z"]] {
        let own = world.run("zilla", &[&["arcstat"][..], args].concat()).ok();
        assert_eq!(headings(own), headings(run("arcstat", args)), "{args:?}");
    }
    let known = run_fields(&run("arcstat", &["-a", "-p"]));
    let own = run_fields(&world.run("zilla", &["arcstat", "-a", "-p"]).ok());
    let lacking: Vec<&String> = known.iter().filter(|name| !own.contains(name)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    // Lines of the report that are OpenZFS's, but for the figures.
    let labels = |text: &str| -> Vec<String> {
        let label = |l: &str| l.trim().split_once(':').map(|(label, _)| label.to_owned());
        text.lines().filter_map(label).collect()
    };
    for section in ["arc", "archits", "zil"] {
        let theirs = labels(&run("arc_summary", &["-s", section]));
        let own = labels(&world.run("zilla", &["arcsummary", "-s", section]).ok());
        // (Their first lines tell the time and the version.)
        let lacking: Vec<_> = theirs.iter().filter(|l| l.contains(' ') && !own.contains(l)).collect();
        assert!(lacking.iter().all(|l| l.contains("Report")), "{section}: {lacking:?}");
    }
    pool.export();
    world.stop();
    daemon.wait().expect("the daemon");
    zilla_e2e::zdb_clean(&world.disks(), "tank");
}

fn run_fields(text: &str) -> Vec<String> {
    text.lines().next().unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn as_much_is_read_ahead_as_the_property_says() {
    const SIZE: usize = 24 << 20;
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let mut daemon = serve(&world);
    let options = ["-O", "recordsize=4K", "-O", "compression=off"];
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &options);
    let file = pool.root().join("file");
    put(&file, &vec![0x5a; SIZE]);
    let stats = world.path().join("kstat/zfetchstats");
    let now = || {
        // They are told a moment later.
        let (mut last, begun) = (None, Instant::now());
        while begun.elapsed() < Duration::from_secs(60) {
            let seen = (counter(&stats, "misses") + counter(&stats, "hits"), counter(&stats, "io_issued"));
            if last == Some(seen) && counter(&stats, "io_active") == 0 {
                return seen;
            }
            last = Some(seen);
            std::thread::sleep(Duration::from_millis(1500));
        }
        panic!("the counters do not come to rest");
    };
    let mut issued = Vec::new();
    for value in ["none", "metadata", "all"] {
        world.zfs(&format!("set prefetch={value} tank")).ok();
        assert_eq!(world.zfs("get -H -o value prefetch tank").ok().trim(), value);
        pool.export();
        pool.import();
        let before = now();
        let mut data = Vec::new();
        fs::File::open(&file).expect("open").read_to_end(&mut data).expect("read");
        assert!(data.len() == SIZE && data.iter().all(|b| *b == 0x5a), "{value}");
        if value != "none" {
            until("the reads", || counter(&stats, "misses") + counter(&stats, "hits") > before.0);
        }
        issued.push(now().1.saturating_sub(before.1));
    }
    // Counters begin anew with each import.
    let [none, metadata, all] = issued[..] else { panic!("{issued:?}") };
    assert_eq!(none, 0, "{issued:?}");
    // An indirect block leads to 1,024 records.
    assert!(metadata > 0 && metadata < 1000, "{issued:?}");
    assert!(all > 2000, "{issued:?}");
    pool.export();
    world.stop();
    daemon.wait().expect("the daemon");
    zilla_e2e::zdb_clean(&world.disks(), "tank");
}
