//! Why an operation failed, in OpenZFS's own classes.
//!
//! The commands print `<action>: <description>`, and only they know the action ("cannot create
//! 'tank'"). An error therefore carries a code, whose sentence is fixed, or a better sentence for
//! the case at hand; and where the operation covered several objects, the one that failed.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$m:meta])* $name:ident = $text:literal,)*) => {
        /// The classes of failure OpenZFS's library knows, plus zilla's own at the end.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, JsonSchema, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $($(#[$m])* $name,)*
            /// A code of a later version.
            #[serde(other)]
            Unknown,
        }

        impl ErrorCode {
            /// The sentence for the class where nothing better is known.
            pub fn description(self) -> &'static str {
                match self {
                    $(ErrorCode::$name => $text,)*
                    ErrorCode::Unknown => "unknown error",
                }
            }
        }
    };
}

codes! {
    NoMem = "out of memory",
    BadProp = "invalid property value",
    PropReadonly = "read-only property",
    PropType = "property doesn't apply to datasets of this type",
    PropNonInherit = "property cannot be inherited",
    PropSpace = "invalid quota or reservation",
    BadType = "operation not applicable to datasets of this type",
    Busy = "pool or dataset is busy",
    Exists = "pool or dataset exists",
    NoEnt = "no such pool or dataset",
    DsReadonly = "dataset is read-only",
    InvalidName = "invalid name",
    BadTarget = "invalid target vdev",
    NoDevice = "no such device in pool",
    BadDev = "invalid device",
    NoReplicas = "no valid replicas",
    Resilvering = "currently resilvering",
    Rebuilding = "currently sequentially resilvering",
    BadVersion = "unsupported version or feature",
    PoolUnavail = "pool is unavailable",
    DevOverflow = "too many devices in one vdev",
    BadPath = "must be an absolute path",
    CrossTarget = "operation crosses datasets or pools",
    Zoned = "dataset in use by local zone",
    MountFailed = "mount failed",
    UmountFailed = "unmount failed",
    ShareFailed = "NFS share creation failed",
    Perm = "permission denied",
    BadPerm = "invalid permission",
    NoDelegation = "delegated administration is disabled on pool",
    NoSpc = "out of space",
    Io = "I/O error",
    Intr = "signal received",
    Initializing = "currently initializing",
    NoInitialize = "there is no active initialization",
    Trimming = "currently trimming",
    NoTrim = "there is no active trim",
    TrimNotSup = "trim operations are not supported by this device",
    Cksum = "insufficient replicas",
    IsSpare = "device is reserved as a hot spare",
    InvalConfig = "invalid vdev configuration",
    Recursive = "recursive dataset dependency",
    NoHistory = "no history available",
    PoolProps = "failed to retrieve pool properties",
    PoolNotSup = "operation not supported on this type of pool",
    PoolInvalArg = "invalid argument for this pool operation",
    NameTooLong = "dataset name is too long",
    OpenFailed = "open failed",
    LabelFailed = "write of label failed",
    BadCache = "invalid or missing cache file",
    IsL2cache = "device is in use as a cache",
    VdevNotSup = "vdev specification is not supported",
    NotSup = "operation not supported on this dataset",
    ActiveSpare = "pool has active shared spare device",
    UnplayedLogs = "log device has unplayed intent logs",
    ScrubPaused = "scrub is paused; use 'zpool scrub' to resume scrub",
    ScrubPausedToCancel =
        "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub",
    Scrubbing = "currently scrubbing; use 'zpool scrub -s' to cancel scrub",
    ErrorScrubbing = "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub",
    ErrorScrubPaused = "error scrub is paused; use 'zpool scrub -e' to resume error scrub",
    NoScrub = "there is no active scrub",
    PoolReadonly = "pool is read-only",
    NoPending = "operation is not in progress",
    CheckpointExists = "checkpoint exists",
    DiscardingCheckpoint = "currently discarding checkpoint",
    NoCheckpoint = "checkpoint does not exist",
    DevrmInProgress = "device removal in progress",
    RaidzExpandInProgress = "raidz expansion in progress",
    AshiftMismatch = "adding devices with different physical sector sizes is not allowed",
    VdevTooBig = "device exceeds supported size",
    ActivePool = "pool is imported on a different host",
    CryptoFailed = "encryption failure",
    TooMany = "argument list too long",
    WrongParent = "invalid parent dataset",
    ExportInProgress = "pool export in progress",
    RefTagHold = "tag already exists on this dataset",
    RefTagRelease = "no such tag on this dataset",
    TagTooLong = "tag too long",
    /// Snapshots, bookmarks or clones stand in the way; `details` names them.
    HasDependents = "dataset has dependents",
    /// Devices are in use or unfit; `details` holds one sentence each. `-f` would do it anyway.
    VdevOverridable = "invalid vdev specification",
    /// The same, but `-f` does not help.
    VdevInvalid = "invalid vdev specification",
    NoParent = "parent does not exist",
    NoSource = "incremental source does not exist",
    /// The key that was given does not open the dataset; another may.
    WrongKey = "Incorrect key provided",
    /// A stream that was refused, or could not be made. The message is a whole sentence: no action
    /// is put before it.
    Stream = "the stream was refused",
    /// The request itself is malformed, too large or too deep.
    BadRequest = "malformed request",
    /// zilla does not have this yet.
    Unsupported = "not supported by zilla yet",
    /// Client and daemon speak different protocols.
    ProtocolMismatch = "the running daemon speaks another protocol version",
    /// Something in the daemon is wrong; its log says more.
    Internal = "internal error",
}

/// A failed operation.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, thiserror::Error)]
#[error("{}{}", self.subject.as_ref().map(|s| format!("{s}: ")).unwrap_or_default(), self.description())]
pub struct ApiError {
    pub code: ErrorCode,
    /// A better sentence than the code's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Which pool, dataset, device or property it is about, where that is not the request's only
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Further lines: names of dependents, devices in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}

impl ApiError {
    pub fn new(code: ErrorCode) -> ApiError {
        ApiError { code, message: None, subject: None, details: Vec::new() }
    }

    pub fn with(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError { message: Some(message.into()), ..ApiError::new(code) }
    }

    pub fn subject(mut self, subject: impl Into<String>) -> ApiError {
        self.subject = Some(subject.into());
        self
    }

    pub fn details(mut self, details: Vec<String>) -> ApiError {
        self.details = details;
        self
    }

    /// What to print after the action and a colon.
    pub fn description(&self) -> &str {
        self.message.as_deref().unwrap_or(self.code.description())
    }
}

impl From<ErrorCode> for ApiError {
    fn from(code: ErrorCode) -> ApiError {
        ApiError::new(code)
    }
}
