use super::*;
use crate::dmu::testing::Harness;
use crate::dmu::{Stop, resident};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};
use zilla_env::block_on;
use zilla_ondisk::object_type::{DMU_OT_DIRECTORY_CONTENTS, DMU_OTN_ZAP_METADATA};

fn make(h: &Harness, opts: CreateOpts) -> Zap {
    let tx = h.tx();
    block_on(Zap::make(&h.objset, &tx, DMU_OT_DIRECTORY_CONTENTS, &opts)).unwrap()
}

/// Syncs, and opens the ZAP again from what is on "disk".
fn reopen(h: &mut Harness, zap: Zap) -> Zap {
    let id = zap.id();
    drop(zap);
    block_on(h.sync_open());
    block_on(h.reopen());
    block_on(Zap::open(&h.objset, id)).unwrap()
}

fn all(zap: &Zap) -> BTreeMap<Vec<u8>, Value> {
    let list = block_on(zap.entries()).unwrap();
    let n = list.len();
    let map: BTreeMap<_, _> = list.into_iter().map(|e| (e.name, e.value)).collect();
    assert_eq!(map.len(), n, "an entry was seen twice");
    assert_eq!(block_on(zap.len()).unwrap(), n as u64);
    map
}

#[test]
fn grows_from_micro_to_fat() {
    let mut h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let mut expect = BTreeMap::new();
    let name = |i: u64| format!("file-{i:05}").into_bytes();
    for i in 0..2047 {
        let tx = h.tx();
        zap.add_u64(&tx, &name(i), i).unwrap();
        expect.insert(name(i), Value::u64(i));
    }
    assert!(zap.is_micro().unwrap());
    assert_eq!(zap.dnode().blksz(), 128 << 10);
    assert_eq!(all(&zap), expect);
    let zap = reopen(&mut h, zap);
    assert!(block_on(resident(|| zap.is_micro())).unwrap());
    assert_eq!(all(&zap), expect);
    let tx = h.tx();
    zap.add_u64(&tx, &name(2047), 2047).unwrap();
    expect.insert(name(2047), Value::u64(2047));
    assert!(!zap.is_micro().unwrap());
    assert_eq!(zap.dnode().blksz(), 16 << 10);
    assert_eq!(all(&zap), expect);
    let zap = reopen(&mut h, zap);
    assert_eq!(all(&zap), expect);
    assert_eq!(block_on(zap.get_u64("file-00077")).unwrap(), 77);
}

#[test]
fn a_micro_zap_outgrows_128k_where_the_pool_and_the_tunable_let_it() {
    let mut h = Harness::new(2);
    crate::tunables::ZAP_MICRO_MAX_SIZE.set(256 << 10);
    let small = make(&h, CreateOpts::default());
    let props = h.objset.props();
    h.objset.set_props(crate::dmu::WriteProps { large_microzap: true, ..props });
    let large = make(&h, CreateOpts::default());
    let name = |i: u64| format!("file-{i:05}").into_bytes();
    let mut expect = BTreeMap::new();
    for i in 0..4095 {
        large.add_u64(&h.tx(), &name(i), i).unwrap();
        expect.insert(name(i), Value::u64(i));
    }
    assert!(large.is_micro().unwrap());
    assert_eq!(large.dnode().blksz(), 256 << 10);
    let large = reopen(&mut h, large);
    assert!(block_on(resident(|| large.is_micro())).unwrap());
    assert_eq!(all(&large), expect);
    // What was let grow stays what it is, and is changed in place; it does not grow any more.
    assert!(!h.objset.props().large_microzap);
    large.remove(&h.tx(), &name(7)).unwrap();
    large.add_u64(&h.tx(), &name(7), 7).unwrap();
    assert!(large.is_micro().unwrap());
    large.add_u64(&h.tx(), &name(4095), 4095).unwrap();
    expect.insert(name(4095), Value::u64(4095));
    assert!(!large.is_micro().unwrap());
    assert_eq!(all(&large), expect);
    // Without the feature the tunable does not count.
    let small = block_on(Zap::open(&h.objset, small.id())).unwrap();
    for i in 0..2048 {
        block_on(resident(|| small.add_u64(&h.tx(), &name(i), i))).unwrap();
    }
    assert!(!small.is_micro().unwrap());
    crate::tunables::ZAP_MICRO_MAX_SIZE.set(crate::tunables::ZAP_MICRO_MAX_SIZE.default);
}

