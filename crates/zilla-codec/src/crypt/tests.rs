//! Known answers, from elsewhere.

#![allow(clippy::indexing_slicing)]

use super::*;

fn hex(s: &str) -> Vec<u8> {
    let s: String = s.split_whitespace().collect();
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn from_passphrase(pass: &[u8], salt: &[u8; 8], rounds: u64) -> Option<zeroize::Zeroizing<[u8; 32]>> {
    Passphrase::new(pass, salt, rounds)?.hash(u64::MAX)
}

fn check(suite: Suite, key: &str, iv: &str, aad: &str, plain: &str, cipher: &str, mac: &str) {
    let c = Cipher::new(suite, &hex(key)).unwrap();
    let iv: [u8; IV_LEN] = hex(iv).try_into().unwrap();
    let (aad, plain) = (hex(aad), hex(plain));
    let mut buf = plain.clone();
    let tag = c.seal(&iv, &aad, &mut buf).unwrap();
    assert_eq!(buf, hex(cipher), "{}: ciphertext", suite.name());
    assert_eq!(tag.to_vec(), hex(mac), "{}: code", suite.name());
    assert_eq!(c.open(&iv, &aad, &mut buf, &tag), Ok(()));
    assert_eq!(buf, plain);
    // Whatever is changed is found.
    let mut buf = hex(cipher);
    for (bad_iv, bad_aad, bad_mac, flip) in [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)] {
        let (mut iv, mut aad, mut tag) = (iv, aad.clone(), tag);
        iv[0] ^= bad_iv;
        aad.extend(std::iter::repeat_n(0, bad_aad));
        tag[15] ^= bad_mac;
        if buf.is_empty() && flip == 1 {
            continue;
        }
        buf = hex(cipher);
        buf.iter_mut().take(1).for_each(|b| *b ^= flip);
        assert_eq!(c.open(&iv, &aad, &mut buf, &tag), Err(Forged));
    }
}

/// Test cases 4, 10 and 16 of the GCM specification (McGrew and Viega), which NIST SP 800-38D took
/// over.
#[test]
fn gcm_is_nists() {
    let iv = "cafebabefacedbaddecaf888";
    let aad = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    let plain = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
        1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    let key = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
    check(
        Suite::Aes128Gcm,
        &key[..32],
        iv,
        aad,
        plain,
        "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e
         21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
        "5bc94fbc3221a5db94fae95ae7121a47",
    );
    check(
        Suite::Aes192Gcm,
        &key[..48],
        iv,
        aad,
        plain,
        "3980ca0b3c00e841eb06fac4872a2757859e1ceaa6efd984628593b40ca1e19c
         7d773d00c144c525ac619d18c84a3f4718e2448b2fe324d9ccda2710",
        "2519498e80f1478f37ba55bd6d27618c",
    );
    check(
        Suite::Aes256Gcm,
        key,
        iv,
        aad,
        plain,
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa
         8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        "76fc6ece0f4e1768cddf8853bb2d551b",
    );
}

/// The inputs of NIST SP 800-38C, example 3, whose ciphertext the first is; with codes of 16 bytes,
/// and longer keys, by OpenSSL 3.0.
#[test]
fn ccm_is_nists() {
    let key = "404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f";
    let iv = "101112131415161718191a1b";
    let aad = "000102030405060708090a0b0c0d0e0f10111213";
    let plain = "202122232425262728292a2b2c2d2e2f3031323334353637";
    for (suite, len, cipher, mac) in [
        (
            Suite::Aes128Ccm,
            32,
            "e3b201a9f5b71a7a9b1ceaeccd97e70b6176aad9a4428aa5",
            "c87ae488918de93f17dd3e4934347f44",
        ),
        (
            Suite::Aes192Ccm,
            48,
            "8081316fd89624d62ce7637fb94995b6631c50d61586de01",
            "0ec10572fecd75e23ac36b5dd335eaca",
        ),
        (
            Suite::Aes256Ccm,
            64,
            "04f883aeb3bd0730eaf50bb6de4fa2212034e4e41b0e75e5",
            "9bba3f3a107f3239bd63902923f80371",
        ),
    ] {
        check(suite, &key[..len], iv, aad, plain, cipher, mac);
    }
}

