//! Blocks that lose places or are freed, and devices that go away, while a scan is under way.

use super::*;

/// The walk does not come to it: the place that it had not come to yet is gone, and the one that
/// the block was given meanwhile is behind it.
#[test]
fn what_outlives_the_place_it_was_to_come_up_at_is_read() {
    run(|w| async move {
        let scan = w.slow().await;
        let block = |offset: u64, birth: u64| {
            let mut bp = BlkPtr::ZERO;
            (bp.0[0], bp.0[1], bp.0[10]) = (8, offset / 512, birth);
            bp
        };
        let (old, new) = (block(1 << 40, 60), block(2 << 40, 1 << 40));
        scan.outlives(&old);
        // From after the scan's beginning.
        scan.outlives(&new);
        // One that goes after all, in a round of its own: somebody else's block may be there.
        let gone = block(3 << 40, 60);
        scan.outlives(&gone);
        scan.pause().await.unwrap();
        w.let_all_through();
        scan.freed(&gone);
        scan.start().await.unwrap();
        scan.wait().await;
        w.check(true);
        let seen = w.pool.seen.lock();
        let read = [1u64, 2, 3].map(|n| seen.get(&(n << 40)).copied());
        assert_eq!(read, [Some(1), None, None]);
    });
}

/// It waits for them, and goes on with the round that it has.
#[test]
fn devices_that_are_away_are_no_errors_of_a_scan() {
    run(|w| async move {
        let scan = w.slow().await;
        w.pool.away.store(true, Ordering::Relaxed);
        w.let_all_through();
        w.env.sleep(Duration::from_millis(300)).await;
        assert!(scan.is_scanning());
        w.pool.away.store(false, Ordering::Relaxed);
        scan.wait().await;
        let s = scan.status();
        assert_eq!((s.state, s.errors), (ScanState::Finished as u64, 0));
        w.check(true);
        // It can be left meanwhile.
        w.pool.away.store(true, Ordering::Relaxed);
        scan.start().await.unwrap();
        w.env.sleep(Duration::from_millis(100)).await;
        scan.shutdown().await;
        assert_eq!(scan.errors.count().await.unwrap(), 0);
    });
}

/// In logical order as well, also while it is paused.
#[test]
fn what_is_freed_during_a_round_takes_no_more_memory_than_the_round() {
    run(|w| async move {
        crate::tunables::SCAN_LEGACY.set(1);
        let scan = w.slow().await;
        crate::tunables::SCAN_LEGACY.set(0);
        scan.pause().await.unwrap();
        for i in 0..10_000u64 {
            let mut bp = BlkPtr::ZERO;
            (bp.0[0], bp.0[1], bp.0[10]) = (8, i << 30, 60);
            scan.freed(&bp);
        }
        assert_eq!(scan.shared.lock().freed.len(), 0);
        w.let_all_through();
    });
}

fn block(offset: u64) -> BlkPtr {
    let mut bp = BlkPtr::ZERO;
    (bp.0[0], bp.0[1], bp.0[10]) = (8, offset / 512, 60);
    bp
}

/// Its walk waits for a device, and there is no round yet that would know what is freed.
#[test]
fn what_is_freed_while_a_round_cannot_be_gathered_takes_no_more_memory_than_it_may() {
    run(|w| async move {
        let scan = w.open().await;
        let head = w.made_in(50).await;
        let root = datasets::dataset(w.ctx.mos(), head).await.unwrap().bp;
        w.store.set_away(root.dva(0).offset);
        scan.start().await.unwrap();
        while scan.shared.lock().away_since.is_none() {
            w.env.sleep(Duration::from_millis(1)).await;
        }
        for i in 0..10_000u64 {
            scan.freed(&block((1 << 50) + (i << 20)));
            assert!(scan.shared.lock().freed.len() <= told::MOST_FREED);
        }
        w.store.come_back();
        scan.wait().await;
        let s = scan.status();
        assert_eq!((s.state, s.errors), (ScanState::Finished as u64, 0));
        assert!(!scan.shared.lock().passed_by);
        w.check(true);
    });
}

/// What of it was gathered before is not gathered anew, nor read if it is among that.
#[test]
fn what_was_gathered_stays_however_much_is_freed() {
    run(|w| async move {
        let scan = w.open().await;
        let head = w.made_in(50).await;
        let root = datasets::dataset(w.ctx.mos(), head).await.unwrap().bp;
        w.store.set_away(root.dva(0).offset);
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        // The slices become small enough to end before that.
        let gathered = loop {
            w.env.sleep(Duration::from_millis(10)).await;
            let st = scan.shared.lock();
            let some = st.gathered.iter().flatten().filter(|e| e.at.objset != 0).map(|e| e.bp);
            let some: Vec<BlkPtr> = some.collect();
            if some.len() > 500 {
                break some;
            }
        };
        let again = Arc::new(AtomicU64::new(0));
        let (places, count): (HashSet<u64>, _) =
            (gathered.iter().map(|bp| bp.dva(0).offset).collect(), again.clone());
        *w.pool.asked_for.lock() = Some(Box::new(move |bp| {
            count.fetch_add(u64::from(places.contains(&bp.dva(0).offset)), Ordering::Relaxed);
        }));
        let (dead, alive) = gathered.split_at(10);
        dead.iter().for_each(|bp| scan.freed(bp));
        for i in 0..10_000u64 {
            scan.freed(&block((1 << 50) + (i << 20)));
            assert!(scan.shared.lock().freed.len() <= told::MOST_FREED);
        }
        w.store.come_back();
        scan.wait().await;
        *w.pool.asked_for.lock() = None;
        let s = scan.status();
        assert_eq!((s.state, s.errors), (ScanState::Finished as u64, 0));
        assert_eq!(again.load(Ordering::Relaxed), 0, "blocks were gathered anew");
        let seen = w.pool.seen.lock();
        assert!(dead.iter().all(|bp| !seen.contains_key(&bp.dva(0).offset)));
        assert!(alive.iter().all(|bp| seen.get(&bp.dva(0).offset) == Some(&1)));
    });
}

/// What is being read is known of all the same when it is freed, and all of the log is looked at.
#[test]
fn what_is_freed_during_a_scrub_of_errors_takes_no_more_memory_than_it_may() {
    run(|w| async move {
        w.logs_by_head().await;
        let scan = w.open().await;
        let known = with_errors(&w, &scan).await;
        w.forget();
        w.let_through(1);
        scan.start_errors_only().await.unwrap();
        w.has_stopped().await;
        for i in 0..10_000u64 {
            scan.freed(&block((1 << 50) + (i << 20)));
            assert!(scan.shared.lock().freed.len() <= told::MOST_FREED);
        }
        let (read, gone) = {
            let st = scan.shared.lock();
            let k = *st.reading.keys().next().unwrap();
            (st.reading.len(), k)
        };
        let mut bp = BlkPtr::ZERO;
        (bp.0[0], bp.0[1], bp.0[10]) = gone;
        scan.freed(&bp);
        assert!(read > 0 && scan.shared.lock().is_freed(&gone), "a txg waits for it");
        w.let_all_through();
        scan.wait().await;
        assert_eq!(scan.error_scrub().state, ScanState::Finished as u64);
        assert_eq!(scan.errors.count().await.unwrap(), known);
    });
}
