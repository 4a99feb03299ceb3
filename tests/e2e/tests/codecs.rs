//! Every compression, checksum and record size, written here, read after a new import, and checked
//! by OpenZFS.

use zilla_e2e::{Kind, Need, Pool, World, can, tree};

fn each(kind: Kind, property: &str, values: &[&str]) {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let world = World::new();
    let source = world.path().join("source");
    tree::sample(&source, 5);
    let pool = Pool::create(&world, "tank", kind, 1 << 30, &[]);
    for value in values {
        world.zfs(&format!("create -o {property}={value} tank/{value}")).ok();
        tree::copy(&source, &pool.root().join(value).join("copy"));
    }
    pool.scrub();
    pool.export();
    world.stop();
    pool.import();
    for value in values {
        assert_eq!(world.zfs(&format!("get -H -o value {property} tank/{value}")).ok().trim(), *value);
        tree::same(&source, &pool.root().join(value).join("copy"));
    }
    pool.judge();
}

#[test]
fn compression() {
    let values =
        ["off", "on", "lz4", "lzjb", "zle", "gzip-1", "gzip", "gzip-9", "zstd", "zstd-19", "zstd-fast-10"];
    each(Kind::Single, "compression", &values);
}

#[test]
fn checksum() {
    let values = ["off", "on", "fletcher2", "fletcher4", "sha256", "sha512", "skein", "edonr", "blake3"];
    each(Kind::Mirror, "checksum", &values);
}

#[test]
fn recordsize() {
    each(Kind::Raidz1, "recordsize", &["512", "4K", "128K", "1M", "16M"]);
}
