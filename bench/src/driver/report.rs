//! Medians, ratios and the tables.

use super::workloads::Workload;
use serde_json::{Value, json};

/// All runs of one workload.
#[derive(Clone, Default)]
pub struct Row {
    pub zilla: Vec<Value>,
    pub peer: Vec<Value>,
}

pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    let (n, mid) = (v.len(), v.len() / 2);
    match n {
        0 => None,
        _ if n % 2 == 1 => v.get(mid).copied(),
        _ => Some((v.get(mid - 1)? + v.get(mid)?) / 2.0),
    }
}

const FIELDS: [&str; 8] = [
    "MBps",
    "IOPS",
    "lat_us_p50",
    "lat_us_p99",
    "cpu_s_per_GiB",
    "cpu_us_per_op",
    "csw_per_op",
    "pagefaults_per_op",
];

fn medians(runs: &[Value]) -> Value {
    let mut out = json!({});
    for field in FIELDS {
        if let Some(m) = median(runs.iter().filter_map(|r| r[field].as_f64())) {
            out[field] = json!(m);
        }
    }
    out
}

impl Row {
    pub fn summary(&self, w: &Workload) -> Value {
        let (zilla, peer) = (medians(&self.zilla), medians(&self.peer));
        let ratio = |field: &str| Some(zilla[field].as_f64()? / peer[field].as_f64()?);
        let (cpu, rate) = (ratio("cpu_s_per_GiB"), ratio("MBps"));
        let mut promises = Vec::new();
        if let (Some(limit), Some(r)) = (w.cpu, cpu) {
            promises.push((format!("CPU <= {limit}"), r <= limit));
        }
        if let (Some(limit), Some(r)) = (w.rate, rate) {
            promises.push((format!("MB/s >= {limit}x"), r >= limit));
        }
        json!({ "workload": w.name, "zilla": zilla, "openzfs": peer, "cpu_ratio": cpu, "rate_ratio": rate,
            "promises": promises.iter().map(|(p, kept)| json!({ "promise": p, "kept": kept })).collect::<Vec<_>>() })
    }
}

pub fn number(v: &Value) -> String {
    match v.as_f64() {
        None => "-".into(),
        Some(x) if x.abs() >= 100.0 => format!("{x:.0}"),
        Some(x) if x.abs() >= 10.0 => format!("{x:.1}"),
        Some(x) if x.abs() >= 1.0 => format!("{x:.2}"),
        Some(x) => format!("{x:.3}"),
    }
}

/// Cells to columns of equal width.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, w))| if i == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

pub fn engine_table(summary: &[Value]) -> String {
    let head = [
        "workload",
        "MB/s",
        "OpenZFS",
        "ratio",
        "CPU s/GiB",
        "OpenZFS",
        "ratio",
        "CPU us/op",
        "switches/op",
        "faults/op",
        "promised",
    ];
    let mut rows: Vec<Vec<String>> = vec![head.iter().map(|s| s.to_string()).collect()];
    for s in summary {
        let (z, p) = (&s["zilla"], &s["openzfs"]);
        let promises = s["promises"].as_array().map(Vec::as_slice).unwrap_or_default();
        let promised = promises.iter().map(|p| {
            let kept = if p["kept"] == true { "kept" } else { "MISSED" };
            format!("{} {kept}", p["promise"].as_str().unwrap_or_default())
        });
        rows.push(vec![
            s["workload"].as_str().unwrap_or_default().to_owned(),
            number(&z["MBps"]),
            number(&p["MBps"]),
            number(&s["rate_ratio"]),
            number(&z["cpu_s_per_GiB"]),
            number(&p["cpu_s_per_GiB"]),
            number(&s["cpu_ratio"]),
            number(&z["cpu_us_per_op"]),
            number(&z["csw_per_op"]),
            number(&z["pagefaults_per_op"]),
            promised.collect::<Vec<_>>().join(", "),
        ]);
    }
    table(&rows)
}
