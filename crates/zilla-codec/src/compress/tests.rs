#![allow(clippy::indexing_slicing)]

use proptest::prelude::*;

use super::*;

fn all_specs() -> Vec<CompressSpec> {
    let kinds = Compress::ALL.into_iter().filter(|kind| kind.is_function() && *kind != Compress::Zstd);
    let levels = (0..=255).filter_map(ZstdLevel::from_disk).map(CompressSpec::zstd);
    kinds.map(CompressSpec::new).chain(levels).collect()
}

/// Few enough that a property test can try them all.
fn some_specs() -> Vec<CompressSpec> {
    ["lzjb", "zle", "lz4", "gzip-1", "gzip-9", "zstd", "zstd-fast-10"].map(|s| s.parse().unwrap()).into()
}

fn text(length: usize) -> Vec<u8> {
    let words = ["pool ", "vdev ", "txg ", "\0\0\0\0\0\0", "label ", "dnode ", "metaslab ", "\n"];
    let mut x = 12345u32;
    let mut out = Vec::new();
    while out.len() < length {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        out.extend_from_slice(words[(x >> 29) as usize].as_bytes());
        out.push((x >> 20) as u8 & 63);
    }
    out.truncate(length);
    out
}

fn round_trip(spec: CompressSpec, src: &[u8], room: usize) -> Option<usize> {
    let mut packed = vec![0xaa; room];
    let size = compress(spec, src, &mut packed)?;
    // On disk it lies in whole sectors, padded with zeroes.
    packed.truncate(size);
    packed.resize(size.next_multiple_of(512), 0);
    let mut back = vec![0x55; src.len()];
    decompress(spec.kind, &packed, &mut back).unwrap_or_else(|e| panic!("{spec}: {e}"));
    assert!(back == src, "{spec}");
    Some(size)
}

#[test]
fn every_level_round_trips() {
    let src = text(128 << 10);
    for spec in all_specs() {
        let size = round_trip(spec, &src, src.len() * 7 / 8);
        // Short repeats are nothing to zle and to the fastest levels of zstd.
        let coarse = spec.kind == Compress::Zle || spec.level >= 121;
        assert!(coarse || size.is_some(), "{spec} did not compress");
        assert!(round_trip(spec, &vec![0; 16384], 4096).is_some(), "{spec}: zeroes");
        assert_eq!(compress(spec, &src, &mut [0; 100]), None, "{spec} in 100 bytes");
        assert_eq!(compress(spec, &src, &mut []), None, "{spec} in nothing");
    }
}

#[test]
fn incompressible_is_given_up() {
    let mut x = 1u64;
    let noise: Vec<u8> = (0..128 << 10)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 56) as u8
        })
        .collect();
    for spec in all_specs() {
        assert_eq!(compress(spec, &noise, &mut vec![0; noise.len() * 7 / 8]), None, "{spec}");
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let src = text(8192);
    for spec in some_specs() {
        let mut packed = vec![0; 16384];
        let size = compress(spec, &src, &mut packed).unwrap();
        for wrong in [0, 1, 8191, 8193, 16384] {
            let got = decompress(spec.kind, &packed[..size], &mut vec![0; wrong]);
            // lzjb and zle know no end of their own: less is just a prefix.
            let prefix = matches!(spec.kind, Compress::Lzjb | Compress::Zle) && wrong < 8192;
            assert!(got.is_err() || prefix, "{spec} into {wrong}");
        }
        assert!(decompress(spec.kind, &packed[..size / 2], &mut vec![0; 8192]).is_err(), "{spec} halved");
        assert!(decompress(spec.kind, &[], &mut vec![0; 8192]).is_err(), "{spec} empty");
    }
}

#[test]
fn zstd_header_in_all_its_layouts() {
    let level = |bytes: [u8; 4]| {
        let mut block = vec![0; 16];
        block[3] = 8;
        block[4..8].copy_from_slice(&bytes);
        header_of(&block)
    };
    fn header_of(block: &[u8]) -> Option<u8> {
        zstd_header(block).ok().map(|(_, level)| level.to_disk())
    }
    assert_eq!(level([3, 0, 0x28, 0xa5]), Some(3), "written by a little-endian machine");
    assert_eq!(level([0, 0x28, 0xa5, 3]), Some(3), "written by a big-endian one");
    assert_eq!(level([1, 2, 3, 4]), None);
    assert_eq!(level([20, 0, 0x28, 0xa5]), None);
    assert_eq!(level([123, 0, 0x28, 0xa5]), Some(123));
    assert_eq!(level([124, 0, 0x28, 0xa5]), None);
}

