use super::*;
use proptest::prelude::*;

fn sample() -> BlkPtr {
    let mut bp = BlkPtr::ZERO;
    bp.set_dva(0, Dva { vdev: 3, offset: 0x123_4000, asize: 0x3000, gang: false });
    bp.set_dva(1, Dva { vdev: 0, offset: 0x200, asize: 0x3000, gang: true });
    bp.set_lsize(128 << 10);
    bp.set_psize(8 << 10);
    bp.set_compress(15);
    bp.set_checksum_kind(7);
    bp.set_otype(object_type::DMU_OT_PLAIN_FILE_CONTENTS);
    bp.set_byteorder(ByteOrder::Little);
    bp.set_births(100, 90);
    bp.set_fill(1);
    bp.set_cksum([1, 2, 3, 4]);
    bp
}

#[test]
fn fields_are_where_openzfs_has_them() {
    let bp = sample();
    assert_eq!(bp.0[0], 3 << 32 | 0x18);
    assert_eq!(bp.0[1], 0x123_4000 >> 9);
    assert_eq!(bp.0[3], 1 << 63 | 1);
    // B | type 19 | fletcher4 | lz4 | psize | lsize
    assert_eq!(bp.0[6], 0x8013_070f_000f_00ff);
    assert_eq!((bp.0[9], bp.0[10]), (90, 100));
    assert_eq!((bp.ndvas(), bp.asize(), bp.count_gang(), bp.is_gang()), (2, 0x6000, 1, false));
    assert_eq!((bp.birth(), bp.phys_birth(), bp.fill()), (100, 90, 1));
    bp.validate().unwrap();
    assert_eq!(
        bp.to_string(),
        "DVA[0]=<3:1234000:3000> DVA[1]=<0:200:3000> [L0 ZFS plain file] fletcher4 lz4 unencrypted LE \
         contiguous unique double size=20000L/2000P birth=100L/90P fill=1 \
         cksum=0000000000000001:0000000000000002:0000000000000003:0000000000000004"
    );
}

#[test]
fn encrypted_pointers_hold_salt_and_iv() {
    let mut bp = sample();
    bp.set_crypt(true);
    let (salt, iv) = ([1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
    bp.set_salt_iv(salt, iv);
    bp.set_mac([7; 16]);
    assert!(bp.is_encrypted() && !bp.is_authenticated());
    assert_eq!((bp.salt(), bp.iv(), bp.mac(), bp.fill(), bp.ndvas()), (salt, iv, [7; 16], 1, 2));
    bp.set_fill(u64::from(u32::MAX));
    assert_eq!((bp.iv(), bp.fill()), (iv, u64::from(u32::MAX)));
}

#[test]
fn holes_and_redacted() {
    let hole = BlkPtr::hole(4096, 19, 0, 55);
    assert!(hole.is_hole() && hole.lsize() == 4096 && hole.birth() == 55);
    assert_eq!(hole.to_string(), "HOLE [L0 ZFS plain file] size=1000L birth=55L");
    assert_eq!(BlkPtr::hole(4096, 19, 0, 0), BlkPtr::ZERO);
    let r = BlkPtr::redacted(4096, 19, 0, 55);
    assert!(r.is_redacted() && !r.is_hole());
    r.validate().unwrap();
}

#[test]
fn impossible_values() {
    let bad = |f: fn(&mut BlkPtr)| {
        let mut bp = sample();
        f(&mut bp);
        bp.validate().unwrap_err()
    };
    assert_eq!(bad(|b| b.set_otype(60)), BpError::Type(60));
    assert_eq!(bad(|b| b.set_compress(17)), BpError::Compress(17));
    assert_eq!(bad(|b| b.set_checksum_kind(15)), BpError::Checksum(15));
    assert_eq!(bad(|b| b.set_lsize(32 << 20)), BpError::Lsize(32 << 20));
    assert_eq!(bad(|b| b.set_psize(32 << 20)), BpError::Psize(32 << 20));
    assert_eq!(bad(|b| b.0[0] = 1 << 32), BpError::NoDva);
    assert!(matches!(bad(|b| b.0[1] = 1 << 62), BpError::Offset { dva: 0, .. }));
    let mut e = BlkPtr::embedded(&[1; 112], 15, 4096, 19, 0, 5).unwrap();
    e.validate().unwrap();
    e.0[6] |= 127 << 25;
    assert_eq!(e.validate(), Err(BpError::Psize(128)));
    assert!(BlkPtr::embedded(&[1; 113], 15, 4096, 19, 0, 5).is_none());
    assert!(BlkPtr::embedded(&[], 15, 4096, 19, 0, 5).is_none());
}

proptest! {
    #[test]
    fn embedded_round_trip(data in prop::collection::vec(any::<u8>(), 1..=112), lsize in 1u64..=1 << 24, birth in any::<u64>()) {
        let bp = BlkPtr::embedded(&data, 15, lsize, 19, 0, birth).unwrap();
        prop_assert!(bp.is_embedded() && !bp.is_hole() && !bp.is_gang());
        prop_assert_eq!(&bp.embedded_data()[..bp.embedded_psize()], &data[..]);
        prop_assert_eq!((bp.lsize(), bp.birth(), bp.compress(), bp.ndvas(), bp.fill()), (lsize, birth, 15, 0, 1));
        bp.validate().unwrap();
    }

    #[test]
    fn any_bits_can_be_looked_at(words in any::<[u64; 16]>()) {
        let bp = BlkPtr(words);
        let _ = (bp.validate(), bp.to_string(), bp.asize(), bp.embedded_data(), bp.phys_birth(), bp.iv(), bp.mac());
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let raw = Phys::encode_in(&bp, order);
            prop_assert_eq!(BlkPtr::decode(&raw, order).unwrap(), bp);
        }
        prop_assert_eq!(BlkPtr::decode(&bp.encode(), ByteOrder::NATIVE).unwrap(), bp);
    }

    #[test]
    fn dva_round_trip(vdev in 0u32..1 << 24, offset in 0u64..1 << 54, asize in 0u64..1 << 24, gang: bool) {
        let dva = Dva { vdev, offset: offset << 9, asize: asize << 9, gang };
        prop_assert_eq!(Dva::from_words(dva.to_words()), dva);
    }
}
