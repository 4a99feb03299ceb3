//! What OpenZFS's event daemon does for its pools: devices that fail too often are judged, and hot spares called in.
//!
//! Each pool is looked at once a second, which costs nothing where nothing has gone wrong; a spare is looked for when a device
//! has been judged, and now and then as long as one is in need. A pool whose devices hang keeps nobody but itself waiting. The engine
//! does nothing of this by itself: who embeds it decides.

use super::Engine;
use super::pool::Pool;
use std::sync::Arc;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
/// A device that is in need of a spare may find none: it is tried again after so many looks.
const LOOKS: u64 = 5;

impl Engine {
    pub(super) fn watch_pools(&self) {
        let pools = self.pools.clone();
        tokio::spawn(async move {
            for look in 0_u64.. {
                tokio::time::sleep(EVERY).await;
                let all: Vec<Arc<Pool>> = pools.read().values().cloned().collect();
                for pool in all {
                    tokio::spawn(async move { pool.watch(look.is_multiple_of(LOOKS)).await });
                }
            }
        });
    }
}

impl Pool {
    async fn watch(&self, look_for_spares: bool) {
        let given_up = self.spa.check_deadman();
        // The last look goes on.
        let Ok(_watching) = self.watching.try_lock() else { return };
        let judged = self.spa.diagnose() || given_up;
        if judged || look_for_spares {
            self.spa.call_spares().await;
        }
    }
}
