//! Runs the simulator from the command line: a workload cut at every write, at one, or many random
//! runs.
//!
//! `cargo xtask sim` calls it, built for speed. The work is shared among threads, each with a world
//! of its own; every line that tells of a finding says how to see it again.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zilla_sim::pool::full::full_run;
use zilla_sim::pool::{Campaign, Finding, Layout, Tally, random_run};

const USAGE: &str =
    "usage: zilla-sim [--seed N] [--layout single|mirror|raidz1|raidz2|draid1] [--ops N] [--jobs N]
          [--cut K]    cut the power at write or flush K of a workload of N operations (default 500)
          [--step K]   cut it at every K-th (default: every one)
          [--first K]  and from that on (default 0)
          [--full M]   M runs on pools that are full, each actor doing N operations
          [--runs M]   M random runs from the seed on, of all layouts unless one is named
          [--hours H]  random runs from the seed on for so long
";

/// Neighbouring cuts leave disks that are much alike; a thread takes so many at a time.
const STRETCH: u64 = 64;

struct Args {
    seed: u64,
    layout: Option<Layout>,
    ops: usize,
    cut: Option<u64>,
    step: u64,
    first: u64,
    runs: Option<u64>,
    hours: Option<f64>,
    full: Option<u64>,
    jobs: u64,
}

fn parse() -> Option<Args> {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut a = Args {
        seed: 0,
        layout: None,
        ops: 500,
        cut: None,
        step: 1,
        first: 0,
        runs: None,
        hours: None,
        full: None,
        jobs,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--seed" => a.seed = value.parse().ok()?,
            "--layout" => a.layout = Some(Layout::parse(&value)?),
            "--ops" => a.ops = value.parse().ok()?,
            "--cut" => a.cut = Some(value.parse().ok()?),
            "--step" => a.step = value.parse().ok().filter(|n| *n > 0)?,
            "--first" => a.first = value.parse().ok()?,
            "--full" => a.full = Some(value.parse().ok()?),
            "--runs" => a.runs = Some(value.parse().ok()?),
            "--hours" => a.hours = Some(value.parse().ok().filter(|h| *h > 0.0)?),
            "--jobs" => a.jobs = value.parse().ok().filter(|n| *n > 0)?,
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
    if let Some(runs) = args.full {
        return full(&args, runs);
    }
    let layouts: Vec<Layout> = args.layout.map_or(Layout::ALL.to_vec(), |l| vec![l]);
    let start = Instant::now();
    let campaign = |l: &Layout| Campaign::new(args.seed, *l, args.ops);
    let runs = args.runs.or(args.hours.map(|_| u64::MAX - args.seed));
    let result = match (runs, args.cut) {
        (Some(runs), _) => random(&args, &layouts, runs),
        (None, Some(cut)) => layouts.iter().try_for_each(|l| campaign(l).one_cut(cut).map(|t| say(*l, t))),
        (None, None) => layouts.iter().try_for_each(|l| every_cut(&campaign(l), &args).map(|t| say(*l, t))),
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

/// Runs on full pools, from the seed on.
fn full(args: &Args, runs: u64) -> ExitCode {
    let (next, found) = (AtomicU64::new(args.seed), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..args.jobs.min(runs) {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= args.seed + runs {
                        return;
                    }
                    match full_run(seed, args.ops as u64) {
                        Ok(done) => println!("{seed}: {done:?}"),
                        Err(what) => {
                            found.fetch_add(1, Ordering::Relaxed);
                            println!("FOUND: {what}");
                        }
                    }
                }
            });
        }
    });
    println!("{:.1} s", start.elapsed().as_secs_f64());
    if found.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(layout: Layout, t: Tally) {
    println!(
        "{}: {} writes, {} flushes, {} power cuts ({} of them changed nothing); every pool came back whole (trace {:016x})",
        layout.name(),
        t.writes,
        t.flushes,
        t.cuts,
        t.same,
        t.trace
    );
}

/// Once to its end, to know how many writes and flushes there are; then every one of them.
fn every_cut(campaign: &Campaign, args: &Args) -> Result<Tally, Finding> {
    let whole = campaign.undisturbed()?;
    let all = (whole.writes + whole.flushes).saturating_sub(args.first) / args.step;
    let progress = Progress::new(campaign.layout.name(), all);
    let parts = share(args.jobs, |job| {
        let mine = |cut: u64| (cut / STRETCH) % args.jobs == job;
        campaign.every_cut(args.first, args.step, mine, |_| progress.one())
    })?;
    Ok(parts.into_iter().fold(whole, |sum, t| Tally {
        cuts: sum.cuts + t.cuts,
        same: sum.same + t.same,
        ..sum
    }))
}

/// So many runs, or those that there is time for.
fn random(args: &Args, layouts: &[Layout], runs: u64) -> Result<(), Finding> {
    let start = Instant::now();
    let over = || args.hours.is_some_and(|h| start.elapsed().as_secs_f64() > h * 3600.0);
    let progress = Progress::new("random runs", runs);
    share(args.jobs, |job| {
        (job..runs).step_by(args.jobs as usize).take_while(|_| !over()).try_for_each(|i| {
            let seed = args.seed + i;
            random_run(seed, layouts[seed as usize % layouts.len()])?;
            progress.one();
            Ok(())
        })
    })?;
    let done = progress.done.load(Ordering::Relaxed);
    println!("{done} random runs; every pool came back whole");
    Ok(())
}

/// Does a piece of the work in each of `jobs` threads.
fn share<T: Send>(jobs: u64, work: impl Fn(u64) -> Result<T, Finding> + Sync) -> Result<Vec<T>, Finding> {
    let work = &work;
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..jobs).map(|job| s.spawn(move || work(job))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Says now and then how far the work is, and how long it will take.
struct Progress<'a> {
    what: &'a str,
    all: u64,
    done: AtomicU64,
    /// When to speak next, in seconds since the start.
    next: AtomicU64,
    start: Instant,
}

impl Progress<'_> {
    const EVERY: Duration = Duration::from_secs(20);

    fn new(what: &str, all: u64) -> Progress<'_> {
        let next = Self::EVERY.as_secs().into();
        Progress { what, all, done: 0.into(), next, start: Instant::now() }
    }

    fn one(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let gone = self.start.elapsed().as_secs();
        let next = self.next.load(Ordering::Relaxed);
        let then = gone + Self::EVERY.as_secs();
        if gone >= next
            && self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let left = u128::from(gone) * u128::from(self.all.saturating_sub(done)) / u128::from(done);
            match self.all {
                // As many as there is time for.
                0x1_0000_0000.. => println!("{}: {done} in {gone} s", self.what),
                all => println!("{}: {done} of {all} in {gone} s, about {left} s more", self.what),
            }
        }
    }
}
