//! The block pointer: 128 bytes that say where a block's copies are, what they are and what they
//! sum to.
//!
//! ```text
//! word 0..5   three DVAs: vdev (24 bits at 32) and asize (24 bits at 0); gang bit (63) and offset (63 bits)
//! word 6      B D X level:5 | type:8 | cksum:8 | E comp:7 | psize-1:16 | lsize-1:16   (sizes in 512 bytes)
//! word 7, 8   rewrite bit (63 of 7), pad
//! word 9, a   physical birth (0: same as logical), logical birth
//! word b      fill: blocks that are not holes below
//! word c..f   checksum
//! ```
//!
//! The same 128 bytes have two other readings. *Embedded* (bit E): all words but 6 and a are a
//! payload of up to 112 bytes, with sizes in bytes in word 6. *Encrypted* (bit X at level 0 of an
//! encrypted type): the third DVA holds salt and IV, the upper half of fill the rest of the IV, the
//! last two checksum words the MAC. A hole has no first DVA, but keeps size, type, level and birth
//! once it was ever written.
//!
//! Values are kept as words in the machine's order; accessors cut the bits. Whatever the bits are,
//! no accessor panics: [`BlkPtr::validate`] says whether they can be.

#[cfg(test)]
mod tests;

use std::fmt;

use crate::bytes::{Field, Phys, Reader, Writer, Zero};
use crate::error::{FormatError, Problem, Result};
use crate::object_type;
use crate::order::ByteOrder;
use crate::{SPA_MAXBLOCKSIZE, SPA_MINBLOCKSHIFT, SPA_MINBLOCKSIZE};

pub const BLKPTR_SIZE: usize = 128;
pub const SPA_BLKPTRSHIFT: u32 = 7;
pub const SPA_DVAS_PER_BP: usize = 3;
/// Bytes that fit into a block pointer itself.
pub const BPE_PAYLOAD_SIZE: usize = 112;

pub const BP_EMBEDDED_TYPE_DATA: u8 = 0;
pub const BP_EMBEDDED_TYPE_RESERVED: u8 = 1;
pub const BP_EMBEDDED_TYPE_REDACTED: u8 = 2;
const NUM_BP_EMBEDDED_TYPES: u8 = 3;

const PROP: usize = 6;
const PROP2: usize = 7;
const PHYS_BIRTH: usize = 9;
const BIRTH: usize = 10;
const FILL: usize = 11;
const CKSUM: usize = 12;
/// The words of an embedded pointer that carry payload.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

/// Where one copy of a block is. Offset and size are in bytes here, in units of 512 on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Dva {
    pub vdev: u32,
    /// From the end of the front labels.
    pub offset: u64,
    /// With parity, padding and, for a gang, its children.
    pub asize: u64,
    pub gang: bool,
}

impl Dva {
    pub const fn from_words(w: [u64; 2]) -> Dva {
        Dva {
            vdev: ((w[0] >> 32) & 0xff_ffff) as u32,
            asize: (w[0] & 0xff_ffff) << SPA_MINBLOCKSHIFT,
            // The uppermost of 63 bits of sectors fall off: bytes have only 64 bits. OpenZFS loses
            // them too.
            offset: (w[1] & !(1 << 63)) << SPA_MINBLOCKSHIFT,
            gang: w[1] >> 63 != 0,
        }
    }

    pub const fn to_words(self) -> [u64; 2] {
        [
            ((self.vdev as u64 & 0xff_ffff) << 32) | ((self.asize >> SPA_MINBLOCKSHIFT) & 0xff_ffff),
            (self.offset >> SPA_MINBLOCKSHIFT) | ((self.gang as u64) << 63),
        ]
    }

    /// A DVA of no size points nowhere.
    pub const fn is_valid(&self) -> bool {
        self.asize != 0
    }
}

impl fmt::Debug for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}:{:x}:{:x}>", self.vdev, self.offset, self.asize)
    }
}

/// A block pointer, as words in the machine's order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlkPtr(pub [u64; 16]);

impl Default for BlkPtr {
    fn default() -> Self {
        BlkPtr::ZERO
    }
}

impl Zero for BlkPtr {
    const ZERO: Self = BlkPtr([0; 16]);
}

impl Field for BlkPtr {
    const SIZE: usize = BLKPTR_SIZE;

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self> {
        let raw: [u8; BLKPTR_SIZE] = r.array(field)?;
        Ok(BlkPtr::from_raw(&raw, r.order()))
    }

