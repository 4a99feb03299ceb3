//! Large files are freed a part a txg: the power goes at any write of that. A file that has lost
//! its name goes on being freed at the next mount, one that is being cut is whole up to where it
//! was cut to, and every block is accounted for.

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::zpl::{Cred, NewFile, SetAttr, Zfs};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim, Survivors};

/// What an indirect block of level 1 leads to, and so many that a file has several parts.
const STRETCH: u64 = 128 << 20;
const STRETCHES: u64 = 160;
const SIZE: u64 = (STRETCHES - 1) * STRETCH + 1;
/// What is left of the file that is cut.
const LEFT: u64 = 3 * STRETCH + 1;
/// Power cuts.
const CUTS: u64 = 40;

fn byte(i: u64) -> u8 {
    i as u8 | 1
}

/// A file of one byte in each of many stretches.
async fn put(zfs: &Arc<Zfs>, name: &str) -> Result<()> {
    let new = NewFile::new(0o100644, Cred::default());
    let (h, _) = zfs.create(zfs.root(), name.as_bytes(), new).await?;
    for i in 0..STRETCHES {
        zfs.write(h.id(), i * STRETCH, &Bytes::from(vec![byte(i)]), false).await?;
    }
    Ok(())
}

fn before() -> Survivors {
    let sim = Sim::new(7);
    Layout::Single.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Single.create(&env).await.unwrap();
        let zfs = open_fs(&env, &spa, "tank").await.unwrap();
        for name in ["gone", "cut", "kept"] {
            put(&zfs, name).await.unwrap();
        }
        drop(zfs);
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    sim.power_off(CrashPolicy::KeepAll, 1)
}

/// A file's size, if it is there; all of it is what was written.
async fn check(zfs: &Arc<Zfs>, name: &str, what: &str) -> Option<u64> {
    let (h, a) = zfs.lookup(zfs.root(), name.as_bytes()).await.ok()?;
    for i in (0..STRETCHES).take_while(|i| i * STRETCH < a.size) {
        let read = zfs.read(h.id(), i * STRETCH, 1).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: {name}: {e}")).concat();
        assert_eq!(read, [byte(i)], "{what}: {name} at {i}");
    }
    Some(a.size)
}

/// Waits until nothing is left that has no name.
async fn drained(env: &Env, zfs: &Arc<Zfs>) -> Result<()> {
    while zfs.drain_unlinked().await? > 0 {
        env.sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn free(env: &Env, spa: &Arc<Spa>) -> Result<()> {
    let zfs = open_fs(env, spa, "tank").await?;
    let there = zfs.lookup(zfs.root(), b"gone").await.is_ok();
    if there {
        zfs.unlink(zfs.root(), b"gone").await?;
    }
    let (h, a) = zfs.lookup(zfs.root(), b"cut").await?;
    if a.size > LEFT {
        zfs.setattr(h.id(), SetAttr { size: Some(LEFT), ..SetAttr::default() }).await?;
    }
    drained(env, &zfs).await?;
    spa.sync().await
}

async fn start(env: &Env) -> Result<Arc<Spa>> {
    let found = find(env).await?.unwrap();
    import(env, &found, false).await
}

#[test]
fn a_power_cut_while_large_files_are_freed_loses_nothing() {
    let base = before();
    let sim = base.boot(1);
    let env = sim.env();
    let work = async |env: &Env| free(env, &start(env).await?).await;
    sim.block_on(work(&env)).unwrap();
    let ops = sim.counters().ops;
    drop(sim);
    let mut half_way = 0;
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        let what = format!("power cut at {cut} of {ops}");
        let sim = base.boot(1);
        let env = sim.env();
        sim.cut_power_at(cut);
        let _ = sim.try_block_on(work(&env));
        let sim = sim.power_off(CrashPolicy::Random, cut).boot(cut);
        let env = sim.env();
        sim.block_on(async {
            let spa = start(&env).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let zfs = open_fs(&env, &spa, "tank").await.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(check(&zfs, "kept", &what).await, Some(SIZE));
            assert!(check(&zfs, "gone", &what).await.is_none_or(|size| size == SIZE), "{what}");
            let size = check(&zfs, "cut", &what).await.unwrap();
            assert!((LEFT..=SIZE).contains(&size), "{what}: {size}");
            half_way += u32::from(size > LEFT && size < SIZE);
            drop(zfs);
            free(&env, &spa).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.drop_caches();
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            assert_eq!(check(&zfs, "kept", &what).await, Some(SIZE));
            assert_eq!(check(&zfs, "cut", &what).await, Some(LEFT));
            assert_eq!(check(&zfs, "gone", &what).await, None);
            drop(zfs);
            env.sleep(Duration::from_secs(20)).await;
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
    assert!(half_way > 0, "no cut came between two parts");
}
