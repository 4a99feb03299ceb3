//! The printers against what OpenZFS printed about the same pools.

use super::{compat, get, history, iostat, list, status, status_activity};
use crate::fmt::proplist::{self, Column, Of};
use crate::fmt::vdev::NameFlags;
use zilla_control::props::FEATURES;
use zilla_control::status::{SPA_VERSION, StatusReason, reason_of};
use zilla_control::types::*;

macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("../../tests/golden/", $name))
    };
}

fn leaf(path: &str, pspace: u64) -> VdevNode {
    VdevNode {
        path: Some(path.to_owned()),
        stats: VdevStats { pspace, ..VdevStats::default() },
        ..VdevNode::default()
    }
}

fn mirror(id: u64, class: AllocClass, space: u64, children: Vec<VdevNode>) -> VdevNode {
    VdevNode {
        kind: VdevKind::Mirror,
        id,
        class,
        stats: VdevStats { space, fragmentation: Some(0), ..VdevStats::default() },
        children,
        ..VdevNode::default()
    }
}

fn source(word: &str) -> Source {
    match word {
        "-" => Source::None,
        "default" => Source::Default,
        "local" => Source::Local,
        "temporary" => Source::Temporary,
        "received" => Source::Received,
        other => Source::Inherited(other.trim_start_matches("inherited from ").to_owned()),
    }
}

/// The pool of the corpus set `mirror-log-cache`.
fn tank() -> PoolInfo {
    let mut pool = PoolInfo {
        name: "tank".to_owned(),
        version: SPA_VERSION,
        root: VdevNode {
            kind: VdevKind::Root,
            stats: VdevStats { space: 83886080, fragmentation: Some(0), ..VdevStats::default() },
            children: vec![
                mirror(
                    0,
                    AllocClass::Normal,
                    83886080,
                    vec![leaf("/dev/xvda1", 100663296), leaf("/dev/xvdb1", 100663296)],
                ),
                mirror(
                    1,
                    AllocClass::Log,
                    50331648,
                    vec![leaf("/dev/xvdc1", 67108864), leaf("/dev/xvdd1", 67108864)],
                ),
            ],
            ..VdevNode::default()
        },
        ..PoolInfo::default()
    };
    let mut cache = leaf("/dev/xvde1", 67108864);
    cache.stats.space = 62389760;
    cache.stats.fragmentation = Some(0);
    cache.class = AllocClass::Cache;
    pool.l2cache.push(cache);
    for line in golden!("mirror-log-cache/zpool-get-all.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [_, name, value, from] = fields[..] else { panic!("{line}") };
        if let Some(feature) = name.strip_prefix("feature@") {
            let desc = FEATURES.iter().find(|f| f.name == feature).unwrap();
            pool.features.push(Feature {
                name: feature.to_owned(),
                guid: desc.guid.to_owned(),
                state: match value {
                    "active" => FeatureState::Active,
                    "enabled" => FeatureState::Enabled,
                    _ => FeatureState::Disabled,
                },
                supported: true,
                readonly_compatible: desc.readonly_compatible,
            });
        } else {
            pool.properties.insert(name.to_owned(), PropValue::new(value, source(from)));
        }
    }
    pool
}

fn plain(pool: &PoolInfo) -> String {
    let reason = reason_of(pool, &compat::of(pool));
    status::print(pool, reason, &status::Options::default())
}

#[test]
fn status_of_a_healthy_pool() {
    assert_eq!(plain(&tank()), golden!("mirror-log-cache/zpool-status.txt"));
}

#[test]
fn status_of_an_old_pool() {
    let mut pool = tank();
    pool.version = 28;
    pool.root.children.truncate(1);
    pool.l2cache.clear();
    assert_eq!(plain(&pool), golden!("v28/zpool-status.txt"));
}

