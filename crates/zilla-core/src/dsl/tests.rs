//! A pool on a store in memory: every operation, then the whole pool is checked block by block.

use super::traverse::collect;
use super::*;
use crate::dmu::testing::{MemStore, props};
use crate::dmu::{DbufCache, NewObject, Objset, resident};
use crate::error::{Errno, Error, Result};
use crate::pool::PoolCtx;
use crate::txg::{Tx, TxgState};
use crate::types::{ObjectId, TXG_INITIAL, Txg};
use crate::zap::{CreateOpts, Value, Zap};
use crate::zpl::{Time, ZplProps};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_env::block_on;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::dnode::DnodePhys;
use zilla_ondisk::dsl::{DD_FLAG_USED_BREAKDOWN, DMU_POOL_DIRECTORY_OBJECT};
use zilla_ondisk::enums::{ObjsetType, SPA_VERSION_FEATURES};
use zilla_ondisk::object_type::{
    DMU_OT_DNODE, DMU_OT_OBJECT_DIRECTORY, DMU_OT_PLAIN_FILE_CONTENTS, DMU_OTN_ZAP_METADATA,
};

mod bookmarks;
mod holds;
mod keys;
mod life;
mod limits;
mod livelists;
mod space;

const FEATURES: &[&str] = &[
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "bookmarks",
    "bookmark_v2",
    "bookmark_written",
    "embedded_data",
    "large_blocks",
    "userobj_accounting",
    "project_quota",
];

struct Pool {
    store: Arc<MemStore>,
    cache: Arc<DbufCache>,
    dsl: Arc<DslPool>,
    txg: Txg,
    root: BlkPtr,
    version: u64,
}

fn ctx(store: &Arc<MemStore>, cache: &Arc<DbufCache>, mos: Arc<Objset>) -> Arc<PoolCtx> {
    let env = zilla_env::real_env(1);
    let txgs = TxgState::new(env.clone(), TXG_INITIAL);
    let ctx = PoolCtx::new(env, store.clone(), cache.clone(), txgs, 1, false);
    ctx.set_mos(mos);
    ctx
}

impl Pool {
    fn new() -> Pool {
        Pool::with(FEATURES)
    }

    fn with(features: &[&str]) -> Pool {
        Pool::of(SPA_VERSION_FEATURES, features)
    }

    fn of(version: u64, features: &[&str]) -> Pool {
        let store = Arc::new(MemStore::default());
        let cache = DbufCache::new(64 << 20);
        let mos = Objset::create(0, 1, store.clone(), cache.clone(), props());
        let tx = Tx::syncing(TXG_INITIAL);
        let ctx = ctx(&store, &cache, mos.clone());
        ctx.set_version(version);
        size_for(&mos, version);
        let dsl = block_on(async {
            let none = CreateOpts::default();
            let id = ObjectId(DMU_POOL_DIRECTORY_OBJECT);
            let dn = resident(|| Zap::create_claim(&mos, &tx, id, DMU_OT_OBJECT_DIRECTORY, &none)).await?;
            let directory = Zap::new(&dn);
            if version == SPA_VERSION_FEATURES {
                ctx.features.create(&mos, &directory, &tx).await?;
            }
            for f in features {
                ctx.features.enable(&mos, &directory, &tx, f).await?;
            }
            let mut props = ZplProps::new(0, 0, Time::from_wall(ctx.env.wall()));
            props.version = crate::zpl::version_for(version);
            DslPool::create(&ctx, &tx, &props).await
        })
        .unwrap();
        dsl.set_name("tank");
        dsl.set_pool_space(PoolSpace { dspace: 1 << 40, ..PoolSpace::default() });
        let mut pool = Pool { store, cache, dsl, txg: TXG_INITIAL, root: BlkPtr::ZERO, version };
        pool.sync();
        pool
    }

    fn tx(&self) -> Tx {
        Tx::syncing(self.txg)
    }

    /// Syncs the open txg as the pool's sync task does.
    fn sync(&mut self) {
        let tx = self.tx();
        block_on(async {
            self.dsl.sync_datasets(&tx).await.unwrap();
            self.dsl.process_async_frees(&tx).await.unwrap();
            self.dsl.sync_dirs(&tx).await.unwrap();
            self.passes(&tx).await;
        });
        self.dsl.sync_done(self.txg);
        self.txg = self.txg.next();
    }

    async fn passes(&mut self, tx: &Tx) {
        let mos = self.dsl.mos().clone();
        for pass in 0.. {
            assert!(pass < 50, "does not converge");
            self.store.free(&self.dsl.ctx().take_frees(tx.txg()));
            if !mos.is_dirty(tx.txg()) {
                break;
            }
            let out = mos.sync(tx.txg(), self.root).await.unwrap();
            self.root = out.root;
            self.dsl.mos_synced(&out);
            out.killed.iter().for_each(|bp| self.dsl.ctx().free(bp));
        }
    }

