//! What is in L2ARC, read at random in small blocks, and in streams of large ones.

use super::Figure;
use super::limits::Flash;
use super::stage::{Load, Next, SET, Seen, Size, Stage, Step, at_random, on_stage};
use crate::engine::Result;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla::Volume;

const DEVICES: [usize; 4] = [0, 1, 2, 4];
const WARM: Duration = Duration::from_secs(1);

const SMALL: u64 = 4 << 10;
const RANDOM: Size = Size(256 << 20);
const THREADS: usize = 64;

/// Bytes of a vdev, an offset and a birth, and of a place.
const NAMED: f64 = 28.0;

const LARGE: u64 = 128 << 10;
const STREAMED: Size = Size(256 << 20);
const STREAMS: u64 = 16;
/// How often each is read.
const TIMES: u64 = 4;
/// Threads that read the streams; one that has several takes a block of each in turn.
const FEW: usize = 4;
const MANY: usize = 16;

/// Disks with room enough that the arm has ways to go.
const DISK: u64 = 2 << 30;

/// A set in L2ARC, read in small blocks at random.
pub fn random() -> Result<(Vec<Figure>, Value)> {
    let flash = Flash::new()?;
    let mut seen: Vec<Seen> = Vec::new();
    let (mut shown, mut memory) = (Vec::new(), Vec::new());
    for devices in DEVICES {
        let (one, bytes) = on_stage(1, RANDOM, DISK, devices, small)?;
        memory.push(bytes);
        shown.push(one.show(&format!("{devices} cache devices")));
        seen.push(one);
    }
    let figure = |i: usize, of: usize, wanted: f64| {
        let value = seen[i].per_second / seen[of].per_second;
        let flash_only = flash.reads_by(DEVICES[i], THREADS, SMALL) / (1.0 - seen[i].memory_share());
        Figure {
            what: format!("4K at random, {} devices over {}", DEVICES[i], DEVICES[of]),
            unit: "times",
            value,
            wanted,
            at_most: false,
            limit: flash_only / seen[of].per_second,
            note: format!("{THREADS} threads at {flash_only:.0} a second"),
        }
    };
    let of_memory = |what: &str, value: f64, wanted: f64| Figure {
        what: format!("memory a block {what}"),
        unit: "bytes",
        value,
        wanted,
        at_most: true,
        limit: NAMED,
        note: "the block's identity, and where it is".into(),
    };
    // Three quarters of what as many devices have more.
    let figures = vec![
        figure(1, 0, 6.7),
        figure(2, 1, 1.5),
        figure(3, 1, 3.0),
        of_memory("in L2ARC", memory[1][0], 64.0),
        of_memory("in the ARC, beside the block", memory[1][1], 200.0),
    ];
    Ok((figures, json!(shown)))
}

/// What was seen, and the bytes of memory that a block takes on a cache device, and in memory
/// beside itself.
async fn small(mut stage: Stage) -> Result<(Seen, [f64; 2])> {
    let bytes = RANDOM.of(SET);
    let volume = stage.volume("set", bytes, SMALL).await?;
    stage.plug().await?;
    let share = stage.warm(std::slice::from_ref(&volume)).await?;
    let blocks = bytes / SMALL;
    let load = Load { threads: THREADS, block: SMALL, warm: WARM, time: Duration::from_secs(1) };
    let seen = stage.run(load, at_random(&stage.env, &volume, blocks, 0)).await?;
    let held = stage.statistic("l2_bufc_data_asize") / SMALL;
    if held > 0 {
        println!("  {share:.3} of the set was cached");
    }
    let each = |bytes: &str, blocks: u64| stage.statistic(bytes) as f64 / blocks.max(1) as f64;
    Ok((seen, [each("l2_hdr_size", held), each("hdr_size", stage.statistic("hash_elements"))]))
}

/// A set in L2ARC, read in streams; more devices than one are not asked of this.
pub fn streams() -> Result<(Vec<Figure>, Value)> {
    let flash = Flash::new()?;
    let (mut shown, mut figures) = (Vec::new(), Vec::new());
    let mut all = Vec::new();
    for devices in [0, 1] {
        let runs = on_stage(1, STREAMED, DISK, devices, large)?;
        for (threads, one) in [FEW, MANY].into_iter().zip(&runs) {
            shown.push(one.show(&format!("{devices} devices, {threads} threads")));
        }
        all.push(runs);
    }
    for (i, (threads, wanted)) in [(FEW, 3.0), (MANY, 1.6)].into_iter().enumerate() {
        let (with, without) = (&all[1][i], &all[0][i]);
        let limit = flash.rate() / 1e6 / (1.0 - with.memory_share());
        figures.push(Figure {
            what: format!("{STREAMS} streams of 128K, {threads} threads"),
            unit: "times",
            value: with.mbps / without.mbps,
            wanted,
            at_most: false,
            limit: limit / without.mbps,
            note: format!("what is not in memory at {:.0} MB/s", flash.rate() / 1e6),
        });
    }
    Ok((figures, json!(shown)))
}

async fn large(mut stage: Stage) -> Result<Vec<Seen>> {
    let bytes = STREAMED.of(SET) / STREAMS / LARGE * LARGE;
    let mut volumes = Vec::new();
    for i in 0..STREAMS {
        volumes.push(stage.volume(&format!("stream{i}"), bytes, LARGE).await?);
    }
    stage.plug().await?;
    let share = stage.warm(&volumes).await?;
    if share > 0.0 {
        println!("  {share:.3} of the set was cached");
    }
    let mut out = Vec::new();
    for threads in [FEW, MANY] {
        let load = Load { threads, block: LARGE, warm: Duration::ZERO, time: Duration::ZERO };
        let steps = TIMES * STREAMS / threads as u64 * (bytes / LARGE);
        out.push(stage.finish(load, steps, in_order(&volumes, bytes / LARGE, threads)).await?);
    }
    Ok(out)
}

/// Each thread reads every so manieth volume from its beginning to its end and again, a block of
/// each in turn.
fn in_order(volumes: &[Arc<Volume>], blocks: u64, threads: usize) -> Next {
    let volumes = volumes.to_vec();
    let turns: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    Arc::new(move |thread| {
        let own = (volumes.len() / threads).max(1) as u64;
        let turn = turns[thread].fetch_add(1, Ordering::Relaxed);
        let stream = thread + (turn % own) as usize * threads;
        Step { volume: volumes[stream].clone(), block: turn / own % blocks, write: false }
    })
}
