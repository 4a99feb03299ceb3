//! Blocks in columns: what several devices have of one, and what lies behind the columns of a
//! dRAID's; and blocks in pieces.

use super::super::distributed::Side;
use super::super::leaf::Leaf;
use super::super::raidz::WORKED_OUT;
use super::super::read::{Healing, Mend};
use super::*;
use smallvec::smallvec;
use zilla_ondisk::blkptr::Dva;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

const SECTOR: u64 = 4096;
const BIRTH: u64 = 5;

fn failing() -> Arc<Failing> {
    Arc::new(Failing {
        inner: MemDevice::new(DEV),
        reads: AtomicBool::new(false),
        writes: AtomicBool::new(false),
        asked: AtomicUsize::new(0),
    })
}

/// A block that differs in every sector.
fn block(sectors: u64) -> Bytes {
    (0..sectors * SECTOR).map(|i| (i / 7 + i / SECTOR * 31 + 1) as u8).collect::<Vec<u8>>().into()
}

/// Reads it, as a scrub does or as others do.
async fn read(tree: &VdevTree, offset: u64, data: &Bytes, scrub: bool) -> Option<Healing> {
    read_of(&tree.tops[0], tree, offset, data, scrub).await
}

async fn read_of(top: &Top, tree: &VdevTree, offset: u64, data: &Bytes, scrub: bool) -> Option<Healing> {
    let check = |found: &[u8]| if found == &data[..] { Ok(()) } else { Err("another".to_owned()) };
    let reader = Reader {
        tree,
        top,
        offset,
        psize: data.len() as u64,
        birth: BIRTH,
        class: if scrub { Priority::Scrub } else { Priority::SyncRead },
        tickets: None,
        check: &check,
        every_copy: scrub,
        speculative: false,
        fence: &unfenced,
    };
    reader.read().await.ok().map(|(_, healing)| healing)
}

async fn write(tree: &VdevTree, offset: u64, data: &Bytes) {
    let missed = tree.write_now(&tree.tops[0], offset, data, BIRTH, Priority::SyncWrite).await;
    assert!(missed.is_empty());
}

fn lies(leaf: &Leaf) -> u64 {
    leaf.checksum_errors.load(Ordering::Relaxed)
}

#[test]
fn a_column_is_read_from_whoever_has_it_before_parity_is_asked() {
    let env = real_env(1);
    let leaf = |id: u64, guid: u64| {
        let nv = NvList::new().with("type", "file").with("id", id).with("guid", guid);
        nv.with("path", format!("/c{guid}"))
    };
    let group = |kind: &str, guid: u64, children: Vec<NvList>| {
        let nv = NvList::new().with("type", kind).with("id", 0u64).with("guid", guid);
        nv.with("children", children)
    };
    let replaced = group("replacing", 20, vec![leaf(0, 11), leaf(1, 12)]);
    let raidz = group("raidz", 30, vec![replaced, leaf(1, 13), leaf(2, 14)]);
    let config = group("root", 77, vec![raidz.with("nparity", 1u64).with("ashift", 12u64)]);
    let faulty = [failing(), failing()];
    let mut all: Vec<Arc<dyn Device>> = faulty.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    all.extend((0..2).map(|_| Arc::new(MemDevice::new(DEV)) as Arc<dyn Device>));
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        // Parity on the second child, then data on the third and the first.
        let (at, data) = (SECTOR, block(2));
        write(&tree, at, &data).await;
        let spot = VDEV_LABEL_START_SIZE + SECTOR;
        tree.leaves[2].set_unusable(VdevState::Offline, VdevAux::None);
        for bad in [0, 1] {
            let (bad, good) = (tree.leaves[bad].clone(), tree.leaves[1 - bad].clone());
            let of = |data: &Bytes| data.slice(SECTOR as usize..);
            let stored = async || bad.read_at(spot, SECTOR, Priority::SyncRead).await.unwrap();
            assert_eq!(stored().await, of(&data), "the column is where it is thought to be");
            // Who is not well is asked last.
            good.judged(VdevState::Degraded);
            let found = read(&tree, at, &data, false).await.unwrap();
            assert_eq!(found, Healing::default());
            faulty[bad.index].reads.store(true, Ordering::Relaxed);
            let found = read(&tree, at, &data, false).await.expect("the other has it");
            assert_eq!((&found.bad[..], found.repaired), (&[bad.index][..], 1));
            faulty[bad.index].reads.store(false, Ordering::Relaxed);
            bad.write_at(spot, block(1), Priority::SyncWrite).await.unwrap();
            let before = lies(&bad);
            let found = read(&tree, at, &data, false).await.expect("the other has it still");
            assert_eq!((&found.bad[..], found.repaired), (&[bad.index][..], 1));
            assert_eq!((lies(&bad) - before, lies(&good)), (1, lies(&good)));
            assert_eq!(stored().await, of(&data), "it was written again");
            // It has the block by now, though it is not known to.
            faulty[bad.index].reads.store(true, Ordering::Relaxed);
            good.dtl.add(BIRTH, BIRTH + 1);
            assert!(read(&tree, at, &data, false).await.is_some());
            good.dtl.set([]);
            faulty[bad.index].reads.store(false, Ordering::Relaxed);
            good.forgiven();
        }
        assert_eq!(lies(&tree.leaves[3]), 0);
        tree.close().await;
    });
}

