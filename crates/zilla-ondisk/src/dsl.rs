//! The dataset layer's structures: directories, datasets, scans, bookmarks. All are bonuses in the
//! MOS, or arrays of words in its ZAPs, and all are words throughout.
//!
//! A *dir* is a node of the tree that `zfs list` shows: it has children, properties and space
//! accounting. A *dataset* is a state: the head of a dir, or one of its snapshots, chained by
//! `prev_snap_obj` from head to oldest.

use crate::blkptr::BlkPtr;
use crate::bytes::{Phys, Zero, phys};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;
use crate::zbookmark::ZbookmarkPhys;

/// Object of the pool's directory in the MOS, and the names in it.
pub const DMU_POOL_DIRECTORY_OBJECT: u64 = 1;
pub const DMU_POOL_CONFIG: &str = "config";
pub const DMU_POOL_FEATURES_FOR_WRITE: &str = "features_for_write";
pub const DMU_POOL_FEATURES_FOR_READ: &str = "features_for_read";
pub const DMU_POOL_FEATURE_DESCRIPTIONS: &str = "feature_descriptions";
pub const DMU_POOL_FEATURE_ENABLED_TXG: &str = "feature_enabled_txg";
pub const DMU_POOL_ROOT_DATASET: &str = "root_dataset";
pub const DMU_POOL_SYNC_BPOBJ: &str = "sync_bplist";
pub const DMU_POOL_ERRLOG_SCRUB: &str = "errlog_scrub";
pub const DMU_POOL_ERRLOG_LAST: &str = "errlog_last";
pub const DMU_POOL_SPARES: &str = "spares";
pub const DMU_POOL_DEFLATE: &str = "deflate";
pub const DMU_POOL_HISTORY: &str = "history";
pub const DMU_POOL_PROPS: &str = "pool_props";
pub const DMU_POOL_L2CACHE: &str = "l2cache";
pub const DMU_POOL_TMP_USERREFS: &str = "tmp_userrefs";
pub const DMU_POOL_DDT_STATS: &str = "DDT-statistics";
pub const DMU_POOL_CREATION_VERSION: &str = "creation_version";
pub const DMU_POOL_SCAN: &str = "scan";
pub const DMU_POOL_ERRORSCRUB: &str = "error_scrub";
pub const DMU_POOL_LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";
pub const DMU_POOL_FREE_BPOBJ: &str = "free_bpobj";
pub const DMU_POOL_BPTREE_OBJ: &str = "bptree_obj";
pub const DMU_POOL_EMPTY_BPOBJ: &str = "empty_bpobj";
pub const DMU_POOL_CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
pub const DMU_POOL_VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
pub const DMU_POOL_REMOVING: &str = "com.delphix:removing";
pub const DMU_POOL_OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";
pub const DMU_POOL_CONDENSING_INDIRECT: &str = "com.delphix:condensing_indirect";
/// Followed by the number of a top-level vdev.
pub const BRT_OBJECT_VDEV_PREFIX: &str = "com.fudosecurity:brt:vdev:";
pub const DMU_POOL_ZPOOL_CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
pub const DMU_POOL_LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";
pub const DMU_POOL_DELETED_CLONES: &str = "com.delphix:deleted_clones";

