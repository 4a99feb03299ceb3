//! `zpool events`: what is done to pools is told, filtered, followed, and forgotten when asked.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
    assert!(long.contains("history_internal_name = \"") && !long.contains("history_command"), "{long}");
    world.zpool("scrub -w tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.scrub_start");
    told(&world, "events -H", "sysevent.fs.zfs.scrub_finish");
    assert!(!classes(&world, "events -H other").iter().any(|c| c.contains("scrub")));
    let disk = pool.disks[1].display().to_string();
    // Each at once, however soon it is over.
    let states = || {
        let long = world.zpool("events -H -v tank").ok();
        long.lines().filter(|l| l.contains("vdev_laststate")).count()
    };
    let before = states();
    world.zpool(&format!("offline tank {disk}")).ok();
    world.zpool(&format!("online tank {disk}")).ok();
    assert!(states() >= before + 2, "{}", world.zpool("events -v tank").ok());
    assert!(world.zpool("events -v tank").ok().contains("vdev_state = \"OFFLINE\" (0x2)"));
    world.zpool("wait -t resilver tank").ok();
    world.zpool("trim -r 100K tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.trim_start");
    world.zpool("trim -s tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.trim_suspend");
    world.zpool("trim tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.trim_resume");
    world.zpool("trim -c tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.trim_cancel");
    world.zpool("trim -w tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.trim_finish");
    world.zpool("reguid tank").ok();
    told(&world, "events -H tank", "sysevent.fs.zfs.pool_reguid");
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
    // Of a pool at which nothing had failed it is only told that it was done, once.
    let before = classes(&world, "events -H other").len();
    world.zpool("clear other").ok();
    assert_eq!(classes(&world, "events -H other")[before..], ["sysevent.fs.zfs.config_sync"]);
    other.export();
    told(&world, "events -H other", "sysevent.fs.zfs.pool_export");
    assert!(world.zpool("events -c -v").fails().contains("invalid options combined with -c"));
    assert!(world.zpool("events tank other").fails().contains("too many arguments"));
    let cleared = world.zpool("events -c").ok();
    assert!(cleared.starts_with("cleared ") && cleared.ends_with(" events\n"), "{cleared}");
    assert!(classes(&world, "events -H other").is_empty());
    pool.judge();
}

/// The folder of programs for events, as it must be.
fn zed_d(world: &World) -> PathBuf {
    let dir = world.state().join("zed.d");
    std::fs::create_dir(&dir).expect("folder");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("mode");
    dir
}

fn program(path: &Path, text: &str) {
    std::fs::write(path, text).expect("script");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("mode");
}

#[test]
fn a_command_is_run_for_an_event() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let dir = zed_d(&world);
    let (script, out) = (dir.join("scrub_finish-note"), world.path().join("noted"));
    let text = format!("#!/bin/sh\necho \"$ZEVENT_SUBCLASS $ZEVENT_POOL\" >> {}\n", out.display());
    program(&script, &text);
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    pool.scrub();
    let begun = Instant::now();
    while std::fs::read_to_string(&out).unwrap_or_default() != "scrub_finish tank\n" {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", std::fs::read_to_string(&out));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn zed_runs_the_programs_of_a_folder() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (dir, out) = (world.path().join("zedlets"), world.path().join("noted"));
    std::fs::create_dir(&dir).expect("folder");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("mode");
    let text =
        format!("#!/bin/sh\necho \"$ZEVENT_SUBCLASS $ZEVENT_POOL $ZED_ZEDLET_DIR\" >> {}\n", out.display());
    program(&dir.join("scrub_finish-note"), &text);
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let (state, pid) = (world.path().join("zed.state"), world.path().join("zed.pid"));
    let zed = || {
        let mut command = world.command("zilla");
        command.args(["zed", "-F", "-d"]).arg(&dir).arg("-s").arg(&state).arg("-p").arg(&pid);
        command
    };
    let refused = zed().output().expect("zed");
    assert_eq!(refused.status.code(), Some(1), "anybody could write its programs");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).expect("mode");
    let line = format!("scrub_finish tank {}\n", dir.display());
    // Begun anew it goes on where it was.
    for times in 1..=2 {
        let mut child = zed().spawn().expect("zed");
        pool.scrub();
        let begun = Instant::now();
        let noted = || std::fs::read_to_string(&out).unwrap_or_default();
        while noted().len() < times * line.len() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{}", noted());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(noted(), line.repeat(times));
        let second = zed().output().expect("zed");
        assert!(String::from_utf8_lossy(&second.stderr).contains("another zed is running"));
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}

/// Without any program of the user's: `zed.rc` says where letters and web hooks go.
#[test]
fn a_letter_and_a_web_hook_are_sent_for_a_fault() {
    if !can(&[Need::Fuse]) {
        return;
    }
    use std::io::{Read, Write};
    let world = World::new();
    let dir = zed_d(&world);
    let (sendmail, out) = (world.path().join("sendmail"), world.path().join("letter"));
    program(&sendmail, &format!("#!/bin/sh\ncat > {}\n", out.display()));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let at = listener.local_addr().expect("address");
    let rc = format!(
        "ZED_EMAIL_ADDR=\"admin@example.org\"\nZED_EMAIL_PROG={}\nZED_WEBHOOK_URL=http://{at}/hook\n",
        sendmail.display()
    );
    std::fs::write(dir.join("zed.rc"), rc).expect("zed.rc");
    std::fs::set_permissions(dir.join("zed.rc"), PermissionsExt::from_mode(0o600)).expect("mode");
    let posted = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the hook");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("limit");
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        while !text.contains("vdev_state") {
            let n = stream.read(&mut bytes).expect("request");
            assert!(n > 0, "cut short: {text}");
            text.push_str(std::str::from_utf8(&bytes[..n]).expect("text"));
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("answer");
        text
    });
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let disk = pool.disks[0].display().to_string();
    world.zpool(&format!("offline -f tank {disk}")).ok();
    let text = posted.join().expect("post");
    assert!(text.starts_with("POST /hook HTTP/1.1\r\n") && text.contains("application/json"), "{text}");
    assert!(text.contains("\"class\":\"resource.fs.zfs.statechange\"") && text.contains("tank"), "{text}");
    let begun = Instant::now();
    let letter = loop {
        let letter = std::fs::read_to_string(&out).unwrap_or_default();
        if letter.contains("The event:") {
            break letter;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "no letter: {letter}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(letter.starts_with("To: admin@example.org\nSubject: zilla on "), "{letter}");
    assert!(letter.contains(&format!("pool tank: {disk} is FAULTED\n")), "{letter}");
}
