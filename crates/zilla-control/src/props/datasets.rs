//! Properties of filesystems, volumes, snapshots and bookmarks.

use super::PropAttr::*;
use super::PropKind::*;
use super::{BOOK, DATASET, FS, PropDesc, SNAP, VOL, date, hidden, index, number, string};

const BOOLEAN: &[(&str, u64)] = &[("off", 0), ("on", 1)];

const CHECKSUM: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("fletcher2", 6),
    ("fletcher4", 7),
    ("sha256", 8),
    ("noparity", 10),
    ("sha512", 11),
    ("skein", 12),
    ("edonr", 13),
    ("blake3", 14),
];

const COMPRESS: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("lzjb", 3),
    ("gzip", 10),
    ("gzip-1", 5),
    ("gzip-2", 6),
    ("gzip-3", 7),
    ("gzip-4", 8),
    ("gzip-5", 9),
    ("gzip-6", 10),
    ("gzip-7", 11),
    ("gzip-8", 12),
    ("gzip-9", 13),
    ("zle", 14),
    ("lz4", 15),
    ("zstd", 16),
    ("zstd-fast", 13200),
    ("zstd-1", 144),
    ("zstd-2", 272),
    ("zstd-3", 400),
    ("zstd-4", 528),
    ("zstd-5", 656),
    ("zstd-6", 784),
    ("zstd-7", 912),
    ("zstd-8", 1040),
    ("zstd-9", 1168),
    ("zstd-10", 1296),
    ("zstd-11", 1424),
    ("zstd-12", 1552),
    ("zstd-13", 1680),
    ("zstd-14", 1808),
    ("zstd-15", 1936),
    ("zstd-16", 2064),
    ("zstd-17", 2192),
    ("zstd-18", 2320),
    ("zstd-19", 2448),
    ("zstd-fast-1", 13200),
    ("zstd-fast-2", 13328),
    ("zstd-fast-3", 13456),
    ("zstd-fast-4", 13584),
    ("zstd-fast-5", 13712),
    ("zstd-fast-6", 13840),
    ("zstd-fast-7", 13968),
    ("zstd-fast-8", 14096),
    ("zstd-fast-9", 14224),
    ("zstd-fast-10", 14352),
    ("zstd-fast-20", 14480),
    ("zstd-fast-30", 14608),
    ("zstd-fast-40", 14736),
    ("zstd-fast-50", 14864),
    ("zstd-fast-60", 14992),
    ("zstd-fast-70", 15120),
    ("zstd-fast-80", 15248),
    ("zstd-fast-90", 15376),
    ("zstd-fast-100", 15504),
    ("zstd-fast-500", 15632),
    ("zstd-fast-1000", 15760),
];

const SNAPDIR: &[(&str, u64)] = &[("hidden", 0), ("visible", 1), ("disabled", 2)];

const ACL_MODE: &[(&str, u64)] = &[("discard", 0), ("groupmask", 2), ("passthrough", 3), ("restricted", 4)];

const ACL_INHERIT: &[(&str, u64)] = &[
    ("discard", 0),
    ("noallow", 1),
    ("restricted", 4),
    ("passthrough", 3),
    ("secure", 4),
    ("passthrough-x", 5),
];

const CANMOUNT: &[(&str, u64)] = &[("off", 0), ("on", 1), ("noauto", 2)];

const XATTR: &[(&str, u64)] = &[("off", 0), ("on", 2), ("sa", 2), ("dir", 1)];

const COPIES: &[(&str, u64)] = &[("1", 1), ("2", 2), ("3", 3)];

