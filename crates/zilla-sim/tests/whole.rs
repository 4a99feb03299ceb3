//! What a side of a mirror has when it is said to have everything: also what waits in an intent
//! log, and what another history had overwritten; and no block is called damaged that only could
//! not be reached.

use std::sync::Arc;
use std::time::Duration;
use zilla_core::spa::{Attach, Spa};
use zilla_core::vdev::{LeafSpec, VdevState};
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim};

const LEN: usize = 300_000;

fn data(byte: u8) -> Vec<u8> {
    (0..LEN).map(|i| (i / 64) as u8 ^ byte).collect()
}

async fn write(env: &Env, spa: &Arc<Spa>, name: &str, byte: u8) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    let h = match zfs.lookup(zfs.root(), name.as_bytes()).await {
        Ok((h, _)) => h,
        Err(_) => {
            let new = NewFile::new(0o100644, Cred::default());
            zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap().0
        }
    };
    zfs.write(h.id(), 0, &data(byte).into(), false).await.unwrap();
    zfs.fsync(h.id()).await.unwrap();
}

async fn read(env: &Env, spa: &Arc<Spa>, name: &str, byte: u8, what: &str) {
    spa.drop_caches();
    let zfs = open_fs(env, spa, "tank").await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let (h, _) =
        zfs.lookup(zfs.root(), name.as_bytes()).await.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
    let found = zfs.read(h.id(), 0, LEN).await.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
    assert!(found.concat() == data(byte), "{what}: {name}");
}

async fn open(env: &Env) -> Arc<Spa> {
    let found = find(env).await.unwrap().expect("a pool");
    import(env, &found, false).await.unwrap()
}

/// Overwrites a file again and again, so that what was freed is used again; the last time with
/// `byte`.
async fn churn(env: &Env, spa: &Arc<Spa>, name: &str, times: u8, byte: u8) {
    for i in 1..=times {
        write(env, spa, name, byte.wrapping_add(times - i)).await;
        spa.sync().await.unwrap();
    }
}

/// One side is used without the other, then the other without the one. Whichever is the pool from
/// then on, the other is given everything, also what is older than their parting: its space has
/// been used by the history that is no more.
#[test]
fn sides_that_were_used_apart_are_not_taken_for_the_same() {
    for both_at_the_import in [false, true] {
        let what = format!("both at the import: {both_at_the_import}");
        let sim = Sim::new(11);
        Layout::Mirror.add_disks(&sim);
        let env = sim.env();
        let disk = |i| sim.disk(Layout::path(i)).unwrap();
        let leaf = |spa: &Spa, i: usize| spa.tree().leaves[i].clone();
        sim.block_on(async {
            let spa = Layout::Mirror.create(&env).await.unwrap();
            write(&env, &spa, "common", 1).await;
            write(&env, &spa, "removed", 2).await;
            spa.sync().await.unwrap();
            disk(0).set_offline(true);
            env.sleep(Duration::from_secs(10)).await;
            // What side 0 has of it is as it was.
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            zfs.unlink(zfs.root(), b"removed").await.unwrap();
            drop(zfs);
            churn(&env, &spa, "newer", 30, 3).await;
            let newest = spa.uberblock().txg;
            spa.close(None).await.unwrap();

            disk(1).set_offline(true);
            disk(0).set_offline(false);
            let spa = open(&env).await;
            read(&env, &spa, "removed", 2, &what).await;
            churn(&env, &spa, "older", 4, 4).await;
            assert!(spa.uberblock().txg < newest, "{what}");
            disk(1).set_offline(false);
            if both_at_the_import {
                spa.close(None).await.unwrap();
                let spa = open(&env).await;
                // The newer history goes on. Side 0 has used what was free in it.
                audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                disk(1).set_offline(true);
                env.sleep(Duration::from_secs(10)).await;
                for (name, byte) in [("common", 1), ("newer", 3)] {
                    read(&env, &spa, name, byte, &what).await;
                }
                spa.close(None).await.unwrap();
                return;
            }
            // It may be what somebody wants to keep.
            let guid = leaf(&spa, 1).guid();
            spa.online(guid, false).await.ok();
            assert_eq!(leaf(&spa, 1).state().0, VdevState::CantOpen, "{what}");
            while spa.uberblock().txg <= newest + 3 {
                churn(&env, &spa, "older", 1, 4).await;
            }
            spa.online(guid, false).await.unwrap();
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(leaf(&spa, 1).state().0, VdevState::Healthy, "{what}");
            disk(0).set_offline(true);
            env.sleep(Duration::from_secs(10)).await;
            for (name, byte) in [("common", 1), ("removed", 2), ("older", 4)] {
                read(&env, &spa, name, byte, &what).await;
            }
            spa.close(None).await.unwrap();
        });
    }
}

