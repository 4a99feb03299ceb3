//! A device's flush fails, and the power goes at any moment until the txg is the pool. What that
//! device does not have is known at import, whichever of the others got the uberblock, and given to
//! it: afterwards any other one may be taken away. So it is with what it does not have of the
//! intent log, also if that is not replayed yet. `ZILLA_FLUSHES` says how many seeds.

use bytes::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zilla_core::spa::{CreateOpts, Host, Spa};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::Layout;
use zilla_sim::pool::layout::{find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::{CrashPolicy, Sim, Stuck, Survivors};

const FILES: [(&str, usize); 2] = [("synced", 60_000), ("in the log", 90_000)];

/// Of top-level vdevs of these kinds, with so many disks each.
#[derive(Clone, Copy)]
struct Pool {
    name: &'static str,
    tops: &'static [(VdevKind, usize)],
    /// The disk whose flush fails.
    fails: usize,
}

const RAIDZ1: VdevKind = VdevKind::Raidz { nparity: 1 };
const DRAID1: VdevKind = VdevKind::Draid { nparity: 1, ndata: 2, nspares: 0 };

const POOLS: [Pool; 5] = [
    Pool { name: "raidz1", tops: &[(RAIDZ1, 3)], fails: 1 },
    Pool { name: "draid1", tops: &[(DRAID1, 4)], fails: 0 },
    Pool { name: "mirror", tops: &[(VdevKind::Mirror, 2)], fails: 1 },
    Pool { name: "two mirrors", tops: &[(VdevKind::Mirror, 2), (VdevKind::Mirror, 2)], fails: 3 },
    Pool { name: "two raidz1", tops: &[(RAIDZ1, 3), (RAIDZ1, 3)], fails: 2 },
];

/// When the disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// While a txg is synced.
    InSync,
    /// When a log is to be stable. The pool is imported, and lacks a disk before it is mounted.
    InFsync,
}

fn contents(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + len) as u8 ^ (i >> 8) as u8).collect()
}

async fn put(env: &Env, spa: &Arc<Spa>, (name, len): (&str, usize)) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    let new = NewFile::new(0o100644, Cred::default());
    let (file, _) = zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap();
    zfs.write(file.id(), 0, &contents(len), false).await.unwrap();
    zfs.fsync(file.id()).await.unwrap();
}

async fn check(env: &Env, spa: &Arc<Spa>, what: &str) {
    let zfs = open_fs(env, spa, "tank").await.unwrap_or_else(|e| panic!("{what}: {e}"));
    for (name, len) in FILES {
        let found = zfs.lookup(zfs.root(), name.as_bytes()).await;
        let (file, _) = found.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        let read = zfs.read(file.id(), 0, len).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: {name}: {e}")).concat();
        assert!(read == contents(len)[..], "{what}: {name}");
    }
}

impl Pool {
    fn disks(self) -> usize {
        self.tops.iter().map(|(_, n)| n).sum()
    }

    async fn create(self, env: &Env) -> Arc<Spa> {
        let mut paths = (0..self.disks()).map(Layout::path);
        let tops = self.tops.iter().map(|&(kind, n)| {
            let leaves = paths.by_ref().take(n).map(|path| LeafSpec { path, disk: true }).collect();
            TopSpec { kind, leaves, is_log: false, bias: None, ashift: Some(9) }
        });
        let opts = CreateOpts {
            name: "tank".into(),
            host: Host { id: 0x51e, name: "simulated".into() },
            comment: None,
            owner: (0, 0),
            features: None,
            dbuf_cache: 1 << 20,
            arc_max: 4 << 20,
        };
        let spec = PoolSpec { tops: tops.collect(), ..PoolSpec::default() };
        Spa::create(env, &spec, opts).await.unwrap()
    }

