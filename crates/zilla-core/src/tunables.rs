//! What can be tuned while pools are open: OpenZFS's module parameters, as far as zilla has what
//! they steer.
//!
//! They are the process's, not a pool's, as the module's are the machine's. Each is a number that
//! is read where it matters, every time.

use std::sync::atomic::{AtomicU64, Ordering};

/// A parameter.
pub struct Tunable {
    /// As in `/sys/module/zfs/parameters`.
    pub name: &'static str,
    pub default: u64,
    value: AtomicU64,
    /// What is said instead of a number, where it is a choice: the words of 0, 1, ...
    words: &'static [&'static str],
}

impl Tunable {
    const fn new(name: &'static str, default: u64) -> Tunable {
        Tunable { name, default, value: AtomicU64::new(default), words: &[] }
    }

    /// One of these words; the first to begin with.
    const fn choice(name: &'static str, words: &'static [&'static str]) -> Tunable {
        Tunable { name, default: 0, value: AtomicU64::new(0), words }
    }

    /// The value as it is shown.
    pub fn text(&self) -> String {
        let n = self.get();
        let word = usize::try_from(n).ok().and_then(|i| self.words.get(i));
        word.map_or_else(|| n.to_string(), |word| (*word).to_owned())
    }

    /// The words it takes; empty: numbers.
    pub fn words(&self) -> &'static [&'static str] {
        self.words
    }

    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Relaxed);
    }
}

/// Whether mkdir, rmdir and mv in `.zfs/snapshot` take, destroy and rename snapshots. Off in
/// OpenZFS, where the machine's administrator decides; here who runs the daemon may do it, root,
/// and whom `zfs allow` lets.
pub static ADMIN_SNAPSHOT: Tunable = Tunable::new("zfs_admin_snapshot", 1);

/// How deep datasets may lie in each other: parts that the name of a new one may have. Those that
/// are there are found however deep they lie.
pub static MAX_DATASET_NESTING: Tunable = Tunable::new("zfs_max_dataset_nesting", 50);

/// Whether attributes in the user's name space are stored without it, as FreeBSD and illumos do.
/// Both forms are read whatever is set; what is set anew takes the other form's place.
pub static XATTR_COMPAT: Tunable = Tunable::new("zfs_xattr_compat", 0);

/// Whether changes of extended attributes that lie in the file's own metadata go into the intent
/// log.
pub static ZIL_SAXATTR: Tunable = Tunable::new("zfs_zil_saxattr", 1);

/// How long a log block waits for company, in percent of what the last one took to write. A block
/// here is sent at once, and who comes meanwhile is the next one's company, so nothing waits
/// whatever is set.
pub static COMMIT_TIMEOUT_PCT: Tunable = Tunable::new("zfs_commit_timeout_pct", 10);

/// From how many bytes on synchronous writes go to where they will stay instead of into the log.
pub static IMMEDIATE_WRITE_SZ: Tunable = Tunable::new("zfs_immediate_write_sz", 32768);

/// Whether a block that is written as it is already keeps its place.
pub static NOPWRITE_ENABLED: Tunable = Tunable::new("zfs_nopwrite_enabled", 1);

/// Bytes that a cache device is fed at a time, and how many more as long as the ARC has evicted
/// nothing.
pub static L2ARC_WRITE_MAX: Tunable = Tunable::new("l2arc_write_max", 32 << 20);
pub static L2ARC_WRITE_BOOST: Tunable = Tunable::new("l2arc_write_boost", 32 << 20);

/// How far along the ARC's lists blocks are looked for, in times of what may be written; 0: to the
/// end.
pub static L2ARC_HEADROOM: Tunable = Tunable::new("l2arc_headroom", 8);

/// Seconds between two feedings, and whether the next comes sooner while there is much to be fed.
pub static L2ARC_FEED_SECS: Tunable = Tunable::new("l2arc_feed_secs", 1);
pub static L2ARC_FEED_AGAIN: Tunable = Tunable::new("l2arc_feed_again", 1);

