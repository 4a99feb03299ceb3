//! The driver: zilla and its peers by turns, medians, ratios, a table and a file.
//!
//! A round goes over all workloads and within a workload over all sides, so that whatever else the
//! machine does hits every side alike; figures of different runs are never to be compared, ratios
//! within one are. CPU seconds per GiB count the process alone and are steady where MB/s is not.

mod daemon;
mod fuse;
mod import;
mod kernels;
mod machine;
mod nbd;
mod peers;
mod report;
mod streams;
mod sync;
mod workloads;

use crate::engine::Result;
use crate::modelled::{self, Through};
use lexopt::ValueExt;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Options {
    pub parts: Vec<String>,
    pub runs: usize,
    pub seconds: f64,
    pub only: String,
    pub dir: PathBuf,
    /// A folder of a real disk.
    pub disk: PathBuf,
    pub peers: PathBuf,
    pub with_peers: bool,
    pub out: PathBuf,
    pub root: PathBuf,
}

impl Options {
    fn parse(mut args: lexopt::Parser) -> Result<Options> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf();
        let mut o = Options {
            parts: Vec::new(),
            runs: 5,
            seconds: 3.0,
            only: String::new(),
            dir: "/dev/shm/zilla-bench".into(),
            disk: root.join("target/bench-disk"),
            peers: root.join("target/peers"),
            with_peers: true,
            out: root.join("bench/out"),
            root,
        };
        while let Some(arg) = args.next()? {
            match arg {
                lexopt::Arg::Long("part") => o.parts.push(args.value()?.string()?),
                lexopt::Arg::Long("runs") => o.runs = args.value()?.parse()?,
                lexopt::Arg::Long("seconds") => o.seconds = args.value()?.parse()?,
                lexopt::Arg::Long("only") => o.only = args.value()?.string()?,
                lexopt::Arg::Long("dir") => o.dir = args.value()?.into(),
                lexopt::Arg::Long("disk") => o.disk = args.value()?.into(),
                lexopt::Arg::Long("peers") => o.peers = args.value()?.into(),
                lexopt::Arg::Long("out") => o.out = args.value()?.into(),
                lexopt::Arg::Long("no-peers") => o.with_peers = false,
                other => return Err(other.unexpected().into()),
            }
        }
        if o.parts.is_empty() {
            o.parts = [
                "engine", "kernels", "fuse", "import", "slog", "scan", "cache", "volume", "sync", "nbd",
                "streams",
            ]
            .map(String::from)
            .to_vec();
        }
        Ok(o)
    }

    pub fn wants(&self, name: &str) -> bool {
        name.contains(self.only.as_str())
    }
}

pub fn main(args: lexopt::Parser) -> Result<()> {
    let o = Options::parse(args)?;
    std::fs::create_dir_all(&o.dir)?;
    // Only some parts run it, and it takes minutes to build.
    let wanted = o.parts.iter().any(|p| ["engine", "kernels", "sync"].contains(&p.as_str()));
    let peer = if o.with_peers && wanted { Some(peers::dmubench(&o)?) } else { None };
    let mut out = json!({ "machine": machine::describe(), "commit": machine::commit(&o.root),
        "build": if cfg!(debug_assertions) { "debug" } else { "release" }, "runs": o.runs, "seconds": o.seconds });
    if out["machine"]["gives_memory_back"] == true {
        eprintln!(
            "This virtual machine gives free memory back to its host, and gets it again slowly: rates of what writes much \
             memory will vary twofold. To measure without, as root: echo 11 > \
             /sys/module/page_reporting/parameters/page_reporting_order, then fill and free all memory once."
        );
    }
    let mut failed = Vec::new();
    for part in &o.parts {
        let result = match part.as_str() {
            "engine" => engine(&o, peer.as_deref()),
            "kernels" => kernels::run(&o, peer.as_deref()),
            "fuse" => fuse::run(&o),
            "import" => import::run(&o),
            "slog" => slog(&o),
            "scan" => modelled::scan::run(modelled::scan::GB, true),
            "cache" => modelled::cached::run("", "", 1),
            "volume" => modelled::volume::run(modelled::volume::GB),
            "sync" => sync::run(&o, peer.as_deref()),
            "nbd" => nbd::run(&o),
            "streams" => streams::run(&o),
            other => Err(format!("no part {other}").into()),
        };
        match result {
            Ok(v) => out[part] = v,
            Err(e) => failed.push(format!("{part}: {e}")),
        }
    }
    // What this program made, and nothing else, is taken away again.
    for i in 0..workloads::FILES {
        let _ = std::fs::remove_file(file(&o.dir, i));
    }
    let _ = std::fs::remove_dir(&o.dir);
    let path = machine::save(&o.out, &out)?;
    println!("saved {}", path.display());
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ").into()) }
}

fn file(dir: &Path, i: usize) -> PathBuf {
    dir.join(format!("v{i}"))
}

/// Log devices, modelled: a plot of each table in virtual time is saved beside the figures.
fn slog(o: &Options) -> Result<Value> {
    let mut result = modelled::run(modelled::SECONDS, &o.only, &modelled::DISKS, "", Through::Facade)?;
    for path in modelled::plots(&result, &o.out)? {
        println!("drawn {}", path.display());
    }
    if "perrin".contains(&o.only) {
        println!("on one disk only, because real time takes its time:");
        match modelled::run(modelled::SECONDS, "perrin", &[1], "", Through::Fuse) {
            Ok(v) => result["fuse"] = v,
            Err(e) => eprintln!("without FUSE: {e}"),
        }
    }
    Ok(result)
}

/// The engine part: every workload, each side in turn, `runs` times.
fn engine(o: &Options, peer: Option<&Path>) -> Result<Value> {
    let me = std::env::current_exe()?;
    let list: Vec<_> = workloads::LIST.iter().filter(|w| o.wants(w.name)).collect();
    let mut rows = vec![report::Row::default(); list.len()];
    for round in 0..o.runs {
        for (w, row) in list.iter().zip(&mut rows) {
            eprintln!("round {} of {}: {}", round + 1, o.runs, w.name);
            let args = w.args(&o.dir, o.seconds);
            row.zilla.push(one(Command::new(&me).arg("engine").args(&args))?);
            if let Some(peer) = peer {
                let mut command = peers::quiet_allocator(Command::new(peer));
                // The volume here is a bare object, whose writes are not logged; so the peer does
                // not log its asynchronous ones either.
                row.peer.push(one(command.args(&args).args(["--zil", "0"]).args(workloads::PEER_LIMITS))?);
            }
        }
    }
    let summary: Vec<Value> = list.iter().zip(&rows).map(|(w, row)| row.summary(w)).collect();
    println!("{}", report::engine_table(&summary));
    let runs: Vec<Value> = list
        .iter()
        .zip(rows)
        .map(|(w, r)| json!({ "workload": w.name, "zilla": r.zilla, "openzfs": r.peer }))
        .collect();
    Ok(json!({ "summary": summary, "runs": runs }))
}

/// Runs a measuring program; its last line is its result.
fn one(command: &mut Command) -> Result<Value> {
    let done = command.output()?;
    let text = String::from_utf8_lossy(&done.stdout);
    let last = text.lines().next_back().filter(|_| done.status.success());
    let Some(line) = last else {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr)).into());
    };
    Ok(serde_json::from_str(line)?)
}
