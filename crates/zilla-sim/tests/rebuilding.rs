//! A disk is attached to a mirror, or takes the place of a dRAID's, by a sequential rebuild; files
//! are written and synced meanwhile, and the power goes at any write of that. What was stable is
//! there, the rebuild goes on and comes to its end, every block is accounted for, and then any disk
//! may be taken away.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::{Attach, RebuildState, Spa};
use zilla_core::tunables;
use zilla_core::vdev::{LeafSpec, VdevKind};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const OLD_FILES: u32 = 24;
/// Power cuts for each layout.
const CUTS: u64 = 40;

/// What lies in the pool: each file is so many bytes longer than the one before.
const IN_IT: Files = Files(20_000);

/// A pool with files, exported, and a disk that is nobody's.
fn before(layout: Layout) -> Survivors {
    let sim = Sim::new(17);
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

fn is_busy(spa: &Spa) -> bool {
    let tree = spa.tree();
    let replacing = tree.root.walk().iter().any(|v| v.kind == VdevKind::Replacing);
    // One that was not attached yet when the power went stays away.
    spa.is_rebuilding() || spa.scan().unwrap().is_scanning() || replacing
}

async fn over(env: &Env, spa: &Arc<Spa>) {
    while is_busy(spa) {
        env.sleep(Duration::from_millis(100)).await;
    }
}

/// Attaches the new disk, and says how many files are stable.
async fn rebuild(env: &Env, layout: Layout, stable: &std::cell::Cell<u32>) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = import(env, &found, false).await?;
    let path = Layout::path(1);
    let of = |path: &Path| {
        let walk = spa.tree().root.walk();
        walk.iter().find(|v| v.leaf.as_ref().is_some_and(|l| Path::new(&l.path()) == path)).unwrap().guid
    };
    let leaf = LeafSpec { path: Layout::path(layout.disks()), disk: true };
    let replace = layout != Layout::Mirror;
    // It begins, and then waits until half of the files are written: cuts come in its midst, too.
    spa.hold_rebuilds(true);
    spa.attach(of(&path), &leaf, Attach { replace, sequential: true, ..Attach::default() }).await?;
    for i in OLD_FILES..OLD_FILES + 8 {
        IN_IT.put(env, &spa, i..i + 1).await?;
        stable.set(i + 1);
        spa.hold_rebuilds(i < OLD_FILES + 4);
    }
    over(env, &spa).await;
    spa.sync().await
}

fn tell(layout: Layout) {
    // Little at a time, so that there are many writes to cut between.
    tunables::REBUILD_MAX_SEGMENT.set(64 << 10);
    tunables::REBUILD_VDEV_LIMIT.set(64 << 10);
    let base = before(layout);
    let sim = base.boot(1);
    let env = sim.env();
    let stable = std::cell::Cell::new(OLD_FILES);
    sim.block_on(rebuild(&env, layout, &stable)).unwrap();
    let ops = sim.counters().ops;
    drop(sim);
    let (mut none, mut some, mut all) = (0, 0, 0);
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        let what = format!("{layout:?}, power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let stable = std::cell::Cell::new(OLD_FILES);
        let _ = sim.try_block_on(rebuild(&env, layout, &stable));
        let left = sim.power_off(CrashPolicy::Random, cut);
        let sim = left.boot(cut);
        let env = sim.env();
        let disks = sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            IN_IT.check(&env, &spa, stable.get(), &what).await;
            match spa.rebuild_status(&spa.tree().tops[0]).and_then(|s| s.state()) {
                None => none += 1,
                Some(RebuildState::Active) => some += 1,
                Some(_) => all += 1,
            }
            over(&env, &spa).await;
            IN_IT.check(&env, &spa, stable.get(), &what).await;
            let scan = spa.scan().unwrap().status();
            assert_eq!(scan.errors, 0, "{what}: {scan:?}");
            let tree = spa.tree();
            for leaf in tree.pool_leaves() {
                let ranges = leaf.dtl.ranges();
                assert!(ranges.is_empty(), "{what}: {} lacks {ranges:?}", leaf.path());
            }
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let disks: Vec<String> = tree.pool_leaves().map(|l| l.path()).collect();
            spa.close(Some(PoolState::Exported)).await.unwrap();
            disks
        });
        let mut left = sim.power_off(CrashPolicy::KeepAll, 1);
        // Of a mirror only one is left, each in its turn; of a dRAID one goes.
        let pick = cut as usize % disks.len();
        let gone = |i: usize| if layout == Layout::Mirror { i != pick } else { i == pick };
        for (_, path) in disks.iter().enumerate().filter(|(i, _)| gone(*i)) {
            left.disks.remove(Path::new(path));
        }
        let sim = left.boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, true).await.unwrap_or_else(|e| panic!("{what}, {pick}: {e}"));
            IN_IT.check(&env, &spa, stable.get(), &format!("{what}, {pick}")).await;
            spa.close(None).await.unwrap();
        });
    }
    assert!(some > 2 && all > 0, "cuts must come at any time: {none}, {some}, {all}");
}

#[test]
fn a_power_cut_while_a_mirror_is_rebuilt_loses_nothing() {
    tell(Layout::Mirror);
}

#[test]
fn a_power_cut_while_a_draid_is_rebuilt_loses_nothing() {
    tell(Layout::Draid1);
}
