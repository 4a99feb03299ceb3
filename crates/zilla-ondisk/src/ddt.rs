//! Deduplication tables: from a block's checksum and sizes to where its one copy is.
//!
//! The ZAP `DDT-<checksum>-zap-<class>` has keys of five words ([`DdtKeyPhys`]) and values of
//! bytes: one that says how the rest is compressed (lower seven bits) and in which order its words
//! are (upper bit, set for little endian), then a *traditional* entry of four variants or, with
//! `fast_dedup`, a *flat* entry of one.
//!
//! With `fast_dedup` a checksum's tables lie in a directory of their own (`DDT-<checksum>`), with
//! two logs (`DDT-log-<checksum>-<n>`): entries that changed are appended to one of them, and come
//! into the tables later, sorted. What a log says of a key replaces what the table says.

use crate::bytes::{Field, Phys, Reader, Writer, phys};
use crate::error::{FormatError, Result};
use crate::order::ByteOrder;
use crate::{Dva, SPA_MINBLOCKSHIFT};

pub const DDT_TRAD_PHYS_SIZE: usize = 256;
pub const DDT_FLAT_PHYS_SIZE: usize = 72;
/// Words of a `ddt_stat`: blocks and their logical, physical and allocated sizes, each block
/// counted once, then as often as it is referred to.
pub const DDT_STAT_WORDS: usize = 8;
pub const DDT_STAT_DSIZE: usize = 3;
pub const DDT_STAT_REF_BLOCKS: usize = 4;
pub const DDT_STAT_REF_DSIZE: usize = 7;
/// What the names of all tables in the pool's directory begin with.
pub const DDT_PREFIX: &str = "DDT-";
pub const DDT_KEY_WORDS: usize = 5;
/// Classes of entries, each with a ZAP of its own.
pub const DDT_CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];
/// Names in the directory of a checksum's tables. Source: `DDT_DIR_VERSION` and `DDT_DIR_FLAGS` in
/// sys/ddt_impl.h.
pub const DDT_DIR_VERSION: &str = "version";
pub const DDT_DIR_FLAGS: &str = "flags";
/// Source: `DDT_VERSION_FDT` in sys/ddt_impl.h.
pub const DDT_VERSION_FDT: u64 = 1;
/// Entries are flat; changed ones go to a log first. Source: `DDT_FLAG_*` in sys/ddt.h.
pub const DDT_FLAG_FLAT: u64 = 1;
pub const DDT_FLAG_LOG: u64 = 2;
/// What a log record says of an entry that is in no table yet (`DDT_TYPES`, `DDT_CLASSES`).
const NO_TYPE: u8 = 1;
const NO_CLASS: u8 = 3;
/// `DLR_ENTRY` in sys/ddt_impl.h; 0 ends a block.
const DLR_ENTRY: u8 = 1;
/// Source: `DDL_FLAG_*` in sys/ddt_impl.h.
pub const DDL_FLAG_FLUSHING: u8 = 1;
pub const DDL_FLAG_CHECKPOINT: u8 = 2;
const LOG_VERSION: u64 = 1;
/// Variants of a traditional entry; the others are by number of copies.
pub const DDT_PHYS_DITTO: usize = 0;
/// Of a histogram: blocks by the power of two of their references.
pub const DDT_BUCKETS: usize = 64;

/// The name of a table, in its directory and among the statistics.
pub fn table_name(checksum: &str, class: usize) -> String {
    format!("{DDT_PREFIX}{checksum}-zap-{}", DDT_CLASSES.get(class).unwrap_or(&""))
}

pub fn directory_name(checksum: &str) -> String {
    format!("{DDT_PREFIX}{checksum}")
}