#[test]
fn a_hundred_thousand_names() {
    let mut h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let n = 100_000u64;
    let tx = h.tx();
    for i in 0..n {
        zap.add_u64(&tx, format!("a rather ordinary name {i}").as_bytes(), i).unwrap();
    }
    let zap = reopen(&mut h, zap);
    assert_eq!(block_on(zap.len()).unwrap(), n);
    let tx = h.tx();
    for i in (0..n).step_by(3) {
        block_on(zap.delete(&tx, &format!("a rather ordinary name {i}"))).unwrap();
    }
    for i in (0..n).step_by(101) {
        let v = block_on(zap.try_get_u64(&format!("a rather ordinary name {i}"))).unwrap();
        assert_eq!(v, (!i.is_multiple_of(3)).then_some(i));
    }
    assert_eq!(all(&zap).len() as u64, n - n.div_ceil(3));
}

#[test]
fn what_makes_it_fat() {
    let h = Harness::new(2);
    let tx = h.tx();
    for (name, value) in [
        ("x".repeat(50), Value::u64(1)),
        ("x".into(), Value::u64s(&[1, 2])),
        ("x".into(), Value::string("text")),
        ("x".into(), Value::u32s(&[7])),
    ] {
        let zap = make(&h, CreateOpts::default());
        zap.add_u64(&tx, &[b'y'; 49], 5).unwrap();
        assert!(zap.is_micro().unwrap());
        zap.add(&tx, name.as_bytes(), &value).unwrap();
        assert!(!zap.is_micro().unwrap());
        assert_eq!(zap.lookup(name.as_bytes()).unwrap(), Some(value));
        assert_eq!(zap.lookup_u64(&[b'y'; 49]).unwrap(), Some(5));
    }
}

#[test]
fn errors_are_openzfs() {
    let h = Harness::new(2);
    let tx = h.tx();
    let errno = |r: Now<()>| match r {
        Err(Stop::Err(e)) => e.errno(),
        other => panic!("{other:?}"),
    };
    for fat in [false, true] {
        let zap = make(&h, CreateOpts::default());
        if fat {
            zap.add(&tx, b"s", &Value::string("x")).unwrap();
        }
        zap.add_u64(&tx, b"a", 1).unwrap();
        assert_eq!(errno(zap.add_u64(&tx, b"a", 2)), Errno::Exist);
        assert_eq!(errno(zap.remove(&tx, b"b")), Errno::NoEnt);
        assert_eq!(errno(zap.add_u64(&tx, b"", 2)), Errno::Inval);
        assert_eq!(errno(zap.add_u64(&tx, &[b'n'; 1024], 2)), Errno::NameTooLong);
        assert_eq!(errno(zap.add(&tx, b"big", &Value::bytes(&[0; 8193]))), Errno::TooBig);
        zap.increment(&tx, b"count", 5).unwrap();
        zap.increment(&tx, b"count", -3).unwrap();
        assert_eq!(zap.lookup_u64(b"count").unwrap(), Some(2));
        zap.increment(&tx, b"count", -2).unwrap();
        assert_eq!(zap.lookup_u64(b"count").unwrap(), None);
    }
    let zap = Zap::new(&Zap::create(&h.objset, &tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).unwrap());
    assert_eq!(errno(zap.add_u64(&tx, &[b'n'; 256], 2)), Errno::NameTooLong);
}

