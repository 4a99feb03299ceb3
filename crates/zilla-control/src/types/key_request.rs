//! Requests about the keys of encrypted datasets.

use crate::openapi::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// What a user gave as a key, for the socket alone: 32 bytes, or a passphrase, in hexadecimal
/// digits. Overwritten when it is dropped, and nothing of it is in its `Debug`, which requests are
/// logged by.
#[derive(Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(transparent)]
pub struct KeyMaterial(String);

impl KeyMaterial {
    pub fn new(bytes: &[u8]) -> KeyMaterial {
        let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0');
        KeyMaterial(bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect())
    }

    /// None if it is not hexadecimal.
    pub fn bytes(&self) -> Option<Zeroizing<Vec<u8>>> {
        let digits = self.0.as_bytes();
        let nibble = |b: u8| char::from(b).to_digit(16).and_then(|n| u8::try_from(n).ok());
        let (pairs, rest) = digits.as_chunks::<2>();
        // All of its room at once: a vector that grows leaves copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(pairs.len()));
        for [a, b] in pairs {
            bytes.push(nibble(*a)? << 4 | nibble(*b)?);
        }
        rest.is_empty().then_some(bytes)
    }
}

impl Drop for KeyMaterial {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyMaterial(..)")
    }
}

/// `zfs load-key [-n]` of an encryption root.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct KeyLoad {
    pub name: String,
    pub key: KeyMaterial,
    /// `-n`: only say whether it is the right one.
    pub check: bool,
}

/// `zfs unload-key` of an encryption root.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct KeyUnload {
    pub name: String,
}

/// `zfs change-key`
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct KeyChange {
    pub name: String,
    /// `-i`: the parent's; what follows is empty then.
    pub inherit: bool,
    pub key: Option<KeyMaterial>,
    /// As given; None: as it was.
    pub keyformat: Option<String>,
    pub keylocation: Option<String>,
    pub pbkdf2iters: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn material_travels_and_is_not_shown() {
        let key = KeyMaterial::new(b"correct horse \xff\0");
        assert_eq!(key.bytes().unwrap()[..], *b"correct horse \xff\0");
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<KeyMaterial>(&json).unwrap(), key);
        let shown = format!("{:?}", KeyLoad { name: "a".into(), key, check: false });
        assert!(!shown.contains("636f") && shown.contains("KeyMaterial(..)"), "{shown}");
        for bad in ["\"6\"", "\"6x\""] {
            assert_eq!(serde_json::from_str::<KeyMaterial>(bad).unwrap().bytes(), None);
        }
    }
}