/// Whether blocks that were only prefetched are left out.
pub static L2ARC_NOPREFETCH: Tunable = Tunable::new("l2arc_noprefetch", 1);

/// Whether only what was used more than once is fed: 1 of all blocks, 2 of data.
pub static L2ARC_MFUONLY: Tunable = Tunable::new("l2arc_mfuonly", 0);

/// Whether a cache device that is full is fed what was used only once, as OpenZFS does: then a scan
/// pushes out what is used.
pub static L2ARC_FEED_RECENT: Tunable = Tunable::new("l2arc_feed_recent", 0);

/// Whether a cache device is not read while it is written.
pub static L2ARC_NORW: Tunable = Tunable::new("l2arc_norw", 0);

/// Whether streams tell of holes of which it is not known when they came to be. Without it they
/// lack what was punched in pools that did not have the feature hole_birth.
pub static SEND_HOLES_WITHOUT_BIRTH_TIME: Tunable = Tunable::new("send_holes_without_birth_time", 1);

/// Bytes of a record by which sizes of streams are estimated; 0: as the dataset's records are.
pub static OVERRIDE_ESTIMATE_RECORDSIZE: Tunable = Tunable::new("zfs_override_estimate_recordsize", 0);

/// Whether an export leaves the log space maps as they are, rather than write them into the
/// metaslabs' own; and whether an import reads all metaslabs at once.
pub static KEEP_LOG_SPACEMAPS_AT_EXPORT: Tunable = Tunable::new("zfs_keep_log_spacemaps_at_export", 0);
pub static METASLAB_DEBUG_LOAD: Tunable = Tunable::new("metaslab_debug_load", 0);

/// How many top-level vdevs a pool may lack to be imported all the same, read-only. What was on
/// them is lost then; with one of them the pool's own objects are still there in another copy.
pub static MAX_MISSING_TVDS: Tunable = Tunable::new("zfs_max_missing_tvds", 0);

/// Whether raw streams are taken on top of snapshots whose set of IVs has no number, or another
/// one. Only for pools that `zpool status` says errata 4 of: on top of a wrong one what is received
/// cannot be read.
pub static DISABLE_IVSET_GUID_CHECK: Tunable = Tunable::new("zfs_disable_ivset_guid_check", 0);

/// Percent of the ARC's limit that the index of the cache devices may take.
pub static L2ARC_META_PERCENT: Tunable = Tunable::new("l2arc_meta_percent", 33);

/// Whether what a cache device holds is found again when the pool is opened.
pub static L2ARC_REBUILD_ENABLED: Tunable = Tunable::new("l2arc_rebuild_enabled", 1);

/// Whether scrubs and resilvers stand still where they are.
pub static SCAN_SUSPEND_PROGRESS: Tunable = Tunable::new("zfs_scan_suspend_progress", 0);

/// Whether scans read blocks in the order in which files have them, instead of that of the disks.
pub static SCAN_LEGACY: Tunable = Tunable::new("zfs_scan_legacy", 0);

/// Bytes that a scan reads at a time of each top-level vdev, at most. (OpenZFS counts by device: 16
/// MiB of each.)
pub static SCAN_VDEV_LIMIT: Tunable = Tunable::new("zfs_scan_vdev_limit", 32 << 20);

/// How many milliseconds of a txg's time (`zfs_txg_timeout`) a resilver has of a device that others
/// use as well.
pub static RESILVER_MIN_TIME_MS: Tunable = Tunable::new("zfs_resilver_min_time_ms", 1000);

/// A resilver of which less than so many percent are done begins anew when another device lacks
/// something; of any other the device waits for the next. (OpenZFS has 10.)
pub static RESILVER_DEFER_PERCENT: Tunable = Tunable::new("zfs_resilver_defer_percent", 0);

