//! Neil Perrin's test of log devices: 32 threads that write 8 KiB with O_DSYNC at random places of
//! a 400 MB file, on 1, 2, 4 and 8 disks, without a log device, with 1, 2 and 4 of the same kind,
//! and with one NVRAM card. Through the facade, or through the kernel (`mounted.rs`).
//!
//! Source of the published figures: his article "slog blog (or blogging on slogging)" of 2007.

use super::mounted;
use super::rig::{Devices, Rig, Shape, virtual_world};
use crate::engine::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zilla::{Cred, Filesystem, NewFile, NodeId};
use zilla_env::Env;

/// The file's name and size.
pub const NAME: &str = "file";
const FILE: u64 = 400 << 20;
const WRITE: u64 = 8 << 10;
const THREADS: usize = 32;
const FILL: u64 = 1 << 20;
const WARM_UP: Duration = Duration::from_secs(2);
pub const DISKS: [usize; 4] = [1, 2, 4, 8];

/// A log: how many devices, of which profile.
type Log = Option<(usize, &'static str)>;

/// Log devices, and what was published for them on 1, 2, 4 and 8 disks, in MB/s.
const ROWS: [(&str, Log, [u64; 4]); 5] = [
    ("no slog", None, [11, 14, 17, 15]),
    ("1 slog", Some((1, "7200rpm-sata")), [12, 12, 12, 12]),
    ("2 slogs", Some((2, "7200rpm-sata")), [17, 17, 17, 19]),
    ("4 slogs", Some((4, "7200rpm-sata")), [17, 16, 15, 15]),
    ("NVRAM", Some((1, "nvram")), [221, 221, 218, 217]),
];

/// What is promised: NVRAM over no log device, and two and four log devices over one.
const NVRAM: f64 = 13.0;
const TWO: f64 = 1.8;
const FOUR: f64 = 3.4;

/// Who writes how much at a time, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub threads: usize,
    pub write: u64,
    pub seconds: u64,
}

/// The way of the writes to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Calls, in virtual time.
    Facade,
    /// System calls, in real time: virtual time has no kernel in it.
    Fuse,
}

/// On so many disks each, with the log devices that have `log` in their name.
pub fn run(seconds: u64, disks: &[usize], log: &str, through: Through) -> Result<Value> {
    let mut rows = Vec::new();
    let mut table: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let way = match through {
        Through::Facade => "through the facade in virtual time",
        Through::Fuse => "through FUSE in real time",
    };
    println!(
        "8 KiB O_DSYNC writes at random, 32 threads, {way}, MB/s on {disks:?} disks of 7200 rpm (published)"
    );
    for (name, logs, published) in ROWS.into_iter().filter(|(name, ..)| name.contains(log)) {
        let mut ours = Vec::new();
        for &disks in disks {
            let main = Devices { count: disks, profile: "7200rpm-sata", size: 4 << 30, shape: Shape::Single };
            let logs =
                logs.map(|(count, profile)| Devices { count, profile, size: 4 << 30, shape: Shape::Single });
            let load = Load { threads: THREADS, write: WRITE, seconds };
            ours.push(match through {
                Through::Facade => one(main, logs, load)?,
                Through::Fuse => mounted::one(main, logs, load)?,
            });
        }
        let cells: Vec<String> = ours
            .iter()
            .zip(disks)
            .map(|(ours, n)| {
                let at = DISKS.iter().position(|d| d == n).and_then(|i| published.get(i));
                format!("{ours:7.1} ({})", at.map_or("-".into(), u64::to_string))
            })
            .collect();
        println!("{name:8} {}", cells.join("  "));
        rows.push(json!({ "log": name, "MBps": ours, "published": published }));
        table.insert(name, ours);
    }
    let mut promises = Vec::new();
    for (row, of, least) in
        [("NVRAM", "no slog", NVRAM), ("2 slogs", "1 slog", TWO), ("4 slogs", "1 slog", FOUR)]
    {
        let (Some(these), Some(those)) = (table.get(row), table.get(of)) else { continue };
        let name = format!("{row} over {of}");
        let ratios: Vec<f64> = these.iter().zip(those).map(|(a, b)| a / b).collect();
        let cells: Vec<String> = ratios
            .iter()
            .map(|r| format!("{r:6.2}x {}", if *r >= least { "kept" } else { "MISSED" }))
            .collect();
        println!("{name:18} (promised {least}x) {}", cells.join("  "));
        promises.push(json!({ "promise": name, "least": least, "ratios": ratios }));
    }
    Ok(json!({ "through": way, "disks": disks, "rows": rows, "promises": promises }))
}

