//! `multihost`: two daemons with numbers of their own at one disk, as two hosts at a shared one.
//! The second sees the first's image through a loop device, which no lock of the first concerns.

use rustix::process::{Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use zilla_e2e::{Need, World, can};

/// A loop device, taken away again.
struct Loop(String);

impl Loop {
    fn on(image: &Path) -> Loop {
        let made = Command::new("losetup").args(["-f", "--show"]).arg(image).output().expect("losetup");
        assert!(made.status.success(), "{made:?}");
        Loop(String::from_utf8(made.stdout).expect("a path").trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A host with this number, or without any: a daemon that a command starts has it too.
fn host(id: &str) -> World {
    let world = World::new().with("ZILLA_HOSTID", id);
    let (kstats, parameters) = (world.path().join("kstat"), world.path().join("parameters"));
    let world = world.with("ZILLA_KSTATS", kstats).with("ZILLA_PARAMETERS", parameters);
    world.zpool("list").ok();
    world
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn zdb(args: &[&str], image: &Path) -> String {
    let done = zilla_testkit::zdb().expect("OpenZFS's zdb").args(args).arg(image).output().expect("zdb");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn two_hosts_at_one_disk() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let a = host("a");
    let image: PathBuf = a.images("d", 1, 256 << 20).remove(0);
    let shown = image.display();
    a.zpool(&format!("create -O mountpoint=none -o multihost=on tank {shown}")).ok();
    assert_eq!(a.zpool("get -H -o value multihost tank").ok().trim(), "on");
    // Another daemon of this machine, whatever it calls itself, finds the disk locked.
    let again = host("a");
    let said = again.zpool(&format!("import -f -d {shown} tank")).fails();
    assert!(said.contains("in use"), "{said}");
    drop(again);

    let looped = Loop::on(&image);
    let device = looped.0.clone();
    let b = host("b");
    let listed = b.zpool(&format!("import -d {device}")).ok();
    assert!(listed.contains("state: UNAVAIL"), "{listed}");
    assert!(listed.contains("status: The pool is currently imported by another system."), "{listed}");
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(listed.contains(&format!("The pool must be exported from {name} (hostid=a)")), "{listed}");
    let said = b.zpool(&format!("import -d {device} tank")).fails();
    let wanted = format!(
        "cannot import 'tank': pool is imported on {name} (hostid: 0xa)\nExport the pool on the other system, then run \
         'zpool import'."
    );
    assert_eq!(said.trim(), wanted);
    let said = b.zpool(&format!("import -f -d {device} tank")).fails();
    let wanted = format!(
        "cannot import 'tank': pool is imported on host '{name}' (hostid=a).\nExport the pool on the other system, then \
         run 'zpool import'."
    );
    assert_eq!(said.trim(), wanted);

    // What is in the ring.
    std::fs::write(a.path().join("parameters/zfs_multihost_history"), "100\n").expect("tunable");
    until("no heartbeats are told of", || {
        let text = std::fs::read_to_string(a.path().join("kstat/tank/multihost")).unwrap_or_default();
        text.lines().count() > 2 && text.contains("d1.img")
    });
    if can(&[Need::Zdb]) {
        let ours = a.run("zdb", &["-luuuu", &shown.to_string()]).ok();
        let theirs = zdb(&["-luuuu"], &image);
        for line in ["mmp_magic = 00000000a11cea11", "mmp_fail = 10", "mmp_write = 1000", "mmp_valid = 7"] {
            assert!(ours.contains(line) && theirs.contains(line), "{line}\n{ours}");
        }
        let beats =
            |text: &str| text.lines().filter(|l| l.contains("mmp_seq = ") && !l.contains("= 0")).count();
        assert!(beats(&theirs) > 0, "{theirs}");
    }

    // It crashes, and has its own pool back at once.
    a.kill();
    let begun = Instant::now();
    until("the pool is not back", || a.zpool("list -H -o health tank").stdout.trim() == "ONLINE");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());

    // It is stopped, long enough for the other.
    let pid = a.pid().expect("a daemon");
    kill_process(pid, Signal::STOP).expect("stop");
    let begun = Instant::now();
    b.zpool(&format!("import -f -N -d {device} tank")).ok();
    assert!(begun.elapsed() >= Duration::from_secs(20), "{:?}", begun.elapsed());
    b.zfs("create tank/theirs").ok();
    b.zpool("sync tank").ok();
    kill_process(pid, Signal::CONT).expect("go on");
    until("it does not notice", || a.zpool("list -H -o health tank").stdout.trim() == "SUSPENDED");
    let status = a.zpool("status tank").ok();
    assert!(status.contains("because multihost writes failed or were delayed"), "{status}");
    let said = a.zpool("clear tank").fails();
    assert!(said.contains("pool is imported on a different host"), "{said}");
    a.zpool("export -f tank");
    b.zfs("create tank/theirs/more").ok();
    b.zpool("export tank").ok();
    drop(b);
    drop(looped);
    zilla_testkit::zdb_clean(image.parent().expect("a folder"), "tank");
    // Back, the short way.
    let begun = Instant::now();
    a.zpool(&format!("import -N -d {shown} tank")).ok();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let names = a.zfs("list -H -o name").ok();
    assert!(names.contains("tank/theirs/more"), "{names}");
    a.zpool("set multihost=off tank").ok();
    a.zpool("export tank").ok();
}

#[test]
fn a_host_without_a_number_has_no_such_pool() {
    let world = host("0");
    let image = world.images("d", 1, 128 << 20).remove(0);
    let said = world.zpool(&format!("create -o multihost=on tank {}", image.display())).fails();
    assert_eq!(said.trim(), "cannot create 'tank': requires a non-zero system hostid");
    world.zpool(&format!("create -O mountpoint=none tank {}", image.display())).ok();
    let said = world.zpool("set multihost=on tank").fails();
    assert_eq!(said.trim(), "cannot set property for 'tank': requires a non-zero system hostid");
    world.zpool("export tank").ok();
    let other = host("7");
    let import = format!("import -d {} tank", image.display());
    other.zpool(&import).ok();
    // As if it had gone down.
    other.zpool("export -F tank").ok();
    let third = host("8");
    let said = third.zpool(&import).fails();
    assert!(said.contains("was previously in use from another system"), "{said}");
    drop(third);
    other.zpool(&import).ok();
    other.zpool("set multihost=on tank").ok();
    other.zpool("export tank").ok();
    let listed = world.zpool(&format!("import -d {}", image.display())).ok();
    assert!(listed.contains("The pool has the multihost property on."), "{listed}");
    let said = world.zpool(&format!("import -d {} tank", image.display())).fails();
    assert!(
        said.contains("pool has the multihost property on and the\nsystem's hostid is not set."),
        "{said}"
    );
}

#[test]
fn an_import_that_takes_long_keeps_nobody_waiting() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let host = host("a");
    let images = host.images("d", 3, 128 << 20);
    let path = |i: usize| images[i].display().to_string();
    // Whoever claims such a pool waits for twice twice the interval.
    std::fs::write(host.path().join("parameters/zfs_multihost_interval"), "5000\n").expect("tunable");
    host.zpool(&format!("create -O mountpoint=none -o multihost=on tank {}", path(0))).ok();
    host.zpool("sync tank").ok();
    host.zpool("export tank").ok();
    let begun = Instant::now();
    let import = host.command("zpool").args(["import", "-d", &path(0), "tank"]).spawn();
    let mut import = import.expect("zpool import");
    std::thread::sleep(Duration::from_secs(5));
    host.zpool(&format!("create -O mountpoint=none other {}", path(1))).ok();
    host.zpool("set comment=here other").ok();
    // Its name and the pool itself are spoken for.
    let said = host.zpool(&format!("create -O mountpoint=none tank {}", path(2))).fails();
    assert!(said.contains("exists"), "{said}");
    let said = host.zpool(&format!("import -d {} tank", path(0))).fails();
    assert!(said.contains("is being imported"), "{said}");
    host.zpool("destroy other").ok();
    let waited = begun.elapsed();
    assert!(import.try_wait().expect("waits").is_none(), "the import was over after {waited:?} already");
    assert!(import.wait().expect("waits").success());
    assert!(begun.elapsed() >= Duration::from_secs(20), "{:?}", begun.elapsed());
}
