//! Channel programs: what is asked for, and what they return.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};

/// `zfs program`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ProgramRun {
    pub pool: String,
    pub script: String,
    pub argv: Vec<String>,
    /// `-n`: it may change nothing.
    pub readonly: bool,
    /// `-t`
    pub instructions: u64,
    /// `-m`, bytes
    pub memory: u64,
}

/// A value of a program's, as a list of names and values has it.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramValue {
    Nil,
    Bool(bool),
    Int(i64),
    Str(String),
    /// In the order of the program's table.
    Table(Vec<(String, ProgramValue)>),
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramReply {
    /// None: it returned nothing.
    Done(Option<ProgramValue>),
    /// With what it says, trace included, and the instructions that it took where they were too
    /// many.
    Failed { error: String, instructions: Option<u64> },
}
