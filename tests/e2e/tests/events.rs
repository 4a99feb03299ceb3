//! `zpool events`: what is done to pools is told, filtered, followed, and forgotten when asked.

use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can};

const SIZE: u64 = 96 << 20;

fn classes(world: &World, words: &str) -> Vec<String> {
    let out = world.zpool(words).ok();
    out.lines().filter_map(|l| l.split('\t').nth(1)).map(str::to_owned).collect()
}

#[track_caller]
fn told(world: &World, words: &str, class: &str) {
    let all = classes(world, words);
    assert!(all.iter().any(|c| c == class), "{words}: no {class} in {all:?}");
}

#[test]
fn what_happens_is_told() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let other = Pool::create(&world, "other", Kind::Single, SIZE, &[]);
    assert!(world.zpool("events").ok().starts_with(&format!("{:<30} CLASS\n", "TIME")));
    for class in ["pool_create", "config_sync", "history_event"] {
        told(&world, "events -H tank", &format!("sysevent.fs.zfs.{class}"));
    }
    let long = world.zpool("events -H -v tank").ok();
    assert!(long.contains("        pool = \"tank\"\n") && long.contains("        version = 0x0\n"), "{long}");
    assert!(long.contains("history_command = \"zpool create"), "{long}");
    world.zpool("scrub -w tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.scrub_start");
    told(&world, "events -H", "sysevent.fs.zfs.scrub_finish");
    assert!(!classes(&world, "events -H other").iter().any(|c| c.contains("scrub")));
    let disk = pool.disks[1].display().to_string();
    world.zpool(&format!("offline -f tank {disk}")).ok();
    let begun = Instant::now();
    let faulted = "vdev_state = \"FAULTED\" (0x5)";
    while !world.zpool("events -v tank").ok().contains(faulted) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is said of the fault");
        std::thread::sleep(Duration::from_millis(200));
    }
    told(&world, "events -H tank", "resource.fs.zfs.statechange");
    world.zpool(&format!("clear tank {disk}")).ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.vdev_clear");
    other.export();
    told(&world, "events -H other", "sysevent.fs.zfs.pool_export");
    assert!(world.zpool("events -c -v").fails().contains("invalid options combined with -c"));
    assert!(world.zpool("events tank other").fails().contains("too many arguments"));
    let cleared = world.zpool("events -c").ok();
    assert!(cleared.starts_with("cleared ") && cleared.ends_with(" events\n"), "{cleared}");
    assert!(classes(&world, "events -H other").is_empty());
    pool.judge();
}

#[test]
fn a_command_is_run_for_an_event() {
    if !can(&[Need::Fuse]) {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let dir = world.state().join("zed.d");
    std::fs::create_dir(&dir).expect("folder");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("mode");
    let (script, out) = (dir.join("scrub_finish-note"), world.path().join("noted"));
    let text = format!("#!/bin/sh\necho \"$ZEVENT_SUBCLASS $ZEVENT_POOL\" >> {}\n", out.display());
    std::fs::write(&script, text).expect("script");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("mode");
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    pool.scrub();
    let begun = Instant::now();
    while std::fs::read_to_string(&out).unwrap_or_default() != "scrub_finish tank\n" {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", std::fs::read_to_string(&out));
        std::thread::sleep(Duration::from_millis(50));
    }
}
