//! OpenZFS's kernel module, in a virtual machine, takes the pools zilla makes: imports, scrubs,
//! mounts, compares every file, writes; and zilla imports them again with what it wrote.
//!
//! Slow (the machine is emulated), so in `make judges` only. `ZILLA_ORACLE` names the folder of the
//! judge, `ZILLA_ORACLE_VM` the machine it has built.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_e2e::manifest::{scan, write};
use zilla_e2e::{Kind, Need, Pool, Random, World, can, tree};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: make judges")))
}

/// The judge's own job over the pool's images; what it says goes to our output. It takes minutes.
fn accept(dir: &Path, pool: &Pool, expectation: &Path, flags: &[&str]) {
    let judge = folder("ZILLA_ORACLE");
    let mut command = Command::new(judge.join("oracle"));
    command
        .arg("run")
        .arg(folder("ZILLA_ORACLE_VM"))
        .args(["--timeout", "3000", "--script"])
        .arg(judge.join("jobs/accept.sh"));
    for disk in &pool.disks {
        command.arg("--image").arg(disk);
    }
    command.args(flags).arg("--add").arg(expectation).arg("--out").arg(dir.join("out"));
    let status = command.status().expect("oracle");
    assert!(status.success(), "OpenZFS does not take the pool: {status}");
}

/// Fills a pool, has OpenZFS take it and write to it, imports it again, and has `check` look at
/// what was ours.
fn round(kind: Kind, size: u64, options: &[&str], fill: fn(&Pool), check: fn(&Pool)) {
    assert!(can(&[Need::Fuse, Need::Root]), "needs FUSE and root");
    let world = World::new();
    let pool = Pool::create(&world, "tank", kind, size, options);
    fill(&pool);
    let tar = expectation(&pool);
    pool.judge();
    world.stop();
    accept(world.path(), &pool, &tar, &[]);

    // OpenZFS was the last to use it, on another host.
    world.zpool(&format!("import -f -d {} tank", world.disks().display())).ok();
    check(&pool);
    assert!(pool.root().join(".oracle/text").exists(), "what OpenZFS wrote is not here");
    pool.scrub();
    pool.judge();
}

/// What OpenZFS has to find: the lists of files of all file systems, packed as the judge wants
/// them.
fn expectation(pool: &Pool) -> PathBuf {
    let world = pool.world;
    let lists = world.path().join("expect/manifest");
    std::fs::create_dir_all(&lists).expect("folder");
    for name in world.zfs("list -H -o name").ok().lines() {
        let place = world.mnt().join(name);
        // One that others are mounted in cannot be seen whole.
        if world.mounts().iter().any(|m| *m != place && m.starts_with(&place)) {
            continue;
        }
        std::fs::write(lists.join(format!("{}.jsonl", name.replace('/', "%2f"))), write(&scan(&place)))
            .expect("manifest");
    }
    let tar = world.path().join("expect.tar");
    let expect = world.path().join("expect");
    tree::host(
        "tar",
        &["-cf".as_ref(), tar.as_os_str(), "-C".as_ref(), expect.as_os_str(), "manifest".as_ref()],
    );
    tar
}

fn source(pool: &Pool) -> PathBuf {
    pool.world.path().join("source")
}

fn a_tree(pool: &Pool) {
    tree::sample(&source(pool), 11);
    tree::copy(&source(pool), &pool.root().join("copy"));
}

fn the_tree(pool: &Pool) {
    tree::same(&source(pool), &pool.root().join("copy"));
}

macro_rules! kinds {
    ($($name:ident $kind:ident)*) => {
        $(#[test]
        #[ignore = "slow, and needs OpenZFS's virtual machine: make judges"]
        fn $name() {
            round(Kind::$kind, 256 << 20, &[], a_tree, the_tree);
        })*
    };
}

kinds! {
    single Single
    mirror Mirror
    raidz1 Raidz1
    raidz2 Raidz2
    raidz3 Raidz3
    mixed Mixed
}

/// Each is a file system of its own.
fn properties() -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |property: &str, values: &[&str]| {
        all.extend(values.iter().map(|value| format!("{property}={value}")));
    };
    add("compression", &["off", "on", "lz4", "lzjb", "zle", "gzip", "zstd", "zstd-fast"]);
    add("checksum", &["off", "on", "fletcher2", "fletcher4", "sha256", "sha512", "skein", "edonr", "blake3"]);
    add("recordsize", &["512", "4K", "128K", "1M", "16M"]);
    all.extend((1..=9).map(|level| format!("compression=gzip-{level}")));
    all.extend((1..=19).map(|level| format!("compression=zstd-{level}")));
    let fast = (1..=10).chain((20..=100).step_by(10)).chain([500, 1000]);
    all.extend(fast.map(|level| format!("compression=zstd-fast-{level}")));
    all
}

fn folder_of(pool: &Pool, property: &str) -> PathBuf {
    pool.root().join(property.replace('=', "-"))
}

