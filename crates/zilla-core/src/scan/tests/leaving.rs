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

/// What it may not have read it does not say to have read.
#[test]
fn a_resilver_that_may_have_missed_shared_blocks_says_so() {
    run(|w| async move {
        for goes_on in [false, true] {
            w.pool.finished.lock().clear();
            w.pool.shares.store(true, Ordering::Relaxed);
            *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
            let mut scan = w.slow().await;
            if goes_on {
                scan = w.again(scan).await;
            }
            w.let_all_through();
            scan.wait().await;
            let told = w.pool.finished.lock().clone();
            assert_eq!(told, [!goes_on], "{goes_on}");
            w.close(scan).await;
        }
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
