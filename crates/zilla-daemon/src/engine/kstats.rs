//! Statistics as files, in the form of OpenZFS's kstats, for scripts that read
//! `/proc/spl/kstat/zfs`.
//!
//! Where `ZILLA_KSTATS` names a folder, `arcstats`, `zil`, `dmu_tx`, `dbufstats` and `zfetchstats`
//! in it have the sum of all pools (`arcstats` counts those that were here before, too),
//! `cow_faults` that of the reads which writes put off, and `dbufs` tells of each block in the dbuf
//! caches. A pool's own are in the folder of its name: those of `poolstats.rs`, `objset-0xID` of
//! each mounted file system, and `multihost`, the last heartbeats of a pool with that property (as
//! many as `zfs_multihost_history` says).
//!
//! The folder is a mount of its own, whose files say what is true when they are read. Where none
//! can be had, plain files are written into it instead: again when they changed, a moment later,
//! and one read while it is written may be cut short; `dbufs` is not among them.
//!
//! What is OpenZFS's and has no like here is left out where scripts take the names that are there,
//! and is 0 where nothing of the kind can happen: no number is one that nobody counts.

use super::arcstats::Past;
use super::outside::Place;
use super::pool::Pool;
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zilla::stats::{
    BeatRecord, DbufCounts, FaultCounts, LogCounts, Memory, ObjsetCounts, StreamCounts, TxCounts,
};
use zilla_fuse::{TextMount, Texts};

/// How soon a change is there to be read.
const EVERY: Duration = Duration::from_millis(500);
/// Types of values (`KSTAT_DATA_*`).
const UINT64: &str = "4";
const STRING: &str = "7";
/// Bytes of a named value in the kernel, of which the first line tells the sum.
const SIZE: usize = 48;

/// What the statistics are of.
struct Source {
    pools: Arc<RwLock<BTreeMap<String, Arc<Pool>>>>,
    past: Past,
    begun: Instant,
    opener: Arc<dyn zilla_env::Opener>,
}

/// Serves them as long as the process lives, or until the mount that is given back is taken away.
pub async fn serve(
    pools: Arc<RwLock<BTreeMap<String, Arc<Pool>>>>,
    past: Past,
    env: zilla_env::Env,
) -> Option<TextMount> {
    let dir = std::env::var_os("ZILLA_KSTATS").filter(|d| !d.is_empty()).map(PathBuf::from)?;
    let source = Arc::new(Source { pools, past, begun: Instant::now(), opener: env.opener.clone() });
    let (at, shown) = (dir.clone(), source.clone());
    match tokio::task::spawn_blocking(move || attach(shown, env, &at)).await {
        Ok(Ok(mount)) => return Some(mount),
        Ok(Err(e)) => tracing::warn!("'{}' has statistics as plain files: {e}", dir.display()),
        Err(e) => tracing::error!("mounting the statistics: {e}"),
    }
    tokio::spawn(async move {
        let mut files = Files { dir, begun: source.begun, last: BTreeMap::new() };
        loop {
            files.update(&source.plain().await);
            tokio::time::sleep(EVERY).await;
        }
    });
    None
}

fn attach(source: Arc<Source>, env: zilla_env::Env, dir: &Path) -> std::io::Result<TextMount> {
    zilla_fuse::clear_stale(dir)?;
    std::fs::create_dir_all(dir)?;
    zilla_fuse::mount_texts(source, env, dir, "zilla-kstat")
}

/// Where the machine tells nothing of its memory.
const NOTHING_KNOWN: Memory = Memory { total: 0, available: 0 };

