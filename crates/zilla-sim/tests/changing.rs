//! What a pool is made of changes while txgs go on, devices are slow and others fail: nothing that
//! was written in between is on no disk, and the power may go at once.

use futures_util::future::join;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_core::error::Error;
use zilla_core::metaslab::SpaceMap;
use zilla_core::spa::{Attach, Refusal, Spa, SpareSpec};
use zilla_core::types::Txg;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim};

const EIO: i32 = 5;
const IN_IT: Files = Files(1100);
const REPLACE: Attach = Attach { replace: true, ashift: None, spare: None, sequential: false };
/// So long does a write to a slow device take: many txgs.
const SLOW: Duration = Duration::from_secs(3);

/// A world whose devices go wrong as they are told.
#[derive(Clone)]
struct Devices(Arc<Mutex<BTreeMap<PathBuf, Arc<FaultyDevice>>>>);

impl Devices {
    fn new(sim: &Sim) -> (Devices, Env) {
        let (all, inner) = (Devices(Arc::default()), sim.env());
        let opened = all.clone();
        let env = sim.env().wrap_devices(move |path, device| {
            let device = Arc::new(FaultyDevice::new(device, &inner));
            if path == Layout::path(SLOW_DISK) {
                device.add(Rule::new(Ops::Writes, Fault::Delay(SLOW)));
            }
            opened.0.lock().insert(path.to_owned(), device.clone());
            device
        });
        (all, env)
    }

    fn get(&self, i: usize) -> Arc<FaultyDevice> {
        self.0.lock()[&Layout::path(i)].clone()
    }
}

/// The number of a disk that is slow from the moment it is opened.
const SLOW_DISK: usize = 7;

fn leaf(i: usize) -> LeafSpec {
    LeafSpec { path: Layout::path(i), disk: true }
}

fn log(disks: &[usize]) -> PoolSpec {
    let kind = if disks.len() > 1 { VdevKind::Mirror } else { VdevKind::Disk };
    let leaves = disks.iter().map(|i| leaf(*i)).collect();
    let top = TopSpec { kind, leaves, is_log: true, bias: None, ashift: Some(12) };
    PoolSpec { tops: vec![top], ..PoolSpec::default() }
}

fn guid(spa: &Spa, i: usize) -> u64 {
    let walk = spa.tree().root.walk();
    let is = |l: &Arc<zilla_core::vdev::Leaf>| l.path() == Layout::path(i);
    walk.iter().find(|v| v.leaf.as_ref().is_some_and(is)).unwrap().guid
}

async fn settled(env: &Env, spa: &Arc<Spa>, what: &str) {
    for _ in 0..3000 {
        let replaced = spa.tree().root.walk().iter().any(|v| v.kind == VdevKind::Replacing);
        let lacking = spa.tree().pool_leaves().any(|l| !l.dtl.is_empty());
        if !replaced && !lacking && !spa.scan().unwrap().is_scanning() {
            return;
        }
        env.sleep(Duration::from_millis(200)).await;
    }
    panic!("{what}: it does not come to an end");
}

/// Writes a file and makes it stable: the intent log takes it.
async fn make_stable(env: &Env, spa: &Arc<Spa>, name: &str) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    let (h, _) = match zfs.lookup(zfs.root(), name.as_bytes()).await {
        Ok(found) => found,
        Err(_) => {
            let new = NewFile::new(0o100644, Cred::default());
            zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap()
        }
    };
    zfs.write(h.id(), 0, &name.as_bytes().to_vec().into(), false).await.unwrap();
    zfs.fsync(h.id()).await.unwrap();
}

/// Writes so much that the pool's metaslabs are all changed: they are flushed one a txg.
async fn change_all(env: &Env, spa: &Arc<Spa>) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    let (h, _) = zfs.create(zfs.root(), b"large", NewFile::new(0o100644, Cred::default())).await.unwrap();
    let mut x = 1u64;
    for at in 0..80 {
        let noise = (0..(1 << 17)).flat_map(|_| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (x >> 8).to_le_bytes()
        });
        zfs.write(h.id(), at << 20, &noise.collect::<Vec<u8>>().into(), false).await.unwrap();
    }
}

