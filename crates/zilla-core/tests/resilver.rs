//! Resilvers that do not have it easy: they are cut off while blocks change places, and datasets
//! wait to be freed beside them. What they end with is a device that has everything.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use zilla_core::error::Result;
use zilla_core::spa::{CreateOpts, Host, OpenOpts, Spa, discover};
use zilla_core::tunables;
use zilla_core::txg::Tx;
use zilla_core::types::Txg;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::Zap;
use zilla_core::zio::Leave;
use zilla_core::zpl::{
    self, Cloned, Cred, FilePlace, FsProps, NewFile, Space, Time, Unlimited, Zfs, ZplProps,
};
use zilla_env::{Env, real_env};
use zilla_ondisk::dsl::{DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_SCAN, DslScanPhys, WordsPhys};
use zilla_ondisk::enums::{ObjsetType, PoolState, ScanState};
use zilla_testkit::zdb_clean;

const RECORD: usize = 512;
/// More blocks than a round has that takes the least memory.
const MANY: usize = 7000;

/// What the tests set is everybody's.
static TUNABLES: Mutex<()> = Mutex::new(());

/// A dataset without bounds, where blocks may be cloned.
struct Clones;

impl Space for Clones {
    fn usage(&self) -> (u64, u64) {
        Unlimited.usage()
    }
    fn admit(&self, tx: &Tx, bytes: u64, frees: bool) -> Result<()> {
        Unlimited.admit(tx, bytes, frees)
    }
    fn hold_room(&self, tx: &Tx, space: u64, leave: Leave) -> Result<()> {
        Unlimited.hold_room(tx, space, leave)
    }
    fn need_feature(&self, name: &'static str) {
        Unlimited.need_feature(name);
    }
    fn clones(&self) -> Option<Txg> {
        Some(Txg(u64::MAX))
    }
}

struct World {
    env: Env,
    dir: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
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

impl World {
    fn new() -> World {
        let alone = TUNABLES.lock().unwrap_or_else(PoisonError::into_inner);
        tunables::SCAN_SUSPEND_PROGRESS.set(0);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("away")).unwrap();
        World { env: real_env(2), dir, _alone: alone }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A mirror whose second side is away.
    async fn one_sided(&self) -> Arc<Spa> {
        let leaf = |name: &&str| {
            std::fs::File::create(self.path(name)).unwrap().set_len(128 << 20).unwrap();
            LeafSpec { path: self.path(name), disk: false }
        };
        let leaves = ["a", "b"].iter().map(leaf).collect();
        let top = TopSpec { kind: VdevKind::Mirror, leaves, is_log: false, bias: None, ashift: Some(9) };
        let opts = CreateOpts {
            name: "tank".into(),
            host: Host { id: 0x1234, name: "here".into() },
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 8 << 20,
            arc_max: 16 << 20,
        };
        let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
        let spa = Spa::create(&self.env, &spec, opts).await.unwrap();
        self.export(spa).await;
        self.take("b");
        self.import(false).await
    }

    async fn import(&self, readonly: bool) -> Arc<Spa> {
        let found = discover(&self.env, &[self.dir.path().to_owned()]).await.unwrap();
        let opts = OpenOpts {
            readonly,
            host: Host { id: 0x1234, name: "here".into() },
            dbuf_cache: 8 << 20,
            arc_max: 16 << 20,
            ..OpenOpts::default()
        };
        Spa::open(&self.env, &found[0], opts).await.unwrap()
    }

    async fn export(&self, spa: Arc<Spa>) {
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(self.dir.path(), "tank");
    }

    fn take(&self, name: &str) {
        std::fs::rename(self.path(name), self.path("away").join(name)).unwrap();
    }

    /// The other side is back, and its resilver stands still where it begins.
    async fn with_both(&self, spa: Arc<Spa>) -> Arc<Spa> {
        self.export(spa).await;
        std::fs::rename(self.path("away").join("b"), self.path("b")).unwrap();
        tunables::SCAN_SUSPEND_PROGRESS.set(1);
        let spa = self.import(false).await;
        assert!(spa.scan().unwrap().is_resilvering());
        spa
    }

