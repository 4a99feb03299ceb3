use super::*;
use proptest::prelude::*;

fn head(kind: u32, body: &[u8]) -> [u8; RECORD_SIZE] {
    let mut out = [0; RECORD_SIZE];
    out[..4].copy_from_slice(&kind.to_ne_bytes());
    out[8..8 + body.len()].copy_from_slice(body);
    out
}

#[test]
fn sizes_are_openzfs_s() {
    use crate::bytes::Field;
    let sizes = [End::SIZE, Object::SIZE, Write::SIZE, WriteByref::SIZE, WriteEmbedded::SIZE];
    // A write's last field ends 4 bytes before what a C compiler makes of the structure.
    assert_eq!(sizes, [40, 56, 132, 104, 48]);
    assert_eq!((Spill::SIZE, ObjectRange::SIZE), (80, 64));
}

#[test]
fn a_payload_beyond_any_block_is_refused() {
    let w = Record::Write(Write { logical_size: MAX_PAYLOAD + 1, ..Write::default() });
    assert!(Record::decode(&w.encode(), ByteOrder::NATIVE).is_err());
    let o = Record::Object(Object { bonuslen: u32::MAX, ..Object::default() });
    assert!(Record::decode(&o.encode(), ByteOrder::NATIVE).is_err());
    assert!(Record::decode(&head(11, &[]), ByteOrder::NATIVE).is_err());
}

#[test]
fn both_orders_are_told_by_the_magic() {
    let b = Record::Begin(Begin { toname: "tank/a@s".into(), fromguid: 7, ..Begin::default() });
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let raw = b.encode_in(order);
        assert_eq!(order_of(&raw).unwrap(), order);
        assert_eq!(Record::decode(&raw, order).unwrap(), b);
    }
    assert!(order_of(&[0; RECORD_SIZE]).is_err());
    assert!(order_of(&[]).is_err());
}

proptest! {
    #[test]
    fn any_head_is_refused_or_written_again(
        kind in 0..12u32,
        body in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 300),
        magic: bool,
    ) {
        let mut raw = head(kind, &body);
        if magic {
            raw[8..16].copy_from_slice(&DMU_BACKUP_MAGIC.to_ne_bytes());
        }
        for order in [ByteOrder::Little, ByteOrder::Big] {
            if let Ok(r) = Record::decode(&raw, order) {
                let again = r.encode_in(order);
                prop_assert_eq!(Record::decode(&again, order).unwrap(), r);
            }
        }
    }
}
