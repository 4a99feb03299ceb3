//! Keys, and the hash that decides where a key's entry lies.
//!
//! A name is stored with its NUL but hashed without it: CRC-64 (polynomial of ECMA-182, reflected)
//! seeded with the object's salt, of which only the high 28 bits count (48 with the flag HASH64),
//! so that the hash and a collision number fit a 64-bit directory position. In a ZAP made with
//! normalization flags the *normalized* name is hashed, so that all spellings of a name meet in one
//! place; the name itself is stored as it was given.

use crate::error::{Errno, Error, Result};
use unicode_normalization::UnicodeNormalization;
use zilla_ondisk::zap::{
    U8_TEXTPREP_NFC, U8_TEXTPREP_NFD, U8_TEXTPREP_NFKC, U8_TEXTPREP_NFKD, U8_TEXTPREP_TOLOWER,
    U8_TEXTPREP_TOUPPER, ZAP_FLAG_UINT64_KEY, ZAP_MAXNAMELEN, ZAP_MAXNAMELEN_NEW, ZapKey, hash_bits, max_cd,
};

/// How names are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Match {
    /// Byte for byte.
    #[default]
    Exact,
    /// By normalized form, and case where the ZAP folds it.
    Normalized,
    /// By normalized form, but with case as it is (MT_NORMALIZE | MT_MATCH_CASE).
    NormalizedCase,
}

/// What of a ZAP's header the hash of a key depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HashSpec {
    pub salt: u64,
    pub normflags: u64,
    pub flags: u64,
}

impl HashSpec {
    pub fn hashbits(&self) -> u32 {
        hash_bits(self.flags)
    }

    pub fn max_cd(&self) -> u32 {
        max_cd(self.flags)
    }

    /// Whether an entry may have this collision number: the position behind it has the next one,
    /// and that of the highest is none.
    pub fn may_have(&self, cd: u32) -> bool {
        cd < self.max_cd() - 1
    }

    pub fn int_keys(&self) -> bool {
        self.flags & ZAP_FLAG_UINT64_KEY != 0
    }

    pub fn hash_name(&self, name: &[u8]) -> u64 {
        if self.normflags == 0 {
            ZapKey::string(name).hash(self.salt, self.flags)
        } else {
            ZapKey::string(&normalize(name, self.normflags)).hash(self.salt, self.flags)
        }
    }
}

/// A key ready to be looked up.
pub(crate) struct Key {
    pub stored: ZapKey,
    pub hash: u64,
    /// For comparison by normalized form: the flags to use and the name in that form.
    norm: Option<(u64, Vec<u8>)>,
}

impl Key {
    pub fn name(spec: &HashSpec, name: &[u8], mt: Match) -> Result<Key> {
        if spec.int_keys() {
            return Err(Error::os(Errno::NotSup, "the ZAP's keys are numbers"));
        }
        if name.is_empty() || name.contains(&0) {
            return Err(Error::inval("a name must not be empty or contain a NUL"));
        }
        if name.len() >= ZAP_MAXNAMELEN_NEW {
            return Err(Error::os(Errno::NameTooLong, "name too long"));
        }
        let norm = match mt {
            Match::Exact => None,
            _ if spec.normflags == 0 => {
                return Err(Error::os(Errno::NotSup, "the ZAP does not normalize names"));
            }
            Match::Normalized => Some(spec.normflags),
            Match::NormalizedCase => Some(spec.normflags & !U8_TEXTPREP_TOUPPER),
        };
        let norm = norm.map(|f| (f, normalize(name, f)));
        let stored = ZapKey::string(name);
        let hash =
            if spec.normflags == 0 { stored.hash(spec.salt, spec.flags) } else { spec.hash_name(name) };
        Ok(Key { stored, hash, norm })
    }

    pub fn ints(spec: &HashSpec, key: &[u64]) -> Result<Key> {
        if !spec.int_keys() {
            return Err(Error::os(Errno::NotSup, "the ZAP's keys are names"));
        }
        if key.is_empty() || key.len() * 8 > ZAP_MAXNAMELEN {
            return Err(Error::os(Errno::NameTooLong, "key too long"));
        }
        let stored = ZapKey::u64s(key);
        let hash = stored.hash(spec.salt, spec.flags);
        Ok(Key { stored, hash, norm: None })
    }

    /// The name without its NUL.
    pub fn as_name(&self) -> &[u8] {
        self.stored.stored().split_last().map_or(&[], |(_, n)| n)
    }

    pub fn is_exact(&self) -> bool {
        self.norm.is_none()
    }

    /// Whether a stored name (without its NUL) is this one.
    pub fn matches_name(&self, name: &[u8]) -> bool {
        match &self.norm {
            None => self.as_name() == name,
            Some((flags, norm)) => normalize(name, *flags) == *norm,
        }
    }
}

/// A name's normalized form. What is not UTF-8 stays as it is, byte for byte.
pub fn normalize(name: &[u8], flags: u64) -> Vec<u8> {
    if name.is_ascii() {
        return fold_ascii(name, flags);
    }
    let mut out = String::with_capacity(name.len());
    let mut bytes = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let folded = chunk.valid().chars().map(|c| fold(c, flags));
        match flags & (U8_TEXTPREP_NFC | U8_TEXTPREP_NFKC) {
            U8_TEXTPREP_NFC => out.extend(folded.nfc()),
            U8_TEXTPREP_NFD => out.extend(folded.nfd()),
            U8_TEXTPREP_NFKC => out.extend(folded.nfkc()),
            U8_TEXTPREP_NFKD => out.extend(folded.nfkd()),
            _ => out.extend(folded),
        }
        bytes.extend_from_slice(out.as_bytes());
        bytes.extend_from_slice(chunk.invalid());
        out.clear();
    }
    bytes
}

fn fold_ascii(name: &[u8], flags: u64) -> Vec<u8> {
    if flags & U8_TEXTPREP_TOUPPER != 0 {
        name.to_ascii_uppercase()
    } else if flags & U8_TEXTPREP_TOLOWER != 0 {
        name.to_ascii_lowercase()
    } else {
        name.to_vec()
    }
}

/// Simple case mapping: one character for one, as u8_textprep's tables have it.
fn fold(c: char, flags: u64) -> char {
    let one = |mut it: Box<dyn Iterator<Item = char>>| match (it.next(), it.next()) {
        (Some(u), None) => u,
        _ => c,
    };
    if flags & U8_TEXTPREP_TOUPPER != 0 {
        one(Box::new(c.to_uppercase()))
    } else if flags & U8_TEXTPREP_TOLOWER != 0 {
        one(Box::new(c.to_lowercase()))
    } else {
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_meet() {
        let spec = HashSpec { salt: 77, normflags: U8_TEXTPREP_TOUPPER | U8_TEXTPREP_NFD, flags: 0 };
        let a = Key::name(&spec, "Ünïx".as_bytes(), Match::Normalized).unwrap();
        let b = Key::name(&spec, "u\u{308}nI\u{308}X".as_bytes(), Match::Exact).unwrap();
        assert_eq!(a.hash, b.hash);
        assert!(a.matches_name("u\u{308}nI\u{308}X".as_bytes()));
        assert!(!b.matches_name("Ünïx".as_bytes()));
        let case = Key::name(&spec, "Ünïx".as_bytes(), Match::NormalizedCase).unwrap();
        assert!(case.matches_name("U\u{308}ni\u{308}x".as_bytes()));
        assert!(!case.matches_name("UNIX".as_bytes()));
        assert_eq!(a.hash & 0xf_ffff_ffff, 0);
    }
}
