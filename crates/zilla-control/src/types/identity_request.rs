//! Requests that change what a pool is to others.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// `zpool reguid [-g guid]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolReguid {
    pub name: String,
    /// None: a new one.
    pub guid: Option<u64>,
}

/// `zpool upgrade`: first the version, then the features.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolUpgrade {
    pub name: String,
    /// None: stays.
    pub version: Option<u64>,
    /// Short names of features to enable.
    pub features: Vec<String>,
}

/// `zpool checkpoint [-d]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolCheckpoint {
    pub name: String,
    /// Give up the one there is.
    pub discard: bool,
}

/// `zpool ddtprune -d DAYS | -p PERCENT`; one of the two.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DedupPrune {
    pub name: String,
    /// Entries that are older, in seconds.
    pub older: Option<u64>,
    /// So many of a hundred, the oldest.
    pub percent: Option<u64>,
}

/// `zpool prefetch -t ddt`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DedupPrefetch {
    pub name: String,
}
