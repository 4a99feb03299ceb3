//! The streams part: sends, receives, encryption, deduplication and clones, each beside the plain
//! reading or writing that it stands on (`crate::streams`).
//!
//! Ratios are of CPU seconds, whose two sides one process measured by turns; rates stand beside
//! them. Where a promise is of a rate the ratio is the other way round: what cores are busy with
//! decides the rate of what lies in memory.

use super::report::{median, number, table};
use super::{Options, one};
use crate::engine::Result;
use serde_json::{Value, json};
use std::process::Command;

/// What is promised of a ratio.
#[derive(Clone, Copy)]
enum Promise {
    AtMost(f64),
    AtLeast(f64),
}

impl Promise {
    fn is_kept(self, by: f64) -> bool {
        match self {
            Promise::AtMost(most) => by <= most,
            Promise::AtLeast(least) => by >= least,
        }
    }

    fn told(self) -> String {
        match self {
            Promise::AtMost(most) => format!("<= {most}"),
            Promise::AtLeast(least) => format!(">= {least}"),
        }
    }

    /// The ratio of two costs as it is promised.
    fn ratio(self, this: f64, plain: f64) -> f64 {
        match self {
            Promise::AtMost(_) => this / plain,
            Promise::AtLeast(_) => plain / this,
        }
    }
}

/// A measurement, and one of the results in it.
struct Case {
    name: &'static str,
    args: &'static [&'static str],
    part: Option<&'static str>,
    promise: Promise,
}

const SEND: Promise = Promise::AtMost(2.0);
const RECEIVE: Promise = Promise::AtMost(1.5);
const CRYPT: Promise = Promise::AtLeast(0.7);
const DEDUP: Promise = Promise::AtMost(1.5);
const CLONE_MS: f64 = 50.0;
/// Five times as many files, and as many times the changes, may cost that much more than in
/// proportion.
const PROPORTION: f64 = 1.5;

const CASES: &[Case] = &[
    Case { name: "send, fragmented, 128K", args: &["--what", "send"], part: None, promise: SEND },
    Case {
        name: "send, fragmented, 16K",
        args: &["--what", "send", "--record", "16K"],
        part: None,
        promise: SEND,
    },
    Case { name: "receive, 128K", args: &["--what", "receive"], part: None, promise: RECEIVE },
    Case {
        name: "receive, 16K",
        args: &["--what", "receive", "--record", "16K"],
        part: None,
        promise: RECEIVE,
    },
    Case { name: "AES-256-GCM, write", args: &["--what", "crypt"], part: Some("write"), promise: CRYPT },
    Case { name: "AES-256-GCM, read", args: &["--what", "crypt"], part: Some("read"), promise: CRYPT },
    Case { name: "dedup of new data, empty table", args: &["--what", "dedup"], part: None, promise: DEDUP },
    Case {
        name: "dedup of new data, 10^5 entries",
        args: &["--what", "dedup", "--entries", "100000"],
        part: None,
        promise: DEDUP,
    },
    Case {
        name: "dedup of new data, 10^6 entries",
        args: &["--what", "dedup", "--entries", "1000000"],
        part: None,
        promise: DEDUP,
    },
];

/// Files, and how many of them change: the change alone grows, then the total alone.
const INCREMENTS: [(u64, u64); 3] = [(20_000, 200), (100_000, 1000), (100_000, 200)];

struct Runs<'o> {
    o: &'o Options,
    /// Results by their arguments, since one has several figures.
    all: Vec<(Vec<String>, Vec<Value>)>,
}

impl Runs<'_> {
    fn of(&mut self, args: &[&str]) -> Result<Vec<Value>> {
        let args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        if let Some((_, runs)) = self.all.iter().find(|(of, _)| *of == args) {
            return Ok(runs.clone());
        }
        let (me, file) = (std::env::current_exe()?, self.o.dir.join("streams"));
        let mut runs = Vec::new();
        for round in 0..self.o.runs {
            eprintln!("round {} of {}: {}", round + 1, self.o.runs, args.join(" "));
            runs.push(one(Command::new(&me).arg("streams").args(&args).arg("--file").arg(&file))?);
        }
        self.all.push((args, runs.clone()));
        Ok(runs)
    }
}

pub fn run(o: &Options) -> Result<Value> {
    let mut runs = Runs { o, all: Vec::new() };
    let result = all(&mut runs);
    let _ = std::fs::remove_file(o.dir.join("streams"));
    let mut out = result?;
    out["runs"] =
        runs.all.iter().map(|(args, runs)| json!({ "args": args, "runs": runs })).collect::<Vec<_>>().into();
    Ok(out)
}

