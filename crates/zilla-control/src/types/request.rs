//! One struct per operation. `crate::operations` ties each to its reply.

use super::dataset::DatasetKind;
use super::spec::VdevSpec;
use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who the daemon is; the first thing a client asks.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct Hello {}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct HelloReply {
    pub protocol: u32,
    pub version: String,
    pub pid: u32,
    pub state_dir: String,
    /// Where the page for browsers is served, if it is.
    pub page: Option<std::net::SocketAddr>,
    /// How the server is called in the certificate that it is served with, if it is.
    pub page_name: Option<String>,
}

/// Ends the daemon as SIGTERM would.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct Shutdown {}

/// `zpool create`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolCreate {
    pub name: String,
    pub vdevs: VdevSpec,
    /// `-o`: pool properties and `feature@x=enabled|disabled`, as given.
    pub properties: BTreeMap<String, String>,
    /// `-O`, and `-m` as `mountpoint`.
    pub fs_properties: BTreeMap<String, String>,
    /// `-d`: enable no feature but those named.
    pub disable_features: bool,
    /// The features that `compatibility` asks for; those of them that there are here are enabled.
    pub feature_set: Option<Vec<String>>,
    /// `-R`: also sets `cachefile=none` unless given.
    pub altroot: Option<String>,
    /// `-t`: the name in memory; `name` goes to disk.
    pub temporary_name: Option<String>,
    /// `-f`: use devices that look used, mixed replication.
    pub force: bool,
    /// The key of its root file system, if that is to be encrypted.
    pub key: Option<super::KeyMaterial>,
}

/// A change is made, but a filesystem it concerns could not be mounted (or mounted anew).
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct MountedReply {
    pub mount_error: Option<crate::ApiError>,
}

/// `zpool destroy [-f]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolDestroy {
    pub name: String,
    pub force: bool,
}

/// `zpool export [-f]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolExport {
    pub name: String,
    pub force: bool,
    pub hard_force: bool,
}

/// Pools as they are now, in order of name: `zpool list`, `status`, `iostat`, `get`.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolQuery {
    /// Empty: all. A name that is not imported is left out of the reply; the command says so.
    pub names: Vec<String>,
    /// Fill `errors` (`status -v`).
    pub errors: bool,
    /// Fill `properties`.
    pub properties: bool,
    /// Fill `vdev_properties`.
    pub vdev_properties: bool,
    /// Fill `stats_ex` of every vdev.
    pub extended_stats: bool,
}

/// `zpool set prop=value pool`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolSet {
    pub name: String,
    /// A vdev's name or guid: sets a vdev property.
    pub vdev: Option<String>,
    pub property: String,
    pub value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ScrubCommand {
    #[default]
    Start,
    Pause,
    Stop,
}

/// `zpool scrub [-s | -p] [-e] [-C]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolScrub {
    pub name: String,
    pub command: ScrubCommand,
    /// `-e`: only blocks with known errors.
    pub errors_only: bool,
    /// `-C`: go on from the txg of the last scrub.
    pub from_last_txg: bool,
}

/// `zpool sync`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolSync {
    pub name: String,
    /// Also where nothing was changed.
    pub force: bool,
}

/// `zpool history [-il]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolHistory {
    pub name: String,
    pub internal: bool,
    /// Where to go on: `next` of the reply before, 0 at first.
    pub offset: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolHistoryReply {
    pub records: Vec<super::HistoryRecord>,
    /// None at the end.
    pub next: Option<u64>,
}

/// Writes a command line to a pool's history. Commands post it once they changed a pool, so other
/// operations do not log; only destroy and export, after which there is nothing to log to, take the
/// line from the caller.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolLog {
    pub name: String,
    pub line: String,
}

/// Where pools to import are looked for.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ImportSource {
    /// `-d`: directories and devices, absolute. Empty: the default directories.
    pub dirs: Vec<String>,
    /// `-c`, or None.
    pub cachefile: Option<String>,
    /// `-s`: scan even where a cache would answer.
    pub scan: bool,
}

/// Pools that could be imported, `-D` those destroyed.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ImportSearch {
    pub source: ImportSource,
    pub destroyed: bool,
}

/// `zpool import pool|guid [newname]`. The daemon searches again: what a client saw may be old.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolImport {
    pub source: ImportSource,
    pub guid: u64,
    pub new_name: Option<String>,
    /// `-t`
    pub temporary_name: bool,
    pub destroyed: bool,
    /// `-f`
    pub force: bool,
    /// `-N`
    pub no_mount: bool,
    /// `-m`
    pub missing_log: bool,
    pub altroot: Option<String>,
    pub properties: BTreeMap<String, String>,
    /// Words of `-o` that are mount options.
    pub mount_options: Vec<String>,
    /// `-F`, `-n`, `-X`, `-T`
    pub rewind: bool,
    pub rewind_dry_run: bool,
    pub rewind_extreme: bool,
    pub rewind_txg: Option<u64>,
    /// `--rewind-to-checkpoint`
    pub rewind_to_checkpoint: bool,
}