/// The part of the memory (one over so many) that a scan's round of blocks may take, and how many
/// seconds at most lie between two places that are written down.
pub static SCAN_MEM_LIM_FACT: Tunable = Tunable::new("zfs_scan_mem_lim_fact", 20);
pub static SCAN_CHECKPOINT_INTVAL: Tunable = Tunable::new("zfs_scan_checkpoint_intval", 7200);

/// Whether removals of vdevs stand still where they are.
pub static REMOVAL_SUSPEND_PROGRESS: Tunable = Tunable::new("zfs_removal_suspend_progress", 0);

/// Bytes of the longest run that a removal moves, and maps, as one.
pub static REMOVE_MAX_SEGMENT: Tunable = Tunable::new("zfs_remove_max_segment", 4 << 20);

/// Whether the mappings of removed vdevs are shortened; percent of the mapped bytes that are
/// obsolete and bytes of the mapping from which on that is done; bytes of the map of what is
/// obsolete from which on it is done in any case; and how long each run that stays takes at least.
pub static CONDENSE_INDIRECT_VDEVS_ENABLE: Tunable = Tunable::new("zfs_condense_indirect_vdevs_enable", 1);
pub static CONDENSE_INDIRECT_OBSOLETE_PCT: Tunable = Tunable::new("zfs_condense_indirect_obsolete_pct", 25);
pub static CONDENSE_MIN_MAPPING_BYTES: Tunable = Tunable::new("zfs_condense_min_mapping_bytes", 128 << 10);
pub static CONDENSE_MAX_OBSOLETE_BYTES: Tunable = Tunable::new("zfs_condense_max_obsolete_bytes", 1 << 30);
pub static CONDENSE_INDIRECT_COMMIT_ENTRY_DELAY_MS: Tunable =
    Tunable::new("zfs_condense_indirect_commit_entry_delay_ms", 0);

/// After how many bytes the expansion of a RAID-Z stands still; 0: it goes on to its end.
pub static EXPAND_MAX_REFLOW_BYTES: Tunable = Tunable::new("raidz_expand_max_reflow_bytes", 0);

/// Whether a pool is scrubbed when an expansion is complete.
pub static SCRUB_AFTER_EXPAND: Tunable = Tunable::new("zfs_scrub_after_expand", 1);

/// Whether what readers will ask for next is left where it is until they do.
pub static PREFETCH_DISABLE: Tunable = Tunable::new("zfs_prefetch_disable", 0);

/// Whether who asks for it (`O_DIRECT`) goes past the caches, where a file system lets him.
pub static DIO_ENABLED: Tunable = Tunable::new("zfs_dio_enabled", 1);

/// Whether files may share blocks.
pub static BCLONE_ENABLED: Tunable = Tunable::new("zfs_bclone_enabled", 1);

/// Whether volumes are offered of which something was left out when they were sent. (File systems
/// are mounted with `zfs mount -f`, whatever this says; OpenZFS asks for both.)
pub static ALLOW_REDACTED_DATASET_MOUNT: Tunable = Tunable::new("zfs_allow_redacted_dataset_mount", 0);

/// log2 of the sectors that files which are a pool's devices have and would like.
pub static VDEV_FILE_LOGICAL_ASHIFT: Tunable = Tunable::new("vdev_file_logical_ashift", 9);
pub static VDEV_FILE_PHYSICAL_ASHIFT: Tunable = Tunable::new("vdev_file_physical_ashift", 9);

/// log2 of the largest sectors that a device gets only because it says it would like them.
pub static VDEV_MAX_AUTO_ASHIFT: Tunable = Tunable::new("zfs_vdev_max_auto_ashift", 14);

/// Metaslabs that a new vdev has at least, and beyond how many it keeps one for the intent log.
pub static VDEV_MIN_MS_COUNT: Tunable = Tunable::new("zfs_vdev_min_ms_count", 16);
pub static EMBEDDED_SLOG_MIN_MS: Tunable = Tunable::new("zfs_embedded_slog_min_ms", 64);