    fn write(&self, w: &mut Writer) {
        for v in self.0 {
            w.u64(v);
        }
    }
}

impl Phys for BlkPtr {
    const NAME: &'static str = "blkptr";
}

impl BlkPtr {
    pub const ZERO: BlkPtr = BlkPtr([0; 16]);

    /// Reads the pointer at the front of `buf`.
    pub fn decode(buf: &[u8], order: ByteOrder) -> Result<BlkPtr> {
        let problem = Problem::Truncated { need: BLKPTR_SIZE, have: buf.len() };
        let raw = buf.first_chunk().ok_or(FormatError::new("blkptr", "", 0, problem))?;
        Ok(BlkPtr::from_raw(raw, order))
    }

    pub fn from_raw(raw: &[u8; BLKPTR_SIZE], order: ByteOrder) -> BlkPtr {
        let mut words = [0; 16];
        let (chunks, _) = raw.as_chunks::<8>();
        for (w, c) in words.iter_mut().zip(chunks) {
            *w = order.u64(*c);
        }
        BlkPtr(words)
    }

    /// The pointer as this machine writes it.
    pub fn encode(&self) -> [u8; BLKPTR_SIZE] {
        let mut out = [0; BLKPTR_SIZE];
        let (chunks, _) = out.as_chunks_mut::<8>();
        for (c, w) in chunks.iter_mut().zip(self.0) {
            *c = w.to_ne_bytes();
        }
        out
    }

    /// The pointer number `i` of an indirect block.
    pub fn at(block: &[u8], i: usize, order: ByteOrder) -> Result<BlkPtr> {
        let off = i.saturating_mul(BLKPTR_SIZE);
        let problem = Problem::Truncated { need: off.saturating_add(BLKPTR_SIZE), have: block.len() };
        let rest = block.get(off..).and_then(|b| b.first_chunk());
        let raw = rest.ok_or(FormatError::new("indirect block", "blkptr", off, problem))?;
        Ok(BlkPtr::from_raw(raw, order))
    }

