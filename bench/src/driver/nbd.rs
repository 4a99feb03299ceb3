//! The NBD part: a volume through the daemon, beside qemu-nbd with a qcow2 and a raw file, by fio's
//! NBD client.
//!
//! All servers run at once, each on a file in the driver's folder, which is in memory by default;
//! the file was written in full before. Each workload goes to one server after the other. What a
//! request costs is the server's CPU time and its thread switches; system calls would need a
//! tracer, which changes what is measured.

use super::daemon::Daemon;
use super::report::{median, number, table};
use super::{Options, peers};
use crate::engine::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Of every volume. What zilla's lies on has room for what is free only after some txgs.
const SIZE: &str = "1G";
const DISK: u64 = 4 << 30;
/// A second of /proc/PID/stat, which Linux gives in USER_HZ.
const TICKS: f64 = 100.0;
const GIB: f64 = (1u64 << 30) as f64;
/// Half of what is written can be compressed away.
const COMPRESSIBLE: &str = "--buffer_compress_percentage=50";
const SIDES: [&str; 3] = ["zilla", "qcow2", "raw"];

struct Work {
    name: &'static str,
    fio: &'static [&'static str],
    /// Counted in bytes, not in operations.
    bytes: bool,
    /// What was promised: at least so many times this side.
    promise: Option<(f64, &'static str)>,
}

const RANDOM: &[&str] = &["--norandommap"];

const fn work(
    name: &'static str,
    fio: &'static [&'static str],
    bytes: bool,
    promise: (f64, &'static str),
) -> Work {
    Work { name, fio, bytes, promise: Some(promise) }
}

const QCOW2: (f64, &str) = (2.0, "qcow2");
const RAW: (f64, &str) = (0.9, "raw");

const WORKS: [Work; 10] = [
    work("16k random write qd1", &["--rw=randwrite", "--bs=16k", "--iodepth=1"], false, QCOW2),
    work("16k random write qd16", &["--rw=randwrite", "--bs=16k", "--iodepth=16"], false, QCOW2),
    work("8k write+flush qd1", &["--rw=randwrite", "--bs=8k", "--iodepth=1", "--fsync=1"], false, QCOW2),
    work("8k write+flush qd16", &["--rw=randwrite", "--bs=8k", "--iodepth=16", "--fsync=1"], false, QCOW2),
    work("128k sequential write qd1", &["--rw=write", "--bs=128k", "--iodepth=1"], true, RAW),
    work("128k sequential write qd16", &["--rw=write", "--bs=128k", "--iodepth=16"], true, RAW),
    work("128k sequential read qd1", &["--rw=read", "--bs=128k", "--iodepth=1"], true, RAW),
    work("128k sequential read qd16", &["--rw=read", "--bs=128k", "--iodepth=16"], true, RAW),
    Work {
        name: "16k random read qd1",
        fio: &["--rw=randread", "--bs=16k", "--iodepth=1"],
        bytes: false,
        promise: None,
    },
    Work {
        name: "16k random read qd16",
        fio: &["--rw=randread", "--bs=16k", "--iodepth=16"],
        bytes: false,
        promise: None,
    },
];

/// qemu-nbd, ended when it goes.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server and how it is spoken to.
struct Side {
    name: &'static str,
    pid: u32,
    uri: String,
}

/// CPU seconds and thread switches of a process so far.
fn spent(pid: u32) -> Result<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields 14 and 15, counted from behind the name in brackets.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let cpu = (ticks(11) + ticks(12)) / TICKS;
    let mut switches = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        // A thread may end between the two.
        let text = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        for line in text.lines().filter(|l| l.contains("ctxt_switches")) {
            switches += line.split_whitespace().last().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
        }
    }
    Ok((cpu, switches))
}

fn fio(uri: &str, args: &[&str]) -> Result<Value> {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--ioengine=nbd", "--output-format=json", COMPRESSIBLE]);
    let done = command.arg(format!("--uri={uri}")).arg(format!("--size={SIZE}")).args(args).output()?;
    if !done.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&done.stderr).trim()).into());
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let json = text.find('{').and_then(|at| text.get(at..)).unwrap_or_default();
    Ok(serde_json::from_str(json)?)
}

/// Bytes, operations and seconds of what fio did.
fn done(told: &Value) -> Result<(f64, f64, f64)> {
    let sum = |field: &str| -> f64 {
        ["read", "write"].iter().filter_map(|d| told["jobs"][0][d][field].as_f64()).sum()
    };
    let seconds = sum("runtime") / 1000.0;
    if seconds <= 0.0 || sum("total_ios") <= 0.0 {
        return Err("fio did nothing".into());
    }
    Ok((sum("io_bytes"), sum("total_ios"), seconds))
}

fn qemu(dir: &Path, format: &'static str) -> Result<(Qemu, Side)> {
    let (image, socket) = (dir.join(format!("image.{format}")), dir.join(format!("{format}.sock")));
    let made =
        Command::new("qemu-img").args(["create", "-q", "-f", format]).arg(&image).arg(SIZE).status()?;
    if !made.success() {
        return Err(format!("qemu-img: {made}").into());
    }
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--shared=16", "--discard=unmap", "--cache=writeback", "-f", format, "-k"]);
    let child = command.arg(&socket).arg(&image).stderr(Stdio::null()).spawn();
    let child = Qemu(child.map_err(|e| format!("qemu-nbd: {e}"))?);
    wait_for(&socket)?;
    let pid = child.0.id();
    Ok((child, Side { name: format, pid, uri: format!("nbd+unix:///?socket={}", socket.display()) }))
}

