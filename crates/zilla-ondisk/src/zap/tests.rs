use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[test]
fn crc_table_is_openzfs_s() {
    // Entry 128 of the table is the polynomial: OpenZFS asserts the same.
    assert_eq!(crc64(0, [128]), 0xC96C_5795_D787_0F42);
}

#[test]
fn sizes_are_openzfs_s() {
    assert_eq!(leaf::num_chunks(14), 638);
    assert_eq!(leaf::hash_entries(14), 512);
    assert_eq!(fat::embedded_ptrtbl_shift(14), 10);
    assert_eq!(micro::num_chunks(512), 7);
}

#[test]
fn micro_round_trip() {
    let mut block = vec![0; 1024];
    micro::init(&mut block, 77, 0).unwrap();
    micro::set(&mut block, 3, b"name", 42, 1).unwrap();
    assert!(micro::set(&mut block, 3, &[b'x'; 50], 42, 1).is_err());
    assert!(micro::set(&mut block, 15, b"x", 42, 1).is_err());
    let m = MicroZap::new(&block, ByteOrder::NATIVE).unwrap();
    let e = m.find(b"name").unwrap().unwrap();
    assert_eq!((e.chunk, e.value, e.cd, m.salt()), (3, 42, 1, 77));
    assert_eq!(m.free_chunk(3), Some(4));
    let (value, cd) = (e.value, e.cd);
    let native = block.clone();
    micro::swap(&mut block);
    let other = ByteOrder::NATIVE.swapped();
    let m = MicroZap::new(&block, other).unwrap();
    let e = m.find(b"name").unwrap().unwrap();
    assert_eq!((e.value, e.cd, m.salt()), (value, cd, 77));
    to_native(&mut block, other).unwrap();
    assert_eq!(block, native);
    micro::remove(&mut block, 3).unwrap();
    assert_eq!(MicroZap::new(&block, ByteOrder::NATIVE).unwrap().iter().count(), 0);
}

#[test]
fn fat_header() {
    let mut block = vec![0; 16384];
    let z = ZapPhys::init(&mut block, 5, 0, ZAP_FLAG_HASH64).unwrap();
    assert_eq!(ZapPhys::parse(&block, ByteOrder::NATIVE).unwrap(), z);
    assert_eq!(fat::embedded_leaf(&block, 1023, ByteOrder::NATIVE).unwrap(), 1);
    assert!(fat::embedded_leaf(&block, 1024, ByteOrder::NATIVE).is_err());
    assert_eq!(z.index(u64::MAX), 1023);
    let other = ByteOrder::NATIVE.swapped();
    crate::object_type::byteswap(crate::object_type::ByteswapClass::Uint64, &mut block);
    assert_eq!(ZapPhys::parse(&block, other).unwrap(), z);
}

#[test]
fn a_prefix_has_the_bits_its_length_says() {
    // A leaf of length 0 takes every hash; bits of a prefix would turn up when it is split. Found
    // by fuzzing.
    let mut block = vec![0; 1024];
    LeafMut::init(&mut block, 0, 0, true).unwrap();
    block[16..24].copy_from_slice(&5u64.to_ne_bytes());
    assert_eq!(Leaf::new(&block, ByteOrder::NATIVE).unwrap_err().field, "lh_prefix");
    LeafMut::init(&mut block, 5, 3, true).unwrap();
    assert!(Leaf::new(&block, ByteOrder::NATIVE).is_ok());
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, Vec<u64>),
    Remove(u8),
    Update(u8, Vec<u64>),
}

fn op() -> impl Strategy<Value = Op> {
    let v = || prop::collection::vec(any::<u64>(), 0..8);
    prop_oneof![
        3 => (any::<u8>(), v()).prop_map(|(k, v)| Op::Insert(k, v)),
        1 => any::<u8>().prop_map(Op::Remove),
        1 => (any::<u8>(), v()).prop_map(|(k, v)| Op::Update(k, v)),
    ]
}

/// Few bits, so that names collide.
fn hash_of(k: u8) -> u64 {
    u64::from(k % 16) << 60
}

fn key_of(k: u8) -> ZapKey {
    ZapKey::string(format!("name-{k}-{}", "x".repeat(usize::from(k) / 4)).as_bytes())
}

