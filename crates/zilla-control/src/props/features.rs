//! The feature flags OpenZFS knows, in its own order: names and guids.
//!
//! Which of them this build implements is the engine's business; this list is for names and
//! messages.

/// One feature flag.
#[derive(Debug, Clone, Copy)]
pub struct FeatureDesc {
    pub name: &'static str,
    pub guid: &'static str,
    /// A pool with it active may be opened read-only without it.
    pub readonly_compatible: bool,
}

const fn feature(name: &'static str, guid: &'static str, readonly_compatible: bool) -> FeatureDesc {
    FeatureDesc { name, guid, readonly_compatible }
}

/// In the order of OpenZFS's table, which is the order `get all` prints in.
pub static FEATURES: &[FeatureDesc] = &[
    feature("async_destroy", "com.delphix:async_destroy", true),
    feature("empty_bpobj", "com.delphix:empty_bpobj", true),
    feature("lz4_compress", "org.illumos:lz4_compress", false),
    feature("multi_vdev_crash_dump", "com.joyent:multi_vdev_crash_dump", false),
    feature("spacemap_histogram", "com.delphix:spacemap_histogram", true),
    feature("enabled_txg", "com.delphix:enabled_txg", true),
    feature("hole_birth", "com.delphix:hole_birth", false),
    feature("extensible_dataset", "com.delphix:extensible_dataset", false),
    feature("embedded_data", "com.delphix:embedded_data", false),
    feature("bookmarks", "com.delphix:bookmarks", true),
    feature("filesystem_limits", "com.joyent:filesystem_limits", true),
    feature("large_blocks", "org.open-zfs:large_blocks", false),
    feature("large_dnode", "org.zfsonlinux:large_dnode", false),
    feature("sha512", "org.illumos:sha512", false),
    feature("skein", "org.illumos:skein", false),
    feature("edonr", "org.illumos:edonr", false),
    feature("userobj_accounting", "org.zfsonlinux:userobj_accounting", true),
    feature("encryption", "com.datto:encryption", false),
    feature("project_quota", "org.zfsonlinux:project_quota", true),
    feature("device_removal", "com.delphix:device_removal", false),
    feature("obsolete_counts", "com.delphix:obsolete_counts", true),
    feature("zpool_checkpoint", "com.delphix:zpool_checkpoint", true),
    feature("spacemap_v2", "com.delphix:spacemap_v2", true),
    feature("allocation_classes", "org.zfsonlinux:allocation_classes", true),
    feature("resilver_defer", "com.datto:resilver_defer", true),
    feature("bookmark_v2", "com.datto:bookmark_v2", false),
    feature("redaction_bookmarks", "com.delphix:redaction_bookmarks", false),
    feature("redacted_datasets", "com.delphix:redacted_datasets", false),
    feature("bookmark_written", "com.delphix:bookmark_written", false),
    feature("log_spacemap", "com.delphix:log_spacemap", true),
    feature("livelist", "com.delphix:livelist", true),
    feature("device_rebuild", "org.openzfs:device_rebuild", true),
    feature("zstd_compress", "org.freebsd:zstd_compress", false),
    feature("draid", "org.openzfs:draid", false),
    feature("zilsaxattr", "org.openzfs:zilsaxattr", true),
    feature("head_errlog", "com.delphix:head_errlog", false),
    feature("blake3", "org.openzfs:blake3", false),
    feature("block_cloning", "com.fudosecurity:block_cloning", true),
    feature("vdev_zaps_v2", "com.klarasystems:vdev_zaps_v2", false),
    feature("redaction_list_spill", "com.delphix:redaction_list_spill", false),
    feature("raidz_expansion", "org.openzfs:raidz_expansion", false),
    feature("fast_dedup", "com.klarasystems:fast_dedup", true),
    feature("longname", "org.zfsonlinux:longname", false),
    feature("large_microzap", "com.klarasystems:large_microzap", true),
];

pub fn feature_by_name(name: &str) -> Option<&'static FeatureDesc> {
    FEATURES.iter().find(|f| f.name == name)
}

pub fn feature_by_guid(guid: &str) -> Option<&'static FeatureDesc> {
    FEATURES.iter().find(|f| f.guid == guid)
}