    /// Runs a sync task: the open txg's data first, as in a pool.
    fn task<T>(&mut self, f: impl AsyncFnOnce(Arc<DslPool>, &Tx) -> Result<T>) -> Result<T> {
        let tx = self.tx();
        let out = block_on(async {
            self.dsl.sync_datasets(&tx).await.unwrap();
            let out = f(self.dsl.clone(), &tx).await;
            self.dsl.sync_datasets(&tx).await.unwrap();
            self.passes(&tx).await;
            out
        });
        self.txg = self.txg.next();
        out
    }

    fn reopen(&mut self) {
        let os = Objset::open(0, &self.root, self.store.clone(), self.cache.clone(), props());
        let ctx = ctx(&self.store, &self.cache, block_on(os).unwrap());
        ctx.set_version(self.version);
        self.dsl = block_on(async {
            let directory = Zap::open(ctx.mos(), 1).await.unwrap();
            ctx.features.load(ctx.mos(), &directory).await.unwrap();
            let dsl = DslPool::open(&ctx).await.unwrap();
            dsl.set_name("tank");
            dsl
        });
        self.dsl.set_pool_space(PoolSpace { dspace: 1 << 40, ..PoolSpace::default() });
    }

    fn ds(&self, name: &str) -> Arc<DslDataset> {
        block_on(self.dsl.by_name(name)).unwrap()
    }

    /// Writes `blocks` blocks of an object from `first` on, in the open txg.
    fn write(&self, fs: &str, object: u64, first: u64, blocks: u64, byte: u8) {
        let (ds, tx) = (self.ds(fs), self.tx());
        let os = block_on(self.dsl.objset(&ds)).unwrap();
        let dn = match block_on(os.hold_wait(ObjectId(object))) {
            Ok(dn) => dn,
            Err(_) => {
                let spec = NewObject::new(DMU_OT_PLAIN_FILE_CONTENTS, 4096);
                block_on(resident(|| os.claim(&tx, ObjectId(object), spec))).unwrap()
            }
        };
        for b in first..first + blocks {
            dn.write(&tx, b * 4096, &[byte; 4096]);
        }
    }

    fn read(&self, fs: &str, object: u64, block: u64) -> u8 {
        let os = block_on(self.dsl.objset(&self.ds(fs))).unwrap();
        let dn = block_on(os.hold_wait(ObjectId(object))).unwrap();
        let mut buf = [0; 4096];
        block_on(dn.read_wait(block * 4096, &mut buf)).unwrap();
        assert!(buf.iter().all(|b| *b == buf[0]));
        buf[0]
    }

    fn create(&mut self, name: &str) {
        self.task(async |p, tx| p.create_fs(tx, name, ObjsetType::Other, 0).await).unwrap();
    }
    fn snapshot(&mut self, name: &str) {
        self.task(async |p, tx| p.snapshot(tx, &[name.to_owned()]).await).unwrap();
    }
    fn destroy_snapshot(&mut self, name: &str) {
        self.task(async |p, tx| p.destroy_snapshots(tx, &[name.to_owned()], false).await).unwrap();
    }
    fn destroy(&mut self, name: &str) {
        self.task(async |p, tx| p.destroy_head(tx, name).await).unwrap();
    }

    /// Every block of the store belongs to something, every sum is right.
    fn check(&mut self) {
        // What the last txgs left to be freed, first.
        for _ in 0..3 {
            self.sync();
        }
        self.reopen();
        block_on(self.check_all());
    }

    async fn check_all(&self) {
        let dsl = &self.dsl;
        let store: Arc<dyn BlockStore> = self.store.clone();
        let mut seen = BTreeSet::new();
        let mut add = |bps: Vec<BlkPtr>| {
            bps.iter().filter(|b| !b.is_embedded()).for_each(|b| {
                seen.insert(b.dva(0).offset);
            })
        };
        add(collect(&store, self.root, 0, None, usize::MAX).await.unwrap().0);
        let mut todo = vec![dsl.root_dir()];
        let mut sums = Vec::new();
        while let Some(dir) = todo.pop() {
            for e in Zap::open(dsl.mos(), dir.phys().child_dir_zapobj).await.unwrap().entries().await.unwrap()
            {
                todo.push(dsl.dir(e.value.as_u64().unwrap()).await.unwrap());
            }
            let d = dir.phys();
            if d.flags & DD_FLAG_USED_BREAKDOWN != 0 {
                assert_eq!(d.used_breakdown.iter().sum::<u64>(), d.used_bytes, "{}: breakdown", dir.name());
            }
            if d.head_dataset_obj == 0 {
                continue;
            }
            let head = dsl.head(&dir).await.unwrap();
            let mut all = dsl.snapshots(&head).await.unwrap();
            all.push(head);
            for ds in &all {
                add(self.check_dataset(&store, ds).await);
            }
            sums.push((dir, all));
        }
        for (dir, all) in &sums {
            self.check_dir(&store, dir, all).await;
        }
        assert_eq!(seen.len(), self.store.count(), "blocks that nothing refers to");
        assert_eq!(dsl.freeing().await.unwrap(), Space::default());
    }

