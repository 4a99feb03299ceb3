//! Scrub and resilver of a fragmented pool on modelled disks: beside reading it in logical order,
//! and beside the disks' sequential bandwidth.
//!
//! The pool holds a volume of 16K blocks, each written once in order and then as many again at
//! random, so that what follows in the volume lies apart on the disks and what was overwritten is
//! gaps. The data repeat themselves within a block, so that memory holds them (`patterned.rs`);
//! they are not compressed.
//!
//! A disk's bandwidth is its profile's. The share of it that a scan reaches is the bytes that a
//! disk of the vdev holds over what it could have read in the time that the scan took, from the
//! command to the end.
//!
//! The limit is what a disk takes that reads each place once, in order, and passes over what lies
//! between two of them as it turns, or by a seek where that is shorter: no order is faster. Gaps
//! make it more than the bytes' time, so 0.8 of the bandwidth may not be had; the share of the
//! limit says what is left to gain.

use super::patterned::Patterned;
use super::rig::{Caches, Devices, POOL, Rig, Shape, path, virtual_world};
use crate::engine::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zilla::Volume;
use zilla::engine::open_volume;
use zilla_core::dsl::Setting;
use zilla_core::metaslab::SpaceClass;
use zilla_core::spa::Attach;
use zilla_core::tunables::SCAN_LEGACY;
use zilla_core::vdev::LeafSpec;
use zilla_core::zap::Value as ZapValue;
use zilla_core::zvol::{NewVolume, create_volume};
use zilla_env::model::Profile;
use zilla_env::{BoxFuture, Device, Env};

const DISK: &str = "7200rpm-sata";
const BLOCK: u64 = 16 << 10;
/// Writes are handed in by so many.
const WRITERS: u64 = 8;
/// Who reads while a scrub is under way, and for how long.
const READERS: usize = 4;
const READ_FOR: Duration = Duration::from_secs(20);
/// Of the disk's bytes that are in use before the overwriting.
const FULL: f64 = 0.6;
/// To a track near by, and half a turn (the profile's).
const SEEK: Duration = Duration::from_micros(800 + 4167);
/// Little, because the pool may be made smaller than what is asked for: it must not fit into
/// memory.
const CACHES: Caches = Caches { dbufs: 64 << 20, arc: 256 << 20 };
/// `compression=off`.
const OFF: u64 = 2;

/// What is promised: times the rate in logical order, of the disk's bandwidth, of the readers'
/// rate, and how much longer than in proportion a resilver of a part may take.
const FASTER: f64 = 6.0;
const BANDWIDTH: f64 = 0.8;
const FOREGROUND: f64 = 0.8;

/// GB of the volume, if nothing else is said: what takes some minutes of computing.
pub const GB: f64 = 4.0;

pub fn run(gb: f64, legacy: bool) -> Result<Value> {
    let rate = Profile::named(DISK).map(|p| p.media_read.min(p.bus)).ok_or("there is no such profile")?;
    println!("a fragmented pool of {gb} GB on modelled disks of 7200 rpm and {:.0} MB/s", rate as f64 / 1e6);
    let mut rows = Vec::new();
    for (name, shape, count) in [("mirror of 2", Shape::Pairs, 2), ("raidz1 of 4", Shape::Raidz, 4)] {
        rows.extend(one(name, shape, count, gb, rate, legacy)?);
    }
    Ok(json!({ "GB": gb, "rows": rows }))
}

fn verdict(kept: bool) -> &'static str {
    if kept { "kept" } else { "MISSED" }
}

/// A pool under test.
struct Bench {
    rig: Rig,
    volume: Arc<Volume>,
    blocks: u64,
    /// Bytes of each disk that hold something.
    per_disk: f64,
    disks: usize,
    devices: Vec<Arc<Patterned>>,
    rate: f64,
}