    async fn zfs(&self, spa: &Arc<Spa>, name: &str) -> Arc<Zfs> {
        let ds = spa.dsl.by_name(name).await.unwrap();
        let os = spa.dsl.objset(&ds).await.unwrap();
        let txgs = (!spa.ctx.readonly).then(|| spa.ctx.txgs.clone());
        let props = FsProps { recordsize: RECORD as u32, ..FsProps::default() };
        Zfs::open(self.env.clone(), os, txgs, Arc::new(Clones), props).await.unwrap()
    }

    async fn file(&self, zfs: &Arc<Zfs>, name: &str, data: Vec<u8>) -> u64 {
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap();
        for (i, part) in data.chunks(1 << 20).enumerate() {
            zfs.write(h.id(), (i << 20) as u64, &part.to_vec().into(), false).await.unwrap();
        }
        h.id()
    }

    /// Lets the scan go on until its place on disk is in that object, or, without one, in a later
    /// walk, and stops it there.
    async fn until(&self, spa: &Arc<Spa>, object: Option<u64>) {
        tunables::SCAN_SUSPEND_PROGRESS.set(0);
        loop {
            let there = match object {
                Some(object) => on_disk(spa).await.bookmark.object == object,
                None => walks_again(spa).await,
            };
            if there {
                break;
            }
            assert!(spa.scan().unwrap().is_scanning(), "it is over");
            self.env.sleep(Duration::from_millis(1)).await;
        }
        tunables::SCAN_SUSPEND_PROGRESS.set(1);
    }

