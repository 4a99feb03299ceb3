//! Scans of a pool of a few datasets in memory: every block once, whatever happens on the way.

mod ending;
mod leaving;
mod walks;

use super::*;
use crate::dmu::testing::{MemStore, props};
use crate::dmu::{DbufCache, Dnode, NewObject, Objset};
use crate::error::Errno;
use crate::txg::TxgState;
use crate::types::{ObjectId, Txg};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use zilla_env::{Env, real_env};
use zilla_ondisk::Phys;
use zilla_ondisk::dsl::{DMU_POOL_DIRECTORY_OBJECT, DslDatasetPhys, DslDirPhys};
use zilla_ondisk::object_type::{
    DMU_OT_DSL_DATASET, DMU_OT_DSL_DIR, DMU_OT_DSL_DIR_CHILD_MAP, DMU_OT_NEXT_CLONES, DMU_OT_OBJECT_DIRECTORY,
};

/// The pool that is scanned, with a sync task of its own.
struct World {
    env: Env,
    store: Arc<MemStore>,
    ctx: Arc<PoolCtx>,
    pool: Arc<FakePool>,
    stop: Arc<AtomicBool>,
}

type Called = Box<dyn FnMut(&BlkPtr) + Send>;

#[derive(Default)]
struct FakePool {
    root: Mutex<BlkPtr>,
    /// How often each place was read.
    seen: Mutex<BTreeMap<u64, u32>>,
    bad: Mutex<HashSet<u64>>,
    /// Reads that were asked for, and how many of them are let through; 0: all are.
    asked: AtomicU64,
    gate: AtomicU64,
    env: Mutex<Option<Env>>,
    missing: Mutex<Option<(Txg, Txg)>>,
    /// Blocks that a round may have; 0: any number.
    most: AtomicU64,
    opened_at: AtomicU64,
    finished: Mutex<Vec<bool>>,
    shares: AtomicBool,
    /// Reads fail because devices are away.
    away: AtomicBool,
    /// How often it was told that a whole tree was not read.
    unreadable: AtomicU64,
    waiting: Mutex<Waiting>,
    /// Called when somebody asks whether a block is lacking.
    asked_for: Mutex<Option<Called>>,
}

impl ScanPool for FakePool {
    fn is_suspended(&self) -> bool {
        false
    }
    fn shares_blocks(&self) -> bool {
        self.shares.load(Ordering::Relaxed)
    }
    fn waiting(&self) -> BoxFuture<'_, Result<Waiting>> {
        Box::pin(async { Ok(*self.waiting.lock()) })
    }
    fn mos_root(&self) -> BlkPtr {
        *self.root.lock()
    }
    fn opened_at(&self) -> Txg {
        Txg(self.opened_at.load(Ordering::Relaxed))
    }
    fn allocated(&self) -> u64 {
        1 << 30
    }
    fn memory(&self) -> BoxFuture<'_, u64> {
        let blocks = self.most.load(Ordering::Relaxed);
        let bytes = if blocks == 0 { 1 << 30 } else { blocks * size_of::<round::Entry>() as u64 };
        Box::pin(std::future::ready(bytes))
    }
    fn scrub(&self, bp: BlkPtr, at: Bookmark, _: Arc<Tickets>) -> BoxFuture<'_, Result<(u64, u64)>> {
        Box::pin(async move {
            let (turn, env) = (self.asked.fetch_add(1, Ordering::Relaxed), self.env.lock().clone());
            let waits = || (1..=turn).contains(&self.gate.load(Ordering::Relaxed));
            while let (true, Some(env)) = (waits(), &env) {
                env.sleep(Duration::from_millis(1)).await;
            }
            if self.away.load(Ordering::Relaxed) {
                return Err(crate::zio::devices_away());
            }
            let offset = bp.dva(0).offset;
            *self.seen.lock().entry(offset).or_default() += 1;
            if self.bad.lock().contains(&offset) {
                return Err(Error::corrupt(Some(at), "", "bad"));
            }
            Ok((bp.asize(), 0))
        })
    }
    fn missing(&self) -> Option<(Txg, Txg)> {
        *self.missing.lock()
    }
    fn resilver_begins(&self, _: Txg, _: bool) {}
    fn lacks(&self, bp: &BlkPtr) -> bool {
        if let Some(called) = &mut *self.asked_for.lock() {
            called(bp);
        }
        self.missing.lock().is_some_and(|(a, b)| (a.0..=b.0).contains(&bp.phys_birth()))
    }
    fn unreadable(&self, bp: Option<&BlkPtr>) {
        self.unreadable.fetch_add(u64::from(bp.is_none()), Ordering::Relaxed);
    }
    fn resilver_ends(&self, complete: bool, _: Txg) -> BoxFuture<'_, ()> {
        self.finished.lock().push(complete);
        *self.missing.lock() = None;
        Box::pin(async {})
    }
    fn notify(&self, _: &str) {}
    fn is_rebuilding(&self) -> bool {
        false
    }
    fn resilvered(&self) {}
}

