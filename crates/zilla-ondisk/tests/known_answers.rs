//! Blocks that OpenZFS wrote, read, compared with what zdb says of them, and written again.

use zilla_ondisk::sa::{SaBuf, SaRegistry, ZplAttr};
use zilla_ondisk::spacemap::{MapType, SpaceMapReader, SpaceMapWriter};
use zilla_ondisk::zap::{Leaf, LeafMut, ZapKey, ZapPhys, ZapValue, fat, to_native};
use zilla_ondisk::{
    ByteOrder, DnodePhys, EckPhys, NvList, ObjsetPhys, Phys, Uberblock, dnode, dsl, object_type,
};

const LE: ByteOrder = ByteOrder::Little;

#[test]
fn label() {
    let raw = include_bytes!("data/label.nvlist");
    let (list, used) = NvList::unpack_prefix(raw).unwrap();
    assert_eq!(used, raw.len());
    assert_eq!(list.need_str("name").unwrap(), "tank");
    assert_eq!(list.need_u64("pool_guid").unwrap(), 12276226325097055914);
    let tree = list.need_list("vdev_tree").unwrap();
    assert_eq!(tree.need_u64("asize").unwrap(), 129499136);
    assert!(list.need_list("features_for_read").unwrap().flag("com.delphix:hole_birth"));
    let text = list.to_string();
    assert!(text.contains("\n    path: '/dev/xvda1'\n    whole_disk: 0\n"), "{text}");
    if ByteOrder::NATIVE == LE {
        assert_eq!(list.pack(), raw);
    }
    let err = list.need_u64("name").unwrap_err().to_string();
    assert_eq!(err, "nvlist.name at byte 0: is of another type");
}

#[test]
fn uberblock() {
    let raw = include_bytes!("data/uberblock.slot");
    let (ub, order) = Uberblock::decode_slot(raw).unwrap();
    assert_eq!((order, ub.version, ub.txg, ub.guid_sum), (LE, 5000, 64, 1807687271790195972));
    assert!(ub.mmp_valid() && ub.mmp_seq().is_none());
    assert_eq!(
        ub.rootbp.to_string(),
        "DVA[0]=<0:310400:200> DVA[1]=<0:10ab200:200> DVA[2]=<0:205f400:200> [L0 DMU objset] fletcher4 lz4 \
         unencrypted LE contiguous unique triple size=1000L/200P birth=64L/64P fill=69 \
         cksum=0000000a50ebd6ef:00000432e9fd5a93:0000de7bc2665269:001f3afa5aa8511e"
    );
    ub.rootbp.validate().unwrap();
    let eck = EckPhys::decode(&raw[1024 - 40..], LE).unwrap();
    assert_eq!(eck.magic, zilla_ondisk::label::ZEC_MAGIC);
    let mut again = [0; 1024];
    ub.encode_slot(&mut again).unwrap();
    if ByteOrder::NATIVE == LE {
        assert_eq!(again[..1024 - 40], raw[..1024 - 40]);
    }
    // The same, as a machine of the other kind would have written it.
    let foreign = ub.encode_in(ByteOrder::NATIVE.swapped());
    assert_eq!(Uberblock::decode_slot(&foreign).unwrap(), (ub, ByteOrder::NATIVE.swapped()));
}

#[test]
fn object_directory() {
    let header = include_bytes!("data/object-directory.header");
    let raw = include_bytes!("data/object-directory.leaf");
    let z = ZapPhys::parse(header, LE).unwrap();
    assert_eq!((z.salt, z.num_entries, z.num_leafs, z.ptrtbl.shift, z.freeblk), (0x31513, 15, 1, 10, 2));
    assert_eq!(fat::embedded_leaf(header, 1023, LE).unwrap(), 1);
    let leaf = Leaf::new(raw, LE).unwrap();
    leaf.verify().unwrap();
    let get = |name: &str| {
        let key = ZapKey::string(name.as_bytes());
        let e = leaf.lookup(key.hash(z.salt, z.flags), &key).unwrap();
        e.map(|e| leaf.value(&e).unwrap())
    };
    assert_eq!(get("root_dataset"), Some(ZapValue::u64(32)));
    assert_eq!(get("com.delphix:log_spacemap_zap"), Some(ZapValue::u64(69)));
    assert_eq!(get("nothing"), None);
    let salt = get("org.illumos:checksum_salt").unwrap();
    assert_eq!(salt.as_bytes().unwrap()[..4], [0x8f, 0xe6, 0x8e, 0x96]);

    // Taken apart and put together again, it stays in order; and an entry is where OpenZFS looks
    // for it.
    let mut block = raw.to_vec();
    to_native(&mut block, LE).unwrap();
    let mut l = LeafMut::new(&mut block).unwrap();
    for (name, value) in [("a", 1), ("another name that takes two chunks", 2)] {
        let key = ZapKey::string(name.as_bytes());
        l.insert(key.hash(z.salt, z.flags), &key, &ZapValue::u64(value), None).unwrap();
    }
    l.view().verify().unwrap();
    let mut other = vec![0; 16384];
    l.split(&mut other, true).unwrap();
    l.view().verify().unwrap();
    let other = Leaf::new(&other, ByteOrder::NATIVE).unwrap();
    other.verify().unwrap();
    assert_eq!(l.view().iter().count() + other.iter().count(), 17);
}

