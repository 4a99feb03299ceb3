//! A pool as `zpool status`, `list`, `iostat`, `history` and `import` see it.

use super::vdev::VdevNode;
use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::dataset::PropValue;

/// Pool health as printed in the HEALTH column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "UPPERCASE")]
pub enum PoolHealth {
    #[default]
    Online,
    Degraded,
    Faulted,
    Offline,
    Removed,
    Unavail,
    Suspended,
}

impl PoolHealth {
    pub fn as_str(self) -> &'static str {
        match self {
            PoolHealth::Online => "ONLINE",
            PoolHealth::Degraded => "DEGRADED",
            PoolHealth::Faulted => "FAULTED",
            PoolHealth::Offline => "OFFLINE",
            PoolHealth::Removed => "REMOVED",
            PoolHealth::Unavail => "UNAVAIL",
            PoolHealth::Suspended => "SUSPENDED",
        }
    }
}

/// The state the labels of a pool carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum PoolLabelState {
    #[default]
    Active,
    Exported,
    Destroyed,
    Spare,
    L2cache,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum FeatureState {
    #[default]
    Disabled,
    Enabled,
    Active,
}

impl FeatureState {
    pub fn as_str(self) -> &'static str {
        match self {
            FeatureState::Disabled => "disabled",
            FeatureState::Enabled => "enabled",
            FeatureState::Active => "active",
        }
    }
}

/// One feature flag of a pool.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Feature {
    /// Short name (`async_destroy`); the guid itself where this build does not know the feature.
    pub name: String,
    pub guid: String,
    pub state: FeatureState,
    /// This build can use the feature.
    pub supported: bool,
    /// A pool with the feature active may be opened read-only without it.
    #[serde(default)]
    pub readonly_compatible: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ScanFunc {
    #[default]
    None,
    Scrub,
    Resilver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ScanState {
    #[default]
    None,
    Scanning,
    Finished,
    Canceled,
}

/// A scrub or resilver, named after `pool_scan_stat_t`. Times are seconds since the epoch.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ScanStat {
    pub func: ScanFunc,
    pub state: ScanState,
    pub start_time: u64,
    pub end_time: u64,
    pub to_examine: u64,
    pub examined: u64,
    pub skipped: u64,
    pub processed: u64,
    pub errors: u64,
    pub pass_exam: u64,
    pub pass_start: u64,
    /// When the scrub was paused; 0 when it is not.
    pub pass_scrub_pause: u64,
    pub pass_scrub_spent_paused: u64,
    pub pass_issued: u64,
    pub issued: u64,
}

/// A scrub of known bad blocks only (`zpool scrub -e`).
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ErrorScrub {
    pub state: ScanState,
    pub start_time: u64,
    pub end_time: u64,
    pub examined: u64,
    pub to_examine: u64,
    pub pause_time: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    #[default]
    None,
    Exists,
    Discarding,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Checkpoint {
    pub state: CheckpointState,
    pub start_time: u64,
    pub space: u64,
}

/// Removal of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Removal {
    pub state: ScanState,
    pub removing_vdev: u64,
    pub start_time: u64,
    pub end_time: u64,
    pub to_copy: u64,
    pub copied: u64,
    pub mapping_memory: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct RaidzExpand {
    pub state: ScanState,
    pub expanding_vdev: u64,
    pub start_time: u64,
    pub end_time: u64,
    pub to_reflow: u64,
    pub reflowed: u64,
    pub waiting_for_resilver: bool,
}

/// Why a pool takes no more I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suspended {
    /// `failmode=wait`
    Wait,
    /// `failmode=continue`
    Continue,
    /// Another host may use the pool.
    Multihost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum MmpState {
    #[default]
    Inactive,
    Active,
    NoHostid,
}

/// One damaged place in the pool.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// Dataset, or None for the pool's own metadata.
    pub dataset: Option<String>,
    pub dataset_id: u64,
    pub object: u64,
    /// Path below the dataset's mountpoint (or the mountpoint with it, where mounted), if it can be
    /// told.
    pub path: Option<String>,
    /// Where the dataset is mounted, if it is.
    pub mountpoint: Option<String>,
}

/// An intent log that holds acknowledged changes which cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct KeptLog {
    pub dataset: String,
    pub why: String,
}

/// An imported pool, or one that could be imported.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolInfo {
    pub name: String,
    pub guid: u64,
    pub txg: u64,
    pub health: PoolHealth,
    pub label_state: PoolLabelState,
    /// 1-28, or 5000 with feature flags.
    pub version: u64,
    pub hostid: u64,
    pub hostname: String,
    /// This machine's own, to compare with.
    pub system_hostid: u64,
    /// When the pool was last written, seconds since the epoch, as its newest uberblock tells.
    pub timestamp: u64,
    pub errata: u64,
    pub suspended: Option<Suspended>,
    /// The root vdev: `children` are the top-level vdevs in order of their ids, log and special
    /// ones among them.
    pub root: VdevNode,
    pub spares: Vec<VdevNode>,
    pub l2cache: Vec<VdevNode>,
    pub scan: Option<ScanStat>,
    pub error_scrub: Option<ErrorScrub>,
    pub checkpoint: Option<Checkpoint>,
    pub removal: Option<Removal>,
    pub raidz_expand: Option<RaidzExpand>,
    pub features: Vec<Feature>,
    /// The deduplication tables of an imported pool.
    pub dedup: DedupTables,
    pub error_count: u64,
    /// Intent logs that could not be replayed.
    pub kept_logs: Vec<KeptLog>,
    /// Filled where the request asks for it.
    pub errors: Vec<ErrorEntry>,
    /// Pool properties by name, values as `zpool get -p` prints them; filled where the request asks
    /// for it.
    pub properties: BTreeMap<String, PropValue>,
    /// Properties of vdevs by guid, filled where asked for; `name`, `parent` and `children` are the
    /// reader's to make.
    pub vdev_properties: BTreeMap<String, BTreeMap<String, PropValue>>,
}

/// What deduplication tables hold.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DedupTables {
    pub entries: u64,
    /// Bytes of the tables.
    pub on_disk: u64,
    pub in_core: u64,
    /// By the power of two of a block's references: blocks, their logical, physical and allocated
    /// sizes, each counted once, then as often as it is referred to.
    pub histogram: BTreeMap<u32, [u64; 8]>,
}

/// A pool found on devices that is not imported.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ImportCandidate {
    pub pool: PoolInfo,
    /// A separate log device is missing; `zpool import -m` would do without.
    pub missing_log: bool,
    /// Features in use that this build lacks: guid and description.
    pub unsupported_features: BTreeMap<String, String>,
    pub can_readonly: bool,
    pub comment: Option<String>,
    pub mmp: MmpState,
    pub mmp_hostname: Option<String>,
    pub mmp_hostid: u64,
    pub compatibility: Option<String>,
}

/// What one record of the pool's history tells.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryWhat {
    /// A command line.
    Command { line: String },
    /// An event the engine logged (`zpool history -i`).
    Internal { txg: u64, name: String, dataset: Option<(String, u64)>, text: String },
    /// A call of the control interface with its arguments already rendered as an indented list.
    Call { name: String, input: Vec<String>, output: Vec<String>, elapsed_ns: u64, errno: Option<i64> },
    /// Older records: an event number with its text.
    Legacy { event: u64, txg: u64, text: String },
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// Seconds since the epoch.
    pub time: u64,
    pub what: HistoryWhat,
    #[serde(default)]
    pub uid: Option<u64>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub host: Option<String>,
    #[serde(default)]
    pub zone: Option<String>,
}