/// Three records of text and one that does not shrink, with an end that fills no record.
fn files(seed: u64) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = Random::new(seed);
    vec![
        ("text", random.text(400_000)),
        ("random", random.bytes(150_001)),
        ("zeros", vec![0; 300_000]),
        ("small", random.text(90)),
    ]
}

#[test]
#[ignore = "slow, and needs OpenZFS's virtual machine: make judges"]
fn every_compression_checksum_and_record_size() {
    let fill = |pool: &Pool| {
        for (seed, property) in properties().iter().enumerate() {
            let folder = folder_of(pool, property);
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            pool.world.zfs(&format!("create -o {property} tank/{name}")).ok();
            for (name, bytes) in files(seed as u64) {
                std::fs::write(folder.join(name), bytes).expect("write");
            }
        }
    };
    let check = |pool: &Pool| {
        for (seed, property) in properties().iter().enumerate() {
            for (name, bytes) in files(seed as u64) {
                let found = std::fs::read(folder_of(pool, property).join(name)).expect("read");
                assert!(found == bytes, "{property}: {name} differs");
            }
        }
    };
    round(Kind::Mirror, 512 << 20, &[], fill, check);
}

const NAMES: usize = 100_000;

fn name(i: usize) -> String {
    format!("a name that is not too short, number {i}")
}

#[test]
#[ignore = "slow, and needs OpenZFS's virtual machine: make judges"]
fn a_hundred_thousand_names() {
    let fill = |pool: &Pool| {
        std::fs::create_dir(pool.root().join("many")).expect("folder");
        for i in 0..NAMES {
            std::fs::write(pool.root().join("many").join(name(i)), "").expect("create");
        }
    };
    let check = |pool: &Pool| {
        let list = std::fs::read_dir(pool.root().join("many")).expect("list");
        let names: BTreeSet<_> =
            list.map(|e| e.expect("entry").file_name().to_string_lossy().into_owned()).collect();
        assert!(names == (0..NAMES).map(name).collect(), "the names differ");
    };
    round(Kind::Single, 512 << 20, &[], fill, check);
}

/// Our daemon is killed with a log of all kinds of changes that no txg has; OpenZFS replays it.
#[test]
#[ignore = "slow, and needs OpenZFS's virtual machine: make judges"]
fn a_log_that_nobody_replayed() {
    assert!(can(&[Need::Fuse, Need::Root]), "needs FUSE and root");
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 256 << 20, &["-O", "acltype=posix"]);
    a_tree(&pool);
    pool.sync();
    // A log has to be there already: the header that leads to it needs a txg.
    let first = std::fs::File::create(pool.root().join("first")).expect("create");
    first.sync_all().expect("fsync");
    // From here on no txg reaches the disks.
    world.zpool("freeze tank").ok();
    let copy = pool.root().join("copy");
    let at = |name: &str| copy.join(name);
    tree::sample(&pool.root().join("logged"), 12);
    std::fs::remove_file(at("text112")).expect("remove");
    std::fs::remove_dir_all(at("sub/a/b/c")).expect("rmdir");
    std::fs::rename(at("text511"), at("sub/moved")).expect("rename");
    std::fs::rename(at("text512"), at("text513")).expect("rename over another");
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, at("text4095"), rustix::fs::CWD, at("text4096"), flags)
        .expect("exchange");
    std::fs::hard_link(at("random113"), at("sub/linked")).expect("link");
    let file = std::fs::File::options().write(true).open(at("text700000")).expect("open");
    std::os::unix::fs::FileExt::write_all_at(&file, b"overwritten", 300_000).expect("write");
    file.set_len(500_001).expect("truncate");
    let big = Random::new(3).bytes(1 << 20);
    std::os::unix::fs::FileExt::write_all_at(&file, &big, 600_000).expect("write");
    tree::host("chown", &["55:66".as_ref(), at("empty").as_os_str()]);
    tree::host("chmod", &["4711".as_ref(), at("zeros").as_os_str()]);
    tree::host("touch", &["-d".as_ref(), "2020-02-02 UTC".as_ref(), at("text1").as_os_str()]);
    tree::host("setfacl", &["-m".as_ref(), "u:77:rw".as_ref(), at("random40000").as_os_str()]);
    tree::host(
        "setfattr",
        &["-n".as_ref(), "user.late".as_ref(), "-v".as_ref(), "yes".as_ref(), at("hole").as_os_str()],
    );
    tree::host("mknod", &[at("device").as_os_str(), "c".as_ref(), "5".as_ref(), "6".as_ref()]);
    // In a frozen pool the end of a txg puts everything into the log. (Linux would not tell us of a
    // `sync`.)
    world.zpool("sync tank").ok();
    let tar = expectation(&pool);
    world.kill();
    // Times of files that a replay writes are those of the replay.
    accept(world.path(), &pool, &tar, &["--arg=--no-times"]);
    for mount in world.mounts() {
        tree::host("umount", &["-l".as_ref(), mount.as_os_str()]);
    }
    // The daemon's cache file names a pool that has been elsewhere since.
    pool.again();
    assert!(pool.root().join(".oracle/text").exists(), "what OpenZFS wrote is not here");
    pool.scrub();
    pool.judge();
}
