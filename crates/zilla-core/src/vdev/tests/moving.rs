//! The first rows of a RAID-Z on their way through the scratch area.

use super::*;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

const SECTOR: u64 = 512;

/// One sector cannot be read as long as that is said.
struct Spotted {
    inner: MemDevice,
    spot: u64,
    bad: AtomicBool,
}

impl Device for Spotted {
    fn submit(&self, batch: Vec<Io>) {
        for io in batch {
            let (at, len) = io.op.range();
            let hit = matches!(io.op, IoOp::Read { .. }) && (at..at + len).contains(&self.spot);
            if hit && self.bad.load(Ordering::Relaxed) {
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

#[test]
fn a_sector_that_is_free_and_cannot_be_read_does_not_stop_an_expansion() {
    let env = real_env(1);
    let paths: Vec<PathBuf> = (0..4).map(|i| PathBuf::from(format!("/r{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Raidz { nparity: 1 }, &paths, 9)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    // Sector 7 of three children, which is free.
    let spot = VDEV_LABEL_START_SIZE + 2 * SECTOR;
    let spotted = Arc::new(Spotted { inner: MemDevice::new(DEV), spot, bad: AtomicBool::new(true) });
    let mut all: Vec<Arc<dyn Device>> =
        (0..4).map(|_| Arc::new(MemDevice::new(DEV)) as Arc<dyn Device>).collect();
    all[1] = spotted.clone();
    env.block_on(async {
        let tree = opened(&env, &config, &all, true).await;
        let place = |n: u64, width: u64| {
            (&tree.leaves[(n % width) as usize], VDEV_LABEL_START_SIZE + n / width * SECTOR)
        };
        let contents = |n: u64| Bytes::from(vec![n as u8 + 1; SECTOR as usize]);
        for n in 0..40 {
            let (leaf, at) = place(n, 3);
            leaf.write_at(at, contents(n), Priority::SyncWrite).await.unwrap();
        }
        let mover = Move::new(&tree.tops[0]);
        assert!(mover.to_scratch(&[(0, 40 * SECTOR)]).await.is_err(), "it is needed");
        mover.to_scratch(&[(0, 7 * SECTOR), (8 * SECTOR, 40 * SECTOR)]).await.unwrap();
        spotted.bad.store(false, Ordering::Relaxed);
        mover.from_scratch(mover.first()).await.unwrap();
        for n in (0..40).filter(|n| *n != 7) {
            let (leaf, at) = place(n, 4);
            assert!(leaf.read_at(at, SECTOR, Priority::SyncRead).await.unwrap() == contents(n), "{n}");
        }
    });
}
