//! Numbers that the format, and the tools' output, give names to.

macro_rules! named {
    ($(#[$m:meta])* $name:ident: $repr:ident { $($v:ident = $n:literal, $text:literal;)* }) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr($repr)]
        pub enum $name { $($v = $n),* }

        impl $name {
            pub const fn from_number(n: u64) -> Option<$name> {
                match n { $($n => Some($name::$v),)* _ => None }
            }

            pub const fn number(self) -> u64 { self as u64 }

            pub const fn name(self) -> &'static str {
                match self { $($name::$v => $text),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.pad(self.name()) }
        }
    };
}

named! {
    /// What a set of objects is (`os_type`).
    ObjsetType: u8 {
        None = 0, "none";
        Meta = 1, "MOS";
        Zfs = 2, "ZFS";
        Zvol = 3, "ZVOL";
        Other = 4, "OTHER";
        Any = 5, "ANY";
    }
}

named! {
    /// State of a pool, in the labels of its devices.
    PoolState: u8 {
        Active = 0, "ACTIVE";
        Exported = 1, "EXPORTED";
        Destroyed = 2, "DESTROYED";
        Spare = 3, "SPARE";
        L2cache = 4, "L2CACHE";
        Uninitialized = 5, "UNINITIALIZED";
        Unavail = 6, "UNAVAIL";
        PotentiallyActive = 7, "POTENTIALLY_ACTIVE";
    }
}

named! {
    /// State of a vdev. Greater is better.
    VdevState: u8 {
        Unknown = 0, "UNKNOWN";
        Closed = 1, "CLOSED";
        Offline = 2, "OFFLINE";
        Removed = 3, "REMOVED";
        CantOpen = 4, "UNAVAIL";
        Faulted = 5, "FAULTED";
        Degraded = 6, "DEGRADED";
        Healthy = 7, "ONLINE";
    }
}

named! {
    /// Why a vdev is in the state it is.
    VdevAux: u8 {
        None = 0, "none";
        OpenFailed = 1, "cannot open";
        CorruptData = 2, "corrupted data";
        NoReplicas = 3, "insufficient replicas";
        BadGuidSum = 4, "missing device";
        TooSmall = 5, "invalid device size";
        BadLabel = 6, "invalid label";
        VersionNewer = 7, "newer version";
        VersionOlder = 8, "older version";
        UnsupFeat = 9, "unsupported feature(s)";
        Spared = 10, "currently in use";
        ErrExceeded = 11, "too many errors";
        IoFailure = 12, "experienced I/O failures";
        BadLog = 13, "bad intent log";
        External = 14, "external device fault";
        SplitPool = 15, "split into new pool";
        BadAshift = 16, "invalid ashift";
        ExternalPersist = 17, "persistent external fault";
        Active = 18, "currently in use";
        ChildrenOffline = 19, "all children offline";
        AshiftTooBig = 20, "optimal sector size exceeds the maximum";
    }
}

named! {
    /// What a scan does (`scn_func`).
    ScanFunc: u8 {
        None = 0, "none";
        Scrub = 1, "scrub";
        Resilver = 2, "resilver";
        ErrorScrub = 3, "error scrub";
    }
}

named! {
    /// How far a scan has come (`scn_state`).
    ScanState: u8 {
        None = 0, "none";
        Scanning = 1, "scanning";
        Finished = 2, "finished";
        Canceled = 3, "canceled";
        ErrorScrubbing = 4, "error scrubbing";
    }
}

pub const ZIO_CHECKSUM_INHERIT: u8 = 0;
pub const ZIO_CHECKSUM_ON: u8 = 1;
pub const ZIO_CHECKSUM_OFF: u8 = 2;
pub const ZIO_CHECKSUM_FUNCTIONS: u8 = 15;
pub const ZIO_COMPRESS_FUNCTIONS: u8 = 17;

/// Pool versions: 28 is the last before feature flags.
pub const SPA_VERSION_INITIAL: u64 = 1;
/// Versions that changed what is on disk. Source: the names of the same endings in sys/fs/zfs.h.
pub const SPA_VERSION_DITTO_BLOCKS: u64 = 2;
pub const SPA_VERSION_SPARES: u64 = 3;
pub const SPA_VERSION_RAIDZ2: u64 = 3;
pub const SPA_VERSION_BPOBJ_ACCOUNT: u64 = 3;
pub const SPA_VERSION_RAIDZ_DEFLATE: u64 = 3;
pub const SPA_VERSION_ZPOOL_HISTORY: u64 = 4;
pub const SPA_VERSION_GZIP_COMPRESSION: u64 = 5;
pub const SPA_VERSION_SLOGS: u64 = 7;
pub const SPA_VERSION_DELEGATED_PERMS: u64 = 8;
pub const SPA_VERSION_UNIQUE_ACCURATE: u64 = 9;
pub const SPA_VERSION_REFQUOTA: u64 = 9;
pub const SPA_VERSION_FUID: u64 = 9;
pub const SPA_VERSION_L2CACHE: u64 = 10;
pub const SPA_VERSION_ORIGIN: u64 = 11;
pub const SPA_VERSION_SNAP_PROPS: u64 = 12;
pub const SPA_VERSION_USED_BREAKDOWN: u64 = 13;
pub const SPA_VERSION_USERSPACE: u64 = 15;
pub const SPA_VERSION_RAIDZ3: u64 = 17;
pub const SPA_VERSION_USERREFS: u64 = 18;
pub const SPA_VERSION_HOLES: u64 = 19;
pub const SPA_VERSION_ZLE_COMPRESSION: u64 = 20;
pub const SPA_VERSION_DEDUP: u64 = 21;
pub const SPA_VERSION_RECVD_PROPS: u64 = 22;
pub const SPA_VERSION_SLIM_ZIL: u64 = 23;
pub const SPA_VERSION_SA: u64 = 24;
pub const SPA_VERSION_DEADLISTS: u64 = 26;
pub const SPA_VERSION_BEFORE_FEATURES: u64 = 28;
pub const SPA_VERSION_FEATURES: u64 = 5000;

pub const fn is_supported_version(v: u64) -> bool {
    matches!(v, SPA_VERSION_INITIAL..=SPA_VERSION_BEFORE_FEATURES | SPA_VERSION_FEATURES)
}

/// The checksum function's name as zdb and properties give it.
pub fn checksum_name(n: u8) -> &'static str {
    const NAMES: [&str; ZIO_CHECKSUM_FUNCTIONS as usize] = [
        "inherit",
        "on",
        "off",
        "label",
        "gang_header",
        "zilog",
        "fletcher2",
        "fletcher4",
        "sha256",
        "zilog2",
        "noparity",
        "sha512",
        "skein",
        "edonr",
        "blake3",
    ];
    NAMES.get(usize::from(n)).copied().unwrap_or("unknown")
}

/// The compression function's name as zdb and properties give it.
pub fn compress_name(n: u8) -> &'static str {
    const NAMES: [&str; ZIO_COMPRESS_FUNCTIONS as usize] = [
        "inherit",
        "on",
        "uncompressed",
        "lzjb",
        "empty",
        "gzip-1",
        "gzip-2",
        "gzip-3",
        "gzip-4",
        "gzip-5",
        "gzip-6",
        "gzip-7",
        "gzip-8",
        "gzip-9",
        "zle",
        "lz4",
        "zstd",
    ];
    NAMES.get(usize::from(n)).copied().unwrap_or("unknown")
}
