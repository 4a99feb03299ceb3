//! The `compression` property: a kind and, for zstd, a level; its names and its number on disk.
//!
//! The property is one u64: the kind in the low 7 bits, zstd's level above. Levels are numbered as
//! OpenZFS stores them: 1 to 19 as they are, and the fast levels, which zstd counts from -1 down to
//! -1000 with gaps, from 103 up. The same byte stands in the header of every zstd block.

use std::fmt;
use std::str::FromStr;

use super::Compress;

const LEVEL_SHIFT: u32 = 7;
const FAST_FIRST: u8 = 103;
/// The fast levels that exist; the number on disk is the place in this list.
const FAST: [i32; 21] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 500, 1000];
/// `ZIO_COMPLEVEL_DEFAULT`: no level was chosen.
const DEFAULT: u8 = 255;

/// A zstd level by its number on disk, known to exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZstdLevel(u8);

impl ZstdLevel {
    /// What plain `zstd` means.
    pub const DEFAULT: ZstdLevel = ZstdLevel(3);

    /// From the byte in a property or block header.
    pub fn from_disk(byte: u8) -> Option<Self> {
        let fast = byte.checked_sub(FAST_FIRST).is_some_and(|i| usize::from(i) < FAST.len());
        (matches!(byte, 1..=19) || fast).then_some(ZstdLevel(byte))
    }

    pub const fn to_disk(self) -> u8 {
        self.0
    }

    /// The level as zstd counts: fast levels are negative.
    pub fn to_zstd(self) -> i32 {
        match self.0.checked_sub(FAST_FIRST) {
            Some(i) => -FAST.get(usize::from(i)).copied().unwrap_or(1),
            None => i32::from(self.0),
        }
    }

    fn from_zstd(level: i32) -> Option<Self> {
        if let 1..=19 = level {
            return u8::try_from(level).ok().map(ZstdLevel);
        }
        let place = FAST.iter().position(|fast| *fast == -level)?;
        u8::try_from(place).ok().map(|place| ZstdLevel(FAST_FIRST + place))
    }
}

/// What a dataset asks its blocks to be compressed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressSpec {
    pub kind: Compress,
    /// zstd's level as on disk; 0 where none was chosen, and for all other kinds.
    pub level: u8,
}

impl CompressSpec {
    pub const OFF: CompressSpec = CompressSpec::new(Compress::Off);
    /// What `on` means in every pool that has the lz4 feature, which is every pool of the last ten
    /// years.
    pub const ON_VALUE: CompressSpec = CompressSpec::new(Compress::Lz4);

    pub const fn new(kind: Compress) -> Self {
        CompressSpec { kind, level: 0 }
    }

    pub const fn zstd(level: ZstdLevel) -> Self {
        CompressSpec { kind: Compress::Zstd, level: level.to_disk() }
    }

    /// The level to compress with; `None` if the stored one does not exist.
    pub(super) fn zstd_level(self) -> Option<ZstdLevel> {
        match self.level {
            0 | DEFAULT => Some(ZstdLevel::DEFAULT),
            level => ZstdLevel::from_disk(level),
        }
    }

    /// Reads the property's number; `None` if it names nothing.
    pub fn from_prop(value: u64) -> Option<Self> {
        let kind = Compress::from_u8(u8::try_from(value & ((1 << LEVEL_SHIFT) - 1)).ok()?)?;
        let level = u8::try_from(value >> LEVEL_SHIFT).ok()?;
        let known = level == 0 || (kind == Compress::Zstd && ZstdLevel::from_disk(level).is_some());
        known.then_some(CompressSpec { kind, level })
    }

    pub fn to_prop(self) -> u64 {
        self.kind as u64 | u64::from(self.level) << LEVEL_SHIFT
    }
}

/// The property's value as `zfs get` prints it: of two names for one number, the first of OpenZFS's
/// table.
impl fmt::Display for CompressSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Compress::Off => f.write_str("off"),
            Compress::Gzip6 => f.write_str("gzip"),
            Compress::Zstd => match ZstdLevel::from_disk(self.level).map(ZstdLevel::to_zstd) {
                None => f.write_str("zstd"),
                Some(-1) => f.write_str("zstd-fast"),
                Some(level) if level < 0 => write!(f, "zstd-fast-{}", -level),
                Some(level) => write!(f, "zstd-{level}"),
            },
            kind => f.write_str(kind.name()),
        }
    }
}

/// The text is no value of the `compression` property.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression '{0}'")]
pub struct UnknownCompression(pub String);

impl FromStr for CompressSpec {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| {
            // One spelling per level: no sign, no leading zero.
            let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
            plain.then(|| digits.parse::<i32>().ok()).flatten()
        };
        let spec = match text {
            "off" => Some(Self::OFF),
            "gzip" => Some(Self::new(Compress::Gzip6)),
            "zstd-fast" => ZstdLevel::from_zstd(-1).map(Self::zstd),
            "inherit" | "empty" | "uncompressed" => None,
            _ => {
                if let Some(digits) = text.strip_prefix("zstd-fast-") {
                    number(digits).and_then(|n| ZstdLevel::from_zstd(-n)).map(Self::zstd)
                } else if let Some(digits) = text.strip_prefix("zstd-") {
                    number(digits).and_then(ZstdLevel::from_zstd).map(Self::zstd)
                } else {
                    Compress::ALL.into_iter().find(|kind| kind.name() == text).map(Self::new)
                }
            }
        };
        spec.ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}
