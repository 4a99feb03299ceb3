use super::*;
use proptest::prelude::*;

fn sample() -> NvList {
    let mut inner = NvList::new();
    inner.add("type", "mirror").add("guid", u64::MAX).add_flag("bare");
    NvList::new()
        .with("version", 5000u64)
        .with("name", "tank")
        .with("on", true)
        .with("i8", -3i8)
        .with("u8s", vec![1u8, 200])
        .with("u16s", vec![1u16, 65535])
        .with("bools", vec![true, false])
        .with("strings", vec!["a".to_owned(), String::new(), "abc".to_owned()])
        .with("bytes", NvValue::ByteArray(vec![1, 2, 3, 4, 5]))
        .with("u64s", vec![1u64, 2, 3])
        .with("none", Vec::<u64>::new())
        .with("tree", inner.clone())
        .with("children", vec![inner.clone(), NvList::new(), inner])
}

#[test]
fn both_encodings_round_trip() {
    let list = sample();
    assert_eq!(NvList::unpack(&list.pack()).unwrap(), list);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let packed = native::encode(&list, order);
        assert_eq!(NvList::unpack_prefix(&packed).unwrap(), (list.clone(), packed.len()));
    }
}

#[test]
fn every_cut_is_an_error() {
    for packed in [sample().pack(), sample().pack_native()] {
        for n in 0..packed.len() {
            assert!(NvList::unpack(&packed[..n]).is_err(), "{n}");
        }
    }
}

#[test]
fn nesting_is_bounded() {
    let mut list = NvList::new();
    for _ in 0..MAX_DEPTH {
        list = NvList::new().with("x", list);
    }
    for packed in [list.pack(), list.pack_native()] {
        let err = NvList::unpack(&packed).unwrap_err();
        assert_eq!(err.problem, Problem::TooDeep { limit: MAX_DEPTH });
    }
}

#[test]
fn names_fit_both_encodings() {
    let longest = NvList::new().with("n".repeat(i16::MAX as usize - 1), 1u64);
    assert_eq!(NvList::unpack(&longest.pack()).unwrap(), longest);
    assert_eq!(NvList::unpack(&longest.pack_native()).unwrap(), longest);
    let longer = NvList::new().with("n".repeat(i16::MAX as usize), 1u64);
    assert_eq!(NvList::unpack(&longer.pack()).unwrap_err().field, "name");
}

fn value() -> impl Strategy<Value = NvValue> {
    let leaf = prop_oneof![
        Just(NvValue::Boolean),
        any::<u64>().prop_map(NvValue::Uint64),
        any::<i16>().prop_map(NvValue::Int16),
        any::<u8>().prop_map(NvValue::Byte),
        any::<i64>().prop_map(NvValue::Hrtime),
        "[a-z/é]{0,12}".prop_map(NvValue::String),
        prop::collection::vec(any::<i8>(), 0..9).prop_map(NvValue::Int8Array),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(NvValue::Uint8Array),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(NvValue::Int16Array),
        prop::collection::vec(any::<u32>(), 0..9).prop_map(NvValue::Uint32Array),
        prop::collection::vec("[a-z]{0,5}", 0..4).prop_map(NvValue::StringArray),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        let list = prop::collection::vec(("[a-z:]{1,9}", inner), 0..4)
            .prop_map(|pairs| pairs.into_iter().collect::<NvList>());
        prop_oneof![
            list.clone().prop_map(NvValue::List),
            prop::collection::vec(list, 0..3).prop_map(NvValue::ListArray)
        ]
    })
}

proptest! {
    #[test]
    fn round_trip(v in value()) {
        let list = NvList::new().with("v", v);
        prop_assert_eq!(&NvList::unpack(&list.pack()).unwrap(), &list);
        for order in [ByteOrder::Little, ByteOrder::Big] {
            prop_assert_eq!(&NvList::unpack(&native::encode(&list, order)).unwrap(), &list);
        }
    }

    #[test]
    fn damage_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), xdr in any::<bool>()) {
        let mut packed = if xdr { sample().pack() } else { sample().pack_native() };
        let at = at.index(packed.len());
        packed[at] = byte;
        let _ = NvList::unpack(&packed);
    }

    #[test]
    fn garbage_never_panics(mut raw in prop::collection::vec(any::<u8>(), 4..300), enc in 0u8..2, end in 0u8..2) {
        raw[0] = enc;
        raw[1] = end;
        let _ = NvList::unpack(&raw);
    }
}
