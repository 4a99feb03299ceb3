//! What stands in the ZAP of a leaf: how far it is initialized and trimmed. And in that of a
//! top-level: how far it is rebuilt.
//!
//! All values of leaves are single numbers; times are seconds since the epoch, and offsets the
//! device's, label included. A name that is missing counts as zero.

use crate::bytes::{Field, phys};
use crate::dsl::WordsPhys;

pub const INITIALIZE_LAST_OFFSET: &str = "com.delphix:next_offset_to_initialize";
pub const INITIALIZE_STATE: &str = "com.delphix:vdev_initialize_state";
pub const INITIALIZE_ACTION_TIME: &str = "com.delphix:vdev_initialize_action_time";

pub const TRIM_LAST_OFFSET: &str = "org.zfsonlinux:next_offset_to_trim";
pub const TRIM_STATE: &str = "org.zfsonlinux:vdev_trim_state";
pub const TRIM_ACTION_TIME: &str = "org.zfsonlinux:vdev_trim_action_time";
/// Bytes a second; 0: as fast as it goes.
pub const TRIM_RATE: &str = "org.zfsonlinux:vdev_trim_rate";
/// Whether only metaslabs that were ever used are trimmed.
pub const TRIM_PARTIAL: &str = "org.zfsonlinux:vdev_trim_partial";
/// Whether what is trimmed must not be readable afterwards.
pub const TRIM_SECURE: &str = "org.zfsonlinux:vdev_trim_secure";

/// In a top-level's ZAP, as [`VdevRebuildPhys::WORDS`] words.
pub const VDEV_REBUILD: &str = "org.openzfs:vdev_rebuild";

phys! {
    /// A sequential rebuild of a top-level.
    pub struct VdevRebuildPhys("vdev_rebuild_phys") {
        state: u64,
        /// Up to where in the vdev's space all has been rebuilt.
        last_offset: u64,
        min_txg: u64,
        max_txg: u64,
        start_time: u64,
        end_time: u64,
        scan_time_ms: u64,
        bytes_scanned: u64,
        bytes_issued: u64,
        bytes_rebuilt: u64,
        /// How much there was estimated to be.
        bytes_est: u64,
        errors: u64,
    }
}

impl VdevRebuildPhys {
    pub const WORDS: usize = Self::SIZE / 8;
}

impl WordsPhys for VdevRebuildPhys {}
