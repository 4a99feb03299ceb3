//! What is delegated: `zfs allow` and `zfs unallow`.
//!
//! Whom something is given to is said in the form in which it lies on disk (`ul$1000`: user 1000,
//! on the dataset itself): names of users are the client's business, for only it knows whose words
//! they are.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is given to one: to a user or a group, to everyone, to who creates a dataset, or to a set.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Grant {
    pub whom: String,
    /// Where it is taken away: none means all.
    pub permissions: Vec<String>,
}

/// `zfs allow <dataset>`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct GrantQuery {
    pub name: String,
}

/// What was given on one dataset.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct GrantList {
    pub name: String,
    pub grants: Vec<Grant>,
}

/// `zfs allow`, `zfs unallow`: all of it or nothing.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct GrantChange {
    pub name: String,
    /// It is taken away.
    pub take: bool,
    /// And on all datasets below; only where it is taken away.
    pub recursive: bool,
    pub grants: Vec<Grant>,
}
