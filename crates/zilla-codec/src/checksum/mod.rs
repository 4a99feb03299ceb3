//! Block checksums: 256 bits as four 64-bit words, kept in the block pointer above the block.
//!
//! A checksum is a function of the block's bytes, of the byte order of the machine that wrote them
//! and, for the salted kinds, of 32 secret bytes kept in the pool's MOS. The words are numbers: a
//! block pointer that was written by a machine of the other order is swapped as a whole when it is
//! read, so here `swap` asks for the numbers that machine computed.
//!
//! - fletcher2 and fletcher4 sum words of the data: `swap` swaps each word before it is summed;
//! - sha256 has always been stored as the digest read big-endian, on every machine: `swap` changes
//!   nothing;
//! - sha512 (SHA-512/256), skein, edonr and blake3 are digests laid over the four words in memory:
//!   `swap` swaps the words.
//!
//! Labels, gang headers and log blocks have no pointer that could hold their checksum; theirs is
//! inside the block, see [`embedded`].

mod blake3;
mod edonr;
pub mod embedded;
mod fletcher;
#[cfg(target_arch = "x86_64")]
mod fletcher_x86;
mod sha2;
#[cfg(target_arch = "x86_64")]
mod sha256_x86;
mod skein;

pub use edonr::edonr512;
pub use fletcher::{Fletcher4, fletcher2, fletcher4, fletcher4_at};
pub use skein::{Skein512, skein512};

/// The four words of a checksum, as numbers (`zio_cksum_t`).
pub type Cksum = [u64; 4];

/// The byte order in which a block's writer laid out its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// The order of this machine.
    pub const NATIVE: ByteOrder =
        if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

    /// Must words written in this order be swapped here?
    pub const fn is_swapped(self) -> bool {
        !matches!((self, Self::NATIVE), (Self::Little, Self::Little) | (Self::Big, Self::Big))
    }
}

/// The checksum kinds, by their numbers on disk (`enum zio_checksum`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Checksum {
    Inherit = 0,
    On = 1,
    Off = 2,
    Label = 3,
    GangHeader = 4,
    Zilog = 5,
    Fletcher2 = 6,
    Fletcher4 = 7,
    Sha256 = 8,
    Zilog2 = 9,
    NoParity = 10,
    Sha512 = 11,
    Skein = 12,
    Edonr = 13,
    Blake3 = 14,
}

impl Checksum {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Checksum; 15] = [
        Self::Inherit,
        Self::On,
        Self::Off,
        Self::Label,
        Self::GangHeader,
        Self::Zilog,
        Self::Fletcher2,
        Self::Fletcher4,
        Self::Sha256,
        Self::Zilog2,
        Self::NoParity,
        Self::Sha512,
        Self::Skein,
        Self::Edonr,
        Self::Blake3,
    ];

    /// What `checksum=on` means for data.
    pub const ON_VALUE: Checksum = Checksum::Fletcher4;

    pub fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }

    /// OpenZFS's name; it is also what dedup tables on disk are named after.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::On => "on",
            Self::Off => "off",
            Self::Label => "label",
            Self::GangHeader => "gang_header",
            Self::Zilog => "zilog",
            Self::Fletcher2 => "fletcher2",
            Self::Fletcher4 => "fletcher4",
            Self::Sha256 => "sha256",
            Self::Zilog2 => "zilog2",
            Self::NoParity => "noparity",
            Self::Sha512 => "sha512",
            Self::Skein => "skein",
            Self::Edonr => "edonr",
            Self::Blake3 => "blake3",
        }
    }

    /// Reads a value of the `checksum` property.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.is_property() && kind.name() == name)
    }

    /// Is this a value the `checksum` property can have?
    pub const fn is_property(self) -> bool {
        !matches!(self, Self::Inherit | Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// Does this kind name a function that a block pointer can carry? `Inherit` and `On` do not.
    pub const fn is_function(self) -> bool {
        !matches!(self, Self::Inherit | Self::On)
    }

    /// Strong enough to trust for metadata.
    pub const fn is_metadata(self) -> bool {
        !matches!(
            self,
            Self::Inherit
                | Self::On
                | Self::Off
                | Self::NoParity
                | Self::Zilog
                | Self::Fletcher2
                | Self::Zilog2
        )
    }

    /// Strong enough to call two blocks equal without comparing them (dedup without verify).
    pub const fn is_dedup(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3)
    }

    /// Strong enough to skip a write whose checksum equals the old block's.
    pub const fn is_nopwrite(self) -> bool {
        self.is_dedup() || matches!(self, Self::Edonr)
    }

    /// Depends on the pool's salt.
    pub const fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::Edonr | Self::Blake3)
    }

    /// Lives inside the block it covers (`zio_eck_t`).
    pub const fn is_embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// The pool feature that must be enabled for blocks to use this kind.
    pub const fn feature(self) -> Option<&'static str> {
        match self {
            Self::Sha512 => Some("org.illumos:sha512"),
            Self::Skein => Some("org.illumos:skein"),
            Self::Edonr => Some("org.illumos:edonr"),
            Self::Blake3 => Some("org.openzfs:blake3"),
            _ => None,
        }
    }
}

