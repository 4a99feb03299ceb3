//! AES in GCM or CCM over one buffer in place, with 12 bytes of IV and 16 of code.
//!
//! GCM is ring's, which does several blocks at once and hashes them meanwhile; RustCrypto's does
//! one thing after the other. ring has no keys of 192 bits, and no CCM.

use super::ring_gcm::RingGcm;
use super::{IV_LEN, MAC_LEN, Suite};
use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::aes::{Aes128, Aes192, Aes256};
use aes_gcm::{AesGcm, Nonce};

type Gcm<C> = AesGcm<C, U12>;
type Ccm<C> = ccm::Ccm<C, U16, U12>;

/// The code does not belong to these bytes under this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the authentication code does not match")]
pub struct Forged;

/// The mode cannot take so long a message: CCM's lengths have three bytes here, so a block of 16
/// MiB is one too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are too long for the cipher")]
pub struct TooLong(usize);

/// A key, expanded. Overwritten when it is dropped.
pub struct Cipher {
    suite: Suite,
    mode: Mode,
}

enum Mode {
    Ring(RingGcm),
    RustCrypto(RustCrypto),
}

enum RustCrypto {
    Gcm192(Box<Gcm<Aes192>>),
    Ccm128(Box<Ccm<Aes128>>),
    Ccm192(Box<Ccm<Aes192>>),
    Ccm256(Box<Ccm<Aes256>>),
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cipher").field("suite", &self.suite.name()).finish_non_exhaustive()
    }
}

/// One call for whichever of RustCrypto's it is.
macro_rules! with {
    ($mode:expr, $c:ident => $e:expr) => {
        match $mode {
            RustCrypto::Gcm192($c) => $e,
            RustCrypto::Ccm128($c) => $e,
            RustCrypto::Ccm192($c) => $e,
            RustCrypto::Ccm256($c) => $e,
        }
    };
}

impl Cipher {
    /// None if the key is not as long as the suite's.
    pub fn new(suite: Suite, key: &[u8]) -> Option<Cipher> {
        let of_rust_crypto = match suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm => None,
            Suite::Aes192Gcm => Some(RustCrypto::Gcm192(Box::new(Gcm::new_from_slice(key).ok()?))),
            Suite::Aes128Ccm => Some(RustCrypto::Ccm128(Box::new(Ccm::new_from_slice(key).ok()?))),
            Suite::Aes192Ccm => Some(RustCrypto::Ccm192(Box::new(Ccm::new_from_slice(key).ok()?))),
            Suite::Aes256Ccm => Some(RustCrypto::Ccm256(Box::new(Ccm::new_from_slice(key).ok()?))),
        };
        let mode = match of_rust_crypto {
            Some(cipher) => Mode::RustCrypto(cipher),
            None => Mode::Ring(RingGcm::new(suite, key)?),
        };
        Some(Cipher { suite, mode })
    }

    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Encrypts `buf` where it is and gives the code over it and `aad`. An IV is never used twice
    /// with one key.
    pub fn seal(&self, iv: &[u8; IV_LEN], aad: &[u8], buf: &mut [u8]) -> Result<[u8; MAC_LEN], TooLong> {
        let sealed = match &self.mode {
            Mode::Ring(c) => c.seal(iv, aad, buf),
            Mode::RustCrypto(c) => {
                let nonce = Nonce::<U12>::from_slice(iv);
                with!(c, c => c.encrypt_in_place_detached(nonce, aad, buf)).ok().map(Into::into)
            }
        };
        sealed.ok_or(TooLong(buf.len()))
    }

    /// Decrypts `buf` where it is, if the code is right. If it is not, `buf` holds nothing of use.
    pub fn open(
        &self,
        iv: &[u8; IV_LEN],
        aad: &[u8],
        buf: &mut [u8],
        mac: &[u8; MAC_LEN],
    ) -> Result<(), Forged> {
        let opened = match &self.mode {
            Mode::Ring(c) => c.open(iv, aad, buf, mac),
            Mode::RustCrypto(c) => {
                let nonce = Nonce::<U12>::from_slice(iv);
                with!(c, c => c.decrypt_in_place_detached(nonce, aad, buf, mac.into())).is_ok()
            }
        };
        if opened { Ok(()) } else { Err(Forged) }
    }
}
