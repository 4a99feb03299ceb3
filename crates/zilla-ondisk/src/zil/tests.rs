use super::*;
use crate::bytes::Writer;
use proptest::prelude::*;

fn record(txtype: u64, body: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::native(256);
    body(&mut w);
    let b = w.finish();
    let mut w = Writer::native(256);
    let len = (32 + b.len()).next_multiple_of(8);
    for v in [txtype, len as u64, 7, 9] {
        w.u64(v);
    }
    w.bytes(&b);
    w.pad_to(len);
    w.finish()
}

#[test]
fn records_of_both_kinds_of_block() {
    let create = record(1, |w| {
        for v in [34, (1 << 56) | 128, 0o100_644, 1, 2, 7, 10, 11, 0] {
            w.u64(v);
        }
        w.bytes(b"file\0");
    });
    let write = record(9 | 1 << 63, |w| {
        for v in [128, 0, 3, 0] {
            w.u64(v);
        }
        w.zeros(128);
        w.bytes(b"abc");
    });
    let all = [create, write].concat();
    for zilog2 in [true, false] {
        let mut block = vec![0; 4096];
        let used = all.len() as u64 + if zilog2 { 184 } else { 0 };
        let chain = ZilChainPhys { nused: used, ..Default::default() };
        let (at, from) = if zilog2 { (0, 184) } else { (4096 - 184, 0) };
        block[at..at + 184].copy_from_slice(&chain.encode());
        block[from..from + all.len()].copy_from_slice(&all);
        let b = LogBlock::parse(&block, ByteOrder::NATIVE, zilog2).unwrap();
        let recs: Vec<_> = b.records().collect::<Result<_>>().unwrap();
        let RecordBody::Create(c) = &recs[0].body else { panic!() };
        assert_eq!((c.name, c.file.object, c.file.slots, c.dir), (&b"file"[..], 128, 2, 34));
        assert!(recs[1].ignore_case);
        let RecordBody::Write { data, length, .. } = recs[1].body else { panic!() };
        assert_eq!((data, length), (&b"abc"[..], 3));
        assert!(LogBlock::parse(&block[..100], ByteOrder::NATIVE, zilog2).is_err());
    }
}

#[test]
fn sizes_are_openzfs_s() {
    assert_eq!(ZilHeader::SIZE, 192);
    assert_eq!(ZilChainPhys::SIZE, 184);
}

proptest! {
    #[test]
    fn garbage_never_panics(t in 0u64..26, body in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..400)) {
        let raw = record(t, |w| w.bytes(&body));
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let _ = LogRecord::parse(&raw, order);
        }
        for zilog2 in [true, false] {
            if let Ok(b) = LogBlock::parse(&body, ByteOrder::NATIVE, zilog2) {
                b.records().for_each(drop);
            }
        }
    }
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1u8.., 0..max)
}

fn xvattr() -> impl Strategy<Value = Xvattr> {
    (any::<[u32; XVA_MAPSIZE]>(), any::<u64>(), any::<[u64; 2]>(), any::<[u8; 32]>()).prop_map(
        |(bitmap, attrs, crtime, scanstamp)| Xvattr { bitmap: bitmap.to_vec(), attrs, crtime, scanstamp },
    )
}

proptest! {
    #[test]
    fn what_is_made_is_read_again(
        n in any::<[u32; 12]>(),
        (a, b) in (bytes(80), bytes(80)),
        x in prop::option::of(xvattr()),
        with_acl in any::<bool>(),
        slots in 1u8..=32,
        which in 0usize..16,
    ) {
        use crate::znode::Ace;
        let n = n.map(u64::from);
        let [dir, object, mode, uid, gid, generation, s, ns, rdev, offset, length, mask] = n;
        let ace = |who| Ace { ace_type: 0, flags: 0, access_mask: 7, who, object: None };
        let acl = LrAcl { flags: 3, aces: vec![ace(5), ace(6)], fuids: Vec::new() };
        let file = Foid { object, slots };
        let create = CreateBody {
            dir, file, mode, uid, gid, generation, crtime: [s, ns], rdev, name: &a, link: None,
            xvattr: x.clone(), acl: with_acl.then(|| acl.clone()),
        };
        let plain = CreateBody { xvattr: None, acl: None, ..create.clone() };
        let mut bp = BlkPtr::ZERO;
        bp.set_birth(7);
        let mask = if x.is_some() { mask | ATTR_XVATTR } else { mask & !ATTR_XVATTR };
        let body = match which {
            0 => RecordBody::Create(create),
            1 => RecordBody::Mkdir(create),
            2 => RecordBody::Mkxattr(plain),
            3 => RecordBody::Symlink(CreateBody { link: Some(&b), ..plain }),
            4 => RecordBody::Remove { dir, name: &a },
            5 => RecordBody::Rmdir { dir, name: &a },
            6 => RecordBody::Link { dir, object, name: &a },
            7 => RecordBody::Rename { source_dir: dir, target_dir: object, source: &a, target: &b },
            8 => RecordBody::RenameExchange { source_dir: dir, target_dir: object, source: &a, target: &b },
            9 => RecordBody::RenameWhiteout {
                source_dir: dir, target_dir: object, source: &a, target: &b, whiteout: file, mode, uid, gid,
                generation, crtime: [s, ns], rdev,
            },
            10 => RecordBody::Write { object, offset, length: b.len() as u64, blkptr: BlkPtr::ZERO, data: &b },
            11 => RecordBody::Truncate { object, offset, length },
            12 => RecordBody::Setattr {
                object, mask, mode, uid, gid, size: length, atime: [s, ns], mtime: [ns, s], xvattr: x,
            },
            13 => RecordBody::Acl { object, acl },
            14 => RecordBody::Setsaxattr { object, name: &a, value: &b },
            _ => RecordBody::CloneRange { object, offset, length, blksz: 512, bps: vec![bp; b.len()] },
        };
        let txtype = body.txtype();
        let header = LrHeader { txtype: 0, reclen: 0, txg: 9, seq: 0 };
        let record = LogRecord { header, ignore_case: which % 2 == 0, body };
        let mut raw = record.encode();
        set_seq(&mut raw, 12);
        let read = LogRecord::parse(&raw, ByteOrder::NATIVE).unwrap();
        prop_assert_eq!(read.header, LrHeader { txtype, reclen: raw.len() as u64, txg: 9, seq: 12 });
        prop_assert_eq!(read.body, record.body);
        prop_assert_eq!(read.ignore_case, record.ignore_case);
    }
}
