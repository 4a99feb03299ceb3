//! Pools on files of other pools, all served by one daemon: whoever waits for whom, nobody waits
//! for himself.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zilla_e2e::pool::{scrub, zdb_clean};
use zilla_e2e::{Kind, Need, Pool, Random, World, can};

/// A file that was synced: where, and the seed and size of its contents.
#[derive(Debug, Clone)]
struct Synced {
    path: PathBuf,
    seed: u64,
    size: usize,
}

type List = Arc<Mutex<Vec<Synced>>>;

fn image(path: &Path, size: u64) {
    fs::File::create(path).and_then(|f| f.set_len(size)).expect("image");
}

/// A pool on two files of a directory, mirrored.
fn inner(world: &World, name: &str, dir: &Path, size: u64) -> PathBuf {
    let disks = [1, 2].map(|i| dir.join(format!("{name}{i}.img")));
    disks.iter().for_each(|disk| image(disk, size));
    let root = world.mnt().join(name);
    let words = ["create", "-m", root.to_str().unwrap(), name, "mirror"];
    let words = words.into_iter().chain(disks.iter().map(|d| d.to_str().unwrap()));
    world.run("zpool", &words.collect::<Vec<_>>()).ok();
    root
}

/// Writes files, each stable before the next, until it is told to stop or cannot go on.
fn writer(root: &Path, tag: u64, stop: &Arc<AtomicBool>, list: &List) -> JoinHandle<()> {
    let (root, stop, list) = (root.to_owned(), stop.clone(), list.clone());
    std::thread::spawn(move || {
        let mut random = Random::new(tag);
        for i in 0..80 {
            let (seed, size) = (random.word(), random.below(300_000) as usize + 1);
            let path = root.join(format!("w{tag:x}-{i}"));
            let write = || -> std::io::Result<()> {
                let mut file = fs::File::create(&path)?;
                file.write_all(&Random::new(seed).bytes(size))?;
                file.sync_all()
            };
            if stop.load(Ordering::Relaxed) || write().is_err() {
                return;
            }
            list.lock().unwrap().push(Synced { path: path.clone(), seed, size });
        }
    })
}

/// Two writers in each place for a while.
fn work(roots: &[&Path], random: &mut Random, list: &List) -> (Arc<AtomicBool>, Vec<JoinHandle<()>>) {
    let stop = Arc::new(AtomicBool::new(false));
    let start = |root: &&Path| [0, 1].map(|_| writer(root, random.word() >> 16, &stop, list));
    let writers = roots.iter().flat_map(start).collect();
    (stop, writers)
}

fn check(list: &List, when: &str) {
    for file in list.lock().unwrap().iter() {
        let found = fs::read(&file.path).unwrap_or_else(|e| panic!("{when}: {file:?}: {e}"));
        assert!(found == Random::new(file.seed).bytes(file.size), "{when}: {file:?} is another");
    }
}

