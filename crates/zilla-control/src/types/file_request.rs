//! Requests about single files of mounted file systems.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file as the kernel names it.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct FileId {
    /// For messages.
    pub path: String,
    pub device: u64,
    pub inode: u64,
}

/// `zilla clone-file`: an empty file comes to share all blocks of another. Answered with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct FileClone {
    pub from: FileId,
    pub to: FileId,
}