fn start_sync_task(
    env: &Env,
    ctx: &Arc<PoolCtx>,
    store: &Arc<MemStore>,
    pool: &Arc<FakePool>,
    stop: &Arc<AtomicBool>,
) {
    let (ctx, store, pool, stop) = (ctx.clone(), store.clone(), pool.clone(), stop.clone());
    env.spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            ctx.txgs.wait_for_work(Duration::from_millis(5)).await;
            let txg = ctx.txgs.quiesce().await;
            for task in ctx.take_tasks(txg) {
                task(Tx::syncing(txg)).await;
            }
            if ctx.mos().is_dirty(txg) {
                let root = *pool.root.lock();
                let out = ctx.mos().sync(txg, root).await.unwrap();
                out.killed.iter().for_each(|bp| ctx.free(bp));
                *pool.root.lock() = out.root;
                // Read before anything else may be put there.
                store.free(&ctx.take_frees(txg));
            }
            ctx.txgs.done(txg);
        }
        ctx.txgs.stop();
    });
}

impl World {
    /// A MOS with the few datasets that every pool has, and a file system with a snapshot and a
    /// clone of it.
    async fn new(env: Env) -> World {
        let store = Arc::new(MemStore::default());
        let cache = DbufCache::new(64 << 20);
        let txgs = TxgState::new(env.clone(), Txg(100));
        let ctx = PoolCtx::new(env.clone(), store.clone(), cache.clone(), txgs, 1, false);
        let mos = Objset::create(0, 1, store.clone(), cache.clone(), props());
        let tx = Tx::syncing(Txg(50));
        let directory = resident(|| {
            Zap::create_claim(&mos, &tx, ObjectId(1), DMU_OT_OBJECT_DIRECTORY, &CreateOpts::default())
        })
        .await
        .unwrap();
        let alloc = |ot, len| {
            let (mos, tx) = (&mos, &tx);
            async move { resident(|| mos.alloc(tx, NewObject::new(ot, 512).bonus(ot, len))).await.unwrap() }
        };
        let zap = |ot| {
            let (mos, tx) = (&mos, &tx);
            async move { Zap::make(mos, tx, ot, &CreateOpts::default()).await.unwrap() }
        };
        let id = |d: &Arc<Dnode>| d.id().0;
        let (root_dd, origin_dd) = (alloc(DMU_OT_DSL_DIR, 256).await, alloc(DMU_OT_DSL_DIR, 256).await);
        let clone_dd = alloc(DMU_OT_DSL_DIR, 256).await;
        let mut ds = Vec::new();
        for _ in 0..6 {
            ds.push(alloc(DMU_OT_DSL_DATASET, 320).await);
        }
        let [origin_head, origin_snap, snap, head, clone, clone_snap] = &ds[..] else { unreachable!() };
        let children = zap(DMU_OT_DSL_DIR_CHILD_MAP).await;
        children.insert_u64(&tx, "$ORIGIN", id(&origin_dd)).await.unwrap();
        children.insert_u64(&tx, "clone", id(&clone_dd)).await.unwrap();
        Zap::new(&directory).insert_u64(&tx, "root_dataset", id(&root_dd)).await.unwrap();
        let (of_origin, of_snap) = (zap(DMU_OT_NEXT_CLONES).await, zap(DMU_OT_NEXT_CLONES).await);
        of_origin.add_int(&tx, id(snap)).await.unwrap();
        of_snap.add_int(&tx, id(clone_snap)).await.unwrap();
        let set_dd = |d: &Arc<Dnode>, p: DslDirPhys| d.set_bonus(&tx, &p.encode());
        let set_ds = |d: &Arc<Dnode>, p: DslDatasetPhys| d.set_bonus(&tx, &p.encode());
        set_dd(
            &root_dd,
            DslDirPhys { child_dir_zapobj: children.id(), head_dataset_obj: id(head), ..Default::default() },
        );
        set_dd(
            &clone_dd,
            DslDirPhys { head_dataset_obj: id(clone), origin_obj: id(snap), ..Default::default() },
        );
        set_dd(&origin_dd, DslDirPhys { head_dataset_obj: id(origin_head), ..Default::default() });
        let base = DslDatasetPhys { dir_obj: id(&root_dd), ..Default::default() };
        set_ds(origin_head, DslDatasetPhys { prev_snap_obj: id(origin_snap), ..base });
        set_ds(
            origin_snap,
            DslDatasetPhys {
                next_snap_obj: id(origin_head),
                num_children: 2,
                creation_txg: 4,
                next_clones_obj: of_origin.id(),
                ..base
            },
        );
        // Contents: what the snapshot has, then what head and clone changed of it.
        let fs = Objset::create(id(head), 2, store.clone(), cache.clone(), props());
        let write = |fs: &Arc<Objset>, txg: u64, objects: std::ops::Range<u64>, seed: u8| {
            let (fs, tx) = (fs.clone(), Tx::syncing(Txg(txg)));
            async move {
                for o in objects {
                    let dn = match fs.hold_wait(ObjectId(o)).await {
                        Ok(dn) => dn,
                        Err(_) => {
                            resident(|| fs.claim(&tx, ObjectId(o), NewObject::new(19, 4096))).await.unwrap()
                        }
                    };
                    for b in 0..30u64 {
                        let data = vec![seed ^ (o as u8) ^ (b as u8) | 1; 4096];
                        dn.write(&tx, (b * 7 + u64::from(seed)) * 4096, &data);
                    }
                }
            }
        };
        write(&fs, 50, 1..100, 1).await;
        let root1 = fs.sync(Txg(50), BlkPtr::ZERO).await.unwrap().root;
        write(&fs, 60, 90..120, 3).await;
        let root2 = fs.sync(Txg(60), root1).await.unwrap().root;
        let other = Objset::open(id(clone), &root1, store.clone(), cache, props()).await.unwrap();
        write(&other, 61, 10..12, 5).await;
        write(&other, 61, 11..12, 1).await;
        let root3 = other.sync(Txg(61), root1).await.unwrap().root;
        set_ds(
            snap,
            DslDatasetPhys {
                bp: root1,
                creation_txg: 55,
                next_snap_obj: id(head),
                num_children: 2,
                next_clones_obj: of_snap.id(),
                ..base
            },
        );
        set_ds(head, DslDatasetPhys { bp: root2, creation_txg: 50, prev_snap_obj: id(snap), ..base });
        let base = DslDatasetPhys { dir_obj: id(&clone_dd), ..Default::default() };
        set_ds(
            clone_snap,
            DslDatasetPhys {
                bp: root1,
                creation_txg: 59,
                prev_snap_obj: id(snap),
                next_snap_obj: id(clone),
                num_children: 1,
                ..base
            },
        );
        set_ds(clone, DslDatasetPhys { bp: root3, creation_txg: 58, prev_snap_obj: id(clone_snap), ..base });
        let root = mos.sync(Txg(50), BlkPtr::ZERO).await.unwrap().root;
        ctx.set_mos(mos);
        let pool = Arc::new(FakePool::default());
        *pool.root.lock() = root;
        *pool.env.lock() = Some(env.clone());
        let stop = Arc::new(AtomicBool::new(false));
        start_sync_task(&env, &ctx, &store, &pool, &stop);
        World { env, store, ctx, pool, stop }
    }