#[test]
fn property_values() {
    for (text, number) in [
        ("on", 1),
        ("off", 2),
        ("lzjb", 3),
        ("gzip", 10),
        ("gzip-1", 5),
        ("gzip-9", 13),
        ("zle", 14),
        ("lz4", 15),
        ("zstd", 16),
        ("zstd-1", 16 | 1 << 7),
        ("zstd-19", 16 | 19 << 7),
        ("zstd-fast", 16 | 103 << 7),
        ("zstd-fast-2", 16 | 104 << 7),
        ("zstd-fast-20", 16 | 113 << 7),
        ("zstd-fast-1000", 16 | 123 << 7),
    ] {
        let spec: CompressSpec = text.parse().unwrap();
        assert_eq!(spec.to_prop(), number, "{text}");
        assert_eq!(CompressSpec::from_prop(number), Some(spec));
        assert_eq!(spec.to_string(), text);
    }
    assert_eq!("gzip-6".parse::<CompressSpec>().unwrap().to_string(), "gzip");
    assert_eq!("zstd-fast-1".parse::<CompressSpec>().unwrap().to_string(), "zstd-fast");
    for bad in
        ["", "gzip-0", "gzip-10", "zstd-0", "zstd-20", "zstd--1", "zstd-01", "zstd-fast-11", "empty", "LZ4"]
    {
        assert!(bad.parse::<CompressSpec>().is_err(), "{bad}");
    }
    for bad in [17, 127, 15 | 1 << 7, 16 | 20 << 7, 16 | 124 << 7, u64::MAX] {
        assert_eq!(CompressSpec::from_prop(bad), None, "{bad:#x}");
    }
    for kind in Compress::ALL {
        assert_eq!(Compress::from_u8(kind as u8), Some(kind));
    }
    assert_eq!(Compress::from_u8(17), None);
}

#[test]
fn zeroes_are_seen() {
    let mut block = vec![0; 1000];
    assert!(is_zero(&block) && is_zero(&[]));
    for place in [0, 255, 256, 767, 768, 999] {
        block[place] = 1;
        assert!(!is_zero(&block), "{place}");
        block[place] = 0;
    }
}

/// Data with runs, repeats and noise.
fn block() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (any::<u8>(), 1usize..400).prop_map(|(byte, n)| vec![byte; n]),
        (1usize..400).prop_map(|n| vec![0; n]),
        prop::collection::vec(any::<u8>(), 1..300),
        (0usize..3000, 1usize..1000).prop_map(|(from, n)| text(4000)[from..from + n].to_vec()),
    ];
    prop::collection::vec(piece, 1..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn round_trips(src in block(), spare in 0usize..200) {
        for spec in some_specs() {
            round_trip(spec, &src, src.len() + spare);
            round_trip(spec, &src, src.len() / 2);
            prop_assert!(round_trip(spec, &src, 2 * src.len() + 1000).is_some(), "{} with room", spec);
        }
    }

    #[test]
    fn garbage_is_refused(src in prop::collection::vec(any::<u8>(), 0..600), room in 0usize..3000, kind in 0u8..17) {
        let kind = Compress::from_u8(kind).unwrap();
        // Any answer will do, but there must be one.
        let _ = decompress(kind, &src, &mut vec![0; room]);
    }

    #[test]
    fn damage_is_survived(src in block(), hits in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        for spec in some_specs() {
            let mut packed = vec![0; 2 * src.len() + 1000];
            let size = compress(spec, &src, &mut packed).unwrap();
            packed.truncate(size);
            for (place, byte) in &hits {
                packed[usize::from(*place) % size] = *byte;
            }
            let _ = decompress(spec.kind, &packed, &mut vec![0; src.len()]);
        }
    }
}