/// A log is claimed by an import and waits until its file system is opened. The disk that has it
/// leaves before that.
#[test]
fn a_log_that_waits_to_be_replayed_is_given_to_a_new_disk() {
    for seed in 0..4 {
        let sim = Sim::new(seed);
        Layout::Single.add_disks(&sim);
        sim.add_disk(Layout::path(1), 128 << 20);
        let env = sim.env();
        sim.block_on(async {
            let spa = Layout::Single.create(&env).await.unwrap();
            write(&env, &spa, "before", 1).await;
            spa.sync().await.unwrap();
            // In the log alone.
            write(&env, &spa, "logged", 2).await;
        });
        let left = sim.power_off(CrashPolicy::LoseAll, seed);
        let sim = left.boot(seed + 100);
        let env = sim.env();
        sim.block_on(async {
            let spa = open(&env).await;
            let old = spa.tree().leaves[0].guid();
            let new = LeafSpec { path: Layout::path(1), disk: true };
            spa.attach(old, &new, Attach::default()).await.unwrap();
            let begun = env.now();
            while spa.scan().unwrap().is_scanning() || spa.tree().wants_resilver() {
                assert!(env.now() - begun < Duration::from_secs(600), "the resilver does not end");
                env.sleep(Duration::from_millis(200)).await;
            }
            spa.detach(old).await.unwrap();
            let what = format!("seed {seed}");
            read(&env, &spa, "before", 1, &what).await;
            read(&env, &spa, "logged", 2, &what).await;
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
}

/// All devices go away in the midst of a scrub. What it could not reach meanwhile is read later,
/// and what is damaged is found.
#[test]
fn a_scrub_waits_for_devices_that_are_away() {
    for seed in 0..8u64 {
        let what = format!("seed {seed}");
        let sim = Sim::new(seed);
        Layout::Mirror.add_disks(&sim);
        let inner = sim.env();
        let env = sim.env().wrap_devices(move |_, device| {
            let device = FaultyDevice::new(device, &inner);
            device.add(Rule::new(Ops::All, Fault::Delay(Duration::from_millis(3))));
            Arc::new(device)
        });
        sim.block_on(async {
            let spa = Layout::Mirror.create(&env).await.unwrap();
            for i in 0..12 {
                write(&env, &spa, &format!("f{i}"), i).await;
            }
            spa.sync().await.unwrap();
            spa.drop_caches();
            spa.scan().unwrap().start().await.unwrap();
            env.sleep(Duration::from_millis(20 + seed * 17)).await;
            let disks = || (0..2).filter_map(|i| sim.disk(Layout::path(i)));
            disks().for_each(|d| d.set_offline(true));
            env.sleep(Duration::from_secs(12)).await;
            disks().for_each(|d| d.set_offline(false));
            spa.clear(None).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let begun = env.now();
            while spa.scan().unwrap().is_scanning() {
                assert!(env.now() - begun < Duration::from_secs(600), "{what}: the scrub does not end");
                env.sleep(Duration::from_millis(200)).await;
            }
            let status = spa.scan().unwrap().status();
            assert_eq!(status.errors, 0, "{what}");
            assert_eq!(spa.errors().unwrap().count().await.unwrap(), 0, "{what}");
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
}
