//! Blocks that change places while a scan is under way, and what knows of that is lost: it walks
//! once more, and has less to do then than in the beginning.

use super::gather::{Gathered, Slice, Visits};
use super::*;
use zilla_ondisk::dsl::DSF_VISIT_DS_AGAIN;

impl World {
    /// Snapshots without contents, in a chain.
    async fn empty_snapshots(&self, many: usize, leads_back: bool) -> Vec<u64> {
        let task = move |ctx: Arc<PoolCtx>, tx: Tx| -> BoxFuture<'static, Result<Vec<u64>>> {
            Box::pin(async move {
                let (mos, mut made) = (ctx.mos(), Vec::new());
                let spec = NewObject::new(DMU_OT_DSL_DATASET, 512).bonus(DMU_OT_DSL_DATASET, 320);
                for _ in 0..many {
                    made.push(resident(|| mos.alloc(&tx, spec)).await?);
                }
                let ids: Vec<u64> = made.iter().map(|d| d.id().0).collect();
                for (i, dn) in made.iter().enumerate() {
                    let next = ids.get(i + 1).or(ids.first().filter(|_| leads_back));
                    let next_snap_obj = next.copied().unwrap_or(0);
                    let phys = DslDatasetPhys {
                        creation_txg: 5,
                        next_snap_obj,
                        num_children: 1,
                        ..Default::default()
                    };
                    dn.set_bonus(&tx, &phys.encode());
                }
                Ok(ids)
            })
        };
        self.in_sync(task).await
    }

    /// The dataset that was made in a txg.
    pub(super) async fn made_in(&self, txg: u64) -> u64 {
        for id in 1..40 {
            if let Ok(ds) = datasets::dataset(self.ctx.mos(), id).await
                && ds.creation_txg == txg
                && !ds.bp.is_hole()
            {
                return id;
            }
        }
        panic!("no dataset was made in txg {txg}");
    }

    /// Blocks of one object get a place in another of a dataset, and lose theirs, as by a clone and
    /// a removal. Returns where they are.
    async fn moves(&self, scan: &Arc<Scan>, ds: u64, objects: std::ops::Range<u64>, to: u64) -> Vec<u64> {
        let (scan, store) = (scan.clone(), self.store.clone());
        let task = move |ctx: Arc<PoolCtx>, tx: Tx| -> BoxFuture<'static, Result<Vec<u64>>> {
            Box::pin(async move {
                let phys = datasets::dataset(ctx.mos(), ds).await?;
                let fs = Objset::open(ds, &phys.bp, store, ctx.cache.clone(), props()).await?;
                let target = fs.hold_wait(ObjectId(to)).await?;
                let mut moved = Vec::new();
                for o in objects {
                    let source = fs.hold_wait(ObjectId(o)).await?;
                    for b in 0..30 {
                        let blkid = b * 7 + 3;
                        let bp = resident(|| source.block_pointer(blkid)).await?.unwrap();
                        target.clone_block(&tx, 1000 + moved.len() as u64, bp);
                        source.free_range(&tx, blkid * 4096, 4096);
                        scan.outlives(&bp);
                        moved.push(bp.dva(0).offset);
                    }
                }
                let root = fs.sync(tx.txg(), phys.bp).await?.root;
                let dn = ctx.mos().hold_wait(ObjectId(ds)).await?;
                dn.set_bonus(&tx, &DslDatasetPhys { bp: root, ..phys }.encode());
                Ok(moved)
            })
        };
        self.in_sync(task).await
    }

    /// Lets reads through until the place on disk is such.
    async fn until(&self, scan: &Scan, there: impl Fn(&Position) -> bool) {
        while !there(&scan.shared.lock().stable) {
            assert!(scan.is_scanning());
            self.let_through(5);
            self.has_stopped().await;
        }
    }

    /// A resilver has come to the middle of a head, whose last objects it has not gathered.
    async fn in_a_head(&self) -> (Arc<Scan>, u64) {
        self.pool.shares.store(true, Ordering::Relaxed);
        *self.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        let scan = self.slow().await;
        let head = self.made_in(50).await;
        let there = |p: &Position| p.phys.bookmark.objset == head && p.phys.bookmark.object >= 92;
        self.until(&scan, there).await;
        assert!(scan.shared.lock().stable.phys.bookmark.object < 100);
        (scan, head)
    }

    fn times(&self, moved: &[u64]) -> Vec<u32> {
        let seen = self.pool.seen.lock();
        moved.iter().map(|o| seen.get(o).copied().unwrap_or(0)).collect()
    }

    async fn has_an_entry(&self) -> bool {
        let directory = Zap::open(self.ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await.unwrap();
        directory.try_get("zilla:scan_again").await.unwrap().is_some()
    }
}

