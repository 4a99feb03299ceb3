//! Pools whose power is cut. Sampled here; `cargo xtask sim` does all of it.

use zilla_sim::pool::{Campaign, Layout, random_run};

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
    show(Campaign::new(2, Layout::Single, 500).every_cut(101, |_| true, drop));
}

#[test]
fn cuts_on_a_mirror() {
    show(Campaign::new(3, Layout::Mirror, 500).every_cut(211, |_| true, drop));
}

#[test]
fn cuts_on_a_raidz2() {
    show(Campaign::new(4, Layout::Raidz2, 500).every_cut(401, |_| true, drop));
}

#[test]
fn random_cuts() {
    for seed in 0..12 {
        show(random_run(seed, Layout::ALL[seed as usize % 3]));
    }
}
