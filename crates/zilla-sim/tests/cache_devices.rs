//! Cache devices that lie, tear, forget, fail, stall, vanish and come back with something else,
//! across exports and power cuts while they are fed and while their log is read: what is read is
//! always right, and nothing waits for them longer than their timeouts.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::spa::Spa;
use zilla_core::vdev::{LeafSpec, VdevState};
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule, When};
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const CACHES: [&str; 2] = ["/disks/c0", "/disks/c1"];
/// Large enough for a log; only what is written takes memory.
const SIZE: u64 = 1100 << 20;
const FILE: usize = 300_000;
/// What a read of one file may take in all: a few blocks, each of which may meet a device that does
/// not answer.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// The same for a txg, an import and an export.
const OTHER_WITHIN: Duration = Duration::from_secs(45);

/// What the files must hold, by name.
type Files = BTreeMap<String, Bytes>;

/// The cache devices as they were opened last, by their number.
type Faulty = Arc<Mutex<BTreeMap<usize, Arc<FaultyDevice>>>>;

fn wrap(env: &Env) -> (Env, Faulty) {
    wrap_with(env, Vec::new())
}

/// The same with devices that go wrong from the beginning.
fn wrap_with(env: &Env, rules: Vec<Rule>) -> (Env, Faulty) {
    let faulty = Faulty::default();
    let (kept, inner) = (faulty.clone(), env.clone());
    let wrapped =
        env.wrap_devices(move |path: &Path, device| match CACHES.iter().position(|c| Path::new(c) == path) {
            Some(i) => {
                let device = Arc::new(FaultyDevice::new(device, &inner));
                for rule in &rules {
                    device.add(rule.clone());
                }
                kept.lock().insert(i, device.clone());
                device
            }
            None => device,
        });
    (wrapped, faulty)
}

async fn put(env: &Env, spa: &Arc<Spa>, files: &mut Files) {
    let begun = env.clock.now();
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    for _ in 0..8 {
        let name = format!("f{}", files.len());
        let seed = env.random_below(u64::MAX) | 1;
        let mut x = seed;
        let data: Bytes = (0..FILE)
            .map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 40) as u8
            })
            .collect();
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap();
        zfs.write(h.id(), 0, &data, false).await.unwrap();
        files.insert(name, data);
    }
    spa.sync().await.unwrap();
    assert!(env.clock.now() - begun < OTHER_WITHIN, "a txg waited for a cache device");
}

/// Reads everything past the ARC.
async fn check(env: &Env, spa: &Arc<Spa>, files: &Files, what: &str) {
    spa.zio.cache().clear();
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    for (name, data) in files {
        let begun = env.clock.now();
        let (h, _) = zfs.lookup(zfs.root(), name.as_bytes()).await.unwrap();
        let read = zfs.read(h.id(), 0, data.len()).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: {name}: {e}")).concat();
        assert!(read == data[..], "{what}: {name}");
        let took = env.clock.now() - begun;
        assert!(took < READ_WITHIN, "{what}: {name} took {took:?}");
    }
}

fn stat(spa: &Arc<Spa>, name: &str) -> u64 {
    spa.zio.l2().arcstats().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| v)
}

/// Something goes wrong with a device from now on.
fn hurt(env: &Env, sim: &Sim, faulty: &Faulty) -> String {
    let i = env.random_below(2) as usize;
    let chance = |p: f64, rule: Rule| Rule { when: When::Chance(p), ..rule };
    let rule = match env.random_below(12) {
        0 => Rule::new(Ops::Reads, Fault::Garbage),
        1 => chance(0.3, Rule::new(Ops::Reads, Fault::FlipBits { count: 3 })),
        2 => chance(0.5, Rule::new(Ops::Writes, Fault::Ignore)),
        3 => chance(0.5, Rule::new(Ops::Writes, Fault::Tear { sectors: 3 })),
        4 => chance(0.5, Rule::new(Ops::Writes, Fault::Misdirect(64 << 10))),
        5 => chance(0.5, Rule::new(Ops::Reads, Fault::Misdirect(4096))),
        6 => Rule::new(Ops::All, Fault::Hang),
        7 => Rule::new(Ops::Writes, Fault::Hang),
        8 => chance(0.2, Rule::new(Ops::Reads, Fault::Hang)),
        9 => Rule::new(Ops::All, Fault::Error(5)),
        10 => chance(0.3, Rule::new(Ops::All, Fault::Delay(Duration::from_secs(3)))),
        _ => {
            if let Some(disk) = sim.disk(CACHES[i]) {
                disk.set_offline(true);
            }
            return format!("c{i} vanishes");
        }
    };
    let text = format!("c{i}: {rule:?}");
    if let Some(device) = faulty.lock().get(&i) {
        device.add(rule);
    }
    text
}

