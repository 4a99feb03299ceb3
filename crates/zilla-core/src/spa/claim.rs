//! Taking a pool that other hosts may be about to take, too.
//!
//! A pool that was exported, or whose host is gone, may be imported by two hosts at the same time. So the newest uberblock is
//! read, a heartbeat written to all labels within a certain time of that, or not at all; twice that time is waited; and if it is the newest
//! still, the pool is ours. (Who read before us has written by now, over ours; who reads after us sees it: Fischer's algorithm.) Until a txg has
//! put our number into the labels the lease is not longer than that time either.
//!
//! **Taking it back** after the lease was lost: only if its newest uberblock is one that we have written, and stays so for as long as an import would
//! watch it. While a pool is being claimed nothing else of it is written: the claim goes past the fence of the pool, by one of its own.
//!
//! A crash leaves the claim in the ring: a heartbeat of a host that is gone.

use super::activity::{self, Rank};
use super::multihost::{Heart, Pace, nanos, next, places};
use crate::error::{Errno, Error, Result};
use crate::vdev::{Beat, Lease, open_device};
use futures_util::future::join_all;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zilla_env::OpenMode;
use zilla_ondisk::Uberblock;

/// What an uberblock is taken to say that does not: the interval in milliseconds. Source: MMP_DEFAULT_INTERVAL in sys/mmp.h.
const DEFAULT_INTERVAL: u32 = 1000;
/// What a claim has at least: fewer would ask too much of disks that sleep.
const LEAST_GAP: Duration = Duration::from_secs(1);
/// And at most, whatever an uberblock says: it may be damaged.
const MOST_GAP: Duration = Duration::from_secs(60);
/// Bits of the sequence number that a claim draws.
const CLAIM_SEQ: u64 = 0x7fff;

/// How soon after its reading a claim is written, which both who claim must agree on.
fn gap(ub: &Uberblock) -> Duration {
    let interval = Duration::from_millis(u64::from(ub.mmp_interval().unwrap_or(DEFAULT_INTERVAL)));
    (interval * 2).clamp(LEAST_GAP, MOST_GAP)
}

impl Heart {
    /// Makes sure that nobody else takes the pool, whose newest uberblock was this one. See the head of this file.
    pub async fn claim(self: &Arc<Self>, seen: Rank) -> Result<()> {
        let tree = self.zio.tree();
        let read = self.world.boottime();
        let labels = tree.read_labels().await;
        let Some(found) = labels.uberblocks.first().map(|f| f.ub).filter(|ub| ub.rank() == seen) else {
            return Err(activity::elsewhere(&labels));
        };
        let gap = gap(&found);
        let ub = {
            let mut st = self.state.lock();
            if let Some(pace) = Pace::of(&found) {
                st.pace = pace;
            }
            st.delay = nanos(st.pace.interval());
            st.newest = found;
            let (timestamp, _) = next(&found, self.world.wall().as_secs());
            let mut ub = Uberblock { timestamp, ..found };
            let above = if timestamp == found.timestamp { found.mmp_seq().unwrap_or(0) } else { 0 };
            let drawn = 1 + (self.world.rng.u64() & CLAIM_SEQ) as u16;
            st.mark(&mut ub, above.saturating_add(drawn));
            st.newest = ub;
            st.taking = Some(gap);
            ub
        };
        let places = places(&tree);
        // Within that time, or not at all; and nothing else of the pool with it.
        let brief = Lease::guard(&self.world);
        brief.lease.begin(read + gap);
        let holders = places.iter().filter(|(leaf, _)| leaf.holds(ub.txg));
        let writes = holders.map(|(leaf, ashift)| {
            let (beat, env) = (Beat { ub, ashift: *ashift }, &brief.env);
            async move {
                let mode = OpenMode { write: true, exclusive: false };
                let device = open_device(env, Path::new(&leaf.path()), mode).await?;
                beat.write_everywhere(leaf, &device).await
            }
        });
        let mut failed = None;
        for result in join_all(writes).await {
            failed = result.err();
            if failed.is_none() {
                break;
            }
        }
        if places.is_empty() || failed.is_some() {
            let why = failed.map_or_else(|| "there is none".to_owned(), |e| e.to_string());
            let what = format!(
                "no multihost heartbeat could be written in time to any of the pool's devices: {why}"
            );
            return Err(Error::os(Errno::Io, what));
        }
        self.world.sleep(gap * 2).await;
        let again = self.world.boottime();
        let labels = tree.read_labels().await;
        if labels.uberblocks.first().is_none_or(|f| f.ub != ub) {
            return Err(activity::elsewhere(&labels));
        }
        self.lease.begin(again + gap);
        Ok(())
    }

    /// For `zpool clear`: after the lease was lost, sees whether the pool is ours still, and takes it again.
    pub async fn reclaim(self: &Arc<Self>) -> Result<()> {
        let tree = self.zio.tree();
        let labels = tree.read_labels().await;
        let Some(best) = labels.uberblocks.first().map(|f| f.ub) else {
            return Err(Error::os(Errno::Io, "no uberblock can be read from any of the pool's devices"));
        };
        let (ours, host) = {
            let st = self.state.lock();
            let same =
                |ub: &Uberblock| (ub.txg, ub.rootbp, ub.guid_sum) == (best.txg, best.rootbp, best.guid_sum);
            let before = best.rank() <= st.newest.rank().max(st.tried.rank());
            (before && (same(&st.newest) || same(&st.tried)) && activity::is_tagged(&best, st.host), st.host)
        };
        if !ours {
            return Err(activity::elsewhere(&labels));
        }
        activity::watch(&self.world, &tree, best.rank(), activity::watch_for(&self.world, &best)?).await?;
        self.claim(best.rank()).await?;
        // The labels have our number.
        self.state.lock().taking = None;
        self.start(host);
        Ok(())
    }
}
