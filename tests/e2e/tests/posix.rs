//! Other people's judgement of a mount: pjdfstest (POSIX semantics, as root) and fsx (random
//! operations with verification).
//!
//! Both are programs from crates.io and take long, so they run in `make judges` only.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use zilla_e2e::{Kind, Need, Pool, World, can, world};

#[test]
#[ignore = "long, and needs pjdfstest: make judges"]
fn pjdfstest() {
    assert!(can(&[Need::Fuse, Need::Root]), "needs FUSE and root");
    let world = World::new();
    let pool =
        Pool::create(&world, "tank", Kind::Single, 1 << 30, &["-O", "acltype=posix", "-O", "atime=on"]);
    // Remounts without a helper, which may be another ZFS's. Linux ends the use of a FUSE file
    // behind its close, so a removed one keeps the mount busy for a moment.
    let tools = world.path().join("tools");
    fs::create_dir(&tools).expect("folder");
    let again = "#!/bin/sh\nfor i in $(seq 10); do /bin/mount -i \"$@\" && exit; sleep 1; done\nexit 1\n";
    fs::write(tools.join("mount"), again).expect("script");
    fs::set_permissions(tools.join("mount"), fs::Permissions::from_mode(0o755)).expect("mode");
    let other = tempfile::tempdir_in("/dev/shm").expect("another file system");
    let run = |remount: bool, pattern: &[&str]| {
        // Users that every Debian has, and what a file system on Linux may have.
        let text = format!(
            "[features]\nsecondary_fs = {:?}\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\n\
             utimensat = {{}}\n[settings]\nnaptime = 0.001\nallow_remount = {remount}\n[dummy_auth]\n\
             entries = [[\"nobody\", \"nogroup\"], [\"games\", \"games\"], [\"bin\", \"bin\"]]\n",
            other.path()
        );
        let configuration = world.path().join("pjdfstest.toml");
        fs::write(&configuration, text).expect("configuration");
        let mut command = Command::new("pjdfstest");
        command.env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default()));
        command.arg("-c").arg(&configuration).arg("-p").arg(pool.root()).args(pattern);
        let done = world::finish(command);
        println!("{done}");
        let ended = |end: &str| -> Vec<String> {
            let lines = done.stdout.lines().filter(|l| l.trim_end().ends_with(end));
            lines.filter_map(|l| l.split_whitespace().next().map(str::to_owned)).collect()
        };
        assert!(ended("FAILED").is_empty(), "{done}");
        (ended("ok").len(), ended("skipped"))
    };
    // A file that one of its own tests keeps open stands in the way of remounts, so those that take
    // one run by themselves.
    let (passed, mut skipped) = run(false, &[]);
    skipped.retain(|name| !name.contains("::erofs_"));
    // Linux says of no FUSE file system how many links a file may have.
    assert_eq!(skipped, ["link::link_count_max"]);
    let (remounted, skipped) = run(true, &["erofs"]);
    assert!(passed >= 384 && remounted >= 13 && skipped.is_empty(), "{passed}, {remounted}, {skipped:?}");
    pool.judge();
}

#[test]
#[ignore = "long, and needs fsx: make judges"]
fn fsx() {
    assert!(can(&[Need::Fuse]), "needs FUSE");
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 1 << 30, &[]);
    let operations = std::env::var("ZILLA_FSX").unwrap_or_else(|_| "200000".to_owned());
    let file = pool.root().join("fsx");
    fs::write(&file, "").expect("file");
    // In parts, so that no part takes longer than a command may.
    let parts = 20;
    let each = operations.parse::<u64>().expect("a number").div_ceil(parts).to_string();
    for seed in 1..=parts {
        let mut command = Command::new("fsx");
        command.args(["-S", &seed.to_string(), "-N", &each]).arg(OsStr::new(&file));
        world::finish(command).ok();
    }
    pool.scrub();
    pool.judge();
}
