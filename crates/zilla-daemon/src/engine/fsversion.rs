//! `zfs upgrade`, and `zfs set version`: a file system gets a newer version of its format.
//!
//! It is closed for that: what is mounted there is unmounted, and mounted again afterwards. Where
//! somebody uses it nothing is done.

use super::Engine;
use super::errors::{Answer, of};
use super::pool::Pool;
use zilla::tree::DatasetRef;
use zilla::zpl::version_for;
use zilla_control::{ApiError, ErrorCode};

impl Engine {
    /// The error of what could not be mounted again, if any.
    pub(super) async fn upgrade_filesystem(
        &self,
        pool: &Pool,
        ds: &DatasetRef,
        now: u64,
        version: u64,
    ) -> Answer<Option<ApiError>> {
        let name = ds.name();
        if version < now {
            let what = format!("Can not downgrade; already at version {now}");
            return Err(ApiError::with(ErrorCode::BadProp, what));
        }
        if version > version_for(pool.zilla.version()) {
            let what = "pool and or dataset must be upgraded to set this property or value";
            return Err(ApiError::with(ErrorCode::BadVersion, what));
        }
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let is_mounted = pool.mounted_at(&name).is_some();
        let mounted = if is_mounted { pool.mounted_below(&name) } else { Vec::new() };
        let (unmounted, stopped) = pool.unmount_each(&mounted, false).await;
        let done = match stopped {
            Some(e) => Err(e),
            None => self.upgrade_closed(pool, ds, version).await,
        };
        let failed = pool.mount_back(self, &unmounted).await;
        done.map(|()| failed)
    }

    async fn upgrade_closed(&self, pool: &Pool, ds: &DatasetRef, version: u64) -> Answer<()> {
        let name = ds.name();
        // Nobody mounts it while it is open here.
        let _one = pool.mounting.lock().await;
        if pool.mounts().contains(&name) {
            return Err(ApiError::with(ErrorCode::Busy, "it is being mounted or unmounted"));
        }
        ds.upgrade_filesystem(version).await.map_err(of(&name))
    }
}
