//! What the end of a scan may say, where it goes on, and what it does with what cannot be read.

use super::*;
use crate::scan::ending::PATIENCE;
use crate::zap::Value;
use zilla_ondisk::dsl::{DMU_POOL_ERRORSCRUB, DMU_POOL_SCAN};

#[test]
fn places_move_with_datasets() {
    let mut p = Position::default();
    p.phys.bookmark.objset = 7;
    p.queue.insert(8, 5);
    p.snapshotted(7, 70);
    p.snapshotted(8, 80);
    assert_eq!((p.phys.bookmark.objset, p.queue.get(&80), p.queue.len()), (70, Some(&5), 1));
    p.destroyed(70, Some(7));
    assert_eq!(p.phys.bookmark.objset, 7);
    assert_ne!(p.phys.flags, 0);
    p.destroyed(80, Some(8));
    p.swapped(7, 8);
    assert_eq!((p.phys.bookmark.objset, p.queue.get(&7)), (8, Some(&5)));
    p.destroyed(8, None);
    assert_eq!(p.phys.bookmark.objset, u64::MAX);
}

impl World {
    pub(super) async fn in_sync<T: Send + 'static>(
        &self,
        task: impl FnOnce(Arc<PoolCtx>, Tx) -> BoxFuture<'static, Result<T>> + Send + 'static,
    ) -> T {
        let ctx = self.ctx.clone();
        self.ctx.sync_task(move |tx| task(ctx, tx)).await.unwrap()
    }

    /// Up to which txg the pool is said to have been scrubbed.
    pub(super) async fn last_scrubbed(&self, scan: &Scan) -> u64 {
        scan.last_scrubbed().await.unwrap().0
    }
}

/// A pool is opened though nobody can tell how far its scan was.
#[test]
fn a_scan_whose_state_is_damaged_is_not_under_way() {
    run(|w| async move {
        for name in [DMU_POOL_SCAN, DMU_POOL_ERRORSCRUB] {
            let damage = move |ctx: Arc<PoolCtx>, tx: Tx| -> BoxFuture<'static, Result<()>> {
                Box::pin(async move {
                    let directory = Zap::open(ctx.mos(), DMU_POOL_DIRECTORY_OBJECT).await?;
                    directory.set(&tx, name, &Value::u64s(&[1, 2, 3])).await
                })
            };
            w.in_sync(damage).await;
            let scan = w.open().await;
            assert!(!scan.is_scanning() && !scan.is_scrubbing_errors());
            // The next one takes its place.
            scan.start().await.unwrap();
            scan.wait().await;
            let scan = w.again(scan).await;
            assert_eq!(scan.status().state, ScanState::Finished as u64);
            w.close(scan).await;
        }
    });
}