#[test]
fn list() {
    let pools = [tank()];
    let wanted = proplist::parse("name,size,alloc,free,ckpoint,expandsize,frag,cap,dedup,health", Of::Pools);
    let entries = list::expand(wanted.unwrap().as_deref(), &pools, true);
    let opts = list::Options { scripted: true, literal: true, ..list::Options::default() };
    assert_eq!(list::print(&pools, &entries, &opts, false), golden!("mirror-log-cache/zpool-list.tsv"));

    let wanted = proplist::parse(
        "name,size,allocated,free,checkpoint,expandsize,fragmentation,capacity,dedupratio,health,altroot",
        Of::Pools,
    );
    let wanted = wanted.unwrap();
    let entries = list::expand(wanted.as_deref(), &pools, true);
    let names = NameFlags { path: true, ..NameFlags::default() };
    let opts = list::Options { verbose: true, literal: true, names, ..list::Options::default() };
    assert_eq!(list::print(&pools, &entries, &opts, true), golden!("mirror-log-cache/zpool-list-v.txt"));

    let entries = list::expand(wanted.as_deref(), &pools, false);
    let text = list::print(&pools, &entries, &list::Options::default(), true);
    assert_eq!(
        text,
        "NAME   SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
         tank    80M      0    80M        -         -     0%     0%  1.00x    ONLINE  -\n"
    );
}

#[test]
fn get_everything() {
    let pools = [tank()];
    let entries: Vec<_> = list::expand(None, &pools, true).into_iter().skip(1).collect();
    let text = get::print_pools(&pools, &entries, true, true, Column::DEFAULT);
    assert_eq!(text, golden!("mirror-log-cache/zpool-get-all.tsv"));
    let one = proplist::parse("size,cap,feature@lz4_compress", Of::Pools).unwrap();
    let entries = list::expand(one.as_deref(), &pools, false);
    assert_eq!(
        get::print_pools(&pools, &entries, false, false, Column::DEFAULT),
        "NAME  PROPERTY              VALUE                 SOURCE\n\
         tank  size                  80M                   -\n\
         tank  capacity              0%                    -\n\
         tank  feature@lz4_compress  active                local\n"
    );
}

/// Reads back what OpenZFS printed, so that printing it again is a test of every form of record.
fn parse_history(text: &str) -> Vec<HistoryRecord> {
    use chrono::TimeZone;
    let mut records: Vec<HistoryRecord> = Vec::new();
    let mut lines = text.lines().skip(1).peekable();
    while let Some(line) = lines.next().filter(|l| !l.is_empty()) {
        let (stamp, rest) = line.split_once(' ').unwrap();
        let naive = chrono::NaiveDateTime::parse_from_str(stamp, "%Y-%m-%d.%H:%M:%S").unwrap();
        let time = chrono::Local.from_local_datetime(&naive).unwrap().timestamp() as u64;
        let (what, who) = if let Some(call) = rest.strip_prefix('(') {
            let (elapsed, name) = call.split_once("ms) ioctl ").unwrap();
            let (mut input, mut output, mut errno) = (Vec::new(), Vec::new(), None);
            let mut into_output = false;
            while let Some(line) = lines.next_if(|l| !l.starts_with(" [")) {
                if let Some(value) = line.strip_prefix("        ") {
                    if into_output { output.push(value.to_owned()) } else { input.push(value.to_owned()) }
                } else if let Some(number) = line.strip_prefix("    errno: ") {
                    errno = number.parse().ok();
                } else {
                    into_output = line == "    output:";
                }
            }
            let elapsed_ns = elapsed.parse::<u64>().unwrap() * 1_000_000;
            let what = HistoryWhat::Call { name: name.to_owned(), input, output, elapsed_ns, errno };
            (what, lines.next().unwrap().to_owned())
        } else {
            let (text, who) = rest.rsplit_once(" [").unwrap();
            let what = match text.strip_prefix("[txg:") {
                None => HistoryWhat::Command { line: text.to_owned() },
                Some(event) => {
                    let (txg, event) = event.split_once("] ").unwrap();
                    let is_id = |at: &usize| {
                        let id = event[at + 1..].split_once(") ").map_or("", |(id, _)| id);
                        !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())
                    };
                    let dataset = event.find('(').filter(is_id);
                    match dataset {
                        Some(at) => {
                            let (head, tail) = event.split_at(at);
                            let (id, text) = tail[1..].split_once(") ").unwrap();
                            let (name, dataset) = head.trim_end().rsplit_once(' ').unwrap();
                            HistoryWhat::Internal {
                                txg: txg.parse().unwrap(),
                                name: name.to_owned(),
                                dataset: Some((dataset.to_owned(), id.parse().unwrap())),
                                text: text.to_owned(),
                            }
                        }
                        None => {
                            let (name, text) = event.split_once(' ').unwrap();
                            HistoryWhat::Internal {
                                txg: txg.parse().unwrap(),
                                name: name.to_owned(),
                                dataset: None,
                                text: text.to_owned(),
                            }
                        }
                    }
                }
            };
            (what, format!("[{who}"))
        };
        let who = who.trim().trim_start_matches('[').trim_end_matches(']');
        let (uid, user, host) = match who.strip_prefix("user ") {
            Some(user) => {
                let (uid, rest) = user.split_once(' ').unwrap();
                let (user, host) = rest.split_once(" on ").unwrap();
                (uid.parse().ok(), Some(user.trim_matches(['(', ')']).to_owned()), host)
            }
            None => (None, None, who.strip_prefix("on ").unwrap()),
        };
        let (host, zone) = match host.split_once(':') {
            Some((host, zone)) => (host, Some(zone.to_owned())),
            None => (host, None),
        };
        records.push(HistoryRecord { time, what, uid, user, host: Some(host.to_owned()), zone });
    }
    records
}