#[test]
fn number_keys() {
    let mut h = Harness::new(2);
    let flags = ZAP_FLAG_HASH64 | ZAP_FLAG_UINT64_KEY;
    let zap = make(&h, CreateOpts { flags, leaf_shift: 12, ..CreateOpts::default() });
    let tx = h.tx();
    for i in 0..5000u64 {
        zap.add_key(&tx, &[i, i * i], &Value::u64s(&[i, 1, 2])).unwrap();
    }
    let zap = reopen(&mut h, zap);
    assert_eq!(zap.dnode().blksz(), 4096);
    for i in 0..5000u64 {
        let v = block_on(resident(|| zap.lookup_key(&[i, i * i]))).unwrap();
        assert_eq!(v, Some(Value::u64s(&[i, 1, 2])));
    }
    assert_eq!(block_on(zap.entries()).unwrap().len(), 5000);
    let tx = h.tx();
    zap.remove_key(&tx, &[7, 49]).unwrap();
    assert_eq!(zap.lookup_key(&[7, 49]).unwrap(), None);
}

#[test]
fn case_insensitive() {
    let h = Harness::new(2);
    let tx = h.tx();
    for fat in [false, true] {
        let zap = make(&h, CreateOpts { normflags: U8_TEXTPREP_TOUPPER, ..CreateOpts::default() });
        if fat {
            zap.add(&tx, b"s", &Value::string("x")).unwrap();
        }
        zap.add_u64(&tx, b"Readme", 1).unwrap();
        let f = zap.lookup_norm(b"README", Match::Normalized).unwrap().unwrap();
        assert_eq!((f.name.as_slice(), f.value.as_u64(), f.conflict), (&b"Readme"[..], Some(1), false));
        assert_eq!(zap.lookup_norm(b"README", Match::NormalizedCase).unwrap(), None);
        assert_eq!(zap.lookup(b"README").unwrap(), None);
        // What the file system forbids on an insensitive dataset a mixed one has.
        zap.add_u64(&tx, b"README", 2).unwrap();
        let f = zap.lookup_norm(b"readme", Match::Normalized).unwrap().unwrap();
        assert_eq!((f.name.as_slice(), f.conflict), (&b"Readme"[..], true));
        let f = zap.lookup_norm(b"README", Match::NormalizedCase).unwrap().unwrap();
        assert_eq!((f.value.as_u64(), f.conflict), (Some(2), true));
        assert!(block_on(zap.entries()).unwrap().iter().filter(|e| e.name != b"s").all(|e| e.conflict));
        zap.remove_norm(&tx, b"ReadMe", Match::Normalized).unwrap();
        assert_eq!(zap.lookup_u64(b"README").unwrap(), Some(2));
    }
}

/// What a cursor promises: entries that are there all the time are seen once, whatever else
/// happens.
#[test]
fn a_cursor_survives_changes() {
    let h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let tx = h.tx();
    for i in 0..1500u64 {
        zap.add_u64(&tx, format!("keep{i}").as_bytes(), i).unwrap();
    }
    let mut seen = HashMap::new();
    let (mut at, mut n) = (0, 0u64);
    while at != END {
        let b = zap.read_from(at, 7).unwrap();
        at = b.entries.last().map_or(END, |e| e.next);
        for e in b.entries {
            *seen.entry(e.name).or_insert(0) += 1;
        }
        for _ in 0..20 {
            zap.add_u64(&tx, format!("more{n}").as_bytes(), n).unwrap();
            n += 1;
        }
    }
    assert!(!zap.is_micro().unwrap());
    for i in 0..1500 {
        assert_eq!(seen.get(format!("keep{i}").as_bytes()), Some(&1));
    }
    assert!(seen.values().all(|n| *n == 1));
}

#[derive(Clone, Debug)]
enum Op {
    Add(u8, usize, u8),
    Update(u8, usize, u8),
    Remove(u8, usize),
    Sync,
}

fn name(i: u8, len: usize) -> Vec<u8> {
    let mut n = format!("{i:03}").into_bytes();
    n.resize(3 + len, b'.');
    n
}