    /// Every pointer of an indirect block.
    pub fn iter(block: &[u8], order: ByteOrder) -> impl ExactSizeIterator<Item = BlkPtr> + '_ {
        block.as_chunks::<BLKPTR_SIZE>().0.iter().map(move |raw| BlkPtr::from_raw(raw, order))
    }

    const fn bits(&self, word: usize, at: u32, len: u32) -> u64 {
        // `word` is always one of the constants above; a constant index needs no check at run time.
        #[allow(clippy::indexing_slicing)]
        let w = self.0[word];
        (w >> at) & ((1 << len) - 1)
    }

    fn set_bits(&mut self, word: usize, at: u32, len: u32, v: u64) {
        let mask = ((1u64 << len) - 1) << at;
        if let Some(w) = self.0.get_mut(word) {
            *w = (*w & !mask) | ((v << at) & mask);
        }
    }

    // ---- kinds

    pub const fn is_embedded(&self) -> bool {
        self.bits(PROP, 39, 1) != 0
    }

    pub const fn is_hole(&self) -> bool {
        !self.is_embedded() && self.0[0] == 0 && self.0[1] == 0
    }

    pub const fn is_redacted(&self) -> bool {
        self.is_embedded() && self.embedded_type() == BP_EMBEDDED_TYPE_REDACTED
    }

    pub const fn is_gang(&self) -> bool {
        !self.is_embedded() && self.0[1] >> 63 != 0
    }

    /// The X bit: encrypted, authenticated or holding a checksum of MACs below.
    pub const fn uses_crypt(&self) -> bool {
        self.bits(PROP, 61, 1) != 0
    }

    /// Salt and IV stand in the third DVA.
    pub fn is_encrypted(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && object_type::is_encrypted(self.otype())
    }

    pub fn is_authenticated(&self) -> bool {
        self.uses_crypt() && self.level() == 0 && !object_type::is_encrypted(self.otype())
    }

    pub const fn has_indirect_mac_cksum(&self) -> bool {
        self.uses_crypt() && self.level() > 0
    }

    pub fn is_metadata(&self) -> bool {
        self.level() > 0 || object_type::is_metadata(self.otype())
    }

    // ---- fields

    pub const fn dva(&self, i: usize) -> Dva {
        match i {
            0 => Dva::from_words([self.0[0], self.0[1]]),
            1 => Dva::from_words([self.0[2], self.0[3]]),
            2 => Dva::from_words([self.0[4], self.0[5]]),
            _ => Dva { vdev: 0, offset: 0, asize: 0, gang: false },
        }
    }

    /// Places that hold a DVA: none in an embedded pointer, two in an encrypted one.
    fn dva_places(&self) -> usize {
        if self.is_embedded() {
            0
        } else if self.is_encrypted() {
            2
        } else {
            SPA_DVAS_PER_BP
        }
    }

    /// How many copies there are.
    pub fn ndvas(&self) -> usize {
        (0..self.dva_places()).filter(|&i| self.dva(i).is_valid()).count()
    }

    /// The copies there are.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        (0..self.dva_places()).map(|i| self.dva(i)).filter(Dva::is_valid)
    }

    /// Allocated bytes of all copies.
    pub fn asize(&self) -> u64 {
        (0..self.dva_places()).map(|i| self.dva(i).asize).sum()
    }

    pub fn count_gang(&self) -> usize {
        (0..self.dva_places()).filter(|&i| self.dva(i).gang).count()
    }

    /// Size of the contents. That of a hole too; 0 for a redacted block.
    pub const fn lsize(&self) -> u64 {
        if self.is_embedded() {
            if self.embedded_type() == BP_EMBEDDED_TYPE_DATA { self.embedded_lsize() as u64 } else { 0 }
        } else {
            (self.bits(PROP, 0, 16) + 1) << SPA_MINBLOCKSHIFT
        }
    }

    /// Size on disk of each copy, without parity; 0 when embedded.
    pub const fn psize(&self) -> u64 {
        if self.is_embedded() { 0 } else { (self.bits(PROP, 16, 16) + 1) << SPA_MINBLOCKSHIFT }
    }

    pub const fn compress(&self) -> u8 {
        self.bits(PROP, 32, 7) as u8
    }

    /// The checksum function; 2, off, when embedded.
    pub const fn checksum_kind(&self) -> u8 {
        if self.is_embedded() { crate::enums::ZIO_CHECKSUM_OFF } else { self.bits(PROP, 40, 8) as u8 }
    }

    pub const fn otype(&self) -> u8 {
        self.bits(PROP, 48, 8) as u8
    }

    /// Levels of indirect blocks below this pointer's block.
    pub const fn level(&self) -> u8 {
        self.bits(PROP, 56, 5) as u8
    }

    pub const fn dedup(&self) -> bool {
        self.bits(PROP, 62, 1) != 0
    }

    /// The order of the block that is pointed to.
    pub const fn byteorder(&self) -> ByteOrder {
        ByteOrder::from_bit(self.bits(PROP, 63, 1) != 0)
    }

    /// The block was written anew, unchanged, at its physical birth.
    pub const fn rewrite(&self) -> bool {
        !self.is_embedded() && self.bits(PROP2, 63, 1) != 0
    }

    /// The txg in which the contents came to be.
    pub const fn birth(&self) -> u64 {
        self.0[BIRTH]
    }

    /// The txg in which the contents were written where they are; 0 when embedded.
    pub const fn phys_birth(&self) -> u64 {
        if self.is_embedded() {
            0
        } else if self.0[PHYS_BIRTH] != 0 {
            self.0[PHYS_BIRTH]
        } else {
            self.birth()
        }
    }

    /// Blocks below that are not holes; for a dnode block, its allocated dnodes.
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            self.bits(FILL, 0, 32)
        } else {
            self.0[FILL]
        }
    }

    pub const fn cksum(&self) -> [u64; 4] {
        [self.0[CKSUM], self.0[CKSUM + 1], self.0[CKSUM + 2], self.0[CKSUM + 3]]
    }

    /// For bpobjs and livelists, which mark a freed block so.
    pub const fn free_bit(&self) -> bool {
        self.0[FILL] & 1 != 0
    }

    // ---- encryption

    /// A word as the bytes that its writer had: he put bytes there, and his order made a number of
    /// them.
    const fn cipher_bytes(&self, word: u64) -> [u8; 8] {
        if self.bits(PROP, 63, 1) == 0 { word.to_be_bytes() } else { word.to_le_bytes() }
    }

    const fn cipher_word(&self, bytes: [u8; 8]) -> u64 {
        if self.bits(PROP, 63, 1) == 0 { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    }

    /// The salt as the cipher takes it. (Salt, IV and code are only right once the byte order is
    /// set.)
    pub const fn salt(&self) -> [u8; 8] {
        self.cipher_bytes(self.0[4])
    }

    pub const fn iv(&self) -> [u8; 12] {
        let a = self.cipher_bytes(self.0[5]);
        let low = (self.0[FILL] >> 32) as u32;
        let b = if self.bits(PROP, 63, 1) == 0 { low.to_be_bytes() } else { low.to_le_bytes() };
        [a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1], b[2], b[3]]
    }

    pub fn set_salt_iv(&mut self, salt: [u8; 8], iv: [u8; 12]) {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = iv;
        self.0[4] = self.cipher_word(salt);
        self.0[5] = self.cipher_word([a, b, c, d, e, f, g, h]);
        let last = [i, j, k, l];
        let last =
            if self.bits(PROP, 63, 1) == 0 { u32::from_be_bytes(last) } else { u32::from_le_bytes(last) };
        self.set_bits(FILL, 32, 32, u64::from(last));
    }

    /// The authentication code, in the last two words of the checksum.
    pub const fn mac(&self) -> [u8; 16] {
        let (a, b) = (self.cipher_bytes(self.0[CKSUM + 2]), self.cipher_bytes(self.0[CKSUM + 3]));
        [a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]
    }

    pub const fn set_mac(&mut self, mac: [u8; 16]) {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = mac;
        self.0[CKSUM + 2] = self.cipher_word([a, b, c, d, e, f, g, h]);
        self.0[CKSUM + 3] = self.cipher_word([i, j, k, l, m, n, o, p]);
    }

    /// Sizes, kinds and flags, as one word.
    pub const fn prop_word(&self) -> u64 {
        self.0[PROP]
    }

    // ---- embedded

    pub const fn embedded_type(&self) -> u8 {
        self.bits(PROP, 40, 8) as u8
    }

    pub const fn embedded_lsize(&self) -> u32 {
        self.bits(PROP, 0, 25) as u32 + 1
    }

    /// Bytes of the payload that count. At most 128 whatever the bits say; over 112 is impossible.
    pub const fn embedded_psize(&self) -> usize {
        self.bits(PROP, 25, 7) as usize + 1
    }

    /// The whole payload, of which [`BlkPtr::embedded_psize`] bytes count.
    pub fn embedded_data(&self) -> [u8; BPE_PAYLOAD_SIZE] {
        let mut out = [0; BPE_PAYLOAD_SIZE];
        let (chunks, _) = out.as_chunks_mut::<8>();
        for (c, i) in chunks.iter_mut().zip(PAYLOAD_WORDS) {
            *c = self.0.get(i).copied().unwrap_or(0).to_le_bytes();
        }
        out
    }

    /// A pointer that is its own block: `data` compressed by `compress` from `lsize` bytes. `None`
    /// when `data` is empty or over 112 bytes.
    pub fn embedded(
        data: &[u8],
        compress: u8,
        lsize: u64,
        otype: u8,
        level: u8,
        birth: u64,
    ) -> Option<BlkPtr> {
        if data.is_empty() || data.len() > BPE_PAYLOAD_SIZE || lsize == 0 || lsize > 1 << 25 {
            return None;
        }
        let mut bp = BlkPtr::ZERO;
        let mut payload = [0; BPE_PAYLOAD_SIZE];
        crate::bytes::put_at(&mut payload, 0, data)?;
        for (c, i) in payload.as_chunks::<8>().0.iter().zip(PAYLOAD_WORDS) {
            *bp.0.get_mut(i)? = u64::from_le_bytes(*c);
        }
        bp.set_bits(PROP, 39, 1, 1);
        bp.set_bits(PROP, 40, 8, u64::from(BP_EMBEDDED_TYPE_DATA));
        bp.set_bits(PROP, 0, 25, lsize - 1);
        bp.set_bits(PROP, 25, 7, data.len() as u64 - 1);
        bp.set_compress(compress);
        bp.set_otype(otype);
        bp.set_level(level);
        bp.set_byteorder(ByteOrder::NATIVE);
        bp.set_birth(birth);
        Some(bp)
    }

    /// The pointer of a block whose contents were left out by a redacted send.
    pub fn redacted(lsize: u64, otype: u8, level: u8, birth: u64) -> BlkPtr {
        let mut bp = BlkPtr::hole(lsize, otype, level, birth);
        bp.set_bits(PROP, 39, 1, 1);
        bp.set_bits(PROP, 40, 8, u64::from(BP_EMBEDDED_TYPE_REDACTED));
        bp
    }

    // ---- writing

    /// A hole that remembers what it was. With `birth` 0 (feature `hole_birth` off) a hole is all
    /// zeros.
    pub fn hole(lsize: u64, otype: u8, level: u8, birth: u64) -> BlkPtr {
        let mut bp = BlkPtr::ZERO;
        if birth != 0 {
            bp.set_lsize(lsize);
            bp.set_otype(otype);
            bp.set_level(level);
            bp.set_birth(birth);
        }
        bp
    }

    pub fn set_dva(&mut self, i: usize, dva: Dva) {
        if let Some([a, b]) = self.0.get_mut(..PROP).and_then(|w| w.as_chunks_mut::<2>().0.get_mut(i)) {
            [*a, *b] = dva.to_words();
        }
    }

    pub fn clear_dvas(&mut self) {
        for i in 0..SPA_DVAS_PER_BP {
            self.set_dva(i, Dva::default());
        }
    }

    /// `lsize` is a multiple of 512, at least 512.
    pub fn set_lsize(&mut self, lsize: u64) {
        self.set_bits(PROP, 0, 16, (lsize >> SPA_MINBLOCKSHIFT).wrapping_sub(1));
    }

    pub fn set_psize(&mut self, psize: u64) {
        self.set_bits(PROP, 16, 16, (psize >> SPA_MINBLOCKSHIFT).wrapping_sub(1));
    }

    pub fn set_compress(&mut self, v: u8) {
        self.set_bits(PROP, 32, 7, u64::from(v));
    }

    pub fn set_checksum_kind(&mut self, v: u8) {
        self.set_bits(PROP, 40, 8, u64::from(v));
    }

    pub fn set_otype(&mut self, v: u8) {
        self.set_bits(PROP, 48, 8, u64::from(v));
    }

    pub fn set_level(&mut self, v: u8) {
        self.set_bits(PROP, 56, 5, u64::from(v));
    }

    pub fn set_crypt(&mut self, v: bool) {
        self.set_bits(PROP, 61, 1, u64::from(v));
    }

    pub fn set_dedup(&mut self, v: bool) {
        self.set_bits(PROP, 62, 1, u64::from(v));
    }

    pub fn set_byteorder(&mut self, v: ByteOrder) {
        self.set_bits(PROP, 63, 1, u64::from(v.bit()));
    }

    pub fn set_rewrite(&mut self, v: bool) {
        self.set_bits(PROP2, 63, 1, u64::from(v));
    }

    /// Sets the logical birth; the physical one is the same until [`BlkPtr::set_births`] says
    /// otherwise.
    pub const fn set_birth(&mut self, logical: u64) {
        self.0[BIRTH] = logical;
    }

    pub const fn set_births(&mut self, logical: u64, physical: u64) {
        self.0[BIRTH] = logical;
        self.0[PHYS_BIRTH] = if logical == physical { 0 } else { physical };
    }

    pub fn set_fill(&mut self, fill: u64) {
        if self.is_encrypted() {
            self.set_bits(FILL, 0, 32, fill);
        } else {
            self.0[FILL] = fill;
        }
    }

    pub fn set_free_bit(&mut self, v: bool) {
        self.set_bits(FILL, 0, 1, u64::from(v));
    }

    pub const fn set_cksum(&mut self, c: [u64; 4]) {
        [self.0[CKSUM], self.0[CKSUM + 1], self.0[CKSUM + 2], self.0[CKSUM + 3]] = c;
    }

    /// Same block: same places, same births. What OpenZFS's `BP_EQUAL` compares.
    pub fn same_block(&self, other: &BlkPtr) -> bool {
        self.phys_birth() == other.phys_birth()
            && self.birth() == other.birth()
            && self.0.get(..PROP) == other.0.get(..PROP)
    }

    // ---- checks

    /// Finds values that no pointer has, whatever pool it belongs to. Whether the vdevs exist and
    /// the offsets lie on them only the pool can say.
    pub fn validate(&self) -> Result<(), BpError> {
        if !object_type::is_valid(self.otype()) {
            return Err(BpError::Type(self.otype()));
        }
        if self.compress() >= crate::enums::ZIO_COMPRESS_FUNCTIONS {
            return Err(BpError::Compress(self.compress()));
        }
        if self.lsize() > SPA_MAXBLOCKSIZE {
            return Err(BpError::Lsize(self.lsize()));
        }
        if self.is_embedded() {
            if self.embedded_type() >= NUM_BP_EMBEDDED_TYPES {
                return Err(BpError::EmbeddedType(self.embedded_type()));
            }
            if self.embedded_psize() > BPE_PAYLOAD_SIZE {
                return Err(BpError::Psize(self.embedded_psize() as u64));
            }
            return Ok(());
        }
        if self.is_hole() {
            return Ok(());
        }
        if !self.dva(0).is_valid() {
            return Err(BpError::NoDva);
        }
        if self.checksum_kind() >= crate::enums::ZIO_CHECKSUM_FUNCTIONS {
            return Err(BpError::Checksum(self.checksum_kind()));
        }
        if self.psize() > SPA_MAXBLOCKSIZE {
            return Err(BpError::Psize(self.psize()));
        }
        for i in 0..self.dva_places() {
            let sectors = self.0.get(2 * i + 1).copied().unwrap_or(0) & !(1 << 63);
            if sectors > u64::MAX / 2 / SPA_MINBLOCKSIZE {
                return Err(BpError::Offset { dva: i, sectors });
            }
        }
        Ok(())
    }
}

