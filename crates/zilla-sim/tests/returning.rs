//! Disks leave and return; afterwards any other one may be taken away. `ZILLA_RETURNS` says how
//! many seeds. A disk that is there and never answers is as good as one that is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_core::vdev::VdevState;
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_ondisk::enums::PoolState;
use zilla_sim::Sim;
use zilla_sim::pool::layout::{find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::pool::{Layout, returning_run};

#[test]
fn any_other_disk_may_go_after_one_has_returned() {
    let seeds = std::env::var("ZILLA_RETURNS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    for seed in 0..seeds {
        for layout in [Layout::Mirror, Layout::Raidz1, Layout::Raidz2, Layout::Draid1] {
            returning_run(layout, seed);
        }
    }
}

/// From the search for pools on, or from the import on, one disk takes every request and answers
/// none.
#[test]
fn an_import_leaves_out_a_disk_that_never_answers_and_it_comes_back() {
    for (layout, from_the_search) in
        [(Layout::Mirror, true), (Layout::Mirror, false), (Layout::Raidz1, false)]
    {
        let what = format!("{layout:?}, from the search on: {from_the_search}");
        let sim = Sim::new(7);
        layout.add_disks(&sim);
        let (silent, inner) = (Arc::new(AtomicBool::new(false)), sim.env());
        let dumb = silent.clone();
        let env = sim.env().wrap_devices(move |path, device| {
            if path != Layout::path(1) || !dumb.load(Ordering::Relaxed) {
                return device;
            }
            let device = FaultyDevice::new(device, &inner);
            device.add(Rule::new(Ops::All, Fault::Hang));
            Arc::new(device)
        });
        sim.block_on(async {
            let spa = layout.create(&env).await.unwrap();
            spa.close(Some(PoolState::Exported)).await.unwrap();
            silent.store(from_the_search, Ordering::Relaxed);
            let found = find(&env).await.unwrap().expect(&what);
            silent.store(true, Ordering::Relaxed);
            let began = env.boottime();
            let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            let took = env.boottime() - began;
            assert!(took < Duration::from_secs(200), "{what}: {took:?}");
            let leaf = |spa: &zilla_core::spa::Spa| spa.tree().leaves[1].clone();
            assert_eq!(leaf(&spa).state().0, VdevState::CantOpen, "{what}");
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            let new = NewFile::new(0o100644, Cred::default());
            let (file, _) = zfs.create(zfs.root(), b"f", new).await.unwrap();
            zfs.write(file.id(), 0, &vec![5; 300_000].into(), false).await.unwrap();
            zfs.fsync(file.id()).await.unwrap();
            // Whoever asks for it is not kept for ever either.
            let state = spa.online(leaf(&spa).guid(), false).await;
            assert_ne!(state.map(|s| s.0).ok(), Some(VdevState::Healthy), "{what}");
            silent.store(false, Ordering::Relaxed);
            spa.online(leaf(&spa).guid(), false).await.unwrap();
            // It waits for the resilver.
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(leaf(&spa).state().0, VdevState::Healthy, "{what}");
            spa.close(Some(PoolState::Exported)).await.unwrap();
        });
    }
}
