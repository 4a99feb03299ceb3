//! What users, groups and projects use of a file system, and may use.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize, Default,
)]
#[serde(rename_all = "snake_case")]
pub enum Owners {
    #[default]
    User,
    Group,
    Project,
}

/// `zfs userspace | groupspace | projectspace`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct DatasetAccounts {
    /// A file system or a snapshot of one.
    pub name: String,
    pub owners: Owners,
}

/// One account. What is None the file system does not count.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Account {
    pub id: u64,
    pub used: Option<u64>,
    /// 0: none is set.
    pub quota: Option<u64>,
    pub objects_used: Option<u64>,
    pub objects_quota: Option<u64>,
}
