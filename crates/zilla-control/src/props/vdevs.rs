//! Properties of vdevs.

use super::PropAttr::*;
use super::PropKind::*;
use super::{PropDesc, VDEV, hidden, index, number, string};

const BOOLEAN: &[(&str, u64)] = &[("off", 0), ("on", 1)];

const BOOLEAN_NA: &[(&str, u64)] = &[("off", 0), ("on", 1), ("-", 2)];

/// In the order of OpenZFS's own numbering, which is the order `get all` prints in.
pub static VDEV_PROPS: &[PropDesc] = &[
    hidden("name", "NAME", String, ReadOnly, VDEV, true),
    number("capacity", "CAP", ReadOnly, VDEV, "<size>", 0, false),
    number("state", "STATE", ReadOnly, VDEV, "<state>", 0, false),
    number("guid", "GUID", ReadOnly, VDEV, "<guid>", 0, true),
    number("asize", "ASIZE", ReadOnly, VDEV, "<asize>", 0, false),
    number("psize", "PSIZE", ReadOnly, VDEV, "<psize>", 0, false),
    number("ashift", "ASHIFT", ReadOnly, VDEV, "<ashift>", 0, false),
    number("size", "SIZE", ReadOnly, VDEV, "<size>", 0, false),
    number("free", "FREE", ReadOnly, VDEV, "<size>", 0, false),
    number("allocated", "ALLOC", ReadOnly, VDEV, "<size>", 0, false),
    string("comment", "COMMENT", Default, VDEV, "<comment-string>", None),
    number("expandsize", "EXPANDSZ", ReadOnly, VDEV, "<size>", 0, false),
    number("fragmentation", "FRAG", ReadOnly, VDEV, "<percent>", 0, false),
    number("bootsize", "BOOTSIZE", ReadOnly, VDEV, "<size>", 0, false),
    number("parity", "PARITY", ReadOnly, VDEV, "<parity>", 0, false),
    string("path", "PATH", Default, VDEV, "<device-path>", None),
    string("devid", "DEVID", ReadOnly, VDEV, "<devid>", None),
    string("physpath", "PHYSPATH", ReadOnly, VDEV, "<physpath>", None),
    string("encpath", "ENCPATH", ReadOnly, VDEV, "<encpath>", None),
    string("fru", "FRU", ReadOnly, VDEV, "<fru>", None),
    string("parent", "PARENT", ReadOnly, VDEV, "<parent>", None),
    string("children", "CHILDREN", ReadOnly, VDEV, "<child[,...]>", None),
    number("numchildren", "NUMCHILD", ReadOnly, VDEV, "<number-of-children>", 0, false),
    number("read_errors", "RDERR", ReadOnly, VDEV, "<errors>", 0, false),
    number("write_errors", "WRERR", ReadOnly, VDEV, "<errors>", 0, false),
    number("checksum_errors", "CKERR", ReadOnly, VDEV, "<errors>", 0, false),
    number("initialize_errors", "INITERR", ReadOnly, VDEV, "<errors>", 0, false),
    number("null_ops", "NULLOP", ReadOnly, VDEV, "<operations>", 0, false),
    number("read_ops", "READOP", ReadOnly, VDEV, "<operations>", 0, false),
    number("write_ops", "WRITEOP", ReadOnly, VDEV, "<operations>", 0, false),
    number("free_ops", "FREEOP", ReadOnly, VDEV, "<operations>", 0, false),
    number("claim_ops", "CLAIMOP", ReadOnly, VDEV, "<operations>", 0, false),
    number("trim_ops", "TRIMOP", ReadOnly, VDEV, "<operations>", 0, false),
    number("null_bytes", "NULLBYTE", ReadOnly, VDEV, "<bytes>", 0, false),
    number("read_bytes", "READBYTE", ReadOnly, VDEV, "<bytes>", 0, false),
    number("write_bytes", "WRITEBYTE", ReadOnly, VDEV, "<bytes>", 0, false),
    number("free_bytes", "FREEBYTE", ReadOnly, VDEV, "<bytes>", 0, false),
    number("claim_bytes", "CLAIMBYTE", ReadOnly, VDEV, "<bytes>", 0, false),
    number("trim_bytes", "TRIMBYTE", ReadOnly, VDEV, "<bytes>", 0, false),
    index("removing", "REMOVING", ReadOnly, VDEV, "on | off", BOOLEAN, 0),
    index("allocating", "ALLOCATING", Default, VDEV, "on | off", BOOLEAN_NA, 1),
    index("failfast", "FAILFAST", Default, VDEV, "on | off", BOOLEAN, 1),
    number("checksum_n", "CKSUM_N", Default, VDEV, "<events>", u64::MAX, false),
    number("checksum_t", "CKSUM_T", Default, VDEV, "<seconds>", u64::MAX, false),
    number("io_n", "IO_N", Default, VDEV, "<events>", u64::MAX, false),
    number("io_t", "IO_T", Default, VDEV, "<seconds>", u64::MAX, false),
    index("raidz_expanding", "RAIDZ_EXPANDING", ReadOnly, VDEV, "on | off", BOOLEAN, 0),
    number("slow_io_n", "SLOW_IO_N", Default, VDEV, "<events>", u64::MAX, false),
    number("slow_io_t", "SLOW_IO_T", Default, VDEV, "<seconds>", u64::MAX, false),
    index("trim_support", "TRIMSUP", ReadOnly, VDEV, "on | off", BOOLEAN, 0),
    number("trim_errors", "TRIMERR", ReadOnly, VDEV, "<errors>", 0, false),
    number("slow_ios", "SLOW", ReadOnly, VDEV, "<slowios>", 0, false),
];