/// What an initialize writes, and how many bytes of it at a time.
pub static INITIALIZE_VALUE: Tunable = Tunable::new("zfs_initialize_value", 0xdead_beef_dead_beee);
pub static INITIALIZE_CHUNK_SIZE: Tunable = Tunable::new("zfs_initialize_chunk_size", 1 << 20);

/// The longest and the shortest range that is trimmed as one, in bytes.
pub static TRIM_EXTENT_BYTES_MAX: Tunable = Tunable::new("zfs_trim_extent_bytes_max", 128 << 20);
pub static TRIM_EXTENT_BYTES_MIN: Tunable = Tunable::new("zfs_trim_extent_bytes_min", 32 << 10);

/// Whether a trim leaves out the metaslabs in which nothing ever was.
pub static TRIM_METASLAB_SKIP: Tunable = Tunable::new("zfs_trim_metaslab_skip", 0);

/// In how many txgs all metaslabs have their turn to be trimmed of what was freed.
pub static TRIM_TXG_BATCH: Tunable = Tunable::new("zfs_trim_txg_batch", 32);

/// Of blocks of at least so many bytes on disk, so many percent are written in pieces (as gangs)
/// though there may be a run for them: for tests. No block is as large as the default.
pub static METASLAB_FORCE_GANGING: Tunable = Tunable::new("metaslab_force_ganging", (16 << 20) + 1);
pub static METASLAB_FORCE_GANGING_PCT: Tunable = Tunable::new("metaslab_force_ganging_pct", 3);

/// Blocks of destroyed datasets and snapshots that are freed in a txg.
pub static ASYNC_BLOCK_MAX_BLOCKS: Tunable = Tunable::new("zfs_async_block_max_blocks", 100_000);

/// Bytes of memory that a step of discarding a checkpoint may take; each is one txg.
pub static SPA_DISCARD_MEMORY_LIMIT: Tunable = Tunable::new("zfs_spa_discard_memory_limit", 16 << 20);

/// Bytes of memory that a channel program may ask for.
pub static LUA_MAX_MEMLIMIT: Tunable = Tunable::new("zfs_lua_max_memlimit", 100 << 20);

/// After how many txgs the log of a deduplication table goes into the table.
pub static DEDUP_LOG_TXG_MAX: Tunable = Tunable::new("zfs_dedup_log_txg_max", 8);

/// Cache devices of fewer bytes have no log of what they hold.
pub static L2ARC_REBUILD_MIN_L2SIZE: Tunable = Tunable::new("l2arc_rebuild_blocks_min_l2size", 1 << 30);

/// Blocks that a part of a clone's livelist has at most, and how many percent of what a clone
/// refers to have to be its origin's for it to have one.
pub static LIVELIST_MAX_ENTRIES: Tunable = Tunable::new("zfs_livelist_max_entries", 500_000);
pub static LIVELIST_MIN_PERCENT_SHARED: Tunable = Tunable::new("zfs_livelist_min_percent_shared", 75);

/// Bytes that a micro-ZAP takes at most; more than 128K only where the pool has `large_microzap`.
pub static ZAP_MICRO_MAX_SIZE: Tunable = Tunable::new("zap_micro_max_size", 128 << 10);

/// How many txgs that are on disk the kstat `txgs` of a pool lists.
pub static TXG_HISTORY: Tunable = Tunable::new("zfs_txg_history", 100);

/// Bytes that a sequential rebuild reads of a device at a time, and how many it may have under way
/// for each device.
pub static REBUILD_MAX_SEGMENT: Tunable = Tunable::new("zfs_rebuild_max_segment", 1 << 20);
pub static REBUILD_VDEV_LIMIT: Tunable = Tunable::new("zfs_rebuild_vdev_limit", 64 << 20);

/// Whether a pool is scrubbed when its last sequential rebuild is complete.
pub static REBUILD_SCRUB_ENABLED: Tunable = Tunable::new("zfs_rebuild_scrub_enabled", 1);