fn wait_for(socket: &Path) -> Result<()> {
    for _ in 0..100 {
        if socket.exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!("{} does not come", socket.display()).into())
}

fn zilla(dir: &Path) -> Result<(Daemon, Side)> {
    let disk = dir.join("disk");
    // Memory that was never touched is ten times slower.
    let file = std::fs::File::create(&disk)?;
    let zeroes = vec![0u8; 1 << 20];
    for at in 0..DISK >> 20 {
        std::os::unix::fs::FileExt::write_all_at(&file, &zeroes, at << 20)?;
    }
    let daemon = Daemon::start(&peers::commands()?, dir)?;
    daemon.ask("zpool", &["create", "-f", "-m", "none", "zillabench", &disk.to_string_lossy()])?;
    daemon.ask("zfs", &["create", "-s", "-V", SIZE, "zillabench/v"])?;
    let socket = daemon.state().join("nbd.sock");
    let uri = format!("nbd+unix:///zillabench/v?socket={}", socket.display());
    let pid = daemon.pid();
    Ok((daemon, Side { name: "zilla", pid, uri }))
}

pub fn run(o: &Options) -> Result<Value> {
    let dir: PathBuf = o.dir.join("nbd");
    std::fs::create_dir_all(&dir)?;
    let result = measure(o, &dir);
    // Everything in it was made here.
    let _ = std::fs::remove_dir_all(&dir);
    result
}

type Runs = BTreeMap<&'static str, Vec<Value>>;

fn measure(o: &Options, dir: &Path) -> Result<Value> {
    let (_daemon, own) = zilla(dir)?;
    let mut sides = vec![own];
    let mut servers = Vec::new();
    for format in ["qcow2", "raw"].iter().filter(|_| o.with_peers) {
        let (server, side) = qemu(dir, format)?;
        servers.push(server);
        sides.push(side);
    }
    for side in &sides {
        fio(&side.uri, &["--rw=write", "--bs=1M", "--iodepth=4", "--end_fsync=1"])?;
    }
    let works: Vec<&Work> = WORKS.iter().filter(|w| o.wants(w.name)).collect();
    let mut runs: Vec<Runs> = works.iter().map(|_| Runs::new()).collect();
    let time = format!("--runtime={}", o.seconds);
    for round in 0..o.runs {
        for (work, runs) in works.iter().zip(&mut runs) {
            eprintln!("round {} of {}: {}", round + 1, o.runs, work.name);
            for side in &sides {
                let before = spent(side.pid)?;
                let args = [work.fio, RANDOM, &["--time_based", &time]].concat();
                let (bytes, ops, seconds) = done(&fio(&side.uri, &args)?)?;
                let after = spent(side.pid)?;
                let rate = if work.bytes { bytes / 1e6 } else { ops } / seconds;
                runs.entry(side.name).or_default().push(json!({
                    "rate": rate,
                    "cpu_s_per_GiB": (after.0 - before.0) / (bytes / GIB),
                    "csw_per_op": (after.1 - before.1) / ops,
                }));
            }
        }
    }
    let summary: Vec<Value> = works.iter().zip(&runs).map(|(w, runs)| summarise(w, runs)).collect();
    println!("{}", show(&summary));
    let runs: Vec<Value> =
        works.iter().zip(&runs).map(|(w, runs)| json!({ "workload": w.name, "runs": runs })).collect();
    Ok(json!({ "summary": summary, "runs": runs }))
}

fn summarise(work: &Work, runs: &Runs) -> Value {
    let mid = |side: &str, field: &str| {
        runs.get(side).and_then(|r| median(r.iter().filter_map(|v| v[field].as_f64())))
    };
    let mut out = json!({ "workload": work.name, "unit": if work.bytes { "MB/s" } else { "IOPS" } });
    for side in SIDES.iter().filter(|s| runs.contains_key(*s)) {
        out[side] = json!({ "rate": mid(side, "rate"), "cpu_s_per_GiB": mid(side, "cpu_s_per_GiB"),
            "csw_per_op": mid(side, "csw_per_op") });
    }
    if let Some((least, side)) = work.promise {
        let ratio = mid("zilla", "rate").zip(mid(side, "rate")).map(|(own, other)| own / other);
        out["ratio"] = json!(ratio);
        out["promise"] = json!(format!(">= {least} of {side}"));
        out["kept"] = json!(ratio.map(|r| r >= least));
    }
    out
}

fn show(summary: &[Value]) -> String {
    let mut head = vec!["NBD".to_owned(), "unit".to_owned()];
    head.extend(SIDES.map(String::from));
    head.extend(SIDES.map(|s| format!("{s} s/GiB")));
    head.extend(SIDES.map(|s| format!("{s} csw/op")));
    head.extend(["ratio", "promised"].map(String::from));
    let mut rows = vec![head];
    for s in summary {
        let mut row: Vec<String> =
            ["workload", "unit"].map(|f| s[f].as_str().unwrap_or_default().to_owned()).to_vec();
        for field in ["rate", "cpu_s_per_GiB", "csw_per_op"] {
            row.extend(SIDES.map(|side| number(&s[side][field])));
        }
        row.push(number(&s["ratio"]));
        row.push(match (s["promise"].as_str(), s["kept"].as_bool()) {
            (Some(promise), Some(kept)) => format!("{promise} {}", if kept { "kept" } else { "MISSED" }),
            _ => String::new(),
        });
        rows.push(row);
    }
    table(&rows)
}