    /// What is left of the disks at each write and flush between the flush that fails and the end
    /// of its txg.
    fn cuts(self, when: When, seed: u64) -> Vec<(u64, Survivors)> {
        let sim = Sim::new(seed);
        (0..self.disks()).for_each(|i| {
            sim.add_disk(Layout::path(i), 80 << 20);
        });
        let (inner, victim) = (sim.env(), Layout::path(self.fails));
        let devices = Arc::new(Mutex::new(Vec::<Arc<FaultyDevice>>::new()));
        let opened = devices.clone();
        let env = sim.env().wrap_devices(move |path, device| {
            if path != victim {
                return device;
            }
            let device = Arc::new(FaultyDevice::new(device, &inner));
            opened.lock().unwrap().push(device.clone());
            device
        });
        let (began, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (flag, over) = (began.clone(), done.clone());
        let (pool, e, failing) = (self, env.clone(), devices.clone());
        env.spawn(async move {
            let spa = pool.create(&e).await;
            put(&e, &spa, FILES[0]).await;
            spa.sync().await.unwrap();
            // It loses what it is given, and says so when it is to make it stable.
            let fail = || {
                for device in failing.lock().unwrap().iter() {
                    device.add(Rule::new(Ops::Flushes, Fault::Error(5)));
                    device.add(Rule::new(Ops::Writes, Fault::Ignore));
                }
            };
            if when == When::InFsync {
                fail();
            }
            put(&e, &spa, FILES[1]).await;
            if when == When::InSync {
                fail();
            }
            flag.store(true, Ordering::SeqCst);
            spa.sync().await.unwrap();
            over.store(true, Ordering::SeqCst);
        });
        let has_failed = || devices.lock().unwrap().iter().any(|d| d.hits(0) > 0);
        sim.run_until(&began).unwrap_or_else(|s| panic!("{}: {s}", self.name));
        let (mut last, mut out) = (sim.counters().ops, Vec::<(u64, Survivors)>::new());
        loop {
            sim.pause_at(last + 1);
            let went = sim.run_until(&done);
            let now = sim.counters().ops;
            for cut in last + 1..=now {
                if !has_failed() {
                    continue;
                }
                let left = sim.survivors_of(cut, CrashPolicy::Random, seed ^ cut.rotate_left(24));
                if out.last().is_none_or(|(_, before)| !before.is_same(&left)) {
                    out.push((cut, left));
                }
            }
            last = now;
            match went {
                Ok(()) => return out,
                Err(Stuck::Paused { .. }) => sim.resume(),
                Err(stuck) => panic!("{}: {stuck}", self.name),
            }
        }
    }

    /// The pool comes back, becomes whole, and can do without any disk but the one that failed.
    fn verify(self, when: When, left: &Survivors, what: &str) {
        let sim = left.boot(1);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap_or_else(|| panic!("{what}: no pool"));
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            if when == When::InSync {
                check(&env, &spa, what).await;
            }
            let behind = || spa.tree().pool_leaves().any(|l| !l.dtl.is_empty());
            let mut tries = 0;
            while behind() || spa.scan().unwrap().is_scanning() {
                env.sleep(Duration::from_millis(500)).await;
                tries += 1;
                assert!(tries < 600, "{what}: it does not become whole");
            }
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
        let left = sim.power_off(CrashPolicy::LoseAll, 1);
        for i in (0..self.disks()).filter(|i| *i != self.fails) {
            let mut left = left.clone();
            left.disks.remove(&Layout::path(i));
            let (sim, what) = (left.boot(2), format!("{what}, without disk {i}"));
            let env = sim.env();
            sim.block_on(async {
                let found = find(&env).await.unwrap().unwrap_or_else(|| panic!("{what}: no pool"));
                let spa = import(&env, &found, when == When::InSync).await;
                let spa = spa.unwrap_or_else(|e| panic!("{what}: {e}"));
                check(&env, &spa, &what).await;
            });
        }
    }
}

fn every_cut(when: When) {
    let seeds = std::env::var("ZILLA_FLUSHES").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in 0..seeds {
        for pool in POOLS {
            let cuts = pool.cuts(when, seed);
            assert!(cuts.len() > 3, "{}: only {} cuts", pool.name, cuts.len());
            // Some of them: each takes imports without each disk. (The log is the same at all.)
            let step = if when == When::InSync { 2 } else { 4 };
            for (cut, left) in cuts.iter().skip(seed as usize % step).step_by(step) {
                pool.verify(when, left, &format!("{}, {when:?}, seed {seed}, cut {cut}", pool.name));
            }
        }
    }
}

#[test]
fn a_disk_whose_flush_failed_before_a_power_cut_gets_what_it_lacks() {
    every_cut(When::InSync);
}

#[test]
fn a_disk_whose_flush_failed_before_a_power_cut_gets_what_it_lacks_of_a_log() {
    every_cut(When::InFsync);
}
