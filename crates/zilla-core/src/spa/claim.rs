//! Taking a pool that other hosts may be about to take, too.
//!
//! A pool that was exported, or whose host is gone, may be imported by two hosts at the same time.
//! So the newest uberblock is read, a heartbeat written to all labels within a certain time of
//! that, or not at all; twice that time is waited; and if it is the newest still, the pool is ours.
//! (Who read before us has written by now, over ours; who reads after us sees it: Fischer's
//! algorithm.) Until a txg has put our number into the labels the lease is not longer than that
//! time either.
//!
//! **Taking it back** after the lease was lost: only if its newest uberblock is one that we have
//! written, and stays so for as long as an import would watch it. While a pool is being claimed
//! nothing else of it is written: the claim goes past the fence of the pool, by one of its own.
//!
//! The devices are opened anew for a claim, by their paths, which may lead elsewhere by now: only
//! what carries the leaf's and the pool's labels is written to. One that does not answer is passed
//! over when it is written; when it is read there is no claim without it, for what it has may be
//! another's.
//!
//! A crash leaves the claim in the ring: a heartbeat of a host that is gone.

use super::activity::{self, Rank};
use super::multihost::{Heart, Pace, nanos, next, places};
use crate::error::{Errno, Error, Result};
use crate::vdev::{Beat, Leaf, Lease, label, open_device};
use futures_util::future::join_all;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zilla_env::{Env, OpenMode};
use zilla_ondisk::Uberblock;
use zilla_ondisk::label::usable_size;

/// What an uberblock is taken to say that does not: the interval in milliseconds. Source:
/// MMP_DEFAULT_INTERVAL in sys/mmp.h.
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

/// Of which pool and top-level vdev a leaf is.
#[derive(Clone, Copy)]
struct Whose {
    pool: u64,
    top: u64,
}

/// Why a device is not the leaf that it is to be, if it is not. The labels are judged as they are
/// when a pool is opened.
fn mismatch(leaf: &Leaf, size: u64, labels: &[label::Label], whose: Whose) -> Option<&'static str> {
    // The places of its labels are counted from the end, too.
    if usable_size(size) < leaf.psize() {
        return Some("the device has become smaller");
    }
    let newest = label::best_config(labels, u64::MAX).filter(|c| c.u64("pool_guid") == Some(whose.pool));
    // It was about to become another pool's, which its uberblock does not know.
    let before = || label::before(labels).filter(|c| c.u64("pool_guid") == Some(whose.pool));
    let Some(config) = newest.cloned().or_else(before) else {
        return Some("the device has no label of this pool");
    };
    let (guid, top) = (config.u64("guid").unwrap_or(0), config.u64("top_guid").unwrap_or(0));
    // What is left of a mirror has taken the mirror's guid; its label may be the old one still.
    let same = guid == leaf.guid() || top == leaf.guid() || guid == whose.top;
    (!same).then_some("the device's label is another device's")
}

/// Opens a leaf's device in the world of a claim and writes the heartbeat to all its labels, if the
/// device is the leaf's still.
async fn write_anew(env: &Env, leaf: &Leaf, beat: &Beat, whose: Whose) -> io::Result<()> {
    let mode = OpenMode { write: true, exclusive: false };
    let device = open_device(env, Path::new(&leaf.path()), mode).await?;
    let labels = label::read_labels(&device).await;
    match mismatch(leaf, device.size(), &labels, whose) {
        Some(why) => Err(io::Error::other(why)),
        None => beat.write_everywhere(leaf, &device).await,
    }
}

impl Heart {
    /// Makes sure that nobody else takes the pool, whose newest uberblock was this one. See the
    /// head of this file. When it was seen last that nobody else has.
    pub async fn claim(self: &Arc<Self>, seen: Rank) -> Result<Duration> {
        let tree = self.zio.tree();
        let read = self.world.boottime();
        let labels = tree.read_labels_within(&self.world, activity::PATIENCE).await?;
        let Some(found) = labels.uberblocks.first().map(|f| f.ub).filter(|ub| ub.rank() == seen) else {
            return Err(activity::elsewhere(&labels));
        };
        let Some(pool) = labels.config(&found).and_then(|c| c.u64("pool_guid")) else {
            return Err(Error::os(Errno::Io, "no label of the pool's devices says which pool's they are"));
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
            let beat = Beat { ub, ashift: *ashift };
            let whose = Whose { pool, top: tree.top_of(leaf.guid()).map_or(0, |t| t.vdev.guid) };
            let (world, env) = (&self.world, &brief.env);
            async move {
                // One that does not answer must not keep the pool from being claimed on others.
                // What it holds back is a heartbeat that comes too late, as a crash leaves them.
                let written = world.timeout(gap, write_anew(env, leaf, &beat, whose)).await;
                let written = written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                if let Err(e) = &written {
                    tracing::warn!(path = %leaf.path(), "the pool is not claimed on this device: {e}");
                }
                written
            }
        });
        let results = join_all(writes).await;
        if !results.iter().any(|r| r.is_ok()) {
            let failed = results.into_iter().find_map(|r| r.err());
            let why = failed.map_or_else(|| "there is none".to_owned(), |e| e.to_string());
            let what = format!(
                "no multihost heartbeat could be written in time to any of the pool's devices: {why}"
            );
            return Err(Error::os(Errno::Io, what));
        }
        self.world.sleep(gap * 2).await;
        let again = self.world.boottime();
        let labels = tree.read_labels_within(&self.world, activity::PATIENCE).await?;
        if labels.uberblocks.first().is_none_or(|f| f.ub != ub) {
            return Err(activity::elsewhere(&labels));
        }
        self.lease.begin(again + gap);
        Ok(again)
    }

    /// For who had the pool last and opens it again, which takes no claim: whether it is his still,
    /// now that it is about to be written. Reading it may have taken so long that others found it
    /// left. When it was looked at; until the labels say whose it is the lease is short.
    pub async fn look_again(self: &Arc<Self>, newest: &Uberblock) -> Result<Duration> {
        let looked = self.world.boottime();
        let labels = self.zio.tree().read_labels_within(&self.world, activity::PATIENCE).await?;
        if labels.uberblocks.first().is_none_or(|f| f.ub.rank() != newest.rank()) {
            return Err(activity::elsewhere(&labels));
        }
        self.state.lock().taking = Some(gap(newest));
        Ok(looked)
    }

    /// For `zpool clear`: after the lease was lost, sees whether the pool is ours still, and takes
    /// it again.
    pub async fn reclaim(self: &Arc<Self>) -> Result<()> {
        let tree = self.zio.tree();
        let labels = tree.read_labels_within(&self.world, activity::PATIENCE).await?;
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
        let seen = self.claim(best.rank()).await?;
        // The labels have our number.
        self.state.lock().taking = None;
        self.start(host, seen);
        Ok(())
    }
}
