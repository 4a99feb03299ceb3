//! Statistics as files, in the form of OpenZFS's kstats, for scripts that read
//! `/proc/spl/kstat/zfs`.
//!
//! Where `ZILLA_KSTATS` names a folder, `arcstats`, `zil`, `dmu_tx`, `dbufstats` and `zfetchstats`
//! in it have the sum of all pools (`arcstats` counts those that were here before, too), and
//! `cow_faults` that of the reads which writes put off. A pool's own are in the folder of its name:
//! those of `poolstats.rs`, `objset-0xID` of each mounted file system, and `multihost`, the last
//! heartbeats of a pool with that property (as many as `zfs_multihost_history` says). They are
//! written again when they changed, a moment later; one read while it is written may be cut short.
//!
//! What is OpenZFS's and has no like here is left out where scripts take the names that are there,
//! and is 0 where nothing of the kind can happen: no number is one that nobody counts.

use super::arcstats::Past;
use super::outside::Place;
use super::pool::Pool;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zilla::stats::{BeatRecord, DbufCounts, FaultCounts, LogCounts, ObjsetCounts, StreamCounts, TxCounts};

/// How soon a change is there to be read.
const EVERY: Duration = Duration::from_millis(500);
/// Types of values (`KSTAT_DATA_*`).
const UINT64: &str = "4";
const STRING: &str = "7";
/// Bytes of a named value in the kernel, of which the first line tells the sum.
const SIZE: usize = 48;

/// Writes them as long as the process lives.
pub fn serve(pools: Arc<RwLock<BTreeMap<String, Arc<Pool>>>>, past: Past) {
    let Some(dir) = std::env::var_os("ZILLA_KSTATS").filter(|d| !d.is_empty()).map(PathBuf::from) else {
        return;
    };
    tokio::spawn(async move {
        let mut files = Files { dir, begun: Instant::now(), last: BTreeMap::new() };
        loop {
            let now = pools.read().values().cloned().collect();
            let caches = super::arcstats::sum(&pools, &past);
            files.update(&collect(now, caches).await);
            tokio::time::sleep(EVERY).await;
        }
    });
}