/// Who comes to lack something while another is resilvered was not given it: it is not taken for
/// one of those who were, also where the resilver goes on after a restart.
#[test]
fn who_fails_a_write_during_a_resilver_waits_for_the_next() {
    const LAST: u64 = 1000;
    let env = real_env(1);
    let faulty = [failing(), failing(), failing()];
    let all: Vec<Arc<dyn Device>> = faulty.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let paths: Vec<PathBuf> = (0..3).map(|i| PathBuf::from(format!("/w{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 12)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        let (data, was_away, late) = (block(2), &tree.leaves[1], &tree.leaves[2]);
        write(&tree, 0, &data).await;
        tree.flush_all(BIRTH).await.unwrap();
        was_away.dtl.add(900, 951);
        tree.begin_resilver(LAST);
        let takes_part = |l: &Leaf| l.resilvering.load(Ordering::Relaxed);
        let second = VDEV_LABEL_START_SIZE + SECTOR;
        late.write_at(second, block(1), Priority::SyncWrite).await.unwrap();
        faulty[2].writes.store(true, Ordering::Relaxed);
        assert_eq!(read(&tree, 0, &data, true).await.unwrap().repaired, 0);
        faulty[2].writes.store(false, Ordering::Relaxed);
        assert_eq!(late.dtl.ranges(), [(BIRTH, BIRTH + 1)]);
        for syncing in LAST..LAST + 5 {
            tree.note_latecomers(LAST, syncing);
        }
        assert_eq!(late.dtl.ranges(), [(BIRTH, BIRTH + 1), (LAST + 1, LAST + 2)]);
        assert_eq!(was_away.dtl.ranges(), [(900, 951)]);
        tree.resume_resilver(LAST);
        assert!(takes_part(was_away) && !takes_part(late));
        tree.end_resilver(true, LAST).await;
        assert!(was_away.dtl.is_empty() && late.is_behind());
        tree.close().await;
    });
}

/// The flush is of another txg than the block, and the block is no longer there as it was repaired.
#[test]
fn a_repair_whose_flush_fails_is_made_again_by_a_resilver() {
    let env = real_env(1);
    let faulty = [failing(), failing()];
    let all: Vec<Arc<dyn Device>> = faulty.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    let paths: Vec<PathBuf> = (0..2).map(|i| PathBuf::from(format!("/r{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 12)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        let (data, bad, other) = (block(2), &tree.leaves[0], &tree.leaves[1]);
        write(&tree, 0, &data).await;
        tree.flush_all(BIRTH).await.unwrap();
        let scribble = async || {
            let second = VDEV_LABEL_START_SIZE + SECTOR;
            bad.write_at(second, block(1), Priority::SyncWrite).await.unwrap();
        };
        // By a scrub, by who reads the other copy of a block, and on a device that goes.
        for (txg, how) in (10..).zip(["read", "rewritten", "gone"]) {
            scribble().await;
            match how {
                "rewritten" => assert!(tree.rewrite(&tree.tops[0], 0, &data, BIRTH).await),
                _ => assert_eq!(read(&tree, 0, &data, true).await.unwrap().repaired, 1),
            }
            let state = bad.state();
            match how {
                "gone" => bad.set_unusable(VdevState::CantOpen, VdevAux::OpenFailed),
                _ => faulty[0].writes.store(true, Ordering::Relaxed),
            }
            tree.flush_all(txg).await.unwrap();
            faulty[0].writes.store(false, Ordering::Relaxed);
            assert_eq!(bad.dtl.ranges(), [(BIRTH, BIRTH + 1), (txg, txg + 1)], "{how}");
            assert!(other.dtl.is_empty(), "{how}");
            bad.dtl.set([]);
            bad.set_usable(true);
            assert_eq!(bad.state(), state);
        }
        // Its write fails already.
        for scrub in [false, true] {
            scribble().await;
            faulty[0].writes.store(true, Ordering::Relaxed);
            assert_eq!(read(&tree, 0, &data, scrub).await.unwrap().repaired, 0);
            faulty[0].writes.store(false, Ordering::Relaxed);
            assert_eq!(bad.dtl.ranges(), [(BIRTH, BIRTH + 1)]);
            assert!(tree.wants_resilver() && other.dtl.is_empty());
            bad.dtl.set([]);
        }
        // One of a block of the txg itself, or of a later one, that a flush in between has lost: it
        // is the txg's to be written again.
        for txg in [BIRTH, BIRTH - 1] {
            scribble().await;
            assert_eq!(read(&tree, 0, &data, true).await.unwrap().repaired, 1);
            faulty[0].writes.store(true, Ordering::Relaxed);
            assert!(bad.flush(bad.mark()).await.is_err());
            faulty[0].writes.store(false, Ordering::Relaxed);
            bad.written_again(crate::types::Txg(txg));
            tree.flush_all(txg).await.unwrap();
            assert!(bad.dtl.is_empty(), "{:?}", bad.dtl.ranges());
        }
        // One that is stable is not made again.
        bad.resilvering.store(true, Ordering::Relaxed);
        for (txg, fails) in [(20, false), (21, true)] {
            scribble().await;
            if !fails {
                assert_eq!(read(&tree, 0, &data, true).await.unwrap().repaired, 1);
            }
            faulty[0].writes.store(fails, Ordering::Relaxed);
            tree.flush_all(txg).await.unwrap();
        }
        faulty[0].writes.store(false, Ordering::Relaxed);
        assert_eq!(bad.dtl.ranges(), [(21, 22)]);
        tree.close().await;
    });
}

#[test]
fn a_scrub_sees_to_what_lies_behind_a_draid_s_columns() {
    let env = real_env(1);
    let paths: Vec<PathBuf> = (0..5).map(|i| PathBuf::from(format!("/d{i}"))).collect();
    let kind = VdevKind::Draid { nparity: 1, ndata: 2, nspares: 0 };
    let spec = PoolSpec { tops: vec![top(kind, &paths, 12)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let faulty: Vec<Arc<Failing>> = (0..5).map(|_| failing()).collect();
    let all: Vec<Arc<dyn Device>> = faulty.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        // Data columns of one sector and none, of two and one.
        for (at, sectors) in [(0, 1), (6 * SECTOR, 3)] {
            let data = block(sectors);
            write(&tree, at, &data).await;
            let map = tree.tops[0].vdev.draid().unwrap().map(at, sectors * SECTOR, 12);
            let [skip] = map.skips[..] else { panic!("{map:?}") };
            let leaf = tree.leaves[skip.child].clone();
            let stored = async || leaf.read_at(skip.on_device(), SECTOR, Priority::SyncRead).await.unwrap();
            assert!(zilla_codec::compress::is_zero(&stored().await));
            assert_eq!(read(&tree, at, &data, true).await, Some(Healing::default()));
            leaf.write_at(skip.on_device(), block(1), Priority::SyncWrite).await.unwrap();
            assert_eq!(read(&tree, at, &data, false).await, Some(Healing::default()), "nobody looks there");
            let before = lies(&leaf);
            let found = read(&tree, at, &data, true).await.unwrap();
            assert_eq!((&found.bad[..], found.repaired, found.bytes), (&[leaf.index][..], 1, SECTOR));
            assert_eq!(lies(&leaf) - before, 1);
            assert!(zilla_codec::compress::is_zero(&stored().await), "what parity covers is right again");
            assert_eq!(read(&tree, at, &data, true).await, Some(Healing::default()));
            // One that gives nothing is written again as a whole.
            leaf.write_at(skip.on_device(), block(1), Priority::SyncWrite).await.unwrap();
            faulty[leaf.index].reads.store(true, Ordering::Relaxed);
            let found = read(&tree, at, &data, true).await.unwrap();
            assert_eq!((&found.bad[..], lies(&leaf) - before), (&[leaf.index][..], 1));
            faulty[leaf.index].reads.store(false, Ordering::Relaxed);
            assert!(zilla_codec::compress::is_zero(&stored().await));
        }
        tree.close().await;
    });
}

#[test]
fn a_spare_whose_device_went_away_this_moment_is_not_whole() {
    let env = real_env(1);
    let paths: Vec<PathBuf> = (0..2).map(|i| PathBuf::from(format!("/w{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 12)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let all: Vec<Arc<dyn Device>> = (0..2).map(|_| failing() as Arc<dyn Device>).collect();
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        let (device, spare) = (&tree.leaves[0], &tree.leaves[1]);
        spare.dtl.add(BIRTH, BIRTH + 1);
        let mend = || Mend::new(&Side { leaf: device, via: smallvec![spare] }, 8 << 20, block(1));
        assert_eq!(mend().write(BIRTH, true).await, Some(SECTOR));
        assert!(!spare.refused.load(Ordering::Relaxed));
        device.set_unusable(VdevState::CantOpen, VdevAux::OpenFailed);
        assert_eq!(mend().write(BIRTH, true).await, None);
        assert!(spare.refused.load(Ordering::Relaxed));
        tree.close().await;
    });
}

#[test]
fn pieces_are_not_written_again_while_a_rebuild_copies_them() {
    let env = real_env(1);
    let leaf = |id: u64| NvList::new().with("type", "file").with("id", id).with("guid", 11 + id);
    let leaves: Vec<NvList> = (0..2).map(|id| leaf(id).with("path", format!("/s{id}"))).collect();
    let of = |kind: &str, id: u64| NvList::new().with("type", kind).with("id", id).with("guid", 20 + id);
    let mirror = of("mirror", 0).with("ashift", 12u64).with("children", leaves);
    let tops = vec![mirror, of("indirect", 1).with("ashift", 12u64).with("asize", DEV)];
    let config = NvList::new().with("type", "root").with("id", 0u64).with("guid", 77u64);
    let config = config.with("children", tops);
    let all: Vec<Arc<dyn Device>> = (0..2).map(|_| failing() as Arc<dyn Device>).collect();
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        let (data, far) = (block(2), 1 << 20);
        let runs = [(0, 0), (SECTOR, far)].map(|(src, dst)| Run { src, len: SECTOR, vdev: 0, dst });
        let mapping = Indirect::new(runs.into(), vec![(2 * SECTOR, BIRTH)]).unwrap();
        tree.tops[1].vdev.set_indirect(Some(Arc::new(mapping)));
        write(&tree, 0, &data.slice(..SECTOR as usize)).await;
        write(&tree, far, &data.slice(SECTOR as usize..)).await;
        let (bad, at) = (&tree.leaves[0], VDEV_LABEL_START_SIZE + far);
        bad.write_at(at, block(1), Priority::SyncWrite).await.unwrap();
        let kept = tree.gates.keep(0);
        let shut = kept.shut(far, far + SECTOR).await;
        let mut scrub = std::pin::pin!(read_of(&tree.tops[1], &tree, 0, &data, true));
        let while_copied = env.timeout(std::time::Duration::from_millis(300), scrub.as_mut()).await;
        assert!(while_copied.is_err(), "it is being copied");
        drop(shut);
        let found = scrub.await.unwrap();
        assert_eq!((&found.bad[..], found.repaired), (&[0][..], 1));
        let stored = bad.read_at(at, SECTOR, Priority::SyncRead).await.unwrap();
        assert_eq!(stored, data.slice(SECTOR as usize..));
        tree.close().await;
    });
}

/// Who repaired it would write over its neighbour.
#[test]
fn a_block_whose_pointer_counts_too_little_for_its_width_is_refused() {
    let env = real_env(1);
    let paths: Vec<PathBuf> = (0..3).map(|i| PathBuf::from(format!("/n{i}"))).collect();
    let spec =
        PoolSpec { tops: vec![top(VdevKind::Raidz { nparity: 1 }, &paths, 12)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let all: Vec<Arc<dyn Device>> =
        (0..3).map(|_| Arc::new(MemDevice::new(DEV)) as Arc<dyn Device>).collect();
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        tree.tops[0].vdev.widths().unwrap().finish(100, 4, 0);
        let dva = |sectors| Dva { vdev: 0, offset: 1 << 20, asize: sectors * SECTOR, gang: false };
        let check = |sectors, birth| tree.check_dva(&dva(sectors), 6 * SECTOR, birth).map(drop);
        assert!(check(10, 99).is_ok() && check(8, 100).is_ok());
        let refused = check(8, 99).unwrap_err().to_string();
        assert!(refused.contains("more than its pointer says"), "{refused}");
        assert!(!tree.is_as_wide(99, 100) && tree.is_as_wide(100, 900));
        tree.close().await;
    });
}

/// Who reads a vdev that lacks a device does not pay for parity that nobody is given or asked.
#[test]
fn parity_is_worked_out_only_for_who_wants_it() {
    let env = real_env(1);
    env.block_on(async {
        for nparity in 1..=2u8 {
            let n = usize::from(nparity) + 2;
            let paths: Vec<PathBuf> = (0..n).map(|i| PathBuf::from(format!("/p{i}"))).collect();
            let spec =
                PoolSpec { tops: vec![top(VdevKind::Raidz { nparity }, &paths, 12)], ..PoolSpec::default() };
            let config = spec.config(77, &*env.rng).unwrap();
            let all: Vec<Arc<dyn Device>> =
                (0..n).map(|_| Arc::new(MemDevice::new(DEV)) as Arc<dyn Device>).collect();
            let tree = opened(&env, &config, &all, true).await;
            let data = block(2);
            write(&tree, 0, &data).await;
            let parity = usize::from(nparity) - 1;
            let worked = async || {
                let before = WORKED_OUT.get();
                let healing = read(&tree, 0, &data, false).await.unwrap();
                (WORKED_OUT.get() - before, healing)
            };
            assert_eq!(worked().await, (0, Healing::default()));
            let lost = tree.leaves[n - 1].clone();
            lost.set_unusable(VdevState::Offline, VdevAux::None);
            // The second parity, which was read and not used, is compared.
            assert_eq!(worked().await, (parity, Healing::default()));
            let spot = VDEV_LABEL_START_SIZE;
            if nparity == 2 {
                tree.leaves[1].write_at(spot, block(1), Priority::SyncWrite).await.unwrap();
                let (_, healing) = worked().await;
                assert_eq!((&healing.bad[..], healing.repaired, lies(&tree.leaves[1])), (&[1][..], 1, 1));
            }
            // It is back, and lacks the block: it gets it.
            lost.set_usable(true);
            lost.dtl.add(BIRTH, BIRTH + 1);
            lost.write_at(spot, block(1), Priority::SyncWrite).await.unwrap();
            let (times, healing) = worked().await;
            assert_eq!((times, healing.repaired), (1, 1));
            lost.dtl.set([]);
            assert_eq!(worked().await, (0, Healing::default()));
            assert_eq!(lies(&lost), 0);
            tree.close().await;
        }
    });
}
