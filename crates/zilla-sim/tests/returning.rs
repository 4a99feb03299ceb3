//! Disks leave and return; afterwards any other one may be taken away. `ZILLA_RETURNS` says how
//! many seeds. A disk that is there and never answers is as good as one that is not. What a disk
//! alone has of a pool that has gone on without it does not count.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_core::error::Error;
use zilla_core::spa::Spa;
use zilla_core::vdev::VdevState;
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};
use zilla_env::{Device, Env};
use zilla_ondisk::enums::PoolState;
use zilla_sim::pool::layout::{find, import};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::pool::{Layout, returning_run};
use zilla_sim::{CrashPolicy, Sim, Stuck, Survivors};

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

const FILES: [(&str, usize); 2] = [("synced", 60_000), ("in the log", 90_000)];

fn contents(len: usize) -> Bytes {
    (0..len).map(|i| (i * 7 + len) as u8 ^ (i >> 8) as u8).collect()
}

async fn put(env: &Env, spa: &Arc<Spa>, (name, len): (&str, usize)) {
    let zfs = open_fs(env, spa, "tank").await.unwrap();
    let new = NewFile::new(0o100644, Cred::default());
    let (file, _) = zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap();
    zfs.write(file.id(), 0, &contents(len), false).await.unwrap();
    zfs.fsync(file.id()).await.unwrap();
}

async fn check(env: &Env, spa: &Arc<Spa>, what: &str) {
    let zfs = open_fs(env, spa, "tank").await.unwrap_or_else(|e| panic!("{what}: {e}"));
    for (name, len) in FILES {
        let found = zfs.lookup(zfs.root(), name.as_bytes()).await;
        let (file, _) = found.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        let read = zfs.read(file.id(), 0, len).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: {name}: {e}")).concat();
        assert!(read == contents(len)[..], "{what}: {name}");
    }
}

/// Disks after the power was cut twice: with something in the log, and when the uberblock of the
/// next import's first txg had reached the first disk alone. (Another import begins as that one
/// did, so it puts its blocks where that one has put them.)
fn newest_on_one(layout: Layout, seed: u64) -> Survivors {
    let sim = Sim::new(seed);
    layout.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = layout.create(&env).await.unwrap();
        put(&env, &spa, FILES[0]).await;
        spa.sync().await.unwrap();
        put(&env, &spa, FILES[1]).await;
    });
    let sim = sim.power_off(CrashPolicy::LoseAll, 1).boot(seed);
    let inner = sim.env();
    let env = sim.env().wrap_devices(move |path, device| {
        if path == Layout::path(0) {
            return device;
        }
        let device = FaultyDevice::new(device, &inner);
        let end = device.size();
        for labels in [0..512 << 10, end - (512 << 10)..end] {
            device.add(Rule::new(Ops::Writes, Fault::Ignore).within(labels));
        }
        Arc::new(device)
    });
    sim.block_on(async {
        let found = find(&env).await.unwrap().expect("a pool");
        import(&env, &found, false).await.unwrap();
    });
    sim.power_off(CrashPolicy::LoseAll, 1)
}

/// The pool is imported without a disk, and the power goes again: what may be left at each moment
/// until its first txg is there, that disk with it. None: it cannot do without that disk, for
/// another has not got what they share.
fn cut_again(left: &Survivors, away: usize, seed: u64) -> Option<Vec<(u64, Survivors)>> {
    let mut there = left.clone();
    let away = there.disks.remove_entry(&Layout::path(away)).unwrap();
    let (sim, done) = (there.boot(seed), Arc::new(AtomicBool::new(false)));
    let (env, over, lacks) = (sim.env(), done.clone(), Arc::new(AtomicBool::new(false)));
    let cannot = lacks.clone();
    env.clone().spawn(async move {
        let found = find(&env).await.unwrap().expect("a pool");
        let imported = import(&env, &found, false).await;
        cannot.store(matches!(imported, Err(Error::Corrupt(_))), Ordering::SeqCst);
        over.store(true, Ordering::SeqCst);
        assert!(imported.is_ok() || cannot.load(Ordering::SeqCst), "{:?}", imported.err());
    });
    let (mut last, mut out) = (sim.counters().ops, Vec::<(u64, Survivors)>::new());
    loop {
        sim.pause_at(last + 1);
        let went = sim.run_until(&done);
        let now = sim.counters().ops;
        for cut in last + 1..=now {
            let policy = if cut % 2 == 0 { CrashPolicy::KeepAll } else { CrashPolicy::Random };
            let left = sim.survivors_of(cut, policy, seed ^ cut.rotate_left(24));
            if out.last().is_none_or(|(_, before)| !before.is_same(&left)) {
                out.push((cut, left));
            }
        }
        last = now;
        match went {
            Ok(()) => break,
            Err(Stuck::Paused { .. }) => sim.resume(),
            Err(stuck) => panic!("{stuck}"),
        }
    }
    if lacks.load(Ordering::SeqCst) {
        return None;
    }
    assert!(out.len() > 20, "only {} cuts", out.len());
    out.iter_mut().for_each(|(_, left)| drop(left.disks.insert(away.0.clone(), away.1.clone())));
    Some(out)
}

