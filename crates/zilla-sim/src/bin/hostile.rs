//! Many mutants of an attacker's pools, each bounded in time and memory: `cargo xtask hostile`.
//!
//! A child of this program lives with mutants one after the other and says which. It may not have
//! more memory than a mutant may take; one that dies, or works on one mutant for too long, has
//! found something, and another goes on behind it.

use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use zilla_sim::hostile::{Base, Dice, Limits, Mutant, live};
use zilla_sim::pool::Layout;

const USAGE: &str = "usage: hostile [--seed N] [--runs M] [--jobs J] [--corpus DIR] [--only BASE]
";
/// Memory that a mutant may take.
const MEMORY: u64 = 512 << 20;
/// Time that it may take of the processor, and in all on a machine that has other things to do.
const CPU: Duration = Duration::from_secs(30);
const WALL: Duration = Duration::from_secs(240);

#[derive(Clone)]
struct Args {
    seed: u64,
    runs: u64,
    jobs: u64,
    corpus: PathBuf,
    only: Option<String>,
    child: bool,
}

fn parse() -> Option<Args> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/interop/corpus");
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut a = Args { seed: 0, runs: 1000, jobs, corpus, only: None, child: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--child" {
            a.child = true;
            continue;
        }
        let value = words.next()?;
        match word.as_str() {
            "--seed" => a.seed = value.parse().ok()?,
            "--runs" => a.runs = value.parse().ok()?,
            "--jobs" => a.jobs = value.parse().ok().filter(|n| *n > 0)?,
            "--corpus" => a.corpus = value.into(),
            "--only" => a.only = Some(value),
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
    let done = if args.child { child(&args) } else { parent(&args) };
    match done {
        Ok(0) => ExitCode::SUCCESS,
        Ok(n) => {
            println!("{n} findings");
            ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("hostile: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The pools that are changed, in an order that stays the same.
fn bases(args: &Args) -> std::io::Result<Vec<Base>> {
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    let mut out = Vec::new();
    for layout in [Layout::Single, Layout::Mirror] {
        if wanted(layout.name()) {
            out.extend(Base::worked(layout, 1));
        }
    }
    let mut archives: Vec<PathBuf> =
        std::fs::read_dir(&args.corpus)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    archives.sort();
    for archive in archives {
        let name = archive.file_name().unwrap_or_default().to_string_lossy().replace(".tar.zst", "");
        if wanted(&name) && archive.extension().is_some_and(|e| e == "zst") {
            out.extend(Base::of_archive(&archive)?);
        }
    }
    Ok(out)
}

/// Bytes of private memory this process has.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmData:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Lives with every `jobs`-th mutant.
fn child(args: &Args) -> std::io::Result<u64> {
    let bases = bases(args)?;
    let limit = Rlimit { current: Some(memory() + MEMORY), ..getrlimit(Resource::Data) };
    setrlimit(Resource::Data, limit)?;
    let out = std::io::stdout();
    let mut found = 0;
    for seed in (args.seed..args.seed + args.runs).step_by(args.jobs as usize) {
        let base = &bases[seed as usize % bases.len()];
        let mutant = Mutant::new(base, &mut Dice::new(seed));
        writeln!(&out, "begin {seed} {}: {}", base.name, mutant.what)?;
        let result = catch_unwind(AssertUnwindSafe(|| live(&mutant.disks, seed, Limits::default())));
        let result = result.unwrap_or_else(|_| Err("it panicked".into()));
        match result {
            Ok(()) => writeln!(&out, "end")?,
            Err(what) => {
                found += 1;
                writeln!(&out, "found {what}")?;
            }
        }
    }
    Ok(found)
}

fn parent(args: &Args) -> std::io::Result<u64> {
    let start = Instant::now();
    let progress = Mutex::new((0, 0, start));
    let said = |done: u64, found: u64| {
        let mut p = progress.lock().unwrap_or_else(|e| e.into_inner());
        (p.0, p.1) = (p.0 + done, p.1 + found);
        if p.2.elapsed() > Duration::from_secs(20) {
            p.2 = Instant::now();
            println!("{} of {} in {} s, {} findings", p.0, args.runs, start.elapsed().as_secs(), p.1);
        }
    };
    std::thread::scope(|s| {
        let jobs: Vec<_> = (0..args.jobs.min(args.runs))
            .map(|job| {
                let said = &said;
                s.spawn(move || job_of(args, job, said))
            })
            .collect();
        jobs.into_iter().try_for_each(|j| j.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })?;
    let (done, found, _) = *progress.lock().unwrap_or_else(|e| e.into_inner());
    println!("{done} mutants in {} s, {found} findings", start.elapsed().as_secs());
    Ok(found)
}

/// Starts children until every mutant of a job has been lived with.
fn job_of(args: &Args, job: u64, said: &dyn Fn(u64, u64)) -> std::io::Result<()> {
    let end = args.seed + args.runs;
    let mut next = args.seed + job;
    while next < end {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--child", "--seed", &next.to_string(), "--runs", &(end - next).to_string()]);
        command.args(["--jobs", &args.jobs.to_string(), "--corpus"]).arg(&args.corpus);
        command.args(args.only.iter().flat_map(|o| ["--only", o]));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let (tell, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|l| tell.send(l))
            });
        }
        let before = next;
        watch(&mut child, &lines, args, &mut next, said);
        let _ = child.kill();
        child.wait()?;
        if next == before {
            return Err(std::io::Error::other("a child died before its first mutant"));
        }
    }
    Ok(())
}

/// Follows a child to its end, or to the end of its time. `next` is the seed that has not been
/// begun.
fn watch(child: &mut Child, lines: &Receiver<String>, args: &Args, next: &mut u64, said: &dyn Fn(u64, u64)) {
    let mut now: Option<(String, Duration, Instant)> = None;
    let report = |what: &str, mutant: &str| {
        let seed = mutant.split(' ').next().unwrap_or_default();
        let only = args.only.as_ref().map(|o| format!(" --only {o}")).unwrap_or_default();
        println!("FOUND: {mutant}: {what}\n  again: cargo xtask hostile --seed {seed} --runs 1{only}");
        said(1, 1);
    };
    loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => match (line.split_once(' '), &now) {
                (Some(("begin", mutant)), _) => {
                    now = Some((mutant.to_owned(), cpu_of(child), Instant::now()));
                    *next += args.jobs;
                }
                (Some(("found", what)), Some((mutant, ..))) => {
                    report(what, mutant);
                    now = None;
                }
                _ => {
                    now = None;
                    said(1, 0);
                }
            },
            Err(RecvTimeoutError::Timeout) => {
                if let Some((mutant, cpu, wall)) = &now
                    && (cpu_of(child).saturating_sub(*cpu) > CPU || wall.elapsed() > WALL)
                {
                    return report("it does not end", mutant);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                if let Some((mutant, ..)) = &now {
                    let status = child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
                    report(&format!("the process died ({status})"), mutant);
                }
                return;
            }
        }
    }
}

/// Processor time that a child has taken.
fn cpu_of(child: &Child) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // Fields 14 and 15, in ticks of a hundredth of a second, behind a name that may have blanks.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
