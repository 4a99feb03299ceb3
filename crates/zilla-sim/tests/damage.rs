//! Sectors that go bad and writes that fail under a pool at work. `ZILLA_DAMAGES` says how many
//! seeds.

use zilla_sim::pool::{Layout, hurt_run, known_errors_cut, late_repair, stalled_run};

fn seeds(few: u64) -> u64 {
    std::env::var("ZILLA_DAMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

fn runs(layout: Layout, few: u64) {
    for seed in 0..seeds(few) {
        hurt_run(seed, layout, 60).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[test]
fn a_single_disk() {
    runs(Layout::Single, 12);
}

#[test]
fn a_mirror() {
    runs(Layout::Mirror, 8);
}

#[test]
fn a_raidz2() {
    runs(Layout::Raidz2, 8);
}

#[test]
fn a_draid1() {
    runs(Layout::Draid1, 8);
}

#[test]
fn a_free_waits_for_the_repair_of_its_block() {
    late_repair(1).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn what_waits_for_disks_that_stand_still_is_bounded() {
    stalled_run(1).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_power_cut_in_a_scrub_of_known_errors_forgets_none() {
    for seed in 0..seeds(12) {
        known_errors_cut(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}