#[test]
fn mos_dnodes() {
    let raw = include_bytes!("data/mos-dnodes.32-63");
    let all: Vec<_> = dnode::dnodes(raw, LE).map(|(slot, dn)| (slot + 32, dn.unwrap())).collect();
    assert_eq!(all.len(), 32);
    let find = |n| all.iter().find(|(slot, _)| *slot == n).map(|(_, dn)| dn).unwrap();
    let history = find(60);
    assert_eq!((history.otype, history.datablksz()), (object_type::DMU_OT_SPA_HISTORY, 128 << 10));
    assert_eq!(history.used_bytes(), 10752);
    let h = zilla_ondisk::history::HistoryPhys::decode(&history.bonus, LE).unwrap();
    assert_eq!((h.pool_create_len, h.phys_max_off, h.bof), (12664, 131072, 12664));
    h.check().unwrap();
    let ds = dsl::DslDatasetPhys::decode(&find(45).bonus, LE).unwrap();
    assert_eq!((ds.dir_obj, ds.prev_snap_obj, ds.guid, ds.flags), (42, 48, 17531786377331668491, 4));
    assert_eq!(ds.bp.to_string(), "HOLE [L0 unallocated] size=200L birth=0L");
    if ByteOrder::NATIVE == LE {
        for (n, dn) in &all {
            let mut again = vec![0; dn.size()];
            dn.encode_into(&mut again).unwrap();
            assert_eq!(again, raw[(n - 32) * 512..][..dn.size()], "object {n}");
        }
    }
}

#[test]
fn a_foreign_dnode_reads_the_same() {
    let raw = include_bytes!("data/mos-dnodes.32-63");
    let dn = DnodePhys::decode(&raw[28 * 512..], LE).unwrap();
    // What a big-endian machine would have written: each field swapped in its place.
    let mut be = raw[28 * 512..29 * 512].to_vec();
    be[8..10].reverse();
    be[10..12].reverse();
    for word in be[16..192].as_chunks_mut::<8>().0 {
        word.reverse();
    }
    let mut got = DnodePhys::decode(&be, ByteOrder::Big).unwrap();
    assert_eq!((&got.blkptr, got.used, got.maxblkid), (&dn.blkptr, dn.used, dn.maxblkid));
    assert_eq!(got.bonus, dn.bonus);
    assert!(ByteOrder::NATIVE == ByteOrder::Big || got.encode_into(&mut [0; 512]).is_err());
    got.bonus_to_native();
    got.encode_into(&mut [0; 512]).unwrap();
}

#[test]
fn objset() {
    let raw = include_bytes!("data/objset.4096");
    let os = ObjsetPhys::decode(raw, LE).unwrap();
    assert_eq!((os.os_type, os.flags), (2, 7));
    assert_eq!(os.projectused_dnode.otype, object_type::DMU_OT_USERGROUP_USED);
    if ByteOrder::NATIVE == LE {
        assert_eq!(os.encode().unwrap(), raw);
    }
    assert!(ObjsetPhys::decode(&raw[..1000], LE).is_err());
    assert!(ObjsetPhys::decode(&raw[..2048], LE).unwrap().projectused_dnode.is_free());
}

#[test]
fn system_attributes() {
    let reg = SaRegistry::for_zpl([]).unwrap();
    let number = |a: &ZplAttr| reg.zpl(*a).unwrap();
    use ZplAttr::*;
    let common = [Mode, Size, Gen, Uid, Gid, Parent, Flags, Atime, Mtime, Ctime, Crtime, Links];
    let layout: Vec<u16> = common.iter().chain(&[Projid, DaclCount, DaclAces]).map(number).collect();
    let raw = include_bytes!("data/root-dir.sa");
    let view = SaBuf::parse(raw).unwrap();
    assert_eq!((view.order, view.layout, view.hdrsize), (LE, 3, 8));
    let attrs = view.attrs(&layout, &reg).unwrap();
    let get = |a| attrs.iter().find(|s| s.num == number(&a)).unwrap();
    assert_eq!((get(Mode).u64(0), get(Parent).u64(0)), (Some(0o40755), Some(34)));
    let aces = zilla_ondisk::znode::decode_aces(get(DaclAces).data, 3, LE).unwrap();
    assert!(aces.iter().all(|a| a.size() == 8));

    // The second variable attribute of a file: its extended attributes, an nvlist.
    let layout: Vec<u16> = common.iter().chain(&[Projid, DaclCount, DaclAces, Dxattr]).map(number).collect();
    let raw = include_bytes!("data/xattr.sa");
    let view = SaBuf::parse(raw).unwrap();
    assert_eq!((view.layout, view.hdrsize), (7, 16));
    let xattrs = NvList::unpack(view.attrs(&layout, &reg).unwrap().last().unwrap().data).unwrap();
    assert_eq!(xattrs.bytes("user.note"), Some(&b"seed 1"[..]));
}

#[test]
fn space_map() {
    let raw = include_bytes!("data/metaslab0.spacemap");
    let all: Vec<_> = SpaceMapReader::new(raw, LE, 0, 9).map(|e| e.unwrap()).collect();
    let first = all[0];
    assert_eq!((first.kind, first.offset, first.run, first.txg), (MapType::Alloc, 0, 0x2e00, 5));
    let sum = all.iter().fold(0, |n, e| if e.kind == MapType::Alloc { n + e.run } else { n - e.run });
    assert_eq!(sum, 0x228000);
    // Written again by our encoder, it is the same words.
    let mut w = SpaceMapWriter::new(0, 128 << 10, 0, 9, true);
    let mut last = None;
    for e in &all {
        if last != Some((e.kind, e.txg, e.sync_pass)) {
            w.debug(e.kind, e.sync_pass, e.txg);
            last = Some((e.kind, e.txg, e.sync_pass));
        }
        w.push(e.kind, e.offset, e.run, e.vdev.filter(|v| *v != 0)).unwrap();
    }
    if ByteOrder::NATIVE == LE {
        assert_eq!(w.finish(), raw);
    }
}
