//! Waiting for a device, but not for ever.

use futures_util::future::{Either, select};
use std::time::Duration;
use zilla_env::Env;

/// How long a cache device may take for what nobody waits for: writes, reads of its log, its end.
pub const SLOW_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a device may take to be opened, and each time its labels are read. Longer than a disk
/// takes to start up or to give up a sector. One that has not answered by then is taken for
/// missing; who must know what is on it asks for more ([`super::VdevTree::read_labels_within`]).
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for `work`, but not for ever; None: it took too long. What it began may still end.
pub async fn within<T>(env: &Env, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    match select(std::pin::pin!(work), std::pin::pin!(env.sleep(limit))).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}
