//! All devices of a vdev go away together and come back: whoever finds it out first, a log block, a
//! read or a txg that looks for a place or must read what was there, the pool is suspended, and one
//! `clear` has it go on with all that was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_core::spa::Spa;
use zilla_core::zpl::{Cred, NewFile, Zfs};
use zilla_env::Env;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_ondisk::enums::PoolState;
use zilla_sim::Sim;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::run::{open_fs, task};
use zilla_sim::pool::verify::audit;

const SEEDS: u64 = 24;
/// Pieces of a file, one after the other written and made stable, each of so many bytes.
const PIECES: u64 = 400;
const PIECE: usize = 9000;
const NAMES: [&str; 4] = ["w", "x", "y", "z"];

fn piece(i: u64) -> Vec<u8> {
    (0..PIECE).map(|b| (b as u64 * 7 + i * 13) as u8).collect()
}

/// Writes a file piece by piece, and counts those that are stable.
fn writer(env: &Env, spa: &Arc<Spa>, name: &'static str) -> Arc<AtomicU64> {
    let (env, spa, stable) = (env.clone(), spa.clone(), Arc::new(AtomicU64::new(0)));
    let count = stable.clone();
    env.clone().spawn(async move {
        let Ok(zfs) = open_fs(&env, &spa, "tank").await else { return };
        let new = NewFile::new(0o100644, Cred::default());
        let Ok((h, _)) = zfs.create(zfs.root(), name.as_bytes(), new).await else { return };
        for i in 0..PIECES {
            if zfs.write(h.id(), i * PIECE as u64, &piece(i).into(), false).await.is_err() {
                return;
            }
            // It waits as long as the devices are away.
            zfs.fsync(h.id()).await.unwrap_or_else(|e| panic!("fsync of {name}: {e}"));
            count.store(i + 1, Ordering::SeqCst);
            env.sleep(Duration::from_millis(150)).await;
        }
    });
    stable
}

/// Reads what is stable of a file.
async fn check(env: &Env, spa: &Arc<Spa>, name: &str, stable: u64, what: &str) {
    let zfs = open_fs(env, spa, "tank").await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = zfs.lookup(zfs.root(), name.as_bytes()).await;
    let (h, _) = found.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
    for i in 0..stable {
        let read = zfs.read(h.id(), i * PIECE as u64, PIECE).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: {name}: {e}")).concat();
        assert!(read == piece(i), "{what}: piece {i} of {name}");
    }
}

