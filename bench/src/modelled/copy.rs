//! The copy test of a media house: a large tree copied with sync to a mirror of USB disks, with no
//! log device, with four USB sticks side by side, with two mirrored pairs of them, and with one
//! SSD.
//!
//! The published gains over no log were 10 %, 10 % and 20 %. The tree here: folders of files from a
//! few KiB to some MiB, written in pieces of 128 KiB, each file made stable before the next, by
//! four writers, as a copy over NFS does. The time is that until the last file is stable; the tree
//! (2.7 GB) is larger than what may be dirty, so that the disks cannot put all of their part off.

use super::perrin::random;
use super::rig::{Devices, Rig, Shape, virtual_world};
use crate::engine::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use zilla::{Cred, Filesystem, NewFile};
use zilla_env::Env;

const WRITERS: u64 = 4;
const FILES: u64 = 1600;
const PIECE: u64 = 128 << 10;
const STICK: &str = "usb-flash-stick";

/// A log: how many devices, of which profile, and how they stand.
type Log = Option<(usize, &'static str, Shape)>;

const SETUPS: [(&str, Log, Option<f64>); 4] = [
    ("no log", None, None),
    ("four sticks", Some((4, STICK, Shape::Single)), Some(1.10)),
    ("two mirrored pairs of sticks", Some((4, STICK, Shape::Pairs)), Some(1.10)),
    ("one SSD", Some((1, "sata-ssd", Shape::Single)), Some(1.20)),
];

pub fn run() -> Result<Value> {
    println!("a tree copied with sync to a mirror of two 5400 rpm USB disks");
    let mut rows = Vec::new();
    let mut without = 0.0;
    for (name, logs, published) in SETUPS {
        let logs = logs.map(|(count, profile, shape)| Devices { count, profile, size: 2 << 30, shape });
        let rate = one(logs)?;
        if published.is_none() {
            without = rate;
        }
        let gain = rate / without;
        let of = published.map_or(String::new(), |p| format!(" (published {p:.2}x)"));
        println!(
            "{name:30} {rate:6.2} MB/s  {gain:5.2}x{of}  {}",
            "#".repeat((gain * 20.0).min(100.0) as usize)
        );
        rows.push(json!({ "log": name, "MBps": rate, "gain": gain, "published": published }));
    }
    Ok(json!(rows))
}

fn one(logs: Option<Devices>) -> Result<f64> {
    let main = Devices { count: 2, profile: "5400rpm-usb2", size: 4 << 30, shape: Shape::Pairs };
    let sim = virtual_world();
    let rig = Rig::new(&sim.env(), main, logs)?;
    let (env, fs) = (rig.env.clone(), rig.fs.clone());
    let done = rig.env.block_on(async move {
        let begin = env.now();
        let data = random(&env, PIECE);
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| env.spawn_with_result(copy(env.clone(), fs.clone(), n, data.clone())))
            .collect();
        let mut bytes = 0;
        for writer in writers {
            bytes += writer.await?;
        }
        let copied = env.now().saturating_sub(begin);
        fs.sync().await?;
        Ok::<_, zilla::Error>((bytes, copied))
    });
    let (bytes, time) = done?;
    Ok(bytes as f64 / time.as_secs_f64() / 1e6)
}

/// One writer's folder. Sizes are spread evenly over the orders of magnitude, as those of people's
/// files are.
async fn copy(env: Env, fs: Arc<Filesystem>, n: u64, data: Bytes) -> zilla::Result<u64> {
    let new = |mode| NewFile::new(mode, Cred::default());
    let folder = fs.create(fs.root(), format!("folder{n}").as_bytes(), new(0o040_755)).await?.node;
    let mut total = 0;
    for i in 0..FILES {
        let size = (4 << 10 << env.random_below(10)) + env.random_below(4 << 10);
        let file = fs.create(folder, format!("file{i}").as_bytes(), new(0o100_644)).await?.node;
        let mut at = 0;
        while at < size {
            let len = PIECE.min(size - at);
            fs.write(file, at, &data.slice(..len as usize), false).await?;
            at += len;
        }
        fs.fsync(file).await?;
        total += size;
    }
    Ok(total)
}