/// MB/s of one pool through the facade, in virtual time.
pub fn one(main: Devices, logs: Option<Devices>, load: Load) -> Result<f64> {
    let sim = virtual_world();
    let rig = Rig::new(&sim.env(), main, logs)?;
    let rate = rig.env.block_on(async {
        let (env, file) = (&rig.env, fill(&rig).await?);
        let gauge = Arc::new(Gauge::default());
        let threads: Vec<_> = (0..load.threads)
            .map(|_| {
                let work = writer(env.clone(), rig.fs.clone(), file, load.write, gauge.clone());
                env.spawn_with_result(work)
            })
            .collect();
        let rate = gauge.measure(env, load.seconds).await;
        for thread in threads {
            thread.await?;
        }
        Ok::<_, zilla::Error>(rate)
    });
    Ok(rate?)
}

/// Makes the file, and has it on the disks.
pub async fn fill(rig: &Rig) -> zilla::Result<NodeId> {
    // Below a mount point it is written by whoever runs this.
    let new = NewFile::new(0o100_666, Cred::default());
    let file = rig.fs.create(rig.fs.root(), NAME.as_bytes(), new).await?.node;
    let fill = random(&rig.env, FILL);
    for at in (0..FILE).step_by(FILL as usize) {
        rig.fs.write(file, at, &fill, false).await?;
    }
    rig.spa.sync().await?;
    Ok(file)
}

/// What the writers have in common.
#[derive(Default)]
pub struct Gauge {
    /// Bytes that are stable.
    written: AtomicU64,
    stop: AtomicBool,
}

impl Gauge {
    /// MB/s after a warm-up. Stops the writers.
    pub async fn measure(&self, env: &Env, seconds: u64) -> f64 {
        env.sleep(WARM_UP).await;
        let (before, begin) = (self.written.load(Ordering::Relaxed), env.now());
        env.sleep(Duration::from_secs(seconds)).await;
        let bytes = self.written.load(Ordering::Relaxed) - before;
        let time = env.now().saturating_sub(begin);
        self.stop.store(true, Ordering::Relaxed);
        bytes as f64 / time.as_secs_f64() / 1e6
    }

    /// Where to write next; None: no more.
    pub fn next(&self, env: &Env, write: u64) -> Option<u64> {
        (!self.stop.load(Ordering::Relaxed)).then(|| env.random_below(FILE / write) * write)
    }

    pub fn add(&self, written: u64) {
        self.written.fetch_add(written, Ordering::Relaxed);
    }
}

async fn writer(
    env: Env,
    fs: Arc<Filesystem>,
    file: NodeId,
    write: u64,
    gauge: Arc<Gauge>,
) -> zilla::Result<()> {
    let data = random(&env, write);
    while let Some(at) = gauge.next(&env, write) {
        fs.write(file, at, &data, false).await?;
        fs.fsync(file).await?;
        gauge.add(write);
    }
    Ok(())
}

/// Bytes that do not shrink.
pub fn random(env: &Env, len: u64) -> Bytes {
    let mut data = Vec::with_capacity(len as usize);
    while (data.len() as u64) < len {
        data.extend_from_slice(&env.rng.u64().to_le_bytes());
    }
    data.truncate(len as usize);
    Bytes::from(data)
}