/// A time of use on what is left: opened, read, hurt, used, and exported or cut off.
fn time_of_use(seed: u64, boot: u64, left: Option<Survivors>, files: &mut Files) -> (Survivors, u64) {
    let layout = Layout::Mirror;
    let sim = match &left {
        Some(left) => left.boot(seed * 100 + boot),
        None => {
            let sim = Sim::new(seed * 100);
            layout.add_disks(&sim);
            CACHES.iter().for_each(|c| drop(sim.add_disk(c, SIZE)));
            sim
        }
    };
    let (env, faulty) = wrap(&sim.env());
    let mut what = format!("seed {seed} boot {boot}");
    let hits = sim.block_on(async {
        let begun = env.clock.now();
        let spa = match find(&env).await.unwrap() {
            Some(found) => import(&env, &found, false).await.unwrap(),
            None => {
                let spa = layout.create(&env).await.unwrap();
                let leaves = CACHES.map(|c| LeafSpec { path: c.into(), disk: true });
                spa.add_cache(&leaves).await.unwrap();
                spa
            }
        };
        assert!(env.clock.now() - begun < OTHER_WITHIN, "{what}: the import waited");
        // While the log may still be read.
        check(&env, &spa, files, &what).await;
        put(&env, &spa, files).await;
        env.sleep(Duration::from_millis(env.random_below(4000))).await;
        check(&env, &spa, files, &what).await;
        for _ in 0..env.random_below(3) {
            what = format!("{what}, {}", hurt(&env, &sim, &faulty));
        }
        put(&env, &spa, files).await;
        env.sleep(Duration::from_millis(env.random_below(4000))).await;
        check(&env, &spa, files, &what).await;
        let begun = env.clock.now();
        let caches: Vec<u64> = spa.tree().cache.iter().map(|v| v.guid).collect();
        for guid in caches {
            match env.random_below(5) {
                0 => {
                    spa.offline(guid, true, false).await.unwrap();
                }
                1 => {
                    spa.online(guid, false).await.unwrap();
                }
                _ => {}
            }
        }
        spa.clear(None).await.unwrap();
        assert!(env.clock.now() - begun < OTHER_WITHIN * 2, "{what}: a change of devices waited");
        check(&env, &spa, files, &what).await;
        let tree = spa.tree();
        assert_eq!(tree.root.state().0, VdevState::Healthy, "{what}: the pool itself is well");
        assert_eq!(tree.root.stats().checksum_errors, 0, "{what}: its disks are not blamed");
        let hits = stat(&spa, "l2_hits");
        if env.random_below(2) == 0 {
            let begun = env.clock.now();
            spa.close(Some(PoolState::Exported)).await.unwrap();
            assert!(env.clock.now() - begun < OTHER_WITHIN, "{what}: the export waited");
        } else {
            put(&env, &spa, files).await;
            env.sleep(Duration::from_micros(env.random_below(1_500_000))).await;
        }
        hits
    });
    let mut left = sim.power_off(CrashPolicy::Random, seed * 100 + boot);
    // One comes back with what was the other's.
    if (seed + boot).is_multiple_of(5) {
        let [a, b] = CACHES.map(|c| left.disks.get(Path::new(c)).cloned());
        if let (Some(a), Some(b)) = (a, b) {
            left.disks.insert(CACHES[0].into(), b);
            left.disks.insert(CACHES[1].into(), a);
        }
    }
    (left, hits)
}

#[test]
fn whatever_a_cache_device_does_costs_time_only() {
    let seeds = std::env::var("ZILLA_CACHES").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let mut hits = 0;
    for seed in 0..seeds {
        let (mut left, mut files) = (None, Files::new());
        for boot in 0..4 {
            let (after, n) = time_of_use(seed, boot, left.take(), &mut files);
            left = Some(after);
            hits += n;
        }
    }
    assert!(hits > 100, "nothing was read from a cache device ({hits})");
}

