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
