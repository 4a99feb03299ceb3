//! Where and of what a result is: without that it is no result.

use crate::engine::Result;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

pub fn describe() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|l| l.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, v)| v.trim().to_owned())
    };
    let cpus = read("/proc/cpuinfo");
    json!({
        "cpu": field(&cpus, "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
        "gives_memory_back": gives_memory_back(),
    })
}

/// Whether this is a virtual machine that gives its free memory back to the host (free page
/// reporting, VIRTIO_BALLOON_F_REPORTING). What is written to such memory next waits for the host:
/// a file of 1 GiB in memory took 4.5 s to write instead of 1.1. Which of two programs meets it is
/// chance.
fn gives_memory_back() -> bool {
    const FEATURE_REPORTING: usize = 5;
    // Blocks of more than 2^10 pages are never free, so an order above that ends it.
    let order = std::fs::read_to_string("/sys/module/page_reporting/parameters/page_reporting_order");
    let ended = order.ok().and_then(|o| o.trim().parse::<u32>().ok()).is_some_and(|order| order > 10);
    let devices = std::fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon").into_iter().flatten().flatten();
    let mut features = devices.filter_map(|d| std::fs::read_to_string(d.path().join("features")).ok());
    !ended && features.any(|f| f.as_bytes().get(FEATURE_REPORTING) == Some(&b'1'))
}

/// The commit, with a `+` if the tree has changes that are in none.
pub fn commit(root: &Path) -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).current_dir(root).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let dirty = git(&["status", "--porcelain", "-uno"]).is_some_and(|s| !s.is_empty());
    if dirty { head + "+" } else { head }
}

pub fn save(folder: &Path, result: &Value) -> Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let commit = result["commit"].as_str().unwrap_or_default().to_owned();
    let path = folder.join(format!("{seconds}-{commit}.json"));
    std::fs::write(&path, serde_json::to_string_pretty(result)?)?;
    Ok(path)
}
