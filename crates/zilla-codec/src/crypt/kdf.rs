//! Keys from keys, and keys from passphrases.

use super::{SALT_LEN, Suite, WRAPPING_KEY_LEN};
use hkdf::Hkdf;
use sha1::Sha1;
use sha2::Sha512;
use zeroize::Zeroizing;

/// The salt of a passphrase is a number of the key's object, little endian.
pub const PBKDF2_SALT_LEN: usize = 8;

/// The key of the blocks that have this salt: HKDF-SHA512 of the master key, the salt as its `info`.
pub fn derive(suite: Suite, master: &[u8], salt: &[u8; SALT_LEN]) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(vec![0; suite.key_len()]);
    let hkdf = Hkdf::<Sha512>::new(None, master);
    // It refuses only more than 255 digests.
    let done = hkdf.expand(salt, &mut out);
    debug_assert!(done.is_ok());
    out
}

/// The wrapping key of a passphrase: PBKDF2-HMAC-SHA1, as often as the key's object says.
pub fn from_passphrase(
    passphrase: &[u8],
    salt: &[u8; PBKDF2_SALT_LEN],
    iterations: u32,
) -> Zeroizing<[u8; WRAPPING_KEY_LEN]> {
    let mut out = Zeroizing::new([0; WRAPPING_KEY_LEN]);
    pbkdf2::pbkdf2_hmac::<Sha1>(passphrase, salt, iterations, out.as_mut());
    out
}
