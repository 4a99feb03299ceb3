//! What encrypted datasets need: ciphers with authentication, keys from keys, keys from
//! passphrases, codes.
//!
//! A dataset has a random master key. Each block is encrypted under a key that HKDF derives from
//! the master key and a salt of eight bytes, with an IV of twelve and an authentication code of
//! sixteen; salt, IV and code lie in the block's pointer ([`Cipher`], [`derive`]). Blocks that stay
//! in the clear have a code of HMAC-SHA512 ([`Hmac`]). The master key itself is on disk wrapped,
//! that is encrypted, under a key of the user's: 32 bytes, or a passphrase through PBKDF2
//! ([`Passphrase`]).
//!
//! AES-GCM of 128 and 256 bits is ring's, which the product has for TLS anyway: a core that has
//! VAES encrypts 7 GB/s in blocks of 128K, where RustCrypto's does 1.2. All else is RustCrypto's:
//! AES-NI and PCLMULQDQ where the CPU has them, tables without secret-dependent addresses where
//! not. They are checked here against the vectors of NIST SP 800-38C and 38D, RFC 4231, RFC 5869's
//! construction, and RFC 6070.
//!
//! What is kept true: ciphers' expanded keys are overwritten when they are dropped (the states of
//! HMACs are not: the library has no way to); nothing here has a `Debug` that shows a key; a failed
//! check gives no plaintext.

#![deny(clippy::indexing_slicing)]

mod cipher;
mod kdf;
mod mac;
mod ring_gcm;
mod suite;

#[cfg(test)]
mod tests;

pub use cipher::{Cipher, Forged, TooLong};
pub use kdf::{PBKDF2_SALT_LEN, Passphrase, derive};
pub use mac::{Hmac, digest, same};
pub use suite::Suite;

/// Bytes of a block's salt, IV and code, and of a wrapping key's. Source: ZIO_DATA_*_LEN and
/// WRAPPING_*_LEN in sys/zio_crypt.h.
pub const SALT_LEN: usize = 8;
pub const IV_LEN: usize = 12;
pub const MAC_LEN: usize = 16;
pub const WRAPPING_KEY_LEN: usize = 32;
pub const MASTER_KEY_MAX_LEN: usize = 32;
pub const HMAC_KEY_LEN: usize = 64;