/// A log that cannot be read this time is known again as soon as it can: the device is not begun
/// anew over it.
#[test]
fn what_could_not_be_read_at_one_import_is_known_at_the_next() {
    let layout = Layout::Mirror;
    let mut files = Files::new();
    let sim = Sim::new(77);
    layout.add_disks(&sim);
    CACHES.iter().for_each(|c| drop(sim.add_disk(c, SIZE)));
    let env = sim.env();
    let logs = sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        spa.add_cache(&[LeafSpec { path: CACHES[0].into(), disk: true }]).await.unwrap();
        for _ in 0..6 {
            put(&env, &spa, &mut files).await;
            env.sleep(Duration::from_secs(2)).await;
        }
        let logs = stat(&spa, "l2_log_blk_count");
        spa.close(Some(PoolState::Exported)).await.unwrap();
        logs
    });
    assert!(logs > 1, "{logs} log blocks");
    let mut left = sim.power_off(CrashPolicy::KeepAll, 1);
    let after_header = (4 << 20) + (64 << 10)..SIZE - (1 << 20);
    let log_fails = Rule::new(Ops::Reads, Fault::Error(5)).within(after_header);
    let header_fails = Rule::new(Ops::Reads, Fault::Error(5)).within(4 << 20..(4 << 20) + 512);
    // Once more for the second try of the same read.
    let header_fails = vec![header_fails.when(When::Nth(1)); 2];
    for (boot, rules) in [vec![log_fails], header_fails].into_iter().enumerate() {
        let sim = left.boot(boot as u64 + 2);
        let (env, faulty) = wrap_with(&sim.env(), rules);
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap();
            while spa.zio.l2().is_rebuilding() {
                env.sleep(Duration::from_millis(100)).await;
            }
            let errors = stat(&spa, "l2_rebuild_io_errors") + stat(&spa, "l2_rebuild_dh_errors");
            assert!(errors > 0, "boot {boot}: it could be read");
            faulty.lock().values().for_each(|d| d.clear());
            put(&env, &spa, &mut files).await;
            env.sleep(Duration::from_secs(3)).await;
            check(&env, &spa, &files, "while it is not known").await;
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
        left = sim.power_off(CrashPolicy::KeepAll, 1);
    }
    let sim = left.boot(9);
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await.unwrap().unwrap();
        let spa = import(&env, &found, false).await.unwrap();
        while spa.zio.l2().is_rebuilding() {
            env.sleep(Duration::from_millis(100)).await;
        }
        let known = stat(&spa, "l2_rebuild_log_blks");
        assert!(known >= logs, "{known} log blocks of {logs}");
        check(&env, &spa, &files, "known again").await;
        assert!(stat(&spa, "l2_hits") > 60, "{} hits", stat(&spa, "l2_hits"));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// Writes that fail now and then, among others that succeed, are no reason to take a device out of
/// use.
#[test]
fn a_device_that_fails_now_and_then_stays_in_use() {
    let (layout, sim) = (Layout::Mirror, Sim::new(78));
    layout.add_disks(&sim);
    CACHES.iter().for_each(|c| drop(sim.add_disk(c, SIZE)));
    let (env, faulty) = wrap(&sim.env());
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        spa.add_cache(&[LeafSpec { path: CACHES[0].into(), disk: true }]).await.unwrap();
        // Twice in a row, or the second try is as good as the first.
        let fails = Rule::new(Ops::Writes, Fault::Error(5)).when(When::Chance(0.6));
        for device in faulty.lock().values() {
            device.add(fails.clone());
        }
        let mut files = Files::new();
        while stat(&spa, "l2_writes_error") < 24 {
            put(&env, &spa, &mut files).await;
            env.sleep(Duration::from_secs(5)).await;
            assert!(files.len() < 2000, "{} errors", stat(&spa, "l2_writes_error"));
        }
        assert_eq!(spa.tree().cache[0].state().0, VdevState::Healthy);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// A device that answers, but late each time, is waited for a moment only, and after a few reads
/// not at all for a while.
#[test]
fn a_device_that_is_always_late_holds_nothing_up() {
    let (layout, sim) = (Layout::Mirror, Sim::new(79));
    layout.add_disks(&sim);
    CACHES.iter().for_each(|c| drop(sim.add_disk(c, SIZE)));
    let (env, faulty) = wrap(&sim.env());
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        spa.add_cache(&[LeafSpec { path: CACHES[0].into(), disk: true }]).await.unwrap();
        let mut files = Files::new();
        for _ in 0..5 {
            put(&env, &spa, &mut files).await;
            env.sleep(Duration::from_secs(2)).await;
        }
        let timed = async |what: &str| {
            let (begun, hits) = (env.clock.now(), stat(&spa, "l2_hits"));
            check(&env, &spa, &files, what).await;
            (env.clock.now() - begun, stat(&spa, "l2_hits") - hits)
        };
        let (_, hits) = timed("sound").await;
        assert!(hits > 60, "{hits} blocks came from the cache device");
        let late = Rule::new(Ops::Reads, Fault::Delay(Duration::from_millis(400)));
        for device in faulty.lock().values() {
            device.add(late.clone());
        }
        let (took, hits) = timed("late").await;
        assert!(took < Duration::from_secs(2), "{took:?}, {hits} hits");
        faulty.lock().values().for_each(|d| d.clear());
        env.sleep(Duration::from_secs(10)).await;
        let (_, hits) = timed("sound again").await;
        assert!(hits > 60, "{hits} blocks came from the cache device");
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}
