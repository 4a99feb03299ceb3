//! Pools that run full, with records of every size, and what is left of them when the power goes
//! there.
//!
//! A few of them here; `cargo xtask sim --full M` does as many as one likes.

use zilla_sim::pool::full::{Done, full_run};

#[test]
fn full_pools_refuse_writers_live_and_give_back_what_is_removed() {
    let mut sum = Done::default();
    for seed in 0..7 {
        let done = full_run(seed, 40).unwrap_or_else(|what| panic!("{what}"));
        sum.ops += done.ops;
        sum.refused += done.refused;
        sum.promised += done.promised;
    }
    // That the pools were full is seen by what they refused; that they worked, by the rest.
    assert!(sum.refused * 20 > sum.ops && sum.refused * 3 < sum.ops * 2, "{sum:?}");
    assert!(sum.promised > 10, "{sum:?}");
}