pub fn log_name(checksum: &str, n: usize) -> String {
    format!("{DDT_PREFIX}log-{checksum}-{n}")
}

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

    pub const fn words(&self) -> [u64; DDT_KEY_WORDS] {
        let [a, b, c, d] = self.cksum;
        [a, b, c, d, self.prop]
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

impl DdtTradPhys {
    pub fn dvas(&self) -> [Dva; 3] {
        let [a, b, c, d, e, f] = self.dva;
        [Dva::from_words([a, b]), Dva::from_words([c, d]), Dva::from_words([e, f])]
    }

    /// The copies there are. The third place holds salt and IV where the block is encrypted.
    pub fn copies(&self, encrypted: bool) -> impl Iterator<Item = Dva> {
        self.dvas().into_iter().take(if encrypted { 2 } else { 3 }).filter(Dva::is_valid)
    }
}

/// An entry's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DdtEntry {
    /// By number of copies; the first is of the obsolete ditto blocks.
    Trad(Box<[DdtTradPhys; 4]>),
    Flat(DdtFlatPhys),
}

/// The first byte of a value: compression function and byte order of what follows.
pub const fn value_head(byte: u8) -> (u8, ByteOrder) {
    (byte & 0x7f, ByteOrder::from_bit(byte & 0x80 != 0))
}

/// The same of a value that is written here.
pub const fn make_value_head(function: u8) -> u8 {
    function & 0x7f | (ByteOrder::NATIVE.bit() as u8) << 7
}

impl DdtEntry {
    /// One that says of no block yet.
    pub fn new(flat: bool, class_start: u64) -> DdtEntry {
        match flat {
            true => DdtEntry::Flat(DdtFlatPhys { class_start, ..DdtFlatPhys::default() }),
            false => DdtEntry::Trad(Box::default()),
        }
    }

    /// Reads a decompressed value; its length tells which kind it is.
    pub fn parse(raw: &[u8], order: ByteOrder) -> Result<DdtEntry> {
        match raw.len() {
            DDT_FLAT_PHYS_SIZE => Ok(DdtEntry::Flat(DdtFlatPhys::decode(raw, order)?)),
            DDT_TRAD_PHYS_SIZE => {
                let mut out = [DdtTradPhys::default(); 4];
                for (v, part) in out.iter_mut().zip(raw.chunks_exact(DdtTradPhys::SIZE)) {
                    *v = DdtTradPhys::decode(part, order)?;
                }
                Ok(DdtEntry::Trad(Box::new(out)))
            }
            n => Err(FormatError::impossible("ddt entry", "length", 0, n as u64, "neither 72 nor 256")),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        match self {
            DdtEntry::Flat(p) => p.encode(),
            DdtEntry::Trad(all) => all.iter().flat_map(Phys::encode).collect(),
        }
    }

    pub const fn is_flat(&self) -> bool {
        matches!(self, DdtEntry::Flat(_))
    }

    /// Which variant blocks that are written in so many copies share.
    pub fn variant_for(&self, copies: u8) -> usize {
        if self.is_flat() { 0 } else { usize::from(copies).clamp(1, 3) }
    }

    /// How many variants it has room for.
    pub const fn variants(&self) -> usize {
        if self.is_flat() { 1 } else { 4 }
    }

    pub fn variant(&self, i: usize) -> DdtTradPhys {
        match self {
            DdtEntry::Trad(all) => all.get(i).copied().unwrap_or_default(),
            DdtEntry::Flat(p) => {
                let DdtFlatPhys { dva, refcnt, phys_birth, .. } = *p;
                DdtTradPhys { dva, refcnt, phys_birth }
            }
        }
    }

    pub fn set_variant(&mut self, i: usize, new: DdtTradPhys) {
        match self {
            DdtEntry::Trad(all) => all.get_mut(i).into_iter().for_each(|p| *p = new),
            DdtEntry::Flat(p) => {
                let DdtTradPhys { dva, refcnt, phys_birth } = new;
                *p = DdtFlatPhys { dva, refcnt, phys_birth, ..*p };
            }
        }
    }

    /// All references; those of a ditto block are none.
    pub fn refcnt(&self) -> u64 {
        let own = |i: &usize| self.is_flat() || *i != DDT_PHYS_DITTO;
        (0..self.variants()).filter(own).fold(0, |n, i| self.variant(i).refcnt.saturating_add(n))
    }
}

/// A `ddt_stat`, in the order of its words.
pub type DdtStat = [u64; DDT_STAT_WORDS];

/// What a table's blocks take and save, by the power of two of their references (`ddt_histogram`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DdtHistogram(pub Box<[DdtStat; DDT_BUCKETS]>);

impl Default for DdtHistogram {
    fn default() -> DdtHistogram {
        DdtHistogram(Box::new([[0; DDT_STAT_WORDS]; DDT_BUCKETS]))
    }
}

impl DdtHistogram {
    pub fn from_words(words: &[u64]) -> DdtHistogram {
        let mut out = DdtHistogram::default();
        for (to, from) in out.0.iter_mut().zip(words.as_chunks().0) {
            *to = *from;
        }
        out
    }

