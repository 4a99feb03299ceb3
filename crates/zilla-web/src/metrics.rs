//! Metrics in Prometheus' text format, by its conventions: base units, `_total` for what only
//! grows, one family after the other.
//!
//! They are made when they are asked for, of what the daemon has in memory: nothing is counted
//! twice, nothing is kept. The names are a promise to dashboards and alert rules
//! (`packaging/monitoring`); a test holds them.

use std::fmt::Write;
use zilla_control::types::{
    ArcStat, ArcStatQuery, LogStat, LogStatQuery, PoolHealth, PoolInfo, PoolQuery, ScanFunc, ScanState,
    VdevKind, VdevNode, VdevState,
};
use zilla_control::{ApiError, Asked, Backend, Caller};

/// What a browser or monitor is told of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Asks the backend and gives the text. Who may look at pools may have them.
pub async fn collect<B: Backend>(backend: &B, caller: &Caller) -> Result<String, ApiError> {
    if !caller.owner {
        backend.judge(caller, &Asked::PoolQuery(PoolQuery::default())).await?;
    }
    let pools = backend.pool_query(caller, PoolQuery::default()).await?;
    let arc = backend.arc_stats(caller, ArcStatQuery::default()).await?;
    let logs = backend.log_stats(caller, LogStatQuery::default()).await?;
    Ok(render(&pools, &arc, &logs))
}

const HEALTHS: [PoolHealth; 7] = [
    PoolHealth::Online,
    PoolHealth::Degraded,
    PoolHealth::Faulted,
    PoolHealth::Offline,
    PoolHealth::Removed,
    PoolHealth::Unavail,
    PoolHealth::Suspended,
];

/// Of a pool: name, type, what it is, how it is read.
type OfPool = (&'static str, &'static str, &'static str, fn(&PoolInfo) -> f64);

const POOL: &[OfPool] = &[
    ("zilla_pool_size_bytes", "gauge", "Capacity of the pool's vdevs.", |p| p.root.stats.space as f64),
    ("zilla_pool_allocated_bytes", "gauge", "Space in use, parity included.", |p| p.root.stats.alloc as f64),
    (
        "zilla_pool_data_errors",
        "gauge",
        "Damaged places that no redundancy could repair (zpool status -v lists them).",
        |p| p.error_count as f64,
    ),
    ("zilla_pool_suspended", "gauge", "1 if the pool takes no I/O until zpool clear.", |p| {
        flag(p.suspended.is_some())
    }),
    ("zilla_pool_kept_logs", "gauge", "Intent logs that could not be replayed.", |p| {
        p.kept_logs.len() as f64
    }),
    ("zilla_pool_scan_active", "gauge", "1 while a scrub or resilver runs and is not paused.", |p| {
        flag(p.scan.as_ref().is_some_and(|s| s.state == ScanState::Scanning && s.pass_scrub_pause == 0))
    }),
    ("zilla_pool_scan_progress_ratio", "gauge", "How much of the last scrub or resilver is done.", |p| {
        p.scan.as_ref().map_or(0.0, |s| match s.state {
            ScanState::Scanning => ratio(s.issued, s.to_examine.saturating_sub(s.skipped)),
            ScanState::Finished => 1.0,
            _ => 0.0,
        })
    }),
    (
        "zilla_pool_last_scrub_timestamp_seconds",
        "gauge",
        "When the last scrub was finished; 0 if the last scan was none or is not finished.",
        |p| {
            let scrub =
                p.scan.as_ref().filter(|s| s.func == ScanFunc::Scrub && s.state == ScanState::Finished);
            scrub.map_or(0.0, |s| s.end_time as f64)
        },
    ),
    ("zilla_pool_scan_errors", "gauge", "Errors that the last scrub or resilver met.", |p| {
        p.scan.as_ref().map_or(0.0, |s| s.errors as f64)
    }),
];

type OfVdev = (&'static str, &'static str, &'static str, fn(&VdevNode) -> f64);

const VDEV: &[OfVdev] = &[
    ("zilla_vdev_healthy", "gauge", "1 if the vdev is ONLINE.", |v| {
        flag(v.stats.state == VdevState::Healthy)
    }),
    ("zilla_vdev_size_bytes", "gauge", "Capacity of the vdev.", |v| v.stats.space as f64),
    ("zilla_vdev_allocated_bytes", "gauge", "Space in use on the vdev.", |v| v.stats.alloc as f64),
    ("zilla_vdev_reads_total", "counter", "Reads that were done.", |v| v.stats.read_ops as f64),
    ("zilla_vdev_writes_total", "counter", "Writes that were done.", |v| v.stats.write_ops as f64),
    ("zilla_vdev_read_bytes_total", "counter", "Bytes read.", |v| v.stats.read_bytes as f64),
    ("zilla_vdev_written_bytes_total", "counter", "Bytes written.", |v| v.stats.write_bytes as f64),
    ("zilla_vdev_read_errors_total", "counter", "Reads that failed.", |v| v.stats.read_errors as f64),
    ("zilla_vdev_write_errors_total", "counter", "Writes that failed.", |v| v.stats.write_errors as f64),
    ("zilla_vdev_checksum_errors_total", "counter", "Blocks that were not what was written.", |v| {
        v.stats.checksum_errors as f64
    }),
    ("zilla_vdev_slow_ios_total", "counter", "I/Os that took longer than zio_slow_io_ms.", |v| {
        v.stats.slow_ios as f64
    }),
    ("zilla_vdev_repaired_bytes_total", "counter", "Bytes that were repaired from redundancy.", |v| {
        v.stats.self_healed as f64
    }),
];

/// Of caches and intent logs: name, type, what it is, the counter's own name.
type OfCounter = (&'static str, &'static str, &'static str, &'static str);

const ARC: &[OfCounter] = &[
    ("zilla_arc_hits_total", "counter", "Blocks that were found in memory.", "hits"),
    ("zilla_arc_misses_total", "counter", "Blocks that were not.", "misses"),
    ("zilla_arc_size_bytes", "gauge", "Memory that the cache takes.", "size"),
    ("zilla_arc_target_size_bytes", "gauge", "Memory that it may take.", "c"),
    ("zilla_l2arc_hits_total", "counter", "Blocks that were found on cache devices.", "l2_hits"),
    ("zilla_l2arc_misses_total", "counter", "Blocks that were not.", "l2_misses"),
    ("zilla_l2arc_read_bytes_total", "counter", "Bytes read from cache devices.", "l2_read_bytes"),
    ("zilla_l2arc_written_bytes_total", "counter", "Bytes written to cache devices.", "l2_write_bytes"),
    ("zilla_l2arc_size_bytes", "gauge", "What is on cache devices, uncompressed.", "l2_size"),
];

const LOG: &[OfCounter] = &[
    ("zilla_zil_commits_total", "counter", "Times that somebody asked for a commit.", "commits"),
    ("zilla_zil_commits_txg_total", "counter", "Commits that had to wait for a txg.", "commits_txg"),
    ("zilla_zil_commit_errors_total", "counter", "Commits answered with an error.", "commits_failed"),
    ("zilla_zil_block_errors_total", "counter", "Log blocks that could not be written.", "block_errors"),
    ("zilla_zil_records_total", "counter", "Records in intent logs.", "records"),
];

fn flag(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) }
}

