//! Requests that change which devices a pool is made of, or the state of one. Devices are named by
//! guid: the command has looked them up.

use super::spec::VdevSpec;
use super::vdev::VdevState;
use crate::ApiError;
use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `zpool add [-f]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolAdd {
    pub name: String,
    pub vdevs: VdevSpec,
    pub ashift: Option<u64>,
    pub force: bool,
    /// `-f`, `--allow-ashift-mismatch`: the sectors of the new vdevs may be other than the pool's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_ashift: bool,
}

/// `zpool create -n`, `zpool add -n`: whether devices can become a pool's, refused as the request
/// would be that makes them so. (That one has no such field: a daemon that did not know it would do
/// what is only to be tried.)
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevsCheck {
    /// The pool that they are for.
    pub name: String,
    /// It is to be created.
    pub new: bool,
    pub vdevs: VdevSpec,
    pub ashift: Option<u64>,
    pub force: bool,
    /// As of [`PoolAdd`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub any_ashift: bool,
}

/// `zpool attach [-fs] [-o ashift]`, `zpool replace [-fs] [-o ashift]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevAttach {
    pub name: String,
    pub guid: u64,
    /// Absolute path of the new device.
    pub path: String,
    pub replace: bool,
    pub force: bool,
    /// `-o ashift`
    pub ashift: Option<u64>,
    /// `-s`: a sequential rebuild gives it what it lacks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sequential: bool,
}

/// `zpool detach`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevDetach {
    pub name: String,
    pub guid: u64,
}

/// `zpool split [-l] [-o property=value]... [-R root]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolSplit {
    pub name: String,
    pub new_name: String,
    /// The side of each mirror that goes.
    pub sides: Vec<u64>,
    pub properties: BTreeMap<String, String>,
    pub altroot: Option<String>,
    /// The new pool stays open, else it is exported.
    pub import: bool,
    pub no_mount: bool,
    pub mount_options: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct SplitReply {
    pub mount_errors: Vec<ApiError>,
}

/// `zpool remove`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevRemove {
    pub name: String,
    pub guid: u64,
    /// Only says what it would take.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Cancels the removal under way, whatever device it is of.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevRemoveReply {
    /// Of a dry run: bytes of memory that the removed device's mapping would take.
    pub memory: u64,
}

/// `zpool offline [-f] [-t]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevOffline {
    pub name: String,
    pub guid: u64,
    pub temporary: bool,
    pub fault: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Upkeep {
    #[default]
    Initialize,
    Trim,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum UpkeepCommand {
    /// Begins, or goes on where it was suspended.
    #[default]
    Start,
    Cancel,
    Suspend,
    /// As if it had never been initialized.
    Uninitialize,
}

/// `zpool initialize [-c | -s | -u]`, `zpool trim [-d] [-r rate] [-c | -s]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevUpkeep {
    pub name: String,
    pub kind: Upkeep,
    pub command: UpkeepCommand,
    pub guids: Vec<u64>,
    /// Bytes a second; 0: as fast as it goes.
    pub rate: Option<u64>,
    pub secure: bool,
}

/// The devices of which it was refused, and why. It is done of the others.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevUpkeepReply {
    pub refused: Vec<(u64, crate::ApiError)>,
}

/// `zpool labelclear [-f]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct LabelClear {
    /// Absolute path of the device.
    pub path: String,
    pub force: bool,
}

/// `zpool online [-e]`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevOnline {
    pub name: String,
    pub guid: u64,
    pub expand: bool,
}

/// The state the device is in then.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct VdevOnlineReply {
    pub state: VdevState,
}

/// `zpool clear`; without a vdev the whole pool.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolClear {
    pub name: String,
    pub guid: Option<u64>,
}

/// `zpool resilver`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolResilver {
    pub name: String,
}

/// `zpool reopen`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolReopen {
    pub name: String,
}

/// `zpool freeze`: from now on no txg is written down, as if the machine were about to crash. For
/// tests of the intent log.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct PoolFreeze {
    pub name: String,
}
