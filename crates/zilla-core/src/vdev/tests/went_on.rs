//! Which uberblocks count after imports that did not go on from the newest one.

use super::*;
use crate::error::Result;
use crate::types::Txg;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_ondisk::label::{VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE, label_offset};

struct Disks {
    env: Env,
    config: NvList,
    all: Vec<Arc<FaultyDevice>>,
}

impl Disks {
    /// All have txg 10; 11 came to the uberblock of the last one alone.
    async fn new(env: &Env, kind: VdevKind, n: usize) -> Disks {
        let paths: Vec<PathBuf> = (0..n).map(|i| PathBuf::from(format!("/mem/{i}"))).collect();
        let spec = PoolSpec { tops: vec![top(kind, &paths, 12)], ..PoolSpec::default() };
        let config = spec.config(77, &*env.rng).unwrap();
        let disk = |_| Arc::new(FaultyDevice::new(Arc::new(MemDevice::new(DEV)), env));
        let mut disks = Disks { env: env.clone(), config, all: (0..n).map(disk).collect() };
        let tree = disks.open(&(0..n).collect::<Vec<_>>(), None).await;
        tree.init_labels(&pool_part(0), &uberblock(&tree, 0)).await.unwrap();
        tree.sync_labels(&uberblock(&tree, 10), Some(&pool_part(10)), None).await.unwrap();
        end(&tree, 11, &[n - 1]).await;
        // With the size, which says that the vdev is not new.
        disks.config = tree.generate_config(ConfigFor::Mos);
        tree.close().await;
        disks
    }

    /// The pool on some of them.
    async fn of(&self, which: &[usize]) -> Arc<VdevTree> {
        self.open(which, Some(77)).await
    }

    async fn open(&self, which: &[usize], pool_guid: Option<u64>) -> Arc<VdevTree> {
        let tree = VdevTree::from_config(&self.env, &self.config).unwrap();
        let device = |i: &usize| (tree.leaves[*i].guid(), self.all[*i].clone() as Arc<dyn Device>);
        let devices = which.iter().map(device).collect();
        tree.open(&OpenArgs { write: true, devices, pool_guid, newest: 0 }).await.unwrap();
        Arc::new(tree)
    }

    async fn go_on(&self, with: &[usize], from: u64, first: u64) -> Result<()> {
        let tree = self.of(with).await;
        let done = tree.go_on_from(Txg(from), Txg(first), &pool_part(from)).await;
        tree.close().await;
        done
    }

    /// What an import of these finds: the txgs that count, the last number that is not to be used
    /// again, and what the pool went on from if that is away.
    async fn found(&self, which: &[usize]) -> (Vec<u64>, u64, Option<u64>) {
        let tree = self.of(which).await;
        let found = tree.read_labels().await;
        tree.close().await;
        let txgs = found.uberblocks.iter().map(|f| f.ub.txg).filter(|txg| *txg != 0);
        (txgs.collect(), found.newest, found.away)
    }

    /// A txg's labels are written on some, but for labels 1 and 3, and its uberblock or not.
    async fn half(&self, which: &[usize], txg: u64, with_uberblock: bool) {
        let odd = [1, 3].map(|l| label_offset(DEV, l).unwrap() + VDEV_PHYS_OFFSET);
        let places = || which.iter().flat_map(|i| odd.map(|at| (&self.all[*i], at)));
        let mut old = Vec::new();
        for (disk, at) in places() {
            old.push(disk.read(at, VDEV_PHYS_SIZE as usize).await.unwrap().into_bytes());
        }
        let tree = self.of(which).await;
        let labels = pool_part(txg);
        match with_uberblock {
            true => tree.sync_labels(&uberblock(&tree, txg), Some(&labels), None).await.unwrap(),
            false => drop(tree.write_all_labels(&labels).await.unwrap()),
        }
        tree.close().await;
        for ((disk, at), bytes) in places().zip(old) {
            disk.write(at, bytes).await.unwrap();
        }
    }
}

/// A txg's uberblock reaches some devices.
async fn end(tree: &VdevTree, txg: u64, have: &[usize]) {
    tree.leaves.iter().filter(|l| !have.contains(&l.index)).for_each(|l| l.dtl.add(txg, txg + 1));
    tree.sync_labels(&uberblock(tree, txg), None, None).await.unwrap();
}

const RAIDZ1: VdevKind = VdevKind::Raidz { nparity: 1 };

