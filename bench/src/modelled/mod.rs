//! What log devices are worth: published tests, and large writes, run on modelled devices in
//! virtual time; the first of them also through the kernel, in real time. And how fast scrubs and
//! resilvers are ([`scan`], a part of its own), also at the size of a published story ([`story`]);
//! and overwrites of parts of a volume's records ([`volume`]).
//!
//! Each part prints its table beside what was published and returns it; [`plots`] draws them.

pub mod cached;
mod copy;
mod large;
mod mounted;
mod patterned;
mod perrin;
mod plot;
mod rig;
pub mod scan;
pub mod story;
pub mod volume;

use crate::engine::Result;
use lexopt::ValueExt;
pub use perrin::{DISKS, Through};
use plot::{Group, bars};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zilla_core::tunables::ALL;

/// Seconds of each measurement: several txgs, for between two of them a log device that is quicker
/// than the pool fills and empties.
pub const SECONDS: u64 = 16;

/// All parts but [`scan`], or those with `only` in their name; the first on so many `disks` and
/// with the logs that have `log` in their name; only the first goes `through` anything but the
/// facade.
pub fn run(seconds: u64, only: &str, disks: &[usize], log: &str, through: Through) -> Result<Value> {
    let others = ["copy", "large"].into_iter().any(|part| part.contains(only));
    if others && through != Through::Facade {
        return Err("only perrin goes through FUSE: say --only perrin".into());
    }
    let mut out = json!({ "seconds": seconds });
    if "perrin".contains(only) {
        out["perrin"] = perrin::run(seconds, disks, log, through)?;
    }
    if "copy".contains(only) {
        out["copy"] = copy::run()?;
    }
    if "large".contains(only) {
        out["large"] = large::run(seconds)?;
    }
    Ok(out)
}

/// Draws what [`run`] returned into `folder`, and names the files.
pub fn plots(result: &Value, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let numbers =
        |v: &Value| -> Vec<f64> { v.as_array().into_iter().flatten().filter_map(Value::as_f64).collect() };
    let name = |row: &Value| row["log"].as_str().unwrap_or_default().to_owned();
    let mut made = Vec::new();
    let mut save = |file: &str, svg: String| -> Result<()> {
        let path = folder.join(file);
        std::fs::write(&path, svg)?;
        made.push(path);
        Ok(())
    };
    if let Some(rows) = result["perrin"]["rows"].as_array() {
        let series = ["1 disk", "2 disks", "4 disks", "8 disks"];
        for (file, which, title) in [
            ("slog-perrin.svg", "MBps", "8 KiB O_DSYNC, 32 threads, MB/s: zilla, modelled devices"),
            ("slog-perrin-published.svg", "published", "The same as published in 2007, MB/s"),
        ] {
            let groups: Vec<Group> =
                rows.iter().map(|r| Group { name: name(r), values: numbers(&r[which]) }).collect();
            save(file, bars(title, &series, &groups))?;
        }
    }
    if let Some(rows) = result["copy"].as_array() {
        let group = |r: &Value| {
            let gains = [r["gain"].as_f64(), r["published"].as_f64()];
            Group { name: name(r), values: gains.into_iter().flatten().collect() }
        };
        let groups: Vec<Group> = rows.iter().map(group).collect();
        let title = "A tree copied with sync: times the rate without a log device";
        save("slog-copy.svg", bars(title, &["zilla", "published, at least"], &groups))?;
    }
    Ok(made)
}

/// Sets what is said as `name=value`.
fn tune(said: &str) -> Result<()> {
    let (name, value) = said.split_once('=').ok_or("a tunable is said as NAME=VALUE")?;
    let tunable = ALL.iter().find(|t| t.name == name).ok_or("there is no such tunable")?;
    tunable.set(value.parse()?);
    Ok(())
}

pub fn main(mut args: lexopt::Parser) -> Result<()> {
    let (mut seconds, mut only, mut disks) = (SECONDS, String::new(), DISKS.to_vec());
    let (mut log, mut through) = (String::new(), Through::Facade);
    let (mut gb, mut legacy, mut rows) = (None, true, String::new());
    let (mut cases, mut shrink) = (String::new(), 1);
    while let Some(arg) = args.next()? {
        match arg {
            lexopt::Arg::Long("seconds") => seconds = args.value()?.parse()?,
            lexopt::Arg::Long("only") => only = args.value()?.string()?,
            lexopt::Arg::Long("log") => log = args.value()?.string()?,
            lexopt::Arg::Long("gb") => gb = Some(args.value()?.parse()?),
            lexopt::Arg::Long("no-legacy") => legacy = false,
            lexopt::Arg::Long("rows") => rows = args.value()?.string()?,
            lexopt::Arg::Long("cases") => cases = args.value()?.string()?,
            lexopt::Arg::Long("shrink") => shrink = args.value()?.parse()?,
            lexopt::Arg::Long("tunable") => tune(&args.value()?.string()?)?,
            lexopt::Arg::Long("policy") => {
                let plain = match args.value()?.string()?.as_str() {
                    "plain" => true,
                    "measured" => false,
                    _ => return Err("--policy is plain or measured".into()),
                };
                rig::PLAIN.set(plain).unwrap_or_default();
            }
            lexopt::Arg::Long("disks") => disks = vec![args.value()?.parse()?],
            lexopt::Arg::Long("through") => {
                through = match args.value()?.string()?.as_str() {
                    "facade" => Through::Facade,
                    "fuse" => Through::Fuse,
                    other => return Err(format!("nothing goes through \"{other}\": facade or fuse").into()),
                }
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if only == "scan" {
        println!("{}", scan::run(gb.unwrap_or(scan::GB), legacy)?);
        return Ok(());
    }
    if only == "cache" {
        println!("{}", cached::run(&rows, &cases, shrink)?);
        return Ok(());
    }
    if only == "story" {
        println!("{}", story::run(gb.unwrap_or(story::GB))?);
        return Ok(());
    }
    if only == "volume" {
        println!("{}", volume::run(gb.unwrap_or(volume::GB))?);
        return Ok(());
    }
    println!("{}", run(seconds, &only, &disks, &log, through)?);
    Ok(())
}