/// Names in the ZAP that a dir or dataset of the feature `extensible_dataset` is.
pub const DD_FIELD_FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
pub const DD_FIELD_SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
pub const DD_FIELD_CRYPTO_KEY_OBJ: &str = "com.datto:crypto_key_obj";
pub const DD_FIELD_LIVELIST: &str = "com.delphix:livelist";
pub const DD_FIELD_SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
/// Names in the ZAP of a dataset's key. Source: DSL_CRYPTO_KEY_* in sys/dsl_crypt.h, and the
/// property names of libzfs.
pub const DSL_CRYPTO_KEY_CRYPTO_SUITE: &str = "DSL_CRYPTO_SUITE";
pub const DSL_CRYPTO_KEY_ROOT_DDOBJ: &str = "DSL_CRYPTO_ROOT_DDOBJ";
pub const DSL_CRYPTO_KEY_GUID: &str = "DSL_CRYPTO_GUID";
pub const DSL_CRYPTO_KEY_VERSION: &str = "DSL_CRYPTO_VERSION";
pub const DSL_CRYPTO_KEY_IV: &str = "DSL_CRYPTO_IV";
pub const DSL_CRYPTO_KEY_MAC: &str = "DSL_CRYPTO_MAC";
pub const DSL_CRYPTO_KEY_MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
pub const DSL_CRYPTO_KEY_HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
pub const DSL_CRYPTO_KEY_REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
pub const DSL_CRYPTO_KEY_PBKDF2SALT: &str = "pbkdf2salt";
pub const DSL_CRYPTO_KEY_KEYFORMAT: &str = "keyformat";
pub const DSL_CRYPTO_KEY_PBKDF2ITERS: &str = "pbkdf2iters";
pub const DS_FIELD_BOOKMARK_NAMES: &str = "com.delphix:bookmarks";
pub const DS_FIELD_LARGE_DNODE: &str = "org.zfsonlinux:large_dnode";
pub const DS_FIELD_IVSET_GUID: &str = "com.datto:ivset_guid";
pub const DS_FIELD_REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";

/// Indices of `used_breakdown`.
pub const DD_USED_HEAD: usize = 0;
pub const DD_USED_SNAP: usize = 1;
pub const DD_USED_CHILD: usize = 2;
pub const DD_USED_CHILD_RSRV: usize = 3;
pub const DD_USED_REFRSRV: usize = 4;
pub const DD_FLAG_USED_BREAKDOWN: u64 = 1;

phys! {
    /// A dir: bonus of 256 bytes.
    pub struct DslDirPhys("dsl_dir_phys") {
        creation_time: u64,
        head_dataset_obj: u64,
        parent_obj: u64,
        origin_obj: u64,
        child_dir_zapobj: u64,
        used_bytes: u64,
        compressed_bytes: u64,
        uncompressed_bytes: u64,
        quota: u64,
        reserved: u64,
        props_zapobj: u64,
        deleg_zapobj: u64,
        flags: u64,
        used_breakdown: [u64; 5],
        clones: u64,
        pad: [u64; 13],
    }
}

impl DslDirPhys {
    /// Reads the bonus, whose counters are then small enough to be added up.
    pub fn from_bonus(bonus: &[u8], order: ByteOrder) -> Result<DslDirPhys> {
        let p = DslDirPhys::decode(bonus, order)?;
        let all = [
            ("dd_used_bytes", p.used_bytes),
            ("dd_compressed_bytes", p.compressed_bytes),
            ("dd_uncompressed_bytes", p.uncompressed_bytes),
            ("dd_reserved", p.reserved),
        ];
        FormatError::counters("dsl_dir_phys", &all)?;
        FormatError::counters("dsl_dir_phys", &p.used_breakdown.map(|n| ("dd_used_breakdown", n)))?;
        Ok(p)
    }
}

pub const DS_FLAG_INCONSISTENT: u64 = 1 << 0;
pub const DS_FLAG_NOPROMOTE: u64 = 1 << 1;
pub const DS_FLAG_UNIQUE_ACCURATE: u64 = 1 << 2;
pub const DS_FLAG_DEFER_DESTROY: u64 = 1 << 3;
pub const DS_FLAG_CI_DATASET: u64 = 1 << 16;

phys! {
    /// A dataset: bonus of 320 bytes.
    pub struct DslDatasetPhys("dsl_dataset_phys") {
        dir_obj: u64,
        prev_snap_obj: u64,
        prev_snap_txg: u64,
        next_snap_obj: u64,
        /// Names of the snapshots; 0 in a snapshot.
        snapnames_zapobj: u64,
        /// References to a snapshot: its next, and clones. 0 in a head.
        num_children: u64,
        creation_time: u64,
        creation_txg: u64,
        deadlist_obj: u64,
        referenced_bytes: u64,
        compressed_bytes: u64,
        uncompressed_bytes: u64,
        unique_bytes: u64,
        /// 56 bits, unique among datasets of the machine.
        fsid_guid: u64,
        guid: u64,
        flags: u64,
        /// The objset.
        bp: BlkPtr,
        next_clones_obj: u64,
        /// Properties of a snapshot.
        props_obj: u64,
        userrefs_obj: u64,
        pad: [u64; 5],
    }
}

