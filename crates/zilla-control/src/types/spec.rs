//! The devices of a pool to be made, as the command line named them.

use super::vdev::AllocClass;
use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the leaves of one top-level vdev work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopKind {
    /// A single device.
    Single,
    Mirror,
    Raidz {
        parity: u8,
    },
    /// So many data disks in a group, and room for so many spares among all.
    Draid {
        parity: u8,
        data: u8,
        spares: u8,
    },
}

/// One device or file.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct LeafSpec {
    /// Absolute path.
    pub path: String,
}

/// One top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct TopSpec {
    pub kind: TopKind,
    /// Normal, Log, Special or Dedup.
    #[serde(default)]
    pub class: AllocClass,
    pub leaves: Vec<LeafSpec>,
}

/// The whole tree. The order of `tops` is the order of the command line, which is the order of vdev
/// ids.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevSpec {
    pub tops: Vec<TopSpec>,
    pub spares: Vec<LeafSpec>,
    pub l2cache: Vec<LeafSpec>,
}
