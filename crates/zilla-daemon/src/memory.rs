//! The memory of a pool goes back to the system when the pool is closed.
//!
//! Three things would keep it: the caches, as long as anybody holds the pool; the free buffers,
//! which an open pool looks after (the engine's budget of memory) and a closed one no more; and
//! what the C library has freed but keeps for the next request. So who closes a pool empties its
//! caches, and when the last user has let go the other two are emptied. Nothing is lost by it:
//! whatever is needed again is asked for again.

use std::time::Duration;
use zilla::manage::Remains;

/// How often it is looked whether somebody still uses a closed pool, and how many times.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: usize = 300;

/// Gives back what a closed pool leaves, as soon as nobody uses it any more.
pub fn reclaim(name: String, pool: Remains) {
    tokio::spawn(async move {
        let mut looks = 0;
        while pool.is_in_use() && looks < LOOKS {
            tokio::time::sleep(LOOK).await;
            looks += 1;
        }
        if pool.is_in_use() {
            tracing::warn!("pool '{name}' is closed, but something still holds its memory");
        }
        let given = tokio::task::spawn_blocking(|| {
            zilla_env::trim_pool();
            trim_heap();
        });
        if let Err(e) = given.await {
            tracing::error!("giving memory back: {e}");
        }
    });
}

/// glibc keeps freed memory between what is in use, in an arena for each thread; other C libraries
/// have no such call.
#[cfg(target_env = "gnu")]
fn trim_heap() {
    // SAFETY: may be called at any time and by any thread; 0 is how much it leaves at the top of
    // the heap.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}