/// By the bound, by an import, or not at all.
#[test]
fn a_block_that_changed_places_is_read_though_that_is_forgotten() {
    for (many, cut_off) in [(false, false), (true, false), (false, true)] {
        run(|w| async move {
            let what = format!("many {many}, cut off {cut_off}");
            let (mut scan, head) = w.in_a_head().await;
            for i in 0..(if many { 2000 } else { 0 }) {
                let mut bp = BlkPtr::ZERO;
                (bp.0[0], bp.0[1], bp.0[10]) = (8, (1 << 40) + (i << 20), 60);
                scan.outlives(&bp);
            }
            let moved = w.moves(&scan, head, 119..120, 20).await;
            assert_eq!(w.times(&moved), [0; 30], "{what}");
            let read = w.pool.seen.lock().values().sum::<u32>();
            if cut_off {
                scan = w.again(scan).await;
            }
            w.let_all_through();
            scan.wait().await;
            assert_eq!(w.times(&moved), [1; 30], "{what}");
            assert_eq!(*w.pool.finished.lock(), [true], "{what}");
            assert_eq!(w.pool.unreadable.load(Ordering::Relaxed), 0, "{what}");
            let all = w.pool.seen.lock().values().sum::<u32>();
            assert!(read > 3000 && (all as usize) < w.blocks() + 2000, "{what}: {read}, {all}");
            assert!(!w.has_an_entry().await, "{what}");
        });
    }
}

/// Its place is on disk, and what it came to is not read again.
#[test]
fn a_later_walk_that_is_cut_off_goes_on_where_it_was() {
    run(|w| async move {
        let (scan, head) = w.in_a_head().await;
        let moved = w.moves(&scan, head, 110..120, 20).await;
        w.close(scan).await;
        w.let_through(1);
        let scan = w.open().await;
        w.until(&scan, |p| p.is_later() && p.phys.bookmark.objset == head).await;
        assert!(w.has_an_entry().await);
        let until = scan.shared.lock().stable.until;
        w.close(scan).await;
        w.let_through(1);
        let scan = w.open().await;
        assert_eq!(scan.shared.lock().stable.until, until);
        w.let_all_through();
        scan.wait().await;
        let times = w.times(&moved);
        assert!(times.iter().all(|n| *n > 0), "{times:?}");
        // Of those of one round nobody knows.
        assert!(times.iter().sum::<u32>() <= 300 + 210, "{times:?}");
        assert_eq!(*w.pool.finished.lock(), [true]);
        assert!(!w.has_an_entry().await);
    });
}