/// Seconds after which a txg that has anything to write is written.
pub static TXG_TIMEOUT: Tunable = Tunable::new("zfs_txg_timeout", 5);

/// Milliseconds after which an I/O of a device counts as slow, and how many of these are told of in
/// a second.
pub static SLOW_IO_MS: Tunable = Tunable::new("zio_slow_io_ms", 30_000);
pub static SLOW_IO_EVENTS: Tunable = Tunable::new("zfs_slow_io_events_per_second", 20);

/// How many checksum errors of a device are told of in a second.
pub static CHECKSUM_EVENTS: Tunable = Tunable::new("zfs_checksum_events_per_second", 20);

/// Events that are kept.
pub static EVENTS_KEPT: Tunable = Tunable::new("zfs_zevent_len_max", 512);

/// Whether it is looked for I/O that devices never answer; after how many milliseconds it counts as
/// such (a txg's write, any); how often that is looked at; how often it is told of in a second; and
/// what is done where the pool needs the device ([`crate::spa`], deadman).
pub static DEADMAN_ENABLED: Tunable = Tunable::new("zfs_deadman_enabled", 1);
pub static DEADMAN_SYNCTIME_MS: Tunable = Tunable::new("zfs_deadman_synctime_ms", 600_000);
pub static DEADMAN_ZIOTIME_MS: Tunable = Tunable::new("zfs_deadman_ziotime_ms", 300_000);
pub static DEADMAN_CHECKTIME_MS: Tunable = Tunable::new("zfs_deadman_checktime_ms", 60_000);
pub static DEADMAN_EVENTS: Tunable = Tunable::new("zfs_deadman_events_per_second", 1);
pub static DEADMAN_FAILMODE: Tunable =
    Tunable::choice("zfs_deadman_failmode", &["wait", "continue", "panic"]);

/// Of pools with `multihost=on`: every how many milliseconds each device gets a heartbeat; after
/// how many that failed writing stops (0: never); how many an import waits for where the pool does
/// not say; and how many are kept to be looked at.
pub static MULTIHOST_INTERVAL: Tunable = Tunable::new("zfs_multihost_interval", 1000);
pub static MULTIHOST_FAIL_INTERVALS: Tunable = Tunable::new("zfs_multihost_fail_intervals", 10);
pub static MULTIHOST_IMPORT_INTERVALS: Tunable = Tunable::new("zfs_multihost_import_intervals", 20);
pub static MULTIHOST_HISTORY: Tunable = Tunable::new("zfs_multihost_history", 0);

/// Bytes that the caches of all pools may take together, and down to which they give way where
/// memory is short; 0: what the memory allows. [`crate::memory`] says which values count.
pub static ARC_MAX: Tunable = Tunable::new("zfs_arc_max", 0);
pub static ARC_MIN: Tunable = Tunable::new("zfs_arc_min", 0);

/// Bytes that wait for a txg, of all pools together, at which writers wait; 0: what the memory
/// allows.
pub static DIRTY_DATA_MAX: Tunable = Tunable::new("zfs_dirty_data_max", 0);

/// The host's number; 0: the one in `/etc/hostid`.
pub static SPL_HOSTID: Tunable = Tunable::new("spl_hostid", 0);

