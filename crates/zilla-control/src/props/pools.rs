//! Properties of pools.

use super::PropAttr::*;
use super::PropKind::*;
use super::{POOL, PropDesc, hidden, index, number, string};

const BOOLEAN: &[(&str, u64)] = &[("off", 0), ("on", 1)];

const FAILUREMODE: &[(&str, u64)] = &[("wait", 0), ("continue", 1), ("panic", 2)];

/// In the order of OpenZFS's own numbering, which is the order `get all` prints in.
pub static POOL_PROPS: &[PropDesc] = &[
    hidden("name", "NAME", String, ReadOnly, POOL, true),
    number("size", "SIZE", ReadOnly, POOL, "<size>", 0, false),
    number("capacity", "CAP", ReadOnly, POOL, "<percent>", 0, false),
    string("altroot", "ALTROOT", Default, POOL, "<path>", None),
    number("health", "HEALTH", ReadOnly, POOL, "<state>", 0, false),
    number("guid", "GUID", ReadOnly, POOL, "<guid>", 0, true),
    number("version", "VERSION", Default, POOL, "<version>", 5000, false),
    string("bootfs", "BOOTFS", Default, POOL, "<filesystem>", None),
    index("delegation", "DELEGATION", Default, POOL, "on | off", BOOLEAN, 1),
    index("autoreplace", "REPLACE", Default, POOL, "on | off", BOOLEAN, 0),
    string("cachefile", "CACHEFILE", Default, POOL, "<file> | none", None),
    index("failmode", "FAILMODE", Default, POOL, "wait | continue | panic", FAILUREMODE, 0),
    index("listsnapshots", "LISTSNAPS", Default, POOL, "on | off", BOOLEAN, 0),
    index("autoexpand", "EXPAND", Default, POOL, "on | off", BOOLEAN, 0),
    hidden("dedupditto", "DEDUPDITTO", Number, Default, POOL, false),
    number("dedupratio", "DEDUP", ReadOnly, POOL, "<1.00x or higher if deduped>", 0, false),
    number("free", "FREE", ReadOnly, POOL, "<size>", 0, false),
    number("allocated", "ALLOC", ReadOnly, POOL, "<size>", 0, false),
    index("readonly", "RDONLY", Default, POOL, "on | off", BOOLEAN, 0),
    number("ashift", "ASHIFT", Default, POOL, "<ashift, 9-16, or 0=default>", 0, false),
    string("comment", "COMMENT", Default, POOL, "<comment-string>", None),
    number("expandsize", "EXPANDSZ", ReadOnly, POOL, "<size>", 0, false),
    number("freeing", "FREEING", ReadOnly, POOL, "<size>", 0, false),
    number("fragmentation", "FRAG", ReadOnly, POOL, "<percent>", 0, false),
    number("leaked", "LEAKED", ReadOnly, POOL, "<size>", 0, false),
    hidden("maxblocksize", "MAXBLOCKSIZE", Number, ReadOnly, POOL, false),
    hidden("tname", "TNAME", String, SetOnce, POOL, true),
    hidden("maxdnodesize", "MAXDNODESIZE", Number, ReadOnly, POOL, false),
    index("multihost", "MULTIHOST", Default, POOL, "on | off", BOOLEAN, 0),
    number("checkpoint", "CKPOINT", ReadOnly, POOL, "<size>", 0, false),
    number("load_guid", "LOAD_GUID", ReadOnly, POOL, "<load_guid>", 0, true),
    index("autotrim", "AUTOTRIM", Default, POOL, "on | off", BOOLEAN, 0),
    string("compatibility", "COMPATIBILITY", Default, POOL, "<file[,file...]> | off | legacy", Some("off")),
    number("bcloneused", "BCLONE_USED", ReadOnly, POOL, "<size>", 0, false),
    number("bclonesaved", "BCLONE_SAVED", ReadOnly, POOL, "<size>", 0, false),
    number("bcloneratio", "BCLONE_RATIO", ReadOnly, POOL, "<1.00x or higher if cloned>", 0, false),
    number("dedup_table_size", "DDTSIZE", ReadOnly, POOL, "<size>", 0, false),
    number("dedup_table_quota", "DDTQUOTA", Default, POOL, "<size>", u64::MAX, false),
    hidden("dedupcached", "DEDUPCACHED", Number, ReadOnly, POOL, false),
    number("last_scrubbed_txg", "LAST_SCRUBBED_TXG", ReadOnly, POOL, "<txg>", 0, false),
];