#[test]
fn a_txg_does_not_count_that_needs_those_who_went_on_without_it() {
    let env = real_env(1);
    env.block_on(async {
        let disks = Disks::new(&env, RAIDZ1, 3).await;
        assert_eq!(disks.found(&[0, 1, 2]).await, (vec![11, 10], 11, None));
        disks.go_on(&[0, 1], 10, 12).await.unwrap();
        for which in [&[0, 1, 2][..], &[0, 2], &[1, 2], &[0, 1]] {
            assert_eq!(disks.found(which).await, (vec![10], 11, None), "{which:?}");
        }
        // Once more, with others.
        disks.go_on(&[1, 2], 10, 13).await.unwrap();
        for which in [&[0, 1, 2][..], &[0, 2], &[1, 2], &[0, 1]] {
            assert_eq!(disks.found(which).await, (vec![10], 12, None), "{which:?}");
        }
    });
}

#[test]
fn a_txg_counts_without_those_who_lack_it() {
    let env = real_env(1);
    env.block_on(async {
        for (kind, n, with) in
            [(VdevKind::Mirror, 2, &[0][..]), (VdevKind::Raidz { nparity: 2 }, 4, &[0, 1][..])]
        {
            let disks = Disks::new(&env, kind, n).await;
            disks.go_on(with, 10, 12).await.unwrap();
            let tree = disks.of(&(0..n).collect::<Vec<_>>()).await;
            let found = tree.read_labels().await;
            assert_eq!((found.uberblocks[0].ub.txg, &found.void[..]), (11, &[][..]));
            tree.note_outdated(&found, 11);
            let lack: Vec<usize> = tree.leaves.iter().filter(|l| !l.holds(11)).map(|l| l.index).collect();
            assert!(with.iter().all(|i| lack.contains(i)) && !lack.contains(&(n - 1)), "{lack:?}");
            tree.close().await;
        }
    });
}

/// OpenZFS's labels do not say it, and it has used the number.
#[test]
fn labels_written_with_a_txg_say_it_no_longer_from_its_uberblock_on() {
    let env = real_env(1);
    env.block_on(async {
        for (txg, with_uberblock, newest) in
            [(12, false, 10), (12, true, 12), (11, false, 10), (11, true, 11)]
        {
            let disks = Disks::new(&env, RAIDZ1, 3).await;
            disks.go_on(&[0, 1], 10, 12).await.unwrap();
            disks.half(&[0, 1], txg, with_uberblock).await;
            let (txgs, ..) = disks.found(&[0, 1, 2]).await;
            assert_eq!(txgs[0], newest, "{txg} {with_uberblock}");
        }
    });
}

#[test]
fn who_cannot_be_told_is_not_written_to() {
    let env = real_env(1);
    env.block_on(async {
        let disks = Disks::new(&env, VdevKind::Raidz { nparity: 2 }, 4).await;
        for label in 0..4 {
            disks.go_on(&[0, 1, 2], 10, 12).await.unwrap();
            let at = label_offset(DEV, label).unwrap() + VDEV_PHYS_OFFSET;
            let rule = Rule::new(Ops::Writes, Fault::Error(5)).within(at..at + VDEV_PHYS_SIZE);
            disks.all[1].add(rule);
        }
        // It takes other writes, so it would be used.
        let refused = disks.go_on(&[0, 1, 2], 10, 12).await.unwrap_err();
        assert!(refused.to_string().contains("/mem/1"), "{refused}");
        // It takes none, so it is not used.
        disks.all[1].add(Rule::new(Ops::Writes, Fault::Error(5)));
        let tree = disks.of(&[0, 1, 2]).await;
        tree.go_on_from(Txg(10), Txg(12), &pool_part(10)).await.unwrap();
        assert!(!tree.leaves[1].writable());
        tree.close().await;
    });
}

/// Whatever stands there: what nobody can go on from makes nothing void, and numbers do not end.
#[test]
fn labels_are_believed_as_far_as_uberblocks_are() {
    let env = real_env(1);
    env.block_on(async {
        let disks = Disks::new(&env, RAIDZ1, 3).await;
        // Txg 10 might have been on a device that is away.
        for (from, first, newest, away) in [
            (9, 12, 11, Some(9)),
            (40, 50, 49, Some(40)),
            (10, 10, 11, None),
            (12, 10, 11, None),
            (10, u64::MAX, 11, None),
            (0, (1 << 62) + 1, 11, None),
        ] {
            disks.go_on(&[0, 1], from, first).await.unwrap();
            assert_eq!(disks.found(&[0, 1, 2]).await, (vec![11, 10], newest, away), "{from} {first}");
        }
    });
}