impl DslDatasetPhys {
    /// Reads the bonus, whose counters are then small enough to be added up.
    pub fn from_bonus(bonus: &[u8], order: ByteOrder) -> Result<DslDatasetPhys> {
        let p = DslDatasetPhys::decode(bonus, order)?;
        let all = [
            ("ds_referenced_bytes", p.referenced_bytes),
            ("ds_compressed_bytes", p.compressed_bytes),
            ("ds_uncompressed_bytes", p.uncompressed_bytes),
            ("ds_unique_bytes", p.unique_bytes),
        ];
        FormatError::counters("dsl_dataset_phys", &all)?;
        Ok(p)
    }
}

phys! {
    /// Where a scan is in the dedup tables.
    pub struct DdtBookmarkPhys("ddt_bookmark") {
        class: u64,
        ddt_type: u64,
        checksum: u64,
        cursor: u64,
    }
}

impl Zero for DdtBookmarkPhys {
    const ZERO: Self = DdtBookmarkPhys { class: 0, ddt_type: 0, checksum: 0, cursor: 0 };
}

pub const DSF_VISIT_DS_AGAIN: u64 = 1;
pub const DSF_SCRUB_PAUSED: u64 = 2;

phys! {
    /// A scrub's or resilver's state: `scan` in the pool's directory, as 24 words.
    pub struct DslScanPhys("dsl_scan_phys") {
        func: u64,
        state: u64,
        queue_obj: u64,
        min_txg: u64,
        max_txg: u64,
        cur_min_txg: u64,
        cur_max_txg: u64,
        start_time: u64,
        end_time: u64,
        to_examine: u64,
        examined: u64,
        skipped: u64,
        processed: u64,
        errors: u64,
        ddt_class_max: u64,
        ddt_bookmark: DdtBookmarkPhys,
        bookmark: ZbookmarkPhys,
        flags: u64,
    }
}

phys! {
    /// The state of a scrub of the blocks in the error log: `error_scrub` in the pool's directory.
    pub struct DslErrorscrubPhys("dsl_errorscrub_phys") {
        func: u64,
        state: u64,
        cursor: u64,
        start_time: u64,
        end_time: u64,
        to_examine: u64,
        examined: u64,
        errors: u64,
        paused_flags: u64,
    }
}

pub const ZBM_FLAG_HAS_FBN: u64 = 1;
pub const ZBM_FLAG_SNAPSHOT_EXISTS: u64 = 2;
/// Words of a bookmark before the feature `bookmark_v2`.
pub const BOOKMARK_WORDS_V1: usize = 3;

phys! {
    /// A bookmark of `zfs bookmark`: a value in the dataset's ZAP of bookmarks, of 3 or 12 words.
    pub struct ZfsBookmarkPhys("zfs_bookmark_phys") {
        guid: u64,
        creation_txg: u64,
        creation_time: u64,
        redaction_obj: u64,
        flags: u64,
        referenced_bytes_refd: u64,
        compressed_bytes_refd: u64,
        uncompressed_bytes_refd: u64,
        referenced_freed_before_next_snap: u64,
        compressed_freed_before_next_snap: u64,
        uncompressed_freed_before_next_snap: u64,
        ivset_guid: u64,
    }
}

/// Structures that are also stored as arrays of words in a ZAP.
pub trait WordsPhys: Phys {
    /// From an array; one that is shorter, as older software wrote it, ends in zeros. `least` words
    /// must be there.
    fn from_words(words: &[u64], least: usize) -> Result<Self> {
        if words.len() < least || words.len() * 8 > Self::SIZE {
            let why = "not as many words";
            return Err(FormatError::impossible(Self::NAME, "words", 0, words.len() as u64, why));
        }
        let mut raw: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        raw.resize(Self::SIZE, 0);
        Self::decode(&raw, ByteOrder::NATIVE)
    }

    fn to_words(&self) -> Vec<u64> {
        self.encode().as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect()
    }
}

