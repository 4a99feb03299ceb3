//! Volumes on real files: those that OpenZFS wrote, those of a machine that stops right after a
//! flush, and those that are rolled back or run out of space under their users. OpenZFS's zdb,
//! where it is installed, looks at the pools.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use zilla::engine::open_volume;
use zilla::{Errno, Volume};
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::dsl::Setting;
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::Value;
use zilla_core::zvol::{NewVolume, create_volume};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::PoolState;
use zilla_testkit::zdb_clean;

const POOL: &str = "tank";
const BLK: u64 = 16 << 10;

async fn create(env: &Env, dir: &Path, bytes: u64) -> Arc<Spa> {
    let path = dir.join("d1.img");
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    let leaves = vec![LeafSpec { path, disk: false }];
    let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: None };
    let opts = CreateOpts {
        name: POOL.into(),
        host: Host { id: 0x1234, name: "host".into() },
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 32 << 20,
        arc_max: 64 << 20,
    };
    Spa::create(env, &PoolSpec { tops: vec![top], ..PoolSpec::default() }, opts).await.unwrap()
}

async fn import(env: &Env, dir: &Path, readonly: bool) -> Arc<Spa> {
    let found = discover(env, &[dir.to_owned()]).await.unwrap();
    let opts =
        OpenOpts { readonly, force: true, dbuf_cache: 32 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], opts).await.unwrap()
}

/// A new volume.
async fn volume(env: &Env, spa: &Arc<Spa>, name: &str, size: u64, settings: &[(&str, u64)]) -> Arc<Volume> {
    let settings: Vec<_> =
        settings.iter().map(|(n, v)| ((*n).to_owned(), Setting::Local(Value::u64(*v)))).collect();
    let (dsl, full) = (spa.dsl.clone(), format!("{POOL}/{name}"));
    let name = full.clone();
    let task = spa.ctx.sync_task(move |tx| {
        Box::pin(async move {
            let new = NewVolume { size, block_size: BLK };
            create_volume(&dsl, &tx, &name, new, &settings).await.map(drop)
        })
    });
    task.await.unwrap();
    open_volume(env, &spa.dsl, &full, false).await.unwrap()
}

async fn check(spa: &Arc<Spa>) {
    spa.sync().await.unwrap();
    spa.sync().await.unwrap();
    let report = check_pool(spa, CheckOpts { every_copy: true }).await.unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// Bytes that cannot be compressed.
fn noise(seed: u64, len: u64) -> Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(next).collect::<Vec<u8>>().into()
}

async fn contents(v: &Volume) -> Vec<u8> {
    v.read(0, v.size().unwrap() as usize).await.unwrap().concat()
}

fn errno<T>(r: zilla::Result<T>) -> Option<Errno> {
    r.err().map(|e| e.errno())
}

#[test]
fn volumes_of_openzfs_have_the_contents_openzfs_says() {
    let archive = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/corpus/zvol.tar.zst");
    let dir = tempfile::tempdir().unwrap();
    let unpacked =
        Command::new("tar").args(["-I", "zstd", "-xf"]).arg(&archive).arg("-C").arg(dir.path()).status();
    if !unpacked.is_ok_and(|s| s.success()) {
        assert!(std::env::var_os("CI").is_none(), "tar or zstd is missing");
        return eprintln!("tar or zstd is missing");
    }
    let set = dir.path().join("zvol");
    let list = std::fs::read_to_string(set.join("desc/zvols.txt")).unwrap();
    let env = real_env(2);
    let run = env.clone();
    env.block_on(async move {
        // Read as they are, and as they are after a writer had them open.
        for readonly in [true, false] {
            let spa = import(&run, &set, readonly).await;
            let mut seen = 0;
            for line in list.lines() {
                let [size, sum, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
                let v = open_volume(&run, &spa.dsl, name, readonly).await.unwrap();
                assert_eq!(v.size().unwrap().to_string(), size, "{name}");
                assert_eq!(format!("{:x}", Sha256::digest(contents(&v).await)), sum, "{name}");
                seen += 1;
            }
            assert_eq!(seen, 10);
            spa.close((!readonly).then_some(PoolState::Exported)).await.unwrap();
        }
        zdb_clean(&set, POOL);
    });
}

#[test]
fn what_was_flushed_is_there_after_a_crash() {
    let (env, dir) = (real_env(2), tempfile::tempdir().unwrap());
    let run = env.clone();
    env.block_on(async move {
        let spa = create(&run, dir.path(), 256 << 20).await;
        let v = volume(&run, &spa, "v", 8 << 20, &[]).await;
        // The first commit makes the chain; what follows is in it.
        v.write(0, &[noise(1, 512)], true).await.unwrap();
        spa.sync().await.unwrap();
        // Parts of blocks, whole ones (written in place), zeroes in between, and all of it again
        // elsewhere.
        v.write(100, &[noise(2, 5000), noise(3, 40_000)], false).await.unwrap();
        v.write(1 << 20, &[noise(4, BLK * 8)], false).await.unwrap();
        v.write_zeroes((1 << 20) + 700, 40_000, false, false).await.unwrap();
        v.write(4 << 20, &[noise(5, BLK), noise(6, BLK)], false).await.unwrap();
        v.trim(4 << 20, BLK).await.unwrap();
        v.write((4 << 20) + 10, &[noise(7, 20)], false).await.unwrap();
        v.flush().await.unwrap();
        v.write((8 << 20) - 3000, &[noise(8, 3000)], true).await.unwrap();
        let want = contents(&v).await;

        let copy = tempfile::tempdir().unwrap();
        let status = Command::new("cp")
            .arg("--sparse=always")
            .arg(dir.path().join("d1.img"))
            .arg(copy.path())
            .status();
        assert!(status.unwrap().success());
        let after = import(&run, copy.path(), false).await;
        let v2 = open_volume(&run, &after.dsl, "tank/v", false).await.unwrap();
        assert!(contents(&v2).await == want, "the contents differ after the crash");
        check(&after).await;
        drop(v2);
        after.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(copy.path(), POOL);
        drop(v);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);
    });
}