    async fn check_dataset(&self, store: &Arc<dyn BlockStore>, ds: &Arc<DslDataset>) -> Vec<BlkPtr> {
        let p = ds.phys();
        let (bps, _) = collect(store, p.bp, 0, None, usize::MAX).await.unwrap();
        let used: u64 = bps.iter().map(|b| store.dsize(b)).sum();
        assert_eq!(p.referenced_bytes, used, "{}: referenced", ds.name());
        // The blocks only this one has: not in the snapshot before, not in the one after.
        let offsets = |bps: &[BlkPtr]| {
            bps.iter().map(|b| (b.dva(0).offset, store.dsize(b))).collect::<BTreeMap<_, _>>()
        };
        let mut own = offsets(&bps);
        let mut others = Vec::new();
        others.extend(self.dsl.prev(ds).await.unwrap());
        if p.next_snap_obj != 0 {
            others.push(self.dsl.dataset(p.next_snap_obj).await.unwrap());
        }
        for o in others {
            let (theirs, _) = collect(store, o.phys().bp, 0, None, usize::MAX).await.unwrap();
            own.retain(|k, _| !offsets(&theirs).contains_key(k));
        }
        assert_eq!(p.unique_bytes, own.values().sum::<u64>(), "{}: unique", ds.name());
        // The deadlist: what the one before has and this one has not, by birth.
        if let Some(prev) = self.dsl.prev(ds).await.unwrap() {
            let (theirs, _) = collect(store, prev.phys().bp, 0, None, usize::MAX).await.unwrap();
            let mine = offsets(&bps);
            let dead: u64 =
                theirs.iter().filter(|b| !mine.contains_key(&b.dva(0).offset)).map(|b| store.dsize(b)).sum();
            let dl = self.dsl.deadlist_open(p.deadlist_obj).await.unwrap();
            assert_eq!(dl.space().unwrap().used, dead, "{}: deadlist", ds.name());
            let mut listed = 0;
            let lists = dl.lists();
            for (&key, &id) in &lists {
                for bp in self.dsl.bpobj_all(id).await.unwrap() {
                    let next = lists.range(key + 1..).next().map_or(u64::MAX, |(k, _)| *k);
                    assert!(bp.birth() > key && bp.birth() <= next, "{}: in a wrong list", ds.name());
                    listed += store.dsize(&bp);
                }
            }
            assert_eq!(listed, dead);
        }
        bps
    }

    /// A dir uses what its head and snapshots have that its origin had not.
    async fn check_dir(&self, store: &Arc<dyn BlockStore>, dir: &Arc<DslDir>, all: &[Arc<DslDataset>]) {
        let mut blocks = BTreeMap::new();
        for ds in all {
            let (bps, _) = collect(store, ds.phys().bp, 0, None, usize::MAX).await.unwrap();
            let origin = dir.origin_txg.load(std::sync::atomic::Ordering::Relaxed);
            blocks
                .extend(bps.iter().filter(|b| b.birth() > origin).map(|b| (b.dva(0).offset, store.dsize(b))));
        }
        let (d, own) = (dir.phys(), blocks.values().sum::<u64>());
        if d.flags & DD_FLAG_USED_BREAKDOWN != 0 {
            let kinds = d.used_breakdown;
            assert_eq!(kinds[0] + kinds[1], own, "{}: head and snapshots", dir.name());
        }
    }
}

#[test]
fn a_new_pool_is_in_order() {
    let mut p = Pool::new();
    p.check();
    assert_eq!(p.ds("tank").name(), "tank");
    assert!(block_on(p.dsl.by_name("tank/$MOS")).is_err());
    assert!(block_on(p.dsl.children(&p.dsl.root_dir())).unwrap().is_empty());
}