    async fn over(&self, spa: &Arc<Spa>) {
        let began = self.env.now();
        while spa.scan().unwrap().is_scanning() {
            assert!(self.env.now() - began < Duration::from_secs(300), "the resilver does not end");
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        tunables::SCAN_SUSPEND_PROGRESS.set(0);
    }
}

async fn directory(spa: &Arc<Spa>) -> Zap {
    Zap::open(spa.ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await.unwrap()
}

/// The scan as it is on disk.
async fn on_disk(spa: &Arc<Spa>) -> DslScanPhys {
    let words = directory(spa).await.get(DMU_POOL_SCAN).await.unwrap();
    DslScanPhys::from_words(&words.as_u64s().unwrap(), 24).unwrap()
}

async fn walks_again(spa: &Arc<Spa>) -> bool {
    directory(spa).await.try_get("zilla:scan_again").await.unwrap().is_some()
}

/// Whether the export said that no later walk is needed. (Nobody has written the pool since.)
async fn is_known(w: &World) -> bool {
    let spa = w.import(true).await;
    let scan = on_disk(&spa).await;
    let known = directory(&spa).await.try_get("zilla:scan_known").await.unwrap();
    let want = [scan.max_txg, scan.start_time, spa.opened_at().txg];
    spa.close(None).await.unwrap();
    known.is_some_and(|v| v.as_u64s().unwrap()[..] == want)
}

/// In the midst of its walk, and of the later one that it needs for what was cloned; it is the same
/// resilver all the time. OpenZFS finds no fault with the pool as it is then.
#[test]
fn one_that_is_cut_off_while_blocks_change_places_ends_with_them() {
    let w = World::new();
    tunables::SCAN_MEM_LIM_FACT.set(u64::MAX);
    // One at a time, so that a round takes a while.
    tunables::SCAN_VDEV_LIMIT.set(1);
    let data = noise(3, MANY * RECORD);
    w.env.clone().block_on(async {
        let spa = w.one_sided().await;
        let zfs = w.zfs(&spa, "tank").await;
        let early = w.file(&zfs, "early", Vec::new()).await;
        let between = w.file(&zfs, "between", noise(1, 4 * MANY * RECORD)).await;
        let late = w.file(&zfs, "late", data.clone()).await;
        assert!(early < between && between < late);
        drop(zfs);
        spa.sync().await.unwrap();
        let spa = w.with_both(spa).await;
        let first = on_disk(&spa).await;
        w.until(&spa, Some(between)).await;
        w.export(spa).await;
        assert!(is_known(&w).await, "no block has changed places");
        let spa = w.import(false).await;
        let zfs = w.zfs(&spa, "tank").await;
        let mut done = 0;
        while done < data.len() as u64 {
            let (from, to) =
                (FilePlace { object: late, offset: done }, FilePlace { object: early, offset: done });
            match zfs.clone_range(&zfs, from, to, u64::MAX, false).await.unwrap() {
                Cloned::Bytes(n) => done += n,
                other => panic!("{other:?}"),
            }
        }
        spa.sync().await.unwrap();
        zfs.unlink(zfs.root(), b"late").await.unwrap();
        drop(zfs);
        for _ in 0..3 {
            spa.sync().await.unwrap();
        }
        assert_eq!(on_disk(&spa).await.bookmark.object, between, "it stands still");
        w.export(spa).await;
        assert!(!is_known(&w).await);
        let spa = w.import(false).await;
        w.until(&spa, None).await;
        w.export(spa).await;
        let spa = w.import(false).await;
        assert!(walks_again(&spa).await && spa.scan().unwrap().is_resilvering());
        tunables::SCAN_SUSPEND_PROGRESS.set(0);
        w.over(&spa).await;
        let last = on_disk(&spa).await;
        assert_eq!((last.state, last.errors), (ScanState::Finished as u64, 0));
        assert_eq!((last.max_txg, last.start_time), (first.max_txg, first.start_time), "it is the same one");
        assert!(spa.tree().pool_leaves().all(|l| l.dtl.is_empty()));
        assert!(!walks_again(&spa).await);
        w.export(spa).await;
        w.take("a");
        let spa = w.import(true).await;
        let zfs = w.zfs(&spa, "tank").await;
        assert!(zfs.read(early, 0, data.len()).await.unwrap().concat() == data);
        drop(zfs);
        spa.close(None).await.unwrap();
    });
    tunables::SCAN_MEM_LIM_FACT.set(20);
    tunables::SCAN_VDEV_LIMIT.set(32 << 20);
}

/// Its tree, of which the device has nothing, is read to free what is below it.
#[test]
fn one_ends_when_what_was_destroyed_is_freed() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spa = w.one_sided().await;
        let dsl = spa.dsl.clone();
        let now = w.env.wall().as_secs() as i64;
        let make = move |tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let ds = dsl.create_fs(&tx, "tank/x", ObjsetType::Zfs, 0).await?;
                let props = ZplProps::new(0, 0, Time { sec: now, nsec: 0 });
                zpl::create_fs(&dsl.objset(&ds).await?, &tx, &props).await
            })
        };
        spa.ctx.sync_task(make).await.unwrap();
        let zfs = w.zfs(&spa, "tank/x").await;
        w.file(&zfs, "f", noise(5, MANY * RECORD)).await;
        drop(zfs);
        spa.sync().await.unwrap();
        let spa = w.with_both(spa).await;
        tunables::ASYNC_BLOCK_MAX_BLOCKS.set(100);
        let dsl = spa.dsl.clone();
        let destroy = move |tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move { dsl.destroy_head(&tx, "tank/x").await })
        };
        spa.ctx.sync_task(destroy).await.unwrap();
        assert_ne!(spa.dsl.waiting().await.unwrap().queue, 0);
        tunables::SCAN_SUSPEND_PROGRESS.set(0);
        w.over(&spa).await;
        assert_eq!(spa.dsl.waiting().await.unwrap().queue, 0, "its tree is still to be read");
        assert!(spa.tree().pool_leaves().all(|l| l.dtl.is_empty()));
        tunables::ASYNC_BLOCK_MAX_BLOCKS.set(100_000);
        let report = spa.check_space().await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.problems);
        w.export(spa).await;
    });
}
