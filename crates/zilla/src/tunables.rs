//! The engine's numbers that can be changed while it runs, under the names of OpenZFS's module
//! parameters.
//!
//! [`ALL`] has every one. They count for all pools of the process, from the moment they are set.

pub use zilla_core::tunables::{
    ALL, ALLOW_REDACTED_DATASET_MOUNT, COMMIT_TIMEOUT_PCT, DEADMAN_FAILMODE, LUA_MAX_MEMLIMIT,
    MAX_DATASET_NESTING, SPL_HOSTID, TXG_HISTORY, Tunable,
};