/// RFC 4231, test cases 1 and 2.
#[test]
fn hmac_is_the_rfcs() {
    let code = Hmac::new(&[0x0b; 20]).of(b"Hi There");
    assert_eq!(
        code.to_vec(),
        hex("87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde
             daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854")
    );
    let mut parts = Hmac::new(b"Jefe");
    parts.update(b"what do ya want ");
    parts.update(b"for nothing?");
    assert_eq!(
        parts.finish().to_vec(),
        hex("164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554
             9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737")
    );
}

/// RFC 5869 step by step, with the HMAC that is checked above.
#[test]
fn a_blocks_key_is_extract_then_expand() {
    let (master, salt) = ([7; 32], *b"saltsalt");
    let prk = Hmac::new(&[0; 64]).of(&master);
    let mut info = salt.to_vec();
    info.push(1);
    let okm = Hmac::new(&prk).of(&info);
    for suite in (3..9).filter_map(Suite::from_number) {
        assert_eq!(derive(suite, &master, &salt)[..], okm[..suite.key_len()]);
    }
}

/// RFC 6070 has PBKDF2-HMAC-SHA1 with salts of other lengths; the first 20 bytes of 32 are the
/// first block of it.
#[test]
fn pbkdf2_is_the_rfcs_construction() {
    use hmac::Mac;
    let (pass, salt, rounds) = (b"password", *b"saltsalt", 3);
    let one = |data: &[u8]| -> Vec<u8> {
        let mut h = hmac::Hmac::<sha1::Sha1>::new_from_slice(pass).unwrap();
        h.update(data);
        h.finalize().into_bytes().to_vec()
    };
    let mut want = Vec::new();
    for i in 1..=2u32 {
        let mut u = one(&[&salt[..], &i.to_be_bytes()].concat());
        let mut t = u.clone();
        for _ in 1..rounds {
            u = one(&u);
            t.iter_mut().zip(&u).for_each(|(t, u)| *t ^= u);
        }
        want.extend(t);
    }
    assert_eq!(from_passphrase(pass, &salt, rounds).unwrap()[..], want[..WRAPPING_KEY_LEN]);
    assert!(from_passphrase(pass, &salt, 0).is_none());
    // One of Python's hashlib.
    let salt = [0, 1, 2, 3, 4, 5, 6, 7];
    assert_eq!(
        from_passphrase(b"correct horse battery", &salt, 1000).unwrap().to_vec(),
        hex("b418ef50237eb00e45d4bbabc980170ef887aa9bb4bee511df629b2380b8efd1")
    );
    // The same in pieces, each of which ends however much there is to do.
    let mut pieces = Passphrase::new(b"correct horse battery", &salt, 1000).unwrap();
    assert!(pieces.hash(1).is_none() && pieces.hash(997).is_none());
    assert_eq!(pieces.hash(1), Some(from_passphrase(b"correct horse battery", &salt, 1000).unwrap()));
    assert!(Passphrase::new(b"password", &salt, u64::MAX).unwrap().hash(1000).is_none());
}

#[test]
fn suites_have_openzfs_numbers() {
    assert_eq!(Suite::ON_VALUE.number(), 8);
    for n in 0..20 {
        assert_eq!(Suite::from_number(n).is_some(), (3..=8).contains(&n), "{n}");
    }
    assert!(Cipher::new(Suite::Aes192Ccm, &[0; 16]).is_none());
}

#[test]
fn nothing_shows_a_key() {
    let c = Cipher::new(Suite::Aes256Gcm, &[0xab; 32]).unwrap();
    let shown = format!("{c:?}{:?}", Hmac::new(&[0xab; 64]));
    assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    assert!(same(b"12", b"12") && !same(b"12", b"13") && !same(b"12", b"123"));
}

/// Lengths at which an implementation goes from one way of working to another.
#[test]
fn both_gcms_are_the_same_at_all_lengths() {
    use aes_gcm::aead::{AeadInPlace, KeyInit};
    let (iv, aad) = ([9; IV_LEN], [3; 40]);
    let theirs128 = aes_gcm::Aes128Gcm::new_from_slice(&[7; 16]).unwrap();
    let theirs256 = aes_gcm::Aes256Gcm::new_from_slice(&[7; 32]).unwrap();
    let ours128 = Cipher::new(Suite::Aes128Gcm, &[7; 16]).unwrap();
    let ours256 = Cipher::new(Suite::Aes256Gcm, &[7; 32]).unwrap();
    let around = |n: usize| n.saturating_sub(17)..n + 18;
    for len in around(0).chain(around(96)).chain(around(128)).chain(around(512)).chain(around(4096)) {
        let plain: Vec<u8> = (0..len).map(|i| (1 + i * 7 + i / 251) as u8).collect();
        let (mut a, mut b) = (plain.clone(), plain.clone());
        let tag = ours128.seal(&iv, &aad, &mut a).unwrap();
        let other = theirs128.encrypt_in_place_detached(&iv.into(), &aad, &mut b).unwrap();
        assert!(a == b && tag[..] == other[..], "128 bits, {len} bytes");
        assert_eq!(ours128.open(&iv, &aad, &mut b, &tag), Ok(()));
        assert!(b == plain, "128 bits, {len} bytes, back");
        let (mut a, mut b) = (plain.clone(), plain.clone());
        let tag = ours256.seal(&iv, &aad, &mut a).unwrap();
        let other = theirs256.encrypt_in_place_detached(&iv.into(), &aad, &mut b).unwrap();
        assert!(a == b && tag[..] == other[..], "256 bits, {len} bytes");
        assert_eq!(ours256.open(&iv, &aad, &mut b, &tag), Ok(()));
        assert!(b == plain, "256 bits, {len} bytes, back");
        if len > 0 {
            a[0] ^= 1;
            assert_eq!(ours256.open(&iv, &aad, &mut a, &tag), Err(Forged));
            assert!(a != plain, "nothing of what is forged is given out");
        }
    }
}
