//! `autoreplace=on`: what is put in the place of a failed device becomes the pool's by itself.
//!
//! OpenZFS leaves this to its event daemon, which is told of each device that appears. Nobody tells
//! us, so the places of failed devices are looked at now and then; a place is the path by which the
//! pool knows the device. Only what is nobody's is taken: a device that carries a label, a file
//! system or a partition table is left alone and the log says why, as `zpool replace` without `-f`
//! would. The replacing itself is that of `zpool replace`, so it survives what that survives.

use super::Engine;
use super::pool::Pool;
use std::path::Path;
use std::sync::Arc;
use zilla_control::types::VdevAttach;
use zilla_env::OpenMode;

impl Engine {
    /// Replaces a pool's failed devices by what is in their places now.
    pub(super) async fn replace_failed(&self, pool: &Arc<Pool>) {
        if pool.readonly() || pool.spa.suspended().is_some() {
            return;
        }
        let failed = pool.spa.tree().failed_leaves();
        if failed.is_empty() || !pool.replaces_by_itself().await.unwrap_or(false) {
            return;
        }
        for (guid, path) in failed {
            if self.env.open(Path::new(&path), OpenMode::default()).await.is_err() {
                pool.refused.lock().remove(&guid);
                continue;
            }
            let name = pool.name();
            let attach =
                VdevAttach { name, guid, path: path.clone(), replace: true, ..VdevAttach::default() };
            let why = match self.attach_vdev(attach).await {
                Ok(()) => {
                    tracing::warn!(pool = %pool.name(), %path, "a new device takes the failed one's place");
                    pool.refused.lock().remove(&guid);
                    continue;
                }
                Err(e) if e.details.is_empty() => e.to_string(),
                Err(e) => e.details.join("; "),
            };
            let told = pool.refused.lock().insert(guid, why.clone());
            if told.as_ref() != Some(&why) {
                tracing::warn!(pool = %pool.name(), %path, "a failed device has no successor: {why}");
            }
        }
    }
}
