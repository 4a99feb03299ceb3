//! A warm restart: how soon after an import a cache device is hit as before.
//!
//! A log block has at most 1022 entries, and fewer on small devices; they are read one behind the
//! other. So the time for a device of 100 GB is that of a log block here, times as many log blocks
//! as 100 GB of such blocks have, and what computing takes for an entry here, times as many
//! entries.

use super::Figure;
use super::limits::Flash;
use super::stage::{FLASH, Load, SET, Size, at_random, on_stage};
use crate::engine::Result;
use crate::meter::Mark;
use crate::modelled::rig::POOL;
use serde_json::{Value, json};
use std::time::Duration;

/// So that the device is large enough to have a log: 1 GiB is the least.
const SIZE: Size = Size(1 << 30);
const BLOCK: u64 = 16 << 10;
const DISK: u64 = 2 << 30;
const THREADS: usize = 16;
/// What is asked how it is hit, again and again after the import.
const WINDOW: Duration = Duration::from_millis(20);
/// Of the old rate of hits.
const AGAIN: f64 = 0.9;
const PATIENCE: usize = 3000;
/// The cache that the promise is about, and the entries of its log blocks.
const WHOLE: f64 = 100e9;
const ENTRIES: f64 = 1022.0;

pub fn run() -> Result<(Vec<Figure>, Value)> {
    on_stage(1, SIZE, DISK, 1, |mut stage| async move {
        let set = SIZE.of(SET);
        let mut volume = stage.volume("set", set, BLOCK).await?;
        let name = format!("{POOL}/set");
        stage.plug().await?;
        stage.warm(std::slice::from_ref(&volume)).await?;
        let load = Load {
            threads: THREADS,
            block: BLOCK,
            warm: Duration::from_secs(1),
            time: Duration::from_secs(1),
        };
        let old = stage.run(load, at_random(&stage.env, &volume, set / BLOCK, 0)).await?;
        old.show("before the export");
        volume.close().await;
        drop(volume);

        // First without anybody who reads, to see what the rebuild alone takes.
        let begin = stage.env.now();
        stage.restart().await?;
        let imported = stage.env.now().saturating_sub(begin).as_secs_f64();
        let (begin, mark) = (stage.env.now(), Mark::now());
        while stage.spa.zio.l2().is_rebuilding() {
            stage.env.sleep(Duration::from_micros(100)).await;
        }
        let (alone, cpu) = (stage.env.now().saturating_sub(begin).as_secs_f64(), mark.spent().cpu);
        let (logs, entries) = (stage.statistic("l2_rebuild_log_blks"), stage.statistic("l2_rebuild_bufs"));
        let log_bytes = stage.statistic("l2_log_blk_asize") / logs.max(1);

        stage.restart().await?;
        volume = stage.open(&name).await?;
        let begin = stage.env.now();
        let next = at_random(&stage.env, &volume, set / BLOCK, 0);
        let (mut warm, mut last) = (None, 0.0);
        for _ in 0..PATIENCE {
            let window = Load { warm: Duration::ZERO, time: WINDOW, ..load };
            let seen = stage.run(window, next.clone()).await?;
            last = seen.hits();
            if last >= AGAIN * old.hits() {
                warm = Some(stage.env.now().saturating_sub(begin).as_secs_f64());
                break;
            }
        }
        let warm = warm.ok_or_else(|| format!("the rate of hits stays {last:.3}"))?;
        // A log block of a large device has more entries, and is longer in proportion.
        let per_log = entries as f64 / logs.max(1) as f64;
        let whole = WHOLE / BLOCK as f64;
        let whole_logs = whole / ENTRIES;
        let flash = Flash::new()?;
        let least = flash.read(log_bytes).as_secs_f64() * logs as f64;
        let whole_log = flash.read((log_bytes as f64 * ENTRIES / per_log) as u64).as_secs_f64();
        let whole_least = whole_log * whole_logs;
        let computing = cpu / entries.max(1) as f64 * whole;
        let forecast = warm.max(alone) - alone + whole_least * (alone / least).max(1.0) + computing;
        println!(
            "  {:.1} GB, {entries} blocks in {logs} log blocks: import {imported:.3} s, rebuild {alone:.4} s ({least:.4} s are the device's) and {:.2} us CPU a block",
            SIZE.of(FLASH) as f64 / 1e9,
            cpu * 1e6 / entries.max(1) as f64
        );
        println!("  {AGAIN} of {:.3} are hit {warm:.3} s after the import", old.hits());
        let figures = vec![Figure {
            what: "100 GB of 16K blocks hit again after".into(),
            unit: "s",
            value: forecast,
            wanted: 5.0,
            at_most: true,
            limit: whole_least,
            note: format!("{whole_logs:.0} log blocks, one after the other; {computing:.2} s are computing"),
        }];
        let more = json!({ "GB": SIZE.of(FLASH) as f64 / 1e9, "blocks": entries, "log_blocks": logs, "import_seconds": imported,
            "rebuild_seconds": alone, "device_seconds": least, "cpu_seconds": cpu, "warm_seconds": warm, "old_hits": old.hits() });
        Ok((figures, more))
    })
}
