//! A media house's mirror of USB disks at its full size, in virtual time: how long each step of
//! `docs/media-house.md` takes where the disks are as large, as full and as slow as those of the
//! published story.
//!
//! The data repeat a word within a record, so that memory holds them (`patterned.rs`); they are not
//! compressed. Computing takes no time here: a step's time is that of the disks, whose profile says
//! what the USB 2 bus and the heads allow. Each disk has a bus of its own; the story does not tell
//! whether its disks shared one, which would make copies and scans take twice as long.
//!
//! The limit of a step that reads or writes everything is the bytes of one side over what its disk
//! passes on a second.

use super::patterned::Patterned;
use super::rig::{Caches, Devices, POOL, Rig, Shape, path, virtual_world};
use crate::engine::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zilla::{Cred, Filesystem, NewFile};
use zilla_codec::compress::CompressSpec;
use zilla_core::metaslab::SpaceClass;
use zilla_core::spa::{Attach, OpenOpts, Spa, discover};
use zilla_core::vdev::LeafSpec;
use zilla_env::model::Profile;
use zilla_env::{Device, Env};
use zilla_ondisk::enums::PoolState;

const DISK: &str = "5400rpm-usb2";
/// The story's: what was copied, and the disks, in GB.
pub const GB: f64 = 905.0;
const OLD_DISK: f64 = 1500.0;
const NEW_DISK: f64 = 2000.0;
/// Recordings: large files, written one after the other.
const FILE: u64 = 4 << 30;
const PIECE: u64 = 1 << 20;
const RECORD: u64 = 128 << 10;
const CACHES: Caches = Caches { dbufs: 256 << 20, arc: 1 << 30 };
/// When the estimate of a scan is taken down.
const LOOKS: [Duration; 3] = [Duration::from_secs(60), Duration::from_secs(600), Duration::from_secs(3600)];

/// The published times in seconds, by step.
fn published(step: &str) -> Option<f64> {
    let hours = |h: f64, m: f64| h * 3600.0 + m * 60.0;
    Some(match step {
        "copy" => hours(41.0, 0.0),
        "scrub" => hours(39.0, 33.0),
        "attach the first" => 21.0,
        "attach the second" => 88.0,
        "resilver" => hours(45.0, 32.0),
        "detach" => 1.4,
        "export" => 540.0,
        "import" => 19.0,
        _ => return None,
    })
}

struct Story {
    spa: Arc<Spa>,
    env: Env,
    /// Of the size that the story has.
    scale: f64,
    /// Bytes a second of a disk.
    rate: f64,
    rows: Vec<Value>,
}

pub fn run(gb: f64) -> Result<Value> {
    let rate = Profile::named(DISK).map(|p| p.media_read.min(p.bus)).ok_or("there is no such profile")?;
    let scale = gb / GB;
    println!("{gb} GB on modelled disks of {:.0} MB/s", rate as f64 / 1e6);
    let sized = |gb: f64| (gb * scale * 1e9) as u64 >> 20 << 20;
    let old = Devices { count: 2, profile: DISK, size: sized(OLD_DISK), shape: Shape::Pairs };
    let new = Devices { size: sized(NEW_DISK), shape: Shape::Spare, ..old };
    let others = Arc::default();
    let memory = |role: &str, i: usize, size: u64| -> Arc<dyn Device> {
        Arc::new(Patterned::new(size, path(role, i), &others))
    };
    let sim = virtual_world();
    let Rig { env, spa, fs } =
        Rig::made_of(&sim.env(), &[("main", old), ("spare", new)], None, CACHES, memory)?;
    let world = env.clone();
    world.block_on(async move {
        let dataset = spa.dsl.by_name(POOL).await?;
        let os = spa.dsl.objset(&dataset).await?;
        let mut props = os.props();
        props.compress = CompressSpec::OFF;
        os.set_props(props);
        drop((os, dataset));
        let story = Story { spa, env, scale, rate: rate as f64, rows: Vec::new() };
        story.told(fs, (gb * 1e9) as u64).await
    })
}