/// Whether no thread of a process runs or waits for anything any more, within the limit.
fn ends(pid: Pid, limit: Duration) -> bool {
    let (begin, tasks) = (Instant::now(), format!("/proc/{}/task", pid.as_raw_nonzero()));
    let dead =
        |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']));
    while begin.elapsed() < limit {
        let all = fs::read_dir(&tasks).into_iter().flatten().flatten();
        let mut left = all.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        if left.all(dead) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// One try: what was just closed holds nothing open.
fn at_once(world: &World, words: &[&str]) {
    let out = world.command("zpool").args(words).output().expect("zpool");
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_pool_on_files_of_another() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let (world, list, mut random) = (World::new(), List::default(), Random::from_env());
    let outer = Pool::create(&world, "outer", Kind::Mirror, 2 << 30, &[]);
    let inner_root = inner(&world, "inner", &outer.root(), 512 << 20);
    let third_root = inner(&world, "third", &inner_root, 128 << 20);
    // What lies there is looked at through the same mount.
    let dir = outer.root();
    let again = ["create", "-f", "again", dir.join("inner1.img").to_str().unwrap()].map(str::to_owned);
    assert!(world.run("zpool", &again).fails().contains("is part of active pool 'inner'"));
    let listed = world.zpool(&format!("import -d {}", dir.display()));
    assert!(listed.code == 0 && listed.stderr.contains("no pools available"), "{listed}");

    let (stop, writers) = work(&[&outer.root(), &inner_root, &third_root], &mut random, &list);
    std::thread::sleep(Duration::from_secs(3));
    // Meanwhile all that goes by path goes on.
    world.zfs("create inner/fs").ok();
    world.zfs("unmount inner/fs").ok();
    world.zpool("sync").ok();
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|w| w.join().unwrap());
    let synced = list.lock().unwrap().len();
    assert!(synced > 12, "{synced} files were synced in all");
    check(&list, "at once");
    for pool in ["third", "inner", "outer"] {
        scrub(&world, pool);
    }
    // What another pool lies on stays.
    assert!(world.zpool("export outer").fails().contains("busy"));

    // The daemon's end takes the inner ones down first, and its start brings them up last.
    world.stop();
    let listed = world.zpool("list -H -o name,health").ok();
    assert_eq!(listed, "inner\tONLINE\nouter\tONLINE\nthird\tONLINE\n", "{}", world.log());
    let log = world.log();
    assert!(!log.contains("ERROR") && !log.contains("SUSPENDED"), "{log}");
    check(&list, "after a restart");
    for pool in ["third", "inner", "outer"] {
        assert!(world.zpool(&format!("status {pool}")).ok().contains("No known data errors"));
    }

    at_once(&world, &["export", "third"]);
    zdb_clean(&inner_root, "third");
    at_once(&world, &["import", "-d", inner_root.to_str().unwrap(), "third"]);
    check(&list, "after an import");
    for pool in ["third", "inner"] {
        at_once(&world, &["export", pool]);
    }
    zdb_clean(&dir, "inner");
    at_once(&world, &["export", "outer"]);
    zdb_clean(&world.disks(), "outer");
}

#[test]
fn a_daemon_that_is_killed_ends_though_it_waits_for_itself() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let rounds: usize = std::env::var("ZILLA_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let (world, list, mut random) = (World::new(), List::default(), Random::from_env());
    let outer = Pool::create(&world, "outer", Kind::Single, 1 << 30, &[]);
    let inner_root = inner(&world, "inner", &outer.root(), 256 << 20);
    for round in 0..rounds {
        let (stop, writers) = work(&[&outer.root(), &inner_root], &mut random, &list);
        // Calls by path are under way too.
        let commands = {
            let (stop, dir) = (stop.clone(), outer.root());
            let mut import = world.command("zpool");
            import.args(["import", "-d"]).arg(&dir);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = import.output();
                }
            })
        };
        std::thread::sleep(Duration::from_millis(300 + random.below(1500)));
        let pid = world.pid().expect("a daemon to kill");
        // The kernel remembers them beyond the daemon's end.
        for disk in [1, 2] {
            fs::metadata(outer.root().join(format!("inner{disk}.img"))).expect("a disk of inner");
        }
        // Otherwise the command that looks for pools would start the next one at once.
        stop.store(true, Ordering::Relaxed);
        kill_process(pid, Signal::KILL).expect("kill");
        assert!(ends(pid, Duration::from_secs(10)), "round {round}: the daemon survives SIGKILL");
        writers.into_iter().for_each(|w| w.join().unwrap());
        commands.join().unwrap();
        let listed = world.zpool("list -H -o name,health").ok();
        assert_eq!(listed, "inner\tONLINE\nouter\tONLINE\n", "round {round}: {}", world.log());
        check(&list, &format!("round {round}"));
        // Room for the next round.
        for file in list.lock().unwrap().drain(..) {
            fs::remove_file(&file.path).expect("remove");
        }
    }
    scrub(&world, "inner");
    scrub(&world, "outer");
    world.zpool("export inner").ok();
    zdb_clean(&outer.root(), "inner");
    outer.judge();
}

/// A daemon that stands still, as long as this is there.
struct Still(Pid);

impl Still {
    fn stand(pid: Pid) -> Still {
        kill_process(pid, Signal::STOP).expect("stop");
        Still(pid)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).expect("go on");
    }
}

