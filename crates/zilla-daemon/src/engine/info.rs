//! What a pool looks like from outside: its vdevs with their counters, its features.

use super::Engine;
use super::errors::{Answer, of_pool};
use super::pool::Pool;
use super::upkeep::progress;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla::features::SUPPORTED;
use zilla_control::props::FEATURES;
use zilla_control::types::*;
use zilla_core::metaslab::{Metaslabs, SpaceClass};
use zilla_core::spa::{CheckpointStat, DedupStats, FailMode, RebuildState, RebuildStatus};
use zilla_core::vdev::{IoKind, Top, UpkeepKind, Vdev, VdevKind as CoreKind, VdevTree};
use zilla_ondisk::enums::{self, ScanState as CoreScanState};
use zilla_ondisk::removal::SpaRemovingPhys;

/// Classes that datasets' data goes to.
const DATA_CLASSES: [SpaceClass; 4] =
    [SpaceClass::Normal, SpaceClass::EmbeddedLog, SpaceClass::Special, SpaceClass::Dedup];

impl Engine {
    pub(super) async fn query_pools(&self, r: PoolQuery) -> Answer<Vec<PoolInfo>> {
        let mut all = Vec::new();
        for pool in self.all_pools() {
            if r.names.is_empty() || r.names.contains(&pool.name()) {
                let mut info = self.info(&pool);
                info.scan = pool.scan_stat();
                info.error_scrub = pool.error_scrub();
                if r.extended_stats {
                    super::extended::fill(&mut info, &pool.spa.tree());
                }
                // A pool whose log of errors is damaged is looked at all the more.
                let damaged = pool.damaged().await.unwrap_or_else(|e| {
                    tracing::error!(pool = %pool.name(), error = %e, "the error log cannot be read");
                    vec![(0, 0)]
                });
                info.error_count = damaged.len() as u64;
                for (objset, why) in pool.spa.ctx.log.kept.list() {
                    // It may just have been destroyed.
                    if let Ok(ds) = pool.dsl().dataset(objset).await {
                        info.kept_logs.push(KeptLog { dataset: ds.name(), why });
                    }
                }
                if r.errors {
                    info.errors = pool.errors(damaged).await;
                }
                if r.properties {
                    info.properties = self.pool_props(&pool, &info).await.map_err(of_pool)?;
                }
                if r.vdev_properties {
                    info.vdev_properties = pool.vdev_props(&info).await.map_err(of_pool)?;
                }
                all.push(info);
            }
        }
        all.extend(self.lost_pools(&r.names).await?);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn info(&self, pool: &Pool) -> PoolInfo {
        let spa = &pool.spa;
        let tree = spa.tree();
        let elapsed = u64::try_from(pool.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut root = root(&tree, Some(&spa.metaslabs), elapsed);
        for (node, top) in root.children.iter_mut().zip(&tree.tops) {
            node.rebuild = spa.rebuild_status(top).and_then(|r| rebuild(&r));
        }
        let mut l2cache = aux(&tree, &tree.cache, AllocClass::Cache, elapsed);
        for v in &mut l2cache {
            let space = spa.cache_space(v.guid).unwrap_or_default();
            (v.stats.alloc, v.stats.space) = (space.alloc, space.space);
            v.stats.fragmentation = Some(0);
        }
        let mut spares = aux(&tree, &tree.spares, AllocClass::Spare, elapsed);
        for v in &mut spares {
            v.spared_by = self.user_of_spare(v.guid);
            if v.spared_by.is_some() {
                (v.stats.state, v.stats.aux) = (VdevState::CantOpen, VdevAux::Spared);
            }
        }
        let ub = spa.uberblock();
        PoolInfo {
            name: pool.name(),
            guid: spa.guid(),
            txg: ub.txg,
            health: health(root.stats.state),
            version: spa.version(),
            system_hostid: super::host::host().id,
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
            features: features(pool),
            checkpoint: spa.checkpoint_stat().map(checkpoint),
            dedup: dedup(&spa.dedup()),
            removal: removal(&spa.removing(), spa.mapping_memory()),
            raidz_expand: expansion(spa),
            ..PoolInfo::default()
        }
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
fn expansion(spa: &zilla_core::spa::Spa) -> Option<RaidzExpand> {
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

/// Whether nothing is wrong with a pool's devices.
pub(super) fn is_online(pool: &Pool) -> bool {
    let (state, _) = pool.spa.tree().root.state();
    pool.spa.suspended().is_none() && vdev_state(state) == VdevState::Healthy
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
    let listed = pool.spa.ctx.features.list();
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

/// The tree. Without metaslabs (an import's candidate) there is no space to tell of.
pub fn root(tree: &VdevTree, space: Option<&Metaslabs>, elapsed: u64) -> VdevNode {
    let mut root = node(tree, &tree.root, None, space, elapsed);
    root.kind = VdevKind::Root;
    if let Some(space) = space {
        for class in DATA_CLASSES {
            let stat = space.class_stat(class);
            root.stats.alloc += stat.alloc;
            root.stats.space += stat.space;
            root.stats.dspace += stat.dspace;
        }
        let data = tree.tops.iter().filter(|t| !t.vdev.is_log && t.vdev.bias().is_none());
        root.stats.esize = data.map(|t| t.could_grow(&t.vdev)).sum();
        root.stats.fragmentation = space.class_stat(SpaceClass::Normal).fragmentation;
    }
    root
}

/// Hot spares or cache devices.
pub(super) fn aux(tree: &VdevTree, list: &[Arc<Vdev>], class: AllocClass, elapsed: u64) -> Vec<VdevNode> {
    list.iter().map(|v| VdevNode { class, ..node(tree, v, None, None, elapsed) }).collect()
}

/// A node of the tree; `top` is the top-level that it is or is in.
fn node(
    tree: &VdevTree,
    vdev: &Arc<Vdev>,
    top: Option<&Top>,
    space: Option<&Metaslabs>,
    elapsed: u64,
) -> VdevNode {
    let (state, aux) = vdev.state();
    let counted = vdev.stats();
    let ops = |kind: IoKind| counted.ops.get(kind as usize).copied().unwrap_or(0);
    let bytes = |kind: IoKind| counted.bytes.get(kind as usize).copied().unwrap_or(0);
    let mut stats = VdevStats {
        timestamp: elapsed,
        state: vdev_state(state),
        aux: vdev_aux(aux),
        read_ops: ops(IoKind::Read),
        write_ops: ops(IoKind::Write),
        read_bytes: bytes(IoKind::Read),
        write_bytes: bytes(IoKind::Write),
        read_errors: counted.read_errors,
        write_errors: counted.write_errors,
        checksum_errors: counted.checksum_errors,
        self_healed: counted.self_healed,
        slow_ios: counted.slow,
        ..VdevStats::default()
    };
    if let Some(leaf) = &vdev.leaf {
        stats.pspace = leaf.psize();
        if top.is_some() {
            stats.initialize = progress(leaf, UpkeepKind::Initialize);
            stats.trim = progress(leaf, UpkeepKind::Trim);
        }
        stats.scan_processed = leaf.scan_processed.load(Ordering::Relaxed);
        stats.rebuild_processed = leaf.rebuild_processed.load(Ordering::Relaxed);
        stats.resilver_deferred = !vdev.is_log && leaf.is_deferred();
    }
    let kept = space.and_then(|s| s.vdev_checkpoint_space(u32::try_from(vdev.id).ok()?).ok());
    if top.is_some_and(|t| t.vdev.guid == vdev.guid)
        && let Some(stat) = space.and_then(|s| s.vdev_stat(u32::try_from(vdev.id).ok()?).ok())
    {
        stats.alloc = stat.alloc;
        stats.space = stat.space;
        stats.dspace = stat.dspace;
        stats.fragmentation = stat.fragmentation;
        stats.checkpoint_space = kept.unwrap_or(0);
    }
    if let Some(top) = top {
        stats.scan_removing = vdev.config_u64("removing") == Some(1);
        stats.esize = top.could_grow(vdev);
    }
    let (draid_ndata, draid_nspares) = vdev.draid().map_or((0, 0), |d| (d.shape.ndata, d.shape.nspares));
    VdevNode {
        kind: match vdev.kind {
            CoreKind::Root => VdevKind::Root,
            CoreKind::Mirror => VdevKind::Mirror,
            CoreKind::Replacing => VdevKind::Replacing,
            CoreKind::Spare => VdevKind::Spare,
            CoreKind::Raidz { .. } => VdevKind::Raidz,
            CoreKind::Draid { .. } => VdevKind::Draid,
            CoreKind::Dspare => VdevKind::Dspare,
            CoreKind::Disk => VdevKind::Disk,
            CoreKind::File => VdevKind::File,
            CoreKind::Missing => VdevKind::Missing,
            CoreKind::Hole => VdevKind::Hole,
            CoreKind::Indirect => VdevKind::Indirect,
        },
        id: vdev.id,
        guid: vdev.guid,
        nparity: vdev.kind.nparity().unwrap_or(0) as u64,
        draid_ndata,
        draid_nspares,
        class: match vdev.bias().as_deref() {
            _ if vdev.is_log => AllocClass::Log,
            Some("special") => AllocClass::Special,
            Some("dedup") => AllocClass::Dedup,
            _ => AllocClass::Normal,
        },
        path: vdev.leaf.as_ref().map(|l| l.path()),
        whole_disk: vdev.config_u64("whole_disk") == Some(1),
        phys_path: vdev.config_str("phys_path"),
        devid: vdev.config_str("devid"),
        ashift: u64::from(vdev.ashift()),
        asize: vdev.asize(),
        not_present: vdev.config_u64("not_present").is_some(),
        removing: vdev.config_u64("removing") == Some(1),
        stats,
        children: {
            let top_of = |c: &Vdev| top.or_else(|| tree.tops.iter().find(|t| t.vdev.id == c.id));
            vdev.children.iter().map(|c| node(tree, c, top_of(c), space, elapsed)).collect()
        },
        ..VdevNode::default()
    }
}

pub(super) fn vdev_state(state: enums::VdevState) -> VdevState {
    match state {
        enums::VdevState::Unknown => VdevState::Unknown,
        enums::VdevState::Closed => VdevState::Closed,
        enums::VdevState::Offline => VdevState::Offline,
        enums::VdevState::Removed => VdevState::Removed,
        enums::VdevState::CantOpen => VdevState::CantOpen,
        enums::VdevState::Faulted => VdevState::Faulted,
        enums::VdevState::Degraded => VdevState::Degraded,
        enums::VdevState::Healthy => VdevState::Healthy,
    }
}

fn vdev_aux(aux: enums::VdevAux) -> VdevAux {
    match aux {
        enums::VdevAux::None => VdevAux::None,
        enums::VdevAux::OpenFailed => VdevAux::OpenFailed,
        enums::VdevAux::CorruptData => VdevAux::CorruptData,
        enums::VdevAux::NoReplicas => VdevAux::NoReplicas,
        enums::VdevAux::BadGuidSum => VdevAux::BadGuidSum,
        enums::VdevAux::TooSmall => VdevAux::TooSmall,
        enums::VdevAux::BadLabel => VdevAux::BadLabel,
        enums::VdevAux::VersionNewer => VdevAux::VersionNewer,
        enums::VdevAux::VersionOlder => VdevAux::VersionOlder,
        enums::VdevAux::UnsupFeat => VdevAux::UnsupFeat,
        enums::VdevAux::Spared => VdevAux::Spared,
        enums::VdevAux::ErrExceeded => VdevAux::ErrExceeded,
        enums::VdevAux::IoFailure => VdevAux::IoFailure,
        enums::VdevAux::BadLog => VdevAux::BadLog,
        enums::VdevAux::External => VdevAux::External,
        enums::VdevAux::SplitPool => VdevAux::SplitPool,
        enums::VdevAux::BadAshift => VdevAux::BadAshift,
        enums::VdevAux::ExternalPersist => VdevAux::ExternalPersist,
        enums::VdevAux::Active => VdevAux::Active,
        enums::VdevAux::ChildrenOffline => VdevAux::ChildrenOffline,
        enums::VdevAux::AshiftTooBig => VdevAux::AshiftTooBig,
    }
}
