//! What feeding costs those who read and write: loads whose set no cache device holds, with L2ARC
//! and without.
//!
//! The set is many times what is cached, so that hits do not hide what feeding costs. The disks and
//! the cache device are different devices here, so the limit is that nothing is lost.

use super::Figure;
use super::stage::{Load, Seen, Size, at_random, on_stage};
use crate::engine::Result;
use serde_json::{Value, json};
use std::time::Duration;

const SIZE: Size = Size(128 << 20);
const BLOCK: u64 = 16 << 10;
/// Of the volume: ten times what the cache devices hold.
const VOLUME: u64 = 2 << 30;
const DISK: u64 = 2 << 30;
const THREADS: usize = 32;
/// Worlds with other chances: of one alone a few percent are chance.
const SEEDS: u64 = 2;

pub fn run() -> Result<(Vec<Figure>, Value)> {
    let (mut figures, mut shown) = (Vec::new(), Vec::new());
    for (name, writes) in [("50:50", 50), ("all writes", 100)] {
        let (without, with) = (several(0, writes)?, several(1, writes)?);
        shown.push(without.show(&format!("{name}, without")));
        shown.push(with.show(&format!("{name}, feeding")));
        let figure = |what: &str, value: f64, wanted: f64, at_most: bool| Figure {
            what: format!("{name}: {what}, feeding over without"),
            unit: "times",
            value,
            wanted,
            at_most,
            limit: 1.0,
            note: format!("{:.3} are hits; {:.2} times the CPU a step", with.flash, with.cpu / without.cpu),
        };
        figures.push(figure("rate", with.per_second / without.per_second, 0.98, false));
        figures.push(figure("p99", with.p99 / without.p99, 1.02, true));
    }
    Ok((figures, json!(shown)))
}

fn several(devices: usize, writes: u64) -> Result<Seen> {
    let one = |seed: u64| {
        on_stage(seed, SIZE, DISK, devices, |mut stage| async move {
            let volume = stage.volume("v", VOLUME, BLOCK).await?;
            stage.plug().await?;
            let load = Load {
                threads: THREADS,
                block: BLOCK,
                warm: Duration::from_secs(10),
                time: Duration::from_secs(30),
            };
            stage.run(load, at_random(&stage.env, &volume, VOLUME / BLOCK, writes)).await
        })
    };
    let runs: Vec<Seen> = (1..=SEEDS).map(one).collect::<Result<_>>()?;
    Ok(Seen::joined(&runs))
}
