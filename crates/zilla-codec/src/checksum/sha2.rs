//! SHA-256 and SHA-512/256 (with SHA-NI where the CPU has it): one message by the `sha2` crate,
//! many by a kernel of ours that hashes two at once.

use sha2::{Digest, Sha256, Sha512_256};

use super::Cksum;
#[cfg(target_arch = "x86_64")]
use super::sha256_x86 as x86;

/// SHA-256 with the digest read big-endian, whatever the machine: so the first implementation wrote
/// it.
pub(super) fn sha256(data: &[u8]) -> Cksum {
    big_endian(&Sha256::digest(data).into())
}

/// [`sha256`] of each block, into the place beside it. (Not generic: the kernel would be compiled
/// in the caller's crate, where its steps may stay calls, and takes eight times as long so.)
pub(super) fn sha256_all<'a>(blocks: &mut dyn Iterator<Item = (&'a [u8], &'a mut Cksum)>) {
    #[cfg(target_arch = "x86_64")]
    if x86::available() {
        // SAFETY: the CPU has the instructions.
        return unsafe { x86::hash_all(blocks) };
    }
    blocks.for_each(|(data, out)| *out = sha256(data));
}

/// SHA-256 of parts that lie one after another, for blocks whose checksum field must be read as
/// another value.
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
