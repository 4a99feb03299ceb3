//! Clones on real files: what shares blocks reads as a copy would, whatever is written, cut and
//! removed on either side; the table of references is right and empty at the end; OpenZFS's zdb
//! accounts for every block. The same of blocks that are kept once because they are the same.

use bytes::Bytes;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use zilla_core::dmu::resident;
use zilla_core::dsl::{DslPool, Setting};
use zilla_core::error::Result;
use zilla_core::inject::{Copies, DataPlace, Failure, Fault, Frequency, injections};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::txg::Tx;
use zilla_core::types::{ObjectId, Txg};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::{Value, Zap};
use zilla_core::zio::Leave;
use zilla_core::zpl::{self, Cloned, Cred, FilePlace, FsProps, NewFile, SetAttr, Space, Time, Zfs, ZplProps};
use zilla_env::Env;
use zilla_ondisk::brt::BrtVdevPhys;
use zilla_ondisk::enums::{ObjsetType, PoolState};
use zilla_ondisk::{ByteOrder, Phys};
use zilla_testkit::zdb_clean;

const REC: usize = 16 << 10;

/// A dataset of a pool that has the feature.
struct Clones;

impl Space for Clones {
    fn usage(&self) -> (u64, u64) {
        (0, 1 << 40)
    }
    fn admit(&self, _: &Tx, _: u64, _: bool) -> Result<()> {
        Ok(())
    }
    fn hold_room(&self, _: &Tx, _: u64, _: Leave) -> Result<()> {
        Ok(())
    }
    fn need_feature(&self, _: &'static str) {}
    fn clones(&self) -> Option<Txg> {
        Some(Txg(u64::MAX))
    }
}

async fn create(env: &Env, dir: &Path) -> Arc<Spa> {
    create_with(env, dir, None).await
}

async fn create_with(env: &Env, dir: &Path, features: Option<Vec<String>>) -> Arc<Spa> {
    let path = dir.join("d0.img");
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let leaves = vec![LeafSpec { path, disk: false }];
    let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: None };
    let opts = CreateOpts {
        name: "tank".into(),
        host: Host { id: 0x1234, name: "host".into() },
        comment: None,
        owner: (0, 0),
        features,
        dbuf_cache: 32 << 20,
        arc_max: 64 << 20,
    };
    Spa::create(env, &PoolSpec { tops: vec![top], ..PoolSpec::default() }, opts).await.unwrap()
}

async fn open(env: &Env, dir: &Path) -> Arc<Spa> {
    let found = discover(env, &[dir.to_owned()]).await.unwrap();
    let opts = OpenOpts { force: true, dbuf_cache: 32 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
    Spa::open(env, &found[0], opts).await.unwrap()
}

async fn create_fs(env: &Env, spa: &Arc<Spa>, name: &'static str) {
    let (dsl, wall): (Arc<DslPool>, _) = (spa.dsl.clone(), env.wall());
    let task = spa.ctx.sync_task(move |tx| {
        Box::pin(async move {
            let ds = dsl.create_fs(&tx, name, ObjsetType::Zfs, 0).await?;
            let os = dsl.objset(&ds).await?;
            let now = Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() };
            zpl::create_fs(&os, &tx, &ZplProps::new(0, 0, now)).await
        })
    });
    task.await.unwrap();
}

async fn mount(env: &Env, spa: &Arc<Spa>, name: &str) -> Arc<Zfs> {
    let ds = spa.dsl.by_name(name).await.unwrap();
    let os = spa.dsl.objset(&ds).await.unwrap();
    let props = FsProps { recordsize: REC as u32, ..FsProps::default() };
    Zfs::open(env.clone(), os, Some(spa.ctx.txgs.clone()), Arc::new(Clones), props).await.unwrap()
}

async fn file(zfs: &Arc<Zfs>, name: &str) -> u64 {
    let (h, _) = zfs
        .create(zfs.root(), name.as_bytes(), NewFile::new(0o100644, Cred { uid: 1, gid: 1 }))
        .await
        .unwrap();
    h.id()
}

