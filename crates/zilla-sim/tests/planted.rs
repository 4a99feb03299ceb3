//! The simulator finds bugs of the kind it is there for: each of these is planted, and must be found.

use std::panic::{AssertUnwindSafe, catch_unwind};
use zilla_core::planted::{ALL, Bug, plant};
use zilla_sim::pool::{Campaign, Finding, Layout, random_run};

/// Runs until something is found. A panic of the engine is a finding too.
fn hunt(bug: Bug) -> Option<String> {
    let layouts = match bug {
        Bug::MirrorOneSide => [Layout::Mirror; 3],
        Bug::ParityWrong => [Layout::Raidz2; 3],
        _ => [Layout::Single; 3],
    };
    let attempt = |f: &dyn Fn() -> Result<(), Finding>| {
        plant(Some(bug));
        let result = catch_unwind(AssertUnwindSafe(f));
        plant(None);
        match result {
            Ok(Ok(())) => None,
            Ok(Err(finding)) => Some(finding.to_string()),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                Some(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
            }
        }
    };
    for (seed, layout) in layouts.into_iter().enumerate() {
        let c = Campaign::new(seed as u64, layout, 200);
        let found = attempt(&|| c.undisturbed().map(drop))
            .or_else(|| attempt(&|| c.every_cut(9, |_| true, drop).map(drop)));
        if found.is_some() {
            return found;
        }
    }
    (0..40).find_map(|seed| attempt(&|| random_run(seed, layouts[0]).map(drop)))
}

#[test]
fn each_is_found() {
    for bug in ALL {
        match hunt(bug) {
            Some(how) => println!("{bug:?}: {}", how.lines().next().unwrap_or_default()),
            None => panic!("{bug:?} is not found"),
        }
    }
}

#[test]
fn and_without_them_nothing_is() {
    plant(None);
    for layout in [Layout::Single, Layout::Mirror] {
        Campaign::new(0, layout, 200).undisturbed().unwrap_or_else(|f| panic!("{f}"));
    }
}
