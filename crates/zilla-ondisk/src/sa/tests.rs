use super::*;
use proptest::prelude::*;

#[test]
fn registrations_are_openzfs_s() {
    let reg = SaRegistry::for_zpl([]).unwrap();
    // As zdb shows them: ATTR length << 24 | byteswap << 16 | number.
    let mode = reg.get(reg.zpl(ZplAttr::Mode).unwrap()).unwrap();
    assert_eq!(mode.registration(), 8 << 24 | 5);
    let dacl = reg.get(reg.zpl(ZplAttr::DaclAces).unwrap()).unwrap();
    assert_eq!((dacl.num, dacl.registration()), (19, 4 << 16 | 19));
    assert_eq!(SaAttr::from_registration("ZPL_MODE", mode.registration()).unwrap(), *mode);
    assert!(SaAttr::from_registration("x", 9 << 16).is_err());
    // A dataset that registered fewer attributes: the others follow.
    let old = SaRegistry::for_zpl([("ZPL_DACL_COUNT", 8 << 24 | 17), ("foreign", 18)]).unwrap();
    assert_eq!(old.zpl(ZplAttr::DaclCount), Some(17));
    assert_eq!(old.zpl(ZplAttr::Symlink), Some(19));
    assert_eq!(old.zpl(ZplAttr::Atime), Some(0));
}

#[test]
fn file_attributes_fill_the_bonus_as_in_openzfs() {
    // The attributes of a new file with a trivial ACL: 168 bytes with the header, as zdb says of
    // every pool.
    let reg = SaRegistry::for_zpl([]).unwrap();
    use ZplAttr::*;
    let attrs = [Mode, Size, Gen, Uid, Gid, Parent, Flags, Atime, Mtime, Ctime, Crtime, Links, DaclCount];
    let aces = [0u8; 8 * 3];
    let data: Vec<_> = attrs.iter().map(|a| (reg.zpl(*a).unwrap(), vec![0; a.length().into()])).collect();
    let mut list: Vec<(u16, &[u8])> = data.iter().map(|(n, d)| (*n, &d[..])).collect();
    list.push((reg.zpl(DaclAces).unwrap(), &aces));
    let buf = build(2, &list, &reg).unwrap();
    let layout: Vec<u16> = list.iter().map(|(n, _)| *n).collect();
    assert_eq!(buf.len(), 168);
    let view = SaBuf::parse(&buf).unwrap();
    assert_eq!((view.layout, view.hdrsize), (2, 8));
    let got = view.attrs(&layout, &reg).unwrap();
    assert_eq!(got.last().unwrap().data, aces);
    let sizes: Vec<_> = list.iter().map(|(n, d)| (d.len(), reg.get(*n).unwrap().length == 0)).collect();
    let p = place(&sizes, 320, false);
    assert_eq!(p, Placement { hdrsize: 8, total: 160, spill_at: None });
    assert_eq!(p.bonus_len(320), 168);
}

#[test]
fn a_long_attribute_spills() {
    let p = place(&[(160, false), (100, true), (500, true)], 320, false);
    assert_eq!(p, Placement { hdrsize: 8, total: 764, spill_at: Some(1) });
    assert_eq!(p.bonus_len(320), 192);
    let s = place(&[(100, true), (500, true)], 512, true);
    assert_eq!(s, Placement { hdrsize: 16, total: 604, spill_at: None });
}

proptest! {
    #[test]
    fn build_and_parse(lens in prop::collection::vec((0usize..9, 0usize..40), 0..12), layout in 2u16..1024) {
        let mut reg = SaRegistry::default();
        let mut data = Vec::new();
        for (i, (fixed, var)) in lens.iter().enumerate() {
            let length = (fixed * 8) as u16;
            let len = if length == 0 { *var } else { length.into() };
            let name = format!("a{i}");
            reg.insert(SaAttr { name, num: i as u16, length, byteswap: SaByteswap::Uint8 }).unwrap();
            data.push((i as u16, vec![i as u8; len]));
        }
        let list: Vec<(u16, &[u8])> = data.iter().map(|(n, d)| (*n, &d[..])).collect();
        let nums: Vec<u16> = list.iter().map(|(n, _)| *n).collect();
        let buf = build(layout, &list, &reg).unwrap();
        let view = SaBuf::parse(&buf).unwrap();
        prop_assert_eq!(view.layout, layout);
        let got = view.attrs(&nums, &reg).unwrap();
        prop_assert_eq!(got.iter().map(|s| (s.num, s.data)).collect::<Vec<_>>(), list);
        let sizes: Vec<_> = data.iter().map(|(n, d)| (d.len(), reg.get(*n).unwrap().length == 0)).collect();
        let p = place(&sizes, 1 << 20, false);
        prop_assert_eq!((p.hdrsize, p.spill_at), (view.hdrsize, None));
        prop_assert_eq!(p.hdrsize + p.total, buf.len());
        // In a small bonus, what stays fits beside the spill pointer.
        let p = place(&sizes, 320, false);
        if let Some(at) = p.spill_at {
            let stay = place(&sizes[..at], 1 << 20, true);
            prop_assert_eq!(stay.hdrsize, p.hdrsize);
            prop_assert!(stay.hdrsize + stay.total <= 320 - 128);
        } else {
            prop_assert!(p.hdrsize + p.total <= 320);
        }
    }

    #[test]
    fn garbage_never_panics(buf in prop::collection::vec(any::<u8>(), 0..64), magic in any::<bool>()) {
        let mut buf = buf;
        if magic && buf.len() > 4 {
            buf[..4].copy_from_slice(&SA_MAGIC.to_le_bytes());
        }
        let reg = SaRegistry::for_zpl([]).unwrap();
        if let Ok(v) = SaBuf::parse(&buf) {
            let _ = v.attrs(&[5, 17, 19, 20], &reg);
        }
    }
}
