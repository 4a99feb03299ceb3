//! `zpool scrub`, and what `zpool status` tells of scrubs and of what they found.

use super::Engine;
use super::errors::{Answer, of_pool};
use super::pool::Pool;
use std::collections::HashSet;
use std::sync::Arc;
use zilla::error::{Errno, Result};
use zilla_control::types::{
    ErrorEntry, ErrorScrub, PoolResilver, PoolScrub, ScanFunc, ScanStat, ScanState, ScrubCommand,
};
use zilla_control::{ApiError, ErrorCode};
use zilla_core::scan::Scan;
use zilla_ondisk::enums;

/// More damaged places than anybody reads.
const MAX_ERRORS: usize = 10_000;

impl Engine {
    pub(super) async fn scrub(&self, r: PoolScrub) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let scan = pool.spa.scan().map_err(of_pool)?.clone();
        if r.errors_only && r.command == ScrubCommand::Start {
            let without = !pool.spa.ctx.features.is_enabled("head_errlog");
            if without {
                let what = "scrubbing known errors requires the head_errlog feature";
                return Err(ApiError::with(ErrorCode::BadVersion, what));
            }
        }
        if r.command == ScrubCommand::Start {
            // Devices that are no longer what they were are found now, not by their blocks one by one.
            let before = scan.is_resilvering();
            pool.spa.reopen().await.map_err(of_pool)?;
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

async fn start(scan: &Arc<Scan>, r: &PoolScrub) -> Result<()> {
    match (r.errors_only, r.from_last_txg) {
        (true, _) => scan.start_errors_only().await,
        (_, true) => scan.start_from_last().await,
        _ => scan.start().await,
    }
}

impl Engine {
    pub(super) async fn resilver(&self, r: PoolResilver) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        if !pool.spa.ctx.features.is_enabled("resilver_defer") {
            let what = "this action requires the resilver_defer feature";
            return Err(ApiError::with(ErrorCode::BadVersion, what));
        }
        pool.spa.resilver(true).await.map_err(of_pool)
    }
}

impl Pool {
    /// The scrub under way, or the last one; None where there never was one.
    pub fn scan_stat(&self) -> Option<ScanStat> {
        let s = self.spa.scan().ok()?.status();
        let func = match s.func {
            n if n == enums::ScanFunc::Scrub as u64 => ScanFunc::Scrub,
            n if n == enums::ScanFunc::Resilver as u64 => ScanFunc::Resilver,
            _ => return None,
        };
        let state = match s.state {
            n if n == enums::ScanState::Scanning as u64 => ScanState::Scanning,
            n if n == enums::ScanState::Finished as u64 => ScanState::Finished,
            n if n == enums::ScanState::Canceled as u64 => ScanState::Canceled,
            _ => ScanState::None,
        };
        Some(ScanStat {
            func,
            state,
            start_time: s.start_time,
            end_time: s.end_time,
            to_examine: s.to_examine,
            examined: s.examined,
            skipped: s.skipped,
            processed: s.processed,
            errors: s.errors,
            pass_exam: s.pass_exam,
            pass_start: s.pass_start,
            pass_scrub_pause: s.pass_scrub_pause,
            pass_scrub_spent_paused: s.pass_scrub_spent_paused,
            pass_issued: s.pass_issued,
            issued: s.issued,
        })
    }

    /// The scrub of known errors under way, or the last one, unless a scrub of everything began since.
    pub fn error_scrub(&self) -> Option<ErrorScrub> {
        let s = self.spa.scan().ok()?.error_scrub();
        let state = match enums::ScanState::from_number(s.state)? {
            enums::ScanState::ErrorScrubbing => ScanState::Scanning,
            enums::ScanState::Finished => ScanState::Finished,
            enums::ScanState::Canceled => ScanState::Canceled,
            enums::ScanState::None | enums::ScanState::Scanning => return None,
        };
        Some(ErrorScrub {
            state,
            start_time: s.start_time,
            end_time: s.end_time,
            examined: s.examined,
            to_examine: s.to_examine,
            pause_time: s.pause_time,
        })
    }

    pub fn is_scrubbing(&self) -> bool {
        self.spa.scan().is_ok_and(|scan| {
            scan.is_scrubbing_errors() || (scan.is_scanning() && !scan.is_resilvering() && !scan.is_paused())
        })
    }

    pub fn is_resilvering(&self) -> bool {
        self.spa.scan().is_ok_and(|scan| scan.is_resilvering())
    }

    /// Damaged objects, each once, in every dataset that has them: dataset and number.
    pub async fn damaged(&self) -> Result<Vec<(u64, u64)>> {
        let log = self.spa.errors()?;
        let (mut places, mut seen) = (Vec::new(), HashSet::new());
        for e in log.entries().await? {
            let left = MAX_ERRORS.saturating_sub(places.len());
            if left == 0 {
                break;
            }
            // (A dataset may be on its way out, or damaged itself.)
            let all = log.affected(&e, left).await.unwrap_or_else(|_| vec![e.objset]);
            places.extend(all.into_iter().map(|ds| (ds, e.object)).filter(|place| seen.insert(*place)));
        }
        Ok(places)
    }

    /// What they are called.
    pub async fn errors(&self, places: Vec<(u64, u64)>) -> Vec<ErrorEntry> {
        let mut all = Vec::new();
        for (dataset_id, object) in places {
            let mut entry = ErrorEntry { dataset: None, dataset_id, object, path: None, mountpoint: None };
            if dataset_id != 0
                && let Ok(ds) = self.dsl().dataset(dataset_id).await
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
    async fn path_of(
        &self,
        name: &str,
        ds: &Arc<zilla_core::dsl::DslDataset>,
        object: u64,
    ) -> Option<String> {
        let mounted = self.mounts.lock().get(name).map(|m| m.fs.zfs());
        let zfs = match mounted {
            Some(zfs) => zfs,
            None => zilla::open_zfs(&self.spa.ctx.env, self.dsl(), ds, true).await.ok()?,
        };
        zfs.path_of(object).await.ok()
    }
}
