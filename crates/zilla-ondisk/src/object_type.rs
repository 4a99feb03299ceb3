//! What a DMU object holds. The old types are a table; a new type is a number that says its own
//! properties.

use crate::order::ByteOrder;

/// Everything about a type that is fixed by the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectType {
    pub number: u8,
    pub name: &'static str,
    pub byteswap: ByteswapClass,
    pub metadata: bool,
    /// The contents are encrypted in an encrypted dataset.
    pub encrypted: bool,
}

/// How the bytes of an object are brought from one byte order to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ByteswapClass {
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Zap,
    Dnode,
    Objset,
    Znode,
    OldAcl,
    Acl,
}

use ByteswapClass as B;

impl ByteswapClass {
    pub const fn from_number(n: u8) -> Option<ByteswapClass> {
        Some(match n {
            0 => B::Uint8,
            1 => B::Uint16,
            2 => B::Uint32,
            3 => B::Uint64,
            4 => B::Zap,
            5 => B::Dnode,
            6 => B::Objset,
            7 => B::Znode,
            8 => B::OldAcl,
            9 => B::Acl,
            _ => return None,
        })
    }

    pub const fn name(self) -> &'static str {
        match self {
            B::Uint8 => "uint8",
            B::Uint16 => "uint16",
            B::Uint32 => "uint32",
            B::Uint64 => "uint64",
            B::Zap => "zap",
            B::Dnode => "dnode",
            B::Objset => "objset",
            B::Znode => "znode",
            B::OldAcl => "oldacl",
            B::Acl => "acl",
        }
    }
}

pub const DMU_OT_NEWTYPE: u8 = 0x80;
pub const DMU_OT_METADATA: u8 = 0x40;
pub const DMU_OT_ENCRYPTED: u8 = 0x20;
pub const DMU_OT_BYTESWAP_MASK: u8 = 0x1f;

macro_rules! types {
    ($($id:ident $n:literal $class:ident $meta:literal $enc:literal $name:literal;)*) => {
        $( pub const $id: u8 = $n; )*
        /// The old types, by number.
        pub const DMU_OT: [ObjectType; 54] = [
            $( ObjectType { number: $n, name: $name, byteswap: B::$class, metadata: $meta == 1, encrypted: $enc == 1 }, )*
        ];
    };
}

