//! Codes over what is not encrypted.

use hmac::Mac;
use sha2::Sha512;
use std::sync::LazyLock;

type State = hmac::Hmac<Sha512>;

/// What a state is overwritten by.
static NOTHING: LazyLock<State> = LazyLock::new(|| keyed(&[]));

fn keyed(key: &[u8]) -> State {
    match hmac::Hmac::new_from_slice(key) {
        Ok(h) => h,
        Err(_) => unreachable!("HMAC takes keys of any length"),
    }
}

/// A running HMAC-SHA512. Overwritten when it is dropped: with its state codes can be forged as
/// with its key.
#[derive(Clone)]
pub struct Hmac(Box<State>);

impl std::fmt::Debug for Hmac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hmac(..)")
    }
}

impl Hmac {
    pub fn new(key: &[u8]) -> Hmac {
        Hmac(Box::new(keyed(key)))
    }

    pub fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    pub fn finish(mut self) -> [u8; 64] {
        std::mem::replace(&mut *self.0, NOTHING.clone()).finalize().into_bytes().into()
    }

    /// The code of one message. The key stays.
    pub fn of(&self, data: &[u8]) -> [u8; 64] {
        let mut h = self.clone();
        h.update(data);
        h.finish()
    }

    fn wipe(&mut self) {
        *self.0 = NOTHING.clone();
        // Else nobody would see it, and it might be left out.
        std::hint::black_box(&mut *self.0);
    }
}

impl Drop for Hmac {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// SHA-512 without a key, for what vouches for codes and is one of nothing else.
pub fn digest(data: &[u8]) -> [u8; 64] {
    use sha2::Digest;
    Sha512::digest(data).into()
}

/// Whether two codes are equal, in a time that tells nothing of where they differ.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0u8, |d, (x, y)| d | (x ^ y))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_key_is_left_in_a_state_that_was_wiped() {
        let mut h = Hmac::new(b"a key");
        h.update(b"and something");
        h.wipe();
        assert_eq!(h.of(b"x"), Hmac::new(&[]).of(b"x"));
    }
}
