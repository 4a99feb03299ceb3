//! The sync part: 8 KiB writes that are stable when they return, on the real disk.
//!
//! Through the facade beside fio (a plain pwrite and fdatasync of a file on the same disk) and
//! OpenZFS's engine; and through a mount beside zfs-fuse and btrfs, by the judges' driver. All
//! files lie in one folder of the disk (`--disk`), every byte of them written before anything is
//! timed.

use super::report::{median, number, table};
use super::{Options, fuse, one, peers};
use crate::engine::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const THREADS: [usize; 3] = [1, 10, 32];
const FILE: &str = "400M";
/// Room for several txgs' versions of the whole file, and for the log.
const POOL: &str = "4G";
/// A txg lasts up to five seconds, and the first ones touch memory that is fresh.
const LEAST_SECONDS: f64 = 20.0;

/// What is promised: of fio with one thread by one thread and by 32, and of OpenZFS's engine at
/// each number.
const ONE: f64 = 0.85;
const MANY: f64 = 3.0;
const ENGINE: f64 = 3.0;

#[derive(Default)]
struct Runs {
    zilla: Vec<Value>,
    fio: Vec<Value>,
    openzfs: Vec<Value>,
}

pub fn run(o: &Options, peer: Option<&Path>) -> Result<Value> {
    std::fs::create_dir_all(&o.disk)?;
    let result = measure(o, peer);
    // What was made here, and nothing else, is taken away again.
    for name in ["sync-pool", "sync-peer", "sync-plain"] {
        let _ = std::fs::remove_file(o.disk.join(name));
    }
    let mounted = fuse::measure(o, &o.disk.join("fs"), "dsync8k", "disk");
    let _ = std::fs::remove_dir(&o.disk);
    let mut result = result?;
    result["fuse"] = match mounted {
        Ok(v) => v,
        Err(e) => {
            eprintln!("without mounts: {e}");
            json!({ "missing": e.to_string() })
        }
    };
    Ok(result)
}

fn measure(o: &Options, peer: Option<&Path>) -> Result<Value> {
    let me = std::env::current_exe()?;
    let seconds = o.seconds.max(LEAST_SECONDS).to_string();
    let path = |name: &str| o.disk.join(name).to_string_lossy().into_owned();
    let mut rows: Vec<Runs> = THREADS.iter().map(|_| Runs::default()).collect();
    for round in 0..o.runs {
        for (threads, row) in THREADS.iter().zip(&mut rows) {
            eprintln!("round {} of {}: sync8k, {threads} threads", round + 1, o.runs);
            let threads = threads.to_string();
            let common =
                ["--vdev-size", POOL, "--volsize", FILE, "--threads", &threads, "--seconds", &seconds];
            let mut zilla = Command::new(&me);
            // What one wrote is not to be written back at the next one's cost.
            rustix::fs::sync();
            row.zilla.push(one(zilla.args(["sync", "--vdev", &path("sync-pool")]).args(common))?);
            if !o.with_peers {
                continue;
            }
            rustix::fs::sync();
            row.fio.push(fio(&path("sync-plain"), &threads, &seconds)?);
            if let Some(peer) = peer {
                let mut command = peers::quiet_allocator(Command::new(peer));
                command.args(["--vdev", &path("sync-peer"), "--arc-max", "512M"]).args(common);
                command.args(["--workload", "syncwrite8k"]).args(super::workloads::PEER_LIMITS);
                rustix::fs::sync();
                row.openzfs.push(one(&mut command)?);
            }
        }
    }
    Ok(summarise(&rows))
}

/// A plain pwrite and fdatasync, again and again.
fn fio(file: &str, threads: &str, seconds: &str) -> Result<Value> {
    let common = [
        "--name=plain",
        "--ioengine=psync",
        "--bs=8k",
        "--output-format=json",
        "--group_reporting",
        "--randrepeat=0",
        "--norandommap",
    ];
    let file = format!("--filename={file}");
    let size = format!("--size={FILE}");
    // Makes the file, or finds it: its blocks are written, and so no file system has anything but
    // data to make stable.
    let laid = Command::new("fio")
        .args(["--name=lay", "--rw=write", "--bs=1M", "--end_fsync=1", &file, &size])
        .output()
        .map_err(|e| format!("fio: {e}"))?;
    if !laid.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&laid.stderr)).into());
    }
    let done = Command::new("fio")
        .args(common)
        .args(["--rw=randwrite", "--fdatasync=1", "--time_based", &file, &size])
        .args([format!("--numjobs={threads}"), format!("--runtime={seconds}")])
        .output()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let from = text.find('{').filter(|_| done.status.success());
    let Some(from) = from else {
        return Err(format!("fio: {}", String::from_utf8_lossy(&done.stderr)).into());
    };
    let all: Value = serde_json::from_str(&text[from..])?;
    let write = &all["jobs"][0]["write"];
    Ok(json!({ "IOPS": write["iops"], "MBps": write["bw_bytes"].as_f64().map(|b| b / 1_048_576.0) }))
}

fn summarise(rows: &[Runs]) -> Value {
    let iops = |runs: &[Value]| median(runs.iter().filter_map(|r| r["IOPS"].as_f64()));
    let plain = rows.first().and_then(|r| iops(&r.fio));
    let head = ["sync 8K on disk, IOPS", "zilla", "fio", "OpenZFS", "/fio 1 thread", "/OpenZFS", "promised"];
    let mut lines = vec![head.map(String::from).to_vec()];
    let mut out = Vec::new();
    for (threads, row) in THREADS.iter().zip(rows) {
        let (zilla, fio, openzfs) = (iops(&row.zilla), iops(&row.fio), iops(&row.openzfs));
        let ratio = |other: Option<f64>| Some(zilla? / other?);
        let (to_plain, to_engine) = (ratio(plain), ratio(openzfs));
        let of_fio = match threads {
            1 => Some(ONE),
            32 => Some(MANY),
            _ => None,
        };
        let mut promises = Vec::new();
        for (least, got, name) in [(of_fio, to_plain, "fio's one"), (Some(ENGINE), to_engine, "OpenZFS")] {
            if let (Some(least), Some(got)) = (least, got) {
                promises.push((format!(">= {least} of {name}"), got >= least));
            }
        }
        let said = promises.iter().map(|(p, k)| format!("{p} {}", if *k { "kept" } else { "MISSED" }));
        let mut line = vec![format!("{threads} threads")];
        line.extend([zilla, fio, openzfs, to_plain, to_engine].map(|v| number(&json!(v))));
        line.push(said.collect::<Vec<_>>().join(", "));
        lines.push(line);
        out.push(json!({ "threads": threads, "zilla": zilla, "fio": fio, "openzfs": openzfs,
            "to_fio_1": to_plain, "to_openzfs": to_engine,
            "promises": promises.iter().map(|(p, k)| json!({ "promise": p, "kept": k })).collect::<Vec<_>>(),
            "runs": { "zilla": row.zilla, "fio": row.fio, "openzfs": row.openzfs } }));
    }
    println!("{}", table(&lines));
    json!({ "summary": out })
}
