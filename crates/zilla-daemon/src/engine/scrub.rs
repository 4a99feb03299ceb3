//! `zpool scrub`, and what `zpool status` tells of scrubs and of what they found.

use super::errors::{Answer, of_pool};
use super::pool::Pool;
use super::{Engine, Serves};
use zilla::error::{Errno, Result};
use zilla::scrub::Scrubber;
use zilla::tree::DatasetRef;
use zilla_control::types::{ErrorEntry, ErrorScrub, PoolResilver, PoolScrub, ScanStat, ScrubCommand};
use zilla_control::{ApiError, Caller, ErrorCode};

/// More damaged places than anybody reads.
const MAX_ERRORS: usize = 10_000;

impl Serves<PoolScrub> for Engine {
    async fn serve(&self, _: &Caller, r: PoolScrub) -> Answer<()> {
        self.check_running(&r.name)?;
        let pool = self.pool(&r.name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let scan = pool.zilla.scrubber().map_err(of_pool)?;
        if r.errors_only && r.command == ScrubCommand::Start {
            let without = !pool.zilla.feature_is_enabled("head_errlog");
            if without {
                let what = "scrubbing known errors requires the head_errlog feature";
                return Err(ApiError::with(ErrorCode::BadVersion, what));
            }
        }
        if r.command == ScrubCommand::Start {
            // Devices that are no longer what they were are found now, not by their blocks one by
            // one.
            let before = scan.is_resilvering();
            pool.zilla.reopen().await.map_err(of_pool)?;
            if !before && scan.is_resilvering() {
                // What some of them missed comes first.
                return Ok(());
            }
        }
        if scan.is_resilvering() {
            match r.command {
                ScrubCommand::Stop => return Err(ErrorCode::Resilvering.into()),
                ScrubCommand::Pause => return Err(ErrorCode::NoScrub.into()),
                ScrubCommand::Start => {}
            }
        }
        match r.command {
            ScrubCommand::Start => match start(&scan, &r).await {
                // There is nothing to look after, which is as good as done.
                Err(e) if r.errors_only && e.is(Errno::Canceled) => Ok(()),
                other => other.map_err(of_pool),
            },
            ScrubCommand::Pause => match scan.pause().await {
                Err(e) if e.is(Errno::NoEnt) => Err(ErrorCode::NoScrub.into()),
                other => other.map_err(of_pool),
            },
            ScrubCommand::Stop => match scan.cancel().await {
                Err(e) if e.is(Errno::NoEnt) => Err(ErrorCode::NoScrub.into()),
                other => other.map_err(of_pool),
            },
        }
    }
}

async fn start(scan: &Scrubber, r: &PoolScrub) -> Result<()> {
    match (r.errors_only, r.from_last_txg) {
        (true, _) => scan.start_errors_only().await,
        (_, true) => scan.start_from_last().await,
        _ => scan.start().await,
    }
}

impl Serves<PoolResilver> for Engine {
    async fn serve(&self, _: &Caller, r: PoolResilver) -> Answer<()> {
        self.check_running(&r.name)?;
        let pool = self.pool(&r.name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        if !pool.zilla.feature_is_enabled("resilver_defer") {
            let what = "this action requires the resilver_defer feature";
            return Err(ApiError::with(ErrorCode::BadVersion, what));
        }
        pool.zilla.resilver(true).await.map_err(of_pool)
    }
}

impl Pool {
    /// The scrub under way, or the last one; None where there never was one.
    pub fn scan_stat(&self) -> Option<ScanStat> {
        self.zilla.scrubber().ok()?.status()
    }

    /// The scrub of known errors under way, or the last one, unless a scrub of everything began
    /// since.
    pub fn error_scrub(&self) -> Option<ErrorScrub> {
        self.zilla.scrubber().ok()?.error_scrub()
    }

    pub fn is_scrubbing(&self) -> bool {
        self.zilla.scrubber().is_ok_and(|scan| scan.is_scrubbing())
    }

    pub fn is_resilvering(&self) -> bool {
        self.zilla.scrubber().is_ok_and(|scan| scan.is_resilvering())
    }

    /// Damaged objects, each once, in every dataset that has them: dataset and number.
    pub async fn damaged(&self) -> Result<Vec<(u64, u64)>> {
        self.zilla.damaged(MAX_ERRORS).await
    }

    /// What they are called.
    pub async fn errors(&self, places: Vec<(u64, u64)>) -> Vec<ErrorEntry> {
        let mut all = Vec::new();
        for (dataset_id, object) in places {
            let mut entry = ErrorEntry { dataset: None, dataset_id, object, path: None, mountpoint: None };
            if dataset_id != 0
                && let Ok(ds) = self.zilla.by_id(dataset_id).await
            {
                let name = ds.name();
                entry.path = self.path_of(&name, &ds, object).await;
                entry.mountpoint = self.mounted_at(&name).map(|p| p.to_string_lossy().into_owned());
                entry.dataset = Some(name);
            }
            all.push(entry);
        }
        all
    }
}

impl Pool {
    async fn path_of(&self, name: &str, ds: &DatasetRef, object: u64) -> Option<String> {
        let mounted = self.mounts().get(name).map(|m| m.fs.zfs());
        let zfs = match mounted {
            Some(zfs) => zfs,
            None => ds.open_zfs(true).await.ok()?,
        };
        zfs.path_of(object).await.ok()
    }
}
