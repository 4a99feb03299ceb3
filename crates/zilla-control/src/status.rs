//! What is wrong with a pool, in one word: the most serious of all that could be said.
//!
//! The order of the checks is the order of seriousness and is OpenZFS's, so that scripts that look
//! at message ids see the same one.

use crate::types::{
    ActivityState, FeatureState, ImportCandidate, MmpState, PoolInfo, PoolLabelState, ScanFunc, ScanState,
    Suspended, VdevAux, VdevKind, VdevNode, VdevState, VdevStats,
};

/// The newest version without feature flags has 28; every pool with them has this.
pub const SPA_VERSION: u64 = 5000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusReason {
    Ok,
    MissingDevR,
    MissingDevNr,
    CorruptLabelR,
    CorruptLabelNr,
    BadGuidSum,
    CorruptPool,
    CorruptData,
    FailingDev,
    VersionNewer,
    HostidMismatch,
    HostidActive,
    HostidRequired,
    IoFailureWait,
    IoFailureContinue,
    IoFailureMmp,
    BadLog,
    Errata,
    UnsupFeatRead,
    UnsupFeatWrite,
    FaultedDevR,
    FaultedDevNr,
    VersionOlder,
    FeatDisabled,
    Resilvering,
    OfflineDev,
    RemovedDev,
    Rebuilding,
    RebuildScrub,
    NonNativeAshift,
    CompatibilityErr,
    IncompatibleFeat,
}

impl StatusReason {
    /// The message id behind <https://openzfs.github.io/openzfs-docs/msg/>.
    pub fn message_id(self) -> Option<&'static str> {
        use StatusReason::*;
        Some(match self {
            MissingDevR => "ZFS-8000-2Q",
            MissingDevNr => "ZFS-8000-3C",
            CorruptLabelR => "ZFS-8000-4J",
            CorruptLabelNr => "ZFS-8000-5E",
            BadGuidSum => "ZFS-8000-6X",
            CorruptPool => "ZFS-8000-72",
            CorruptData => "ZFS-8000-8A",
            FailingDev => "ZFS-8000-9P",
            VersionNewer => "ZFS-8000-A5",
            HostidMismatch | HostidActive | HostidRequired => "ZFS-8000-EY",
            IoFailureWait => "ZFS-8000-HC",
            IoFailureContinue => "ZFS-8000-JQ",
            IoFailureMmp => "ZFS-8000-MM",
            BadLog => "ZFS-8000-K4",
            Errata => "ZFS-8000-ER",
            _ => return None,
        })
    }

    /// The name OpenZFS's JSON output gives the reason.
    pub fn json_name(self) -> &'static str {
        use StatusReason::*;
        match self {
            Ok => "OK",
            MissingDevR => "MISSING_DEV_R",
            MissingDevNr => "MISSING_DEV_NR",
            CorruptLabelR => "CORRUPT_LABEL_R",
            CorruptLabelNr => "CORRUPT_LABEL_NR",
            BadGuidSum => "BAD_GUID_SUM",
            CorruptPool => "CORRUPT_POOL",
            CorruptData => "CORRUPT_DATA",
            FailingDev => "FAILING_DEV",
            VersionNewer => "VERSION_NEWER",
            HostidMismatch => "HOSTID_MISMATCH",
            HostidActive => "HOSTID_ACTIVE",
            HostidRequired => "HOSTID_REQUIRED",
            IoFailureWait => "IO_FAILURE_WAIT",
            IoFailureContinue => "IO_FAILURE_CONTINUE",
            IoFailureMmp => "IO_FAILURE_MMP",
            BadLog => "BAD_LOG",
            Errata => "ERRATA",
            UnsupFeatRead => "UNSUP_FEAT_READ",
            UnsupFeatWrite => "UNSUP_FEAT_WRITE",
            FaultedDevR => "FAULTED_DEV_R",
            FaultedDevNr => "FAULTED_DEV_NR",
            VersionOlder => "VERSION_OLDER",
            FeatDisabled => "FEAT_DISABLED",
            Resilvering => "RESILVERING",
            OfflineDev => "OFFLINE_DEV",
            RemovedDev => "REMOVED_DEV",
            Rebuilding => "REBUILDING",
            RebuildScrub => "REBUILD_SCRUB",
            NonNativeAshift => "NON_NATIVE_ASHIFT",
            CompatibilityErr => "COMPATIBILITY_ERR",
            IncompatibleFeat => "INCOMPATIBLE_FEAT",
        }
    }
}

/// The features a pool's `compatibility` property asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compatibility {
    /// `off`: all.
    All,
    /// `legacy`: none, and no word about it.
    Legacy,
    /// Files naming these.
    Listed(Vec<String>),
    /// A file is missing or cannot be read.
    Broken,
}

/// An imported pool's reason.
pub fn reason_of(pool: &PoolInfo, compatibility: &Compatibility) -> StatusReason {
    check(pool, None, compatibility)
}

/// The reason of a pool that could be imported.
pub fn import_reason_of(candidate: &ImportCandidate) -> StatusReason {
    check(&candidate.pool, Some(candidate), &Compatibility::All)
}