    pub fn words(&self) -> Vec<u64> {
        self.0.as_flattened().to_vec()
    }

    /// Puts a block's sums into its bucket, or takes them out.
    pub fn count(&mut self, stat: &DdtStat, into: bool) {
        let Some(bucket) = stat[DDT_STAT_REF_BLOCKS].checked_ilog2() else { return };
        for (sum, n) in self.0.iter_mut().skip(bucket as usize).take(1).flatten().zip(stat) {
            *sum = if into { sum.saturating_add(*n) } else { sum.saturating_sub(*n) };
        }
    }

    pub fn add(&mut self, other: &DdtHistogram) {
        for (sum, n) in self.0.as_flattened_mut().iter_mut().zip(other.0.as_flattened()) {
            *sum = sum.saturating_add(*n);
        }
    }

    pub fn total(&self) -> DdtStat {
        let mut out = [0u64; DDT_STAT_WORDS];
        for stat in self.0.iter() {
            out.iter_mut().zip(stat).for_each(|(sum, n)| *sum = sum.saturating_add(*n));
        }
        out
    }
}

phys! {
    /// A log's bonus.
    pub struct DdtLogPhys("ddt_log_header") {
        info: u64,
        /// Bytes of whole blocks that are in use.
        length: u64,
        /// The txg in which entries began to be appended.
        first_txg: u64,
        /// Entries up to this key are in the tables already.
        checkpoint: [u64; DDT_KEY_WORDS],
    }
}

impl DdtLogPhys {
    pub const fn new(flags: u8, length: u64, first_txg: u64, checkpoint: [u64; DDT_KEY_WORDS]) -> DdtLogPhys {
        DdtLogPhys { info: LOG_VERSION | (flags as u64) << 8, length, first_txg, checkpoint }
    }

    pub const fn flags(&self) -> u8 {
        (self.info >> 8) as u8
    }

    pub const fn is_known(&self) -> bool {
        self.info & 0xff == LOG_VERSION
    }
}

/// What a log says of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DdtLogged {
    /// The class of the table that has the key, with an older entry.
    pub class: Option<usize>,
    pub entry: DdtEntry,
}

/// Length of a record with an entry of this kind.
pub const fn log_record_size(flat: bool) -> usize {
    8 + 8 * DDT_KEY_WORDS + if flat { DDT_FLAT_PHYS_SIZE } else { DDT_TRAD_PHYS_SIZE }
}

/// Writes records one after the other; what is left of the block stays zero, which ends it.
pub fn make_log_block<'a>(
    size: usize,
    records: impl Iterator<Item = (&'a [u64; DDT_KEY_WORDS], &'a DdtLogged)>,
) -> Vec<u8> {
    let mut w = Writer::native(size);
    for (key, logged) in records {
        let length = log_record_size(logged.entry.is_flat()) as u64;
        let (kind, class) = logged.class.map_or((NO_TYPE, NO_CLASS), |class| (0, class as u8));
        w.u64(u64::from(DLR_ENTRY) | length << 8 | u64::from(kind) << 48 | u64::from(class) << 56);
        key.iter().for_each(|word| w.u64(*word));
        w.bytes(&logged.entry.encode());
    }
    w.pad_to(size);
    w.finish()
}

