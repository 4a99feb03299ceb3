//! Events as the daemon tells them.

use serde::{Deserialize, Serialize};

/// `zpool events`: those after the one of number `after`. Waits so long for one if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventQuery {
    pub after: u64,
    pub wait_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventReply {
    pub events: Vec<EventInfo>,
    /// So many came in between and are kept no more.
    pub dropped: u64,
}

/// `zpool events -c`; answered with how many were forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventClear {}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventInfo {
    pub eid: u64,
    pub class: String,
    /// Since 1970.
    pub seconds: u64,
    pub nanoseconds: u32,
    /// In the order in which they are printed.
    pub fields: Vec<(String, EventValue)>,
}

/// A value of an event; signed numbers by their bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventValue {
    Number(u64),
    Numbers(Vec<u64>),
    Text(String),
    Texts(Vec<String>),
}
