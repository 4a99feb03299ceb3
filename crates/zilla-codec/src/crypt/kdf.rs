//! Keys from keys, and keys from passphrases.
//!
//! How often a passphrase is hashed is said by the key's object on disk or by a stream, up to 2^64
//! times; so it is hashed in pieces ([`Passphrase::hash`]), and whoever waits decides when it was
//! enough. (The crate `pbkdf2` hashes to the end.)

use super::{SALT_LEN, Suite, WRAPPING_KEY_LEN};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::Sha512;
use zeroize::Zeroizing;

/// The salt of a passphrase is a number of the key's object, little endian.
pub const PBKDF2_SALT_LEN: usize = 8;

/// The key of the blocks that have this salt: HKDF-SHA512 of the master key, the salt as its
/// `info`.
pub fn derive(suite: Suite, master: &[u8], salt: &[u8; SALT_LEN]) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![0; suite.key_len()]);
    let mut hkdf = Hkdf::<Sha512>::new(None, master);
    // It refuses only more than 255 digests.
    let done = hkdf.expand(salt, &mut out);
    debug_assert!(done.is_ok());
    hkdf = Hkdf::new(None, &[]);
    std::hint::black_box(&mut hkdf);
    out
}

/// A digest of SHA-1.
const DIGEST_LEN: usize = 20;
/// Digests that a wrapping key is the beginning of.
const DIGESTS: usize = WRAPPING_KEY_LEN.div_ceil(DIGEST_LEN);

/// A passphrase on its way to be a wrapping key: PBKDF2-HMAC-SHA1, as often as the key's object
/// says.
pub struct Passphrase {
    prf: Hmac<Sha1>,
    /// Of each digest the last iteration's output, and the sum of all so far.
    last: Zeroizing<[[u8; DIGEST_LEN]; DIGESTS]>,
    sum: Zeroizing<[[u8; DIGEST_LEN]; DIGESTS]>,
    left: u64,
}

impl Drop for Passphrase {
    fn drop(&mut self) {
        if let Ok(nothing) = <Hmac<Sha1> as Mac>::new_from_slice(&[]) {
            self.prf = nothing;
            std::hint::black_box(&mut self.prf);
        }
    }
}

impl Passphrase {
    /// None for no iterations at all.
    pub fn new(passphrase: &[u8], salt: &[u8; PBKDF2_SALT_LEN], iterations: u64) -> Option<Passphrase> {
        let left = iterations.checked_sub(1)?;
        // HMAC takes keys of any length.
        let prf = <Hmac<Sha1> as Mac>::new_from_slice(passphrase).ok()?;
        let mut last = Zeroizing::new([[0; DIGEST_LEN]; DIGESTS]);
        for (number, digest) in (1u32..).zip(last.iter_mut()) {
            let first = prf.clone().chain_update(salt).chain_update(number.to_be_bytes());
            *digest = first.finalize().into_bytes().into();
        }
        Some(Passphrase { prf, sum: last.clone(), last, left })
    }

    /// Hashes so often at most; the key when that was the last of it.
    pub fn hash(&mut self, iterations: u64) -> Option<Zeroizing<[u8; WRAPPING_KEY_LEN]>> {
        let now = iterations.min(self.left);
        for (last, sum) in self.last.iter_mut().zip(self.sum.iter_mut()) {
            for _ in 0..now {
                *last = self.prf.clone().chain_update(&last[..]).finalize().into_bytes().into();
                sum.iter_mut().zip(last.iter()).for_each(|(s, l)| *s ^= l);
            }
        }
        self.left -= now;
        (self.left == 0).then(|| {
            let mut out = Zeroizing::new([0; WRAPPING_KEY_LEN]);
            out.iter_mut().zip(self.sum.iter().flatten()).for_each(|(o, s)| *o = *s);
            out
        })
    }
}
