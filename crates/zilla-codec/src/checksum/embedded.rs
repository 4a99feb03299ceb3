//! Checksums inside the block they cover: vdev labels and uberblocks, gang headers, log blocks.
//!
//! These blocks are found by where they are, not by a pointer that could hold their checksum. They
//! carry a `zio_eck_t`: a magic number (which also tells the writer's byte order) and 32 bytes of
//! checksum, at the end of the block or, in a `zilog2` log block, inside the header at its start.
//! The sum is taken with a *verifier* in the place of the checksum: something the reader knows
//! anyway, so that a valid block that was written to another place, or for another chain, does not
//! pass. Torn or stale blocks fail the same way, which is what makes reading the end of a log after
//! a crash safe.
//!
//! In an encrypted log block the last two words of the checksum are its authentication code, and
//! the first two have the others folded into them.
//!
//! On disk: magic u64, checksum 4 x u64, all in the writer's order.

#![deny(clippy::indexing_slicing)]

use super::{ByteOrder, Checksum, Cksum, Fletcher4, fletcher, sha2};

/// `ZEC_MAGIC`.
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// The size of a `zio_eck_t`.
pub const ECK_SIZE: usize = 40;
/// Where the `zio_eck_t` of a `zil_chain_t` is: behind a pad, the next block's pointer and the
/// bytes used.
const ZIL_ECK: usize = 8 + 128 + 8;
const ZIL_NUSED: usize = 8 + 128;
/// A `zilog2` sum covers the bytes used, rounded up to this.
const ZIL_MIN_BLOCK: u64 = 4096;

/// Why an embedded checksum was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddedError {
    #[error("checksum {} is not embedded in its block", .0.name())]
    NotEmbedded(Checksum),
    #[error("a block of {size} bytes cannot hold an embedded checksum")]
    TooShort { size: usize },
    #[error("embedded checksum's magic is {found:#x}, not {MAGIC:#x}")]
    BadMagic { found: u64 },
    #[error("log block says {used} bytes are used of {size}")]
    BadUsed { used: u64, size: usize },
    #[error("embedded checksum is {found:x?}, but the block's is {actual:x?}")]
    Mismatch { found: Cksum, actual: Cksum },
}

/// The verifier of a label or uberblock at this offset of its device.
pub const fn label_verifier(offset: u64) -> Cksum {
    [offset, 0, 0, 0]
}

/// The verifier of a gang header: the first DVA's vdev and offset, and the physical birth txg.
pub const fn gang_verifier(vdev: u64, offset: u64, birth: u64) -> Cksum {
    [vdev, offset, birth, 0]
}

/// A block with its `zio_eck_t` found.
struct Layout {
    order: ByteOrder,
    /// Where the checksum words are.
    sum: usize,
    /// How many bytes are summed.
    size: usize,
}

fn word(buf: &[u8], at: usize, order: ByteOrder) -> Option<u64> {
    let bytes = buf.get(at..)?.first_chunk::<8>()?;
    Some(if order == ByteOrder::Big { u64::from_be_bytes(*bytes) } else { u64::from_le_bytes(*bytes) })
}

fn eck_offset(kind: Checksum, buf: &[u8]) -> Result<usize, EmbeddedError> {
    let short = EmbeddedError::TooShort { size: buf.len() };
    match kind {
        Checksum::Zilog2 if buf.len() >= ZIL_ECK + ECK_SIZE => Ok(ZIL_ECK),
        Checksum::Label | Checksum::GangHeader | Checksum::Zilog => {
            buf.len().checked_sub(ECK_SIZE).ok_or(short)
        }
        Checksum::Zilog2 => Err(short),
        other => Err(EmbeddedError::NotEmbedded(other)),
    }
}

fn layout(kind: Checksum, buf: &[u8], eck: usize, order: ByteOrder) -> Result<Layout, EmbeddedError> {
    let size = if kind == Checksum::Zilog2 {
        let used = word(buf, ZIL_NUSED, order).unwrap_or(u64::MAX);
        let bad = EmbeddedError::BadUsed { used, size: buf.len() };
        let rounded = used.checked_next_multiple_of(ZIL_MIN_BLOCK).ok_or(bad)?;
        let size = usize::try_from(rounded).map_err(|_| bad)?;
        // The header itself must be covered: a chain that says it uses nothing is not a log block.
        if size > buf.len() || size < ZIL_ECK + ECK_SIZE {
            return Err(bad);
        }
        size
    } else {
        buf.len()
    };
    Ok(Layout { order, sum: eck + 8, size })
}

