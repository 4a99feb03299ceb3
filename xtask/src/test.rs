//! Runs every test of the workspace, as many test programs at a time as there are cores.
//!
//! `cargo test` runs one program after the other, and those that drive commands, mounts and timers
//! leave the cores idle most of their time. What a program prints is shown when it ends, whole,
//! with cargo's heading, so that a log reads as one of `cargo test`. The tests in the documentation
//! come last.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What every call of cargo gets.
const WORKSPACE: [&str; 3] = ["test", "--workspace", "--locked"];

/// A test program, and the folder of its package, in which it runs.
struct Program {
    path: PathBuf,
    package: PathBuf,
    /// As cargo names it.
    source: String,
}

/// What is printed at the end.
#[derive(Default)]
struct Tally {
    failed: Vec<String>,
    took: Vec<(Duration, String)>,
}

pub fn main(root: &Path) -> ExitCode {
    let mut programs = match build(root) {
        Ok(programs) => programs,
        Err(e) => return fail(&e),
    };
    // Those that drive the commands take longest.
    programs.sort_by_key(|p| !p.package.starts_with(root.join("tests")));
    let (queue, tally) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Tally::default()));
    let libraries = libraries();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().ok().and_then(|mut q| q.pop_front());
                    let Some(program) = next else { return };
                    run(&program, libraries.as_deref(), &tally);
                }
            });
        }
    });
    let mut docs = cargo();
    docs.args(WORKSPACE).args(["--doc", "--no-fail-fast"]).current_dir(root);
    let documented = docs.status().is_ok_and(|s| s.success());
    let Ok(mut tally) = tally.into_inner() else { return fail("a worker panicked") };
    if !documented {
        tally.failed.push("the tests in the documentation".to_owned());
    }
    tally.took.sort();
    println!("\nthe longest:");
    for (took, name) in tally.took.iter().rev().take(10) {
        println!("{:6} s  {name}", took.as_secs());
    }
    if tally.failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    fail(&format!("failed: {}", tally.failed.join(", ")))
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds all test programs, and says where they are.
fn build(root: &Path) -> Result<Vec<Program>, String> {
    let mut build = cargo();
    build.args(WORKSPACE).args(["--no-run", "--message-format=json-render-diagnostics"]);
    let mut child = build
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cargo cannot be run: {e}"))?;
    let mut programs = Vec::new();
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufReader::lines) {
        let line = line.map_err(|e| format!("cargo's messages end early: {e}"))?;
        programs.extend(serde_json::from_str(&line).ok().and_then(|m| program(root, &m)));
    }
    match child.wait() {
        Ok(status) if status.success() && !programs.is_empty() => Ok(programs),
        Ok(status) if status.success() => Err("there are no test programs".to_owned()),
        _ => Err("the tests do not build".to_owned()),
    }
}

/// The test program that a message of cargo's tells of.
fn program(root: &Path, message: &serde_json::Value) -> Option<Program> {
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let source = source.strip_prefix(root).unwrap_or(source).display().to_string();
    Some(Program { path: message["executable"].as_str()?.into(), package, source })
}

/// Where the standard library is, which the tests of a crate of macros load.
fn libraries() -> Option<PathBuf> {
    let out = Command::new("rustc").args(["--print", "target-libdir"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(out.stdout).ok()?.trim()))
}

fn run(program: &Program, libraries: Option<&Path>, tally: &Mutex<Tally>) {
    let start = Instant::now();
    let mut test = Command::new(&program.path);
    test.current_dir(&program.package).env("CARGO_MANIFEST_DIR", &program.package).stdin(Stdio::null());
    if let Some(at) = libraries {
        test.env("LD_LIBRARY_PATH", at);
    }
    let result = test.output();
    let took = start.elapsed();
    let Ok(mut tally) = tally.lock() else { return };
    let mut out = std::io::stdout().lock();
    let mut show = |bytes: &[u8]| {
        // Nobody reads any more: the exit code still tells.
        let _ = out.write_all(bytes);
    };
    show(format!("     Running {} ({})\n", program.source, program.path.display()).as_bytes());
    match &result {
        Ok(done) => {
            show(&done.stdout);
            show(&done.stderr);
            if !done.status.success() {
                show(format!("error: {}: {}\n", program.source, done.status).as_bytes());
            }
        }
        Err(e) => show(format!("error: {}: {e}\n", program.source).as_bytes()),
    }
    if !result.is_ok_and(|done| done.status.success()) {
        tally.failed.push(program.source.clone());
    }
    tally.took.push((took, program.source.clone()));
}

fn fail(message: &str) -> ExitCode {
    eprintln!("test: {message}");
    ExitCode::FAILURE
}
