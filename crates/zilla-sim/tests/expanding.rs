//! A RAID-Z gets one more disk, files are written meanwhile, and the power goes at any write of
//! that. What was stable is there, the expansion goes on and comes to its end, every block is
//! accounted for, and then any disk may be taken away.

use std::sync::Arc;
use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::{Attach, Spa};
use zilla_core::vdev::LeafSpec;
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, DiskFaults, Sim, Survivors};

const OLD_FILES: u32 = 24;
/// Power cuts for each layout.
const CUTS: u64 = 40;

/// What lies in the pool: each file is so many bytes longer than the one before.
const IN_IT: Files = Files(20_000);

/// A pool with files, exported, and a disk that is nobody's.
fn before(layout: Layout) -> Survivors {
    let sim = Sim::new(11);
    layout.add_disks(&sim);
    sim.add_disk(Layout::path(layout.disks()), 80 << 20);
    let env = sim.env();
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        for i in 0..OLD_FILES {
            IN_IT.put(&env, &spa, i..i + 1).await.unwrap();
        }
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

async fn over(env: &Env, spa: &Arc<Spa>) {
    while spa.is_expanding() || spa.scan().unwrap().is_scanning() {
        env.sleep(Duration::from_millis(100)).await;
    }
}

/// Expands it, and says how many files are stable.
async fn expand(env: &Env, layout: Layout, stable: &std::cell::Cell<u32>) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = import(env, &found, false).await?;
    let guid = spa.tree().tops[0].vdev.guid;
    let leaf = LeafSpec { path: Layout::path(layout.disks()), disk: true };
    spa.attach(guid, &leaf, Attach::default()).await?;
    for i in OLD_FILES..OLD_FILES + 8 {
        IN_IT.put(env, &spa, i..i + 1).await?;
        stable.set(i + 1);
    }
    over(env, &spa).await;
    spa.sync().await
}

fn tell(layout: Layout) {
    let base = before(layout);
    let sim = base.boot(1);
    let env = sim.env();
    let stable = std::cell::Cell::new(OLD_FILES);
    sim.block_on(expand(&env, layout, &stable)).unwrap();
    let ops = sim.counters().ops;
    drop(sim);
    let (mut none, mut some, mut all) = (0, 0, 0);
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        let what = format!("{layout:?}, power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let stable = std::cell::Cell::new(OLD_FILES);
        let _ = sim.try_block_on(expand(&env, layout, &stable));
        let left = sim.power_off(CrashPolicy::Random, cut);
        let sim = left.boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            IN_IT.check(&env, &spa, stable.get(), &what).await;
            match spa.expansion() {
                None => none += 1,
                Some(_) if spa.is_expanding() => some += 1,
                Some(_) => all += 1,
            }
            over(&env, &spa).await;
            IN_IT.check(&env, &spa, stable.get(), &what).await;
            env.sleep(Duration::from_secs(20)).await;
            if spa.expansion().is_some() {
                assert!(spa.tree().tops[0].grows_to().is_none(), "{what}: it has not grown");
            }
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
        let left = sim.power_off(CrashPolicy::KeepAll, 1);
        // Other disks than those of the last time.
        let mut left = left;
        let gone = cut as usize % layout.disks();
        left.disks.remove(&Layout::path(gone));
        let sim = left.boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa =
                import(&env, &found, true).await.unwrap_or_else(|e| panic!("{what}, without {gone}: {e}"));
            IN_IT.check(&env, &spa, stable.get(), &format!("{what}, without {gone}")).await;
            spa.close(None).await.unwrap();
        });
    }
    assert!(some > 4 && all > 0, "cuts must come at any time: {none}, {some}, {all}");
}

#[test]
fn a_power_cut_while_a_raidz1_is_expanded_loses_nothing() {
    tell(Layout::Raidz1);
}

#[test]
fn a_power_cut_while_a_raidz2_is_expanded_loses_nothing() {
    tell(Layout::Raidz2);
}

/// A disk stops taking writes while the first rows are written to their new places: some of them
/// are there, over what was at the old ones, and some are not.
#[test]
fn first_rows_that_are_half_written_are_read_from_the_scratch_area() {
    let layout = Layout::Raidz1;
    let sim = before(layout).boot(1);
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await.unwrap().unwrap();
        let spa = import(&env, &found, false).await.unwrap();
        let leaf = LeafSpec { path: Layout::path(layout.disks()), disk: true };
        spa.attach(spa.tree().tops[0].vdev.guid, &leaf, Attach::default()).await.unwrap();
        while spa.uberblock().reflow_scratch_state() == 0 {
            env.sleep(Duration::from_micros(100)).await;
        }
        let disk = sim.disk(Layout::path(0)).unwrap();
        disk.set_faults(DiskFaults { write: 1, ..DiskFaults::default() });
        env.sleep(Duration::from_secs(2)).await;
        assert!(spa.is_expanding());
        spa.drop_caches();
        IN_IT.check(&env, &spa, OLD_FILES, "with half of the first rows moved").await;
    });
}