fn one(name: &str, shape: Shape, count: usize, gb: f64, rate: u64, legacy: bool) -> Result<Vec<Value>> {
    let sim = virtual_world();
    let bytes = (gb * 1e9) as u64 / BLOCK * BLOCK;
    // With 16K blocks a raidz of four holds a block in six sectors, of four disks.
    let part = if shape == Shape::Raidz { 1.5 / count as f64 } else { 1.0 };
    let size = (bytes as f64 * part / FULL) as u64 >> 20 << 20;
    let main = Devices { count, profile: DISK, size, shape };
    let spares = Devices { count: 2, shape: Shape::Spare, ..main };
    let made = Mutex::new(Vec::new());
    let others = Arc::default();
    let memory = |role: &str, i: usize, size: u64| -> Arc<dyn Device> {
        let device = Arc::new(Patterned::watched(size, path(role, i), &others));
        made.lock().unwrap_or_else(PoisonError::into_inner).push(device.clone());
        device
    };
    let rig = Rig::made_of(&sim.env(), &[("main", main), ("spare", spares)], None, CACHES, memory)?;
    let devices = made.into_inner().unwrap_or_else(PoisonError::into_inner);
    let env = rig.env.clone();
    env.block_on(async {
        let volume = fragmented(&rig, bytes).await?;
        let allocated = rig.spa.metaslabs.class_stat(SpaceClass::Normal).alloc;
        // A mirror's space is that of one side, a raidz's that of all.
        let per_disk = allocated as f64 / if shape == Shape::Raidz { count as f64 } else { 1.0 };
        let bench =
            Bench { rig, volume, blocks: bytes / BLOCK, per_disk, disks: count, devices, rate: rate as f64 };
        bench.all(name, legacy).await
    })
}

/// A volume that is in no order on the disks.
async fn fragmented(rig: &Rig, bytes: u64) -> Result<Arc<Volume>> {
    let name = format!("{POOL}/v");
    let (dsl, full) = (rig.spa.dsl.clone(), name.clone());
    let new = NewVolume { size: bytes, block_size: BLOCK };
    let make = move |tx| -> BoxFuture<'static, _> {
        Box::pin(async move {
            let off = [("compression".to_owned(), Setting::Local(ZapValue::u64(OFF)))];
            create_volume(&dsl, &tx, &full, new, &off).await.map(|_| ())
        })
    };
    rig.spa.ctx.sync_task(make).await?;
    let volume = open_volume(&rig.env, &rig.spa.dsl, &name, false).await?;
    let blocks = bytes / BLOCK;
    for i in 0..blocks {
        write(&rig.env, &volume, i).await?;
    }
    rig.spa.sync().await?;
    overwrite(&rig.env, &volume, blocks, blocks).await?;
    rig.spa.sync().await?;
    Ok(volume)
}

async fn overwrite(env: &Env, volume: &Arc<Volume>, blocks: u64, times: u64) -> Result<()> {
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (env, volume) = (env.clone(), volume.clone());
            let again = env.clone();
            again.spawn_with_result(async move {
                for _ in 0..times / WRITERS {
                    write(&env, &volume, env.random_below(blocks)).await?;
                }
                Ok::<_, zilla::Error>(())
            })
        })
        .collect();
    for writer in writers {
        writer.await?;
    }
    Ok(())
}

/// Block `i`, as nothing else is.
async fn write(env: &Env, volume: &Volume, i: u64) -> zilla::Result<()> {
    let word = (env.rng.u64() | 1).to_le_bytes();
    volume.write(i * BLOCK, &[Bytes::from(word.repeat(BLOCK as usize / word.len()))], false).await
}

