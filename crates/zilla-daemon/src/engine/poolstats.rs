//! What OpenZFS tells of each pool among its kstats: `state`, `guid`, its last `txgs`, and
//! `iostats`.

use super::kstats::{Named, Said};
use super::pool::Pool;
use std::fmt::Write;
use std::time::Duration;
use zilla::stats::TxgRecord;
use zilla_ondisk::enums::VdevState;

pub(super) const NAMES: [&str; 4] = ["state", "guid", "txgs", "iostats"];

/// What the file of one of [`NAMES`] says.
pub(super) fn of(pool: &Pool, name: &str) -> Said {
    match name {
        "state" => {
            let state = match pool.zilla.suspended() {
                Some(_) => "SUSPENDED",
                None => word(pool.zilla.vdevs().state()),
            };
            Said::Lines(format!("{state}\n"))
        }
        "guid" => Said::Lines(format!("{}\n", pool.zilla.guid())),
        "txgs" => Said::Lines(txgs(&pool.zilla.txg_history())),
        _ => Said::Counts(None, iostats(pool)),
    }
}

/// The columns of OpenZFS's txg history; times are nanoseconds.
fn txgs(all: &[TxgRecord]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<8} {:<16} {:<5} {:<12} {:<12} {:<12} {:<8} {:<8} {:<12} {:<12} {:<12} {:<12}",
        "txg",
        "birth",
        "state",
        "ndirty",
        "nread",
        "nwritten",
        "reads",
        "writes",
        "otime",
        "qtime",
        "wtime",
        "stime"
    );
    for r in all {
        let at = |step: usize| r.times.get(step).copied();
        let took = |step: usize| match (at(step), at(step + 1)) {
            (Some(from), Some(to)) => to.saturating_sub(from).as_nanos(),
            _ => 0,
        };
        // Open, quiescing, waiting for its sync, being synced, on disk.
        let state = ['O', 'Q', 'W', 'S', 'C'].get(r.times.len().saturating_sub(1)).copied().unwrap_or('?');
        // What devices did so far is known of a sync that has ended.
        let io = if r.times.len() == 5 { r.io } else { Default::default() };
        let _ = writeln!(
            out,
            "{:<8} {:<16} {:<5} {:<12} {:<12} {:<12} {:<8} {:<8} {:<12} {:<12} {:<12} {:<12}",
            r.txg,
            at(0).unwrap_or(Duration::ZERO).as_nanos(),
            state,
            r.dirty,
            io.read_bytes,
            io.written_bytes,
            io.reads,
            io.writes,
            took(0),
            took(1),
            took(2),
            took(3)
        );
    }
    out
}

fn iostats(pool: &Pool) -> Named {
    let [asked, by_itself] = pool.zilla.trim_counts();
    let io = pool.zilla.stream_counts();
    vec![
        ("trim_extents_written", asked.written),
        ("trim_bytes_written", asked.written_bytes),
        ("trim_extents_skipped", asked.skipped),
        ("trim_bytes_skipped", asked.skipped_bytes),
        ("trim_extents_failed", asked.failed),
        ("trim_bytes_failed", asked.failed_bytes),
        ("autotrim_extents_written", by_itself.written),
        ("autotrim_bytes_written", by_itself.written_bytes),
        ("autotrim_extents_skipped", by_itself.skipped),
        ("autotrim_bytes_skipped", by_itself.skipped_bytes),
        ("autotrim_extents_failed", by_itself.failed),
        ("autotrim_bytes_failed", by_itself.failed_bytes),
        // OpenZFS's of cache devices, which are not trimmed here.
        ("simple_trim_extents_written", 0),
        ("simple_trim_bytes_written", 0),
        ("simple_trim_extents_skipped", 0),
        ("simple_trim_bytes_skipped", 0),
        ("simple_trim_extents_failed", 0),
        ("simple_trim_bytes_failed", 0),
        ("arc_read_count", io.read_blocks),
        ("arc_read_bytes", io.read_bytes),
        ("arc_write_count", io.written_blocks),
        ("arc_write_bytes", io.written_bytes),
        ("direct_read_count", io.direct_read_blocks),
        ("direct_read_bytes", io.direct_read_bytes),
        ("direct_write_count", io.direct_written_blocks),
        ("direct_write_bytes", io.direct_written_bytes),
    ]
}

fn word(state: VdevState) -> &'static str {
    match state {
        VdevState::Healthy => "ONLINE",
        VdevState::Degraded => "DEGRADED",
        VdevState::Faulted => "FAULTED",
        VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        _ => "UNAVAIL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla::stats::DeviceIo;

    #[test]
    fn txgs_are_told_as_openzfs_tells_them() {
        let at = |all: &[u64]| all.iter().map(|n| Duration::from_nanos(*n)).collect();
        let io = DeviceIo { reads: 1, read_bytes: 512, writes: 9, written_bytes: 40960 };
        let text = txgs(&[
            TxgRecord { txg: 7, times: at(&[100, 150, 160, 161, 190]), dirty: 4096, io },
            TxgRecord { txg: 8, times: at(&[150, 180, 181, 182]), dirty: 1, io },
            TxgRecord { txg: 9, times: at(&[180]), dirty: 0, io: DeviceIo::default() },
        ]);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        let wanted = "txg birth state ndirty nread nwritten reads writes otime qtime wtime stime";
        assert_eq!(lines[0].join(" "), wanted);
        assert_eq!(lines[1].join(" "), "7 100 C 4096 512 40960 1 9 50 10 1 29");
        assert_eq!(lines[2].join(" "), "8 150 S 1 0 0 0 0 30 1 1 0");
        assert_eq!(lines[3].join(" "), "9 180 O 0 0 0 0 0 0 0 0 0");
    }
}