types! {
    DMU_OT_NONE 0 Uint8 1 0 "unallocated";
    DMU_OT_OBJECT_DIRECTORY 1 Zap 1 0 "object directory";
    DMU_OT_OBJECT_ARRAY 2 Uint64 1 0 "object array";
    DMU_OT_PACKED_NVLIST 3 Uint8 1 0 "packed nvlist";
    DMU_OT_PACKED_NVLIST_SIZE 4 Uint64 1 0 "packed nvlist size";
    DMU_OT_BPOBJ 5 Uint64 1 0 "bpobj";
    DMU_OT_BPOBJ_HDR 6 Uint64 1 0 "bpobj header";
    DMU_OT_SPACE_MAP_HEADER 7 Uint64 1 0 "SPA space map header";
    DMU_OT_SPACE_MAP 8 Uint64 1 0 "SPA space map";
    DMU_OT_INTENT_LOG 9 Uint64 1 1 "ZIL intent log";
    DMU_OT_DNODE 10 Dnode 1 1 "DMU dnode";
    DMU_OT_OBJSET 11 Objset 1 0 "DMU objset";
    DMU_OT_DSL_DIR 12 Uint64 1 0 "DSL directory";
    DMU_OT_DSL_DIR_CHILD_MAP 13 Zap 1 0 "DSL directory child map";
    DMU_OT_DSL_DS_SNAP_MAP 14 Zap 1 0 "DSL dataset snap map";
    DMU_OT_DSL_PROPS 15 Zap 1 0 "DSL props";
    DMU_OT_DSL_DATASET 16 Uint64 1 0 "DSL dataset";
    DMU_OT_ZNODE 17 Znode 1 0 "ZFS znode";
    DMU_OT_OLDACL 18 OldAcl 1 1 "ZFS V0 ACL";
    DMU_OT_PLAIN_FILE_CONTENTS 19 Uint8 0 1 "ZFS plain file";
    DMU_OT_DIRECTORY_CONTENTS 20 Zap 1 1 "ZFS directory";
    DMU_OT_MASTER_NODE 21 Zap 1 0 "ZFS master node";
    DMU_OT_UNLINKED_SET 22 Zap 1 1 "ZFS delete queue";
    DMU_OT_ZVOL 23 Uint8 0 1 "zvol object";
    DMU_OT_ZVOL_PROP 24 Zap 1 0 "zvol prop";
    DMU_OT_PLAIN_OTHER 25 Uint8 0 1 "other uint8[]";
    DMU_OT_UINT64_OTHER 26 Uint64 0 1 "other uint64[]";
    DMU_OT_ZAP_OTHER 27 Zap 1 0 "other ZAP";
    DMU_OT_ERROR_LOG 28 Zap 1 0 "persistent error log";
    DMU_OT_SPA_HISTORY 29 Uint8 1 0 "SPA history";
    DMU_OT_SPA_HISTORY_OFFSETS 30 Uint64 1 0 "SPA history offsets";
    DMU_OT_POOL_PROPS 31 Zap 1 0 "Pool properties";
    DMU_OT_DSL_PERMS 32 Zap 1 0 "DSL permissions";
    DMU_OT_ACL 33 Acl 1 1 "ZFS ACL";
    DMU_OT_SYSACL 34 Uint8 1 1 "ZFS SYSACL";
    DMU_OT_FUID 35 Uint8 1 1 "FUID table";
    DMU_OT_FUID_SIZE 36 Uint64 1 0 "FUID table size";
    DMU_OT_NEXT_CLONES 37 Zap 1 0 "DSL dataset next clones";
    DMU_OT_SCAN_QUEUE 38 Zap 1 0 "scan work queue";
    DMU_OT_USERGROUP_USED 39 Zap 1 1 "ZFS user/group/project used";
    DMU_OT_USERGROUP_QUOTA 40 Zap 1 1 "ZFS user/group/project quota";
    DMU_OT_USERREFS 41 Zap 1 0 "snapshot refcount tags";
    DMU_OT_DDT_ZAP 42 Zap 1 0 "DDT ZAP algorithm";
    DMU_OT_DDT_STATS 43 Zap 1 0 "DDT statistics";
    DMU_OT_SA 44 Uint8 1 1 "System attributes";
    DMU_OT_SA_MASTER_NODE 45 Zap 1 1 "SA master node";
    DMU_OT_SA_ATTR_REGISTRATION 46 Zap 1 1 "SA attr registration";
    DMU_OT_SA_ATTR_LAYOUTS 47 Zap 1 1 "SA attr layouts";
    DMU_OT_SCAN_XLATE 48 Zap 1 0 "scan translations";
    DMU_OT_DEDUP 49 Uint8 0 1 "deduplicated block";
    DMU_OT_DEADLIST 50 Zap 1 0 "DSL deadlist map";
    DMU_OT_DEADLIST_HDR 51 Uint64 1 0 "DSL deadlist map hdr";
    DMU_OT_DSL_CLONES 52 Zap 1 0 "DSL dir clones";
    DMU_OT_BPOBJ_SUBOBJ 53 Uint64 1 0 "bpobj subobj";
}

pub const DMU_OT_NUMTYPES: u8 = 54;

/// The number of a new type of these properties.
pub const fn otn(class: ByteswapClass, metadata: bool, encrypted: bool) -> u8 {
    DMU_OT_NEWTYPE
        | if metadata { DMU_OT_METADATA } else { 0 }
        | if encrypted { DMU_OT_ENCRYPTED } else { 0 }
        | class as u8
}

pub const DMU_OTN_UINT8_DATA: u8 = otn(B::Uint8, false, false);
pub const DMU_OTN_UINT8_METADATA: u8 = otn(B::Uint8, true, false);
pub const DMU_OTN_UINT64_DATA: u8 = otn(B::Uint64, false, false);
pub const DMU_OTN_UINT32_METADATA: u8 = otn(B::Uint32, true, false);
pub const DMU_OTN_UINT64_METADATA: u8 = otn(B::Uint64, true, false);
pub const DMU_OTN_ZAP_DATA: u8 = otn(B::Zap, false, false);
pub const DMU_OTN_ZAP_METADATA: u8 = otn(B::Zap, true, false);

/// Types with a name of their own that are numbers of the new kind.
pub const DMU_OT_DSL_CRYPTO_KEY: u8 = DMU_OTN_ZAP_METADATA;
pub const DMU_OT_DSL_DIR_ZAP: u8 = DMU_OTN_ZAP_METADATA;
pub const DMU_OT_DSL_DS_ZAP: u8 = DMU_OTN_ZAP_METADATA;

pub const fn is_valid(ot: u8) -> bool {
    if ot & DMU_OT_NEWTYPE != 0 {
        ByteswapClass::from_number(ot & DMU_OT_BYTESWAP_MASK).is_some()
    } else {
        ot < DMU_OT_NUMTYPES
    }
}

