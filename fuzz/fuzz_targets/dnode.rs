//! Blocks of dnodes, their bonuses, and objsets.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_ondisk::sa::{SaBuf, SaRegistry};
use zilla_ondisk::znode::ZnodePhys;
use zilla_ondisk::{ByteOrder, DnodePhys, ObjsetPhys, dnode, history, spacemap::SpaceMapPhys};

fuzz_target!(|data: &[u8]| {
    let reg = SaRegistry::for_zpl([]).expect("no entries");
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for dn in dnode::dnodes(data, order).filter_map(|(_, dn)| dn.ok()) {
            let mut dn = dn;
            let _ = (dn.used_bytes(), dn.datablksz());
            if let Ok(sa) = SaBuf::parse(&dn.bonus) {
                let _ = sa.attrs(&[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 20, 17], &reg);
            }
            if let Ok(z) = ZnodePhys::from_bonus(&dn.bonus, order) {
                let _ = (z.acl.aces(order), z.symlink(&dn.bonus));
            }
            let _ = (SpaceMapPhys::from_bonus(&dn.bonus, order), history::records(&dn.bonus));
            dn.bonus_to_native();
            dn.bonus_order = ByteOrder::NATIVE;
            let mut out = vec![0; dn.size()];
            dn.encode_into(&mut out).expect("decoded");
            assert_eq!(DnodePhys::decode(&out, ByteOrder::NATIVE), Ok(dn));
        }
        if let Ok(os) = ObjsetPhys::decode(data, order) {
            let _ = os.encode();
        }
    }
});
