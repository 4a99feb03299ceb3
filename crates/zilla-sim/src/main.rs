//! Runs the simulator from the command line: a workload cut at every write, at one, or many random runs.
//!
//! `cargo xtask sim` calls it, built for speed.

use std::process::ExitCode;
use std::time::Instant;
use zilla_sim::pool::{Campaign, Finding, Layout, Tally, random_run};

const USAGE: &str = "usage: zilla-sim [--seed N] [--layout single|mirror|raidz1|raidz2] [--ops N]
          [--cut K]    cut the power at write or flush K of a workload of N operations (default 500)
          [--step K]   cut it at every K-th (default: every one)
          [--runs M]   M random runs from the seed on, of all layouts unless one is named
";

#[derive(Default)]
struct Args {
    seed: u64,
    layout: Option<Layout>,
    ops: usize,
    cut: Option<u64>,
    step: u64,
    runs: Option<u64>,
}

fn parse() -> Option<Args> {
    let mut a = Args { ops: 500, step: 1, ..Args::default() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--seed" => a.seed = value.parse().ok()?,
            "--layout" => a.layout = Some(Layout::parse(&value)?),
            "--ops" => a.ops = value.parse().ok()?,
            "--cut" => a.cut = Some(value.parse().ok()?),
            "--step" => a.step = value.parse().ok()?,
            "--runs" => a.runs = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some(a)
}

fn main() -> ExitCode {
    let Some(args) = parse() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    let layouts: Vec<Layout> = args.layout.map_or(Layout::ALL.to_vec(), |l| vec![l]);
    let start = Instant::now();
    let result = match (args.runs, args.cut) {
        (Some(runs), _) => random(&args, &layouts, runs),
        (None, Some(cut)) => layouts
            .iter()
            .try_for_each(|l| Campaign::new(args.seed, *l, args.ops).one_cut(cut).map(|t| say(*l, t))),
        (None, None) => layouts.iter().try_for_each(|l| {
            Campaign::new(args.seed, *l, args.ops).every_cut(args.step).map(|t| say(*l, t))
        }),
    };
    println!("{:.1} s", start.elapsed().as_secs_f64());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(finding) => {
            println!("FOUND: {finding}");
            ExitCode::FAILURE
        }
    }
}

fn say(layout: Layout, t: Tally) {
    println!(
        "{}: {} writes, {} flushes, {} power cuts; every pool came back whole (trace {:016x})",
        layout.name(),
        t.writes,
        t.flushes,
        t.cuts,
        t.trace
    );
}

fn random(args: &Args, layouts: &[Layout], runs: u64) -> Result<(), Finding> {
    for i in 0..runs {
        let seed = args.seed + i;
        random_run(seed, layouts[seed as usize % layouts.len()])?;
        if (i + 1).is_multiple_of(100) {
            println!("{} runs", i + 1);
        }
    }
    println!("{runs} random runs; every pool came back whole");
    Ok(())
}