fn all(runs: &mut Runs<'_>) -> Result<Value> {
    let head = ["", "MB/s", "plain", "CPU s/GiB", "plain", "ratio", "limit", "promised"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let (o, mut out) = (runs.o, Vec::new());
    for case in CASES.iter().filter(|c| o.wants(c.name)) {
        let results = runs.of(case.args)?;
        let of = |r: &Value| case.part.map_or(r.clone(), |part| r[part].clone());
        let results: Vec<Value> = results.iter().map(of).collect();
        let mid = |side: &str, field: &str| median(results.iter().filter_map(|r| r[side][field].as_f64()));
        let ratio = median(results.iter().filter_map(|r| {
            let cost = |side: &str| r[side]["cpu_s_per_GiB"].as_f64();
            Some(case.promise.ratio(cost("this")?, cost("plain")?))
        }));
        let limit = median(results.iter().filter_map(|r| r["limit"].as_f64()));
        let verdict = match ratio {
            Some(r) if case.promise.is_kept(r) => "kept",
            Some(_) if limit.is_some_and(|l| !case.promise.is_kept(l)) => "MISSED: the limit forbids it",
            _ => "MISSED",
        };
        let cells = [
            mid("this", "MBps"),
            mid("plain", "MBps"),
            mid("this", "cpu_s_per_GiB"),
            mid("plain", "cpu_s_per_GiB"),
            ratio,
            limit,
        ];
        let promised = format!("{} {verdict}", case.promise.told());
        let mut row = vec![case.name.to_owned()];
        row.extend(cells.map(|c| number(&json!(c))));
        row.push(promised.clone());
        rows.push(row);
        out.push(json!({ "what": case.name, "ratio": ratio, "limit": limit, "promised": promised }));
    }
    if rows.len() > 1 {
        println!("{}", table(&rows));
    }
    if o.wants("AES-256-GCM") {
        let results = runs.of(&["--what", "crypt"])?;
        let speed = |way: &str| median(results.iter().filter_map(|r| r["cipher_GBps"][way].as_f64()));
        let (seal, open) = (speed("seal"), speed("open"));
        println!(
            "the cipher alone, one core: {} GB/s to encrypt, {} to decrypt",
            number(&json!(seal)),
            number(&json!(open))
        );
        out.push(json!({ "what": "cipher", "seal_GBps": seal, "open_GBps": open }));
    }
    if o.wants("incremental") {
        out.push(increments(runs)?);
    }
    if o.wants("clone") {
        out.push(clones(runs)?);
    }
    Ok(json!({ "summary": out }))
}

fn increments(runs: &mut Runs<'_>) -> Result<Value> {
    let head = ["incremental", "CPU us a change", "us a change", "bytes a change"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut costs = Vec::new();
    for (files, changed) in INCREMENTS {
        let (f, c) = (files.to_string(), changed.to_string());
        let results = runs.of(&["--what", "incremental", "--files", &f, "--changed", &c])?;
        let mid = |field: &str| median(results.iter().filter_map(|r| r[field].as_f64()));
        let cost = mid("cpu_us_per_change");
        costs.push(cost.unwrap_or(0.0));
        let mut row = vec![format!("{changed} of {files} files")];
        row.extend([cost, mid("us_per_change"), mid("bytes_per_change")].map(|c| number(&json!(c))));
        rows.push(row);
    }
    println!("{}", table(&rows));
    let first = costs.first().copied().unwrap_or(0.0);
    let most = costs.iter().skip(1).copied().fold(0.0, f64::max) / first;
    let kept = if most <= PROPORTION { "kept" } else { "MISSED" };
    println!(
        "with five times the files a change costs {} times as much at most (promised <= {PROPORTION}: {kept})",
        number(&json!(most))
    );
    Ok(json!({ "what": "incremental", "cpu_us_per_change": costs, "most": most }))
}

fn clones(runs: &mut Runs<'_>) -> Result<Value> {
    let results = runs.of(&["--what", "clone", "--size-mb", "1024"])?;
    let all = |field: &str| {
        let all = results.iter().filter_map(|r| r[field].as_array()).flatten();
        median(all.filter_map(Value::as_f64))
    };
    let (ms, synced) = (all("ms"), all("ms_synced"));
    let kept = if ms.is_some_and(|ms| ms <= CLONE_MS) { "kept" } else { "MISSED" };
    println!(
        "a file of 1 GiB is cloned in {} ms, and synced after {} (promised <= {CLONE_MS}: {kept})",
        number(&json!(ms)),
        number(&json!(synced))
    );
    Ok(json!({ "what": "clone", "ms": ms, "ms_synced": synced }))
}
