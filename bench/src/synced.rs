//! One measurement of synchronous writes: threads that write 8 KiB at random places of a file and
//! fsync it, through the facade, on a pool of its own.

use crate::engine::{Options, Result, Volume};
use crate::meter::Mark;
use bytes::Bytes;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zilla::{Cred, Errno, Filesystem, NewFile, NodeId};
use zilla_env::block_on;
use zilla_ondisk::enums::PoolState;

const POOL: &str = "zillabench";
const WRITE: u64 = 8 << 10;
const FILL: u64 = 1 << 20;
pub fn main(args: lexopt::Parser) -> Result<()> {
    let o = Options::parse(args)?;
    o.prewrite()?;
    let (env, spa) = Volume::pool(&o, 0)?;
    let fs = env.block_on(zilla::engine::open_filesystem(&env, &spa.dsl, POOL, false))?;
    let data = noise(o.seed, FILL);
    let file = env.block_on(async {
        let file = fs.create(fs.root(), b"file", NewFile::new(0o100_644, Cred::default())).await?.node;
        for at in (0..o.volume).step_by(FILL as usize) {
            fs.write(file, at, &data, false).await?;
        }
        spa.sync().await?;
        Ok::<_, zilla::Error>(file)
    })?;
    let mark = Mark::now();
    let start = Instant::now();
    let mut latencies = std::thread::scope(|scope| -> Result<Vec<u32>> {
        let clients: Vec<_> = (0..o.threads.max(1) as u64)
            .map(|id| {
                let (fs, data, o) = (&fs, data.slice(..WRITE as usize), &o);
                scope.spawn(move || client(fs, file, o, id, &data, start))
            })
            .collect();
        let mut all = Vec::new();
        for c in clients {
            all.extend(c.join().map_err(|_| "a client died")??);
        }
        Ok(all)
    })?;
    let spent = mark.spent();
    latencies.sort_unstable();
    let ops = latencies.len().max(1) as f64;
    let at =
        |p: f64| latencies.get((latencies.len() as f64 * p) as usize).map_or(0.0, |ns| f64::from(*ns) / 1e3);
    let counts = spa.ctx.log.stats.get();
    println!(
        "{}",
        json!({
            "engine": format!("zilla-{}", env!("CARGO_PKG_VERSION")), "workload": "sync8k", "vdev": o.shape(),
            "threads": o.threads, "seconds": spent.seconds, "IOPS": latencies.len() as f64 / spent.seconds,
            "MBps": latencies.len() as f64 * WRITE as f64 / 1_048_576.0 / spent.seconds,
            "lat_us_p50": at(0.5), "lat_us_p99": at(0.99), "cpu_us_per_op": spent.cpu * 1e6 / ops,
            "csw_per_op": spent.switches as f64 / ops, "foreign_cpu": spent.foreign,
            "commits_per_train": counts.commits as f64 / counts.trains.max(1) as f64,
        })
    );
    drop(fs);
    // What was read of the file system last may still hold its dataset for a moment.
    for _ in 0..100 {
        match env.block_on(spa.close(Some(PoolState::Destroyed))) {
            Err(e) if e.is(Errno::Busy) => std::thread::sleep(Duration::from_millis(50)),
            r => return Ok(r?),
        }
    }
    Err("the pool stays busy".into())
}

fn client(
    fs: &Arc<Filesystem>,
    file: NodeId,
    o: &Options,
    id: u64,
    data: &Bytes,
    start: Instant,
) -> Result<Vec<u32>> {
    let mut random = (o.seed << 8 | id).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let end = Duration::from_secs_f64(o.seconds);
    let mut latencies = Vec::with_capacity(1 << 14);
    block_on(async {
        loop {
            let begun = Instant::now();
            if begun - start >= end {
                return Ok(latencies);
            }
            let at = step(&mut random) % (o.volume / WRITE) * WRITE;
            fs.write(file, at, data, false).await?;
            fs.fsync(file).await?;
            latencies.push(begun.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
        }
    })
}

/// Marsaglia's xorshift.
fn step(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Bytes that do not shrink.
fn noise(seed: u64, len: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len / 8).flat_map(|_| step(&mut state).to_le_bytes()).collect()
}
