//! SHA-256 and SHA-512/256 (with SHA-NI where the CPU has it): one message by the `sha2` crate, many by a
//! kernel of ours that hashes two at once.

use sha2::{Digest, Sha256, Sha512_256};

use super::Cksum;
#[cfg(target_arch = "x86_64")]
use super::sha256_x86 as x86;

/// SHA-256 with the digest read big-endian, whatever the machine: so the first implementation wrote it.
pub(super) fn sha256(data: &[u8]) -> Cksum {
    big_endian(&Sha256::digest(data).into())
}

/// [`sha256`] of each of `blocks`.
pub(super) fn sha256_all(blocks: &[&[u8]]) -> Vec<Cksum> {
    #[cfg(target_arch = "x86_64")]
    if blocks.len() > 1 && x86::available() {
        return two_at_once(blocks);
    }
    blocks.iter().map(|data| sha256(data)).collect()
}

/// A message that is being hashed: its state, and what has not gone into it.
#[cfg(target_arch = "x86_64")]
struct Stream<'a> {
    index: usize,
    state: [u32; 8],
    whole: &'a [[u8; 64]],
    /// The last bytes, the bit that ends them and their number: one block or two.
    end: [[u8; 64]; 2],
    end_at: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Stream<'a> {
    fn new(index: usize, data: &'a [u8]) -> Self {
        // The first 32 bits of the fractional parts of the square roots of the first 8 primes (FIPS 180-4, 5.3.3).
        let state =
            [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
        let (whole, tail) = data.as_chunks::<64>();
        // Eight bytes for the length and one for the bit: with more than 55 they begin in the block before.
        let end_at = usize::from(tail.len() < 56);
        let mut end = [[0; 64]; 2];
        let bytes = end.as_flattened_mut();
        let start = end_at * 64;
        bytes[start..][..tail.len()].copy_from_slice(tail);
        bytes[start + tail.len()] = 0x80;
        bytes[120..].copy_from_slice(&(data.len() as u64 * 8).to_be_bytes());
        Stream { index, state, whole, end, end_at }
    }

    fn finish(mut self, out: &mut [Cksum]) {
        // SAFETY: streams are only made where the CPU has the instructions.
        unsafe { x86::absorb([&mut self.state], [self.whole]) };
        // SAFETY: as above.
        unsafe { x86::absorb([&mut self.state], [&self.end[self.end_at..]]) };
        let [a, b, c, d, e, f, g, h] = self.state.map(u64::from);
        out[self.index] = [a << 32 | b, c << 32 | d, e << 32 | f, g << 32 | h];
    }
}

/// Two messages side by side; when one ends, the next takes its place.
#[cfg(target_arch = "x86_64")]
fn two_at_once(blocks: &[&[u8]]) -> Vec<Cksum> {
    let mut out = vec![[0; 4]; blocks.len()];
    let mut waiting = blocks.iter().enumerate().map(|(index, data)| Stream::new(index, data));
    let Some(mut first) = waiting.next() else { return out };
    for mut second in waiting {
        let both = first.whole.len().min(second.whole.len());
        // SAFETY: the caller has asked whether the CPU has the instructions.
        unsafe {
            x86::absorb([&mut first.state, &mut second.state], [&first.whole[..both], &second.whole[..both]])
        };
        (first.whole, second.whole) = (&first.whole[both..], &second.whole[both..]);
        let (done, left) = if first.whole.is_empty() { (first, second) } else { (second, first) };
        done.finish(&mut out);
        first = left;
    }
    first.finish(&mut out);
    out
}

/// SHA-256 of parts that lie one after another, for blocks whose checksum field must be read as another value.
pub(super) fn sha256_parts(parts: [&[u8]; 3]) -> Cksum {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    big_endian(&hash.finalize().into())
}

pub(super) fn sha512_256(data: &[u8]) -> [u8; 32] {
    Sha512_256::digest(data).into()
}

fn big_endian(digest: &[u8; 32]) -> Cksum {
    let mut out = [0; 4];
    for (word, bytes) in out.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = u64::from_be_bytes(*bytes);
    }
    out
}
