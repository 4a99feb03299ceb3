//! 1 MiB writes with O_DSYNC and a log device: how much of the device's bandwidth they reach.
//!
//! The log device is a modelled SATA SSD, whose profile says what it writes a second; behind it are
//! eight disks, so that what the txgs write is not the limit.

use super::perrin::{self, Load};
use super::rig::{Devices, Shape};
use crate::engine::Result;
use serde_json::{Value, json};
use zilla_env::model::Profile;

const LOG: &str = "sata-ssd";
const PROMISED: f64 = 0.8;

pub fn run(seconds: u64) -> Result<Value> {
    let profile = Profile::named(LOG).ok_or("there is no such profile")?;
    let limit = profile.media_write.min(profile.bus) as f64 / 1e6;
    println!("1 MiB O_DSYNC writes, log on one modelled {LOG} of {limit:.0} MB/s");
    let mut rows = Vec::new();
    for threads in [1, 4, 16] {
        let main = Devices { count: 8, profile: "7200rpm-sata", size: 4 << 30, shape: Shape::Single };
        let logs = Devices { count: 1, profile: LOG, size: 4 << 30, shape: Shape::Single };
        let rate = perrin::one(main, Some(logs), Load { threads, write: 1 << 20, seconds })?;
        let share = rate / limit;
        let verdict = if share >= PROMISED { "kept" } else { "MISSED" };
        println!("{threads:3} threads {rate:7.1} MB/s, {share:.2} of it (promised {PROMISED}: {verdict})");
        rows.push(json!({ "threads": threads, "MBps": rate, "share": share }));
    }
    Ok(json!({ "log": LOG, "log_MBps": limit, "promised": PROMISED, "rows": rows }))
}