impl Story {
    async fn told(mut self, fs: Arc<Filesystem>, bytes: u64) -> Result<Value> {
        let begin = self.env.now();
        copy(&fs, bytes).await?;
        drop(fs);
        self.spa.sync().await?;
        let all = self.held() / self.rate;
        self.row("copy", begin, Some(all));

        let begin = self.env.now();
        self.spa.scan()?.start().await?;
        let ended = self.watch(begin).await?;
        self.row_to("scrub", ended - begin, Some(all));

        // The second comes while the first is being given what it lacks, and both get it at once.
        for (i, step) in ["attach the first", "attach the second"].into_iter().enumerate() {
            let begin = self.env.now();
            let spec = LeafSpec { path: path("spare", i), disk: true };
            let how = Attach { replace: false, ashift: None, spare: None, sequential: false };
            self.spa.attach(self.guid(&path("main", i))?, &spec, how).await?;
            self.row(step, begin, None);
        }
        let begin = self.env.now();
        let ended = self.watch(begin).await?;
        self.row_to("resilver", ended - begin, Some(all));

        for i in 0..2 {
            let begin = self.env.now();
            self.spa.detach(self.guid(&path("main", i))?).await?;
            self.row("detach", begin, None);
        }
        let before = self.size();
        let begin = self.env.now();
        self.spa.online(self.guid(&path("spare", 0))?, true).await?;
        self.row("online -e", begin, None);
        if self.size() <= before {
            return Err("the pool has not grown".into());
        }
        let begin = self.env.now();
        self.spa.close(Some(PoolState::Exported)).await?;
        self.row("export", begin, None);
        let begin = self.env.now();
        let places: Vec<PathBuf> = (0..2).map(|i| path("spare", i)).collect();
        let found = discover(&self.env, &places).await?;
        let pool = found.first().ok_or("the pool is gone")?;
        let opts = OpenOpts { dbuf_cache: CACHES.dbufs, arc_max: CACHES.arc, ..OpenOpts::default() };
        self.spa = Spa::open(&self.env, pool, opts).await?;
        self.row("import", begin, None);
        Ok(json!({ "GB": self.scale * GB, "MBps": self.rate / 1e6, "rows": self.rows }))
    }

    fn row(&mut self, step: &str, begin: Duration, limit: Option<f64>) {
        let took = self.env.now().saturating_sub(begin);
        self.row_to(step, took, limit);
    }

    /// A line of the table: what a step took, and where all of the data is read or written its
    /// limit.
    fn row_to(&mut self, step: &str, took: Duration, limit: Option<f64>) {
        let took = took.as_secs_f64();
        // What grows with the data is told for the story's size beside it.
        let whole = if limit.is_some() { took / self.scale } else { took };
        let mut line = format!("{step:18} {}", clock(took));
        if let Some(limit) = limit {
            line += &format!(", the limit is {}, {:.2} of it", clock(limit), limit / took);
        }
        let published = published(step);
        if let Some(published) = published {
            line += &format!("; published {}, {:.1}x", clock(published), published / whole);
        }
        println!("{line}");
        self.rows.push(
            json!({ "step": step, "seconds": took, "limit_seconds": limit, "published_seconds": published }),
        );
    }

    /// Bytes that each side holds.
    fn held(&self) -> f64 {
        self.spa.metaslabs.class_stat(SpaceClass::Normal).alloc as f64
    }

    fn size(&self) -> u64 {
        self.spa.metaslabs.class_stat(SpaceClass::Normal).space
    }

    fn guid(&self, path: &std::path::Path) -> Result<u64> {
        let (tree, path) = (self.spa.tree(), path.display().to_string());
        let leaf = tree.leaves.iter().find(|l| l.path() == path);
        Ok(leaf.ok_or_else(|| format!("{path} is not in the pool"))?.guid())
    }

    /// Waits for the scan under way, and says what it seemed to take at first. Returns when it was
    /// over.
    async fn watch(&self, begin: Duration) -> Result<Duration> {
        let scan = self.spa.scan()?.clone();
        let env = self.env.clone();
        let looks = {
            let scan = scan.clone();
            self.env.spawn_with_result(async move {
                let mut seen = Vec::new();
                for at in LOOKS {
                    env.sleep((begin + at).saturating_sub(env.now())).await;
                    let s = scan.status();
                    if !scan.is_scanning() {
                        break;
                    }
                    let rate = s.pass_issued as f64 / at.as_secs_f64();
                    seen.push((at, (rate > 0.0).then(|| s.to_examine as f64 / rate)));
                }
                seen
            })
        };
        scan.wait().await;
        let ended = self.env.now();
        for (at, total) in looks.await {
            let total = total.map_or("not known yet".to_owned(), clock);
            println!("  after {}: in all {total}", clock(at.as_secs_f64()));
        }
        match scan.status().errors {
            0 => Ok(ended),
            n => Err(format!("{n} errors").into()),
        }
    }
}

async fn copy(fs: &Arc<Filesystem>, bytes: u64) -> Result<()> {
    let (mut left, mut word, mut n) = (bytes, 0u64, 0);
    while left > 0 {
        let name = format!("take{n}");
        let file =
            fs.create(fs.root(), name.as_bytes(), NewFile::new(0o100_644, Cred::default())).await?.node;
        let (mut at, size) = (0, FILE.min(left));
        while at < size {
            let mut piece = Vec::with_capacity(PIECE as usize);
            for _ in 0..PIECE / RECORD {
                // No two records are alike.
                word += 1;
                piece.extend_from_slice(&word.to_le_bytes().repeat(RECORD as usize / size_of::<u64>()));
            }
            piece.truncate((size - at) as usize);
            fs.write(file, at, &Bytes::from(piece), false).await?;
            at += PIECE;
        }
        (left, n) = (left - size, n + 1);
    }
    Ok(())
}

/// Hours and minutes, or seconds where it is a matter of seconds.
fn clock(seconds: f64) -> String {
    if seconds < 600.0 {
        return format!("{seconds:.2} s");
    }
    format!("{:.0} h {:02.0} min", (seconds / 3600.0).floor(), (seconds % 3600.0 / 60.0).floor())
}
