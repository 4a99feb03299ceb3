//! A mirror is emptied into another and leaves the pool, and later its mapping is shortened, while
//! files come and go; the power goes at any write of that. What was stable is there, the work goes
//! on by itself, and every block is accounted for.

use std::sync::Arc;
use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::tunables;
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const KEPT: u32 = 40;
const FILES: u32 = 60;
/// Room for what is removed, beside what a pool keeps for itself.
const LARGE: u64 = 400 << 20;
/// So little is moved in a txg that it takes several.
const PACE: u64 = 256 << 10;
/// Power cuts.
const CUTS: u64 = 40;

/// What lies in the pool: each file is so many bytes longer than the one before.
const IN_IT: Files = Files(1100);

/// A pool with files on its first mirror and room on the second, exported.
fn before() -> Survivors {
    let sim = Sim::new(7);
    Layout::Mirror.add_disks(&sim);
    (2..4).for_each(|i| drop(sim.add_disk(Layout::path(i), LARGE)));
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        IN_IT.put(&env, &spa, 0..FILES).await.unwrap();
        let leaves = (2..4).map(|i| LeafSpec { path: Layout::path(i), disk: true }).collect();
        let top = TopSpec { kind: VdevKind::Mirror, leaves, is_log: false, bias: None, ashift: Some(12) };
        spa.add_vdevs(&PoolSpec { tops: vec![top], ..PoolSpec::default() }).await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

/// Removes the first mirror and some files meanwhile.
async fn remove(env: &Env) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = import(env, &found, false).await?;
    spa.set_removal_pace(PACE);
    let zfs = open_fs(env, &spa, "tank").await?;
    spa.remove_vdev(spa.tree().tops[0].vdev.guid).await?;
    for i in KEPT..FILES {
        zfs.unlink(zfs.root(), format!("f{i}").as_bytes()).await?;
        spa.sync().await?;
    }
    done(env, &spa).await;
    IN_IT.put(env, &spa, FILES..FILES + 4).await
}

async fn done(env: &Env, spa: &Arc<Spa>) {
    while spa.is_removing() {
        env.sleep(Duration::from_millis(200)).await;
    }
}