#[test]
fn history() {
    let text = golden!("mirror-log-cache/zpool-history.txt");
    let records = parse_history(text);
    assert!(records.iter().any(|r| matches!(r.what, HistoryWhat::Call { .. })));
    let printed: String = records.iter().map(|r| history::print(r, true, true)).collect();
    assert_eq!(format!("History for 'tank':\n{printed}\n"), text);
    let short: String = records.iter().map(|r| history::print(r, false, false)).collect();
    assert!(short.ends_with("zpool export tank\n"));
    assert!(!short.contains("[txg:"));
}

#[test]
fn scans() {
    let begin = 1_700_000_000;
    let done = ScanStat {
        func: ScanFunc::Scrub,
        state: ScanState::Finished,
        start_time: begin,
        end_time: begin + 3661,
        ..ScanStat::default()
    };
    let end = crate::fmt::time::ctime(begin + 3661);
    assert_eq!(
        status_activity::scan_line(&done, 0),
        format!("  scan: scrub repaired 0B in 01:01:01 with 0 errors on {end}\n")
    );
    let running = ScanStat {
        state: ScanState::Scanning,
        to_examine: 100 << 30,
        examined: 50 << 30,
        issued: 25 << 30,
        pass_start: begin,
        pass_exam: 50 << 30,
        pass_issued: 25 << 30,
        ..done.clone()
    };
    let start = crate::fmt::time::ctime(begin);
    assert_eq!(
        status_activity::scan_line(&running, begin + 256),
        format!(
            "  scan: scrub in progress since {start}\n\t50G / 100G scanned at 200M/s, 25G / 100G issued at \
             100M/s\n\t0B repaired, 25.00% done, 00:12:48 to go\n"
        )
    );
    let paused = ScanStat { pass_scrub_pause: begin + 10, ..running };
    let pause = crate::fmt::time::ctime(begin + 10);
    assert_eq!(
        status_activity::scan_line(&paused, begin + 256),
        format!(
            "  scan: scrub paused since {pause}\n\tscrub started on {start}\n\t50G / 100G scanned, 25G / 100G \
             issued\n\t0B repaired, 25.00% done\n"
        )
    );
}

#[test]
fn status_of_a_degraded_pool() {
    let mut pool = tank();
    pool.root.stats.state = VdevState::Degraded;
    let mirror = &mut pool.root.children[0];
    mirror.stats.state = VdevState::Degraded;
    mirror.children[1].stats.state = VdevState::CantOpen;
    mirror.children[1].stats.aux = VdevAux::OpenFailed;
    mirror.children[0].stats.checksum_errors = 1234;
    pool.spares.push(leaf("/dev/xvdf1", 1 << 26));
    let text = plain(&pool);
    assert_eq!(
        text,
        "  pool: tank\n state: DEGRADED\nstatus: One or more devices could not be opened.  Sufficient replicas \
         exist for\n\tthe pool to continue functioning in a degraded state.\naction: Attach the missing device \
         and online it using 'zpool online'.\n   see: \
         https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-2Q\nconfig:\n\n\tNAME        STATE     READ WRITE \
         CKSUM\n\ttank        DEGRADED     0     0     0\n\t  mirror-0  DEGRADED     0     0     0\n\t    \
         xvda1   ONLINE       0     0 1.21K\n\t    xvdb1   UNAVAIL      0     0     0  cannot open\n\tlogs\t\n\t  \
         mirror-1  ONLINE       0     0     0\n\t    xvdc1   ONLINE       0     0     0\n\t    xvdd1   ONLINE       \
         0     0     0\n\tcache\n\t  xvde1     ONLINE       0     0     0\n\tspares\n\t  xvdf1     AVAIL   \n\n\
         errors: No known data errors\n"
    );
}