async fn read(zfs: &Arc<Zfs>, id: u64) -> Vec<u8> {
    let size = zfs.getattr(id).await.unwrap().size;
    zfs.read(id, 0, size as usize).await.unwrap().concat()
}

fn at(object: u64, offset: usize) -> FilePlace {
    FilePlace { object, offset: offset as u64 }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn a_clone_takes_no_space_and_outlives_what_it_was_made_of() {
    zilla_core::tunables::TXG_TIMEOUT.set(600);
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let spa = create(&env, dir.path()).await;
        create_fs(&env, &spa, "tank/a").await;
        create_fs(&env, &spa, "tank/b").await;
        let (za, zb) = (mount(&env, &spa, "tank/a").await, mount(&env, &spa, "tank/b").await);
        let (src, len) = (file(&za, "src").await, 40 * REC + 5000);
        let mut data = noise(1, len);
        data[3 * REC..5 * REC].fill(0);
        za.write(src, 0, &Bytes::from(data.clone()), false).await.unwrap();
        za.punch(src, 3 * REC as u64, 2 * REC as u64, false, false).await.unwrap();
        let dst = file(&za, "dst").await;
        let whole = u64::MAX;
        assert_eq!(za.clone_range(&za, at(src, 0), at(dst, 0), whole, false).await.unwrap(), Cloned::Dirty);
        spa.sync().await.unwrap();
        let before = spa.dsl.by_name("tank/a").await.unwrap().phys().referenced_bytes;
        let done = za.clone_range(&za, at(src, 0), at(dst, 0), whole, false).await.unwrap();
        assert_eq!(done, Cloned::Bytes(len as u64));
        // Before it is on disk, changed in part, and changed whole.
        assert!(read(&za, dst).await == data);
        // A clone of the clone, in the same txg, outlives it; what was written since is not shared.
        // (No txg of this program ends by itself.)
        let (one, two) = (file(&za, "one").await, file(&za, "two").await);
        for (from, to) in [(dst, one), (one, two)] {
            let done = za.clone_range(&za, at(from, 0), at(to, 0), whole, false).await.unwrap();
            assert_eq!(done, Cloned::Bytes(len as u64));
        }
        za.unlink(za.root(), b"one").await.unwrap();
        za.write(dst, 100, &Bytes::from_static(b"other"), false).await.unwrap();
        za.write(dst, 7 * REC as u64, &Bytes::from(noise(2, REC)), false).await.unwrap();
        let late = file(&za, "late").await;
        assert_eq!(za.clone_range(&za, at(dst, 0), at(late, 0), whole, false).await.unwrap(), Cloned::Dirty);
        let mut want = data.clone();
        want[100..105].copy_from_slice(b"other");
        want[7 * REC..8 * REC].copy_from_slice(&noise(2, REC));
        assert!(read(&za, dst).await == want);
        let far = file(&zb, "far").await;
        let done = zb.clone_range(&za, at(src, 0), at(far, 0), whole, false).await.unwrap();
        assert_eq!(done, Cloned::Bytes(len as u64));
        spa.sync().await.unwrap();
        let (used, saved) = spa.cloned_space();
        assert!(used > 30 * REC as u64 && saved > used, "{used} used, {saved} saved");
        let after = spa.dsl.by_name("tank/a").await.unwrap().phys().referenced_bytes;
        assert!(after > before + 60 * REC as u64, "its owner pays for both: {before}, {after}");
        assert!(read(&za, dst).await == want && read(&zb, far).await == data);
        assert!(read(&za, two).await == data);
        za.unlink(za.root(), b"src").await.unwrap();
        za.unlink(za.root(), b"two").await.unwrap();
        spa.sync().await.unwrap();
        drop((za, zb));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), "tank");
        let spa = open(&env, dir.path()).await;
        let (za, zb) = (mount(&env, &spa, "tank/a").await, mount(&env, &spa, "tank/b").await);
        let id = za.lookup(za.root(), b"dst").await.unwrap().0.id();
        let far = zb.lookup(zb.root(), b"far").await.unwrap().0.id();
        assert!(read(&za, id).await == want && read(&zb, far).await == data);
        za.unlink(za.root(), b"dst").await.unwrap();
        spa.sync().await.unwrap();
        assert_eq!(spa.cloned_space(), (0, 0), "one owner is left");
        assert!(read(&zb, far).await == data);
        drop((za, zb));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), "tank");
    });
}

