//! What stands in the ZAP of a leaf: how far it is initialized and trimmed.
//!
//! All values are single numbers; times are seconds since the epoch, and offsets the device's,
//! label included. A name that is missing counts as zero.

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
