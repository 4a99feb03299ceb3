//! Other people's judgement of a mount: pjdfstest (POSIX semantics, as root) and fsx (random operations with verification).
//!
//! Both are programs from crates.io and take long, so they run in `make judges` only.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use zilla_e2e::{Kind, Need, Pool, World, can, world};

#[test]
#[ignore = "long, and needs pjdfstest: make judges"]
fn pjdfstest() {
    assert!(can(&[Need::Fuse, Need::Root]), "needs FUSE and root");
    let world = World::new();
    let pool =
        Pool::create(&world, "tank", Kind::Single, 1 << 30, &["-O", "acltype=posix", "-O", "atime=on"]);
    // Users that every Debian has, and what a file system on Linux may have.
    let configuration = world.path().join("pjdfstest.toml");
    let text = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\
        [settings]\nnaptime = 0.001\nallow_remount = false\n\
        [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"games\", \"games\"], [\"bin\", \"bin\"]]\n";
    fs::write(&configuration, text).expect("configuration");
    let mut command = Command::new("pjdfstest");
    command.arg("-c").arg(&configuration).arg("-p").arg(pool.root());
    let done = world::finish(command);
    println!("{done}");
    let count = |end: &str| done.stdout.lines().filter(|l| l.trim_end().ends_with(end)).count();
    let (passed, failed) = (count("ok"), count("FAILED"));
    println!("pjdfstest: {passed} passed, {failed} failed");
    assert!(passed > 300 && failed == 0, "{done}");
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