#[test]
fn snapshots_keep_what_was() {
    let mut p = Pool::new();
    p.create("tank/fs");
    p.write("tank/fs", 1, 0, 40, 1);
    p.snapshot("tank/fs@a");
    p.write("tank/fs", 1, 10, 10, 2);
    p.snapshot("tank/fs@b");
    p.write("tank/fs", 1, 15, 10, 3);
    p.write("tank/fs", 2, 0, 30, 4);
    p.snapshot("tank/fs@c");
    p.write("tank/fs", 2, 0, 30, 5);
    p.check();
    for (ds, block, byte) in [
        ("tank/fs@a", 15, 1),
        ("tank/fs@b", 15, 2),
        ("tank/fs@c", 15, 3),
        ("tank/fs", 9, 1),
        ("tank/fs@c", 12, 2),
    ] {
        assert_eq!(p.read(ds, 1, block), byte, "{ds} {block}");
    }
    p.destroy_snapshot("tank/fs@b");
    p.check();
    assert_eq!(p.read("tank/fs@a", 1, 15), 1);
    p.destroy_snapshot("tank/fs@a");
    p.check();
    p.destroy_snapshot("tank/fs@c");
    p.check();
    assert_eq!((p.read("tank/fs", 1, 15), p.read("tank/fs", 2, 3)), (3, 5));
    p.destroy("tank/fs");
    p.check();
    assert!(block_on(p.dsl.by_name("tank/fs")).is_err());
}

/// Older versions made some where a receive needed them, and could not destroy them any more.
#[test]
fn without_extensible_datasets_none_is_made_and_one_that_is_there_can_go() {
    let mut p = Pool::with(&["async_destroy", "empty_bpobj"]);
    p.create("tank/a");
    let ds = p.ds("tank/a");
    let made = p.task(async |p, tx| p.zapify(tx, &ds.dn).await.map(drop));
    assert!(made.unwrap_err().is(Errno::NotSup));
    assert!(!ds.is_zapified());
    p.check();
    let ds = p.ds("tank/a");
    let made = p.task(async |_, tx| {
        resident(|| Zap::init(&ds.dn, tx, &CreateOpts::default())).await?;
        ds.dn.set_types(tx, DMU_OTN_ZAP_METADATA, ds.dn.bonus_type());
        Ok(())
    });
    made.unwrap();
    p.destroy("tank/a");
    p.check();
}

#[test]
fn clones_share_and_part() {
    let mut p = Pool::new();
    p.create("tank/fs");
    p.write("tank/fs", 1, 0, 40, 1);
    p.snapshot("tank/fs@a");
    p.write("tank/fs", 1, 0, 10, 2);
    p.snapshot("tank/fs@b");
    p.task(async |p, tx| p.clone_ds(tx, "tank/clone", "tank/fs@b").await).unwrap();
    p.write("tank/clone", 1, 5, 20, 9);
    p.snapshot("tank/clone@x");
    p.write("tank/clone", 1, 6, 2, 8);
    p.check();
    assert_eq!((p.read("tank/clone", 1, 4), p.read("tank/clone", 1, 6), p.read("tank/fs", 1, 6)), (2, 8, 2));
    let busy = p.task(async |p, tx| p.destroy_snapshots(tx, &["tank/fs@b".into()], false).await);
    assert!(busy.unwrap_err().is(Errno::Exist));
    p.destroy_snapshot("tank/fs@a");
    p.check();
    p.destroy_snapshot("tank/clone@x");
    p.check();
    // A snapshot marked for destruction goes with its last clone.
    p.task(async |p, tx| p.destroy_snapshots(tx, &["tank/fs@b".into()], true).await).unwrap();
    assert!(p.ds("tank/fs@b").is_defer_destroy());
    p.destroy("tank/clone");
    assert!(block_on(p.dsl.by_name("tank/fs@b")).is_err());
    p.check();
}

#[test]
fn properties_inherit() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.create("tank/a/b");
    let set = |name: &str, v: Value| vec![(name.to_owned(), Setting::Local(v))];
    let (root, a, b) = (p.ds("tank"), p.ds("tank/a"), p.ds("tank/a/b"));
    p.task(async |p, tx| p.set_props(tx, &root, &set("compression", Value::u64(2))).await).unwrap();
    p.task(async |p, tx| p.set_props(tx, &a, &set("com.example:x", Value::string("hello"))).await).unwrap();
    p.task(async |p, tx| p.set_props(tx, &a, &set("quota", Value::u64(1 << 30))).await).unwrap();
    p.snapshot("tank/a/b@s");
    p.reopen();
    let get = |p: &Pool, ds: &Arc<DslDataset>, name| block_on(p.dsl.prop(ds, name)).unwrap();
    let b2 = p.ds("tank/a/b@s");
    for ds in [&b, &b2] {
        let v = get(&p, ds, "com.example:x").unwrap();
        assert_eq!((v.value.as_str(), v.source), (Some("hello"), PropSource::Inherited("tank/a".into())));
    }
    assert_eq!(get(&p, &b, "quota"), None);
    assert_eq!(get(&p, &p.ds("tank/a"), "quota").unwrap().source, PropSource::Local);
    let all = block_on(p.dsl.all_props(&p.ds("tank/a/b"))).unwrap();
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["com.example:x", "compression"]);
    let a = p.ds("tank/a");
    p.task(async |p, tx| p.set_props(tx, &a, &[("com.example:x".into(), Setting::Inherit)]).await).unwrap();
    assert_eq!(get(&p, &p.ds("tank/a/b"), "com.example:x"), None);
    let small = p.task(async |p, tx| p.set_props(tx, &a, &set("quota", Value::u64(1))).await);
    assert!(small.unwrap_err().is(Errno::NoSpc));
    p.check();
}

