//! The tree of virtual devices as the daemon reports it: names, states, counters.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a vdev is. Mirrors the `type` strings of the pool's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum VdevKind {
    Root,
    Mirror,
    Raidz,
    Draid,
    Replacing,
    Spare,
    /// A distributed spare of a dRAID.
    Dspare,
    #[default]
    Disk,
    File,
    Missing,
    Hole,
    Indirect,
}

impl VdevKind {
    /// The word OpenZFS's configuration uses for this kind.
    pub fn type_name(self) -> &'static str {
        match self {
            VdevKind::Root => "root",
            VdevKind::Mirror => "mirror",
            VdevKind::Raidz => "raidz",
            VdevKind::Draid => "draid",
            VdevKind::Replacing => "replacing",
            VdevKind::Spare => "spare",
            VdevKind::Dspare => "dspare",
            VdevKind::Disk => "disk",
            VdevKind::File => "file",
            VdevKind::Missing => "missing",
            VdevKind::Hole => "hole",
            VdevKind::Indirect => "indirect",
        }
    }
}

/// The state of one vdev, worst last healthy first reversed: the order is OpenZFS's, so `<` means
/// "worse".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum VdevState {
    Unknown,
    Closed,
    Offline,
    Removed,
    CantOpen,
    Faulted,
    Degraded,
    #[default]
    Healthy,
}

/// Why a vdev is in its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum VdevAux {
    #[default]
    None,
    OpenFailed,
    CorruptData,
    NoReplicas,
    BadGuidSum,
    TooSmall,
    BadLabel,
    VersionNewer,
    VersionOlder,
    UnsupFeat,
    Spared,
    ErrExceeded,
    IoFailure,
    BadLog,
    External,
    SplitPool,
    BadAshift,
    ExternalPersist,
    Active,
    ChildrenOffline,
    AshiftTooBig,
}

/// Which allocations a top-level vdev takes, or which list a leaf outside the tree belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum AllocClass {
    #[default]
    Normal,
    Log,
    Special,
    Dedup,
    Cache,
    Spare,
}

/// State of an initialize or trim of one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ActivityState {
    #[default]
    None,
    Active,
    Canceled,
    Suspended,
    Complete,
}

/// Progress of an initialize or trim of one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct LeafProgress {
    pub state: ActivityState,
    pub done: u64,
    pub estimate: u64,
    /// Seconds since the epoch of the last change of state.
    pub action_time: u64,
    pub errors: u64,
    /// The device has no such operation (trim only).
    pub unsupported: bool,
}

/// Counters since the vdev was loaded, named after `vdev_stat_t`.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevStats {
    /// Nanoseconds since the vdev was loaded; the divisor of rates.
    pub timestamp: u64,
    pub state: VdevState,
    pub aux: VdevAux,
    /// Bytes allocated, and capacity, in the vdev's own (parity included) bytes.
    pub alloc: u64,
    pub space: u64,
    /// Capacity as seen by datasets (parity deflated).
    pub dspace: u64,
    /// Physical size of the device.
    pub pspace: u64,
    /// Smallest device that could replace this one.
    pub rsize: u64,
    /// Bytes the device could grow by.
    pub esize: u64,
    pub read_ops: u64,
    pub write_ops: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub checksum_errors: u64,
    pub slow_ios: u64,
    pub dio_verify_errors: u64,
    pub self_healed: u64,
    pub scan_removing: bool,
    pub scan_processed: u64,
    pub rebuild_processed: u64,
    pub resilver_deferred: bool,
    /// Percent, or None where the metaslabs have no histogram yet.
    pub fragmentation: Option<u64>,
    pub checkpoint_space: u64,
    pub configured_ashift: u64,
    pub logical_ashift: u64,
    pub physical_ashift: u64,
    pub noalloc: bool,
    pub initialize: LeafProgress,
    pub trim: LeafProgress,
}

/// Buckets of a latency histogram: bucket `i` counts requests of `2^i..2^(i+1)` nanoseconds.
pub const LATENCY_BUCKETS: usize = 37;
/// Buckets of a request size histogram: bucket `i` counts requests of `2^i..2^(i+1)` bytes.
pub const REQUEST_BUCKETS: usize = 25;

/// One I/O class of one vdev at this moment, and its histograms since load.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct QueueDepth {
    pub pending: u64,
    pub active: u64,
    /// Nanoseconds spent in the queue; `LATENCY_BUCKETS` entries, or none.
    pub wait: Vec<u64>,
    /// Sizes of requests issued alone and as part of an aggregate; `REQUEST_BUCKETS` entries, or
    /// none.
    pub individual: Vec<u64>,
    pub aggregate: Vec<u64>,
}

/// The extended statistics behind `zpool iostat -l | -q | -w | -r`.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevStatsEx {
    pub sync_read: QueueDepth,
    pub sync_write: QueueDepth,
    pub async_read: QueueDepth,
    pub async_write: QueueDepth,
    pub scrub: QueueDepth,
    pub trim: QueueDepth,
    pub rebuild: QueueDepth,
    /// Queueing and device time together.
    pub total_wait_read: Vec<u64>,
    pub total_wait_write: Vec<u64>,
    pub disk_wait_read: Vec<u64>,
    pub disk_wait_write: Vec<u64>,
}

/// A sequential rebuild of one top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct RebuildStat {
    pub state: ActivityState,
    pub start_time: u64,
    pub end_time: u64,
    pub scan_time_ms: u64,
    pub bytes_scanned: u64,
    pub bytes_issued: u64,
    pub bytes_rebuilt: u64,
    pub bytes_est: u64,
    pub errors: u64,
    pub pass_time_ms: u64,
    pub pass_bytes_scanned: u64,
    pub pass_bytes_issued: u64,
    /// What of it needed nothing.
    pub pass_bytes_skipped: u64,
}

/// One vdev and what hangs below it.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevNode {
    pub kind: VdevKind,
    /// Index among the parent's children; the number in `mirror-0`.
    pub id: u64,
    pub guid: u64,
    /// Parity of a raidz or draid; 0 otherwise.
    pub nparity: u64,
    /// Data disks and spares of a draid group; 0 otherwise.
    pub draid_ndata: u64,
    pub draid_nspares: u64,
    pub class: AllocClass,
    pub path: Option<String>,
    /// The path was found through a partition zilla or OpenZFS made itself; names drop the
    /// partition.
    pub whole_disk: bool,
    pub phys_path: Option<String>,
    pub devid: Option<String>,
    pub ashift: u64,
    pub asize: u64,
    /// The device was missing at import; the name is its guid and the old path is told beside it.
    pub not_present: bool,
    /// Of a hot spare in use: the pool that uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spared_by: Option<String>,
    pub removing: bool,
    pub stats: VdevStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats_ex: Option<VdevStatsEx>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<RebuildStat>,
    /// Object with the list of blocks this removed vdev mapped; only for indirect vdevs.
    pub children: Vec<VdevNode>,
}

impl VdevNode {
    /// True for devices and files, false for everything that only groups others.
    pub fn is_leaf(&self) -> bool {
        self.children.is_empty()
            && matches!(self.kind, VdevKind::Disk | VdevKind::File | VdevKind::Missing | VdevKind::Hole)
    }
}

/// The word for the number of a vdev's state. Source: vdev_state_t in OpenZFS's sys/fs/zfs.h and
/// zpool_state_to_name().
pub fn vdev_state_word(number: u64) -> &'static str {
    match number {
        1 | 2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    }
}
