//! Pools of versions 1 to 15, from 2006 and after, one of them written on a big-endian machine:
//! read, written as they are, and upgraded.
//!
//! They are OpenZFS's own fixtures, from Debian's package zfs-test; where that is not installed
//! they are passed over.

use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_e2e::{Need, World, can, scrub, tree, zdb_clean_with};

const FIXTURES: &str = "/usr/share/zfs/zfs-tests/tests/functional";

/// Name of the pool, packed files, plain files in its root, and how many devices may be
/// overwritten.
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
        // As much as there is redundancy for is overwritten, from the first label's end to the last
        // labels.
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

/// OpenZFS's judgement of an exported pool; in the first versions it must go on past what it
/// asserts of later ones.
fn judge(world: &World, pool: &str, version: u64) {
    zdb_clean_with(&world.disks(), pool, if version <= 3 { &["-AAA"] } else { &[] });
}

/// Versions as they are, each written to, scrubbed, and then raised to feature flags and written to
/// again.
const WRITTEN: &[(&str, u64, &[&str])] = &[
    ("v1-pool", 1, &["v1"]),
    ("pool-v2raidz", 2, &["v2raidz1", "v2raidz2", "v2raidz3"]),
    ("pool-v3raidz2", 3, &["v3raidz21", "v3raidz22", "v3raidz23"]),
    ("v5-pool", 5, &["v5"]),
    ("v10-pool", 10, &["v10"]),
    ("v12-pool", 12, &["v12"]),
    ("v15-pool", 15, &["v15"]),
];

#[test]
fn are_written_as_they_are_and_upgraded() {
    if !can(&[Need::Fuse, Need::Zdb]) {
        return;
    }
    let folder = Path::new(FIXTURES).join(UPGRADE);
    if !folder.is_dir() {
        return eprintln!("OpenZFS's old pools are not on this machine");
    }
    for &(pool, version, names) in WRITTEN {
        let world = World::new();
        for name in names {
            unpack(&folder.join(format!("zfs-pool-{name}.dat.bz2")), &world.disks().join(name));
        }
        let (disks, mnt) = (world.disks(), world.mnt());
        let import =
            || world.zpool(&format!("import -f -d {} -R {} {pool}", disks.display(), mnt.display())).ok();
        let place = || {
            let place = world.zfs(&format!("get -H -o value mountpoint {pool}")).ok();
            PathBuf::from(place.trim_end())
        };
        let told = world.path().join("told");
        std::fs::create_dir(&told).expect("folder");
        tree::sample(&told, version);

        import();
        tree::copy(&told, &place().join("first"));
        world.zfs(&format!("snapshot {pool}@a")).ok();
        std::fs::remove_dir_all(place().join("first")).expect("remove");
        tree::copy(&told, &place().join("second"));
        world.zfs(&format!("snapshot {pool}@b")).ok();
        world.zfs(&format!("clone {pool}@a {pool}/c")).ok();
        tree::same(&told, &place().join("c/first"));
        tree::copy(&told, &place().join("c/third"));
        world.zfs(&format!("destroy {pool}@b")).ok();
        scrub(&world, pool);
        let said = world.zpool(&format!("get -H -o value version {pool}")).ok();
        assert_eq!(said.trim_end(), version.to_string());
        world.zpool(&format!("export {pool}")).ok();
        judge(&world, pool, version);

        import();
        tree::same(&told, &place().join("second"));
        tree::same(&told, &place().join("c/third"));
        world.zpool(&format!("upgrade {pool}")).ok();
        world.zfs(&format!("snapshot {pool}/c@d")).ok();
        std::fs::remove_dir_all(place().join("c/first")).expect("remove");
        world.zfs(&format!("promote {pool}/c")).ok();
        world.zfs(&format!("destroy {pool}/c@d")).ok();
        tree::copy(&told, &place().join("fourth"));
        scrub(&world, pool);
        world.zpool(&format!("export {pool}")).ok();
        judge(&world, pool, version);

        import();
        for folder in ["second", "fourth", "c/third"] {
            tree::same(&told, &place().join(folder));
        }
        world.zpool(&format!("destroy {pool}")).ok();
    }
}
