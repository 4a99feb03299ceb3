//! The power goes in the midst of what is done to a pool as a whole, through the facade: making,
//! setting, exporting, importing and destroying. Each is done whole or not at all, and what was
//! acknowledged is so after the crash.

use std::cell::Cell;
use std::path::PathBuf;
use zilla::error::Result;
use zilla::{Import, NewPool, NewVdev, Pool};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_sim::{CrashPolicy, Sim};

const DIR: &str = "/disks";
const POOL: &str = "tank";
const FS: &str = "tank/a";
const DISK: u64 = 80 << 20;
/// Power cuts, spread over all writes and flushes, with each policy.
const CUTS: u64 = 60;
const POLICIES: [CrashPolicy; 3] = [CrashPolicy::KeepAll, CrashPolicy::LoseAll, CrashPolicy::Shuffle];
/// What is set together, of the pool's own file system and of one that is made with it.
const TOGETHER: [(&str, &str); 2] = [("compression", "zstd"), ("atime", "off")];
const MADE_WITH: [(&str, &str); 2] = [("setuid", "off"), ("exec", "off")];

/// What was acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    #[default]
    Nothing,
    Created,
    Set,
    FilesystemMade,
    Exported,
    Imported,
    FilesystemDestroyed,
    Destroyed,
}

fn disk(i: usize) -> PathBuf {
    PathBuf::from(format!("{DIR}/d{i}"))
}

async fn import(env: &Env) -> Result<Pool> {
    Pool::import(env, &[DIR], POOL, Import { force: true, ..Import::default() }).await
}

async fn story(env: &Env, done: &Cell<Done>) -> Result<()> {
    let new = NewPool::new(POOL).vdev(NewVdev::mirror([disk(0), disk(1)])).memory(1 << 20);
    let pool = Pool::create(env, new).await?;
    done.set(Done::Created);
    pool.dataset(POOL).await?.set(&TOGETHER).await?;
    done.set(Done::Set);
    pool.create_filesystem(FS, &MADE_WITH).await?;
    done.set(Done::FilesystemMade);
    pool.export().await?;
    done.set(Done::Exported);
    let pool = import(env).await?;
    done.set(Done::Imported);
    pool.dataset(FS).await?.destroy().await?;
    done.set(Done::FilesystemDestroyed);
    pool.close(Some(PoolState::Destroyed)).await?;
    done.set(Done::Destroyed);
    Ok(())
}

/// Whether a dataset has these properties of its own, all or none.
async fn has(pool: &Pool, dataset: &str, properties: &[(&str, &str)], what: &str) -> bool {
    let dataset = pool.dataset(dataset).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut set = 0;
    for (name, value) in properties {
        let is = dataset.get(name).await.unwrap().unwrap_or_else(|| panic!("{what}: no {name}"));
        set += usize::from(is.value == *value);
    }
    assert!(set == 0 || set == properties.len(), "{what}: {set} of {} properties", properties.len());
    set > 0
}

/// Looks at what a crash left, and whether it can be lived in.
async fn check(env: &Env, done: Done, what: &str) {
    let found = Pool::find(env, &[DIR]).await.unwrap();
    assert!(found.len() <= 1, "{what}: {} pools", found.len());
    let there = found.iter().any(|p| p.state != PoolState::Destroyed);
    let pool = match import(env).await {
        Ok(pool) => pool,
        Err(e) => {
            // Before it is made, and once it is being destroyed, nobody was promised a pool.
            let may_lack = done < Done::Created || done >= Done::FilesystemDestroyed;
            assert!(may_lack, "{what}: {e} (found: {there})");
            return;
        }
    };
    assert!(done < Done::Destroyed, "{what}: a destroyed pool is there");
    let set = has(&pool, POOL, &TOGETHER, what).await;
    assert!(set || done < Done::Set, "{what}: what was set is gone");
    let names: Vec<String> = pool.datasets().await.unwrap().iter().map(|d| d.name().to_owned()).collect();
    let made = names.iter().any(|n| n == FS);
    if made {
        assert!(has(&pool, FS, &MADE_WITH, what).await, "{what}: made without its properties");
    }
    assert!(made || !(Done::FilesystemMade..Done::Imported).contains(&done), "{what}: {FS} is gone");
    assert!(!made || done < Done::FilesystemDestroyed, "{what}: {FS} was destroyed");
    pool.dataset(POOL).await.unwrap().set(&[("comment:after", "yes")]).await.unwrap();
    assert_eq!(pool.scrub().await.unwrap().errors, 0, "{what}");
    pool.export().await.unwrap();
    import(env).await.unwrap_or_else(|e| panic!("{what}: again: {e}")).export().await.unwrap();
}

fn world() -> Sim {
    let sim = Sim::new(11);
    for i in 0..2 {
        sim.add_disk(disk(i), DISK);
    }
    sim
}

#[test]
fn a_pool_is_made_set_exported_imported_and_destroyed_whole_or_not_at_all() {
    let (sim, done) = (world(), Cell::default());
    let env = sim.env();
    sim.block_on(story(&env, &done)).unwrap();
    assert_eq!(done.get(), Done::Destroyed);
    let ops = sim.counters().ops;
    drop(sim);
    let mut met = std::collections::BTreeSet::new();
    for cut in (0..CUTS).map(|i| 1 + i * ops / CUTS) {
        for policy in POLICIES {
            let (sim, done) = (world(), Cell::default());
            let env = sim.env();
            sim.cut_power_at(cut);
            let _ = sim.try_block_on(story(&env, &done));
            let done = done.get();
            met.insert(done);
            let what = format!("power cut at {cut} of {ops}, {policy:?}, after {done:?}");
            let sim = sim.power_off(policy, cut).boot(cut);
            let env = sim.env();
            sim.block_on(check(&env, done, &what));
        }
    }
    // Each of them was cut somewhere.
    assert_eq!(met.len(), 7, "{met:?}");
}
