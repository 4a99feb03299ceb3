//! The import part: how long `zpool import` of a pool of a million files takes, mount included, and
//! how large the daemon is when it has nothing to do after that.

use super::daemon::Daemon;
use super::report::{median, number, table};
use super::{Options, peers};
use crate::engine::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const FILES: &str = "1000000";
/// What the project has promised.
const SECONDS: f64 = 1.0;
const MIB: f64 = 64.0;
/// How long the daemon is left alone before it is looked at.
const IDLE: Duration = Duration::from_secs(15);

/// A line of /proc/PID/status, in MiB.
fn status_mib(pid: u32, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

pub fn run(o: &Options) -> Result<Value> {
    let commands = peers::commands()?;
    let dir = o.dir.join("import");
    std::fs::create_dir_all(&dir)?;
    let result = measure(o, &commands, &dir);
    // Everything in it was made here.
    let _ = std::fs::remove_dir_all(&dir);
    result
}

fn measure(o: &Options, commands: &Path, dir: &Path) -> Result<Value> {
    let files = [dir.join("m0"), dir.join("m1")].map(|p| p.to_string_lossy().into_owned());
    eprintln!("making a pool of {FILES} files");
    let made = Command::new(std::env::current_exe()?)
        .args(["files", "--vdev", &format!("mirror {} {}", files[0], files[1])])
        .args(["--vdev-size", "2500M", "--threads", "2", "--count", FILES])
        .status()?;
    if !made.success() {
        return Err(format!("the pool could not be made: {made}").into());
    }
    let (dir, root) = (dir.to_string_lossy().into_owned(), dir.join("root").to_string_lossy().into_owned());
    std::fs::create_dir_all(&root)?;
    let (mut seconds, mut idle, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..o.runs {
        eprintln!("round {} of {}: import", round + 1, o.runs);
        let daemon = Daemon::start(commands, Path::new(&dir))?;
        let begun = Instant::now();
        daemon.ask("zpool", &["import", "-d", &dir, "-R", &root, "zillabench"])?;
        seconds.push(begun.elapsed().as_secs_f64());
        std::thread::sleep(IDLE);
        let pid = daemon.pid();
        idle.push(status_mib(pid, "VmRSS"));
        own.push(status_mib(pid, "RssAnon"));
        daemon.ask("zpool", &["export", "zillabench"])?;
    }
    let mid = |v: &[f64]| median(v.iter().copied());
    let (took, rss, anon) = (mid(&seconds), mid(&idle), mid(&own));
    let kept = |v: Option<f64>, limit: f64| v.is_some_and(|v| v < limit);
    let row = |name: &str, v: Option<f64>, limit: f64| {
        let verdict = if kept(v, limit) { "kept" } else { "MISSED" };
        vec![name.to_owned(), number(&json!(v)), format!("< {limit} {verdict}")]
    };
    let head = ["a pool of a million files", "", "promised"].map(String::from).to_vec();
    let rows = [head, row("import, seconds", took, SECONDS), row("idle daemon, MiB", rss, MIB)];
    println!("{}", table(&rows));
    Ok(json!({ "files": 1_000_000, "import_s": took, "idle_rss_MiB": rss, "idle_anonymous_MiB": anon,
        "kept": kept(took, SECONDS) && kept(rss, MIB),
        "runs": { "import_s": seconds, "idle_rss_MiB": idle, "idle_anonymous_MiB": own } }))
}
