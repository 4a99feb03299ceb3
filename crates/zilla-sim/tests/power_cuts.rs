//! Pools whose power is cut. Sampled here; `cargo xtask sim` does all of it.

use std::sync::Arc;
use zilla_sim::pool::{Campaign, Layout, Workload, flags_run, random_run};
use zilla_sim::{Sim, Stuck};

fn show<T>(r: Result<T, zilla_sim::pool::Finding>) -> T {
    r.unwrap_or_else(|f| panic!("{f}"))
}

#[test]
fn one_seed_has_one_course() {
    for layout in Layout::ALL {
        let a = show(Campaign::new(1, layout, 120).undisturbed());
        assert!(a.flushes > 20, "{a:?}");
    }
}

#[test]
fn cuts_on_a_single_disk() {
    show(Campaign::new(2, Layout::Single, 500).every_cut(0, 101, |_| true, drop));
}

#[test]
fn cuts_on_a_mirror() {
    show(Campaign::new(3, Layout::Mirror, 500).every_cut(0, 211, |_| true, drop));
}

#[test]
fn cuts_on_a_raidz2() {
    show(Campaign::new(4, Layout::Raidz2, 500).every_cut(0, 401, |_| true, drop));
}

#[test]
fn cuts_on_a_draid() {
    show(Campaign::new(5, Layout::Draid1, 500).every_cut(0, 401, |_| true, drop));
}

#[test]
fn random_cuts() {
    for seed in 0..12 {
        show(random_run(seed, Layout::ALL[seed as usize % Layout::ALL.len()]));
    }
}

/// A pool that loses its power in the middle of its work lets go of all it had: the next world
/// needs the memory.
#[test]
fn nothing_is_left_of_a_world() {
    for layout in Layout::ALL {
        for cut in [40, 200, 800] {
            let sim = Sim::new(cut);
            layout.add_disks(&sim);
            let work = Workload::start(&sim.env(), layout, cut, 3, 300);
            sim.cut_power_at(cut);
            let went = sim.run_until(&work.done);
            assert!(matches!(went, Err(Stuck::PowerCut { .. })), "{went:?}");
            let disk = Arc::downgrade(&sim.disk(Layout::path(0)).unwrap());
            drop((sim, work));
            assert_eq!(disk.strong_count(), 0, "{} cut at {cut}", layout.name());
        }
    }
}

/// A log block of which a cut left some columns only, and two disks that fail now and then: what
/// was claimed could not be replayed. And a label that was read when the pool was found, and not
/// when it was opened.
#[test]
fn cuts_on_disks_that_fail_now_and_then() {
    show(random_run(700_085, Layout::Raidz2));
    show(random_run(800_089, Layout::Mirror));
}

#[test]
fn what_flags_allowed_is_replayed() {
    for seed in 0..10 {
        flags_run(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
