//! The kernels part: each routine on one core at 128 KiB, the best of ours beside the best of
//! OpenZFS's.

use super::Options;
use super::report::{median, number, table};
use crate::engine::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const BLOCK: u64 = 128 << 10;

/// What the project has promised of a kernel: at least this share of OpenZFS's best.
fn promise(kernel: &str) -> Option<f64> {
    let of = |names: &[&str]| names.iter().any(|name| kernel.starts_with(name));
    if of(&["fletcher4", "sha256", "blake3", "raidz"]) {
        Some(1.0)
    } else if of(&["lz4", "zstd"]) {
        Some(0.95)
    } else {
        None
    }
}

/// `raidz2-parity-Avx2/random` is implementation `Avx2` of `raidz2-parity/random`;
/// `sha256-together/random` is `sha256/random` of several blocks at once, as a batch of writes is
/// hashed.
fn routine(kernel: &str) -> Option<String> {
    let (name, data) = kernel.split_once('/')?;
    let tails = ["Scalar", "Sse2", "Ssse3", "Avx2", "Avx512", "Avx512Gfni", "together"];
    let plain = tails.iter().find_map(|t| name.strip_suffix(t)?.strip_suffix('-'));
    Some(format!("{}/{data}", plain.unwrap_or(name)))
}

fn lines(command: &mut Command) -> Result<Vec<Value>> {
    let done = command.output()?;
    if !done.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr)).into());
    }
    let text = String::from_utf8_lossy(&done.stdout);
    Ok(text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect())
}

type Best = BTreeMap<String, f64>;

fn keep(best: &mut Best, name: String, gbps: f64) {
    let slot = best.entry(name).or_default();
    *slot = slot.max(gbps);
}

fn ours(o: &Options) -> Result<Best> {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "-p", "zilla-codec", "--example", "kernels", "--"]);
    command.args(["--json", "--ms", "300"]).current_dir(&o.root);
    let mut best = Best::new();
    for line in lines(&mut command)? {
        if let (Some(name), Some(gbps)) = (line["kernel"].as_str().and_then(routine), line["gbps"].as_f64()) {
            keep(&mut best, name, gbps);
        }
    }
    Ok(best)
}

fn theirs(peer: &Path) -> Result<Best> {
    let mut best = Best::new();
    for line in lines(Command::new(peer).args(["--workload", "kernels", "--seconds", "1"]))? {
        let (Some(kind), Some(data)) = (line["kind"].as_str(), line["data"].as_str()) else { continue };
        if let (Some(BLOCK), Some(gbps)) = (line["size"].as_u64(), line["GBps"].as_f64()) {
            keep(&mut best, format!("{kind}/{data}"), gbps);
        }
    }
    Ok(best)
}

pub fn run(o: &Options, peer: Option<&Path>) -> Result<Value> {
    let (mut zilla, mut openzfs): (BTreeMap<_, Vec<f64>>, BTreeMap<_, Vec<f64>>) = Default::default();
    for round in 0..o.runs {
        eprintln!("round {} of {}: kernels", round + 1, o.runs);
        ours(o)?.into_iter().for_each(|(k, v)| zilla.entry(k).or_default().push(v));
        if let Some(peer) = peer {
            theirs(peer)?.into_iter().for_each(|(k, v)| openzfs.entry(k).or_default().push(v));
        }
    }
    let mut out = Vec::new();
    let mut rows =
        vec![["kernel, 128K, one core", "GB/s", "OpenZFS", "ratio", "promised"].map(String::from).to_vec()];
    for (name, runs) in zilla.iter().filter(|(name, _)| o.wants(name)) {
        let mine = median(runs.iter().copied());
        let other = openzfs.get(name).and_then(|r| median(r.iter().copied()));
        let ratio = mine.zip(other).map(|(a, b)| a / b);
        let limit = promise(name);
        let kept = ratio.zip(limit).map(|(r, limit)| r >= limit);
        out.push(json!({ "kernel": name, "zilla": mine, "openzfs": other, "ratio": ratio, "kept": kept }));
        let promised = kept
            .zip(limit)
            .map_or(String::new(), |(k, l)| format!(">= {l} {}", if k { "kept" } else { "MISSED" }));
        let cells = [mine, other, ratio].map(|v| number(&json!(v)));
        rows.push([std::slice::from_ref(name), &cells[..], &[promised]].concat());
    }
    println!("{}", table(&rows));
    Ok(json!(out))
}
