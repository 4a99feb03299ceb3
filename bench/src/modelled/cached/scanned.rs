//! A scan of ten times the cache beside a set that is used, and what of the set is cached then: one
//! that lives on the cache devices, and one that fits into memory, without such devices.

use super::Figure;
use super::stage::{FLASH, Load, MEMORY, SET, Size, at_random, on_stage};
use crate::engine::Result;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla::Volume;
use zilla_core::tunables::L2ARC_FEED_RECENT;
use zilla_env::Env;

/// What is read ahead for a stream is not scaled: memory must be large beside it.
const SIZE: Size = Size(512 << 20);
const BLOCK: u64 = 16 << 10;
const LARGE: u64 = 128 << 10;
/// Blocks at random that are asked for after the scan: so few that what is read again by the way
/// does not count.
const PROBE: u64 = 800;
/// Those who use the set.
const THREADS: usize = 4;
/// What each of them does between two reads, for what is in memory takes no time.
const THINKS: Duration = Duration::from_micros(100);
/// How often a set in memory is read, each time as much as it is, before the scan.
const USES: u64 = 3;
/// Of memory and cache devices together.
const TIMES: u64 = 10;
/// Of memory that a set has which lives there.
const IN_MEMORY: f64 = 0.5;
const PIECE: u64 = 1 << 20;
const DISK: u64 = 2 << 30;

/// What is measured.
struct Case {
    name: &'static str,
    devices: usize,
    /// Whether the set is read meanwhile.
    is_used: bool,
    /// `l2arc_feed_recent`.
    recent: u64,
}

impl Case {
    /// A block that was read once is as good as one of the scan. Of a set that was read once and
    /// then as often as [`USES`] says, each block at random, this much was read twice. A cache
    /// device has room for the rest, and who uses the set meanwhile reads that again.
    fn limit(&self) -> f64 {
        match (self.devices, self.is_used) {
            (0, false) => 1.0 - (-(USES as f64)).exp(),
            _ => 1.0,
        }
    }
}

const CASES: [Case; 6] = [
    Case { name: "set in use", devices: 1, is_used: true, recent: 0 },
    Case { name: "set idle", devices: 1, is_used: false, recent: 0 },
    Case { name: "set in use, all fed", devices: 1, is_used: true, recent: 1 },
    Case { name: "set idle, all fed", devices: 1, is_used: false, recent: 1 },
    Case { name: "set in use, memory alone", devices: 0, is_used: true, recent: 0 },
    Case { name: "set idle, memory alone", devices: 0, is_used: false, recent: 0 },
];

/// Rates of hits before and after the scan, and how long that took.
struct Scan {
    before: f64,
    after: f64,
    seconds: f64,
    fed: f64,
}

/// The cases with `cases` in their name.
pub fn run(cases: &str) -> Result<(Vec<Figure>, Value)> {
    let (mut figures, mut shown) = (Vec::new(), Vec::new());
    let default = L2ARC_FEED_RECENT.get();
    for case in CASES.iter().filter(|case| case.name.contains(cases)) {
        L2ARC_FEED_RECENT.set(case.recent);
        let scan = one(case);
        L2ARC_FEED_RECENT.set(default);
        let (scan, name) = (scan?, case.name);
        let ring = scan.fed / SIZE.of(FLASH) as f64;
        println!(
            "  {name}: {:.3} were hit before the scan, {:.3} after it; it took {:.1} s, and the cache device was written {ring:.2} times",
            scan.before, scan.after, scan.seconds
        );
        shown.push(
            json!({ "what": name, "hits_before": scan.before, "hits_after": scan.after, "scan_seconds": scan.seconds, "written": ring }),
        );
        figures.push(Figure {
            what: format!("hit rate kept over a scan, {name}"),
            unit: "of it",
            value: scan.after / scan.before,
            wanted: 0.9,
            at_most: false,
            limit: case.limit(),
            note: "if nothing of the scan pushes out what was read twice".into(),
        });
    }
    Ok((figures, json!(shown)))
}

fn one(case: &Case) -> Result<Scan> {
    let (devices, is_used) = (case.devices, case.is_used);
    let (set, cache) = match devices {
        0 => (SIZE.of(MEMORY * IN_MEMORY), SIZE.of(MEMORY)),
        _ => (SIZE.of(SET), SIZE.of(MEMORY) + SIZE.of(FLASH)),
    };
    let scan = TIMES * cache;
    let load =
        Load { threads: THREADS, block: BLOCK, warm: Duration::from_secs(1), time: Duration::from_secs(1) };
    on_stage(1, SIZE, DISK, devices, |mut stage| async move {
        let volume = stage.volume("set", set, BLOCK).await?;
        let scanned = stage.volume("scan", scan, LARGE).await?;
        stage.plug().await?;
        stage.warm(std::slice::from_ref(&volume)).await?;
        let next = at_random(&stage.env, &volume, set / BLOCK, 0);
        let before = match devices {
            // What is in memory takes no time, so times of the set take the place of a time.
            0 => {
                stage.probe(THREADS, USES * set / BLOCK, BLOCK, &next).await?;
                stage.probe(THREADS, PROBE, BLOCK, &next).await?
            }
            _ => stage.run(load, next.clone()).await?.hits(),
        };
        let (begin, fed) = (stage.env.now(), stage.statistic("l2_write_bytes"));
        let stop = Arc::new(AtomicBool::new(false));
        let users: Vec<_> = (0..if is_used { THREADS } else { 0 })
            .map(|_| {
                let (env, volume, stop) = (stage.env.clone(), volume.clone(), stop.clone());
                let user = use_set(env, volume, set / BLOCK, stop);
                stage.env.spawn_with_result(user)
            })
            .collect();
        for at in (0..scan).step_by(PIECE as usize) {
            scanned.read(at, PIECE.min(scan - at) as usize).await?;
        }
        let seconds = stage.env.now().saturating_sub(begin).as_secs_f64();
        let fed = (stage.statistic("l2_write_bytes") - fed) as f64;
        stop.store(true, Ordering::Relaxed);
        for user in users {
            user.await?;
        }
        let after = stage.probe(THREADS, PROBE, BLOCK, &next).await?;
        Ok(Scan { before, after, seconds, fed })
    })
}

async fn use_set(env: Env, volume: Arc<Volume>, blocks: u64, stop: Arc<AtomicBool>) -> zilla::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        volume.read(env.random_below(blocks) * BLOCK, BLOCK as usize).await?;
        env.sleep(THINKS).await;
    }
    Ok(())
}
