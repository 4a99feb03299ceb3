//! Disks become larger and the pool grows; the power goes at any write of that. What was stable is
//! there, the pool has one size or the other, every block is accounted for, and it grows on.

use std::sync::Arc;
use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const OLD_FILES: u32 = 12;
/// More than the pool held before, so that the new space is used.
const LARGE: usize = 60 << 20;
const LARGER: u64 = 320 << 20;
/// Power cuts for each layout.
const CUTS: u64 = 24;

fn contents(i: u32) -> Vec<u8> {
    (0..2000 * i + 1).map(|x| (x * 7 + i) as u8 ^ (x >> 8) as u8).collect()
}

async fn put(env: &Env, spa: &Arc<Spa>, name: &str, data: Vec<u8>) -> Result<()> {
    let zfs = open_fs(env, spa, "tank").await?;
    let (h, _) = zfs.create(zfs.root(), name.as_bytes(), NewFile::new(0o100644, Cred::default())).await?;
    for (i, piece) in data.chunks(1 << 20).enumerate() {
        zfs.write(h.id(), (i as u64) << 20, &bytes::Bytes::copy_from_slice(piece), false).await?;
    }
    spa.sync().await
}

async fn check(env: &Env, spa: &Arc<Spa>, what: &str) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    for i in 0..OLD_FILES {
        let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
        let read = zfs.read(h.id(), 0, a.size as usize).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: f{i}: {e}")).concat();
        assert!(read == contents(i), "{what}: f{i}");
    }
}

fn size(spa: &Spa) -> u64 {
    spa.tree().tops[0].vdev.asize()
}

/// The check is of a pool at rest: a cut may have left a disk that is resilvered at the import.
async fn settle(env: &Env, spa: &Arc<Spa>) {
    while spa.scan().unwrap().is_scanning() || spa.tree().pool_leaves().any(|l| !l.dtl.is_empty()) {
        env.sleep(Duration::from_secs(1)).await;
    }
    env.sleep(Duration::from_secs(20)).await;
}

/// A pool with files, exported; its disks are larger since.
fn before(layout: Layout) -> Survivors {
    let sim = Sim::new(7);
    layout.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        for i in 0..OLD_FILES {
            put(&env, &spa, &format!("f{i}"), contents(i)).await.unwrap();
        }
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    let mut left = sim.power_off(CrashPolicy::KeepAll, 1);
    for i in 0..layout.disks() {
        left.disks.get_mut(&Layout::path(i)).unwrap().0 = LARGER;
    }
    left
}

async fn grow(env: &Env) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = import(env, &found, false).await?;
    let leaf = spa.tree().tops[0].leaves().next().unwrap().guid();
    spa.online(leaf, true).await?;
    put(env, &spa, "during", vec![5; 3 << 20]).await
}

fn tell(layout: Layout) {
    let base = before(layout);
    let sim = base.boot(1);
    let env = sim.env();
    sim.block_on(grow(&env)).unwrap();
    let ops = sim.counters().ops;
    drop(sim);
    let (mut old, mut new) = (0, 0);
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        let what = format!("{layout:?}, power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let _ = sim.try_block_on(grow(&env));
        let left = sim.power_off(CrashPolicy::Random, cut);
        let sim = left.boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&env, &spa, &what).await;
            settle(&env, &spa).await;
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let tops = spa.tree();
            if tops.tops[0].grows_to().is_some() {
                old += 1
            } else {
                new += 1
            }
            let leaf = tops.tops[0].leaves().next().unwrap().guid();
            spa.online(leaf, true).await.unwrap();
            assert!(size(&spa) > 200 << 20, "{what}: {}", size(&spa));
            put(&env, &spa, "large", vec![9; LARGE]).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&env, &spa, &what).await;
            settle(&env, &spa).await;
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}, later: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    assert!(old > 0 && new > 0, "cuts must come before and after: {old} and {new}");
}

#[test]
fn a_power_cut_while_a_disk_grows_loses_nothing() {
    tell(Layout::Single);
}

#[test]
fn a_power_cut_while_a_mirror_grows_loses_nothing() {
    tell(Layout::Mirror);
}

#[test]
fn a_power_cut_while_a_raidz_grows_loses_nothing() {
    tell(Layout::Raidz1);
}
