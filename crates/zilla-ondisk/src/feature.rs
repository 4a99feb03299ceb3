//! Feature flags: what a pool may have that the first version of the format had not.
//!
//! The MOS holds three ZAPs by guid: `features_for_read` and `features_for_write` give a reference
//! count (0: enabled, more: active), `feature_descriptions` a text. A label lists the active ones
//! whose flag is `MOS`, since they must be known before the MOS can be read. This table is OpenZFS
//! 2.3's, in its order, which is also the order in which `zpool get all` and `zpool upgrade -v`
//! list them.

/// One feature flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feature {
    /// On disk: `organization:name`.
    pub guid: &'static str,
    /// In `zpool`: the part after `feature@`.
    pub name: &'static str,
    pub description: &'static str,
    flags: u8,
    /// Short names of those that must be enabled with it.
    pub depends: &'static [&'static str],
}

const READONLY_COMPAT: u8 = 1;
const MOS: u8 = 2;
const ACTIVATE_ON_ENABLE: u8 = 4;
const PER_DATASET: u8 = 8;

impl Feature {
    /// Software that lacks it may read the pool, not write it: it is counted in
    /// `features_for_write`.
    pub const fn readonly_compat(&self) -> bool {
        self.flags & READONLY_COMPAT != 0
    }

    /// Needed to read the MOS: listed in the labels while active.
    pub const fn mos(&self) -> bool {
        self.flags & MOS != 0
    }

    pub const fn activate_on_enable(&self) -> bool {
        self.flags & ACTIVATE_ON_ENABLE != 0
    }

    /// Its reference count is the number of datasets that have it in their own ZAP.
    pub const fn per_dataset(&self) -> bool {
        self.flags & PER_DATASET != 0
    }
}

const fn feature(
    guid: &'static str,
    name: &'static str,
    description: &'static str,
    flags: u8,
    depends: &'static [&'static str],
) -> Feature {
    Feature { guid, name, description, flags, depends }
}

