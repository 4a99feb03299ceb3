//! Random damage to the devices of a pool: what redundancy covers is healed, what it does not is an
//! error with a place, and nothing panics or hangs. `ZILLA_DAMAGES` says how many rounds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use zilla_core::check::{CheckOpts, check_pool};
use zilla_core::dsl::DslPool;
use zilla_core::error::{Errno, Result};
use zilla_core::spa::{CreateOpts, FailMode, Host, OpenOpts, Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{Cred, FsProps, NewFile, SetAttr, Time, Unlimited, Zfs, ZplProps};
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule, When};
use zilla_env::{Env, real_env};
use zilla_ondisk::enums::{ObjsetType, PoolState};
use zilla_testkit::{zdb_clean, zdb_of};

const FILES: u32 = 60;
const SIZE: u64 = 64 << 20;

struct Rand(u64);

impl Rand {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
}

fn contents(i: u32) -> Vec<u8> {
    (0..i * 900).map(|x| ((x * 7 + i) % 251) as u8 ^ (x / 300) as u8).collect()
}

fn host() -> Host {
    Host { id: 7, name: "here".into() }
}

async fn fs(env: &Env, spa: &Arc<Spa>) -> Result<Arc<Zfs>> {
    fs_of(env, spa, "tank").await
}

async fn fs_of(env: &Env, spa: &Arc<Spa>, name: &str) -> Result<Arc<Zfs>> {
    let ds = spa.dsl.by_name(name).await?;
    let os = spa.dsl.objset(&ds).await?;
    Zfs::open(env.clone(), os, Some(spa.ctx.txgs.clone()), Arc::new(Unlimited), FsProps::default()).await
}