/// Others fill the pool; what is reserved for a volume it can still write.
#[test]
fn a_reservation_is_kept_for_its_volume() {
    const SIZE: u64 = 24 << 20;
    let (env, dir) = (real_env(2), tempfile::tempdir().unwrap());
    let run = env.clone();
    env.block_on(async move {
        let spa = create(&run, dir.path(), 128 << 20).await;
        let thick = volume(&run, &spa, "thick", SIZE, &[("refreservation", SIZE + (2 << 20))]).await;
        let sparse = volume(&run, &spa, "sparse", 1 << 30, &[]).await;
        let (mut at, mut refused) = (0, None);
        while refused.is_none() {
            refused = errno(sparse.write(at, &[noise(at, 1 << 20)], false).await);
            at += 1 << 20;
        }
        assert_eq!(refused, Some(Errno::NoSpc), "after {at} bytes");
        for at in (0..SIZE).step_by(1 << 20) {
            thick
                .write(at, &[noise(at + 1, 1 << 20)], false)
                .await
                .unwrap_or_else(|e| panic!("at {at}: {e}"));
        }
        thick.flush().await.unwrap();
        for at in (0..SIZE).step_by(1 << 20) {
            assert!(thick.read(at, 1 << 20).await.unwrap().concat() == noise(at + 1, 1 << 20));
        }
        check(&spa).await;
        drop((thick, sparse));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);
    });
}

#[test]
fn a_rollback_under_an_open_volume_gives_its_users_the_snapshots_contents() {
    let (env, dir) = (real_env(2), tempfile::tempdir().unwrap());
    let run = env.clone();
    env.block_on(async move {
        let spa = create(&run, dir.path(), 256 << 20).await;
        let v = volume(&run, &spa, "v", 1 << 20, &[]).await;
        v.write(0, &[noise(1, 100_000)], true).await.unwrap();
        let want = contents(&v).await;
        let dsl = spa.dsl.clone();
        let snap = spa.ctx.sync_task(move |tx| {
            Box::pin(async move { dsl.snapshot(&tx, &["tank/v@s".to_owned()]).await.map(drop) })
        });
        snap.await.unwrap();
        v.write(0, &[noise(2, 100_000)], true).await.unwrap();
        spa.sync().await.unwrap();

        // Not while requests may come.
        let dsl = spa.dsl.clone();
        let refused = spa.ctx.sync_task(move |tx| {
            Box::pin(async move { dsl.rollback(&tx, "tank/v", Some("tank/v@s")).await })
        });
        assert_eq!(errno(refused.await), Some(Errno::Busy));
        v.write(0, &[noise(4, 100_000)], true).await.unwrap();
        assert!(v.read(0, 100_000).await.unwrap().concat() == noise(4, 100_000));

        let suspended = v.suspend().await.unwrap();
        assert!(v.try_read(0, 512).unwrap().is_none(), "requests wait");
        let (v2, done) = (v.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let told = done.clone();
        run.spawn(async move {
            v2.write(500_000, &[noise(3, 1000)], true).await.unwrap();
            told.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let dsl = spa.dsl.clone();
        let back = spa.ctx.sync_task(move |tx| {
            Box::pin(async move { dsl.rollback(&tx, "tank/v", Some("tank/v@s")).await })
        });
        back.await.unwrap();
        assert!(!done.load(std::sync::atomic::Ordering::SeqCst));
        suspended.resume().await.unwrap();
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            run.clock.sleep(std::time::Duration::from_millis(5)).await;
        }
        let mut want = want;
        want[500_000..501_000].copy_from_slice(&noise(3, 1000));
        assert!(contents(&v).await == want);
        check(&spa).await;

        v.close().await;
        assert_eq!(errno(v.read(0, 512).await), Some(Errno::NxIo));
        assert_eq!(errno(v.write(0, &[noise(1, 512)], false).await), Some(Errno::NxIo));
        assert_eq!(errno(v.flush().await), Some(Errno::NxIo));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), POOL);
    });
}
