//! The dbuf's state machine against plain byte arrays: one array a txg, plus what is on disk.

use super::*;
use proptest::prelude::*;
use zilla_codec::compress::Compress;

const BLK: usize = 512;

#[derive(Clone, Debug)]
enum Op {
    Write(usize, usize, u8),
    WriteAll(u8),
    Free,
    /// The block becomes one that another file has, and the number of which all its bytes are.
    Clone(u8),
    Modify(usize, u8),
    Read(usize, usize),
    /// A read that found the base missing has now loaded it.
    Load,
    NextTxg,
    Sync,
    Evict,
}

fn op() -> impl Strategy<Value = Op> {
    let pos = (0..BLK, 0..=BLK).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        6 => (pos.clone(), any::<u8>()).prop_map(|((a, b), v)| Op::Write(a, b, v)),
        1 => any::<u8>().prop_map(Op::WriteAll),
        2 => Just(Op::Free),
        2 => any::<u8>().prop_map(Op::Clone),
        2 => (0..BLK, any::<u8>()).prop_map(|(a, v)| Op::Modify(a, v)),
        4 => pos.prop_map(|(a, b)| Op::Read(a, b)),
        2 => Just(Op::Load),
        3 => Just(Op::NextTxg),
        3 => Just(Op::Sync),
        1 => Just(Op::Evict),
    ]
}

fn pointer(v: u8) -> BlkPtr {
    let mut bp = BlkPtr::ZERO;
    bp.set_lsize(BLK as u64);
    bp.set_cksum([v.into(), 0, 0, 0]);
    bp
}

/// Brings what is below the layers into memory.
fn load(db: &mut Dbuf, disk: &[u8]) {
    while let Some(bp) = db.unread_clone() {
        db.clone_read(&bp, &vec![bp.cksum()[0] as u8; BLK].into());
    }
    if !db.base_known() && !db.hides_base() {
        db.set_base(Base::Data(Bytes::copy_from_slice(disk)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn three_txgs_of_writes_frees_and_reads_match_byte_arrays(ops in prop::collection::vec(op(), 1..60)) {
        let mut disk = [7u8; BLK];
        let mut open = Txg(10);
        // states[i]: contents at the end of txg `synced + 1 + i`; the last is the open txg's.
        let mut synced = Txg(9);
        let mut states = vec![disk];
        let mut changed = vec![false];
        let mut db = Dbuf::with_base(Base::Unknown);
        for op in ops {
            let now = states.len() - 1;
            match op {
                Op::Write(a, b, v) if a < b => {
                    db.write(open, BLK, a, &vec![v; b - a]);
                    states[now][a..b].fill(v);
                    changed[now] = true;
                }
                Op::Write(..) => {}
                Op::WriteAll(v) => {
                    db.write_all(open, Bytes::from(vec![v; BLK]));
                    states[now] = [v; BLK];
                    changed[now] = true;
                }
                Op::Free => {
                    db.free(open);
                    states[now] = [0; BLK];
                    changed[now] = true;
                }
                Op::Clone(v) => {
                    db.put_clone(open, BLK, pointer(v));
                    states[now] = [v; BLK];
                    changed[now] = true;
                }
                Op::Modify(a, v) => {
                    if db.modify(open, BLK, |b| b[a] = v).is_some() {
                        states[now][a] = v;
                        changed[now] = true;
                    }
                }
                Op::Read(a, b) => {
                    let mut out = vec![0xee; b - a];
                    let could = db.read(a, &mut out);
                    prop_assert_eq!(could, db.resident(a, b - a));
                    if could { prop_assert_eq!(&out[..], &states[now][a..b]); }
                    if let Some(s) = db.shared(BLK) { prop_assert_eq!(&s[..], &states[now][..]); }
                }
                Op::Load => load(&mut db, &disk),
                Op::NextTxg => if states.len() < 3 {
                    open = open.next();
                    states.push(states[now]);
                    changed.push(false);
                },
                Op::Sync => if states.len() > 1 {
                    synced = synced.next();
                    let want = states.remove(0);
                    let mut got = db.freeze(synced);
                    prop_assert_eq!(got.is_some(), changed.remove(0));
                    if got == Some(Frozen::NeedsBase) {
                        load(&mut db, &disk);
                        got = db.freeze(synced);
                    }
                    match got {
                        Some(Frozen::Cloned(bp, data)) => {
                            prop_assert_eq!(&want[..], &[bp.cksum()[0] as u8; BLK][..]);
                            db.synced(synced, data.map_or(Base::Unknown, Base::Data));
                        }
                        Some(Frozen::Data(b)) => {
                            prop_assert_eq!(&b[..], &want[..]);
                            db.synced(synced, Base::Data(b));
                        }
                        Some(Frozen::Hole) => {
                            prop_assert_eq!(&want[..], &[0; BLK][..]);
                            db.synced(synced, Base::Hole);
                        }
                        Some(Frozen::NeedsBase) => prop_assert!(false, "the base was just given"),
                        None => {}
                    }
                    disk = want;
                },
                Op::Evict => if db.is_clean() { db.set_base(Base::Unknown) },
            }
        }
    }
}

#[test]
fn a_record_filled_by_small_writes_never_needs_its_base() {
    let mut db = Dbuf::with_base(Base::Unknown);
    for i in 0..4 {
        db.write(Txg(5), BLK, i * BLK / 4, &[i as u8; BLK / 4]);
    }
    let Some(Frozen::Data(b)) = db.freeze(Txg(5)) else { panic!("must be whole") };
    assert_eq!(b[BLK / 4], 1);
    assert!(!db.base_known());
}

#[test]
fn a_block_that_grew_reads_zeroes_beyond_its_old_end() {
    let mut db = Dbuf::with_base(Base::Data(Bytes::from_static(&[9; 16])));
    db.write(Txg(5), 32, 20, &[1; 4]);
    let mut out = [0xff; 32];
    assert!(db.read(0, &mut out));
    assert_eq!((out[15], out[16], out[20], out[24]), (9, 0, 1, 0));
}

#[test]
fn what_came_compressed_is_stored_so_unless_it_changes() {
    let packed = || Packed { data: Bytes::from_static(b"less"), compress: Compress::Gzip6 };
    let mut db = Dbuf::with_base(Base::Hole);
    db.write_packed(Txg(5), Bytes::from(vec![7; 16]), packed());
    assert_eq!(db.packed(Txg(5)), Some(&packed()));
    assert_eq!(db.packed(Txg(4)), None);
    db.write(Txg(6), 16, 3, b"x");
    assert_eq!((db.packed(Txg(5)), db.packed(Txg(6))), (Some(&packed()), None));
    db.write(Txg(6), 16, 0, &[1; 16]);
    db.write_packed(Txg(6), Bytes::from(vec![8; 16]), packed());
    db.modify(Txg(6), 16, |b| b[0] = 1).unwrap();
    assert_eq!(db.packed(Txg(6)), None);
    db.write_packed(Txg(6), Bytes::from(vec![8; 16]), packed());
    db.write(Txg(6), 16, 0, b"y");
    assert_eq!(db.packed(Txg(6)), None);
    db.write_packed(Txg(6), Bytes::from(vec![8; 16]), packed());
    db.free(Txg(6));
    assert_eq!(db.packed(Txg(6)), None);
}