/// How many entries the log space maps of txgs before one have of a vdev's number.
async fn entries_before(spa: &Spa, end: Txg, vdev: u32) -> u64 {
    let mut entries = 0;
    for (_, object) in spa.metaslabs.log_maps().into_iter().filter(|(txg, _)| *txg < end) {
        let object = spa.ctx.mos().hold_wait(object).await.unwrap();
        let map = SpaceMap::open(object, 0, u64::MAX, 9).unwrap();
        let reader = map.reader();
        let counted = reader.for_each(map.length(), |_, of, _, _| {
            entries += u64::from(of == Some(vdev));
            Ok(())
        });
        counted.await.unwrap();
    }
    entries
}

/// A log is removed, and another vdev takes its number while older logs of space still speak of it.
fn in_the_place_of_a_log(next: &[usize], detached: Option<usize>) {
    let what = format!("{next:?}, {detached:?}");
    let sim = Sim::new(3);
    Layout::Single.add_disks(&sim);
    for (i, mib) in [(1, 80), (2, 80), (3, 80), (4, 200)] {
        sim.add_disk(Layout::path(i), mib << 20);
    }
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Single.create(&env).await.unwrap();
        spa.add_vdevs(&log(&[1])).await.unwrap();
        for i in 0..4 {
            make_stable(&env, &spa, &format!("before{i}")).await;
            IN_IT.put(&env, &spa, i..i + 1).await.unwrap();
        }
        change_all(&env, &spa).await;
        let vdev = spa.tree().top_of(guid(&spa, 1)).unwrap().id;
        spa.remove_vdev(guid(&spa, 1)).await.unwrap();
        let added = Txg(spa.uberblock().txg + 1);
        spa.add_vdevs(&log(next)).await.unwrap();
        assert_eq!(spa.tree().top_of(guid(&spa, next[0])).unwrap().id, vdev);
        if let Some(i) = detached {
            spa.detach(guid(&spa, i)).await.unwrap();
        }
        make_stable(&env, &spa, "after").await;
        assert!(entries_before(&spa, added, vdev).await > 0, "{what}: no log is of the one before");
    });
    let sim = sim.power_off(CrashPolicy::LoseAll, 3).boot(4);
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await.unwrap().unwrap();
        for readonly in [true, false] {
            let spa = import(&env, &found, readonly).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            IN_IT.check(&env, &spa, 4, &what).await;
            if !readonly {
                audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            spa.close(None).await.unwrap();
        }
    });
}

#[test]
fn a_log_takes_the_number_of_one_that_was_removed_before_a_power_cut() {
    in_the_place_of_a_log(&[2], None);
}

#[test]
fn a_larger_log_takes_the_number_of_one_that_was_removed_before_a_power_cut() {
    in_the_place_of_a_log(&[4], None);
}

#[test]
fn a_side_of_a_mirror_takes_the_number_of_a_log_that_was_removed_before_a_power_cut() {
    in_the_place_of_a_log(&[2, 3], Some(2));
}

