//! The lines of a frame: what there is now, and what was added a second since the frame before.

use crate::fmt::time;
use crate::fmt::vdev::{self, NameFlags};
use std::collections::BTreeMap;
use zilla_control::props::nicenum::{nicebytes, nicenum};
use zilla_control::types::{ArcStat, LogStat, PoolInfo, ScanFunc, ScanState, VdevKind, VdevNode};

/// What the daemon said at one moment.
pub struct Figures {
    pub pools: Vec<PoolInfo>,
    pub arc: Vec<ArcStat>,
    pub logs: Vec<LogStat>,
}

/// Room that the columns of figures take.
const FIGURES: usize = 54;
const LEAST_NAME: usize = 12;

/// What is shown. Without a frame before, rates are left out.
pub fn frame(now: &Figures, before: Option<&Figures>, width: usize) -> Vec<String> {
    let mut out = vec![format!("zilla top   {}   q: quit, arrows: scroll", time::of_day(time::now()))];
    if now.pools.is_empty() {
        out.push("no pools available".to_owned());
    }
    for pool in &now.pools {
        let old = before.and_then(|b| b.pools.iter().find(|p| p.guid == pool.guid));
        out.push(String::new());
        one(&mut out, pool, old, width);
        out.push(cache_line(pool, now, before));
    }
    // Names are others' words: nothing in them may steer the terminal, and no line may be longer
    // than it.
    let plain =
        |line: &String| line.chars().map(|c| if c.is_control() { '?' } else { c }).take(width).collect();
    out.iter().map(plain).collect()
}

fn one(out: &mut Vec<String>, pool: &PoolInfo, old: Option<&PoolInfo>, width: usize) {
    let s = &pool.root.stats;
    let used = s.alloc.saturating_mul(100).checked_div(s.space).unwrap_or(0);
    out.push(format!(
        "{}  {}  {} of {} ({used}%)  {} errors{}",
        pool.name,
        pool.health.as_str(),
        nicebytes(s.alloc),
        nicebytes(s.space),
        pool.error_count,
        scan(pool)
    ));
    let room = width.saturating_sub(FIGURES).max(LEAST_NAME);
    out.push(format!(
        "{:<room$} {:<9}{:>7}{:>7}{:>8}{:>8}{:>6}{:>6}",
        "device", "state", "read/s", "writ/s", "read", "written", "err", "cksum"
    ));
    let top = pool.root.children.iter().chain(&pool.l2cache).chain(&pool.spares);
    let mut olds = BTreeMap::new();
    if let Some(old) = old {
        old.root.children.iter().chain(&old.l2cache).chain(&old.spares).for_each(|v| index(v, &mut olds));
    }
    top.for_each(|v| rows(out, v, &olds, 0, room));
}

fn index<'a>(vdev: &'a VdevNode, into: &mut BTreeMap<u64, &'a VdevNode>) {
    into.insert(vdev.guid, vdev);
    vdev.children.iter().for_each(|child| index(child, into));
}

fn rows(out: &mut Vec<String>, v: &VdevNode, olds: &BTreeMap<u64, &VdevNode>, depth: usize, room: usize) {
    if matches!(v.kind, VdevKind::Hole | VdevKind::Indirect) {
        return;
    }
    let name = vdev::name(v, NameFlags::default(), true);
    // The end of a path tells more than its beginning.
    let (indent, keep) = (2 * depth, room.saturating_sub(2 * depth));
    let length = name.chars().count();
    let name: String = name.chars().skip(length.saturating_sub(keep)).collect();
    let s = &v.stats;
    let old = olds.get(&v.guid).map(|o| &o.stats).filter(|o| o.timestamp < s.timestamp);
    let rate = |f: fn(&zilla_control::types::VdevStats) -> u64, show: fn(u64) -> String| match old {
        None => "-".to_owned(),
        Some(o) => {
            let nanos = u128::from((s.timestamp - o.timestamp).max(1));
            let added = u128::from(f(s).saturating_sub(f(o)));
            show(u64::try_from(added * 1_000_000_000 / nanos).unwrap_or(u64::MAX))
        }
    };
    out.push(format!(
        "{:indent$}{name:<keep$} {:<9}{:>7}{:>7}{:>8}{:>8}{:>6}{:>6}",
        "",
        vdev::state_name(s.state, s.aux),
        rate(|s| s.read_ops, nicenum),
        rate(|s| s.write_ops, nicenum),
        rate(|s| s.read_bytes, nicebytes),
        rate(|s| s.write_bytes, nicebytes),
        nicenum(s.read_errors + s.write_errors),
        nicenum(s.checksum_errors),
    ));
    v.children.iter().for_each(|child| rows(out, child, olds, depth + 1, room));
}

