//! What a pool looks like from outside: its vdevs with their counters, its features, and what goes
//! on in it.
//!
//! The types are those of `zilla-control`, plain values that the commands print and others may
//! store; [`Pool::status`] fills them, and [`look_at`] does the same for a pool that is not open,
//! of which only labels are known.

mod candidate;
mod extended;
mod vdevs;

use crate::features::SUPPORTED;
use crate::pool::Pool;
use crate::stats::{CheckpointStat, DedupStats};
use std::time::Duration;
use zilla_control::props::FEATURES;
use zilla_core::spa::{FailMode, RebuildState, RebuildStatus, Spa};
use zilla_ondisk::enums::ScanState as CoreScanState;
use zilla_ondisk::removal::SpaRemovingPhys;

pub use candidate::{Looked, aux_devices, look_at, wanted_devices};
pub use vdevs::vdev_state;
pub use zilla_control::types::{
    ActivityState, AllocClass, Checkpoint, CheckpointState, DedupTables, ErrorScrub, Feature, FeatureState,
    LeafProgress, PoolHealth, PoolInfo, QueueDepth, RaidzExpand, RebuildStat, Removal, ScanFunc, ScanStat,
    ScanState, Suspended, VdevAux, VdevKind, VdevNode, VdevState, VdevStats, VdevStatsEx,
};

impl Pool {
    /// What is known of it at this moment, but for what has to be read: errors, properties.
    /// `open_for`: how long it has been open; `extended`: with queues and histograms of vdevs.
    pub fn status(&self, open_for: Duration, extended: bool) -> PoolInfo {
        let spa = self.spa();
        let tree = spa.tree();
        let elapsed = u64::try_from(open_for.as_nanos()).unwrap_or(u64::MAX);
        let mut root = vdevs::root(&tree, Some(&spa.metaslabs), elapsed);
        for (node, top) in root.children.iter_mut().zip(&tree.tops) {
            node.rebuild = spa.rebuild_status(top).and_then(|r| rebuild(&r));
        }
        let mut l2cache = vdevs::aux(&tree, &tree.cache, AllocClass::Cache, elapsed);
        for v in &mut l2cache {
            let space = spa.cache_space(v.guid).unwrap_or_default();
            (v.stats.alloc, v.stats.space) = (space.alloc, space.space);
            v.stats.fragmentation = Some(0);
        }
        let spares = vdevs::aux(&tree, &tree.spares, AllocClass::Spare, elapsed);
        let ub = spa.uberblock();
        let scrubber = self.scrubber().ok();
        let mut info = PoolInfo {
            name: self.name(),
            guid: spa.guid(),
            txg: ub.txg,
            health: health(root.stats.state),
            version: spa.version(),
            timestamp: ub.timestamp,
            errata: spa.dsl.errata(),
            suspended: spa.suspended().map(|_| match spa.fail_mode() {
                _ if spa.lost_to_others() => Suspended::Multihost,
                FailMode::Wait => Suspended::Wait,
                FailMode::Continue => Suspended::Continue,
            }),
            root,
            spares,
            l2cache,
            features: features(self),
            checkpoint: spa.checkpoint_stat().map(checkpoint),
            dedup: dedup(&spa.dedup()),
            removal: removal(&spa.removing(), spa.mapping_memory()),
            raidz_expand: expansion(spa),
            scan: scrubber.as_ref().and_then(|s| s.status()),
            error_scrub: scrubber.as_ref().and_then(|s| s.error_scrub()),
            ..PoolInfo::default()
        };
        if extended {
            extended::fill(&mut info, &tree);
        }
        info
    }

    /// Whether nothing is wrong with its devices.
    pub fn is_online(&self) -> bool {
        let (state, _) = self.spa().tree().root.state();
        self.spa().suspended().is_none() && vdev_state(state) == VdevState::Healthy
    }

    /// Bytes left to copy off a vdev that is being removed; None: none is.
    pub fn removal_left(&self) -> Option<u64> {
        let removing = self.spa().removing();
        self.spa().is_removing().then(|| removing.to_copy.saturating_sub(removing.copied))
    }

    /// Bytes left to move of a RAID-Z that is being widened; None: none is.
    pub fn expansion_left(&self) -> Option<u64> {
        let (vdev, now) = self.spa().expansion().filter(|_| self.spa().is_expanding())?;
        let all_of_it = self.spa().metaslabs.vdev_stat(vdev).map_or(0, |s| s.alloc);
        Some(all_of_it.saturating_sub(now.copied))
    }

    /// Bytes left to rebuild one after the other; None: nothing is rebuilt so.
    pub fn rebuild_left(&self) -> Option<u64> {
        self.spa().rebuild_left()
    }
}

