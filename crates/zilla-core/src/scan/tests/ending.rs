//! What the end of a scan may say, where it goes on, and what it does with what cannot be read.

use super::*;
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
    async fn in_sync<T: Send + 'static>(
        &self,
        task: impl FnOnce(Arc<PoolCtx>, Tx) -> BoxFuture<'static, Result<T>> + Send + 'static,
    ) -> T {
        let ctx = self.ctx.clone();
        self.ctx.sync_task(move |tx| task(ctx, tx)).await.unwrap()
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

/// What is left of a destroyed dataset the walk does not come to.
#[test]
fn a_resilver_waits_for_what_is_being_freed() {
    run(|w| async move {
        let scan = w.open().await;
        w.pool.freeing.store(true, Ordering::Relaxed);
        scan.start().await.unwrap();
        scan.wait().await;
        assert_eq!(scan.status().state, ScanState::Finished as u64, "a scrub has nothing to say of it");
        *w.pool.missing.lock() = Some((Txg(1), Txg(6000)));
        assert!(scan.resilver(false).await.unwrap());
        w.env.sleep(Duration::from_millis(1500)).await;
        assert!(scan.is_resilvering());
        w.pool.freeing.store(false, Ordering::Relaxed);
        scan.wait().await;
        assert_eq!(*w.pool.finished.lock(), [true]);
    });
}
