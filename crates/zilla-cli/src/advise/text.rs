//! The advice in words, and as JSON.

use crate::fmt::json::{Json, Obj, schema};
use zilla_advise::{Advice, CacheAdvice, Confidence, Point, Reads};
use zilla_control::props::nicenum::nicebytes;

fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

/// Seconds in a unit in which they are short.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

fn count(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}K", n / 1e3),
        n if n >= 100.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

fn rate(bytes: f64) -> String {
    format!("{:.1} MB/s", bytes / 1e6)
}

fn confidence(c: Confidence) -> &'static str {
    match c {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// Rows below a heading, each column as wide as its widest cell; the first is to the left.
fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, w))| match i {
            0 => format!("{cell:<w$}"),
            _ => format!("{cell:>w$}"),
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|c| (*c).to_owned()).collect()
}

/// Of a curve the points that tell something, six at most.
fn few(points: &[Point]) -> Vec<&Point> {
    let every = points.len().div_ceil(6).max(1);
    let last = points.len().saturating_sub(1);
    points.iter().enumerate().filter(|(i, _)| (last - i).is_multiple_of(every)).map(|(_, p)| p).collect()
}

fn cache_row(c: &CacheAdvice) -> Vec<String> {
    vec![
        c.profile.clone(),
        nicebytes(c.size),
        percent(c.reads.hits),
        count(c.reads.per_second),
        rate(c.reads.bytes_per_second),
        time(c.reads.seconds),
        nicebytes(c.headers),
        c.warm.map_or("-".into(), time),
        format!("{:.2}", c.writes_a_day),
        format!("{:.2}", c.set_ratio),
        format!("{:.2}", c.bandwidth_ratio),
    ]
}

pub fn lines(a: &Advice) -> Vec<String> {
    let mut out = vec![
        format!(
            "pool {}: {} events in {}, of which the last {} are counted; confidence: {}",
            a.pool,
            a.records,
            time(a.seconds),
            time(a.counted_seconds),
            confidence(a.confidence)
        ),
        format!(
            "looked at {} accesses to {} of the blocks; {} reading at once; {} disks",
            a.sampled,
            percent(a.part),
            a.readers,
            a.disks
        ),
        String::new(),
        "now".into(),
    ];
    out.extend(table(&[
        row(&["ARC", "hits", "reads/s", "MB/s", "latency", "blocks read", "written"]),
        vec![
            nicebytes(a.arc_limit),
            percent(a.now.hits),
            count(a.now.per_second),
            rate(a.now.bytes_per_second),
            time(a.now.seconds),
            nicebytes(a.set),
            rate(a.written),
        ],
    ]));
    out.extend([String::new(), "memory: reads that an ARC of a size would find (by LRU)".into()]);
    let memory = few(&a.memory);
    out.extend(table(&[
        std::iter::once("size".into()).chain(memory.iter().map(|p| nicebytes(p.size))).collect(),
        std::iter::once("hits".into()).chain(memory.iter().map(|p| percent(p.hits))).collect(),
    ]));
    out.extend([String::new(), "a cache device behind the ARC as it is".into()]);
    let mut rows = vec![row(&[
        "device",
        "size",
        "hits",
        "reads/s",
        "MB/s",
        "latency",
        "headers",
        "warm in",
        "DWPD",
        "set:cache",
        "disks:device",
    ])];
    rows.extend(a.caches.iter().map(cache_row));
    out.extend(table(&rows));
    out.push(String::new());
    if a.logs.is_empty() {
        out.push("a log device: nobody waited for one".into());
    } else {
        out.push(format!(
            "a log device: {} commits/s take {} each now, in blocks of {}",
            count(a.commits),
            time(a.commit),
            nicebytes(a.log_block)
        ));
        let mut rows = vec![row(&["device", "commit", "commits/s at most"])];
        rows.extend(a.logs.iter().map(|l| vec![l.profile.clone(), time(l.commit), count(l.most)]));
        out.extend(table(&rows));
    }
    if !a.notes.is_empty() {
        out.push(String::new());
        out.extend(a.notes.iter().map(|n| format!("note: {n}")));
    }
    out
}

/// JSON's numbers here are whole, so each name says its unit.
fn num(n: f64) -> Json {
    Json::Num(if n.is_finite() { n.max(0.0).round() as u64 } else { 0 })
}

fn reads(r: &Reads) -> Obj {
    let mut o = Obj::new();
    o.set("hits_ppm", num(r.hits * 1e6));
    o.set("cache_device_hits_ppm", num(r.second_level * 1e6));
    o.set("reads_per_1000_s", num(r.per_second * 1e3));
    o.set("bytes_per_s", num(r.bytes_per_second));
    o.set("latency_ns", num(r.seconds * 1e9));
    o
}

fn curve(points: &[Point]) -> Json {
    let point = |p: &Point| {
        let mut o = Obj::new();
        o.set("bytes", Json::Num(p.size));
        o.set("hits_ppm", num(p.hits * 1e6));
        Json::Obj(o)
    };
    Json::Arr(points.iter().map(point).collect())
}

pub fn json(a: &Advice) -> Obj {
    let mut o = schema("zilla", "advise");
    o.str("pool", &a.pool);
    o.str("confidence", confidence(a.confidence));
    o.set("notes", Json::Arr(a.notes.iter().cloned().map(Json::Str).collect()));
    for (name, n) in
        [("records", a.records), ("lost", a.lost), ("sampled", a.sampled), ("readers", a.readers)]
    {
        o.set(name, Json::Num(n));
    }
    o.set("trace_ms", num(a.seconds * 1e3));
    o.set("counted_ms", num(a.counted_seconds * 1e3));
    o.set("sampled_ppm", num(a.part * 1e6));
    for (name, n) in [("arc_bytes", a.arc_limit), ("arc_max_bytes", a.arc_max), ("read_set_bytes", a.set)] {
        o.set(name, Json::Num(n));
    }
    o.set("disks", Json::Num(a.disks));
    o.str("disks_taken_for", &a.disk_kind);
    o.set("written_bytes_per_s", num(a.written));
    o.obj("now", reads(&a.now));
    o.set("arc_curve", curve(&a.memory));
    o.set("cache_device_curve", curve(&a.both));
    let cache = |c: &CacheAdvice| {
        let mut o = reads(&c.reads);
        o.str("device", &c.profile);
        o.set("bytes", Json::Num(c.size));
        o.set("header_bytes", Json::Num(c.headers));
        o.set("written_bytes_per_day", num(c.wear));
        o.set("drive_writes_per_day_ppm", num(c.writes_a_day * 1e6));
        if let Some(warm) = c.warm {
            o.set("warm_ms", num(warm * 1e3));
        }
        o.set("set_to_cache_ppm", num(c.set_ratio * 1e6));
        o.set("disks_to_device_ppm", num(c.bandwidth_ratio * 1e6));
        Json::Obj(o)
    };
    o.set("cache_devices", Json::Arr(a.caches.iter().map(cache).collect()));
    let mut log = Obj::new();
    log.set("commits_per_1000_s", num(a.commits * 1e3));
    log.set("commit_ns", num(a.commit * 1e9));
    log.set("block_bytes", Json::Num(a.log_block));
    o.obj("log", log);
    let device = |l: &zilla_advise::LogAdvice| {
        let mut o = Obj::new();
        o.str("device", &l.profile);
        o.set("commit_ns", num(l.commit * 1e9));
        o.set("commits_per_1000_s_at_most", num(l.most * 1e3));
        Json::Obj(o)
    };
    o.set("log_devices", Json::Arr(a.logs.iter().map(device).collect()));
    o
}