/// What an import left undone: the pool is imported all the same.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ImportReply {
    pub name: String,
    /// Filesystems that could not be mounted, each with its error.
    pub mount_errors: Vec<crate::ApiError>,
    /// `-F`: how far back it had to go.
    pub rewound: Option<Rewound>,
}

/// An import of an older state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Rewound {
    /// When that state was written, in seconds since the epoch.
    pub timestamp: u64,
    /// What was written after it.
    pub lost_seconds: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    Discard,
    Free,
    Initialize,
    Replace,
    Remove,
    Resilver,
    Scrub,
    Trim,
    RaidzExpand,
}

/// What intent logs did: of a pool, of one dataset, or of all pools.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct LogStatQuery {
    pub name: Option<String>,
    /// Also of each dataset that is open.
    pub datasets: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct LogStat {
    /// Pool or dataset.
    pub name: String,
    pub counts: BTreeMap<String, u64>,
    /// By stage (`commit`, `write`, `flush`): how often it took 1, 2, 4, ... nanoseconds.
    pub latencies: BTreeMap<String, Vec<u64>>,
}

/// What the caches did: of a pool, or of all pools, each of which has its own.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ArcStatQuery {
    pub name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ArcStat {
    pub pool: String,
    /// Under the names of OpenZFS's `arcstats` and `zil`, and of its `zfetchstats` with `zfetch_`
    /// before them. Those of [`ArcStat::OF_MACHINE`] are the same of all pools.
    pub counts: BTreeMap<String, u64>,
}

impl ArcStat {
    /// What is the machine's or the process's and no pool's.
    pub const OF_MACHINE: [&str; 13] = [
        "memory_throttle_count",
        "memory_direct_count",
        "memory_indirect_count",
        "memory_all_bytes",
        "memory_free_bytes",
        "memory_available_bytes",
        "arc_no_grow",
        "arc_need_free",
        "arc_sys_free",
        "abd_chunk_waste_size",
        "free_buffers_size",
        "buffers_size",
        "heap_size",
    ];

    /// What memory is told as, beside what is told of buffers and heap, where all of it lies.
    const TOLD: [&str; 7] = [
        "size",
        "overhead_size",
        "dbuf_size",
        "dnode_size",
        "anon_size",
        "l2_hdr_size",
        "abd_chunk_waste_size",
    ];

    /// Means, of which the largest is told of several pools.
    pub const MEANS: [&str; 2] = ["l2_log_blk_avg_asize", "l2_data_to_meta_ratio"];

    /// Of several pools together.
    pub fn total(all: impl IntoIterator<Item = ArcStat>) -> BTreeMap<String, u64> {
        let mut sum: BTreeMap<String, u64> = BTreeMap::new();
        for (name, n) in all.into_iter().flat_map(|s| s.counts) {
            let one = ArcStat::OF_MACHINE.contains(&name.as_str());
            let mean = ArcStat::MEANS.contains(&name.as_str());
            let total = sum.entry(name).or_insert(0);
            *total = if one {
                n
            } else if mean {
                n.max(*total)
            } else {
                *total + n
            };
        }
        let parts = ArcStat::parts(|name| sum.get(name).copied().unwrap_or(0));
        sum.extend(parts.map(|(name, part)| (name.to_owned(), part)));
        sum
    }

    /// What follows from others: the part of metadata, which have no target of their own, and the
    /// target of what is recent, which data and metadata have together, each of a whole of 2^32;
    /// and what the process has of memory that is told by no other name.
    pub fn parts(of: impl Fn(&str) -> u64) -> [(&'static str, u64); 4] {
        let part = |of: u64, all: u64| ((u128::from(of.min(all)) << 32) / u128::from(all.max(1))) as u64;
        let metadata = of("metadata_size");
        let recent = part(of("p"), of("c"));
        let told: u64 = ArcStat::TOLD.iter().map(|name| of(name)).sum();
        let other = (of("buffers_size") + of("heap_size")).saturating_sub(told);
        let meta = part(metadata, of("data_size") + metadata);
        [("meta", meta), ("pd", recent), ("pm", recent), ("other_size", other)]
    }
}

/// Returns when none of the activities is in progress or the time is over.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolWait {
    pub name: String,
    pub activities: Vec<Activity>,
    /// Initializing and trimming count on these devices only, if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vdevs: Vec<u64>,
    /// At most 30 000; the client asks again.
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolWaitReply {
    /// None of the activities asked for is in progress.
    pub done: bool,
    /// Activities in progress with the bytes they have left.
    pub remaining: BTreeMap<Activity, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct VolumeSpec {
    pub size: u64,
    pub block_size: Option<u64>,
    /// `-s`: no reservation.
    pub sparse: bool,
}

/// `zfs create`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetCreate {
    pub name: String,
    /// None: a filesystem.
    pub volume: Option<VolumeSpec>,
    pub properties: BTreeMap<String, String>,
    /// `-p`
    pub parents: bool,
    /// `-u`
    pub no_mount: bool,
    /// The key of a new encryption root.
    pub key: Option<super::KeyMaterial>,
}

/// `zfs destroy` of a filesystem, volume, snapshot list or bookmark.
///
/// What stands in the way is refused with `HasDependents`: `message` is "filesystem has children"
/// or "... has dependent clones", the first of `details` what to do ("use '-r' to destroy the
/// following datasets:"), the rest the names. Rollback does the same.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetDestroy {
    /// `pool/fs`, `pool/fs@a`, `pool/fs@a%c,e`, `pool/fs#mark`.
    pub target: String,
    /// `-r`
    pub recursive: bool,
    /// `-R`
    pub clones: bool,
    /// `-f`
    pub force: bool,
    /// `-d`
    pub defer: bool,
    /// `-n`
    pub dry_run: bool,
}

