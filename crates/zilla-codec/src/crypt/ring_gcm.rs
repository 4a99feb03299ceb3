//! ring's AES-GCM, with its key overwritten when it is dropped, which ring does not do.

use super::{IV_LEN, MAC_LEN, Suite};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, Tag, UnboundKey};

pub struct RingGcm {
    key: Box<LessSafeKey>,
    kind: &'static Algorithm,
}

impl RingGcm {
    /// None if there is no such, or the key is not as long as the suite's.
    pub fn new(suite: Suite, key: &[u8]) -> Option<RingGcm> {
        let kind = match suite {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::Aes256Gcm => &AES_256_GCM,
            _ => return None,
        };
        let key = Box::new(LessSafeKey::new(UnboundKey::new(kind, key).ok()?));
        Some(RingGcm { key, kind })
    }

    /// None: it is too long.
    pub fn seal(&self, iv: &[u8; IV_LEN], aad: &[u8], buf: &mut [u8]) -> Option<[u8; MAC_LEN]> {
        let nonce = Nonce::assume_unique_for_key(*iv);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(aad), buf).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Whether the code is right. If it is not, nothing of use is left in `buf`.
    pub fn open(&self, iv: &[u8; IV_LEN], aad: &[u8], buf: &mut [u8], mac: &[u8; MAC_LEN]) -> bool {
        let nonce = Nonce::assume_unique_for_key(*iv);
        let Ok(tag) = Tag::try_from(&mac[..]) else { return false };
        self.key.open_in_place_separate_tag(nonce, Aad::from(aad), tag, buf, 0..).is_ok()
    }
}

impl Drop for RingGcm {
    fn drop(&mut self) {
        let nothing = [0; 32];
        let nothing = nothing.get(..self.kind.key_len()).and_then(|k| UnboundKey::new(self.kind, k).ok());
        if let Some(nothing) = nothing {
            *self.key = LessSafeKey::new(nothing);
            // Else nobody would see it, and it might be left out.
            std::hint::black_box(&mut *self.key);
        }
    }
}