/// The sum of the block with `verifier` standing where the checksum is.
fn sum(kind: Checksum, buf: &[u8], layout: &Layout, verifier: &Cksum) -> Cksum {
    let verifier = to_bytes(verifier, layout.order);
    // The layout lies inside the block: it was made from it.
    let before = buf.get(..layout.sum).unwrap_or_default();
    let after = buf.get(layout.sum + 32..layout.size).unwrap_or_default();
    let swap = layout.order.is_swapped();
    match kind {
        Checksum::Zilog2 => {
            let mut sum = Fletcher4::new(swap);
            [before, &verifier, after].into_iter().for_each(|part| sum.update(part));
            sum.finish()
        }
        Checksum::Zilog => [before, &verifier, after]
            .into_iter()
            .fold([0; 4], |sum, part| fletcher::fletcher2_from(sum, part, swap)),
        _ => sha2::sha256_parts([before, &verifier, after]),
    }
}

fn to_bytes(words: &Cksum, order: ByteOrder) -> [u8; 32] {
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = if order == ByteOrder::Big { word.to_be_bytes() } else { word.to_le_bytes() };
    }
    out
}

/// Writes magic and checksum into `buf`, whose other words the caller has laid out in `order`.
pub fn seal(kind: Checksum, buf: &mut [u8], verifier: &Cksum, order: ByteOrder) -> Result<(), EmbeddedError> {
    let eck = eck_offset(kind, buf)?;
    let layout = layout(kind, buf, eck, order)?;
    let magic = if order == ByteOrder::Big { MAGIC.to_be_bytes() } else { MAGIC.to_le_bytes() };
    let sum = |buf: &[u8]| to_bytes(&sum(kind, buf, &layout, verifier), order);
    let short = EmbeddedError::TooShort { size: buf.len() };
    // The magic is summed, so it must be there before the sum is taken.
    *buf.get_mut(eck..).and_then(|eck| eck.first_chunk_mut()).ok_or(short)? = magic;
    let sum = sum(buf);
    *buf.get_mut(layout.sum..).and_then(|at| at.first_chunk_mut()).ok_or(short)? = sum;
    Ok(())
}

/// As [`seal`], for a block whose authentication code takes the place of half the checksum, which
/// is folded.
pub fn seal_with_mac(
    kind: Checksum,
    buf: &mut [u8],
    verifier: &Cksum,
    order: ByteOrder,
    mac: &[u8; 16],
) -> Result<(), EmbeddedError> {
    seal(kind, buf, verifier, order)?;
    let at = eck_offset(kind, buf)? + 8;
    let mut found = [0; 4];
    for (i, found) in found.iter_mut().enumerate() {
        *found = word(buf, at + 8 * i, order).unwrap_or(0);
    }
    let short = EmbeddedError::TooShort { size: buf.len() };
    let place = buf.get_mut(at..).and_then(|at| at.first_chunk_mut::<32>()).ok_or(short)?;
    *place = to_bytes(&fold(found), order);
    let (_, code) = place.split_at_mut(16);
    code.copy_from_slice(mac);
    Ok(())
}

/// Where the authentication code of an encrypted log block is.
pub fn log_mac(buf: &[u8]) -> Option<[u8; 16]> {
    buf.get(ZIL_ECK + 8 + 16..)?.first_chunk().copied()
}

/// Half of a checksum, the other half folded into it; two words are left for a code.
const fn fold(c: Cksum) -> Cksum {
    [c[0] ^ c[2], c[1] ^ c[3], 0, 0]
}

/// As [`verify`], for a block that holds an authentication code in half the checksum's place: the
/// code itself is not checked.
pub fn verify_with_mac(kind: Checksum, buf: &[u8], verifier: &Cksum) -> Result<ByteOrder, EmbeddedError> {
    match verify(kind, buf, verifier) {
        Err(EmbeddedError::Mismatch { found: [a, b, _, _], actual }) => {
            let (found, actual) = ([a, b, 0, 0], fold(actual));
            if found != actual {
                return Err(EmbeddedError::Mismatch { found, actual });
            }
            let eck = eck_offset(kind, buf)?;
            let little = word(buf, eck, ByteOrder::Little) == Some(MAGIC);
            Ok(if little { ByteOrder::Little } else { ByteOrder::Big })
        }
        // A whole checksum is not what such a block has, but for one in 2^128.
        other => other,
    }
}

/// Checks a block that came from a disk, and says in which byte order it was written.
pub fn verify(kind: Checksum, buf: &[u8], verifier: &Cksum) -> Result<ByteOrder, EmbeddedError> {
    let eck = eck_offset(kind, buf)?;
    let magic = word(buf, eck, ByteOrder::Little).unwrap_or(0);
    let order = match magic {
        MAGIC => ByteOrder::Little,
        m if m == MAGIC.swap_bytes() => ByteOrder::Big,
        found => return Err(EmbeddedError::BadMagic { found }),
    };
    let layout = layout(kind, buf, eck, order)?;
    let actual = sum(kind, buf, &layout, verifier);
    let mut found = [0; 4];
    for (i, found) in found.iter_mut().enumerate() {
        *found = word(buf, layout.sum + 8 * i, order).unwrap_or(0);
    }
    if found == actual { Ok(order) } else { Err(EmbeddedError::Mismatch { found, actual }) }
}