fn make(env: &Env, kind: VdevKind, paths: &[PathBuf]) {
    let leaves = paths.iter().map(|p| {
        File::create(p).unwrap().set_len(SIZE).unwrap();
        LeafSpec { path: p.clone(), disk: false }
    });
    let top = TopSpec { kind, leaves: leaves.collect(), is_log: false, bias: None, ashift: None };
    let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
    let opts = CreateOpts {
        name: "tank".into(),
        host: host(),
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 8 << 20,
        arc_max: 32 << 20,
    };
    env.block_on(async {
        let spa = Spa::create(env, &spec, opts).await.unwrap();
        let zfs = fs(env, &spa).await.unwrap();
        for i in 0..FILES {
            let new = NewFile::new(0o100644, Cred::default());
            let (h, _) = zfs.create(zfs.root(), format!("f{i}").as_bytes(), new).await.unwrap();
            zfs.write(h.id(), 0, &contents(i).into(), false).await.unwrap();
        }
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// Imports, reads everything, writes something. How many files were right, and how many were
/// errors.
async fn use_it(env: &Env, dir: &Path) -> Result<(u32, u32)> {
    let found = discover(env, &[dir.to_owned()]).await?;
    let Some(pool) = found.first() else { return Ok((0, FILES)) };
    let opts = OpenOpts { host: host(), dbuf_cache: 8 << 20, arc_max: 32 << 20, ..OpenOpts::default() };
    let spa = Spa::open(env, pool, opts).await?;
    let result = read_all(env, &spa).await;
    let closed = spa.close(Some(PoolState::Exported)).await;
    let counts = result?;
    closed?;
    Ok(counts)
}

async fn read_all(env: &Env, spa: &Arc<Spa>) -> Result<(u32, u32)> {
    let zfs = fs(env, spa).await?;
    let (mut good, mut bad) = (0, 0);
    for i in 0..FILES {
        let read = async {
            let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await?;
            zfs.read(h.id(), 0, a.size as usize).await
        };
        match read.await {
            Ok(data) => {
                assert!(data.concat() == contents(i), "f{i} reads wrong");
                good += 1;
            }
            Err(_) => bad += 1,
        }
    }
    Ok((good, bad))
}

/// Garbage, zeros, single bits or a piece of another place, in a place that is likely to hold
/// something.
fn damage(file: &File, r: &mut Rand) {
    let at = match r.below(4) {
        0 => r.below(512 << 10),
        1 => SIZE - 1 - r.below(512 << 10),
        _ => (4 << 20) + r.below(24 << 20),
    };
    let len = (1 + r.below(200_000)).min(SIZE - at) as usize;
    let mut buf = vec![0; len];
    file.read_exact_at(&mut buf, at).unwrap();
    match r.below(4) {
        0 => buf.iter_mut().for_each(|b| *b = r.below(256) as u8),
        1 => buf.fill(0),
        2 => {
            for _ in 0..1 + r.below(8) {
                let i = r.below(len as u64) as usize;
                buf[i] ^= 1 << r.below(8);
            }
        }
        _ => {
            let from = r.below(SIZE - len as u64);
            file.read_exact_at(&mut buf, from).unwrap();
        }
    }
    file.write_all_at(&buf, at).unwrap();
}

fn rounds(kind: VdevKind, n: usize, bear: usize) {
    let rounds: u64 = std::env::var("ZILLA_DAMAGES").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    let seed: u64 = std::env::var("ZILLA_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let base = std::env::temp_dir().join(format!("zilla-damage-{}-{}", std::process::id(), kind.type_name()));
    let dir = base.join("pool");
    std::fs::create_dir_all(&dir).unwrap();
    let paths: Vec<PathBuf> = (0..n).map(|i| dir.join(format!("d{i}.img"))).collect();
    let env = real_env(2);
    make(&env, kind, &paths);
    let pristine: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    for round in seed..seed + rounds {
        for (path, bytes) in paths.iter().zip(&pristine) {
            let file = File::create(path).unwrap();
            file.set_len(SIZE).unwrap();
            // Sparse where it was: only what is not zero is written.
            for (i, chunk) in bytes.chunks(65_536).enumerate().filter(|(_, c)| c.iter().any(|b| *b != 0)) {
                file.write_all_at(chunk, i as u64 * 65_536).unwrap();
            }
        }
        let mut r = Rand(round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Every third round more devices than can be borne.
        let victims = if round % 3 == 0 { n } else { bear };
        let first = r.below(n as u64) as usize;
        for v in 0..victims {
            let path = &paths[(first + v) % n];
            let file = File::options().read(true).write(true).open(path).unwrap();
            for _ in 0..1 + r.below(30) {
                damage(&file, &mut r);
            }
        }
        let outcome = env.block_on(env.timeout(Duration::from_secs(120), use_it(&env, &dir)));
        let outcome = outcome.unwrap_or_else(|_| panic!("round {round} hangs"));
        if victims == bear {
            assert_eq!(outcome.unwrap(), (FILES, 0), "round {round}: redundancy should have covered that");
        }
    }
    std::fs::remove_dir_all(&base).unwrap();
}

#[test]
fn a_mirror() {
    rounds(VdevKind::Mirror, 2, 1);
}

#[test]
fn a_raidz1() {
    rounds(VdevKind::Raidz { nparity: 1 }, 3, 1);
}

/// Turns over some bytes of a file's block where it lies on the only disk; again, and it is whole.
/// Returns where.
async fn flip(os: &Arc<zilla_core::dmu::Objset>, id: u64, blkid: u64, disk: &Path) -> u64 {
    let dn = os.hold_wait(zilla_core::types::ObjectId(id)).await.unwrap();
    dn.load(0, blkid).await.unwrap();
    let dva = zilla_core::dmu::resident(|| dn.block_pointer(blkid)).await.unwrap().unwrap().dva(0);
    flip_at(disk, dva.offset);
    dva.offset
}

fn flip_at(disk: &Path, offset: u64) {
    flip_block(disk, offset + 1000);
}

/// The same at the beginning of a block that may be short.
fn flip_block(disk: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(disk).unwrap();
    let at = offset + (4 << 20);
    let mut buf = [0; 64];
    file.read_exact_at(&mut buf, at).unwrap();
    buf.iter_mut().for_each(|b| *b = !*b);
    file.write_all_at(&buf, at).unwrap();
}

async fn logged_fs(env: &Env, spa: &Arc<Spa>) -> Arc<Zfs> {
    spa.dsl.open_log(&spa.dsl.by_name("tank").await.unwrap()).await.unwrap();
    fs(env, spa).await.unwrap()
}

async fn import(env: &Env, dir: &Path) -> Arc<Spa> {
    let found = discover(env, &[dir.to_owned()]).await.unwrap();
    let opts =
        OpenOpts { force: true, host: host(), dbuf_cache: 8 << 20, arc_max: 32 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], opts).await.unwrap()
}

/// One bad sector on a disk without redundancy: whoever writes into that record has the trouble,
/// and nobody else.
#[test]
fn one_bad_record_stops_neither_the_pool_nor_its_next_import() {
    let env = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("d0");
    make(&env, VdevKind::File, std::slice::from_ref(&disk));
    let big = |x: u8| bytes::Bytes::from((0..1u32 << 20).map(|i| (i * 7 / 5) as u8 ^ x).collect::<Vec<_>>());
    let copy = tempfile::tempdir().unwrap();
    let (id, at) = env.block_on(async {
        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        let new = NewFile::new(0o100644, Cred::default());
        let (file, _) = zfs.create(zfs.root(), b"big", new).await.unwrap();
        let (other, _) = zfs.create(zfs.root(), b"other", new).await.unwrap();
        zfs.write(file.id(), 0, &big(0), false).await.unwrap();
        spa.sync().await.unwrap();
        let os = spa.dsl.objset(&spa.dsl.by_name("tank").await.unwrap()).await.unwrap();
        let at = flip(&os, file.id(), 2, &disk).await;
        let id = file.id();
        drop((file, other, os, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();

        // An fsync before anybody knows is as good as any; then the txg comes.
        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        let (other, _) = zfs.lookup(zfs.root(), b"other").await.unwrap();
        // The log has a chain then, and an fsync does not wait for a txg.
        zfs.write(other.id(), 0, &big(2), false).await.unwrap();
        zfs.fsync(other.id()).await.unwrap();
        spa.sync().await.unwrap();
        zfs.write(id, (2 << 17) + 5, &vec![0xaa; 100].into(), false).await.unwrap();
        zfs.fsync(id).await.unwrap();
        std::fs::copy(&disk, copy.path().join("d0")).unwrap();
        zfs.write(other.id(), 0, &big(1), false).await.unwrap();
        spa.sync().await.unwrap();
        assert!(spa.suspended().is_none());
        zfs.fsync(id).await.expect_err("the record cannot be written");
        zfs.fsync(other.id()).await.unwrap();
        zfs.read(id, 2 << 17, 1 << 17).await.expect_err("the record cannot be read");
        assert_eq!(zfs.read(id, 3 << 17, 1000).await.unwrap().concat(), big(0)[3 << 17..][..1000]);
        let log = spa.scan().unwrap().errors.entries().await.unwrap();
        assert!(log.iter().any(|e| e.object == id && e.blkid == 2 && e.level == 0), "{log:?}");
        drop((other, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        (id, at)
    });
    // What is kept outlives the export: it is in the log, of which OpenZFS's check knows.
    let other = big(1);
    let found = |mended: bool| {
        env.block_on(async {
            let spa = import(&env, dir.path()).await;
            let zfs = logged_fs(&env, &spa).await;
            let kept = zfs.read(id, (2 << 17) + 5, 100).await.expect("what was acknowledged").concat();
            assert_eq!(kept, [0xaa; 100]);
            let file = zfs.lookup(zfs.root(), b"other").await.unwrap().0;
            assert!(zfs.read(file.id(), 0, 1 << 20).await.unwrap().concat() == other);
            let whole = zfs.read(id, 2 << 17, 1 << 17).await;
            assert_eq!(whole.is_ok(), mended);
            spa.sync().await.unwrap();
            zfs.fsync(id).await.map_or_else(|_| assert!(!mended), |()| assert!(mended));
            drop((file, zfs));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    };
    for _ in 0..2 {
        zdb_of(dir.path(), "tank", &["-b"]);
        found(false);
    }
    flip_at(&disk, at);
    zdb_clean(dir.path(), "tank");
    found(true);
    zdb_clean(dir.path(), "tank");
    // The same after a crash: the log has the write, and others' after it.
    env.block_on(async {
        let disk = copy.path().join("d0");
        let spa = import(&env, copy.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        spa.sync().await.unwrap();
        assert!(spa.suspended().is_none());
        zfs.read(id, 2 << 17, 1 << 17).await.expect_err("the record cannot be read");
        zfs.fsync(id).await.expect_err("the record cannot be written");
        // The sector comes back, and somebody writes there.
        let os = spa.dsl.objset(&spa.dsl.by_name("tank").await.unwrap()).await.unwrap();
        let dn = os.hold_wait(zilla_core::types::ObjectId(id)).await.unwrap();
        flip_at(&disk, dn.block_pointer(2).unwrap().unwrap().dva(0).offset);
        zfs.write(id, (2 << 17) + 50, &vec![0xbb; 100].into(), false).await.unwrap();
        spa.sync().await.unwrap();
        zfs.fsync(id).await.unwrap();
        let mut want = big(0).to_vec();
        want[(2 << 17) + 5..][..45].fill(0xaa);
        want[(2 << 17) + 50..][..100].fill(0xbb);
        assert_eq!(zfs.read(id, 0, 1 << 20).await.unwrap().concat(), want);
        drop((dn, os, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// A file is cut short where its indirect block cannot be read. When that can be read again, after
/// an export or a crash, and the file has grown again, what was cut off is not there.
#[test]
fn what_was_cut_off_below_a_damaged_indirect_block_does_not_come_back() {
    let env = real_env(2);
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = dir.path().join("d0");
    make(&env, VdevKind::File, std::slice::from_ref(&disk));
    let (id, at) = env.block_on(async {
        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        let new = NewFile::new(0o100644, Cred::default());
        let id = zfs.create(zfs.root(), b"cut", new).await.unwrap().0.id();
        let other = zfs.create(zfs.root(), b"other", new).await.unwrap().0.id();
        zfs.write(id, 0, &vec![0xaa; 1 << 20].into(), false).await.unwrap();
        spa.sync().await.unwrap();
        let os = spa.dsl.objset(&spa.dsl.by_name("tank").await.unwrap()).await.unwrap();
        let phys = os.hold_wait(zilla_core::types::ObjectId(id)).await.unwrap().phys();
        assert_eq!(phys.nlevels, 2);
        let at: Vec<u64> = phys.blkptr[0].dvas().map(|d| d.offset).collect();
        drop((zfs, os));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        at.iter().for_each(|at| flip_block(&disk, *at));

        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        zfs.write(other, 0, &vec![1; 1000].into(), false).await.unwrap();
        zfs.fsync(other).await.unwrap();
        spa.sync().await.unwrap();
        let cut = SetAttr { size: Some(2 << 17), ..SetAttr::default() };
        zfs.setattr(id, cut).await.unwrap();
        zfs.fsync(id).await.unwrap();
        std::fs::copy(&disk, copy.path().join("d0")).unwrap();
        spa.sync().await.unwrap();
        zfs.fsync(id).await.expect_err("the pointers cannot be taken out");
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        (id, at)
    });
    zdb_of(dir.path(), "tank", &["-b"]);
    for dir in [dir.path(), copy.path()] {
        env.block_on(async {
            let spa = import(&env, dir).await;
            let zfs = logged_fs(&env, &spa).await;
            assert_eq!(zfs.getattr(id).await.unwrap().size, 2 << 17);
            spa.sync().await.unwrap();
            zfs.write(id, 5 << 17, &vec![0xbb; 1 << 17].into(), false).await.unwrap();
            spa.sync().await.unwrap();
            zfs.fsync(id).await.expect_err("it is damaged yet");
            drop(zfs);
            spa.close(Some(PoolState::Exported)).await.unwrap();
            at.iter().for_each(|at| flip_block(&dir.join("d0"), *at));
            let spa = import(&env, dir).await;
            let zfs = logged_fs(&env, &spa).await;
            spa.sync().await.unwrap();
            zfs.fsync(id).await.unwrap();
            let want = [vec![0xaa; 2 << 17], vec![0; 3 << 17], vec![0xbb; 1 << 17]].concat();
            assert!(zfs.read(id, 0, 1 << 20).await.unwrap().concat() == want);
            drop(zfs);
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    zdb_clean(dir.path(), "tank");
    zdb_clean(copy.path(), "tank");
}

/// A file system whose beginning is damaged in all copies keeps nobody from the others, and can be
/// destroyed.
#[test]
fn one_bad_root_stops_neither_the_import_nor_other_file_systems() {
    let env = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("d0");
    make(&env, VdevKind::File, std::slice::from_ref(&disk));
    env.block_on(async {
        let task = async |spa: &Arc<Spa>, f: fn(Arc<DslPool>, Tx) -> BoxFuture<'static, Result<()>>| {
            let dsl = spa.dsl.clone();
            spa.ctx.sync_task(move |tx| f(dsl, tx)).await
        };
        let spa = import(&env, dir.path()).await;
        task(&spa, |d, tx| {
            Box::pin(async move {
                d.create_fs(&tx, "tank/bad", ObjsetType::Other, 0).await?;
                d.create_fs(&tx, "tank/bad/below", ObjsetType::Other, 0).await.map(drop)
            })
        })
        .await
        .unwrap();
        let root = spa.dsl.by_name("tank/bad").await.unwrap().phys().bp;
        spa.close(Some(PoolState::Exported)).await.unwrap();
        // (It is a small block.)
        root.dvas().for_each(|dva| flip_at(&disk, dva.offset - 1000));
        let spa = import(&env, dir.path()).await;
        let bad = spa.dsl.by_name("tank/bad").await.unwrap();
        assert!(spa.dsl.objset(&bad).await.is_err());
        drop(bad);
        assert_eq!(read_all(&env, &spa).await.unwrap(), (FILES, 0));
        let below = spa.dsl.by_name("tank/bad/below").await.unwrap();
        spa.dsl.objset(&below).await.unwrap();
        drop(below);
        task(&spa, |d, tx| Box::pin(async move { d.destroy_head(&tx, "tank/bad/below").await }))
            .await
            .unwrap();
        task(&spa, |d, tx| Box::pin(async move { d.destroy_head(&tx, "tank/bad").await })).await.unwrap();
        assert!(spa.suspended().is_none());
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = import(&env, dir.path()).await;
        assert!(spa.dsl.by_name("tank/bad").await.is_err());
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// A file system that cannot be read while the logs are claimed has a log whose blocks are others'
/// from then on. Should it be readable again nobody uses that log, nor frees it.
#[test]
fn a_log_that_was_not_claimed_is_left_alone() {
    let env = real_env(2);
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = dir.path().join("d0");
    make(&env, VdevKind::File, std::slice::from_ref(&disk));
    env.block_on(async {
        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        let new = NewFile::new(0o100644, Cred::default());
        let id = zfs.create(zfs.root(), b"new", new).await.unwrap().0.id();
        zfs.fsync(id).await.unwrap();
        spa.sync().await.unwrap();
        zfs.write(id, 0, &vec![1; 10_000].into(), false).await.unwrap();
        zfs.fsync(id).await.unwrap();
        let root = spa.dsl.by_name("tank").await.unwrap().phys().bp;
        // As after a crash.
        let disk = copy.path().join("d0");
        std::fs::copy(dir.path().join("d0"), &disk).unwrap();
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let turn = || root.dvas().for_each(|dva| flip_at(&disk, dva.offset - 1000));
        turn();
        let spa = import(&env, copy.path()).await;
        let ds = spa.dsl.by_name("tank").await.unwrap();
        spa.dsl.open_log(&ds).await.map(drop).unwrap_err();
        turn();
        let e = spa.dsl.open_log(&ds).await.map(drop).unwrap_err();
        assert!(e.is(Errno::Io) && e.to_string().contains("import it again"), "{e}");
        drop(ds);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = import(&env, copy.path()).await;
        drop(logged_fs(&env, &spa).await);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(dir.path(), "tank");
    zdb_clean(copy.path(), "tank");
}

/// A dir that is damaged keeps nobody's log beside it from being claimed, and what comes up later
/// has none that could be used.
#[test]
fn a_damaged_dir_keeps_no_log_beside_it_from_being_claimed() {
    let env = real_env(2);
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make(&env, VdevKind::File, &[dir.path().join("d0")]);
    // Where a dir's bonus has its parent.
    const PARENT: usize = 16;
    let set_parent = async |spa: &Arc<Spa>, dir: u64, parent: u64| {
        let mos = spa.ctx.mos().clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let dn = mos.hold_wait(zilla_core::types::ObjectId(dir)).await?;
                let mut bonus = dn.bonus().to_vec();
                bonus[PARENT..PARENT + 8].copy_from_slice(&parent.to_ne_bytes());
                dn.set_bonus(&tx, &bonus);
                Ok(())
            })
        };
        spa.ctx.sync_task(task).await.unwrap();
    };
    env.block_on(async {
        let spa = import(&env, dir.path()).await;
        for name in ["tank/bad", "tank/good"] {
            let dsl = spa.dsl.clone();
            let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
                Box::pin(async move {
                    let ds = dsl.create_fs(&tx, name, ObjsetType::Zfs, 0).await?;
                    let os = dsl.objset(&ds).await?;
                    zilla_core::zpl::create_fs(&os, &tx, &ZplProps::new(0, 0, Time { sec: 1, nsec: 0 })).await
                })
            };
            spa.ctx.sync_task(task).await.unwrap();
            spa.dsl.open_log(&spa.dsl.by_name(name).await.unwrap()).await.unwrap();
        }
        let (bad, root) = (spa.dsl.by_name("tank/bad").await.unwrap().dir().id(), spa.dsl.root_dir().id());
        let mut ids = Vec::new();
        let all =
            [fs_of(&env, &spa, "tank/bad").await.unwrap(), fs_of(&env, &spa, "tank/good").await.unwrap()];
        for zfs in &all {
            let new = NewFile::new(0o100644, Cred::default());
            ids.push(zfs.create(zfs.root(), b"new", new).await.unwrap().0.id());
            zfs.fsync(ids[ids.len() - 1]).await.unwrap();
        }
        set_parent(&spa, bad, bad).await;
        for (zfs, id) in all.iter().zip(&ids) {
            zfs.write(*id, 0, &vec![7; 10_000].into(), false).await.unwrap();
            zfs.fsync(*id).await.unwrap();
        }
        std::fs::copy(dir.path().join("d0"), copy.path().join("d0")).unwrap();
        set_parent(&spa, bad, root).await;
        drop(all);
        spa.close(Some(PoolState::Exported)).await.unwrap();

        let spa = import(&env, copy.path()).await;
        let good = spa.dsl.by_name("tank/good").await.unwrap();
        spa.dsl.open_log(&good).await.unwrap();
        let zfs = fs_of(&env, &spa, "tank/good").await.unwrap();
        assert_eq!(zfs.read(ids[1], 0, 10_000).await.unwrap().concat(), vec![7; 10_000]);
        drop((zfs, good));
        set_parent(&spa, bad, root).await;
        let bad = spa.dsl.by_name("tank/bad").await.unwrap();
        assert!(spa.dsl.open_log(&bad).await.map(drop).unwrap_err().is(Errno::Io));
        drop(bad);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = import(&env, copy.path()).await;
        spa.dsl.open_log(&spa.dsl.by_name("tank/bad").await.unwrap()).await.unwrap();
        drop(fs_of(&env, &spa, "tank/bad").await.unwrap());
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(dir.path(), "tank");
    zdb_clean(copy.path(), "tank");
}

type Devices = Arc<Mutex<Vec<Weak<FaultyDevice>>>>;

/// An environment whose devices are faulty ones, each prepared when it is opened.
fn prepared(env: &Env, prepare: impl Fn(&FaultyDevice) + Send + Sync + 'static) -> (Env, Devices) {
    let devices = Devices::default();
    let (all, inner) = (devices.clone(), env.clone());
    let env = env.wrap_devices(move |_, device| {
        let device = Arc::new(FaultyDevice::new(device, &inner));
        prepare(&device);
        // Weak: a device that is closed lets its file go.
        all.lock().unwrap().push(Arc::downgrade(&device));
        device
    });
    (env, devices)
}

/// An environment whose devices fail as they are told to.
fn failing(env: &Env) -> (Env, Devices) {
    prepared(env, |device| {
        device.keep_unflushed();
    })
}

fn each_of(devices: &Devices, f: &dyn Fn(&FaultyDevice)) {
    devices.lock().unwrap().iter().filter_map(Weak::upgrade).for_each(|d| f(&d));
}

/// A crash at this moment: `to` is the disk with what was flushed. (A txg may be on its way:
/// nothing more of it comes to the disk, for the disk would have lost a part of it.)
fn copy_of_flushed(devices: &Devices, from: &Path, to: &Path) {
    each_of(devices, &|d| {
        d.add(Rule::new(Ops::Writes, Fault::Hang));
        d.add(Rule::new(Ops::Flushes, Fault::Hang));
        d.lose_unflushed();
    });
    std::fs::copy(from, to).unwrap();
    each_of(devices, &|d| {
        d.clear();
        d.release_hung();
    });
}

async fn until_suspended(env: &Env, spa: &Spa) {
    while spa.suspended().is_none() {
        env.sleep(Duration::from_millis(5)).await;
    }
}

/// Fails writes (as a full host's file system does) or flushes, whose writes are then lost;
/// afterwards all is as if nothing had been.
fn outage(fault: impl Fn(&FaultyDevice) + Sync) {
    let real = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    make(&real, VdevKind::File, &[dir.path().join("d0")]);
    let copy = tempfile::tempdir().unwrap();
    let (env, devices) = failing(&real);
    let data = |x: u8| bytes::Bytes::from((0..3u32 << 20).map(|i| (i / 3) as u8 ^ x).collect::<Vec<_>>());
    env.block_on(async {
        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        let new = NewFile::new(0o100644, Cred::default());
        let (file, _) = zfs.create(zfs.root(), b"file", new).await.unwrap();
        let (other, _) = zfs.create(zfs.root(), b"other", new).await.unwrap();
        zfs.write(file.id(), 0, &data(1), false).await.unwrap();
        spa.sync().await.unwrap();
        zfs.write(file.id(), 1 << 20, &data(2), false).await.unwrap();
        let each = |f: &dyn Fn(&FaultyDevice)| each_of(&devices, f);
        let lose = || {
            each(&|d| {
                d.lose_unflushed();
            })
        };
        each(&fault);
        let (z, id) = (zfs.clone(), file.id());
        let fsync = env.spawn_with_result(async move { z.fsync(id).await });
        let s = spa.clone();
        let sync = env.spawn_with_result(async move { s.sync().await });
        until_suspended(&env, &spa).await;
        let errors = spa.tree().pool_leaves().map(|l| l.write_errors.load(Ordering::Relaxed)).sum::<u64>();
        assert!(errors > 0, "the device shows its errors");
        // What was not flushed is gone; what is in memory can still be read.
        lose();
        assert_eq!(zfs.read(id, 1 << 20, 3 << 20).await.unwrap().concat(), data(2));
        // New changes wait, or are refused.
        let (z, o) = (zfs.clone(), other.id());
        let waits = env.spawn_with_result(async move { z.write(o, 0, &data(3), false).await });
        env.sleep(Duration::from_millis(20)).await;
        assert_eq!(zfs.getattr(o).await.unwrap().size, 0);
        spa.clear(None).await.expect_err("nothing has changed");
        spa.set_fail_mode(FailMode::Continue);
        zfs.setattr(id, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.expect_err("refused");
        waits.await.expect_err("refused, too");
        lose();
        each(&|d| d.clear());
        spa.clear(None).await.unwrap();
        assert!(spa.suspended().is_none());
        fsync.await.unwrap();
        sync.await.unwrap();
        zfs.write(o, 0, &data(4), false).await.unwrap();
        zfs.fsync(o).await.unwrap();
        let report = {
            spa.sync().await.unwrap();
            spa.sync().await.unwrap();
            check_pool(&spa, CheckOpts { every_copy: true }).await.unwrap()
        };
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        copy_of_flushed(&devices, &dir.path().join("d0"), &copy.path().join("d0"));
        drop((file, other, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    real.block_on(async {
        let spa = import(&real, copy.path()).await;
        let zfs = logged_fs(&real, &spa).await;
        let (file, a) = zfs.lookup(zfs.root(), b"file").await.unwrap();
        assert_eq!(a.size, 4 << 20);
        let want = [&data(1)[..1 << 20], &data(2)].concat();
        assert!(zfs.read(file.id(), 0, 4 << 20).await.unwrap().concat() == want);
        let (other, _) = zfs.lookup(zfs.root(), b"other").await.unwrap();
        assert!(zfs.read(other.id(), 0, 3 << 20).await.unwrap().concat() == data(4));
        drop((file, other, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

#[test]
fn a_pool_whose_writes_failed_goes_on_where_it_was() {
    // Labels stay writable, as what was written before can be written again on a full host.
    outage(|d| {
        d.add(Rule::new(Ops::Writes, Fault::Error(28)).within(4 << 20..SIZE));
    });
}

#[test]
fn after_a_failed_flush_all_of_the_txg_is_written_again() {
    outage(|d| {
        d.add(Rule::new(Ops::Flushes, Fault::Error(5)));
    });
}

#[test]
fn a_suspended_pool_can_be_given_up() {
    let real = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    make(&real, VdevKind::File, &[dir.path().join("d0")]);
    let (env, devices) = failing(&real);
    env.block_on(async {
        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        each_of(&devices, &|d| {
            d.add(Rule::new(Ops::Writes, Fault::Error(28)));
        });
        let new = NewFile::new(0o100644, Cred::default());
        zfs.create(zfs.root(), b"new", new).await.unwrap();
        let s = spa.clone();
        let sync = env.spawn_with_result(async move { s.sync().await });
        until_suspended(&env, &spa).await;
        spa.abandon();
        sync.await.unwrap_err();
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap_err();
        assert_eq!(Arc::strong_count(&spa), 1, "nothing keeps it");
    });
}

/// Who changes the pool waits for a txg that the devices did not take: the pool is cleared all the
/// same.
#[test]
fn a_pool_that_is_suspended_while_it_is_changed_can_be_cleared() {
    let real = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    make(&real, VdevKind::File, &[dir.path().join("d0")]);
    let (env, devices) = failing(&real);
    env.block_on(async {
        let spa = import(&env, dir.path()).await;
        let before = spa.guid();
        let each = |f: &dyn Fn(&FaultyDevice)| each_of(&devices, f);
        each(&|d| {
            d.add(Rule::new(Ops::Flushes, Fault::Error(5)));
        });
        let s = spa.clone();
        let change = env.spawn_with_result(async move { s.reguid(None).await });
        until_suspended(&env, &spa).await;
        each(&|d| d.clear());
        let cleared = std::pin::pin!(spa.clear(None));
        let late = std::pin::pin!(env.sleep(Duration::from_secs(60)));
        match futures_util::future::select(cleared, late).await {
            futures_util::future::Either::Left((cleared, _)) => cleared.unwrap(),
            futures_util::future::Either::Right(_) => panic!("the pool cannot be cleared"),
        }
        change.await.unwrap();
        assert!(spa.guid() != before && spa.suspended().is_none());
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// A txg's sync sees a flush fail when the next txg has written records in place already: these may
/// be lost, too.
#[test]
fn after_a_failed_flush_what_the_next_txg_had_written_is_written_again() {
    let real = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    make(&real, VdevKind::File, &[dir.path().join("d0")]);
    let copy = tempfile::tempdir().unwrap();
    let (env, devices) = failing(&real);
    let data = |x: u8| bytes::Bytes::from((0..1u32 << 20).map(|i| (i / 3 * 7) as u8 ^ x).collect::<Vec<_>>());
    env.block_on(async {
        let spa = import(&env, dir.path()).await;
        let zfs = logged_fs(&env, &spa).await;
        let new = NewFile::new(0o100644, Cred::default());
        let (file, _) = zfs.create(zfs.root(), b"file", new).await.unwrap();
        let (other, _) = zfs.create(zfs.root(), b"other", new).await.unwrap();
        zfs.write(file.id(), 0, &data(1), false).await.unwrap();
        zfs.write(other.id(), 0, &data(1), false).await.unwrap();
        // The log has a chain then.
        zfs.fsync(file.id()).await.unwrap();
        spa.sync().await.unwrap();
        let each = |f: &dyn Fn(&FaultyDevice)| each_of(&devices, f);
        // The sync's flush takes its time; the log's, which comes later, fails.
        each(&|d| {
            d.add(Rule::new(Ops::Flushes, Fault::Hang).when(When::Nth(1)));
            d.add(Rule::new(Ops::Flushes, Fault::Error(5)));
        });
        zfs.write(file.id(), 0, &data(2), false).await.unwrap();
        let s = spa.clone();
        let sync = env.spawn_with_result(async move { s.sync().await });
        env.sleep(Duration::from_millis(300)).await;
        let before = spa.ctx.log.stats.get().indirect;
        zfs.write(other.id(), 0, &data(3)[..128 << 10].to_vec().into(), false).await.unwrap();
        let (z, o) = (zfs.clone(), other.id());
        let fsync = env.spawn_with_result(async move { z.fsync(o).await });
        env.sleep(Duration::from_millis(300)).await;
        assert!(spa.ctx.log.stats.get().indirect > before, "nothing was written in place");
        each(&|d| {
            assert!(d.lose_unflushed() > 0);
            d.release_hung();
        });
        until_suspended(&env, &spa).await;
        each(&|d| d.clear());
        spa.clear(None).await.unwrap();
        sync.await.unwrap();
        fsync.await.unwrap();
        spa.sync().await.unwrap();
        copy_of_flushed(&devices, &dir.path().join("d0"), &copy.path().join("d0"));
        drop((file, other, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    real.block_on(async {
        let spa = import(&real, copy.path()).await;
        let zfs = logged_fs(&real, &spa).await;
        let (file, _) = zfs.lookup(zfs.root(), b"file").await.unwrap();
        assert!(zfs.read(file.id(), 0, 1 << 20).await.unwrap().concat() == data(2));
        let (other, _) = zfs.lookup(zfs.root(), b"other").await.unwrap();
        let want = [&data(3)[..128 << 10], &data(1)[128 << 10..]].concat();
        assert!(zfs.read(other.id(), 0, 1 << 20).await.expect("what was written in place").concat() == want);
        drop((file, other, zfs));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// Devices that fail at any moment of an import: it ends, with an error or with a suspended pool
/// that can be closed or cleared.
#[test]
fn an_import_under_failing_devices_ends() {
    let real = real_env(2);
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..2).map(|i| dir.path().join(format!("d{i}"))).collect();
    make(&real, VdevKind::Mirror, &paths);
    // One of them misses something, so that the import has a resilver to begin.
    let aside = tempfile::tempdir().unwrap();
    std::fs::rename(&paths[1], aside.path().join("d1")).unwrap();
    real.block_on(async {
        let spa = import(&real, dir.path()).await;
        let zfs = logged_fs(&real, &spa).await;
        let new = NewFile::new(0o100644, Cred::default());
        let (file, _) = zfs.create(zfs.root(), b"file", new).await.unwrap();
        zfs.write(file.id(), 0, &contents(50).into(), false).await.unwrap();
        drop((file, zfs));
        spa.close(None).await.unwrap();
    });
    std::fs::rename(aside.path().join("d1"), &paths[1]).unwrap();
    let pristine: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    let (mut suspended, mut clean, mut from) = (0, 0, 1);
    // Each device fails at its own time, so one import that is not met does not mean that the next
    // is not.
    while clean < 6 {
        for (path, bytes) in paths.iter().zip(&pristine) {
            std::fs::write(path, bytes).unwrap();
        }
        let well = Arc::new(AtomicBool::new(false));
        let (env, devices) = failing_writes(&real, from, &well);
        let opened = env.block_on(async {
            let found = discover(&env, &[dir.path().to_owned()]).await.unwrap();
            let opts = OpenOpts { force: true, host: host(), ..OpenOpts::default() };
            let opened = env.timeout(Duration::from_secs(60), Spa::open(&env, &found[0], opts)).await;
            let opened =
                opened.unwrap_or_else(|_| panic!("an import whose writes fail from {from} on hangs"));
            let Ok(spa) = opened else { return false };
            env.sleep(Duration::from_millis(20)).await;
            let held_up = spa.suspended().is_some();
            if held_up {
                suspended += 1;
                if suspended % 2 == 0 {
                    well.store(true, Ordering::Relaxed);
                    devices.lock().unwrap().iter().filter_map(Weak::upgrade).for_each(|d| d.clear());
                    spa.clear(None).await.expect("the devices are well again");
                    spa.sync().await.unwrap();
                } else {
                    spa.abandon();
                }
            }
            let closed = env.timeout(Duration::from_secs(60), spa.close(None)).await;
            assert!(closed.is_ok(), "the pool whose writes fail from {from} on cannot be closed");
            !held_up
        });
        clean = if opened { clean + 1 } else { 0 };
        from += if from < 36 { 9 } else { 2 };
    }
    assert!(suspended > 0, "no import left a suspended pool");
}

/// As [`failing`], with writes that fail on each device from some number on, until the devices are
/// well.
fn failing_writes(env: &Env, from: u64, well: &Arc<AtomicBool>) -> (Env, Devices) {
    let well = well.clone();
    prepared(env, move |device| {
        if !well.load(Ordering::Relaxed) {
            device.add(Rule::new(Ops::Writes, Fault::Error(5)).when(When::From(from)));
        }
    })
}