/// `zfs list`, `zfs get`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetQuery {
    /// Names (not paths: see `DatasetByPath`). Empty: every pool's root.
    pub roots: Vec<String>,
    /// Levels below each root; None: all. 0: only the roots. A snapshot is one level below its
    /// dataset.
    pub depth: Option<u32>,
    /// Kinds wanted in the reply. A root of another kind is only the place to start from.
    pub kinds: Vec<DatasetKind>,
    /// Snapshots only of pools whose `listsnapshots` property is on; those named as roots always.
    pub pool_lists_snapshots: bool,
    /// Properties to fill; empty: none beyond the fixed fields. `all` fills everything.
    pub properties: Vec<String>,
    /// With what streams brought of them, also where something else counts.
    pub received: bool,
}

/// The filesystem that holds an absolute path.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetByPath {
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetQueryReply {
    /// In order of name, a dataset's snapshots before its children.
    pub datasets: Vec<super::DatasetInfo>,
    /// Roots that could not be opened.
    pub errors: Vec<crate::ApiError>,
}

/// `zfs set prop=value... dataset`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetSet {
    pub name: String,
    pub properties: BTreeMap<String, String>,
    /// `-u`: do not mount or unmount.
    pub no_mount: bool,
}

/// `zfs inherit [-S] prop dataset`; recursion is the command's.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetInherit {
    pub name: String,
    pub property: String,
    /// `-S`
    pub received: bool,
}

/// `zfs mount fs` or `-a`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetMount {
    /// None: all that should be.
    pub name: Option<String>,
    /// Where, whatever its property says: `mount -t zfs`.
    pub at: Option<String>,
    /// `-R`: and all below
    pub recursive: bool,
    pub options: Vec<String>,
    /// `-O`
    pub overlay: bool,
    /// `-f`
    pub force: bool,
    /// Where no name is given: only of this pool.
    pub pool: Option<String>,
}

/// `zfs unmount fs | mountpoint | -a`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetUnmount {
    /// Name or absolute path; None: all.
    pub target: Option<String>,
    pub force: bool,
    /// `-u`
    pub unload_keys: bool,
}

/// What a file system is shared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShareProtocol {
    Nfs,
    Smb,
}

impl ShareProtocol {
    pub const ALL: [ShareProtocol; 2] = [ShareProtocol::Nfs, ShareProtocol::Smb];

    /// The property that says whether, and how.
    pub fn property(self) -> &'static str {
        match self {
            ShareProtocol::Nfs => "sharenfs",
            ShareProtocol::Smb => "sharesmb",
        }
    }
}

/// `zfs share fs | -a`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetShare {
    /// None: all that are to be shared and mounted.
    pub name: Option<String>,
    /// None: by all that its properties name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ShareProtocol>,
}

/// `zfs unshare fs | mountpoint | -a`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetUnshare {
    /// Name or absolute path; None: all.
    pub target: Option<String>,
    /// None: all by which it is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ShareProtocol>,
}

/// Every mounted filesystem of every pool.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct MountList {}

/// Errors of an operation on many datasets; it went on after each.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ManyReply {
    pub errors: Vec<crate::ApiError>,
}

/// `zfs snapshot [-r] [-o prop=value] fs@name...`: all or none, in one txg per pool.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetSnapshot {
    pub names: Vec<String>,
    pub recursive: bool,
    pub properties: BTreeMap<String, String>,
}

/// `zfs clone`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetClone {
    pub snapshot: String,
    pub target: String,
    pub properties: BTreeMap<String, String>,
    pub parents: bool,
    pub no_mount: bool,
}

/// `zfs rollback`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetRollback {
    pub snapshot: String,
    /// `-r`: destroy later snapshots and bookmarks
    pub destroy_later: bool,
    /// `-R`: and their clones
    pub destroy_clones: bool,
    pub force: bool,
}

/// What a volume would be: nothing is made.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VolumePlan {
    /// Its pool.
    pub pool: String,
    /// Bytes.
    pub size: u64,
    /// Bytes; None: what fits the pool.
    pub block_size: Option<u64>,
    pub copies: u64,
}

/// What it would be.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VolumePlanReply {
    /// Bytes, whole blocks.
    pub size: u64,
    pub block_size: u64,
    /// What it can take at most, bytes, and the property that reserves that.
    pub reservation: u64,
    pub reserved_by: String,
    /// The block size that fits the pool, and what the least block takes on it, bytes.
    pub fitting: u64,
    pub least: u64,
}

/// `zilla zvol`: shows volumes as files, if that is not done yet. The reply is the directory.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct VolumeFiles {}