impl Bench {
    async fn all(&self, name: &str, legacy: bool) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        let mut row = |what: &str, logical: Option<Duration>, took: Duration, limit: f64| {
            let seconds = took.as_secs_f64();
            let (share, of_limit) = (self.per_disk / seconds / self.rate, limit / seconds);
            println!(
                "{name:12} {what:9} {seconds:8.1} s, {share:.2} of the bandwidth (promised {BANDWIDTH}: {}); the limit is {limit:.1} s, {of_limit:.2} of it",
                verdict(share >= BANDWIDTH)
            );
            let gain = logical.map(|l| l.as_secs_f64() / seconds);
            if let (Some(gain), Some(logical)) = (gain, logical) {
                let logical = logical.as_secs_f64();
                println!(
                    "{:22} {gain:.1}x logical order, {logical:.1} s (promised {FASTER}: {})",
                    "",
                    verdict(gain >= FASTER)
                );
            }
            rows.push(json!({ "pool": name, "what": what, "seconds": seconds, "share": share, "limit_seconds": limit, "gain": gain }));
        };
        let in_order = match legacy {
            true => {
                SCAN_LEGACY.set(1);
                let took = self.scrub().await;
                SCAN_LEGACY.set(0);
                Some(took?)
            }
            false => None,
        };
        self.limit();
        let took = self.scrub().await?;
        row("scrub", in_order, took, self.limit());
        let mirror = self.disks == 2;
        let mut second = None;
        if legacy {
            SCAN_LEGACY.set(1);
            let took = self.newcomer(mirror, 0).await;
            SCAN_LEGACY.set(0);
            second = Some(took?);
        }
        self.limit();
        let whole = self.newcomer(mirror, 1).await?;
        row("resilver", second, whole, self.limit());
        let alone = self.reads(false).await?;
        let beside = self.reads(true).await?;
        let share = beside / alone;
        println!(
            "{name:12} 16K reads  {alone:6.1} a second alone, {beside:6.1} beside a scrub, {share:.2} (promised {FOREGROUND}: {})",
            verdict(share >= FOREGROUND)
        );
        let part = self.absence().await?;
        println!(
            "{name:12} a disk that missed 1 % of the writes has them in {:.1} s, {:.3} of the time of all",
            part.as_secs_f64(),
            part.as_secs_f64() / whole.as_secs_f64()
        );
        rows.push(json!({ "pool": name, "reads_alone": alone, "reads_beside": beside, "share": share,
            "missed_1_percent_seconds": part.as_secs_f64() }));
        Ok(rows)
    }

    /// Seconds that the slowest disk would have taken at least for what was read since the last
    /// time this was asked.
    fn limit(&self) -> f64 {
        let of = |device: &Arc<Patterned>| {
            let (mut seconds, mut at) = (0.0, None);
            for (from, to) in device.reads() {
                let gap = at.map_or(0, |at| from - at) as f64 / self.rate;
                seconds += (to - from) as f64 / self.rate + gap.min(SEEK.as_secs_f64());
                at = Some(to);
            }
            seconds
        };
        self.devices.iter().map(of).fold(0.0, f64::max)
    }

    async fn scrub(&self) -> Result<Duration> {
        let (env, scan) = (&self.rig.env, self.rig.spa.scan()?);
        let begin = env.now();
        scan.start().await?;
        scan.wait().await;
        self.sound()?;
        Ok(env.now().saturating_sub(begin))
    }

    fn sound(&self) -> Result<()> {
        let status = self.rig.spa.scan()?.status();
        if status.errors == 0 { Ok(()) } else { Err(format!("{} errors", status.errors).into()) }
    }

    fn guid(&self, path: &std::path::Path) -> Result<u64> {
        let tree = self.rig.spa.tree();
        let path = path.display().to_string();
        let leaf = tree.leaves.iter().find(|l| l.path() == path);
        Ok(leaf.ok_or_else(|| format!("{path} is not in the pool"))?.guid())
    }

    /// A new disk joins a mirror, or takes another's place in a raidz, and gets everything.
    async fn newcomer(&self, mirror: bool, i: usize) -> Result<Duration> {
        let (env, spa) = (&self.rig.env, &self.rig.spa);
        let begin = env.now();
        let old = self.guid(&path("main", i))?;
        let spec = LeafSpec { path: path("spare", i), disk: true };
        let how = Attach { replace: !mirror, ashift: None, spare: None, sequential: false };
        spa.attach(old, &spec, how).await?;
        spa.scan()?.wait().await;
        self.sound()?;
        let took = env.now().saturating_sub(begin);
        if mirror {
            spa.detach(self.guid(&path("spare", i))?).await?;
        }
        Ok(took)
    }

    /// Reads of 16K a second at random places.
    async fn reads(&self, scrub: bool) -> Result<f64> {
        let (env, scan) = (&self.rig.env, self.rig.spa.scan()?);
        if scrub {
            scan.start().await?;
            // Past the gathering, if that is what it begins with.
            env.sleep(READ_FOR / 2).await;
        }
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (env, volume, blocks) = (env.clone(), self.volume.clone(), self.blocks);
                let (stop, done) = (stop.clone(), done.clone());
                let own = env.clone();
                env.spawn_with_result(async move {
                    while !stop.load(Ordering::Relaxed) {
                        volume.read(own.random_below(blocks) * BLOCK, BLOCK as usize).await?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<_, zilla::Error>(())
                })
            })
            .collect();
        env.sleep(READ_FOR).await;
        if scrub && !scan.is_scanning() {
            println!("the scrub was over before the readers were");
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.await?;
        }
        if scrub {
            scan.cancel().await.ok();
        }
        Ok(done.load(Ordering::Relaxed) as f64 / READ_FOR.as_secs_f64())
    }

    /// A disk is away while one block in a hundred is written, and gets what it missed.
    async fn absence(&self) -> Result<Duration> {
        let (env, spa) = (&self.rig.env, &self.rig.spa);
        // The last one is never replaced.
        let disk = self.guid(&path("main", self.disks - 1))?;
        spa.offline(disk, true, false).await?;
        overwrite(env, &self.volume, self.blocks, self.blocks / 100).await?;
        spa.sync().await?;
        let begin = env.now();
        spa.online(disk, false).await?;
        spa.scan()?.wait().await;
        self.sound()?;
        Ok(env.now().saturating_sub(begin))
    }
}
