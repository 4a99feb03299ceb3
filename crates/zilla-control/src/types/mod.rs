//! What the commands and the daemon say to each other.
//!
//! Requests carry what the user asked for, already parsed but not yet judged: the daemon owns the
//! pools, so it alone decides. Replies carry facts as numbers and enums, never printed text: units,
//! columns, colours and sentences are the command's business, so a web page or a script can use the
//! same replies.
//!
//! Every type is plain data with named fields; unknown fields are ignored and missing ones default
//! where that has a meaning, so that a newer daemon and an older command still understand each
//! other within one protocol version.

mod account;
mod dataset;
mod dataset_request;
mod diff;
mod event;
mod file_request;
mod grant;
mod identity_request;
mod inject;
mod key_request;
mod pool;
mod program;
mod request;
mod spec;
mod stream;
mod trace;
mod vdev;
mod vdev_request;

pub use account::{Account, DatasetAccounts, Owners};
pub use dataset::{DatasetInfo, DatasetKind, DestroyReply, MountEntry, PropValue, Source};
pub use dataset_request::*;
pub use diff::{DatasetDiff, DatasetDiffReply, DatasetWait, DiffChange, DiffEntry};
pub use event::*;
pub use file_request::*;
pub use grant::*;
pub use identity_request::*;
pub use inject::*;
pub use key_request::*;
pub use pool::{
    Checkpoint, CheckpointState, DedupTables, ErrorEntry, ErrorScrub, Feature, FeatureState, HistoryRecord,
    HistoryWhat, ImportCandidate, KeptLog, MmpState, PoolHealth, PoolInfo, PoolLabelState, RaidzExpand,
    Removal, ScanFunc, ScanStat, ScanState, Suspended,
};
pub use program::*;
pub use request::*;
pub use spec::{LeafSpec, TopKind, TopSpec, VdevSpec};
pub use stream::*;
pub use trace::*;
pub use vdev::{
    ActivityState, AllocClass, LATENCY_BUCKETS, LeafProgress, QueueDepth, REQUEST_BUCKETS, RebuildStat,
    VdevAux, VdevKind, VdevNode, VdevState, VdevStats, VdevStatsEx, vdev_state_word,
};
pub use vdev_request::*;
