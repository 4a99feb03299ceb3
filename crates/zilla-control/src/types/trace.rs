//! Recording what a pool is asked for. The trace itself goes into a descriptor that the client has
//! handed over ([`crate::handover`]), under the key the request names.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// `zilla trace record`, `zilla advise`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct TraceRecord {
    /// Key of the descriptor.
    pub stream: String,
    pub name: String,
    /// None: until the client is gone.
    pub seconds: Option<u64>,
}

/// What was recorded, and what there was no room for.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct TraceReply {
    pub records: u64,
    pub lost: u64,
    pub micros: u64,
}