fn scan(pool: &PoolInfo) -> String {
    let Some(s) = pool.scan.as_ref().filter(|s| s.state == ScanState::Scanning) else { return String::new() };
    let what = if s.func == ScanFunc::Resilver { "resilver" } else { "scrub" };
    let all = s.to_examine.saturating_sub(s.skipped).max(1);
    let done = 100.0 * s.issued as f64 / all as f64;
    let paused = if s.pass_scrub_pause > 0 { ", paused" } else { "" };
    format!("  {what} {done:.1}%{paused}")
}

/// Caches and log of a pool in one line.
fn cache_line(pool: &PoolInfo, now: &Figures, before: Option<&Figures>) -> String {
    fn counts<'a>(f: &'a Figures, pool: &str) -> [Option<&'a BTreeMap<String, u64>>; 2] {
        [
            f.arc.iter().find(|s| s.pool == pool).map(|s| &s.counts),
            f.logs.iter().find(|s| s.name == pool).map(|s| &s.counts),
        ]
    }
    let new = counts(now, &pool.name);
    let old = before.map_or([None, None], |b| counts(b, &pool.name));
    let get = |from: Option<&BTreeMap<String, u64>>, name: &str| {
        from.and_then(|c| c.get(name)).copied().unwrap_or(0)
    };
    let added = |i: usize, name: &str| get(new[i], name).saturating_sub(get(old[i], name));
    let hit = |hits: u64, misses: u64| match hits + misses {
        0 => "-".to_owned(),
        all => format!("{}%", 100 * hits / all),
    };
    let arc = format!("arc {} of {}", nicebytes(get(new[0], "size")), nicebytes(get(new[0], "c")));
    let arc_hits = hit(added(0, "hits"), added(0, "misses"));
    let l2 = format!(
        "l2arc {} hits {}",
        nicebytes(get(new[0], "l2_size")),
        hit(added(0, "l2_hits"), added(0, "l2_misses"))
    );
    let since = if before.is_some() { "new" } else { "in all" };
    format!("{arc} hits {arc_hits}   {l2}   commits {since} {}", nicenum(added(1, "commits")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_control::types::{PoolHealth, ScanStat, VdevStats};

    fn figures(read_ops: u64, timestamp: u64) -> Figures {
        let stats = VdevStats {
            read_ops,
            read_bytes: read_ops << 20,
            timestamp,
            checksum_errors: 3,
            ..VdevStats::default()
        };
        let leaf = VdevNode {
            kind: VdevKind::File,
            guid: 7,
            path: Some("/a/very/long/folder/of/images/with/\u{1b}[31mdisk.img".to_owned()),
            stats,
            ..VdevNode::default()
        };
        let mirror =
            VdevNode { kind: VdevKind::Mirror, guid: 6, children: vec![leaf], ..VdevNode::default() };
        let mut root = VdevNode { kind: VdevKind::Root, children: vec![mirror], ..VdevNode::default() };
        (root.stats.alloc, root.stats.space) = (1 << 30, 4 << 30);
        let scan = ScanStat {
            func: ScanFunc::Scrub,
            state: ScanState::Scanning,
            to_examine: 1000,
            issued: 250,
            ..ScanStat::default()
        };
        let pool = PoolInfo {
            name: "tank".to_owned(),
            health: PoolHealth::Degraded,
            root,
            scan: Some(scan),
            ..PoolInfo::default()
        };
        let counts = [("hits", 90), ("misses", 10), ("size", 1 << 20), ("c", 2 << 20)];
        let arc = ArcStat { pool: "tank".to_owned(), counts: counts.map(|(k, v)| (k.to_owned(), v)).into() };
        Figures { pools: vec![pool], arc: vec![arc], logs: Vec::new() }
    }

    #[test]
    fn a_frame_shows_what_was_done_a_second() {
        let (before, now) = (figures(100, 1_000_000_000), figures(300, 3_000_000_000));
        let text = frame(&now, Some(&before), 100).join("\n");
        assert!(text.contains("tank  DEGRADED  1G of 4G (25%)  0 errors  scrub 25.0%"), "{text}");
        let row = text.lines().find(|l| l.contains("disk.img")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(&words[1..], ["ONLINE", "100", "0", "100M", "0B", "0", "3"], "{row}");
        assert!(text.contains("arc 1M of 2M hits -"), "{text}");
        let first = frame(&now, None, 100).join("\n");
        assert!(first.contains("hits 90%") && first.contains("commits in all 0"), "{first}");
    }

    #[test]
    fn lines_fit_and_carry_no_escape_sequences() {
        for width in [1, 20, 40, 80, 200] {
            for line in frame(&figures(1, 1), None, width) {
                assert!(line.chars().count() <= width, "{line}");
                assert!(!line.chars().any(char::is_control), "{line}");
            }
        }
    }
}
