//! What OpenZFS's event daemon does for its pools: devices that fail too often are judged, hot
//! spares are called in, and new devices take the place of failed ones where the pool wants that
//! (`autoreplace.rs`).
//!
//! Each pool is looked at once a second, which costs nothing where nothing has gone wrong; a spare
//! is looked for when a device has been judged, and now and then as long as one is in need. A pool
//! whose devices hang keeps nobody but itself waiting. The engine does nothing of this by itself:
//! who embeds it decides.

use super::Engine;
use super::pool::Pool;
use std::sync::Arc;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
/// A failed device may find neither successor nor spare: it is tried again after so many looks.
const LOOKS: u64 = 5;

impl Engine {
    pub(super) fn watch_pools(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            for look in 0_u64.. {
                tokio::time::sleep(EVERY).await;
                let Some(engine) = engine.upgrade() else { return };
                for pool in engine.all_pools() {
                    let engine = engine.clone();
                    tokio::spawn(async move { engine.watch(pool, look.is_multiple_of(LOOKS)).await });
                }
            }
        });
    }

    async fn watch(self: &Arc<Self>, pool: Arc<Pool>, look_for_others: bool) {
        let given_up = pool.zilla.check_deadman();
        // The last look goes on.
        let Ok(_watching) = pool.watching.try_lock() else { return };
        let judged = pool.zilla.diagnose() || given_up;
        if judged || look_for_others {
            // A spare is the pool's already, and steps in at once. What is in a failed device's
            // place has to be looked at first, and may not answer: that keeps nobody here.
            pool.zilla.call_spares().await;
            let (engine, pool) = (self.clone(), pool.clone());
            tokio::spawn(async move { engine.replace_failed(&pool).await });
        }
    }
}