/// A file's subject.
enum What {
    All(&'static str),
    Pool(Arc<Pool>, &'static str),
    /// A mounted file system by its name.
    Dataset(Arc<Pool>, String),
}

/// Those of all pools.
const ALL: [&str; 6] = ["arcstats", "zil", "cow_faults", "dmu_tx", "zfetchstats", "dbufstats"];
const DBUFS: &str = "dbufs";

impl Source {
    fn here(&self) -> Vec<Arc<Pool>> {
        self.pools.read().values().cloned().collect()
    }

    /// All files but [`DBUFS`].
    fn files(&self) -> Vec<(PathBuf, What)> {
        let mut out: Vec<_> = ALL.into_iter().map(|name| (PathBuf::from(name), What::All(name))).collect();
        for pool in self.here() {
            let folder = PathBuf::from(pool.name());
            let beats = pool.zilla.multihost().then_some("multihost");
            let own = super::poolstats::NAMES.into_iter().chain(beats);
            out.extend(own.map(|name| (folder.join(name), What::Pool(pool.clone(), name))));
            for (name, mounted) in pool.mounts().iter().filter(|(name, _)| !name.contains('@')) {
                let file = folder.join(format!("objset-0x{:x}", mounted.fs.dataset_id()));
                out.push((file, What::Dataset(pool.clone(), name.clone())));
            }
        }
        out
    }

    /// As they are written where they cannot be mounted.
    async fn plain(&self) -> Vec<Stat> {
        let mut out = Vec::new();
        for (file, what) in self.files() {
            out.extend(self.say(&what).await.map(|said| (file, said)));
        }
        out
    }

    /// None: it is gone.
    async fn say(&self, what: &What) -> Option<Said> {
        let name = match what {
            What::All(name) => *name,
            What::Pool(pool, "multihost") => {
                return Some(Said::Lines(heartbeats(&pool.zilla.heartbeats())));
            }
            What::Pool(pool, name) => return Some(super::poolstats::of(pool, name)),
            What::Dataset(pool, name) => {
                let ds = pool.zilla.by_name(name).await.ok()?;
                let counts = dataset_names(&ds.io_counts()).into_iter().chain(named(&ds.log_counts()));
                return Some(Said::Counts(Some(name.clone()), counts.collect()));
            }
        };
        let pools = self.here();
        let counts = match name {
            "zil" => {
                let mut sum = LogCounts::default();
                pools.iter().for_each(|p| sum.add(&p.zilla.log_counts()));
                named(&sum).into()
            }
            "cow_faults" => {
                let sum: FaultCounts = pools.iter().map(|p| p.zilla.fault_counts()).sum();
                fault_names(&sum).into()
            }
            "dmu_tx" => {
                let mut sum = TxCounts::default();
                pools.iter().for_each(|p| sum.add(&p.zilla.tx_counts()));
                tx_names(&sum).into()
            }
            "zfetchstats" => {
                let mut sum = StreamCounts::default();
                pools.iter().for_each(|p| sum.add(&p.zilla.stream_counts()));
                stream_names(&sum).into()
            }
            "dbufstats" => {
                let mut sum = DbufCounts::default();
                pools.iter().for_each(|p| sum.add(&p.zilla.dbuf_counts()));
                dbuf_names(&sum)
            }
            _ => {
                let memory = zilla::stats::memory(&*self.opener).await;
                super::arcstats::sum(&self.pools, &self.past, &memory.unwrap_or(NOTHING_KNOWN))
            }
        };
        Some(Said::Counts(None, counts))
    }
}

impl Texts for Source {
    fn list(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async {
            let files = self.files();
            let names = files.into_iter().filter_map(|(file, _)| file.into_os_string().into_string().ok());
            names.chain([DBUFS.to_owned()]).collect()
        })
    }

    fn text<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let age = self.begun.elapsed();
            if path == DBUFS {
                return Some(super::dbufs::text(&self.here(), age).into_bytes());
            }
            let file = Path::new(path);
            let what = match ALL.into_iter().find(|name| *name == path) {
                Some(name) => What::All(name),
                None => self.files().into_iter().find(|(at, _)| at == file)?.1,
            };
            Some(self.say(&what).await?.text(file, age).into_bytes())
        })
    }
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

impl Said {
    fn text(&self, file: &Path, age: Duration) -> String {
        match self {
            Said::Counts(dataset, counts) => text(file, dataset.as_deref(), counts, age),
            Said::Lines(lines) => lines.clone(),
        }
    }
}

/// Name of the file, and what it says.
type Stat = (PathBuf, Said);

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

pub(super) fn stream_names(c: &StreamCounts) -> [(&'static str, u64); 8] {
    [
        ("hits", c.hits),
        ("future", c.future),
        ("stride", c.stride),
        ("past", c.past),
        ("misses", c.misses),
        ("max_streams", c.max_streams),
        ("io_issued", c.ahead_blocks),
        ("io_active", c.ahead_active),
    ]
}

fn dbuf_names(c: &DbufCounts) -> Named {
    let mut all = vec![
        ("cache_count", c.blocks),
        ("cache_size_bytes", c.bytes),
        ("cache_size_bytes_max", c.most_bytes),
        ("cache_target_bytes", c.limit),
        // It is brought back to its limit at once: there are no marks beside that.
        ("cache_lowater_bytes", c.limit),
        ("cache_hiwater_bytes", c.limit),
        ("cache_total_evicts", c.evicted),
        // Each is in its object's own tree; OpenZFS has one table.
        ("hash_elements", c.blocks),
    ];
    all.extend(LEVEL_NAMES.into_iter().zip(c.levels));
    all
}

const LEVEL_NAMES: [&str; 12] = [
    "cache_level_0",
    "cache_level_1",
    "cache_level_2",
    "cache_level_3",
    "cache_level_4",
    "cache_level_5",
    "cache_level_6",
    "cache_level_7",
    "cache_level_8",
    "cache_level_9",
    "cache_level_10",
    "cache_level_11",
];

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
            match place.write(file, &said.text(file, self.begun.elapsed())) {
                Ok(()) => drop(self.last.insert(file.clone(), said.clone())),
                Err(e) => tracing::warn!("'{}': {e}", self.dir.join(file).display()),
            }
        }
    }
}

/// The counters under OpenZFS's names.
pub(super) fn named(c: &LogCounts) -> [(&'static str, u64); 21] {
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