fn check(pool: &PoolInfo, import: Option<&ImportCandidate>, compat: &Compatibility) -> StatusReason {
    use StatusReason::*;
    let root = &pool.root.stats;
    let cant_open = root.state == VdevState::CantOpen;

    if let Some(reason) = scan_reason(pool) {
        return reason;
    }
    if cant_open && root.aux == VdevAux::Active {
        return match import.map(|i| i.mmp) {
            Some(MmpState::Active) => HostidActive,
            Some(MmpState::NoHostid) => HostidRequired,
            _ => HostidMismatch,
        };
    }
    if pool.hostid != 0 && pool.hostid != pool.system_hostid && pool.label_state == PoolLabelState::Active {
        return HostidMismatch;
    }
    if cant_open {
        match root.aux {
            VdevAux::VersionNewer => return VersionNewer,
            VdevAux::UnsupFeat => {
                let readable = import.is_some_and(|i| i.can_readonly);
                return if readable { UnsupFeatWrite } else { UnsupFeatRead };
            }
            VdevAux::BadGuidSum => return BadGuidSum,
            _ => {}
        }
    }
    match pool.suspended {
        Some(Suspended::Multihost) => return IoFailureMmp,
        Some(Suspended::Continue) => return IoFailureContinue,
        Some(Suspended::Wait) => return IoFailureWait,
        None => {}
    }
    let any = |test: &dyn Fn(&VdevStats) -> bool| find_problem(pool, test, true);
    let faulted = |s: &VdevStats| s.state == VdevState::Faulted;
    let missing = |s: &VdevStats| s.state == VdevState::CantOpen && s.aux == VdevAux::OpenFailed;
    let broken = |s: &VdevStats| s.state == VdevState::CantOpen;
    if cant_open {
        if root.aux == VdevAux::BadLog {
            return BadLog;
        }
        if any(&faulted) {
            return FaultedDevNr;
        }
        if any(&missing) {
            return MissingDevNr;
        }
        if any(&broken) {
            return CorruptLabelNr;
        }
        if root.aux == VdevAux::CorruptData {
            return CorruptPool;
        }
    }
    if import.is_none() && !pool.kept_logs.is_empty() {
        return BadLog;
    }
    if import.is_none() && pool.error_count != 0 {
        return CorruptData;
    }
    if any(&faulted) {
        return FaultedDevR;
    }
    if any(&missing) {
        return MissingDevR;
    }
    if any(&broken) {
        return CorruptLabelR;
    }
    let failing = |s: &VdevStats| {
        s.state == VdevState::Degraded || s.read_errors != 0 || s.write_errors != 0 || s.checksum_errors != 0
    };
    if import.is_none() && any(&failing) {
        return FailingDev;
    }
    if any(&|s| s.state == VdevState::Offline) {
        return OfflineDev;
    }
    if any(&|s| s.state == VdevState::Removed) {
        return RemovedDev;
    }
    let ashift: u64 = pool.properties.get("ashift").and_then(|p| p.value.parse().ok()).unwrap_or(0);
    let foreign = |s: &VdevStats| {
        (ashift == 0 || s.configured_ashift < ashift) && s.configured_ashift < s.physical_ashift
    };
    if import.is_none() && find_problem(pool, &foreign, false) {
        return NonNativeAshift;
    }
    if pool.errata != 0 {
        return Errata;
    }
    if pool.version != SPA_VERSION {
        return if *compat == Compatibility::Legacy { Ok } else { VersionOlder };
    }
    feature_reason(pool, compat)
}

/// Resilver and rebuild come before everything else.
fn scan_reason(pool: &PoolInfo) -> Option<StatusReason> {
    let scan = pool.scan.as_ref();
    if scan.is_some_and(|s| s.func == ScanFunc::Resilver && s.state == ScanState::Scanning) {
        return Some(StatusReason::Resilvering);
    }
    let mut rebuilt = 0;
    for rebuild in pool.root.children.iter().filter_map(|top| top.rebuild.as_ref()) {
        match rebuild.state {
            ActivityState::Active => return Some(StatusReason::Rebuilding),
            ActivityState::Complete => rebuilt = rebuilt.max(rebuild.end_time),
            _ => {}
        }
    }
    // A sequential rebuild does not check checksums: only a scrub after it does.
    let unscrubbed = match scan {
        None => true,
        Some(s) => {
            s.state == ScanState::None
                || (s.state == ScanState::Finished && s.func == ScanFunc::Scrub && rebuilt > s.end_time)
        }
    };
    (rebuilt > 0 && unscrubbed).then_some(StatusReason::RebuildScrub)
}

fn feature_reason(pool: &PoolInfo, compat: &Compatibility) -> StatusReason {
    let wanted = |name: &str| match compat {
        Compatibility::All => true,
        Compatibility::Legacy | Compatibility::Broken => false,
        Compatibility::Listed(names) => names.iter().any(|n| n == name),
    };
    if *compat == Compatibility::Broken {
        return StatusReason::CompatibilityErr;
    }
    for feature in pool.features.iter().filter(|f| f.supported) {
        let on = feature.state != FeatureState::Disabled;
        if wanted(&feature.name) && !on {
            return StatusReason::FeatDisabled;
        }
        if !wanted(&feature.name) && on {
            return StatusReason::IncompatibleFeat;
        }
    }
    StatusReason::Ok
}

/// Whether a leaf, cache devices included, passes `test`. What is under repair by a replacement
/// does not count.
fn find_problem(pool: &PoolInfo, test: &dyn Fn(&VdevStats) -> bool, ignore_replacing: bool) -> bool {
    walk(&pool.root, test, ignore_replacing) || pool.l2cache.iter().any(|v| walk(v, test, ignore_replacing))
}

fn walk(vdev: &VdevNode, test: &dyn Fn(&VdevStats) -> bool, ignore_replacing: bool) -> bool {
    if ignore_replacing && vdev.kind == VdevKind::Replacing {
        return false;
    }
    if vdev.children.is_empty() {
        return test(&vdev.stats);
    }
    vdev.children.iter().any(|c| walk(c, test, ignore_replacing))
}