#[test]
fn what_cannot_be_shared_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let spa = create(&env, dir.path()).await;
        create_fs(&env, &spa, "tank/a").await;
        let za = mount(&env, &spa, "tank/a").await;
        let (src, dst, short) = (file(&za, "src").await, file(&za, "dst").await, file(&za, "short").await);
        za.write(src, 0, &Bytes::from(noise(1, 4 * REC)), false).await.unwrap();
        za.write(dst, 0, &Bytes::from(noise(2, 4 * REC)), false).await.unwrap();
        za.write(short, 0, &Bytes::from(noise(3, 1000)), false).await.unwrap();
        spa.sync().await.unwrap();
        let said = async |from, to, len| match za.clone_range(&za, from, to, len, false).await.unwrap() {
            Cloned::Refused(why) => why,
            other => panic!("{other:?}"),
        };
        let rec = REC as u64;
        assert!(said(at(src, 1), at(dst, 0), rec).await.contains("begin"));
        assert!(said(at(src, 0), at(dst, 0), rec - 1).await.contains("ends within"));
        assert!(said(at(short, 0), at(dst, 0), 1000).await.contains("ends within"));
        assert!(said(at(short, 0), at(dst, 4 * REC), 1000).await.contains("one size"));
        assert!(said(at(src, 0), at(src, REC), 2 * rec).await.contains("overlap"));
        // A short record goes into an empty file, and grows there like any other.
        let new = file(&za, "new").await;
        assert_eq!(
            za.clone_range(&za, at(short, 0), at(new, 0), 1000, false).await.unwrap(),
            Cloned::Bytes(1000)
        );
        za.write(new, 5000, &Bytes::from_static(b"more"), false).await.unwrap();
        let mut want = noise(3, 1000);
        want.resize(5000, 0);
        want.extend_from_slice(b"more");
        assert!(read(&za, new).await == want);
        spa.sync().await.unwrap();
        assert!(read(&za, new).await == want);
        assert_eq!(spa.cloned_space(), (0, 0), "it was written before it was a clone on disk");
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), "tank");
    });
}

#[test]
fn files_that_share_blocks_are_as_if_they_were_copies() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let mut spa = create(&env, dir.path()).await;
        create_fs(&env, &spa, "tank/a").await;
        let mut za = mount(&env, &spa, "tank/a").await;
        let mut files = Vec::new();
        for i in 0..4 {
            files.push((file(&za, &format!("f{i}")).await, Vec::<u8>::new()));
        }
        let (mut r, mut shared) = (0u64, 0);
        let mut below = |n: usize| {
            r += 1;
            let bytes = noise(r, 8);
            u64::from_le_bytes(bytes.try_into().unwrap()) as usize % n
        };
        for step in 0..600 {
            let (i, j) = (below(4), below(4));
            match below(10) {
                0..3 => {
                    let (off, len) = (below(12 * REC), 1 + below(3 * REC));
                    let data = noise(step, len);
                    let (id, all) = &mut files[i];
                    za.write(*id, off as u64, &Bytes::from(data.clone()), false).await.unwrap();
                    all.resize(all.len().max(off + len), 0);
                    all[off..off + len].copy_from_slice(&data);
                }
                3..7 => {
                    let (from, to, len) = (below(10) * REC, below(10) * REC, (1 + below(5)) * REC);
                    let ((src, all), (dst, _)) = (files[i].clone(), files[j].clone());
                    let done =
                        za.clone_range(&za, at(src, from), at(dst, to), len as u64, false).await.unwrap();
                    if let Cloned::Bytes(n @ 1..) = done {
                        shared += 1;
                        let (n, (_, into)) = (n as usize, &mut files[j]);
                        into.resize(into.len().max(to + n), 0);
                        into[to..to + n].copy_from_slice(&all[from..from + n]);
                    }
                }
                7 => {
                    let (size, (id, all)) = (below(12 * REC), &mut files[i]);
                    za.setattr(*id, SetAttr { size: Some(size as u64), ..SetAttr::default() }).await.unwrap();
                    all.resize(size, 0);
                }
                _ => spa.sync().await.unwrap(),
            }
            let (id, all) = &files[below(4)];
            assert!(read(&za, *id).await == *all, "step {step}");
            if step % 200 == 199 {
                drop(za);
                spa.close(Some(PoolState::Exported)).await.unwrap();
                zdb_clean(dir.path(), "tank");
                spa = open(&env, dir.path()).await;
                za = mount(&env, &spa, "tank/a").await;
            }
        }
        assert!(shared > 60, "{shared} clones");
        for (i, (id, all)) in files.iter().enumerate() {
            assert!(read(&za, *id).await == *all, "file {i}");
            za.unlink(za.root(), format!("f{i}").as_bytes()).await.unwrap();
        }
        spa.sync().await.unwrap();
        assert_eq!(spa.cloned_space(), (0, 0));
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir.path(), "tank");
    });
}

