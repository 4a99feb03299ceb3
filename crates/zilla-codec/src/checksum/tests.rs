use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// "ff fe fd ...", the message of the Skein paper.
fn counting_down(length: usize) -> Vec<u8> {
    (0..length).map(|i| 255 - i as u8).collect()
}

#[test]
fn skein_paper() {
    // The Skein Hash Function Family, version 1.3, appendix C.
    for (length, digest) in [
        (
            1,
            "71b7bce6fe6452227b9ced6014249e5bf9a9754c3ad618ccc4e0aae16b316cc8
             ca698d864307ed3e80b6ef1570812ac5272dc409b5a012df2a579102f340617a",
        ),
        (
            64,
            "45863ba3be0c4dfc27e75d358496f4ac9a736a505d9313b42b2f5eada79fc17f
             63861e947afb1d056aa199575ad3f8c9a3cc1780b5e5fa4cae050e989876625b",
        ),
        (
            128,
            "91cca510c263c4ddd010530a33073309628631f308747e1bcbaa90e451cab92e
             5188087af4188773a332303e6667a7a210856f742139000071f48e8ba2a5adb7",
        ),
    ] {
        assert_eq!(skein512(&counting_down(length)).to_vec(), hex(digest), "{length} bytes");
    }
}

#[test]
fn edonr_paper() {
    assert_eq!(
        edonr512(b"abc").to_vec(),
        hex("1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b")
    );
    let long = b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn\
                 hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu";
    assert_eq!(
        edonr512(long).to_vec(),
        hex("5351070dc51c3b2baca5a60d0252ccb4e4921a96fe5a69e76dad48fd21a0845a
             d57f880b3e4a907bc503151842bb949e1cba7439a6409a34b8436cb46921583c")
    );
}

fn be_words(digest: &str) -> Cksum {
    let bytes = hex(digest);
    std::array::from_fn(|i| u64::from_be_bytes(bytes[8 * i..][..8].try_into().unwrap()))
}

#[test]
fn published_digests() {
    // FIPS 180-4's examples; sha256 is read big-endian in either order.
    let sha256 = be_words("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(compute(Checksum::Sha256, b"abc", false, None), sha256);
    assert_eq!(compute(Checksum::Sha256, b"abc", true, None), sha256);
    // The other digests are memory: the swapped order is the big-endian reading on little-endian
    // machines.
    let sha512 = be_words("53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23");
    let big = cfg!(target_endian = "big");
    assert_eq!(compute(Checksum::Sha512, b"abc", !big, None), sha512);
    assert_eq!(compute(Checksum::Sha512, b"abc", big, None), sha512.map(u64::swap_bytes));
    // BLAKE3's test vectors: this key, and the bytes 0, 1, 2, ... modulo 251.
    let salt = Salted::new(b"whats the Elvish word for friend");
    let input: Vec<u8> = (0..1024).map(|i| (i % 251) as u8).collect();
    let blake3 = be_words("75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4");
    assert_eq!(compute(Checksum::Blake3, &input, !big, Some(&salt)), blake3);
}

proptest! {
    #[test]
    fn many_at_once_are_as_one_by_one(lengths in prop::collection::vec(0usize..700, 0..9), seed: u8) {
        let data: Vec<Vec<u8>> = lengths.iter().enumerate()
            .map(|(i, n)| (0..*n).map(|j| (j * 7 + i * 31) as u8 ^ seed).collect())
            .collect();
        let blocks: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
        for kind in Checksum::ALL {
            let one_by_one: Vec<Cksum> = blocks.iter().map(|b| compute(kind, b, false, None)).collect();
            let mut together = vec![[0; 4]; blocks.len()];
            compute_all(kind, blocks.iter().copied().zip(&mut together), None);
            prop_assert_eq!(together, one_by_one, "{}", kind.name());
        }
    }
}

#[test]
fn names_and_numbers() {
    for kind in Checksum::ALL {
        assert_eq!(Checksum::from_u8(kind as u8), Some(kind));
        assert_eq!(Checksum::from_name(kind.name()), kind.is_property().then_some(kind));
    }
    assert_eq!(Checksum::from_u8(15), None);
    assert_eq!(Checksum::from_name("Fletcher4"), None);
    let dedup: Vec<_> =
        Checksum::ALL.into_iter().filter(|kind| kind.is_dedup()).map(Checksum::name).collect();
    assert_eq!(dedup, ["sha256", "sha512", "skein", "blake3"]);
    let metadata: Vec<_> =
        Checksum::ALL.into_iter().filter(|kind| kind.is_metadata()).map(Checksum::name).collect();
    assert_eq!(
        metadata,
        ["label", "gang_header", "fletcher4", "sha256", "sha512", "skein", "edonr", "blake3"]
    );
}

#[test]
fn what_names_no_function_never_verifies() {
    for kind in [Checksum::Inherit, Checksum::On] {
        for words in [[0; 4], [u64::MAX; 4]] {
            assert!(!verify(kind, b"data", false, None, &words));
        }
    }
    assert!(verify(Checksum::Off, b"data", false, None, &[0; 4]));
}

#[test]
fn fletcher_by_hand() {
    // Words 1, 2, 3: a = 6, b = 1 + 3 + 6, c = 1 + 4 + 10, d = 1 + 5 + 15.
    let data: Vec<u8> = [1u32, 2, 3].into_iter().flat_map(u32::to_ne_bytes).collect();
    assert_eq!(fletcher4(&data, false), [6, 10, 15, 21]);
    let data: Vec<u8> = [1u64, 2, 3, 4].into_iter().flat_map(u64::to_ne_bytes).collect();
    assert_eq!(fletcher2(&data, false), [4, 6, 5, 8]);
}

fn sealed(kind: Checksum, order: ByteOrder) -> (Vec<u8>, Cksum) {
    let mut block: Vec<u8> = (0..8192u32).map(|i| (i * 7 / 8) as u8).collect();
    let used = 4000u64;
    block[136..144].copy_from_slice(&if order == ByteOrder::Big {
        used.to_be_bytes()
    } else {
        used.to_le_bytes()
    });
    let verifier = [0x1234_5678, 9, 0x0102_0304_0506_0708, 77];
    embedded::seal(kind, &mut block, &verifier, order).unwrap();
    (block, verifier)
}

#[test]
fn embedded_in_both_orders() {
    for kind in [Checksum::Label, Checksum::GangHeader, Checksum::Zilog, Checksum::Zilog2] {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let (mut block, verifier) = sealed(kind, order);
            assert_eq!(embedded::verify(kind, &block, &verifier), Ok(order), "{kind:?}");
            let mut other = verifier;
            other[0] ^= 1;
            assert!(embedded::verify(kind, &block, &other).is_err(), "{kind:?} at another place");
            block[500] ^= 1;
            assert!(embedded::verify(kind, &block, &verifier).is_err(), "{kind:?} damaged");
        }
    }
}

#[test]
fn embedded_refuses() {
    use embedded::EmbeddedError as E;
    let (mut block, verifier) = sealed(Checksum::Zilog2, ByteOrder::NATIVE);
    // What lies behind the bytes used is another time's.
    block[5000] ^= 1;
    assert!(embedded::verify(Checksum::Zilog2, &block, &verifier).is_ok());
    for used in [0, 8193, u64::MAX, u64::MAX - 4095] {
        block[136..144].copy_from_slice(&used.to_ne_bytes());
        assert_eq!(
            embedded::verify(Checksum::Zilog2, &block, &verifier),
            Err(E::BadUsed { used, size: 8192 })
        );
    }
    for kind in [Checksum::Label, Checksum::Zilog, Checksum::Zilog2, Checksum::GangHeader] {
        for size in [0, 8, 39] {
            assert_eq!(embedded::verify(kind, &block[..size], &verifier), Err(E::TooShort { size }));
        }
        assert!(matches!(embedded::verify(kind, &[0; 512], &verifier), Err(E::BadMagic { found: 0 })));
    }
    assert_eq!(embedded::verify(Checksum::Sha256, &block, &verifier), Err(E::NotEmbedded(Checksum::Sha256)));
}

proptest! {
    #[test]
    fn fletcher4_kernels_agree(data in prop::collection::vec(any::<u8>(), 0..9000), swap: bool) {
        let expected = fletcher4_at(crate::cpu::Level::Scalar, &data, swap);
        for level in crate::cpu::levels() {
            prop_assert_eq!(fletcher4_at(level, &data, swap), expected, "{:?}", level);
        }
    }

    #[test]
    fn fletcher4_in_pieces(data in prop::collection::vec(any::<u8>(), 0..9000), cut in 0usize..2000, swap: bool) {
        let cut = (cut * 4).min(data.len() / 4 * 4);
        let (first, second) = data.split_at(cut);
        let whole = fletcher4(&data, swap);
        let mut sum = Fletcher4::resume(fletcher4(first, swap), swap);
        let mut appended = sum;
        sum.update(second);
        prop_assert_eq!(sum.finish(), whole);
        appended.append(&fletcher4(second, swap), second.len() as u64 / 4);
        prop_assert_eq!(appended.finish(), whole);
    }

    #[test]
    fn swapping_the_data_is_swapping(mut data in prop::collection::vec(any::<u8>(), 0..300)) {
        let four = fletcher4(&data, true);
        data.chunks_exact_mut(4).for_each(|word| word.reverse());
        prop_assert_eq!(fletcher4(&data, false), four);
        let two = fletcher2(&data, true);
        data.chunks_exact_mut(8).for_each(|word| word.reverse());
        prop_assert_eq!(fletcher2(&data, false), two);
    }

    #[test]
    fn hostile_embedded(block in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..15) {
        prop_assert!(embedded::verify(Checksum::from_u8(kind).unwrap(), &block, &[0; 4]).is_err());
    }
}