proptest! {
    #[test]
    fn leaf_is_a_map(ops in prop::collection::vec(op(), 1..200), shift in 10u32..14) {
        let mut block = vec![0; 1 << shift];
        let mut model = BTreeMap::new();
        let mut l = LeafMut::init(&mut block, 0, 0, true).unwrap();
        for op in ops {
            match op {
                Op::Insert(k, v) => {
                    if model.contains_key(&k) { continue; }
                    match l.insert(hash_of(k), &key_of(k), &ZapValue::u64s(&v), None) {
                        Ok(_) => { model.insert(k, v); }
                        Err(e) => prop_assert!(e.is_no_space()),
                    }
                }
                Op::Remove(k) => {
                    if let Some(e) = l.view().lookup(hash_of(k), &key_of(k)).unwrap() {
                        prop_assert!(model.remove(&k).is_some());
                        l.remove(&e).unwrap();
                    }
                }
                Op::Update(k, v) => {
                    if let Some(e) = l.view().lookup(hash_of(k), &key_of(k)).unwrap() {
                        match l.update(&e, &ZapValue::u64s(&v)) {
                            Ok(_) => { model.insert(k, v); }
                            Err(e) => prop_assert!(e.is_no_space()),
                        }
                    }
                }
            }
            l.view().verify().unwrap();
        }
        let mut other = vec![0; 1 << shift];
        let check = |leaves: &[Leaf]| {
            let mut n = 0;
            for l in leaves {
                l.verify().unwrap();
                n += l.iter().count();
                // A cursor meets every entry once, in order.
                let (mut at, mut met) = ((0, 0), 0);
                while let Some(e) = l.at_or_after(at.0, at.1).unwrap() {
                    at = (e.hash, e.cd + 1);
                    met += 1;
                }
                assert_eq!(met, l.iter().count());
            }
            assert_eq!(n, model.len());
            for (k, v) in &model {
                let l = leaves.iter().find(|l| l.covers(hash_of(*k))).unwrap();
                let e = l.lookup(hash_of(*k), &key_of(*k)).unwrap().unwrap();
                assert_eq!(l.value(&e).unwrap().as_u64s().unwrap(), *v);
            }
        };
        check(&[l.view()]);
        l.split(&mut other, true).unwrap();
        check(&[l.view(), Leaf::new(&other, ByteOrder::NATIVE).unwrap()]);
        // The other byte order reads the same.
        let foreign = ByteOrder::NATIVE.swapped();
        let native = other.clone();
        leaf_mut::swap(&mut other, ByteOrder::NATIVE).unwrap();
        check(&[l.view(), Leaf::new(&other, foreign).unwrap()]);
        to_native(&mut other, foreign).unwrap();
        prop_assert_eq!(other, native);
    }

    #[test]
    fn damaged_leaf_never_panics(at in prop::collection::vec((0usize..1024, any::<u8>()), 1..8)) {
        let mut block = vec![0; 1024];
        {
            let mut l = LeafMut::init(&mut block, 0, 0, true).unwrap();
            for k in 0..5 {
                l.insert(hash_of(k), &key_of(k), &ZapValue::u64(k.into()), None).unwrap();
            }
        }
        for (i, b) in at {
            block[i] = b;
        }
        if let Ok(l) = Leaf::new(&block, ByteOrder::NATIVE) {
            let _ = l.verify();
            let _ = l.at_or_after(0, 0);
            for e in l.iter().flatten() {
                let _ = (l.name(&e), l.name_u64s(&e), l.value(&e));
            }
        }
        let mut other = vec![0; 1024];
        if let Ok(mut l) = LeafMut::new(&mut block.clone()) {
            let _ = l.split(&mut other, true);
        }
        if let Ok(mut l) = LeafMut::new(&mut block) {
            for k in 0..8 {
                let _ = l.insert(hash_of(k), &key_of(k), &ZapValue::u64(1), None);
                if let Ok(Some(e)) = l.view().lookup(hash_of(k), &key_of(k)) {
                    let _ = l.update(&e, &ZapValue::u64s(&[1, 2, 3]));
                    let _ = l.remove(&e);
                }
            }
        }
    }
}
