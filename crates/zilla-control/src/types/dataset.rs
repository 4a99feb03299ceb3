//! Datasets and their properties as `zfs list`, `get` and `mount` see them.

use crate::error::ApiError;
use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize, Default,
)]
#[serde(rename_all = "snake_case")]
pub enum DatasetKind {
    #[default]
    Filesystem,
    Volume,
    Snapshot,
    Bookmark,
}

impl DatasetKind {
    pub fn as_str(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
            DatasetKind::Bookmark => "bookmark",
        }
    }
}

/// Where a property's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Statistics have no source: printed as `-`.
    #[default]
    None,
    Default,
    Local,
    Temporary,
    /// Inherited from the dataset named.
    Inherited(String),
    Received,
}

/// A property's value and source. `value` is what `-p` prints: numbers in full, enumerations by
/// name, times in seconds, ratios as `1.23`; turning it into something for the eye is the command's
/// business.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct PropValue {
    pub value: String,
    #[serde(default)]
    pub source: Source,
    /// The value a stream brought, kept beside a local one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<String>,
}

impl PropValue {
    pub fn new(value: impl Into<String>, source: Source) -> PropValue {
        PropValue { value: value.into(), source, received: None }
    }
}

/// A filesystem, volume, snapshot or bookmark.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetInfo {
    pub name: String,
    pub kind: DatasetKind,
    pub guid: u64,
    pub createtxg: u64,
    /// Seconds since the epoch.
    pub creation: u64,
    /// Every property asked for that applies to this kind, user properties included.
    pub properties: BTreeMap<String, PropValue>,
}

/// One mounted filesystem.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct MountEntry {
    pub dataset: String,
    pub mountpoint: String,
}

/// What a destroy did, or (dry run) would do.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DestroyReply {
    /// Full names in the order of destruction.
    pub destroyed: Vec<String>,
    /// Snapshots only marked for destruction (`-d`).
    pub deferred: Vec<String>,
    /// Bytes given back.
    pub reclaimed: u64,
    /// Why some stay of a tree that was to go (`-r`, `-R`), each with its name.
    pub errors: Vec<ApiError>,
}