/// Not after a crash, not if others had the pool meanwhile, and not if some blocks are to be read
/// that nobody knows any more.
#[test]
fn who_knows_at_an_import_that_no_block_changed_places_walks_no_later_walk() {
    run(|w| async move {
        let (mut scan, _) = w.in_a_head().await;
        let leaves = async |scan: &Arc<Scan>| {
            let scan = scan.clone();
            let leave = move |_, tx: Tx| -> BoxFuture<'static, Result<u64>> {
                Box::pin(async move { scan.leaves(&tx).await.map(|()| tx.txg().0) })
            };
            w.in_sync(leave).await
        };
        let again = async |scan: Arc<Scan>, at: u64| {
            w.close(scan).await;
            w.let_through(1);
            w.pool.opened_at.store(at, Ordering::Relaxed);
            let scan = w.open().await;
            let lost = scan.shared.lock().outlived.is_lost();
            (scan, lost)
        };
        let at = leaves(&scan).await;
        let mut lost;
        for (opened_at, is_lost) in [(at, false), (at + 1, true), (at - 1, true), (at, false)] {
            (scan, lost) = again(scan, opened_at).await;
            assert_eq!(lost, is_lost, "{opened_at}, {at}");
        }
        scan.outlives(&BlkPtr::ZERO);
        let at = leaves(&scan).await;
        (scan, lost) = again(scan, at).await;
        assert!(lost, "there was one");
        // It does not know any of the session before.
        let at = leaves(&scan).await;
        (scan, lost) = again(scan, at).await;
        assert!(lost);
        w.let_all_through();
        scan.wait().await;
        assert_eq!(*w.pool.finished.lock(), [true]);
        let directory = Zap::open(w.ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await.unwrap();
        assert!(directory.try_get("zilla:scan_known").await.unwrap().is_none());
    });
}

/// The place was in a snapshot that was destroyed. The next dataset is visited once more, and no
/// other.
#[test]
fn what_is_to_be_visited_again_is_forgotten_with_its_place() {
    run(|w| async move {
        let scan = w.slow().await;
        let snap = w.made_in(55).await;
        w.until(&scan, |p| p.phys.bookmark.objset == snap && p.phys.bookmark.object > 0).await;
        w.close(scan).await;
        let again = move |ctx: Arc<PoolCtx>, tx: Tx| -> BoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let mut p = Position::load(ctx.mos()).await?;
                p.phys.flags |= DSF_VISIT_DS_AGAIN;
                p.save(ctx.mos(), &tx).await
            })
        };
        w.in_sync(again).await;
        w.let_through(1);
        let scan = w.open().await;
        assert_ne!(scan.shared.lock().stable.phys.flags & DSF_VISIT_DS_AGAIN, 0);
        w.until(&scan, |p| p.phys.bookmark.objset != snap).await;
        assert_eq!(scan.shared.lock().stable.phys.flags, 0);
        w.let_all_through();
        scan.wait().await;
        w.check(false);
        assert_eq!(scan.status().state, ScanState::Finished as u64);
    });
}

/// Who changes datasets disturbs a slice, and there may be very many datasets of which nothing is
/// wanted. A chain of them that leads back is seen all the same.
#[test]
fn a_slice_has_no_more_datasets_than_blocks() {
    run(|w| async move {
        let scan = w.slow().await;
        for leads_back in [false, true] {
            let all = w.empty_snapshots(300, leads_back).await;
            let (generation, mut p) = {
                let st = scan.shared.lock();
                (st.generation, st.stable.clone())
            };
            p.set_walked();
            p.queue.insert(all[0], 0);
            let (mut slices, mut visits, mut damaged) = (0, Visits::new(), 0);
            loop {
                let before = visits.values().sum::<u32>();
                let mut out = Slice { visits, ..Slice::default() };
                let gathered = scan.gather(p, generation, 64, &mut out).await.unwrap();
                (slices, visits) = (slices + 1, out.visits);
                damaged += out.trouble.damaged.len();
                assert!(visits.values().sum::<u32>() - before <= 64 && slices < 100);
                match gathered {
                    Gathered::Part(next) => p = next,
                    Gathered::All(_) => break,
                    Gathered::Disturbed => panic!("nobody did"),
                }
                assert!(!p.is_walked());
            }
            assert_eq!((visits.len(), damaged), (300, usize::from(leads_back)));
        }
        w.let_all_through();
        scan.wait().await;
        w.check(false);
    });
}