#[test]
fn reservations_are_charged_upwards() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.create("tank/a/b");
    let b = p.ds("tank/a/b");
    let before = p.ds("tank").dir().phys().used_bytes;
    let props = [("reservation".to_owned(), Setting::Local(Value::u64(64 << 20)))];
    p.task(async |p, tx| p.set_props(tx, &b, &props).await).unwrap();
    let after = p.ds("tank").dir().phys().used_bytes;
    assert!(after - before > 63 << 20, "{before} {after}");
    p.write("tank/a/b", 1, 0, 100, 1);
    p.check();
    let b = p.ds("tank/a/b");
    let props = [("refreservation".to_owned(), Setting::Local(Value::u64(32 << 20)))];
    p.task(async |p, tx| p.set_props(tx, &b, &props).await).unwrap();
    p.write("tank/a/b", 1, 0, 50, 2);
    p.snapshot("tank/a/b@s");
    p.write("tank/a/b", 1, 0, 50, 3);
    p.check();
    p.destroy_snapshot("tank/a/b@s");
    p.check();
    p.destroy("tank/a/b");
    p.check();
}

#[test]
fn rollback_forgets() {
    let mut p = Pool::new();
    p.create("tank/fs");
    p.write("tank/fs", 1, 0, 40, 1);
    p.snapshot("tank/fs@a");
    p.write("tank/fs", 1, 0, 10, 2);
    p.snapshot("tank/fs@b");
    p.write("tank/fs", 1, 5, 20, 3);
    p.sync();
    let wrong = p.task(async |p, tx| p.rollback(tx, "tank/fs", Some("tank/fs@a")).await);
    assert!(wrong.unwrap_err().is(Errno::Exist));
    p.task(async |p, tx| p.rollback(tx, "tank/fs", Some("tank/fs@b")).await).unwrap();
    p.check();
    assert_eq!((p.read("tank/fs", 1, 6), p.read("tank/fs", 1, 20)), (2, 1));
    p.write("tank/fs", 1, 5, 20, 4);
    p.check();
    p.destroy_snapshot("tank/fs@b");
    p.task(async |p, tx| p.rollback(tx, "tank/fs", None).await).unwrap();
    p.check();
    assert_eq!(p.read("tank/fs", 1, 6), 1);
}

#[test]
fn promotion_turns_the_family_around() {
    let mut p = Pool::new();
    p.create("tank/fs");
    p.write("tank/fs", 1, 0, 40, 1);
    p.snapshot("tank/fs@a");
    p.write("tank/fs", 1, 0, 10, 2);
    p.snapshot("tank/fs@b");
    p.task(async |p, tx| p.clone_ds(tx, "tank/c", "tank/fs@b").await).unwrap();
    p.task(async |p, tx| p.clone_ds(tx, "tank/d", "tank/fs@a").await).unwrap();
    p.write("tank/fs", 1, 20, 5, 5);
    p.snapshot("tank/fs@e");
    p.write("tank/fs", 1, 22, 5, 6);
    p.write("tank/c", 1, 5, 20, 7);
    p.snapshot("tank/c@x");
    p.write("tank/c", 1, 8, 20, 8);
    p.write("tank/d", 1, 8, 20, 9);
    p.check();
    p.task(async |p, tx| p.promote(tx, "tank/c").await).unwrap();
    p.check();
    let names = |p: &Pool, fs: &str| -> Vec<String> {
        block_on(p.dsl.snapshots(&p.ds(fs))).unwrap().iter().map(|s| s.snapshot_name()).collect()
    };
    assert_eq!(
        (names(&p, "tank/c"), names(&p, "tank/fs")),
        (vec!["a".into(), "b".into(), "x".into()], vec!["e".into()])
    );
    assert_eq!(block_on(p.dsl.info(&p.ds("tank/fs"))).unwrap().origin.as_deref(), Some("tank/c@b"));
    assert_eq!(block_on(p.dsl.info(&p.ds("tank/d"))).unwrap().origin.as_deref(), Some("tank/c@a"));
    assert_eq!((p.read("tank/fs", 1, 23), p.read("tank/c", 1, 9), p.read("tank/c@b", 1, 9)), (6, 8, 2));
    // A clone of a clone, and back again.
    p.task(async |p, tx| p.promote(tx, "tank/fs").await).unwrap();
    p.check();
    p.task(async |p, tx| p.promote(tx, "tank/d").await).unwrap();
    p.check();
    p.destroy_snapshot("tank/fs@e");
    p.check();
}

