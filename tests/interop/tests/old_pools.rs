//! Pools of versions 1 to 15, from 2006 and after, one of them written on a big-endian machine: read, and not written to.
//!
//! They are OpenZFS's own fixtures, from Debian's package zfs-test; where that is not installed they are passed over.

use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_e2e::{Need, World, can};

const FIXTURES: &str = "/usr/share/zfs/zfs-tests/tests/functional";

/// Name of the pool, packed files, plain files in its root, and how many devices may be overwritten.
type Fixture = (&'static str, &'static str, &'static [&'static str], usize, usize);

const UPGRADE: &str = "cli_root/zpool_upgrade/blockfiles";

const POOLS: &[Fixture] = &[
    ("pool-v1mirror", UPGRADE, &["v1mirror1", "v1mirror2", "v1mirror3"], 301, 2),
    ("pool-v1raidz", UPGRADE, &["v1raidz1", "v1raidz2", "v1raidz3"], 301, 1),
    ("pool-v1stripe", UPGRADE, &["v1stripe1", "v1stripe2", "v1stripe3"], 301, 0),
    ("pool-v2raidz", UPGRADE, &["v2raidz1", "v2raidz2", "v2raidz3"], 301, 1),
    ("pool-v3raidz2", UPGRADE, &["v3raidz21", "v3raidz22", "v3raidz23"], 1, 2),
    ("v4-pool", UPGRADE, &["v4"], 1, 0),
    ("v5-pool", UPGRADE, &["v5"], 1, 0),
    ("v8-pool", UPGRADE, &["v8"], 1, 0),
    ("v10-pool", UPGRADE, &["v10"], 0, 0),
    ("v15-pool", UPGRADE, &["v15"], 0, 0),
];

fn unpack(packed: &Path, to: &Path) {
    let program = if packed.extension().is_some_and(|e| e == "bz2") { "bzcat" } else { "zcat" };
    let file = std::fs::File::create(to).expect("image");
    let status = Command::new(program).arg(packed).stdout(file).status().expect(program);
    assert!(status.success(), "{program} {}: {status}", packed.display());
}

fn look(world: &World, pool: &str, files: usize) {
    let disks = world.disks();
    let import = |options: &str| {
        let mnt = world.mnt();
        world.zpool(&format!("import -f {options} -d {} -R {} {pool}", disks.display(), mnt.display()))
    };
    let refused = import("").fails();
    assert!(refused.contains("readonly=on"), "{refused}");
    import("-o readonly=on").ok();
    let place = world.zfs(&format!("get -H -o value mountpoint {pool}")).ok();
    let mut found = 0;
    for entry in std::fs::read_dir(place.trim_end()).expect("list") {
        let entry = entry.expect("entry");
        if entry.file_type().expect("type").is_file() {
            let text = std::fs::read(entry.path()).expect("read");
            // In pools of hundreds of files, the numbered ones are all alike.
            let is_numbered = files > 100 && entry.file_name().to_string_lossy().starts_with("file.");
            assert!(!is_numbered || text == b"foo\n", "{} differs", entry.path().display());
            found += 1;
        }
    }
    assert_eq!(found, files, "{pool}");
    world.zpool(&format!("export {pool}")).ok();
}

#[test]
fn are_read() {
    if !can(&[Need::Fuse]) {
        return;
    }
    for &(pool, folder, names, files, spare) in POOLS {
        let folder = Path::new(FIXTURES).join(folder);
        if !folder.is_dir() {
            return eprintln!("OpenZFS's old pools are not on this machine");
        }
        let world = World::new();
        let images: Vec<PathBuf> = names
            .iter()
            .map(|name| {
                let image = world.disks().join(name);
                unpack(&folder.join(format!("zfs-pool-{name}.dat.bz2")), &image);
                image
            })
            .collect();
        look(&world, pool, files);
        // As much as there is redundancy for is overwritten, from the first label's end to the last labels.
        for image in images.iter().take(spare) {
            let size = std::fs::metadata(image).expect("image").len();
            let noise = vec![0xa5; (size - (2 << 20)) as usize];
            let file = std::fs::File::options().write(true).open(image).expect("image");
            std::os::unix::fs::FileExt::write_all_at(&file, &noise, 1 << 20).expect("write");
        }
        if spare > 0 {
            look(&world, pool, files);
        }
    }
}

#[test]
fn of_a_big_endian_machine_is_read() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let packed = Path::new(FIXTURES).join("history/sparc.migratedpool.DAT.Z");
    if !packed.is_file() {
        return eprintln!("OpenZFS's old pools are not on this machine");
    }
    let world = World::new();
    unpack(&packed, &world.disks().join("sparc"));
    world.zpool(&format!("import -f -o readonly=on -N -d {} history_pool", world.disks().display())).ok();
    let history = world.zpool("history history_pool").ok();
    assert!(history.contains("2006-10-27.09:13:48 zfs create history_pool/fs\n"), "{history}");
    world.zpool("export history_pool").ok();
}