/// What a pool lies on may answer never: who ends the daemon while it starts does not wait for it.
#[test]
fn a_daemon_that_starts_ends_though_what_a_pool_lies_on_does_not_answer() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let (below, world) = (World::new(), World::new());
    let outer = Pool::create(&below, "outer", Kind::Single, 512 << 20, &[]);
    Pool::create(&world, "first", Kind::Single, 128 << 20, &[]);
    let root = inner(&world, "inner", &outer.root(), 128 << 20);
    fs::write(root.join("f"), "kept").expect("file");
    world.stop();
    let still = Still::stand(below.pid().expect("a daemon"));
    let opened = || world.log().matches("pool 'first' is open").count();
    let (mut child, begun) = (world.daemon(), Instant::now());
    while opened() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", world.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().expect("child").is_none(), "it waits for the other's files");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("end");
    let asked = Instant::now();
    let ended = loop {
        match child.try_wait().expect("child") {
            Some(status) => break status,
            None => assert!(asked.elapsed() < Duration::from_secs(20), "it does not end:\n{}", world.log()),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(ended.success(), "{ended}: {}", world.log());
    let log = world.log();
    assert!(log.contains("before all pools are open") && log.contains("all pools are closed"), "{log}");
    drop(still);
    // What was open by then is closed as ever, and nothing is forgotten.
    let listed = world.zpool("list -H -o name,health").ok();
    assert_eq!(listed, "first\tONLINE\ninner\tONLINE\n", "{}", world.log());
    assert_eq!(fs::read(root.join("f")).expect("file"), b"kept");
    world.zpool("export inner").ok();
    zdb_clean(&outer.root(), "inner");
    world.zpool("export first").ok();
    zdb_clean(&world.disks(), "first");
    outer.judge();
}

/// A mountpoint may lie in what never answers: that costs its own mount, and no other.
#[test]
fn a_mountpoint_that_does_not_answer_keeps_nobody_from_mounting() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let (below, world) = (World::new(), World::new());
    let outer = Pool::create(&below, "outer", Kind::Single, 256 << 20, &[]);
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let at = outer.root().join("in/it");
    world.zfs(&format!("create -o mountpoint={} tank/there", at.display())).ok();
    world.zfs("create tank/here").ok();
    for name in ["tank/there", "tank/here"] {
        world.zfs(&format!("unmount {name}")).ok();
    }
    let still = Still::stand(below.pid().expect("a daemon"));
    let begun = Instant::now();
    let failed = world.zfs("mount tank/there").fails();
    assert!(failed.contains("what its mountpoint lies in has not answered for 10 seconds"), "{failed}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    world.zfs("mount tank/here").ok();
    drop(still);
    world.zfs("mount tank/there").ok();
    fs::write(at.join("f"), "there").expect("file");
    world.zfs("unmount tank/there").ok();
    pool.judge();
    outer.judge();
}

/// What a loop device stands on is waited for as the file itself is.
#[test]
fn a_pool_on_a_loop_device_on_a_file_of_another() {
    if !can(&[Need::Fuse, Need::Root]) || !Path::new("/dev/loop-control").exists() {
        return;
    }
    let (world, list, mut random) = (World::new(), List::default(), Random::from_env());
    let outer = Pool::create(&world, "outer", Kind::Single, 512 << 20, &[]);
    let disk = outer.root().join("disk.img");
    image(&disk, 256 << 20);
    let made = Command::new("losetup").args(["-f", "--show"]).arg(&disk).output().expect("losetup");
    let name = String::from_utf8(made.stdout).expect("a name").trim().to_owned();
    if !made.status.success() {
        eprintln!("not run: no loop device: {}", String::from_utf8_lossy(&made.stderr));
        return;
    }
    let _detach = Detach(name.clone());
    let root = world.mnt().join("inner");
    world.run("zpool", &["create", "-m", root.to_str().unwrap(), "inner", &name]).ok();
    let (stop, writers) = work(&[&outer.root(), &root], &mut random, &list);
    std::thread::sleep(Duration::from_secs(2));
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|w| w.join().unwrap());
    check(&list, "at once");
    assert!(list.lock().unwrap().len() > 4);
    let (stop, writers) = work(&[&outer.root(), &root], &mut random, &list);
    std::thread::sleep(Duration::from_millis(700));
    let pid = world.pid().expect("a daemon to kill");
    stop.store(true, Ordering::Relaxed);
    kill_process(pid, Signal::KILL).expect("kill");
    assert!(ends(pid, Duration::from_secs(10)), "the daemon survives SIGKILL");
    writers.into_iter().for_each(|w| w.join().unwrap());
}

/// A loop device, given back.
struct Detach(String);

impl Drop for Detach {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}
