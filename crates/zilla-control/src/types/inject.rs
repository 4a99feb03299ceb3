//! `zinject`: faults that are put in on purpose.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// How something fails (`-e`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectFailure {
    Io,
    Nxio,
    Checksum,
    Decompress,
    Decrypt,
    Corrupt,
    Dtl,
    Noop,
}

/// Which I/O of a device (`-T`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectIo {
    Read,
    Write,
    Free,
    Claim,
    Flush,
    Trim,
    All,
    Probe,
}

/// A part of a device's labels (`-L`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectLabel {
    Nvlist,
    Uber,
    Pad1,
    Pad2,
}

/// Which of the pool's own objects (`-t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectMos {
    Mos,
    Mosdir,
    Metaslab,
    Config,
    Bpobj,
    Spacemap,
    Errlog,
}

/// Blocks of an object, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InjectBlocks {
    pub objset: u64,
    pub object: u64,
    pub level: u32,
    pub first: u64,
    /// The last; the greatest number: all.
    pub last: u64,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectFault {
    /// `-d`: I/O of a device, between the labels or in a part of them.
    Device { guid: u64, label: Option<InjectLabel>, failure: InjectFailure, io: InjectIo, fail_fast: bool },
    /// `-D`
    Delay { guid: u64, nanoseconds: u64, lanes: u64, io: InjectIo },
    /// `-t data`, `-t dnode`: of a file. Only asked for: what it comes to is
    /// [`InjectFault::Blocks`].
    File {
        dataset: String,
        object: u64,
        /// The block that holds the file's dnode, not its contents.
        dnode: bool,
        level: u32,
        /// Bytes of the file.
        range: Option<(u64, u64)>,
        copies: u32,
        failure: InjectFailure,
    },
    /// `-b`
    Blocks { at: InjectBlocks, copies: u32, failure: InjectFailure },
    /// `-t mos` and the like.
    Mos { kind: InjectMos, failure: InjectFailure },
    /// `-P`
    Pause { import: bool, seconds: u64 },
}

/// Adds a handler.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InjectAdd {
    pub pool: String,
    pub fault: InjectFault,
    /// In so many of 2^32 cases; None: always.
    pub frequency: Option<u32>,
    /// What is in memory is forgotten first, so that it is read again.
    pub flush: bool,
}

/// A handler.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InjectHandler {
    pub id: u64,
    pub pool: String,
    pub fault: InjectFault,
    pub frequency: Option<u32>,
}

/// All handlers.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct InjectList {}

/// Takes handlers away: the one with this number, or all. Answered with the numbers of those that
/// were there.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct InjectClear {
    pub id: Option<u64>,
}

/// `-A`: a device is to count as one that has failed too often.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct InjectState {
    pub pool: String,
    pub guid: u64,
    /// Faulted, else degraded.
    pub fault: bool,
}

/// `-a` alone: all that is in memory of files and pools is forgotten.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
pub struct InjectFlush {}
