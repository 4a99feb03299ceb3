use super::*;
use crate::dmu::testing::Harness;
use crate::vdev::{LeafSpec, PoolSpec, TopSpec};
use zilla_env::block_on;

/// Two vdevs, of which the first is the removed one.
fn tree() -> VdevTree {
    let env = zilla_env::real_env(1);
    let top = |path: &str| {
        let leaves = vec![LeafSpec { path: path.into(), disk: false }];
        TopSpec { kind: VdevKind::File, leaves, is_log: false, bias: None, ashift: Some(9) }
    };
    let config = PoolSpec { tops: vec![top("d0"), top("d1")], ..PoolSpec::default() }.config(77, &*env.rng);
    let tree = VdevTree::from_config(&env, &config.expect("a configuration")).expect("a tree");
    tree.top(1).expect("the second").vdev.set_asize(1 << 40);
    tree
}

async fn mapping(h: &mut Harness, runs: &[Run]) -> Entries {
    let tx = h.tx();
    let entries = Entries::create(&h.objset, &tx, false).await.expect("an object");
    let runs: Vec<_> = runs.iter().map(|r| (*r, 0)).collect();
    entries.append(&tx, &runs).expect("written");
    drop(tx);
    h.sync_open().await;
    entries
}

fn run(n: u64) -> Run {
    Run { src: n << 9, len: 512, vdev: 1, dst: n << 9 }
}

/// Many blocks of a hostile object may be one block: its entries then come again.
#[test]
fn a_mapping_is_read_until_an_entry_does_not_follow_the_one_before() {
    block_on(async {
        let (mut h, tree) = (Harness::new(0), tree());
        let top = tree.top(0).expect("the first");
        let good: Vec<Run> = (0..6000).map(run).collect();
        let entries = mapping(&mut h, &good).await;
        assert_eq!(entries.read(top, &tree).await.expect("runs"), good);
        let empty = Run { len: 0, ..run(6001) };
        for second in [run(5), run(5999), empty] {
            // What follows it would be refused by itself.
            let bad = [&good[..], &[second], &[Run { vdev: 9, ..run(7000) }]].concat();
            let refused = mapping(&mut h, &bad).await.read(top, &tree).await.expect_err("out of order");
            assert!(refused.to_string().contains("entry 6000 maps"), "{refused}");
        }
    });
}

#[test]
fn a_mapping_has_no_more_runs_than_there_is_memory_for() {
    block_on(async {
        let (mut h, tree) = (Harness::new(0), tree());
        let top = tree.top(0).expect("the first");
        let most: Vec<Run> = (0..RUNS as u64).map(run).collect();
        assert_eq!(mapping(&mut h, &most).await.read(top, &tree).await.expect("runs").len(), RUNS);
        let more: Vec<Run> = (0..=RUNS as u64).map(run).collect();
        let refused = mapping(&mut h, &more).await.read(top, &tree).await.expect_err("too long");
        assert!(refused.is(Errno::NoMem), "{refused}");
    });
}

#[test]
fn the_txgs_of_a_mapping_are_read_until_they_are_out_of_order() {
    block_on(async {
        let mut h = Harness::new(0);
        for (births, good) in [
            (vec![(512, 7), (1024, 7), (2048, 9)], true),
            (vec![(512, 7), (512, 8)], false),
            (vec![(512, 7), (1024, 6)], false),
        ] {
            let tx = h.tx();
            let dn = make(&h.objset, &tx, DMU_OTN_UINT64_METADATA, IndirectBirthPhys::SIZE).await;
            let dn = dn.expect("an object");
            for (n, (offset, phys_birth_txg)) in births.iter().enumerate() {
                let entry = IndirectBirthEntryPhys { offset: *offset, phys_birth_txg: *phys_birth_txg };
                dn.write(&tx, (n * IndirectBirthEntryPhys::SIZE) as u64, &entry.encode());
            }
            dn.set_bonus(&tx, &IndirectBirthPhys { count: births.len() as u64 }.encode());
            drop(tx);
            h.sync_open().await;
            let read = read_births(&dn, 3, RUNS).await;
            assert_eq!(read.as_ref().ok(), good.then_some(&births), "{births:?}");
        }
    });
}
