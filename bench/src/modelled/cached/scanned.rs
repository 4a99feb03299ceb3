//! A scan of ten times the cache beside a set that is used, and what of the set is cached then.

use super::Figure;
use super::stage::{FLASH, Load, MEMORY, SET, Seen, Size, at_random, on_stage};
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
/// Of memory and cache devices together.
const TIMES: u64 = 10;
const PIECE: u64 = 1 << 20;
const DISK: u64 = 2 << 30;

/// Rates of hits before, beside and after the scan, and how long that took.
struct Scan {
    before: Seen,
    after: f64,
    seconds: f64,
    fed: f64,
}

pub fn run() -> Result<(Vec<Figure>, Value)> {
    let (mut figures, mut shown) = (Vec::new(), Vec::new());
    let default = L2ARC_FEED_RECENT.get();
    for (name, is_used, recent) in [
        ("set in use", true, 1),
        ("set in use, only the frequent fed", true, 0),
        ("set idle, only the frequent fed", false, 0),
    ] {
        L2ARC_FEED_RECENT.set(recent);
        let scan = one(is_used);
        L2ARC_FEED_RECENT.set(default);
        let scan = scan?;
        shown.push(scan.before.show(&format!("{name}, before the scan")));
        let ring = scan.fed / SIZE.of(FLASH) as f64;
        println!(
            "  {name}: {:.3} are hit after it; it took {:.1} s, and the cache device was written {ring:.2} times",
            scan.after, scan.seconds
        );
        shown.push(
            json!({ "what": name, "hits_after": scan.after, "scan_seconds": scan.seconds, "written": ring }),
        );
        figures.push(Figure {
            what: format!("hit rate kept over a scan, {name}"),
            unit: "of it",
            value: scan.after / scan.before.hits(),
            wanted: 0.9,
            at_most: false,
            limit: 1.0,
            note: "if nothing of the scan pushes anything out".into(),
        });
    }
    Ok((figures, json!(shown)))
}

fn one(is_used: bool) -> Result<Scan> {
    on_stage(1, SIZE, DISK, 1, |mut stage| async move {
        let (set, scan) = (SIZE.of(SET), TIMES * (SIZE.of(FLASH) + SIZE.of(MEMORY)));
        let volume = stage.volume("set", set, BLOCK).await?;
        let scanned = stage.volume("scan", scan, LARGE).await?;
        stage.plug().await?;
        stage.warm(std::slice::from_ref(&volume)).await?;
        let next = at_random(&stage.env, &volume, set / BLOCK, 0);
        let load = Load {
            threads: THREADS,
            block: BLOCK,
            warm: Duration::from_secs(1),
            time: Duration::from_secs(1),
        };
        let before = stage.run(load, next.clone()).await?;
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
    }
    Ok(())
}