#[test]
fn a_power_cut_while_a_mirror_is_removed_loses_nothing() {
    let base = before();
    let sim = base.boot(1);
    let env = sim.env();
    sim.block_on(remove(&env)).unwrap();
    let ops = sim.counters().ops;
    drop(sim);
    let (mut not_yet, mut under_way, mut gone) = (0, 0, 0);
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        let what = format!("power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let _ = sim.try_block_on(remove(&env));
        let sim = sim.power_off(CrashPolicy::Random, cut).boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.set_removal_pace(PACE);
            IN_IT.check(&env, &spa, KEPT, &what).await;
            let there = spa.tree().tops[0].vdev.kind == VdevKind::Mirror;
            match (there, spa.is_removing()) {
                (true, true) => under_way += 1,
                (true, false) => not_yet += 1,
                _ => gone += 1,
            }
            if there && !spa.is_removing() {
                spa.remove_vdev(spa.tree().tops[0].vdev.guid).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            done(&env, &spa).await;
            assert_eq!(spa.tree().tops[0].vdev.kind, VdevKind::Indirect, "{what}");
            spa.drop_caches();
            IN_IT.check(&env, &spa, KEPT, &what).await;
            env.sleep(Duration::from_secs(20)).await;
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    assert!(not_yet > 0 && under_way > 0 && gone > 0, "{not_yet} before, {under_way} during, {gone} after");
}

/// A pool with files on a mirror that was removed, each in a run of its own, exported.
fn removed() -> Survivors {
    let sim = before().boot(1);
    let env = sim.env();
    sim.block_on(async {
        let spa = import(&env, &find(&env).await.unwrap().unwrap(), false).await.unwrap();
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        for i in (0..FILES).filter(|i| i % 2 == 1) {
            zfs.unlink(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
        }
        spa.sync().await.unwrap();
        spa.remove_vdev(spa.tree().tops[0].vdev.guid).await.unwrap();
        done(&env, &spa).await;
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

fn runs(spa: &Spa) -> usize {
    spa.tree().tops[0].vdev.indirect().map_or(0, |m| m.runs().len())
}

/// Removes every second file of those that are left, and waits until their runs have gone too;
/// before and after that it does something else.
async fn shorten(env: &Env) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = import(env, &found, false).await?;
    let (zfs, before) = (open_fs(env, &spa, "tank").await?, runs(&spa));
    for i in FILES..FILES + 10 {
        IN_IT.put(env, &spa, i..i + 1).await?;
    }
    for i in (0..FILES).filter(|i| i % 4 == 2) {
        zfs.unlink(zfs.root(), format!("f{i}").as_bytes()).await?;
    }
    while spa.is_condensing() || runs(&spa) > before - 10 {
        spa.sync().await?;
        env.sleep(Duration::from_millis(100)).await;
    }
    for i in FILES + 10..FILES + 20 {
        IN_IT.put(env, &spa, i..i + 1).await?;
    }
    Ok(())
}

#[test]
fn a_power_cut_while_a_mapping_is_shortened_loses_nothing() {
    tunables::CONDENSE_MIN_MAPPING_BYTES.set(1);
    tunables::CONDENSE_INDIRECT_OBSOLETE_PCT.set(5);
    // Each run that stays in a txg of its own.
    tunables::CONDENSE_INDIRECT_COMMIT_ENTRY_DELAY_MS.set(1);
    let base = removed();
    let sim = base.boot(1);
    let env = sim.env();
    sim.block_on(shorten(&env)).unwrap();
    let ops = sim.counters().ops;
    drop(sim);
    let (mut before, mut under_way, mut after) = (0, 0, 0);
    let (mut longest, mut shortest) = (0, usize::MAX);
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        let what = format!("power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let _ = sim.try_block_on(shorten(&env));
        let sim = sim.power_off(CrashPolicy::Random, cut).boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            longest = longest.max(runs(&spa));
            match (spa.is_condensing(), runs(&spa) == longest) {
                (true, _) => under_way += 1,
                (false, true) => before += 1,
                (false, false) => after += 1,
            }
            let kept = (0..FILES).filter(|i| i.is_multiple_of(4));
            IN_IT.check_all(&env, &spa, kept.clone(), &what).await;
            while spa.is_condensing() {
                env.sleep(Duration::from_millis(200)).await;
            }
            shortest = shortest.min(runs(&spa));
            spa.drop_caches();
            IN_IT.check_all(&env, &spa, kept, &what).await;
            env.sleep(Duration::from_secs(20)).await;
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    assert!(before > 0 && under_way > 0 && after > 0, "{before} before, {under_way} during, {after} after");
    assert!(shortest + 10 < longest, "{shortest} {longest}");
}

/// What is to be moved takes place on the others: nobody is given that.
#[test]
fn what_is_still_to_be_moved_is_nobodys_space() {
    const LARGER: Files = Files(20_000);
    let sim = Sim::new(3);
    Layout::Mirror.add_disks(&sim);
    (2..4).for_each(|i| drop(sim.add_disk(Layout::path(i), LARGE)));
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        LARGER.put(&env, &spa, 0..FILES).await.unwrap();
        let leaves = (2..4).map(|i| LeafSpec { path: Layout::path(i), disk: true }).collect();
        let top = TopSpec { kind: VdevKind::Mirror, leaves, is_log: false, bias: None, ashift: Some(12) };
        spa.add_vdevs(&PoolSpec { tops: vec![top], ..PoolSpec::default() }).await.unwrap();
        spa.set_removal_pace(1);
        let available = || spa.dsl.available(&spa.dsl.root_dir(), false);
        let (before, first) = (available(), spa.tree().tops[0].vdev.clone());
        spa.remove_vdev(first.guid).await.unwrap();
        spa.sync().await.unwrap();
        let taken = before - available();
        assert!(taken > first.asize() / 5 * 4, "{taken} of {}", first.asize());
        spa.cancel_removal().await.unwrap();
        spa.sync_anyway().await.unwrap();
        let taken = before.saturating_sub(available());
        assert!(taken < first.asize() / 10, "{taken} of {}", first.asize());
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
}
