//! The FUSE part: files through a mount, beside zfs-fuse, btrfs and a passthrough that only shows
//! what FUSE costs.
//!
//! The judges' driver (`fs_peers.py`) does the measuring, in a mount namespace of its own;
//! `bench/fs_zilla.py` adds zilla to its peers. It needs root (loop devices, mounts) and fio.

use super::report::{median, number, table};
use super::{Options, peers};
use crate::engine::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Small files. The passthrough holds a descriptor of each, which a process may not be allowed.
const FILES: u64 = 20_000;
const FILES_LESS: u64 = 15_000;

/// What the project has promised of a workload: at least so many times zfs-fuse, so much of the
/// passthrough, and of btrfs.
fn promise(workload: &str) -> (Option<f64>, Option<f64>, Option<f64>) {
    match workload {
        "seqwrite1m" | "seqread1m cold" => (Some(2.0), None, None),
        "dsync8k 1job" | "dsync8k 32jobs" => (Some(3.0), None, Some(1.0)),
        "files create 1p" | "files create 4p" | "files read 1p" | "files read 4p" | "files unlink 1p"
        | "files unlink 4p" | "tree untar+syncfs" | "tree find-ls cold" => (Some(2.0), Some(0.8), None),
        _ => (None, None, None),
    }
}

/// A record as a rate: more is better. And what it counts.
fn rate(record: &Value) -> Option<(f64, &'static str)> {
    let workload = record["workload"].as_str()?;
    let small = workload.contains("16k") || workload.contains("8k");
    if let Some(seconds) = record["secs"].as_f64() {
        return Some((1.0 / seconds.max(1e-6), "1/s"));
    }
    if let Some(ops) = record["ops"].as_f64() {
        return Some((ops, "op/s"));
    }
    Some(if small { (record["IOPS"].as_f64()?, "IOPS") } else { (record["MBps"].as_f64()?, "MB/s") })
}

pub fn run(o: &Options) -> Result<Value> {
    measure(o, &o.dir.join("fs"), &o.only, "mem")
}

/// The workloads with `only` in their names, on files in `dir`, which is in memory (`mem`) or on a
/// disk (`disk`).
pub fn measure(o: &Options, dir: &Path, only: &str, media: &str) -> Result<Value> {
    let judges = peers::judges(o)?;
    let mut names = vec!["zilla"];
    let mut missing = Vec::new();
    if o.with_peers {
        for (name, there) in [("zfsfuse", peers::zfs_fuse(o)), ("fusepass", peers::passthrough(o))] {
            match there {
                Ok(()) => names.push(name),
                Err(e) => missing.push(format!("{name}: {e}")),
            }
        }
        names.push("btrfs");
    }
    missing.iter().for_each(|m| eprintln!("without {m}"));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let files = if limit.is_none_or(|most| most > FILES + 1000) { FILES } else { FILES_LESS };
    let records = o.peers.join("fs_mem.jsonl");
    let _ = std::fs::remove_file(&records);
    let zfs_fuse = o.peers.join("zfs-fuse");
    // The passthrough holds a descriptor a file.
    let status = Command::new("sh")
        .args(["-c", "ulimit -n $(ulimit -Hn); exec unshare -m --propagation private python3 \"$@\"", "sh"])
        .arg(o.root.join("bench/fs_zilla.py"))
        .args(["--judges".as_ref(), judges.as_os_str()])
        .args(["--commands".as_ref(), peers::commands()?.as_os_str()])
        .args(["--dir".as_ref(), dir.as_os_str()])
        .args(["--build".as_ref(), o.peers.as_os_str()])
        .args(["--zfsfuse".as_ref(), zfs_fuse.as_os_str()])
        .arg("--fusepass")
        .arg(format!("{} -f -o source={{src}},timeout=1 {{mnt}}", o.peers.join("passthrough_ll").display()))
        .args(["--tarball".as_ref(), peers::tarball(o)?.as_os_str()])
        .args(["--peers", &names.join(","), "--runs", &o.runs.to_string(), "--files", &files.to_string()])
        .args(["--seconds", &o.seconds.to_string(), "--only", only, "--media", media])
        .args(["--out".as_ref(), records.as_os_str()])
        .env("LD_LIBRARY_PATH", zfs_fuse.join("lib"))
        .status()?;
    let _ = std::fs::remove_dir_all(dir);
    if !status.success() {
        return Err(format!("the file system driver: {status}").into());
    }
    let text = std::fs::read_to_string(&records)?;
    let runs: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    Ok(json!({ "summary": summarise(&runs), "files": files, "missing": missing, "runs": runs }))
}

/// Rates, and CPU seconds of the server, by peer.
type Rates = BTreeMap<String, Vec<(f64, Option<f64>)>>;

fn summarise(runs: &[Value]) -> Vec<Value> {
    // In the order they were run in.
    let mut order: Vec<(String, &'static str, Rates)> = Vec::new();
    for record in runs {
        let (Some(workload), Some(peer), Some((value, unit))) =
            (record["workload"].as_str(), record["peer"].as_str(), rate(record))
        else {
            continue;
        };
        let at = match order.iter().position(|(w, ..)| w == workload) {
            Some(at) => at,
            None => {
                order.push((workload.to_owned(), unit, Rates::new()));
                order.len() - 1
            }
        };
        order[at].2.entry(peer.to_owned()).or_default().push((value, record["server_cpu_s"].as_f64()));
    }
    let head =
        ["files", "unit", "zilla", "zfs-fuse", "passthrough", "btrfs", "/zfs-fuse", "/pass", "promised"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut out = Vec::new();
    for (workload, unit, rates) in order {
        let of = |peer: &str| rates.get(peer).and_then(|v| median(v.iter().map(|r| r.0)));
        let cpu = ["zilla", "zfsfuse", "fusepass"]
            .map(|peer| rates.get(peer).and_then(|v| median(v.iter().filter_map(|r| r.1))));
        let (zilla, old, pass, btrfs) = (of("zilla"), of("zfsfuse"), of("fusepass"), of("btrfs"));
        let ratio = |other: Option<f64>| Some(zilla? / other?);
        let (to_old, to_pass) = (ratio(old), ratio(pass));
        let (want_old, want_pass, want_btrfs) = promise(&workload);
        let mut promises = Vec::new();
        for (want, got, name) in [
            (want_old, to_old, "zfs-fuse"),
            (want_pass, to_pass, "passthrough"),
            (want_btrfs, ratio(btrfs), "btrfs"),
        ] {
            if let (Some(want), Some(got)) = (want, got) {
                promises.push((format!(">= {want} of {name}"), got >= want));
            }
        }
        let said = promises.iter().map(|(p, k)| format!("{p} {}", if *k { "kept" } else { "MISSED" }));
        let mut row = vec![workload.clone(), unit.to_owned()];
        row.extend([zilla, old, pass, btrfs, to_old, to_pass].iter().chain(&cpu).map(|v| number(&json!(v))));
        row.push(said.collect::<Vec<_>>().join(", "));
        rows.push(row);
        out.push(json!({ "workload": workload, "unit": unit, "zilla": zilla, "zfsfuse": old, "fusepass": pass,
            "btrfs": btrfs, "server_cpu_s": { "zilla": cpu[0], "zfsfuse": cpu[1], "fusepass": cpu[2] }, "to_zfsfuse": to_old, "to_fusepass": to_pass,
            "promises": promises.iter().map(|(p, k)| json!({ "promise": p, "kept": k })).collect::<Vec<_>>() }));
    }
    println!("{}", table(&rows));
    out
}