/// Txgs pass while the labels of a new device are written: what is born in them is not on it.
#[test]
fn a_new_disk_lacks_what_was_written_while_it_was_made_ready() {
    for layout in [Layout::Single, Layout::Mirror, Layout::Raidz1] {
        let what = format!("{layout:?}");
        let sim = Sim::new(11);
        layout.add_disks(&sim);
        sim.add_disk(Layout::path(SLOW_DISK), 128 << 20);
        let (devices, env) = Devices::new(&sim);
        sim.block_on(async {
            let spa = layout.create(&env).await.unwrap();
            IN_IT.put(&env, &spa, 0..5).await.unwrap();
            let first = spa.uberblock().txg;
            let writes = async {
                for i in 5..40 {
                    IN_IT.put(&env, &spa, i..i + 1).await.unwrap();
                }
                let made = spa.tree().leaves.iter().any(|l| l.path() == Layout::path(SLOW_DISK));
                assert!(!made && spa.uberblock().txg > first + 20, "{what}: it was ready too soon");
                devices.get(SLOW_DISK).clear();
            };
            let (made, ()) = join(spa.attach(guid(&spa, 0), &leaf(SLOW_DISK), REPLACE), writes).await;
            made.unwrap();
            IN_IT.put(&env, &spa, 40..45).await.unwrap();
            settled(&env, &spa, &what).await;
            // As few others as can be.
            if layout != Layout::Single {
                spa.offline(guid(&spa, 1), false, false).await.unwrap();
            }
            spa.drop_caches();
            IN_IT.check(&env, &spa, 45, &what).await;
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
}

/// While a device is attached another one misses something for the first time: where that is
/// written down is in the tree that comes, too.
#[test]
fn what_a_disk_missed_while_another_was_attached_is_known_after_an_import() {
    let sim = Sim::new(12);
    Layout::Mirror.add_disks(&sim);
    sim.add_disk(Layout::path(SLOW_DISK), 80 << 20);
    let (devices, env) = Devices::new(&sim);
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        IN_IT.put(&env, &spa, 0..5).await.unwrap();
        let dtl = |spa: &Spa| spa.tree().find(guid(spa, 1)).unwrap().config_u64("DTL");
        let misses = async {
            IN_IT.put(&env, &spa, 5..8).await.unwrap();
            assert_eq!(dtl(&spa), None);
            devices.get(1).add(Rule::new(Ops::Writes, Fault::Error(EIO)));
            IN_IT.put(&env, &spa, 8..10).await.unwrap();
            devices.get(1).clear();
            // The txg after it writes it down.
            IN_IT.put(&env, &spa, 10..12).await.unwrap();
            IN_IT.put(&env, &spa, 12..14).await.unwrap();
            let object = dtl(&spa);
            assert!(object.is_some());
            devices.get(SLOW_DISK).clear();
            object
        };
        let (made, object) =
            join(spa.attach(guid(&spa, 0), &leaf(SLOW_DISK), Attach::default()), misses).await;
        made.unwrap();
        assert_eq!(dtl(&spa), object);
        spa.clear(None).await.unwrap();
        settled(&env, &spa, "mirror").await;
        audit(&spa, true, false).await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// The side that stays misses a txg after it was found that it has everything.
#[test]
fn a_side_stays_that_is_needed_when_its_turn_to_leave_comes() {
    let sim = Sim::new(13);
    Layout::Mirror.add_disks(&sim);
    let (devices, env) = Devices::new(&sim);
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        IN_IT.put(&env, &spa, 0..5).await.unwrap();
        // Its writes of the next txg fail at the end of it.
        devices.get(1).add(Rule::new(Ops::Writes, Fault::Delay(SLOW)));
        let written = env.spawn_with_result({
            let (env, spa) = (env.clone(), spa.clone());
            async move { IN_IT.put(&env, &spa, 5..10).await }
        });
        env.sleep(SLOW / 4).await;
        let disk = sim.disk(Layout::path(1)).unwrap();
        let leaves = async {
            env.sleep(SLOW / 4).await;
            disk.set_offline(true);
        };
        let left = env.timeout(Duration::from_secs(60), spa.detach(guid(&spa, 0)));
        let (left, ()) = join(left, leaves).await;
        let refused = left.expect("the pool waits for the only disk that it has left").unwrap_err();
        assert!(matches!(&refused, Error::Pool(why) if **why == Refusal::NoReplicas), "{refused}");
        written.await.unwrap();
        assert!(spa.suspended().is_none());
        spa.drop_caches();
        IN_IT.check(&env, &spa, 10, "one side is away").await;
        devices.get(1).clear();
        disk.set_offline(false);
        spa.clear(None).await.unwrap();
        settled(&env, &spa, "both are there").await;
        spa.detach(guid(&spa, 0)).await.unwrap();
        spa.drop_caches();
        IN_IT.check(&env, &spa, 10, "the other side alone").await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// Also others than a txg's writes find out that a device lacks something: that does not keep a
/// txg from its end.
#[test]
fn a_txg_ends_while_a_disk_is_found_to_lack_ever_more() {
    let sim = Sim::new(14);
    Layout::Mirror.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        IN_IT.put(&env, &spa, 0..5).await.unwrap();
        let (leaf, clock) = (spa.tree().leaves[1].clone(), env.clone());
        env.spawn(async move {
            for n in 0..40_000 {
                leaf.dtl.add(10_000 + 2 * n, 10_001 + 2 * n);
                clock.sleep(Duration::from_micros(50)).await;
            }
        });
        for i in 5..9 {
            IN_IT.put(&env, &spa, i..i + 1).await.unwrap();
        }
        assert!(spa.suspended().is_none());
    });
}

/// What a device is said to have missed in a far future is cut off: there may be more of it than
/// memory.
#[test]
fn nothing_is_missed_of_txgs_that_are_to_come() {
    let sim = Sim::new(15);
    Layout::Mirror.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        IN_IT.put(&env, &spa, 0..5).await.unwrap();
        let leaf = spa.tree().leaves[1].clone();
        leaf.dtl.add(1 << 40, 1 << 50);
        leaf.dtl.add(4, 6);
        IN_IT.put(&env, &spa, 5..6).await.unwrap();
        spa.close(None).await.unwrap();
        let found = find(&env).await.unwrap().unwrap();
        let spa = import(&env, &found, true).await.unwrap();
        let missed = spa.tree().leaves[1].dtl.ranges();
        assert_eq!(missed, [(4, 6)]);
        spa.close(None).await.unwrap();
    });
}

/// Devices that take every request and answer none, from when it is said.
fn silent(sim: &Sim, i: usize) -> (Arc<AtomicBool>, Env) {
    let (silent, inner) = (Arc::new(AtomicBool::new(false)), sim.env());
    let dumb = silent.clone();
    let env = sim.env().wrap_devices(move |path, device| {
        if path != Layout::path(i) || !dumb.load(Ordering::Relaxed) {
            return device;
        }
        let device = FaultyDevice::new(device, &inner);
        device.add(Rule::new(Ops::All, Fault::Hang));
        Arc::new(device)
    });
    (silent, env)
}

const LONG: Duration = Duration::from_secs(300);

/// Who adds a device that stalls is told, and whoever changes the pool next is not kept waiting.
#[test]
fn a_device_that_stalls_while_it_is_attached_is_given_up() {
    let sim = Sim::new(4);
    Layout::Mirror.add_disks(&sim);
    sim.add_disk(Layout::path(2), 80 << 20);
    let (stalls, env) = silent(&sim, 2);
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        stalls.store(true, Ordering::Relaxed);
        let made = env.timeout(LONG, spa.attach(guid(&spa, 0), &leaf(2), Attach::default())).await;
        assert!(made.expect("it is waited for for ever").is_err());
        let left = env.timeout(LONG, spa.offline(guid(&spa, 1), false, false)).await;
        left.expect("the pool cannot be changed").unwrap();
        make_stable(&env, &spa, "after").await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}

/// A hot spare that does not answer is in nobody's way: the pool is imported, and another steps in.
#[test]
fn a_hot_spare_that_never_answers_is_passed_over() {
    let sim = Sim::new(5);
    Layout::Mirror.add_disks(&sim);
    (2..4).for_each(|i| drop(sim.add_disk(Layout::path(i), 80 << 20)));
    let (stalls, env) = silent(&sim, 2);
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        let spares = [2, 3].map(|i| SpareSpec { leaf: leaf(i), shared: None });
        spa.add_spares(&spares).await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
        drop(spa);
        stalls.store(true, Ordering::Relaxed);
        let found = find(&env).await.unwrap().unwrap();
        let spa = env.timeout(LONG, import(&env, &found, false)).await;
        let spa = spa.expect("the import waits for the spare").unwrap();
        spa.offline(guid(&spa, 1), false, true).await.unwrap();
        env.timeout(LONG, spa.call_spares()).await.expect("no spare is called");
        let stands_in = |i: usize| spa.tree().pool_leaves().any(|l| l.path() == Layout::path(i));
        assert!(stands_in(3) && !stands_in(2));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}
