//! Which device has what of a label, or of a txg.

use super::*;

/// Fails writes or flushes.
struct Torn {
    inner: MemDevice,
    writes: AtomicBool,
    flushes: AtomicBool,
}

impl Device for Torn {
    fn submit(&self, batch: Vec<Io>) {
        for io in batch {
            let fails = match io.op {
                IoOp::Flush => self.flushes.load(Ordering::Relaxed),
                _ => io.op.modifies() && self.writes.load(Ordering::Relaxed),
            };
            if fails {
                io.done.complete(Err(io::Error::from_raw_os_error(5)));
            } else {
                self.inner.submit(vec![io]);
            }
        }
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }
}

/// One side has the label and cannot make it stable, the other has none and nothing to lose.
#[test]
fn a_label_is_there_if_one_device_has_it_and_made_it_stable() {
    let env = real_env(1);
    let paths: Vec<PathBuf> = (0..2).map(|i| PathBuf::from(format!("/mem/{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 9)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let torn = || Torn { inner: MemDevice::new(DEV), writes: false.into(), flushes: false.into() };
    env.block_on(async {
        for (first, second, good) in [
            ((false, true), (true, false), false),
            ((true, false), (false, true), false),
            ((false, false), (true, true), true),
        ] {
            let devices = [Arc::new(torn()), Arc::new(torn())];
            let all: Vec<Arc<dyn Device>> = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
            let tree = opened(&env, &config, &all, true).await;
            tree.init_labels(&pool_part(0), &uberblock(&tree, 10)).await.unwrap();
            tree.write_all_labels(&pool_part(10)).await.unwrap();
            for (device, (writes, flushes)) in devices.iter().zip([first, second]) {
                device.writes.store(writes, Ordering::Relaxed);
                device.flushes.store(flushes, Ordering::Relaxed);
            }
            let written = tree.write_all_labels(&pool_part(11)).await;
            assert_eq!(written.is_ok(), good, "{first:?} {second:?}: {written:?}");
            tree.close().await;
        }
    });
}

/// Both devices of one child missed a txg, which redundancy covers: it was no power cut.
#[test]
fn a_child_of_two_devices_is_one_that_missed_a_txg() {
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
    let all: Vec<Arc<dyn Device>> =
        (0..4).map(|_| Arc::new(MemDevice::new(DEV)) as Arc<dyn Device>).collect();
    env.block_on(async {
        // Those that miss the last txg, and those that lack it for certain.
        for (missed, behind) in
            [(&[0, 1][..], &[0, 1][..]), (&[0, 2], &[0, 2]), (&[2], &[2]), (&[0], &[0]), (&[0, 1, 3], &[])]
        {
            let tree = opened(&env, &config, &all, true).await;
            tree.init_labels(&pool_part(0), &uberblock(&tree, 10)).await.unwrap();
            tree.sync_labels(&uberblock(&tree, 10), Some(&pool_part(10)), None).await.unwrap();
            // As if it had come between the uberblocks, where too many miss it.
            missed.iter().for_each(|i| tree.leaves[*i].dtl.add(11, 12));
            tree.sync_labels(&uberblock(&tree, 11), None, None).await.unwrap();
            tree.close().await;
            let tree = opened(&env, &config, &all, false).await;
            tree.note_outdated(&tree.read_labels().await, 11);
            let lack = tree.leaves.iter().filter(|l| !l.holds(11)).map(|l| l.index);
            assert_eq!(lack.collect::<Vec<_>>(), behind, "{missed:?}");
            tree.close().await;
        }
    });
}

/// Counts what is read.
struct Counted {
    inner: MemDevice,
    reads: AtomicUsize,
}

impl Device for Counted {
    fn submit(&self, batch: Vec<Io>) {
        let reads = batch.iter().filter(|io| matches!(io.op, IoOp::Read { .. })).count();
        self.reads.fetch_add(reads, Ordering::Relaxed);
        self.inner.submit(batch);
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }
}

#[test]
fn opening_gives_the_labels_that_it_has_read() {
    let env = real_env(1);
    let paths: Vec<PathBuf> = (0..2).map(|i| PathBuf::from(format!("/mem/{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 12)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    let counted = || Arc::new(Counted { inner: MemDevice::new(DEV), reads: 0.into() });
    env.block_on(async {
        let devices = [counted(), counted()];
        let all: Vec<Arc<dyn Device>> = devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect();
        let tree = opened(&env, &config, &all, true).await;
        tree.init_labels(&pool_part(0), &uberblock(&tree, 10)).await.unwrap();
        tree.sync_labels(&uberblock(&tree, 10), Some(&pool_part(10)), None).await.unwrap();
        let config = tree.generate_config(ConfigFor::Mos);
        // The other one is another pool's since.
        tree.leaves[0].retire(VdevState::Closed).await;
        let others = pool_part(11).with("pool_guid", 78u64);
        tree.write_all_labels(&others).await.unwrap();
        tree.sync_labels(&uberblock(&tree, 11), None, None).await.unwrap();
        tree.close().await;
        devices.iter().for_each(|d| d.reads.store(0, Ordering::Relaxed));
        let tree = VdevTree::from_config(&env, &config).unwrap();
        let known = super::devices(&tree, &all);
        let args = OpenArgs { write: true, devices: known, pool_guid: Some(77), newest: 0 };
        let found = tree.open_labelled(&args).await.unwrap();
        let txgs: Vec<u64> = found.uberblocks.iter().map(|f| f.ub.txg).collect();
        assert_eq!((txgs, found.labels.len()), (vec![10, 0], 1));
        assert_eq!(found.config(&found.uberblocks[0].ub).unwrap().u64("txg"), Some(10));
        for device in &devices {
            assert_eq!(device.reads.load(Ordering::Relaxed), 4);
        }
        tree.close().await;
    });
}