    async fn open(&self) -> Arc<Scan> {
        Scan::open(&self.ctx, self.pool.clone()).await.unwrap()
    }

    /// A scrub in small rounds is under way, and stops in the midst of one.
    async fn slow(&self) -> Arc<Scan> {
        let scan = self.open().await;
        self.pool.most.store(200, Ordering::Relaxed);
        self.let_through(500);
        scan.start().await.unwrap();
        self.has_stopped().await;
        scan
    }

    /// So many reads more, then none.
    fn let_through(&self, more: u64) {
        self.pool.gate.store(self.pool.asked.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    fn let_all_through(&self) {
        self.pool.gate.store(0, Ordering::Relaxed);
    }

    /// Waits for a read that is not let through.
    async fn has_stopped(&self) {
        while self.pool.asked.load(Ordering::Relaxed) <= self.pool.gate.load(Ordering::Relaxed) {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Closes the scan while reads are under way.
    async fn close(&self, scan: Arc<Scan>) {
        let open = async { self.let_all_through() };
        futures_util::future::join(scan.shutdown(), open).await;
    }

    /// The scan as it is found when the pool is opened the next time.
    async fn again(&self, scan: Arc<Scan>) -> Arc<Scan> {
        self.close(scan).await;
        self.open().await
    }

    /// All blocks of datasets were read; `once`: and no block twice.
    fn check(&self, once: bool) {
        let seen = self.pool.seen.lock();
        // The MOS changes while it is scanned; the datasets' blocks were all written before it.
        let datasets = self.store.offsets().into_iter().filter(|o| seen.contains_key(o)).count();
        assert!(datasets > 99 * 30, "{datasets}");
        if once {
            let twice: Vec<_> = seen.iter().filter(|(_, n)| **n > 1).collect();
            assert!(twice.is_empty(), "{twice:?}");
        }
    }

    fn blocks(&self) -> usize {
        self.store.count()
    }
}

fn run<F: Future<Output = ()> + Send>(f: impl FnOnce(World) -> F + Send) {
    let env = real_env(2);
    let inner = env.clone();
    env.block_on(async move {
        let w = World::new(inner).await;
        let stop = w.stop.clone();
        f(w).await;
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn every_block_once() {
    run(|w| async move {
        let scan = w.open().await;
        // All that is there before the scan has to be read.
        let before: HashSet<u64> = w.store.offsets().into_iter().collect();
        scan.start().await.unwrap();
        assert!(scan.start().await.is_err() || !scan.is_scanning());
        scan.wait().await;
        w.check(true);
        let seen = w.pool.seen.lock();
        let live: HashSet<u64> = w.store.offsets().into_iter().collect();
        let missed: Vec<_> = before.iter().filter(|o| live.contains(o) && !seen.contains_key(o)).collect();
        assert!(missed.is_empty(), "{missed:x?}");
        let s = scan.status();
        assert_eq!((s.state, s.errors, s.pass_scrub_pause), (ScanState::Finished as u64, 0, 0));
        assert!(s.issued > 0 && s.examined == s.issued && s.end_time >= s.start_time);
        let said = ScanStatus { to_examine: 1, issued: u64::MAX, skipped: u64::MAX, pass_issued: 9, ..s };
        assert!(said.time_left(s.end_time).is_none_or(|t| t == 0), "a disk may say anything");
    });
}

#[test]
fn a_resilver_reads_only_what_is_missing() {
    let env = real_env(2);
    env.clone().block_on(async move {
        let w = World::new(env).await;
        let scan = Scan::open(&w.ctx, w.pool.clone()).await.unwrap();
        // Nothing of a txg that is still to come.
        *w.pool.missing.lock() = Some((Txg(5000), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        scan.wait().await;
        assert_eq!(w.pool.seen.lock().len(), 0);
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        // Who asks for a scrub gets it.
        scan.start().await.unwrap();
        scan.wait().await;
        let s = scan.status();
        assert_eq!((s.func, s.state), (ScanFunc::Resilver as u64, ScanState::Finished as u64));
        assert!(!w.pool.seen.lock().is_empty());
        assert_eq!(*w.pool.finished.lock(), [true, true]);
    });
}

#[test]
fn it_goes_on_after_shutdown_where_it_was() {
    run(|w| async move {
        let scan = w.slow().await;
        assert_ne!(scan.shared.lock().stable.phys.bookmark.object, 0, "some rounds are done");
        assert!(scan.is_scanning());
        w.close(scan).await;
        let read_before: u32 = w.pool.seen.lock().values().sum();
        let scan = w.open().await;
        scan.wait().await;
        w.check(false);
        let read: u32 = w.pool.seen.lock().values().sum();
        // What was done is not done again, save for the round that was under way and what changed
        // in the MOS.
        assert!(
            read_before > 200 && (read as usize) < w.blocks() + 500,
            "{read_before} {read} {}",
            w.blocks()
        );
        assert_eq!(scan.status().state, ScanState::Finished as u64);
    });
}

/// Why the sync itself refused it: by the time somebody looks, what was in the way may have ended.
#[track_caller]
fn refused(answer: Result<()>) -> Refusal {
    match answer.unwrap_err() {
        Error::Pool(why) => (*why).clone(),
        e => panic!("{e}"),
    }
}

#[test]
fn pause_and_stop() {
    run(|w| async move {
        w.logs_by_head().await;
        let scan = w.slow().await;
        scan.pause().await.unwrap();
        assert_eq!(refused(scan.pause().await), Refusal::ScrubPaused);
        assert_eq!(refused(scan.start_errors_only().await), Refusal::ScrubPausedToCancel);
        assert!(scan.is_paused() && scan.status().pass_scrub_pause > 0);
        w.let_all_through();
        while !scan.shared.lock().reading.is_empty() {
            w.env.sleep(Duration::from_millis(1)).await;
        }
        let read: u32 = w.pool.seen.lock().values().sum();
        w.env.sleep(Duration::from_millis(50)).await;
        assert_eq!(read, w.pool.seen.lock().values().sum::<u32>());
        w.let_through(1);
        scan.start().await.unwrap();
        assert!(!scan.is_paused());
        scan.cancel().await.unwrap();
        assert_eq!(scan.status().state, ScanState::Canceled as u64);
        assert!(scan.cancel().await.unwrap_err().is(Errno::NoEnt));
        w.let_all_through();
    });
}

/// It goes on with the blocks that it had gathered.
#[test]
fn a_paused_scrub_reads_nothing_twice_when_it_goes_on() {
    run(|w| async move {
        let scan = w.open().await;
        // All in one round, and some of them at a time.
        w.pool.most.store(4000, Ordering::Relaxed);
        w.let_through(100);
        scan.start().await.unwrap();
        w.has_stopped().await;
        scan.pause().await.unwrap();
        w.let_all_through();
        scan.wait().await;
        assert!(scan.is_paused());
        scan.start().await.unwrap();
        scan.wait().await;
        w.check(true);
        assert_eq!(scan.status().state, ScanState::Finished as u64);
    });
}

#[test]
fn datasets_that_change_all_the_time_do_not_stop_a_scan() {
    run(|w| async move {
        let scan = w.open().await;
        scan.start().await.unwrap();
        let mut changes = 0;
        while scan.is_scanning() {
            let (me, ctx) = (scan.clone(), w.ctx.clone());
            let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
                Box::pin(async move { me.snapshotted(&tx, 4711, 4712).await })
            };
            ctx.sync_task(task).await.unwrap();
            changes += 1;
            assert!(changes < 10_000);
            w.env.sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(scan.status().state, ScanState::Finished as u64);
        w.check(false);
    });
}

#[test]
fn errors_are_counted_and_logged_by_place() {
    run(|w| async move {
        let scan = w.open().await;
        let some: Vec<u64> = w.store.offsets().into_iter().take(5).collect();
        let all = {
            scan.start().await.unwrap();
            scan.wait().await;
            w.pool.seen.lock().clone()
        };
        let some: Vec<u64> = some.into_iter().filter(|o| all.contains_key(o)).collect();
        w.pool.bad.lock().extend(some.iter());
        // Among them blocks of pointers, within which rounds stop.
        w.pool.most.store(200, Ordering::Relaxed);
        scan.start().await.unwrap();
        scan.wait().await;
        let live: HashSet<u64> = w.store.offsets().into_iter().collect();
        let still = some.iter().filter(|o| live.contains(o)).count() as u64;
        assert!(scan.status().errors >= still);
        assert_eq!(scan.errors.count().await.unwrap(), scan.status().errors);
        // They are in the MOS, too.
        let again = ErrLog::open(&w.ctx).await.unwrap();
        assert_eq!(again.count().await.unwrap(), scan.status().errors);
        // Two scrubs later all is well, and nothing is known.
        w.pool.bad.lock().clear();
        scan.start().await.unwrap();
        scan.wait().await;
        assert_eq!((scan.status().errors, scan.errors.count().await.unwrap()), (0, 0));
    });
}

impl World {
    /// The error log is kept by heads, as in new pools.
    async fn logs_by_head(&self) {
        let ctx = self.ctx.clone();
        let task = move |tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let directory = Zap::open(ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await?;
                ctx.features.create(ctx.mos(), &directory, &tx).await?;
                ctx.features.enable(ctx.mos(), &directory, &tx, "head_errlog").await
            })
        };
        self.ctx.sync_task(task).await.unwrap();
    }

    /// Blocks that are read from now on.
    fn forget(&self) {
        self.pool.seen.lock().clear();
    }
}

/// The scan has met some errors, in blocks of datasets; returns how many.
async fn with_errors(w: &World, scan: &Arc<Scan>) -> u64 {
    scan.start().await.unwrap();
    scan.wait().await;
    // The MOS is written anew all the time; the file system's blocks were the first, and stay.
    let read = w.pool.seen.lock().clone();
    let mut live: Vec<u64> = w.store.offsets().into_iter().filter(|o| read.contains_key(o)).collect();
    live.sort_unstable();
    w.pool.bad.lock().extend(live.iter().skip(200).take(40));
    scan.start().await.unwrap();
    scan.wait().await;
    let known = scan.errors.count().await.unwrap();
    assert!(known >= 10, "{known}");
    known
}

#[test]
fn a_scrub_of_errors_reads_what_is_logged_and_forgets_what_is_good() {
    run(|w| async move {
        w.logs_by_head().await;
        let scan = w.open().await;
        assert!(scan.start_errors_only().await.unwrap_err().is(Errno::Canceled), "none are known");
        let known = with_errors(&w, &scan).await;
        w.forget();
        scan.start_errors_only().await.unwrap();
        scan.wait().await;
        let s = scan.error_scrub();
        assert_eq!((s.state, s.examined, s.to_examine), (ScanState::Finished as u64, known, 0));
        let read = w.pool.seen.lock().len() as u64;
        assert!(read > 0 && read <= known, "{read} of {known}");
        assert_eq!(scan.errors.count().await.unwrap(), known, "they are as bad as before");
        // Half of them are mended.
        let mended: Vec<u64> = w.pool.seen.lock().keys().copied().step_by(2).collect();
        w.pool.bad.lock().retain(|o| !mended.contains(o));
        scan.start_errors_only().await.unwrap();
        scan.wait().await;
        assert_eq!(scan.errors.count().await.unwrap(), known - mended.len() as u64);
        w.pool.bad.lock().clear();
        scan.start_errors_only().await.unwrap();
        scan.wait().await;
        assert_eq!(scan.errors.count().await.unwrap(), 0);
        assert_eq!(ErrLog::open(&w.ctx).await.unwrap().count().await.unwrap(), 0);
        // A scrub of everything takes its place.
        scan.start().await.unwrap();
        assert_eq!(scan.error_scrub(), ErrorScrubStatus::default());
        scan.wait().await;
    });
}

#[test]
fn a_scrub_of_errors_that_is_paused_cut_off_or_canceled_forgets_none() {
    run(|w| async move {
        w.logs_by_head().await;
        let scan = w.open().await;
        let known = with_errors(&w, &scan).await;
        w.let_through(1);
        scan.start_errors_only().await.unwrap();
        assert_eq!(refused(scan.start().await), Refusal::ErrorScrubbing, "one at a time");
        scan.pause().await.unwrap();
        assert_eq!(refused(scan.pause().await), Refusal::ErrorScrubPaused);
        assert_ne!(scan.error_scrub().pause_time, 0);
        let scan = w.again(scan).await;
        assert_ne!(scan.error_scrub().pause_time, 0, "as it was left");
        assert_eq!(scan.errors.count().await.unwrap(), known);
        // All are good, and some are looked at.
        w.pool.bad.lock().clear();
        w.let_through(1);
        scan.start_errors_only().await.unwrap();
        scan.cancel().await.unwrap();
        assert_eq!(scan.error_scrub().state, ScanState::Canceled as u64);
        assert_eq!(scan.errors.count().await.unwrap(), known);
        scan.start_errors_only().await.unwrap();
        let scan = w.again(scan).await;
        scan.wait().await;
        assert_eq!((scan.errors.count().await.unwrap(), scan.error_scrub().examined), (0, known));
    });
}

#[test]
fn a_resilver_takes_the_place_of_a_scrub_of_errors() {
    run(|w| async move {
        w.logs_by_head().await;
        let scan = w.open().await;
        let known = with_errors(&w, &scan).await;
        w.let_through(1);
        scan.start_errors_only().await.unwrap();
        // It has everything to do, so it is not over at once.
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        assert_eq!(scan.error_scrub(), ErrorScrubStatus::default());
        let during = scan.errors.count().await.unwrap();
        assert!(during >= known, "{during} of {known}");
        w.let_all_through();
        scan.wait().await;
        assert_eq!(scan.status().func, ScanFunc::Resilver as u64);
    });
}

/// The log of a scrub that had met no error yet when the pool was closed is not made in vain.
#[test]
fn errors_met_after_a_restart_are_kept_at_the_end() {
    run(|w| async move {
        let scan = w.slow().await;
        scan.pause().await.unwrap();
        let scan = w.again(scan).await;
        let read = w.pool.seen.lock().clone();
        let unread = w.store.offsets().into_iter().filter(|o| !read.contains_key(o));
        w.pool.bad.lock().extend(unread.collect::<Vec<_>>().into_iter().skip(1000).take(50));
        scan.start().await.unwrap();
        scan.wait().await;
        let s = scan.status();
        assert_eq!(s.state, ScanState::Finished as u64);
        assert!(s.errors > 0);
        assert_eq!(scan.errors.count().await.unwrap(), s.errors);
    });
}

#[test]
fn a_damaged_block_is_everyone_s_who_has_it() {
    run(|w| async move {
        let scan = w.open().await;
        let mos = w.ctx.mos();
        // By what each was made in: the first file system, its snapshot, and the clone of that.
        let mut made = BTreeMap::new();
        for id in 1..40 {
            if let Ok(ds) = datasets::dataset(mos, id).await
                && !ds.bp.is_hole()
            {
                made.insert(ds.creation_txg, id);
            }
        }
        let [head, snap, clone, clone_snap] = [50, 55, 58, 59].map(|txg| made[&txg]);
        let all = [head, snap, clone, clone_snap];
        let errors = &scan.errors;
        let affected = async |objset: u64, object: u64, blkid: u64, birth: u64| {
            let e = LoggedError { objset, object, level: 0, blkid, birth };
            errors.affected(&e, 100).await.unwrap()
        };
        // As it was written first; all of them have it, whichever it was met in.
        for met in [head, clone] {
            assert_eq!(affected(met, 50, 1, 50).await, all);
            assert_eq!(affected(met, 95, 8, 50).await, all);
        }
        // This one only the head has, and that one only the clone, whose log would be its own.
        assert_eq!(affected(head, 95, 10, 60).await, [head]);
        assert_eq!(affected(head, 10, 5, 61).await, [0u64; 0]);
        assert_eq!(affected(clone, 10, 5, 61).await, [clone]);
        // The clone has another version by now, and its snapshot the old one.
        assert_eq!(affected(clone, 11, 8, 50).await, [head, snap, clone_snap]);
        // It is gone everywhere, or not known which one is meant.
        assert_eq!(affected(head, 50, 1, 49).await, [0u64; 0]);
        assert_eq!(affected(head, 50, 1, 0).await, [head]);
        let e = LoggedError { objset: head, object: 50, level: 0, blkid: 1, birth: 50 };
        assert_eq!(errors.affected(&e, 2).await.unwrap(), [head, snap]);
    });
}