/// The text of it all.
pub fn render(pools: &[PoolInfo], arc: &[ArcStat], logs: &[LogStat]) -> String {
    let mut out = String::with_capacity(4096 + pools.len() * 8192);
    head(&mut out, "zilla_build_info", "gauge", "The daemon's version; always 1.");
    let _ = writeln!(out, "zilla_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    head(&mut out, "zilla_pool_state", "gauge", "1 for the state that the pool is in, 0 for the others.");
    for pool in pools {
        for health in HEALTHS {
            let (name, is) = (label(&pool.name), flag(pool.health == health));
            let _ = writeln!(out, "zilla_pool_state{{pool=\"{name}\",state=\"{}\"}} {is}", health.as_str());
        }
    }
    for (name, kind, help, value) in POOL {
        head(&mut out, name, kind, help);
        for pool in pools {
            let _ = writeln!(out, "{name}{{pool=\"{}\"}} {}", label(&pool.name), value(pool));
        }
    }
    let vdevs: Vec<(String, &VdevNode)> = pools.iter().flat_map(vdevs).collect();
    for (name, kind, help, value) in VDEV {
        head(&mut out, name, kind, help);
        for (labels, vdev) in &vdevs {
            let _ = writeln!(out, "{name}{{{labels}}} {}", value(vdev));
        }
    }
    let arc = || arc.iter().map(|s| (s.pool.as_str(), &s.counts));
    counters(&mut out, ARC, arc);
    counters(&mut out, LOG, || logs.iter().map(|s| (s.name.as_str(), &s.counts)));
    out
}

fn counters<'a, I>(out: &mut String, families: &[OfCounter], of: impl Fn() -> I)
where
    I: Iterator<Item = (&'a str, &'a std::collections::BTreeMap<String, u64>)>,
{
    for (name, kind, help, counter) in families {
        head(out, name, kind, help);
        for (pool, counts) in of() {
            if let Some(n) = counts.get(*counter) {
                let _ = writeln!(out, "{name}{{pool=\"{}\"}} {n}", label(pool));
            }
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A value of a label: three characters have another meaning in it.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Every vdev with its labels. A guid tells devices apart that have one name.
fn vdevs(pool: &PoolInfo) -> Vec<(String, &VdevNode)> {
    let mut out = Vec::new();
    let mut todo: Vec<&VdevNode> =
        pool.root.children.iter().chain(&pool.spares).chain(&pool.l2cache).collect();
    todo.reverse();
    while let Some(vdev) = todo.pop() {
        if !matches!(vdev.kind, VdevKind::Hole | VdevKind::Indirect) {
            let (pool, name, guid) = (label(&pool.name), label(&vdev_name(vdev)), vdev.guid);
            let kind = vdev.kind.type_name();
            out.push((format!("pool=\"{pool}\",vdev=\"{name}\",type=\"{kind}\",guid=\"{guid}\""), vdev));
        }
        todo.extend(vdev.children.iter().rev());
    }
    out
}

/// As `zpool status -P` names it.
fn vdev_name(vdev: &VdevNode) -> String {
    match (&vdev.path, vdev.kind) {
        (Some(path), _) if !vdev.not_present => path.clone(),
        (_, VdevKind::Disk | VdevKind::File | VdevKind::Missing) => vdev.guid.to_string(),
        (_, VdevKind::Raidz | VdevKind::Draid) => {
            format!("{}{}-{}", vdev.kind.type_name(), vdev.nparity, vdev.id)
        }
        (_, kind) => format!("{}-{}", kind.type_name(), vdev.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn pool(name: &str) -> PoolInfo {
        let leaf = |path: &str| VdevNode {
            kind: VdevKind::File,
            path: Some(path.to_owned()),
            ..VdevNode::default()
        };
        let mirror = VdevNode {
            kind: VdevKind::Mirror,
            children: vec![leaf("/a\"b"), leaf("/c")],
            ..VdevNode::default()
        };
        let root = VdevNode { kind: VdevKind::Root, children: vec![mirror], ..VdevNode::default() };
        PoolInfo { name: name.to_owned(), root, ..PoolInfo::default() }
    }

    fn all(name: &str) -> String {
        let counts = |families: &[OfCounter]| families.iter().map(|f| (f.3.to_owned(), 7)).collect();
        let arc = [ArcStat { pool: name.to_owned(), counts: counts(ARC) }];
        let logs = [LogStat { name: name.to_owned(), counts: counts(LOG), ..LogStat::default() }];
        render(&[pool(name)], &arc, &logs)
    }

    /// Families as they are declared, in order.
    fn families(text: &str) -> Vec<(String, String)> {
        let types = text.lines().filter_map(|l| l.strip_prefix("# TYPE "));
        types.filter_map(|l| l.split_once(' ')).map(|(n, k)| (n.to_owned(), k.to_owned())).collect()
    }

    #[test]
    fn names_follow_the_conventions() {
        let text = all("tank");
        let all = families(&text);
        assert_eq!(all.len(), all.iter().map(|(n, _)| n).collect::<BTreeSet<_>>().len(), "each once");
        for (name, kind) in &all {
            assert!(
                name.starts_with("zilla_")
                    && name.bytes().all(|b| b.is_ascii_lowercase() || b"_2".contains(&b))
            );
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            assert!(
                !["_kb", "_mb", "_ms", "_percent", "_count"].iter().any(|u| name.contains(u)),
                "{name}: base units"
            );
            let helped = format!("# HELP {name} ");
            let help = text.lines().find_map(|l| l.strip_prefix(&helped)).unwrap();
            assert!(help.ends_with('.'), "{help}");
            assert!(text.lines().any(|l| l.starts_with(&format!("{name}{{"))), "{name} has no sample");
        }
    }

    #[test]
    fn dashboards_and_rules_use_names_that_there_are() {
        let have: BTreeSet<String> = families(&all("tank")).into_iter().map(|(n, _)| n).collect();
        for file in ["alerts.yml", "dashboard.json"] {
            let path = format!("{}/../../packaging/monitoring/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let used: BTreeSet<&str> = words.filter(|w| w.starts_with("zilla_")).collect();
            assert!(used.len() > 5, "{file} uses {used:?}");
            let missing: Vec<_> = used.iter().filter(|w| !have.contains(**w)).collect();
            assert!(missing.is_empty(), "{file} uses {missing:?}, which there are not");
        }
    }

    #[test]
    fn values_and_labels_are_what_the_pool_says() {
        let mut p = pool("tank");
        p.health = PoolHealth::Degraded;
        p.root.stats.space = 1 << 40;
        p.root.children[0].children[1].stats.checksum_errors = 3;
        let text = render(&[p], &[], &[]);
        assert!(text.contains("zilla_pool_state{pool=\"tank\",state=\"DEGRADED\"} 1\n"), "{text}");
        assert!(text.contains("zilla_pool_state{pool=\"tank\",state=\"ONLINE\"} 0\n"));
        assert!(text.contains("zilla_pool_size_bytes{pool=\"tank\"} 1099511627776\n"), "{text}");
        let wanted =
            "zilla_vdev_checksum_errors_total{pool=\"tank\",vdev=\"/c\",type=\"file\",guid=\"0\"} 3\n";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains("vdev=\"/a\\\"b\""), "quotes are escaped");
        assert!(text.contains("vdev=\"mirror-0\""));
    }

    proptest! {
        /// Whatever a device is called, a line stays a line.
        #[test]
        fn no_name_breaks_the_text(name in "\\PC{0,20}|[\"\\\\\n]{0,8}") {
            let plain = all("x").lines().count();
            prop_assert_eq!(all(&name).lines().count(), plain);
            let escaped = label(&name);
            let mut chars = escaped.chars();
            while let Some(c) = chars.next() {
                prop_assert!(c != '"' && c != '\n');
                if c == '\\' {
                    prop_assert!(matches!(chars.next(), Some('\\' | '"' | 'n')));
                }
            }
        }
    }
}
