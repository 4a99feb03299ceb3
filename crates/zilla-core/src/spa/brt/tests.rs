use super::*;
use crate::dmu::testing::Harness;
use crate::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_env::block_on;

async fn object(h: &Harness) -> Arc<Dnode> {
    let tx = h.tx();
    let spec = NewObject::new(DMU_OTN_UINT64_METADATA, BRT_BLOCKSIZE);
    resident(|| h.objset.alloc(&tx, spec)).await.expect("an object")
}

async fn empty(h: &Harness, tx: &Tx) -> Table {
    let object = object(h).await;
    let opts = CreateOpts {
        flags: ZAP_FLAG_HASH64 | ZAP_FLAG_UINT64_KEY,
        leaf_shift: ENTRIES_SHIFT.into(),
        indirect_shift: ENTRIES_SHIFT,
        ..CreateOpts::default()
    };
    let entries = Zap::make(&h.objset, tx, DMU_OTN_ZAP_METADATA, &opts).await.expect("a zap");
    let phys =
        BrtVdevPhys { byteorder: BRT_NATIVE_BYTEORDER, rangesize: BRT_RANGESIZE, ..BrtVdevPhys::default() };
    let state = Mutex::new(State { phys, counts: Counts::default() });
    Table { object, entries, state }
}

/// A damaged pool's pointers may lead anywhere. The sync that meets one goes on.
#[test]
fn a_clone_that_is_nowhere_is_not_counted() {
    let h = Harness::new(0);
    let env = zilla_env::real_env(1);
    let leaves = vec![LeafSpec { path: "d0".into(), disk: false }];
    let top = TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: Some(12) };
    let config = PoolSpec { tops: vec![top], ..PoolSpec::default() }.config(77, &*env.rng);
    let tree = VdevTree::from_config(&env, &config.expect("a configuration")).expect("a tree");
    let txgs = crate::txg::TxgState::new(env.clone(), h.txg);
    let ctx = PoolCtx::new(env, h.store.clone(), h.cache.clone(), txgs, 77, false);
    ctx.set_mos(h.objset.clone());
    let brt = Brt::default();
    for (vdev, offset) in [(0, 1 << 60), (9, 0)] {
        let mut bp = BlkPtr::ZERO;
        bp.set_dva(0, zilla_ondisk::Dva { vdev, offset, asize: 4096, gang: false });
        block_on(brt.reference(&ctx, &tree, &h.tx(), &[bp])).expect("the others are counted");
        assert!(!brt.is_used());
    }
}

#[test]
fn counts_are_read_where_there_are_any() {
    block_on(async {
        let mut h = Harness::new(0);
        let object = object(&h).await;
        // Of an exabyte, which would be 128 GiB of counts.
        let size = (1u64 << 60) / BRT_RANGESIZE;
        let tx = h.tx();
        for (range, n) in [(0, 7u16), (TOGETHER + 5, 8), (size - 1, 9)] {
            object.write(&tx, range * COUNT, &n.to_ne_bytes());
        }
        drop(tx);
        h.sync_open().await;
        let counts = read_counts(&object, size, "table").await.expect("counts");
        let at = |range| counts.get(range);
        assert_eq!([at(0), at(1), at(TOGETHER + 5), at(size - 2), at(size - 1)], [7, 0, 8, 0, 9]);
        assert_eq!(counts.0.len(), 3);
        let fewer = read_counts(&object, TOGETHER + 5, "table").await.expect("counts");
        assert_eq!((fewer.get(0), fewer.get(TOGETHER + 5)), (7, 0));
        assert!(read_counts(&object, 0, "table").await.expect("none").0.is_empty());
    });
}

/// Each of a hostile table's blocks, as short as blocks can be, takes a long one of memory.
#[test]
fn counts_of_short_blocks_take_no_more_memory_than_they_may() {
    block_on(async {
        let mut h = Harness::new(0);
        let tx = h.tx();
        let short = NewObject::new(DMU_OTN_UINT64_METADATA, 512);
        let object = resident(|| h.objset.alloc(&tx, short)).await.expect("an object");
        let most = MOST_COUNTS / TOGETHER;
        (0..=most).for_each(|n| object.write(&tx, n * TOGETHER * COUNT, &7u16.to_ne_bytes()));
        drop(tx);
        h.sync_open().await;
        let refused = read_counts(&object, (most + 1) * TOGETHER, "table").await;
        assert!(refused.is_err_and(|e| e.is(Errno::NoMem)));
        let counts = read_counts(&object, most * TOGETHER, "table").await.expect("counts");
        assert_eq!(counts.0.len() as u64, most);
    });
}

#[test]
fn a_block_whose_references_cannot_be_read_stays() {
    block_on(async {
        let mut h = Harness::new(0);
        let tx = h.tx();
        let table = empty(&h, &tx).await;
        let bps: Vec<BlkPtr> = (0..500u64)
            .map(|n| {
                let mut bp = BlkPtr::ZERO;
                let dva = zilla_ondisk::Dva { vdev: 0, offset: n << 17, asize: 4096, gang: false };
                bp.set_dva(0, dva);
                bp
            })
            .collect();
        for bp in &bps {
            table.reference(&tx, bp, 4096).await.expect("counted");
        }
        drop(tx);
        h.sync_open().await;
        let leaf = resident(|| table.entries.dnode().block_pointer(2)).await.expect("a pointer");
        h.store.set_unreadable(leaf.expect("a leaf").dva(0).offset, true);
        h.cache.clear();
        let tx = h.tx();
        for bp in &bps {
            assert!(table.release(&tx, bp, 4096).await.expect("the others are counted"));
        }
        let (mut unread, mut freed) = (0, 0);
        for bp in &bps {
            match table.release(&tx, bp, 4096).await.expect("the others are counted") {
                true => unread += 1,
                false => freed += 1,
            }
        }
        assert!(unread > 0 && freed > 0);
        assert_eq!(table.state.lock().phys.totalcount, unread);
        // Nor can it be counted that they are cloned once more.
        let brt = Brt::default();
        brt.tables.lock().insert(0, Arc::new(table));
        let mut damaged = 0;
        for bp in &bps {
            match brt.check(bp).await {
                Err(Error::Corrupt(_)) => damaged += 1,
                checked => checked.expect("the others can be counted"),
            }
        }
        assert_eq!(damaged, unread);
    });
}

#[test]
fn a_table_is_made_of_any_vdev_and_takes_what_it_needs() {
    block_on(async {
        let mut h = Harness::new(0);
        let tx = h.tx();
        let table = empty(&h, &tx).await;
        let ranges = (1u64 << 60) / BRT_RANGESIZE;
        table.reach(&tx, ranges);
        let mut bp = BlkPtr::ZERO;
        bp.set_dva(0, zilla_ondisk::Dva { vdev: 0, offset: 5 << 40, asize: 4096, gang: false });
        for _ in 0..2 {
            table.reference(&tx, &bp, 4096).await.expect("counted");
        }
        assert_eq!(table.lookup(&bp).await.expect("a count"), 2);
        drop(tx);
        h.sync_open().await;
        let counts = read_counts(&table.object, ranges, "table").await.expect("counts");
        assert_eq!((counts.get((5 << 40) / BRT_RANGESIZE), counts.0.len()), (1, 1));
        let tx = h.tx();
        assert!(table.release(&tx, &bp, 4096).await.expect("one"));
        assert!(table.release(&tx, &bp, 4096).await.expect("the other"));
        assert!(!table.release(&tx, &bp, 4096).await.expect("the block's own"));
        assert_eq!(table.state.lock().phys.totalcount, 0);
    });
}
