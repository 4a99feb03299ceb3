//! The simulator finds bugs of the kind it is there for: each of these is planted, and must be
//! found.
//!
//! Each is looked for where it would show: most by cutting the power in random workloads, some by
//! what is written for disks that go bad, leave, or stand still.

#[path = "held.rs"]
mod held;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use zilla_core::planted::{ALL, Bug, plant};
use zilla_sim::pool::{
    Campaign, Layout, flags_run, hurt_run, late_repair, random_run, returning_run, stalled_run,
};

/// Seeds that are tried at most.
const SEEDS: u64 = 1000;
/// Of these workloads the power is cut at many places.
const THOROUGH: u64 = 3;
/// Steps of a run on disks that go bad.
const STEPS: u32 = 60;

/// What `f` finds with the bug. A panic of the engine is a finding too.
fn attempt(bug: Bug, f: impl FnOnce() -> Result<(), String>) -> Option<String> {
    plant(Some(bug));
    let result = catch_unwind(AssertUnwindSafe(f));
    plant(None);
    match result {
        Ok(found) => found.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Some(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
        }
    }
}

/// The first seeds' workloads are cut at every ninth write; most bugs show there. The others run at
/// random.
fn cuts(seed: u64, layout: Layout) -> Result<(), String> {
    let done = if seed < THOROUGH {
        let c = Campaign::new(seed, layout, 200);
        c.undisturbed().and_then(|_| c.every_cut(0, 9, |_| true, drop))
    } else {
        random_run(seed - THOROUGH, layout)
    };
    done.map(drop).map_err(|f| f.to_string())
}

/// One seed of the work that shows such a bug.
fn look(bug: Bug, seed: u64) -> Result<(), String> {
    match bug {
        Bug::DamageHidden | Bug::NotResent => hurt_run(seed, Layout::Single, STEPS),
        Bug::RepairUnchecked => late_repair(seed),
        Bug::ReplayRefusesByFlag => flags_run(seed),
        Bug::LogNotCounted => stalled_run(seed),
        Bug::NotResilvered => {
            returning_run(Layout::Mirror, seed);
            Ok(())
        }
        Bug::MirrorOneSide => cuts(seed, Layout::Mirror),
        Bug::ParityWrong => cuts(seed, Layout::Raidz2),
        Bug::TailKept | Bug::BonusAhead | Bug::ReplayStops => cuts(seed + THOROUGH, Layout::Single),
        _ => cuts(seed, Layout::Single),
    }
}

fn hunt(bug: Bug) {
    let start = Instant::now();
    let found = (0..SEEDS).find_map(|seed| Some((seed, attempt(bug, || look(bug, seed))?)));
    let took = start.elapsed().as_secs_f64();
    match found {
        Some((seed, how)) => {
            println!("{bug:?}: seed {seed}, {took:.1} s: {}", how.lines().next().unwrap_or_default());
        }
        None => panic!("{bug:?} is not found in {SEEDS} seeds"),
    }
}

/// `ZILLA_PLANTED` names one of them.
#[test]
fn each_is_found() {
    let only = std::env::var("ZILLA_PLANTED").ok();
    let wanted = ALL.into_iter().filter(|b| only.as_ref().is_none_or(|o| *o == format!("{b:?}")));
    wanted.for_each(hunt);
}

#[test]
fn and_without_them_nothing_is() {
    plant(None);
    late_repair(0).unwrap_or_else(|e| panic!("{e}"));
    flags_run(0).unwrap_or_else(|e| panic!("{e}"));
    stalled_run(0).unwrap_or_else(|e| panic!("{e}"));
    for layout in [Layout::Single, Layout::Mirror] {
        hurt_run(0, layout, STEPS).unwrap_or_else(|e| panic!("{e}"));
        Campaign::new(0, layout, 200).undisturbed().unwrap_or_else(|f| panic!("{f}"));
    }
}

/// A bug that only shows where a record cannot be read.
#[test]
fn what_is_held_and_not_logged_is_missed() {
    let run = || {
        plant(Some(Bug::HeldForgotten));
        held::cuts(17)
    };
    let found = catch_unwind(AssertUnwindSafe(run));
    plant(None);
    match found {
        Ok(Ok(cuts)) => panic!("not found in {cuts} power cuts"),
        Ok(Err(how)) => println!("{how}"),
        Err(_) => println!("panicked, as said above"),
    }
}