#[test]
fn renames_move_space() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.create("tank/b");
    p.create("tank/a/c");
    p.write("tank/a/c", 1, 0, 40, 1);
    p.snapshot("tank/a/c@s");
    p.task(async |p, tx| p.rename(tx, "tank/a/c", "tank/b/d").await).unwrap();
    p.check();
    assert_eq!(p.read("tank/b/d@s", 1, 3), 1);
    let own = p.task(async |p, tx| p.rename(tx, "tank/b", "tank/b/d/e").await);
    assert!(own.unwrap_err().is(Errno::Inval));
    p.task(async |p, tx| p.rename_snapshot(tx, "tank", "s", "t", true).await).unwrap();
    p.task(async |p, tx| p.rename(tx, "tank/b", "tank/x").await).unwrap();
    p.reopen();
    assert_eq!(p.read("tank/x/d@t", 1, 3), 1);
    p.check();
}

/// The limit says what may be made; what is there is found, changed and moved up whatever it says.
#[test]
fn how_deep_datasets_lie_can_be_tuned() {
    let limit = &crate::tunables::MAX_DATASET_NESTING;
    let mut p = Pool::new();
    let below = |depth: usize| format!("tank{}", "/a".repeat(depth - 1));
    for depth in 2..=50 {
        p.create(&below(depth));
    }
    let make = |p: &mut Pool, name: String| p.task(async |p, _| p.create_check(&name).await.map(drop));
    assert!(make(&mut p, below(51)).unwrap_err().is(Errno::NameTooLong));
    limit.set(60);
    for depth in 51..=60 {
        p.create(&below(depth));
    }
    assert!(make(&mut p, below(61)).unwrap_err().is(Errno::NameTooLong));
    limit.set(limit.default);
    assert!(make(&mut p, format!("{}/b", below(55))).unwrap_err().is(Errno::NameTooLong));
    p.reopen();
    p.snapshot(&format!("{}@s", below(60)));
    let (from, aside, up) = (below(59), format!("{}/b", below(58)), format!("{}/b", below(56)));
    p.task(async |p, tx| p.rename(tx, &from, &aside).await).unwrap();
    p.task(async |p, tx| p.rename(tx, &aside, &up).await).unwrap();
    let down = p.task(async |p, tx| p.rename(tx, &up, &aside).await);
    assert!(down.unwrap_err().is(Errno::NameTooLong));
    assert!(block_on(p.dsl.by_name(&format!("{up}/a@s"))).is_ok());
    p.check();
}

/// A destroyed dataset is freed bit by bit: the bits are the whole, wherever it was left off.
#[test]
fn a_tree_can_be_freed_in_bits() {
    let mut p = Pool::new();
    p.create("tank/fs");
    for object in [1, 2, 31, 32, 40, 100] {
        p.write("tank/fs", object, 0, 1 + object * 31, object as u8);
    }
    p.snapshot("tank/fs@a");
    p.write("tank/fs", 40, 1100, 50, 7);
    p.sync();
    let store: Arc<dyn BlockStore> = p.store.clone();
    let bp = p.ds("tank/fs").phys().bp;
    let since = p.ds("tank/fs@a").phys().creation_txg;
    for min in [0, since] {
        let (whole, end) = block_on(collect(&store, bp, min, None, usize::MAX)).unwrap();
        assert_eq!(end, None);
        for max in [1, 7, 100] {
            let (mut at, mut bits) = (None, Vec::new());
            loop {
                // The place survives its journey to the disk.
                let from = at.and_then(|a: super::traverse::Position| {
                    super::traverse::Position::from_phys(&a.to_phys())
                });
                let (some, next) = block_on(collect(&store, bp, min, from, max)).unwrap();
                assert!(some.len() <= max && (next.is_none() || some.len() == max));
                bits.extend(some);
                at = next;
                if at.is_none() {
                    break;
                }
                if max == 1 && bits.len() > 300 {
                    bits = whole.clone();
                    break;
                }
            }
            assert!(bits == whole, "in bits of {max}");
        }
    }
}

/// A chain of objects that say that they hold dnodes would be walked as deep as it is long.
#[test]
fn only_the_meta_dnode_leads_to_objects() {
    let mut p = Pool::new();
    p.create("tank/fs");
    p.write("tank/fs", 100, 0, 1, 7);
    p.sync();
    let store: Arc<dyn BlockStore> = p.store.clone();
    let root = |p: &Pool| p.ds("tank/fs").phys().bp;
    let all = |p: &Pool| block_on(collect(&store, root(p), 0, None, usize::MAX)).unwrap().0;
    let file = all(&p).into_iter().find(|bp| bp.otype() == DMU_OT_PLAIN_FILE_CONTENTS).unwrap();
    let below = DnodePhys {
        otype: DMU_OT_PLAIN_FILE_CONTENTS,
        indblkshift: 17,
        nlevels: 1,
        nblkptr: 1,
        datablkszsec: 8,
        blkptr: [file].into_iter().collect(),
        ..DnodePhys::default()
    };
    let mut block = vec![0; 16 << 10];
    below.encode_into(&mut block[512..1024]).unwrap();
    let tx = p.tx();
    let os = block_on(p.dsl.objset(&p.ds("tank/fs"))).unwrap();
    let spec = NewObject::new(DMU_OT_DNODE, 16 << 10);
    let dn = block_on(resident(|| os.claim(&tx, ObjectId(40), spec))).unwrap();
    dn.write(&tx, 0, &block);
    drop((dn, os, tx));
    p.sync();
    assert_eq!(all(&p).iter().filter(|bp| bp.dva(0) == file.dva(0)).count(), 1);
}

