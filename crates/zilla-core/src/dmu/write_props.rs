//! How blocks of an objset are written: its dataset's properties, as `dsl` resolves them.

use crate::zio::Dedup;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{Compress, CompressSpec};

/// What is read before it is asked for (`prefetch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    None,
    /// Only what leads to data.
    Metadata,
    #[default]
    All,
}

impl Prefetch {
    /// Source: zfs_prefetch_type_t of sys/fs/zfs.h.
    pub fn from_prop(value: u64) -> Prefetch {
        match value {
            0 => Prefetch::None,
            1 => Prefetch::Metadata,
            _ => Prefetch::All,
        }
    }
}

/// How blocks of an objset are written: its dataset's properties, resolved.
#[derive(Clone, Copy, Debug)]
pub struct WriteProps {
    pub checksum: Checksum,
    pub compress: CompressSpec,
    pub copies: u8,
    /// Copies of metadata (one more than of data, three in the MOS).
    pub metadata_copies: u8,
    pub metadata_compress: CompressSpec,
    /// Holes remember their birth (feature hole_birth).
    pub hole_birth: bool,
    /// Tiny blocks may live in their pointer (feature embedded_data).
    pub embed: bool,
    /// Micro-ZAPs may outgrow 128K (feature large_microzap), if the tunable says so.
    pub large_microzap: bool,
    /// Blocks of files that take at most so many bytes on disk may go to special vdevs
    /// (`special_small_blocks`).
    pub special_upto: u32,
    /// Data blocks that are the same are kept once.
    pub dedup: Option<Dedup>,
    /// What readers get ahead; it is here because it comes and changes with the rest.
    pub prefetch: Prefetch,
    /// Data that were written stay in memory when they are on disk (`primarycache`).
    pub keep: bool,
}

impl WriteProps {
    /// The checksum for the data of an object whose dnode says this.
    pub(super) fn data_checksum_of(&self, own: u8) -> Checksum {
        self.dedup.map_or_else(|| self.checksum_of(own), |dedup| dedup.checksum)
    }

    /// The checksum for an object whose dnode says this.
    pub(super) fn checksum_of(&self, own: u8) -> Checksum {
        match Checksum::from_u8(own) {
            None | Some(Checksum::Inherit) => self.checksum,
            Some(kind) => kind,
        }
    }

    /// The compression for the data of an object whose dnode says this.
    pub(super) fn compress_of(&self, own: u8) -> CompressSpec {
        match Compress::from_u8(own) {
            None | Some(Compress::Inherit) => self.compress,
            Some(kind) => CompressSpec::new(kind),
        }
    }
}
