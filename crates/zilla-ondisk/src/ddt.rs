//! Deduplication tables: from a block's checksum and sizes to where its one copy is.
//!
//! The ZAP `DDT-<checksum>-zap-<class>` has keys of five words ([`DdtKeyPhys`]) and values of bytes: one that says how
//! the rest is compressed (lower seven bits) and in which order its words are (upper bit, set for little endian),
//! then a *traditional* entry of four variants or, with `fast_dedup`, a *flat* entry of one.

use crate::bytes::{Field, Phys, phys};
use crate::error::{FormatError, Result};
use crate::order::ByteOrder;
use crate::{Dva, SPA_MINBLOCKSHIFT};

pub const DDT_TRAD_PHYS_SIZE: usize = 256;
pub const DDT_FLAT_PHYS_SIZE: usize = 72;
/// Words of a `ddt_stat`: blocks and their logical, physical and allocated sizes, each block counted once, then as often as it is referred to.
pub const DDT_STAT_WORDS: usize = 8;
pub const DDT_STAT_DSIZE: usize = 3;
pub const DDT_STAT_REF_DSIZE: usize = 7;
/// What the names of all tables in the pool's directory begin with.
pub const DDT_PREFIX: &str = "DDT-";
pub const DDT_KEY_WORDS: usize = 5;
/// Classes of entries, each with a ZAP of its own.
pub const DDT_CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];

phys! {
    /// What the copies of a block have in common.
    pub struct DdtKeyPhys("ddt_key") {
        cksum: [u64; 4],
        prop: u64,
    }
}

impl DdtKeyPhys {
    pub const fn lsize(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << SPA_MINBLOCKSHIFT
    }

    pub const fn psize(&self) -> u64 {
        (((self.prop >> 16) & 0xffff) + 1) << SPA_MINBLOCKSHIFT
    }

    pub const fn compress(&self) -> u8 {
        (self.prop >> 32) as u8 & 0x7f
    }

    pub const fn crypt(&self) -> bool {
        self.prop >> 39 & 1 != 0
    }

    pub const fn from_words(w: [u64; DDT_KEY_WORDS]) -> DdtKeyPhys {
        let [a, b, c, d, prop] = w;
        DdtKeyPhys { cksum: [a, b, c, d], prop }
    }

    /// The key of a block pointer.
    pub fn of(bp: &crate::BlkPtr) -> DdtKeyPhys {
        let size = |n: u64| ((n >> SPA_MINBLOCKSHIFT).wrapping_sub(1)) & 0xffff;
        let prop = size(bp.lsize())
            | size(bp.psize()) << 16
            | u64::from(bp.compress()) << 32
            | u64::from(bp.uses_crypt()) << 39;
        DdtKeyPhys { cksum: bp.cksum(), prop }
    }
}

phys! {
    /// One variant of a traditional entry.
    pub struct DdtTradPhys("ddt_phys") {
        dva: [u64; 6],
        refcnt: u64,
        phys_birth: u64,
    }
}

phys! {
    /// A flat entry.
    pub struct DdtFlatPhys("ddt_flat_phys") {
        dva: [u64; 6],
        refcnt: u64,
        phys_birth: u64,
        /// Seconds since 1970 at which it came into its class.
        class_start: u64,
    }
}

fn dvas(w: &[u64; 6]) -> [Dva; 3] {
    let [a, b, c, d, e, f] = *w;
    [Dva::from_words([a, b]), Dva::from_words([c, d]), Dva::from_words([e, f])]
}

impl DdtTradPhys {
    pub fn dvas(&self) -> [Dva; 3] {
        dvas(&self.dva)
    }
}

impl DdtFlatPhys {
    pub fn dvas(&self) -> [Dva; 3] {
        dvas(&self.dva)
    }
}

/// An entry's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DdtEntry {
    /// By number of copies; the first is of the obsolete ditto blocks.
    Trad([DdtTradPhys; 4]),
    Flat(DdtFlatPhys),
}

/// The first byte of a value: compression function and byte order of what follows.
pub const fn value_head(byte: u8) -> (u8, ByteOrder) {
    (byte & 0x7f, ByteOrder::from_bit(byte & 0x80 != 0))
}

impl DdtEntry {
    /// Reads a decompressed value; its length tells which kind it is.
    pub fn parse(raw: &[u8], order: ByteOrder) -> Result<DdtEntry> {
        match raw.len() {
            DDT_FLAT_PHYS_SIZE => Ok(DdtEntry::Flat(DdtFlatPhys::decode(raw, order)?)),
            DDT_TRAD_PHYS_SIZE => {
                let mut out = [DdtTradPhys::default(); 4];
                for (v, part) in out.iter_mut().zip(raw.chunks_exact(DdtTradPhys::SIZE)) {
                    *v = DdtTradPhys::decode(part, order)?;
                }
                Ok(DdtEntry::Trad(out))
            }
            n => Err(FormatError::impossible("ddt entry", "length", 0, n as u64, "neither 72 nor 256")),
        }
    }

    pub fn refcnt(&self) -> u64 {
        match self {
            DdtEntry::Trad(v) => v.iter().fold(0, |n, p| p.refcnt.saturating_add(n)),
            DdtEntry::Flat(p) => p.refcnt,
        }
    }
}