#[test]
fn reasons_by_seriousness() {
    let compat = zilla_control::status::Compatibility::All;
    let mut pool = tank();
    assert_eq!(reason_of(&pool, &compat), StatusReason::Ok);
    pool.features[3].state = FeatureState::Disabled;
    assert_eq!(reason_of(&pool, &compat), StatusReason::FeatDisabled);
    pool.root.children[0].children[0].stats.read_errors = 1;
    assert_eq!(reason_of(&pool, &compat), StatusReason::FailingDev);
    pool.error_count = 2;
    assert_eq!(reason_of(&pool, &compat), StatusReason::CorruptData);
    pool.kept_logs.push(KeptLog { dataset: "tank/home".into(), why: "record 7 in block 3: lost".into() });
    assert_eq!(reason_of(&pool, &compat), StatusReason::BadLog);
    assert!(plain(&pool).contains("read-only:\n\ttank/home: record 7 in block 3: lost\naction: "));
    pool.suspended = Some(Suspended::Wait);
    assert_eq!(reason_of(&pool, &compat), StatusReason::IoFailureWait);
    assert!(plain(&pool).contains("errors: 2 data errors, use '-v' for a list\n"));
}

#[test]
fn iostat_tables() {
    let mut pool = tank();
    pool.root.stats.alloc = 1 << 20;
    pool.root.stats.read_ops = 100;
    pool.root.stats.write_bytes = 10 << 20;
    pool.root.stats.timestamp = 10_000_000_000;
    let opts = iostat::Options { kinds: vec![iostat::Kind::Default], ..iostat::Options::default() };
    let pools = [pool.clone()];
    let printer = iostat::Printer::new(&opts, &pools, 999, Default::default());
    assert_eq!(
        printer.header(),
        "              capacity     operations     bandwidth \n\
         pool        alloc   free   read  write   read  write\n\
         ----------  -----  -----  -----  -----  -----  -----\n"
    );
    assert_eq!(printer.pool(&pool, None), "tank           1M    79M     10      0      0     1M\n");
    let mut later = pool.clone();
    later.root.stats.read_ops += 500;
    later.root.stats.timestamp += 1_000_000_000;
    assert_eq!(printer.pool(&later, Some(&pool)), "tank           1M    79M    500      0      0      0\n");

    let opts = iostat::Options { verbose: true, ..opts };
    let printer = iostat::Printer::new(&opts, &pools, 999, Default::default());
    let text = printer.pool(&pool, None);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "  mirror-0      0    80M      0      0      0      0");
    assert_eq!(lines[2], "    xvda1       -      -      0      0      0      0");
    assert_eq!(lines[4], "logs            -      -      -      -      -      -");
    assert_eq!(lines[8], "cache           -      -      -      -      -      -");
    assert_eq!(lines[10], "----------  -----  -----  -----  -----  -----  -----");

    let opts = iostat::Options { kinds: vec![iostat::Kind::LatencyHistogram], ..iostat::Options::default() };
    let printer = iostat::Printer::new(&opts, &pools, 999, Default::default());
    assert!(printer.pool(&pool, None).contains("\n1ns             0      0      0"));
}

#[test]
fn json_status_keeps_the_schema() {
    let opts = status::Options { json: true, ..status::Options::default() };
    let text = super::status_json::pools(&[tank()], &opts).render();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pool = &value["tank"];
    assert_eq!(pool["state"], "ONLINE");
    assert_eq!(pool["spa_version"], "5000");
    assert_eq!(pool["error_count"], "0");
    let leaf = &pool["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"]["xvda1"];
    assert_eq!(leaf["path"], "/dev/xvda1");
    assert_eq!(leaf["class"], "normal");
    assert_eq!(leaf["phys_space"], "96M");
    assert_eq!(pool["logs"]["mirror-1"]["class"], "log");
    assert_eq!(pool["l2cache"]["xvde1"]["class"], "l2cache");
    let opts = status::Options { flat: true, json_int: true, literal: true, ..opts };
    let text = super::status_json::pools(&[tank()], &opts).render();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["tank"]["vdevs"]["xvda1"]["parent"], "mirror-0");
    assert_eq!(value["tank"]["vdevs"]["xvda1"]["read_errors"], 0);
}