fn old(ot: u8) -> Option<&'static ObjectType> {
    const TABLE: &[ObjectType; 54] = &DMU_OT;
    TABLE.get(usize::from(ot))
}

/// Metadata is kept in more copies, and longer in caches. An invalid type counts as metadata, for
/// caution.
pub fn is_metadata(ot: u8) -> bool {
    if ot & DMU_OT_NEWTYPE != 0 { ot & DMU_OT_METADATA != 0 } else { old(ot).is_none_or(|t| t.metadata) }
}

/// Contents of files, to which `special_small_blocks` applies. Source: `DMU_OT_IS_FILE` in
/// sys/dmu.h.
pub fn is_file(ot: u8) -> bool {
    matches!(ot, DMU_OT_PLAIN_FILE_CONTENTS | DMU_OT_UINT64_OTHER)
}

pub fn is_encrypted(ot: u8) -> bool {
    if ot & DMU_OT_NEWTYPE != 0 { ot & DMU_OT_ENCRYPTED != 0 } else { old(ot).is_some_and(|t| t.encrypted) }
}

/// How an object of the type is byteswapped; an invalid type not at all.
pub fn byteswap_class(ot: u8) -> ByteswapClass {
    if ot & DMU_OT_NEWTYPE != 0 {
        ByteswapClass::from_number(ot & DMU_OT_BYTESWAP_MASK).unwrap_or(B::Uint8)
    } else {
        old(ot).map_or(B::Uint8, |t| t.byteswap)
    }
}

/// Its level-0 pointers count something other than one in fill, so its blocks are never embedded.
pub const fn has_fill(ot: u8) -> bool {
    matches!(ot, DMU_OT_DNODE | DMU_OT_OBJSET)
}

pub fn is_zap(ot: u8) -> bool {
    byteswap_class(ot) == B::Zap
}

/// Metadata without which much else is lost, kept in one copy more (`redundant_metadata=some`).
pub fn is_critical(ot: u8, level: u8) -> bool {
    is_metadata(ot)
        && (ot != DMU_OT_DNODE || level > 0)
        && !matches!(ot, DMU_OT_DIRECTORY_CONTENTS | DMU_OT_SA)
}

/// The name zdb prints.
pub fn name(ot: u8) -> &'static str {
    if let Some(t) = old(ot).filter(|_| ot & DMU_OT_NEWTYPE == 0) {
        return t.name;
    }
    let class = ByteswapClass::from_number(ot & DMU_OT_BYTESWAP_MASK);
    let data = match class {
        Some(_) if ot & DMU_OT_NEWTYPE == 0 => return "invalid type",
        Some(B::Uint8) => ["bswap uint8 data", "bswap uint8 metadata"],
        Some(B::Uint16) => ["bswap uint16 data", "bswap uint16 metadata"],
        Some(B::Uint32) => ["bswap uint32 data", "bswap uint32 metadata"],
        Some(B::Uint64) => ["bswap uint64 data", "bswap uint64 metadata"],
        Some(B::Zap) => ["bswap zap data", "bswap zap metadata"],
        Some(B::Dnode) => ["bswap dnode data", "bswap dnode metadata"],
        Some(B::Objset) => ["bswap objset data", "bswap objset metadata"],
        Some(B::Znode) => ["bswap znode data", "bswap znode metadata"],
        Some(B::OldAcl) => ["bswap oldacl data", "bswap oldacl metadata"],
        Some(B::Acl) => ["bswap acl data", "bswap acl metadata"],
        None => return "invalid type",
    };
    let [plain, meta] = data;
    if ot & DMU_OT_METADATA != 0 { meta } else { plain }
}

/// Swaps the bytes of an array of numbers. The classes that are structures are read in their own
/// order by their own parsers and left alone here.
pub fn byteswap(class: ByteswapClass, buf: &mut [u8]) {
    match class {
        B::Uint16 => buf.as_chunks_mut::<2>().0.iter_mut().for_each(|c| c.reverse()),
        B::Uint32 => buf.as_chunks_mut::<4>().0.iter_mut().for_each(|c| c.reverse()),
        B::Uint64 => buf.as_chunks_mut::<8>().0.iter_mut().for_each(|c| c.reverse()),
        B::Uint8 | B::Zap | B::Dnode | B::Objset | B::Znode | B::OldAcl | B::Acl => {}
    }
}

/// Reads a block of numbers of 64 bits.
pub fn u64s(buf: &[u8], order: ByteOrder) -> impl ExactSizeIterator<Item = u64> + '_ {
    buf.as_chunks::<8>().0.iter().map(move |c| order.u64(*c))
}
