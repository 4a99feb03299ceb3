//! Disks that leave, return, are attached, detached and replaced by the commands; and OpenZFS agrees each time.

use std::fs;
use std::path::PathBuf;
use zilla_e2e::{Kind, Need, Pool, World, can};

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
    told(&world.zpool(&format!("attach -s tank {old} {}", new[0])).fails(), "not supported");
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
    told(&world.zpool(&options).fails(), "new device has a different optimal sector size");
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
    told(&world.zpool("resilver tank").fails(), "requires the resilver_defer feature");
    told(&world.zpool("history tank").ok(), "zpool replace -w tank");
    read(&pool, "f", 3);
    pool.judge();
}
