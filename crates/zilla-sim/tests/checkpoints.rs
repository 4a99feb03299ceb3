//! A checkpoint is taken, the pool is changed until every place that was free is used again, and it
//! goes back or the checkpoint is discarded; the power goes at any write of that. A pool that has a
//! checkpoint can go back to it, whole; one that has not has everything else; and every block is
//! accounted for either way.

use std::sync::Arc;
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::zpl::{Cred, NewFile, RenameFlags};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{Layout, find, go_back, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

const FILES: u32 = 6;
/// Power cuts for each layout and way.
const CUTS: u64 = 16;

fn contents(i: u32, generation: u32) -> Vec<u8> {
    let size = if i == 0 { 9 << 20 } else { 3000 * i + 1 };
    (0..size).map(|x| (x * 7 + i + 31 * generation) as u8 ^ (x >> 8) as u8).collect()
}

/// Writes the files of a generation over those there are, under their names.
async fn put(env: &Env, spa: &Arc<Spa>, generation: u32) -> Result<()> {
    let zfs = open_fs(env, spa, "tank").await?;
    for i in 0..FILES {
        let name = b"new".as_slice();
        let (h, _) = zfs.create(zfs.root(), name, NewFile::new(0o100644, Cred::default())).await?;
        for (n, piece) in contents(i, generation).chunks(1 << 20).enumerate() {
            zfs.write(h.id(), (n as u64) << 20, &bytes::Bytes::copy_from_slice(piece), false).await?;
        }
        drop(h);
        let (from, to) = (zfs.root(), format!("f{i}"));
        zfs.rename(from, name, zfs.root(), to.as_bytes(), RenameFlags::default(), Cred::default()).await?;
        spa.sync().await?;
    }
    Ok(())
}

/// The generation that a file is of.
async fn generation(env: &Env, spa: &Arc<Spa>, i: u32, what: &str) -> u32 {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
    let read = zfs.read(h.id(), 0, a.size as usize).await;
    let read = read.unwrap_or_else(|e| panic!("{what}: f{i}: {e}")).concat();
    let found = (0..4).find(|g| contents(i, *g) == read);
    found.unwrap_or_else(|| panic!("{what}: f{i} is of no generation"))
}

/// A pool with a checkpoint of generation 0, and files that are all of generation 2 since.
fn before(layout: Layout) -> Survivors {
    let sim = Sim::new(7);
    layout.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        put(&env, &spa, 0).await.unwrap();
        spa.take_checkpoint().await.unwrap();
        put(&env, &spa, 1).await.unwrap();
        put(&env, &spa, 2).await.unwrap();
        assert!(spa.checkpoint_stat().unwrap().space > 9 << 20);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Back,
    Discard,
    /// From the checkpoint's beginning.
    Take,
}

async fn walk(env: &Env, way: Way) -> Result<()> {
    let found = find(env).await?.unwrap();
    let spa = match way {
        Way::Back => go_back(env, &found, false).await?,
        Way::Discard | Way::Take => import(env, &found, false).await?,
    };
    match way {
        Way::Back => {}
        Way::Discard => spa.discard_checkpoint().await?,
        Way::Take => spa.take_checkpoint().await?,
    }
    put(env, &spa, 3).await?;
    spa.close(None).await
}

/// Whatever happened: the pool as it is, and as of its checkpoint if it has one.
async fn look(env: &Env, way: Way, what: &str) -> bool {
    let found = find(env).await.unwrap().unwrap();
    let spa = import(env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let kept = spa.checkpoint_stat().is_some_and(|c| c.taken.is_some());
    for i in 0..FILES {
        let g = generation(env, &spa, i, what).await;
        // Who has gone back sees nothing of what was done since.
        let expected = match (way, kept) {
            (Way::Back, true) => g == 2,
            (Way::Back, false) | (Way::Take, _) => g == 0 || g == 3,
            (Way::Discard, _) => g == 2 || g == 3,
        };
        assert!(expected, "{what}: f{i} is of generation {g}");
    }
    while spa.checkpoint_stat().is_some_and(|c| c.taken.is_none()) {
        env.sleep(std::time::Duration::from_secs(1)).await;
    }
    audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}, later: {e}"));
    spa.close(Some(PoolState::Exported)).await.unwrap();
    if !kept {
        let found = find(env).await.unwrap().unwrap();
        let none = go_back(env, &found, false).await.err().map(|e| e.to_string());
        assert_eq!(none.as_deref(), Some("checkpoint does not exist"), "{what}");
        return kept;
    }
    for readonly in [true, false] {
        let found = find(env).await.unwrap().unwrap();
        let spa = go_back(env, &found, readonly).await.unwrap_or_else(|e| panic!("{what}, going back: {e}"));
        for i in 0..FILES {
            assert_eq!(generation(env, &spa, i, what).await, 0, "{what}, gone back: f{i}");
        }
        if !readonly {
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}, gone back: {e}"));
        }
        spa.close(None).await.unwrap();
    }
    kept
}

fn tell(layout: Layout, way: Way) {
    let base = match way {
        Way::Take => {
            let sim = Sim::new(7);
            layout.add_disks(&sim);
            let env = sim.env();
            sim.block_on(async {
                let spa = layout.create(&env).await.unwrap();
                put(&env, &spa, 0).await.unwrap();
                spa.close(Some(PoolState::Exported)).await.unwrap();
            });
            sim.power_off(CrashPolicy::KeepAll, 1)
        }
        _ => before(layout),
    };
    let sim = base.boot(1);
    let env = sim.env();
    sim.block_on(walk(&env, way)).unwrap();
    let ops = sim.counters().ops;
    sim.block_on(look(&env, way, "undisturbed"));
    drop(sim);
    let (mut with, mut without) = (0, 0);
    for cut in (0..CUTS).map(|i| 1 + i * i * ops / (CUTS * CUTS)) {
        let what = format!("{layout:?}, {way:?}, power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let _ = sim.try_block_on(walk(&env, way));
        let left = sim.power_off(CrashPolicy::Random, cut);
        let sim = left.boot(cut);
        let env = sim.env();
        match sim.block_on(look(&env, way, &what)) {
            true => with += 1,
            false => without += 1,
        }
    }
    assert!(with > 0 && without > 0, "cuts must come before and after: {with} and {without}");
}

#[test]
fn a_power_cut_while_a_checkpoint_is_taken_loses_nothing() {
    tell(Layout::Mirror, Way::Take);
}

#[test]
fn a_power_cut_while_a_pool_goes_back_loses_nothing() {
    tell(Layout::Single, Way::Back);
    tell(Layout::Raidz1, Way::Back);
}

#[test]
fn a_power_cut_while_a_checkpoint_is_discarded_loses_nothing() {
    tell(Layout::Single, Way::Discard);
    tell(Layout::Raidz1, Way::Discard);
}
