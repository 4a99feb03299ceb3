//! What is or was going on in a pool, as `zpool status` tells it: scrubs, resilvers, rebuilds,
//! removals, expansions, the checkpoint.

use crate::fmt::color::bold;
use crate::fmt::time;
use crate::fmt::vdev::{self, NameFlags};
use zilla_control::props::nicenum::{nicebytes, nicenum};
use zilla_control::types::{
    ActivityState, Checkpoint, CheckpointState, ErrorScrub, PoolInfo, RaidzExpand, RebuildStat, Removal,
    ScanFunc, ScanStat, ScanState,
};

pub fn scans(pool: &PoolInfo, now: u64) -> String {
    let mut text = String::new();
    let scan = pool.scan.as_ref();
    let scrub = scan.filter(|s| s.func == ScanFunc::Scrub);
    let resilver = scan.filter(|s| s.func == ScanFunc::Resilver);
    let error_scrub = pool.error_scrub.as_ref().filter(|s| s.state != ScanState::None);
    match (scrub, error_scrub) {
        (Some(s), e) if e.is_none_or(|e| s.start_time > e.start_time) => text.push_str(&scan_line(s, now)),
        (_, Some(e)) if e.start_time >= scan.map_or(0, |s| s.start_time) => {
            text.push_str(&error_scrub_line(e))
        }
        _ => {}
    }
    let rebuilds: Vec<_> = pool
        .root
        .children
        .iter()
        .filter_map(|top| top.rebuild.as_ref().filter(|r| r.state != ActivityState::None).map(|r| (top, r)))
        .collect();
    let rebuilding = rebuilds.iter().any(|(_, r)| r.state == ActivityState::Active);
    let rebuilt = rebuilds.iter().map(|(_, r)| r.end_time).max().unwrap_or(0);
    let resilvering = resilver.is_some_and(|s| s.state == ScanState::Scanning);
    let resilvered = resilver.map_or(0, |s| s.end_time);
    if let Some(s) = resilver.filter(|_| resilvering || (!rebuilding && resilvered > rebuilt)) {
        text.push_str(&scan_line(s, now));
    } else if rebuilding || rebuilt > resilvered {
        for (top, rebuild) in rebuilds {
            text.push_str(&rebuild_line(&vdev::name(top, NameFlags::default(), true), rebuild));
        }
    }
    let checkpoint = pool.checkpoint.as_ref().filter(|c| c.state == CheckpointState::Exists);
    if let (Some(s), Some(c)) = (scan, checkpoint) {
        let what = "blocks that are only referenced by the checkpoint.\n";
        match s.state {
            ScanState::Scanning => text.push_str(&format!("    scan warning: skipping {what}")),
            ScanState::Finished | ScanState::Canceled if s.end_time >= c.start_time => {
                text.push_str(&format!("    scan warning: skipped {what}"));
            }
            _ => {}
        }
    }
    text
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// The line about a scrub or resilver, three lines while it runs.
pub fn scan_line(scan: &ScanStat, now: u64) -> String {
    let mut text = format!("  {} ", bold("scan:"));
    let resilver = scan.func == ScanFunc::Resilver;
    let (start, end) = (time::ctime(scan.start_time), time::ctime(scan.end_time));
    let processed = nicebytes(scan.processed);
    match scan.state {
        ScanState::None => return text + "none requested\n",
        ScanState::Finished => {
            let what = if resilver { "resilvered" } else { "scrub repaired" };
            let took = time::duration(scan.end_time.saturating_sub(scan.start_time));
            return text + &format!("{what} {processed} in {took} with {} errors on {end}\n", scan.errors);
        }
        ScanState::Canceled => {
            let what = if resilver { "resilver" } else { "scrub" };
            return text + &format!("{what} canceled on {end}\n");
        }
        ScanState::Scanning => {}
    }
    let paused = scan.pass_scrub_pause != 0;
    if resilver {
        text.push_str(&format!("resilver in progress since {start}\n"));
    } else if paused {
        let pause = time::ctime(scan.pass_scrub_pause);
        text.push_str(&format!("scrub paused since {pause}\n\tscrub started on {start}\n"));
    } else {
        text.push_str(&format!("scrub in progress since {start}\n"));
    }
    let to_issue = scan.to_examine.saturating_sub(scan.skipped);
    let elapsed = now.saturating_sub(scan.pass_start).saturating_sub(scan.pass_scrub_spent_paused).max(1);
    let (scan_rate, issue_rate) = (scan.pass_exam / elapsed, scan.pass_issued / elapsed);
    text.push_str(&format!("\t{} / {} scanned", nicebytes(scan.examined), nicebytes(scan.to_examine)));
    if !paused && scan_rate > 0 {
        text.push_str(&format!(" at {}/s", nicebytes(scan_rate)));
    }
    text.push_str(&format!(", {} / {} issued", nicebytes(scan.issued), nicebytes(to_issue)));
    if !paused && issue_rate > 0 {
        text.push_str(&format!(" at {}/s", nicebytes(issue_rate)));
    }
    let what = if resilver { "resilvered" } else { "repaired" };
    text.push_str(&format!("\n\t{processed} {what}, {:.2}% done", percent(scan.issued, to_issue)));
    // Below 10 MB/s, or before anything was done, a guess would be worth nothing.
    let begun = if resilver { scan.processed > 0 } else { scan.issued > 0 };
    if paused {
        text.push('\n');
    } else if to_issue >= scan.issued && issue_rate >= 10 << 20 && begun {
        text.push_str(&format!(", {} to go\n", time::duration((to_issue - scan.issued) / issue_rate)));
    } else {
        text.push_str(", no estimated completion time\n");
    }
    text
}

fn error_scrub_line(scrub: &ErrorScrub) -> String {
    let (start, end) = (time::ctime(scrub.start_time), time::ctime(scrub.end_time));
    let took = scrub.end_time.saturating_sub(scrub.start_time);
    match scrub.state {
        ScanState::None => String::new(),
        ScanState::Finished => format!(
            " scrub: scrubbed {} error blocks in {} days {} on {end}\n",
            scrub.examined,
            took / 86400,
            time::duration(took % 86400)
        ),
        ScanState::Canceled => format!(" scrub: error scrub canceled on {end}\n"),
        ScanState::Scanning => {
            let mut text = match scrub.pause_time {
                0 => format!(" scrub: error scrub in progress since {start}\n"),
                pause => format!(
                    " scrub: error scrub paused since {}\n\terror scrub started on {start}\n",
                    time::ctime(pause)
                ),
            };
            let done = percent(scrub.examined, scrub.to_examine.saturating_add(scrub.examined));
            text.push_str(&format!("\t{done:.2}% done, issued I/O for {} error blocks\n", scrub.examined));
            text
        }
    }
}

fn rebuild_line(name: &str, rebuild: &RebuildStat) -> String {
    let mut text = format!("  {} ", bold("scan:"));
    let rebuilt = nicebytes(rebuild.bytes_rebuilt);
    match rebuild.state {
        ActivityState::Complete => {
            let took = time::duration(rebuild.scan_time_ms / 1000);
            let end = time::ctime(rebuild.end_time);
            text.push_str(&format!(
                "resilvered ({name}) {rebuilt} in {took} with {} errors on {end}\n",
                rebuild.errors
            ));
        }
        ActivityState::Canceled => {
            text.push_str(&format!("resilver ({name}) canceled on {}\n", time::ctime(rebuild.end_time)));
        }
        _ => {
            let rate = |bytes: u64| (bytes / rebuild.pass_time_ms.saturating_add(1)).saturating_mul(1000);
            let (scan_rate, issue_rate) = (rate(rebuild.pass_bytes_scanned), rate(rebuild.pass_bytes_issued));
            let total = rebuild.bytes_est;
            text.push_str(&format!(
                "resilver ({name}) in progress since {}\n",
                time::ctime(rebuild.start_time)
            ));
            text.push_str(&format!("\t{} / {} scanned", nicebytes(rebuild.bytes_scanned), nicebytes(total)));
            if scan_rate > 0 {
                text.push_str(&format!(" at {}/s", nicebytes(scan_rate)));
            }
            let to_issue = nicebytes(total.saturating_sub(rebuild.pass_bytes_skipped));
            text.push_str(&format!(", {} / {to_issue} issued", nicebytes(rebuild.bytes_issued)));
            if issue_rate > 0 {
                text.push_str(&format!(" at {}/s", nicebytes(issue_rate)));
            }
            let done = percent(rebuild.bytes_scanned, total.saturating_add(1)).min(100.0);
            text.push_str(&format!("\n\t{rebuilt} resilvered, {done:.2}% done"));
            if total >= rebuild.bytes_scanned && scan_rate >= 10 << 20 {
                let left = time::duration((total - rebuild.bytes_scanned) / scan_rate);
                text.push_str(&format!(", {left} to go\n"));
            } else {
                text.push_str(", no estimated completion time\n");
            }
        }
    }
    text
}

pub fn removal(pool: &PoolInfo, now: u64) -> String {
    let Some(removal) = pool.removal.as_ref().filter(|r| r.state != ScanState::None) else {
        return String::new();
    };
    let Removal { state, removing_vdev, start_time, end_time, to_copy, copied, mapping_memory } = *removal;
    let name = pool
        .root
        .children
        .iter()
        .find(|c| c.id == removing_vdev)
        .map_or_else(|| removing_vdev.to_string(), |c| vdev::name(c, NameFlags::default(), true));
    let mut text = bold("remove: ");
    match state {
        ScanState::Finished => {
            let minutes = end_time.saturating_sub(start_time) / 60;
            text.push_str(&format!(
                "Removal of vdev {removing_vdev} copied {} in {}h{}m, completed on {}\n",
                nicenum(copied),
                minutes / 60,
                minutes % 60,
                time::ctime(end_time)
            ));
        }
        ScanState::Canceled => {
            text.push_str(&format!("Removal of {name} canceled on {}\n", time::ctime(end_time)));
        }
        _ => {
            text.push_str(&format!("Evacuation of {name} in progress since {}\n", time::ctime(start_time)));
            text.push_str(&copy_progress(copied, to_copy, now.saturating_sub(start_time)));
        }
    }
    if mapping_memory > 0 {
        text.push_str(&format!("\t{} memory used for removed device mappings\n", nicenum(mapping_memory)));
    }
    text
}

fn copy_progress(copied: u64, total: u64, elapsed: u64) -> String {
    let copied = copied.max(1);
    let rate = (copied / elapsed.max(1)).max(1);
    let minutes = total.saturating_sub(copied) / rate / 60;
    let mut text = format!(
        "\t{} copied out of {} at {}/s, {:.2}% done",
        nicenum(copied),
        nicenum(total),
        nicenum(rate),
        percent(copied, total)
    );
    if minutes / 60 < 30 * 24 {
        text.push_str(&format!(", {}h{}m to go\n", minutes / 60, minutes % 60));
    } else {
        text.push_str(", (copy is slow, no estimated time)\n");
    }
    text
}

pub fn expansion(pool: &PoolInfo, now: u64) -> String {
    let Some(expand) = pool.raidz_expand.as_ref().filter(|e| e.state != ScanState::None) else {
        return String::new();
    };
    let RaidzExpand { state, expanding_vdev, start_time, end_time, to_reflow, reflowed, .. } = *expand;
    let name = pool
        .root
        .children
        .iter()
        .find(|c| c.id == expanding_vdev)
        .map_or_else(|| expanding_vdev.to_string(), |c| vdev::name(c, NameFlags::default(), true));
    let mut text = bold("expand: ");
    if state == ScanState::Finished {
        let took = time::duration(end_time.saturating_sub(start_time));
        text.push_str(&format!(
            "expanded {name} copied {} in {took}, on {}\n",
            nicenum(reflowed),
            time::ctime(end_time)
        ));
    } else {
        text.push_str(&format!("expansion of {name} in progress since {}\n", time::ctime(start_time)));
        let copied = reflowed.max(1);
        let rate = (copied / now.saturating_sub(start_time).max(1)).max(1);
        text.push_str(&format!(
            "\t{} / {} copied at {}/s, {:.2}% done",
            nicenum(copied),
            nicenum(to_reflow),
            nicenum(rate),
            percent(copied, to_reflow)
        ));
        if expand.waiting_for_resilver {
            text.push_str(", paused for resilver or clear\n");
        } else if to_reflow.saturating_sub(copied) / rate < 30 * 24 * 3600 {
            text.push_str(&format!(", {} to go\n", time::duration(to_reflow.saturating_sub(copied) / rate)));
        } else {
            text.push_str(", (copy is slow, no estimated time)\n");
        }
    }
    text
}

pub fn checkpoint(checkpoint: Option<&Checkpoint>) -> String {
    match checkpoint {
        Some(c) if c.state == CheckpointState::Exists => {
            format!("checkpoint: created {}, consumes {}\n", time::ctime(c.start_time), nicenum(c.space))
        }
        Some(c) if c.state == CheckpointState::Discarding => {
            format!("checkpoint: discarding, {} remaining.\n", nicenum(c.space))
        }
        _ => String::new(),
    }
}