/// Errors that are known stay so until a scrub has looked at everything.
#[test]
fn what_does_not_look_at_everything_forgets_no_error() {
    run(|w| async move {
        w.logs_by_head().await;
        let scan = w.open().await;
        let known = with_errors(&w, &scan).await;
        w.pool.bad.lock().clear();
        // Of nothing but what was written since.
        scan.start_from_last().await.unwrap();
        scan.wait().await;
        assert_eq!(scan.errors.count().await.unwrap(), known, "after an incremental scrub");
        *w.pool.missing.lock() = Some((Txg(5000), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        scan.wait().await;
        assert_eq!(scan.errors.count().await.unwrap(), known, "after a resilver");
        w.let_through(1);
        scan.start().await.unwrap();
        scan.cancel().await.unwrap();
        w.let_all_through();
        assert_eq!(scan.errors.count().await.unwrap(), known, "after half a scrub");
        scan.start().await.unwrap();
        scan.wait().await;
        assert_eq!(scan.errors.count().await.unwrap(), 0);
    });
}

/// What it passed by the next incremental one looks at.
#[test]
fn a_scrub_that_could_not_read_all_is_no_base_for_the_next() {
    run(|w| async move {
        let scan = w.open().await;
        scan.start().await.unwrap();
        scan.wait().await;
        let base = w.last_scrubbed(&scan).await;
        assert!(base > 0);
        w.let_through(100);
        scan.start().await.unwrap();
        w.has_stopped().await;
        scan.shared.lock().passed_by = true;
        w.let_all_through();
        scan.wait().await;
        assert_eq!(scan.status().state, ScanState::Finished as u64);
        assert_eq!(w.last_scrubbed(&scan).await, base);
        // Another one reads all.
        scan.start().await.unwrap();
        scan.wait().await;
        assert!(w.last_scrubbed(&scan).await > base);
    });
}

/// A slice of the walk that saw a part of what is being changed is done again.
#[test]
fn a_slice_does_not_survive_a_promotion() {
    run(|w| async move {
        let scan = w.slow().await;
        let generation = scan.shared.lock().generation;
        assert!(!scan.disturbed(generation));
        scan.rearranged();
        assert!(scan.disturbed(generation));
        w.let_all_through();
        scan.wait().await;
        w.check(false);
        assert_eq!(scan.status().state, ScanState::Finished as u64);
    });
}

/// Neither the walk nor the look at its intent log waits for it for ever.
#[test]
fn a_head_whose_root_is_on_devices_that_are_away_for_good_is_passed_by() {
    run(|w| async move {
        let scan = w.open().await;
        scan.start().await.unwrap();
        scan.wait().await;
        let base = w.last_scrubbed(&scan).await;
        let mut root = None;
        for id in 1..40 {
            let ds = datasets::dataset(w.ctx.mos(), id).await.ok();
            root = root.or(ds.filter(|ds| ds.num_children == 0 && !ds.bp.is_hole()));
        }
        w.store.set_away(root.unwrap().bp.dva(0).offset);
        scan.start().await.unwrap();
        scan.wait().await;
        let s = scan.status();
        assert_eq!(s.state, ScanState::Finished as u64);
        assert!(s.errors > 0);
        assert_eq!(scan.errors.count().await.unwrap(), 0, "it is not damaged");
        assert_eq!(w.last_scrubbed(&scan).await, base, "nor was it read");
    });
}

/// What is left of a destroyed dataset the walk does not come to, and who frees it reads it.
#[test]
fn a_resilver_ends_when_what_was_destroyed_before_is_freed() {
    run(|w| async move {
        let waits =
            |first, next| Waiting { queue: 7, first, next, listed: true, used: 100, ..Waiting::default() };
        let scan = w.open().await;
        *w.pool.waiting.lock() = waits(3, 5);
        scan.start().await.unwrap();
        scan.wait().await;
        assert_eq!(scan.status().state, ScanState::Finished as u64, "a scrub has nothing to say of it");
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        while !scan.shared.lock().stable.is_walked() {
            w.env.sleep(Duration::from_millis(1)).await;
        }
        // Others are destroyed meanwhile.
        for now in [waits(3, 6), waits(4, 9)] {
            w.env.sleep(Duration::from_millis(1500)).await;
            assert!(scan.is_resilvering());
            *w.pool.waiting.lock() = now;
        }
        w.env.sleep(Duration::from_millis(1500)).await;
        assert!(scan.is_resilvering());
        *w.pool.waiting.lock() = waits(5, 12);
        w.env.sleep(Duration::from_millis(1500)).await;
        assert!(scan.is_resilvering(), "a list that was not empty since");
        *w.pool.waiting.lock() = Waiting { listed: false, ..waits(5, 12) };
        scan.wait().await;
        assert_eq!(*w.pool.finished.lock(), [true]);
        assert_eq!(w.pool.unreadable.load(Ordering::Relaxed), 0);
        // Nothing is freed at all, for the queue cannot be read.
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        scan.wait().await;
        assert_eq!(*w.pool.finished.lock(), [true, true]);
        assert_eq!(w.pool.unreadable.load(Ordering::Relaxed), 0);
        // What waits may be all that says where shared blocks are.
        w.pool.shares.store(true, Ordering::Relaxed);
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        scan.wait().await;
        assert_eq!(scan.status().state, ScanState::Finished as u64);
        assert_eq!(w.pool.unreadable.load(Ordering::Relaxed), 1, "devices keep what they lack");
    });
}

/// Snapshots are destroyed all the time beside a queue of trees that cannot be read.
#[test]
fn a_resilver_ends_where_what_waits_only_goes_up_and_down() {
    run(|w| async move {
        let waits = |used| Waiting { queue: 7, first: 3, next: 5, listed: true, used, ..Waiting::default() };
        let scan = w.open().await;
        *w.pool.waiting.lock() = waits(100);
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        for now in 0..240 {
            *w.pool.waiting.lock() = waits(if now % 9 < 4 { 100 } else { 250 });
            w.env.sleep(Duration::from_millis(250)).await;
            if !scan.is_resilvering() {
                break;
            }
        }
        assert!(!scan.is_resilvering(), "it waits for ever");
        assert_eq!(*w.pool.finished.lock(), [true]);
    });
}

#[test]
fn a_tree_gets_on_though_more_waits_all_the_time() {
    use zilla_ondisk::zbookmark::ZbookmarkPhys;
    let waits = |object| {
        let at = Some(ZbookmarkPhys { object, ..ZbookmarkPhys::default() });
        Waiting { queue: 7, first: 3, next: 5, at, listed: true, ..Waiting::default() }
    };
    let mut best = waits(1);
    assert!(!waits(1).trees_get_on_since(&mut best));
    assert!(waits(2).trees_get_on_since(&mut best), "the first tree has come further");
    // It cannot be read for a moment.
    assert!(!Waiting { at: None, ..waits(2) }.trees_get_on_since(&mut best));
    assert!(!waits(2).trees_get_on_since(&mut best));
    assert!(Waiting { first: 4, ..waits(0) }.trees_get_on_since(&mut best));
}

/// A resilver while more is destroyed all the time, and freed as fast as it can be. What was listed
/// at first is gone when the lists have been empty, however briefly.
fn ends_beside_endless_frees(empty: bool) {
    run(|w| async move {
        let scan = w.open().await;
        let waits = |now: u64, emptied| {
            let used = 100 + now % 7 * 50;
            *w.pool.waiting.lock() =
                Waiting { listed: true, emptied, freed: now, used, ..Waiting::default() };
        };
        waits(0, 3);
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        while !scan.shared.lock().stable.is_walked() {
            w.env.sleep(Duration::from_millis(1)).await;
        }
        let long = 2 * PATIENCE.as_secs() + 6;
        for now in 1..4 * long {
            waits(now, 3);
            w.env.sleep(Duration::from_millis(500)).await;
            if now == long {
                assert!(scan.is_resilvering(), "they are freed, and may be read for that");
            }
            if now > long && (empty || !scan.is_resilvering()) {
                break;
            }
        }
        if empty {
            waits(7, 4);
            w.env.sleep(Duration::from_millis(2500)).await;
        }
        assert!(!scan.is_resilvering(), "it waits for ever");
        let lacking = w.pool.unreadable.load(Ordering::Relaxed);
        assert_eq!(lacking, u64::from(!empty), "who was not given all keeps what it lacks");
    });
}

#[test]
fn a_resilver_ends_when_lists_that_are_filled_all_the_time_were_once_empty() {
    ends_beside_endless_frees(true);
}

#[test]
fn a_resilver_beside_lists_without_end_ends_and_leaves_what_is_lacked() {
    ends_beside_endless_frees(false);
}

/// What the one before waited for concerns it not, as long as it has not come to its own end.
#[test]
fn a_resilver_that_takes_another_s_place_begins_at_once() {
    run(|w| async move {
        let waits = |used| Waiting { queue: 7, first: 3, next: 5, listed: true, used, ..Waiting::default() };
        let scan = w.open().await;
        *w.pool.waiting.lock() = waits(1000);
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        let walked = || scan.shared.lock().stable.is_walked();
        while !walked() {
            w.env.sleep(Duration::from_millis(1)).await;
        }
        w.env.sleep(Duration::from_millis(100)).await;
        assert!(scan.resilver(true).await.unwrap());
        for used in (0..100).rev() {
            // Much is freed, and more waits.
            *w.pool.waiting.lock() = waits(used);
            w.env.sleep(Duration::from_millis(50)).await;
            if walked() {
                break;
            }
        }
        assert!(walked(), "it waits before it has begun");
        *w.pool.waiting.lock() = Waiting::default();
        scan.wait().await;
        assert_eq!(*w.pool.finished.lock(), [false, true]);
    });
}

/// It was damaged when the slice came by that a promotion disturbed, and is not when the slice is
/// done again.
#[test]
fn what_a_slice_passed_by_that_is_thrown_away_does_not_count() {
    run(|w| async move {
        let scan = w.open().await;
        let head = w.made_in(50).await;
        let root = datasets::dataset(w.ctx.mos(), head).await.unwrap().bp.dva(0).offset;
        w.store.set_unreadable(root, true);
        let (store, me, thrown) = (w.store.clone(), scan.clone(), Arc::new(AtomicBool::new(false)));
        let once = thrown.clone();
        let called = move |bp: &BlkPtr| {
            if bp.dva(0).offset == root && !once.swap(true, Ordering::Relaxed) {
                store.set_unreadable(root, false);
                me.rearranged();
            }
        };
        *w.pool.asked_for.lock() = Some(Box::new(called));
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        scan.wait().await;
        *w.pool.asked_for.lock() = None;
        assert!(thrown.load(Ordering::Relaxed));
        let s = scan.status();
        assert_eq!((s.state, s.errors), (ScanState::Finished as u64, 0));
        assert_eq!(scan.errors.count().await.unwrap(), 0);
        assert_eq!(w.pool.unreadable.load(Ordering::Relaxed), 0, "devices have everything");
        assert!(!scan.shared.lock().passed_by);
        w.check(false);
    });
}