/// The keyed starting states of the salted kinds, worked out once per pool from its salt.
#[derive(Clone)]
pub struct Salted {
    skein: Skein512,
    edonr: edonr::Keyed,
    blake3: [u8; 32],
}

impl Salted {
    pub fn new(salt: &[u8; 32]) -> Self {
        Salted { skein: Skein512::keyed(salt, 256), edonr: edonr::Keyed::new(salt), blake3: *salt }
    }
}

impl std::fmt::Debug for Salted {
    /// The salt is secret: who knows it can make blocks that collide.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salted(..)")
    }
}

/// The checksum of `data` as a writer of this machine's order (`swap` false) or of the other one
/// computed it.
///
/// The embedded kinds give what their function says of the bytes as they stand; [`embedded`] puts
/// the verifier in first. `Off` and `NoParity` give zeroes. `Inherit` and `On` name no function and
/// give all ones: whoever checks a block must refuse them first ([`Checksum::is_function`],
/// [`verify`]). Every pool has a salt; `None` stands for 32 zero bytes.
pub fn compute(kind: Checksum, data: &[u8], swap: bool, salt: Option<&Salted>) -> Cksum {
    match kind {
        Checksum::Inherit | Checksum::On => [u64::MAX; 4],
        Checksum::Off | Checksum::NoParity => [0; 4],
        Checksum::Fletcher4 | Checksum::Zilog2 => fletcher4(data, swap),
        Checksum::Fletcher2 | Checksum::Zilog => fletcher2(data, swap),
        Checksum::Sha256 | Checksum::Label | Checksum::GangHeader => sha2::sha256(data),
        Checksum::Sha512 => words(&sha2::sha512_256(data), swap),
        Checksum::Skein | Checksum::Edonr | Checksum::Blake3 => match salt {
            Some(salt) => words(&keyed(kind, data, salt), swap),
            None => words(&keyed(kind, data, &Salted::new(&[0; 32])), swap),
        },
    }
}

/// [`compute`], in this machine's order, of each block, into the place beside it. sha256 goes a
/// fifth faster where there are two or more.
pub fn compute_all<'a>(
    kind: Checksum,
    mut blocks: impl Iterator<Item = (&'a [u8], &'a mut Cksum)>,
    salt: Option<&Salted>,
) {
    match kind {
        Checksum::Sha256 => sha2::sha256_all(&mut blocks),
        _ => blocks.for_each(|(data, out)| *out = compute(kind, data, false, salt)),
    }
}

fn keyed(kind: Checksum, data: &[u8], salt: &Salted) -> [u8; 32] {
    match kind {
        Checksum::Skein => salt.skein.hash(data),
        Checksum::Edonr => salt.edonr.hash(data),
        _ => blake3::keyed(&salt.blake3, data),
    }
}

/// Does `data` have the checksum that its block pointer says? False for kinds that name no
/// function.
pub fn verify(kind: Checksum, data: &[u8], swap: bool, salt: Option<&Salted>, expected: &Cksum) -> bool {
    kind.is_function() && compute(kind, data, swap, salt) == *expected
}

/// A 32-byte digest laid over four words in memory.
fn words(digest: &[u8; 32], swap: bool) -> Cksum {
    let mut out = [0; 4];
    for (word, bytes) in out.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
        if swap {
            *word = word.swap_bytes();
        }
    }
    out
}

#[cfg(test)]
mod tests;