pub static ALL: &[&Tunable] = &[
    &MULTIHOST_INTERVAL,
    &MULTIHOST_FAIL_INTERVALS,
    &MULTIHOST_IMPORT_INTERVALS,
    &MULTIHOST_HISTORY,
    &SPL_HOSTID,
    &ARC_MAX,
    &ARC_MIN,
    &DIRTY_DATA_MAX,
    &SEND_HOLES_WITHOUT_BIRTH_TIME,
    &MAX_MISSING_TVDS,
    &OVERRIDE_ESTIMATE_RECORDSIZE,
    &KEEP_LOG_SPACEMAPS_AT_EXPORT,
    &METASLAB_DEBUG_LOAD,
    &DISABLE_IVSET_GUID_CHECK,
    &SCAN_SUSPEND_PROGRESS,
    &SCAN_LEGACY,
    &SCAN_VDEV_LIMIT,
    &RESILVER_MIN_TIME_MS,
    &RESILVER_DEFER_PERCENT,
    &SCAN_MEM_LIM_FACT,
    &SCAN_CHECKPOINT_INTVAL,
    &REMOVAL_SUSPEND_PROGRESS,
    &REMOVE_MAX_SEGMENT,
    &METASLAB_FORCE_GANGING,
    &METASLAB_FORCE_GANGING_PCT,
    &ASYNC_BLOCK_MAX_BLOCKS,
    &SPA_DISCARD_MEMORY_LIMIT,
    &LUA_MAX_MEMLIMIT,
    &CONDENSE_INDIRECT_VDEVS_ENABLE,
    &CONDENSE_INDIRECT_OBSOLETE_PCT,
    &CONDENSE_MIN_MAPPING_BYTES,
    &CONDENSE_MAX_OBSOLETE_BYTES,
    &CONDENSE_INDIRECT_COMMIT_ENTRY_DELAY_MS,
    &EXPAND_MAX_REFLOW_BYTES,
    &SCRUB_AFTER_EXPAND,
    &PREFETCH_DISABLE,
    &DIO_ENABLED,
    &BCLONE_ENABLED,
    &ALLOW_REDACTED_DATASET_MOUNT,
    &VDEV_FILE_LOGICAL_ASHIFT,
    &VDEV_FILE_PHYSICAL_ASHIFT,
    &VDEV_MAX_AUTO_ASHIFT,
    &VDEV_MIN_MS_COUNT,
    &EMBEDDED_SLOG_MIN_MS,
    &INITIALIZE_VALUE,
    &INITIALIZE_CHUNK_SIZE,
    &TRIM_EXTENT_BYTES_MAX,
    &TRIM_EXTENT_BYTES_MIN,
    &TRIM_METASLAB_SKIP,
    &TRIM_TXG_BATCH,
    &DEDUP_LOG_TXG_MAX,
    &L2ARC_REBUILD_MIN_L2SIZE,
    &REBUILD_MAX_SEGMENT,
    &REBUILD_VDEV_LIMIT,
    &REBUILD_SCRUB_ENABLED,
    &TXG_TIMEOUT,
    &TXG_HISTORY,
    &ZAP_MICRO_MAX_SIZE,
    &LIVELIST_MAX_ENTRIES,
    &LIVELIST_MIN_PERCENT_SHARED,
    &ADMIN_SNAPSHOT,
    &MAX_DATASET_NESTING,
    &XATTR_COMPAT,
    &ZIL_SAXATTR,
    &COMMIT_TIMEOUT_PCT,
    &IMMEDIATE_WRITE_SZ,
    &NOPWRITE_ENABLED,
    &L2ARC_WRITE_MAX,
    &L2ARC_WRITE_BOOST,
    &L2ARC_HEADROOM,
    &L2ARC_FEED_SECS,
    &L2ARC_FEED_AGAIN,
    &L2ARC_NOPREFETCH,
    &L2ARC_MFUONLY,
    &L2ARC_FEED_RECENT,
    &L2ARC_NORW,
    &L2ARC_META_PERCENT,
    &L2ARC_REBUILD_ENABLED,
    &SLOW_IO_MS,
    &SLOW_IO_EVENTS,
    &CHECKSUM_EVENTS,
    &EVENTS_KEPT,
    &DEADMAN_ENABLED,
    &DEADMAN_SYNCTIME_MS,
    &DEADMAN_ZIOTIME_MS,
    &DEADMAN_CHECKTIME_MS,
    &DEADMAN_EVENTS,
    &DEADMAN_FAILMODE,
];