/// A file system with an indirect block of level 2 that leads to two of level 1, and where these
/// are: the top, and below it.
fn three_levels(p: &mut Pool) -> (u64, Vec<u64>) {
    p.create("tank/fs");
    p.write("tank/fs", 40, 0, 1, 1);
    p.write("tank/fs", 40, 5000, 1, 2);
    p.sync();
    let store: Arc<dyn BlockStore> = p.store.clone();
    let (all, _) = block_on(collect(&store, p.ds("tank/fs").phys().bp, 0, None, usize::MAX)).unwrap();
    let of =
        |level| all.iter().filter(move |b| b.otype() == DMU_OT_PLAIN_FILE_CONTENTS && b.level() == level);
    (of(2).next().unwrap().dva(0).offset, of(1).map(|b| b.dva(0).offset).collect())
}

#[test]
fn a_forged_tree_is_destroyed_once() {
    let mut p = Pool::new();
    let (top, _) = three_levels(&mut p);
    let before = p.store.count();
    // The store sees that nothing is freed twice.
    p.store.forge(top, |data| {
        let first = data[..128].to_vec();
        data.chunks_exact_mut(128).for_each(|bp| bp.copy_from_slice(&first));
    });
    p.destroy("tank/fs");
    for _ in 0..4 {
        p.sync();
    }
    assert_eq!(block_on(p.dsl.freeing()).unwrap(), Space::default());
    assert!(p.store.count() < before);
    // The second block of level 1 and what lies below it.
    assert!(block_on(p.dsl.leaked()).unwrap() >= 4096);
}

#[test]
fn what_a_destroyed_dataset_cannot_tell_is_given_up_in_the_end() {
    let mut p = Pool::new();
    let (_, below) = three_levels(&mut p);
    p.store.set_unreadable(below[0], true);
    p.destroy("tank/fs");
    for _ in 0..4 {
        p.sync();
    }
    let waiting = block_on(p.dsl.freeing()).unwrap().used;
    assert!(waiting > 0, "a copy may come back");
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), 0);
    p.dsl.destroying.lock().patience = std::time::Duration::ZERO;
    p.sync();
    assert_eq!(block_on(p.dsl.freeing()).unwrap(), Space::default());
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), 4096, "one block of contents");
    p.sync();
    p.reopen();
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), 4096);
    assert_eq!(p.dsl.bptree_obj.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn what_was_given_up_is_counted_whoever_frees_the_rest() {
    let mut p = Pool::new();
    // The contents of two files: the second needs several txgs to be freed.
    p.create("tank/fs");
    p.write("tank/fs", 40, 0, 1, 1);
    p.write("tank/fs", 40, 5000, 1, 2);
    p.write("tank/fs", 41, 0, 100, 3);
    p.sync();
    let store: Arc<dyn BlockStore> = p.store.clone();
    let (all, _) = block_on(collect(&store, p.ds("tank/fs").phys().bp, 0, None, usize::MAX)).unwrap();
    let file = |b: &&BlkPtr| b.otype() == DMU_OT_PLAIN_FILE_CONTENTS && b.level() == 1;
    p.store.set_unreadable(all.iter().find(file).unwrap().dva(0).offset, true);
    p.destroy("tank/fs");
    {
        let mut how = p.dsl.destroying.lock();
        (how.patience, how.batch) = (std::time::Duration::ZERO, 10);
    }
    let noted = |p: &Pool| block_on(p.dsl.leak_dir()).unwrap().is_some();
    for _ in 0..9 {
        if !noted(&p) {
            p.sync();
        }
    }
    assert!(noted(&p));
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), 0, "the rest is not freed yet");
    assert_ne!(block_on(p.dsl.freeing()).unwrap(), Space::default());
    p.reopen();
    for _ in 0..4 {
        p.sync();
    }
    assert_eq!(block_on(p.dsl.freeing()).unwrap(), Space::default());
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), 4096, "one block of contents");
    // What is destroyed without damage later adds nothing.
    p.create("tank/other");
    p.write("tank/other", 40, 0, 3, 1);
    p.sync();
    p.destroy("tank/other");
    for _ in 0..3 {
        p.sync();
    }
    assert_eq!(block_on(p.dsl.leaked()).unwrap(), 4096);
}