/// So many of them, the first and the last too.
fn some(cuts: Vec<(u64, Survivors)>, n: usize) -> impl Iterator<Item = (u64, Survivors)> {
    let last = cuts.len() - 1;
    let wanted: Vec<usize> = (0..n).map(|i| i * last / (n - 1)).collect();
    cuts.into_iter().enumerate().filter(move |(i, _)| wanted.contains(i)).map(|(_, cut)| cut)
}

/// All disks are there again. Nothing that was acknowledged is lost, and the pool can do without
/// another disk.
fn all_are_back(left: &Survivors, what: &str) {
    let sim = left.boot(1);
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await.unwrap().unwrap_or_else(|| panic!("{what}: no pool"));
        let spa = import(&env, &found, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        check(&env, &spa, what).await;
        audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        spa.close(Some(PoolState::Exported)).await.unwrap();
    });
    let mut left = sim.power_off(CrashPolicy::LoseAll, 1);
    left.disks.remove(&Layout::path(1));
    let sim = left.boot(2);
    let env = sim.env();
    sim.block_on(async {
        let what = format!("{what}, without disk 1");
        let found = find(&env).await.unwrap().unwrap_or_else(|| panic!("{what}: no pool"));
        let spa = import(&env, &found, true).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        check(&env, &spa, &what).await;
    });
}

/// The pool goes on without the disk that has the newest txg, and then without another.
fn gone_on_without_one(layout: Layout, seed: u64) {
    let first = newest_on_one(layout, seed);
    let cuts = cut_again(&first, 0, seed + 10).unwrap();
    for (cut, left) in some(cuts.clone(), 12) {
        all_are_back(&left, &format!("{layout:?}, cut {cut}"));
    }
    let mut twice = 0;
    for (cut, left) in some(cuts, 4) {
        // At the end the first txg may be there, which the first disk has not got.
        let Some(cuts) = cut_again(&left, layout.disks() - 1, seed + 20) else { continue };
        twice += 1;
        for (again, left) in some(cuts, 4) {
            all_are_back(&left, &format!("{layout:?}, cut {cut}, then {again}"));
        }
    }
    assert!(twice > 2, "{layout:?}: only {twice}");
}

#[test]
fn a_txg_that_a_disk_alone_has_does_not_count_when_the_pool_has_gone_on_without_it() {
    let layouts = [Layout::Raidz1, Layout::Draid1, Layout::Raidz2, Layout::Mirror, Layout::Mirrors];
    for (layout, seed) in layouts.into_iter().zip(1..) {
        gone_on_without_one(layout, seed);
    }
}

/// The others were written to with what only the disk has that is away.
#[test]
fn a_pool_does_not_go_on_from_before_what_its_disks_were_written_to_with() {
    let first = newest_on_one(Layout::Raidz1, 7);
    let (mut refused, mut taken) = (0, 0);
    for (cut, whole) in some(cut_again(&first, 2, 17).unwrap(), 12) {
        let what = format!("cut {cut}");
        let mut left = whole.clone();
        left.disks.remove(&Layout::path(0));
        let sim = left.boot(1);
        let env = sim.env();
        sim.block_on(async {
            let found = find(&env).await.unwrap().unwrap_or_else(|| panic!("{what}: no pool"));
            match import(&env, &found, false).await {
                Ok(_) => taken += 1,
                // The first txg is there, which the third disk has not got.
                Err(Error::Corrupt(_)) if refused > 0 => {}
                Err(e) => {
                    assert!(e.to_string().contains("on devices that are away"), "{what}: {e}");
                    refused += 1;
                }
            }
        });
        all_are_back(&whole, &what);
    }
    assert!(refused > 2 && taken > 0, "{refused} {taken}");
}

#[test]
fn an_import_for_reading_says_nothing() {
    let mut left = newest_on_one(Layout::Raidz1, 1);
    left.disks.remove(&Layout::path(0));
    let sim = left.boot(1);
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await.unwrap().expect("a pool");
        import(&env, &found, true).await.unwrap();
    });
    assert!(sim.power_off(CrashPolicy::KeepAll, 1).is_same(&left));
}

/// Else it would be lost what the pool went on from.
#[cfg(feature = "planted")]
#[test]
fn labels_that_do_not_say_that_a_pool_went_on_are_missed() {
    use zilla_core::planted::{Bug, plant};
    plant(Some(Bug::WentOnUnsaid));
    let found = std::panic::catch_unwind(|| gone_on_without_one(Layout::Raidz1, 1));
    plant(None);
    assert!(found.is_err());
}
