//! Disks leave and return; afterwards any other one may be taken away. `ZILLA_RETURNS` says how many seeds.

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