fn value(kind: u8, i: u8) -> Value {
    match kind {
        0..=200 => Value::u64(i.into()),
        201..=220 => Value::bytes(&vec![i; usize::from(kind) * 3]),
        221..=240 => Value::u16s(&[i.into(), 5]),
        _ => Value::u64s(&vec![i.into(); usize::from(kind)]),
    }
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![8 => Just(0usize), 1 => Just(60), 1 => Just(240)];
    prop_oneof![
        6 => (any::<u8>(), len.clone(), any::<u8>()).prop_map(|(i, l, v)| Op::Add(i, l, v)),
        3 => (any::<u8>(), len.clone(), any::<u8>()).prop_map(|(i, l, v)| Op::Update(i, l, v)),
        3 => (any::<u8>(), len).prop_map(|(i, l)| Op::Remove(i, l)),
        1 => Just(Op::Sync),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn is_a_map(ops in proptest::collection::vec(op(), 1..600)) {
        let mut h = Harness::new(2);
        let mut zap = make(&h, CreateOpts::default());
        let mut model = BTreeMap::new();
        for op in ops {
            let tx = h.tx();
            match op {
                Op::Add(i, len, v) => {
                    let (n, v) = (name(i, len), value(v, i));
                    let r = block_on(resident(|| zap.add(&tx, &n, &v)));
                    prop_assert_eq!(r.is_ok(), !model.contains_key(&n));
                    model.entry(n).or_insert(v);
                }
                Op::Update(i, len, v) => {
                    let (n, v) = (name(i, len), value(v, i));
                    block_on(resident(|| zap.update(&tx, &n, &v))).unwrap();
                    model.insert(n, v);
                }
                Op::Remove(i, len) => {
                    let n = name(i, len);
                    let r = block_on(resident(|| zap.remove(&tx, &n)));
                    prop_assert_eq!(r.is_ok(), model.remove(&n).is_some());
                }
                Op::Sync => zap = reopen(&mut h, zap),
            }
        }
        prop_assert_eq!(all(&zap), model);
    }

    /// A damaged block gives an error or wrong entries; never a panic or an endless loop.
    #[test]
    fn damage_is_an_error(fat: bool, at in 0usize..16384, byte: u8, block in 0u64..3) {
        let h = Harness::new(2);
        let zap = make(&h, CreateOpts::default());
        let tx = h.tx();
        for i in 0..if fat { 400u64 } else { 100 } {
            zap.add_u64(&tx, format!("name{i}").as_bytes(), i).unwrap();
        }
        if fat {
            zap.add(&tx, b"fat", &Value::string("x")).unwrap();
        }
        let block = if fat { block } else { 0 };
        zap.dnode().modify(&tx, block, |b| { let at = at % b.len(); b[at] ^= byte }).unwrap();
        *zap.dnode().zap.write() = State::Unknown;
        for i in 0..400u64 {
            let n = format!("name{i}").into_bytes();
            let _ = zap.lookup(&n);
            let _ = zap.update(&tx, &n, &Value::u64s(&[i, i]));
            let _ = zap.remove(&tx, &n);
            let _ = zap.add_u64(&tx, format!("new{i}").as_bytes(), i);
        }
        let mut at = 0;
        for _ in 0..10_000 {
            match zap.read_from(at, 100) {
                Ok(b) if b.next != END => at = b.next,
                _ => break,
            }
        }
    }
}

/// The entries of a ZAP of which an attacker changed a block.
fn after_damage(fat: bool, blk: u64, damage: impl Fn(&mut [u8])) -> Result<Vec<Entry>> {
    let mut h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let tx = h.tx();
    for i in 0..if fat { 5000 } else { 3 } {
        zap.add_u64(&tx, format!("name{i}").as_bytes(), i).unwrap();
    }
    let zap = reopen(&mut h, zap);
    assert_eq!(block_on(resident(|| zap.is_micro())).unwrap(), !fat);
    let tx = h.tx();
    block_on(resident(|| zap.dnode().modify(&tx, blk, |b| damage(b)))).unwrap();
    let zap = reopen(&mut h, zap);
    block_on(zap.entries())
}

#[test]
fn positions_that_would_never_end_are_damage() {
    let put = |at: usize, v: u64, n: usize| {
        move |b: &mut [u8]| b[at..at + n].copy_from_slice(&v.to_ne_bytes()[..n])
    };
    let entries = |b: &[u8]| -> Vec<usize> {
        let first = 48 + 2 * leaf::num_chunks(14).min(512);
        (first..b.len() - leaf::CHUNK_SIZE).step_by(leaf::CHUNK_SIZE).filter(|at| b[*at] == 252).collect()
    };
    let damaged =
        |r: Result<Vec<Entry>>| assert!(matches!(r, Err(Error::Corrupt(_))), "{:?}", r.map(|e| e.len()));
    assert_eq!(after_damage(true, 1, |_| ()).unwrap().len(), 5000);
    // The first leaf's prefix, of 48 bits: a step of 2^16 hashes each.
    damaged(after_damage(true, 1, put(32, 48, 2)));
    // A leaf that stands for other hashes.
    damaged(after_damage(true, 1, put(16, 77, 8)));
    // The highest collision differentiator, behind which comes the first one again.
    damaged(after_damage(false, 0, put(64 + 8, u64::MAX, 4)));
    // The one before it, whose next is the highest.
    damaged(after_damage(false, 0, put(64 + 8, u64::MAX - 1, 4)));
    damaged(after_damage(true, 1, |b| {
        let at = entries(b)[0] + 12;
        b[at..at + 4].copy_from_slice(&(u32::MAX - 1).to_ne_bytes());
    }));
    // A hash of more bits than a position holds, which comes again and again.
    damaged(after_damage(true, 1, |b| b[entries(b)[0] + 16] = 1));
    // Two entries in one place.
    damaged(after_damage(true, 1, |b| {
        let at = entries(b);
        b.copy_within(at[0]..at[0] + leaf::CHUNK_SIZE, at[1]);
    }));
}

/// Names of 255 bytes whose hashes begin with the same `bits` bits, whatever the salt: changes of
/// some of a name's bits change the hash by what each of them does alone, so a set of them that
/// changes nothing in the upper bits can be solved for.
fn colliding(bits: u32, count: usize) -> Vec<Vec<u8>> {
    use zilla_ondisk::zap::ZapKey;
    let base = [b'@'; 255];
    let hash = |n: &[u8]| ZapKey::string(n).hash(77, 0) >> (64 - bits);
    let zero = hash(&base);
    // Rows: what a bit does, and which bits of the name it is made of. Letters stay printable: bits
    // 0 to 3 of 20 bytes.
    let (mut pivots, mut free) = (Vec::<(u64, u128)>::new(), Vec::new());
    for i in 0..80u32 {
        let mut n = base;
        n[(i / 4) as usize] ^= 1 << (i % 4);
        let mut row = (hash(&n) ^ zero, 1u128 << i);
        for p in &pivots {
            if row.0 ^ p.0 < row.0 {
                row = (row.0 ^ p.0, row.1 ^ p.1);
            }
        }
        if row.0 == 0 {
            free.push(row.1);
        } else {
            pivots.push(row);
            pivots.sort_unstable_by_key(|p| std::cmp::Reverse(p.0));
        }
    }
    let name = |k: usize| {
        let set =
            free.iter().take(8).enumerate().filter(|(i, _)| k >> i & 1 == 1).fold(0u128, |a, (_, f)| a ^ f);
        let mut n = base.to_vec();
        (0..80u32).filter(|i| set >> i & 1 == 1).for_each(|i| n[(i / 4) as usize] ^= 1 << (i % 4));
        assert_eq!(hash(&n), zero);
        n
    };
    (0..count).map(name).collect()
}

#[test]
fn names_made_to_collide_are_refused_before_the_table_grows() {
    let h = Harness::new(2);
    for bits in [28, 26, 25, 17, 14] {
        let zap = make(&h, CreateOpts::default());
        let tx = h.tx();
        let names = colliding(bits, 60);
        let fits = names.iter().take_while(|n| zap.add_u64(&tx, n, 1).is_ok()).count();
        assert!((40..60).contains(&fits), "{fits} of {bits} bits");
        let refused = zap.add_u64(&tx, &names[fits], 1);
        assert!(matches!(refused, Err(Stop::Err(e)) if e.errno() == Errno::NoSpc));
        // The header and a leaf; others still find their place.
        assert!(zap.dnode().maxblkid() <= 2, "{} blocks for {bits} bits", zap.dnode().maxblkid());
        for i in 0..300 {
            zap.add_u64(&tx, format!("an ordinary name {i}").as_bytes(), i).unwrap();
        }
        assert_eq!(all(&zap).len(), 300 + fits);
        for n in &names[..fits] {
            zap.remove(&tx, n).unwrap();
        }
    }
}

#[test]
fn names_that_are_a_little_alike_get_a_larger_table() {
    let h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let tx = h.tx();
    let names = colliding(11, 80);
    for n in &names {
        zap.add_u64(&tx, n, 1).unwrap();
    }
    assert_eq!(all(&zap).len(), 80);
}

/// A header's words: `n` is counted from its beginning.
fn put_word(b: &mut [u8], n: usize, v: u64) {
    b[8 * n..8 * n + 8].copy_from_slice(&v.to_ne_bytes());
}

/// A directory of names that nearly fill their leaves, of whose header an attacker changed
/// something; what adding names comes to.
fn adding_after(damage: impl Fn(&mut [u8])) -> Result<()> {
    let h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let tx = h.tx();
    let name = |i: u32| format!("{i:0255}").into_bytes();
    (0..200).for_each(|i| zap.add_u64(&tx, &name(i), 1).unwrap());
    zap.dnode().modify(&tx, 0, damage).unwrap();
    *zap.dnode().zap.write() = State::Unknown;
    (200..1000).try_for_each(|i| block_on(resident(|| zap.add_u64(&tx, &name(i), 1))))
}

#[test]
fn a_table_that_an_attacker_left_half_grown_is_damage() {
    assert!(adding_after(|_| ()).is_ok());
    // (blk, numblks, shift, nextblk, blks_copied) and freeblk; blocks of 2^11 pointers.
    let table = |t: [u64; 5], freeblk: u64| {
        adding_after(|b| {
            t.iter().zip(2..).for_each(|(v, n)| put_word(b, n, *v));
            put_word(b, 7, freeblk);
        })
    };
    for (t, freeblk) in [
        // Holes for a table of all bits but one, and for one in the midst of growing.
        ([1 << 20, 1 << 15, 26, 0, 0], 1 << 30),
        ([1 << 20, 1 << 14, 25, 1 << 21, 0], 1 << 30),
        // It has all bits, and grows on.
        ([1 << 20, 1 << 15, 26, 1 << 21, 0], 1 << 30),
        ([1 << 20, 1 << 16, 27, 0, 0], 1 << 30),
        // Where nothing is in use.
        ([1 << 20, 2, 12, 0, 0], (1 << 20) + 1),
        ([1 << 20, 2, 12, 1 << 21, 0], (1 << 21) + 3),
    ] {
        let r = table(t, freeblk);
        assert!(matches!(r, Err(Error::Corrupt(_))), "{t:?}: {r:?}");
    }
}

#[test]
fn a_half_grown_table_of_holes_is_not_grown_on() {
    let h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let tx = h.tx();
    let name = |i: u32| format!("{i:0255}").into_bytes();
    (0..200).for_each(|i| zap.add_u64(&tx, &name(i), 1).unwrap());
    // The first half of a table of two blocks is good, and the second is not there.
    let half = zap.dnode().with_block(0, |b| b[b.len() / 2..b.len() * 3 / 4].to_vec()).unwrap();
    let four_times: Vec<u8> = half.chunks(8).flat_map(|p| p.repeat(4)).collect();
    zap.dnode().write_block(&tx, 100, four_times.into());
    let header = |b: &mut [u8]| {
        [100, 2, 12, 200, 0, 204].iter().zip(2..).for_each(|(v, n)| put_word(b, n, *v));
    };
    zap.dnode().modify(&tx, 0, header).unwrap();
    *zap.dnode().zap.write() = State::Unknown;
    let found = |n: &Vec<u8>| matches!(block_on(resident(|| zap.lookup(n))), Ok(None));
    let add = |n: Vec<u8>| block_on(resident(|| zap.add_u64(&tx, &n, 1)));
    let first = (200..3000).map(name).filter(found).map(add).find(Result::is_err);
    assert!(matches!(first, Some(Err(Error::Corrupt(_)))), "{first:?}");
    assert_eq!(zap.dnode().maxblkid(), 100);
}

#[test]
fn a_zap_that_an_attacker_put_at_an_objects_end_does_not_grow_over_it() {
    // Blocks of 128K, of which an object has 2^46.
    for (freeblk, opens) in [((1 << 46) - 2, true), (1 << 46, false)] {
        let mut h = Harness::new(2);
        let flags = ZAP_FLAG_HASH64 | ZAP_FLAG_UINT64_KEY;
        let zap = make(&h, CreateOpts { flags, leaf_shift: 17, ..CreateOpts::default() });
        let tx = h.tx();
        zap.dnode().modify(&tx, 0, |b| put_word(b, 7, freeblk)).unwrap();
        *zap.dnode().zap.write() = State::Unknown;
        let add = |i: u64| zap.add_key(&tx, &[i], &Value::bytes(&[7; 4000]));
        match ((0..100).try_for_each(add), opens) {
            (Err(Stop::Err(Error::Corrupt(_))), false) => {}
            (Err(Stop::Err(e)), true) => assert!(e.is(Errno::NoSpc), "{e}"),
            (other, _) => panic!("{other:?}"),
        }
        // What was added is there, and the objset can be written.
        let zap = reopen(&mut h, zap);
        assert_eq!(block_on(zap.entries()).is_ok(), opens);
    }
}

/// Leaves stay when their entries go. Each is looked at once on the way to the first entry, however
/// many must be read.
#[test]
fn leaves_without_entries_are_passed_once() {
    let mut h = Harness::new(2);
    let zap = make(&h, CreateOpts::default());
    let name = |i: u64| format!("a name of some length that is one of many {i}").into_bytes();
    let tx = h.tx();
    (0..20_000).for_each(|i| zap.add_u64(&tx, &name(i), i).unwrap());
    (0..20_000).for_each(|i| zap.remove(&tx, &name(i)).unwrap());
    let zap = reopen(&mut h, zap);
    let leaves = block_on(resident(|| {
        zap.state().map(|s| match &*s {
            State::Fat(f) => f.phys.num_leafs,
            _ => 0,
        })
    }));
    let (mut at, mut before, mut steps, mut stays) = (0, 0, 0u64, 0);
    let batch = block_on(resident(|| {
        let got = zap.read_on(&mut at, 10);
        if matches!(got, Err(Stop::Need(_))) {
            *if at > before { &mut steps } else { &mut stays } += 1;
            before = at;
        }
        got
    }))
    .unwrap();
    assert!(batch.entries.is_empty() && batch.next == END);
    // The first leaf, and perhaps the table, are read where it begins.
    assert!(steps + 1 >= leaves.unwrap() && stays <= 2, "{steps} steps, {stays} without one");
}

/// The table of a ZAP whose entries fill their leaves can become large at once, of which the caller
/// knows nothing.
#[test]
fn a_table_grows_by_much_only_where_there_is_room() {
    let h = Harness::new(2);
    let txgs = crate::txg::TxgState::new(zilla_env::real_env(1), crate::types::Txg(h.txg.0 - 1));
    let opts = CreateOpts { flags: ZAP_FLAG_HASH64, leaf_shift: 12, ..CreateOpts::default() };
    let tx = block_on(txgs.assign()).unwrap();
    let dn = block_on(resident(|| Zap::create(&h.objset, &tx, DMU_OTN_ZAP_METADATA, &opts))).unwrap();
    let zap = Zap::new(&dn);
    let add = |i: u32| zap.add_u64(&tx, format!("{i:0200}").as_bytes(), 1);
    h.store.full.store(true, Ordering::Relaxed);
    // A leaf is split, and a small table grows, within what was asked for.
    let refused = (0..100_000).find_map(|i| add(i).err().map(|e| (i, e)));
    let Some((at, Stop::Err(e))) = refused else { panic!("{refused:?}") };
    assert!(e.is(Errno::NoSpc) && at > 500, "{at}: {e}");
    h.store.full.store(false, Ordering::Relaxed);
    add(at).unwrap();
    assert_eq!(all(&zap).len(), at as usize + 1);
}