#[test]
fn a_pool_whose_devices_were_away_goes_on_with_everything() {
    let mut in_the_midst = 0;
    for seed in 0..SEEDS {
        let what = format!("seed {seed}");
        let layout = if seed % 2 == 0 { Layout::Single } else { Layout::Mirror };
        let sim = Sim::new(seed);
        layout.add_disks(&sim);
        let env = sim.env();
        sim.block_on(async {
            let spa = layout.create(&env).await.unwrap();
            let stable = NAMES.map(|name| writer(&env, &spa, name));
            env.sleep(Duration::from_millis(3000 + seed * 411)).await;
            let disks = || (0..).map_while(|i| sim.disk(Layout::path(i)));
            disks().for_each(|d| d.set_offline(true));
            if seed % 3 == 0 {
                // A reader is the first to find out.
                spa.drop_caches();
                let zfs = open_fs(&env, &spa, "tank").await;
                if let Ok(zfs) = zfs
                    && let Ok((h, _)) = zfs.lookup(zfs.root(), NAMES[0].as_bytes()).await
                {
                    let _ = zfs.read(h.id(), 0, PIECE).await;
                }
            }
            env.sleep(Duration::from_millis(2000 + seed * 777)).await;
            let why = spa.suspended().map(|e| e.to_string());
            in_the_midst += usize::from(why.is_some_and(|w| w == "all devices of a vdev are away"));
            if seed % 4 < 2 {
                // Their power was away too.
                disks().for_each(|d| d.lose_cache());
            }
            disks().for_each(|d| d.set_offline(false));
            if spa.suspended().is_none() {
                env.sleep(Duration::from_secs(10)).await;
            }
            spa.clear(None).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            env.sleep(Duration::from_secs(20)).await;
            assert!(spa.suspended().is_none(), "{what}: {:?}", spa.suspended());
            spa.sync().await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let stable = stable.map(|s| s.load(Ordering::SeqCst));
            assert!(stable.iter().all(|s| *s > 20), "{what}: {stable:?}");
            spa.drop_caches();
            for (name, stable) in NAMES.into_iter().zip(stable) {
                check(&env, &spa, name, stable, &what).await;
            }
            spa.close(Some(PoolState::Exported)).await.unwrap();
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            for (name, stable) in NAMES.into_iter().zip(stable) {
                check(&env, &spa, name, stable, &what).await;
            }
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    // A txg waited where it looked for a place.
    assert!(in_the_midst > 0);
}

/// The files that are removed, and those that are changed, while the devices go.
const GOING: [&str; 4] = ["g0", "g1", "g2", "g3"];
const STAYING: [&str; 4] = ["s0", "s1", "s2", "s3"];
/// What a sync has to read is spread over so many pieces of each file.
const BLOCKS: u64 = 60;

async fn write_all(zfs: &Arc<Zfs>, name: &str, pieces: impl Iterator<Item = u64>) {
    let h = match zfs.lookup(zfs.root(), name.as_bytes()).await {
        Ok((h, _)) => h,
        Err(_) => {
            let new = NewFile::new(0o100644, Cred::default());
            zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap().0
        }
    };
    for i in pieces {
        zfs.write(h.id(), i * PIECE as u64, &piece(i).into(), false).await.unwrap();
    }
}

/// A world in which each request of a disk takes a while, also one that fails: others find out that
/// a disk is away while one looks still.
fn slow(sim: &Sim) -> Env {
    let inner = sim.env();
    sim.env().wrap_devices(move |_, device| {
        let device = FaultyDevice::new(device, &inner);
        device.add(Rule::new(Ops::All, Fault::Delay(Duration::from_millis(3))));
        Arc::new(device)
    })
}

/// A pool of files with snapshots, of which nothing is in memory.
async fn cold(layout: Layout, env: &Env) -> Arc<Spa> {
    let spa = layout.create(env).await.unwrap();
    let zfs = open_fs(env, &spa, "tank").await.unwrap();
    for (n, name) in ["tank@a", "tank@b", "tank@c"].into_iter().enumerate() {
        for file in GOING.iter().chain(&STAYING) {
            write_all(&zfs, file, (n as u64..BLOCKS).step_by(n + 1)).await;
        }
        task(&spa, move |dsl, tx| {
            Box::pin(async move { dsl.snapshot(&tx, &[name.to_owned()]).await.map(drop) })
        })
        .await
        .unwrap();
    }
    drop(zfs);
    spa.close(Some(PoolState::Exported)).await.unwrap();
    let found = find(env).await.unwrap().unwrap();
    import(env, &found, false).await.unwrap()
}

#[test]
fn a_sync_waits_for_devices_that_have_what_it_must_read() {
    let mut waited = 0;
    for seed in 0..SEEDS {
        let what = format!("seed {seed}");
        let layout = if seed % 2 == 0 { Layout::Single } else { Layout::Mirror };
        let sim = Sim::new(seed);
        layout.add_disks(&sim);
        let env = if seed % 3 == 0 { sim.env() } else { slow(&sim) };
        sim.block_on(async {
            let spa = cold(layout, &env).await;
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            for file in GOING {
                zfs.unlink(zfs.root(), file.as_bytes()).await.unwrap();
            }
            for file in STAYING {
                // In the midst of records that are not in memory.
                write_all(&zfs, file, (BLOCKS..BLOCKS + 3).chain([5, 33])).await;
            }
            let gone = env.spawn_with_result({
                let spa = spa.clone();
                async move {
                    task(&spa, |dsl, tx| {
                        Box::pin(
                            async move { dsl.destroy_snapshots(&tx, &["tank@b".to_owned()], false).await },
                        )
                    })
                    .await
                }
            });
            env.sleep(Duration::from_micros(seed * 377)).await;
            spa.drop_caches();
            let disks = || (0..).map_while(|i| sim.disk(Layout::path(i)));
            disks().for_each(|d| d.set_offline(true));
            env.sleep(Duration::from_secs(12)).await;
            let why = spa.suspended().map(|e| e.to_string());
            waited += usize::from(why.is_some_and(|w| w == "all devices of a vdev are away"));
            if seed % 4 < 2 {
                disks().for_each(|d| d.lose_cache());
            }
            disks().for_each(|d| d.set_offline(false));
            spa.clear(None).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            gone.await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.sync().await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.sync().await.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(spa.suspended().is_none(), "{what}: {:?}", spa.suspended());
            drop(zfs);
            for again in [false, true] {
                spa.drop_caches();
                for file in STAYING {
                    check(&env, &spa, file, BLOCKS + 3, &what).await;
                }
                // What is free is known: no metaslab was given up, no block was forgotten.
                if again {
                    audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                }
            }
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    assert!(waited > SEEDS as usize / 2, "{waited}");
}
