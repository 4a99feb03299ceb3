//! Neil Perrin's test of log devices: 32 threads that write 8 KiB with O_DSYNC at random places of a 400 MB file, on 1, 2, 4 and 8
//! disks, without a log device, with 1, 2 and 4 of the same kind, and with one NVRAM card.
//!
//! Source of the published figures: his article "slog blog (or blogging on slogging)" of 2007.

use super::rig::{Devices, Rig};
use crate::engine::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use zilla::{Cred, Filesystem, NewFile, NodeId};
use zilla_env::Env;

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

/// On so many disks each, with the log devices that have `log` in their name.
pub fn run(seconds: u64, disks: &[usize], log: &str) -> Result<Value> {
    let mut rows = Vec::new();
    let mut table: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    println!("8 KiB O_DSYNC writes at random, 32 threads, MB/s on {disks:?} disks of 7200 rpm (published)");
    for (name, logs, published) in ROWS.into_iter().filter(|(name, ..)| name.contains(log)) {
        let mut ours = Vec::new();
        for &disks in disks {
            let main = Devices { count: disks, profile: "7200rpm-sata", size: 4 << 30, mirrored: false };
            let logs =
                logs.map(|(count, profile)| Devices { count, profile, size: 4 << 30, mirrored: false });
            ours.push(one(main, logs, Load { threads: THREADS, write: WRITE, seconds })?);
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
    Ok(json!({ "disks": disks, "rows": rows, "promises": promises }))
}

/// MB/s of one pool.
pub fn one(main: Devices, logs: Option<Devices>, load: Load) -> Result<f64> {
    let rig = Rig::new(main, logs)?;
    let (env, fs, spa) = (rig.env.clone(), rig.fs.clone(), rig.spa.clone());
    let bytes = rig.sim.block_on(async move {
        let file = fs.create(fs.root(), b"file", NewFile::new(0o100_644, Cred::default())).await?.node;
        let fill = random(&env, FILL);
        for at in (0..FILE).step_by(FILL as usize) {
            fs.write(file, at, &fill, false).await?;
        }
        spa.sync().await?;
        let written = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..load.threads)
            .map(|_| {
                let work = writer(env.clone(), fs.clone(), file, load.write, written.clone(), stop.clone());
                env.spawn_with_result(work)
            })
            .collect();
        env.sleep(WARM_UP).await;
        let before = written.load(Ordering::Relaxed);
        env.sleep(Duration::from_secs(load.seconds)).await;
        let bytes = written.load(Ordering::Relaxed) - before;
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.await?;
        }
        Ok::<_, zilla::Error>(bytes)
    });
    Ok(bytes? as f64 / load.seconds as f64 / 1e6)
}

async fn writer(
    env: Env,
    fs: Arc<Filesystem>,
    file: NodeId,
    write: u64,
    written: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> zilla::Result<()> {
    let data = random(&env, write);
    while !stop.load(Ordering::Relaxed) {
        let at = env.random_below(FILE / write) * write;
        fs.write(file, at, &data, false).await?;
        fs.fsync(file).await?;
        written.fetch_add(write, Ordering::Relaxed);
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
