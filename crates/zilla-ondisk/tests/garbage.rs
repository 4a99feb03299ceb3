//! Whatever the bytes are: no parser panics, and what it accepts it can write and read again.

use proptest::prelude::*;
use zilla_ondisk::sa::SaBuf;
use zilla_ondisk::*;

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

/// Bytes that are mostly small numbers, as those of structures are.
fn bytes(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![4 => Just(0u8), 2 => 1u8..8, 1 => any::<u8>()], len)
}

fn fixed<P: Phys + PartialEq + std::fmt::Debug>(raw: &[u8]) {
    for order in ORDERS {
        match P::decode(raw, order) {
            Ok(p) => assert_eq!(P::decode(&p.encode_in(order), order).unwrap(), p),
            Err(_) => assert!(raw.len() < P::SIZE),
        }
    }
}

proptest! {
    #[test]
    fn fixed_structures(raw in bytes(0..600)) {
        fixed::<BlkPtr>(&raw);
        fixed::<Uberblock>(&raw);
        fixed::<ZilHeader>(&raw);
        fixed::<EckPhys>(&raw);
        fixed::<zap::ZapTablePhys>(&raw);
        fixed::<dsl::DslDirPhys>(&raw);
        fixed::<dsl::DslDatasetPhys>(&raw);
        fixed::<dsl::DslScanPhys>(&raw);
        fixed::<spacemap::SpaceMapPhys>(&raw);
        fixed::<bptree::BptreeEntryPhys>(&raw);
        fixed::<znode::ZnodePhys>(&raw);
        fixed::<l2arc::L2DevHdrPhys>(&raw);
        fixed::<removal::IndirectMappingEntryPhys>(&raw);
    }

    #[test]
    fn dnodes(mut raw in bytes(0..4096), header in bytes(16), plausible: bool) {
        if plausible && raw.len() > 16 {
            raw[..16].copy_from_slice(&header);
            let [otype, ind, levels, bps, ..] = &mut raw[..] else { unreachable!() };
            (*otype, *ind, *levels, *bps) = (*otype % 54, 10 + *ind % 8, 1 + *levels % 12, 1 + *bps % 3);
        }
        for order in ORDERS {
            if let Ok(mut dn) = DnodePhys::decode(&raw, order) {
                let _ = (dn.used_bytes(), dn.datablksz(), dn.max_bonuslen());
                dn.bonus_to_native();
                dn.bonus_order = ByteOrder::NATIVE;
                let mut out = vec![0; dn.size()];
                dn.encode_into(&mut out).unwrap();
                prop_assert_eq!(DnodePhys::decode(&out, ByteOrder::NATIVE).unwrap(), dn);
            }
            dnode::dnodes(&raw, order).for_each(drop);
            let _ = ObjsetPhys::decode(&raw, order);
        }
    }

    #[test]
    fn the_rest(raw in bytes(0..1024), n in 0usize..2000) {
        for order in ORDERS {
            let _ = (bpobj::BpobjPhys::from_bonus(&raw, order), spacemap::SpaceMapPhys::from_bonus(&raw, order));
            let _ = (ddt::DdtEntry::parse(&raw, order), gang::GangHeader::decode(&raw, order));
            let _ = dsl::RedactionListPhys::decode(&raw, order);
            let _ = removal::IndirectMappingPhys::from_bonus(&raw, order);
            let _ = (znode::decode_aces(&raw, n, order), znode::decode_oldaces(&raw, n, order));
            if let Ok(z) = znode::ZnodePhys::from_bonus(&raw, order) {
                let _ = (z.acl.aces(order), z.symlink(&raw));
            }
            if let Ok(h) = history::HistoryPhys::decode(&raw, order) {
                let _ = (h.check(), h.spans(n as u64, u64::MAX), h.free());
            }
        }
        let _ = (Uberblock::decode_slot(&raw), SaBuf::parse(&raw), l2arc::L2LogBlk::parse(&raw, n));
        let _ = (history::records(&raw), errlog::parse_bookmark(&raw), deadlist::parse_int_key(&raw));
    }
}

#[test]
fn labels_have_their_place() {
    use label::*;
    let size = (64 << 20) + 1234;
    let psize = usable_size(size);
    assert_eq!(psize, 64 << 20);
    let offsets: Vec<_> = (0..5).map(|l| label_offset(size, l)).collect();
    assert_eq!(
        offsets,
        [Some(0), Some(256 << 10), Some(psize - (512 << 10)), Some(psize - (256 << 10)), None]
    );
    assert_eq!(label_offset(1 << 20, 2), None);
    assert_eq!((uberblock_size(9), uberblock_size(12), uberblock_size(16)), (1024, 4096, 8192));
    assert_eq!(
        (uberblock_count(9), uberblock_slot(12, 33, false), uberblock_slot(12, 33, true)),
        (128, 1, 2)
    );
    let raw = vec![0; 256 << 10];
    let l = VdevLabel::split(&raw).unwrap();
    assert_eq!((l.nvlist().len(), l.slots(12).count()), ((112 << 10) - 40, 32));
    assert_eq!(l.slots(12).nth(1).unwrap().0, uberblock_offset(12, 1));
    assert!(VdevLabel::split(&raw[1..]).is_none());
    assert!(encode_vdev_phys(&raw).is_none());
    assert_eq!(encode_vdev_phys(&[1, 2]).unwrap().len(), 112 << 10);
}