/// Reads the records of a log's block.
pub fn read_log_block(block: &[u8]) -> Result<Vec<([u64; DDT_KEY_WORDS], DdtLogged)>> {
    const WHAT: &str = "ddt log record";
    let mut out = Vec::new();
    let mut rest = block;
    while let Some(head) = rest.first_chunk().map(|b| u64::from_ne_bytes(*b)) {
        match head as u8 {
            0 => break,
            DLR_ENTRY => {}
            n => return Err(FormatError::impossible(WHAT, "type", 0, n.into(), "is no entry")),
        }
        let length = usize::from((head >> 8) as u16);
        let Some((record, more)) = rest.split_at_checked(length).filter(|_| length > 8 + 8 * DDT_KEY_WORDS)
        else {
            return Err(FormatError::impossible(WHAT, "length", 8, length as u64, "does not fit"));
        };
        let mut r = Reader::new(record, ByteOrder::NATIVE, WHAT);
        r.skip(8, "head")?;
        let key = <[u64; DDT_KEY_WORDS]>::read(&mut r, "key")?;
        let class = match ((head >> 48) as u8, (head >> 56) as u8) {
            (NO_TYPE, _) => None,
            (0, class) if usize::from(class) < DDT_CLASSES.len() => Some(usize::from(class)),
            (_, class) => return Err(FormatError::impossible(WHAT, "class", 7, class.into(), "is none")),
        };
        out.push((key, DdtLogged { class, entry: DdtEntry::parse(r.rest(), ByteOrder::NATIVE)? }));
        rest = more;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(flat: bool, refcnt: u64) -> DdtEntry {
        let mut e = DdtEntry::new(flat, 77);
        let v = e.variant_for(2);
        e.set_variant(v, DdtTradPhys { dva: [1, 2, 3, 4, 5, 6], refcnt, phys_birth: 9 });
        e
    }

    #[test]
    fn entries_come_back() {
        for e in [entry(true, 3), entry(false, 5)] {
            assert_eq!(DdtEntry::parse(&e.encode(), ByteOrder::NATIVE).unwrap(), e);
        }
        assert_eq!(entry(false, 5).variant(2).refcnt, 5);
        assert_eq!((entry(true, 3).refcnt(), entry(false, 5).refcnt()), (3, 5));
        assert!(DdtEntry::parse(&[0; 71], ByteOrder::NATIVE).is_err());
    }

    #[test]
    fn a_log_comes_back() {
        let logged = |class, flat| DdtLogged { class, entry: entry(flat, 1) };
        for flat in [true, false] {
            let all = [([1; 5], logged(None, flat)), ([2; 5], logged(Some(2), flat))];
            let size = all.len() * log_record_size(flat);
            for size in [size, size + 4, size + 5000] {
                let block = make_log_block(size, all.iter().map(|(k, l)| (k, l)));
                assert_eq!((block.len(), read_log_block(&block).unwrap()), (size, all.to_vec()));
                assert!(read_log_block(&block[..size.min(200)]).is_err() || flat);
            }
        }
    }

    #[test]
    fn a_histogram_counts_by_references() {
        let mut h = DdtHistogram::default();
        let stat = |n| [1, 8, 4, 4, n, 8 * n, 4 * n, 4 * n];
        h.count(&stat(1), true);
        h.count(&stat(5), true);
        h.count(&stat(0), true);
        assert_eq!((h.0[0], h.0[2], h.total()[4]), (stat(1), stat(5), 6));
        assert_eq!(DdtHistogram::from_words(&h.words()), h);
        h.count(&stat(5), false);
        assert_eq!(h.total(), stat(1));
    }
}
