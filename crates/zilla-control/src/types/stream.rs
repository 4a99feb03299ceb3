//! Requests that send and receive streams. The stream itself goes through a descriptor that the
//! client has handed over ([`crate::handover`]), under the key the request names.

use super::KeyMaterial;
use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `zfs send`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct StreamSend {
    /// Key of the descriptor; none for a dry run.
    pub stream: String,
    /// A snapshot, or with `saved` a file system or volume. Unused with `token` alone.
    pub snapshot: String,
    /// `-i` or `-I`: a snapshot or a bookmark, a whole name.
    pub from: Option<String>,
    /// `-I`
    pub intermediates: bool,
    /// `-R`
    pub replicate: bool,
    /// `-s`
    pub skip_missing: bool,
    /// `-p`
    pub properties: bool,
    /// `-b`
    pub backup: bool,
    /// `-h`
    pub holds: bool,
    /// `-L`
    pub large_blocks: bool,
    /// `-e`
    pub embed: bool,
    /// `-c`
    pub compressed: bool,
    /// `-w`
    pub raw: bool,
    /// `-X`
    pub exclude: Vec<String>,
    /// `-t`
    pub token: Option<String>,
    /// `--redact`: a redaction bookmark of the dataset.
    pub redact: Option<String>,
    /// `-S`: what an interrupted receive has kept.
    pub saved: bool,
    /// `-n`: say what would be sent.
    pub dry_run: bool,
    /// `-v`, once or more
    pub verbose: u8,
    /// `-P`
    pub parsable: bool,
    /// `-V`: the command's name in lists of processes says how far it is.
    pub title: bool,
}

/// `zfs receive`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct StreamReceive {
    pub stream: String,
    /// A file system, volume or snapshot.
    pub target: String,
    /// `-d`: all but the pool of the sent name is appended to the target.
    pub keep_path: bool,
    /// `-e`: its last part is.
    pub keep_last: bool,
    /// `-F`
    pub force: bool,
    /// `-s`
    pub resumable: bool,
    /// `-c`: damaged blocks of a snapshot that is there are mended.
    pub heal: bool,
    /// `-u`
    pub no_mount: bool,
    /// `-M`
    pub force_unmount: bool,
    /// `-h`
    pub skip_holds: bool,
    /// `-n`
    pub dry_run: bool,
    /// `-v`
    pub verbose: bool,
    /// `-o`
    pub set: BTreeMap<String, String>,
    /// `-x`
    pub exclude: Vec<String>,
    /// `-o origin=`
    pub origin: Option<String>,
    /// The key of `-o keyformat=`, which the client has read from where `-o keylocation=` says.
    pub key: Option<KeyMaterial>,
}

/// `zfs receive -A`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ReceiveAbort {
    pub name: String,
}
