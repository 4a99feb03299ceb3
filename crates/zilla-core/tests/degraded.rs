//! A pool that loses a device goes on, remembers what the device missed, and is whole for OpenZFS
//! at every stage.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zilla_core::error::{Errno, Error};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind, VdevState};
use zilla_core::zpl::{Cred, FsProps, NewFile, Unlimited, Zfs};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::PoolState;
use zilla_testkit::zdb_clean;

fn host() -> Host {
    Host { id: 0x1234, name: "here".into() }
}

async fn fs(env: &Env, spa: &Arc<Spa>) -> Arc<Zfs> {
    let ds = spa.dsl.by_name("tank").await.unwrap();
    let os = spa.dsl.objset(&ds).await.unwrap();
    let txgs = (!spa.ctx.readonly).then(|| spa.ctx.txgs.clone());
    Zfs::open(env.clone(), os, txgs, Arc::new(Unlimited), FsProps::default()).await.unwrap()
}

fn contents(i: u32) -> Vec<u8> {
    (0..i * 700).map(|x| ((x * 7 + i) % 251) as u8 ^ (x / 300) as u8).collect()
}

async fn put(env: &Env, spa: &Arc<Spa>, range: std::ops::Range<u32>) {
    let zfs = fs(env, spa).await;
    for i in range {
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), format!("f{i}").as_bytes(), new).await.unwrap();
        zfs.write(h.id(), 0, &contents(i).into(), false).await.unwrap();
    }
}

async fn check(env: &Env, spa: &Arc<Spa>, range: std::ops::Range<u32>) {
    let zfs = fs(env, spa).await;
    for i in range {
        let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
        let data = zfs.read(h.id(), 0, a.size as usize).await.unwrap();
        assert!(data.concat() == contents(i), "f{i}");
    }
}

async fn try_import(env: &Env, dir: &Path, readonly: bool) -> Result<Arc<Spa>, Error> {
    let found = discover(env, &[dir.to_owned()]).await.unwrap();
    let caches = OpenOpts { dbuf_cache: 32 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], OpenOpts { readonly, host: host(), ..caches }).await
}

async fn import(env: &Env, dir: &Path) -> Arc<Spa> {
    try_import(env, dir, false).await.unwrap()
}

async fn create(env: &Env, spec: &PoolSpec) -> Arc<Spa> {
    let opts = CreateOpts {
        name: "tank".into(),
        host: host(),
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 32 << 20,
        arc_max: 64 << 20,
    };
    Spa::create(env, spec, opts).await.unwrap()
}

fn lose_and_regain(kind: VdevKind, n: usize, lost: &[usize]) {
    let dir =
        std::env::temp_dir().join(format!("zilla-degraded-{}-{}-{n}", std::process::id(), kind.type_name()));
    let away = dir.join("away");
    std::fs::create_dir_all(&away).unwrap();
    let path = |i: usize| dir.join(format!("d{i}.img"));
    let leaves: Vec<LeafSpec> = (0..n)
        .map(|i| {
            std::fs::File::create(path(i))
                .unwrap()
                .set_len(if matches!(kind, VdevKind::Draid { .. }) { 160 << 20 } else { 96 << 20 })
                .unwrap();
            LeafSpec { path: path(i), disk: false }
        })
        .collect();
    let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: None };
    let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
    let env = real_env(2);
    env.block_on(async {
        let spa = create(&env, &spec).await;
        put(&env, &spa, 0..100).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&dir, "tank");
    let aside: Vec<(PathBuf, PathBuf)> = lost.iter().map(|i| (path(*i), away.join(format!("{i}")))).collect();
    aside.iter().for_each(|(here, there)| std::fs::rename(here, there).unwrap());
    env.block_on(async {
        let spa = import(&env, &dir).await;
        assert_eq!(spa.zio.tree().root.state().0, VdevState::Degraded);
        check(&env, &spa, 0..100).await;
        put(&env, &spa, 100..200).await;
        spa.sync().await.unwrap();
        check(&env, &spa, 0..200).await;
        for (i, leaf) in spa.zio.tree().leaves.iter().enumerate() {
            assert_eq!(!leaf.dtl.is_empty(), lost.contains(&i));
        }
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&dir, "tank");
    aside.iter().for_each(|(here, there)| std::fs::rename(there, here).unwrap());
    env.block_on(async {
        let spa = import(&env, &dir).await;
        for (i, leaf) in spa.zio.tree().leaves.iter().enumerate() {
            assert_eq!(!leaf.dtl.is_empty(), lost.contains(&i), "what was missed is remembered");
        }
        check(&env, &spa, 0..200).await;
        let errors: u64 = spa.zio.tree().leaves.iter().map(|l| l.stats.snapshot().checksum_errors).sum();
        assert_eq!(errors, 0, "nothing is asked of a device that it is known to lack");
        put(&env, &spa, 200..250).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_mirror_without_a_side() {
    lose_and_regain(VdevKind::Mirror, 2, &[1]);
}

#[test]
fn a_mirror_without_its_first_side() {
    lose_and_regain(VdevKind::Mirror, 3, &[0, 2]);
}

#[test]
fn a_raidz2_without_two_disks() {
    lose_and_regain(VdevKind::Raidz { nparity: 2 }, 5, &[0, 3]);
}

#[test]
fn a_draid2_without_two_disks() {
    lose_and_regain(VdevKind::Draid { nparity: 2, ndata: 3, nspares: 0 }, 7, &[1, 5]);
}

#[test]
fn a_draid3_without_three_disks() {
    lose_and_regain(VdevKind::Draid { nparity: 3, ndata: 4, nspares: 0 }, 8, &[0, 2, 7]);
}

/// The pool's own objects could be read, in copies elsewhere. But what is away may have a newer
/// txg than the rest, whose blocks are free for all that the rest knows.
#[test]
fn a_pool_that_lacks_a_whole_vdev_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let tops = ["a", "b"].map(|name| {
        std::fs::File::create(path(name)).unwrap().set_len(64 << 20).unwrap();
        let leaves = vec![LeafSpec { path: path(name), disk: false }];
        TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: None }
    });
    let spec = PoolSpec { tops: tops.into(), ..PoolSpec::default() };
    let env = real_env(2);
    env.block_on(async {
        let spa = create(&env, &spec).await;
        put(&env, &spa, 0..50).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        std::fs::create_dir(path("away")).unwrap();
        std::fs::rename(path("b"), path("away/b")).unwrap();
        let before = std::fs::read(path("a")).unwrap();
        for readonly in [false, true] {
            let refused = try_import(&env, dir.path(), readonly).await.map(drop).unwrap_err();
            assert!(refused.is(Errno::NxIo), "{refused}");
        }
        assert!(std::fs::read(path("a")).unwrap() == before, "it was written");
        std::fs::rename(path("away/b"), path("b")).unwrap();
        let spa = import(&env, dir.path()).await;
        check(&env, &spa, 0..50).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}
