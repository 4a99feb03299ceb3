//! A scrub of a real pool: finds and repairs what is damaged, leaves alone what is not, and can be
//! interrupted.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};
use zilla_core::dmu::{WriteProps, resident};
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::types::ObjectId;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{Cred, FsProps, NewFile, Unlimited, Zfs};
use zilla_env::{Env, real_env};
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::enums::{PoolState, ScanState};
use zilla_testkit::zdb_clean;

const MIB: u64 = 1 << 20;

fn host() -> Host {
    Host { id: 0x1234, name: "here".into() }
}

async fn fs(env: &Env, spa: &Arc<Spa>) -> Arc<Zfs> {
    let ds = spa.dsl.by_name("tank").await.unwrap();
    let os = spa.dsl.objset(&ds).await.unwrap();
    Zfs::open(env.clone(), os, Some(spa.ctx.txgs.clone()), Arc::new(Unlimited), FsProps::default())
        .await
        .unwrap()
}

fn contents(i: u32) -> Vec<u8> {
    let mut x = u64::from(i) + 1;
    (0..u64::from(i) * 1900)
        .map(|_| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) as u8
        })
        .collect()
}

async fn put(zfs: &Arc<Zfs>, range: std::ops::Range<u32>) {
    for i in range {
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), format!("f{i}").as_bytes(), new).await.unwrap();
        zfs.write(h.id(), 0, &contents(i).into(), false).await.unwrap();
    }
}

async fn check(zfs: &Arc<Zfs>, range: std::ops::Range<u32>) {
    for i in range {
        let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
        let data = zfs.read(h.id(), 0, a.size as usize).await.unwrap();
        assert!(data.concat() == contents(i), "f{i}");
    }
}

struct World {
    env: Env,
    dir: PathBuf,
}

