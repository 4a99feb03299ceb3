//! OpenZFS's kernel module, in a virtual machine, takes the pools zilla makes: imports, scrubs, mounts, compares every file, writes;
//! and zilla imports them again with what it wrote.
//!
//! Slow (the machine is emulated), so in `make judges` only. `ZILLA_ORACLE` names the folder of the judge, `ZILLA_ORACLE_VM` the machine it
//! has built.

use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_e2e::manifest::{scan, write};
use zilla_e2e::{Kind, Need, Pool, World, can, tree};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: make judges")))
}

/// The judge's own job over the pool's images; what it says goes to our output. It takes minutes.
fn accept(dir: &Path, pool: &Pool, expectation: &Path) {
    let judge = folder("ZILLA_ORACLE");
    let mut command = Command::new(judge.join("oracle"));
    command.arg("run").arg(folder("ZILLA_ORACLE_VM")).arg("--script").arg(judge.join("jobs/accept.sh"));
    for disk in &pool.disks {
        command.arg("--image").arg(disk);
    }
    command.arg("--add").arg(expectation).arg("--out").arg(dir.join("out"));
    let status = command.status().expect("oracle");
    assert!(status.success(), "OpenZFS does not take the pool: {status}");
}

fn round(kind: Kind, options: &[&str]) {
    assert!(can(&[Need::Fuse, Need::Root]), "needs FUSE and root");
    let world = World::new();
    let source = world.path().join("source");
    tree::sample(&source, 11);
    let pool = Pool::create(&world, "tank", kind, 256 << 20, options);
    tree::copy(&source, &pool.root().join("copy"));
    let list = world.path().join("expect/manifest");
    std::fs::create_dir_all(&list).expect("folder");
    std::fs::write(list.join("tank.jsonl"), write(&scan(&pool.root()))).expect("manifest");
    pool.judge();
    world.stop();

    let tar = world.path().join("expect.tar");
    let expect = world.path().join("expect");
    tree::host(
        "tar",
        &["-cf".as_ref(), tar.as_os_str(), "-C".as_ref(), expect.as_os_str(), "manifest".as_ref()],
    );
    accept(world.path(), &pool, &tar);

    // OpenZFS was the last to use it, on another host.
    world.zpool(&format!("import -f -d {} tank", world.disks().display())).ok();
    tree::same(&source, &pool.root().join("copy"));
    assert!(pool.root().join(".oracle/text").exists(), "what OpenZFS wrote is not here");
    pool.scrub();
    pool.judge();
}

macro_rules! kinds {
    ($($name:ident $kind:ident $options:expr;)*) => {
        $(#[test]
        #[ignore = "slow, and needs OpenZFS's virtual machine: make judges"]
        fn $name() {
            round(Kind::$kind, &$options);
        })*
    };
}

kinds! {
    single Single [];
    mirror Mirror [];
    raidz1 Raidz1 [];
    raidz2 Raidz2 [];
    raidz3 Raidz3 [];
    mixed Mixed [];
    compression_zstd Mirror ["-O", "compression=zstd"];
    compression_gzip Mirror ["-O", "compression=gzip"];
    compression_lzjb Mirror ["-O", "compression=lzjb"];
    compression_zle Mirror ["-O", "compression=zle"];
    checksum_sha512 Mirror ["-O", "checksum=sha512"];
    checksum_skein Mirror ["-O", "checksum=skein"];
    checksum_edonr Mirror ["-O", "checksum=edonr"];
    checksum_blake3 Mirror ["-O", "checksum=blake3"];
    record_512 Single ["-O", "recordsize=512"];
    record_16m Single ["-O", "recordsize=16M"];
}