fn checkpoint(c: CheckpointStat) -> Checkpoint {
    let state = if c.taken.is_some() { CheckpointState::Exists } else { CheckpointState::Discarding };
    Checkpoint { state, start_time: c.taken.unwrap_or(0), space: c.space }
}

fn dedup(stats: &DedupStats) -> DedupTables {
    let rows = stats.histogram.0.iter().enumerate().filter(|(_, sums)| sums[0] > 0);
    DedupTables {
        entries: stats.entries,
        on_disk: stats.table_size,
        in_core: stats.in_core,
        histogram: rows.map(|(bucket, sums)| (bucket as u32, *sums)).collect(),
    }
}

/// The removal under way, or the last one.
fn removal(phys: &SpaRemovingPhys, mapping_memory: u64) -> Option<Removal> {
    let state = match CoreScanState::from_number(phys.state)? {
        CoreScanState::None | CoreScanState::ErrorScrubbing => return None,
        CoreScanState::Scanning => ScanState::Scanning,
        CoreScanState::Finished => ScanState::Finished,
        CoreScanState::Canceled => ScanState::Canceled,
    };
    Some(Removal {
        state,
        removing_vdev: phys.removing_vdev,
        start_time: phys.start_time,
        end_time: phys.end_time,
        to_copy: phys.to_copy,
        copied: phys.copied,
        mapping_memory,
    })
}

/// The sequential rebuild of a top-level vdev under way, or the last one.
fn rebuild(now: &RebuildStatus) -> Option<RebuildStat> {
    let state = match now.state()? {
        RebuildState::Active => ActivityState::Active,
        RebuildState::Canceled => ActivityState::Canceled,
        RebuildState::Complete => ActivityState::Complete,
    };
    let phys = &now.phys;
    Some(RebuildStat {
        state,
        start_time: phys.start_time,
        end_time: phys.end_time,
        scan_time_ms: phys.scan_time_ms,
        bytes_scanned: phys.bytes_scanned,
        bytes_issued: phys.bytes_issued,
        bytes_rebuilt: phys.bytes_rebuilt,
        bytes_est: phys.bytes_est,
        errors: phys.errors,
        pass_time_ms: u64::try_from(now.pass_time.as_millis()).unwrap_or(u64::MAX),
        pass_bytes_scanned: now.pass_scanned,
        pass_bytes_issued: now.pass_issued,
        pass_bytes_skipped: now.pass_scanned.saturating_sub(now.pass_issued),
    })
}

/// The RAID-Z expansion under way, or the last one.
fn expansion(spa: &Spa) -> Option<RaidzExpand> {
    let (vdev, now) = spa.expansion()?;
    let state = match CoreScanState::from_number(now.state)? {
        CoreScanState::Scanning => ScanState::Scanning,
        CoreScanState::Finished => ScanState::Finished,
        _ => return None,
    };
    Some(RaidzExpand {
        state,
        expanding_vdev: u64::from(vdev),
        start_time: now.start_time,
        end_time: now.end_time,
        to_reflow: spa.metaslabs.vdev_stat(vdev).map_or(0, |s| s.alloc),
        reflowed: now.copied,
        waiting_for_resilver: now.waiting,
    })
}

fn health(state: VdevState) -> PoolHealth {
    match state {
        VdevState::Healthy => PoolHealth::Online,
        VdevState::Degraded => PoolHealth::Degraded,
        VdevState::Offline | VdevState::Closed => PoolHealth::Offline,
        VdevState::Removed => PoolHealth::Removed,
        VdevState::Faulted => PoolHealth::Faulted,
        VdevState::CantOpen | VdevState::Unknown => PoolHealth::Unavail,
    }
}

/// Every feature there is, in OpenZFS's order, then those of this pool that nobody knows.
fn features(pool: &Pool) -> Vec<Feature> {
    let listed = pool.features();
    let count = |guid: &str| listed.iter().find(|(g, _)| g == guid).map(|(_, count)| *count);
    let state = |guid: &str| match count(guid) {
        None => FeatureState::Disabled,
        Some(0) => FeatureState::Enabled,
        Some(_) => FeatureState::Active,
    };
    let known = FEATURES.iter().map(|f| Feature {
        name: f.name.to_owned(),
        guid: f.guid.to_owned(),
        state: state(f.guid),
        supported: SUPPORTED.contains(&f.name),
        readonly_compatible: f.readonly_compatible,
    });
    let mut all: Vec<Feature> = known.collect();
    for (guid, _) in &listed {
        if !FEATURES.iter().any(|f| f.guid == guid) {
            all.push(Feature {
                name: guid.clone(),
                guid: guid.clone(),
                state: state(guid),
                supported: false,
                readonly_compatible: false,
            });
        }
    }
    all
}
