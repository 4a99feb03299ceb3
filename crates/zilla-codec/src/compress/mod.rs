//! Compression of blocks, with OpenZFS's framing around each algorithm.
//!
//! A compressed block is stored in whole sectors, so what comes back from the disk is longer than
//! what the compressor made: zero padding follows. Each format finds its own end: lz4 and zstd by a
//! length in front, gzip by its stream's end mark, lzjb and zle by having filled the output. The
//! logical size is not stored with the data but in the block pointer; decompressing must give
//! exactly that many bytes.
//!
//! Compressors get a destination that is as long as the result may be at most. "Does not fit" is an
//! ordinary answer (`None`): the block is then stored as it is. Whether a saving is large enough to
//! be worth taking is the caller's rule, not this crate's.
//!
//! Kept true: [`decompress`] gives `Ok` only when all of `dst` was written; on an error `dst` holds
//! garbage, but nothing outside `src` was read and nothing outside `dst` written.

#![deny(clippy::indexing_slicing)]

mod gzip;
mod lz4;
mod lzjb;
mod spec;
mod zle;
mod zstd;

pub use spec::{CompressSpec, ZstdLevel};
pub use zstd::header as zstd_header;

/// The compression kinds, by their numbers on disk (`enum zio_compress`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Compress {
    Inherit = 0,
    On = 1,
    Off = 2,
    Lzjb = 3,
    Empty = 4,
    Gzip1 = 5,
    Gzip2 = 6,
    Gzip3 = 7,
    Gzip4 = 8,
    Gzip5 = 9,
    Gzip6 = 10,
    Gzip7 = 11,
    Gzip8 = 12,
    Gzip9 = 13,
    Zle = 14,
    Lz4 = 15,
    Zstd = 16,
}

impl Compress {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Compress; 17] = [
        Self::Inherit,
        Self::On,
        Self::Off,
        Self::Lzjb,
        Self::Empty,
        Self::Gzip1,
        Self::Gzip2,
        Self::Gzip3,
        Self::Gzip4,
        Self::Gzip5,
        Self::Gzip6,
        Self::Gzip7,
        Self::Gzip8,
        Self::Gzip9,
        Self::Zle,
        Self::Lz4,
        Self::Zstd,
    ];

    pub fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }

    /// OpenZFS's name of the kind, as zdb prints it (the property's values are [`CompressSpec`]'s).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "uncompressed",
            Self::Lzjb => "lzjb",
            Self::Empty => "empty",
            Self::Gzip1 => "gzip-1",
            Self::Gzip2 => "gzip-2",
            Self::Gzip3 => "gzip-3",
            Self::Gzip4 => "gzip-4",
            Self::Gzip5 => "gzip-5",
            Self::Gzip6 => "gzip-6",
            Self::Gzip7 => "gzip-7",
            Self::Gzip8 => "gzip-8",
            Self::Gzip9 => "gzip-9",
            Self::Zle => "zle",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    /// The level of the gzip kinds.
    pub const fn gzip_level(self) -> Option<u8> {
        match self as u8 {
            n @ 5..=13 => Some(n - 4),
            _ => None,
        }
    }

    /// Can blocks carry this kind, and be decompressed? (`Off` can be carried; there is nothing to
    /// undo.)
    pub const fn is_function(self) -> bool {
        !matches!(self, Self::Inherit | Self::On | Self::Off | Self::Empty)
    }

    /// The pool feature that must be enabled for blocks to use this kind.
    pub const fn feature(self) -> Option<&'static str> {
        match self {
            Self::Lz4 => Some("org.illumos:lz4_compress"),
            Self::Zstd => Some("org.freebsd:zstd_compress"),
            _ => None,
        }
    }
}

/// Why a block could not be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    #[error("compression {} has no decompressor", .0.name())]
    Unsupported(Compress),
    #[error("{} header says {claimed} bytes, but the block has {available}", .kind.name())]
    BadLength { kind: Compress, claimed: u64, available: usize },
    #[error("zstd header has level {level:#x}, which does not exist")]
    BadLevel { level: u8 },
    #[error("{} data is damaged", .0.name())]
    Corrupt(Compress),
    #[error("{} data gives {produced} bytes instead of {expected}", .kind.name())]
    WrongSize { kind: Compress, produced: usize, expected: usize },
    #[error("no memory for a {} context", .0.name())]
    NoMemory(Compress),
}

/// Compresses `src` into `dst`; `None` if that takes more than `dst.len()` bytes, or there is no
/// such compressor (`Off`, `Empty`, and `Inherit` and `On`, which the caller resolves).
pub fn compress(spec: CompressSpec, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    match spec.kind {
        Compress::Inherit | Compress::On | Compress::Off | Compress::Empty => None,
        Compress::Lzjb => lzjb::compress(src, dst),
        Compress::Zle => zle::compress(src, dst),
        Compress::Lz4 => lz4::compress(src, dst),
        Compress::Zstd => zstd::compress(spec.zstd_level()?, src, dst),
        kind => gzip::compress(kind.gzip_level()?, src, dst),
    }
}

/// Decompresses `src`, a stored block with its padding, so that it fills `dst` exactly.
pub fn decompress(kind: Compress, src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    match kind {
        Compress::Lzjb => lzjb::decompress(src, dst),
        Compress::Zle => zle::decompress(src, dst),
        Compress::Lz4 => lz4::decompress(src, dst),
        Compress::Zstd => zstd::decompress(src, dst),
        Compress::Inherit | Compress::On | Compress::Off | Compress::Empty => {
            Err(DecompressError::Unsupported(kind))
        }
        _ => gzip::decompress(kind, src, dst),
    }
}

/// Is the block all zeroes? With any compression but `off`, such a block is stored as a hole.
pub fn is_zero(data: &[u8]) -> bool {
    // Most blocks that are not zero differ early; the rest is read in strides the compiler
    // vectorises.
    let (strides, rest) = data.as_chunks::<256>();
    strides.iter().all(|stride| {
        let (words, _) = stride.as_chunks::<8>();
        words.iter().fold(0, |or, word| or | u64::from_ne_bytes(*word)) == 0
    }) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests;
