//! What changed between two states of a file system.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// `zfs diff`: as much of it as one reply holds.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetDiff {
    /// A snapshot.
    pub from: String,
    /// A later snapshot, or the file system as it is now.
    pub to: String,
    /// Where the reply before said to go on; 0: at the beginning.
    pub at: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetDiffReply {
    /// Where the file system is mounted.
    pub mountpoint: String,
    pub entries: Vec<DiffEntry>,
    /// There is more.
    pub next: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum DiffChange {
    #[default]
    Added,
    Removed,
    Modified,
    /// The new path: bytes, as names need not be text.
    Renamed(Vec<u8>),
    /// So many names more or fewer.
    Links(i64),
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DiffEntry {
    pub change: DiffChange,
    /// Below the mountpoint, beginning with `/`.
    pub path: Vec<u8>,
    /// The file's type and permissions.
    pub mode: u32,
    /// Seconds and nanoseconds.
    pub ctime: (i64, u32),
}

/// `zfs wait`. The reply, after a while at most: whether nothing is left to wait for.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetWait {
    pub name: String,
}
