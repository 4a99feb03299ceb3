//! The vdevs of a pool, or of one that is about to be imported, as others see them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_control::types::*;
use zilla_core::metaslab::{Metaslabs, SpaceClass};
use zilla_core::vdev::{IoKind, Leaf, Top, UpkeepKind, UpkeepState, Vdev, VdevKind as CoreKind, VdevTree};
use zilla_ondisk::enums;

/// Classes that datasets' data goes to.
const DATA_CLASSES: [SpaceClass; 4] =
    [SpaceClass::Normal, SpaceClass::EmbeddedLog, SpaceClass::Special, SpaceClass::Dedup];

/// The tree. Without metaslabs (an import's candidate) there is no space to tell of.
pub(super) fn root(tree: &VdevTree, space: Option<&Metaslabs>, elapsed: u64) -> VdevNode {
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

/// How far a leaf is.
fn progress(leaf: &Leaf, kind: UpkeepKind) -> LeafProgress {
    let stat = leaf.upkeep(kind).stat();
    LeafProgress {
        state: match stat.state {
            UpkeepState::None => ActivityState::None,
            UpkeepState::Active => ActivityState::Active,
            UpkeepState::Canceled => ActivityState::Canceled,
            UpkeepState::Suspended => ActivityState::Suspended,
            UpkeepState::Complete => ActivityState::Complete,
        },
        done: stat.done,
        estimate: stat.estimate,
        action_time: stat.action_time,
        errors: stat.errors,
        unsupported: kind == UpkeepKind::Trim && !leaf.knows_trim(),
    }
}

/// A state in the words of `zilla-control`.
pub fn vdev_state(state: enums::VdevState) -> VdevState {
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
