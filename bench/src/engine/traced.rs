//! What a recording costs: reads of what is in memory, by turns with and without one, in one run.

use super::Result;
use super::job::{self, Job, Kind};
use super::options::Options;
use super::volume::Volume;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_ondisk::trace::records;

/// Turns of each kind.
const TURNS: usize = 20;
/// As often as the daemon does.
const EVERY: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Side {
    ops: f64,
    seconds: f64,
    cpu: f64,
    rates: Vec<f64>,
}

impl Side {
    fn median(&mut self) -> f64 {
        self.rates.sort_by(f64::total_cmp);
        self.rates.get(self.rates.len() / 2).copied().unwrap_or(0.0)
    }
}

pub fn run(volume: &Volume, o: &Options, data: &Arc<Vec<u8>>) -> Result<Value> {
    let seconds = o.seconds / TURNS as f64 / 2.0;
    let job = Job { kind: Kind::RandRead, io: 16 << 10, seconds, ..Job::new(o) };
    let mut sides = [Side::default(), Side::default()];
    let (mut recorded, mut lost, mut bytes) = (0, 0, 0);
    for turn in 0..2 * TURNS {
        let traced = turn % 2 == 1;
        let stop = AtomicBool::new(false);
        let over = &stop;
        let outcome = std::thread::scope(|scope| {
            let mut recording = traced.then(|| volume.spa.zio.tracer().start()).flatten();
            let writer = scope.spawn(move || {
                let (mut n, mut missing, mut len) = (0, 0, 0);
                while let Some(recording) = &mut recording {
                    let last = over.load(Ordering::Acquire);
                    let (all, more) = recording.take();
                    n += all.len();
                    missing += more;
                    len += records(&all, more).len();
                    if last {
                        break;
                    }
                    std::thread::sleep(EVERY);
                }
                (n, missing, len)
            });
            let outcome = job::run(volume, &job, o.threads, data);
            over.store(true, Ordering::Release);
            let (n, missing, len) = writer.join().map_err(|_| "the writer died")?;
            (recorded, lost, bytes) = (recorded + n, lost + missing, bytes + len);
            outcome
        })?;
        let side = &mut sides[usize::from(traced)];
        let ops = outcome.latencies.len() as f64;
        side.ops += ops;
        side.seconds += outcome.spent.seconds;
        side.cpu += outcome.spent.cpu;
        side.rates.push(ops / outcome.spent.seconds);
    }
    let [plain, traced] = &mut sides;
    let us = |s: &Side| s.seconds * o.threads as f64 * 1e6 / s.ops;
    let (before, after) = (plain.median(), traced.median());
    Ok(json!({
        "workload": o.workload, "threads": o.threads,
        "us_per_read": us(plain), "us_per_read_traced": us(traced),
        "cpu_us_per_read": plain.cpu * 1e6 / plain.ops, "cpu_us_per_read_traced": traced.cpu * 1e6 / traced.ops,
        "median_rate": before, "median_rate_traced": after, "cost_percent": 100.0 * (before / after - 1.0),
        "recorded": recorded, "lost": lost, "bytes_per_record": bytes as f64 / recorded.max(1) as f64,
    }))
}
