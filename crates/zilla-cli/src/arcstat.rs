//! `zilla arcstat`: what the caches do, in the columns of OpenZFS's `arcstat`.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::interval::Interval;
use crate::fmt::time;
use std::collections::BTreeMap;
use std::io::Write as _;
use zilla_control::types::{ArcStat, ArcStatQuery};

type Counts = BTreeMap<String, u64>;
type Names = &'static [&'static str];

/// How a column comes about.
enum Value {
    Time,
    /// What was added a second.
    Rate(Names),
    /// What was added of the first as a part of what was added of the second.
    Percent(Names, Names),
    /// What there is.
    Gauge(&'static str),
    /// What there is of the first as a part of the second.
    Share(&'static str, &'static str),
    /// 1 if this is not so.
    Without(&'static str),
}

use Value::{Gauge, Percent, Rate, Share, Time, Without};

const ALL: Names = &["hits", "iohits", "misses"];
const DEMAND: Names = &[
    "demand_data_hits",
    "demand_data_iohits",
    "demand_data_misses",
    "demand_metadata_hits",
    "demand_metadata_iohits",
    "demand_metadata_misses",
];
const DEMAND_HITS: Names = &["demand_data_hits", "demand_metadata_hits"];
const DEMAND_IOHITS: Names = &["demand_data_iohits", "demand_metadata_iohits"];
const DEMAND_MISSES: Names = &["demand_data_misses", "demand_metadata_misses"];
const DEMAND_DATA: Names = &["demand_data_hits", "demand_data_iohits", "demand_data_misses"];
const DEMAND_META: Names = &["demand_metadata_hits", "demand_metadata_iohits", "demand_metadata_misses"];
const PREFETCH: Names = &[
    "prefetch_data_hits",
    "prefetch_data_iohits",
    "prefetch_data_misses",
    "prefetch_metadata_hits",
    "prefetch_metadata_iohits",
    "prefetch_metadata_misses",
];
const PREFETCH_HITS: Names = &["prefetch_data_hits", "prefetch_metadata_hits"];
const PREFETCH_IOHITS: Names = &["prefetch_data_iohits", "prefetch_metadata_iohits"];
const PREFETCH_MISSES: Names = &["prefetch_data_misses", "prefetch_metadata_misses"];
const PREFETCH_DATA: Names = &["prefetch_data_hits", "prefetch_data_iohits", "prefetch_data_misses"];
const PREFETCH_META: Names =
    &["prefetch_metadata_hits", "prefetch_metadata_iohits", "prefetch_metadata_misses"];
const META: Names = &[
    "prefetch_metadata_hits",
    "demand_metadata_hits",
    "prefetch_metadata_iohits",
    "demand_metadata_iohits",
    "prefetch_metadata_misses",
    "demand_metadata_misses",
];
const META_HITS: Names = &["prefetch_metadata_hits", "demand_metadata_hits"];
const META_IOHITS: Names = &["prefetch_metadata_iohits", "demand_metadata_iohits"];
const META_MISSES: Names = &["prefetch_metadata_misses", "demand_metadata_misses"];
const L2: Names = &["l2_hits", "l2_misses"];
const STREAMS: Names = &["zfetch_hits", "zfetch_future", "zfetch_stride", "zfetch_past", "zfetch_misses"];

/// A column: heading, width, by what it is shortened (0: not, 100: a percentage), what it is.
type Column = (&'static str, usize, u32, Value, &'static str);

/// OpenZFS's, in its order.
const COLUMNS: &[Column] = &[
    ("time", 8, 0, Time, "Time"),
    ("hits", 4, 1000, Rate(&["hits"]), "Hits a second"),
    ("iohs", 4, 1000, Rate(&["iohits"]), "Hits a second on what was on its way"),
    ("miss", 4, 1000, Rate(&["misses"]), "Misses a second"),
    ("read", 4, 1000, Rate(ALL), "Accesses a second"),
    ("hit%", 4, 100, Percent(&["hits"], ALL), "Hits of all accesses"),
    ("ioh%", 4, 100, Percent(&["iohits"], ALL), "Hits on what was on its way, of all accesses"),
    ("miss%", 5, 100, Percent(&["misses"], ALL), "Misses of all accesses"),
    ("dhit", 4, 1000, Rate(DEMAND_HITS), "Demand hits a second"),
    ("dioh", 4, 1000, Rate(DEMAND_IOHITS), "Demand hits a second on what was on its way"),
    ("dmis", 4, 1000, Rate(DEMAND_MISSES), "Demand misses a second"),
    ("dh%", 3, 100, Percent(DEMAND_HITS, DEMAND), "Hits of demand accesses"),
    ("di%", 3, 100, Percent(DEMAND_IOHITS, DEMAND), "Hits on what was on its way, of demand accesses"),
    ("dm%", 3, 100, Percent(DEMAND_MISSES, DEMAND), "Misses of demand accesses"),
    ("ddhit", 5, 1000, Rate(&["demand_data_hits"]), "Demand data hits a second"),
    ("ddioh", 5, 1000, Rate(&["demand_data_iohits"]), "Demand data hits a second on what was on its way"),
    ("ddmis", 5, 1000, Rate(&["demand_data_misses"]), "Demand data misses a second"),
    ("ddh%", 4, 100, Percent(&["demand_data_hits"], DEMAND_DATA), "Hits of demand data accesses"),
    (
        "ddi%",
        4,
        100,
        Percent(&["demand_data_iohits"], DEMAND_DATA),
        "Hits on what was on its way, of demand data accesses",
    ),
    ("ddm%", 4, 100, Percent(&["demand_data_misses"], DEMAND_DATA), "Misses of demand data accesses"),
    ("dmhit", 5, 1000, Rate(&["demand_metadata_hits"]), "Demand metadata hits a second"),
    (
        "dmioh",
        5,
        1000,
        Rate(&["demand_metadata_iohits"]),
        "Demand metadata hits a second on what was on its way",
    ),
    ("dmmis", 5, 1000, Rate(&["demand_metadata_misses"]), "Demand metadata misses a second"),
    ("dmh%", 4, 100, Percent(&["demand_metadata_hits"], DEMAND_META), "Hits of demand metadata accesses"),
    (
        "dmi%",
        4,
        100,
        Percent(&["demand_metadata_iohits"], DEMAND_META),
        "Hits on what was on its way, of demand metadata accesses",
    ),
    ("dmm%", 4, 100, Percent(&["demand_metadata_misses"], DEMAND_META), "Misses of demand metadata accesses"),
    ("phit", 4, 1000, Rate(PREFETCH_HITS), "Prefetch hits a second"),
    ("pioh", 4, 1000, Rate(PREFETCH_IOHITS), "Prefetch hits a second on what was on its way"),
    ("pmis", 4, 1000, Rate(PREFETCH_MISSES), "Prefetch misses a second"),
    ("ph%", 3, 100, Percent(PREFETCH_HITS, PREFETCH), "Hits of prefetches"),
    ("pi%", 3, 100, Percent(PREFETCH_IOHITS, PREFETCH), "Hits on what was on its way, of prefetch accesses"),
    ("pm%", 3, 100, Percent(PREFETCH_MISSES, PREFETCH), "Misses of prefetches"),
    ("pdhit", 5, 1000, Rate(&["prefetch_data_hits"]), "Prefetch data hits a second"),
    ("pdioh", 5, 1000, Rate(&["prefetch_data_iohits"]), "Prefetch data hits a second on what was on its way"),
    ("pdmis", 5, 1000, Rate(&["prefetch_data_misses"]), "Prefetch data misses a second"),
    ("pdh%", 4, 100, Percent(&["prefetch_data_hits"], PREFETCH_DATA), "Hits of data prefetches"),
    (
        "pdi%",
        4,
        100,
        Percent(&["prefetch_data_iohits"], PREFETCH_DATA),
        "Hits on what was on its way, of prefetch data accesses",
    ),
    ("pdm%", 4, 100, Percent(&["prefetch_data_misses"], PREFETCH_DATA), "Misses of data prefetches"),
    ("pmhit", 5, 1000, Rate(&["prefetch_metadata_hits"]), "Prefetch metadata hits a second"),
    (
        "pmioh",
        5,
        1000,
        Rate(&["prefetch_metadata_iohits"]),
        "Prefetch metadata hits a second on what was on its way",
    ),
    ("pmmis", 5, 1000, Rate(&["prefetch_metadata_misses"]), "Prefetch metadata misses a second"),
    ("pmh%", 4, 100, Percent(&["prefetch_metadata_hits"], PREFETCH_META), "Hits of metadata prefetches"),
    (
        "pmi%",
        4,
        100,
        Percent(&["prefetch_metadata_iohits"], PREFETCH_META),
        "Hits on what was on its way, of prefetch metadata accesses",
    ),
    ("pmm%", 4, 100, Percent(&["prefetch_metadata_misses"], PREFETCH_META), "Misses of metadata prefetches"),
    ("mhit", 4, 1000, Rate(META_HITS), "Metadata hits a second"),
    ("mioh", 4, 1000, Rate(META_IOHITS), "Metadata hits a second on what was on its way"),
    ("mmis", 4, 1000, Rate(META_MISSES), "Metadata misses a second"),
    ("mread", 5, 1000, Rate(META), "Metadata accesses a second"),
    ("mh%", 3, 100, Percent(META_HITS, META), "Hits of metadata accesses"),
    ("mi%", 3, 100, Percent(META_IOHITS, META), "Hits on what was on its way, of metadata accesses"),
    ("mm%", 3, 100, Percent(META_MISSES, META), "Misses of metadata accesses"),
    ("arcsz", 5, 1024, Gauge("size"), "Size"),
    ("size", 5, 1024, Gauge("size"), "Size"),
    ("c", 5, 1024, Gauge("c"), "Target size"),
    ("mfu", 4, 1000, Rate(&["mfu_hits"]), "Hits on the frequent a second"),
    ("mru", 4, 1000, Rate(&["mru_hits"]), "Hits on the recent a second"),
    ("mfug", 4, 1000, Rate(&["mfu_ghost_hits"]), "Hits on ghosts of the frequent a second"),
    ("mrug", 4, 1000, Rate(&["mru_ghost_hits"]), "Hits on ghosts of the recent a second"),
    ("unc", 4, 1000, Rate(&["uncached_hits"]), "Hits on what is not kept a second"),
    ("eskip", 5, 1000, Rate(&["evict_skip"]), "Blocks passed over in evicting a second"),
    (
        "el2skip",
        7,
        1000,
        Rate(&["evict_l2_skip"]),
        "Blocks passed over in evicting a second, being written to a cache device",
    ),
    ("el2cach", 7, 1024, Rate(&["evict_l2_cached"]), "Bytes evicted a second that a cache device has"),
    ("el2el", 5, 1024, Rate(&["evict_l2_eligible"]), "Bytes evicted a second that a cache device might have"),
    (
        "el2mfu",
        6,
        1024,
        Rate(&["evict_l2_eligible_mfu"]),
        "Frequent bytes evicted a second that a cache device might have",
    ),
    (
        "el2mru",
        6,
        1024,
        Rate(&["evict_l2_eligible_mru"]),
        "Recent bytes evicted a second that a cache device might have",
    ),
    (
        "el2inel",
        7,
        1024,
        Rate(&["evict_l2_ineligible"]),
        "Bytes evicted a second that no cache device would have",
    ),
    ("mtxmis", 6, 1000, Rate(&["mutex_miss"]), "Locks that were not waited for a second"),
    ("dread", 5, 1000, Rate(DEMAND), "Demand accesses a second"),
    ("ddread", 6, 1000, Rate(DEMAND_DATA), "Demand data accesses a second"),
    ("dmread", 6, 1000, Rate(DEMAND_META), "Demand metadata accesses a second"),
    ("pread", 5, 1000, Rate(PREFETCH), "Prefetches a second"),
    ("pdread", 6, 1000, Rate(PREFETCH_DATA), "Data prefetches a second"),
    ("pmread", 6, 1000, Rate(PREFETCH_META), "Metadata prefetches a second"),
    ("l2hits", 6, 1000, Rate(&["l2_hits"]), "Hits on cache devices a second"),
    ("l2miss", 6, 1000, Rate(&["l2_misses"]), "Misses of cache devices a second"),
    ("l2read", 6, 1000, Rate(L2), "Accesses to cache devices a second"),
    ("l2hit%", 6, 100, Percent(&["l2_hits"], L2), "Hits of accesses to cache devices"),
    ("l2miss%", 7, 100, Percent(&["l2_misses"], L2), "Misses of accesses to cache devices"),
    ("l2pref", 6, 1024, Gauge("l2_prefetch_asize"), "Prefetched, on cache devices"),
    ("l2mfu", 5, 1024, Gauge("l2_mfu_asize"), "Frequent, on cache devices"),
    ("l2mru", 5, 1024, Gauge("l2_mru_asize"), "Recent, on cache devices"),
    ("l2data", 6, 1024, Gauge("l2_bufc_data_asize"), "Data on cache devices"),
    ("l2meta", 6, 1024, Gauge("l2_bufc_metadata_asize"), "Metadata on cache devices"),
    ("l2pref%", 7, 100, Share("l2_prefetch_asize", "l2_asize"), "Prefetched, of all on cache devices"),
    ("l2mfu%", 6, 100, Share("l2_mfu_asize", "l2_asize"), "Frequent, of all on cache devices"),
    ("l2mru%", 6, 100, Share("l2_mru_asize", "l2_asize"), "Recent, of all on cache devices"),
    ("l2data%", 7, 100, Share("l2_bufc_data_asize", "l2_asize"), "Data, of all on cache devices"),
    ("l2meta%", 7, 100, Share("l2_bufc_metadata_asize", "l2_asize"), "Metadata, of all on cache devices"),
    ("l2asize", 7, 1024, Gauge("l2_asize"), "On cache devices, compressed"),
    ("l2size", 6, 1024, Gauge("l2_size"), "On cache devices"),
    ("l2bytes", 7, 1024, Rate(&["l2_read_bytes"]), "Bytes read from cache devices a second"),
    ("l2wbytes", 8, 1024, Rate(&["l2_write_bytes"]), "Bytes written to cache devices a second"),
    ("grow", 4, 1000, Without("arc_no_grow"), "Whether the ARC may grow"),
    ("need", 5, 1024, Gauge("arc_need_free"), "Memory that the ARC has to give back"),
    ("free", 5, 1024, Gauge("memory_free_bytes"), "Memory that is free"),
    ("avail", 5, 1024, Gauge("memory_available_bytes"), "Memory that the ARC may take"),
    ("waste", 5, 1024, Gauge("abd_chunk_waste_size"), "Memory lost by rounding"),
    ("ztotal", 6, 1000, Rate(STREAMS), "Reads looked at for reading ahead a second"),
    ("zhits", 5, 1000, Rate(&["zfetch_hits"]), "Reads a second that go on where one stopped"),
    ("zahead", 6, 1000, Rate(&["zfetch_future", "zfetch_stride"]), "Reads a second further on"),
    ("zpast", 5, 1000, Rate(&["zfetch_past"]), "Reads a second further back"),
    ("zmisses", 7, 1000, Rate(&["zfetch_misses"]), "Reads a second elsewhere"),
    ("zmax", 4, 1000, Rate(&["zfetch_max_streams"]), "Streams too many a second"),
    ("zfuture", 7, 1000, Rate(&["zfetch_future"]), "Reads a second after a gap"),
    ("zstride", 7, 1000, Rate(&["zfetch_stride"]), "Reads a second after gaps of one size"),
    ("zissued", 7, 1000, Rate(&["zfetch_io_issued"]), "Blocks read ahead a second"),
    ("zactive", 7, 1000, Rate(&["zfetch_io_active"]), "Blocks being read ahead, more than before"),
    ("cmpsz", 5, 1024, Gauge("compressed_size"), "Compressed blocks"),
    ("cmpsz%", 6, 100, Share("compressed_size", "size"), "Compressed blocks, in percent"),
    ("ovhsz", 5, 1024, Gauge("overhead_size"), "Blocks ready in the dbuf cache"),
    ("ovhsz%", 6, 100, Share("overhead_size", "size"), "Blocks ready in the dbuf cache, in percent"),
    ("bonsz", 5, 1024, Gauge("bonus_size"), "Bonus buffers"),
    ("bonsz%", 6, 100, Share("bonus_size", "size"), "Bonus buffers, in percent"),
    ("dnosz", 5, 1024, Gauge("dnode_size"), "Objects"),
    ("dnosz%", 6, 100, Share("dnode_size", "size"), "Objects, in percent"),
    ("dbusz", 5, 1024, Gauge("dbuf_size"), "What describes blocks"),
    ("dbusz%", 6, 100, Share("dbuf_size", "size"), "What describes blocks, in percent"),
    ("hdrsz", 5, 1024, Gauge("hdr_size"), "Headers"),
    ("hdrsz%", 6, 100, Share("hdr_size", "size"), "Headers, in percent"),
    ("l2hsz", 5, 1024, Gauge("l2_hdr_size"), "Headers of cache devices"),
    ("l2hsz%", 6, 100, Share("l2_hdr_size", "size"), "Headers of cache devices, in percent"),
    ("abdsz", 5, 1024, Gauge("abd_chunk_waste_size"), "Lost by rounding"),
    ("abdsz%", 6, 100, Share("abd_chunk_waste_size", "size"), "Lost by rounding, in percent"),
    ("datatg", 6, 1024, Gauge("data_target"), "Data: target"),
    ("datatg%", 7, 100, Share("data_target", "caches_size"), "Data: target, in percent"),
    ("datasz", 6, 1024, Gauge("data_size"), "Data"),
    ("datasz%", 7, 100, Share("data_size", "caches_size"), "Data, in percent"),
    ("metatg", 6, 1024, Gauge("metadata_target"), "Metadata: target"),
    ("metatg%", 7, 100, Share("metadata_target", "caches_size"), "Metadata: target, in percent"),
    ("metasz", 6, 1024, Gauge("metadata_size"), "Metadata"),
    ("metasz%", 7, 100, Share("metadata_size", "caches_size"), "Metadata, in percent"),
    ("anosz", 5, 1024, Gauge("anon_size"), "Not on disk yet: bytes"),
    ("anosz%", 6, 100, Share("anon_size", "caches_size"), "Not on disk yet: bytes, in percent"),
    ("anoda", 5, 1024, Gauge("anon_data"), "Not on disk yet: data"),
    ("anoda%", 6, 100, Share("anon_data", "caches_size"), "Not on disk yet: data, in percent"),
    ("anome", 5, 1024, Gauge("anon_metadata"), "Not on disk yet: metadata"),
    ("anome%", 6, 100, Share("anon_metadata", "caches_size"), "Not on disk yet: metadata, in percent"),
    ("anoed", 5, 1024, Gauge("anon_evictable_data"), "Not on disk yet: data that can be evicted"),
    (
        "anoed%",
        6,
        100,
        Share("anon_evictable_data", "caches_size"),
        "Not on disk yet: data that can be evicted, in percent",
    ),
    ("anoem", 5, 1024, Gauge("anon_evictable_metadata"), "Not on disk yet: metadata that can be evicted"),
    (
        "anoem%",
        6,
        100,
        Share("anon_evictable_metadata", "caches_size"),
        "Not on disk yet: metadata that can be evicted, in percent",
    ),
    ("mfutg", 5, 1024, Gauge("mfu_target"), "Frequent: target"),
    ("mfutg%", 6, 100, Share("mfu_target", "caches_size"), "Frequent: target, in percent"),
    ("mfudt", 5, 1024, Gauge("mfu_data_target"), "Frequent: target of data"),
    ("mfudt%", 6, 100, Share("mfu_data_target", "caches_size"), "Frequent: target of data, in percent"),
    ("mfumt", 5, 1024, Gauge("mfu_metadata_target"), "Frequent: target of metadata"),
    (
        "mfumt%",
        6,
        100,
        Share("mfu_metadata_target", "caches_size"),
        "Frequent: target of metadata, in percent",
    ),
    ("mfusz", 5, 1024, Gauge("mfu_size"), "Frequent: bytes"),
    ("mfusz%", 6, 100, Share("mfu_size", "caches_size"), "Frequent: bytes, in percent"),
    ("mfuda", 5, 1024, Gauge("mfu_data"), "Frequent: data"),
    ("mfuda%", 6, 100, Share("mfu_data", "caches_size"), "Frequent: data, in percent"),
    ("mfume", 5, 1024, Gauge("mfu_metadata"), "Frequent: metadata"),
    ("mfume%", 6, 100, Share("mfu_metadata", "caches_size"), "Frequent: metadata, in percent"),
    ("mfued", 5, 1024, Gauge("mfu_evictable_data"), "Frequent: data that can be evicted"),
    (
        "mfued%",
        6,
        100,
        Share("mfu_evictable_data", "caches_size"),
        "Frequent: data that can be evicted, in percent",
    ),
    ("mfuem", 5, 1024, Gauge("mfu_evictable_metadata"), "Frequent: metadata that can be evicted"),
    (
        "mfuem%",
        6,
        100,
        Share("mfu_evictable_metadata", "caches_size"),
        "Frequent: metadata that can be evicted, in percent",
    ),
    ("mfugsz", 6, 1024, Gauge("mfu_ghost_size"), "Frequent: ghosts"),
    ("mfugd", 5, 1024, Gauge("mfu_ghost_data"), "Frequent: ghosts of data"),
    ("mfugm", 5, 1024, Gauge("mfu_ghost_metadata"), "Frequent: ghosts of metadata"),
    ("mrutg", 5, 1024, Gauge("mru_target"), "Recent: target"),
    ("mrutg%", 6, 100, Share("mru_target", "caches_size"), "Recent: target, in percent"),
    ("mrudt", 5, 1024, Gauge("mru_data_target"), "Recent: target of data"),
    ("mrudt%", 6, 100, Share("mru_data_target", "caches_size"), "Recent: target of data, in percent"),
    ("mrumt", 5, 1024, Gauge("mru_metadata_target"), "Recent: target of metadata"),
    ("mrumt%", 6, 100, Share("mru_metadata_target", "caches_size"), "Recent: target of metadata, in percent"),
    ("mrusz", 5, 1024, Gauge("mru_size"), "Recent: bytes"),
    ("mrusz%", 6, 100, Share("mru_size", "caches_size"), "Recent: bytes, in percent"),
    ("mruda", 5, 1024, Gauge("mru_data"), "Recent: data"),
    ("mruda%", 6, 100, Share("mru_data", "caches_size"), "Recent: data, in percent"),
    ("mrume", 5, 1024, Gauge("mru_metadata"), "Recent: metadata"),
    ("mrume%", 6, 100, Share("mru_metadata", "caches_size"), "Recent: metadata, in percent"),
    ("mrued", 5, 1024, Gauge("mru_evictable_data"), "Recent: data that can be evicted"),
    (
        "mrued%",
        6,
        100,
        Share("mru_evictable_data", "caches_size"),
        "Recent: data that can be evicted, in percent",
    ),
    ("mruem", 5, 1024, Gauge("mru_evictable_metadata"), "Recent: metadata that can be evicted"),
    (
        "mruem%",
        6,
        100,
        Share("mru_evictable_metadata", "caches_size"),
        "Recent: metadata that can be evicted, in percent",
    ),
    ("mrugsz", 6, 1024, Gauge("mru_ghost_size"), "Recent: ghosts"),
    ("mrugd", 5, 1024, Gauge("mru_ghost_data"), "Recent: ghosts of data"),
    ("mrugm", 5, 1024, Gauge("mru_ghost_metadata"), "Recent: ghosts of metadata"),
    ("uncsz", 5, 1024, Gauge("uncached_size"), "Not kept: bytes"),
    ("uncsz%", 6, 100, Share("uncached_size", "caches_size"), "Not kept: bytes, in percent"),
    ("uncda", 5, 1024, Gauge("uncached_data"), "Not kept: data"),
    ("uncda%", 6, 100, Share("uncached_data", "caches_size"), "Not kept: data, in percent"),
    ("uncme", 5, 1024, Gauge("uncached_metadata"), "Not kept: metadata"),
    ("uncme%", 6, 100, Share("uncached_metadata", "caches_size"), "Not kept: metadata, in percent"),
    ("unced", 5, 1024, Gauge("uncached_evictable_data"), "Not kept: data that can be evicted"),
    (
        "unced%",
        6,
        100,
        Share("uncached_evictable_data", "caches_size"),
        "Not kept: data that can be evicted, in percent",
    ),
    ("uncem", 5, 1024, Gauge("uncached_evictable_metadata"), "Not kept: metadata that can be evicted"),
    (
        "uncem%",
        6,
        100,
        Share("uncached_evictable_metadata", "caches_size"),
        "Not kept: metadata that can be evicted, in percent",
    ),
];

const DEFAULT: &[&str] =
    &["time", "read", "ddread", "ddh%", "dmread", "dmh%", "pread", "ph%", "size", "c", "avail"];
const EXTENDED: &[&str] =
    &["time", "mfu", "mru", "mfug", "mrug", "unc", "eskip", "mtxmis", "dread", "pread", "read"];
const AHEAD: &[&str] = &[
    "time", "ztotal", "zhits", "zahead", "zpast", "zmisses", "zmax", "zfuture", "zstride", "zissued",
    "zactive",
];
/// A heading is printed again after so many lines.
const HEADING_EVERY: u64 = 20;

const USAGE: &str =
    "Usage: arcstat [-ahpvxz] [-f fields] [-o file] [-s separator] [pool] [interval [count]]\n";

fn usage(cx: &mut Cx, requested: bool) {
    cx.put_usage(USAGE, requested);
}

/// Runs `arcstat` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla arcstat", args, usage, run)
}

struct Options {
    columns: Vec<&'static Column>,
    separator: String,
    exact: bool,
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (options, mut operands) = args::parse(&args, ":af:ho:ps:vxz", &[]);
    let mut query = ArcStatQuery::default();
    let named = |fields: &[&str]| -> Vec<String> { fields.iter().map(|f| (*f).to_owned()).collect() };
    let (mut chosen, mut file) = (Vec::new(), None);
    let mut opts = Options { columns: Vec::new(), separator: "  ".to_owned(), exact: false };
    for option in options {
        match option {
            Opt::Flag('f', list) => chosen.push(list.split(',').map(str::to_owned).collect()),
            Opt::Flag('a', _) => chosen.push(COLUMNS.iter().map(|(name, ..)| (*name).to_owned()).collect()),
            Opt::Flag('x', _) => chosen.push(named(EXTENDED)),
            Opt::Flag('z', _) => chosen.push(named(AHEAD)),
            Opt::Flag('o', path) => file = Some(path),
            Opt::Flag('s', text) => opts.separator = text,
            Opt::Flag('p', _) => opts.exact = true,
            Opt::Flag('h', _) => {
                usage(cx, true);
                return Ok(0);
            }
            Opt::Flag('v', _) => {
                cx.out.put("Field definitions are as follows:\n");
                COLUMNS.iter().for_each(|(name, .., what)| cx.out.line(format!("{name:>11} : {what}")));
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    if chosen.len() > 1 {
        return cx.bad_usage("one of -a, -f, -x and -z at a time");
    }
    for field in &chosen.pop().unwrap_or_else(|| named(DEFAULT)) {
        match COLUMNS.iter().find(|(name, ..)| name == field) {
            Some(column) => opts.columns.push(column),
            None => {
                cx.err(format!(
                    "zilla arcstat: there is no column '{field}' ('arcstat -v' lists those there are)"
                ));
                return Ok(2);
            }
        }
    }
    let mut interval = Interval::take(cx, &mut operands)?;
    if operands.len() > 1 {
        return cx.bad_usage("too many arguments");
    }
    let mut file = match file.map(|path| std::fs::File::create(&path).map_err(|e| format!("{path}: {e}"))) {
        Some(Err(e)) => {
            cx.err(format!("zilla arcstat: cannot write {e}"));
            return Ok(1);
        }
        Some(Ok(file)) => Some(file),
        None => None,
    };
    let mut put = |cx: &mut Cx, line: String| match &mut file {
        Some(file) => writeln!(file, "{line}").map_err(|e| format!("zilla arcstat: {e}")),
        None => {
            cx.out.line(line);
            Ok(())
        }
    };
    query.name = operands.pop();
    let seconds = if interval.every > 0.0 { interval.every } else { 1.0 };
    let mut before = Counts::new();
    for line in 0u64.. {
        let Some(stats) = cx.ask("cannot read statistics", &query)? else { return Ok(1) };
        let mut now = ArcStat::total(stats);
        derive(&mut now);
        let heading = line.is_multiple_of(HEADING_EVERY).then(|| heading(&opts));
        for line in heading.into_iter().chain([print(&opts, &now, &before, seconds)]) {
            if let Err(e) = put(cx, line) {
                cx.err(e);
                return Ok(1);
            }
        }
        before = now;
        if !interval.next(cx) {
            break;
        }
    }
    Ok(0)
}

fn heading(opts: &Options) -> String {
    let names: Vec<String> = opts.columns.iter().map(|(name, width, ..)| format!("{name:>width$}")).collect();
    names.join(&opts.separator)
}

/// One whole, of which `meta`, `pd` and `pm` are parts.
const WHOLE: f64 = (1u64 << 32) as f64;

/// Adds what follows from others: the targets of each list and kind, and of what they are parts.
pub fn derive(counts: &mut Counts) {
    let of = |name: &str| counts.get(name).copied().unwrap_or(0);
    let lists = ["anon", "mfu", "mru", "uncached"];
    let all: u64 = lists.iter().map(|l| of(&format!("{l}_data")) + of(&format!("{l}_metadata"))).sum();
    let [meta, pd, pm] = ["meta", "pd", "pm"].map(|name| of(name) as f64 / WHOLE);
    let (data, metadata) = (all as f64 * (1.0 - meta), all as f64 * meta);
    let targets = [
        ("caches_size", all as f64),
        ("data_target", data),
        ("metadata_target", metadata),
        ("mru_data_target", data * pd),
        ("mfu_data_target", data * (1.0 - pd)),
        ("mru_metadata_target", metadata * pm),
        ("mfu_metadata_target", metadata * (1.0 - pm)),
        ("mru_target", data * pd + metadata * pm),
        ("mfu_target", data * (1.0 - pd) + metadata * (1.0 - pm)),
    ];
    counts.extend(targets.map(|(name, n)| (name.to_owned(), n as u64)));
}

/// One line: what was added since the last one; in the first, everything.
fn print(opts: &Options, now: &Counts, before: &Counts, seconds: f64) -> String {
    let total =
        |names: Names, of: &Counts| -> u64 { names.iter().map(|n| of.get(*n).copied().unwrap_or(0)).sum() };
    let added = |names: Names| total(names, now).saturating_sub(total(names, before)) as f64;
    let gauge = |name: &str| now.get(name).copied().unwrap_or(0) as f64;
    let part = |a: f64, b: f64| if b > 0.0 { 100.0 * a / b } else { 0.0 };
    let cells = opts.columns.iter().map(|(_, width, scale, value, _)| {
        let n = match value {
            Time => return format!("{:>width$}", time::of_day(time::now())),
            Rate(names) => added(names) / seconds,
            Percent(some, all) => part(added(some), added(all)),
            Gauge(name) => gauge(name),
            Share(some, all) => part(gauge(some), gauge(all)),
            Without(name) => f64::from(u8::from(gauge(name) == 0.0)),
        };
        if opts.exact { format!("{n:>width$.0}") } else { short(n, *width, *scale) }
    });
    cells.collect::<Vec<String>>().join(&opts.separator)
}

/// A number in so many characters, with one decimal where there is room.
fn short(mut n: f64, width: usize, scale: u32) -> String {
    const SUFFIXES: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let mut index = 0;
    while scale != 100 && n > f64::from(scale) && index + 1 < SUFFIXES.len() {
        n /= f64::from(scale);
        index += 1;
    }
    let width = width - usize::from(index > 0);
    let whole = format!("{n:.0}").len();
    let decimals = usize::from(n.fract() != 0.0 && width >= whole + 2);
    format!("{n:>width$.decimals$}{}", SUFFIXES.get(index).unwrap_or(&""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_openzfs_s() {
        // As arcstat's own rules give them.
        assert_eq!(short(0.0, 4, 1000), "   0");
        assert_eq!(short(999.0, 4, 1000), " 999");
        assert_eq!(short(1500.0, 4, 1000), "1.5K");
        assert_eq!(short(33.3, 4, 100), "33.3");
        assert_eq!(short(100.0, 3, 100), "100");
        assert_eq!(short(66.6, 3, 100), " 67");
        assert_eq!(short(1.5 * 1024.0 * 1024.0, 5, 1024), " 1.5M");
    }

    #[test]
    fn a_line_says_what_was_added() {
        let columns = ["hits", "hit%", "l2hits", "l2size", "l2data%"];
        let find = |n: &&str| COLUMNS.iter().find(|(name, ..)| name == n).unwrap();
        let opts =
            Options { columns: columns.iter().map(find).collect(), separator: " ".into(), exact: true };
        let counts = |list: &[(&str, u64)]| list.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        let before: Counts = counts(&[("hits", 100), ("misses", 10), ("l2_hits", 1)]);
        let now: Counts = counts(&[
            ("hits", 300),
            ("misses", 210),
            ("l2_hits", 21),
            ("l2_size", 77),
            ("l2_asize", 50),
            ("l2_bufc_data_asize", 25),
        ]);
        let words: Vec<String> =
            print(&opts, &now, &before, 2.0).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["100", "50", "10", "77", "50"]);
    }
}