/// Counters under OpenZFS's names.
pub(super) type Named = Vec<(&'static str, u64)>;

/// What a file says.
#[derive(Clone, PartialEq)]
pub(super) enum Said {
    /// Counters; the dataset's name where they are one's.
    Counts(Option<String>, Named),
    /// Lines as they are.
    Lines(String),
}

/// Name of the file, and what it says.
pub(super) type Stat = (PathBuf, Said);

async fn collect(pools: Vec<Arc<Pool>>, caches: Named) -> Vec<Stat> {
    let mut all = LogCounts::default();
    let faults: FaultCounts = pools.iter().map(|p| p.zilla.fault_counts()).sum();
    let mut out = vec![(PathBuf::from("arcstats"), Said::Counts(None, caches))];
    let (mut tx, mut streams, mut dbufs) =
        (TxCounts::default(), StreamCounts::default(), DbufCounts::default());
    for pool in pools {
        tx.add(&pool.zilla.tx_counts());
        streams.add(&pool.zilla.stream_counts());
        dbufs.add(&pool.zilla.dbuf_counts());
        out.extend(super::poolstats::of(&pool));
        all.add(&pool.zilla.log_counts());
        let names: Vec<String> = pool.mounts.lock().keys().cloned().collect();
        for name in names {
            if let Ok(ds) = pool.zilla.by_name(&name).await {
                let file = Path::new(&pool.name()).join(format!("objset-0x{:x}", ds.id()));
                let counts = dataset_names(&ds.io_counts()).into_iter().chain(named(&ds.log_counts()));
                out.push((file, Said::Counts(Some(name), counts.collect())));
            }
        }
        if pool.zilla.multihost() {
            let file = Path::new(&pool.name()).join("multihost");
            out.push((file, Said::Lines(heartbeats(&pool.zilla.heartbeats()))));
        }
    }
    for (name, counts) in [
        ("zil", Named::from(named(&all))),
        ("cow_faults", fault_names(&faults).into()),
        ("dmu_tx", tx_names(&tx).into()),
        ("zfetchstats", stream_names(&streams).into()),
        ("dbufstats", dbuf_names(&dbufs).into()),
    ] {
        out.push((PathBuf::from(name), Said::Counts(None, counts)));
    }
    out
}

fn dataset_names(c: &ObjsetCounts) -> [(&'static str, u64); 6] {
    [
        ("writes", c.writes),
        ("nwritten", c.written_bytes),
        ("reads", c.reads),
        ("nread", c.read_bytes),
        ("nunlinks", c.unlinks),
        ("nunlinked", c.unlinked),
    ]
}

fn tx_names(c: &TxCounts) -> [(&'static str, u64); 5] {
    [
        ("dmu_tx_assigned", c.assigned),
        ("dmu_tx_error", c.refused),
        ("dmu_tx_suspended", c.suspended),
        ("dmu_tx_dirty_delay", c.delayed),
        ("dmu_tx_dirty_over_max", c.over_max),
    ]
}

fn stream_names(c: &StreamCounts) -> [(&'static str, u64); 8] {
    [
        ("hits", c.sequential),
        // A stream here is one that goes on where it stopped: there are no others.
        ("future", 0),
        ("stride", 0),
        ("past", 0),
        ("misses", c.elsewhere),
        // Each object has its own.
        ("max_streams", 0),
        ("io_issued", c.ahead_blocks),
        ("io_active", c.ahead_active),
    ]
}

fn dbuf_names(c: &DbufCounts) -> [(&'static str, u64); 7] {
    [
        ("cache_count", c.blocks),
        ("cache_size_bytes", c.bytes),
        ("cache_size_bytes_max", c.most_bytes),
        ("cache_target_bytes", c.limit),
        // It is brought back to its limit at once: there are no marks beside that.
        ("cache_lowater_bytes", c.limit),
        ("cache_hiwater_bytes", c.limit),
        ("cache_total_evicts", c.evicted),
    ]
}

fn fault_names(c: &FaultCounts) -> [(&'static str, u64); 6] {
    [
        ("faults_deferred", c.deferred),
        ("faults_avoided", c.avoided),
        ("faults_resolved_early", c.resolved_early),
        ("faults_resolved_by_sync", c.resolved_by_sync),
        ("faults_failed", c.failed),
        ("bytes_not_read", c.bytes_not_read),
    ]
}

struct Files {
    dir: PathBuf,
    begun: Instant,
    last: BTreeMap<PathBuf, Said>,
}

impl Files {
    fn update(&mut self, stats: &[Stat]) {
        let there: BTreeSet<&PathBuf> = stats.iter().map(|(file, _)| file).collect();
        let place = match Place::make(&self.dir) {
            Ok(place) => place,
            Err(e) => return tracing::warn!("'{}': {e}", self.dir.display()),
        };
        self.last.retain(|file, _| there.contains(file) || place.remove(file).is_err());
        for (file, said) in stats {
            if self.last.get(file) == Some(said) {
                continue;
            }
            let text = match said {
                Said::Counts(dataset, counts) => text(file, dataset.as_deref(), counts, self.begun.elapsed()),
                Said::Lines(lines) => lines.clone(),
            };
            match place.write(file, &text) {
                Ok(()) => drop(self.last.insert(file.clone(), said.clone())),
                Err(e) => tracing::warn!("'{}': {e}", self.dir.join(file).display()),
            }
        }
    }
}

/// The counters under OpenZFS's names.
fn named(c: &LogCounts) -> [(&'static str, u64); 21] {
    [
        ("zil_commit_count", c.commits),
        ("zil_commit_writer_count", c.trains),
        ("zil_commit_error_count", c.block_errors),
        // Those that wait for a txg do so for one of these reasons, which are not told apart.
        ("zil_commit_stall_count", c.commits_txg),
        ("zil_commit_suspend_count", 0),
        ("zil_commit_crash_count", c.commits_failed),
        ("zil_itx_count", c.records),
        ("zil_itx_indirect_count", c.indirect),
        ("zil_itx_indirect_bytes", c.indirect_bytes),
        ("zil_itx_copied_count", c.copied),
        ("zil_itx_copied_bytes", c.copied_bytes),
        // Data are kept by reference until they are logged: there is no second kind of copy.
        ("zil_itx_needcopy_count", 0),
        ("zil_itx_needcopy_bytes", 0),
        ("zil_itx_metaslab_normal_count", c.normal_blocks),
        ("zil_itx_metaslab_normal_bytes", c.normal_bytes),
        ("zil_itx_metaslab_normal_write", c.normal_written),
        ("zil_itx_metaslab_normal_alloc", c.normal_allocated),
        ("zil_itx_metaslab_slog_count", c.slog_blocks),
        ("zil_itx_metaslab_slog_bytes", c.slog_bytes),
        ("zil_itx_metaslab_slog_write", c.slog_written),
        ("zil_itx_metaslab_slog_alloc", c.slog_allocated),
    ]
}

/// As the kernel prints a kstat of named values: a line about the whole, a header, a line a value.
fn text(file: &Path, dataset: Option<&str>, values: &Named, age: Duration) -> String {
    let count = values.len() + usize::from(dataset.is_some());
    let id = u32::from(file.parent().is_some_and(|p| p != Path::new("")));
    let mut out = format!("{id} 1 0x01 {count} {} 0 {}\n", count * SIZE, age.as_nanos());
    let mut line = |name: &str, kind: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(out, "{name:<31} {kind:<4} {value}");
    };
    line("name", "type", &"data");
    if let Some(name) = dataset {
        line("dataset_name", STRING, &name);
    }
    values.iter().for_each(|(name, value)| line(name, UINT64, value));
    out
}

/// The last heartbeats, as OpenZFS prints them. Those in a row that there was no device for are one
/// line, their number in the guid's place.
fn heartbeats(all: &[BeatRecord]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<10} {:<10} {:<10} {:<6} {:<10} {:<12} {:<24} {:<10} vdev_path",
        "id", "txg", "timestamp", "error", "duration", "mmp_delay", "vdev_guid", "vdev_label"
    );
    for b in all {
        let error = if b.path.is_some() { b.error.to_string() } else { format!("{:#x}", b.error) };
        let _ = writeln!(
            out,
            "{:<10} {:<10} {:>10} {error:>6} {:>10} {:>12} {:<24} {:<10} {}",
            b.id,
            b.txg,
            b.timestamp,
            b.duration.unwrap_or_default().as_nanos(),
            b.delay,
            b.guid,
            b.label,
            b.path.as_deref().unwrap_or("-")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_change_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Files { dir: dir.path().into(), begun: Instant::now(), last: BTreeMap::new() };
        let log = LogCounts { commits: 7, slog_bytes: 4096, ..LogCounts::default() };
        let counts: Named = named(&log).into();
        let of = |n: &str| PathBuf::from(n);
        files.update(&[
            (of("zil"), Said::Counts(None, counts.clone())),
            (of("tank/objset-0x36"), Said::Counts(Some("tank".into()), counts.clone())),
        ]);
        let text = std::fs::read_to_string(dir.path().join("tank/objset-0x36")).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0][..4], ["1", "1", "0x01", "22"]);
        assert_eq!(lines[1], ["name", "type", "data"]);
        assert_eq!(lines[2], ["dataset_name", "7", "tank"]);
        assert!(lines.contains(&vec!["zil_commit_count", "4", "7"]));
        assert!(lines.contains(&vec!["zil_itx_metaslab_slog_bytes", "4", "4096"]));
        let more: Named = named(&LogCounts { commits: 8, ..log }).into();
        files.update(&[(of("zil"), Said::Counts(None, more))]);
        assert!(!dir.path().join("tank/objset-0x36").exists());
        assert!(
            std::fs::read_to_string(dir.path().join("zil"))
                .unwrap()
                .contains("zil_commit_count                4    8\n")
        );
    }
    #[test]
    fn heartbeats_are_told_as_openzfs_tells_them() {
        let beat = BeatRecord {
            id: 7,
            txg: 40,
            timestamp: 1_700_000_000,
            error: 5,
            duration: Some(Duration::from_micros(3)),
            delay: 1_000_000,
            guid: 99,
            label: 2,
            path: Some("/dev/sda".into()),
        };
        let skipped =
            BeatRecord { id: 8, error: 1, guid: 3, path: None, duration: None, label: 0, ..beat.clone() };
        let text = heartbeats(&[beat, skipped]);
        let lines: Vec<&str> = text.lines().collect();
        let words: Vec<&str> = lines[0].split_whitespace().collect();
        let wanted = "id txg timestamp error duration mmp_delay vdev_guid vdev_label vdev_path";
        assert_eq!(words.join(" "), wanted);
        assert!(lines[1].starts_with("7          40         1700000000      5       3000      1000000 99  "));
        assert!(lines[1].ends_with(" 2          /dev/sda"), "{}", lines[1]);
        assert!(lines[2].starts_with("8          40         1700000000    0x1 "), "{}", lines[2]);
        assert!(lines[2].ends_with("3                        0          -"), "{}", lines[2]);
    }
}