const VERSION: &[(&str, u64)] = &[("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 5), ("current", 5)];

const NORMALIZE: &[(&str, u64)] =
    &[("none", 0), ("formD", 16), ("formKC", 96), ("formC", 80), ("formKD", 32)];

const CASE: &[(&str, u64)] = &[("sensitive", 0), ("insensitive", 1), ("mixed", 2)];

const CACHE: &[(&str, u64)] = &[("none", 0), ("metadata", 1), ("all", 2)];

const LOGBIAS: &[(&str, u64)] = &[("latency", 0), ("throughput", 1)];

const DEDUP: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("verify", 257),
    ("sha256", 8),
    ("sha256,verify", 264),
    ("sha512", 11),
    ("sha512,verify", 267),
    ("skein", 12),
    ("skein,verify", 268),
    ("edonr,verify", 269),
    ("blake3", 14),
    ("blake3,verify", 270),
];

const SYNC: &[(&str, u64)] = &[("standard", 0), ("always", 1), ("disabled", 2)];

const DNSIZE: &[(&str, u64)] =
    &[("legacy", 0), ("auto", 1), ("1k", 1024), ("2k", 2048), ("4k", 4096), ("8k", 8192), ("16k", 16384)];

const VOLMODE: &[(&str, u64)] = &[("default", 0), ("full", 1), ("geom", 1), ("dev", 2), ("none", 3)];

const SNAPDEV: &[(&str, u64)] = &[("hidden", 0), ("visible", 1)];

const ACLTYPE: &[(&str, u64)] =
    &[("off", 0), ("posix", 1), ("nfsv4", 2), ("disabled", 0), ("noacl", 0), ("posixacl", 1)];

const REDUNDANT_METADATA: &[(&str, u64)] = &[("all", 0), ("most", 1), ("some", 2), ("none", 3)];

const CRYPTO: &[(&str, u64)] = &[
    ("on", 1),
    ("off", 2),
    ("aes-128-ccm", 3),
    ("aes-192-ccm", 4),
    ("aes-256-ccm", 5),
    ("aes-128-gcm", 6),
    ("aes-192-gcm", 7),
    ("aes-256-gcm", 8),
];

const KEYFORMAT: &[(&str, u64)] = &[("none", 0), ("raw", 1), ("hex", 2), ("passphrase", 3)];

const KEYSTATUS: &[(&str, u64)] = &[("none", 0), ("unavailable", 1), ("available", 2)];

const PREFETCH: &[(&str, u64)] = &[("none", 0), ("metadata", 1), ("all", 2)];

const DIRECT: &[(&str, u64)] = &[("disabled", 0), ("standard", 1), ("always", 2)];

/// In the order of OpenZFS's own numbering, which is the order `get all` prints in.
pub static DATASET_PROPS: &[PropDesc] = &[
    string("type", "TYPE", ReadOnly, DATASET | BOOK, "filesystem | volume | snapshot | bookmark", None),
    date("creation", "CREATION", ReadOnly, DATASET | BOOK, "<date>"),
    number("used", "USED", ReadOnly, DATASET, "<size>", 0, false),
    number("available", "AVAIL", ReadOnly, FS | VOL, "<size>", 0, false),
    number("referenced", "REFER", ReadOnly, DATASET | BOOK, "<size>", 0, false),
    number("compressratio", "RATIO", ReadOnly, DATASET | BOOK, "<1.00x or higher if compressed>", 0, false),
    index("mounted", "MOUNTED", ReadOnly, FS, "yes | no", BOOLEAN, 0),
    string("origin", "ORIGIN", ReadOnly, FS | VOL, "<snapshot>", None),
    number("quota", "QUOTA", Default, FS, "<size> | none", 0, false),
    number("reservation", "RESERV", Default, FS | VOL, "<size> | none", 0, false),
    number("volsize", "VOLSIZE", Default, SNAP | VOL, "<size>", 0, false),
    number("volblocksize", "VOLBLOCK", SetOnce, VOL, "512 to 128k, power of 2", 16384, false),
    number("recordsize", "RECSIZE", Inherit, FS, "512 to 1M, power of 2", 131_072, false),
    string("mountpoint", "MOUNTPOINT", Inherit, FS, "<path> | legacy | none", Some("/")),
    string("sharenfs", "SHARENFS", Inherit, FS, "on | off | NFS share options", Some("off")),
    index(
        "checksum",
        "CHECKSUM",
        Inherit,
        FS | VOL,
        "on | off | fletcher2 | fletcher4 | sha256 | sha512 | skein | edonr | blake3",
        CHECKSUM,
        1,
    ),
    index(
        "compression",
        "COMPRESS",
        Inherit,
        FS | VOL,
        "on | off | lzjb | gzip | gzip-[1-9] | zle | lz4 | zstd | zstd-[1-19] | zstd-fast | zstd-fast-[1-10,20,30,40,50,60,70,80,90,100,500,1000]",
        COMPRESS,
        1,
    ),
    index("atime", "ATIME", Inherit, FS, "on | off", BOOLEAN, 1),
    index("devices", "DEVICES", Inherit, FS | SNAP, "on | off", BOOLEAN, 1),
    index("exec", "EXEC", Inherit, FS | SNAP, "on | off", BOOLEAN, 1),
    index("setuid", "SETUID", Inherit, FS | SNAP, "on | off", BOOLEAN, 1),
    index("readonly", "RDONLY", Inherit, FS | VOL, "on | off", BOOLEAN, 0),
    index("zoned", "ZONED", Inherit, FS, "on | off", BOOLEAN, 0),
    index("snapdir", "SNAPDIR", Inherit, FS, "disabled | hidden | visible", SNAPDIR, 0),
    index("aclmode", "ACLMODE", Inherit, FS, "discard | groupmask | passthrough | restricted", ACL_MODE, 0),
    index(
        "aclinherit",
        "ACLINHERIT",
        Inherit,
        FS,
        "discard | noallow | restricted | passthrough | passthrough-x",
        ACL_INHERIT,
        4,
    ),
    number("createtxg", "CREATETXG", ReadOnly, DATASET | BOOK, "<uint64>", 0, true),
    hidden("name", "NAME", String, ReadOnly, DATASET | BOOK, true),
    index("canmount", "CANMOUNT", Default, FS, "on | off | noauto", CANMOUNT, 1),
    hidden("iscsioptions", "ISCSIOPTIONS", String, Inherit, VOL, true),
    index("xattr", "XATTR", Inherit, FS | SNAP, "on | off | dir | sa", XATTR, 2),
    hidden("numclones", "NUMCLONES", Number, ReadOnly, SNAP, false),
    index("copies", "COPIES", Inherit, FS | VOL, "1 | 2 | 3", COPIES, 1),
    index("version", "VERSION", Default, FS | SNAP, "1 | 2 | 3 | 4 | 5 | current", VERSION, 0),
    index("utf8only", "UTF8ONLY", SetOnce, FS | SNAP, "on | off", BOOLEAN, 0),
    index(
        "normalization",
        "NORMALIZATION",
        SetOnce,
        FS | SNAP,
        "none | formC | formD | formKC | formKD",
        NORMALIZE,
        0,
    ),
    index("casesensitivity", "CASE", SetOnce, FS | SNAP, "sensitive | insensitive | mixed", CASE, 0),
    index("vscan", "VSCAN", Inherit, FS, "on | off", BOOLEAN, 0),
    index("nbmand", "NBMAND", Inherit, FS | SNAP, "on | off", BOOLEAN, 0),
    string("sharesmb", "SHARESMB", Inherit, FS, "on | off | SMB share options", Some("off")),
    number("refquota", "REFQUOTA", Default, FS, "<size> | none", 0, false),
    number("refreservation", "REFRESERV", Default, FS | VOL, "<size> | none", 0, false),
    number("guid", "GUID", ReadOnly, DATASET | BOOK, "<uint64>", 0, true),
    index("primarycache", "PRIMARYCACHE", Inherit, FS | SNAP | VOL, "all | none | metadata", CACHE, 2),
    index("secondarycache", "SECONDARYCACHE", Inherit, FS | SNAP | VOL, "all | none | metadata", CACHE, 2),
    number("usedbysnapshots", "USEDSNAP", ReadOnly, FS | VOL, "<size>", 0, false),
    number("usedbydataset", "USEDDS", ReadOnly, FS | VOL, "<size>", 0, false),
    number("usedbychildren", "USEDCHILD", ReadOnly, FS | VOL, "<size>", 0, false),
    number("usedbyrefreservation", "USEDREFRESERV", ReadOnly, FS | VOL, "<size>", 0, false),
    hidden("useraccounting", "USERACCOUNTING", Number, ReadOnly, DATASET, false),
    hidden("stmf_sbd_lu", "STMF_SBD_LU", String, Inherit, VOL, true),
    index("defer_destroy", "DEFER_DESTROY", ReadOnly, SNAP, "yes | no", BOOLEAN, 0),
    number("userrefs", "USERREFS", ReadOnly, SNAP, "<count>", 0, false),
    index("logbias", "LOGBIAS", Inherit, FS | VOL, "latency | throughput", LOGBIAS, 0),
    hidden("unique", "UNIQUE", Number, ReadOnly, DATASET, false),
    number("objsetid", "OBJSETID", ReadOnly, DATASET, "<uint64>", 0, true),
    index(
        "dedup",
        "DEDUP",
        Inherit,
        FS | VOL,
        "on | off | verify | sha256[,verify] | sha512[,verify] | skein[,verify] | edonr,verify | blake3[,verify]",
        DEDUP,
        2,
    ),
    string("mlslabel", "MLSLABEL", Inherit, DATASET, "<sensitivity label>", Some("none")),
    index("sync", "SYNC", Inherit, FS | VOL, "standard | always | disabled", SYNC, 0),
    index("dnodesize", "DNSIZE", Inherit, FS, "legacy | auto | 1k | 2k | 4k | 8k | 16k", DNSIZE, 0),
    number("refcompressratio", "REFRATIO", ReadOnly, DATASET, "<1.00x or higher if compressed>", 0, false),
    number("written", "WRITTEN", ReadOnly, DATASET, "<size>", 0, false),
    string("clones", "CLONES", ReadOnly, SNAP, "<dataset>[,...]", None),
    number("logicalused", "LUSED", ReadOnly, FS | VOL, "<size>", 0, false),
    number("logicalreferenced", "LREFER", ReadOnly, DATASET | BOOK, "<size>", 0, false),
    hidden("inconsistent", "INCONSISTENT", Number, ReadOnly, DATASET, false),
    index("volmode", "VOLMODE", Inherit, FS | VOL, "default | full | geom | dev | none", VOLMODE, 0),
    number("filesystem_limit", "FSLIMIT", Default, FS, "<count> | none", u64::MAX, false),
    number("snapshot_limit", "SSLIMIT", Default, FS | VOL, "<count> | none", u64::MAX, false),
    number("filesystem_count", "FSCOUNT", ReadOnly, FS, "<count>", u64::MAX, false),
    number("snapshot_count", "SSCOUNT", ReadOnly, FS | VOL, "<count>", u64::MAX, false),
    index("snapdev", "SNAPDEV", Inherit, FS | VOL, "hidden | visible", SNAPDEV, 0),
    index("acltype", "ACLTYPE", Inherit, FS | SNAP, "off | nfsv4 | posix", ACLTYPE, 0),
    string("context", "CONTEXT", Default, DATASET, "<selinux context>", Some("none")),
    string("fscontext", "FSCONTEXT", Default, DATASET, "<selinux fscontext>", Some("none")),
    string("defcontext", "DEFCONTEXT", Default, DATASET, "<selinux defcontext>", Some("none")),
    string("rootcontext", "ROOTCONTEXT", Default, DATASET, "<selinux rootcontext>", Some("none")),
    index("relatime", "RELATIME", Inherit, FS, "on | off", BOOLEAN, 1),
    index(
        "redundant_metadata",
        "REDUND_MD",
        Inherit,
        FS | VOL,
        "all | most | some | none",
        REDUNDANT_METADATA,
        0,
    ),
    index("overlay", "OVERLAY", Inherit, FS, "on | off", BOOLEAN, 1),
    hidden("prevsnap", "PREVSNAP", String, ReadOnly, FS | VOL, true),
    string("receive_resume_token", "RESUMETOK", ReadOnly, FS | VOL, "<string token>", None),
    index(
        "encryption",
        "ENCRYPTION",
        SetOnce,
        DATASET,
        "on | off | aes-128-ccm | aes-192-ccm | aes-256-ccm | aes-128-gcm | aes-192-gcm | aes-256-gcm",
        CRYPTO,
        2,
    ),
    string(
        "keylocation",
        "KEYLOCATION",
        Default,
        FS | VOL,
        "prompt | <file URI> | <https URL> | <http URL>",
        Some("none"),
    ),
    index("keyformat", "KEYFORMAT", SetOnceDefault, FS | VOL, "none | raw | hex | passphrase", KEYFORMAT, 0),
    hidden("pbkdf2salt", "PBKDF2SALT", Number, SetOnceDefault, FS | VOL, false),
    number("pbkdf2iters", "PBKDF2ITERS", SetOnceDefault, FS | VOL, "<iters>", 0, true),
    string("encryptionroot", "ENCROOT", ReadOnly, DATASET, "<filesystem | volume>", None),
    hidden("keyguid", "KEYGUID", Number, ReadOnly, DATASET, true),
    index("keystatus", "KEYSTATUS", ReadOnly, DATASET, "none | unavailable | available", KEYSTATUS, 0),
    hidden("remaptxg", "REMAPTXG", Number, ReadOnly, DATASET, false),
    number(
        "special_small_blocks",
        "SPECIAL_SMALL_BLOCKS",
        Inherit,
        FS,
        "zero or 512 to 1M, power of 2",
        0,
        false,
    ),
    hidden("ivsetguid", "IVSETGUID", Number, ReadOnly, DATASET | BOOK, true),
    hidden("redacted", "REDACTED", Number, ReadOnly, DATASET, false),
    string("redact_snaps", "RSNAPS", ReadOnly, DATASET | BOOK, "<snapshot>[,...]", None),
    date("snapshots_changed", "SNAPSHOTS_CHANGED", ReadOnly, FS | VOL, "<date>"),
    index("prefetch", "PREFETCH", Inherit, FS | SNAP | VOL, "none | metadata | all", PREFETCH, 2),
    index("volthreading", "zvol threading", Default, VOL, "on | off", BOOLEAN, 1),
    index("direct", "DIRECT", Inherit, FS, "disabled | standard | always", DIRECT, 1),
    index("longname", "LONGNAME", Inherit, FS, "on | off", BOOLEAN, 0),
];
