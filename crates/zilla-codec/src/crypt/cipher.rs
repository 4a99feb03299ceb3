//! AES in GCM or CCM over one buffer in place, with 12 bytes of IV and 16 of code.

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

/// The mode cannot take so long a message: CCM's lengths have three bytes here, so a block of 16 MiB is one too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are too long for the cipher")]
pub struct TooLong(usize);

/// A key, expanded. Overwritten when it is dropped.
pub struct Cipher {
    suite: Suite,
    mode: Mode,
}

enum Mode {
    Gcm128(Box<Gcm<Aes128>>),
    Gcm192(Box<Gcm<Aes192>>),
    Gcm256(Box<Gcm<Aes256>>),
    Ccm128(Box<Ccm<Aes128>>),
    Ccm192(Box<Ccm<Aes192>>),
    Ccm256(Box<Ccm<Aes256>>),
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cipher").field("suite", &self.suite.name()).finish_non_exhaustive()
    }
}

/// One call for whichever cipher it is.
macro_rules! with {
    ($self:expr, $c:ident => $e:expr) => {
        match &$self.mode {
            Mode::Gcm128($c) => $e,
            Mode::Gcm192($c) => $e,
            Mode::Gcm256($c) => $e,
            Mode::Ccm128($c) => $e,
            Mode::Ccm192($c) => $e,
            Mode::Ccm256($c) => $e,
        }
    };
}

impl Cipher {
    /// None if the key is not as long as the suite's.
    pub fn new(suite: Suite, key: &[u8]) -> Option<Cipher> {
        let mode = match suite {
            Suite::Aes128Gcm => Mode::Gcm128(Box::new(Gcm::new_from_slice(key).ok()?)),
            Suite::Aes192Gcm => Mode::Gcm192(Box::new(Gcm::new_from_slice(key).ok()?)),
            Suite::Aes256Gcm => Mode::Gcm256(Box::new(Gcm::new_from_slice(key).ok()?)),
            Suite::Aes128Ccm => Mode::Ccm128(Box::new(Ccm::new_from_slice(key).ok()?)),
            Suite::Aes192Ccm => Mode::Ccm192(Box::new(Ccm::new_from_slice(key).ok()?)),
            Suite::Aes256Ccm => Mode::Ccm256(Box::new(Ccm::new_from_slice(key).ok()?)),
        };
        Some(Cipher { suite, mode })
    }

    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Encrypts `buf` where it is and gives the code over it and `aad`. An IV is never used twice with one key.
    pub fn seal(&self, iv: &[u8; IV_LEN], aad: &[u8], buf: &mut [u8]) -> Result<[u8; MAC_LEN], TooLong> {
        let nonce = Nonce::<U12>::from_slice(iv);
        let tag = with!(self, c => c.encrypt_in_place_detached(nonce, aad, buf));
        tag.map(Into::into).map_err(|_| TooLong(buf.len()))
    }

    /// Decrypts `buf` where it is, if the code is right. If it is not, `buf` holds nothing of use.
    pub fn open(
        &self,
        iv: &[u8; IV_LEN],
        aad: &[u8],
        buf: &mut [u8],
        mac: &[u8; MAC_LEN],
    ) -> Result<(), Forged> {
        let nonce = Nonce::<U12>::from_slice(iv);
        with!(self, c => c.decrypt_in_place_detached(nonce, aad, buf, mac.into())).map_err(|_| Forged)
    }
}