impl WordsPhys for DslScanPhys {}
impl WordsPhys for DslErrorscrubPhys {}
impl WordsPhys for ZfsBookmarkPhys {}

/// The bonus of a redaction list, and the guids of the snapshots it is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedactionListPhys {
    pub last_object: u64,
    pub last_blkid: u64,
    pub num_entries: u64,
    pub snaps: Vec<u64>,
}

impl RedactionListPhys {
    /// Bytes before the guids.
    pub const HEAD: usize = 32;

    /// Nothing of the snapshot is left to be looked at.
    pub fn is_complete(&self) -> bool {
        (self.last_object, self.last_blkid) == (u64::MAX, u64::MAX)
    }

    pub fn encode(&self) -> Vec<u8> {
        let head = [self.last_object, self.last_blkid, self.num_entries, self.snaps.len() as u64];
        head.iter().chain(&self.snaps).flat_map(|n| n.to_ne_bytes()).collect()
    }

    pub fn decode(bonus: &[u8], order: ByteOrder) -> Result<RedactionListPhys> {
        let mut r = crate::bytes::Reader::new(bonus, order, "redaction_list_phys");
        let last_object = r.u64("rlp_last_object")?;
        let last_blkid = r.u64("rlp_last_blkid")?;
        let num_entries = r.u64("rlp_num_entries")?;
        let n = r.u64("rlp_num_snaps")?;
        let have = r.remaining();
        let need = usize::try_from(n).ok().and_then(|n| n.checked_mul(8)).unwrap_or(usize::MAX);
        if need > have {
            return Err(r.error("rlp_snaps", Problem::Truncated { need, have }));
        }
        let snaps = (0..n).map(|_| r.u64("rlp_snaps")).collect::<Result<_>>()?;
        Ok(RedactionListPhys { last_object, last_blkid, num_entries, snaps })
    }
}

phys! {
    /// A run of redacted blocks: size in sectors in the upper 16 bits of `size_count`, how many in
    /// the lower 48.
    pub struct RedactBlockPhys("redact_block_phys") {
        object: u64,
        blkid: u64,
        size_count: u64,
        padding: u64,
    }
}

impl RedactBlockPhys {
    /// A run of `count` blocks of `blksz` bytes.
    pub fn new(object: u64, blkid: u64, count: u64, blksz: u64) -> RedactBlockPhys {
        let size_count = (blksz >> 9) << 48 | count & ((1 << 48) - 1);
        RedactBlockPhys { object, blkid, size_count, padding: 0 }
    }

    pub fn count(&self) -> u64 {
        self.size_count & ((1 << 48) - 1)
    }

    pub fn blksz(&self) -> u64 {
        (self.size_count >> 48) << 9
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Field;

    #[test]
    fn sizes_are_openzfs_s() {
        assert_eq!(DslDirPhys::SIZE, 256);
        assert_eq!(DslDatasetPhys::SIZE, 320);
        assert_eq!(DslScanPhys::SIZE, 24 * 8);
        assert_eq!(DslErrorscrubPhys::SIZE, 9 * 8);
        assert_eq!(ZfsBookmarkPhys::SIZE, 12 * 8);
        assert_eq!(crate::deadlist::DeadlistPhys::SIZE, 320);
        assert_eq!(crate::bptree::BptreeEntryPhys::SIZE, 168);
    }

    #[test]
    fn words_round_trip() {
        let words: Vec<u64> = (1..=24).collect();
        let scan = DslScanPhys::from_words(&words, 24).unwrap();
        assert_eq!((scan.func, scan.bookmark.blkid, scan.flags), (1, 23, 24));
        assert_eq!(scan.to_words(), words);
        assert!(DslScanPhys::from_words(&words[..23], 24).is_err());
        let old = ZfsBookmarkPhys::from_words(&[1, 2, 3], BOOKMARK_WORDS_V1).unwrap();
        assert_eq!((old.guid, old.creation_time, old.flags), (1, 3, 0));
        let raw: Vec<u8> = [1u64, 2, 3, u64::MAX].iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert!(RedactionListPhys::decode(&raw, ByteOrder::NATIVE).is_err());
    }
}
