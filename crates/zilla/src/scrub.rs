//! Scrubs and resilvers: begun, paused, given up; and what they found damaged.

use crate::error::Result;
use crate::pool::Pool;
use std::collections::HashSet;
use std::sync::Arc;
use zilla_control::types::{ErrorScrub, ScanFunc, ScanStat, ScanState};
use zilla_core::scan::Scan;
use zilla_ondisk::enums;

/// A pool's one scan: at most one scrub or resilver is under way.
#[derive(Clone)]
pub struct Scrubber(Arc<Scan>);

impl Scrubber {
    /// Begins to read all that is in use, or goes on where it was paused.
    pub async fn start(&self) -> Result<()> {
        self.0.start().await
    }

    /// The same for what was written since the last scrub.
    pub async fn start_from_last(&self) -> Result<()> {
        self.0.start_from_last().await
    }

    /// Reads what is known to be damaged. ECANCELED: nothing is.
    pub async fn start_errors_only(&self) -> Result<()> {
        self.0.start_errors_only().await
    }

    /// Pauses a scrub, also over an export. ENOENT: none is under way.
    pub async fn pause(&self) -> Result<()> {
        self.0.pause().await
    }

    /// Gives a scrub up. ENOENT: none is under way.
    pub async fn cancel(&self) -> Result<()> {
        self.0.cancel().await
    }

    /// Whether devices are given what they lack.
    pub fn is_resilvering(&self) -> bool {
        self.0.is_resilvering()
    }

    /// Whether a scrub is under way, and not paused.
    pub fn is_scrubbing(&self) -> bool {
        self.0.is_scrubbing_errors()
            || (self.0.is_scanning() && !self.0.is_resilvering() && !self.0.is_paused())
    }

    /// The scan under way, or the last one; None where there never was one.
    pub fn status(&self) -> Option<ScanStat> {
        let s = self.0.status();
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

    /// The scrub of known errors under way, or the last one, unless a scrub of everything began
    /// since.
    pub fn error_scrub(&self) -> Option<ErrorScrub> {
        let s = self.0.error_scrub();
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
}

impl Pool {
    /// The pool's scrubs. EROFS: it is imported read-only.
    pub fn scrubber(&self) -> Result<Scrubber> {
        Ok(Scrubber(self.spa().scan()?.clone()))
    }

    /// Begins to give devices what they lack; `restart`: also where that is under way.
    pub async fn resilver(&self, restart: bool) -> Result<()> {
        self.spa().resilver(restart).await
    }

    /// Damaged objects, each once, in every dataset that has them: the dataset's number, and the
    /// object's. So many at most.
    pub async fn damaged(&self, most: usize) -> Result<Vec<(u64, u64)>> {
        let log = self.spa().errors()?;
        let (mut places, mut seen) = (Vec::new(), HashSet::new());
        for e in log.entries().await? {
            let left = most.saturating_sub(places.len());
            if left == 0 {
                break;
            }
            // (A dataset may be on its way out, or damaged itself.)
            let all = log.affected(&e, left).await.unwrap_or_else(|_| vec![e.objset]);
            places.extend(all.into_iter().map(|ds| (ds, e.object)).filter(|place| seen.insert(*place)));
        }
        Ok(places)
    }
}