/// What the MOS came to use in the last txg before a crash was not counted; freeing it takes no
/// more than was.
#[test]
fn freeing_what_a_crash_left_uncounted_stops_at_zero() {
    let mut p = Pool::new();
    p.create("tank/a");
    p.sync();
    p.write("tank", 99, 0, 1, 1);
    p.sync();
    let counted = p.dsl.special().mos.phys();
    assert!(counted.used_bytes > 0);
    let more = counted.used_bytes as i64 + (1 << 30);
    *p.dsl.mos_delta.lock() = bpobj::Delta { used: -more, comp: -more, uncomp: -more };
    p.write("tank", 100, 0, 1, 1);
    p.sync();
    let left = p.dsl.special().mos.phys();
    assert_eq!((left.used_bytes, left.used_breakdown[zilla_ondisk::dsl::DD_USED_HEAD]), (0, 0));
    assert_eq!((left.compressed_bytes, left.uncompressed_bytes), (0, 0));
}

/// Walks the tree of dirs as an import does; the number of dirs, or the damage that ended it.
fn walk_dirs(p: &Pool) -> Result<usize> {
    block_on(async {
        let (mut todo, mut n) = (vec![p.dsl.root_dir()], 0);
        while let Some(dir) = todo.pop() {
            n += 1;
            assert!(n < 100, "the walk does not end");
            todo.extend(p.dsl.child_dirs(&dir).await?);
        }
        Ok(n)
    })
}

#[test]
fn a_dir_below_itself_or_twice_is_damage() {
    for twice in [false, true] {
        let mut p = Pool::new();
        p.create("tank/a");
        p.create("tank/a/b");
        assert_eq!(walk_dirs(&p).unwrap(), 3);
        let (a, b) = (p.ds("tank/a").dir(), p.ds("tank/a/b").dir());
        let (under, child) = if twice { (a, b.id()) } else { (b, a.id()) };
        p.task(async |d, tx| {
            Zap::open(d.mos(), under.phys().child_dir_zapobj).await?.insert_u64(tx, "c", child).await
        })
        .unwrap();
        p.reopen();
        assert!(matches!(walk_dirs(&p), Err(crate::error::Error::Corrupt(_))));
    }
}

/// Whoever goes back along a chain that leads back to where it was comes to an end all the same.
#[test]
fn a_chain_of_snapshots_that_leads_back_is_damage() {
    let mut p = Pool::new();
    p.create("tank/fs");
    p.create("tank/other");
    for name in ["tank/other@x", "tank/fs@a", "tank/fs@b", "tank/fs@c"] {
        p.snapshot(name);
    }
    let (a, c, head, x) = (p.ds("tank/fs@a"), p.ds("tank/fs@c"), p.ds("tank/fs"), p.ds("tank/other@x"));
    for back in [c.id(), head.id(), a.id()] {
        p.task(async |_, tx| {
            a.change(tx, |d| (d.prev_snap_obj, d.prev_snap_txg) = (back, 9));
            Ok(())
        })
        .unwrap();
        let damaged = |r: Result<()>| assert!(matches!(r, Err(Error::Corrupt(_))), "{back}: {r:?}");
        damaged(block_on(p.dsl.space_freed_by(&x, &c)).map(drop));
        damaged(block_on(p.dsl.written_between(&x, &head)).map(drop));
        damaged(block_on(p.dsl.recv_source(&head, 5)).map(drop));
    }
}

#[test]
fn lists_that_say_they_are_longer_than_they_are() {
    let phys = zilla_ondisk::bpobj::BpobjPhys::default();
    let long = zilla_ondisk::bpobj::BpobjPhys { num_blkptrs: 1 << 40, ..phys };
    let heavy = zilla_ondisk::bpobj::BpobjPhys { bytes: u64::MAX, ..phys };
    let hole = zilla_ondisk::bpobj::BpobjPhys { num_blkptrs: 1000, ..phys };
    let parts = |n| zilla_ondisk::bpobj::BpobjPhys { subobjs: 1, num_subobjs: n, ..phys };
    for bad in [long, heavy, hole, parts(1 << 50), parts(3)] {
        let mut p = Pool::new();
        let id = p.task(async |d, tx| d.bpobj_alloc(tx).await).unwrap();
        p.task(async |d, tx| {
            let dn = d.mos().hold_wait(ObjectId(id)).await?;
            dn.set_bonus(tx, &bad.to_bonus(dn.bonus().len()));
            Ok(())
        })
        .unwrap();
        let all = block_on(p.dsl.bpobj_all(id));
        assert!(matches!(all, Err(crate::error::Error::Corrupt(_))), "{bad:?}: {:?}", all.map(|v| v.len()));
    }
}
