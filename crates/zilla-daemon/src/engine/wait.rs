//! `zpool wait`: what goes on in a pool, and until when.

use super::errors::{Answer, of_pool};
use super::pool::Pool;
use super::{Engine, Serves};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zilla::devices::UpkeepKind;
use zilla::error::Result;
use zilla::manage::TXG_DEFER_SIZE;
use zilla_control::Caller;
use zilla_control::types::{Activity, PoolSync, PoolWait, PoolWaitReply, ScanState};

const LONGEST: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(100);

impl Engine {
    pub(super) async fn wait(&self, r: PoolWait) -> Answer<PoolWaitReply> {
        let limit = Duration::from_millis(r.timeout_ms).min(LONGEST);
        let begin = Instant::now();
        loop {
            // Looked up each time: a pool that is exported meanwhile is waited for no more.
            let pool = self.pool(&r.name)?;
            let mut remaining = activities(&pool, &r.vdevs).await.map_err(of_pool)?;
            remaining.retain(|activity, _| r.activities.contains(activity));
            let done = remaining.is_empty();
            if done || begin.elapsed() >= limit {
                return Ok(PoolWaitReply { done, remaining });
            }
            drop(pool);
            tokio::time::sleep(STEP.min(limit.saturating_sub(begin.elapsed()))).await;
        }
    }
}

impl Serves<PoolWait> for Engine {
    async fn serve(&self, _: &Caller, r: PoolWait) -> Answer<PoolWaitReply> {
        self.wait(r).await
    }
}

impl Serves<PoolSync> for Engine {
    async fn serve(&self, _: &Caller, r: PoolSync) -> Answer<()> {
        self.check_running(&r.name)?;
        // The uberblock says how often heartbeats come; that may have changed and nothing else.
        if r.force || self.pool(&r.name)?.zilla.multihost() {
            self.pool(&r.name)?.zilla.sync_anyway().await.map_err(of_pool)?;
        }
        // As in OpenZFS also what frees wait for: afterwards space is what it will be.
        for _ in 0..=TXG_DEFER_SIZE {
            self.check_running(&r.name)?;
            self.pool(&r.name)?.zilla.sync().await.map_err(of_pool)?;
        }
        Ok(())
    }
}

/// What is in progress, with the bytes left.
async fn activities(pool: &Pool, vdevs: &[u64]) -> Result<BTreeMap<Activity, u64>> {
    let mut all = BTreeMap::new();
    let freeing = pool.zilla.freeing().await?;
    if freeing != 0 {
        all.insert(Activity::Free, freeing);
    }
    if let Some(c) = pool.zilla.checkpoint_stat().filter(|c| c.taken.is_none()) {
        // The last step still has to be written down.
        all.insert(Activity::Discard, c.space.max(1));
    }
    let left = || {
        let scan = pool.scan_stat();
        let left = scan.map_or(0, |s| s.to_examine.saturating_sub(s.issued.saturating_add(s.skipped)));
        // Counted to the end it still has to be written down.
        left.max(1)
    };
    if pool.is_scrubbing() {
        let blocks = pool.error_scrub().filter(|s| s.state == ScanState::Scanning);
        all.insert(Activity::Scrub, blocks.map_or_else(left, |s| s.to_examine.max(1)));
    }
    // Devices that wait for the next resilver get theirs a moment after this one.
    if pool.is_resilvering() || (!pool.readonly() && pool.zilla.vdevs().wants_resilver()) {
        all.insert(Activity::Resilver, left());
    }
    if let Some(left) = pool.zilla.rebuild_left() {
        all.insert(Activity::Resilver, left);
    }
    if pool.zilla.vdevs().is_replacing() {
        all.insert(Activity::Replace, left());
    }
    if let Some(left) = pool.zilla.removal_left() {
        all.insert(Activity::Remove, left.max(1));
    }
    if let Some(left) = pool.zilla.expansion_left() {
        all.insert(Activity::RaidzExpand, left.max(1));
    }
    for (activity, kind) in
        [(Activity::Initialize, UpkeepKind::Initialize), (Activity::Trim, UpkeepKind::Trim)]
    {
        if let Some(left) = pool.zilla.upkeep_left(kind, vdevs) {
            all.insert(activity, left);
        }
    }
    Ok(all)
}