/// What a crash leaves.
fn crash(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let status = Command::new("cp").arg("--sparse=always").arg(dir.join("d0.img")).arg(copy.path()).status();
    assert!(status.unwrap().success());
    copy
}

async fn mount_with_log(env: &Env, spa: &Arc<Spa>, name: &str) -> Arc<Zfs> {
    let ds = spa.dsl.by_name(name).await.unwrap();
    spa.dsl.open_log(&ds).await.unwrap();
    mount(env, spa, name).await
}

/// A pool whose machine stopped when a file of `tank/b` had been cloned from one of `tank/a`, which
/// had then been removed. Both are in the logs.
async fn cloned_and_removed(env: &Env, data: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let spa = create(env, dir.path()).await;
    create_fs(env, &spa, "tank/a").await;
    create_fs(env, &spa, "tank/b").await;
    let (za, zb) = (mount_with_log(env, &spa, "tank/a").await, mount_with_log(env, &spa, "tank/b").await);
    let (src, dst) = (file(&za, "src").await, file(&zb, "dst").await);
    za.write(src, 0, &Bytes::copy_from_slice(data), false).await.unwrap();
    for zfs in [&za, &zb] {
        let first = file(zfs, "first").await;
        zfs.fsync(first).await.unwrap();
    }
    spa.sync().await.unwrap();
    let txg = spa.ctx.txgs.open();
    assert!(spa.metaslabs.clones_logged() < txg);
    let done = zb.clone_range(&za, at(src, 0), at(dst, 0), u64::MAX, false).await.unwrap();
    assert_eq!(done, Cloned::Bytes(data.len() as u64));
    zb.fsync(dst).await.unwrap();
    za.unlink(za.root(), b"src").await.unwrap();
    za.commit().await.unwrap();
    let crashed = crash(dir.path());
    // Nobody is given what the record clones as soon as its txg is on disk.
    spa.sync().await.unwrap();
    assert!(spa.metaslabs.clones_logged() >= txg);
    drop((za, zb));
    spa.close(None).await.unwrap();
    crashed
}

#[test]
fn a_logged_clone_holds_its_blocks_from_the_claim_to_the_end_of_its_log() {
    let env = zilla_env::real_env(2);
    let data = noise(5, 20 * REC);
    env.block_on(async {
        let crashed = cloned_and_removed(&env, &data).await;
        let dir = crashed.path();
        let spa = open(&env, dir).await;
        let (used, saved) = spa.cloned_space();
        assert!(used >= data.len() as u64 && saved == used, "the log's references: {used}, {saved}");
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir, "tank");
        // The source's file system is replayed, and others write where its blocks were.
        let spa = open(&env, dir).await;
        let za = mount_with_log(&env, &spa, "tank/a").await;
        za.lookup(za.root(), b"src").await.err().expect("it was removed");
        for round in 0..6 {
            let id = file(&za, &format!("new{round}")).await;
            za.write(id, 0, &Bytes::from(noise(100 + round, 64 * REC)), false).await.unwrap();
            spa.sync().await.unwrap();
        }
        let zb = mount_with_log(&env, &spa, "tank/b").await;
        let dst = zb.lookup(zb.root(), b"dst").await.unwrap().0.id();
        assert!(read(&zb, dst).await == data, "it was replayed from what the claim held");
        spa.sync().await.unwrap();
        assert_eq!(spa.cloned_space(), (0, 0), "it shares with nobody, so nothing was copied or kept");
        let referenced = spa.dsl.by_name("tank/b").await.unwrap().phys().referenced_bytes;
        assert!(referenced >= data.len() as u64);
        drop((za, zb));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(dir, "tank");
    });
}

