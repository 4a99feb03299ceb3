//! Requests that move datasets about or keep snapshots from being destroyed.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// `zfs rename`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetRename {
    pub name: String,
    /// A whole name, of the same kind.
    pub target: String,
    /// `-r`: the snapshots of this name of all datasets below.
    pub recursive: bool,
    /// `-p`
    pub parents: bool,
    /// `-u`: leave mounted where it is.
    pub no_unmount: bool,
    /// `-f`: unmount though files are in use.
    pub force: bool,
}

/// `zfs promote`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetPromote {
    pub name: String,
}

/// `zfs redact`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct DatasetRedact {
    pub snapshot: String,
    /// The new bookmark's name, without its dataset.
    pub bookmark: String,
    /// What all of these have changed is left out of redacted streams.
    pub snapshots: Vec<String>,
}

/// `zfs bookmark`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetBookmark {
    /// A snapshot or a bookmark, by its whole name.
    pub source: String,
    /// The new bookmark, likewise.
    pub target: String,
}

/// `zfs hold`: all or none.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct SnapshotHold {
    pub snapshot: String,
    pub tag: String,
    /// `-r`: the snapshots of this name of all datasets below, too.
    pub recursive: bool,
}

/// `zfs release`: all or none.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct SnapshotRelease {
    pub snapshot: String,
    pub tag: String,
    /// `-r`
    pub recursive: bool,
}

/// `zfs holds`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct SnapshotHolds {
    pub snapshot: String,
    /// `-r`
    pub recursive: bool,
}

/// One hold of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct HoldInfo {
    pub snapshot: String,
    pub tag: String,
    /// Seconds since the epoch.
    pub time: u64,
}
