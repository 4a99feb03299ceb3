//! Free space is overwritten and discarded while files come and go and blocks are freed; the power
//! goes at any write of that. Nothing that is stable is touched, neither what a checkpoint has, and
//! an import goes on with it.

use std::sync::Arc;
use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::vdev::{UpkeepKind, UpkeepState};
use zilla_core::zpl::{Cred, NewFile, Zfs};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{Layout, find, go_back, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const KEPT: u32 = 20;
const FILES: u32 = 50;
/// Power cuts for each layout and kind.
const CUTS: u64 = 14;

fn contents(i: u32) -> Vec<u8> {
    (0..4100 * i + 1).map(|x| (x * 7 + i) as u8 ^ (x >> 8) as u8).collect()
}

async fn put(spa: &Arc<Spa>, zfs: &Arc<Zfs>, range: std::ops::Range<u32>) -> Result<()> {
    for i in range {
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), format!("f{i}").as_bytes(), new).await?;
        zfs.write(h.id(), 0, &contents(i).into(), false).await?;
    }
    spa.sync().await
}

async fn check(env: &Env, spa: &Arc<Spa>, range: std::ops::Range<u32>, what: &str) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    for i in range {
        let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
        let read = zfs.read(h.id(), 0, a.size as usize).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: f{i}: {e}")).concat();
        assert!(read == contents(i), "{what}: f{i}");
    }
}

/// A pool with a checkpoint that has all files.
fn before(layout: Layout) -> Survivors {
    let sim = Sim::new(7);
    layout.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        put(&spa, &zfs, 0..FILES).await.unwrap();
        spa.take_checkpoint().await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

/// Goes through the free space while files are deleted and made.
async fn walk(env: &Env, kind: UpkeepKind, discard: bool) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = import(env, &found, false).await?;
    if discard {
        spa.discard_checkpoint().await?;
    }
    spa.set_autotrim(kind == UpkeepKind::Trim);
    let leaves: Vec<_> = spa.tree().pool_leaves().cloned().collect();
    for l in &leaves {
        spa.start_upkeep(l.guid(), kind, None).await?;
    }
    let zfs = open_fs(env, &spa, "tank").await?;
    for i in KEPT..FILES {
        zfs.unlink(zfs.root(), format!("f{i}").as_bytes()).await?;
        put(&spa, &zfs, i + FILES..i + FILES + 1).await?;
    }
    while spa.upkeep_left(kind, &[]).is_some() {
        env.sleep(Duration::from_millis(200)).await;
        spa.sync().await?;
    }
    spa.close(None).await
}

fn tell(layout: Layout, kind: UpkeepKind, discard: bool) {
    let base = before(layout);
    let sim = base.boot(1);
    let env = sim.env();
    sim.block_on(walk(&env, kind, discard)).unwrap();
    let ops = sim.counters().ops;
    drop(sim);
    let (mut under_way, mut done) = (0, 0);
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        let what = format!("{layout:?}, {kind:?}, power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let _ = sim.try_block_on(walk(&env, kind, discard));
        let sim = sim.power_off(CrashPolicy::Random, cut).boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&env, &spa, 0..KEPT, &what).await;
            match spa.tree().pool_leaves().next().unwrap().upkeep(kind).stat().state {
                UpkeepState::Active => under_way += 1,
                UpkeepState::Complete => done += 1,
                _ => {}
            }
            // It goes on by itself.
            while spa.upkeep_left(kind, &[]).is_some() {
                env.sleep(Duration::from_millis(200)).await;
            }
            spa.drop_caches();
            check(&env, &spa, 0..KEPT, &what).await;
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let kept = spa.checkpoint_stat().is_some_and(|c| c.taken.is_some());
            spa.close(Some(PoolState::Exported)).await.unwrap();
            assert!(kept || discard, "{what}: the checkpoint is gone");
            if kept {
                let found = find(&env).await.unwrap().unwrap();
                let spa = go_back(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                check(&env, &spa, 0..FILES, &format!("{what}, gone back")).await;
                audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}, gone back: {e}"));
                spa.close(None).await.unwrap();
            }
        });
    }
    assert!(under_way > 0 || done > 0, "{under_way} under way, {done} done");
}

#[test]
fn a_power_cut_while_free_space_is_initialized_loses_nothing() {
    tell(Layout::Mirror, UpkeepKind::Initialize, false);
    tell(Layout::Raidz1, UpkeepKind::Initialize, true);
}

#[test]
fn a_power_cut_while_free_space_is_trimmed_loses_nothing() {
    tell(Layout::Single, UpkeepKind::Trim, false);
    tell(Layout::Raidz1, UpkeepKind::Trim, false);
    tell(Layout::Mirror, UpkeepKind::Trim, true);
}