/// A block pointer that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BpError {
    #[error("block pointer has invalid TYPE {0}")]
    Type(u8),
    #[error("block pointer has invalid COMPRESS {0}")]
    Compress(u8),
    #[error("block pointer has invalid CHECKSUM {0}")]
    Checksum(u8),
    #[error("block pointer has invalid LSIZE {0}")]
    Lsize(u64),
    #[error("block pointer has invalid PSIZE {0}")]
    Psize(u64),
    #[error("block pointer has invalid ETYPE {0}")]
    EmbeddedType(u8),
    #[error("block pointer has no valid DVAs")]
    NoDva,
    #[error("block pointer DVA {dva} has invalid OFFSET of {sectors} sectors")]
    Offset { dva: usize, sectors: u64 },
}

/// As zdb prints it.
impl fmt::Display for BlkPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, otype) = (self.level(), object_type::name(self.otype()));
        let (lsize, birth) = (self.lsize(), self.birth());
        let compress = crate::enums::compress_name(self.compress());
        if self.is_hole() {
            return write!(f, "HOLE [L{level} {otype}] size={lsize:x}L birth={birth}L");
        }
        if self.is_embedded() {
            let (et, l, p) = (self.embedded_type(), self.embedded_lsize(), self.embedded_psize());
            return write!(
                f,
                "EMBEDDED [L{level} {otype}] et={et} {compress} size={l:x}L/{p:x}P birth={birth}L"
            );
        }
        for (i, dva) in self.dvas().enumerate() {
            write!(f, "DVA[{i}]={dva:?} ")?;
        }
        if self.is_encrypted() {
            write!(f, "salt={:x} iv={:x}:{:x} ", self.0[4], self.0[5], self.0[FILL] >> 32)?;
        }
        let crypt = if self.is_encrypted() {
            "encrypted"
        } else if self.is_authenticated() {
            "authenticated"
        } else if self.has_indirect_mac_cksum() {
            "indirect-MAC"
        } else {
            "unencrypted"
        };
        let checksum = crate::enums::checksum_name(self.checksum_kind());
        let order = if self.byteorder() == ByteOrder::Big { "BE" } else { "LE" };
        let gang = if self.is_gang() { "gang" } else { "contiguous" };
        let dedup = if self.dedup() { "dedup" } else { "unique" };
        let copies = match self.ndvas() {
            0 => "zero",
            1 => "single",
            2 => "double",
            _ => "triple",
        };
        write!(f, "[L{level} {otype}] {checksum} {compress} {crypt} {order} {gang} {dedup} {copies} ")?;
        write!(f, "size={lsize:x}L/{:x}P birth={birth}L/{}P ", self.psize(), self.phys_birth())?;
        let [a, b, c, d] = self.cksum();
        write!(f, "fill={} cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}", self.fill())
    }
}

impl fmt::Debug for BlkPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
