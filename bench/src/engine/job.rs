//! Clients at work: threads that read or write the object until the time is over.

use super::Result;
use super::data::{self, next};
use super::options::Options;
use super::volume::Volume;
use crate::meter::{Mark, Spent};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zilla_core::dmu::Stop;
use zilla_env::block_on;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Fill,
    Write,
    /// Sequential, 8 KiB off the records.
    WriteShifted,
    RandWrite,
    Read,
    RandRead,
    Scrub,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub kind: Kind,
    /// Bytes of a request.
    pub io: u64,
    pub span: u64,
    pub seconds: f64,
    pub seed: u64,
    /// Once over the volume instead of for a time.
    pub once: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub bytes: u64,
    /// Seconds until the last request was accepted; `spent` goes on until all is stable.
    pub accepted: f64,
    pub spent: Spent,
    /// Nanoseconds of each request.
    pub latencies: Vec<u32>,
    pub allocated: u64,
}

impl Job {
    pub fn new(o: &Options) -> Job {
        Job { kind: Kind::Read, io: o.block, span: o.volume, seconds: o.seconds, seed: o.seed, once: false }
    }

    fn writes(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::WriteShifted | Kind::RandWrite)
    }

    fn shift(&self) -> u64 {
        if self.kind == Kind::WriteShifted { 8 << 10 } else { 0 }
    }
}

pub fn run(volume: &Volume, job: &Job, threads: usize, data: &Arc<Vec<u8>>) -> Result<Outcome> {
    let turn = AtomicU64::new(0);
    let mark = Mark::now();
    let start = Instant::now();
    let mut out = Outcome::default();
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..threads)
            .map(|id| {
                let turn = &turn;
                scope.spawn(move || client(volume, job, id as u64, turn, start, data))
            })
            .collect();
        for client in clients {
            let latencies = client.join().map_err(|_| "a client died")??;
            out.bytes += latencies.len() as u64 * job.io;
            out.latencies.extend(latencies);
        }
        Ok(())
    })?;
    out.accepted = start.elapsed().as_secs_f64();
    if job.writes() {
        block_on(volume.spa.sync())?;
    }
    out.spent = mark.spent();
    Ok(out)
}

fn client(
    volume: &Volume,
    job: &Job,
    id: u64,
    turn: &AtomicU64,
    start: Instant,
    data: &[u8],
) -> Result<Vec<u32>> {
    let mut random = job.seed.wrapping_mul(1_000_003).wrapping_add(id * 7919 + 12345);
    for _ in 0..8 {
        next(&mut random);
    }
    let slots = (job.span - job.shift()) / job.io;
    let end = Duration::from_secs_f64(job.seconds);
    let mut buffer = vec![0; job.io as usize];
    let mut latencies = Vec::with_capacity(1 << 16);
    loop {
        let i = turn.fetch_add(1, Ordering::Relaxed);
        if job.once && i >= slots {
            return Ok(latencies);
        }
        let slot = match job.kind {
            Kind::RandRead | Kind::RandWrite => next(&mut random) % slots,
            _ => i % slots,
        };
        let offset = slot * job.io + job.shift();
        let begun = Instant::now();
        if !job.once && begun - start >= end {
            return Ok(latencies);
        }
        if job.writes() {
            let from = (next(&mut random) % ((data::SIZE as u64 - job.io) / 4096) * 4096) as usize;
            let tx = match volume.spa.ctx.txgs.try_assign() {
                Some(tx) => tx,
                None => block_on(volume.spa.ctx.txgs.assign())?,
            };
            volume.object.write(&tx, offset, &data[from..from + job.io as usize]);
        } else {
            match volume.object.read(offset, &mut buffer) {
                Ok(()) => {}
                Err(Stop::Err(e)) => return Err(e.into()),
                Err(Stop::Need(_)) => block_on(volume.object.read_wait(offset, &mut buffer))?,
            }
        }
        latencies.push(begun.elapsed().as_nanos().min(u128::from(u32::MAX)) as u32);
    }
}