/// Every feature of OpenZFS 2.3.
#[rustfmt::skip]
pub const FEATURES: &[Feature] = &[
    feature("com.delphix:async_destroy", "async_destroy", "Destroy filesystems asynchronously.", READONLY_COMPAT, &[]),
    feature("com.delphix:empty_bpobj", "empty_bpobj", "Snapshots use less space.", READONLY_COMPAT, &[]),
    feature("org.illumos:lz4_compress", "lz4_compress", "LZ4 compression algorithm support.", ACTIVATE_ON_ENABLE, &[]),
    feature("com.joyent:multi_vdev_crash_dump", "multi_vdev_crash_dump", "Crash dumps to multiple vdev pools.", 0, &[]),
    feature("com.delphix:spacemap_histogram", "spacemap_histogram", "Spacemaps maintain space histograms.", READONLY_COMPAT, &[]),
    feature("com.delphix:enabled_txg", "enabled_txg", "Record txg at which a feature is enabled", READONLY_COMPAT, &[]),
    feature("com.delphix:hole_birth", "hole_birth", "Retain hole birth txg for more precise zfs send", MOS | ACTIVATE_ON_ENABLE, &["enabled_txg"]),
    feature("com.delphix:zpool_checkpoint", "zpool_checkpoint", "Pool state can be checkpointed, allowing rewind later.", READONLY_COMPAT, &[]),
    feature("com.delphix:spacemap_v2", "spacemap_v2", "Space maps representing large segments are more efficient.", READONLY_COMPAT | ACTIVATE_ON_ENABLE, &[]),
    feature("com.delphix:extensible_dataset", "extensible_dataset", "Enhanced dataset functionality, used by other features.", 0, &[]),
    feature("com.delphix:bookmarks", "bookmarks", "\"zfs bookmark\" command", READONLY_COMPAT, &["extensible_dataset"]),
    feature("com.joyent:filesystem_limits", "filesystem_limits", "Filesystem and snapshot limits.", READONLY_COMPAT, &["extensible_dataset"]),
    feature("com.delphix:embedded_data", "embedded_data", "Blocks which compress very well use even less space.", MOS | ACTIVATE_ON_ENABLE, &[]),
    feature("com.delphix:livelist", "livelist", "Improved clone deletion performance.", READONLY_COMPAT, &["extensible_dataset"]),
    feature("com.delphix:log_spacemap", "log_spacemap", "Log metaslab changes on a single spacemap and flush them periodically.", READONLY_COMPAT, &["spacemap_v2"]),
    feature("org.open-zfs:large_blocks", "large_blocks", "Support for blocks larger than 128KB.", PER_DATASET, &["extensible_dataset"]),
    feature("org.zfsonlinux:large_dnode", "large_dnode", "Variable on-disk size of dnodes.", PER_DATASET, &["extensible_dataset"]),
    feature("org.illumos:sha512", "sha512", "SHA-512/256 hash algorithm.", PER_DATASET, &["extensible_dataset"]),
    feature("org.illumos:skein", "skein", "Skein hash algorithm.", PER_DATASET, &["extensible_dataset"]),
    feature("org.illumos:edonr", "edonr", "Edon-R hash algorithm.", PER_DATASET, &["extensible_dataset"]),
    feature("com.delphix:redaction_bookmarks", "redaction_bookmarks", "Support for bookmarks which store redaction lists for zfs redacted send/recv.", 0, &["bookmark_v2", "extensible_dataset", "bookmarks"]),
    feature("com.delphix:redacted_datasets", "redacted_datasets", "Support for redacted datasets, produced by receiving a redacted zfs send stream.", PER_DATASET, &["extensible_dataset"]),
    feature("com.delphix:bookmark_written", "bookmark_written", "Additional accounting, enabling the written#<bookmark> property (space written since a bookmark), and estimates of send stream sizes for incrementals from bookmarks.", 0, &["bookmark_v2", "extensible_dataset", "bookmarks"]),
    feature("com.delphix:device_removal", "device_removal", "Top-level vdevs can be removed, reducing logical pool size.", MOS, &[]),
    feature("com.delphix:obsolete_counts", "obsolete_counts", "Reduce memory used by removed devices when their blocks are freed or remapped.", READONLY_COMPAT, &["extensible_dataset", "device_removal"]),
    feature("org.zfsonlinux:userobj_accounting", "userobj_accounting", "User/Group object accounting.", READONLY_COMPAT | PER_DATASET, &["extensible_dataset"]),
    feature("com.datto:bookmark_v2", "bookmark_v2", "Support for larger bookmarks", 0, &["extensible_dataset", "bookmarks"]),
    feature("com.datto:encryption", "encryption", "Support for dataset level encryption", PER_DATASET, &["extensible_dataset", "bookmark_v2"]),
    feature("org.zfsonlinux:project_quota", "project_quota", "space/object accounting based on project ID.", READONLY_COMPAT | PER_DATASET, &["extensible_dataset"]),
    feature("org.zfsonlinux:allocation_classes", "allocation_classes", "Support for separate allocation classes.", READONLY_COMPAT, &[]),
    feature("com.datto:resilver_defer", "resilver_defer", "Support for deferring new resilvers when one is already running.", READONLY_COMPAT, &[]),
    feature("org.openzfs:device_rebuild", "device_rebuild", "Support for sequential mirror/dRAID device rebuilds", READONLY_COMPAT, &[]),
    feature("org.freebsd:zstd_compress", "zstd_compress", "zstd compression algorithm support.", PER_DATASET, &["extensible_dataset"]),
    feature("org.openzfs:draid", "draid", "Support for distributed spare RAID", MOS, &[]),
    feature("org.openzfs:zilsaxattr", "zilsaxattr", "Support for xattr=sa extended attribute logging in ZIL.", READONLY_COMPAT | PER_DATASET, &["extensible_dataset"]),
    feature("com.delphix:head_errlog", "head_errlog", "Support for per-dataset on-disk error logs.", ACTIVATE_ON_ENABLE, &[]),
    feature("org.openzfs:blake3", "blake3", "BLAKE3 hash algorithm.", PER_DATASET, &["extensible_dataset"]),
    feature("com.fudosecurity:block_cloning", "block_cloning", "Support for block cloning via Block Reference Table.", READONLY_COMPAT, &[]),
    feature("com.klarasystems:vdev_zaps_v2", "vdev_zaps_v2", "Support for root vdev ZAP.", MOS, &[]),
    feature("com.delphix:redaction_list_spill", "redaction_list_spill", "Support for increased number of redaction_snapshot arguments in zfs redact.", 0, &["redaction_bookmarks"]),
    feature("org.openzfs:raidz_expansion", "raidz_expansion", "Support for raidz expansion", MOS, &[]),
    feature("com.klarasystems:fast_dedup", "fast_dedup", "Support for advanced deduplication", READONLY_COMPAT, &[]),
    feature("org.zfsonlinux:longname", "longname", "support filename up to 1024 bytes", PER_DATASET, &["extensible_dataset"]),
    feature("com.klarasystems:large_microzap", "large_microzap", "Support for microzaps larger than 128KB.", READONLY_COMPAT | PER_DATASET, &["extensible_dataset", "large_blocks"]),
];

pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.guid == guid)
}

pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.name == name)
}

/// May this be a feature's guid: an organization's domain, a colon, a name.
pub fn is_valid_guid(guid: &str) -> bool {
    guid.split_once(':').is_some_and(|(org, name)| {
        !org.is_empty()
            && !name.is_empty()
            && guid.bytes().all(|c| {
                c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b':' | b'-' | b'_' | b'.')
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        for f in FEATURES {
            assert!(is_valid_guid(f.guid), "{}", f.guid);
            assert!(!(f.readonly_compat() && f.mos()), "{}", f.name);
            assert!(!f.per_dataset() || f.depends.contains(&"extensible_dataset"), "{}", f.name);
            for d in f.depends {
                assert!(by_name(d).is_some(), "{} needs {d}", f.name);
            }
        }
        assert_eq!(by_guid("com.delphix:hole_birth").unwrap().name, "hole_birth");
        assert!(!is_valid_guid("nonsense"));
    }
}
