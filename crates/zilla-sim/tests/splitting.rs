//! A pool of mirrors is split while files come; the power goes at any write of that. The old pool
//! is whole, alone or beside a new one that has all that was stable when the split began; no disk
//! belongs to neither.

use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::{OpenOpts, Spa, Split, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind, VdevState};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const FILES: u32 = 20;
/// A file that is written while a disk is away.
const LATER: u32 = 30;
const SIZE: u64 = 80 << 20;

/// What lies in the pool: each file is so many bytes longer than the one before.
const IN_IT: Files = Files(1100);

/// Two mirrors and a log, with files, exported.
fn before() -> Survivors {
    let sim = Sim::new(7);
    Layout::Mirror.add_disks(&sim);
    (2..5).for_each(|i| drop(sim.add_disk(Layout::path(i), SIZE)));
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        let top = |kind, disks: std::ops::Range<usize>, is_log| {
            let leaves = disks.map(|i| LeafSpec { path: Layout::path(i), disk: true }).collect();
            TopSpec { kind, leaves, is_log, bias: None, ashift: Some(12) }
        };
        let tops = vec![top(VdevKind::Disk, 4..5, true), top(VdevKind::Mirror, 2..4, false)];
        spa.add_vdevs(&PoolSpec { tops, ..PoolSpec::default() }).await.unwrap();
        IN_IT.put(&env, &spa, 0..FILES).await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

fn opts(name: &str) -> OpenOpts {
    OpenOpts {
        name: Some(name.into()),
        force: true,
        dbuf_cache: 2 << 20,
        arc_max: 16 << 20,
        ..OpenOpts::default()
    }
}

async fn split(env: &Env) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = import(env, &found, false).await?;
    let tree = spa.tree();
    let sides = tree.tops_for(false).map(|t| t.vdev.children[1].guid).collect();
    let half = spa.split(Split { sides, opts: opts("half") }).await?;
    IN_IT.put(env, &spa, FILES..FILES + 3).await?;
    half.close(Some(PoolState::Exported)).await?;
    spa.close(Some(PoolState::Exported)).await
}

/// What is left at a power cut at `cut` within a split.
fn cut_at(base: &Survivors, cut: u64, policy: CrashPolicy) -> Survivors {
    let sim = base.boot(1);
    let env = sim.env();
    sim.cut_power_at(cut);
    let _ = sim.try_block_on(split(&env));
    sim.power_off(policy, cut)
}

/// How many writes and flushes a split takes.
fn ops(base: &Survivors) -> u64 {
    let sim = base.boot(1);
    let env = sim.env();
    sim.block_on(split(&env)).unwrap();
    sim.counters().ops
}

/// With all disks there: the old pool is whole, alone or beside a new one. Whether there is one.
async fn settled(env: &Env, what: &str) -> bool {
    let found = discover(env, &["/disks".into()]).await.unwrap();
    let names: Vec<_> = found.iter().map(|f| f.name.as_str()).collect();
    let old = found.iter().find(|f| f.name == "tank").unwrap_or_else(|| panic!("{what}: {names:?}"));
    let half = found.iter().find(|f| f.name == "half");
    let spa = Spa::open(env, old, opts("tank")).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    for _ in 0..600 {
        if !spa.scan().unwrap().is_scanning() && spa.tree().root.state().0 == VdevState::Healthy {
            break;
        }
        env.sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(spa.tree().root.state().0, VdevState::Healthy, "{what}");
    IN_IT.check(env, &spa, FILES, what).await;
    let mirrors = spa.tree().tops.iter().filter(|t| t.vdev.kind == VdevKind::Mirror).count();
    let own = spa.tree().pool_leaves().count();
    match half {
        None => assert_eq!((mirrors, own), (2, 5), "{what}"),
        Some(found) => {
            assert_eq!((mirrors, own), (0, 3), "{what}");
            let half = Spa::open(env, found, opts("half")).await;
            let half = half.unwrap_or_else(|e| panic!("{what}: half: {e}"));
            assert_eq!(half.tree().root.state().0, VdevState::Healthy, "{what}");
            IN_IT.check(env, &half, FILES, what).await;
            audit(&half, true, false).await.unwrap_or_else(|e| panic!("{what}: half: {e}"));
            half.close(Some(PoolState::Exported)).await.unwrap();
        }
    }
    env.sleep(Duration::from_secs(2)).await;
    audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    spa.close(Some(PoolState::Exported)).await.unwrap();
    half.is_some()
}

#[test]
fn a_power_cut_during_a_split_leaves_the_old_pool_whole_and_no_half_pool() {
    let base = before();
    let ops = ops(&base);
    let (mut not_yet, mut done) = (0, 0);
    for (cut, policy) in (1..=ops).flat_map(|cut| [(cut, CrashPolicy::Random), (cut, CrashPolicy::LoseAll)]) {
        // Losing all at once is the rarer case: every third cut is enough.
        if policy == CrashPolicy::LoseAll && !cut.is_multiple_of(3) {
            continue;
        }
        let what = format!("power cut at {cut} of {ops}, {policy:?}");
        let sim = cut_at(&base, cut, policy).boot(cut);
        let env = sim.env();
        match sim.block_on(settled(&env, &what)) {
            true => done += 1,
            false => not_yet += 1,
        }
    }
    assert!(not_yet > 0 && done > 0, "{not_yet} before, {done} after");
}

/// With one disk away each pool that can be opened has its files, is written to and exported; when
/// the disk is there again every device is one pool's.
#[test]
fn a_disk_that_is_away_after_a_power_cut_in_a_split_finds_its_pool_when_it_returns() {
    let base = before();
    let ops = ops(&base);
    let (mut not_yet, mut done, mut opened) = (0, 0, [0; 4]);
    for cut in 1..=ops {
        let gone = (cut % 4) as usize;
        let what = format!("power cut at {cut} of {ops}, without disk {gone}");
        let mut left = cut_at(&base, cut, CrashPolicy::Random);
        let away = left.disks.remove(&Layout::path(gone)).unwrap();
        let sim = left.boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = discover(&env, &["/disks".into()]).await.unwrap();
            let mut whole = false;
            for found in &found {
                let Ok(spa) = Spa::open(&env, found, opts(&found.name)).await else { continue };
                IN_IT.check(&env, &spa, FILES, &what).await;
                IN_IT.put(&env, &spa, LATER..LATER + 1).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                whole |= spa.name() == "tank";
                spa.close(Some(PoolState::Exported)).await.unwrap();
            }
            // The old pool needs none of the sides; those that stay are alone during the split.
            assert!(whole || gone.is_multiple_of(2), "{what}: the old pool was not opened");
            opened[gone] += u32::from(whole);
        });
        let mut left = sim.power_off(CrashPolicy::KeepAll, 1);
        left.disks.insert(Layout::path(gone), away);
        let sim = left.boot(cut);
        let env = sim.env();
        match sim.block_on(settled(&env, &format!("{what}, and then with it"))) {
            true => done += 1,
            false => not_yet += 1,
        }
    }
    assert!(not_yet > 0 && done > 0, "{not_yet} before, {done} after");
    assert!(opened.iter().all(|n| *n > 0), "{opened:?}");
}