impl World {
    fn new(name: &str) -> World {
        let dir = std::env::temp_dir().join(format!("zilla-scrub-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        World { env: real_env(2), dir }
    }

    fn path(&self, i: usize) -> PathBuf {
        self.dir.join(format!("d{i}.img"))
    }

    async fn create(&self, kind: VdevKind, n: usize) -> Arc<Spa> {
        let leaves = (0..n)
            .map(|i| {
                std::fs::File::create(self.path(i)).unwrap().set_len(128 * MIB).unwrap();
                LeafSpec { path: self.path(i), disk: false }
            })
            .collect();
        let top = TopSpec { kind, leaves, is_log: false, bias: None, ashift: None };
        let opts = CreateOpts {
            name: "tank".into(),
            host: host(),
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 32 << 20,
            arc_max: 64 << 20,
        };
        let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
        Spa::create(&self.env, &spec, opts).await.unwrap()
    }

    async fn import(&self) -> Arc<Spa> {
        let found = discover(&self.env, std::slice::from_ref(&self.dir)).await.unwrap();
        let opts = OpenOpts { host: host(), dbuf_cache: 32 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
        Spa::open(&self.env, &found[0], opts).await.unwrap()
    }

    /// Overwrites everything between the labels of one disk.
    fn damage(&self, i: usize) {
        let f = OpenOptions::new().write(true).open(self.path(i)).unwrap();
        let junk = vec![0xa5; MIB as usize];
        for at in 5..120 {
            f.write_all_at(&junk, at * MIB).unwrap();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

async fn snapshot(spa: &Arc<Spa>, name: &'static str) {
    let dsl = spa.dsl.clone();
    let task = move |tx| -> futures_util::future::BoxFuture<'static, zilla_core::error::Result<()>> {
        Box::pin(async move { dsl.snapshot(&tx, &[name.to_string()]).await.map(drop) })
    };
    spa.ctx.sync_task(task).await.unwrap();
}

/// Our own opinion on the same.
async fn own_check(spa: &Arc<Spa>) {
    let report = spa.check_space().await.unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert_eq!(report.referenced, report.allocated);
}

async fn scrub(spa: &Arc<Spa>) -> zilla_core::scan::ScanStatus {
    let scan = spa.scan().unwrap();
    scan.start().await.unwrap();
    scan.wait().await;
    let s = scan.status();
    assert_eq!(s.state, ScanState::Finished as u64);
    assert_eq!(s.examined, s.issued);
    s
}

fn damage_one_side(name: &str, kind: VdevKind, n: usize) {
    let w = World::new(name);
    w.env.block_on(async {
        let spa = w.create(kind, n).await;
        let zfs = fs(&w.env, &spa).await;
        put(&zfs, 0..60).await;
        snapshot(&spa, "tank@one").await;
        put(&zfs, 60..120).await;
        spa.sync().await.unwrap();
        drop(zfs);
        let s = scrub(&spa).await;
        assert_eq!((s.errors, s.processed), (0, 0));
        assert!(s.examined > 100 * 1900 * 60, "{s:?}");
        own_check(&spa).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&w.dir, "tank");
    w.damage(1);
    w.env.block_on(async {
        let spa = w.import().await;
        let s = scrub(&spa).await;
        assert_eq!(s.errors, 0);
        assert!(s.processed > 0, "{s:?}");
        assert_eq!(spa.scan().unwrap().errors.count().await.unwrap(), 0);
        let s = scrub(&spa).await;
        assert_eq!((s.errors, s.processed), (0, 0), "repaired for good");
        check(&fs(&w.env, &spa).await, 0..120).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&w.dir, "tank");
}

#[test]
fn a_mirror_is_repaired() {
    damage_one_side("mirror", VdevKind::Mirror, 2);
}

#[test]
fn a_raidz_is_repaired() {
    damage_one_side("raidz", VdevKind::Raidz { nparity: 1 }, 3);
}

#[test]
fn a_scrub_from_the_last_one_reads_what_is_new() {
    let w = World::new("last");
    w.env.block_on(async {
        let spa = w.create(VdevKind::Mirror, 2).await;
        let zfs = fs(&w.env, &spa).await;
        put(&zfs, 0..60).await;
        spa.sync().await.unwrap();
        let whole = scrub(&spa).await;
        put(&zfs, 60..70).await;
        snapshot(&spa, "tank@one").await;
        put(&zfs, 70..80).await;
        spa.sync().await.unwrap();
        let scan = spa.scan().unwrap();
        scan.start_from_last().await.unwrap();
        scan.wait().await;
        let s = scan.status();
        assert_eq!((s.state, s.errors), (ScanState::Finished as u64, 0));
        // There is metadata too.
        let new: u64 = (60..80).map(|i| contents(i).len() as u64).sum();
        assert!(s.issued >= new && s.issued < whole.issued, "{new}: {s:?}, {whole:?}");
        spa.sync().await.unwrap();
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    // Of one side all is damaged; what is older than the last scrub is not looked at.
    w.damage(1);
    w.env.block_on(async {
        let spa = w.import().await;
        let zfs = fs(&w.env, &spa).await;
        put(&zfs, 80..90).await;
        spa.sync().await.unwrap();
        drop(zfs);
        let scan = spa.scan().unwrap().clone();
        scan.start_from_last().await.unwrap();
        scan.wait().await;
        let some = scan.status();
        let all = scrub(&spa).await;
        assert!(all.processed > some.processed, "{some:?}, {all:?}");
        check(&fs(&w.env, &spa).await, 0..90).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&w.dir, "tank");
}

#[test]
fn a_draid_is_repaired() {
    damage_one_side("draid", VdevKind::Draid { nparity: 1, ndata: 2, nspares: 0 }, 5);
}

#[test]
fn what_cannot_be_repaired_is_logged() {
    let w = World::new("both");
    w.env.block_on(async {
        let spa = w.create(VdevKind::Mirror, 2).await;
        put(&fs(&w.env, &spa).await, 0..60).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    // Some of both sides, away from where the pool's own blocks begin.
    for i in 0..2 {
        let f = OpenOptions::new().read(true).write(true).open(w.path(i)).unwrap();
        let mut at = 6 * MIB;
        while at < 14 * MIB {
            let mut block = [0; 4096];
            f.read_exact_at(&mut block, at).unwrap();
            // Random contents of files, not metadata, which is compressed and ends in zeroes.
            if block.iter().filter(|b| **b == 0).count() < 40 {
                f.write_all_at(&[0; 512], at).unwrap();
                break;
            }
            at += 4096;
        }
    }
    w.env.block_on(async {
        let spa = w.import().await;
        let s = scrub(&spa).await;
        let scan = spa.scan().unwrap();
        let known = scan.errors.entries().await.unwrap();
        assert!(s.errors >= 1 && known.len() as u64 == s.errors, "{s:?} {known:?}");
        assert!(known.iter().all(|e| e.birth > 0), "{known:?}");
        spa.close(Some(PoolState::Exported)).await.unwrap();
        let spa = w.import().await;
        assert_eq!(spa.scan().unwrap().errors.entries().await.unwrap(), known);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

#[test]
fn interrupted_and_disturbed() {
    let w = World::new("interrupted");
    w.env.block_on(async {
        let spa = w.create(VdevKind::Mirror, 2).await;
        put(&fs(&w.env, &spa).await, 0..100).await;
        spa.sync().await.unwrap();
        let scan = spa.scan().unwrap();
        scan.start().await.unwrap();
        scan.pause().await.ok();
        let paused = scan.is_paused();
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(&w.dir, "tank");
        let spa = w.import().await;
        let scan = spa.scan().unwrap().clone();
        assert_eq!(scan.is_paused(), paused);
        if paused {
            scan.start().await.unwrap();
            scan.wait().await;
        }
        assert_eq!(scan.status().state, ScanState::Finished as u64);
        // Files come and go, snapshots are taken, while scrubs run.
        let zfs = fs(&w.env, &spa).await;
        for round in 0..6u32 {
            scan.start().await.unwrap();
            for i in 0..40 {
                let name = format!("f{i}");
                zfs.unlink(zfs.root(), name.as_bytes()).await.unwrap();
            }
            spa.sync().await.unwrap();
            snapshot(&spa, ["tank@0", "tank@1", "tank@2", "tank@3", "tank@4", "tank@5"][round as usize])
                .await;
            put(&zfs, 0..40).await;
            spa.sync().await.unwrap();
            scan.wait().await;
            let s = scan.status();
            assert_eq!((s.state, s.errors, s.processed), (ScanState::Finished as u64, 0, 0));
        }
        check(&zfs, 0..100).await;
        own_check(&spa).await;
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&w.dir, "tank");
}

const RECORD: u64 = 128 << 10;

/// The pointers to a file's records.
async fn pointers(zfs: &Arc<Zfs>, id: u64, n: u64) -> Vec<BlkPtr> {
    let dn = resident(|| zfs.objset().hold(ObjectId(id))).await.unwrap();
    let mut out = Vec::new();
    for blkid in 0..n {
        out.push(resident(|| dn.block_pointer(blkid)).await.unwrap().unwrap());
    }
    out
}

/// Writes a file's contents again; whether its blocks stayed where they were. Others than all or
/// none are a failure.
async fn stayed(spa: &Arc<Spa>, zfs: &Arc<Zfs>, id: u64, data: &[u8]) -> bool {
    let n = (data.len() as u64).div_ceil(RECORD);
    let before = pointers(zfs, id, n).await;
    zfs.write(id, 0, &data.to_vec().into(), false).await.unwrap();
    spa.sync().await.unwrap();
    let after = pointers(zfs, id, n).await;
    let same = before.iter().zip(&after).filter(|(a, b)| a == b).count();
    assert!(same == 0 || same == before.len(), "{before:?} {after:?}");
    assert!(zfs.read(id, 0, data.len()).await.unwrap().concat() == data);
    same > 0
}

#[test]
fn a_block_that_is_written_as_it_is_stays() {
    let w = World::new("nopwrite");
    let text = |i: u64| -> Vec<u8> {
        (0..4 * RECORD).map(|at| if at % 3 == 0 { (at >> 7) as u8 } else { i as u8 }).collect()
    };
    let lz4 = CompressSpec::new(Compress::Lz4);
    let id = w.env.block_on(async {
        let spa = w.create(VdevKind::File, 1).await;
        let zfs = fs(&w.env, &spa).await;
        let os = zfs.objset().clone();
        let set = |checksum, compress, copies| {
            os.set_props(WriteProps { checksum, compress, copies, ..os.props() });
        };
        set(Checksum::Sha256, lz4, 1);
        let (h, _) = zfs.create(zfs.root(), b"f", NewFile::new(0o100644, Cred::default())).await.unwrap();
        let id = h.id();
        zfs.write(id, 0, &text(1).into(), false).await.unwrap();
        spa.sync().await.unwrap();
        snapshot(&spa, "tank@one").await;
        assert!(stayed(&spa, &zfs, id, &text(1)).await);
        own_check(&spa).await;
        assert!(!stayed(&spa, &zfs, id, &text(2)).await);
        assert!(!stayed(&spa, &zfs, id, &text(1)).await);
        // Who wants it elsewhere has it so.
        let before = pointers(&zfs, id, 4).await;
        zfs.rewrite(id, 0, 0).await.unwrap();
        spa.sync().await.unwrap();
        let after = pointers(&zfs, id, 4).await;
        assert!(before.iter().zip(&after).all(|(a, b)| a.dva(0) != b.dva(0) && a.birth() < b.birth()));
        // Written otherwise than they are: at first anew, and then as that is strong enough.
        let cases = [
            (Checksum::Sha256, lz4, 2, true),
            (Checksum::Sha512, lz4, 2, true),
            (Checksum::Sha512, lz4, 1, true),
            (Checksum::Edonr, CompressSpec::new(Compress::Zle), 1, true),
            (Checksum::Blake3, lz4, 1, true),
            (Checksum::Fletcher4, lz4, 1, false),
            (Checksum::Sha256, CompressSpec::OFF, 1, false),
            (Checksum::Sha256, lz4, 1, true),
        ];
        for (checksum, compress, copies, stays) in cases {
            set(checksum, compress, copies);
            assert!(!stayed(&spa, &zfs, id, &text(1)).await, "{checksum:?} {compress:?} {copies}");
            assert_eq!(stayed(&spa, &zfs, id, &text(1)).await, stays, "{checksum:?} {compress:?} {copies}");
        }
        own_check(&spa).await;
        let first = pointers(&zfs, id, 1).await[0];
        drop((h, zfs, os));
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(&w.dir, "tank");
        let f = OpenOptions::new().write(true).open(w.path(0)).unwrap();
        f.write_all_at(&[0xa5; 512], first.dva(0).offset + 4 * MIB).unwrap();
        id
    });
    w.env.block_on(async {
        let spa = w.import().await;
        let zfs = fs(&w.env, &spa).await;
        let os = zfs.objset().clone();
        os.set_props(WriteProps { checksum: Checksum::Sha256, compress: lz4, ..os.props() });
        // Whoever meets damage and overwrites it wants it on disk.
        assert!(zfs.read(id, 0, RECORD as usize).await.is_err());
        assert!(!stayed(&spa, &zfs, id, &text(1)).await);
        // While the log has it nothing stays; the scrub's end clears it.
        assert!(!stayed(&spa, &zfs, id, &text(1)).await);
        assert_eq!(scrub(&spa).await.errors, 0);
        assert!(stayed(&spa, &zfs, id, &text(1)).await);
        drop((zfs, os));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    zdb_clean(&w.dir, "tank");
}