#[test]
fn a_log_of_clones_that_goes_unreplayed_gives_its_references_back() {
    let env = zilla_env::real_env(2);
    let data = noise(6, 20 * REC);
    env.block_on(async {
        let crashed = cloned_and_removed(&env, &data).await;
        let spa = open(&env, crashed.path()).await;
        assert!(spa.cloned_space().0 > 0);
        let dsl = spa.dsl.clone();
        let task =
            spa.ctx.sync_task(move |tx| Box::pin(async move { dsl.destroy_head(&tx, "tank/b").await }));
        task.await.unwrap();
        spa.sync().await.unwrap();
        assert_eq!(spa.cloned_space(), (0, 0));
        let za = mount_with_log(&env, &spa, "tank/a").await;
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(crashed.path(), "tank");
    });
}

/// What was told to be stable is not dropped in silence: whoever imports the pool says that it may
/// be lost.
#[test]
fn a_logged_clone_that_cannot_be_counted_stands_in_the_way_of_an_import() {
    let env = zilla_env::real_env(2);
    let dir = tempfile::tempdir().unwrap();
    let data = noise(7, 4 * REC);
    env.block_on(async {
        let spa = create(&env, dir.path()).await;
        create_fs(&env, &spa, "tank/a").await;
        let zfs = mount_with_log(&env, &spa, "tank/a").await;
        let src = file(&zfs, "src").await;
        zfs.write(src, 0, &Bytes::copy_from_slice(&data), false).await.unwrap();
        zfs.fsync(src).await.unwrap();
        spa.sync().await.unwrap();
        let clone = async |name: &str| {
            let dst = file(&zfs, name).await;
            let done = zfs.clone_range(&zfs, at(src, 0), at(dst, 0), u64::MAX, false).await.unwrap();
            assert_eq!(done, Cloned::Bytes(data.len() as u64));
            dst
        };
        clone("first").await;
        spa.sync().await.unwrap();
        // Where the table has its entries.
        let mos = spa.ctx.mos();
        let table = Zap::open(mos, 1).await.unwrap().get_u64("com.fudosecurity:brt:vdev:0").await.unwrap();
        let bonus = mos.hold_wait(ObjectId(table)).await.unwrap().bonus();
        let entries = BrtVdevPhys::decode(&bonus, ByteOrder::NATIVE).unwrap().mos_entries;
        let entries = mos.hold_wait(ObjectId(entries)).await.unwrap();
        let leaf = resident(|| entries.block_pointer(entries.maxblkid())).await.unwrap().unwrap();
        let second = clone("second").await;
        zfs.fsync(second).await.unwrap();
        let crashed = crash(dir.path());
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let disk = std::fs::File::options().write(true).open(crashed.path().join("d0.img")).unwrap();
        for dva in leaf.dvas() {
            disk.write_all_at(&[0xee; 512], (4 << 20) + dva.offset).unwrap();
        }
        let import = async |missing_log| {
            let found = discover(&env, &[crashed.path().to_owned()]).await.unwrap();
            let opts = OpenOpts {
                force: true,
                missing_log,
                dbuf_cache: 32 << 20,
                arc_max: 64 << 20,
                ..OpenOpts::default()
            };
            Spa::open(&env, &found[0], opts).await
        };
        let e = import(false).await.err().expect("what it holds is not to be lost");
        assert!(e.to_string().contains("import with '-m'"), "{e}");
        let spa = import(true).await.unwrap();
        let zfs = mount_with_log(&env, &spa, "tank/a").await;
        assert!(read(&zfs, src).await == data);
        spa.sync().await.unwrap();
        assert!(spa.suspended().is_none());
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

async fn set(spa: &Arc<Spa>, name: &'static str, props: &'static [(&'static str, u64)]) {
    let dsl = spa.dsl.clone();
    let task = spa.ctx.sync_task(move |tx| {
        Box::pin(async move {
            let ds = dsl.by_name(name).await?;
            let props: Vec<_> =
                props.iter().map(|(p, v)| (p.to_string(), Setting::Local(Value::u64(*v)))).collect();
            dsl.set_props(&tx, &ds, &props).await
        })
    });
    task.await.unwrap();
}

/// A pool made as OpenZFS made them before `fast_dedup`.
fn older() -> Option<Vec<String>> {
    let all = zilla_core::spa::features::SUPPORTED.iter();
    Some(all.filter(|f| **f != "fast_dedup").map(|f| f.to_string()).collect())
}

fn records(seeds: &[u64]) -> Vec<u8> {
    seeds.iter().flat_map(|s| noise(*s, REC)).collect()
}

async fn unlink(zfs: &Arc<Zfs>, names: &[&str]) {
    for name in names {
        zfs.unlink(zfs.root(), name.as_bytes()).await.unwrap();
    }
}

/// `dedup=on`, and one of each other kind, with contents compared.
const ON: &[(&str, u64)] = &[("dedup", 1)];
const COMPARED: &[(&str, u64)] = &[("dedup", 14 | 256), ("copies", 2)];

#[test]
fn blocks_that_are_the_same_are_kept_once() {
    for features in [None, older()] {
        let dir = tempfile::tempdir().unwrap();
        let env = zilla_env::real_env(2);
        env.block_on(async {
            let spa = create_with(&env, dir.path(), features.clone()).await;
            create_fs(&env, &spa, "tank/a").await;
            create_fs(&env, &spa, "tank/b").await;
            set(&spa, "tank/a", ON).await;
            set(&spa, "tank/b", COMPARED).await;
            let (za, zb) = (mount(&env, &spa, "tank/a").await, mount(&env, &spa, "tank/b").await);
            let data = records(&[1, 2, 3, 1, 2, 1, 4, 5]);
            let unique = 5 * REC as u64;
            for (zfs, name) in [(&za, "x"), (&za, "y"), (&zb, "x"), (&zb, "y")] {
                let id = file(zfs, name).await;
                zfs.write(id, 0, &Bytes::from(data.clone()), false).await.unwrap();
            }
            spa.sync().await.unwrap();
            let stats = spa.dedup();
            assert_eq!((stats.dsize, stats.ref_dsize), (3 * unique, 3 * 2 * data.len() as u64));
            assert!(stats.table_size > 0);
            // The same once more in a later txg, and over itself.
            let z = file(&za, "z").await;
            za.write(z, 0, &Bytes::from(data.clone()), false).await.unwrap();
            let x = za.lookup(za.root(), b"x").await.unwrap().0.id();
            za.write(x, 0, &Bytes::from(data.clone()), false).await.unwrap();
            spa.sync().await.unwrap();
            assert_eq!(spa.dedup().dsize, 3 * unique);
            assert_eq!(spa.dedup().ref_dsize, (3 + 4) * data.len() as u64);
            drop((za, zb));
            spa.close(Some(PoolState::Exported)).await.unwrap();
            zdb_clean(dir.path(), "tank");
            let spa = open(&env, dir.path()).await;
            assert_eq!(spa.dedup().ref_dsize, 7 * data.len() as u64, "the log was read");
            let (za, zb) = (mount(&env, &spa, "tank/a").await, mount(&env, &spa, "tank/b").await);
            for (zfs, name) in [(&za, "x"), (&za, "z"), (&zb, "y")] {
                let id = zfs.lookup(zfs.root(), name.as_bytes()).await.unwrap().0.id();
                assert!(read(zfs, id).await == data, "{name}");
            }
            unlink(&za, &["x", "y"]).await;
            unlink(&zb, &["x", "y"]).await;
            spa.sync().await.unwrap();
            assert_eq!((spa.dedup().dsize, spa.dedup().ref_dsize), (unique, data.len() as u64));
            unlink(&za, &["z"]).await;
            spa.sync().await.unwrap();
            let stats = spa.dedup();
            assert_eq!((stats.dsize, stats.ref_dsize, stats.table_size), (0, 0, 0), "the tables are gone");
            assert!(!spa.ctx.features.is_active("fast_dedup"));
            drop((za, zb));
            spa.close(Some(PoolState::Exported)).await.unwrap();
            zdb_clean(dir.path(), "tank");
        });
    }
}

/// Overwrites the record of this seed on disk.
fn spoil(dir: &Path, seed: u64) {
    let path = dir.join("d0.img");
    let (disk, first) = (std::fs::read(&path).unwrap(), noise(seed, 512));
    let sectors = disk.chunks_exact(512).enumerate();
    let places: Vec<u64> = sectors.filter(|(_, s)| *s == first).map(|(n, _)| n as u64 * 512).collect();
    assert_eq!(places.len(), 1);
    let disk = std::fs::File::options().write(true).open(path).unwrap();
    disk.write_all_at(&[7; 512], places[0]).unwrap();
}

#[test]
fn nothing_new_is_shared_with_a_block_that_is_known_to_be_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let spa = create(&env, dir.path()).await;
        create_fs(&env, &spa, "tank/a").await;
        set(&spa, "tank/a", ON).await;
        let za = mount(&env, &spa, "tank/a").await;
        let x = file(&za, "x").await;
        za.write(x, 0, &Bytes::from(records(&[1, 2])), false).await.unwrap();
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        spoil(dir.path(), 1);

        let spa = open(&env, dir.path()).await;
        let za = mount(&env, &spa, "tank/a").await;
        assert!(za.read(x, 0, REC).await.is_err());
        let y = file(&za, "y").await;
        za.write(y, 0, &Bytes::from(records(&[1, 2])), false).await.unwrap();
        spa.sync().await.unwrap();
        let refs = spa.dedup().ref_dsize;
        assert_eq!(refs, 3 * REC as u64, "the block that is whole is shared");
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();

        let spa = open(&env, dir.path()).await;
        let za = mount(&env, &spa, "tank/a").await;
        assert!(read(&za, y).await == records(&[1, 2]));
        assert!(za.read(x, 0, REC).await.is_err());
        // A record that was in memory when its disk lost it.
        let z = file(&za, "z").await;
        za.write(z, 0, &Bytes::from(records(&[3])), false).await.unwrap();
        spa.sync().await.unwrap();
        spoil(dir.path(), 3);
        let again = file(&za, "again").await;
        za.write(again, 0, &Bytes::from(records(&[3])), false).await.unwrap();
        spa.sync().await.unwrap();
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = open(&env, dir.path()).await;
        let za = mount(&env, &spa, "tank/a").await;
        assert!(read(&za, again).await == records(&[3]));
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// Entries whose place in the table cannot be read stay in the log, and blocks whose entry can only
/// be found there stay.
#[test]
fn a_dedup_table_that_cannot_be_read_in_part_does_not_stop_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let env = zilla_env::real_env(2);
    env.block_on(async {
        let spa = create(&env, dir.path()).await;
        create_fs(&env, &spa, "tank/a").await;
        set(&spa, "tank/a", ON).await;
        let za = mount(&env, &spa, "tank/a").await;
        let data = Bytes::from(records(&(0..400).collect::<Vec<_>>()));
        let x = file(&za, "x").await;
        za.write(x, 0, &data, false).await.unwrap();
        let flushed = async |want: u64| {
            for _ in 0..60 {
                spa.sync().await.unwrap();
                let all = spa.ddt.report().await.unwrap();
                let stored: u64 = all.iter().flat_map(|t| &t.stored).map(|s| s.entries).sum();
                if stored >= want && all.iter().flat_map(|t| &t.logs).all(|l| l.entries == 0) {
                    return true;
                }
            }
            false
        };
        assert!(flushed(400).await);
        let y = file(&za, "y").await;
        za.write(y, 0, &data, false).await.unwrap();
        spa.sync().await.unwrap();
        // One block of each of its ZAPs.
        let objects: Vec<u64> =
            spa.ddt.report().await.unwrap().iter().flat_map(|t| &t.stored).map(|s| s.object).collect();
        for object in objects {
            let at = DataPlace::Blocks { objset: 0, object, level: 0, first: 2, last: 2 };
            let fault = Fault::Data { at, failure: Failure::Checksum, copies: Copies::default() };
            injections().add("tank", spa.ctx.guid(), fault, Frequency::Always).unwrap();
        }
        spa.drop_caches();
        assert!(!flushed(400).await, "some stay in the log");
        assert!(spa.suspended().is_none());
        assert_eq!(spa.dedup().ref_dsize, 2 * data.len() as u64);
        unlink(&za, &["x", "y"]).await;
        spa.sync().await.unwrap();
        assert!(spa.suspended().is_none());
        let left = spa.dedup().dsize;
        assert!(left > 0 && left < data.len() as u64 / 2, "{left}");
        injections().clear(None);
        let z = file(&za, "z").await;
        za.write(z, 0, &data, false).await.unwrap();
        assert!(flushed(400).await);
        assert!(read(&za, z).await == data);
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = open(&env, dir.path()).await;
        let za = mount(&env, &spa, "tank/a").await;
        assert!(read(&za, z).await == data);
        drop(za);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// Files against byte arrays, and what the tables count against what the arrays hold.
#[test]
fn what_is_counted_is_what_is_there() {
    for features in [None, older()] {
        let dir = tempfile::tempdir().unwrap();
        let env = zilla_env::real_env(2);
        env.block_on(async {
            let mut spa = create_with(&env, dir.path(), features.clone()).await;
            create_fs(&env, &spa, "tank/a").await;
            set(&spa, "tank/a", ON).await;
            let mut za = mount(&env, &spa, "tank/a").await;
            let mut files = Vec::new();
            for i in 0..4 {
                files.push((file(&za, &format!("f{i}")).await, [0u64; 12]));
            }
            let mut r = 0u64;
            let mut below = |n: usize| {
                r += 1;
                u64::from_le_bytes(noise(r, 8).try_into().unwrap()) as usize % n
            };
            for step in 0..400 {
                let (i, at) = (below(4), below(12));
                let (id, all) = &mut files[i];
                match below(10) {
                    0..6 => {
                        all[at] = 1 + below(9) as u64;
                        let data = Bytes::from(records(&all[at..=at]));
                        za.write(*id, (at * REC) as u64, &data, false).await.unwrap();
                    }
                    6 => {
                        all[at] = 0;
                        za.punch(*id, (at * REC) as u64, REC as u64, false, true).await.unwrap();
                    }
                    7 => {
                        all[at..].fill(0);
                        let size = Some((at * REC) as u64);
                        za.setattr(*id, SetAttr { size, ..SetAttr::default() }).await.unwrap();
                    }
                    _ => {
                        spa.sync().await.unwrap();
                        let pointers = files.iter().flat_map(|(_, all)| all).filter(|s| **s != 0);
                        let once: std::collections::BTreeSet<_> = pointers.clone().collect();
                        let stats = spa.dedup();
                        let want = (once.len() * REC, pointers.count() * REC);
                        assert_eq!((stats.dsize as usize, stats.ref_dsize as usize), want, "step {step}");
                    }
                }
                if step % 150 == 149 {
                    drop(za);
                    spa.close(Some(PoolState::Exported)).await.unwrap();
                    zdb_clean(dir.path(), "tank");
                    spa = open(&env, dir.path()).await;
                    za = mount(&env, &spa, "tank/a").await;
                }
            }
            for (id, all) in &files {
                let mut found = read(&za, *id).await;
                found.resize(12 * REC, 0);
                let want = all.iter().flat_map(|s| if *s == 0 { vec![0; REC] } else { noise(*s, REC) });
                assert!(found == want.collect::<Vec<u8>>());
            }
            unlink(&za, &["f0", "f1", "f2", "f3"]).await;
            spa.sync().await.unwrap();
            assert_eq!(spa.dedup().table_size, 0);
            drop(za);
            spa.close(Some(PoolState::Exported)).await.unwrap();
            zdb_clean(dir.path(), "tank");
        });
    }
}
